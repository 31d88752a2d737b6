-- batch.sql: instances, and a whole round trip in one call. Serves
-- sql_batch.c, sql_instance.c, and instance.c, which knows the columns by their
-- numbers.

CREATE TABLE outbox.instances (
    instance_id       uuid        NOT NULL,
    service_name      text        NOT NULL,
    host_name         text        NOT NULL,
    process_id        integer     NOT NULL,
    metadata          jsonb,
    started_at        timestamptz NOT NULL,
    last_heartbeat_at timestamptz NOT NULL,
    CONSTRAINT instances_pkey PRIMARY KEY (instance_id)
) WITH (fillfactor = 50);

COMMENT ON TABLE outbox.instances IS 'Workers that have sent a heartbeat recently.';
COMMENT ON COLUMN outbox.instances.instance_id IS 'The instance; also the owner of its leases.';
COMMENT ON COLUMN outbox.instances.service_name IS 'The service that it is an instance of.';
COMMENT ON COLUMN outbox.instances.host_name IS 'The host on which it runs.';
COMMENT ON COLUMN outbox.instances.process_id IS 'Its process id on that host.';
COMMENT ON COLUMN outbox.instances.metadata IS 'Additional information from the instance.';
COMMENT ON COLUMN outbox.instances.started_at IS 'When its first heartbeat was received.';
COMMENT ON COLUMN outbox.instances.last_heartbeat_at IS
    'When its last heartbeat was received, to within 100 ms.';

-- A type, because arguments and result columns of a function cannot have the same
-- name.
CREATE TYPE outbox.work_item AS (
    source           text,
    id               bigint,
    message_id       uuid,
    topic            text,
    handler_name     text,
    payload          text,
    headers          jsonb,
    stream_id        uuid,
    partition_number integer,
    attempts         integer,
    status           integer,
    flags            integer,
    created_at       timestamptz,
    sequence_order   bigint
);

COMMENT ON TYPE outbox.work_item IS 'A message as process_work_batch hands it out.';
COMMENT ON COLUMN outbox.work_item.source IS 'outbox or inbox.';
COMMENT ON COLUMN outbox.work_item.id IS 'The work item.';
COMMENT ON COLUMN outbox.work_item.message_id IS
    'The message; completions and failures refer to it by this id.';
COMMENT ON COLUMN outbox.work_item.topic IS 'The topic, if it is from the outbox.';
COMMENT ON COLUMN outbox.work_item.handler_name IS 'The handler, if it is from the inbox.';
COMMENT ON COLUMN outbox.work_item.payload IS 'The payload.';
COMMENT ON COLUMN outbox.work_item.headers IS 'A JSON object that is delivered with the payload.';
COMMENT ON COLUMN outbox.work_item.stream_id IS 'The stream; its messages are delivered in order.';
COMMENT ON COLUMN outbox.work_item.partition_number IS 'The partition of the stream.';
COMMENT ON COLUMN outbox.work_item.attempts IS 'How often it was handed out, this time included.';
COMMENT ON COLUMN outbox.work_item.status IS
    'Bits of progress: 1 stored, 2 event stored, 4 published, 32768 failed.';
COMMENT ON COLUMN outbox.work_item.flags IS
    '1 enqueued by this call, 2 taken over after its lease had ended, 32 retried after a '
    'failure.';
COMMENT ON COLUMN outbox.work_item.created_at IS 'When it was enqueued, or received.';
COMMENT ON COLUMN outbox.work_item.sequence_order IS 'Ascending within a stream.';

-- process_work_batch(instance_id, ...)
--     A worker's round trip. In this order: a heartbeat of the instance; silent
--     instances are removed, and their leases end; completions, failures and
--     renewals, of which the first that names a message counts; receptors;
--     perspectives; new messages; received messages; and a claim of both, in the
--     partitions that the instance owns. Returns what was claimed. With a
--     subscription it claims the deliveries of that instead of messages that were
--     enqueued.
CREATE FUNCTION outbox.process_work_batch(
    instance_id                 uuid,
    service_name                text,
    host_name                   text,
    process_id                  integer,
    metadata                    jsonb   DEFAULT NULL,
    outbox_completions          jsonb   DEFAULT '[]',
    outbox_failures             jsonb   DEFAULT '[]',
    inbox_completions           jsonb   DEFAULT '[]',
    inbox_failures              jsonb   DEFAULT '[]',
    receptor_completions        jsonb   DEFAULT '[]',
    receptor_failures           jsonb   DEFAULT '[]',
    perspective_completions     jsonb   DEFAULT '[]',
    perspective_failures        jsonb   DEFAULT '[]',
    new_outbox_messages         jsonb   DEFAULT '[]',
    new_inbox_messages          jsonb   DEFAULT '[]',
    renew_outbox_lease_ids      jsonb   DEFAULT '[]',
    renew_inbox_lease_ids       jsonb   DEFAULT '[]',
    flags                       integer DEFAULT 0,
    partition_count             integer DEFAULT 10000,
    max_partitions_per_instance integer DEFAULT NULL,
    lease_seconds               integer DEFAULT 300,
    stale_threshold_seconds     integer DEFAULT 600,
    batch_size                  integer DEFAULT 100,
    subscription                text    DEFAULT NULL
)
RETURNS SETOF outbox.work_item
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'outbox_process_work_batch';

COMMENT ON FUNCTION outbox.process_work_batch(
    uuid, text, text, integer, jsonb, jsonb, jsonb, jsonb, jsonb, jsonb, jsonb, jsonb, jsonb, jsonb,
    jsonb, jsonb, jsonb, integer, integer, integer, integer, integer, integer, text
) IS 'A worker''s round trip: reports results, renews leases, enqueues, and claims new work.';

-- heartbeat(instance_id, service_name, host_name, process_id, metadata)
--     Registers an instance, or records that it is alive. Nothing is written if the
--     same was recorded less than 100 ms ago. Null metadata leaves the metadata
--     unchanged. process_work_batch does this itself.
CREATE FUNCTION outbox.heartbeat(
    instance_id  uuid,
    service_name text,
    host_name    text,
    process_id   integer,
    metadata     jsonb DEFAULT NULL
)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_heartbeat';

COMMENT ON FUNCTION outbox.heartbeat(uuid, text, text, integer, jsonb) IS
    'Records a heartbeat of an instance.';

-- deregister_instance(instance_id)
--     Removes an instance and releases all leases that it has, of the outbox
--     and of the inbox; their attempts do not count. Returns how many.
CREATE FUNCTION outbox.deregister_instance(instance_id uuid)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_deregister_instance';

COMMENT ON FUNCTION outbox.deregister_instance(uuid) IS
    'Removes an instance, and releases its leases. Returns how many there were.';

-- _owns_partition(instance_id, instances, partition_number)
--     Returns whether this instance, of all these, owns the partition.
CREATE FUNCTION outbox._owns_partition(
    instance_id      uuid,
    instances        uuid[],
    partition_number integer
)
RETURNS boolean
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_owns_partition';

COMMENT ON FUNCTION outbox._owns_partition(uuid, uuid[], integer) IS
    'Whether this instance owns the partition, given all live instances.';
