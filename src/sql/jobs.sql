-- jobs.sql: jobs, which pg_cron triggers repeatedly. Each time creates a run, which
-- becomes a message. Serves sql_timer.c, sql_work.c and sql_admin.c.
--
-- The tables of runs are a live table and its history, like outbox.queue,
-- outbox.archive and outbox.dead: C knows their columns by number, so number,
-- order and types must be the same. Two have other names: job_name is the
-- correlation_id, and the output of a run that is done its last_error.

CREATE TABLE outbox.jobs (
    job_name      text        NOT NULL,
    topic         text        NOT NULL,
    cron_schedule text        NOT NULL,
    payload       text        NOT NULL DEFAULT '',
    enabled       boolean     NOT NULL DEFAULT true,
    last_fired_at timestamptz,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT jobs_pkey PRIMARY KEY (job_name),
    CONSTRAINT outbox_jobs_names CHECK (
        char_length(job_name) BETWEEN 1 AND 255 AND char_length(topic) BETWEEN 1 AND 255
    )
);

COMMENT ON TABLE outbox.jobs IS 'Jobs that are triggered repeatedly, by schedules in pg_cron.';
COMMENT ON COLUMN outbox.jobs.job_name IS 'The name of the job.';
COMMENT ON COLUMN outbox.jobs.topic IS 'The topic of the messages that its runs become.';
COMMENT ON COLUMN outbox.jobs.cron_schedule IS 'The schedule, in the syntax of pg_cron.';
COMMENT ON COLUMN outbox.jobs.payload IS 'The payload of the messages that its runs become.';
COMMENT ON COLUMN outbox.jobs.enabled IS 'Whether pg_cron triggers it.';
COMMENT ON COLUMN outbox.jobs.last_fired_at IS 'When pg_cron last triggered it.';
COMMENT ON COLUMN outbox.jobs.created_at IS 'When it was created.';
COMMENT ON COLUMN outbox.jobs.updated_at IS 'When it was last changed.';

CREATE TABLE outbox.run_queue (
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
    job_name        text,
    dedupe_key      text,
    headers         jsonb,
    last_error      text,
    errors          text[],
    payload         text        NOT NULL,

    CONSTRAINT run_queue_pkey PRIMARY KEY (id),
    CONSTRAINT run_queue_message_id_key UNIQUE (message_id),
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

CREATE INDEX run_queue_ready_idx ON outbox.run_queue (lane, next_attempt_at, id)
    WITH (deduplicate_items = off);

CREATE INDEX run_queue_stream_idx ON outbox.run_queue (stream_id, stream_seq)
    WITH (deduplicate_items = off)
    WHERE stream_id IS NOT NULL;

CREATE INDEX run_queue_expires_idx ON outbox.run_queue (expires_at)
    WHERE expires_at IS NOT NULL;

CREATE INDEX run_queue_caused_idx ON outbox.run_queue (caused_by)
    WHERE caused_by IS NOT NULL;

CREATE INDEX run_queue_job_idx ON outbox.run_queue (job_name);

COMMENT ON TABLE outbox.run_queue IS
    'Runs that are ready or in progress. Use the view outbox.job_runs instead.';
COMMENT ON COLUMN outbox.run_queue.id IS 'The work item; constant for the life of the message.';
COMMENT ON COLUMN outbox.run_queue.lane IS
    'The lane in which claims find it: a hash of namespace, topic and tenant.';
COMMENT ON COLUMN outbox.run_queue.next_attempt_at IS 'Not delivered before this time.';
COMMENT ON COLUMN outbox.run_queue.updated_at IS 'When the row was last changed.';
COMMENT ON COLUMN outbox.run_queue.leased_at IS 'When it was claimed.';
COMMENT ON COLUMN outbox.run_queue.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.run_queue.owner_token IS 'The owner of the lease.';
COMMENT ON COLUMN outbox.run_queue.attempts IS 'How often the message was handed out.';
COMMENT ON COLUMN outbox.run_queue.retry_count IS 'How often it was returned for a retry.';
COMMENT ON COLUMN outbox.run_queue.waived IS
    'Attempts that do not count towards the maximum: the lease was released or revoked.';
COMMENT ON COLUMN outbox.run_queue.progress IS 'Progress of the message, as a bit mask.';
COMMENT ON COLUMN outbox.run_queue.status IS '0 ready, 1 in progress.';
COMMENT ON COLUMN outbox.run_queue.failure_reason IS 'Why the last attempt failed; 0 if none did.';
COMMENT ON COLUMN outbox.run_queue.created_at IS 'When the message was enqueued.';
COMMENT ON COLUMN outbox.run_queue.message_id IS
    'The logical message, constant across retries and replays.';
COMMENT ON COLUMN outbox.run_queue.stream_seq IS 'Place in the stream.';
COMMENT ON COLUMN outbox.run_queue.due_time IS
    'Not delivered before this time, as passed to enqueue.';
COMMENT ON COLUMN outbox.run_queue.expires_at IS 'Not delivered from this time on.';
COMMENT ON COLUMN outbox.run_queue.tenant_id IS 'The tenant that the message belongs to.';
COMMENT ON COLUMN outbox.run_queue.stream_id IS 'The stream; its messages are delivered in order.';
COMMENT ON COLUMN outbox.run_queue.published_id IS 'The publication, if it is a delivery.';
COMMENT ON COLUMN outbox.run_queue.published_at IS
    'When that was published, if the row in outbox.publications is needed.';
COMMENT ON COLUMN outbox.run_queue.subscriber IS
    'The subscriber, if it is a delivery; see outbox.subscribers.';
COMMENT ON COLUMN outbox.run_queue.priority IS 'From -2 to 2; null is 0.';
COMMENT ON COLUMN outbox.run_queue.caused_by IS
    'What has caused it: a message, a timer, a run, a join, or a trace; see outbox.trace.';
COMMENT ON COLUMN outbox.run_queue.namespace IS
    'The namespace; separates applications that share the database.';
COMMENT ON COLUMN outbox.run_queue.topic IS 'The topic of the message.';
COMMENT ON COLUMN outbox.run_queue.job_name IS 'The name of the job.';
COMMENT ON COLUMN outbox.run_queue.dedupe_key IS
    'The dedupe key; at most one message of a topic has it.';
COMMENT ON COLUMN outbox.run_queue.headers IS 'A JSON object that is delivered with the payload.';
COMMENT ON COLUMN outbox.run_queue.last_error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN outbox.run_queue.errors IS
    'The errors of failed attempts; see outbox.attempts_log.';
COMMENT ON COLUMN outbox.run_queue.payload IS 'The payload, which is never parsed.';

CREATE TRIGGER outbox_run_queue_written
    BEFORE INSERT OR UPDATE ON outbox.run_queue
    FOR EACH ROW EXECUTE FUNCTION outbox._queue_written();

CREATE TRIGGER outbox_run_queue_changed
    AFTER INSERT OR UPDATE OR DELETE ON outbox.run_queue
    FOR EACH ROW EXECUTE FUNCTION outbox._queue_changed();

CREATE TRIGGER outbox_run_queue_truncated
    BEFORE TRUNCATE ON outbox.run_queue
    FOR EACH STATEMENT EXECUTE FUNCTION outbox._queue_truncated();

-- for logical replication as well
ALTER TABLE outbox.run_queue ENABLE ALWAYS TRIGGER outbox_run_queue_changed;
ALTER TABLE outbox.run_queue ENABLE ALWAYS TRIGGER outbox_run_queue_truncated;

COMMENT ON TRIGGER outbox_run_queue_written ON outbox.run_queue IS
    'Completes rows that plain SQL writes.';
COMMENT ON TRIGGER outbox_run_queue_changed ON outbox.run_queue IS
    'Reports changes of rows by plain SQL.';
COMMENT ON TRIGGER outbox_run_queue_truncated ON outbox.run_queue IS
    'Reports that all rows are removed.';

CREATE TABLE outbox.run_done (
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
    job_name       text,
    dedupe_key     text,
    headers        jsonb,
    output         text,
    errors         text[],
    payload        text        NOT NULL,

    CONSTRAINT run_done_pkey PRIMARY KEY (id, processed_at)
);

CREATE INDEX run_done_message_id_idx ON outbox.run_done (message_id);
CREATE INDEX run_done_keep_idx ON outbox.run_done (keep, processed_at);
CREATE INDEX run_done_caused_idx ON outbox.run_done (caused_by)
    WHERE caused_by IS NOT NULL;
CREATE INDEX run_done_job_idx ON outbox.run_done (job_name, processed_at);

COMMENT ON TABLE outbox.run_done IS 'Runs that are done. Use the view outbox.job_runs instead.';
COMMENT ON COLUMN outbox.run_done.id IS 'The work item, as it was in the queue.';
COMMENT ON COLUMN outbox.run_done.created_at IS 'When the message was enqueued.';
COMMENT ON COLUMN outbox.run_done.processed_at IS 'When it was finished.';
COMMENT ON COLUMN outbox.run_done.keep IS
    'How long it is kept: seconds; -1 forever; -2 as set by outbox.retention.';
COMMENT ON COLUMN outbox.run_done.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.run_done.retry_count IS 'How often it was returned for a retry.';
COMMENT ON COLUMN outbox.run_done.progress IS 'Progress of the message, as a bit mask.';
COMMENT ON COLUMN outbox.run_done.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.run_done.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.run_done.processed_by IS 'The owner that finished it.';
COMMENT ON COLUMN outbox.run_done.due_time IS 'As passed to enqueue.';
COMMENT ON COLUMN outbox.run_done.expires_at IS 'As passed to enqueue.';
COMMENT ON COLUMN outbox.run_done.tenant_id IS 'The tenant that the message belongs to.';
COMMENT ON COLUMN outbox.run_done.stream_id IS 'The stream it was in.';
COMMENT ON COLUMN outbox.run_done.published_id IS 'The publication, if it was a delivery.';
COMMENT ON COLUMN outbox.run_done.published_at IS
    'When that was published, if the row in outbox.publications is needed.';
COMMENT ON COLUMN outbox.run_done.priority IS 'From -2 to 2; null is 0.';
COMMENT ON COLUMN outbox.run_done.caused_by IS
    'What has caused it: a message, a timer, a run, a join, or a trace; see outbox.trace.';
COMMENT ON COLUMN outbox.run_done.subscription IS 'The subscription, if it was a delivery.';
COMMENT ON COLUMN outbox.run_done.namespace IS
    'The namespace; separates applications that share the database.';
COMMENT ON COLUMN outbox.run_done.topic IS 'The topic of the message.';
COMMENT ON COLUMN outbox.run_done.job_name IS 'The name of the job.';
COMMENT ON COLUMN outbox.run_done.dedupe_key IS
    'The dedupe key; at most one message of a topic has it.';
COMMENT ON COLUMN outbox.run_done.headers IS 'A JSON object that is delivered with the payload.';
COMMENT ON COLUMN outbox.run_done.output IS 'The output of the run.';
COMMENT ON COLUMN outbox.run_done.errors IS
    'The errors of failed attempts; see outbox.attempts_log.';
COMMENT ON COLUMN outbox.run_done.payload IS 'The payload.';

CREATE TABLE outbox.run_dead (
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
    job_name       text,
    dedupe_key     text,
    headers        jsonb,
    last_error     text,
    errors         text[],
    payload        text        NOT NULL,

    CONSTRAINT run_dead_pkey PRIMARY KEY (id)
);

CREATE INDEX run_dead_message_id_idx ON outbox.run_dead (message_id);
CREATE INDEX run_dead_keep_idx ON outbox.run_dead (keep, processed_at);
CREATE INDEX run_dead_caused_idx ON outbox.run_dead (caused_by)
    WHERE caused_by IS NOT NULL;
CREATE INDEX run_dead_job_idx ON outbox.run_dead (job_name, processed_at);

COMMENT ON TABLE outbox.run_dead IS 'Runs that have failed. Use the view outbox.job_runs instead.';
COMMENT ON COLUMN outbox.run_dead.id IS 'The work item, as it was in the queue.';
COMMENT ON COLUMN outbox.run_dead.created_at IS 'When the message was enqueued.';
COMMENT ON COLUMN outbox.run_dead.processed_at IS 'When it was finished.';
COMMENT ON COLUMN outbox.run_dead.keep IS
    'How long it is kept: seconds; -1 forever; -2 as set by outbox.dead_retention.';
COMMENT ON COLUMN outbox.run_dead.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.run_dead.retry_count IS 'How often it was returned for a retry.';
COMMENT ON COLUMN outbox.run_dead.progress IS 'Progress of the message, as a bit mask.';
COMMENT ON COLUMN outbox.run_dead.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.run_dead.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.run_dead.processed_by IS 'The owner that finished it.';
COMMENT ON COLUMN outbox.run_dead.due_time IS 'As passed to enqueue.';
COMMENT ON COLUMN outbox.run_dead.expires_at IS 'As passed to enqueue.';
COMMENT ON COLUMN outbox.run_dead.tenant_id IS 'The tenant that the message belongs to.';
COMMENT ON COLUMN outbox.run_dead.stream_id IS 'The stream it was in.';
COMMENT ON COLUMN outbox.run_dead.published_id IS 'The publication, if it was a delivery.';
COMMENT ON COLUMN outbox.run_dead.published_at IS
    'When that was published, if the row in outbox.publications is needed.';
COMMENT ON COLUMN outbox.run_dead.priority IS 'From -2 to 2; null is 0.';
COMMENT ON COLUMN outbox.run_dead.caused_by IS
    'What has caused it: a message, a timer, a run, a join, or a trace; see outbox.trace.';
COMMENT ON COLUMN outbox.run_dead.subscription IS 'The subscription, if it was a delivery.';
COMMENT ON COLUMN outbox.run_dead.namespace IS
    'The namespace; separates applications that share the database.';
COMMENT ON COLUMN outbox.run_dead.topic IS 'The topic of the message.';
COMMENT ON COLUMN outbox.run_dead.job_name IS 'The name of the job.';
COMMENT ON COLUMN outbox.run_dead.dedupe_key IS
    'The dedupe key; at most one message of a topic has it.';
COMMENT ON COLUMN outbox.run_dead.headers IS 'A JSON object that is delivered with the payload.';
COMMENT ON COLUMN outbox.run_dead.last_error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN outbox.run_dead.errors IS
    'The errors of failed attempts; see outbox.attempts_log.';
COMMENT ON COLUMN outbox.run_dead.payload IS 'The payload.';

CREATE VIEW outbox.job_runs AS
SELECT q.id,
       q.job_name,
       q.topic,
       q.status,
       outbox.status_name(q.status) AS state,
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
       NULL::text AS output,
       q.message_id AS run_id,
       q.payload
  FROM outbox.run_queue q
UNION ALL
SELECT h.id,
       h.job_name,
       h.topic,
       2::smallint,
       outbox.status_name(2),
       h.attempts,
       h.retry_count,
       h.created_at,
       NULL,
       NULL,
       NULL,
       h.processed_at,
       h.processed_by,
       h.failure_reason,
       NULL,
       h.output,
       h.message_id,
       h.payload
  FROM outbox.run_done h
UNION ALL
SELECT h.id,
       h.job_name,
       h.topic,
       3::smallint,
       outbox.status_name(3),
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
       NULL,
       h.message_id,
       h.payload
  FROM outbox.run_dead h;

COMMENT ON VIEW outbox.job_runs IS 'Runs of jobs: waiting, in progress, done and failed.';
COMMENT ON COLUMN outbox.job_runs.id IS 'The work item.';
COMMENT ON COLUMN outbox.job_runs.run_id IS 'The run.';
COMMENT ON COLUMN outbox.job_runs.job_name IS 'The name of the job.';
COMMENT ON COLUMN outbox.job_runs.topic IS 'The topic of the message that it becomes.';
COMMENT ON COLUMN outbox.job_runs.payload IS 'The payload of the message that it becomes.';
COMMENT ON COLUMN outbox.job_runs.status IS '0 ready, 1 in progress, 2 done, 3 failed.';
COMMENT ON COLUMN outbox.job_runs.state IS 'ready, in progress, done or failed: the status.';
COMMENT ON COLUMN outbox.job_runs.owner_token IS 'The owner of the lease.';
COMMENT ON COLUMN outbox.job_runs.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.job_runs.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.job_runs.retry_count IS 'How often it was returned for a retry.';
COMMENT ON COLUMN outbox.job_runs.next_attempt_at IS 'Not handed out before this time.';
COMMENT ON COLUMN outbox.job_runs.last_error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN outbox.job_runs.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.job_runs.output IS 'The output of the run.';
COMMENT ON COLUMN outbox.job_runs.created_at IS 'When it was created.';
COMMENT ON COLUMN outbox.job_runs.processed_at IS 'When it was finished.';
COMMENT ON COLUMN outbox.job_runs.processed_by IS 'The owner that finished it.';

CREATE VIEW outbox.dead_job_runs AS
SELECT d.id,
       d.job_name,
       d.topic,
       d.attempts,
       outbox.reason_name(d.failure_reason) AS reason_name,
       date_trunc('second', now() - d.processed_at) AS age,
       d.processed_at AS failed_at,
       d.processed_by AS failed_by,
       d.created_at,
       d.failure_reason,
       d.last_error,
       d.message_id AS run_id,
       d.payload
  FROM outbox.run_dead d
 ORDER BY d.processed_at DESC;

COMMENT ON VIEW outbox.dead_job_runs IS
    'Runs of jobs that have failed. outbox.requeue_job_runs brings them back.';
COMMENT ON COLUMN outbox.dead_job_runs.id IS 'The work item.';
COMMENT ON COLUMN outbox.dead_job_runs.job_name IS 'The name of the job.';
COMMENT ON COLUMN outbox.dead_job_runs.topic IS 'The topic of the message that it becomes.';
COMMENT ON COLUMN outbox.dead_job_runs.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.dead_job_runs.reason_name IS 'The name of failure_reason.';
COMMENT ON COLUMN outbox.dead_job_runs.age IS 'How long ago it failed.';
COMMENT ON COLUMN outbox.dead_job_runs.failed_at IS 'When it failed.';
COMMENT ON COLUMN outbox.dead_job_runs.failed_by IS
    'The owner that failed it; null if none did.';
COMMENT ON COLUMN outbox.dead_job_runs.created_at IS 'When it was created.';
COMMENT ON COLUMN outbox.dead_job_runs.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.dead_job_runs.last_error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN outbox.dead_job_runs.run_id IS 'The run.';
COMMENT ON COLUMN outbox.dead_job_runs.payload IS 'The payload of the message that it becomes.';

-- _add_run(job_name, topic, payload)
--     Inserts a run that is due now; returns its id.
CREATE FUNCTION outbox._add_run(
    job_name text,
    topic    text,
    payload  text
)
RETURNS bigint
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_add_run';

COMMENT ON FUNCTION outbox._add_run(text, text, text) IS 'Inserts a run of a job that is due now.';

-- _unknown_job(job_name)
--     Raises 42704.
CREATE FUNCTION outbox._unknown_job(job_name text)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'job "%" does not exist', job_name
        USING ERRCODE = 'undefined_object',
              HINT = format('If pg_cron still triggers it, end that with '
                            'SELECT cron.unschedule(jobid) FROM cron.job WHERE jobname = %L '
                            'in the database of pg_cron.',
                            outbox._cron_name(job_name));
END
$$;

COMMENT ON FUNCTION outbox._unknown_job(text) IS 'Raises the error for an unknown job.';

-- create_or_update_job(job_name, topic, cron_schedule, payload)
--     Creates or changes a job, which pg_cron triggers. Runs that are waiting get the
--     new topic and payload.
CREATE FUNCTION outbox.create_or_update_job(
    job_name      text,
    topic         text,
    cron_schedule text,
    payload       text DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    job outbox.jobs;
BEGIN
    PERFORM outbox._check_name('job_name', create_or_update_job.job_name),
            outbox._check_name('topic', create_or_update_job.topic),
            outbox._require('cron_schedule', create_or_update_job.cron_schedule);
    INSERT INTO outbox.jobs AS j (job_name, topic, cron_schedule, payload)
    VALUES (create_or_update_job.job_name, create_or_update_job.topic,
            create_or_update_job.cron_schedule, coalesce(create_or_update_job.payload, ''))
    ON CONFLICT ON CONSTRAINT jobs_pkey DO UPDATE
       SET topic = excluded.topic,
           cron_schedule = excluded.cron_schedule,
           payload = excluded.payload,
           updated_at = excluded.updated_at
    RETURNING * INTO job;
    UPDATE outbox.run_queue q
       SET topic = job.topic, payload = job.payload
     WHERE q.job_name = job.job_name AND q.status = 0;
    IF job.enabled THEN
        PERFORM outbox._cron_schedule_job(job);
    END IF;
END
$$;

COMMENT ON FUNCTION outbox.create_or_update_job(text, text, text, text) IS
    'Creates or changes a job that pg_cron triggers; its runs become messages.';

-- delete_job(job_name)
--     Deletes a job, and its runs that are waiting. False if there is no such job.
CREATE FUNCTION outbox.delete_job(job_name text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._check_name('job_name', delete_job.job_name);
    DELETE FROM outbox.jobs j WHERE j.job_name = delete_job.job_name;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM outbox.run_queue q WHERE q.job_name = delete_job.job_name AND q.status = 0;
    PERFORM outbox._cron_unschedule(outbox._cron_name(delete_job.job_name));
    RETURN true;
END
$$;

COMMENT ON FUNCTION outbox.delete_job(text) IS 'Deletes a job, and its runs that are waiting.';

-- trigger_job(job_name, scheduled)
--     Creates a run of the job that is due now; returns its id. pg_cron sets
--     scheduled: then there is at most one run a minute, and none if the job is
--     disabled, in which case null is returned.
CREATE FUNCTION outbox.trigger_job(
    job_name  text,
    scheduled boolean DEFAULT false
)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    job  outbox.jobs;
    tick timestamptz := clock_timestamp();
BEGIN
    PERFORM outbox._check_name('job_name', trigger_job.job_name);
    IF NOT coalesce(scheduled, false) THEN
        SELECT * INTO job FROM outbox.jobs j WHERE j.job_name = trigger_job.job_name FOR SHARE;
    ELSE
        SELECT * INTO job FROM outbox.jobs j WHERE j.job_name = trigger_job.job_name FOR UPDATE;
        -- schedules by the second, in later versions of pg_cron, are not
        -- distinguished
        IF FOUND
           AND (NOT job.enabled
                OR (job.cron_schedule !~* 'second'
                    AND date_trunc('minute', job.last_fired_at) = date_trunc('minute', tick)))
        THEN
            RETURN NULL;
        END IF;
        UPDATE outbox.jobs j SET last_fired_at = tick WHERE j.job_name = trigger_job.job_name;
    END IF;
    IF job.job_name IS NULL THEN
        PERFORM outbox._unknown_job(trigger_job.job_name);
    END IF;
    RETURN outbox._add_run(job.job_name, job.topic, job.payload);
END
$$;

COMMENT ON FUNCTION outbox.trigger_job(text, boolean) IS
    'Creates a run of a job that is due now; returns its id.';

-- set_job_enabled(job_name, enabled)
--     Enables or disables the schedule of a job. Waiting runs stay, and trigger_job
--     still works. Raises 42704 if there is no such job.
CREATE FUNCTION outbox.set_job_enabled(
    job_name text,
    enabled  boolean
)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    job outbox.jobs;
BEGIN
    PERFORM outbox._check_name('job_name', set_job_enabled.job_name),
            outbox._require('enabled', set_job_enabled.enabled);
    UPDATE outbox.jobs j
       SET enabled = set_job_enabled.enabled, updated_at = clock_timestamp()
     WHERE j.job_name = set_job_enabled.job_name
    RETURNING * INTO job;
    IF NOT FOUND THEN
        PERFORM outbox._unknown_job(set_job_enabled.job_name);
    END IF;
    IF job.enabled THEN
        PERFORM outbox._cron_schedule_job(job);
    ELSE
        PERFORM outbox._cron_unschedule(outbox._cron_name(job.job_name));
    END IF;
END
$$;

COMMENT ON FUNCTION outbox.set_job_enabled(text, boolean) IS
    'Enables or disables the schedule of a job.';

-- _cron_schedule_job(job)
--     Makes pg_cron call trigger_job on the schedule of the job.
CREATE FUNCTION outbox._cron_schedule_job(job outbox.jobs)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._cron_schedule(
        outbox._cron_name(job.job_name), job.cron_schedule,
        format('SELECT outbox.trigger_job(%L, true)', job.job_name));
END
$$;

COMMENT ON FUNCTION outbox._cron_schedule_job(outbox.jobs) IS 'Schedules a job in pg_cron.';

-- _cron_report(names)
--     Asks pg_cron about the schedules of this database with these names: returns
--     those that it does not have, with no time, and those whose last run has failed,
--     with the time when that began. At most 100 of each; of the runs, the last 10000
--     are examined. If pg_cron is in another database, a background process asks it,
--     which can answer only by an error.
CREATE FUNCTION outbox._cron_report(names text[])
RETURNS TABLE (place integer, failed_at timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- positions in the list, and times, need no encoding conversion
    report text;
BEGIN
    PERFORM outbox._cron_call(format('DO %L', format(
        'DECLARE report text; BEGIN '
        'SELECT string_agg(concat(m.place, m.failed), '' '') INTO report '
        'FROM (SELECT o.place, o.failed, row_number() OVER (PARTITION BY o.failed IS NULL '
        'ORDER BY o.place) AS n FROM (SELECT n.place, max(''@'' || '
        'extract(epoch FROM date_trunc(''milliseconds'', r.start_time))) AS failed '
        'FROM unnest(%L::text[]) WITH ORDINALITY n(name, place) '
        'LEFT JOIN cron.job j ON j.jobname = n.name AND j.database = %L AND j.active '
        'LEFT JOIN (SELECT DISTINCT ON (d.jobid) d.* FROM '
        '(SELECT * FROM cron.job_run_details ORDER BY runid DESC LIMIT 10000) d '
        'WHERE d.status IN (''failed'', ''succeeded'') ORDER BY d.jobid, d.runid DESC) r '
        'ON r.jobid = j.jobid AND r.status = ''failed'' '
        'GROUP BY n.place HAVING count(j.jobid) = 0 OR count(r.jobid) > 0) o) m '
        'WHERE m.n <= 100; '
        'IF report IS NOT NULL THEN '
        'RAISE EXCEPTION ''[%%]'', report USING ERRCODE = ''OB001''; '
        'END IF; END', names, current_database())), true);
EXCEPTION
    WHEN SQLSTATE 'OB001' THEN
        report := substring(SQLERRM FROM '\[([0-9@. ]+)\]$');
        RETURN QUERY
            SELECT split_part(r.entry, '@', 1)::integer,
                   to_timestamp(nullif(split_part(r.entry, '@', 2), '')::float8)
              FROM string_to_table(report, ' ') r(entry)
             ORDER BY 1;
END
$$;

COMMENT ON FUNCTION outbox._cron_report(text[]) IS
    'Schedules that pg_cron does not have, or that fail.';

-- _cron_runs()
--     Returns whether pg_cron has a process here that starts jobs. A standby has none.
CREATE FUNCTION outbox._cron_runs()
RETURNS boolean
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
RETURN pg_is_in_recovery()
       OR EXISTS (SELECT FROM pg_stat_activity a WHERE a.backend_type ~ '^pg_cron ');

COMMENT ON FUNCTION outbox._cron_runs() IS 'Whether pg_cron has a process that starts jobs.';

-- _job_status()
--     The row of status() about jobs, and about the maintenance that pg_cron calls, if
--     there are no workers.
CREATE FUNCTION outbox._job_status()
RETURNS TABLE (component text, ok boolean, status text, detail text, hint text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    cron    name := outbox._cron_database();
    jobs    text[];
    names   text[];
    missing text[] := '{}';
    failing text[] := '{}';
BEGIN
    component := 'jobs';
    SELECT array_agg(j.job_name ORDER BY j.job_name),
           array_agg(outbox._cron_name(j.job_name) ORDER BY j.job_name)
      INTO jobs, names
      FROM outbox.jobs j
     WHERE j.enabled;
    IF cron IS NULL THEN
        missing := jobs;
    ELSE
        -- the last name is not that of a job, which may be missing
        IF NOT (SELECT l.preloaded FROM outbox._library() l) THEN
            names := names || outbox._maintenance_name();
        END IF;
        IF names IS NOT NULL THEN
            BEGIN
                SELECT coalesce(array_agg(jobs[r.place] ORDER BY r.place)
                                    FILTER (WHERE r.failed_at IS NULL
                                              AND r.place <= cardinality(jobs)), '{}'),
                       coalesce(array_agg(format('%s at %s',
                                                 coalesce(jobs[r.place], 'the maintenance'),
                                                 date_trunc('second', r.failed_at))
                                          ORDER BY r.place)
                                    FILTER (WHERE r.failed_at IS NOT NULL), '{}')
                  INTO missing, failing
                  FROM outbox._cron_report(names) r;
            EXCEPTION
                WHEN OTHERS THEN
                    ok := false;
                    status := 'not known';
                    detail := SQLERRM;
                    hint := 'pg_cron could not be asked whether it knows the jobs.';
                    RETURN NEXT;
                    RETURN;
            END;
        END IF;
    END IF;
    ok := coalesce(cardinality(missing), 0) + cardinality(failing) = 0
          AND (names IS NULL OR jobs IS NULL OR outbox._cron_runs());
    status := coalesce(nullif(concat_ws(', ',
                                        CASE WHEN missing <> '{}' THEN
                                            format('%s not scheduled', cardinality(missing))
                                        END,
                                        CASE WHEN failing <> '{}' THEN
                                            format('%s failing', cardinality(failing))
                                        END), ''),
                       format('%s scheduled', coalesce(cardinality(jobs), 0)));
    detail := nullif(concat_ws(
        '; ',
        'pg_cron does not know: ' || nullif(array_to_string(missing[1:5], ', '), '')
        || CASE WHEN cardinality(missing) > 5 THEN ', ...' ELSE '' END,
        'the last run has failed: ' || nullif(array_to_string(failing[1:5], ', '), '')
        || CASE WHEN cardinality(failing) > 5 THEN ', ...' ELSE '' END,
        CASE WHEN NOT ok AND cron IS NOT NULL AND NOT outbox._cron_runs()
             THEN 'pg_cron has no process' END), '');
    hint := CASE WHEN ok THEN NULL
                 WHEN cron IS NULL THEN
                     'pg_cron is not installed: add it to shared_preload_libraries, and run '
                     'CREATE EXTENSION pg_cron in the database that cron.database_name names.'
                 WHEN NOT outbox._cron_runs() THEN
                     'Is pg_cron in shared_preload_libraries? The server log may say more.'
                 WHEN cardinality(missing) > 0 THEN
                     'Was the database restored or renamed? Schedule them again: SELECT '
                     'outbox.set_job_enabled(job_name, true) FROM outbox.jobs WHERE enabled.'
                 ELSE format('cron.job_run_details in database %I has the errors. May the roles of '
                             'the schedules connect, and is there room for pg_cron''s processes?',
                             cron) END;
    RETURN NEXT;
END
$$;

COMMENT ON FUNCTION outbox._job_status() IS 'The row of status() about jobs.';

-- For workers that handle runs themselves, with outbox.dispatch_timers off. These
-- functions do for runs what those of work.sql do for the queue. Policies are those
-- of the settings, and there is no release.

-- claim_job_runs(owner_token, lease_seconds, batch_size)
--     Leases up to batch_size due runs to the owner; see claim. In the result,
--     message_id is the run_id, and correlation_id the job_name.
CREATE FUNCTION outbox.claim_job_runs(
    owner_token   uuid,
    lease_seconds integer DEFAULT NULL,
    batch_size    integer DEFAULT 20
)
RETURNS SETOF outbox.message
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 20
AS 'MODULE_PATHNAME', 'outbox_claim_job_runs';

COMMENT ON FUNCTION outbox.claim_job_runs(uuid, integer, integer) IS
    'Claims due runs of jobs for an owner.';

-- ack_job_runs(owner_token, ids, ..., output)
--     Finishes runs and stores their output; see ack. No message is enqueued for
--     them.
CREATE FUNCTION outbox.ack_job_runs(
    owner_token uuid,
    ids         bigint[],
    attempts    integer[] DEFAULT NULL,
    strict      boolean   DEFAULT false,
    output      text      DEFAULT NULL
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_ack_job_runs';

COMMENT ON FUNCTION outbox.ack_job_runs(uuid, bigint[], integer[], boolean, text) IS
    'Finishes runs of jobs, and stores their output.';

-- abandon_job_runs(owner_token, ids, ...)
--     Returns runs for a retry; see nack.
CREATE FUNCTION outbox.abandon_job_runs(
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
AS 'MODULE_PATHNAME', 'outbox_nack_job_runs';

COMMENT ON FUNCTION outbox.abandon_job_runs(
    uuid, bigint[], text, interval, integer[], boolean, integer
) IS 'Returns runs of jobs for a retry.';

-- fail_job_runs(owner_token, ids, ...)
--     Fails runs permanently; see fail. They can be brought back with
--     requeue_job_runs.
CREATE FUNCTION outbox.fail_job_runs(
    owner_token uuid,
    ids         bigint[],
    error       text      DEFAULT NULL,
    reason      integer   DEFAULT NULL,
    attempts    integer[] DEFAULT NULL,
    strict      boolean   DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_fail_job_runs';

COMMENT ON FUNCTION outbox.fail_job_runs(uuid, bigint[], text, integer, integer[], boolean) IS
    'Fails runs of jobs permanently.';

-- renew_job_runs(owner_token, ids, ...)
--     Makes leases last lease_seconds from now; see renew.
CREATE FUNCTION outbox.renew_job_runs(
    owner_token   uuid,
    ids           bigint[],
    lease_seconds integer   DEFAULT NULL,
    attempts      integer[] DEFAULT NULL,
    strict        boolean   DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_renew_job_runs';

COMMENT ON FUNCTION outbox.renew_job_runs(uuid, bigint[], integer, integer[], boolean) IS
    'Renews leases of runs of jobs.';

-- requeue_job_runs(ids)
--     Puts dead runs of jobs back; see requeue. Returns how many.
CREATE FUNCTION outbox.requeue_job_runs(ids bigint[])
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_requeue_job_runs';

COMMENT ON FUNCTION outbox.requeue_job_runs(bigint[]) IS
    'Puts dead runs of jobs back.';

-- reap_expired_job_runs(batch_limit)
--     Makes runs whose leases have ended ready again, or fails them if they are out
--     of attempts; see reap. Returns how many.
CREATE FUNCTION outbox.reap_expired_job_runs(batch_limit integer DEFAULT NULL)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_reap_job_runs';

COMMENT ON FUNCTION outbox.reap_expired_job_runs(integer) IS
    'Makes runs of jobs whose leases have ended ready again.';
