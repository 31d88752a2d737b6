/*
 * cause.h
 *	  The trace that a message belongs to, and what has caused it.
 */
#ifndef OUTBOX_CAUSE_H
#define OUTBOX_CAUSE_H

#include "utils/jsonb.h"
#include "utils/uuid.h"

#include "core/enqueue.h"

extern char *outbox_cause_traceparent(const Jsonb *headers);
extern void outbox_cause_note(OutboxMessage *message);
extern void outbox_cause_begin(const pg_uuid_t *message_id,
							   const char *traceparent);
extern void outbox_cause_end(void);

#endif							/* OUTBOX_CAUSE_H */
