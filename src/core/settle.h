/*
 * settle.h
 *	  Settling leases: ack, nack, fail, renew, release.
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

/* A lease that a caller wants to settle. */
typedef struct OutboxLeaseRef
{
	int64		id;
	int			attempts;		/* must be the message's, unless negative */
	/* for this lease only, if not for all */
	OutboxSettlement what;
	int			rank;			/* of several for one message, the lowest
								 * counts */
	int			progress;		/* bits to set */
	int			reason;			/* 0: as for all */
	const text *error;			/* NULL: as for all */
} OutboxLeaseRef;

/* The arguments of a call, for all of its leases. */
typedef struct OutboxSettle
{
	const OutboxStore *store;
	OutboxSettlement what;
	bool		skip_locked;	/* skip messages that others have locked */
	int			nskipped;		/* result: how many were skipped */
	pg_uuid_t	owner;
	int			nleases;
	OutboxLeaseRef *leases;
	bool		strict;			/* error if a lease is lost */
	bool		must_not_wait;	/* for joins that others have locked */
	const text *error;			/* nack, fail */
	int			reason;			/* nack, fail */
	const Interval *delay;		/* nack: instead of the backoff */
	int			max_attempts;	/* nack: 0 as the topic says */
	int			lease_seconds;	/* renew */
	int			done_bits;		/* advance: done with any of these */
	bool		keep;			/* keep done messages even if the topic does
								 * not */
	const TimestampTz *not_before;	/* release: not claimable until then */
} OutboxSettle;

extern int	outbox_settle(OutboxSettle *settle);
extern int	outbox_release_all(const OutboxStore *store,
							   const pg_uuid_t *owner);
extern bool outbox_expire_all(const OutboxStore *store, const pg_uuid_t *owner);

#endif							/* OUTBOX_SETTLE_H */
