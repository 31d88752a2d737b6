-- 03_ack.sql: finishing messages
--
-- OBX-027..034, and what section 4 of the contract promises besides. That others see
-- the end of a message and the counts of its joins at once is in 08_concurrency.sql,
-- too.

BEGIN;
\ir include/tools.sql
\ir include/joins.sql
SELECT plan(13);

SELECT tap.lease('obx-027', '1', '2', 'not') AS leased \gset
SELECT is(
    ARRAY[outbox.ack(tap.alice(), (:'leased'::bigint[])[1:2])], '{2}',
    'OBX-027: ack takes many messages in one call');
SELECT is(
    ARRAY(SELECT concat_ws(' ', payload, is_processed, outbox.status_name(status)) FROM outbox.messages WHERE topic = 'obx-027' ORDER BY id),
    '{"1 t done","2 t done","not f in progress"}',
    'OBX-027: what is acked is processed, and nothing else is');

SELECT tap.lease('obx-028', 'p', 'not') AS leased, clock_timestamp() AS before \gset
SELECT outbox.ack(tap.alice(), (:'leased'::bigint[])[1:1]), clock_timestamp() AS after \gset
SELECT is(
    ARRAY(SELECT payload || (processed_at BETWEEN :'before' AND :'after') FROM outbox.messages WHERE topic = 'obx-028' AND processed_at IS NOT NULL),
    '{ptrue}',
    'OBX-028: processed_at is the clock at the ack');

SELECT tap.lease('obx-029', 'p') AS leased \gset
SELECT outbox.ack(tap.alice(), :'leased') \gset
SELECT is(processed_by, tap.alice(), 'OBX-029: processed_by is the worker that acked')
  FROM outbox.messages WHERE topic = 'obx-029';

SELECT tap.lease('obx-030', '1', '2') AS leased \gset
SELECT outbox.ack(tap.bob(), :'leased') AS by_another \gset
SELECT is(
    ARRAY[:'by_another'] || ARRAY(SELECT format('%s %s %s', status, owner_token, is_processed)
                                    FROM outbox.messages WHERE topic = 'obx-030')
        || outbox.ack(tap.alice(), :'leased')::text,
    ARRAY['0', '1 ' || tap.alice() || ' f', '1 ' || tap.alice() || ' f', '2'],
    'OBX-030, SHARED-24, QUEUE-13: ack touches only messages whose owner_token is the caller''s');

SELECT tap.lease('obx-031', '1', '2', '3') AS leased, outbox.enqueue('obx-031', 'another''s') AS e1 \gset
SELECT count(*) FROM outbox.claim(tap.bob(), topics => '{obx-031}') \gset
SELECT array_agg(id) AS all FROM outbox.queue WHERE topic = 'obx-031' \gset
SELECT ARRAY[outbox.ack(tap.alice(), (:'leased'::bigint[])[1:1]),
             outbox.ack(tap.alice(), :'all'::bigint[] || (:'leased'::bigint[])[2:3] || '{NULL,0,-1,9223372036854775807}'),
             outbox.ack(tap.alice(), :'leased'), outbox.ack(tap.alice(), '{}')] AS acked \gset
SELECT is(
    :'acked' || ARRAY(SELECT status FROM outbox.messages WHERE topic = 'obx-031' ORDER BY id)::text,
    '{1,2,0,0}{2,2,2,1}',
    'OBX-031, QUEUE-14: unknown, finished, foreign, null and duplicate ids are ignored without an error, the others are acked');

SELECT tap.lease('obx-032', 'acked', 'not') AS leased \gset
SELECT outbox.ack(tap.alice(), (:'leased'::bigint[])[1:1]) \gset
SELECT tap.end_leases('obx-032'), outbox.reap() AS reaped, outbox.redrive(topic => 'obx-032') AS redriven, outbox.requeue(:'leased') AS requeued \gset
SELECT is(
    ARRAY(SELECT payload FROM outbox.claim(tap.bob(), topics => '{obx-032}'))
        || ARRAY(SELECT payload FROM outbox.claim(tap.alice(), batch_size => 10000) WHERE topic = 'obx-032'),
    '{not}',
    'OBX-032: no claim returns what was acked, though its lease would have ended, and whatever is reaped and brought back');
SELECT outbox.release(tap.alice()) \gset

SELECT tap.start('obx-033', 2, '1', '2') AS j, tap.start('obx-033-b', 3, '3') AS other \gset
SELECT outbox.attach_message_to_join(:'other', message_id) FROM outbox.messages WHERE topic = 'obx-033' AND payload = '1' \gset
SELECT outbox.ack(tap.alice(), tap.steps('obx-033', '1')) \gset
SELECT is(
    ARRAY[tap.join(:'j'), tap.join(:'other')], '{"pending 1+0/2 {1,0}","pending 1+0/3 {1,0}"}',
    'OBX-033: ack adds a completed step to every join that has the message');

SELECT tap.start('obx-034', 1, 'p') AS j \gset
SAVEPOINT before;
SELECT outbox.ack(tap.alice(), tap.steps('obx-034')) \gset
SELECT tap.join(:'j') || outbox.status_name(status) AS inside FROM outbox.messages WHERE topic = 'obx-034' \gset
ROLLBACK TO before;
SELECT is(
    ARRAY[:'inside', tap.join(:'j') || outbox.status_name(status)], '{"completed 1+0/1 {1}done","pending 0+0/1 {0}in progress"}',
    'OBX-034: a message is acked and its join has counted it, or neither')
  FROM outbox.messages WHERE topic = 'obx-034';

-- Besides

SELECT tap.lease('s4-done', 'p') AS leased \gset
SELECT clock_timestamp() AS before, outbox.ack(tap.alice(), :'leased') AS acked \gset
SELECT is(
    ROW(:acked, status, is_processed, owner_token, locked_until,
        processed_at BETWEEN :'before' AND clock_timestamp())::text,
    '(1,2,t,,,t)',
    'SHARED-22: ack finishes a message: status 2, processed_at by the clock, the lease gone')
  FROM outbox.messages WHERE topic = 's4-done';

SELECT tap.lease('s4-attempt', '1', '2') AS leased \gset
SELECT tap.end_leases('s4-attempt') \gset
SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{s4-attempt}') \gset
SELECT is(
    ARRAY[outbox.ack(tap.alice(), :'leased', '{1,1}'),
          outbox.ack(tap.alice(), :'leased', '{NULL,NULL}'),
          outbox.ack(tap.alice(), :'leased', '{2,1}'),
          outbox.ack(tap.alice(), (:'leased'::bigint[])[2:2], '{2}')],
    '{0,0,1,1}',
    'section 4: with attempts, only a lease of that very attempt is acked');

SELECT tap.lease('s4-strict', '1', '2') AS leased \gset
CREATE FUNCTION tap.strict_ack(ids bigint[])
RETURNS text[]
LANGUAGE plpgsql
AS $$
DECLARE
    detail text;
BEGIN
    PERFORM outbox.ack(tap.alice(), ids, strict => true);
    RETURN '{acked}';
EXCEPTION
    WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
        RETURN ARRAY[SQLSTATE, substring(SQLERRM FROM 'lease lost'), substring(detail FROM '-77')];
END
$$;
SELECT tap.strict_ack(:'leased'::bigint[] || '{-77}') AS refused \gset
SELECT is(
    :'refused'::text[]
        || ARRAY(SELECT status::text FROM outbox.messages WHERE topic = 's4-strict')
        || tap.strict_ack(:'leased'),
    '{55000,"lease lost",-77,1,1,acked}',
    'SHARED-25: strict raises 55000 "lease lost" with the ids in DETAIL and changes nothing');

SELECT tap.lease('s4-late', 'not taken', 'taken') AS leased \gset
SELECT tap.end_leases('s4-late') \gset
SELECT outbox.ack(tap.alice(), (:'leased'::bigint[])[1:1]) AS late \gset
SELECT count(*) AS taken FROM outbox.claim(tap.bob(), topics => '{s4-late}') \gset
SELECT is(
    ARRAY[:late, :taken, outbox.ack(tap.alice(), (:'leased'::bigint[])[2:2]),
          outbox.ack(tap.bob(), (:'leased'::bigint[])[2:2])],
    '{1,1,0,1}',
    'section 4: an expired lease can still be acked by its owner, unless another worker took the message');

SELECT * FROM finish();
ROLLBACK;
