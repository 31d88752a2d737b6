/*
 * batch.c
 *	  A worker's whole round trip in one call.
 *
 * The order is that of the contract: a sign of life, the end of those that give
 * none, completions, failures, renewals; then whatever else the caller wants to
 * write; then new messages, and at last the claim.  So there are two calls, and
 * the caller writes between them.  Each step is what the single calls do, for
 * all its entries at once; a step without entries costs nothing.
 *
 * Entries name messages by message_id.  They are looked up first, and then
 * settled like any leases: in the order of their ids, and only if they are
 * leased to the instance.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "core/batch.h"
#include "core/claim.h"
#include "core/enqueue.h"
#include "core/instance.h"
#include "core/settle.h"
#include "outbox.h"
#include "queue/dedupe.h"
#include "queue/lease_walk.h"
#include "queue/walk.h"
#include "shmem/lane.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/probe.h"
#include "table/table.h"
#include "util/grow.h"
#include "util/hash.h"
#include "util/uuid.h"

/* A claim of one side under way. */
typedef struct BatchClaim
{
	const OutboxBatch *batch;
	const OutboxInstances *alive;
	OutboxBatchResult *result;
	int			nnew;
	pg_uuid_t  *new_ids;
	int		   *partitions;		/* in which we have leases, if that is limited */
	int			npartitions;
	int			max_partitions;
} BatchClaim;

/* ---------------------------------------------------------------------- */
/* Settling                                                               */
/* ---------------------------------------------------------------------- */

/* The id of a message that is in a live table; false if it is not. */
static bool
find_id(OutboxProbe *probe, TupleTableSlot *slot, const pg_uuid_t *message_id,
		int64 *id)
{
	TransactionId blocker;

	if (!outbox_probe(probe, UUIDPGetDatum(message_id), slot, &blocker))
		return false;
	*id = DatumGetInt64(outbox_row_get(slot, Q_ID));
	ExecClearTuple(slot);
	return true;
}

/* Messages that a side's sections name, being looked up. */
typedef struct Resolver
{
	OutboxProbe probe;
	TupleTableSlot *slot;
	OutboxSettle *settle;
} Resolver;

static OutboxLeaseRef *
resolve(Resolver *resolver, const pg_uuid_t *message_id, OutboxSettlement what)
{
	OutboxSettle *settle = resolver->settle;
	OutboxLeaseRef *lease = &settle->leases[settle->nleases];

	if (!find_id(&resolver->probe, resolver->slot, message_id, &lease->id))
		return NULL;
	lease->attempts = -1;
	lease->what = what;
	lease->rank = settle->nleases++;
	return lease;
}

static void
resolve_entries(Resolver *resolver, const OutboxBatchEntry *entries, int n,
				OutboxSettlement what, int more_bits)
{
	for (int i = 0; i < n; i++)
	{
		OutboxLeaseRef *lease = resolve(resolver, entries[i].message_id, what);

		if (lease == NULL)
			continue;
		lease->progress = more_bits |
			(entries[i].status != NULL ? *entries[i].status : 0);
		lease->reason = entries[i].reason != NULL ? *entries[i].reason : 0;
		lease->error = entries[i].error;
	}
}

/*
 * Completions, failures and renewals.  The first that names a message settles
 * it, and the others come too late; so they can be done in one go, in the
 * order of ids, and two calls never wait for each other.
 */
static void
settle_side(const OutboxBatch *batch, const OutboxBatchSide *side)
{
	OutboxSettle settle = {
		.store = side->store,
		.what = OUTBOX_EACH_ITS_OWN,
		.owner = batch->instance.id,
		.reason = OUTBOX_REASON_UNKNOWN,
		.lease_seconds = batch->lease_seconds,
		.done_bits = side->done_bits,
		.keep = (batch->flags & OUTBOX_FLAG_DEBUG) != 0
	};
	Resolver	resolver = {.settle = &settle};
	int			n = side->ncompletions + side->nfailures + side->nrenewals;
	OutboxTable table;

	if (n == 0)
		return;
	settle.leases = palloc0_array(OutboxLeaseRef, n);
	outbox_table_open_to_read(&table, side->store->table);
	resolver.slot = outbox_table_slot(&table);
	outbox_probe_begin(&resolver.probe, &table, side->store->message_id);
	resolve_entries(&resolver, side->completions, side->ncompletions,
					OUTBOX_ADVANCE, 0);
	resolve_entries(&resolver, side->failures, side->nfailures,
					OUTBOX_NACK, OUTBOX_PROGRESS_FAILED);
	for (int i = 0; i < side->nrenewals; i++)
		(void) resolve(&resolver, &side->renewals[i], OUTBOX_RENEW);
	outbox_probe_end(&resolver.probe);
	ExecDropSingleTupleTableSlot(resolver.slot);
	outbox_table_close(&table);
	(void) outbox_settle(&settle);
}

/* ---------------------------------------------------------------------- */
/* New messages                                                           */
/* ---------------------------------------------------------------------- */

static int
cmp_given_id(const void *a, const void *b)
{
	const OutboxMessage *ma = *(OutboxMessage *const *) a;
	const OutboxMessage *mb = *(OutboxMessage *const *) b;
	int			cmp = outbox_uuid_cmp(ma->given_id, mb->given_id);

	/* of two with the same id the first one counts */
	if (cmp == 0)
		cmp = ma < mb ? -1 : 1;
	return cmp;
}

/*
 * Put messages that were received into the inbox, those that had not been
 * received before; the others are marked as not enqueued.
 */
void
outbox_receive(OutboxMessage *messages, int nmessages)
{
	OutboxMessage **order = palloc_array(OutboxMessage *, nmessages);

	for (int i = 0; i < nmessages; i++)
		order[i] = &messages[i];
	/* those who receive the same take turns in the same order */
	qsort(order, nmessages, sizeof(OutboxMessage *), cmp_given_id);
	for (int i = 0; i < nmessages; i++)
		order[i]->refused = !outbox_dedupe_receive(order[i]->given_id);
	pfree(order);
	outbox_enqueue(outbox_store(OUTBOX_INBOX), messages, nmessages);
}

static void
add_messages(const OutboxBatchSide *side)
{
	if (side->nmessages == 0)
		return;
	if (side->store->kind == OUTBOX_INBOX)
		outbox_receive(side->messages, side->nmessages);
	else
		outbox_enqueue(side->store, side->messages, side->nmessages);
}

/* ---------------------------------------------------------------------- */
/* Claiming                                                               */
/* ---------------------------------------------------------------------- */

/* The partition of a message; -1 if it has no stream. */
static int
partition_of(const OutboxBatch *batch, TupleTableSlot *message)
{
	bool		isnull;
	Datum		stream = slot_getattr(message, Q_STREAM_ID, &isnull);

	return isnull ? -1 : outbox_partition(DatumGetUUIDP(stream),
										  batch->partition_count);
}

static bool
holds_partition(const BatchClaim *claim, int partition)
{
	for (int i = 0; i < claim->npartitions; i++)
	{
		if (claim->partitions[i] == partition)
			return true;
	}
	return false;
}

static void
hold_partition(BatchClaim *claim, int partition)
{
	if (claim->batch->max_partitions == 0 || partition < 0 ||
		holds_partition(claim, partition))
		return;
	outbox_grow(claim->partitions, claim->npartitions, claim->max_partitions);
	claim->partitions[claim->npartitions++] = partition;
}

/* Who should have this message, if not we, as far as partitions go? */
static const pg_uuid_t *
preferred(TupleTableSlot *message, void *arg)
{
	const BatchClaim *claim = arg;
	const OutboxBatch *batch = claim->batch;
	int			partition = partition_of(batch, message);
	const pg_uuid_t *owner;

	if (partition < 0)
		return NULL;
	owner = outbox_instance_owner(claim->alive, partition);
	if (!outbox_uuid_equal(owner, &batch->instance.id))
		return owner;
	if (batch->max_partitions == 0 ||
		claim->npartitions < batch->max_partitions ||
		holds_partition(claim, partition))
		return NULL;
	/* it is ours, but not now */
	return owner;
}

/* Which messages were put in by this very call? */
static void
list_new(BatchClaim *claim, const OutboxBatchSide *side)
{
	claim->nnew = 0;
	claim->new_ids = palloc_array(pg_uuid_t, side->nmessages + 1);
	for (int i = 0; i < side->nmessages; i++)
	{
		if (side->messages[i].enqueued)
			claim->new_ids[claim->nnew++] = side->messages[i].message_id;
	}
	qsort(claim->new_ids, claim->nnew, sizeof(pg_uuid_t), outbox_uuid_qsort_cmp);
}

static bool
is_new(const BatchClaim *claim, const pg_uuid_t *message_id)
{
	return bsearch(message_id, claim->new_ids, claim->nnew, sizeof(pg_uuid_t),
				   outbox_uuid_qsort_cmp) != NULL;
}

static void
set_place(OutboxBatchMessage *added, TupleTableSlot *message)
{
	bool		isnull;
	Datum		stream = slot_getattr(message, Q_STREAM_ID, &isnull);

	added->has_stream = !isnull;
	if (added->has_stream)
	{
		added->stream = *DatumGetUUIDP(stream);
		added->stream_seq = DatumGetInt64(outbox_row_get(message, Q_STREAM_SEQ));
	}
	added->created_at = DatumGetTimestampTz(outbox_row_get(message, Q_CREATED_AT));
	added->id = DatumGetInt64(outbox_row_get(message, Q_ID));
}

static void
add_result(TupleTableSlot *message, bool taken_over, void *arg)
{
	BatchClaim *claim = arg;
	OutboxBatchResult *result = claim->result;
	OutboxBatchMessage *added;

	outbox_grow(result->messages, result->n, result->max);
	added = &result->messages[result->n++];
	memset(added, 0, sizeof(OutboxBatchMessage));
	set_place(added, message);
	added->tuple = ExecCopySlotHeapTuple(message);
	added->partition = partition_of(claim->batch, message);
	added->flags = (taken_over ? OUTBOX_FLAG_ORPHANED : 0) |
		(DatumGetInt32(outbox_row_get(message, Q_RETRY_COUNT)) > 0 ?
		 OUTBOX_FLAG_RETRY : 0);
	if (DatumGetInt32(outbox_row_get(message, Q_ATTEMPTS)) == 1 &&
		is_new(claim, DatumGetUUIDP(outbox_row_get(message, Q_MESSAGE_ID))))
		added->flags |= OUTBOX_FLAG_NEW;
	hold_partition(claim, added->partition);
}

/* In which partitions do we have leases? */
static bool
note_lease(OutboxWalk *walk, void *arg)
{
	BatchClaim *claim = arg;

	if (outbox_uuid_equal(DatumGetUUIDP(outbox_row_get(walk->slot, Q_OWNER_TOKEN)),
						  &claim->batch->instance.id))
		hold_partition(claim, partition_of(claim->batch, walk->slot));
	outbox_walk_left(walk);
	return true;
}

static void
note_leases(BatchClaim *claim, TimestampTz now)
{
	for (int i = 0; i < lengthof(claim->batch->sides); i++)
	{
		OutboxTable table;

		outbox_store_open(&table, claim->batch->sides[i].store);
		outbox_walk_leases(&table, now, OUTBOX_SCAN_LEASES, note_lease, claim);
		outbox_table_close(&table);
	}
}

static int
cmp_results(const void *a, const void *b)
{
	const OutboxBatchMessage *ma = a;
	const OutboxBatchMessage *mb = b;
	int			cmp;

	if (ma->has_stream != mb->has_stream)
		return ma->has_stream ? -1 : 1;
	cmp = outbox_uuid_cmp(&ma->stream, &mb->stream);
	if (cmp != 0)
		return cmp;
	if (ma->stream_seq != mb->stream_seq)
		return ma->stream_seq < mb->stream_seq ? -1 : 1;
	if (ma->created_at != mb->created_at)
		return ma->created_at < mb->created_at ? -1 : 1;
	return ma->id < mb->id ? -1 : ma->id > mb->id;
}

static void
claim_side(BatchClaim *claim, const OutboxBatchSide *side,
		   OutboxBatchResult *result)
{
	OutboxClaim how = {
		.store = side->store,
		.owner = claim->batch->instance.id,
		.lease_seconds = claim->batch->lease_seconds,
		.batch_size = claim->batch->batch_size,
		.preference = preferred,
		.preference_arg = claim
	};

	claim->result = result;
	list_new(claim, side);
	(void) outbox_claim(&how, add_result, claim, NULL);
	qsort(result->messages, result->n, sizeof(OutboxBatchMessage), cmp_results);
}

/* ---------------------------------------------------------------------- */
/* The call                                                               */
/* ---------------------------------------------------------------------- */

/*
 * The first half of a round: the sign of life, the end of silent instances,
 * completions, failures, renewals.
 */
void
outbox_batch_settle(OutboxBatch *batch)
{
	TimestampTz now = GetCurrentTimestamp();

	CommandCounterIncrement();
	outbox_instance_heartbeat(&batch->instance, now);
	outbox_instance_remove_stale(&batch->instance.id, now,
								 batch->stale_seconds, &batch->alive);
	for (int i = 0; i < lengthof(batch->sides); i++)
		settle_side(batch, &batch->sides[i]);
}

/*
 * The second half: new messages, and the claim.  There is a result for each
 * side.
 */
void
outbox_batch_claim(OutboxBatch *batch, OutboxBatchResult *results)
{
	BatchClaim	claim = {.batch = batch,.alive = &batch->alive};

	for (int i = 0; i < lengthof(batch->sides); i++)
		add_messages(&batch->sides[i]);
	if (batch->max_partitions > 0)
		note_leases(&claim, GetCurrentTimestamp());
	for (int i = 0; i < lengthof(batch->sides); i++)
		claim_side(&claim, &batch->sides[i], &results[i]);
}
