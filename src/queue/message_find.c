/*
 * message_find.c
 *	  Finding a message by its message_id, wherever it is.
 *
 * A message is in the queue, among the dead, or in one of the partitions of
 * the archive.  These functions see what other transactions have not committed
 * yet, and report which transaction may make another answer of it.
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
 * Does the table have a row of this message?  If not, or if it may soon be
 * another answer, *writer is the transaction that is changing that.
 */
static bool
look_up(OutboxTable *table, Oid index, const pg_uuid_t *message_id,
		TransactionId *writer)
{
	TupleTableSlot *slot = outbox_table_slot(table);
	bool		found = outbox_find_row(table, index, UUIDPGetDatum(message_id),
										slot, writer);

	ExecDropSingleTupleTableSlot(slot);
	/* to know is enough: nobody has to wait for our end */
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

/* Does the table have a row of this message, be it not committed yet? */
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

/* Has this message left the queue, and is still kept? */
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
 * Has this message ended, and how?  False if it has not, or is not known.
 * *writer is the transaction in progress, if any, that is changing that.
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

/* Is there still a message with this id, in whatever state? */
bool
outbox_message_is_kept(const pg_uuid_t *message_id)
{
	/* the queue twice: a dead message may be put back while we look */
	return outbox_message_is_live(message_id) ||
		outbox_message_in_history(message_id) ||
		outbox_message_is_live(message_id);
}
