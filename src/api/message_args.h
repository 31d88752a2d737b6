/*
 * message_args.h
 *	  A message to be enqueued, as JSON.
 */
#ifndef OUTBOX_MESSAGE_ARGS_H
#define OUTBOX_MESSAGE_ARGS_H

#include "api/json_args.h"
#include "core/enqueue.h"

extern const OutboxJsonField outbox_message_fields[];
extern const int outbox_nmessage_fields;

extern void outbox_message_set_defaults(OutboxMessage *message);

#endif							/* OUTBOX_MESSAGE_ARGS_H */
