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
#include "table/catalog.h"

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
	outbox_message_set_defaults(&message);
	outbox_check_message(&message, "");
	outbox_enqueue(outbox_store(OUTBOX_TIMERS), &message, 1);
	*result = message.message_id;
	PG_RETURN_UUID_P(result);
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

	outbox_begin_call("outbox.cancel_timer()");
	PG_RETURN_BOOL(outbox_cancel(outbox_store(OUTBOX_TIMERS), timer_id));
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
	outbox_message_set_defaults(&message);
	outbox_check_message(&message, "");
	outbox_enqueue(outbox_store(OUTBOX_RUNS), &message, 1);
	PG_RETURN_INT64(message.id);
}
