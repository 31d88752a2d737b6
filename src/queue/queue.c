/*
 * queue.c
 *	  Changing messages that are in the queue.
 *
 * Whatever moves a message in the ready index, or takes it out, goes through
 * here, and the lanes learn of it: where the message lies now, and where it
 * lay before, should the change be undone (lane.c).  Only a claim that leaves
 * the message in its place is on its own, because the walk that found it
 * keeps the books.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "outbox.h"
#include "queue/history.h"
#include "queue/policy.h"
#include "queue/queue.h"
#include "shmem/lane.h"
#include "shmem/lane_xact.h"
#include "shmem/wake.h"
#include "table/columns.h"
#include "table/table.h"
#include "util/guc.h"
#include "util/hash.h"

/* Where a message lies in its lane. */
OutboxKey
outbox_queue_key(TupleTableSlot *message)
{
	return OUTBOX_MAKE(OutboxKey,
					   DatumGetTimestampTz(outbox_row_get(message, Q_READY_AT)),
					   DatumGetInt64(outbox_row_get(message, Q_ID)));
}

/* The lane of a message's topic. */
int64
outbox_queue_topic_lane(TupleTableSlot *message)
{
	return outbox_topic_lane(DatumGetTextPP(outbox_row_get(message, Q_NAMESPACE)),
							 DatumGetTextPP(outbox_row_get(message, Q_TOPIC)));
}

/* The attempts that count towards the maximum. */
int
outbox_queue_counted_attempts(TupleTableSlot *message)
{
	return DatumGetInt32(outbox_row_get(message, Q_ATTEMPTS)) -
		DatumGetInt32(outbox_row_get(message, Q_WAIVED));
}

/*
 * Can this message be handed out?  max_attempts, if not 0, takes the place of
 * the policy's.  Everything that looks at the end of a message's life asks
 * here: claim, reap, nack, explain_message().
 */
OutboxFate
outbox_queue_fate(TupleTableSlot *message, const OutboxPolicy *policy,
				  int max_attempts, TimestampTz now)
{
	bool		isnull;
	Datum		expires_at = slot_getattr(message, Q_EXPIRES_AT, &isnull);

	if (!isnull && DatumGetTimestampTz(expires_at) <= now)
		return OUTBOX_FATE_EXPIRED;
	if (max_attempts == 0)
		max_attempts = policy->max_attempts;
	if (outbox_queue_counted_attempts(message) >= max_attempts)
		return OUTBOX_FATE_EXHAUSTED;
	return OUTBOX_FATE_LIVE;
}

/* Why a message is dead that was buried for its fate. */
OutboxReason
outbox_fate_reason(OutboxFate fate)
{
	Assert(fate != OUTBOX_FATE_LIVE);
	return fate == OUTBOX_FATE_EXPIRED ? OUTBOX_REASON_EXPIRED :
		OUTBOX_REASON_MAX_ATTEMPTS;
}

/*
 * Make "row" the version of "message" in which it is nobody's, and can be
 * claimed from "at" on.
 */
void
outbox_queue_make_ready(TupleTableSlot *row, TupleTableSlot *message,
						TimestampTz at, TimestampTz now)
{
	Assert(outbox_status_is_live(outbox_row_get(message, Q_STATUS)));
	outbox_new_row_from(row, message);
	outbox_row_set(row, Q_LANE,
				   Int64GetDatum(outbox_queue_topic_lane(message)));
	outbox_row_set(row, Q_READY_AT, TimestampTzGetDatum(at));
	outbox_row_set(row, Q_NEXT_ATTEMPT_AT, TimestampTzGetDatum(at));
	outbox_row_set(row, Q_UPDATED_AT, TimestampTzGetDatum(now));
	outbox_row_set(row, Q_STATUS, Int16GetDatum(OUTBOX_READY));
	outbox_row_set_null(row, Q_OWNER_TOKEN);
	outbox_row_set_null(row, Q_LOCKED_UNTIL);
}

/*
 * Who waits for messages may be waiting for the end of our transaction, where
 * it has a stream in its hand (stream.c).
 */
static void
note_stream(OutboxTable *queue, TupleTableSlot *message)
{
	if (!slot_attisnull(message, Q_STREAM_ID))
		outbox_wake_note(RelationGetRelid(queue->rel),
						 outbox_queue_topic_lane(message));
}

/* Let the lanes know that a message has left its place. */
static void
note_old_place(OutboxTable *queue, TupleTableSlot *message)
{
	OutboxKey	key = outbox_queue_key(message);

	if (key.at != DT_NOEND)
		outbox_lane_note_change(RelationGetRelid(queue->rel),
								DatumGetInt64(outbox_row_get(message, Q_LANE)),
								key);
}

/* Let the lanes know where a message lies now, and until when it is leased. */
static void
report_new_place(OutboxTable *queue, TupleTableSlot *row)
{
	Oid			relid = RelationGetRelid(queue->rel);
	int64		lane = DatumGetInt64(outbox_row_get(row, Q_LANE));
	OutboxKey	key = outbox_queue_key(row);
	bool		isnull;
	Datum		locked_until = slot_getattr(row, Q_LOCKED_UNTIL, &isnull);

	if (!isnull)
		outbox_lane_report_lease(relid, lane, key, key,
								 DatumGetTimestampTz(locked_until));
	else if (key.at != DT_NOEND)
		outbox_lane_report(relid, lane, key, key, GetCurrentTransactionId());
}

/*
 * Replace a message by its next version, "row", made from it.
 */
OutboxRowResult
outbox_queue_update(OutboxTable *queue, TupleTableSlot *message,
					TupleTableSlot *row, bool wait, TransactionId *blocker)
{
	OutboxRowResult result;

	Assert(queue->store != NULL);
	Assert(outbox_status_is_live(outbox_row_get(message, Q_STATUS)));
	Assert(DatumGetInt64(outbox_row_get(message, Q_ID)) ==
		   DatumGetInt64(outbox_row_get(row, Q_ID)));
	result = outbox_table_update(queue, message, row, wait, blocker);

	if (result != OUTBOX_ROW_OK)
		return result;
	if (outbox_row_get(message, Q_LANE) != outbox_row_get(row, Q_LANE) ||
		outbox_row_get(message, Q_READY_AT) != outbox_row_get(row, Q_READY_AT))
		note_old_place(queue, message);
	report_new_place(queue, row);
	note_stream(queue, message);
	return OUTBOX_ROW_OK;
}

/* A message leaves the queue, for the archive or for the dead. */
OutboxRowResult
outbox_queue_finish(OutboxTable *queue, OutboxHistory *history,
					TupleTableSlot *message, const OutboxOutcome *outcome,
					bool wait, TransactionId *blocker)
{
	OutboxRowResult result;

	Assert(history->queue == queue);
	Assert(outcome->status == OUTBOX_DONE || outcome->status == OUTBOX_DEAD);
	result = outbox_table_delete(queue, message, wait, blocker);
	if (result == OUTBOX_ROW_OK)
	{
		note_old_place(queue, message);
		note_stream(queue, message);
		outbox_history_add(history, message, outcome);
	}
	return result;
}

/*
 * Move a message to the dead that cannot be handed out any more.  Never waits
 * for the message's row.
 */
OutboxRowResult
outbox_queue_bury(OutboxTable *queue, OutboxHistory *history,
				  TupleTableSlot *message, OutboxFate fate,
				  TransactionId *blocker)
{
	OutboxOutcome outcome = {
		.status = OUTBOX_DEAD,
		.reason = outbox_fate_reason(fate)
	};
	OutboxRowResult result;

	result = outbox_queue_finish(queue, history, message, &outcome, false,
								 blocker);
	if (result == OUTBOX_ROW_OK)
		outbox_log("outbox: message " INT64_FORMAT " is dead, %s",
				   DatumGetInt64(outbox_row_get(message, Q_ID)),
				   fate == OUTBOX_FATE_EXPIRED ? "it has expired" :
				   "it has had its attempts");
	return result;
}

/* A message is taken out of its live table and leaves nothing behind. */
OutboxRowResult
outbox_queue_remove(OutboxTable *queue, TupleTableSlot *message)
{
	OutboxRowResult result = outbox_table_delete(queue, message, true, NULL);

	if (result == OUTBOX_ROW_OK)
	{
		note_old_place(queue, message);
		note_stream(queue, message);
	}
	return result;
}
