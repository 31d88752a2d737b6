-- 07_retry.sql: when a message is tried again, and when no more
--
-- OBX-061..065, and what sections 4 and 9 of the contract promise besides.

BEGIN;
\ir include/tools.sql
SELECT plan(8);

SET LOCAL outbox.backoff_jitter = off;

SELECT is(
    (tap.retry_delays('obx-061', 6))[1:6], '{1 s,2 s,4 s,8 s,16 s,32 s}'::interval[],
    'OBX-061, SHARED-44: each delay is twice the one before');

SELECT is(
    tap.retry_delays('obx-062', 9), ARRAY(SELECT least(interval '1 s' * 2 ^ retries, interval '60 s') FROM generate_series(0, 8) retries),
    'OBX-062: by default the delay is 2 to the power of the retries before, in seconds, and at most 60 s');

SET LOCAL outbox.backoff_base = '100 ms';
SET LOCAL outbox.backoff_max = '300 ms';
SELECT is(
    tap.retry_delays('obx-063', 4), '{100 ms,200 ms,300 ms,300 ms}'::interval[],
    'OBX-063: outbox.backoff_base and outbox.backoff_max set the delays');
RESET outbox.backoff_base;
RESET outbox.backoff_max;

SELECT outbox.configure_topic('obx-063', backoff_base => '10 s', backoff_max => '15 s') \gset
SELECT tap.retry_delays('obx-063', 2) AS with_policy, outbox.reset_topic('obx-063') \gset
SELECT is(
    :'with_policy'::interval[] || tap.retry_delays('obx-063-other', 1) || tap.retry_delays('obx-063', 1),
    '{10 s,15 s,1 s,1 s}'::interval[],
    'OBX-063: the policy of a topic overrides the settings, for that topic and as long as it is there');

-- How often a message is handed out that is handed back each time, and what becomes of it.
CREATE FUNCTION tap.tried(topic text)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    leased bigint[] := tap.lease(topic, 'p');
    times  integer := 0;
BEGIN
    WHILE times < 50 AND leased <> '{}' LOOP
        times := times + 1;
        PERFORM outbox.nack(tap.alice(), leased, 'error ' || times, '0');
        leased := ARRAY(SELECT id FROM outbox.claim(tap.alice(), topics => ARRAY[topic]));
    END LOOP;
    RETURN (SELECT concat_ws(' ', times, outbox.status_name(status), failure_reason, last_error)
              FROM outbox.messages m WHERE m.topic = tried.topic ORDER BY m.id DESC LIMIT 1);
END
$$;

SELECT is(
    tap.tried('obx-064'), '10 failed 5 error 10',
    'OBX-064, SHARED-37: a message that is handed back at its last attempt fails for good, and says why');

SET LOCAL outbox.max_attempts = 3;
SELECT tap.tried('obx-065') AS by_setting, outbox.configure_topic('obx-065', max_attempts => 2) \gset
SELECT tap.tried('obx-065') AS by_policy \gset
RESET outbox.max_attempts;
SELECT is(
    ARRAY[:'by_setting', :'by_policy'] || (SELECT boot_val FROM pg_settings WHERE name = 'outbox.max_attempts'),
    '{"3 failed 5 error 3","2 failed 5 error 2",10}',
    'OBX-065: outbox.max_attempts, 10 unless set, or the topic''s policy says how many attempts there are');

-- Besides

SET LOCAL outbox.backoff_jitter = on;
SELECT tap.lease('s4-jitter', VARIADIC ARRAY(SELECT i::text FROM generate_series(1, 60) i)) AS leased \gset
SELECT outbox.nack(tap.alice(), :'leased') \gset
SELECT is(
    ROW(min(delay) >= interval '0.5 s', max(delay) <= interval '1 s', count(DISTINCT delay) > 20)::text,
    '(t,t,t)',
    'section 4: with jitter each delay is drawn between half of it and all')
  FROM (SELECT next_attempt_at - updated_at AS delay
          FROM outbox.messages WHERE topic = 's4-jitter') d;
SET LOCAL outbox.backoff_jitter = off;

SET LOCAL outbox.backoff_base = '0';
SELECT is(
    tap.retry_delays('s4-none', 3), '{0,0,0}'::interval[],
    'section 4: a base of 0 puts nothing off');

SELECT * FROM finish();
ROLLBACK;
