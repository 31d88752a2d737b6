-- claimers.sql: sessions that have claimed, and claims that wait. Serves
-- sql_claimers.c.
--
-- This is known from shared memory only: it is lost at a restart, and entries of
-- different owners or topics can replace each other. Views call these functions with
-- the privileges of the reader, who therefore needs EXECUTE.

-- _owner_claims()
--     The session that has last claimed for each owner, and what was done in the owner's
--     name since the time "since", rolled back or not: calls that got messages, messages
--     that were claimed, ended by ack, nack or fail, or released.
CREATE FUNCTION outbox._owner_claims()
RETURNS TABLE (
    claimed_at  timestamptz,
    pid         integer,
    application text,
    host        text,
    owner_token uuid,
    since       timestamptz,
    ended_at    timestamptz,
    claims      bigint,
    claimed     bigint,
    ended       bigint,
    released    bigint,
    service_ms  double precision
)
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'outbox_owner_claims';

COMMENT ON FUNCTION outbox._owner_claims() IS 'The sessions that have last claimed, by owner.';

-- _topic_claims()
--     The session that has last claimed from each topic, or for each subscription, in
--     which case topic is null. Names are truncated to 127 bytes.
CREATE FUNCTION outbox._topic_claims()
RETURNS TABLE (
    claimed_at   timestamptz,
    pid          integer,
    application  text,
    host         text,
    namespace    text,
    topic        text,
    subscription text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'outbox_topic_claims';

COMMENT ON FUNCTION outbox._topic_claims() IS 'The sessions that have last claimed, by topic.';

-- _waiting_claims()
--     The claims that wait for messages. Null stands for any namespace, or any topic;
--     without a subscription they do not wait for deliveries.
CREATE FUNCTION outbox._waiting_claims()
RETURNS TABLE (
    pid          integer,
    since        timestamptz,
    namespace    text,
    topics       text[],
    subscription text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10
AS 'MODULE_PATHNAME', 'outbox_waiting_claims';

COMMENT ON FUNCTION outbox._waiting_claims() IS
    'The claims that wait for messages.';

CREATE VIEW outbox.claimers AS
WITH waiting AS (
    SELECT w.namespace, t.topic, w.subscription, count(*) AS waiting, min(w.since) AS since,
           array_agg(w.pid ORDER BY w.since) AS pids
      FROM outbox._waiting_claims() w
      LEFT JOIN LATERAL unnest(w.topics) t(topic) ON true
     GROUP BY w.namespace, t.topic, w.subscription
), last AS (
    SELECT DISTINCT ON (c.namespace, c.topic, c.subscription) c.*
      FROM outbox._topic_claims() c
     ORDER BY c.namespace, c.topic, c.subscription, c.claimed_at DESC
)
SELECT coalesce(l.topic, w.topic) AS topic,
       coalesce(l.namespace, w.namespace) AS namespace,
       coalesce(l.subscription, w.subscription) AS subscription,
       coalesce(w.waiting, 0) AS waiting,
       date_trunc('second', clock_timestamp() - l.claimed_at) AS last_claim_age,
       l.claimed_at AS last_claimed_at,
       l.pid AS last_pid,
       l.application AS last_application,
       l.host AS last_host,
       w.since AS waiting_since,
       w.pids AS waiting_pids
  FROM last l
  FULL JOIN waiting w
    ON w.namespace = l.namespace
   AND coalesce(w.topic, '') = coalesce(l.topic, '')
   AND coalesce(w.subscription, '') = coalesce(l.subscription, '')
 ORDER BY topic, namespace, subscription;

COMMENT ON VIEW outbox.claimers IS
    'Per topic and subscription: how many claims wait, and which session claimed last, '
    'according to shared memory.';
COMMENT ON COLUMN outbox.claimers.subscription IS
    'The subscription; null for claims of what was enqueued.';
COMMENT ON COLUMN outbox.claimers.topic IS
    'The topic; null for claims that wait for any topic, and for claims from a subscription.';
COMMENT ON COLUMN outbox.claimers.namespace IS
    'The namespace; null for claims that wait for any.';
COMMENT ON COLUMN outbox.claimers.waiting IS
    'How many claims wait for exactly this topic, namespace and subscription.';
COMMENT ON COLUMN outbox.claimers.last_claim_age IS
    'Time since a claim last got messages of the topic or subscription.';
COMMENT ON COLUMN outbox.claimers.last_claimed_at IS 'When that was.';
COMMENT ON COLUMN outbox.claimers.last_pid IS 'The process of that session.';
COMMENT ON COLUMN outbox.claimers.last_application IS 'Its application_name at that time.';
COMMENT ON COLUMN outbox.claimers.last_host IS 'The address of its client, which may be a pooler.';
COMMENT ON COLUMN outbox.claimers.waiting_since IS
    'When the first of the waiting claims began to wait.';
COMMENT ON COLUMN outbox.claimers.waiting_pids IS 'The processes of the waiting claims.';

-- Workers that use one token are a row each. Those that have a new one for each claim
-- are known by their sessions.
CREATE VIEW outbox.workers AS
WITH owners AS (
    SELECT CASE WHEN o.claims > 1 THEN o.owner_token END AS owner_token, o.pid, o.application,
           o.host, o.since, o.claimed_at, o.ended_at, o.claims, o.claimed, o.ended, o.released,
           o.service_ms
      FROM outbox._owner_claims() o
)
SELECT o.application, o.host, o.pid, o.owner_token,
       EXISTS (SELECT FROM pg_catalog.pg_stat_activity a WHERE a.pid = o.pid) AS connected,
       greatest(sum(o.claimed - o.ended - o.released), 0)::bigint AS open,
       sum(o.claimed)::bigint AS claimed,
       sum(o.ended)::bigint AS ended,
       sum(o.released)::bigint AS released,
       sum(o.service_ms) / nullif(sum(o.ended), 0)::float8 AS mean_ms,
       (sum(o.ended) / nullif(extract(epoch FROM max(o.ended_at) - min(o.since)), 0))::float8
           AS per_second,
       min(o.since) AS since,
       max(o.claimed_at) AS claimed_at,
       max(o.ended_at) AS ended_at
  FROM owners o
 GROUP BY o.application, o.host, o.pid, o.owner_token
 ORDER BY mean_ms DESC NULLS FIRST, claimed_at;

COMMENT ON VIEW outbox.workers IS
    'What workers have done, according to shared memory; those that have ended nothing come '
    'first, then the slowest.';
COMMENT ON COLUMN outbox.workers.application IS
    'The application_name of its session, when it last claimed.';
COMMENT ON COLUMN outbox.workers.host IS 'The address of its client, which may be a pooler.';
COMMENT ON COLUMN outbox.workers.pid IS 'The process of its session.';
COMMENT ON COLUMN outbox.workers.owner_token IS
    'Its owner token; null for a session that has a new one for each claim.';
COMMENT ON COLUMN outbox.workers.connected IS 'Whether there is a session with this process.';
COMMENT ON COLUMN outbox.workers.open IS
    'Messages that it has claimed, and neither ended nor released; leases that have ended since '
    'are among them.';
COMMENT ON COLUMN outbox.workers.claimed IS 'Messages that it has claimed.';
COMMENT ON COLUMN outbox.workers.ended IS 'Those that it has ended by ack, nack or fail.';
COMMENT ON COLUMN outbox.workers.released IS 'Those that it has released.';
COMMENT ON COLUMN outbox.workers.mean_ms IS 'Time from claim to end, on average.';
COMMENT ON COLUMN outbox.workers.per_second IS 'How many it has ended in a second, on average.';
COMMENT ON COLUMN outbox.workers.since IS 'Since when this is known of it.';
COMMENT ON COLUMN outbox.workers.claimed_at IS 'When it last claimed messages.';
COMMENT ON COLUMN outbox.workers.ended_at IS 'When it last ended one; null if it has not.';
