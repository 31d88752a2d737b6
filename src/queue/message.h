/*
 * message.h
 *	  A message as workers and handlers see it: the type outbox.message.
 */
#ifndef OUTBOX_MESSAGE_H
#define OUTBOX_MESSAGE_H

#include "postgres.h"

#include "executor/tuptable.h"
#include "utils/uuid.h"

#define OUTBOX_MESSAGE_NATTS 19

extern const pg_uuid_t *outbox_message_stream(TupleTableSlot *message);
extern void outbox_message_values(TupleTableSlot *message, Datum *values,
								  bool *isnull);
extern Datum outbox_message_datum(TupleTableSlot *message);

#endif							/* OUTBOX_MESSAGE_H */
