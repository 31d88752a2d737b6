-- cron.sql: the one way to pg_cron, which may be missing, or live in another
-- database. pg_cron keeps its schedules in one database (cron.database_name),
-- and can be called only there. Serves sql_admin.c.
--
-- Schedules are in the name of who made them: in pg_cron's own database of the
-- extension's owner, elsewhere of who was connected, so that nobody has
-- pg_cron do what he could not do himself. To end one, whoever made it, is the
-- extension's right.

-- _cron_fits(name)
--     pg_cron's names have 63 bytes at most; it cuts longer ones off, and then
--     they are the same. Those have a digest instead.
CREATE FUNCTION outbox._cron_fits(name text)
RETURNS text
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN octet_length(name) < 64 THEN name
            ELSE split_part(name, ':', 1) || ':'
                 || left(encode(sha256(convert_to(name, getdatabaseencoding())), 'hex'), 40) END;

COMMENT ON FUNCTION outbox._cron_fits(text) IS
    'A name that pg_cron can take.';

-- _cron_name(job_name)
--     Returns the name under which pg_cron has the schedule of a job. Where the
--     database has a colon in its name, that could be the name of another one's
--     job, so there it is a digest that tells the two parts apart.
CREATE FUNCTION outbox._cron_name(job_name text)
RETURNS text
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN strpos(current_database(), ':') = 0
            THEN outbox._cron_fits('outbox:' || current_database() || ':' || job_name)
            ELSE 'outbox:' || left(encode(sha256(convert_to(
                     length(current_database()) || ':' || current_database() || ':' || job_name,
                     getdatabaseencoding())), 'hex'), 40) END;

COMMENT ON FUNCTION outbox._cron_name(text) IS
    'What pg_cron knows a job by.';

-- _cron_database()
--     The database in which pg_cron is; null if it is nowhere.
CREATE FUNCTION outbox._cron_database()
RETURNS name
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'pg_cron')
            THEN current_database()
            ELSE (SELECT d.datname FROM pg_database d
                   WHERE d.datname = current_setting('cron.database_name', true)
                     AND d.datname <> current_database()) END;

COMMENT ON FUNCTION outbox._cron_database() IS
    'The database in which pg_cron is; null if it is nowhere.';

-- _run_elsewhere(database, statement, as_owner)
--     Runs a statement in another database, in a background process, as the
--     owner of the extension or as the session's user. It is committed when
--     this returns; an error there is raised here.
CREATE FUNCTION outbox._run_elsewhere(
    database  name,
    statement text,
    as_owner  boolean
)
RETURNS void
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_run_elsewhere';

COMMENT ON FUNCTION outbox._run_elsewhere(name, text, boolean) IS
    'Runs a statement in the database of pg_cron, in a transaction of its own.';

-- _cron_call(statement, as_owner)
--     Runs a statement where pg_cron is. In another database it is committed
--     at once, whatever becomes of the caller's transaction, and is run by who
--     is connected, or by the extension's owner.
CREATE FUNCTION outbox._cron_call(
    statement text,
    as_owner  boolean DEFAULT false
)
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
                  HINT = 'Add pg_cron to shared_preload_libraries, and run CREATE EXTENSION '
                         'pg_cron in the database that cron.database_name names.';
    ELSIF place = current_database() THEN
        EXECUTE statement;
    ELSE
        PERFORM outbox._run_elsewhere(place, statement, as_owner);
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._cron_call(text, boolean) IS
    'Runs a statement where pg_cron is.';

-- _cron_schedule(name, cron_schedule, command)
--     Makes pg_cron run the command in this database. A schedule that has the
--     name already is replaced.
CREATE FUNCTION outbox._cron_schedule(
    name          text,
    cron_schedule text,
    command       text
)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF outbox._cron_database() = current_database() THEN
        PERFORM outbox._cron_call(format('SELECT cron.schedule(%L, %L, %L)',
                                         name, cron_schedule, command));
    ELSE
        PERFORM outbox._cron_call(format('SELECT cron.schedule_in_database(%L, %L, %L, %L)',
                                         name, cron_schedule, command, current_database()));
        -- what others have scheduled by this name is over
        PERFORM outbox._cron_unschedule(name, session_user);
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._cron_schedule(text, text, text) IS
    'Schedules a command for this database, instead of the one of the same name.';

-- _cron_unschedule(name, but_of)
--     Ends the schedules of that name, whoever made them, but that of one role.
--     Without pg_cron there are none.
CREATE FUNCTION outbox._cron_unschedule(
    name   text,
    but_of name DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._cron_call(
        format('SELECT cron.unschedule(j.jobid) FROM cron.job j '
               'WHERE j.jobname = %L AND j.username <> %L',
               name, coalesce(but_of, '')), true);
EXCEPTION
    WHEN feature_not_supported THEN
        NULL;
END
$$;

COMMENT ON FUNCTION outbox._cron_unschedule(text, name) IS
    'Ends the schedules of that name, if there are any.';
