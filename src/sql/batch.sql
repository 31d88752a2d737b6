-- batch.sql: instances, and a whole round trip in one call. Serves
-- sql_batch.c, batch.c and instance.c.

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

CREATE TABLE outbox.receptor_processing (
    message_id    uuid        NOT NULL,
    receptor_name text        NOT NULL,
    status        integer     NOT NULL DEFAULT 0,
    attempts      integer     NOT NULL DEFAULT 0,
    error         text,
    started_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    processed_at  timestamptz,
    CONSTRAINT receptor_processing_pkey PRIMARY KEY (message_id, receptor_name)
);

COMMENT ON TABLE outbox.receptor_processing IS 'What receptors have made of messages.';
COMMENT ON COLUMN outbox.receptor_processing.message_id IS 'The message.';
COMMENT ON COLUMN outbox.receptor_processing.receptor_name IS 'The receptor.';
COMMENT ON COLUMN outbox.receptor_processing.status IS '1 in progress, 2 done, 3 failed, or what the receptor says.';
COMMENT ON COLUMN outbox.receptor_processing.attempts IS 'How often it was tried.';
COMMENT ON COLUMN outbox.receptor_processing.error IS 'What went wrong the last time.';
COMMENT ON COLUMN outbox.receptor_processing.started_at IS 'When it was first tried.';
COMMENT ON COLUMN outbox.receptor_processing.processed_at IS 'When it was done.';

CREATE TABLE outbox.perspective_checkpoints (
    stream_id        uuid        NOT NULL,
    perspective_name text        NOT NULL,
    last_message_id  uuid,
    status           integer     NOT NULL DEFAULT 0,
    error            text,
    processed_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT perspective_checkpoints_pkey PRIMARY KEY (stream_id, perspective_name)
) WITH (fillfactor = 70);

COMMENT ON TABLE outbox.perspective_checkpoints IS 'How far perspectives have come with streams.';
COMMENT ON COLUMN outbox.perspective_checkpoints.stream_id IS 'The stream.';
COMMENT ON COLUMN outbox.perspective_checkpoints.perspective_name IS 'The perspective.';
COMMENT ON COLUMN outbox.perspective_checkpoints.last_message_id IS 'The last message it has taken in.';
COMMENT ON COLUMN outbox.perspective_checkpoints.status IS '1 in progress, 2 done, 3 failed, or what the perspective says.';
COMMENT ON COLUMN outbox.perspective_checkpoints.error IS 'What went wrong the last time.';
COMMENT ON COLUMN outbox.perspective_checkpoints.processed_at IS 'When it last came on, or failed.';

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
COMMENT ON COLUMN outbox.work_item.status IS 'Bits of progress: 1 stored, 2 event stored, 4 published, 32768 failed.';
COMMENT ON COLUMN outbox.work_item.flags IS '1 put in by this call, 2 taken over from a lease that has ended, 32 tried again after a failure.';
COMMENT ON COLUMN outbox.work_item.created_at IS 'When it was enqueued, or received.';
COMMENT ON COLUMN outbox.work_item.sequence_order IS 'Ascends along a stream.';

-- process_work_batch(instance_id, ...)
--     A worker's round trip. In this order: the instance is alive; those that
--     are not are removed, and their leases end; completions; failures;
--     receptors; perspectives; renewals; new messages; received messages; and
--     a claim of both, in those partitions that are the instance's. Returns
--     what was claimed.
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

COMMENT ON FUNCTION outbox.process_work_batch(uuid, text, text, integer, jsonb, jsonb, jsonb, jsonb, jsonb, jsonb, jsonb, jsonb, jsonb, jsonb, jsonb, jsonb, jsonb, integer, integer, integer, integer, integer, integer) IS
    'A worker''s round trip: reports what was done, renews, adds, and takes new work.';

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

CREATE FUNCTION outbox.deregister_instance(instance_id uuid)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_deregister_instance';

COMMENT ON FUNCTION outbox.deregister_instance(uuid) IS
    'An instance leaves: its leases are given back. Returns how many there were.';

CREATE FUNCTION outbox._owns_partition(instance_id uuid, instances uuid[], partition_number integer)
RETURNS boolean
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_owns_partition';

COMMENT ON FUNCTION outbox._owns_partition(uuid, uuid[], integer) IS
    'Whether of these instances it is the one that has the partition.';

-- The sections of process_work_batch about receptors and perspectives, what is
-- done and what has failed together, so that all who write the same rows do so
-- in the same order. Of several entries about the same the last one counts, and
-- a section is an attempt.
-- Without a status it is 2 or, if it has failed, 3.
CREATE FUNCTION outbox._note_receptors(
    message_ids    uuid[],
    receptor_names text[],
    statuses       integer[],
    errors         text[],
    failed         boolean[]
)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO outbox.receptor_processing AS r
        (message_id, receptor_name, status, attempts, error, processed_at)
    SELECT e.message_id, e.receptor_name,
           (array_agg(coalesce(e.status, CASE WHEN e.failed THEN 3 ELSE 2 END) ORDER BY e.n DESC))[1],
           count(DISTINCT e.failed),
           (array_agg(e.error ORDER BY e.n DESC))[1],
           CASE WHEN NOT (array_agg(e.failed ORDER BY e.n DESC))[1] THEN clock_timestamp() END
      FROM unnest(message_ids, receptor_names, statuses, errors, failed)
           WITH ORDINALITY e(message_id, receptor_name, status, error, failed, n)
     GROUP BY e.message_id, e.receptor_name
     ORDER BY e.message_id, e.receptor_name
    ON CONFLICT ON CONSTRAINT receptor_processing_pkey DO UPDATE
       SET status = excluded.status,
           -- the attempt that was started is one of them
           attempts = r.attempts + excluded.attempts - CASE WHEN r.status = 1 THEN 1 ELSE 0 END,
           error = excluded.error,
           processed_at = excluded.processed_at
$$;

COMMENT ON FUNCTION outbox._note_receptors(uuid[], text[], integer[], text[], boolean[]) IS
    'Writes down what receptors have made of messages.';

CREATE FUNCTION outbox._note_perspectives(
    stream_ids        uuid[],
    perspective_names text[],
    last_message_ids  uuid[],
    statuses          integer[],
    errors            text[],
    failed            boolean[]
)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO outbox.perspective_checkpoints AS p
        (stream_id, perspective_name, last_message_id, status, error)
    SELECT e.stream_id, e.perspective_name,
           (array_agg(e.last_message_id ORDER BY e.n DESC) FILTER (WHERE e.last_message_id IS NOT NULL))[1],
           (array_agg(coalesce(e.status, CASE WHEN e.failed THEN 3 ELSE 2 END) ORDER BY e.n DESC))[1],
           (array_agg(e.error ORDER BY e.n DESC))[1]
      FROM unnest(stream_ids, perspective_names, last_message_ids, statuses, errors, failed)
           WITH ORDINALITY e(stream_id, perspective_name, last_message_id, status, error, failed, n)
     GROUP BY e.stream_id, e.perspective_name
     ORDER BY e.stream_id, e.perspective_name
    ON CONFLICT ON CONSTRAINT perspective_checkpoints_pkey DO UPDATE
       SET last_message_id = coalesce(excluded.last_message_id, p.last_message_id),
           status = excluded.status,
           error = excluded.error,
           processed_at = excluded.processed_at
$$;

COMMENT ON FUNCTION outbox._note_perspectives(uuid[], text[], uuid[], integer[], text[], boolean[]) IS
    'Writes down how far perspectives have come.';

-- start_receptor(message_id, receptor_name)
--     A receptor begins with a message; false if it is done with it already.
CREATE FUNCTION outbox.start_receptor(message_id uuid, receptor_name text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._require('message_id', start_receptor.message_id),
            outbox._check_name('receptor_name', start_receptor.receptor_name);
    INSERT INTO outbox.receptor_processing AS r (message_id, receptor_name, status, attempts)
    VALUES (start_receptor.message_id, start_receptor.receptor_name, 1, 1)
    ON CONFLICT ON CONSTRAINT receptor_processing_pkey DO UPDATE
       SET status = 1, attempts = r.attempts + 1
     WHERE r.status <> 2;
    RETURN FOUND;
END
$$;

COMMENT ON FUNCTION outbox.start_receptor(uuid, text) IS
    'A receptor begins with a message; false if it is done with it already.';

CREATE FUNCTION outbox.complete_receptor(message_id uuid, receptor_name text, status integer DEFAULT 2)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._require('message_id', complete_receptor.message_id),
            outbox._check_name('receptor_name', complete_receptor.receptor_name),
            outbox._note_receptors(ARRAY[complete_receptor.message_id], ARRAY[complete_receptor.receptor_name],
                                   ARRAY[complete_receptor.status], ARRAY[NULL::text], ARRAY[false]);
END
$$;

COMMENT ON FUNCTION outbox.complete_receptor(uuid, text, integer) IS
    'A receptor is done with a message.';

CREATE FUNCTION outbox.fail_receptor(message_id uuid, receptor_name text, error text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._require('message_id', fail_receptor.message_id),
            outbox._check_name('receptor_name', fail_receptor.receptor_name),
            outbox._note_receptors(ARRAY[fail_receptor.message_id], ARRAY[fail_receptor.receptor_name],
                                   ARRAY[NULL::integer], ARRAY[fail_receptor.error], ARRAY[true]);
END
$$;

COMMENT ON FUNCTION outbox.fail_receptor(uuid, text, text) IS
    'A receptor has failed with a message.';

-- start_perspective(stream_id, perspective_name)
--     A perspective begins with a stream, after this message; null: from the
--     start.
CREATE FUNCTION outbox.start_perspective(stream_id uuid, perspective_name text)
RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    after uuid;
BEGIN
    PERFORM outbox._require('stream_id', start_perspective.stream_id),
            outbox._check_name('perspective_name', start_perspective.perspective_name);
    INSERT INTO outbox.perspective_checkpoints AS p (stream_id, perspective_name, status)
    VALUES (start_perspective.stream_id, start_perspective.perspective_name, 1)
    ON CONFLICT ON CONSTRAINT perspective_checkpoints_pkey DO UPDATE SET status = 1
    RETURNING p.last_message_id INTO after;
    RETURN after;
END
$$;

COMMENT ON FUNCTION outbox.start_perspective(uuid, text) IS
    'A perspective begins with a stream; returns the last message it has taken in.';

CREATE FUNCTION outbox.complete_perspective(
    stream_id        uuid,
    perspective_name text,
    last_message_id  uuid,
    status           integer DEFAULT 2
)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._require('stream_id', complete_perspective.stream_id),
            outbox._check_name('perspective_name', complete_perspective.perspective_name),
            outbox._require('last_message_id', complete_perspective.last_message_id),
            outbox._note_perspectives(ARRAY[complete_perspective.stream_id], ARRAY[complete_perspective.perspective_name],
                                      ARRAY[complete_perspective.last_message_id], ARRAY[complete_perspective.status],
                                      ARRAY[NULL::text], ARRAY[false]);
END
$$;

COMMENT ON FUNCTION outbox.complete_perspective(uuid, text, uuid, integer) IS
    'A perspective has taken in a stream up to this message.';

CREATE FUNCTION outbox.fail_perspective(
    stream_id        uuid,
    perspective_name text,
    error            text DEFAULT NULL,
    last_message_id  uuid DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._require('stream_id', fail_perspective.stream_id),
            outbox._check_name('perspective_name', fail_perspective.perspective_name),
            outbox._note_perspectives(ARRAY[fail_perspective.stream_id], ARRAY[fail_perspective.perspective_name],
                                      ARRAY[fail_perspective.last_message_id], ARRAY[NULL::integer],
                                      ARRAY[fail_perspective.error], ARRAY[true]);
END
$$;

COMMENT ON FUNCTION outbox.fail_perspective(uuid, text, text, uuid) IS
    'A perspective has failed with a stream.';
