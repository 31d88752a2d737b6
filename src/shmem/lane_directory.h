/*
 * lane_directory.h
 *	  Which lanes are followed in shared memory, and where.
 */
#ifndef OUTBOX_LANE_DIRECTORY_H
#define OUTBOX_LANE_DIRECTORY_H

#include "postgres.h"

#include "port/atomics.h"
#include "storage/lwlock.h"

#include "shmem/lane.h"
#include "shmem/lane_state.h"
#include "util/hash.h"

#define OUTBOX_MAX_STORES 64
#define OUTBOX_OWNER_BITS 4096

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

/* The directory; the slots lie behind it. */
typedef struct OutboxLaneDirectory
{
	LWLock		lock;			/* the directory lock */
	int			nlanes;
	int			nheads;
	OutboxStoreState stores[OUTBOX_MAX_STORES];
	/* then int heads[nheads], OutboxLaneEntry[nlanes], OutboxLane[nlanes] */
} OutboxLaneDirectory;

extern Size outbox_directory_size(int nlanes);
extern void outbox_directory_init(OutboxLaneDirectory *directory, int nlanes,
								  int tranche);

extern OutboxLane *outbox_directory_lock_lane(Oid relid, int64 lane,
											  bool make);
extern OutboxLaneEntry *outbox_directory_entry(const OutboxLane *slot);
extern void outbox_lane_set_wake_at(OutboxLane *slot);
extern bool outbox_directory_is_lane(const OutboxLane *slot, Oid relid,
									 int64 lane);
extern void outbox_directory_note_owner_lane(Oid relid, int64 lane);

extern void outbox_lanes_count(int *lanes, int *in_use);
extern bool outbox_lanes_list(Oid relid, const OutboxLaneFilter *filter,
							  TimestampTz now, OutboxScanKind kind,
							  int64 **lanes, int *nlanes);
extern bool outbox_lanes_next_due(Oid relid, const OutboxLaneFilter *filter,
								  TimestampTz now, TimestampTz *due);
extern TimestampTz outbox_lanes_next_lease(Oid dbid);
extern bool outbox_lanes_need_listing(Oid relid);
extern uint32 outbox_lanes_listing_begin(Oid relid);
extern void outbox_lanes_listing_add(Oid relid, int64 lane);
extern void outbox_lanes_listing_end(Oid relid, uint32 ticket);
extern bool outbox_owner_lane_may_exist(Oid relid, int64 lane);

extern bool outbox_doubts_may_exist(Oid relid, uint32 *seen);
extern void outbox_doubts_report(Oid relid);
extern void outbox_doubts_none(Oid relid, uint32 seen);

#endif							/* OUTBOX_LANE_DIRECTORY_H */
