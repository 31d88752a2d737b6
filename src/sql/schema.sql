-- schema.sql: the schema, and the words of the contract.

CREATE SCHEMA outbox;

COMMENT ON SCHEMA outbox IS 'Transactional outbox, work queue and fan-in joins.';

-- One sequence numbers messages and their places in streams.
CREATE SEQUENCE outbox.message_id_seq AS bigint;

COMMENT ON SEQUENCE outbox.message_id_seq IS
    'Ids of messages, and their order within a stream.';

-- status_name(status)
--     Returns the name of the status of a message, an inbox message, a timer or
--     a run; null if there is no such status.
CREATE FUNCTION outbox.status_name(status smallint)
RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE status
    WHEN 0 THEN 'ready'
    WHEN 1 THEN 'in progress'
    WHEN 2 THEN 'done'
    WHEN 3 THEN 'failed'
END;

COMMENT ON FUNCTION outbox.status_name(smallint) IS
    'The name of a status: 0 ready, 1 in progress, 2 done, 3 failed.';
