/*
 * expiry.h
 *	  Up to which time the search for expired messages is complete.
 */
#ifndef OUTBOX_EXPIRY_H
#define OUTBOX_EXPIRY_H

#include "postgres.h"

#include "datatype/timestamp.h"

/* A search for messages that have expired. */
typedef struct OutboxExpirySearch
{
	Oid			relid;
	bool		tracked;
	uint32		resets;
	uint32		version;
	TimestampTz from;			/* up to this time there are none */
} OutboxExpirySearch;

extern void outbox_expiry_begin(Oid relid, bool use_memory, TimestampTz now,
								OutboxExpirySearch *search);
extern void outbox_expiry_end(const OutboxExpirySearch *search,
							  TimestampTz until);
extern void outbox_expiry_report(Oid relid, TimestampTz expires_at);

#endif							/* OUTBOX_EXPIRY_H */
