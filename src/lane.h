/*
 * lane.h
 *	  What the server remembers of each lane, so that no claim walks what is
 *	  gone.  The rules are at the top of lane.c.
 */
#ifndef OUTBOX_LANE_H
#define OUTBOX_LANE_H

#include "postgres.h"

#include "port/atomics.h"
#include "storage/lwlock.h"

#include "outbox.h"

#define OUTBOX_DEFAULT_LANES 256
#define OUTBOX_LIMIT_LANES 16384

/* What a lane can hold; beyond it we look at more than we need, never less. */
#define OUTBOX_MAX_HOLES 256
#define OUTBOX_MAX_BUCKETS 128
#define OUTBOX_MAX_WATCHES 16
#define OUTBOX_MAX_STORES 64
#define OUTBOX_OWNER_BITS 4096

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

/*
 * Whose slot this is.  Kept apart from the slots, so that a look over all
 * lanes reads a few cache lines.
 */
typedef struct OutboxLaneEntry
{
	/* to change these takes both the directory lock and the lane's */
	Oid			dbid;
	Oid			relid;			/* invalid: a free slot */
	int64		lane;
	/* the directory lock */
	int			next;			/* hash chain */
	/* written under the lane's lock */
	pg_atomic_uint64 wake_at;	/* nothing to do before */
	pg_atomic_uint64 last_used;
} OutboxLaneEntry;

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

/* What is known of a live table as a whole; under the directory lock. */
typedef struct OutboxStoreState
{
	Oid			dbid;
	Oid			relid;
	bool		complete;		/* every lane with messages has a slot */
	bool		owners_known;	/* owner_bits covers every owner lane */
	uint32		misses;			/* times a lane found no slot */
	TimestampTz listed_at;		/* when the lanes were last listed */
	uint32		doubts;			/* moves with each row in stream_doubts */
	uint32		doubts_none;	/* its value when there was no row */
	uint64		owner_bits[OUTBOX_OWNER_BITS / 64];
} OutboxStoreState;

typedef struct OutboxShared
{
	LWLock		lock;			/* the directory lock */
	int			tranche;
	int			nlanes;
	int			nheads;
	OutboxStoreState stores[OUTBOX_MAX_STORES];
	/* then int heads[nheads], OutboxLaneEntry[nlanes], OutboxLane[nlanes] */
} OutboxShared;

/* What a scan is for. */
typedef enum OutboxScanKind
{
	OUTBOX_SCAN_CLAIM,			/* all that may be deliverable */
	OUTBOX_SCAN_REAP,			/* leases that have ended */
	OUTBOX_SCAN_LEASES			/* every lease */
} OutboxScanKind;

/*
 * One scan's dealings with one lane: what it was told to look at, and, filled
 * in on the way, what it found.
 */
typedef struct OutboxLaneScan
{
	OutboxScanKind kind;
	Oid			relid;
	int64		lane;
	OutboxLane *slot;			/* NULL: not tracked, look at everything */
	int			watch;			/* -1: cannot move the cursor */

	/* told */
	OutboxKey	cursor;
	bool		scan_main;		/* look from the cursor on */
	int			nholes;
	OutboxHole *holes;
	int			nbuckets;
	OutboxBucket *buckets;

	/* found */
	OutboxKey	passed;			/* everything told below this was looked at */
	OutboxKey	limit;			/* smallest key that was left as it was */
	bool		exhausted;		/* the main part was looked at to its end */
	TimestampTz next_due;		/* if exhausted: next key in the lane */
	int			nfound_holes;
	int			max_found_holes;
	OutboxHole *found_holes;
	int			nfound_leases;
	int			max_found_leases;
	OutboxBucket *found_leases;
} OutboxLaneScan;

/* Which lanes a caller wants; NULL or 0 means any. */
typedef struct OutboxLaneFilter
{
	const uint32 *namespace_hash;
	const uint32 *topic_hashes;
	int			ntopics;
} OutboxLaneFilter;

extern Size outbox_lane_shmem_size(int nlanes);
extern void outbox_lane_shmem_init(OutboxShared *shared, int nlanes);

extern bool outbox_lane_begin(Oid relid, int64 lane, TimestampTz now,
							  OutboxScanKind kind, OutboxLaneScan *scan);
extern void outbox_lane_found_hole(OutboxLaneScan *scan, OutboxKey key,
								   TransactionId xid, bool claimed);
extern void outbox_lane_found_lease(OutboxLaneScan *scan, OutboxKey key,
									TimestampTz locked_until);
extern void outbox_lane_finish(OutboxLaneScan *scan, TimestampTz now);

extern void outbox_lane_report(Oid relid, int64 lane, OutboxKey lo,
							   OutboxKey hi, TransactionId xid);
extern void outbox_lane_report_lease(Oid relid, int64 lane, OutboxKey lo,
									 OutboxKey hi, TimestampTz locked_until);

extern bool outbox_lane_wanted(const OutboxLaneFilter *filter, int64 lane);
extern bool outbox_lanes_list(Oid relid, const OutboxLaneFilter *filter,
							  TimestampTz now, OutboxScanKind kind,
							  int64 **lanes, int *nlanes);
extern bool outbox_lanes_need_listing(Oid relid);
extern uint32 outbox_lanes_listing_begin(Oid relid);
extern void outbox_lanes_listing_add(Oid relid, int64 lane);
extern void outbox_lanes_listing_end(Oid relid, uint32 ticket);
extern bool outbox_owner_lane_may_exist(Oid relid, int64 lane);

extern bool outbox_doubts_may_exist(Oid relid, uint32 *seen);
extern void outbox_doubts_report(Oid relid);
extern void outbox_doubts_none(Oid relid, uint32 seen);

extern void outbox_lane_xact_end(bool committed);
extern void outbox_lane_subxact_abort(void);

#endif							/* OUTBOX_LANE_H */
