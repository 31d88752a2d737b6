/*
 * round_trip.c
 *	  A worker's whole round trip in one call.
 *
 * The steps come in the order of the contract: the heartbeat, the removal of
 * silent instances, completions, failures, renewals; then whatever else the
 * caller wants to write; then new messages, and finally the claim.  That is
 * why there are two functions: the caller does its own writes between them.
 * Each step does what the corresponding single call does, for all of its
 * entries at once; a step without entries costs nothing.
 *
 * Entries name messages by message_id.  They are looked up first, and then
 * settled as any other lease is: in the order of their ids, and only if they
 * are leased to the instance.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "core/claim.h"
#include "core/enqueue.h"
#include "core/instance.h"
#include "core/round_trip.h"
#include "core/settle.h"
#include "outbox.h"
#include "queue/dedupe.h"
#include "queue/lease_walk.h"
#include "queue/message.h"
#include "queue/publication.h"
#include "queue/walk.h"
#include "shmem/lane.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/probe.h"
#include "table/table.h"
#include "util/grow.h"
#include "util/hash.h"
#include "util/uuid.h"

/* State of the claim of one side. */
typedef struct TripClaim
{
	const OutboxRoundTrip *trip;
	const OutboxInstances *alive;
	OutboxRoundTripResult *result;
	int			nnew;
	pg_uuid_t  *new_ids;
	int		   *partitions;		/* where we have leases, if there is a limit */
	int			npartitions;
	int			max_partitions;
} TripClaim;

/* ---------------------------------------------------------------------- */
/* Settling                                                               */
/* ---------------------------------------------------------------------- */

/* Look up the id of a message in a live table; false if it is not there. */
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

/* State of the lookup of the messages that a side's sections name. */
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
resolve_entries(Resolver *resolver, const OutboxRoundTripEntry *entries, int n,
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
 * Process completions, failures and renewals.  The first entry that names a
 * message settles it, and later ones have no effect.  So all of them can be
 * processed in one pass in the order of ids, which keeps two calls from
 * deadlocking.
 */
static void
settle_side(const OutboxRoundTrip *trip, const OutboxRoundTripSide *side)
{
	OutboxSettle settle = {
		.store = side->store,
		.what = OUTBOX_EACH_ITS_OWN,
		.owner = trip->instance.id,
		.reason = OUTBOX_REASON_UNKNOWN,
		.lease_seconds = trip->lease_seconds,
		.done_bits = side->done_bits,
		.keep = (trip->flags & OUTBOX_FLAG_DEBUG) != 0
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

	/* of two with the same id, the first one wins */
	if (cmp == 0)
		cmp = ma < mb ? -1 : 1;
	return cmp;
}

/*
 * Put received messages into the inbox, except for those that were received
 * before, which are marked as not enqueued.
 */
void
outbox_receive(OutboxMessage *messages, int nmessages)
{
	OutboxMessage **order = palloc_array(OutboxMessage *, nmessages);

	for (int i = 0; i < nmessages; i++)
		order[i] = &messages[i];

	/*
	 * in one order, so that two calls with the same messages cannot deadlock
	 */
	qsort(order, nmessages, sizeof(OutboxMessage *), cmp_given_id);
	for (int i = 0; i < nmessages; i++)
		order[i]->refused = !outbox_dedupe_receive(order[i]->given_id);
	pfree(order);
	outbox_enqueue(outbox_store(OUTBOX_INBOX), messages, nmessages);
}

static void
add_messages(const OutboxRoundTripSide *side)
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
partition_of(const OutboxRoundTrip *trip, TupleTableSlot *message)
{
	const pg_uuid_t *stream = outbox_message_stream(message);

	return stream == NULL ? -1 : outbox_partition(stream, trip->partition_count);
}

static bool
holds_partition(const TripClaim *claim, int partition)
{
	for (int i = 0; i < claim->npartitions; i++)
	{
		if (claim->partitions[i] == partition)
			return true;
	}
	return false;
}

static void
hold_partition(TripClaim *claim, int partition)
{
	if (claim->trip->max_partitions == 0 || partition < 0 ||
		holds_partition(claim, partition))
		return;
	outbox_grow(claim->partitions, claim->npartitions, claim->max_partitions);
	claim->partitions[claim->npartitions++] = partition;
}

/*
 * OutboxPreference callback: the instance that should take this message rather
 * than we, going by its partition.  NULL if we may take it; our own id if the
 * partition is ours, but we must not take the message now.
 */
static const pg_uuid_t *
preferred(TupleTableSlot *message, void *arg)
{
	const TripClaim *claim = arg;
	const OutboxRoundTrip *trip = claim->trip;
	int			partition = partition_of(trip, message);
	const pg_uuid_t *owner;

	if (partition < 0)
		return NULL;
	owner = outbox_instance_owner(claim->alive, partition);
	if (!outbox_uuid_equal(owner, &trip->instance.id))
		return owner;
	if (trip->max_partitions == 0 ||
		claim->npartitions < trip->max_partitions ||
		holds_partition(claim, partition))
		return NULL;
	/* the partition is ours, but not now */
	return owner;
}

/* List the messages that this call has enqueued. */
static void
list_new(TripClaim *claim, const OutboxRoundTripSide *side)
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
is_new(const TripClaim *claim, const pg_uuid_t *message_id)
{
	return bsearch(message_id, claim->new_ids, claim->nnew, sizeof(pg_uuid_t),
				   outbox_uuid_qsort_cmp) != NULL;
}

/*
 * Set what the order of the result depends on, and the payload if that is the
 * publication's.
 */
static void
set_place(OutboxRoundTripMessage *added, TupleTableSlot *message)
{
	const pg_uuid_t *stream = outbox_message_stream(message);

	added->shares_payload = !slot_attisnull(message, Q_PUBLISHED_AT);
	if (added->shares_payload)
	{
		const text *payload = outbox_publication_payload(message);

		if (payload != NULL)
			added->payload = DatumGetTextPCopy(PointerGetDatum(payload));
	}
	added->has_stream = stream != NULL;
	if (added->has_stream)
	{
		added->stream = *stream;
		added->stream_seq = DatumGetInt64(outbox_row_get(message, Q_STREAM_SEQ));
	}
	added->created_at = DatumGetTimestampTz(outbox_row_get(message, Q_CREATED_AT));
	added->id = DatumGetInt64(outbox_row_get(message, Q_ID));
}

/*
 * OutboxClaimSink callback: add a claimed message to the result of its side.
 */
static void
add_result(TupleTableSlot *message, bool taken_over, void *arg)
{
	TripClaim  *claim = arg;
	OutboxRoundTripResult *result = claim->result;
	OutboxRoundTripMessage *added;

	outbox_grow(result->messages, result->n, result->max);
	added = &result->messages[result->n++];
	memset(added, 0, sizeof(OutboxRoundTripMessage));
	set_place(added, message);
	added->tuple = ExecCopySlotHeapTuple(message);
	added->partition = partition_of(claim->trip, message);
	added->flags = (taken_over ? OUTBOX_FLAG_ORPHANED : 0) |
		(DatumGetInt32(outbox_row_get(message, Q_RETRY_COUNT)) > 0 ?
		 OUTBOX_FLAG_RETRY : 0);
	if (DatumGetInt32(outbox_row_get(message, Q_ATTEMPTS)) == 1 &&
		is_new(claim, DatumGetUUIDP(outbox_row_get(message, Q_MESSAGE_ID))))
		added->flags |= OUTBOX_FLAG_NEW;
	hold_partition(claim, added->partition);
}

/* Note the partition of one of our leases. */
static bool
note_lease(OutboxWalk *walk, void *arg)
{
	TripClaim  *claim = arg;

	if (outbox_uuid_equal(DatumGetUUIDP(outbox_row_get(walk->slot, Q_OWNER_TOKEN)),
						  &claim->trip->instance.id))
		hold_partition(claim, partition_of(claim->trip, walk->slot));
	outbox_walk_left(walk);
	return true;
}

static void
note_leases(TripClaim *claim, TimestampTz now)
{
	for (int i = 0; i < lengthof(claim->trip->sides); i++)
	{
		OutboxTable table;

		outbox_store_open(&table, claim->trip->sides[i].store);
		outbox_walk_leases(&table, now, OUTBOX_SCAN_LEASES, note_lease, claim);
		outbox_table_close(&table);
	}
}

static int
cmp_results(const void *a, const void *b)
{
	const OutboxRoundTripMessage *ma = a;
	const OutboxRoundTripMessage *mb = b;
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

/* Claim messages of one side, and sort the result. */
static void
claim_side(TripClaim *claim, const OutboxRoundTripSide *side,
		   OutboxRoundTripResult *result)
{
	OutboxClaim how = {
		.store = side->store,
		.owner = claim->trip->instance.id,
		.lease_seconds = claim->trip->lease_seconds,
		.batch_size = claim->trip->batch_size,
		.preference = preferred,
		.preference_arg = claim
	};

	if (side->store->kind == OUTBOX_QUEUE)
	{
		how.subscription = claim->trip->subscription;
		how.subscribers = claim->trip->subscribers;
		how.nsubscribers = claim->trip->nsubscribers;
	}
	claim->result = result;
	list_new(claim, side);
	(void) outbox_claim(&how, add_result, claim, NULL);
	qsort(result->messages, result->n, sizeof(OutboxRoundTripMessage), cmp_results);
}

/* ---------------------------------------------------------------------- */
/* The call                                                               */
/* ---------------------------------------------------------------------- */

/*
 * The first half of a round trip: the heartbeat, the removal of silent instances,
 * completions, failures, renewals.  Sets trip->alive.
 */
void
outbox_round_trip_settle(OutboxRoundTrip *trip)
{
	TimestampTz now = GetCurrentTimestamp();

	CommandCounterIncrement();
	outbox_instance_heartbeat(&trip->instance, now);
	outbox_instance_remove_stale(&trip->instance.id, now,
								 trip->stale_seconds, &trip->alive);
	for (int i = 0; i < lengthof(trip->sides); i++)
		settle_side(trip, &trip->sides[i]);
}

/*
 * The second half of a round trip: new messages, and the claim.  "results" has one
 * element for each side.
 */
void
outbox_round_trip_claim(OutboxRoundTrip *trip, OutboxRoundTripResult *results)
{
	TripClaim	claim = {.trip = trip,.alive = &trip->alive};

	for (int i = 0; i < lengthof(trip->sides); i++)
		add_messages(&trip->sides[i]);
	if (trip->max_partitions > 0)
		note_leases(&claim, GetCurrentTimestamp());
	for (int i = 0; i < lengthof(trip->sides); i++)
		claim_side(&claim, &trip->sides[i], &results[i]);
}
