/*
 * enqueue.h
 *	  Putting messages into the queue.
 */
#ifndef OUTBOX_ENQUEUE_H
#define OUTBOX_ENQUEUE_H

#include "utils/array.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "outbox.h"
#include "queue/stream.h"
#include "table/catalog.h"
#include "util/hash.h"

/* The outcome of enqueueing a message. */
typedef enum OutboxEnqueueOutcome
{
	OUTBOX_ENQUEUED,
	OUTBOX_KEPT,				/* another message has its key, and stays
								 * unchanged */
	OUTBOX_REPLACED,			/* that message got its payload and headers */
	OUTBOX_DEBOUNCED			/* that message got its due time */
} OutboxEnqueueOutcome;

/* A message to enqueue; absent is NULL.  The caller must have checked it. */
typedef struct OutboxMessage
{
	const text *topic;
	const text *payload;
	const text *namespace;
	const text *correlation_id;
	const text *dedupe_key;
	const Jsonb *headers;
	const TimestampTz *due_time;
	const TimestampTz *expires_at;
	const pg_uuid_t *tenant_id;
	const pg_uuid_t *stream_id; /* of a delivery, as its row has it */
	const pg_uuid_t *given_id;	/* message_id chosen by the caller */
	const Interval *dedupe_for; /* how long the key is taken; NULL: as long as
								 * the message is kept */
	const text *on_duplicate;	/* what to do with the message that has the
								 * key; NULL: keep it */
	const int32 *priority;		/* NULL: as the topic's policy says */
	int32		subscriber;		/* 0: not a delivery; else message_id is set */
	const pg_uuid_t *published_id;	/* of a delivery */
	const TimestampTz *published_at;	/* of a delivery that refers to its
										 * publication's row */
	int64		replayed_id;	/* if not 0, its id when it was in the queue
								 * before */
	TimestampTz replayed_created_at;
	const ArrayType *replayed_errors;	/* of its earlier attempts, or NULL */
	bool		retakes_key;	/* replayed: its dedupe key was freed */
	bool		refused;		/* will not be enqueued after all */
	bool		has_cause;		/* "cause" is what has caused it (cause.c) */
	pg_uuid_t	cause;

	/* results */
	pg_uuid_t	message_id;
	bool		enqueued;		/* false: message_id is that of the message
								 * with the dedupe key */
	OutboxEnqueueOutcome outcome;

	/* internal */
	int			topic_priority; /* the priority of its topic's policy */
	int64		id;
	pg_uuid_t	dedupe_digest;
} OutboxMessage;

extern const char *outbox_outcome_name(OutboxEnqueueOutcome outcome);
extern void outbox_check_message(const OutboxMessage *message,
								 const char *prefix);
extern void outbox_check_priority(const int32 *priority, const char *prefix);
extern void outbox_check_payload(const text *payload, const char *prefix);
extern void outbox_check_received(const OutboxMessage *message,
								  const char *prefix);
extern void outbox_make_row(const OutboxMessage *message,
							OutboxStreamTurn *turn, TimestampTz now,
							Datum *values, bool *isnull,
							OutboxPlace *place, OutboxReadyKey *key);
extern void outbox_notify_listeners(void);
extern void outbox_check_given_id(const OutboxMessage *message);
extern void outbox_enqueue(const OutboxStore *store, OutboxMessage *messages,
						   int nmessages);

#endif							/* OUTBOX_ENQUEUE_H */
