/*
 * tidcache.c
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
	int64		first_at;		/* its place in its stream, if it was the
								 * first */
} Hint;

static Hint hints[MAX_HINTS];

static Hint *
hint_for(int64 id)
{
	return &hints[(uint64) id & (MAX_HINTS - 1)];
}

/*
 * first_at: the place of the message in its stream, if nothing was before it when
 * it was claimed; else 0.
 */
void
outbox_tid_remember(Oid relid, int64 id, ItemPointer tid, int64 first_at)
{
	/* a row that was written by a statement has none */
	if (ItemPointerIsValid(tid))
		*hint_for(id) = OUTBOX_MAKE(Hint, id, relid, *tid, first_at);
}

/*
 * Did this session claim the message at this place in its stream when nothing was
 * before it?  Then nothing is, as long as it is not finished.
 */
bool
outbox_tid_was_first(Oid relid, int64 id, int64 seq)
{
	const Hint *hint = hint_for(id);

	return hint->id == id && hint->relid == relid && hint->first_at == seq &&
		seq != 0;
}

/* How far hints can be followed, now that the table is locked. */
BlockNumber
outbox_tid_end(OutboxTable *queue)
{
	return RelationGetNumberOfBlocks(queue->rel);
}

/*
 * Fetch a message by its hint.  Only a version that nobody is changing will
 * do; false if there is no such.
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
