-- ack, nack, fail, renew, release
\set a '''aaaaaaaa-0000-4000-8000-000000000001'''
\set b '''bbbbbbbb-0000-4000-8000-000000000002'''

-- ack: done
SELECT outbox.release(:a) >= 0 AND outbox.release(:b) >= 0 AS cleared;
SELECT outbox.enqueue_many('st', ARRAY['1', '2', '3', '4']) IS NOT NULL AS ok;
SELECT array_agg(id) AS ids FROM outbox.claim(:a, topics => '{st}') \gset
SELECT outbox.ack(:a, (:'ids'::bigint[])[1:2]);
SELECT payload, status, owner_token, locked_until > clock_timestamp() AS leased, attempts, is_processed, processed_by,
       processed_at BETWEEN created_at AND clock_timestamp() AS in_time, updated_at = processed_at AS upd
  FROM outbox.messages WHERE topic = 'st' ORDER BY id;
-- once more: nothing; another's: nothing; unknown, null, twice: passed over
SELECT outbox.ack(:a, (:'ids'::bigint[])[1:2]);
SELECT outbox.ack(:b, :'ids'::bigint[]);
SELECT outbox.nack(:b, :'ids'::bigint[]), outbox.fail(:b, :'ids'::bigint[]), outbox.renew(:b, :'ids'::bigint[]),
       outbox.release(:b, :'ids'::bigint[]), outbox.release(:b);
SELECT outbox.ack(:a, ARRAY[-1, 0, NULL, 9223372036854775807, (:'ids'::bigint[])[3], (:'ids'::bigint[])[3]]);
SELECT outbox.ack(:a, '{}');
SELECT payload, status FROM outbox.messages WHERE topic = 'st' ORDER BY id;
-- finished messages stay as they are
SELECT outbox.nack(:a, :'ids'::bigint[], 'late') AS nacked_the_fourth;
SELECT payload, status, last_error, retry_count FROM outbox.messages WHERE topic = 'st' ORDER BY id;

-- the attempt must match if it is given
SELECT outbox.enqueue_many('st.att', ARRAY['1', '2']) IS NOT NULL AS ok;
SELECT array_agg(id) AS ids FROM outbox.claim(:a, topics => '{st.att}') \gset
SELECT outbox.ack(:a, :'ids'::bigint[], '{2,1}');
SELECT outbox.ack(:a, :'ids'::bigint[], ARRAY[NULL, 1]);
SELECT outbox.ack(:a, (:'ids'::bigint[])[1:1], '{0}'), outbox.ack(:a, (:'ids'::bigint[])[1:1], '{-1}');
SELECT outbox.ack(:a, (:'ids'::bigint[])[1:1] || (:'ids'::bigint[])[1:1], '{7,1}');
SELECT payload, status FROM outbox.messages WHERE topic = 'st.att' ORDER BY id;

-- strict: all or nothing
SELECT outbox.enqueue_many('st.strict', ARRAY['1', '2']) IS NOT NULL AS ok;
SELECT array_agg(id) AS ids FROM outbox.claim(:a, topics => '{st.strict}') \gset
\set VERBOSITY sqlstate
SELECT outbox.ack(:a, :'ids'::bigint[] || 0::bigint, strict => true);
SELECT outbox.ack(:a, :'ids'::bigint[], '{1,2}', true);
SELECT outbox.nack(:b, :'ids'::bigint[], strict => true);
SELECT outbox.fail(:b, :'ids'::bigint[], strict => true);
\set VERBOSITY default
SELECT outbox.ack(:a, ARRAY[0, -5]::bigint[], strict => true);
SELECT outbox.renew(:a, ARRAY[0, -5]::bigint[], strict => true);
SELECT outbox.release(:a, ARRAY[0, -5]::bigint[], true);
SELECT outbox.ack(:a, '{-5}', '{NULL}', true);
\set VERBOSITY sqlstate
SELECT outbox.renew(:a, :'ids'::bigint[], 77, '{1,2}', true);
\set VERBOSITY default
SELECT bool_or(locked_until - clock_timestamp() > '31 s') AS renewed FROM outbox.messages WHERE topic = 'st.strict';
SELECT outbox.renew(:a, :'ids'::bigint[], 77, '{1,1}', true), outbox.release(:a, (:'ids'::bigint[])[2:2], true);
SELECT locked_until - clock_timestamp() > '31 s' AS renewed, status FROM outbox.messages WHERE topic = 'st.strict' ORDER BY id;
SELECT id = (:'ids'::bigint[])[2] AS again FROM outbox.claim(:a, topics => '{st.strict}');
SELECT status, count(*) FROM outbox.messages WHERE topic = 'st.strict' GROUP BY 1;
SELECT outbox.ack(:a, :'ids'::bigint[] || :'ids'::bigint[], strict => true);
SELECT outbox.ack(:a, '{}', strict => true), outbox.ack(:a, '{NULL}', strict => true);

-- a lease that has ended, but was not taken over, can still be acked
SELECT outbox.enqueue('st.late', 'p') IS NOT NULL AS ok;
SELECT id AS i FROM outbox.claim(:a, 1, topics => '{st.late}') \gset
DO $$ BEGIN WHILE (SELECT locked_until > clock_timestamp() FROM outbox.queue WHERE topic = 'st.late') LOOP PERFORM pg_sleep(0.01); END LOOP; END $$;
SELECT expired FROM outbox.leases WHERE id = :i;
SELECT outbox.ack(:a, ARRAY[:i]);
-- once it is taken over, it cannot
SELECT outbox.enqueue('st.late', 'q') IS NOT NULL AS ok;
SELECT id AS i FROM outbox.claim(:a, 1, topics => '{st.late}') \gset
SELECT attempts FROM outbox.claim(:b, topics => '{st.late}', wait_ms => 3000);
SELECT outbox.ack(:a, ARRAY[:i]), outbox.nack(:a, ARRAY[:i]), outbox.fail(:a, ARRAY[:i]), outbox.renew(:a, ARRAY[:i]), outbox.release(:a, ARRAY[:i]);
SELECT outbox.ack(:b, ARRAY[:i]);
-- claim and ack in one statement
SELECT outbox.enqueue_many('st.one', ARRAY['1', '2']) IS NOT NULL AS ok;
WITH c AS MATERIALIZED (SELECT id FROM outbox.claim(:a, topics => '{st.one}'))
SELECT outbox.ack(:a, array_agg(id)) FROM c;

-- nack: again later, by the backoff
SET outbox.backoff_jitter = off;
SELECT outbox.enqueue('st.nack', 'p') IS NOT NULL AS ok;
SELECT id AS i FROM outbox.claim(:a, topics => '{st.nack}') \gset
-- within its delay
SET debug_discard_caches = 0;
SELECT outbox.nack(:a, ARRAY[:i], 'first');
SELECT status, owner_token, locked_until, attempts, retry_count, last_error, failure_reason,
       next_attempt_at - updated_at AS delay FROM outbox.messages WHERE id = :i;
SELECT count(*) FROM outbox.claim(:a, topics => '{st.nack}');
RESET debug_discard_caches;
CREATE FUNCTION nack_after(retries int) RETURNS interval LANGUAGE plpgsql AS $$
DECLARE i bigint; d interval;
BEGIN
    UPDATE outbox.queue SET retry_count = retries, next_attempt_at = now(), status = 0,
           attempts = retries, owner_token = NULL, locked_until = NULL WHERE topic = 'st.nack' RETURNING id INTO i;
    PERFORM outbox.claim('aaaaaaaa-0000-4000-8000-000000000001', topics => '{st.nack}', max_attempts => 2000000000);
    PERFORM outbox.nack('aaaaaaaa-0000-4000-8000-000000000001', ARRAY[i], max_attempts => 2000000000);
    SELECT next_attempt_at - updated_at INTO d FROM outbox.queue WHERE id = i;
    RETURN d;
END $$;
SELECT r, nack_after(r) FROM unnest(ARRAY[0, 1, 2, 3, 4, 5, 6, 7, 100, 1000000]) r;
SET outbox.backoff_base = '100 ms';
SET outbox.backoff_max = '300 ms';
SELECT r, nack_after(r) FROM unnest(ARRAY[0, 1, 2, 3]) r;
SET outbox.backoff_base = 0;
SELECT r, nack_after(r) FROM unnest(ARRAY[0, 9]) r;
RESET outbox.backoff_base;
RESET outbox.backoff_max;
-- jitter: between half of it and all
SET outbox.backoff_jitter = on;
SELECT r, bool_and(d BETWEEN half AND 2 * half) AS within, count(DISTINCT d) > 10 AS drawn,
       min(d) < half * 1.3 AS low, max(d) > half * 1.7 AS high
  FROM (SELECT r, nack_after(r) AS d, interval '0.5 s' * 2 ^ r AS half
          FROM generate_series(0, 4, 2) r, generate_series(1, 60)) s
 GROUP BY r, half ORDER BY r;
RESET outbox.backoff_jitter;
-- or by a delay
SELECT outbox.enqueue('st.delay', 'p') IS NOT NULL AS ok;
SELECT id AS i FROM outbox.claim(:a, topics => '{st.delay}') \gset
SELECT outbox.nack(:a, ARRAY[:i], NULL, '1 day');
SELECT next_attempt_at - updated_at AS delay, last_error FROM outbox.messages WHERE id = :i;
SELECT outbox.enqueue('st.delay', 'q') IS NOT NULL AS ok;
SELECT id AS i FROM outbox.claim(:a, topics => '{st.delay}') \gset
SELECT outbox.abandon(:a, ARRAY[:i], 'by its other name', '0');
SELECT attempts, retry_count FROM outbox.claim(:b, topics => '{st.delay}');
-- at the maximum it fails
SELECT outbox.nack(:b, ARRAY[:i], 'enough', max_attempts => 2);
SELECT status, attempts, retry_count, last_error, failure_reason, is_processed FROM outbox.messages WHERE id = :i;

-- fail: for good
SELECT outbox.enqueue_many('st.fail', ARRAY['1', '2']) IS NOT NULL AS ok;
SELECT array_agg(id) AS ids FROM outbox.claim(:a, topics => '{st.fail}') \gset
SELECT outbox.fail(:a, (:'ids'::bigint[])[1:1]), outbox.fail(:a, (:'ids'::bigint[])[2:2], 'broken', 4);
SELECT payload, status, last_error, failure_reason, is_processed, processed_at FROM outbox.messages WHERE topic = 'st.fail' ORDER BY id;
SELECT payload, last_error, failure_reason, failed_by, failed_at <= clock_timestamp() AS in_time FROM outbox.dead_letters WHERE topic = 'st.fail' ORDER BY id;
SELECT outbox.fail(:a, :'ids'::bigint[]), outbox.ack(:a, :'ids'::bigint[]);

-- renew: from now
SELECT outbox.enqueue('st.renew', 'p') IS NOT NULL AS ok;
SELECT id AS i FROM outbox.claim(:a, 1, topics => '{st.renew}') \gset
SELECT outbox.renew(:a, ARRAY[:i], 3600), outbox.renew(:a, ARRAY[:i], 3600, '{2}');
SELECT locked_until - clock_timestamp() BETWEEN '3590 s' AND '3600 s' AS renewed FROM outbox.messages WHERE id = :i;
SELECT outbox.renew(:a, ARRAY[:i], attempts => '{1}');
SELECT locked_until - clock_timestamp() BETWEEN '29 s' AND '30 s' AS renewed FROM outbox.messages WHERE id = :i;

-- release: as if it had not been claimed
SELECT outbox.release(:a, ARRAY[:i, NULL, 0]);
SELECT status, owner_token, locked_until, retry_count, next_attempt_at <= clock_timestamp() AS due FROM outbox.messages WHERE id = :i;
SELECT count(*) FROM outbox.claim(:a, topics => '{st.renew}', max_attempts => 1);
SELECT outbox.release(:a) > 0 AS all_of_mine;
SELECT count(*) FROM outbox.leases WHERE owner_token = :a;
SELECT count(*) FROM outbox.claim(:a, topics => '{st.renew}', max_attempts => 1);

-- no ids are an empty list: what array_agg says of an empty claim
SELECT outbox.ack(:a, array_agg(id), array_agg(attempts)) FROM outbox.claim(:a, topics => '{st.none}');
SELECT outbox.ack(:a, NULL), outbox.nack(:a, NULL), outbox.fail(:a, NULL), outbox.renew(:a, NULL, strict => true), outbox.requeue(NULL);
SELECT outbox.ack(:a, NULL, NULL, NULL), outbox.ack(:a, NULL, '{}'), outbox.ack(:a, '{}', '{}');
-- nor is it all that the owner has
SELECT outbox.release(:a, NULL), count(*) FROM outbox.leases WHERE owner_token = :a;

-- one at a time
SELECT outbox.enqueue_many('st.single', ARRAY['1', '2', '3', '4', '5']) IS NOT NULL AS ok;
SELECT array_agg(id) AS ids FROM outbox.claim(:a, topics => '{st.single}') \gset
SELECT id[1] AS i1, id[2] AS i2, id[3] AS i3, id[4] AS i4, id[5] AS i5 FROM (SELECT :'ids'::bigint[]) s(id) \gset
SELECT outbox.renew_one(:a, :i1, 3600), outbox.renew_one(:a, :i2, 3600, 1), outbox.renew_one(:a, :i3, attempt => 2), outbox.renew_one(:b, :i4);
SELECT payload, locked_until - clock_timestamp() BETWEEN '3590 s' AND '3600 s' AS renewed FROM outbox.messages WHERE topic = 'st.single' ORDER BY id;
SELECT outbox.ack_one(:b, :i1), outbox.ack_one(:a, :i1, 2), outbox.ack_one(:a, :i1, 0), outbox.ack_one(:a, :i1, -1), outbox.ack_one(:a, :i1, 1), outbox.ack_one(:a, :i1);
SELECT outbox.nack_one(:a, :i2, 'later', '1 day', 2), outbox.nack_one(:a, :i2, 'later', '1 day', 1), outbox.nack_one(:a, :i3, 'enough', max_attempts => 1);
SELECT outbox.fail_one(:a, :i4, 'broken', 4, 2), outbox.fail_one(:a, :i4, 'broken', 4, 1);
SELECT outbox.release_one(:b, :i5), outbox.release_one(:a, :i5), outbox.release_one(:a, :i5);
SELECT payload, status, attempts, retry_count, next_attempt_at - updated_at AS delay, last_error, failure_reason FROM outbox.messages WHERE topic = 'st.single' ORDER BY id;
SELECT outbox.requeue_one(:i4), outbox.requeue_one(:i4), outbox.requeue_one(:i1);
SELECT payload, attempts FROM outbox.claim(:a, topics => '{st.single}');
SELECT outbox.ack_one(:a, :i4, strict => true), outbox.ack_one(:a, NULL), outbox.ack_one(:a, NULL, strict => true), outbox.requeue_one(NULL);
\set VERBOSITY sqlstate
SELECT outbox.ack_one(:a, :i4, strict => true);
\set VERBOSITY default
SELECT outbox.ack_one(:a, -5, NULL, true);
SELECT outbox.nack_one(:a, -5, strict => true);
SELECT outbox.fail_one(:a, -5, strict => true);
SELECT outbox.renew_one(:a, -5, strict => true);
SELECT outbox.release_one(:a, -5, true);
SELECT outbox.release(:a, ARRAY[:i5]);

-- attempts_log: what was said of each failed attempt, wherever the message is
SELECT outbox.enqueue('st.log', '1') IS NOT NULL AS ok;
SELECT id AS i FROM outbox.claim(:a, topics => '{st.log}') \gset
SELECT * FROM outbox.attempts_log WHERE id = :i;
SELECT outbox.nack(:a, ARRAY[:i], 'first', '0');
SELECT attempts FROM outbox.claim(:a, topics => '{st.log}');
SELECT outbox.release(:a, ARRAY[:i]);
SELECT attempts FROM outbox.claim(:a, topics => '{st.log}');
SELECT outbox.nack(:a, ARRAY[:i], delay => '0');
SELECT attempts FROM outbox.claim(:a, topics => '{st.log}');
SET TimeZone = 'Asia/Kathmandu';
SET DateStyle = 'German, DMY';
SELECT outbox.nack(:a, ARRAY[:i], E'x\nx' || repeat('x', 600), '0');
RESET DateStyle;
RESET TimeZone;
SELECT kind, topic, attempt, left(error, 5) AS error, length(error), at BETWEEN created_at AND clock_timestamp() AS in_time, l.message_id = m.message_id AS same
  FROM outbox.attempts_log l JOIN outbox.messages m USING (id, topic) WHERE id = :i ORDER BY attempt;
SELECT attempts FROM outbox.claim(:a, topics => '{st.log}');
SELECT ok, status, detail FROM outbox.status() WHERE component = 'failing messages';
SELECT failing FROM outbox.topic_stats WHERE topic = 'st.log';
SELECT outbox.fail(:a, ARRAY[:i], 'for good');
SELECT ok, status, detail FROM outbox.status() WHERE component = 'failing messages';
SELECT attempt, left(error, 8) AS error FROM outbox.attempts_log WHERE id = :i;
SELECT outbox.requeue(ARRAY[:i]);
DO $$
BEGIN
    FOR i IN 1 .. 8 LOOP
        PERFORM outbox.nack('aaaaaaaa-0000-4000-8000-000000000001', array_agg(id), 'again ' || i, '0', max_attempts => 100)
           FROM outbox.claim('aaaaaaaa-0000-4000-8000-000000000001', topics => '{st.log}', max_attempts => 100);
    END LOOP;
END $$;
SELECT array_agg(attempt ORDER BY at, attempt) AS attempts, min(error) FILTER (WHERE attempt = 3), max(error) FILTER (WHERE attempt = 8) FROM outbox.attempts_log WHERE id = :i;
SELECT attempts FROM outbox.claim(:a, topics => '{st.log}', max_attempts => 100);
SELECT outbox.ack(:a, ARRAY[:i]);
SELECT count(*) FROM outbox.attempts_log WHERE id = :i AND topic = 'st.log';
-- what is no log is replaced by one
SELECT outbox.enqueue_many('st.log', '{1,2,3,4}') IS NOT NULL AS ok;
SELECT array_agg(id) AS ids FROM outbox.claim(:a, topics => '{st.log}') \gset
UPDATE outbox.queue SET errors = CASE payload WHEN '1' THEN '{{1,2},{3,4}}' WHEN '2' THEN '{NULL}' WHEN '3' THEN '{}' ELSE '[7:8]={text,99999999999 1}' END::text[] WHERE topic = 'st.log';
SELECT attempt, at, error FROM outbox.attempts_log WHERE id = ANY (:'ids');
SELECT outbox.nack(:a, :'ids', 'e');
SELECT attempt, error FROM outbox.attempts_log WHERE id = ANY (:'ids') ORDER BY id;
DELETE FROM outbox.queue WHERE topic = 'st.log';
-- the same for what was received, timers and runs
SELECT outbox.receive('dddddddd-0000-4000-8000-000000000002', 'st.log', 'r') AS received, outbox.schedule_timer('st.log', 't', now()) IS NOT NULL AS scheduled;
INSERT INTO outbox.jobs (job_name, topic, cron_schedule, payload) VALUES ('st.log', 'st.log', '0 0 1 1 *', 'j');
SELECT outbox.trigger_job('st.log') IS NOT NULL AS run;
SELECT outbox.nack_inbox(:a, array_agg(id), 'of the inbox') FROM outbox.claim_inbox(:a);
SELECT outbox.fail_timers(:a, array_agg(id), 'of a timer') FROM outbox.claim_timers(:a);
SELECT outbox.abandon_job_runs(:a, array_agg(id), 'of a run') FROM outbox.claim_job_runs(:a);
SELECT kind, topic, attempt, error FROM outbox.attempts_log WHERE error LIKE 'of %';
DELETE FROM outbox.jobs;
TRUNCATE outbox.inbox_queue, outbox.message_deduplication, outbox.timer_dead, outbox.run_queue;

-- what is refused
\set VERBOSITY sqlstate
SELECT outbox.ack(NULL, '{1}');
SELECT outbox.ack(:a, NULL, '{1}');
SELECT outbox.ack_one(NULL, 1);
SELECT outbox.ack(:a, '{{1},{2}}');
SELECT outbox.ack(:a, '{1,2}', '{1}');
SELECT outbox.ack(:a, '{1}', '{{1}}');
SELECT outbox.nack(NULL, '{1}');
SELECT outbox.nack(NULL, NULL);
SELECT outbox.nack_one(NULL, 1);
SELECT outbox.nack_one(:a, 1, delay => '-1 s');
SELECT outbox.nack(:a, '{1}', delay => '-1 s');
SELECT outbox.nack(:a, '{1}', delay => '1000 years');
SELECT outbox.nack(:a, '{1}', delay => '178000000 years');
SELECT outbox.nack(:a, '{1}', max_attempts => 0);
SELECT outbox.fail(NULL, '{1}');
SELECT outbox.fail_one(NULL, 1);
SELECT outbox.fail_one(:a, 1, reason => 32768);
SELECT outbox.fail(:a, '{1}', reason => -1);
SELECT outbox.renew(NULL, '{1}');
SELECT outbox.renew_one(NULL, 1);
SELECT outbox.renew_one(:a, 1, 0);
SELECT outbox.renew(:a, '{1}', 0);
SELECT outbox.renew(:a, '{1}', 86401);
SELECT outbox.renew(:a, '{1}', attempts => '{1,2}');
SELECT outbox.release(NULL);
SELECT outbox.release(NULL, '{1}');
SELECT outbox.release(NULL, NULL);
SELECT outbox.release_one(NULL, 1);
SELECT outbox.release(:a, '{{1}}');
\set VERBOSITY default
SELECT outbox.ack(:a, '[-5:-4]={-1,-2}');
DROP FUNCTION nack_after;

-- leases of the transaction itself are seen, and given back, before it commits
TRUNCATE outbox.queue;
SELECT cardinality(outbox.enqueue_many('own', array_fill('p'::text, ARRAY[12]))) AS n;
SELECT count(outbox.enqueue('own', 'p', stream_id => '51515151-0000-4000-8000-000000000001')) AS n FROM generate_series(1, 3);
BEGIN;
SELECT count(*) FROM outbox.claim('aaaaaaaa-0000-4000-8000-000000000001', batch_size => 3);
SAVEPOINT s;
SELECT count(*) FROM outbox.claim('aaaaaaaa-0000-4000-8000-000000000001', batch_size => 4);
SELECT count(*), count(DISTINCT id) FROM outbox.leases;
ROLLBACK TO s;
SELECT count(*), count(DISTINCT id) FROM outbox.leases;
SELECT count(*) FROM outbox.claim('bbbbbbbb-0000-4000-8000-000000000002');
SELECT count(*), count(DISTINCT id) FROM outbox.leases;
SELECT outbox.release('aaaaaaaa-0000-4000-8000-000000000001'), outbox.deregister_instance('bbbbbbbb-0000-4000-8000-000000000002');
SELECT count(*) FROM outbox.leases;
SELECT count(*) FROM outbox.claim('aaaaaaaa-0000-4000-8000-000000000001');
COMMIT;
SELECT outbox.release('aaaaaaaa-0000-4000-8000-000000000001');
TRUNCATE outbox.queue;
