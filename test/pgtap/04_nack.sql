-- 04_nack.sql: handing messages back
--
-- OBX-035..041, section 4 of the contract. The backoff has a file of its own,
-- 07_retry.sql.

BEGIN;
\ir include/tools.sql
SELECT plan(7);

SELECT tap.lease('obx-035', 'p') AS leased \gset
SELECT outbox.nack(tap.alice(), :'leased') AS nacked \gset
SELECT is(
    ROW(:nacked, status, owner_token, locked_until, is_processed)::text, '(1,0,,,f)',
    'OBX-035 nack releases the lease')
  FROM outbox.messages WHERE topic = 'obx-035';

SELECT tap.lease('obx-036', 'p') AS leased \gset
SELECT outbox.nack(tap.alice(), :'leased', delay => '0') \gset
SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{obx-036}') \gset
SELECT outbox.nack(tap.alice(), :'leased', delay => '0') \gset
SELECT results_eq(
    $$SELECT attempts, retry_count FROM outbox.claim(tap.bob(), topics => '{obx-036}')$$,
    $$VALUES (3, 2)$$,
    'OBX-036 each nack adds one to retry_count, and nothing to attempts');

SELECT tap.lease('obx-037', 'p') AS leased \gset
SELECT outbox.nack(tap.alice(), :'leased', 'first error', '0') \gset
SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{obx-037}') \gset
SELECT last_error AS first FROM outbox.messages WHERE topic = 'obx-037' \gset
SELECT outbox.nack(tap.alice(), :'leased', 'second "error"', '0') \gset
SELECT is(
    ARRAY[:'first', last_error, failure_reason::text], '{first error,"second \"error\"",99}',
    'OBX-037 nack records the error')
  FROM outbox.messages WHERE topic = 'obx-037';

SET LOCAL outbox.backoff_jitter = off;
SELECT tap.lease('obx-038', 'p') AS leased \gset
SELECT clock_timestamp() AS before, outbox.nack(tap.alice(), :'leased'), clock_timestamp() AS after \gset
SELECT count(*) AS early FROM outbox.claim(tap.bob(), topics => '{obx-038}') \gset
SELECT is(
    ROW(:early, next_attempt_at BETWEEN :'before'::timestamptz + interval '1 s'
                                    AND :'after'::timestamptz + interval '1 s')::text,
    '(0,t)',
    'OBX-038 nack sets next_attempt_at by the backoff, and the message is not claimable before')
  FROM outbox.messages WHERE topic = 'obx-038';

SELECT tap.lease('obx-039', 'a day', 'at once') AS leased \gset
SELECT clock_timestamp() AS before,
       outbox.nack(tap.alice(), (:'leased'::bigint[])[1:1], delay => '1 day'),
       outbox.nack(tap.alice(), (:'leased'::bigint[])[2:2], delay => '0') AS second \gset
SELECT string_agg(payload, ',') AS claimable FROM outbox.claim(tap.bob(), topics => '{obx-039}') \gset
SELECT is(
    ROW(:'claimable', next_attempt_at BETWEEN :'before'::timestamptz + interval '1 day'
                                          AND clock_timestamp() + interval '1 day')::text,
    '("at once",t)',
    'OBX-039 a delay that is given takes the place of the backoff')
  FROM outbox.messages WHERE topic = 'obx-039' AND payload = 'a day';

SELECT outbox.configure_topic('obx-040-policy', max_attempts => 1) \gset
SELECT tap.lease('obx-040', 'at the maximum', 'below') AS leased,
       tap.lease('obx-040-policy', 'by policy') AS by_policy \gset
SELECT outbox.nack(tap.alice(), (:'leased'::bigint[])[1:1], 'enough', max_attempts => 1),
       outbox.nack(tap.alice(), (:'leased'::bigint[])[2:2], 'again', max_attempts => 2) AS second,
       outbox.nack(tap.alice(), :'by_policy', 'enough') AS third \gset
SELECT is(
    ARRAY(SELECT format('%s: %s %s %s', payload, status, failure_reason, last_error)
            FROM outbox.messages WHERE topic LIKE 'obx-040%' ORDER BY id),
    '{"at the maximum: 3 5 enough","below: 0 99 again","by policy: 3 5 enough"}',
    'OBX-040 at max_attempts nack fails the message instead');

SELECT tap.lease('obx-041', '1', '2') AS leased \gset
SELECT is(
    ARRAY[outbox.abandon(tap.bob(), :'leased'),
          outbox.abandon(tap.alice(), :'leased', attempts => '{1,7}', delay => '0'),
          outbox.nack(tap.alice(), :'leased'::bigint[] || '{NULL,0}', delay => '0'),
          outbox.abandon(tap.alice(), :'leased')],
    '{0,1,1,0}',
    'OBX-041 nack, or abandon by its other name, changes and counts only leases of the caller');

SELECT * FROM finish();
ROLLBACK;
