-- 15_logging.sql: what operations leave in the log
--
-- OBX-102, 103, 106, 125, JOIN-070..073, and what section 10 of the contract promises
-- besides. What is logged of handlers and of databases, OBX-071, 104, 105 and 107, is in
-- test/t/011_handlers.pl and test/t/010_workers.pl.

BEGIN;
\ir include/tools.sql
SELECT plan(10);

LOAD 'outbox';

-- The lines that are messages, without the ids that differ from run to run.
CREATE FUNCTION tap.logged(log text)
RETURNS text[]
LANGUAGE sql
AS $$
    SELECT coalesce(array_agg(regexp_replace(line, '[0-9a-f]{8}-[0-9a-f-]{27}', 'ID', 'g') ORDER BY n), '{}')
      FROM regexp_split_to_table(log, '\n') WITH ORDINALITY AS l (line, n)
     WHERE line ~ '^[A-Z]+[0-9]*:  '
$$;

SELECT $$
    SELECT outbox.enqueue('obx-102', 'p', correlation_id => 'c "1"'), outbox.enqueue('obx-102', 'p', '');
    SELECT outbox.try_enqueue('obx-102-try', '{"j": 1}'::jsonb, correlation_id => 'c2');
    SELECT FROM outbox.enqueue_batch('[{"topic": "obx-102-batch", "payload": "p", "correlation_id": "c3"}]');
$$ AS script \gset
\ir include/log.sql
SELECT is(
    tap.logged(:'log'),
    ARRAY['LOG:  outbox enqueue: topic "obx-102", correlation_id "c "1""', 'LOG:  outbox enqueue: topic "obx-102"',
          'LOG:  outbox enqueue: topic "obx-102-try", correlation_id "c2"', 'LOG:  outbox enqueue: topic "obx-102-batch", correlation_id "c3"'],
    'OBX-102: an enqueue is logged with its topic, and its correlation id if it has one');

SELECT $$
    SELECT outbox.enqueue_many('obx-103', '{1,2,3}');
    SET LOCAL outbox.log_level = log;
    SELECT count(*) FROM outbox.claim(md5('a')::uuid, topics => '{obx-103}', batch_size => 2);
    RESET outbox.log_level;
    SET LOCAL client_min_messages = debug1;
    SELECT count(*) FROM outbox.claim(md5('a')::uuid, topics => '{obx-103}');
    SELECT count(*) FROM outbox.claim(md5('a')::uuid, topics => '{obx-103}');
$$ AS script \gset
\ir include/log.sql
SELECT is(
    ARRAY(SELECT l FROM unnest(tap.logged(:'log')) l WHERE l LIKE '% claim: %'),
    '{"LOG:  outbox claim: count 2","DEBUG:  outbox claim: count 1"}',
    'OBX-103: a claim that finds something is logged with the number of messages, at DEBUG unless outbox.log_level is set');

SELECT $$
    SET LOCAL outbox.log_level = debug5;
    SELECT outbox.enqueue_many('obx-106', '{1,2}');
    SELECT count(*) FROM outbox.claim(md5('a')::uuid, topics => '{obx-106}');
    UPDATE outbox.queue SET locked_until = now() - interval '1 s' WHERE topic = 'obx-106';
    SET LOCAL outbox.log_level = log;
    SELECT outbox.reap();
$$ AS script \gset
\ir include/log.sql
SELECT is(
    tap.logged(:'log'), '{"LOG:  outbox reap: count 2"}',
    'OBX-106: a reap is logged with the number of messages');

SELECT $$
    SELECT outbox.start_join('join-070', 2), outbox.start_join('join-070-b', 1), outbox.start_join(NULL, 3);
    SELECT outbox.attach_message_to_join(join_id, md5('m')::uuid), outbox.attach_message_to_join(join_id, md5('m')::uuid) FROM outbox.joins WHERE grouping_key = 'join-070';
    SELECT 'the join is ' || join_id || ', the member ' || md5('m')::uuid FROM outbox.joins WHERE grouping_key = 'join-070';
$$ AS script \gset
\ir include/log.sql
SELECT substring(:'log' FROM 'the join is (\S+), the member') AS j, substring(:'log' FROM 'the member (\S+)') AS m \gset
SELECT is(
    ARRAY[:'log' LIKE '%outbox join: ' || :'j' || ' started, grouping key "join-070", 2 steps%']::text
        || ARRAY(SELECT l FROM unnest(tap.logged(:'log')) l WHERE l LIKE '%started%')::text,
    '{t}' || ARRAY['LOG:  outbox join: ID started, grouping key "join-070", 2 steps', 'LOG:  outbox join: ID started, grouping key "join-070-b", 1 steps',
                   'LOG:  outbox join: ID started, grouping key "", 3 steps']::text,
    'JOIN-070: the start of a join is logged with its id, its grouping key and its steps');
SELECT is(
    ARRAY(SELECT l FROM regexp_split_to_table(:'log', '\n') l WHERE l LIKE '%as a step%'),
    ARRAY[format('LOG:  outbox join: %s gets message %s as a step', :'j', :'m')],
    'JOIN-071: a new member is logged with the ids of join and message, once');

SELECT $$
    SET LOCAL outbox.log_level = debug5;
    SELECT outbox.start_join('join-072-' || n, 2) FROM generate_series(1, 3) n;
    SELECT outbox.enqueue_step(join_id, grouping_key, s) FROM outbox.joins, unnest('{1,2}'::text[]) s WHERE grouping_key LIKE 'join-072%';
    SELECT count(*) FROM outbox.claim(md5('a')::uuid, topics => '{join-072-1,join-072-2,join-072-3}');
    SET LOCAL outbox.log_level = log;
    SELECT outbox.ack(md5('a')::uuid, array_agg(id)) FROM outbox.queue WHERE topic LIKE 'join-072%' AND (payload = '1' OR topic = 'join-072-1');
    SELECT outbox.fail(md5('a')::uuid, array_agg(id)) FROM outbox.queue WHERE topic = 'join-072-2';
    SELECT outbox.cancel_join(join_id) FROM outbox.joins WHERE grouping_key = 'join-072-3';
    SELECT 'join ' || join_id || ' is ' || grouping_key FROM outbox.joins WHERE grouping_key LIKE 'join-072%';
$$ AS script \gset
\ir include/log.sql
SELECT is(
    ARRAY(SELECT (SELECT (regexp_match(:'log', 'join ' || (regexp_match(l, 'join: (\S+)'))[1] || ' is (join-072-.)'))[1])
                 || ' ' || regexp_replace(l, '^.*join: \S+ ', '')
            FROM regexp_split_to_table(:'log', '\n') l WHERE l LIKE '%outbox join: %' ORDER BY 1),
    ARRAY['join-072-1 is complete, status completed, 2 completed, 0 failed', 'join-072-2 is complete, status failed, 1 completed, 1 failed',
          'join-072-3 is cancelled'],
    'JOIN-072: the completion of a join is logged with its status and its counts');

SELECT $$
    SET LOCAL outbox.log_level = debug5;
    SELECT outbox.start_join('join-073', 1);
    SELECT outbox.enqueue_join_wait(join_id, true, 'join-073-next', 'p', 'join-073-bad', 'p') FROM outbox.joins WHERE grouping_key = 'join-073';
    SELECT outbox.enqueue_join_wait(join_id, true, 'join-073-next', 'p') FROM outbox.joins WHERE grouping_key = 'join-073';
    SET LOCAL outbox.log_level = log;
    SELECT outbox.process_join_waits();
    SET LOCAL outbox.log_level = debug5;
    SELECT outbox.cancel_join(join_id) FROM outbox.joins WHERE grouping_key = 'join-073';
    SET LOCAL outbox.log_level = log;
    SELECT outbox.process_join_waits();
    SET LOCAL outbox.log_level = debug5;
    SELECT outbox.start_join('join-073-gone', 1);
    SELECT outbox.enqueue_join_wait(join_id, true, 'join-073-next', 'p') FROM outbox.joins WHERE grouping_key = 'join-073-gone';
    DELETE FROM outbox.joins WHERE grouping_key = 'join-073-gone';
    SET LOCAL outbox.log_level = log;
    SELECT outbox.process_join_waits();
    SET LOCAL outbox.log_level = debug5;
    SELECT outbox.enqueue_step(outbox.start_join('join-073-done', 1), 'join-073-done', 'p');
    SELECT outbox.enqueue_join_wait(join_id, true, 'join-073-next', 'p') FROM outbox.joins WHERE grouping_key = 'join-073-done';
    SELECT outbox.ack(md5('a')::uuid, array_agg(id)) FROM outbox.claim(md5('a')::uuid, topics => '{join-073-done}');
    SET LOCAL outbox.log_level = log;
    SELECT outbox.process_join_waits();
$$ AS script \gset
\ir include/log.sql
SELECT is(
    ARRAY(SELECT l FROM unnest(tap.logged(:'log')) l WHERE l LIKE '%outbox join wait: %'),
    ARRAY['LOG:  outbox join wait: ID goes on waiting', 'LOG:  outbox join wait: ID goes on waiting',
          'LOG:  outbox join wait: ID is over, join cancelled, continuation "join-073-bad"',
          'LOG:  outbox join wait: ID is over, join cancelled, continuation "none"',
          'LOG:  outbox join wait: ID fails, its join does not exist',
          'LOG:  outbox join wait: ID is over, join completed, continuation "join-073-next"'],
    'JOIN-073: each decision about a wait is logged: to go on waiting, which continuation if any, and to fail');

-- Everything that is done to a message, with words in it that must not be told.
SELECT $$
    SELECT outbox.start_join('obx-125', 5);
    SELECT outbox.enqueue_join_wait(join_id, true, 'obx-125-next', 'sesame', 'obx-125-bad', 'sesame', headers => '{"h": "sesame"}') FROM outbox.joins WHERE grouping_key = 'obx-125';
    SELECT outbox.enqueue_step(join_id, t, 'sesame', headers => '{"h": "sesame"}') IS NULL FROM outbox.joins, unnest('{obx-125,obx-125,obx-125,obx-125}'::text[]) t WHERE grouping_key = 'obx-125';
    SELECT outbox.enqueue('obx-125-plain', '"sesame"'::jsonb) IS NULL;
    SELECT count(*) FROM outbox.claim(md5('a')::uuid, topics => '{obx-125}');
    SELECT outbox.nack(md5('a')::uuid, (array_agg(id))[1:1], 'sesame', delay => '0'), outbox.fail(md5('a')::uuid, (array_agg(id))[2:2], 'sesame'), outbox.ack(md5('a')::uuid, (array_agg(id))[3:3]) FROM outbox.leases WHERE topic = 'obx-125';
    UPDATE outbox.queue SET locked_until = now() - interval '1 s' WHERE topic = 'obx-125' AND status = 1;
    SELECT outbox.reap();
    SELECT count(*) FROM outbox.claim(md5('a')::uuid, topics => '{obx-125}', max_attempts => 1);
    SELECT outbox.redrive(topic => 'obx-125');
    SELECT outbox.cancel_join(join_id) FROM outbox.joins WHERE grouping_key = 'obx-125';
    SELECT outbox.process_join_waits();
    SELECT outbox.enqueue('join.wait', 'sesame') IS NULL;
    SELECT outbox.process_join_waits();
    SELECT 'to its end';
$$ AS script \gset
\set verbosity verbose
\set level debug5
\ir include/log.sql
\set level log
\set verbosity terse
SELECT is(
    ARRAY[:'log' LIKE '%to its end', :'log' LIKE '%sesame%'],
    '{t,f}',
    'OBX-125: whatever is done to a message, its payload, its headers and its errors are not logged, at any level');

SELECT is(
    ARRAY[boot_val, context] || ARRAY(SELECT v FROM unnest(enumvals) v WHERE v IN ('debug1', 'log', 'notice', 'error') ORDER BY 1),
    '{debug1,superuser,debug1,log,notice}',
    'section 10: outbox.log_level is debug1 unless set, by a superuser, and raises no error')
  FROM pg_settings WHERE name = 'outbox.log_level';

SELECT $$SELECT outbox.enqueue('s10-level', 'p'); SET LOCAL outbox.log_level = debug1; SELECT outbox.enqueue('s10-level', 'p') IS NULL$$ AS script \gset
\set level notice
\ir include/log.sql
SELECT is(
    tap.logged(:'log'), '{"NOTICE:  outbox enqueue: topic \"s10-level\""}',
    'section 10: operations are logged at outbox.log_level, to each client and log that takes that level');

SELECT * FROM finish();
ROLLBACK;
