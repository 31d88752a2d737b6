/*
 * table.c
 *	  The extension's own tables: which they are, and how their rows are
 *	  written.
 *
 * A row is written in one of two ways.
 *
 * Directly: through the table and index access methods, as the executor
 * would, but without a plan, an executor state or a lookup of what the last
 * call has looked up already.  Nobody checks privileges then: the right to
 * call the function is the right to do what it does.  The direct way is taken
 * when the table is as the install script made it (see as_we_made_it).
 *
 * By SQL (table_sql.c): when somebody has put triggers, checks, columns,
 * expression indexes or row level security on the table, so that all of these
 * work as anywhere else.  The statement runs as the calling role, which then
 * needs the rights on the table.
 *
 * What is known of a table is kept per backend and thrown away when its
 * relcache entry is.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "nodes/primnodes.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "compat.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/table.h"
#include "table/table_sql.h"
#include "util/guc.h"

/* Our triggers and constraints are called outbox_... */
#define OUR_PREFIX "outbox_"

/* What plain SQL can do to a live table that shared memory must know of. */
#define WATCHED_EVENTS (TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE | \
						TRIGGER_TYPE_DELETE | TRIGGER_TYPE_TRUNCATE)

/*
 * What is known of one table; lives in its own memory context.  It is never
 * changed, but replaced, and the old one stays until the end of the
 * transaction: so who has opened the table can rely on it.
 */
typedef struct OutboxTableInfo
{
	bool		direct;
	bool		watched;		/* triggers report what plain SQL does to it */
	uint64		life;			/* changes with them */
	MemoryContext context;
	TriggerDesc *triggers;
	int			nindexes;
	Oid		   *index_oids;
	IndexInfo **index_infos;
	AttrNumber *partial_on;		/* index only has rows where this is not null */
	TupleDesc	desc;			/* our copy; made with the batch */
	const struct OutboxTable *batch_user;	/* who uses the batch, */
	uint64		batch_xact;		/* unless that was an earlier transaction */
	TupleTableSlot *batch[OUTBOX_BATCH_ROWS];
} OutboxTableInfo;

/* Where it is found. */
typedef struct OutboxTableEntry
{
	Oid			relid;			/* hash key */
	uint32		changes;		/* invalidations so far */
	uint32		info_changes;	/* and when info was begun */
	OutboxTableInfo *info;
} OutboxTableEntry;

static uint64 xact_count = 0;	/* transactions of this backend so far */
static HTAB *table_infos = NULL;
static List *stale_contexts = NIL;

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

/* From _PG_init. */
void
outbox_table_init(void)
{
	CacheRegisterRelcacheCallback(forget_table, (Datum) 0);
}

/* What was replaced during the transaction can be in use until its end. */
void
outbox_table_xact_end(void)
{
	ListCell   *lc;

	foreach(lc, stale_contexts)
		MemoryContextDelete(lfirst(lc));
	list_free(stale_contexts);
	stale_contexts = NIL;
	xact_count++;
}

/* ---------------------------------------------------------------------- */
/* What is known of a table                                               */
/* ---------------------------------------------------------------------- */

/* Is this index predicate just "column is not null"?  Then which column? */
static bool
simple_predicate(List *predicate, AttrNumber *attnum)
{
	NullTest   *test;

	*attnum = InvalidAttrNumber;
	if (predicate == NIL)
		return true;
	test = linitial(predicate);
	if (list_length(predicate) != 1 || !IsA(test, NullTest) ||
		test->nulltesttype != IS_NOT_NULL || !IsA(test->arg, Var))
		return false;
	*attnum = ((Var *) test->arg)->varattno;
	return true;
}

static bool
simple_index(Relation index, const IndexInfo *info, AttrNumber *partial_on)
{
	Form_pg_index form = index->rd_index;

	return form->indimmediate && info->ii_Expressions == NIL &&
		info->ii_ExclusionOps == NULL &&
		index->rd_rel->relam == BTREE_AM_OID &&
		simple_predicate(info->ii_Predicate, partial_on);
}

static bool
has_our_prefix(const char *name)
{
	return strncmp(name, OUR_PREFIX, strlen(OUR_PREFIX)) == 0;
}

/* Did the install script make this trigger? */
bool
outbox_trigger_is_ours(const Trigger *trigger)
{
	return has_our_prefix(trigger->tgname) &&
		get_func_namespace(trigger->tgfoid) == outbox_catalog()->namespace;
}

/*
 * Is this one of the triggers by which the server enforces a foreign key of
 * ours?  What we write directly never changes a key, so they have nothing to
 * do then.
 */
static bool
enforces_our_key(const Trigger *trigger)
{
	const char *constraint;

	if (!trigger->tgisinternal || !OidIsValid(trigger->tgconstraint))
		return false;
	constraint = get_constraint_name(trigger->tgconstraint);
	return constraint != NULL && has_our_prefix(constraint);
}

static bool
only_our_triggers(const TriggerDesc *triggers)
{
	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		const Trigger *trigger = &triggers->triggers[i];

		if (!outbox_trigger_is_ours(trigger) && !enforces_our_key(trigger))
			return false;
	}
	return true;
}

static bool
only_our_constraints(const TupleConstr *constr)
{
	if (constr == NULL)
		return true;
	for (int i = 0; i < constr->num_check; i++)
	{
		if (!has_our_prefix(constr->check[i].ccname))
			return false;
	}
	return !constr->has_generated_stored;
}

/*
 * Can the table be written without the executor?  That is the case unless
 * somebody has added something that only the executor knows to honour.
 */
static bool
as_we_made_it(Relation rel, const TriggerDesc *triggers, int natts)
{
	TupleDesc	desc = RelationGetDescr(rel);

	if (rel->rd_rel->relkind != RELKIND_RELATION ||
		rel->rd_rel->relam != HEAP_TABLE_AM_OID ||
		rel->rd_rules != NULL ||
		desc->natts != natts)
		return false;
	for (int i = 0; i < natts; i++)
	{
		if (TupleDescAttr(desc, i)->attisdropped)
			return false;
	}
	return only_our_constraints(desc->constr) &&
		only_our_triggers(triggers);
}

/*
 * Do our triggers fire for whatever plain SQL does, in every session?  *life is
 * made of the transactions that have written their rows in pg_trigger.
 */
static bool
triggers_watch(Relation rel, uint64 *life)
{
	Relation	pg_trigger = table_open(TriggerRelationId, AccessShareLock);
	uint64		trigger_events = 0;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	*life = 1;
	ScanKeyInit(&key, Anum_pg_trigger_tgrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(RelationGetRelid(rel)));
	scan = systable_beginscan(pg_trigger, TriggerRelidNameIndexId, true, NULL,
							  1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_trigger form = (Form_pg_trigger) GETSTRUCT(tuple);

		if (strncmp(NameStr(form->tgname), OUR_PREFIX, strlen(OUR_PREFIX)) != 0 ||
			form->tgenabled != TRIGGER_FIRES_ALWAYS)
			continue;
		*life = *life * UINT64CONST(0x9e3779b97f4a7c15) +
			((uint64) form->oid << 32 | HeapTupleHeaderGetRawXmin(tuple->t_data));
		if (TRIGGER_FOR_AFTER(form->tgtype) || TRIGGER_FOR_TRUNCATE(form->tgtype))
			trigger_events |= form->tgtype & WATCHED_EVENTS;
	}
	systable_endscan(scan);
	table_close(pg_trigger, AccessShareLock);
	return trigger_events == WATCHED_EVENTS;
}

static OutboxTableInfo *
build_info(Relation rel, int natts)
{
	/* ours only when it is complete: an error leaves nothing behind */
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "outbox table",
												  ALLOCSET_SMALL_SIZES);
	OutboxTableInfo *info = MemoryContextAllocZero(context,
												   sizeof(OutboxTableInfo));
	MemoryContext old;
	List	   *index_oids;
	ListCell   *lc;
	int			n = 0;

	info->context = context;
	/* a copy, because to look at them may have the relcache's replaced */
	old = MemoryContextSwitchTo(context);
	info->triggers = CopyTriggerDesc(rel->trigdesc);
	MemoryContextSwitchTo(old);
	info->direct = as_we_made_it(rel, info->triggers, natts);
	info->watched = triggers_watch(rel, &info->life);
	index_oids = RelationGetIndexList(rel);

	old = MemoryContextSwitchTo(info->context);
	info->nindexes = list_length(index_oids);
	info->index_oids = palloc0_array(Oid, info->nindexes + 1);
	info->index_infos = palloc0_array(IndexInfo *, info->nindexes + 1);
	info->partial_on = palloc0_array(AttrNumber, info->nindexes + 1);
	foreach(lc, index_oids)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);

		/* one that is just being built concurrently, and wants no rows yet */
		if (!index->rd_index->indisready)
		{
			index_close(index, NoLock);
			continue;
		}
		info->index_oids[n] = lfirst_oid(lc);
		info->index_infos[n] = BuildIndexInfo(index);
		if (!simple_index(index, info->index_infos[n], &info->partial_on[n]))
			info->direct = false;
		index_close(index, NoLock);
		n++;
	}
	info->nindexes = n;
	MemoryContextSwitchTo(old);
	list_free(index_oids);
	MemoryContextSetParent(context, CacheMemoryContext);
	return info;
}

/*
 * What is known of a table, which the caller has locked.  It stays as it is
 * until the end of the transaction.
 */
static OutboxTableInfo *
get_info(Relation rel, int natts)
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
		OutboxTableInfo *info = build_info(rel, natts);

		/*
		 * An invalidation that came in while we built is for the next call:
		 * what has changed since the table was locked is nothing that an open
		 * table must know, as it is for the relcache itself.
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

/* Somebody may drop the extension while we wait for the lock. */
Relation
outbox_relation_open(Oid relid, LOCKMODE lockmode)
{
	Relation	rel = try_table_open(relid, lockmode);

	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("extension \"outbox\" was dropped meanwhile")));
	return rel;
}

/*
 * Open a table for writing.  natts is how many columns it has if it is as we
 * made it.
 */
void
outbox_table_open(OutboxTable *table, Oid relid, int natts)
{
	Relation	rel = outbox_relation_open(relid, RowExclusiveLock);
	OutboxTableInfo *info = get_info(rel, natts);

	if (RelationGetDescr(rel)->natts < natts)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" lacks columns that this version of the outbox library needs",
						RelationGetRelationName(rel)),
				 errhint("Run ALTER EXTENSION outbox UPDATE.")));
	table->rel = rel;
	table->store = NULL;
	table->natts = natts;
	table->nkeys = 1;
	table->info = info;
	table->direct = info->direct && outbox_use_direct;
	if (table->direct && rel->rd_rel->relrowsecurity)
		table->direct = check_enable_rls(relid, InvalidOid, true) != RLS_ENABLED;
	table->indexes = NULL;
	table->context = CurrentMemoryContext;
	table->batch = NULL;
	if (table->direct && info->nindexes > 0)
	{
		table->indexes = palloc_array(Relation, info->nindexes);
		for (int i = 0; i < info->nindexes; i++)
			table->indexes[i] = index_open(info->index_oids[i],
										   RowExclusiveLock);
	}
}

/* Open a live table for writing. */
void
outbox_store_open(OutboxTable *table, const OutboxStore *store)
{
	outbox_table_open(table, store->table, Q_NATTS);
	table->store = store;
}

/* The triggers of a table that is open for writing; NULL if it has none. */
const TriggerDesc *
outbox_table_triggers(const OutboxTable *table)
{
	return table->info->triggers;
}

/*
 * Do triggers report what plain SQL does to this live table?  *life changes when
 * that may have been otherwise for a while.
 */
bool
outbox_table_is_watched(Oid relid, int natts, uint64 *life)
{
	OutboxTableEntry *entry = table_infos == NULL ? NULL :
	hash_search(table_infos, &relid, HASH_FIND, NULL);
	const OutboxTableInfo *info;

	if (entry != NULL && entry->info != NULL &&
		entry->info_changes == entry->changes)
		info = entry->info;
	else
	{
		Relation	rel = outbox_relation_open(relid, AccessShareLock);

		info = get_info(rel, natts);
		table_close(rel, AccessShareLock);
	}
	*life = info->life;
	return info->watched;
}

/* Is this table as we made it? */
bool
outbox_table_is_direct(Oid relid, int natts)
{
	Relation	rel = outbox_relation_open(relid, AccessShareLock);
	bool		direct = get_info(rel, natts)->direct;

	table_close(rel, AccessShareLock);
	return direct;
}

/* Open a table only to read it. */
void
outbox_table_open_to_read(OutboxTable *table, Oid relid)
{
	memset(table, 0, sizeof(OutboxTable));
	table->rel = outbox_relation_open(relid, AccessShareLock);
}

/* The locks stay until the end of the transaction, as they should. */
void
outbox_table_close(OutboxTable *table)
{
	for (int i = 0; table->indexes != NULL && i < table->info->nindexes; i++)
		index_close(table->indexes[i], NoLock);
	if (table->info != NULL && table->info->batch_user == table)
		table->info->batch_user = NULL;
	table_close(table->rel, NoLock);
}

/*
 * Close a table that was opened for writing and has not been written: it need not
 * stay locked.
 */
void
outbox_table_close_unchanged(OutboxTable *table)
{
	for (int i = 0; table->indexes != NULL && i < table->info->nindexes; i++)
		index_close(table->indexes[i], RowExclusiveLock);
	if (table->info->batch_user == table)
		table->info->batch_user = NULL;
	table_close(table->rel, RowExclusiveLock);
}

/* A slot to read rows into. */
TupleTableSlot *
outbox_table_slot(OutboxTable *table)
{
	return table_slot_create(table->rel, NULL);
}

/* A slot to make a row in; all null to begin with. */
TupleTableSlot *
outbox_table_new_row(OutboxTable *table)
{
	TupleTableSlot *row = MakeSingleTupleTableSlot(RelationGetDescr(table->rel),
												   &TTSOpsVirtual);

	return ExecStoreAllNullTuple(row);
}

/*
 * The i'th of OUTBOX_BATCH_ROWS slots for outbox_table_multi_insert, to store
 * a heap tuple in.  They outlive the call: making a hundred slots for every
 * batch would cost more than filling them.  Where somebody's trigger calls us
 * while a batch is being filled, each has its own.
 */
TupleTableSlot *
outbox_table_batch_row(OutboxTable *table, int i)
{
	OutboxTableInfo *info = table->info;
	TupleTableSlot **batch;
	MemoryContext context;

	Assert(i >= 0 && i < OUTBOX_BATCH_ROWS);
	if (table->batch == NULL &&
		(info->batch_user == NULL || info->batch_user == table ||
		 info->batch_xact != xact_count))
	{
		info->batch_user = table;
		info->batch_xact = xact_count;
		batch = info->batch;
		context = info->context;
	}
	else
	{
		if (table->batch == NULL)
			table->batch = MemoryContextAllocZero(table->context,
												  sizeof(info->batch));
		batch = table->batch;
		context = table->context;
	}
	if (batch[i] == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(info->context);

		/* a copy, because a reference to the relcache's ends with us */
		if (info->desc == NULL)
			info->desc = CreateTupleDescCopyConstr(RelationGetDescr(table->rel));
		MemoryContextSwitchTo(context);
		batch[i] = MakeSingleTupleTableSlot(info->desc, &TTSOpsHeapTuple);
		MemoryContextSwitchTo(old);
	}
	return batch[i];
}

/*
 * Make "row" a copy of "old", to be changed and written as its next version.
 * Values passed by reference stay where they are, in old's tuple.
 */
void
outbox_new_row_from(TupleTableSlot *row, TupleTableSlot *old)
{
	int			natts = row->tts_tupleDescriptor->natts;

	ExecClearTuple(row);
	slot_getallattrs(old);
	memcpy(row->tts_values, old->tts_values, natts * sizeof(Datum));
	memcpy(row->tts_isnull, old->tts_isnull, natts * sizeof(bool));
	ExecStoreVirtualTuple(row);
}

/* ---------------------------------------------------------------------- */
/* Writing rows                                                           */
/* ---------------------------------------------------------------------- */

/*
 * Enter a row into the indexes.  For an update, "old" is the version before,
 * from which the values that have not changed were copied.
 */
static void
insert_index_entries(OutboxTable *table, TupleTableSlot *row,
					 TupleTableSlot *old)
{
	OutboxTableInfo *info = table->info;

	for (int i = 0; i < info->nindexes; i++)
	{
		IndexInfo  *index_info = info->index_infos[i];
		AttrNumber	partial_on = info->partial_on[i];
		Datum		values[INDEX_MAX_KEYS];
		bool		isnull[INDEX_MAX_KEYS];
		bool		unchanged = old != NULL;

		if (partial_on != InvalidAttrNumber && slot_attisnull(row, partial_on))
			continue;
		for (int k = 0; k < index_info->ii_NumIndexAttrs; k++)
		{
			AttrNumber	attnum = index_info->ii_IndexAttrNumbers[k];

			/* an index on expressions is not written directly */
			Assert(AttributeNumberIsValid(attnum));
			values[k] = slot_getattr(row, attnum, &isnull[k]);
			unchanged = unchanged && values[k] == old->tts_values[attnum - 1];
		}
		index_insert(table->indexes[i], values, isnull, &row->tts_tid,
					 table->rel,
					 index_info->ii_Unique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO,
					 unchanged, index_info);
	}
}

/* Insert a row; its tts_tid is set. */
void
outbox_table_insert(OutboxTable *table, TupleTableSlot *row)
{
	if (!table->direct)
	{
		outbox_sql_insert(table, row);
		return;
	}
	table_tuple_insert(table->rel, row, GetCurrentCommandId(true), 0, NULL);
	insert_index_entries(table, row, NULL);
}

void
outbox_table_multi_insert(OutboxTable *table, TupleTableSlot **rows, int nrows)
{
	Assert(nrows >= 0 && nrows <= OUTBOX_BATCH_ROWS);
	if (nrows == 0)
		return;
	if (!table->direct || nrows == 1)
	{
		for (int i = 0; i < nrows; i++)
			outbox_table_insert(table, rows[i]);
		return;
	}
	table_multi_insert(table->rel, rows, nrows, GetCurrentCommandId(true),
					   0, NULL);
	for (int i = 0; i < nrows; i++)
		insert_index_entries(table, rows[i], NULL);
}

/*
 * Who keeps us from changing this row?  A group of lockers has no single
 * transaction to wait for: then nobody in particular.
 */
static TransactionId
blocker_of(TupleTableSlot *old, const TM_FailureData *failure)
{
	BufferHeapTupleTableSlot *slot = (BufferHeapTupleTableSlot *) old;

	if ((slot->base.tuple->t_data->t_infomask & HEAP_XMAX_IS_MULTI) != 0 ||
		!TransactionIdIsInProgress(failure->xmax))
		return InvalidTransactionId;
	return failure->xmax;
}

static OutboxRowResult
row_result(TM_Result result, TupleTableSlot *old,
		   const TM_FailureData *failure, TransactionId *blocker)
{
	switch (result)
	{
		case TM_Ok:
			return OUTBOX_ROW_OK;
		case TM_BeingModified:
		case TM_WouldBlock:
			if (blocker != NULL)
				*blocker = blocker_of(old, failure);
			return OUTBOX_ROW_LOCKED;
		case TM_SelfModified:
		case TM_Updated:
		case TM_Deleted:
			return OUTBOX_ROW_GONE;
		default:
			elog(ERROR, "unexpected result of a row change: %u", result);
	}
}

/* Was the server built with assertions? */
static bool
server_asserts(void)
{
	static int	asserts = -1;

	if (asserts < 0)
		asserts = strcmp(GetConfigOption("debug_assertions", false, false), "on") == 0;
	return asserts > 0;
}

/* Lock a row that is to be changed, unless another transaction has it. */
static TM_Result
lock_row(OutboxTable *table, TupleTableSlot *old, LockTupleMode mode,
		 TM_FailureData *failure)
{
	ItemPointerData tid = old->tts_tid;
	TupleTableSlot *locked = outbox_table_slot(table);
	TM_Result	result;

	result = table_tuple_lock(table->rel, &tid, SnapshotAny, locked,
							  GetCurrentCommandId(true), mode, LockWaitSkip, 0,
							  failure);
	ExecDropSingleTupleTableSlot(locked);
	return result;
}

/*
 * Has this row only been locked?  Then the lock may be our own, or one that
 * does not conflict (FOR KEY SHARE with an update), which heap_update() and
 * heap_delete() do not look into unless they may wait.
 */
static bool
is_only_locked(TupleTableSlot *old)
{
	BufferHeapTupleTableSlot *slot = (BufferHeapTupleTableSlot *) old;

	return HEAP_XMAX_IS_LOCKED_ONLY(slot->base.tuple->t_data->t_infomask);
}

/*
 * Does this row seem to be locked?  Then it must be locked first, because
 * heap_update() and heap_delete() give the transaction an id even if they do
 * nothing, and heap_lock_tuple() does not.  A claim that waits must not have one.
 */
static bool
seems_locked(TupleTableSlot *old)
{
	BufferHeapTupleTableSlot *slot = (BufferHeapTupleTableSlot *) old;

	return is_only_locked(old) &&
		(slot->base.tuple->t_data->t_infomask & HEAP_XMAX_INVALID) == 0;
}

/*
 * Update a row without waiting for another transaction.
 *
 * heap_update() does that, and answers TM_BeingModified.  But in a server
 * built with assertions it insists that no caller wants it, so there the row
 * is locked first, which costs a WAL record more.
 */
static TM_Result
update_without_wait(OutboxTable *table, TupleTableSlot *old,
					TupleTableSlot *row, TM_FailureData *failure,
					OutboxUpdateIndexes *update_indexes)
{
	CommandId	cid = GetCurrentCommandId(true);
	LockTupleMode lockmode;
	TM_Result	result = TM_BeingModified;

	if (!server_asserts() && !seems_locked(old))
	{
		result = table_tuple_update(table->rel, &old->tts_tid, row, cid,
									InvalidSnapshot, InvalidSnapshot, false,
									failure, &lockmode, update_indexes);
		if (result != TM_BeingModified || !is_only_locked(old))
			return result;
	}
	result = lock_row(table, old, LockTupleNoKeyExclusive, failure);
	if (result != TM_Ok)
		return result;
	/* the lock is ours, so there is nothing left to wait for */
	return table_tuple_update(table->rel, &old->tts_tid, row, cid,
							  InvalidSnapshot, InvalidSnapshot, true,
							  failure, &lockmode, update_indexes);
}

/*
 * Replace the row read into "old" by "row", made with outbox_new_row_from.
 * Without "wait" a lock of somebody else is an answer, and *blocker tells
 * whose it is.
 */
OutboxRowResult
outbox_table_update(OutboxTable *table, TupleTableSlot *old,
					TupleTableSlot *row, bool wait, TransactionId *blocker)
{
	OutboxUpdateIndexes update_indexes;
	TM_FailureData failure;
	LockTupleMode lockmode;
	TM_Result	result;

	if (!table->direct)
		return outbox_sql_update(table, old, row, wait, blocker);
	if (wait)
		result = table_tuple_update(table->rel, &old->tts_tid, row,
									GetCurrentCommandId(true), InvalidSnapshot,
									InvalidSnapshot, true, &failure, &lockmode,
									&update_indexes);
	else
		result = update_without_wait(table, old, row, &failure,
									 &update_indexes);
	if (result == TM_Ok && OUTBOX_UPDATE_NEEDS_INDEXES(update_indexes))
		insert_index_entries(table, row, old);
	return row_result(result, old, &failure, blocker);
}

/* Delete a row, or answer TM_BeingModified if another transaction has it. */
static TM_Result
delete_without_wait(OutboxTable *table, TupleTableSlot *old,
					TM_FailureData *failure)
{
	CommandId	cid = GetCurrentCommandId(true);
	TM_Result	result;

	if (!seems_locked(old))
	{
		result = table_tuple_delete(table->rel, &old->tts_tid, cid,
									InvalidSnapshot, InvalidSnapshot, false,
									failure, false);
		if (result != TM_BeingModified || !is_only_locked(old))
			return result;
	}
	result = lock_row(table, old, LockTupleExclusive, failure);
	if (result != TM_Ok)
		return result;
	return table_tuple_delete(table->rel, &old->tts_tid, cid,
							  InvalidSnapshot, InvalidSnapshot, true,
							  failure, false);
}

/* Delete the row read into "old". */
OutboxRowResult
outbox_table_delete(OutboxTable *table, TupleTableSlot *old, bool wait,
					TransactionId *blocker)
{
	TM_FailureData failure;
	TM_Result	result;

	if (!table->direct)
		return outbox_sql_delete(table, old, wait, blocker);
	if (wait)
		result = table_tuple_delete(table->rel, &old->tts_tid,
									GetCurrentCommandId(true), InvalidSnapshot,
									InvalidSnapshot, true, &failure, false);
	else
		result = delete_without_wait(table, old, &failure);
	return row_result(result, old, &failure, blocker);
}
