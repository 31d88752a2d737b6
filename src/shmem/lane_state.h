/*
 * lane_state.h
 *	  What is remembered of one lane: cursor, holes, buckets.
 */
#ifndef OUTBOX_LANE_STATE_H
#define OUTBOX_LANE_STATE_H

#include "postgres.h"

#include "storage/lwlock.h"

#include "outbox.h"

/* What a lane can hold; beyond it we look at more than we need, never less. */
#define OUTBOX_MAX_HOLES 256
#define OUTBOX_MAX_BUCKETS 128
#define OUTBOX_MAX_WATCHES 16

/*
 * Keys below the cursor whose fate was open when a scan passed them.  xid is
 * who decides it; invalid means: look every time.  A hole is "claimed" when
 * xid is a claim that took everything in it, so that its commit closes it.
 */
typedef struct OutboxHole
{
	OutboxKey	lo;
	OutboxKey	hi;
	TransactionId xid;
	bool		claimed;
} OutboxHole;

/* Keys of messages whose leases end from "due" on. */
typedef struct OutboxBucket
{
	TimestampTz due;
	OutboxKey	lo;
	OutboxKey	hi;
} OutboxBucket;

/* A scan under way: the smallest key reported since it began. */
typedef struct OutboxWatch
{
	bool		used;
	OutboxKey	low;
} OutboxWatch;

/* What is remembered of a lane; all under its lock. */
typedef struct OutboxLane
{
	LWLock		lock;
	OutboxKey	cursor;
	TimestampTz next_due;		/* nothing from cursor on is due before */
	bool		leases_known;	/* every live lease is in a bucket */
	int			nholes;
	int			nbuckets;
	OutboxWatch watch[OUTBOX_MAX_WATCHES];
	OutboxHole	holes[OUTBOX_MAX_HOLES];
	OutboxBucket buckets[OUTBOX_MAX_BUCKETS];	/* by lo, nearly */
} OutboxLane;

extern void outbox_lane_reset(OutboxLane *slot);
extern bool outbox_lane_is_quiet(const OutboxLane *slot);
extern bool outbox_lane_is_watched(const OutboxLane *slot);
extern void outbox_lane_lower_cursor(OutboxLane *slot, OutboxKey key);
extern bool outbox_lane_add_hole(OutboxLane *slot, const OutboxHole *hole);
extern void outbox_lane_drop_hole(OutboxLane *slot, const OutboxHole *hole,
								  OutboxKey done);
extern void outbox_lane_add_bucket(OutboxLane *slot,
								   const OutboxBucket *bucket);
extern void outbox_lane_drop_bucket(OutboxLane *slot,
									const OutboxBucket *bucket,
									OutboxKey done);
extern bool outbox_keys_near(OutboxKey a, OutboxKey b);

#endif							/* OUTBOX_LANE_STATE_H */
