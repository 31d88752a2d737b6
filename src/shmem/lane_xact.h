/*
 * lane_xact.h
 *	  What a transaction has done to lanes, and what its end means for them.
 */
#ifndef OUTBOX_LANE_XACT_H
#define OUTBOX_LANE_XACT_H

#include "outbox.h"
#include "shmem/lane_state.h"

extern void outbox_lane_note_change(Oid relid, int64 lane, OutboxKey key);
extern bool outbox_lane_own_change(Oid relid, int64 lane, int *next,
								   OutboxHole *hole);
extern void outbox_lane_remember_claim(OutboxLane *slot, Oid relid, int64 lane,
									   TransactionId xid);

extern void outbox_lane_reserve_watch(void);
extern void outbox_lane_hold_watch(OutboxLane *slot, int watch);
extern void outbox_lane_drop_watch(OutboxLane *slot, int watch);

extern void outbox_lane_xact_end(bool committed);
extern void outbox_lane_subxact_abort(void);

#endif							/* OUTBOX_LANE_XACT_H */
