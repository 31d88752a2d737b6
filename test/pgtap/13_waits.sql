-- 13_waits.sql: what comes after a join
--
-- JOIN-050..057, OBX-090..094, and what section 5 of the contract promises besides.
-- That workers evaluate waits by themselves is in test/t/010_workers.pl.

BEGIN;
\ir include/tools.sql
\ir include/joins.sql
SELECT plan(23);

SELECT tap.start('join-050', 1) AS j \gset
SELECT outbox.enqueue_join_wait(:'j', true, 'next', '{"a": "b"}', 'next-bad', '', 'ns-050', '{"h": 1}') AS w \gset
SELECT is(
    ROW(topic, namespace, headers, payload::jsonb)::text,
    ROW('join.wait', 'ns-050', '{"h": 1}'::jsonb,
        jsonb_build_object('joinId', :'j', 'failIfAnyStepFailed', true, 'onCompleteTopic', 'next',
                           'onCompletePayload', '{"a": "b"}', 'onFailTopic', 'next-bad', 'onFailPayload', ''))::text,
    'JOIN-050, JOIN-051: a wait is a message of topic join.wait, whose payload has the join, the condition and both continuations')
  FROM outbox.messages WHERE message_id = :'w';

SELECT outbox.process_join_waits() AS others, tap.start('join-051', 2, '1', '2') AS j \gset
SELECT outbox.enqueue('join.wait', jsonb_build_object('joinId', :'j', 'failIfAnyStepFailed', fail, 'onCompleteTopic', 'join-051-next', 'onCompletePayload', 'ok',
                                                      'onFailTopic', topic, 'onFailPayload', 'bad'))
  FROM (VALUES (true, 'join-051-bad'), (true, NULL), (false, 'join-051-bad')) w (fail, topic) \g /dev/null
SELECT outbox.fail(tap.alice(), tap.steps('join-051')) \gset
SELECT outbox.process_join_waits() AS evaluated \gset
SELECT is(
    tap.messages('join-051-%') || :'evaluated'::text, '{join-051-bad:bad,join-051-next:ok,3}',
    'JOIN-051: what a wait does is what its payload says, field by field');

SELECT tap.start('join-050-set', 1) AS j,
       tap.sqlstates($$SET LOCAL outbox.join_wait_topic = 'join-050-waits'$$) AS set \gset
SELECT outbox.enqueue_join_wait(:'j', true, 'join-050-next', 'p') AS w \gset
SELECT count(*) AS by_anybody FROM outbox.claim(tap.bob(), batch_size => 10000) WHERE message_id = :'w' \gset
SELECT count(*) AS by_name FROM outbox.claim(tap.bob(), topics => '{join-050-waits}') \gset
SELECT outbox.release(tap.bob()) \gset
SELECT outbox.cancel_join(:'j'), topic FROM outbox.messages WHERE message_id = :'w' \gset
SELECT is(
    ARRAY[:'topic', :'by_anybody', :'by_name', outbox.process_join_waits()::text], '{join-050-waits,0,1,1}',
    'JOIN-050: outbox.join_wait_topic is the topic of waits, and of those that are evaluated; a claim must name it');
RESET outbox.join_wait_topic;

SELECT tap.start('join-052', 2) AS j, tap.start('join-052-later', 2) AS later \gset
SELECT outbox.enqueue_join_wait(:'j', true, 'join-052-next', 'p') AS w,
       outbox.enqueue_join_wait(:'later', true, 'join-052-next', 'p') AS later_w \gset
DELETE FROM outbox.joins WHERE join_id = :'j';
SELECT outbox.process_join_waits() \gset
DELETE FROM outbox.joins WHERE join_id = :'later';
SELECT outbox.process_join_waits() \gset
SELECT is(
    ARRAY(SELECT ROW(status, failure_reason)::text FROM outbox.messages WHERE message_id IN (:'w', :'later_w'))
        || tap.messages('join-052-next') || outbox.process_join_waits()::text,
    '{"(3,4)","(3,4)",0}',
    'JOIN-052: a wait whose join does not exist fails, be that found at once or later, and is not tried again');

SELECT tap.start('join-053', 1, 'p') AS j \gset
SELECT outbox.enqueue_join_wait(:'j', true, 'join-053-next', 'p') AS w \gset
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
    'OBX-091, JOIN-053: while its join is not complete a wait is put back for later, however often, and never given up')
  FROM outbox.messages WHERE message_id = :'w';
RESET outbox.max_attempts;

SELECT outbox.ack(tap.alice(), tap.steps('join-053')) \gset
SELECT outbox.process_join_waits() \gset
SELECT is(
    tap.messages('join-053-next'), '{join-053-next:p}',
    'OBX-091, JOIN-053: when it is complete, the same wait is evaluated');

-- What has followed after each of three steps, one of which fails.
SELECT tap.start('obx-090', 3, '1', '2', '3') AS j \gset
SELECT outbox.enqueue_join_wait(:'j', false, 'obx-090-next', 'p') AS w \gset
CREATE FUNCTION tap.followed()
RETURNS text
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM tap.come_due('join.wait');
    PERFORM outbox.process_join_waits();
    RETURN (SELECT concat_ws(' ', completed_steps + failed_steps, expected_steps, cardinality(tap.messages('obx-090-next')))
              FROM outbox.joins WHERE grouping_key = 'obx-090');
END
$$;
SELECT tap.followed() AS at_first \gset
SELECT outbox.ack(tap.alice(), tap.steps('obx-090', '1')) \gset
SELECT tap.followed() AS after_one \gset
SELECT outbox.fail(tap.alice(), tap.steps('obx-090', '2')) \gset
SELECT tap.followed() AS after_two \gset
SELECT outbox.ack(tap.alice(), tap.steps('obx-090', '3')) \gset
SELECT is(
    ARRAY[:'at_first', :'after_one', :'after_two', tap.followed()], '{"0 3 0","1 3 0","2 3 0","3 3 1"}',
    'OBX-090: the continuation comes when completed and failed steps are as many as are expected, and not before');

SELECT tap.start('obx-093', 2, '1', '2') AS j \gset
SELECT outbox.enqueue_join_wait(:'j', true, 'obx-093-next', '{"as": "given"}', 'obx-093-bad', 'bad') AS w,
       outbox.enqueue_join_wait(:'j', false, 'obx-093-next', '') AS empty \gset
SELECT outbox.ack(tap.alice(), tap.steps('obx-093')) \gset
SELECT outbox.process_join_waits() \gset
SELECT is(
    tap.messages('obx-093-%'), '{obx-093-next:,"obx-093-next:{\"as\": \"given\"}"}',
    'OBX-093, JOIN-055: when no step has failed the success continuation follows, its payload as given, and no other');

SELECT tap.start('obx-092', 2, '1', '2') AS j, tap.start('good-092', 2, '1', '2') AS good \gset
SELECT outbox.enqueue_join_wait(:'j', true, 'obx-092-next', 'ok', 'obx-092-bad', 'bad') AS w,
       outbox.enqueue_join_wait(:'good', true, 'obx-092-next', 'ok', 'obx-092-bad', 'bad') AS g,
       outbox.fail(tap.alice(), tap.steps('obx-092', '1')), outbox.ack(tap.alice(), tap.steps('obx-092', '2')) AS a,
       outbox.ack(tap.alice(), tap.steps('good-092')) AS b \gset
SELECT outbox.process_join_waits() \gset
SELECT is(
    ARRAY[tap.join(:'j'), tap.join(:'good')] || tap.messages('obx-092-%'),
    '{"failed 1+1/2 {2,1}","completed 2+0/2 {1,1}",obx-092-bad:bad,obx-092-next:ok}',
    'OBX-092: a complete join with a failed step is failed, and a wait that minds that takes it as such; others are not');

SELECT tap.start('join-054', 2, '1', '2') AS j \gset
SELECT outbox.enqueue_join_wait(:'j', true, 'join-054-next', 'ok', 'join-054-bad', 'bad'),
       outbox.enqueue_join_wait(:'j', true, 'join-054-next', 'ok', 'join-054-bad') AS without_payload,
       outbox.enqueue_join_wait(:'j', true, 'join-054-next', 'ok') AS none,
       outbox.enqueue_join_wait(:'j', true, 'join-054-next', 'ok', '', 'bad') AS empty \gset
SELECT outbox.fail(tap.alice(), tap.steps('join-054', '1')), outbox.ack(tap.alice(), tap.steps('join-054', '2')) AS a \gset
SELECT outbox.process_join_waits() \gset
SELECT is(
    tap.messages('join-054-%') || ARRAY(SELECT status::text FROM outbox.messages WHERE message_id IN (:'none', :'empty')),
    '{join-054-bad:,join-054-bad:bad,2,2}',
    'OBX-094, JOIN-054: when a step has failed and that matters, the failure continuation follows if its topic is neither null nor empty, else none');

SELECT tap.start('join-055', 1, '1') AS j \gset
SELECT outbox.enqueue_join_wait(:'j', false, 'join-055-next', 'ok', 'join-055-bad', 'bad') \gset
SELECT outbox.fail(tap.alice(), tap.steps('join-055')) \gset
SELECT outbox.process_join_waits() \gset
SELECT is(
    tap.messages('join-055-%') || tap.join(:'j'), '{join-055-next:ok,"failed 0+1/1 {2}"}',
    'JOIN-055: when a wait does not mind failed steps, the success continuation follows a failed join as well');

SELECT tap.start('join-056', 1, 'p') AS j \gset
SELECT outbox.enqueue_join_wait(:'j', true, 'join-056-next', 'p') AS w, outbox.enqueue_join_wait(:'j', true, 'join-056-next', 'p', 'join-056-bad') AS second,
       outbox.ack(tap.alice(), tap.steps('join-056')) \gset
SELECT outbox.process_join_waits() AS first \gset
SELECT outbox.reap() AS reaped, outbox.process_join_waits() AS again, outbox.reconcile_joins() AS reconciled \gset
SELECT is(
    ARRAY(SELECT outbox.status_name(status) || is_processed FROM outbox.messages WHERE message_id IN (:'w', :'second'))
        || ARRAY[:'first', :'again', outbox.process_join_waits()::text] || tap.messages('join-056-%')
        || ARRAY(SELECT payload FROM outbox.claim(tap.bob(), topics => '{join.wait}') WHERE message_id IN (:'w', :'second')),
    '{donetrue,donetrue,2,0,0,join-056-next:p,join-056-next:p}',
    'JOIN-056: a wait that has been decided is acked, and neither evaluated nor claimed again');

-- Joins whose counters say other things than their messages do.
SELECT tap.start('join-057-done', 1, 'p') AS done, tap.start('join-057-open', 2, 'p', 'q') AS open \gset
SELECT outbox.enqueue_join_wait(:'done', true, 'join-057-next', 'done') AS w, outbox.enqueue_join_wait(:'open', true, 'join-057-next', 'open') AS v \gset
-- reported by hand while its message goes on, which fails; and messages that are gone
SELECT outbox.report_step_completed(:'done', message_id) FROM outbox.messages WHERE topic = 'join-057-done' \gset
SELECT outbox.fail(tap.alice(), tap.steps('join-057-done')) \gset
DELETE FROM outbox.dead WHERE topic = 'join-057-done';
SELECT outbox.ack(tap.alice(), tap.steps('join-057-open', 'p')) \gset
DELETE FROM outbox.archive WHERE topic = 'join-057-open';
SELECT outbox.process_join_waits() AS evaluated \gset
SELECT is(
    ARRAY[tap.join(:'done'), tap.join(:'open')] || tap.messages('join-057-%'),
    '{"completed 1+0/1 {1}","pending 1+0/2 {1,0}",join-057-next:done,join-057-open:q}',
    'JOIN-057: a wait is decided by what the join says, whatever has become of the messages');

-- Besides

SELECT tap.start('s5-wait', 1) AS j \gset
SELECT is(
    tap.sqlstates(
        $$SELECT outbox.enqueue_join_wait(gen_random_uuid(), true, 't', 'p')$$,
        $$SELECT outbox.enqueue_join_wait(NULL, true, 't', 'p')$$,
        format($$SELECT outbox.enqueue_join_wait(%L, NULL, 't', 'p')$$, :'j'),
        format($$SELECT outbox.enqueue_join_wait(%L, true, NULL, 'p')$$, :'j'),
        format($$SELECT outbox.enqueue_join_wait(%L, true, '', 'p')$$, :'j'),
        format($$SELECT outbox.enqueue_join_wait(%L, true, repeat('x', 256), 'p')$$, :'j'),
        format($$SELECT outbox.enqueue_join_wait(%L, true, 't', NULL)$$, :'j'),
        format($$SELECT outbox.enqueue_join_wait(%L, true, 't', 'p', repeat('x', 256))$$, :'j'),
        format($$SELECT outbox.enqueue_join_wait(%L, true, 't', 'p', namespace => '')$$, :'j'))
        || (SELECT count(*) FROM outbox.join_waits WHERE join_id = :'j')::text
        || (SELECT count(*) FROM outbox.messages WHERE topic = 'join.wait' AND payload::jsonb ->> 'joinId' = :'j')::text,
    '{42704,22004,22004,22004,22023,22023,22004,22023,22023,0,0}',
    'section 5: a wait for an unknown join is 42704; its topics and payload are those of a message; else nothing is filed');

SELECT tap.start('s5-from', 1, '1') AS j \gset
SELECT outbox.enqueue_join_wait(:'j', true, 's5-from-next', 'p', namespace => 'ns-s5', headers => '{"traceparent": "00-1"}'),
       outbox.ack(tap.alice(), tap.steps('s5-from')) \gset
SELECT outbox.process_join_waits() \gset
SELECT is(
    ROW(namespace, headers, status, attempts, correlation_id)::text, '(ns-s5,"{""traceparent"": ""00-1""}",0,0,)',
    'section 5: the continuation has the namespace and the headers of the wait')
  FROM outbox.messages WHERE topic = 's5-from-next';

SELECT tap.start('s5-several', 2, '1', '2') AS j \gset
SELECT outbox.enqueue_join_wait(:'j', true, 's5-several-next', 'before') \gset
SELECT outbox.process_join_waits(), outbox.ack(tap.alice(), tap.steps('s5-several', '1')) AS a,
       outbox.enqueue_join_wait(:'j', true, 's5-several-next', 'while') AS w \gset
SELECT outbox.process_join_waits(), outbox.ack(tap.alice(), tap.steps('s5-several', '2')) AS a,
       outbox.enqueue_join_wait(:'j', true, 's5-several-next', 'after') AS w \gset
SELECT outbox.process_join_waits() AS evaluated \gset
SELECT outbox.enqueue_join_wait(:'j', true, 's5-several-next', 'much later') AS w \gset
SELECT outbox.process_join_waits() AS then, outbox.process_join_waits() AS at_last \gset
SELECT is(
    ARRAY[:'evaluated', :'then', :'at_last'] || tap.messages('s5-several-%')
        || (SELECT count(*) FROM outbox.join_waits WHERE join_id = :'j')::text,
    '{3,1,0,s5-several-next:after,s5-several-next:before,"s5-several-next:much later",s5-several-next:while,0}',
    'section 5: each of several waits gets its continuation once, whenever it was filed');

SELECT tap.start('s5-cancelled', 2) AS j \gset
SELECT outbox.enqueue_join_wait(:'j', false, 's5-cancelled-next', 'ok', 's5-cancelled-bad', 'bad'),
       outbox.enqueue_join_wait(:'j', true, 's5-cancelled-next', 'ok') AS none, outbox.cancel_join(:'j') AS cancelled \gset
SELECT outbox.process_join_waits() \gset
SELECT is(
    tap.messages('s5-cancelled-%') || (SELECT outbox.status_name(status) FROM outbox.messages WHERE message_id = :'none'),
    '{s5-cancelled-bad:bad,done}',
    'section 5: a cancelled join has the failure continuation follow if there is one, and its waits are over');

SELECT tap.start('s5-once', 1, 'p') AS j \gset
SELECT outbox.enqueue_join_wait(:'j', true, 's5-once-next', 'p') AS w \gset
SELECT outbox.process_join_waits() AS first, outbox.process_join_waits() AS again \gset
SELECT is(
    ROW(:'first', :'again', status, next_attempt_at, attempts)::text, '(1,0,0,infinity,0)',
    'section 5: a wait for a pending join is evaluated once, and not again while the join is pending')
  FROM outbox.messages WHERE message_id = :'w';

SELECT outbox.ack(tap.alice(), tap.steps('s5-once')) \gset
SELECT is(
    ROW(status, next_attempt_at <= clock_timestamp(), outbox.process_join_waits(), outbox.process_join_waits())::text, '(0,t,1,0)',
    'section 5: the completion of the join makes its waits due, in the same transaction')
  FROM outbox.messages WHERE message_id = :'w';

SELECT tap.start('s5-together', 1, 'p') AS j \gset
SELECT outbox.enqueue_join_wait(:'j', true, 's5-together-next', 'p') AS w, outbox.ack(tap.alice(), tap.steps('s5-together')) \gset
SAVEPOINT before;
SELECT outbox.process_join_waits() \gset
SELECT ARRAY[outbox.status_name(status)] || tap.messages('s5-together-next') AS inside FROM outbox.messages WHERE message_id = :'w' \gset
ROLLBACK TO before;
SELECT ARRAY[outbox.status_name(status)] || tap.messages('s5-together-next') AS undone FROM outbox.messages WHERE message_id = :'w' \gset
SELECT outbox.process_join_waits() \gset
SELECT is(
    ARRAY[:'inside', :'undone', (ARRAY[outbox.status_name(status)] || tap.messages('s5-together-next'))::text],
    '{"{done,s5-together-next:p}","{ready}","{done,s5-together-next:p}"}',
    'section 5: the end of a wait and its continuation are in one transaction: both or neither')
  FROM outbox.messages WHERE message_id = :'w';

SELECT tap.start('s5-limit', 1) AS j \gset
SELECT count(outbox.enqueue_join_wait(:'j', true, 's5-limit-next', 'p')) FROM generate_series(1, 5) \gset
SELECT outbox.cancel_join(:'j'), ARRAY[outbox.process_join_waits(2), outbox.process_join_waits(2), outbox.process_join_waits(2)] AS batches \gset
SELECT is(
    :'batches' || tap.sqlstates('SELECT outbox.process_join_waits(0)', 'SELECT outbox.process_join_waits(-1)')::text,
    '{2,2,1}{22023,22023}',
    'section 5: process_join_waits evaluates at most batch_limit waits, and says how many');

SELECT tap.start('s5-made-up', 1) AS j \gset
SELECT count(outbox.enqueue('join.wait', p))
  FROM unnest(ARRAY['', 'not json', '[]', '{}', '"x"', '{"joinId": "no uuid"}', '{"joinId": null}',
                    format('{"joinId": "%s", "failIfAnyStepFailed": "perhaps"}', :'j'),
                    format('{"joinId": "%s", "failIfAnyStepFailed": false, "onFailTopic": "%s"}', :'j', repeat('x', 256))]) p \gset
SELECT outbox.enqueue_join_wait(:'j', true, '-', 'p', 's5-made-up-next', 'well'), outbox.cancel_join(:'j') AS cancelled \gset
SELECT outbox.process_join_waits() AS evaluated, outbox.process_join_waits() AS again \gset
SELECT is(
    ARRAY[:'evaluated', :'again'] || tap.messages('s5-made-up-next')
        || ARRAY(SELECT DISTINCT failure_reason::text FROM outbox.messages WHERE topic = 'join.wait' AND message_id > :'j' AND status = 3)
        || (SELECT count(*)::text FROM outbox.messages WHERE topic = 'join.wait' AND message_id > :'j' AND status = 3),
    '{10,0,s5-made-up-next:well,4,8}',
    'section 5: waits that were made up by hand fail if they make no sense, and affect no others');

SELECT tap.start('s5-step', 2, '1', '2') AS inner_j \gset
SELECT outbox.start_join('s5-step-outer', 2) AS outer_j,
       outbox.enqueue_join_wait(:'inner_j', false, 's5-step-next', 'inner') AS w \gset
SELECT outbox.attach_message_to_join(:'outer_j', :'w'), outbox.enqueue_step(:'outer_j', 's5-step', '3') AS s,
       outbox.enqueue_join_wait(:'outer_j', true, 's5-step-next', 'outer') AS outer_w \gset
SELECT outbox.process_join_waits(), outbox.fail(tap.alice(), tap.steps('s5-step', '1', '2')) AS f \gset
SELECT outbox.process_join_waits(), count(*) FROM outbox.claim(tap.alice(), topics => '{s5-step}') \gset
SELECT outbox.ack(tap.alice(), tap.steps('s5-step')), tap.messages('s5-step-next') AS before \gset
SELECT outbox.process_join_waits() \gset
SELECT is(
    ARRAY[:'before', tap.messages('s5-step-next')::text, tap.join(:'inner_j'), tap.join(:'outer_j')],
    '{"{s5-step-next:inner}","{s5-step-next:inner,s5-step-next:outer}","failed 0+2/2 {2,2}","completed 2+0/2 {1,1}"}',
    'section 5: a wait may itself be a step of another join');

SELECT * FROM finish();
ROLLBACK;
