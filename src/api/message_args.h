/*
 * message_fields.h
 *	  A message to be enqueued, as JSON.
 */
#ifndef OUTBOX_MESSAGE_FIELDS_H
#define OUTBOX_MESSAGE_FIELDS_H

#include "core/enqueue.h"
#include "api/json_args.h"

extern const OutboxJsonField outbox_message_fields[];
extern const int outbox_nmessage_fields;

extern void outbox_complete_message(OutboxMessage *message);

#endif							/* OUTBOX_MESSAGE_FIELDS_H */
