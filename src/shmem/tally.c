/*
 * tally.c
 *	  What a transaction has counted.
 *
 * Nothing of it counts before the commit, and what was done after a savepoint
 * does not count if that is rolled back.  So a transaction collects numbers
 * locally, for each topic and nesting level, and adds them to the counters in
 * shared memory (counters.c) when it has committed, or was prepared: no code of
 * the extension runs when a prepared transaction commits.
 *
 * A tally stands for a topic.  It stays after the transaction, so that the next
 * one finds it, and the place of its counters, without a search; all tallies are
 * dropped when there are too many.
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "compat.h"
#include "outbox.h"
#include "shmem/counters.h"
#include "shmem/shmem.h"
#include "shmem/tally.h"
#include "util/grow.h"

/* Tallies and numbers are dropped at the end of a transaction beyond this. */
#define MAX_KEPT 2000

typedef struct TallyKey
{
	uint64		hash;			/* of namespace and topic */
	int32		subscriber;
	int32		kind;
} TallyKey;

struct OutboxTally
{
	TallyKey	key;			/* hash key: must be first */
	OutboxCounted counted;
	OutboxCounterSlot slot;
	int			top;			/* its last element of pending[], or -1 */
};

/* What was counted at one nesting level. */
typedef struct Pending
{
	OutboxTally *tally;
	int			nest_level;
	int			lower;			/* of the same tally, or -1 */
	OutboxCounts counts;
} Pending;

static HTAB *tallies = NULL;
static MemoryContext context = NULL;	/* of the tallies and their names */
static OutboxTally *last = NULL;

/* Ordered by nesting level. */
static Pending *pending = NULL;
static int	npending = 0;
static int	max_pending = 0;

/* ---------------------------------------------------------------------- */
/* Tallies                                                                */
/* ---------------------------------------------------------------------- */

static uint64
hash_text(const text *value, uint64 seed)
{
	return hash_bytes_extended((const unsigned char *) VARDATA_ANY(value),
							   VARSIZE_ANY_EXHDR(value), seed);
}

static bool
is_last(int kind, int32 subscriber, const text *namespace, const text *topic)
{
	const int  *lengths = last->counted.lengths;

	return last->key.kind == kind && last->key.subscriber == subscriber &&
		lengths[OUTBOX_NAME_NAMESPACE] == VARSIZE_ANY_EXHDR(namespace) &&
		lengths[OUTBOX_NAME_TOPIC] == VARSIZE_ANY_EXHDR(topic) &&
		memcmp(last->counted.bytes, VARDATA_ANY(namespace),
			   VARSIZE_ANY_EXHDR(namespace)) == 0 &&
		memcmp(last->counted.bytes + VARSIZE_ANY_EXHDR(namespace) +
			   Max(lengths[OUTBOX_NAME_SUBSCRIPTION], 0),
			   VARDATA_ANY(topic), VARSIZE_ANY_EXHDR(topic)) == 0;
}

static void
set_key(TallyKey *key, int kind, int32 subscriber, const text *namespace,
		const text *topic)
{
	key->hash = hash_text(topic, hash_text(namespace, 0));
	key->subscriber = subscriber;
	key->kind = kind;
}

/*
 * The tally of a topic, or, if subscriber is not 0, of the deliveries of a topic
 * to a subscription.  NULL if there is none yet.
 */
OutboxTally *
outbox_tally_find(int kind, int32 subscriber, const text *namespace,
				  const text *topic)
{
	TallyKey	key;
	OutboxTally *found;

	if (last != NULL && is_last(kind, subscriber, namespace, topic))
		return last;
	if (tallies == NULL)
		return NULL;
	set_key(&key, kind, subscriber, namespace, topic);
	found = hash_search(tallies, &key, HASH_FIND, NULL);
	if (found != NULL)
		last = found;
	return found;
}

static void
make_table(void)
{
	HASHCTL		ctl = {.keysize = sizeof(TallyKey),.entrysize = sizeof(OutboxTally)};

	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "outbox tallies",
										ALLOCSET_DEFAULT_SIZES);
	ctl.hcxt = context;
	tallies = hash_create("outbox tallies", 64, &ctl,
						  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/*
 * Make the tally of a topic that has none.  NULL if there is no shared memory
 * to count in.
 */
OutboxTally *
outbox_tally_new(int kind, int32 subscriber, const text *namespace,
				 const text *subscription, const text *topic)
{
	const text *names[OUTBOX_NNAMES] = {namespace, subscription, topic};
	OutboxCounted counted = {.kind = kind};
	TallyKey	key;
	char	   *bytes;

	if (outbox_shmem_counters() == NULL)
		return NULL;
	if (tallies == NULL)
		make_table();
	for (int i = 0; i < OUTBOX_NNAMES; i++)
		counted.lengths[i] = names[i] == NULL ? -1 : VARSIZE_ANY_EXHDR(names[i]);
	counted.bytes = bytes = MemoryContextAlloc(context, outbox_counted_size(&counted) + 1);
	for (int i = 0; i < OUTBOX_NNAMES; i++)
	{
		if (names[i] == NULL)
			continue;
		memcpy(bytes, VARDATA_ANY(names[i]), counted.lengths[i]);
		bytes += counted.lengths[i];
	}
	set_key(&key, kind, subscriber, namespace, topic);
	last = hash_search(tallies, &key, HASH_ENTER, NULL);
	last->counted = counted;
	last->slot = OUTBOX_MAKE(OutboxCounterSlot, 0, 0);
	last->top = -1;
	return last;
}

/* ---------------------------------------------------------------------- */
/* Counting                                                               */
/* ---------------------------------------------------------------------- */

/* The numbers of a tally at the current nesting level. */
static OutboxCounts *
counts_of(OutboxTally *tally)
{
	int			nest_level = GetCurrentTransactionNestLevel();
	Pending    *added;

	if (tally->top >= 0 && pending[tally->top].nest_level == nest_level)
		return &pending[tally->top].counts;
	Assert(npending == 0 || pending[npending - 1].nest_level <= nest_level);
	pending = outbox_grow_in(TopMemoryContext, pending, npending, &max_pending,
							 sizeof(Pending));
	added = &pending[npending];
	memset(added, 0, sizeof(Pending));
	added->tally = tally;
	added->nest_level = nest_level;
	added->lower = tally->top;
	tally->top = npending++;
	return &added->counts;
}

/* Count so many. */
void
outbox_tally_count(OutboxTally *tally, OutboxCount count, uint64 n)
{
	counts_of(tally)->counts[count] += n;
}

/* Count a time, which is taken for 0 if the clock was set back. */
void
outbox_tally_time(OutboxTally *tally, OutboxHistogram histogram, int64 usecs)
{
	OutboxCounts *counts = counts_of(tally);

	usecs = Max(usecs, 0);
	counts->counts[OUTBOX_COUNT_WAIT_USECS + histogram] += usecs;
	counts->has_times |= 1 << histogram;
	counts->buckets[histogram][outbox_counters_bucket(usecs)]++;
}

/* ---------------------------------------------------------------------- */
/* The end                                                                */
/* ---------------------------------------------------------------------- */

/* Add everything to the counters; those that do not exist in a second step. */
static void
add_all(void)
{
	int			nmissing = 0;

	if (!outbox_counters_lock(LW_SHARED))
		return;
	for (int i = 0; i < npending; i++)
	{
		OutboxTally *tally = pending[i].tally;

		if (!outbox_counters_add(MyDatabaseId, &tally->counted, &tally->slot,
								 &pending[i].counts, false))
			pending[nmissing++] = pending[i];
	}
	outbox_counters_unlock();
	if (nmissing == 0)
		return;
	(void) outbox_counters_lock(LW_EXCLUSIVE);
	for (int i = 0; i < nmissing; i++)
	{
		OutboxTally *tally = pending[i].tally;

		(void) outbox_counters_add(MyDatabaseId, &tally->counted, &tally->slot,
								   &pending[i].counts, true);
	}
	outbox_counters_unlock();
}

/* Free what has become large. */
static void
forget_many(void)
{
	if (tallies != NULL && hash_get_num_entries(tallies) > MAX_KEPT)
	{
		MemoryContextReset(context);
		tallies = NULL;
		last = NULL;
	}
	if (max_pending > MAX_KEPT)
	{
		pfree(pending);
		pending = NULL;
		max_pending = 0;
	}
}

/*
 * The transaction has ended.  "is_committed": it has committed, or was prepared.
 */
void
outbox_tally_xact_end(bool is_committed)
{
	if (npending == 0)
		return;
	for (int i = 0; i < npending; i++)
		pending[i].tally->top = -1;
	if (is_committed)
		add_all();
	npending = 0;
	forget_many();
}

/* Where the elements of this nesting level begin; there are none above it. */
static int
first_of_level(int nest_level)
{
	int			first = npending;

	while (first > 0 && pending[first - 1].nest_level >= nest_level)
		first--;
	return first;
}

/*
 * A subtransaction has ended: what it has counted is that of its parent now, or
 * is forgotten.
 */
void
outbox_tally_subxact_end(bool is_committed)
{
	int			nest_level = GetCurrentTransactionNestLevel();
	int			first = first_of_level(nest_level);
	int			kept = first;

	for (int i = first; i < npending; i++)
	{
		Pending    *ended = &pending[i];
		int			lower = ended->lower;

		ended->tally->top = lower;
		if (!is_committed)
			continue;
		if (lower >= 0 && pending[lower].nest_level == nest_level - 1)
		{
			outbox_counts_add(&pending[lower].counts, &ended->counts);
			continue;
		}
		ended->nest_level = nest_level - 1;
		ended->tally->top = kept;
		if (kept != i)
			pending[kept] = *ended;
		kept++;
	}
	npending = kept;
}
