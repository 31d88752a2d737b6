/*
 * sql_enqueue.c
 *	  SQL functions that put messages into the queue.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "api/args.h"
#include "api/json_args.h"
#include "api/message_args.h"
#include "compat.h"
#include "core/enqueue.h"
#include "table/catalog.h"

/* The arguments of enqueue() and its relatives. */
enum
{
	ARG_TOPIC,
	ARG_PAYLOAD,
	ARG_CORRELATION_ID,
	ARG_DUE_TIME,
	ARG_NAMESPACE,
	ARG_TENANT_ID,
	ARG_DEDUPE_KEY,
	ARG_STREAM_ID,
	ARG_HEADERS,
	ARG_EXPIRES_AT,
	ARG_MESSAGE_ID
};

/* Points the message at the arguments; *times needs room for two. */
static void
get_message(FunctionCallInfo fcinfo, const text *payload,
			OutboxMessage *message, TimestampTz *times)
{
	memset(message, 0, sizeof(OutboxMessage));
	message->topic = outbox_arg_text_or_null(fcinfo, ARG_TOPIC);
	message->payload = payload;
	message->correlation_id =
		outbox_empty_to_null(outbox_arg_text_or_null(fcinfo, ARG_CORRELATION_ID));
	message->due_time = outbox_arg_time_or_null(fcinfo, ARG_DUE_TIME, &times[0]);
	message->namespace = outbox_arg_text_or_null(fcinfo, ARG_NAMESPACE);
	message->tenant_id = outbox_arg_uuid_or_null(fcinfo, ARG_TENANT_ID);
	message->dedupe_key =
		outbox_empty_to_null(outbox_arg_text_or_null(fcinfo, ARG_DEDUPE_KEY));
	message->stream_id = outbox_arg_uuid_or_null(fcinfo, ARG_STREAM_ID);
	if (!PG_ARGISNULL(ARG_HEADERS))
		message->headers = PG_GETARG_JSONB_P(ARG_HEADERS);
	message->expires_at = outbox_arg_time_or_null(fcinfo, ARG_EXPIRES_AT,
												  &times[1]);
	message->given_id = outbox_arg_uuid_or_null(fcinfo, ARG_MESSAGE_ID);
	outbox_check_message(message, "");
}

static const text *
payload_as_text(FunctionCallInfo fcinfo)
{
	return outbox_arg_text_or_null(fcinfo, ARG_PAYLOAD);
}

static const text *
payload_from_jsonb(FunctionCallInfo fcinfo)
{
	Jsonb	   *payload;

	if (PG_ARGISNULL(ARG_PAYLOAD))
		return NULL;
	payload = PG_GETARG_JSONB_P(ARG_PAYLOAD);
	return cstring_to_text(JsonbToCString(NULL, &payload->root,
										  VARSIZE(payload)));
}

static Datum
enqueue_one(FunctionCallInfo fcinfo, const text *payload)
{
	OutboxMessage message;
	TimestampTz times[2];
	pg_uuid_t  *result;

	outbox_begin_call("outbox.enqueue()");
	get_message(fcinfo, payload, &message, times);
	outbox_enqueue(outbox_store(OUTBOX_QUEUE), &message, 1);
	result = palloc_object(pg_uuid_t);
	*result = message.message_id;
	PG_RETURN_UUID_P(result);
}

static Datum
try_enqueue_one(FunctionCallInfo fcinfo, const text *payload)
{
	OutboxMessage message;
	TimestampTz times[2];
	TupleDesc	desc;
	Datum		values[2];
	bool		isnull[2] = {false, false};

	outbox_begin_call("outbox.try_enqueue()");
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	get_message(fcinfo, payload, &message, times);
	outbox_enqueue(outbox_store(OUTBOX_QUEUE), &message, 1);
	values[0] = UUIDPGetDatum(&message.message_id);
	values[1] = BoolGetDatum(message.enqueued);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, isnull)));
}

/*
 * outbox.enqueue(topic text, payload text, ...) RETURNS uuid
 *		Put a message into the queue, in the caller's transaction.
 */
PG_FUNCTION_INFO_V1(outbox_enqueue_text);
Datum
outbox_enqueue_text(PG_FUNCTION_ARGS)
{
	return enqueue_one(fcinfo, payload_as_text(fcinfo));
}

/*
 * outbox.enqueue(topic text, payload jsonb, ...) RETURNS uuid
 *		The same; the payload is the text of the jsonb.
 */
PG_FUNCTION_INFO_V1(outbox_enqueue_jsonb);
Datum
outbox_enqueue_jsonb(PG_FUNCTION_ARGS)
{
	return enqueue_one(fcinfo, payload_from_jsonb(fcinfo));
}

/*
 * outbox.try_enqueue(topic text, payload text, ...)
 *		RETURNS TABLE (message_id uuid, enqueued boolean)
 *		Like enqueue, and tells whether the message is new.
 */
PG_FUNCTION_INFO_V1(outbox_try_enqueue_text);
Datum
outbox_try_enqueue_text(PG_FUNCTION_ARGS)
{
	return try_enqueue_one(fcinfo, payload_as_text(fcinfo));
}

PG_FUNCTION_INFO_V1(outbox_try_enqueue_jsonb);
Datum
outbox_try_enqueue_jsonb(PG_FUNCTION_ARGS)
{
	return try_enqueue_one(fcinfo, payload_from_jsonb(fcinfo));
}

/* What enqueue_many() and its twin do with n payloads. */
static Datum
enqueue_many(FunctionCallInfo fcinfo, const text **payloads, int n)
{
	OutboxMessage prototype = {NULL};
	OutboxMessage *messages;
	TimestampTz due_time;
	Datum	   *result;

	prototype.topic = outbox_arg_text_or_null(fcinfo, 0);
	prototype.namespace = outbox_arg_text_or_null(fcinfo, 2);
	if (!PG_ARGISNULL(3))
		prototype.headers = PG_GETARG_JSONB_P(3);
	prototype.due_time = outbox_arg_time_or_null(fcinfo, 4, &due_time);
	prototype.stream_id = outbox_arg_uuid_or_null(fcinfo, 5);

	/* the topic is checked even if there is nothing to be enqueued in it */
	prototype.payload = cstring_to_text("");
	outbox_check_message(&prototype, "");
	messages = MemoryContextAllocHuge(CurrentMemoryContext,
									  (Size) (n + 1) * sizeof(OutboxMessage));
	for (int i = 0; i < n; i++)
	{
		messages[i] = prototype;
		messages[i].payload = payloads[i];
		outbox_check_payload(payloads[i], "");
	}
	if (n > 0)
		outbox_enqueue(outbox_store(OUTBOX_QUEUE), messages, n);

	result = palloc_array(Datum, n + 1);
	for (int i = 0; i < n; i++)
		result[i] = UUIDPGetDatum(&messages[i].message_id);
	PG_RETURN_ARRAYTYPE_P(construct_array(result, n, UUIDOID, UUID_LEN, false,
										  TYPALIGN_CHAR));
}

/*
 * outbox.enqueue_many(topic text, payloads text[], namespace text,
 *					   headers jsonb, due_time timestamptz, stream_id uuid)
 *		RETURNS uuid[]
 *		Messages that differ in nothing but their payloads.
 */
PG_FUNCTION_INFO_V1(outbox_enqueue_many);
Datum
outbox_enqueue_many(PG_FUNCTION_ARGS)
{
	const text **payloads;
	Datum	   *values;
	bool	   *isnull;
	int			n;

	outbox_begin_call("outbox.enqueue_many()");
	outbox_arg_array(fcinfo, 1, "payloads", TEXTOID, &values, &isnull, &n);
	payloads = palloc_array(const text *, n + 1);
	for (int i = 0; i < n; i++)
	{
		if (isnull[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("payloads must not contain nulls")));
		payloads[i] = DatumGetTextPP(values[i]);
	}
	return enqueue_many(fcinfo, payloads, n);
}

/*
 * outbox.enqueue_many_json(topic text, payloads jsonb, ...) RETURNS uuid[]
 *		The same; the payloads are the elements of a JSON array.
 */
PG_FUNCTION_INFO_V1(outbox_enqueue_many_json);
Datum
outbox_enqueue_many_json(PG_FUNCTION_ARGS)
{
	const text **payloads;
	int			n;

	outbox_begin_call("outbox.enqueue_many_json()");
	outbox_require(fcinfo, 1, "payloads");
	payloads = outbox_json_payloads(PG_GETARG_JSONB_P(1), "payloads", &n);
	return enqueue_many(fcinfo, payloads, n);
}

/*
 * outbox.enqueue_batch(messages jsonb)
 *		RETURNS TABLE (ordinal int, message_id uuid, enqueued boolean)
 *		Messages given as an array of objects, whose keys are the names of
 *		enqueue's arguments.
 */
PG_FUNCTION_INFO_V1(outbox_enqueue_batch);
Datum
outbox_enqueue_batch(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	OutboxMessage *messages;
	int			n;

	outbox_begin_call("outbox.enqueue_batch()");
	InitMaterializedSRF(fcinfo, 0);
	outbox_require(fcinfo, 0, "messages");
	messages = outbox_json_records(PG_GETARG_JSONB_P(0), "messages",
								   outbox_message_fields,
								   outbox_nmessage_fields,
								   sizeof(OutboxMessage), &n);
	for (int i = 0; i < n; i++)
	{
		OutboxMessage *message = &messages[i];

		outbox_message_set_defaults(message);
		outbox_check_message(message, psprintf("messages[%d].", i));
	}
	if (n > 0)
		outbox_enqueue(outbox_store(OUTBOX_QUEUE), messages, n);
	for (int i = 0; i < n; i++)
	{
		Datum		values[3];
		bool		isnull[3] = {false, false, false};

		values[0] = Int32GetDatum(i + 1);
		values[1] = UUIDPGetDatum(&messages[i].message_id);
		values[2] = BoolGetDatum(messages[i].enqueued);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	}
	return (Datum) 0;
}
