-- 23_founding.sql: what the founding texts ask for, and no other file looks at
--
-- The numbers are those of the founding texts.

BEGIN;
\ir include/tools.sql
\ir include/joins.sql
SELECT plan(6);

SELECT outbox.enqueue('Case.Of', 'upper'), outbox.enqueue('case.of', 'lower') \g /dev/null
SELECT is(
    ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{case.of}'))
        || ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{Case.Of}')),
    '{lower,upper}',
    'founding OBX-010 topics are told apart by case');

SET LOCAL outbox.backoff_base = '200ms';
SET LOCAL outbox.backoff_jitter = off;
SELECT tap.lease('f-040', 'p') AS leased \gset
SELECT outbox.nack(tap.alice(), :'leased') \gset
SELECT count(*) AS early FROM outbox.claim(tap.bob(), topics => '{f-040}') \gset
SELECT pg_sleep_until(next_attempt_at) FROM outbox.queue WHERE topic = 'f-040' \g /dev/null
SELECT is(
    ROW(:early, count(*), max(attempts), max(owner_token::text) = tap.bob()::text)::text, '(0,1,2,t)',
    'founding OBX-040 when the backoff is over, and not before, what was abandoned is claimed again')
  FROM outbox.claim(tap.bob(), topics => '{f-040}');
RESET outbox.backoff_base;
RESET outbox.backoff_jitter;

SELECT tap.start('f-047', 2, 'a', 'b') AS failing \gset
SAVEPOINT before_it_fails;
SELECT outbox.fail(tap.alice(), tap.steps('f-047', 'a')) \gset
SELECT tap.join(:'failing') || (SELECT string_agg(status::text, ' ' ORDER BY payload) FROM outbox.messages WHERE topic = 'f-047') AS failed \gset
ROLLBACK TO SAVEPOINT before_it_fails;
SELECT is(
    ARRAY[:'failed', tap.join(:'failing') || (SELECT string_agg(status::text, ' ' ORDER BY payload) FROM outbox.messages WHERE topic = 'f-047')],
    ARRAY['pending 0+1/2 {2,0}3 1', 'pending 0+0/2 {0,0}1 1'],
    'founding OBX-047 a message fails and its join counts it, or neither');

SELECT tap.lease('f-051', 'p', 'q') AS leased \gset
SELECT tap.end_leases('f-051'), outbox.reap() \g /dev/null
SELECT is(
    ARRAY(SELECT payload || attempts FROM outbox.claim(tap.bob(), topics => '{f-051}') ORDER BY id), '{p2,q2}',
    'founding OBX-051 what was reaped is claimed by the next who asks');

SELECT is(
    (SELECT string_agg(a.attname, ' ') FROM pg_attribute a
      WHERE a.attrelid IN ('outbox.queue'::regclass, 'outbox.archive'::regclass, 'outbox.dead'::regclass)
        AND a.attname ~ 'join'), NULL,
    'founding JOIN-033, JOIN-092 messages have no columns for joins');

SELECT isnt(
    (SELECT max(i.indexrelid::regclass::text) FROM pg_index i
       JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
      WHERE i.indrelid = 'outbox.joins'::regclass AND a.attname = 'grouping_key'), NULL,
    'founding JOIN-082 joins are found by their grouping key in an index');

SELECT * FROM finish();
ROLLBACK;
