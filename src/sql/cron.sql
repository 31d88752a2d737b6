-- cron.sql: the interface to pg_cron, which may be missing, or be in another
-- database. pg_cron keeps its schedules in one database (cron.database_name), and can
-- be called only there. Serves sql_admin.c.
--
-- A schedule belongs to the role that creates it: in pg_cron's own database that is
-- the owner of the extension, elsewhere the session user, so that no role can make
-- pg_cron do what the role itself may not do. The extension may remove schedules of
-- any role.

-- _cron_fits(name)
--     Names in pg_cron have at most 63 bytes; it truncates longer ones, which may
--     then collide. Such names are replaced by a digest.
CREATE FUNCTION outbox._cron_fits(name text)
RETURNS text
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN octet_length(name) < 64 THEN name
            ELSE split_part(name, ':', 1) || ':'
                 || left(encode(sha256(convert_to(name, getdatabaseencoding())), 'hex'), 40) END;

COMMENT ON FUNCTION outbox._cron_fits(text) IS 'A name that pg_cron accepts.';

-- _cron_name(job_name)
--     Returns the name of a job's schedule in pg_cron. If the name of the database
--     contains a colon, the result could be the name of a job of another database, so
--     it is replaced by a digest in which the two parts are distinct.
CREATE FUNCTION outbox._cron_name(job_name text)
RETURNS text
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN strpos(current_database(), ':') = 0
            THEN outbox._cron_fits('outbox:' || current_database() || ':' || job_name)
            ELSE 'outbox:' || left(encode(sha256(convert_to(
                     length(current_database()) || ':' || current_database() || ':' || job_name,
                     getdatabaseencoding())), 'hex'), 40) END;

COMMENT ON FUNCTION outbox._cron_name(text) IS 'The name of a job in pg_cron.';

-- _cron_database()
--     Returns the database that has pg_cron; null if there is none.
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
    'The database that has pg_cron; null if there is none.';

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
--     Runs a statement in the database of pg_cron. If that is another one, the
--     statement is committed at once, whatever happens to the caller's transaction,
--     and is run by the session user, or by the extension's owner.
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
    'Runs a statement in the database of pg_cron.';

-- _cron_schedule(name, cron_schedule, command)
--     Makes pg_cron run the command in this database. An existing schedule with this
--     name is replaced.
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
        -- remove schedules of this name that belong to other roles
        PERFORM outbox._cron_unschedule(name, session_user);
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._cron_schedule(text, text, text) IS
    'Schedules a command in this database, replacing a schedule of the same name.';

-- _cron_unschedule(name, but_of)
--     Removes the schedules with a name, of all roles except one. Without pg_cron
--     there are none.
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
    'Removes the schedules with a name, if there are any.';
