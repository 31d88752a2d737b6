-- maintenance.sql: the work of the background worker, for servers without one.

-- _maintenance_parts()
--     The valid arguments of _maintenance_step, in order.
CREATE FUNCTION outbox._maintenance_parts()
RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN '{waits, join_members, leases, inbox_leases, timer_leases, run_leases, timers, runs,
         subscriptions, samples, handlers}'::pg_catalog.text[]
       OPERATOR(pg_catalog.||) outbox._cleanup_parts();

COMMENT ON FUNCTION outbox._maintenance_parts() IS 'The parts of maintenance.';

-- _maintenance_step(part)
--     Does a bounded amount of work of one part of maintenance, and waits for other
--     transactions only for a moment. Returns how much there was to do. On a
--     subscriber of logical replication, only partitions are created; all else is
--     done by the publisher.
CREATE FUNCTION outbox._maintenance_step(part text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1s'
AS $$
BEGIN
    IF part <> 'partitions' AND outbox._is_replicated() THEN
        RETURN 0;
    END IF;
    CASE part
        WHEN 'waits' THEN
            RETURN outbox.process_join_waits();
        WHEN 'handlers' THEN
            -- handlers run in other processes, which must not be blocked by this
            -- transaction
            RETURN outbox._start_handlers();
        WHEN 'join_members' THEN
            RETURN outbox.reconcile_joins();
        WHEN 'leases' THEN
            RETURN outbox.reap();
        WHEN 'inbox_leases' THEN
            RETURN outbox.reap_inbox();
        WHEN 'timer_leases' THEN
            RETURN outbox.reap_expired_timers();
        WHEN 'run_leases' THEN
            RETURN outbox.reap_expired_job_runs();
        WHEN 'timers', 'runs' THEN
            IF current_setting('outbox.dispatch_timers')::boolean THEN
                RETURN (SELECT d.dispatched + d.left_over
                          FROM outbox._dispatch_due(part = 'runs', NULL) d);
            END IF;
            RETURN 0;
        WHEN 'subscriptions' THEN
            RETURN outbox._publish_step();
        WHEN 'samples' THEN
            -- there is no more to do
            PERFORM outbox._sample_depth();
            RETURN 0;
        ELSE
            RETURN outbox._cleanup_step(part);
    END CASE;
END
$$;

COMMENT ON FUNCTION outbox._maintenance_step(text) IS
    'Does a bounded amount of work of one part of maintenance.';

-- _maintenance_failed(part, state, message)
--     Logs the failure of a part of maintenance; but if the transaction is read-only,
--     or the caller lacks privileges, raises the error.
CREATE FUNCTION outbox._maintenance_failed(
    part    text,
    state   text,
    message text
)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF state IN ('25006', '42501') THEN
        RAISE EXCEPTION '%', message USING ERRCODE = state;
    END IF;
    RAISE WARNING 'outbox maintenance: part "%" failed: %', part, message
        USING ERRCODE = state;
END
$$;

COMMENT ON FUNCTION outbox._maintenance_failed(text, text, text) IS
    'Logs the failure of a part of maintenance.';

-- run_maintenance()
--     One bounded round of what the background worker does, in this transaction,
--     without handlers. If a part fails, that is logged, and the others go on.
--     Returns how much there was to do.
CREATE FUNCTION outbox.run_maintenance()
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part text;
    done bigint := 0;
BEGIN
    FOREACH part IN ARRAY array_remove(outbox._maintenance_parts(), 'handlers') LOOP
        BEGIN
            done := done + outbox._maintenance_step(part);
        EXCEPTION
            WHEN OTHERS THEN
                PERFORM outbox._maintenance_failed(part, SQLSTATE, SQLERRM);
        END;
    END LOOP;
    RETURN done;
END
$$;

COMMENT ON FUNCTION outbox.run_maintenance() IS
    'Does one round of what the background worker does, in this transaction.';

-- maintain()
--     Does all that the background worker does, until nothing is left, with a commit
--     after each step. If a part fails, that is logged, the others go on, and at the
--     end the call fails with the first error. A procedure that commits cannot have a
--     SET clause, so all names in the body are qualified until search_path is set,
--     which lasts for one transaction.
CREATE PROCEDURE outbox.maintain()
LANGUAGE plpgsql
AS $$
DECLARE
    part         pg_catalog.text;
    done         pg_catalog.int8;
    done_in_pass pg_catalog.int8;
    passes       pg_catalog.int4 := 0;
    failed_state pg_catalog.text;
    failure      pg_catalog.text;
BEGIN
    COMMIT;
    LOOP
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
        done_in_pass := 0;
        FOREACH part IN ARRAY outbox._maintenance_parts() LOOP
            LOOP
                BEGIN
                    done := outbox._maintenance_step(part);
                EXCEPTION
                    WHEN OTHERS THEN
                        PERFORM outbox._maintenance_failed(part, SQLSTATE, SQLERRM);
                        failed_state := coalesce(failed_state, SQLSTATE);
                        failure := coalesce(failure, format('%s: %s', part, SQLERRM));
                        done := 0;
                END;
                done_in_pass := done_in_pass + done;
                COMMIT;
                SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
                PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
                EXIT WHEN done = 0;
            END LOOP;
        END LOOP;
        -- a wait for a join that stays locked is evaluated again and again
        passes := passes + 1;
        EXIT WHEN done_in_pass = 0 OR passes = 100;
    END LOOP;
    IF failure IS NOT NULL THEN
        RAISE EXCEPTION 'outbox maintenance is incomplete: %', failure
            USING ERRCODE = failed_state;
    END IF;
END
$$;

COMMENT ON PROCEDURE outbox.maintain() IS
    'Does all that the background worker does, until there is nothing left to do.';

-- _maintenance_name()
--     Returns the name of the schedule of maintenance in pg_cron.
CREATE FUNCTION outbox._maintenance_name()
RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
RETURN outbox._cron_fits('outbox maintenance:' || current_database());

COMMENT ON FUNCTION outbox._maintenance_name() IS
    'The name of the schedule of maintenance in pg_cron.';

-- schedule_maintenance(cron_schedule)
--     Makes pg_cron call maintain in this database; null removes the schedule.
--     Returns the name of the schedule.
CREATE FUNCTION outbox.schedule_maintenance(cron_schedule text DEFAULT '* * * * *')
RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name text := outbox._maintenance_name();
BEGIN
    PERFORM outbox._writes('outbox.schedule_maintenance()');
    IF cron_schedule IS NULL THEN
        PERFORM outbox._cron_unschedule(name);
    ELSE
        PERFORM outbox._cron_schedule(name, cron_schedule, 'CALL outbox.maintain()');
    END IF;
    RETURN name;
END
$$;

COMMENT ON FUNCTION outbox.schedule_maintenance(text) IS
    'Schedules the maintenance of this database in pg_cron.';
