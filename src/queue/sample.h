/*
 * sample.h
 *	  Counting the messages of each lane, up to a limit.
 */
#ifndef OUTBOX_SAMPLE_H
#define OUTBOX_SAMPLE_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "utils/uuid.h"

#include "table/catalog.h"

/* The messages of a topic, or of a subscription, in a lane. */
typedef struct OutboxLaneCounts
{
	const text *namespace;
	const text *topic;
	int32		subscriber;		/* 0: not deliveries */
	bool		more;			/* there may be more than were counted */
	int64		ready;			/* due, and not behind others of a stream */
	int64		behind;			/* due, and behind others of their streams */
	int64		delayed;
	int64		leased;
	int64		expired;		/* leased, and the lease has ended */
	int64		failing;		/* have failed three times or more */
	TimestampTz oldest_ready;	/* DT_NOEND: none is ready */
} OutboxLaneCounts;

/* Called for each result, which is valid during the call. */
typedef void (*OutboxLaneCountsSink) (const OutboxLaneCounts *counts, void *arg);

/* Called for each stream, with its first unfinished message. */
typedef void (*OutboxStreamSink) (const pg_uuid_t *stream, int64 first, void *arg);

extern void outbox_sample_lanes(const OutboxStore *store, bool deliveries,
								OutboxLaneCountsSink sink, void *arg);
extern void outbox_sample_streams(const OutboxStore *store,
								  OutboxStreamSink sink, void *arg);

#endif							/* OUTBOX_SAMPLE_H */
