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

COMMENT ON TABLE outbox.instances IS 'Workers that have given a sign of life lately.';
COMMENT ON COLUMN outbox.instances.instance_id IS 'The instance; also the owner of its leases.';
COMMENT ON COLUMN outbox.instances.service_name IS 'What it is an instance of.';
COMMENT ON COLUMN outbox.instances.host_name IS 'Where it runs.';
COMMENT ON COLUMN outbox.instances.process_id IS 'Its process there.';
COMMENT ON COLUMN outbox.instances.metadata IS 'Whatever it says of itself.';
COMMENT ON COLUMN outbox.instances.started_at IS 'Its first sign of life.';
COMMENT ON COLUMN outbox.instances.last_heartbeat_at IS 'Its last one, to within 100 ms.';

-- Arguments and results of a function cannot have one name; hence a type.
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
COMMENT ON COLUMN outbox.work_item.message_id IS 'The message: what completions and failures name.';
COMMENT ON COLUMN outbox.work_item.topic IS 'What it is about, if it is of the outbox.';
COMMENT ON COLUMN outbox.work_item.handler_name IS 'Who is to handle it, if it is of the inbox.';
COMMENT ON COLUMN outbox.work_item.payload IS 'The message itself.';
COMMENT ON COLUMN outbox.work_item.headers IS 'Whatever travels with the payload.';
COMMENT ON COLUMN outbox.work_item.stream_id IS 'Messages of a stream come one after the other.';
COMMENT ON COLUMN outbox.work_item.partition_number IS 'The partition of the stream.';
COMMENT ON COLUMN outbox.work_item.attempts IS 'How often it was handed out, this time included.';
COMMENT ON COLUMN outbox.work_item.status IS
    'Bits of progress: 1 stored, 2 event stored, 4 published, 32768 failed.';
COMMENT ON COLUMN outbox.work_item.flags IS
    '1 put in by this call, 2 taken over from a lease that has ended, '
    '32 tried again after a failure.';
COMMENT ON COLUMN outbox.work_item.created_at IS 'When it was enqueued, or received.';
COMMENT ON COLUMN outbox.work_item.sequence_order IS 'Ascends along a stream.';

-- process_work_batch(instance_id, ...)
--     A worker's round trip. In this order: the instance is alive; those that
--     are not are removed, and their leases end; completions, failures and
--     renewals, of which the first that names a message counts; receptors;
--     perspectives; new messages; received messages; and a claim of both, in
--     those partitions that are the instance's. Returns what was claimed.
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
    batch_size                  integer DEFAULT 100
)
RETURNS SETOF outbox.work_item
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'outbox_process_work_batch';

COMMENT ON FUNCTION outbox.process_work_batch(
    uuid, text, text, integer, jsonb, jsonb, jsonb, jsonb, jsonb, jsonb, jsonb, jsonb, jsonb, jsonb,
    jsonb, jsonb, jsonb, integer, integer, integer, integer, integer, integer
) IS
    'A worker''s round trip: reports what was done, renews, adds, and takes new work.';

-- heartbeat(instance_id, service_name, host_name, process_id, metadata)
--     Registers an instance, or notes that it is alive. Nothing is written if
--     the same was noted less than 100 ms ago. Null metadata leaves them as
--     they are. process_work_batch does this itself.
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
    'An instance gives a sign of life.';

-- deregister_instance(instance_id)
--     Removes an instance and releases all leases that it has, of the outbox
--     and of the inbox; their attempts do not count. Returns how many.
CREATE FUNCTION outbox.deregister_instance(instance_id uuid)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_deregister_instance';

COMMENT ON FUNCTION outbox.deregister_instance(uuid) IS
    'An instance leaves: its leases are given back. Returns how many there were.';

-- _owns_partition(instance_id, instances, partition_number)
--     Is it this one of the instances that claims from the partition?
CREATE FUNCTION outbox._owns_partition(
    instance_id      uuid,
    instances        uuid[],
    partition_number integer
)
RETURNS boolean
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_owns_partition';

COMMENT ON FUNCTION outbox._owns_partition(uuid, uuid[], integer) IS
    'Whether of these instances it is the one that has the partition.';
