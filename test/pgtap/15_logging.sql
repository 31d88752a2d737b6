-- 15_logging.sql: what operations leave in the log
--
-- OBX-102..107, sections 8, 10 and 11 of the contract.

BEGIN;
\ir include/tools.sql
SELECT plan(8);

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

SELECT $$SELECT outbox.enqueue('obx-102', 'p', correlation_id => 'c "1"'), outbox.enqueue('obx-102', 'p', '')$$ AS script \gset
\ir include/log.sql
SELECT is(
    tap.logged(:'log'),
    ARRAY['LOG:  outbox enqueue: topic "obx-102", correlation_id "c "1""', 'LOG:  outbox enqueue: topic "obx-102"'],
    'OBX-102 an enqueue is logged with its topic, and its correlation id if it has one');

SELECT $$
    SELECT outbox.enqueue_many('obx-103', '{1,2,3}');
    SET LOCAL outbox.log_level = log;
    SELECT count(*) FROM outbox.claim(md5('a')::uuid, topics => '{obx-103}', batch_size => 2);
    SELECT count(*) FROM outbox.claim(md5('a')::uuid, topics => '{obx-103}');
$$ AS script \gset
\ir include/log.sql
SELECT is(
    ARRAY(SELECT l FROM unnest(tap.logged(:'log')) l WHERE l NOT LIKE '% enqueue: %'),
    '{"LOG:  outbox claim: count 2","LOG:  outbox claim: count 1"}',
    'OBX-103 a claim is logged with the number of messages');

SELECT $$
    SET LOCAL outbox.log_level = debug5;
    SELECT outbox.enqueue_many('obx-104', '{1,2}');
    SELECT count(*) FROM outbox.claim(md5('a')::uuid, topics => '{obx-104}');
    UPDATE outbox.queue SET locked_until = now() - interval '1 s' WHERE topic = 'obx-104';
    SET LOCAL outbox.log_level = log;
    SELECT outbox.reap();
$$ AS script \gset
\ir include/log.sql
SELECT is(
    tap.logged(:'log'), '{"LOG:  outbox reap: count 2"}',
    'OBX-104 a reap is logged with the number of messages');

SELECT $$
    SELECT outbox.start_join('obx-105', 2);
    SELECT outbox.attach_message_to_join(join_id, md5('m')::uuid) FROM outbox.joins WHERE grouping_key = 'obx-105';
    SET LOCAL outbox.log_level = debug5;
    SELECT outbox.enqueue_step(join_id, 'obx-105', s) FROM outbox.joins, unnest('{1,2}'::text[]) s WHERE grouping_key = 'obx-105';
    SELECT count(*) FROM outbox.claim(md5('a')::uuid, topics => '{obx-105}');
    SET LOCAL outbox.log_level = log;
    SELECT outbox.ack(md5('a')::uuid, array_agg(id)) FROM outbox.queue WHERE topic = 'obx-105' AND payload = '1';
    SELECT outbox.fail(md5('a')::uuid, array_agg(id)) FROM outbox.queue WHERE topic = 'obx-105';
    SELECT outbox.cancel_join(outbox.start_join('obx-105', 1));
$$ AS script \gset
\ir include/log.sql
SELECT is(
    ARRAY(SELECT l FROM unnest(tap.logged(:'log')) l WHERE l LIKE '%outbox join: %'),
    '{"LOG:  outbox join: ID started, grouping key \"obx-105\", 2 steps","LOG:  outbox join: ID gets message ID as a step","LOG:  outbox join: ID is complete, 1 completed, 1 failed","LOG:  outbox join: ID started, grouping key \"obx-105\", 1 steps","LOG:  outbox join: ID is cancelled"}',
    'OBX-105, JOIN-070, JOIN-071 a join is logged when it starts, when it gets a step, when it is complete, with its counts, and when it is cancelled');

SELECT $$
    SET LOCAL outbox.log_level = debug5;
    SELECT outbox.start_join('obx-106', 1);
    SELECT outbox.enqueue_join_wait(join_id, true, 'obx-106-next', 'p', 'obx-106-bad', 'p') FROM outbox.joins WHERE grouping_key = 'obx-106';
    SELECT outbox.enqueue_join_wait(join_id, true, 'obx-106-next', 'p') FROM outbox.joins WHERE grouping_key = 'obx-106';
    SET LOCAL outbox.log_level = log;
    SELECT outbox.process_join_waits();
    SET LOCAL outbox.log_level = debug5;
    SELECT outbox.cancel_join(join_id) FROM outbox.joins WHERE grouping_key = 'obx-106';
    SET LOCAL outbox.log_level = log;
    SELECT outbox.process_join_waits();
    SET LOCAL outbox.log_level = debug5;
    SELECT outbox.start_join('obx-106-gone', 1);
    SELECT outbox.enqueue_join_wait(join_id, true, 'obx-106-next', 'p') FROM outbox.joins WHERE grouping_key = 'obx-106-gone';
    DELETE FROM outbox.joins WHERE grouping_key = 'obx-106-gone';
    SET LOCAL outbox.log_level = log;
    SELECT outbox.process_join_waits();
$$ AS script \gset
\ir include/log.sql
SELECT is(
    ARRAY(SELECT l FROM unnest(tap.logged(:'log')) l WHERE l LIKE '%outbox join wait: %'),
    ARRAY['LOG:  outbox join wait: ID goes on waiting', 'LOG:  outbox join wait: ID goes on waiting',
          'LOG:  outbox join wait: ID is over, join cancelled, continuation "obx-106-bad"',
          'LOG:  outbox join wait: ID is over, join cancelled, continuation "none"',
          'LOG:  outbox join wait: ID fails, its join does not exist'],
    'OBX-106 each decision about a wait is logged');

-- Everything that is done to a message, with words in it that must not be told.
SELECT $$
    SELECT outbox.start_join('obx-107', 5);
    SELECT outbox.enqueue_join_wait(join_id, true, 'obx-107-next', 'sesame', 'obx-107-bad', 'sesame', headers => '{"h": "sesame"}') FROM outbox.joins WHERE grouping_key = 'obx-107';
    SELECT outbox.enqueue_step(join_id, t, 'sesame', headers => '{"h": "sesame"}') IS NULL FROM outbox.joins, unnest('{obx-107,obx-107,obx-107,obx-107}'::text[]) t WHERE grouping_key = 'obx-107';
    SELECT outbox.enqueue('obx-107-plain', '"sesame"'::jsonb) IS NULL;
    SELECT count(*) FROM outbox.claim(md5('a')::uuid, topics => '{obx-107}');
    SELECT outbox.nack(md5('a')::uuid, (array_agg(id))[1:1], 'sesame', delay => '0'), outbox.fail(md5('a')::uuid, (array_agg(id))[2:2], 'sesame'), outbox.ack(md5('a')::uuid, (array_agg(id))[3:3]) FROM outbox.leases WHERE topic = 'obx-107';
    UPDATE outbox.queue SET locked_until = now() - interval '1 s' WHERE topic = 'obx-107' AND status = 1;
    SELECT outbox.reap();
    SELECT count(*) FROM outbox.claim(md5('a')::uuid, topics => '{obx-107}', max_attempts => 1);
    SELECT outbox.redrive(topic => 'obx-107');
    SELECT outbox.cancel_join(join_id) FROM outbox.joins WHERE grouping_key = 'obx-107';
    SELECT outbox.process_join_waits();
    SELECT outbox.enqueue('join.wait', 'sesame') IS NULL;
    SELECT outbox.process_join_waits();
    SELECT 'to its end';
$$ AS script \gset
\set verbosity verbose
\ir include/log.sql
\set verbosity terse
SELECT is(
    ARRAY[:'log' LIKE '%to its end', :'log' LIKE '%sesame%'],
    '{t,f}',
    'OBX-107 payloads and headers are never logged (nor what handlers say in their errors: test/t/011_handlers.pl)');

SELECT is(
    ARRAY[boot_val, context] || ARRAY(SELECT v FROM unnest(enumvals) v WHERE v IN ('debug1', 'log', 'notice', 'error') ORDER BY 1),
    '{debug1,superuser,debug1,log,notice}',
    'OBX-102 (level) outbox.log_level is debug1 unless set, by a superuser, and raises no error')
  FROM pg_settings WHERE name = 'outbox.log_level';

SELECT $$SELECT outbox.enqueue('obx-102', 'p'); SET LOCAL outbox.log_level = debug1; SELECT outbox.enqueue('obx-102', 'p') IS NULL$$ AS script \gset
\set level notice
\ir include/log.sql
SELECT is(
    tap.logged(:'log'), '{"NOTICE:  outbox enqueue: topic \"obx-102\""}',
    'OBX-102 (settings) operations are logged at outbox.log_level, for whoever listens to that level');

SELECT * FROM finish();
ROLLBACK;
