/*
 * reap.c
 *	  Reaping leases that have ended and messages that have expired.
 *
 * Correctness does not depend on it: a claim takes a message whose lease has
 * ended when it comes across it, and never hands out one that has expired.
 * Reaping makes their state visible, and frees the streams that wait behind
 * such messages.
 *
 * It never waits: it skips messages that another transaction has locked, and a
 * join that is locked is counted later (join.c).
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "core/reap.h"
#include "outbox.h"
#include "queue/count.h"
#include "queue/history.h"
#include "queue/lease_walk.h"
#include "queue/policy.h"
#include "queue/queue.h"
#include "queue/stream.h"
#include "queue/walk.h"
#include "shmem/counters.h"
#include "shmem/expiry.h"
#include "shmem/lane.h"
#include "shmem/lane_xact.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/probe.h"
#include "table/table.h"
#include "trace.h"
#include "util/guc.h"

/*
 * Maximum number of dead index entries to skip when looking for the next
 * message that expires.
 */
#define MAX_GONE 1000

typedef struct Reaper
{
	OutboxTable queue;
	TimestampTz now;
	int			limit;
	int			nreaped;
	TupleTableSlot *row;
	OutboxHistory history;
	bool		streams_open;
	OutboxStreamScan streams;
	OutboxGoneBack gone_back;
} Reaper;

static OutboxRowResult
return_to_ready(Reaper *reaper, TupleTableSlot *message,
				TransactionId *blocker)
{
	OutboxRowResult result;

	outbox_queue_make_ready(reaper->row, message, reaper->now, reaper->now);
	outbox_row_set(reaper->row, Q_FAILURE_REASON,
				   Int16GetDatum(OUTBOX_REASON_EXPIRED));
	result = outbox_queue_update(&reaper->queue, message, reaper->row, false,
								 blocker);
	if (result == OUTBOX_ROW_OK)
	{
		OUTBOX_TRACE_ROW("row.reap", reaper, message, reaper->row, -1);
		outbox_stream_gone_back(&reaper->gone_back, message);
	}
	return result;
}

/* Move a message that has expired, or is out of attempts, to dead. */
static OutboxRowResult
bury(Reaper *reaper, TupleTableSlot *message, OutboxFate fate,
	 TransactionId *blocker)
{
	OutboxRowResult result;

	result = outbox_queue_bury(&reaper->queue, &reaper->history, message, fate,
							   blocker);
	if (result == OUTBOX_ROW_OK)
		OUTBOX_TRACE_ROW("row.reap", reaper, message, NULL, -1);
	if (result != OUTBOX_ROW_OK || slot_attisnull(message, Q_STREAM_ID))
		return result;
	if (!reaper->streams_open)
		outbox_stream_scan_begin(&reaper->streams, &reaper->queue);
	reaper->streams_open = true;
	outbox_stream_ended(&reaper->streams, message);
	return result;
}

/* Reap the lease at which a walk stands. */
static bool
reap_lease(OutboxWalk *walk, void *arg)
{
	Reaper	   *reaper = arg;
	TupleTableSlot *message = walk->slot;
	TransactionId blocker = InvalidTransactionId;
	OutboxPolicy policy;
	OutboxFate	fate;
	OutboxRowResult result;

	outbox_policy_of(reaper->queue.store, message, &policy);
	fate = outbox_queue_fate(message, &policy, 0, reaper->now);
	if (fate == OUTBOX_FATE_LIVE)
		result = return_to_ready(reaper, message, &blocker);
	else
		result = bury(reaper, message, fate, &blocker);

	if (result == OUTBOX_ROW_OK)
	{
		outbox_walk_changed(walk, 0);
		outbox_count_message(reaper->queue.store->kind, message,
							 OUTBOX_COUNT_LEASES_LOST);
		return ++reaper->nreaped < reaper->limit;
	}
	if (result == OUTBOX_ROW_REFUSED)
		outbox_walk_left(walk);
	else
		outbox_walk_blocked(walk, blocker);
	return true;
}

/* ---------------------------------------------------------------------- */
/* Messages that expire                                                   */
/* ---------------------------------------------------------------------- */

/* A scan of the index of the times at which messages expire. */
typedef struct ExpiryScan
{
	Relation	index;
	IndexScanDesc scan;
	SnapshotData dirty;
	ScanKeyData keys[2];
	TupleTableSlot *slot;
} ExpiryScan;

/* Prepare to scan what expires after "from" and until "until". */
static void
expiry_scan_begin(ExpiryScan *scan, OutboxTable *queue, TimestampTz from,
				  TimestampTz until)
{
	scan->index = index_open(queue->store->expires, AccessShareLock);
	scan->slot = outbox_table_slot(queue);
	InitDirtySnapshot(scan->dirty);
	scan->scan = outbox_index_beginscan(queue->rel, scan->index, &scan->dirty, 2);
	scan->scan->xs_want_itup = true;
	ScanKeyInit(&scan->keys[0], 1, BTGreaterStrategyNumber, F_TIMESTAMPTZ_GT,
				TimestampTzGetDatum(from));
	ScanKeyInit(&scan->keys[1], 1, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE,
				TimestampTzGetDatum(until));
	index_rescan(scan->scan, scan->keys, 2, NULL, 0);
}

static void
expiry_scan_end(ExpiryScan *scan)
{
	index_endscan(scan->scan);
	ExecDropSingleTupleTableSlot(scan->slot);
	index_close(scan->index, AccessShareLock);
}

/* Go on to the next entry; false at the end. */
static bool
expiry_scan_next(ExpiryScan *scan, TimestampTz *expires_at, bool *is_gone)
{
	bool		isnull;

	CHECK_FOR_INTERRUPTS();
	if (index_getnext_tid(scan->scan, ForwardScanDirection) == NULL)
		return false;
	*expires_at = DatumGetTimestampTz(index_getattr(scan->scan->xs_itup, 1,
													RelationGetDescr(scan->index),
													&isnull));
	scan->scan->xs_heap_continue = false;
	*is_gone = !index_fetch_heap(scan->scan, scan->slot);
	return true;
}

/* Move messages that have expired to dead, whatever their lane. */
static void
reap_expired_messages(Reaper *reaper)
{
	Oid			relid = RelationGetRelid(reaper->queue.rel);
	TimestampTz until = reaper->now;
	TimestampTz expires_at;
	OutboxExpirySearch search;
	ExpiryScan	scan;
	bool		is_gone;

	outbox_expiry_begin(relid, outbox_walk_uses_memory(relid), reaper->now,
						&search);
	expiry_scan_begin(&scan, &reaper->queue, search.from, reaper->now);
	while (expiry_scan_next(&scan, &expires_at, &is_gone))
	{
		TransactionId blocker;
		bool		leased;

		if (is_gone)
			continue;
		/* it stays there until this transaction commits */
		until = Min(until, expires_at - 1);
		if (reaper->nreaped == reaper->limit)
			break;
		if (TransactionIdIsValid(outbox_row_writer(&scan.dirty)))
			continue;
		leased = DatumGetInt16(outbox_row_get(scan.slot, Q_STATUS)) == OUTBOX_IN_PROGRESS &&
			DatumGetTimestampTz(outbox_row_get(scan.slot, Q_LOCKED_UNTIL)) > reaper->now;
		if (!leased &&
			bury(reaper, scan.slot, OUTBOX_FATE_EXPIRED, &blocker) == OUTBOX_ROW_OK)
			reaper->nreaped++;
	}
	expiry_scan_end(&scan);

	/*
	 * what this transaction has removed is invisible to it, but is back if it
	 * aborts
	 */
	if (!outbox_lane_has_moved(relid))
		outbox_expiry_end(&search, until);
}

/*
 * The time when the next message expires; DT_NOEND if none does.  May be too
 * early, but not too late: only MAX_GONE dead entries are skipped.
 */
TimestampTz
outbox_reap_next_expiry(const OutboxStore *store)
{
	OutboxTable queue;
	OutboxExpirySearch search;
	ExpiryScan	scan;
	TimestampTz expires_at;
	TimestampTz next = DT_NOEND;
	bool		is_gone;
	int			ngone = 0;

	outbox_store_open(&queue, store);
	outbox_expiry_begin(store->table, outbox_walk_uses_memory(store->table),
						DT_NOBEGIN, &search);
	expiry_scan_begin(&scan, &queue, search.from, DT_NOEND - 1);
	while (next == DT_NOEND && expiry_scan_next(&scan, &expires_at, &is_gone))
	{
		if (!is_gone || ++ngone == MAX_GONE)
			next = expires_at;
	}
	expiry_scan_end(&scan);
	outbox_table_close_unchanged(&queue);
	return next;
}

/* ---------------------------------------------------------------------- */
/* The call                                                               */
/* ---------------------------------------------------------------------- */

/*
 * Make messages whose leases have ended ready, or move them to dead if they
 * are out of attempts, and move messages that have expired to dead.  Returns
 * how many, at most "limit".
 */
int
outbox_reap(const OutboxStore *store, int limit)
{
	Reaper		reaper = {.limit = limit};

	CommandCounterIncrement();
	reaper.now = GetCurrentTimestamp();
	outbox_store_open(&reaper.queue, store);
	reaper.row = outbox_table_new_row(&reaper.queue);
	outbox_history_begin(&reaper.history, &reaper.queue, reaper.now);
	reaper.history.ended.must_not_wait = true;

	outbox_walk_leases(&reaper.queue, reaper.now, OUTBOX_SCAN_REAP, reap_lease,
					   &reaper);
	/* a message may be in both lists */
	CommandCounterIncrement();
	reap_expired_messages(&reaper);

	ExecDropSingleTupleTableSlot(reaper.row);
	if (reaper.streams_open)
		outbox_stream_scan_end(&reaper.streams);
	outbox_stream_revoke_all(&reaper.queue, &reaper.gone_back, reaper.now);
	outbox_history_end(&reaper.history);
	outbox_table_close(&reaper.queue);
	if (reaper.nreaped > 0)
		outbox_log("outbox reap: count %d", reaper.nreaped);
	return reaper.nreaped;
}
