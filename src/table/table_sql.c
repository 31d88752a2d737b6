/*
 * table_sql.c
 *	  Writing rows by SQL statements, for tables that users have changed.
 *
 * The statements name only the columns of the install script, and find a row
 * by its key.  A row that was read is locked first, and is not changed if it
 * is no longer the version that was read.
 *
 * On a live table they run as the calling role.  On all other tables they run
 * as the table's owner, like a SECURITY DEFINER function with its own
 * search_path: so a worker's ack needs no privileges on the history, and a
 * trigger there is not affected by the worker's settings.  This is not a
 * security-restricted operation.  That would protect the caller from the
 * owner's triggers, but these run only with the owner's privileges, and it
 * would disallow deferred constraints.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "access/xact.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/itemptr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "table/probe.h"
#include "table/table.h"
#include "table/table_sql.h"

typedef enum StatementKind
{
	STMT_INSERT,
	STMT_UPDATE,
	STMT_DELETE,
	STMT_FIND,
	STMT_LOCK,					/* to update it; keys do not change */
	STMT_LOCK_NOWAIT,
	STMT_LOCK_TO_DELETE,
	STMT_LOCK_TO_DELETE_NOWAIT
} StatementKind;

typedef struct StatementKey
{
	Oid			relid;
	StatementKind kind;
} StatementKey;

typedef struct Statement
{
	StatementKey key;
	SPIPlanPtr	plan;
} Statement;

static HTAB *statements = NULL;

/* Number of our statements that are running: triggers may nest them. */
static int	nrunning = 0;

static const char *
column_name(OutboxTable *table, int attnum)
{
	Form_pg_attribute att = TupleDescAttr(RelationGetDescr(table->rel),
										  attnum - 1);

	return quote_identifier(NameStr(att->attname));
}

/* The table that statements name: for a partition, its parent. */
static Oid
target(const OutboxTable *table)
{
	return OidIsValid(table->parent) ? table->parent :
		RelationGetRelid(table->rel);
}

/* Append the condition that finds a row by its key. */
static void
append_key(StringInfo sql, OutboxTable *table)
{
	for (int i = 1; i <= table->nkeys; i++)
		appendStringInfo(sql, "%s %s OPERATOR(pg_catalog.=) $%d",
						 i > 1 ? " AND" : " WHERE", column_name(table, i), i);
}

/* Make the text of a statement. */
static char *
statement_text(OutboxTable *table, StatementKind kind)
{
	const char *relation;
	StringInfoData sql;

	relation =
		quote_qualified_identifier(get_namespace_name(get_rel_namespace(target(table))),
								   get_rel_name(target(table)));
	initStringInfo(&sql);
	switch (kind)
	{
		case STMT_INSERT:
			appendStringInfo(&sql, "INSERT INTO %s (", relation);
			for (int i = 1; i <= table->natts; i++)
				appendStringInfo(&sql, "%s%s", i > 1 ? ", " : "",
								 column_name(table, i));
			appendStringInfoString(&sql, ") VALUES (");
			for (int i = 1; i <= table->natts; i++)
				appendStringInfo(&sql, "%s$%d", i > 1 ? ", " : "", i);
			appendStringInfoChar(&sql, ')');
			break;
		case STMT_UPDATE:
			appendStringInfo(&sql, "UPDATE ONLY %s SET ", relation);
			for (int i = table->nkeys + 1; i <= table->natts; i++)
				appendStringInfo(&sql, "%s%s = $%d",
								 i > table->nkeys + 1 ? ", " : "",
								 column_name(table, i), i);
			append_key(&sql, table);
			break;
		case STMT_DELETE:
			appendStringInfo(&sql, "DELETE FROM ONLY %s", relation);
			append_key(&sql, table);
			break;
		case STMT_FIND:
			appendStringInfo(&sql, "SELECT ctid FROM ONLY %s", relation);
			append_key(&sql, table);
			break;
		case STMT_LOCK:
		case STMT_LOCK_NOWAIT:
		case STMT_LOCK_TO_DELETE:
		case STMT_LOCK_TO_DELETE_NOWAIT:
			appendStringInfo(&sql, "SELECT ctid FROM ONLY %s", relation);
			append_key(&sql, table);
			appendStringInfo(&sql, " FOR %sUPDATE%s",
							 kind >= STMT_LOCK_TO_DELETE ? "" : "NO KEY ",
							 kind == STMT_LOCK || kind == STMT_LOCK_TO_DELETE ?
							 "" : " SKIP LOCKED");
			break;
	}
	return sql.data;
}

/* Get a prepared statement.  SPI must be connected. */
static SPIPlanPtr
get_statement(OutboxTable *table, StatementKind kind)
{
	StatementKey key;
	Statement  *statement;
	bool		found;

	memset(&key, 0, sizeof(key));
	key.relid = target(table);
	key.kind = kind;
	if (statements == NULL)
	{
		HASHCTL		ctl;

		memset(&ctl, 0, sizeof(ctl));
		ctl.keysize = sizeof(StatementKey);
		ctl.entrysize = sizeof(Statement);
		ctl.hcxt = TopMemoryContext;
		statements = hash_create("outbox statements", 32, &ctl,
								 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	statement = hash_search(statements, &key, HASH_FIND, NULL);
	if (statement == NULL)
	{
		bool		whole = kind == STMT_INSERT || kind == STMT_UPDATE;
		int			nargs = whole ? table->natts : table->nkeys;
		Oid		   *types = palloc_array(Oid, nargs);
		SPIPlanPtr	plan;

		for (int i = 0; i < nargs; i++)
			types[i] = TupleDescAttr(RelationGetDescr(table->rel), i)->atttypid;
		plan = SPI_prepare(statement_text(table, kind), nargs, types);
		if (plan == NULL)
			elog(ERROR, "could not prepare a statement: %s",
				 SPI_result_code_string(SPI_result));
		SPI_keepplan(plan);
		statement = hash_search(statements, &key, HASH_ENTER, &found);
		statement->plan = plan;
	}
	return statement->plan;
}

/*
 * Run a statement with the row's values; returns how many rows it processed.
 */
static uint64
run_row_statement(OutboxTable *table, StatementKind kind, TupleTableSlot *row,
				  int nargs)
{
	SPIPlanPtr	plan = get_statement(table, kind);
	char	   *nulls = palloc(nargs + 1);
	volatile int result = 0;

	slot_getallattrs(row);
	for (int i = 0; i < nargs; i++)
		nulls[i] = row->tts_isnull[i] ? 'n' : ' ';
	nulls[nargs] = '\0';
	nrunning++;
	PG_TRY();
	{
		result = SPI_execute_plan(plan, row->tts_values, nulls, false, 0);
	}
	PG_FINALLY();
	{
		nrunning--;
	}
	PG_END_TRY();
	if (result < 0)
		elog(ERROR, "could not run a statement: %s",
			 SPI_result_code_string(result));
	return SPI_processed;
}

/* Why a statement may have found no row. */
typedef enum Unseen
{
	UNSEEN_GONE,				/* the row is not as it was read */
	UNSEEN_TOO_NEW,				/* for the transaction's snapshot */
	UNSEEN_HIDDEN				/* it exists: a policy hides it, or it is
								 * locked */
} Unseen;

static Unseen
why_not_seen(OutboxTable *table, TupleTableSlot *old)
{
	TupleTableSlot *slot = outbox_table_slot(table);
	SnapshotData dirty;
	Unseen		result = UNSEEN_HIDDEN;

	InitDirtySnapshot(dirty);
	if (!table_tuple_fetch_row_version(table->rel, &old->tts_tid, &dirty, slot) ||
		TransactionIdIsValid(outbox_row_writer(&dirty)))
		result = UNSEEN_GONE;
	else if (IsolationUsesXactSnapshot() &&
			 !table_tuple_satisfies_snapshot(table->rel, slot,
											 GetTransactionSnapshot()))
		result = UNSEEN_TOO_NEW;
	ExecDropSingleTupleTableSlot(slot);
	return result;
}

/*
 * Determine why a statement could not lock the row.  If the statement did not
 * wait, another transaction may have locked it; or it is no longer the version
 * that was read; or it is invisible to the caller.
 */
static OutboxRowResult
why_not_locked(OutboxTable *table, TupleTableSlot *old, bool wait)
{
	switch (why_not_seen(table, old))
	{
		case UNSEEN_GONE:
			return OUTBOX_ROW_GONE;
		case UNSEEN_TOO_NEW:
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("could not serialize access due to concurrent update")));
			break;
		case UNSEEN_HIDDEN:
			break;
	}
	return !wait && run_row_statement(table, STMT_FIND, old, table->nkeys) > 0 ?
		OUTBOX_ROW_LOCKED : OUTBOX_ROW_REFUSED;
}

/* Lock the row, if it is still the version that was read. */
static OutboxRowResult
lock_unchanged_row(OutboxTable *table, StatementKind kind, TupleTableSlot *old,
				   bool wait, TransactionId *blocker)
{
	ItemPointer tid;
	bool		isnull;

	/* the next kind does not wait */
	if (blocker != NULL)
		*blocker = InvalidTransactionId;
	if (run_row_statement(table, wait ? kind : kind + 1, old, table->nkeys) == 0)
		return why_not_locked(table, old, wait);
	tid = (ItemPointer) DatumGetPointer(SPI_getbinval(SPI_tuptable->vals[0],
													  SPI_tuptable->tupdesc,
													  1, &isnull));
	return ItemPointerEquals(tid, &old->tts_tid) ?
		OUTBOX_ROW_OK : OUTBOX_ROW_GONE;
}

/*
 * Is one of our statements running, so that it has fired the current trigger?
 */
bool
outbox_sql_is_running(void)
{
	return nrunning > 0;
}

/* The caller's state while a statement runs as another role. */
typedef struct Caller
{
	Oid			user;
	int			context;
	int			nestlevel;
} Caller;

static void
set_for_owner(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
}

/*
 * Connect to SPI, and become the role that writes the table.  An error undoes
 * this with the transaction.
 */
static void
begin_statements(OutboxTable *table, Caller *caller)
{
	if (OidIsValid(table->as_role))
	{
		GetUserIdAndSecContext(&caller->user, &caller->context);
		SetUserIdAndSecContext(table->as_role,
							   caller->context | SECURITY_LOCAL_USERID_CHANGE);
		caller->nestlevel = NewGUCNestLevel();
		set_for_owner("search_path", "pg_catalog, pg_temp");
		set_for_owner("row_security", "on");
	}
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
}

static void
end_statements(OutboxTable *table, const Caller *caller)
{
	if (SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "could not disconnect from SPI");
	if (OidIsValid(table->as_role))
	{
		AtEOXact_GUC(true, caller->nestlevel);
		SetUserIdAndSecContext(caller->user, caller->context);
	}
}

/* outbox_table_insert for a table that is written by SQL. */
void
outbox_sql_insert(OutboxTable *table, TupleTableSlot *row)
{
	Caller		caller;

	begin_statements(table, &caller);
	run_row_statement(table, STMT_INSERT, row, table->natts);
	end_statements(table, &caller);
}

/* outbox_table_update for a table that is written by SQL. */
OutboxRowResult
outbox_sql_update(OutboxTable *table, TupleTableSlot *old,
				  TupleTableSlot *row, bool wait, TransactionId *blocker)
{
	OutboxRowResult result;
	Caller		caller;

	Assert(!OidIsValid(table->parent));
	begin_statements(table, &caller);
	result = lock_unchanged_row(table, STMT_LOCK, old, wait, blocker);
	if (result == OUTBOX_ROW_OK &&
		run_row_statement(table, STMT_UPDATE, row, table->natts) == 0)
		result = OUTBOX_ROW_REFUSED;
	end_statements(table, &caller);
	return result;
}

/* outbox_table_delete for a table that is written by SQL. */
OutboxRowResult
outbox_sql_delete(OutboxTable *table, TupleTableSlot *old, bool wait,
				  TransactionId *blocker)
{
	OutboxRowResult result;
	Caller		caller;

	Assert(!OidIsValid(table->parent));
	begin_statements(table, &caller);
	result = lock_unchanged_row(table, STMT_LOCK_TO_DELETE, old, wait, blocker);
	if (result == OUTBOX_ROW_OK &&
		run_row_statement(table, STMT_DELETE, old, table->nkeys) == 0)
		result = OUTBOX_ROW_REFUSED;
	end_statements(table, &caller);
	return result;
}
