/*
 * posts.c
 *	  What the launcher, the workers, and those who have work for them share.
 *
 * A post is a place where a worker may be needed.  The launcher makes posts
 * for the databases that it is to serve, and the worker of a database makes
 * those of the roles that have handlers there.  A post has at most one worker.
 *
 *	idle ----- called, or due -----> running ----- nothing to do -----> idle
 *	                                    |
 *	                                    +--- error, or terminated ---> idle,
 *	                                                 due after a delay
 *
 * Only the launcher sets "running", and only it clears it, when the server
 * tells that the process has ended.  A worker that wants to leave does so
 * under the lock, and not if it was called meanwhile: so no call is lost.
 *
 * Only with the library preloaded is there a launcher; without, this is empty
 * and all calls come to nothing.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"

#include "shmem/posts.h"
#include "shmem/shmem.h"
#include "util/guc.h"

/* While the block of shared memory is made. */
void
outbox_workers_init(OutboxWorkersState *state, int tranche)
{
	LWLockInitialize(&state->lock, tranche);
	state->launcher = NULL;
	pg_atomic_init_u64(&state->sleeps_until, 0);
	pg_atomic_init_u32(&state->waiting, 0);
	pg_atomic_init_u32(&state->nserved, 0);
	state->discover = true;
	state->no_slots = false;
	state->nposts = 0;
	memset(state->posts, 0, sizeof(state->posts));
}

/* NULL if there can be no workers. */
OutboxWorkersState *
outbox_workers_state(void)
{
	OutboxShared *shared = outbox_preloaded() ? outbox_shmem() : NULL;

	return shared == NULL ? NULL : &shared->workers;
}

/* The lock must be held. */
OutboxPost *
outbox_post_find(OutboxWorkersState *state, Oid dbid, Oid roleid)
{
	Assert(LWLockHeldByMe(&state->lock));
	Assert(state->nposts <= OUTBOX_MAX_POSTS);
	for (int i = 0; i < state->nposts; i++)
	{
		OutboxPost *post = &state->posts[i];

		if (post->dbid == dbid && post->roleid == roleid)
			return post;
	}
	return NULL;
}

/* The same, making it; NULL if there is no room.  Exclusive lock. */
OutboxPost *
outbox_post_make(OutboxWorkersState *state, Oid dbid, Oid roleid)
{
	OutboxPost *post = outbox_post_find(state, dbid, roleid);

	Assert(LWLockHeldByMeInMode(&state->lock, LW_EXCLUSIVE));
	if (post != NULL)
		return post;
	post = outbox_post_find(state, InvalidOid, InvalidOid);
	if (post == NULL && state->nposts < OUTBOX_MAX_POSTS)
		post = &state->posts[state->nposts++];
	if (post == NULL)
		return NULL;
	memset(post, 0, sizeof(OutboxPost));
	post->dbid = dbid;
	post->roleid = roleid;
	return post;
}

static bool
serves(const OutboxPost *post, int64 lane)
{
	if (post->nlanes < 0)
		return true;
	for (int i = 0; i < post->nlanes; i++)
	{
		if (post->lanes[i] == lane)
			return true;
	}
	return false;
}

/* Is what becomes claimable in this lane for a handler in this database? */
bool
outbox_workers_want(int64 lane)
{
	OutboxWorkersState *state = outbox_workers_state();
	bool		result = false;

	if (state == NULL || pg_atomic_read_u32(&state->nserved) == 0)
		return false;
	LWLockAcquire(&state->lock, LW_SHARED);
	for (int i = 0; i < state->nposts && !result; i++)
	{
		const OutboxPost *post = &state->posts[i];

		result = post->dbid == MyDatabaseId && post->nlanes != 0 &&
			serves(post, lane);
	}
	LWLockRelease(&state->lock);
	return result;
}

/*
 * There is something to do in this database.  If it is not known, it may be
 * one that is to be served since lately: then look, if that is wanted, or
 * likely.
 */
void
outbox_workers_call(Oid dbid, bool look_for_database)
{
	OutboxWorkersState *state = outbox_workers_state();
	bool		call_launcher = false;
	bool		known = false;

	if (state == NULL)
		return;
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	for (int i = 0; i < state->nposts; i++)
	{
		OutboxPost *post = &state->posts[i];

		if (post->dbid != dbid || dbid == InvalidOid)
			continue;
		known = true;
		if (post->called)
			continue;
		post->called = true;
		if (post->latch != NULL)
			SetLatch(post->latch);
		else
			call_launcher = true;
	}
	if (!known && (look_for_database || strcmp(outbox_databases, "*") == 0))
		state->discover = call_launcher = true;
	if (call_launcher && state->launcher != NULL)
		SetLatch(state->launcher);
	LWLockRelease(&state->lock);
}

/*
 * There will be something to do in this database at some time.  A worker that
 * is there has made up its mind about when to be back: it is to think again.
 */
void
outbox_workers_due(TimestampTz at)
{
	OutboxWorkersState *state = outbox_workers_state();
	OutboxPost *post;

	if (state == NULL || pg_atomic_read_u32(&state->nserved) == 0)
		return;
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	post = outbox_post_find(state, MyDatabaseId, InvalidOid);
	if (post != NULL && post->running)
	{
		if (!post->called && post->latch != NULL)
			SetLatch(post->latch);
		post->called = true;
	}
	else if (post != NULL && at < post->due)
	{
		post->due = at;
		if (state->launcher != NULL)
			SetLatch(state->launcher);
	}
	LWLockRelease(&state->lock);
}

/* A lease ends then: the launcher is to know, if it would sleep through. */
void
outbox_workers_lease(TimestampTz ends)
{
	OutboxWorkersState *state = outbox_workers_state();
	const OutboxPost *post;

	if (state == NULL || pg_atomic_read_u32(&state->nserved) == 0 ||
		(TimestampTz) pg_atomic_read_u64(&state->sleeps_until) <=
		ends + OUTBOX_REAP_DELAY_MS * INT64CONST(1000))
		return;
	LWLockAcquire(&state->lock, LW_SHARED);
	post = outbox_post_find(state, MyDatabaseId, InvalidOid);
	if (post != NULL && post->served && state->launcher != NULL)
		SetLatch(state->launcher);
	LWLockRelease(&state->lock);
}

void
outbox_workers_count(OutboxWorkersState *state, OutboxWorkersCount *count)
{
	memset(count, 0, sizeof(OutboxWorkersCount));
	LWLockAcquire(&state->lock, LW_SHARED);
	count->launcher = state->launcher != NULL;
	count->no_slots = state->no_slots;
	count->waiting = pg_atomic_read_u32(&state->waiting);
	for (int i = 0; i < state->nposts; i++)
	{
		const OutboxPost *post = &state->posts[i];

		if (!OidIsValid(post->dbid))
			continue;
		count->serves |= post->served && post->dbid == MyDatabaseId;
		count->running += post->running;
		count->failing += post->failures > 0;
	}
	LWLockRelease(&state->lock);
}
