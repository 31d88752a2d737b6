/*
 * posts.h
 *	  What the launcher, the workers, and those who have work for them share.
 */
#ifndef OUTBOX_POSTS_H
#define OUTBOX_POSTS_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

#define OUTBOX_MAX_POSTS 256
#define OUTBOX_POST_LANES 32

/* Leases that have ended are left alone for a moment: mostly, claims do it. */
#define OUTBOX_REAP_DELAY_MS 1000

/*
 * A place where a worker may be needed: a database, and in it either what the
 * extension does by itself (roleid is invalid), or the handlers of one role.
 *
 * Changed only under the state's lock, but for next_upkeep, which is the own
 * worker's alone.  The launcher reads without it, and looks again under it
 * before it starts a worker.
 */
typedef struct OutboxPost
{
	Oid			dbid;			/* invalid: a free entry */
	Oid			roleid;
	bool		served;			/* the settings want it served */
	bool		running;		/* a worker was started and has not left */
	bool		called;			/* there is something new since he looked */
	bool		left_well;		/* he has left because there was nothing to do */
	int			failures;		/* in a row */
	TimestampTz due;			/* when to start one, if nobody calls before */
	TimestampTz started_at;
	TimestampTz next_upkeep;	/* of a database: when to look after the rest */
	Latch	   *latch;			/* the worker's */
	int			nlanes;			/* served by handlers; -1: too many */
	int64		lanes[OUTBOX_POST_LANES];
} OutboxPost;

typedef struct OutboxWorkersState
{
	LWLock		lock;
	Latch	   *launcher;		/* NULL: there is none */
	pg_atomic_uint64 sleeps_until;	/* the launcher does */
	pg_atomic_uint32 waiting;	/* posts that are due and have no worker */
	pg_atomic_uint32 nserved;	/* posts that are */
	bool		discover;		/* there may be a database it does not know */
	bool		no_slots;		/* the server had no room for a worker */
	int			nposts;			/* none beyond these was ever used */
	OutboxPost	posts[OUTBOX_MAX_POSTS];
} OutboxWorkersState;

extern void outbox_workers_init(OutboxWorkersState *state, int tranche);
extern OutboxWorkersState *outbox_workers_state(void);
extern OutboxPost *outbox_post_find(OutboxWorkersState *state, Oid dbid,
									Oid roleid);
extern OutboxPost *outbox_post_make(OutboxWorkersState *state, Oid dbid,
									Oid roleid);

/* For people. */
typedef struct OutboxWorkersCount
{
	bool		launcher;
	bool		serves;			/* this database */
	int			running;
	int			waiting;
	int			failing;
	bool		no_slots;
} OutboxWorkersCount;

extern void outbox_workers_count(OutboxWorkersState *state,
								 OutboxWorkersCount *count);

extern bool outbox_workers_want(int64 lane);
extern void outbox_workers_call(Oid dbid, bool look_for_database);
extern void outbox_workers_due(TimestampTz at);
extern void outbox_workers_lease(TimestampTz ends);

#endif							/* OUTBOX_POSTS_H */
