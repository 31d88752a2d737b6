/*
 * round_trip.h
 *	  A worker's whole round trip in one call.
 */
#ifndef OUTBOX_ROUND_TRIP_H
#define OUTBOX_ROUND_TRIP_H

#include "core/enqueue.h"
#include "core/instance.h"
#include "table/catalog.h"

/* Bits of progress. */
#define OUTBOX_PROGRESS_STORED 1
#define OUTBOX_PROGRESS_EVENT_STORED 2
#define OUTBOX_PROGRESS_PUBLISHED 4
#define OUTBOX_PROGRESS_FAILED 32768

/* Flags of a call, and of a message in its result. */
#define OUTBOX_FLAG_NEW 1
#define OUTBOX_FLAG_ORPHANED 2
#define OUTBOX_FLAG_DEBUG 4
#define OUTBOX_FLAG_RETRY 32

/* One entry of a section that settles. */
typedef struct OutboxRoundTripEntry
{
	const pg_uuid_t *message_id;
	const int32 *status;		/* bits */
	const text *error;
	const int32 *reason;
} OutboxRoundTripEntry;

/* The sections for one of the two live tables. */
typedef struct OutboxRoundTripSide
{
	const OutboxStore *store;
	int			done_bits;
	OutboxRoundTripEntry *completions;
	int			ncompletions;
	OutboxRoundTripEntry *failures;
	int			nfailures;
	pg_uuid_t  *renewals;
	int			nrenewals;
	OutboxMessage *messages;
	int			nmessages;
} OutboxRoundTripSide;

typedef struct OutboxRoundTrip
{
	OutboxInstance instance;
	OutboxRoundTripSide sides[2];	/* the queue, the inbox */
	int			flags;
	int			partition_count;
	int			max_partitions; /* 0: no limit */
	int			lease_seconds;
	int			stale_seconds;
	int			batch_size;
	const text *subscription;	/* claim only its deliveries, or NULL */
	const int32 *subscribers;	/* the subscribers of that name, in order */
	int			nsubscribers;
	OutboxInstances alive;		/* filled in by outbox_round_trip_settle */
} OutboxRoundTrip;

/* A message that was leased. */
typedef struct OutboxRoundTripMessage
{
	HeapTuple	tuple;			/* of the live table */
	/* what the result is ordered by: stream and position in it; then age */
	bool		has_stream;
	pg_uuid_t	stream;
	int64		stream_seq;
	bool		shares_payload; /* with its publication */
	const text *payload;		/* the publication's; NULL if it is missing */
	TimestampTz created_at;
	int64		id;
	int			partition;		/* -1: none */
	int			flags;
} OutboxRoundTripMessage;

typedef struct OutboxRoundTripResult
{
	int			n;
	int			max;
	OutboxRoundTripMessage *messages;
} OutboxRoundTripResult;

extern void outbox_receive(OutboxMessage *messages, int nmessages);
extern void outbox_round_trip_settle(OutboxRoundTrip *trip);
extern void outbox_round_trip_claim(OutboxRoundTrip *trip, OutboxRoundTripResult *results);

#endif							/* OUTBOX_ROUND_TRIP_H */
