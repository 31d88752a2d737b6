/*
 * duplicate.c
 *	  Messages whose dedupe keys may be taken.
 *
 * The keys of a call are taken in the order of their digests.  If another
 * message has the key, the new one is not enqueued; at the caller's request
 * the other one is changed instead, as long as it is waiting: it gets the
 * payload and the headers of the new one (replace), or its due time
 * (debounce).  That is done when all keys are decided, in the order of the
 * ids, which is the order in which all calls lock existing messages.
 *
 * If another transaction has locked the message, this one waits for it, as it
 * would wait for the key.  To answer "kept" at once would be wrong if that
 * transaction is a claim that rolls back: the message would be waiting again,
 * and would be delivered unchanged without the caller knowing.  Callers that
 * do not want to wait can set lock_timeout.  Everything else is decided
 * without waiting: a message that is leased, or has left the queue, is kept,
 * whatever a concurrent transaction is about to do with it, since at this
 * moment it is not waiting.
 *
 * If the message that has the key is cancelled while we wait for its
 * transaction, the answer is "kept" as well, as if it had been cancelled a
 * moment later.
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "compat.h"
#include "core/cancel.h"
#include "core/duplicate.h"
#include "core/enqueue.h"
#include "queue/dedupe.h"
#include "queue/message_find.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/probe.h"
#include "table/table.h"
#include "util/hash.h"
#include "util/uuid.h"

/* An existing message to change, and the new one to change it by. */
typedef struct Change
{
	int64		id;
	OutboxMessage *by;
} Change;

static bool
text_is(const text *value, const char *word)
{
	Size		len = strlen(word);

	return VARSIZE_ANY_EXHDR(value) == len &&
		memcmp(VARDATA_ANY(value), word, len) == 0;
}

/*
 * Read on_duplicate, which says what to do with the message that has the key;
 * false if the value is not valid.
 */
bool
outbox_read_on_duplicate(const text *on_duplicate, OutboxEnqueueOutcome *outcome)
{
	*outcome = OUTBOX_KEPT;
	if (on_duplicate == NULL || text_is(on_duplicate, "keep"))
		return true;
	*outcome = OUTBOX_REPLACED;
	if (text_is(on_duplicate, "replace"))
		return true;
	*outcome = OUTBOX_DEBOUNCED;
	return text_is(on_duplicate, "debounce");
}

static OutboxEnqueueOutcome
wanted_outcome(const OutboxMessage *message)
{
	OutboxEnqueueOutcome outcome;

	(void) outbox_read_on_duplicate(message->on_duplicate, &outcome);
	return outcome;
}

/* ---------------------------------------------------------------------- */
/* Keys                                                                   */
/* ---------------------------------------------------------------------- */

static int
cmp_digest(const void *a, const void *b)
{
	const OutboxMessage *ma = *(OutboxMessage *const *) a;
	const OutboxMessage *mb = *(OutboxMessage *const *) b;
	int			cmp = outbox_uuid_cmp(&ma->dedupe_digest, &mb->dedupe_digest);

	/* of two with the same key, the first one wins */
	if (cmp == 0)
		cmp = ma < mb ? -1 : 1;
	return cmp;
}

/* Error context callback, for errors while waiting for another transaction. */
static void
say_which_key(void *arg)
{
	const OutboxMessage *message = arg;

	errcontext("taking the dedupe key of a message of topic \"%s\"",
			   text_to_cstring(message->topic));
}

/*
 * Another message has the key: a new message is not enqueued, and one that
 * comes back from dead gives up its key.
 */
static void
miss_key(OutboxMessage *message, const pg_uuid_t *holder)
{
	if (message->replayed_id == 0)
	{
		message->enqueued = false;
		message->outcome = OUTBOX_KEPT;
		message->message_id = *holder;
	}
	else if (!outbox_uuid_equal(holder, &message->message_id))
		message->dedupe_key = NULL;
}

/*
 * Take the key of a message.  A message that comes back from dead still has
 * its key, unless it was cancelled: then it takes the key again.  But the time
 * of its key may be over, and another message may have the key now.
 */
static void
take_key(OutboxMessage *message)
{
	OutboxKeyTake take = {
		.key = &message->dedupe_digest,
		.message_id = &message->message_id,
		.taken_for = message->dedupe_for,
		.is_kept = outbox_message_is_kept
	};

	if (message->replayed_id != 0 && !message->retakes_key)
	{
		if (outbox_dedupe_is_anothers(take.key, take.message_id))
			message->dedupe_key = NULL;
	}
	else if (!outbox_dedupe_take(&take))
		miss_key(message, &take.holder);
}

/* ---------------------------------------------------------------------- */
/* Changing the message that has the key                                  */
/* ---------------------------------------------------------------------- */

/*
 * Find the message of this call that has the key and is not inserted yet; it
 * comes before this one among those with the same key.
 */
static OutboxMessage *
pending_holder(OutboxMessage **keyed, int i)
{
	for (int j = i - 1; j >= 0 &&
		 outbox_uuid_equal(&keyed[j]->dedupe_digest, &keyed[i]->dedupe_digest); j--)
	{
		if (keyed[j]->enqueued &&
			outbox_uuid_equal(&keyed[j]->message_id, &keyed[i]->message_id))
			return keyed[j];
	}
	return NULL;
}

/* Change a message that this call will enqueue by one that it will not. */
static void
change_pending(OutboxMessage *holder, OutboxMessage *by)
{
	by->outcome = wanted_outcome(by);
	if (by->outcome == OUTBOX_REPLACED)
	{
		holder->payload = by->payload;
		holder->headers = by->headers;
	}
	else if (by->due_time == NULL)
		holder->due_time = NULL;
	else
	{
		TimestampTz *due_time = palloc_object(TimestampTz);

		*due_time = outbox_debounced_due_time(GetCurrentTimestamp(), *by->due_time);
		holder->due_time = due_time;
	}
}

/* Look up the id of a message in the queue; 0 if it is not there. */
static int64
id_of(OutboxTable *queue, const pg_uuid_t *message_id)
{
	TupleTableSlot *slot = outbox_table_slot(queue);
	TransactionId writer;
	int64		id = 0;

	if (outbox_find_row(queue, outbox_store(OUTBOX_QUEUE)->message_id,
						UUIDPGetDatum(message_id), slot, &writer))
		id = DatumGetInt64(outbox_row_get(slot, Q_ID));
	ExecDropSingleTupleTableSlot(slot);
	return id;
}

static int
cmp_change(const void *a, const void *b)
{
	const Change *ca = a;
	const Change *cb = b;

	if (ca->id != cb->id)
		return ca->id < cb->id ? -1 : 1;
	/* of two changes of a message, the later one stands */
	return ca->by < cb->by ? -1 : ca->by > cb->by;
}

/* Change a message in the queue, if it is waiting. */
static void
change_message(const Change *change)
{
	OutboxMessage *by = change->by;
	OutboxEnqueueOutcome wanted = wanted_outcome(by);
	OutboxOperation operation = {
		.what = wanted == OUTBOX_REPLACED ? OUTBOX_REPLACE : OUTBOX_DEBOUNCE,
		.debounce_to = by->due_time,
		.payload = by->payload,
		.headers = by->headers,
		.wait = true
	};

	if (outbox_operate(&operation, &change->id, 1) > 0)
		by->outcome = wanted;
}

/* Change the messages that have the keys of those that are not enqueued. */
static void
change_holders(OutboxMessage **keyed, int nkeyed)
{
	Change	   *changes = palloc_array(Change, nkeyed);
	int			nchanges = 0;
	OutboxTable queue;

	outbox_table_open_to_read(&queue, outbox_store(OUTBOX_QUEUE)->table);
	for (int i = 0; i < nkeyed; i++)
	{
		OutboxMessage *message = keyed[i];
		OutboxMessage *pending;

		if (message->replayed_id != 0 || message->enqueued ||
			wanted_outcome(message) == OUTBOX_KEPT)
			continue;
		pending = pending_holder(keyed, i);
		if (pending != NULL)
			change_pending(pending, message);
		else
		{
			changes[nchanges].id = id_of(&queue, &message->message_id);
			changes[nchanges].by = message;
			nchanges += changes[nchanges].id != 0;
		}
	}
	outbox_table_close(&queue);
	qsort(changes, nchanges, sizeof(Change), cmp_change);
	for (int i = 0; i < nchanges; i++)
		change_message(&changes[i]);
	pfree(changes);
}

/* ---------------------------------------------------------------------- */
/* The call                                                               */
/* ---------------------------------------------------------------------- */

/*
 * Take the dedupe keys of messages that will be enqueued, new ones and those
 * that come back from dead.  Sets message_id and the outcome of those whose
 * key is taken, and changes the messages that have these keys as on_duplicate
 * says.
 */
void
outbox_take_keys(OutboxMessage *messages, int nmessages)
{
	OutboxMessage **keyed = palloc_array(OutboxMessage *, nmessages);
	int			nkeyed = 0;
	bool		any_change = false;

	for (int i = 0; i < nmessages; i++)
	{
		if (messages[i].dedupe_key == NULL)
			continue;
		outbox_dedupe_digest(messages[i].namespace, messages[i].topic,
							 messages[i].dedupe_key,
							 &messages[i].dedupe_digest);
		keyed[nkeyed++] = &messages[i];
	}
	if (nkeyed > 1)
		qsort(keyed, nkeyed, sizeof(OutboxMessage *), cmp_digest);
	for (int i = 0; i < nkeyed; i++)
	{
		ErrorContextCallback context = {error_context_stack, say_which_key, keyed[i]};

		error_context_stack = &context;
		take_key(keyed[i]);
		error_context_stack = context.previous;
		any_change |= !keyed[i]->enqueued &&
			wanted_outcome(keyed[i]) != OUTBOX_KEPT;
	}
	if (any_change)
		change_holders(keyed, nkeyed);
	pfree(keyed);
}
