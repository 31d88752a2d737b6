/*
 * sql_batch.c
 *	  One SQL function for a worker's whole round trip.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/value.h"
#include "parser/parse_func.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "api/args.h"
#include "api/json_args.h"
#include "api/message_args.h"
#include "api/sql_instance.h"
#include "compat.h"
#include "core/enqueue.h"
#include "core/receptor.h"
#include "core/round_trip.h"
#include "outbox.h"
#include "queue/handler_bind.h"
#include "table/catalog.h"
#include "table/columns.h"

/* The arguments of process_work_batch. */
enum
{
	A_INSTANCE_ID,
	A_SERVICE_NAME,
	A_HOST_NAME,
	A_PROCESS_ID,
	A_METADATA,
	A_OUTBOX_COMPLETIONS,
	A_OUTBOX_FAILURES,
	A_INBOX_COMPLETIONS,
	A_INBOX_FAILURES,
	A_RECEPTOR_COMPLETIONS,
	A_RECEPTOR_FAILURES,
	A_PERSPECTIVE_COMPLETIONS,
	A_PERSPECTIVE_FAILURES,
	A_NEW_OUTBOX_MESSAGES,
	A_NEW_INBOX_MESSAGES,
	A_RENEW_OUTBOX,
	A_RENEW_INBOX,
	A_FLAGS,
	A_PARTITION_COUNT,
	A_MAX_PARTITIONS,
	A_LEASE_SECONDS,
	A_STALE_SECONDS,
	A_BATCH_SIZE,
	A_SUBSCRIPTION
};

/* ---------------------------------------------------------------------- */
/* Reading                                                                */
/* ---------------------------------------------------------------------- */

static const OutboxJsonField completion_fields[] = {
	{"message_id", OUTBOX_JSON_UUID, offsetof(OutboxRoundTripEntry, message_id)},
	{"status", OUTBOX_JSON_INT, offsetof(OutboxRoundTripEntry, status)},
};

static const OutboxJsonField failure_fields[] = {
	{"message_id", OUTBOX_JSON_UUID, offsetof(OutboxRoundTripEntry, message_id)},
	{"completed_status", OUTBOX_JSON_INT, offsetof(OutboxRoundTripEntry, status)},
	{"error", OUTBOX_JSON_TEXT, offsetof(OutboxRoundTripEntry, error)},
	{"reason", OUTBOX_JSON_INT, offsetof(OutboxRoundTripEntry, reason)},
};

static const OutboxJsonField receptor_fields[] = {
	{"message_id", OUTBOX_JSON_UUID, offsetof(OutboxDerived, id)},
	{"event_id", OUTBOX_JSON_UUID, offsetof(OutboxDerived, id)},
	{"receptor_name", OUTBOX_JSON_TEXT, offsetof(OutboxDerived, name)},
	{"status", OUTBOX_JSON_INT, offsetof(OutboxDerived, status)},
	{"error", OUTBOX_JSON_TEXT, offsetof(OutboxDerived, error)},
};

static const OutboxJsonField perspective_fields[] = {
	{"stream_id", OUTBOX_JSON_UUID, offsetof(OutboxDerived, id)},
	{"perspective_name", OUTBOX_JSON_TEXT, offsetof(OutboxDerived, name)},
	{"last_message_id", OUTBOX_JSON_UUID, offsetof(OutboxDerived, last_message_id)},
	{"last_event_id", OUTBOX_JSON_UUID, offsetof(OutboxDerived, last_message_id)},
	{"status", OUTBOX_JSON_INT, offsetof(OutboxDerived, status)},
	{"error", OUTBOX_JSON_TEXT, offsetof(OutboxDerived, error)},
};

static const OutboxJsonField inbox_fields[] = {
	{"message_id", OUTBOX_JSON_UUID, offsetof(OutboxMessage, given_id)},
	{"handler_name", OUTBOX_JSON_TEXT, offsetof(OutboxMessage, topic)},
	{"payload", OUTBOX_JSON_PAYLOAD, offsetof(OutboxMessage, payload)},
	{"source", OUTBOX_JSON_TEXT, offsetof(OutboxMessage, correlation_id)},
	{"stream_id", OUTBOX_JSON_UUID, offsetof(OutboxMessage, stream_id)},
	{"headers", OUTBOX_JSON_OBJECT, offsetof(OutboxMessage, headers)},
};

static void
must_have(const void *member, const char *section, int index, const char *key)
{
	if (member == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s[%d].%s is missing", section, index, key)));
}

/* Read a section; null stands for an empty one. */
static void *
read_section(FunctionCallInfo fcinfo, int arg, const char *section,
			 const OutboxJsonField *fields, int nfields, size_t size, int *n)
{
	*n = 0;
	if (PG_ARGISNULL(arg))
		return NULL;
	return outbox_json_records(PG_GETARG_JSONB_P(arg), section, fields,
							   nfields, size, n);
}

/* Read a section of completions, failures or renewals. */
static void
read_entries(FunctionCallInfo fcinfo, int arg, const char *section,
			 const OutboxJsonField *fields, int nfields,
			 OutboxRoundTripEntry **entries, int *n)
{
	*entries = read_section(fcinfo, arg, section, fields, nfields,
							sizeof(OutboxRoundTripEntry), n);
	for (int i = 0; i < *n; i++)
	{
		OutboxRoundTripEntry *entry = &(*entries)[i];

		must_have(entry->message_id, section, i, "message_id");
		if (fields == completion_fields)
			must_have(entry->status, section, i, "status");
		if ((entry->status != NULL && *entry->status < 0) ||
			(entry->reason != NULL &&
			 (*entry->reason < 0 || *entry->reason > PG_INT16_MAX)))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s[%d]: status and reason must not be negative, nor the reason above %d",
							section, i, PG_INT16_MAX)));
	}
}

/* Read a section of receptors or perspectives. */
static void
read_derived(FunctionCallInfo fcinfo, int arg, const char *section,
			 const OutboxJsonField *fields, int nfields, OutboxDerivedList *list)
{
	bool		receptor = fields == receptor_fields;

	list->entries = read_section(fcinfo, arg, section, fields, nfields,
								 sizeof(OutboxDerived), &list->n);
	for (int i = 0; i < list->n; i++)
	{
		const char *name = receptor ? "receptor_name" : "perspective_name";

		must_have(list->entries[i].id, section, i,
				  receptor ? "message_id" : "stream_id");
		must_have(list->entries[i].name, section, i, name);
		if (!outbox_is_name(list->entries[i].name))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s[%d].%s must have 1 to %d characters", section,
							i, name, OUTBOX_MAX_NAME)));
	}
}

static void
read_renewals(FunctionCallInfo fcinfo, int arg, const char *section,
			  OutboxRoundTripSide *side)
{
	if (!PG_ARGISNULL(arg))
		side->renewals = outbox_json_uuids(PG_GETARG_JSONB_P(arg), section,
										   &side->nrenewals);
}

/* Fill in defaults of new messages, and check them. */
static void
check_messages(OutboxRoundTripSide *side, const char *section)
{
	bool		inbox = side->store->kind == OUTBOX_INBOX;

	for (int i = 0; i < side->nmessages; i++)
	{
		OutboxMessage *message = &side->messages[i];

		outbox_message_set_defaults(message);
		must_have(message->payload, section, i, "payload");
		must_have(message->topic, section, i, inbox ? "handler_name" : "topic");
		if (inbox)
		{
			must_have(message->given_id, section, i, "message_id");
			outbox_check_received(message, psprintf("%s[%d].", section, i));
		}
		else
			outbox_check_message(message, psprintf("%s[%d].", section, i));
	}
}

/*
 * Raise an error unless the caller may enqueue messages, that is, has EXECUTE
 * on enqueue_batch().
 */
static void
require_producer(void)
{
	Oid			argument = JSONBOID;
	Oid			enqueue = LookupFuncName(list_make2(makeString(OUTBOX_SCHEMA),
													makeString("enqueue_batch")),
										 1, &argument, false);

	if (!outbox_function_may_be_called(enqueue, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to enqueue new_outbox_messages"),
				 errhint("Call outbox.grant_producer() for the role.")));
}

/* Read the sections of both sides. */
static void
read_sides(FunctionCallInfo fcinfo, OutboxRoundTrip *trip)
{
	OutboxRoundTripSide *queue = &trip->sides[0];
	OutboxRoundTripSide *inbox = &trip->sides[1];

	queue->store = outbox_store(OUTBOX_QUEUE);
	queue->done_bits = OUTBOX_PROGRESS_PUBLISHED;
	inbox->store = outbox_store(OUTBOX_INBOX);
	inbox->done_bits = OUTBOX_PROGRESS_EVENT_STORED;

	read_entries(fcinfo, A_OUTBOX_COMPLETIONS, "outbox_completions",
				 completion_fields, lengthof(completion_fields),
				 &queue->completions, &queue->ncompletions);
	read_entries(fcinfo, A_OUTBOX_FAILURES, "outbox_failures",
				 failure_fields, lengthof(failure_fields),
				 &queue->failures, &queue->nfailures);
	read_entries(fcinfo, A_INBOX_COMPLETIONS, "inbox_completions",
				 completion_fields, lengthof(completion_fields),
				 &inbox->completions, &inbox->ncompletions);
	read_entries(fcinfo, A_INBOX_FAILURES, "inbox_failures",
				 failure_fields, lengthof(failure_fields),
				 &inbox->failures, &inbox->nfailures);
	read_renewals(fcinfo, A_RENEW_OUTBOX, "renew_outbox_lease_ids", queue);
	read_renewals(fcinfo, A_RENEW_INBOX, "renew_inbox_lease_ids", inbox);

	queue->messages = read_section(fcinfo, A_NEW_OUTBOX_MESSAGES,
								   "new_outbox_messages",
								   outbox_message_fields,
								   outbox_nmessage_fields,
								   sizeof(OutboxMessage), &queue->nmessages);
	check_messages(queue, "new_outbox_messages");
	if (queue->nmessages > 0)
		require_producer();
	inbox->messages = read_section(fcinfo, A_NEW_INBOX_MESSAGES,
								   "new_inbox_messages", inbox_fields,
								   lengthof(inbox_fields),
								   sizeof(OutboxMessage), &inbox->nmessages);
	check_messages(inbox, "new_inbox_messages");
}

/* ---------------------------------------------------------------------- */
/* Results                                                                */
/* ---------------------------------------------------------------------- */

/* The columns of the row from which those of the result come; 0: computed. */
static const AttrNumber result_columns[] = {
	0, Q_ID, Q_MESSAGE_ID, Q_TOPIC, Q_TOPIC, Q_PAYLOAD, Q_HEADERS, 0,
	0, Q_ATTEMPTS, Q_PROGRESS, 0, Q_CREATED_AT, Q_STREAM_SEQ
};

#define RESULT_SOURCE 0
#define RESULT_TOPIC 3
#define RESULT_HANDLER_NAME 4
#define RESULT_PAYLOAD 5
#define RESULT_STREAM 7
#define RESULT_PARTITION 8
#define RESULT_FLAGS 11
#define RESULT_ORDER 13

/* Put the claimed messages of one side into the result set. */
static void
return_results(ReturnSetInfo *rsinfo, const OutboxRoundTripSide *side,
			   const OutboxRoundTripResult *result)
{
	bool		inbox = side->store->kind == OUTBOX_INBOX;
	Datum		source = CStringGetTextDatum(inbox ? "inbox" : "outbox");
	Relation	rel;

	if (result->n == 0)
		return;
	rel = RelationIdGetRelation(side->store->table);
	for (int i = 0; i < result->n; i++)
	{
		const OutboxRoundTripMessage *message = &result->messages[i];
		Datum		values[lengthof(result_columns)];
		bool		isnull[lengthof(result_columns)];

		for (int k = 0; k < lengthof(result_columns); k++)
		{
			isnull[k] = false;
			if (result_columns[k] != 0)
				values[k] = heap_getattr(message->tuple, result_columns[k],
										 RelationGetDescr(rel), &isnull[k]);
		}
		values[RESULT_SOURCE] = source;
		isnull[RESULT_TOPIC] = inbox;
		isnull[RESULT_HANDLER_NAME] = !inbox;
		if (message->shares_payload)
		{
			values[RESULT_PAYLOAD] = PointerGetDatum(message->payload);
			isnull[RESULT_PAYLOAD] = message->payload == NULL;
		}
		values[RESULT_STREAM] = UUIDPGetDatum(&message->stream);
		isnull[RESULT_STREAM] = !message->has_stream;
		values[RESULT_PARTITION] = Int32GetDatum(message->partition);
		isnull[RESULT_PARTITION] = message->partition < 0;
		values[RESULT_FLAGS] = Int32GetDatum(message->flags);
		if (isnull[RESULT_ORDER])
			values[RESULT_ORDER] = Int64GetDatum(message->id);
		isnull[RESULT_ORDER] = false;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	}
	RelationClose(rel);
}

/* ---------------------------------------------------------------------- */
/* Functions                                                              */
/* ---------------------------------------------------------------------- */

/*
 * outbox.process_work_batch(...) RETURNS TABLE (...)
 *		See sql/batch.sql.
 */
PG_FUNCTION_INFO_V1(outbox_process_work_batch);
Datum
outbox_process_work_batch(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	OutboxRoundTrip trip;
	OutboxRoundTripResult results[2];
	OutboxDerivedSections derived;

	outbox_require_writable("outbox.process_work_batch()");
	memset(&trip, 0, sizeof(trip));
	memset(results, 0, sizeof(results));
	memset(&derived, 0, sizeof(derived));
	outbox_args_instance(fcinfo, &trip.instance);
	trip.flags = outbox_arg_int(fcinfo, A_FLAGS, "flags", 0, 0, PG_INT32_MAX);
	trip.partition_count = outbox_arg_int(fcinfo, A_PARTITION_COUNT,
										  "partition_count", 10000, 1,
										  PG_INT32_MAX);
	trip.max_partitions = outbox_arg_int(fcinfo, A_MAX_PARTITIONS,
										 "max_partitions_per_instance", 0, 1,
										 PG_INT32_MAX);
	trip.lease_seconds = outbox_arg_int(fcinfo, A_LEASE_SECONDS,
										"lease_seconds", 300, 1,
										OUTBOX_MAX_LEASE_SECONDS);
	trip.stale_seconds = outbox_arg_int(fcinfo, A_STALE_SECONDS,
										"stale_threshold_seconds", 600, 1,
										PG_INT32_MAX);
	trip.batch_size = outbox_arg_int(fcinfo, A_BATCH_SIZE, "batch_size", 100,
									 1, OUTBOX_MAX_BATCH);
	trip.subscription = outbox_arg_text_or_null(fcinfo, A_SUBSCRIPTION);
	outbox_args_subscribers(NULL, trip.subscription, &trip.subscribers,
							&trip.nsubscribers);
	read_sides(fcinfo, &trip);
	read_derived(fcinfo, A_RECEPTOR_COMPLETIONS, "receptor_completions",
				 receptor_fields, lengthof(receptor_fields),
				 &derived.receptors[0]);
	read_derived(fcinfo, A_RECEPTOR_FAILURES, "receptor_failures",
				 receptor_fields, lengthof(receptor_fields),
				 &derived.receptors[1]);
	read_derived(fcinfo, A_PERSPECTIVE_COMPLETIONS, "perspective_completions",
				 perspective_fields, lengthof(perspective_fields),
				 &derived.perspectives[0]);
	read_derived(fcinfo, A_PERSPECTIVE_FAILURES, "perspective_failures",
				 perspective_fields, lengthof(perspective_fields),
				 &derived.perspectives[1]);

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	outbox_round_trip_settle(&trip);
	outbox_receptors_write(&derived);
	outbox_round_trip_claim(&trip, results);
	for (int i = 0; i < 2; i++)
		return_results(rsinfo, &trip.sides[i], &results[i]);
	return (Datum) 0;
}
