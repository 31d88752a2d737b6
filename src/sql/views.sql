-- views.sql: for people and exporters. Nothing here reads all messages.

-- A lane at a time, hopping along the index; no count goes beyond 10000.
CREATE VIEW outbox.topic_stats AS
WITH RECURSIVE lanes(lane) AS (
    (SELECT q.lane FROM outbox.queue q WHERE q.lane >= 0 ORDER BY q.lane LIMIT 1)
    UNION ALL
    SELECT (SELECT q.lane FROM outbox.queue q
             WHERE q.lane > l.lane ORDER BY q.lane LIMIT 1)
      FROM lanes l
     WHERE l.lane IS NOT NULL
), sample AS (
    SELECT s.*
      FROM lanes l,
           LATERAL (SELECT q.namespace, q.topic, q.status, q.ready_at,
                           q.next_attempt_at, q.locked_until
                      FROM outbox.queue q
                     WHERE q.lane = l.lane
                     ORDER BY q.ready_at, q.id
                     LIMIT 10000) s
     WHERE l.lane IS NOT NULL
    UNION ALL
    -- the few that only one owner may take
    SELECT q.namespace, q.topic, q.status, q.ready_at, q.next_attempt_at,
           q.locked_until
      FROM outbox.queue q
     WHERE q.lane < 0
), live AS (
    SELECT namespace,
           topic,
           count(*) FILTER (WHERE status = 0 AND ready_at <= now()) AS ready,
           count(*) FILTER (WHERE status = 0 AND ready_at > now()
                              AND next_attempt_at > now()) AS delayed,
           count(*) FILTER (WHERE status = 0 AND ready_at > now()
                              AND next_attempt_at <= now()) AS waiting_in_stream,
           count(*) FILTER (WHERE status = 1) AS in_progress,
           count(*) FILTER (WHERE status = 1 AND locked_until <= now()) AS expired,
           min(ready_at) FILTER (WHERE status = 0 AND ready_at <= now()) AS oldest_ready_at
      FROM sample
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
SELECT coalesce(live.namespace, dead.namespace) AS namespace,
       coalesce(live.topic, dead.topic) AS topic,
       coalesce(live.ready, 0) AS ready,
       coalesce(live.delayed, 0) AS delayed,
       coalesce(live.waiting_in_stream, 0) AS waiting_in_stream,
       coalesce(live.in_progress, 0) AS in_progress,
       coalesce(live.expired, 0) AS expired,
       live.oldest_ready_at,
       coalesce(dead.dead, 0) AS dead,
       coalesce(t.paused, false) AS paused
  FROM live
  FULL JOIN dead ON dead.namespace = live.namespace AND dead.topic = live.topic
  LEFT JOIN outbox.topics t
    ON t.namespace = coalesce(live.namespace, dead.namespace)
   AND t.topic = coalesce(live.topic, dead.topic);

COMMENT ON VIEW outbox.topic_stats IS
    'What lies in each topic. No number goes beyond 10000.';
COMMENT ON COLUMN outbox.topic_stats.namespace IS 'The namespace.';
COMMENT ON COLUMN outbox.topic_stats.topic IS 'The topic.';
COMMENT ON COLUMN outbox.topic_stats.ready IS 'Messages that can be claimed.';
COMMENT ON COLUMN outbox.topic_stats.delayed IS 'Messages that are not due yet.';
COMMENT ON COLUMN outbox.topic_stats.waiting_in_stream IS 'Messages that wait behind another of their stream.';
COMMENT ON COLUMN outbox.topic_stats.in_progress IS 'Messages that are leased.';
COMMENT ON COLUMN outbox.topic_stats.expired IS 'Of these, those whose lease has ended.';
COMMENT ON COLUMN outbox.topic_stats.oldest_ready_at IS 'Since when the oldest of the ready can be claimed.';
COMMENT ON COLUMN outbox.topic_stats.dead IS 'Messages that have failed.';
COMMENT ON COLUMN outbox.topic_stats.paused IS 'Whether the topic is paused.';

CREATE VIEW outbox.dead_letters AS
SELECT id, message_id, namespace, topic, payload, headers, correlation_id,
       tenant_id, dedupe_key, stream_id, attempts, retry_count, last_error,
       failure_reason, created_at, processed_at AS failed_at,
       processed_by AS failed_by
  FROM outbox.dead;

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
COMMENT ON COLUMN outbox.dead_letters.failed_at IS 'When it failed.';
COMMENT ON COLUMN outbox.dead_letters.failed_by IS 'The owner who failed it; null if nobody did.';

CREATE VIEW outbox.leases AS
SELECT id, message_id, namespace, topic, stream_id, owner_token, attempts,
       updated_at AS leased_at, locked_until, locked_until <= now() AS expired
  FROM outbox.queue
 WHERE status = 1;

COMMENT ON VIEW outbox.leases IS 'Messages that are in progress.';
COMMENT ON COLUMN outbox.leases.id IS 'The work item.';
COMMENT ON COLUMN outbox.leases.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.leases.namespace IS 'Its namespace.';
COMMENT ON COLUMN outbox.leases.topic IS 'Its topic.';
COMMENT ON COLUMN outbox.leases.stream_id IS 'Its stream.';
COMMENT ON COLUMN outbox.leases.owner_token IS 'Who has the lease.';
COMMENT ON COLUMN outbox.leases.attempts IS 'How often the message was handed out.';
COMMENT ON COLUMN outbox.leases.leased_at IS 'When the lease was taken or renewed.';
COMMENT ON COLUMN outbox.leases.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.leases.expired IS 'Whether it has ended, and nobody has taken the message yet.';

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
SELECT s.stream_id,
       outbox._partition_number(s.stream_id) AS partition_number,
       h.id, h.message_id, h.namespace, h.topic, h.status, h.owner_token,
       h.locked_until, h.attempts, h.next_attempt_at, h.last_error, h.created_at
  FROM streams s,
       LATERAL (SELECT * FROM outbox.queue q
                 WHERE q.stream_id = s.stream_id
                 ORDER BY q.stream_seq LIMIT 1) h
 WHERE s.stream_id IS NOT NULL;

COMMENT ON VIEW outbox.stream_heads IS
    'Of each stream the first message that is not finished: the one all others wait for.';
COMMENT ON COLUMN outbox.stream_heads.stream_id IS 'The stream.';
COMMENT ON COLUMN outbox.stream_heads.partition_number IS 'The share of the streams to which it belongs.';
COMMENT ON COLUMN outbox.stream_heads.id IS 'The work item.';
COMMENT ON COLUMN outbox.stream_heads.message_id IS 'The logical message.';
COMMENT ON COLUMN outbox.stream_heads.namespace IS 'Its namespace.';
COMMENT ON COLUMN outbox.stream_heads.topic IS 'Its topic.';
COMMENT ON COLUMN outbox.stream_heads.status IS '0 ready, 1 in progress.';
COMMENT ON COLUMN outbox.stream_heads.owner_token IS 'Who has the lease.';
COMMENT ON COLUMN outbox.stream_heads.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.stream_heads.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.stream_heads.next_attempt_at IS 'Not to be delivered before.';
COMMENT ON COLUMN outbox.stream_heads.last_error IS 'What the worker said of the last failed attempt.';
COMMENT ON COLUMN outbox.stream_heads.created_at IS 'When it was enqueued.';
