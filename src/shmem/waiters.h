/*
 * waiters.h
 *	  Claims that sleep, and which of them is to be called.
 */
#ifndef OUTBOX_WAITERS_H
#define OUTBOX_WAITERS_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "storage/latch.h"

#include "shmem/agenda.h"
#include "util/hash.h"

/* A claim for more topics waits for all of its namespace. */
#define OUTBOX_WAITER_TOPICS 16

/* Room for the names of what a claim waits for, for those who look. */
#define OUTBOX_WAITER_NAMES 512

/* What a claim waits for: names, with a zero at the end of each. */
typedef struct OutboxWaiterNames
{
	bool		any_namespace;
	int			ntopics;		/* 0: any */
	bool		clipped;		/* there was no room for all topics */
	char		names[OUTBOX_WAITER_NAMES]; /* namespace, if not any; topics */
} OutboxWaiterNames;

/*
 * A session's claim that waits.  Under the lock of its agenda, except that a
 * session reads its own agenda's number without it.
 */
typedef struct OutboxWaiter
{
	int			agenda;			/* its number; 0: does not wait */
	int			prev;			/* of the agenda's waiters */
	int			next;
	int			first_node;		/* its places in groups */
	Latch	   *latch;
	uint64		ticket;			/* the smaller, the longer it has waited */
	uint64		token;			/* of its owner */
	int			capacity;		/* how many messages it wants */
	bool		polls;			/* in no group of lanes: cannot be called */
	bool		listed;			/* it is in its groups' lists: can be called */
	bool		called;			/* since it last began to look */
	bool		released;		/* its owner has released everything */
	bool		unsure;			/* what it was called for may not be seen yet */
	int			pid;
	TimestampTz since;
	OutboxWaiterNames wants;
} OutboxWaiter;

extern void outbox_waiters_init(OutboxWaiter *waiters, int nwaiters);

extern bool outbox_waiter_join(OutboxAgenda *agenda,
							   const OutboxLaneFilter *filter, uint64 token,
							   int capacity);
extern bool outbox_waiter_join_to_poll(OutboxAgenda *agenda, uint64 token);
extern void outbox_waiter_describe(OutboxAgenda *agenda,
								   const OutboxWaiterNames *wants);
extern int	outbox_waiters_copy(const OutboxAgenda *agenda, OutboxWaiter *copies);
extern void outbox_waiter_list(OutboxAgenda *agenda);
extern void outbox_waiter_leave(OutboxAgenda *agenda);
extern OutboxWaiter *outbox_waiter_own(void);
extern bool outbox_waiter_keeps_time(const OutboxAgenda *agenda);
extern void outbox_waiter_keep_time(OutboxAgenda *agenda, TimestampTz until);

extern void outbox_waiters_call_lane(OutboxAgenda *agenda, int lane,
									 int nmessages);
extern void outbox_waiters_call_all(OutboxAgenda *agenda, bool unsure);
extern void outbox_waiters_release(OutboxAgenda *agenda, uint64 token);
extern void outbox_waiters_pass_on(OutboxAgenda *agenda, bool leaving);
extern void outbox_waiters_note_time(OutboxAgenda *agenda);
extern void outbox_waiters_call_due(OutboxAgenda *agenda, TimestampTz now);

#endif							/* OUTBOX_WAITERS_H */
