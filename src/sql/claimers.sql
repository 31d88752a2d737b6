-- claimers.sql: who has claimed, and who waits. Serves sql_claimers.c.
--
-- What is known of it is in shared memory: it is gone after a restart, and the
-- claims of one owner or topic can displace those of another. These functions are
-- called by views with the rights of the reader, who therefore needs EXECUTE.

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

COMMENT ON FUNCTION outbox._owner_claims() IS
    'The sessions that have claimed, by owner.';

-- _topic_claims()
--     The session that has last claimed from each topic. Names are clipped to 127
--     bytes.
CREATE FUNCTION outbox._topic_claims()
RETURNS TABLE (
    claimed_at  timestamptz,
    pid         integer,
    application text,
    host        text,
    namespace   text,
    topic       text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'outbox_topic_claims';

COMMENT ON FUNCTION outbox._topic_claims() IS
    'The sessions that have claimed, by topic.';

-- _waiting_claims()
--     The claims that wait for messages. A null is any namespace, or any topic.
CREATE FUNCTION outbox._waiting_claims()
RETURNS TABLE (
    pid       integer,
    since     timestamptz,
    namespace text,
    topics    text[]
)
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10
AS 'MODULE_PATHNAME', 'outbox_waiting_claims';

COMMENT ON FUNCTION outbox._waiting_claims() IS
    'The claims that wait for messages.';

CREATE VIEW outbox.claimers AS
WITH waiting AS (
    SELECT w.namespace, t.topic, count(*) AS waiting, min(w.since) AS since,
           array_agg(w.pid ORDER BY w.since) AS pids
      FROM outbox._waiting_claims() w
      LEFT JOIN LATERAL unnest(w.topics) t(topic) ON true
     GROUP BY w.namespace, t.topic
), last AS (
    SELECT DISTINCT ON (c.namespace, c.topic) c.*
      FROM outbox._topic_claims() c
     ORDER BY c.namespace, c.topic, c.claimed_at DESC
)
SELECT coalesce(l.topic, w.topic) AS topic,
       coalesce(l.namespace, w.namespace) AS namespace,
       coalesce(w.waiting, 0) AS waiting,
       date_trunc('second', clock_timestamp() - l.claimed_at) AS last_claim_age,
       l.claimed_at AS last_claimed_at,
       l.pid AS last_pid,
       l.application AS last_application,
       l.host AS last_host,
       w.since AS waiting_since,
       w.pids AS waiting_pids
  FROM last l
  FULL JOIN waiting w ON w.namespace = l.namespace AND w.topic = l.topic
 ORDER BY topic, namespace;

COMMENT ON VIEW outbox.claimers IS
    'Per topic: how many claims wait, and who claimed last, as far as memory knows.';
COMMENT ON COLUMN outbox.claimers.topic IS
    'The topic; null for claims that wait for any.';
COMMENT ON COLUMN outbox.claimers.namespace IS
    'The namespace; null for claims that wait for any.';
COMMENT ON COLUMN outbox.claimers.waiting IS
    'How many claims wait for exactly this topic and namespace.';
COMMENT ON COLUMN outbox.claimers.last_claim_age IS
    'How long ago a claim last got messages of the topic.';
COMMENT ON COLUMN outbox.claimers.last_claimed_at IS 'When that was.';
COMMENT ON COLUMN outbox.claimers.last_pid IS 'The process of that session.';
COMMENT ON COLUMN outbox.claimers.last_application IS 'Its application_name then.';
COMMENT ON COLUMN outbox.claimers.last_host IS 'Where its client was; a pooler, if there is one.';
COMMENT ON COLUMN outbox.claimers.waiting_since IS 'Since when the first of those has waited.';
COMMENT ON COLUMN outbox.claimers.waiting_pids IS 'Their processes.';
