/*
 * cancel.h
 *	  Taking back, or putting off, what has not been handed out yet.
 */
#ifndef OUTBOX_CANCEL_H
#define OUTBOX_CANCEL_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "table/catalog.h"
#include "utils/uuid.h"

/* What an operator does with messages of the queue that wait. */
typedef enum OutboxOperationKind
{
	OUTBOX_DISCARD,				/* they are dead, cancelled */
	OUTBOX_PURGE,				/* the same, and nothing is kept of them */
	OUTBOX_RESCHEDULE			/* they become due at due_time */
} OutboxOperationKind;

typedef struct OutboxOperation
{
	OutboxOperationKind what;
	TimestampTz due_time;
	bool		wait;			/* for other transactions that change them */
} OutboxOperation;

extern int	outbox_operate(const OutboxOperation *operation, const int64 *ids,
						   int nids);
extern bool outbox_operate_message(const OutboxOperation *operation,
								   const pg_uuid_t *message_id);
extern bool outbox_cancel(const OutboxStore *store,
						  const pg_uuid_t *message_id);

#endif							/* OUTBOX_CANCEL_H */
