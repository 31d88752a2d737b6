/*
 * lane_state.h
 *	  The state of a lane: its cursor and its marks.
 */
#ifndef OUTBOX_LANE_STATE_H
#define OUTBOX_LANE_STATE_H

#include "postgres.h"

#include "access/transam.h"

#include "outbox.h"
#include "shmem/lane_memory.h"

/* Something to record; see OutboxMark. */
typedef struct OutboxRecord
{
	OutboxReadyKey lo;
	OutboxReadyKey hi;
	FullTransactionId xid;
	TimestampTz at;
} OutboxRecord;

/* A scan's copy of a mark, and which mark it was. */
typedef struct OutboxMarkCopy
{
	int			cell;
	uint32		serial;
	OutboxRecord record;
} OutboxMarkCopy;

extern void outbox_lane_forget_marks(OutboxLane *lane);
extern bool outbox_lane_has_no_marks(const OutboxLane *lane);
extern bool outbox_lane_is_quiet(const OutboxLane *lane);
extern bool outbox_lane_is_done_part(const OutboxLane *lane);
extern void outbox_lane_call(OutboxLane *lane);
extern bool outbox_lane_is_visitable(const OutboxLane *lane, TimestampTz now);
extern TimestampTz outbox_lane_next_time(const OutboxLane *lane,
										 TimestampTz *lease);
extern OutboxReadyKey outbox_lane_first_key(const OutboxLane *lane,
											TimestampTz now);

extern bool outbox_lane_record(OutboxLane *lane, const OutboxRecord *record);
extern void outbox_lane_take_over_marks(OutboxLane *lane, OutboxLane *part);
extern void outbox_lane_raise_cursor(OutboxLane *lane, OutboxReadyKey key,
									 TimestampTz next_due);

extern void outbox_lane_make_due(OutboxLane *lane, TimestampTz now);
extern int	outbox_lane_copy_due(OutboxLane *lane, OutboxMarkCopy *copies,
								 int max);
extern int	outbox_lane_copy_pending(const OutboxLane *lane,
									 OutboxMarkCopy *copies, bool undecided);
extern void outbox_lane_drop_mark(OutboxLane *lane, const OutboxMarkCopy *copy,
								  OutboxReadyKey done);
extern void outbox_lane_decide(OutboxLane *lane, FullTransactionId xid);


extern int	outbox_lane_watch(OutboxLane *lane);
extern void outbox_lane_unwatch(OutboxLane *lane, int phase);

/* More pending marks than this are merged. */
#ifdef OUTBOX_TINY
#define OUTBOX_MAX_PENDING 4
#else
#define OUTBOX_MAX_PENDING 64
#endif

#endif							/* OUTBOX_LANE_STATE_H */
