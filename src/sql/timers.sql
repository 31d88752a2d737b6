-- timers.sql: messages for later, and jobs. Timers and the runs of jobs are in
-- live tables like the queue (stores.sql). Serves sql_timer.c and sql_work.c.

ALTER TABLE outbox.run_queue RENAME correlation_id TO job_name;
ALTER TABLE outbox.run_done RENAME correlation_id TO job_name;
ALTER TABLE outbox.run_done RENAME last_error TO output;
ALTER TABLE outbox.run_dead RENAME correlation_id TO job_name;

CREATE INDEX run_queue_job_idx ON outbox.run_queue (job_name);
CREATE INDEX run_done_job_idx ON outbox.run_done (job_name, processed_at);
CREATE INDEX run_dead_job_idx ON outbox.run_dead (job_name, processed_at);

COMMENT ON TABLE outbox.timer_queue IS 'Timers that wait or are in progress. Look at outbox.timers instead.';
COMMENT ON TABLE outbox.timer_done IS 'Timers that are done. Look at outbox.timers instead.';
COMMENT ON TABLE outbox.timer_dead IS 'Timers that have failed. Look at outbox.timers instead.';
COMMENT ON TABLE outbox.run_queue IS 'Runs that wait or are in progress. Look at outbox.job_runs instead.';
COMMENT ON TABLE outbox.run_done IS 'Runs that are done. Look at outbox.job_runs instead.';
COMMENT ON TABLE outbox.run_dead IS 'Runs that have failed. Look at outbox.job_runs instead.';
COMMENT ON COLUMN outbox.run_queue.job_name IS 'The job.';
COMMENT ON COLUMN outbox.run_done.job_name IS 'The job.';
COMMENT ON COLUMN outbox.run_dead.job_name IS 'The job.';
COMMENT ON COLUMN outbox.run_done.output IS 'What the run had to say.';

CREATE VIEW outbox.timers AS
SELECT q.message_id AS timer_id, q.id, q.topic, q.payload, q.correlation_id, q.due_time,
       q.status, q.owner_token, q.locked_until, q.attempts, q.retry_count,
       q.next_attempt_at, q.last_error, q.failure_reason, q.created_at,
       NULL::timestamptz AS processed_at, NULL::text AS processed_by
  FROM outbox.timer_queue q
UNION ALL
SELECT h.message_id, h.id, h.topic, h.payload, h.correlation_id, h.due_time,
       2::smallint, NULL, NULL, h.attempts, h.retry_count,
       NULL, h.last_error, h.failure_reason, h.created_at,
       h.processed_at, h.processed_by::text
  FROM outbox.timer_done h
UNION ALL
SELECT h.message_id, h.id, h.topic, h.payload, h.correlation_id, h.due_time,
       3::smallint, NULL, NULL, h.attempts, h.retry_count,
       NULL, h.last_error, h.failure_reason, h.created_at,
       h.processed_at, h.processed_by::text
  FROM outbox.timer_dead h;

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

COMMENT ON TABLE outbox.jobs IS 'What is to be done again and again. The schedules are pg_cron''s.';
COMMENT ON COLUMN outbox.jobs.job_name IS 'The job.';
COMMENT ON COLUMN outbox.jobs.topic IS 'The topic of the messages that its runs become.';
COMMENT ON COLUMN outbox.jobs.cron_schedule IS 'When, in pg_cron''s words.';
COMMENT ON COLUMN outbox.jobs.payload IS 'The payload of the messages that its runs become.';
COMMENT ON COLUMN outbox.jobs.enabled IS 'Whether pg_cron is to trigger it.';
COMMENT ON COLUMN outbox.jobs.last_fired_at IS 'When pg_cron last triggered it.';
COMMENT ON COLUMN outbox.jobs.created_at IS 'When it was created.';
COMMENT ON COLUMN outbox.jobs.updated_at IS 'When it was last changed.';

CREATE VIEW outbox.job_runs AS
SELECT q.id, q.message_id AS run_id, q.job_name, q.topic, q.payload,
       q.status, q.owner_token, q.locked_until, q.attempts, q.retry_count,
       q.next_attempt_at, q.last_error, q.failure_reason, NULL::text AS output, q.created_at,
       NULL::timestamptz AS processed_at, NULL::text AS processed_by
  FROM outbox.run_queue q
UNION ALL
SELECT h.id, h.message_id, h.job_name, h.topic, h.payload,
       2::smallint, NULL, NULL, h.attempts, h.retry_count,
       NULL, NULL, h.failure_reason, h.output, h.created_at,
       h.processed_at, h.processed_by::text
  FROM outbox.run_done h
UNION ALL
SELECT h.id, h.message_id, h.job_name, h.topic, h.payload,
       3::smallint, NULL, NULL, h.attempts, h.retry_count,
       NULL, h.last_error, h.failure_reason, NULL, h.created_at,
       h.processed_at, h.processed_by::text
  FROM outbox.run_dead h;

CREATE VIEW outbox.upcoming AS
SELECT 'timer'::text AS kind, t.message_id, t.topic, t.correlation_id AS name, t.next_attempt_at AS due
  FROM outbox.timer_queue t
 WHERE t.status = 0
UNION ALL
SELECT 'run', r.message_id, r.topic, r.job_name, r.next_attempt_at
  FROM outbox.run_queue r
 WHERE r.status = 0;

COMMENT ON VIEW outbox.timers IS 'Timers: waiting, in progress, done and failed.';
COMMENT ON VIEW outbox.job_runs IS 'Runs of jobs: waiting, in progress, done and failed.';
COMMENT ON VIEW outbox.upcoming IS 'What is next: timers and runs that wait.';
COMMENT ON COLUMN outbox.upcoming.kind IS 'timer or run.';
COMMENT ON COLUMN outbox.upcoming.message_id IS 'The timer, or the run.';
COMMENT ON COLUMN outbox.upcoming.topic IS 'The topic of the message that it becomes.';
COMMENT ON COLUMN outbox.upcoming.name IS 'The job; for a timer its correlation_id.';
COMMENT ON COLUMN outbox.upcoming.due IS 'When.';

DO $$
DECLARE
    col record;
BEGIN
    FOR col IN
        SELECT * FROM (VALUES
            ('timer_id', 'The timer.'), ('id', 'The work item.'), ('run_id', 'The run.'),
            ('job_name', 'The job.'), ('topic', 'The topic of the message that it becomes.'),
            ('payload', 'The payload of the message that it becomes.'),
            ('correlation_id', 'Goes to the message.'), ('due_time', 'When it is due.'),
            ('status', '0 ready, 1 in progress, 2 done, 3 failed.'), ('owner_token', 'Who has the lease.'),
            ('locked_until', 'End of the lease.'), ('attempts', 'How often it was handed out.'),
            ('retry_count', 'How often it was handed back.'), ('next_attempt_at', 'Not to be handed out before.'),
            ('last_error', 'What was said of the last failed attempt.'), ('failure_reason', 'Why it failed; 0 if it did not.'),
            ('output', 'What the run had to say.'), ('created_at', 'When it was made.'),
            ('processed_at', 'When it was finished.'), ('processed_by', 'The owner who finished it.')) c(name, means),
            unnest(ARRAY['timers', 'job_runs']) v(view)
         WHERE EXISTS (SELECT FROM pg_catalog.pg_attribute a
                        WHERE a.attrelid = pg_catalog.format('outbox.%I', v.view)::regclass AND a.attname = c.name)
    LOOP
        EXECUTE pg_catalog.format('COMMENT ON COLUMN outbox.%I.%I IS %L', col.view, col.name, col.means);
    END LOOP;
END
$$;

-- schedule_timer(topic, payload, due_time, correlation_id)
--     At that time there will be a message. Returns the timer's id.
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
    'Has a message follow at some time; returns the timer''s id.';

CREATE FUNCTION outbox.cancel_timer(timer_id uuid)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_cancel_timer';

COMMENT ON FUNCTION outbox.cancel_timer(uuid) IS
    'Removes a timer that is still waiting; false if it is not.';

-- For workers that handle timers and runs themselves. In what they claim,
-- message_id is the timer or run, and correlation_id of a run its job.
CREATE FUNCTION outbox.claim_timers(
    owner_token   uuid,
    lease_seconds integer DEFAULT NULL,
    batch_size    integer DEFAULT 20
)
RETURNS SETOF outbox.message
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 20
AS 'MODULE_PATHNAME', 'outbox_claim_timers';

COMMENT ON FUNCTION outbox.claim_timers(uuid, integer, integer) IS
    'Takes due timers and leases them to the owner.';

CREATE FUNCTION outbox.ack_timers(
    owner_token uuid,
    ids         bigint[],
    attempts    integer[] DEFAULT NULL,
    strict      boolean DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_ack_timers';

COMMENT ON FUNCTION outbox.ack_timers(uuid, bigint[], integer[], boolean) IS
    'Finishes timers.';

CREATE FUNCTION outbox.abandon_timers(
    owner_token  uuid,
    ids          bigint[],
    error        text DEFAULT NULL,
    delay        interval DEFAULT NULL,
    attempts     integer[] DEFAULT NULL,
    strict       boolean DEFAULT false,
    max_attempts integer DEFAULT NULL
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_nack_timers';

COMMENT ON FUNCTION outbox.abandon_timers(uuid, bigint[], text, interval, integer[], boolean, integer) IS
    'Hands timers back to be tried again.';

CREATE FUNCTION outbox.fail_timers(
    owner_token uuid,
    ids         bigint[],
    error       text DEFAULT NULL,
    reason      smallint DEFAULT NULL,
    attempts    integer[] DEFAULT NULL,
    strict      boolean DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_fail_timers';

COMMENT ON FUNCTION outbox.fail_timers(uuid, bigint[], text, smallint, integer[], boolean) IS
    'Fails timers for good.';

CREATE FUNCTION outbox.renew_timers(
    owner_token   uuid,
    ids           bigint[],
    lease_seconds integer DEFAULT NULL,
    attempts      integer[] DEFAULT NULL
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_renew_timers';

COMMENT ON FUNCTION outbox.renew_timers(uuid, bigint[], integer, integer[]) IS
    'Gives leases of timers more time.';

CREATE FUNCTION outbox.reap_expired_timers(
    batch_limit integer DEFAULT NULL
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_reap_timers';

COMMENT ON FUNCTION outbox.reap_expired_timers(integer) IS
    'Returns timers whose leases have ended to ready.';

CREATE FUNCTION outbox.claim_job_runs(
    owner_token   uuid,
    lease_seconds integer DEFAULT NULL,
    batch_size    integer DEFAULT 20
)
RETURNS SETOF outbox.message
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 20
AS 'MODULE_PATHNAME', 'outbox_claim_job_runs';

COMMENT ON FUNCTION outbox.claim_job_runs(uuid, integer, integer) IS
    'Takes due runs of jobs and leases them to the owner.';

CREATE FUNCTION outbox.ack_job_runs(
    owner_token uuid,
    ids         bigint[],
    attempts    integer[] DEFAULT NULL,
    strict      boolean DEFAULT false,
    output      text DEFAULT NULL
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_ack_job_runs';

COMMENT ON FUNCTION outbox.ack_job_runs(uuid, bigint[], integer[], boolean, text) IS
    'Finishes runs of jobs, and keeps their output.';

CREATE FUNCTION outbox.abandon_job_runs(
    owner_token  uuid,
    ids          bigint[],
    error        text DEFAULT NULL,
    delay        interval DEFAULT NULL,
    attempts     integer[] DEFAULT NULL,
    strict       boolean DEFAULT false,
    max_attempts integer DEFAULT NULL
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_nack_job_runs';

COMMENT ON FUNCTION outbox.abandon_job_runs(uuid, bigint[], text, interval, integer[], boolean, integer) IS
    'Hands runs of jobs back to be tried again.';

CREATE FUNCTION outbox.fail_job_runs(
    owner_token uuid,
    ids         bigint[],
    error       text DEFAULT NULL,
    reason      smallint DEFAULT NULL,
    attempts    integer[] DEFAULT NULL,
    strict      boolean DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_fail_job_runs';

COMMENT ON FUNCTION outbox.fail_job_runs(uuid, bigint[], text, smallint, integer[], boolean) IS
    'Fails runs of jobs for good.';

CREATE FUNCTION outbox.renew_job_runs(
    owner_token   uuid,
    ids           bigint[],
    lease_seconds integer DEFAULT NULL,
    attempts      integer[] DEFAULT NULL
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_renew_job_runs';

COMMENT ON FUNCTION outbox.renew_job_runs(uuid, bigint[], integer, integer[]) IS
    'Gives leases of runs of jobs more time.';

CREATE FUNCTION outbox.reap_expired_job_runs(
    batch_limit integer DEFAULT NULL
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_reap_job_runs';

COMMENT ON FUNCTION outbox.reap_expired_job_runs(integer) IS
    'Returns runs of jobs whose leases have ended to ready.';

CREATE FUNCTION outbox._topic_lane(namespace text, topic text)
RETURNS bigint
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_topic_lane_sql';

COMMENT ON FUNCTION outbox._topic_lane(text, text) IS 'The lane of a topic.';

CREATE FUNCTION outbox._add_run(job_name text, topic text, payload text)
RETURNS bigint
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_add_run';

COMMENT ON FUNCTION outbox._add_run(text, text, text) IS 'A run of a job is due now.';

CREATE FUNCTION outbox._unknown_job(job_name text)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'job "%" does not exist', job_name
        USING ERRCODE = 'undefined_object',
              HINT = format('If pg_cron still triggers it, end that with SELECT cron.unschedule(jobid) FROM cron.job WHERE jobname = %L in the database of pg_cron.',
                            outbox._cron_name(job_name));
END
$$;

COMMENT ON FUNCTION outbox._unknown_job(text) IS 'Reports a job that is not there.';

-- create_or_update_job(job_name, topic, cron_schedule, payload)
--     Has pg_cron trigger a job. Runs that wait already take over what is new.
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
       SET topic = job.topic, payload = job.payload,
           lane = outbox._topic_lane(q.namespace, job.topic)
     WHERE q.job_name = job.job_name AND q.status = 0;
    IF job.enabled THEN
        PERFORM outbox._cron_schedule_job(job);
    END IF;
END
$$;

COMMENT ON FUNCTION outbox.create_or_update_job(text, text, text, text) IS
    'Has pg_cron trigger a job, whose runs become messages.';

-- delete_job(job_name)
--     Ends a job, and removes its runs that wait. False if there was none.
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

COMMENT ON FUNCTION outbox.delete_job(text) IS
    'Ends a job, and removes its runs that wait.';

-- trigger_job(job_name, scheduled)
--     A run of the job is due now; returns its id. pg_cron says scheduled:
--     then there is at most one run a minute, and none if the job is disabled
--     (null is returned).
CREATE FUNCTION outbox.trigger_job(job_name text, scheduled boolean DEFAULT false)
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
        -- schedules by the second, of later pg_crons, are not told apart
        IF FOUND AND (NOT job.enabled
                      OR (job.cron_schedule !~* 'second'
                          AND date_trunc('minute', job.last_fired_at) = date_trunc('minute', tick))) THEN
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
    'A run of a job is due now; returns its id.';

CREATE FUNCTION outbox.set_job_enabled(job_name text, enabled boolean)
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
    'Switches a job''s schedule on or off.';

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

COMMENT ON FUNCTION outbox._cron_schedule_job(outbox.jobs) IS
    'Has pg_cron trigger a job.';

-- dispatch_due(batch_limit)
--     Turns timers and runs that are due into messages of the outbox, each in
--     this transaction. Returns how many.
CREATE FUNCTION outbox.dispatch_due(batch_limit integer DEFAULT NULL)
RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    owner_token uuid := gen_random_uuid();
    limits      integer := least(coalesce(dispatch_due.batch_limit, 1000), 10000);
    dispatched  integer;
    ids         bigint[];
BEGIN
    PERFORM outbox._check_limit('batch_limit', dispatch_due.batch_limit);
    SELECT array_agg(t.id) INTO ids
      FROM (SELECT c.id, outbox.enqueue(c.topic, c.payload, c.correlation_id)
              FROM outbox.claim_timers(owner_token, 60, limits) c
            OFFSET 0) t;
    dispatched := outbox.ack_timers(owner_token, coalesce(ids, '{}'));
    IF dispatched < limits THEN
        SELECT array_agg(r.id) INTO ids
          FROM (SELECT c.id,
                       outbox.enqueue(c.topic, c.payload,
                                      headers => jsonb_build_object('job', c.correlation_id, 'run', c.id))
                  FROM outbox.claim_job_runs(owner_token, 60, limits - dispatched) c
                OFFSET 0) r;
        dispatched := dispatched + outbox.ack_job_runs(owner_token, coalesce(ids, '{}'));
    END IF;
    RETURN dispatched;
END
$$;

COMMENT ON FUNCTION outbox.dispatch_due(integer) IS
    'Turns timers and runs that are due into messages.';
