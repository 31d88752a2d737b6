-- inbox.sql: messages that were received. Serves sql_inbox.c and sql_work.c, and
-- dedupe.c, which remembers what was received.
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

COMMENT ON TABLE outbox.inbox_queue IS
    'Received messages that are ready or in progress. Look at outbox.inbox instead.';
COMMENT ON COLUMN outbox.inbox_queue.id IS 'The work item; constant for the life of the message.';
COMMENT ON COLUMN outbox.inbox_queue.lane IS
    'Where a claim finds it: a hash of namespace, topic and tenant.';
COMMENT ON COLUMN outbox.inbox_queue.next_attempt_at IS 'Not to be delivered before.';
COMMENT ON COLUMN outbox.inbox_queue.updated_at IS 'When the row was last changed.';
COMMENT ON COLUMN outbox.inbox_queue.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.inbox_queue.owner_token IS 'Who has the lease.';
COMMENT ON COLUMN outbox.inbox_queue.attempts IS 'How often the message was handed out.';
COMMENT ON COLUMN outbox.inbox_queue.retry_count IS 'How often it was handed back as not done.';
COMMENT ON COLUMN outbox.inbox_queue.waived IS
    'Attempts that do not count towards the maximum: the lease was given back, or taken away.';
COMMENT ON COLUMN outbox.inbox_queue.progress IS 'Bits of what was achieved so far.';
COMMENT ON COLUMN outbox.inbox_queue.status IS '0 ready, 1 in progress.';
COMMENT ON COLUMN outbox.inbox_queue.failure_reason IS
    'Why the last attempt failed; 0 if none did.';
COMMENT ON COLUMN outbox.inbox_queue.created_at IS 'When the message was enqueued.';
COMMENT ON COLUMN outbox.inbox_queue.message_id IS
    'The logical message, constant across retries and replays.';
COMMENT ON COLUMN outbox.inbox_queue.stream_seq IS 'Place in the stream.';
COMMENT ON COLUMN outbox.inbox_queue.due_time IS 'Not to be delivered before, as given to enqueue.';
COMMENT ON COLUMN outbox.inbox_queue.expires_at IS 'Not to be delivered from then on.';
COMMENT ON COLUMN outbox.inbox_queue.tenant_id IS 'Whose message it is.';
COMMENT ON COLUMN outbox.inbox_queue.stream_id IS
    'Messages of a stream are delivered one after the other.';
COMMENT ON COLUMN outbox.inbox_queue.namespace IS
    'Keeps applications apart that share the database.';
COMMENT ON COLUMN outbox.inbox_queue.handler_name IS 'Who is to handle the message.';
COMMENT ON COLUMN outbox.inbox_queue.source IS 'Where the message came from.';
COMMENT ON COLUMN outbox.inbox_queue.dedupe_key IS 'No two messages of a topic have the same.';
COMMENT ON COLUMN outbox.inbox_queue.headers IS 'Whatever travels with the payload.';
COMMENT ON COLUMN outbox.inbox_queue.last_error IS
    'What the worker said of the last failed attempt.';
COMMENT ON COLUMN outbox.inbox_queue.errors IS 'What was said of all failed attempts.';
COMMENT ON COLUMN outbox.inbox_queue.payload IS 'The message itself; never parsed.';

CREATE TRIGGER outbox_inbox_queue_written
    BEFORE INSERT OR UPDATE ON outbox.inbox_queue
    FOR EACH ROW EXECUTE FUNCTION outbox._queue_written();

CREATE TRIGGER outbox_inbox_queue_changed
    AFTER INSERT OR UPDATE OR DELETE ON outbox.inbox_queue
    FOR EACH ROW EXECUTE FUNCTION outbox._queue_changed();

CREATE TRIGGER outbox_inbox_queue_truncated
    BEFORE TRUNCATE ON outbox.inbox_queue
    FOR EACH STATEMENT EXECUTE FUNCTION outbox._queue_truncated();

-- also for what replication does
ALTER TABLE outbox.inbox_queue ENABLE ALWAYS TRIGGER outbox_inbox_queue_changed;
ALTER TABLE outbox.inbox_queue ENABLE ALWAYS TRIGGER outbox_inbox_queue_truncated;

COMMENT ON TRIGGER outbox_inbox_queue_written ON outbox.inbox_queue IS
    'Completes a row that plain SQL writes.';
COMMENT ON TRIGGER outbox_inbox_queue_changed ON outbox.inbox_queue IS
    'Reports what plain SQL has done to a row.';
COMMENT ON TRIGGER outbox_inbox_queue_truncated ON outbox.inbox_queue IS
    'Reports that all rows will be gone.';

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
    namespace      text        NOT NULL,
    handler_name   text        NOT NULL,
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

COMMENT ON TABLE outbox.inbox_done IS
    'Received messages that are done, where that was asked for. Look at outbox.inbox instead.';
COMMENT ON COLUMN outbox.inbox_done.id IS 'The work item, as it was in the queue.';
COMMENT ON COLUMN outbox.inbox_done.created_at IS 'When the message was enqueued.';
COMMENT ON COLUMN outbox.inbox_done.processed_at IS 'When it was finished.';
COMMENT ON COLUMN outbox.inbox_done.keep IS
    'How long it is kept: seconds; -1 for ever; -2 as outbox.retention says.';
COMMENT ON COLUMN outbox.inbox_done.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.inbox_done.retry_count IS 'How often it was handed back as not done.';
COMMENT ON COLUMN outbox.inbox_done.progress IS 'Bits of what was achieved.';
COMMENT ON COLUMN outbox.inbox_done.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.inbox_done.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.inbox_done.processed_by IS 'The owner who finished it.';
COMMENT ON COLUMN outbox.inbox_done.due_time IS 'As given to enqueue.';
COMMENT ON COLUMN outbox.inbox_done.expires_at IS 'As given to enqueue.';
COMMENT ON COLUMN outbox.inbox_done.tenant_id IS 'Whose message it is.';
COMMENT ON COLUMN outbox.inbox_done.stream_id IS 'The stream it was in.';
COMMENT ON COLUMN outbox.inbox_done.namespace IS
    'Keeps applications apart that share the database.';
COMMENT ON COLUMN outbox.inbox_done.handler_name IS 'Who has handled the message.';
COMMENT ON COLUMN outbox.inbox_done.source IS 'Where the message came from.';
COMMENT ON COLUMN outbox.inbox_done.dedupe_key IS 'No two messages of a topic have the same.';
COMMENT ON COLUMN outbox.inbox_done.headers IS 'Whatever travels with the payload.';
COMMENT ON COLUMN outbox.inbox_done.last_error IS
    'What the worker said of the last failed attempt.';
COMMENT ON COLUMN outbox.inbox_done.errors IS 'What was said of all failed attempts.';
COMMENT ON COLUMN outbox.inbox_done.payload IS 'The message itself.';

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
    namespace      text        NOT NULL,
    handler_name   text        NOT NULL,
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

COMMENT ON TABLE outbox.inbox_dead IS
    'Received messages that have failed. Look at outbox.inbox instead.';
COMMENT ON COLUMN outbox.inbox_dead.id IS 'The work item, as it was in the queue.';
COMMENT ON COLUMN outbox.inbox_dead.created_at IS 'When the message was enqueued.';
COMMENT ON COLUMN outbox.inbox_dead.processed_at IS 'When it was finished.';
COMMENT ON COLUMN outbox.inbox_dead.keep IS
    'How long it is kept: seconds; -1 for ever; -2 as outbox.dead_retention says.';
COMMENT ON COLUMN outbox.inbox_dead.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.inbox_dead.retry_count IS 'How often it was handed back as not done.';
COMMENT ON COLUMN outbox.inbox_dead.progress IS 'Bits of what was achieved.';
COMMENT ON COLUMN outbox.inbox_dead.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.inbox_dead.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.inbox_dead.processed_by IS 'The owner who finished it.';
COMMENT ON COLUMN outbox.inbox_dead.due_time IS 'As given to enqueue.';
COMMENT ON COLUMN outbox.inbox_dead.expires_at IS 'As given to enqueue.';
COMMENT ON COLUMN outbox.inbox_dead.tenant_id IS 'Whose message it is.';
COMMENT ON COLUMN outbox.inbox_dead.stream_id IS 'The stream it was in.';
COMMENT ON COLUMN outbox.inbox_dead.namespace IS
    'Keeps applications apart that share the database.';
COMMENT ON COLUMN outbox.inbox_dead.handler_name IS 'Who was to handle the message.';
COMMENT ON COLUMN outbox.inbox_dead.source IS 'Where the message came from.';
COMMENT ON COLUMN outbox.inbox_dead.dedupe_key IS 'No two messages of a topic have the same.';
COMMENT ON COLUMN outbox.inbox_dead.headers IS 'Whatever travels with the payload.';
COMMENT ON COLUMN outbox.inbox_dead.last_error IS
    'What the worker said of the last failed attempt.';
COMMENT ON COLUMN outbox.inbox_dead.errors IS 'What was said of all failed attempts.';
COMMENT ON COLUMN outbox.inbox_dead.payload IS 'The message itself.';

CREATE TABLE outbox.message_deduplication (
    message_id    uuid        NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT message_deduplication_pkey PRIMARY KEY (message_id)
);

CREATE INDEX message_deduplication_seen_idx ON outbox.message_deduplication (first_seen_at);

COMMENT ON TABLE outbox.message_deduplication IS
    'Every message that was received within outbox.deduplication_retention.';
COMMENT ON COLUMN outbox.message_deduplication.message_id IS 'The message.';
COMMENT ON COLUMN outbox.message_deduplication.first_seen_at IS 'When it first came in.';

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
       NULL::text AS processed_by,
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
       h.processed_by::text,
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
COMMENT ON COLUMN outbox.inbox.message_id IS 'The message, as its sender calls it.';
COMMENT ON COLUMN outbox.inbox.source IS 'Where it came from.';
COMMENT ON COLUMN outbox.inbox.handler_name IS 'Who is to handle it.';
COMMENT ON COLUMN outbox.inbox.payload IS 'The message itself.';
COMMENT ON COLUMN outbox.inbox.headers IS 'Whatever travels with the payload.';
COMMENT ON COLUMN outbox.inbox.stream_id IS 'Messages of a stream are handled one after the other.';
COMMENT ON COLUMN outbox.inbox.partition_number IS
    'The share of the streams to which its stream belongs.';
COMMENT ON COLUMN outbox.inbox.status IS '0 ready, 1 in progress, 2 done, 3 failed.';
COMMENT ON COLUMN outbox.inbox.state IS 'ready, in progress, done or failed: the status.';
COMMENT ON COLUMN outbox.inbox.owner_token IS 'Who has the lease.';
COMMENT ON COLUMN outbox.inbox.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.inbox.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.inbox.retry_count IS 'How often it was handed back as not done.';
COMMENT ON COLUMN outbox.inbox.next_attempt_at IS 'Not to be handed out before.';
COMMENT ON COLUMN outbox.inbox.last_error IS 'What was said of the last failed attempt.';
COMMENT ON COLUMN outbox.inbox.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.inbox.progress IS 'Bits of what was achieved.';
COMMENT ON COLUMN outbox.inbox.created_at IS 'When it came in.';
COMMENT ON COLUMN outbox.inbox.updated_at IS 'When it last changed.';
COMMENT ON COLUMN outbox.inbox.is_processed IS 'Whether it is done.';
COMMENT ON COLUMN outbox.inbox.processed_at IS 'When it was done.';
COMMENT ON COLUMN outbox.inbox.processed_by IS 'The owner who has done it.';

CREATE VIEW outbox.dead_inbox AS
SELECT d.id,
       d.handler_name,
       d.attempts,
       outbox.reason_name(d.failure_reason) AS reason,
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
COMMENT ON COLUMN outbox.dead_inbox.handler_name IS 'Who is to handle it.';
COMMENT ON COLUMN outbox.dead_inbox.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.dead_inbox.reason IS 'Why it failed, in words.';
COMMENT ON COLUMN outbox.dead_inbox.age IS 'How long ago it failed.';
COMMENT ON COLUMN outbox.dead_inbox.failed_at IS 'When it failed.';
COMMENT ON COLUMN outbox.dead_inbox.failed_by IS 'The owner that failed it; null if none did.';
COMMENT ON COLUMN outbox.dead_inbox.created_at IS 'When it came in.';
COMMENT ON COLUMN outbox.dead_inbox.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.dead_inbox.last_error IS 'What was said of the last failed attempt.';
COMMENT ON COLUMN outbox.dead_inbox.source IS 'Where it came from.';
COMMENT ON COLUMN outbox.dead_inbox.stream_id IS
    'Messages of a stream are handled one after the other.';
COMMENT ON COLUMN outbox.dead_inbox.message_id IS 'The message, as its sender calls it.';
COMMENT ON COLUMN outbox.dead_inbox.headers IS 'Whatever travels with the payload.';
COMMENT ON COLUMN outbox.dead_inbox.payload IS 'The message itself.';

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

-- The functions below do on the inbox what those of work.sql do on the queue,
-- with the same arguments. Policies are those of kind 'inbox' in outbox.topics.

-- claim_inbox(owner_token, ...)
--     Takes up to batch_size due messages and leases them to the owner; see
--     claim. handler_names selects by handler. In what is returned, topic is
--     the handler_name, and correlation_id the source.
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
) IS
    'Takes due messages from the inbox and leases them to the owner, by default a new one.';

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
--     Hands messages back, to be tried again later; see nack.
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
) IS
    'Hands messages of the inbox back to be tried again.';

-- fail_inbox(owner_token, ids, ...)
--     Fails messages for good; see fail. They can be seen in outbox.inbox, but
--     requeue_inbox brings them back.
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
    'Fails messages of the inbox for good.';

-- renew_inbox(owner_token, ids, ...)
--     Lets leases last lease_seconds from now; see renew.
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
    'Gives leases of the inbox more time.';

-- release_inbox(owner_token)
--     Gives back all leases of the owner; see release.
CREATE FUNCTION outbox.release_inbox(owner_token uuid)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_release_all_inbox';

COMMENT ON FUNCTION outbox.release_inbox(uuid) IS
    'Gives all leases of the owner in the inbox back without counting the attempt.';

-- release_inbox(owner_token, ids, strict)
--     Gives leases back; the attempts do not count. See release.
CREATE FUNCTION outbox.release_inbox(
    owner_token uuid,
    ids         bigint[],
    strict      boolean DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_release_inbox';

COMMENT ON FUNCTION outbox.release_inbox(uuid, bigint[], boolean) IS
    'Gives leases of the inbox back without counting the attempt.';

-- requeue_inbox(ids)
--     Puts dead received messages back; see requeue. Returns how many.
CREATE FUNCTION outbox.requeue_inbox(ids bigint[])
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_requeue_inbox';

COMMENT ON FUNCTION outbox.requeue_inbox(bigint[]) IS
    'Puts dead received messages back.';

-- reap_inbox(batch_limit)
--     Returns messages whose leases have ended to ready, or fails them if their
--     attempts are used up; see reap. Returns how many.
CREATE FUNCTION outbox.reap_inbox(batch_limit integer DEFAULT NULL)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_reap_inbox';

COMMENT ON FUNCTION outbox.reap_inbox(integer) IS
    'Returns messages of the inbox whose leases have ended to ready.';
