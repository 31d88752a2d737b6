/*
 * sql_publish.c
 *	  C functions called by the SQL functions of subscriptions.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"
#include "utils/xid8.h"

#include "api/args.h"
#include "compat.h"
#include "core/cancel.h"
#include "core/expand.h"
#include "core/publish.h"
#include "outbox.h"
#include "queue/dedupe.h"
#include "queue/message_find.h"
#include "queue/publication.h"
#include "queue/subscriber.h"
#include "queue/topic_pattern.h"
#include "util/hash.h"

/*
 * outbox._is_topic_pattern(pattern text) RETURNS boolean
 */
PG_FUNCTION_INFO_V1(outbox_is_topic_pattern);
Datum
outbox_is_topic_pattern(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(outbox_topic_pattern_is_valid(PG_GETARG_TEXT_PP(0)));
}

/*
 * outbox._topic_matches(topic text, patterns text[]) RETURNS boolean
 */
PG_FUNCTION_INFO_V1(outbox_topic_matches);
Datum
outbox_topic_matches(PG_FUNCTION_ARGS)
{
	const text *topic = PG_GETARG_TEXT_PP(0);
	Datum	   *patterns;
	bool	   *isnull;
	int			n;

	outbox_arg_array(fcinfo, 1, "patterns", TEXTOID, &patterns, &isnull, &n);
	for (int i = 0; i < n; i++)
	{
		if (!isnull[i] &&
			outbox_topic_pattern_matches(DatumGetTextPP(patterns[i]), topic))
			PG_RETURN_BOOL(true);
	}
	PG_RETURN_BOOL(false);
}

/*
 * outbox.route(topic text, headers jsonb, namespace text) RETURNS SETOF text
 *		The subscriptions that would get a publication.
 */
PG_FUNCTION_INFO_V1(outbox_route);
Datum
outbox_route(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	const text *topic = outbox_arg_name(fcinfo, 0, "topic");
	const text *namespace = outbox_arg_name(fcinfo, 2, "namespace");
	OutboxSubscriberList list;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	outbox_subscribers_of(namespace, topic,
						  PG_ARGISNULL(1) ? NULL : PG_GETARG_JSONB_P(1), &list);
	for (int i = 0; i < list.n; i++)
	{
		Datum		value = PointerGetDatum(list.subscribers[i]->name);
		bool		isnull = false;

		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, &value, &isnull);
	}
	return (Datum) 0;
}

/* Get an array, which must not contain nulls. */
static void
get_list(FunctionCallInfo fcinfo, int arg, const char *name, Oid type,
		 Datum **values, int *n)
{
	bool	   *isnull;

	outbox_arg_array(fcinfo, arg, name, type, values, &isnull, n);
	for (int i = 0; i < *n; i++)
	{
		if (isnull[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("%s must not contain nulls", name)));
	}
}

/*
 * outbox._deliver(published_at timestamptz[], published_id uuid[],
 *				   subscribers int[], nonce bigint) RETURNS bigint
 *		Delivers publications to subscribers.  Publications that are missing
 *		are skipped.
 */
PG_FUNCTION_INFO_V1(outbox_deliver_sql);
Datum
outbox_deliver_sql(PG_FUNCTION_ARGS)
{
	Datum	   *times;
	Datum	   *ids;
	Datum	   *numbers;
	int			n;
	int			nids;
	int			nsubscribers;
	int32	   *subscribers;
	OutboxPublication *publications;
	int			npublications = 0;

	outbox_require_writable("outbox._deliver()");
	get_list(fcinfo, 0, "published_at", TIMESTAMPTZOID, &times, &n);
	get_list(fcinfo, 1, "published_id", UUIDOID, &ids, &nids);
	get_list(fcinfo, 2, "subscribers", INT4OID, &numbers, &nsubscribers);
	outbox_require(fcinfo, 3, "nonce");
	if (n != nids)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("published_at and published_id must have the same number of elements")));
	subscribers = palloc_array(int32, nsubscribers + 1);
	for (int i = 0; i < nsubscribers; i++)
	{
		subscribers[i] = DatumGetInt32(numbers[i]);
		if (subscribers[i] <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("subscribers must be positive")));
	}
	publications = palloc_array(OutboxPublication, n + 1);
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (outbox_publication_read(DatumGetTimestampTz(times[i]),
									DatumGetUUIDP(ids[i]),
									&publications[npublications]))
			npublications++;
	}
	PG_RETURN_INT64(outbox_deliver(publications, npublications, subscribers,
								   nsubscribers, (uint64) PG_GETARG_INT64(3)));
}

/*
 * outbox._expand(INOUT place bigint, batch_limit integer, OUT expanded integer)
 *		Delivers the next publication that has pending deliveries.
 */
PG_FUNCTION_INFO_V1(outbox_expand_sql);
Datum
outbox_expand_sql(PG_FUNCTION_ARGS)
{
	int64		place = PG_GETARG_INT64(0);
	int			max = outbox_arg_int(fcinfo, 1, "batch_limit", 1, 1, OUTBOX_EXPAND_LIMIT);
	int			nexpanded;
	TupleDesc	desc;
	Datum		values[2];
	bool		isnull[2] = {false, false};

	outbox_require_writable("outbox._expand()");
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	isnull[0] = !outbox_expand(&place, max, NULL, 0, &nexpanded);
	values[0] = Int64GetDatum(place);
	values[1] = Int32GetDatum(nexpanded);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, isnull)));
}

/*
 * outbox._subscribers_horizon() RETURNS xid8
 */
PG_FUNCTION_INFO_V1(outbox_subscribers_horizon_sql);
Datum
outbox_subscribers_horizon_sql(PG_FUNCTION_ARGS)
{
	FullTransactionId horizon = outbox_subscribers_horizon();

	if (!FullTransactionIdIsValid(horizon))
		PG_RETURN_NULL();
	PG_RETURN_FULLTRANSACTIONID(horizon);
}

/*
 * outbox._is_delivered(published_id uuid, subscriber int) RETURNS boolean
 */
PG_FUNCTION_INFO_V1(outbox_is_delivered);
Datum
outbox_is_delivered(PG_FUNCTION_ARGS)
{
	pg_uuid_t	id;

	outbox_delivery_id(PG_GETARG_UUID_P(0), PG_GETARG_INT32(1), 0, &id);
	PG_RETURN_BOOL(outbox_message_is_kept(&id));
}

/*
 * outbox._delivery_id(published_id uuid, subscriber int) RETURNS uuid
 */
PG_FUNCTION_INFO_V1(outbox_delivery_id_of);
Datum
outbox_delivery_id_of(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *id = palloc_object(pg_uuid_t);

	outbox_delivery_id(PG_GETARG_UUID_P(0), PG_GETARG_INT32(1), 0, id);
	PG_RETURN_UUID_P(id);
}

/*
 * outbox._is_published(id uuid, published_at timestamptz) RETURNS boolean
 */
PG_FUNCTION_INFO_V1(outbox_is_published);
Datum
outbox_is_published(PG_FUNCTION_ARGS)
{
	outbox_require(fcinfo, 0, "id");
	PG_RETURN_BOOL(PG_ARGISNULL(1) ?
				   outbox_publication_is_kept(PG_GETARG_UUID_P(0)) :
				   outbox_publication_exists(PG_GETARG_TIMESTAMPTZ(1),
											 PG_GETARG_UUID_P(0)));
}

/*
 * outbox._discard_deliveries(ids bigint[], drops boolean) RETURNS int
 *		Ends messages of a subscription that has ended.
 */
PG_FUNCTION_INFO_V1(outbox_discard_deliveries);
Datum
outbox_discard_deliveries(PG_FUNCTION_ARGS)
{
	OutboxOperation discard = {
		.what = PG_GETARG_BOOL(1) ? OUTBOX_PURGE : OUTBOX_DISCARD,
		.reason = OUTBOX_REASON_UNKNOWN,
		.error = "unsubscribed"
	};
	int64	   *ids;
	int			n;

	outbox_require_writable("outbox.unsubscribe()");
	ids = outbox_arg_ids(fcinfo, 0, "ids", &n);
	PG_RETURN_INT32(outbox_operate(&discard, ids, n));
}

/*
 * outbox._forget_publication(namespace text, topic text, dedupe_key text,
 *							  published_id uuid) RETURNS boolean
 *		Frees the dedupe key and the id of a publication that is no longer
 *		kept.
 */
PG_FUNCTION_INFO_V1(outbox_forget_publication);
Datum
outbox_forget_publication(PG_FUNCTION_ARGS)
{
	const pg_uuid_t *published_id = outbox_arg_uuid(fcinfo, 3, "published_id");
	pg_uuid_t	digest;
	bool		forgotten;

	outbox_require(fcinfo, 0, "namespace");
	outbox_require(fcinfo, 1, "topic");
	outbox_publication_id_digest(published_id, &digest);
	forgotten = outbox_dedupe_forget(&digest, published_id, false);
	if (!PG_ARGISNULL(2))
	{
		outbox_publication_digest(PG_GETARG_TEXT_PP(0), PG_GETARG_TEXT_PP(1),
								  PG_GETARG_TEXT_PP(2), &digest);
		forgotten |= outbox_dedupe_forget(&digest, published_id, false);
	}
	PG_RETURN_BOOL(forgotten);
}
