/*
 * round.c
 *	  What a worker does in one round.
 *
 * A round consists of parts, each in transactions of its own.  A part that fails
 * does not keep the worker from the others: it is logged once, and tried again
 * after a growing delay (troubles.c), until it works.
 *
 * At the end the worker finds out when there will be something to do.  What it
 * cannot know, or what is due but could not be done, it looks at again after a
 * delay that grows with each round that finds nothing (idle_delay): so a server
 * in which nothing happens comes to rest, whatever it holds.
 */
#include "postgres.h"

#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "commands/extension.h"
#include "core/reap.h"
#include "outbox.h"
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
#include "worker/handler_run.h"
#include "worker/round.h"

/* Things that are not called for are looked after this often. */
#define UPKEEP_INTERVAL_MS (60 * 60 * 1000)

/*
 * But not at once: what was just created may get the partitions of its history
 * from a dump.
 */
#define FIRST_UPKEEP_MS (5 * 60 * 1000)

/* Looking again after a round that has found nothing. */
#define IDLE_MIN_MS 100
#define IDLE_MAX_MS 30000

#define REAP_BATCH 1000
#define DISPATCH_BATCH 1000

/*
 * Each wait has a subtransaction; with more than 64 of them the snapshots of the
 * whole server would suffer.
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

/* Run a statement that gives one number. */
static int64
run_sql(const char *sql)
{
	bool		isnull;
	int64		result;

	begin(sql);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	if (SPI_execute(sql, false, 1) != SPI_OK_SELECT || SPI_processed != 1)
		elog(ERROR, "could not run \"%s\"", sql);
	result = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0],
										 SPI_tuptable->tupdesc, 1, &isnull));
	SPI_finish();
	commit();
	return result;
}

/* ---------------------------------------------------------------------- */
/* Parts                                                                  */
/* ---------------------------------------------------------------------- */

/* Does a part of the round; how much there was to do. */
typedef int64 (*PartWork) (void *arg);

static void
wake_at(TimestampTz at)
{
	current->due = Min(current->due, at);
}

/* How long to wait before looking again, in vain so far. */
static TimestampTz
after_idle_delay(int min_ms)
{
	int64		ms = (int64) Max(min_ms, 1) << Min(post->idle_rounds, 16);

	return TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
									   Min(ms, IDLE_MAX_MS));
}

/*
 * The same as outbox_directory_next_due; while there are prepared transactions, of
 * whose end nobody tells, look again before.
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
 * When does something become due in the lanes of a store that the filter chooses?
 * If memory does not know yet, since nobody has claimed there, or since it had no
 * room for all lanes, list lanes.
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
		/* who resumes a topic calls us */
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

/* Not to be logged: the extension has been dropped under us. */
static bool
extension_is_gone(void)
{
	bool		gone;

	outbox_background_begin();
	gone = !OidIsValid(get_extension_oid(OUTBOX_EXTENSION, true));
	(void) outbox_background_database();
	outbox_background_commit();
	MemoryContextSwitchTo(round_context);
	return gone;
}

/*
 * An error was caught.  Messages of data exceptions can contain the data, which
 * is not to be logged.
 */
static void
note_error(OutboxPart part, int64 lane, const char *name)
{
	ErrorData  *edata;

	MemoryContextSwitchTo(round_context);
	edata = CopyErrorData();
	outbox_background_abort();
	MemoryContextSwitchTo(round_context);
	if (extension_is_gone())
		return;
	if (outbox_trouble_note(part, lane, edata->sqlerrcode))
		ereport(LOG,
				(errcode(edata->sqlerrcode),
				 errmsg("outbox worker in database \"%s\": %s cannot be done: %s (SQLSTATE %s)",
						outbox_background_database(), name,
						ERRCODE_TO_CATEGORY(edata->sqlerrcode) == ERRCODE_DATA_EXCEPTION ?
						"bad data" : edata->message,
						unpack_sql_state(edata->sqlerrcode)),
				 errdetail("It is tried again, after a growing delay, and everything else goes on."),
				 errhidestmt(true), errhidecontext(true)));
	wake_at(Max(outbox_trouble_next_try(part, lane),
				after_idle_delay(IDLE_MIN_MS)));
}

/* Do a part of the round, unless it has failed a moment ago. */
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
		if (outbox_trouble_over(part, lane))
			ereport(LOG,
					(errmsg("outbox worker in database \"%s\": %s can be done again",
							outbox_background_database(), name)));
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

static int64
dispatch_timers(void *arg)
{
	if (!outbox_dispatch_timers)
		return 0;
	return run_sql("SELECT (dispatched + refused)::bigint FROM outbox._dispatch_due("
				   CppAsString2(DISPATCH_BATCH) ")");
}

static int64
reap(void *arg)
{
	int64		n = 0;

	begin("outbox: reap");
	for (OutboxStoreKind kind = 0; kind < OUTBOX_NSTORES; kind++)
		n += outbox_reap(outbox_store(kind), REAP_BATCH);
	commit();
	return n;
}

/* A step of this part of cleanup; more than 0 if it must go on. */
static int64
clean_up(void *arg)
{
	return run_sql(psprintf("SELECT outbox._cleanup_step('%s')", (const char *) arg));
}

/* When is cleanup wanted again? */
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
 * What nobody calls for: retention, the partitions to come, members whose end
 * nobody has counted.  Retention goes on until nothing is left to remove; a step of
 * each part of it in a round, so that waits and timers do not wait for it.
 */
static void
upkeep(void)
{
	/* those of outbox._cleanup_parts */
	static const char *const cleanups[] = {
		"partitions", "archive", "unsorted", "dead", "inbox_done", "inbox_dead",
		"timer_done", "timer_dead", "run_done", "run_dead", "received",
		"receptors", "perspectives", "joins"
	};
	TimestampTz now = GetCurrentTimestamp();
	int64		interval = UPKEEP_INTERVAL_MS;
	int64		before;
	bool		is_time;

	if (post->next_upkeep == 0)
		post->next_upkeep = TimestampTzPlusMilliseconds(now, FIRST_UPKEEP_MS);
	/* it is never further ahead, unless the clock was set back */
	is_time = now >= post->next_upkeep ||
		post->next_upkeep > TimestampTzPlusMilliseconds(now, UPKEEP_INTERVAL_MS);
	if (is_time)
	{
		run_part(OUTBOX_PART_RETENTION, lengthof(cleanups), "retention",
				 find_interval, &interval);
		/* what fails has a next try of its own */
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
			run_part(OUTBOX_PART_RETENTION, i,
					 psprintf("retention (%s)", cleanups[i]), clean_up,
					 unconstify(char *, cleanups[i]));
	}
	post->more_upkeep = current->done > before;
	wake_at(post->next_upkeep);
}

/* ---------------------------------------------------------------------- */
/* Looking after handlers                                                 */
/* ---------------------------------------------------------------------- */

/* When will a message of this topic be due? */
static TimestampTz
handler_due(const OutboxHandler *handler)
{
	uint32		namespace_hash = outbox_namespace_hash(handler->namespace);
	uint32		topic_hash = outbox_topic_hash(handler->topic);
	OutboxLaneFilter filter = {&namespace_hash, &topic_hash, 1};

	/* who resumes a topic calls us */
	if (outbox_policy_topic_is_paused(OUTBOX_QUEUE, handler->lane))
		return DT_NOEND;
	return lanes_due(outbox_store(OUTBOX_QUEUE), &filter);
}

static int
problem_code(OutboxHandlerProblem problem)
{
	switch (problem)
	{
		case OUTBOX_HANDLER_NO_FUNCTION:
			return ERRCODE_UNDEFINED_FUNCTION;
		case OUTBOX_HANDLER_NO_ROLE:
			return ERRCODE_UNDEFINED_OBJECT;
		case OUTBOX_HANDLER_UNBOUND:
			return ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
		default:
			return ERRCODE_INSUFFICIENT_PRIVILEGE;
	}
}

/* A handler cannot be called.  Its messages stay where they are. */
static void
note_problem(const OutboxHandler *handler, OutboxHandlerProblem problem)
{
	if (outbox_trouble_next_try(OUTBOX_PART_BINDING, handler->lane) <=
		GetCurrentTimestamp() &&
		outbox_trouble_note(OUTBOX_PART_BINDING, handler->lane,
							problem_code(problem)))
		ereport(WARNING,
				(errcode(problem_code(problem)),
				 errmsg("handler \"%s\" of topic \"%s\" in database \"%s\" cannot be called: it %s",
						handler->function, text_to_cstring(handler->topic),
						outbox_background_database(),
						outbox_handler_problem_text(problem)),
				 errhint("Put that right, or call outbox.unregister_handler, and outbox.register_handler again. Its messages wait.")));
}

/*
 * When to look again whether a handler can be called: while it has messages, after
 * a growing delay; else when there is one, of which we are told.
 */
static TimestampTz
problem_due(const OutboxHandler *handler)
{
	return Max(handler_due(handler),
			   outbox_trouble_next_try(OUTBOX_PART_BINDING, handler->lane));
}

/* Are there handlers that came with a dump? */
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
 * Which roles have handlers that can be called?  *troubled: the other handlers.
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
					(errmsg("handler \"%s\" of topic \"%s\" in database \"%s\" can be called again",
							handler->function, text_to_cstring(handler->topic),
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

/* Roles whose handlers may have something to do get their post, or a call. */
static int64
look_after_handlers(void *arg)
{
	List	   *troubled;
	List	   *roles;
	ListCell   *lc;

	begin("outbox: handlers");
	roles = roles_with_handlers(&troubled);
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	assign_roles(roles);
	/* who sends something to a handler that cannot be called, calls us */
	outbox_post_no_lanes(post);
	foreach(lc, troubled)
		outbox_post_add_lane(post, ((OutboxHandler *) lfirst(lc))->lane);
	if (state->launcher != NULL)
		SetLatch(state->launcher);
	LWLockRelease(&state->lock);
	/* only now, so that what comes later calls us */
	foreach(lc, troubled)
		wake_at(problem_due(lfirst(lc)));
	commit();
	return 0;
}

/* ---------------------------------------------------------------------- */
/* When to be back                                                        */
/* ---------------------------------------------------------------------- */

/*
 * When will there be something to do, if nobody calls?  Leases that end are
 * the launcher's to watch.
 */
static int64
find_out_when(void *arg)
{
	uint32		topic_hash;
	OutboxLaneFilter filter = {.topic_hashes = &topic_hash,.ntopics = 1};
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz due;

	/* something in doubt is tried again soon */
	if (run_sql("SELECT count(*) FROM (SELECT FROM outbox.join_doubts"
				" WHERE missed_at IS NULL LIMIT 1) d") > 0)
		wake_at(after_idle_delay(IDLE_MIN_MS));

	/* a message that expires, or that could not be buried a moment ago */
	begin("outbox: waits");
	due = outbox_reap_next_expiry(outbox_store(OUTBOX_QUEUE));
	wake_at(due > now ? due : after_idle_delay(IDLE_MIN_MS));

	/* a wait that was put back for a moment */
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
	run_part(OUTBOX_PART_TIMERS, 0, "dispatching timers and runs", dispatch_timers, NULL);
	run_part(OUTBOX_PART_REAP, 0, "reaping", reap, NULL);
	run_part(OUTBOX_PART_HANDLERS, 0, "looking after handlers", look_after_handlers, NULL);
	upkeep();
	if (current->done == 0)
		run_part(OUTBOX_PART_SCHEDULE, 0, "finding out when to be back", find_out_when, NULL);
}

/* ---------------------------------------------------------------------- */
/* The work of handlers                                                   */
/* ---------------------------------------------------------------------- */

/* A handler of ours, and what to call. */
typedef struct Callable
{
	OutboxHandler *handler;
	Oid			function;
} Callable;

/*
 * Our handlers, until the end of the round.  Those that cannot be called are the
 * extension's own worker's to complain of.
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

/* Tell which lanes concern us. */
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

/* When will a message for our handlers become due? */
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

/*
 * One round of whatever this post is there for.  "context" is that of a round; the
 * caller must have reset it.
 */
void
outbox_round_run(OutboxWorkersState *workers, OutboxPost *worker_post,
				 MemoryContext context, OutboxRound *round)
{
	Assert(!IsTransactionState());
	state = workers;
	post = worker_post;
	round_context = context;
	current = round;
	round->done = 0;
	round->due = DT_NOEND;
	/* what we were called for may be newer than what we have been told of */
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
	/* what is due, but could not be done, is not tried without end */
	if (round->due <= GetCurrentTimestamp())
		round->due = after_idle_delay(IDLE_MIN_MS);
	post->idle_rounds = Min(post->idle_rounds + 1, 16);
}
