-- views.sql: views for users and for monitoring. Unless it is said otherwise, they do
-- not read all messages. Serves sql_admin.c and sql_work.c.

-- At most 10000 messages of each lane, and 10000 dead ones of each topic, are counted,
-- and fewer where there are many lanes or topics, so that the whole takes well below a
-- second.
CREATE VIEW outbox.topic_stats AS
WITH RECURSIVE live AS (
    SELECT l.namespace,
           l.topic,
           s.subscription,
           sum(l.ready)::bigint AS ready,
           sum(l.delayed)::bigint AS delayed,
           sum(l.behind)::bigint AS waiting_in_stream,
           sum(l.leased)::bigint AS leased,
           sum(l.expired)::bigint AS expired,
           sum(l.failing)::bigint AS failing,
           min(l.oldest_ready_at) AS oldest_ready_at,
           bool_or(l.more) AS more
      FROM outbox._lane_counts('outbox.queue') l
      LEFT JOIN outbox.subscribers s ON s.id = l.subscriber
     GROUP BY l.namespace, l.topic, s.subscription
), dead_topics(namespace, topic) AS (
    (SELECT d.namespace, d.topic FROM outbox.dead d
      ORDER BY d.namespace, d.topic LIMIT 1)
    UNION ALL
    SELECT n.namespace, n.topic
      FROM dead_topics t,
           LATERAL (SELECT d.namespace, d.topic FROM outbox.dead d
                     WHERE (d.namespace, d.topic) > (t.namespace, t.topic)
                     ORDER BY d.namespace, d.topic LIMIT 1) n
), dead_limit(rows) AS (
    SELECT greatest(2, least(10000, 200000 / greatest(count(*), 1))) FROM dead_topics
), dead AS (
    SELECT t.namespace, t.topic, s.subscription, count(*) AS dead
      FROM dead_topics t,
           LATERAL (SELECT d.subscription FROM outbox.dead d
                     WHERE d.namespace = t.namespace AND d.topic = t.topic
                     LIMIT (SELECT n.rows FROM dead_limit n)) s
     GROUP BY t.namespace, t.topic, s.subscription
)
SELECT coalesce(live.topic, dead.topic) AS topic,
       coalesce(live.namespace, dead.namespace) AS namespace,
       coalesce(live.subscription, dead.subscription) AS subscription,
       coalesce(t.paused, false) AS paused,
       h.handler,
       coalesce(live.ready, 0) AS ready,
       date_trunc('second', now() - live.oldest_ready_at) AS oldest_ready_age,
       coalesce(live.leased, 0) AS leased,
       coalesce(live.expired, 0) AS expired,
       coalesce(live.delayed, 0) AS delayed,
       coalesce(live.waiting_in_stream, 0) AS waiting_in_stream,
       coalesce(live.failing, 0) AS failing,
       coalesce(dead.dead, 0) AS dead,
       coalesce(live.more, false)
       OR coalesce(dead.dead, 0) >= (SELECT n.rows FROM dead_limit n) AS more,
       live.oldest_ready_at
  FROM live
  FULL JOIN dead
    ON dead.namespace = live.namespace
   AND dead.topic = live.topic
   AND coalesce(dead.subscription, '') = coalesce(live.subscription, '')
  LEFT JOIN outbox.topics t
    ON t.kind = CASE WHEN coalesce(live.subscription, dead.subscription) IS NULL
                     THEN 'message' ELSE 'subscription' END
   AND t.namespace = coalesce(live.namespace, dead.namespace)
   AND t.topic = coalesce(live.subscription, dead.subscription, live.topic, dead.topic)
  LEFT JOIN outbox.handlers h
    ON h.namespace = coalesce(live.namespace, dead.namespace)
   AND h.subscription = coalesce(live.subscription, dead.subscription, '')
   -- an equality, which can be hashed
   AND CASE h.subscription WHEN '' THEN h.topic ELSE '' END
       = CASE WHEN coalesce(live.subscription, dead.subscription) IS NULL
              THEN coalesce(live.topic, dead.topic) ELSE '' END
 ORDER BY live.oldest_ready_at, topic, namespace, subscription;

COMMENT ON VIEW outbox.topic_stats IS
    'The messages of each topic and subscription, the oldest first; see outbox.topic_counts for '
    'exact numbers.';
COMMENT ON COLUMN outbox.topic_stats.topic IS 'The topic.';
COMMENT ON COLUMN outbox.topic_stats.namespace IS 'The namespace.';
COMMENT ON COLUMN outbox.topic_stats.subscription IS
    'The subscription whose deliveries these are; null for enqueued messages.';
COMMENT ON COLUMN outbox.topic_stats.paused IS
    'Whether the topic, or the subscription, is paused.';
COMMENT ON COLUMN outbox.topic_stats.handler IS
    'The function that handles its messages in the database.';
COMMENT ON COLUMN outbox.topic_stats.ready IS
    'Messages that can be claimed, unless the topic is paused.';
COMMENT ON COLUMN outbox.topic_stats.oldest_ready_age IS
    'How long the oldest ready message has been claimable.';
COMMENT ON COLUMN outbox.topic_stats.leased IS 'Messages that are leased.';
COMMENT ON COLUMN outbox.topic_stats.expired IS 'Leased messages whose lease has ended.';
COMMENT ON COLUMN outbox.topic_stats.delayed IS 'Messages that are not due yet.';
COMMENT ON COLUMN outbox.topic_stats.waiting_in_stream IS
    'Messages that wait behind another of their stream.';
COMMENT ON COLUMN outbox.topic_stats.failing IS
    'Messages that have failed three times or more, and are retried.';
COMMENT ON COLUMN outbox.topic_stats.dead IS 'Messages that have failed.';
COMMENT ON COLUMN outbox.topic_stats.more IS
    'Whether counting stopped at 10000, or at fewer where there are many topics, for messages of '
    'a tenant in a topic, or dead ones of a topic.';
COMMENT ON COLUMN outbox.topic_stats.oldest_ready_at IS
    'When the oldest ready message became claimable.';

CREATE VIEW outbox.topic_counts AS
WITH counted AS (
    SELECT q.namespace, q.topic, s.subscription,
           count(*) FILTER (WHERE q.status = 0 AND q.next_attempt_at <= now()) AS due,
           count(*) FILTER (WHERE q.status = 0 AND q.next_attempt_at > now()) AS delayed,
           count(*) FILTER (WHERE q.status = 1) AS leased,
           0::bigint AS dead
      FROM outbox.queue q
      LEFT JOIN outbox.subscribers s ON s.id = q.subscriber
     GROUP BY q.namespace, q.topic, s.subscription
    UNION ALL
    SELECT d.namespace, d.topic, d.subscription, 0, 0, 0, count(*)
      FROM outbox.dead d
     GROUP BY d.namespace, d.topic, d.subscription
)
SELECT c.topic, c.namespace, c.subscription,
       sum(c.due)::bigint AS due,
       sum(c.delayed)::bigint AS delayed,
       sum(c.leased)::bigint AS leased,
       sum(c.dead)::bigint AS dead
  FROM counted c
 GROUP BY c.namespace, c.topic, c.subscription
 ORDER BY c.topic, c.namespace, c.subscription;

COMMENT ON VIEW outbox.topic_counts IS
    'Exact numbers of messages per topic and subscription. Reads all messages that are not '
    'done.';
COMMENT ON COLUMN outbox.topic_counts.topic IS 'The topic.';
COMMENT ON COLUMN outbox.topic_counts.namespace IS 'The namespace.';
COMMENT ON COLUMN outbox.topic_counts.subscription IS
    'The subscription whose deliveries these are; null for enqueued messages.';
COMMENT ON COLUMN outbox.topic_counts.due IS
    'Messages that are due, even if they wait behind others of their stream.';
COMMENT ON COLUMN outbox.topic_counts.delayed IS 'Messages that are not due yet.';
COMMENT ON COLUMN outbox.topic_counts.leased IS 'Messages that are leased.';
COMMENT ON COLUMN outbox.topic_counts.dead IS 'Messages that have failed.';

CREATE VIEW outbox.dead_letters AS
SELECT d.id, d.topic, d.namespace, d.attempts,
       outbox.reason_name(d.failure_reason) AS reason_name,
       date_trunc('second', now() - d.processed_at) AS age,
       d.processed_at AS failed_at, d.created_at, d.retry_count, d.failure_reason,
       d.processed_by AS failed_by, d.last_error, d.correlation_id, d.tenant_id,
       d.dedupe_key, d.stream_id, d.subscription, d.published_id, d.message_id, d.headers,
       CASE WHEN d.published_at IS NULL OR d.payload <> '' THEN d.payload
            ELSE (SELECT p.payload
                    FROM outbox.publications p
                   WHERE p.published_id = d.published_id
                     AND p.published_at = d.published_at) END AS payload
  FROM outbox.dead d;

COMMENT ON VIEW outbox.dead_letters IS
    'Messages that have failed. outbox.requeue brings them back.';
COMMENT ON COLUMN outbox.dead_letters.id IS 'The work item; requeue takes this id.';
COMMENT ON COLUMN outbox.dead_letters.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.dead_letters.namespace IS 'Its namespace.';
COMMENT ON COLUMN outbox.dead_letters.topic IS 'Its topic.';
COMMENT ON COLUMN outbox.dead_letters.payload IS 'The payload.';
COMMENT ON COLUMN outbox.dead_letters.headers IS 'The headers.';
COMMENT ON COLUMN outbox.dead_letters.correlation_id IS 'Identifies related messages.';
COMMENT ON COLUMN outbox.dead_letters.tenant_id IS 'The tenant that the message belongs to.';
COMMENT ON COLUMN outbox.dead_letters.dedupe_key IS 'Its dedupe key.';
COMMENT ON COLUMN outbox.dead_letters.stream_id IS 'The stream.';
COMMENT ON COLUMN outbox.dead_letters.subscription IS
    'The subscription, if it is a delivery; null if it was enqueued.';
COMMENT ON COLUMN outbox.dead_letters.published_id IS 'The publication, if it is a delivery.';
COMMENT ON COLUMN outbox.dead_letters.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.dead_letters.retry_count IS 'How often it was returned for a retry.';
COMMENT ON COLUMN outbox.dead_letters.last_error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN outbox.dead_letters.failure_reason IS 'Why it failed.';
COMMENT ON COLUMN outbox.dead_letters.created_at IS 'When it was enqueued.';
COMMENT ON COLUMN outbox.dead_letters.reason_name IS 'The name of failure_reason.';
COMMENT ON COLUMN outbox.dead_letters.age IS 'How long ago it failed.';
COMMENT ON COLUMN outbox.dead_letters.failed_at IS 'When it failed.';
COMMENT ON COLUMN outbox.dead_letters.failed_by IS 'The owner that failed it; null if none did.';

CREATE VIEW outbox.failures AS
SELECT f.topic, f.namespace, f.subscription,
       outbox.reason_name(f.failure_reason) AS reason_name,
       f.count, f.first_at, f.last_at,
       l.id AS last_id,
       left(l.last_error, 200) AS last_error
  FROM (SELECT d.topic, d.namespace, d.subscription, d.failure_reason,
               count(*) AS count,
               min(d.processed_at) AS first_at,
               max(d.processed_at) AS last_at
          FROM outbox.dead d
         GROUP BY d.topic, d.namespace, d.subscription, d.failure_reason) f,
       LATERAL (SELECT e.id, e.last_error
                  FROM outbox.dead e
                 WHERE e.namespace = f.namespace
                   AND e.topic = f.topic
                   AND e.subscription IS NOT DISTINCT FROM f.subscription
                   AND e.failure_reason = f.failure_reason
                   AND e.processed_at = f.last_at
                 ORDER BY e.id DESC
                 LIMIT 1) l
 ORDER BY f.last_at DESC;

COMMENT ON VIEW outbox.failures IS
    'Dead messages per topic, subscription and reason, the latest first. Reads all dead '
    'messages.';
COMMENT ON COLUMN outbox.failures.topic IS 'The topic.';
COMMENT ON COLUMN outbox.failures.namespace IS 'The namespace.';
COMMENT ON COLUMN outbox.failures.subscription IS
    'The subscription whose deliveries these are; null for enqueued messages.';
COMMENT ON COLUMN outbox.failures.reason_name IS 'The name of their failure_reason.';
COMMENT ON COLUMN outbox.failures.count IS 'How many.';
COMMENT ON COLUMN outbox.failures.first_at IS 'When the first of them failed.';
COMMENT ON COLUMN outbox.failures.last_at IS 'When the last of them failed.';
COMMENT ON COLUMN outbox.failures.last_id IS 'The id of the last of them.';
COMMENT ON COLUMN outbox.failures.last_error IS
    'The error of the last of them, truncated to 200 characters.';

-- _leased_ids()
--     Returns the ids of the messages in progress. The view leases calls it with the
--     privileges of the reader, who therefore needs EXECUTE.
CREATE FUNCTION outbox._leased_ids()
RETURNS SETOF bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_leased_ids';

COMMENT ON FUNCTION outbox._leased_ids() IS
    'The ids of messages in progress, found without reading those that are ready.';

CREATE VIEW outbox.leases AS
SELECT q.id, q.topic, q.namespace, q.attempts - q.waived AS attempts,
       date_trunc('second', q.locked_until - now()) AS time_left,
       c.pid, c.application, c.host,
       q.leased_at, q.locked_until,
       q.locked_until <= now() AS expired,
       q.owner_token,
       CASE WHEN q.subscriber IS NULL THEN q.stream_id
            ELSE outbox._subscriber_stream(q.stream_id, q.subscriber) END AS stream_id,
       s.subscription, q.published_id, q.message_id
  FROM outbox._leased_ids() l(id)
  JOIN outbox.queue q ON q.id = l.id AND q.status = 1
  LEFT JOIN outbox.subscribers s ON s.id = q.subscriber
  LEFT JOIN outbox._owner_claims() c ON c.owner_token = q.owner_token;

COMMENT ON VIEW outbox.leases IS 'Messages that are in progress.';
COMMENT ON COLUMN outbox.leases.id IS 'The work item.';
COMMENT ON COLUMN outbox.leases.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.leases.namespace IS 'Its namespace.';
COMMENT ON COLUMN outbox.leases.topic IS 'Its topic.';
COMMENT ON COLUMN outbox.leases.stream_id IS 'The stream.';
COMMENT ON COLUMN outbox.leases.subscription IS
    'The subscription, if it is a delivery; null if it was enqueued.';
COMMENT ON COLUMN outbox.leases.published_id IS 'The publication, if it is a delivery.';
COMMENT ON COLUMN outbox.leases.owner_token IS 'The owner of the lease.';
COMMENT ON COLUMN outbox.leases.attempts IS 'How often the message was handed out.';
COMMENT ON COLUMN outbox.leases.time_left IS
    'The time until the lease ends; negative if it has ended.';
COMMENT ON COLUMN outbox.leases.pid IS
    'The process of the session that last claimed for the owner; null if it is no longer known.';
COMMENT ON COLUMN outbox.leases.application IS 'The application_name of that session at that time.';
COMMENT ON COLUMN outbox.leases.host IS
    'The address of the client of that session, which may be a pooler.';
COMMENT ON COLUMN outbox.leases.leased_at IS 'When the message was claimed.';
COMMENT ON COLUMN outbox.leases.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.leases.expired IS
    'Whether it has ended, and the message has not been claimed since.';

-- _oldest_leases(batch_limit, topic, namespace, subscription)
--     Returns the ids of so many messages in progress that were claimed first.
CREATE FUNCTION outbox._oldest_leases(
    batch_limit  integer,
    topic        text,
    namespace    text,
    subscription text
)
RETURNS SETOF bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_oldest_leases';

COMMENT ON FUNCTION outbox._oldest_leases(integer, text, text, text) IS
    'The ids of the messages in progress that were claimed first.';

-- oldest_leases(batch_limit, topic, namespace, subscription)
--     Returns the rows of outbox.leases that were claimed first, in this order. All
--     leases are visited, but only these are looked up: a million takes half a second.
CREATE FUNCTION outbox.oldest_leases(
    batch_limit  integer DEFAULT 100,
    topic        text    DEFAULT NULL,
    namespace    text    DEFAULT NULL,
    subscription text    DEFAULT NULL
)
RETURNS SETOF outbox.leases
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
    SELECT l.*
      FROM outbox.leases l
     WHERE l.id = ANY (ARRAY(SELECT outbox._oldest_leases($1, $2, $3, $4)))
     ORDER BY l.leased_at, l.id
$$;

COMMENT ON FUNCTION outbox.oldest_leases(integer, text, text, text) IS
    'The messages in progress that were claimed first.';

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
SELECT p.stream_id, h.id, h.topic, h.namespace, b.subscription,
       outbox.status_name(h.status) AS state,
       (SELECT count(*)
          FROM (SELECT FROM outbox.queue b
                 WHERE b.stream_id = s.stream_id AND b.stream_seq > h.stream_seq
                 LIMIT 1000) behind) AS behind,
       h.attempts - h.waived AS attempts, h.created_at, h.next_attempt_at,
       h.locked_until, h.owner_token, h.last_error, h.status, h.message_id,
       outbox._partition_number(p.stream_id) AS partition_number
  FROM streams s
 CROSS JOIN LATERAL (SELECT * FROM outbox.queue q
                      WHERE q.stream_id = s.stream_id
                      ORDER BY q.stream_seq LIMIT 1) h
 CROSS JOIN LATERAL (SELECT CASE WHEN h.subscriber IS NULL THEN s.stream_id
                                 ELSE outbox._subscriber_stream(s.stream_id, h.subscriber)
                             END AS stream_id) p
  LEFT JOIN outbox.subscribers b ON b.id = h.subscriber
 WHERE s.stream_id IS NOT NULL;

COMMENT ON VIEW outbox.stream_heads IS
    'The first unfinished message of each stream, in each subscription, for which all others '
    'wait.';
COMMENT ON COLUMN outbox.stream_heads.stream_id IS 'The stream.';
COMMENT ON COLUMN outbox.stream_heads.partition_number IS 'The partition of its stream.';
COMMENT ON COLUMN outbox.stream_heads.id IS 'The work item.';
COMMENT ON COLUMN outbox.stream_heads.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.stream_heads.namespace IS 'Its namespace.';
COMMENT ON COLUMN outbox.stream_heads.subscription IS
    'The subscription, if it is a delivery; null if it was enqueued.';
COMMENT ON COLUMN outbox.stream_heads.topic IS 'Its topic.';
COMMENT ON COLUMN outbox.stream_heads.state IS 'ready or in progress: the status.';
COMMENT ON COLUMN outbox.stream_heads.behind IS
    'How many messages wait behind it; at most 1000 are counted.';
COMMENT ON COLUMN outbox.stream_heads.status IS '0 ready, 1 in progress.';
COMMENT ON COLUMN outbox.stream_heads.owner_token IS 'The owner of the lease.';
COMMENT ON COLUMN outbox.stream_heads.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.stream_heads.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.stream_heads.next_attempt_at IS 'Not delivered before this time.';
COMMENT ON COLUMN outbox.stream_heads.last_error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN outbox.stream_heads.created_at IS 'When it was enqueued.';

CREATE VIEW outbox.join_progress AS
SELECT j.join_id, j.grouping_key, outbox.join_status_name(j.status) AS state,
       j.expected_steps, j.completed_steps, j.failed_steps,
       j.expected_steps - j.completed_steps - j.failed_steps AS missing_steps,
       (SELECT count(*) FROM outbox.join_members m WHERE m.join_id = j.join_id) AS members,
       (SELECT count(*) FROM outbox.join_waits w WHERE w.join_id = j.join_id) AS waits,
       j.created_at, j.last_updated_at
  FROM outbox.joins j;

COMMENT ON VIEW outbox.join_progress IS 'Joins, with their progress.';
COMMENT ON COLUMN outbox.join_progress.join_id IS 'The join.';
COMMENT ON COLUMN outbox.join_progress.grouping_key IS 'Its grouping key.';
COMMENT ON COLUMN outbox.join_progress.state IS 'pending, completed, failed or cancelled.';
COMMENT ON COLUMN outbox.join_progress.expected_steps IS 'How many steps must end.';
COMMENT ON COLUMN outbox.join_progress.completed_steps IS 'How many steps are done.';
COMMENT ON COLUMN outbox.join_progress.failed_steps IS 'How many steps have failed.';
COMMENT ON COLUMN outbox.join_progress.missing_steps IS 'How many steps have not ended.';
COMMENT ON COLUMN outbox.join_progress.members IS 'How many messages are attached.';
COMMENT ON COLUMN outbox.join_progress.waits IS 'How many messages wait for it.';
COMMENT ON COLUMN outbox.join_progress.created_at IS 'When it was started.';
COMMENT ON COLUMN outbox.join_progress.last_updated_at IS 'When it last changed.';

-- _lanes(store)
--     Returns the lanes of a live table in shared memory; rows with a token are parts
--     of lanes. For debugging.
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

COMMENT ON FUNCTION outbox._lanes(regclass) IS 'The lanes of a live table in shared memory.';

-- _written_tables()
--     Returns the tables that the functions write, and for each the reason why it is
--     written by SQL, which is an object added by a user; null if it is written
--     directly. The archive comes before its partitions.
CREATE FUNCTION outbox._written_tables(
    OUT table_name text,
    OUT why_not    text
)
RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_written_tables_sql';

COMMENT ON FUNCTION outbox._written_tables() IS
    'The tables that the functions write, and why they are written by SQL, if so.';

-- _workers()
--     Returns the state of the launcher and the workers: whether this database is
--     served, when its worker last took a sample for outbox.depth, or could have begun,
--     and, for all databases, how many workers run, wait for a slot, and fail.
CREATE FUNCTION outbox._workers(
    OUT launcher     boolean,
    OUT serves       boolean,
    OUT running      integer,
    OUT waiting      integer,
    OUT failing      integer,
    OUT no_slots     boolean,
    OUT failing_here integer,
    OUT no_posts     boolean,
    OUT seen_at      timestamptz
)
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_workers_sql';

COMMENT ON FUNCTION outbox._workers() IS 'The state of the background workers of all databases.';

-- _overdue_joins(age)
--     Returns the joins that have not ended, and have not changed for so long; at most
--     10000, those that were started first.
CREATE FUNCTION outbox._overdue_joins(age interval)
RETURNS TABLE (join_id uuid, created_at timestamptz, since timestamptz)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT j.join_id, j.created_at, greatest(j.created_at, j.last_updated_at)
      FROM outbox.joins j
     WHERE j.status = 0
       AND j.created_at <= now() - age
       AND j.last_updated_at <= now() - age
     ORDER BY j.created_at
     LIMIT 10000
$$;

COMMENT ON FUNCTION outbox._overdue_joins(interval) IS
    'Joins that have been open and unchanged for a time.';

-- _all_topic_stats()
--     Returns the rows of topic_stats, for callers that need them more than once.
--     VOLATILE, because the planner calls what is STABLE to estimate the length.
CREATE FUNCTION outbox._all_topic_stats()
RETURNS outbox.topic_stats[]
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$ SELECT ARRAY(SELECT s FROM outbox.topic_stats s) $$;

COMMENT ON FUNCTION outbox._all_topic_stats() IS 'The rows of topic_stats.';

-- _status(topics, heads)
--     Health checks, one row per component. The rows of topic_stats, and the first
--     messages of streams, may be given.
CREATE FUNCTION outbox._status(
    topics outbox.topic_stats[] DEFAULT NULL,
    heads  bigint[]             DEFAULT NULL
)
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
    next_id   bigint;
    used_id   bigint;
BEGIN
    SELECT * INTO library FROM outbox._library();
    SELECT e.extversion INTO installed FROM pg_extension e WHERE e.extname = 'outbox';
    SELECT max(now() - s.oldest_ready_at) FILTER (WHERE NOT s.paused) AS oldest,
           (array_agg(format('topic "%s", namespace "%s"', s.topic, s.namespace)
                      || coalesce(', subscription "' || s.subscription || '"', '')
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
                             CASE WHEN s.more AND s.dead >= 20 THEN ' or more' END),
                      ', ' ORDER BY s.dead DESC, s.topic)
               FILTER (WHERE s.dead > 0) AS dead_topics,
           string_agg(DISTINCT coalesce('subscription ' || s.subscription, s.topic), ', ')
               FILTER (WHERE s.paused) AS paused
      INTO stats
      FROM unnest(coalesce(topics, outbox._all_topic_stats())) s;

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
    -- a standby has none, and needs none
    ok := pg_is_in_recovery() OR (library.lanes > 0 AND library.lanes_in_use < library.lanes);
    status := CASE WHEN library.lanes = 0 THEN 'none' WHEN ok THEN 'used' ELSE 'full' END;
    detail := format('%s of %s lanes in use', library.lanes_in_use, library.lanes);
    hint := CASE WHEN NOT ok THEN
                'Claims scan topics without a lane from their start. '
                || CASE WHEN library.preloaded THEN
                       format('Raise outbox.lane_memory to %s MB, and restart the server.',
                              2 * pg_size_bytes(current_setting('outbox.lane_memory')) / 1048576)
                        ELSE 'Preload the library.' END END;
    RETURN NEXT;

    component := 'tables';
    -- objects added to a partitioned table exist on its partitions as well
    SELECT string_agg(format('%s: %s', t.table_name, t.why_not), '; ' ORDER BY t.n)
      INTO detail
      FROM (SELECT w.table_name, w.why_not, w.n,
                   EXISTS (SELECT FROM pg_inherits i
                             JOIN pg_class c ON c.oid = i.inhrelid
                             JOIN pg_class p ON p.oid = i.inhparent
                             JOIN outbox._written_tables() parent
                               ON parent.table_name = p.relname AND parent.why_not IS NOT NULL
                            WHERE i.inhparent IN ('outbox.archive'::regclass,
                                                  'outbox.publications'::regclass)
                              AND c.relname = w.table_name) AS is_said
              FROM outbox._written_tables() WITH ORDINALITY w(table_name, why_not, n)) t
     WHERE t.why_not IS NOT NULL AND NOT t.is_said;
    ok := detail IS NULL;
    status := CASE WHEN ok THEN 'written directly' ELSE 'written by SQL' END;
    hint := CASE WHEN NOT ok THEN
                'Objects that were added to these tables take effect. Calls that write them are '
                'slower; callers need privileges on the tables of unfinished work.' END;
    RETURN NEXT;

    component := 'queue indexes';
    SELECT string_agg(DISTINCT i.indexrelid::regclass::text, ', ')
      INTO detail
      FROM pg_index i
      JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[])
     WHERE i.indrelid = 'outbox.queue'::regclass
       AND a.attname IN ('status', 'owner_token', 'leased_at', 'locked_until', 'attempts',
                         'updated_at');
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
    hint := CASE WHEN NOT ok THEN
                'Check that there are workers for all topics; see outbox.topic_stats.' END;
    RETURN NEXT;

    component := 'expired leases';
    ok := stats.expired = 0;
    status := stats.expired::text;
    detail := left(stats.expired_topics, 200);
    hint := CASE WHEN NOT ok THEN
                'Workers crash or take too long. The messages will be handed out again.' END;
    RETURN NEXT;

    component := 'joins';
    SELECT count(*) AS n, min(j.created_at) AS since
      INTO stuck
      FROM outbox._overdue_joins('1 day') j;
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
                  format('partitions that are no longer needed, and were not dropped, '
                         'such as %s; %s',
                         overdue.first,
                         coalesce('in the way: ' || overdue.dependents, 'nothing depends on it'))
              END;
    hint := CASE WHEN overdue.dependents IS NOT NULL THEN
                     'Drop what depends on them; read outbox.messages instead.'
                 WHEN NOT ok THEN
                     'Check that maintenance runs, and that no session has locked them.' END;
    RETURN NEXT;

    RETURN QUERY SELECT * FROM outbox._worker_status(library.preloaded);
    RETURN QUERY SELECT * FROM outbox._subscription_status();
    RETURN QUERY SELECT * FROM outbox._health_status(heads);

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
                'Background workers wait for the end of these sessions, which load a dump.' END;
    RETURN NEXT;

    component := 'replication';
    SELECT string_agg(DISTINCT s.subname, ', ')
      INTO detail
      FROM pg_subscription s
      JOIN pg_subscription_rel r ON r.srsubid = s.oid
      JOIN pg_class c ON c.oid = r.srrelid
     WHERE c.relnamespace = 'outbox'::regnamespace;
    ok := true;
    status := CASE WHEN outbox._is_replicated() THEN 'subscribed' ELSE 'none' END;
    detail := 'subscriptions ' || detail;
    hint := CASE WHEN status = 'subscribed' THEN
                'Workers only create partitions here until the subscriptions are dropped.' END;
    RETURN NEXT;

    component := 'ids';
    -- read the sequence after the rows, whose ids come from it
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
            SELECT max(d.id) FROM outbox.run_dead d
            UNION ALL
            SELECT max(a.id) FROM outbox.archive a
            UNION ALL
            SELECT max(d.id) FROM outbox.inbox_done d
            UNION ALL
            SELECT max(d.id) FROM outbox.timer_done d
            UNION ALL
            SELECT max(d.id) FROM outbox.run_done d) u(id);
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
                'They have failed three times or more, and are retried; outbox.attempts_log '
                'has the errors.' END;
    RETURN NEXT;

    RETURN QUERY SELECT * FROM outbox._due_status();

    component := 'dead messages';
    ok := stats.dead = 0;
    status := stats.dead::text;
    detail := left(stats.dead_topics, 200);
    hint := CASE WHEN NOT ok THEN
                'See outbox.failures and outbox.dead_letters; outbox.requeue brings them back, '
                'outbox.purge_topic removes them.' END;
    RETURN NEXT;

    FOR component, status, detail, hint IN
        SELECT d.component,
               concat(d.n, CASE WHEN d.n >= 10000 THEN ' or more' END), d.who,
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

    RETURN QUERY SELECT * FROM outbox._horizon_status();
END
$$;

COMMENT ON FUNCTION outbox._status(outbox.topic_stats[], bigint[]) IS
    'Health checks, one row per component.';

-- status()
--     The same, problems first. Does not wait for long where a table is locked, but says
--     who has locked it. JIT is off: the planner considers recursive queries expensive, and
--     compiling them took two seconds, whereas running them takes milliseconds.
CREATE FUNCTION outbox.status()
RETURNS TABLE (component text, ok boolean, status text, detail text, hint text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '2s'
AS $$
BEGIN
    RETURN QUERY
    SELECT s.component, s.ok, s.status, s.detail, s.hint
      FROM outbox._status() WITH ORDINALITY s
     ORDER BY s.ok, s.ordinality;
EXCEPTION WHEN lock_not_available THEN
    -- the sort has returned nothing yet
    RETURN QUERY SELECT s.* FROM outbox._locked_status() s ORDER BY s.ok;
END
$$;

COMMENT ON FUNCTION outbox.status() IS 'Health checks, one row per component; problems come first.';

-- Messages that are due later, and waiting timers and runs. Messages are read one
-- lane at a time, as in topic_stats, without those that are due now, and at most 1000
-- of each lane.
CREATE VIEW outbox.upcoming AS
WITH RECURSIVE lanes(lane) AS (
    (SELECT q.lane FROM outbox.queue q ORDER BY q.lane LIMIT 1)
    UNION ALL
    SELECT (SELECT q.lane FROM outbox.queue q
             WHERE q.lane > l.lane ORDER BY q.lane LIMIT 1)
      FROM lanes l
     WHERE l.lane IS NOT NULL
)
SELECT u.next_attempt_at, u.kind, u.topic, u.name, u.message_id, u.subscription
  FROM (
    SELECT m.next_attempt_at, 'message'::text AS kind, m.topic, m.correlation_id AS name,
           m.message_id, s.subscription
      FROM lanes l
     CROSS JOIN LATERAL (SELECT q.next_attempt_at, q.topic, q.correlation_id, q.message_id,
                                q.status, q.subscriber
                           FROM outbox.queue q
                          WHERE q.lane = l.lane AND q.next_attempt_at > now()
                          ORDER BY q.next_attempt_at, q.id
                          LIMIT 1000) m
      LEFT JOIN outbox.subscribers s ON s.id = m.subscriber
     WHERE l.lane IS NOT NULL AND m.status = 0
    UNION ALL
    SELECT t.next_attempt_at, 'timer', t.topic, t.correlation_id, t.message_id, NULL
      FROM outbox.timer_queue t
     WHERE t.status = 0
    UNION ALL
    SELECT r.next_attempt_at, 'job_run', r.topic, r.job_name, r.message_id, NULL
      FROM outbox.run_queue r
     WHERE r.status = 0) u
 ORDER BY u.next_attempt_at, u.topic, u.message_id;

COMMENT ON VIEW outbox.upcoming IS
    'Upcoming work: messages that are due later, and waiting timers and runs.';
COMMENT ON COLUMN outbox.upcoming.next_attempt_at IS 'When it is due.';
COMMENT ON COLUMN outbox.upcoming.kind IS 'message, timer or job_run.';
COMMENT ON COLUMN outbox.upcoming.topic IS
    'The topic; for timers and runs, that of the message that it becomes.';
COMMENT ON COLUMN outbox.upcoming.name IS 'The job of a run; otherwise the correlation_id.';
COMMENT ON COLUMN outbox.upcoming.message_id IS 'The message, the timer, or the run.';
COMMENT ON COLUMN outbox.upcoming.subscription IS
    'The subscription of a message, if it is a delivery; null if it was enqueued.';

-- The failed attempts of messages, received messages, timers and runs, including
-- finished ones: the last 10 of each, as errors.c writes them. Queries should select
-- by id; otherwise all tables are read.
CREATE VIEW outbox.attempts_log AS
SELECT a.id, a.kind, a.topic,
       substring(e.entry FROM '^(\d{1,9}) ')::integer AS attempt,
       '2000-01-01 00:00:00+00'::timestamptz
           + substring(e.entry FROM '^\d+ (\d{1,18})')::bigint * interval '1 microsecond' AS at,
       substring(e.entry FROM '^\d+ \d+ (.*)$') AS error,
       a.namespace, a.message_id, a.subscription
  FROM (
    SELECT 'message'::text AS kind, t.id, t.message_id, t.namespace, t.topic, t.errors,
           (SELECT s.subscription FROM outbox.subscribers s WHERE s.id = t.subscriber)
      FROM outbox.queue t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'message', t.id, t.message_id, t.namespace, t.topic, t.errors, t.subscription
      FROM outbox.archive t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'message', t.id, t.message_id, t.namespace, t.topic, t.errors, t.subscription
      FROM outbox.dead t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'inbox', t.id, t.message_id, t.namespace, t.handler_name, t.errors, NULL
      FROM outbox.inbox_queue t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'inbox', t.id, t.message_id, t.namespace, t.handler_name, t.errors, NULL
      FROM outbox.inbox_done t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'inbox', t.id, t.message_id, t.namespace, t.handler_name, t.errors, NULL
      FROM outbox.inbox_dead t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'timer', t.id, t.message_id, t.namespace, t.topic, t.errors, NULL
      FROM outbox.timer_queue t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'timer', t.id, t.message_id, t.namespace, t.topic, t.errors, NULL
      FROM outbox.timer_done t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'timer', t.id, t.message_id, t.namespace, t.topic, t.errors, NULL
      FROM outbox.timer_dead t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'job_run', t.id, t.message_id, t.namespace, t.topic, t.errors, NULL
      FROM outbox.run_queue t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'job_run', t.id, t.message_id, t.namespace, t.topic, t.errors, NULL
      FROM outbox.run_done t WHERE t.errors IS NOT NULL
    UNION ALL
    SELECT 'job_run', t.id, t.message_id, t.namespace, t.topic, t.errors, NULL
      FROM outbox.run_dead t WHERE t.errors IS NOT NULL)
           a(kind, id, message_id, namespace, topic, errors, subscription),
       LATERAL unnest(a.errors) WITH ORDINALITY e(entry, n)
 WHERE (e.entry ~ '^0 ') IS NOT TRUE
 ORDER BY a.id, e.n;

COMMENT ON VIEW outbox.attempts_log IS
    'The failed attempts, the last 10 of each message, timer or run.';
COMMENT ON COLUMN outbox.attempts_log.id IS 'The message, the timer, or the run.';
COMMENT ON COLUMN outbox.attempts_log.kind IS 'message, inbox, timer or job_run.';
COMMENT ON COLUMN outbox.attempts_log.topic IS 'The topic; for the inbox, the handler_name.';
COMMENT ON COLUMN outbox.attempts_log.attempt IS
    'The number of the attempt; it starts again from 1 when a dead message is requeued.';
COMMENT ON COLUMN outbox.attempts_log.at IS 'When the attempt was reported as failed.';
COMMENT ON COLUMN outbox.attempts_log.error IS
    'The error, truncated to 200 bytes; null if none was given.';
COMMENT ON COLUMN outbox.attempts_log.namespace IS 'The namespace.';
COMMENT ON COLUMN outbox.attempts_log.message_id IS 'The logical message, timer or run.';
COMMENT ON COLUMN outbox.attempts_log.subscription IS
    'The subscription of a message, if it is a delivery; null if it was enqueued.';
