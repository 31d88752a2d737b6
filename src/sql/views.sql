-- views.sql: for people and exporters. Nothing here reads all messages. Serves
-- sql_admin.c and sql_work.c.

-- A lane at a time, hopping along the index; no more than 10000 messages of a lane,
-- or dead ones of a topic, are counted.
CREATE VIEW outbox.topic_stats AS
WITH RECURSIVE lanes(lane) AS (
    (SELECT q.lane FROM outbox.queue q ORDER BY q.lane LIMIT 1)
    UNION ALL
    SELECT (SELECT q.lane FROM outbox.queue q
             WHERE q.lane > l.lane ORDER BY q.lane LIMIT 1)
      FROM lanes l
     WHERE l.lane IS NOT NULL
), sample AS (
    SELECT s.*
      FROM lanes l,
           LATERAL (SELECT q.lane, q.namespace, q.topic, q.status, q.next_attempt_at,
                           q.locked_until, q.retry_count,
                           q.stream_id IS NOT NULL
                           AND q.status = 0
                           AND q.next_attempt_at <= now()
                           AND EXISTS (SELECT FROM outbox.queue b
                                        WHERE b.stream_id = q.stream_id
                                          AND b.stream_seq < q.stream_seq) AS is_behind
                      FROM outbox.queue q
                     WHERE q.lane = l.lane
                     ORDER BY q.next_attempt_at, q.id
                     LIMIT 10000) s
     WHERE l.lane IS NOT NULL
), lane_stats AS (
    SELECT namespace,
           topic,
           count(*) FILTER (WHERE status = 0 AND next_attempt_at <= now()
                              AND NOT is_behind) AS ready,
           count(*) FILTER (WHERE status = 0 AND next_attempt_at > now()) AS delayed,
           count(*) FILTER (WHERE is_behind) AS waiting_in_stream,
           count(*) FILTER (WHERE status = 1) AS in_progress,
           count(*) FILTER (WHERE status = 1 AND locked_until <= now()) AS expired,
           count(*) FILTER (WHERE retry_count >= 3) AS failing,
           min(next_attempt_at) FILTER (WHERE status = 0 AND next_attempt_at <= now()
                                          AND NOT is_behind) AS oldest_ready_at,
           count(*) >= 10000 AS more
      FROM sample
     GROUP BY lane, namespace, topic
), live AS (
    SELECT namespace,
           topic,
           sum(ready)::bigint AS ready,
           sum(delayed)::bigint AS delayed,
           sum(waiting_in_stream)::bigint AS waiting_in_stream,
           sum(in_progress)::bigint AS in_progress,
           sum(expired)::bigint AS expired,
           sum(failing)::bigint AS failing,
           min(oldest_ready_at) AS oldest_ready_at,
           bool_or(more) AS more
      FROM lane_stats
     GROUP BY namespace, topic
), dead_topics(namespace, topic) AS (
    (SELECT d.namespace, d.topic FROM outbox.dead d
      ORDER BY d.namespace, d.topic LIMIT 1)
    UNION ALL
    SELECT n.namespace, n.topic
      FROM dead_topics t,
           LATERAL (SELECT d.namespace, d.topic FROM outbox.dead d
                     WHERE (d.namespace, d.topic) > (t.namespace, t.topic)
                     ORDER BY d.namespace, d.topic LIMIT 1) n
), dead AS (
    SELECT t.namespace, t.topic,
           (SELECT count(*)
              FROM (SELECT FROM outbox.dead d
                     WHERE d.namespace = t.namespace AND d.topic = t.topic
                     LIMIT 10000) s) AS dead
      FROM dead_topics t
)
SELECT coalesce(live.topic, dead.topic) AS topic,
       coalesce(live.namespace, dead.namespace) AS namespace,
       coalesce(t.paused, false) AS paused,
       h.handler,
       coalesce(live.ready, 0) AS ready,
       date_trunc('second', now() - live.oldest_ready_at) AS oldest,
       coalesce(live.in_progress, 0) AS in_progress,
       coalesce(live.expired, 0) AS expired,
       coalesce(live.delayed, 0) AS delayed,
       coalesce(live.waiting_in_stream, 0) AS waiting_in_stream,
       coalesce(live.failing, 0) AS failing,
       coalesce(dead.dead, 0) AS dead,
       coalesce(live.more, false) OR coalesce(dead.dead, 0) >= 10000 AS more,
       live.oldest_ready_at
  FROM live
  FULL JOIN dead ON dead.namespace = live.namespace AND dead.topic = live.topic
  LEFT JOIN outbox.topics t
    ON t.kind = 'message'
   AND t.namespace = coalesce(live.namespace, dead.namespace)
   AND t.topic = coalesce(live.topic, dead.topic)
  LEFT JOIN outbox.handlers h
    ON h.namespace = coalesce(live.namespace, dead.namespace)
   AND h.topic = coalesce(live.topic, dead.topic)
 ORDER BY live.oldest_ready_at, topic, namespace;

COMMENT ON VIEW outbox.topic_stats IS
    'What lies in each topic, the oldest first; see outbox.topic_counts for exact numbers.';
COMMENT ON COLUMN outbox.topic_stats.topic IS 'The topic.';
COMMENT ON COLUMN outbox.topic_stats.namespace IS 'The namespace.';
COMMENT ON COLUMN outbox.topic_stats.paused IS 'Whether the topic is paused.';
COMMENT ON COLUMN outbox.topic_stats.handler IS 'The function that serves it in the database.';
COMMENT ON COLUMN outbox.topic_stats.ready IS
    'Messages that can be claimed, unless the topic is paused.';
COMMENT ON COLUMN outbox.topic_stats.oldest IS
    'For how long the oldest of the ready could have been claimed.';
COMMENT ON COLUMN outbox.topic_stats.in_progress IS 'Messages that are leased.';
COMMENT ON COLUMN outbox.topic_stats.expired IS 'Of these, those whose lease has ended.';
COMMENT ON COLUMN outbox.topic_stats.delayed IS 'Messages that are not due yet.';
COMMENT ON COLUMN outbox.topic_stats.waiting_in_stream IS
    'Messages that wait behind another of their stream.';
COMMENT ON COLUMN outbox.topic_stats.failing IS
    'Messages that have been handed back as failed three times or more, and are tried again.';
COMMENT ON COLUMN outbox.topic_stats.dead IS 'Messages that have failed.';
COMMENT ON COLUMN outbox.topic_stats.more IS
    'Not all were counted: of a tenant''s messages in a topic, or the dead of one, 10000.';
COMMENT ON COLUMN outbox.topic_stats.oldest_ready_at IS
    'Since when the oldest of the ready can be claimed.';

CREATE VIEW outbox.topic_counts AS
WITH counted AS (
    SELECT q.namespace, q.topic,
           count(*) FILTER (WHERE q.status = 0 AND q.next_attempt_at <= now()) AS due,
           count(*) FILTER (WHERE q.status = 0 AND q.next_attempt_at > now()) AS delayed,
           count(*) FILTER (WHERE q.status = 1) AS in_progress,
           0::bigint AS dead
      FROM outbox.queue q
     GROUP BY q.namespace, q.topic
    UNION ALL
    SELECT d.namespace, d.topic, 0, 0, 0, count(*)
      FROM outbox.dead d
     GROUP BY d.namespace, d.topic
)
SELECT c.topic, c.namespace,
       sum(c.due)::bigint AS due,
       sum(c.delayed)::bigint AS delayed,
       sum(c.in_progress)::bigint AS in_progress,
       sum(c.dead)::bigint AS dead
  FROM counted c
 GROUP BY c.namespace, c.topic
 ORDER BY c.topic, c.namespace;

COMMENT ON VIEW outbox.topic_counts IS
    'Exact numbers of messages per topic. It reads all that are not done.';
COMMENT ON COLUMN outbox.topic_counts.topic IS 'The topic.';
COMMENT ON COLUMN outbox.topic_counts.namespace IS 'The namespace.';
COMMENT ON COLUMN outbox.topic_counts.due IS
    'Messages that are due, also behind others of their stream.';
COMMENT ON COLUMN outbox.topic_counts.delayed IS 'Messages that are not due yet.';
COMMENT ON COLUMN outbox.topic_counts.in_progress IS 'Messages that are leased.';
COMMENT ON COLUMN outbox.topic_counts.dead IS 'Messages that have failed.';

CREATE VIEW outbox.dead_letters AS
SELECT d.id, d.topic, d.namespace, d.attempts,
       outbox.reason_name(d.failure_reason) AS reason,
       date_trunc('second', now() - d.processed_at) AS age,
       d.processed_at AS failed_at, d.created_at, d.retry_count, d.failure_reason,
       d.processed_by AS failed_by, d.last_error, d.correlation_id, d.tenant_id,
       d.dedupe_key, d.stream_id, d.message_id, d.headers, d.payload
  FROM outbox.dead d;

COMMENT ON VIEW outbox.dead_letters IS
    'Messages that have failed. outbox.requeue brings them back.';
COMMENT ON COLUMN outbox.dead_letters.id IS 'The work item: what requeue wants.';
COMMENT ON COLUMN outbox.dead_letters.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.dead_letters.namespace IS 'Its namespace.';
COMMENT ON COLUMN outbox.dead_letters.topic IS 'Its topic.';
COMMENT ON COLUMN outbox.dead_letters.payload IS 'The message itself.';
COMMENT ON COLUMN outbox.dead_letters.headers IS 'What travelled with it.';
COMMENT ON COLUMN outbox.dead_letters.correlation_id IS 'Ties messages together.';
COMMENT ON COLUMN outbox.dead_letters.tenant_id IS 'Whose message it is.';
COMMENT ON COLUMN outbox.dead_letters.dedupe_key IS 'Its dedupe key.';
COMMENT ON COLUMN outbox.dead_letters.stream_id IS 'Its stream.';
COMMENT ON COLUMN outbox.dead_letters.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.dead_letters.retry_count IS 'How often it was handed back.';
COMMENT ON COLUMN outbox.dead_letters.last_error IS 'What the worker said.';
COMMENT ON COLUMN outbox.dead_letters.failure_reason IS 'Why it failed.';
COMMENT ON COLUMN outbox.dead_letters.created_at IS 'When it was enqueued.';
COMMENT ON COLUMN outbox.dead_letters.reason IS 'Why it failed, in words.';
COMMENT ON COLUMN outbox.dead_letters.age IS 'How long ago it failed.';
COMMENT ON COLUMN outbox.dead_letters.failed_at IS 'When it failed.';
COMMENT ON COLUMN outbox.dead_letters.failed_by IS 'The owner who failed it; null if nobody did.';

CREATE VIEW outbox.failures AS
SELECT f.topic, f.namespace,
       outbox.reason_name(f.failure_reason) AS reason,
       f.count, f.first_at, f.last_at,
       l.id AS last_id,
       left(l.last_error, 200) AS last_error
  FROM (SELECT d.topic, d.namespace, d.failure_reason,
               count(*) AS count,
               min(d.processed_at) AS first_at,
               max(d.processed_at) AS last_at
          FROM outbox.dead d
         GROUP BY d.topic, d.namespace, d.failure_reason) f,
       LATERAL (SELECT e.id, e.last_error
                  FROM outbox.dead e
                 WHERE e.namespace = f.namespace
                   AND e.topic = f.topic
                   AND e.failure_reason = f.failure_reason
                   AND e.processed_at = f.last_at
                 ORDER BY e.id DESC
                 LIMIT 1) l
 ORDER BY f.last_at DESC;

COMMENT ON VIEW outbox.failures IS
    'Dead messages per topic and reason, the latest first. It reads all dead messages.';
COMMENT ON COLUMN outbox.failures.topic IS 'The topic.';
COMMENT ON COLUMN outbox.failures.namespace IS 'The namespace.';
COMMENT ON COLUMN outbox.failures.reason IS 'Why they failed.';
COMMENT ON COLUMN outbox.failures.count IS 'How many.';
COMMENT ON COLUMN outbox.failures.first_at IS 'When the first of them failed.';
COMMENT ON COLUMN outbox.failures.last_at IS 'When the last of them failed.';
COMMENT ON COLUMN outbox.failures.last_id IS 'The last of them.';
COMMENT ON COLUMN outbox.failures.last_error IS
    'What the worker said of the last: its first 200 characters.';

-- _leased_ids()
--     Returns the ids of the messages in progress. The view leases calls it with
--     the rights of the reader, who therefore needs EXECUTE.
CREATE FUNCTION outbox._leased_ids()
RETURNS SETOF bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_leased_ids';

COMMENT ON FUNCTION outbox._leased_ids() IS
    'The messages in progress, found without reading those that are ready.';

CREATE VIEW outbox.leases AS
SELECT q.id, q.topic, q.namespace, q.attempts - q.waived AS attempts,
       date_trunc('second', q.locked_until - now()) AS time_left,
       c.pid, c.application, c.host,
       q.updated_at AS leased_at, q.locked_until,
       q.locked_until <= now() AS expired,
       q.owner_token, q.stream_id, q.message_id
  FROM outbox._leased_ids() l(id)
  JOIN outbox.queue q ON q.id = l.id AND q.status = 1
  LEFT JOIN outbox._owner_claims() c ON c.owner_token = q.owner_token;

COMMENT ON VIEW outbox.leases IS 'Messages that are in progress.';
COMMENT ON COLUMN outbox.leases.id IS 'The work item.';
COMMENT ON COLUMN outbox.leases.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.leases.namespace IS 'Its namespace.';
COMMENT ON COLUMN outbox.leases.topic IS 'Its topic.';
COMMENT ON COLUMN outbox.leases.stream_id IS 'Its stream.';
COMMENT ON COLUMN outbox.leases.owner_token IS 'Who has the lease.';
COMMENT ON COLUMN outbox.leases.attempts IS 'How often the message was handed out.';
COMMENT ON COLUMN outbox.leases.time_left IS
    'Until the end of the lease; negative when it has ended.';
COMMENT ON COLUMN outbox.leases.pid IS
    'The process of the session that last claimed for the owner; null if it is forgotten.';
COMMENT ON COLUMN outbox.leases.application IS 'The application_name of that session then.';
COMMENT ON COLUMN outbox.leases.host IS
    'Where the client of that session was; a pooler, if there is one.';
COMMENT ON COLUMN outbox.leases.leased_at IS 'When the lease was taken or renewed.';
COMMENT ON COLUMN outbox.leases.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.leases.expired IS
    'Whether it has ended, and nobody has taken the message yet.';

CREATE VIEW outbox.stream_heads AS
WITH RECURSIVE streams(stream_id) AS (
    (SELECT q.stream_id FROM outbox.queue q
      WHERE q.stream_id IS NOT NULL ORDER BY q.stream_id LIMIT 1)
    UNION ALL
    SELECT (SELECT q.stream_id FROM outbox.queue q
             WHERE q.stream_id > s.stream_id ORDER BY q.stream_id LIMIT 1)
      FROM streams s
     WHERE s.stream_id IS NOT NULL
)
SELECT s.stream_id, h.id, h.topic, h.namespace,
       outbox.status_name(h.status) AS state,
       (SELECT count(*)
          FROM (SELECT FROM outbox.queue b
                 WHERE b.stream_id = s.stream_id AND b.stream_seq > h.stream_seq
                 LIMIT 1000) behind) AS behind,
       h.attempts - h.waived AS attempts, h.created_at, h.next_attempt_at,
       h.locked_until, h.owner_token, h.last_error, h.status, h.message_id,
       outbox._partition_number(s.stream_id) AS partition_number
  FROM streams s,
       LATERAL (SELECT * FROM outbox.queue q
                 WHERE q.stream_id = s.stream_id
                 ORDER BY q.stream_seq LIMIT 1) h
 WHERE s.stream_id IS NOT NULL;

COMMENT ON VIEW outbox.stream_heads IS
    'Of each stream the first message that is not finished: the one all others wait for.';
COMMENT ON COLUMN outbox.stream_heads.stream_id IS 'The stream.';
COMMENT ON COLUMN outbox.stream_heads.partition_number IS
    'The share of the streams to which it belongs.';
COMMENT ON COLUMN outbox.stream_heads.id IS 'The work item.';
COMMENT ON COLUMN outbox.stream_heads.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.stream_heads.namespace IS 'Its namespace.';
COMMENT ON COLUMN outbox.stream_heads.topic IS 'Its topic.';
COMMENT ON COLUMN outbox.stream_heads.state IS 'ready or in progress: the status.';
COMMENT ON COLUMN outbox.stream_heads.behind IS
    'How many messages wait behind it; no more than 1000 are counted.';
COMMENT ON COLUMN outbox.stream_heads.status IS '0 ready, 1 in progress.';
COMMENT ON COLUMN outbox.stream_heads.owner_token IS 'Who has the lease.';
COMMENT ON COLUMN outbox.stream_heads.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.stream_heads.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.stream_heads.next_attempt_at IS 'Not to be delivered before.';
COMMENT ON COLUMN outbox.stream_heads.last_error IS
    'What the worker said of the last failed attempt.';
COMMENT ON COLUMN outbox.stream_heads.created_at IS 'When it was enqueued.';

CREATE VIEW outbox.join_progress AS
SELECT j.join_id, j.grouping_key, outbox.join_status_name(j.status) AS status,
       j.expected_steps, j.completed_steps, j.failed_steps,
       j.expected_steps - j.completed_steps - j.failed_steps AS missing_steps,
       (SELECT count(*) FROM outbox.join_members m WHERE m.join_id = j.join_id) AS members,
       (SELECT count(*) FROM outbox.join_waits w WHERE w.join_id = j.join_id) AS waits,
       j.created_at, j.last_updated_at
  FROM outbox.joins j;

COMMENT ON VIEW outbox.join_progress IS 'Joins, and how far they are.';
COMMENT ON COLUMN outbox.join_progress.join_id IS 'The join.';
COMMENT ON COLUMN outbox.join_progress.grouping_key IS 'Its grouping key.';
COMMENT ON COLUMN outbox.join_progress.status IS 'pending, completed, failed or cancelled.';
COMMENT ON COLUMN outbox.join_progress.expected_steps IS 'How many steps must end.';
COMMENT ON COLUMN outbox.join_progress.completed_steps IS 'How many are done.';
COMMENT ON COLUMN outbox.join_progress.failed_steps IS 'How many have failed.';
COMMENT ON COLUMN outbox.join_progress.missing_steps IS 'How many are still to end.';
COMMENT ON COLUMN outbox.join_progress.members IS 'How many messages are attached.';
COMMENT ON COLUMN outbox.join_progress.waits IS 'How many continuations wait for it.';
COMMENT ON COLUMN outbox.join_progress.created_at IS 'When it was started.';
COMMENT ON COLUMN outbox.join_progress.last_updated_at IS 'When it last changed.';

-- _library()
--     Returns the version of the loaded library, whether it was preloaded, and its
--     lanes in shared memory.
CREATE FUNCTION outbox._library(
    OUT version      text,
    OUT preloaded    boolean,
    OUT lanes        integer,
    OUT lanes_in_use integer
)
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_library';

COMMENT ON FUNCTION outbox._library() IS
    'What the loaded library knows of itself.';

-- _lanes(store)
--     Returns what shared memory knows of the lanes of a live table, of those
--     with a token of the parts of lanes: for those who look for an error.
CREATE FUNCTION outbox._lanes(
    store regclass,
    OUT lane          bigint,
    OUT token         bigint,
    OUT complete      boolean,
    OUT cursor_at     timestamptz,
    OUT cursor_id     bigint,
    OUT next_due      timestamptz,
    OUT due           boolean,
    OUT called        boolean,
    OUT due_marks     integer,
    OUT pending_marks integer,
    OUT leases_known  boolean,
    OUT used_at       timestamptz
)
RETURNS SETOF record
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_lanes_sql';

COMMENT ON FUNCTION outbox._lanes(regclass) IS
    'What shared memory knows of the lanes of a live table.';

-- _written_tables()
--     Returns the tables that the functions write, and of each what was added to
--     it so that it is written by SQL; null if it is written directly. The archive
--     comes before its partitions.
CREATE FUNCTION outbox._written_tables(
    OUT table_name text,
    OUT why_not    text
)
RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_written_tables_sql';

COMMENT ON FUNCTION outbox._written_tables() IS
    'The tables that the functions write, and why they do so by SQL.';

-- _workers()
--     Returns the state of the launcher and of the workers: is this database
--     served, and, in all databases, how many run, are waited for, and fail.
CREATE FUNCTION outbox._workers(
    OUT launcher     boolean,
    OUT serves       boolean,
    OUT running      integer,
    OUT waiting      integer,
    OUT failing      integer,
    OUT no_slots     boolean,
    OUT failing_here integer,
    OUT no_posts     boolean
)
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_workers_sql';

COMMENT ON FUNCTION outbox._workers() IS
    'What is known of the background workers of all databases.';

-- _status()
--     One row for each thing that can be well or not.
CREATE FUNCTION outbox._status()
RETURNS TABLE (component text, ok boolean, status text, detail text, hint text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    library   record;
    installed text;
    stats     record;
    stuck     record;
    overdue   record;
    holder    record;
    next_id   bigint;
    used_id   bigint;
BEGIN
    SELECT * INTO library FROM outbox._library();
    SELECT e.extversion INTO installed FROM pg_extension e WHERE e.extname = 'outbox';
    SELECT max(now() - s.oldest_ready_at) FILTER (WHERE NOT s.paused) AS oldest,
           (array_agg(format('topic "%s", namespace "%s"', s.topic, s.namespace)
                      ORDER BY s.oldest_ready_at)
                FILTER (WHERE NOT s.paused AND s.oldest_ready_at IS NOT NULL))[1] AS oldest_topic,
           coalesce(sum(s.expired), 0) AS expired,
           string_agg(format('%s: %s', s.topic, s.expired), ', ' ORDER BY s.expired DESC, s.topic)
               FILTER (WHERE s.expired > 0) AS expired_topics,
           coalesce(sum(s.failing), 0) AS failing,
           string_agg(format('%s: %s', s.topic, s.failing), ', ' ORDER BY s.failing DESC, s.topic)
               FILTER (WHERE s.failing > 0) AS failing_topics,
           coalesce(sum(s.dead), 0) AS dead,
           string_agg(format('%s: %s%s', s.topic, s.dead,
                             CASE WHEN s.dead >= 10000 THEN ' or more' END),
                      ', ' ORDER BY s.dead DESC, s.topic)
               FILTER (WHERE s.dead > 0) AS dead_topics,
           string_agg(s.topic, ', ' ORDER BY s.topic) FILTER (WHERE s.paused) AS paused
      INTO stats
      FROM outbox.topic_stats s;

    component := 'version';
    ok := library.version = installed;
    status := installed;
    detail := format('library %s, SQL %s', library.version, installed);
    hint := CASE WHEN NOT ok THEN
                'Restart the server if the library is new, or run '
                'ALTER EXTENSION outbox UPDATE.' END;
    RETURN NEXT;

    component := 'library';
    ok := library.preloaded;
    status := CASE WHEN ok THEN 'preloaded' ELSE 'loaded on demand' END;
    detail := NULL;
    hint := CASE WHEN NOT ok THEN
                'Add outbox to shared_preload_libraries for background workers.' END;
    RETURN NEXT;

    component := 'shared memory';
    ok := library.lanes > 0 AND library.lanes_in_use < library.lanes;
    status := CASE WHEN library.lanes = 0 THEN 'none' WHEN ok THEN 'used' ELSE 'full' END;
    detail := format('%s of %s lanes in use', library.lanes_in_use, library.lanes);
    hint := CASE WHEN NOT ok THEN
                'Claims scan topics without a lane from their start. '
                'Preload the library and raise outbox.lane_memory.' END;
    RETURN NEXT;

    component := 'tables';
    -- what was added to the archive has come to its partitions as well
    SELECT string_agg(format('%s: %s', t.table_name, t.why_not), '; ' ORDER BY t.n)
      INTO detail
      FROM (SELECT w.table_name, w.why_not, w.n,
                   bool_or(w.table_name = 'archive' AND w.why_not IS NOT NULL) OVER () AS archive,
                   EXISTS (SELECT FROM pg_inherits i
                             JOIN pg_class c ON c.oid = i.inhrelid
                            WHERE i.inhparent = 'outbox.archive'::regclass
                              AND c.relname = w.table_name) AS is_partition
              FROM outbox._written_tables() WITH ORDINALITY w(table_name, why_not, n)) t
     WHERE t.why_not IS NOT NULL AND NOT (t.archive AND t.is_partition);
    ok := detail IS NULL;
    status := CASE WHEN ok THEN 'written directly' ELSE 'written by SQL' END;
    hint := CASE WHEN NOT ok THEN
                'What was added to these tables is honoured. Calls that write them are slower; '
                'callers need rights on outbox.queue and the other tables of unfinished work.' END;
    RETURN NEXT;

    component := 'queue indexes';
    SELECT string_agg(DISTINCT i.indexrelid::regclass::text, ', ')
      INTO detail
      FROM pg_index i
      JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[])
     WHERE i.indrelid = 'outbox.queue'::regclass
       AND a.attname IN ('status', 'owner_token', 'locked_until', 'attempts', 'updated_at');
    ok := detail IS NULL;
    status := CASE WHEN ok THEN 'as they should be' ELSE 'in the way' END;
    hint := CASE WHEN NOT ok THEN
                'Claims cannot be HOT updates while a column that they change is indexed. '
                'Drop the index.' END;
    RETURN NEXT;

    component := 'oldest ready message';
    ok := coalesce(stats.oldest < interval '5 minutes', true);
    status := coalesce(date_trunc('milliseconds', stats.oldest)::text, 'none');
    detail := nullif(concat_ws('; ', stats.oldest_topic,
                               'paused, and left out: ' || left(stats.paused, 200)), '');
    hint := CASE WHEN NOT ok THEN 'Are there workers for all topics? See outbox.topic_stats.' END;
    RETURN NEXT;

    component := 'expired leases';
    ok := stats.expired = 0;
    status := stats.expired::text;
    detail := left(stats.expired_topics, 200);
    hint := CASE WHEN NOT ok THEN
                'Workers die or take too long. The messages will be handed out again.' END;
    RETURN NEXT;

    component := 'joins';
    SELECT count(*) AS n, min(j.created_at) AS since
      INTO stuck
      FROM (SELECT p.created_at
              FROM outbox.joins p
             WHERE p.status = 0 AND p.last_updated_at < now() - interval '1 day'
               AND p.created_at < now() - interval '1 day'
             LIMIT 10000) j;
    ok := stuck.n = 0;
    status := format('%s stuck', stuck.n);
    detail := CASE WHEN NOT ok THEN
                  format('pending, and not changed for a day; the oldest since %s',
                         stuck.since) END;
    hint := CASE WHEN NOT ok THEN
                'See outbox.join_progress. outbox.reconcile_joins counts what was missed, '
                'outbox.cancel_join ends one.' END;
    RETURN NEXT;

    component := 'archive';
    SELECT count(*) AS n, min(p.name) AS first, min(d.dependents) AS dependents
      INTO overdue
      FROM outbox._overdue_partitions(current_setting('outbox.retention')::interval) p
     CROSS JOIN LATERAL (SELECT outbox._dependents(p.relation) AS dependents) d
     WHERE p.overdue_since < now() - interval '1 day' OR d.dependents IS NOT NULL;
    ok := overdue.n = 0;
    status := format('%s overdue', overdue.n);
    detail := CASE WHEN NOT ok THEN
                  format('partitions that are kept no longer, and were not dropped, as %s; %s',
                         overdue.first,
                         coalesce('in the way: ' || overdue.dependents, 'nothing depends on it'))
              END;
    hint := CASE WHEN overdue.dependents IS NOT NULL THEN
                     'Drop what depends on them; read outbox.messages instead.'
                 WHEN NOT ok THEN
                     'Does a session keep them locked? Does maintenance run?' END;
    RETURN NEXT;

    RETURN QUERY SELECT * FROM outbox._worker_status(library.preloaded);

    component := 'restore';
    SELECT string_agg(k.pid::text, ', ')
      INTO detail
      FROM pg_locks k
     WHERE k.locktype = 'advisory' AND k.objsubid = 3 AND k.granted
       AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
       AND k.classid = 'outbox'::regnamespace;
    ok := detail IS NULL;
    status := CASE WHEN ok THEN 'none' ELSE 'under way' END;
    detail := 'sessions ' || detail;
    hint := CASE WHEN NOT ok THEN
                'Background workers wait until these sessions, which load a dump, have ended.' END;
    RETURN NEXT;

    component := 'ids';
    -- the sequence after the rows, which have their ids from it
    SELECT max(u.id) INTO used_id
      FROM (SELECT max(q.id) FROM outbox.queue q
            UNION ALL
            SELECT max(q.id) FROM outbox.inbox_queue q
            UNION ALL
            SELECT max(q.id) FROM outbox.timer_queue q
            UNION ALL
            SELECT max(q.id) FROM outbox.run_queue q
            UNION ALL
            SELECT max(d.id) FROM outbox.dead d
            UNION ALL
            SELECT max(d.id) FROM outbox.inbox_dead d
            UNION ALL
            SELECT max(d.id) FROM outbox.timer_dead d
            UNION ALL
            SELECT max(d.id) FROM outbox.run_dead d) u(id);
    SELECT s.last_value + s.is_called::integer INTO next_id FROM outbox.message_id_seq s;
    ok := coalesce(used_id < next_id, true);
    status := CASE WHEN ok THEN 'in order' ELSE 'set back' END;
    detail := CASE WHEN NOT ok THEN
                  format('the next id is %s, but %s is in use', next_id, used_id) END;
    hint := CASE WHEN NOT ok THEN
                format('New messages can fail with 23505. '
                       'SELECT setval(''outbox.message_id_seq'', greatest(%s, last_value)) '
                       'FROM outbox.message_id_seq;', used_id) END;
    RETURN NEXT;

    component := 'failing messages';
    ok := stats.failing = 0;
    status := stats.failing::text;
    detail := left(stats.failing_topics, 200);
    hint := CASE WHEN NOT ok THEN
                'They have failed three times or more, and are tried again; outbox.attempts_log '
                'has the errors.' END;
    RETURN NEXT;

    component := 'dead messages';
    ok := stats.dead = 0;
    status := stats.dead::text;
    detail := left(stats.dead_topics, 200);
    hint := CASE WHEN NOT ok THEN
                'See outbox.failures and outbox.dead_letters; outbox.requeue brings them back, '
                'outbox.purge_topic removes them.' END;
    RETURN NEXT;

    FOR component, status, detail, hint IN
        SELECT d.component, d.n::text, d.who,
               CASE WHEN d.n > 0 THEN
                   format('See outbox.%s; outbox.%s brings them back.', d.view, d.requeue) END
          FROM (SELECT 1 AS place, 'dead inbox messages' AS component, 'dead_inbox' AS view,
                       'requeue_inbox' AS requeue, count(*) AS n,
                       left(string_agg(DISTINCT i.handler_name, ', '), 200) AS who
                  FROM (SELECT h.handler_name FROM outbox.inbox_dead h LIMIT 10000) i
                UNION ALL
                SELECT 2, 'dead timers', 'dead_timers', 'requeue_timers', count(*),
                       left(string_agg(DISTINCT t.topic, ', '), 200)
                  FROM (SELECT h.topic FROM outbox.timer_dead h LIMIT 10000) t
                UNION ALL
                SELECT 3, 'dead runs of jobs', 'dead_job_runs', 'requeue_job_runs', count(*),
                       left(string_agg(DISTINCT r.job_name, ', '), 200)
                  FROM (SELECT h.job_name FROM outbox.run_dead h LIMIT 10000) r) d
         ORDER BY d.place
    LOOP
        ok := status = '0';
        RETURN NEXT;
    END LOOP;

    RETURN QUERY SELECT * FROM outbox._job_status();

    component := 'xmin horizon';
    SELECT h.who, h.xmin_age
      INTO holder
      FROM (SELECT format('session %s, %s', a.pid, a.state) AS who,
                   age(a.backend_xmin) AS xmin_age
              FROM pg_stat_activity a
             WHERE a.backend_xmin IS NOT NULL AND a.pid <> pg_backend_pid()
            UNION ALL
            SELECT format('prepared transaction %L', x.gid), age(x.transaction)
              FROM pg_prepared_xacts x
            UNION ALL
            SELECT format('replication slot %s', r.slot_name),
                   greatest(age(r.xmin), age(r.catalog_xmin))
              FROM pg_replication_slots r
             WHERE r.xmin IS NOT NULL OR r.catalog_xmin IS NOT NULL) h
     ORDER BY h.xmin_age DESC
     LIMIT 1;
    ok := coalesce(holder.xmin_age < 1000000, true);
    status := CASE WHEN holder.who IS NULL THEN 'not held'
                   ELSE format('%s transactions behind', holder.xmin_age) END;
    detail := holder.who;
    hint := CASE WHEN NOT ok THEN
                'Finished rows cannot be removed while it is held. '
                'End the session, or drop the slot.' END;
    RETURN NEXT;
END
$$;

COMMENT ON FUNCTION outbox._status() IS
    'One row for each thing that can be well or not.';

-- status()
--     The same, those that are not well first.
CREATE FUNCTION outbox.status()
RETURNS TABLE (component text, ok boolean, status text, detail text, hint text)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.component, s.ok, s.status, s.detail, s.hint
      FROM outbox._status() WITH ORDINALITY s
     ORDER BY s.ok, s.ordinality
$$;

COMMENT ON FUNCTION outbox.status() IS
    'What is well and what is not, the latter first.';

-- What is due later, and timers and runs that wait. Messages are found a lane at a
-- time, as in topic_stats: what is due now is not looked at, and no more than the
-- first 1000 of a lane.
CREATE VIEW outbox.upcoming AS
WITH RECURSIVE lanes(lane) AS (
    (SELECT q.lane FROM outbox.queue q ORDER BY q.lane LIMIT 1)
    UNION ALL
    SELECT (SELECT q.lane FROM outbox.queue q
             WHERE q.lane > l.lane ORDER BY q.lane LIMIT 1)
      FROM lanes l
     WHERE l.lane IS NOT NULL
)
SELECT u.next_attempt_at, u.kind, u.topic, u.name, u.message_id
  FROM (
    SELECT m.next_attempt_at, 'message'::text AS kind, m.topic, m.correlation_id AS name,
           m.message_id
      FROM lanes l,
           LATERAL (SELECT q.next_attempt_at, q.topic, q.correlation_id, q.message_id, q.status
                      FROM outbox.queue q
                     WHERE q.lane = l.lane AND q.next_attempt_at > now()
                     ORDER BY q.next_attempt_at, q.id
                     LIMIT 1000) m
     WHERE l.lane IS NOT NULL AND m.status = 0
    UNION ALL
    SELECT t.next_attempt_at, 'timer', t.topic, t.correlation_id, t.message_id
      FROM outbox.timer_queue t
     WHERE t.status = 0
    UNION ALL
    SELECT r.next_attempt_at, 'job_run', r.topic, r.job_name, r.message_id
      FROM outbox.run_queue r
     WHERE r.status = 0) u
 ORDER BY u.next_attempt_at, u.topic, u.message_id;

COMMENT ON VIEW outbox.upcoming IS
    'What is next: messages that are due later, timers and runs that wait.';
COMMENT ON COLUMN outbox.upcoming.next_attempt_at IS 'When.';
COMMENT ON COLUMN outbox.upcoming.kind IS 'message, timer or job_run.';
COMMENT ON COLUMN outbox.upcoming.topic IS
    'The topic; for timers and runs that of the message that it becomes.';
COMMENT ON COLUMN outbox.upcoming.name IS 'The job of a run; else the correlation_id.';
COMMENT ON COLUMN outbox.upcoming.message_id IS 'The message, the timer, or the run.';

-- The failed attempts of messages, received messages, timers and runs, also of those
-- that are over: of each the last 10, as errors.c writes them. Ask for an id: all
-- tables are looked through for more.
CREATE VIEW outbox.attempts_log AS
SELECT a.id, a.kind, a.topic,
       substring(e.entry FROM '^(\d{1,9}) ')::integer AS attempt,
       '2000-01-01 00:00:00+00'::timestamptz
           + substring(e.entry FROM '^\d+ (\d{1,18})')::bigint * interval '1 microsecond' AS at,
       substring(e.entry FROM '^\d+ \d+ (.*)$') AS error,
       a.namespace, a.message_id
  FROM (
    SELECT 'message'::text AS kind, t.id, t.message_id, t.namespace, t.topic, t.errors
      FROM outbox.queue t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'message', t.id, t.message_id, t.namespace, t.topic, t.errors
      FROM outbox.archive t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'message', t.id, t.message_id, t.namespace, t.topic, t.errors
      FROM outbox.dead t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'inbox', t.id, t.message_id, t.namespace, t.handler_name, t.errors
      FROM outbox.inbox_queue t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'inbox', t.id, t.message_id, t.namespace, t.handler_name, t.errors
      FROM outbox.inbox_done t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'inbox', t.id, t.message_id, t.namespace, t.handler_name, t.errors
      FROM outbox.inbox_dead t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'timer', t.id, t.message_id, t.namespace, t.topic, t.errors
      FROM outbox.timer_queue t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'timer', t.id, t.message_id, t.namespace, t.topic, t.errors
      FROM outbox.timer_done t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'timer', t.id, t.message_id, t.namespace, t.topic, t.errors
      FROM outbox.timer_dead t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'job_run', t.id, t.message_id, t.namespace, t.topic, t.errors
      FROM outbox.run_queue t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'job_run', t.id, t.message_id, t.namespace, t.topic, t.errors
      FROM outbox.run_done t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'job_run', t.id, t.message_id, t.namespace, t.topic, t.errors
      FROM outbox.run_dead t WHERE t.errors IS NOT NULL) a,
       LATERAL unnest(a.errors) WITH ORDINALITY e(entry, n)
 ORDER BY a.id, e.n;

COMMENT ON VIEW outbox.attempts_log IS
    'The failed attempts, the last 10 of each message, timer or run.';
COMMENT ON COLUMN outbox.attempts_log.id IS 'The message, the timer, or the run.';
COMMENT ON COLUMN outbox.attempts_log.kind IS 'message, inbox, timer or job_run.';
COMMENT ON COLUMN outbox.attempts_log.topic IS 'The topic; in the inbox the handler_name.';
COMMENT ON COLUMN outbox.attempts_log.attempt IS
    'The number of the attempt; it begins with 1 again when a dead message is put back.';
COMMENT ON COLUMN outbox.attempts_log.at IS 'When the attempt was handed back as failed.';
COMMENT ON COLUMN outbox.attempts_log.error IS
    'What the worker said, up to 200 bytes; null if it said nothing.';
COMMENT ON COLUMN outbox.attempts_log.namespace IS 'The namespace.';
COMMENT ON COLUMN outbox.attempts_log.message_id IS 'The logical message, timer or run.';
