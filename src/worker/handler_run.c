/*
 * handler_run.c
 *	  Running the functions that handle messages inside the database.
 *
 * This is done only in a background process that is connected as the role that
 * has registered the handler, and that does nothing else: so what a function
 * leaves behind in the session affects only handlers of the same role.
 *
 *	transaction 1	claims a batch: an attempt counts from here on, even if it
 *					takes the server down
 *	transaction 2	for up to TRANSACTION_MESSAGES of them: renews the lease, which
 *					locks the row, and calls the function in a subtransaction;
 *					at the end all are acknowledged, or handed back, in one call
 *	...				until all of the batch are through
 *
 * So the changes of a function and the end of its message are atomic.  Joins
 * are changed only by that call at the end, and it does not wait for them
 * (what it cannot count is left to the worker), so user code never runs with a
 * join locked.
 *
 * A message that fails in a transaction with others is tried once more in a
 * transaction of its own, before its attempt counts, because the others may be
 * the cause; so are all, if their transaction cannot be committed.  One that
 * takes too long is not tried again.
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "core/cause.h"
#include "core/claim.h"
#include "core/settle.h"
#include "outbox.h"
#include "queue/count.h"
#include "queue/handler.h"
#include "queue/message.h"
#include "queue/stream.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/table.h"
#include "util/guc.h"
#include "util/uuid.h"
#include "worker/background.h"
#include "worker/handler_run.h"

/*
 * Each call takes a subtransaction; more than 64 of them would slow down all
 * snapshots of the server.
 */
#define TRANSACTION_MESSAGES 32

/*
 * A function that has caught the cancellation is cancelled again after this
 * time ...
 */
#define CANCEL_AGAIN_MS 1000

/* ... and so many times; then its process is terminated. */
#define CANCELS 5

typedef enum TaskState
{
	TASK_NEW,
	TASK_DONE,
	TASK_FAILED,
	TASK_AGAIN,					/* failed together with others: try it alone */
	TASK_LOST					/* no longer leased to us */
} TaskState;

/* A message to handle. */
typedef struct Task
{
	int64		id;
	int			attempts;
	bool		suspect;		/* an attempt has ended without ack or nack */
	bool		has_stream;
	pg_uuid_t	stream;
	pg_uuid_t	message_id;
	char	   *traceparent;	/* NULL: it belongs to no trace */
	text	   *topic;
	Datum		message;
	TaskState	state;
	text	   *error;
} Task;

/* A batch. */
typedef struct Tasks
{
	MemoryContext context;
	const OutboxHandler *handler;
	Oid			function;
	pg_uuid_t	owner;
	List	   *list;
} Tasks;

/* ---------------------------------------------------------------------- */
/* The time limit                                                         */
/* ---------------------------------------------------------------------- */

static TimeoutId limit_timeout;
static volatile sig_atomic_t times_over = 0;

/*
 * Timeout handler: cancel the function, and terminate the process if that does
 * not help.
 */
static void
time_is_over(void)
{
	if (++times_over > CANCELS)
		ProcDiePending = true;
	else
		QueryCancelPending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
}

static int
limit_of(const OutboxHandler *handler)
{
	return handler->timeout_ms > 0 ? handler->timeout_ms : outbox_handler_timeout;
}

static void
begin_limit(const OutboxHandler *handler)
{
	static bool registered = false;
	int			ms = limit_of(handler);

	if (!registered)
		limit_timeout = RegisterTimeout(USER_TIMEOUT, time_is_over);
	registered = true;
	times_over = 0;
	if (ms > 0)
		enable_timeout_every(limit_timeout,
							 TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ms),
							 CANCEL_AGAIN_MS);
}

/* End the time limit; returns whether the time was over. */
static bool
end_limit(void)
{
	disable_timeout(limit_timeout, false);
	/* the cancellation came too late to have an effect */
	if (times_over > 0)
		QueryCancelPending = false;
	return times_over > 0;
}

/* ---------------------------------------------------------------------- */
/* Claiming                                                               */
/* ---------------------------------------------------------------------- */

/*
 * A handler, identified by its lane, whose messages are claimed one at a time,
 * and for how many more: a message may have crashed its worker, and this must
 * not cost other messages attempts.
 */
typedef struct Caution
{
	int64		lane;
	int			n;
} Caution;

static List *cautions = NIL;

static Caution *
find_caution(int64 lane)
{
	ListCell   *lc;

	foreach(lc, cautions)
	{
		Caution    *caution = lfirst(lc);

		if (caution->lane == lane)
			return caution;
	}
	return NULL;
}

static void
be_cautious(int64 lane, int n)
{
	Caution    *caution = find_caution(lane);

	if (caution == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		caution = palloc0_object(Caution);
		caution->lane = lane;
		cautions = lappend(cautions, caution);
		MemoryContextSwitchTo(old);
	}
	caution->n = Max(caution->n, n);
}

static int
size_of_batch(const OutboxHandler *handler)
{
	Caution    *caution = find_caution(handler->lane);

	if (caution == NULL)
		return handler->batch_size;
	if (--caution->n < 0)
	{
		cautions = list_delete_ptr(cautions, caution);
		pfree(caution);
		return handler->batch_size;
	}
	return 1;
}

/* Add a message that was claimed to the batch. */
static void
add_task(TupleTableSlot *message, bool taken_over, void *arg)
{
	Tasks	   *tasks = arg;
	MemoryContext old = MemoryContextSwitchTo(tasks->context);
	Task	   *task = palloc0_object(Task);
	bool		isnull;
	Datum		headers = slot_getattr(message, Q_HEADERS, &isnull);
	int64		seq;

	task->id = DatumGetInt64(outbox_row_get(message, Q_ID));
	task->attempts = DatumGetInt32(outbox_row_get(message, Q_ATTEMPTS));
	task->suspect = task->attempts -
		DatumGetInt32(outbox_row_get(message, Q_WAIVED)) - 1 >
		DatumGetInt32(outbox_row_get(message, Q_RETRY_COUNT));
	task->has_stream = outbox_stream_of(message, &task->stream, &seq);
	task->message_id = *DatumGetUUIDP(outbox_row_get(message, Q_MESSAGE_ID));
	if (!isnull)
		task->traceparent =
			outbox_cause_traceparent((const Jsonb *) DatumGetPointer(headers));
	task->topic = DatumGetTextPCopy(outbox_row_get(message, Q_TOPIC));
	task->message = outbox_message_datum(message);
	tasks->list = lappend(tasks->list, task);
	MemoryContextSwitchTo(old);
}

/* Claim a batch, in a transaction of its own. */
static void
claim_tasks(Tasks *tasks)
{
	const OutboxHandler *handler = tasks->handler;
	const text *topic = handler->topic;
	const int32 subscriber = handler->subscriber;
	OutboxClaim claim = {
		.store = outbox_store(OUTBOX_QUEUE),
		.lease_seconds = handler->lease_seconds,
		.batch_size = size_of_batch(handler),
		.namespace = handler->namespace
	};

	if (handler->subscription == NULL)
	{
		claim.topics = &topic;
		claim.ntopics = 1;
	}
	else
	{
		claim.subscribers = &subscriber;
		claim.nsubscribers = 1;
	}

	tasks->owner = *DatumGetUUIDP(DirectFunctionCall1(gen_random_uuid, (Datum) 0));
	claim.owner = tasks->owner;
	tasks->list = NIL;
	(void) outbox_claim(&claim, add_task, tasks, NULL);
}

/* ---------------------------------------------------------------------- */
/* Settling                                                               */
/* ---------------------------------------------------------------------- */

/* Arguments for settling messages of this batch, without waiting. */
static OutboxSettle
settlement(const Tasks *tasks, OutboxSettlement what)
{
	return (OutboxSettle)
	{
		.store = outbox_store(OUTBOX_QUEUE),
			.what = what,
			.skip_locked = true,
			.must_not_wait = true,
			.owner = tasks->owner,
			.reason = OUTBOX_REASON_UNKNOWN,
			.lease_seconds = tasks->handler->lease_seconds
	};
}

/*
 * Renew the lease, which locks the row, so that no other claim takes the
 * message however long the function runs.  False if another claim has taken it
 * already, or another transaction has locked it, or if the lease is void
 * because a message before it in its stream has failed.
 */
static bool
renew(const Tasks *tasks, const Task *task)
{
	OutboxLeaseRef lease = {.id = task->id,.attempts = task->attempts};
	OutboxSettle how = settlement(tasks, OUTBOX_RENEW);

	how.nleases = 1;
	how.leases = &lease;
	return outbox_settle(&how) > 0;
}

/*
 * Ack or nack those of these messages that were handled, according to their
 * state.
 */
static void
settle_handled(const Tasks *tasks, List *some)
{
	OutboxSettle how = settlement(tasks, OUTBOX_EACH_ITS_OWN);
	ListCell   *lc;

	how.leases = palloc0_array(OutboxLeaseRef, list_length(some));
	foreach(lc, some)
	{
		const Task *task = lfirst(lc);

		if (task->state == TASK_DONE || task->state == TASK_FAILED)
			how.leases[how.nleases++] = (OutboxLeaseRef)
		{
			.id = task->id,
				.attempts = task->attempts,
				.what = task->state == TASK_DONE ? OUTBOX_ACK : OUTBOX_NACK,
				.error = task->error
		};
	}
	(void) outbox_settle(&how);
}

/* Release messages; the attempt does not count. */
static void
release(const Tasks *tasks, List *some)
{
	OutboxSettle how = settlement(tasks, OUTBOX_RELEASE);
	ListCell   *lc;

	how.leases = palloc0_array(OutboxLeaseRef, list_length(some));
	foreach(lc, some)
	{
		const Task *task = lfirst(lc);

		how.leases[how.nleases++] = (OutboxLeaseRef)
		{
			.id = task->id,.attempts = task->attempts
		};
	}
	(void) outbox_settle(&how);
}

/* ---------------------------------------------------------------------- */
/* Calling                                                                */
/* ---------------------------------------------------------------------- */

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

static void
log_call(const Tasks *tasks, const Task *task)
{
	if (message_level_is_interesting(outbox_log_level))
		outbox_log("outbox handler: \"%s\" in database \"%s\", %s, message " INT64_FORMAT ", attempt %d",
				   tasks->handler->function, outbox_background_database(),
				   outbox_handler_domain(tasks->handler), task->id,
				   task->attempts);
}

/*
 * Make the error text to store: the message comes first, because the log of
 * attempts truncates the text.
 */
static text *
describe_error(const char *message, const ErrorData *edata)
{
	StringInfoData description;

	initStringInfo(&description);
	appendStringInfo(&description, "%s\nSQLSTATE: %s", message,
					 unpack_sql_state(edata->sqlerrcode));
	if (edata->detail != NULL)
		appendStringInfo(&description, "\nDETAIL: %s", edata->detail);
	if (edata->hint != NULL)
		appendStringInfo(&description, "\nHINT: %s", edata->hint);
	if (edata->context != NULL)
		appendStringInfo(&description, "\nCONTEXT: %s", edata->context);
	return cstring_to_text_with_len(description.data, description.len);
}

/*
 * Record that the attempt has failed, and log that, without the error message,
 * which may contain data.
 */
static void
note_failure(const Tasks *tasks, Task *task, const ErrorData *edata,
			 bool too_long)
{
	MemoryContext old;

	ereport(LOG,
			(errcode(edata->sqlerrcode),
			 errmsg("handler \"%s\" of %s in database \"%s\" has failed for message " INT64_FORMAT ", attempt %d, SQLSTATE %s",
					tasks->handler->function,
					outbox_handler_domain(tasks->handler),
					outbox_background_database(), task->id, task->attempts,
					unpack_sql_state(edata->sqlerrcode)),
			 too_long ? errdetail("It was cancelled after %d ms.",
								  limit_of(tasks->handler)) : 0,
			 errhidestmt(true), errhidecontext(true)));
	old = MemoryContextSwitchTo(tasks->context);
	task->state = TASK_FAILED;
	task->error = describe_error(too_long ?
								 psprintf("cancelled after %d ms", limit_of(tasks->handler)) :
								 edata->message != NULL ? edata->message : "error",
								 edata);
	MemoryContextSwitchTo(old);
}

/*
 * Call the function for one message, in a subtransaction.  alone: nothing done
 * earlier in this transaction can be the cause if it fails.
 */
static void
try_function(const Tasks *tasks, Task *task, bool alone)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	TimestampTz began = GetCurrentTimestamp();
	int			save_nestlevel;

	log_call(tasks, task);
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	/* undo its changes of settings */
	save_nestlevel = NewGUCNestLevel();
	outbox_cause_begin(&task->message_id, task->traceparent);
	begin_limit(tasks->handler);
	PG_TRY();
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		call_function(tasks->function, task->message);
		AtEOXact_GUC(false, save_nestlevel);
		PopActiveSnapshot();
		ReleaseCurrentSubTransaction();
		(void) end_limit();
		outbox_cause_end();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		task->state = TASK_DONE;
	}
	PG_CATCH();
	{
		bool		too_long = end_limit();
		ErrorData  *edata;

		outbox_cause_end();
		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		if (alone || too_long)
			note_failure(tasks, task, edata, too_long);
		else
			task->state = TASK_AGAIN;
		FreeErrorData(edata);
	}
	PG_END_TRY();
	outbox_count_call(tasks->handler->namespace, task->topic,
					  tasks->handler->subscriber, GetCurrentTimestamp() - began);
}

/*
 * Must this message wait for another one of its stream, which has just failed?
 */
static bool
is_behind(List *some, const Task *task)
{
	ListCell   *lc;

	if (!task->has_stream)
		return false;
	foreach(lc, some)
	{
		const Task *before = lfirst(lc);

		if (before == task)
			break;
		if (before->has_stream && before->state != TASK_DONE &&
			outbox_uuid_equal(&before->stream, &task->stream))
			return true;
	}
	return false;
}

/* Handle some messages in the current transaction. */
static void
handle(const Tasks *tasks, List *some)
{
	bool		first = true;
	ListCell   *lc;

	foreach(lc, some)
	{
		Task	   *task = lfirst(lc);

		CHECK_FOR_INTERRUPTS();
		if (is_behind(some, task))
			task->state = TASK_AGAIN;
		else if (!renew(tasks, task))
			task->state = TASK_LOST;
		else
		{
			try_function(tasks, task, first);
			first = false;
		}
	}
	settle_handled(tasks, some);
}

/* ---------------------------------------------------------------------- */
/* Transactions                                                           */
/* ---------------------------------------------------------------------- */

/*
 * Handle some messages in a transaction of their own.  Returns NULL if it was
 * committed, otherwise the error; then nothing was done.
 */
static ErrorData *
try_transaction(const Tasks *tasks, List *some, bool *too_long)
{
	ErrorData  *volatile error = NULL;
	ListCell   *lc;

	foreach(lc, some)
		((Task *) lfirst(lc))->state = TASK_NEW;
	*too_long = false;
	PG_TRY();
	{
		outbox_background_begin();
		handle(tasks, some);
		/* deferred triggers count as part of the function */
		begin_limit(tasks->handler);
		outbox_background_commit();
		(void) end_limit();
	}
	PG_CATCH();
	{
		*too_long = end_limit();
		MemoryContextSwitchTo(tasks->context);
		error = CopyErrorData();
		outbox_background_abort();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(tasks->context);
	return error;
}

/* Handle one message in a transaction of its own. */
static void
handle_alone(const Tasks *tasks, Task *task)
{
	List	   *one = list_make1(task);
	bool		too_long;
	ErrorData  *edata = try_transaction(tasks, one, &too_long);

	if (edata == NULL)
		return;
	outbox_background_begin();
	note_failure(tasks, task, edata, too_long);
	settle_handled(tasks, one);
	outbox_background_commit();
	MemoryContextSwitchTo(tasks->context);
}

/* Handle some messages together, as far as that is possible. */
static void
handle_some(const Tasks *tasks, List *some)
{
	ListCell   *lc;
	bool		too_long;
	bool		committed = list_length(some) > 1 &&
	try_transaction(tasks, some, &too_long) == NULL;

	foreach(lc, some)
	{
		Task	   *task = lfirst(lc);

		CHECK_FOR_INTERRUPTS();
		if (!committed || task->state == TASK_AGAIN)
			handle_alone(tasks, task);
	}
}

/*
 * Release all messages from the first one that may have crashed its worker, to
 * be claimed one by one; if it is the first of the batch, keep it.
 */
static void
set_apart_suspects(Tasks *tasks)
{
	int			n = list_length(tasks->list);
	int			keep = 0;

	while (keep < n && !((Task *) list_nth(tasks->list, keep))->suspect)
		keep++;
	if (keep == n)
		return;
	keep = Max(keep, 1);
	be_cautious(tasks->handler->lane, n - keep + 1);
	if (keep < n)
		release(tasks, list_copy_tail(tasks->list, keep));
	tasks->list = list_truncate(tasks->list, keep);
}

/*
 * Handle one batch; returns the number of messages.  Must be called in a
 * process that is connected as the handler's role, outside of a transaction.
 */
int
outbox_handler_run(const OutboxHandler *handler, Oid function)
{
	MemoryContext caller = CurrentMemoryContext;
	Tasks		tasks = {.handler = handler,.function = function};
	int			n;

	Assert(!IsTransactionState());
	Assert(OidIsValid(function));
	tasks.context = AllocSetContextCreate(caller, "outbox handler",
										  ALLOCSET_DEFAULT_SIZES);
	outbox_background_begin();
	Assert(GetUserId() == handler->role_oid && GetSessionUserId() == handler->role_oid);
	claim_tasks(&tasks);
	set_apart_suspects(&tasks);
	outbox_background_commit();
	MemoryContextSwitchTo(tasks.context);
	n = list_length(tasks.list);
	for (int at = 0; at < n; at += TRANSACTION_MESSAGES)
	{
		List	   *some = list_copy_tail(tasks.list, at);

		handle_some(&tasks, list_truncate(some, TRANSACTION_MESSAGES));
	}
	/* since PostgreSQL 18, a transaction ends in the context it began in */
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(tasks.context);
	return n;
}
