/*
 * merge.h
 *	  Visiting the messages of many lanes in one order.
 */
#ifndef OUTBOX_MERGE_H
#define OUTBOX_MERGE_H

#include "postgres.h"

#include "access/htup.h"

#include "outbox.h"
#include "queue/walk.h"
#include "shmem/agenda.h"
#include "table/catalog.h"
#include "table/table.h"
#include "util/hash.h"

/* A message that does not come from a walk: the next one of its stream. */
typedef struct OutboxFollower
{
	HeapTuple	tuple;
	int64		behind;			/* the place in the stream of the one before */
} OutboxFollower;

/* A place where one can go on. */
typedef struct OutboxSource
{
	OutboxKey	key;			/* of the message there, or a smaller one */
	OutboxPick *pick;			/* a lane that was not begun; or else */
	OutboxWalk *walk;			/* a lane; or else */
	OutboxFollower *follower;
} OutboxSource;

/*
 * A visit to all lanes that pass a filter.  The first members are set by the
 * caller, the others to zero.
 */
typedef struct OutboxMerge
{
	const OutboxStore *store;
	const OutboxLaneFilter *filter;
	uint64		token;			/* of the owner who visits */
	bool		only_own;		/* not what is preferred for other owners */
	TimestampTz now;
	void	   *arg;			/* of the following */
	bool		(*skips) (const OutboxPlace *place, void *arg);
	void		(*opens) (void *arg);	/* opens "queue", before the first
										 * visit */
	void		(*visits_walk) (OutboxWalk *walk, void *arg);
	void		(*visits_follower) (OutboxFollower *follower, void *arg);
	bool		(*has_enough) (void *arg);
	OutboxTable *queue;

	OutboxWalkPool pool;
	bool		pool_open;
	OutboxSource *sources;		/* a heap */
	int			nsources;
	int			max_sources;
	OutboxWalk **walks;			/* begun, and not ended */
	int			nwalks;
	int			max_walks;
	int			nopen;
	int			nvisited;		/* lanes that were begun */
	int			nskipped;
	int			nleft;			/* marks of a lane that were not visited */
} OutboxMerge;

extern void outbox_merge_run(OutboxMerge *merge);
extern void outbox_merge_add_follower(OutboxMerge *merge, OutboxKey key,
									  OutboxFollower *follower);
extern OutboxFollower *outbox_merge_take_follower(OutboxMerge *merge);
extern void outbox_merge_end(OutboxMerge *merge);

#endif							/* OUTBOX_MERGE_H */
