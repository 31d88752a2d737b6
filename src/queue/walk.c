/*
 * walk.c
 *	  Walking the lanes of the ready index.
 *
 * A walk goes through what lane.c says has to be looked at, in the order of
 * the keys, with a dirty snapshot: only so can it tell what is gone from what
 * is being decided.  It passes by itself what is of no interest - leased,
 * uncommitted - and remembers what the lane has to know about it; at the rest
 * it stops, and its user says what became of the message:
 *
 *	outbox_walk_changed	it was claimed, moved or removed by us
 *	outbox_walk_blocked	somebody else has his hand on it
 *	outbox_walk_left	it stays as it is; the cursor must not pass it
 *
 * outbox_walk_end publishes what was found.
 */
#include "postgres.h"

#include "access/relscan.h"
#include "access/subtrans.h"
#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "outbox.h"
#include "queue/queue.h"
#include "queue/walk.h"
#include "shmem/lane.h"
#include "shmem/lane_directory.h"
#include "table/columns.h"
#include "table/probe.h"
#include "table/table.h"
#include "util/grow.h"
#include "util/hash.h"

/* ---------------------------------------------------------------------- */
/* Ranges                                                                 */
/* ---------------------------------------------------------------------- */

static int
cmp_range(const void *a, const void *b)
{
	return outbox_key_cmp(((const OutboxRange *) a)->lo,
						  ((const OutboxRange *) b)->lo);
}

/* What has to be looked at, in order and without overlaps. */
static void
make_ranges(OutboxWalk *walk)
{
	OutboxLaneScan *work = &walk->work;
	OutboxKey	end = {walk->now, PG_INT64_MAX};
	int			n = 0;
	int			kept = 0;
	OutboxRange *ranges;

	ranges = palloc_array(OutboxRange, work->nholes + work->nbuckets + 1);
	for (int i = 0; i < work->nholes; i++)
		ranges[n++] = OUTBOX_MAKE(OutboxRange, work->holes[i].lo, work->holes[i].hi, false);
	for (int i = 0; i < work->nbuckets; i++)
		ranges[n++] = OUTBOX_MAKE(OutboxRange, work->buckets[i].lo, work->buckets[i].hi, false);
	if (work->scan_main)
		ranges[n++] = OUTBOX_MAKE(OutboxRange, work->cursor, end, true);

	if (n > 1)
		qsort(ranges, n, sizeof(OutboxRange), cmp_range);
	for (int i = 0; i < n; i++)
	{
		OutboxRange *last = kept > 0 ? &ranges[kept - 1] : NULL;

		if (last != NULL && !outbox_key_lt(last->hi, ranges[i].lo))
		{
			last->hi = outbox_key_max(last->hi, ranges[i].hi);
			last->main |= ranges[i].main;
		}
		else
			ranges[kept++] = ranges[i];
	}
	walk->ranges = ranges;
	walk->nranges = kept;
	walk->range = 0;
}

/* ---------------------------------------------------------------------- */
/* The index scan                                                         */
/* ---------------------------------------------------------------------- */

/* Position the scan at the first entry of the lane that is >= (> ) lo. */
static void
position(OutboxWalk *walk, StrategyNumber strategy, OutboxKey lo,
		 TimestampTz until)
{
	ScanKey		row = walk->row_keys;

	ScanKeyInit(&walk->keys[0], 1, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(walk->work.lane));

	/* (ready_at, id) >= (lo.at, lo.id) */
	ScanKeyEntryInitialize(&row[0], SK_ROW_MEMBER, 2, strategy, InvalidOid,
						   InvalidOid, F_TIMESTAMPTZ_CMP,
						   TimestampTzGetDatum(lo.at));
	ScanKeyEntryInitialize(&row[1], SK_ROW_MEMBER | SK_ROW_END, 3, strategy,
						   InvalidOid, InvalidOid, F_BTINT8CMP,
						   Int64GetDatum(lo.id));
	MemSet(&walk->keys[1], 0, sizeof(ScanKeyData));
	walk->keys[1].sk_flags = SK_ROW_HEADER;
	walk->keys[1].sk_attno = 2;
	walk->keys[1].sk_strategy = strategy;
	walk->keys[1].sk_argument = PointerGetDatum(row);

	ScanKeyInit(&walk->keys[2], 2, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE,
				TimestampTzGetDatum(until));
	index_rescan(walk->scan, walk->keys, 3, NULL, 0);
	walk->positioned = true;
}

/* When does the next entry of the lane come, dead or alive? */
static TimestampTz
peek_next_due(OutboxWalk *walk)
{
	bool		isnull;

	/* the index alone tells: there may be many dead rows ahead */
	walk->scan->xs_want_itup = true;
	position(walk, BTGreaterStrategyNumber,
			 OUTBOX_MAKE(OutboxKey, walk->now, PG_INT64_MAX), DT_NOEND);
	if (index_getnext_tid(walk->scan, ForwardScanDirection) == NULL)
		return DT_NOEND;
	return DatumGetTimestampTz(index_getattr(walk->scan->xs_itup, 2,
											 RelationGetDescr(walk->index),
											 &isnull));
}

static void
open_scan(OutboxWalk *walk)
{
	if (walk->scan != NULL)
		return;
	if (walk->slot == NULL)
		walk->slot = outbox_table_slot(walk->queue);
	InitDirtySnapshot(walk->snapshot);
	walk->scan = outbox_index_beginscan(walk->queue->rel, walk->index,
										&walk->snapshot, 3);
	walk->positioned = false;
}

static void
close_scan(OutboxWalk *walk)
{
	if (walk->scan == NULL)
		return;
	ExecClearTuple(walk->slot);
	index_endscan(walk->scan);
	walk->scan = NULL;
}

/* ---------------------------------------------------------------------- */
/* Walking                                                                */
/* ---------------------------------------------------------------------- */

/*
 * Begin to walk along a lane.  False if there is nothing to look at; else the
 * walk must be ended.
 */
bool
outbox_walk_begin(OutboxWalk *walk, Oid relid, int64 lane, TimestampTz now,
				  OutboxScanKind kind)
{
	memset(walk, 0, sizeof(OutboxWalk));
	if (!outbox_lane_begin(relid, lane, now, kind, &walk->work))
		return false;
	walk->now = now;
	make_ranges(walk);
	return true;
}

/* Give it the table and its ready index, before the first step. */
void
outbox_walk_open(OutboxWalk *walk, OutboxTable *queue, Relation index)
{
	walk->queue = queue;
	walk->index = index;
}

/* Whose end decides what becomes of the row just read? */
static TransactionId
deciding_xid(OutboxWalk *walk)
{
	TransactionId inserter = walk->snapshot.xmin;

	if (!TransactionIdIsValid(inserter))
		return walk->snapshot.xmax;

	/*
	 * What was inserted after a savepoint is there when the whole transaction
	 * commits, and not before; taken together such rows make one hole.  An
	 * update may be undone before that.
	 */
	if (!outbox_row_is_update(walk->slot))
		return SubTransGetTopmostTransaction(inserter);
	return inserter;
}

/*
 * Look at the row just read: is it of interest?  If not, remember what the
 * lane has to know about it.
 */
static bool
of_interest(OutboxWalk *walk)
{
	OutboxLaneScan *work = &walk->work;
	TransactionId own;
	TimestampTz locked_until;

	/* a lease that somebody is changing is still there */
	if (TransactionIdIsValid(walk->snapshot.xmin) ||
		(TransactionIdIsValid(walk->snapshot.xmax) &&
		 work->kind != OUTBOX_SCAN_LEASES))
	{
		outbox_lane_found_hole(work, walk->key, deciding_xid(walk), false);
		return false;
	}
	if (DatumGetInt16(outbox_row_get(walk->slot, Q_STATUS)) != OUTBOX_IN_PROGRESS)
		return work->kind == OUTBOX_SCAN_CLAIM;

	locked_until = DatumGetTimestampTz(outbox_row_get(walk->slot,
													  Q_LOCKED_UNTIL));
	if (locked_until <= walk->now || work->kind == OUTBOX_SCAN_LEASES)
		return true;
	if (outbox_row_is_own(walk->slot, &own))
		outbox_lane_found_hole(work, walk->key, own, true);
	outbox_lane_found_lease(work, walk->key, locked_until);
	return false;
}

/* The next row of the range we are in; false at its end. */
static bool
next_row(OutboxWalk *walk)
{
	OutboxRange *range = &walk->ranges[walk->range];
	OutboxLaneScan *work = &walk->work;

	if (!walk->positioned)
		position(walk, BTGreaterEqualStrategyNumber,
				 outbox_key_max(range->lo, work->passed),
				 Min(range->hi.at, walk->now));
	while (index_getnext_slot(walk->scan, ForwardScanDirection, walk->slot))
	{
		walk->key = outbox_queue_key(walk->slot);
		if (outbox_key_lt(range->hi, walk->key))
			break;
		Assert(!outbox_key_lt(walk->key, range->lo));
		/* an update that is not HOT leaves a second entry with the same key */
		Assert(!outbox_key_lt(outbox_key_next(walk->key), work->passed));
		work->passed = walk->key;
		/* of the versions of a row the first one tells all */
		walk->scan->xs_heap_continue = false;
		if (of_interest(walk))
			return true;
		work->passed = outbox_key_next(walk->key);
		CHECK_FOR_INTERRUPTS();
	}
	return false;
}

/* Go on to the next message of interest; false when there is none left. */
bool
outbox_walk_next(OutboxWalk *walk)
{
	OutboxLaneScan *work = &walk->work;

	open_scan(walk);
	for (; walk->range < walk->nranges; walk->range++)
	{
		OutboxRange *range = &walk->ranges[walk->range];
		OutboxKey	end;

		if (next_row(walk))
			return true;
		walk->positioned = false;
		end = outbox_key_min(range->hi, OUTBOX_MAKE(OutboxKey, walk->now, PG_INT64_MIN));
		work->passed = outbox_key_max(work->passed, outbox_key_next(end));
		if (range->main)
		{
			work->exhausted = true;
			if (work->slot != NULL)
				work->next_due = peek_next_due(walk);
			walk->positioned = false;
		}
	}
	close_scan(walk);
	return false;
}

/*
 * Let go of the scan, but not of the place: there are limits to how many
 * pages one backend should have a hand on.  The next step leads to the same
 * message again, unless it is gone.
 */
void
outbox_walk_put_aside(OutboxWalk *walk)
{
	close_scan(walk);
	walk->positioned = false;
}

void
outbox_walk_end(OutboxWalk *walk)
{
	close_scan(walk);
	if (walk->slot != NULL)
		ExecDropSingleTupleTableSlot(walk->slot);
	outbox_lane_finish(&walk->work, walk->now);
}

/*
 * We have changed or removed the message we stand on.  locked_until: until
 * when it is leased now; 0 if it is not.
 */
void
outbox_walk_changed(OutboxWalk *walk, TimestampTz locked_until)
{
	Assert(outbox_key_cmp(walk->work.passed, walk->key) == 0);
	outbox_lane_found_hole(&walk->work, walk->key, GetCurrentTransactionId(),
						   true);
	if (locked_until != 0)
		outbox_lane_found_lease(&walk->work, walk->key, locked_until);
	walk->work.passed = outbox_key_next(walk->key);
}

/*
 * We could not change it.  It has to be looked at again when "blocker" has
 * ended; if that is not known, next time.
 */
void
outbox_walk_blocked(OutboxWalk *walk, TransactionId blocker)
{
	outbox_lane_found_hole(&walk->work, walk->key, blocker, false);
	walk->work.passed = outbox_key_next(walk->key);
}

/* We have left it for others. */
void
outbox_walk_left(OutboxWalk *walk)
{
	walk->work.limit = outbox_key_min(walk->work.limit, walk->key);
	walk->work.passed = outbox_key_next(walk->key);
}

/* ---------------------------------------------------------------------- */
/* Listing lanes                                                          */
/* ---------------------------------------------------------------------- */

/*
 * List the topic lanes of the index that pass the filter, hopping from each
 * to the next, and let everybody know them.
 */
void
outbox_walk_lanes(OutboxTable *queue, const OutboxLaneFilter *filter,
				  int64 **lanes, int *nlanes)
{
	Oid			relid = RelationGetRelid(queue->rel);
	Relation	index = index_open(queue->store->ready,
								   AccessShareLock);
	uint32		ticket = outbox_lanes_listing_begin(relid);
	StrategyNumber strategy = BTGreaterEqualStrategyNumber;
	RegProcedure compare = F_INT8GE;
	int64		lane = PG_INT64_MIN;
	int			max = 0;
	SnapshotData dirty;
	IndexScanDesc scan;

	*nlanes = 0;
	*lanes = NULL;
	InitDirtySnapshot(dirty);
	scan = outbox_index_beginscan(queue->rel, index, &dirty, 1);
	scan->xs_want_itup = true;
	for (;;)
	{
		ScanKeyData key;
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		ScanKeyInit(&key, 1, strategy, compare, Int64GetDatum(lane));
		index_rescan(scan, &key, 1, NULL, 0);
		if (index_getnext_tid(scan, ForwardScanDirection) == NULL)
			break;
		lane = DatumGetInt64(index_getattr(scan->xs_itup, 1,
										   RelationGetDescr(index), &isnull));
		strategy = BTGreaterStrategyNumber;
		compare = F_INT8GT;
		outbox_lanes_listing_add(relid, lane);
		if (!outbox_lane_is_topic(lane) || !outbox_lane_wanted(filter, lane))
			continue;
		outbox_grow(*lanes, *nlanes, max);
		(*lanes)[(*nlanes)++] = lane;
	}
	index_endscan(scan);
	index_close(index, NoLock);
	outbox_lanes_listing_end(relid, ticket);
}

/*
 * Visit the leases of all lanes: those that have ended, or every one.
 */
void
outbox_walk_leases(OutboxTable *queue, TimestampTz now, OutboxScanKind kind,
				   OutboxWalkVisit visit, void *arg)
{
	Oid			relid = RelationGetRelid(queue->rel);
	OutboxLaneFilter all = {NULL};
	Relation	index;
	int64	   *lanes;
	int			nlanes;
	bool		go_on = true;

	if (!outbox_lanes_list(relid, &all, now, kind, &lanes, &nlanes))
		outbox_walk_lanes(queue, &all, &lanes, &nlanes);
	index = index_open(queue->store->ready, AccessShareLock);
	for (int i = 0; go_on && i < nlanes; i++)
	{
		OutboxWalk	walk;

		if (!outbox_walk_begin(&walk, relid, lanes[i], now, kind))
			continue;
		outbox_walk_open(&walk, queue, index);
		while (go_on && outbox_walk_next(&walk))
			go_on = visit(&walk, arg);
		outbox_walk_end(&walk);
	}
	index_close(index, NoLock);
}
