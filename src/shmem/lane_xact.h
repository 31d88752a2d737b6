/*
 * lane_xact.h
 *	  What a transaction has done to lanes, and the actions at its end.
 */
#ifndef OUTBOX_LANE_XACT_H
#define OUTBOX_LANE_XACT_H

#include "postgres.h"

#include "outbox.h"
#include "shmem/lane_publish.h"
#include "shmem/lane_state.h"
#include "util/hash.h"

extern void outbox_lane_note_expiry(Oid relid, TimestampTz expires_at);
extern TimestampTz outbox_lane_noted_expiry(Oid relid);
extern void outbox_lane_note_new(Oid relid, const OutboxPlace *place,
								 OutboxReadyKey lo, OutboxReadyKey hi, int nmessages);
extern void outbox_lane_note_lease(Oid relid, const OutboxPlace *place,
								   OutboxReadyKey key, TimestampTz locked_until);
extern void outbox_lane_note_part(Oid relid, const OutboxPlace *place,
								  uint64 token, OutboxReadyKey key);
extern void outbox_lane_note_moved(Oid relid, const OutboxPlace *place,
								   OutboxReadyKey key);
extern void outbox_lane_note_claim(Oid relid, const OutboxPlace *place,
								   uint64 token, int nmessages);
extern bool outbox_lane_next_claimed_place(Oid relid, int *next,
										   OutboxPlace *place);
extern void outbox_lane_note_doubtful(Oid relid);

extern bool outbox_lane_has_moved(Oid relid);
extern bool outbox_lane_next_moved(Oid relid, const OutboxPlace *place,
								   int *next, OutboxRecord *record);
extern bool outbox_lane_next_moved_place(Oid relid, int *next,
										 OutboxPlace *place);
extern bool outbox_lane_next_noted(Oid relid, TimestampTz until, int *next,
								   OutboxPlace *place, OutboxReadyKey *lo,
								   OutboxReadyKey *hi);
extern bool outbox_lane_is_doubtful(Oid relid);

extern void outbox_lane_reserve_watch(void);
extern void outbox_lane_hold_watch(Oid relid, const OutboxPlace *place,
								   uint32 resets, int phase);
extern void outbox_lane_drop_watch(Oid relid, const OutboxPlace *place,
								   int phase);

extern FullTransactionId outbox_full_xid(TransactionId xid);
extern void outbox_lane_xact_end(OutboxXactEnd end);
extern void outbox_lane_subxact_abort(void);

#endif							/* OUTBOX_LANE_XACT_H */
