-- reap, requeue, redrive
\set a '''aaaaaaaa-0000-4000-8000-000000000001'''
-- no lease ends except those that this test ends
DO $$ BEGIN PERFORM outbox.renew(owner_token, array_agg(id), 86400) FROM outbox.leases GROUP BY owner_token; END $$;

SELECT outbox.reap() IS NOT NULL AS cleared;
SELECT outbox.enqueue_many('rp', ARRAY['1', '2', '3', '4']) IS NOT NULL AS ok;
-- within a second, also where the server discards its caches all the time
SET debug_discard_caches = 0;
SELECT array_agg(id) AS ids FROM outbox.claim(:a, 1, topics => '{rp}') \gset
SELECT outbox.ack(:a, (:'ids'::bigint[])[1:1]);
SELECT outbox.renew(:a, (:'ids'::bigint[])[2:2], 1000);
SELECT outbox.reap();
RESET debug_discard_caches;
CREATE FUNCTION wait_for_leases(t text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WHILE EXISTS (SELECT FROM outbox.queue WHERE topic = t AND locked_until BETWEEN clock_timestamp() AND clock_timestamp() + '500 s')
    LOOP PERFORM pg_sleep(0.01); END LOOP;
END $$;
SELECT wait_for_leases('rp');
SELECT outbox.reap(1);
SELECT outbox.reap_expired();
SELECT outbox.reap();
SELECT payload, status, attempts, retry_count, failure_reason, owner_token, next_attempt_at <= clock_timestamp() AS due
  FROM outbox.messages WHERE topic = 'rp' ORDER BY id;
SELECT payload, attempts FROM outbox.claim(:a, 1, topics => '{rp}');
-- at the maximum they fail
SELECT outbox.configure_topic('rp', max_attempts => 2);
SELECT wait_for_leases('rp');
SELECT outbox.reap();
SELECT payload, status, attempts, failure_reason FROM outbox.messages WHERE topic = 'rp' ORDER BY id;
-- a reap that is rolled back has not been
SELECT outbox.enqueue('rp.rb', '1') IS NOT NULL AS ok;
SELECT count(*) FROM outbox.claim(:a, 1, topics => '{rp.rb}');
SELECT wait_for_leases('rp.rb');
BEGIN;
SELECT outbox.reap();
SELECT status FROM outbox.messages WHERE topic = 'rp.rb';
ROLLBACK;
SELECT status FROM outbox.messages WHERE topic = 'rp.rb';
SELECT outbox.reap();
-- locks of the same transaction are not in the way
SELECT outbox.configure_topic('rp.own', max_attempts => 1);
SELECT outbox.enqueue('rp.own', '1') IS NOT NULL AS ok;
SELECT count(*) FROM outbox.claim(:a, 1, topics => '{rp.own, rp.rb}');
SELECT wait_for_leases('rp.own');
SELECT wait_for_leases('rp.rb');
BEGIN;
SELECT topic, status FROM outbox.queue WHERE topic IN ('rp.own', 'rp.rb') ORDER BY topic FOR UPDATE;
SELECT outbox.reap();
COMMIT;
SELECT topic, status, failure_reason FROM outbox.messages WHERE topic IN ('rp.own', 'rp.rb') ORDER BY topic;

-- messages that have expired fail, in any lane, but not while leased
SELECT outbox.enqueue('rp.x', 'ready', expires_at => clock_timestamp() + '50 ms') IS NOT NULL AS ok;
SELECT outbox.enqueue('rp.x', 'later', due_time => 'infinity', expires_at => clock_timestamp() + '50 ms') IS NOT NULL AS ok;
SET debug_discard_caches = 0;
SELECT outbox.enqueue('rp.y', 'leased', expires_at => clock_timestamp() + '50 ms') IS NOT NULL AS ok;
SELECT count(*) FROM outbox.claim(:a, 1000, topics => '{rp.y}');
RESET debug_discard_caches;
SELECT pg_sleep(0.06);
SELECT outbox.reap();
SELECT payload, status, failure_reason FROM outbox.messages WHERE topic IN ('rp.x', 'rp.y') ORDER BY id;

-- reap remembers how far it has looked, but what comes, or comes back, below that is found
INSERT INTO outbox.queue (topic, payload, expires_at) VALUES ('rp.z', 'first', now() - interval '1 hour');
SELECT outbox.reap(), outbox.reap() AS nothing;
INSERT INTO outbox.queue (topic, payload, expires_at) VALUES ('rp.z', 'second', now() - interval '2 hours');
BEGIN;
DELETE FROM outbox.queue WHERE topic = 'rp.z';
SELECT outbox.reap() AS nothing;
ROLLBACK;
BEGIN;
SELECT outbox.reap();
ROLLBACK;
SELECT outbox.reap(), outbox.reap() AS nothing;
BEGIN;
INSERT INTO outbox.queue (topic, payload, expires_at) VALUES ('rp.z', 'third', now() - interval '3 hours');
SAVEPOINT s;
INSERT INTO outbox.queue (topic, payload, expires_at) VALUES ('rp.z', 'never', now() - interval '3 hours');
ROLLBACK TO s;
COMMIT;
SELECT outbox.reap(), outbox.reap() AS nothing;
SELECT outbox.enqueue('rp.z', 'fourth') IS NOT NULL AS ok;
BEGIN;
UPDATE outbox.queue SET expires_at = now() - interval '4 hours' WHERE topic = 'rp.z';
SELECT outbox.reap(), outbox.reap() AS nothing;
COMMIT;
SELECT payload, status, failure_reason FROM outbox.messages WHERE topic = 'rp.z' ORDER BY id;

-- requeue: from the dead, as new; the same message
SELECT array_agg(id) AS dead FROM (SELECT id FROM outbox.dead_letters WHERE topic = 'rp' ORDER BY id) s \gset
SELECT message_id AS m FROM outbox.dead_letters WHERE id = (:'dead'::bigint[])[1] \gset
SELECT outbox.requeue(:'dead'::bigint[] || :'dead'::bigint[] || NULL::bigint || 0::bigint);
SELECT outbox.requeue(:'dead'::bigint[]);
SELECT payload, status, attempts, retry_count, failure_reason, last_error, next_attempt_at <= clock_timestamp() AS due
  FROM outbox.messages WHERE topic = 'rp' ORDER BY id;
SELECT id = (:'dead'::bigint[])[1] AS same_id FROM outbox.messages WHERE message_id = :'m';
SELECT payload, attempts FROM outbox.claim(:a, topics => '{rp}');
-- who brings back what has expired wants it delivered
SELECT array_agg(id) AS dead FROM outbox.dead_letters WHERE topic = 'rp.x' AND payload = 'ready' \gset
SELECT outbox.requeue(:'dead'::bigint[]);
SELECT payload, expires_at FROM outbox.messages m JOIN outbox.claim(:a, topics => '{rp.x}') c USING (id, payload);

-- redrive
SELECT outbox.enqueue_many('rd1', ARRAY['1', '2', '3']) IS NOT NULL AS ok;
SELECT outbox.enqueue_many('rd2', ARRAY['4', '5'], namespace => 'rdns') IS NOT NULL AS ok;
SELECT outbox.fail(:a, array_agg(id)) FROM outbox.claim(:a, topics => '{rd1,rd2}');
SELECT outbox.redrive('rd1', 'rdns'), outbox.redrive('rd1', 'default', 2), outbox.redrive(namespace => 'rdns'), outbox.redrive('rd1');
SELECT payload, status FROM outbox.messages WHERE topic IN ('rd1', 'rd2') ORDER BY id;
SELECT outbox.redrive() >= 0 AS all_the_rest;
SELECT count(*) FROM outbox.dead_letters;

\set VERBOSITY sqlstate
SELECT outbox.reap(0);
SELECT outbox.reap(-1);
SELECT outbox.requeue('{{1},{2}}');
SELECT outbox.redrive('');
SELECT outbox.redrive(topic => repeat('x', 256));
SELECT outbox.redrive(batch_limit => 0);
\set VERBOSITY default
SELECT outbox.requeue('{}');
DROP FUNCTION wait_for_leases;
SELECT outbox.reset_topic('rp');
