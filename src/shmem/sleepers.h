/*
 * sleepers.h
 *	  Sleeping claims, and which of them to call.
 */
#ifndef OUTBOX_SLEEPERS_H
#define OUTBOX_SLEEPERS_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "storage/latch.h"

#include "shmem/agenda.h"
#include "util/hash.h"

/* A claim for more topics than this waits for all topics of its namespace. */
#define OUTBOX_SLEEPER_TOPICS 16

/* Space for the names of what a claim waits for, for monitoring. */
#define OUTBOX_SLEEPER_NAMES 512

/* What a claim waits for, as zero-terminated names. */
typedef struct OutboxSleeperNames
{
	bool		any_namespace;
	int			ntopics;		/* 0: any */
	bool		has_subscription;
	bool		clipped;		/* there was no room for all topics */
	char		names[OUTBOX_SLEEPER_NAMES];	/* namespace, if not any;
												 * subscription, if any;
												 * topics */
} OutboxSleeperNames;

/* The lane, or part of a lane, that a claim was called for. */
typedef struct OutboxDuty
{
	bool		given;
	OutboxPlace place;
	uint64		token;
	uint32		ncalls;			/* of the lane, at the time of the call */
} OutboxDuty;

/*
 * A session's waiting claim.  Protected by the lock of its agenda, except that
 * a session reads the number of its own agenda without it.
 */
typedef struct OutboxSleeper
{
	int			agenda;			/* its number; 0: not waiting */
	int			prev;			/* list of the agenda's sleepers */
	int			next;
	int			first_node;		/* its memberships in groups */
	Latch	   *latch;
	uint64		ticket;			/* smaller if it has waited longer */
	uint64		token;			/* hash of its owner */
	int			capacity;		/* how many messages it wants */
	bool		polls;			/* cannot be called: is in no group of lanes */
	bool		listed;			/* in its groups' lists: can be called */
	bool		called;			/* since it last began to claim */
	OutboxDuty	called_for;		/* since then */
	OutboxDuty	looks_for;		/* called for this before it began */
	bool		released;		/* its owner has released everything */
	bool		unsure;			/* may not see yet what it was called for */
	int			pid;
	TimestampTz since;
	OutboxSleeperNames wants;
} OutboxSleeper;

extern void outbox_sleepers_init(OutboxSleeper *sleepers, int nsleepers);

extern bool outbox_sleeper_join(OutboxAgenda *agenda,
								const OutboxLaneFilter *filter, uint64 token,
								int capacity);
extern bool outbox_sleeper_join_to_poll(OutboxAgenda *agenda, uint64 token);
extern void outbox_sleeper_describe(OutboxAgenda *agenda,
									const OutboxSleeperNames *wants);
extern int	outbox_sleepers_copy(const OutboxAgenda *agenda, OutboxSleeper *copies);
extern void outbox_sleeper_list(OutboxAgenda *agenda);
extern void outbox_sleeper_leave(OutboxAgenda *agenda);
extern OutboxSleeper *outbox_sleeper_own(void);
extern bool outbox_sleeper_keeps_time(const OutboxAgenda *agenda);
extern void outbox_sleeper_keep_time(OutboxAgenda *agenda, TimestampTz until);

extern void outbox_sleepers_call_lane(OutboxAgenda *agenda, int lane,
									  int nmessages);
extern void outbox_sleepers_call_all(OutboxAgenda *agenda, bool unsure);
extern void outbox_sleepers_release(OutboxAgenda *agenda, uint64 token);
extern void outbox_sleepers_pass_on(OutboxAgenda *agenda, bool for_others);
extern void outbox_sleepers_note_time(OutboxAgenda *agenda);
extern void outbox_sleepers_call_due(OutboxAgenda *agenda, TimestampTz now);

#endif							/* OUTBOX_SLEEPERS_H */
