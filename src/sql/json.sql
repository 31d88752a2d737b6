-- json.sql: payloads of types json and jsonb, wherever there is one payload. Serves
-- sql_enqueue.c, sql_timer.c and sql_inbox.c.
--
-- A payload is text. That of type json is the same in memory, so the functions in C
-- are those for text; a jsonb becomes the text that it is shown as. A parameter or
-- literal without a type is still taken as text, which PostgreSQL prefers.

-- enqueue(..., payload json, ...)
--     Like enqueue with text; the payload is the JSON as it was given.
CREATE FUNCTION outbox.enqueue(
    topic          text,
    payload        json,
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
    text, json, text, timestamptz, text, uuid, text, uuid, jsonb, timestamptz, uuid,
    interval, text, integer
) IS
    'Like enqueue with text; the payload is the JSON as it was given.';

-- publish(..., payload json, ...)
--     Like publish with text; the payload is the JSON as it was given.
CREATE FUNCTION outbox.publish(
    topic          text,
    payload        json,
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
AS 'MODULE_PATHNAME', 'outbox_publish_text';

COMMENT ON FUNCTION outbox.publish(
    text, json, text, timestamptz, text, uuid, text, uuid, jsonb, timestamptz, uuid,
    interval, text, integer
) IS
    'Like publish with text; the payload is the JSON as it was given.';

-- try_enqueue(..., payload json, ...)
--     Like try_enqueue with text; the payload is the JSON as it was given.
CREATE FUNCTION outbox.try_enqueue(
    topic          text,
    payload        json,
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
    text, json, text, timestamptz, text, uuid, text, uuid, jsonb, timestamptz, uuid,
    interval, text, integer
) IS
    'Like try_enqueue with text; the payload is the JSON as it was given.';

-- enqueue_step(..., payload json, ...)
--     Like enqueue_step with text; a payload is the JSON as it was given.
CREATE FUNCTION outbox.enqueue_step(
    join_id        uuid,
    topic          text,
    payload        json,
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
LANGUAGE sql VOLATILE PARALLEL UNSAFE
RETURN outbox.enqueue_step(
    enqueue_step.join_id, enqueue_step.topic, enqueue_step.payload::text,
    enqueue_step.correlation_id, enqueue_step.due_time, enqueue_step.namespace,
    enqueue_step.tenant_id, enqueue_step.dedupe_key, enqueue_step.stream_id,
    enqueue_step.headers, enqueue_step.expires_at, enqueue_step.message_id,
    enqueue_step.dedupe_for, enqueue_step.on_duplicate, enqueue_step.priority);

COMMENT ON FUNCTION outbox.enqueue_step(
    uuid, text, json, text, timestamptz, text, uuid, text, uuid, jsonb, timestamptz, uuid,
    interval, text, integer
) IS
    'Like enqueue_step with text; a payload is the JSON as it was given.';

-- enqueue_step(..., payload jsonb, ...)
--     Like enqueue_step with text; a payload is the text of the jsonb.
CREATE FUNCTION outbox.enqueue_step(
    join_id        uuid,
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
LANGUAGE sql VOLATILE PARALLEL UNSAFE
RETURN outbox.enqueue_step(
    enqueue_step.join_id, enqueue_step.topic, enqueue_step.payload::text,
    enqueue_step.correlation_id, enqueue_step.due_time, enqueue_step.namespace,
    enqueue_step.tenant_id, enqueue_step.dedupe_key, enqueue_step.stream_id,
    enqueue_step.headers, enqueue_step.expires_at, enqueue_step.message_id,
    enqueue_step.dedupe_for, enqueue_step.on_duplicate, enqueue_step.priority);

COMMENT ON FUNCTION outbox.enqueue_step(
    uuid, text, jsonb, text, timestamptz, text, uuid, text, uuid, jsonb, timestamptz, uuid,
    interval, text, integer
) IS
    'Like enqueue_step with text; a payload is the text of the jsonb.';

-- enqueue_join_wait(..., payload json, ...)
--     Like enqueue_join_wait with text; a payload is the JSON as it was given.
CREATE FUNCTION outbox.enqueue_join_wait(
    join_id                 uuid,
    fail_if_any_step_failed boolean,
    on_complete_topic       text,
    on_complete_payload     json,
    on_fail_topic           text    DEFAULT NULL,
    on_fail_payload         json    DEFAULT NULL,
    namespace               text    DEFAULT 'default',
    headers                 jsonb   DEFAULT NULL
)
RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL UNSAFE
RETURN outbox.enqueue_join_wait(
    enqueue_join_wait.join_id, enqueue_join_wait.fail_if_any_step_failed,
    enqueue_join_wait.on_complete_topic, enqueue_join_wait.on_complete_payload::text,
    enqueue_join_wait.on_fail_topic, enqueue_join_wait.on_fail_payload::text,
    enqueue_join_wait.namespace, enqueue_join_wait.headers);

COMMENT ON FUNCTION outbox.enqueue_join_wait(
    uuid, boolean, text, json, text, json, text, jsonb
) IS
    'Like enqueue_join_wait with text; a payload is the JSON as it was given.';

-- enqueue_join_wait(..., payload jsonb, ...)
--     Like enqueue_join_wait with text; a payload is the text of the jsonb.
CREATE FUNCTION outbox.enqueue_join_wait(
    join_id                 uuid,
    fail_if_any_step_failed boolean,
    on_complete_topic       text,
    on_complete_payload     jsonb,
    on_fail_topic           text    DEFAULT NULL,
    on_fail_payload         jsonb   DEFAULT NULL,
    namespace               text    DEFAULT 'default',
    headers                 jsonb   DEFAULT NULL
)
RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL UNSAFE
RETURN outbox.enqueue_join_wait(
    enqueue_join_wait.join_id, enqueue_join_wait.fail_if_any_step_failed,
    enqueue_join_wait.on_complete_topic, enqueue_join_wait.on_complete_payload::text,
    enqueue_join_wait.on_fail_topic, enqueue_join_wait.on_fail_payload::text,
    enqueue_join_wait.namespace, enqueue_join_wait.headers);

COMMENT ON FUNCTION outbox.enqueue_join_wait(
    uuid, boolean, text, jsonb, text, jsonb, text, jsonb
) IS
    'Like enqueue_join_wait with text; a payload is the text of the jsonb.';

-- schedule_timer(..., payload json, ...)
--     Like schedule_timer with text; a payload is the JSON as it was given.
CREATE FUNCTION outbox.schedule_timer(
    topic          text,
    payload        json,
    due_time       timestamptz,
    correlation_id text        DEFAULT NULL
)
RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_schedule_timer';

COMMENT ON FUNCTION outbox.schedule_timer(text, json, timestamptz, text) IS
    'Like schedule_timer with text; a payload is the JSON as it was given.';

-- schedule_timer(..., payload jsonb, ...)
--     Like schedule_timer with text; a payload is the text of the jsonb.
CREATE FUNCTION outbox.schedule_timer(
    topic          text,
    payload        jsonb,
    due_time       timestamptz,
    correlation_id text        DEFAULT NULL
)
RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL UNSAFE
RETURN outbox.schedule_timer(
    schedule_timer.topic, schedule_timer.payload::text, schedule_timer.due_time,
    schedule_timer.correlation_id);

COMMENT ON FUNCTION outbox.schedule_timer(text, jsonb, timestamptz, text) IS
    'Like schedule_timer with text; a payload is the text of the jsonb.';

-- receive(..., payload json, ...)
--     Like receive with text; a payload is the JSON as it was given.
CREATE FUNCTION outbox.receive(
    message_id   uuid,
    handler_name text,
    payload      json,
    source       text  DEFAULT NULL,
    stream_id    uuid  DEFAULT NULL,
    headers      jsonb DEFAULT NULL
)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_receive_message';

COMMENT ON FUNCTION outbox.receive(uuid, text, json, text, uuid, jsonb) IS
    'Like receive with text; a payload is the JSON as it was given.';

-- receive(..., payload jsonb, ...)
--     Like receive with text; a payload is the text of the jsonb.
CREATE FUNCTION outbox.receive(
    message_id   uuid,
    handler_name text,
    payload      jsonb,
    source       text  DEFAULT NULL,
    stream_id    uuid  DEFAULT NULL,
    headers      jsonb DEFAULT NULL
)
RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE
RETURN outbox.receive(
    receive.message_id, receive.handler_name, receive.payload::text, receive.source,
    receive.stream_id, receive.headers);

COMMENT ON FUNCTION outbox.receive(uuid, text, jsonb, text, uuid, jsonb) IS
    'Like receive with text; a payload is the text of the jsonb.';

-- create_or_update_job(..., payload json, ...)
--     Like create_or_update_job with text; a payload is the JSON as it was given.
CREATE FUNCTION outbox.create_or_update_job(
    job_name      text,
    topic         text,
    cron_schedule text,
    payload       json
)
RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE
RETURN outbox.create_or_update_job(
    create_or_update_job.job_name, create_or_update_job.topic,
    create_or_update_job.cron_schedule, create_or_update_job.payload::text);

COMMENT ON FUNCTION outbox.create_or_update_job(text, text, text, json) IS
    'Like create_or_update_job with text; a payload is the JSON as it was given.';

-- create_or_update_job(..., payload jsonb, ...)
--     Like create_or_update_job with text; a payload is the text of the jsonb.
CREATE FUNCTION outbox.create_or_update_job(
    job_name      text,
    topic         text,
    cron_schedule text,
    payload       jsonb
)
RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE
RETURN outbox.create_or_update_job(
    create_or_update_job.job_name, create_or_update_job.topic,
    create_or_update_job.cron_schedule, create_or_update_job.payload::text);

COMMENT ON FUNCTION outbox.create_or_update_job(text, text, text, jsonb) IS
    'Like create_or_update_job with text; a payload is the text of the jsonb.';

-- publish_many_json(topic, payloads, ...)
--     Like publish_many; the payloads are the elements of a JSON array.
CREATE FUNCTION outbox.publish_many_json(
    topic     text,
    payloads  jsonb,
    namespace text        DEFAULT 'default',
    headers   jsonb       DEFAULT NULL,
    due_time  timestamptz DEFAULT NULL,
    stream_id uuid        DEFAULT NULL
)
RETURNS uuid[]
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_publish_many_json';

COMMENT ON FUNCTION outbox.publish_many_json(text, jsonb, text, jsonb, timestamptz, uuid) IS
    'Like publish_many; the payloads are the elements of a JSON array.';

-- enqueue_many_json(topic, payloads, ...)
--     Like enqueue_many, with the payloads as one JSON array: each is the text of an
--     element.
CREATE FUNCTION outbox.enqueue_many_json(
    topic     text,
    payloads  jsonb,
    namespace text        DEFAULT 'default',
    headers   jsonb       DEFAULT NULL,
    due_time  timestamptz DEFAULT NULL,
    stream_id uuid        DEFAULT NULL
)
RETURNS uuid[]
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_enqueue_many_json';

COMMENT ON FUNCTION outbox.enqueue_many_json(text, jsonb, text, jsonb, timestamptz, uuid) IS
    'Puts several messages into the queue that differ only in their payloads, given as a JSON '
    'array.';
