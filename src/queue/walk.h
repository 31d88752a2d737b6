/*
 * walk.h
 *	  Walking the lanes of the ready index.
 */
#ifndef OUTBOX_WALK_H
#define OUTBOX_WALK_H

#include "outbox.h"
#include "shmem/lane.h"
#include "table/table.h"
#include "util/hash.h"

/* A range of keys to look at, both ends included. */
typedef struct OutboxRange
{
	OutboxKey	lo;
	OutboxKey	hi;
	bool		main;			/* from the cursor on */
} OutboxRange;

/*
 * A walk along one lane.  It stands on a message that is of interest, in
 * slot, until the next call of outbox_walk_next.
 */
typedef struct OutboxWalk
{
	OutboxTable *queue;
	Relation	index;
	TimestampTz now;
	OutboxLaneScan work;
	int			nranges;
	int			range;
	OutboxRange *ranges;
	IndexScanDesc scan;			/* NULL when put aside */
	bool		positioned;
	SnapshotData snapshot;
	ScanKeyData keys[3];
	ScanKeyData row_keys[2];
	TupleTableSlot *slot;
	OutboxKey	key;			/* of the message it stands on */
} OutboxWalk;

extern bool outbox_walk_begin(OutboxWalk *walk, Oid relid, int64 lane,
							  TimestampTz now, OutboxScanKind kind);
extern void outbox_walk_open(OutboxWalk *walk, OutboxTable *queue,
							 Relation index);
extern bool outbox_walk_next(OutboxWalk *walk);
extern void outbox_walk_put_aside(OutboxWalk *walk);
extern void outbox_walk_end(OutboxWalk *walk);

extern void outbox_walk_changed(OutboxWalk *walk, TimestampTz locked_until);
extern void outbox_walk_blocked(OutboxWalk *walk, TransactionId blocker);
extern void outbox_walk_left(OutboxWalk *walk);

/* Called at each message of interest; false ends it. */
typedef bool (*OutboxWalkVisit) (OutboxWalk *walk, void *arg);

extern void outbox_walk_leases(OutboxTable *queue, TimestampTz now,
							   OutboxScanKind kind, OutboxWalkVisit visit,
							   void *arg);
extern void outbox_walk_lanes(OutboxTable *queue,
							  const OutboxLaneFilter *filter,
							  int64 **lanes, int *nlanes);

#endif							/* OUTBOX_WALK_H */
