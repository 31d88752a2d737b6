/*
 * handler_run.c
 *	  Running the functions that handle messages inside the database.
 *
 * A function runs with the rights of the role that has registered it, each
 * message in a subtransaction, and its message is acknowledged in the same
 * transaction: so what it writes and the end of the message are one.  If it
 * raises an error, what it wrote is undone, and the message is handed back.
 *
 * A worker that runs handlers is connected as their role, and first commits
 * the claim, then handles what it has: so an attempt counts even if it takes
 * the server down.  Where that transaction cannot commit, each message gets
 * one of its own, to find which it was.
 *
 * By hand, all is one transaction of the caller, and the function runs under
 * a restricted identity, as in index expressions.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/regproc.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "core/claim.h"
#include "core/settle.h"
#include "outbox.h"
#include "queue/handler.h"
#include "queue/message.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/table.h"
#include "worker/background.h"
#include "worker/handler_run.h"

/* Messages whose function is gone are looked at again after this time. */
#define VANISHED_DELAY_MS 30000

/* A message to be handled. */
typedef struct Task
{
	int64		id;
	int			attempts;
	bool		suspect;		/* an attempt has ended without a word */
	Datum		message;
} Task;

typedef struct Tasks
{
	MemoryContext context;
	pg_uuid_t	owner;
	int			lease_seconds;
	List	   *list;
} Tasks;

/* ---------------------------------------------------------------------- */
/* Claiming                                                               */
/* ---------------------------------------------------------------------- */

static void
add_task(TupleTableSlot *message, bool taken_over, void *arg)
{
	Tasks	   *tasks = arg;
	MemoryContext old = MemoryContextSwitchTo(tasks->context);
	Task	   *task = palloc_object(Task);

	task->id = DatumGetInt64(outbox_row_get(message, Q_ID));
	task->attempts = DatumGetInt32(outbox_row_get(message, Q_ATTEMPTS));
	task->suspect = task->attempts -
		DatumGetInt32(outbox_row_get(message, Q_WAIVED)) - 1 >
		DatumGetInt32(outbox_row_get(message, Q_RETRY_COUNT));
	task->message = outbox_message_datum(message);
	tasks->list = lappend(tasks->list, task);
	MemoryContextSwitchTo(old);
}

static void
claim_tasks(const OutboxHandler *handler, Tasks *tasks)
{
	const text *topic = handler->topic;
	OutboxClaim claim = {
		.store = outbox_store(OUTBOX_QUEUE),
		.lease_seconds = handler->lease_seconds,
		.batch_size = handler->batch_size,
		.namespace = handler->namespace,
		.topics = &topic,
		.ntopics = 1
	};

	tasks->owner = *DatumGetUUIDP(DirectFunctionCall1(gen_random_uuid, (Datum) 0));
	claim.owner = tasks->owner;
	tasks->lease_seconds = handler->lease_seconds;
	tasks->list = NIL;
	(void) outbox_claim(&claim, add_task, tasks, NULL);
}

/* ---------------------------------------------------------------------- */
/* Settling                                                               */
/* ---------------------------------------------------------------------- */

static bool
settle(const Tasks *tasks, const Task *task, OutboxSettlement what,
	   const text *error, const TimestampTz *not_before)
{
	OutboxLeaseRef lease = {.id = task->id,.attempts = task->attempts};
	OutboxSettle how = {
		.store = outbox_store(OUTBOX_QUEUE),
		.what = what,
		.owner = tasks->owner,
		.nleases = 1,
		.leases = &lease,
		.reason = OUTBOX_REASON_UNKNOWN,
		.error = error,
		.lease_seconds = tasks->lease_seconds,
		.not_before = not_before
	};

	return outbox_settle(&how) > 0;
}

/* The function is gone, or may not be called any more: put all back. */
static void
put_back(const OutboxHandler *handler, const Tasks *tasks)
{
	TimestampTz at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												 VANISHED_DELAY_MS);
	ListCell   *lc;

	ereport(WARNING,
			(errcode(ERRCODE_UNDEFINED_FUNCTION),
			 errmsg("handler \"%s\" of topic \"%s\" cannot be called in database \"%s\"",
					handler->function, text_to_cstring(handler->topic),
					get_database_name(MyDatabaseId)),
			 errhint("Create the function, grant EXECUTE on it to role \"%s\", or call outbox.unregister_handler.",
					 handler->role)));
	foreach(lc, tasks->list)
		(void) settle(tasks, lfirst(lc), OUTBOX_RELEASE, NULL, &at);
}

/* ---------------------------------------------------------------------- */
/* Running                                                                */
/* ---------------------------------------------------------------------- */

/* The function; invalid if it is gone or the role may not call it. */
static Oid
find_function(const OutboxHandler *handler, Oid roleid)
{
	LOCAL_FCINFO(fcinfo, 1);
	Oid			function;

	InitFunctionCallInfoData(*fcinfo, NULL, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = CStringGetTextDatum(handler->function);
	fcinfo->args[0].isnull = false;
	function = DatumGetObjectId(to_regprocedure(fcinfo));
	if (fcinfo->isnull || !outbox_handler_role_allowed(roleid) ||
		!outbox_function_may_be_called(function, roleid))
		return InvalidOid;
	return function;
}

static void
call_function(Oid function, Datum message)
{
	LOCAL_FCINFO(fcinfo, 1);
	FmgrInfo	flinfo;

	fmgr_info(function, &flinfo);
	InitFunctionCallInfoData(*fcinfo, &flinfo, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = message;
	fcinfo->args[0].isnull = false;
	(void) FunctionCallInvoke(fcinfo);
}

/* Say what went wrong, but not what the message or its data was. */
static text *
report_failure(const OutboxHandler *handler, const Task *task,
			   const ErrorData *edata)
{
	ereport(LOG,
			(errcode(edata->sqlerrcode),
			 errmsg("handler \"%s\" of topic \"%s\" in database \"%s\" has failed for message " INT64_FORMAT ", attempt %d, SQLSTATE %s",
					handler->function, text_to_cstring(handler->topic),
					get_database_name(MyDatabaseId), task->id, task->attempts,
					unpack_sql_state(edata->sqlerrcode)),
			 errhidestmt(true), errhidecontext(true)));
	return cstring_to_text(edata->message != NULL ? edata->message : "error");
}

/*
 * Call the function for one message, in a subtransaction; NULL if that went
 * well, else what went wrong.
 */
static text *
try_function(const OutboxHandler *handler, Oid function, Oid roleid,
			 const Task *task)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	Oid			save_userid;
	int			save_sec_context;
	int			save_nestlevel;
	text	   *volatile error = NULL;

	GetUserIdAndSecContext(&save_userid, &save_sec_context);
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	/* what it sets is not to outlive it */
	save_nestlevel = NewGUCNestLevel();
	PG_TRY();
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		if (roleid != save_userid)
			SetUserIdAndSecContext(roleid, save_sec_context |
								   SECURITY_LOCAL_USERID_CHANGE |
								   SECURITY_RESTRICTED_OPERATION);
		call_function(function, task->message);
		AtEOXact_GUC(false, save_nestlevel);
		SetUserIdAndSecContext(save_userid, save_sec_context);
		PopActiveSnapshot();
		ReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		/* somebody wants us to stop: that is not the handler's failure */
		if (edata->sqlerrcode == ERRCODE_QUERY_CANCELED)
			ReThrowError(edata);
		error = report_failure(handler, task, edata);
		FreeErrorData(edata);
	}
	PG_END_TRY();
	return error;
}

static void
handle_task(const OutboxHandler *handler, Oid function, Oid roleid,
			const Tasks *tasks, const Task *task)
{
	text	   *error;

	/*
	 * From here on the row is locked, so nobody takes the message, however
	 * long the function runs.  If somebody has done so already, or if it has
	 * to wait because one before it in its stream has failed, it is not ours.
	 */
	if (!settle(tasks, task, OUTBOX_RENEW, NULL, NULL))
		return;
	error = try_function(handler, function, roleid, task);
	(void) settle(tasks, task, error == NULL ? OUTBOX_ACK : OUTBOX_NACK, error,
				  NULL);
}

/* Handle what was claimed, in the current transaction. */
static void
handle_tasks(const OutboxHandler *handler, Oid roleid, const Tasks *tasks)
{
	Oid			function = find_function(handler, roleid);
	ListCell   *lc;

	if (!OidIsValid(function))
	{
		put_back(handler, tasks);
		return;
	}
	foreach(lc, tasks->list)
	{
		CHECK_FOR_INTERRUPTS();
		handle_task(handler, function, roleid, tasks, lfirst(lc));
	}
}

/* ---------------------------------------------------------------------- */
/* By hand                                                                */
/* ---------------------------------------------------------------------- */

/* One batch, in the caller's transaction; how many messages that was. */
int
outbox_handler_run_here(const OutboxHandler *handler, Oid roleid)
{
	Tasks		tasks = {.context = CurrentMemoryContext};

	claim_tasks(handler, &tasks);
	if (tasks.list != NIL)
		handle_tasks(handler, roleid, &tasks);
	return list_length(tasks.list);
}

/* ---------------------------------------------------------------------- */
/* In a worker                                                            */
/* ---------------------------------------------------------------------- */

/*
 * Handle some messages in a transaction of their own.  False if it could not
 * be committed: then nothing was done, and the error is told.
 */
static bool
try_transaction(const OutboxHandler *handler, const Tasks *tasks,
				ErrorData **error)
{
	volatile bool done = false;

	PG_TRY();
	{
		outbox_background_begin();
		handle_tasks(handler, GetUserId(), tasks);
		outbox_background_commit();
		done = true;
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(tasks->context);
		*error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		MemoryContextSwitchTo(tasks->context);
	}
	PG_END_TRY();
	return done;
}

/* One by one, because together they could not be committed. */
static void
handle_singly(const OutboxHandler *handler, const Tasks *tasks)
{
	ListCell   *lc;

	foreach(lc, tasks->list)
	{
		Tasks		one = *tasks;
		ErrorData  *edata;

		CHECK_FOR_INTERRUPTS();
		MemoryContextSwitchTo(tasks->context);
		one.list = list_make1(lfirst(lc));
		if (!try_transaction(handler, &one, &edata))
		{
			outbox_background_begin();
			(void) settle(&one, lfirst(lc), OUTBOX_NACK,
						  report_failure(handler, lfirst(lc), edata), NULL);
			outbox_background_commit();
		}
	}
}

/*
 * A message that may have taken its worker down is not to take others with
 * it: it is handled alone.
 */
static void
set_apart_suspects(Tasks *tasks)
{
	List	   *kept = NIL;
	ListCell   *lc;

	foreach(lc, tasks->list)
	{
		Task	   *task = lfirst(lc);
		bool		alone;
		MemoryContext old;

		alone = kept != NIL &&
			(task->suspect || ((Task *) linitial(kept))->suspect);
		/* all that follows, to keep the order of streams */
		if (alone || foreach_current_index(lc) > list_length(kept))
		{
			(void) settle(tasks, task, OUTBOX_RELEASE, NULL, NULL);
			continue;
		}
		old = MemoryContextSwitchTo(tasks->context);
		kept = lappend(kept, task);
		MemoryContextSwitchTo(old);
	}
	tasks->list = kept;
}

/*
 * One batch, in transactions of our own: a worker's, connected as the role.
 * How many messages that was.
 */
int
outbox_handler_run(const OutboxHandler *handler)
{
	MemoryContext caller = CurrentMemoryContext;
	Tasks		tasks;
	ErrorData  *edata;
	int			n;

	tasks.context = AllocSetContextCreate(TopMemoryContext, "outbox handler",
										  ALLOCSET_DEFAULT_SIZES);
	outbox_background_begin();
	claim_tasks(handler, &tasks);
	set_apart_suspects(&tasks);
	outbox_background_commit();
	n = list_length(tasks.list);
	if (n == 1 || (n > 1 && !try_transaction(handler, &tasks, &edata)))
		handle_singly(handler, &tasks);
	/* since PostgreSQL 18, a transaction ends in the context it began in */
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(tasks.context);
	return n;
}
