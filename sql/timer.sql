-- Timers, jobs and their runs; pg_cron is not there.
SET client_min_messages = warning;
SET outbox.backoff_jitter = off;
DELETE FROM outbox.queue;
\set a '''aaaaaaaa-0000-4000-8000-000000000001'''
\set b '''bbbbbbbb-0000-4000-8000-000000000002'''
\set VERBOSITY sqlstate
SELECT outbox.schedule_timer('', 'p', now());
SELECT outbox.schedule_timer('t', NULL, now());
SELECT outbox.schedule_timer('t', 'p', NULL);
SELECT outbox.schedule_timer('t', 'p', now(), repeat('x', 256));
SELECT outbox.cancel_timer(NULL);
SELECT outbox.dispatch_due(0);
SELECT outbox.claim_timers(:a, 0);
SELECT outbox.claim_timers(NULL, 5);
SELECT outbox.claim_job_runs(NULL);
SELECT outbox.renew_timers(:a, '{-1}', strict => true);
SELECT outbox.renew_job_runs(:a, '{-1}', strict => true);
SELECT outbox.fail_timers(:a, '{-1}', reason => -1);
\set VERBOSITY default

-- due ones become messages, later ones wait
SELECT outbox.schedule_timer('tm.now', 'one', now(), 'c1') AS t1,
       outbox.schedule_timer('tm.past', 'two', '-infinity') AS t2,
       outbox.schedule_timer('tm.later', 'three', now() + interval '1 hour') AS t3,
       outbox.schedule_timer('tm.never', 'four', 'infinity') AS t4 \gset
SELECT outbox.enqueue('tm.later', 'm', 'c2', due_time => now() + interval '2 hours') AS m1, outbox.enqueue('tm.later', 'm', due_time => now()) AS m2 \gset
SELECT kind, topic, name, message_id = :'m1' AS same FROM outbox.upcoming WHERE next_attempt_at > now() ORDER BY next_attempt_at;
SELECT outbox.discard(array_agg(id)) FROM outbox.messages WHERE topic = 'tm.later';
SELECT topic, payload, name IS NOT NULL AS has_name FROM (SELECT kind, u.topic, t.payload, name FROM outbox.upcoming u JOIN outbox.timers t ON t.timer_id = u.message_id) s ORDER BY topic;
SELECT outbox.dispatch_due();
SELECT topic, payload, correlation_id, status FROM outbox.messages WHERE topic LIKE 'tm.%' ORDER BY topic;
SELECT topic, status, attempts FROM outbox.timers ORDER BY topic;
SELECT outbox.dispatch_due();
-- cancelled: never handed out
SELECT outbox.cancel_timer(:'t3'), outbox.cancel_timer(:'t3'), outbox.cancel_timer(:'t1'), outbox.cancel_timer(gen_random_uuid());
SELECT outbox.cancel_timer(:'t4');
SELECT count(*) FROM outbox.timers WHERE status = 0;
-- a dispatch that is rolled back leaves the timer
SELECT outbox.schedule_timer('tm.undo', 'p', now()) IS NOT NULL AS ok;
BEGIN;
SELECT outbox.dispatch_due();
ROLLBACK;
SELECT count(*) FROM outbox.messages WHERE topic = 'tm.undo';
SELECT outbox.dispatch_due();
SELECT count(*) FROM outbox.messages WHERE topic = 'tm.undo';

-- by workers' own hands: the same leases, attempts and backoff as messages
SELECT outbox.schedule_timer('tm.w', 'w' || i, now()) IS NOT NULL AS ok FROM generate_series(1, 3) i;
CREATE TEMP TABLE got AS SELECT * FROM outbox.claim_timers(:a, 30, 2);
SELECT topic, payload, attempts FROM got ORDER BY id;
SELECT payload FROM outbox.claim_timers(:b, 30);
SELECT outbox.ack_timers(:a, NULL), outbox.abandon_timers(:a, NULL), outbox.fail_timers(:a, NULL), outbox.renew_timers(:a, NULL), outbox.ack_job_runs(:a, NULL, output => 'none');
SELECT outbox.cancel_timer(message_id) FROM got;
SELECT outbox.ack_timers(:b, array_agg(id)), outbox.ack_timers(:a, (array_agg(id ORDER BY id))[1:1]) FROM got;
SELECT outbox.abandon_timers(:a, (array_agg(id ORDER BY id))[2:2], 'later') FROM got;
SELECT outbox.renew_timers(:b, array_agg(id), 60), outbox.fail_timers(:b, array_agg(id), 'no', 4) FROM outbox.timers WHERE owner_token = :b;
SELECT payload, status, retry_count, last_error, failure_reason, next_attempt_at - processed_at IS NULL AS x FROM outbox.timers WHERE topic = 'tm.w' ORDER BY payload;
UPDATE outbox.timer_queue SET next_attempt_at = now();
SELECT payload, attempts, retry_count FROM outbox.claim_timers(:a, 30);
UPDATE outbox.timer_queue SET locked_until = now() - interval '1 s';
SELECT outbox.reap_expired_timers();
SELECT payload, status, attempts FROM outbox.timers WHERE topic = 'tm.w' AND status = 0;
SELECT outbox.dispatch_due();

-- jobs need pg_cron for their schedules, and for nothing else
\set VERBOSITY terse
SELECT outbox.create_or_update_job('j', 't', '* * * * *');
SELECT count(*) FROM outbox.jobs;
SELECT outbox.create_or_update_job('', 't', '* * * * *');
SELECT outbox.create_or_update_job('j', NULL, '* * * * *');
SELECT outbox.create_or_update_job('j', 't', NULL);
SELECT outbox.trigger_job('j');
SELECT outbox.trigger_job(NULL);
SELECT outbox.set_job_enabled('j', true);
SELECT outbox.set_job_enabled('j', NULL);
SELECT outbox.delete_job('j'), outbox.delete_job('k');
INSERT INTO outbox.jobs (job_name, topic, cron_schedule, payload) VALUES ('j', 'jb.t', '* * * * *', 'pay');
SELECT outbox.set_job_enabled('j', true);
SELECT outbox.set_job_enabled('j', false);
\set VERBOSITY default
SELECT outbox.trigger_job('j') IS NOT NULL AS by_hand, outbox.trigger_job('j', true) IS NULL AS disabled;
UPDATE outbox.jobs SET enabled = true;
-- pg_cron's triggers count once a minute
UPDATE outbox.jobs SET last_fired_at = now() - interval '2 minutes';
SELECT outbox.trigger_job('j', true) IS NOT NULL AS fired;
UPDATE outbox.jobs SET last_fired_at = date_trunc('minute', clock_timestamp());
SELECT outbox.trigger_job('j', true) IS NULL OR extract(second FROM clock_timestamp()) < 1 AS not_again;
SELECT job_name, topic, payload, status FROM outbox.job_runs ORDER BY id;
SELECT kind, topic, name FROM outbox.upcoming WHERE kind = 'job_run';
SELECT outbox.dispatch_due() BETWEEN 2 AND 3 AS dispatched;
SELECT topic, payload, headers ->> 'job' AS job FROM outbox.messages WHERE topic = 'jb.t' ORDER BY id LIMIT 2;
-- by workers' own hands, with output
SELECT outbox.trigger_job('j') IS NOT NULL AS ok, outbox.trigger_job('j') IS NOT NULL AS ok;
CREATE TEMP TABLE runs AS SELECT * FROM outbox.claim_job_runs(:a, 30);
SELECT topic, payload, correlation_id AS job, attempts FROM runs;
SELECT outbox.renew_job_runs(:a, array_agg(id), 90), outbox.ack_job_runs(:a, (array_agg(id ORDER BY id))[1:1], output => '42 rows') FROM runs;
SELECT outbox.fail_job_runs(:a, (array_agg(id ORDER BY id))[2:2], 'broken') FROM runs;
SELECT status, output, last_error, processed_by FROM outbox.job_runs WHERE id IN (SELECT id FROM runs) ORDER BY id;
SELECT outbox.trigger_job('j') IS NOT NULL AS ok;
SELECT outbox.abandon_job_runs(:a, array_agg(id), 'hm', '0') FROM outbox.claim_job_runs(:a, 30);
SELECT outbox.reap_expired_job_runs();
SELECT outbox.ack_job_runs(:a, array_agg(id)) FROM outbox.claim_job_runs(:a, 30);
SELECT status, output FROM outbox.job_runs ORDER BY id DESC LIMIT 1;
SELECT outbox.trigger_job('j') IS NOT NULL AS ok;
-- deleting a job removes the runs that wait, and no others
SELECT count(*) FROM outbox.claim_job_runs(:a, 30);
SELECT outbox.trigger_job('j') IS NOT NULL AS ok;
SELECT outbox.delete_job('j');
SELECT status, count(*) FROM outbox.job_runs WHERE status < 2 GROUP BY 1;
SELECT outbox.ack_job_runs(:a, array_agg(id)) FROM outbox.job_runs WHERE status = 1;
\set VERBOSITY terse
SELECT outbox.schedule_maintenance();
\set VERBOSITY default
-- retention
SELECT count(*) > 0 AS there FROM outbox.timers WHERE status = 2;
SET outbox.retention = 0;
SELECT outbox.cleanup() >= 0 AS ok;
RESET outbox.retention;
SELECT count(*) FROM outbox.timers WHERE status = 2;
SELECT outbox.run_maintenance() >= 0 AS ok;
DELETE FROM outbox.timer_queue;

-- one that cannot be enqueued does not keep the others; it is tried again
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'refused';
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON outbox.queue
    FOR EACH ROW WHEN (NEW.topic = 'refused') EXECUTE FUNCTION refuse();
INSERT INTO outbox.jobs (job_name, topic, cron_schedule, enabled)
    VALUES ('refused', 'refused', '* * * * *', false), ('taken', 'taken', '* * * * *', false);
SELECT count(outbox.schedule_timer(topic, 'p', clock_timestamp() - interval '1 s')) AS timers
  FROM unnest(ARRAY['refused', 'taken']) topic;
SELECT count(outbox.trigger_job(job)) AS runs FROM unnest(ARRAY['refused', 'taken']) job;
SELECT outbox.dispatch_due();
SELECT topic, count(*) FROM outbox.queue WHERE topic IN ('refused', 'taken') GROUP BY 1;
SELECT 'timer' AS what, status, attempts, last_error, next_attempt_at > clock_timestamp() AS later
  FROM outbox.timer_queue WHERE topic = 'refused'
UNION ALL
SELECT 'run', status, attempts, last_error, next_attempt_at > clock_timestamp()
  FROM outbox.run_queue WHERE topic = 'refused';
DROP FUNCTION refuse() CASCADE;
DELETE FROM outbox.jobs WHERE job_name IN ('refused', 'taken');
DELETE FROM outbox.timer_queue WHERE topic = 'refused';
DELETE FROM outbox.run_queue WHERE topic = 'refused';
DELETE FROM outbox.queue WHERE topic = 'taken';
