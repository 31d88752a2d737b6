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
    SELECT regexp_replace(relname, '\d{8}', to_char((substring(relname FROM '\d{8}')::date - (clock_timestamp() AT TIME ZONE 'UTC')::date), 'SGFM99999'))
      FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid WHERE inhparent = 'outbox.archive'::regclass ORDER BY 1
$$;
SELECT outbox.cleanup() >= 0 AS ok;
SELECT parts();
SELECT finish('rt', ARRAY['1', '2'], 'k');
-- days gone by: a partition is dropped as a whole, the others stay
CREATE FUNCTION age_archive(days int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE since date := (clock_timestamp() AT TIME ZONE 'UTC')::date - days; name text := 'archive_default_' || to_char(since, 'YYYYMMDD');
BEGIN
    EXECUTE format('SELECT outbox._make_archive_partition(-2, %L)', since + time '12:00' AT TIME ZONE 'UTC');
    EXECUTE format('INSERT INTO outbox.archive SELECT nextval(''outbox.message_id_seq''), created_at, %L, -2, attempts, retry_count, progress,
        failure_reason, gen_random_uuid(), processed_by, due_time, expires_at, tenant_id, stream_id, namespace, ''rt.old'', correlation_id,
        NULL, headers, last_error, %L FROM outbox.archive WHERE topic = ''rt'' LIMIT 1', since + time '12:00' AT TIME ZONE 'UTC', days);
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
-- a retention given here is exact; and a key goes with its message
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

-- the dead: for ever unless told otherwise
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
DROP FUNCTION finish, parts, age_archive, kill_one;
