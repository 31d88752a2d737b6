-- enqueue and its relatives
\set a '''aaaaaaaa-0000-4000-8000-000000000001'''

-- all defaults
SELECT outbox.enqueue('enq', 'hello') AS m \gset
SELECT message_id = :'m' AS same, namespace, topic, payload, headers, correlation_id,
       tenant_id, dedupe_key, stream_id, partition_number, status, owner_token,
       locked_until, attempts, retry_count, due_time, expires_at, last_error,
       failure_reason, progress, is_processed, processed_at, processed_by
  FROM outbox.messages WHERE message_id = :'m' \gx
SELECT next_attempt_at = created_at AS due_at_once, updated_at = created_at AS untouched,
       created_at BETWEEN now() - interval '1 minute' AND clock_timestamp() AS now
  FROM outbox.messages WHERE message_id = :'m';
-- version 7, ascending in the order of creation
SELECT substr(:'m', 15, 1) AS version, substr(:'m', 20, 1) IN ('8', '9', 'a', 'b') AS variant;
SELECT bool_and(later > earlier) AS in_order, count(DISTINCT later) AS ids
  FROM (SELECT m AS later, lag(m) OVER (ORDER BY i) AS earlier
          FROM (SELECT i, outbox.enqueue('enq', i::text) AS m FROM generate_series(1, 1000) i) s) t;

-- all arguments
SELECT outbox.enqueue('enq', 'full', 'corr', '2001-01-01', 'ns', '11111111-1111-4111-8111-111111111111',
                      '11111111-1111-4111-8111-111111111111/1', '22222222-2222-4222-8222-222222222222',
                      '{"traceparent": "x"}', '2999-01-01', '33333333-3333-4333-8333-333333333333');
SELECT namespace, payload, correlation_id, due_time = '2001-01-01' AS due, tenant_id, dedupe_key,
       stream_id, partition_number, headers, expires_at = '2999-01-01' AS expires, status
  FROM outbox.messages WHERE message_id = '33333333-3333-4333-8333-333333333333' \gx

-- the payload is text: stored as given, never parsed; jsonb is its text
SELECT outbox.enqueue('enq.text', '') IS NOT NULL AS empty;
SELECT outbox.enqueue('enq.text', '{"b":1,  "a":2}'::text) IS NOT NULL AS text;
SELECT outbox.enqueue('enq.text', '{"b":1,  "a":2}'::jsonb) IS NOT NULL AS jsonb;
SELECT outbox.enqueue('enq.text', E'quo''te "dq" back\\slash $1 new\nline') IS NOT NULL AS odd;
SELECT outbox.enqueue('enq.text', repeat('x', 3000000)) IS NOT NULL AS large;
SELECT left(payload, 40) AS payload, length(payload) FROM outbox.messages WHERE topic = 'enq.text' ORDER BY id;
SELECT left(payload, 10) AS payload, length(payload)
  FROM outbox.claim(:a, topics => '{enq.text}') ORDER BY id;
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.messages WHERE topic = 'enq.text';
SELECT length(payload) FROM outbox.messages WHERE topic = 'enq.text' ORDER BY id;

-- '' is null where it is optional; characters count, not bytes
SELECT outbox.enqueue('enq.empty', 'p', correlation_id => '', dedupe_key => '') IS NOT NULL AS ok;
SELECT correlation_id IS NULL AS c, dedupe_key IS NULL AS d FROM outbox.messages WHERE topic = 'enq.empty';
SELECT outbox.enqueue(repeat('ü', 255), 'p', repeat('é', 255), dedupe_key => repeat('𝄞', 255),
                      namespace => repeat('𝄞', 255)) IS NOT NULL AS ok;
SELECT payload FROM outbox.claim(:a, namespace => repeat('𝄞', 255), topics => ARRAY[repeat('ü', 255)]);

-- times: past is at once, future is later, infinity is never
SELECT outbox.enqueue('enq.due', t::text, due_time => t::timestamptz) IS NOT NULL AS ok
  FROM unnest(ARRAY['-infinity', '4713-01-01 BC', '2000-01-01', '294276-12-31', 'infinity']) t;
SELECT payload FROM outbox.claim(:a, topics => '{enq.due}') ORDER BY id;
SELECT payload, status, next_attempt_at = due_time AS as_given
  FROM outbox.messages WHERE topic = 'enq.due' ORDER BY id;

-- errors, and nothing is done
\set VERBOSITY sqlstate
SELECT outbox.enqueue(NULL, 'p');
SELECT outbox.enqueue('', 'p');
SELECT outbox.enqueue(repeat('x', 256), 'p');
SELECT outbox.enqueue(repeat('𝄞', 256), 'p');
SELECT outbox.enqueue('enq.bad', NULL::text);
SELECT outbox.enqueue('enq.bad', NULL::jsonb);
SELECT outbox.enqueue('enq.bad', 'p', correlation_id => repeat('x', 256));
SELECT outbox.enqueue('enq.bad', 'p', dedupe_key => repeat('x', 256));
SELECT outbox.enqueue('enq.bad', 'p', namespace => '');
SELECT outbox.enqueue('enq.bad', 'p', namespace => NULL);
SELECT outbox.enqueue('enq.bad', 'p', namespace => repeat('x', 256));
SELECT outbox.enqueue('enq.bad', 'p', message_id => '33333333-3333-4333-8333-333333333333');
SELECT outbox.enqueue('enq.bad', 'p', priority => 3);
SELECT outbox.enqueue('enq.bad', 'p', priority => -3);
SELECT outbox.enqueue('enq.bad', 'p', priority => 2147483647);
SELECT outbox.enqueue('enq.bad', 'p', dedupe_key => 'k', dedupe_for => '0');
SELECT outbox.enqueue('enq.bad', 'p', dedupe_key => 'k', dedupe_for => '-1 s');
SELECT outbox.enqueue('enq.bad', 'p', dedupe_key => 'k', dedupe_for => '1 month -1 day');
SELECT outbox.enqueue('enq.bad', 'p', dedupe_key => 'k', dedupe_for => '366 days 1 us');
SELECT outbox.enqueue('enq.bad', 'p', dedupe_key => 'k', dedupe_for => '178000000 years');
SELECT outbox.enqueue('enq.bad', 'p', dedupe_key => 'k', on_duplicate => 'Keep');
SELECT outbox.enqueue('enq.bad', 'p', dedupe_key => 'k', on_duplicate => '');
SELECT outbox.try_enqueue('enq.bad', '1'::jsonb, on_duplicate => 'replaced');
SELECT outbox.try_enqueue('enq.bad', '1'::json, priority => 3);
\set VERBOSITY default
SELECT outbox.enqueue('', 'p');
SELECT outbox.enqueue('enq.bad', 'p', priority => 3);
SELECT outbox.enqueue('enq.bad', 'p', dedupe_for => '367 days');
SELECT outbox.enqueue('enq.bad', 'p', on_duplicate => 'drop');
SELECT count(*) FROM outbox.messages WHERE topic = 'enq.bad';

-- what comes after message_id, by position and by name
SELECT outbox.enqueue('enq.last', 'text', NULL, NULL, 'default', NULL, 'a', NULL, NULL, NULL, NULL, '1 day', 'keep', 2) IS NOT NULL AS ok;
SELECT outbox.enqueue('enq.last', '"jsonb"'::jsonb, dedupe_for => '366 days', on_duplicate => 'replace', priority => -2) IS NOT NULL AS ok;
SELECT outbox.enqueue('enq.last', '"json"'::json, dedupe_for => NULL, on_duplicate => NULL, priority => NULL) IS NOT NULL AS ok;
SELECT enqueued, outcome FROM outbox.try_enqueue('enq.last', 'try', priority => 1, dedupe_key => 'b', on_duplicate => 'debounce');
SELECT enqueued, outcome FROM outbox.try_enqueue('enq.last', '"try jsonb"'::jsonb, priority => 0, dedupe_key => 'b');
SELECT enqueued, outcome FROM outbox.try_enqueue('enq.last', '"try json"'::json, priority => -1);
SELECT outbox.start_join('enq.last', 3) AS j \gset
SELECT outbox.enqueue_step(:'j', 'enq.last', 'step', priority => 2) IS NOT NULL AS ok;
SELECT outbox.enqueue_step(:'j', 'enq.last', '"step jsonb"'::jsonb, dedupe_for => '1 h', priority => 1) IS NOT NULL AS ok;
SELECT outbox.enqueue_step(:'j', 'enq.last', '"step json"'::json, on_duplicate => 'keep', priority => -1) IS NOT NULL AS ok;
SELECT payload, priority, dedupe_key FROM outbox.messages WHERE topic = 'enq.last' ORDER BY id;
-- a row of priority 0 costs nothing
SELECT count(priority) AS set, count(*) FROM outbox.queue WHERE topic = 'enq.last';

-- a message_id that is finished is taken, too
SELECT outbox.enqueue('enq.id', 'p', message_id => '44444444-4444-4444-8444-444444444444');
SELECT id AS i FROM outbox.claim(:a, topics => '{enq.id}') \gset
SELECT outbox.ack(:a, ARRAY[:i]);
SELECT outbox.enqueue('enq.id', 'again', message_id => '44444444-4444-4444-8444-444444444444');
SELECT outbox.enqueue('enq.id', 'p', message_id => '55555555-5555-4555-8555-555555555555');
SELECT id AS i FROM outbox.claim(:a, topics => '{enq.id}') \gset
SELECT outbox.fail(:a, ARRAY[:i]);
SELECT outbox.enqueue('enq.id', 'again', message_id => '55555555-5555-4555-8555-555555555555');
SELECT payload, status FROM outbox.messages WHERE topic = 'enq.id' ORDER BY id;

-- it is part of the transaction
BEGIN;
SELECT outbox.enqueue('enq.tx', 'rolled back') IS NOT NULL AS ok;
ROLLBACK;
BEGIN;
SELECT outbox.enqueue('enq.tx', 'kept') IS NOT NULL AS ok;
SAVEPOINT s;
SELECT outbox.enqueue('enq.tx', 'undone') IS NOT NULL AS ok;
ROLLBACK TO s;
SELECT outbox.enqueue('enq.tx', 'kept too') IS NOT NULL AS ok;
COMMIT;
DO $$
BEGIN
    FOR i IN 1 .. 5 LOOP
        BEGIN
            PERFORM outbox.enqueue('enq.tx', 'try ' || i);
            IF i % 2 = 0 THEN RAISE EXCEPTION 'no'; END IF;
        EXCEPTION WHEN raise_exception THEN NULL;
        END;
    END LOOP;
END
$$;
CREATE TABLE enq_rows (i int);
CREATE FUNCTION enq_row() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM outbox.enqueue('enq.tx', 'row ' || NEW.i); RETURN NEW; END $$;
CREATE TRIGGER enq_row AFTER INSERT ON enq_rows FOR EACH ROW EXECUTE FUNCTION enq_row();
COPY enq_rows FROM stdin;
1
2
\.
SELECT payload FROM outbox.messages WHERE topic = 'enq.tx' ORDER BY id;
-- also within the transaction itself, and the same statement
BEGIN;
SELECT outbox.enqueue('enq.own', 'mine') IS NOT NULL AS ok;
SELECT payload FROM outbox.claim(:a, topics => '{enq.own}');
ROLLBACK;
WITH e AS MATERIALIZED (SELECT outbox.enqueue('enq.own', 'at once') AS m)
SELECT c.payload FROM e, LATERAL outbox.claim(:a, topics => ARRAY['enq.own', left(m::text, 0) || 'x']) c;
DROP TABLE enq_rows;
DROP FUNCTION enq_row;

-- many at once
SELECT cardinality(outbox.enqueue_many('enq.many', ARRAY['a', 'b', 'c', ''], 'ns', '{"h": 1}', '2001-01-01')) AS n;
SELECT outbox.enqueue_many('enq.many', ARRAY['x', 'y', 'z']) AS ids \gset
SELECT string_agg(m.payload, ',' ORDER BY u.n) AS in_payload_order
  FROM unnest(:'ids'::uuid[]) WITH ORDINALITY u(message_id, n) JOIN outbox.messages m USING (message_id);
SELECT namespace, payload, headers, due_time IS NULL AS at_once FROM outbox.messages WHERE topic = 'enq.many' ORDER BY id;
SELECT outbox.enqueue_many('enq.many', '{}');
SELECT cardinality(outbox.enqueue_many('enq.bound', '[-5:-3]={a,b,c}')) AS n;
SELECT payload FROM outbox.messages WHERE topic = 'enq.bound' ORDER BY id;
SELECT count(*), count(DISTINCT m) FROM unnest(outbox.enqueue_many('enq.thousands',
    ARRAY(SELECT i::text FROM generate_series(1, 3000) i))) m;
SELECT bool_and(payload = n::text) AS in_order
  FROM (SELECT payload, row_number() OVER (ORDER BY id) AS n FROM outbox.messages WHERE topic = 'enq.thousands') s;
\set VERBOSITY sqlstate
SELECT outbox.enqueue_many('enq.bad', NULL);
SELECT outbox.enqueue_many('enq.bad', ARRAY['a', NULL]);
SELECT outbox.enqueue_many('enq.bad', ARRAY[['a'], ['b']]);
SELECT outbox.enqueue_many(NULL, '{}');
SELECT outbox.enqueue_many('', ARRAY['a']);
SELECT outbox.enqueue_many('enq.bad', ARRAY['a'], namespace => NULL);
\set VERBOSITY default
SELECT count(*) FROM outbox.messages WHERE topic = 'enq.bad';

-- a batch given as JSON
SELECT ordinal, enqueued FROM outbox.enqueue_batch('[
    {"topic": "enq.batch", "payload": "text", "correlation_id": "", "namespace": null},
    {"topic": "enq.batch", "payload": {"b": [1, null]}, "namespace": "ns", "headers": {"h": 1},
     "due_time": "2001-01-01", "expires_at": "infinity", "tenant_id": "11111111-1111-4111-8111-111111111111"},
    {"topic": "enq.batch", "payload": 5, "message_id": "{66666666-6666-4666-8666-666666666666}"},
    {"topic": "enq.batch", "payload": true, "stream_id": "22222222-2222-4222-8222-222222222223"}]');
SELECT namespace, payload, correlation_id, headers, due_time IS NOT NULL AS due, expires_at, tenant_id, stream_id
  FROM outbox.messages WHERE topic = 'enq.batch' ORDER BY id;
SELECT * FROM outbox.enqueue_batch('[]');
SELECT outbox.enqueue_batch(NULL);
SELECT outbox.enqueue_batch('{}');
SELECT outbox.enqueue_batch('1');
SELECT outbox.enqueue_batch('[1]');
SELECT outbox.enqueue_batch('[[]]');
SELECT outbox.enqueue_batch('[{"topic": "enq.bad", "payload": "x"}, {"payload": "x"}]');
SELECT outbox.enqueue_batch('[{"topic": "enq.bad"}]');
SELECT outbox.enqueue_batch('[{"topic": "enq.bad", "payload": null}]');
SELECT outbox.enqueue_batch('[{"topic": 1, "payload": "x"}]');
SELECT outbox.enqueue_batch('[{"topic": "enq.bad", "payload": "x", "colour": "red"}]');
SELECT outbox.enqueue_batch('[{"topic": "enq.bad", "payload": "x", "due_time": "soon"}]');
SELECT outbox.enqueue_batch('[{"topic": "enq.bad", "payload": "x", "due_time": 7}]');
SELECT outbox.enqueue_batch('[{"topic": "enq.bad", "payload": "x", "stream_id": "1234"}]');
SELECT outbox.enqueue_batch('[{"topic": "enq.bad", "payload": "x", "namespace": ""}]');
SELECT outbox.enqueue_batch('[{"topic": "enq.bad", "payload": "x", "priority": "high"}]');
SELECT outbox.enqueue_batch('[{"topic": "enq.bad", "payload": "x", "priority": 3}]');
SELECT outbox.enqueue_batch('[{"topic": "enq.bad", "payload": "x", "dedupe_for": "for ever"}]');
SELECT outbox.enqueue_batch('[{"topic": "enq.bad", "payload": "x", "dedupe_for": 7}]');
SELECT outbox.enqueue_batch('[{"topic": "enq.bad", "payload": "x", "dedupe_for": "-1 s"}]');
SELECT outbox.enqueue_batch('[{"topic": "enq.bad", "payload": "x", "onDuplicate": "drop"}]');
SELECT ordinal, enqueued, outcome FROM outbox.enqueue_batch('[
    {"topic": "enq.last", "payload": "batch", "priority": 2, "dedupe_key": "c", "dedupe_for": "1 hour", "on_duplicate": "replace"},
    {"topic": "enq.last", "payload": "batch", "Priority": -2, "dedupeFor": null, "onDuplicate": null, "dedupe_key": "c"},
    {"topic": "enq.last", "payload": "batch", "priority": null}]');
SELECT payload, priority FROM outbox.messages WHERE topic = 'enq.last' AND payload = 'batch' ORDER BY id;
SELECT count(*) FROM outbox.messages WHERE topic = 'enq.bad';
