/*
 * trigger.c
 *	  The triggers of our tables: of outbox.queue and its siblings, for rows
 *	  that come by plain SQL, and of outbox.topics and outbox.handlers.
 *
 * The functions in C do themselves what these triggers do, and fire none when
 * they write directly.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "api/args.h"
#include "core/enqueue.h"
#include "outbox.h"
#include "queue/dedupe.h"
#include "queue/stream.h"
#include "shmem/lane.h"
#include "shmem/lane_xact.h"
#include "shmem/wake.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/table.h"
#include "util/hash.h"
#include "util/uuid.h"

static TriggerData *
get_trigger_data(FunctionCallInfo fcinfo, const char *function)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("\"%s\" was not called as a trigger", function)));
	return (TriggerData *) fcinfo->context;
}

/* The value of a column, or NULL. */
static void *
column(const Datum *values, const bool *isnull, AttrNumber attnum)
{
	return isnull[attnum - 1] ? NULL : DatumGetPointer(values[attnum - 1]);
}

static const text *
text_column(const Datum *values, const bool *isnull, AttrNumber attnum)
{
	return isnull[attnum - 1] ? NULL : DatumGetTextPP(values[attnum - 1]);
}

/* The message that somebody wants to insert; *times needs room for two. */
static void
get_inserted_message(const Datum *values, const bool *isnull, OutboxMessage *message,
					 TimestampTz *times)
{
	memset(message, 0, sizeof(OutboxMessage));
	message->topic = text_column(values, isnull, Q_TOPIC);
	message->payload = text_column(values, isnull, Q_PAYLOAD);
	message->namespace = text_column(values, isnull, Q_NAMESPACE);
	message->correlation_id =
		outbox_empty_to_null(text_column(values, isnull, Q_CORRELATION_ID));
	message->dedupe_key =
		outbox_empty_to_null(text_column(values, isnull, Q_DEDUPE_KEY));
	message->headers = column(values, isnull, Q_HEADERS);
	message->tenant_id = column(values, isnull, Q_TENANT_ID);
	message->stream_id = column(values, isnull, Q_STREAM_ID);
	message->given_id = column(values, isnull, Q_MESSAGE_ID);
	if (!isnull[Q_DUE_TIME - 1])
	{
		times[0] = DatumGetTimestampTz(values[Q_DUE_TIME - 1]);
		message->due_time = &times[0];
	}
	if (!isnull[Q_EXPIRES_AT - 1])
	{
		times[1] = DatumGetTimestampTz(values[Q_EXPIRES_AT - 1]);
		message->expires_at = &times[1];
	}
	outbox_check_message(message, "");
}

/*
 * outbox._queue_insert() RETURNS trigger
 *		Before a row is inserted into the queue: make it what enqueue() with
 *		the same values would have made.  A message whose dedupe key is taken
 *		is not inserted.
 *
 *		A row that brings its own id is left as it is: this is how messages
 *		come back from a dump.
 */
PG_FUNCTION_INFO_V1(outbox_queue_insert);
Datum
outbox_queue_insert(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = get_trigger_data(fcinfo, "outbox._queue_insert");
	TupleDesc	desc = RelationGetDescr(trigger->tg_relation);
	Datum	   *values = palloc_array(Datum, desc->natts);
	bool	   *isnull = palloc_array(bool, desc->natts);
	TimestampTz times[2];
	TimestampTz now = GetCurrentTimestamp();
	OutboxMessage message;
	OutboxStreamTurn turn;
	int64		lane;
	OutboxKey	key;

	heap_deform_tuple(trigger->tg_trigtuple, desc, values, isnull);
	if (!isnull[Q_ID - 1])
		return PointerGetDatum(trigger->tg_trigtuple);

	get_inserted_message(values, isnull, &message, times);
	if (message.given_id != NULL)
		message.message_id = *message.given_id;
	else
		outbox_uuid7(now, &message.message_id);
	if (message.dedupe_key != NULL)
	{
		pg_uuid_t	holder;

		outbox_dedupe_digest(message.namespace, message.topic,
							 message.dedupe_key, &message.dedupe_digest);
		if (!outbox_dedupe_take(&message.dedupe_digest, &message.message_id,
								&holder))
			return PointerGetDatum(NULL);
	}
	outbox_check_given_id(&message);
	message.id = nextval_internal(outbox_catalog()->sequence, false);
	if (message.stream_id != NULL)
	{
		OutboxTable queue;

		outbox_store_open(&queue, outbox_store(OUTBOX_QUEUE));
		(void) outbox_stream_turn_begin(&queue, message.stream_id, &turn);
		outbox_stream_turn_keep(&queue, &turn);
		outbox_table_close(&queue);
	}
	outbox_make_row(&message, message.stream_id != NULL ? &turn : NULL,
					GetCurrentTimestamp(), values, isnull, &lane, &key);
	return PointerGetDatum(heap_form_tuple(desc, values, isnull));
}

static int64
tuple_lane(HeapTuple tuple, TupleDesc desc)
{
	bool		isnull;

	return DatumGetInt64(heap_getattr(tuple, Q_LANE, desc, &isnull));
}

static OutboxKey
tuple_key(HeapTuple tuple, TupleDesc desc)
{
	bool		isnull;

	return OUTBOX_MAKE(OutboxKey,
					   DatumGetTimestampTz(heap_getattr(tuple, Q_READY_AT, desc, &isnull)),
					   DatumGetInt64(heap_getattr(tuple, Q_ID, desc, &isnull)));
}

/*
 * outbox._queue_changed() RETURNS trigger
 *		After a row of the queue was inserted, updated or deleted: let the
 *		lanes know where it lies now, and where it lay before.
 */
PG_FUNCTION_INFO_V1(outbox_queue_changed);
Datum
outbox_queue_changed(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = get_trigger_data(fcinfo, "outbox._queue_changed");
	Oid			relid = RelationGetRelid(trigger->tg_relation);
	TupleDesc	desc = RelationGetDescr(trigger->tg_relation);
	HeapTuple	old = trigger->tg_trigtuple;
	HeapTuple	new = trigger->tg_newtuple;
	Datum		locked_until;
	bool		isnull;

	if (TRIGGER_FIRED_BY_INSERT(trigger->tg_event))
		new = old;
	else
		outbox_lane_note_change(relid, tuple_lane(old, desc),
								tuple_key(old, desc));
	if (TRIGGER_FIRED_BY_DELETE(trigger->tg_event))
		return PointerGetDatum(NULL);
	if (TRIGGER_FIRED_BY_INSERT(trigger->tg_event))
	{
		Datum		expires_at = heap_getattr(new, Q_EXPIRES_AT, desc, &isnull);

		if (!isnull)
			outbox_wake_note_due(DatumGetTimestampTz(expires_at));
		if (relid == outbox_store(OUTBOX_QUEUE)->table)
			outbox_notify_listeners();
	}

	locked_until = heap_getattr(new, Q_LOCKED_UNTIL, desc, &isnull);
	if (!isnull)
		outbox_lane_report_lease(relid, tuple_lane(new, desc),
								 tuple_key(new, desc), tuple_key(new, desc),
								 DatumGetTimestampTz(locked_until));
	else if (tuple_key(new, desc).at == DT_NOEND)
		outbox_wake_note(relid, tuple_lane(new, desc));
	else
		outbox_lane_report(relid, tuple_lane(new, desc), tuple_key(new, desc),
						   tuple_key(new, desc), GetCurrentTransactionId());
	return PointerGetDatum(NULL);
}

/*
 * outbox._topics_changed() RETURNS trigger
 *		After each change of outbox.topics: every backend must read it again.
 */
PG_FUNCTION_INFO_V1(outbox_topics_changed);
Datum
outbox_topics_changed(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = get_trigger_data(fcinfo, "outbox._topics_changed");

	CacheInvalidateRelcache(trigger->tg_relation);
	outbox_wake_note_all();
	PG_RETURN_POINTER(NULL);
}
