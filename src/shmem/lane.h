/*
 * lane.h
 *	  What a scan of a lane must visit, and what it leaves behind.  The rules
 *	  are at the top of lane.c.
 */
#ifndef OUTBOX_LANE_H
#define OUTBOX_LANE_H

#include "postgres.h"

#include "outbox.h"
#include "shmem/lane_state.h"
#include "util/hash.h"

/* Maximum number of marks that one scan visits. */
#ifdef OUTBOX_TINY
#define OUTBOX_SCAN_MARKS 3
#else
#define OUTBOX_SCAN_MARKS 256
#endif

/* The purpose of a scan. */
typedef enum OutboxScanKind
{
	OUTBOX_SCAN_CLAIM,			/* all that may be claimable */
	OUTBOX_SCAN_REAP,			/* leases that have ended */
	OUTBOX_SCAN_LEASES			/* every lease */
} OutboxScanKind;

/* What a scan has found that must be visited again. */
typedef struct OutboxFound
{
	OutboxRecord record;
	FullTransactionId blocker;	/* that must end before, by its top-level id */
	bool		silent;			/* its end will not be reported */
	bool		recorded;		/* it is in a mark of the lane already */
	bool		marked;			/* undecided, and in a mark that was visited */
} OutboxFound;

/* Keys that the owner "token" must visit; if shared, others may as well. */
typedef struct OutboxPartRecord
{
	uint64		token;
	bool		shared;
	OutboxReadyKey lo;
	OutboxReadyKey hi;
} OutboxPartRecord;

/*
 * State of a scan of one lane: what it must visit, and what it has found.
 */
typedef struct OutboxLaneScan
{
	OutboxScanKind kind;
	Oid			relid;
	OutboxPlace place;
	uint64		token;			/* of the part that is scanned; 0: the lane */
	bool		tracked;		/* false: not recorded in shared memory */
	uint32		resets;			/* of the agenda when the scan began */
	bool		called;			/* the lane had been called */
	int			phase;			/* of the watch; -1: none */
	uint16		leases_lost;	/* of the lane when the scan began */

	/* to visit */
	OutboxReadyKey cursor;
	bool		scan_main;		/* from the cursor on */
	int			nmarks;
	OutboxMarkCopy *marks;
	int			nleft;			/* further marks that are due, but were not
								 * copied */

	/* found */
	OutboxReadyKey passed;		/* everything to visit below it was visited */
	OutboxReadyKey limit;		/* smallest key that was left for others */
	bool		exhausted;		/* the main part was visited to its end */
	TimestampTz next_due;		/* if exhausted: that of the next key in the
								 * lane */
	bool		lease_left;		/* a lease that has ended was left for others */
	bool		try_again;		/* something is locked by an unknown
								 * transaction */
	int			nfound;
	int			max_found;
	OutboxFound *found;
	int			nparts;
	int			max_parts;
	OutboxPartRecord *parts;
	int			nclaimed;
} OutboxLaneScan;

extern bool outbox_lane_begin(Oid relid, const OutboxPlace *place,
							  uint64 token, bool use_memory, TimestampTz now,
							  OutboxScanKind kind, OutboxLaneScan *scan);
extern void outbox_lane_found_undecided(OutboxLaneScan *scan, OutboxReadyKey key,
										TransactionId xid);
extern void outbox_lane_found_locked(OutboxLaneScan *scan, OutboxReadyKey key,
									 TransactionId xid);
extern void outbox_lane_found_ready(OutboxLaneScan *scan, OutboxReadyKey key);
extern void outbox_lane_found_own(OutboxLaneScan *scan, OutboxReadyKey key,
								  TransactionId xid, TimestampTz at);
extern void outbox_lane_found_lease(OutboxLaneScan *scan, OutboxReadyKey key,
									TimestampTz locked_until);
extern void outbox_lane_found_part(OutboxLaneScan *scan, OutboxReadyKey key,
								   uint64 token, bool shared);
extern void outbox_lane_finish(OutboxLaneScan *scan, TimestampTz now);

#endif							/* OUTBOX_LANE_H */
