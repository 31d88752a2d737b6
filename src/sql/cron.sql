-- cron.sql: the one way to pg_cron, which may be missing, or live in another
-- database. pg_cron keeps its schedules in one database (cron.database_name),
-- and only there can be called.

CREATE FUNCTION outbox._cron_require()
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'pg_cron') THEN
        RAISE EXCEPTION 'pg_cron is not installed in this database'
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'Add pg_cron to shared_preload_libraries, set cron.database_name to this database, and run CREATE EXTENSION pg_cron.';
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._cron_require() IS
    'Refuses to go on without pg_cron.';

CREATE FUNCTION outbox._cron_schedule(name text, cron_schedule text, command text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    id bigint;
BEGIN
    PERFORM outbox._cron_require();
    EXECUTE 'SELECT cron.schedule($1, $2, $3)' INTO id
      USING name, cron_schedule, command;
    RETURN id;
END
$$;

COMMENT ON FUNCTION outbox._cron_schedule(text, text, text) IS
    'Schedules a command with pg_cron, instead of the one of the same name.';

CREATE FUNCTION outbox._cron_unschedule(name text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found_it boolean;
BEGIN
    PERFORM outbox._cron_require();
    EXECUTE 'SELECT count(cron.unschedule(j.jobid)) > 0
               FROM cron.job j WHERE j.jobname = $1' INTO found_it
      USING name;
    RETURN found_it;
END
$$;

COMMENT ON FUNCTION outbox._cron_unschedule(text) IS
    'Ends a schedule of pg_cron; false if there was none of that name.';
