/*
 * launcher.c
 *	  The background process that starts workers.
 *
 * It is not connected to a database, so that it does not prevent dropping one.
 * It reads the databases from pg_database; a worker that visits each of them
 * once finds out whether it has the extension.  The launcher sleeps until a
 * session calls for a worker, something is due in a database, or it is time to
 * look for new databases.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/varlena.h"

#include "shmem/directory.h"
#include "shmem/posts.h"
#include "shmem/troubles.h"
#include "util/guc.h"
#include "util/wait_event.h"
#include "worker/background.h"
#include "worker/launcher.h"
#include "worker/worker.h"

/*
 * After a worker has failed, the next one is started after a delay, which
 * doubles.
 */
#define RETRY_MIN_MS 1000
#define RETRY_MAX_MS 60000

/* Minimum interval between two searches for new databases. */
#define DISCOVER_MIN_MS 500

/*
 * How often the delay doubles before a lease that has ended is checked again.
 */
#define LEASE_PATIENCE 4

/* Steps of the clock backwards up to this are ignored. */
#define CLOCK_SLACK_MS 1000

/*
 * Maximum sleep of the launcher: if the clock is set in the meantime,
 * something may be due earlier than expected.
 */
#define CLOCK_LOOK_MS 10000

/* Delay after the server had no free slot for a worker. */
#define NO_SLOTS_MS 10000

static OutboxWorkersState *state;

/* Handles of workers, by the index of their post. */
static BackgroundWorkerHandle *handles[OUTBOX_MAX_POSTS];

/* Names in outbox.databases that were reported as missing. */
static List *absent = NIL;

/* ---------------------------------------------------------------------- */
/* Databases                                                              */
/* ---------------------------------------------------------------------- */

/* A database that exists. */
typedef struct Database
{
	Oid			dbid;
	char	   *name;
	bool		open;			/* allows connections, and is not a template */
} Database;

/* Read pg_database, into the given context. */
static List *
read_databases(MemoryContext context)
{
	List	   *result = NIL;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);
		MemoryContext old;
		Database   *database;

		old = MemoryContextSwitchTo(context);
		database = palloc_object(Database);
		database->dbid = form->oid;
		database->name = pstrdup(NameStr(form->datname));
		/* a limit of -2 marks a database whose DROP was interrupted */
		database->open = form->datallowconn && !form->datistemplate &&
			form->datconnlimit != -2;
		result = lappend(result, database);
		MemoryContextSwitchTo(old);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return result;
}

static bool
names_have(List *names, const char *name)
{
	ListCell   *lc;

	foreach(lc, names)
	{
		if (strcmp(lfirst(lc), name) == 0)
			return true;
	}
	return false;
}

/* Log once that a database that should be served is missing. */
static void
complain_of_absent(List *names, List *databases)
{
	ListCell   *lc;
	ListCell   *ld;

	foreach(lc, names)
	{
		bool		there = false;
		MemoryContext old;

		foreach(ld, databases)
		{
			const Database *database = lfirst(ld);

			there |= database->open && strcmp(database->name, lfirst(lc)) == 0;
		}
		if (there || names_have(absent, lfirst(lc)))
			continue;
		ereport(LOG,
				(errmsg("outbox launcher: database \"%s\" in outbox.databases does not exist or does not allow connections",
						(char *) lfirst(lc))));
		old = MemoryContextSwitchTo(TopMemoryContext);
		absent = lappend(absent, pstrdup(lfirst(lc)));
		MemoryContextSwitchTo(old);
	}
}

static bool
is_wanted(const Database *database, List *names, bool all)
{
	return database->open && (all || names_have(names, database->name));
}

/* Free posts that are no longer needed. */
static void
free_unserved(void)
{
	for (int i = 0; i < state->nposts; i++)
	{
		OutboxPost *post = &state->posts[i];
		OutboxPost *own;

		if (!OidIsValid(post->dbid))
			continue;
		own = outbox_post_find(state, post->dbid, InvalidOid);
		if (OidIsValid(post->roleid) && (own == NULL || !own->served))
			post->served = false;
		if (!post->served && !post->running)
			outbox_post_free(state, post);
	}
}

/*
 * Make a post for a database that must be served; false if there is no room.
 * A new one is visited to see whether it has the extension; if it has not,
 * CREATE EXTENSION will call.  visit: visit it again in any case.
 */
static bool
serve_database(Oid dbid, bool visit)
{
	bool		is_new = outbox_post_find(state, dbid, InvalidOid) == NULL;
	OutboxPost *post = outbox_post_make(state, dbid, InvalidOid);

	if (post == NULL)
		return false;
	post->served = true;
	if (is_new || (visit && post->empty && post->failures == 0))
		post->due = DT_NOBEGIN;
	return true;
}

/* Log once that there are more posts than can be served. */
static void
complain_of_room(bool no_room)
{
	static bool complained = false;

	if (no_room && !complained)
		ereport(LOG,
				(errmsg("outbox launcher: there are more than %d databases and roles with handlers, and not all are served",
						OUTBOX_MAX_POSTS),
				 errhint("Name the databases that have the extension in outbox.databases.")));
	complained = no_room;
}

/*
 * Make posts for databases to serve, and free those of databases that are
 * gone.
 */
static void
assign_posts(List *databases, List *names, bool all, bool visit)
{
	uint32		nserved = 0;
	bool		no_room = false;
	ListCell   *lc;

	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	state->discover = false;
	for (int i = 0; i < state->nposts; i++)
	{
		if (!OidIsValid(state->posts[i].roleid))
			state->posts[i].served = false;
	}
	/* first those that are served already, then others */
	foreach(lc, databases)
	{
		const Database *database = lfirst(lc);
		OutboxPost *post = outbox_post_find(state, database->dbid, InvalidOid);

		if (post != NULL)
			post->served = is_wanted(database, names, all);
	}
	free_unserved();
	foreach(lc, databases)
	{
		const Database *database = lfirst(lc);

		if (!is_wanted(database, names, all))
			continue;
		if (serve_database(database->dbid, visit))
			nserved++;
		else
			no_room = true;
	}
	state->no_posts = no_room;
	pg_atomic_write_u32(&state->nserved, nserved);
	LWLockRelease(&state->lock);
	complain_of_room(no_room);
}

static bool
database_exists(Oid dbid, void *arg)
{
	ListCell   *lc;

	foreach(lc, (List *) arg)
	{
		if (((const Database *) lfirst(lc))->dbid == dbid)
			return true;
	}
	return false;
}

static void
discover(bool visit)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext,
												  "outbox databases",
												  ALLOCSET_DEFAULT_SIZES);
	List	   *databases = read_databases(context);
	bool		all = strcmp(outbox_databases, "*") == 0;
	List	   *names = NIL;

	if (!all && SplitIdentifierString(pstrdup(outbox_databases), ',', &names))
		complain_of_absent(names, databases);
	assign_posts(databases, names, all, visit);
	outbox_directory_forget_databases(database_exists, databases);
	outbox_troubles_forget_databases(database_exists, databases);
	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextDelete(context);
}

/* ---------------------------------------------------------------------- */
/* Workers                                                                */
/* ---------------------------------------------------------------------- */

static bool
start_worker(int at, const OutboxWorkerOrder *order)
{
	BackgroundWorker worker;

	outbox_background_describe(&worker, "outbox worker", "outbox_worker_main");
	worker.bgw_notify_pid = MyProcPid;
	snprintf(worker.bgw_name, BGW_MAXLEN, "outbox worker for database %u%s",
			 order->dbid, OidIsValid(order->roleid) ? ", handlers" : "");
	memcpy(worker.bgw_extra, order, sizeof(*order));
	return RegisterDynamicBackgroundWorker(&worker, &handles[at]);
}

/* Call the extension's own worker of a database. */
static void
call_own(Oid dbid)
{
	OutboxPost *own = outbox_post_find(state, dbid, InvalidOid);

	if (own == NULL)
		return;
	own->called = true;
	if (own->latch != NULL)
		SetLatch(own->latch);
}

/* The delay after one more failure than so many in a row. */
static int
retry_ms(int failures)
{
	return Min((int64) RETRY_MIN_MS << Min(failures, 16), RETRY_MAX_MS);
}

/* A worker has ended: determine whether and when to start another one. */
static void
note_end(OutboxPost *post, TimestampTz now)
{
	Assert(LWLockHeldByMeInMode(&state->lock, LW_EXCLUSIVE));
	Assert(post->running);
	post->running = false;
	post->latch = NULL;
	if (post->left_well)
	{
		post->failures = 0;
		return;
	}
	post->called = false;

	/*
	 * a worker that has run for longer than the delay does not count as
	 * failed again
	 */
	if (TimestampDifferenceExceeds(post->started_at, now, retry_ms(post->failures)))
		post->failures = 0;
	post->due = TimestampTzPlusMilliseconds(now, retry_ms(post->failures));
	post->failures++;
	/* does the database still exist? */
	if (post->failures > 1)
		state->discover = true;
	/* does the role still exist, and can it log in? */
	if (OidIsValid(post->roleid))
		call_own(post->dbid);
}

/* Find workers that have ended, and count the others of each kind. */
static void
count_running(TimestampTz now, int *nrunning)
{
	pid_t		pid;

	memset(nrunning, 0, OUTBOX_POST_KINDS * sizeof(int));
	for (int i = 0; i < state->nposts; i++)
	{
		OutboxPost *post = &state->posts[i];

		if (!post->running)
			continue;
		if (handles[i] == NULL ? post->latch == NULL :
			GetBackgroundWorkerPid(handles[i], &pid) == BGWH_STOPPED)
		{
			if (handles[i] != NULL)
				pfree(handles[i]);
			handles[i] = NULL;
			LWLockAcquire(&state->lock, LW_EXCLUSIVE);
			note_end(post, now);
			LWLockRelease(&state->lock);
		}
		else
			nrunning[outbox_post_kind(post)]++;
	}
}

/* Does this post need a worker now? */
static bool
wants_worker(const OutboxPost *post, TimestampTz now)
{
	return OidIsValid(post->dbid) && post->served && !post->running &&
		(post->due <= now || (post->called && post->failures == 0));
}

/*
 * Among the posts of a kind that need a worker, the least recently served one.
 */
static int
next_post(OutboxPostKind kind, TimestampTz now, int *nwaiting)
{
	int			best = -1;

	*nwaiting = 0;
	for (int i = 0; i < state->nposts; i++)
	{
		const OutboxPost *post = &state->posts[i];

		if (outbox_post_kind(post) != kind || !wants_worker(post, now))
			continue;
		(*nwaiting)++;
		if (best < 0 || post->started_at < state->posts[best].started_at)
			best = i;
	}
	return best;
}

/* Start a worker for this post; false if the server has no free slot. */
static bool
serve(int at, TimestampTz now)
{
	OutboxPost *post = &state->posts[at];
	OutboxWorkerOrder order;

	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	/* the state of the post may have changed since it was read */
	if (!wants_worker(post, now))
	{
		LWLockRelease(&state->lock);
		return true;
	}
	order.dbid = post->dbid;
	order.roleid = post->roleid;
	post->running = true;
	post->left_well = false;
	post->due = DT_NOEND;
	post->started_at = now;
	LWLockRelease(&state->lock);
	if (start_worker(at, &order))
		return true;
	handles[at] = NULL;
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	post->running = false;
	post->due = now;
	LWLockRelease(&state->lock);
	return false;
}

/* Posts of this kind wait for a worker: make idle workers leave. */
static void
hurry(OutboxPostKind kind)
{
	LWLockAcquire(&state->lock, LW_SHARED);
	for (int i = 0; i < state->nposts; i++)
	{
		const OutboxPost *post = &state->posts[i];

		if (OidIsValid(post->dbid) && outbox_post_kind(post) == kind &&
			post->latch != NULL)
			SetLatch(post->latch);
	}
	LWLockRelease(&state->lock);
}

/*
 * Start workers where they are needed; returns true if the server has no free
 * slot.  Each kind has a limit of its own, so that handlers cannot keep the
 * extension's own work from being done.
 */
static bool
start_workers(int *nrunning, TimestampTz now)
{
	const int	most[OUTBOX_POST_KINDS] = {
		[OUTBOX_POST_OWN] = outbox_max_workers,
		[OUTBOX_POST_HANDLERS] = outbox_max_handler_workers
	};
	bool		room = true;

	for (OutboxPostKind kind = 0; kind < OUTBOX_POST_KINDS; kind++)
	{
		int			nwaiting;
		int			at;

		while ((at = next_post(kind, now, &nwaiting)) >= 0 &&
			   nrunning[kind] < most[kind] && room)
		{
			room = serve(at, now);
			if (room && state->posts[at].running)
				nrunning[kind]++;
		}
		pg_atomic_write_u32(&state->waiting[kind], nwaiting);
		if (nwaiting > 0)
			hurry(kind);
	}
	if (!room && !state->no_slots)
		ereport(LOG,
				(errmsg("outbox launcher: could not register background process"),
				 errhint("You may need to increase max_worker_processes.")));
	state->no_slots = !room;
	return !room;
}

/* ---------------------------------------------------------------------- */
/* Time                                                                   */
/* ---------------------------------------------------------------------- */

/* The first lease of a database to end, and the worker that was sent there. */
typedef struct LeaseVisit
{
	TimestampTz ended;
	TimestampTz visited;
	int			vain;			/* visits without effect */
} LeaseVisit;

/*
 * A lease of this database has ended.  If a worker was there without effect,
 * because another transaction has locked the row, the next visit is delayed
 * further each time.
 */
static TimestampTz
look_again_at(const OutboxPost *post, TimestampTz ended)
{
	static LeaseVisit visits[OUTBOX_MAX_POSTS];
	LeaseVisit *last = &visits[post - state->posts];

	if (last->ended != ended)
	{
		last->ended = ended;
		last->visited = post->started_at;
		last->vain = 0;
	}
	else if (last->visited != post->started_at)
	{
		last->visited = post->started_at;
		last->vain++;
	}
	return TimestampTzPlusMilliseconds(post->started_at,
									   OUTBOX_REAP_DELAY_MS << Min(last->vain, LEASE_PATIENCE));
}

/*
 * Set posts due whose leases have ended; returns when the next lease ends.  If
 * one has ended already, there is a worker, or a post that waits for its turn,
 * or for the end of its delay: each of these wakes the launcher.
 */
static TimestampTz
watch_leases(TimestampTz now)
{
	TimestampTz next = DT_NOEND;

	for (int i = 0; i < state->nposts; i++)
	{
		OutboxPost *post = &state->posts[i];
		TimestampTz first;
		TimestampTz ends;

		if (!OidIsValid(post->dbid) || OidIsValid(post->roleid) || !post->served)
			continue;
		first = outbox_directory_next_lease(post->dbid);
		if (first == DT_NOEND)
			continue;
		ends = TimestampTzPlusMilliseconds(first, OUTBOX_REAP_DELAY_MS);
		ends = Max(ends, look_again_at(post, first));
		LWLockAcquire(&state->lock, LW_EXCLUSIVE);
		if (!post->running && post->failures == 0)
			post->due = Min(post->due, ends);
		LWLockRelease(&state->lock);
		if (ends > now)
			next = Min(next, ends);
	}
	return next;
}

/* The time when there will be something to do, without a call. */
static TimestampTz
next_due(TimestampTz next_discovery, bool no_room, TimestampTz now)
{
	TimestampTz due = next_discovery;

	for (int i = 0; i < state->nposts; i++)
	{
		const OutboxPost *post = &state->posts[i];

		if (OidIsValid(post->dbid) && post->served && !post->running &&
			post->due > now)
			due = Min(due, post->due);
	}
	if (no_room)
		due = Min(due, TimestampTzPlusMilliseconds(now, NO_SLOTS_MS));
	return due;
}

/*
 * Check whether the clock was set back.  Then everything that waits for a time
 * would be late by that much, so all posts are called.
 */
static void
watch_clock(TimestampTz now)
{
	static TimestampTz before = 0;
	bool		is_back = TimestampTzPlusMilliseconds(now, CLOCK_SLACK_MS) < before;

	before = now;
	if (!is_back)
		return;
	outbox_directory_clock_went_back(now);
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	for (int i = 0; i < state->nposts; i++)
	{
		OutboxPost *post = &state->posts[i];

		if (!OidIsValid(post->dbid))
			continue;
		post->started_at = Min(post->started_at, now);
		post->due = Min(post->due, now);
		post->called |= post->running;
		if (post->latch != NULL)
			SetLatch(post->latch);
	}
	LWLockRelease(&state->lock);
}

/* ---------------------------------------------------------------------- */
/* The process                                                            */
/* ---------------------------------------------------------------------- */

static void
resign(int code, Datum arg)
{
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	state->launcher = NULL;
	LWLockRelease(&state->lock);
}

/*
 * Take over the workers of a previous launcher, which go on.  There are no
 * handles for them; one has ended when it has removed its latch.
 */
static void
take_over(void)
{
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	state->launcher = MyLatch;
	LWLockRelease(&state->lock);
	before_shmem_exit(resign, (Datum) 0);
}

/* Main function of the launcher. */
void
outbox_launcher_main(Datum arg)
{
	TimestampTz next_discovery = 0;
	TimestampTz discovered_at = 0;

	outbox_background_accept_signals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	pgstat_report_appname("outbox launcher");
	state = outbox_workers_state();
	if (state == NULL)
		proc_exit(0);
	take_over();

	for (;;)
	{
		TimestampTz now;
		TimestampTz until;
		int			nrunning[OUTBOX_POST_KINDS];
		bool		no_room;
		bool		visit = false;

		ResetLatch(MyLatch);
		outbox_background_check_for_interrupts();
		now = GetCurrentTimestamp();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			list_free_deep(absent);
			absent = NIL;
			next_discovery = now;
			visit = true;
		}
		watch_clock(now);
		if (now >= next_discovery ||
			now < discovered_at ||
			(state->discover &&
			 now >= TimestampTzPlusMilliseconds(discovered_at, DISCOVER_MIN_MS)))
		{
			discovered_at = now;
			discover(visit);
			pg_atomic_write_u64(&state->looked_at, (uint64) now);
			next_discovery = TimestampTzPlusMilliseconds(now,
														 (int64) outbox_discovery_interval * 1000);
		}
		count_running(now, nrunning);
		until = watch_leases(now);
		no_room = start_workers(nrunning, now);
		until = Min(until, next_due(next_discovery, no_room, now));
		if (state->discover)
			until = Min(until, TimestampTzPlusMilliseconds(discovered_at,
														   DISCOVER_MIN_MS));
		pg_atomic_write_u64(&state->sleeps_until, (uint64) until);
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Min(TimestampDifferenceMilliseconds(GetCurrentTimestamp(), until),
							 CLOCK_LOOK_MS),
						 outbox_wait_event(OUTBOX_WAIT_LAUNCHER));
	}
}

/*
 * Register the launcher.  Called by _PG_init, while the library is being
 * preloaded.
 */
void
outbox_launcher_register(void)
{
	BackgroundWorker worker;

	outbox_background_describe(&worker, "outbox launcher",
							   "outbox_launcher_main");
	worker.bgw_restart_time = 5;
	RegisterBackgroundWorker(&worker);
}
