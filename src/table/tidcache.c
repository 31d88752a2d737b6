/*
 * hint.c
 *	  Where this backend has last seen the messages that it claimed.
 *
 * A worker usually settles on the connection on which it has claimed, and
 * then need not search the primary key for each message.  These are hints: a
 * row may have moved, the table may have been rewritten, and the connection
 * may be another (a pooler's).  What is found is compared with what was
 * looked for; if it is not that, the index is asked.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "table/tidcache.h"
#include "outbox.h"

#define MAX_HINTS 4096			/* a power of 2 */

typedef struct Hint
{
	int64		id;
	Oid			relid;
	ItemPointerData tid;
} Hint;

static Hint hints[MAX_HINTS];

static Hint *
hint_for(int64 id)
{
	return &hints[(uint64) id & (MAX_HINTS - 1)];
}

void
outbox_hint_remember(Oid relid, int64 id, ItemPointer tid)
{
	*hint_for(id) = OUTBOX_MAKE(Hint, id, relid, *tid);
}

/* How far hints can be followed, now that the table is locked. */
BlockNumber
outbox_hint_end(OutboxTable *queue)
{
	return RelationGetNumberOfBlocks(queue->rel);
}

/*
 * Fetch a message by its hint.  Only a version that nobody is changing will
 * do; false if there is no such.
 */
bool
outbox_hint_fetch(OutboxTable *queue, BlockNumber end, int64 id,
				  TupleTableSlot *slot)
{
	Hint	   *hint = hint_for(id);
	SnapshotData dirty;

	if (hint->id != id || hint->relid != RelationGetRelid(queue->rel) ||
		ItemPointerGetBlockNumber(&hint->tid) >= end)
		return false;
	InitDirtySnapshot(dirty);
	return table_tuple_fetch_row_version(queue->rel, &hint->tid, &dirty, slot) &&
		!TransactionIdIsValid(outbox_row_writer(&dirty)) &&
		DatumGetInt64(outbox_row_get(slot, Q_ID)) == id;
}
