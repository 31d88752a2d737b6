/*
 * lane.c
 *	  What a scan of a lane must visit, and what it leaves behind.
 *
 * What makes a queue with SKIP LOCKED collapse is the index entry that cannot be
 * removed: with an old snapshot open, every claim walks over all that was
 * finished since.  So shared memory has, for each lane of the ready index, where
 * a scan must look:
 *
 *	cursor		what is below it need not be visited, except for marks
 *	next_due	nothing from the cursor on is due before this time
 *	marks		ranges of keys to be visited again, when a transaction has
 *				ended, or at some time, or now
 *
 * INVARIANT.  Of every committed message that can be claimed now, or that can
 * become claimable without a report, the index entry
 *
 *	a)	is not below the cursor, and not before next_due; or
 *	b)	lies in a mark, which is due now or will be when the message can be
 *		claimed; or
 *	c)	is about to be reported by a transaction that has committed a moment
 *		ago; then (a) or (b) holds when that transaction's client has its answer.
 *
 * What lies at or above the cursor needs no mark, because the next main scan,
 * from the cursor on, comes by.  It begins in time because of next_due.  That is
 * why whatever is recorded above the cursor lowers next_due at least.
 *
 * A message becomes claimable by a report: an insertion into the ready index
 * (enqueue, nack, release, reap, requeue, plain SQL); the end of the message
 * before it in its stream.  Without one: by time, when it becomes due or its
 * lease ends; by the end of a transaction that had locked or leased it, or had
 * inserted it before a scan passed.
 *
 * The rules that keep the invariant:
 *
 *	1. Reports are published when the transaction has committed, after its
 *	   changes have become visible (lane_publish.c).  A key below the cursor
 *	   becomes a mark; one above lowers next_due, and what the scans under way
 *	   may raise the cursor to.
 *	2. A scan watches the lane from before it looks (outbox_lane_begin), and
 *	   raises the cursor no further than the smallest key reported since
 *	   (outbox_lane_finish).  So of an entry that was inserted before the scan
 *	   came by, the scan decides what it leaves behind; the report of one that
 *	   was inserted behind its back either lowers the watch, or finds the
 *	   cursor raised and leaves a mark.
 *	3. A scan that passes an entry that another transaction may change, or that
 *	   it has changed itself, records it, to be visited when that transaction
 *	   has ended.  An abort, a dead session or a rolled back savepoint needs
 *	   nothing else.
 *	4. The old entry of a row that a transaction has moved or deleted is
 *	   invisible to itself, and back when it aborts.  So each of its own scans
 *	   records these keys again (outbox_lane_next_moved).  For the same reason
 *	   it must not drop marks of its own.
 *	5. A lease is recorded with its end: by the scan that takes or passes it, or
 *	   by a note at commit.  Such a mark is kept also above the cursor, so that
 *	   the marks have all leases (leases_known) once the lane has been scanned
 *	   to its end.  A mark that goes because it was visited may be the one that a
 *	   transaction in progress has left for its lease: what is undecided there
 *	   is recorded as if it were a lease.
 *	6. What is recorded is kept, until a scan has visited all of it and has
 *	   recorded again what must be visited again.  What finds no room is merged,
 *	   or lowers the cursor, and with it all watches; nothing is set as if it
 *	   had been kept when it was not.
 *	7. A scan passes an entry without recording it only if it is gone for good,
 *	   is not due yet, or is a message that waits behind another of its stream:
 *	   whoever ends that one reports this one.  If only the owner of those
 *	   before it can claim it, it is recorded in the owner's part of the lane.
 *	   What a scan leaves for others otherwise limits the cursor.
 *
 * The tables are the truth.  A lane of which nothing is known is scanned from
 * its start, once.  What is known is forgotten when the epoch of the table
 * changes (epoch.c).
 *
 * A part of a lane, for one owner, has marks and no cursor.  It is scanned like
 * a lane that has no main part.
 */
#include "postgres.h"

#include "access/subtrans.h"
#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "outbox.h"
#include "shmem/agenda.h"
#include "shmem/directory.h"
#include "shmem/lane.h"
#include "shmem/lane_memory.h"
#include "shmem/lane_publish.h"
#include "shmem/lane_state.h"
#include "shmem/lane_xact.h"
#include "shmem/waiters.h"
#include "shmem/wake.h"
#include "util/grow.h"
#include "util/guc.h"
#include "util/hash.h"

/* Leases this close to each other share a mark; of other things, less. */
#define NEAR_LEASE_USECS USECS_PER_SEC
#define NEAR_USECS 5000

/* How many of the last records a new one is compared with. */
#define LOOK_BACK 4

/* Before marks are copied to where they stay: not allocated under a lock. */
static OutboxMarkCopy scratch[OUTBOX_SCAN_MARKS + 2 * OUTBOX_MAX_PENDING];

static void found_recorded(OutboxLaneScan *scan, const OutboxRecord *record);

/* ---------------------------------------------------------------------- */
/* Beginning                                                              */
/* ---------------------------------------------------------------------- */

/*
 * Copy from a lane what a scan must visit, and watch it.  What waits for
 * transactions is copied as well; the caller will see which of it to visit.
 */
static int
take_orders(OutboxAgenda *agenda, int number, TimestampTz now,
			OutboxLaneScan *scan)
{
	OutboxLane *lane = outbox_lane_at(number);
	int			n;

	if (scan->kind != OUTBOX_SCAN_LEASES)
		outbox_lane_make_due(lane, now);
	scan->resets = agenda->resets;
	scan->tracked = true;
	scan->leases_lost = lane->leases_lost;
	scan->cursor = lane->cursor;
	if (scan->kind == OUTBOX_SCAN_LEASES &&
		lane->nduemarks > OUTBOX_SCAN_MARKS)
	{
		/* too much to take along */
		scan->cursor = OUTBOX_KEY_MIN;
		scan->scan_main = true;
		return 0;
	}
	n = outbox_lane_copy_due(lane, scratch, OUTBOX_SCAN_MARKS);
	scan->nleft = lane->nduemarks - n;
	n += outbox_lane_copy_pending(lane, &scratch[n], true);
	if (scan->kind == OUTBOX_SCAN_LEASES)
		n += outbox_lane_copy_pending(lane, &scratch[n], false);
	if (scan->kind == OUTBOX_SCAN_CLAIM)
	{
		scan->scan_main = scan->token == 0 && lane->next_due <= now;
		scan->called = lane->called;
		lane->called = false;
		lane->recheck_at = DT_NOEND;
		outbox_agenda_rotate(agenda, number);
	}
	else
		scan->scan_main = !lane->leases_known;
	if (scan->kind == OUTBOX_SCAN_REAP)
		lane->called_to_reap = false;
	if (scan->kind != OUTBOX_SCAN_LEASES && scan->token == 0)
	{
		scan->phase = outbox_lane_watch(lane);
		outbox_lane_hold_watch(scan->relid, &scan->place, scan->resets,
							   scan->phase);
	}
	lane->used = true;
	lane->used_at = now;
	return n;
}

/* The scan must visit these keys, which are in no mark. */
static void
add_range(OutboxLaneScan *scan, OutboxKey lo, OutboxKey hi)
{
	OutboxMarkCopy *copy;

	/* one more is always there: see keep_orders */
	copy = &scan->marks[scan->nmarks++];
	memset(copy, 0, sizeof(OutboxMarkCopy));
	copy->cell = OUTBOX_NIL;
	copy->record.lo = lo;
	copy->record.hi = hi;
}

/*
 * Must a scan visit what waits for this transaction?  If that has ended; and the
 * leases of our own transaction are leases already.
 */
static bool
is_decided(const OutboxLaneScan *scan, FullTransactionId xid)
{
	if (!FullTransactionIdIsValid(xid) || outbox_xact_is_over(xid))
		return true;
	return scan->kind == OUTBOX_SCAN_LEASES &&
		TransactionIdIsCurrentTransactionId(XidFromFullTransactionId(xid));
}

/* Keep what is to be visited of what was copied, and what we have noted. */
static void
keep_orders(OutboxLaneScan *scan, TimestampTz now, int n)
{
	TimestampTz until = scan->kind == OUTBOX_SCAN_LEASES ? DT_NOEND : now;
	int			next = 0;
	int			nown = 0;
	OutboxPlace place;
	OutboxKey	lo;
	OutboxKey	hi;

	while (outbox_lane_next_noted(scan->relid, until, &next, &place, &lo, &hi))
		nown += outbox_place_equal(&place, &scan->place);
	if (n + nown == 0)
		return;
	scan->marks = palloc_array(OutboxMarkCopy, n + nown);
	for (int i = 0; i < n; i++)
	{
		if (is_decided(scan, scratch[i].record.xid))
			scan->marks[scan->nmarks++] = scratch[i];
		else if (scan->called)
			found_recorded(scan, &scratch[i].record);
	}
	next = 0;
	while (scan->token == 0 && nown > 0 &&
		   outbox_lane_next_noted(scan->relid, until, &next, &place, &lo, &hi))
	{
		if (outbox_place_equal(&place, &scan->place))
			add_range(scan, lo, hi);
	}
}

/* Find the lane in memory, making it if it is to be scanned and there is room. */
static int
find_lane(OutboxAgenda *agenda, const OutboxLaneScan *scan)
{
	bool		is_new;

	if (scan->token != 0 || outbox_agenda_is_complete(agenda))
		return outbox_lane_find(agenda->number, &scan->place, scan->token);
	return outbox_lane_make(agenda, &scan->place, 0, &is_new);
}

/*
 * Prepare to scan a lane, or a part of one.  False if there is nothing to visit;
 * otherwise the scan must end with outbox_lane_finish, unless the transaction
 * aborts.  Without memory, all of the lane is visited.
 */
bool
outbox_lane_begin(Oid relid, const OutboxPlace *place, uint64 token,
				  bool use_memory, TimestampTz now, OutboxScanKind kind,
				  OutboxLaneScan *scan)
{
	OutboxAgenda *agenda = NULL;
	bool		known = false;
	int			n = 0;

	memset(scan, 0, sizeof(OutboxLaneScan));
	scan->kind = kind;
	scan->relid = relid;
	scan->place = *place;
	scan->token = token;
	scan->phase = -1;
	scan->passed = OUTBOX_KEY_MIN;
	scan->limit = OUTBOX_KEY_MAX;
	scan->next_due = DT_NOEND;

	if (use_memory)
	{
		outbox_lane_reserve_watch();
		agenda = outbox_agenda_lock(relid, LW_EXCLUSIVE);
	}
	if (agenda != NULL)
	{
		int			lane = find_lane(agenda, scan);

		if (lane != OUTBOX_NIL)
			n = take_orders(agenda, lane, now, scan);
		known = lane != OUTBOX_NIL || token != 0 ||
			outbox_agenda_is_complete(agenda);
		LWLockRelease(&agenda->lock);
	}
	if (!known)
	{
		scan->cursor = OUTBOX_KEY_MIN;
		scan->scan_main = true;
	}
	keep_orders(scan, now, n);
	if (scan->scan_main || scan->nmarks > 0)
		return true;
	outbox_lane_finish(scan, now);
	return false;
}

/* ---------------------------------------------------------------------- */
/* On the way                                                             */
/* ---------------------------------------------------------------------- */

static void
add_found(OutboxLaneScan *scan, const OutboxRecord *record,
		  TransactionId blocker, bool silent)
{
	if (!scan->tracked || scan->kind == OUTBOX_SCAN_LEASES)
		return;
	outbox_grow(scan->found, scan->nfound, scan->max_found);
	scan->found[scan->nfound++] =
		OUTBOX_MAKE(OutboxFound, *record,
					TransactionIdIsValid(blocker) ? outbox_full_xid(blocker) :
					InvalidFullTransactionId, silent, false, false);
}

/*
 * Add a key to one of the last records, if one has the same condition and is
 * close by.  Keys must not go down.
 */
static bool
extend_found(OutboxLaneScan *scan, OutboxKey key, FullTransactionId xid,
			 TimestampTz at, bool marked)
{
	int64		near_usecs = at == DT_NOBEGIN ? NEAR_USECS : NEAR_LEASE_USECS;

	for (int i = scan->nfound - 1; i >= 0 && i >= scan->nfound - LOOK_BACK; i--)
	{
		OutboxRecord *have = &scan->found[i].record;

		if (!scan->found[i].recorded && scan->found[i].marked == marked &&
			FullTransactionIdEquals(have->xid, xid) &&
			at / USECS_PER_SEC == have->at / USECS_PER_SEC &&
			key.at - have->hi.at <= near_usecs)
		{
			have->at = Min(have->at, at);
			have->hi = outbox_key_max(have->hi, key);
			return true;
		}
	}
	return false;
}

/* The scan passes an entry that must be visited again under this condition. */
static void
found_entry(OutboxLaneScan *scan, OutboxKey key, FullTransactionId xid,
			TimestampTz at)
{
	OutboxRecord record = {.lo = key,.hi = key,.xid = xid,.at = at};

	if (!extend_found(scan, key, xid, at, false))
		add_found(scan, &record, InvalidTransactionId, false);
}

/* The transaction of which one in progress is a part. */
static TransactionId
topmost(TransactionId xid)
{
	static TransactionId last_xid = InvalidTransactionId;
	static TransactionId last_top = InvalidTransactionId;

	if (xid != last_xid)
	{
		last_top = SubTransGetTopmostTransaction(xid);
		last_xid = xid;
	}
	return last_top;
}

/* Does nobody report the end of a transaction?  A prepared one has no process. */
static bool
ends_silently(TransactionId top)
{
	return BackendXidGetPid(top) == 0;
}

/*
 * What is in a mark of the lane is still undecided.  A lane is called when one of
 * the transactions that it waits for ends, and also when it was prepared; then it
 * is forgotten that the lane waits for it, although its marks do so still.
 */
static void
found_recorded(OutboxLaneScan *scan, const OutboxRecord *record)
{
	TransactionId top = topmost(XidFromFullTransactionId(record->xid));

	Assert(scan->tracked && scan->kind == OUTBOX_SCAN_CLAIM);
	add_found(scan, record, top, ends_silently(top));
	scan->found[scan->nfound - 1].recorded = true;
}

/* Is this key in a mark of the lane that the scan visits, and that will go? */
static bool
is_in_mark(const OutboxLaneScan *scan, OutboxKey key)
{
	for (int i = 0; i < scan->nmarks && scan->token == 0; i++)
	{
		const OutboxMarkCopy *copy = &scan->marks[i];

		if (copy->cell != OUTBOX_NIL &&
			!outbox_key_lt(key, copy->record.lo) &&
			!outbox_key_lt(copy->record.hi, key))
			return true;
	}
	return false;
}

/* The scan passes an entry whose fate another transaction decides. */
void
outbox_lane_found_undecided(OutboxLaneScan *scan, OutboxKey key,
							TransactionId xid)
{
	FullTransactionId full = outbox_full_xid(xid);
	OutboxRecord record = {.lo = key,.hi = key,.xid = full,.at = DT_NOBEGIN};
	bool		marked = is_in_mark(scan, key);
	int			n = scan->nfound;

	if (extend_found(scan, key, full, DT_NOBEGIN, marked))
		return;
	add_found(scan, &record, topmost(xid), ends_silently(topmost(xid)));
	if (scan->nfound > n)
		scan->found[n].marked = marked;
}

/*
 * The scan passes an entry that it could not change, because another transaction
 * (InvalidTransactionId: one of several) has locked it.  That one may know nothing
 * of us.
 */
void
outbox_lane_found_locked(OutboxLaneScan *scan, OutboxKey key,
						 TransactionId xid)
{
	OutboxRecord record = {
		.lo = key,.hi = key,.xid = InvalidFullTransactionId,.at = DT_NOBEGIN
	};

	if (TransactionIdIsValid(xid))
	{
		record.xid = outbox_full_xid(xid);
		add_found(scan, &record, topmost(xid), true);
	}
	else
	{
		add_found(scan, &record, InvalidTransactionId, false);
		scan->try_again = true;
	}
}

/* A scan that does not claim passes a message that can be claimed. */
void
outbox_lane_found_ready(OutboxLaneScan *scan, OutboxKey key)
{
	found_entry(scan, key, InvalidFullTransactionId, DT_NOBEGIN);
}

/*
 * The scan passes an entry that this transaction has changed, as its (sub-)
 * transaction xid.  When it has committed, the entry must be visited at that
 * time (DT_NOEND: never); when it has aborted, at once.
 */
void
outbox_lane_found_own(OutboxLaneScan *scan, OutboxKey key, TransactionId xid,
					  TimestampTz at)
{
	scan->nclaimed++;
	found_entry(scan, key, outbox_full_xid(xid), at);
}

/* The scan passes a message that is leased. */
void
outbox_lane_found_lease(OutboxLaneScan *scan, OutboxKey key,
						TimestampTz locked_until)
{
	found_entry(scan, key, InvalidFullTransactionId, locked_until);
}

/*
 * The scan passes a message that another owner should visit: the only one who
 * can claim it, or, if shared, the one preferred.
 */
void
outbox_lane_found_part(OutboxLaneScan *scan, OutboxKey key, uint64 token,
					   bool shared)
{
	OutboxPartRecord *part;

	for (int i = 0; i < scan->nparts; i++)
	{
		part = &scan->parts[i];
		/* what is between them is passed over again, if it is not far */
		if (part->token == token && part->shared == shared &&
			(shared || key.at - part->hi.at <= NEAR_LEASE_USECS))
		{
			part->hi = outbox_key_max(part->hi, key);
			return;
		}
	}
	outbox_grow(scan->parts, scan->nparts, scan->max_parts);
	scan->parts[scan->nparts++] =
		OUTBOX_MAKE(OutboxPartRecord, token, shared, key, key);
}

/* ---------------------------------------------------------------------- */
/* The end                                                                */
/* ---------------------------------------------------------------------- */

/* Record in the part of an owner what is for it; false if there is no room. */
static bool
record_part(OutboxAgenda *agenda, int lane, const OutboxPlace *place,
			const OutboxPartRecord *found, TimestampTz now)
{
	OutboxRecord record = {
		.lo = found->lo,.hi = found->hi,.at = DT_NOBEGIN,
		.xid = InvalidFullTransactionId
	};
	bool		is_new;
	int			part = outbox_lane_make(agenda, place, found->token, &is_new);

	if (part == OUTBOX_NIL ||
		!outbox_lane_record(outbox_lane_at(part), &record))
		return false;
	if (found->shared && !outbox_lane_at(part)->shared)
		outbox_lane_share_part(agenda, lane, part);
	outbox_agenda_update(agenda, part, now);
	outbox_waiters_call_lane(agenda, part, 1);
	return true;
}

/*
 * Record what is for other owners.  Where there is no room, what the scan has
 * passed must not be passed.
 */
static void
record_others_parts(OutboxAgenda *agenda, int lane, OutboxLaneScan *scan,
					TimestampTz now)
{
	for (int i = 0; i < scan->nparts; i++)
	{
		if (scan->parts[i].token != scan->token &&
			!record_part(agenda, lane, &scan->place, &scan->parts[i], now))
			scan->limit = outbox_key_min(scan->limit, scan->parts[i].lo);
	}
}

/*
 * The scan of a part records what it has left there for later, in place of what it
 * has visited.
 */
static void
record_own_part(OutboxAgenda *agenda, int lane, const OutboxLaneScan *scan,
				TimestampTz now)
{
	for (int i = 0; i < scan->nparts && scan->token != 0; i++)
	{
		OutboxRecord record = {
			.lo = scan->parts[i].lo,.hi = scan->parts[i].hi,.at = DT_NOBEGIN,
			.xid = InvalidFullTransactionId
		};

		if (scan->parts[i].token == scan->token &&
			!record_part(agenda, lane, &scan->place, &scan->parts[i], now))
			(void) outbox_lane_record(outbox_lane_at(lane), &record);
	}
}

/* Raise the cursor over what a claim has visited. */
static void
advance_cursor(OutboxLane *lane, const OutboxLaneScan *scan, OutboxKey done,
			   TimestampTz now)
{
	OutboxKey	low = lane->low[scan->phase];
	OutboxKey	target = done;

	if (scan->exhausted)
		target = outbox_key_max(target, OUTBOX_MAKE(OutboxKey, now, PG_INT64_MIN));
	target = outbox_key_min(target, scan->limit);
	target = outbox_key_min(target, low);
	if (outbox_key_lt(target, lane->cursor))
		return;
	if (scan->exhausted && outbox_key_cmp(scan->limit, OUTBOX_KEY_MAX) == 0)
		outbox_lane_raise_cursor(lane, target, Min(scan->next_due, low.at));
	else
		outbox_lane_raise_cursor(lane, target, target.at);
}

/*
 * Record what was found, which must come after the cursor was raised.  What is
 * undecided may become a lease: as long as not all leases are known, or where a
 * mark of that lease may have gone, it is kept in a mark also above the cursor, as
 * leases are.
 */
static void
record_found(OutboxAgenda *agenda, int number, const OutboxLaneScan *scan,
			 TimestampTz now)
{
	OutboxLane *lane = outbox_lane_at(number);
	OutboxRecord moved;
	int			next = 0;

	while (scan->token == 0 &&
		   outbox_lane_next_moved(scan->relid, &scan->place, &next, &moved))
		(void) outbox_lane_record(lane, &moved);
	for (int i = 0; i < scan->nfound; i++)
	{
		const OutboxFound *found = &scan->found[i];
		OutboxRecord record = found->record;

		if ((!lane->leases_known || found->marked) &&
			FullTransactionIdIsValid(record.xid) && record.at == DT_NOBEGIN)
			record.at = now;
		if (!found->recorded)
			(void) outbox_lane_record(lane, &record);
		if (FullTransactionIdIsValid(found->blocker))
			outbox_agenda_block(agenda, number, found->blocker, found->silent);
	}
}

/* A scan of a part records in the lane itself what it has found. */
static int
lane_to_record_in(OutboxAgenda *agenda, const OutboxLaneScan *scan, int part)
{
	bool		is_new;
	int			lane;

	if (scan->token == 0)
		return part;
	lane = outbox_lane_make(agenda, &scan->place, 0, &is_new);
	if (lane == OUTBOX_NIL)
		agenda->misses++;
	return lane;
}

static void
publish_scan(OutboxAgenda *agenda, int number, OutboxLaneScan *scan,
			 TimestampTz now)
{
	OutboxLane *lane = outbox_lane_at(number);
	int			into = lane_to_record_in(agenda, scan, number);
	OutboxKey	done;

	if (into != OUTBOX_NIL)
		record_others_parts(agenda, into, scan, now);
	done = outbox_key_min(scan->passed, scan->limit);
	for (int i = 0; i < scan->nmarks; i++)
	{
		if (scan->marks[i].cell != OUTBOX_NIL)
			outbox_lane_drop_mark(lane, &scan->marks[i], done);
	}
	if (scan->scan_main && scan->kind == OUTBOX_SCAN_CLAIM)
		advance_cursor(lane, scan, done, now);
	if (into != OUTBOX_NIL)
	{
		record_own_part(agenda, into, scan, now);
		record_found(agenda, into, scan, now);
	}
	if (scan->scan_main && scan->exhausted && !scan->lease_left &&
		scan->leases_lost == lane->leases_lost)
		lane->leases_known = true;
	if (scan->phase >= 0)
		outbox_lane_unwatch(lane, scan->phase);
	if (scan->try_again)
		lane->recheck_at = TimestampTzPlusMilliseconds(now, outbox_poll_interval);
	if (into != OUTBOX_NIL && into != number)
		outbox_agenda_update(agenda, into, now);
	if (scan->token != 0 && outbox_lane_has_no_marks(lane))
		outbox_lane_drop(agenda, number);
	else
		outbox_agenda_update(agenda, number, now);
	outbox_waiters_note_time(agenda);
}

/* Transactions that the lane waits for may have ended before it was known. */
static void
look_at_blockers(const OutboxLaneScan *scan)
{
	for (int i = 0; i < scan->nfound; i++)
	{
		FullTransactionId blocker = scan->found[i].blocker;

		if (FullTransactionIdIsValid(blocker) && outbox_xact_is_over(blocker))
			outbox_lanes_unblock(scan->relid, blocker, true);
	}
}

/* Publish what a scan has found, and end it. */
void
outbox_lane_finish(OutboxLaneScan *scan, TimestampTz now)
{
	OutboxAgenda *agenda;
	int			lane;

	if (!scan->tracked || scan->kind == OUTBOX_SCAN_LEASES)
		return;
	if (scan->nclaimed > 0 || outbox_lane_has_moved(scan->relid))
		outbox_lane_note_claim(scan->relid, &scan->place, 0, scan->nclaimed);
	agenda = outbox_agenda_lock_to_report(scan->relid);
	if (agenda != NULL)
	{
		lane = outbox_lane_find(agenda->number, &scan->place, scan->token);
		if (lane != OUTBOX_NIL && agenda->resets == scan->resets)
			publish_scan(agenda, lane, scan, now);
		LWLockRelease(&agenda->lock);
	}
	if (scan->phase >= 0)
		outbox_lane_drop_watch(scan->relid, &scan->place, scan->phase);
	look_at_blockers(scan);
	for (int i = 0; i < scan->nfound; i++)
	{
		if (scan->found[i].record.at != DT_NOBEGIN &&
			scan->found[i].record.at != DT_NOEND)
			outbox_wake_note_lease(scan->found[i].record.at);
	}
}
