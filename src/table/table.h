/*
 * table.h
 *	  The extension's own tables: how their rows are read and written.
 */
#ifndef OUTBOX_TABLE_H
#define OUTBOX_TABLE_H

#include "postgres.h"

#include "executor/tuptable.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"
#include "utils/reltrigger.h"
#include "utils/snapshot.h"

#include "table/catalog.h"

/* Maximum number of rows in a batch that is inserted at once. */
#define OUTBOX_MULTI_INSERT_ROWS 64

/* Cached information about a table: table_info.h. */
typedef struct OutboxTableInfo OutboxTableInfo;

/* A table opened for writing; close it before the end of the call. */
typedef struct OutboxTable
{
	Relation	rel;
	const OutboxStore *store;	/* if it is a live table */
	int			natts;			/* number of columns that we write */
	int			nkeys;			/* number of columns of the key, the first
								 * ones */
	Oid			parent;			/* of a partition, else invalid */
	Oid			as_role;		/* role that writes it by SQL; invalid: the
								 * caller */
	OutboxTableInfo *info;
	Relation   *indexes;
	bool		direct;			/* may be written without the executor */
	MemoryContext context;		/* in which it was opened */
	TupleTableSlot **batch;		/* slots, if those of info are in use */
} OutboxTable;

typedef enum OutboxRowResult
{
	OUTBOX_ROW_OK,
	OUTBOX_ROW_LOCKED,			/* by another transaction, without waiting */
	OUTBOX_ROW_GONE,			/* changed or deleted since it was read */
	OUTBOX_ROW_REFUSED			/* by a user's trigger or policy */
} OutboxRowResult;

extern void outbox_table_init(void);
extern void outbox_table_xact_end(void);

extern const TriggerDesc *outbox_table_triggers(const OutboxTable *table,
												const bool **is_ours);
extern char *outbox_table_explain(Relation rel);
extern bool outbox_table_is_watched(Oid relid, uint64 *life);
extern Relation outbox_relation_open(Oid relid, LOCKMODE lockmode);
extern Snapshot outbox_snapshot_now(void);
extern void outbox_store_open(OutboxTable *table, const OutboxStore *store);
extern void outbox_table_open(OutboxTable *table, Oid relid, int natts);
extern void outbox_partition_open(OutboxTable *table, Oid relid, Oid parent,
								  int natts);
extern void outbox_table_open_to_read(OutboxTable *table, Oid relid);
extern void outbox_table_close(OutboxTable *table);
extern void outbox_table_close_unchanged(OutboxTable *table);
extern TupleTableSlot *outbox_table_slot(OutboxTable *table);
extern TupleTableSlot *outbox_table_new_row(OutboxTable *table);
extern TupleTableSlot *outbox_table_batch_row(OutboxTable *table, int i);
extern void outbox_new_row_from(TupleTableSlot *row, TupleTableSlot *old);

extern void outbox_table_insert(OutboxTable *table, TupleTableSlot *row);
extern void outbox_table_multi_insert(OutboxTable *table,
									  TupleTableSlot **rows, int nrows);
extern OutboxRowResult outbox_table_update(OutboxTable *table,
										   TupleTableSlot *old,
										   TupleTableSlot *row, bool wait,
										   TransactionId *blocker);
extern OutboxRowResult outbox_table_delete(OutboxTable *table,
										   TupleTableSlot *old, bool wait,
										   TransactionId *blocker);

/* Read an attribute that is never null. */
static inline Datum
outbox_row_get(TupleTableSlot *slot, AttrNumber attnum)
{
	bool		isnull;

	return slot_getattr(slot, attnum, &isnull);
}

static inline void
outbox_row_set(TupleTableSlot *row, AttrNumber attnum, Datum value)
{
	row->tts_values[attnum - 1] = value;
	row->tts_isnull[attnum - 1] = false;
}

static inline void
outbox_row_set_null(TupleTableSlot *row, AttrNumber attnum)
{
	row->tts_values[attnum - 1] = (Datum) 0;
	row->tts_isnull[attnum - 1] = true;
}

#endif							/* OUTBOX_TABLE_H */
