/*
 * dedupe.c
 *	  At most one message per dedupe key, and each received message once.
 *
 * outbox.dedupe has one row for each key in use, with the message that has it.
 * The row is written before the message, in its transaction.  When the message
 * is no longer kept, retention deletes the row; if another transaction has
 * locked it then, the next message with the key finds that the old one is no
 * longer kept, and takes the row over.
 *
 * A key that was taken for a limited time depends only on the clock.  Until
 * that time is over it is taken, even if its message is no longer kept; from
 * then on it is free, even if its message is still waiting.  Cleanup deletes
 * such rows when their time is over; a message that has the same key before
 * that takes the row over.  The row of the first message still contains the
 * key then, but a message only frees keys that it has according to
 * outbox.dedupe.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "queue/dedupe.h"
#include "shmem/wake.h"
#include "table/catalog.h"
#include "table/keylock.h"
#include "table/probe.h"
#include "table/table.h"
#include "util/hash.h"
#include "util/uuid.h"

/* outbox.dedupe */
enum
{
	D_KEY = 1,
	D_MESSAGE_ID,
	D_TAKEN_UNTIL,
	D_NATTS = D_TAKEN_UNTIL
};

/* outbox.message_deduplication */
enum
{
	R_MESSAGE_ID = 1,
	R_FIRST_SEEN_AT,
	R_NATTS = R_FIRST_SEEN_AT
};

/* State of an attempt to take a key. */
typedef struct KeyAttempt
{
	OutboxTable table;
	OutboxKeyTake *take;
	bool		ours;
} KeyAttempt;

/* Set which message has the key from now on, and until when. */
static void
set_holder(const OutboxKeyTake *take, TupleTableSlot *row)
{
	TimestampTz until;

	outbox_row_set(row, D_MESSAGE_ID, UUIDPGetDatum(take->message_id));
	outbox_row_set_null(row, D_TAKEN_UNTIL);
	if (take->taken_for == NULL)
		return;
	until = DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval,
													TimestampTzGetDatum(GetCurrentTimestamp()),
													IntervalPGetDatum(take->taken_for)));
	outbox_row_set(row, D_TAKEN_UNTIL, TimestampTzGetDatum(until));
	outbox_wake_note_key(until);
}

static void
insert_key(KeyAttempt *attempt)
{
	TupleTableSlot *row = outbox_table_new_row(&attempt->table);

	outbox_row_set(row, D_KEY, UUIDPGetDatum(attempt->take->key));
	set_holder(attempt->take, row);
	outbox_table_insert(&attempt->table, row);
	ExecDropSingleTupleTableSlot(row);
	attempt->ours = true;
}

/*
 * Take a key that has a row, but is free.  False if another transaction has
 * changed the row first.  If a user's trigger or policy refuses the update,
 * the key stays with the message that had it.
 */
static bool
take_over_key(KeyAttempt *attempt, TupleTableSlot *old, TransactionId *blocker)
{
	TupleTableSlot *row = outbox_table_new_row(&attempt->table);
	OutboxRowResult result;

	outbox_new_row_from(row, old);
	set_holder(attempt->take, row);
	result = outbox_table_update(&attempt->table, old, row, false, blocker);
	ExecDropSingleTupleTableSlot(row);
	attempt->ours = result == OUTBOX_ROW_OK;
	return result == OUTBOX_ROW_OK || result == OUTBOX_ROW_REFUSED;
}

/*
 * Is the key taken for a limited time?  Then *over is set to whether that is
 * over.  If not, the key is taken as long as its message is kept.
 */
static bool
is_timed(TupleTableSlot *row, bool *over)
{
	bool		isnull;
	Datum		until = slot_getattr(row, D_TAKEN_UNTIL, &isnull);

	*over = !isnull && DatumGetTimestampTz(until) <= GetCurrentTimestamp();
	return !isnull;
}

/* Is the key of this row free again? */
static bool
is_free_again(const OutboxKeyTake *take, TupleTableSlot *row)
{
	TransactionId own;
	bool		over;

	if (is_timed(row, &over))
	{
		/*
		 * it may be a row of this command, which must be visible to be
		 * updated
		 */
		if (over && outbox_row_is_own(row, &own))
			CommandCounterIncrement();
		return over;
	}
	/* the message of a row of our own may not be inserted yet */
	return !outbox_row_is_own(row, &own) && !take->is_kept(&take->holder);
}

/* Callback of keylock.c: look the key up, and take it if it is free. */
static bool
try_key(void *arg, TransactionId *blocker)
{
	KeyAttempt *attempt = arg;
	TupleTableSlot *slot = outbox_table_slot(&attempt->table);
	bool		found;
	bool		decided = true;

	found = outbox_find_row(&attempt->table, outbox_catalog()->dedupe_pkey,
							UUIDPGetDatum(attempt->take->key), slot, blocker);
	attempt->ours = false;
	if (TransactionIdIsValid(*blocker))
		decided = false;
	else if (!found)
		insert_key(attempt);
	else
	{
		attempt->take->holder =
			*DatumGetUUIDP(outbox_row_get(slot, D_MESSAGE_ID));
		if (is_free_again(attempt->take, slot))
			decided = take_over_key(attempt, slot, blocker);
	}
	ExecDropSingleTupleTableSlot(slot);
	return decided;
}

/*
 * Take a dedupe key for a message.  If another message has it, return false,
 * and set take->holder to the id of that message.  Waits for transactions in
 * progress that have taken the key.
 */
bool
outbox_dedupe_take(OutboxKeyTake *take)
{
	KeyAttempt	attempt = {.take = take};

	outbox_table_open(&attempt.table, outbox_catalog()->dedupe, D_NATTS);
	outbox_keylock_decide(outbox_catalog()->dedupe, outbox_uuid_hash(take->key),
						  try_key, &attempt);
	outbox_table_close(&attempt.table);
	return attempt.ours;
}

/*
 * Does another message have this key?  Does not wait: if another transaction
 * is taking the key over, its previous holder counts.
 */
bool
outbox_dedupe_is_anothers(const pg_uuid_t *key, const pg_uuid_t *message_id)
{
	OutboxTable table;
	TupleTableSlot *slot;
	TransactionId writer;
	bool		is_anothers;

	outbox_table_open_to_read(&table, outbox_catalog()->dedupe);
	slot = outbox_table_slot(&table);
	is_anothers = outbox_find_row(&table, outbox_catalog()->dedupe_pkey,
								  UUIDPGetDatum(key), slot, &writer) &&
		!outbox_uuid_equal(DatumGetUUIDP(outbox_row_get(slot, D_MESSAGE_ID)),
						   message_id);
	ExecDropSingleTupleTableSlot(slot);
	outbox_table_close(&table);
	return is_anothers;
}

/*
 * Is this message in the inbox?  Then it has been received, even if its row of
 * message_deduplication is gone.  A message that another transaction is
 * finishing counts.
 */
static bool
is_in_inbox(const pg_uuid_t *message_id)
{
	const OutboxStore *inbox = outbox_store(OUTBOX_INBOX);
	TransactionId writer;
	OutboxTable table;
	TupleTableSlot *slot;
	bool		found;

	outbox_table_open_to_read(&table, inbox->table);
	slot = outbox_table_slot(&table);
	found = outbox_find_row(&table, inbox->message_id,
							UUIDPGetDatum(message_id), slot, &writer);
	ExecDropSingleTupleTableSlot(slot);
	outbox_table_close(&table);
	return found;
}

/* State of an attempt to receive a message. */
typedef struct ReceiveAttempt
{
	OutboxTable table;
	const pg_uuid_t *message_id;
	bool		is_new;
} ReceiveAttempt;

/*
 * Callback of keylock.c: check whether the message was received before, and
 * record it if not.
 */
static bool
try_message(void *arg, TransactionId *blocker)
{
	ReceiveAttempt *attempt = arg;
	TupleTableSlot *slot = outbox_table_slot(&attempt->table);
	bool		found;
	TupleTableSlot *row;

	found = outbox_find_row(&attempt->table, outbox_catalog()->received_pkey,
							UUIDPGetDatum(attempt->message_id), slot, blocker);
	ExecDropSingleTupleTableSlot(slot);
	/* a row with a blocker is being deleted by cleanup */
	if (TransactionIdIsValid(*blocker))
		return false;
	attempt->is_new = !found && !is_in_inbox(attempt->message_id);
	if (!attempt->is_new)
		return true;
	row = outbox_table_new_row(&attempt->table);
	outbox_row_set(row, R_MESSAGE_ID, UUIDPGetDatum(attempt->message_id));
	outbox_row_set(row, R_FIRST_SEEN_AT,
				   TimestampTzGetDatum(GetCurrentTimestamp()));
	outbox_table_insert(&attempt->table, row);
	ExecDropSingleTupleTableSlot(row);
	return true;
}

/*
 * Record that a message was received; false if it had been received before.
 * Waits for transactions in progress that receive it.
 */
bool
outbox_dedupe_receive(const pg_uuid_t *message_id)
{
	ReceiveAttempt attempt = {.message_id = message_id};

	outbox_table_open(&attempt.table, outbox_catalog()->received, R_NATTS);
	outbox_keylock_decide(outbox_catalog()->received,
						  outbox_uuid_hash(message_id), try_message, &attempt);
	outbox_table_close(&attempt.table);
	return attempt.is_new;
}

/*
 * Free the key of a message that is no longer kept.  False if the message does
 * not have the key; if the key is taken for longer, unless at_once is set; or
 * if another transaction has locked the row, because it will take the key
 * over.
 */
bool
outbox_dedupe_forget(const pg_uuid_t *key, const pg_uuid_t *message_id,
					 bool at_once)
{
	OutboxTable table;
	TupleTableSlot *slot;
	TransactionId blocker;
	bool		forgotten;
	bool		over;

	outbox_table_open(&table, outbox_catalog()->dedupe, D_NATTS);
	slot = outbox_table_slot(&table);
	forgotten = outbox_find_row(&table, outbox_catalog()->dedupe_pkey,
								UUIDPGetDatum(key), slot, &blocker) &&
		!TransactionIdIsValid(blocker) &&
		outbox_uuid_equal(DatumGetUUIDP(outbox_row_get(slot, D_MESSAGE_ID)),
						  message_id) &&
		(at_once || !is_timed(slot, &over) || over) &&
		outbox_table_delete(&table, slot, false, &blocker) == OUTBOX_ROW_OK;
	ExecDropSingleTupleTableSlot(slot);
	outbox_table_close(&table);
	return forgotten;
}
