-- 01_enqueue.sql: putting messages into the queue
--
-- OBX-001..016, section 3 of the contract. OBX-002, which takes a second
-- session, is in 08_concurrency.sql.

BEGIN;
\ir include/tools.sql
SELECT plan(15);

SELECT outbox.enqueue('obx-001', 'text') AS by_text,
       outbox.enqueue('obx-001', '{"a": 1}'::jsonb) AS by_jsonb,
       (outbox.try_enqueue('obx-001', 'tried')).message_id AS by_try,
       outbox.enqueue_many('obx-001', '{one,two}') AS by_many \gset
SELECT array_agg(message_id ORDER BY ordinal) AS by_batch
  FROM outbox.enqueue_batch('[{"topic": "obx-001", "payload": "three"},
                              {"topic": "obx-001", "payload": "four"}]') \gset
SELECT is(
    ARRAY(SELECT m.payload
            FROM unnest(ARRAY[:'by_text', :'by_jsonb', :'by_try']::uuid[]
                        || :'by_many'::uuid[] || :'by_batch'::uuid[])
                 WITH ORDINALITY AS e (message_id, n)
            JOIN outbox.messages m USING (message_id)
           ORDER BY e.n),
    ARRAY['text', '{"a": 1}', 'tried', 'one', 'two', 'three', 'four'],
    'OBX-001 every form of enqueue returns the ids of its messages, in their order');

SELECT is(
    tap.sqlstates(
        $$SELECT outbox.enqueue(NULL, 'p')$$,
        $$SELECT outbox.enqueue('', 'p')$$,
        $$SELECT outbox.enqueue(repeat('x', 256), 'p')$$,
        $$SELECT outbox.enqueue(repeat('x', 255), 'p')$$),
    '{22004,22023,22023,00000}',
    'OBX-003 a topic is not null, not empty, and at most 255 characters');

SELECT outbox.enqueue('obx-004', '') AS e1,
       outbox.enqueue('obx-004', '{"b":1,  "a":'::text) AS e2,
       outbox.enqueue('obx-004', '{"b":1,  "a":2}'::jsonb) AS e3,
       outbox.enqueue('obx-004', E'it''s "\\x" $1\n\t') AS e4 \gset
SELECT is(
    ARRAY(SELECT payload FROM outbox.messages WHERE topic = 'obx-004' ORDER BY id)
        || tap.sqlstates($$SELECT outbox.enqueue('obx-004', NULL::text)$$,
                         $$SELECT outbox.enqueue('obx-004', NULL::jsonb)$$),
    ARRAY['', '{"b":1,  "a":', '{"a": 2, "b": 1}', E'it''s "\\x" $1\n\t', '22004', '22004'],
    'OBX-004 a payload is stored as given, be it empty, and never parsed; it is not null');

SELECT tap.sqlstates(
    $$SELECT outbox.enqueue('obx-005', 'empty', correlation_id => '', dedupe_key => '')$$,
    $$SELECT outbox.enqueue('obx-005', 'full', correlation_id => repeat('c', 255), dedupe_key => repeat('d', 255))$$,
    $$SELECT outbox.enqueue('obx-005', 'long', correlation_id => repeat('c', 256))$$,
    $$SELECT outbox.enqueue('obx-005', 'long', dedupe_key => repeat('d', 256))$$) AS states \gset
SELECT is(
    :'states'::text[]
    || ARRAY(SELECT format('%s %s %s', payload, length(correlation_id), length(dedupe_key))
               FROM outbox.messages WHERE topic = 'obx-005' ORDER BY id),
    ARRAY['00000', '00000', '22023', '22023', 'empty  ', 'full 255 255'],
    'OBX-005 an empty correlation_id or dedupe_key is null; neither is longer than 255 characters');

SELECT tap.sqlstates(
    $$SELECT outbox.enqueue('obx-006', 'p')$$,
    $$SELECT outbox.enqueue('obx-006', 'p', namespace => repeat('n', 255))$$,
    $$SELECT outbox.enqueue('obx-006', 'p', namespace => '')$$,
    $$SELECT outbox.enqueue('obx-006', 'p', namespace => repeat('n', 256))$$,
    $$SELECT outbox.enqueue('obx-006', 'p', namespace => NULL)$$) AS states \gset
SELECT is(
    :'states'::text[]
    || ARRAY(SELECT namespace FROM outbox.messages WHERE topic = 'obx-006' ORDER BY id),
    ARRAY['00000', '00000', '22023', '22023', '22004', 'default', repeat('n', 255)],
    'OBX-006 the namespace is "default" unless given, not empty, and at most 255 characters');

SELECT outbox.enqueue('obx-007', 'in a day', due_time => now() + interval '1 day') AS e1,
       outbox.enqueue('obx-007', 'parked', due_time => 'infinity') AS e2 \gset
SELECT count(*) AS early FROM outbox.claim(tap.alice(), topics => '{obx-007}') \gset
SELECT tap.come_due('obx-007') \gset
SELECT is(
    ARRAY[:'early'] || ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{obx-007}')),
    '{0,in a day,parked}',
    'OBX-007 a message is not claimable before its due_time; infinity parks it');

SELECT outbox.enqueue('obx-008', 'no time') AS e1,
       outbox.enqueue('obx-008', 'the past', due_time => '2001-01-01') AS e2,
       outbox.enqueue('obx-008', 'for ever', due_time => '-infinity') AS e3 \gset
SELECT set_eq(
    $$SELECT payload FROM outbox.claim(tap.alice(), topics => '{obx-008}')$$,
    ARRAY['no time', 'the past', 'for ever'],
    'OBX-008 without a due_time, or with a past one, a message is claimable at once');

SELECT clock_timestamp() AS before \gset
SELECT outbox.enqueue('obx-009', 'p') \gset
SELECT is(
    ROW(created_at BETWEEN :'before' AND clock_timestamp(), attempts, retry_count, status, is_processed)::text,
    '(t,0,0,0,f)',
    'OBX-009 created_at is the clock at the insertion; nothing was tried or processed yet')
  FROM outbox.messages WHERE topic = 'obx-009';

SELECT outbox.enqueue('obx-010', 'late', expires_at => clock_timestamp() - interval '1 s') AS e1,
       outbox.enqueue('obx-010', 'good', expires_at => clock_timestamp() + interval '1 h') AS e2 \gset
SELECT string_agg(payload, ',') AS claimed FROM outbox.claim(tap.alice(), topics => '{obx-010}') \gset
SELECT is(
    ARRAY[:'claimed']
    || ARRAY(SELECT format('%s %s %s', payload, status, failure_reason)
               FROM outbox.messages WHERE topic = 'obx-010' ORDER BY id),
    '{good,late 3 6,good 1 0}',
    'OBX-010 past its expires_at a message fails with reason 6 instead of being delivered');

SELECT outbox.enqueue('obx-011', 'first', dedupe_key => 'k') AS first,
       outbox.enqueue('obx-011', 'second', dedupe_key => 'k') AS second,
       outbox.try_enqueue('obx-011', 'third', dedupe_key => 'k') AS third \gset
SELECT is(
    ARRAY[:'second', :'third'] || ARRAY(SELECT payload FROM outbox.messages WHERE topic = 'obx-011'),
    ARRAY[:'first', format('(%s,f)', :'first'), 'first'],
    'OBX-011 a second enqueue of a dedupe_key inserts nothing and returns the first one''s id');

SELECT outbox.enqueue('obx-012', 'done', dedupe_key => 'd') AS done,
       outbox.enqueue('obx-012', 'dead', dedupe_key => 'e') AS dead \gset
SELECT outbox.ack(tap.alice(), ids[1:1]), outbox.fail(tap.alice(), ids[2:2])
  FROM (SELECT array_agg(id) AS ids FROM outbox.claim(tap.alice(), topics => '{obx-012}')) s \gset
SELECT is(
    ARRAY[outbox.enqueue('obx-012', 'again', dedupe_key => 'd'),
          outbox.enqueue('obx-012', 'again', dedupe_key => 'e')],
    ARRAY[:'done', :'dead']::uuid[],
    'OBX-012 a dedupe_key stays taken while its message is kept, though done or dead');

\set stream '51515151-0000-4000-8000-000000000001'
SELECT outbox.enqueue('obx-013', '1', stream_id => :'stream') AS e1,
       outbox.enqueue('obx-013', '2', stream_id => :'stream', due_time => '2001-01-01') AS e2,
       outbox.enqueue_many('obx-013', '{3,4}', stream_id => :'stream') AS e3 \gset
INSERT INTO outbox.queue (topic, payload, stream_id) VALUES ('obx-013', '5', :'stream');
SELECT is(
    ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{obx-013}', batch_size => 2))
        || ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{obx-013}')),
    '{1,2,3,4,5}',
    'OBX-013 messages of a stream are delivered in the order in which they were enqueued');

SELECT outbox.enqueue('obx-014', 'done', message_id => '14141414-0000-4000-8000-000000000001') AS e1,
       outbox.enqueue('obx-014', 'dead', message_id => '14141414-0000-4000-8000-000000000002') AS e2,
       outbox.enqueue('obx-014', 'live', message_id => '14141414-0000-4000-8000-000000000003') AS e3 \gset
SELECT outbox.ack(tap.alice(), ids[1:1]), outbox.fail(tap.alice(), ids[2:2])
  FROM (SELECT array_agg(id) AS ids FROM outbox.claim(tap.alice(), topics => '{obx-014}', batch_size => 2)) s \gset
SELECT is(
    tap.sqlstates(
        $$SELECT outbox.enqueue('obx-014', 'again', message_id => '14141414-0000-4000-8000-000000000001')$$,
        $$SELECT outbox.enqueue('obx-014', 'again', message_id => '14141414-0000-4000-8000-000000000002')$$,
        $$SELECT outbox.enqueue('obx-014', 'again', message_id => '14141414-0000-4000-8000-000000000003')$$)
    || ARRAY(SELECT payload FROM outbox.messages WHERE topic = 'obx-014' ORDER BY id),
    '{23505,23505,23505,done,dead,live}',
    'OBX-014 a message_id that exists, in whatever state, is refused with 23505');

\set trace '{"traceparent": "00-0af7-b7ad-01", "nested": {"n": [1, null]}}'
SELECT outbox.enqueue('obx-015', 'p', headers => :'trace') AS e1,
       outbox.enqueue('obx-015', 'p') AS e2 \gset
SELECT is(
    ARRAY(SELECT headers FROM outbox.claim(tap.alice(), topics => '{obx-015}')),
    ARRAY[:'trace', NULL]::jsonb[],
    'OBX-015 headers travel with the message as they were set at enqueue time');

SELECT outbox.enqueue('obx-016', 'p', 'c', '2001-01-01', 'ns', NULL, 'k1', NULL, '{"h": 1}', '2999-01-01') \gset
INSERT INTO outbox.queue (topic, payload, correlation_id, due_time, namespace, dedupe_key, headers, expires_at)
VALUES ('obx-016', 'p', 'c', '2001-01-01', 'ns', 'k2', '{"h": 1}', '2999-01-01'),
       ('obx-016', 'p', 'c', '2001-01-01', 'ns', 'k1', '{"h": 1}', '2999-01-01');
SELECT is(
    tap.sqlstates(
        $$INSERT INTO outbox.queue (topic, payload) VALUES ('', 'p')$$,
        $$INSERT INTO outbox.queue (topic, payload) VALUES ('obx-016', NULL)$$)
    || (SELECT format('%s rows, %s kind', count(*),
                      count(DISTINCT to_jsonb(m) - '{id,message_id,dedupe_key,created_at,updated_at,next_attempt_at}'::text[]))
          FROM outbox.messages m WHERE topic = 'obx-016')
    || (SELECT count(*) || ' claimed' FROM outbox.claim(tap.alice(), topics => '{obx-016}')),
    '{22023,22004,"2 rows, 1 kind","2 claimed"}',
    'OBX-016 a plain INSERT does what enqueue does with the same values');

SELECT * FROM finish();
ROLLBACK;
