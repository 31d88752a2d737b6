/*
 * sql_operator.c
 *	  SQL functions for operators, which act on waiting messages.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "api/args.h"
#include "core/cancel.h"
#include "util/guc.h"

/*
 * outbox.discard(ids bigint[]) RETURNS int
 *		Moves waiting messages to dead.
 */
PG_FUNCTION_INFO_V1(outbox_discard_messages);
Datum
outbox_discard_messages(PG_FUNCTION_ARGS)
{
	OutboxOperation discard = {.what = OUTBOX_DISCARD,.wait = true};
	int64	   *ids;
	int			n;

	outbox_require_writable("outbox.discard()");
	ids = outbox_arg_ids(fcinfo, 0, "ids", &n);
	n = outbox_operate(&discard, ids, n);
	if (n > 0)
		outbox_log("outbox discard: count %d", n);
	PG_RETURN_INT32(n);
}

/*
 * outbox.cancel(message_id uuid) RETURNS boolean
 *		The same with one message, by its message_id.
 */
PG_FUNCTION_INFO_V1(outbox_cancel_message);
Datum
outbox_cancel_message(PG_FUNCTION_ARGS)
{
	OutboxOperation discard = {.what = OUTBOX_DISCARD,.wait = true};

	outbox_require_writable("outbox.cancel()");
	PG_RETURN_BOOL(outbox_operate_message(&discard,
										  outbox_arg_uuid(fcinfo, 0, "message_id")));
}

/*
 * outbox.reschedule(ids bigint[], due_time timestamptz) RETURNS int
 *		Changes the due time of waiting messages; null means now.
 */
PG_FUNCTION_INFO_V1(outbox_reschedule_messages);
Datum
outbox_reschedule_messages(PG_FUNCTION_ARGS)
{
	OutboxOperation reschedule = {.what = OUTBOX_RESCHEDULE,.wait = true};
	int64	   *ids;
	int			n;

	outbox_require_writable("outbox.reschedule()");
	ids = outbox_arg_ids(fcinfo, 0, "ids", &n);
	reschedule.due_time = PG_ARGISNULL(1) ? GetCurrentTimestamp() :
		PG_GETARG_TIMESTAMPTZ(1);
	n = outbox_operate(&reschedule, ids, n);
	if (n > 0)
		outbox_log("outbox reschedule: count %d", n);
	PG_RETURN_INT32(n);
}

/*
 * outbox._purge_messages(ids bigint[]) RETURNS int
 *		Deletes waiting messages, except those that are locked.
 */
PG_FUNCTION_INFO_V1(outbox_purge_messages);
Datum
outbox_purge_messages(PG_FUNCTION_ARGS)
{
	OutboxOperation purge = {.what = OUTBOX_PURGE};
	int64	   *ids;
	int			n;

	outbox_require_writable("outbox.purge_topic()");
	ids = outbox_arg_ids(fcinfo, 0, "ids", &n);
	PG_RETURN_INT32(outbox_operate(&purge, ids, n));
}
