-- schema.sql: the schema, the message sequence, and the names of statuses and
-- reasons.

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_namespace n WHERE n.nspname = 'outbox') THEN
        RAISE EXCEPTION 'schema "outbox" already exists'
            USING ERRCODE = 'duplicate_schema',
                  DETAIL = 'The extension creates this schema itself, so that no other '
                           'role owns what is in it.',
                  HINT = 'Drop the schema if it is empty, or give it another name: '
                         'ALTER SCHEMA outbox RENAME TO ...; '
                         'then run CREATE EXTENSION outbox again.';
    END IF;
END
$$;

CREATE SCHEMA outbox;

COMMENT ON SCHEMA outbox IS 'Transactional outbox, work queue and fan-in joins.';

-- _library()
--     Returns the version of the loaded library, whether it was preloaded, and its
--     lanes in shared memory.
CREATE FUNCTION outbox._library(
    OUT version      text,
    OUT preloaded    boolean,
    OUT lanes        integer,
    OUT lanes_in_use integer
)
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_library';

COMMENT ON FUNCTION outbox._library() IS
    'The version of the loaded library, and its shared memory.';

-- _require_library()
--     Raises an error if the version being installed is newer than the loaded
--     library. Must be the first statement of each upgrade script: the server stores
--     the new version before it runs the script.
CREATE FUNCTION outbox._require_library()
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    loaded text := (SELECT l.version FROM outbox._library() l);
    wanted text := (SELECT e.extversion FROM pg_extension e WHERE e.extname = 'outbox');
BEGIN
    IF string_to_array(loaded, '.')::integer[] < string_to_array(wanted, '.')::integer[] THEN
        RAISE EXCEPTION 'version % of outbox cannot be installed while the library of version % '
                        'is loaded', wanted, loaded
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Restart the server if outbox is in shared_preload_libraries; else '
                         'connect again. Then repeat the command.';
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._require_library() IS
    'Raises an error if the SQL version is newer than the loaded library.';

SELECT outbox._require_library();

-- One sequence numbers messages and their places in streams.
CREATE SEQUENCE outbox.message_id_seq AS bigint;

COMMENT ON SEQUENCE outbox.message_id_seq IS
    'Ids of messages, and their order within a stream.';

-- status_name(status)
--     Returns the name of the status of a message, an inbox message, a timer or
--     a run; null if there is no such status.
CREATE FUNCTION outbox.status_name(status integer)
RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE status
    WHEN 0 THEN 'ready'
    WHEN 1 THEN 'in progress'
    WHEN 2 THEN 'done'
    WHEN 3 THEN 'failed'
END;

COMMENT ON FUNCTION outbox.status_name(integer) IS
    'The name of a status: 0 ready, 1 in progress, 2 done, 3 failed.';

-- reason_name(reason)
--     Returns the name of a reason of failure; null if there is no such reason.
CREATE FUNCTION outbox.reason_name(reason integer)
RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE reason
    WHEN 0 THEN 'none'
    WHEN 1 THEN 'transport not ready'
    WHEN 2 THEN 'transport error'
    WHEN 3 THEN 'serialization'
    WHEN 4 THEN 'validation'
    WHEN 5 THEN 'max attempts exceeded'
    WHEN 6 THEN 'lease or message expired'
    WHEN 7 THEN 'event storage'
    WHEN 8 THEN 'throttled'
    WHEN 9 THEN 'cancelled'
    WHEN 99 THEN 'unknown'
END;

COMMENT ON FUNCTION outbox.reason_name(integer) IS
    'The name of a reason of failure, as in failure_reason.';
