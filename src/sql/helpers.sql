-- helpers.sql: functions that the other parts call: argument checks, ids, the
-- log, and waking the worker. Serves sql_admin.c and sql_join.c.
--
-- EXECUTE on them is granted to no role. They are called only by SECURITY DEFINER
-- functions, as the owner of the extension; a function that runs with the privileges
-- of its caller must not use them.

-- _require(what, value)
--     Raises 22004 if the value is null; "what" is the name of the argument.
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

COMMENT ON FUNCTION outbox._require(text, anyelement) IS 'Raises an error if the argument is null.';

-- _check_name(what, value)
--     Raises 22004 if the value is null, and 22023 if it is empty or longer than 255
--     characters; "what" is the name of the argument.
CREATE FUNCTION outbox._check_name(
    what  text,
    value text
)
RETURNS void
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_check_name_sql';

COMMENT ON FUNCTION outbox._check_name(text, text) IS
    'Raises an error if a name is null, empty or too long.';

-- _check_limit(what, value)
--     Raises 22023 if the value is less than 1; "what" is the name of the argument. A
--     null is accepted: it stands for the default.
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
    'Raises an error if the argument is less than 1.';

-- _writes(function)
--     Raises an error in a read-only transaction, during recovery, and in a parallel
--     worker. The argument is the name of the function that writes.
CREATE FUNCTION outbox._writes(function text)
RETURNS void
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_writes';

COMMENT ON FUNCTION outbox._writes(text) IS 'Raises an error if the transaction cannot write.';

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

COMMENT ON FUNCTION outbox._uuid7() IS 'A new UUID of version 7, which is ordered by time.';

-- _wake_worker()
--     Wakes the background worker of this database when the transaction commits.
CREATE FUNCTION outbox._wake_worker()
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_wake_worker';

COMMENT ON FUNCTION outbox._wake_worker() IS
    'Wakes the background worker of this database when the transaction commits.';

-- _is_replicated()
--     Returns whether logical replication writes tables of unfinished work. Then the
--     publisher decides about these rows.
CREATE FUNCTION outbox._is_replicated()
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_is_replicated';

COMMENT ON FUNCTION outbox._is_replicated() IS
    'Whether logical replication writes tables of unfinished work.';

-- _is_loading()
--     Returns whether another session is loading a dump into this database: it has
--     inserted rows by plain SQL in the way of pg_dump, and is still connected, or
--     the triggers that would detect this are disabled. Also true if rows come by
--     logical replication.
CREATE FUNCTION outbox._is_loading()
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_is_loading';

COMMENT ON FUNCTION outbox._is_loading() IS
    'Whether rows come from elsewhere: by a dump that another session loads, or by replication.';

-- _loads()
--     BEFORE INSERT on tables that only the functions of the extension write: any
--     other session that inserts is loading a dump.
CREATE FUNCTION outbox._loads()
RETURNS trigger
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_loads';

COMMENT ON FUNCTION outbox._loads() IS 'Records that this session is loading a dump.';

-- _is_own_fault(state)
--     Returns whether an error with this SQLSTATE was caused by the thing that was
--     tried, a wait or a timer. If it was caused by the server, or by a lock of
--     another session, the try must not count as an attempt.
CREATE FUNCTION outbox._is_own_fault(state text)
RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN pg_catalog.left(state, 2)
       <> ALL ('{08,0A,25,40,53,55,57,58,F0,XX}'::pg_catalog.text[]);

COMMENT ON FUNCTION outbox._is_own_fault(text) IS
    'Whether an error was caused by the thing that was tried.';

-- _is_blocked(state)
--     Returns whether an error with this SQLSTATE means that another transaction
--     holds a lock. That transaction may end at any moment, or in an hour.
CREATE FUNCTION outbox._is_blocked(state text)
RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN state = ANY ('{55P03,40P01}'::pg_catalog.text[]);

COMMENT ON FUNCTION outbox._is_blocked(text) IS
    'Whether an error means that another transaction holds a lock.';
