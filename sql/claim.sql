-- claim
\set a '''aaaaaaaa-0000-4000-8000-000000000001'''
\set b '''bbbbbbbb-0000-4000-8000-000000000002'''
\set t1 '''11111111-1111-4111-8111-111111111111'''
\set t2 '''22222222-2222-4222-8222-222222222222'''

-- what a claim does to a message, and what it hands out
SELECT outbox.enqueue('cl', 'p', 'corr', tenant_id => :t1, headers => '{"h": 1}') AS m \gset
SELECT message_id = :'m' AS same, namespace, topic, payload, headers, correlation_id, tenant_id,
       dedupe_key, stream_id, attempts, retry_count, due_time, owner_token,
       locked_until - clock_timestamp() BETWEEN '29 s' AND '30 s' AS half_a_minute,
       created_at <= clock_timestamp() AS created
  FROM outbox.claim(:a, topics => '{cl}') \gx
SELECT status, owner_token, attempts, retry_count, is_processed, locked_until > clock_timestamp() AS leased
  FROM outbox.messages WHERE message_id = :'m';
-- without an owner_token each call makes one
SELECT outbox.enqueue_many('cl.own', ARRAY['1', '2', '3']) IS NOT NULL AS ok;
SELECT owner_token AS o FROM outbox.claim(batch_size => 1, topics => '{cl.own}') \gset
SELECT count(*), count(DISTINCT owner_token) AS owners, bool_and(owner_token > :'o') AS later FROM outbox.claim(NULL, topics => '{cl.own}');
SELECT payload, owner_token = :'o' AS o FROM outbox.messages WHERE topic = 'cl.own' ORDER BY id;
SELECT outbox.ack(:'o', array_agg(id)) FROM outbox.messages WHERE topic = 'cl.own';
SELECT payload, status, processed_by = :'o' AS o FROM outbox.messages WHERE topic = 'cl.own' ORDER BY id;
SELECT outbox.ack(owner_token, array_agg(id)) FROM outbox.messages WHERE topic = 'cl.own' AND status = 1 GROUP BY owner_token;
BEGIN;
SELECT outbox.enqueue('cl.own', '4') IS NOT NULL AS ok;
SELECT count(*) > 0 AS leased, count(DISTINCT owner_token) AS owners FROM outbox.claim();
ROLLBACK;
-- leased: no claim gets it, not even the owner's
SELECT count(*) FROM outbox.claim(:b, topics => '{cl}');
SELECT count(*) FROM outbox.claim(:a, topics => '{cl}');
-- rolled back: it is there again, as before
SELECT outbox.enqueue('cl.rb', 'p') IS NOT NULL AS ok;
BEGIN;
SELECT payload, attempts FROM outbox.claim(:a, topics => '{cl.rb}');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT payload, attempts FROM outbox.claim(:a, topics => '{cl.rb}');
ROLLBACK TO s;
SELECT payload, attempts FROM outbox.claim(:b, topics => '{cl.rb}');
COMMIT;
SELECT attempts, owner_token FROM outbox.messages WHERE topic = 'cl.rb';

-- the batch, in order; finding nothing is no error
SELECT cardinality(outbox.enqueue_many('cl.batch', ARRAY(SELECT i::text FROM generate_series(1, 60) i))) AS n;
SELECT string_agg(payload, ',') FROM outbox.claim(:a, 60, 3, topics => '{cl.batch}');
SELECT count(*), min(payload::int), max(payload::int) FROM outbox.claim(:a, topics => '{cl.batch}');
SELECT count(*), min(payload::int), max(payload::int) FROM outbox.claim(:a, batch_size => 10000, topics => '{cl.batch}');
SELECT count(*) FROM outbox.claim(:a, topics => '{cl.batch}');
SELECT count(*) FROM outbox.claim(:a, topics => '{no.such.topic}');
SELECT count(*) FROM outbox.claim(:a, topics => '{}');
SELECT count(*) FROM outbox.claim(:a, namespace => 'no such namespace');

-- by due time, then by age, across topics
SELECT outbox.enqueue('cl.o1', 'c', due_time => clock_timestamp() - interval '1 h') IS NOT NULL AS ok;
SELECT outbox.enqueue('cl.o2', 'd') IS NOT NULL AS ok;
SELECT outbox.enqueue('cl.o1', 'e') IS NOT NULL AS ok;
SELECT outbox.enqueue('cl.o3', 'later', due_time => clock_timestamp() + interval '1 h') IS NOT NULL AS ok;
SELECT outbox.enqueue('cl.o2', 'f') IS NOT NULL AS ok;
SELECT payload FROM outbox.claim(:a, batch_size => 3, topics => '{cl.o1,cl.o2,cl.o3,cl.o1}');
SELECT payload FROM outbox.claim(:a, topics => '{cl.o2,cl.o1,cl.o3}');

-- namespace, topics, tenant; what is not wanted is there for others
SELECT outbox.enqueue('cl.f', 'n1', namespace => 'cl1', tenant_id => :t1) IS NOT NULL AS ok;
SELECT outbox.enqueue('cl.f', 'n2', namespace => 'cl2', tenant_id => :t2) IS NOT NULL AS ok;
SELECT outbox.enqueue('cl.g', 'g1', namespace => 'cl1', tenant_id => :t2) IS NOT NULL AS ok;
SELECT outbox.enqueue('cl.g', 'g2', namespace => 'cl1') IS NOT NULL AS ok;
BEGIN;
SELECT payload FROM outbox.claim(:a, namespace => 'cl1');
ROLLBACK;
BEGIN;
SELECT payload FROM outbox.claim(:a, topics => '{cl.f}');
ROLLBACK;
BEGIN;
SELECT payload FROM outbox.claim(:a, tenant_id => :t2, topics => '{cl.f,cl.g}');
ROLLBACK;
SELECT payload FROM outbox.claim(:a, namespace => 'cl1', topics => '{cl.f,cl.g}', tenant_id => :t2);
SELECT payload FROM outbox.claim(:a, namespace => 'cl1', topics => '{cl.f,cl.g}', tenant_id => :t1);
SELECT payload FROM outbox.claim(:a, topics => '{cl.f,cl.g}');

-- the topic of join waits only for claims that name it
SELECT outbox.enqueue('join.wait', '{}', namespace => 'cl.join') IS NOT NULL AS ok;
SELECT outbox.enqueue('cl.j', 'p', namespace => 'cl.join') IS NOT NULL AS ok;
SELECT topic FROM outbox.claim(:a, namespace => 'cl.join');
SELECT topic FROM outbox.claim(:a, namespace => 'cl.join', topics => '{join.wait}');

-- a lease that has ended can be claimed at once, and the attempts count on
SELECT outbox.enqueue('cl.exp', 'p') IS NOT NULL AS ok;
SELECT attempts FROM outbox.claim(:a, 1, topics => '{cl.exp}');
SELECT attempts, owner_token FROM outbox.claim(:b, 1, topics => '{cl.exp}', wait_ms => 3000);
SELECT attempts, owner_token FROM outbox.claim(:a, 1, topics => '{cl.exp}', wait_ms => 3000);
-- at the maximum it fails instead: that of the call, the topic, or the setting
SELECT count(*) FROM outbox.claim(:b, topics => '{cl.exp}', wait_ms => 1200, max_attempts => 3);
SELECT status, attempts, failure_reason, is_processed FROM outbox.messages WHERE topic = 'cl.exp';
SELECT outbox.configure_topic('cl.max', max_attempts => 1);
SELECT outbox.enqueue('cl.max', 'p') IS NOT NULL AS ok;
SELECT attempts FROM outbox.claim(:a, 1, topics => '{cl.max}');
SELECT count(*) FROM outbox.claim(:b, topics => '{cl.max}', wait_ms => 1200);
SELECT status, attempts, failure_reason FROM outbox.messages WHERE topic = 'cl.max';
SET outbox.max_attempts = 1;
SELECT outbox.enqueue('cl.max2', 'p') IS NOT NULL AS ok;
SELECT attempts FROM outbox.claim(:a, 1, topics => '{cl.max2}');
SELECT count(*) FROM outbox.claim(:b, topics => '{cl.max2}', wait_ms => 1200);
SELECT status, attempts, failure_reason FROM outbox.messages WHERE topic = 'cl.max2';
RESET outbox.max_attempts;

-- what has expired is not delivered
SELECT outbox.enqueue('cl.gone', 'old', expires_at => clock_timestamp() - interval '1 s') IS NOT NULL AS ok;
SELECT outbox.enqueue('cl.gone', 'never', expires_at => '-infinity') IS NOT NULL AS ok;
SELECT outbox.enqueue('cl.gone', 'good', expires_at => 'infinity') IS NOT NULL AS ok;
SELECT payload FROM outbox.claim(:a, topics => '{cl.gone}');
SELECT payload, status, failure_reason, attempts FROM outbox.messages WHERE topic = 'cl.gone' ORDER BY id;

-- waiting: for what comes due, or until the time is over
SELECT outbox.enqueue('cl.wait', 'p', due_time => clock_timestamp() + interval '300 ms') IS NOT NULL AS ok;
SELECT payload FROM outbox.claim(:a, topics => '{cl.wait}', wait_ms => 5000);
SELECT clock_timestamp() AS before \gset
SELECT count(*) FROM outbox.claim(:a, topics => '{cl.wait}', wait_ms => 200);
SELECT clock_timestamp() - :'before' BETWEEN '200 ms' AND '2 s' AS waited;
SET statement_timeout = 200;
\set VERBOSITY sqlstate
SELECT count(*) FROM outbox.claim(:a, topics => '{cl.wait}', wait_ms => 60000);
\set VERBOSITY default
RESET statement_timeout;

-- settings are used for what is not given
SET outbox.batch_size = 2;
SET outbox.lease_seconds = 100;
SELECT cardinality(outbox.enqueue_many('cl.set', ARRAY['1', '2', '3'])) AS n;
SELECT payload, locked_until - clock_timestamp() BETWEEN '99 s' AND '100 s' AS lease FROM outbox.claim(:a, topics => '{cl.set}');
RESET outbox.batch_size;
RESET outbox.lease_seconds;

-- other isolation levels
SELECT cardinality(outbox.enqueue_many('cl.iso', ARRAY['1', '2', '3'])) AS n;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT payload FROM outbox.claim(:a, batch_size => 1, topics => '{cl.iso}');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT payload FROM outbox.claim(:a, batch_size => 1, topics => '{cl.iso}');
COMMIT;

-- what is refused
\set VERBOSITY sqlstate
SELECT * FROM outbox.claim(NULL, 0);
SELECT * FROM outbox.claim(:a, 0);
SELECT * FROM outbox.claim(:a, -1);
SELECT * FROM outbox.claim(:a, 86401);
SELECT * FROM outbox.claim(:a, 2147483647);
SELECT * FROM outbox.claim(:a, batch_size => 0);
SELECT * FROM outbox.claim(:a, batch_size => 10001);
SELECT * FROM outbox.claim(:a, batch_size => -2147483648);
SELECT * FROM outbox.claim(:a, namespace => '');
SELECT * FROM outbox.claim(:a, namespace => repeat('x', 256));
SELECT * FROM outbox.claim(:a, topics => ARRAY['a', NULL]);
SELECT * FROM outbox.claim(:a, topics => ARRAY[['a'], ['b']]);
SELECT * FROM outbox.claim(:a, max_attempts => 0);
SELECT * FROM outbox.claim(:a, max_attempts => -1);
SELECT * FROM outbox.claim(:a, wait_ms => -1);
SELECT * FROM outbox.claim(:a, wait_ms => 60001);
SELECT * FROM outbox.claim(:a, wait_ms => NULL, topics => '{none}');
BEGIN READ ONLY;
SELECT * FROM outbox.claim(:a);
ROLLBACK;
BEGIN READ ONLY;
SELECT outbox.enqueue('cl', 'p');
ROLLBACK;
BEGIN READ ONLY;
SELECT outbox.ack(:a, '{1}');
ROLLBACK;
\set VERBOSITY default

-- a claim that finds nothing leaves no index locked whose table is not, even the
-- first one of a session
\c -
BEGIN;
SELECT count(*) FROM outbox.claim('aaaaaaaa-0000-4000-8000-000000000001', topics => '{nothing}');
SELECT l.relation::regclass, l.mode
  FROM pg_locks l
  JOIN pg_index i ON i.indexrelid = l.relation AND i.indrelid = 'outbox.queue'::regclass
 WHERE l.pid = pg_backend_pid()
   AND NOT EXISTS (SELECT FROM pg_locks t WHERE t.pid = l.pid AND t.relation = i.indrelid);
COMMIT;
