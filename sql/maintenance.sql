-- what is kept, and for how long
\set a '''aaaaaaaa-0000-4000-8000-000000000001'''
CREATE FUNCTION finish(t text, payloads text[], key text DEFAULT NULL) RETURNS int LANGUAGE plpgsql AS $$
DECLARE p text; n int;
BEGIN
    FOREACH p IN ARRAY payloads LOOP
        PERFORM outbox.enqueue(t, p, dedupe_key => key || p);
    END LOOP;
    SELECT outbox.ack('aaaaaaaa-0000-4000-8000-000000000001', array_agg(id)) INTO n
      FROM outbox.claim('aaaaaaaa-0000-4000-8000-000000000001', topics => ARRAY[t], batch_size => 1000);
    RETURN n;
END $$;
CREATE FUNCTION parts() RETURNS SETOF text LANGUAGE sql AS $$
    SELECT regexp_replace(relname, '_\d{8}(?!\d)', '_' || to_char((substring(relname FROM '_(\d{8})(?!\d)')::date - (clock_timestamp() AT TIME ZONE 'UTC')::date), 'SGFM99999'))
      FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid WHERE inhparent = 'outbox.archive'::regclass AND relname ~ '_\d{8}$' ORDER BY 1
$$;
-- a partition is made when there is something to keep, and never by an ack
SELECT finish('rt', ARRAY['0']);
SELECT tableoid::regclass, keep FROM outbox.archive WHERE topic = 'rt';
SELECT outbox.cleanup() >= 0 AS ok;
SELECT parts();
SELECT finish('rt', ARRAY['1', '2'], 'k');
SELECT regexp_replace(tableoid::regclass::text, '\d+$', ''), keep, payload FROM outbox.archive WHERE topic = 'rt' ORDER BY id;
DELETE FROM outbox.archive_unsorted;
-- days later: a partition is dropped as a whole, the others stay
CREATE FUNCTION age_archive(days int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE since date := (clock_timestamp() AT TIME ZONE 'UTC')::date - days; name text := 'archive_default_' || to_char(since, 'YYYYMMDD');
BEGIN
    EXECUTE format('SELECT outbox._make_partition(-2, %L, ''1 day'')', since + time '12:00' AT TIME ZONE 'UTC');
    EXECUTE format('INSERT INTO outbox.archive SELECT nextval(''outbox.message_id_seq''), created_at, %L, -2, attempts, retry_count, progress,
        failure_reason, gen_random_uuid(), processed_by, due_time, expires_at, tenant_id, stream_id, NULL, NULL, NULL, NULL, namespace, ''rt.old'', NULL, correlation_id,
        NULL, headers, last_error, NULL, %L FROM outbox.archive WHERE topic = ''rt'' LIMIT 1', since + time '12:00' AT TIME ZONE 'UTC', days);
END $$;
SELECT age_archive(d) FROM unnest(ARRAY[1, 6, 7, 8, 9]) d;
SELECT parts();
SELECT outbox.cleanup() >= 0 AS ok;
SELECT parts();
SELECT payload FROM outbox.messages WHERE topic = 'rt.old' ORDER BY payload;
SET outbox.retention = '2d';
SELECT outbox.cleanup() >= 0 AS ok;
SELECT payload FROM outbox.messages WHERE topic = 'rt.old' ORDER BY payload;
SET outbox.retention = -1;
SELECT age_archive(1000);
SELECT outbox.cleanup();
SELECT parts();
RESET outbox.retention;
SELECT outbox.cleanup() >= 0 AS ok;
SELECT parts();
-- a retention given here is exact; and a key is freed with its message
SELECT count(*) FROM outbox.messages WHERE topic = 'rt';
SELECT count(*) AS keys FROM outbox.dedupe JOIN outbox.archive a USING (message_id) WHERE a.topic = 'rt';
SELECT outbox.cleanup('1 h') >= 0 AS ok;
SELECT count(*) FROM outbox.messages WHERE topic = 'rt';
SELECT outbox.cleanup('0', batch_limit => 1), outbox.cleanup('0') >= 1 AS rest;
SELECT count(*) FROM outbox.messages WHERE topic = 'rt';
SELECT enqueued FROM outbox.try_enqueue('rt', 'again', dedupe_key => 'k1');
-- topics with their own retention have their own partitions
SELECT outbox.configure_topic('rt.long', retention => '30 days');
SELECT outbox.configure_topic('rt.ever', retention => '-1 s');
SELECT outbox._make_partitions();
SELECT outbox.configure_topic('rt.short', retention => '1 s');
SELECT outbox.configure_topic('rt.not', retention => '0');
SELECT finish('rt.long', '{1}'), finish('rt.ever', '{1}'), finish('rt.short', '{1}'), finish('rt.not', '{1}', 'k');
SELECT topic, payload FROM outbox.messages WHERE topic LIKE 'rt.%' AND status = 2 ORDER BY id;
SELECT enqueued FROM outbox.try_enqueue('rt.not', 'again', dedupe_key => 'k1');
SELECT count(DISTINCT tableoid) FROM outbox.archive WHERE topic LIKE 'rt.%';
SELECT pg_sleep(1.1);
SELECT outbox.cleanup();
SELECT topic FROM outbox.messages WHERE topic LIKE 'rt.%' AND status = 2 ORDER BY id;
SELECT outbox.cleanup('0');
SELECT topic FROM outbox.messages WHERE topic LIKE 'rt.%' AND status = 2 ORDER BY id;
SET outbox.retention = 0;
SELECT finish('rt.none', '{1}');
SELECT count(*) FROM outbox.messages WHERE topic = 'rt.none';
RESET outbox.retention;

-- the dead: forever by default
CREATE FUNCTION kill_one(t text, key text DEFAULT NULL) RETURNS int LANGUAGE sql AS $$
    SELECT outbox.enqueue(t, 'p', dedupe_key => key);
    SELECT outbox.fail('aaaaaaaa-0000-4000-8000-000000000001', array_agg(id))
      FROM outbox.claim('aaaaaaaa-0000-4000-8000-000000000001', topics => ARRAY[t]);
$$;
SELECT outbox.redrive() >= 0 AS cleared;
SELECT kill_one('rd', 'k');
UPDATE outbox.dead SET processed_at = now() - interval '1000 days';
SELECT outbox.cleanup();
SET outbox.dead_retention = '1001d';
SELECT outbox.cleanup();
SET outbox.dead_retention = '999d';
SELECT outbox.cleanup();
SELECT count(*) FROM outbox.messages WHERE topic = 'rd';
SELECT enqueued FROM outbox.try_enqueue('rd', 'again', dedupe_key => 'k');
RESET outbox.dead_retention;
SELECT outbox.configure_topic('rd.own', dead_retention => '10 days');
SELECT outbox.configure_topic('rd.not', dead_retention => '0');
SELECT kill_one('rd.own'), kill_one('rd.not', 'k');
SELECT topic FROM outbox.dead_letters;
SELECT enqueued FROM outbox.try_enqueue('rd.not', 'again', dedupe_key => 'k');
SELECT outbox.cleanup(dead_retention => '0');
UPDATE outbox.dead SET processed_at = now() - interval '11 days';
SELECT outbox.cleanup();
SELECT count(*) FROM outbox.dead_letters;
SET outbox.dead_retention = 0;
SELECT kill_one('rd.none');
SELECT count(*) FROM outbox.messages WHERE topic = 'rd.none';
RESET outbox.dead_retention;

-- unfinished messages are never touched
SELECT outbox.enqueue('rt.live', 'old') IS NOT NULL AS ok;
UPDATE outbox.queue SET created_at = now() - interval '1000 days' WHERE topic = 'rt.live';
SELECT outbox.cleanup('0', '0') >= 0 AS ok;
SELECT payload FROM outbox.messages WHERE topic = 'rt.live';
\set VERBOSITY sqlstate
SELECT outbox.cleanup(batch_limit => 0);
SELECT outbox.cleanup(batch_limit => -1);
\set VERBOSITY default
DELETE FROM outbox.topics;

-- how much time a partition spans
SELECT seconds, outbox._span(seconds) FROM unnest(ARRAY[1, 3599, 3600, 21600, 172799, 172800, NULL]::float8[]) seconds;
SELECT outbox._make_partition(v.keep, v.at, v.span)
  FROM (VALUES (60, timestamptz '2001-02-03 04:05:06+00', interval '1 minute'), (60, '2001-02-03 04:05:59+00', '1 day'),
               (60, '2001-02-03 04:06:00+00', '1 day'), (60, '2001-02-03 04:11:00+00', '1 day'), (60, '2001-02-03 05:00:00+00', '1 day'),
               (60, '2001-02-04 00:00:00+00', '1 day'), (60, '2001-02-04 23:59:59+00', '1 minute'), (-1, '2001-02-03 04:05:06+00', '1 hour'),
               (2147483640, '2001-02-03 04:05:06+00', '10 minutes'), (60, '1999-12-31 23:59:00+00', '1 day')) v(keep, at, span);
SELECT name, keep, since AT TIME ZONE 'UTC' AS since, until - since AS span FROM outbox._partitions() WHERE since < '2002-01-01' ORDER BY name;
-- C uses the same names
SELECT outbox.configure_topic('rt.minute', retention => '1 min'), outbox._make_partitions();
SELECT finish('rt.minute', '{1}');
SELECT keep, tableoid::regclass::text ~ '^outbox.archive_60s_[0-9]{8}_[0-9]{4}$' AS in_its_minute FROM outbox.archive WHERE topic = 'rt.minute';
SELECT outbox.reset_topic('rt.minute');

-- a partition is dropped with the dedupe keys of its messages, step by step
DO $$ BEGIN WHILE outbox._cleanup_step('archive') > 0 LOOP END LOOP; END $$;
SELECT finish('rt.key', ARRAY(SELECT i::text FROM generate_series(1, 60) i), 'key');
SELECT outbox._make_partition(-2, '2001-01-01', '1 day');
WITH old AS (DELETE FROM outbox.archive WHERE topic = 'rt.key' RETURNING *)
INSERT INTO outbox.archive SELECT (jsonb_populate_record(NULL::outbox.archive, to_jsonb(old) || jsonb_build_object('processed_at', '2001-01-01 12:00+00', 'keep', -2, 'payload', repeat('x', 1000)))).* FROM old;
SELECT count(*) AS keys FROM outbox.dedupe d JOIN outbox.archive a USING (message_id) WHERE a.topic = 'rt.key';
SELECT (outbox.try_enqueue('rt.key', 'again', dedupe_key => 'key60')).enqueued;
CREATE TABLE keys AS SELECT d.* FROM outbox.dedupe d JOIN outbox.archive a USING (message_id) WHERE a.topic = 'rt.key';
-- another message has one of them by now
UPDATE outbox.dedupe SET message_id = gen_random_uuid() WHERE key = (SELECT key FROM keys ORDER BY key LIMIT 1);
SELECT * FROM outbox._drop_partitions('7 days', 50);
SELECT count(*) BETWEEN 2 AND 58 AS some_keys, to_regclass('outbox.archive_default_20010101') IS NOT NULL AS kept FROM outbox.dedupe JOIN keys USING (key);
DO $$ BEGIN WHILE outbox._cleanup_step('archive') > 0 LOOP END LOOP; END $$;
SELECT count(*) AS keys, to_regclass('outbox.archive_default_20010101') FROM outbox.dedupe JOIN keys USING (key);
SELECT count(*) FROM outbox.cleanup_progress WHERE name LIKE 'archive%';
SELECT parts();
DROP TABLE keys;

-- objects of users on a partition do not block cleanup
SELECT outbox._make_partition(-2, d, '1 day') FROM unnest('{2001-01-01, 2001-01-02, 2001-01-03}'::timestamptz[]) d;
INSERT INTO outbox.archive (id, created_at, processed_at, keep, attempts, retry_count, progress, failure_reason, message_id, namespace, topic, payload)
SELECT nextval('outbox.message_id_seq'), d, d, -2, 1, 0, 0, 0, gen_random_uuid(), 'default', 'rt.view', 'p' FROM unnest('{2001-01-01, 2001-01-02, 2001-01-03}'::timestamptz[]) d;
CREATE VIEW on_partition AS SELECT 1 AS one FROM outbox.archive_default_20010101;
CREATE TABLE of_type (r outbox.archive_default_20010102[]);
SELECT outbox.cleanup() >= 0 AS ok;
SELECT outbox.cleanup() >= 0 AS ok;
SELECT count(*) FROM outbox.messages WHERE topic = 'rt.view';
SELECT to_regclass('outbox.archive_default_20010103') IS NULL AS dropped;
SELECT * FROM outbox.status() WHERE component = 'archive' \gx
DROP VIEW on_partition;
DROP TABLE of_type;
SELECT outbox.cleanup() >= 0 AS ok;
SELECT ok, status, detail, hint FROM outbox.status() WHERE component = 'archive';
SELECT has_type_privilege('public', 'outbox.archive_unsorted', 'usage') AS public_may, count(*) FILTER (WHERE has_type_privilege('public', reltype, 'usage')) AS tables
  FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'p', 'v');

-- nor does a publication, or a setting of the session
SET client_min_messages = error;
CREATE PUBLICATION everything FOR ALL TABLES;
SET standard_conforming_strings = off;
SET datestyle = 'SQL, DMY';
SET timezone = 'Asia/Kolkata';
SELECT outbox._make_partition(-2, '2001-01-01 12:00+00', '1 day');
INSERT INTO outbox.archive (id, created_at, processed_at, keep, attempts, retry_count, progress, failure_reason, message_id, namespace, topic, payload)
SELECT nextval('outbox.message_id_seq'), d, d, k, 1, 0, 0, 0, gen_random_uuid(), 'default', 'rt.pub', 'p'
  FROM (VALUES (timestamptz '2001-01-01 12:00+00', -2), (now(), -2), (now(), -2147483647), ('2001-01-01 12:00+00', -2147483647), (now(), -2147483645 + 100)) v(d, k);
DO $$ DECLARE t text; BEGIN FOREACH t IN ARRAY '{inbox_done,inbox_dead,timer_done,timer_dead,run_done,run_dead,dead}'::text[] LOOP EXECUTE format('INSERT INTO outbox.%I SELECT (jsonb_populate_record(NULL::outbox.%I,
    to_jsonb(a) || jsonb_build_object(''keep'', k, ''id'', a.id + k + 10, ''message_id'', gen_random_uuid(), ''handler_name'', ''rt.pub'', ''source'', ''rt.pub'', ''job_name'', ''rt.pub''))).* FROM outbox.archive a, unnest(''{-2,-1,100}''::int[]) k WHERE a.topic = ''rt.pub'' AND a.processed_at < ''2002-01-01 00:00+00'' AND a.keep = -2', t, t); END LOOP; END $$;
INSERT INTO outbox.message_deduplication VALUES (gen_random_uuid(), '2001-01-01 00:00+00');
INSERT INTO outbox.receptor_processing (message_id, receptor_name, status, started_at, processed_at) SELECT gen_random_uuid(), 'rt.pub', s, '2001-01-01 00:00+00', CASE s WHEN 2 THEN '2001-01-01 00:00+00'::timestamptz END FROM generate_series(1, 3) s;
INSERT INTO outbox.perspective_checkpoints (stream_id, perspective_name, processed_at) VALUES (gen_random_uuid(), 'rt.pub', '2001-01-01 00:00+00');
SELECT outbox.cleanup(retention => '1 h') >= 1 AS ok;
SELECT status, count(*) FROM outbox.messages WHERE topic = 'rt.pub' GROUP BY 1 ORDER BY 1;
SELECT keep, count(*) FROM outbox.archive WHERE topic = 'rt.pub' GROUP BY 1 ORDER BY 1;
SELECT (SELECT count(*) FROM outbox.inbox_done) AS inbox_done, (SELECT count(*) FROM outbox.timer_done WHERE message_id IS NOT NULL AND topic = 'rt.pub') AS timer_done,
       (SELECT count(*) FROM outbox.run_dead) AS run_dead, (SELECT count(*) FROM outbox.receptor_processing WHERE receptor_name = 'rt.pub') AS receptors,
       (SELECT count(*) FROM outbox.perspective_checkpoints WHERE perspective_name = 'rt.pub') AS perspectives;
SET outbox.dead_retention = '1h';
SET outbox.deduplication_retention = '1h';
SELECT outbox.cleanup() >= 1 AS ok;
SELECT keep, count(*) FROM (TABLE outbox.run_dead UNION ALL TABLE outbox.dead) d WHERE payload = 'p' GROUP BY 1 ORDER BY 1;
SELECT (SELECT count(*) FROM outbox.message_deduplication WHERE first_seen_at < now() - interval '2 h') AS seen,
       (SELECT array_agg(status) FROM outbox.receptor_processing WHERE receptor_name = 'rt.pub') AS receptors,
       (SELECT count(*) FROM outbox.perspective_checkpoints WHERE perspective_name = 'rt.pub') AS perspectives;
DROP PUBLICATION everything;
RESET ALL;
DELETE FROM outbox.receptor_processing WHERE receptor_name = 'rt.pub';

-- what was received is not received again while it is in the inbox, even if its id is no longer kept
SELECT outbox.receive('00000000-0000-4000-8000-0000000000aa', 'rt', 'p');
UPDATE outbox.message_deduplication SET first_seen_at = '2001-01-01' WHERE message_id = '00000000-0000-4000-8000-0000000000aa';
SET outbox.deduplication_retention = '1h';
SELECT outbox._cleanup_step('received');
SELECT (SELECT count(*) FROM outbox.message_deduplication WHERE message_id = '00000000-0000-4000-8000-0000000000aa') AS seen;
RESET outbox.deduplication_retention;
SELECT outbox.receive('00000000-0000-4000-8000-0000000000aa', 'rt', 'p');
DELETE FROM outbox.inbox_queue;

-- joins with all their members; those that came with a dump when they have been here for a day
INSERT INTO outbox.joins (join_id, expected_steps, completed_steps, status, created_at, last_updated_at)
SELECT ('00000000-0000-4000-8000-00000000000' || i)::uuid, 1, 1, 1, t, t FROM unnest(ARRAY[now() - interval '40 days', now() - interval '35 days']) WITH ORDINALITY v(t, i);
INSERT INTO outbox.join_members SELECT join_id, gen_random_uuid(), 1 FROM outbox.joins, generate_series(1, 3) WHERE status = 1;
UPDATE outbox.cleanup_progress SET at = now() - interval '36 days' WHERE name = 'installed';
SELECT outbox._purge_joins('30 days', 2, false);
SELECT outbox._purge_joins('30 days', 2, false);
SELECT join_id, count(*) AS members FROM outbox.joins JOIN outbox.join_members USING (join_id) WHERE joins.status = 1 AND joins.created_at < now() - interval '30 days' GROUP BY 1;
SELECT outbox._purge_joins('30 days', 100, false) AS not_yet;
UPDATE outbox.cleanup_progress SET at = now() - interval '25 hours' WHERE name = 'settling';
SELECT outbox._purge_joins('30 days', 100, false) AS written_since_then;
UPDATE outbox.cleanup_progress SET place = pg_current_xact_id()::text::bigint WHERE name = 'settling';
UPDATE outbox.cleanup_progress SET at = now() - interval '25 hours' WHERE name = 'settling';
SELECT outbox._purge_joins('30 days', 100, false) AS settled;
-- a crash empties the progress of cleanup, which starts again
TRUNCATE outbox.cleanup_progress;
SELECT outbox._purge_joins('30 days', 100, false) AS after_a_crash;
SELECT name, at > now() - interval '1 min' AS is_new FROM outbox.cleanup_progress ORDER BY name;

-- a message_id is searched for only where it can be, and no lock is kept
SELECT count(outbox._make_partition(-1, now() - i * interval '1 day', '1 day')) FROM generate_series(1, 40) i;
SELECT finish('rt.id', '{1}');
SELECT message_id AS done FROM outbox.messages WHERE topic = 'rt.id' \gset
BEGIN;
SELECT outbox.enqueue('rt.id', 'p', message_id => v.id) IS NOT NULL AS ok FROM (VALUES (gen_random_uuid()), (outbox._uuid7())) v(id);
SELECT count(*) AS of_archive FROM pg_locks WHERE pid = pg_backend_pid() AND relation::regclass::text LIKE 'outbox.archive%';
COMMIT;
\set VERBOSITY sqlstate
SELECT outbox.enqueue('rt.id', 'p', message_id => :'done');
UPDATE outbox.archive SET processed_at = now() - interval '3 days', keep = -1, message_id = '018f0000-0000-7000-8000-000000000001' WHERE topic = 'rt.id';
SELECT outbox.enqueue('rt.id', 'p', message_id => '018f0000-0000-7000-8000-000000000001');
UPDATE outbox.archive SET message_id = 'ffff0000-0000-7000-8000-000000000001' WHERE topic = 'rt.id';
SELECT outbox.enqueue('rt.id', 'p', message_id => 'ffff0000-0000-7000-8000-000000000001');
UPDATE outbox.archive SET message_id = '018f0000-0000-4000-8000-000000000001' WHERE topic = 'rt.id';
SELECT outbox.enqueue('rt.id', 'p', message_id => '018f0000-0000-4000-8000-000000000001');
DO $$ DECLARE p regclass; BEGIN FOR p IN SELECT relation FROM outbox._partitions() WHERE keep = -1 LOOP EXECUTE 'DROP TABLE ' || p; END LOOP; END $$;

-- invalid backoffs
SELECT outbox.configure_topic('rt.back', backoff_base => '178000000 years');
SELECT outbox.configure_topic('rt.back', backoff_max => '367 days');
SELECT outbox.configure_topic('rt.back', backoff_max => '-1 year 361 days');
SELECT outbox.configure_topic('rt.back', backoff_base => '-1 s');
INSERT INTO outbox.topics (topic, backoff_max) VALUES ('rt.back', '-1 year 361 days');
\set VERBOSITY default
SELECT outbox.configure_topic('rt.back', backoff_max => '366 days', retention => '178000000 years'), outbox._make_partitions() >= 0 AS made;
SELECT outbox.reset_topic('rt.back');

-- all that the worker does
DELETE FROM outbox.queue;
SELECT outbox.start_join('rt', 1) AS j \gset
SELECT outbox.enqueue_step(:'j', 'rt.step', 'x') IS NOT NULL AS ok, outbox.enqueue_join_wait(:'j', false, 'rt.next', 'done') IS NOT NULL AS wait;
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.claim(:a, topics => '{rt.step}');
SELECT count(*) FROM (SELECT outbox.schedule_timer('rt.timer', i::text, now()) FROM generate_series(1, 1500) i) t;
CREATE PROCEDURE in_a_procedure() LANGUAGE plpgsql AS $$ BEGIN CALL outbox.maintain(); END $$;
SET default_transaction_isolation = 'serializable';
CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (false);
CALL in_a_procedure();
RESET default_transaction_isolation;
DROP DOMAIN pg_temp.text;
SELECT topic, count(*) FROM outbox.messages WHERE topic IN ('rt.next', 'rt.timer') AND status = 0 GROUP BY 1 ORDER BY 1;
DELETE FROM outbox.queue;
-- a part that fails is reported, and the rest goes on
ALTER FUNCTION outbox.process_join_waits RENAME TO not_there;
ALTER TABLE outbox.receptor_processing RENAME TO not_there;
SET outbox.deduplication_retention = '1 h';
SELECT outbox.schedule_timer('rt.timer', 'x', now()) IS NOT NULL AS ok;
CALL outbox.maintain();
SELECT count(*) FROM outbox.messages WHERE topic = 'rt.timer';
SELECT outbox.run_maintenance();
ALTER FUNCTION outbox.not_there RENAME TO process_join_waits;
ALTER TABLE outbox.not_there RENAME TO receptor_processing;
RESET outbox.deduplication_retention;
DELETE FROM outbox.queue;
\set VERBOSITY sqlstate
BEGIN;
CALL outbox.maintain();
ROLLBACK;
\set VERBOSITY default
DROP PROCEDURE in_a_procedure;
DELETE FROM outbox.joins;
DELETE FROM outbox.inbox_done;
DELETE FROM outbox.inbox_dead;
DELETE FROM outbox.timer_done;
DELETE FROM outbox.timer_dead;
DELETE FROM outbox.run_done;
DELETE FROM outbox.run_dead;
DELETE FROM outbox.dead WHERE topic = 'rt.pub';
DROP FUNCTION finish, parts, age_archive, kill_one;
