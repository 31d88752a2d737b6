/*
 * counters.h
 *	  What has happened to the messages of each topic, counted.
 */
#ifndef OUTBOX_COUNTERS_H
#define OUTBOX_COUNTERS_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/lwlock.h"

/* What is counted. */
typedef enum OutboxCount
{
	OUTBOX_COUNT_ENQUEUED,
	OUTBOX_COUNT_CLAIMED,
	OUTBOX_COUNT_ACKED,
	OUTBOX_COUNT_NACKED,
	OUTBOX_COUNT_FAILED,
	OUTBOX_COUNT_DEAD,
	OUTBOX_COUNT_EXPIRED,
	OUTBOX_COUNT_LEASES_LOST,
	OUTBOX_COUNT_BYTES,			/* of payloads */
	OUTBOX_COUNT_WAIT_USECS,	/* from due to claimed */
	OUTBOX_COUNT_SERVICE_USECS, /* from claimed to ended */
	OUTBOX_COUNT_CALLS,			/* of handlers */
	OUTBOX_COUNT_CALL_USECS
} OutboxCount;

#define OUTBOX_NCOUNTS 13

/* Times whose distribution is known. */
typedef enum OutboxHistogram
{
	OUTBOX_HISTOGRAM_WAIT,
	OUTBOX_HISTOGRAM_SERVICE
} OutboxHistogram;

#define OUTBOX_NHISTOGRAMS 2

/*
 * Bucket 0 is for up to a millisecond, bucket i for up to 2^i milliseconds, and
 * the last one for everything longer.
 */
#define OUTBOX_NBUCKETS 28

/* Numbers to add, or to read. */
typedef struct OutboxCounts
{
	uint64		counts[OUTBOX_NCOUNTS];
	uint64		has_times;		/* a bit for each histogram in use */
	uint64		buckets[OUTBOX_NHISTOGRAMS][OUTBOX_NBUCKETS];
} OutboxCounts;

/* The names of a topic, in this order and without separators in "bytes". */
enum
{
	OUTBOX_NAME_NAMESPACE,
	OUTBOX_NAME_SUBSCRIPTION,
	OUTBOX_NAME_TOPIC
};

#define OUTBOX_NNAMES 3

/* What counters belong to. */
typedef struct OutboxCounted
{
	int			kind;			/* OutboxStoreKind, or OUTBOX_COUNTED_NOTHING */
	int			lengths[OUTBOX_NNAMES]; /* -1: null */
	const char *bytes;
} OutboxCounted;

/*
 * The kind of an entry without counters, which records that those of its
 * database were reset.
 */
#define OUTBOX_COUNTED_NOTHING (-1)

/* An entry, as found earlier; valid as long as the generation is the same. */
typedef struct OutboxCounterSlot
{
	int			entry;
	uint32		generation;
} OutboxCounterSlot;

/* The counters of one topic in shared memory. */
typedef struct OutboxCounterEntry
{
	Oid			dbid;			/* InvalidOid: the entry is free */
	int			next;			/* in its chain, or in the free list */
	int			kind;
	int			lengths[OUTBOX_NNAMES];
	int			size;			/* of all names */
	Size		names;			/* offset in the memory for names */
	TimestampTz since;
	pg_atomic_uint64 counts[OUTBOX_NCOUNTS];
	pg_atomic_uint64 buckets[OUTBOX_NHISTOGRAMS][OUTBOX_NBUCKETS];
} OutboxCounterEntry;

/* The memory for counters.  Heads, entries and names follow the struct. */
typedef struct OutboxCounterMemory
{
	LWLock		lock;
	uint32		generation;		/* advances when entries are removed */
	int			max_topics;
	int			ntopics;		/* entries that have a topic */
	int			nentries;
	int			ntouched;		/* entries that were ever used */
	int			free;			/* 0: none */
	int			nheads;
	Size		heads;			/* offsets from here */
	Size		entries;
	Size		names;
	Size		names_size;
	Size		names_used;
	TimestampTz since;
} OutboxCounterMemory;

/* A copy of an entry.  The names are allocated. */
typedef struct OutboxCounterCopy
{
	Oid			dbid;
	OutboxCounted counted;
	TimestampTz since;
	OutboxCounts counts;
} OutboxCounterCopy;

extern Size outbox_counters_size(int max_topics);
extern void outbox_counters_init(OutboxCounterMemory *made, int max_topics,
								 int tranche);

extern bool outbox_counters_lock(LWLockMode mode);
extern bool outbox_counters_add(Oid dbid, const OutboxCounted *counted,
								OutboxCounterSlot *slot,
								const OutboxCounts *counts, bool may_make);
extern void outbox_counters_unlock(void);

extern TimestampTz outbox_counters_since(Oid dbid);
extern int	outbox_counters_copy_from(OutboxCounterMemory *memory, Oid dbid,
									  OutboxCounterCopy **copies);
extern int	outbox_counters_copy(Oid dbid, OutboxCounterCopy **copies);
extern void outbox_counters_forget(Oid dbid, bool is_reset);
extern int	outbox_counters_databases(Oid **dbids);
extern void outbox_counters_restore(OutboxCounterMemory *into,
									const OutboxCounterCopy *copy);

extern int	outbox_counters_bucket(int64 usecs);
extern void outbox_counts_add(OutboxCounts *into, const OutboxCounts *counts);
extern int	outbox_counted_size(const OutboxCounted *counted);

#endif							/* OUTBOX_COUNTERS_H */
