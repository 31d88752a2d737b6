/*
 * tidcache.c
 *	  Where this backend has last seen the messages that it claimed.
 *
 * A worker usually settles on the connection on which it has claimed, and then
 * does not need to search the primary key for each message.  These are hints:
 * a row may have moved, the table may have been rewritten, and the connection
 * may be another one (of a pooler).  What is found is compared with what was
 * looked for; if it does not match, the index is used.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "outbox.h"
#include "table/columns.h"
#include "table/probe.h"
#include "table/table.h"
#include "table/tidcache.h"

#define MAX_HINTS 4096			/* a power of 2 */

typedef struct Hint
{
	int64		id;
	Oid			relid;
	ItemPointerData tid;
	int64		first_at;		/* its place in its stream, if it was first */
} Hint;

static Hint hints[MAX_HINTS];

static Hint *
hint_for(int64 id)
{
	return &hints[(uint64) id & (MAX_HINTS - 1)];
}

/*
 * Remember where a message is.  first_at is its place in its stream, if it was
 * the first one when it was claimed; otherwise 0.
 */
void
outbox_tid_remember(Oid relid, int64 id, ItemPointer tid, int64 first_at)
{
	/* rows written by statements have none */
	if (ItemPointerIsValid(tid))
		*hint_for(id) = OUTBOX_MAKE(Hint, id, relid, *tid, first_at);
}

/*
 * Was the message at this place the first of its stream when this session
 * claimed it?  Then it is the first as long as it is not finished.
 */
bool
outbox_tid_was_first(Oid relid, int64 id, int64 seq)
{
	const Hint *hint = hint_for(id);

	return hint->id == id && hint->relid == relid && hint->first_at == seq &&
		seq != 0;
}

/*
 * The number of blocks of the table, which must be locked: hints beyond are
 * stale.
 */
BlockNumber
outbox_tid_end(OutboxTable *queue)
{
	return RelationGetNumberOfBlocks(queue->rel);
}

/*
 * Fetch a message by its hint; false if that does not lead to a version of it
 * that no other transaction is changing.
 */
bool
outbox_tid_fetch(OutboxTable *queue, BlockNumber end, int64 id,
				 TupleTableSlot *slot)
{
	Hint	   *hint = hint_for(id);
	SnapshotData dirty;

	if (hint->id != id || hint->relid != RelationGetRelid(queue->rel) ||
		ItemPointerGetBlockNumber(&hint->tid) >= end)
		return false;
	Assert(CheckRelationLockedByMe(queue->rel, AccessShareLock, true));
	InitDirtySnapshot(dirty);
	return table_tuple_fetch_row_version(queue->rel, &hint->tid, &dirty, slot) &&
		!TransactionIdIsValid(outbox_row_writer(&dirty)) &&
		DatumGetInt64(outbox_row_get(slot, Q_ID)) == id;
}
