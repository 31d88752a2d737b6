-- 06_reap.sql: leases and messages whose time is over
--
-- OBX-049..052, and what section 4 of the contract promises besides. That workers
-- reap by themselves, OBX-053, is in test/t/010_workers.pl. What has expired before is
-- out of the way first, so that the counts are of what is here.

BEGIN;
\ir include/tools.sql
SELECT plan(7);
SELECT outbox.reap(10000) \gset

-- leases that end by themselves: of a second, which is the shortest
SELECT outbox.enqueue_many('obx-049', '{short 1,short 2}') \gset
SELECT count(*) FROM outbox.claim(tap.alice(), 1, topics => '{obx-049}') \gset
SELECT tap.lease('obx-049', 'long'), outbox.enqueue('obx-049', 'ready') AS e1 \gset
SELECT outbox.reap() AS early \gset
SELECT pg_sleep_until(max(locked_until) + interval '1 ms') FROM outbox.messages WHERE topic = 'obx-049' AND payload LIKE 'short%' \g /dev/null
SELECT outbox.reap() AS reaped \gset
SELECT is(
    ARRAY[:'early', :'reaped'] || ARRAY(SELECT payload || ' ' || outbox.status_name(status) FROM outbox.messages WHERE topic = 'obx-049' ORDER BY id),
    '{0,2,"short 1 ready","short 2 ready","long in progress","ready ready"}',
    'OBX-049: reap finds the leases that have ended by the clock, all of them and no others');

SELECT tap.lease('obx-050', '1', '2') AS leased \gset
SELECT tap.end_leases('obx-050') \gset
SELECT outbox.reap() AS reaped \gset
SELECT is(
    ARRAY[:'reaped'] || ARRAY(SELECT ROW(owner_token, locked_until)::text FROM outbox.messages WHERE topic = 'obx-050')
        || outbox.ack(tap.alice(), :'leased')::text,
    '{2,"(,)","(,)",0}',
    'OBX-050: what is reaped has no lease and no owner, and its former owner cannot ack it');

SELECT tap.lease('obx-051', 'p', 'q') AS leased \gset
SELECT tap.end_leases('obx-051') \gset
SELECT outbox.reap() AS reaped \gset
SELECT array_agg(outbox.status_name(status) || (next_attempt_at <= clock_timestamp())) AS reaped_to FROM outbox.messages WHERE topic = 'obx-051' \gset
SELECT is(
    :'reaped_to'::text[] || ARRAY(SELECT payload || attempts || (owner_token = tap.bob())
                                    FROM outbox.claim(tap.bob(), topics => '{obx-051}') ORDER BY id),
    '{readytrue,readytrue,p2true,q2true}',
    'OBX-051: what is reaped is ready at once, and claimed by the next worker that asks');

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
    'OBX-052: reap changes nothing of what was acked or has failed, nor of what is ready or leased with time left');

-- Besides

SELECT outbox.configure_topic('s4-last', max_attempts => 1) \gset
SELECT tap.lease('s4-last', 'p') AS leased \gset
SELECT tap.end_leases('s4-last') \gset
SELECT outbox.reap() AS reaped \gset
SELECT is(
    ROW(:reaped, status, failure_reason, attempts)::text, '(1,3,5,1)',
    'section 4: at max_attempts reap fails messages with reason 5')
  FROM outbox.messages WHERE topic = 's4-last';

SELECT tap.lease('s4-expires', 'leased') AS leased,
       outbox.enqueue('s4-expires', 'ready') AS e1,
       outbox.enqueue('s4-expires', 'parked', due_time => 'infinity') AS e2,
       outbox.enqueue('s4-expires', 'good', expires_at => 'infinity') AS e3 \gset
UPDATE outbox.queue
   SET expires_at = now() - interval '1 s'
 WHERE topic = 's4-expires' AND payload <> 'good';
SELECT outbox.reap() \gset
SELECT is(
    ARRAY(SELECT format('%s: %s %s', payload, status, failure_reason)
            FROM outbox.messages WHERE topic = 's4-expires' ORDER BY id),
    '{"leased: 1 0","ready: 3 6","parked: 3 6","good: 0 0"}',
    'section 4: reap fails messages past their expires_at with reason 6, wherever they wait, but not while leased');

SELECT tap.lease('s4-limit', '1', '2', '3', '4', '5') AS leased \gset
SELECT tap.end_leases('s4-limit') \gset
SELECT is(
    ARRAY[outbox.reap(2), outbox.reap_expired(1), outbox.reap_expired(), outbox.reap()],
    '{2,1,2,0}',
    'section 4: reap, or reap_expired, takes at most batch_limit messages and says how many it took');

SELECT * FROM finish();
ROLLBACK;
