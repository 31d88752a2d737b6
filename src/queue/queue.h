/*
 * queue.h
 *	  Changing messages that are in the queue.
 */
#ifndef OUTBOX_QUEUE_H
#define OUTBOX_QUEUE_H

#include "queue/history.h"
#include "outbox.h"
#include "table/table.h"

extern OutboxKey outbox_queue_key(TupleTableSlot *message);
extern int64 outbox_queue_topic_lane(TupleTableSlot *message);
extern int	outbox_queue_counted_attempts(TupleTableSlot *message);
extern void outbox_queue_make_ready(TupleTableSlot *row,
									TupleTableSlot *message, TimestampTz at,
									TimestampTz now);

extern OutboxRowResult outbox_queue_update(OutboxTable *queue,
										   TupleTableSlot *message,
										   TupleTableSlot *row, bool wait,
										   TransactionId *blocker);
extern OutboxRowResult outbox_queue_finish(OutboxTable *queue,
										   OutboxHistory *history,
										   TupleTableSlot *message,
										   const OutboxOutcome *outcome,
										   bool wait, TransactionId *blocker);

extern OutboxRowResult outbox_queue_remove(OutboxTable *queue,
										   TupleTableSlot *message);

#endif							/* OUTBOX_QUEUE_H */
