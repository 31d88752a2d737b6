/*
 * handler_start.c
 *	  Running handlers without a launcher.
 *
 * No handler ever runs in a session that afterwards goes on with the
 * privileges of another role, because objects that it leaves there (a type in
 * pg_temp is enough) would be used with these privileges.  So to run handlers
 * by hand, a session starts a background process for each role, connected as
 * that role, which does not need preloading, and waits until all have ended.
 * They report in a segment of shared memory how many messages they have
 * handled.
 *
 * The caller's transaction stays open in the meantime, so it must not hold
 * anything that a handler could wait for: that deadlock would not be detected.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "queue/handler.h"
#include "queue/handler_bind.h"
#include "queue/policy.h"
#include "queue/walk.h"
#include "shmem/directory.h"
#include "table/catalog.h"
#include "util/guc.h"
#include "util/hash.h"
#include "worker/background.h"
#include "worker/handler_run.h"
#include "worker/handler_start.h"

/*
 * A process begins no further batch after this time, so that the caller can go
 * on with its other work.
 */
#define MAX_RUN_MS 5000

/* The task of one process, and its progress. */
typedef struct Order
{
	Oid			dbid;
	Oid			roleid;
	int64		handled;
	int			nfailed;		/* handlers that could not be run */
	bool		ended_well;
} Order;

/* A process, as seen by the session that starts it. */
typedef struct Process
{
	BackgroundWorkerHandle *handle; /* NULL: not started, or has ended */
	Order	   *order;
} Process;

/* ---------------------------------------------------------------------- */
/* The background process                                                 */
/* ---------------------------------------------------------------------- */

/* Bind handlers that came with a dump. */
static void
bind_handlers(void)
{
	outbox_background_begin();
	outbox_background_hold_extension();
	outbox_handlers_bind();
	outbox_background_commit();
}

/* Find the handlers of the role; returns copies. */
static List *
find_handlers(Oid roleid, MemoryContext context)
{
	List	   *result = NIL;
	ListCell   *lc;

	outbox_background_begin();
	outbox_background_hold_extension();
	foreach(lc, outbox_handlers())
	{
		const OutboxHandler *handler = lfirst(lc);
		MemoryContext old = MemoryContextSwitchTo(context);

		if (handler->role_oid == roleid)
			result = lappend(result, outbox_handler_copy(handler));
		MemoryContextSwitchTo(old);
	}
	(void) outbox_background_database();
	outbox_background_commit();
	MemoryContextSwitchTo(context);
	return result;
}

static Oid
find_function(const OutboxHandler *handler)
{
	Oid			function;

	outbox_background_begin();
	outbox_background_hold_extension();
	if (outbox_handler_check(handler, &function) != OUTBOX_HANDLER_FINE)
		function = InvalidOid;
	outbox_background_commit();
	return function;
}

/* Handle one batch of a handler; returns the number of messages. */
static int
run_batch(const OutboxHandler *handler, Order *order, MemoryContext context)
{
	volatile int n = 0;

	PG_TRY();
	{
		Oid			function = find_function(handler);

		MemoryContextSwitchTo(context);
		if (OidIsValid(function))
			n = outbox_handler_run(handler, function);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		EmitErrorReport();
		outbox_background_abort();
		order->nfailed++;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	return n;
}

/*
 * Handle batches of all handlers, until nothing is left, or the time is over.
 */
static void
run_handlers(Order *order, MemoryContext context)
{
	TimestampTz began = GetCurrentTimestamp();
	int64		before;

	bind_handlers();
	do
	{
		ListCell   *lc;

		before = order->handled;
		foreach(lc, find_handlers(order->roleid, context))
		{
			CHECK_FOR_INTERRUPTS();
			order->handled += run_batch(lfirst(lc), order, context);
		}
	} while (order->handled > before && order->nfailed == 0 &&
			 !TimestampDifferenceExceeds(began, GetCurrentTimestamp(), MAX_RUN_MS));
}

/* Main function of the background process. */
void
outbox_handlers_main(Datum arg)
{
	dsm_segment *segment;
	Order	   *order;
	int			number;

	outbox_background_require_version();
	memcpy(&number, MyBgworkerEntry->bgw_extra, sizeof(number));
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	segment = dsm_attach(DatumGetUInt32(arg));
	if (segment == NULL)
		proc_exit(0);
	order = (Order *) dsm_segment_address(segment) + number;
	dsm_pin_mapping(segment);
	BackgroundWorkerInitializeConnectionByOid(order->dbid, order->roleid,
											  OUTBOX_BGWORKER_ANY_ROLE);
	outbox_background_pin(order->roleid);
	pgstat_report_appname("outbox handlers");
	run_handlers(order, AllocSetContextCreate(TopMemoryContext,
											  "outbox handlers",
											  ALLOCSET_DEFAULT_SIZES));
	order->ended_well = true;
	proc_exit(0);
}

/* ---------------------------------------------------------------------- */
/* The caller                                                             */
/* ---------------------------------------------------------------------- */

/* Can there be messages for this handler? */
static bool
may_have_messages(const OutboxHandler *handler)
{
	OutboxLaneFilter filter;
	Oid			queue = outbox_store(OUTBOX_QUEUE)->table;
	OutboxTopicKeys paused;
	TimestampTz due;
	bool		silent;

	if (outbox_handler_is_paused(handler))
		return false;
	outbox_handler_filter(handler, &filter);
	outbox_policy_paused(OUTBOX_QUEUE, &paused);
	return !outbox_walk_uses_memory(queue) ||
		!outbox_directory_next_due(queue, &filter, &paused, &due, &silent) ||
		due <= GetCurrentTimestamp();
}

/* The role as which a handler can be run; invalid if it cannot be run. */
static Oid
role_of(const OutboxHandler *handler)
{
	Oid			function;
	Oid			roleid = handler->role_oid;
	OutboxHandlerProblem problem = outbox_handler_check(handler, &function);

	/* the process will bind it */
	if (problem == OUTBOX_HANDLER_UNBOUND &&
		outbox_handler_find_binding(handler, &function, &roleid))
		return roleid;
	if (problem == OUTBOX_HANDLER_FINE)
		return roleid;
	ereport(WARNING,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("handler \"%s\" of %s cannot be called: it %s",
					handler->function, outbox_handler_domain(handler),
					outbox_handler_problem_text(problem))));
	return InvalidOid;
}

/*
 * The roles whose privileges the caller has, and whose handlers may have
 * messages.
 */
static List *
roles_to_start(void)
{
	List	   *roles = NIL;
	ListCell   *lc;

	foreach(lc, outbox_handlers())
	{
		const OutboxHandler *handler = lfirst(lc);
		Oid			roleid = role_of(handler);

		if (OidIsValid(roleid) && has_privs_of_role(GetUserId(), roleid) &&
			may_have_messages(handler))
			roles = list_append_unique_oid(roles, roleid);
	}
	return roles;
}

static bool
start_process(Process *process, dsm_segment *segment, int number)
{
	BackgroundWorker worker;

	outbox_background_describe(&worker, "outbox handlers", "outbox_handlers_main");
	worker.bgw_notify_pid = MyProcPid;
	worker.bgw_main_arg = UInt32GetDatum(dsm_segment_handle(segment));
	memcpy(worker.bgw_extra, &number, sizeof(number));
	return RegisterDynamicBackgroundWorker(&worker, &process->handle);
}

static void
wait_for(Process *process)
{
	if (WaitForBackgroundWorkerShutdown(process->handle) == BGWH_POSTMASTER_DIED)
		ereport(FATAL,
				(errcode(ERRCODE_ADMIN_SHUTDOWN),
				 errmsg("cannot start background processes without postmaster")));
	pfree(process->handle);
	process->handle = NULL;
	if (!process->order->ended_well || process->order->nfailed > 0)
		ereport(WARNING,
				(errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
				 errmsg("the background process for handlers of role \"%s\" has failed",
						GetUserNameFromId(process->order->roleid, true)),
				 errhint("See the server log.")));
}

/*
 * Start all processes in order, as many at a time as outbox allows for
 * workers.  If the server has no free slot, go on when one has ended.
 */
static void
run_processes(Process *processes, int n, dsm_segment *segment)
{
	int			oldest = 0;

	for (int i = 0; i < n; i++)
	{
		while (i - oldest >= outbox_max_handler_workers)
			wait_for(&processes[oldest++]);
		while (!start_process(&processes[i], segment, i))
		{
			if (oldest == i)
				ereport(ERROR,
						(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
						 errmsg("could not register background process"),
						 errhint("You may need to increase max_worker_processes.")));
			wait_for(&processes[oldest++]);
		}
	}
	while (oldest < n)
		wait_for(&processes[oldest++]);
}

/*
 * Run the handlers of all roles whose privileges the caller has, in separate
 * processes, and wait for them; returns the number of messages handled.
 */
int64
outbox_handlers_start(void)
{
	List	   *roles;
	int			n;
	dsm_segment *segment;
	Order	   *orders;
	Process    *processes;
	int64		handled = 0;

	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("cannot start handlers in a transaction that has written something"),
				 errdetail("The handlers could wait for this transaction, while it waits for them.")));
	roles = roles_to_start();
	n = list_length(roles);
	if (n == 0)
		return 0;
	segment = dsm_create(n * sizeof(Order), 0);
	orders = dsm_segment_address(segment);
	processes = palloc0_array(Process, n);
	for (int i = 0; i < n; i++)
	{
		orders[i] = (Order)
		{
			.dbid = MyDatabaseId,.roleid = list_nth_oid(roles, i)
		};
		processes[i].order = &orders[i];
	}
	PG_TRY();
	{
		run_processes(processes, n, segment);
	}
	PG_CATCH();
	{
		for (int i = 0; i < n; i++)
		{
			if (processes[i].handle != NULL)
				TerminateBackgroundWorker(processes[i].handle);
		}
		PG_RE_THROW();
	}
	PG_END_TRY();
	for (int i = 0; i < n; i++)
		handled += orders[i].handled;
	dsm_detach(segment);
	return handled;
}
