/*
 * round.c
 *	  What a worker does in one round.
 *
 * A round consists of parts, each in transactions of its own.  A part that
 * fails does not affect the others: it is logged once, and retried with an
 * increasing delay (troubles.c), until it succeeds.
 *
 * At the end the worker determines when there will be something to do.  If
 * that is unknown, or if something is due that could not be done, it tries
 * again after a delay that grows with each round that finds nothing
 * (idle_delay): so a server on which nothing happens becomes idle, whatever
 * its contents.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "core/reap.h"
#include "queue/handler.h"
#include "queue/handler_bind.h"
#include "queue/policy.h"
#include "queue/walk.h"
#include "shmem/directory.h"
#include "shmem/posts.h"
#include "shmem/troubles.h"
#include "table/catalog.h"
#include "table/table.h"
#include "util/guc.h"
#include "util/hash.h"
#include "worker/background.h"
#include "worker/deliver.h"
#include "worker/handler_run.h"
#include "worker/round.h"

/* Intervals of upkeep, which is work for which there are no calls, and of samples. */
#define UPKEEP_INTERVAL_MS (60 * 60 * 1000)
#define SAMPLE_INTERVAL_MS (60 * 1000)

/*
 * The first upkeep is later, because the partitions of a new database may come
 * with a dump.
 */
#define FIRST_UPKEEP_MS (5 * 60 * 1000)

/* Delay after a round that has found nothing. */
#define IDLE_MIN_MS 100
#define IDLE_MAX_MS 30000

#define REAP_BATCH 1000
#define DISPATCH_BATCH 1000

/*
 * Each wait takes a subtransaction; more than 64 of them would slow down all
 * snapshots of the server.
 */
#define WAIT_BATCH 50

static OutboxWorkersState *state;
static OutboxPost *post;
static MemoryContext round_context;
static OutboxRound *current;

/* ---------------------------------------------------------------------- */
/* Transactions                                                           */
/* ---------------------------------------------------------------------- */

static void
begin(const char *activity)
{
	pgstat_report_activity(STATE_RUNNING, activity);
	outbox_background_begin();
	outbox_background_hold_extension();
}

static void
commit(void)
{
	outbox_background_commit();
	MemoryContextSwitchTo(round_context);
	pgstat_report_activity(STATE_IDLE, NULL);
}

/* Run a statement that returns one number, in a transaction. */
static int64
run_sql(const char *sql)
{
	int64		result = outbox_background_number(sql);

	MemoryContextSwitchTo(round_context);
	return result;
}

/* ---------------------------------------------------------------------- */
/* Parts                                                                  */
/* ---------------------------------------------------------------------- */

/* Does a part of the round; returns how much there was to do. */
typedef int64 (*PartWork) (void *arg);

static void
wake_at(TimestampTz at)
{
	current->due = Min(current->due, at);
}

/* The time of the next try, after tries that had no effect. */
static TimestampTz
after_idle_delay(int min_ms)
{
	int64		ms = (int64) Max(min_ms, 1) << Min(post->idle_rounds, 16);

	return TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
									   Min(ms, IDLE_MAX_MS));
}

/*
 * Like outbox_directory_next_due, but earlier while there are prepared
 * transactions, whose end is not reported.
 */
static bool
known_due(const OutboxStore *store, const OutboxLaneFilter *filter,
		  const OutboxTopicKeys *paused, TimestampTz *due)
{
	bool		silent;

	if (!outbox_directory_next_due(store->table, filter, paused, due, &silent))
		return false;
	if (silent)
		*due = Min(*due, after_idle_delay(outbox_poll_interval));
	return true;
}

/*
 * The time when something becomes due in the lanes of a store that the filter
 * selects.  If shared memory does not know it, because there was no claim yet,
 * or no memory for all lanes, lists lanes.
 */
static TimestampTz
lanes_due(const OutboxStore *store, const OutboxLaneFilter *filter)
{
	TimestampTz due;
	OutboxTable table;
	OutboxPlace *untracked;
	int			nuntracked;
	OutboxTopicKeys paused;

	if (outbox_walk_uses_memory(store->table))
	{
		/* resume_topic calls this worker */
		outbox_policy_paused(store->kind, &paused);
		if (known_due(store, filter, &paused, &due))
			return due;
		outbox_store_open(&table, store);
		outbox_walk_list(&table, filter, false, &untracked, &nuntracked);
		outbox_table_close_unchanged(&table);
		if (known_due(store, filter, &paused, &due))
			return due;
	}
	return after_idle_delay(outbox_poll_interval);
}

/*
 * Record an error that was caught.  Messages of data exceptions may contain
 * data, which must not be logged.
 */
static void
note_error(OutboxPart part, int64 lane, const char *name)
{
	ErrorData  *edata;
	bool		gone;

	MemoryContextSwitchTo(round_context);
	edata = CopyErrorData();
	outbox_background_abort();
	gone = outbox_background_extension_is_gone();
	MemoryContextSwitchTo(round_context);
	if (gone)
		return;
	if (outbox_trouble_note(part, lane, edata->sqlerrcode))
		ereport(LOG,
				(errcode(edata->sqlerrcode),
				 errmsg("outbox worker in database \"%s\": %s cannot be done: %s (SQLSTATE %s)",
						outbox_background_database(), name,
						ERRCODE_TO_CATEGORY(edata->sqlerrcode) == ERRCODE_DATA_EXCEPTION ?
						"bad data" : edata->message,
						unpack_sql_state(edata->sqlerrcode)),
				 errdetail("It is retried with an increasing delay, and other work goes on."),
				 errhidestmt(true), errhidecontext(true)));
	wake_at(Max(outbox_trouble_next_try(part, lane),
				after_idle_delay(IDLE_MIN_MS)));
}

static void
note_success(OutboxPart part, int64 lane, const char *name)
{
	if (outbox_trouble_over(part, lane))
		ereport(LOG,
				(errmsg("outbox worker in database \"%s\": %s can be done again",
						outbox_background_database(), name)));
}

/* Do a part of the round, unless it has failed and its next try is later. */
static void
run_part(OutboxPart part, int64 lane, const char *name, PartWork work, void *arg)
{
	TimestampTz next_try = outbox_trouble_next_try(part, lane);

	CHECK_FOR_INTERRUPTS();
	if (next_try > GetCurrentTimestamp())
	{
		wake_at(next_try);
		return;
	}
	PG_TRY();
	{
		current->done += work(arg);
		note_success(part, lane, name);
	}
	PG_CATCH();
	{
		note_error(part, lane, name);
	}
	PG_END_TRY();
	Assert(!IsTransactionState());
	MemoryContextSwitchTo(round_context);
}

/* ---------------------------------------------------------------------- */
/* The extension's own work                                               */
/* ---------------------------------------------------------------------- */

static int64
evaluate_waits(void *arg)
{
	return run_sql("SELECT outbox.process_join_waits("
				   CppAsString2(WAIT_BATCH) ")::bigint");
}

/*
 * Dispatch timers or runs; these are separate parts, since a table can be
 * locked.
 */
static int64
dispatch(void *arg)
{
	const OutboxStoreKind *kind = arg;

	Assert(*kind == OUTBOX_TIMERS || *kind == OUTBOX_RUNS);
	if (!outbox_dispatch_timers)
		return 0;
	return run_sql(psprintf("SELECT (dispatched + left_over)::bigint FROM outbox._dispatch_due(%s, %d)",
							*kind == OUTBOX_RUNS ? "true" : "false", DISPATCH_BATCH));
}

static void
publication_failed(void)
{
	note_error(OUTBOX_PART_DELIVERIES, 0, "delivering a publication");
}

/*
 * Deliver publications.  This goes on when one of them cannot be delivered, which is
 * not tried again until its time has come.
 */
static void
deliver_publications(void)
{
	TimestampTz next_try = outbox_trouble_next_try(OUTBOX_PART_DELIVERIES, 0);
	bool		over = false;

	CHECK_FOR_INTERRUPTS();
	current->done += outbox_deliver_pending(next_try <= GetCurrentTimestamp(),
											publication_failed, &over);
	if (over)
		note_success(OUTBOX_PART_DELIVERIES, 0, "delivering a publication");
	else if (next_try > GetCurrentTimestamp())
		wake_at(next_try);
}

/* What else publish and subscribe leave to the background. */
static int64
serve_subscriptions(void *arg)
{
	return run_sql("SELECT coalesce(nullif(outbox._replay(), 0),"
				   " outbox._forget_subscribers(5000))");
}

static int64
reap(void *arg)
{
	int64		n;

	begin("outbox: reap");
	n = outbox_reap(outbox_store(*(const OutboxStoreKind *) arg), REAP_BATCH);
	commit();
	return n;
}

/* Do a step of this part of cleanup; more than 0 if there is more to do. */
static int64
clean_up(void *arg)
{
	return run_sql(psprintf("SELECT outbox._cleanup_step('%s')", (const char *) arg));
}

/* The parts of outbox._cleanup_parts. */
static const char *const cleanups[] = {
	"partitions", "archive", "unsorted", "dead", "inbox_done", "inbox_dead",
	"timer_done", "timer_dead", "run_done", "run_dead", "keys", "received",
	"receptors", "perspectives", "joins", "publications", "depth"
};

static void
run_cleanup(int part)
{
	run_part(OUTBOX_PART_RETENTION, part,
			 psprintf("retention (%s)", cleanups[part]), clean_up,
			 unconstify(char *, cleanups[part]));
}

/* Get the interval of cleanup. */
static int64
find_interval(void *arg)
{
	*(int64 *) arg = run_sql("SELECT outbox._cleanup_interval()");
	return 0;
}

static int64
reconcile_joins(void *arg)
{
	(void) run_sql("SELECT outbox.reconcile_joins()::bigint");
	return 0;
}

/*
 * Work for which there are no calls: retention, new partitions, members that
 * were not counted.  Retention goes on until nothing is left to remove, one
 * step of each part in a round, so that waits and timers are not delayed.
 */
static void
upkeep(void)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		interval = UPKEEP_INTERVAL_MS;
	int64		before;
	bool		is_time;

	if (post->next_upkeep == 0)
		post->next_upkeep = TimestampTzPlusMilliseconds(now, FIRST_UPKEEP_MS);
	/* it is later than that only if the clock was set back */
	is_time = now >= post->next_upkeep ||
		post->next_upkeep > TimestampTzPlusMilliseconds(now, UPKEEP_INTERVAL_MS);
	if (is_time)
	{
		run_part(OUTBOX_PART_RETENTION, lengthof(cleanups), "retention",
				 find_interval, &interval);
		/* parts that fail have their own time of the next try */
		LWLockAcquire(&state->lock, LW_EXCLUSIVE);
		post->next_upkeep = TimestampTzPlusMilliseconds(now, interval);
		LWLockRelease(&state->lock);
	}
	if (is_time ||
		outbox_trouble_next_try(OUTBOX_PART_JOINS, 0) != DT_NOBEGIN)
		run_part(OUTBOX_PART_JOINS, 0, "reconciling joins", reconcile_joins, NULL);
	before = current->done;
	for (int i = 0; i < lengthof(cleanups); i++)
	{
		if (is_time || post->more_upkeep ||
			outbox_trouble_next_try(OUTBOX_PART_RETENTION, i) != DT_NOBEGIN)
			run_cleanup(i);
	}
	post->more_upkeep = current->done > before;
	wake_at(post->next_upkeep);
}

static int64
take_sample(void *arg)
{
	(void) run_sql("SELECT outbox._sample_depth()");
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	post->sampled_at = GetCurrentTimestamp();
	LWLockRelease(&state->lock);
	return 0;
}

/* Take a sample for outbox.depth, if it is time. */
static void
sample_depth(void)
{
	TimestampTz now = GetCurrentTimestamp();

	if (outbox_depth_retention == 0)
		return;
	/* a time in the future is from before the clock was set back */
	if (post->sampled_at > now ||
		now >= TimestampTzPlusMilliseconds(post->sampled_at, SAMPLE_INTERVAL_MS))
		run_part(OUTBOX_PART_DEPTH, 0, "taking a sample", take_sample, NULL);
	wake_at(Max(TimestampTzPlusMilliseconds(post->sampled_at, SAMPLE_INTERVAL_MS),
				outbox_trouble_next_try(OUTBOX_PART_DEPTH, 0)));
}

/* ---------------------------------------------------------------------- */
/* Looking after handlers                                                 */
/* ---------------------------------------------------------------------- */

/* The time when a message of this handler will be due. */
static TimestampTz
handler_due(const OutboxHandler *handler)
{
	OutboxLaneFilter filter;

	/* resume_topic, and subscribe, call this worker */
	if (outbox_handler_is_paused(handler))
		return DT_NOEND;
	outbox_handler_filter(handler, &filter);
	return lanes_due(outbox_store(OUTBOX_QUEUE), &filter);
}

/* Record that a handler cannot be called.  Its messages wait. */
static void
note_problem(const OutboxHandler *handler, OutboxHandlerProblem problem)
{
	if (outbox_trouble_next_try(OUTBOX_PART_BINDING, handler->lane) <=
		GetCurrentTimestamp() &&
		outbox_trouble_note(OUTBOX_PART_BINDING, handler->lane,
							outbox_handler_problem_code(problem)))
		ereport(WARNING,
				(errcode(outbox_handler_problem_code(problem)),
				 errmsg("handler \"%s\" of %s in database \"%s\" cannot be called: it %s",
						handler->function, outbox_handler_domain(handler),
						outbox_background_database(),
						outbox_handler_problem_text(problem)),
				 errhint("Fix the problem, or call outbox.unregister_handler and then outbox.register_handler. Its messages wait.")));
}

/*
 * The time to check again whether a handler can be called: while it has
 * messages, after an increasing delay; otherwise when there is one, which is a
 * call.
 */
static TimestampTz
problem_due(const OutboxHandler *handler)
{
	return Max(handler_due(handler),
			   outbox_trouble_next_try(OUTBOX_PART_BINDING, handler->lane));
}

/* Are there handlers that came with a dump, and are not bound? */
static bool
must_bind(void)
{
	ListCell   *lc;

	foreach(lc, outbox_handlers())
	{
		if (!outbox_handler_is_at_home(lfirst(lc)))
			return true;
	}
	return false;
}

/*
 * List the roles that have handlers which can be called.  *troubled is set to
 * the other handlers.
 */
static List *
roles_with_handlers(List **troubled)
{
	List	   *roles = NIL;
	ListCell   *lc;

	if (must_bind() || post->next_upkeep <= GetCurrentTimestamp())
		outbox_handlers_bind();
	*troubled = NIL;
	foreach(lc, outbox_handlers())
	{
		OutboxHandler *handler = lfirst(lc);
		Oid			function;
		OutboxHandlerProblem problem = outbox_handler_check(handler, &function);

		if (problem != OUTBOX_HANDLER_FINE)
		{
			note_problem(handler, problem);
			*troubled = lappend(*troubled, handler);
			continue;
		}
		if (outbox_trouble_over(OUTBOX_PART_BINDING, handler->lane))
			ereport(LOG,
					(errmsg("handler \"%s\" of %s in database \"%s\" can be called again",
							handler->function, outbox_handler_domain(handler),
							outbox_background_database())));
		roles = list_append_unique_oid(roles, handler->role_oid);
	}
	return roles;
}

/* Make posts for these roles, and remove those of others. */
static void
assign_roles(List *roles)
{
	ListCell   *lc;
	OutboxPost *next;

	foreach(lc, roles)
	{
		OutboxPost *theirs = outbox_post_make(state, MyDatabaseId, lfirst_oid(lc));

		if (theirs == NULL)
			state->no_posts = true;
		else if (!theirs->served)
		{
			theirs->served = true;
			theirs->due = DT_NOBEGIN;
			/* its worker may still be there, and about to leave */
			theirs->called = true;
			if (theirs->latch != NULL)
				SetLatch(theirs->latch);
		}
	}
	for (OutboxPost *theirs = outbox_post_first(state, MyDatabaseId);
		 theirs != NULL; theirs = next)
	{
		next = outbox_post_next(state, theirs);
		if (!OidIsValid(theirs->roleid) ||
			list_member_oid(roles, theirs->roleid))
			continue;
		theirs->served = false;
		if (!theirs->running)
			outbox_post_free(state, theirs);
	}
}

/* Make posts for roles with handlers, and call those that may have work. */
static int64
look_after_handlers(void *arg)
{
	List	   *troubled;
	List	   *roles;
	ListCell   *lc;

	begin("outbox: handlers");
	roles = roles_with_handlers(&troubled);
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	/* settings may have changed since the round began */
	assign_roles(post->served ? roles : NIL);
	/* messages for a handler that cannot be called must call this worker */
	outbox_post_no_lanes(post);
	foreach(lc, troubled)
		outbox_post_add_lane(post, ((OutboxHandler *) lfirst(lc))->lane);
	if (state->launcher != NULL)
		SetLatch(state->launcher);
	LWLockRelease(&state->lock);
	/* only now, so that later messages result in a call */
	foreach(lc, troubled)
		wake_at(problem_due(lfirst(lc)));
	commit();
	return 0;
}

/* ---------------------------------------------------------------------- */
/* The next round                                                        */
/* ---------------------------------------------------------------------- */

/*
 * Determine when there will be something to do without a call.  The launcher
 * watches leases.
 */
static int64
find_out_when(void *arg)
{
	uint32		topic_hash;
	OutboxLaneFilter filter = {.topic_hashes = &topic_hash,.ntopics = 1};
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz due;

	/* rechecks are tried again soon */
	if (run_sql("SELECT count(*) FROM (SELECT FROM outbox.join_rechecks"
				" WHERE missed_at IS NULL LIMIT 1) d") > 0)
		wake_at(after_idle_delay(IDLE_MIN_MS));

	/* work that waits for the end of other transactions */
	if (run_sql("SELECT outbox._publishes_later()::int::bigint") > 0)
		wake_at(after_idle_delay(IDLE_MIN_MS));

	/* a message that expires, or that could not be buried a moment ago */
	begin("outbox: waits");
	due = outbox_reap_next_expiry(outbox_store(OUTBOX_QUEUE));
	wake_at(due > now ? due : after_idle_delay(IDLE_MIN_MS));

	/* a wait that was postponed */
	topic_hash = outbox_topic_hash(cstring_to_text(outbox_join_wait_topic));
	wake_at(lanes_due(outbox_store(OUTBOX_QUEUE), &filter));
	for (OutboxStoreKind kind = OUTBOX_TIMERS; kind <= OUTBOX_RUNS; kind++)
	{
		OutboxLaneFilter all = {NULL};

		if (!outbox_dispatch_timers)
			break;
		wake_at(lanes_due(outbox_store(kind), &all));
	}
	commit();
	return 0;
}

static void
own_round(void)
{
	run_part(OUTBOX_PART_WAITS, 0, "evaluating waits", evaluate_waits, NULL);
	for (OutboxStoreKind kind = OUTBOX_TIMERS; kind <= OUTBOX_RUNS; kind++)
		run_part(OUTBOX_PART_TIMERS, kind,
				 kind == OUTBOX_TIMERS ? "dispatching timers" : "dispatching runs",
				 dispatch, &kind);
	deliver_publications();
	run_part(OUTBOX_PART_SUBSCRIPTIONS, 0, "serving subscriptions", serve_subscriptions, NULL);
	for (OutboxStoreKind kind = 0; kind < OUTBOX_NSTORES; kind++)
		run_part(OUTBOX_PART_REAP, kind, "reaping", reap, &kind);
	run_part(OUTBOX_PART_HANDLERS, 0, "looking after handlers", look_after_handlers, NULL);
	upkeep();
	sample_depth();
	if (current->done == 0)
		run_part(OUTBOX_PART_SCHEDULE, 0, "finding out when to be back", find_out_when, NULL);
}

/* ---------------------------------------------------------------------- */
/* The work of handlers                                                   */
/* ---------------------------------------------------------------------- */

/* A handler of this role, and the function to call. */
typedef struct Callable
{
	OutboxHandler *handler;
	Oid			function;
} Callable;

/*
 * Find the handlers of this role, for this round.  The extension's own worker
 * reports those that cannot be called.
 */
static int64
find_handlers(void *arg)
{
	List	  **mine = arg;
	OutboxWorkersCall complain = {.own = true};
	bool		has_problem = false;
	ListCell   *lc;

	begin("outbox: handlers");
	foreach(lc, outbox_handlers())
	{
		const OutboxHandler *handler = lfirst(lc);
		Callable   *callable;
		MemoryContext old;
		Oid			function;

		if (handler->role_oid != post->roleid)
			continue;
		if (outbox_handler_check(handler, &function) != OUTBOX_HANDLER_FINE)
		{
			has_problem |= outbox_trouble_next_try(OUTBOX_PART_BINDING, handler->lane) == DT_NOBEGIN;
			/* it may be gone before that worker sees it */
			wake_at(Max(handler_due(handler), after_idle_delay(IDLE_MIN_MS)));
			continue;
		}
		old = MemoryContextSwitchTo(round_context);
		callable = palloc_object(Callable);
		callable->handler = outbox_handler_copy(handler);
		callable->function = function;
		*mine = lappend(*mine, callable);
		MemoryContextSwitchTo(old);
	}
	commit();
	if (has_problem)
		outbox_workers_call(&complain);
	return 0;
}

/* Publish which lanes concern this worker. */
static void
publish_lanes(List *callables)
{
	ListCell   *lc;

	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	outbox_post_no_lanes(post);
	foreach(lc, callables)
		outbox_post_add_lane(post, ((Callable *) lfirst(lc))->handler->lane);
	LWLockRelease(&state->lock);
}

static int64
run_handler(void *arg)
{
	const Callable *callable = arg;
	int64		n;

	pgstat_report_activity(STATE_RUNNING,
						   psprintf("outbox: handler %s", callable->handler->function));
	n = outbox_handler_run(callable->handler, callable->function);
	pgstat_report_activity(STATE_IDLE, NULL);
	return n;
}

/* Determine when a message for these handlers becomes due. */
static int64
find_out_when_handlers(void *arg)
{
	ListCell   *lc;

	begin("outbox: handlers");
	foreach(lc, (List *) arg)
		wake_at(handler_due(((Callable *) lfirst(lc))->handler));
	commit();
	return 0;
}

/* A round of a worker that runs handlers. */
static void
handlers_round(void)
{
	List	   *mine = NIL;
	ListCell   *lc;

	run_part(OUTBOX_PART_HANDLERS, post->roleid, "looking for handlers", find_handlers, &mine);
	publish_lanes(mine);
	foreach(lc, mine)
	{
		Callable   *callable = lfirst(lc);

		run_part(OUTBOX_PART_HANDLER, callable->handler->lane,
				 psprintf("running handler \"%s\"", callable->handler->function),
				 run_handler, callable);
	}
	if (current->done == 0)
		run_part(OUTBOX_PART_SCHEDULE, post->roleid, "finding out when to be back",
				 find_out_when_handlers, mine);
}

/* ---------------------------------------------------------------------- */
/* The round                                                              */
/* ---------------------------------------------------------------------- */

static void
begin_round(OutboxWorkersState *workers, OutboxPost *worker_post,
			MemoryContext context, OutboxRound *round)
{
	Assert(!IsTransactionState());
	state = workers;
	post = worker_post;
	round_context = context;
	current = round;
	round->done = 0;
	round->due = DT_NOEND;
}

/*
 * A round in a database whose rows come by replication: only creates
 * partitions of the archive, for rows that will come.
 */
void
outbox_round_follow(OutboxWorkersState *workers, OutboxPost *worker_post,
					MemoryContext context)
{
	OutboxRound round;

	begin_round(workers, worker_post, context, &round);
	run_cleanup(0);
}

/*
 * Do one round of the work of this post.  "context" is that of a round; the
 * caller must have reset it.
 */
void
outbox_round_run(OutboxWorkersState *workers, OutboxPost *worker_post,
				 MemoryContext context, OutboxRound *round)
{
	begin_round(workers, worker_post, context, round);
	/* the call may have come before the invalidation */
	outbox_handler_forget();
	outbox_policy_forget();
	if (OidIsValid(post->roleid))
		handlers_round();
	else
		own_round();
	if (round->done > 0)
	{
		post->idle_rounds = 0;
		return;
	}
	/* if something is due that could not be done, try again after a delay */
	if (round->due <= GetCurrentTimestamp())
		round->due = after_idle_delay(IDLE_MIN_MS);
	post->idle_rounds = Min(post->idle_rounds + 1, 16);
}
