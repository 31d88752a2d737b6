/*
 * worker.c
 *	  A background worker: serves one database for as long as there is
 *	  something to do in it.
 *
 * There are two kinds.  The extension's own worker evaluates waits, dispatches
 * timers and runs of jobs, reaps, cleans up, and looks which roles have
 * handlers; it runs no code of users.  A handlers' worker is connected as one
 * role and runs that role's handlers.
 *
 * A worker stays while there is something to do, and a moment longer, because
 * starting one takes milliseconds; then it leaves, so that nobody finds the
 * database in use.  What calls it back is described in posts.c.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "core/reap.h"
#include "outbox.h"
#include "queue/handler.h"
#include "queue/policy.h"
#include "shmem/directory.h"
#include "shmem/posts.h"
#include "table/catalog.h"
#include "util/guc.h"
#include "util/hash.h"
#include "worker/background.h"
#include "worker/handler_run.h"
#include "worker/worker.h"

/* How long to stay when there is nothing to do. */
#define LINGER_MS 1000

/* Things that are not called for are looked after this often. */
#define UPKEEP_INTERVAL_MS (60 * 60 * 1000)

/* A message that has expired is looked for no sooner than this. */
#define EXPIRY_MIN_MS 2000

#define REAP_BATCH 1000
#define WAIT_BATCH 100
#define DISPATCH_BATCH 1000

static MemoryContext worker_context = NULL; /* of one round */
static OutboxWorkerOrder order;
static OutboxWorkersState *state = NULL;
static OutboxPost *post = NULL;

/* ---------------------------------------------------------------------- */
/* Transactions                                                           */
/* ---------------------------------------------------------------------- */

static void
begin(const char *activity)
{
	pgstat_report_activity(STATE_RUNNING, activity);
	outbox_background_begin();
}

static void
commit(void)
{
	outbox_background_commit();
	Assert(!IsTransactionState());
	MemoryContextSwitchTo(worker_context);
	pgstat_report_activity(STATE_IDLE, NULL);
}

/* Run a statement that gives one number. */
static int64
run_sql(const char *sql)
{
	bool		isnull;
	int64		result;

	begin(sql);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	if (SPI_execute(sql, false, 1) != SPI_OK_SELECT || SPI_processed != 1)
		elog(ERROR, "could not run \"%s\"", sql);
	result = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0],
										 SPI_tuptable->tupdesc, 1, &isnull));
	SPI_finish();
	commit();
	return result;
}

/* ---------------------------------------------------------------------- */
/* The extension's own work                                               */
/* ---------------------------------------------------------------------- */

static int
reap(void)
{
	int			n;

	begin("outbox: reap");
	n = 0;
	for (OutboxStoreKind kind = 0; kind < OUTBOX_NSTORES; kind++)
		n += outbox_reap(outbox_store(kind), REAP_BATCH);
	commit();
	return n;
}

/* Roles whose handlers may have something to do get their post, or a call. */
static void
look_after_handlers(void)
{
	List	   *roles = NIL;
	ListCell   *lc;

	begin("outbox: handlers");
	foreach(lc, outbox_handlers())
	{
		const OutboxHandler *handler = lfirst(lc);
		Oid			roleid = get_role_oid(handler->role, true);

		if (OidIsValid(roleid) && outbox_handler_role_allowed(roleid) &&
			outbox_handler_role_connects(roleid))
			roles = list_append_unique_oid(roles, roleid);
	}
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	foreach(lc, roles)
	{
		OutboxPost *theirs = outbox_post_make(state, MyDatabaseId, lfirst_oid(lc));

		if (theirs != NULL && !theirs->served)
		{
			theirs->served = true;
			theirs->nlanes = -1;
			theirs->due = DT_NOBEGIN;
		}
	}
	for (int i = 0; i < state->nposts; i++)
	{
		OutboxPost *theirs = &state->posts[i];

		if (theirs->dbid == MyDatabaseId && OidIsValid(theirs->roleid) &&
			!list_member_oid(roles, theirs->roleid))
		{
			theirs->served = false;
			if (!theirs->running)
				theirs->dbid = theirs->roleid = InvalidOid;
		}
	}
	if (state->launcher != NULL)
		SetLatch(state->launcher);
	LWLockRelease(&state->lock);
	commit();
}

/* What nobody calls for: retention, the partitions of tomorrow, members
 * whose end nobody has counted. */
static void
upkeep(void)
{
	TimestampTz now = GetCurrentTimestamp();

	/* nobody else reads or writes it while we are there */
	if (now < post->next_upkeep)
		return;
	(void) run_sql("SELECT outbox.cleanup()::bigint");
	(void) run_sql("SELECT outbox.reconcile_joins()::bigint");
	post->next_upkeep = TimestampTzPlusMilliseconds(now, UPKEEP_INTERVAL_MS);
}

static int64
own_round(void)
{
	int64		n = run_sql("SELECT outbox.process_join_waits("
							CppAsString2(WAIT_BATCH) ")::bigint");

	if (outbox_dispatch_timers)
		n += run_sql("SELECT outbox.dispatch_due(" CppAsString2(DISPATCH_BATCH) ")::bigint");
	n += reap();
	look_after_handlers();
	upkeep();
	return n;
}

/*
 * When will there be something to do, if nobody calls?  Leases that end are
 * the launcher's to watch.
 */
static TimestampTz
own_due(void)
{
	TimestampTz now = GetCurrentTimestamp();
	uint32		topic_hash;
	OutboxLaneFilter filter = {.topic_hashes = &topic_hash,.ntopics = 1};
	TimestampTz wait_due;
	TimestampTz expiry;
	int64		ms;

	/* something in doubt is tried again soon */
	ms = run_sql("SELECT coalesce((SELECT 100 FROM outbox.join_doubts LIMIT 1), 86400000)::bigint");

	/* a message that expires, or that could not be buried a moment ago */
	begin("outbox: waits");
	expiry = outbox_reap_next_expiry(outbox_store(OUTBOX_QUEUE));
	expiry = Max(expiry, TimestampTzPlusMilliseconds(now, EXPIRY_MIN_MS));

	/* a wait that was put back for a moment */
	topic_hash = outbox_topic_hash(cstring_to_text(outbox_join_wait_topic));
	if (!outbox_directory_next_due(outbox_store(OUTBOX_QUEUE)->table, &filter, &wait_due))
		wait_due = TimestampTzPlusMilliseconds(now, outbox_poll_interval);
	for (OutboxStoreKind kind = OUTBOX_TIMERS; kind <= OUTBOX_RUNS; kind++)
	{
		OutboxLaneFilter all = {NULL};
		TimestampTz due;

		if (!outbox_dispatch_timers)
			break;
		if (!outbox_directory_next_due(outbox_store(kind)->table, &all, &due))
			due = TimestampTzPlusMilliseconds(now, outbox_poll_interval);
		wait_due = Min(wait_due, due);
	}
	commit();
	return Min(Min(post->next_upkeep, Min(wait_due, expiry)),
			   TimestampTzPlusMilliseconds(now, ms));
}

/* ---------------------------------------------------------------------- */
/* The work of handlers                                                   */
/* ---------------------------------------------------------------------- */

/* Our handlers, until the end of the round. */
static List *
my_handlers(void)
{
	List	   *mine = NIL;
	const char *role;
	ListCell   *lc;

	begin("outbox: handlers");
	role = GetUserNameFromId(GetUserId(), false);
	foreach(lc, outbox_handlers())
	{
		const OutboxHandler *handler = lfirst(lc);

		if (strcmp(handler->role, role) == 0 &&
			outbox_handler_role_allowed(GetUserId()))
		{
			MemoryContext old = MemoryContextSwitchTo(worker_context);

			mine = lappend(mine, outbox_handler_copy(handler));
			MemoryContextSwitchTo(old);
		}
	}
	commit();
	return mine;
}

/* Tell which lanes concern us. */
static void
publish_lanes(List *handlers)
{
	int			n = 0;
	ListCell   *lc;

	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	post->nlanes = -1;
	if (list_length(handlers) <= OUTBOX_POST_LANES)
	{
		foreach(lc, handlers)
			post->lanes[n++] = ((OutboxHandler *) lfirst(lc))->lane;
		post->nlanes = n;
	}
	LWLockRelease(&state->lock);
}

static int64
handlers_round(List *handlers)
{
	int64		n = 0;
	ListCell   *lc;

	foreach(lc, handlers)
	{
		const OutboxHandler *handler = lfirst(lc);

		CHECK_FOR_INTERRUPTS();
		/* the transactions of the one before have left us in another */
		MemoryContextSwitchTo(worker_context);
		pgstat_report_activity(STATE_RUNNING,
							   psprintf("outbox: handler %s", handler->function));
		n += outbox_handler_run(handler);
		pgstat_report_activity(STATE_IDLE, NULL);
	}
	return n;
}

/* When will a message for our handlers become due? */
static TimestampTz
handlers_due(List *handlers)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz result = DT_NOEND;
	ListCell   *lc;

	begin("outbox: handlers");
	foreach(lc, handlers)
	{
		const OutboxHandler *handler = lfirst(lc);
		uint32		namespace_hash = outbox_namespace_hash(handler->namespace);
		uint32		topic_hash = outbox_topic_hash(handler->topic);
		OutboxLaneFilter filter = {&namespace_hash, &topic_hash, 1};
		TimestampTz due;

		/* who resumes a topic calls us */
		if (outbox_policy_lane_is_paused(handler->lane))
			due = DT_NOEND;
		else if (!outbox_directory_next_due(outbox_store(OUTBOX_QUEUE)->table, &filter, &due))
			due = TimestampTzPlusMilliseconds(now, outbox_poll_interval);
		result = Min(result, due);
	}
	commit();
	return result;
}

/* ---------------------------------------------------------------------- */
/* Coming and going                                                       */
/* ---------------------------------------------------------------------- */

/* However we end: nobody is to set our latch any more. */
static void
leave_post(int code, Datum arg)
{
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	post->latch = NULL;
	if (state->launcher != NULL)
		SetLatch(state->launcher);
	LWLockRelease(&state->lock);
}

static void
take_post(void)
{
	state = outbox_workers_state();
	if (state == NULL)
		proc_exit(0);
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	post = outbox_post_find(state, order.dbid, order.roleid);
	if (post != NULL)
	{
		Assert(post->running && post->latch == NULL);
		post->latch = MyLatch;
		post->left_well = false;
	}
	LWLockRelease(&state->lock);
	if (post == NULL)
		proc_exit(0);
	before_shmem_exit(leave_post, (Datum) 0);
}

/* There is something new; are we to look? */
static bool
was_called(void)
{
	bool		called;

	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	called = post->called;
	post->called = false;
	LWLockRelease(&state->lock);
	return called;
}

/*
 * Leave, to be back when something is due, or called for; not if we were
 * called meanwhile.
 */
static void
leave_until(TimestampTz due)
{
	bool		leave;

	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	leave = !post->called;
	if (leave)
	{
		post->due = due;
		post->left_well = true;
		post->latch = NULL;
	}
	LWLockRelease(&state->lock);
	if (leave)
		proc_exit(0);
}

/* Leave, if nobody wants this post served any more. */
static void
leave_if_unserved(void)
{
	bool		leave;

	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	leave = !post->served;
	if (leave)
	{
		post->due = DT_NOEND;
		post->left_well = true;
		post->latch = NULL;
	}
	LWLockRelease(&state->lock);
	if (leave)
		proc_exit(0);
}

/* Do others wait for a worker, and is it their turn? */
static bool
others_wait(void)
{
	return outbox_selection_strategy == OUTBOX_ROUND_ROBIN &&
		pg_atomic_read_u32(&state->waiting) > 0;
}

static bool
extension_is_there(void)
{
	Oid			extension;

	begin("outbox: look for the extension");
	extension = get_extension_oid(OUTBOX_EXTENSION, true);
	commit();
	return OidIsValid(extension);
}

/* Settings that must not depend on what the database or role has. */
static void
pin_settings(void)
{
	static const char *const pinned[][2] = {
		{"search_path", "pg_catalog, pg_temp"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"statement_timeout", "0"},
		{"lock_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"session_replication_role", "origin"},
#if PG_VERSION_NUM >= 170000
		{"transaction_timeout", "0"},
#endif
		{"zero_damaged_pages", "off"},
	};

	for (int i = 0; i < lengthof(pinned); i++)
		SetConfigOption(pinned[i][0], pinned[i][1], PGC_SUSET, PGC_S_OVERRIDE);
}

static void
reload_settings(void)
{
	if (!ConfigReloadPending)
		return;
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
}

/* Sleep until somebody calls; false if nobody does in that time. */
static bool
called_within(long ms)
{
	TimestampTz until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ms);

	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		reload_settings();
		if (was_called())
			return true;
		ms = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), until);
		if (ms <= 0)
			return false;
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms,
						 PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}

/* One round of whatever we are here for; how much there was to do. */
static int64
do_round(TimestampTz *due)
{
	List	   *handlers;
	int64		n;

	/* what we were called for may be newer than what we have been told of */
	outbox_handler_forget();
	outbox_policy_forget();
	if (!OidIsValid(order.roleid))
	{
		n = own_round();
		*due = n > 0 ? DT_NOBEGIN : own_due();
		return n;
	}
	handlers = my_handlers();
	publish_lanes(handlers);
	n = handlers_round(handlers);
	*due = n > 0 ? DT_NOBEGIN : handlers_due(handlers);
	return n;
}

/* Work until there is nothing to do, or it is another database's turn. */
static void
work(void)
{
	worker_context = AllocSetContextCreate(TopMemoryContext, "outbox worker",
										   ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		TimestampTz due;
		long		ms;

		Assert(!IsTransactionState());
		MemoryContextSwitchTo(worker_context);
		MemoryContextReset(worker_context);
		CHECK_FOR_INTERRUPTS();
		reload_settings();
		(void) was_called();
		leave_if_unserved();
		if (!extension_is_there())
		{
			leave_until(DT_NOEND);
			continue;
		}
		if (do_round(&due) > 0)
		{
			if (others_wait())
				leave_until(DT_NOBEGIN);
			continue;
		}
		ms = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), due);
		if (pg_atomic_read_u32(&state->waiting) > 0)
			leave_until(due);
		else if (!called_within(Min(ms, LINGER_MS)) && ms > LINGER_MS)
			leave_until(due);
	}
}

void
outbox_worker_main(Datum arg)
{
	memcpy(&order, MyBgworkerEntry->bgw_extra, sizeof(order));
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	take_post();
	BackgroundWorkerInitializeConnectionByOid(order.dbid, order.roleid,
											  OUTBOX_BGWORKER_ANY_ROLE);
	pin_settings();
	pgstat_report_appname("outbox worker");
	work();
}
