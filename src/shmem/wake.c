/*
 * wake.c
 *	  Sleeping until there is something to claim, and calling workers.
 *
 * A claim that finds nothing and may wait registers as a sleeper (sleepers.c).
 * Then, in a loop, it lists itself, tries to claim, and sleeps on its latch.
 * A transaction that has made something claimable calls sleepers after its
 * commit (lane_publish.c).  Since the claim is listed before it tries to
 * claim, and transactions call after their changes have become visible, a
 * claim that finds nothing is called for whatever comes later.  There is no
 * polling, nothing is written, and no message passes through a connection
 * pooler.
 *
 * One of the claims, the time keeper, waits for what becomes due.  Each of the
 * others wakes once in a while to check that the keeper does its work, because
 * a process can be stopped.  While there are sessions that write without
 * reporting it (epoch.c), or lanes without memory, all claims poll every
 * poll_interval.  So does a claim that cannot be called, for lack of memory or
 * because its session does not use shared memory.
 *
 * A claim whose client has disconnected must not take messages, so the socket
 * is watched while it sleeps, and checked before it tries to claim again.
 *
 * The time that a claim sleeps is measured by a monotonic clock.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "shmem/agenda.h"
#include "shmem/directory.h"
#include "shmem/epoch.h"
#include "shmem/lane_memory.h"
#include "shmem/lane_publish.h"
#include "shmem/posts.h"
#include "shmem/shmem.h"
#include "shmem/sleepers.h"
#include "shmem/wake.h"
#include "trace.h"
#include "util/guc.h"
#include "util/hash.h"
#include "util/wait_event.h"

/* More topics than this count as all topics. */
#define MAX_TOPICS 32

/* Maximum number of tables whose policies change in one transaction. */
#define MAX_POLICIES 8

/* How soon to try again after a change of policies. */
#define UNSURE_MS 50

/* The longest sleep of a claim that is not the time keeper. */
#define NAP_MS 5000

/* Delay of requested upkeep, and its smallest interval. */
#define UPKEEP_DELAY_MS 2000

/* The smallest interval for deleting keys whose time is over. */
#define KEYS_DELAY_MS 30000

/* What the end of this transaction must be reported to. */
static int64 topics[MAX_TOPICS];
static int	ntopics = 0;
static bool all_topics = false;
static uint32 wait_topic;		/* hash of the topic of waits, for the worker */
static bool wait_topic_known = false;	/* in this transaction */
static Oid	policies_of[MAX_POLICIES];	/* tables whose policies have changed */
static int	npolicies_of = 0;
static Oid	released_in = InvalidOid;	/* table in which an owner has
										 * released */
static uint64 released_token;
static bool note_worker = false;
static bool note_database = false;
static bool note_upkeep = false;
static TimestampTz note_key = PG_INT64_MAX;
static TimestampTz note_due = PG_INT64_MAX;
static TimestampTz note_lease = PG_INT64_MAX;

/* ---------------------------------------------------------------------- */
/* What a transaction reports                                         */
/* ---------------------------------------------------------------------- */

/*
 * Prepare what is needed at the end of the transaction, when memory must not
 * be allocated and strings cannot be converted.  Must be called earlier in the
 * transaction, by every function that may note something.
 */
void
outbox_wake_prepare(void)
{
	if (wait_topic_known)
		return;
	wait_topic = outbox_topic_hash(cstring_to_text(outbox_join_wait_topic));
	wait_topic_known = true;
}

/* Note that messages of this topic will be claimable. */
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

/* Note a change of policies: claims on this table must try again. */
void
outbox_wake_note_policies(Oid relid)
{
	for (int i = 0; i < npolicies_of; i++)
	{
		if (policies_of[i] == relid)
			return;
	}
	/* there are more only if the extension was created again */
	if (npolicies_of == MAX_POLICIES)
		memmove(policies_of, policies_of + 1, --npolicies_of * sizeof(Oid));
	policies_of[npolicies_of++] = relid;
}

/*
 * Note that an owner has released all its messages: its claims must stop
 * waiting.
 */
void
outbox_wake_note_release(Oid relid, uint64 token)
{
	released_in = relid;
	released_token = token;
}

/* Note that there is work for the worker of this database. */
void
outbox_wake_note_worker(void)
{
	note_worker = true;
}

/*
 * Note that the extension was created: the launcher may not know this
 * database.
 */
void
outbox_wake_note_database(void)
{
	note_worker = note_database = true;
}

/* Note that a partition of the archive is missing. */
void
outbox_wake_note_upkeep(void)
{
	note_upkeep = true;
}

/* Note that a dedupe key was taken until this time, and must be freed then. */
void
outbox_wake_note_key(TimestampTz until)
{
	note_key = Min(note_key, until);
}

/* Note that there will be work for the worker at this time. */
void
outbox_wake_note_due(TimestampTz at)
{
	note_due = Min(note_due, at);
}

/* Note that a lease was taken which ends at this time. */
void
outbox_wake_note_lease(TimestampTz ends)
{
	note_lease = Min(note_lease, ends);
}

/* Call waiting claims after changes of policies, and after a release. */
static void
call_claims(void)
{
	OutboxAgenda *agenda;

	for (int i = 0; i < npolicies_of; i++)
	{
		agenda = outbox_agenda_lock_to_report(policies_of[i]);
		if (agenda == NULL)
			continue;
		outbox_sleepers_call_all(agenda, true);
		LWLockRelease(&agenda->lock);
	}
	if (OidIsValid(released_in) &&
		(agenda = outbox_agenda_lock_to_report(released_in)) != NULL)
	{
		outbox_sleepers_release(agenda, released_token);
		LWLockRelease(&agenda->lock);
	}
}

/* Call the workers that the transaction concerns. */
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
	if (note_key != PG_INT64_MAX)
		outbox_workers_want_upkeep(Max(note_key,
									   TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
																   KEYS_DELAY_MS)));
}

/*
 * Call claims and workers at the end of the transaction, or when it was
 * prepared.  This happens after an abort as well.
 */
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
	note_key = note_due = note_lease = PG_INT64_MAX;
}

/* ---------------------------------------------------------------------- */
/* Waiting                                                                */
/* ---------------------------------------------------------------------- */

/* Stop waiting, if this session's claim is registered. */
static void
leave(void)
{
	OutboxSleeper *own = outbox_sleeper_own();
	OutboxAgenda *agenda;

	if (own == NULL || own->agenda == OUTBOX_NIL)
		return;
	agenda = outbox_agenda_by_number(own->agenda);
	LWLockAcquire(&agenda->lock, LW_EXCLUSIVE);
	outbox_sleeper_leave(agenda);
	LWLockRelease(&agenda->lock);
}

/*
 * Exit callback: a session that is terminated while it waits skips PG_FINALLY.
 */
static void
leave_at_exit(int code, Datum arg)
{
	leave();
}

/*
 * Register a claim that will wait.  It polls if it cannot be called, for
 * example because no filter is given.  False if it cannot be registered: then
 * it polls, too, and is not shown by views.  outbox_sleep_end must be called,
 * also after an error.
 */
bool
outbox_sleep_begin(Oid relid, const OutboxLaneFilter *filter, uint64 token,
				   int capacity, const OutboxSleeperNames *wants)
{
	static bool exit_registered = false;
	OutboxAgenda *agenda = outbox_agenda_lock(relid, LW_EXCLUSIVE);
	bool		joined;

	if (agenda == NULL)
		return false;
	joined = (filter != NULL &&
			  outbox_sleeper_join(agenda, filter, token, capacity)) ||
		outbox_sleeper_join_to_poll(agenda, token);
	if (joined)
		outbox_sleeper_describe(agenda, wants);
	LWLockRelease(&agenda->lock);
	if (!exit_registered)
		before_shmem_exit(leave_at_exit, (Datum) 0);
	exit_registered = true;
	return joined;
}

/* Undo outbox_sleep_begin, whose result is passed. */
void
outbox_sleep_end(bool registered)
{
	if (registered)
		leave();
}

/* Will the claim be called when there is something for it? */
static bool
can_be_called(bool registered)
{
	return registered && !outbox_sleeper_own()->polls;
}

/*
 * The claim is about to try: list it, so that it is called for what comes
 * later.
 */
void
outbox_sleep_look(bool registered, Oid relid)
{
	OutboxAgenda *agenda = can_be_called(registered) ?
	outbox_agenda_lock_to_report(relid) : NULL;

	if (agenda == NULL)
		return;
	outbox_sleeper_list(agenda);
	LWLockRelease(&agenda->lock);
}

/* The claim has found nothing.  for_others: there is something that others may take. */
void
outbox_sleep_pass_on(bool registered, Oid relid, bool for_others)
{
	OutboxAgenda *agenda = can_be_called(registered) ?
	outbox_agenda_lock_to_report(relid) : NULL;

	if (agenda == NULL)
		return;
	outbox_sleepers_pass_on(agenda, for_others);
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

/*
 * Sleep until the latch is set, the client has disconnected, or the time is
 * over.
 */
static void
sleep_with_client(long ms)
{
	WaitEvent	event;

	/* as pq_check_connection() does; the next read or write sets it again */
	ModifyWaitEvent(FeBeWaitSet, OUTBOX_CLIENT_SOCKET, WL_SOCKET_CLOSED, NULL);
	if (WaitEventSetWait(FeBeWaitSet, ms, &event, 1, outbox_wait_event(OUTBOX_WAIT_CLAIM)) > 0 &&
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
						 outbox_wait_event(OUTBOX_WAIT_CLAIM));
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (FeBeWaitSet != NULL && !pq_check_connection())
	{
		ClientConnectionLost = true;
		InterruptPending = true;
		CHECK_FOR_INTERRUPTS();
	}
}

/* Is the agenda's epoch outdated, so that calls may have been missed? */
static bool
is_outdated(const OutboxAgenda *agenda)
{
	return agenda->epoch != outbox_epoch(agenda->relid);
}

/*
 * Must the claim wake?  If not, determines how long to sleep, and makes the
 * claim the time keeper if there is none.
 */
static bool
must_wake(OutboxAgenda *agenda, bool first, long *ms, OutboxAwake *why)
{
	OutboxSleeper *own = outbox_sleeper_own();
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz next;

	outbox_lanes_look_at_silent(agenda);
	outbox_sleepers_call_due(agenda, now);
	*why = own->released ? OUTBOX_AWAKE_RELEASED : OUTBOX_AWAKE_CALLED;
	if (own->released || own->called || is_outdated(agenda))
		return true;
	next = outbox_agenda_next_time(agenda);
	*ms = Min(*ms, NAP_MS);
	if (!first && agenda->keeper != OUTBOX_NIL &&
		!outbox_sleeper_keeps_time(agenda))
		return false;
	if (next != DT_NOEND)
		*ms = Min(*ms, TimestampDifferenceMilliseconds(now, next));
	if (agenda->nsilent > 0)
		*ms = Min(*ms, outbox_poll_interval);
	outbox_sleeper_keep_time(agenda, next);
	return false;
}

/* Sleep as a claim that must poll.  If it is registered, a release ends it. */
static OutboxAwake
sleep_and_poll(bool registered, long ms)
{
	if (ms <= 0)
		return OUTBOX_AWAKE_OVER;
	sleep_on_latch(Min(ms, outbox_poll_interval));
	return registered && outbox_sleeper_own()->released ? OUTBOX_AWAKE_RELEASED :
		OUTBOX_AWAKE_CALLED;
}

/*
 * Sleep until the claim is called, or has waited for wait_ms since it began.
 */
OutboxAwake
outbox_sleep_until_called(bool registered, Oid relid, instr_time began, int wait_ms)
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
		/* there may be messages that are not reported */
		uncalled = outbox_epoch_strangers() || !outbox_agenda_is_complete(agenda);
		unsure = outbox_sleeper_own()->unsure;
		awake = must_wake(agenda, first, &ms, &why);
		OUTBOX_TRACE_WAIT("sleep", agenda, awake,
						  unsure || uncalled || is_outdated(agenda));
		if (!awake)
			outbox_sleeper_own()->unsure = false;
		LWLockRelease(&agenda->lock);
		if (awake)
			return why;
		if (unsure)
			ms = Min(ms, UNSURE_MS);
		if (uncalled)
			ms = Min(ms, outbox_poll_interval);
		/* sleep even if the next time is close */
		sleep_on_latch(Max(ms, 0));
		if (unsure || uncalled)
			return OUTBOX_AWAKE_CALLED;
		first = false;
	}
}
