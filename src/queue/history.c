/*
 * history.c
 *	  Where messages go when they leave the queue: the archive, or the dead.
 *
 * Done messages go to the partition of outbox.archive for the time, and for
 * how long their topic wants them kept; so retention is little more than
 * dropping partitions.  Failed ones go to outbox.dead and stay until somebody decides.
 * The rows of a call are collected and written together at its end.
 *
 * A message can be in history already when it ends: a dump has brought it back, or
 * has set the sequence of ids back.  What is done is kept once more; the keys of
 * these tables contain the time.  Of what has failed, the last row stays.
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
#include "queue/policy.h"
#include "queue/queue.h"
#include "shmem/wake.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/probe.h"
#include "table/table.h"
#include "util/hash.h"
#include "util/uuid.h"

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
	TupleTableSlot *rows[OUTBOX_BATCH_ROWS];

	Assert(destination->nrows <= OUTBOX_BATCH_ROWS);
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

/* Free the message's dedupe key, if it has one. */
static void
free_key(TupleTableSlot *message)
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
								DatumGetUUIDP(outbox_row_get(message, Q_MESSAGE_ID)));
}

/* Columns that history takes over as they are: where from, where to. */
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
 * Delete the row that a message has among the dead.  False if it cannot be deleted,
 * because another transaction has locked it or a user's trigger would not have it.
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
 * An id that neither the live table nor the dead have.  The sequence may have been
 * set back, so that the next ones are taken, too.
 */
static int64
free_id(OutboxHistory *history, OutboxTable *dead, TupleTableSlot *slot)
{
	const OutboxStore *store = history->queue->store;
	TupleTableSlot *live = outbox_table_slot(history->queue);
	TransactionId blocker;
	Datum		id;

	/* what is collected has ids, too */
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
 * A message is about to be written to the dead: nothing there may be in its way.
 * *id is its id, and a new one if the dead have another message of that id.  False
 * if the dead have the message, with an earlier failure, and that row cannot be
 * replaced: another transaction is doing something with it, which is not
 * waited for.  Then it stands for this failure, too.
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
 * Where a message goes: what is done of the queue's has partitions, and one of
 * them changes *keep.
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
 * A message leaves the queue; the caller deletes it there.  It is written at
 * the latest by outbox_history_end.
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
	outbox_ended_add(&history->ended,
					 DatumGetUUIDP(outbox_row_get(message, Q_MESSAGE_ID)),
					 outcome->status);
	outbox_policy_get(store, DatumGetTextPP(outbox_row_get(message, Q_NAMESPACE)),
					  DatumGetTextPP(outbox_row_get(message, Q_TOPIC)),
					  &policy);
	keep = outcome->status == OUTBOX_DONE ? policy.retention :
		policy.dead_retention;
	if (outcome->keep && keep == OUTBOX_KEEP_NOT)
		keep = OUTBOX_KEEP_DEFAULT;
	if (outcome->leave_nothing)
		keep = OUTBOX_KEEP_NOT;
	if (store->kind == OUTBOX_QUEUE &&
		(keep == OUTBOX_KEEP_NOT || outcome->frees_key))
		free_key(message);
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
	if (++destination->nrows == OUTBOX_BATCH_ROWS)
	{
		flush_destination(destination);
		/* the rows of other destinations may still be in the context */
		if (history->ndestinations == 1)
			MemoryContextReset(history->context);
	}
}

/*
 * All is collected: write it, and let those know who asked to be told.  That
 * takes locks on what is theirs, so it comes last in a call.
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
