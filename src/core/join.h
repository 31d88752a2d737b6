/*
 * join.h
 *	  Joins: how many of their steps have ended, and who waits for that.
 */
#ifndef OUTBOX_JOIN_H
#define OUTBOX_JOIN_H

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
extern void outbox_join_require(const pg_uuid_t *join_id);
extern void outbox_join_count(const OutboxEndedList *ended,
							  const pg_uuid_t *only_join);
extern void outbox_join_wake(const pg_uuid_t *join_id);

#endif							/* OUTBOX_JOIN_H */
