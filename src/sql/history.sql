-- history.sql: messages that are finished. Serves history.c and archive.c,
-- which know the columns by their numbers; both tables have the same.
--
-- A message that was done, and was then restored by a dump, is delivered and done
-- once more. That must not fail, so history has a row for each time, and the keys of
-- the tables of done messages (here and in the other stores) contain the time. A
-- message that has failed has one row, the last one (make_way in history.c), because
-- it can be requeued.

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
    published_id   uuid,
    published_at   timestamptz,
    priority       smallint,
    caused_by      uuid,
    namespace      text        NOT NULL,
    topic          text        NOT NULL,
    subscription   text,
    correlation_id text,
    dedupe_key     text,
    headers        jsonb,
    last_error     text,
    errors         text[],
    payload        text        NOT NULL
) PARTITION BY RANGE (keep, processed_at);

-- Each partition gets its indexes, on id and on message_id, when it is created
-- (retention.sql). The archive itself has none: attaching a partition would create
-- them, and a dump, which creates them too, could not be restored.

-- For messages that are done while there is no partition for them.
CREATE TABLE outbox.archive_unsorted
    PARTITION OF outbox.archive FOR VALUES FROM (MINVALUE, MINVALUE) TO (-2, MINVALUE);

ALTER TABLE outbox.archive_unsorted
    ADD CONSTRAINT archive_unsorted_pkey PRIMARY KEY (id, processed_at)
        WITH (deduplicate_items = off);
CREATE INDEX archive_unsorted_message_id_idx ON outbox.archive_unsorted (message_id)
    WITH (deduplicate_items = off);
CREATE INDEX archive_unsorted_keep_idx ON outbox.archive_unsorted (keep, processed_at);
CREATE INDEX archive_unsorted_caused_idx ON outbox.archive_unsorted (caused_by)
    WHERE caused_by IS NOT NULL;
CREATE INDEX archive_unsorted_published_idx ON outbox.archive_unsorted (published_at)
    WHERE published_at IS NOT NULL;

COMMENT ON TABLE outbox.archive IS
    'Messages that are done, partitioned by retention and time. Use the view outbox.messages '
    'instead.';
COMMENT ON COLUMN outbox.archive.id IS 'The work item, as it was in the queue.';
COMMENT ON COLUMN outbox.archive.created_at IS 'When the message was enqueued.';
COMMENT ON COLUMN outbox.archive.processed_at IS 'When it was finished.';
COMMENT ON COLUMN outbox.archive.keep IS
    'How long it is kept: seconds; -1 forever; -2 as set by outbox.retention; less: unsorted.';
COMMENT ON COLUMN outbox.archive.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.archive.retry_count IS 'How often it was returned for a retry.';
COMMENT ON COLUMN outbox.archive.progress IS 'Progress of the message, as a bit mask.';
COMMENT ON COLUMN outbox.archive.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.archive.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.archive.processed_by IS 'The owner that finished it.';
COMMENT ON COLUMN outbox.archive.due_time IS 'As passed to enqueue.';
COMMENT ON COLUMN outbox.archive.expires_at IS 'As passed to enqueue.';
COMMENT ON COLUMN outbox.archive.tenant_id IS 'The tenant that the message belongs to.';
COMMENT ON COLUMN outbox.archive.stream_id IS 'The stream it was in.';
COMMENT ON COLUMN outbox.archive.published_id IS 'The publication, if it was a delivery.';
COMMENT ON COLUMN outbox.archive.published_at IS
    'When that was published, if the row in outbox.publications is needed.';
COMMENT ON COLUMN outbox.archive.priority IS 'From -2 to 2; null is 0.';
COMMENT ON COLUMN outbox.archive.caused_by IS
    'What has caused it: a message, a timer, a run, a join, or a trace; see outbox.trace.';
COMMENT ON COLUMN outbox.archive.subscription IS 'The subscription, if it was a delivery.';
COMMENT ON COLUMN outbox.archive.namespace IS
    'The namespace; separates applications that share the database.';
COMMENT ON COLUMN outbox.archive.topic IS 'The topic of the message.';
COMMENT ON COLUMN outbox.archive.correlation_id IS
    'Identifies related messages; chosen by the producer.';
COMMENT ON COLUMN outbox.archive.dedupe_key IS
    'The dedupe key; at most one message of a topic has it.';
COMMENT ON COLUMN outbox.archive.headers IS 'A JSON object that is delivered with the payload.';
COMMENT ON COLUMN outbox.archive.last_error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN outbox.archive.errors IS
    'The errors of failed attempts; see outbox.attempts_log.';
COMMENT ON COLUMN outbox.archive.payload IS 'The payload.';

COMMENT ON TABLE outbox.archive_unsorted IS
    'The partition of outbox.archive for messages for which there was no other partition yet.';
COMMENT ON COLUMN outbox.archive_unsorted.id IS 'The work item, as it was in the queue.';
COMMENT ON COLUMN outbox.archive_unsorted.created_at IS 'When the message was enqueued.';
COMMENT ON COLUMN outbox.archive_unsorted.processed_at IS 'When it was finished.';
COMMENT ON COLUMN outbox.archive_unsorted.keep IS
    'How long it is kept, as in other partitions, minus 2147483645.';
COMMENT ON COLUMN outbox.archive_unsorted.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.archive_unsorted.retry_count IS 'How often it was returned for a retry.';
COMMENT ON COLUMN outbox.archive_unsorted.progress IS 'Progress of the message, as a bit mask.';
COMMENT ON COLUMN outbox.archive_unsorted.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.archive_unsorted.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.archive_unsorted.processed_by IS 'The owner that finished it.';
COMMENT ON COLUMN outbox.archive_unsorted.due_time IS 'As passed to enqueue.';
COMMENT ON COLUMN outbox.archive_unsorted.expires_at IS 'As passed to enqueue.';
COMMENT ON COLUMN outbox.archive_unsorted.tenant_id IS 'The tenant that the message belongs to.';
COMMENT ON COLUMN outbox.archive_unsorted.stream_id IS 'The stream it was in.';
COMMENT ON COLUMN outbox.archive_unsorted.published_id IS 'The publication, if it was a delivery.';
COMMENT ON COLUMN outbox.archive_unsorted.published_at IS
    'When that was published, if the row in outbox.publications is needed.';
COMMENT ON COLUMN outbox.archive_unsorted.priority IS 'From -2 to 2; null is 0.';
COMMENT ON COLUMN outbox.archive_unsorted.caused_by IS
    'What has caused it: a message, a timer, a run, a join, or a trace; see outbox.trace.';
COMMENT ON COLUMN outbox.archive_unsorted.subscription IS 'The subscription, if it was a delivery.';
COMMENT ON COLUMN outbox.archive_unsorted.namespace IS
    'The namespace; separates applications that share the database.';
COMMENT ON COLUMN outbox.archive_unsorted.topic IS 'The topic of the message.';
COMMENT ON COLUMN outbox.archive_unsorted.correlation_id IS
    'Identifies related messages; chosen by the producer.';
COMMENT ON COLUMN outbox.archive_unsorted.dedupe_key IS
    'The dedupe key; at most one message of a topic has it.';
COMMENT ON COLUMN outbox.archive_unsorted.headers IS
    'A JSON object that is delivered with the payload.';
COMMENT ON COLUMN outbox.archive_unsorted.last_error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN outbox.archive_unsorted.errors IS
    'The errors of failed attempts; see outbox.attempts_log.';
COMMENT ON COLUMN outbox.archive_unsorted.payload IS 'The payload.';

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
    published_id   uuid,
    published_at   timestamptz,
    priority       smallint,
    caused_by      uuid,
    namespace      text        NOT NULL,
    topic          text        NOT NULL,
    subscription   text,
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
CREATE INDEX dead_caused_idx ON outbox.dead (caused_by)
    WHERE caused_by IS NOT NULL;
CREATE INDEX dead_published_idx ON outbox.dead (published_at) WHERE published_at IS NOT NULL;
CREATE INDEX dead_subscription_idx ON outbox.dead (subscription, namespace, id)
    WHERE subscription IS NOT NULL;

COMMENT ON TABLE outbox.dead IS
    'Messages that have failed, until they are requeued or deleted. Use the view '
    'outbox.messages instead.';
COMMENT ON COLUMN outbox.dead.id IS 'The work item, as it was in the queue.';
COMMENT ON COLUMN outbox.dead.created_at IS 'When the message was enqueued.';
COMMENT ON COLUMN outbox.dead.processed_at IS 'When it was finished.';
COMMENT ON COLUMN outbox.dead.keep IS
    'How long it is kept: seconds; -1 forever; -2 as set by outbox.dead_retention.';
COMMENT ON COLUMN outbox.dead.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.dead.retry_count IS 'How often it was returned for a retry.';
COMMENT ON COLUMN outbox.dead.progress IS 'Progress of the message, as a bit mask.';
COMMENT ON COLUMN outbox.dead.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.dead.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.dead.processed_by IS 'The owner that finished it.';
COMMENT ON COLUMN outbox.dead.due_time IS 'As passed to enqueue.';
COMMENT ON COLUMN outbox.dead.expires_at IS 'As passed to enqueue.';
COMMENT ON COLUMN outbox.dead.tenant_id IS 'The tenant that the message belongs to.';
COMMENT ON COLUMN outbox.dead.stream_id IS 'The stream it was in.';
COMMENT ON COLUMN outbox.dead.published_id IS 'The publication, if it was a delivery.';
COMMENT ON COLUMN outbox.dead.published_at IS
    'When that was published, if the row in outbox.publications is needed.';
COMMENT ON COLUMN outbox.dead.priority IS 'From -2 to 2; null is 0.';
COMMENT ON COLUMN outbox.dead.caused_by IS
    'What has caused it: a message, a timer, a run, a join, or a trace; see outbox.trace.';
COMMENT ON COLUMN outbox.dead.subscription IS 'The subscription, if it was a delivery.';
COMMENT ON COLUMN outbox.dead.namespace IS
    'The namespace; separates applications that share the database.';
COMMENT ON COLUMN outbox.dead.topic IS 'The topic of the message.';
COMMENT ON COLUMN outbox.dead.correlation_id IS
    'Identifies related messages; chosen by the producer.';
COMMENT ON COLUMN outbox.dead.dedupe_key IS
    'The dedupe key; at most one message of a topic has it.';
COMMENT ON COLUMN outbox.dead.headers IS 'A JSON object that is delivered with the payload.';
COMMENT ON COLUMN outbox.dead.last_error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN outbox.dead.errors IS 'The errors of failed attempts; see outbox.attempts_log.';
COMMENT ON COLUMN outbox.dead.payload IS 'The payload.';
