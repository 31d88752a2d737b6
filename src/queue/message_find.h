/*
 * message_find.h
 *	  Finding a message by its message_id, wherever it is.
 */
#ifndef OUTBOX_MESSAGE_FIND_H
#define OUTBOX_MESSAGE_FIND_H

#include "postgres.h"

#include "outbox.h"
#include "utils/uuid.h"

extern bool outbox_message_outcome(const pg_uuid_t *message_id,
								   OutboxStatus *status,
								   TransactionId *writer);
extern bool outbox_message_is_live(const pg_uuid_t *message_id);
extern bool outbox_message_is_kept(const pg_uuid_t *message_id);
extern bool outbox_message_in_history(const pg_uuid_t *message_id);

#endif							/* OUTBOX_MESSAGE_FIND_H */
