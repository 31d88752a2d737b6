-- inbox.sql: messages that were received. Serves sql_inbox.c and sql_work.c, and
-- dedupe.c, which records what was received.
--
-- The three tables are a live table and its history, like outbox.queue,
-- outbox.archive and outbox.dead: C knows their columns by number, so number,
-- order and types must be the same. Two have other names: handler_name is the
-- topic, and source the correlation_id.

CREATE TABLE outbox.inbox_queue (
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
    handler_name    text        NOT NULL,
    source          text,
    dedupe_key      text,
    headers         jsonb,
    last_error      text,
    errors          text[],
    payload         text        NOT NULL,

    CONSTRAINT inbox_queue_pkey PRIMARY KEY (id),
    CONSTRAINT inbox_queue_message_id_key UNIQUE (message_id),
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

CREATE INDEX inbox_queue_ready_idx ON outbox.inbox_queue (lane, next_attempt_at, id)
    WITH (deduplicate_items = off);

CREATE INDEX inbox_queue_stream_idx ON outbox.inbox_queue (stream_id, stream_seq)
    WITH (deduplicate_items = off)
    WHERE stream_id IS NOT NULL;

CREATE INDEX inbox_queue_expires_idx ON outbox.inbox_queue (expires_at)
    WHERE expires_at IS NOT NULL;

CREATE INDEX inbox_queue_caused_idx ON outbox.inbox_queue (caused_by)
    WHERE caused_by IS NOT NULL;

COMMENT ON TABLE outbox.inbox_queue IS
    'Received messages that are ready or in progress. Use the view outbox.inbox instead.';
COMMENT ON COLUMN outbox.inbox_queue.id IS 'The work item; constant for the life of the message.';
COMMENT ON COLUMN outbox.inbox_queue.lane IS
    'The lane in which claims find it: a hash of namespace, topic and tenant.';
COMMENT ON COLUMN outbox.inbox_queue.next_attempt_at IS 'Not delivered before this time.';
COMMENT ON COLUMN outbox.inbox_queue.updated_at IS 'When the row was last changed.';
COMMENT ON COLUMN outbox.inbox_queue.leased_at IS 'When it was claimed.';
COMMENT ON COLUMN outbox.inbox_queue.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.inbox_queue.owner_token IS 'The owner of the lease.';
COMMENT ON COLUMN outbox.inbox_queue.attempts IS 'How often the message was handed out.';
COMMENT ON COLUMN outbox.inbox_queue.retry_count IS 'How often it was returned for a retry.';
COMMENT ON COLUMN outbox.inbox_queue.waived IS
    'Attempts that do not count towards the maximum: the lease was released or revoked.';
COMMENT ON COLUMN outbox.inbox_queue.progress IS 'Progress of the message, as a bit mask.';
COMMENT ON COLUMN outbox.inbox_queue.status IS '0 ready, 1 in progress.';
COMMENT ON COLUMN outbox.inbox_queue.failure_reason IS
    'Why the last attempt failed; 0 if none did.';
COMMENT ON COLUMN outbox.inbox_queue.created_at IS 'When the message was enqueued.';
COMMENT ON COLUMN outbox.inbox_queue.message_id IS
    'The logical message, constant across retries and replays.';
COMMENT ON COLUMN outbox.inbox_queue.stream_seq IS 'Place in the stream.';
COMMENT ON COLUMN outbox.inbox_queue.due_time IS
    'Not delivered before this time, as passed to enqueue.';
COMMENT ON COLUMN outbox.inbox_queue.expires_at IS 'Not delivered from this time on.';
COMMENT ON COLUMN outbox.inbox_queue.tenant_id IS 'The tenant that the message belongs to.';
COMMENT ON COLUMN outbox.inbox_queue.stream_id IS
    'The stream; its messages are delivered in order.';
COMMENT ON COLUMN outbox.inbox_queue.published_id IS 'The publication, if it is a delivery.';
COMMENT ON COLUMN outbox.inbox_queue.published_at IS
    'When that was published, if the row in outbox.publications is needed.';
COMMENT ON COLUMN outbox.inbox_queue.subscriber IS
    'The subscriber, if it is a delivery; see outbox.subscribers.';
COMMENT ON COLUMN outbox.inbox_queue.priority IS 'From -2 to 2; null is 0.';
COMMENT ON COLUMN outbox.inbox_queue.caused_by IS
    'What has caused it: a message, a timer, a run, a join, or a trace; see outbox.trace.';
COMMENT ON COLUMN outbox.inbox_queue.namespace IS
    'The namespace; separates applications that share the database.';
COMMENT ON COLUMN outbox.inbox_queue.handler_name IS 'The handler of the message.';
COMMENT ON COLUMN outbox.inbox_queue.source IS 'Where the message came from.';
COMMENT ON COLUMN outbox.inbox_queue.dedupe_key IS
    'The dedupe key; at most one message of a topic has it.';
COMMENT ON COLUMN outbox.inbox_queue.headers IS 'A JSON object that is delivered with the payload.';
COMMENT ON COLUMN outbox.inbox_queue.last_error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN outbox.inbox_queue.errors IS
    'The errors of failed attempts; see outbox.attempts_log.';
COMMENT ON COLUMN outbox.inbox_queue.payload IS 'The payload, which is never parsed.';

CREATE TRIGGER outbox_inbox_queue_written
    BEFORE INSERT OR UPDATE ON outbox.inbox_queue
    FOR EACH ROW EXECUTE FUNCTION outbox._queue_written();

CREATE TRIGGER outbox_inbox_queue_changed
    AFTER INSERT OR UPDATE OR DELETE ON outbox.inbox_queue
    FOR EACH ROW EXECUTE FUNCTION outbox._queue_changed();

CREATE TRIGGER outbox_inbox_queue_truncated
    BEFORE TRUNCATE ON outbox.inbox_queue
    FOR EACH STATEMENT EXECUTE FUNCTION outbox._queue_truncated();

-- for logical replication as well
ALTER TABLE outbox.inbox_queue ENABLE ALWAYS TRIGGER outbox_inbox_queue_changed;
ALTER TABLE outbox.inbox_queue ENABLE ALWAYS TRIGGER outbox_inbox_queue_truncated;

COMMENT ON TRIGGER outbox_inbox_queue_written ON outbox.inbox_queue IS
    'Completes rows that plain SQL writes.';
COMMENT ON TRIGGER outbox_inbox_queue_changed ON outbox.inbox_queue IS
    'Reports changes of rows by plain SQL.';
COMMENT ON TRIGGER outbox_inbox_queue_truncated ON outbox.inbox_queue IS
    'Reports that all rows are removed.';

CREATE TABLE outbox.inbox_done (
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
    handler_name   text        NOT NULL,
    subscription   text,
    source         text,
    dedupe_key     text,
    headers        jsonb,
    last_error     text,
    errors         text[],
    payload        text        NOT NULL,

    CONSTRAINT inbox_done_pkey PRIMARY KEY (id, processed_at)
);

CREATE INDEX inbox_done_message_id_idx ON outbox.inbox_done (message_id);
CREATE INDEX inbox_done_keep_idx ON outbox.inbox_done (keep, processed_at);
CREATE INDEX inbox_done_caused_idx ON outbox.inbox_done (caused_by)
    WHERE caused_by IS NOT NULL;

COMMENT ON TABLE outbox.inbox_done IS
    'Received messages that are done, if their policy keeps them. Use the view outbox.inbox '
    'instead.';
COMMENT ON COLUMN outbox.inbox_done.id IS 'The work item, as it was in the queue.';
COMMENT ON COLUMN outbox.inbox_done.created_at IS 'When the message was enqueued.';
COMMENT ON COLUMN outbox.inbox_done.processed_at IS 'When it was finished.';
COMMENT ON COLUMN outbox.inbox_done.keep IS
    'How long it is kept: seconds; -1 forever; -2 as set by outbox.retention.';
COMMENT ON COLUMN outbox.inbox_done.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.inbox_done.retry_count IS 'How often it was returned for a retry.';
COMMENT ON COLUMN outbox.inbox_done.progress IS 'Progress of the message, as a bit mask.';
COMMENT ON COLUMN outbox.inbox_done.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.inbox_done.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.inbox_done.processed_by IS 'The owner that finished it.';
COMMENT ON COLUMN outbox.inbox_done.due_time IS 'As passed to enqueue.';
COMMENT ON COLUMN outbox.inbox_done.expires_at IS 'As passed to enqueue.';
COMMENT ON COLUMN outbox.inbox_done.tenant_id IS 'The tenant that the message belongs to.';
COMMENT ON COLUMN outbox.inbox_done.stream_id IS 'The stream it was in.';
COMMENT ON COLUMN outbox.inbox_done.published_id IS 'The publication, if it was a delivery.';
COMMENT ON COLUMN outbox.inbox_done.published_at IS
    'When that was published, if the row in outbox.publications is needed.';
COMMENT ON COLUMN outbox.inbox_done.priority IS 'From -2 to 2; null is 0.';
COMMENT ON COLUMN outbox.inbox_done.caused_by IS
    'What has caused it: a message, a timer, a run, a join, or a trace; see outbox.trace.';
COMMENT ON COLUMN outbox.inbox_done.subscription IS 'The subscription, if it was a delivery.';
COMMENT ON COLUMN outbox.inbox_done.namespace IS
    'The namespace; separates applications that share the database.';
COMMENT ON COLUMN outbox.inbox_done.handler_name IS 'The handler of the message.';
COMMENT ON COLUMN outbox.inbox_done.source IS 'Where the message came from.';
COMMENT ON COLUMN outbox.inbox_done.dedupe_key IS
    'The dedupe key; at most one message of a topic has it.';
COMMENT ON COLUMN outbox.inbox_done.headers IS 'A JSON object that is delivered with the payload.';
COMMENT ON COLUMN outbox.inbox_done.last_error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN outbox.inbox_done.errors IS
    'The errors of failed attempts; see outbox.attempts_log.';
COMMENT ON COLUMN outbox.inbox_done.payload IS 'The payload.';

CREATE TABLE outbox.inbox_dead (
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
    handler_name   text        NOT NULL,
    subscription   text,
    source         text,
    dedupe_key     text,
    headers        jsonb,
    last_error     text,
    errors         text[],
    payload        text        NOT NULL,

    CONSTRAINT inbox_dead_pkey PRIMARY KEY (id)
);

CREATE INDEX inbox_dead_message_id_idx ON outbox.inbox_dead (message_id);
CREATE INDEX inbox_dead_keep_idx ON outbox.inbox_dead (keep, processed_at);
CREATE INDEX inbox_dead_caused_idx ON outbox.inbox_dead (caused_by)
    WHERE caused_by IS NOT NULL;

COMMENT ON TABLE outbox.inbox_dead IS
    'Received messages that have failed. Use the view outbox.inbox instead.';
COMMENT ON COLUMN outbox.inbox_dead.id IS 'The work item, as it was in the queue.';
COMMENT ON COLUMN outbox.inbox_dead.created_at IS 'When the message was enqueued.';
COMMENT ON COLUMN outbox.inbox_dead.processed_at IS 'When it was finished.';
COMMENT ON COLUMN outbox.inbox_dead.keep IS
    'How long it is kept: seconds; -1 forever; -2 as set by outbox.dead_retention.';
COMMENT ON COLUMN outbox.inbox_dead.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.inbox_dead.retry_count IS 'How often it was returned for a retry.';
COMMENT ON COLUMN outbox.inbox_dead.progress IS 'Progress of the message, as a bit mask.';
COMMENT ON COLUMN outbox.inbox_dead.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.inbox_dead.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.inbox_dead.processed_by IS 'The owner that finished it.';
COMMENT ON COLUMN outbox.inbox_dead.due_time IS 'As passed to enqueue.';
COMMENT ON COLUMN outbox.inbox_dead.expires_at IS 'As passed to enqueue.';
COMMENT ON COLUMN outbox.inbox_dead.tenant_id IS 'The tenant that the message belongs to.';
COMMENT ON COLUMN outbox.inbox_dead.stream_id IS 'The stream it was in.';
COMMENT ON COLUMN outbox.inbox_dead.published_id IS 'The publication, if it was a delivery.';
COMMENT ON COLUMN outbox.inbox_dead.published_at IS
    'When that was published, if the row in outbox.publications is needed.';
COMMENT ON COLUMN outbox.inbox_dead.priority IS 'From -2 to 2; null is 0.';
COMMENT ON COLUMN outbox.inbox_dead.caused_by IS
    'What has caused it: a message, a timer, a run, a join, or a trace; see outbox.trace.';
COMMENT ON COLUMN outbox.inbox_dead.subscription IS 'The subscription, if it was a delivery.';
COMMENT ON COLUMN outbox.inbox_dead.namespace IS
    'The namespace; separates applications that share the database.';
COMMENT ON COLUMN outbox.inbox_dead.handler_name IS 'The handler of the message.';
COMMENT ON COLUMN outbox.inbox_dead.source IS 'Where the message came from.';
COMMENT ON COLUMN outbox.inbox_dead.dedupe_key IS
    'The dedupe key; at most one message of a topic has it.';
COMMENT ON COLUMN outbox.inbox_dead.headers IS 'A JSON object that is delivered with the payload.';
COMMENT ON COLUMN outbox.inbox_dead.last_error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN outbox.inbox_dead.errors IS
    'The errors of failed attempts; see outbox.attempts_log.';
COMMENT ON COLUMN outbox.inbox_dead.payload IS 'The payload.';

CREATE TABLE outbox.message_deduplication (
    message_id    uuid        NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT message_deduplication_pkey PRIMARY KEY (message_id)
);

CREATE INDEX message_deduplication_seen_idx ON outbox.message_deduplication (first_seen_at);

COMMENT ON TABLE outbox.message_deduplication IS
    'The messages that were received within outbox.deduplication_retention.';
COMMENT ON COLUMN outbox.message_deduplication.message_id IS 'The message.';
COMMENT ON COLUMN outbox.message_deduplication.first_seen_at IS 'When it was first received.';

CREATE VIEW outbox.inbox AS
SELECT q.id,
       q.handler_name,
       q.status,
       outbox.status_name(q.status) AS state,
       q.attempts - q.waived AS attempts,
       q.retry_count,
       q.created_at,
       q.next_attempt_at,
       q.owner_token,
       q.locked_until,
       q.updated_at,
       false AS is_processed,
       NULL::timestamptz AS processed_at,
       NULL::uuid AS processed_by,
       q.failure_reason,
       q.last_error,
       q.progress,
       q.source,
       q.stream_id,
       outbox._partition_number(q.stream_id) AS partition_number,
       q.message_id,
       q.headers,
       q.payload
  FROM outbox.inbox_queue q
UNION ALL
SELECT h.id,
       h.handler_name,
       2::smallint,
       outbox.status_name(2),
       h.attempts,
       h.retry_count,
       h.created_at,
       NULL,
       NULL,
       NULL,
       h.processed_at,
       true,
       h.processed_at,
       h.processed_by,
       h.failure_reason,
       h.last_error,
       h.progress,
       h.source,
       h.stream_id,
       outbox._partition_number(h.stream_id),
       h.message_id,
       h.headers,
       h.payload
  FROM outbox.inbox_done h
UNION ALL
SELECT h.id,
       h.handler_name,
       3::smallint,
       outbox.status_name(3),
       h.attempts,
       h.retry_count,
       h.created_at,
       NULL,
       NULL,
       NULL,
       h.processed_at,
       false,
       NULL,
       NULL,
       h.failure_reason,
       h.last_error,
       h.progress,
       h.source,
       h.stream_id,
       outbox._partition_number(h.stream_id),
       h.message_id,
       h.headers,
       h.payload
  FROM outbox.inbox_dead h;

COMMENT ON VIEW outbox.inbox IS
    'Received messages: waiting, leased, failed, and done if they are kept.';
COMMENT ON COLUMN outbox.inbox.id IS 'The work item.';
COMMENT ON COLUMN outbox.inbox.message_id IS 'The id of the message, given by its sender.';
COMMENT ON COLUMN outbox.inbox.source IS 'Where it came from.';
COMMENT ON COLUMN outbox.inbox.handler_name IS 'The handler of the message.';
COMMENT ON COLUMN outbox.inbox.payload IS 'The payload.';
COMMENT ON COLUMN outbox.inbox.headers IS 'A JSON object that is delivered with the payload.';
COMMENT ON COLUMN outbox.inbox.stream_id IS 'The stream; its messages are handled in order.';
COMMENT ON COLUMN outbox.inbox.partition_number IS 'The partition of its stream.';
COMMENT ON COLUMN outbox.inbox.status IS '0 ready, 1 in progress, 2 done, 3 failed.';
COMMENT ON COLUMN outbox.inbox.state IS 'ready, in progress, done or failed: the status.';
COMMENT ON COLUMN outbox.inbox.owner_token IS 'The owner of the lease.';
COMMENT ON COLUMN outbox.inbox.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.inbox.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.inbox.retry_count IS 'How often it was returned for a retry.';
COMMENT ON COLUMN outbox.inbox.next_attempt_at IS 'Not handed out before this time.';
COMMENT ON COLUMN outbox.inbox.last_error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN outbox.inbox.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.inbox.progress IS 'Progress of the message, as a bit mask.';
COMMENT ON COLUMN outbox.inbox.created_at IS 'When it was received.';
COMMENT ON COLUMN outbox.inbox.updated_at IS 'When it last changed.';
COMMENT ON COLUMN outbox.inbox.is_processed IS 'Whether it is done.';
COMMENT ON COLUMN outbox.inbox.processed_at IS 'When it was done.';
COMMENT ON COLUMN outbox.inbox.processed_by IS 'The owner that finished it.';

CREATE VIEW outbox.dead_inbox AS
SELECT d.id,
       d.handler_name,
       d.attempts,
       outbox.reason_name(d.failure_reason) AS reason_name,
       date_trunc('second', now() - d.processed_at) AS age,
       d.processed_at AS failed_at,
       d.processed_by AS failed_by,
       d.created_at,
       d.failure_reason,
       d.last_error,
       d.source,
       d.stream_id,
       d.message_id,
       d.headers,
       d.payload
  FROM outbox.inbox_dead d
 ORDER BY d.processed_at DESC;

COMMENT ON VIEW outbox.dead_inbox IS
    'Received messages that have failed. outbox.requeue_inbox brings them back.';
COMMENT ON COLUMN outbox.dead_inbox.id IS 'The work item.';
COMMENT ON COLUMN outbox.dead_inbox.handler_name IS 'The handler of the message.';
COMMENT ON COLUMN outbox.dead_inbox.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.dead_inbox.reason_name IS 'The name of failure_reason.';
COMMENT ON COLUMN outbox.dead_inbox.age IS 'How long ago it failed.';
COMMENT ON COLUMN outbox.dead_inbox.failed_at IS 'When it failed.';
COMMENT ON COLUMN outbox.dead_inbox.failed_by IS 'The owner that failed it; null if none did.';
COMMENT ON COLUMN outbox.dead_inbox.created_at IS 'When it was received.';
COMMENT ON COLUMN outbox.dead_inbox.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.dead_inbox.last_error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN outbox.dead_inbox.source IS 'Where it came from.';
COMMENT ON COLUMN outbox.dead_inbox.stream_id IS 'The stream; its messages are handled in order.';
COMMENT ON COLUMN outbox.dead_inbox.message_id IS 'The id of the message, given by its sender.';
COMMENT ON COLUMN outbox.dead_inbox.headers IS 'A JSON object that is delivered with the payload.';
COMMENT ON COLUMN outbox.dead_inbox.payload IS 'The payload.';

-- receive(message_id, handler_name, payload, ...)
--     Puts a message into the inbox, unless it was received before.
CREATE FUNCTION outbox.receive(
    message_id   uuid,
    handler_name text,
    payload      text,
    source       text  DEFAULT NULL,
    stream_id    uuid  DEFAULT NULL,
    headers      jsonb DEFAULT NULL
)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_receive_message';

COMMENT ON FUNCTION outbox.receive(uuid, text, text, text, uuid, jsonb) IS
    'Puts a message into the inbox; false if it was received before.';

-- The functions below do for the inbox what those of work.sql do for the queue, with
-- the same arguments. Policies are those of kind 'inbox' in outbox.topics.

-- claim_inbox(owner_token, ...)
--     Leases up to batch_size due messages to the owner; see claim. handler_names
--     selects by handler. In the result, topic is the handler_name, and
--     correlation_id the source.
CREATE FUNCTION outbox.claim_inbox(
    owner_token   uuid    DEFAULT NULL,
    lease_seconds integer DEFAULT NULL,
    batch_size    integer DEFAULT NULL,
    namespace     text    DEFAULT NULL,
    handler_names text[]  DEFAULT NULL,
    tenant_id     uuid    DEFAULT NULL,
    max_attempts  integer DEFAULT NULL,
    wait_ms       integer DEFAULT 0
)
RETURNS SETOF outbox.message
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 50
AS 'MODULE_PATHNAME', 'outbox_claim_inbox';

COMMENT ON FUNCTION outbox.claim_inbox(
    uuid, integer, integer, text, text[], uuid, integer, integer
) IS 'Claims due messages of the inbox for an owner, by default a new one.';

-- ack_inbox(owner_token, ids, ...)
--     Finishes messages; see ack. They are not kept, unless the policy of the
--     handler_name has a retention: message_deduplication remembers that they were
--     received.
CREATE FUNCTION outbox.ack_inbox(
    owner_token uuid,
    ids         bigint[],
    attempts    integer[] DEFAULT NULL,
    strict      boolean   DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_ack_inbox';

COMMENT ON FUNCTION outbox.ack_inbox(uuid, bigint[], integer[], boolean) IS
    'Finishes messages of the inbox.';

-- nack_inbox(owner_token, ids, ...)
--     Returns messages for a retry; see nack.
CREATE FUNCTION outbox.nack_inbox(
    owner_token  uuid,
    ids          bigint[],
    error        text      DEFAULT NULL,
    delay        interval  DEFAULT NULL,
    attempts     integer[] DEFAULT NULL,
    strict       boolean   DEFAULT false,
    max_attempts integer   DEFAULT NULL
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_nack_inbox';

COMMENT ON FUNCTION outbox.nack_inbox(
    uuid, bigint[], text, interval, integer[], boolean, integer
) IS 'Returns messages of the inbox for a retry.';

-- fail_inbox(owner_token, ids, ...)
--     Fails messages permanently; see fail. They are shown by outbox.inbox, and can
--     be brought back with requeue_inbox.
CREATE FUNCTION outbox.fail_inbox(
    owner_token uuid,
    ids         bigint[],
    error       text      DEFAULT NULL,
    reason      integer   DEFAULT NULL,
    attempts    integer[] DEFAULT NULL,
    strict      boolean   DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_fail_inbox';

COMMENT ON FUNCTION outbox.fail_inbox(uuid, bigint[], text, integer, integer[], boolean) IS
    'Fails messages of the inbox permanently.';

-- renew_inbox(owner_token, ids, ...)
--     Makes leases last lease_seconds from now; see renew.
CREATE FUNCTION outbox.renew_inbox(
    owner_token   uuid,
    ids           bigint[],
    lease_seconds integer   DEFAULT NULL,
    attempts      integer[] DEFAULT NULL,
    strict        boolean   DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_renew_inbox';

COMMENT ON FUNCTION outbox.renew_inbox(uuid, bigint[], integer, integer[], boolean) IS
    'Renews leases of the inbox.';

-- release_inbox(owner_token)
--     Releases all leases of the owner; see release.
CREATE FUNCTION outbox.release_inbox(owner_token uuid)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_release_all_inbox';

COMMENT ON FUNCTION outbox.release_inbox(uuid) IS
    'Releases all leases of an owner in the inbox; the attempts do not count.';

-- release_inbox(owner_token, ids, strict)
--     Releases leases; the attempts do not count. See release.
CREATE FUNCTION outbox.release_inbox(
    owner_token uuid,
    ids         bigint[],
    strict      boolean DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_release_inbox';

COMMENT ON FUNCTION outbox.release_inbox(uuid, bigint[], boolean) IS
    'Releases leases of the inbox; the attempts do not count.';

-- requeue_inbox(ids)
--     Puts dead messages back into the inbox; see requeue. Returns how many.
CREATE FUNCTION outbox.requeue_inbox(ids bigint[])
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_requeue_inbox';

COMMENT ON FUNCTION outbox.requeue_inbox(bigint[]) IS 'Puts dead messages back into the inbox.';

-- reap_inbox(batch_limit)
--     Makes messages whose leases have ended ready again, or fails them if they are
--     out of attempts; see reap. Returns how many.
CREATE FUNCTION outbox.reap_inbox(batch_limit integer DEFAULT NULL)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_reap_inbox';

COMMENT ON FUNCTION outbox.reap_inbox(integer) IS
    'Makes messages of the inbox whose leases have ended ready again.';
