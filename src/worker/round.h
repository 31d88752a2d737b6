/*
 * round.h
 *	  What a worker does in one round.
 */
#ifndef OUTBOX_ROUND_H
#define OUTBOX_ROUND_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "shmem/posts.h"

/* The result of a round. */
typedef struct OutboxRound
{
	int64		done;			/* how much there was to do */
	TimestampTz due;			/* when there will be more, without a call */
} OutboxRound;

extern void outbox_round_run(OutboxWorkersState *state, OutboxPost *post,
							 MemoryContext context, OutboxRound *round);
extern void outbox_round_follow(OutboxWorkersState *state, OutboxPost *post,
								MemoryContext context);

#endif							/* OUTBOX_ROUND_H */
