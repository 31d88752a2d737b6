-- messages.sql: the view of all messages, in all tables, for users.
-- Serves sql_admin.c.

-- _partition_number(stream_id, partition_count)
--     Returns the partition of a stream, from 0 to partition_count - 1. Views call it
--     with the privileges of the reader, who therefore needs EXECUTE.
CREATE FUNCTION outbox._partition_number(
    stream_id       uuid,
    partition_count integer DEFAULT 10000
)
RETURNS integer
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_partition_number';

COMMENT ON FUNCTION outbox._partition_number(uuid, integer) IS
    'The partition to which a stream belongs.';

-- _subscriber_stream(stream_id, subscriber)
--     Returns the stream of a delivery, as in rows of the queue, for the stream of
--     its publication, and vice versa. Called with the privileges of the reader, too.
CREATE FUNCTION outbox._subscriber_stream(
    stream_id  uuid,
    subscriber integer
)
RETURNS uuid
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_subscriber_stream_of';

COMMENT ON FUNCTION outbox._subscriber_stream(uuid, integer) IS
    'Converts the stream of a publication to that of its delivery, and back.';

-- Short columns come first, and the payload last. The functions that return names of
-- statuses are called with the privileges of the reader, too. Deliveries have the
-- original stream, and possibly the payload, in other rows.
CREATE VIEW outbox.messages AS
SELECT q.id,
       q.namespace,
       q.topic,
       q.status,
       outbox.status_name(q.status) AS state,
       q.attempts - q.waived AS attempts,
       q.retry_count,
       q.created_at,
       q.due_time,
       q.next_attempt_at,
       q.owner_token,
       q.locked_until,
       q.expires_at,
       q.updated_at,
       false AS is_processed,
       NULL::timestamptz AS processed_at,
       NULL::uuid AS processed_by,
       q.failure_reason,
       q.last_error,
       q.progress,
       q.correlation_id,
       q.tenant_id,
       q.dedupe_key,
       q.stream_id,
       outbox._partition_number(q.stream_id) AS partition_number,
       NULL::text AS subscription,
       NULL::uuid AS published_id,
       coalesce(q.priority, 0::smallint) AS priority,
       q.message_id,
       q.headers,
       q.payload
  FROM outbox.queue q
 WHERE q.subscriber IS NULL
UNION ALL
SELECT q.id,
       q.namespace,
       q.topic,
       q.status,
       outbox.status_name(q.status),
       q.attempts - q.waived,
       q.retry_count,
       q.created_at,
       q.due_time,
       q.next_attempt_at,
       q.owner_token,
       q.locked_until,
       q.expires_at,
       q.updated_at,
       false,
       NULL::timestamptz,
       NULL::uuid,
       q.failure_reason,
       q.last_error,
       q.progress,
       q.correlation_id,
       q.tenant_id,
       q.dedupe_key,
       outbox._subscriber_stream(q.stream_id, q.subscriber),
       outbox._partition_number(outbox._subscriber_stream(q.stream_id, q.subscriber)),
       s.subscription,
       q.published_id,
       coalesce(q.priority, 0::smallint),
       q.message_id,
       q.headers,
       CASE WHEN q.published_at IS NULL OR q.payload <> '' THEN q.payload
            ELSE (SELECT p.payload
                    FROM outbox.publications p
                   WHERE p.published_id = q.published_id
                     AND p.published_at = q.published_at) END
  FROM outbox.queue q
  LEFT JOIN outbox.subscribers s ON s.id = q.subscriber
 WHERE q.subscriber IS NOT NULL
UNION ALL
SELECT a.id,
       a.namespace,
       a.topic,
       2::smallint,
       outbox.status_name(2),
       a.attempts,
       a.retry_count,
       a.created_at,
       a.due_time,
       NULL::timestamptz,
       NULL::uuid,
       NULL::timestamptz,
       a.expires_at,
       a.processed_at,
       true,
       a.processed_at,
       a.processed_by,
       a.failure_reason,
       a.last_error,
       a.progress,
       a.correlation_id,
       a.tenant_id,
       a.dedupe_key,
       a.stream_id,
       outbox._partition_number(a.stream_id),
       a.subscription,
       a.published_id,
       coalesce(a.priority, 0::smallint),
       a.message_id,
       a.headers,
       CASE WHEN a.published_at IS NULL OR a.payload <> '' THEN a.payload
            ELSE (SELECT p.payload
                    FROM outbox.publications p
                   WHERE p.published_id = a.published_id
                     AND p.published_at = a.published_at) END
  FROM outbox.archive a
UNION ALL
SELECT d.id,
       d.namespace,
       d.topic,
       3::smallint,
       outbox.status_name(3),
       d.attempts,
       d.retry_count,
       d.created_at,
       d.due_time,
       NULL::timestamptz,
       NULL::uuid,
       NULL::timestamptz,
       d.expires_at,
       d.processed_at,
       false,
       NULL::timestamptz,
       NULL::uuid,
       d.failure_reason,
       d.last_error,
       d.progress,
       d.correlation_id,
       d.tenant_id,
       d.dedupe_key,
       d.stream_id,
       outbox._partition_number(d.stream_id),
       d.subscription,
       d.published_id,
       coalesce(d.priority, 0::smallint),
       d.message_id,
       d.headers,
       CASE WHEN d.published_at IS NULL OR d.payload <> '' THEN d.payload
            ELSE (SELECT p.payload
                    FROM outbox.publications p
                   WHERE p.published_id = d.published_id
                     AND p.published_at = d.published_at) END
  FROM outbox.dead d;

COMMENT ON VIEW outbox.messages IS 'All messages, waiting, leased or finished, one row each.';
COMMENT ON COLUMN outbox.messages.id IS 'The work item; constant for the life of the message.';
COMMENT ON COLUMN outbox.messages.message_id IS
    'The logical message, constant across retries and replays.';
COMMENT ON COLUMN outbox.messages.namespace IS
    'The namespace; separates applications that share the database.';
COMMENT ON COLUMN outbox.messages.topic IS 'The topic of the message.';
COMMENT ON COLUMN outbox.messages.payload IS 'The payload, which is never parsed.';
COMMENT ON COLUMN outbox.messages.headers IS 'A JSON object that is delivered with the payload.';
COMMENT ON COLUMN outbox.messages.correlation_id IS
    'Identifies related messages; chosen by the producer.';
COMMENT ON COLUMN outbox.messages.tenant_id IS 'The tenant that the message belongs to.';
COMMENT ON COLUMN outbox.messages.dedupe_key IS
    'The dedupe key; at most one message of a topic has it.';
COMMENT ON COLUMN outbox.messages.stream_id IS 'The stream; its messages are delivered in order.';
COMMENT ON COLUMN outbox.messages.subscription IS
    'The subscription, if it is a delivery; null if it was enqueued.';
COMMENT ON COLUMN outbox.messages.published_id IS 'The publication, if it is a delivery.';
COMMENT ON COLUMN outbox.messages.priority IS 'The priority, from -2 to 2; higher is more urgent.';
COMMENT ON COLUMN outbox.messages.partition_number IS 'The partition of its stream.';
COMMENT ON COLUMN outbox.messages.status IS
    '0 ready, 1 in progress, 2 done, 3 failed; see outbox.status_name.';
COMMENT ON COLUMN outbox.messages.state IS 'ready, in progress, done or failed: the status.';
COMMENT ON COLUMN outbox.messages.owner_token IS 'The owner of the lease.';
COMMENT ON COLUMN outbox.messages.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.messages.attempts IS
    'How often it was handed out, without released attempts; compared with max_attempts.';
COMMENT ON COLUMN outbox.messages.retry_count IS 'How often it was returned for a retry.';
COMMENT ON COLUMN outbox.messages.next_attempt_at IS
    'Not delivered before this time; null if it is finished.';
COMMENT ON COLUMN outbox.messages.due_time IS
    'Not delivered before this time, as passed to enqueue.';
COMMENT ON COLUMN outbox.messages.expires_at IS 'Not delivered from this time on.';
COMMENT ON COLUMN outbox.messages.last_error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN outbox.messages.failure_reason IS
    'Why the message, or its last attempt, failed; 0 if none did.';
COMMENT ON COLUMN outbox.messages.progress IS 'Progress of the message, as a bit mask.';
COMMENT ON COLUMN outbox.messages.created_at IS 'When it was enqueued.';
COMMENT ON COLUMN outbox.messages.updated_at IS 'When it was last changed.';
COMMENT ON COLUMN outbox.messages.is_processed IS 'Whether it is done.';
COMMENT ON COLUMN outbox.messages.processed_at IS 'When it was done.';
COMMENT ON COLUMN outbox.messages.processed_by IS 'The owner that finished it.';

CREATE VIEW outbox.messages_info AS
SELECT m.id,
       m.namespace,
       m.topic,
       m.status,
       m.state,
       m.attempts,
       m.retry_count,
       m.created_at,
       m.due_time,
       m.next_attempt_at,
       m.owner_token,
       m.locked_until,
       m.expires_at,
       m.updated_at,
       m.is_processed,
       m.processed_at,
       m.processed_by,
       m.failure_reason,
       m.progress,
       m.correlation_id,
       m.tenant_id,
       m.dedupe_key,
       m.stream_id,
       m.partition_number,
       m.subscription,
       m.published_id,
       m.priority,
       m.message_id
  FROM outbox.messages m;

COMMENT ON VIEW outbox.messages_info IS
    'All messages, without payloads, headers and errors, for monitoring roles.';
COMMENT ON COLUMN outbox.messages_info.id IS
    'The work item; constant for the life of the message.';
COMMENT ON COLUMN outbox.messages_info.namespace IS
    'The namespace; separates applications that share the database.';
COMMENT ON COLUMN outbox.messages_info.topic IS 'The topic of the message.';
COMMENT ON COLUMN outbox.messages_info.status IS
    '0 ready, 1 in progress, 2 done, 3 failed; see outbox.status_name.';
COMMENT ON COLUMN outbox.messages_info.state IS 'ready, in progress, done or failed: the status.';
COMMENT ON COLUMN outbox.messages_info.attempts IS
    'How often it was handed out, without released attempts; compared with max_attempts.';
COMMENT ON COLUMN outbox.messages_info.retry_count IS 'How often it was returned for a retry.';
COMMENT ON COLUMN outbox.messages_info.created_at IS 'When it was enqueued.';
COMMENT ON COLUMN outbox.messages_info.due_time IS
    'Not delivered before this time, as passed to enqueue.';
COMMENT ON COLUMN outbox.messages_info.next_attempt_at IS
    'Not delivered before this time; null if it is finished.';
COMMENT ON COLUMN outbox.messages_info.owner_token IS 'The owner of the lease.';
COMMENT ON COLUMN outbox.messages_info.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.messages_info.expires_at IS 'Not delivered from this time on.';
COMMENT ON COLUMN outbox.messages_info.updated_at IS 'When it was last changed.';
COMMENT ON COLUMN outbox.messages_info.is_processed IS 'Whether it is done.';
COMMENT ON COLUMN outbox.messages_info.processed_at IS 'When it was done.';
COMMENT ON COLUMN outbox.messages_info.processed_by IS 'The owner that finished it.';
COMMENT ON COLUMN outbox.messages_info.failure_reason IS
    'Why the message, or its last attempt, failed; 0 if none did.';
COMMENT ON COLUMN outbox.messages_info.progress IS 'Progress of the message, as a bit mask.';
COMMENT ON COLUMN outbox.messages_info.correlation_id IS
    'Identifies related messages; chosen by the producer.';
COMMENT ON COLUMN outbox.messages_info.tenant_id IS 'The tenant that the message belongs to.';
COMMENT ON COLUMN outbox.messages_info.dedupe_key IS
    'The dedupe key; at most one message of a topic has it.';
COMMENT ON COLUMN outbox.messages_info.stream_id IS
    'The stream; its messages are delivered in order.';
COMMENT ON COLUMN outbox.messages_info.partition_number IS 'The partition of its stream.';
COMMENT ON COLUMN outbox.messages_info.subscription IS
    'The subscription, if it is a delivery; null if it was enqueued.';
COMMENT ON COLUMN outbox.messages_info.published_id IS 'The publication, if it is a delivery.';
COMMENT ON COLUMN outbox.messages_info.priority IS
    'The priority, from -2 to 2; higher is more urgent.';
COMMENT ON COLUMN outbox.messages_info.message_id IS
    'The logical message, constant across retries and replays.';
