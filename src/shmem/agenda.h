/*
 * agenda.h
 *	  Which lanes of a live table have something to do, and when.
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

/* With more transactions than this that end silently, lanes are polled. */
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
	int			number;			/* by which lanes refer to it */
	Oid			dbid;
	Oid			relid;			/* invalid: free */
	TimestampTz used_at;

	/* when the rest was valid; see directory.c */
	uint64		epoch;
	TransactionId life;
	uint64		table_life;
	uint32		resets;			/* times that everything was forgotten */

	/* lanes */
	int			first_lane;
	int			nlanes;
	uint32		misses;			/* times that there was no memory for a lane */
	bool		tenant_missed;	/* for one of a tenant */
	bool		priority_missed;	/* for one of a priority */
	bool		listed;			/* the lanes were listed since the reset */
	uint32		listed_misses;	/* misses when the last whole listing began */
	uint32		round_misses;	/* when the current listing began */
	int64		round_from;		/* where the next listing continues */

	/* groups and timers */
	uint32		kinds;			/* kinds of groups that are kept */
	uint32		turns;			/* see outbox_agenda_urgent_first */
	int			wake_root;
	int			lease_root;

	/* lanes to call when transactions end */
	pg_atomic_uint32 nblockers;
	int			blockers[OUTBOX_BLOCKER_CHAINS];

	/* those of these transactions whose end is not reported */
	int			nsilent;
	FullTransactionId silent[OUTBOX_MAX_SILENT];

	/* see expiry.c */
	TimestampTz expired_to;
	TimestampTz expired_seen;
	uint32		expired_version;

	/* owners that may be preferred; see outbox_parts_note_members */
	uint64		members;
	int			first_shared;	/* parts that other owners may visit, too */

	/* see sleepers.c */
	int			first_sleeper;	/* all sleeping claims */
	int			keeper;			/* the one that wakes when something is due */
	TimestampTz keeper_until;	/* when it will wake */
	uint64		next_ticket;
	pg_atomic_uint32 nsleepers;
} OutboxAgenda;

/* Lanes to pick, by their priorities. */
typedef enum OutboxLanePick
{
	OUTBOX_PICK_ALL,
	OUTBOX_PICK_URGENT,			/* those above 0 */
	OUTBOX_PICK_OTHERS
} OutboxLanePick;

/* A lane, or a part of one, that a claim should visit. */
typedef struct OutboxPick
{
	OutboxPlace place;
	uint64		token;
	OutboxReadyKey first;		/* no message there has a smaller key */
	bool		busy;			/* another scan is visiting it */
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
extern int	outbox_filter_ngroups(const OutboxLaneFilter *filter, int kind);
extern uint64 outbox_filter_group(const OutboxLaneFilter *filter, int kind,
								  int i);
extern bool outbox_agenda_keep(OutboxAgenda *agenda, int kind);
extern int	outbox_agenda_group(OutboxAgenda *agenda, int kind, uint64 hash,
								bool make);
extern void outbox_agenda_release_group(int group);
extern int	outbox_agenda_pick(OutboxAgenda *agenda,
							   const OutboxLaneFilter *filter,
							   OutboxLanePick which, uint64 token,
							   bool only_own, TimestampTz now,
							   OutboxPick *picks, int max, int *total);
extern bool outbox_agenda_urgent_first(OutboxAgenda *agenda);
extern int	outbox_agenda_pick_leases(OutboxAgenda *agenda, TimestampTz until,
									  OutboxPick *picks, int max);
extern TimestampTz outbox_agenda_time_of(OutboxAgenda *agenda,
										 const OutboxLaneFilter *filter,
										 const OutboxTopicKeys *paused);

#endif							/* OUTBOX_AGENDA_H */
