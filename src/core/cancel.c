/*
 * cancel.c
 *	  Taking back, or putting off, what has not been handed out yet.
 *
 * A message waits if it is ready, or if its lease has ended and no claim has
 * taken it since.  Anything else is passed over.  A message that waits and is being
 * changed by another transaction is waited for, or passed over, as the caller
 * wants it; joins that other transactions have locked are counted later (join.c).
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "core/cancel.h"
#include "outbox.h"
#include "queue/history.h"
#include "queue/queue.h"
#include "queue/stream.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/keylock.h"
#include "table/probe.h"
#include "table/table.h"

/* The next message of its stream, if it has one, may be claimable. */
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

/* Take a message out that is still waiting; false if it is not. */
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
			/* it may be given back, and it may not */
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
				/* somebody was faster: look again */
				break;
		}
	}
}

/*
 * Remove a message that is still waiting from a live table; false if it is
 * not there, or is leased.  Nothing is kept of it.
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
/* By an operator                                                         */
/* ---------------------------------------------------------------------- */

/* What becomes of messages that wait, in one call. */
typedef struct Operator
{
	const OutboxOperation *operation;
	OutboxTable queue;
	TimestampTz now;
	TupleTableSlot *slot;		/* the message at hand */
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

static OutboxRowResult
take_back(Operator *op, TransactionId *blocker)
{
	OutboxOutcome outcome = {
		.status = OUTBOX_DEAD,
		.reason = OUTBOX_REASON_CANCELLED,
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

static OutboxRowResult
put_off(Operator *op, TransactionId *blocker)
{
	TimestampTz due_time = op->operation->due_time;
	bool		was_leased = DatumGetInt16(outbox_row_get(op->slot, Q_STATUS)) != OUTBOX_READY;
	OutboxRowResult result;

	outbox_queue_make_ready(op->row, op->slot, Max(due_time, op->now), op->now);
	outbox_row_set(op->row, Q_DUE_TIME, TimestampTzGetDatum(due_time));
	result = outbox_queue_update(&op->queue, op->slot, op->row,
								 op->operation->wait, blocker);
	if (result == OUTBOX_ROW_OK && was_leased)
		outbox_stream_gone_back(&op->gone_back, op->slot);
	return result;
}

/* Do with one message what is to be done; false if it does not wait. */
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
		result = op->operation->what == OUTBOX_RESCHEDULE ?
			put_off(op, &blocker) : take_back(op, &blocker);
		if (result == OUTBOX_ROW_OK)
			return true;
		if (result == OUTBOX_ROW_REFUSED || !wait)
			return false;
		/* another transaction was faster: look again */
	}
}

static void
begin_operator(Operator *op, const OutboxOperation *operation)
{
	/* what this transaction did before must be seen, and can be changed */
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
 * Cancel, purge or reschedule messages of the queue that wait; how many there
 * were.  The ids must be in order, each once.
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

/* The same with one message, by its message_id; false if it does not wait. */
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
