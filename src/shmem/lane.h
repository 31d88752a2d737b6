/*
 * lane.h
 *	  What the server remembers of each lane, so that no claim walks what is
 *	  gone.  The rules are at the top of lane.c.
 */
#ifndef OUTBOX_LANE_H
#define OUTBOX_LANE_H

#include "postgres.h"

#include "outbox.h"
#include "shmem/lane_state.h"

/* What a scan is for. */
typedef enum OutboxScanKind
{
	OUTBOX_SCAN_CLAIM,			/* all that may be deliverable */
	OUTBOX_SCAN_REAP,			/* leases that have ended */
	OUTBOX_SCAN_LEASES			/* every lease */
} OutboxScanKind;

/*
 * One scan's dealings with one lane: what it was told to look at, and, filled
 * in on the way, what it found.
 */
typedef struct OutboxLaneScan
{
	OutboxScanKind kind;
	Oid			relid;
	int64		lane;
	OutboxLane *slot;			/* NULL: not tracked, look at everything */
	int			watch;			/* -1: cannot move the cursor */

	/* told */
	OutboxKey	cursor;
	bool		scan_main;		/* look from the cursor on */
	int			nholes;
	OutboxHole *holes;
	int			nbuckets;
	OutboxBucket *buckets;

	/* found */
	OutboxKey	passed;			/* everything told below this was looked at */
	OutboxKey	limit;			/* smallest key that was left as it was */
	bool		exhausted;		/* the main part was looked at to its end */
	TimestampTz next_due;		/* if exhausted: next key in the lane */
	int			nfound_holes;
	int			max_found_holes;
	OutboxHole *found_holes;
	int			nfound_leases;
	int			max_found_leases;
	OutboxBucket *found_leases;
} OutboxLaneScan;

extern bool outbox_lane_begin(Oid relid, int64 lane, TimestampTz now,
							  OutboxScanKind kind, OutboxLaneScan *scan);
extern void outbox_lane_found_hole(OutboxLaneScan *scan, OutboxKey key,
								   TransactionId xid, bool claimed);
extern void outbox_lane_found_lease(OutboxLaneScan *scan, OutboxKey key,
									TimestampTz locked_until);
extern void outbox_lane_finish(OutboxLaneScan *scan, TimestampTz now);

extern void outbox_lane_report(Oid relid, int64 lane, OutboxKey lo,
							   OutboxKey hi, TransactionId xid);
extern void outbox_lane_report_lease(Oid relid, int64 lane, OutboxKey lo,
									 OutboxKey hi, TimestampTz locked_until);

#endif							/* OUTBOX_LANE_H */
