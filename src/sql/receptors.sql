-- receptors.sql: the results of receptors, per message, and the checkpoints of
-- perspectives, per stream. Serves receptor.c, which calls _note_receptors and
-- _note_perspectives; everything else is SQL.

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

CREATE INDEX receptor_processing_last_idx
    ON outbox.receptor_processing ((coalesce(processed_at, started_at)));

COMMENT ON TABLE outbox.receptor_processing IS 'The results of receptors, per message.';
COMMENT ON COLUMN outbox.receptor_processing.message_id IS 'The message.';
COMMENT ON COLUMN outbox.receptor_processing.receptor_name IS 'The receptor.';
COMMENT ON COLUMN outbox.receptor_processing.status IS
    '1 in progress, 2 done, 3 failed, or what the receptor says.';
COMMENT ON COLUMN outbox.receptor_processing.attempts IS 'How often it was started.';
COMMENT ON COLUMN outbox.receptor_processing.error IS 'The error of the last failure.';
COMMENT ON COLUMN outbox.receptor_processing.started_at IS 'When it was first tried.';
COMMENT ON COLUMN outbox.receptor_processing.processed_at IS 'When it was done.';

-- _note_receptors(message_ids, receptor_names, statuses, errors, failed)
--     Writes the receptor sections of process_work_batch, completions and failures in
--     one statement and in the order of the key, so that concurrent calls lock the
--     rows that they share in the same order. If there are several entries for a row,
--     the last one counts, and each of the two sections counts as one attempt. A null
--     status stands for 2 (done) or, in the section of failures, 3 (failed).
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
           (array_agg(coalesce(e.status, CASE WHEN e.failed THEN 3 ELSE 2 END)
                      ORDER BY e.n DESC))[1],
           count(DISTINCT e.failed),
           (array_agg(e.error ORDER BY e.n DESC))[1],
           CASE WHEN NOT (array_agg(e.failed ORDER BY e.n DESC))[1] THEN clock_timestamp() END
      FROM unnest(message_ids, receptor_names, statuses, errors, failed)
           WITH ORDINALITY e(message_id, receptor_name, status, error, failed, n)
     GROUP BY e.message_id, e.receptor_name
     ORDER BY e.message_id, e.receptor_name
    ON CONFLICT ON CONSTRAINT receptor_processing_pkey DO UPDATE
       SET status = excluded.status,
           -- the started attempt is one of them
           attempts = r.attempts + excluded.attempts - CASE WHEN r.status = 1 THEN 1 ELSE 0 END,
           error = excluded.error,
           processed_at = excluded.processed_at
$$;

COMMENT ON FUNCTION outbox._note_receptors(uuid[], text[], integer[], text[], boolean[]) IS
    'Records the results of receptors.';

-- start_receptor(message_id, receptor_name)
--     Records that a receptor starts with a message; false if it is already done.
CREATE FUNCTION outbox.start_receptor(
    message_id    uuid,
    receptor_name text
)
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
    'Records that a receptor starts with a message; false if it is already done.';

-- complete_receptor(message_id, receptor_name, status)
--     Records that a receptor is done with a message. start_receptor need not have
--     been called; if it was, this is the same attempt.
CREATE FUNCTION outbox.complete_receptor(
    message_id    uuid,
    receptor_name text,
    status        integer DEFAULT 2
)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._require('message_id', complete_receptor.message_id),
            outbox._check_name('receptor_name', complete_receptor.receptor_name),
            outbox._note_receptors(
                ARRAY[complete_receptor.message_id], ARRAY[complete_receptor.receptor_name],
                ARRAY[complete_receptor.status], ARRAY[NULL::text], ARRAY[false]);
END
$$;

COMMENT ON FUNCTION outbox.complete_receptor(uuid, text, integer) IS
    'Records that a receptor is done with a message.';

-- fail_receptor(message_id, receptor_name, error)
--     Records that a receptor has failed with a message, which sets status 3. It can
--     be started again.
CREATE FUNCTION outbox.fail_receptor(
    message_id    uuid,
    receptor_name text,
    error         text DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._require('message_id', fail_receptor.message_id),
            outbox._check_name('receptor_name', fail_receptor.receptor_name),
            outbox._note_receptors(
                ARRAY[fail_receptor.message_id], ARRAY[fail_receptor.receptor_name],
                ARRAY[NULL::integer], ARRAY[fail_receptor.error], ARRAY[true]);
END
$$;

COMMENT ON FUNCTION outbox.fail_receptor(uuid, text, text) IS
    'Records that a receptor has failed with a message.';

CREATE TABLE outbox.perspective_checkpoints (
    stream_id        uuid        NOT NULL,
    perspective_name text        NOT NULL,
    last_message_id  uuid,
    status           integer     NOT NULL DEFAULT 0,
    error            text,
    processed_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT perspective_checkpoints_pkey PRIMARY KEY (stream_id, perspective_name)
) WITH (fillfactor = 70);

COMMENT ON TABLE outbox.perspective_checkpoints IS 'The checkpoints of perspectives, per stream.';
COMMENT ON COLUMN outbox.perspective_checkpoints.stream_id IS 'The stream.';
COMMENT ON COLUMN outbox.perspective_checkpoints.perspective_name IS 'The perspective.';
COMMENT ON COLUMN outbox.perspective_checkpoints.last_message_id IS
    'The last message that it has processed.';
COMMENT ON COLUMN outbox.perspective_checkpoints.status IS
    '1 in progress, 2 done, 3 failed, or what the perspective says.';
COMMENT ON COLUMN outbox.perspective_checkpoints.error IS 'The error of the last failure.';
COMMENT ON COLUMN outbox.perspective_checkpoints.processed_at IS
    'When it last advanced, or failed.';

-- _note_perspectives(stream_ids, perspective_names, last_message_ids, ...)
--     Writes the perspective sections of process_work_batch, by the rules of
--     _note_receptors. A null last_message_id leaves the checkpoint in place.
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
           (array_agg(e.last_message_id ORDER BY e.n DESC)
                FILTER (WHERE e.last_message_id IS NOT NULL))[1],
           (array_agg(coalesce(e.status, CASE WHEN e.failed THEN 3 ELSE 2 END)
                      ORDER BY e.n DESC))[1],
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

COMMENT ON FUNCTION outbox._note_perspectives(
    uuid[], text[], uuid[], integer[], text[], boolean[]
) IS 'Records the checkpoints of perspectives.';

-- start_perspective(stream_id, perspective_name)
--     Records that a perspective starts with a stream. Returns the last message that
--     it has processed; null: it has processed none.
CREATE FUNCTION outbox.start_perspective(
    stream_id        uuid,
    perspective_name text
)
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
    'Records that a perspective starts with a stream; returns the last message it has '
    'processed.';

-- complete_perspective(stream_id, perspective_name, last_message_id, status)
--     Records that a perspective has processed a stream up to and including this
--     message, which becomes its checkpoint.
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
            outbox._note_perspectives(
                ARRAY[complete_perspective.stream_id],
                ARRAY[complete_perspective.perspective_name],
                ARRAY[complete_perspective.last_message_id],
                ARRAY[complete_perspective.status], ARRAY[NULL::text], ARRAY[false]);
END
$$;

COMMENT ON FUNCTION outbox.complete_perspective(uuid, text, uuid, integer) IS
    'Records that a perspective has processed a stream up to this message.';

-- fail_perspective(stream_id, perspective_name, error, last_message_id)
--     Records that a perspective has failed with a stream, which sets status 3.
--     Without a last_message_id the checkpoint is unchanged.
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
            outbox._note_perspectives(
                ARRAY[fail_perspective.stream_id], ARRAY[fail_perspective.perspective_name],
                ARRAY[fail_perspective.last_message_id],
                ARRAY[NULL::integer], ARRAY[fail_perspective.error], ARRAY[true]);
END
$$;

COMMENT ON FUNCTION outbox.fail_perspective(uuid, text, text, uuid) IS
    'Records that a perspective has failed with a stream.';
