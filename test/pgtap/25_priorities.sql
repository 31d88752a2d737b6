-- 24_priorities.sql: what is urgent comes first
--
-- Section 14 of the contract.

BEGIN;
\ir include/tools.sql
SELECT plan(9);

-- messages that became due so many seconds before noon of 1 January 2020
CREATE FUNCTION pg_temp.place(payload text, topic text, age integer, priority integer,
                              stream_id uuid DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    m uuid := outbox.enqueue(topic, payload, priority => place.priority, stream_id => place.stream_id);
BEGIN
    UPDATE outbox.queue q
       SET next_attempt_at = '2020-01-01 12:00 UTC'::timestamptz - age * interval '1 s'
     WHERE q.message_id = m;
END
$$;

SELECT is(
    tap.sqlstates($$SELECT outbox.enqueue('pr-range', 'p', priority => -3)$$,
                  $$SELECT outbox.enqueue('pr-range', 'p', priority => 3)$$,
                  $$SELECT outbox.enqueue('pr-range', 'p', priority => 2147483647)$$,
                  $$SELECT outbox.enqueue_batch('[{"topic": "pr-range", "payload": "p", "priority": 3}]')$$,
                  $$INSERT INTO outbox.queue (topic, payload, priority) VALUES ('pr-range', 'p', 3)$$,
                  $$SELECT outbox.configure_topic('pr-range', priority => 3)$$,
                  $$SELECT outbox.configure_topic('pr-range', priority => 1, kind => 'timer')$$)
        || (SELECT count(*)::text FROM outbox.messages WHERE topic = 'pr-range'),
    '{22023,22023,22023,22023,22023,22023,22023,0}',
    'section 14: a priority is -2 to 2, else 22023, and of messages only');

SELECT outbox.enqueue('pr-null', 'a') AS a,
       outbox.configure_topic('pr-null', priority => 2) AS c \gset
SELECT outbox.enqueue('pr-null', 'b') AS b,
       outbox.enqueue('pr-null', 'c', priority => 0) AS c \gset
INSERT INTO outbox.queue (topic, payload) VALUES ('pr-null', 'd');
SELECT is(
    ARRAY(SELECT payload || priority FROM outbox.messages WHERE topic = 'pr-null' ORDER BY id),
    '{a0,b2,c0,d2}',
    'section 14: a null is the priority that the topic''s policy says at that time, else 0');

SELECT pg_temp.place(p::text, 'pr-order', 0, p) FROM generate_series(-2, 2) p \g /dev/null
SELECT is(
    ARRAY(SELECT priority FROM outbox.claim(tap.alice(), topics => '{pr-order}')),
    '{2,1,0,-1,-2}',
    'section 14: the urgent come first, and claim says which they are');

SELECT pg_temp.place('a', 'pr-boost', 240, -2), pg_temp.place('b', 'pr-boost', 0, 2),
       pg_temp.place('c', 'pr-boost', 121, 0), pg_temp.place('d', 'pr-boost', 119, 0),
       pg_temp.place('e', 'pr-boost', 61, 1), pg_temp.place('f', 'pr-boost', 181, -1) \g /dev/null
SELECT is(
    ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{pr-boost}')),
    '{c,e,f,a,b,d}',
    'section 14: a message comes as if it had become due its priority times priority_boost earlier');

SELECT pg_temp.place('lazy', 'pr-flow', 0, -2) \g /dev/null
SELECT pg_temp.place(i::text, 'pr-flow', i * -10, 2) FROM generate_series(1, 40) i \g /dev/null
SELECT is(
    (SELECT n FROM outbox.claim(tap.alice(), topics => '{pr-flow}') WITH ORDINALITY c(
        id, message_id, namespace, topic, payload, headers, correlation_id, tenant_id, dedupe_key,
        stream_id, attempts, retry_count, created_at, due_time, locked_until, owner_token,
        subscription, published_id, priority, n)
      WHERE payload = 'lazy'),
    24::bigint,
    'section 14: nothing waits forever: what has waited for four boosts is before all urgent ones to come');

\set stream '24242424-0000-4000-8000-000000000001'
SELECT pg_temp.place('1', 'pr-stream', 9, -2, :'stream'), pg_temp.place('2', 'pr-stream', 8, 2, :'stream'),
       pg_temp.place('3', 'pr-stream', 7, 0, :'stream'), pg_temp.place('x', 'pr-stream', 0, 1) \g /dev/null
SELECT is(
    ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{pr-stream}')),
    '{x,1,2,3}',
    'section 14: streams keep their order whatever the priorities');

SELECT outbox.enqueue('pr-kept', 'p', priority => 2) \gset
SELECT id AS i FROM outbox.claim(tap.alice(), topics => '{pr-kept}') \gset
SELECT outbox.nack(tap.alice(), ARRAY[:i], delay => '0') AS nacked,
       (SELECT priority FROM outbox.messages WHERE id = :i) AS after_nack,
       (SELECT priority FROM outbox.claim(tap.alice(), topics => '{pr-kept}')) AS retried,
       outbox.fail(tap.alice(), ARRAY[:i]) AS failed \gset
SELECT priority AS dead, outbox.requeue(ARRAY[:i]) AS requeued FROM outbox.messages WHERE id = :i \gset
SELECT priority AS back FROM outbox.claim(tap.alice(), topics => '{pr-kept}') \gset
SELECT outbox.ack(tap.alice(), ARRAY[:i]) \gset
SELECT is(
    ARRAY[:after_nack, :retried, :dead, :back, (SELECT priority FROM outbox.messages WHERE id = :i)], '{2,2,2,2,2}',
    'section 14: a message keeps its priority: retried, dead, requeued, done');

SELECT outbox.reset_topic('pr-null', setting => 'priority') AS reset,
       outbox.enqueue('pr-null', 'e') AS e \gset
SELECT is(
    ARRAY(SELECT payload || priority FROM outbox.messages WHERE topic = 'pr-null' ORDER BY id),
    '{a0,b2,c0,d2,e0}',
    'section 14: a policy that changes is for what comes after it');

SELECT pg_temp.place('plain', 'pr-off', 1, 0), pg_temp.place('urgent', 'pr-off', 0, 2) \g /dev/null
SET LOCAL outbox.priority_boost = 0;
SELECT is(
    ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{pr-off}')), '{plain,urgent}',
    'section 14: without a boost priorities change nothing, also for what waits');

SELECT * FROM finish();
ROLLBACK;
