/*
 * count.h
 *	  Counting what happens to messages.
 */
#ifndef OUTBOX_COUNT_H
#define OUTBOX_COUNT_H

#include "postgres.h"

#include "executor/tuptable.h"

#include "shmem/counters.h"
#include "table/catalog.h"

extern void outbox_count_enqueued(OutboxStoreKind kind, const text *namespace,
								  const text *topic, int32 subscriber,
								  const text *payload);
extern void outbox_count_message(OutboxStoreKind kind, TupleTableSlot *message,
								 OutboxCount count);
extern void outbox_count_claimed(OutboxStoreKind kind, TupleTableSlot *message,
								 TimestampTz now);
extern int64 outbox_count_served(OutboxStoreKind kind, TupleTableSlot *message,
								 TimestampTz now);
extern void outbox_count_call(const text *namespace, const text *topic,
							  int32 subscriber, int64 usecs);

#endif							/* OUTBOX_COUNT_H */
