-- The hand-written SQL queue that everything is measured against: status in
-- one table, a partial index on what is ready, FOR UPDATE SKIP LOCKED. The
-- same columns as outbox.messages, and the same unique ids.
CREATE SCHEMA sqlq;
CREATE TABLE sqlq.queue (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id     uuid NOT NULL DEFAULT gen_random_uuid() UNIQUE,
    namespace      text NOT NULL DEFAULT 'default',
    topic          text NOT NULL,
    payload        text NOT NULL,
    headers        jsonb,
    correlation_id text,
    tenant_id      uuid,
    dedupe_key     text,
    stream_id      uuid,
    status         smallint NOT NULL DEFAULT 0,
    owner          uuid,
    locked_until   timestamptz,
    attempts       int NOT NULL DEFAULT 0,
    retry_count    int NOT NULL DEFAULT 0,
    available_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_time       timestamptz,
    expires_at     timestamptz,
    last_error     text,
    failure_reason smallint NOT NULL DEFAULT 0,
    progress       int NOT NULL DEFAULT 0,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    processed_at   timestamptz,
    processed_by   uuid
);
CREATE INDEX queue_ready ON sqlq.queue (available_at, id) WHERE status = 0;
