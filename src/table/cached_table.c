/*
 * cached_table.c
 *	  A small table that each backend keeps a copy of.
 *
 * The copy is discarded when the table's relcache entry is invalidated, and
 * code that changes the table must cause that: so a change takes effect with
 * the next call of every session after the commit, and calls do not need to
 * look anything up.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "table/cached_table.h"
#include "table/table.h"

/* Read the whole table into the copy. */
static void
read_all(OutboxCachedTable *cache)
{
	Relation	rel;
	Snapshot	snapshot;
	TableScanDesc scan;
	TupleTableSlot *slot;

	if (cache->context == NULL)
		cache->context = AllocSetContextCreate(CacheMemoryContext,
											   "outbox cached table",
											   ALLOCSET_SMALL_SIZES);
	MemoryContextSetIdentifier(cache->context, cache->name);
	MemoryContextReset(cache->context);
	cache->begin();
	cache->relid = cache->find();
	rel = outbox_relation_open(cache->relid, AccessShareLock);
	/* an invalidation from here on makes the next call reload */
	cache->valid = true;
	snapshot = outbox_snapshot_now();
	slot = table_slot_create(rel, NULL);
	scan = table_beginscan(rel, snapshot, 0, NULL);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		MemoryContext old = MemoryContextSwitchTo(cache->context);

		cache->add(slot);
		MemoryContextSwitchTo(old);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
}

/*
 * Make sure that the copy is valid; it stays valid until the next
 * invalidation.
 */
void
outbox_cached_table_load(OutboxCachedTable *cache)
{
	if (likely(cache->valid))
		return;
	PG_TRY();
	{
		read_all(cache);
	}
	PG_CATCH();
	{
		/* an incomplete copy must not be used */
		cache->valid = false;
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * Make the copy invalid.  Called for a relcache invalidation of this relation,
 * or of all if relid is invalid, and when the copy must be read again for
 * another reason.
 */
void
outbox_cached_table_forget(OutboxCachedTable *cache, Oid relid)
{
	if (!OidIsValid(relid) || relid == cache->relid)
		cache->valid = false;
}
