-- counters.sql: what has happened to messages, counted in shared memory. Serves
-- sql_counters.c.
--
-- The counters are lost when the server crashes, and, unless the library is preloaded,
-- when it stops.

-- _counters(by_topic)
--     The counters of this database: of each topic, or their sums, in one row. Views call
--     it with the privileges of the reader, who therefore needs EXECUTE.
CREATE FUNCTION outbox._counters(by_topic boolean)
RETURNS TABLE (
    kind              text,
    namespace         text,
    subscription      text,
    topic             text,
    enqueued          bigint,
    claimed           bigint,
    acked             bigint,
    nacked            bigint,
    failed            bigint,
    dead              bigint,
    expired           bigint,
    leases_lost       bigint,
    bytes             bigint,
    wait_ms           bigint,
    service_ms        bigint,
    calls             bigint,
    call_ms           bigint,
    wait_histogram    bigint[],
    service_histogram bigint[],
    stats_since       timestamptz
)
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'outbox_counters_sql';

COMMENT ON FUNCTION outbox._counters(boolean) IS
    'Counters of each topic, or their sums.';

CREATE VIEW outbox.topic_counters AS
SELECT c.kind, c.namespace, c.subscription, c.topic,
       c.enqueued, c.claimed, c.acked, c.nacked, c.failed, c.dead, c.expired, c.leases_lost,
       c.bytes, c.wait_ms, c.service_ms, c.calls, c.call_ms, c.wait_histogram,
       c.service_histogram, c.stats_since
  FROM outbox._counters(true) c;

COMMENT ON VIEW outbox.topic_counters IS
    'What has happened to the messages of each topic, in transactions that have '
    'committed.';
COMMENT ON COLUMN outbox.topic_counters.kind IS
    'message, inbox (a received message), timer, or job_run.';
COMMENT ON COLUMN outbox.topic_counters.namespace IS 'The namespace of the topic.';
COMMENT ON COLUMN outbox.topic_counters.subscription IS
    'The subscription, if the row counts its deliveries.';
COMMENT ON COLUMN outbox.topic_counters.topic IS
    'The topic; null for all topics that are not counted separately '
    '(outbox.topic_counters_max).';
COMMENT ON COLUMN outbox.topic_counters.enqueued IS
    'Messages that were enqueued or delivered. A message that is requeued is not '
    'counted again.';
COMMENT ON COLUMN outbox.topic_counters.claimed IS 'How often messages were claimed.';
COMMENT ON COLUMN outbox.topic_counters.acked IS 'Messages that are done.';
COMMENT ON COLUMN outbox.topic_counters.nacked IS
    'How often a message was given back by nack, to be tried again or because it was '
    'the last attempt.';
COMMENT ON COLUMN outbox.topic_counters.failed IS 'Messages that a worker has failed.';
COMMENT ON COLUMN outbox.topic_counters.dead IS
    'Messages that were moved to the dead ones, for any reason.';
COMMENT ON COLUMN outbox.topic_counters.expired IS
    'Those of them whose expires_at had passed.';
COMMENT ON COLUMN outbox.topic_counters.leases_lost IS
    'Leases that ended without ack, nack, fail or release.';
COMMENT ON COLUMN outbox.topic_counters.bytes IS 'Bytes of the payloads that were enqueued.';
COMMENT ON COLUMN outbox.topic_counters.wait_ms IS
    'Sum of the times from when a message could be claimed until it was.';
COMMENT ON COLUMN outbox.topic_counters.service_ms IS
    'Sum of the times from a claim to ack, nack or fail.';
COMMENT ON COLUMN outbox.topic_counters.calls IS 'Calls of its handler, if it has one.';
COMMENT ON COLUMN outbox.topic_counters.call_ms IS 'Sum of the times that they took.';
COMMENT ON COLUMN outbox.topic_counters.wait_histogram IS
    'How many of the waiting times were up to 1 ms, up to 2 ms, up to 4 ms and so on; the '
    'last element is for everything above 2^26 ms.';
COMMENT ON COLUMN outbox.topic_counters.service_histogram IS
    'The same for the times from claim to end.';
COMMENT ON COLUMN outbox.topic_counters.stats_since IS 'Since when the row counts.';

CREATE VIEW outbox.stat AS
SELECT c.enqueued, c.claimed, c.acked, c.nacked, c.failed, c.dead, c.expired, c.leases_lost,
       c.bytes, c.wait_ms, c.service_ms, c.calls, c.call_ms, c.wait_histogram,
       c.service_histogram, c.stats_since
  FROM outbox._counters(false) c;

COMMENT ON VIEW outbox.stat IS
    'The sums of outbox.topic_counters, in one row.';
COMMENT ON COLUMN outbox.stat.enqueued IS 'See outbox.topic_counters.';
COMMENT ON COLUMN outbox.stat.claimed IS 'See outbox.topic_counters.';
COMMENT ON COLUMN outbox.stat.acked IS 'See outbox.topic_counters.';
COMMENT ON COLUMN outbox.stat.nacked IS 'See outbox.topic_counters.';
COMMENT ON COLUMN outbox.stat.failed IS 'See outbox.topic_counters.';
COMMENT ON COLUMN outbox.stat.dead IS 'See outbox.topic_counters.';
COMMENT ON COLUMN outbox.stat.expired IS 'See outbox.topic_counters.';
COMMENT ON COLUMN outbox.stat.leases_lost IS 'See outbox.topic_counters.';
COMMENT ON COLUMN outbox.stat.bytes IS 'See outbox.topic_counters.';
COMMENT ON COLUMN outbox.stat.wait_ms IS 'See outbox.topic_counters.';
COMMENT ON COLUMN outbox.stat.service_ms IS 'See outbox.topic_counters.';
COMMENT ON COLUMN outbox.stat.calls IS 'See outbox.topic_counters.';
COMMENT ON COLUMN outbox.stat.call_ms IS 'See outbox.topic_counters.';
COMMENT ON COLUMN outbox.stat.wait_histogram IS 'See outbox.topic_counters.';
COMMENT ON COLUMN outbox.stat.service_histogram IS 'See outbox.topic_counters.';
COMMENT ON COLUMN outbox.stat.stats_since IS
    'When stat_reset() was last called, or the server has lost its counters; null if '
    'nothing is counted.';

CREATE VIEW outbox.handler_stats AS
WITH counted AS (
    SELECT k.namespace, coalesce(k.subscription, '') AS subscription,
           CASE WHEN k.subscription IS NULL THEN k.topic ELSE '' END AS topic,
           sum(k.calls)::bigint AS calls, sum(k.call_ms)::bigint AS call_ms,
           sum(k.acked)::bigint AS acked, sum(k.nacked)::bigint AS nacked,
           sum(k.dead)::bigint AS dead, sum(k.leases_lost)::bigint AS leases_lost,
           min(k.stats_since) AS stats_since
      FROM outbox._counters(true) k
     WHERE k.kind = 'message'
     GROUP BY 1, 2, 3
)
SELECT h.namespace, h.topic, nullif(h.subscription, '') AS subscription, h.handler, h.role,
       coalesce(c.calls, 0) AS calls,
       c.call_ms::float8 / nullif(c.calls, 0) AS mean_ms,
       coalesce(c.call_ms, 0) AS call_ms,
       coalesce(c.acked, 0) AS acked,
       coalesce(c.nacked, 0) AS nacked,
       coalesce(c.dead, 0) AS dead,
       coalesce(c.leases_lost, 0) AS leases_lost,
       c.stats_since
  FROM outbox.handlers h
  LEFT JOIN counted c
    ON c.namespace = h.namespace
   AND c.subscription = h.subscription
   AND c.topic = CASE h.subscription WHEN '' THEN h.topic ELSE '' END
 ORDER BY mean_ms DESC NULLS LAST, h.namespace, h.topic, h.subscription;

COMMENT ON VIEW outbox.handler_stats IS
    'How often handlers were called, and how long that took; the slowest first.';
COMMENT ON COLUMN outbox.handler_stats.namespace IS 'The namespace of its topic.';
COMMENT ON COLUMN outbox.handler_stats.topic IS 'The topic, or the pattern of the subscription.';
COMMENT ON COLUMN outbox.handler_stats.subscription IS
    'The subscription whose deliveries it handles; null if it handles a topic.';
COMMENT ON COLUMN outbox.handler_stats.handler IS 'The function.';
COMMENT ON COLUMN outbox.handler_stats.role IS 'The role as which it is called.';
COMMENT ON COLUMN outbox.handler_stats.calls IS
    'Calls in transactions that have committed; failed ones are among them.';
COMMENT ON COLUMN outbox.handler_stats.mean_ms IS 'How long a call took, on average.';
COMMENT ON COLUMN outbox.handler_stats.call_ms IS 'How long all of them took.';
COMMENT ON COLUMN outbox.handler_stats.acked IS 'Messages that are done.';
COMMENT ON COLUMN outbox.handler_stats.nacked IS 'How often a message was returned for a retry.';
COMMENT ON COLUMN outbox.handler_stats.dead IS 'Messages that have failed for good.';
COMMENT ON COLUMN outbox.handler_stats.leases_lost IS
    'Leases that ended without ack, nack, fail or release.';
COMMENT ON COLUMN outbox.handler_stats.stats_since IS 'Since when this was counted.';

-- stat_reset()
--     Sets all counters of this database to 0. Not undone by a rollback.
CREATE FUNCTION outbox.stat_reset()
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_stat_reset';

COMMENT ON FUNCTION outbox.stat_reset() IS 'Sets all counters of this database to 0.';

-- _forget_counters()
--     Removes the counters of databases that do not exist any more. Returns how many
--     databases.
CREATE FUNCTION outbox._forget_counters()
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_forget_counters';

COMMENT ON FUNCTION outbox._forget_counters() IS
    'Removes the counters of databases that are gone.';
