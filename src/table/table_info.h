/*
 * table_info.h
 *	  Cached information about the extension's tables.
 */
#ifndef OUTBOX_TABLE_INFO_H
#define OUTBOX_TABLE_INFO_H

#include "postgres.h"

#include "access/tupdesc.h"
#include "executor/tuptable.h"
#include "nodes/execnodes.h"
#include "utils/relcache.h"
#include "utils/reltrigger.h"

#include "table/table.h"

/*
 * Information about one table, in a memory context of its own.  It is never
 * changed, but replaced, and the old one stays until the end of the
 * transaction: so code that has the table open can rely on it.
 */
struct OutboxTableInfo
{
	const char *broken;			/* why it cannot be written at all, or NULL */
	const char *why_not;		/* why it is not written directly, or NULL */
	bool		watched;		/* triggers report changes by plain SQL */
	uint64		life;			/* changes when these triggers change */
	MemoryContext context;
	TriggerDesc *triggers;
	bool	   *is_ours;		/* for each trigger: made by the extension */
	int			nindexes;
	Oid		   *index_oids;
	IndexInfo **index_infos;
	AttrNumber *partial_on;		/* of partial indexes: column that is not null */
	TupleDesc	desc;			/* copy; made with the batch */
	const OutboxTable *batch_user;	/* table that uses the batch, */
	uint64		batch_xact;		/* if in this transaction */
	TupleTableSlot *batch[OUTBOX_MULTI_INSERT_ROWS];
};

extern void outbox_table_info_init(void);
extern void outbox_table_info_xact_end(void);
extern OutboxTableInfo *outbox_table_info_get(Relation rel);
extern const OutboxTableInfo *outbox_table_info_find(Oid relid);

#endif							/* OUTBOX_TABLE_INFO_H */
