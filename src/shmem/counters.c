/*
 * counters.c
 *	  What has happened to the messages of each topic, counted.
 *
 * A hash table of fixed size, with an entry for each topic of each database: for
 * messages by namespace and topic, for deliveries by subscription as well, and
 * likewise for what is received, timers and runs of jobs.  When there is no room
 * for another topic, what happens to it is added to an entry without names,
 * which each database has for each kind.  Entries are never evicted, because a
 * counter that starts again at 0 would make a rate negative; they are removed
 * when counters are reset, and when their database is gone.
 *
 * Transactions add what they have done when they have committed (tally.c), so
 * this must not fail, and must not allocate memory.  The lock is held in shared
 * mode to add to entries that exist, which is done atomically, and exclusively
 * to add and remove entries.  Names are of any length, and are allocated from
 * the end of the memory for names; that is compacted when entries are removed.
 *
 * A crash sets all counters to 0.  counters_file.c keeps them over a clean
 * restart.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "port/pg_bitutils.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "shmem/counters.h"
#include "shmem/shmem.h"

/* Average size of names of a topic for which there is memory. */
#define NAMES_SIZE 64

/* Entries that do not have a topic: of so many, five for each database. */
#define EXTRA_ENTRIES 256

/* ---------------------------------------------------------------------- */
/* Layout                                                                 */
/* ---------------------------------------------------------------------- */

/* Divide the memory for so many topics; returns its size. */
static Size
lay_out(OutboxCounterMemory *made, int max_topics)
{
	made->max_topics = max_topics;
	made->nentries = max_topics + EXTRA_ENTRIES;
	made->nheads = pg_nextpower2_32(made->nentries);
	made->heads = MAXALIGN(sizeof(OutboxCounterMemory));
	made->entries = made->heads + MAXALIGN(made->nheads * sizeof(int));
	made->names = made->entries + (Size) made->nentries * sizeof(OutboxCounterEntry);
	made->names_size = (Size) max_topics * NAMES_SIZE;
	return made->names + made->names_size;
}

/* The size of the memory for so many topics. */
Size
outbox_counters_size(int max_topics)
{
	OutboxCounterMemory unmade;

	return lay_out(&unmade, max_topics);
}

/* Initialize the memory, when the block of shared memory is created. */
void
outbox_counters_init(OutboxCounterMemory *made, int max_topics, int tranche)
{
	(void) lay_out(made, max_topics);
	LWLockInitialize(&made->lock, tranche);
	made->generation = 1;
	made->ntopics = made->ntouched = 0;
	made->free = 0;
	made->names_used = 0;
	made->since = GetCurrentTimestamp();
	memset((char *) made + made->heads, 0, made->entries - made->heads);
}

/* Entries are numbered from 1. */
static OutboxCounterEntry *
entry_at(OutboxCounterMemory *memory, int entry)
{
	Assert(entry >= 1 && entry <= memory->nentries);
	return (OutboxCounterEntry *) ((char *) memory + memory->entries) + entry - 1;
}

static char *
names_at(OutboxCounterMemory *memory, Size offset)
{
	return (char *) memory + memory->names + offset;
}

/* ---------------------------------------------------------------------- */
/* Entries                                                                */
/* ---------------------------------------------------------------------- */

/* The total length of the names. */
int
outbox_counted_size(const OutboxCounted *counted)
{
	int			size = 0;

	for (int i = 0; i < OUTBOX_NNAMES; i++)
		size += Max(counted->lengths[i], 0);
	return size;
}

static int *
head_of(OutboxCounterMemory *memory, Oid dbid, int kind, const int *lengths,
		const char *bytes, int size)
{
	uint32		hash = hash_bytes((const unsigned char *) bytes, size);

	hash = hash_combine(hash, hash_bytes((const unsigned char *) lengths,
										 OUTBOX_NNAMES * sizeof(int)));
	hash = hash_combine(hash, hash_combine(murmurhash32(dbid), (uint32) kind));
	return (int *) ((char *) memory + memory->heads) + (hash & (memory->nheads - 1));
}

static int
find_entry(OutboxCounterMemory *memory, Oid dbid, const OutboxCounted *counted)
{
	int			size = outbox_counted_size(counted);
	int			entry = *head_of(memory, dbid, counted->kind, counted->lengths,
								 counted->bytes, size);

	while (entry != 0)
	{
		const OutboxCounterEntry *have = entry_at(memory, entry);

		if (have->dbid == dbid && have->kind == counted->kind &&
			memcmp(have->lengths, counted->lengths, sizeof(have->lengths)) == 0 &&
			memcmp(names_at(memory, have->names), counted->bytes, size) == 0)
			break;
		entry = have->next;
	}
	return entry;
}

/* Add an entry, which must not exist; 0 if there is no room for it. */
static int
add_entry(OutboxCounterMemory *memory, Oid dbid, const OutboxCounted *counted,
		  TimestampTz since)
{
	bool		has_topic = counted->lengths[OUTBOX_NAME_TOPIC] >= 0;
	int			size = outbox_counted_size(counted);
	int			entry = memory->free;
	OutboxCounterEntry *added;
	int		   *head;

	if ((has_topic && memory->ntopics >= memory->max_topics) ||
		size > memory->names_size - memory->names_used)
		return 0;
	if (entry != 0)
		memory->free = entry_at(memory, entry)->next;
	else if (memory->ntouched < memory->nentries)
		entry = ++memory->ntouched;
	else
		return 0;
	added = entry_at(memory, entry);
	added->dbid = dbid;
	added->kind = counted->kind;
	memcpy(added->lengths, counted->lengths, sizeof(added->lengths));
	added->size = size;
	added->names = memory->names_used;
	memcpy(names_at(memory, added->names), counted->bytes, size);
	added->since = since;
	for (int i = 0; i < OUTBOX_NCOUNTS; i++)
		pg_atomic_init_u64(&added->counts[i], 0);
	for (int h = 0; h < OUTBOX_NHISTOGRAMS; h++)
	{
		for (int i = 0; i < OUTBOX_NBUCKETS; i++)
			pg_atomic_init_u64(&added->buckets[h][i], 0);
	}
	memory->names_used += size;
	memory->ntopics += has_topic;
	head = head_of(memory, dbid, counted->kind, counted->lengths, counted->bytes, size);
	added->next = *head;
	*head = entry;
	return entry;
}

/* Remove an entry from its chain; it can be used again. */
static void
remove_entry(OutboxCounterMemory *memory, int entry)
{
	OutboxCounterEntry *removed = entry_at(memory, entry);
	int		   *link = head_of(memory, removed->dbid, removed->kind, removed->lengths,
							   names_at(memory, removed->names), removed->size);

	while (*link != entry)
		link = &entry_at(memory, *link)->next;
	*link = removed->next;
	memory->ntopics -= removed->lengths[OUTBOX_NAME_TOPIC] >= 0;
	removed->dbid = InvalidOid;
	removed->next = memory->free;
	memory->free = entry;
}

/* ---------------------------------------------------------------------- */
/* Adding                                                                 */
/* ---------------------------------------------------------------------- */

/* Acquire the lock; false if there is no shared memory. */
bool
outbox_counters_lock(LWLockMode mode)
{
	OutboxCounterMemory *memory = outbox_shmem_counters();

	if (memory == NULL)
		return false;
	LWLockAcquire(&memory->lock, mode);
	return true;
}

/* Release the lock. */
void
outbox_counters_unlock(void)
{
	LWLockRelease(&outbox_shmem_counters()->lock);
}

/* The entry without names for a kind of messages; 0 if there is no room. */
static int
make_nameless(OutboxCounterMemory *memory, Oid dbid, int kind, TimestampTz since)
{
	OutboxCounted nameless = {.kind = kind,.lengths = {-1, -1, -1},.bytes = ""};
	int			entry = find_entry(memory, dbid, &nameless);

	return entry != 0 ? entry : add_entry(memory, dbid, &nameless, since);
}

/* The entry for something, which is added if it does not exist. */
static int
make_entry(OutboxCounterMemory *memory, Oid dbid, const OutboxCounted *counted,
		   TimestampTz since)
{
	int			entry = find_entry(memory, dbid, counted);

	if (entry == 0)
		entry = add_entry(memory, dbid, counted, since);
	if (entry == 0)
		entry = make_nameless(memory, dbid, counted->kind, since);
	return entry;
}

static void
add_counts(OutboxCounterEntry *entry, const OutboxCounts *counts)
{
	for (int i = 0; i < OUTBOX_NCOUNTS; i++)
	{
		if (counts->counts[i] != 0)
			pg_atomic_fetch_add_u64(&entry->counts[i], counts->counts[i]);
	}
	for (int h = 0; h < OUTBOX_NHISTOGRAMS; h++)
	{
		if ((counts->has_times & (1 << h)) == 0)
			continue;
		for (int i = 0; i < OUTBOX_NBUCKETS; i++)
		{
			if (counts->buckets[h][i] != 0)
				pg_atomic_fetch_add_u64(&entry->buckets[h][i], counts->buckets[h][i]);
		}
	}
}

/*
 * Add to the counters of something, whose entry *slot may name.  If it has none,
 * one is made if "may_make", for which the lock must be held exclusively; else
 * nothing is added, and the result is false.  If there is no memory at all, what
 * should be added is lost.
 */
bool
outbox_counters_add(Oid dbid, const OutboxCounted *counted,
					OutboxCounterSlot *slot, const OutboxCounts *counts,
					bool may_make)
{
	OutboxCounterMemory *memory = outbox_shmem_counters();

	Assert(LWLockHeldByMe(&memory->lock));
	Assert(!may_make || LWLockHeldByMeInMode(&memory->lock, LW_EXCLUSIVE));
	if (slot->generation != memory->generation)
	{
		slot->entry = may_make ?
			make_entry(memory, dbid, counted, GetCurrentTimestamp()) :
			find_entry(memory, dbid, counted);
		if (slot->entry == 0 && !may_make)
			return false;
		slot->generation = memory->generation;
	}
	if (slot->entry != 0)
		add_counts(entry_at(memory, slot->entry), counts);
	return true;
}

/* The bucket of a time. */
int
outbox_counters_bucket(int64 usecs)
{
	int64		msecs = (usecs + 999) / 1000;

	if (msecs <= 1)
		return 0;
	return Min(pg_leftmost_one_pos64(msecs - 1) + 1, OUTBOX_NBUCKETS - 1);
}

/* Add numbers that are not shared. */
void
outbox_counts_add(OutboxCounts *into, const OutboxCounts *counts)
{
	for (int i = 0; i < OUTBOX_NCOUNTS; i++)
		into->counts[i] += counts->counts[i];
	into->has_times |= counts->has_times;
	for (int h = 0; h < OUTBOX_NHISTOGRAMS; h++)
	{
		for (int i = 0; i < OUTBOX_NBUCKETS; i++)
			into->buckets[h][i] += counts->buckets[h][i];
	}
}

/* ---------------------------------------------------------------------- */
/* Reading                                                                */
/* ---------------------------------------------------------------------- */

/* Copy an entry, and allocate its names. */
static void
copy_entry(OutboxCounterMemory *memory, OutboxCounterEntry *entry,
		   OutboxCounterCopy *copy)
{
	char	   *bytes = palloc(entry->size + 1);

	memcpy(bytes, names_at(memory, entry->names), entry->size);
	copy->dbid = entry->dbid;
	copy->since = entry->since;
	copy->counted.kind = entry->kind;
	memcpy(copy->counted.lengths, entry->lengths, sizeof(entry->lengths));
	copy->counted.bytes = bytes;
	for (int i = 0; i < OUTBOX_NCOUNTS; i++)
		copy->counts.counts[i] = pg_atomic_read_u64(&entry->counts[i]);
	copy->counts.has_times = (1 << OUTBOX_NHISTOGRAMS) - 1;
	for (int h = 0; h < OUTBOX_NHISTOGRAMS; h++)
	{
		for (int i = 0; i < OUTBOX_NBUCKETS; i++)
			copy->counts.buckets[h][i] = pg_atomic_read_u64(&entry->buckets[h][i]);
	}
}

/*
 * Copy the entries of a database, or of all if dbid is invalid; returns how many.
 * The caller must hold the lock, or be the only process.
 */
int
outbox_counters_copy_from(OutboxCounterMemory *memory, Oid dbid,
						  OutboxCounterCopy **copies)
{
	int			n = 0;

	*copies = palloc_extended(Max(memory->ntouched, 1) * sizeof(OutboxCounterCopy),
							  MCXT_ALLOC_HUGE);
	for (int i = 1; i <= memory->ntouched; i++)
	{
		OutboxCounterEntry *entry = entry_at(memory, i);

		if (entry->dbid != InvalidOid && (dbid == InvalidOid || entry->dbid == dbid))
			copy_entry(memory, entry, &(*copies)[n++]);
	}
	return n;
}

/* Copy the entries of a database; returns how many. */
int
outbox_counters_copy(Oid dbid, OutboxCounterCopy **copies)
{
	OutboxCounterMemory *memory = outbox_shmem_counters();
	int			n;

	*copies = NULL;
	if (memory == NULL)
		return 0;
	LWLockAcquire(&memory->lock, LW_SHARED);
	n = outbox_counters_copy_from(memory, dbid, copies);
	LWLockRelease(&memory->lock);
	return n;
}

/* What the entry of a database looks like that records a reset. */
static const OutboxCounted nothing = {
	.kind = OUTBOX_COUNTED_NOTHING,.lengths = {-1, -1, -1},.bytes = ""
};

/* Since when the counters of a database count; DT_NOBEGIN without shared memory. */
TimestampTz
outbox_counters_since(Oid dbid)
{
	OutboxCounterMemory *memory = outbox_shmem_counters();
	TimestampTz since;
	int			entry;

	if (memory == NULL)
		return DT_NOBEGIN;
	LWLockAcquire(&memory->lock, LW_SHARED);
	entry = find_entry(memory, dbid, &nothing);
	since = entry != 0 ? entry_at(memory, entry)->since : memory->since;
	LWLockRelease(&memory->lock);
	return since;
}

/* The databases that have entries; returns how many. */
int
outbox_counters_databases(Oid **dbids)
{
	OutboxCounterMemory *memory = outbox_shmem_counters();
	int			n = 0;
	int			nunique = 0;

	*dbids = NULL;
	if (memory == NULL)
		return 0;
	LWLockAcquire(&memory->lock, LW_SHARED);
	*dbids = palloc_array(Oid, memory->ntouched + 1);
	for (int i = 1; i <= memory->ntouched; i++)
	{
		Oid			dbid = entry_at(memory, i)->dbid;

		if (dbid != InvalidOid && (n == 0 || (*dbids)[n - 1] != dbid))
			(*dbids)[n++] = dbid;
	}
	LWLockRelease(&memory->lock);
	qsort(*dbids, n, sizeof(Oid), oid_cmp);
	for (int i = 0; i < n; i++)
	{
		if (nunique == 0 || (*dbids)[nunique - 1] != (*dbids)[i])
			(*dbids)[nunique++] = (*dbids)[i];
	}
	return nunique;
}

/* ---------------------------------------------------------------------- */
/* Removing                                                               */
/* ---------------------------------------------------------------------- */

/* Move the names that are in use together; "space" has room for all of them. */
static void
compact_names(OutboxCounterMemory *memory, char *space)
{
	Size		used = 0;

	for (int i = 1; i <= memory->ntouched; i++)
	{
		OutboxCounterEntry *entry = entry_at(memory, i);

		if (entry->dbid == InvalidOid)
			continue;
		memcpy(space + used, names_at(memory, entry->names), entry->size);
		entry->names = used;
		used += entry->size;
	}
	memcpy(names_at(memory, 0), space, used);
	memory->names_used = used;
}

/*
 * Remove the entries of a database.  "is_reset": its counters begin again, now;
 * else the database is gone.
 */
void
outbox_counters_forget(Oid dbid, bool is_reset)
{
	OutboxCounterMemory *memory = outbox_shmem_counters();
	char	   *space;

	Assert(OidIsValid(dbid));
	if (memory == NULL)
		return;
	space = palloc_extended(memory->names_size + 1, MCXT_ALLOC_HUGE);
	LWLockAcquire(&memory->lock, LW_EXCLUSIVE);
	for (int i = 1; i <= memory->ntouched; i++)
	{
		if (entry_at(memory, i)->dbid == dbid)
			remove_entry(memory, i);
	}
	compact_names(memory, space);
	memory->generation++;
	if (is_reset)
		(void) add_entry(memory, dbid, &nothing, GetCurrentTimestamp());
	LWLockRelease(&memory->lock);
	pfree(space);
}

/*
 * Add an entry that was saved, at the start of the server.  If there are fewer
 * entries than before, it may be added to one without names.
 */
void
outbox_counters_restore(OutboxCounterMemory *into, const OutboxCounterCopy *copy)
{
	int			entry = make_entry(into, copy->dbid, &copy->counted, copy->since);

	if (entry != 0)
		add_counts(entry_at(into, entry), &copy->counts);
}
