/*
 * agenda.h
 *	  In which lanes of a live table there is something to do, and when.
 */
#ifndef OUTBOX_AGENDA_H
#define OUTBOX_AGENDA_H

#include "postgres.h"

#include "access/transam.h"
#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/lwlock.h"

#include "outbox.h"
#include "shmem/lane_memory.h"
#include "util/hash.h"

/* More transactions that end silently than this are looked at all the time. */
#ifdef OUTBOX_TINY
#define OUTBOX_MAX_SILENT 2
#else
#define OUTBOX_MAX_SILENT 32
#endif

/*
 * What is known of a live table as a whole.  All of it, its lanes included, is
 * protected by its lock, except that dbid and relid of a free agenda change
 * under the lock of the directory.
 */
typedef struct OutboxAgenda
{
	LWLock		lock;
	int			number;			/* by which lanes name it */
	Oid			dbid;
	Oid			relid;			/* invalid: free */
	TimestampTz used_at;

	/* what the rest was learnt under; see directory.c */
	uint64		epoch;
	TransactionId life;
	uint64		table_life;
	uint32		resets;			/* times that all was forgotten */

	/* lanes */
	int			first_lane;
	int			nlanes;
	uint32		misses;			/* times that a lane found no room */
	bool		tenant_missed;	/* it was one of a tenant */
	bool		listed;			/* the lanes were listed since the reset */
	uint32		listed_misses;	/* misses when the last whole listing began */
	uint32		round_misses;	/* when the one under way did */
	int64		round_from;		/* where it goes on */

	/* groups and timers */
	uint32		kinds;			/* kinds of groups that are kept */
	int			wake_root;
	int			lease_root;

	/* lanes to be called when transactions end */
	pg_atomic_uint32 nblockers;
	int			blockers[OUTBOX_BLOCKER_CHAINS];

	/* transactions among these whose end nobody reports */
	int			nsilent;
	FullTransactionId silent[OUTBOX_MAX_SILENT];

	/* see expiry.c */
	TimestampTz expired_to;
	TimestampTz expired_seen;
	uint32		expired_version;

	/* owners that may be preferred; see outbox_parts_note_members */
	uint64		members;
	int			first_shared;	/* parts that others may visit, too */

	/* see waiters.c */
	int			first_waiter;	/* all sleeping claims */
	int			keeper;			/* the one that keeps the time */
	TimestampTz keeper_until;	/* it sleeps until then */
	uint64		next_ticket;
	pg_atomic_uint32 nwaiters;
} OutboxAgenda;

/* A lane, or part of one, that a claim should visit. */
typedef struct OutboxPick
{
	OutboxPlace place;
	uint64		token;
	OutboxKey	first;			/* no message there has a smaller key */
	bool		busy;			/* another scan is under way */
} OutboxPick;

extern void outbox_agenda_miss(OutboxAgenda *agenda, const OutboxPlace *place);
extern bool outbox_agenda_join(OutboxAgenda *agenda, int lane);
extern void outbox_agenda_leave(OutboxAgenda *agenda, int lane);
extern void outbox_agenda_update(OutboxAgenda *agenda, int lane,
								 TimestampTz now);
extern void outbox_agenda_rotate(OutboxAgenda *agenda, int lane);
extern int	outbox_agenda_pop(OutboxAgenda *agenda, TimestampTz now);
extern TimestampTz outbox_agenda_next_time(const OutboxAgenda *agenda);
extern TimestampTz outbox_agenda_next_lease(const OutboxAgenda *agenda);

extern int	outbox_agenda_kind(const OutboxLaneFilter *filter);
extern uint64 outbox_agenda_hash(int kind, const OutboxPlace *place);
extern bool outbox_agenda_keep(OutboxAgenda *agenda, int kind);
extern int	outbox_agenda_group(OutboxAgenda *agenda, int kind, uint64 hash,
								bool make);
extern void outbox_agenda_release_group(int group);
extern int	outbox_agenda_pick(OutboxAgenda *agenda,
							   const OutboxLaneFilter *filter,
							   uint64 token, bool only_own, TimestampTz now,
							   OutboxPick *picks, int max, int *total);
extern int	outbox_agenda_pick_leases(OutboxAgenda *agenda, TimestampTz until,
									  OutboxPick *picks, int max);
extern TimestampTz outbox_agenda_time_of(OutboxAgenda *agenda,
										 const OutboxLaneFilter *filter,
										 const OutboxTopicKeys *paused);

extern void outbox_agenda_block(OutboxAgenda *agenda, int lane,
								FullTransactionId xid, bool silent);
extern bool outbox_agenda_next_silent(const OutboxAgenda *agenda, int *next,
									  FullTransactionId *xid);
extern int	outbox_agenda_next_blocked(const OutboxAgenda *agenda,
									   FullTransactionId xid, int *cell);
extern void outbox_agenda_unblock(OutboxAgenda *agenda, FullTransactionId xid);
extern void outbox_agenda_unblock_all(OutboxAgenda *agenda);

#endif							/* OUTBOX_AGENDA_H */
