/*
 * message_find.c
 *	  Finding a message by its message_id, wherever it is.
 *
 * A message is in the queue, among the dead, or in one of the partitions of
 * the archive.  These functions see what other transactions have not committed
 * yet, and report which transaction may make another answer of it.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/transam.h"
#include "catalog/pg_inherits.h"
#include "storage/lmgr.h"
#include "utils/rel.h"

#include "outbox.h"
#include "queue/message_find.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/probe.h"
#include "table/table.h"

/*
 * Does the table have a row of this message?  If not, or if it may soon be
 * another answer, *writer is the transaction that is changing that.
 */
static bool
find_message(Oid relid, Oid index, const pg_uuid_t *message_id,
			 TransactionId *writer)
{
	OutboxTable table;
	TupleTableSlot *slot;
	bool		found;

	outbox_table_open_to_read(&table, relid);
	slot = outbox_table_slot(&table);
	found = outbox_find_row(&table, index, UUIDPGetDatum(message_id), slot,
							writer);
	ExecDropSingleTupleTableSlot(slot);
	outbox_table_close(&table);
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

/* The index of an archive partition that finds a message by its id. */
static Oid
partition_index(Relation partition)
{
	List	   *indexes = RelationGetIndexList(partition);
	Oid			result = InvalidOid;
	ListCell   *lc;

	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);

		if (index->rd_index->indkey.values[0] == H_MESSAGE_ID &&
			index->rd_index->indisvalid &&
			RelationGetIndexPredicate(index) == NIL)
			result = RelationGetRelid(index);
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
	return result;
}

/*
 * Is the message in this partition of the archive, if that is still there?  No
 * lock is kept: partitions are many, and old ones must be dropped some time.
 */
static bool
partition_has(Oid partition, const pg_uuid_t *message_id)
{
	Relation	rel = try_table_open(partition, AccessShareLock);
	Oid			index;
	bool		found = false;

	if (rel == NULL)
		return false;
	index = partition_index(rel);
	if (OidIsValid(index))
	{
		found = table_has(partition, index, message_id);
		UnlockRelationOid(index, AccessShareLock);
		UnlockRelationOid(partition, AccessShareLock);
	}
	table_close(rel, AccessShareLock);
	return found;
}

static bool
archive_has(const pg_uuid_t *message_id)
{
	List	   *partitions = find_inheritance_children(outbox_store(OUTBOX_QUEUE)->done,
													   NoLock);
	ListCell   *lc;

	foreach(lc, partitions)
	{
		if (partition_has(lfirst_oid(lc), message_id))
			return true;
	}
	return false;
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
	const OutboxStore *queue = outbox_store(OUTBOX_QUEUE);

	/* the queue twice: a dead message may be put back while we look */
	return table_has(queue->table, queue->message_id,
					 message_id) ||
		outbox_message_in_history(message_id) ||
		table_has(queue->table, queue->message_id,
				  message_id);
}
