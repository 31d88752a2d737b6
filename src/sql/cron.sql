-- cron.sql: the one way to pg_cron, which may be missing, or live in another
-- database. pg_cron keeps its schedules in one database (cron.database_name),
-- and can be called only there.

CREATE FUNCTION outbox._cron_name(job_name text)
RETURNS text
LANGUAGE sql STABLE STRICT
RETURN 'outbox:' || pg_catalog.current_database() || ':' || job_name;

COMMENT ON FUNCTION outbox._cron_name(text) IS
    'What pg_cron knows a job by.';

-- _cron_database()
--     The database in which pg_cron is; null if it is nowhere.
CREATE FUNCTION outbox._cron_database()
RETURNS name
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'pg_cron') THEN current_database()
            ELSE (SELECT d.datname FROM pg_database d
                   WHERE d.datname = current_setting('cron.database_name', true)
                     AND d.datname <> current_database()) END;

COMMENT ON FUNCTION outbox._cron_database() IS
    'The database in which pg_cron is; null if it is nowhere.';

CREATE FUNCTION outbox._run_elsewhere(database name, statement text)
RETURNS void
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_run_elsewhere';

COMMENT ON FUNCTION outbox._run_elsewhere(name, text) IS
    'Runs a statement in another database, in a transaction of its own.';

-- _cron_call(statement)
--     Runs a statement where pg_cron is. In another database it is committed
--     at once, whatever becomes of the caller's transaction.
CREATE FUNCTION outbox._cron_call(statement text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    place name := outbox._cron_database();
BEGIN
    IF place IS NULL THEN
        RAISE EXCEPTION 'pg_cron is not installed'
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'Add pg_cron to shared_preload_libraries, and run CREATE EXTENSION pg_cron in the database that cron.database_name names.';
    ELSIF place = current_database() THEN
        EXECUTE statement;
    ELSE
        PERFORM outbox._run_elsewhere(place, statement);
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._cron_call(text) IS
    'Runs a statement where pg_cron is.';

CREATE FUNCTION outbox._cron_schedule(name text, cron_schedule text, command text)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
RETURN outbox._cron_call(CASE WHEN outbox._cron_database() = current_database()
    THEN format('SELECT cron.schedule(%L, %L, %L)', name, cron_schedule, command)
    ELSE format('SELECT cron.schedule_in_database(%L, %L, %L, %L)', name, cron_schedule, command, current_database()) END);

COMMENT ON FUNCTION outbox._cron_schedule(text, text, text) IS
    'Schedules a command for this database, instead of the one of the same name.';

CREATE FUNCTION outbox._cron_unschedule(name text)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
RETURN outbox._cron_call(format('SELECT cron.unschedule(j.jobid) FROM cron.job j WHERE j.jobname = %L', name));

COMMENT ON FUNCTION outbox._cron_unschedule(text) IS
    'Ends a schedule, if there is one of that name.';
