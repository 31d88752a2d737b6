/*
 * lane_publish.h
 *	  Publishing to lanes what a transaction has done, when it has ended.
 */
#ifndef OUTBOX_LANE_PUBLISH_H
#define OUTBOX_LANE_PUBLISH_H

#include "postgres.h"

#include "access/transam.h"

#include "outbox.h"
#include "shmem/agenda.h"
#include "util/hash.h"

typedef enum OutboxNoteKind
{
	OUTBOX_NOTE_NEW,			/* keys that may be claimable */
	OUTBOX_NOTE_LEASE,			/* keys leased until "at" */
	OUTBOX_NOTE_PART			/* keys for the owner "token" only */
} OutboxNoteKind;

/* What to publish to a lane when the transaction has committed. */
typedef struct OutboxLaneNote
{
	OutboxNoteKind kind;
	Oid			relid;
	OutboxPlace place;
	uint64		token;
	OutboxReadyKey lo;
	OutboxReadyKey hi;
	TimestampTz at;
	int			nmessages;
} OutboxLaneNote;

/* How a transaction has ended. */
typedef enum OutboxXactEnd
{
	OUTBOX_XACT_COMMITTED,
	OUTBOX_XACT_ABORTED,
	OUTBOX_XACT_PREPARED
} OutboxXactEnd;

extern void outbox_lane_publish(const OutboxLaneNote *notes, int nnotes,
								FullTransactionId prepared);
extern void outbox_lane_end_claim(Oid relid, const OutboxPlace *place,
								  uint64 token, FullTransactionId xid,
								  FullTransactionId top, int nmessages,
								  OutboxXactEnd end);
extern void outbox_lanes_unblock(Oid relid, FullTransactionId xid, bool ended);
extern void outbox_lanes_look_at_silent(OutboxAgenda *agenda);
extern bool outbox_xact_is_over(FullTransactionId xid);

#endif							/* OUTBOX_LANE_PUBLISH_H */
