/*
 * lane_directory.c
 *	  Which lanes are followed in shared memory, and where.
 *
 * The block holds a fixed number of slots.  A lane gets one when it is first
 * scanned or written to; when there is none left, that of a lane in which
 * there is nothing, or which was not used for a while.  A table of whose
 * lanes every one has a slot is "complete": then a claim for all topics need
 * not ask the index which there are.
 *
 * The directory lock guards which slot belongs to which lane; to change that
 * takes the lane's lock as well, so that holding either is enough to rely on
 * it.  Backends cache the address of a slot and check whose it is when they
 * have locked it.  Directory before lane; never two lanes; both held for
 * microseconds, and no table is read under them.  All that is allocated under
 * them is the copy of holes and buckets that a scan takes along.
 */
#include "postgres.h"

#include "access/twophase.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "shmem/lane.h"
#include "shmem/lane_directory.h"
#include "shmem/lane_state.h"
#include "shmem/shmem.h"
#include "util/guc.h"
#include "util/hash.h"

/* A lane that still has something in it loses its slot after this time. */
#define EVICT_AFTER_USECS (INT64CONST(60) * USECS_PER_SEC)

#define SLOT_CACHE_SIZE 64

static OutboxLane *slot_cache[SLOT_CACHE_SIZE];

/* NULL if there is no shared memory. */
static OutboxLaneDirectory *
get_directory(void)
{
	OutboxShared *shared = outbox_shmem();

	return shared == NULL ? NULL : &shared->lanes;
}

/* ---------------------------------------------------------------------- */
/* Layout                                                                 */
/* ---------------------------------------------------------------------- */

static int *
directory_heads(OutboxLaneDirectory *directory)
{
	return (int *) ((char *) directory + MAXALIGN(sizeof(OutboxLaneDirectory)));
}

static OutboxLaneEntry *
directory_entries(OutboxLaneDirectory *directory)
{
	return (OutboxLaneEntry *) ((char *) directory_heads(directory) +
								MAXALIGN(directory->nheads * sizeof(int)));
}

static OutboxLane *
directory_lanes(OutboxLaneDirectory *directory)
{
	return (OutboxLane *) ((char *) directory_entries(directory) +
						   MAXALIGN(directory->nlanes * sizeof(OutboxLaneEntry)));
}

/* Whose slot is this?  The caller holds its lock, or the directory's. */
OutboxLaneEntry *
outbox_directory_entry(const OutboxLane *slot)
{
	OutboxLaneDirectory *directory = get_directory();

	return &directory_entries(directory)[slot - directory_lanes(directory)];
}

/* When will there be anything to do in this lane? */
void
outbox_lane_set_wake_at(OutboxLane *slot)
{
	TimestampTz wake_at = slot->next_due;

	Assert(LWLockHeldByMeInMode(&slot->lock, LW_EXCLUSIVE));
	if (slot->nholes > 0 || !slot->leases_known)
		wake_at = PG_INT64_MIN;
	for (int i = 0; i < slot->nbuckets; i++)
		wake_at = Min(wake_at, slot->buckets[i].due);
	pg_atomic_write_u64(&outbox_directory_entry(slot)->wake_at, (uint64) wake_at);
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
outbox_directory_size(int nlanes)
{
	return MAXALIGN(sizeof(OutboxLaneDirectory)) +
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
outbox_directory_init(OutboxLaneDirectory *directory, int nlanes, int tranche)
{
	int		   *heads;
	OutboxLaneEntry *entries;
	OutboxLane *lanes;

	directory->nlanes = nlanes;
	directory->nheads = heads_for(nlanes);
	LWLockInitialize(&directory->lock, tranche);
	for (int i = 0; i < OUTBOX_MAX_STORES; i++)
		reset_store(&directory->stores[i], InvalidOid, InvalidOid);
	heads = directory_heads(directory);
	for (int i = 0; i < directory->nheads; i++)
		heads[i] = -1;
	entries = directory_entries(directory);
	lanes = directory_lanes(directory);
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

/* Is this slot that lane's?  The caller has locked the slot. */
bool
outbox_directory_is_lane(const OutboxLane *slot, Oid relid, int64 lane)
{
	Assert(LWLockHeldByMe(unconstify(LWLock *, &slot->lock)));
	return same_lane(outbox_directory_entry(slot), relid, lane);
}

/* ---------------------------------------------------------------------- */
/* Slots                                                                  */
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
lane_head(OutboxLaneDirectory *directory, Oid dbid, Oid relid, int64 lane)
{
	return &directory_heads(directory)[lane_hash(dbid, relid, lane) &
									   (directory->nheads - 1)];
}

/* Find a lane's slot.  The directory lock must be held. */
static OutboxLane *
find_slot(OutboxLaneDirectory *directory, Oid relid, int64 lane)
{
	OutboxLaneEntry *entries = directory_entries(directory);
	int			i = *lane_head(directory, MyDatabaseId, relid, lane);

	Assert(LWLockHeldByMe(&directory->lock));
	while (i >= 0 && !same_lane(&entries[i], relid, lane))
		i = entries[i].next;
	return i < 0 ? NULL : &directory_lanes(directory)[i];
}

/* Find what is known of a live table.  The directory lock must be held. */
static OutboxStoreState *
find_store(OutboxLaneDirectory *directory, Oid dbid, Oid relid)
{
	Assert(LWLockHeldByMe(&directory->lock));
	for (int i = 0; i < OUTBOX_MAX_STORES; i++)
	{
		if (directory->stores[i].relid == relid && directory->stores[i].dbid == dbid)
			return &directory->stores[i];
	}
	return NULL;
}

/*
 * The same, taking a free place if need be, or that of the table whose lanes
 * were listed longest ago.  Exclusive directory lock.
 */
static OutboxStoreState *
make_store(OutboxLaneDirectory *directory, Oid relid)
{
	OutboxStoreState *store = find_store(directory, MyDatabaseId, relid);

	Assert(LWLockHeldByMeInMode(&directory->lock, LW_EXCLUSIVE));
	if (store != NULL)
		return store;
	store = &directory->stores[0];
	for (int i = 1; i < OUTBOX_MAX_STORES; i++)
	{
		if (directory->stores[i].listed_at < store->listed_at)
			store = &directory->stores[i];
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

/*
 * Which slot can be given away: that of the lane that was not used for the
 * longest time, at once if the lane is quiet, else only after a while.
 */
static int
slot_to_evict(OutboxLaneDirectory *directory)
{
	OutboxLaneEntry *entries = directory_entries(directory);
	OutboxLane *lanes = directory_lanes(directory);
	int			best = -1;
	bool		best_quiet = false;
	uint64		now = (uint64) GetCurrentTimestamp();

	for (int i = 0; i < directory->nlanes; i++)
	{
		uint64		used = pg_atomic_read_u64(&entries[i].last_used);
		bool		quiet;
		bool		watched;

		LWLockAcquire(&lanes[i].lock, LW_SHARED);
		quiet = outbox_lane_is_quiet(&lanes[i]);
		watched = outbox_lane_is_watched(&lanes[i]);
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
evict_slot(OutboxLaneDirectory *directory, int *freed)
{
	OutboxLaneEntry *entries = directory_entries(directory);
	int			victim = slot_to_evict(directory);
	OutboxLaneEntry *entry;
	OutboxLane *slot;
	OutboxStoreState *store;
	int		   *link;

	Assert(LWLockHeldByMeInMode(&directory->lock, LW_EXCLUSIVE));
	Assert(victim < directory->nlanes);
	if (victim < 0)
		return false;
	entry = &entries[victim];
	slot = &directory_lanes(directory)[victim];
	LWLockAcquire(&slot->lock, LW_EXCLUSIVE);
	if (outbox_lane_is_watched(slot))
	{
		LWLockRelease(&slot->lock);
		return false;
	}
	store = find_store(directory, entry->dbid, entry->relid);
	if (store != NULL && !outbox_lane_is_quiet(slot))
		note_miss(store);
	link = lane_head(directory, entry->dbid, entry->relid, entry->lane);
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
free_slot(OutboxLaneDirectory *directory, int *slot)
{
	OutboxLaneEntry *entries = directory_entries(directory);

	for (int i = 0; i < directory->nlanes; i++)
	{
		if (!OidIsValid(entries[i].relid))
		{
			*slot = i;
			return true;
		}
	}
	return evict_slot(directory, slot);
}

/* Give a lane a slot.  Nothing is known of it yet, so all is to be scanned. */
static OutboxLane *
make_slot(OutboxLaneDirectory *directory, Oid relid, int64 lane)
{
	OutboxLane *slot;
	int			at;

	LWLockAcquire(&directory->lock, LW_EXCLUSIVE);
	slot = find_slot(directory, relid, lane);
	if (slot == NULL && free_slot(directory, &at))
	{
		OutboxLaneEntry *entry = &directory_entries(directory)[at];
		int		   *head = lane_head(directory, MyDatabaseId, relid, lane);

		slot = &directory_lanes(directory)[at];
		LWLockAcquire(&slot->lock, LW_EXCLUSIVE);
		entry->dbid = MyDatabaseId;
		entry->relid = relid;
		entry->lane = lane;
		pg_atomic_write_u64(&entry->wake_at, (uint64) PG_INT64_MIN);
		pg_atomic_write_u64(&entry->last_used, GetCurrentTimestamp());
		outbox_lane_reset(slot);
		LWLockRelease(&slot->lock);

		entry->next = *head;
		*head = at;
	}
	else if (slot == NULL)
		note_miss(make_store(directory, relid));
	LWLockRelease(&directory->lock);
	return slot;
}

/*
 * Find a lane's slot, making it if asked to, and lock it.  NULL if the lane
 * is not tracked.
 */
OutboxLane *
outbox_directory_lock_lane(Oid relid, int64 lane, bool make)
{
	OutboxLaneDirectory *directory = get_directory();
	OutboxLane **cached;
	OutboxLane *slot;

	if (directory == NULL)
		return NULL;
	cached = &slot_cache[lane_hash(MyDatabaseId, relid, lane) % SLOT_CACHE_SIZE];
	slot = *cached;
	for (;;)
	{
		if (slot != NULL)
		{
			LWLockAcquire(&slot->lock, LW_EXCLUSIVE);
			if (outbox_directory_is_lane(slot, relid, lane))
			{
				*cached = slot;
				return slot;
			}
			LWLockRelease(&slot->lock);
		}
		LWLockAcquire(&directory->lock, LW_SHARED);
		slot = find_slot(directory, relid, lane);
		LWLockRelease(&directory->lock);
		if (slot == NULL && make)
			slot = make_slot(directory, relid, lane);
		if (slot == NULL)
			return NULL;
	}
}

/* ---------------------------------------------------------------------- */
/* Which lanes are there?                                                 */
/* ---------------------------------------------------------------------- */

/* How many lanes can be followed, and how many are; by all databases. */
void
outbox_lanes_count(int *lanes, int *in_use)
{
	OutboxLaneDirectory *directory = get_directory();

	*lanes = *in_use = 0;
	if (directory == NULL)
		return;
	LWLockAcquire(&directory->lock, LW_SHARED);
	*lanes = directory->nlanes;
	for (int i = 0; i < directory->nlanes; i++)
		*in_use += OidIsValid(directory_entries(directory)[i].relid);
	LWLockRelease(&directory->lock);
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
	OutboxLaneDirectory *directory = outbox_use_cursor ? get_directory() : NULL;
	OutboxStoreState *store;
	OutboxLaneEntry *entries;
	bool		complete;

	*nlanes = 0;
	if (directory == NULL)
		return false;
	*lanes = palloc(directory->nlanes * sizeof(int64));
	entries = directory_entries(directory);

	LWLockAcquire(&directory->lock, LW_SHARED);
	store = find_store(directory, MyDatabaseId, relid);
	complete = store != NULL && store->complete;
	for (int i = 0; complete && i < directory->nlanes; i++)
	{
		OutboxLaneEntry *entry = &entries[i];

		if (entry->relid != relid || entry->dbid != MyDatabaseId ||
			!outbox_lane_wanted(filter, entry->lane))
			continue;
		if (kind == OUTBOX_SCAN_LEASES ||
			(TimestampTz) pg_atomic_read_u64(&entry->wake_at) <= now)
			(*lanes)[(*nlanes)++] = entry->lane;
	}
	LWLockRelease(&directory->lock);
	return complete;
}

/*
 * When will something next become due in the lanes that pass the filter, or a
 * lease in them end?  DT_NOEND if nothing will.  False if that is not known:
 * because we do not know all lanes, or because a lane has something due now,
 * which hides what comes later, or something that may be decided by a COMMIT
 * PREPARED, of which nobody is told.
 */
bool
outbox_lanes_next_due(Oid relid, const OutboxLaneFilter *filter,
					  TimestampTz now, TimestampTz *due)
{
	OutboxLaneDirectory *directory = outbox_use_cursor ? get_directory() : NULL;
	OutboxStoreState *store;
	bool		known;

	*due = DT_NOEND;
	if (directory == NULL)
		return false;
	LWLockAcquire(&directory->lock, LW_SHARED);
	store = find_store(directory, MyDatabaseId, relid);
	known = store != NULL && store->complete;
	for (int i = 0; known && i < directory->nlanes; i++)
	{
		OutboxLaneEntry *entry = &directory_entries(directory)[i];
		OutboxLane *slot = &directory_lanes(directory)[i];

		if (entry->relid != relid || entry->dbid != MyDatabaseId ||
			!outbox_lane_wanted(filter, entry->lane))
			continue;
		LWLockAcquire(&slot->lock, LW_SHARED);
		known = slot->next_due > now && slot->leases_known &&
			(slot->nholes == 0 || max_prepared_xacts == 0);
		*due = Min(*due, slot->next_due);
		for (int k = 0; k < slot->nbuckets; k++)
		{
			/* one that has ended and was not taken is in somebody's hand */
			if (slot->buckets[k].due > now)
				*due = Min(*due, slot->buckets[k].due);
		}
		LWLockRelease(&slot->lock);
	}
	LWLockRelease(&directory->lock);
	return known;
}

/* When does the first lease in a database end?  DT_NOEND if there is none. */
TimestampTz
outbox_lanes_next_lease(Oid dbid)
{
	OutboxLaneDirectory *directory = get_directory();
	TimestampTz ends = DT_NOEND;

	if (directory == NULL)
		return ends;
	LWLockAcquire(&directory->lock, LW_SHARED);
	for (int i = 0; i < directory->nlanes; i++)
	{
		OutboxLane *slot = &directory_lanes(directory)[i];

		if (!OidIsValid(directory_entries(directory)[i].relid) ||
			directory_entries(directory)[i].dbid != dbid)
			continue;
		LWLockAcquire(&slot->lock, LW_SHARED);
		for (int k = 0; k < slot->nbuckets; k++)
			ends = Min(ends, slot->buckets[k].due);
		LWLockRelease(&slot->lock);
	}
	LWLockRelease(&directory->lock);
	return ends;
}

/*
 * Somebody starts to list the lanes from the index.  What is in the index now
 * will be listed by them; what comes later is reported and makes its slot.
 */
uint32
outbox_lanes_listing_begin(Oid relid)
{
	OutboxLaneDirectory *directory = outbox_use_cursor ? get_directory() : NULL;
	OutboxStoreState *store;
	uint32		ticket = 0;

	if (directory == NULL)
		return 0;
	LWLockAcquire(&directory->lock, LW_EXCLUSIVE);
	store = make_store(directory, relid);
	ticket = store->misses;
	memset(store->owner_bits, 0, sizeof(store->owner_bits));
	LWLockRelease(&directory->lock);
	return ticket;
}

void
outbox_lanes_listing_add(Oid relid, int64 lane)
{
	OutboxLane *slot;

	if (!outbox_lane_is_topic(lane))
	{
		outbox_directory_note_owner_lane(relid, lane);
		return;
	}
	if (!outbox_use_cursor)
		return;
	slot = outbox_directory_lock_lane(relid, lane, true);
	if (slot != NULL)
		LWLockRelease(&slot->lock);
}

void
outbox_lanes_listing_end(Oid relid, uint32 ticket)
{
	OutboxLaneDirectory *directory = outbox_use_cursor ? get_directory() : NULL;
	OutboxStoreState *store;

	if (directory == NULL)
		return;
	LWLockAcquire(&directory->lock, LW_EXCLUSIVE);
	store = find_store(directory, MyDatabaseId, relid);
	if (store != NULL)
	{
		store->complete = store->misses == ticket;
		store->owners_known = true;
		store->listed_at = GetCurrentTimestamp();
	}
	LWLockRelease(&directory->lock);
}

/* Should the lanes be listed before anything else is done? */
bool
outbox_lanes_need_listing(Oid relid)
{
	OutboxLaneDirectory *directory = outbox_use_cursor ? get_directory() : NULL;
	OutboxStoreState *store;
	bool		result;

	if (directory == NULL)
		return false;
	LWLockAcquire(&directory->lock, LW_SHARED);
	store = find_store(directory, MyDatabaseId, relid);
	result = store == NULL || !store->owners_known;
	LWLockRelease(&directory->lock);
	return result;
}

/* Owner lanes are few and short: we only remember which may exist. */
void
outbox_directory_note_owner_lane(Oid relid, int64 lane)
{
	OutboxLaneDirectory *directory = get_directory();
	uint32		bit = (uint64) lane % OUTBOX_OWNER_BITS;
	OutboxStoreState *store;

	if (directory == NULL)
		return;
	LWLockAcquire(&directory->lock, LW_EXCLUSIVE);
	store = make_store(directory, relid);
	store->owner_bits[bit / 64] |= UINT64CONST(1) << (bit % 64);
	LWLockRelease(&directory->lock);
}

/* May there be anything in this owner lane? */
bool
outbox_owner_lane_may_exist(Oid relid, int64 lane)
{
	OutboxLaneDirectory *directory = outbox_use_cursor ? get_directory() : NULL;
	OutboxStoreState *store;
	bool		result = true;

	if (directory == NULL)
		return true;
	LWLockAcquire(&directory->lock, LW_SHARED);
	store = find_store(directory, MyDatabaseId, relid);
	if (store != NULL && store->owners_known)
	{
		uint32		bit = (uint64) lane % OUTBOX_OWNER_BITS;

		result = (store->owner_bits[bit / 64] >> (bit % 64)) & 1;
	}
	LWLockRelease(&directory->lock);
	return result;
}

/* ---------------------------------------------------------------------- */
/* Streams in doubt                                                       */
/* ---------------------------------------------------------------------- */

/* May outbox.stream_doubts have rows for this table? */
bool
outbox_doubts_may_exist(Oid relid, uint32 *seen)
{
	OutboxLaneDirectory *directory = outbox_use_cursor ? get_directory() : NULL;
	OutboxStoreState *store;
	bool		result = true;

	*seen = 0;
	if (directory == NULL)
		return true;
	LWLockAcquire(&directory->lock, LW_SHARED);
	store = find_store(directory, MyDatabaseId, relid);
	if (store != NULL)
	{
		*seen = store->doubts;
		result = store->doubts != store->doubts_none;
	}
	LWLockRelease(&directory->lock);
	return result;
}

/* A row was inserted there. */
void
outbox_doubts_report(Oid relid)
{
	OutboxLaneDirectory *directory = get_directory();

	if (directory == NULL)
		return;
	LWLockAcquire(&directory->lock, LW_EXCLUSIVE);
	make_store(directory, relid)->doubts++;
	LWLockRelease(&directory->lock);
}

/*
 * When outbox_doubts_may_exist said "seen", there was no row, not even one
 * that is not committed yet.
 */
void
outbox_doubts_none(Oid relid, uint32 seen)
{
	OutboxLaneDirectory *directory = outbox_use_cursor ? get_directory() : NULL;
	OutboxStoreState *store;

	if (directory == NULL)
		return;
	LWLockAcquire(&directory->lock, LW_EXCLUSIVE);
	store = find_store(directory, MyDatabaseId, relid);
	if (store != NULL && seen != 0)
		store->doubts_none = seen;
	LWLockRelease(&directory->lock);
}
