/*
 * lane_state.c
 *	  What is remembered of one lane: cursor, holes, buckets.
 *
 * The functions here change a lane that the caller has locked.  What they
 * keep is the invariant of lane.c: where there is no room for something it is
 * merged with something else, so that more is looked at than need be, and
 * never less.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "outbox.h"
#include "shmem/lane_state.h"

/* Holes of one transaction this close to each other become one. */
#define NEAR_IDS 64
#define NEAR_USECS 5000

/* Nothing is known of the lane, so all of it is to be scanned. */
void
outbox_lane_reset(OutboxLane *slot)
{
	Assert(LWLockHeldByMeInMode(&slot->lock, LW_EXCLUSIVE));
	slot->cursor = OUTBOX_KEY_MIN;
	slot->next_due = PG_INT64_MIN;
	slot->leases_known = false;
	slot->nholes = 0;
	slot->nbuckets = 0;
	memset(slot->watch, 0, sizeof(slot->watch));
}

/* Could this lane lose its slot without anybody missing anything? */
bool
outbox_lane_is_quiet(const OutboxLane *slot)
{
	return slot->next_due == PG_INT64_MAX && slot->leases_known &&
		slot->nholes == 0 && slot->nbuckets == 0;
}

bool
outbox_lane_is_watched(const OutboxLane *slot)
{
	for (int i = 0; i < OUTBOX_MAX_WATCHES; i++)
	{
		if (slot->watch[i].used)
			return true;
	}
	return false;
}

/* A scan has to look again from key on. */
void
outbox_lane_lower_cursor(OutboxLane *slot, OutboxKey key)
{
	Assert(LWLockHeldByMeInMode(&slot->lock, LW_EXCLUSIVE));
	slot->cursor = outbox_key_min(slot->cursor, key);
	slot->next_due = Min(slot->next_due, key.at);
}

bool
outbox_keys_near(OutboxKey a, OutboxKey b)
{
	OutboxKey	lo = outbox_key_min(a, b);
	OutboxKey	hi = outbox_key_max(a, b);

	return hi.at - lo.at <= NEAR_USECS &&
		hi.id - lo.id <= NEAR_IDS && lo.id - hi.id <= NEAR_IDS;
}

/* Do two ranges overlap, or nearly? */
static bool
ranges_meet(OutboxKey alo, OutboxKey ahi, OutboxKey blo, OutboxKey bhi)
{
	if (outbox_key_lt(ahi, blo))
		return outbox_keys_near(ahi, blo);
	if (outbox_key_lt(bhi, alo))
		return outbox_keys_near(bhi, alo);
	return true;
}

/*
 * Of the holes of transactions that have several, merge the two that lie
 * closest.  The merged range covers more than it must, and is walked once
 * more when its transaction ends.
 */
static bool
merge_holes(OutboxLane *slot)
{
	int			best_a = -1;
	int			best_b = -1;
	int64		best_gap = PG_INT64_MAX;

	for (int a = 0; a < slot->nholes; a++)
	{
		OutboxHole *ha = &slot->holes[a];

		for (int b = a + 1; b < slot->nholes; b++)
		{
			OutboxHole *hb = &slot->holes[b];
			int64		gap;

			if (ha->xid != hb->xid || ha->claimed != hb->claimed)
				continue;
			gap = Max(hb->lo.at, ha->lo.at) - Min(ha->hi.at, hb->hi.at);
			if (best_a < 0 || gap < best_gap)
			{
				best_a = a;
				best_b = b;
				best_gap = gap;
			}
		}
	}
	if (best_a < 0)
		return false;
	slot->holes[best_a].lo = outbox_key_min(slot->holes[best_a].lo,
											slot->holes[best_b].lo);
	slot->holes[best_a].hi = outbox_key_max(slot->holes[best_a].hi,
											slot->holes[best_b].hi);
	slot->holes[best_b] = slot->holes[--slot->nholes];
	return true;
}

/* Remember a hole; false if there is no room for it. */
bool
outbox_lane_add_hole(OutboxLane *slot, const OutboxHole *hole)
{
	Assert(LWLockHeldByMeInMode(&slot->lock, LW_EXCLUSIVE));
	Assert(!outbox_key_lt(hole->hi, hole->lo));
	Assert(slot->nholes >= 0 && slot->nholes <= OUTBOX_MAX_HOLES);
	for (int i = slot->nholes - 1; i >= 0; i--)
	{
		OutboxHole *have = &slot->holes[i];

		if (have->xid == hole->xid && have->claimed == hole->claimed &&
			ranges_meet(have->lo, have->hi, hole->lo, hole->hi))
		{
			have->lo = outbox_key_min(have->lo, hole->lo);
			have->hi = outbox_key_max(have->hi, hole->hi);
			return true;
		}
	}
	if (slot->nholes == OUTBOX_MAX_HOLES && !merge_holes(slot))
		return false;
	slot->holes[slot->nholes++] = *hole;
	return true;
}

/* Merge the two neighbouring buckets whose keys lie closest. */
static void
merge_buckets(OutboxLane *slot)
{
	int			best = 0;
	int64		best_gap = PG_INT64_MAX;

	Assert(slot->nbuckets >= 2);
	for (int i = 0; i + 1 < slot->nbuckets; i++)
	{
		int64		gap = slot->buckets[i + 1].lo.at - slot->buckets[i].hi.at;

		if (gap < best_gap)
		{
			best = i;
			best_gap = gap;
		}
	}
	slot->buckets[best].due = Min(slot->buckets[best].due,
								  slot->buckets[best + 1].due);
	slot->buckets[best].lo = outbox_key_min(slot->buckets[best].lo,
											slot->buckets[best + 1].lo);
	slot->buckets[best].hi = outbox_key_max(slot->buckets[best].hi,
											slot->buckets[best + 1].hi);
	slot->nbuckets--;
	memmove(&slot->buckets[best + 1], &slot->buckets[best + 2],
			(slot->nbuckets - best - 1) * sizeof(OutboxBucket));
}

/*
 * Remember leases.  Those that end in the same second and lie close together
 * share a bucket, which is due when the first of them ends.
 */
void
outbox_lane_add_bucket(OutboxLane *slot, const OutboxBucket *bucket)
{
	int			at;

	Assert(LWLockHeldByMeInMode(&slot->lock, LW_EXCLUSIVE));
	Assert(!outbox_key_lt(bucket->hi, bucket->lo));
	Assert(slot->nbuckets >= 0 && slot->nbuckets <= OUTBOX_MAX_BUCKETS);
	for (int i = slot->nbuckets - 1; i >= 0; i--)
	{
		OutboxBucket *have = &slot->buckets[i];

		if (have->due / USECS_PER_SEC == bucket->due / USECS_PER_SEC &&
			bucket->lo.at - have->hi.at <= USECS_PER_SEC &&
			have->lo.at - bucket->hi.at <= USECS_PER_SEC)
		{
			/* the order by lo may suffer a little; only merging cares */
			have->due = Min(have->due, bucket->due);
			have->lo = outbox_key_min(have->lo, bucket->lo);
			have->hi = outbox_key_max(have->hi, bucket->hi);
			return;
		}
	}
	if (slot->nbuckets == OUTBOX_MAX_BUCKETS)
		merge_buckets(slot);
	at = slot->nbuckets++;
	while (at > 0 && outbox_key_lt(bucket->lo, slot->buckets[at - 1].lo))
	{
		slot->buckets[at] = slot->buckets[at - 1];
		at--;
	}
	slot->buckets[at] = *bucket;
}

/* Where in the lane's list is this very hole? */
static int
position_of_hole(const OutboxLane *slot, const OutboxHole *hole)
{
	for (int i = 0; i < slot->nholes; i++)
	{
		const OutboxHole *have = &slot->holes[i];

		if (have->xid == hole->xid && have->claimed == hole->claimed &&
			outbox_key_cmp(have->lo, hole->lo) == 0 &&
			outbox_key_cmp(have->hi, hole->hi) == 0)
			return i;
	}
	return -1;
}

static int
position_of_bucket(const OutboxLane *slot, const OutboxBucket *bucket)
{
	for (int i = 0; i < slot->nbuckets; i++)
	{
		const OutboxBucket *have = &slot->buckets[i];

		if (have->due == bucket->due &&
			outbox_key_cmp(have->lo, bucket->lo) == 0 &&
			outbox_key_cmp(have->hi, bucket->hi) == 0)
			return i;
	}
	return -1;
}

/*
 * A hole, or a bucket, was looked at up to "done".  Take that much off the
 * list, if it is still as it was then.
 */
void
outbox_lane_drop_hole(OutboxLane *slot, const OutboxHole *hole, OutboxKey done)
{
	int			at = position_of_hole(slot, hole);

	Assert(LWLockHeldByMeInMode(&slot->lock, LW_EXCLUSIVE));
	if (at < 0 || !outbox_key_lt(hole->lo, done))
		return;
	if (outbox_key_lt(hole->hi, done))
		slot->holes[at] = slot->holes[--slot->nholes];
	else
		slot->holes[at].lo = done;
}

void
outbox_lane_drop_bucket(OutboxLane *slot, const OutboxBucket *bucket,
						OutboxKey done)
{
	int			at = position_of_bucket(slot, bucket);

	Assert(LWLockHeldByMeInMode(&slot->lock, LW_EXCLUSIVE));
	if (at < 0 || !outbox_key_lt(bucket->lo, done))
		return;
	if (outbox_key_lt(bucket->hi, done))
	{
		slot->nbuckets--;
		memmove(&slot->buckets[at], &slot->buckets[at + 1],
				(slot->nbuckets - at) * sizeof(OutboxBucket));
	}
	else
		slot->buckets[at].lo = done;
}
