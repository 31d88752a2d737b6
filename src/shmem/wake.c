/*
 * wake.c
 *	  Waking those who wait for messages.
 *
 * A claim that finds nothing and may wait registers in shared memory what it
 * waits for, arms itself, looks once more, and sleeps on its latch.  A
 * transaction notes the lanes in which it makes something claimable, or holds
 * something that its end sets free; after its end, whichever way, it sets the
 * latches of those who wait for these lanes.  Who has been woken and has not
 * looked yet is not woken again.  So nobody polls, nothing is written, and
 * none of it passes through a connection pooler.
 *
 * Because of arming before looking, and noting before the end, one who waits
 * is woken whenever something became claimable after he looked.  Four things
 * do not wake by themselves, and limit the sleep:
 *
 *	- what becomes due, and leases that end: the lanes know when;
 *	- lanes in which something is due that this claim may not take: then the
 *	  lanes do not know when the next one is, and the claim polls;
 *	- COMMIT PREPARED, which no extension is told of: once a transaction with
 *	  messages was prepared, claims poll;
 *	- changes of policies, which other sessions learn of a moment after the
 *	  commit: who was woken by one looks again a little later.
 *
 * Locking: the state's own lock, below all others.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "outbox.h"
#include "shmem/lane_directory.h"
#include "shmem/posts.h"
#include "shmem/shmem.h"
#include "shmem/wake.h"
#include "util/guc.h"
#include "util/hash.h"

/* More lanes than this are as good as all. */
#define MAX_NOTES 32

/* How soon to look again after a change of policies. */
#define UNSURE_MS 50

typedef struct Note
{
	Oid			relid;
	int64		lane;
} Note;

/* What the end of this transaction may be of interest for. */
static Note notes[MAX_NOTES];
static int	nnotes = 0;
static uint32 wait_topic;		/* hash of the topic that is the worker's */
static bool wait_topic_known = false;	/* in this transaction */
static bool note_all = false;
static bool policies_changed = false;
static bool note_worker = false;
static TimestampTz note_due = PG_INT64_MAX;
static TimestampTz note_lease = PG_INT64_MAX;

/* Our place among those who wait. */
static OutboxWaiter *own = NULL;

/* While the block of shared memory is made. */
void
outbox_wake_init(OutboxWakeState *state, int tranche)
{
	LWLockInitialize(&state->lock, tranche);
	pg_atomic_init_u32(&state->nwaiters, 0);
	pg_atomic_init_u32(&state->prepared, 0);
	for (int i = 0; i < OUTBOX_MAX_WAITERS; i++)
		state->waiters[i].latch = NULL;
}

/* ---------------------------------------------------------------------- */
/* Those who wake                                                         */
/* ---------------------------------------------------------------------- */

/*
 * At the end of a transaction nothing may be allocated or converted, so what
 * is needed then is made before.  To be called while the transaction runs, by
 * whoever may note something at its end.
 */
void
outbox_wake_prepare(void)
{
	if (wait_topic_known)
		return;
	wait_topic = outbox_topic_hash(cstring_to_text(outbox_join_wait_topic));
	wait_topic_known = true;
}

/* Who waits for this lane is to look when this transaction has ended. */
void
outbox_wake_note(Oid relid, int64 lane)
{
	for (int i = nnotes - 1; i >= 0; i--)
	{
		if (notes[i].lane == lane && notes[i].relid == relid)
			return;
	}
	outbox_wake_prepare();
	if (nnotes < MAX_NOTES)
		notes[nnotes++] = OUTBOX_MAKE(Note, relid, lane);
	else
		note_all = true;
}

/* Everybody in this database is to look: policies have changed. */
void
outbox_wake_note_all(void)
{
	note_all = true;
	policies_changed = true;
}

/* There is something for the worker of this database. */
void
outbox_wake_note_worker(void)
{
	note_worker = true;
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

/* Does he wait for what this transaction has noted? */
static bool
is_concerned(const OutboxWaiter *waiter)
{
	OutboxLaneFilter filter = {
		.namespace_hash = waiter->any_namespace ? NULL : &waiter->namespace_hash,
		.topic_hashes = waiter->ntopics < 0 ? NULL : waiter->topic_hashes,
		.ntopics = waiter->ntopics
	};

	if (note_all)
		return true;
	for (int i = 0; i < nnotes; i++)
	{
		if (notes[i].relid != waiter->relid)
			continue;
		if (outbox_lane_is_topic(notes[i].lane) ?
			outbox_lane_wanted(&filter, notes[i].lane) :
			notes[i].lane == waiter->owner_lane)
			return true;
	}
	return false;
}

static void
wake_waiters(OutboxWakeState *state)
{
	/* pairs with the barrier in arming: one of us sees the other */
	pg_memory_barrier();
	if (pg_atomic_read_u32(&state->nwaiters) == 0)
		return;
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	for (int i = 0; i < OUTBOX_MAX_WAITERS; i++)
	{
		OutboxWaiter *waiter = &state->waiters[i];

		if (waiter->latch == NULL || waiter->dbid != MyDatabaseId ||
			!is_concerned(waiter))
			continue;
		waiter->unsure |= policies_changed;
		if (waiter->armed)
		{
			waiter->armed = false;
			SetLatch(waiter->latch);
		}
	}
	LWLockRelease(&state->lock);
}

/* What was noted is so by now. */
void
outbox_wake_now(void)
{
	OutboxShared *shared = outbox_shmem();
	bool		concerns_worker = note_worker || note_all;

	if (shared == NULL)
		return;
	if (nnotes > 0 || note_all)
		wake_waiters(&shared->wake);
	for (int i = 0; i < nnotes && !concerns_worker; i++)
		concerns_worker = outbox_lane_topic(notes[i].lane) == wait_topic ||
			outbox_workers_want(notes[i].lane);
	if (concerns_worker)
		outbox_workers_call(MyDatabaseId, note_worker);
	if (note_due != PG_INT64_MAX)
		outbox_workers_due(note_due);
	if (note_lease != PG_INT64_MAX)
		outbox_workers_lease(note_lease);
}

/* The transaction has ended, one way or the other, or was prepared. */
void
outbox_wake_xact_end(bool prepared)
{
	OutboxShared *shared;

	wait_topic_known = false;
	if (nnotes == 0 && !note_all && !note_worker &&
		note_due == PG_INT64_MAX && note_lease == PG_INT64_MAX)
		return;
	shared = outbox_shmem();
	if (prepared && shared != NULL)
		pg_atomic_write_u32(&shared->wake.prepared, 1);
	/* who looks now finds what was prepared undecided, and looks again */
	outbox_wake_now();
	nnotes = 0;
	note_all = policies_changed = note_worker = false;
	note_due = note_lease = PG_INT64_MAX;
}

/* ---------------------------------------------------------------------- */
/* Those who wait                                                         */
/* ---------------------------------------------------------------------- */

static void
describe(OutboxWaiter *waiter, Oid relid, const OutboxLaneFilter *filter,
		 int64 owner_lane)
{
	Assert(waiter->latch == NULL);
	waiter->armed = false;
	waiter->unsure = false;
	waiter->dbid = MyDatabaseId;
	waiter->relid = relid;
	waiter->owner_lane = owner_lane;
	waiter->any_namespace = filter->namespace_hash == NULL;
	waiter->namespace_hash = waiter->any_namespace ? 0 : *filter->namespace_hash;
	waiter->ntopics = -1;
	if (filter->topic_hashes != NULL && filter->ntopics <= OUTBOX_WAITER_TOPICS)
	{
		waiter->ntopics = filter->ntopics;
		memcpy(waiter->topic_hashes, filter->topic_hashes,
			   filter->ntopics * sizeof(uint32));
	}
	waiter->latch = MyLatch;
}

/* A session that is terminated while it waits ends without PG_FINALLY. */
static void
leave_at_exit(int code, Datum arg)
{
	outbox_wait_end();
}

/*
 * Register as one who waits.  False if that is not possible: then poll.  Must
 * be undone by outbox_wait_end, also after an error.
 */
bool
outbox_wait_begin(Oid relid, const OutboxLaneFilter *filter, int64 owner_lane)
{
	static bool exit_registered = false;
	OutboxShared *shared = outbox_use_cursor ? outbox_shmem() : NULL;

	Assert(own == NULL);
	if (shared == NULL)
		return false;
	if (!exit_registered)
		before_shmem_exit(leave_at_exit, (Datum) 0);
	exit_registered = true;
	LWLockAcquire(&shared->wake.lock, LW_EXCLUSIVE);
	for (int i = 0; i < OUTBOX_MAX_WAITERS && own == NULL; i++)
	{
		if (shared->wake.waiters[i].latch == NULL)
		{
			own = &shared->wake.waiters[i];
			describe(own, relid, filter, owner_lane);
			pg_atomic_fetch_add_u32(&shared->wake.nwaiters, 1);
		}
	}
	LWLockRelease(&shared->wake.lock);
	return own != NULL;
}

void
outbox_wait_end(void)
{
	OutboxShared *shared = outbox_shmem();

	if (own == NULL)
		return;
	LWLockAcquire(&shared->wake.lock, LW_EXCLUSIVE);
	own->latch = NULL;
	pg_atomic_fetch_sub_u32(&shared->wake.nwaiters, 1);
	LWLockRelease(&shared->wake.lock);
	own = NULL;
}

/* From now on we are to be woken; look before you sleep. */
void
outbox_wait_arm(void)
{
	OutboxShared *shared = outbox_shmem();

	if (own == NULL)
		return;
	LWLockAcquire(&shared->wake.lock, LW_EXCLUSIVE);
	own->armed = true;
	LWLockRelease(&shared->wake.lock);
	pg_memory_barrier();
}

/* How long may we sleep, if nobody wakes us? */
static long
sleep_ms(Oid relid, const OutboxLaneFilter *filter, bool registered,
		 TimestampTz deadline)
{
	OutboxShared *shared = outbox_shmem();
	TimestampTz now = GetCurrentTimestamp();
	long		ms = TimestampDifferenceMilliseconds(now, deadline);
	TimestampTz due;

	if (registered && own->unsure)
	{
		own->unsure = false;
		return Min(ms, UNSURE_MS);
	}
	if (!registered || pg_atomic_read_u32(&shared->wake.prepared) != 0 ||
		!outbox_lanes_next_due(relid, filter, now, &due))
		return Min(ms, outbox_poll_interval);
	if (due == DT_NOEND)
		return ms;
	return Min(ms, TimestampDifferenceMilliseconds(now, due));
}

/*
 * Sleep until somebody wakes us, something becomes due, or the time is over.
 */
void
outbox_wait_sleep(Oid relid, const OutboxLaneFilter *filter, bool registered,
				  TimestampTz deadline)
{
	long		ms = sleep_ms(relid, filter, registered, deadline);

	if (ms > 0)
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}
