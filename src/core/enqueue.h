/*
 * enqueue.h
 *	  Putting messages into the queue.
 */
#ifndef OUTBOX_ENQUEUE_H
#define OUTBOX_ENQUEUE_H

#include "utils/array.h"
#include "utils/jsonb.h"
#include "utils/uuid.h"

#include "outbox.h"
#include "queue/stream.h"
#include "table/catalog.h"
#include "util/hash.h"

/* A message to be enqueued; absent is NULL.  Checked by the caller. */
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
	const pg_uuid_t *stream_id;
	const pg_uuid_t *given_id;	/* message_id as the caller wants it */
	int64		replayed_id;	/* not 0: it was in the queue before, as this */
	TimestampTz replayed_created_at;
	const ArrayType *replayed_errors;	/* of its attempts then, or NULL */
	bool		retakes_key;	/* replayed: its dedupe key has been free */
	bool		refused;		/* not to be enqueued after all */

	/* results */
	pg_uuid_t	message_id;
	bool		enqueued;		/* false: message_id has the dedupe key */

	/* used on the way */
	int64		id;
	pg_uuid_t	dedupe_digest;
} OutboxMessage;

extern void outbox_check_message(const OutboxMessage *message,
								 const char *prefix);
extern void outbox_check_payload(const text *payload, const char *prefix);
extern void outbox_check_received(const OutboxMessage *message,
								  const char *prefix);
extern void outbox_make_row(const OutboxMessage *message,
							OutboxStreamTurn *turn, TimestampTz now,
							Datum *values, bool *isnull,
							OutboxPlace *place, OutboxKey *key);
extern void outbox_notify_listeners(void);
extern void outbox_check_given_id(const OutboxMessage *message);
extern void outbox_enqueue(const OutboxStore *store, OutboxMessage *messages,
						   int nmessages);

#endif							/* OUTBOX_ENQUEUE_H */
