/*
 * sql_timer.c
 *	  SQL functions of timers and of the runs of jobs.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "api/args.h"
#include "api/message_args.h"
#include "core/cancel.h"
#include "core/enqueue.h"
#include "core/settle.h"
#include "table/catalog.h"

/*
 * outbox.schedule_timer(topic text, payload text, due_time timestamptz,
 *						 correlation_id text) RETURNS uuid
 *		Schedules a timer, which becomes a message at its due time.
 */
PG_FUNCTION_INFO_V1(outbox_schedule_timer);
Datum
outbox_schedule_timer(PG_FUNCTION_ARGS)
{
	OutboxMessage message;
	TimestampTz due_time;
	pg_uuid_t  *result = palloc_object(pg_uuid_t);

	outbox_require_writable("outbox.schedule_timer()");
	memset(&message, 0, sizeof(message));
	message.topic = outbox_arg_text_or_null(fcinfo, 0);
	message.payload = outbox_arg_text_or_null(fcinfo, 1);
	outbox_require(fcinfo, 2, "due_time");
	message.due_time = outbox_arg_time_or_null(fcinfo, 2, &due_time);
	message.correlation_id = outbox_arg_text_or_null(fcinfo, 3);
	outbox_message_set_defaults(&message);
	outbox_check_message(&message, "");
	outbox_enqueue(outbox_store(OUTBOX_TIMERS), &message, 1);
	*result = message.message_id;
	PG_RETURN_UUID_P(result);
}

/*
 * outbox.cancel_timer(timer_id uuid) RETURNS boolean
 *		Removes a timer; false if it is not waiting.
 */
PG_FUNCTION_INFO_V1(outbox_cancel_timer);
Datum
outbox_cancel_timer(PG_FUNCTION_ARGS)
{
	const pg_uuid_t *timer_id = outbox_arg_uuid(fcinfo, 0, "timer_id");

	outbox_require_writable("outbox.cancel_timer()");
	PG_RETURN_BOOL(outbox_cancel(outbox_store(OUTBOX_TIMERS), timer_id));
}

/*
 * outbox._add_run(job_name text, topic text, payload text) RETURNS bigint
 *		Inserts a run of a job that is due now.
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
	outbox_message_set_defaults(&message);
	outbox_check_message(&message, "");
	outbox_enqueue(outbox_store(OUTBOX_RUNS), &message, 1);
	PG_RETURN_INT64(message.id);
}

/*
 * outbox._put_back_due(owner_token uuid, id bigint, at timestamptz, run boolean)
 *		RETURNS void Releases the lease of a timer or a run; it cannot be
 *		claimed before "at", and the attempt does not count.
 */
PG_FUNCTION_INFO_V1(outbox_put_back_due);
Datum
outbox_put_back_due(PG_FUNCTION_ARGS)
{
	OutboxLeaseRef lease = {.id = PG_GETARG_INT64(1),.attempts = -1};
	TimestampTz at = PG_GETARG_TIMESTAMPTZ(2);
	OutboxSettle settle = {
		.store = outbox_store(PG_GETARG_BOOL(3) ? OUTBOX_RUNS : OUTBOX_TIMERS),
		.what = OUTBOX_RELEASE,
		.owner = *PG_GETARG_UUID_P(0),
		.nleases = 1,
		.leases = &lease,
		.not_before = &at
	};

	(void) outbox_settle(&settle);
	PG_RETURN_VOID();
}
