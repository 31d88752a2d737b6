/*
 * settle.h
 *	  What becomes of leased messages: done, tried again, failed, given back.
 */
#ifndef OUTBOX_SETTLE_H
#define OUTBOX_SETTLE_H

#include "outbox.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

/* One lease that somebody wants to settle. */
typedef struct OutboxLeaseRef
{
	int64		id;
	int			attempts;		/* must be the message's, unless negative */
} OutboxLeaseRef;

typedef enum OutboxSettlement
{
	OUTBOX_ACK,
	OUTBOX_NACK,
	OUTBOX_FAIL,
	OUTBOX_RENEW,
	OUTBOX_RELEASE
} OutboxSettlement;

/* What is wanted of them, all alike. */
typedef struct OutboxSettle
{
	OutboxSettlement what;
	pg_uuid_t	owner;
	int			nleases;
	OutboxLeaseRef *leases;
	bool		strict;			/* all, or an error */
	const text *error;			/* nack, fail */
	int			reason;			/* nack, fail */
	const Interval *delay;		/* nack: instead of the backoff */
	int			max_attempts;	/* nack: 0 as the topic says */
	int			lease_seconds;	/* renew */
	const TimestampTz *not_before;	/* release: not claimable until then */
} OutboxSettle;

extern int	outbox_settle(OutboxSettle *settle);
extern int	outbox_release_all(const pg_uuid_t *owner);
extern int	outbox_reap(int limit);

#endif							/* OUTBOX_SETTLE_H */
