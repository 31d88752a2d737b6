/*
 * walk.h
 *	  Walking the lanes of the ready index.
 */
#ifndef OUTBOX_WALK_H
#define OUTBOX_WALK_H

#include "postgres.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "executor/tuptable.h"
#include "utils/snapshot.h"

#include "outbox.h"
#include "shmem/lane.h"
#include "table/table.h"
#include "util/hash.h"

/* A range of keys to visit, both ends included. */
typedef struct OutboxRange
{
	OutboxReadyKey lo;
	OutboxReadyKey hi;
	bool		main;			/* the range that begins at the cursor */
} OutboxRange;

/* An index scan, which walks use one after the other. */
typedef struct OutboxIndexScan
{
	struct OutboxIndexScan *next;	/* free ones */
	IndexScanDesc scan;
	SnapshotData snapshot;
	ScanKeyData keys[3];
	ScanKeyData row_keys[2];
	TupleTableSlot *slot;
} OutboxIndexScan;

/* The index scans of a call. */
typedef struct OutboxWalkPool
{
	OutboxTable *queue;
	Relation	index;
	OutboxIndexScan *free;
} OutboxWalkPool;

/*
 * A walk along one lane.  Its current message is in slot, until the next call
 * of outbox_walk_next.
 */
typedef struct OutboxWalk
{
	OutboxWalkPool *pool;
	TimestampTz now;
	OutboxLaneScan work;
	int			nranges;
	int			range;
	OutboxRange *ranges;
	OutboxIndexScan *scan;		/* NULL when put aside */
	bool		positioned;
	TupleTableSlot *slot;		/* the slot of the scan */
	OutboxReadyKey key;			/* of the current message */
} OutboxWalk;

extern void outbox_walk_pool_begin(OutboxWalkPool *pool, OutboxTable *queue);
extern void outbox_walk_pool_end(OutboxWalkPool *pool);

extern bool outbox_walk_begin(OutboxWalk *walk, Oid relid,
							  const OutboxPlace *place, uint64 token,
							  TimestampTz now, OutboxScanKind kind);
extern void outbox_walk_open(OutboxWalk *walk, OutboxWalkPool *pool);
extern bool outbox_walk_next(OutboxWalk *walk);
extern void outbox_walk_put_aside(OutboxWalk *walk);
extern void outbox_walk_end(OutboxWalk *walk);

extern void outbox_walk_changed(OutboxWalk *walk, TimestampTz locked_until);
extern void outbox_walk_blocked(OutboxWalk *walk, TransactionId blocker);
extern void outbox_walk_undecided(OutboxWalk *walk, TransactionId writer);
extern void outbox_walk_left(OutboxWalk *walk);
extern void outbox_walk_passed(OutboxWalk *walk);
extern void outbox_walk_left_for(OutboxWalk *walk, uint64 token, bool shared);

extern void outbox_walk_list(OutboxTable *queue,
							 const OutboxLaneFilter *filter, bool whole,
							 OutboxPlace **untracked, int *nuntracked);
extern bool outbox_walk_uses_memory(Oid relid);
extern bool outbox_walk_must_list(Oid relid);
extern bool outbox_walk_must_list_all(Oid relid,
									  const OutboxLaneFilter *filter);

#endif							/* OUTBOX_WALK_H */
