-- 05_fail.sql: giving messages up, and bringing them back
--
-- OBX-042..048, section 4 of the contract.

BEGIN;
\ir include/tools.sql
SELECT plan(7);

SELECT tap.lease('obx-042', 'p') AS leased \gset
SELECT outbox.fail(tap.alice(), :'leased') AS failed \gset
SELECT is(
    ROW(:failed, outbox.status_name(status), owner_token, locked_until, is_processed, processed_at)::text,
    '(1,failed,,,f,)',
    'OBX-042 fail ends a message for good: status 3, and not processed')
  FROM outbox.messages WHERE topic = 'obx-042';

SELECT tap.lease('obx-043', 'failed', 'not') AS leased \gset
SELECT outbox.fail(tap.alice(), (:'leased'::bigint[])[1:1]) \gset
SELECT tap.end_leases('obx-043') \gset
SELECT outbox.reap() \gset
SELECT is(
    ARRAY(SELECT payload FROM outbox.claim(tap.bob(), topics => '{obx-043}')), '{not}',
    'OBX-043 what has failed is neither claimable nor reaped, for ever');

SELECT tap.lease('obx-044', 'plain', 'explained') AS leased \gset
SELECT outbox.fail(tap.alice(), (:'leased'::bigint[])[1:1]),
       outbox.fail(tap.alice(), (:'leased'::bigint[])[2:2], 'bad "value"', 4) AS second \gset
SELECT is(
    ARRAY(SELECT format('%s: %s, %s', payload, failure_reason, coalesce(last_error, 'no error'))
            FROM outbox.messages WHERE topic = 'obx-044' ORDER BY id),
    '{"plain: 99, no error","explained: 4, bad \"value\""}',
    'OBX-044 fail records the error and the reason, 99 when none is given');

SELECT tap.lease('obx-045', '1', '2') AS leased \gset
SELECT is(
    ARRAY[outbox.fail(tap.bob(), :'leased'),
          outbox.fail(tap.alice(), :'leased', attempts => '{1,2}'),
          outbox.fail(tap.alice(), :'leased'::bigint[] || :'leased'::bigint[] || '{NULL,0}'),
          outbox.fail(tap.alice(), :'leased')],
    '{0,1,1,0}',
    'OBX-045 fail changes and counts only leases of the caller, of the attempt if that is given');

SELECT tap.lease('obx-046', 'done', 'dead') AS leased \gset
SELECT outbox.ack(tap.alice(), (:'leased'::bigint[])[1:1]),
       outbox.fail(tap.alice(), (:'leased'::bigint[])[2:2], 'first') AS second \gset
SELECT outbox.fail(tap.alice(), :'leased', 'second') + outbox.ack(tap.alice(), :'leased')
       + outbox.nack(tap.alice(), :'leased', 'third') + outbox.renew(tap.alice(), :'leased')
       + outbox.release(tap.alice(), :'leased') AS changed \gset
SELECT is(
    ARRAY[:'changed'] || ARRAY(SELECT concat_ws(' ', payload, status, last_error)
                                 FROM outbox.messages WHERE topic = 'obx-046' ORDER BY id),
    '{0,done 2,dead 3 first}',
    'OBX-046 the first outcome stands: no call changes a message that is done or failed');

SELECT tap.lease('obx-047', '1', '2') AS leased \gset
SELECT tap.sqlstates(
    format('SELECT outbox.fail(tap.alice(), %L, strict => true)', :'leased'::bigint[] || '{-1}'),
    format('SELECT outbox.fail(tap.bob(), %L, strict => true)', :'leased')) AS states \gset
SELECT is(
    :'states'::text[] || ARRAY(SELECT status::text FROM outbox.messages WHERE topic = 'obx-047')
        || outbox.fail(tap.alice(), :'leased', strict => true)::text,
    '{55000,55000,1,1,2}',
    'OBX-047 with strict, fail does all or, with 55000, nothing');

SELECT tap.lease('obx-048', 'p') AS leased \gset
SELECT message_id AS m FROM outbox.messages WHERE topic = 'obx-048' \gset
SELECT outbox.nack(tap.alice(), :'leased', delay => '0') \gset
SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{obx-048}') \gset
SELECT outbox.fail(tap.alice(), :'leased', 'broken') \gset
SELECT outbox.requeue(:'leased'::bigint[] || :'leased'::bigint[] || '{NULL,0}') AS first,
       outbox.requeue(:'leased') AS again \gset
SELECT is(
    ROW(:first, :again, message_id, status, attempts, retry_count)::text
        || (SELECT payload FROM outbox.claim(tap.bob(), topics => '{obx-048}')),
    ROW(1, 0, :'m', 0, 0, 0)::text || 'p',
    'OBX-048 requeue makes a failed message ready again: the same message_id, attempts and retries 0')
  FROM outbox.messages WHERE topic = 'obx-048';

SELECT * FROM finish();
ROLLBACK;
