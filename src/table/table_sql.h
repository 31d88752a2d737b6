/*
 * table_sql.h
 *	  Writing rows by SQL statements, for tables that users have changed.
 */
#ifndef OUTBOX_TABLE_SQL_H
#define OUTBOX_TABLE_SQL_H

#include "table/table.h"

extern void outbox_sql_insert(OutboxTable *table, TupleTableSlot *row);
extern OutboxRowResult outbox_sql_update(OutboxTable *table, TupleTableSlot *old,
										 TupleTableSlot *row, bool wait,
										 TransactionId *blocker);
extern OutboxRowResult outbox_sql_delete(OutboxTable *table, TupleTableSlot *old,
										 bool wait, TransactionId *blocker);
extern bool outbox_sql_is_running(void);

#endif							/* OUTBOX_TABLE_SQL_H */
