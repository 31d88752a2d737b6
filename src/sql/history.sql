-- history.sql: messages that are finished. Serves history.c and archive.c,
-- which know the columns by their numbers; both tables have the same.
--
-- A message that was done, and that a dump has brought back since, is delivered
-- and done once more. Nothing may be in the way of that, so history has a row each
-- time, and the keys of what is done (here and in the other stores) contain the time.
-- Of what has failed there is one row, the last (make_way in history.c): it can be
-- put back.

CREATE TABLE outbox.archive (
    id             bigint      NOT NULL,
    created_at     timestamptz NOT NULL,
    processed_at   timestamptz NOT NULL,
    keep           integer     NOT NULL,
    attempts       integer     NOT NULL,
    retry_count    integer     NOT NULL,
    progress       integer     NOT NULL,
    failure_reason smallint    NOT NULL,
    message_id     uuid        NOT NULL,
    processed_by   uuid,
    due_time       timestamptz,
    expires_at     timestamptz,
    tenant_id      uuid,
    stream_id      uuid,
    namespace      text        NOT NULL,
    topic          text        NOT NULL,
    correlation_id text,
    dedupe_key     text,
    headers        jsonb,
    last_error     text,
    errors         text[],
    payload        text        NOT NULL
) PARTITION BY RANGE (keep, processed_at);

-- Each partition gets its indexes, on id and on message_id, when it is made
-- (retention.sql). The archive itself has none: attaching a partition would make
-- them by itself, and a dump, which makes them too, could not be restored.

-- For messages that are done before there is a partition for them.
CREATE TABLE outbox.archive_unsorted
    PARTITION OF outbox.archive FOR VALUES FROM (MINVALUE, MINVALUE) TO (-2, MINVALUE);

ALTER TABLE outbox.archive_unsorted
    ADD CONSTRAINT archive_unsorted_pkey PRIMARY KEY (id, processed_at)
        WITH (deduplicate_items = off);
CREATE INDEX archive_unsorted_message_id_idx ON outbox.archive_unsorted (message_id)
    WITH (deduplicate_items = off);
CREATE INDEX archive_unsorted_keep_idx ON outbox.archive_unsorted (keep, processed_at);

COMMENT ON TABLE outbox.archive IS
    'Messages that are done, by how long they are kept and the time. '
    'Look at outbox.messages instead.';
COMMENT ON COLUMN outbox.archive.id IS 'The work item, as it was in the queue.';
COMMENT ON COLUMN outbox.archive.created_at IS 'When the message was enqueued.';
COMMENT ON COLUMN outbox.archive.processed_at IS 'When it was finished.';
COMMENT ON COLUMN outbox.archive.keep IS
    'How long it is kept: seconds; -1 for ever; -2 as outbox.retention says; less: unsorted.';
COMMENT ON COLUMN outbox.archive.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.archive.retry_count IS 'How often it was handed back as not done.';
COMMENT ON COLUMN outbox.archive.progress IS 'Bits of what was achieved.';
COMMENT ON COLUMN outbox.archive.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.archive.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.archive.processed_by IS 'The owner who finished it.';
COMMENT ON COLUMN outbox.archive.due_time IS 'As given to enqueue.';
COMMENT ON COLUMN outbox.archive.expires_at IS 'As given to enqueue.';
COMMENT ON COLUMN outbox.archive.tenant_id IS 'Whose message it is.';
COMMENT ON COLUMN outbox.archive.stream_id IS 'The stream it was in.';
COMMENT ON COLUMN outbox.archive.namespace IS 'Keeps applications apart that share the database.';
COMMENT ON COLUMN outbox.archive.topic IS 'What the message is about.';
COMMENT ON COLUMN outbox.archive.correlation_id IS 'Ties messages together, for their users.';
COMMENT ON COLUMN outbox.archive.dedupe_key IS 'No two messages of a topic have the same.';
COMMENT ON COLUMN outbox.archive.headers IS 'Whatever travels with the payload.';
COMMENT ON COLUMN outbox.archive.last_error IS 'What the worker said of the last failed attempt.';
COMMENT ON COLUMN outbox.archive.errors IS 'What was said of all failed attempts.';
COMMENT ON COLUMN outbox.archive.payload IS 'The message itself.';

COMMENT ON TABLE outbox.archive_unsorted IS
    'The partition of outbox.archive for messages that were done before there was one '
    'for them.';
COMMENT ON COLUMN outbox.archive_unsorted.id IS 'The work item, as it was in the queue.';
COMMENT ON COLUMN outbox.archive_unsorted.created_at IS 'When the message was enqueued.';
COMMENT ON COLUMN outbox.archive_unsorted.processed_at IS 'When it was finished.';
COMMENT ON COLUMN outbox.archive_unsorted.keep IS
    'How long it is kept, as in other partitions, less 2147483645.';
COMMENT ON COLUMN outbox.archive_unsorted.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.archive_unsorted.retry_count IS
    'How often it was handed back as not done.';
COMMENT ON COLUMN outbox.archive_unsorted.progress IS 'Bits of what was achieved.';
COMMENT ON COLUMN outbox.archive_unsorted.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.archive_unsorted.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.archive_unsorted.processed_by IS 'The owner who finished it.';
COMMENT ON COLUMN outbox.archive_unsorted.due_time IS 'As given to enqueue.';
COMMENT ON COLUMN outbox.archive_unsorted.expires_at IS 'As given to enqueue.';
COMMENT ON COLUMN outbox.archive_unsorted.tenant_id IS 'Whose message it is.';
COMMENT ON COLUMN outbox.archive_unsorted.stream_id IS 'The stream it was in.';
COMMENT ON COLUMN outbox.archive_unsorted.namespace IS
    'Keeps applications apart that share the database.';
COMMENT ON COLUMN outbox.archive_unsorted.topic IS 'What the message is about.';
COMMENT ON COLUMN outbox.archive_unsorted.correlation_id IS
    'Ties messages together, for their users.';
COMMENT ON COLUMN outbox.archive_unsorted.dedupe_key IS 'No two messages of a topic have the same.';
COMMENT ON COLUMN outbox.archive_unsorted.headers IS 'Whatever travels with the payload.';
COMMENT ON COLUMN outbox.archive_unsorted.last_error IS
    'What the worker said of the last failed attempt.';
COMMENT ON COLUMN outbox.archive_unsorted.errors IS 'What was said of all failed attempts.';
COMMENT ON COLUMN outbox.archive_unsorted.payload IS 'The message itself.';

CREATE TABLE outbox.dead (
    id             bigint      NOT NULL,
    created_at     timestamptz NOT NULL,
    processed_at   timestamptz NOT NULL,
    keep           integer     NOT NULL,
    attempts       integer     NOT NULL,
    retry_count    integer     NOT NULL,
    progress       integer     NOT NULL,
    failure_reason smallint    NOT NULL,
    message_id     uuid        NOT NULL,
    processed_by   uuid,
    due_time       timestamptz,
    expires_at     timestamptz,
    tenant_id      uuid,
    stream_id      uuid,
    namespace      text        NOT NULL,
    topic          text        NOT NULL,
    correlation_id text,
    dedupe_key     text,
    headers        jsonb,
    last_error     text,
    errors         text[],
    payload        text        NOT NULL,

    CONSTRAINT dead_pkey PRIMARY KEY (id),
    CONSTRAINT dead_message_id_key UNIQUE (message_id)
);

CREATE INDEX dead_topic_idx ON outbox.dead (namespace, topic, id);
CREATE INDEX dead_keep_idx ON outbox.dead (keep, processed_at);

COMMENT ON TABLE outbox.dead IS
    'Messages that have failed, until somebody decides. Look at outbox.messages instead.';
COMMENT ON COLUMN outbox.dead.id IS 'The work item, as it was in the queue.';
COMMENT ON COLUMN outbox.dead.created_at IS 'When the message was enqueued.';
COMMENT ON COLUMN outbox.dead.processed_at IS 'When it was finished.';
COMMENT ON COLUMN outbox.dead.keep IS
    'How long it is kept: seconds; -1 for ever; -2 as outbox.dead_retention says.';
COMMENT ON COLUMN outbox.dead.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.dead.retry_count IS 'How often it was handed back as not done.';
COMMENT ON COLUMN outbox.dead.progress IS 'Bits of what was achieved.';
COMMENT ON COLUMN outbox.dead.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.dead.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.dead.processed_by IS 'The owner who finished it.';
COMMENT ON COLUMN outbox.dead.due_time IS 'As given to enqueue.';
COMMENT ON COLUMN outbox.dead.expires_at IS 'As given to enqueue.';
COMMENT ON COLUMN outbox.dead.tenant_id IS 'Whose message it is.';
COMMENT ON COLUMN outbox.dead.stream_id IS 'The stream it was in.';
COMMENT ON COLUMN outbox.dead.namespace IS 'Keeps applications apart that share the database.';
COMMENT ON COLUMN outbox.dead.topic IS 'What the message is about.';
COMMENT ON COLUMN outbox.dead.correlation_id IS 'Ties messages together, for their users.';
COMMENT ON COLUMN outbox.dead.dedupe_key IS 'No two messages of a topic have the same.';
COMMENT ON COLUMN outbox.dead.headers IS 'Whatever travels with the payload.';
COMMENT ON COLUMN outbox.dead.last_error IS 'What the worker said of the last failed attempt.';
COMMENT ON COLUMN outbox.dead.errors IS 'What was said of all failed attempts.';
COMMENT ON COLUMN outbox.dead.payload IS 'The message itself.';
