/*
 * sql_timer.c
 *	  SQL functions of timers and of the runs of jobs.
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "api/args.h"
#include "core/enqueue.h"
#include "api/message_args.h"
#include "outbox.h"
#include "queue/queue.h"
#include "table/keylock.h"

/*
 * outbox.schedule_timer(topic text, payload text, due_time timestamptz,
 *						 correlation_id text) RETURNS uuid
 *		At some time there is to be a message.
 */
PG_FUNCTION_INFO_V1(outbox_schedule_timer);
Datum
outbox_schedule_timer(PG_FUNCTION_ARGS)
{
	OutboxMessage message;
	TimestampTz due_time;
	pg_uuid_t  *result = palloc_object(pg_uuid_t);

	outbox_begin_call("outbox.schedule_timer()");
	memset(&message, 0, sizeof(message));
	message.topic = outbox_arg_text_or_null(fcinfo, 0);
	message.payload = outbox_arg_text_or_null(fcinfo, 1);
	outbox_require(fcinfo, 2, "due_time");
	message.due_time = outbox_arg_time_or_null(fcinfo, 2, &due_time);
	message.correlation_id = outbox_arg_text_or_null(fcinfo, 3);
	outbox_complete_message(&message);
	outbox_check_message(&message, "");
	outbox_enqueue(outbox_store(OUTBOX_TIMERS), &message, 1);
	*result = message.message_id;
	PG_RETURN_UUID_P(result);
}

/* Take a timer out that is still waiting; false if it is not. */
static bool
cancel(OutboxTable *timers, OutboxProbe *probe, TupleTableSlot *slot,
	   const pg_uuid_t *timer_id)
{
	for (;;)
	{
		TransactionId blocker;

		CHECK_FOR_INTERRUPTS();
		if (!outbox_probe(probe, UUIDPGetDatum(timer_id), slot, &blocker))
		{
			if (!TransactionIdIsValid(blocker))
				return false;
			outbox_turn_wait(blocker);
			continue;
		}
		if (!TransactionIdIsValid(blocker) &&
			DatumGetInt16(outbox_row_get(slot, Q_STATUS)) != OUTBOX_READY)
			return false;
		switch (outbox_queue_remove(timers, slot))
		{
			case OUTBOX_ROW_OK:
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
 * outbox.cancel_timer(timer_id uuid) RETURNS boolean
 *		The message is not to come after all; false if the timer is not
 *		waiting any more.
 */
PG_FUNCTION_INFO_V1(outbox_cancel_timer);
Datum
outbox_cancel_timer(PG_FUNCTION_ARGS)
{
	const pg_uuid_t *timer_id = outbox_arg_uuid(fcinfo, 0, "timer_id");
	const OutboxStore *store;
	OutboxTable timers;
	OutboxProbe probe;
	TupleTableSlot *slot;
	bool		cancelled;

	outbox_begin_call("outbox.cancel_timer()");
	CommandCounterIncrement();
	store = outbox_store(OUTBOX_TIMERS);
	outbox_store_open(&timers, store);
	slot = outbox_table_slot(&timers);
	outbox_probe_begin(&probe, &timers, store->message_id);
	cancelled = cancel(&timers, &probe, slot, timer_id);
	outbox_probe_end(&probe);
	ExecDropSingleTupleTableSlot(slot);
	outbox_table_close(&timers);
	PG_RETURN_BOOL(cancelled);
}

/*
 * outbox._add_run(job_name text, topic text, payload text) RETURNS bigint
 *		A run of a job is due now.
 */
PG_FUNCTION_INFO_V1(outbox_add_run);
Datum
outbox_add_run(PG_FUNCTION_ARGS)
{
	OutboxMessage message;

	memset(&message, 0, sizeof(message));
	message.correlation_id = PG_GETARG_TEXT_PP(0);
	message.topic = PG_GETARG_TEXT_PP(1);
	message.payload = PG_GETARG_TEXT_PP(2);
	outbox_complete_message(&message);
	outbox_check_message(&message, "");
	outbox_enqueue(outbox_store(OUTBOX_RUNS), &message, 1);
	PG_RETURN_INT64(message.id);
}
