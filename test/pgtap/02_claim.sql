-- 02_claim.sql: taking messages
--
-- OBX-018..026, and what section 4 of the contract promises besides. OBX-017, which
-- takes a second session, is in 08_concurrency.sql.

BEGIN;
\ir include/tools.sql
SELECT plan(18);

SELECT outbox.enqueue('obx-018', 'no time') AS e1,
       outbox.enqueue('obx-018', 'past', due_time => clock_timestamp() - interval '1 s') AS e2,
       outbox.enqueue('obx-018', 'now', due_time => clock_timestamp()) AS e3,
       outbox.enqueue('obx-018', 'in an hour', due_time => clock_timestamp() + interval '1 h') AS e4,
       outbox.enqueue('obx-018', 'in a moment', due_time => clock_timestamp() + interval '300 ms') AS e5 \gset
CREATE TEMP TABLE claims (payload text, due_time timestamptz, at timestamptz) ON COMMIT DROP;
-- claims until the one that is due in a moment has come
DO $$
BEGIN
    FOR i IN 1 .. 1000 LOOP
        INSERT INTO claims SELECT payload, due_time FROM outbox.claim(tap.alice(), topics => '{obx-018}');
        UPDATE claims SET at = clock_timestamp() WHERE at IS NULL;
        EXIT WHEN EXISTS (SELECT FROM claims WHERE payload = 'in a moment');
        PERFORM pg_sleep(0.01);
    END LOOP;
END
$$;
SELECT is(
    ARRAY(SELECT payload || coalesce(due_time <= at, true) FROM claims ORDER BY payload)
        || (SELECT status::text FROM outbox.messages WHERE topic = 'obx-018' AND payload = 'in an hour'),
    '{"in a momenttrue","no timetrue","nowtrue","pasttrue",0}',
    'OBX-018: claims take messages without a due_time, and others when it has come, not before');

SELECT tap.lease('obx-019', 'leased', 'ended') AS leased, outbox.enqueue('obx-019', 'never leased') AS e1 \gset
UPDATE outbox.queue SET locked_until = clock_timestamp() - interval '1 ms' WHERE topic = 'obx-019' AND payload = 'ended';
SELECT is(
    ARRAY[(SELECT string_agg(payload, ',' ORDER BY id) FROM outbox.claim(tap.bob(), topics => '{obx-019}')),
          (SELECT string_agg(payload, ',' ORDER BY id) FROM outbox.claim(md5('carol')::uuid, topics => '{obx-019}')),
          (SELECT string_agg(payload, ',' ORDER BY id) FROM outbox.claim(tap.alice(), topics => '{obx-019}'))],
    '{"ended,never leased",NULL,NULL}',
    'OBX-019: what is leased is not claimed, not even by its owner; what is not, or no longer, is');

SELECT outbox.enqueue_many('obx-020', '{p,q}'), clock_timestamp() AS before \gset
SELECT array_agg(locked_until) AS returned FROM outbox.claim(tap.alice(), 100, topics => '{obx-020}') \gset
SELECT clock_timestamp() AS after \gset
SELECT is(
    ARRAY(SELECT DISTINCT locked_until BETWEEN :'before'::timestamptz + interval '100 s' AND :'after'::timestamptz + interval '100 s'
                          AND locked_until = ANY (:'returned') FROM outbox.messages WHERE topic = 'obx-020'),
    '{t}',
    'OBX-020: a lease ends lease_seconds after the clock at the claim');

SELECT outbox.enqueue_many('obx-021', '{1,2,3}') \gset
SELECT array_agg(owner_token) AS returned FROM outbox.claim(tap.alice(), topics => '{obx-021}', batch_size => 2) \gset
SELECT count(*) FROM outbox.claim(tap.bob(), topics => '{obx-021}') \gset
SELECT is(
    :'returned'::uuid[] || ARRAY(SELECT owner_token FROM outbox.messages WHERE topic = 'obx-021' ORDER BY id),
    ARRAY[tap.alice(), tap.alice(), tap.alice(), tap.alice(), tap.bob()],
    'OBX-021: a message that is claimed has the owner_token of that claim');

SELECT outbox.enqueue_many('obx-022', ARRAY(SELECT i::text FROM generate_series(1, 9) i)) \gset
SELECT array_agg(id ORDER BY id) AS returned FROM outbox.claim(tap.alice(), topics => '{obx-022}', batch_size => 7) \gset
SELECT is(
    ROW(7, :'returned'::bigint[])::text,
    (SELECT ROW(count(*), array_agg(id ORDER BY id))::text
       FROM outbox.queue WHERE topic = 'obx-022' AND owner_token = tap.alice() AND status = 1),
    'OBX-022: the ids that a claim returns are those of the messages that are leased by it, all of them');

SELECT is(
    tap.sqlstates($$SELECT outbox.claim(tap.alice(), topics => '{obx-023}')$$, $$SELECT outbox.claim(tap.alice(), topics => '{}')$$)
        || (SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{obx-023}'))::text,
    '{00000,00000,0}',
    'OBX-023: a claim that finds nothing returns no rows, and no error');

SELECT tap.lease('obx-024', 'processed', 'not') AS leased \gset
SELECT outbox.ack(tap.alice(), (:'leased'::bigint[])[1:1]), outbox.release(tap.alice(), :'leased') AS r \gset
SELECT is(
    ARRAY(SELECT payload FROM outbox.messages WHERE topic = 'obx-024' AND is_processed)
        || ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{obx-024}'))
        || ARRAY(SELECT payload FROM outbox.claim(tap.bob(), batch_size => 10000) WHERE topic = 'obx-024'),
    '{processed,not}',
    'OBX-024: a processed message is not claimed');
SELECT outbox.release(tap.bob()) \gset

SELECT tap.lease('obx-025', 'failed', 'not') AS leased \gset
SELECT outbox.fail(tap.alice(), (:'leased'::bigint[])[1:1]), outbox.release(tap.alice(), :'leased') AS r \gset
SELECT is(
    ARRAY(SELECT payload FROM outbox.messages WHERE topic = 'obx-025' AND status = 3)
        || ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{obx-025}'))
        || ARRAY(SELECT payload FROM outbox.claim(tap.bob(), batch_size => 10000) WHERE topic = 'obx-025'),
    '{failed,not}',
    'OBX-025: a message that has failed for good is not claimed');
SELECT outbox.release(tap.bob()) \gset

SELECT outbox.enqueue_many('obx-026', ARRAY(SELECT i::text FROM generate_series(1, 60) i)) \gset
SELECT count(*) AS asked FROM outbox.claim(tap.alice(), batch_size => 3, topics => '{obx-026}') \gset
SET LOCAL outbox.batch_size = 5;
SELECT count(*) AS set FROM outbox.claim(tap.alice(), topics => '{obx-026}') \gset
RESET outbox.batch_size;
SELECT count(*) AS leased FROM outbox.leases WHERE topic = 'obx-026' \gset
SELECT count(*) AS by_default FROM outbox.claim(tap.alice(), topics => '{obx-026}') \gset
SELECT count(*) AS rest FROM outbox.claim(tap.alice(), topics => '{obx-026}') \gset
SELECT is(
    ARRAY[:asked, :set, :leased, :by_default, :rest], '{3,5,8,50,2}',
    'OBX-026: a claim takes at most batch_size messages: the argument, else the setting, else 50; and leases no others');

-- Besides

SELECT outbox.enqueue('s4-claim', 'p') \gset
SELECT clock_timestamp() AS before \gset
SELECT count(*) FROM outbox.claim(tap.alice(), 100, topics => '{s4-claim}') \gset
SELECT is(
    ROW(status, owner_token, attempts,
        locked_until BETWEEN :'before'::timestamptz + interval '100 s'
                         AND clock_timestamp() + interval '100 s')::text,
    ROW(1, tap.alice(), 1, true)::text,
    'SHARED-32: claim sets status, owner, one more attempt, and a lease of lease_seconds from the clock')
  FROM outbox.messages WHERE topic = 's4-claim';

\set tenant '11111111-1111-4111-8111-111111111111'
SELECT outbox.enqueue('s4-whole', 'p', 'c', '2001-01-01 UTC', 'ns', :'tenant', :'tenant' || '/k',
                      :'tenant', '{"h": 1}', NULL, '19191919-0000-4000-8000-000000000001') \gset
SELECT is(
    to_jsonb(c) - '{created_at,locked_until}'::text[],
    jsonb_build_object(
        'id', (SELECT id FROM outbox.messages WHERE topic = 's4-whole'), 'message_id', '19191919-0000-4000-8000-000000000001',
        'namespace', 'ns', 'topic', 's4-whole', 'payload', 'p', 'headers', '{"h": 1}'::jsonb,
        'correlation_id', 'c', 'tenant_id', :'tenant', 'dedupe_key', :'tenant' || '/k',
        'stream_id', :'tenant', 'priority', 0, 'subscription', NULL, 'published_id', NULL, 'attempts', 1, 'retry_count', 0,
        'due_time', '2001-01-01 UTC'::timestamptz, 'owner_token', tap.alice()),
    'SHARED-15: claim returns whole messages')
  FROM outbox.claim(tap.alice(), topics => '{s4-whole}') c;

SELECT tap.lease('s4-not', 'done', 'dead', 'leased') AS leased \gset
SELECT outbox.ack(tap.alice(), (:'leased'::bigint[])[1:1]),
       outbox.fail(tap.alice(), (:'leased'::bigint[])[2:2]),
       outbox.enqueue('s4-not', 'not due', due_time => clock_timestamp() + interval '1 h') AS e1,
       outbox.enqueue('s4-not', 'expired', expires_at => clock_timestamp() - interval '1 s') AS e2,
       outbox.enqueue('s4-not', 'of another tenant', tenant_id => tap.bob()) AS e3,
       outbox.enqueue('s4-not-paused', 'paused', tenant_id => :'tenant') AS e4,
       outbox.pause_topic('s4-not-paused'),
       outbox.enqueue('s4-not', 'good', tenant_id => :'tenant') AS e5 \gset
SELECT is(
    ARRAY(SELECT payload FROM outbox.claim(tap.bob(), tenant_id => :'tenant',
                                           topics => '{s4-not,s4-not-paused}')),
    '{good}',
    'section 4: claim returns nothing finished, not due, expired, paused, leased, or of another tenant');

SET client_min_messages = error;
SELECT clock_timestamp() AS before,
       (SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{s4-empty}')) AS at_once,
       (SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{}')) AS of_no_topic,
       (SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{s4-empty}', wait_ms => 60000)) AS waited,
       clock_timestamp() AS after \gset
RESET client_min_messages;
SELECT is(
    ROW(:at_once, :of_no_topic, :waited,
        :'after'::timestamptz - :'before' < interval '30 s')::text,
    '(0,0,0,t)',
    'section 4: in a transaction that has written, a claim does not wait for more');

SELECT outbox.enqueue('s4-filter', 'a', namespace => 'n1', tenant_id => :'tenant') AS e1,
       outbox.enqueue('s4-filter', 'b', namespace => 'n1') AS e2,
       outbox.enqueue('s4-filter', 'c', namespace => 'n2', tenant_id => :'tenant') AS e3,
       outbox.enqueue('s4-filter-x', 'd', namespace => 'n1', tenant_id => :'tenant') AS e4,
       outbox.enqueue('join.wait', 'e', namespace => 'n1') AS e5 \gset
SELECT is(
    ARRAY[
        (SELECT string_agg(payload, '')
           FROM outbox.claim(tap.alice(), namespace => 'n1', topics => '{s4-filter}', tenant_id => :'tenant')),
        (SELECT string_agg(payload, '')
           FROM outbox.claim(tap.alice(), topics => '{s4-filter}', tenant_id => :'tenant')),
        (SELECT string_agg(payload, '')
           FROM outbox.claim(tap.alice(), namespace => 'n1')),
        (SELECT string_agg(payload, '')
           FROM outbox.claim(tap.alice(), namespace => 'n1', topics => '{join.wait}'))],
    '{a,c,bd,e}',
    'section 4: namespace, topics and tenant_id choose; null takes all, but join waits only when named');

SELECT outbox.enqueue('s4-order-x', 'third', due_time => clock_timestamp() + interval '3 s') AS e1,
       outbox.enqueue('s4-order-y', 'second', due_time => clock_timestamp() + interval '2 s') AS e2,
       outbox.enqueue('s4-order-x', 'first', due_time => clock_timestamp() + interval '1 s') AS e3,
       outbox.enqueue('s4-order-y', 'fourth') AS e4, outbox.enqueue('s4-order-x', 'fifth') AS e5 \gset
UPDATE outbox.queue
   SET next_attempt_at = t
  FROM (SELECT id AS of, CASE WHEN due_time IS NULL THEN now() ELSE due_time - interval '1 h' END AS t
          FROM outbox.queue) s
 WHERE topic LIKE 's4-order-%' AND id = s.of;
SELECT is(
    ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{s4-order-y,s4-order-x}', batch_size => 2))
        || ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{s4-order-x,s4-order-y}')),
    '{first,second,third,fourth,fifth}',
    'SHARED-33: messages come by next_attempt_at, then id, across the chosen topics');

SELECT tap.lease('s4-ended', 'p') AS leased \gset
SELECT tap.end_leases('s4-ended') \gset
SELECT results_eq(
    $$SELECT payload, attempts, owner_token FROM outbox.claim(tap.bob(), topics => '{s4-ended}')$$,
    $$VALUES ('p', 2, tap.bob())$$,
    'SHARED-02, SHARED-20, SHARED-30, SHARED-43: an expired lease is claimable at once, without a reap, and the attempts count on');

SELECT outbox.configure_topic('s4-most-policy', max_attempts => 1) \gset
SELECT tap.lease('s4-most-' || t, 'p') FROM unnest('{call,policy,setting,more}'::text[]) t \g /dev/null
SELECT tap.end_leases('s4-most-' || t) FROM unnest('{call,policy,setting,more}'::text[]) t \g /dev/null
SELECT count(*) AS by_call FROM outbox.claim(tap.bob(), topics => '{s4-most-call}', max_attempts => 1) \gset
SELECT count(*) AS by_policy FROM outbox.claim(tap.bob(), topics => '{s4-most-policy}') \gset
SET LOCAL outbox.max_attempts = 1;
SELECT count(*) AS by_setting FROM outbox.claim(tap.bob(), topics => '{s4-most-setting}') \gset
RESET outbox.max_attempts;
SELECT count(*) AS with_more FROM outbox.claim(tap.bob(), topics => '{s4-most-more}') \gset
SELECT is(
    ARRAY(SELECT format('%s: %s %s %s', topic, status, failure_reason, attempts)
            FROM outbox.messages WHERE topic LIKE 's4-most-%' ORDER BY topic)
        || ARRAY[:'by_call', :'by_policy', :'by_setting', :'with_more'],
    ARRAY['s4-most-call: 3 5 1', 's4-most-more: 1 0 2', 's4-most-policy: 3 5 1',
          's4-most-setting: 3 5 1', '0', '0', '0', '1'],
    'SHARED-31, SHARED-37: at max_attempts (call, topic or setting) a message fails with reason 5, and is not handed out');

\set stream '26262626-0000-4000-8000-000000000001'
SELECT outbox.enqueue_many('s4-stream', '{1,2,3,4}', stream_id => :'stream') \gset
SELECT array_agg(id) AS leased FROM outbox.claim(tap.alice(), topics => '{s4-stream}', batch_size => 2) \gset
SELECT (SELECT count(*) FROM outbox.claim(tap.bob(), topics => '{s4-stream}')) AS behind_a_lease,
       outbox.nack(tap.alice(), (:'leased'::bigint[])[1:1], delay => '1 h') \gset
SELECT (SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{s4-stream}')) AS behind_a_retry \gset
UPDATE outbox.queue
   SET next_attempt_at = now()
 WHERE id = (:'leased'::bigint[])[1];
SELECT is(
    ARRAY[:'behind_a_lease', :'behind_a_retry']
        || ARRAY(SELECT payload FROM outbox.claim(tap.bob(), topics => '{s4-stream}', batch_size => 1))
        || ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{s4-stream}'))
        || ARRAY(SELECT payload FROM outbox.claim(tap.bob(), topics => '{s4-stream}')),
    '{0,0,1,2,3,4}',
    'WORK-11, WORK-12: in a stream an earlier message that is leased or waits for its retry blocks the later ones for others');

SELECT * FROM finish();
ROLLBACK;
