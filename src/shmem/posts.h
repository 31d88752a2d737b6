/*
 * posts.h
 *	  What the launcher, the workers, and those who have work for them share.
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

/* Leases that have ended are left alone for a moment: mostly, claims do it. */
#define OUTBOX_REAP_DELAY_MS 1000

/* Databases that have called, and are not served: calls of these are heard ... */
#define OUTBOX_MAX_STRANGE 64

/* ... no more often than this. */
#define OUTBOX_STRANGE_MS 60000

/* The two kinds of posts; each has workers of its own. */
typedef enum OutboxPostKind
{
	OUTBOX_POST_OWN,			/* what the extension does by itself */
	OUTBOX_POST_HANDLERS		/* the handlers of one role */
} OutboxPostKind;

#define OUTBOX_POST_KINDS 2

/*
 * A place where a worker may be needed: a database, and in it either what the
 * extension does by itself (roleid is invalid), or the handlers of one role.
 *
 * Changed only under the state's lock, but for more_upkeep and idle_rounds, which
 * are its worker's alone.  "called" alone is also set under the shared lock.  The
 * launcher reads without it, and looks again under it before it starts a worker.
 */
typedef struct OutboxPost
{
	Oid			dbid;			/* invalid: a free entry */
	Oid			roleid;
	int			next;			/* in the bucket of its database; -1: none */
	bool		served;			/* the settings want it served */
	bool		running;		/* a worker was started and has not left */
	bool		called;			/* there is something new since it looked */
	bool		left_well;		/* it has left because there was nothing to do */
	bool		empty;			/* the database has no extension */
	int			failures;		/* in a row */
	int			idle_rounds;	/* in a row, that found nothing to do */
	TimestampTz due;			/* when to start one, if nobody calls before */
	TimestampTz started_at;
	TimestampTz next_upkeep;	/* of a database: when to look after the rest */
	bool		more_upkeep;	/* retention was not through with it */
	Latch	   *latch;			/* the worker's */
	uint64		lanes[OUTBOX_LANE_WORDS];	/* that concern it */
} OutboxPost;

typedef struct OutboxWorkersState
{
	LWLock		lock;
	Latch	   *launcher;		/* NULL: there is none */
	pg_atomic_uint64 sleeps_until;	/* the launcher does */
	pg_atomic_uint64 looked_at; /* when it last looked for databases */
	pg_atomic_uint32 waiting[OUTBOX_POST_KINDS];	/* due, without a worker */
	pg_atomic_uint32 nserved;	/* databases that are */
	bool		discover;		/* there may be a database it does not know */
	bool		no_slots;		/* the server had no room for a worker */
	bool		no_posts;		/* there was no free entry */
	int			nstrange;		/* how many were ever added; the last ones
								 * stay */
	Oid			strange[OUTBOX_MAX_STRANGE];
	int			nposts;			/* none beyond these was ever used */
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

/* For people. */
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
} OutboxWorkersCount;

extern void outbox_workers_count(OutboxWorkersState *state,
								 OutboxWorkersCount *count);

/* Who is called at the end of a transaction. */
typedef struct OutboxWorkersCall
{
	bool		own;			/* the extension's own worker */
	bool		all;			/* and those of all roles */
	bool		look;			/* for this database, if it is not known */
	int			nlanes;
	const int64 *lanes;			/* the workers that these concern */
} OutboxWorkersCall;

extern void outbox_workers_call(const OutboxWorkersCall *call);
extern void outbox_workers_due(TimestampTz at);
extern void outbox_workers_want_upkeep(TimestampTz at);
extern void outbox_workers_lease(TimestampTz ends);

#endif							/* OUTBOX_POSTS_H */
