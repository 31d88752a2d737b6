/*
 * expand.c
 *	  Delivering publications in the background.
 *
 * A row of outbox.expansions lists the subscriptions that a publication must
 * still be delivered to.  Rows are processed in their order, a few in one
 * transaction.  If the publication belongs to a stream, a
 * subscription must wait, and stays in the row, while an earlier publication
 * of the stream has not been delivered to it, or while it is still being sent
 * what was published before it existed.
 *
 * This never waits for other transactions: a row that another one is
 * processing is left for the next time.  The row is deleted, or shortened,
 * before the deliveries are made, so two processes cannot both make them.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/stratnum.h"
#include "catalog/pg_type.h"
#include "lib/qunique.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "core/expand.h"
#include "core/publish.h"
#include "queue/publication.h"
#include "queue/subscriber.h"
#include "table/catalog.h"
#include "table/keylock.h"
#include "table/table.h"
#include "util/hash.h"

/* Maximum number of rows examined in one call. */
#define LOOKED_AT 1000

/* Bytes of payloads that are delivered together. */
#define MAX_BATCH_SIZE (1024 * 1024)

/*
 * Divide the remaining subscribers into those that can have the publication
 * now, which come first, and those that must wait.  Subscribers that are gone
 * are left out, unless their messages must show up in dead.  Returns how many
 * can have it, and sets *nleft to how many must wait.  Returns -1 if one is
 * unknown: a dump restores its tables in any order.
 */
static int
divide(const OutboxExpansion *expansion, const int32 *waiting, int nwaiting,
	   int32 *subscribers, int *nleft)
{
	int32	   *left = palloc_array(int32, expansion->nsubscribers + 1);
	int			n = 0;

	*nleft = 0;
	for (int i = 0; i < expansion->nsubscribers; i++)
	{
		int32		id = expansion->subscribers[i];
		const OutboxSubscriber *subscriber = outbox_subscriber_get_latest(id);

		if (subscriber == NULL)
			return -1;
		if (subscriber->state == OUTBOX_UNSUBSCRIBED && subscriber->drops)
			continue;
		if (expansion->has_stream &&
			(subscriber->state == OUTBOX_STARTING || outbox_int32s_have(waiting, nwaiting, id)))
			left[(*nleft)++] = id;
		else
			subscribers[n++] = id;
	}
	memcpy(subscribers + n, left, *nleft * sizeof(int32));
	pfree(left);
	return n;
}

/* Publications for the same subscribers, to be delivered by one insertion. */
typedef struct Batch
{
	MemoryContext context;		/* of the publications and the subscribers */
	OutboxPublication publications[OUTBOX_EXPAND_LIMIT];
	int			n;
	int32	   *subscribers;
	int			nsubscribers;
	Size		size;			/* of the payloads */
} Batch;

/* Deliver what is in the batch. */
static void
flush_batch(Batch *batch)
{
	if (batch->n > 0)
		(void) outbox_deliver(batch->publications, batch->n, batch->subscribers,
							  batch->nsubscribers, 0);
	batch->n = 0;
	batch->size = 0;
	MemoryContextReset(batch->context);
}

/* Is there room for one more publication, for these subscribers? */
static bool
fits_in_batch(const Batch *batch, const int32 *subscribers, int nsubscribers)
{
	/* what was read and not delivered counts as well: it is in memory */
	return batch->size < MAX_BATCH_SIZE &&
		(batch->n == 0 ||
		 (batch->n < OUTBOX_EXPAND_LIMIT && batch->nsubscribers == nsubscribers &&
		  memcmp(batch->subscribers, subscribers, nsubscribers * sizeof(int32)) == 0));
}

/* Read a publication into the next place of the batch; false if it is missing. */
static bool
read_into_batch(Batch *batch, const OutboxExpansion *expansion,
				const int32 *subscribers, int nsubscribers)
{
	MemoryContext old = MemoryContextSwitchTo(batch->context);
	OutboxPublication *publication = &batch->publications[batch->n];
	bool		found = outbox_publication_read(expansion->published_at,
												&expansion->published_id,
												publication);

	if (found && batch->n == 0)
	{
		batch->nsubscribers = nsubscribers;
		batch->subscribers = palloc_array(int32, nsubscribers + 1);
		memcpy(batch->subscribers, subscribers, nsubscribers * sizeof(int32));
	}
	if (found)
		batch->size += VARSIZE_ANY(publication->payload);
	MemoryContextSwitchTo(old);
	return found;
}

/*
 * Deliver to the subscribers that can have it, or put it into the batch; false if
 * there is none, or it cannot be done now: a row that it needs is missing, or another
 * transaction has locked one.
 */
static bool
deliver(Batch *batch, OutboxTable *expansions, TupleTableSlot *row,
		const OutboxExpansion *expansion, const int32 *waiting, int nwaiting)
{
	int32	   *subscribers = palloc_array(int32, expansion->nsubscribers + 1);
	int			nleft;
	int			n = divide(expansion, waiting, nwaiting, subscribers, &nleft);

	if (n < 0 || (n == 0 && nleft > 0))
		return false;
	if (expansion->has_stream || !fits_in_batch(batch, subscribers, n))
		flush_batch(batch);
	if (!read_into_batch(batch, expansion, subscribers, n))
		return false;
	if (expansion->has_stream &&
		TransactionIdIsValid(outbox_publish_writer(&expansion->stream, subscribers, n)))
		return false;
	if (!outbox_expansion_shorten(expansions, row, subscribers + n, nleft))
		return false;
	batch->n += n > 0;
	/* the next one of the stream looks for this one */
	if (expansion->has_stream)
		flush_batch(batch);
	pfree(subscribers);
	return true;
}

/*
 * A stream in which something could not be delivered in this call.  Later
 * publications of the stream cannot be delivered to the same subscriptions,
 * either.
 */
typedef struct StuckStream
{
	pg_uuid_t	stream;			/* hash key */
	bool		for_all;		/* no subscription can get more of it */
	int32	   *waiting;		/* subscribers that have not got an earlier
								 * one, in order */
	int			nwaiting;
} StuckStream;

static HTAB *
make_stuck(void)
{
	HASHCTL		ctl;

	memset(&ctl, 0, sizeof(ctl));
	ctl.keysize = sizeof(pg_uuid_t);
	ctl.entrysize = sizeof(StuckStream);
	ctl.hcxt = CurrentMemoryContext;
	return hash_create("outbox stuck streams", 16, &ctl,
					   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static bool
is_stuck(HTAB *stuck, const OutboxExpansion *expansion)
{
	const StuckStream *found;

	if (!expansion->has_stream)
		return false;
	found = hash_search(stuck, &expansion->stream, HASH_FIND, NULL);
	if (found == NULL)
		return false;
	for (int i = 0; i < expansion->nsubscribers && !found->for_all; i++)
	{
		if (!outbox_int32s_have(found->waiting, found->nwaiting, expansion->subscribers[i]))
			return false;
	}
	return true;
}

/*
 * Note that a publication could not be delivered.  Later ones of its stream
 * must wait for it: those to its own subscribers and to the waiting ones, or,
 * with for_all, those to any subscriber.
 */
static void
note_stuck(HTAB *stuck, const OutboxExpansion *expansion, bool for_all,
		   const int32 *waiting, int nwaiting)
{
	StuckStream *noted;
	bool		found;
	int			n = expansion->nsubscribers;

	if (!expansion->has_stream)
		return;
	noted = hash_search(stuck, &expansion->stream, HASH_ENTER, &found);
	if (found && noted->waiting != NULL)
		pfree(noted->waiting);
	noted->for_all = for_all;
	noted->nwaiting = 0;
	noted->waiting = NULL;
	if (for_all)
		return;
	noted->waiting = palloc_array(int32, n + nwaiting + 1);
	memcpy(noted->waiting, expansion->subscribers, n * sizeof(int32));
	if (nwaiting > 0)
		memcpy(noted->waiting + n, waiting, nwaiting * sizeof(int32));
	qsort(noted->waiting, n + nwaiting, sizeof(int32), outbox_int32_cmp);
	noted->nwaiting = qunique(noted->waiting, n + nwaiting, sizeof(int32),
							  outbox_int32_cmp);
}

/* The same, with the lock on its stream if it has one. */
static bool
deliver_in_turn(Batch *batch, OutboxTable *expansions, TupleTableSlot *row,
				const OutboxExpansion *expansion, HTAB *stuck)
{
	uint64		hash;
	TransactionId writer;
	bool		known;
	int32	   *waiting;
	int			nwaiting;
	bool		delivered;

	if (!expansion->has_stream)
		return deliver(batch, expansions, row, expansion, NULL, 0);
	hash = outbox_uuid_hash64(&expansion->stream);
	/* a publisher has locked it, and may be waiting for us to end our turn */
	if (!outbox_keylock_try_long(outbox_catalog()->expansions, hash))
	{
		note_stuck(stuck, expansion, true, NULL, 0);
		return false;
	}
	known = outbox_expansions_before(&expansion->stream, expansion->seq, &waiting,
									 &nwaiting, &writer) <= OUTBOX_MANY_EXPANSIONS &&
		!TransactionIdIsValid(writer);
	delivered = known && deliver(batch, expansions, row, expansion, waiting, nwaiting);
	outbox_keylock_release_long(outbox_catalog()->expansions, hash);
	if (!delivered)
		note_stuck(stuck, expansion, !known, waiting, nwaiting);
	if (waiting != NULL)
		pfree(waiting);
	return delivered;
}

static bool
is_in(int64 seq, const int64 *seqs, int nseqs)
{
	for (int i = 0; i < nseqs; i++)
	{
		if (seqs[i] == seq)
			return true;
	}
	return false;
}

/*
 * Deliver the next publications behind *place that a subscription can have now, "max"
 * of them at most, and advance *place to the last one; if there are fewer among the
 * rows examined, advance *place to where the next call must continue.  *nexpanded is
 * their number.  Those in "skipped" are skipped, as if another transaction had locked
 * them.  False if nothing is left behind it.
 */
bool
outbox_expand(int64 *place, int max, const int64 *skipped, int nskipped,
			  int *nexpanded)
{
	OutboxTable table;
	Relation	index;
	Snapshot	snapshot;
	IndexScanDesc scan;
	ScanKeyData key;
	TupleTableSlot *slot;
	HTAB	   *stuck = make_stuck();
	Batch		batch = {.n = 0};
	int			n = 0;

	*nexpanded = 0;
	batch.context = AllocSetContextCreate(CurrentMemoryContext, "outbox publications",
										  ALLOCSET_DEFAULT_SIZES);
	AcceptInvalidationMessages();
	outbox_expansions_open(&table);
	index = index_open(outbox_catalog()->expansions_pkey, AccessShareLock);
	slot = outbox_table_slot(&table);
	snapshot = outbox_snapshot_now();
	scan = outbox_index_beginscan(table.rel, index, snapshot, 1);
	ScanKeyInit(&key, 1, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(*place));
	index_rescan(scan, &key, 1, NULL, 0);
	while (*nexpanded < max && n < LOOKED_AT &&
		   index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		OutboxExpansion expansion;

		CHECK_FOR_INTERRUPTS();
		outbox_expansion_read(slot, &expansion);
		*place = expansion.seq;
		if (is_in(expansion.seq, skipped, nskipped))
			note_stuck(stuck, &expansion, true, NULL, 0);
		else if (!is_stuck(stuck, &expansion) &&
				 deliver_in_turn(&batch, &table, slot, &expansion, stuck))
		{
			(*nexpanded)++;
			/* the next one of its stream must see that this one is delivered */
			CommandCounterIncrement();
		}
		if (expansion.subscribers != NULL)
			pfree(expansion.subscribers);
		n++;
	}
	flush_batch(&batch);
	MemoryContextDelete(batch.context);
	index_endscan(scan);
	UnregisterSnapshot(snapshot);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, AccessShareLock);
	outbox_table_close(&table);
	hash_destroy(stuck);
	return n > 0;
}
