-- 01_enqueue.sql: putting messages into the queue
--
-- OBX-004..016, and what section 3 of the contract promises besides. OBX-001 is in
-- test/t/003_restart.pl; OBX-002 and OBX-003, which take a second session, are in
-- 08_concurrency.sql.

BEGIN;
\ir include/tools.sql
SELECT plan(25);

-- The SQLSTATE of each way to enqueue a message with this topic and payload.
CREATE FUNCTION tap.ways(topic text, payload text)
RETURNS text[]
LANGUAGE sql
AS $$
    SELECT tap.sqlstates(VARIADIC ARRAY(
        SELECT format(way, topic, payload)
          FROM unnest(ARRAY[
                   'SELECT outbox.enqueue(%L, %L::text)',
                   'SELECT outbox.enqueue(%L, to_jsonb(%L::text))',
                   'SELECT outbox.enqueue(%L, to_json(%L::text))',
                   'SELECT outbox.try_enqueue(%L, %L::text)',
                   'SELECT outbox.enqueue_many(%L, ARRAY[%L])',
                   'SELECT outbox.enqueue_batch(jsonb_build_array(jsonb_build_object(''topic'', %L, ''payload'', %L)))',
                   'INSERT INTO outbox.queue (topic, payload) VALUES (%L, %L)']) WITH ORDINALITY w (way, n)
         ORDER BY n))
$$;

SELECT tap.ways(NULL, 'p') || tap.ways('', 'p') AS states \gset
SELECT is(
    :'states'::text[]
        || (SELECT count(*)::text FROM outbox.messages WHERE topic = ''),
    '{22004,22004,22004,22004,22004,22004,22004,22023,22023,22023,22023,22023,22023,22023,0}',
    'OBX-004: a topic that is null or empty is refused by every way to enqueue');

SELECT tap.ways('obx-005', NULL) AS states \gset
SELECT is(
    :'states'::text[] || (SELECT count(*)::text FROM outbox.messages WHERE topic = 'obx-005'),
    '{22004,22004,22004,22004,22004,22004,22004,0}',
    'OBX-005: a null payload is refused by every way to enqueue, and nothing is stored');

SELECT tap.ways('obx-006', '') AS states \gset
SELECT is(
    :'states'::text[] || ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{obx-006}')),
    '{00000,00000,00000,00000,00000,00000,00000,"","\"\"","\"\"","","","",""}',
    'OBX-006: an empty payload is accepted by every way to enqueue, and handed out empty');

SELECT tap.ways(repeat('x', 256), 'p') || tap.ways('obx-007' || repeat('é', 248), 'p') AS states \gset
SELECT is(
    :'states'::text[]
        || (SELECT ARRAY[count(*), min(length(topic)), max(length(topic))]::text[]
              FROM outbox.messages WHERE topic LIKE 'obx-007%' OR topic LIKE 'xxx%'),
    '{22023,22023,22023,22023,22023,22023,22023,00000,00000,00000,00000,00000,00000,00000,7,255,255}',
    'OBX-007: a topic of 256 characters is refused by every way to enqueue, one of 255 is kept whole');

SELECT outbox.enqueue('obx-008', 'one', correlation_id => ''),
       (outbox.try_enqueue('obx-008', 'two', '')).message_id,
       outbox.enqueue('obx-008', 'other', correlation_id => ' ') \g /dev/null
SELECT FROM outbox.enqueue_batch('[{"topic": "obx-008", "payload": "three", "correlation_id": ""}]') \g /dev/null
INSERT INTO outbox.queue (topic, payload, correlation_id) VALUES ('obx-008', 'four', '');
SELECT is(
    ARRAY(SELECT payload FROM outbox.messages WHERE topic = 'obx-008' AND correlation_id IS NULL ORDER BY id)
        || ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{obx-008}') WHERE correlation_id IS NOT NULL),
    '{one,two,three,four,other}',
    'OBX-008: an empty correlation_id is stored as null, and nothing else is');

SELECT tap.sqlstates(
    $$SELECT outbox.enqueue('obx-009', 'long', correlation_id => repeat('c', 256))$$,
    $$SELECT outbox.try_enqueue('obx-009', 'long', repeat('c', 256))$$,
    $$SELECT outbox.enqueue_batch(jsonb_build_array(jsonb_build_object('topic', 'obx-009', 'payload', 'long', 'correlation_id', repeat('c', 256))))$$,
    $$INSERT INTO outbox.queue (topic, payload, correlation_id) VALUES ('obx-009', 'long', repeat('c', 256))$$,
    $$SELECT outbox.enqueue('obx-009', 'full', correlation_id => repeat('é', 255))$$) AS states \gset
SELECT is(
    :'states'::text[]
        || ARRAY(SELECT payload || (correlation_id = repeat('é', 255)) FROM outbox.messages WHERE topic = 'obx-009'),
    '{22023,22023,22023,22023,00000,fulltrue}',
    'OBX-009: a correlation_id of 256 characters is refused, one of 255 is stored whole');

SELECT outbox.enqueue('Order.Created', 'upper'), outbox.enqueue('order.created', 'lower'),
       outbox.pause_topic('ORDER.CREATED') \g /dev/null
SELECT is(
    ARRAY[(SELECT string_agg(payload, '+') FROM outbox.claim(tap.alice(), topics => '{ORDER.CREATED}')),
          (SELECT string_agg(payload, '+') FROM outbox.claim(tap.alice(), topics => '{order.created}')),
          (SELECT string_agg(payload, '+') FROM outbox.claim(tap.alice(), topics => '{Order.Created}'))],
    '{NULL,lower,upper}',
    'OBX-010: topics that differ in case are different topics');

\set unparsed '{"b":1,  "a":'
SELECT outbox.enqueue('obx-011', :'unparsed'::text) AS e1,
       outbox.enqueue('obx-011', E'it''s "\\x" $1\n\t\u2028<a>&amp;%s') AS e2,
       outbox.enqueue_many('obx-011', ARRAY[:'unparsed', 'NULL', '  ']) AS e3 \gset
SELECT FROM outbox.enqueue_batch(jsonb_build_array(jsonb_build_object('topic', 'obx-011', 'payload', :'unparsed'))) \g /dev/null
INSERT INTO outbox.queue (topic, payload) VALUES ('obx-011', '<not json>');
SELECT is(
    ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{obx-011}')),
    ARRAY[:'unparsed', E'it''s "\\x" $1\n\t\u2028<a>&amp;%s', :'unparsed', 'NULL', '  ', :'unparsed', '<not json>'],
    'OBX-011, SHARED-27: whatever a payload looks like, it is accepted and handed out as it was given');

SELECT outbox.enqueue('obx-012', 'in a day', due_time => clock_timestamp() + interval '1 day') AS e1,
       outbox.enqueue('obx-012', 'parked', due_time => 'infinity') AS e2,
       outbox.enqueue('obx-012', 'soon', due_time => clock_timestamp() + interval '300 ms') AS e3,
       outbox.enqueue('obx-012', 'now') AS e4 \gset
SELECT string_agg(payload, ',') AS early FROM outbox.claim(tap.alice(), topics => '{obx-012}') \gset
SELECT pg_sleep_until(due_time) FROM outbox.messages WHERE topic = 'obx-012' AND payload = 'soon' \g /dev/null
SELECT is(
    ARRAY[:'early'] || ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{obx-012}')),
    '{now,soon}',
    'OBX-012: a message is not claimable until its due_time has come, and then it is');

SELECT outbox.enqueue('obx-013', 'no time') AS e1,
       outbox.enqueue('obx-013', 'the past', due_time => '2001-01-01') AS e2,
       outbox.enqueue('obx-013', 'a moment ago', due_time => clock_timestamp()) AS e3,
       outbox.enqueue('obx-013', 'for ever', due_time => '-infinity') AS e4 \gset
SELECT set_eq(
    $$SELECT payload FROM outbox.claim(tap.alice(), topics => '{obx-013}')$$,
    ARRAY['no time', 'the past', 'a moment ago', 'for ever'],
    'OBX-013, QUEUE-08: without a due_time, or with a past one, a message is claimable at once');

SELECT count(tap.ways('obx-014', 'p')) FROM generate_series(1, 10) \g /dev/null
SELECT is(
    (SELECT ROW(count(*), count(DISTINCT id), count(DISTINCT message_id))::text FROM outbox.messages WHERE topic = 'obx-014')
        || (SELECT count(*) FROM pg_index WHERE indrelid = 'outbox.queue'::regclass AND indisprimary AND pg_get_indexdef(indexrelid) LIKE '%(id)'),
    '(70,70,70)1',
    'OBX-014: every message has a work item id of its own, however it was enqueued');

SET LOCAL TimeZone = 'Asia/Kathmandu';
SELECT clock_timestamp() AS before \gset
SELECT tap.ways('obx-015', 'p'), outbox.enqueue('obx-015', 'late', due_time => '2100-01-01', expires_at => '2200-01-01') \g /dev/null
INSERT INTO outbox.queue (topic, payload, created_at) VALUES ('obx-015', 'forged', '2001-01-01');
RESET TimeZone;
SELECT is(
    ROW(count(*), bool_and(created_at BETWEEN :'before' AND clock_timestamp()), count(DISTINCT created_at) > 7)::text, '(9,t,t)',
    'OBX-015: created_at is the server''s clock at the insertion, whatever the session''s time zone and the row say')
  FROM outbox.messages WHERE topic = 'obx-015';

SELECT tap.ways('obx-016', 'p') \g /dev/null
INSERT INTO outbox.queue (topic, payload, retry_count, attempts) VALUES ('obx-016', 'forged', 7, 8);
SELECT is(
    ARRAY(SELECT DISTINCT ROW(retry_count, is_processed, attempts, status, processed_at, processed_by, last_error)::text
            FROM outbox.messages WHERE topic = 'obx-016')
        || (SELECT count(*)::text FROM outbox.messages WHERE topic = 'obx-016'),
    '{"(0,f,0,0,,,)",8}',
    'OBX-016, SHARED-28: a new message has no retries and is not processed');

-- Besides

SELECT outbox.enqueue('s3-forms', 'text') AS by_text,
       outbox.enqueue('s3-forms', '{"a": 1}'::jsonb) AS by_jsonb,
       (outbox.try_enqueue('s3-forms', 'tried')).message_id AS by_try,
       outbox.enqueue_many('s3-forms', '{one,two}') AS by_many \gset
SELECT array_agg(message_id ORDER BY ordinal) AS by_batch
  FROM outbox.enqueue_batch('[{"topic": "s3-forms", "payload": "three"},
                              {"topic": "s3-forms", "payload": "four"}]') \gset
SELECT is(
    ARRAY(SELECT m.payload
            FROM unnest(ARRAY[:'by_text', :'by_jsonb', :'by_try']::uuid[]
                        || :'by_many'::uuid[] || :'by_batch'::uuid[])
                 WITH ORDINALITY AS e (message_id, n)
            JOIN outbox.messages m USING (message_id)
           ORDER BY e.n),
    ARRAY['text', '{"a": 1}', 'tried', 'one', 'two', 'three', 'four'],
    'SHARED-14: every form of enqueue returns the ids of its messages, in their order');

SELECT outbox.enqueue('s3-payload', '') AS e1,
       outbox.enqueue('s3-payload', '{"b":1,  "a":'::text) AS e2,
       outbox.enqueue('s3-payload', '{"b":1,  "a":2}'::jsonb) AS e3,
       outbox.enqueue('s3-payload', E'it''s "\\x" $1\n\t') AS e4 \gset
SELECT is(
    ARRAY(SELECT payload FROM outbox.messages WHERE topic = 's3-payload' ORDER BY id)
        || tap.sqlstates($$SELECT outbox.enqueue('s3-payload', NULL::text)$$,
                         $$SELECT outbox.enqueue('s3-payload', NULL::jsonb)$$),
    ARRAY['', '{"b":1,  "a":', '{"a": 2, "b": 1}', E'it''s "\\x" $1\n\t', '22004', '22004'],
    'section 3: a payload is stored as given; the jsonb form stores its text');

SELECT tap.sqlstates(
    $$SELECT outbox.enqueue('s3-key', 'empty', correlation_id => '', dedupe_key => '')$$,
    $$SELECT outbox.enqueue('s3-key', 'full', correlation_id => repeat('c', 255), dedupe_key => repeat('d', 255))$$,
    $$SELECT outbox.enqueue('s3-key', 'long', correlation_id => repeat('c', 256))$$,
    $$SELECT outbox.enqueue('s3-key', 'long', dedupe_key => repeat('d', 256))$$) AS states \gset
SELECT is(
    :'states'::text[]
    || ARRAY(SELECT format('%s %s %s', payload, length(correlation_id), length(dedupe_key))
               FROM outbox.messages WHERE topic = 's3-key' ORDER BY id),
    ARRAY['00000', '00000', '22023', '22023', 'empty  ', 'full 255 255'],
    'section 3: an empty correlation_id or dedupe_key is null; neither is longer than 255 characters');

SELECT tap.sqlstates(
    $$SELECT outbox.enqueue('s3-namespace', 'p')$$,
    $$SELECT outbox.enqueue('s3-namespace', 'p', namespace => repeat('n', 255))$$,
    $$SELECT outbox.enqueue('s3-namespace', 'p', namespace => '')$$,
    $$SELECT outbox.enqueue('s3-namespace', 'p', namespace => repeat('n', 256))$$,
    $$SELECT outbox.enqueue('s3-namespace', 'p', namespace => NULL)$$) AS states \gset
SELECT is(
    :'states'::text[]
    || ARRAY(SELECT namespace FROM outbox.messages WHERE topic = 's3-namespace' ORDER BY id),
    ARRAY['00000', '00000', '22023', '22023', '22004', 'default', repeat('n', 255)],
    'section 3: the namespace is "default" unless given, not empty, and at most 255 characters');

SELECT outbox.enqueue('s3-due', 'in a day', due_time => now() + interval '1 day') AS e1,
       outbox.enqueue('s3-due', 'parked', due_time => 'infinity') AS e2 \gset
SELECT count(*) AS early FROM outbox.claim(tap.alice(), topics => '{s3-due}') \gset
SELECT tap.come_due('s3-due') \gset
SELECT is(
    ARRAY[:'early'] || ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{s3-due}')),
    '{0,in a day,parked}',
    'section 3: a due_time of infinity parks a message until it is rescheduled');

SELECT outbox.enqueue('s3-expires', 'late', expires_at => clock_timestamp() - interval '1 s') AS e1,
       outbox.enqueue('s3-expires', 'good', expires_at => clock_timestamp() + interval '1 h') AS e2 \gset
SELECT string_agg(payload, ',') AS claimed FROM outbox.claim(tap.alice(), topics => '{s3-expires}') \gset
SELECT is(
    ARRAY[:'claimed']
    || ARRAY(SELECT format('%s %s %s', payload, status, failure_reason)
               FROM outbox.messages WHERE topic = 's3-expires' ORDER BY id),
    '{good,late 3 6,good 1 0}',
    'section 3: past its expires_at a message fails with reason 6 instead of being delivered');

SELECT outbox.enqueue('s3-dedupe', 'first', dedupe_key => 'k') AS first,
       outbox.enqueue('s3-dedupe', 'second', dedupe_key => 'k') AS second,
       outbox.try_enqueue('s3-dedupe', 'third', dedupe_key => 'k') AS third \gset
SELECT is(
    ARRAY[:'second', :'third'] || ARRAY(SELECT payload FROM outbox.messages WHERE topic = 's3-dedupe'),
    ARRAY[:'first', format('(%s,f,kept)', :'first'), 'first'],
    'SHARED-10, SHARED-16: a second enqueue of a dedupe_key inserts nothing and returns the first one''s id');

SELECT outbox.enqueue('s3-taken', 'done', dedupe_key => 'd') AS done,
       outbox.enqueue('s3-taken', 'dead', dedupe_key => 'e') AS dead \gset
SELECT outbox.ack(tap.alice(), ids[1:1]), outbox.fail(tap.alice(), ids[2:2])
  FROM (SELECT array_agg(id) AS ids FROM outbox.claim(tap.alice(), topics => '{s3-taken}')) s \gset
SELECT is(
    ARRAY[outbox.enqueue('s3-taken', 'again', dedupe_key => 'd'),
          outbox.enqueue('s3-taken', 'again', dedupe_key => 'e')],
    ARRAY[:'done', :'dead']::uuid[],
    'section 3: a dedupe_key stays taken while its message is kept, though done or dead');

\set stream '51515151-0000-4000-8000-000000000001'
SELECT outbox.enqueue('s3-stream', '1', stream_id => :'stream') AS e1,
       outbox.enqueue('s3-stream', '2', stream_id => :'stream', due_time => '2001-01-01') AS e2,
       outbox.enqueue_many('s3-stream', '{3,4}', stream_id => :'stream') AS e3 \gset
INSERT INTO outbox.queue (topic, payload, stream_id) VALUES ('s3-stream', '5', :'stream');
SELECT is(
    ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{s3-stream}', batch_size => 2))
        || ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{s3-stream}')),
    '{1,2,3,4,5}',
    'section 3: messages of a stream are delivered in the order in which they were enqueued');

SELECT outbox.enqueue('s3-id', 'done', message_id => '14141414-0000-4000-8000-000000000001') AS e1,
       outbox.enqueue('s3-id', 'dead', message_id => '14141414-0000-4000-8000-000000000002') AS e2,
       outbox.enqueue('s3-id', 'live', message_id => '14141414-0000-4000-8000-000000000003') AS e3 \gset
SELECT outbox.ack(tap.alice(), ids[1:1]), outbox.fail(tap.alice(), ids[2:2])
  FROM (SELECT array_agg(id) AS ids FROM outbox.claim(tap.alice(), topics => '{s3-id}', batch_size => 2)) s \gset
SELECT is(
    tap.sqlstates(
        $$SELECT outbox.enqueue('s3-id', 'again', message_id => '14141414-0000-4000-8000-000000000001')$$,
        $$SELECT outbox.enqueue('s3-id', 'again', message_id => '14141414-0000-4000-8000-000000000002')$$,
        $$SELECT outbox.enqueue('s3-id', 'again', message_id => '14141414-0000-4000-8000-000000000003')$$)
    || ARRAY(SELECT payload FROM outbox.messages WHERE topic = 's3-id' ORDER BY id),
    '{23505,23505,23505,done,dead,live}',
    'section 3: a message_id that exists, in whatever state, is refused with 23505');

\set trace '{"traceparent": "00-0af7-b7ad-01", "nested": {"n": [1, null]}}'
SELECT outbox.enqueue('s3-headers', 'p', headers => :'trace') AS e1,
       outbox.enqueue('s3-headers', 'p') AS e2 \gset
SELECT is(
    ARRAY(SELECT headers FROM outbox.claim(tap.alice(), topics => '{s3-headers}')),
    ARRAY[:'trace', NULL]::jsonb[],
    'section 3: headers travel with the message as they were set at enqueue time');

SELECT outbox.enqueue('s3-insert', 'p', 'c', '2001-01-01', 'ns', NULL, 'k1', NULL, '{"h": 1}', '2999-01-01') \gset
INSERT INTO outbox.queue (topic, payload, correlation_id, due_time, namespace, dedupe_key, headers, expires_at)
VALUES ('s3-insert', 'p', 'c', '2001-01-01', 'ns', 'k2', '{"h": 1}', '2999-01-01'),
       ('s3-insert', 'p', 'c', '2001-01-01', 'ns', 'k1', '{"h": 1}', '2999-01-01');
SELECT is(
    tap.sqlstates(
        $$INSERT INTO outbox.queue (topic, payload) VALUES ('', 'p')$$,
        $$INSERT INTO outbox.queue (topic, payload) VALUES ('s3-insert', NULL)$$)
    || (SELECT format('%s rows, %s kind', count(*),
                      count(DISTINCT to_jsonb(m) - '{id,message_id,dedupe_key,created_at,updated_at,next_attempt_at}'::text[]))
          FROM outbox.messages m WHERE topic = 's3-insert')
    || (SELECT count(*) || ' claimed' FROM outbox.claim(tap.alice(), topics => '{s3-insert}')),
    '{22023,22004,"2 rows, 1 kind","2 claimed"}',
    'section 3: a plain INSERT does what enqueue does with the same values');

SELECT * FROM finish();
ROLLBACK;
