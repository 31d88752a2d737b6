/*
 * wait_event.h
 *	  What a process of the extension waits for, as pg_stat_activity shows it.
 */
#ifndef OUTBOX_WAIT_EVENT_H
#define OUTBOX_WAIT_EVENT_H

#include "postgres.h"

typedef enum OutboxWaitEvent
{
	OUTBOX_WAIT_CLAIM,			/* a claim, for messages */
	OUTBOX_WAIT_LAUNCHER,		/* the launcher, for a post that needs a
								 * worker */
	OUTBOX_WAIT_WORKER			/* a worker, for something to do */
} OutboxWaitEvent;

extern uint32 outbox_wait_event(OutboxWaitEvent event);

#endif							/* OUTBOX_WAIT_EVENT_H */
