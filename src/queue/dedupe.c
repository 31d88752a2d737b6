/*
 * dedupe.c
 *	  At most one message per dedupe key, and each received message once.
 *
 * outbox.dedupe holds one row per key that was ever given, with the message
 * that has it.  The row is written before the message, in its transaction,
 * and goes when the message goes: retention deletes it, or, where that was
 * not possible, the next one who comes with the key finds that the message
 * is no longer kept and takes the row over.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "queue/dedupe.h"
#include "queue/history.h"
#include "util/hash.h"
#include "table/keylock.h"

typedef enum KeyState
{
	KEY_OURS,
	KEY_TAKEN,
	KEY_UNDECIDED				/* ask again when *blocker has ended */
} KeyState;

static Datum
uuid_datum(const pg_uuid_t *uuid)
{
	return UUIDPGetDatum(uuid);
}

static void
insert_key(OutboxTable *table, const pg_uuid_t *key,
		   const pg_uuid_t *message_id)
{
	TupleTableSlot *row = outbox_table_new_row(table);

	outbox_row_set(row, D_KEY, uuid_datum(key));
	outbox_row_set(row, D_MESSAGE_ID, uuid_datum(message_id));
	outbox_table_insert(table, row);
	ExecDropSingleTupleTableSlot(row);
}

/* The key's message is gone: the key is ours, if we are quick enough. */
static KeyState
take_over(OutboxTable *table, TupleTableSlot *old, const pg_uuid_t *message_id,
		  TransactionId *blocker)
{
	TupleTableSlot *row = outbox_table_new_row(table);
	OutboxRowResult result;

	outbox_new_row_from(row, old);
	outbox_row_set(row, D_MESSAGE_ID, uuid_datum(message_id));
	result = outbox_table_update(table, old, row, false, blocker);
	ExecDropSingleTupleTableSlot(row);
	return result == OUTBOX_ROW_OK ? KEY_OURS : KEY_UNDECIDED;
}

/* Look at the key and write it if it is free.  Our turn has been taken. */
static KeyState
try_key(OutboxTable *table, const pg_uuid_t *key, const pg_uuid_t *message_id,
		pg_uuid_t *holder, TransactionId *blocker)
{
	TupleTableSlot *slot = outbox_table_slot(table);
	OutboxProbe probe;
	TransactionId own;
	KeyState	state;

	outbox_probe_begin(&probe, table, outbox_catalog()->dedupe_pkey);
	if (outbox_probe(&probe, uuid_datum(key), slot, blocker))
	{
		*holder = *DatumGetUUIDP(outbox_row_get(slot, D_MESSAGE_ID));
		if (TransactionIdIsValid(*blocker))
			state = KEY_UNDECIDED;
		else if (outbox_row_is_own(slot, &own) ||	/* message may yet come */
				 outbox_message_is_kept(holder))
			state = KEY_TAKEN;
		else
			state = take_over(table, slot, message_id, blocker);
	}
	else if (TransactionIdIsValid(*blocker))
		state = KEY_UNDECIDED;
	else
	{
		insert_key(table, key, message_id);
		state = KEY_OURS;
	}
	outbox_probe_end(&probe);
	ExecDropSingleTupleTableSlot(slot);
	return state;
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
	Oid			relid = outbox_catalog()->dedupe;
	uint32		hash = outbox_uuid_hash(key);
	OutboxTable table;
	KeyState	state;

	outbox_table_open(&table, relid, D_NATTS);
	for (;;)
	{
		TransactionId blocker = InvalidTransactionId;

		CHECK_FOR_INTERRUPTS();
		outbox_turn_take(relid, hash);
		state = try_key(&table, key, message_id, holder, &blocker);
		outbox_turn_release(relid, hash);
		if (state != KEY_UNDECIDED)
			break;
		if (TransactionIdIsValid(blocker))
			outbox_turn_wait(blocker);
	}
	outbox_table_close(&table);
	return state == KEY_OURS;
}

/* Has this message not been received before?  Our turn has been taken. */
static KeyState
try_message(OutboxTable *table, const pg_uuid_t *message_id,
			TransactionId *blocker)
{
	TupleTableSlot *slot = outbox_table_slot(table);
	OutboxProbe probe;
	KeyState	state = KEY_TAKEN;

	outbox_probe_begin(&probe, table, outbox_catalog()->received_pkey);
	if (!outbox_probe(&probe, uuid_datum(message_id), slot, blocker))
		state = TransactionIdIsValid(*blocker) ? KEY_UNDECIDED : KEY_OURS;
	else if (TransactionIdIsValid(*blocker))
		state = KEY_UNDECIDED;	/* it is just being forgotten */
	outbox_probe_end(&probe);
	ExecDropSingleTupleTableSlot(slot);
	if (state == KEY_OURS)
	{
		TupleTableSlot *row = outbox_table_new_row(table);

		outbox_row_set(row, R_MESSAGE_ID, uuid_datum(message_id));
		outbox_row_set(row, R_FIRST_SEEN_AT,
					   TimestampTzGetDatum(GetCurrentTimestamp()));
		outbox_table_insert(table, row);
		ExecDropSingleTupleTableSlot(row);
	}
	return state;
}

/*
 * Remember that a message was received; false if it was before.  Waits for
 * the transaction that is just receiving it.
 */
bool
outbox_dedupe_receive(const pg_uuid_t *message_id)
{
	Oid			relid = outbox_catalog()->received;
	uint32		hash = outbox_uuid_hash(message_id);
	OutboxTable table;
	KeyState	state;

	outbox_table_open(&table, relid, R_NATTS);
	for (;;)
	{
		TransactionId blocker = InvalidTransactionId;

		CHECK_FOR_INTERRUPTS();
		outbox_turn_take(relid, hash);
		state = try_message(&table, message_id, &blocker);
		outbox_turn_release(relid, hash);
		if (state != KEY_UNDECIDED)
			break;
		outbox_turn_wait(blocker);
	}
	outbox_table_close(&table);
	return state == KEY_OURS;
}

/* The message that has this key is not kept any more. */
void
outbox_dedupe_forget(const pg_uuid_t *key, const pg_uuid_t *message_id)
{
	OutboxTable table;
	TupleTableSlot *slot;
	OutboxProbe probe;
	TransactionId blocker;

	outbox_table_open(&table, outbox_catalog()->dedupe, D_NATTS);
	slot = outbox_table_slot(&table);
	outbox_probe_begin(&probe, &table, outbox_catalog()->dedupe_pkey);
	if (outbox_probe(&probe, uuid_datum(key), slot, &blocker) &&
		!TransactionIdIsValid(blocker) &&
		memcmp(DatumGetUUIDP(outbox_row_get(slot, D_MESSAGE_ID)), message_id,
			   UUID_LEN) == 0)
		(void) outbox_table_delete(&table, slot, false, &blocker);
	outbox_probe_end(&probe);
	ExecDropSingleTupleTableSlot(slot);
	outbox_table_close(&table);
}
