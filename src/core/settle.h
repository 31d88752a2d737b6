/*
 * settle.h
 *	  What becomes of leased messages: done, tried again, failed, given back.
 */
#ifndef OUTBOX_SETTLE_H
#define OUTBOX_SETTLE_H

#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "table/catalog.h"

typedef enum OutboxSettlement
{
	OUTBOX_ACK,
	OUTBOX_NACK,
	OUTBOX_FAIL,
	OUTBOX_RENEW,
	OUTBOX_RELEASE,
	OUTBOX_ADVANCE,				/* done, if its progress says so, else
								 * released */
	OUTBOX_EACH_ITS_OWN			/* as each lease says */
} OutboxSettlement;

/* One lease that somebody wants to settle. */
typedef struct OutboxLeaseRef
{
	int64		id;
	int			attempts;		/* must be the message's, unless negative */
	/* what is said of this one, if not of all */
	OutboxSettlement what;
	int			rank;			/* of one message, the lowest counts */
	int			progress;		/* bits to set */
	int			reason;			/* 0: as for all */
	const text *error;			/* NULL: as for all */
} OutboxLeaseRef;

/* What is wanted of them, all alike. */
typedef struct OutboxSettle
{
	const OutboxStore *store;
	OutboxSettlement what;
	bool		skip_locked;	/* pass over what others have in their hands */
	int			nskipped;		/* how many those were */
	pg_uuid_t	owner;
	int			nleases;
	OutboxLeaseRef *leases;
	bool		strict;			/* all, or an error */
	bool		must_not_wait;	/* for joins that others have in their hands */
	const text *error;			/* nack, fail */
	int			reason;			/* nack, fail */
	const Interval *delay;		/* nack: instead of the backoff */
	int			max_attempts;	/* nack: 0 as the topic says */
	int			lease_seconds;	/* renew */
	int			done_bits;		/* advance: done with any of these */
	bool		keep;			/* what is done, though its like is not kept */
	const TimestampTz *not_before;	/* release: not claimable until then */
} OutboxSettle;

extern int	outbox_settle(OutboxSettle *settle);
extern int	outbox_release_all(const OutboxStore *store,
							   const pg_uuid_t *owner);
extern bool outbox_expire_all(const OutboxStore *store, const pg_uuid_t *owner);

#endif							/* OUTBOX_SETTLE_H */
