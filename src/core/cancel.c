/*
 * cancel.c
 *	  Removing, cancelling, changing, or postponing messages that are waiting.
 *
 * A message is waiting if it is ready, or if its lease has ended and no claim
 * has taken it since.  Any other message is skipped.  If another transaction
 * is changing a waiting message, the caller chooses whether to wait for that
 * transaction or to skip the message; joins that other transactions have
 * locked are counted later (join.c).
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "core/cancel.h"
#include "outbox.h"
#include "queue/history.h"
#include "queue/policy.h"
#include "queue/queue.h"
#include "queue/stream.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/keylock.h"
#include "table/probe.h"
#include "table/table.h"
#include "util/guc.h"

/*
 * Report that the next message of its stream, if there is one, may be
 * claimable.
 */
static void
note_next(OutboxTable *table, TupleTableSlot *message)
{
	OutboxStreamScan streams;

	if (slot_attisnull(message, Q_STREAM_ID))
		return;
	outbox_stream_scan_begin(&streams, table);
	outbox_stream_ended(&streams, message);
	outbox_stream_scan_end(&streams);
}

/* Remove a message that is still waiting; false if it is not. */
static bool
take_out(OutboxTable *table, OutboxProbe *probe, TupleTableSlot *slot,
		 const pg_uuid_t *message_id)
{
	for (;;)
	{
		TransactionId blocker;

		CHECK_FOR_INTERRUPTS();
		if (!outbox_probe(probe, UUIDPGetDatum(message_id), slot, &blocker))
		{
			if (!TransactionIdIsValid(blocker))
				return false;
			outbox_xact_wait(blocker);
			continue;
		}
		if (DatumGetInt16(outbox_row_get(slot, Q_STATUS)) != OUTBOX_READY)
		{
			if (!TransactionIdIsValid(blocker))
				return false;
			/* the lease may be released, or it may stand */
			outbox_xact_wait(blocker);
			continue;
		}
		switch (outbox_queue_remove(table, slot))
		{
			case OUTBOX_ROW_OK:
				note_next(table, slot);
				return true;
			case OUTBOX_ROW_REFUSED:
				return false;
			default:
				/* changed concurrently: look again */
				break;
		}
	}
}

/*
 * Remove a message that is still waiting from a live table; false if it is not
 * there, or is leased.  No history is kept.
 */
bool
outbox_cancel(const OutboxStore *store, const pg_uuid_t *message_id)
{
	OutboxTable table;
	OutboxProbe probe;
	TupleTableSlot *slot;
	bool		cancelled;

	CommandCounterIncrement();
	outbox_store_open(&table, store);
	slot = outbox_table_slot(&table);
	outbox_probe_begin(&probe, &table, store->message_id);
	cancelled = take_out(&table, &probe, slot, message_id);
	outbox_probe_end(&probe);
	ExecDropSingleTupleTableSlot(slot);
	outbox_table_close(&table);
	return cancelled;
}

/* ---------------------------------------------------------------------- */
/* By an operator, or by an enqueue with the same dedupe key              */
/* ---------------------------------------------------------------------- */

/* State of one call that operates on waiting messages. */
typedef struct Operator
{
	const OutboxOperation *operation;
	OutboxTable queue;
	TimestampTz now;
	TupleTableSlot *slot;		/* the current message */
	TupleTableSlot *row;		/* its next version */
	OutboxHistory history;
	OutboxGoneBack gone_back;
	bool		streams_open;
	OutboxStreamScan streams;
} Operator;

static bool
is_waiting(TupleTableSlot *message, TimestampTz now)
{
	return DatumGetInt16(outbox_row_get(message, Q_STATUS)) == OUTBOX_READY ||
		DatumGetTimestampTz(outbox_row_get(message, Q_LOCKED_UNTIL)) <= now;
}

/*
 * Move the message to dead, or delete it (purge), and free its dedupe key.
 * The message behind it in its stream may become claimable.
 */
static OutboxRowResult
take_back(Operator *op, TransactionId *blocker)
{
	OutboxOutcome outcome = {
		.status = OUTBOX_DEAD,
		.reason = op->operation->reason != OUTBOX_REASON_NONE ?
		op->operation->reason : OUTBOX_REASON_CANCELLED,
		.error = op->operation->error != NULL ?
		cstring_to_text(op->operation->error) : NULL,
		.frees_key = true,
		.leave_nothing = op->operation->what == OUTBOX_PURGE
	};
	OutboxRowResult result;

	result = outbox_queue_finish(&op->queue, &op->history, op->slot, &outcome,
								 op->operation->wait, blocker);
	if (result != OUTBOX_ROW_OK || slot_attisnull(op->slot, Q_STREAM_ID))
		return result;
	if (!op->streams_open)
		outbox_stream_scan_begin(&op->streams, &op->queue);
	op->streams_open = true;
	outbox_stream_ended(&op->streams, op->slot);
	return result;
}

/*
 * The due time of a message created at created_at that is debounced to
 * due_time: it is limited, so that a message cannot be postponed forever.
 */
TimestampTz
outbox_debounced_due_time(TimestampTz created_at, TimestampTz due_time)
{
	if (TIMESTAMP_NOT_FINITE(created_at))
		return Min(due_time, created_at);
	return Min(due_time,
			   TimestampTzPlusMilliseconds(created_at, outbox_debounce_max));
}

/*
 * Will the message still be handed out as it is?  A message that will go to
 * dead is not, and neither is a wait, which is evaluated instead.
 */
static bool
is_to_come(Operator *op)
{
	const text *topic = DatumGetTextPP(outbox_row_get(op->slot, Q_TOPIC));
	OutboxPolicy policy;

	if (VARSIZE_ANY_EXHDR(topic) == strlen(outbox_join_wait_topic) &&
		memcmp(VARDATA_ANY(topic), outbox_join_wait_topic,
			   VARSIZE_ANY_EXHDR(topic)) == 0)
		return false;
	outbox_policy_of(op->queue.store, op->slot, &policy);
	return outbox_queue_fate(op->slot, &policy, 0, op->now) == OUTBOX_FATE_LIVE;
}

/*
 * Write the next version of a message.  If it has a lease, which has ended,
 * that is removed: its owner has the old version of the message, and must not
 * finish the new one.
 */
static OutboxRowResult
write_change(Operator *op, TransactionId *blocker)
{
	bool		was_leased = DatumGetInt16(outbox_row_get(op->slot, Q_STATUS)) != OUTBOX_READY;
	OutboxRowResult result;

	result = outbox_queue_update(&op->queue, op->slot, op->row,
								 op->operation->wait, blocker);
	if (result == OUTBOX_ROW_OK && was_leased)
		outbox_stream_gone_back(&op->gone_back, op->slot);
	return result;
}

static OutboxRowResult
put_off(Operator *op, TransactionId *blocker)
{
	TimestampTz due_time = op->operation->due_time;
	TimestampTz at = Max(due_time, op->now);

	outbox_queue_make_ready(op->row, op->slot, at, op->now);
	outbox_row_set(op->row, Q_DUE_TIME, TimestampTzGetDatum(due_time));
	return write_change(op, blocker);
}

/*
 * Replace payload and headers.  A message that is ready keeps its place, so
 * the update is HOT, and nothing changes for its stream and lane.
 */
static OutboxRowResult
replace(Operator *op, TransactionId *blocker)
{
	const OutboxOperation *operation = op->operation;
	TimestampTz at = outbox_queue_ready_key(op->slot).at;

	if (DatumGetInt16(outbox_row_get(op->slot, Q_STATUS)) != OUTBOX_READY)
		at = op->now;
	outbox_queue_make_ready(op->row, op->slot, at, op->now);
	outbox_row_set(op->row, Q_PAYLOAD, PointerGetDatum(operation->payload));
	if (operation->headers != NULL)
		outbox_row_set(op->row, Q_HEADERS, PointerGetDatum(operation->headers));
	else
		outbox_row_set_null(op->row, Q_HEADERS);
	return write_change(op, blocker);
}

/* Does the operation change the message's due time? */
static bool
changes_due_time(Operator *op)
{
	bool		was_null;
	Datum		old = slot_getattr(op->slot, Q_DUE_TIME, &was_null);

	return DatumGetInt16(outbox_row_get(op->slot, Q_STATUS)) != OUTBOX_READY ||
		outbox_row_get(op->row, Q_NEXT_ATTEMPT_AT) !=
		outbox_row_get(op->slot, Q_NEXT_ATTEMPT_AT) ||
		op->row->tts_isnull[Q_DUE_TIME - 1] != was_null ||
		(!was_null && outbox_row_get(op->row, Q_DUE_TIME) != old);
}

/*
 * Change the due time.  A message that is already due keeps its place if it
 * would become due now; so does a message that is already postponed to the
 * limit, however often it is debounced.  A retry is not brought forward.
 */
static OutboxRowResult
debounce(Operator *op, TransactionId *blocker)
{
	const TimestampTz *wanted = op->operation->debounce_to;
	TimestampTz created_at = DatumGetTimestampTz(outbox_row_get(op->slot, Q_CREATED_AT));
	TimestampTz old_at = outbox_queue_ready_key(op->slot).at;
	TimestampTz due_time = 0;
	TimestampTz at = Min(old_at, op->now);

	if (wanted != NULL)
	{
		due_time = outbox_debounced_due_time(created_at, *wanted);
		if (*wanted > op->now)
			at = due_time;
	}
	if (DatumGetInt32(outbox_row_get(op->slot, Q_RETRY_COUNT)) > 0)
		at = Max(at, old_at);
	if (DatumGetInt16(outbox_row_get(op->slot, Q_STATUS)) != OUTBOX_READY)
		at = Max(at, op->now);
	outbox_queue_make_ready(op->row, op->slot, at, op->now);
	if (wanted != NULL)
		outbox_row_set(op->row, Q_DUE_TIME, TimestampTzGetDatum(due_time));
	else
		outbox_row_set_null(op->row, Q_DUE_TIME);
	return changes_due_time(op) ? write_change(op, blocker) : OUTBOX_ROW_OK;
}

/* Carry out the operation on the current message, which is waiting. */
static OutboxRowResult
deal_with(Operator *op, TransactionId *blocker)
{
	switch (op->operation->what)
	{
		case OUTBOX_DISCARD:
		case OUTBOX_PURGE:
			return take_back(op, blocker);
		case OUTBOX_RESCHEDULE:
			return put_off(op, blocker);
		case OUTBOX_REPLACE:
			return is_to_come(op) ? replace(op, blocker) : OUTBOX_ROW_REFUSED;
		case OUTBOX_DEBOUNCE:
			return is_to_come(op) ? debounce(op, blocker) : OUTBOX_ROW_REFUSED;
	}
	pg_unreachable();
}

/* Carry out the operation on one message; false if it is not waiting. */
static bool
operate(Operator *op, OutboxProbe *probe, Datum key)
{
	bool		wait = op->operation->wait;

	for (;;)
	{
		TransactionId blocker;
		OutboxRowResult result;

		CHECK_FOR_INTERRUPTS();
		ExecClearTuple(op->slot);
		if (!outbox_probe(probe, key, op->slot, &blocker))
		{
			if (!wait || !TransactionIdIsValid(blocker))
				return false;
			outbox_xact_wait(blocker);
			continue;
		}
		if (!is_waiting(op->slot, op->now) ||
			(!wait && TransactionIdIsValid(blocker)))
			return false;
		if (TransactionIdIsValid(blocker))
		{
			ExecClearTuple(op->slot);
			outbox_xact_wait(blocker);
			continue;
		}
		result = deal_with(op, &blocker);
		if (result == OUTBOX_ROW_OK)
			return true;
		if (result == OUTBOX_ROW_REFUSED || !wait)
			return false;
		/* changed concurrently: look again */
	}
}

static void
begin_operator(Operator *op, const OutboxOperation *operation)
{
	/* see earlier changes of this transaction; they can be changed, too */
	CommandCounterIncrement();
	memset(op, 0, sizeof(Operator));
	op->operation = operation;
	op->now = GetCurrentTimestamp();
	outbox_store_open(&op->queue, outbox_store(OUTBOX_QUEUE));
	op->slot = outbox_table_slot(&op->queue);
	op->row = outbox_table_new_row(&op->queue);
	outbox_history_begin(&op->history, &op->queue, op->now);
	op->history.ended.must_not_wait = true;
}

static void
end_operator(Operator *op)
{
	ExecDropSingleTupleTableSlot(op->row);
	ExecDropSingleTupleTableSlot(op->slot);
	if (op->streams_open)
		outbox_stream_scan_end(&op->streams);
	outbox_stream_revoke_all(&op->queue, &op->gone_back, op->now);
	outbox_history_end(&op->history);
	outbox_table_close(&op->queue);
}

/*
 * Carry out an operation on messages of the queue that are waiting; returns
 * how many were.  The ids must be in ascending order, without duplicates.
 */
int
outbox_operate(const OutboxOperation *operation, const int64 *ids, int nids)
{
	Operator	op;
	OutboxProbe probe;
	int			n = 0;

	if (nids == 0)
		return 0;
	begin_operator(&op, operation);
	outbox_probe_begin(&probe, &op.queue, op.queue.store->pkey);
	for (int i = 0; i < nids; i++)
	{
		Assert(i == 0 || ids[i] > ids[i - 1]);
		if (operate(&op, &probe, Int64GetDatum(ids[i])))
			n++;
	}
	outbox_probe_end(&probe);
	end_operator(&op);
	return n;
}

/* The same with one message, by its message_id; false if it is not waiting. */
bool
outbox_operate_message(const OutboxOperation *operation,
					   const pg_uuid_t *message_id)
{
	Operator	op;
	OutboxProbe probe;
	bool		done;

	begin_operator(&op, operation);
	outbox_probe_begin(&probe, &op.queue, op.queue.store->message_id);
	done = operate(&op, &probe, UUIDPGetDatum(message_id));
	outbox_probe_end(&probe);
	end_operator(&op);
	return done;
}
