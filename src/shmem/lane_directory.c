/*
 * directory.c
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
 * microseconds, and nothing is allocated or read under them.
 */
#include "postgres.h"

#include "access/twophase.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "shmem/lane_directory.h"
#include "util/guc.h"
#include "util/hash.h"
#include "shmem/lane.h"
#include "shmem/shmem.h"

/* A lane that still has something in it loses its slot after this time. */
#define EVICT_AFTER_USECS (INT64CONST(60) * USECS_PER_SEC)

#define SLOT_CACHE_SIZE 64

static OutboxLane *slot_cache[SLOT_CACHE_SIZE];

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
OutboxLaneEntry *
outbox_directory_entry(const OutboxLane *slot)
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
outbox_directory_size(int nlanes)
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
outbox_directory_init(OutboxShared *shared, int nlanes)
{
	int			tranche = LWLockNewTrancheId();
	int		   *heads;
	OutboxLaneEntry *entries;
	OutboxLane *lanes;

	shared->tranche = tranche;
	outbox_wake_init(&shared->wake, tranche);
	outbox_workers_init(&shared->workers, tranche);
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

/* Is this slot that lane's?  The caller has locked the slot. */
bool
outbox_directory_is_lane(const OutboxLane *slot, Oid relid, int64 lane)
{
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
	if (outbox_lane_is_watched(slot))
	{
		LWLockRelease(&slot->lock);
		return false;
	}
	store = find_store(shared, entry->dbid, entry->relid);
	if (store != NULL && !outbox_lane_is_quiet(slot))
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
		outbox_lane_reset(slot);
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
OutboxLane *
outbox_directory_lock_lane(Oid relid, int64 lane, bool make)
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
			if (outbox_directory_is_lane(slot, relid, lane))
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
/* Which lanes are there?                                                 */
/* ---------------------------------------------------------------------- */

/* How many lanes can be followed, and how many are; by all databases. */
void
outbox_lanes_count(int *lanes, int *in_use)
{
	OutboxShared *shared = outbox_shmem();

	*lanes = *in_use = 0;
	if (shared == NULL)
		return;
	LWLockAcquire(&shared->lock, LW_SHARED);
	*lanes = shared->nlanes;
	for (int i = 0; i < shared->nlanes; i++)
		*in_use += OidIsValid(directory_entries(shared)[i].relid);
	LWLockRelease(&shared->lock);
}

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
	OutboxShared *shared = outbox_use_cursor ? outbox_shmem() : NULL;
	OutboxStoreState *store;
	bool		known;

	*due = DT_NOEND;
	if (shared == NULL)
		return false;
	LWLockAcquire(&shared->lock, LW_SHARED);
	store = find_store(shared, MyDatabaseId, relid);
	known = store != NULL && store->complete;
	for (int i = 0; known && i < shared->nlanes; i++)
	{
		OutboxLaneEntry *entry = &directory_entries(shared)[i];
		OutboxLane *slot = &directory_lanes(shared)[i];

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
	LWLockRelease(&shared->lock);
	return known;
}

/* When does the first lease in a database end?  DT_NOEND if there is none. */
TimestampTz
outbox_lanes_next_lease(Oid dbid)
{
	OutboxShared *shared = outbox_shmem();
	TimestampTz ends = DT_NOEND;

	if (shared == NULL)
		return ends;
	LWLockAcquire(&shared->lock, LW_SHARED);
	for (int i = 0; i < shared->nlanes; i++)
	{
		OutboxLane *slot = &directory_lanes(shared)[i];

		if (!OidIsValid(directory_entries(shared)[i].relid) ||
			directory_entries(shared)[i].dbid != dbid)
			continue;
		LWLockAcquire(&slot->lock, LW_SHARED);
		for (int k = 0; k < slot->nbuckets; k++)
			ends = Min(ends, slot->buckets[k].due);
		LWLockRelease(&slot->lock);
	}
	LWLockRelease(&shared->lock);
	return ends;
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

/* Owner lanes are few and short: we only remember which may exist. */
void
outbox_directory_note_owner_lane(Oid relid, int64 lane)
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
