/*
 * requeue.c
 *	  Bringing dead messages back.
 *
 * A message that is brought back is the same message: it keeps its id, its
 * message_id, its creation time and its dedupe key.  Its attempts are counted
 * from 0, and it takes the last place in its stream, because its place is
 * determined by the commit of the transaction that brings it back.  The key of
 * a message that was cancelled was freed then; if another message has taken
 * it, the message comes back without a key.
 *
 * A message that a dump has also restored to its live table stays in dead
 * until that one has ended.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "core/enqueue.h"
#include "core/requeue.h"
#include "outbox.h"
#include "queue/errors.h"
#include "queue/subscriber.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/keylock.h"
#include "table/probe.h"
#include "table/table.h"
#include "trace.h"
#include "util/guc.h"
#include "util/hash.h"

/* A pointer to a copy of a value; NULL if that is null. */
static const void *
get_pointer(HeapTuple tuple, AttrNumber attnum, TupleDesc desc)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, attnum, desc, &isnull);

	return isnull ? NULL : DatumGetPointer(value);
}

static const TimestampTz *
get_time_pointer(HeapTuple tuple, AttrNumber attnum, TupleDesc desc)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, attnum, desc, &isnull);
	TimestampTz *result;

	if (isnull)
		return NULL;
	result = palloc_object(TimestampTz);
	*result = DatumGetTimestampTz(value);
	return result;
}

/* A delivery comes back to the subscription that has the name now. */
static void
revive_delivery(OutboxMessage *message, const text *subscription)
{
	const OutboxSubscriber *subscriber =
	outbox_subscriber_named(message->namespace, subscription);
	pg_uuid_t  *stream;

	if (subscriber == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("subscription \"%s\" does not exist",
						text_to_cstring(subscription))));
	message->subscriber = subscriber->id;
	if (message->stream_id == NULL)
		return;
	stream = palloc_object(pg_uuid_t);
	outbox_subscriber_stream(message->stream_id, subscriber->id, stream);
	message->stream_id = stream;
}

/* Make a message to enqueue from a row of dead. */
static void
revive(OutboxMessage *message, HeapTuple tuple, TupleDesc desc,
	   TimestampTz now)
{
	int32	   *priority = palloc_object(int32);
	Datum		errors;
	bool		isnull;

	memset(message, 0, sizeof(OutboxMessage));
	message->replayed_id = DatumGetInt64(heap_getattr(tuple, H_ID, desc, &isnull));
	message->replayed_created_at =
		DatumGetTimestampTz(heap_getattr(tuple, H_CREATED_AT, desc, &isnull));
	errors = heap_getattr(tuple, H_ERRORS, desc, &isnull);
	message->replayed_errors =
		outbox_errors_add(isnull ? NULL : DatumGetArrayTypeP(errors), 0, now, NULL);
	message->given_id = get_pointer(tuple, H_MESSAGE_ID, desc);
	message->namespace = PG_DETOAST_DATUM_PACKED(heap_getattr(tuple, H_NAMESPACE,
															  desc, &isnull));
	message->topic = PG_DETOAST_DATUM_PACKED(heap_getattr(tuple, H_TOPIC, desc,
														  &isnull));
	message->payload = get_pointer(tuple, H_PAYLOAD, desc);
	message->headers = get_pointer(tuple, H_HEADERS, desc);
	message->correlation_id = get_pointer(tuple, H_CORRELATION_ID, desc);
	message->dedupe_key = get_pointer(tuple, H_DEDUPE_KEY, desc);
	message->tenant_id = get_pointer(tuple, H_TENANT_ID, desc);
	message->stream_id = get_pointer(tuple, H_STREAM_ID, desc);
	message->published_id = get_pointer(tuple, H_PUBLISHED_ID, desc);
	message->published_at = get_time_pointer(tuple, H_PUBLISHED_AT, desc);
	/* null is 0, whatever the topic's policy says now */
	*priority = DatumGetInt16(heap_getattr(tuple, H_PRIORITY, desc, &isnull));
	message->priority = priority;
	if (get_pointer(tuple, H_CAUSED_BY, desc) != NULL)
	{
		message->has_cause = true;
		message->cause = *(const pg_uuid_t *) get_pointer(tuple, H_CAUSED_BY, desc);
	}
	if (get_pointer(tuple, H_SUBSCRIPTION, desc) != NULL)
		revive_delivery(message, get_pointer(tuple, H_SUBSCRIPTION, desc));
	message->due_time = get_time_pointer(tuple, H_DUE_TIME, desc);
	message->expires_at = get_time_pointer(tuple, H_EXPIRES_AT, desc);
	message->retakes_key =
		DatumGetInt16(heap_getattr(tuple, H_FAILURE_REASON, desc, &isnull)) ==
		OUTBOX_REASON_CANCELLED;
	/* a message that is brought back must be delivered, so drop its expiry */
	if (message->expires_at != NULL && *message->expires_at <= now)
		message->expires_at = NULL;
}

/* Does the table have a row with this key, even an uncommitted one? */
static bool
has_row(OutboxTable *table, Oid index, Datum key)
{
	TupleTableSlot *slot = outbox_table_slot(table);
	TransactionId writer;
	bool		found = outbox_find_row(table, index, key, slot, &writer);

	ExecDropSingleTupleTableSlot(slot);
	return found || TransactionIdIsValid(writer);
}

/* Does the live table have this message, or another one with its id? */
static bool
is_back(OutboxTable *live, TupleTableSlot *message)
{
	return has_row(live, live->store->pkey, outbox_row_get(message, H_ID)) ||
		has_row(live, live->store->message_id,
				outbox_row_get(message, H_MESSAGE_ID));
}

/* Is it a delivery whose subscription no longer exists? */
static bool
is_unsubscribed(TupleTableSlot *message)
{
	bool		isnull;
	Datum		subscription = slot_getattr(message, H_SUBSCRIPTION, &isnull);

	if (isnull)
		return !slot_attisnull(message, H_PUBLISHED_ID);
	return outbox_subscriber_named(DatumGetTextPP(outbox_row_get(message, H_NAMESPACE)),
								   DatumGetTextPP(subscription)) == NULL;
}

/* Take a message out of dead; NULL if it is not there, or cannot come back. */
static HeapTuple
exhume(OutboxTable *dead, OutboxTable *live, OutboxProbe *probe,
	   TupleTableSlot *slot, int64 id)
{
	for (;;)
	{
		TransactionId blocker;

		CHECK_FOR_INTERRUPTS();
		if (!outbox_probe(probe, Int64GetDatum(id), slot, &blocker))
			return NULL;
		if (TransactionIdIsValid(blocker))
		{
			ExecClearTuple(slot);
			outbox_xact_wait(blocker);
			continue;
		}
		if (is_back(live, slot) || is_unsubscribed(slot))
			return NULL;
		switch (outbox_table_delete(dead, slot, true, NULL))
		{
			case OUTBOX_ROW_OK:
				OUTBOX_TRACE_REDRIVE(live, id);
				return ExecCopySlotHeapTuple(slot);
			case OUTBOX_ROW_REFUSED:
				return NULL;
			default:
				break;
		}
	}
}

/*
 * Put dead messages back into their live table; returns how many.  The ids
 * must be in ascending order, without duplicates.
 */
int
outbox_requeue(const OutboxStore *store, const int64 *ids, int nids)
{
	TimestampTz now = GetCurrentTimestamp();
	OutboxMessage *messages = palloc_array(OutboxMessage, nids + 1);
	int			nmessages = 0;
	OutboxTable dead;
	OutboxTable live;
	OutboxProbe probe;
	TupleTableSlot *slot;

	CommandCounterIncrement();
	outbox_table_open(&dead, store->dead, H_NATTS);
	outbox_table_open_to_read(&live, store->table);
	live.store = store;
	slot = outbox_table_slot(&dead);
	outbox_probe_begin(&probe, &dead, store->dead_pkey);
	for (int i = 0; i < nids; i++)
	{
		HeapTuple	tuple = exhume(&dead, &live, &probe, slot, ids[i]);

		if (tuple != NULL)
			revive(&messages[nmessages++], tuple, RelationGetDescr(dead.rel),
				   now);
	}
	outbox_probe_end(&probe);
	ExecDropSingleTupleTableSlot(slot);
	outbox_table_close(&live);
	outbox_table_close(&dead);

	if (nmessages > 0)
	{
		outbox_enqueue(store, messages, nmessages);
		outbox_log("outbox requeue: count %d", nmessages);
	}
	return nmessages;
}
