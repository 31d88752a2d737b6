/*
 * claim.h
 *	  Handing out messages.
 */
#ifndef OUTBOX_CLAIM_H
#define OUTBOX_CLAIM_H

#include "executor/tuptable.h"
#include "utils/uuid.h"

#include "table/catalog.h"
#include "util/hash.h"

/*
 * Returns the owner that should take this message.  NULL: the claimer may take
 * it.  The claimer itself: it must not take the message now.
 */
typedef const pg_uuid_t *(*OutboxPreference) (TupleTableSlot *message,
											  void *arg);

/* The arguments of a claim. */
typedef struct OutboxClaim
{
	const OutboxStore *store;	/* where to look */
	pg_uuid_t	owner;
	int			lease_seconds;
	int			batch_size;
	const text *namespace;		/* NULL: all */
	const text **topics;		/* NULL: all but reserved ones */
	int			ntopics;
	const pg_uuid_t *tenant;	/* NULL: all */
	const text *subscription;	/* the name of the subscribers, or NULL */
	const int32 *subscribers;	/* in order; NULL: no deliveries */
	int			nsubscribers;
	int			max_attempts;	/* 0: as the topic says */
	OutboxPreference preference;	/* or NULL */
	void	   *preference_arg;
} OutboxClaim;

/*
 * Called with each message that was claimed, in its new state.  taken_over: it
 * had a lease, which had ended.
 */
typedef void (*OutboxClaimSink) (TupleTableSlot *message, bool taken_over,
								 void *arg);

extern void outbox_claim_filter(const OutboxClaim *claim,
								OutboxLaneFilter *filter);
extern int	outbox_claim(const OutboxClaim *claim, OutboxClaimSink sink,
						 void *arg, bool *for_others);

#endif							/* OUTBOX_CLAIM_H */
