/*
 * background.c
 *	  What background processes have in common: how the server is told of
 *	  them, and their transactions.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "outbox.h"
#include "table/catalog.h"
#include "worker/background.h"

/* The extension's own work never waits for a lock for longer. */
#define OWN_LOCK_TIMEOUT "1s"

/*
 * A process of ours that is connected to a database, or at least to the
 * shared catalogs, and is not started again by itself.  It is called by its
 * type, unless the caller has a better name for it.
 */
void
outbox_background_describe(BackgroundWorker *worker, const char *type,
						   const char *function)
{
	memset(worker, 0, sizeof(BackgroundWorker));
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker->bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker->bgw_library_name, "outbox", BGW_MAXLEN);
	strlcpy(worker->bgw_function_name, function, BGW_MAXLEN);
	strlcpy(worker->bgw_name, type, BGW_MAXLEN);
	strlcpy(worker->bgw_type, type, BGW_MAXLEN);
}

/* The process is to end.  In the middle of its work that is an error, as usual. */
static void
handle_sigterm(SIGNAL_ARGS)
{
	ShutdownRequestPending = true;
	die(postgres_signal_arg);
}

/* Accept signals, from the beginning of the process on. */
void
outbox_background_accept_signals(void)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, handle_sigterm);
	BackgroundWorkerUnblockSignals();
}

/*
 * Handle interrupts between two pieces of work.  To end there, as at each shutdown of
 * the server, is no error, and the server has a line in the log for it anyway.
 */
void
outbox_background_check_for_interrupts(void)
{
	Assert(!IsTransactionState());
	if (ShutdownRequestPending)
		proc_exit(1);
	CHECK_FOR_INTERRUPTS();
}

/* Begin a transaction, with a snapshot. */
void
outbox_background_begin(void)
{
	Assert(!IsTransactionState());
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
}

void
outbox_background_commit(void)
{
	Assert(ActiveSnapshotSet());
	PopActiveSnapshot();
	CommitTransactionCommand();
	pgstat_report_stat(false);
}

/* After an error was caught: end whatever transaction there is. */
void
outbox_background_abort(void)
{
	HOLD_INTERRUPTS();
	QueryCancelPending = false;
	AbortOutOfAnyTransaction();
	FlushErrorState();
	RESUME_INTERRUPTS();
	pgstat_report_activity(STATE_IDLE, NULL);
}

/*
 * Until the end of this transaction the extension cannot be dropped, so a schema
 * of its name is the extension's.  An error if it is not there.
 */
void
outbox_background_hold_extension(void)
{
	Oid			table = outbox_store(OUTBOX_QUEUE)->table;
	Oid			extension;

	LockRelationOid(table, AccessShareLock);
	extension = get_extension_oid(OUTBOX_EXTENSION, true);
	if (!OidIsValid(extension) ||
		getExtensionOfObject(RelationRelationId, table) != extension)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"outbox\" is not there")));
}

/*
 * Settings that must not depend on what the database or the role has.  First of
 * all, who we are: roleid, or with an invalid one, the owner of the cluster.
 */
void
outbox_background_pin(Oid roleid)
{
	static const char *const pinned[][2] = {
		{"role", "none"},
		{"search_path", "pg_catalog, pg_temp"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_deferrable", "off"},
		{"statement_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"session_replication_role", "origin"},
#if PG_VERSION_NUM >= 170000
		{"transaction_timeout", "0"},
#endif
		{"row_security", "on"},
		{"standard_conforming_strings", "on"},
		{"transform_null_equals", "off"},
		{"array_nulls", "on"},
		{"quote_all_identifiers", "off"},
		{"datestyle", "ISO, MDY"},
		{"intervalstyle", "postgres"},
		{"default_tablespace", ""},
		{"default_table_access_method", "heap"},
		{"zero_damaged_pages", "off"},
	};
	char	   *user;

	outbox_background_begin();
	user = GetUserNameFromId(OidIsValid(roleid) ? roleid : BOOTSTRAP_SUPERUSERID,
							 false);
	SetConfigOption("session_authorization", user, PGC_SUSET, PGC_S_OVERRIDE);
	for (int i = 0; i < lengthof(pinned); i++)
		SetConfigOption(pinned[i][0], pinned[i][1], PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("lock_timeout", OidIsValid(roleid) ? "0" : OWN_LOCK_TIMEOUT,
					PGC_SUSET, PGC_S_OVERRIDE);
	/* what is logged between two transactions has the name, too */
	(void) outbox_background_database();
	outbox_background_commit();
}

/* The name of the database that we are in, for the log. */
const char *
outbox_background_database(void)
{
	static char *name = NULL;
	char	   *found;

	/* it can be renamed, but not while we are there */
	if (name != NULL || !IsTransactionState())
		return name != NULL ? name : "?";
	found = get_database_name(MyDatabaseId);
	if (found != NULL)
		name = MemoryContextStrdup(TopMemoryContext, found);
	return name != NULL ? name : "?";
}
