-- inbox.sql: messages that were received. The inbox is a live table like the
-- queue (stores.sql), two columns of which have other names.

ALTER TABLE outbox.inbox_queue RENAME topic TO handler_name;
ALTER TABLE outbox.inbox_queue RENAME correlation_id TO source;
ALTER TABLE outbox.inbox_done RENAME topic TO handler_name;
ALTER TABLE outbox.inbox_done RENAME correlation_id TO source;
ALTER TABLE outbox.inbox_dead RENAME topic TO handler_name;
ALTER TABLE outbox.inbox_dead RENAME correlation_id TO source;

COMMENT ON TABLE outbox.inbox_queue IS
    'Received messages that are ready or in progress. Look at outbox.inbox instead.';
COMMENT ON COLUMN outbox.inbox_queue.handler_name IS 'Who is to handle the message.';
COMMENT ON COLUMN outbox.inbox_queue.source IS 'Where the message came from.';
COMMENT ON TABLE outbox.inbox_done IS
    'Received messages that are done, where that was asked for. Look at outbox.inbox instead.';
COMMENT ON TABLE outbox.inbox_dead IS
    'Received messages that have failed. Look at outbox.inbox instead.';
COMMENT ON COLUMN outbox.inbox_done.handler_name IS 'Who has handled the message.';
COMMENT ON COLUMN outbox.inbox_done.source IS 'Where the message came from.';
COMMENT ON COLUMN outbox.inbox_dead.handler_name IS 'Who was to handle the message.';
COMMENT ON COLUMN outbox.inbox_dead.source IS 'Where the message came from.';

CREATE TABLE outbox.message_deduplication (
    message_id    uuid        NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT message_deduplication_pkey PRIMARY KEY (message_id)
);

CREATE INDEX message_deduplication_seen_idx ON outbox.message_deduplication (first_seen_at);

COMMENT ON TABLE outbox.message_deduplication IS
    'Every message that was received within outbox.deduplication_retention.';
COMMENT ON COLUMN outbox.message_deduplication.message_id IS 'The message.';
COMMENT ON COLUMN outbox.message_deduplication.first_seen_at IS 'When it first came in.';

CREATE VIEW outbox.inbox AS
SELECT q.id, q.message_id, q.source, q.handler_name, q.payload, q.headers,
       q.stream_id, outbox._partition_number(q.stream_id) AS partition_number,
       q.status, q.owner_token, q.locked_until, q.attempts, q.retry_count,
       q.next_attempt_at, q.last_error, q.failure_reason, q.progress,
       q.created_at, q.updated_at, false AS is_processed,
       NULL::timestamptz AS processed_at, NULL::text AS processed_by
  FROM outbox.inbox_queue q
UNION ALL
SELECT h.id, h.message_id, h.source, h.handler_name, h.payload, h.headers,
       h.stream_id, outbox._partition_number(h.stream_id),
       2::smallint, NULL, NULL, h.attempts, h.retry_count,
       NULL, h.last_error, h.failure_reason, h.progress,
       h.created_at, h.processed_at, true, h.processed_at, h.processed_by::text
  FROM outbox.inbox_done h
UNION ALL
SELECT h.id, h.message_id, h.source, h.handler_name, h.payload, h.headers,
       h.stream_id, outbox._partition_number(h.stream_id),
       3::smallint, NULL, NULL, h.attempts, h.retry_count,
       NULL, h.last_error, h.failure_reason, h.progress,
       h.created_at, h.processed_at, false, NULL, NULL
  FROM outbox.inbox_dead h;

COMMENT ON VIEW outbox.inbox IS 'Received messages: waiting, leased, failed, and done if they are kept.';
COMMENT ON COLUMN outbox.inbox.id IS 'The work item.';
COMMENT ON COLUMN outbox.inbox.message_id IS 'The message, as its sender calls it.';
COMMENT ON COLUMN outbox.inbox.source IS 'Where it came from.';
COMMENT ON COLUMN outbox.inbox.handler_name IS 'Who is to handle it.';
COMMENT ON COLUMN outbox.inbox.payload IS 'The message itself.';
COMMENT ON COLUMN outbox.inbox.headers IS 'Whatever travels with the payload.';
COMMENT ON COLUMN outbox.inbox.stream_id IS 'Messages of a stream are handled one after the other.';
COMMENT ON COLUMN outbox.inbox.partition_number IS 'The share of the streams to which its stream belongs.';
COMMENT ON COLUMN outbox.inbox.status IS '0 ready, 1 in progress, 2 done, 3 failed.';
COMMENT ON COLUMN outbox.inbox.owner_token IS 'Who has the lease.';
COMMENT ON COLUMN outbox.inbox.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.inbox.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox.inbox.retry_count IS 'How often it was handed back as not done.';
COMMENT ON COLUMN outbox.inbox.next_attempt_at IS 'Not to be handed out before.';
COMMENT ON COLUMN outbox.inbox.last_error IS 'What was said of the last failed attempt.';
COMMENT ON COLUMN outbox.inbox.failure_reason IS 'Why it failed; 0 if it did not.';
COMMENT ON COLUMN outbox.inbox.progress IS 'Bits of what was achieved.';
COMMENT ON COLUMN outbox.inbox.created_at IS 'When it came in.';
COMMENT ON COLUMN outbox.inbox.updated_at IS 'When it last changed.';
COMMENT ON COLUMN outbox.inbox.is_processed IS 'Whether it is done.';
COMMENT ON COLUMN outbox.inbox.processed_at IS 'When it was done.';
COMMENT ON COLUMN outbox.inbox.processed_by IS 'The owner who has done it.';

-- receive(message_id, handler_name, payload, ...)
--     Puts a message into the inbox, unless it was received before.
CREATE FUNCTION outbox.receive(
    message_id   uuid,
    handler_name text,
    payload      text,
    source       text  DEFAULT NULL,
    stream_id    uuid  DEFAULT NULL,
    headers      jsonb DEFAULT NULL
)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_receive_message';

COMMENT ON FUNCTION outbox.receive(uuid, text, text, text, uuid, jsonb) IS
    'Puts a message into the inbox; false if it was received before.';

-- The twins of the outbox's functions. In what claim_inbox returns, topic is
-- the handler's name, and correlation_id the source.
CREATE FUNCTION outbox.claim_inbox(
    owner_token   uuid,
    lease_seconds integer DEFAULT NULL,
    batch_size    integer DEFAULT NULL,
    namespace     text    DEFAULT NULL,
    handler_names text[]  DEFAULT NULL,
    tenant_id     uuid    DEFAULT NULL,
    max_attempts  integer DEFAULT NULL,
    wait_ms       integer DEFAULT 0
)
RETURNS SETOF outbox.message
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 50
AS 'MODULE_PATHNAME', 'outbox_claim_inbox';

COMMENT ON FUNCTION outbox.claim_inbox(uuid, integer, integer, text, text[], uuid, integer, integer) IS
    'Takes due messages from the inbox and leases them to the owner.';

CREATE FUNCTION outbox.ack_inbox(
    owner_token uuid,
    ids         bigint[],
    attempts    integer[] DEFAULT NULL,
    strict      boolean   DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_ack_inbox';

COMMENT ON FUNCTION outbox.ack_inbox(uuid, bigint[], integer[], boolean) IS
    'Finishes messages of the inbox.';

CREATE FUNCTION outbox.nack_inbox(
    owner_token  uuid,
    ids          bigint[],
    error        text      DEFAULT NULL,
    delay        interval  DEFAULT NULL,
    attempts     integer[] DEFAULT NULL,
    strict       boolean   DEFAULT false,
    max_attempts integer   DEFAULT NULL
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_nack_inbox';

COMMENT ON FUNCTION outbox.nack_inbox(uuid, bigint[], text, interval, integer[], boolean, integer) IS
    'Hands messages of the inbox back to be tried again.';

CREATE FUNCTION outbox.fail_inbox(
    owner_token uuid,
    ids         bigint[],
    error       text      DEFAULT NULL,
    reason      smallint  DEFAULT NULL,
    attempts    integer[] DEFAULT NULL,
    strict      boolean   DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_fail_inbox';

COMMENT ON FUNCTION outbox.fail_inbox(uuid, bigint[], text, smallint, integer[], boolean) IS
    'Fails messages of the inbox for good.';

CREATE FUNCTION outbox.renew_inbox(
    owner_token   uuid,
    ids           bigint[],
    lease_seconds integer   DEFAULT NULL,
    attempts      integer[] DEFAULT NULL
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_renew_inbox';

COMMENT ON FUNCTION outbox.renew_inbox(uuid, bigint[], integer, integer[]) IS
    'Gives leases of the inbox more time.';

CREATE FUNCTION outbox.release_inbox(owner_token uuid, ids bigint[] DEFAULT NULL)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_release_inbox';

COMMENT ON FUNCTION outbox.release_inbox(uuid, bigint[]) IS
    'Gives leases of the inbox back without counting the attempt.';

CREATE FUNCTION outbox.reap_inbox(batch_limit integer DEFAULT NULL)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_reap_inbox';

COMMENT ON FUNCTION outbox.reap_inbox(integer) IS
    'Returns messages of the inbox whose leases have ended to ready.';
