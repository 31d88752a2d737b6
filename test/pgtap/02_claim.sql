-- 02_claim.sql: taking messages
--
-- OBX-017..026, section 4 of the contract.

BEGIN;
\ir include/tools.sql
SELECT plan(10);

SELECT outbox.enqueue_many('obx-017', ARRAY(SELECT i::text FROM generate_series(1, 60) i)) \gset
SELECT count(*) AS asked FROM outbox.claim(tap.alice(), batch_size => 3, topics => '{obx-017}') \gset
SET LOCAL outbox.batch_size = 5;
SELECT count(*) AS set FROM outbox.claim(tap.alice(), topics => '{obx-017}') \gset
RESET outbox.batch_size;
SELECT count(*) AS by_default FROM outbox.claim(tap.alice(), topics => '{obx-017}') \gset
SELECT count(*) AS rest FROM outbox.claim(tap.alice(), topics => '{obx-017}') \gset
SELECT is(
    ARRAY[:asked, :set, :by_default, :rest], '{3,5,50,2}',
    'OBX-017 claim returns at most batch_size messages: the argument, else the setting, else 50');

SELECT outbox.enqueue('obx-018', 'p') \gset
SELECT clock_timestamp() AS before \gset
SELECT count(*) FROM outbox.claim(tap.alice(), 100, topics => '{obx-018}') \gset
SELECT is(
    ROW(status, owner_token, attempts,
        locked_until BETWEEN :'before'::timestamptz + interval '100 s'
                         AND clock_timestamp() + interval '100 s')::text,
    ROW(1, tap.alice(), 1, true)::text,
    'OBX-018 claim sets status, owner, one more attempt, and a lease of lease_seconds from the clock')
  FROM outbox.messages WHERE topic = 'obx-018';

\set tenant '11111111-1111-4111-8111-111111111111'
SELECT outbox.enqueue('obx-019', 'p', 'c', '2001-01-01 UTC', 'ns', :'tenant', :'tenant' || '/k',
                      :'tenant', '{"h": 1}', NULL, '19191919-0000-4000-8000-000000000001') \gset
SELECT is(
    to_jsonb(c) - '{id,created_at,locked_until}'::text[],
    jsonb_build_object(
        'message_id', '19191919-0000-4000-8000-000000000001',
        'namespace', 'ns', 'topic', 'obx-019', 'payload', 'p', 'headers', '{"h": 1}'::jsonb,
        'correlation_id', 'c', 'tenant_id', :'tenant', 'dedupe_key', :'tenant' || '/k',
        'stream_id', :'tenant', 'attempts', 1, 'retry_count', 0,
        'due_time', '2001-01-01 UTC'::timestamptz, 'owner_token', tap.alice()),
    'OBX-019 claim returns whole messages')
  FROM outbox.claim(tap.alice(), topics => '{obx-019}') c;

SELECT tap.lease('obx-020', 'done', 'dead', 'leased') AS leased \gset
SELECT outbox.ack(tap.alice(), (:'leased'::bigint[])[1:1]),
       outbox.fail(tap.alice(), (:'leased'::bigint[])[2:2]),
       outbox.enqueue('obx-020', 'not due', due_time => clock_timestamp() + interval '1 h') AS e1,
       outbox.enqueue('obx-020', 'expired', expires_at => clock_timestamp() - interval '1 s') AS e2,
       outbox.enqueue('obx-020', 'of another tenant', tenant_id => tap.bob()) AS e3,
       outbox.enqueue('obx-020-paused', 'paused', tenant_id => :'tenant') AS e4,
       outbox.pause_topic('obx-020-paused'),
       outbox.enqueue('obx-020', 'good', tenant_id => :'tenant') AS e5 \gset
SELECT is(
    ARRAY(SELECT payload FROM outbox.claim(tap.bob(), tenant_id => :'tenant',
                                           topics => '{obx-020,obx-020-paused}')),
    '{good}',
    'OBX-020 claim returns nothing finished, not due, expired, paused, leased, or of another tenant');

SET client_min_messages = error;
SELECT clock_timestamp() AS before,
       (SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{obx-021}')) AS at_once,
       (SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{}')) AS of_no_topic,
       (SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{obx-021}', wait_ms => 60000)) AS waited,
       clock_timestamp() AS after \gset
RESET client_min_messages;
SELECT is(
    ROW(:at_once, :of_no_topic, :waited,
        :'after'::timestamptz - :'before' < interval '30 s')::text,
    '(0,0,0,t)',
    'OBX-021 an empty result is no error; in a transaction that has written, a claim does not wait for more');

SELECT outbox.enqueue('obx-022', 'a', namespace => 'n1', tenant_id => :'tenant') AS e1,
       outbox.enqueue('obx-022', 'b', namespace => 'n1') AS e2,
       outbox.enqueue('obx-022', 'c', namespace => 'n2', tenant_id => :'tenant') AS e3,
       outbox.enqueue('obx-022-x', 'd', namespace => 'n1', tenant_id => :'tenant') AS e4,
       outbox.enqueue('join.wait', 'e', namespace => 'n1') AS e5 \gset
SELECT is(
    ARRAY[
        (SELECT string_agg(payload, '')
           FROM outbox.claim(tap.alice(), namespace => 'n1', topics => '{obx-022}', tenant_id => :'tenant')),
        (SELECT string_agg(payload, '')
           FROM outbox.claim(tap.alice(), topics => '{obx-022}', tenant_id => :'tenant')),
        (SELECT string_agg(payload, '')
           FROM outbox.claim(tap.alice(), namespace => 'n1')),
        (SELECT string_agg(payload, '')
           FROM outbox.claim(tap.alice(), namespace => 'n1', topics => '{join.wait}'))],
    '{a,c,bd,e}',
    'OBX-022 namespace, topics and tenant_id choose; null takes all, but join waits only when named');

SELECT outbox.enqueue('obx-023-x', 'third', due_time => clock_timestamp() + interval '3 s') AS e1,
       outbox.enqueue('obx-023-y', 'second', due_time => clock_timestamp() + interval '2 s') AS e2,
       outbox.enqueue('obx-023-x', 'first', due_time => clock_timestamp() + interval '1 s') AS e3,
       outbox.enqueue('obx-023-y', 'fourth') AS e4, outbox.enqueue('obx-023-x', 'fifth') AS e5 \gset
UPDATE outbox.queue
   SET next_attempt_at = t
  FROM (SELECT id AS of, CASE WHEN due_time IS NULL THEN now() ELSE due_time - interval '1 h' END AS t
          FROM outbox.queue) s
 WHERE topic LIKE 'obx-023-%' AND id = s.of;
SELECT is(
    ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{obx-023-y,obx-023-x}', batch_size => 2))
        || ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{obx-023-x,obx-023-y}')),
    '{first,second,third,fourth,fifth}',
    'OBX-023 messages come by next_attempt_at, then id, across the chosen topics');

SELECT tap.lease('obx-024', 'p') AS leased \gset
SELECT tap.end_leases('obx-024') \gset
SELECT results_eq(
    $$SELECT payload, attempts, owner_token FROM outbox.claim(tap.bob(), topics => '{obx-024}')$$,
    $$VALUES ('p', 2, tap.bob())$$,
    'OBX-024 an expired lease is claimable at once, without a reap, and the attempts count on');

SELECT outbox.configure_topic('obx-025-policy', max_attempts => 1) \gset
SELECT tap.lease('obx-025-' || t, 'p') FROM unnest('{call,policy,setting,more}'::text[]) t \g /dev/null
SELECT tap.end_leases('obx-025-' || t) FROM unnest('{call,policy,setting,more}'::text[]) t \g /dev/null
SELECT count(*) AS by_call FROM outbox.claim(tap.bob(), topics => '{obx-025-call}', max_attempts => 1) \gset
SELECT count(*) AS by_policy FROM outbox.claim(tap.bob(), topics => '{obx-025-policy}') \gset
SET LOCAL outbox.max_attempts = 1;
SELECT count(*) AS by_setting FROM outbox.claim(tap.bob(), topics => '{obx-025-setting}') \gset
RESET outbox.max_attempts;
SELECT count(*) AS with_more FROM outbox.claim(tap.bob(), topics => '{obx-025-more}') \gset
SELECT is(
    ARRAY(SELECT format('%s: %s %s %s', topic, status, failure_reason, attempts)
            FROM outbox.messages WHERE topic LIKE 'obx-025-%' ORDER BY topic)
        || ARRAY[:'by_call', :'by_policy', :'by_setting', :'with_more'],
    ARRAY['obx-025-call: 3 5 1', 'obx-025-more: 1 0 2', 'obx-025-policy: 3 5 1',
          'obx-025-setting: 3 5 1', '0', '0', '0', '1'],
    'OBX-025 at max_attempts (call, topic or setting) a message fails with reason 5, and is not handed out');

\set stream '26262626-0000-4000-8000-000000000001'
SELECT outbox.enqueue_many('obx-026', '{1,2,3,4}', stream_id => :'stream') \gset
SELECT array_agg(id) AS leased FROM outbox.claim(tap.alice(), topics => '{obx-026}', batch_size => 2) \gset
SELECT (SELECT count(*) FROM outbox.claim(tap.bob(), topics => '{obx-026}')) AS behind_a_lease,
       outbox.nack(tap.alice(), (:'leased'::bigint[])[1:1], delay => '1 h') \gset
SELECT (SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{obx-026}')) AS behind_a_retry \gset
UPDATE outbox.queue
   SET next_attempt_at = now()
 WHERE id = (:'leased'::bigint[])[1];
SELECT is(
    ARRAY[:'behind_a_lease', :'behind_a_retry']
        || ARRAY(SELECT payload FROM outbox.claim(tap.bob(), topics => '{obx-026}', batch_size => 1))
        || ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{obx-026}'))
        || ARRAY(SELECT payload FROM outbox.claim(tap.bob(), topics => '{obx-026}')),
    '{0,0,1,2,3,4}',
    'OBX-026 in a stream an earlier message that is leased or waits for its retry blocks the later ones for others');

SELECT * FROM finish();
ROLLBACK;
