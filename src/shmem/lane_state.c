/*
 * lane_state.c
 *	  The state of a lane: its cursor and its marks.
 *
 * The functions here keep the invariant that lane.c describes.  A scan records
 * what it has left undecided by outbox_lane_record() only; what has been
 * recorded is kept until a scan has visited it.  If there is no memory for it,
 * it is merged with something else, or the cursor is lowered, so that more is
 * visited than necessary, but never less.
 *
 * A lane has two lists of marks.  Marks that are due must be visited, the
 * first in the list first.  There can be any number of them: each message of a
 * stream that can be claimed because the one before it has ended, but that a
 * scan has passed, is one.  Pending marks wait for the end of a transaction,
 * or of a lease.  If there are more than OUTBOX_MAX_PENDING, they are merged.
 *
 * The caller must hold the lock of the lane's store, exclusively to change
 * anything.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "outbox.h"
#include "shmem/lane_memory.h"
#include "shmem/lane_state.h"
#include "trace.h"

/* Marks of one kind this close to each other become one. */
#define NEAR_IDS 64
#define NEAR_USECS 5000

/* ---------------------------------------------------------------------- */
/* Lists                                                                  */
/* ---------------------------------------------------------------------- */

/* Note that what is due may include a lease that ends at this time. */
static void
note_lease_end(OutboxLane *lane, TimestampTz at)
{
	if (at != DT_NOBEGIN)
		lane->ended_at = Min(lane->ended_at, at);
}

static void
append_due(OutboxLane *lane, int cell)
{
	OutboxMark *mark = outbox_mark_at(cell);

	if (lane->due_first == OUTBOX_NIL)
		lane->ended_at = DT_NOEND;
	note_lease_end(lane, mark->at);
	mark->due = true;
	mark->next = OUTBOX_NIL;
	mark->prev = lane->due_last;
	if (lane->due_last != OUTBOX_NIL)
		outbox_mark_at(lane->due_last)->next = cell;
	else
		lane->due_first = cell;
	lane->due_last = cell;
	lane->nduemarks++;
}

static void
push_pending(OutboxLane *lane, int cell)
{
	OutboxMark *mark = outbox_mark_at(cell);

	mark->due = false;
	mark->prev = OUTBOX_NIL;
	mark->next = lane->pending_first;
	if (lane->pending_first != OUTBOX_NIL)
		outbox_mark_at(lane->pending_first)->prev = cell;
	lane->pending_first = cell;
	lane->npending++;
}

/* Remove a mark from its list. */
static void
unlink_mark(OutboxLane *lane, int cell)
{
	const OutboxMark *mark = outbox_mark_at(cell);

	if (mark->next != OUTBOX_NIL)
		outbox_mark_at(mark->next)->prev = mark->prev;
	else if (mark->due)
		lane->due_last = mark->prev;
	if (mark->prev != OUTBOX_NIL)
		outbox_mark_at(mark->prev)->next = mark->next;
	else if (mark->due)
		lane->due_first = mark->next;
	else
		lane->pending_first = mark->next;
	if (mark->due)
		lane->nduemarks--;
	else
		lane->npending--;
}

static void
remove_mark(OutboxLane *lane, int cell)
{
	unlink_mark(lane, cell);
	outbox_cell_free(cell);
}

/* ---------------------------------------------------------------------- */
/* A lane as a whole                                                      */
/* ---------------------------------------------------------------------- */

/* Remove all marks of a lane. */
void
outbox_lane_forget_marks(OutboxLane *lane)
{
	while (lane->due_first != OUTBOX_NIL)
		remove_mark(lane, lane->due_first);
	while (lane->pending_first != OUTBOX_NIL)
		remove_mark(lane, lane->pending_first);
}

/* Has the lane no marks at all? */
bool
outbox_lane_has_no_marks(const OutboxLane *lane)
{
	return lane->due_first == OUTBOX_NIL && lane->pending_first == OUTBOX_NIL;
}

/* Is the lane empty, so that it can be evicted without loss? */
bool
outbox_lane_is_quiet(const OutboxLane *lane)
{
	return lane->next_due == PG_INT64_MAX && lane->leases_known &&
		!lane->called && outbox_lane_has_no_marks(lane) &&
		lane->nscans[0] == 0 && lane->nscans[1] == 0 && lane->nparts == 0 &&
		lane->nduties == 0;
}

/* Is it a part of a lane in which there is nothing left to do? */
bool
outbox_lane_is_done_part(const OutboxLane *lane)
{
	return lane->token != 0 && outbox_lane_has_no_marks(lane) && lane->nduties == 0;
}

/*
 * Call a lane: a transaction that decides about some of its messages has
 * ended.
 */
void
outbox_lane_call(OutboxLane *lane)
{
	lane->called = lane->called_to_reap = true;
}

/* Is there something in the lane that a claim must visit now? */
bool
outbox_lane_is_visitable(const OutboxLane *lane, TimestampTz now)
{
	return lane->due_first != OUTBOX_NIL || lane->called ||
		lane->next_due <= now || lane->nparts > 0;
}

/*
 * The next time when something becomes due without a report.  *lease is set to
 * when the first lease ends, which may be in the past.
 */
TimestampTz
outbox_lane_next_time(const OutboxLane *lane, TimestampTz *lease)
{
	TimestampTz next = Min(lane->next_due, lane->recheck_at);

	/* if not all leases are known, one may have ended */
	*lease = !lane->leases_known || lane->called_to_reap ? DT_NOBEGIN :
		lane->due_first != OUTBOX_NIL ? lane->ended_at : DT_NOEND;
	for (int cell = lane->pending_first; cell != OUTBOX_NIL;
		 cell = outbox_mark_at(cell)->next)
	{
		const OutboxMark *mark = outbox_mark_at(cell);

		if (FullTransactionIdIsValid(mark->xid))
			continue;
		next = Min(next, mark->at);
		*lease = Min(*lease, mark->at);
	}
	return next;
}

/* No message that can be claimed now has a smaller key. */
OutboxReadyKey
outbox_lane_first_key(const OutboxLane *lane, TimestampTz now)
{
	OutboxReadyKey first = OUTBOX_READY_KEY_MAX;
	int			looked_at = 0;

	if (lane->called || lane->nparts > 0)
		return OUTBOX_READY_KEY_MIN;
	if (lane->next_due <= now)
		first = outbox_ready_key_max(lane->cursor,
									 OUTBOX_MAKE(OutboxReadyKey, lane->next_due, PG_INT64_MIN));
	for (int cell = lane->due_first; cell != OUTBOX_NIL;
		 cell = outbox_mark_at(cell)->next)
	{
		if (++looked_at > OUTBOX_MAX_PENDING)
			return OUTBOX_READY_KEY_MIN;
		first = outbox_ready_key_min(first, outbox_mark_at(cell)->lo);
	}
	/* while something is due, there is no timer for leases that end */
	for (int cell = lane->pending_first; cell != OUTBOX_NIL;
		 cell = outbox_mark_at(cell)->next)
	{
		const OutboxMark *mark = outbox_mark_at(cell);

		if (!FullTransactionIdIsValid(mark->xid) && mark->at <= now)
			first = outbox_ready_key_min(first, mark->lo);
	}
	return first;
}

/* ---------------------------------------------------------------------- */
/* The cursor                                                             */
/* ---------------------------------------------------------------------- */

/* Keep scans in progress from raising the cursor beyond this key. */
static void
lower_watches(OutboxLane *lane, OutboxReadyKey key)
{
	for (int i = 0; i < lengthof(lane->low); i++)
	{
		if (lane->nscans[i] > 0)
			lane->low[i] = outbox_ready_key_min(lane->low[i], key);
	}
}

/* Note that there may be something new from this key on. */
static void
report_key(OutboxLane *lane, OutboxReadyKey key)
{
	lower_watches(lane, key);
	lane->next_due = Min(lane->next_due, key.at);
}

/* Lower the cursor to this key, if it is above it. */
static void
lower_cursor(OutboxLane *lane, OutboxReadyKey key)
{
	report_key(lane, key);
	lane->cursor = outbox_ready_key_min(lane->cursor, key);
}

/*
 * Raise the cursor to "key", after a scan has visited everything below it and
 * has recorded what must be visited again.  Nothing from there on is due
 * before next_due.
 */
void
outbox_lane_raise_cursor(OutboxLane *lane, OutboxReadyKey key, TimestampTz next_due)
{
	Assert(!outbox_ready_key_lt(key, lane->cursor));
	lane->cursor = key;
	lane->next_due = next_due;
}

/*
 * A scan begins: track the smallest key reported from now on.  All scans share
 * two such watches: one is for those that began before the other was last
 * cleared, so neither stays low for longer than two scans take.  Returns which
 * one it is.
 */
int
outbox_lane_watch(OutboxLane *lane)
{
	int			other = 1 - lane->phase;

	if (lane->nscans[other] == 0)
	{
		lane->phase = other;
		lane->low[other] = OUTBOX_READY_KEY_MAX;
	}
	lane->nscans[lane->phase]++;
	OUTBOX_TRACE_LANE("watch", lane, lane->phase);
	return lane->phase;
}

/* A scan that was given this watch has ended. */
void
outbox_lane_unwatch(OutboxLane *lane, int phase)
{
	Assert(lane->nscans[phase] > 0);
	lane->nscans[phase]--;
	OUTBOX_TRACE_LANE("unwatch", lane, phase);
}

/* ---------------------------------------------------------------------- */
/* The recorder                                                           */
/* ---------------------------------------------------------------------- */

static bool
keys_near(OutboxReadyKey a, OutboxReadyKey b)
{
	OutboxReadyKey lo = outbox_ready_key_min(a, b);
	OutboxReadyKey hi = outbox_ready_key_max(a, b);

	return hi.at - lo.at <= NEAR_USECS &&
		hi.id - lo.id <= NEAR_IDS && lo.id - hi.id <= NEAR_IDS;
}

/* Do a mark and a record overlap, or nearly? */
static bool
ranges_meet(const OutboxMark *mark, const OutboxRecord *record)
{
	if (outbox_ready_key_lt(mark->hi, record->lo))
		return keys_near(mark->hi, record->lo);
	if (outbox_ready_key_lt(record->hi, mark->lo))
		return keys_near(record->hi, mark->lo);
	return true;
}

/* The distance in time between a mark and a record. */
static int64
gap_between(const OutboxMark *mark, const OutboxRecord *record)
{
	return Max(0, Max(record->lo.at - mark->hi.at, mark->lo.at - record->hi.at));
}

/* Extend a mark; copies of it that scans have become incomplete. */
static void
extend_mark(OutboxMark *mark, const OutboxRecord *record)
{
	mark->serial = outbox_mark_serial();
	mark->lo = outbox_ready_key_min(mark->lo, record->lo);
	mark->hi = outbox_ready_key_max(mark->hi, record->hi);
}

/* Do leases end in the same second, of messages close to each other? */
static bool
leases_meet(const OutboxMark *mark, const OutboxRecord *record)
{
	return mark->at / USECS_PER_SEC == record->at / USECS_PER_SEC &&
		gap_between(mark, record) <= USECS_PER_SEC;
}

/* Can the record be added to this pending mark without extra visits? */
static bool
mark_includes(const OutboxMark *mark, const OutboxRecord *record)
{
	if (!FullTransactionIdEquals(mark->xid, record->xid))
		return false;
	if (FullTransactionIdIsValid(record->xid))
		return mark->at == record->at && ranges_meet(mark, record);
	return leases_meet(mark, record);
}

/*
 * There is no room for another pending mark: add the record to the closest
 * one, if possible of its kind.  If their conditions differ, the mark becomes
 * due at once; the ends of its leases are noted as it had them.  False if
 * there is no mark.
 */
static bool
merge_pending(OutboxLane *lane, const OutboxRecord *record)
{
	int			best = OUTBOX_NIL;
	bool		best_alike = false;
	int64		best_gap = PG_INT64_MAX;
	OutboxMark *mark;

	for (int cell = lane->pending_first; cell != OUTBOX_NIL;
		 cell = outbox_mark_at(cell)->next)
	{
		bool		alike;
		int64		gap;

		mark = outbox_mark_at(cell);
		alike = FullTransactionIdEquals(mark->xid, record->xid) &&
			(mark->at == record->at ||
			 (!FullTransactionIdIsValid(record->xid) && record->at != DT_NOBEGIN));
		gap = gap_between(mark, record);
		if (best == OUTBOX_NIL || alike > best_alike ||
			(alike == best_alike && gap < best_gap))
		{
			best = cell;
			best_alike = alike;
			best_gap = gap;
		}
	}
	if (best == OUTBOX_NIL)
		return false;
	mark = outbox_mark_at(best);
	extend_mark(mark, record);
	if (best_alike)
		mark->at = Min(mark->at, record->at);
	else
	{
		unlink_mark(lane, best);
		mark->xid = InvalidFullTransactionId;
		append_due(lane, best);
		note_lease_end(lane, record->at);
	}
	return true;
}

/* There is no free cell: add the record to an existing mark. */
static bool
merge_somewhere(OutboxLane *lane, const OutboxRecord *record, bool due)
{
	if ((!due || lane->due_last == OUTBOX_NIL) && merge_pending(lane, record))
		return true;
	if (lane->due_last == OUTBOX_NIL)
		return false;
	extend_mark(outbox_mark_at(lane->due_last), record);
	note_lease_end(lane, record->at);
	return true;
}

/* Add a mark for the record, unless an existing one includes it. */
static bool
add_mark(OutboxLane *lane, const OutboxRecord *record, bool due)
{
	OutboxMark *mark;
	int			cell;

	if (due)
	{
		if (lane->due_last != OUTBOX_NIL &&
			ranges_meet(outbox_mark_at(lane->due_last), record))
		{
			extend_mark(outbox_mark_at(lane->due_last), record);
			return true;
		}
	}
	else
	{
		for (cell = lane->pending_first; cell != OUTBOX_NIL;
			 cell = outbox_mark_at(cell)->next)
		{
			mark = outbox_mark_at(cell);
			if (mark_includes(mark, record))
			{
				extend_mark(mark, record);
				mark->at = Min(mark->at, record->at);
				return true;
			}
		}
		if (lane->npending >= OUTBOX_MAX_PENDING)
			return merge_pending(lane, record);
	}

	cell = outbox_cell_new();
	if (cell == OUTBOX_NIL)
		return merge_somewhere(lane, record, due);
	mark = outbox_mark_at(cell);
	mark->serial = outbox_mark_serial();
	mark->lo = record->lo;
	mark->hi = record->hi;
	mark->at = record->at;
	mark->xid = record->xid;
	if (due)
		append_due(lane, cell);
	else
		push_pending(lane, cell);
	return true;
}

/* Keep a record in a mark, if there is room. */
static bool
keep_in_mark(OutboxLane *lane, const OutboxRecord *record, bool due)
{
	bool		kept = add_mark(lane, record, due);

	OUTBOX_TRACE_RANGE("mark", lane, record, kept);
	return kept;
}

/*
 * Record leases, which must be visited when they end, or if a transaction that
 * has ended them aborts.
 */
static void
record_leases(OutboxLane *lane, const OutboxRecord *record)
{
	if (keep_in_mark(lane, record, false))
		return;
	lower_cursor(lane, record->lo);
	lane->leases_known = false;
	lane->leases_lost++;
}

/*
 * Record that lo..hi must be visited again.  From the cursor on that needs no
 * mark, because lowering next_due makes the next scan visit it in time; but a
 * lease is always in a mark, because otherwise its end would not be known.  So
 * is what a transaction has moved: it may have been leased, and its mark may
 * have been visited and removed.
 *
 * False if there is no memory, which happens only with a part of a lane: the
 * caller must then record it in the lane itself.
 */
bool
outbox_lane_record(OutboxLane *lane, const OutboxRecord *record)
{
	OutboxRecord below = *record;
	bool		due = !FullTransactionIdIsValid(record->xid) &&
	record->at == DT_NOBEGIN;

	Assert(!outbox_ready_key_lt(record->hi, record->lo));
	if (lane->token != 0)
		return add_mark(lane, record, due);
	OUTBOX_TRACE_RANGE("record", lane, record, record->at);
	if (record->at != DT_NOBEGIN)
	{
		record_leases(lane, record);
		return true;
	}
	if (!outbox_ready_key_lt(record->hi, lane->cursor))
		report_key(lane, outbox_ready_key_max(record->lo, lane->cursor));
	if (!outbox_ready_key_lt(record->lo, lane->cursor))
		return true;
	below.hi = outbox_ready_key_min(record->hi, lane->cursor);
	if (!keep_in_mark(lane, &below, due))
		lower_cursor(lane, record->lo);
	return true;
}

/* Move the marks of a part, which are for one owner, to the lane, for all. */
void
outbox_lane_take_over_marks(OutboxLane *lane, OutboxLane *part)
{
	Assert(lane->token == 0 && part->token != 0);
	while (part->due_first != OUTBOX_NIL)
	{
		const OutboxMark *mark = outbox_mark_at(part->due_first);
		OutboxRecord record = {
			.lo = mark->lo,.hi = mark->hi,.xid = InvalidFullTransactionId,
			.at = DT_NOBEGIN
		};

		(void) outbox_lane_record(lane, &record);
		remove_mark(part, part->due_first);
	}
}

/* ---------------------------------------------------------------------- */
/* Visiting                                                               */
/* ---------------------------------------------------------------------- */

/* Make pending marks due whose leases have ended. */
void
outbox_lane_make_due(OutboxLane *lane, TimestampTz now)
{
	int			next;

	for (int cell = lane->pending_first; cell != OUTBOX_NIL; cell = next)
	{
		const OutboxMark *mark = outbox_mark_at(cell);

		next = mark->next;
		if (!FullTransactionIdIsValid(mark->xid) && mark->at <= now)
		{
			unlink_mark(lane, cell);
			append_due(lane, cell);
		}
	}
}

static void
copy_mark(int cell, OutboxMarkCopy *copy)
{
	const OutboxMark *mark = outbox_mark_at(cell);

	copy->cell = cell;
	copy->serial = mark->serial;
	copy->record = OUTBOX_MAKE(OutboxRecord, mark->lo, mark->hi, mark->xid,
							   mark->at);
}

/*
 * Copy the first marks that are due, at most "max"; returns how many.  They
 * are moved to the end, so that another scan will take others.
 */
int
outbox_lane_copy_due(OutboxLane *lane, OutboxMarkCopy *copies, int max)
{
	int			last = lane->due_last;
	int			n = 0;

	while (n < max && lane->due_first != OUTBOX_NIL)
	{
		int			cell = lane->due_first;

		copy_mark(cell, &copies[n++]);
		unlink_mark(lane, cell);
		append_due(lane, cell);
		if (cell == last)
			break;
	}
	return n;
}

/*
 * Copy the pending marks that wait for a transaction, or the others; returns
 * how many.  There must be room for OUTBOX_MAX_PENDING.
 */
int
outbox_lane_copy_pending(const OutboxLane *lane, OutboxMarkCopy *copies,
						 bool undecided)
{
	int			n = 0;

	Assert(lane->npending <= OUTBOX_MAX_PENDING);
	for (int cell = lane->pending_first; cell != OUTBOX_NIL;
		 cell = outbox_mark_at(cell)->next)
	{
		if (FullTransactionIdIsValid(outbox_mark_at(cell)->xid) == undecided)
			copy_mark(cell, &copies[n++]);
	}
	return n;
}

/* Is this still the mark that was copied? */
static bool
mark_stands(const OutboxMark *mark, const OutboxMarkCopy *copy)
{
	return mark->serial == copy->serial &&
		outbox_ready_key_cmp(mark->lo, copy->record.lo) == 0 &&
		outbox_ready_key_cmp(mark->hi, copy->record.hi) == 0 &&
		FullTransactionIdEquals(mark->xid, copy->record.xid);
}

/*
 * Drop the part of a mark that a scan has visited, which is up to "done".  The
 * rest is due, whatever it waited for before.
 */
void
outbox_lane_drop_mark(OutboxLane *lane, const OutboxMarkCopy *copy,
					  OutboxReadyKey done)
{
	OutboxMark *mark = outbox_mark_at(copy->cell);

	if (!mark_stands(mark, copy))
		return;
	if (outbox_ready_key_lt(mark->hi, done))
	{
		remove_mark(lane, copy->cell);
		return;
	}
	mark->lo = outbox_ready_key_max(mark->lo, done);
	if (mark->due)
		return;
	unlink_mark(lane, copy->cell);
	mark->xid = InvalidFullTransactionId;
	append_due(lane, copy->cell);
}

static int
find_pending(const OutboxLane *lane, FullTransactionId xid)
{
	int			cell = lane->pending_first;

	while (cell != OUTBOX_NIL &&
		   !FullTransactionIdEquals(outbox_mark_at(cell)->xid, xid))
		cell = outbox_mark_at(cell)->next;
	return cell;
}

/* Turn the marks of our committed transaction xid into those of its leases. */
void
outbox_lane_decide(OutboxLane *lane, FullTransactionId xid)
{
	int			cell;

	Assert(FullTransactionIdIsValid(xid));
	while ((cell = find_pending(lane, xid)) != OUTBOX_NIL)
	{
		const OutboxMark *mark = outbox_mark_at(cell);
		OutboxRecord record;

		record = OUTBOX_MAKE(OutboxRecord, mark->lo, mark->hi,
							 InvalidFullTransactionId, mark->at);
		remove_mark(lane, cell);
		if (record.at != DT_NOEND)
			(void) outbox_lane_record(lane, &record);
	}
}
