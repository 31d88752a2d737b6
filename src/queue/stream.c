/*
 * stream.c
 *	  Streams: messages that must be delivered in order.
 *
 * The unfinished messages of a stream have places in it, in the order in which
 * their transactions committed.  They are in the lanes of their topics like
 * any other messages; a stream is recorded only in its messages.  The first
 * messages may be leased, all to one owner; the others wait.
 *
 * A claim that reaches a message of a stream checks what is before it in the
 * stream (outbox_stream_look_before).  If that is nothing, or only leases of
 * its own, it may take the message.  If another transaction may change the
 * answer, the message is visited again when that has ended.  Otherwise the
 * claim passes the message, and whatever changes the answer later reports the
 * message:
 *
 *	- When a message ends, the same transaction reports the next one of the
 *	  stream (outbox_stream_ended).
 *	- A message behind leases can be claimed by their owner.  The claim that
 *	  passes it, or that has taken the one before it, records it for that
 *	  owner.
 *
 * So no row has to be updated when a stream moves on, and nothing has to wait.
 * When a scan passes a message, the one before it is unfinished and not being
 * changed.  A transaction that ends that one later sees the message, and
 * reports it after the commit; a transaction that is ending it at that moment
 * is seen by the scan.
 *
 * A lease is void when a message before it in the stream becomes ready again,
 * by nack, release or the end of its lease: later messages must not be
 * finished before it.  The call that does this also revokes the leases behind
 * it (outbox_stream_revoke_all), unless they are locked.  Correctness does not
 * depend on that.  A call that settles a lease checks that everything before
 * it is leased to the same owner (outbox_stream_lease_stands); and a claim
 * that takes a message again revokes the leases behind it, or, if one of them
 * is being settled, does not take the message.
 *
 * The order is that of the commits, because a transaction that enqueues in a
 * stream waits until the last one that did so has ended, and only then takes a
 * place behind its messages.  The uncommitted message serves as the lock, and
 * a short lock on the stream (keylock.c) keeps two transactions from checking
 * for it at the same time.
 *
 * Walks skip what was finished before: see stream_cursor.c.
 */
#include "postgres.h"

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
#include "queue/stream.h"
#include "shmem/lane_xact.h"
#include "shmem/stream_cursor.h"
#include "table/columns.h"
#include "table/keylock.h"
#include "table/probe.h"
#include "table/table.h"
#include "trace.h"
#include "util/grow.h"
#include "util/hash.h"
#include "util/uuid.h"

/* The state of a row of the stream, as a dirty snapshot shows it. */
typedef enum LineState
{
	LINE_WAITING,
	LINE_LEASED,
	LINE_CHANGING,				/* another transaction is changing it */
	LINE_ARRIVING				/* another transaction has inserted it */
} LineState;

/* Minimum number of dead entries worth recording as a gap. */
#ifdef OUTBOX_TINY
#define GAP_WORTH 1
#else
#define GAP_WORTH 16
#endif

/* Returns whether a row matters to a walk. */
typedef bool (*RowTest) (TupleTableSlot *row, void *arg);

/* ---------------------------------------------------------------------- */
/* Walking                                                                */
/* ---------------------------------------------------------------------- */

/* Prepare to walk along streams of a live table, which must be open. */
void
outbox_stream_scan_begin(OutboxStreamScan *scan, OutboxTable *queue)
{
	scan->queue = queue;
	scan->index = index_open(queue->store->stream, AccessShareLock);
	scan->slot = outbox_table_slot(queue);
	InitDirtySnapshot(scan->snapshot);
	scan->scan = outbox_index_beginscan(queue->rel, scan->index,
										&scan->snapshot, 3);
	scan->scan->xs_want_itup = true;
}

/* Release what outbox_stream_scan_begin has opened. */
void
outbox_stream_scan_end(OutboxStreamScan *scan)
{
	index_endscan(scan->scan);
	ExecDropSingleTupleTableSlot(scan->slot);
	index_close(scan->index, AccessShareLock);
}

static void
rescan(OutboxStreamScan *scan, int64 from, int64 before)
{
	ScanKeyInit(&scan->keys[0], 1, BTEqualStrategyNumber, F_UUID_EQ,
				UUIDPGetDatum(&scan->stream));
	ScanKeyInit(&scan->keys[1], 2, BTGreaterEqualStrategyNumber, F_INT8GE,
				Int64GetDatum(from));
	ScanKeyInit(&scan->keys[2], 2, BTLessStrategyNumber, F_INT8LT,
				Int64GetDatum(before));
	index_rescan(scan->scan, scan->keys, 3, NULL, 0);
}

/*
 * Prepare to walk the places from "from" on and before "before", except for
 * those in the gap.
 */
static void
seek(OutboxStreamScan *scan, const pg_uuid_t *stream, int64 from, int64 before,
	 ScanDirection direction, const OutboxStreamGap *gap)
{
	bool		forward = ScanDirectionIsForward(direction);

	scan->stream = *stream;
	scan->direction = direction;
	scan->ngone = 0;
	scan->has_rest = false;
	scan->passed_over = false;
	if (gap->from < gap->to && from < gap->to && before > gap->from + 1)
	{
		if (from <= gap->from && before > gap->to)
		{
			scan->has_rest = true;
			scan->rest_from = forward ? gap->to : from;
			scan->rest_before = forward ? before : gap->from + 1;
		}
		if (from <= gap->from && (forward || before <= gap->to))
			before = gap->from + 1;
		else
			from = gap->to;
	}
	rescan(scan, from, before);
}

/* Go on to the next entry. */
static bool
next_entry(OutboxStreamScan *scan)
{
	CHECK_FOR_INTERRUPTS();
	while (index_getnext_tid(scan->scan, scan->direction) == NULL)
	{
		if (!scan->has_rest)
			return false;
		scan->has_rest = false;
		rescan(scan, scan->rest_from, scan->rest_before);
	}
	scan->scan->xs_heap_continue = false;
	return true;
}

/* Go on to the next row, in any version that is not dead. */
static bool
next_row(OutboxStreamScan *scan)
{
	while (next_entry(scan))
	{
		if (index_fetch_heap(scan->scan, scan->slot))
			return true;
		scan->ngone++;
	}
	return false;
}

/* Prepare to walk what is behind a place in a stream. */
static void
seek_behind(OutboxStreamScan *scan, const pg_uuid_t *stream, int64 seq)
{
	OutboxStreamTicket ticket;

	outbox_stream_cursor_get(RelationGetRelid(scan->queue->rel), stream, &ticket);
	seek(scan, stream, seq + 1, PG_INT64_MAX, ForwardScanDirection, &ticket.gap);
}

/* Note the first row that the walk finds. */
static void
note_first(OutboxStreamScan *scan, int64 seq)
{
	scan->first_seq = seq;
	scan->ngone_first = scan->passed_over ? 0 : scan->ngone;
}

static int64
row_seq(TupleTableSlot *slot)
{
	return DatumGetInt64(outbox_row_get(slot, Q_STREAM_SEQ));
}

static bool
row_is_leased(TupleTableSlot *slot)
{
	return DatumGetInt16(outbox_row_get(slot, Q_STATUS)) == OUTBOX_IN_PROGRESS;
}

static bool
row_is_leased_to(TupleTableSlot *slot, const pg_uuid_t *owner)
{
	return row_is_leased(slot) &&
		outbox_uuid_equal(DatumGetUUIDP(outbox_row_get(slot, Q_OWNER_TOKEN)),
						  owner);
}

static LineState
line_state(OutboxStreamScan *scan)
{
	if (TransactionIdIsValid(scan->snapshot.xmin))
		return outbox_row_is_update(scan->slot) ? LINE_CHANGING : LINE_ARRIVING;
	if (TransactionIdIsValid(scan->snapshot.xmax))
		return LINE_CHANGING;
	return row_is_leased(scan->slot) ? LINE_LEASED : LINE_WAITING;
}

/*
 * A scan with a dirty snapshot can miss a row that is being moved in its lane:
 * the old version is gone already, but the index entry of the new one was not
 * there yet when that page was read.  So if a walk has seen dead entries, an
 * MVCC snapshot tells whether it has missed a row that matters; without a
 * test, every row does.
 */
static bool
has_escaped(OutboxStreamScan *scan, const pg_uuid_t *stream, int64 low,
			int64 seq, const OutboxStreamGap *gap, RowTest is_of_interest,
			void *arg)
{
	int			ngone = scan->ngone;
	bool		escaped = false;
	Snapshot	snapshot;

	if (ngone == 0)
		return false;
	/* what this call has removed must be invisible */
	CommandCounterIncrement();
	snapshot = outbox_snapshot_now();
	scan->scan->xs_snapshot = snapshot;
	seek(scan, stream, low, seq, BackwardScanDirection, gap);
	while (!escaped && next_row(scan))
		escaped = is_of_interest == NULL || is_of_interest(scan->slot, arg);
	ExecClearTuple(scan->slot);
	/* the scan must leave its page before the snapshot is released */
	scan->scan->xs_snapshot = &scan->snapshot;
	seek(scan, stream, low, seq, BackwardScanDirection, gap);
	UnregisterSnapshot(snapshot);
	scan->ngone = ngone;
	return escaped;
}

/*
 * A backward walk has passed many dead entries before it found a row: if it
 * has not missed a row among them, record them as a gap that other walks can
 * skip.
 */
static void
learn_gap(OutboxStreamScan *scan, const pg_uuid_t *stream,
		  const OutboxStreamTicket *ticket, int64 before)
{
	Oid			relid = RelationGetRelid(scan->queue->rel);

	if (scan->ngone_first >= GAP_WORTH && !outbox_lane_has_moved(relid) &&
		outbox_stream_cursor_wants(ticket, scan->first_seq) &&
		!has_escaped(scan, stream, scan->first_seq + 1, before, &ticket->gap,
					 NULL, NULL))
		outbox_stream_cursor_widen(relid, stream, ticket, scan->first_seq, before);
}

/* The stream of a message, and its place in it; false if it has none. */
bool
outbox_stream_of(TupleTableSlot *message, pg_uuid_t *stream, int64 *seq)
{
	bool		isnull;
	Datum		value = slot_getattr(message, Q_STREAM_ID, &isnull);

	if (isnull)
		return false;
	*stream = *DatumGetUUIDP(value);
	*seq = row_seq(message);
	return true;
}

/* ---------------------------------------------------------------------- */
/* Enqueueing                                                             */
/* ---------------------------------------------------------------------- */

static int64
entry_seq(OutboxStreamScan *scan)
{
	bool		isnull;

	return DatumGetInt64(index_getattr(scan->scan->xs_itup, 2,
									   RelationGetDescr(scan->index), &isnull));
}

/*
 * Check the last places that were assigned, back to "low".  False if a message
 * there was inserted by a transaction in progress, which is *inserter.
 *
 * Everything before a committed message was committed when that message was
 * inserted.  So finding one such message is enough.  A new version of one is
 * not: the inserting transaction itself may have made it, and the scan finds
 * the old version after it.
 */
static bool
look_at_last(OutboxStreamScan *scan, OutboxStreamTurn *turn,
			 const OutboxStreamTicket *ticket, TransactionId *inserter)
{
	bool		decided = false;

	scan->ngone_first = 0;
	seek(scan, &turn->stream, ticket->low, PG_INT64_MAX, BackwardScanDirection,
		 &ticket->gap);
	while (next_entry(scan))
	{
		int64		seq = entry_seq(scan);

		turn->last_seq = Max(turn->last_seq, seq);
		turn->is_new = false;
		if (decided && seq != scan->first_seq)
			break;
		if (!index_fetch_heap(scan->scan, scan->slot))
		{
			scan->ngone++;
			continue;
		}
		if (line_state(scan) == LINE_ARRIVING)
		{
			*inserter = outbox_row_writer(&scan->snapshot);
			return false;
		}
		if (!decided)
			note_first(scan, seq);
		decided = true;
	}
	turn->is_empty = !decided &&
		!has_escaped(scan, &turn->stream, ticket->low, PG_INT64_MAX, &ticket->gap,
					 NULL, NULL);
	if (decided)
		learn_gap(scan, &turn->stream, ticket, turn->last_seq + 1);
	return true;
}

/*
 * Wait for this transaction's turn to enqueue in a stream.  The stream stays
 * locked until outbox_stream_turn_end; the messages inserted before that hold
 * the turn until the end of the transaction.
 */
void
outbox_stream_turn_begin(OutboxTable *queue, const pg_uuid_t *stream,
						 OutboxStreamTurn *turn)
{
	Oid			relid = RelationGetRelid(queue->rel);
	OutboxStreamTicket ticket;

	turn->stream = *stream;
	turn->waited = false;
	for (;;)
	{
		OutboxStreamScan scan;
		TransactionId inserter;
		bool		ours;

		CHECK_FOR_INTERRUPTS();
		outbox_keylock_acquire_long(relid, outbox_uuid_hash64(stream));
		outbox_stream_cursor_get(relid, stream, &ticket);
		turn->last_seq = ticket.low;
		turn->is_new = ticket.low == PG_INT64_MIN;
		if (ticket.gap.from < ticket.gap.to)
			turn->last_seq = Max(turn->last_seq, ticket.gap.to - 1);
		turn->is_empty = false;
		outbox_stream_scan_begin(&scan, queue);
		ours = look_at_last(&scan, turn, &ticket, &inserter);
		outbox_stream_scan_end(&scan);
		if (ours)
			break;
		outbox_keylock_release_long(relid, outbox_uuid_hash64(stream));
		outbox_xact_wait(inserter);
		turn->waited = true;
	}
	/* all places up to the last one are dead: record that for other walks */
	if (turn->is_empty && !turn->is_new && !outbox_lane_has_moved(relid))
		outbox_stream_cursor_raise(relid, stream, &ticket, turn->last_seq);
}

/*
 * The transaction in progress that has enqueued in a stream; invalid if there
 * is none.  Does not take the turn.
 */
TransactionId
outbox_stream_last_writer(OutboxTable *queue, const pg_uuid_t *stream)
{
	OutboxStreamTurn turn = {.stream = *stream};
	OutboxStreamTicket ticket;
	OutboxStreamScan scan;
	TransactionId inserter = InvalidTransactionId;

	outbox_stream_cursor_get(RelationGetRelid(queue->rel), stream, &ticket);
	outbox_stream_scan_begin(&scan, queue);
	(void) look_at_last(&scan, &turn, &ticket, &inserter);
	outbox_stream_scan_end(&scan);
	return inserter;
}

/* Assign the next place in the stream, for the message with this id. */
int64
outbox_stream_turn_next(OutboxStreamTurn *turn, int64 id)
{
	turn->last_seq = Max(id, turn->last_seq == PG_INT64_MIN ? id :
						 turn->last_seq + 1);
	return turn->last_seq;
}

/* End the turn's lock, when the messages have been inserted. */
void
outbox_stream_turn_end(OutboxTable *queue, const OutboxStreamTurn *turn)
{
	Oid			relid = RelationGetRelid(queue->rel);

	/* what is recorded of its places may be out of date */
	if (turn->is_new)
		outbox_stream_cursor_forget(relid, &turn->stream);
	outbox_keylock_release_long(relid, outbox_uuid_hash64(&turn->stream));
}

/* ---------------------------------------------------------------------- */
/* Claiming                                                               */
/* ---------------------------------------------------------------------- */

/* The claiming owner, and the time. */
typedef struct Claimant
{
	const pg_uuid_t *owner;
	TimestampTz now;
} Claimant;

/* Is this row anything other than a valid lease of the claimant? */
static bool
row_is_not_held(TupleTableSlot *slot, void *arg)
{
	const Claimant *claimant = arg;

	return !row_is_leased_to(slot, claimant->owner) ||
		DatumGetTimestampTz(outbox_row_get(slot, Q_LOCKED_UNTIL)) <= claimant->now;
}

/* Walk back from a message; the nearest row that is not ours decides. */
static void
walk_before(OutboxStreamScan *scan, const pg_uuid_t *stream, int64 low,
			int64 seq, const OutboxStreamGap *gap, Claimant *claimant,
			OutboxStreamView *view)
{
	view->verdict = OUTBOX_STREAM_CLEAR;
	view->first = true;
	scan->ngone_first = 0;
	seek(scan, stream, low, seq, BackwardScanDirection, gap);
	while (next_row(scan))
	{
		LineState	state = line_state(scan);

		if (view->first)
			note_first(scan, row_seq(scan->slot));
		view->first = false;
		if (state == LINE_LEASED && !row_is_not_held(scan->slot, claimant))
			continue;
		if (state == LINE_CHANGING || state == LINE_ARRIVING)
		{
			view->verdict = OUTBOX_STREAM_UNDECIDED;
			view->writer = outbox_row_writer(&scan->snapshot);
		}
		else if (state == LINE_LEASED)
		{
			view->verdict = OUTBOX_STREAM_HELD;
			view->holder = *DatumGetUUIDP(outbox_row_get(scan->slot,
														 Q_OWNER_TOKEN));
		}
		else
			view->verdict = OUTBOX_STREAM_BLOCKED;
		return;
	}
}

/*
 * May this message be claimed by this owner now?  Only if everything before it
 * in its stream is leased to that owner, and no such lease has ended.  That is
 * already known for places up to held_to.
 */
void
outbox_stream_look_before(OutboxStreamScan *scan, TupleTableSlot *message,
						  const pg_uuid_t *owner, int64 held_to,
						  TimestampTz now, OutboxStreamView *view)
{
	Oid			relid = RelationGetRelid(scan->queue->rel);
	pg_uuid_t	stream = *DatumGetUUIDP(outbox_row_get(message, Q_STREAM_ID));
	int64		seq = row_seq(message);
	Claimant	claimant = {.owner = owner,.now = now};
	OutboxStreamTicket ticket;
	int64		low;

	outbox_stream_cursor_get(relid, &stream, &ticket);
	low = Max(ticket.low, held_to != PG_INT64_MIN ? held_to + 1 : PG_INT64_MIN);
	do
	{
		CHECK_FOR_INTERRUPTS();
		walk_before(scan, &stream, low, seq, &ticket.gap, &claimant, view);
	} while (view->verdict == OUTBOX_STREAM_CLEAR &&
			 has_escaped(scan, &stream, low, seq, &ticket.gap, row_is_not_held,
						 &claimant));
	if (!view->first)
		learn_gap(scan, &stream, &ticket, seq);

	if (view->verdict == OUTBOX_STREAM_CLEAR && view->first &&
		scan->ngone > 0 && held_to == PG_INT64_MIN &&
		!outbox_lane_has_moved(relid))
		outbox_stream_cursor_raise(relid, &stream, &ticket, seq);
	if (held_to != PG_INT64_MIN)
		view->first = false;
}

/*
 * Fetch the next row of a stream after a place into scan->slot; false if there
 * is none.  *writer is set to the transaction in progress that has inserted
 * it, or is changing it.
 */
bool
outbox_stream_look_behind(OutboxStreamScan *scan, const pg_uuid_t *stream,
						  int64 seq, TransactionId *writer)
{
	seek_behind(scan, stream, seq);
	if (!next_row(scan))
		return false;
	*writer = outbox_row_writer(&scan->snapshot);
	return true;
}

/*
 * Can a message that was handed out before be handed out again?  It cannot
 * while a lease behind it is being settled.
 */
bool
outbox_stream_is_free_behind(OutboxStreamScan *scan, TupleTableSlot *message,
							 TransactionId *writer)
{
	pg_uuid_t	stream = *DatumGetUUIDP(outbox_row_get(message, Q_STREAM_ID));

	seek_behind(scan, &stream, row_seq(message));
	while (next_row(scan))
	{
		LineState	state = line_state(scan);

		/* the old version of an uncommitted row is found as well */
		if (TransactionIdIsValid(scan->snapshot.xmin) && state == LINE_CHANGING)
			continue;
		if (state == LINE_CHANGING && row_is_leased(scan->slot))
		{
			*writer = outbox_row_writer(&scan->snapshot);
			return false;
		}
		if (state != LINE_LEASED)
			break;
	}
	return true;
}

/*
 * Revoke the leases behind a place in a stream: the message there was handed
 * out again, and those behind it must not be finished before it.  The attempts
 * that end this way do not count.
 */
void
outbox_stream_revoke_behind(OutboxStreamScan *scan, const pg_uuid_t *stream,
							int64 seq, TimestampTz now)
{
	TupleTableSlot *row = outbox_table_new_row(scan->queue);
	TransactionId writer;

	/* rows written by this call may have to be updated again */
	CommandCounterIncrement();
	seek_behind(scan, stream, seq);
	while (next_row(scan))
	{
		/* the version just written has an index entry, too */
		if (row_seq(scan->slot) == seq)
			continue;
		if (line_state(scan) != LINE_LEASED)
			break;
		seq = row_seq(scan->slot);
		outbox_queue_make_ready(row, scan->slot,
								DatumGetTimestampTz(outbox_row_get(scan->slot,
																   Q_NEXT_ATTEMPT_AT)),
								now);
		outbox_row_set(row, Q_WAIVED,
					   Int32GetDatum(DatumGetInt32(outbox_row_get(scan->slot,
																  Q_WAIVED)) + 1));

		/*
		 * if it is being changed concurrently, that call detects the void
		 * lease
		 */
		(void) outbox_queue_update(scan->queue, scan->slot, row, false, &writer);
		OUTBOX_TRACE_EVENT("row.revoke", DatumGetInt64(outbox_row_get(row, Q_ID)));
	}
	ExecDropSingleTupleTableSlot(row);
}

/* Remember a message of a stream that has become ready again. */
void
outbox_stream_gone_back(OutboxGoneBack *list, TupleTableSlot *message)
{
	pg_uuid_t	stream;
	int64		seq;

	if (!outbox_stream_of(message, &stream, &seq))
		return;
	outbox_grow(list->places, list->n, list->max);
	list->places[list->n].stream = stream;
	list->places[list->n++].seq = seq;
}

/* Revoke the leases behind the messages that have become ready again. */
void
outbox_stream_revoke_all(OutboxTable *queue, OutboxGoneBack *list,
						 TimestampTz now)
{
	OutboxStreamScan scan;

	if (list->n == 0)
		return;
	outbox_stream_scan_begin(&scan, queue);
	for (int i = 0; i < list->n; i++)
		outbox_stream_revoke_behind(&scan, &list->places[i].stream,
									list->places[i].seq, now);
	outbox_stream_scan_end(&scan);
}

/* ---------------------------------------------------------------------- */
/* Settling                                                               */
/* ---------------------------------------------------------------------- */

/* State of outbox_stream_lease_stands. */
typedef struct LeaseCheck
{
	const pg_uuid_t *owner;
	OutboxStreamTest settled;
	void	   *arg;
	bool		first;			/* no message is before it */
} LeaseCheck;

/* Does this row make the leases behind it void? */
static bool
row_is_in_the_way(TupleTableSlot *slot, void *arg)
{
	const LeaseCheck *check = arg;

	return !row_is_leased_to(slot, check->owner) &&
		!check->settled(DatumGetInt64(outbox_row_get(slot, Q_ID)), check->arg);
}

/*
 * Walk back from a place: is every row before it leased to the owner, or
 * settled by the same call?  Sets check->first.
 */
static bool
all_before_is_held(OutboxStreamScan *scan, const pg_uuid_t *stream, int64 low,
				   int64 seq, const OutboxStreamGap *gap, LeaseCheck *check)
{
	check->first = true;
	scan->ngone_first = 0;
	seek(scan, stream, low, seq, BackwardScanDirection, gap);
	while (next_row(scan))
	{
		/*
		 * uncommitted; if the row is being changed, its old version counts
		 */
		if (TransactionIdIsValid(scan->snapshot.xmin))
		{
			scan->passed_over = true;
			continue;
		}
		if (check->first)
			note_first(scan, row_seq(scan->slot));
		check->first = false;
		if (row_is_in_the_way(scan->slot, check))
			return false;
	}
	return true;
}

/*
 * Does the lease of this message stand as far as its stream is concerned?
 * Everything before it must be leased to the same owner, even if these leases
 * have ended.  That is already known for places up to checked_to.  Messages
 * that the same call settles are ignored.
 */
bool
outbox_stream_lease_stands(OutboxStreamScan *scan, TupleTableSlot *message,
						   const pg_uuid_t *owner, int64 checked_to,
						   OutboxStreamTest settled, void *arg)
{
	Oid			relid = RelationGetRelid(scan->queue->rel);
	pg_uuid_t	stream = *DatumGetUUIDP(outbox_row_get(message, Q_STREAM_ID));
	int64		seq = row_seq(message);
	LeaseCheck	check = {.owner = owner,.settled = settled,.arg = arg};
	OutboxStreamTicket ticket;
	int64		low;

	outbox_stream_cursor_get(relid, &stream, &ticket);
	low = Max(ticket.low, checked_to != PG_INT64_MIN ? checked_to + 1 : PG_INT64_MIN);
	do
	{
		CHECK_FOR_INTERRUPTS();
		if (!all_before_is_held(scan, &stream, low, seq, &ticket.gap, &check))
			return false;
	} while (has_escaped(scan, &stream, low, seq, &ticket.gap, row_is_in_the_way,
						 &check));
	if (!check.first)
		learn_gap(scan, &stream, &ticket, seq);
	if (check.first && checked_to == PG_INT64_MIN && scan->ngone > 0)
		outbox_stream_cursor_note(relid, &stream, &ticket, seq);
	return true;
}

/*
 * A message has ended, and is deleted: report the next one of its stream,
 * which may be claimable when this transaction has committed.
 */
void
outbox_stream_ended(OutboxStreamScan *scan, TupleTableSlot *message)
{
	Oid			relid = RelationGetRelid(scan->queue->rel);
	pg_uuid_t	stream = *DatumGetUUIDP(outbox_row_get(message, Q_STREAM_ID));
	OutboxPlace place;
	OutboxReadyKey key;

	seek_behind(scan, &stream, row_seq(message));
	/* if it is leased, its own end will be reported */
	if (!next_row(scan) || line_state(scan) == LINE_LEASED)
		return;
	outbox_queue_place(scan->slot, &place);
	key = outbox_queue_ready_key(scan->slot);
	if (key.at != DT_NOEND)
		outbox_lane_note_new(relid, &place, key, key, 1);
}
