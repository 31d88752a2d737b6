/*
 * duplicate.h
 *	  Messages whose dedupe keys may be taken.
 */
#ifndef OUTBOX_DUPLICATE_H
#define OUTBOX_DUPLICATE_H

#include "core/enqueue.h"

extern bool outbox_read_on_duplicate(const text *on_duplicate,
									 OutboxEnqueueOutcome *outcome);
extern void outbox_take_keys(OutboxMessage *messages, int nmessages);

#endif							/* OUTBOX_DUPLICATE_H */
