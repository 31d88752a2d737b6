/*
 * message_args.c
 *	  A message to be enqueued, as JSON.
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "api/args.h"
#include "api/json_args.h"
#include "api/message_args.h"
#include "core/enqueue.h"
#include "outbox.h"

/* The keys of a message given as JSON. */
const OutboxJsonField outbox_message_fields[] = {
	{"destination", OUTBOX_JSON_TEXT, offsetof(OutboxMessage, topic)},
	{"topic", OUTBOX_JSON_TEXT, offsetof(OutboxMessage, topic)},
	{"payload", OUTBOX_JSON_PAYLOAD, offsetof(OutboxMessage, payload)},
	{"correlation_id", OUTBOX_JSON_TEXT, offsetof(OutboxMessage, correlation_id)},
	{"due_time", OUTBOX_JSON_TIME, offsetof(OutboxMessage, due_time)},
	{"namespace", OUTBOX_JSON_TEXT, offsetof(OutboxMessage, namespace)},
	{"tenant_id", OUTBOX_JSON_UUID, offsetof(OutboxMessage, tenant_id)},
	{"dedupe_key", OUTBOX_JSON_TEXT, offsetof(OutboxMessage, dedupe_key)},
	{"stream_id", OUTBOX_JSON_UUID, offsetof(OutboxMessage, stream_id)},
	{"headers", OUTBOX_JSON_OBJECT, offsetof(OutboxMessage, headers)},
	{"expires_at", OUTBOX_JSON_TIME, offsetof(OutboxMessage, expires_at)},
	{"message_id", OUTBOX_JSON_UUID, offsetof(OutboxMessage, given_id)},
	{"dedupe_for", OUTBOX_JSON_INTERVAL, offsetof(OutboxMessage, dedupe_for)},
	{"on_duplicate", OUTBOX_JSON_TEXT, offsetof(OutboxMessage, on_duplicate)},
	{"priority", OUTBOX_JSON_INT, offsetof(OutboxMessage, priority)},
};

const int	outbox_nmessage_fields = lengthof(outbox_message_fields);

/* Fill in the defaults of enqueue's arguments. */
void
outbox_message_set_defaults(OutboxMessage *message)
{
	if (message->namespace == NULL)
		message->namespace = cstring_to_text(OUTBOX_DEFAULT_NAMESPACE);
	message->correlation_id = outbox_empty_to_null(message->correlation_id);
	message->dedupe_key = outbox_empty_to_null(message->dedupe_key);
}
