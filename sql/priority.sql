-- priorities
\set a '''aaaaaaaa-0000-4000-8000-000000000001'''
\set b '''bbbbbbbb-0000-4000-8000-000000000002'''
\set t1 '''11111111-1111-4111-8111-111111111111'''
\set t2 '''22222222-2222-4222-8222-222222222222'''
\set s1 '''51515151-0000-4000-8000-000000000001'''
SET outbox.backoff_jitter = off;
SET outbox.lease_seconds = '1 h';

-- what became due so long before noon of 1 January 2020
CREATE PROCEDURE place(topic text, payload text, age interval, priority integer DEFAULT NULL, tenant_id uuid DEFAULT NULL, stream_id uuid DEFAULT NULL)
LANGUAGE plpgsql AS $$
DECLARE
    m uuid := outbox.enqueue(topic, payload, tenant_id => place.tenant_id, stream_id => place.stream_id, priority => place.priority);
BEGIN
    UPDATE outbox.queue q SET next_attempt_at = '2020-01-01 12:00 UTC'::timestamptz - age WHERE q.message_id = m;
END
$$;
-- what a claim of so many gets, in order; it is rolled back
CREATE FUNCTION would_get(batch_size integer, topics text[], namespace text DEFAULT NULL, tenant_id uuid DEFAULT NULL)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    got text;
BEGIN
    BEGIN
        got := (SELECT string_agg(c.payload, ' ') FROM outbox.claim(NULL, 60, would_get.batch_size, would_get.namespace, would_get.topics, would_get.tenant_id) c);
        RAISE EXCEPTION SQLSTATE 'PR000';
    EXCEPTION WHEN SQLSTATE 'PR000' THEN
        RETURN got;
    END;
END
$$;
-- the same with memory and without
CREATE FUNCTION both_get(batch_size integer, topics text[], namespace text DEFAULT NULL, tenant_id uuid DEFAULT NULL)
RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
    RETURN NEXT would_get(batch_size, topics, namespace, tenant_id);
    SET LOCAL outbox.use_cursor = off;
    RETURN NEXT would_get(batch_size, topics, namespace, tenant_id);
    RESET outbox.use_cursor;
END
$$;

-- the urgent first; where that can be seen
CALL place('pr', 'a', '5 s', -2);
CALL place('pr', 'b', '4 s', -1);
CALL place('pr', 'c', '3 s');
CALL place('pr', 'd', '2 s', 1);
CALL place('pr', 'e', '1 s', 2);
SELECT payload, priority FROM outbox.messages WHERE topic = 'pr' ORDER BY payload;
SELECT payload, priority FROM outbox.queue WHERE topic = 'pr' ORDER BY payload;
SELECT count(DISTINCT lane) AS lanes FROM outbox.queue WHERE topic = 'pr';
SELECT topic, ready FROM outbox.topic_stats WHERE topic = 'pr';
SELECT both_get(10, '{pr}');
SELECT both_get(2, '{pr}');
SELECT payload, priority FROM outbox.claim(:a, batch_size => 2, topics => '{pr}');
SELECT payload, priority FROM outbox.claim(:a, batch_size => 2, topics => '{pr}');
SELECT payload, priority FROM outbox.claim(:a, batch_size => 2, topics => '{pr}');
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.messages WHERE topic = 'pr' AND payload <= 'c';
SELECT outbox.fail(:a, array_agg(id)) FROM outbox.messages WHERE topic = 'pr' AND payload > 'c' AND status = 1;
SELECT payload, status, priority FROM outbox.messages WHERE topic = 'pr' ORDER BY payload;

-- each class is a boost ahead of the next, and no more; where that makes two even,
-- the older id is first
CALL place('pr.boost', 'even0', '4 min', -2);
CALL place('pr.boost', 'lazy', '4 min 1 s', -2);
CALL place('pr.boost', 'early', '3 min 59 s', -2);
CALL place('pr.boost', 'urgent', '0', 2);
CALL place('pr.boost', 'plain', '2 min 1 s');
CALL place('pr.boost', 'late', '1 min 59 s');
CALL place('pr.boost', 'even', '3 min', -1);
SELECT both_get(10, '{pr.boost}');
-- the setting takes effect at once, for waiting messages, too; with 0 there are no classes
SET outbox.priority_boost = 0;
SELECT both_get(10, '{pr.boost}');
SET outbox.priority_boost = '1 d';
SELECT both_get(10, '{pr.boost}');
SET outbox.priority_boost = '1 min';
SELECT both_get(10, '{pr.boost}');
DELETE FROM outbox.queue WHERE topic = 'pr.boost';

-- across topics and tenants, and for one of them
CALL place('pr.x', 'x0', '10 s');
CALL place('pr.y', 'y1', '9 s', 1);
CALL place('pr.x', 'x1', '8 s', 1);
CALL place('pr.x', 'xt1', '7 s', 1, :t1);
CALL place('pr.x', 'xt2', '6 s', 2, :t1);
CALL place('pr.y', 'yt0', '5 s', 0, :t1);
CALL place('pr.y', 'yu-1', '4 s', -1, :t2);
CALL place('pr.x', 'xu2', '3 s', 2, :t2);
SELECT both_get(10, '{pr.x,pr.y}');
SELECT both_get(10, '{pr.x}');
SELECT both_get(10, '{pr.x}', 'default');
SELECT both_get(10, '{pr.x,pr.y}', tenant_id => :t1);
SELECT both_get(10, '{pr.y}', tenant_id => :t2);
-- in the transaction that has enqueued them
BEGIN;
SELECT outbox.enqueue('pr.x', 'new' || p, priority => p) IS NOT NULL AS ok FROM generate_series(-2, 2) p;
SELECT both_get(20, '{pr.x}');
SELECT payload, priority FROM outbox.claim(:a, batch_size => 7, topics => '{pr.x}') WHERE payload ~ '^new';
SELECT both_get(20, '{pr.x}');
ROLLBACK;
-- plain SQL gives a message another class
UPDATE outbox.queue SET priority = 2 WHERE topic = 'pr.x' AND payload = 'x0';
SELECT both_get(10, '{pr.x}', 'default');
UPDATE outbox.queue SET priority = NULL WHERE topic = 'pr.x' AND payload IN ('x0', 'x1');
SELECT both_get(10, '{pr.x}', 'default');
UPDATE outbox.queue SET priority = 3 WHERE topic = 'pr.x' AND payload = 'x0';
DELETE FROM outbox.queue WHERE topic IN ('pr.x', 'pr.y');

-- a lease that ends while something else of its lane is due
CALL place('pr.lease', 'first', '3 s', 1);
SELECT payload FROM outbox.claim(:a, 1, topics => '{pr.lease}');
CALL place('pr.lease', 'second', '62 s');
CALL place('pr.lease', 'third', '1 s', 1);
SELECT pg_sleep_until(locked_until) FROM outbox.queue WHERE topic = 'pr.lease' AND status = 1;
SELECT both_get(10, '{pr.lease}');
DELETE FROM outbox.queue WHERE topic = 'pr.lease';

-- a batch of all classes in turn is as good as one of each
SELECT count(*) FROM outbox.enqueue_batch((SELECT jsonb_agg(jsonb_build_object('topic', 'pr.batch' || i % 4, 'payload', 'p' || i, 'priority', i % 5 - 2)) FROM generate_series(1, 200) i));
SELECT topic, priority, count(*), count(DISTINCT lane) AS lanes FROM outbox.queue WHERE topic ~ '^pr.batch' GROUP BY 1, 2 ORDER BY 1, 2 LIMIT 6;
SELECT priority, count(*) FROM outbox.claim(:a, batch_size => 90, topics => '{pr.batch0,pr.batch1,pr.batch2,pr.batch3}') GROUP BY 1 ORDER BY 1 DESC;
SELECT priority, count(*) FROM outbox.claim(:a, batch_size => 200, topics => '{pr.batch0,pr.batch1,pr.batch2,pr.batch3}') GROUP BY 1 ORDER BY 1 DESC;
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.queue WHERE topic ~ '^pr.batch';

-- a message keeps its class: retry, release, lost lease, death and its undoing
CALL place('pr.keep', 'k', '0', 2);
CALL place('pr.keep', 'other', '0');
SELECT id AS i, payload, priority FROM outbox.claim(:a, batch_size => 1, topics => '{pr.keep}') \gset
SELECT :'payload' AS payload, :priority AS priority;
SELECT outbox.nack(:a, ARRAY[:i], 'e', '0');
UPDATE outbox.queue SET next_attempt_at = '2020-01-01 12:00 UTC' WHERE id = :i;
SELECT both_get(2, '{pr.keep}');
SELECT count(*) FROM outbox.claim(:a, batch_size => 1, topics => '{pr.keep}');
SELECT outbox.release(:a, ARRAY[:i]);
SELECT priority FROM outbox.queue WHERE id = :i;
UPDATE outbox.queue SET next_attempt_at = '2020-01-01 12:00 UTC' WHERE id = :i;
SELECT payload FROM outbox.claim(:a, batch_size => 1, topics => '{pr.keep}');
UPDATE outbox.queue SET locked_until = now() - interval '1 s' WHERE id = :i;
SELECT both_get(2, '{pr.keep}');
SELECT outbox.reap();
SELECT priority, status FROM outbox.queue WHERE id = :i;
UPDATE outbox.queue SET next_attempt_at = '2020-01-01 12:00 UTC' WHERE id = :i;
SELECT both_get(2, '{pr.keep}');
SELECT count(*) FROM outbox.claim(:a, batch_size => 1, topics => '{pr.keep}');
SELECT outbox.fail(:a, ARRAY[:i]);
SELECT priority, status FROM outbox.messages WHERE id = :i;
SELECT outbox.configure_topic('pr.keep', priority => -1);
SELECT outbox.requeue(ARRAY[:i]);
SELECT priority, status FROM outbox.messages WHERE id = :i;
SELECT count(*) FROM outbox.claim(:a, topics => '{pr.keep}');
SELECT outbox.fail(:a, array_agg(id)) FROM outbox.queue WHERE topic = 'pr.keep';
SELECT outbox.redrive(topic => 'pr.keep');
SELECT payload, priority FROM outbox.messages WHERE topic = 'pr.keep' ORDER BY payload;
SELECT count(*) FROM outbox.claim(:a, topics => '{pr.keep}');
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.queue WHERE topic = 'pr.keep';
SELECT payload, priority, status FROM outbox.messages WHERE topic = 'pr.keep' ORDER BY payload;
SELECT outbox.reset_topic('pr.keep');

-- of what process_work_batch takes, the order is that of age
CALL place('pr.work', 'plain', '1000 d');
CALL place('pr.work', 'lazy', '1000 d', -1);
CALL place('pr.work', 'urgent', '1000 d', 2);
CALL place('pr.work', 'pressing', '1000 d', 1);
SELECT payload FROM outbox.process_work_batch(:a, 's', 'h', 1, batch_size => 1) WHERE source = 'outbox';
SELECT payload FROM outbox.process_work_batch(:a, 's', 'h', 1, batch_size => 2) WHERE source = 'outbox';
SELECT payload, status FROM outbox.queue WHERE topic = 'pr.work' ORDER BY id;
SELECT outbox.deregister_instance(:a) >= 3 AS ok;
DELETE FROM outbox.queue WHERE topic = 'pr.work';

-- a stream keeps its order: what is urgent waits for what is before it, and comes
-- when that has been taken, before others of its class
CALL place('pr.stream', 's1', '10 s', -2, stream_id => :s1);
CALL place('pr.stream', 's2', '9 s', 2, stream_id => :s1);
CALL place('pr.stream', 's3', '8 s', 2, stream_id => :s1);
CALL place('pr.stream', 's4', '7 s', -1, stream_id => :s1);
CALL place('pr.stream', 'u', '6 s', 2);
CALL place('pr.stream', 'v', '5 s', 1);
CALL place('pr.stream', 'w', '4 s', -2);
SELECT both_get(10, '{pr.stream}');
SELECT both_get(2, '{pr.stream}');
SELECT payload FROM outbox.claim(:a, batch_size => 3, topics => '{pr.stream}');
SELECT payload FROM outbox.claim(:b, batch_size => 10, topics => '{pr.stream}');
SELECT payload FROM outbox.claim(:a, batch_size => 1, topics => '{pr.stream}');
SELECT payload FROM outbox.claim(:b, batch_size => 10, topics => '{pr.stream}');
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.queue WHERE topic = 'pr.stream' AND payload IN ('s1', 's2');
SELECT both_get(10, '{pr.stream}');
-- what comes in while all before it are leased, and what goes back
CALL place('pr.stream', 's5', '0', 2, stream_id => :s1);
SELECT payload FROM outbox.claim(:a, batch_size => 10, topics => '{pr.stream}');
SELECT outbox.nack(:a, array_agg(id), 'e', '0') FROM outbox.queue WHERE payload = 's3';
SELECT payload, status, priority FROM outbox.queue WHERE stream_id = :s1 ORDER BY stream_seq;
SELECT payload FROM outbox.claim(:b, batch_size => 10, topics => '{pr.stream}');
DELETE FROM outbox.queue WHERE topic = 'pr.stream';

-- however many urgent ones come, one of the lowest class waits four boosts for them
-- and no longer: an urgent one each ten seconds, a claim of one for each
SELECT outbox.enqueue('pr.flow', 'lazy', priority => -2) IS NOT NULL AS ok;
SELECT count(outbox.enqueue('pr.flow', i::text, priority => 2)) FROM generate_series(1, 100) i;
UPDATE outbox.queue SET next_attempt_at = '2020-01-01 12:00 UTC'::timestamptz + CASE payload WHEN 'lazy' THEN '0' ELSE payload::integer * interval '10 s' END WHERE topic = 'pr.flow';
DO $$
DECLARE
    got text;
BEGIN
    FOR n IN 1 .. 101 LOOP
        got := (SELECT payload FROM outbox.claim(NULL, 60, 1, topics => '{pr.flow}'));
        IF got = 'lazy' THEN
            RAISE NOTICE 'claim % of 101 got it', n;
        END IF;
    END LOOP;
END
$$;
DELETE FROM outbox.queue WHERE topic = 'pr.flow';

-- with more than 256 lanes there is no order between them; those that are urgent come
-- usually first, and others as well
SELECT count(outbox.enqueue('pr.many' || i, 'plain', namespace => 'pr', priority => CASE WHEN i <= 100 THEN -2 END)) FROM generate_series(1, 300) i;
SELECT count(outbox.enqueue('pr.urgent' || i % 2, 'urgent', namespace => 'pr', priority => 1 + i % 2)) FROM generate_series(1, 60) i;
SELECT 'urgent' AS what, count(*) FROM generate_series(1, 12) i, outbox.claim(:a, batch_size => 4 + 0 * i, namespace => 'pr') WHERE payload = 'urgent';
SELECT payload, count(*) FROM outbox.queue WHERE namespace = 'pr' AND status = 1 GROUP BY payload ORDER BY payload;
-- paused topics do not block others
SELECT outbox.pause_topic('pr.urgent0', 'pr');
SELECT count(*) FILTER (WHERE topic = 'pr.urgent0') AS paused, count(*) > 240 AS others FROM generate_series(1, 9) i, outbox.claim(:a, batch_size => 30 + 0 * i, namespace => 'pr');
SELECT outbox.resume_topic('pr.urgent0', 'pr');
SELECT count(*) > 0 AS rest FROM outbox.claim(:a, batch_size => 500, namespace => 'pr');
SELECT status, count(*) FROM outbox.queue WHERE namespace = 'pr' GROUP BY status;
DELETE FROM outbox.queue WHERE namespace = 'pr';
SELECT outbox.reset_topic('pr.urgent0', 'pr');

-- the policy of a topic is for what comes without a priority, from then on
SELECT outbox.enqueue('pr.policy', 'before') IS NOT NULL AS ok;
SELECT outbox.configure_topic('pr.policy', priority => 2);
SELECT topic, priority FROM outbox.topics WHERE topic = 'pr.policy';
SELECT topic, priority FROM outbox.policies WHERE topic IS NULL OR topic = 'pr.policy' ORDER BY topic;
SELECT outbox.enqueue('pr.policy', 'null', priority => NULL) IS NOT NULL AS ok;
SELECT outbox.enqueue('pr.policy', 'zero', priority => 0) IS NOT NULL AS ok;
SELECT outbox.enqueue('pr.policy', 'own', priority => -1) IS NOT NULL AS ok;
SELECT outbox.enqueue('pr.policy', 'ns', namespace => 'pr') IS NOT NULL AS ok;
SELECT enqueued FROM outbox.try_enqueue('pr.policy', 'try');
SELECT cardinality(outbox.enqueue_many('pr.policy', '{many}'));
SELECT cardinality(outbox.enqueue_many_json('pr.policy', '["json"]'));
SELECT enqueued FROM outbox.enqueue_batch('[{"topic": "pr.policy", "payload": "batch"}, {"topic": "pr.policy", "payload": "batch0", "priority": 0}, {"topic": "pr.other", "payload": "other"}]');
INSERT INTO outbox.queue (topic, payload) VALUES ('pr.policy', 'insert');
INSERT INTO outbox.queue (topic, payload, priority) VALUES ('pr.policy', 'insert0', 0);
SELECT outbox.start_join('pr', 1) AS j \gset
SELECT outbox.enqueue_step(:'j', 'pr.policy', 'step') IS NOT NULL AS ok;
SELECT count(*) <= 2 AS ok FROM outbox.process_work_batch(:a, 's', 'h', 1, new_outbox_messages => '[{"message_id": "dddddddd-0000-4000-8000-0000000000f1", "topic": "pr.policy", "payload": "work"}, {"message_id": "dddddddd-0000-4000-8000-0000000000f2", "topic": "pr.policy", "payload": "work1", "Priority": 1}]', batch_size => 1);
SELECT outbox.deregister_instance(:a) <= 2 AS ok;
-- what timers, jobs and joins enqueue
SELECT outbox.schedule_timer('pr.policy', 'timer', now()) IS NOT NULL AS ok;
INSERT INTO outbox.jobs (job_name, topic, cron_schedule, payload) VALUES ('pr.job', 'pr.policy', '0 0 1 1 *', 'run');
SELECT outbox.trigger_job('pr.job') IS NOT NULL AS ok;
SELECT outbox.dispatch_due() >= 2 AS dispatched;
SELECT outbox.enqueue_join_wait(:'j', false, 'pr.policy', 'continuation') IS NOT NULL AS ok;
SELECT id AS i FROM outbox.queue WHERE topic = 'pr.policy' AND payload = 'step' \gset
SELECT count(*) > 0 AS claimed FROM outbox.claim(:a, topics => '{pr.policy}');
SELECT outbox.ack(:a, ARRAY[:i]);
SELECT outbox.process_join_waits() > 0 AS processed;
SELECT payload, namespace, priority FROM outbox.messages WHERE topic IN ('pr.policy', 'pr.other') ORDER BY payload COLLATE "C";
-- changed, or forgotten: what waits stays as it is
SELECT outbox.configure_topic('pr.policy', max_attempts => 7);
SELECT outbox.configure_topic('pr.policy', priority => -2);
SELECT outbox.enqueue('pr.policy', 'after') IS NOT NULL AS ok;
SELECT max_attempts, priority FROM outbox.policies WHERE topic = 'pr.policy';
SELECT outbox.reset_topic('pr.policy', setting => 'priority') AS reset, outbox.reset_topic('pr.policy', setting => 'priority') AS again;
SELECT outbox.enqueue('pr.policy', 'reset') IS NOT NULL AS ok;
SELECT payload, priority FROM outbox.messages WHERE topic = 'pr.policy' AND payload IN ('before', 'null', 'after', 'reset') ORDER BY id;
SELECT outbox.reset_topic('pr.policy');
DELETE FROM outbox.queue WHERE topic IN ('pr.policy', 'pr.other');
DELETE FROM outbox.jobs WHERE job_name = 'pr.job';

-- only messages have one
SELECT outbox.configure_topic('pr.kind', priority => 1, kind => 'inbox');
\set VERBOSITY sqlstate
SELECT outbox.configure_topic('pr.kind', priority => 1, kind => 'timer');
SELECT outbox.configure_topic('pr.kind', priority => 0, kind => 'job_run');
SELECT outbox.configure_topic('pr.kind', priority => 3);
SELECT outbox.configure_topic('pr.kind', priority => -3);
SELECT outbox.configure_topic('pr.kind', priority => -2147483648);
INSERT INTO outbox.topics (topic, priority) VALUES ('pr.kind', 3);
SET outbox.priority_boost = -1;
\set VERBOSITY default

DROP FUNCTION both_get, would_get;
DROP PROCEDURE place;
RESET outbox.priority_boost;
RESET outbox.lease_seconds;
RESET outbox.backoff_jitter;
