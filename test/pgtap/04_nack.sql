-- 04_nack.sql: handing messages back
--
-- OBX-035..041, and what section 4 of the contract promises besides. Nack is abandon
-- by its shorter name. The backoff has a file of its own, 07_retry.sql.

BEGIN;
\ir include/tools.sql
SELECT plan(11);

SELECT tap.lease('obx-035', '1', '2', 'not') AS leased \gset
SELECT outbox.nack(tap.alice(), (:'leased'::bigint[])[1:1]), outbox.abandon(tap.alice(), (:'leased'::bigint[])[2:2]) AS abandoned \gset
SELECT is(
    ARRAY(SELECT concat_ws(' ', payload, status, owner_token = tap.alice(), locked_until IS NOT NULL, is_processed)
            FROM outbox.messages WHERE topic = 'obx-035' ORDER BY id),
    '{"1 0 f f","2 0 f f","not 1 t t f"}',
    'OBX-035, SHARED-35: nack, or abandon, leaves a message without a lease and without an owner');

SELECT tap.lease('obx-036', '1', '2', '3') AS leased \gset
SELECT outbox.nack(tap.alice(), (:'leased'::bigint[])[1:2], delay => '0') \gset
SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{obx-036}') \gset
SELECT outbox.abandon(tap.alice(), (:'leased'::bigint[])[2:3], delay => '0') \gset
SELECT is(
    ARRAY(SELECT payload || ' ' || retry_count FROM outbox.messages WHERE topic = 'obx-036' ORDER BY id), '{"1 1","2 2","3 1"}',
    'OBX-036: each nack adds one to the retry_count of each message');

SET LOCAL outbox.backoff_jitter = off;
SELECT tap.lease('obx-037', VARIADIC ARRAY(SELECT i::text FROM generate_series(0, 4) i)) AS leased \gset
UPDATE outbox.queue SET retry_count = payload::integer WHERE topic = 'obx-037';
SELECT clock_timestamp() AS before, outbox.nack(tap.alice(), :'leased'), clock_timestamp() AS after \gset
SELECT is(
    ARRAY(SELECT next_attempt_at BETWEEN :'before'::timestamptz + interval '1 s' * n AND :'after'::timestamptz + interval '1 s' * n
            FROM (SELECT id, next_attempt_at, 2 ^ payload::integer AS n FROM outbox.messages WHERE topic = 'obx-037') m ORDER BY id),
    '{t,t,t,t,t}',
    'OBX-037: nack puts the next attempt off from the clock by a delay that doubles with the retry_count');

SELECT tap.lease('obx-038', '1', '2') AS leased \gset
SELECT ARRAY[outbox.abandon(tap.bob(), :'leased'), outbox.nack(tap.bob(), :'leased')] AS by_another \gset
SELECT is(
    :'by_another'
        || ARRAY(SELECT format('%s %s %s', status, retry_count, owner_token = tap.alice()) FROM outbox.messages WHERE topic = 'obx-038')::text
        || outbox.abandon(tap.alice(), :'leased'),
    '{0,0}{"1 0 t","1 0 t"}2',
    'OBX-038, QUEUE-13: nack touches only messages whose owner_token is the caller''s');

SELECT tap.lease('obx-039', '1', '2', '3') AS leased, outbox.enqueue('obx-039', 'another''s') AS e1 \gset
SELECT array_agg(id) AS all FROM outbox.queue WHERE topic = 'obx-039' \gset
SELECT count(*) FROM outbox.claim(tap.bob(), topics => '{obx-039}') \gset
SELECT ARRAY[outbox.ack(tap.alice(), (:'leased'::bigint[])[1:1]),
             outbox.abandon(tap.alice(), :'all'::bigint[] || (:'leased'::bigint[])[2:3] || '{NULL,0,-1,9223372036854775807}'),
             outbox.nack(tap.alice(), :'leased'), outbox.nack(tap.alice(), '{}')] AS changed \gset
SELECT is(
    :'changed' || ARRAY(SELECT status || ' ' || retry_count FROM outbox.messages WHERE topic = 'obx-039' ORDER BY id)::text,
    '{1,2,0,0}{"2 0","0 1","0 1","1 0"}',
    'OBX-039, QUEUE-14: unknown, finished, foreign, null and duplicate ids are ignored without an error, the others are handed back');

SET LOCAL outbox.backoff_base = '300ms';
SELECT tap.lease('obx-040', 'p') AS leased \gset
SELECT outbox.nack(tap.alice(), :'leased') \gset
SELECT count(*) AS early FROM outbox.claim(tap.bob(), topics => '{obx-040}') \gset
SELECT pg_sleep_until(next_attempt_at) FROM outbox.messages WHERE topic = 'obx-040' \g /dev/null
SELECT is(
    ROW(:early, count(*), max(attempts), max(owner_token::text) = tap.bob()::text)::text, '(0,1,2,t)',
    'OBX-040: when the backoff is over, and not before, what was abandoned is claimed again')
  FROM outbox.claim(tap.bob(), topics => '{obx-040}');
RESET outbox.backoff_base;
RESET outbox.backoff_jitter;

SELECT tap.lease('obx-041', 'told', 'not told') AS leased \gset
SELECT outbox.abandon(tap.alice(), (:'leased'::bigint[])[1:1], 'first error', '0'), outbox.nack(tap.alice(), (:'leased'::bigint[])[2:2], delay => '0') AS n \gset
SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{obx-041}') \gset
SELECT coalesce(last_error, 'none') AS first FROM outbox.messages WHERE topic = 'obx-041' AND payload = 'told' \gset
SELECT outbox.nack(tap.alice(), (:'leased'::bigint[])[1:1], 'second "error"', '0') \gset
SELECT is(
    ARRAY[:'first'] || ARRAY(SELECT last_error FROM outbox.messages WHERE topic = 'obx-041' ORDER BY id), '{first error,"second \"error\"",NULL}',
    'OBX-041, SHARED-35: nack records the error that the caller gives, the last one of several');

-- Besides

SELECT tap.lease('s4-counts', 'p') AS leased \gset
SELECT outbox.nack(tap.alice(), :'leased', delay => '0') \gset
SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{s4-counts}') \gset
SELECT outbox.nack(tap.alice(), :'leased', delay => '0') \gset
SELECT results_eq(
    $$SELECT attempts, retry_count FROM outbox.claim(tap.bob(), topics => '{s4-counts}')$$,
    $$VALUES (3, 2)$$,
    'section 4: nack adds nothing to attempts, which the next claim does');

SELECT tap.lease('s4-delay', 'a day', 'at once') AS leased \gset
SELECT clock_timestamp() AS before,
       outbox.nack(tap.alice(), (:'leased'::bigint[])[1:1], delay => '1 day'),
       outbox.nack(tap.alice(), (:'leased'::bigint[])[2:2], delay => '0') AS second \gset
SELECT string_agg(payload, ',') AS claimable FROM outbox.claim(tap.bob(), topics => '{s4-delay}') \gset
SELECT is(
    ROW(:'claimable', next_attempt_at BETWEEN :'before'::timestamptz + interval '1 day'
                                          AND clock_timestamp() + interval '1 day')::text,
    '("at once",t)',
    'section 4: a delay that is given takes the place of the backoff')
  FROM outbox.messages WHERE topic = 's4-delay' AND payload = 'a day';

SELECT outbox.configure_topic('s4-enough-policy', max_attempts => 1) \gset
SELECT tap.lease('s4-enough', 'at the maximum', 'below') AS leased,
       tap.lease('s4-enough-policy', 'by policy') AS by_policy \gset
SELECT outbox.nack(tap.alice(), (:'leased'::bigint[])[1:1], 'enough', max_attempts => 1),
       outbox.nack(tap.alice(), (:'leased'::bigint[])[2:2], 'again', max_attempts => 2) AS second,
       outbox.nack(tap.alice(), :'by_policy', 'enough') AS third \gset
SELECT is(
    ARRAY(SELECT format('%s: %s %s %s', payload, status, failure_reason, last_error)
            FROM outbox.messages WHERE topic LIKE 's4-enough%' ORDER BY id),
    '{"at the maximum: 3 5 enough","below: 0 99 again","by policy: 3 5 enough"}',
    'section 4: at max_attempts nack fails the message instead');

SELECT tap.lease('s4-mine', '1', '2') AS leased \gset
SELECT is(
    ARRAY[outbox.abandon(tap.bob(), :'leased'),
          outbox.abandon(tap.alice(), :'leased', attempts => '{1,7}', delay => '0'),
          outbox.nack(tap.alice(), :'leased'::bigint[] || '{NULL,0}', delay => '0'),
          outbox.abandon(tap.alice(), :'leased')],
    '{0,1,1,0}',
    'section 4: nack counts only leases of the caller, of the attempt if that is given');

SELECT * FROM finish();
ROLLBACK;
