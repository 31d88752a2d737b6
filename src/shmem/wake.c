/*
 * wake.c
 *	  Sleeping until there is something to claim, and calling workers.
 *
 * A claim that finds nothing and may wait registers as a waiter (waiters.c).
 * Then, again and again, it lists itself, looks, and sleeps on its latch.  A
 * transaction that has made something claimable calls waiters after its commit
 * (lane_publish.c).  Since the claim is listed before it looks, and transactions
 * call after their changes have become visible, a claim that finds nothing is
 * called for whatever comes later.  Nobody polls, nothing is written, and none of
 * it passes through a connection pooler.
 *
 * What becomes due is waited for by one of the claims, the keeper of the time.
 * Each of the others wakes once in a while to see whether the keeper does so,
 * because a process can be stopped.  While there are sessions that write without
 * reporting it (epoch.c), or lanes that have found no room in memory, all look
 * every poll_interval.  So does a claim that cannot be called, for want of room or
 * because its session uses no memory.
 *
 * A claim whose client has gone must not take messages, so the socket is watched
 * while it sleeps, and looked at before it looks for messages again.
 *
 * How long a claim sleeps is measured by a clock that cannot be set.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "shmem/agenda.h"
#include "shmem/directory.h"
#include "shmem/epoch.h"
#include "shmem/lane_memory.h"
#include "shmem/lane_publish.h"
#include "shmem/posts.h"
#include "shmem/shmem.h"
#include "shmem/waiters.h"
#include "shmem/wake.h"
#include "util/guc.h"
#include "util/hash.h"

/* More topics than this are as good as all. */
#define MAX_TOPICS 32

/* Tables whose policies change in one transaction: a database has four. */
#define MAX_POLICIES 8

/* How soon to look again after a change of policies. */
#define UNSURE_MS 50

/* A claim that does not keep the time sleeps for so long at most. */
#define NAP_MS 5000

/* Upkeep that is wanted is done so much later, and no more often. */
#define UPKEEP_DELAY_MS 2000

/* What the end of this transaction may be of interest for. */
static int64 topics[MAX_TOPICS];
static int	ntopics = 0;
static bool all_topics = false;
static uint32 wait_topic;		/* hash of the topic that is the worker's */
static bool wait_topic_known = false;	/* in this transaction */
static Oid	policies_of[MAX_POLICIES];	/* tables whose policies have changed */
static int	npolicies_of = 0;
static Oid	released_in = InvalidOid;	/* table in which an owner has
										 * released */
static uint64 released_token;
static bool note_worker = false;
static bool note_database = false;
static bool note_upkeep = false;
static TimestampTz note_due = PG_INT64_MAX;
static TimestampTz note_lease = PG_INT64_MAX;

/* ---------------------------------------------------------------------- */
/* What a transaction has to tell                                         */
/* ---------------------------------------------------------------------- */

/*
 * At the end of a transaction nothing may be allocated or converted, so what
 * is needed then is made before.  To be called while the transaction runs, by
 * whatever may note something.
 */
void
outbox_wake_prepare(void)
{
	if (wait_topic_known)
		return;
	wait_topic = outbox_topic_hash(cstring_to_text(outbox_join_wait_topic));
	wait_topic_known = true;
}

/* Messages of this topic will be claimable. */
void
outbox_wake_note_topic(int64 topic_key)
{
	if (all_topics)
		return;
	for (int i = ntopics - 1; i >= 0; i--)
	{
		if (topics[i] == topic_key)
			return;
	}
	outbox_wake_prepare();
	if (ntopics < MAX_TOPICS)
		topics[ntopics++] = topic_key;
	else
		all_topics = true;
}

/* Policies have changed: claims of messages in this table must look again. */
void
outbox_wake_note_policies(Oid relid)
{
	for (int i = 0; i < npolicies_of; i++)
	{
		if (policies_of[i] == relid)
			return;
	}
	/* more than that only if they have been dropped and made again */
	if (npolicies_of == MAX_POLICIES)
		memmove(policies_of, policies_of + 1, --npolicies_of * sizeof(Oid));
	policies_of[npolicies_of++] = relid;
}

/* An owner has released all its messages: its claims must not wait any longer. */
void
outbox_wake_note_release(Oid relid, uint64 token)
{
	released_in = relid;
	released_token = token;
}

/* There is something for the worker of this database. */
void
outbox_wake_note_worker(void)
{
	note_worker = true;
}

/* The extension was created in this database, which the launcher may not know. */
void
outbox_wake_note_database(void)
{
	note_worker = note_database = true;
}

/* A partition of the archive is missing. */
void
outbox_wake_note_upkeep(void)
{
	note_upkeep = true;
}

/* There will be, at some time. */
void
outbox_wake_note_due(TimestampTz at)
{
	note_due = Min(note_due, at);
}

/* A lease was taken that ends then. */
void
outbox_wake_note_lease(TimestampTz ends)
{
	note_lease = Min(note_lease, ends);
}

static void
call_claims(void)
{
	OutboxAgenda *agenda;

	for (int i = 0; i < npolicies_of; i++)
	{
		agenda = outbox_agenda_lock_to_report(policies_of[i]);
		if (agenda == NULL)
			continue;
		outbox_waiters_call_all(agenda, true);
		LWLockRelease(&agenda->lock);
	}
	if (OidIsValid(released_in) &&
		(agenda = outbox_agenda_lock_to_report(released_in)) != NULL)
	{
		outbox_waiters_release(agenda, released_token);
		LWLockRelease(&agenda->lock);
	}
}

static void
call_workers(void)
{
	OutboxWorkersCall call = {
		.own = note_worker || all_topics,
		.all = all_topics || npolicies_of > 0,
		.look = note_database,
		.nlanes = ntopics,
		.lanes = topics
	};

	for (int i = 0; i < ntopics && !call.own; i++)
		call.own = (uint32) (topics[i] & 0xFFFFFFFF) == wait_topic;
	if (call.own || call.all || call.nlanes > 0)
		outbox_workers_call(&call);
	if (note_due != PG_INT64_MAX)
		outbox_workers_due(note_due);
	if (note_lease != PG_INT64_MAX)
		outbox_workers_lease(note_lease);
	if (note_upkeep)
		outbox_workers_want_upkeep(TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
															   UPKEEP_DELAY_MS));
}

/* The transaction has ended, one way or the other, or was prepared. */
void
outbox_wake_xact_end(void)
{
	wait_topic_known = false;
	if (outbox_shmem() != NULL)
	{
		call_claims();
		call_workers();
	}
	ntopics = 0;
	all_topics = note_worker = note_database = note_upkeep = false;
	npolicies_of = 0;
	released_in = InvalidOid;
	note_due = note_lease = PG_INT64_MAX;
}

/* ---------------------------------------------------------------------- */
/* Waiting                                                                */
/* ---------------------------------------------------------------------- */

/* Leave the claims that wait, if this session's is one. */
static void
leave(void)
{
	OutboxWaiter *own = outbox_waiter_own();
	OutboxAgenda *agenda;

	if (own == NULL || own->agenda == OUTBOX_NIL)
		return;
	agenda = outbox_agenda_by_number(own->agenda);
	LWLockAcquire(&agenda->lock, LW_EXCLUSIVE);
	outbox_waiter_leave(agenda);
	LWLockRelease(&agenda->lock);
}

/* A session that is terminated while it waits ends without PG_FINALLY. */
static void
leave_at_exit(int code, Datum arg)
{
	leave();
}

/*
 * Register a claim that will wait.  It polls if it cannot be called, as when no
 * filter is given.  False if it cannot be registered: then it polls, too, and is not
 * seen.  Must be undone by outbox_wait_end, also after an error.
 */
bool
outbox_wait_begin(Oid relid, const OutboxLaneFilter *filter, uint64 token,
				  int capacity, const OutboxWaiterNames *wants)
{
	static bool exit_registered = false;
	OutboxAgenda *agenda = outbox_agenda_lock(relid, LW_EXCLUSIVE);
	bool		joined;

	if (agenda == NULL)
		return false;
	joined = (filter != NULL &&
			  outbox_waiter_join(agenda, filter, token, capacity)) ||
		outbox_waiter_join_to_poll(agenda, token);
	if (joined)
		outbox_waiter_describe(agenda, wants);
	LWLockRelease(&agenda->lock);
	if (!exit_registered)
		before_shmem_exit(leave_at_exit, (Datum) 0);
	exit_registered = true;
	return joined;
}

void
outbox_wait_end(bool registered)
{
	if (registered)
		leave();
}

/* Is the claim called when there is something for it? */
static bool
can_be_called(bool registered)
{
	return registered && !outbox_waiter_own()->polls;
}

/* The claim is about to look.  What comes after that calls it. */
void
outbox_wait_look(bool registered, Oid relid)
{
	OutboxAgenda *agenda = can_be_called(registered) ?
	outbox_agenda_lock_to_report(relid) : NULL;

	if (agenda == NULL)
		return;
	outbox_waiter_list(agenda);
	LWLockRelease(&agenda->lock);
}

/* The claim was called and has found nothing; perhaps another one does. */
void
outbox_wait_pass_on(bool registered, Oid relid)
{
	OutboxAgenda *agenda = can_be_called(registered) ?
	outbox_agenda_lock_to_report(relid) : NULL;

	if (agenda == NULL)
		return;
	outbox_waiters_pass_on(agenda, false);
	LWLockRelease(&agenda->lock);
}

static long
remaining_ms(instr_time began, int wait_ms)
{
	instr_time	elapsed;

	INSTR_TIME_SET_CURRENT(elapsed);
	INSTR_TIME_SUBTRACT(elapsed, began);
	return wait_ms - (long) INSTR_TIME_GET_MILLISEC(elapsed);
}

/* Sleep until the latch is set, the client is gone, or the time is over. */
static void
sleep_with_client(long ms)
{
	WaitEvent	event;

	/* as pq_check_connection() does; whoever reads or writes sets it again */
	ModifyWaitEvent(FeBeWaitSet, OUTBOX_CLIENT_SOCKET, WL_SOCKET_CLOSED, NULL);
	if (WaitEventSetWait(FeBeWaitSet, ms, &event, 1, PG_WAIT_EXTENSION) > 0 &&
		event.events == WL_POSTMASTER_DEATH)
		proc_exit(1);
}

/*
 * Sleep until the latch is set or the time is over.  If the client has closed
 * its connection, the session ends.
 */
static void
sleep_on_latch(long ms)
{
	if (FeBeWaitSet != NULL && WaitEventSetCanReportClosed())
		sleep_with_client(ms);
	else
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms,
						 PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (FeBeWaitSet != NULL && !pq_check_connection())
	{
		ClientConnectionLost = true;
		InterruptPending = true;
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Is there a reason to be awake?  If not, see how long to sleep, and, if nobody
 * else does so, keep the time.
 */
static bool
must_wake(OutboxAgenda *agenda, bool first, long *ms, OutboxAwake *why)
{
	OutboxWaiter *own = outbox_waiter_own();
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz next;

	outbox_lanes_look_at_silent(agenda);
	outbox_waiters_call_due(agenda, now);
	*why = own->released ? OUTBOX_AWAKE_RELEASED : OUTBOX_AWAKE_CALLED;
	if (own->released || own->called ||
		agenda->epoch != outbox_epoch(agenda->relid))
		return true;
	next = outbox_agenda_next_time(agenda);
	*ms = Min(*ms, NAP_MS);
	if (!first && agenda->keeper != OUTBOX_NIL &&
		!outbox_waiter_keeps_time(agenda))
		return false;
	if (next != DT_NOEND)
		*ms = Min(*ms, TimestampDifferenceMilliseconds(now, next));
	if (agenda->nsilent > 0)
		*ms = Min(*ms, outbox_poll_interval);
	outbox_waiter_keep_time(agenda, next);
	return false;
}

/* Sleep as a claim that must poll.  A release ends it, if it is registered. */
static OutboxAwake
sleep_and_poll(bool registered, long ms)
{
	if (ms <= 0)
		return OUTBOX_AWAKE_OVER;
	sleep_on_latch(Min(ms, outbox_poll_interval));
	return registered && outbox_waiter_own()->released ? OUTBOX_AWAKE_RELEASED :
		OUTBOX_AWAKE_CALLED;
}

/*
 * Sleep until the claim is called, or has waited for wait_ms since it began.
 */
OutboxAwake
outbox_wait_sleep(bool registered, Oid relid, instr_time began, int wait_ms)
{
	bool		first = true;

	if (!can_be_called(registered))
		return sleep_and_poll(registered, remaining_ms(began, wait_ms));
	for (;;)
	{
		OutboxAgenda *agenda;
		OutboxAwake why;
		long		ms = remaining_ms(began, wait_ms);
		bool		awake;
		bool		unsure;
		bool		uncalled;

		if (ms <= 0)
			return OUTBOX_AWAKE_OVER;
		agenda = outbox_agenda_lock_to_report(relid);
		if (agenda == NULL)
			return sleep_and_poll(registered, ms);
		/* there are messages of which nobody tells */
		uncalled = outbox_epoch_strangers() || !outbox_agenda_is_complete(agenda);
		unsure = outbox_waiter_own()->unsure;
		awake = must_wake(agenda, first, &ms, &why);
		if (!awake)
			outbox_waiter_own()->unsure = false;
		LWLockRelease(&agenda->lock);
		if (awake)
			return why;
		if (unsure)
			ms = Min(ms, UNSURE_MS);
		if (uncalled)
			ms = Min(ms, outbox_poll_interval);
		/* nothing is so close that it is not worth to sleep */
		sleep_on_latch(Max(ms, 0));
		if (unsure || uncalled)
			return OUTBOX_AWAKE_CALLED;
		first = false;
	}
}
