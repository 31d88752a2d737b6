-- timers.sql: timers, and what they have in common with runs of jobs. Serves
-- sql_timer.c and sql_work.c.
--
-- The three tables are a live table and its history, like outbox.queue,
-- outbox.archive and outbox.dead: C knows their columns by number, so number,
-- order and types must be the same.

CREATE TABLE outbox.timer_queue (
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

    CONSTRAINT timer_queue_pkey PRIMARY KEY (id),
    CONSTRAINT timer_queue_message_id_key UNIQUE (message_id),
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

CREATE INDEX timer_queue_ready_idx ON outbox.timer_queue (lane, next_attempt_at, id)
    WITH (deduplicate_items = off);

CREATE INDEX timer_queue_stream_idx ON outbox.timer_queue (stream_id, stream_seq)
    WITH (deduplicate_items = off)
    WHERE stream_id IS NOT NULL;

CREATE INDEX timer_queue_expires_idx ON outbox.timer_queue (expires_at)
    WHERE expires_at IS NOT NULL;

CREATE INDEX timer_queue_caused_idx ON outbox.timer_queue (caused_by)
    WHERE caused_by IS NOT NULL;

COMMENT ON TABLE outbox.timer_queue IS
    'Timers that are ready or in progress. Use the view outbox.timers instead.';
COMMENT ON COLUMN outbox.timer_queue.id IS 'The work item; constant for the life of the message.';
COMMENT ON COLUMN outbox.timer_queue.lane IS
    'The lane in which claims find it: a hash of namespace, topic and tenant.';
COMMENT ON COLUMN outbox.timer_queue.next_attempt_at IS 'Not delivered before this time.';
COMMENT ON COLUMN outbox.timer_queue.updated_at IS 'When the row was last changed.';
COMMENT ON COLUMN outbox.timer_queue.leased_at IS 'When it was claimed.';
COMMENT ON COLUMN outbox.timer_queue.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.timer_queue.owner_token IS 'The owner of the lease.';
COMMENT ON COLUMN outbox.timer_queue.attempts IS 'How often the message was handed out.';
COMMENT ON COLUMN outbox.timer_queue.retry_count IS 'How often it was returned for a retry.';
COMMENT ON COLUMN outbox.timer_queue.waived IS
    'Attempts that do not count towards the maximum: the lease was released or revoked.';
COMMENT ON COLUMN outbox.timer_queue.progress IS 'Progress of the message, as a bit mask.';
COMMENT ON COLUMN outbox.timer_queue.status IS '0 ready, 1 in progress.';
COMMENT ON COLUMN outbox.timer_queue.failure_reason IS
    'Why the last attempt failed; 0 if none did.';
COMMENT ON COLUMN outbox.timer_queue.created_at IS 'When the message was enqueued.';
COMMENT ON COLUMN outbox.timer_queue.message_id IS
    'The logical message, constant across retries and replays.';
COMMENT ON COLUMN outbox.timer_queue.stream_seq IS 'Place in the stream.';
COMMENT ON COLUMN outbox.timer_queue.due_time IS
    'Not delivered before this time, as passed to enqueue.';
COMMENT ON COLUMN outbox.timer_queue.expires_at IS 'Not delivered from this time on.';
COMMENT ON COLUMN outbox.timer_queue.tenant_id IS 'The tenant that the message belongs to.';
COMMENT ON COLUMN outbox.timer_queue.stream_id IS
    'The stream; its messages are delivered in order.';
COMMENT ON COLUMN outbox.timer_queue.published_id IS 'The publication, if it is a delivery.';
COMMENT ON COLUMN outbox.timer_queue.published_at IS
    'When that was published, if the row in outbox.publications is needed.';
COMMENT ON COLUMN outbox.timer_queue.subscriber IS
    'The subscriber, if it is a delivery; see outbox.subscribers.';
COMMENT ON COLUMN outbox.timer_queue.priority IS 'From -2 to 2; null is 0.';
COMMENT ON COLUMN outbox.timer_queue.caused_by IS
    'What has caused it: a message, a timer, a run, a join, or a trace; see outbox.trace.';
COMMENT ON COLUMN outbox.timer_queue.namespace IS
    'The namespace; separates applications that share the database.';
COMMENT ON COLUMN outbox.timer_queue.topic IS 'The topic of the message.';
COMMENT ON COLUMN outbox.timer_queue.correlation_id IS
    'Identifies related messages; chosen by the producer.';
COMMENT ON COLUMN outbox.timer_queue.dedupe_key IS
    'The dedupe key; at most one message of a topic has it.';
COMMENT ON COLUMN outbox.timer_queue.headers IS 'A JSON object that is delivered with the payload.';
COMMENT ON COLUMN outbox.timer_queue.last_error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN outbox.timer_queue.errors IS
    'The errors of failed attempts; see outbox.attempts_log.';
COMMENT ON COLUMN outbox.timer_queue.payload IS 'The payload, which is never parsed.';

CREATE TRIGGER outbox_timer_queue_written
    BEFORE INSERT OR UPDATE ON outbox.timer_queue
    FOR EACH ROW EXECUTE FUNCTION outbox._queue_written();

CREATE TRIGGER outbox_timer_queue_changed
    AFTER INSERT OR UPDATE OR DELETE ON outbox.timer_queue
    FOR EACH ROW EXECUTE FUNCTION outbox._queue_changed();

CREATE TRIGGER outbox_timer_queue_truncated
    BEFORE TRUNCATE ON outbox.timer_queue
    FOR EACH STATEMENT EXECUTE FUNCTION outbox._queue_truncated();

-- for logical replication as well
ALTER TABLE outbox.timer_queue ENABLE ALWAYS TRIGGER outbox_timer_queue_changed;
ALTER TABLE outbox.timer_queue ENABLE ALWAYS TRIGGER outbox_timer_queue_truncated;

COMMENT ON TRIGGER outbox_timer_queue_written ON outbox.timer_queue IS
    'Completes rows that plain SQL writes.';
COMMENT ON TRIGGER outbox_timer_queue_changed ON outbox.timer_queue IS
    'Reports changes of rows by plain SQL.';
COMMENT ON TRIGGER outbox_timer_queue_truncated ON outbox.timer_queue IS
    'Reports that all rows are removed.';

CREATE TABLE outbox.timer_done (
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

    CONSTRAINT timer_done_pkey PRIMARY KEY (id, processed_at)
);

CREATE INDEX timer_done_message_id_idx ON outbox.timer_done (message_id);
CREATE INDEX timer_done_keep_idx ON outbox.timer_done (keep, processed_at);
CREATE INDEX timer_done_caused_idx ON outbox.timer_done (caused_by)
    WHERE caused_by IS NOT NULL;

COMMENT ON TABLE outbox.timer_done IS 'Timers that are done. Use the view outbox.timers instead.';
COMMENT ON COLUMN outbox.timer_done.id IS 'The work item, as it was in the queue.';
COMMENT ON COLUMN outbox.timer_done.created_at IS 'When the message was enqueued.';
COMMENT ON COLUMN outbox.timer_done.processed_at IS 'When it was finished.';
COMMENT ON COLUMN outbox.timer_done.keep IS
    'How long it is kept: seconds; -1 forever; -2 as set by outbox.retention.';
COMMENT ON COLUMN outbox.timer_done.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.timer_done.retry_count IS 'How often it was returned for a retry.';
COMMENT ON COLUMN outbox.timer_done.progress IS 'Progress of the message, as a bit mask.';
COMMENT ON COLUMN outbox.timer_done.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.timer_done.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.timer_done.processed_by IS 'The owner that finished it.';
COMMENT ON COLUMN outbox.timer_done.due_time IS 'As passed to enqueue.';
COMMENT ON COLUMN outbox.timer_done.expires_at IS 'As passed to enqueue.';
COMMENT ON COLUMN outbox.timer_done.tenant_id IS 'The tenant that the message belongs to.';
COMMENT ON COLUMN outbox.timer_done.stream_id IS 'The stream it was in.';
COMMENT ON COLUMN outbox.timer_done.published_id IS 'The publication, if it was a delivery.';
COMMENT ON COLUMN outbox.timer_done.published_at IS
    'When that was published, if the row in outbox.publications is needed.';
COMMENT ON COLUMN outbox.timer_done.priority IS 'From -2 to 2; null is 0.';
COMMENT ON COLUMN outbox.timer_done.caused_by IS
    'What has caused it: a message, a timer, a run, a join, or a trace; see outbox.trace.';
COMMENT ON COLUMN outbox.timer_done.subscription IS 'The subscription, if it was a delivery.';
COMMENT ON COLUMN outbox.timer_done.namespace IS
    'The namespace; separates applications that share the database.';
COMMENT ON COLUMN outbox.timer_done.topic IS 'The topic of the message.';
COMMENT ON COLUMN outbox.timer_done.correlation_id IS
    'Identifies related messages; chosen by the producer.';
COMMENT ON COLUMN outbox.timer_done.dedupe_key IS
    'The dedupe key; at most one message of a topic has it.';
COMMENT ON COLUMN outbox.timer_done.headers IS 'A JSON object that is delivered with the payload.';
COMMENT ON COLUMN outbox.timer_done.last_error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN outbox.timer_done.errors IS
    'The errors of failed attempts; see outbox.attempts_log.';
COMMENT ON COLUMN outbox.timer_done.payload IS 'The payload.';

CREATE TABLE outbox.timer_dead (
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

    CONSTRAINT timer_dead_pkey PRIMARY KEY (id)
);

CREATE INDEX timer_dead_message_id_idx ON outbox.timer_dead (message_id);
CREATE INDEX timer_dead_keep_idx ON outbox.timer_dead (keep, processed_at);
CREATE INDEX timer_dead_caused_idx ON outbox.timer_dead (caused_by)
    WHERE caused_by IS NOT NULL;

COMMENT ON TABLE outbox.timer_dead IS
    'Timers that have failed. Use the view outbox.timers instead.';
COMMENT ON COLUMN outbox.timer_dead.id IS 'The work item, as it was in the queue.';
COMMENT ON COLUMN outbox.timer_dead.created_at IS 'When the message was enqueued.';
COMMENT ON COLUMN outbox.timer_dead.processed_at IS 'When it was finished.';
COMMENT ON COLUMN outbox.timer_dead.keep IS
    'How long it is kept: seconds; -1 forever; -2 as set by outbox.dead_retention.';
COMMENT ON COLUMN outbox.timer_dead.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.timer_dead.retry_count IS 'How often it was returned for a retry.';
COMMENT ON COLUMN outbox.timer_dead.progress IS 'Progress of the message, as a bit mask.';
COMMENT ON COLUMN outbox.timer_dead.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.timer_dead.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.timer_dead.processed_by IS 'The owner that finished it.';
COMMENT ON COLUMN outbox.timer_dead.due_time IS 'As passed to enqueue.';
COMMENT ON COLUMN outbox.timer_dead.expires_at IS 'As passed to enqueue.';
COMMENT ON COLUMN outbox.timer_dead.tenant_id IS 'The tenant that the message belongs to.';
COMMENT ON COLUMN outbox.timer_dead.stream_id IS 'The stream it was in.';
COMMENT ON COLUMN outbox.timer_dead.published_id IS 'The publication, if it was a delivery.';
COMMENT ON COLUMN outbox.timer_dead.published_at IS
    'When that was published, if the row in outbox.publications is needed.';
COMMENT ON COLUMN outbox.timer_dead.priority IS 'From -2 to 2; null is 0.';
COMMENT ON COLUMN outbox.timer_dead.caused_by IS
    'What has caused it: a message, a timer, a run, a join, or a trace; see outbox.trace.';
COMMENT ON COLUMN outbox.timer_dead.subscription IS 'The subscription, if it was a delivery.';
COMMENT ON COLUMN outbox.timer_dead.namespace IS
    'The namespace; separates applications that share the database.';
COMMENT ON COLUMN outbox.timer_dead.topic IS 'The topic of the message.';
COMMENT ON COLUMN outbox.timer_dead.correlation_id IS
    'Identifies related messages; chosen by the producer.';
COMMENT ON COLUMN outbox.timer_dead.dedupe_key IS
    'The dedupe key; at most one message of a topic has it.';
COMMENT ON COLUMN outbox.timer_dead.headers IS 'A JSON object that is delivered with the payload.';
COMMENT ON COLUMN outbox.timer_dead.last_error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN outbox.timer_dead.errors IS
    'The errors of failed attempts; see outbox.attempts_log.';
COMMENT ON COLUMN outbox.timer_dead.payload IS 'The payload.';

CREATE VIEW outbox.timers AS
SELECT q.id,
       q.topic,
       q.status,
       outbox.status_name(q.status) AS state,
       q.due_time,
       q.attempts - q.waived AS attempts,
       q.retry_count,
       q.created_at,
       q.next_attempt_at,
       q.owner_token,
       q.locked_until,
       NULL::timestamptz AS processed_at,
       NULL::uuid AS processed_by,
       q.failure_reason,
       q.last_error,
       q.correlation_id,
       q.message_id AS timer_id,
       q.payload
  FROM outbox.timer_queue q
UNION ALL
SELECT h.id,
       h.topic,
       2::smallint,
       outbox.status_name(2),
       h.due_time,
       h.attempts,
       h.retry_count,
       h.created_at,
       NULL,
       NULL,
       NULL,
       h.processed_at,
       h.processed_by,
       h.failure_reason,
       h.last_error,
       h.correlation_id,
       h.message_id,
       h.payload
  FROM outbox.timer_done h
UNION ALL
SELECT h.id,
       h.topic,
       3::smallint,
       outbox.status_name(3),
       h.due_time,
       h.attempts,
       h.retry_count,
       h.created_at,
       NULL,
       NULL,
       NULL,
       h.processed_at,
       h.processed_by,
       h.failure_reason,
       h.last_error,
       h.correlation_id,
       h.message_id,
       h.payload
  FROM outbox.timer_dead h;

COMMENT ON VIEW outbox.timers IS 'Timers: waiting, in progress, done and failed.';
COMMENT ON COLUMN outbox.timers.timer_id IS 'The id of the timer.';
COMMENT ON COLUMN outbox.timers.id IS 'The work item.';
COMMENT ON COLUMN outbox.timers.topic IS 'The topic of the message that it becomes.';
COMMENT ON COLUMN outbox.timers.payload IS 'The payload of the message that it becomes.';
COMMENT ON COLUMN outbox.timers.correlation_id IS
    'The correlation_id of the message that it becomes.';
COMMENT ON COLUMN outbox.timers.due_time IS 'When it is due.';
COMMENT ON COLUMN outbox.timers.status IS '0 ready, 1 in progress, 2 done, 3 failed.';
COMMENT ON COLUMN outbox.timers.state IS 'ready, in progress, done or failed: the status.';
COMMENT ON COLUMN outbox.timers.owner_token IS 'The owner of the lease.';
COMMENT ON COLUMN outbox.timers.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.timers.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.timers.retry_count IS 'How often it was returned for a retry.';
COMMENT ON COLUMN outbox.timers.next_attempt_at IS 'Not handed out before this time.';
COMMENT ON COLUMN outbox.timers.last_error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN outbox.timers.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.timers.created_at IS 'When it was created.';
COMMENT ON COLUMN outbox.timers.processed_at IS 'When it was finished.';
COMMENT ON COLUMN outbox.timers.processed_by IS 'The owner that finished it.';

CREATE VIEW outbox.dead_timers AS
SELECT d.id,
       d.topic,
       d.due_time,
       d.attempts,
       outbox.reason_name(d.failure_reason) AS reason_name,
       date_trunc('second', now() - d.processed_at) AS age,
       d.processed_at AS failed_at,
       d.processed_by AS failed_by,
       d.created_at,
       d.failure_reason,
       d.last_error,
       d.correlation_id,
       d.message_id AS timer_id,
       d.payload
  FROM outbox.timer_dead d
 ORDER BY d.processed_at DESC;

COMMENT ON VIEW outbox.dead_timers IS
    'Timers that have failed. outbox.requeue_timers brings them back.';
COMMENT ON COLUMN outbox.dead_timers.id IS 'The work item.';
COMMENT ON COLUMN outbox.dead_timers.topic IS 'The topic of the message that it becomes.';
COMMENT ON COLUMN outbox.dead_timers.due_time IS 'When it is due.';
COMMENT ON COLUMN outbox.dead_timers.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.dead_timers.reason_name IS 'The name of failure_reason.';
COMMENT ON COLUMN outbox.dead_timers.age IS 'How long ago it failed.';
COMMENT ON COLUMN outbox.dead_timers.failed_at IS 'When it failed.';
COMMENT ON COLUMN outbox.dead_timers.failed_by IS 'The owner that failed it; null if none did.';
COMMENT ON COLUMN outbox.dead_timers.created_at IS 'When it was created.';
COMMENT ON COLUMN outbox.dead_timers.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.dead_timers.last_error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN outbox.dead_timers.correlation_id IS
    'The correlation_id of the message that it becomes.';
COMMENT ON COLUMN outbox.dead_timers.timer_id IS 'The id of the timer.';
COMMENT ON COLUMN outbox.dead_timers.payload IS 'The payload of the message that it becomes.';

-- schedule_timer(topic, payload, due_time, correlation_id)
--     Schedules a timer, which becomes a message at its due time. Returns the timer's
--     id.
CREATE FUNCTION outbox.schedule_timer(
    topic          text,
    payload        text,
    due_time       timestamptz,
    correlation_id text DEFAULT NULL
)
RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_schedule_timer';

COMMENT ON FUNCTION outbox.schedule_timer(text, text, timestamptz, text) IS
    'Schedules a message for a later time; returns the timer''s id.';

-- cancel_timer(timer_id)
--     Removes a timer that is ready, due or not. False if it is in progress,
--     has ended, or does not exist.
CREATE FUNCTION outbox.cancel_timer(timer_id uuid)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_cancel_timer';

COMMENT ON FUNCTION outbox.cancel_timer(uuid) IS
    'Removes a waiting timer; false if it is not waiting.';

-- For workers that handle timers themselves, with outbox.dispatch_timers off. These
-- functions do for timers what those of work.sql do for the queue. Policies are those
-- of the settings, and there is no release.

-- claim_timers(owner_token, lease_seconds, batch_size)
--     Leases up to batch_size due timers to the owner; see claim. In the result,
--     message_id is the timer_id.
CREATE FUNCTION outbox.claim_timers(
    owner_token   uuid,
    lease_seconds integer DEFAULT NULL,
    batch_size    integer DEFAULT 20
)
RETURNS SETOF outbox.message
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 20
AS 'MODULE_PATHNAME', 'outbox_claim_timers';

COMMENT ON FUNCTION outbox.claim_timers(uuid, integer, integer) IS
    'Claims due timers for an owner.';

-- ack_timers(owner_token, ids, ...)
--     Finishes timers; see ack. No message is enqueued for them.
CREATE FUNCTION outbox.ack_timers(
    owner_token uuid,
    ids         bigint[],
    attempts    integer[] DEFAULT NULL,
    strict      boolean   DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_ack_timers';

COMMENT ON FUNCTION outbox.ack_timers(uuid, bigint[], integer[], boolean) IS
    'Finishes timers.';

-- abandon_timers(owner_token, ids, ...)
--     Returns timers for a retry; see nack.
CREATE FUNCTION outbox.abandon_timers(
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
AS 'MODULE_PATHNAME', 'outbox_nack_timers';

COMMENT ON FUNCTION outbox.abandon_timers(
    uuid, bigint[], text, interval, integer[], boolean, integer
) IS 'Returns timers for a retry.';

-- fail_timers(owner_token, ids, ...)
--     Fails timers permanently; see fail. They can be brought back with
--     requeue_timers.
CREATE FUNCTION outbox.fail_timers(
    owner_token uuid,
    ids         bigint[],
    error       text      DEFAULT NULL,
    reason      integer   DEFAULT NULL,
    attempts    integer[] DEFAULT NULL,
    strict      boolean   DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_fail_timers';

COMMENT ON FUNCTION outbox.fail_timers(uuid, bigint[], text, integer, integer[], boolean) IS
    'Fails timers permanently.';

-- renew_timers(owner_token, ids, ...)
--     Makes leases last lease_seconds from now; see renew.
CREATE FUNCTION outbox.renew_timers(
    owner_token   uuid,
    ids           bigint[],
    lease_seconds integer   DEFAULT NULL,
    attempts      integer[] DEFAULT NULL,
    strict        boolean   DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_renew_timers';

COMMENT ON FUNCTION outbox.renew_timers(uuid, bigint[], integer, integer[], boolean) IS
    'Renews leases of timers.';

-- reap_expired_timers(batch_limit)
--     Makes timers whose leases have ended ready again, or fails them if they are out
--     of attempts; see reap. Returns how many.
CREATE FUNCTION outbox.reap_expired_timers(batch_limit integer DEFAULT NULL)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_reap_timers';

COMMENT ON FUNCTION outbox.reap_expired_timers(integer) IS
    'Makes timers whose leases have ended ready again.';

-- requeue_timers(ids)
--     Puts dead timers back; see requeue. Returns how many.
CREATE FUNCTION outbox.requeue_timers(ids bigint[])
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_requeue_timers';

COMMENT ON FUNCTION outbox.requeue_timers(bigint[]) IS
    'Puts dead timers back.';
