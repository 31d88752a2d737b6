/*
 * end_trigger.h
 *	  Firing triggers when messages have ended.
 */
#ifndef OUTBOX_END_TRIGGER_H
#define OUTBOX_END_TRIGGER_H

#include "outbox.h"
#include "table/table.h"
#include "utils/uuid.h"

/* A message that has left the queue, and how. */
typedef struct OutboxEnded
{
	pg_uuid_t	message_id;
	OutboxStatus status;		/* OUTBOX_DONE or OUTBOX_DEAD */
} OutboxEnded;

typedef struct OutboxEndedList
{
	int			n;
	int			max;
	OutboxEnded *messages;		/* in the order in which they ended */
	bool		must_not_wait;	/* trigger functions must not wait for other
								 * transactions */
} OutboxEndedList;

extern void outbox_ended_add(OutboxEndedList *list,
							 const pg_uuid_t *message_id,
							 OutboxStatus status);
extern void outbox_ended_fire(OutboxTable *queue, const OutboxEndedList *list);
extern const OutboxEndedList *outbox_ended_now(void);

#endif							/* OUTBOX_END_TRIGGER_H */
