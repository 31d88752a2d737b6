/*
 * lane.c
 *	  What a scan of a lane must visit, and what it leaves behind.
 *
 * Queues based on SKIP LOCKED collapse because of index entries that cannot be
 * removed: while an old snapshot is open, every claim walks over all that was
 * finished since.  So for each lane of the ready index, shared memory records
 * where a scan must look:
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
 *	b)	is in a mark, which is due now or will be when the message can be
 *		claimed; or
 *	c)	is about to be reported by a transaction that has just committed; then
 *		(a) or (b) holds before that transaction's client gets its answer.
 *
 * An entry at or above the cursor needs no mark, because the next main scan,
 * which begins at the cursor, will reach it, and because next_due makes that
 * scan begin in time.  That is why everything recorded above the cursor at
 * least lowers next_due.
 *
 * A message becomes claimable by a report: an insertion into the ready index
 * (enqueue, nack, release, reap, requeue, plain SQL); the end of the message
 * before it in its stream.  Without a report: by time, when it becomes due or
 * its lease ends; by the end of a transaction that had locked or leased it, or
 * had inserted it before a scan passed it.
 *
 * The rules that keep the invariant:
 *
 *	1. Reports are published when the transaction has committed, after its
 *	   changes have become visible (lane_publish.c).  A key below the cursor
 *	   becomes a mark; one above lowers next_due, and the limit to which the
 *	   scans in progress may raise the cursor.
 *	2. A scan watches the lane from before its first fetch (outbox_lane_begin),
 *	   and raises the cursor no further than the smallest key reported since
 *	   (outbox_lane_finish).  So for an entry inserted before the scan reaches
 *	   it, the scan decides what to record; the report of one inserted after
 *	   the scan has passed either lowers the watch, or finds the cursor raised
 *	   and leaves a mark.
 *	3. A scan that passes an entry that another transaction may change, or that
 *	   it has changed itself, records it, to be visited when that transaction
 *	   has ended.  Nothing else is needed for aborts, sessions that die, and
 *	   savepoints that are rolled back.
 *	4. The old entry of a row that a transaction has moved or deleted is
 *	   invisible to that transaction, and is back if it aborts.  So each of its
 *	   own scans records these keys again (outbox_lane_next_moved).  For the
 *	   same reason it must not drop marks of its own.
 *	5. A lease is recorded with its end: by the scan that takes or passes it,
 *	   or by a note at commit.  Such a mark is kept also above the cursor, so
 *	   that the marks have all leases (leases_known) once the lane has been
 *	   scanned to its end.  A mark that is removed because it was visited may
 *	   be the one that a transaction in progress has left for its lease: what
 *	   is undecided there is recorded as if it were a lease.  So is what a
 *	   transaction has moved or deleted, which is a lease again if it aborts.
 *	6. What is recorded is kept, until a scan has visited all of it and has
 *	   recorded again what must be visited again.  If there is no memory for
 *	   it, it is merged with something else, or it lowers the cursor, and with
 *	   it all watches; nothing is ever treated as recorded when it was not.
 *	7. A scan passes an entry without recording it only if it is dead to
 *	   everyone, is not due yet, or is a message that waits behind another of
 *	   its stream: the transaction that ends that one reports this one.  If
 *	   only the owner of those before it can claim it, it is recorded in the
 *	   owner's part of the lane.  Everything else that a scan leaves for others
 *	   limits the cursor.
 *
 * The tables are authoritative.  A lane about which nothing is known is
 * scanned from its start, once.  What is known is discarded when the epoch of
 * the table changes (epoch.c).
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
#include "shmem/blocker.h"
#include "shmem/directory.h"
#include "shmem/lane.h"
#include "shmem/lane_memory.h"
#include "shmem/lane_publish.h"
#include "shmem/lane_state.h"
#include "shmem/lane_xact.h"
#include "shmem/sleepers.h"
#include "shmem/wake.h"
#include "trace.h"
#include "util/grow.h"
#include "util/guc.h"
#include "util/hash.h"

/*
 * Leases this close to each other share a mark; other records must be closer.
 */
#define NEAR_LEASE_USECS USECS_PER_SEC
#define NEAR_USECS 5000

/* Number of records with which a new one is compared. */
#define LOOK_BACK 4

/*
 * Buffer for copies of marks, because nothing may be allocated under a lock.
 */
static OutboxMarkCopy scratch[OUTBOX_SCAN_MARKS + 2 * OUTBOX_MAX_PENDING];

static void found_recorded(OutboxLaneScan *scan, const OutboxRecord *record);

/* ---------------------------------------------------------------------- */
/* Beginning                                                              */
/* ---------------------------------------------------------------------- */

/*
 * Copy from a lane what a scan must visit, and watch it.  Marks that wait for
 * transactions are copied as well; the caller decides which of them to visit.
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
		/* too much to copy: scan the whole lane */
		scan->cursor = OUTBOX_READY_KEY_MIN;
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

/* Add keys that the scan must visit, and that are in no mark. */
static void
add_range(OutboxLaneScan *scan, OutboxReadyKey lo, OutboxReadyKey hi)
{
	OutboxMarkCopy *copy;

	/* there is always room for one more: see keep_orders */
	copy = &scan->marks[scan->nmarks++];
	memset(copy, 0, sizeof(OutboxMarkCopy));
	copy->cell = OUTBOX_NIL;
	copy->record.lo = lo;
	copy->record.hi = hi;
}

/*
 * Must a scan visit what waits for this transaction?  It must if that has
 * ended, or is our own: its leases are leases already.
 */
static bool
is_decided(const OutboxLaneScan *scan, FullTransactionId xid)
{
	if (!FullTransactionIdIsValid(xid) || outbox_xact_is_over(xid))
		return true;
	return scan->kind == OUTBOX_SCAN_LEASES &&
		TransactionIdIsCurrentTransactionId(XidFromFullTransactionId(xid));
}

/*
 * Keep what must be visited of what was copied, and add what this transaction
 * has noted.
 */
static void
keep_orders(OutboxLaneScan *scan, TimestampTz now, int n)
{
	TimestampTz until = scan->kind == OUTBOX_SCAN_LEASES ? DT_NOEND : now;
	int			next = 0;
	int			nown = 0;
	OutboxPlace place;
	OutboxReadyKey lo;
	OutboxReadyKey hi;

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

/*
 * Find the lane in memory; make it if it will be scanned and there is memory.
 */
static int
find_lane(OutboxAgenda *agenda, const OutboxLaneScan *scan)
{
	bool		is_new;

	if (scan->token != 0 || outbox_agenda_is_complete(agenda))
		return outbox_lane_find(agenda->number, &scan->place, scan->token);
	return outbox_lane_make(agenda, &scan->place, 0, &is_new);
}

/*
 * Prepare to scan a lane, or a part of one.  False if there is nothing to
 * visit; otherwise the scan must end with outbox_lane_finish, unless the
 * transaction aborts.  Without shared memory, the whole lane is visited.
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
	scan->passed = OUTBOX_READY_KEY_MIN;
	scan->limit = OUTBOX_READY_KEY_MAX;
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
		scan->cursor = OUTBOX_READY_KEY_MIN;
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
 * close to it.  Keys must come in ascending order.
 */
static bool
extend_found(OutboxLaneScan *scan, OutboxReadyKey key, FullTransactionId xid,
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
			have->hi = outbox_ready_key_max(have->hi, key);
			return true;
		}
	}
	return false;
}

/* The scan passes an entry that must be visited again under this condition. */
static void
found_entry(OutboxLaneScan *scan, OutboxReadyKey key, FullTransactionId xid,
			TimestampTz at)
{
	OutboxRecord record = {.lo = key,.hi = key,.xid = xid,.at = at};

	if (!extend_found(scan, key, xid, at, false))
		add_found(scan, &record, InvalidTransactionId, false);
}

/* The top-level transaction of a transaction in progress. */
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

/*
 * Will the end of a transaction go unreported?  A prepared one has no process.
 */
static bool
ends_silently(TransactionId top)
{
	return BackendXidGetPid(top) == 0;
}

/*
 * What is in a mark of the lane is still undecided: note it again.  A lane is
 * called when a transaction that it waits for ends, and also when that is
 * prepared; the lane's blocker is removed then, although its marks still wait
 * for the transaction.
 */
static void
found_recorded(OutboxLaneScan *scan, const OutboxRecord *record)
{
	TransactionId top = topmost(XidFromFullTransactionId(record->xid));

	Assert(scan->tracked && scan->kind == OUTBOX_SCAN_CLAIM);
	add_found(scan, record, top, ends_silently(top));
	scan->found[scan->nfound - 1].recorded = true;
}

/*
 * Is this key in a mark of the lane that the scan visits, and that will be
 * removed?
 */
static bool
is_in_mark(const OutboxLaneScan *scan, OutboxReadyKey key)
{
	for (int i = 0; i < scan->nmarks && scan->token == 0; i++)
	{
		const OutboxMarkCopy *copy = &scan->marks[i];

		if (copy->cell != OUTBOX_NIL &&
			!outbox_ready_key_lt(key, copy->record.lo) &&
			!outbox_ready_key_lt(copy->record.hi, key))
			return true;
	}
	return false;
}

/* The scan passes an entry about which another transaction decides. */
void
outbox_lane_found_undecided(OutboxLaneScan *scan, OutboxReadyKey key,
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
 * The scan passes an entry that it could not change, because another
 * transaction (InvalidTransactionId: one of several) has locked it.  That may
 * be a transaction which does not report its end.
 */
void
outbox_lane_found_locked(OutboxLaneScan *scan, OutboxReadyKey key,
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
outbox_lane_found_ready(OutboxLaneScan *scan, OutboxReadyKey key)
{
	found_entry(scan, key, InvalidFullTransactionId, DT_NOBEGIN);
}

/*
 * The scan passes an entry that this transaction has changed, in its (sub-)
 * transaction xid.  If that commits, the entry must be visited at the time
 * "at" (DT_NOEND: never); if it aborts, at once.
 */
void
outbox_lane_found_own(OutboxLaneScan *scan, OutboxReadyKey key, TransactionId xid,
					  TimestampTz at)
{
	scan->nclaimed++;
	found_entry(scan, key, outbox_full_xid(xid), at);
}

/* The scan passes a message that is leased. */
void
outbox_lane_found_lease(OutboxLaneScan *scan, OutboxReadyKey key,
						TimestampTz locked_until)
{
	found_entry(scan, key, InvalidFullTransactionId, locked_until);
}

/*
 * The scan passes a message that another owner should visit: the only one that
 * can claim it, or, if shared, the preferred one.
 */
void
outbox_lane_found_part(OutboxLaneScan *scan, OutboxReadyKey key, uint64 token,
					   bool shared)
{
	OutboxPartRecord *part;

	for (int i = 0; i < scan->nparts; i++)
	{
		part = &scan->parts[i];

		/*
		 * merge keys close to each other; what is between is visited in vain
		 */
		if (part->token == token && part->shared == shared &&
			(shared || key.at - part->hi.at <= NEAR_LEASE_USECS))
		{
			part->hi = outbox_ready_key_max(part->hi, key);
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

/* Record keys in the part of an owner; false if there is no memory. */
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
	outbox_sleepers_call_lane(agenda, part, 1);
	return true;
}

/*
 * Record what is for other owners.  If there is no memory, that limits the
 * cursor.
 */
static void
record_others_parts(OutboxAgenda *agenda, int lane, OutboxLaneScan *scan,
					TimestampTz now)
{
	for (int i = 0; i < scan->nparts; i++)
	{
		if (scan->parts[i].token != scan->token &&
			!record_part(agenda, lane, &scan->place, &scan->parts[i], now))
			scan->limit = outbox_ready_key_min(scan->limit, scan->parts[i].lo);
	}
}

/*
 * Record what the scan of a part has left there for later, in place of what it
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
advance_cursor(OutboxLane *lane, const OutboxLaneScan *scan, OutboxReadyKey done,
			   TimestampTz now)
{
	OutboxReadyKey low = lane->low[scan->phase];
	OutboxReadyKey target = done;

	OUTBOX_TRACE_ADVANCE(lane, scan, done, now);
	if (scan->exhausted)
		target = outbox_ready_key_max(target, OUTBOX_MAKE(OutboxReadyKey, now, PG_INT64_MIN));
	target = outbox_ready_key_min(target, scan->limit);
	target = outbox_ready_key_min(target, low);
	if (outbox_ready_key_lt(target, lane->cursor))
		return;
	if (scan->exhausted && outbox_ready_key_cmp(scan->limit, OUTBOX_READY_KEY_MAX) == 0)
		outbox_lane_raise_cursor(lane, target, Min(scan->next_due, low.at));
	else
		outbox_lane_raise_cursor(lane, target, target.at);
}

/*
 * Record what our transaction has moved, and will be there again if it aborts.
 * What was not due yet was not leased, and needs no mark above the cursor.
 */
static void
record_moved(OutboxLane *lane, OutboxRecord *moved, TimestampTz now)
{
	OutboxReadyKey end = {now, PG_INT64_MAX};
	OutboxRecord later = *moved;

	if (outbox_ready_key_lt(end, moved->hi))
	{
		later.lo = outbox_ready_key_max(moved->lo, end);
		later.at = DT_NOBEGIN;
		(void) outbox_lane_record(lane, &later);
		moved->hi = end;
	}
	if (!outbox_ready_key_lt(moved->hi, moved->lo))
		(void) outbox_lane_record(lane, moved);
}

/*
 * Record what was found; this must be done after the cursor was raised.  What
 * is undecided may become a lease: while not all leases are known, or if a
 * mark of that lease may have been removed, it is kept in a mark even above
 * the cursor, as leases are.
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
		record_moved(lane, &moved, now);
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

/*
 * The lane in which to record what a scan has found, which may be one of a
 * part of it; OUTBOX_NIL if there is no memory.
 */
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

/* Apply what a scan has found to its lane, whose agenda is locked. */
static void
publish_scan(OutboxAgenda *agenda, int number, OutboxLaneScan *scan,
			 TimestampTz now)
{
	OutboxLane *lane = outbox_lane_at(number);
	int			into = lane_to_record_in(agenda, scan, number);
	OutboxReadyKey done;

	if (into != OUTBOX_NIL)
		record_others_parts(agenda, into, scan, now);
	done = outbox_ready_key_min(scan->passed, scan->limit);
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
	{
		OUTBOX_TRACE_LANE("known", lane, scan->leases_lost);
		lane->leases_known = true;
	}
	if (scan->phase >= 0)
		outbox_lane_unwatch(lane, scan->phase);
	if (scan->try_again)
		lane->recheck_at = TimestampTzPlusMilliseconds(now, outbox_poll_interval);
	if (into != OUTBOX_NIL && into != number)
		outbox_agenda_update(agenda, into, now);
	if (outbox_lane_is_done_part(lane))
		outbox_lane_drop(agenda, number);
	else
		outbox_agenda_update(agenda, number, now);
	outbox_sleepers_note_time(agenda);
}

/*
 * Transactions that the lane waits for may have ended before that was
 * recorded.
 */
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
