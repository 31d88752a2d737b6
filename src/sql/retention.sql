-- retention.sql: the archive's partitions, and what is no longer kept. Serves
-- sql_admin.c; archive.c finds partitions by the names that they get here.
--
-- Each step is short, waits for nobody for longer than a moment, and can be
-- repeated: _cleanup_step does one, and says whether there is more. Nothing is
-- deleted because something else is missing: a dump may just be being restored,
-- table by table.

CREATE TABLE outbox.cleanup_progress (
    name  text        NOT NULL,
    at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    place bigint      NOT NULL DEFAULT 0,
    CONSTRAINT cleanup_progress_pkey PRIMARY KEY (name)
);

COMMENT ON TABLE outbox.cleanup_progress IS
    'What one step of cleanup leaves for the next. Not dumped.';
COMMENT ON COLUMN outbox.cleanup_progress.name IS
    'A partition of the archive whose keys are being deleted; "installed"; "in use"; '
    '"settling" and "settled".';
COMMENT ON COLUMN outbox.cleanup_progress.at IS 'When it was begun.';
COMMENT ON COLUMN outbox.cleanup_progress.place IS
    'The next block of the partition; or the next transaction''s number at that time.';

-- what was made before came with a dump
INSERT INTO outbox.cleanup_progress (name) VALUES ('installed');
INSERT INTO outbox.cleanup_progress (name, place)
VALUES ('settling', pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint);

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

-- _forget_key(namespace, topic, dedupe_key, message_id)
--     Frees a dedupe key that this message has, unless another transaction has
--     locked it. True if it did.
CREATE FUNCTION outbox._forget_key(
    namespace  text,
    topic      text,
    dedupe_key text,
    message_id uuid
)
RETURNS boolean
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_forget_key';

COMMENT ON FUNCTION outbox._forget_key(text, text, text, uuid) IS
    'Frees the dedupe key of a message that is no longer kept.';

-- _keep_seconds(keep, setting)
--     How long a retention class is kept; setting is for the default class. Null
--     means for ever.
CREATE FUNCTION outbox._keep_seconds(
    keep    integer,
    setting interval
)
RETURNS double precision
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
RETURN (SELECT CASE WHEN s.seconds BETWEEN 0 AND 3153600000 THEN s.seconds END
          FROM (SELECT CASE keep WHEN -2 THEN extract(epoch FROM setting) ELSE keep END
                       ::double precision AS seconds) s);

COMMENT ON FUNCTION outbox._keep_seconds(integer, interval) IS
    'How long a retention class is kept, in seconds; null for ever.';

-- _span(seconds)
--     How much time a partition spans of what is kept so long: little enough
--     that not much is kept for longer, and that there are not too many.
CREATE FUNCTION outbox._span(seconds double precision)
RETURNS interval
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN seconds < 3600 THEN interval '1 minute'
            WHEN seconds < 21600 THEN interval '10 minutes'
            WHEN seconds < 172800 THEN interval '1 hour'
            ELSE interval '1 day' END;

COMMENT ON FUNCTION outbox._span(double precision) IS
    'How much time a partition of the archive spans.';

-- _classes()
--     The retention classes of done messages that are in use: at most 100, those
--     of most topics. What has another goes where the unsorted are.
CREATE FUNCTION outbox._classes()
RETURNS TABLE (keep integer, span interval)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT c.keep, outbox._span(outbox._keep_seconds(
               c.keep, current_setting('outbox.retention')::interval))
      FROM (SELECT -2 AS keep, 9223372036854775807 AS topics
             WHERE current_setting('outbox.retention')::interval <> '0'
            UNION ALL
            (SELECT CASE WHEN t.seconds < 0 THEN -1
                         ELSE least(floor(t.seconds + 0.5), 2147483640)::integer END,
                    count(*)
               FROM (SELECT extract(epoch FROM retention) AS seconds
                       FROM outbox.topics
                      WHERE kind = 'message' AND retention IS NOT NULL) t
              WHERE t.seconds < 0 OR t.seconds >= 0.5
              GROUP BY 1
              ORDER BY 2 DESC, 1
              LIMIT 100)) c
$$;

COMMENT ON FUNCTION outbox._classes() IS
    'How long done messages are kept, and how much time the partitions for them span.';

-- _partitions()
--     The partitions of the archive that have names of ours: their class, when
--     they begin, and when they end.
CREATE FUNCTION outbox._partitions()
RETURNS TABLE (relation regclass, name name, keep integer, since timestamptz, until timestamptz)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC'
AS $$
    SELECT p.relation, p.name,
           CASE p.parts[1] WHEN 'default' THEN -2 WHEN 'forever' THEN -1
                           ELSE least(rtrim(p.parts[1], 's')::bigint, 2147483640)::integer END,
           p.since,
           p.since + CASE length(p.parts[2]) WHEN 8 THEN interval '1 day'
                                             WHEN 11 THEN interval '1 hour'
                                             WHEN 12 THEN interval '10 minutes'
                                             ELSE interval '1 minute' END
      FROM (SELECT c.oid::regclass AS relation, c.relname AS name, m.parts,
                   to_timestamp(rpad(replace(m.parts[2], '_', ''), 12, '0'),
                                'YYYYMMDDHH24MI') AS since
              FROM pg_inherits i
              JOIN pg_class c ON c.oid = i.inhrelid
             CROSS JOIN regexp_match(c.relname,
                     '^archive_(default|forever|[0-9]{1,10}s)_([0-9]{8}(?:_[0-9]{2,4})?)$') m(parts)
             WHERE i.inhparent = 'outbox.archive'::regclass
               AND m.parts IS NOT NULL) p
$$;

COMMENT ON FUNCTION outbox._partitions() IS
    'The partitions of the archive, and what belongs into them.';

-- _make_partition(keep, at, span)
--     Makes the partition of the archive for a retention class and the time of
--     this span in which at lies, unless there is one for that time. Where a part
--     of the span has one, it makes one for less. False if there is nothing to
--     make, or if somebody keeps the archive locked.
CREATE FUNCTION outbox._make_partition(
    keep integer,
    at   timestamptz,
    span interval
)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC'
SET datestyle = 'ISO, MDY'
SET intervalstyle = 'postgres'
SET default_tablespace = ''
SET default_table_access_method = heap
SET default_toast_compression = pglz
SET client_min_messages = warning
SET check_function_bodies = on
SET row_security = on
SET standard_conforming_strings = on
SET transform_null_equals = off
SET quote_all_identifiers = off
SET bytea_output = 'hex'
SET extra_float_digits = 1
SET lock_timeout = '200ms'
AS $$
DECLARE
    since   timestamptz;
    name    text;
    archive record;
BEGIN
    IF EXISTS (SELECT FROM outbox._partitions() p
                WHERE p.keep = _make_partition.keep
                  AND _make_partition.at >= p.since AND _make_partition.at < p.until)
    THEN
        RETURN false;
    END IF;
    LOCK TABLE outbox.archive IN SHARE UPDATE EXCLUSIVE MODE;
    -- the longest that is free; whoever had the lock may have made it
    SELECT s.span, s.since INTO span, since
      FROM (SELECT v.span, date_bin(v.span, _make_partition.at, timestamptz '2000-01-01') AS since
              FROM unnest('{1 day, 1 hour, 10 minutes, 1 minute}'::interval[]) v(span)
             WHERE v.span <= _make_partition.span) s
     WHERE NOT EXISTS (SELECT FROM outbox._partitions() p
                        WHERE p.keep = _make_partition.keep
                          AND p.since < s.since + s.span AND p.until > s.since)
     ORDER BY s.span DESC
     LIMIT 1;
    IF since IS NULL THEN
        RETURN false;
    END IF;

    name := format('archive_%s_%s',
                   CASE keep WHEN -2 THEN 'default' WHEN -1 THEN 'forever' ELSE keep || 's' END,
                   left(to_char(since, 'YYYYMMDD_HH24MI'),
                        CASE span WHEN '1 day' THEN 8 WHEN '1 hour' THEN 11
                                  WHEN '10 minutes' THEN 12 ELSE 13 END));
    -- a table of that name that is no partition is about to become one: it is
    -- being restored
    IF to_regclass('outbox.' || name) IS NOT NULL THEN
        RETURN false;
    END IF;
    -- where the archive is, and whose it is; whoever needs the partition first
    -- decides nothing, and event triggers find the same settings each time
    SELECT c.relowner::regrole AS owner, coalesce(s.spcname, '') AS tablespace
      INTO archive
      FROM pg_class c
      LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace
     WHERE c.oid = 'outbox.archive'::regclass;
    PERFORM set_config('default_tablespace', archive.tablespace, true);
    -- Made as a table of its own, and then attached: that waits for nobody who
    -- reads or writes the others. The archive has no indexes, as attaching would
    -- make them by itself, and a dump, which makes them too, could not be restored.
    EXECUTE format('CREATE TABLE outbox.%I (LIKE outbox.archive'
                   ' INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING COMMENTS)', name);
    EXECUTE format('ALTER TABLE outbox.%I ADD PRIMARY KEY (id, processed_at)'
                   ' WITH (deduplicate_items = off)', name);
    EXECUTE format('CREATE INDEX ON outbox.%I (message_id) WITH (deduplicate_items = off)',
                   name);
    EXECUTE format('ALTER TABLE outbox.%I OWNER TO %s', name, archive.owner);
    EXECUTE format('REVOKE ALL ON TYPE outbox.%I FROM PUBLIC', name);
    EXECUTE format('ALTER TABLE outbox.archive ATTACH PARTITION outbox.%I'
                   ' FOR VALUES FROM (%s, %L) TO (%s, %L)',
                   name, keep, since, keep, since + span);
    EXECUTE format('COMMENT ON TABLE outbox.%I IS %L', name,
                   format('Messages done from %s until %s; a partition of outbox.archive.',
                          since, since + span));
    RETURN true;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN false;
END
$$;

COMMENT ON FUNCTION outbox._make_partition(integer, timestamptz, interval) IS
    'Makes the partition of the archive for this time, unless it is there.';

-- _make_partitions()
--     Makes the partitions of the archive for now and next, of each retention
--     class in use. None before there is something to keep: a dump that is being
--     restored brings its own, and makes all of them before the first row comes.
--     How many.
CREATE FUNCTION outbox._make_partitions()
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM outbox.cleanup_progress c WHERE c.name = 'in use') THEN
        IF NOT EXISTS (SELECT FROM pg_inherits i
                        WHERE i.inhparent = 'outbox.archive'::regclass
                          AND pg_relation_size(i.inhrelid) > 0)
        THEN
            RETURN 0;
        END IF;
        INSERT INTO outbox.cleanup_progress (name) VALUES ('in use')
            ON CONFLICT ON CONSTRAINT cleanup_progress_pkey DO NOTHING;
    END IF;
    RETURN (SELECT count(*) FILTER (WHERE outbox._make_partition(
                       c.keep, clock_timestamp() + ahead * c.span, c.span))
              FROM outbox._classes() c, generate_series(0, 1) ahead);
END
$$;

COMMENT ON FUNCTION outbox._make_partitions() IS
    'Makes the partitions of the archive that will be needed.';

-- _dependents(relation)
--     What users have made that depends on a table or its row type; null if there
--     is nothing.
CREATE FUNCTION outbox._dependents(relation regclass)
RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT string_agg(DISTINCT
               CASE d.classid WHEN 'pg_rewrite'::regclass
                    THEN (SELECT 'view ' || r.ev_class::regclass
                            FROM pg_rewrite r WHERE r.oid = d.objid)
                    ELSE pg_describe_object(d.classid, d.objid, d.objsubid) END, ', ')
      FROM pg_class c
      JOIN pg_type t ON t.oid = c.reltype
      JOIN pg_depend d
        ON d.deptype = 'n'
       AND ((d.refclassid = 'pg_class'::regclass
             AND (d.refobjid = c.oid
                  OR d.refobjid IN (SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = c.oid)))
            OR (d.refclassid = 'pg_type'::regclass AND d.refobjid IN (t.oid, t.typarray)))
     WHERE c.oid = _dependents.relation
$$;

COMMENT ON FUNCTION outbox._dependents(regclass) IS
    'What users have made that depends on a table.';

-- _overdue_partitions(retention)
--     Partitions of the archive of which nothing is kept any more; retention is
--     for the default class.
CREATE FUNCTION outbox._overdue_partitions(retention interval)
RETURNS TABLE (relation regclass, name name, overdue_since timestamptz)
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT p.relation, p.name, p.until + p.seconds * interval '1 second'
      FROM (SELECT a.*, outbox._keep_seconds(a.keep, _overdue_partitions.retention) AS seconds
              FROM outbox._partitions() a) p
     WHERE p.until <= clock_timestamp() - p.seconds * interval '1 second'
     ORDER BY p.until, p.name
$$;

COMMENT ON FUNCTION outbox._overdue_partitions(interval) IS
    'Partitions of the archive that are kept no longer.';

-- _drop_partition(relation)
--     Drops a partition of the archive. If somebody is reading it, it stays until
--     the next time; if something depends on it that users have made, it is
--     emptied instead. Returns how many messages it held, as far as the
--     statistics know.
CREATE FUNCTION outbox._drop_partition(relation regclass)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '200ms'
SET client_min_messages = warning
AS $$
DECLARE
    partition  regclass;
    held       bigint;
    dependents text;
BEGIN
    -- another cleanup may have dropped it
    SELECT c.oid::regclass, greatest(pg_stat_get_live_tuples(c.oid), c.reltuples::bigint, 0)
      INTO partition, held
      FROM pg_class c
      JOIN pg_inherits i ON i.inhrelid = c.oid
     WHERE c.oid = _drop_partition.relation
       AND i.inhparent = 'outbox.archive'::regclass
       AND c.relname <> 'archive_unsorted';
    IF partition IS NULL THEN
        RETURN 0;
    END IF;
    dependents := outbox._dependents(relation);
    IF dependents IS NULL THEN
        EXECUTE format('DROP TABLE IF EXISTS %s', partition);
        RETURN held;
    ELSIF pg_relation_size(relation) = 0 THEN
        RETURN 0;
    END IF;
    EXECUTE format('TRUNCATE %s', partition);
    RAISE WARNING 'partition % of outbox.archive is emptied, and cannot be dropped', partition
        USING DETAIL = format('These depend on it: %s.', dependents),
              HINT = 'Drop them, or make them depend on outbox.messages instead.';
    RETURN held;
EXCEPTION
    WHEN lock_not_available OR deadlock_detected THEN
        RETURN 0;
    -- on to the other partitions; status() tells of this one
    WHEN dependent_objects_still_exist OR feature_not_supported OR undefined_table
         OR object_in_use OR raise_exception OR insufficient_privilege
         OR object_not_in_prerequisite_state THEN
        RAISE WARNING 'could not drop partition % of outbox.archive: %', partition, SQLERRM;
        RETURN 0;
END
$$;

COMMENT ON FUNCTION outbox._drop_partition(regclass) IS
    'Drops a partition of the archive, or empties it.';

-- _forget_keys(relation, blocks)
--     Frees the dedupe keys of messages in a partition that is to be dropped, of
--     so many of its blocks, and of the next ones the next time. False if there
--     are none left; null if another cleanup is at it, or the partition is locked.
CREATE FUNCTION outbox._forget_keys(
    relation regclass,
    blocks   integer
)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '200ms'
AS $$
DECLARE
    partition  text := (SELECT relname FROM pg_class WHERE oid = _forget_keys.relation);
    place      bigint;
    blocks_all bigint;
BEGIN
    blocks_all := coalesce(pg_relation_size(_forget_keys.relation), 0)
                  / current_setting('block_size')::integer;
    IF blocks_all = 0 OR NOT EXISTS (SELECT FROM outbox.dedupe) THEN
        RETURN false;
    END IF;
    INSERT INTO outbox.cleanup_progress (name) VALUES (partition)
        ON CONFLICT ON CONSTRAINT cleanup_progress_pkey DO NOTHING;
    SELECT c.place INTO place
      FROM outbox.cleanup_progress c
     WHERE c.name = partition
       FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF place >= blocks_all THEN
        DELETE FROM outbox.cleanup_progress c WHERE c.name = partition;
        RETURN false;
    END IF;
    EXECUTE format(
        'SELECT count(*) FILTER (WHERE outbox._forget_key(namespace, topic, dedupe_key, message_id))
           FROM outbox.%I
          WHERE ctid >= %L AND ctid < %L AND dedupe_key IS NOT NULL',
        partition, format('(%s,0)', place), format('(%s,0)', place + blocks));
    UPDATE outbox.cleanup_progress c SET place = c.place + blocks WHERE c.name = partition;
    RETURN true;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN NULL;
END
$$;

COMMENT ON FUNCTION outbox._forget_keys(regclass, integer) IS
    'Frees the dedupe keys of some messages in a partition that is to be dropped.';

-- _drop_partitions(retention, batch_limit, more)
--     One step towards dropping a partition that is kept no longer. More is true
--     if it did something.
CREATE FUNCTION outbox._drop_partitions(
    retention   interval,
    batch_limit integer,
    OUT removed bigint,
    OUT more    boolean
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    overdue record;
    is_left boolean;
    tries   integer := 0;
BEGIN
    removed := 0;
    more := false;
    FOR overdue IN
        SELECT p.relation, outbox._dependents(p.relation) AS dependents
          FROM outbox._overdue_partitions(_drop_partitions.retention) p
    LOOP
        -- some 25 messages are in a block
        is_left := outbox._forget_keys(overdue.relation, greatest(batch_limit / 25, 1));
        IF is_left THEN
            more := true;
            RETURN;
        ELSIF is_left IS NOT NULL THEN
            removed := outbox._drop_partition(overdue.relation);
            -- what cannot be dropped now does not keep others from it
            more := NOT EXISTS (SELECT FROM pg_class WHERE oid = overdue.relation);
            EXIT WHEN more;
        END IF;
        -- but it takes a moment to find out
        tries := tries + CASE WHEN overdue.dependents IS NULL THEN 1 ELSE 0 END;
        EXIT WHEN tries = 5;
    END LOOP;
END
$$;

COMMENT ON FUNCTION outbox._drop_partitions(interval, integer) IS
    'One step towards dropping a partition that is kept no longer.';

-- _purge_rows(tab, condition, cutoff, batch_limit, keys)
--     Deletes rows that fulfil a condition, in which $1 is the cutoff, with their
--     dedupe keys if they are messages that can have any; how many.
CREATE FUNCTION outbox._purge_rows(
    tab         regclass,
    condition   text,
    cutoff      timestamptz,
    batch_limit integer,
    keys        boolean
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
            RETURNING %4$s
        )
        SELECT count(*) FROM gone
    $sql$, tab, condition, batch_limit,
        CASE WHEN keys THEN 'outbox._forget_key(namespace, topic, dedupe_key, message_id)'
             ELSE 'true' END)
    INTO purged
    USING cutoff;
    RETURN purged;
END
$$;

COMMENT ON FUNCTION outbox._purge_rows(regclass, text, timestamptz, integer, boolean) IS
    'Deletes rows that are kept no longer, with their dedupe keys.';

-- _purge_history(tab, setting, first_keep, batch_limit, keys)
--     Deletes rows of a history table that has an index on (keep, processed_at),
--     class by class; how many, at most batch_limit. Setting is for the default
--     class; first_keep is what number 0 is as a class there.
CREATE FUNCTION outbox._purge_history(
    tab         regclass,
    setting     interval,
    first_keep  integer,
    batch_limit integer,
    keys        boolean
)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    class   integer;
    seconds double precision;
    purged  bigint := 0;
BEGIN
    LOOP
        EXECUTE format('SELECT keep FROM %s WHERE keep > $1 ORDER BY keep LIMIT 1', tab)
           INTO class
          USING coalesce(class, -2147483648);
        EXIT WHEN class IS NULL OR purged >= batch_limit;
        seconds := outbox._keep_seconds(class - first_keep, setting);
        CONTINUE WHEN seconds IS NULL;
        purged := purged + outbox._purge_rows(
            tab,
            format('keep = %s AND processed_at < $1 ORDER BY processed_at', class),
            clock_timestamp() - seconds * interval '1 second',
            (batch_limit - purged)::integer, keys);
    END LOOP;
    RETURN purged;
END
$$;

COMMENT ON FUNCTION outbox._purge_history(regclass, interval, integer, integer, boolean) IS
    'Deletes rows of a history table that are kept no longer.';

-- _purge_memory(tab, condition, batch_limit)
--     Deletes rows of a table that remembers something; how many.
CREATE FUNCTION outbox._purge_memory(
    tab         regclass,
    condition   text,
    batch_limit integer
)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    kept   interval := current_setting('outbox.deduplication_retention')::interval;
    purged bigint := 0;
BEGIN
    IF kept >= '0' THEN
        purged := outbox._purge_rows(
            tab, condition, clock_timestamp() - kept, batch_limit, false);
    END IF;
    RETURN purged;
END
$$;

COMMENT ON FUNCTION outbox._purge_memory(regclass, text, integer) IS
    'Deletes what is remembered for outbox.deduplication_retention.';

-- _settled_age()
--     How many transactions ago, at least, a row was written that has been in this
--     database for a day; null if that is not known yet.
CREATE FUNCTION outbox._settled_age()
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    next_xid bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    sample   record;
BEGIN
    SELECT c.at, c.place INTO sample
      FROM outbox.cleanup_progress c
     WHERE c.name = 'settling' AND c.at < clock_timestamp() - interval '1 day'
       FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        INSERT INTO outbox.cleanup_progress (name, at, place)
        VALUES ('settled', sample.at, sample.place)
            ON CONFLICT ON CONSTRAINT cleanup_progress_pkey
            DO UPDATE SET at = excluded.at, place = excluded.place;
        UPDATE outbox.cleanup_progress SET at = clock_timestamp(), place = next_xid
         WHERE name = 'settling';
    END IF;
    RETURN (SELECT next_xid - c.place FROM outbox.cleanup_progress c WHERE c.name = 'settled');
END
$$;

COMMENT ON FUNCTION outbox._settled_age() IS
    'How old, in transactions, a row is that has been here for a day.';

-- _purge_joins(retention, batch_limit, at_once)
--     Deletes joins that ended so long ago, with their members, unless somebody
--     still waits for them; how many rows. The waits of a join that came with a
--     dump may be still to come: unless all is to go at once, such a join must
--     have been here for a day.
CREATE FUNCTION outbox._purge_joins(
    retention   interval,
    batch_limit integer,
    at_once     boolean
)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seconds   double precision := outbox._keep_seconds(-2, retention);
    cutoff    timestamptz := clock_timestamp() - seconds * interval '1 second';
    installed timestamptz;
    settled   bigint;
    ended     uuid[];
    members   bigint;
    removed   bigint;
BEGIN
    IF seconds IS NULL THEN
        RETURN 0;
    END IF;
    SELECT c.at INTO installed FROM outbox.cleanup_progress c WHERE c.name = 'installed';
    settled := outbox._settled_age();
    -- nobody who attaches, waits or counts is waited for
    ended := ARRAY(
        SELECT j.join_id
          FROM outbox.joins j
         WHERE j.status IN (1, 2, 3)
           AND j.created_at < cutoff
           AND j.last_updated_at < cutoff
           AND (at_once OR j.created_at > installed OR age(j.xmin) >= settled)
           AND NOT EXISTS (SELECT FROM outbox.join_waits w WHERE w.join_id = j.join_id)
         LIMIT least(batch_limit, 1000)
           FOR UPDATE SKIP LOCKED);
    IF cardinality(ended) = 0 THEN
        RETURN 0;
    END IF;
    DELETE FROM outbox.join_members
     WHERE ctid = ANY (ARRAY(
               SELECT m.ctid
                 FROM outbox.join_members m
                WHERE m.join_id = ANY (ended)
                LIMIT batch_limit
                  FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS members = ROW_COUNT;
    -- a wait may have been filed before the join was locked
    DELETE FROM outbox.joins j
     WHERE j.join_id = ANY (ended)
       AND NOT EXISTS (SELECT FROM outbox.join_members m WHERE m.join_id = j.join_id)
       AND NOT EXISTS (SELECT FROM outbox.join_waits w WHERE w.join_id = j.join_id);
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN members + removed;
END
$$;

COMMENT ON FUNCTION outbox._purge_joins(interval, integer, boolean) IS
    'Deletes joins that ended long ago.';

-- _cleanup_parts()
--     What _cleanup_part can be called with.
CREATE FUNCTION outbox._cleanup_parts()
RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN '{partitions, archive, unsorted, dead, inbox_done, inbox_dead, timer_done, timer_dead,
         run_done, run_dead, received, receptors, perspectives, joins}'::pg_catalog.text[];

COMMENT ON FUNCTION outbox._cleanup_parts() IS 'The parts of cleanup.';

-- _cleanup_part(part, retention, dead_retention, batch_limit, join_retention)
--     One step of a part of cleanup: how much was removed, and whether there may be
--     more. What is null is as the settings say.
CREATE FUNCTION outbox._cleanup_part(
    part           text,
    retention      interval,
    dead_retention interval,
    batch_limit    integer,
    join_retention interval,
    OUT removed    bigint,
    OUT more       boolean
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    done_setting interval := coalesce(_cleanup_part.retention,
                                      current_setting('outbox.retention')::interval);
    dead_setting interval := coalesce(_cleanup_part.dead_retention,
                                      current_setting('outbox.dead_retention')::interval);
    join_setting interval := coalesce(_cleanup_part.join_retention,
                                      current_setting('outbox.join_retention')::interval);
BEGIN
    CASE part
        WHEN 'partitions' THEN
            removed := 0;
            more := false;
            PERFORM outbox._make_partitions();
        WHEN 'archive' THEN
            SELECT d.removed, d.more INTO removed, more
              FROM outbox._drop_partitions(done_setting, batch_limit) d;
        WHEN 'unsorted' THEN
            removed := outbox._purge_history('outbox.archive_unsorted', done_setting,
                                             -2147483645, batch_limit, true);
        WHEN 'dead' THEN
            removed := outbox._purge_history('outbox.dead', dead_setting, 0, batch_limit, true);
        WHEN 'received' THEN
            removed := outbox._purge_memory('outbox.message_deduplication',
                'first_seen_at < $1 ORDER BY first_seen_at', batch_limit);
        WHEN 'receptors' THEN
            removed := outbox._purge_memory('outbox.receptor_processing',
                'coalesce(processed_at, started_at) < $1 AND status <> 1', batch_limit);
        WHEN 'perspectives' THEN
            removed := outbox._purge_memory('outbox.perspective_checkpoints',
                'processed_at < $1', batch_limit);
        WHEN 'joins' THEN
            removed := outbox._purge_joins(join_setting, batch_limit,
                                           _cleanup_part.join_retention IS NOT NULL);
        ELSE
            -- whoever calls _cleanup_step names the table
            IF part IS NULL OR part <> ALL (outbox._cleanup_parts()) THEN
                RAISE EXCEPTION 'there is no part "%" of cleanup', part
                    USING ERRCODE = 'invalid_parameter_value';
            END IF;
            removed := outbox._purge_history(
                format('outbox.%I', part)::regclass,
                CASE WHEN part LIKE '%!_dead' ESCAPE '!' THEN dead_setting ELSE done_setting END,
                0, batch_limit, false);
    END CASE;
    more := coalesce(more, removed >= least(batch_limit, 1000));
END
$$;

COMMENT ON FUNCTION outbox._cleanup_part(text, interval, interval, integer, interval) IS
    'One step of a part of cleanup.';

-- _cleanup_step(part)
--     One step of a part of cleanup, as the settings say: 1 if there may be more,
--     else 0. For those who go on in a transaction of its own.
CREATE FUNCTION outbox._cleanup_step(part text)
RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1s'
AS $$
    SELECT CASE WHEN p.more THEN 1 ELSE 0 END
      FROM outbox._cleanup_part(part, NULL, NULL, 5000, NULL) p
$$;

COMMENT ON FUNCTION outbox._cleanup_step(text) IS
    'One step of a part of cleanup; 1 if there may be more.';

-- _cleanup_interval()
--     How many milliseconds there may be between two cleanups, for partitions to be
--     there in time, and so that what is kept for minutes is not there for an hour.
CREATE FUNCTION outbox._cleanup_interval()
RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT least(3600000, extract(epoch FROM min(outbox._span(k.seconds))) * 500)::bigint
      FROM (SELECT extract(epoch FROM current_setting('outbox.' || s)::interval)
              FROM unnest('{retention, dead_retention, join_retention,
                            deduplication_retention}'::text[]) s
            UNION ALL
            SELECT extract(epoch FROM t.retention) FROM outbox.topics t
            UNION ALL
            SELECT extract(epoch FROM t.dead_retention) FROM outbox.topics t) k(seconds)
     WHERE k.seconds > 0
$$;

COMMENT ON FUNCTION outbox._cleanup_interval() IS
    'How many milliseconds there may be between two cleanups.';

-- cleanup(retention, dead_retention, batch_limit, join_retention)
--     Removes what is kept no longer, and makes the archive's next partitions.
--     Messages that are done go with the partition that they are in; with a
--     retention given here, all that were done before, wherever they are. Rows are
--     deleted batch_limit (10000) at a time from each table. The arguments stand in
--     for outbox.retention, outbox.dead_retention and outbox.join_retention; topics
--     that have their own keep it. Returns how many messages were removed.
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
    rows_max integer := coalesce(cleanup.batch_limit, 10000);
    seconds  double precision := outbox._keep_seconds(-2, cleanup.retention);
    messages bigint := 0;
    part     text;
    step     record;
    current  record;
BEGIN
    PERFORM outbox._check_limit('batch_limit', cleanup.batch_limit);
    PERFORM outbox._writes('outbox.cleanup()');
    -- first the partitions of which a part is too old
    IF seconds IS NOT NULL THEN
        FOR current IN
            SELECT p.relation AS tab, p.cutoff
              FROM (SELECT a.*, clock_timestamp() - seconds * interval '1 second' AS cutoff
                      FROM outbox._partitions() a) p
             WHERE p.keep = -2 AND p.since < p.cutoff AND p.until > p.cutoff
        LOOP
            messages := messages + outbox._purge_rows(
                current.tab, 'processed_at < $1', current.cutoff, rows_max, true);
        END LOOP;
    END IF;
    -- dropping partitions locks out the readers of the archive until the end, so
    -- it comes last
    FOREACH part IN ARRAY array_remove(outbox._cleanup_parts(), 'archive') || text 'archive' LOOP
        LOOP
            SELECT p.removed, p.more INTO step
              FROM outbox._cleanup_part(part, cleanup.retention, cleanup.dead_retention,
                                        rows_max, cleanup.join_retention) p;
            IF part IN ('archive', 'unsorted', 'dead') THEN
                messages := messages + step.removed;
            END IF;
            EXIT WHEN part <> 'archive' OR NOT step.more;
        END LOOP;
    END LOOP;
    RETURN messages;
END
$$;

COMMENT ON FUNCTION outbox.cleanup(interval, interval, integer, interval) IS
    'Removes messages that are kept no longer; returns how many.';
