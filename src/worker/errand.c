/*
 * errand.c
 *	  Running a statement in the database of pg_cron.
 *
 * pg_cron can be called only in its own database.  So a background process
 * connects there, as the session user or as the owner of the extension, runs
 * the statement, and leaves the error, if there was one, in a segment of
 * shared memory.  The process commits before the caller goes on.
 *
 * It does nothing unless pg_cron is installed: otherwise the schema "cron",
 * and any function in it, could belong to any user.
 */
#include "postgres.h"

#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "compat.h"
#include "worker/background.h"
#include "worker/errand.h"

/* A statement to run, and its result. */
typedef struct Errand
{
	Oid			dbid;
	Oid			roleid;
	bool		done;
	int			sqlerrcode;
	char		message[8192];	/* has room for the report of _cron_report */
	char		hint[256];
	char		statement[FLEXIBLE_ARRAY_MEMBER];
} Errand;

/* Copy a message, truncated at a character boundary if it is too long. */
static void
copy_text(char *to, size_t size, const char *from)
{
	int			len = pg_mbcliplen(from, strlen(from), size - 1);

	memcpy(to, from, len);
	to[len] = '\0';
}

static void
run_statement(Errand *errand)
{
	SetConfigOption("search_path", "pg_catalog, pg_temp", PGC_SUSET, PGC_S_OVERRIDE);
	outbox_background_begin();
	if (!OidIsValid(get_extension_oid("pg_cron", true)))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("pg_cron is not installed"),
				 errhint("Run CREATE EXTENSION pg_cron there, as a superuser.")));
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	pgstat_report_activity(STATE_RUNNING, errand->statement);
	if (SPI_execute(errand->statement, false, 0) < 0)
		elog(ERROR, "could not run a statement");
	SPI_finish();
	outbox_background_commit();
	errand->done = true;
}

/* Main function of the background process. */
void
outbox_errand_main(Datum arg)
{
	dsm_segment *segment;
	Errand	   *errand;

	outbox_background_require_version();
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	segment = dsm_attach(DatumGetUInt32(arg));
	if (segment == NULL)
		proc_exit(0);
	errand = dsm_segment_address(segment);
	dsm_pin_mapping(segment);
	PG_TRY();
	{
		BackgroundWorkerInitializeConnectionByOid(errand->dbid, errand->roleid,
												  OUTBOX_BGWORKER_ANY_ROLE);
		run_statement(errand);
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(TopMemoryContext);
		edata = CopyErrorData();
		FlushErrorState();
		errand->sqlerrcode = edata->sqlerrcode;
		copy_text(errand->message, sizeof(errand->message), edata->message);
		if (edata->hint != NULL)
			copy_text(errand->hint, sizeof(errand->hint), edata->hint);
	}
	PG_END_TRY();
	proc_exit(0);
}

/* Start the process, and wait for its end. */
static void
send_worker(dsm_segment *segment)
{
	BackgroundWorkerHandle *handle;
	BackgroundWorker worker;

	outbox_background_describe(&worker, "outbox errand", "outbox_errand_main");
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_notify_pid = MyProcPid;
	worker.bgw_main_arg = UInt32GetDatum(dsm_segment_handle(segment));
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("could not register background process"),
				 errhint("You may need to increase max_worker_processes.")));
	if (WaitForBackgroundWorkerShutdown(handle) == BGWH_POSTMASTER_DIED)
		ereport(FATAL,
				(errcode(ERRCODE_ADMIN_SHUTDOWN),
				 errmsg("cannot start background processes without postmaster")));
}

/*
 * Run a statement in another database, as a role; an error there is raised
 * here.  It is committed there whatever happens to the caller's transaction.
 */
void
outbox_errand_run(const char *database, Oid roleid, const char *statement)
{
	Size		size = offsetof(Errand, statement) + strlen(statement) + 1;
	dsm_segment *segment = dsm_create(size, 0);
	Errand	   *errand = dsm_segment_address(segment);

	memset(errand, 0, size);
	errand->dbid = get_database_oid(database, false);
	errand->roleid = roleid;
	strcpy(errand->statement, statement);
	send_worker(segment);
	if (!errand->done)
		ereport(ERROR,
				(errcode(errand->sqlerrcode != 0 ? errand->sqlerrcode :
						 ERRCODE_CONNECTION_FAILURE),
				 errmsg("in database \"%s\": %s", database,
						errand->message[0] != '\0' ? errand->message :
						"the background process has ended; see the server log"),
				 errand->hint[0] != '\0' ? errhint("%s", errand->hint) : 0));
	dsm_detach(segment);
}
