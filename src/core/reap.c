/*
 * reap.c
 *	  Leases that have ended, and messages that have expired.
 *
 * Nothing depends on it: a claim takes a message whose lease has ended as it
 * comes by, and never hands out one that has expired.  Reaping makes visible
 * what is the case, and frees the streams that wait behind such messages.
 *
 * It never waits: a message that another transaction has locked is left to that
 * one, and a join that is locked is counted later (join.c).
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
#include "queue/history.h"
#include "queue/policy.h"
#include "queue/queue.h"
#include "queue/stream.h"
#include "queue/walk.h"
#include "shmem/lane.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/probe.h"
#include "table/table.h"
#include "util/guc.h"

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
		outbox_stream_gone_back(&reaper->gone_back, message);
	return result;
}

/* A message has expired, or has had its attempts. */
static OutboxRowResult
bury(Reaper *reaper, TupleTableSlot *message, OutboxFate fate,
	 TransactionId *blocker)
{
	OutboxRowResult result;

	result = outbox_queue_bury(&reaper->queue, &reaper->history, message, fate,
							   blocker);
	if (result != OUTBOX_ROW_OK || slot_attisnull(message, Q_STREAM_ID))
		return result;
	if (!reaper->streams_open)
		outbox_stream_scan_begin(&reaper->streams, &reaper->queue);
	reaper->streams_open = true;
	outbox_stream_ended(&reaper->streams, message);
	return result;
}

/* A lease that has ended. */
static bool
reap_lease(OutboxWalk *walk, void *arg)
{
	Reaper	   *reaper = arg;
	TupleTableSlot *message = walk->slot;
	TransactionId blocker = InvalidTransactionId;
	OutboxPolicy policy;
	OutboxFate	fate;
	OutboxRowResult result;

	outbox_policy_get(reaper->queue.store,
					  DatumGetTextPP(outbox_row_get(message, Q_NAMESPACE)),
					  DatumGetTextPP(outbox_row_get(message, Q_TOPIC)),
					  &policy);
	fate = outbox_queue_fate(message, &policy, 0, reaper->now);
	if (fate == OUTBOX_FATE_LIVE)
		result = return_to_ready(reaper, message, &blocker);
	else
		result = bury(reaper, message, fate, &blocker);

	if (result == OUTBOX_ROW_OK)
	{
		outbox_walk_changed(walk, 0);
		return ++reaper->nreaped < reaper->limit;
	}
	if (result == OUTBOX_ROW_REFUSED)
		outbox_walk_left(walk);
	else
		outbox_walk_blocked(walk, blocker);
	return true;
}

/* Messages that were not delivered in time, wherever they lie. */
static void
reap_expired_messages(Reaper *reaper)
{
	Relation	index = index_open(reaper->queue.store->expires,
								   AccessShareLock);
	TupleTableSlot *slot = outbox_table_slot(&reaper->queue);
	SnapshotData dirty;
	IndexScanDesc scan;
	ScanKeyData key;

	InitDirtySnapshot(dirty);
	scan = outbox_index_beginscan(reaper->queue.rel, index, &dirty, 1);
	ScanKeyInit(&key, 1, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE,
				TimestampTzGetDatum(reaper->now));
	index_rescan(scan, &key, 1, NULL, 0);
	while (reaper->nreaped < reaper->limit &&
		   index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		TransactionId blocker;
		bool		leased;

		CHECK_FOR_INTERRUPTS();
		if (TransactionIdIsValid(outbox_row_writer(&dirty)))
			continue;
		leased = DatumGetInt16(outbox_row_get(slot, Q_STATUS)) == OUTBOX_IN_PROGRESS &&
			DatumGetTimestampTz(outbox_row_get(slot, Q_LOCKED_UNTIL)) > reaper->now;
		if (!leased &&
			bury(reaper, slot, OUTBOX_FATE_EXPIRED, &blocker) == OUTBOX_ROW_OK)
			reaper->nreaped++;
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, NoLock);
}

/*
 * Return messages whose leases have ended to ready, or to the dead if they
 * have had their attempts, and messages that have expired to the dead.
 * Returns how many, at most "limit".
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
	/* a message may have been in both lists */
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
