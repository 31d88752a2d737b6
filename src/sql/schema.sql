-- schema.sql: the schema, and the words of the contract.

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_namespace n WHERE n.nspname = 'outbox') THEN
        RAISE EXCEPTION 'schema "outbox" exists already'
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
