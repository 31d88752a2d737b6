/*
 * cancel.c
 *	  Taking back what has not been handed out yet.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"

#include "core/cancel.h"
#include "outbox.h"
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
