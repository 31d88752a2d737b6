/*
 * cached_table.h
 *	  A small table that each backend keeps a copy of.
 */
#ifndef OUTBOX_CACHED_TABLE_H
#define OUTBOX_CACHED_TABLE_H

#include "postgres.h"

#include "executor/tuptable.h"

/*
 * The caller fills in the members above "kept", and sets the others to zero.
 */
typedef struct OutboxCachedTable
{
	const char *name;			/* of the memory context */
	Oid			(*find) (void); /* returns the OID of the table */
	void		(*begin) (void);	/* makes the copy empty */
	void		(*add) (TupleTableSlot *row);	/* called in the copy's
												 * context */
	/* kept */
	bool		valid;
	Oid			relid;
	MemoryContext context;
} OutboxCachedTable;

extern void outbox_cached_table_load(OutboxCachedTable *cache);
extern void outbox_cached_table_forget(OutboxCachedTable *cache, Oid relid);

#endif							/* OUTBOX_CACHED_TABLE_H */
