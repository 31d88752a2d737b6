/*
 * worker.c
 *	  A background worker, which serves one database as long as there is work.
 *
 * There are two kinds.  The extension's own worker evaluates waits, dispatches
 * timers and runs of jobs, reaps, cleans up, and finds the roles that have
 * handlers; it runs no code of users.  A handlers' worker is connected as one
 * role and runs that role's handlers.  What they do is in round.c.
 *
 * A worker stays while there is something to do, and a moment longer, because
 * starting one takes milliseconds; then it leaves, so that the database is not
 * in use all the time.  posts.c describes what calls it back.
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "outbox.h"
#include "shmem/posts.h"
#include "shmem/troubles.h"
#include "table/loading.h"
#include "util/guc.h"
#include "util/wait_event.h"
#include "worker/background.h"
#include "worker/round.h"
#include "worker/worker.h"

/* How long to stay when there is nothing to do. */
#define LINGER_MS 1000

/* Interval of checks whether the loading of a dump has ended. */
#define LOADING_MS 2000

/* Interval of rounds in a database whose rows come by replication. */
#define REPLICATED_MS 10000

static MemoryContext worker_context = NULL; /* of one round */
static OutboxWorkerOrder order;
static OutboxWorkersState *state = NULL;
static OutboxPost *post = NULL;

/* ---------------------------------------------------------------------- */
/* Coming and going                                                       */
/* ---------------------------------------------------------------------- */

/* Exit callback: remove our latch, so that it is not set any more. */
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

/* Was this post called? */
static bool
is_called(void)
{
	bool		called;

	LWLockAcquire(&state->lock, LW_SHARED);
	called = post->called;
	LWLockRelease(&state->lock);
	return called;
}

/* Take the call before a round: what comes from here on is another call. */
static void
take_call(void)
{
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	if (post->called)
		post->idle_rounds = 0;
	post->called = false;
	LWLockRelease(&state->lock);
}

/*
 * Leave; the next worker comes when something is due, or by a call.  The
 * caller must hold the lock.
 */
static void
leave_now(TimestampTz due)
{
	post->due = due;
	post->left_well = true;
	post->latch = NULL;
	LWLockRelease(&state->lock);
	proc_exit(0);
}

/*
 * Leave, unless there was a call in the meantime; then the caller must do
 * another round.  A worker whose post is due at once may leave in any case.
 */
static void
leave_until(TimestampTz due)
{
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	if (!post->called || due == DT_NOBEGIN)
		leave_now(due);
	LWLockRelease(&state->lock);
}

/* Leave if this post must not be served any more. */
static void
leave_if_unserved(void)
{
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	if (!post->served)
		leave_now(DT_NOEND);
	LWLockRelease(&state->lock);
}

/* Do other posts of this kind wait for a worker? */
static bool
others_wait(void)
{
	return pg_atomic_read_u32(&state->waiting[outbox_post_kind(post)]) > 0;
}

/* Find out whether the database has the extension. */
static bool
extension_is_there(void)
{
	Oid			extension;

	pgstat_report_activity(STATE_RUNNING, "outbox: look for the extension");
	outbox_background_begin();
	extension = get_extension_oid(OUTBOX_EXTENSION, true);
	outbox_background_commit();
	MemoryContextSwitchTo(worker_context);
	pgstat_report_activity(STATE_IDLE, NULL);
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	if (!OidIsValid(order.roleid))
	{
		if (post->empty && OidIsValid(extension))
			post->known_since = GetCurrentTimestamp();
		post->empty = !OidIsValid(extension);
	}
	LWLockRelease(&state->lock);
	return OidIsValid(extension);
}

/*
 * May the worker work in this database now?  It may not if the settings forbid
 * it, while a dump is being loaded, or if rows come by replication.
 * *look_again is set to when to check again.
 */
static bool
may_work(TimestampTz *look_again, bool *replicated)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		loading = false;

	*replicated = false;
	if (!outbox_workers)
	{
		*look_again = TimestampTzPlusMilliseconds(now,
												  (int64) outbox_discovery_interval * 1000);
		return false;
	}
	pgstat_report_activity(STATE_RUNNING, "outbox: look for a dump that is being loaded");
	outbox_background_begin();
	if (OidIsValid(get_extension_oid(OUTBOX_EXTENSION, true)))
	{
		loading = outbox_loading_elsewhere();
		*replicated = outbox_loading_by_replication();
	}
	outbox_background_commit();
	MemoryContextSwitchTo(worker_context);
	pgstat_report_activity(STATE_IDLE, NULL);
	*look_again = TimestampTzPlusMilliseconds(now, *replicated ? REPLICATED_MS : LOADING_MS);
	return !loading && !*replicated;
}

static void
reload_settings(void)
{
	if (!ConfigReloadPending)
		return;
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
}

/*
 * Sleep until there is a call; false if there is none in that time, or if
 * another post needs the slot.
 */
static bool
called_within(long ms)
{
	TimestampTz until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ms);

	for (;;)
	{
		outbox_background_check_for_interrupts();
		reload_settings();
		if (is_called())
			return true;
		ms = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), until);
		if (ms <= 0 || others_wait())
			return false;
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms,
						 outbox_wait_event(OUTBOX_WAIT_WORKER));
		ResetLatch(MyLatch);
	}
}

/*
 * Sleep regardless of calls, unless another post needs the slot: rows that
 * come by replication cause calls for work that must not be done here.
 */
static void
ignore_calls(long ms)
{
	TimestampTz until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ms);

	while (!others_wait() && (ms = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), until)) > 0)
	{
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms,
						 outbox_wait_event(OUTBOX_WAIT_WORKER));
		ResetLatch(MyLatch);
		outbox_background_check_for_interrupts();
		reload_settings();
	}
}

/* Do rounds until there is nothing to do, or it is another database's turn. */
static void
work(void)
{
	worker_context = AllocSetContextCreate(TopMemoryContext, "outbox worker",
										   ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		OutboxRound round;
		TimestampTz look_again;
		bool		replicated;
		long		ms;

		Assert(!IsTransactionState());
		MemoryContextSwitchTo(worker_context);
		MemoryContextReset(worker_context);
		outbox_background_check_for_interrupts();
		reload_settings();
		take_call();
		leave_if_unserved();
		if (!extension_is_there())
		{
			outbox_troubles_forget(order.dbid);
			leave_until(DT_NOEND);
			continue;
		}
		if (!may_work(&look_again, &replicated))
		{
			if (replicated)
			{
				if (!OidIsValid(order.roleid))
					outbox_round_follow(state, post, worker_context);
				ignore_calls(LINGER_MS);
			}
			leave_until(look_again);
			continue;
		}
		outbox_round_run(state, post, worker_context, &round);
		if (round.done > 0)
		{
			if (others_wait() && outbox_selection_strategy == OUTBOX_ROUND_ROBIN)
				leave_until(DT_NOBEGIN);
			continue;
		}
		ms = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), round.due);
		if (!called_within(Min(ms, LINGER_MS)) &&
			(ms > LINGER_MS || others_wait()))
			leave_until(round.due);
	}
}

/* Main function of a worker. */
void
outbox_worker_main(Datum arg)
{
	outbox_background_require_version();
	memcpy(&order, MyBgworkerEntry->bgw_extra, sizeof(order));
	outbox_background_accept_signals();

	take_post();
	BackgroundWorkerInitializeConnectionByOid(order.dbid, order.roleid,
											  OUTBOX_BGWORKER_ANY_ROLE);
	outbox_background_pin(order.roleid);
	pgstat_report_appname("outbox worker");
	work();
}
