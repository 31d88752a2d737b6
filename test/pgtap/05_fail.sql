-- 05_fail.sql: giving messages up, and bringing them back
--
-- OBX-042..048, and what section 4 of the contract promises besides. That others see
-- the end of a message and the counts of its joins at once is in 08_concurrency.sql,
-- too.

BEGIN;
\ir include/tools.sql
\ir include/joins.sql
SELECT plan(13);

SELECT tap.lease('obx-042', '1', '2', 'not') AS leased \gset
SELECT outbox.fail(tap.alice(), (:'leased'::bigint[])[1:2]) AS failed, outbox.release(tap.alice(), :'leased') AS released \gset
SELECT is(
    ARRAY[:'failed'] || ARRAY(SELECT payload || ' ' || outbox.status_name(status) FROM outbox.messages WHERE topic = 'obx-042' ORDER BY id)
        || ARRAY(SELECT payload FROM outbox.claim(tap.bob(), topics => '{obx-042}')),
    '{2,"1 failed","2 failed","not ready",not}',
    'OBX-042: what is failed has the status of a permanent failure, and is not claimable');

SELECT tap.lease('obx-043', 'plain', 'explained') AS leased \gset
SELECT outbox.fail(tap.alice(), (:'leased'::bigint[])[1:1]),
       outbox.fail(tap.alice(), (:'leased'::bigint[])[2:2], 'bad "value"') AS second \gset
SELECT is(
    ARRAY(SELECT format('%s: %s', payload, coalesce(last_error, 'no error')) FROM outbox.messages WHERE topic = 'obx-043' ORDER BY id)
        || (SELECT last_error FROM outbox.dead_letters WHERE topic = 'obx-043' AND payload = 'explained'),
    '{"plain: no error","explained: bad \"value\"","bad \"value\""}',
    'OBX-043: fail records the error that the caller gives');

SELECT tap.lease('obx-044', '1', '2') AS leased \gset
SELECT outbox.fail(tap.bob(), :'leased', 'not mine') AS by_another \gset
SELECT is(
    ARRAY[:'by_another'] || ARRAY(SELECT format('%s %s %s', status, owner_token = tap.alice(), last_error) FROM outbox.messages WHERE topic = 'obx-044')
        || outbox.fail(tap.alice(), :'leased')::text,
    '{0,"1 t ","1 t ",2}',
    'OBX-044, QUEUE-13: fail touches only messages whose owner_token is the caller''s');

SELECT tap.lease('obx-045', '1', '2', '3') AS leased, outbox.enqueue('obx-045', 'another''s') AS e1 \gset
SELECT count(*) FROM outbox.claim(tap.bob(), topics => '{obx-045}') \gset
SELECT array_agg(id) AS all FROM outbox.queue WHERE topic = 'obx-045' \gset
SELECT ARRAY[outbox.ack(tap.alice(), (:'leased'::bigint[])[1:1]),
             outbox.fail(tap.alice(), :'all'::bigint[] || (:'leased'::bigint[])[2:3] || '{NULL,0,-1,9223372036854775807}'),
             outbox.fail(tap.alice(), :'leased'), outbox.fail(tap.alice(), '{}')] AS failed \gset
SELECT is(
    :'failed' || ARRAY(SELECT status FROM outbox.messages WHERE topic = 'obx-045' ORDER BY id)::text,
    '{1,2,0,0}{2,3,3,1}',
    'OBX-045, QUEUE-14: unknown, finished, foreign, null and duplicate ids are ignored without an error, the others are failed');

SELECT tap.start('obx-046', 2, '1', '2') AS j, tap.start('obx-046-b', 3, '3') AS other \gset
SELECT outbox.attach_message_to_join(:'other', message_id) FROM outbox.messages WHERE topic = 'obx-046' AND payload = '1' \gset
SELECT outbox.fail(tap.alice(), tap.steps('obx-046', '1')) \gset
SELECT is(
    ARRAY[tap.join(:'j'), tap.join(:'other')], '{"pending 0+1/2 {2,0}","pending 0+1/3 {2,0}"}',
    'OBX-046: fail adds a failed step to every join that has the message');

SELECT tap.start('obx-047', 2, 'a', 'b') AS j \gset
SAVEPOINT before;
SELECT outbox.fail(tap.alice(), tap.steps('obx-047', 'a')) \gset
SELECT tap.join(:'j') || outbox.status_name(status) AS inside FROM outbox.messages WHERE topic = 'obx-047' AND payload = 'a' \gset
ROLLBACK TO before;
SELECT is(
    ARRAY[:'inside', tap.join(:'j') || outbox.status_name(status)], '{"pending 0+1/2 {2,0}failed","pending 0+0/2 {0,0}in progress"}',
    'OBX-047: a message fails and its join has counted it, or neither')
  FROM outbox.messages WHERE topic = 'obx-047' AND payload = 'a';

SELECT tap.lease('obx-048', 'failed', 'not') AS leased \gset
SELECT outbox.fail(tap.alice(), (:'leased'::bigint[])[1:1]) \gset
SELECT tap.end_leases('obx-048'), tap.come_due('obx-048') \gset
SELECT outbox.reap() \gset
SELECT is(
    ARRAY(SELECT payload FROM outbox.claim(tap.bob(), topics => '{obx-048}'))
        || ARRAY(SELECT payload FROM outbox.claim(tap.alice(), batch_size => 10000) WHERE topic = 'obx-048'),
    '{not}',
    'OBX-048: no claim returns what has failed, though its lease would have ended and whatever is reaped');
SELECT outbox.release(tap.alice()) \gset

-- Besides

SELECT tap.lease('s4-failed', 'p') AS leased \gset
SELECT outbox.fail(tap.alice(), :'leased') AS failed \gset
SELECT is(
    ROW(:failed, outbox.status_name(status), owner_token, locked_until, is_processed, processed_at)::text,
    '(1,failed,,,f,)',
    'section 4: a failed message has no lease, and was not processed')
  FROM outbox.messages WHERE topic = 's4-failed';

SELECT tap.lease('s4-reason', 'plain', 'explained') AS leased \gset
SELECT outbox.fail(tap.alice(), (:'leased'::bigint[])[1:1]),
       outbox.fail(tap.alice(), (:'leased'::bigint[])[2:2], 'bad "value"', 4) AS second \gset
SELECT is(
    ARRAY(SELECT format('%s: %s, %s', payload, failure_reason, coalesce(last_error, 'no error'))
            FROM outbox.messages WHERE topic = 's4-reason' ORDER BY id),
    '{"plain: 99, no error","explained: 4, bad \"value\""}',
    'section 4: fail records the reason, 99 when none is given');

SELECT tap.lease('s4-mine', '1', '2') AS leased \gset
SELECT is(
    ARRAY[outbox.fail(tap.bob(), :'leased'),
          outbox.fail(tap.alice(), :'leased', attempts => '{1,2}'),
          outbox.fail(tap.alice(), :'leased'::bigint[] || :'leased'::bigint[] || '{NULL,0}'),
          outbox.fail(tap.alice(), :'leased')],
    '{0,1,1,0}',
    'section 4: fail changes and counts only leases of the caller, of the attempt if that is given');

SELECT tap.lease('s4-first', 'done', 'dead') AS leased \gset
SELECT outbox.ack(tap.alice(), (:'leased'::bigint[])[1:1]),
       outbox.fail(tap.alice(), (:'leased'::bigint[])[2:2], 'first') AS second \gset
SELECT outbox.fail(tap.alice(), :'leased', 'second') + outbox.ack(tap.alice(), :'leased')
       + outbox.nack(tap.alice(), :'leased', 'third') + outbox.renew(tap.alice(), :'leased')
       + outbox.release(tap.alice(), :'leased') AS changed \gset
SELECT is(
    ARRAY[:'changed'] || ARRAY(SELECT concat_ws(' ', payload, status, last_error)
                                 FROM outbox.messages WHERE topic = 's4-first' ORDER BY id),
    '{0,done 2,dead 3 first}',
    'SHARED-39, SHARED-40: the first outcome stands: no call changes a message that is done or failed');

SELECT tap.lease('s4-strict', '1', '2') AS leased \gset
SELECT tap.sqlstates(
    format('SELECT outbox.fail(tap.alice(), %L, strict => true)', :'leased'::bigint[] || '{-1}'),
    format('SELECT outbox.fail(tap.bob(), %L, strict => true)', :'leased')) AS states \gset
SELECT is(
    :'states'::text[] || ARRAY(SELECT status::text FROM outbox.messages WHERE topic = 's4-strict')
        || outbox.fail(tap.alice(), :'leased', strict => true)::text,
    '{55000,55000,1,1,2}',
    'section 4: with strict, fail does all or, with 55000, nothing');

SELECT tap.lease('s4-requeue', 'p') AS leased \gset
SELECT message_id AS m FROM outbox.messages WHERE topic = 's4-requeue' \gset
SELECT outbox.nack(tap.alice(), :'leased', delay => '0') \gset
SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{s4-requeue}') \gset
SELECT outbox.fail(tap.alice(), :'leased', 'broken') \gset
SELECT outbox.requeue(:'leased'::bigint[] || :'leased'::bigint[] || '{NULL,0}') AS first,
       outbox.requeue(:'leased') AS again \gset
SELECT is(
    ROW(:first, :again, message_id, status, attempts, retry_count)::text
        || (SELECT payload FROM outbox.claim(tap.bob(), topics => '{s4-requeue}')),
    ROW(1, 0, :'m', 0, 0, 0)::text || 'p',
    'section 4: requeue makes a failed message ready again: the same message_id, attempts and retries 0')
  FROM outbox.messages WHERE topic = 's4-requeue';

SELECT * FROM finish();
ROLLBACK;
