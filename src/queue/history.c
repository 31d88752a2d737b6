/*
 * history.c
 *	  Writing messages that leave the queue to history: archive and dead.
 *
 * Done messages go to the partition of outbox.archive for their time, and for
 * how long their topic keeps them; so retention is little more than dropping
 * partitions.  Failed messages go to outbox.dead, and stay there until they
 * are requeued or their retention is over.  The rows of a call are collected
 * and written together at its end.
 *
 * History may already contain a message when it ends: a dump has restored it,
 * or has set the sequence of ids back.  If it is done, it is stored once more;
 * the keys of these tables contain the time.  If it has failed, the new row
 * replaces the old one.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_inherits.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "outbox.h"
#include "queue/archive.h"
#include "queue/dedupe.h"
#include "queue/end_trigger.h"
#include "queue/history.h"
#include "queue/message.h"
#include "queue/policy.h"
#include "queue/queue.h"
#include "queue/subscriber.h"
#include "shmem/wake.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/probe.h"
#include "table/table.h"
#include "trace.h"
#include "util/hash.h"
#include "util/uuid.h"

/*
 * Prepare to collect messages that leave a live table.  Must be followed by
 * outbox_history_end.
 */
void
outbox_history_begin(OutboxHistory *history, OutboxTable *queue,
					 TimestampTz now)
{
	memset(&history->ended, 0, sizeof(history->ended));
	history->queue = queue;
	history->now = now;
	history->context = NULL;
	history->ndestinations = 0;
}

static void
flush_destination(OutboxDestination *destination)
{
	TupleTableSlot *rows[OUTBOX_MULTI_INSERT_ROWS];

	Assert(destination->nrows <= OUTBOX_MULTI_INSERT_ROWS);
	for (int i = 0; i < destination->nrows; i++)
		rows[i] = outbox_table_batch_row(&destination->table, i);
	outbox_table_multi_insert(&destination->table, rows, destination->nrows);
	for (int i = 0; i < destination->nrows; i++)
		ExecClearTuple(rows[i]);
	destination->nrows = 0;
}

static void
flush_all(OutboxHistory *history)
{
	for (int i = 0; i < history->ndestinations; i++)
		flush_destination(&history->destinations[i]);
	if (history->context != NULL)
		MemoryContextReset(history->context);
}

static void
close_all(OutboxHistory *history)
{
	for (int i = 0; i < history->ndestinations; i++)
		outbox_table_close(&history->destinations[i].table);
	history->ndestinations = 0;
}

/* Find the table among those being filled, or add it. */
static OutboxDestination *
get_destination(OutboxHistory *history, Oid relid)
{
	const OutboxStore *store = history->queue->store;
	OutboxDestination *destination;

	for (int i = 0; i < history->ndestinations; i++)
	{
		if (history->destinations[i].relid == relid)
			return &history->destinations[i];
	}
	if (history->ndestinations == OUTBOX_MAX_DESTINATIONS)
	{
		flush_all(history);
		close_all(history);
	}
	destination = &history->destinations[history->ndestinations++];
	destination->relid = relid;
	destination->nrows = 0;
	if (store->kind == OUTBOX_QUEUE && relid != store->dead)
		outbox_partition_open(&destination->table, relid,
							  store->done, H_NATTS);
	else
		outbox_table_open(&destination->table, relid, H_NATTS);
	return destination;
}

/*
 * Free the message's dedupe key, if it has one: unless at_once, only if its
 * time is over.
 */
static void
free_key(TupleTableSlot *message, bool at_once)
{
	pg_uuid_t	digest;
	bool		isnull;
	Datum		dedupe_key = slot_getattr(message, Q_DEDUPE_KEY, &isnull);

	if (isnull)
		return;
	outbox_dedupe_digest(DatumGetTextPP(outbox_row_get(message, Q_NAMESPACE)),
						 DatumGetTextPP(outbox_row_get(message, Q_TOPIC)),
						 DatumGetTextPP(dedupe_key), &digest);
	(void) outbox_dedupe_forget(&digest,
								DatumGetUUIDP(outbox_row_get(message, Q_MESSAGE_ID)),
								at_once);
}

/*
 * Columns that are copied to history unchanged: their numbers there and here.
 */
static const struct
{
	AttrNumber	from;
	AttrNumber	to;
}			carried[] = {
	{Q_CREATED_AT, H_CREATED_AT},
	{Q_ATTEMPTS, H_ATTEMPTS},
	{Q_RETRY_COUNT, H_RETRY_COUNT},
	{Q_PROGRESS, H_PROGRESS},
	{Q_MESSAGE_ID, H_MESSAGE_ID},
	{Q_DUE_TIME, H_DUE_TIME},
	{Q_EXPIRES_AT, H_EXPIRES_AT},
	{Q_TENANT_ID, H_TENANT_ID},
	{Q_STREAM_ID, H_STREAM_ID},
	{Q_PUBLISHED_ID, H_PUBLISHED_ID},
	{Q_PUBLISHED_AT, H_PUBLISHED_AT},
	{Q_PRIORITY, H_PRIORITY},
	{Q_CAUSED_BY, H_CAUSED_BY},
	{Q_NAMESPACE, H_NAMESPACE},
	{Q_TOPIC, H_TOPIC},
	{Q_CORRELATION_ID, H_CORRELATION_ID},
	{Q_DEDUPE_KEY, H_DEDUPE_KEY},
	{Q_HEADERS, H_HEADERS},
	{Q_LAST_ERROR, H_LAST_ERROR},
	{Q_ERRORS, H_ERRORS},
	{Q_PAYLOAD, H_PAYLOAD},
};

/*
 * Delete the row of a message in dead.  False if that is not possible, because
 * another transaction has locked it or a user's trigger refuses.
 */
static bool
forget_dead(OutboxTable *dead, Oid index, Datum key, TupleTableSlot *slot)
{
	TransactionId blocker;

	while (outbox_find_row(dead, index, key, slot, &blocker))
	{
		CHECK_FOR_INTERRUPTS();
		if (TransactionIdIsValid(blocker))
			return false;
		switch (outbox_table_delete(dead, slot, false, &blocker))
		{
			case OUTBOX_ROW_OK:
				return true;
			case OUTBOX_ROW_GONE:
				break;
			default:
				return false;
		}
	}
	return true;
}

/*
 * An id that is neither in the live table nor in dead.  If the sequence was
 * set back, several of the next ones may be taken.
 */
static int64
free_id(OutboxHistory *history, OutboxTable *dead, TupleTableSlot *slot)
{
	const OutboxStore *store = history->queue->store;
	TupleTableSlot *live = outbox_table_slot(history->queue);
	TransactionId blocker;
	Datum		id;

	/* rows that are collected use ids, too */
	flush_all(history);
	do
	{
		CHECK_FOR_INTERRUPTS();
		id = Int64GetDatum(nextval_internal(outbox_catalog()->sequence, false));
	}
	while (outbox_find_row(dead, store->dead_pkey, id, slot, &blocker) ||
		   outbox_find_row(history->queue, store->pkey, id, live, &blocker));
	ExecDropSingleTupleTableSlot(live);
	return DatumGetInt64(id);
}

/*
 * Make sure that a message can be written to dead.  *id is its id; it is
 * changed to a new one if dead has another message with that id.  If dead
 * already has the message, with an earlier failure, that row is deleted.
 * False if it cannot be, because another transaction has locked it; this never
 * waits.  Then that row stands for this failure, too.
 */
static bool
make_way(OutboxHistory *history, OutboxTable *dead, TupleTableSlot *message,
		 int64 *id)
{
	const OutboxStore *store = history->queue->store;
	Datum		message_id = outbox_row_get(message, Q_MESSAGE_ID);
	TupleTableSlot *slot = outbox_table_slot(dead);
	TransactionId blocker;
	bool		is_free = true;

	*id = DatumGetInt64(outbox_row_get(message, Q_ID));
	if (store->kind == OUTBOX_QUEUE)
		is_free = forget_dead(dead, outbox_catalog()->dead_message_id, message_id, slot);
	if (is_free && outbox_find_row(dead, store->dead_pkey, Int64GetDatum(*id), slot, &blocker))
	{
		if (outbox_uuid_equal(DatumGetUUIDP(outbox_row_get(slot, H_MESSAGE_ID)),
							  DatumGetUUIDP(message_id)))
			is_free = forget_dead(dead, store->dead_pkey, Int64GetDatum(*id), slot);
		else
			*id = free_id(history, dead, slot);
	}
	ExecDropSingleTupleTableSlot(slot);
	return is_free;
}

/* Set the columns that history has as names instead of numbers. */
static void
set_subscription(TupleTableSlot *message, Datum *values, bool *isnull)
{
	const OutboxSubscriber *subscriber =
	outbox_subscriber_get(DatumGetInt32(outbox_row_get(message, Q_SUBSCRIBER)));

	isnull[H_SUBSCRIPTION - 1] = subscriber == NULL;
	if (subscriber != NULL)
		values[H_SUBSCRIPTION - 1] = PointerGetDatum(subscriber->name);
	if (!isnull[H_STREAM_ID - 1])
		values[H_STREAM_ID - 1] = UUIDPGetDatum(outbox_message_stream(message));
}

/* Make the row of a message for a table of history. */
static HeapTuple
make_history_row(TupleDesc desc, TupleTableSlot *message, int64 id,
				 const OutboxOutcome *outcome, TimestampTz now, int keep)
{
	Datum	   *values = palloc0_array(Datum, desc->natts);
	bool	   *isnull = palloc_array(bool, desc->natts);

	memset(isnull, true, desc->natts);
	slot_getallattrs(message);
	for (int i = 0; i < lengthof(carried); i++)
	{
		values[carried[i].to - 1] = message->tts_values[carried[i].from - 1];
		isnull[carried[i].to - 1] = message->tts_isnull[carried[i].from - 1];
	}
	if (!slot_attisnull(message, Q_SUBSCRIBER))
		set_subscription(message, values, isnull);
	values[H_ID - 1] = Int64GetDatum(id);
	isnull[H_ID - 1] = false;
	values[H_PROCESSED_AT - 1] = TimestampTzGetDatum(now);
	isnull[H_PROCESSED_AT - 1] = false;
	values[H_KEEP - 1] = Int32GetDatum(keep);
	isnull[H_KEEP - 1] = false;
	values[H_ATTEMPTS - 1] = Int32GetDatum(outbox_queue_counted_attempts(message));
	values[H_PROGRESS - 1] = Int32GetDatum(DatumGetInt32(values[H_PROGRESS - 1]) |
										   outcome->progress);
	values[H_FAILURE_REASON - 1] = Int16GetDatum(outcome->reason);
	isnull[H_FAILURE_REASON - 1] = false;
	if (outcome->processed_by != NULL)
	{
		values[H_PROCESSED_BY - 1] = UUIDPGetDatum(outcome->processed_by);
		isnull[H_PROCESSED_BY - 1] = false;
	}
	if (outcome->error != NULL)
	{
		values[H_LAST_ERROR - 1] = PointerGetDatum(outcome->error);
		isnull[H_LAST_ERROR - 1] = false;
	}
	else if (outcome->forget_error)
		isnull[H_LAST_ERROR - 1] = true;
	if (outcome->errors != NULL)
	{
		values[H_ERRORS - 1] = PointerGetDatum(outcome->errors);
		isnull[H_ERRORS - 1] = false;
	}
	return heap_form_tuple(desc, values, isnull);
}

/*
 * The table that a message goes to.  For done messages of the queue that is a
 * partition, which may change *keep.
 */
static Oid
history_table(const OutboxStore *store, OutboxStatus status, int *keep,
			  TimestampTz now)
{
	Oid			relid;

	if (status == OUTBOX_DEAD)
		return store->dead;
	if (store->kind != OUTBOX_QUEUE)
		return store->done;
	relid = outbox_archive_partition(keep, now);
	if (relid == outbox_catalog()->archive_unsorted)
		outbox_wake_note_upkeep();
	return relid;
}

/*
 * Add a message that leaves its live table, from which the caller deletes it.
 * It is written by outbox_history_end at the latest.
 */
void
outbox_history_add(OutboxHistory *history, TupleTableSlot *message,
				   const OutboxOutcome *outcome)
{
	const OutboxStore *store = history->queue->store;
	OutboxPolicy policy;
	OutboxDestination *destination;
	TupleTableSlot *row;
	MemoryContext old;
	int64		id;
	int			keep;

	Assert(outcome->status == OUTBOX_DONE || outcome->status == OUTBOX_DEAD);
	Assert(store != NULL);
	OUTBOX_TRACE_JOIN("gone",
					  DatumGetUUIDP(outbox_row_get(message, Q_MESSAGE_ID)),
					  outcome->status);
	outbox_ended_add(&history->ended,
					 DatumGetUUIDP(outbox_row_get(message, Q_MESSAGE_ID)),
					 outcome->status);
	outbox_policy_of(store, message, &policy);
	keep = outcome->status == OUTBOX_DONE ? policy.retention :
		policy.dead_retention;
	if (outcome->keep && keep == OUTBOX_KEEP_NOT)
		keep = OUTBOX_KEEP_DEFAULT;
	if (outcome->leave_nothing)
		keep = OUTBOX_KEEP_NOT;
	if (store->kind == OUTBOX_QUEUE &&
		(keep == OUTBOX_KEEP_NOT || outcome->frees_key))
		free_key(message, outcome->frees_key);
	if (keep == OUTBOX_KEEP_NOT)
		return;

	if (history->context == NULL)
		history->context = AllocSetContextCreate(CurrentMemoryContext,
												 "outbox history",
												 ALLOCSET_DEFAULT_SIZES);
	destination = get_destination(history,
								  history_table(store, outcome->status, &keep,
												history->now));
	id = DatumGetInt64(outbox_row_get(message, Q_ID));
	if (outcome->status == OUTBOX_DEAD &&
		!make_way(history, &destination->table, message, &id))
		return;
	row = outbox_table_batch_row(&destination->table, destination->nrows);
	old = MemoryContextSwitchTo(history->context);
	ExecStoreHeapTuple(make_history_row(row->tts_tupleDescriptor, message, id,
										outcome, history->now, keep),
					   row, false);
	MemoryContextSwitchTo(old);
	if (++destination->nrows == OUTBOX_MULTI_INSERT_ROWS)
	{
		flush_destination(destination);
		/* the rows of other destinations may still be in the context */
		if (history->ndestinations == 1)
			MemoryContextReset(history->context);
	}
}

/*
 * Write what was collected, and fire the triggers for messages that have
 * ended.  The triggers lock rows of other tables, so this must come last in a
 * call.
 */
void
outbox_history_end(OutboxHistory *history)
{
	flush_all(history);
	close_all(history);
	if (history->context != NULL)
		MemoryContextDelete(history->context);
	outbox_ended_fire(history->queue, &history->ended);
}
