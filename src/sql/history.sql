-- history.sql: messages that are finished. Serves history.c and archive.c,
-- which know the columns by their numbers; both tables have the same.

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
    payload        text        NOT NULL
) PARTITION BY RANGE (keep, processed_at);

-- Each partition gets its indexes, on id and on message_id, when it is made
-- (archive.c). The archive itself has none: attaching a partition would make
-- them by itself, and a dump, which makes them too, could not be restored.

CREATE TABLE outbox.dead (
    LIKE outbox.archive INCLUDING DEFAULTS,
    CONSTRAINT dead_pkey PRIMARY KEY (id),
    CONSTRAINT dead_message_id_key UNIQUE (message_id)
);

CREATE INDEX dead_topic_idx ON outbox.dead (namespace, topic, id);
CREATE INDEX dead_keep_idx ON outbox.dead (keep, processed_at);

COMMENT ON TABLE outbox.archive IS
    'Messages that are done, by how long they are kept and the day. Look at outbox.messages instead.';
COMMENT ON TABLE outbox.dead IS
    'Messages that have failed, until somebody decides. Look at outbox.messages instead.';

DO $$
DECLARE
    tab text;
BEGIN
    FOREACH tab IN ARRAY ARRAY['archive', 'dead']
    LOOP
        EXECUTE format($c$
            COMMENT ON COLUMN outbox.%1$I.id IS 'The work item, as it was in the queue.';
            COMMENT ON COLUMN outbox.%1$I.created_at IS 'When the message was enqueued.';
            COMMENT ON COLUMN outbox.%1$I.processed_at IS 'When it was finished.';
            COMMENT ON COLUMN outbox.%1$I.keep IS
                'How long it is kept: seconds; -1 for ever; -2 as outbox.retention says.';
            COMMENT ON COLUMN outbox.%1$I.attempts IS 'How often it was handed out.';
            COMMENT ON COLUMN outbox.%1$I.retry_count IS 'How often it was handed back as not done.';
            COMMENT ON COLUMN outbox.%1$I.progress IS 'Bits of what was achieved.';
            COMMENT ON COLUMN outbox.%1$I.failure_reason IS 'Why it failed; 0 if it did not.';
            COMMENT ON COLUMN outbox.%1$I.message_id IS 'The logical message.';
            COMMENT ON COLUMN outbox.%1$I.processed_by IS 'The owner who finished it.';
            COMMENT ON COLUMN outbox.%1$I.due_time IS 'As given to enqueue.';
            COMMENT ON COLUMN outbox.%1$I.expires_at IS 'As given to enqueue.';
            COMMENT ON COLUMN outbox.%1$I.tenant_id IS 'Whose message it is.';
            COMMENT ON COLUMN outbox.%1$I.stream_id IS 'The stream it was in.';
            COMMENT ON COLUMN outbox.%1$I.namespace IS 'Keeps applications apart that share the database.';
            COMMENT ON COLUMN outbox.%1$I.topic IS 'What the message is about.';
            COMMENT ON COLUMN outbox.%1$I.correlation_id IS 'Ties messages together, for their users.';
            COMMENT ON COLUMN outbox.%1$I.dedupe_key IS 'No two messages of a topic have the same.';
            COMMENT ON COLUMN outbox.%1$I.headers IS 'Whatever travels with the payload.';
            COMMENT ON COLUMN outbox.%1$I.last_error IS 'What the worker said of the last failed attempt.';
            COMMENT ON COLUMN outbox.%1$I.payload IS 'The message itself.';
        $c$, tab);
    END LOOP;
END
$$;
