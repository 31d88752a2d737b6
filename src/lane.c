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
 *	4. A claimed entry is a hole of the claiming transaction until it commits,
 *	   and lies in a bucket from then on.  A bucket goes away only when a scan
 *	   has looked at all of it, and has filed again what is leased still.
 *	5. What finds no room is looked at more often, not less: holes of one
 *	   transaction are merged, buckets too, and at last the cursor goes down.
 *	6. A row becomes claimable only by a new key in the index or by an aborted
 *	   claim.  Nobody sets the status back in place.
 *
 * The tables are the truth.  A lane without a slot here is scanned from its
 * start, and so is every lane after a restart, once.
 *
 * Locks.  The directory lock guards which slot belongs to which lane, each
 * lane's lock what is remembered of it.  Directory before lane; never two
 * lanes; both held for microseconds, never while anything else is done.
 * Backends cache the address of a slot and check whose it is under its lock.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "guc.h"
#include "key.h"
#include "lane.h"
#include "shmem.h"

/* Holes of one transaction this close to each other become one. */
#define NEAR_IDS 64
#define NEAR_USECS 5000

/* A lane that still has something in it loses its slot after this time. */
#define EVICT_AFTER_USECS (INT64CONST(600) * USECS_PER_SEC)

#define SLOT_CACHE_SIZE 64

/* A watch this backend holds, and the transaction depth that opened it. */
typedef struct HeldWatch
{
	OutboxLane *slot;
	int			watch;
	int			nest_level;
} HeldWatch;

/* A hole of our own claims, to be closed when we commit. */
typedef struct OwnClaim
{
	OutboxLane *slot;
	Oid			relid;
	int64		lane;
	TransactionId xid;
} OwnClaim;

static OutboxLane *slot_cache[SLOT_CACHE_SIZE];

static HeldWatch *held_watches = NULL;
static int	nheld_watches = 0;
static int	max_held_watches = 0;

static OwnClaim *own_claims = NULL;
static int	nown_claims = 0;
static int	max_own_claims = 0;

/* ---------------------------------------------------------------------- */
/* Layout                                                                 */
/* ---------------------------------------------------------------------- */

static int *
directory_heads(OutboxShared *shared)
{
	return (int *) ((char *) shared + MAXALIGN(sizeof(OutboxShared)));
}

static OutboxLaneEntry *
directory_entries(OutboxShared *shared)
{
	return (OutboxLaneEntry *) ((char *) directory_heads(shared) +
								MAXALIGN(shared->nheads * sizeof(int)));
}

static OutboxLane *
directory_lanes(OutboxShared *shared)
{
	return (OutboxLane *) ((char *) directory_entries(shared) +
						   MAXALIGN(shared->nlanes * sizeof(OutboxLaneEntry)));
}

/* Whose slot is this?  The caller holds its lock, or the directory's. */
static OutboxLaneEntry *
entry_of(const OutboxLane *slot)
{
	OutboxShared *shared = outbox_shmem();

	return &directory_entries(shared)[slot - directory_lanes(shared)];
}

static int
heads_for(int nlanes)
{
	int			nheads = 64;

	while (nheads < nlanes)
		nheads *= 2;
	return nheads;
}

Size
outbox_lane_shmem_size(int nlanes)
{
	return MAXALIGN(sizeof(OutboxShared)) +
		MAXALIGN(heads_for(nlanes) * sizeof(int)) +
		MAXALIGN(nlanes * sizeof(OutboxLaneEntry)) +
		(Size) nlanes * sizeof(OutboxLane);
}

static void
reset_store(OutboxStoreState *store, Oid dbid, Oid relid)
{
	memset(store, 0, sizeof(OutboxStoreState));
	store->dbid = dbid;
	store->relid = relid;
	store->doubts = 1;
}

void
outbox_lane_shmem_init(OutboxShared *shared, int nlanes)
{
	int			tranche = LWLockNewTrancheId();
	int		   *heads;
	OutboxLaneEntry *entries;
	OutboxLane *lanes;

	shared->tranche = tranche;
	shared->nlanes = nlanes;
	shared->nheads = heads_for(nlanes);
	LWLockInitialize(&shared->lock, tranche);
	for (int i = 0; i < OUTBOX_MAX_STORES; i++)
		reset_store(&shared->stores[i], InvalidOid, InvalidOid);
	heads = directory_heads(shared);
	for (int i = 0; i < shared->nheads; i++)
		heads[i] = -1;
	entries = directory_entries(shared);
	lanes = directory_lanes(shared);
	for (int i = 0; i < nlanes; i++)
	{
		entries[i].relid = InvalidOid;
		entries[i].next = -1;
		pg_atomic_init_u64(&entries[i].wake_at, 0);
		pg_atomic_init_u64(&entries[i].last_used, 0);
		LWLockInitialize(&lanes[i].lock, tranche);
	}
}

static bool
same_lane(const OutboxLaneEntry *entry, Oid relid, int64 lane)
{
	return entry->relid == relid && entry->lane == lane &&
		entry->dbid == MyDatabaseId;
}

/* ---------------------------------------------------------------------- */
/* The directory                                                          */
/* ---------------------------------------------------------------------- */

static uint32
lane_hash(Oid dbid, Oid relid, int64 lane)
{
	uint64		h = (uint64) lane ^ ((uint64) relid << 32 | dbid);

	h ^= h >> 31;
	h *= UINT64CONST(0x9e3779b97f4a7c15);
	return (uint32) (h >> 32);
}

static int *
lane_head(OutboxShared *shared, Oid dbid, Oid relid, int64 lane)
{
	return &directory_heads(shared)[lane_hash(dbid, relid, lane) &
									(shared->nheads - 1)];
}

/* Find a lane's slot.  The directory lock must be held. */
static OutboxLane *
find_slot(OutboxShared *shared, Oid relid, int64 lane)
{
	OutboxLaneEntry *entries = directory_entries(shared);
	int			i = *lane_head(shared, MyDatabaseId, relid, lane);

	while (i >= 0 && !same_lane(&entries[i], relid, lane))
		i = entries[i].next;
	return i < 0 ? NULL : &directory_lanes(shared)[i];
}

/* Find what is known of a live table.  The directory lock must be held. */
static OutboxStoreState *
find_store(OutboxShared *shared, Oid dbid, Oid relid)
{
	for (int i = 0; i < OUTBOX_MAX_STORES; i++)
	{
		if (shared->stores[i].relid == relid && shared->stores[i].dbid == dbid)
			return &shared->stores[i];
	}
	return NULL;
}

/*
 * The same, taking a free place if need be, or that of the table whose lanes
 * were listed longest ago.  Exclusive directory lock.
 */
static OutboxStoreState *
make_store(OutboxShared *shared, Oid relid)
{
	OutboxStoreState *store = find_store(shared, MyDatabaseId, relid);

	if (store != NULL)
		return store;
	store = &shared->stores[0];
	for (int i = 1; i < OUTBOX_MAX_STORES; i++)
	{
		if (shared->stores[i].listed_at < store->listed_at)
			store = &shared->stores[i];
	}
	reset_store(store, MyDatabaseId, relid);
	store->listed_at = GetCurrentTimestamp();
	return store;
}

/* From now on the table may have a lane that has no slot.  Exclusive lock. */
static void
note_miss(OutboxStoreState *store)
{
	store->complete = false;
	store->misses++;
}

/* Could this lane lose its slot without anybody missing anything? */
static bool
lane_is_quiet(const OutboxLane *slot)
{
	return slot->next_due == PG_INT64_MAX && slot->leases_known &&
		slot->nholes == 0 && slot->nbuckets == 0;
}

static bool
lane_is_watched(const OutboxLane *slot)
{
	for (int i = 0; i < OUTBOX_MAX_WATCHES; i++)
	{
		if (slot->watch[i].used)
			return true;
	}
	return false;
}

/*
 * Which slot can be given away: that of the lane that was not used for the
 * longest time, at once if the lane is quiet, else only after a while.
 */
static int
slot_to_evict(OutboxShared *shared)
{
	OutboxLaneEntry *entries = directory_entries(shared);
	OutboxLane *lanes = directory_lanes(shared);
	int			best = -1;
	bool		best_quiet = false;
	uint64		now = (uint64) GetCurrentTimestamp();

	for (int i = 0; i < shared->nlanes; i++)
	{
		uint64		used = pg_atomic_read_u64(&entries[i].last_used);
		bool		quiet;
		bool		watched;

		LWLockAcquire(&lanes[i].lock, LW_SHARED);
		quiet = lane_is_quiet(&lanes[i]);
		watched = lane_is_watched(&lanes[i]);
		LWLockRelease(&lanes[i].lock);
		if (watched || (!quiet && used + EVICT_AFTER_USECS > now))
			continue;
		if (best < 0 || (quiet && !best_quiet) ||
			(quiet == best_quiet &&
			 used < pg_atomic_read_u64(&entries[best].last_used)))
		{
			best = i;
			best_quiet = quiet;
		}
	}
	return best;
}

/*
 * Free a slot.  A table that loses one with something in it no longer has a
 * complete list of lanes.  Exclusive directory lock; false if none can go.
 */
static bool
evict_slot(OutboxShared *shared, int *freed)
{
	OutboxLaneEntry *entries = directory_entries(shared);
	int			victim = slot_to_evict(shared);
	OutboxLaneEntry *entry;
	OutboxLane *slot;
	OutboxStoreState *store;
	int		   *link;

	if (victim < 0)
		return false;
	entry = &entries[victim];
	slot = &directory_lanes(shared)[victim];
	LWLockAcquire(&slot->lock, LW_EXCLUSIVE);
	if (lane_is_watched(slot))
	{
		LWLockRelease(&slot->lock);
		return false;
	}
	store = find_store(shared, entry->dbid, entry->relid);
	if (store != NULL && !lane_is_quiet(slot))
		note_miss(store);
	link = lane_head(shared, entry->dbid, entry->relid, entry->lane);
	while (*link != victim)
		link = &entries[*link].next;
	*link = entry->next;
	entry->next = -1;
	entry->relid = InvalidOid;
	LWLockRelease(&slot->lock);
	*freed = victim;
	return true;
}

static bool
free_slot(OutboxShared *shared, int *slot)
{
	OutboxLaneEntry *entries = directory_entries(shared);

	for (int i = 0; i < shared->nlanes; i++)
	{
		if (!OidIsValid(entries[i].relid))
		{
			*slot = i;
			return true;
		}
	}
	return evict_slot(shared, slot);
}

/* Give a lane a slot.  Nothing is known of it yet, so all is to be scanned. */
static OutboxLane *
make_slot(OutboxShared *shared, Oid relid, int64 lane)
{
	OutboxLane *slot;
	int			at;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	slot = find_slot(shared, relid, lane);
	if (slot == NULL && free_slot(shared, &at))
	{
		OutboxLaneEntry *entry = &directory_entries(shared)[at];
		int		   *head = lane_head(shared, MyDatabaseId, relid, lane);

		slot = &directory_lanes(shared)[at];
		LWLockAcquire(&slot->lock, LW_EXCLUSIVE);
		entry->dbid = MyDatabaseId;
		entry->relid = relid;
		entry->lane = lane;
		pg_atomic_write_u64(&entry->wake_at, (uint64) PG_INT64_MIN);
		pg_atomic_write_u64(&entry->last_used, GetCurrentTimestamp());
		slot->cursor = OUTBOX_KEY_MIN;
		slot->next_due = PG_INT64_MIN;
		slot->leases_known = false;
		slot->nholes = 0;
		slot->nbuckets = 0;
		memset(slot->watch, 0, sizeof(slot->watch));
		LWLockRelease(&slot->lock);

		entry->next = *head;
		*head = at;
	}
	else if (slot == NULL)
		note_miss(make_store(shared, relid));
	LWLockRelease(&shared->lock);
	return slot;
}

/*
 * Find a lane's slot, making it if asked to, and lock it.  NULL if the lane
 * is not tracked.
 */
static OutboxLane *
lock_slot(Oid relid, int64 lane, bool make)
{
	OutboxShared *shared = outbox_shmem();
	OutboxLane **cached;
	OutboxLane *slot;

	if (shared == NULL)
		return NULL;
	cached = &slot_cache[lane_hash(MyDatabaseId, relid, lane) % SLOT_CACHE_SIZE];
	slot = *cached;
	for (;;)
	{
		if (slot != NULL)
		{
			LWLockAcquire(&slot->lock, LW_EXCLUSIVE);
			if (same_lane(entry_of(slot), relid, lane))
			{
				*cached = slot;
				return slot;
			}
			LWLockRelease(&slot->lock);
		}
		LWLockAcquire(&shared->lock, LW_SHARED);
		slot = find_slot(shared, relid, lane);
		LWLockRelease(&shared->lock);
		if (slot == NULL && make)
			slot = make_slot(shared, relid, lane);
		if (slot == NULL)
			return NULL;
	}
}

/* ---------------------------------------------------------------------- */
/* Holes and buckets of a locked lane                                     */
/* ---------------------------------------------------------------------- */

/* A scan has to look again from key on. */
static void
lower_cursor(OutboxLane *slot, OutboxKey key)
{
	slot->cursor = outbox_key_min(slot->cursor, key);
	slot->next_due = Min(slot->next_due, key.at);
}

static bool
keys_near(OutboxKey a, OutboxKey b)
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
		return keys_near(ahi, blo);
	if (outbox_key_lt(bhi, alo))
		return keys_near(bhi, alo);
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
static bool
add_hole(OutboxLane *slot, const OutboxHole *hole)
{
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
static void
add_bucket(OutboxLane *slot, const OutboxBucket *bucket)
{
	int			at;

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

/* When will there be anything to do in this lane? */
static void
set_wake_at(OutboxLane *slot)
{
	TimestampTz wake_at = slot->next_due;

	if (slot->nholes > 0 || !slot->leases_known)
		wake_at = PG_INT64_MIN;
	for (int i = 0; i < slot->nbuckets; i++)
		wake_at = Min(wake_at, slot->buckets[i].due);
	pg_atomic_write_u64(&entry_of(slot)->wake_at, (uint64) wake_at);
}

/* ---------------------------------------------------------------------- */
/* Reports                                                                */
/* ---------------------------------------------------------------------- */

/* Owner lanes are few and short: we only remember which may exist. */
static void
report_owner_lane(Oid relid, int64 lane)
{
	OutboxShared *shared = outbox_shmem();
	uint32		bit = (uint64) lane % OUTBOX_OWNER_BITS;
	OutboxStoreState *store;

	if (shared == NULL)
		return;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	store = make_store(shared, relid);
	store->owner_bits[bit / 64] |= UINT64CONST(1) << (bit % 64);
	LWLockRelease(&shared->lock);
}

/*
 * Keys lo..hi were inserted into the ready index by transaction xid, and may
 * be claimable when it commits.  To be called after the insertion.
 */
void
outbox_lane_report(Oid relid, int64 lane, OutboxKey lo, OutboxKey hi,
				   TransactionId xid)
{
	OutboxLane *slot;

	if (!outbox_lane_is_topic(lane))
	{
		report_owner_lane(relid, lane);
		return;
	}

	slot = lock_slot(relid, lane, true);
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

		if (!add_hole(slot, &hole))
			lower_cursor(slot, lo);
	}
	slot->next_due = Min(slot->next_due, lo.at);
	set_wake_at(slot);
	LWLockRelease(&slot->lock);
}

/* The leases of keys lo..hi now end at locked_until. */
void
outbox_lane_report_lease(Oid relid, int64 lane, OutboxKey lo, OutboxKey hi,
						 TimestampTz locked_until)
{
	OutboxLane *slot = lock_slot(relid, lane, false);
	OutboxBucket bucket = {locked_until, lo, hi};

	if (slot == NULL)
		return;
	add_bucket(slot, &bucket);
	set_wake_at(slot);
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
		held_watches[nheld_watches++] =
			(HeldWatch) {slot, i, GetCurrentTransactionNestLevel()};
		return;
	}
}

static void
forget_watch(OutboxLane *slot, int watch)
{
	for (int i = nheld_watches - 1; i >= 0; i--)
	{
		if (held_watches[i].slot == slot && held_watches[i].watch == watch)
		{
			held_watches[i] = held_watches[--nheld_watches];
			return;
		}
	}
}

/* Room for one more watch; nothing may be allocated under a lane's lock. */
static void
reserve_watch(void)
{
	if (nheld_watches < max_held_watches)
		return;
	if (held_watches == NULL)
	{
		max_held_watches = 16;
		held_watches = MemoryContextAlloc(TopMemoryContext,
										  max_held_watches * sizeof(HeldWatch));
	}
	else
	{
		max_held_watches *= 2;
		held_watches = repalloc(held_watches,
								max_held_watches * sizeof(HeldWatch));
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
		reserve_watch();
		slot = lock_slot(relid, lane, true);
	}
	scan->slot = slot;
	if (slot == NULL)
	{
		scan->cursor = OUTBOX_KEY_MIN;
		scan->scan_main = true;
		return true;
	}

	pg_atomic_write_u64(&entry_of(slot)->last_used, (uint64) now);
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

/* The scan passed an entry whose fate xid decides.  Keys must not go down. */
void
outbox_lane_found_hole(OutboxLaneScan *scan, OutboxKey key, TransactionId xid,
					   bool claimed)
{
	OutboxHole *last;

	if (scan->nfound_holes > 0)
	{
		last = &scan->found_holes[scan->nfound_holes - 1];
		if (last->xid == xid && last->claimed == claimed &&
			(claimed || keys_near(last->hi, key)))
		{
			last->hi = outbox_key_max(last->hi, key);
			return;
		}
	}
	if (scan->nfound_holes == scan->max_found_holes)
	{
		if (scan->max_found_holes == 0)
		{
			scan->max_found_holes = 8;
			scan->found_holes = palloc(8 * sizeof(OutboxHole));
		}
		else
		{
			scan->max_found_holes *= 2;
			scan->found_holes = repalloc_huge(scan->found_holes,
											  (Size) scan->max_found_holes *
											  sizeof(OutboxHole));
		}
	}
	scan->found_holes[scan->nfound_holes++] =
		(OutboxHole) {key, key, xid, claimed};
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
	if (scan->nfound_leases == scan->max_found_leases)
	{
		if (scan->max_found_leases == 0)
		{
			scan->max_found_leases = 8;
			scan->found_leases = palloc(8 * sizeof(OutboxBucket));
		}
		else
		{
			scan->max_found_leases *= 2;
			scan->found_leases = repalloc_huge(scan->found_leases,
											   (Size) scan->max_found_leases *
											   sizeof(OutboxBucket));
		}
	}
	scan->found_leases[scan->nfound_leases++] =
		(OutboxBucket) {locked_until, key, key};
}

/* Remember that our commit closes the claimed holes of xid in this lane. */
static void
remember_own_claim(OutboxLaneScan *scan, TransactionId xid)
{
	for (int i = 0; i < nown_claims; i++)
	{
		if (own_claims[i].slot == scan->slot && own_claims[i].xid == xid)
			return;
	}
	if (nown_claims == max_own_claims)
	{
		if (own_claims == NULL)
		{
			max_own_claims = 16;
			own_claims = MemoryContextAlloc(TopMemoryContext,
											max_own_claims * sizeof(OwnClaim));
		}
		else
		{
			max_own_claims *= 2;
			own_claims = repalloc(own_claims,
								  max_own_claims * sizeof(OwnClaim));
		}
	}
	own_claims[nown_claims++] =
		(OwnClaim) {scan->slot, scan->relid, scan->lane, xid};
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
 * Take off the lane what the scan was told to look at and has looked at: what
 * lies below "done" altogether, of the rest the part below it.  What others
 * have changed meanwhile stays.
 */
static void
drop_examined(OutboxLane *slot, const OutboxLaneScan *scan, OutboxKey done)
{
	for (int i = 0; scan->kind == OUTBOX_SCAN_CLAIM && i < scan->nholes; i++)
	{
		int			at = position_of_hole(slot, &scan->holes[i]);

		if (at < 0 || !outbox_key_lt(scan->holes[i].lo, done))
			continue;
		if (outbox_key_lt(scan->holes[i].hi, done))
			slot->holes[at] = slot->holes[--slot->nholes];
		else
			slot->holes[at].lo = done;
	}
	for (int i = 0; scan->kind != OUTBOX_SCAN_LEASES && i < scan->nbuckets; i++)
	{
		int			at = position_of_bucket(slot, &scan->buckets[i]);

		if (at < 0 || !outbox_key_lt(scan->buckets[i].lo, done))
			continue;
		if (outbox_key_lt(scan->buckets[i].hi, done))
		{
			slot->nbuckets--;
			memmove(&slot->buckets[at], &slot->buckets[at + 1],
					(slot->nbuckets - at) * sizeof(OutboxBucket));
		}
		else
			slot->buckets[at].lo = done;
	}
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

	if (scan->watch >= 0)
		low = slot->watch[scan->watch].low;
	if (scan->scan_main && scan->watch >= 0)
	{
		target = done;
		if (scan->exhausted)
			target = outbox_key_max(target, (OutboxKey) {now, PG_INT64_MIN});
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
		if (!add_hole(slot, &hole))
		{
			target = outbox_key_min(target, hole.lo);
			lower_cursor(slot, hole.lo);
		}
	}

	if (!scan->scan_main || scan->watch < 0 ||
		outbox_key_lt(target, slot->cursor))
		return;
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

	if (slot == NULL)
		return;
	for (int i = 0; i < scan->nfound_holes; i++)
	{
		if (scan->found_holes[i].claimed)
			remember_own_claim(scan, scan->found_holes[i].xid);
	}

	LWLockAcquire(&slot->lock, LW_EXCLUSIVE);
	if (same_lane(entry_of(slot), scan->relid, scan->lane))
	{
		drop_examined(slot, scan, done);
		if (scan->kind != OUTBOX_SCAN_LEASES)
			advance_cursor(slot, scan, done, now);
		for (int i = 0; i < scan->nfound_leases; i++)
			add_bucket(slot, &scan->found_leases[i]);
		if (scan->scan_main && scan->exhausted)
			slot->leases_known = true;
		if (scan->watch >= 0)
			slot->watch[scan->watch].used = false;
		set_wake_at(slot);
	}
	LWLockRelease(&slot->lock);
	if (scan->watch >= 0)
		forget_watch(slot, scan->watch);
}

/* ---------------------------------------------------------------------- */
/* Which lanes are there?                                                 */
/* ---------------------------------------------------------------------- */

/* Does a lane pass a filter? */
bool
outbox_lane_wanted(const OutboxLaneFilter *filter, int64 lane)
{
	if (filter->namespace_hash != NULL &&
		outbox_lane_namespace(lane) != *filter->namespace_hash)
		return false;
	if (filter->topic_hashes == NULL)
		return true;
	for (int i = 0; i < filter->ntopics; i++)
	{
		if (outbox_lane_topic(lane) == filter->topic_hashes[i])
			return true;
	}
	return false;
}

/*
 * List the lanes that pass the filter and in which there may be something to
 * do by now.  False if we do not know them all: then the caller must list
 * them from the index (outbox_lanes_listing_*).
 */
bool
outbox_lanes_list(Oid relid, const OutboxLaneFilter *filter, TimestampTz now,
				  OutboxScanKind kind, int64 **lanes, int *nlanes)
{
	OutboxShared *shared = outbox_use_cursor ? outbox_shmem() : NULL;
	OutboxStoreState *store;
	OutboxLaneEntry *entries;
	bool		complete;

	*nlanes = 0;
	if (shared == NULL)
		return false;
	*lanes = palloc(shared->nlanes * sizeof(int64));
	entries = directory_entries(shared);

	LWLockAcquire(&shared->lock, LW_SHARED);
	store = find_store(shared, MyDatabaseId, relid);
	complete = store != NULL && store->complete;
	for (int i = 0; complete && i < shared->nlanes; i++)
	{
		OutboxLaneEntry *entry = &entries[i];

		if (entry->relid != relid || entry->dbid != MyDatabaseId ||
			!outbox_lane_wanted(filter, entry->lane))
			continue;
		if (kind == OUTBOX_SCAN_LEASES ||
			(TimestampTz) pg_atomic_read_u64(&entry->wake_at) <= now)
			(*lanes)[(*nlanes)++] = entry->lane;
	}
	LWLockRelease(&shared->lock);
	return complete;
}

/*
 * Somebody starts to list the lanes from the index.  What is in the index now
 * will be listed by them; what comes later is reported and makes its slot.
 */
uint32
outbox_lanes_listing_begin(Oid relid)
{
	OutboxShared *shared = outbox_use_cursor ? outbox_shmem() : NULL;
	OutboxStoreState *store;
	uint32		ticket = 0;

	if (shared == NULL)
		return 0;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	store = make_store(shared, relid);
	ticket = store->misses;
	memset(store->owner_bits, 0, sizeof(store->owner_bits));
	LWLockRelease(&shared->lock);
	return ticket;
}

void
outbox_lanes_listing_add(Oid relid, int64 lane)
{
	OutboxLane *slot;

	if (!outbox_lane_is_topic(lane))
	{
		report_owner_lane(relid, lane);
		return;
	}
	if (!outbox_use_cursor)
		return;
	slot = lock_slot(relid, lane, true);
	if (slot != NULL)
		LWLockRelease(&slot->lock);
}

void
outbox_lanes_listing_end(Oid relid, uint32 ticket)
{
	OutboxShared *shared = outbox_use_cursor ? outbox_shmem() : NULL;
	OutboxStoreState *store;

	if (shared == NULL)
		return;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	store = find_store(shared, MyDatabaseId, relid);
	if (store != NULL)
	{
		store->complete = store->misses == ticket;
		store->owners_known = true;
		store->listed_at = GetCurrentTimestamp();
	}
	LWLockRelease(&shared->lock);
}

/* Should the lanes be listed before anything else is done? */
bool
outbox_lanes_need_listing(Oid relid)
{
	OutboxShared *shared = outbox_use_cursor ? outbox_shmem() : NULL;
	OutboxStoreState *store;
	bool		result;

	if (shared == NULL)
		return false;
	LWLockAcquire(&shared->lock, LW_SHARED);
	store = find_store(shared, MyDatabaseId, relid);
	result = store == NULL || !store->owners_known;
	LWLockRelease(&shared->lock);
	return result;
}

/* May there be anything in this owner lane? */
bool
outbox_owner_lane_may_exist(Oid relid, int64 lane)
{
	OutboxShared *shared = outbox_use_cursor ? outbox_shmem() : NULL;
	OutboxStoreState *store;
	bool		result = true;

	if (shared == NULL)
		return true;
	LWLockAcquire(&shared->lock, LW_SHARED);
	store = find_store(shared, MyDatabaseId, relid);
	if (store != NULL && store->owners_known)
	{
		uint32		bit = (uint64) lane % OUTBOX_OWNER_BITS;

		result = (store->owner_bits[bit / 64] >> (bit % 64)) & 1;
	}
	LWLockRelease(&shared->lock);
	return result;
}

/* ---------------------------------------------------------------------- */
/* Streams in doubt                                                       */
/* ---------------------------------------------------------------------- */

/* May outbox.stream_doubts have rows for this table? */
bool
outbox_doubts_may_exist(Oid relid, uint32 *seen)
{
	OutboxShared *shared = outbox_use_cursor ? outbox_shmem() : NULL;
	OutboxStoreState *store;
	bool		result = true;

	*seen = 0;
	if (shared == NULL)
		return true;
	LWLockAcquire(&shared->lock, LW_SHARED);
	store = find_store(shared, MyDatabaseId, relid);
	if (store != NULL)
	{
		*seen = store->doubts;
		result = store->doubts != store->doubts_none;
	}
	LWLockRelease(&shared->lock);
	return result;
}

/* A row was inserted there. */
void
outbox_doubts_report(Oid relid)
{
	OutboxShared *shared = outbox_shmem();

	if (shared == NULL)
		return;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	make_store(shared, relid)->doubts++;
	LWLockRelease(&shared->lock);
}

/*
 * When doubts_may_exist said "seen", there was no row, not even one that is
 * not committed yet.
 */
void
outbox_doubts_none(Oid relid, uint32 seen)
{
	OutboxShared *shared = outbox_use_cursor ? outbox_shmem() : NULL;
	OutboxStoreState *store;

	if (shared == NULL)
		return;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	store = find_store(shared, MyDatabaseId, relid);
	if (store != NULL && seen != 0)
		store->doubts_none = seen;
	LWLockRelease(&shared->lock);
}

/* ---------------------------------------------------------------------- */
/* The end of a transaction                                               */
/* ---------------------------------------------------------------------- */

static void
release_watches(int nest_level)
{
	for (int i = nheld_watches - 1; i >= 0; i--)
	{
		HeldWatch  *held = &held_watches[i];

		if (held->nest_level < nest_level)
			continue;
		LWLockAcquire(&held->slot->lock, LW_EXCLUSIVE);
		held->slot->watch[held->watch].used = false;
		LWLockRelease(&held->slot->lock);
		held_watches[i] = held_watches[--nheld_watches];
	}
}

/* Our claims are final: close their holes. */
static void
close_own_holes(void)
{
	for (int i = 0; i < nown_claims; i++)
	{
		OwnClaim   *own = &own_claims[i];
		OutboxLane *slot = own->slot;

		/* a savepoint that was rolled back */
		if (!TransactionIdDidCommit(own->xid))
			continue;
		LWLockAcquire(&slot->lock, LW_EXCLUSIVE);
		if (same_lane(entry_of(slot), own->relid, own->lane))
		{
			for (int h = slot->nholes - 1; h >= 0; h--)
			{
				if (slot->holes[h].claimed && slot->holes[h].xid == own->xid)
					slot->holes[h] = slot->holes[--slot->nholes];
			}
			set_wake_at(slot);
		}
		LWLockRelease(&slot->lock);
	}
}

/*
 * The transaction is over: committed, or aborted or prepared.  In the latter
 * two cases our holes stay; the next scan that finds their transaction ended
 * looks into them.
 */
void
outbox_lane_xact_end(bool committed)
{
	if (nheld_watches > 0)
		release_watches(0);
	if (committed && nown_claims > 0)
		close_own_holes();
	nown_claims = 0;
}

void
outbox_lane_subxact_abort(void)
{
	if (nheld_watches > 0)
		release_watches(GetCurrentTransactionNestLevel());
}
