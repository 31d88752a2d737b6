/*
 * message_find.c
 *	  Finding a message by its message_id, wherever it is.
 *
 * A message is in the queue, in dead, or in one of the partitions of the
 * archive.  These functions see uncommitted changes of other transactions, and
 * report which transaction may change the answer when it ends.
 */
#include "postgres.h"

#include "access/transam.h"
#include "storage/lmgr.h"

#include "outbox.h"
#include "queue/archive.h"
#include "queue/message_find.h"
#include "table/catalog.h"
#include "table/probe.h"
#include "table/table.h"

/*
 * Does the table have a row for this message?  *writer is set to the
 * transaction in progress, if any, that may change the answer.
 */
static bool
look_up(OutboxTable *table, Oid index, const pg_uuid_t *message_id,
		TransactionId *writer)
{
	TupleTableSlot *slot = outbox_table_slot(table);
	bool		found = outbox_find_row(table, index, UUIDPGetDatum(message_id),
										slot, writer);

	ExecDropSingleTupleTableSlot(slot);
	/* do not hold the lock until the end of the transaction */
	UnlockRelationOid(index, AccessShareLock);
	return found;
}

static bool
find_message(Oid relid, Oid index, const pg_uuid_t *message_id,
			 TransactionId *writer)
{
	OutboxTable table;
	bool		found;

	outbox_table_open_to_read(&table, relid);
	found = look_up(&table, index, message_id, writer);
	outbox_table_close(&table);
	UnlockRelationOid(relid, AccessShareLock);
	return found;
}

/* Does the table have a row for this message, even an uncommitted one? */
static bool
table_has(Oid relid, Oid index, const pg_uuid_t *message_id)
{
	TransactionId writer;

	return find_message(relid, index, message_id, &writer) ||
		TransactionIdIsValid(writer);
}

static bool
partition_has(Relation partition, Oid index, const pg_uuid_t *message_id)
{
	OutboxTable table = {.rel = partition};
	TransactionId writer;

	return look_up(&table, index, message_id, &writer) ||
		TransactionIdIsValid(writer);
}

static bool
archive_has(const pg_uuid_t *message_id)
{
	return outbox_archive_search(message_id, partition_has);
}

/* Is this message in the queue? */
bool
outbox_message_is_live(const pg_uuid_t *message_id)
{
	const OutboxStore *queue = outbox_store(OUTBOX_QUEUE);

	return table_has(queue->table, queue->message_id, message_id);
}

/* Is this message in dead or in the archive? */
bool
outbox_message_in_history(const pg_uuid_t *message_id)
{
	const OutboxCatalog *catalog = outbox_catalog();
	const OutboxStore *queue = outbox_store(OUTBOX_QUEUE);

	return table_has(queue->dead, catalog->dead_message_id,
					 message_id) ||
		archive_has(message_id);
}

/*
 * The outcome of a message that has ended; false if it has not, or is unknown.
 * *writer is set to the transaction in progress, if any, that may change that.
 */
bool
outbox_message_outcome(const pg_uuid_t *message_id, OutboxStatus *status,
					   TransactionId *writer)
{
	const OutboxCatalog *catalog = outbox_catalog();
	const OutboxStore *queue = outbox_store(OUTBOX_QUEUE);

	if (find_message(queue->table, queue->message_id,
					 message_id, writer) || TransactionIdIsValid(*writer))
		return false;
	if (find_message(queue->dead, catalog->dead_message_id,
					 message_id, writer) || TransactionIdIsValid(*writer))
	{
		*status = OUTBOX_DEAD;
		return !TransactionIdIsValid(*writer);
	}
	*status = OUTBOX_DONE;
	return archive_has(message_id);
}

/* Is there a message with this id, in the queue or in history? */
bool
outbox_message_is_kept(const pg_uuid_t *message_id)
{
	/* check the queue twice: a dead message may be requeued in between */
	return outbox_message_is_live(message_id) ||
		outbox_message_in_history(message_id) ||
		outbox_message_is_live(message_id);
}
