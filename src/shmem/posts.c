/*
 * posts.c
 *	  State shared by the launcher, the workers, and sessions with work for
 *	  them.
 *
 * A post is a place where a worker may be needed.  The launcher makes posts
 * for the databases that it must serve, and the worker of a database makes
 * those of the roles that have handlers there.  A post has at most one worker.
 *
 *	idle ----- called, or due -----> running ----- nothing to do -----> idle
 *	                                    |
 *	                                    +--- error, or terminated ---> idle,
 *	                                                 due after a delay
 *
 * Only the launcher sets "running", and only it clears it, when the postmaster
 * reports that the process has ended.  A worker leaves under the lock, and
 * only if it was not called in the meantime: so no call is lost.  A worker
 * that leaves to make way for another one sets its post due at once, so it
 * need not check for calls.
 *
 * Every commit that makes something claimable looks for the posts that it
 * concerns.  So the posts of a database are chained, and each has its lanes as
 * a Bloom filter: a worker is sometimes called in vain, but no call is missed.
 *
 * There is a launcher only if the library is preloaded; otherwise there are no
 * posts, and calls have no effect.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "shmem/posts.h"
#include "shmem/shmem.h"
#include "util/guc.h"

/*
 * Initialize the state, when the block of shared memory is created.  Entries
 * that were never used need no initialization.
 */
void
outbox_workers_init(OutboxWorkersState *state, int tranche)
{
	LWLockInitialize(&state->lock, tranche);
	state->launcher = NULL;
	pg_atomic_init_u64(&state->sleeps_until, 0);
	pg_atomic_init_u64(&state->looked_at, 0);
	for (int kind = 0; kind < OUTBOX_POST_KINDS; kind++)
		pg_atomic_init_u32(&state->waiting[kind], 0);
	pg_atomic_init_u32(&state->nserved, 0);
	state->discover = true;
	state->no_slots = state->no_posts = false;
	state->nposts = state->nstrange = 0;
	for (int i = 0; i < OUTBOX_POST_BUCKETS; i++)
		state->buckets[i] = -1;
}

/* The state; NULL if there can be no workers. */
OutboxWorkersState *
outbox_workers_state(void)
{
	OutboxShared *shared = outbox_preloaded() ? outbox_shmem() : NULL;

	return shared == NULL ? NULL : &shared->workers;
}

/* ---------------------------------------------------------------------- */
/* Finding and making posts                                               */
/* ---------------------------------------------------------------------- */

static int *
bucket_of(OutboxWorkersState *state, Oid dbid)
{
	return &state->buckets[murmurhash32(dbid) % OUTBOX_POST_BUCKETS];
}

/* The first post of the database in the rest of a chain. */
static OutboxPost *
of_database(OutboxWorkersState *state, int at, Oid dbid)
{
	while (at >= 0 && state->posts[at].dbid != dbid)
		at = state->posts[at].next;
	return at < 0 ? NULL : &state->posts[at];
}

/* Iterate over the posts of a database.  The caller must hold the lock. */
OutboxPost *
outbox_post_first(OutboxWorkersState *state, Oid dbid)
{
	Assert(LWLockHeldByMe(&state->lock));
	return of_database(state, *bucket_of(state, dbid), dbid);
}

/* The next one after outbox_post_first; NULL at the end. */
OutboxPost *
outbox_post_next(OutboxWorkersState *state, const OutboxPost *post)
{
	Assert(LWLockHeldByMe(&state->lock));
	return of_database(state, post->next, post->dbid);
}

/* Find a post; NULL if there is none.  The caller must hold the lock. */
OutboxPost *
outbox_post_find(OutboxWorkersState *state, Oid dbid, Oid roleid)
{
	OutboxPost *post = outbox_post_first(state, dbid);

	while (post != NULL && post->roleid != roleid)
		post = outbox_post_next(state, post);
	return post;
}

static OutboxPost *
free_entry(OutboxWorkersState *state)
{
	for (int i = 0; i < state->nposts; i++)
	{
		if (!OidIsValid(state->posts[i].dbid))
			return &state->posts[i];
	}
	return state->nposts < OUTBOX_MAX_POSTS ?
		&state->posts[state->nposts++] : NULL;
}

/*
 * Find a post, or make it; NULL if there is no room.  All lanes concern a new
 * post until its worker has set them.  The caller must hold the lock
 * exclusively.
 */
OutboxPost *
outbox_post_make(OutboxWorkersState *state, Oid dbid, Oid roleid)
{
	OutboxPost *post = outbox_post_find(state, dbid, roleid);
	int		   *bucket = bucket_of(state, dbid);

	Assert(LWLockHeldByMeInMode(&state->lock, LW_EXCLUSIVE));
	Assert(OidIsValid(dbid));
	if (post != NULL)
		return post;
	post = free_entry(state);
	if (post == NULL)
		return NULL;
	memset(post, 0, sizeof(OutboxPost));
	post->dbid = dbid;
	post->roleid = roleid;
	post->due = DT_NOEND;
	post->known_since = GetCurrentTimestamp();
	if (OidIsValid(roleid))
		memset(post->lanes, 0xFF, sizeof(post->lanes)); /* not known yet */
	post->next = *bucket;
	*bucket = post - state->posts;
	return post;
}

/* Free a post.  The caller must hold the lock exclusively. */
void
outbox_post_free(OutboxWorkersState *state, OutboxPost *post)
{
	int		   *link = bucket_of(state, post->dbid);

	Assert(LWLockHeldByMeInMode(&state->lock, LW_EXCLUSIVE));
	Assert(!post->running);
	while (*link != post - state->posts)
	{
		Assert(*link >= 0);
		link = &state->posts[*link].next;
	}
	*link = post->next;
	post->dbid = post->roleid = InvalidOid;
	post->served = false;
}

/* ---------------------------------------------------------------------- */
/* Lanes                                                                  */
/* ---------------------------------------------------------------------- */

#define LANE_BITS (OUTBOX_LANE_WORDS * 64)

/* The two bits of a lane in the filter. */
static void
bits_of(int64 lane, uint32 *first, uint32 *second)
{
	uint64		mixed = (uint64) lane * UINT64CONST(0x9E3779B97F4A7C15);

	*first = (mixed >> 48) % LANE_BITS;
	*second = (mixed >> 32) % LANE_BITS;
}

/* Remove all lanes from a post.  The caller must hold the lock exclusively. */
void
outbox_post_no_lanes(OutboxPost *post)
{
	memset(post->lanes, 0, sizeof(post->lanes));
}

/* Add a lane to a post.  The caller must hold the lock exclusively. */
void
outbox_post_add_lane(OutboxPost *post, int64 lane)
{
	uint32		first;
	uint32		second;

	bits_of(lane, &first, &second);
	post->lanes[first / 64] |= UINT64CONST(1) << (first % 64);
	post->lanes[second / 64] |= UINT64CONST(1) << (second % 64);
}

static bool
has_lane(const OutboxPost *post, int64 lane)
{
	uint32		first;
	uint32		second;

	bits_of(lane, &first, &second);
	return (post->lanes[first / 64] >> (first % 64) & 1) != 0 &&
		(post->lanes[second / 64] >> (second % 64) & 1) != 0;
}

/* ---------------------------------------------------------------------- */
/* Calls                                                                  */
/* ---------------------------------------------------------------------- */

static bool
concerns(const OutboxWorkersCall *call, const OutboxPost *post)
{
	if (call->all || (call->own && !OidIsValid(post->roleid)))
		return true;
	for (int i = 0; i < call->nlanes; i++)
	{
		if (has_lane(post, call->lanes[i]))
			return true;
	}
	return false;
}

/* Is this database among those that have called and are not served? */
static bool
is_strange(const OutboxWorkersState *state)
{
	for (int i = 0; i < Min(state->nstrange, OUTBOX_MAX_STRANGE); i++)
	{
		if (state->strange[i] == MyDatabaseId)
			return true;
	}
	return false;
}

/*
 * A call comes from a database that the launcher does not know.  It may be
 * new, so the launcher must check.  But a database that it does not serve, and
 * that keeps calling, must not make it do so all the time.
 */
static void
call_from_strange(OutboxWorkersState *state, bool look)
{
	TimestampTz now;
	TimestampTz looked_at;

	bool		heard = true;

	if (!look && strcmp(outbox_databases, "*") != 0)
		return;
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	now = GetCurrentTimestamp();
	looked_at = (TimestampTz) pg_atomic_read_u64(&state->looked_at);
	if (!is_strange(state))
		state->strange[state->nstrange++ % OUTBOX_MAX_STRANGE] = MyDatabaseId;
	else
		/* it is later than now only if the clock was set back */
		heard = look || looked_at > now ||
			TimestampDifferenceExceeds(looked_at, now, OUTBOX_STRANGE_MS);
	if (heard)
	{
		state->discover = true;
		if (state->launcher != NULL)
			SetLatch(state->launcher);
	}
	LWLockRelease(&state->lock);
}

/* Call the workers of this database that have something to do now. */
void
outbox_workers_call(const OutboxWorkersCall *call)
{
	OutboxWorkersState *state = outbox_workers_state();
	bool		call_launcher = false;
	bool		known = false;

	if (state == NULL || !OidIsValid(MyDatabaseId))
		return;
	/* most commits concern only handlers */
	if (!call->own && !call->all &&
		pg_atomic_read_u32(&state->nserved) == 0)
		return;
	LWLockAcquire(&state->lock, LW_SHARED);
	for (OutboxPost *post = outbox_post_first(state, MyDatabaseId);
		 post != NULL; post = outbox_post_next(state, post))
	{
		known |= !OidIsValid(post->roleid);
		if (post->called || !concerns(call, post))
			continue;
		/* others may do the same concurrently */
		post->called = true;
		if (post->latch != NULL)
			SetLatch(post->latch);
		else
			call_launcher = true;
	}
	if (call_launcher && state->launcher != NULL)
		SetLatch(state->launcher);
	LWLockRelease(&state->lock);
	if (!known && (call->own || call->all))
		call_from_strange(state, call->look);
}

/*
 * Tell the worker of this database that there will be something to do at a
 * given time.  A worker that is running has already determined when to wake
 * up, and must do so again.
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

/*
 * Request upkeep by a given time.  Later requests do not postpone it, and
 * requests in vain cannot make it happen more often than they ask for.
 */
void
outbox_workers_want_upkeep(TimestampTz at)
{
	OutboxWorkersState *state = outbox_workers_state();
	OutboxPost *post;
	bool		sooner;

	if (state == NULL || pg_atomic_read_u32(&state->nserved) == 0)
		return;
	/* usually it comes sooner by itself */
	LWLockAcquire(&state->lock, LW_SHARED);
	post = outbox_post_find(state, MyDatabaseId, InvalidOid);
	sooner = post != NULL && at < post->next_upkeep;
	LWLockRelease(&state->lock);
	if (!sooner)
		return;
	LWLockAcquire(&state->lock, LW_EXCLUSIVE);
	post = outbox_post_find(state, MyDatabaseId, InvalidOid);
	sooner = post != NULL && at < post->next_upkeep;
	if (sooner)
		post->next_upkeep = at;
	LWLockRelease(&state->lock);
	if (sooner)
		outbox_workers_due(at);
}

/*
 * A lease ends at a given time: wake the launcher if it would sleep for
 * longer.
 */
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

/* Count posts and workers, for monitoring. */
void
outbox_workers_count(OutboxWorkersState *state, OutboxWorkersCount *count)
{
	memset(count, 0, sizeof(OutboxWorkersCount));
	LWLockAcquire(&state->lock, LW_SHARED);
	count->launcher = state->launcher != NULL;
	count->no_slots = state->no_slots;
	count->no_posts = state->no_posts;
	for (int kind = 0; kind < OUTBOX_POST_KINDS; kind++)
		count->waiting += pg_atomic_read_u32(&state->waiting[kind]);
	for (int i = 0; i < state->nposts; i++)
	{
		const OutboxPost *post = &state->posts[i];

		if (!OidIsValid(post->dbid))
			continue;
		count->running += post->running;
		count->failing += post->failures > 0;
		if (post->dbid != MyDatabaseId)
			continue;
		count->serves |= post->served && !OidIsValid(post->roleid);
		if (!OidIsValid(post->roleid))
			count->seen_at = Max(post->sampled_at, post->known_since);
		count->failing_here += post->failures > 0;
	}
	LWLockRelease(&state->lock);
}
