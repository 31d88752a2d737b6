/*
 * timer.h
 *	  Heaps of lanes, the one with the earliest time on top.
 */
#ifndef OUTBOX_TIMER_H
#define OUTBOX_TIMER_H

#include "postgres.h"

#include "datatype/timestamp.h"

/* Which of a lane's timers a heap is made of. */
typedef enum OutboxTimerKind
{
	OUTBOX_TIMER_WAKE,
	OUTBOX_TIMER_LEASE
} OutboxTimerKind;

extern void outbox_timer_set(int *root, OutboxTimerKind kind, int lane,
							 TimestampTz at);
extern TimestampTz outbox_timer_at(OutboxTimerKind kind, int lane);
extern TimestampTz outbox_timer_first(int root, OutboxTimerKind kind);
extern int	outbox_timer_next(int root, OutboxTimerKind kind, int lane,
							  TimestampTz until);

#endif							/* OUTBOX_TIMER_H */
