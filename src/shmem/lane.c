/*
 * lane.c
 *	  What the server remembers of each lane, so that no claim walks what is
 *	  gone.
 *
 * The killer of SKIP LOCKED queues is the index entry that cannot be removed:
 * with an old snapshot open every claim walks all that was finished since.
 * So shared memory keeps, for each lane of the ready index, where a scan has
 * to look:
 *
 *	cursor		everything below it is not claimable, but for what follows
 *	holes		ranges below the cursor whose fate was open when a scan passed
 *				them, each with the transaction that decides it
 *	buckets		ranges that hold leases, with the time the first one ends
 *	next_due	nothing from the cursor on is due before this time
 *
 * INVARIANT.  Every entry below the cursor that is, or may become, claimable
 * without another insertion into the index lies in a hole or in a bucket.
 *
 * It is kept by these rules:
 *
 *	1. Whoever inserts into the ready index reports the key afterwards
 *	   (outbox_lane_report).  A key below the cursor becomes a hole; every
 *	   watch is lowered to the key; next_due too.
 *	2. A scan registers a watch before it looks (outbox_lane_begin), and moves
 *	   the cursor no further than the smallest key reported since
 *	   (outbox_lane_finish).  So an entry inserted before the scan passes is
 *	   seen, one inserted behind its back lowers the watch, and one inserted
 *	   after the scan has published finds the cursor above it.
 *	3. A scan that passes an entry whose fate is another transaction's, or its
 *	   own and may still be rolled back, leaves a hole.  Holes are examined
 *	   again once their transaction has ended, whichever way; an abort, a
 *	   dead backend or a rolled back savepoint needs no callback.
 *	4. The old entry of a row that a transaction has moved or deleted is
 *	   invisible to itself, and back when it rolls back.  So a transaction
 *	   remembers such keys (outbox_lane_note_change), and its own scans leave
 *	   holes for them.  For the same reason it never removes a hole of its own.
 *	5. A claimed entry is a hole of the claiming transaction until it commits,
 *	   and lies in a bucket from then on.  A bucket goes away only when a scan
 *	   has looked at all of it, and has filed again what is leased still.
 *	6. What finds no room is looked at more often, not less: holes of one
 *	   transaction are merged, buckets too, and at last the cursor goes down.
 *	7. A row becomes claimable only by a new key in the index or by an aborted
 *	   claim.  Nobody sets the status back in place.
 *
 * The tables are the truth.  A lane without a slot here is scanned from its
 * start, and so is every lane after a restart, once.
 *
 * Locking is described in lane_directory.c.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/timestamp.h"

#include "outbox.h"
#include "shmem/lane.h"
#include "shmem/lane_directory.h"
#include "shmem/lane_state.h"
#include "shmem/lane_xact.h"
#include "shmem/wake.h"
#include "util/grow.h"
#include "util/guc.h"
#include "util/hash.h"

/* ---------------------------------------------------------------------- */
/* Reports                                                                */
/* ---------------------------------------------------------------------- */

/*
 * Keys lo..hi were inserted into the ready index by transaction xid, and may
 * be claimable when it commits.  To be called after the insertion.
 */
void
outbox_lane_report(Oid relid, int64 lane, OutboxKey lo, OutboxKey hi,
				   TransactionId xid)
{
	OutboxLane *slot;

	Assert(!outbox_key_lt(hi, lo));
	Assert(TransactionIdIsValid(xid));
	outbox_wake_note(relid, lane);
	if (!outbox_lane_is_topic(lane))
	{
		outbox_directory_note_owner_lane(relid, lane);
		return;
	}

	slot = outbox_directory_lock_lane(relid, lane, true);
	if (slot == NULL)
		return;
	for (int i = 0; i < OUTBOX_MAX_WATCHES; i++)
	{
		if (slot->watch[i].used)
			slot->watch[i].low = outbox_key_min(slot->watch[i].low, lo);
	}
	if (outbox_key_lt(lo, slot->cursor))
	{
		/* what lies above the cursor will be come across anyway */
		OutboxHole	hole = {lo, outbox_key_min(hi, slot->cursor), xid, false};

		if (!outbox_lane_add_hole(slot, &hole))
			outbox_lane_lower_cursor(slot, lo);
	}
	slot->next_due = Min(slot->next_due, lo.at);
	outbox_lane_set_wake_at(slot);
	LWLockRelease(&slot->lock);
}

/* The leases of keys lo..hi now end at locked_until. */
void
outbox_lane_report_lease(Oid relid, int64 lane, OutboxKey lo, OutboxKey hi,
						 TimestampTz locked_until)
{
	OutboxLane *slot = outbox_directory_lock_lane(relid, lane, true);
	OutboxBucket bucket = {locked_until, lo, hi};

	Assert(!outbox_key_lt(hi, lo));
	outbox_wake_note_lease(locked_until);
	if (slot == NULL)
		return;
	outbox_lane_add_bucket(slot, &bucket);
	outbox_lane_set_wake_at(slot);
	LWLockRelease(&slot->lock);
}

/* ---------------------------------------------------------------------- */
/* Scans                                                                  */
/* ---------------------------------------------------------------------- */

static void
take_watch(OutboxLane *slot, OutboxLaneScan *scan)
{
	for (int i = 0; i < OUTBOX_MAX_WATCHES; i++)
	{
		if (slot->watch[i].used)
			continue;
		slot->watch[i].used = true;
		slot->watch[i].low = OUTBOX_KEY_MAX;
		scan->watch = i;
		outbox_lane_hold_watch(slot, i);
		return;
	}
}

/* Is it time to look into a hole: has its transaction ended, or is it ours? */
static bool
hole_is_due(const OutboxHole *hole)
{
	if (!TransactionIdIsValid(hole->xid))
		return true;
	if (TransactionIdIsCurrentTransactionId(hole->xid))
		return !hole->claimed;
	return !TransactionIdIsInProgress(hole->xid);
}

/*
 * Prepare to scan a lane.  False if there is nothing to look at; otherwise
 * the scan must end with outbox_lane_finish, unless the transaction aborts.
 */
bool
outbox_lane_begin(Oid relid, int64 lane, TimestampTz now, OutboxScanKind kind,
				  OutboxLaneScan *scan)
{
	OutboxLane *slot = NULL;
	int			n;

	memset(scan, 0, sizeof(OutboxLaneScan));
	scan->kind = kind;
	scan->relid = relid;
	scan->lane = lane;
	scan->watch = -1;
	scan->passed = OUTBOX_KEY_MIN;
	scan->limit = OUTBOX_KEY_MAX;
	scan->next_due = PG_INT64_MAX;

	if (outbox_use_cursor && outbox_lane_is_topic(lane))
	{
		outbox_lane_reserve_watch();
		slot = outbox_directory_lock_lane(relid, lane, true);
	}
	scan->slot = slot;
	if (slot == NULL)
	{
		scan->cursor = OUTBOX_KEY_MIN;
		scan->scan_main = true;
		return true;
	}

	pg_atomic_write_u64(&outbox_directory_entry(slot)->last_used, (uint64) now);
	scan->cursor = slot->cursor;
	if (kind == OUTBOX_SCAN_CLAIM)
		scan->scan_main = slot->next_due <= now;
	else
		scan->scan_main = !slot->leases_known;
	if (scan->scan_main && kind == OUTBOX_SCAN_CLAIM)
		take_watch(slot, scan);
	if (slot->nholes > 0)
	{
		scan->holes = palloc(slot->nholes * sizeof(OutboxHole));
		memcpy(scan->holes, slot->holes, slot->nholes * sizeof(OutboxHole));
		scan->nholes = slot->nholes;
	}
	if (slot->nbuckets > 0)
	{
		scan->buckets = palloc(slot->nbuckets * sizeof(OutboxBucket));
		for (int i = 0; i < slot->nbuckets; i++)
		{
			if (slot->buckets[i].due <= now || kind == OUTBOX_SCAN_LEASES)
				scan->buckets[scan->nbuckets++] = slot->buckets[i];
		}
	}
	LWLockRelease(&slot->lock);

	n = 0;
	for (int i = 0; i < scan->nholes; i++)
	{
		if (hole_is_due(&scan->holes[i]))
			scan->holes[n++] = scan->holes[i];
	}
	scan->nholes = n;
	return scan->scan_main || scan->nholes > 0 || scan->nbuckets > 0;
}

/* Remember a hole, whatever its size. */
static void
found_range(OutboxLaneScan *scan, const OutboxHole *hole)
{
	outbox_grow(scan->found_holes, scan->nfound_holes,
				scan->max_found_holes);
	scan->found_holes[scan->nfound_holes++] = *hole;
}

/* The scan passed an entry whose fate xid decides.  Keys must not go down. */
void
outbox_lane_found_hole(OutboxLaneScan *scan, OutboxKey key, TransactionId xid,
					   bool claimed)
{
	Assert(scan->nfound_holes == 0 ||
		   !outbox_key_lt(key, scan->found_holes[scan->nfound_holes - 1].lo));
	if (scan->nfound_holes > 0)
	{
		OutboxHole *last = &scan->found_holes[scan->nfound_holes - 1];

		if (last->xid == xid && last->claimed == claimed &&
			(claimed || outbox_keys_near(last->hi, key)))
		{
			last->hi = outbox_key_max(last->hi, key);
			return;
		}
	}
	found_range(scan, &OUTBOX_MAKE(OutboxHole, key, key, xid, claimed));
}

/* The scan took, or passed, a message that is leased until locked_until. */
void
outbox_lane_found_lease(OutboxLaneScan *scan, OutboxKey key,
						TimestampTz locked_until)
{
	for (int i = scan->nfound_leases - 1;
		 i >= 0 && i >= scan->nfound_leases - 4; i--)
	{
		OutboxBucket *have = &scan->found_leases[i];

		if (have->due / USECS_PER_SEC == locked_until / USECS_PER_SEC &&
			key.at - have->hi.at <= USECS_PER_SEC)
		{
			have->due = Min(have->due, locked_until);
			have->hi = outbox_key_max(have->hi, key);
			return;
		}
	}
	outbox_grow(scan->found_leases, scan->nfound_leases,
				scan->max_found_leases);
	scan->found_leases[scan->nfound_leases++] =
		OUTBOX_MAKE(OutboxBucket, locked_until, key, key);
}

/*
 * Take off the lane what the scan was told to look at and has looked at: what
 * lies below "done".  What others have changed meanwhile stays, and so do our
 * own holes: what we do not see in them may be there again when we roll back.
 */
static void
drop_examined(OutboxLane *slot, const OutboxLaneScan *scan, OutboxKey done)
{
	for (int i = 0; scan->kind == OUTBOX_SCAN_CLAIM && i < scan->nholes; i++)
	{
		if (!TransactionIdIsCurrentTransactionId(scan->holes[i].xid))
			outbox_lane_drop_hole(slot, &scan->holes[i], done);
	}
	for (int i = 0; scan->kind != OUTBOX_SCAN_LEASES && i < scan->nbuckets; i++)
		outbox_lane_drop_bucket(slot, &scan->buckets[i], done);
}

/*
 * Leave the holes behind that the scan has found and, if it was a claim, move
 * the cursor over what it has looked at.
 */
static void
advance_cursor(OutboxLane *slot, const OutboxLaneScan *scan, OutboxKey done,
			   TimestampTz now)
{
	OutboxKey	target = scan->cursor;
	OutboxKey	low = OUTBOX_KEY_MAX;

	Assert(LWLockHeldByMeInMode(&slot->lock, LW_EXCLUSIVE));
	Assert(scan->watch < OUTBOX_MAX_WATCHES);
	Assert(scan->watch < 0 || slot->watch[scan->watch].used);
	if (scan->watch >= 0)
		low = slot->watch[scan->watch].low;
	if (scan->scan_main && scan->watch >= 0)
	{
		target = done;
		if (scan->exhausted)
			target = outbox_key_max(target, OUTBOX_MAKE(OutboxKey, now, PG_INT64_MIN));
		target = outbox_key_min(target, scan->limit);
		target = outbox_key_min(target, low);
	}

	for (int i = 0; i < scan->nfound_holes; i++)
	{
		OutboxHole	hole = scan->found_holes[i];
		OutboxKey	covered = outbox_key_max(target, slot->cursor);

		if (!outbox_key_lt(hole.lo, covered))
			continue;
		hole.hi = outbox_key_min(hole.hi, covered);
		if (!outbox_lane_add_hole(slot, &hole))
		{
			target = outbox_key_min(target, hole.lo);
			outbox_lane_lower_cursor(slot, hole.lo);
		}
	}

	if (!scan->scan_main || scan->watch < 0 ||
		outbox_key_lt(target, slot->cursor))
		return;
	Assert(outbox_key_lt(slot->cursor, target) ||
		   outbox_key_cmp(slot->cursor, target) == 0);
	slot->cursor = target;
	if (scan->exhausted && scan->limit.at == PG_INT64_MAX)
		slot->next_due = Min(scan->next_due, low.at);
	else
		slot->next_due = target.at;
}

/*
 * Publish what a scan has found, and end it.
 */
void
outbox_lane_finish(OutboxLaneScan *scan, TimestampTz now)
{
	OutboxLane *slot = scan->slot;
	OutboxKey	done = outbox_key_min(scan->passed, scan->limit);
	OutboxHole	change;
	int			next = 0;

	if (slot == NULL)
		return;
	if (scan->kind != OUTBOX_SCAN_LEASES)
	{
		while (outbox_lane_own_change(scan->relid, scan->lane, &next, &change))
			found_range(scan, &change);
	}
	for (int i = 0; i < scan->nfound_holes; i++)
	{
		if (scan->found_holes[i].claimed)
			outbox_lane_remember_claim(slot, scan->relid, scan->lane,
									   scan->found_holes[i].xid);
	}

	LWLockAcquire(&slot->lock, LW_EXCLUSIVE);
	if (outbox_directory_is_lane(slot, scan->relid, scan->lane))
	{
		drop_examined(slot, scan, done);
		if (scan->kind != OUTBOX_SCAN_LEASES)
			advance_cursor(slot, scan, done, now);
		for (int i = 0; i < scan->nfound_leases; i++)
			outbox_lane_add_bucket(slot, &scan->found_leases[i]);
		if (scan->scan_main && scan->exhausted)
			slot->leases_known = true;
		if (scan->watch >= 0)
			slot->watch[scan->watch].used = false;
		outbox_lane_set_wake_at(slot);
	}
	LWLockRelease(&slot->lock);
	if (scan->watch >= 0)
		outbox_lane_drop_watch(slot, scan->watch);
	for (int i = 0; i < scan->nfound_leases; i++)
		outbox_wake_note_lease(scan->found_leases[i].due);
}
