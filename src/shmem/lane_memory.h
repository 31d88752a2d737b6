/*
 * lane_memory.h
 *	  The memory in which lanes are remembered.
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

/* Groups of lanes by what claims choose by; a kind is a set of these bits. */
#define OUTBOX_BY_NAMESPACE 1
#define OUTBOX_BY_TOPIC 2
#define OUTBOX_BY_TENANT 4
#define OUTBOX_LANE_KINDS 8		/* all sets of the three */
#define OUTBOX_BY_TOKEN OUTBOX_LANE_KINDS	/* entries of one owner */

/*
 * Keys that a scan must visit again: when the transaction xid, if any, has
 * ended, and at the time "at", if xid is none or has committed.  If xid has
 * aborted, at once.
 */
typedef struct OutboxMark
{
	int			prev;			/* in one of its lane's two lists */
	int			next;
	uint32		serial;			/* another mark in the same cell has another */
	bool		due;			/* in the list of those to be visited */
	OutboxKey	lo;
	OutboxKey	hi;
	TimestampTz at;
	FullTransactionId xid;
} OutboxMark;

/* Lanes that share a namespace, a topic, a tenant, or some of these. */
typedef struct OutboxGroup
{
	int			next;			/* hash chain */
	int			store;
	uint64		hash;			/* of what they share */
	int			kind;
	int			nlanes;
	int			ndue;
	int			due_first;		/* those that were visited longest ago first */
	int			due_last;
	int			idle_first;
	int			nnodes;			/* of sleeping claims, in the list or not */
	int			waiter_first;	/* those in the list, by their tickets */
	int			waiter_last;
} OutboxGroup;

/* A lane to be called when a transaction has ended. */
typedef struct OutboxBlocker
{
	int			next;
	int			lane;
	FullTransactionId xid;
} OutboxBlocker;

/* A sleeping claim's place in a group. */
typedef struct OutboxWaitNode
{
	int			waiter;
	int			group;
	int			prev;
	int			next;
	int			next_own;		/* next node of the same claim */
	bool		linked;
} OutboxWaitNode;

typedef union OutboxCell
{
	int			next_free;
	OutboxMark	mark;
	OutboxGroup group;
	OutboxBlocker blocker;
	OutboxWaitNode wait_node;
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
 * What is remembered of a lane, or of a part of one that only one owner must
 * visit (token is not 0).  Under the lock of its store, except that the chain
 * and what identifies the lane are changed under the partition's lock, too.
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
	OutboxKey	cursor;
	TimestampTz next_due;		/* nothing from cursor on is due before */
	OutboxKey	low[2];			/* smallest keys reported during scans */
	uint16		nscans[2];		/* scans under way, by phase */
	uint8		phase;
	bool		leases_known;	/* no lease is outside of the marks */
	uint16		leases_lost;	/* times that a lease found no room in them */

	/* see agenda.c */
	bool		due;			/* in its groups' lists of those due */
	bool		called;			/* since a claim last began to visit it */
	bool		called_to_reap; /* since a reap did */
	bool		used;			/* since the clock hand last came by */
	bool		shared;			/* of a part: all may visit it */

	/* parts of the lane that all may visit, and how many there are */
	int			first_part;
	int			next_part;
	int			nparts;
	int			shared_prev;	/* of all such parts of the store */
	int			shared_next;

	int			due_first;
	int			due_last;
	int			nduemarks;
	int			pending_first;
	int			npending;
	TimestampTz used_at;
	TimestampTz ended_at;		/* end of the first lease in marks that are
								 * due */
	TimestampTz recheck_at;		/* call claims for what was locked */
	OutboxTimer wake;
	OutboxTimer lease;
	OutboxLink	links[OUTBOX_LANE_KINDS];	/* of a part only the first */
} OutboxLane;

/* The memory.  Arrays of lanes and cells lie behind it. */
typedef struct OutboxLaneMemory
{
	int			nlanes;
	int			ncells;
	int			nheads;			/* of each of the two hash tables */
	LWLock		partitions[OUTBOX_HASH_PARTITIONS];

	slock_t		free_lock;		/* of the following */
	int			free_lane;
	int			free_cell;
	int			lanes_touched;	/* none beyond these was ever used */
	int			cells_touched;
	int			lanes_in_use;
	int			cells_in_use;

	pg_atomic_uint32 hand;		/* of the clock that frees lanes */
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

/* Where lane 0 and cell 0 would be; set once the memory is there. */
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

static inline OutboxWaitNode *
outbox_wait_node_at(int cell)
{
	Assert(cell > OUTBOX_NIL);
	return &outbox_cell_array[cell].wait_node;
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
