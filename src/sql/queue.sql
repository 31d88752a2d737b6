-- queue.sql: messages that are not finished. Serves table.c, walk.c, stream.c,
-- dedupe.c and trigger.c, which know the columns by their numbers.

-- The columns that a claim changes come first and have a fixed width; none of them is
-- in an index, so that a claim is a HOT update. Half of each page is left free for
-- the second version of its rows.
CREATE TABLE outbox.queue (
    id              bigint      NOT NULL,
    lane            bigint      NOT NULL,
    next_attempt_at timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    leased_at       timestamptz,
    locked_until    timestamptz,
    owner_token     uuid,
    attempts        integer     NOT NULL DEFAULT 0,
    retry_count     integer     NOT NULL DEFAULT 0,
    waived          integer     NOT NULL DEFAULT 0,
    progress        integer     NOT NULL DEFAULT 0,
    status          smallint    NOT NULL DEFAULT 0,
    failure_reason  smallint    NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL,
    message_id      uuid        NOT NULL,
    stream_seq      bigint,
    due_time        timestamptz,
    expires_at      timestamptz,
    tenant_id       uuid,
    stream_id       uuid,
    published_id    uuid,
    published_at    timestamptz,
    subscriber      integer,
    priority        smallint,
    caused_by       uuid,
    namespace       text        NOT NULL DEFAULT 'default',
    topic           text        NOT NULL,
    correlation_id  text,
    dedupe_key      text,
    headers         jsonb,
    last_error      text,
    errors          text[],
    payload         text        NOT NULL,

    CONSTRAINT queue_pkey PRIMARY KEY (id),
    CONSTRAINT queue_message_id_key UNIQUE (message_id),
    CONSTRAINT outbox_queue_status CHECK (
        status IN (0, 1)
        AND (status = 1) = (owner_token IS NOT NULL)
        AND (status = 1) = (locked_until IS NOT NULL)
    ),
    CONSTRAINT outbox_queue_counters CHECK (
        attempts >= 0 AND retry_count >= 0 AND waived BETWEEN 0 AND attempts
    ),
    CONSTRAINT outbox_queue_stream CHECK (
        (stream_id IS NULL) = (stream_seq IS NULL)
    )
) WITH (
    fillfactor = 45,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_analyze_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX queue_ready_idx ON outbox.queue (lane, next_attempt_at, id)
    WITH (deduplicate_items = off);

CREATE INDEX queue_stream_idx ON outbox.queue (stream_id, stream_seq)
    WITH (deduplicate_items = off)
    WHERE stream_id IS NOT NULL;

CREATE INDEX queue_expires_idx ON outbox.queue (expires_at)
    WHERE expires_at IS NOT NULL;

CREATE INDEX queue_caused_idx ON outbox.queue (caused_by)
    WHERE caused_by IS NOT NULL;

CREATE INDEX queue_published_idx ON outbox.queue (published_at)
    WHERE published_at IS NOT NULL;

COMMENT ON TABLE outbox.queue IS
    'Messages that are ready or in progress. Use the view outbox.messages instead.';
COMMENT ON COLUMN outbox.queue.id IS 'The work item; constant for the life of the message.';
COMMENT ON COLUMN outbox.queue.lane IS
    'The lane in which claims find it: a hash of namespace, topic and tenant.';
COMMENT ON COLUMN outbox.queue.next_attempt_at IS 'Not delivered before this time.';
COMMENT ON COLUMN outbox.queue.updated_at IS 'When the row was last changed.';
COMMENT ON COLUMN outbox.queue.leased_at IS 'When it was claimed.';
COMMENT ON COLUMN outbox.queue.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.queue.owner_token IS 'The owner of the lease.';
COMMENT ON COLUMN outbox.queue.attempts IS 'How often the message was handed out.';
COMMENT ON COLUMN outbox.queue.retry_count IS 'How often it was returned for a retry.';
COMMENT ON COLUMN outbox.queue.waived IS
    'Attempts that do not count towards the maximum: the lease was released or revoked.';
COMMENT ON COLUMN outbox.queue.progress IS 'Progress of the message, as a bit mask.';
COMMENT ON COLUMN outbox.queue.status IS '0 ready, 1 in progress.';
COMMENT ON COLUMN outbox.queue.failure_reason IS 'Why the last attempt failed; 0 if none did.';
COMMENT ON COLUMN outbox.queue.created_at IS 'When the message was enqueued.';
COMMENT ON COLUMN outbox.queue.message_id IS
    'The logical message, constant across retries and replays.';
COMMENT ON COLUMN outbox.queue.stream_seq IS 'Place in the stream.';
COMMENT ON COLUMN outbox.queue.due_time IS 'Not delivered before this time, as passed to enqueue.';
COMMENT ON COLUMN outbox.queue.expires_at IS 'Not delivered from this time on.';
COMMENT ON COLUMN outbox.queue.tenant_id IS 'The tenant that the message belongs to.';
COMMENT ON COLUMN outbox.queue.stream_id IS 'The stream; its messages are delivered in order.';
COMMENT ON COLUMN outbox.queue.published_id IS 'The publication, if it is a delivery.';
COMMENT ON COLUMN outbox.queue.published_at IS
    'When that was published, if the row in outbox.publications is needed.';
COMMENT ON COLUMN outbox.queue.subscriber IS
    'The subscriber, if it is a delivery; see outbox.subscribers.';
COMMENT ON COLUMN outbox.queue.priority IS 'From -2 to 2; null is 0.';
COMMENT ON COLUMN outbox.queue.caused_by IS
    'What has caused it: a message, a timer, a run, a join, or a trace; see outbox.trace.';
COMMENT ON COLUMN outbox.queue.namespace IS
    'The namespace; separates applications that share the database.';
COMMENT ON COLUMN outbox.queue.topic IS 'The topic of the message.';
COMMENT ON COLUMN outbox.queue.correlation_id IS
    'Identifies related messages; chosen by the producer.';
COMMENT ON COLUMN outbox.queue.dedupe_key IS
    'The dedupe key; at most one message of a topic has it.';
COMMENT ON COLUMN outbox.queue.headers IS 'A JSON object that is delivered with the payload.';
COMMENT ON COLUMN outbox.queue.last_error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN outbox.queue.errors IS 'The errors of failed attempts; see outbox.attempts_log.';
COMMENT ON COLUMN outbox.queue.payload IS 'The payload, which is never parsed.';

-- Keys and the messages that have them. A key is a digest, because the three
-- strings that it stands for do not fit in an index.
CREATE TABLE outbox.dedupe (
    key         uuid NOT NULL,
    message_id  uuid NOT NULL,
    taken_until timestamptz,
    CONSTRAINT dedupe_pkey PRIMARY KEY (key)
) WITH (fillfactor = 90);

-- there are no entries for keys that are taken as long as their messages are kept
CREATE INDEX dedupe_until_idx ON outbox.dedupe (taken_until)
    WHERE taken_until IS NOT NULL;

COMMENT ON TABLE outbox.dedupe IS 'Dedupe keys, and the messages that have them.';
COMMENT ON COLUMN outbox.dedupe.key IS 'Digest of namespace, topic and dedupe key.';
COMMENT ON COLUMN outbox.dedupe.message_id IS 'The message that has the key.';
COMMENT ON COLUMN outbox.dedupe.taken_until IS
    'How long the key is taken, whatever happens to the message; null: as long as that is kept.';

-- _queue_written()
--     BEFORE INSERT OR UPDATE on each live table. Sets the lane. In the queue, sets
--     what enqueue would have set, and skips the row if its dedupe key is taken; but
--     does not change rows that have an id, because they come from a dump.
CREATE FUNCTION outbox._queue_written()
RETURNS trigger
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_queue_written';

COMMENT ON FUNCTION outbox._queue_written() IS
    'Completes rows written by plain SQL as the functions would have done.';

-- _queue_changed()
--     AFTER INSERT, UPDATE and DELETE on each live table. Reports to shared memory
--     where the row is now and where it was. The functions of the extension do so
--     themselves, and do not fire this trigger when they write directly.
CREATE FUNCTION outbox._queue_changed()
RETURNS trigger
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_queue_changed';

COMMENT ON FUNCTION outbox._queue_changed() IS
    'Reports rows written by plain SQL to shared memory.';

-- _queue_truncated()
--     BEFORE TRUNCATE on each live table. Makes shared memory forget everything about
--     it.
CREATE FUNCTION outbox._queue_truncated()
RETURNS trigger
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_queue_truncated';

COMMENT ON FUNCTION outbox._queue_truncated() IS
    'Reports TRUNCATE to shared memory.';

CREATE TRIGGER outbox_queue_written
    BEFORE INSERT OR UPDATE ON outbox.queue
    FOR EACH ROW EXECUTE FUNCTION outbox._queue_written();

CREATE TRIGGER outbox_queue_changed
    AFTER INSERT OR UPDATE OR DELETE ON outbox.queue
    FOR EACH ROW EXECUTE FUNCTION outbox._queue_changed();

CREATE TRIGGER outbox_queue_truncated
    BEFORE TRUNCATE ON outbox.queue
    FOR EACH STATEMENT EXECUTE FUNCTION outbox._queue_truncated();

-- for logical replication as well
ALTER TABLE outbox.queue ENABLE ALWAYS TRIGGER outbox_queue_changed;
ALTER TABLE outbox.queue ENABLE ALWAYS TRIGGER outbox_queue_truncated;

COMMENT ON TRIGGER outbox_queue_written ON outbox.queue IS 'Completes rows that plain SQL writes.';
COMMENT ON TRIGGER outbox_queue_changed ON outbox.queue IS 'Reports changes of rows by plain SQL.';
COMMENT ON TRIGGER outbox_queue_truncated ON outbox.queue IS 'Reports that all rows are removed.';

-- _lane_counts(store, deliveries)
--     Returns how many messages each lane of a live table has, or only of the lanes of
--     deliveries: at most 10000 are counted in each, and where there are many lanes
--     200000 in all, but 2 of each at least. The topic of a received message is its
--     handler_name. Views call this with the privileges of the reader, who therefore
--     needs EXECUTE.
CREATE FUNCTION outbox._lane_counts(
    store      regclass,
    deliveries boolean DEFAULT false
)
RETURNS TABLE (
    namespace       text,
    topic           text,
    subscriber      integer,
    ready           bigint,
    behind          bigint,
    delayed         bigint,
    leased          bigint,
    expired         bigint,
    failing         bigint,
    oldest_ready_at timestamptz,
    more            boolean
)
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'outbox_lane_counts';

COMMENT ON FUNCTION outbox._lane_counts(regclass, boolean) IS
    'How many messages each lane of a live table has, up to a limit.';
