/*
 * directory.h
 *	  Which agenda belongs to which live table, and what can be evicted.
 */
#ifndef OUTBOX_DIRECTORY_H
#define OUTBOX_DIRECTORY_H

#include "postgres.h"

#include "shmem/agenda.h"
#include "shmem/lane_memory.h"
#include "util/hash.h"

/* Four for each of 128 databases in use at the same time. */
#ifdef OUTBOX_TINY
#define OUTBOX_MAX_AGENDAS 5
#else
#define OUTBOX_MAX_AGENDAS 512
#endif

typedef struct OutboxDirectory
{
	LWLock		lock;			/* which agenda belongs to which table */
	OutboxAgenda agendas[OUTBOX_MAX_AGENDAS];
} OutboxDirectory;

/* State of listing lanes from the index. */
typedef struct OutboxListing
{
	Oid			relid;
	uint32		resets;
	uint32		misses;
	bool		whole;			/* all lanes, not a few */
	bool		missed;			/* there was no memory for a lane */
	bool		tenant_missed;	/* for one of a tenant */
	bool		priority_missed;	/* for one of a priority */
	bool		tenants;		/* lanes of tenants may have no memory */
	bool		priorities;		/* lanes of priorities may have none */
	int64		from;			/* continue behind this lane */
} OutboxListing;

extern void outbox_directory_init(OutboxDirectory *directory, int tranche);

extern OutboxAgenda *outbox_agenda_lock(Oid relid, LWLockMode mode);
extern OutboxAgenda *outbox_agenda_lock_to_report(Oid relid);
extern OutboxAgenda *outbox_agenda_by_number(int number);
extern int	outbox_agenda_copy(Oid relid, OutboxAgenda *agenda,
							   OutboxLane **lanes);
extern bool outbox_agenda_is_complete(const OutboxAgenda *agenda);
extern void outbox_directory_set_life(Oid relid, uint64 table_life);
extern void outbox_directory_prepare(void);
extern void outbox_parts_note_members(Oid relid, uint64 members);
extern bool outbox_listing_begin(Oid relid, OutboxListing *listing);
extern bool outbox_listing_add(OutboxListing *listing,
							   const OutboxPlace *place);
extern void outbox_listing_end(OutboxListing *listing, bool at_end);
extern bool outbox_directory_next_due(Oid relid,
									  const OutboxLaneFilter *filter,
									  const OutboxTopicKeys *paused,
									  TimestampTz *due, bool *silent);
extern TimestampTz outbox_directory_next_lease(Oid dbid);
extern void outbox_directory_clock_went_back(TimestampTz now);
extern void outbox_directory_forget_databases(bool (*exists) (Oid dbid, void *arg),
											  void *arg);

extern int	outbox_lane_make(OutboxAgenda *agenda, const OutboxPlace *place,
							 uint64 token, bool *is_new);
extern void outbox_lane_share_part(OutboxAgenda *agenda, int lane, int part);
extern void outbox_lane_drop(OutboxAgenda *agenda, int lane);
extern bool outbox_lanes_make_room(void);

#endif							/* OUTBOX_DIRECTORY_H */
