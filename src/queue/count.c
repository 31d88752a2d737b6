/*
 * count.c
 *	  Counting what happens to messages.
 *
 * The callers are those that do it: enqueue, claim, settle, reap, and queue.c
 * for messages that end.  Each passes a message as it was before; tally.c adds
 * it up.  Rows that are written by SQL statements of users, by a restore or by
 * replication are not counted.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "compat.h"
#include "queue/count.h"
#include "queue/subscriber.h"
#include "shmem/counters.h"
#include "shmem/tally.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/table.h"
#include "util/guc.h"

/* The tally of a topic; NULL if nothing is counted. */
static OutboxTally *
tally_of(OutboxStoreKind kind, const text *namespace, const text *topic,
		 int32 subscriber)
{
	const OutboxSubscriber *subscription = NULL;
	OutboxTally *tally;

	if (!outbox_track_counters)
		return NULL;
	tally = outbox_tally_find(kind, subscriber, namespace, topic);
	if (tally != NULL)
		return tally;
	if (subscriber != 0)
		subscription = outbox_subscriber_get(subscriber);
	return outbox_tally_new(kind, subscriber, namespace,
							subscription == NULL ? NULL : subscription->name, topic);
}

static OutboxTally *
tally_of_message(OutboxStoreKind kind, TupleTableSlot *message)
{
	bool		isnull;
	Datum		subscriber = slot_getattr(message, Q_SUBSCRIBER, &isnull);

	return tally_of(kind, DatumGetTextPP(outbox_row_get(message, Q_NAMESPACE)),
					DatumGetTextPP(outbox_row_get(message, Q_TOPIC)),
					isnull ? 0 : DatumGetInt32(subscriber));
}

/* Count a message that is enqueued. */
void
outbox_count_enqueued(OutboxStoreKind kind, const text *namespace,
					  const text *topic, int32 subscriber, const text *payload)
{
	OutboxTally *tally = tally_of(kind, namespace, topic, subscriber);

	if (tally == NULL)
		return;
	outbox_tally_count(tally, OUTBOX_COUNT_ENQUEUED, 1);
	if (payload != NULL)
		outbox_tally_count(tally, OUTBOX_COUNT_BYTES, VARSIZE_ANY_EXHDR(payload));
}

/* Count something that happens to a message. */
void
outbox_count_message(OutboxStoreKind kind, TupleTableSlot *message,
					 OutboxCount count)
{
	OutboxTally *tally = tally_of_message(kind, message);

	if (tally != NULL)
		outbox_tally_count(tally, count, 1);
}

/*
 * Count a message that is claimed, and how long it could have been.  If its
 * lease has ended, that is since then.
 */
void
outbox_count_claimed(OutboxStoreKind kind, TupleTableSlot *message,
					 TimestampTz now)
{
	OutboxTally *tally = tally_of_message(kind, message);
	bool		isnull;
	Datum		locked_until = slot_getattr(message, Q_LOCKED_UNTIL, &isnull);
	TimestampTz since = isnull ?
	DatumGetTimestampTz(outbox_row_get(message, Q_NEXT_ATTEMPT_AT)) :
	DatumGetTimestampTz(locked_until);

	if (tally == NULL)
		return;
	outbox_tally_count(tally, OUTBOX_COUNT_CLAIMED, 1);
	if (!isnull && since <= now)
		outbox_tally_count(tally, OUTBOX_COUNT_LEASES_LOST, 1);
	outbox_tally_time(tally, OUTBOX_HISTOGRAM_WAIT,
					  TIMESTAMP_NOT_FINITE(since) ? 0 : now - since);
}

/*
 * Count for how long an owner had a message, which it gives back or ends, and
 * return that.  If SQL of a user has leased the message, that may not have set
 * the time; then it is 0.
 */
int64
outbox_count_served(OutboxStoreKind kind, TupleTableSlot *message,
					TimestampTz now)
{
	OutboxTally *tally = tally_of_message(kind, message);
	bool		isnull;
	Datum		since = slot_getattr(message, Q_LEASED_AT, &isnull);
	int64		usecs;

	if (isnull)
		return 0;
	usecs = Max(now - DatumGetTimestampTz(since), 0);
	if (tally != NULL)
		outbox_tally_time(tally, OUTBOX_HISTOGRAM_SERVICE, usecs);
	return usecs;
}

/* Count a call of a function that handles messages of a topic, and its time. */
void
outbox_count_call(const text *namespace, const text *topic, int32 subscriber,
				  int64 usecs)
{
	OutboxTally *tally = tally_of(OUTBOX_QUEUE, namespace, topic, subscriber);

	if (tally == NULL)
		return;
	outbox_tally_count(tally, OUTBOX_COUNT_CALLS, 1);
	outbox_tally_count(tally, OUTBOX_COUNT_CALL_USECS, Max(usecs, 0));
}
