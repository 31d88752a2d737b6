-- maintenance.sql: what is no longer kept. Serves sql_admin.c.

-- _make_archive_partition(keep, at)
--     Makes the partition of the archive for a retention class and the day of
--     this time, unless it exists.
CREATE FUNCTION outbox._make_archive_partition(
    keep integer,
    at   timestamptz
)
RETURNS void
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_make_archive_partition';

COMMENT ON FUNCTION outbox._make_archive_partition(integer, timestamptz) IS
    'Makes the partition of the archive for this time, unless it is there.';

-- _dedupe_digest(namespace, topic, dedupe_key)
--     Returns the key of outbox.dedupe.
CREATE FUNCTION outbox._dedupe_digest(
    namespace  text,
    topic      text,
    dedupe_key text
)
RETURNS uuid
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_dedupe_digest_sql';

COMMENT ON FUNCTION outbox._dedupe_digest(text, text, text) IS
    'What outbox.dedupe knows a dedupe key by.';

-- _message_is_kept(message_id)
--     Is the message in the queue, the archive or among the dead?
CREATE FUNCTION outbox._message_is_kept(message_id uuid)
RETURNS boolean
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_message_is_kept_sql';

COMMENT ON FUNCTION outbox._message_is_kept(uuid) IS
    'Whether there is still a message with this id, in whatever state.';

-- _drop_partition(partition)
--     Drops a partition of the archive, unless somebody is reading: then it
--     stays until the next time. Returns how many messages it held, as far as
--     the statistics know.
CREATE FUNCTION outbox._drop_partition(partition regclass)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '200ms'
AS $$
DECLARE
    held bigint;
BEGIN
    SELECT greatest(pg_stat_get_live_tuples(c.oid), c.reltuples::bigint, 0)
      INTO held
      FROM pg_class c
     WHERE c.oid = partition;
    EXECUTE format('DROP TABLE %s', partition);
    RETURN held;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN 0;
END
$$;

COMMENT ON FUNCTION outbox._drop_partition(regclass) IS
    'Drops a partition of the archive, unless somebody is reading.';

-- _purge_rows(tab, condition, batch_limit)
--     Deletes rows of a history table with their dedupe keys; how many.
CREATE FUNCTION outbox._purge_rows(
    tab         regclass,
    condition   text,
    batch_limit integer
)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    purged bigint;
BEGIN
    EXECUTE format($sql$
        WITH gone AS (
            DELETE FROM %1$s
             WHERE ctid = ANY (ARRAY(
                       SELECT ctid FROM %1$s WHERE %2$s LIMIT %3$s
                       FOR UPDATE SKIP LOCKED))
            RETURNING namespace, topic, dedupe_key, message_id
        ), keys AS (
            DELETE FROM outbox.dedupe k
             USING gone
             WHERE gone.dedupe_key IS NOT NULL
               AND k.key = outbox._dedupe_digest(gone.namespace, gone.topic, gone.dedupe_key)
               AND k.message_id = gone.message_id
        )
        SELECT count(*) FROM gone
    $sql$, tab, condition, batch_limit)
    INTO purged;
    RETURN purged;
END
$$;

COMMENT ON FUNCTION outbox._purge_rows(regclass, text, integer) IS
    'Deletes rows of a history table with their dedupe keys.';

-- _sweep_dedupe(batch_limit)
--     Looks at some dedupe keys, from a random one on, and deletes those whose
--     messages are no longer kept. It only saves room: such a key is free for
--     whoever comes with it.
CREATE FUNCTION outbox._sweep_dedupe(batch_limit integer)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    DELETE FROM outbox.dedupe d
     USING (SELECT key, message_id
              FROM outbox.dedupe
             WHERE key >= (SELECT gen_random_uuid())
             ORDER BY key
             LIMIT batch_limit) sample
     WHERE d.key = sample.key
       AND d.message_id = sample.message_id
       AND NOT outbox._message_is_kept(sample.message_id);
$$;

COMMENT ON FUNCTION outbox._sweep_dedupe(integer) IS
    'Deletes some dedupe keys whose messages are no longer kept.';

-- _purge_stores(batch_limit)
--     Deletes what the other live tables have finished, and the memory of what
--     was received, that is kept no longer. What is not done is not forgotten.
CREATE FUNCTION outbox._purge_stores(batch_limit integer)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    done interval := current_setting('outbox.retention')::interval;
    dead interval := current_setting('outbox.dead_retention')::interval;
    seen interval := current_setting('outbox.deduplication_retention')::interval;
    finished record;
BEGIN
    FOR finished IN
        SELECT format('%s_%s', store, ending) AS tab,
               CASE ending WHEN 'done' THEN done ELSE dead END AS keep
          FROM unnest(ARRAY['inbox', 'timer', 'run']) store,
               unnest(ARRAY['done', 'dead']) ending
    LOOP
        CONTINUE WHEN finished.keep < '0';
        EXECUTE format(
            'DELETE FROM outbox.%1$I WHERE ctid = ANY (ARRAY(
                 SELECT ctid FROM outbox.%1$I
                  WHERE processed_at < $1
                  ORDER BY processed_at LIMIT $2))',
            finished.tab)
        USING clock_timestamp() - finished.keep, batch_limit;
    END LOOP;
    DELETE FROM outbox.message_deduplication d
     WHERE seen >= '0' AND d.message_id IN (
               SELECT o.message_id FROM outbox.message_deduplication o
                WHERE o.first_seen_at < clock_timestamp() - seen
                  AND NOT EXISTS (SELECT FROM outbox.inbox_queue q
                                   WHERE q.message_id = o.message_id)
                ORDER BY o.first_seen_at
                LIMIT batch_limit
                  FOR UPDATE SKIP LOCKED);
END
$$;

COMMENT ON FUNCTION outbox._purge_stores(integer) IS
    'Deletes what the inbox, timers and jobs keep no longer.';

-- cleanup(retention, dead_retention, batch_limit, join_retention)
--     Removes what is kept no longer, and makes the archive's partitions of
--     today and tomorrow. Messages that are done go a day at a time, by
--     dropping a partition, unless they are to be kept for less than a day or
--     a retention is given here; rows are deleted batch_limit (10000) at a
--     time. The arguments stand in for outbox.retention,
--     outbox.dead_retention and outbox.join_retention; topics that have their
--     own keep it. Returns how many messages were removed.
CREATE FUNCTION outbox.cleanup(
    retention      interval DEFAULT NULL,
    dead_retention interval DEFAULT NULL,
    batch_limit    integer  DEFAULT NULL,
    join_retention interval DEFAULT NULL
)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC'
AS $$
DECLARE
    -- In seconds: what a partition of the archive spans, and the longest
    -- retention. Longer ones keep rows for ever, as now_at less the retention
    -- could be before the first timestamp that there is.
    one_day CONSTANT integer := 86400;
    century CONSTANT bigint  := 3153600000;

    now_at    timestamptz := clock_timestamp();
    rows_max  integer := coalesce(cleanup.batch_limit, 10000);
    removed   bigint := 0;
    doomed    regclass[] := '{}';
    seconds   double precision;
    cutoff    timestamptz;
    partition record;
    kept      record;
BEGIN
    PERFORM outbox._check_limit('batch_limit', cleanup.batch_limit);
    PERFORM outbox._make_archive_partition(-2, now_at);

    FOR partition IN
        SELECT c.oid::regclass AS relation,
               CASE m[1] WHEN 'default' THEN -2 WHEN 'forever' THEN -1
                         ELSE rtrim(m[1], 's')::integer END AS keep,
               to_date(m[2], 'YYYYMMDD')::timestamptz AS since
          FROM pg_inherits i
          JOIN pg_class c ON c.oid = i.inhrelid,
               regexp_match(c.relname, '^archive_(default|forever|\d+s)_(\d{8})$') m
         WHERE i.inhparent = 'outbox.archive'::regclass
           AND m IS NOT NULL
         ORDER BY m[2]
    LOOP
        seconds := CASE partition.keep
            WHEN -2 THEN extract(epoch FROM coalesce(
                             cleanup.retention,
                             current_setting('outbox.retention')::interval))
            ELSE partition.keep
        END;
        CONTINUE WHEN seconds < 0 OR partition.keep = -1;
        CONTINUE WHEN seconds > century;
        cutoff := now_at - seconds * interval '1 second';
        IF partition.since + interval '1 day' <= cutoff THEN
            doomed := doomed || partition.relation;
        ELSIF partition.since < cutoff
              AND (seconds < one_day OR (partition.keep = -2 AND cleanup.retention IS NOT NULL))
        THEN
            removed := removed + outbox._purge_rows(
                partition.relation, format('processed_at < %L', cutoff), rows_max);
        END IF;
    END LOOP;

    FOR kept IN
        WITH RECURSIVE classes(keep) AS (
            (SELECT keep FROM outbox.dead ORDER BY keep LIMIT 1)
            UNION ALL
            SELECT (SELECT d.keep FROM outbox.dead d
                     WHERE d.keep > c.keep ORDER BY d.keep LIMIT 1)
              FROM classes c
             WHERE c.keep IS NOT NULL
        )
        SELECT keep FROM classes WHERE keep IS NOT NULL
    LOOP
        seconds := CASE kept.keep
            WHEN -2 THEN extract(epoch FROM coalesce(
                             cleanup.dead_retention,
                             current_setting('outbox.dead_retention')::interval))
            ELSE kept.keep
        END;
        CONTINUE WHEN seconds < 0 OR seconds > century;
        removed := removed + outbox._purge_rows(
            'outbox.dead',
            format('keep = %s AND processed_at < %L', kept.keep,
                   now_at - seconds * interval '1 second'),
            rows_max);
    END LOOP;

    PERFORM outbox._sweep_dedupe(least(rows_max, 1000));
    PERFORM outbox._purge_stores(rows_max);
    seconds := extract(epoch FROM coalesce(
                   cleanup.join_retention,
                   current_setting('outbox.join_retention')::interval));
    IF seconds BETWEEN 0 AND century THEN
        PERFORM outbox._purge_joins(seconds * interval '1 second', rows_max);
    END IF;

    -- last, because this locks out the readers of the archive until the end
    FOR i IN 1 .. cardinality(doomed) LOOP
        removed := removed + outbox._drop_partition(doomed[i]);
    END LOOP;
    RETURN removed;
END
$$;

COMMENT ON FUNCTION outbox.cleanup(interval, interval, integer, interval) IS
    'Removes messages that are kept no longer; returns how many.';

-- run_maintenance()
--     One round of all that the background workers do, for servers without
--     them, but without handlers: no handler ever runs in a session that goes on
--     with another's rights. Returns how much there was to do.
CREATE FUNCTION outbox.run_maintenance()
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    done bigint;
BEGIN
    done := outbox.process_join_waits() + outbox.reconcile_joins()
            + outbox.reap() + outbox.reap_inbox()
            + outbox.reap_expired_timers() + outbox.reap_expired_job_runs();
    IF current_setting('outbox.dispatch_timers')::boolean THEN
        done := done + outbox.dispatch_due();
    END IF;
    RETURN done + outbox.cleanup();
END
$$;

COMMENT ON FUNCTION outbox.run_maintenance() IS
    'One round of all that the background workers do, but without handlers.';

-- schedule_maintenance(cron_schedule)
--     Has pg_cron call run_maintenance in this database; null ends that.
--     Returns the name of the schedule.
CREATE FUNCTION outbox.schedule_maintenance(cron_schedule text DEFAULT '* * * * *')
RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name text := outbox._cron_fits('outbox maintenance:' || current_database());
BEGIN
    PERFORM outbox._writes('outbox.schedule_maintenance()');
    IF cron_schedule IS NULL THEN
        PERFORM outbox._cron_unschedule(name);
    ELSE
        PERFORM outbox._cron_schedule(name, cron_schedule, 'SELECT outbox.run_maintenance()');
    END IF;
    RETURN name;
END
$$;

COMMENT ON FUNCTION outbox.schedule_maintenance(text) IS
    'Has pg_cron run the maintenance of this database.';
