/*
 * table_info.h
 *	  What this backend knows of the extension's tables.
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
 * What is known of one table; lives in its own memory context.  It is never
 * changed, but replaced, and the old one stays until the end of the
 * transaction: so who has opened the table can rely on it.
 */
struct OutboxTableInfo
{
	const char *broken;			/* why it cannot be written at all, or NULL */
	const char *why_not;		/* why it is not written directly, or NULL */
	bool		watched;		/* triggers report what plain SQL does to it */
	uint64		life;			/* changes with them */
	MemoryContext context;
	TriggerDesc *triggers;
	bool	   *is_ours;		/* of each trigger: the extension's */
	int			nindexes;
	Oid		   *index_oids;
	IndexInfo **index_infos;
	AttrNumber *partial_on;		/* index only has rows where this is not null */
	TupleDesc	desc;			/* our copy; made with the batch */
	const OutboxTable *batch_user;	/* who uses the batch, */
	uint64		batch_xact;		/* unless that was an earlier transaction */
	TupleTableSlot *batch[OUTBOX_BATCH_ROWS];
};

extern void outbox_table_info_init(void);
extern void outbox_table_info_xact_end(void);
extern OutboxTableInfo *outbox_table_info_get(Relation rel);
extern const OutboxTableInfo *outbox_table_info_find(Oid relid);

#endif							/* OUTBOX_TABLE_INFO_H */
