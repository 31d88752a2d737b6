/*
 * stream.c
 *	  Messages that must be delivered one after the other.
 *
 * The messages of a stream that are not finished form a line, in the order of
 * stream_seq.  At its beginning some may be leased, all by one owner; the
 * rest wait.  The first that waits lies
 *
 *	- in its topic's lane, if nothing is before it: anybody may take it;
 *	- in the lane of the owner who holds all before it: only he may.
 *
 * All others are parked: they lie at infinity, where no scan comes by, so that
 * a long stream costs a claim nothing.  A message that waits for its retry is
 * the first that waits; what was leased behind it is taken back, because it
 * must not be worked on before.
 *
 * The order is that in which transactions committed: whoever enqueues in a
 * stream waits until the transaction that did so before has ended, and only
 * then draws its stream_seq (keylock.c; the uncommitted message is the lock).
 *
 * Whoever changes the line - claims, settles, enqueues - arranges it anew
 * afterwards (outbox_stream_arrange).  Nobody waits for anybody to do so:
 * when another transaction that has not ended has its hand on the line, one
 * leaves a row in outbox.stream_doubts, in one's own transaction, and the
 * next claim after that one's end arranges the stream.  Since each looks
 * after it has changed, of two who change at the same time at least one sees
 * the other; so no message is left parked with nobody before it.
 *
 * A claim does not trust the arrangement: it looks at what is before a
 * message before it takes it (outbox_stream_check).
 */
#include "postgres.h"

#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "outbox.h"
#include "queue/queue.h"
#include "queue/stream.h"
#include "shmem/lane_directory.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/keylock.h"
#include "table/probe.h"
#include "table/table.h"
#include "util/hash.h"
#include "util/uuid.h"

/* outbox.stream_doubts */
enum
{
	S_ID = 1,
	S_WAITS_FOR,
	S_STORE,
	S_STREAM_ID,
	S_NATTS = S_STREAM_ID
};

/* What one row of the line is, to whom it looks at. */
typedef enum LineState
{
	LINE_WAITING,
	LINE_LEASED,
	LINE_CHANGING,				/* another transaction changes or removes it */
	LINE_ARRIVING				/* another transaction has just inserted it */
} LineState;

/* ---------------------------------------------------------------------- */
/* Walking                                                                */
/* ---------------------------------------------------------------------- */

void
outbox_stream_scan_begin(OutboxStreamScan *scan, OutboxTable *queue)
{
	scan->queue = queue;
	scan->index = index_open(queue->store->stream, AccessShareLock);
	InitDirtySnapshot(scan->snapshot);
	scan->scan = outbox_index_beginscan(queue->rel, scan->index,
										&scan->snapshot, 2);
}

void
outbox_stream_scan_end(OutboxStreamScan *scan)
{
	index_endscan(scan->scan);
	index_close(scan->index, NoLock);
}

static void
seek(OutboxStreamScan *scan, const pg_uuid_t *stream, StrategyNumber strategy,
	 RegProcedure compare, int64 seq, ScanDirection direction)
{
	ScanKeyInit(&scan->keys[0], 1, BTEqualStrategyNumber, F_UUID_EQ,
				UUIDPGetDatum(stream));
	ScanKeyInit(&scan->keys[1], 2, strategy, compare, Int64GetDatum(seq));
	index_rescan(scan->scan, scan->keys, 2, NULL, 0);
	scan->direction = direction;
}

/* Walk what comes after seq, in order.  "stream" must stay where it is. */
void
outbox_stream_seek_after(OutboxStreamScan *scan, const pg_uuid_t *stream,
						 int64 seq)
{
	seek(scan, stream, BTGreaterStrategyNumber, F_INT8GT, seq,
		 ForwardScanDirection);
}

/* Walk what comes before seq, the nearest first. */
void
outbox_stream_seek_before(OutboxStreamScan *scan, const pg_uuid_t *stream,
						  int64 seq)
{
	seek(scan, stream, BTLessStrategyNumber, F_INT8LT, seq,
		 BackwardScanDirection);
}

/*
 * The next row, in any version that is not gone for good.  *writer is the
 * other transaction that has its hand on it.
 */
bool
outbox_stream_next(OutboxStreamScan *scan, TupleTableSlot *slot,
				   TransactionId *writer)
{
	CHECK_FOR_INTERRUPTS();
	if (!index_getnext_slot(scan->scan, scan->direction, slot))
		return false;
	*writer = outbox_row_writer(&scan->snapshot);
	return true;
}

static int64
row_seq(TupleTableSlot *slot)
{
	return DatumGetInt64(outbox_row_get(slot, Q_STREAM_SEQ));
}

static pg_uuid_t
row_owner(TupleTableSlot *slot)
{
	return *DatumGetUUIDP(outbox_row_get(slot, Q_OWNER_TOKEN));
}

static LineState
line_state(OutboxStreamScan *scan, TupleTableSlot *slot)
{
	if (TransactionIdIsValid(scan->snapshot.xmin))
		return outbox_row_is_update(slot) ? LINE_CHANGING : LINE_ARRIVING;
	if (TransactionIdIsValid(scan->snapshot.xmax))
		return LINE_CHANGING;
	return DatumGetInt16(outbox_row_get(slot, Q_STATUS)) == OUTBOX_IN_PROGRESS ?
		LINE_LEASED : LINE_WAITING;
}

/* ---------------------------------------------------------------------- */
/* Doubts                                                                 */
/* ---------------------------------------------------------------------- */

/* Have the stream arranged when "writer" has ended. */
static void
leave_doubt(OutboxTable *queue, const pg_uuid_t *stream, TransactionId writer)
{
	const OutboxCatalog *catalog = outbox_catalog();
	OutboxTable doubts;
	TupleTableSlot *row;

	outbox_table_open(&doubts, catalog->stream_doubts, S_NATTS);
	row = outbox_table_new_row(&doubts);
	outbox_row_set(row, S_ID,
				   Int64GetDatum(nextval_internal(catalog->sequence, false)));
	outbox_row_set(row, S_WAITS_FOR, TransactionIdGetDatum(writer));
	outbox_row_set(row, S_STORE, Int16GetDatum(queue->store->kind));
	outbox_row_set(row, S_STREAM_ID, UUIDPGetDatum(stream));
	outbox_table_insert(&doubts, row);
	ExecDropSingleTupleTableSlot(row);
	outbox_table_close(&doubts);
	outbox_doubts_report(RelationGetRelid(queue->rel));
}

/* ---------------------------------------------------------------------- */
/* Arranging                                                              */
/* ---------------------------------------------------------------------- */

/*
 * Put a waiting row where it belongs, taking its lease away if it has one.
 * False if somebody else has his hand on it.
 */
static bool
put_row(OutboxTable *queue, TupleTableSlot *old, int64 lane,
		TimestampTz ready_at, TimestampTz now, TransactionId *writer)
{
	TupleTableSlot *row = outbox_table_new_row(queue);
	OutboxRowResult result;

	outbox_new_row_from(row, old);
	outbox_row_set(row, Q_LANE, Int64GetDatum(lane));
	outbox_row_set(row, Q_READY_AT, TimestampTzGetDatum(ready_at));
	outbox_row_set(row, Q_UPDATED_AT, TimestampTzGetDatum(now));
	if (DatumGetInt16(outbox_row_get(old, Q_STATUS)) == OUTBOX_IN_PROGRESS)
	{
		/* the attempt was cut short, so it does not count */
		outbox_row_set(row, Q_STATUS, Int16GetDatum(OUTBOX_READY));
		outbox_row_set(row, Q_WAIVED,
					   Int32GetDatum(DatumGetInt32(outbox_row_get(old, Q_WAIVED)) + 1));
		outbox_row_set_null(row, Q_OWNER_TOKEN);
		outbox_row_set_null(row, Q_LOCKED_UNTIL);
	}
	result = outbox_queue_update(queue, old, row, false, writer);
	ExecDropSingleTupleTableSlot(row);
	return result == OUTBOX_ROW_OK || result == OUTBOX_ROW_REFUSED;
}

static bool
park_row(OutboxTable *queue, TupleTableSlot *old, TimestampTz now,
		 TransactionId *writer)
{
	return put_row(queue, old, outbox_queue_topic_lane(old), DT_NOEND, now, writer);
}

/* Put the first waiting row of a line into its lane, unless it is there. */
static bool
put_first(OutboxTable *queue, TupleTableSlot *first, const pg_uuid_t *holder,
		  TimestampTz now, TransactionId *writer)
{
	int64		lane;
	TimestampTz next = DatumGetTimestampTz(outbox_row_get(first,
														  Q_NEXT_ATTEMPT_AT));
	TimestampTz ready = DatumGetTimestampTz(outbox_row_get(first, Q_READY_AT));
	bool		leased;

	lane = holder != NULL ? outbox_owner_lane(holder) :
		outbox_queue_topic_lane(first);
	leased = DatumGetInt16(outbox_row_get(first, Q_STATUS)) == OUTBOX_IN_PROGRESS;
	if (!leased && DatumGetInt64(outbox_row_get(first, Q_LANE)) == lane &&
		(ready != DT_NOEND || next == DT_NOEND))
		return true;
	return put_row(queue, first, lane, Max(next, now), now, writer);
}

/*
 * Arrange one stream.  leases_ended: a lease may have ended before its
 * message did, so that what lies behind must be looked at even if the line
 * begins with a lease.  False if another transaction is in the way.
 */
static bool
arrange(OutboxStreamScan *scan, TupleTableSlot *slot, const pg_uuid_t *stream,
		TimestampTz now, bool leases_ended, TransactionId *writer)
{
	int64		last_seq = 0;
	bool		held = false;
	bool		first_seen = false;
	pg_uuid_t	holder;

	outbox_stream_seek_after(scan, stream, 0);
	while (outbox_stream_next(scan, slot, writer))
	{
		LineState	state = line_state(scan, slot);
		int64		seq = row_seq(slot);

		if (state == LINE_CHANGING || state == LINE_ARRIVING)
			return false;
		if (seq <= last_seq)
			continue;			/* a version that we have just written */
		last_seq = seq;

		if (!first_seen && state == LINE_LEASED)
		{
			pg_uuid_t	owner = row_owner(slot);

			if (!held || outbox_uuid_equal(&owner, &holder))
			{
				holder = owner;
				held = true;
				if (!leases_ended)
					return true;
				continue;
			}
		}
		if (!first_seen)
		{
			first_seen = true;
			if (!put_first(scan->queue, slot, held ? &holder : NULL, now,
						   writer))
				return false;
		}
		else if (state == LINE_WAITING &&
				 DatumGetTimestampTz(outbox_row_get(slot, Q_READY_AT)) == DT_NOEND)
			return true;
		else if (!park_row(scan->queue, slot, now, writer))
			return false;
	}
	return true;
}

/*
 * Arrange the streams that this call has changed, and forget them.
 */
void
outbox_stream_arrange(OutboxTable *queue, OutboxStreamSet *set,
					  TimestampTz now, bool leases_ended)
{
	OutboxStreamScan scan;
	TupleTableSlot *slot;

	if (set->n == 0)
		return;
	/* what the call has written so far may have to be written again */
	CommandCounterIncrement();
	slot = outbox_table_slot(queue);
	outbox_stream_scan_begin(&scan, queue);
	for (int i = 0; i < set->n; i++)
	{
		TransactionId writer = InvalidTransactionId;

		if (!arrange(&scan, slot, &set->streams[i], now, leases_ended, &writer))
			leave_doubt(queue, &set->streams[i], writer);
	}
	outbox_stream_scan_end(&scan);
	ExecDropSingleTupleTableSlot(slot);
	set->n = 0;
}

/* Remember a stream. */
void
outbox_stream_set_add(OutboxStreamSet *set, const pg_uuid_t *stream)
{
	/* calls that touch many streams often touch them in runs */
	for (int i = set->n - 1; i >= 0 && i >= set->n - 4; i--)
	{
		if (outbox_uuid_equal(&set->streams[i], stream))
			return;
	}
	if (set->n == set->max)
	{
		int			n = 0;

		if (set->max == 0)
		{
			set->max = 16;
			set->streams = palloc_array(pg_uuid_t, set->max);
		}
		else
		{
			qsort(set->streams, set->n, sizeof(pg_uuid_t), outbox_uuid_qsort_cmp);
			for (int i = 0; i < set->n; i++)
			{
				if (i == 0 ||
					!outbox_uuid_equal(&set->streams[i], &set->streams[n - 1]))
					set->streams[n++] = set->streams[i];
			}
			set->n = n;
			if (n > set->max / 2)
			{
				set->max *= 2;
				set->streams = repalloc(set->streams,
										set->max * sizeof(pg_uuid_t));
			}
		}
	}
	set->streams[set->n++] = *stream;
}

/*
 * Read a live table's doubts that can be settled now.  *any: there are doubts
 * at all, even if they are not committed yet.
 */
static List *
read_doubts(OutboxTable *doubts, OutboxStoreKind kind, bool *any)
{
	TupleTableSlot *slot = outbox_table_slot(doubts);
	List	   *result = NIL;
	SnapshotData dirty;
	TableScanDesc scan;

	*any = false;
	InitDirtySnapshot(dirty);
	scan = table_beginscan(doubts->rel, &dirty, 0, NULL);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		TransactionId writer;

		if (DatumGetInt16(outbox_row_get(slot, S_STORE)) != kind)
			continue;
		writer = DatumGetTransactionId(outbox_row_get(slot, S_WAITS_FOR));
		*any = true;
		if (!TransactionIdIsValid(outbox_row_writer(&dirty)) &&
			outbox_xact_has_ended(writer))
			result = lappend(result, ExecCopySlotHeapTuple(slot));
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	return result;
}

/*
 * Arrange the streams that were left in doubt by transactions that have ended
 * since.  To be called before a claim.
 */
void
outbox_stream_settle_doubts(OutboxTable *queue, TimestampTz now)
{
	uint32		seen;
	bool		any;
	OutboxTable doubts;
	OutboxStreamScan scan;
	TupleTableSlot *doubt;
	TupleTableSlot *slot;
	List	   *tuples;
	ListCell   *lc;

	if (!outbox_doubts_may_exist(RelationGetRelid(queue->rel), &seen))
		return;
	outbox_table_open(&doubts, outbox_catalog()->stream_doubts, S_NATTS);
	tuples = read_doubts(&doubts, queue->store->kind, &any);
	if (!any)
		outbox_doubts_none(RelationGetRelid(queue->rel), seen);

	doubt = MakeSingleTupleTableSlot(RelationGetDescr(doubts.rel),
									 &TTSOpsHeapTuple);
	slot = outbox_table_slot(queue);
	outbox_stream_scan_begin(&scan, queue);
	foreach(lc, tuples)
	{
		pg_uuid_t	stream;
		TransactionId writer;

		ExecStoreHeapTuple(lfirst(lc), doubt, true);
		stream = *DatumGetUUIDP(outbox_row_get(doubt, S_STREAM_ID));
		if (outbox_table_delete(&doubts, doubt, false, &writer) == OUTBOX_ROW_OK &&
			!arrange(&scan, slot, &stream, now, true, &writer))
			leave_doubt(queue, &stream, writer);
		/* the same stream may come again */
		CommandCounterIncrement();
	}
	outbox_stream_scan_end(&scan);
	ExecDropSingleTupleTableSlot(slot);
	ExecDropSingleTupleTableSlot(doubt);
	list_free(tuples);
	outbox_table_close(&doubts);
}

/* ---------------------------------------------------------------------- */
/* Enqueueing                                                             */
/* ---------------------------------------------------------------------- */

/*
 * Look at the end of the line.  False if another transaction, *inserter, has
 * enqueued there and not yet ended.
 */
static bool
look_at_tail(OutboxStreamScan *scan, TupleTableSlot *slot,
			 OutboxStreamTurn *turn, TransactionId *inserter)
{
	TransactionId writer;
	TransactionId own;

	turn->place = OUTBOX_PLACE_READY;
	turn->writer = InvalidTransactionId;
	turn->own_tail = false;
	turn->tail_seq = 0;
	outbox_stream_seek_before(scan, &turn->stream, PG_INT64_MAX);
	while (outbox_stream_next(scan, slot, &writer))
	{
		LineState	state = line_state(scan, slot);
		int64		seq = row_seq(slot);

		if (turn->tail_seq != 0 && seq != turn->tail_seq)
			break;
		turn->tail_seq = seq;
		if (state == LINE_ARRIVING)
		{
			*inserter = writer;
			return false;
		}
		if (state == LINE_CHANGING)
		{
			/* there may be another version of this row: look on */
			turn->place = OUTBOX_PLACE_PARKED;
			turn->writer = writer;
			continue;
		}
		if (state == LINE_LEASED)
		{
			turn->place = OUTBOX_PLACE_OWNER;
			turn->owner = row_owner(slot);
		}
		else
			turn->place = OUTBOX_PLACE_PARKED;
		turn->own_tail = outbox_row_is_own(slot, &own);
		break;
	}
	return true;
}

/*
 * Wait for this transaction's turn to enqueue in a stream, and find out where
 * the message must lie.  What is inserted before outbox_stream_turn_end keeps
 * the turn until the end of the transaction.  True if we had to wait.
 */
bool
outbox_stream_turn_begin(OutboxTable *queue, const pg_uuid_t *stream,
						 OutboxStreamTurn *turn)
{
	Oid			relid = RelationGetRelid(queue->rel);
	uint32		hash = outbox_uuid_hash(stream);
	TupleTableSlot *slot = outbox_table_slot(queue);
	bool		waited = false;

	turn->stream = *stream;
	for (;;)
	{
		OutboxStreamScan scan;
		TransactionId inserter;
		bool		ours;

		CHECK_FOR_INTERRUPTS();
		outbox_keylock_acquire(relid, hash);
		outbox_stream_scan_begin(&scan, queue);
		ours = look_at_tail(&scan, slot, turn, &inserter);
		outbox_stream_scan_end(&scan);
		ExecClearTuple(slot);
		if (ours)
			break;
		outbox_keylock_release(relid, hash);
		outbox_xact_wait(inserter);
		waited = true;
	}
	ExecDropSingleTupleTableSlot(slot);
	return waited;
}

/*
 * Does the end of the line still look as it did when the turn began?  *writer
 * is who may be changing it.
 */
static bool
tail_unchanged(OutboxTable *queue, const OutboxStreamTurn *turn,
			   TransactionId *writer)
{
	TupleTableSlot *slot = outbox_table_slot(queue);
	OutboxStreamScan scan;
	bool		unchanged = false;

	*writer = InvalidTransactionId;
	outbox_stream_scan_begin(&scan, queue);
	outbox_stream_seek_before(&scan, &turn->stream, turn->tail_seq + 1);
	if (outbox_stream_next(&scan, slot, writer) &&
		row_seq(slot) == turn->tail_seq)
	{
		LineState	state = line_state(&scan, slot);

		if (turn->place == OUTBOX_PLACE_PARKED)
			unchanged = state == LINE_WAITING;
		else if (state == LINE_LEASED)
		{
			pg_uuid_t	owner = row_owner(slot);

			unchanged = outbox_uuid_equal(&owner, &turn->owner);
		}
	}
	outbox_stream_scan_end(&scan);
	ExecDropSingleTupleTableSlot(slot);
	return unchanged;
}

/*
 * The messages are in.  Make sure that what we have built on still stands: it
 * does if there was nothing before us, or a message of our own.
 */
void
outbox_stream_turn_end(OutboxTable *queue, const OutboxStreamTurn *turn)
{
	TransactionId writer = turn->writer;

	if (TransactionIdIsValid(writer) ||
		(turn->place != OUTBOX_PLACE_READY && !turn->own_tail &&
		 !tail_unchanged(queue, turn, &writer)))
		leave_doubt(queue, &turn->stream, writer);
	outbox_keylock_release(RelationGetRelid(queue->rel),
						   outbox_uuid_hash(&turn->stream));
}

/*
 * The message will be inserted by somebody else, after our return.  Nobody
 * will look whether things have changed meanwhile, so have it looked at later
 * in any case; and keep the bucket, because there is no row yet to stand for
 * our turn.
 */
void
outbox_stream_turn_keep(OutboxTable *queue, OutboxStreamTurn *turn)
{
	if (turn->place == OUTBOX_PLACE_READY)
		return;
	turn->place = OUTBOX_PLACE_PARKED;
	leave_doubt(queue, &turn->stream, turn->writer);
}

/* ---------------------------------------------------------------------- */
/* Claiming                                                               */
/* ---------------------------------------------------------------------- */

/*
 * May this message be handed to this owner now?  Only if everything before it
 * in its stream is his, with time left.
 */
OutboxStreamVerdict
outbox_stream_check(OutboxStreamScan *scan, TupleTableSlot *message,
					TupleTableSlot *scratch, const pg_uuid_t *owner,
					TimestampTz now, TransactionId *writer)
{
	pg_uuid_t	stream = *DatumGetUUIDP(outbox_row_get(message, Q_STREAM_ID));
	int64		last_seq = row_seq(message);
	OutboxStreamVerdict verdict = OUTBOX_STREAM_CLEAR;

	outbox_stream_seek_before(scan, &stream, last_seq);
	while (verdict == OUTBOX_STREAM_CLEAR &&
		   outbox_stream_next(scan, scratch, writer))
	{
		LineState	state = line_state(scan, scratch);
		pg_uuid_t	holder;

		if (state == LINE_LEASED)
			holder = row_owner(scratch);
		if (state == LINE_CHANGING || state == LINE_ARRIVING)
			verdict = OUTBOX_STREAM_DOUBT;
		else if (state == LINE_WAITING || !outbox_uuid_equal(&holder, owner) ||
				 DatumGetTimestampTz(outbox_row_get(scratch,
													Q_LOCKED_UNTIL)) <= now)
			verdict = OUTBOX_STREAM_BLOCKED;
	}
	ExecClearTuple(scratch);
	return verdict;
}
