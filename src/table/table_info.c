/*
 * table_info.c
 *	  Cached information about the extension's tables: their triggers and
 *	  indexes, and whether they are as the install script made them.
 *
 * It is collected when a table is first opened, and discarded when the table's
 * relcache entry is invalidated.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "catalog/index.h"
#include "commands/trigger.h"
#include "storage/lmgr.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "table/catalog.h"
#include "table/table.h"
#include "table/table_check.h"
#include "table/table_info.h"

/* Entry of the hash table. */
typedef struct OutboxTableEntry
{
	Oid			relid;			/* hash key */
	uint32		changes;		/* number of invalidations */
	uint32		info_changes;	/* their number when info was begun */
	OutboxTableInfo *info;
} OutboxTableEntry;

static HTAB *table_infos = NULL;
static List *stale_contexts = NIL;

/* Relcache callback: discard what is known of a table, or of all tables. */
static void
forget_table(Datum arg, Oid relid)
{
	if (table_infos == NULL)
		return;
	if (OidIsValid(relid))
	{
		OutboxTableEntry *entry = hash_search(table_infos, &relid, HASH_FIND, NULL);

		if (entry != NULL)
			entry->changes++;
	}
	else
	{
		HASH_SEQ_STATUS seq;
		OutboxTableEntry *entry;

		hash_seq_init(&seq, table_infos);
		while ((entry = hash_seq_search(&seq)) != NULL)
			entry->changes++;
	}
}

/* Called by _PG_init. */
void
outbox_table_info_init(void)
{
	CacheRegisterRelcacheCallback(forget_table, (Datum) 0);
}

/*
 * Free what was replaced during the transaction, which may be in use until its
 * end.
 */
void
outbox_table_info_xact_end(void)
{
	ListCell   *lc;

	foreach(lc, stale_contexts)
		MemoryContextDelete(lfirst(lc));
	list_free(stale_contexts);
	stale_contexts = NIL;
}

/*
 * Collect information about the indexes, in the info's context.  They are
 * locked only for this time: the lock on the table protects them, and holding
 * a lock on an index for longer could deadlock with a transaction that locks
 * the table first.
 */
static void
describe_indexes(OutboxTableInfo *info, Relation rel)
{
	List	   *index_oids = RelationGetIndexList(rel);
	ListCell   *lc;
	int			n = 0;

	info->index_oids = palloc0_array(Oid, list_length(index_oids) + 1);
	info->index_infos = palloc0_array(IndexInfo *, list_length(index_oids) + 1);
	info->partial_on = palloc0_array(AttrNumber, list_length(index_oids) + 1);
	foreach(lc, index_oids)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);
		char	   *why_not;

		/* an index that is being built concurrently, and takes no rows yet */
		if (!index->rd_index->indisready)
		{
			index_close(index, AccessShareLock);
			continue;
		}
		info->index_oids[n] = lfirst_oid(lc);
		info->index_infos[n] = BuildIndexInfo(index);
		why_not = outbox_index_why_not(index, info->index_infos[n],
									   &info->partial_on[n]);
		if (info->why_not == NULL)
			info->why_not = why_not;
		index_close(index, AccessShareLock);
		n++;
	}
	info->nindexes = n;
	list_free(index_oids);
}

/* Collect the information about a table, which must be locked. */
static OutboxTableInfo *
build_info(Relation rel)
{
	/* reparented only when it is complete, so that an error leaks nothing */
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "outbox table",
												  ALLOCSET_SMALL_SIZES);
	OutboxTableInfo *info = MemoryContextAllocZero(context,
												   sizeof(OutboxTableInfo));
	MemoryContext old;
	char	   *why_not;

	info->context = context;
	/* a copy, because reading them may make the relcache replace its own */
	old = MemoryContextSwitchTo(context);
	info->triggers = CopyTriggerDesc(rel->trigdesc);
	info->is_ours = outbox_triggers_find_ours(info->triggers);
	MemoryContextSwitchTo(old);
	info->watched = outbox_triggers_watch(rel, &info->life);

	why_not = outbox_columns_why_not(rel);
	if (why_not != NULL)
		info->broken = MemoryContextStrdup(context, why_not);
	else
		why_not = outbox_table_why_not(rel, info->triggers, info->is_ours);
	if (why_not != NULL)
		info->why_not = MemoryContextStrdup(context, why_not);
	MemoryContextSwitchTo(context);
	describe_indexes(info, rel);
	MemoryContextSwitchTo(old);
	return info;
}

/*
 * Get the information about a table, which the caller must have locked.  It is
 * valid until the end of the transaction.
 */
OutboxTableInfo *
outbox_table_info_get(Relation rel)
{
	Oid			relid = RelationGetRelid(rel);
	OutboxTableEntry *entry;
	bool		found;

	if (table_infos == NULL)
	{
		HASHCTL		ctl;

		memset(&ctl, 0, sizeof(ctl));
		ctl.keysize = sizeof(Oid);
		ctl.entrysize = sizeof(OutboxTableEntry);
		ctl.hcxt = CacheMemoryContext;
		table_infos = hash_create("outbox tables", 16, &ctl,
								  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	Assert(CheckRelationLockedByMe(rel, AccessShareLock, true));
	entry = hash_search(table_infos, &relid, HASH_ENTER, &found);
	if (!found)
	{
		entry->changes = 0;
		entry->info = NULL;
	}
	if (entry->info == NULL || entry->info_changes != entry->changes)
	{
		uint32		changes = entry->changes;
		OutboxTableInfo *info = build_info(rel);

		MemoryContextSetParent(info->context, CacheMemoryContext);

		/*
		 * An invalidation received in the meantime takes effect with the next
		 * call: changes that are possible while the table is locked need not
		 * be known to code that has it open, as with the relcache itself.
		 */
		entry = hash_search(table_infos, &relid, HASH_FIND, NULL);
		if (entry->info != NULL)
		{
			MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

			stale_contexts = lappend(stale_contexts, entry->info->context);
			MemoryContextSwitchTo(old);
		}
		entry->info = info;
		entry->info_changes = changes;
	}
	return entry->info;
}

/*
 * The information about a table that need not be open; NULL if there is none.
 */
static const OutboxTableInfo *
known_info(Oid relid)
{
	OutboxTableEntry *entry = table_infos == NULL ? NULL :
	hash_search(table_infos, &relid, HASH_FIND, NULL);

	return entry != NULL && entry->info_changes == entry->changes ?
		entry->info : NULL;
}

/* The same; collected if necessary. */
const OutboxTableInfo *
outbox_table_info_find(Oid relid)
{
	const OutboxTableInfo *info = known_info(relid);

	if (info == NULL)
	{
		Relation	rel = outbox_relation_open(relid, AccessShareLock);

		info = outbox_table_info_get(rel);
		table_close(rel, AccessShareLock);
	}
	return info;
}

/*
 * Do triggers report changes of this live table by plain SQL?  *life changes
 * if there may have been a time when they did not.
 */
bool
outbox_table_is_watched(Oid relid, uint64 *life)
{
	const OutboxTableInfo *info = outbox_table_info_find(relid);

	*life = info->life;
	return info->watched;
}

/*
 * Returns why this table, which must be open, is not written directly, as a
 * copy; NULL if it is.  Nothing is cached, because there may be many such
 * tables that this session will never write.
 */
char *
outbox_table_explain(Relation rel)
{
	const OutboxTableInfo *info = known_info(RelationGetRelid(rel));
	OutboxTableInfo *made = info == NULL ? build_info(rel) : NULL;
	const char *why_not = info == NULL ? made->why_not : info->why_not;
	char	   *result;

	if (why_not == NULL && rel->rd_rel->relrowsecurity &&
		outbox_store_of(RelationGetRelid(rel)) != NULL)
		why_not = "row level security";
	result = why_not == NULL ? NULL : pstrdup(why_not);
	if (made != NULL)
		MemoryContextDelete(made->context);
	return result;
}
