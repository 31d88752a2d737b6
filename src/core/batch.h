/*
 * batch.h
 *	  A worker's whole round trip in one call.
 */
#ifndef OUTBOX_BATCH_H
#define OUTBOX_BATCH_H

#include "core/enqueue.h"
#include "core/instance.h"
#include "table/catalog.h"

/* Bits of progress. */
#define OUTBOX_PROGRESS_STORED 1
#define OUTBOX_PROGRESS_EVENT_STORED 2
#define OUTBOX_PROGRESS_PUBLISHED 4
#define OUTBOX_PROGRESS_FAILED 32768

/* What was asked for, and what is told of a message. */
#define OUTBOX_FLAG_NEW 1
#define OUTBOX_FLAG_ORPHANED 2
#define OUTBOX_FLAG_DEBUG 4
#define OUTBOX_FLAG_RETRY 32

/* One entry of a section that settles. */
typedef struct OutboxBatchEntry
{
	const pg_uuid_t *message_id;
	const int32 *status;		/* bits */
	const text *error;
	const int32 *reason;
} OutboxBatchEntry;

/* What one of the two live tables gets to do. */
typedef struct OutboxBatchSide
{
	const OutboxStore *store;
	int			done_bits;
	OutboxBatchEntry *completions;
	int			ncompletions;
	OutboxBatchEntry *failures;
	int			nfailures;
	pg_uuid_t  *renewals;
	int			nrenewals;
	OutboxMessage *messages;
	int			nmessages;
} OutboxBatchSide;

typedef struct OutboxBatch
{
	OutboxInstance instance;
	OutboxBatchSide sides[2];	/* the queue, the inbox */
	int			flags;
	int			partition_count;
	int			max_partitions; /* 0: no limit */
	int			lease_seconds;
	int			stale_seconds;
	int			batch_size;
	OutboxInstances alive;		/* filled in by outbox_batch_settle */
} OutboxBatch;

/* A message that was leased. */
typedef struct OutboxBatchMessage
{
	HeapTuple	tuple;			/* of the live table */
	/* its place in the result: by stream, and its order; then by age */
	bool		has_stream;
	pg_uuid_t	stream;
	int64		stream_seq;
	TimestampTz created_at;
	int64		id;
	int			partition;		/* -1: none */
	int			flags;
} OutboxBatchMessage;

typedef struct OutboxBatchResult
{
	int			n;
	int			max;
	OutboxBatchMessage *messages;
} OutboxBatchResult;

extern void outbox_receive(OutboxMessage *messages, int nmessages);
extern void outbox_batch_settle(OutboxBatch *batch);
extern void outbox_batch_claim(OutboxBatch *batch, OutboxBatchResult *results);

#endif							/* OUTBOX_BATCH_H */
