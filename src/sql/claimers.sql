-- claimers.sql: sessions that have claimed, and claims that wait. Serves
-- sql_claimers.c.
--
-- This is known from shared memory only: it is lost at a restart, and entries of
-- different owners or topics can replace each other. Views call these functions with
-- the privileges of the reader, who therefore needs EXECUTE.

-- _owner_claims()
--     The session that has last claimed for each owner.
CREATE FUNCTION outbox._owner_claims()
RETURNS TABLE (
    claimed_at  timestamptz,
    pid         integer,
    application text,
    host        text,
    owner_token uuid
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
