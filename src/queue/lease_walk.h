/*
 * lease_walk.h
 *	  Visiting the leases of a table.
 */
#ifndef OUTBOX_LEASE_WALK_H
#define OUTBOX_LEASE_WALK_H

#include "postgres.h"

#include "queue/walk.h"
#include "shmem/lane.h"
#include "table/table.h"
#include "util/hash.h"

/* Called for each message of interest; false ends the visit. */
typedef bool (*OutboxWalkVisit) (OutboxWalk *walk, void *arg);

extern void outbox_walk_leases(OutboxTable *queue, TimestampTz now,
							   OutboxScanKind kind, OutboxWalkVisit visit,
							   void *arg);

extern void outbox_walk_lane_leases(OutboxTable *queue,
									const OutboxPlace *place, TimestampTz now,
									OutboxWalkVisit visit, void *arg);

#endif							/* OUTBOX_LEASE_WALK_H */
