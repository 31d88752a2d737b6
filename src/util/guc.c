/*
 * guc.c
 *	  The settings, outbox.*
 *
 * Settings that decide what is kept, or what a producer may claim to be, are
 * for superusers (or those granted SET on them); those that only shape the
 * caller's own calls are for everybody.
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
int			outbox_max_attempts = 10;
int			outbox_backoff_base = 1000;
int			outbox_backoff_max = 60000;
bool		outbox_backoff_jitter = true;
int			outbox_retention = 7 * SECS_PER_DAY;
int			outbox_dead_retention = -1;
bool		outbox_check_dedupe_tenant = true;
char	   *outbox_join_wait_topic = NULL;
int			outbox_join_retention = 30 * SECS_PER_DAY;
int			outbox_deduplication_retention = -1;
bool		outbox_notify = false;
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
bool		outbox_use_cursor = true;
bool		outbox_use_direct = true;
int			outbox_lane_memory_mb = 64;

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

static void
define_claim_settings(void)
{
	DefineCustomIntVariable("outbox.lease_seconds",
							"How long a claimed message stays leased.",
							"Used when claim() and renew() are not told.",
							&outbox_lease_seconds,
							30, 1, OUTBOX_MAX_LEASE_SECONDS,
							PGC_USERSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.batch_size",
							"How many messages a call takes at most.",
							"Used when claim(), reap() and the like are not told.",
							&outbox_batch_size,
							50, 1, OUTBOX_MAX_BATCH,
							PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.poll_interval",
							"How often a waiting claim looks again when nothing can wake it.",
							NULL,
							&outbox_poll_interval,
							500, 1, OUTBOX_MAX_WAIT_MS,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomBoolVariable("outbox.notify",
							 "Sends a NOTIFY on channel outbox when messages are enqueued.",
							 "Once per transaction, which then cannot be prepared. Claims with wait_ms need it not.",
							 &outbox_notify,
							 false,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.max_attempts",
							"How often a message is handed out before it is given up.",
							"Used when neither the call nor the topic's policy says.",
							&outbox_max_attempts,
							10, 1, INT_MAX,
							PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.backoff_base",
							"Delay before the first retry; it doubles with each further one.",
							NULL,
							&outbox_backoff_base,
							1000, 0, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.backoff_max",
							"Longest delay before a retry.",
							NULL,
							&outbox_backoff_max,
							60000, 0, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomBoolVariable("outbox.backoff_jitter",
							 "Draws each retry delay between half and all of it.",
							 NULL,
							 &outbox_backoff_jitter,
							 true,
							 PGC_USERSET, 0, NULL, NULL, NULL);
}

static void
define_policy_settings(void)
{
	DefineCustomIntVariable("outbox.retention",
							"How long finished messages are kept.",
							"-1 keeps them for ever, 0 not at all.",
							&outbox_retention,
							7 * SECS_PER_DAY, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.dead_retention",
							"How long failed messages are kept.",
							"-1 keeps them for ever, 0 not at all.",
							&outbox_dead_retention,
							-1, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.join_retention",
							"How long joins that have ended are kept.",
							"-1 keeps them for ever. A join that somebody waits for is kept.",
							&outbox_join_retention,
							30 * SECS_PER_DAY, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.deduplication_retention",
							"How long it is remembered that a message was received.",
							"-1 remembers it for ever.",
							&outbox_deduplication_retention,
							-1, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomBoolVariable("outbox.dispatch_timers",
							 "Has the background worker turn due timers and job runs into messages.",
							 NULL,
							 &outbox_dispatch_timers,
							 true,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("outbox.workers",
							 "Has background workers serve the database.",
							 "Off for a copy that must stay quiet: ALTER DATABASE ... SET outbox.workers = off.",
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
							"How long a handler may take for one message.",
							"Used when register_handler() was not told. 0 is no limit.",
							&outbox_handler_timeout,
							60000, 0, INT_MAX,
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

/* These mean nothing without a launcher. */
static void
define_worker_settings(void)
{
	DefineCustomStringVariable("outbox.databases",
							   "Databases that background workers serve.",
							   "A list of names, or * for all that have the extension; empty for none.",
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
							"How many background workers may do the extension's own work at a time.",
							"Those that run handlers are not counted.",
							&outbox_max_workers,
							4, 1, 64,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.max_handler_workers",
							"How many background workers may run handlers at a time.",
							NULL,
							&outbox_max_handler_workers,
							4, 1, 64,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("outbox.selection_strategy",
							 "How workers divide their time among databases.",
							 "round_robin leaves a database after each batch if others wait; drain_first when nothing is left to do.",
							 &outbox_selection_strategy,
							 OUTBOX_ROUND_ROBIN, strategy_options,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);
}

static void
define_developer_settings(void)
{
	DefineCustomBoolVariable("outbox.use_cursor",
							 "Lets claims start where earlier ones ended.",
							 "Off, every claim scans its topics from the start. For tests.",
							 &outbox_use_cursor,
							 true,
							 PGC_USERSET, GUC_NOT_IN_SAMPLE, NULL, NULL, NULL);
	DefineCustomBoolVariable("outbox.use_direct",
							 "Lets the extension write its tables without the executor.",
							 "Off, every row is written by an SQL statement. For tests.",
							 &outbox_use_direct,
							 true,
							 PGC_USERSET, GUC_NOT_IN_SAMPLE, NULL, NULL, NULL);
	if (process_shared_preload_libraries_in_progress)
		DefineCustomIntVariable("outbox.lane_memory",
								"How much shared memory is used to remember where claims must look.",
								"More than that for topics in use at a time, and the rest is found more slowly.",
								&outbox_lane_memory_mb,
								64, 1, 65536,
								PGC_POSTMASTER, GUC_UNIT_MB, NULL, NULL, NULL);
}

void
outbox_guc_define(void)
{
	define_claim_settings();
	define_policy_settings();
	define_developer_settings();
	if (process_shared_preload_libraries_in_progress)
		define_worker_settings();
	MarkGUCPrefixReserved("outbox");
}
