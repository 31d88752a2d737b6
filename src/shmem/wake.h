/*
 * wake.h
 *	  Waking those who wait for messages.
 */
#ifndef OUTBOX_WAKE_H
#define OUTBOX_WAKE_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

#include "util/hash.h"

#define OUTBOX_MAX_WAITERS 256
#define OUTBOX_WAITER_TOPICS 16

/*
 * A claim that waits; all under the lock of OutboxWakeState, but that the claim
 * itself reads and clears "unsure" without it.
 */
typedef struct OutboxWaiter
{
	Latch	   *latch;			/* NULL: a free place */
	bool		armed;			/* not woken since it last looked */
	bool		unsure;			/* what woke it may take a moment to be seen */
	Oid			dbid;
	Oid			relid;
	int64		owner_lane;
	bool		any_namespace;
	uint32		namespace_hash;
	int			ntopics;		/* -1: any topic */
	uint32		topic_hashes[OUTBOX_WAITER_TOPICS];
} OutboxWaiter;

typedef struct OutboxWakeState
{
	LWLock		lock;
	pg_atomic_uint32 nwaiters;
	pg_atomic_uint32 prepared;	/* a transaction with messages was prepared */
	OutboxWaiter waiters[OUTBOX_MAX_WAITERS];
} OutboxWakeState;

extern void outbox_wake_init(OutboxWakeState *state, int tranche);

extern void outbox_wake_prepare(void);
extern void outbox_wake_note(Oid relid, int64 lane);
extern void outbox_wake_note_all(void);
extern void outbox_wake_note_worker(void);
extern void outbox_wake_note_due(TimestampTz at);
extern void outbox_wake_note_lease(TimestampTz ends);
extern void outbox_wake_now(void);
extern void outbox_wake_xact_end(bool prepared);

extern bool outbox_wait_begin(Oid relid, const OutboxLaneFilter *filter,
							  int64 owner_lane);
extern void outbox_wait_arm(void);
extern void outbox_wait_sleep(Oid relid, const OutboxLaneFilter *filter,
							  bool registered, TimestampTz deadline);
extern void outbox_wait_end(void);

#endif							/* OUTBOX_WAKE_H */
