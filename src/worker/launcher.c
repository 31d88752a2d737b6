/*
 * launcher.c
 *	  The background process that keeps workers where there is work.
 *
 * It is connected to no database, so it is in nobody's way.  It knows the
 * databases from pg_database; whether one has the extension, a worker finds
 * out that goes there once.  It sleeps until somebody calls for a worker,
 * something is due somewhere, or it is time to look for new databases.
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
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/varlena.h"
#include "utils/wait_event.h"

#include "shmem/directory.h"
#include "shmem/posts.h"
#include "util/guc.h"
#include "worker/background.h"
#include "worker/launcher.h"
#include "worker/worker.h"

/* When a worker fails, the next one is started after a growing delay. */
#define RETRY_MIN_MS 1000
#define RETRY_MAX_MS 60000

/* However often somebody says that there may be a new database. */
#define DISCOVER_MIN_MS 500

/* When the server has no room for a worker. */
#define NO_SLOTS_MS 10000

static OutboxWorkersState *state;

/* Of the posts with a worker; by their place in the array. */
static BackgroundWorkerHandle *handles[OUTBOX_MAX_POSTS];

/* Names in outbox.databases that we have complained about. */
static List *absent = NIL;

/* ---------------------------------------------------------------------- */
/* Databases                                                              */
/* ---------------------------------------------------------------------- */

/* A database that exists. */
typedef struct Database
{
	Oid			dbid;
	char	   *name;
	bool		open;			/* may be connected to, and is no template */
} Database;

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
		/* a limit of -2 marks one whose DROP was interrupted */
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

/* Say once that a database we are to serve is not there. */
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
				(errmsg("outbox launcher: database \"%s\" of outbox.databases cannot be connected to",
						(char *) lfirst(lc))));
		old = MemoryContextSwitchTo(TopMemoryContext);
		absent = lappend(absent, pstrdup(lfirst(lc)));
		MemoryContextSwitchTo(old);
	}
}

/* Take databases on, and let go of those that are gone. */
static void
assign_posts(List *databases, List *names, bool all)
{
	ListCell   *lc;
	uint32		nserved = 0;

	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	state->discover = false;
	for (int i = 0; i < state->nposts; i++)
	{
		if (!OidIsValid(state->posts[i].roleid))
			state->posts[i].served = false;
	}
	foreach(lc, databases)
	{
		const Database *database = lfirst(lc);
		OutboxPost *post;

		if (!database->open || (!all && !names_have(names, database->name)))
			continue;
		post = outbox_post_make(state, database->dbid, InvalidOid);
		if (post == NULL)
			break;
		post->served = true;
		nserved++;
		/* a worker is to find out whether it has the extension */
		if (post->failures == 0)
			post->due = Min(post->due, GetCurrentTimestamp());
	}
	for (int i = 0; i < state->nposts; i++)
	{
		OutboxPost *post = &state->posts[i];
		OutboxPost *own = outbox_post_find(state, post->dbid, InvalidOid);

		if (OidIsValid(post->roleid) && (own == NULL || !own->served))
			post->served = false;
		if (!post->served && !post->running)
			post->dbid = post->roleid = InvalidOid;
	}
	pg_atomic_write_u32(&state->nserved, nserved);
	LWLockRelease(&state->lock);
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
discover(void)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext,
												  "outbox databases",
												  ALLOCSET_DEFAULT_SIZES);
	List	   *databases = read_databases(context);
	bool		all = strcmp(outbox_databases, "*") == 0;
	List	   *names = NIL;

	if (!all && SplitIdentifierString(pstrdup(outbox_databases), ',', &names))
		complain_of_absent(names, databases);
	assign_posts(databases, names, all);
	outbox_directory_forget_databases(database_exists, databases);
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
	snprintf(worker.bgw_name, BGW_MAXLEN, "outbox worker for database %u",
			 order->dbid);
	memcpy(worker.bgw_extra, order, sizeof(*order));
	return RegisterDynamicBackgroundWorker(&worker, &handles[at]);
}

/* A worker has ended: is it to be started again, and when? */
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
	post->due = TimestampTzPlusMilliseconds(now,
											Min((int64) RETRY_MIN_MS << Min(post->failures, 16),
												RETRY_MAX_MS));
	post->failures++;
	/* is the database still there? */
	if (post->failures > 1)
		state->discover = true;
}

/* Which workers have ended? */
static int
count_running(TimestampTz now)
{
	int			nrunning = 0;
	pid_t		pid;

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
			nrunning++;
	}
	return nrunning;
}

/* Does this post want a worker, by now? */
static bool
wants_worker(const OutboxPost *post, TimestampTz now)
{
	return OidIsValid(post->dbid) && post->served && !post->running &&
		(post->due <= now || (post->called && post->failures == 0));
}

/* Of the posts that want a worker, the one that had none for longest. */
static int
next_post(TimestampTz now, int *nwaiting)
{
	int			best = -1;

	*nwaiting = 0;
	for (int i = 0; i < state->nposts; i++)
	{
		const OutboxPost *post = &state->posts[i];

		if (!wants_worker(post, now))
			continue;
		(*nwaiting)++;
		if (best < 0 || post->started_at < state->posts[best].started_at)
			best = i;
	}
	return best;
}

/* Start workers where they are wanted; true if the server has no room. */
static bool
start_workers(int nrunning, TimestampTz now)
{
	int			nwaiting;
	int			at;
	bool		room = true;

	while ((at = next_post(now, &nwaiting)) >= 0 &&
		   nrunning < outbox_max_workers && room)
	{
		OutboxPost *post = &state->posts[at];
		OutboxWorkerOrder order;

		LWLockAcquire(&state->lock, LW_EXCLUSIVE);
		/* a worker may have let go of the post since we looked */
		if (!wants_worker(post, now))
		{
			LWLockRelease(&state->lock);
			continue;
		}
		order.dbid = post->dbid;
		order.roleid = post->roleid;
		post->running = true;
		post->called = false;
		post->left_well = false;
		post->due = DT_NOEND;
		post->started_at = now;
		LWLockRelease(&state->lock);
		room = start_worker(at, &order);
		if (room)
			nrunning++;
		else
		{
			handles[at] = NULL;
			LWLockAcquire(&state->lock, LW_EXCLUSIVE);
			post->running = false;
			post->due = now;
			LWLockRelease(&state->lock);
		}
	}
	(void) next_post(now, &nwaiting);
	pg_atomic_write_u32(&state->waiting, nwaiting);
	if (!room && !state->no_slots)
		ereport(LOG,
				(errmsg("outbox launcher: the server has no room for a worker"),
				 errhint("Raise max_worker_processes.")));
	state->no_slots = !room;
	return !room;
}

/* ---------------------------------------------------------------------- */
/* Time                                                                   */
/* ---------------------------------------------------------------------- */

/*
 * Have somebody look where leases have ended; when does the next one?  Where
 * one has ended already, a worker is there, or waits for its turn, or for the
 * end of its delay: each of these wakes us.
 */
static TimestampTz
watch_leases(TimestampTz now)
{
	TimestampTz next = DT_NOEND;

	for (int i = 0; i < state->nposts; i++)
	{
		OutboxPost *post = &state->posts[i];
		TimestampTz ends;

		if (!OidIsValid(post->dbid) || OidIsValid(post->roleid) || !post->served)
			continue;
		ends = outbox_directory_next_lease(post->dbid);
		if (ends == DT_NOEND)
			continue;
		ends = TimestampTzPlusMilliseconds(ends, OUTBOX_REAP_DELAY_MS);
		/* not again and again, where somebody holds on to what has ended */
		ends = Max(ends, TimestampTzPlusMilliseconds(post->started_at,
													 OUTBOX_REAP_DELAY_MS));
		LWLockAcquire(&state->lock, LW_EXCLUSIVE);
		if (!post->running && post->failures == 0)
			post->due = Min(post->due, ends);
		LWLockRelease(&state->lock);
		if (ends > now)
			next = Min(next, ends);
	}
	return next;
}

/* When is there something to do, if nobody calls? */
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
 * Workers of a launcher before us go on; of those we have no handle, and know
 * that one has ended when it has taken back its latch.
 */
static void
take_over(void)
{
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	state->launcher = MyLatch;
	LWLockRelease(&state->lock);
	before_shmem_exit(resign, (Datum) 0);
}

void
outbox_launcher_main(Datum arg)
{
	TimestampTz next_discovery = 0;
	TimestampTz discovered_at = 0;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
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
		int			nrunning;
		bool		no_room;

		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		now = GetCurrentTimestamp();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			list_free_deep(absent);
			absent = NIL;
			next_discovery = now;
		}
		if (now >= next_discovery ||
			(state->discover &&
			 now >= TimestampTzPlusMilliseconds(discovered_at, DISCOVER_MIN_MS)))
		{
			discovered_at = now;
			discover();
			next_discovery = TimestampTzPlusMilliseconds(now,
														 (int64) outbox_discovery_interval * 1000);
		}
		nrunning = count_running(now);
		until = watch_leases(now);
		no_room = start_workers(nrunning, now);
		until = Min(until, next_due(next_discovery, no_room, now));
		if (state->discover)
			until = Min(until, TimestampTzPlusMilliseconds(discovered_at,
														   DISCOVER_MIN_MS));
		pg_atomic_write_u64(&state->sleeps_until, (uint64) until);
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 TimestampDifferenceMilliseconds(GetCurrentTimestamp(), until),
						 PG_WAIT_EXTENSION);
	}
}

/* From _PG_init, while the library is being preloaded. */
void
outbox_launcher_register(void)
{
	BackgroundWorker worker;

	outbox_background_describe(&worker, "outbox launcher",
							   "outbox_launcher_main");
	worker.bgw_restart_time = 5;
	RegisterBackgroundWorker(&worker);
}
