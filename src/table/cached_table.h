/*
 * cached_table.h
 *	  A small table that each backend keeps a copy of.
 */
#ifndef OUTBOX_CACHED_TABLE_H
#define OUTBOX_CACHED_TABLE_H

#include "postgres.h"

#include "executor/tuptable.h"

/* Filled in by its user but for what stands behind "kept". */
typedef struct OutboxCachedTable
{
	const char *name;			/* of the memory context */
	Oid			(*find) (void); /* which table it is */
	void		(*begin) (void);	/* forget what was added so far */
	void		(*add) (TupleTableSlot *row);	/* in the copy's context */
	/* kept */
	bool		valid;
	Oid			relid;
	MemoryContext context;
} OutboxCachedTable;

extern void outbox_cached_table_load(OutboxCachedTable *cache);
extern void outbox_cached_table_forget(OutboxCachedTable *cache, Oid relid);

#endif							/* OUTBOX_CACHED_TABLE_H */
