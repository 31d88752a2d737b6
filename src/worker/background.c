/*
 * background.c
 *	  The common part of background processes: registration, settings and
 *	  transactions.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "executor/spi.h"
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
#include "util/guc.h"
#include "worker/background.h"

/* The extension's own work never waits longer than this for a lock. */
#define OWN_LOCK_TIMEOUT "1s"

/*
 * Offset in bgw_extra of the version of the library that has started a
 * process.  This never changes; what precedes it depends on the version.
 */
#define VERSION_PLACE (BGW_EXTRALEN - 32)

/*
 * Fill in the description of a background process that connects to a database,
 * or to the shared catalogs, and is not restarted automatically.  Its name is
 * its type, which the caller may replace.
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
	strlcpy(worker->bgw_extra + VERSION_PLACE, outbox_version,
			BGW_EXTRALEN - VERSION_PLACE);
}

/*
 * Raise an error if this process has loaded another version of the library
 * than the session that has started it, which is possible without preloading,
 * and in which case it could not interpret what that session has left for it.
 */
void
outbox_background_require_version(void)
{
	const char *version = MyBgworkerEntry->bgw_extra + VERSION_PLACE;

	if (strcmp(version, outbox_version) != 0)
		ereport(FATAL,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the library of outbox is of version %s, but the session that has started this process uses version %s",
						outbox_version, version),
				 errhint("Connect again, so that the session loads the library that is installed.")));
}

/*
 * Signal handler: terminate the process.  While it works that is an error, as
 * usual.
 */
static void
handle_sigterm(SIGNAL_ARGS)
{
	ShutdownRequestPending = true;
	die(postgres_signal_arg);
}

/* Set up signal handlers; must be called at the beginning of the process. */
void
outbox_background_accept_signals(void)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, handle_sigterm);
	BackgroundWorkerUnblockSignals();
}

/*
 * Process interrupts between two pieces of work.  Termination here, as at each
 * shutdown of the server, is not an error, and the server logs it anyway.
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

/* Commit the transaction that outbox_background_begin has begun. */
void
outbox_background_commit(void)
{
	Assert(ActiveSnapshotSet());
	PopActiveSnapshot();
	CommitTransactionCommand();
	pgstat_report_stat(false);
}

/* Abort the transaction, if there is one, after an error was caught. */
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
 * Run a statement that returns one number, in a transaction, with the
 * extension held.
 */
int64
outbox_background_number(const char *sql)
{
	bool		isnull;
	int64		result;

	pgstat_report_activity(STATE_RUNNING, sql);
	outbox_background_begin();
	outbox_background_hold_extension();
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	if (SPI_execute(sql, false, 1) != SPI_OK_SELECT || SPI_processed != 1)
		elog(ERROR, "could not run \"%s\"", sql);
	result = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0],
										 SPI_tuptable->tupdesc, 1, &isnull));
	SPI_finish();
	outbox_background_commit();
	pgstat_report_activity(STATE_IDLE, NULL);
	return result;
}

/*
 * Keep the extension from being dropped until the end of the transaction, so
 * that a schema with its name is the extension's.  An error if it does not
 * exist.
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
				 errmsg("extension \"outbox\" is not installed in this database")));
}

/*
 * Pin settings that must not depend on the database or the role, including the
 * role itself: roleid, or, if that is invalid, the owner of the cluster.
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
		{"outbox.traceparent", ""},
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
	/* remember the name for log messages between transactions */
	(void) outbox_background_database();
	outbox_background_commit();
}

/* The name of the database of this process, for the log. */
const char *
outbox_background_database(void)
{
	/* it can be renamed, but not while we are there */
	if (outbox_log_database == NULL && IsTransactionState())
	{
		char	   *name = get_database_name(MyDatabaseId);

		if (name != NULL)
			outbox_log_database = MemoryContextStrdup(TopMemoryContext, name);
	}
	return outbox_log_database != NULL ? outbox_log_database : "?";
}

/* Has the extension been dropped concurrently?  Then errors are not logged. */
bool
outbox_background_extension_is_gone(void)
{
	bool		gone;

	outbox_background_begin();
	gone = !OidIsValid(get_extension_oid(OUTBOX_EXTENSION, true));
	(void) outbox_background_database();
	outbox_background_commit();
	return gone;
}
