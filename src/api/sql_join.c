/*
 * sql_join.c
 *	  SQL functions of joins, and the trigger that counts messages in them.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"
#include "commands/trigger.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "api/args.h"
#include "core/join.h"
#include "core/settle.h"
#include "outbox.h"
#include "queue/end_trigger.h"
#include "queue/message_find.h"
#include "shmem/wake.h"
#include "table/catalog.h"
#include "table/keylock.h"
#include "trace.h"

/*
 * outbox._queue_ended() RETURNS trigger
 *		AFTER DELETE on the queue: counts messages that have ended in their
 *		joins.
 */
PG_FUNCTION_INFO_V1(outbox_queue_ended);
Datum
outbox_queue_ended(PG_FUNCTION_ARGS)
{
	const OutboxEndedList *ended = outbox_ended_now();
	Relation	rel;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("\"%s\" was not called as a trigger",
						"outbox._queue_ended")));
	rel = ((TriggerData *) fcinfo->context)->tg_relation;
	if (RelationGetRelid(rel) != outbox_store(OUTBOX_QUEUE)->table)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" cannot be a trigger of \"%s\"",
						"outbox._queue_ended", RelationGetRelationName(rel))));
	if (ended != NULL)
		outbox_join_count(ended);
	return PointerGetDatum(NULL);
}

static char *
uuid_text(const pg_uuid_t *uuid)
{
	return DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(uuid)));
}

/* report_step_completed and report_step_failed. */
static Datum
report_step(FunctionCallInfo fcinfo, OutboxStatus status)
{
	const pg_uuid_t *join_id = outbox_arg_uuid(fcinfo, 0, "join_id");
	const pg_uuid_t *message_id = outbox_arg_uuid(fcinfo, 1, "message_id");
	OutboxJoinCount join;
	TransactionId writer;

	if (!outbox_join_look(join_id, &join, &writer))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("join \"%s\" does not exist", uuid_text(join_id))));
	if (!outbox_join_report(join_id, message_id, status))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("message \"%s\" is not a step of join \"%s\"",
						uuid_text(message_id), uuid_text(join_id)),
				 errhint("Attach it first, with outbox.attach_message_to_join(). "
						 "Any UUID can be attached, even that of a step that is not a message.")));
	PG_RETURN_VOID();
}

/*
 * outbox.report_step_completed(join_id uuid, message_id uuid) RETURNS void
 *		Counts a step as completed.
 */
PG_FUNCTION_INFO_V1(outbox_report_step_completed);
Datum
outbox_report_step_completed(PG_FUNCTION_ARGS)
{
	outbox_require_writable("outbox.report_step_completed()");
	return report_step(fcinfo, OUTBOX_DONE);
}

/*
 * outbox.report_step_failed(join_id uuid, message_id uuid) RETURNS void
 *		Counts a step as failed.
 */
PG_FUNCTION_INFO_V1(outbox_report_step_failed);
Datum
outbox_report_step_failed(PG_FUNCTION_ARGS)
{
	outbox_require_writable("outbox.report_step_failed()");
	return report_step(fcinfo, OUTBOX_DEAD);
}

/*
 * outbox._wake_waits(join_id uuid) RETURNS boolean
 *		Makes the waits of a join claimable now; false if one of them is
 *		locked.
 */
PG_FUNCTION_INFO_V1(outbox_wake_waits);
Datum
outbox_wake_waits(PG_FUNCTION_ARGS)
{
	CommandCounterIncrement();
	PG_RETURN_BOOL(outbox_join_wake(PG_GETARG_UUID_P(0)));
}

/*
 * outbox._wake_wait(message_id uuid) RETURNS boolean
 *		Makes one wait claimable now; false if it is locked.
 */
PG_FUNCTION_INFO_V1(outbox_wake_wait);
Datum
outbox_wake_wait(PG_FUNCTION_ARGS)
{
	CommandCounterIncrement();
	PG_RETURN_BOOL(outbox_join_wake_wait(PG_GETARG_UUID_P(0)));
}

/*
 * outbox._look_at_join(join_id uuid, OUT status smallint, OUT failed_steps int,
 *						OUT writer xid)
 *		A join as it is now, whatever the snapshot; status is null if it does
 *		not exist.  writer is the transaction that is changing it.
 */
PG_FUNCTION_INFO_V1(outbox_look_at_join);
Datum
outbox_look_at_join(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	Datum		values[3];
	bool		isnull[3] = {true, true, true};
	OutboxJoinCount join;
	TransactionId writer;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	CommandCounterIncrement();
	if (outbox_join_look(PG_GETARG_UUID_P(0), &join, &writer))
	{
		OUTBOX_TRACE_JOIN("look", PG_GETARG_UUID_P(0),
						  join.status != OUTBOX_JOIN_PENDING, writer);
		values[0] = Int16GetDatum(join.status);
		values[1] = Int32GetDatum(join.failed);
		isnull[0] = isnull[1] = false;
	}
	if (TransactionIdIsValid(writer))
	{
		values[2] = TransactionIdGetDatum(writer);
		isnull[2] = false;
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, isnull)));
}

/*
 * outbox._wake_worker() RETURNS void
 *		Wakes the worker of this database when the transaction commits.
 */
PG_FUNCTION_INFO_V1(outbox_wake_worker);
Datum
outbox_wake_worker(PG_FUNCTION_ARGS)
{
	if (creating_extension)
		outbox_wake_note_database();
	else
		outbox_wake_note_worker();
	PG_RETURN_VOID();
}

/*
 * outbox._put_back(owner_token uuid, id bigint, at timestamptz) RETURNS void
 *		Releases a lease; the message cannot be claimed before "at", and the
 *		attempt does not count.
 */
PG_FUNCTION_INFO_V1(outbox_put_back);
Datum
outbox_put_back(PG_FUNCTION_ARGS)
{
	OutboxLeaseRef lease = {.id = PG_GETARG_INT64(1),.attempts = -1};
	TimestampTz at = PG_GETARG_TIMESTAMPTZ(2);
	OutboxSettle settle = {
		.store = outbox_store(OUTBOX_QUEUE),
		.what = OUTBOX_RELEASE,
		.owner = *PG_GETARG_UUID_P(0),
		.nleases = 1,
		.leases = &lease,
		.not_before = &at
	};

	(void) outbox_settle(&settle);
	PG_RETURN_VOID();
}

/*
 * Settle the lease of a wait.  Earlier waits of this call may have locked
 * joins, so if the wait is itself a step of a join, this does not wait for
 * that join.
 */
static void
settle_wait(FunctionCallInfo fcinfo, OutboxSettlement what, OutboxReason reason)
{
	OutboxLeaseRef lease = {.id = PG_GETARG_INT64(1),.attempts = -1};
	OutboxSettle settle = {
		.store = outbox_store(OUTBOX_QUEUE),
		.what = what,
		.owner = *PG_GETARG_UUID_P(0),
		.nleases = 1,
		.leases = &lease,
		.must_not_wait = true,
		.error = PG_NARGS() > 2 ? PG_GETARG_TEXT_PP(2) : NULL,
		.reason = reason
	};

	(void) outbox_settle(&settle);
}

/*
 * outbox._ack_wait(owner_token uuid, id bigint) RETURNS void
 *		Finishes a wait.
 */
PG_FUNCTION_INFO_V1(outbox_ack_wait);
Datum
outbox_ack_wait(PG_FUNCTION_ARGS)
{
	settle_wait(fcinfo, OUTBOX_ACK, OUTBOX_REASON_NONE);
	PG_RETURN_VOID();
}

/*
 * outbox._nack_wait(owner_token uuid, id bigint, error text) RETURNS void
 *		Schedules a retry of a wait that could not be evaluated.
 */
PG_FUNCTION_INFO_V1(outbox_nack_wait);
Datum
outbox_nack_wait(PG_FUNCTION_ARGS)
{
	settle_wait(fcinfo, OUTBOX_NACK, OUTBOX_REASON_UNKNOWN);
	PG_RETURN_VOID();
}

/*
 * outbox._fail_wait(owner_token uuid, id bigint, error text) RETURNS void
 *		Fails a wait that cannot be evaluated.
 */
PG_FUNCTION_INFO_V1(outbox_fail_wait);
Datum
outbox_fail_wait(PG_FUNCTION_ARGS)
{
	settle_wait(fcinfo, OUTBOX_FAIL, OUTBOX_REASON_VALIDATION);
	PG_RETURN_VOID();
}

/*
 * outbox._message_end(message_id uuid, OUT status smallint, OUT writer xid)
 *		How a message has ended: 2, 3, or null if it has not ended or is
 *		unknown. writer is the transaction that is changing it.
 */
PG_FUNCTION_INFO_V1(outbox_message_end);
Datum
outbox_message_end(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	Datum		values[2];
	bool		isnull[2] = {true, true};
	OutboxStatus status;
	TransactionId writer;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	CommandCounterIncrement();
	if (outbox_message_outcome(PG_GETARG_UUID_P(0), &status, &writer))
	{
		values[0] = Int16GetDatum(status);
		isnull[0] = false;
	}
	OUTBOX_TRACE_JOIN("sees", PG_GETARG_UUID_P(0), !isnull[0], writer);
	if (TransactionIdIsValid(writer))
	{
		values[1] = TransactionIdGetDatum(writer);
		isnull[1] = false;
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, isnull)));
}

/*
 * outbox._in_progress(xid) RETURNS boolean
 *		Whether a transaction has not ended, or its changes are not visible to
 *		this snapshot.
 */
PG_FUNCTION_INFO_V1(outbox_in_progress);
Datum
outbox_in_progress(PG_FUNCTION_ARGS)
{
	TransactionId xid = PG_GETARG_TRANSACTIONID(0);

	if (TransactionIdIsCurrentTransactionId(xid))
		PG_RETURN_BOOL(false);
	if (!outbox_xact_has_ended(xid))
		PG_RETURN_BOOL(true);
	PG_RETURN_BOOL(IsolationUsesXactSnapshot() &&
				   TransactionIdPrecedes(xid, ReadNextTransactionId()) &&
				   XidInMVCCSnapshot(xid, GetActiveSnapshot()));
}

/*
 * outbox._join_add(expected int, INOUT completed int, INOUT failed int,
 *					more_completed int, more_failed int,
 *					OUT status smallint, OUT added int)
 *		The counters of a pending join after adding steps.
 */
PG_FUNCTION_INFO_V1(outbox_join_add_sql);
Datum
outbox_join_add_sql(PG_FUNCTION_ARGS)
{
	OutboxJoinCount count = {
		.expected = PG_GETARG_INT32(0),
		.completed = PG_GETARG_INT32(1),
		.failed = PG_GETARG_INT32(2),
		.status = OUTBOX_JOIN_PENDING
	};
	int			more_completed = PG_GETARG_INT32(3);
	int			more_failed = PG_GETARG_INT32(4);
	TupleDesc	desc;
	Datum		values[4];
	bool		isnull[4] = {false};
	int			added;

	if (count.expected <= 0 || count.completed < 0 || count.failed < 0 ||
		count.completed > count.expected ||
		count.failed > count.expected - count.completed ||
		more_completed < 0 || more_failed < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid counters of a join")));
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	added = outbox_join_add(&count, more_completed, more_failed);
	OUTBOX_TRACE_EVENT("join.add", 0, GetTopTransactionIdIfAny(),
					   count.completed + count.failed - added,
					   count.completed + count.failed);
	values[0] = Int32GetDatum(count.completed);
	values[1] = Int32GetDatum(count.failed);
	values[2] = Int16GetDatum(count.status);
	values[3] = Int32GetDatum(added);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, isnull)));
}
