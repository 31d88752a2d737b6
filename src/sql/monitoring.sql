-- monitoring.sql: metrics and alerts. Both are made of what status(), topic_stats and
-- topic_counters find. monitoring/rules.yml has the same alerts for Prometheus.

-- _stuck_streams(heads)
--     Returns the streams whose first unfinished message was handed out before, and
--     came back, while others wait behind it; at most 1000, the longest ones first, of
--     those that _waiting_streams finds, or of these.
CREATE FUNCTION outbox._stuck_streams(heads bigint[] DEFAULT NULL)
RETURNS TABLE (
    stream_id    uuid,
    namespace    text,
    topic        text,
    subscription text,
    id           bigint,
    since        timestamptz
)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
    SELECT CASE WHEN h.subscriber IS NULL THEN h.stream_id
                ELSE outbox._subscriber_stream(h.stream_id, h.subscriber) END,
           h.namespace, h.topic, b.subscription, h.id, greatest(h.created_at, h.due_time)
      FROM unnest(coalesce(_stuck_streams.heads, outbox._all_waiting_streams())) c(id)
      JOIN outbox.queue h ON h.id = c.id
      LEFT JOIN outbox.subscribers b ON b.id = h.subscriber
     WHERE h.attempts - h.waived > (h.status = 1)::integer
       AND EXISTS (SELECT FROM outbox.queue q
                    WHERE q.stream_id = h.stream_id AND q.stream_seq > h.stream_seq)
     ORDER BY 6
     LIMIT 1000
$$;

COMMENT ON FUNCTION outbox._stuck_streams(bigint[]) IS
    'Streams whose first message comes back again and again while others wait behind it.';

-- _measures(heads)
--     Returns the measures that concern the database as a whole; the first messages of
--     streams may be given.
CREATE FUNCTION outbox._measures(heads bigint[] DEFAULT NULL)
RETURNS TABLE (metric text, kind text, value double precision)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    library record;
    workers record;
    standby boolean := pg_is_in_recovery();
BEGIN
    SELECT * INTO library FROM outbox._library();
    SELECT * INTO workers FROM outbox._workers();
    RETURN QUERY
        SELECT 'outbox_lane_memory_size', NULL::text, library.lanes::float8
        UNION ALL
        SELECT 'outbox_lane_memory_used', NULL, library.lanes_in_use
        UNION ALL
        SELECT 'outbox_workers_running', NULL, workers.running
        UNION ALL
        SELECT 'outbox_workers_waiting', NULL, workers.waiting
        UNION ALL
        SELECT 'outbox_posts_failing', NULL, workers.failing_here
        UNION ALL
        SELECT 'outbox_workers_failing', NULL, count(*) + workers.failing_here
          FROM outbox._worker_troubles() t
         WHERE t.part NOT IN ('publications', 'subscriptions')
        UNION ALL
        SELECT 'outbox_handlers_failing', NULL, count(*) FROM outbox._handler_problems()
        UNION ALL
        -- a server without the library preloaded has no workers
        SELECT 'outbox_worker_missing', NULL,
               (library.preloaded AND NOT standby
                AND NOT (workers.launcher AND workers.serves
                         AND NOT workers.no_slots AND NOT workers.no_posts))::integer
        UNION ALL
        SELECT 'outbox_worker_seen_age_seconds', NULL,
               extract(epoch FROM outbox._worker_silence());

    RETURN QUERY
        SELECT 'outbox_retention_lag_seconds', NULL::text,
               coalesce(max(extract(epoch FROM clock_timestamp() - p.overdue_since)), 0)::float8
          FROM outbox._overdue_partitions(current_setting('outbox.retention')::interval) p;

    RETURN QUERY
        SELECT m.metric, NULL::text, coalesce(m.value, 0)::float8
          FROM (SELECT max(extract(epoch FROM clock_timestamp() - h.since)) AS seconds,
                       max(h.xmin_age) AS transactions
                  FROM outbox._horizon_holders() h
                 WHERE NOT h.is_catalog) o
         CROSS JOIN LATERAL (VALUES ('outbox_snapshot_age_seconds', o.seconds),
                                    ('outbox_snapshot_age_transactions', o.transactions)
                            ) m(metric, value);

    RETURN QUERY
        SELECT 'outbox_joins_open', NULL::text, count(*)::float8
          FROM (SELECT FROM outbox.joins j WHERE j.status = 0 LIMIT 10000) j
        UNION ALL
        SELECT 'outbox_join_unchanged_age_seconds', NULL,
               coalesce(extract(epoch FROM max(clock_timestamp() - j.since)), 0)
          FROM outbox._overdue_joins('0') j
        UNION ALL
        SELECT m.metric, NULL, m.value
          FROM (SELECT count(*) AS n, min(s.since) AS since
                  FROM outbox._stuck_streams(heads) s) s
         CROSS JOIN LATERAL (VALUES
               ('outbox_streams_stuck', s.n),
               ('outbox_stream_stuck_age_seconds',
                coalesce(extract(epoch FROM clock_timestamp() - s.since), 0))
              ) m(metric, value)
        UNION ALL
        SELECT 'outbox_publications_pending', NULL, count(DISTINCT e.published_id)
          FROM (SELECT x.published_id FROM outbox.expansions x ORDER BY x.seq LIMIT 10000) e
        UNION ALL
        SELECT 'outbox_publications_pending_age_seconds', NULL,
               coalesce(extract(epoch FROM clock_timestamp()
                                           - (SELECT x.published_at FROM outbox.expansions x
                                               ORDER BY x.seq LIMIT 1)), 0)
        UNION ALL
        SELECT 'outbox_publications_failing', NULL, count(*)
          FROM outbox._worker_troubles() t
         WHERE t.part IN ('publications', 'subscriptions')
        UNION ALL
        SELECT 'outbox_jobs_enabled', NULL, count(*)
          FROM (SELECT FROM outbox.jobs j WHERE j.enabled LIMIT 10000) j;

    RETURN QUERY SELECT s.metric, s.kind, s.value::float8 FROM outbox._store_depths() s;
END
$$;

COMMENT ON FUNCTION outbox._measures(bigint[]) IS 'Measures of the database as a whole.';

-- _store_depths()
--     Returns how many received messages, timers and runs there are. At most 10000 of
--     each lane are counted, as in topic_stats; the number of those that are not due is
--     an estimate.
CREATE FUNCTION outbox._store_depths()
RETURNS TABLE (metric text, kind text, value double precision)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    store record;
BEGIN
    FOR store IN
        SELECT * FROM (VALUES ('inbox', 'inbox'), ('timer', 'timer'),
                              ('job_run', 'run')) s(kind, prefix)
    LOOP
        RETURN QUERY EXECUTE format($sql$
            WITH sample AS (
                SELECT coalesce(sum(l.ready + l.behind), 0) AS ready,
                       coalesce(sum(l.leased), 0) AS leased,
                       min(l.oldest_ready_at) AS oldest
                  FROM outbox._lane_counts('outbox.%1$s_queue') l
            )
            SELECT m.metric, %2$L, m.value::float8
              FROM sample s
             CROSS JOIN LATERAL (VALUES
                   ('outbox_store_ready', s.ready),
                   ('outbox_store_leased', s.leased),
                   ('outbox_store_delayed',
                    greatest(0, pg_stat_get_live_tuples('outbox.%1$s_queue'::regclass)
                                - s.ready - s.leased)),
                   ('outbox_store_oldest_ready_age_seconds',
                    coalesce(extract(epoch FROM now() - s.oldest), 0)),
                   ('outbox_store_dead', (SELECT count(*)
                                            FROM (SELECT FROM outbox.%1$s_dead LIMIT 10000) d))
                  ) m(metric, value)
        $sql$, store.prefix, store.kind);
    END LOOP;
END
$$;

COMMENT ON FUNCTION outbox._store_depths() IS
    'How many received messages, timers and runs there are.';

-- _metric_families()
--     Returns what outbox.metrics() says of each metric, in this order.
CREATE FUNCTION outbox._metric_families()
RETURNS TABLE (family text, type text, unit text, help text)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'outbox_' || f.name, f.type, substring(f.name FROM '_(seconds|bytes)$'), f.help
      FROM (VALUES
        ('enqueued', 'counter', 'Messages enqueued.'),
        ('claimed', 'counter', 'Messages handed out, each time.'),
        ('acked', 'counter', 'Messages done.'),
        ('nacked', 'counter', 'Messages returned for a retry.'),
        ('failed', 'counter', 'Messages failed for good by their owners.'),
        ('died', 'counter', 'Messages that became dead, whatever the reason.'),
        ('expired', 'counter', 'Messages that expired.'),
        ('leases_lost', 'counter', 'Leases that ended before their messages were settled.'),
        ('enqueued_bytes', 'counter', 'Bytes of payload enqueued.'),
        ('wait_seconds', 'histogram', 'Time from being due to being handed out.'),
        ('service_seconds', 'histogram', 'Time from being handed out to the end.'),
        ('handler_calls', 'counter', 'Calls of handlers.'),
        ('handler_seconds', 'counter', 'Time that they took.'),
        ('stats_since_seconds', 'gauge', 'Unix time since when the counters count.'),
        ('topic_ready', 'gauge', 'Messages that are due; large numbers are estimates.'),
        ('topic_leased', 'gauge', 'Messages that are leased.'),
        ('topic_delayed', 'gauge', 'Messages that are not due yet.'),
        ('topic_dead', 'gauge', 'Dead messages that are kept; at most 10000 are counted.'),
        ('topic_oldest_ready_age_seconds', 'gauge',
         'Time since the oldest ready message was due; 0 if its topic is paused.'),
        ('store_ready', 'gauge', 'Received messages, timers and runs of jobs that are due.'),
        ('store_leased', 'gauge', 'Received messages, timers and runs of jobs that are leased.'),
        ('store_delayed', 'gauge',
         'Received messages, timers and runs of jobs that are not due yet; an estimate.'),
        ('store_dead', 'gauge', 'Received messages, timers and runs of jobs that are dead.'),
        ('store_oldest_ready_age_seconds', 'gauge', 'Time since the oldest one was due.'),
        ('jobs_enabled', 'gauge', 'Jobs that are enabled.'),
        ('workers_running', 'gauge', 'Background workers that run, in all databases.'),
        ('workers_waiting', 'gauge', 'Databases and roles that wait for a background worker.'),
        ('workers_failing', 'gauge',
         'Parts of the work of background workers that fail in this database.'),
        ('worker_missing', 'gauge', '1 if no background worker can serve this database.'),
        ('worker_seen_age_seconds', 'gauge',
         'Time since a background worker last took a sample here.'),
        ('handlers_failing', 'gauge', 'Handlers that cannot be called.'),
        ('joins_open', 'gauge', 'Joins that have not ended; at most 10000 are counted.'),
        ('join_unchanged_age_seconds', 'gauge',
         'Time since the last change of the open join that changed first.'),
        ('streams_stuck', 'gauge',
         'Streams whose first message comes back again and again while others wait behind it.'),
        ('stream_stuck_age_seconds', 'gauge', 'Time since the oldest of these messages was due.'),
        ('publications_pending', 'gauge',
         'Publications that must still be delivered; at most 10000 are counted.'),
        ('publications_pending_age_seconds', 'gauge',
         'Time since the oldest of them was published.'),
        ('publications_failing', 'gauge', 'Parts of the delivery of publications that fail.'),
        ('retention_lag_seconds', 'gauge',
         'Time for which history has been kept that should be gone.'),
        ('snapshot_age_seconds', 'gauge',
         'Age of the oldest transaction that keeps dead rows from being removed.'),
        ('snapshot_age_transactions', 'gauge', 'The number of transactions since then.'),
        ('lane_memory_used', 'gauge', 'Places of shared memory for lanes that are in use.'),
        ('lane_memory_size', 'gauge', 'Places of shared memory for lanes.'),
        ('problem', 'gauge', '1 for each component of outbox.status() that is not in order.')
           ) f(name, type, help)
$$;

COMMENT ON FUNCTION outbox._metric_families() IS 'The metrics, and what they mean.';

-- _component_kind(component)
--     Returns a component of status() without the name of a handler, a topic or a
--     subscription.
CREATE FUNCTION outbox._component_kind(component text)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
RETURN regexp_replace(component, '^(handler|start|replay|worker: \w+) of .*$', '\1');

COMMENT ON FUNCTION outbox._component_kind(text) IS
    'A component of status() without the name of what it is about.';

-- _escaped(value)
--     Returns a text as the value of a label in OpenMetrics.
CREATE FUNCTION outbox._escaped(value text)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
RETURN replace(replace(replace(value, '\', '\\'), '"', '\"'), E'\n', '\n');

COMMENT ON FUNCTION outbox._escaped(text) IS 'A text as the value of a label in OpenMetrics.';

-- metric_samples()
--     Returns what outbox.metrics() formats, for exporters that want rows: the name
--     of each metric, its labels, and its value. At most outbox.metrics_topics topics
--     have numbers of their own: those with the most messages so far, by powers of
--     two, so that they seldom change places with others. The others are summed as
--     the topic "other" of no namespace. STABLE, so that it can be called on a
--     standby, and in a read-only transaction.
CREATE FUNCTION outbox.metric_samples()
RETURNS TABLE (
    metric       text,
    kind         text,
    namespace    text,
    subscription text,
    topic        text,
    component    text,
    le           text,
    value        double precision
)
LANGUAGE sql STABLE SECURITY DEFINER ROWS 1000
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
    WITH topics AS MATERIALIZED (
        SELECT outbox._all_topic_stats() AS stats, outbox._all_waiting_streams() AS heads
    ), depths AS MATERIALIZED (
        SELECT 'message'::text AS kind, d.* FROM topics t, outbox._depths(t.stats) d
    ), joined AS (
        SELECT coalesce(c.kind, d.kind) AS kind,
               coalesce(c.namespace, d.namespace) AS namespace,
               coalesce(c.subscription, d.subscription) AS subscription,
               coalesce(c.topic, d.topic) AS topic,
               c.enqueued, c.claimed, c.acked, c.nacked, c.failed, c.dead AS died, c.expired,
               c.leases_lost, c.bytes, c.wait_ms, c.service_ms, c.calls, c.call_ms,
               c.wait_histogram, c.service_histogram,
               d.ready, d.leased, d.delayed, d.dead, d.oldest_ready_at
          FROM outbox.topic_counters c
          FULL JOIN depths d
            ON d.kind = c.kind
           AND d.namespace = c.namespace
           AND d.topic = c.topic
           AND coalesce(d.subscription, '') = coalesce(c.subscription, '')
    ), ranked AS (
        SELECT j.*,
               j.topic IS NOT NULL
               AND row_number() OVER (
                       ORDER BY j.topic IS NULL,
                                floor(log(1 + coalesce(j.enqueued + j.claimed, 0)) / log(2)) DESC,
                                j.kind, j.namespace, j.topic, j.subscription)
                   <= current_setting('outbox.metrics_topics')::integer AS named
          FROM joined j
    ), labelled AS MATERIALIZED (
        SELECT r.kind,
               CASE WHEN r.named THEN r.namespace END AS namespace,
               CASE WHEN r.named THEN r.subscription END AS subscription,
               CASE WHEN r.named THEN r.topic ELSE 'other' END AS topic,
               r.enqueued, r.claimed, r.acked, r.nacked, r.failed, r.died, r.expired,
               r.leases_lost, r.bytes, r.wait_ms, r.service_ms, r.calls, r.call_ms,
               r.wait_histogram, r.service_histogram,
               r.ready, r.leased, r.delayed, r.dead, r.oldest_ready_at
          FROM ranked r
    ), sums AS (
        SELECT l.kind, l.namespace, l.subscription, l.topic,
               sum(l.enqueued) AS enqueued, sum(l.claimed) AS claimed, sum(l.acked) AS acked,
               sum(l.nacked) AS nacked, sum(l.failed) AS failed, sum(l.died) AS died,
               sum(l.expired) AS expired, sum(l.leases_lost) AS leases_lost,
               sum(l.bytes) AS bytes, nullif(sum(l.calls), 0) AS calls,
               sum(l.call_ms) AS call_ms,
               sum(l.ready) AS ready, sum(l.leased) AS leased, sum(l.delayed) AS delayed,
               sum(l.dead) AS dead, min(l.oldest_ready_at) AS oldest_ready_at
          FROM labelled l
         GROUP BY l.kind, l.namespace, l.subscription, l.topic
    ), buckets AS (
        SELECT h.metric, l.kind, l.namespace, l.subscription, l.topic, b.place,
               b.place = cardinality(h.histogram) AS is_last, sum(b.n) AS n, sum(h.ms) AS ms
          FROM labelled l
         CROSS JOIN LATERAL (VALUES
               ('outbox_wait_seconds', l.wait_histogram, l.wait_ms),
               ('outbox_service_seconds', l.service_histogram, l.service_ms)
              ) h(metric, histogram, ms)
         CROSS JOIN LATERAL unnest(h.histogram) WITH ORDINALITY b(n, place)
         WHERE l.claimed + l.acked + l.nacked + l.failed > 0
         GROUP BY 1, 2, 3, 4, 5, 6, 7
    ), summed AS (
        SELECT b.*,
               sum(b.n) OVER (PARTITION BY b.metric, b.kind, b.namespace, b.subscription, b.topic
                              ORDER BY b.place) AS up_to_here
          FROM buckets b
    )
    SELECT m.metric, s.kind, s.namespace, s.subscription, s.topic, NULL::text, NULL::text,
           coalesce(m.value, 0)::float8
      FROM sums s
     CROSS JOIN LATERAL (VALUES
           ('outbox_enqueued_total', s.enqueued),
           ('outbox_claimed_total', s.claimed),
           ('outbox_acked_total', s.acked),
           ('outbox_nacked_total', s.nacked),
           ('outbox_failed_total', s.failed),
           ('outbox_died_total', s.died),
           ('outbox_expired_total', s.expired),
           ('outbox_leases_lost_total', s.leases_lost),
           ('outbox_enqueued_bytes_total', s.bytes),
           ('outbox_handler_calls_total', s.calls),
           ('outbox_handler_seconds_total', s.call_ms / 1000)
          ) m(metric, value)
     WHERE s.calls IS NOT NULL OR m.metric !~ '^outbox_handler_'
    UNION ALL
    SELECT m.metric, NULL, s.namespace, s.subscription, s.topic, NULL, NULL,
           coalesce(m.value, 0)
      FROM sums s
     CROSS JOIN LATERAL (VALUES
           ('outbox_topic_ready', s.ready::float8),
           ('outbox_topic_leased', s.leased),
           ('outbox_topic_delayed', s.delayed),
           ('outbox_topic_dead', s.dead),
           ('outbox_topic_oldest_ready_age_seconds', extract(epoch FROM now() - s.oldest_ready_at))
          ) m(metric, value)
     WHERE s.kind = 'message'
    UNION ALL
    SELECT h.metric || m.suffix, h.kind, h.namespace, h.subscription, h.topic, NULL, m.le, m.value
      FROM summed h
     CROSS JOIN LATERAL (VALUES
           ('_bucket',
            CASE WHEN h.is_last THEN '+Inf' ELSE (2::numeric ^ (h.place - 1) / 1000)::float8::text
             END,
            h.up_to_here::float8),
           ('_sum', NULL, CASE WHEN h.is_last THEN h.ms / 1000 END),
           ('_count', NULL, CASE WHEN h.is_last THEN h.up_to_here END)
          ) m(suffix, le, value)
     WHERE m.value IS NOT NULL
       -- above a second, every other bucket is enough
       AND (m.suffix <> '_bucket' OR h.place <= 11 OR h.place % 2 = 1 OR h.is_last)
    UNION ALL
    SELECT m.metric, m.kind, NULL, NULL, NULL, NULL, NULL, m.value
      FROM topics t, outbox._measures(t.heads) m
     WHERE m.metric <> 'outbox_posts_failing'
    UNION ALL
    SELECT 'outbox_stats_since_seconds', NULL, NULL, NULL, NULL, NULL, NULL,
           extract(epoch FROM t.stats_since)
      FROM outbox.stat t
     WHERE t.stats_since IS NOT NULL
    UNION ALL
    (SELECT DISTINCT 'outbox_problem', NULL, NULL, NULL, NULL, outbox._component_kind(p.component),
            NULL, 1::float8
       FROM topics t, outbox._status(t.stats, t.heads) p
      WHERE NOT p.ok
      ORDER BY 6
      LIMIT 50)
$$;

COMMENT ON FUNCTION outbox.metric_samples() IS
    'Metrics as rows, for exporters: names, labels and values.';

-- metrics()
--     Returns metrics in the format OpenMetrics 1.0. Nothing in it identifies
--     payloads, tenants or owners.
CREATE FUNCTION outbox.metrics()
RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
    WITH samples AS MATERIALIZED (
        SELECT * FROM outbox.metric_samples()
    ), named AS (
        -- the samples of a counter, and of a histogram, have suffixes
        SELECT s.*, x.suffix, x.place,
               f.family, f.type, f.unit, f.help, f.place AS family_place
          FROM outbox._metric_families() WITH ORDINALITY f(family, type, unit, help, place)
         CROSS JOIN LATERAL (VALUES ('gauge', '', 1), ('counter', '_total', 1),
                                    ('histogram', '_bucket', 1), ('histogram', '_sum', 2),
                                    ('histogram', '_count', 3)) x(type, suffix, place)
          JOIN samples s ON s.metric = f.family || x.suffix
         WHERE x.type = f.type
    ), families AS (
        SELECT n.family_place,
               format(E'# TYPE %s %s\n', n.family, n.type)
               || CASE WHEN n.unit IS NOT NULL THEN format(E'# UNIT %s %s\n', n.family, n.unit)
                       ELSE '' END
               || format(E'# HELP %s %s\n', n.family, n.help)
               || string_agg(
                      n.metric
                      || coalesce('{' || nullif(concat_ws(',',
                             'kind="' || n.kind || '"',
                             'namespace="' || outbox._escaped(n.namespace) || '"',
                             'subscription="' || outbox._escaped(n.subscription) || '"',
                             'topic="' || outbox._escaped(n.topic) || '"',
                             'component="' || outbox._escaped(n.component) || '"',
                             'le="' || CASE WHEN n.le ~ '^\d+$' THEN n.le || '.0' ELSE n.le END
                                    || '"'), '') || '}', '')
                      || ' ' || n.value || E'\n', ''
                      ORDER BY n.kind, n.namespace, n.topic, n.subscription, n.component,
                               n.place, n.le::float8) AS lines
          FROM named n
         GROUP BY n.family_place, n.family, n.type, n.unit, n.help
    )
    SELECT string_agg(f.lines, '' ORDER BY f.family_place) || E'# EOF\n'
      FROM families f
$$;

COMMENT ON FUNCTION outbox.metrics() IS 'Metrics in the format OpenMetrics.';

-- _check_age(what, value)
--     Raises 22023 unless the value is null, or from 0 to a hundred years; "what" is
--     the name of the argument.
CREATE FUNCTION outbox._check_age(
    what  text,
    value interval
)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF value NOT BETWEEN interval '0' AND interval '100 years' THEN
        RAISE EXCEPTION '% must be from 0 to 100 years', what
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._check_age(text, interval) IS
    'Raises an error if a time is negative or very long.';

-- alerts(...)
--     Returns what needs attention, by the rules of monitoring/rules.yml,
--     with the same names; but this is at once, where those wait for some minutes.
--     At most 100 rows of each name. The arguments are thresholds: an alert comes when
--     the value is greater, and never if the threshold is null. If a table cannot be read
--     for two seconds, all that comes is who has locked it.
CREATE FUNCTION outbox.alerts(
    backlog_age   interval         DEFAULT '5 minutes',
    dead_messages bigint           DEFAULT 0,
    leases_lost   bigint           DEFAULT 10,
    stream_age    interval         DEFAULT '15 minutes',
    join_age      interval         DEFAULT '1 day',
    retention_lag interval         DEFAULT '1 day',
    snapshot_age  interval         DEFAULT '1 hour',
    lane_memory   double precision DEFAULT 0.9
)
RETURNS TABLE (
    name      text,
    severity  text,
    since     timestamptz,
    value     double precision,
    threshold double precision,
    subject   text,
    message   text,
    hint      text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
BEGIN
    PERFORM outbox._check_age('backlog_age', alerts.backlog_age),
            outbox._check_age('stream_age', alerts.stream_age),
            outbox._check_age('join_age', alerts.join_age),
            outbox._check_age('retention_lag', alerts.retention_lag),
            outbox._check_age('snapshot_age', alerts.snapshot_age);
    RETURN QUERY
    WITH topics AS MATERIALIZED (
        SELECT outbox._all_topic_stats() AS stats, outbox._all_waiting_streams() AS heads
    ), problems AS MATERIALIZED (
        SELECT p.* FROM topics t, outbox._status(t.stats, t.heads) p WHERE NOT p.ok
    ), measures AS MATERIALIZED (
        SELECT m.metric, m.value FROM topics t, outbox._measures(t.heads) m WHERE m.kind IS NULL
    ), depths AS MATERIALIZED (
        SELECT d.*,
               concat(d.namespace, '/', d.topic, ' of subscription ' || d.subscription) AS subject
          FROM topics t, outbox._depths(t.stats) d
    ), lost AS (
        -- what the samples of the last quarter of an hour add up to
        SELECT concat(d.namespace, '/', coalesce(d.topic, 'other'),
                      ' of subscription ' || d.subscription) AS subject,
               sum(d.n) AS n, min(d.sampled_at) FILTER (WHERE d.n > 0) AS since
          FROM (SELECT x.*,
                       greatest(0, x.leases_lost - lag(x.leases_lost) OVER (
                           PARTITION BY x.namespace, x.topic, x.subscription
                           ORDER BY x.sampled_at)) AS n
                  FROM outbox.depth x
                 WHERE x.sampled_at > now() - interval '15 minutes') d
         GROUP BY d.namespace, d.topic, d.subscription
    ), found AS (
        SELECT 'OutboxBacklogOld' AS name, 'warning' AS severity,
               d.oldest_ready_at + alerts.backlog_age AS since,
               extract(epoch FROM now() - d.oldest_ready_at)::float8 AS value,
               extract(epoch FROM alerts.backlog_age)::float8 AS threshold,
               d.subject,
               format('%s messages are due, the oldest since %s', d.ready,
                      date_trunc('second', d.oldest_ready_at)) AS message,
               'oldest ready message' AS component
          FROM depths d
        UNION ALL
        SELECT 'OutboxDeadMessages', 'warning',
               (SELECT max(l.processed_at)
                  FROM (SELECT x.processed_at FROM outbox.dead x
                         WHERE x.namespace = d.namespace AND x.topic = d.topic
                         ORDER BY x.id DESC LIMIT 100) l),
               d.dead, alerts.dead_messages, d.subject,
               format('%s dead messages', d.dead), 'dead messages'
          FROM depths d
         WHERE d.dead > alerts.dead_messages
        UNION ALL
        SELECT 'OutboxLeasesLost', 'warning', l.since, l.n, alerts.leases_lost, l.subject,
               format('%s leases have ended unsettled in 15 minutes', l.n), 'expired leases'
          FROM lost l
        UNION ALL
        SELECT 'OutboxStreamStuck', 'warning', s.since + alerts.stream_age,
               extract(epoch FROM now() - s.since), extract(epoch FROM alerts.stream_age),
               s.stream_id::text,
               format('message %s in topic %s/%s comes back again and again, and others wait '
                      'behind it', s.id, s.namespace, s.topic),
               'failing messages'
          FROM topics t, outbox._stuck_streams(t.heads) s
        UNION ALL
        SELECT 'OutboxJoinOverdue', 'warning', j.since + alerts.join_age,
               extract(epoch FROM now() - j.since), extract(epoch FROM alerts.join_age),
               j.join_id::text, 'the join is open, and does not change', 'joins'
          FROM outbox._overdue_joins(alerts.join_age) j
        UNION ALL
        SELECT 'OutboxWorkerFailing', 'critical', t.since, t.failures, 0,
               concat_ws(' of ', t.part, t.topic),
               format('has failed %s times in a row, SQLSTATE %s', t.failures, t.sqlstate),
               'worker:'
          FROM outbox._worker_troubles() t
         WHERE t.part NOT IN ('publications', 'subscriptions')
        UNION ALL
        SELECT 'OutboxWorkerFailing', 'critical', NULL, 1, 0,
               concat_ws('/', 'subscription ' || p.subscription, p.namespace, p.topic),
               format('handler %s %s', p.handler, p.problem), 'handler'
          FROM outbox._handler_problems() p
        UNION ALL
        SELECT m.name, m.severity, now() - s.value * m.ago, s.value, m.threshold,
               CASE m.name WHEN 'OutboxSnapshotOld' THEN
                   (SELECT h.who || ', since ' || date_trunc('second', h.since)::text
                      FROM outbox._horizon_holders() h
                     ORDER BY h.since LIMIT 1) END,
               m.message, m.component
          FROM (VALUES
                ('OutboxWorkerMissing', 'critical', 'outbox_worker_missing', 0,
                 'no background worker can serve this database', 'workers', NULL::interval),
                ('OutboxWorkerFailing', 'critical', 'outbox_posts_failing', 0,
                 'background workers end with errors', 'workers', NULL),
                ('OutboxWorkerMissing', 'critical', 'outbox_worker_seen_age_seconds', 300,
                 'the background worker has not finished a round', 'workers', '1 s'),
                ('OutboxPublicationsFailing', 'critical', 'outbox_publications_failing', 0,
                 'publications cannot be delivered', 'publications to deliver', NULL),
                ('OutboxPublicationsFailing', 'critical',
                 'outbox_publications_pending_age_seconds', 300,
                 'publications are delivered late', 'publications to deliver', '1 s'),
                ('OutboxRetentionBehind', 'warning', 'outbox_retention_lag_seconds',
                 extract(epoch FROM alerts.retention_lag),
                 'history is kept that should be gone', 'archive', '1 s'),
                ('OutboxSnapshotOld', 'warning', 'outbox_snapshot_age_seconds',
                 extract(epoch FROM alerts.snapshot_age),
                 'a transaction keeps dead rows from being removed', 'xmin horizon', '1 s')
               ) m(name, severity, metric, threshold, message, component, ago)
          JOIN measures s ON s.metric = m.metric
        UNION ALL
        SELECT 'OutboxLaneMemoryFull', 'warning', NULL,
               u.value / nullif(z.value, 0), alerts.lane_memory, NULL,
               format('%s of %s places for lanes are in use', u.value, z.value), 'shared memory'
          FROM measures u, measures z
         WHERE u.metric = 'outbox_lane_memory_used' AND z.metric = 'outbox_lane_memory_size'
        UNION ALL
        -- those that have no alert of their own
        SELECT 'OutboxProblem', 'warning', NULL, 1, 0, p.component,
               concat_ws('; ', p.status, p.detail), p.component
          FROM problems p
         WHERE outbox._component_kind(p.component) !~
               ('^(library|shared memory|oldest ready message|joins|archive|workers|worker: .*|'
                'handler|publications to deliver|dead messages)$')
    ), numbered AS (
        SELECT f.*, row_number() OVER (PARTITION BY f.name
                                       ORDER BY f.value DESC, f.since, f.subject) AS place
          FROM found f
         WHERE f.value > f.threshold
    )
    SELECT n.name, n.severity, n.since, n.value, n.threshold, n.subject, n.message,
           coalesce((SELECT p.hint FROM problems p
                      WHERE starts_with(p.component, n.component) LIMIT 1),
                    'See docs/monitoring.md, ' || n.name || '.')
      FROM numbered n
     WHERE n.place <= 100
     ORDER BY n.severity, n.name, n.place;
EXCEPTION WHEN lock_not_available THEN
    -- the sort has returned nothing yet
    RETURN QUERY
    SELECT 'OutboxProblem', 'warning', NULL::timestamptz, 1::float8, 0::float8, s.component,
           concat_ws('; ', s.status, s.detail), s.hint
      FROM outbox._locked_status() s
     WHERE NOT s.ok;
END
$$;

COMMENT ON FUNCTION outbox.alerts(
    interval, bigint, bigint, interval, interval, interval, interval, double precision
) IS 'What needs attention, by the rules of monitoring/rules.yml.';
