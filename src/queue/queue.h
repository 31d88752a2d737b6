/*
 * queue.h
 *	  Changing messages that are in the queue.
 */
#ifndef OUTBOX_QUEUE_H
#define OUTBOX_QUEUE_H

#include "outbox.h"
#include "queue/history.h"
#include "queue/policy.h"
#include "table/table.h"
#include "util/hash.h"

/* What would come of an attempt to hand a message out. */
typedef enum OutboxFate
{
	OUTBOX_FATE_LIVE,			/* it can be handed out, now or later */
	OUTBOX_FATE_EXPIRED,
	OUTBOX_FATE_EXHAUSTED		/* it is out of attempts */
} OutboxFate;

extern OutboxReadyKey outbox_queue_ready_key(TupleTableSlot *message);
extern int	outbox_queue_priority(TupleTableSlot *message);
extern void outbox_queue_place(TupleTableSlot *message, OutboxPlace *place);
extern int	outbox_queue_counted_attempts(TupleTableSlot *message);
extern OutboxFate outbox_queue_fate(TupleTableSlot *message,
									const OutboxPolicy *policy,
									int max_attempts, TimestampTz now);
extern OutboxReason outbox_fate_reason(OutboxFate fate);
extern void outbox_queue_make_ready(TupleTableSlot *row,
									TupleTableSlot *message, TimestampTz at,
									TimestampTz now);

extern void outbox_queue_note_expiry(Oid relid, TupleTableSlot *row);
extern OutboxRowResult outbox_queue_update(OutboxTable *queue,
										   TupleTableSlot *message,
										   TupleTableSlot *row, bool wait,
										   TransactionId *blocker);
extern OutboxRowResult outbox_queue_finish(OutboxTable *queue,
										   OutboxHistory *history,
										   TupleTableSlot *message,
										   const OutboxOutcome *outcome,
										   bool wait, TransactionId *blocker);

extern OutboxRowResult outbox_queue_bury(OutboxTable *queue,
										 OutboxHistory *history,
										 TupleTableSlot *message,
										 OutboxFate fate,
										 TransactionId *blocker);
extern OutboxRowResult outbox_queue_remove(OutboxTable *queue,
										   TupleTableSlot *message);

#endif							/* OUTBOX_QUEUE_H */
