-- enqueue.sql: putting messages into the queue. Serves sql_enqueue.c.

-- enqueue(topic, payload text, ...)
--     Puts a message into the queue, in the caller's transaction: it is there
--     if and only if that commits. Returns its message_id, or, if the dedupe
--     key is taken, that of the message which has it.
CREATE FUNCTION outbox.enqueue(
    topic          text,
    payload        text,
    correlation_id text        DEFAULT NULL,
    due_time       timestamptz DEFAULT NULL,
    namespace      text        DEFAULT 'default',
    tenant_id      uuid        DEFAULT NULL,
    dedupe_key     text        DEFAULT NULL,
    stream_id      uuid        DEFAULT NULL,
    headers        jsonb       DEFAULT NULL,
    expires_at     timestamptz DEFAULT NULL,
    message_id     uuid        DEFAULT NULL
)
RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_enqueue_text';

COMMENT ON FUNCTION outbox.enqueue(
    text, text, text, timestamptz, text, uuid, text, uuid, jsonb, timestamptz, uuid
) IS
    'Puts a message into the queue; returns its message_id.';

-- enqueue(topic, payload jsonb, ...)
--     Puts a message into the queue, in the caller's transaction: it is there
--     if and only if that commits. Returns its message_id, or, if the dedupe
--     key is taken, that of the message which has it.
CREATE FUNCTION outbox.enqueue(
    topic          text,
    payload        jsonb,
    correlation_id text        DEFAULT NULL,
    due_time       timestamptz DEFAULT NULL,
    namespace      text        DEFAULT 'default',
    tenant_id      uuid        DEFAULT NULL,
    dedupe_key     text        DEFAULT NULL,
    stream_id      uuid        DEFAULT NULL,
    headers        jsonb       DEFAULT NULL,
    expires_at     timestamptz DEFAULT NULL,
    message_id     uuid        DEFAULT NULL
)
RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_enqueue_jsonb';

COMMENT ON FUNCTION outbox.enqueue(
    text, jsonb, text, timestamptz, text, uuid, text, uuid, jsonb, timestamptz, uuid
) IS
    'Puts a message into the queue; returns its message_id.';

-- A type of its own, because a function cannot have an argument and a result
-- column of the same name.
CREATE TYPE outbox.enqueue_result AS (
    message_id uuid,
    enqueued   boolean
);

COMMENT ON TYPE outbox.enqueue_result IS
    'A message, and whether it was enqueued just now.';
COMMENT ON COLUMN outbox.enqueue_result.message_id IS
    'The message, or the one that has its dedupe key.';
COMMENT ON COLUMN outbox.enqueue_result.enqueued IS
    'False if another message has the dedupe key.';

-- try_enqueue(topic, payload text, ...)
--     Like enqueue, and tells whether the message is new or another has its
--     dedupe key.
CREATE FUNCTION outbox.try_enqueue(
    topic          text,
    payload        text,
    correlation_id text        DEFAULT NULL,
    due_time       timestamptz DEFAULT NULL,
    namespace      text        DEFAULT 'default',
    tenant_id      uuid        DEFAULT NULL,
    dedupe_key     text        DEFAULT NULL,
    stream_id      uuid        DEFAULT NULL,
    headers        jsonb       DEFAULT NULL,
    expires_at     timestamptz DEFAULT NULL,
    message_id     uuid        DEFAULT NULL
)
RETURNS outbox.enqueue_result
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_try_enqueue_text';

COMMENT ON FUNCTION outbox.try_enqueue(
    text, text, text, timestamptz, text, uuid, text, uuid, jsonb, timestamptz, uuid
) IS
    'Puts a message into the queue, and tells whether it is new.';

-- try_enqueue(topic, payload jsonb, ...)
--     Like enqueue, and tells whether the message is new or another has its
--     dedupe key.
CREATE FUNCTION outbox.try_enqueue(
    topic          text,
    payload        jsonb,
    correlation_id text        DEFAULT NULL,
    due_time       timestamptz DEFAULT NULL,
    namespace      text        DEFAULT 'default',
    tenant_id      uuid        DEFAULT NULL,
    dedupe_key     text        DEFAULT NULL,
    stream_id      uuid        DEFAULT NULL,
    headers        jsonb       DEFAULT NULL,
    expires_at     timestamptz DEFAULT NULL,
    message_id     uuid        DEFAULT NULL
)
RETURNS outbox.enqueue_result
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_try_enqueue_jsonb';

COMMENT ON FUNCTION outbox.try_enqueue(
    text, jsonb, text, timestamptz, text, uuid, text, uuid, jsonb, timestamptz, uuid
) IS
    'Puts a message into the queue, and tells whether it is new.';

-- enqueue_many(topic, payloads, ...)
--     Puts messages into the queue that differ in nothing but their payloads.
--     Returns their ids in the order of the payloads.
CREATE FUNCTION outbox.enqueue_many(
    topic     text,
    payloads  text[],
    namespace text        DEFAULT 'default',
    headers   jsonb       DEFAULT NULL,
    due_time  timestamptz DEFAULT NULL,
    stream_id uuid        DEFAULT NULL
)
RETURNS uuid[]
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_enqueue_many';

COMMENT ON FUNCTION outbox.enqueue_many(text, text[], text, jsonb, timestamptz, uuid) IS
    'Puts messages into the queue that differ in their payloads only.';

-- enqueue_batch(messages)
--     Puts messages into the queue, given as a JSON array of objects whose
--     keys are the names of enqueue's arguments. A payload that is no string
--     is taken as the JSON that it is.
CREATE FUNCTION outbox.enqueue_batch(messages jsonb)
RETURNS TABLE (ordinal integer, message_id uuid, enqueued boolean)
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'outbox_enqueue_batch';

COMMENT ON FUNCTION outbox.enqueue_batch(jsonb) IS
    'Puts messages into the queue, given as a JSON array of objects.';
