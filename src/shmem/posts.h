/*
 * posts.h
 *	  State shared by the launcher, the workers, and sessions with work for
 *	  them.
 */
#ifndef OUTBOX_POSTS_H
#define OUTBOX_POSTS_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

#define OUTBOX_MAX_POSTS 2048
#define OUTBOX_POST_BUCKETS 512

/* A post's lanes are a Bloom filter of so many 64-bit words. */
#define OUTBOX_LANE_WORDS 16

/* Leases are reaped with a delay, because usually a claim comes first. */
#define OUTBOX_REAP_DELAY_MS 1000

/*
 * The last databases that have called and are not served: the launcher reacts
 * ...
 */
#define OUTBOX_MAX_STRANGE 64

/* ... to their calls no more often than this. */
#define OUTBOX_STRANGE_MS 60000

/* The two kinds of posts; each has its own workers. */
typedef enum OutboxPostKind
{
	OUTBOX_POST_OWN,			/* the extension's own work */
	OUTBOX_POST_HANDLERS		/* the handlers of one role */
} OutboxPostKind;

#define OUTBOX_POST_KINDS 2

/*
 * A place where a worker may be needed: a database, and in it either the
 * extension's own work (roleid is invalid), or the handlers of one role.
 *
 * Changed only under the state's exclusive lock, except for more_upkeep and
 * idle_rounds, which only its worker uses, and for "called", for which the
 * shared lock is enough to set it.  The launcher reads without the lock, and
 * checks again with it before it starts a worker.
 */
typedef struct OutboxPost
{
	Oid			dbid;			/* invalid: a free entry */
	Oid			roleid;
	int			next;			/* in the chain of its database; -1: none */
	bool		served;			/* the settings include its database */
	bool		running;		/* a worker was started and has not left */
	bool		called;			/* something new has come since it last
								 * checked */
	bool		left_well;		/* it has left for lack of work */
	bool		empty;			/* the database has no extension */
	int			failures;		/* in a row */
	int			idle_rounds;	/* in a row, that found nothing to do */
	TimestampTz due;			/* when to start one, without a call */
	TimestampTz started_at;
	TimestampTz next_upkeep;	/* of a database: when upkeep is due */
	bool		more_upkeep;	/* retention was not complete */
	TimestampTz sampled_at;		/* of a database: the last sample of depth */
	TimestampTz known_since;	/* when it was made, or the extension was
								 * found */
	Latch	   *latch;			/* the worker's */
	uint64		lanes[OUTBOX_LANE_WORDS];	/* the lanes that concern it */
} OutboxPost;

typedef struct OutboxWorkersState
{
	LWLock		lock;
	Latch	   *launcher;		/* NULL: there is no launcher */
	pg_atomic_uint64 sleeps_until;	/* of the launcher */
	pg_atomic_uint64 looked_at; /* when it last looked for databases */
	pg_atomic_uint32 waiting[OUTBOX_POST_KINDS];	/* posts due without a
													 * worker */
	pg_atomic_uint32 nserved;	/* databases served */
	bool		discover;		/* there may be a new database */
	bool		no_slots;		/* the server had no slot for a worker */
	bool		no_posts;		/* there was no free entry */
	int			nstrange;		/* how many were ever added; only the last
								 * ones are kept */
	Oid			strange[OUTBOX_MAX_STRANGE];
	int			nposts;			/* those beyond were never used */
	int			buckets[OUTBOX_POST_BUCKETS];	/* of databases; -1: empty */
	OutboxPost	posts[OUTBOX_MAX_POSTS];
} OutboxWorkersState;

static inline OutboxPostKind
outbox_post_kind(const OutboxPost *post)
{
	return OidIsValid(post->roleid) ? OUTBOX_POST_HANDLERS : OUTBOX_POST_OWN;
}

extern void outbox_workers_init(OutboxWorkersState *state, int tranche);
extern OutboxWorkersState *outbox_workers_state(void);
extern OutboxPost *outbox_post_first(OutboxWorkersState *state, Oid dbid);
extern OutboxPost *outbox_post_next(OutboxWorkersState *state,
									const OutboxPost *post);
extern OutboxPost *outbox_post_find(OutboxWorkersState *state, Oid dbid,
									Oid roleid);
extern OutboxPost *outbox_post_make(OutboxWorkersState *state, Oid dbid,
									Oid roleid);
extern void outbox_post_free(OutboxWorkersState *state, OutboxPost *post);

extern void outbox_post_no_lanes(OutboxPost *post);
extern void outbox_post_add_lane(OutboxPost *post, int64 lane);

/* For monitoring. */
typedef struct OutboxWorkersCount
{
	bool		launcher;
	bool		serves;			/* this database */
	int			running;
	int			waiting;
	int			failing;		/* all posts; */
	int			failing_here;	/* those of this database */
	bool		no_slots;
	bool		no_posts;
	TimestampTz seen_at;		/* when its worker last took a sample, or
								 * could have begun; 0: it has none */
} OutboxWorkersCount;

extern void outbox_workers_count(OutboxWorkersState *state,
								 OutboxWorkersCount *count);

/* The workers to call at the end of a transaction. */
typedef struct OutboxWorkersCall
{
	bool		own;			/* the extension's own worker */
	bool		all;			/* and the workers of all roles */
	bool		look;			/* let the launcher find this database */
	int			nlanes;
	const int64 *lanes;			/* and the workers that these concern */
} OutboxWorkersCall;

extern void outbox_workers_call(const OutboxWorkersCall *call);
extern void outbox_workers_due(TimestampTz at);
extern void outbox_workers_want_upkeep(TimestampTz at);
extern void outbox_workers_lease(TimestampTz ends);

#endif							/* OUTBOX_POSTS_H */
