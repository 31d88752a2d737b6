-- 07_retry.sql: when a message is tried again
--
-- OBX-061..065, sections 4 and 9 of the contract.

BEGIN;
\ir include/tools.sql
SELECT plan(5);

SET LOCAL outbox.backoff_jitter = off;

SELECT is(
    tap.retry_delays('obx-061', 6), '{1 s,2 s,4 s,8 s,16 s,32 s}'::interval[],
    'OBX-061 the delay doubles with each retry, from 1 s');

SELECT is(
    (tap.retry_delays('obx-062', 9))[6:9], '{32 s,60 s,60 s,60 s}'::interval[],
    'OBX-062 the delay grows to 60 s and no further');

SET LOCAL outbox.backoff_jitter = on;
SELECT tap.lease('obx-063', VARIADIC ARRAY(SELECT i::text FROM generate_series(1, 60) i)) AS leased \gset
SELECT outbox.nack(tap.alice(), :'leased') \gset
SELECT is(
    ROW(min(delay) >= interval '0.5 s', max(delay) <= interval '1 s', count(DISTINCT delay) > 20)::text,
    '(t,t,t)',
    'OBX-063 with jitter each delay is drawn between half of it and all')
  FROM (SELECT next_attempt_at - updated_at AS delay
          FROM outbox.messages WHERE topic = 'obx-063') d;
SET LOCAL outbox.backoff_jitter = off;

SET LOCAL outbox.backoff_base = '100 ms';
SET LOCAL outbox.backoff_max = '300 ms';
SELECT is(
    tap.retry_delays('obx-064', 4), '{100 ms,200 ms,300 ms,300 ms}'::interval[],
    'OBX-064 outbox.backoff_base and outbox.backoff_max set the delays');
RESET outbox.backoff_base;
RESET outbox.backoff_max;

SELECT outbox.configure_topic('obx-065', backoff_base => '10 s', backoff_max => '15 s') \gset
SELECT tap.retry_delays('obx-065', 2) AS with_policy, outbox.reset_topic('obx-065') \gset
SELECT is(
    :'with_policy'::interval[] || tap.retry_delays('obx-065-other', 1) || tap.retry_delays('obx-065', 1),
    '{10 s,15 s,1 s,1 s}'::interval[],
    'OBX-065 the policy of a topic overrides the settings, for that topic and as long as it is there');

SELECT * FROM finish();
ROLLBACK;
