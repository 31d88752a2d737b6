/*
 * trigger.c
 *	  The triggers of our tables: of outbox.queue and its siblings, for rows
 *	  that come by plain SQL, and of outbox.topics, outbox.handlers and the
 *	  tables of the router.
 *
 * The functions in C do themselves what these triggers do, and fire none when
 * they write directly.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_trigger.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "api/args.h"
#include "core/enqueue.h"
#include "outbox.h"
#include "queue/dedupe.h"
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
 * The trigger must be one like those that the install script makes: "type" says
 * when it fires, and for what.
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

/* The live table that a trigger is on; NULL if it is none. */
static const OutboxStore *
live_table(Relation rel)
{
	for (OutboxStoreKind kind = 0; kind < OUTBOX_NSTORES; kind++)
	{
		if (outbox_store(kind)->table == RelationGetRelid(rel))
			return outbox_store(kind);
	}
	return NULL;
}

static void
refuse_relation(Relation rel, const char *function)
{
	ereport(ERROR,
			(errcode(ERRCODE_WRONG_OBJECT_TYPE),
			 errmsg("\"%s\" cannot be a trigger of \"%s\"", function,
					RelationGetRelationName(rel))));
}

/* The triggers of live tables know columns by their numbers. */
static void
require_live_table(Relation rel, const char *function)
{
	if (live_table(rel) == NULL || RelationGetDescr(rel)->natts < Q_NATTS)
		refuse_relation(rel, function);
}

static void
open_live_table(OutboxTable *table, Relation rel)
{
	outbox_table_open_to_read(table, RelationGetRelid(rel));
	table->store = live_table(rel);
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

/* The turn of a stream, kept to the end of the transaction. */
static void
keep_turn(Relation rel, const pg_uuid_t *stream, OutboxStreamTurn *turn)
{
	OutboxTable queue;

	open_live_table(&queue, rel);
	outbox_stream_turn_begin(&queue, stream, turn);
	outbox_table_close(&queue);
}

/*
 * Take the dedupe key of a message that is to be inserted; false if it is taken.
 * Not for a message whose id is there already: it will not be inserted.
 */
static bool
take_key(Relation rel, OutboxMessage *message)
{
	pg_uuid_t	holder;
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
	return outbox_dedupe_take(&message->dedupe_digest, &message->message_id,
							  &holder);
}

/* A row that plain SQL inserts becomes what enqueue() would have made. */
static HeapTuple
make_inserted(TriggerData *trigger, Datum *values, bool *isnull)
{
	TupleDesc	desc = RelationGetDescr(trigger->tg_relation);
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz times[2];
	OutboxMessage message;
	OutboxStreamTurn turn;
	OutboxPlace place;
	OutboxKey	key;

	get_inserted_message(values, isnull, &message, times);
	if (message.given_id != NULL)
		message.message_id = *message.given_id;
	else
		outbox_uuid7(now, &message.message_id);
	if (!take_key(trigger->tg_relation, &message))
		return NULL;
	outbox_check_given_id(&message);
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
					column(values, isnull, Q_TENANT_ID), &place);
	return place.lane;
}

/* Is a column the same in both rows? */
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
 * A row that plain SQL writes lies in the lane of its topic, whatever it says of
 * that; and one that comes into another stream takes the last place there.
 */
static HeapTuple
correct_row(TriggerData *trigger, HeapTuple tuple, Datum *values, bool *isnull)
{
	TupleDesc	desc = RelationGetDescr(trigger->tg_relation);
	bool		update = TRIGGER_FIRED_BY_UPDATE(trigger->tg_event);
	bool		changed = false;

	if (isnull[Q_NAMESPACE - 1] || isnull[Q_TOPIC - 1])
		return tuple;			/* will be refused */
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
 * Plain SQL inserts what is usually inserted by functions only: it comes from a
 * dump, unless it is one of these functions that does so, by SQL.
 */
static void
note_loading(void)
{
	if (!outbox_sql_is_running() && !InLocalUserIdChange())
		outbox_loading_note();
}

/*
 * outbox._loads() RETURNS trigger
 *		Before rows are inserted by SQL into a table that is not for users.
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
 * outbox._queue_written() RETURNS trigger
 *		Before a row of a live table is inserted or updated by plain SQL.  In the
 *		queue, what is inserted becomes what enqueue() with the same values would
 *		have made; a message whose dedupe key is taken is not inserted.
 *
 *		A row that brings its own id is left as it is, except for its lane: this
 *		is how messages come back from a dump.
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

/* A row as it was, or is now, in one of the live tables. */
typedef struct WrittenRow
{
	OutboxPlace place;
	OutboxKey	key;
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
	row->key = outbox_queue_key(slot);
	row->leased = !isnull;
	row->locked_until = isnull ? 0 : DatumGetTimestampTz(locked_until);
	row->in_stream = outbox_stream_of(slot, &row->stream, &row->seq);
}

/* A row has left its place, and perhaps its stream. */
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

/* A timer or run is there, which the worker dispatches when it is due. */
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

/* A row is in a place. */
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
	/* its place in the stream need not be the last */
	if (new->in_stream)
		outbox_stream_cursor_forget(relid, &new->stream);
	if (new->leased)
		outbox_lane_note_lease(relid, &new->place, new->key, new->locked_until);
	else if (new->key.at != DT_NOEND)
		outbox_lane_note_new(relid, &new->place, new->key, new->key, 1);
}

/*
 * outbox._queue_changed() RETURNS trigger
 *		After a row of a live table was inserted, updated or deleted by plain SQL:
 *		note where it is now, and where it was before.
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
 *		Before a live table is truncated: forget all that is known of it.
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
 *		After each change of outbox.topics: every backend must read it again.
 */
PG_FUNCTION_INFO_V1(outbox_topics_changed);
Datum
outbox_topics_changed(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = get_trigger_data(fcinfo, "outbox._topics_changed",
											TRIGGER_TYPE_STATEMENT | TRIGGER_TYPE_AFTER |
											TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE |
											TRIGGER_TYPE_DELETE | TRIGGER_TYPE_TRUNCATE);
	Oid			relid = RelationGetRelid(trigger->tg_relation);

	if (relid != outbox_catalog()->topics && relid != outbox_catalog()->handlers)
		refuse_relation(trigger->tg_relation, "outbox._topics_changed");
	CacheInvalidateRelcache(trigger->tg_relation);
	for (OutboxStoreKind kind = 0; kind < OUTBOX_NSTORES; kind++)
		outbox_wake_note_policies(outbox_store(kind)->table);
	PG_RETURN_POINTER(NULL);
}

/*
 * outbox._routes_changed() RETURNS trigger
 *		After each change of a route, a store or the default: every backend
 *		must look again.
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
