/*
 * worker.c
 *	  A background worker: serves one database for as long as there is
 *	  something to do in it.
 *
 * There are two kinds.  The extension's own worker evaluates waits, dispatches
 * timers and runs of jobs, reaps, cleans up, and looks which roles have
 * handlers; it runs no code of users.  A handlers' worker is connected as one
 * role and runs that role's handlers.  What they do is in round.c.
 *
 * A worker stays while there is something to do, and a moment longer, because
 * starting one takes milliseconds; then it leaves, so that nobody finds the
 * database in use.  What calls it back is described in posts.c.
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
#include "utils/wait_event.h"

#include "compat.h"
#include "outbox.h"
#include "shmem/posts.h"
#include "shmem/troubles.h"
#include "table/loading.h"
#include "util/guc.h"
#include "worker/background.h"
#include "worker/round.h"
#include "worker/worker.h"

/* How long to stay when there is nothing to do. */
#define LINGER_MS 1000

/* While a dump is being loaded, whether it is there is asked this often. */
#define LOADING_MS 2000

static MemoryContext worker_context = NULL; /* of one round */
static OutboxWorkerOrder order;
static OutboxWorkersState *state = NULL;
static OutboxPost *post = NULL;

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

/* Has somebody called? */
static bool
is_called(void)
{
	bool		called;

	LWLockAcquire(&state->lock, LW_SHARED);
	called = post->called;
	LWLockRelease(&state->lock);
	return called;
}

/* We are about to look: whoever has something new from here on calls again. */
static void
take_call(void)
{
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	if (post->called)
		post->idle_rounds = 0;
	post->called = false;
	LWLockRelease(&state->lock);
}

/* Leave, to be back when something is due, or called for.  Needs the lock. */
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
 * Leave, if nobody has called meanwhile; if so, the caller must look again.  A
 * worker that will be back at once may leave in any case.
 */
static void
leave_until(TimestampTz due)
{
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	if (!post->called || due == DT_NOBEGIN)
		leave_now(due);
	LWLockRelease(&state->lock);
}

/* Leave, if nobody wants this post served any more. */
static void
leave_if_unserved(void)
{
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	if (!post->served)
		leave_now(DT_NOEND);
	LWLockRelease(&state->lock);
}

/* Do others of our kind wait for a worker? */
static bool
others_wait(void)
{
	return pg_atomic_read_u32(&state->waiting[outbox_post_kind(post)]) > 0;
}

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
		post->empty = !OidIsValid(extension);
	LWLockRelease(&state->lock);
	return OidIsValid(extension);
}

/*
 * May we work in this database now?  Not if its settings say so; nor while a dump
 * is being loaded into it.  Else *look_again is when to ask again.
 */
static bool
may_work(TimestampTz *look_again)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		loading = false;

	if (!outbox_workers)
	{
		*look_again = TimestampTzPlusMilliseconds(now,
												  (int64) outbox_discovery_interval * 1000);
		return false;
	}
	pgstat_report_activity(STATE_RUNNING, "outbox: look for a dump that is being loaded");
	outbox_background_begin();
	if (OidIsValid(get_extension_oid(OUTBOX_EXTENSION, true)))
		loading = outbox_loading_elsewhere();
	outbox_background_commit();
	MemoryContextSwitchTo(worker_context);
	pgstat_report_activity(STATE_IDLE, NULL);
	*look_again = TimestampTzPlusMilliseconds(now, LOADING_MS);
	return !loading;
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
 * Sleep until somebody calls; false if nobody does in that time, or if another
 * post needs the place.
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
						 PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}

/* Work until there is nothing to do, or it is another database's turn. */
static void
work(void)
{
	worker_context = AllocSetContextCreate(TopMemoryContext, "outbox worker",
										   ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		OutboxRound round;
		TimestampTz look_again;
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
		if (!may_work(&look_again))
		{
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

void
outbox_worker_main(Datum arg)
{
	memcpy(&order, MyBgworkerEntry->bgw_extra, sizeof(order));
	outbox_background_accept_signals();

	take_post();
	BackgroundWorkerInitializeConnectionByOid(order.dbid, order.roleid,
											  OUTBOX_BGWORKER_ANY_ROLE);
	outbox_background_pin(order.roleid);
	pgstat_report_appname("outbox worker");
	work();
}
