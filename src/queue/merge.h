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

/* A message that no walk has found: the next one of its stream. */
typedef struct OutboxFollower
{
	HeapTuple	tuple;
	int64		behind;			/* position in the stream of the one before */
} OutboxFollower;

/* A source of messages. */
typedef struct OutboxSource
{
	OutboxReadyKey key;			/* of its next message, or a lower bound */
	OutboxReadyKey order;		/* the same, with the boost for its priority */
	OutboxPick *pick;			/* a lane that was not begun; or */
	OutboxWalk *walk;			/* a lane that was begun; or */
	OutboxFollower *follower;
} OutboxSource;

/*
 * A visit to all lanes that pass a filter.  The caller sets the first members,
 * and the others to zero.
 */
typedef struct OutboxMerge
{
	const OutboxStore *store;
	const OutboxLaneFilter *filter;
	uint64		token;			/* of the claiming owner */
	bool		only_own;		/* skip what other owners are preferred for */
	TimestampTz now;
	void	   *arg;			/* argument of the callbacks */
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
	int			nvisited;		/* number of lanes that were begun */
	int			nskipped;
	int			nleft;			/* number of marks that were not visited */
} OutboxMerge;

extern void outbox_merge_run(OutboxMerge *merge);
extern void outbox_merge_add_follower(OutboxMerge *merge, OutboxReadyKey key,
									  int priority, OutboxFollower *follower);
extern OutboxFollower *outbox_merge_take_follower(OutboxMerge *merge);
extern void outbox_merge_end(OutboxMerge *merge);

#endif							/* OUTBOX_MERGE_H */
