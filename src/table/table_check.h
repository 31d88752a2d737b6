/*
 * table_check.h
 *	  Checking whether a table is as the install script made it.
 */
#ifndef OUTBOX_TABLE_CHECK_H
#define OUTBOX_TABLE_CHECK_H

#include "postgres.h"

#include "nodes/execnodes.h"
#include "nodes/pg_list.h"
#include "utils/relcache.h"
#include "utils/reltrigger.h"

extern List *outbox_written_tables(void);
extern char *outbox_columns_why_not(Relation rel);
extern char *outbox_table_why_not(Relation rel, const TriggerDesc *triggers,
								  const bool *is_ours);
extern char *outbox_index_why_not(Relation index, const IndexInfo *info,
								  AttrNumber *partial_on);
extern bool *outbox_triggers_find_ours(const TriggerDesc *triggers);
extern bool outbox_triggers_watch(Relation rel, uint64 *life);

#endif							/* OUTBOX_TABLE_CHECK_H */
