/*
 * claim_wait.h
 *	  A claim that waits until there is something to claim.
 */
#ifndef OUTBOX_CLAIM_WAIT_H
#define OUTBOX_CLAIM_WAIT_H

#include "core/claim.h"

extern int	outbox_claim_or_wait(const OutboxClaim *claim, int wait_ms,
								 OutboxClaimSink sink, void *arg);

#endif							/* OUTBOX_CLAIM_WAIT_H */
