/*
 * guc.c
 *	  The settings, outbox.*
 *
 * Settings that decide what is kept, or whether checks of producers are made,
 * can be set by superusers (or roles that are granted SET on them); settings
 * that only affect the caller's own calls can be set by all roles.
 */
#include "postgres.h"

#include <limits.h>

#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/timestamp.h"
#include "utils/varlena.h"

#include "outbox.h"
#include "util/guc.h"

int			outbox_lease_seconds = 30;
int			outbox_batch_size = 50;
int			outbox_poll_interval = 500;
int			outbox_priority_boost = 60000;
int			outbox_debounce_max = 60 * 60 * 1000;
int			outbox_max_attempts = 10;
int			outbox_backoff_base = 1000;
int			outbox_backoff_max = 60000;
bool		outbox_backoff_jitter = true;
int			outbox_retention = 7 * SECS_PER_DAY;
int			outbox_dead_retention = -1;
bool		outbox_check_dedupe_tenant = true;
char	   *outbox_join_wait_topic = NULL;
int			outbox_publish_retention = 0;
int			outbox_join_retention = 30 * SECS_PER_DAY;
int			outbox_deduplication_retention = -1;
int			outbox_depth_retention = 7 * SECS_PER_DAY;
int			outbox_metrics_topics = 100;
bool		outbox_notify = false;
char	   *outbox_traceparent = NULL;
bool		outbox_dispatch_timers = true;
bool		outbox_allow_superuser_handlers = false;
char	   *outbox_databases = NULL;
int			outbox_discovery_interval = 300;
int			outbox_max_workers = 4;
int			outbox_max_handler_workers = 4;
int			outbox_handler_timeout = 60000;
bool		outbox_workers = true;
int			outbox_selection_strategy = OUTBOX_ROUND_ROBIN;
int			outbox_log_level = DEBUG1;
const char *outbox_log_database = NULL;
bool		outbox_use_cursor = true;
bool		outbox_use_direct = true;
int			outbox_lane_memory_mb = 64;
int			outbox_topic_counters_max = 10000;
bool		outbox_track_counters = true;

static const struct config_enum_entry log_level_options[] = {
	{"debug5", DEBUG5, false},
	{"debug4", DEBUG4, false},
	{"debug3", DEBUG3, false},
	{"debug2", DEBUG2, false},
	{"debug1", DEBUG1, false},
	{"debug", DEBUG2, true},
	{"log", LOG, false},
	{"info", INFO, false},
	{"notice", NOTICE, false},
	{"warning", WARNING, false},
	{NULL, 0, false}
};

static const struct config_enum_entry strategy_options[] = {
	{"round_robin", OUTBOX_ROUND_ROBIN, false},
	{"drain_first", OUTBOX_DRAIN_FIRST, false},
	{NULL, 0, false}
};

static bool
check_databases(char **newval, void **extra, GucSource source)
{
	char	   *raw = pstrdup(*newval);
	List	   *names;

	if (strcmp(raw, "*") == 0 || SplitIdentifierString(raw, ',', &names))
		return true;
	GUC_check_errdetail("The value must be * or a list of database names.");
	return false;
}

static bool
check_topic_name(char **newval, void **extra, GucSource source)
{
	if (**newval != '\0' && strlen(*newval) <= OUTBOX_MAX_NAME)
		return true;
	GUC_check_errdetail("The topic must have 1 to %d characters.",
						OUTBOX_MAX_NAME);
	return false;
}

static bool
check_traceparent(char **newval, void **extra, GucSource source)
{
	if (**newval == '\0' || outbox_is_traceparent(*newval, strlen(*newval)))
		return true;
	GUC_check_errdetail("The value must be empty, or a traceparent of the W3C's version 00: 00, 32, 16 and 2 hexadecimal digits in lower case, with hyphens in between.");
	return false;
}

/*
 * Is this a traceparent of version 00, as the W3C's recommendation "Trace
 * Context" defines it?  An id that consists of zeros is none.
 */
bool
outbox_is_traceparent(const char *value, int len)
{
	static const char digits[] = "0123456789abcdef";

	return len == OUTBOX_TRACEPARENT_LEN &&
		strncmp(value, "00-", 3) == 0 &&
		strspn(value + 3, digits) == 32 && value[35] == '-' &&
		strspn(value + 3, "0") < 32 &&
		strspn(value + 36, digits) == 16 && value[52] == '-' &&
		strspn(value + 36, "0") < 16 &&
		strchr(digits, value[53]) != NULL && strchr(digits, value[54]) != NULL;
}

/* Settings of claims, retries and enqueue. */
static void
define_claim_settings(void)
{
	DefineCustomIntVariable("outbox.lease_seconds",
							"How long a claimed message stays leased.",
							"Used if claim() or renew() does not specify it.",
							&outbox_lease_seconds,
							30, 1, OUTBOX_MAX_LEASE_SECONDS,
							PGC_USERSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.batch_size",
							"Maximum number of messages that a call processes.",
							"Used if claim(), reap() and similar functions do not specify it.",
							&outbox_batch_size,
							50, 1, OUTBOX_MAX_BATCH,
							PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.poll_interval",
							"Interval at which a waiting claim polls if it cannot be woken.",
							NULL,
							&outbox_poll_interval,
							500, 1, OUTBOX_MAX_WAIT_MS,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomBoolVariable("outbox.notify",
							 "Sends a NOTIFY on channel outbox when messages are enqueued.",
							 "Once per transaction, which then cannot be prepared. Claims that pass wait_ms do not need it.",
							 &outbox_notify,
							 false,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("outbox.traceparent",
							   "Trace that enqueued messages belong to, as a W3C traceparent.",
							   "Put into the headers of what is enqueued, unless these have one; empty for none.",
							   &outbox_traceparent,
							   "",
							   PGC_USERSET, GUC_NOT_IN_SAMPLE, check_traceparent,
							   NULL, NULL);
	DefineCustomIntVariable("outbox.max_attempts",
							"Number of attempts after which a message fails.",
							"Used if neither the call nor the topic's policy specifies it.",
							&outbox_max_attempts,
							10, 1, INT_MAX,
							PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.backoff_base",
							"Delay before the first retry; it doubles with each further retry.",
							NULL,
							&outbox_backoff_base,
							1000, 0, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.backoff_max",
							"Maximum delay before a retry.",
							NULL,
							&outbox_backoff_max,
							60000, 0, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomBoolVariable("outbox.backoff_jitter",
							 "Chooses each retry delay at random between half of it and all of it.",
							 NULL,
							 &outbox_backoff_jitter,
							 true,
							 PGC_USERSET, 0, NULL, NULL, NULL);
}

/*
 * Settings of retention, and others that decide what is done in the
 * background.
 */
static void
define_policy_settings(void)
{
	DefineCustomIntVariable("outbox.retention",
							"How long finished messages are kept.",
							"-1 keeps them forever, 0 not at all.",
							&outbox_retention,
							7 * SECS_PER_DAY, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.dead_retention",
							"How long failed messages are kept.",
							"-1 keeps them forever, 0 not at all.",
							&outbox_dead_retention,
							-1, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.publish_retention",
							"How long publications are kept for future subscriptions and for replay.",
							"0 does not keep them, -1 keeps them forever. They are removed in units of a day.",
							&outbox_publish_retention,
							0, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.join_retention",
							"How long joins that have ended are kept.",
							"-1 keeps them forever. A join that a message waits for is kept.",
							&outbox_join_retention,
							30 * SECS_PER_DAY, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.deduplication_retention",
							"How long the ids of received messages are kept, to detect duplicates.",
							"-1 keeps them forever.",
							&outbox_deduplication_retention,
							-1, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.depth_retention",
							"How long samples of the numbers of messages are kept.",
							"-1 keeps them forever, 0 takes none.",
							&outbox_depth_retention,
							7 * SECS_PER_DAY, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.metrics_topics",
							"Maximum number of topics with numbers of their own in outbox.metrics() and outbox.depth.",
							"The others are summed.",
							&outbox_metrics_topics,
							100, 0, 10000,
							PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("outbox.dispatch_timers",
							 "Makes the background worker turn due timers and job runs into messages.",
							 NULL,
							 &outbox_dispatch_timers,
							 true,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("outbox.workers",
							 "Makes background workers serve the database.",
							 "Turn it off in a copy that must stay inactive: ALTER DATABASE ... SET outbox.workers = off.",
							 &outbox_workers,
							 true,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("outbox.allow_superuser_handlers",
							 "Lets superusers register handlers, which then run as superuser.",
							 NULL,
							 &outbox_allow_superuser_handlers,
							 false,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.handler_timeout",
							"Timeout of a handler for one message.",
							"Used if register_handler() did not specify it. 0 means no timeout.",
							&outbox_handler_timeout,
							60000, 0, INT_MAX,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.priority_boost",
							"How much earlier a message of priority 1 is handed out than one of priority 0.",
							"Priority 2 doubles it; messages of negative priority are handed out later.",
							&outbox_priority_boost,
							60000, 0, 24 * 60 * 60 * 1000,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.debounce_max",
							"How long after its creation a message can be postponed by debouncing.",
							"Used if enqueue() is called with on_duplicate => 'debounce'.",
							&outbox_debounce_max,
							60 * 60 * 1000, 0, INT_MAX,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomBoolVariable("outbox.check_dedupe_tenant",
							 "Requires the dedupe key of a tenant's message to begin with the tenant.",
							 NULL,
							 &outbox_check_dedupe_tenant,
							 true,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("outbox.join_wait_topic",
							   "Topic of the messages that wait for a join.",
							   NULL,
							   &outbox_join_wait_topic,
							   "join.wait",
							   PGC_SUSET, 0, check_topic_name, NULL, NULL);
	DefineCustomEnumVariable("outbox.log_level",
							 "Level at which operations are logged.",
							 NULL,
							 &outbox_log_level,
							 DEBUG1, log_level_options,
							 PGC_SUSET, 0, NULL, NULL, NULL);
}

/* Define settings that have no meaning without a launcher. */
static void
define_worker_settings(void)
{
	DefineCustomStringVariable("outbox.databases",
							   "Databases that background workers serve.",
							   "A list of names, or * for all databases that have the extension; empty for none.",
							   &outbox_databases,
							   "*",
							   PGC_SIGHUP, GUC_LIST_INPUT, check_databases,
							   NULL, NULL);
	DefineCustomIntVariable("outbox.discovery_interval",
							"How often to look for new databases.",
							NULL,
							&outbox_discovery_interval,
							300, 1, INT_MAX / 1000,
							PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.max_workers",
							"Maximum number of background workers that do the extension's own work.",
							"Workers that run handlers are not counted.",
							&outbox_max_workers,
							4, 1, 64,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.max_handler_workers",
							"Maximum number of background workers that run handlers.",
							NULL,
							&outbox_max_handler_workers,
							4, 1, 64,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("outbox.selection_strategy",
							 "How workers are divided among databases.",
							 "With round_robin a worker leaves a database after each batch if others wait, with drain_first when nothing is left to do.",
							 &outbox_selection_strategy,
							 OUTBOX_ROUND_ROBIN, strategy_options,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);
}

/* Settings for tests. */
static void
define_developer_settings(void)
{
	DefineCustomBoolVariable("outbox.use_cursor",
							 "Lets claims start where earlier ones ended.",
							 "If off, every claim scans its topics from the start. For tests.",
							 &outbox_use_cursor,
							 true,
							 PGC_USERSET, GUC_NOT_IN_SAMPLE, NULL, NULL, NULL);
	DefineCustomBoolVariable("outbox.use_direct",
							 "Lets the extension write its tables without the executor.",
							 "If off, every row is written by an SQL statement. For tests.",
							 &outbox_use_direct,
							 true,
							 PGC_USERSET, GUC_NOT_IN_SAMPLE, NULL, NULL, NULL);
}

/* Settings of counters, and of the size of shared memory. */
static void
define_memory_settings(void)
{
	DefineCustomBoolVariable("outbox.track_counters",
							 "Counts what happens to messages, by topic.",
							 "See outbox.topic_counters and outbox.stat.",
							 &outbox_track_counters,
							 true,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	if (!process_shared_preload_libraries_in_progress)
		return;
	DefineCustomIntVariable("outbox.topic_counters_max",
							"Maximum number of topics that are counted separately.",
							"The others are counted together, under no topic.",
							&outbox_topic_counters_max,
							10000, 0, 1000000,
							PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.lane_memory",
							"Amount of shared memory for the places where claims must look.",
							"If it is too small for the topics in use, claims of other topics are slower.",
							&outbox_lane_memory_mb,
							64, 1, 65536,
							PGC_POSTMASTER, GUC_UNIT_MB, NULL, NULL, NULL);
}

/* Define all settings.  Called by _PG_init. */
void
outbox_guc_define(void)
{
	define_claim_settings();
	define_policy_settings();
	define_developer_settings();
	define_memory_settings();
	if (process_shared_preload_libraries_in_progress)
		define_worker_settings();
	MarkGUCPrefixReserved("outbox");
}
