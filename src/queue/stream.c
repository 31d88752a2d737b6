/*
 * stream.c
 *	  Messages that must be delivered one after the other.
 *
 * The unfinished messages of a stream have places in it, in the order in which
 * their transactions committed.  They lie in the lanes of their topics like any
 * others; the stream is not recorded anywhere but in the messages.  The first
 * ones may be leased, all by one owner; the others wait.
 *
 * A claim that comes by a message of a stream looks at what is before it
 * (outbox_stream_look_before).  If nothing is, or only leases of its own, it may
 * take the message.  If another transaction may change the answer, the message
 * is visited again when that has ended.  Otherwise it passes the message, and
 * whatever changes the answer reports the message:
 *
 *	- When a message has ended, whoever ends it reports the next one of the
 *	  stream (outbox_stream_ended).
 *	- A message that is behind leases can be claimed by their owner.  The claim
 *	  that passes it, or that has taken the one before it, records it for that
 *	  owner.
 *
 * So nothing has to be put in its place again when a stream moves on, and
 * nothing is waited for.  Of a message that a scan passed, the one before it was
 * unfinished, and not being changed, when the scan looked.  Whoever ends that one
 * later sees the message, and reports it after the commit; whoever is ending it
 * at that moment is seen by the scan.
 *
 * A lease is void when a message before it in the stream goes back, by nack,
 * release or the end of its lease: what comes behind must not be finished before
 * it.  Whoever takes the message back takes the leases behind it away
 * (outbox_stream_revoke_all), unless they are locked.  Nothing relies on that.  A
 * call that settles a lease looks whether all that is before it, if anything, is
 * leased to the same owner (outbox_stream_lease_stands); and a claim that takes a
 * message again takes the leases behind it away, or, if one of them is just being
 * settled, does not take the message.
 *
 * The order is that in which transactions commit, because whoever enqueues in a
 * stream waits until the transaction that did so last has ended, and only then
 * takes a place behind its messages.  The uncommitted message is the lock, and a
 * short lock on the stream (keylock.c) keeps two from looking at the same moment.
 *
 * Walks are short, whatever was finished before: stream_cursor.c.
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
#include "util/grow.h"
#include "util/hash.h"
#include "util/uuid.h"

/* What one row of the stream is, to whoever looks at it. */
typedef enum LineState
{
	LINE_WAITING,
	LINE_LEASED,
	LINE_CHANGING,				/* another transaction changes or removes it */
	LINE_ARRIVING				/* another transaction has inserted it */
} LineState;

/* So many entries of what is gone are worth remembering that they can be passed. */
#ifdef OUTBOX_TINY
#define GAP_WORTH 1
#else
#define GAP_WORTH 16
#endif

/* Whether a walk has to know of a row. */
typedef bool (*RowTest) (TupleTableSlot *row, void *arg);

/* ---------------------------------------------------------------------- */
/* Walking                                                                */
/* ---------------------------------------------------------------------- */

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
 * Prepare to walk the places from "from" on and before "before", but for those in
 * the gap.
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

/* Go on to the next row, in any version that is not gone for good. */
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

/* The first row that is there, of those that the walk comes by. */
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
 * A row that is moved in its lane while a dirty snapshot is used can escape it: the
 * old version was gone already, and the index entry of the new one was not yet
 * there when that page was read.  So where a walk has seen that something was gone,
 * a snapshot tells whether it has missed a row that is of interest; without a test,
 * any is.
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
	/* what this call has removed is gone */
	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	scan->scan->xs_snapshot = snapshot;
	seek(scan, stream, low, seq, BackwardScanDirection, gap);
	while (!escaped && next_row(scan))
		escaped = is_of_interest == NULL || is_of_interest(scan->slot, arg);
	ExecClearTuple(scan->slot);
	/* before the snapshot goes, the scan must be off its page */
	scan->scan->xs_snapshot = &scan->snapshot;
	seek(scan, stream, low, seq, BackwardScanDirection, gap);
	UnregisterSnapshot(snapshot);
	scan->ngone = ngone;
	return escaped;
}

/*
 * A walk back from a place has passed many entries that are gone before it came to
 * a row: if none between has escaped, others can leap over them.
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

/* The stream of a message, and its place there; false if it has none. */
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
 * Look at the last places that were given out, back to "low".  False if a message
 * there was inserted by a transaction, *inserter, that has not ended.
 *
 * What was inserted before a message that is there had been committed when that one
 * was inserted.  So one such message is enough to know; but not its new version,
 * which its own transaction may have made of it, and behind which the old one is
 * still found.
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
 * Wait for this transaction's turn to enqueue in a stream.  The stream is locked
 * until outbox_stream_turn_end; what is inserted before that keeps the turn until
 * the end of the transaction.
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
	/* all that was there is gone, so that nobody needs to look again */
	if (turn->is_empty && !turn->is_new && !outbox_lane_has_moved(relid))
		outbox_stream_cursor_raise(relid, stream, &ticket, turn->last_seq);
}

/* The next place in the stream, for the message with this id. */
int64
outbox_stream_turn_next(OutboxStreamTurn *turn, int64 id)
{
	turn->last_seq = Max(id, turn->last_seq == PG_INT64_MIN ? id :
						 turn->last_seq + 1);
	return turn->last_seq;
}

/* The messages are in the index. */
void
outbox_stream_turn_end(OutboxTable *queue, const OutboxStreamTurn *turn)
{
	Oid			relid = RelationGetRelid(queue->rel);

	/* all that is known of its places may be out of date */
	if (turn->is_new)
		outbox_stream_cursor_forget(relid, &turn->stream);
	outbox_keylock_release_long(relid, outbox_uuid_hash64(&turn->stream));
}

/* ---------------------------------------------------------------------- */
/* Claiming                                                               */
/* ---------------------------------------------------------------------- */

/* Who wants to claim, and when. */
typedef struct Claimant
{
	const pg_uuid_t *owner;
	TimestampTz now;
} Claimant;

/* Is this row anything but a lease of the claimant with time left? */
static bool
row_is_not_held(TupleTableSlot *slot, void *arg)
{
	const Claimant *claimant = arg;

	return !row_is_leased_to(slot, claimant->owner) ||
		DatumGetTimestampTz(outbox_row_get(slot, Q_LOCKED_UNTIL)) <= claimant->now;
}

/* Walk back from a message; what decides is the nearest that is not ours. */
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
 * May this message be claimed by this owner now?  Only if everything before it in
 * its stream is leased to that owner, with time left.  held_to: up to there that is known
 * already.
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
 * Find the next row of a stream after a place; it is in scan->slot.  *writer is
 * the transaction that has inserted it, or is changing it.
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
 * Can a message that was handed out before be handed out again?  Not while a lease
 * behind it is being settled.
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

		/* the version that an uncommitted one replaces is there as well */
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
 * Take away the leases behind a place in a stream: the message there was handed
 * out again, and those must not be finished before it.  The attempts that were
 * cut short do not count.
 */
void
outbox_stream_revoke_behind(OutboxStreamScan *scan, const pg_uuid_t *stream,
							int64 seq, TimestampTz now)
{
	TupleTableSlot *row = outbox_table_new_row(scan->queue);
	TransactionId writer;

	/* what this call has written may have to be written again */
	CommandCounterIncrement();
	seek_behind(scan, stream, seq);
	while (next_row(scan))
	{
		/* the version that we have just written has an entry, too */
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
		/* if it is being changed after all, whoever does so is told */
		(void) outbox_queue_update(scan->queue, scan->slot, row, false, &writer);
	}
	ExecDropSingleTupleTableSlot(row);
}

/* This message has gone back. */
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

/* Take away the leases behind messages that have gone back. */
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

/* What the walk for outbox_stream_lease_stands has to find out. */
typedef struct LeaseCheck
{
	const pg_uuid_t *owner;
	OutboxStreamTest settled;
	void	   *arg;
	bool		first;			/* nothing is before the message */
} LeaseCheck;

/* Does this row stand in the way of what is behind it? */
static bool
row_is_in_the_way(TupleTableSlot *slot, void *arg)
{
	const LeaseCheck *check = arg;

	return !row_is_leased_to(slot, check->owner) &&
		!check->settled(DatumGetInt64(outbox_row_get(slot, Q_ID)), check->arg);
}

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
		 * uncommitted; of one that is being changed, it matters how it was
		 * before
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
 * Does the lease of this message stand, as far as its stream goes?  Everything
 * before it must be leased to the same owner, with or without time left.
 * checked_to: up to there that is known already.  Messages that the same call
 * settles are passed over.
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
 * A message has ended, and is deleted.  The next one of its stream may be
 * claimable when this transaction has committed.
 */
void
outbox_stream_ended(OutboxStreamScan *scan, TupleTableSlot *message)
{
	Oid			relid = RelationGetRelid(scan->queue->rel);
	pg_uuid_t	stream = *DatumGetUUIDP(outbox_row_get(message, Q_STREAM_ID));
	OutboxPlace place;
	OutboxKey	key;

	seek_behind(scan, &stream, row_seq(message));
	/* if it is leased, its own end will be reported */
	if (!next_row(scan) || line_state(scan) == LINE_LEASED)
		return;
	outbox_queue_place(scan->slot, &place);
	key = outbox_queue_key(scan->slot);
	if (key.at != DT_NOEND)
		outbox_lane_note_new(relid, &place, key, key, 1);
}
