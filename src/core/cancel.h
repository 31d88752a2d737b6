/*
 * cancel.h
 *	  Removing, cancelling, changing, or postponing messages that are waiting.
 */
#ifndef OUTBOX_CANCEL_H
#define OUTBOX_CANCEL_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "outbox.h"
#include "table/catalog.h"
#include "utils/jsonb.h"
#include "utils/uuid.h"

/* Operations on messages of the queue that are waiting. */
typedef enum OutboxOperationKind
{
	OUTBOX_DISCARD,				/* move them to dead, as cancelled */
	OUTBOX_PURGE,				/* delete them, and keep no history */
	OUTBOX_RESCHEDULE,			/* make them due at due_time */
	/* by an enqueue with their dedupe key: */
	OUTBOX_REPLACE,				/* set payload and headers */
	OUTBOX_DEBOUNCE				/* make them due at debounce_to */
} OutboxOperationKind;

typedef struct OutboxOperation
{
	OutboxOperationKind what;
	TimestampTz due_time;		/* of OUTBOX_RESCHEDULE */
	const TimestampTz *debounce_to; /* of OUTBOX_DEBOUNCE; NULL: now */
	const text *payload;		/* of OUTBOX_REPLACE */
	const Jsonb *headers;		/* likewise; or NULL */
	bool		wait;			/* for concurrent transactions that have
								 * changed a message */
	OutboxReason reason;		/* for discarding; 0: cancelled */
	const char *error;			/* or NULL */
} OutboxOperation;

extern int	outbox_operate(const OutboxOperation *operation, const int64 *ids,
						   int nids);
extern bool outbox_operate_message(const OutboxOperation *operation,
								   const pg_uuid_t *message_id);
extern TimestampTz outbox_debounced_due_time(TimestampTz created_at,
											 TimestampTz due_time);
extern bool outbox_cancel(const OutboxStore *store,
						  const pg_uuid_t *message_id);

#endif							/* OUTBOX_CANCEL_H */
