/*
 * background.c
 *	  What background processes have in common: how the server is told of
 *	  them, and their transactions.
 */
#include "postgres.h"

#include "access/xact.h"
#include "pgstat.h"
#include "utils/snapmgr.h"

#include "worker/background.h"

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
