/*
 * tally.h
 *	  What a transaction has counted.
 */
#ifndef OUTBOX_TALLY_H
#define OUTBOX_TALLY_H

#include "postgres.h"

#include "shmem/counters.h"

/* What happens to the messages of one topic, in this process. */
typedef struct OutboxTally OutboxTally;

extern OutboxTally *outbox_tally_find(int kind, int32 subscriber,
									  const text *namespace, const text *topic);
extern OutboxTally *outbox_tally_new(int kind, int32 subscriber,
									 const text *namespace,
									 const text *subscription,
									 const text *topic);
extern void outbox_tally_count(OutboxTally *tally, OutboxCount count, uint64 n);
extern void outbox_tally_time(OutboxTally *tally, OutboxHistogram histogram,
							  int64 usecs);
extern void outbox_tally_xact_end(bool is_committed);
extern void outbox_tally_subxact_end(bool is_committed);

#endif							/* OUTBOX_TALLY_H */
