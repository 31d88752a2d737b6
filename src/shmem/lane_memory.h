/*
 * lane_memory.h
 *	  Memory for lanes.
 */
#ifndef OUTBOX_LANE_MEMORY_H
#define OUTBOX_LANE_MEMORY_H

#include "postgres.h"

#include "access/transam.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/spin.h"

#include "outbox.h"
#include "util/hash.h"

/* Lanes, cells and stores are numbered from 1. */
#define OUTBOX_NIL 0

#define OUTBOX_HASH_PARTITIONS 64
#define OUTBOX_BLOCKER_CHAINS 16

/* The kinds of groups of lanes: sets of what claims choose by. */
#define OUTBOX_BY_NAMESPACE 1
#define OUTBOX_BY_TOPIC 2
#define OUTBOX_BY_TENANT 4
#define OUTBOX_LANE_KINDS 8		/* number of sets of the three */
#define OUTBOX_BY_TOKEN OUTBOX_LANE_KINDS	/* claims of one owner */

/*
 * Keys that a scan must visit again: after the end of the transaction xid, if
 * there is one, at once if it has aborted, otherwise at the time "at".
 */
typedef struct OutboxMark
{
	uint32		serial;			/* see outbox_mark_serial */
	int			prev;			/* in one of its lane's two lists */
	int			next;
	bool		due;			/* in the list of those that are due */
	OutboxReadyKey lo;
	OutboxReadyKey hi;
	TimestampTz at;
	FullTransactionId xid;
} OutboxMark;

/* Lanes that share a namespace, a topic, a tenant, or some of these. */
typedef struct OutboxGroup
{
	uint32		no_mark;		/* 0 */
	int			next;			/* hash chain */
	int			store;
	int			kind;
	uint64		hash;			/* of what they share */
	int			nlanes;
	int			ndue;
	int			due_first;		/* urgent ones, then the others; each least
								 * recently visited first */
	int			due_last;
	int			nurgent;		/* how many of them are urgent */
	int			urgent_last;
	int			idle_first;
	int			nnodes;			/* of sleeping claims, listed or not */
	int			sleeper_first;	/* those listed, by their tickets */
	int			sleeper_last;
} OutboxGroup;

/* A lane to call when a transaction has ended. */
typedef struct OutboxBlocker
{
	uint32		no_mark;		/* 0 */
	int			next;
	int			lane;
	FullTransactionId xid;
} OutboxBlocker;

/* A sleeping claim's membership in a group. */
typedef struct OutboxSleepNode
{
	uint32		no_mark;		/* 0 */
	int			sleeper;
	int			group;
	int			prev;
	int			next;
	int			next_own;		/* next node of the same claim */
	bool		linked;
} OutboxSleepNode;

typedef struct OutboxFreeCell
{
	uint32		no_mark;		/* 0 */
	int			next;
} OutboxFreeCell;

/*
 * Scans keep the numbers and serials of marks, and must find out that a cell is
 * something else now.  So every kind begins with the serial, which is 0 if the cell is
 * no mark.
 */
typedef union OutboxCell
{
	uint32		serial;
	OutboxFreeCell free;
	OutboxMark	mark;
	OutboxGroup group;
	OutboxBlocker blocker;
	OutboxSleepNode sleep_node;
} OutboxCell;

/* A place in a heap ordered by time; see timer.c. */
typedef struct OutboxTimer
{
	TimestampTz at;
	int			child;
	int			sibling;
	int			prev;			/* elder sibling, or parent; itself: the root */
} OutboxTimer;

/* A lane's membership in a group. */
typedef struct OutboxLink
{
	int			group;			/* OUTBOX_NIL: in none of this kind */
	int			prev;
	int			next;
} OutboxLink;

/*
 * The state of a lane, or of a part of one for a single owner (token is not
 * 0).  Protected by the lock of its store; to change the chain and the identity
 * of the lane, the partition's lock is required as well.
 */
typedef struct OutboxLane
{
	/* identity */
	int			next;			/* hash chain, or free list */
	int			store;			/* OUTBOX_NIL: free */
	OutboxPlace place;
	uint64		token;

	/* all lanes of the store */
	int			store_prev;
	int			store_next;

	/* see lane_state.c */
	OutboxReadyKey cursor;
	TimestampTz next_due;		/* nothing from cursor on is due earlier */
	OutboxReadyKey low[2];		/* smallest keys reported during scans */
	uint16		nscans[2];		/* scans in progress, by phase */
	uint8		phase;
	bool		leases_known;	/* all leases are in marks */
	uint16		leases_lost;	/* times that a lease could not be put in one */

	/* see agenda.c */
	bool		due;			/* in the due lists of its groups */
	bool		called;			/* since a claim last began to visit it */
	bool		called_to_reap; /* since a reap last did */
	bool		used;			/* since the clock hand last passed */
	bool		shared;			/* of a part: all owners may visit it */
	int			nduties;		/* waiting claims with a duty to it */
	uint32		ncalls;			/* how often claims were called for it */

	/* parts of the lane that all owners may visit, and their number */
	int			first_part;
	int			next_part;
	int			nparts;
	int			shared_prev;	/* list of all such parts of the store */
	int			shared_next;

	int			due_first;
	int			due_last;
	int			nduemarks;
	int			pending_first;
	int			npending;
	TimestampTz used_at;
	TimestampTz ended_at;		/* end of the first lease in marks that are
								 * due */
	TimestampTz recheck_at;		/* when to call claims for what was locked */
	OutboxTimer wake;
	OutboxTimer lease;
	OutboxLink	links[OUTBOX_LANE_KINDS];	/* of a part, only the first */
} OutboxLane;

/* The memory; followed by arrays of lanes and cells. */
typedef struct OutboxLaneMemory
{
	int			nlanes;
	int			ncells;
	int			nheads;			/* of each of the two hash tables */
	LWLock		partitions[OUTBOX_HASH_PARTITIONS];

	slock_t		free_lock;		/* protects the following */
	int			free_lane;
	int			free_cell;
	int			lanes_touched;	/* those beyond were never used */
	int			cells_touched;
	int			lanes_in_use;
	int			cells_in_use;

	pg_atomic_uint32 hand;		/* of the clock sweep that evicts lanes */
	pg_atomic_uint32 serial;
	Size		lane_heads;		/* offsets from here */
	Size		group_heads;
	Size		lanes;
	Size		cells;
} OutboxLaneMemory;

extern Size outbox_lane_memory_size(Size budget);
extern void outbox_lane_memory_init(OutboxLaneMemory *memory, Size budget,
									int tranche);
extern OutboxLaneMemory *outbox_lane_memory(void);

/* Where lane 0 and cell 0 would be; set when the memory is attached. */
extern OutboxLane *outbox_lane_array;
extern OutboxCell *outbox_cell_array;

static inline OutboxLane *
outbox_lane_at(int lane)
{
	Assert(lane > OUTBOX_NIL);
	return &outbox_lane_array[lane];
}

static inline OutboxMark *
outbox_mark_at(int cell)
{
	Assert(cell > OUTBOX_NIL);
	return &outbox_cell_array[cell].mark;
}

static inline OutboxGroup *
outbox_group_at(int cell)
{
	Assert(cell > OUTBOX_NIL);
	return &outbox_cell_array[cell].group;
}

static inline OutboxBlocker *
outbox_blocker_at(int cell)
{
	Assert(cell > OUTBOX_NIL);
	return &outbox_cell_array[cell].blocker;
}

static inline OutboxSleepNode *
outbox_sleep_node_at(int cell)
{
	Assert(cell > OUTBOX_NIL);
	return &outbox_cell_array[cell].sleep_node;
}

extern int	outbox_cell_new(void);
extern void outbox_cell_free(int cell);
extern uint32 outbox_mark_serial(void);

extern int	outbox_lane_find(int store, const OutboxPlace *place,
							 uint64 token);
extern int	outbox_lane_add(int store, const OutboxPlace *place,
							uint64 token);
extern void outbox_lane_remove(int lane);
extern int	outbox_lane_advance_hand(void);
extern int	outbox_group_find(int store, int kind, uint64 hash);
extern int	outbox_group_add(int store, int kind, uint64 hash);
extern void outbox_group_remove(int group);

extern void outbox_lanes_count(int *lanes, int *in_use);

#endif							/* OUTBOX_LANE_MEMORY_H */
