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
    message_id     uuid        DEFAULT NULL,
    dedupe_for     interval    DEFAULT NULL,
    on_duplicate   text        DEFAULT 'keep',
    priority       integer     DEFAULT NULL
)
RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_enqueue_text';

COMMENT ON FUNCTION outbox.enqueue(
    text, text, text, timestamptz, text, uuid, text, uuid, jsonb, timestamptz, uuid,
    interval, text, integer
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
    message_id     uuid        DEFAULT NULL,
    dedupe_for     interval    DEFAULT NULL,
    on_duplicate   text        DEFAULT 'keep',
    priority       integer     DEFAULT NULL
)
RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_enqueue_jsonb';

COMMENT ON FUNCTION outbox.enqueue(
    text, jsonb, text, timestamptz, text, uuid, text, uuid, jsonb, timestamptz, uuid,
    interval, text, integer
) IS
    'Puts a message into the queue; returns its message_id.';

-- A type of its own, because a function cannot have an argument and a result
-- column of the same name.
CREATE TYPE outbox.enqueue_result AS (
    message_id uuid,
    enqueued   boolean,
    outcome    text
);

COMMENT ON TYPE outbox.enqueue_result IS
    'The result of try_enqueue: a message, and whether it was enqueued.';
COMMENT ON COLUMN outbox.enqueue_result.message_id IS
    'The new message, or the one that has its dedupe key.';
COMMENT ON COLUMN outbox.enqueue_result.enqueued IS
    'False if another message has the dedupe key.';
COMMENT ON COLUMN outbox.enqueue_result.outcome IS
    'enqueued; or what was done with the message that has the key: kept, replaced, debounced.';

-- try_enqueue(topic, payload text, ...)
--     Like enqueue, and reports whether the message is new, or another one has its
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
    message_id     uuid        DEFAULT NULL,
    dedupe_for     interval    DEFAULT NULL,
    on_duplicate   text        DEFAULT 'keep',
    priority       integer     DEFAULT NULL
)
RETURNS outbox.enqueue_result
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_try_enqueue_text';

COMMENT ON FUNCTION outbox.try_enqueue(
    text, text, text, timestamptz, text, uuid, text, uuid, jsonb, timestamptz, uuid,
    interval, text, integer
) IS 'Puts a message into the queue, and reports whether it is new.';

-- try_enqueue(topic, payload jsonb, ...)
--     Like enqueue, and reports whether the message is new, or another one has its
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
    message_id     uuid        DEFAULT NULL,
    dedupe_for     interval    DEFAULT NULL,
    on_duplicate   text        DEFAULT 'keep',
    priority       integer     DEFAULT NULL
)
RETURNS outbox.enqueue_result
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_try_enqueue_jsonb';

COMMENT ON FUNCTION outbox.try_enqueue(
    text, jsonb, text, timestamptz, text, uuid, text, uuid, jsonb, timestamptz, uuid,
    interval, text, integer
) IS 'Puts a message into the queue, and reports whether it is new.';

-- enqueue_many(topic, payloads, ...)
--     Puts several messages into the queue that differ only in their payloads.
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
    'Puts several messages into the queue that differ only in their payloads.';

-- enqueue_batch(messages)
--     Puts several messages into the queue, given as a JSON array of objects whose
--     keys are the names of enqueue's arguments. A payload that is not a string is
--     stored as the text of its JSON value.
CREATE FUNCTION outbox.enqueue_batch(messages jsonb)
RETURNS TABLE (ordinal integer, message_id uuid, enqueued boolean, outcome text)
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'outbox_enqueue_batch';

COMMENT ON FUNCTION outbox.enqueue_batch(jsonb) IS
    'Puts several messages into the queue, given as a JSON array of objects.';

-- _enqueue_caused(cause, topic, payload, namespace, correlation_id, headers)
--     Puts a message into the queue that is caused by a timer, a run or a join. It is
--     in the trace that its headers name, whatever the session's setting says.
CREATE FUNCTION outbox._enqueue_caused(
    cause          uuid,
    topic          text,
    payload        text,
    namespace      text,
    correlation_id text,
    headers        jsonb
)
RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_enqueue_caused';

COMMENT ON FUNCTION outbox._enqueue_caused(uuid, text, text, text, text, jsonb) IS
    'Puts a message into the queue that is caused by a timer, a run or a join.';
