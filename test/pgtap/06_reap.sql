-- 06_reap.sql: leases and messages whose time is over
--
-- OBX-049..053, section 4 of the contract. What has expired before is out of
-- the way first, so that the counts are of what is here.

BEGIN;
\ir include/tools.sql
SELECT plan(5);
SELECT outbox.reap(10000) \gset

SELECT tap.lease('obx-049', '1', '2') AS leased \gset
SELECT tap.end_leases('obx-049') \gset
SELECT outbox.reap() AS reaped \gset
SELECT is(
    ARRAY[:'reaped'] || ARRAY(SELECT ROW(status, owner_token, locked_until, attempts, retry_count)::text
                                FROM outbox.messages WHERE topic = 'obx-049'),
    '{2,"(0,,,1,0)","(0,,,1,0)"}',
    'OBX-049 reap returns messages whose leases have ended to ready');

SELECT outbox.configure_topic('obx-050', max_attempts => 1) \gset
SELECT tap.lease('obx-050', 'p') AS leased \gset
SELECT tap.end_leases('obx-050') \gset
SELECT outbox.reap() AS reaped \gset
SELECT is(
    ROW(:reaped, status, failure_reason, attempts)::text, '(1,3,5,1)',
    'OBX-050 at max_attempts reap fails them with reason 5')
  FROM outbox.messages WHERE topic = 'obx-050';

SELECT tap.lease('obx-051', 'leased') AS leased,
       outbox.enqueue('obx-051', 'ready') AS e1,
       outbox.enqueue('obx-051', 'parked', due_time => 'infinity') AS e2,
       outbox.enqueue('obx-051', 'good', expires_at => 'infinity') AS e3 \gset
UPDATE outbox.queue
   SET expires_at = now() - interval '1 s'
 WHERE topic = 'obx-051' AND payload <> 'good';
SELECT outbox.reap() \gset
SELECT is(
    ARRAY(SELECT format('%s: %s %s', payload, status, failure_reason)
            FROM outbox.messages WHERE topic = 'obx-051' ORDER BY id),
    '{"leased: 1 0","ready: 3 6","parked: 3 6","good: 0 0"}',
    'OBX-051 reap fails messages past their expires_at with reason 6, wherever they wait, but not while leased');

SELECT tap.lease('obx-052', 'done', 'dead', 'leased', 'ended') AS leased,
       outbox.enqueue('obx-052', 'ready') AS e1 \gset
SELECT outbox.ack(tap.alice(), (:'leased'::bigint[])[1:1]),
       outbox.fail(tap.alice(), (:'leased'::bigint[])[2:2]) \gset
UPDATE outbox.queue SET locked_until = now() - interval '1 s' WHERE id = (:'leased'::bigint[])[4];
CREATE FUNCTION tap.untouched()
RETURNS jsonb
LANGUAGE sql
AS $$
    SELECT jsonb_agg(m ORDER BY m.id)
      FROM outbox.messages m
     WHERE m.topic = 'obx-052' AND m.payload <> 'ended';
$$;
SELECT tap.untouched() AS before, outbox.reap() AS reaped \gset
SELECT is(
    jsonb_build_object('reaped', 1, 'others', :'before'::jsonb),
    jsonb_build_object('reaped', :reaped, 'others', tap.untouched()),
    'OBX-052 reap touches nothing that is finished, ready, or leased with time left');

SELECT tap.lease('obx-053', '1', '2', '3', '4', '5') AS leased \gset
SELECT tap.end_leases('obx-053') \gset
SELECT is(
    ARRAY[outbox.reap(2), outbox.reap_expired(1), outbox.reap_expired(), outbox.reap()],
    '{2,1,2,0}',
    'OBX-053 reap, or reap_expired, takes at most batch_limit messages and says how many it took');

SELECT * FROM finish();
ROLLBACK;
