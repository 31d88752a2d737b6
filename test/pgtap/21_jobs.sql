-- 21_jobs.sql: what is to be done again and again
--
-- QUEUE-nn and section 7 of the contract, as far as it is about jobs and can be seen without
-- pg_cron; with it, test/t/013_timers.pl. Jobs that are switched off do not
-- need it.

BEGIN;
\ir include/tools.sql
SELECT plan(28);

SET LOCAL outbox.backoff_jitter = off;
SELECT NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_cron')
       AND current_setting('cron.database_name', true) IS NULL AS no_cron \gset

CREATE FUNCTION tap.job(name text, topic text, payload text)
RETURNS void
LANGUAGE sql
AS $$ INSERT INTO outbox.jobs (job_name, topic, cron_schedule, payload, enabled) VALUES (name, topic, '* * * * *', payload, false) $$;

-- A job's runs, as topic:payload:status.
CREATE FUNCTION tap.runs(name text)
RETURNS text[]
LANGUAGE sql
AS $$
    SELECT ARRAY(SELECT concat_ws(':', r.topic, r.payload, outbox.status_name(r.status))
                   FROM outbox.job_runs r
                  WHERE r.job_name = runs.name
                  ORDER BY r.id)
$$;

-- Runs of a job, leased to alice.
CREATE FUNCTION tap.lease_runs(name text, n integer)
RETURNS bigint[]
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM outbox.trigger_job(name) FROM generate_series(1, n);
    RETURN ARRAY(SELECT c.id FROM outbox.claim_job_runs(tap.alice(), 60, 1000) c WHERE c.correlation_id = name ORDER BY c.id);
END
$$;

-- Without pg_cron

\if :no_cron
CREATE FUNCTION tap.hint(statement text)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    hint text;
BEGIN
    EXECUTE statement;
    RETURN 'no error';
EXCEPTION
    WHEN feature_not_supported THEN
        GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
        RETURN hint;
END
$$;
SELECT matches(
    tap.hint($$SELECT outbox.create_or_update_job('job-1', 't', '* * * * *')$$), 'CREATE EXTENSION pg_cron',
    'section 7: without pg_cron create_or_update_job is 0A000, with a hint what to do');

SELECT is_empty(
    $$SELECT FROM outbox.jobs WHERE job_name = 'job-1'$$,
    'section 7: then nothing is stored');

SELECT tap.job('job-2', 't', 'p') \gset
SELECT is(
    tap.sqlstates($$SELECT outbox.set_job_enabled('job-2', true)$$, $$SELECT outbox.set_job_enabled('job-2', false)$$,
                  $$SELECT outbox.trigger_job('job-2')$$, $$SELECT outbox.dispatch_due()$$, $$SELECT outbox.delete_job('job-2')$$),
    '{0A000,00000,00000,00000,00000}',
    'section 7: without pg_cron all but a schedule works');
\else
SELECT skip('pg_cron is there', 3);
\endif

-- Jobs

SELECT is(
    tap.sqlstates(
        $$SELECT outbox.create_or_update_job(NULL, 't', '* * * * *')$$,
        $$SELECT outbox.create_or_update_job('', 't', '* * * * *')$$,
        $$SELECT outbox.create_or_update_job(repeat('x', 256), 't', '* * * * *')$$,
        $$SELECT outbox.create_or_update_job('job-3', NULL, '* * * * *')$$,
        $$SELECT outbox.create_or_update_job('job-3', '', '* * * * *')$$,
        $$SELECT outbox.create_or_update_job('job-3', repeat('x', 256), '* * * * *')$$,
        $$SELECT outbox.create_or_update_job('job-3', 't', NULL)$$),
    '{22004,22023,22023,22004,22023,22023,22004}',
    'section 7: a name and a topic have 1 to 255 characters, and a schedule is not null');

SELECT tap.job('job-4', 'old', 'old') \gset
SELECT outbox.create_or_update_job('job-4', 'new', '1 2 3 4 5', 'new') \gset
SELECT is(
    (SELECT ROW(topic, cron_schedule, payload, enabled)::text FROM outbox.jobs WHERE job_name = 'job-4'), '(new,"1 2 3 4 5",new,f)',
    'QUEUE-04: create_or_update_job changes a job that is there, which stays switched off if it was');

SELECT outbox.create_or_update_job('job-4', 'new', '1 2 3 4 5') \gset
SELECT is(
    (SELECT payload FROM outbox.jobs WHERE job_name = 'job-4'), '',
    'section 7: a payload that is not given is empty');

SELECT is(
    tap.sqlstates($$SELECT outbox.trigger_job('nobody')$$, $$SELECT outbox.trigger_job('nobody', true)$$,
                  $$SELECT outbox.set_job_enabled('nobody', true)$$, $$SELECT outbox.set_job_enabled('nobody', false)$$,
                  $$SELECT outbox.trigger_job(NULL)$$, $$SELECT outbox.set_job_enabled(NULL, true)$$,
                  $$SELECT outbox.set_job_enabled('job-4', NULL)$$, $$SELECT outbox.delete_job(NULL)$$),
    '{42704,42704,42704,42704,22004,22004,22004,22004}',
    'section 7: an unknown job is 42704, a null 22004');

SELECT tap.job('Job-4', 'other', 'other') \gset
SELECT outbox.delete_job('Job-4') AS first, outbox.delete_job('Job-4') AS again, outbox.delete_job('nobody') AS unknown \gset
SELECT is(
    ARRAY[:'first', :'again', :'unknown']::boolean[] || EXISTS (SELECT FROM outbox.jobs WHERE job_name = 'job-4'), '{t,f,f,t}',
    'QUEUE-04: delete_job removes the job of that very name, and returns whether there was one');

-- Triggering

SELECT tap.job('job 5"\', 'T', 'P') \gset
SELECT outbox.trigger_job('job 5"\') AS run \gset
SELECT is(
    (SELECT ROW(id, topic, payload, status, attempts, next_attempt_at <= clock_timestamp())::text FROM outbox.job_runs WHERE job_name = 'job 5"\'),
    ROW(:run, 'T', 'P', 0, 0, true)::text,
    'QUEUE-04, QUEUE-07: trigger_job makes a run that is due now, with the job''s topic and payload, and returns its id');

SELECT outbox.trigger_job('job 5"\') <> :run AS another, outbox.trigger_job('job 5"\', true) IS NULL AS disabled \gset
SELECT is(
    ROW(:'another'::boolean, :'disabled'::boolean, cardinality(tap.runs('job 5"\')))::text, '(t,t,2)',
    'section 7: by hand a job is triggered as often as wanted, though it is switched off; by pg_cron it is not then');

UPDATE outbox.jobs SET enabled = true, last_fired_at = clock_timestamp() - interval '1 minute' WHERE job_name = 'job 5"\';
SELECT outbox.trigger_job('job 5"\', true) IS NOT NULL AS fired \gset
SELECT is(
    ARRAY[:'fired'::boolean, clock_timestamp() - last_fired_at < '5 s', last_fired_at > now()], '{t,t,t}', 'section 7: pg_cron triggers a job, which remembers when')
  FROM outbox.jobs WHERE job_name = 'job 5"\';

-- Triggers a job twice within a minute, whatever the time is.
CREATE FUNCTION tap.fire_twice(name text)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    began timestamptz;
    first boolean;
    again boolean;
BEGIN
    LOOP
        began := date_trunc('minute', clock_timestamp());
        UPDATE outbox.jobs SET last_fired_at = NULL WHERE job_name = name;
        first := outbox.trigger_job(name, true) IS NOT NULL;
        again := outbox.trigger_job(name, true) IS NOT NULL;
        EXIT WHEN began = date_trunc('minute', clock_timestamp());
    END LOOP;
    RETURN concat_ws(' ', first, again);
END
$$;
SELECT is(
    tap.fire_twice('job 5"\'), 't f',
    'section 7: pg_cron''s triggers are one run a minute');

SAVEPOINT before;
SELECT outbox.trigger_job('job-4') \gset
ROLLBACK TO before;
SELECT is(
    tap.runs('job-4'), '{}',
    'section 7: a run is part of the transaction that triggers it');

-- Runs, and what becomes of their job

SELECT tap.job('job-6', 'old', 'old'), tap.job('job-6 too', 'old', 'old') AS other \gset
SELECT tap.lease_runs('job-6', 2) AS ids \gset
SELECT outbox.ack_job_runs(tap.alice(), (:'ids'::bigint[])[1:1]) \gset
SELECT outbox.trigger_job('job-6'), outbox.trigger_job('job-6 too') AS other \gset
SELECT outbox.create_or_update_job('job-6', 'new', '* * * * *', 'new') \gset
SELECT is(
    tap.runs('job-6') || tap.runs('job-6 too'),
    '{old:old:done,"old:old:in progress",new:new:ready,old:old:ready}',
    'section 7: updating a job changes its waiting runs, and no others');

SELECT outbox.delete_job('job-6') \gset
SELECT is(
    tap.runs('job-6') || tap.runs('job-6 too'),
    '{old:old:done,"old:old:in progress",old:old:ready}',
    'section 7: deleting a job removes its waiting runs, and no others');

SELECT is(
    outbox.ack_job_runs(tap.alice(), (:'ids'::bigint[])[2:2]), 1,
    'section 7: a run that is in progress can be finished though its job is gone');

-- Dispatching

SELECT outbox.dispatch_due() \gset
SELECT tap.job('job-7', 'job-7', 'P') \gset
SELECT outbox.trigger_job('job-7') AS run \gset
SELECT is(
    outbox.dispatch_due(), 1,
    'section 7: dispatch_due counts runs');

SELECT is(
    (SELECT ROW(topic, payload, headers, namespace, status)::text FROM outbox.messages WHERE topic = 'job-7'),
    ROW('job-7', 'P', jsonb_build_object('job', 'job-7', 'run', :run), 'default', 0)::text,
    'section 7: a run becomes a message with its topic and payload, which names its job and run');

SELECT is(
    tap.runs('job-7') || outbox.dispatch_due()::text, '{job-7:P:done,0}',
    'section 7: then it is done, and becomes no other');

SELECT outbox.schedule_timer('job-8', 'timer', now()) AS t, outbox.trigger_job('job-7') AS run \gset
SELECT is(
    ARRAY[outbox.dispatch_due(1), outbox.dispatch_due(1), outbox.dispatch_due(1)], '{1,1,0}',
    'section 7: batch_limit is for timers and runs together');

-- By workers' own hands

SELECT count(outbox.trigger_job('job-7')) FROM generate_series(1, 21) \gset
CREATE TEMP TABLE leased ON COMMIT DROP AS SELECT * FROM outbox.claim_job_runs(tap.alice(), 60);
SELECT is(
    (SELECT ROW(count(*), bool_and(c.topic = 'job-7' AND c.payload = 'P' AND c.correlation_id = 'job-7' AND c.attempts = 1
                                   AND c.owner_token = tap.alice() AND r.status = 1))::text
       FROM leased c JOIN outbox.job_runs r USING (id))
    || (SELECT count(*) FROM outbox.claim_job_runs(tap.bob(), 60)),
    '(20,t)1',
    'QUEUE-01: claim_job_runs leases runs to its owner alone, 20 at a time by default');

SELECT min(id) AS one FROM outbox.job_runs WHERE owner_token = tap.alice() \gset
SELECT outbox.ack_job_runs(tap.bob(), ARRAY[:one], output => 'theirs') AS theirs,
       outbox.ack_job_runs(tap.alice(), ARRAY[:one], '{2}', output => 'stale') AS stale,
       outbox.ack_job_runs(tap.alice(), ARRAY[:one], '{1}', true, '42 rows') AS mine \gset
SELECT is(
    ROW(:theirs, :stale, :mine, status, output, processed_by)::text, ROW(0, 0, 1, 2, '42 rows', tap.alice())::text,
    'QUEUE-12, QUEUE-13: only the owner of the lease, with the right attempt, acks a run, and its output is kept')
  FROM outbox.job_runs WHERE id = :one;

SELECT array_agg(id ORDER BY id) AS ids FROM outbox.job_runs WHERE owner_token = tap.alice() \gset
SELECT outbox.abandon_job_runs(tap.alice(), (:'ids'::bigint[])[1:1], 'E'), outbox.fail_job_runs(tap.alice(), (:'ids'::bigint[])[2:2], 'no', 4) AS f \gset
UPDATE outbox.run_queue SET locked_until = now() - interval '1 s' WHERE id = ANY ((:'ids'::bigint[])[3:4]);
SELECT outbox.renew_job_runs(tap.alice(), (:'ids'::bigint[])[3:3], 600) \gset
SELECT outbox.reap_expired_job_runs() AS reaped \gset
SELECT is(
    :'reaped' || ARRAY(
        SELECT concat_ws(' ', outbox.status_name(status), attempts, retry_count, last_error, failure_reason,
                         next_attempt_at - clock_timestamp() BETWEEN '0.5 s' AND '1 s')
          FROM outbox.job_runs WHERE id = ANY ((:'ids'::bigint[])[1:4]) ORDER BY id)::text,
    '1{"ready 1 1 E 99 t","failed 1 0 no 4","in progress 1 0 0 f","ready 1 0 6 f"}',
    'QUEUE-12: runs are abandoned, failed, renewed and reaped by the rules of messages');

SELECT outbox.trigger_job('job-7') AS r \gset
UPDATE outbox.run_queue SET next_attempt_at = clock_timestamp() + interval '1 h' WHERE id = :r;
SELECT count(*) AS early FROM outbox.claim_job_runs(tap.bob(), 60) WHERE id = :r \gset
UPDATE outbox.run_queue SET next_attempt_at = clock_timestamp() WHERE id = :r;
SELECT is(
    ARRAY[:early, (SELECT count(*) FROM outbox.claim_job_runs(tap.bob(), 60) WHERE id = :r)], '{0,1}',
    'QUEUE-07: a run is not claimable before its time');

SELECT is(
    ARRAY(SELECT concat_ws(' ', c.relname, string_agg(a.attname || ' ' || format_type(a.atttypid, -1), ', ' ORDER BY a.attname))
            FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
           WHERE c.oid IN ('outbox.messages'::regclass, 'outbox.timers'::regclass, 'outbox.job_runs'::regclass)
             AND a.attname IN ('status', 'locked_until', 'owner_token') GROUP BY c.relname ORDER BY c.relname COLLATE "C"),
    ARRAY(SELECT r || ' locked_until timestamp with time zone, owner_token uuid, status smallint' FROM unnest('{job_runs,messages,timers}'::text[]) r),
    'QUEUE-09: messages, timers and runs have a status, the end of a lease and its owner');

SELECT is(
    ARRAY(SELECT c.relname || ' ' || regexp_replace(pg_get_indexdef(i.indexrelid), '^.* USING btree ', '')
            FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
           WHERE i.indexrelid IN ('outbox.queue_ready_idx'::regclass, 'outbox.timer_queue_ready_idx'::regclass, 'outbox.run_queue_ready_idx'::regclass)
           ORDER BY c.relname COLLATE "C"),
    ARRAY(SELECT r || ' (lane, next_attempt_at, id) WITH (deduplicate_items=off)' FROM unnest('{queue,run_queue,timer_queue}'::text[]) r),
    'QUEUE-10: each of their tables has an index of what is due');

-- History, and for whom

SET LOCAL outbox.retention = 0;
SELECT outbox.cleanup() \gset
SET LOCAL outbox.retention = '7d';
SELECT is(
    ARRAY(SELECT DISTINCT outbox.status_name(status) FROM outbox.job_runs ORDER BY 1), '{failed,"in progress",ready}',
    'section 7: runs that are done are kept for outbox.retention, and failed ones for outbox.dead_retention');

CREATE ROLE tap_admin;
CREATE ROLE tap_worker;
CREATE ROLE tap_monitor;
GRANT USAGE ON SCHEMA tap TO tap_admin, tap_worker, tap_monitor;
SELECT outbox.grant_admin('tap_admin'), outbox.grant_worker('tap_worker') AS w, outbox.grant_monitor('tap_monitor') AS m \gset
SELECT is(
    tap.sqlstates_as('tap_admin', $$SELECT outbox.create_or_update_job('job-4', 't', '* * * * *')$$, $$SELECT outbox.trigger_job('job-4')$$,
                     'SELECT outbox.run_maintenance()', $$SELECT outbox.delete_job('job-4')$$, 'DELETE FROM outbox.jobs')
    || tap.sqlstates_as('tap_worker', $$SELECT outbox.claim_job_runs(gen_random_uuid())$$, $$SELECT outbox.trigger_job('job-7')$$,
                        $$SELECT outbox.delete_job('job-7')$$, 'TABLE outbox.jobs')
    || tap.sqlstates_as('tap_monitor', 'SELECT job_name, cron_schedule FROM outbox.jobs', 'SELECT id, status FROM outbox.job_runs',
                        'SELECT payload FROM outbox.jobs', 'SELECT output FROM outbox.job_runs', $$SELECT outbox.trigger_job('job-7')$$),
    '{00000,00000,00000,00000,42501,00000,42501,42501,42501,00000,00000,42501,42501,42501}',
    'section 7: admins have jobs, workers take their runs, monitors see all but payloads and outputs');

SELECT * FROM finish();
ROLLBACK;
