/*
 * join.h
 *	  Joins: counting the steps that have ended, and waking the waits.
 */
#ifndef OUTBOX_JOIN_H
#define OUTBOX_JOIN_H

#include "outbox.h"
#include "queue/end_trigger.h"

typedef enum OutboxJoinStatus
{
	OUTBOX_JOIN_PENDING = 0,
	OUTBOX_JOIN_COMPLETED = 1,
	OUTBOX_JOIN_FAILED = 2,
	OUTBOX_JOIN_CANCELLED = 3
} OutboxJoinStatus;

/* The outcome of a member: an OutboxJoinStatus as well, but not cancelled. */

/* How far a join is. */
typedef struct OutboxJoinCount
{
	int			expected;
	int			completed;
	int			failed;
	OutboxJoinStatus status;
} OutboxJoinCount;

extern int	outbox_join_add(OutboxJoinCount *count, int completed, int failed);
extern void outbox_join_count(const OutboxEndedList *ended);
extern bool outbox_join_report(const pg_uuid_t *join_id,
							   const pg_uuid_t *message_id,
							   OutboxStatus status);
extern bool outbox_join_look(const pg_uuid_t *join_id, OutboxJoinCount *join,
							 TransactionId *writer);
extern bool outbox_join_wake(const pg_uuid_t *join_id);
extern bool outbox_join_wake_wait(const pg_uuid_t *message_id);

#endif							/* OUTBOX_JOIN_H */
