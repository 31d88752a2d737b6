/*
 * cached_table.c
 *	  A small table that each backend keeps a copy of.
 *
 * The copy is thrown away when the table's relcache entry is invalidated,
 * which whoever changes the table sees to: so a change is in force for the
 * next call of every session once it has committed, and no call looks
 * anything up.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "table/cached_table.h"
#include "table/table.h"

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
	/* an invalidation that comes in from here on makes the next call reload */
	cache->valid = true;
	snapshot = RegisterSnapshot(GetLatestSnapshot());
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

/* Make sure that the copy is there; it is good until the next invalidation. */
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
		/* half a copy would be worse than none */
		cache->valid = false;
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * A relcache invalidation has come in for this relation, or, if it is invalid,
 * for all; or the copy must be read again for another reason.
 */
void
outbox_cached_table_forget(OutboxCachedTable *cache, Oid relid)
{
	if (!OidIsValid(relid) || relid == cache->relid)
		cache->valid = false;
}
