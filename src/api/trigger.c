/*
 * trigger.c
 *	  Trigger functions: of the live tables, for rows written by plain SQL, and
 *	  of outbox.topics, outbox.handlers, outbox.subscribers and the tables of
 *	  the router.
 *
 * The functions in C do themselves what these triggers do, and do not fire
 * them when they write directly.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_trigger.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "api/args.h"
#include "core/cause.h"
#include "core/enqueue.h"
#include "outbox.h"
#include "queue/dedupe.h"
#include "queue/message_find.h"
#include "queue/policy.h"
#include "queue/queue.h"
#include "queue/router.h"
#include "queue/stream.h"
#include "shmem/lane_xact.h"
#include "shmem/stream_cursor.h"
#include "shmem/wake.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/loading.h"
#include "table/probe.h"
#include "table/table.h"
#include "table/table_sql.h"
#include "util/guc.h"
#include "util/hash.h"
#include "util/uuid.h"

/*
 * Get the trigger data; an error unless the trigger is of the kind that the
 * install script makes: "type" says when it fires, and for what.
 */
static TriggerData *
get_trigger_data(FunctionCallInfo fcinfo, const char *function, int16 type)
{
	const int16 kind = TRIGGER_TYPE_LEVEL_MASK | TRIGGER_TYPE_TIMING_MASK;
	TriggerData *trigger = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("\"%s\" was not called as a trigger", function)));
	if ((trigger->tg_trigger->tgtype & kind) != (type & kind) ||
		(trigger->tg_trigger->tgtype & ~type) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("\"%s\" was not fired by a trigger of the kind that it is made for",
						function)));
	return trigger;
}

static void
refuse_relation(Relation rel, const char *function)
{
	ereport(ERROR,
			(errcode(ERRCODE_WRONG_OBJECT_TYPE),
			 errmsg("\"%s\" cannot be a trigger of \"%s\"", function,
					RelationGetRelationName(rel))));
}

/*
 * Raise an error unless this is a live table, since columns are known by
 * number.
 */
static void
require_live_table(Relation rel, const char *function)
{
	if (outbox_store_of(RelationGetRelid(rel)) == NULL || RelationGetDescr(rel)->natts < Q_NATTS)
		refuse_relation(rel, function);
}

static void
open_live_table(OutboxTable *table, Relation rel)
{
	outbox_table_open_to_read(table, RelationGetRelid(rel));
	table->store = outbox_store_of(RelationGetRelid(rel));
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

/* Space for values that a message points to. */
typedef struct InsertedValues
{
	TimestampTz due_time;
	TimestampTz expires_at;
	int32		priority;
} InsertedValues;

/* Make a message from a row that is inserted; it points to *space. */
static void
get_inserted_message(const Datum *values, const bool *isnull, OutboxMessage *message,
					 InsertedValues *space)
{
	memset(message, 0, sizeof(OutboxMessage));
	if (!isnull[Q_SUBSCRIBER - 1] || !isnull[Q_PUBLISHED_ID - 1] ||
		!isnull[Q_PUBLISHED_AT - 1])
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("deliveries cannot be inserted"),
				 errhint("Call outbox.publish().")));
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
		space->due_time = DatumGetTimestampTz(values[Q_DUE_TIME - 1]);
		message->due_time = &space->due_time;
	}
	if (!isnull[Q_EXPIRES_AT - 1])
	{
		space->expires_at = DatumGetTimestampTz(values[Q_EXPIRES_AT - 1]);
		message->expires_at = &space->expires_at;
	}
	if (!isnull[Q_PRIORITY - 1])
	{
		space->priority = DatumGetInt16(values[Q_PRIORITY - 1]);
		message->priority = &space->priority;
	}
	if (!isnull[Q_CAUSED_BY - 1])
	{
		message->has_cause = true;
		message->cause = *DatumGetUUIDP(values[Q_CAUSED_BY - 1]);
	}
	outbox_check_message(message, "");
}

/*
 * Take the turn of a stream, and hold its lock to the end of the transaction.
 */
static void
keep_turn(Relation rel, const pg_uuid_t *stream, OutboxStreamTurn *turn)
{
	OutboxTable queue;

	open_live_table(&queue, rel);
	outbox_stream_turn_begin(&queue, stream, turn);
	outbox_table_close(&queue);
}

/*
 * Take the dedupe key of a message that is inserted; false if it is taken.
 * Does not take it for a message whose id exists, because that will not be
 * inserted.
 */
static bool
take_key(Relation rel, OutboxMessage *message)
{
	OutboxKeyTake take = {
		.key = &message->dedupe_digest,
		.message_id = &message->message_id,
		.is_kept = outbox_message_is_kept
	};
	OutboxTable queue;
	TupleTableSlot *slot;
	TransactionId blocker;
	bool		exists = false;

	if (message->dedupe_key == NULL)
		return true;
	if (message->given_id != NULL)
	{
		open_live_table(&queue, rel);
		slot = outbox_table_slot(&queue);
		exists = outbox_find_row(&queue, queue.store->message_id,
								 UUIDPGetDatum(message->given_id), slot, &blocker) ||
			TransactionIdIsValid(blocker);
		ExecDropSingleTupleTableSlot(slot);
		outbox_table_close(&queue);
	}
	if (exists)
		return true;
	outbox_dedupe_digest(message->namespace, message->topic,
						 message->dedupe_key, &message->dedupe_digest);
	return outbox_dedupe_take(&take);
}

/* Complete a row that plain SQL inserts, as enqueue() would have made it. */
static HeapTuple
make_inserted(TriggerData *trigger, Datum *values, bool *isnull)
{
	TupleDesc	desc = RelationGetDescr(trigger->tg_relation);
	TimestampTz now = GetCurrentTimestamp();
	InsertedValues space;
	OutboxMessage message;
	OutboxStreamTurn turn;
	OutboxPlace place;
	OutboxReadyKey key;

	get_inserted_message(values, isnull, &message, &space);
	if (message.given_id != NULL)
		message.message_id = *message.given_id;
	else
		outbox_uuid7(now, &message.message_id);
	outbox_cause_note(&message);
	if (!take_key(trigger->tg_relation, &message))
		return NULL;
	outbox_check_given_id(&message);
	if (message.priority == NULL)
		message.topic_priority = outbox_policy_priority(message.namespace,
														message.topic);
	message.id = nextval_internal(outbox_catalog()->sequence, false);
	if (message.stream_id != NULL)
		keep_turn(trigger->tg_relation, message.stream_id, &turn);
	outbox_make_row(&message, message.stream_id != NULL ? &turn : NULL,
					GetCurrentTimestamp(), values, isnull, &place, &key);
	return heap_form_tuple(desc, values, isnull);
}

/* The lane of a row. */
static int64
lane_of(const Datum *values, const bool *isnull)
{
	OutboxPlace place;

	outbox_place_of(DatumGetTextPP(values[Q_NAMESPACE - 1]),
					DatumGetTextPP(values[Q_TOPIC - 1]),
					column(values, isnull, Q_TENANT_ID),
					isnull[Q_SUBSCRIBER - 1] ? 0 :
					DatumGetInt32(values[Q_SUBSCRIBER - 1]),
					isnull[Q_PRIORITY - 1] ? 0 :
					DatumGetInt16(values[Q_PRIORITY - 1]), &place);
	return place.lane;
}

/* Is a UUID the same in both rows? */
static bool
same_uuid(const Datum *a, const bool *anull, const Datum *b, const bool *bnull,
		  AttrNumber attnum)
{
	if (anull[attnum - 1] || bnull[attnum - 1])
		return anull[attnum - 1] == bnull[attnum - 1];
	return outbox_uuid_equal(DatumGetUUIDP(a[attnum - 1]),
							 DatumGetUUIDP(b[attnum - 1]));
}

/*
 * Correct a row that plain SQL writes: it gets the lane of its topic; and if
 * it has another stream than before, it takes the last place there.
 */
static HeapTuple
correct_row(TriggerData *trigger, HeapTuple tuple, Datum *values, bool *isnull)
{
	TupleDesc	desc = RelationGetDescr(trigger->tg_relation);
	bool		update = TRIGGER_FIRED_BY_UPDATE(trigger->tg_event);
	bool		changed = false;

	if (isnull[Q_NAMESPACE - 1] || isnull[Q_TOPIC - 1])
		return tuple;			/* a constraint will reject it */
	if (!isnull[Q_PRIORITY - 1])
	{
		int32		priority = DatumGetInt16(values[Q_PRIORITY - 1]);

		outbox_check_priority(&priority, "");
	}
	if (isnull[Q_LANE - 1] ||
		DatumGetInt64(values[Q_LANE - 1]) != lane_of(values, isnull))
	{
		values[Q_LANE - 1] = Int64GetDatum(lane_of(values, isnull));
		isnull[Q_LANE - 1] = false;
		changed = true;
	}
	if (update)
	{
		Datum	   *old = palloc_array(Datum, desc->natts);
		bool	   *oldnull = palloc_array(bool, desc->natts);

		heap_deform_tuple(trigger->tg_trigtuple, desc, old, oldnull);
		if (!same_uuid(values, isnull, old, oldnull, Q_STREAM_ID))
		{
			OutboxStreamTurn turn;

			isnull[Q_STREAM_SEQ - 1] = isnull[Q_STREAM_ID - 1];
			if (!isnull[Q_STREAM_ID - 1])
			{
				keep_turn(trigger->tg_relation,
						  DatumGetUUIDP(values[Q_STREAM_ID - 1]), &turn);
				values[Q_STREAM_SEQ - 1] =
					Int64GetDatum(outbox_stream_turn_next(&turn,
														  DatumGetInt64(values[Q_ID - 1])));
			}
			changed = true;
		}
	}
	return changed ? heap_form_tuple(desc, values, isnull) : tuple;
}

/*
 * Plain SQL inserts rows that usually only functions insert: they come from a
 * dump, unless one of these functions does so by SQL.
 */
static void
note_loading(void)
{
	if (!outbox_sql_is_running() && !InLocalUserIdChange())
		outbox_loading_note();
}

/*
 * outbox._loads() RETURNS trigger
 *		BEFORE INSERT on a table that users do not write: records that a dump
 *		is being loaded.
 */
PG_FUNCTION_INFO_V1(outbox_loads);
Datum
outbox_loads(PG_FUNCTION_ARGS)
{
	(void) get_trigger_data(fcinfo, "outbox._loads",
							TRIGGER_TYPE_BEFORE | TRIGGER_TYPE_INSERT);
	note_loading();
	return PointerGetDatum(NULL);
}

/*
 * outbox._publication_loaded() RETURNS trigger
 *		BEFORE INSERT of a publication by SQL: it counts as published by this
 *		transaction.
 */
PG_FUNCTION_INFO_V1(outbox_publication_loaded);
Datum
outbox_publication_loaded(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = get_trigger_data(fcinfo, "outbox._publication_loaded",
											TRIGGER_TYPE_ROW | TRIGGER_TYPE_BEFORE |
											TRIGGER_TYPE_INSERT);
	int			column = SPI_fnumber(RelationGetDescr(trigger->tg_relation), "xid");
	Datum		xid = FullTransactionIdGetDatum(GetTopFullTransactionId());
	bool		isnull = false;

	if (column <= 0)
		refuse_relation(trigger->tg_relation, "outbox._publication_loaded");
	return PointerGetDatum(heap_modify_tuple_by_cols(trigger->tg_trigtuple,
													 RelationGetDescr(trigger->tg_relation),
													 1, &column, &xid, &isnull));
}

/*
 * outbox._queue_written() RETURNS trigger
 *		BEFORE INSERT OR UPDATE of a row of a live table by plain SQL.  In the
 *		queue, an inserted row is completed as enqueue() would have done with
 *		the same values; a message whose dedupe key is taken is not inserted.
 *
 *		A row that has an id is left unchanged, except for its lane, because
 *		that is how messages are restored from a dump.
 */
PG_FUNCTION_INFO_V1(outbox_queue_written);
Datum
outbox_queue_written(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = get_trigger_data(fcinfo, "outbox._queue_written",
											TRIGGER_TYPE_ROW | TRIGGER_TYPE_BEFORE |
											TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE);
	TupleDesc	desc = RelationGetDescr(trigger->tg_relation);
	bool		update = TRIGGER_FIRED_BY_UPDATE(trigger->tg_event);
	HeapTuple	tuple = update ? trigger->tg_newtuple : trigger->tg_trigtuple;
	Datum	   *values = palloc_array(Datum, desc->natts);
	bool	   *isnull = palloc_array(bool, desc->natts);

	require_live_table(trigger->tg_relation, "outbox._queue_written");
	heap_deform_tuple(tuple, desc, values, isnull);
	if (!update && isnull[Q_ID - 1] &&
		RelationGetRelid(trigger->tg_relation) == outbox_store(OUTBOX_QUEUE)->table)
		return PointerGetDatum(make_inserted(trigger, values, isnull));
	if (!update)
		note_loading();
	return PointerGetDatum(correct_row(trigger, tuple, values, isnull));
}

/* The old or the new version of a row of a live table. */
typedef struct WrittenRow
{
	OutboxPlace place;
	OutboxReadyKey key;
	bool		leased;
	TimestampTz locked_until;
	bool		in_stream;
	pg_uuid_t	stream;
	int64		seq;
} WrittenRow;

static void
read_row(TupleTableSlot *slot, WrittenRow *row)
{
	bool		isnull;
	Datum		locked_until = slot_getattr(slot, Q_LOCKED_UNTIL, &isnull);

	outbox_queue_place(slot, &row->place);
	row->key = outbox_queue_ready_key(slot);
	row->leased = !isnull;
	row->locked_until = isnull ? 0 : DatumGetTimestampTz(locked_until);
	row->in_stream = outbox_stream_of(slot, &row->stream, &row->seq);
}

/* Note that a row has left its place, and perhaps its stream. */
static void
note_old_row(Relation rel, TupleTableSlot *slot, const WrittenRow *old)
{
	OutboxTable queue;
	OutboxStreamScan streams;

	if (old->key.at != DT_NOEND)
		outbox_lane_note_moved(RelationGetRelid(rel), &old->place, old->key);
	if (!old->in_stream)
		return;
	open_live_table(&queue, rel);
	outbox_stream_scan_begin(&streams, &queue);
	outbox_stream_ended(&streams, slot);
	outbox_stream_scan_end(&streams);
	outbox_table_close(&queue);
}

/* Note for the worker when a timer or run is due. */
static void
note_for_worker(Oid relid, const WrittenRow *new)
{
	if (!outbox_dispatch_timers || new->key.at == DT_NOEND ||
		(relid != outbox_store(OUTBOX_TIMERS)->table &&
		 relid != outbox_store(OUTBOX_RUNS)->table))
		return;
	if (new->key.at > GetCurrentTimestamp())
		outbox_wake_note_due(new->key.at);
	else
		outbox_wake_note_worker();
}

/* Note the place of a row. */
static void
note_new_row(Relation rel, TupleTableSlot *slot, const WrittenRow *new)
{
	Oid			relid = RelationGetRelid(rel);
	bool		isnull;
	Datum		expires_at = slot_getattr(slot, Q_EXPIRES_AT, &isnull);

	outbox_queue_note_expiry(relid, slot);
	if (!isnull)
		outbox_wake_note_due(DatumGetTimestampTz(expires_at));
	note_for_worker(relid, new);
	/* its place in the stream may not be the last */
	if (new->in_stream)
		outbox_stream_cursor_forget(relid, &new->stream);
	if (new->leased)
		outbox_lane_note_lease(relid, &new->place, new->key, new->locked_until);
	else if (new->key.at != DT_NOEND)
		outbox_lane_note_new(relid, &new->place, new->key, new->key, 1);
}

/*
 * outbox._queue_changed() RETURNS trigger
 *		AFTER INSERT, UPDATE or DELETE of a row of a live table by plain SQL:
 *		notes where it is now, and where it was before.
 */
PG_FUNCTION_INFO_V1(outbox_queue_changed);
Datum
outbox_queue_changed(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = get_trigger_data(fcinfo, "outbox._queue_changed",
											TRIGGER_TYPE_ROW | TRIGGER_TYPE_AFTER |
											TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE |
											TRIGGER_TYPE_DELETE);
	Relation	rel = trigger->tg_relation;
	TupleTableSlot *slot;
	WrittenRow	row;

	require_live_table(rel, "outbox._queue_changed");
	slot = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsHeapTuple);
	if (!TRIGGER_FIRED_BY_INSERT(trigger->tg_event))
	{
		ExecStoreHeapTuple(trigger->tg_trigtuple, slot, false);
		read_row(slot, &row);
		note_old_row(rel, slot, &row);
	}
	if (!TRIGGER_FIRED_BY_DELETE(trigger->tg_event))
	{
		ExecStoreHeapTuple(TRIGGER_FIRED_BY_INSERT(trigger->tg_event) ?
						   trigger->tg_trigtuple : trigger->tg_newtuple,
						   slot, false);
		read_row(slot, &row);
		note_new_row(rel, slot, &row);
	}
	ExecDropSingleTupleTableSlot(slot);
	if (TRIGGER_FIRED_BY_INSERT(trigger->tg_event) &&
		RelationGetRelid(rel) == outbox_store(OUTBOX_QUEUE)->table)
		outbox_notify_listeners();
	return PointerGetDatum(NULL);
}

/*
 * outbox._queue_truncated() RETURNS trigger
 *		BEFORE TRUNCATE of a live table: makes shared memory forget everything
 *		about it.
 */
PG_FUNCTION_INFO_V1(outbox_queue_truncated);
Datum
outbox_queue_truncated(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = get_trigger_data(fcinfo, "outbox._queue_truncated",
											TRIGGER_TYPE_STATEMENT | TRIGGER_TYPE_BEFORE |
											TRIGGER_TYPE_TRUNCATE);

	require_live_table(trigger->tg_relation, "outbox._queue_truncated");
	outbox_lane_note_doubtful(RelationGetRelid(trigger->tg_relation));
	return PointerGetDatum(NULL);
}

/*
 * outbox._topics_changed() RETURNS trigger
 *		AFTER each change of a row of outbox.topics, outbox.handlers or
 *		outbox.subscribers, and TRUNCATE: makes every backend read the table
 *		again.
 */
PG_FUNCTION_INFO_V1(outbox_topics_changed);
Datum
outbox_topics_changed(PG_FUNCTION_ARGS)
{
	bool		truncate = CALLED_AS_TRIGGER(fcinfo) &&
	TRIGGER_FIRED_BY_TRUNCATE(((TriggerData *) fcinfo->context)->tg_event);
	TriggerData *trigger = get_trigger_data(fcinfo, "outbox._topics_changed",
											truncate ?
											TRIGGER_TYPE_STATEMENT | TRIGGER_TYPE_AFTER |
											TRIGGER_TYPE_TRUNCATE :
											TRIGGER_TYPE_ROW | TRIGGER_TYPE_AFTER |
											TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE |
											TRIGGER_TYPE_DELETE);
	Oid			relid = RelationGetRelid(trigger->tg_relation);

	if (relid != outbox_catalog()->topics && relid != outbox_catalog()->handlers &&
		relid != outbox_catalog()->subscribers)
		refuse_relation(trigger->tg_relation, "outbox._topics_changed");
	CacheInvalidateRelcache(trigger->tg_relation);
	for (OutboxStoreKind kind = 0; kind < OUTBOX_NSTORES; kind++)
		outbox_wake_note_policies(outbox_store(kind)->table);
	PG_RETURN_POINTER(NULL);
}

/*
 * outbox._routes_changed() RETURNS trigger
 *		AFTER each change of a route, a store or the default: makes every
 *		backend look up routes again.
 */
PG_FUNCTION_INFO_V1(outbox_routes_changed);
Datum
outbox_routes_changed(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = get_trigger_data(fcinfo, "outbox._routes_changed",
											TRIGGER_TYPE_ROW | TRIGGER_TYPE_AFTER |
											TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE |
											TRIGGER_TYPE_DELETE);
	Oid			relid = RelationGetRelid(trigger->tg_relation);

	if (relid != outbox_catalog()->routes &&
		relid != outbox_catalog()->store_connections &&
		relid != outbox_catalog()->default_route)
		refuse_relation(trigger->tg_relation, "outbox._routes_changed");
	outbox_router_note_change(trigger->tg_relation);
	PG_RETURN_POINTER(NULL);
}
