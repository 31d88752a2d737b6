/*
 * sql_leases.c
 *	  SQL functions that list messages in progress.
 *
 * They are found without reading those that are ready, by the lanes that have
 * leases.
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "lib/binaryheap.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "api/args.h"
#include "compat.h"
#include "queue/lease_walk.h"
#include "queue/subscriber.h"
#include "queue/walk.h"
#include "shmem/lane.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/table.h"
#include "util/hash.h"

#define MAX_OLDEST 100000

static void
return_id(ReturnSetInfo *rsinfo, int64 id)
{
	Datum		value = Int64GetDatum(id);
	bool		isnull = false;

	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, &value, &isnull);
}

static void
visit_leases(OutboxWalkVisit visit, void *arg)
{
	OutboxTable queue;

	outbox_table_open_to_read(&queue, outbox_store(OUTBOX_QUEUE)->table);
	queue.store = outbox_store(OUTBOX_QUEUE);
	outbox_walk_leases(&queue, GetCurrentTimestamp(), OUTBOX_SCAN_LEASES,
					   visit, arg);
	outbox_table_close(&queue);
}

/* ---------------------------------------------------------------------- */
/* All leases                                                             */
/* ---------------------------------------------------------------------- */

static bool
return_lease(OutboxWalk *walk, void *arg)
{
	return_id(arg, walk->key.id);
	return true;
}

/*
 * outbox._leased_ids() RETURNS SETOF bigint
 *		The ids of messages in progress.
 */
PG_FUNCTION_INFO_V1(outbox_leased_ids);
Datum
outbox_leased_ids(PG_FUNCTION_ARGS)
{
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	visit_leases(return_lease, fcinfo->resultinfo);
	return (Datum) 0;
}

/* ---------------------------------------------------------------------- */
/* The oldest ones                                                        */
/* ---------------------------------------------------------------------- */

typedef struct OldLease
{
	int64		id;
	TimestampTz leased_at;
} OldLease;

/* The oldest leases that were found so far; the youngest of them is on top. */
typedef struct OldLeases
{
	const text *namespace;		/* NULL: all */
	const text *topic;
	const text *subscription;
	int			most;
	OldLease   *leases;
	binaryheap *heap;
} OldLeases;

/* For the heap: which is younger. */
static int
cmp_leased_at(Datum a, Datum b, void *arg)
{
	const OldLease *la = (const OldLease *) DatumGetPointer(a);
	const OldLease *lb = (const OldLease *) DatumGetPointer(b);

	if (la->leased_at != lb->leased_at)
		return la->leased_at < lb->leased_at ? -1 : 1;
	return la->id < lb->id ? -1 : la->id > lb->id;
}

/* Null is any. */
static bool
is_or_null(const text *value, const text *wanted)
{
	return wanted == NULL || outbox_text_equal(value, wanted);
}

/* Is it a message of this topic and subscription? */
static bool
is_wanted(const OldLeases *oldest, TupleTableSlot *message)
{
	const OutboxSubscriber *subscriber;
	bool		isnull;
	Datum		id;

	if (!is_or_null(DatumGetTextPP(outbox_row_get(message, Q_TOPIC)), oldest->topic) ||
		!is_or_null(DatumGetTextPP(outbox_row_get(message, Q_NAMESPACE)), oldest->namespace))
		return false;
	if (oldest->subscription == NULL)
		return true;
	id = slot_getattr(message, Q_SUBSCRIBER, &isnull);
	subscriber = isnull ? NULL : outbox_subscriber_get(DatumGetInt32(id));
	return subscriber != NULL && is_or_null(subscriber->name, oldest->subscription);
}

/* Keep a lease if it is older than the youngest that is kept. */
static bool
keep_old_lease(OutboxWalk *walk, void *arg)
{
	OldLeases  *oldest = arg;
	OldLease	lease = {.id = walk->key.id,.leased_at = DT_NOBEGIN};
	OldLease   *place;
	bool		isnull;
	Datum		leased_at = slot_getattr(walk->slot, Q_LEASED_AT, &isnull);

	if (!is_wanted(oldest, walk->slot))
		return true;
	/* SQL of a user may have leased it without a time */
	if (!isnull)
		lease.leased_at = DatumGetTimestampTz(leased_at);
	if (oldest->heap->bh_size < oldest->most)
	{
		place = &oldest->leases[oldest->heap->bh_size];
		*place = lease;
		binaryheap_add(oldest->heap, PointerGetDatum(place));
		return true;
	}
	place = (OldLease *) DatumGetPointer(binaryheap_first(oldest->heap));
	if (cmp_leased_at(PointerGetDatum(&lease), PointerGetDatum(place), NULL) < 0)
	{
		*place = lease;
		binaryheap_replace_first(oldest->heap, PointerGetDatum(place));
	}
	return true;
}

/*
 * outbox._oldest_leases(batch_limit int, topic text, namespace text,
 *						 subscription text) RETURNS SETOF bigint
 *		The ids of so many messages that were claimed first.  Reads all messages
 *		in progress.
 */
PG_FUNCTION_INFO_V1(outbox_oldest_leases);
Datum
outbox_oldest_leases(PG_FUNCTION_ARGS)
{
	OldLeases	oldest = {
		.most = outbox_arg_int(fcinfo, 0, "batch_limit", 100, 1, MAX_OLDEST),
		.topic = outbox_arg_text_or_null(fcinfo, 1),
		.namespace = outbox_arg_text_or_null(fcinfo, 2),
		.subscription = outbox_arg_text_or_null(fcinfo, 3)
	};

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	oldest.leases = palloc_array(OldLease, oldest.most);
	oldest.heap = binaryheap_allocate(oldest.most, cmp_leased_at, NULL);
	visit_leases(keep_old_lease, &oldest);
	Assert(oldest.heap->bh_size <= oldest.most);
	for (int i = 0; i < oldest.heap->bh_size; i++)
		return_id((ReturnSetInfo *) fcinfo->resultinfo, oldest.leases[i].id);
	return (Datum) 0;
}
