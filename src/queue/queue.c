/*
 * queue.c
 *	  Changing messages that are in the queue.
 *
 * Every change that moves a message in the ready index, or removes it, is made
 * here, and is noted for the lanes: where the message is now, and where it was
 * before, in case the transaction aborts (lane.c).  The only other place that
 * changes messages is a claim that follows a walk, because the walk reports
 * the changes itself.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "outbox.h"
#include "queue/count.h"
#include "queue/history.h"
#include "queue/policy.h"
#include "queue/queue.h"
#include "shmem/counters.h"
#include "shmem/lane_xact.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/table.h"
#include "util/guc.h"
#include "util/hash.h"

/* Names with a larger total length are hashed each time. */
#define LAST_NAMES_SIZE 256

/* The key of a message within its lane. */
OutboxReadyKey
outbox_queue_ready_key(TupleTableSlot *message)
{
	return OUTBOX_MAKE(OutboxReadyKey,
					   DatumGetTimestampTz(outbox_row_get(message, Q_NEXT_ATTEMPT_AT)),
					   DatumGetInt64(outbox_row_get(message, Q_ID)));
}

/* The priority of a message; 0 if it has none. */
int
outbox_queue_priority(TupleTableSlot *message)
{
	bool		isnull;
	Datum		priority = slot_getattr(message, Q_PRIORITY, &isnull);

	return isnull ? 0 : DatumGetInt16(priority);
}

/*
 * The place of a message.  Names, subscriber and priority are often the same
 * as those of the previous message, so the last result is cached.
 */
void
outbox_queue_place(TupleTableSlot *message, OutboxPlace *place)
{
	static OutboxPlace last;
	static char last_name[LAST_NAMES_SIZE];
	static int	last_lengths[2] = {-1, -1};
	const text *namespace = DatumGetTextPP(outbox_row_get(message, Q_NAMESPACE));
	const text *topic = DatumGetTextPP(outbox_row_get(message, Q_TOPIC));
	int			lengths[2] = {VARSIZE_ANY_EXHDR(namespace), VARSIZE_ANY_EXHDR(topic)};
	bool		isnull;
	Datum		value = slot_getattr(message, Q_SUBSCRIBER, &isnull);
	int32		subscriber = isnull ? 0 : DatumGetInt32(value);
	int			priority = outbox_queue_priority(message);
	Datum		tenant = slot_getattr(message, Q_TENANT_ID, &isnull);

	if (lengths[0] + lengths[1] > LAST_NAMES_SIZE)
	{
		outbox_place_of(namespace, topic, isnull ? NULL : DatumGetUUIDP(tenant),
						subscriber, priority, place);
		return;
	}
	if (lengths[0] != last_lengths[0] || lengths[1] != last_lengths[1] ||
		memcmp(last_name, VARDATA_ANY(namespace), lengths[0]) != 0 ||
		memcmp(last_name + lengths[0], VARDATA_ANY(topic), lengths[1]) != 0)
	{
		outbox_place_of(namespace, topic, NULL, subscriber, priority, &last);
		memcpy(last_name, VARDATA_ANY(namespace), lengths[0]);
		memcpy(last_name + lengths[0], VARDATA_ANY(topic), lengths[1]);
		memcpy(last_lengths, lengths, sizeof(lengths));
	}
	else if (subscriber != last.subscriber || priority != last.priority)
	{
		last.subscriber = subscriber;
		last.priority = priority;
		outbox_place_set_lane(&last);
	}
	*place = last;
	if (isnull)
		return;
	place->tenant_hash = outbox_tenant_hash(DatumGetUUIDP(tenant));
	outbox_place_set_lane(place);
}

/* The number of attempts that count towards the maximum. */
int
outbox_queue_counted_attempts(TupleTableSlot *message)
{
	return DatumGetInt32(outbox_row_get(message, Q_ATTEMPTS)) -
		DatumGetInt32(outbox_row_get(message, Q_WAIVED));
}

/*
 * Can this message be handed out?  max_attempts, if not 0, overrides the
 * policy's.  This is the only place that decides whether a message goes to
 * dead: claim, reap, nack and explain_message() all call it.
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

/* The failure reason that corresponds to a fate. */
OutboxReason
outbox_fate_reason(OutboxFate fate)
{
	Assert(fate != OUTBOX_FATE_LIVE);
	return fate == OUTBOX_FATE_EXPIRED ? OUTBOX_REASON_EXPIRED :
		OUTBOX_REASON_MAX_ATTEMPTS;
}

/*
 * Make "row" the version of "message" in which it has no lease, and can be
 * claimed from "at" on.
 */
void
outbox_queue_make_ready(TupleTableSlot *row, TupleTableSlot *message,
						TimestampTz at, TimestampTz now)
{
	Assert(outbox_status_is_live(outbox_row_get(message, Q_STATUS)));
	outbox_new_row_from(row, message);
	outbox_row_set(row, Q_NEXT_ATTEMPT_AT, TimestampTzGetDatum(at));
	outbox_row_set(row, Q_UPDATED_AT, TimestampTzGetDatum(now));
	outbox_row_set(row, Q_STATUS, Int16GetDatum(OUTBOX_READY));
	outbox_row_set_null(row, Q_OWNER_TOKEN);
	outbox_row_set_null(row, Q_LEASED_AT);
	outbox_row_set_null(row, Q_LOCKED_UNTIL);
}

/* Note that a message has left its place. */
static void
note_old_place(OutboxTable *queue, TupleTableSlot *message)
{
	OutboxReadyKey key = outbox_queue_ready_key(message);
	OutboxPlace place;

	outbox_queue_place(message, &place);
	if (key.at != DT_NOEND)
		outbox_lane_note_moved(RelationGetRelid(queue->rel), &place, key);
}

/* Note when a message that was written will expire, if it will. */
void
outbox_queue_note_expiry(Oid relid, TupleTableSlot *row)
{
	bool		isnull;
	Datum		expires_at = slot_getattr(row, Q_EXPIRES_AT, &isnull);

	if (!isnull)
		outbox_lane_note_expiry(relid, DatumGetTimestampTz(expires_at));
}

/* Note where a message is now, and the end of its lease. */
static void
note_new_place(OutboxTable *queue, TupleTableSlot *row)
{
	Oid			relid = RelationGetRelid(queue->rel);
	OutboxReadyKey key = outbox_queue_ready_key(row);
	OutboxPlace place;
	bool		isnull;
	Datum		locked_until = slot_getattr(row, Q_LOCKED_UNTIL, &isnull);

	outbox_queue_place(row, &place);
	if (!isnull)
		outbox_lane_note_lease(relid, &place, key,
							   DatumGetTimestampTz(locked_until));
	else if (key.at != DT_NOEND)
		outbox_lane_note_new(relid, &place, key, key, 1);
	outbox_queue_note_expiry(relid, row);
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
	if (outbox_row_get(message, Q_NEXT_ATTEMPT_AT) !=
		outbox_row_get(row, Q_NEXT_ATTEMPT_AT))
		note_old_place(queue, message);
	note_new_place(queue, row);
	return OUTBOX_ROW_OK;
}

static void
count_finished(OutboxStoreKind kind, TupleTableSlot *message,
			   const OutboxOutcome *outcome)
{
	outbox_count_message(kind, message, outcome->status == OUTBOX_DONE ?
						 OUTBOX_COUNT_ACKED : OUTBOX_COUNT_DEAD);
	if (outcome->reason == OUTBOX_REASON_EXPIRED)
		outbox_count_message(kind, message, OUTBOX_COUNT_EXPIRED);
}

/* Move a message from its live table to history. */
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
		outbox_history_add(history, message, outcome);
		count_finished(queue->store->kind, message, outcome);
	}
	return result;
}

/*
 * Move a message that cannot be handed out any more to dead.  Never waits for
 * the row of the message.
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

/* Delete a message from its live table, without history. */
OutboxRowResult
outbox_queue_remove(OutboxTable *queue, TupleTableSlot *message)
{
	OutboxRowResult result = outbox_table_delete(queue, message, true, NULL);

	if (result == OUTBOX_ROW_OK)
		note_old_place(queue, message);
	return result;
}
