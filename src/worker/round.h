/*
 * round.h
 *	  What a worker does in one round.
 */
#ifndef OUTBOX_ROUND_H
#define OUTBOX_ROUND_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "shmem/posts.h"

/* How a round went. */
typedef struct OutboxRound
{
	int64		done;			/* how much there was to do */
	TimestampTz due;			/* when there will be more, if nobody calls */
} OutboxRound;

extern void outbox_round_run(OutboxWorkersState *state, OutboxPost *post,
							 MemoryContext context, OutboxRound *round);

#endif							/* OUTBOX_ROUND_H */
