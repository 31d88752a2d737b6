-- 13_waits.sql: what comes after a join
--
-- JOIN-050..057, OBX-086..093 and 096, section 5 of the contract.

BEGIN;
\ir include/tools.sql
\ir include/joins.sql
SELECT plan(17);

SELECT tap.start('join-050', 1) AS j \gset
SELECT outbox.enqueue_join_wait(:'j', true, 'next', '{"a": "b"}', 'next-bad', '', 'ns-050', '{"h": 1}') AS w \gset
SELECT is(
    ROW(topic, namespace, headers, payload::jsonb)::text,
    ROW('join.wait', 'ns-050', '{"h": 1}'::jsonb,
        jsonb_build_object('joinId', :'j', 'failIfAnyStepFailed', true, 'onCompleteTopic', 'next',
                           'onCompletePayload', '{"a": "b"}', 'onFailTopic', 'next-bad', 'onFailPayload', ''))::text,
    'JOIN-050 a wait is a message of topic join.wait, whose payload says what is to follow')
  FROM outbox.messages WHERE message_id = :'w';

SELECT tap.start('join-051', 1) AS j \gset
SELECT is(
    tap.sqlstates(
        $$SELECT outbox.enqueue_join_wait(gen_random_uuid(), true, 't', 'p')$$,
        $$SELECT outbox.enqueue_join_wait(NULL, true, 't', 'p')$$,
        format($$SELECT outbox.enqueue_join_wait(%L, NULL, 't', 'p')$$, :'j'),
        format($$SELECT outbox.enqueue_join_wait(%L, true, NULL, 'p')$$, :'j'),
        format($$SELECT outbox.enqueue_join_wait(%L, true, '', 'p')$$, :'j'),
        format($$SELECT outbox.enqueue_join_wait(%L, true, repeat('x', 256), 'p')$$, :'j'),
        format($$SELECT outbox.enqueue_join_wait(%L, true, 't', NULL)$$, :'j'),
        format($$SELECT outbox.enqueue_join_wait(%L, true, 't', 'p', '')$$, :'j'),
        format($$SELECT outbox.enqueue_join_wait(%L, true, 't', 'p', repeat('x', 256))$$, :'j'),
        format($$SELECT outbox.enqueue_join_wait(%L, true, 't', 'p', namespace => '')$$, :'j'))
        || (SELECT count(*) FROM outbox.join_waits WHERE join_id = :'j')::text
        || (SELECT count(*) FROM outbox.messages WHERE topic = 'join.wait' AND payload::jsonb ->> 'joinId' = :'j')::text,
    '{42704,22004,22004,22004,22023,22023,22004,22023,22023,22023,0,0}',
    'JOIN-051 a wait for an unknown join is 42704; its topics and payload are those of a message; else nothing is filed');

SELECT tap.start('join-052', 1, 'p') AS j \gset
SELECT outbox.enqueue_join_wait(:'j', true, 'join-052-next', 'p') AS w \gset
CREATE FUNCTION tap.evaluate_often(wait uuid, rounds integer)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    FOR i IN 1 .. rounds LOOP
        PERFORM tap.come_due('join.wait');
        PERFORM outbox.process_join_waits();
    END LOOP;
END
$$;
SELECT tap.evaluate_often(:'w', 15), outbox.reap() AS reaped,
       tap.sqlstates('SET LOCAL outbox.max_attempts = 1') AS few \gset
SELECT tap.evaluate_often(:'w', 2), outbox.reap() AS reaped \gset
SELECT is(
    ROW(status, attempts, retry_count, failure_reason)::text, '(0,0,0,0)',
    'JOIN-052 while its join is not complete a wait is put back, however often, and is not given up')
  FROM outbox.messages WHERE message_id = :'w';
RESET outbox.max_attempts;

SELECT outbox.ack(tap.alice(), tap.steps('join-052')),
       tap.start('join-053', 2, '1', '2') AS j \gset
SELECT outbox.enqueue_join_wait(:'j', true, 'join-053-next', '', 'join-053-bad', 'bad') \gset
SELECT outbox.ack(tap.alice(), tap.steps('join-053')) \gset
SELECT outbox.process_join_waits() \gset
SELECT is(
    tap.messages('join-05%next') || tap.messages('%-bad'), '{join-052-next:p,join-053-next:}',
    'JOIN-053 when all steps are completed, the success continuation follows, its payload as given');

SELECT tap.start('join-054', 2, '1', '2') AS j \gset
SELECT outbox.enqueue_join_wait(:'j', true, 'join-054-next', 'ok', 'join-054-bad', 'bad'),
       outbox.enqueue_join_wait(:'j', true, 'join-054-next', 'ok', 'join-054-bad') AS without_payload,
       outbox.enqueue_join_wait(:'j', true, 'join-054-next', 'ok') AS none \gset
SELECT outbox.fail(tap.alice(), tap.steps('join-054', '1')), outbox.ack(tap.alice(), tap.steps('join-054', '2')) AS a \gset
SELECT outbox.process_join_waits() \gset
SELECT is(
    tap.messages('join-054-%') || (SELECT status::text FROM outbox.messages WHERE message_id = :'none'),
    '{join-054-bad:,join-054-bad:bad,2}',
    'JOIN-054 when a step has failed and that matters, the failure continuation follows if there is one, else none');

SELECT tap.start('join-055', 1, '1') AS j \gset
SELECT outbox.enqueue_join_wait(:'j', false, 'join-055-next', 'ok', 'join-055-bad', 'bad') \gset
SELECT outbox.fail(tap.alice(), tap.steps('join-055')) \gset
SELECT outbox.process_join_waits() \gset
SELECT is(
    tap.messages('join-055-%') || tap.join(:'j'), '{join-055-next:ok,"failed 0+1/1 {2}"}',
    'JOIN-055 when that does not matter, the success continuation follows a failed join as well');

SELECT tap.start('join-056', 1, '1') AS j \gset
SELECT outbox.enqueue_join_wait(:'j', true, 'join-056-next', 'p', namespace => 'ns-056', headers => '{"traceparent": "00-1"}'),
       outbox.ack(tap.alice(), tap.steps('join-056')) \gset
SELECT outbox.process_join_waits() \gset
SELECT is(
    ROW(namespace, headers, status, attempts, correlation_id)::text, '(ns-056,"{""traceparent"": ""00-1""}",0,0,)',
    'JOIN-056 the continuation has the namespace and the headers of the wait')
  FROM outbox.messages WHERE topic = 'join-056-next';

SELECT tap.start('join-057', 2, '1', '2') AS j \gset
SELECT outbox.enqueue_join_wait(:'j', true, 'join-057-next', 'before') \gset
SELECT outbox.process_join_waits(), outbox.ack(tap.alice(), tap.steps('join-057', '1')) AS a,
       outbox.enqueue_join_wait(:'j', true, 'join-057-next', 'while') AS w \gset
SELECT outbox.process_join_waits(), outbox.ack(tap.alice(), tap.steps('join-057', '2')) AS a,
       outbox.enqueue_join_wait(:'j', true, 'join-057-next', 'after') AS w \gset
SELECT outbox.process_join_waits() AS evaluated \gset
SELECT outbox.enqueue_join_wait(:'j', true, 'join-057-next', 'much later') AS w \gset
SELECT outbox.process_join_waits() AS then, outbox.process_join_waits() AS at_last \gset
SELECT is(
    ARRAY[:'evaluated', :'then', :'at_last'] || tap.messages('join-057-%')
        || (SELECT count(*) FROM outbox.join_waits WHERE join_id = :'j')::text,
    '{3,1,0,join-057-next:after,join-057-next:before,"join-057-next:much later",join-057-next:while,0}',
    'JOIN-057 each of several waits gets its continuation once, whenever it was filed');

SELECT tap.start('obx-086', 2) AS j \gset
SELECT outbox.enqueue_join_wait(:'j', false, 'obx-086-next', 'ok', 'obx-086-bad', 'bad'),
       outbox.enqueue_join_wait(:'j', true, 'obx-086-next', 'ok') AS none, outbox.cancel_join(:'j') AS cancelled \gset
SELECT outbox.process_join_waits() \gset
SELECT is(
    tap.messages('obx-086-%') || (SELECT outbox.status_name(status) FROM outbox.messages WHERE message_id = :'none'),
    '{obx-086-bad:bad,done}',
    'OBX-086 a cancelled join has the failure continuation follow if there is one, and its waits are over');

SELECT tap.start('obx-087', 2) AS j, tap.start('obx-087-later', 2) AS later \gset
SELECT outbox.enqueue_join_wait(:'j', true, 'obx-087-next', 'p') AS w,
       outbox.enqueue_join_wait(:'later', true, 'obx-087-next', 'p') AS later_w \gset
DELETE FROM outbox.joins WHERE join_id = :'j';
SELECT outbox.process_join_waits() \gset
DELETE FROM outbox.joins WHERE join_id = :'later';
SELECT outbox.process_join_waits() \gset
SELECT is(
    ARRAY(SELECT ROW(status, failure_reason)::text FROM outbox.messages WHERE message_id IN (:'w', :'later_w'))
        || tap.messages('obx-087-next'),
    '{"(3,4)","(3,4)"}',
    'OBX-087 a wait whose join is gone fails, be that found at once or later');

SELECT tap.start('obx-088', 1, 'p') AS j \gset
SELECT outbox.enqueue_join_wait(:'j', true, 'obx-088-next', 'p') AS w \gset
SELECT outbox.process_join_waits() AS first, outbox.process_join_waits() AS again \gset
SELECT is(
    ROW(:'first', :'again', status, next_attempt_at, attempts)::text, '(1,0,0,infinity,0)',
    'OBX-088 a wait for a pending join is looked at once, and then nobody looks at it')
  FROM outbox.messages WHERE message_id = :'w';

SELECT outbox.ack(tap.alice(), tap.steps('obx-088')) \gset
SELECT is(
    ROW(status, next_attempt_at <= clock_timestamp(), outbox.process_join_waits(), outbox.process_join_waits())::text, '(0,t,1,0)',
    'OBX-089 the completion of the join makes its waits due, in the same transaction')
  FROM outbox.messages WHERE message_id = :'w';

SELECT tap.start('obx-090', 1) AS j,
       tap.sqlstates($$SET LOCAL outbox.join_wait_topic = 'obx-090-waits'$$) AS set \gset
SELECT outbox.enqueue_join_wait(:'j', true, 'obx-090-next', 'p') AS w \gset
SELECT count(*) AS by_anybody FROM outbox.claim(tap.bob(), batch_size => 10000) WHERE message_id = :'w' \gset
SELECT count(*) AS by_name FROM outbox.claim(tap.bob(), topics => '{obx-090-waits}') \gset
SELECT outbox.release(tap.bob()) \gset
SELECT outbox.cancel_join(:'j') \gset
SELECT is(
    ARRAY[:'by_anybody', :'by_name', outbox.process_join_waits()::text], '{0,1,1}',
    'OBX-090 outbox.join_wait_topic names the topic of waits; only a claim that names it too gets them');
RESET outbox.join_wait_topic;

SELECT tap.start('obx-091', 1, 'p') AS j \gset
SELECT outbox.enqueue_join_wait(:'j', true, 'obx-091-next', 'p') AS w, outbox.ack(tap.alice(), tap.steps('obx-091')) \gset
SAVEPOINT before;
SELECT outbox.process_join_waits() \gset
SELECT ARRAY[outbox.status_name(status)] || tap.messages('obx-091-next') AS inside FROM outbox.messages WHERE message_id = :'w' \gset
ROLLBACK TO before;
SELECT ARRAY[outbox.status_name(status)] || tap.messages('obx-091-next') AS undone FROM outbox.messages WHERE message_id = :'w' \gset
SELECT outbox.process_join_waits() \gset
SELECT is(
    ARRAY[:'inside', :'undone', (ARRAY[outbox.status_name(status)] || tap.messages('obx-091-next'))::text],
    '{"{done,obx-091-next:p}","{ready}","{done,obx-091-next:p}"}',
    'OBX-091 the end of a wait and its continuation are in one transaction: both or neither')
  FROM outbox.messages WHERE message_id = :'w';

SELECT tap.start('obx-092', 1) AS j \gset
SELECT count(outbox.enqueue_join_wait(:'j', true, 'obx-092-next', 'p')) FROM generate_series(1, 5) \gset
SELECT outbox.cancel_join(:'j'), ARRAY[outbox.process_join_waits(2), outbox.process_join_waits(2), outbox.process_join_waits(2)] AS batches \gset
SELECT is(
    :'batches' || tap.sqlstates('SELECT outbox.process_join_waits(0)', 'SELECT outbox.process_join_waits(-1)')::text,
    '{2,2,1}{22023,22023}',
    'OBX-092 process_join_waits evaluates at most batch_limit waits, and says how many');

SELECT tap.start('obx-093', 1) AS j \gset
SELECT count(outbox.enqueue('join.wait', p))
  FROM unnest(ARRAY['', 'not json', '[]', '{}', '"x"', '{"joinId": "no uuid"}', '{"joinId": null}',
                    format('{"joinId": "%s", "failIfAnyStepFailed": "perhaps"}', :'j'),
                    format('{"joinId": "%s", "failIfAnyStepFailed": false, "onFailTopic": ""}', :'j')]) p \gset
SELECT outbox.enqueue_join_wait(:'j', true, '-', 'p', 'obx-093-next', 'well'), outbox.cancel_join(:'j') AS cancelled \gset
SELECT outbox.process_join_waits() AS evaluated, outbox.process_join_waits() AS again \gset
SELECT is(
    ARRAY[:'evaluated', :'again'] || tap.messages('obx-093-next')
        || ARRAY(SELECT DISTINCT failure_reason::text FROM outbox.messages WHERE topic = 'join.wait' AND message_id > :'j' AND status = 3)
        || (SELECT count(*)::text FROM outbox.messages WHERE topic = 'join.wait' AND message_id > :'j' AND status = 3),
    '{10,0,obx-093-next:well,4,8}',
    'OBX-093 waits that somebody has made up fail if they make no sense, and take nothing with them');

SELECT tap.start('obx-096', 2, '1', '2') AS inner_j \gset
SELECT outbox.start_join('obx-096-outer', 2) AS outer_j,
       outbox.enqueue_join_wait(:'inner_j', false, 'obx-096-next', 'inner') AS w \gset
SELECT outbox.attach_message_to_join(:'outer_j', :'w'), outbox.enqueue_step(:'outer_j', 'obx-096', '3') AS s,
       outbox.enqueue_join_wait(:'outer_j', true, 'obx-096-next', 'outer') AS outer_w \gset
SELECT outbox.process_join_waits(), outbox.fail(tap.alice(), tap.steps('obx-096', '1', '2')) AS f \gset
SELECT outbox.process_join_waits(), count(*) FROM outbox.claim(tap.alice(), topics => '{obx-096}') \gset
SELECT outbox.ack(tap.alice(), tap.steps('obx-096')), tap.messages('obx-096-next') AS before \gset
SELECT outbox.process_join_waits() \gset
SELECT is(
    ARRAY[:'before', tap.messages('obx-096-next')::text, tap.join(:'inner_j'), tap.join(:'outer_j')],
    '{"{obx-096-next:inner}","{obx-096-next:inner,obx-096-next:outer}","failed 0+2/2 {2,2}","completed 2+0/2 {1,1}"}',
    'OBX-096 a wait may itself be a step of another join');

SELECT * FROM finish();
ROLLBACK;
