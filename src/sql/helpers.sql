-- helpers.sql: functions that the other parts call: argument checks, ids, the
-- log, and waking the worker. Serves sql_admin.c and sql_join.c.
--
-- No role is granted EXECUTE on them. They are reached only through functions
-- that are SECURITY DEFINER, which call them as the owner of the extension; a
-- function that runs with the rights of its caller must not use them.

-- _require(what, value)
--     Raises 22004 if the argument called what is null.
CREATE FUNCTION outbox._require(
    what  text,
    value anyelement
)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF value IS NULL THEN
        RAISE EXCEPTION '% must not be null', what
            USING ERRCODE = 'null_value_not_allowed';
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._require(text, anyelement) IS 'Refuses a null.';

-- _check_name(what, value)
--     Raises 22004 if the argument called what is null, and 22023 if it is
--     empty or longer than 255 characters.
CREATE FUNCTION outbox._check_name(
    what  text,
    value text
)
RETURNS void
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_check_name_sql';

COMMENT ON FUNCTION outbox._check_name(text, text) IS
    'Refuses a name that is null, empty or too long.';

-- _check_limit(what, value)
--     Raises 22023 if the argument called what is less than 1. A null passes:
--     it stands for the default.
CREATE FUNCTION outbox._check_limit(
    what  text,
    value integer
)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF value < 1 THEN
        RAISE EXCEPTION '% must be at least 1', what
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._check_limit(text, integer) IS
    'Refuses a number that is less than 1.';

-- _writes(function)
--     Raises an error in a read-only transaction, during recovery and in a
--     parallel worker. The argument is the name of the function that writes.
CREATE FUNCTION outbox._writes(function text)
RETURNS void
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_writes';

COMMENT ON FUNCTION outbox._writes(text) IS
    'Refuses to go on where nothing may be written.';

-- _log(message)
--     Logs an operation. The message must contain no payload.
CREATE FUNCTION outbox._log(message text)
RETURNS void
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_log_sql';

COMMENT ON FUNCTION outbox._log(text) IS 'Logs an operation at outbox.log_level.';

-- _uuid7()
--     Returns a new UUID of version 7, which sort by the time of creation.
CREATE FUNCTION outbox._uuid7()
RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_uuid7_sql';

COMMENT ON FUNCTION outbox._uuid7() IS 'A new UUID, in the order of time.';

-- _wake_worker()
--     Wakes the background worker of this database when the transaction commits.
CREATE FUNCTION outbox._wake_worker()
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_wake_worker';

COMMENT ON FUNCTION outbox._wake_worker() IS
    'Has the background worker look after this database when we have committed.';

-- _is_loading()
--     Does another session load a dump into this database? It has inserted rows by
--     plain SQL as pg_dump writes them, and is still connected; or the triggers
--     that would tell so are disabled.
CREATE FUNCTION outbox._is_loading()
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_is_loading';

COMMENT ON FUNCTION outbox._is_loading() IS
    'Whether another session is loading a dump into this database.';

-- _loads()
--     BEFORE INSERT on tables that only the functions of the extension write: who
--     else does, loads a dump.
CREATE FUNCTION outbox._loads()
RETURNS trigger
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_loads';

COMMENT ON FUNCTION outbox._loads() IS
    'Notes that this session loads a dump.';

-- _is_own_fault(state)
--     Is an error with this SQLSTATE the fault of the thing that was tried, a wait or
--     a timer? If it is the server's, or another session's, who has something locked,
--     trying again must not count as an attempt.
CREATE FUNCTION outbox._is_own_fault(state text)
RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN pg_catalog.left(state, 2)
       <> ALL ('{08,0A,25,40,53,55,57,58,F0,XX}'::pg_catalog.text[]);

COMMENT ON FUNCTION outbox._is_own_fault(text) IS
    'Whether an error is the fault of what was tried.';
