/*
 * table.c
 *	  Opening the extension's tables, and writing their rows.
 *
 * A row is written in one of two ways.
 *
 * Directly: through the table and index access methods, as the executor would,
 * but without a plan, an executor state or repeated catalog lookups.  No
 * privileges are checked then: EXECUTE on the function is enough.  This is
 * done if the table is as the install script made it (table_check.c).
 *
 * By SQL (table_sql.c): if triggers, constraints, columns, expression indexes
 * or row level security were added to the table, so that all of these work as
 * on any table.  On a live table the statement runs as the calling role, which
 * then needs privileges on the table, and whose policies apply.  On all other
 * tables, which are internal, it runs as the owner of the table.
 *
 * The decision is cached with other information about the table
 * (table_info.c), so that opening a table needs no lookups.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "storage/procarray.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/table.h"
#include "table/table_info.h"
#include "table/table_sql.h"
#include "util/guc.h"

static uint64 xact_count = 0;	/* number of transactions of this backend */

/* Called by _PG_init. */
void
outbox_table_init(void)
{
	outbox_table_info_init();
}

/* Called at the end of each transaction. */
void
outbox_table_xact_end(void)
{
	outbox_table_info_xact_end();
	xact_count++;
}

/*
 * Open and lock a relation.  The extension may be dropped while we wait for
 * the lock, which is an error.
 */
Relation
outbox_relation_open(Oid relid, LOCKMODE lockmode)
{
	Relation	rel = try_table_open(relid, lockmode);

	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("extension \"outbox\" was dropped concurrently")));
	return rel;
}

/*
 * A registered snapshot of what is committed now, which the caller must
 * unregister.  This does not use GetLatestSnapshot, because that allocates two
 * arrays at its first call, and if memory suffices only for one of them, the
 * next call writes to the other, through a NULL pointer.  The arrays of the
 * catalog snapshot always exist when code of the extension runs.
 */
Snapshot
outbox_snapshot_now(void)
{
	InvalidateCatalogSnapshot();
	return RegisterSnapshot(GetCatalogSnapshot(InvalidOid));
}

/* Raise an error if the table lacks columns that C knows by number. */
static void
require_columns(Relation rel, const OutboxTableInfo *info, int natts)
{
	if (RelationGetDescr(rel)->natts < natts)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" lacks columns that this version of the outbox library needs",
						RelationGetRelationName(rel)),
				 errhint("Run ALTER EXTENSION outbox UPDATE.")));
	if (info->broken != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" does not have the columns that extension \"outbox\" requires",
						RelationGetRelationName(rel)),
				 errdetail("The table was changed: %s.", info->broken),
				 errhint("Undo the change, or run ALTER EXTENSION outbox UPDATE.")));
}

/*
 * May this table be written directly?  Policies of a live table may apply to
 * the calling role.  For a partition, what was added to the parent counts as
 * well.
 */
static bool
may_write_directly(const OutboxTable *table)
{
	Relation	rel = table->rel;

	if (table->info->why_not != NULL || !outbox_use_direct)
		return false;
	if (OidIsValid(table->parent) &&
		outbox_table_info_find(table->parent)->why_not != NULL)
		return false;
	return !rel->rd_rel->relrowsecurity || OidIsValid(table->as_role) ||
		check_enable_rls(RelationGetRelid(rel), InvalidOid, true) != RLS_ENABLED;
}

/*
 * Open a table for writing; if by SQL, as this role, or as the caller if
 * invalid.
 */
static void
open_table(OutboxTable *table, Relation rel, int natts, Oid parent, Oid as_role)
{
	OutboxTableInfo *info = outbox_table_info_get(rel);

	require_columns(rel, info, natts);
	table->rel = rel;
	table->store = NULL;
	table->natts = natts;
	table->nkeys = 1;
	table->parent = parent;
	table->as_role = as_role;
	table->info = info;
	table->direct = may_write_directly(table);
	if (!table->direct && OidIsValid(parent))
		table->as_role = outbox_relation_owner(parent);
	table->indexes = NULL;
	table->context = CurrentMemoryContext;
	table->batch = NULL;
	if (table->direct && info->nindexes > 0)
	{
		/* partial ones when they are needed: most rows are in none of them */
		table->indexes = palloc0_array(Relation, info->nindexes);
		for (int i = 0; i < info->nindexes; i++)
		{
			if (info->partial_on[i] == InvalidAttrNumber)
				table->indexes[i] = index_open(info->index_oids[i],
											   RowExclusiveLock);
		}
	}
}

/*
 * Open a table other than a live table for writing.  natts is the number of
 * columns that the install script gives it.
 */
void
outbox_table_open(OutboxTable *table, Oid relid, int natts)
{
	Relation	rel = outbox_relation_open(relid, RowExclusiveLock);

	open_table(table, rel, natts, InvalidOid, rel->rd_rel->relowner);
}

/*
 * Open a partition for inserting rows that belong there.  If written by SQL,
 * they are inserted into the parent, so that its triggers, rules and policies
 * apply.
 */
void
outbox_partition_open(OutboxTable *table, Oid relid, Oid parent, int natts)
{
	Relation	rel = outbox_relation_open(relid, RowExclusiveLock);

	if (!rel->rd_rel->relispartition)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" is not a partition of \"%s\"",
						RelationGetRelationName(rel), get_rel_name(parent)),
				 errhint("Attach it again, or rename it.")));
	open_table(table, rel, natts, parent, rel->rd_rel->relowner);
}

/* Open a live table for writing. */
void
outbox_store_open(OutboxTable *table, const OutboxStore *store)
{
	Relation	rel = outbox_relation_open(store->table, RowExclusiveLock);

	open_table(table, rel, Q_NATTS, InvalidOid, InvalidOid);
	table->store = store;
}

/*
 * The triggers of a table that is open for writing, NULL if it has none;
 * *is_ours is an array that says which of them belong to the extension.
 */
const TriggerDesc *
outbox_table_triggers(const OutboxTable *table, const bool **is_ours)
{
	*is_ours = table->info->is_ours;
	return table->info->triggers;
}

/* Open a table for reading only. */
void
outbox_table_open_to_read(OutboxTable *table, Oid relid)
{
	memset(table, 0, sizeof(OutboxTable));
	table->rel = outbox_relation_open(relid, AccessShareLock);
}

/* Close those of the indexes that are open, and release this lock on them. */
static void
close_indexes(OutboxTable *table, LOCKMODE lockmode)
{
	for (int i = 0; table->indexes != NULL && i < table->info->nindexes; i++)
	{
		if (table->indexes[i] != NULL)
			index_close(table->indexes[i], lockmode);
	}
}

/*
 * Close a table.  Locks are held until the end of the transaction, as usual.
 */
void
outbox_table_close(OutboxTable *table)
{
	close_indexes(table, NoLock);
	if (table->info != NULL && table->info->batch_user == table)
		table->info->batch_user = NULL;
	table_close(table->rel, NoLock);
}

/*
 * Close a table that was opened for writing and has not been written, and
 * release its lock.
 */
void
outbox_table_close_unchanged(OutboxTable *table)
{
	close_indexes(table, RowExclusiveLock);
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

/* A slot to make a row in, in which all columns are null. */
TupleTableSlot *
outbox_table_new_row(OutboxTable *table)
{
	TupleTableSlot *row = MakeSingleTupleTableSlot(RelationGetDescr(table->rel),
												   &TTSOpsVirtual);

	return ExecStoreAllNullTuple(row);
}

/*
 * The i'th of OUTBOX_MULTI_INSERT_ROWS slots for outbox_table_multi_insert, to store
 * a heap tuple in.  They are cached across calls, because making a hundred
 * slots for every batch would cost more than filling them.  If a user's
 * trigger calls the extension while a batch is being filled, the inner call
 * gets slots of its own.
 */
TupleTableSlot *
outbox_table_batch_row(OutboxTable *table, int i)
{
	OutboxTableInfo *info = table->info;
	TupleTableSlot **batch;
	MemoryContext context;

	Assert(i >= 0 && i < OUTBOX_MULTI_INSERT_ROWS);
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

		/* a copy, because the slots outlive references to the relcache */
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
 * Values passed by reference are not copied; they point into the tuple of
 * "old".
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
 * Insert index entries for a row.  For an update, "old" is the previous
 * version, from which unchanged values were copied.
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
		if (table->indexes[i] == NULL)
			table->indexes[i] = index_open(info->index_oids[i], RowExclusiveLock);
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

/* Insert a row; sets its tts_tid. */
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

/* Insert rows that are in slots of outbox_table_batch_row. */
void
outbox_table_multi_insert(OutboxTable *table, TupleTableSlot **rows, int nrows)
{
	Assert(nrows >= 0 && nrows <= OUTBOX_MULTI_INSERT_ROWS);
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
 * The transaction that prevents a change of this row.  Invalid if there are
 * several lockers, because then there is no single transaction to wait for.
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

/*
 * Convert the result of a table access method; sets *blocker if the row is
 * locked.
 */
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

/* Lock a row before changing it, unless another transaction has locked it. */
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
 * May this row be changed although it has been locked?  The lock may be our
 * own, or one that does not conflict (FOR KEY SHARE with an update); and a
 * change beside which there was such a lock may have been rolled back.
 * heap_update() and heap_delete() check that only if they may wait.
 */
static bool
may_be_shared(TupleTableSlot *old)
{
	uint16		infomask = ((BufferHeapTupleTableSlot *) old)->base.tuple->t_data->t_infomask;

	return HEAP_XMAX_IS_LOCKED_ONLY(infomask) || (infomask & HEAP_XMAX_IS_MULTI) != 0;
}

/*
 * Does this row seem to be locked?  Then it must be locked first, because
 * heap_update() and heap_delete() assign a transaction id even if they do
 * nothing, and heap_lock_tuple() does not.  A waiting claim must not have one.
 */
static bool
seems_locked(TupleTableSlot *old)
{
	BufferHeapTupleTableSlot *slot = (BufferHeapTupleTableSlot *) old;

	return may_be_shared(old) &&
		(slot->base.tuple->t_data->t_infomask & HEAP_XMAX_INVALID) == 0;
}

/*
 * Update a row without waiting for another transaction.
 *
 * heap_update() supports that, and returns TM_BeingModified.  But in a server
 * built with assertions it asserts that no caller does so, so there the row is
 * locked first, which costs one more WAL record.
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
		if (result != TM_BeingModified || !may_be_shared(old))
			return result;
	}
	result = lock_row(table, old, LockTupleNoKeyExclusive, failure);
	if (result != TM_Ok)
		return result;
	/* we hold the lock, so this does not wait */
	return table_tuple_update(table->rel, &old->tts_tid, row, cid,
							  InvalidSnapshot, InvalidSnapshot, true,
							  failure, &lockmode, update_indexes);
}

/*
 * Replace the row read into "old" by "row", made with outbox_new_row_from.
 * Without "wait", returns OUTBOX_ROW_LOCKED if another transaction has locked
 * the row, and sets *blocker to it.
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

/*
 * Delete a row, or return TM_BeingModified if another transaction has locked
 * it.
 */
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
		if (result != TM_BeingModified || !may_be_shared(old))
			return result;
	}
	result = lock_row(table, old, LockTupleExclusive, failure);
	if (result != TM_Ok)
		return result;
	return table_tuple_delete(table->rel, &old->tts_tid, cid,
							  InvalidSnapshot, InvalidSnapshot, true,
							  failure, false);
}

/* Delete the row read into "old"; as outbox_table_update. */
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
