/*
 * sql_enqueue.c
 *	  SQL functions that enqueue and publish messages.
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
#include "core/publish.h"
#include "table/catalog.h"
#include "util/hash.h"

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
	ARG_MESSAGE_ID,
	ARG_DEDUPE_FOR,
	ARG_ON_DUPLICATE,
	ARG_PRIORITY
};

/* Space for arguments that a message points to. */
typedef struct MessageArgs
{
	TimestampTz due_time;
	TimestampTz expires_at;
	int32		priority;
} MessageArgs;

/*
 * Set the message's members to the arguments, some of which are put into
 * *space.
 */
static void
get_message(FunctionCallInfo fcinfo, const text *payload,
			OutboxMessage *message, MessageArgs *space)
{
	memset(message, 0, sizeof(OutboxMessage));
	message->topic = outbox_arg_text_or_null(fcinfo, ARG_TOPIC);
	message->payload = payload;
	message->correlation_id =
		outbox_empty_to_null(outbox_arg_text_or_null(fcinfo, ARG_CORRELATION_ID));
	message->due_time = outbox_arg_time_or_null(fcinfo, ARG_DUE_TIME,
												&space->due_time);
	message->namespace = outbox_arg_text_or_null(fcinfo, ARG_NAMESPACE);
	message->tenant_id = outbox_arg_uuid_or_null(fcinfo, ARG_TENANT_ID);
	message->dedupe_key =
		outbox_empty_to_null(outbox_arg_text_or_null(fcinfo, ARG_DEDUPE_KEY));
	message->stream_id = outbox_arg_uuid_or_null(fcinfo, ARG_STREAM_ID);
	if (!PG_ARGISNULL(ARG_HEADERS))
		message->headers = PG_GETARG_JSONB_P(ARG_HEADERS);
	message->expires_at = outbox_arg_time_or_null(fcinfo, ARG_EXPIRES_AT,
												  &space->expires_at);
	message->given_id = outbox_arg_uuid_or_null(fcinfo, ARG_MESSAGE_ID);
	if (!PG_ARGISNULL(ARG_DEDUPE_FOR))
		message->dedupe_for = PG_GETARG_INTERVAL_P(ARG_DEDUPE_FOR);
	message->on_duplicate = outbox_arg_text_or_null(fcinfo, ARG_ON_DUPLICATE);
	if (!PG_ARGISNULL(ARG_PRIORITY))
	{
		space->priority = PG_GETARG_INT32(ARG_PRIORITY);
		message->priority = &space->priority;
	}
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
	MessageArgs space;
	pg_uuid_t  *result;

	outbox_require_writable("outbox.enqueue()");
	get_message(fcinfo, payload, &message, &space);
	outbox_enqueue(outbox_store(OUTBOX_QUEUE), &message, 1);
	result = palloc_object(pg_uuid_t);
	*result = message.message_id;
	PG_RETURN_UUID_P(result);
}

/*
 * outbox._enqueue_caused(cause uuid, topic text, payload text, namespace text,
 *						  correlation_id text, headers jsonb) RETURNS uuid
 *		Enqueues a message whose cause is known.
 */
PG_FUNCTION_INFO_V1(outbox_enqueue_caused);
Datum
outbox_enqueue_caused(PG_FUNCTION_ARGS)
{
	const pg_uuid_t *cause = outbox_arg_uuid(fcinfo, 0, "cause");
	OutboxMessage message = {
		.has_cause = true,
		.cause = *cause,
		.topic = outbox_arg_text_or_null(fcinfo, 1),
		.payload = outbox_arg_text_or_null(fcinfo, 2),
		.namespace = outbox_arg_text_or_null(fcinfo, 3),
		.correlation_id = outbox_empty_to_null(outbox_arg_text_or_null(fcinfo, 4)),
		.headers = PG_ARGISNULL(5) ? NULL : PG_GETARG_JSONB_P(5)
	};
	pg_uuid_t  *result = palloc_object(pg_uuid_t);

	outbox_require_writable("outbox._enqueue_caused()");
	outbox_check_message(&message, "");
	outbox_enqueue(outbox_store(OUTBOX_QUEUE), &message, 1);
	*result = message.message_id;
	PG_RETURN_UUID_P(result);
}

/* try_enqueue, with this payload. */
static Datum
try_enqueue_one(FunctionCallInfo fcinfo, const text *payload)
{
	OutboxMessage message;
	MessageArgs space;
	TupleDesc	desc;
	Datum		values[3];
	bool		isnull[3] = {false, false, false};

	outbox_require_writable("outbox.try_enqueue()");
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	get_message(fcinfo, payload, &message, &space);
	outbox_enqueue(outbox_store(OUTBOX_QUEUE), &message, 1);
	values[0] = UUIDPGetDatum(&message.message_id);
	values[1] = BoolGetDatum(message.enqueued);
	values[2] = CStringGetTextDatum(outbox_outcome_name(message.outcome));
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, isnull)));
}

/*
 * Raise an error for on_duplicate values that publications do not support,
 * since what was delivered cannot be replaced.
 */
static void
check_publication(const OutboxMessage *message, const char *prefix)
{
	if (message->on_duplicate != NULL &&
		!outbox_text_equal(message->on_duplicate, cstring_to_text("keep")))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%son_duplicate must be keep for a publication", prefix)));
}

static Datum
publish_one(FunctionCallInfo fcinfo, const text *payload)
{
	OutboxMessage message;
	MessageArgs space;
	pg_uuid_t  *result;

	outbox_require_writable("outbox.publish()");
	get_message(fcinfo, payload, &message, &space);
	check_publication(&message, "");
	outbox_publish(&message, 1, NULL);
	result = palloc_object(pg_uuid_t);
	*result = message.message_id;
	PG_RETURN_UUID_P(result);
}

/*
 * outbox.enqueue(topic text, payload text, ...) RETURNS uuid
 *		Puts a message into the queue, in the caller's transaction.
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
 *		RETURNS outbox.enqueue_result Like enqueue, and returns whether the
 *		message is new, or what was done with the one that has its dedupe key.
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

/*
 * outbox.publish(topic text, payload text, ...) RETURNS uuid
 *		Puts a message into the queue for each matching subscription.
 */
PG_FUNCTION_INFO_V1(outbox_publish_text);
Datum
outbox_publish_text(PG_FUNCTION_ARGS)
{
	return publish_one(fcinfo, payload_as_text(fcinfo));
}

PG_FUNCTION_INFO_V1(outbox_publish_jsonb);
Datum
outbox_publish_jsonb(PG_FUNCTION_ARGS)
{
	return publish_one(fcinfo, payload_from_jsonb(fcinfo));
}

/* Enqueue or publish n messages that differ only in their payloads. */
static Datum
put_many(FunctionCallInfo fcinfo, const text **payloads, int n, bool publish)
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

	/* check the topic even if there are no messages */
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
	if (n > 0 && publish)
		outbox_publish(messages, n, NULL);
	else if (n > 0)
		outbox_enqueue(outbox_store(OUTBOX_QUEUE), messages, n);

	result = palloc_array(Datum, n + 1);
	for (int i = 0; i < n; i++)
		result[i] = UUIDPGetDatum(&messages[i].message_id);
	PG_RETURN_ARRAYTYPE_P(construct_array(result, n, UUIDOID, UUID_LEN, false,
										  TYPALIGN_CHAR));
}

/* enqueue_many() and publish_many(), with an array of texts. */
static Datum
put_texts(FunctionCallInfo fcinfo, bool publish)
{
	const text **payloads;
	Datum	   *values;
	bool	   *isnull;
	int			n;

	outbox_require_writable(publish ? "outbox.publish_many()" : "outbox.enqueue_many()");
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
	return put_many(fcinfo, payloads, n, publish);
}

static Datum
put_elements(FunctionCallInfo fcinfo, bool publish)
{
	const text **payloads;
	int			n;

	outbox_require_writable(publish ? "outbox.publish_many_json()" :
							"outbox.enqueue_many_json()");
	outbox_require(fcinfo, 1, "payloads");
	payloads = outbox_json_payloads(PG_GETARG_JSONB_P(1), "payloads", &n);
	return put_many(fcinfo, payloads, n, publish);
}

/*
 * outbox.enqueue_many(topic text, payloads text[], namespace text,
 *					   headers jsonb, due_time timestamptz, stream_id uuid)
 *		RETURNS uuid[]
 *		Enqueues messages that differ only in their payloads.
 */
PG_FUNCTION_INFO_V1(outbox_enqueue_many);
Datum
outbox_enqueue_many(PG_FUNCTION_ARGS)
{
	return put_texts(fcinfo, false);
}

PG_FUNCTION_INFO_V1(outbox_publish_many);
Datum
outbox_publish_many(PG_FUNCTION_ARGS)
{
	return put_texts(fcinfo, true);
}

/*
 * outbox.enqueue_many_json(topic text, payloads jsonb, ...) RETURNS uuid[]
 *		The same; the payloads are the elements of a JSON array.
 */
PG_FUNCTION_INFO_V1(outbox_enqueue_many_json);
Datum
outbox_enqueue_many_json(PG_FUNCTION_ARGS)
{
	return put_elements(fcinfo, false);
}

PG_FUNCTION_INFO_V1(outbox_publish_many_json);
Datum
outbox_publish_many_json(PG_FUNCTION_ARGS)
{
	return put_elements(fcinfo, true);
}

/* Read and check the messages of a batch. */
static OutboxMessage *
get_batch(FunctionCallInfo fcinfo, int *n)
{
	OutboxMessage *messages;

	outbox_require(fcinfo, 0, "messages");
	messages = outbox_json_records(PG_GETARG_JSONB_P(0), "messages",
								   outbox_message_fields,
								   outbox_nmessage_fields,
								   sizeof(OutboxMessage), n);
	for (int i = 0; i < *n; i++)
	{
		outbox_message_set_defaults(&messages[i]);
		outbox_check_message(&messages[i], psprintf("messages[%d].", i));
	}
	return messages;
}

/*
 * outbox.enqueue_batch(messages jsonb)
 *		RETURNS TABLE (ordinal int, message_id uuid, enqueued boolean,
 *					   outcome text)
 *		Enqueues messages given as an array of objects, whose keys are the
 *		names of enqueue's arguments.
 */
PG_FUNCTION_INFO_V1(outbox_enqueue_batch);
Datum
outbox_enqueue_batch(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	OutboxMessage *messages;
	int			n;

	outbox_require_writable("outbox.enqueue_batch()");
	InitMaterializedSRF(fcinfo, 0);
	messages = get_batch(fcinfo, &n);
	if (n > 0)
		outbox_enqueue(outbox_store(OUTBOX_QUEUE), messages, n);
	for (int i = 0; i < n; i++)
	{
		Datum		values[4];
		bool		isnull[4] = {false, false, false, false};

		values[0] = Int32GetDatum(i + 1);
		values[1] = UUIDPGetDatum(&messages[i].message_id);
		values[2] = BoolGetDatum(messages[i].enqueued);
		values[3] = CStringGetTextDatum(outbox_outcome_name(messages[i].outcome));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	}
	return (Datum) 0;
}

/*
 * outbox.publish_batch(messages jsonb)
 *		RETURNS TABLE (ordinal int, message_id uuid, deliveries int)
 *		Publishes messages that are given in the same way.
 */
PG_FUNCTION_INFO_V1(outbox_publish_batch);
Datum
outbox_publish_batch(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	OutboxMessage *messages;
	int		   *deliveries;
	int			n;

	outbox_require_writable("outbox.publish_batch()");
	InitMaterializedSRF(fcinfo, 0);
	messages = get_batch(fcinfo, &n);
	for (int i = 0; i < n; i++)
		check_publication(&messages[i], psprintf("messages[%d].", i));
	deliveries = palloc_array(int, n + 1);
	if (n > 0)
		outbox_publish(messages, n, deliveries);
	for (int i = 0; i < n; i++)
	{
		Datum		values[3];
		bool		isnull[3] = {false, false, false};

		values[0] = Int32GetDatum(i + 1);
		values[1] = UUIDPGetDatum(&messages[i].message_id);
		values[2] = Int32GetDatum(deliveries[i]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	}
	return (Datum) 0;
}
