/*
 * dedupe.c
 *	  At most one message per dedupe key, and each received message once.
 *
 * outbox.dedupe holds one row per key that was ever given, with the message
 * that has it.  The row is written before the message, in its transaction,
 * and goes when the message goes: retention deletes it, or, where another
 * transaction has locked it, the next one who comes with the key finds that the
 * message is no longer kept and takes the row over.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "queue/dedupe.h"
#include "queue/message_find.h"
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
	D_NATTS = D_MESSAGE_ID
};

/* outbox.message_deduplication */
enum
{
	R_MESSAGE_ID = 1,
	R_FIRST_SEEN_AT,
	R_NATTS = R_FIRST_SEEN_AT
};

/* What a transaction that wants a key is about, and what came of it. */
typedef struct KeyAttempt
{
	OutboxTable table;
	const pg_uuid_t *key;
	const pg_uuid_t *message_id;
	pg_uuid_t	holder;			/* who has the key, if it is not ours */
	bool		ours;
} KeyAttempt;

static void
insert_key(KeyAttempt *attempt)
{
	TupleTableSlot *row = outbox_table_new_row(&attempt->table);

	outbox_row_set(row, D_KEY, UUIDPGetDatum(attempt->key));
	outbox_row_set(row, D_MESSAGE_ID, UUIDPGetDatum(attempt->message_id));
	outbox_table_insert(&attempt->table, row);
	ExecDropSingleTupleTableSlot(row);
	attempt->ours = true;
}

/*
 * The key's message is gone, so the key can be ours.  False if another
 * transaction has changed its row first.  Where a user's trigger or policy
 * refuses, the key stays with the message that is gone.
 */
static bool
take_over_key(KeyAttempt *attempt, TupleTableSlot *old, TransactionId *blocker)
{
	TupleTableSlot *row = outbox_table_new_row(&attempt->table);
	OutboxRowResult result;

	outbox_new_row_from(row, old);
	outbox_row_set(row, D_MESSAGE_ID, UUIDPGetDatum(attempt->message_id));
	result = outbox_table_update(&attempt->table, old, row, false, blocker);
	ExecDropSingleTupleTableSlot(row);
	attempt->ours = result == OUTBOX_ROW_OK;
	return result == OUTBOX_ROW_OK || result == OUTBOX_ROW_REFUSED;
}

/* Look at the key, and write it if it is free. */
static bool
try_key(void *arg, TransactionId *blocker)
{
	KeyAttempt *attempt = arg;
	TupleTableSlot *slot = outbox_table_slot(&attempt->table);
	TransactionId own;
	bool		found;
	bool		decided = true;

	found = outbox_find_row(&attempt->table, outbox_catalog()->dedupe_pkey,
							UUIDPGetDatum(attempt->key), slot, blocker);
	attempt->ours = false;
	if (TransactionIdIsValid(*blocker))
		decided = false;
	else if (!found)
		insert_key(attempt);
	else
	{
		attempt->holder = *DatumGetUUIDP(outbox_row_get(slot, D_MESSAGE_ID));
		/* of a row of our own, the message may yet come */
		if (!outbox_row_is_own(slot, &own) &&
			!outbox_message_is_kept(&attempt->holder))
			decided = take_over_key(attempt, slot, blocker);
	}
	ExecDropSingleTupleTableSlot(slot);
	return decided;
}

/*
 * Give a dedupe key to a message.  If another message has it, return false
 * and that one's id.  Waits for the transaction that has taken the key but
 * has not ended yet.
 */
bool
outbox_dedupe_take(const pg_uuid_t *key, const pg_uuid_t *message_id,
				   pg_uuid_t *holder)
{
	KeyAttempt	attempt = {.key = key,.message_id = message_id};

	outbox_table_open(&attempt.table, outbox_catalog()->dedupe, D_NATTS);
	outbox_keylock_decide(outbox_catalog()->dedupe, outbox_uuid_hash(key),
						  try_key, &attempt);
	outbox_table_close(&attempt.table);
	*holder = attempt.holder;
	return attempt.ours;
}

/*
 * Is this message in the inbox?  Then it has been received, even if that is
 * remembered no longer.  One that another transaction is finishing counts.
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

/* Look whether the message was received before, and note it if it was not. */
static bool
try_message(void *arg, TransactionId *blocker)
{
	KeyAttempt *attempt = arg;
	TupleTableSlot *slot = outbox_table_slot(&attempt->table);
	bool		found;
	TupleTableSlot *row;

	found = outbox_find_row(&attempt->table, outbox_catalog()->received_pkey,
							UUIDPGetDatum(attempt->key), slot, blocker);
	ExecDropSingleTupleTableSlot(slot);
	/* one that is found with a blocker is just being forgotten */
	if (TransactionIdIsValid(*blocker))
		return false;
	attempt->ours = !found && !is_in_inbox(attempt->key);
	if (!attempt->ours)
		return true;
	row = outbox_table_new_row(&attempt->table);
	outbox_row_set(row, R_MESSAGE_ID, UUIDPGetDatum(attempt->key));
	outbox_row_set(row, R_FIRST_SEEN_AT,
				   TimestampTzGetDatum(GetCurrentTimestamp()));
	outbox_table_insert(&attempt->table, row);
	ExecDropSingleTupleTableSlot(row);
	return true;
}

/*
 * Remember that a message was received; false if it was before.  Waits for
 * the transaction that is just receiving it.
 */
bool
outbox_dedupe_receive(const pg_uuid_t *message_id)
{
	KeyAttempt	attempt = {.key = message_id};

	outbox_table_open(&attempt.table, outbox_catalog()->received, R_NATTS);
	outbox_keylock_decide(outbox_catalog()->received,
						  outbox_uuid_hash(message_id), try_message, &attempt);
	outbox_table_close(&attempt.table);
	return attempt.ours;
}

/*
 * The message that has this key is not kept any more.  False if it does not
 * have it, or if another transaction has locked it: then that takes it over.
 */
bool
outbox_dedupe_forget(const pg_uuid_t *key, const pg_uuid_t *message_id)
{
	OutboxTable table;
	TupleTableSlot *slot;
	TransactionId blocker;
	bool		forgotten;

	outbox_table_open(&table, outbox_catalog()->dedupe, D_NATTS);
	slot = outbox_table_slot(&table);
	forgotten = outbox_find_row(&table, outbox_catalog()->dedupe_pkey,
								UUIDPGetDatum(key), slot, &blocker) &&
		!TransactionIdIsValid(blocker) &&
		outbox_uuid_equal(DatumGetUUIDP(outbox_row_get(slot, D_MESSAGE_ID)),
						  message_id) &&
		outbox_table_delete(&table, slot, false, &blocker) == OUTBOX_ROW_OK;
	ExecDropSingleTupleTableSlot(slot);
	outbox_table_close(&table);
	return forgotten;
}
