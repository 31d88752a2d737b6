-- messages.sql: every message, wherever it lies. The relation people query.
-- Serves sql_admin.c.

-- _partition_number(stream_id, partition_count)
--     Returns the partition of a stream, from 0 to partition_count - 1. Views
--     call it with the rights of the reader, who therefore needs EXECUTE.
CREATE FUNCTION outbox._partition_number(
    stream_id       uuid,
    partition_count integer DEFAULT 10000
)
RETURNS integer
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_partition_number';

COMMENT ON FUNCTION outbox._partition_number(uuid, integer) IS
    'The partition to which a stream belongs.';

-- What is short comes first, and the payload last. The functions that spell out
-- a status are called with the rights of the reader, too.
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
       NULL::text AS processed_by,
       q.failure_reason,
       q.last_error,
       q.progress,
       q.correlation_id,
       q.tenant_id,
       q.dedupe_key,
       q.stream_id,
       outbox._partition_number(q.stream_id) AS partition_number,
       q.message_id,
       q.headers,
       q.payload
  FROM outbox.queue q
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
       a.processed_by::text,
       a.failure_reason,
       a.last_error,
       a.progress,
       a.correlation_id,
       a.tenant_id,
       a.dedupe_key,
       a.stream_id,
       outbox._partition_number(a.stream_id),
       a.message_id,
       a.headers,
       a.payload
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
       NULL::text,
       d.failure_reason,
       d.last_error,
       d.progress,
       d.correlation_id,
       d.tenant_id,
       d.dedupe_key,
       d.stream_id,
       outbox._partition_number(d.stream_id),
       d.message_id,
       d.headers,
       d.payload
  FROM outbox.dead d;

COMMENT ON VIEW outbox.messages IS
    'Every message, waiting, leased or finished, one row each.';
COMMENT ON COLUMN outbox.messages.id IS 'The work item; constant for the life of the message.';
COMMENT ON COLUMN outbox.messages.message_id IS
    'The logical message, constant across retries and replays.';
COMMENT ON COLUMN outbox.messages.namespace IS 'Keeps applications apart that share the database.';
COMMENT ON COLUMN outbox.messages.topic IS 'What the message is about.';
COMMENT ON COLUMN outbox.messages.payload IS 'The message itself; never parsed.';
COMMENT ON COLUMN outbox.messages.headers IS 'Whatever travels with the payload.';
COMMENT ON COLUMN outbox.messages.correlation_id IS 'Ties messages together, for their users.';
COMMENT ON COLUMN outbox.messages.tenant_id IS 'Whose message it is.';
COMMENT ON COLUMN outbox.messages.dedupe_key IS 'No two messages of a topic have the same.';
COMMENT ON COLUMN outbox.messages.stream_id IS
    'Messages of a stream are delivered one after the other.';
COMMENT ON COLUMN outbox.messages.partition_number IS
    'The share of the streams to which it belongs.';
COMMENT ON COLUMN outbox.messages.status IS
    '0 ready, 1 in progress, 2 done, 3 failed; see outbox.status_name.';
COMMENT ON COLUMN outbox.messages.state IS 'ready, in progress, done or failed: the status.';
COMMENT ON COLUMN outbox.messages.owner_token IS 'Who has the lease.';
COMMENT ON COLUMN outbox.messages.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.messages.attempts IS
    'How often it was handed out, less what was given back; max_attempts is compared with it.';
COMMENT ON COLUMN outbox.messages.retry_count IS 'How often it was handed back as not done.';
COMMENT ON COLUMN outbox.messages.next_attempt_at IS
    'Not to be delivered before; null when finished.';
COMMENT ON COLUMN outbox.messages.due_time IS 'Not to be delivered before, as given to enqueue.';
COMMENT ON COLUMN outbox.messages.expires_at IS 'Not to be delivered from then on.';
COMMENT ON COLUMN outbox.messages.last_error IS 'What the worker said of the last failed attempt.';
COMMENT ON COLUMN outbox.messages.failure_reason IS
    'Why the last attempt, or the message, failed; 0 if none did.';
COMMENT ON COLUMN outbox.messages.progress IS 'Bits of what was achieved so far.';
COMMENT ON COLUMN outbox.messages.created_at IS 'When it was enqueued.';
COMMENT ON COLUMN outbox.messages.updated_at IS 'When it was last changed.';
COMMENT ON COLUMN outbox.messages.is_processed IS 'Whether it is done.';
COMMENT ON COLUMN outbox.messages.processed_at IS 'When it was done.';
COMMENT ON COLUMN outbox.messages.processed_by IS 'The owner who has done it.';

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
       m.message_id
  FROM outbox.messages m;

COMMENT ON VIEW outbox.messages_info IS
    'Every message, without payloads, headers and error texts: what a monitor may see.';
COMMENT ON COLUMN outbox.messages_info.id IS
    'The work item; constant for the life of the message.';
COMMENT ON COLUMN outbox.messages_info.namespace IS
    'Keeps applications apart that share the database.';
COMMENT ON COLUMN outbox.messages_info.topic IS 'What the message is about.';
COMMENT ON COLUMN outbox.messages_info.status IS
    '0 ready, 1 in progress, 2 done, 3 failed; see outbox.status_name.';
COMMENT ON COLUMN outbox.messages_info.state IS 'ready, in progress, done or failed: the status.';
COMMENT ON COLUMN outbox.messages_info.attempts IS
    'How often it was handed out, less what was given back; max_attempts is compared with it.';
COMMENT ON COLUMN outbox.messages_info.retry_count IS 'How often it was handed back as not done.';
COMMENT ON COLUMN outbox.messages_info.created_at IS 'When it was enqueued.';
COMMENT ON COLUMN outbox.messages_info.due_time IS
    'Not to be delivered before, as given to enqueue.';
COMMENT ON COLUMN outbox.messages_info.next_attempt_at IS
    'Not to be delivered before; null when finished.';
COMMENT ON COLUMN outbox.messages_info.owner_token IS 'Who has the lease.';
COMMENT ON COLUMN outbox.messages_info.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.messages_info.expires_at IS 'Not to be delivered from then on.';
COMMENT ON COLUMN outbox.messages_info.updated_at IS 'When it was last changed.';
COMMENT ON COLUMN outbox.messages_info.is_processed IS 'Whether it is done.';
COMMENT ON COLUMN outbox.messages_info.processed_at IS 'When it was done.';
COMMENT ON COLUMN outbox.messages_info.processed_by IS 'The owner who has done it.';
COMMENT ON COLUMN outbox.messages_info.failure_reason IS
    'Why the last attempt, or the message, failed; 0 if none did.';
COMMENT ON COLUMN outbox.messages_info.progress IS 'Bits of what was achieved so far.';
COMMENT ON COLUMN outbox.messages_info.correlation_id IS
    'Ties messages together, for their users.';
COMMENT ON COLUMN outbox.messages_info.tenant_id IS 'Whose message it is.';
COMMENT ON COLUMN outbox.messages_info.dedupe_key IS 'No two messages of a topic have the same.';
COMMENT ON COLUMN outbox.messages_info.stream_id IS
    'Messages of a stream are delivered one after the other.';
COMMENT ON COLUMN outbox.messages_info.partition_number IS
    'The share of the streams to which it belongs.';
COMMENT ON COLUMN outbox.messages_info.message_id IS
    'The logical message, constant across retries and replays.';
