/*
 * walk.c
 *	  Walking the lanes of the ready index.
 *
 * A walk visits what lane.c says must be visited, in the order of the keys,
 * with a dirty snapshot: no other can distinguish what is gone from what is
 * undecided.  It skips rows that are of no interest - leased, uncommitted -
 * and records what the lane must know about them; at all others it stops, and
 * the caller says what became of the message:
 *
 *	outbox_walk_changed		it was leased, moved or removed by us
 *	outbox_walk_blocked		another transaction has locked it
 *	outbox_walk_undecided	another transaction decides whether it is claimable
 *	outbox_walk_passed		the change that makes it claimable will be reported
 *	outbox_walk_left_for	it stays as it is, for one owner
 *	outbox_walk_left		it stays as it is, and the cursor must not pass it
 *
 * outbox_walk_end publishes what was found.
 */
#include "postgres.h"

#include "access/relscan.h"
#include "access/subtrans.h"
#include "access/tableam.h"
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
#include "shmem/directory.h"
#include "shmem/epoch.h"
#include "shmem/lane.h"
#include "shmem/lane_xact.h"
#include "table/columns.h"
#include "table/probe.h"
#include "table/table.h"
#include "util/grow.h"
#include "util/guc.h"
#include "util/hash.h"

/* Number of lanes to list at a time when looking for those without memory. */
#define LISTED_AT_A_TIME 16

/* ---------------------------------------------------------------------- */
/* Ranges                                                                 */
/* ---------------------------------------------------------------------- */

static int
cmp_range(const void *a, const void *b)
{
	return outbox_ready_key_cmp(((const OutboxRange *) a)->lo,
								((const OutboxRange *) b)->lo);
}

/* List the ranges to visit, in order and without overlaps. */
static void
make_ranges(OutboxWalk *walk)
{
	OutboxLaneScan *work = &walk->work;
	OutboxReadyKey end = {walk->now, PG_INT64_MAX};
	int			n = 0;
	int			kept = 0;
	OutboxRange *ranges;

	ranges = palloc_array(OutboxRange, work->nmarks + 1);
	for (int i = 0; i < work->nmarks; i++)
		ranges[n++] = OUTBOX_MAKE(OutboxRange, work->marks[i].record.lo,
								  work->marks[i].record.hi, false);
	if (work->scan_main && !outbox_ready_key_lt(end, work->cursor))
		ranges[n++] = OUTBOX_MAKE(OutboxRange, work->cursor, end, true);

	if (n > 1)
		qsort(ranges, n, sizeof(OutboxRange), cmp_range);
	for (int i = 0; i < n; i++)
	{
		OutboxRange *last = kept > 0 ? &ranges[kept - 1] : NULL;

		if (last != NULL && !outbox_ready_key_lt(last->hi, ranges[i].lo))
		{
			last->hi = outbox_ready_key_max(last->hi, ranges[i].hi);
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
/* Index scans                                                            */
/* ---------------------------------------------------------------------- */

/* Prepare the index scans of a call, on a live table that must be open. */
void
outbox_walk_pool_begin(OutboxWalkPool *pool, OutboxTable *queue)
{
	pool->queue = queue;
	pool->index = index_open(queue->store->ready, AccessShareLock);
	pool->free = NULL;
}

/* End the index scans.  All walks must have been ended or put aside. */
void
outbox_walk_pool_end(OutboxWalkPool *pool)
{
	for (OutboxIndexScan *scan = pool->free; scan != NULL; scan = scan->next)
	{
		index_endscan(scan->scan);
		ExecDropSingleTupleTableSlot(scan->slot);
	}
	index_close(pool->index, AccessShareLock);
}

/* Give the walk an index scan, a free one if there is one. */
static void
open_scan(OutboxWalk *walk)
{
	OutboxWalkPool *pool = walk->pool;
	OutboxIndexScan *scan = pool->free;

	if (walk->scan != NULL)
		return;
	if (scan != NULL)
		pool->free = scan->next;
	else
	{
		scan = palloc0_object(OutboxIndexScan);
		scan->slot = outbox_table_slot(pool->queue);
		InitDirtySnapshot(scan->snapshot);
		scan->scan = outbox_index_beginscan(pool->queue->rel, pool->index,
											&scan->snapshot, 3);
		/* the index tuple has the time when the next message is due */
		scan->scan->xs_want_itup = true;
	}
	walk->scan = scan;
	walk->slot = scan->slot;
	walk->positioned = false;
}

static void
close_scan(OutboxWalk *walk)
{
	if (walk->scan == NULL)
		return;
	ExecClearTuple(walk->slot);
	walk->scan->next = walk->pool->free;
	walk->pool->free = walk->scan;
	walk->scan = NULL;
}

/*
 * Position the scan at the first entry of the lane that is >= lo.  Unless
 * open_end is set, which serves to find out what comes next, the scan ends
 * with those that are due by "until".
 */
static void
position(OutboxWalk *walk, OutboxReadyKey lo, TimestampTz until, bool open_end)
{
	OutboxIndexScan *scan = walk->scan;
	ScanKey		row = scan->row_keys;

	ScanKeyInit(&scan->keys[0], 1, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(walk->work.place.lane));

	/* (next_attempt_at, id) >= (lo.at, lo.id) */
	ScanKeyEntryInitialize(&row[0], SK_ROW_MEMBER, 2,
						   BTGreaterEqualStrategyNumber, InvalidOid,
						   InvalidOid, F_TIMESTAMPTZ_CMP,
						   TimestampTzGetDatum(lo.at));
	ScanKeyEntryInitialize(&row[1], SK_ROW_MEMBER | SK_ROW_END, 3,
						   BTGreaterEqualStrategyNumber, InvalidOid,
						   InvalidOid, F_BTINT8CMP, Int64GetDatum(lo.id));
	MemSet(&scan->keys[1], 0, sizeof(ScanKeyData));
	scan->keys[1].sk_flags = SK_ROW_HEADER;
	scan->keys[1].sk_attno = 2;
	scan->keys[1].sk_strategy = BTGreaterEqualStrategyNumber;
	scan->keys[1].sk_argument = PointerGetDatum(row);

	ScanKeyInit(&scan->keys[2], 2, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE,
				TimestampTzGetDatum(open_end ? DT_NOEND : until));
	index_rescan(scan->scan, scan->keys, 3, NULL, 0);
	walk->positioned = true;
}

/* The key of the current index entry. */
static OutboxReadyKey
entry_key(OutboxWalk *walk)
{
	IndexTuple	entry = walk->scan->scan->xs_itup;
	TupleDesc	desc = RelationGetDescr(walk->pool->index);
	bool		isnull;

	return OUTBOX_MAKE(OutboxReadyKey,
					   DatumGetTimestampTz(index_getattr(entry, 2, desc, &isnull)),
					   DatumGetInt64(index_getattr(entry, 3, desc, &isnull)));
}

/* ---------------------------------------------------------------------- */
/* Walking                                                                */
/* ---------------------------------------------------------------------- */

/*
 * Begin to walk along a lane, or a part of one.  False if there is nothing to
 * visit; otherwise the caller must call outbox_walk_end.
 */
bool
outbox_walk_begin(OutboxWalk *walk, Oid relid, const OutboxPlace *place,
				  uint64 token, TimestampTz now, OutboxScanKind kind)
{
	memset(walk, 0, sizeof(OutboxWalk));
	if (!outbox_lane_begin(relid, place, token, outbox_walk_uses_memory(relid),
						   now, kind, &walk->work))
		return false;
	walk->now = now;
	make_ranges(walk);
	return true;
}

/*
 * Set the index scans that a walk uses; must precede the first
 * outbox_walk_next.
 */
void
outbox_walk_open(OutboxWalk *walk, OutboxWalkPool *pool)
{
	walk->pool = pool;
}

/* The transaction whose end decides about the current row. */
static TransactionId
deciding_xid(OutboxWalk *walk)
{
	TransactionId inserter = walk->scan->snapshot.xmin;

	if (!TransactionIdIsValid(inserter))
		return walk->scan->snapshot.xmax;

	/*
	 * For a row inserted after a savepoint, the top-level transaction
	 * matters, since the row cannot become visible earlier; so such rows
	 * share one mark.  An update may be undone earlier.
	 */
	if (!outbox_row_is_update(walk->slot))
		return SubTransGetTopmostTransaction(inserter);
	return inserter;
}

/*
 * Does the row belong to this lane?  The lanes of tenants, subscriptions and
 * priorities are hashes, and that of another one may have the same number;
 * such rows are visited by other scans.
 */
static bool
is_at_place(OutboxWalk *walk)
{
	const OutboxPlace *place = &walk->work.place;
	OutboxPlace of_row;

	if (slot_attisnull(walk->slot, Q_TENANT_ID) &&
		slot_attisnull(walk->slot, Q_SUBSCRIBER) &&
		slot_attisnull(walk->slot, Q_PRIORITY))
		return place->tenant_hash == 0 && place->subscriber == 0 &&
			place->priority == 0;
	outbox_queue_place(walk->slot, &of_row);
	return outbox_place_equal(&of_row, place);
}

/* Is this message, which is leased, of interest? */
static bool
lease_of_interest(OutboxWalk *walk)
{
	OutboxLaneScan *work = &walk->work;
	TimestampTz locked_until =
	DatumGetTimestampTz(outbox_row_get(walk->slot, Q_LOCKED_UNTIL));
	TransactionId own;

	if (locked_until <= walk->now || work->kind == OUTBOX_SCAN_LEASES)
		return true;
	if (outbox_row_is_own(walk->slot, &own))
		outbox_lane_found_own(work, walk->key, own, locked_until);
	else
		outbox_lane_found_lease(work, walk->key, locked_until);
	return false;
}

/*
 * Is the current row of interest?  If not, record what the lane must know
 * about it.
 */
static bool
of_interest(OutboxWalk *walk)
{
	OutboxLaneScan *work = &walk->work;
	const SnapshotData *seen = &walk->scan->snapshot;

	if (!is_at_place(walk))
		return false;
	/* while another transaction changes a lease, it is still valid */
	if (TransactionIdIsValid(seen->xmin) ||
		(TransactionIdIsValid(seen->xmax) && work->kind != OUTBOX_SCAN_LEASES))
	{
		outbox_lane_found_undecided(work, walk->key, deciding_xid(walk));
		return false;
	}
	if (DatumGetInt16(outbox_row_get(walk->slot, Q_STATUS)) == OUTBOX_IN_PROGRESS)
		return lease_of_interest(walk);
	if (work->kind == OUTBOX_SCAN_REAP)
		outbox_lane_found_ready(work, walk->key);
	return work->kind == OUTBOX_SCAN_CLAIM;
}

/*
 * The last time at which rows of the range are visited.  What is not due is of
 * no interest to a claim, but its leases are: those that were taken before the
 * clock was set back.
 */
static TimestampTz
visited_until(const OutboxWalk *walk, const OutboxRange *range)
{
	if (walk->work.kind == OUTBOX_SCAN_LEASES)
		return range->hi.at;
	return Min(range->hi.at, walk->now);
}

/* Fetch the next row of the current range; false at its end. */
static bool
next_row(OutboxWalk *walk)
{
	OutboxRange *range = &walk->ranges[walk->range];
	OutboxLaneScan *work = &walk->work;
	IndexScanDesc scan = walk->scan->scan;

	if (!walk->positioned)
		position(walk, outbox_ready_key_max(range->lo, work->passed),
				 visited_until(walk, range), range->main);
	while (index_getnext_tid(scan, ForwardScanDirection) != NULL)
	{
		OutboxReadyKey key = entry_key(walk);

		if (outbox_ready_key_lt(range->hi, key))
		{
			/* it may be dead, but then it is visited in vain at that time */
			if (range->main)
				work->next_due = key.at;
			break;
		}
		Assert(!outbox_ready_key_lt(key, range->lo));
		/* a non-HOT update leaves a second entry with the same key */
		Assert(!outbox_ready_key_lt(outbox_ready_key_next(key), work->passed));
		walk->key = work->passed = key;
		/* of the versions of a row, the first one is enough */
		scan->xs_heap_continue = false;
		if (index_fetch_heap(scan, walk->slot) && of_interest(walk))
			return true;
		work->passed = outbox_ready_key_next(key);
		CHECK_FOR_INTERRUPTS();
	}
	return false;
}

/* Advance to the next message of interest; false if there is none left. */
bool
outbox_walk_next(OutboxWalk *walk)
{
	OutboxLaneScan *work = &walk->work;

	open_scan(walk);
	for (; walk->range < walk->nranges; walk->range++)
	{
		OutboxRange *range = &walk->ranges[walk->range];
		OutboxReadyKey end;

		if (range->main)
			work->next_due = DT_NOEND;
		if (next_row(walk))
			return true;
		walk->positioned = false;
		end = outbox_ready_key_min(range->hi, OUTBOX_MAKE(OutboxReadyKey, visited_until(walk, range), PG_INT64_MIN));
		work->passed = outbox_ready_key_max(work->passed, outbox_ready_key_next(end));
		work->exhausted |= range->main;
	}
	close_scan(walk);
	return false;
}

/*
 * Return the index scan to the pool, but remember the position: a session
 * should pin only so many pages.  The next outbox_walk_next leads to the same
 * message again, unless it is gone.
 */
void
outbox_walk_put_aside(OutboxWalk *walk)
{
	close_scan(walk);
	walk->positioned = false;
}

/*
 * End a walk: return its index scan, and publish what it has found to the
 * lane.
 */
void
outbox_walk_end(OutboxWalk *walk)
{
	if (walk->scan != NULL)
		close_scan(walk);
	outbox_lane_finish(&walk->work, walk->now);
}

/*
 * The caller has changed or removed the current message.  locked_until is the
 * end of its lease; 0 if it has none.
 */
void
outbox_walk_changed(OutboxWalk *walk, TimestampTz locked_until)
{
	OutboxLaneScan *work = &walk->work;

	Assert(outbox_ready_key_cmp(work->passed, walk->key) == 0);
	if (!work->tracked && locked_until != 0)
		outbox_lane_note_lease(work->relid, &work->place, walk->key,
							   locked_until);
	else
		outbox_lane_found_own(work, walk->key, GetCurrentTransactionId(),
							  locked_until != 0 ? locked_until : DT_NOEND);
	work->passed = outbox_ready_key_next(walk->key);
}

/*
 * The current message could not be changed, because "blocker", or one of
 * several transactions, has locked it.
 */
void
outbox_walk_blocked(OutboxWalk *walk, TransactionId blocker)
{
	outbox_lane_found_locked(&walk->work, walk->key, blocker);
	walk->work.passed = outbox_ready_key_next(walk->key);
}

/* Another transaction decides whether the current message can be claimed. */
void
outbox_walk_undecided(OutboxWalk *walk, TransactionId writer)
{
	outbox_lane_found_undecided(&walk->work, walk->key, writer);
	walk->work.passed = outbox_ready_key_next(walk->key);
}

/* The caller has left the current message for others. */
void
outbox_walk_left(OutboxWalk *walk)
{
	walk->work.limit = outbox_ready_key_min(walk->work.limit, walk->key);
	walk->work.passed = outbox_ready_key_next(walk->key);
	walk->work.lease_left |=
		DatumGetInt16(outbox_row_get(walk->slot, Q_STATUS)) == OUTBOX_IN_PROGRESS;
}

/*
 * The current message cannot be claimed, and the change that makes it
 * claimable will be reported.
 */
void
outbox_walk_passed(OutboxWalk *walk)
{
	walk->work.passed = outbox_ready_key_next(walk->key);
}

/*
 * The caller has left the current message for one owner; "shared": others may
 * take it, too.
 */
void
outbox_walk_left_for(OutboxWalk *walk, uint64 token, bool shared)
{
	outbox_lane_found_part(&walk->work, walk->key, token, shared);
	walk->work.passed = outbox_ready_key_next(walk->key);
}

/* ---------------------------------------------------------------------- */
/* Listing lanes                                                          */
/* ---------------------------------------------------------------------- */

/* Does this session use shared memory to find lanes? */
bool
outbox_walk_uses_memory(Oid relid)
{
	uint64		life;

	if (!outbox_use_cursor || outbox_lane_is_doubtful(relid))
		return false;
	if (!outbox_table_is_watched(relid, &life))
	{
		/* what other sessions know may be wrong as well */
		outbox_epoch_raise(relid);
		return false;
	}
	outbox_directory_set_life(relid, life);
	return true;
}

/*
 * Must lanes be listed before they can be chosen?  Without shared memory
 * always, otherwise once.
 */
bool
outbox_walk_must_list(Oid relid)
{
	OutboxListing listing;

	if (!outbox_walk_uses_memory(relid))
		return true;
	return !outbox_listing_begin(relid, &listing) ?
		listing.relid == InvalidOid : true;
}

/*
 * If a claim has not found enough, may there be more in lanes that have no
 * memory and were not listed?  A lane that the filter names was looked up.
 */
bool
outbox_walk_must_list_all(Oid relid, const OutboxLaneFilter *filter)
{
	OutboxListing listing;

	if (!outbox_walk_uses_memory(relid) ||
		!outbox_listing_begin(relid, &listing))
		return false;
	return filter->namespace_hash == NULL || filter->topic_hashes == NULL ||
		(filter->tenant_hash == NULL && listing.tenants);
}

/* Lanes found that have no memory. */
typedef struct LaneList
{
	OutboxPlace *places;
	int			n;
	int			max;
} LaneList;

static void
add_place(LaneList *list, const OutboxLaneFilter *filter,
		  const OutboxPlace *place)
{
	if (!outbox_place_wanted(filter, place))
		return;
	outbox_grow(list->places, list->n, list->max);
	list->places[list->n++] = *place;
}

/*
 * Skip along the index from lane to lane, and give each lane memory.  Lanes
 * whose rows are all dead are not seen.  Returns whether the end was reached.
 */
static bool
hop_along_lanes(OutboxTable *queue, OutboxListing *listing, bool in_memory,
				const OutboxLaneFilter *filter, LaneList *list)
{
	Relation	index = index_open(queue->store->ready, AccessShareLock);
	TupleTableSlot *slot = outbox_table_slot(queue);
	int64		lane = listing->from;
	bool		any = lane == PG_INT64_MIN;
	bool		at_end = false;
	SnapshotData dirty;
	IndexScanDesc scan;

	InitDirtySnapshot(dirty);
	scan = outbox_index_beginscan(queue->rel, index, &dirty, 1);
	for (int n = 0; listing->whole || n < LISTED_AT_A_TIME; n++)
	{
		ScanKeyData key;
		OutboxPlace place;

		CHECK_FOR_INTERRUPTS();
		ScanKeyInit(&key, 1,
					any ? BTGreaterEqualStrategyNumber : BTGreaterStrategyNumber,
					any ? F_INT8GE : F_INT8GT, Int64GetDatum(lane));
		index_rescan(scan, &key, 1, NULL, 0);
		if (!index_getnext_slot(scan, ForwardScanDirection, slot))
		{
			at_end = true;
			break;
		}
		any = false;
		lane = DatumGetInt64(outbox_row_get(slot, Q_LANE));
		outbox_queue_place(slot, &place);
		place.lane = lane;
		if (!in_memory || !outbox_listing_add(listing, &place))
			add_place(list, filter, &place);
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, AccessShareLock);
	return at_end;
}

static bool
list_has(const LaneList *list, const OutboxPlace *place)
{
	for (int i = 0; i < list->n; i++)
	{
		if (outbox_place_equal(&list->places[i], place))
			return true;
	}
	return false;
}

/* Give memory to one of the lanes that a filter names. */
static void
add_named_lane(OutboxListing *listing, const OutboxLaneFilter *filter,
			   OutboxPlace *place, LaneList *list)
{
	outbox_place_set_lane(place);
	CHECK_FOR_INTERRUPTS();
	if (!outbox_listing_add(listing, place) && !list_has(list, place))
		add_place(list, filter, place);
}

/*
 * Give memory to the lanes that a filter names.  As only a few lanes are
 * listed at a time, it might take long until these are among them.  (The lanes
 * of tenants that are not named can only be found by listing.)  Only lanes of
 * priority 0 are tried, unless a lane of another priority was without memory.
 */
static void
add_named_lanes(OutboxListing *listing, const OutboxLaneFilter *filter,
				LaneList *list)
{
	int			nsubscribers = outbox_filter_nsubscribers(filter);
	int			most = listing->priorities ? OUTBOX_MAX_PRIORITY : 0;

	if (filter->namespace_hash == NULL || filter->topic_hashes == NULL ||
		filter->any_subscriber)
		return;
	for (int i = 0; i < filter->ntopics * nsubscribers; i++)
	{
		OutboxPlace place = {
			.namespace_hash = *filter->namespace_hash,
			.topic_hash = filter->topic_hashes[i / nsubscribers],
			.tenant_hash = filter->tenant_hash == NULL ? 0 : *filter->tenant_hash,
			.subscriber = outbox_filter_subscriber(filter, i % nsubscribers)
		};

		for (place.priority = -most; place.priority <= most; place.priority++)
			add_named_lane(listing, filter, &place, list);
	}
}

/*
 * List lanes from the index, so that they get memory; if that was done before,
 * and the caller does not need the whole list, only those that the filter
 * names and a few more of those that have no memory.  Returns those without
 * memory that pass the filter: they must be scanned from their start.
 */
void
outbox_walk_list(OutboxTable *queue, const OutboxLaneFilter *filter, bool whole,
				 OutboxPlace **untracked, int *nuntracked)
{
	Oid			relid = RelationGetRelid(queue->rel);
	bool		in_memory = outbox_walk_uses_memory(relid);
	OutboxListing listing = {.from = PG_INT64_MIN,.whole = true};
	LaneList	list = {0};
	OutboxPlace place;
	int			next = 0;
	int64		from;
	bool		at_end;

	*nuntracked = 0;
	if (in_memory && !outbox_listing_begin(relid, &listing))
	{
		if (OidIsValid(listing.relid))
			return;
		/* there is no shared memory */
		in_memory = false;
		listing = OUTBOX_MAKE(OutboxListing,.from = PG_INT64_MIN,.whole = true);
	}
	if (whole)
	{
		listing.whole = true;
		listing.from = PG_INT64_MIN;
	}
	at_end = hop_along_lanes(queue, &listing, in_memory, filter, &list);
	/* the next listing continues there, whatever else is added */
	from = listing.from;
	if (in_memory && !listing.whole)
		add_named_lanes(&listing, filter, &list);
	/* what this transaction has moved may be the only message of a lane */
	while (in_memory && outbox_lane_next_moved_place(relid, &next, &place))
		(void) outbox_listing_add(&listing, &place);
	listing.from = from;
	if (in_memory)
		outbox_listing_end(&listing, at_end);
	*untracked = list.places;
	*nuntracked = list.n;
}
