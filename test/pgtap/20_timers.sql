-- 20_timers.sql: messages for later
--
-- QUEUE-nn and section 7 of the contract, as far as they are about timers. What sessions
-- see of each other is in test/specs, what the workers do in test/t/013_timers.pl.

BEGIN;
\ir include/tools.sql
SELECT plan(30);

SET LOCAL outbox.backoff_jitter = off;

-- Schedules timers that are due now; their work items, leased to alice.
CREATE FUNCTION tap.lease_timers(topic text, VARIADIC payloads text[])
RETURNS bigint[]
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM outbox.schedule_timer(topic, p, now()) FROM unnest(payloads) p;
    RETURN ARRAY(SELECT c.id FROM outbox.claim_timers(tap.alice(), 60, 1000) c WHERE c.topic = lease_timers.topic ORDER BY c.id);
END
$$;

-- The timers of a topic, as payload:status.
CREATE FUNCTION tap.timers(topic text)
RETURNS text[]
LANGUAGE sql
AS $$
    SELECT ARRAY(SELECT t.payload || ':' || outbox.status_name(t.status)
                   FROM outbox.timers t
                  WHERE t.topic = timers.topic
                  ORDER BY 1)
$$;

-- As if a timer had come due, or its lease had ended.
CREATE FUNCTION tap.pass(topic text)
RETURNS void
LANGUAGE sql
AS $$
    UPDATE outbox.timer_queue t
       SET next_attempt_at = CASE t.status WHEN 0 THEN now() ELSE t.next_attempt_at END,
           locked_until = CASE t.status WHEN 1 THEN now() - interval '1 s' END
     WHERE t.topic = pass.topic
$$;

-- Scheduling

SELECT outbox.schedule_timer('Timer 1', '{"not": json', now() + interval '1 hour', 'C 1') AS t \gset
SELECT is(
    ROW(t.topic, t.payload, t.due_time, t.correlation_id, t.status, t.attempts, t.retry_count)::text,
    ROW('Timer 1', '{"not": json', now() + interval '1 hour', 'C 1', 0, 0, 0)::text,
    'QUEUE-03: schedule_timer keeps a message for later, as given, and returns the timer''s id')
  FROM outbox.timers t WHERE t.timer_id = :'t';

SELECT is(
    tap.sqlstates(
        $$SELECT outbox.schedule_timer(NULL, 'p', now())$$,
        $$SELECT outbox.schedule_timer('', 'p', now())$$,
        $$SELECT outbox.schedule_timer(repeat('x', 256), 'p', now())$$,
        $$SELECT outbox.schedule_timer('timer-2', NULL, now())$$,
        $$SELECT outbox.schedule_timer('timer-2', 'p', NULL)$$,
        $$SELECT outbox.schedule_timer('timer-2', 'p', now(), repeat('x', 256))$$) || tap.timers('timer-2'),
    '{22004,22023,22023,22004,22004,22023}',
    'section 7: arguments are those of enqueue, and due_time is not null');

SELECT outbox.schedule_timer('timer-3', '', now(), '') AS t \gset
SELECT is(
    ARRAY[payload, correlation_id], ARRAY['', NULL],
    'section 7: an empty payload is one, an empty correlation_id is none')
  FROM outbox.timers WHERE timer_id = :'t';

SAVEPOINT before;
SELECT outbox.schedule_timer('timer-4', 'undone', now()) AS t \gset
ROLLBACK TO before;
SELECT outbox.dispatch_due() \gset
SELECT is(
    ROW(tap.timers('timer-4'), (SELECT count(*) FROM outbox.messages WHERE topic = 'timer-4'),
        (SELECT count(*) FROM outbox.messages WHERE topic = 'timer-3'))::text,
    ROW('{}'::text[], 0, 1)::text,
    'section 7: a timer is part of the transaction that schedules it');

SELECT outbox.schedule_timer('timer-5', 'p', now()) AS t \gset
SELECT is(
    (SELECT count(*) FROM outbox.claim(tap.bob(), topics => '{timer-5}')), 0::bigint,
    'section 7: what is scheduled is no message yet, even when it is due');

-- Cancelling

SELECT outbox.schedule_timer('timer-6', 'waits', 'infinity') AS waits,
       outbox.schedule_timer('timer-6', 'due', now()) AS due,
       outbox.schedule_timer('timer-6', 'stays', 'infinity') AS stays \gset
SELECT is(
    ROW(outbox.cancel_timer(:'waits'), outbox.cancel_timer(:'due'), tap.timers('timer-6'))::text,
    ROW(true, true, '{stays:ready}'::text[])::text,
    'QUEUE-03: cancel_timer removes a timer that waits, due or not, and is true; the others stay');

SELECT is(
    ARRAY[outbox.cancel_timer(:'waits'), outbox.cancel_timer(gen_random_uuid())], '{f,f}',
    'QUEUE-03: cancel_timer is false for one that is cancelled already, or unknown');

SELECT tap.lease_timers('timer-7', 'done', 'failed', 'leased') AS ids \gset
SELECT outbox.ack_timers(tap.alice(), (:'ids'::bigint[])[1:1]), outbox.fail_timers(tap.alice(), (:'ids'::bigint[])[2:2]) AS f \gset
SELECT is(
    ARRAY(SELECT t.payload || ' ' || outbox.cancel_timer(t.timer_id) FROM outbox.timers t WHERE t.topic = 'timer-7' ORDER BY 1)
    || tap.timers('timer-7'),
    '{"done false","failed false","leased false",done:done,failed:failed,"leased:in progress"}',
    'section 7: cancel_timer is false, and does nothing, for one that is in progress, done or failed');

SELECT outbox.abandon_timers(tap.alice(), (:'ids'::bigint[])[3:3]) \gset
SELECT is(
    (SELECT outbox.cancel_timer(t.timer_id) FROM outbox.timers t WHERE t.topic = 'timer-7' AND t.payload = 'leased')
    AND tap.timers('timer-7') = '{done:done,failed:failed}',
    true, 'section 7: one that was handed back waits, and can be cancelled');

SELECT is(
    tap.sqlstates('SELECT outbox.cancel_timer(NULL)'), '{22004}',
    'section 7: to cancel null is 22004');

SELECT outbox.schedule_timer('timer-8', 'cancelled', now()) AS gone, outbox.schedule_timer('timer-8', 'kept', now()) AS kept \gset
SELECT outbox.cancel_timer(:'gone') \gset
SELECT is(
    ARRAY(SELECT c.payload FROM outbox.claim_timers(tap.alice(), 60, 1000) c WHERE c.topic = 'timer-8'), '{kept}',
    'section 7: a cancelled timer is never handed out');

SELECT outbox.schedule_timer('timer-9', 'cancelled', now()) AS gone, outbox.schedule_timer('timer-9', 'kept', now()) AS kept \gset
SELECT outbox.cancel_timer(:'gone') \gset
SELECT outbox.dispatch_due() \gset
SELECT is(
    ARRAY(SELECT payload FROM outbox.messages WHERE topic = 'timer-9'), '{kept}',
    'section 7: nor does a cancelled timer become a message');

SELECT outbox.schedule_timer('timer-10', 'p', now()) AS t \gset
SAVEPOINT before;
SELECT outbox.cancel_timer(:'t') \gset
ROLLBACK TO before;
SELECT outbox.dispatch_due() \gset
SELECT is(
    tap.timers('timer-10'), '{p:done}',
    'section 7: a cancellation that is rolled back is none');

-- Dispatching

SELECT outbox.schedule_timer('timer-11', 'past', '-infinity', 'c'), outbox.schedule_timer('timer-11', 'now', clock_timestamp()) AS b,
       outbox.schedule_timer('timer-11', 'later', now() + interval '1 hour') AS c,
       outbox.schedule_timer('timer-11', 'never', 'infinity') AS d \gset
SELECT is(
    outbox.dispatch_due(), 2,
    'section 7: dispatch_due returns how many were due');

SELECT is(
    ARRAY(SELECT concat_ws(' ', payload, namespace, correlation_id, status, due_time IS NOT NULL AND due_time > now())
            FROM outbox.messages WHERE topic = 'timer-11' ORDER BY id),
    '{"past default c 0 f","now default 0 f"}',
    'section 7: those that are due become messages with their topic, payload and correlation_id, in order, ready');

SELECT is(
    tap.timers('timer-11'), '{later:ready,never:ready,now:done,past:done}',
    'section 7: then they are done, and those that are not due wait');

SELECT tap.pass('timer-11') \gset
SELECT outbox.dispatch_due() AS first, outbox.dispatch_due() AS again \gset
SELECT is(
    ROW(:first, :again, (SELECT count(*) FROM outbox.messages WHERE topic = 'timer-11'))::text,
    '(2,0,4)',
    'section 7: each becomes one message, when it is due');

SELECT count(outbox.schedule_timer('timer-12', i::text, now() + i * interval '1 us')) FROM generate_series(-3, -1) i \gset
SELECT outbox.dispatch_due(2) AS first \gset
SELECT is(
    ROW(:first, (SELECT array_agg(payload ORDER BY id) FROM outbox.messages WHERE topic = 'timer-12'),
        outbox.dispatch_due(2))::text,
    ROW(2, '{-3,-2}'::text[], 1)::text,
    'section 7: dispatch_due takes up to batch_limit, those that were due first');

SELECT is(
    tap.sqlstates('SELECT outbox.dispatch_due(0)', 'SELECT outbox.dispatch_due(-1)', 'SELECT outbox.dispatch_due(NULL)'),
    '{22023,22023,00000}',
    'section 7: batch_limit is at least 1; null is for as many as usual');

SELECT outbox.schedule_timer('timer-13', 'p', now()) AS t \gset
SAVEPOINT before;
SELECT outbox.dispatch_due() \gset
ROLLBACK TO before;
SELECT is(
    tap.timers('timer-13') || ARRAY(SELECT payload FROM outbox.messages WHERE topic = 'timer-13')
    || outbox.dispatch_due()::text, '{p:ready,1}',
    'section 7: the message comes in the transaction in which the timer is done');

SELECT outbox.schedule_timer('timer-14', 'p', now()) AS t \gset
SET LOCAL outbox.dispatch_timers = off;
SELECT outbox.run_maintenance() \gset
SELECT tap.timers('timer-14') AS off \gset
SET LOCAL outbox.dispatch_timers = on;
SELECT outbox.run_maintenance() \gset
SELECT is(
    :'off'::text[] || tap.timers('timer-14'), '{p:ready,p:done}',
    'section 7: run_maintenance dispatches what is due, unless outbox.dispatch_timers is off');

-- By workers' own hands

SELECT count(outbox.schedule_timer('timer-15', i::text, now(), 'c' || i)) FROM generate_series(1, 22) i \gset
CREATE TEMP TABLE leased ON COMMIT DROP AS SELECT * FROM outbox.claim_timers(tap.alice(), 60);
SELECT is(
    (SELECT ROW(count(*), bool_and(c.topic = 'timer-15' AND c.correlation_id = 'c' || c.payload AND c.attempts = 1
                                   AND c.owner_token = tap.alice() AND t.timer_id = c.message_id AND t.status = 1
                                   AND c.locked_until - clock_timestamp() BETWEEN '50 s' AND '60 s'))::text
       FROM leased c JOIN outbox.timers t USING (id)),
    '(20,t)',
    'QUEUE-01: claim_timers leases timers to its owner, whole, 20 at a time by default');

SELECT is(
    (SELECT array_agg(c.payload) FROM outbox.claim_timers(tap.bob(), 60) c), '{21,22}',
    'QUEUE-11: a leased timer is handed to no other worker');

SELECT outbox.schedule_timer('timer-due', 'soon', clock_timestamp() + interval '300 ms') AS t1,
       outbox.schedule_timer('timer-due', 'late', clock_timestamp() + interval '1 h') AS t2,
       outbox.schedule_timer('timer-due', 'past', '2001-01-01') AS t3 \gset
SELECT array_agg(payload) AS early FROM outbox.claim_timers(tap.bob(), 60) WHERE topic = 'timer-due' \gset
SELECT pg_sleep_until(due_time) FROM outbox.timers WHERE topic = 'timer-due' AND payload = 'soon' \g /dev/null
SELECT is(
    ARRAY[:'early', (SELECT array_agg(payload)::text FROM outbox.claim_timers(tap.bob(), 60) WHERE topic = 'timer-due')], '{"{past}","{soon}"}',
    'QUEUE-06: a timer is not claimable until its due_time has come, and then it is');

SELECT is(
    ROW(outbox.ack_timers(tap.bob(), ARRAY(SELECT id FROM leased)),
        outbox.ack_timers(tap.alice(), ARRAY(SELECT id FROM leased LIMIT 1), '{2}'),
        tap.sqlstates('SELECT outbox.ack_timers(tap.bob(), ARRAY(SELECT id FROM leased), strict => true)'),
        outbox.ack_timers(tap.alice(), ARRAY(SELECT id FROM leased)))::text,
    ROW(0, 0, '{55000}'::text[], 20)::text,
    'QUEUE-12, QUEUE-13: only the owner of the lease, with the right attempt, acks a timer');

SELECT tap.lease_timers('timer-16', 'p') AS ids \gset
SELECT outbox.abandon_timers(tap.alice(), :'ids', 'E 1') \gset
SELECT next_attempt_at - clock_timestamp() BETWEEN '0.5 s' AND '1 s' AS first, last_error, retry_count FROM outbox.timers WHERE topic = 'timer-16' \gset
SELECT tap.pass('timer-16') \gset
SELECT count(*) FROM outbox.claim_timers(tap.alice(), 60) \gset
SELECT outbox.abandon_timers(tap.alice(), :'ids') \gset
SELECT is(
    ROW(:'first'::boolean, :'last_error', :retry_count, next_attempt_at - clock_timestamp() BETWEEN '1.5 s' AND '2 s', attempts, retry_count)::text,
    '(t,"E 1",1,t,2,2)',
    'QUEUE-12: what is abandoned is tried again by the backoff of messages')
  FROM outbox.timers WHERE topic = 'timer-16';

SELECT tap.pass('timer-16') \gset
SELECT count(*) FROM outbox.claim_timers(tap.alice(), 60) \gset
SELECT outbox.abandon_timers(tap.alice(), :'ids', max_attempts => 3) \gset
SELECT tap.lease_timers('timer-16', 'q') AS ids \gset
SELECT outbox.fail_timers(tap.alice(), :'ids', 'no', 4) \gset
SELECT is(
    ARRAY(SELECT concat_ws(' ', payload, outbox.status_name(status), failure_reason, last_error) FROM outbox.timers WHERE topic = 'timer-16' ORDER BY 1),
    '{"p failed 5 E 1","q failed 4 no"}',
    'section 7: at max_attempts, or by fail_timers, a timer fails for good');

SELECT tap.lease_timers('timer-17', 'p', 'q') AS ids \gset
SELECT tap.pass('timer-17') \gset
SELECT outbox.renew_timers(tap.alice(), (:'ids'::bigint[])[1:1], 600) AS renewed, outbox.reap_expired_timers() AS reaped \gset
SELECT is(
    ROW(:renewed, :reaped, tap.timers('timer-17'), (SELECT array_agg(c.payload || c.attempts) FROM outbox.claim_timers(tap.bob(), 60) c))::text,
    ROW(1, 1, '{"p:in progress",q:ready}'::text[], '{q2}'::text[])::text,
    'QUEUE-12: a lease that has ended is reaped, unless it was renewed, and handed out again');

-- What is next, and for whom

SELECT outbox.schedule_timer('timer-18', 'secret', now() + interval '1 day', 'N') AS t \gset
SELECT is(
    (SELECT ROW(kind, message_id, topic, name, next_attempt_at)::text FROM outbox.upcoming WHERE topic = 'timer-18'),
    ROW('timer', :'t', 'timer-18', 'N', now() + interval '1 day')::text,
    'section 7: upcoming shows what is next');

CREATE ROLE tap_producer;
CREATE ROLE tap_worker;
CREATE ROLE tap_monitor;
GRANT USAGE ON SCHEMA tap TO tap_producer, tap_worker, tap_monitor;
SELECT outbox.grant_producer('tap_producer'), outbox.grant_worker('tap_worker') AS w, outbox.grant_monitor('tap_monitor') AS m \gset
SELECT is(
    tap.sqlstates_as('tap_producer', $$SELECT outbox.cancel_timer(outbox.schedule_timer('timer-19', 'p', now()))$$,
                     'SELECT outbox.dispatch_due()', $$SELECT outbox.claim_timers(gen_random_uuid())$$, 'SELECT payload FROM outbox.timers')
    || tap.sqlstates_as('tap_worker', 'SELECT outbox.dispatch_due()', $$SELECT outbox.claim_timers(gen_random_uuid())$$,
                        $$SELECT outbox.schedule_timer('timer-19', 'p', now())$$, 'SELECT payload FROM outbox.timers')
    || tap.sqlstates_as('tap_monitor', 'SELECT timer_id, due_time FROM outbox.timers', 'TABLE outbox.upcoming',
                        'SELECT payload FROM outbox.timers', 'SELECT outbox.dispatch_due()'),
    '{00000,42501,42501,42501,00000,00000,42501,42501,00000,00000,42501,42501}',
    'section 7: producers schedule and cancel, workers take and dispatch, monitors see all but payloads');

SELECT * FROM finish();
ROLLBACK;
