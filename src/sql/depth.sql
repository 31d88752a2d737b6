-- depth.sql: how many messages there were, minute by minute. Serves round.c.

-- Rows of a sample are numbered from the topic with the most messages on. At most
-- outbox.metrics_topics rows are written in a minute, and one for all others, whatever
-- the number of topics; none while there is nothing.
CREATE TABLE outbox.depth (
    sampled_at   timestamptz NOT NULL,
    place        integer     NOT NULL,
    namespace    text,
    topic        text,
    subscription text,
    ready        bigint      NOT NULL,
    leased       bigint      NOT NULL,
    delayed      bigint      NOT NULL,
    dead         bigint      NOT NULL,
    oldest_age   interval,
    enqueued     bigint      NOT NULL,
    acked        bigint      NOT NULL,
    nacked       bigint      NOT NULL,
    leases_lost  bigint      NOT NULL,
    CONSTRAINT depth_pkey PRIMARY KEY (sampled_at, place)
);

COMMENT ON TABLE outbox.depth IS
    'How many messages there were in each topic and subscription, minute by minute.';
COMMENT ON COLUMN outbox.depth.sampled_at IS 'When they were counted.';
COMMENT ON COLUMN outbox.depth.place IS 'The row of this sample; 1 has the most messages.';
COMMENT ON COLUMN outbox.depth.namespace IS 'The namespace; null for the sum of all others.';
COMMENT ON COLUMN outbox.depth.topic IS 'The topic; null for the sum of all others.';
COMMENT ON COLUMN outbox.depth.subscription IS
    'The subscription whose deliveries these are; null for enqueued messages.';
COMMENT ON COLUMN outbox.depth.ready IS
    'Messages that are due, even if they wait behind others of their streams; large numbers are '
    'estimates.';
COMMENT ON COLUMN outbox.depth.leased IS 'Messages that are leased.';
COMMENT ON COLUMN outbox.depth.delayed IS 'Messages that are not due yet.';
COMMENT ON COLUMN outbox.depth.dead IS 'Messages that have failed; at most 10000 are counted.';
COMMENT ON COLUMN outbox.depth.oldest_age IS
    'How long the oldest ready message had been claimable; null if there was none, or if it was '
    'paused.';
COMMENT ON COLUMN outbox.depth.enqueued IS 'How many were enqueued since outbox.stat.stats_since.';
COMMENT ON COLUMN outbox.depth.acked IS 'How many were done since then.';
COMMENT ON COLUMN outbox.depth.nacked IS 'How many were returned for a retry since then.';
COMMENT ON COLUMN outbox.depth.leases_lost IS 'How many leases have ended unsettled since then.';

-- _depths(topics)
--     Returns how many messages each topic and subscription has, by the rows of
--     topic_stats, which may be given. Where that stops counting, the rest is
--     estimated: what the statistics of the table say of a topic that has a hundredth
--     of all messages, and for others an equal share of what remains. Of rarer topics
--     the statistics' sample says too little.
CREATE FUNCTION outbox._depths(topics outbox.topic_stats[] DEFAULT NULL)
RETURNS TABLE (
    namespace       text,
    topic           text,
    subscription    text,
    ready           bigint,
    leased          bigint,
    delayed         bigint,
    dead            bigint,
    oldest_ready_at timestamptz
)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
    WITH counted AS MATERIALIZED (
        SELECT s.namespace, s.topic, s.subscription, s.ready + s.waiting_in_stream AS ready,
               s.leased, s.delayed, s.dead, s.more,
               CASE WHEN NOT s.paused THEN s.oldest_ready_at END AS oldest_ready_at,
               s.ready + s.waiting_in_stream + s.leased + s.delayed AS live
          FROM unnest(coalesce(topics, outbox._all_topic_stats())) s
    ), in_table(live) AS (
        SELECT pg_stat_get_live_tuples('outbox.queue'::regclass)
         WHERE EXISTS (SELECT FROM counted c WHERE c.more)
    ), common AS (
        SELECT f.topic, f.share
          FROM pg_statistic s
          JOIN pg_attribute a ON a.attrelid = s.starelid AND a.attnum = s.staattnum
         CROSS JOIN LATERAL unnest(s.stavalues1::text::text[], s.stanumbers1) f(topic, share)
         WHERE s.starelid = 'outbox.queue'::regclass
           AND a.attname = 'topic'
           AND s.stakind1 = 1
           AND f.share >= 0.01
           AND EXISTS (SELECT FROM counted c WHERE c.more)
    ), known AS (
        SELECT c.*,
               CASE WHEN c.more THEN
                   greatest(c.live, (m.share * t.live
                                     / count(*) OVER (PARTITION BY c.topic, c.more))::bigint)
               END AS estimate
          FROM counted c
          LEFT JOIN in_table t ON true
          LEFT JOIN common m ON m.topic = c.topic AND c.more
    ), rest AS (
        SELECT greatest(0, t.live - sum(CASE WHEN k.more THEN k.estimate ELSE k.live END))
               / nullif(count(*) FILTER (WHERE k.more AND k.estimate = k.live), 0) AS share
          FROM known k, in_table t
         GROUP BY t.live
    ), estimated AS (
        SELECT k.*,
               CASE WHEN NOT k.more THEN 0
                    WHEN k.estimate > k.live THEN k.estimate - k.live
                    ELSE coalesce(r.share, 0)::bigint END AS uncounted
          FROM known k
          LEFT JOIN rest r ON true
    )
    SELECT e.namespace, e.topic, e.subscription,
           e.ready + CASE WHEN e.ready > 0 THEN e.uncounted ELSE 0 END,
           e.leased,
           e.delayed + CASE WHEN e.ready > 0 THEN 0 ELSE e.uncounted END,
           e.dead, e.oldest_ready_at
      FROM estimated e
$$;

COMMENT ON FUNCTION outbox._depths(outbox.topic_stats[]) IS
    'How many messages each topic and subscription has.';

-- _sample_depth()
--     Adds a sample to outbox.depth, unless it has one of this minute, or
--     outbox.depth_retention is 0. A topic that has become empty gets one row more.
--     Two processes take turns. Returns how many rows were added.
CREATE FUNCTION outbox._sample_depth()
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    topics integer := current_setting('outbox.metrics_topics')::integer;
    at     timestamptz;
    last   timestamptz;
    added  bigint;
BEGIN
    IF current_setting('outbox.depth_retention')::interval = '0' THEN
        RETURN 0;
    END IF;
    -- a sampler holds the lock until its rows can be seen
    FOR has_lock IN 0..1 LOOP
        at := clock_timestamp();
        -- samples of the future are from before the clock was set back
        SELECT max(d.sampled_at) INTO last FROM outbox.depth d WHERE d.sampled_at <= at;
        IF last > at - interval '55 seconds' THEN
            RETURN 0;
        END IF;
        IF has_lock = 0 THEN
            LOCK TABLE outbox.depth IN SHARE UPDATE EXCLUSIVE MODE;
        END IF;
    END LOOP;
    INSERT INTO outbox.depth
    WITH found AS MATERIALIZED (
        SELECT coalesce(n.namespace, b.namespace) AS namespace,
               coalesce(n.topic, b.topic) AS topic,
               coalesce(n.subscription, b.subscription) AS subscription,
               coalesce(n.ready, 0) AS ready, coalesce(n.leased, 0) AS leased,
               coalesce(n.delayed, 0) AS delayed, coalesce(n.dead, 0) AS dead,
               n.oldest_ready_at
          FROM outbox._depths() n
          FULL JOIN (SELECT d.* FROM outbox.depth d
                      WHERE d.sampled_at = last
                        AND d.topic IS NOT NULL
                        AND d.ready + d.leased + d.delayed + d.dead > 0) b
            ON b.namespace = n.namespace
           AND b.topic = n.topic
           AND coalesce(b.subscription, '') = coalesce(n.subscription, '')
    ), numbered AS (
        SELECT f.*, c.enqueued, c.acked, c.nacked, c.leases_lost,
               row_number() OVER (ORDER BY f.ready + f.leased + f.dead DESC, f.delayed DESC,
                                           f.namespace, f.topic, f.subscription) AS place
          FROM found f
          LEFT JOIN outbox.topic_counters c
            ON c.kind = 'message'
           AND c.namespace = f.namespace
           AND c.topic = f.topic
           AND coalesce(c.subscription, '') = coalesce(f.subscription, '')
    )
    SELECT at, least(n.place, topics + 1),
           CASE WHEN n.place <= topics THEN n.namespace END,
           CASE WHEN n.place <= topics THEN n.topic END,
           CASE WHEN n.place <= topics THEN n.subscription END,
           sum(n.ready), sum(n.leased), sum(n.delayed), sum(n.dead),
           at - min(n.oldest_ready_at),
           coalesce(sum(n.enqueued), 0), coalesce(sum(n.acked), 0),
           coalesce(sum(n.nacked), 0), coalesce(sum(n.leases_lost), 0)
      FROM numbered n
     GROUP BY 2, 3, 4, 5;
    GET DIAGNOSTICS added = ROW_COUNT;
    RETURN added;
END
$$;

COMMENT ON FUNCTION outbox._sample_depth() IS 'Adds a sample to outbox.depth, once a minute.';
