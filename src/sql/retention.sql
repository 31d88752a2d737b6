-- retention.sql: partitions, and the removal of rows whose retention is over. Serves
-- sql_admin.c; archive.c finds partitions by the names that they get here.
--
-- Each step is short, waits for other transactions only for a moment, and can be
-- repeated: _cleanup_step does one step, and returns whether there is more to do.
-- Nothing is deleted because another row is missing: a dump may be in the process of
-- being restored, table by table.

-- Unlogged, so that it is not replicated: it describes this server only, and what is
-- lost in a crash is determined again.
CREATE UNLOGGED TABLE outbox.cleanup_progress (
    name  text        NOT NULL,
    at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    place bigint      NOT NULL DEFAULT 0,
    CONSTRAINT cleanup_progress_pkey PRIMARY KEY (name)
);

COMMENT ON TABLE outbox.cleanup_progress IS
    'The progress of cleanup, from one step to the next. Not dumped.';
COMMENT ON COLUMN outbox.cleanup_progress.name IS
    'A partition of the archive whose keys are being deleted; "installed"; "in use"; '
    '"settling" and "settled".';
COMMENT ON COLUMN outbox.cleanup_progress.at IS 'When it began.';
COMMENT ON COLUMN outbox.cleanup_progress.place IS
    'The next block of the partition; or the next transaction id at that time.';

-- _begin_progress()
--     Records that rows which exist now may come from a dump. Called by CREATE
--     EXTENSION, and again when a crash has emptied the table.
CREATE FUNCTION outbox._begin_progress()
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO outbox.cleanup_progress (name, place)
    VALUES ('installed', 0),
           ('settling', pg_snapshot_xmax(pg_current_snapshot())::text::bigint)
        ON CONFLICT ON CONSTRAINT cleanup_progress_pkey DO NOTHING
$$;

COMMENT ON FUNCTION outbox._begin_progress() IS
    'Records the time from which on rows are known not to come from a dump.';

SELECT outbox._begin_progress();

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
    'The key of outbox.dedupe for a dedupe key.';

-- _forget_key(namespace, topic, dedupe_key, message_id)
--     Frees a dedupe key that this message has, unless it is taken for longer, or
--     another transaction has locked it. Returns whether it did.
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

-- _forget_publication(namespace, topic, dedupe_key, published_id)
--     Frees the dedupe key of a publication that is no longer kept, and its id if it
--     was given.
CREATE FUNCTION outbox._forget_publication(
    namespace    text,
    topic        text,
    dedupe_key   text,
    published_id uuid
)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_forget_publication';

COMMENT ON FUNCTION outbox._forget_publication(text, text, text, uuid) IS
    'Frees the dedupe key and the id of a publication.';

-- _keep_seconds(keep, setting)
--     Returns how long a retention class is kept; "setting" is for the default class.
--     Null means forever.
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
    'How long a retention class is kept, in seconds; null: forever.';

-- _span(seconds)
--     Returns the time that a partition spans for rows that are kept so long: short
--     enough that rows are not kept for much longer, and long enough that there are
--     not too many partitions.
CREATE FUNCTION outbox._span(seconds double precision)
RETURNS interval
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN seconds < 3600 THEN interval '1 minute'
            WHEN seconds < 21600 THEN interval '10 minutes'
            WHEN seconds < 172800 THEN interval '1 hour'
            ELSE interval '1 day' END;

COMMENT ON FUNCTION outbox._span(double precision) IS
    'The time that a partition of the archive spans.';

-- _classes()
--     Returns the retention classes of done messages that are in use: at most 100,
--     those of the most topics. Messages of other classes go to the unsorted
--     partition.
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
                      WHERE kind IN ('message', 'subscription') AND retention IS NOT NULL) t
              WHERE t.seconds < 0 OR t.seconds >= 0.5
              GROUP BY 1
              ORDER BY 2 DESC, 1
              LIMIT 100)) c
$$;

COMMENT ON FUNCTION outbox._classes() IS
    'The retention classes in use, and the time that their partitions span.';

-- _partitions()
--     Returns the partitions of the archive whose names have the form that is used
--     here: their class, their beginning, and their end.
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

COMMENT ON FUNCTION outbox._partitions() IS 'The partitions of the archive, with their bounds.';

-- _add_partition(parent, name, keys, more_keys, bounds, remark)
--     Creates a partition, with a primary key on the first of the keys, and indexes
--     on the others, and on more keys. False if there is a table of that name. All
--     settings that could make one partition differ from another are pinned here,
--     except for timezone and datestyle, which the callers pin, because they format
--     the bounds.
CREATE FUNCTION outbox._add_partition(
    parent      text,
    name        text,
    keys        text[],
    more_keys   text[],
    bounds      text,
    remark      text
)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
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
AS $$
DECLARE
    like_it record;
    key     text;
BEGIN
    -- a table of that name that is not attached is about to be: it is being restored
    IF to_regclass('outbox.' || name) IS NOT NULL THEN
        RETURN false;
    END IF;
    -- use the tablespace and the owner of the parent, so that the result does not
    -- depend on the session that first needs the partition; and event triggers find
    -- the same settings each time
    SELECT c.relowner::regrole AS owner, coalesce(s.spcname, '') AS tablespace
      INTO like_it
      FROM pg_class c
      LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace
     WHERE c.oid = format('outbox.%I', parent)::regclass;
    PERFORM set_config('default_tablespace', like_it.tablespace, true);
    -- Create a separate table, and then attach it: that does not wait for
    -- transactions that read or write other partitions. The parent has no indexes,
    -- because attaching would create them, and a dump, which creates them too, could
    -- not be restored.
    EXECUTE format('CREATE TABLE outbox.%I (LIKE outbox.%I'
                   ' INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING COMMENTS)',
                   name, parent);
    EXECUTE format('ALTER TABLE outbox.%I ADD PRIMARY KEY %s WITH (deduplicate_items = off)',
                   name, keys[1]);
    FOREACH key IN ARRAY keys[2:] LOOP
        EXECUTE format('CREATE INDEX ON outbox.%I %s WITH (deduplicate_items = off)', name, key);
    END LOOP;
    FOREACH key IN ARRAY more_keys LOOP
        EXECUTE format('CREATE INDEX ON outbox.%I %s', name, key);
    END LOOP;
    EXECUTE format('ALTER TABLE outbox.%I OWNER TO %s', name, like_it.owner);
    EXECUTE format('REVOKE ALL ON TYPE outbox.%I FROM PUBLIC', name);
    EXECUTE format('ALTER TABLE outbox.%I ATTACH PARTITION outbox.%I FOR VALUES %s',
                   parent, name, bounds);
    EXECUTE format('COMMENT ON TABLE outbox.%I IS %L', name, remark);
    RETURN true;
END
$$;

COMMENT ON FUNCTION outbox._add_partition(text, text, text[], text[], text, text) IS
    'Creates a partition.';

-- _make_partition(keep, at, span)
--     Creates the partition of the archive for a retention class and the span that
--     contains the time "at", unless there is one for that time. If a part of the
--     span has a partition, creates one for a shorter span. False if there is nothing
--     to create, or if another transaction has locked the archive.
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
SET lock_timeout = '200ms'
AS $$
DECLARE
    since   timestamptz;
    name    text;
BEGIN
    IF EXISTS (SELECT FROM outbox._partitions() p
                WHERE p.keep = _make_partition.keep
                  AND _make_partition.at >= p.since AND _make_partition.at < p.until)
    THEN
        RETURN false;
    END IF;
    LOCK TABLE outbox.archive IN SHARE UPDATE EXCLUSIVE MODE;
    -- the longest span that is free; the last holder of the lock may have created it
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
    RETURN outbox._add_partition(
        'archive', name, '{"(id, processed_at)", "(message_id)"}',
        '{(published_at) WHERE published_at IS NOT NULL,(caused_by) WHERE caused_by IS NOT NULL}',
        format('FROM (%s, %L) TO (%s, %L)', keep, since, keep, since + span),
        format('Messages done from %s until %s; a partition of outbox.archive.',
               since, since + span));
EXCEPTION
    WHEN lock_not_available THEN
        RETURN false;
END
$$;

COMMENT ON FUNCTION outbox._make_partition(integer, timestamptz, interval) IS
    'Creates the partition of the archive for a time, unless it exists.';

-- _make_partitions()
--     Creates the present and the next partition of the archive for each retention
--     class in use; returns how many. Creates none before there is something to keep,
--     because a dump that is being restored contains its own partitions, and creates
--     all of them before it loads the first row. But what comes by logical replication
--     needs them before it can come.
CREATE FUNCTION outbox._make_partitions()
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM outbox.cleanup_progress c WHERE c.name = 'in use') THEN
        IF NOT outbox._is_replicated()
           AND NOT EXISTS (SELECT FROM pg_inherits i
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
    'Creates the partitions of the archive that will be needed.';

-- _dependents(relation)
--     Returns objects of users that depend on a table or its row type; null if there
--     are none.
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

COMMENT ON FUNCTION outbox._dependents(regclass) IS 'Objects of users that depend on a table.';

-- _overdue_partitions(retention)
--     Returns partitions of the archive whose retention is over; "retention" is for
--     the default class.
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
    'Partitions of the archive whose retention is over.';

-- _drop_partition(relation)
--     Drops a partition of the archive, or of publications. If another transaction is
--     reading it, it stays until the next time; if objects of users depend on it, it
--     is truncated instead. Returns how many rows it had, according to statistics.
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
       AND i.inhparent IN ('outbox.archive'::regclass, 'outbox.publications'::regclass)
       AND c.relname NOT IN ('archive_unsorted', 'publications_unsorted');
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
    RAISE WARNING 'partition % was truncated, because it cannot be dropped', partition
        USING DETAIL = format('These depend on it: %s.', dependents),
              HINT = 'Drop them, or make them depend on outbox.messages instead.';
    RETURN held;
EXCEPTION
    WHEN lock_not_available OR deadlock_detected THEN
        RETURN 0;
    -- go on to the other partitions; status() reports this one
    WHEN dependent_objects_still_exist OR feature_not_supported OR undefined_table
         OR object_in_use OR raise_exception OR insufficient_privilege
         OR object_not_in_prerequisite_state THEN
        RAISE WARNING 'could not drop partition %: %', partition, SQLERRM;
        RETURN 0;
END
$$;

COMMENT ON FUNCTION outbox._drop_partition(regclass) IS 'Drops a partition, or truncates it.';

-- _forget_keys(relation, blocks)
--     Frees the dedupe keys of messages in a partition that will be dropped, in so
--     many of its blocks, and in the next blocks at the next call. False if there are
--     none left; null if another cleanup is doing this, or the partition is locked.
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
        'SELECT count(*) FILTER (WHERE %s) FROM outbox.%I WHERE ctid >= %L AND ctid < %L AND %s',
        CASE WHEN partition LIKE 'publications!_%' ESCAPE '!'
             THEN 'outbox._forget_publication(namespace, topic, dedupe_key, published_id)'
             ELSE 'outbox._forget_key(namespace, topic, dedupe_key, message_id)' END,
        partition, format('(%s,0)', place), format('(%s,0)', place + blocks),
        CASE WHEN partition LIKE 'publications!_%' ESCAPE '!'
             THEN '(dedupe_key IS NOT NULL OR given)'
             ELSE 'dedupe_key IS NOT NULL' END);
    UPDATE outbox.cleanup_progress c SET place = c.place + blocks WHERE c.name = partition;
    RETURN true;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN NULL;
    WHEN undefined_table THEN
        IF EXISTS (SELECT FROM pg_class c WHERE c.oid = _forget_keys.relation) THEN
            RAISE;
        END IF;
        -- another cleanup has just dropped it
        RETURN NULL;
END
$$;

COMMENT ON FUNCTION outbox._forget_keys(regclass, integer) IS
    'Frees dedupe keys of messages in a partition that will be dropped.';

-- _drop_partitions(retention, batch_limit)
--     Does one step of dropping a partition whose retention is over. "more" is true
--     if it did something, "dropped" is 1 if that was the last step.
CREATE FUNCTION outbox._drop_partitions(
    retention   interval,
    batch_limit integer,
    OUT removed bigint,
    OUT more    boolean,
    OUT dropped integer
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
    dropped := 0;
    FOR overdue IN
        SELECT p.relation, outbox._dependents(p.relation) AS dependents
          FROM outbox._overdue_partitions(_drop_partitions.retention) p
    LOOP
        -- a block has about 25 messages
        is_left := outbox._forget_keys(overdue.relation, greatest(batch_limit / 25, 1));
        IF is_left THEN
            more := true;
            RETURN;
        ELSIF is_left IS NOT NULL THEN
            removed := outbox._drop_partition(overdue.relation);
            -- a partition that cannot be dropped now does not block others
            more := NOT EXISTS (SELECT FROM pg_class WHERE oid = overdue.relation);
            dropped := more::integer;
            EXIT WHEN more;
        END IF;
        -- but each failed try takes a moment
        tries := tries + CASE WHEN overdue.dependents IS NULL THEN 1 ELSE 0 END;
        EXIT WHEN tries = 5;
    END LOOP;
END
$$;

COMMENT ON FUNCTION outbox._drop_partitions(interval, integer) IS
    'One step of dropping a partition whose retention is over.';

-- _make_publication_partition(day)
--     Creates the partition of publications for a day, unless it exists.
CREATE FUNCTION outbox._make_publication_partition(day date)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC'
SET datestyle = 'ISO, MDY'
SET lock_timeout = '200ms'
AS $$
BEGIN
    IF to_regclass('outbox.publications_' || to_char(day, 'YYYYMMDD')) IS NOT NULL THEN
        RETURN false;
    END IF;
    LOCK TABLE outbox.publications IN SHARE UPDATE EXCLUSIVE MODE;
    RETURN outbox._add_partition(
        'publications', 'publications_' || to_char(day, 'YYYYMMDD'),
        '{(seq), (published_id)}', '{(xid)}',
        format('FROM (%L) TO (%L)', day, day + 1),
        format('Published on %s; a partition of outbox.publications.', day));
EXCEPTION
    WHEN lock_not_available THEN
        RETURN false;
END
$$;

COMMENT ON FUNCTION outbox._make_publication_partition(date) IS
    'Creates the partition of publications for a day.';

-- _make_publication_partitions()
--     Creates the partitions of publications for today and tomorrow, if there will be
--     something to keep in them, or something may come by logical replication; returns
--     how many.
CREATE FUNCTION outbox._make_publication_partitions()
RETURNS bigint
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT count(*) FILTER (WHERE outbox._make_publication_partition(
               (clock_timestamp() AT TIME ZONE 'UTC')::date + ahead))
      FROM generate_series(0, 1) ahead
     WHERE outbox._keeps_publications()
        OR outbox._is_replicated()
        OR EXISTS (SELECT FROM outbox.publications)
$$;

COMMENT ON FUNCTION outbox._make_publication_partitions() IS
    'Creates the partitions of publications that will be needed.';

-- _publications_needed(relation, since, until, retention)
--     Returns whether a partition with publications of this period is still needed.
--     "retention" is how long dedupe keys, and empty partitions, are kept.
CREATE FUNCTION outbox._publications_needed(
    relation  regclass,
    since     timestamptz,
    until     timestamptz,
    retention interval
)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now    timestamptz := clock_timestamp();
    longest interval;
    needed boolean;
BEGIN
    IF until > now
       OR EXISTS (SELECT FROM outbox.replays)
       OR EXISTS (SELECT FROM outbox.expansions e
                   WHERE e.published_at >= since AND e.published_at < until)
       OR EXISTS (SELECT FROM outbox.queue q
                   WHERE q.published_at >= since AND q.published_at < until)
       OR EXISTS (SELECT FROM outbox.dead d
                   WHERE d.published_at >= since AND d.published_at < until)
       OR EXISTS (SELECT FROM outbox.archive a
                   WHERE a.published_at >= since AND a.published_at < until)
    THEN
        RETURN true;
    END IF;
    SELECT CASE WHEN bool_or(k.kept < '0') THEN NULL ELSE max(k.kept) END INTO longest
      FROM (SELECT current_setting('outbox.publish_retention')::interval
            UNION ALL
            SELECT t.publish_retention FROM outbox.topics t
             WHERE t.publish_retention IS NOT NULL) k(kept);
    -- null is forever
    IF coalesce(until + longest > now, true) THEN
        EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE kept)', relation) INTO needed;
        IF needed THEN
            RETURN true;
        END IF;
    END IF;
    IF retention < '0' OR until + retention > now THEN
        -- an empty one may still get rows from a dump, as with the archive
        EXECUTE format('SELECT NOT EXISTS (SELECT FROM %1$s)'
                       ' OR EXISTS (SELECT FROM %1$s WHERE dedupe_key IS NOT NULL OR given)',
                       relation) INTO needed;
    END IF;
    RETURN coalesce(needed, false);
END
$$;

COMMENT ON FUNCTION outbox._publications_needed(regclass, timestamptz, timestamptz, interval) IS
    'Whether publications of a time are still needed.';

-- _overdue_publications()
--     Returns partitions of publications that have not been needed for a day, or that
--     cannot be dropped because objects of users depend on them.
CREATE FUNCTION outbox._overdue_publications()
RETURNS TABLE (relation regclass, name name, dependents text)
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC'
AS $$
    SELECT p.relation, p.name, d.dependents
      FROM (SELECT c.oid::regclass AS relation, c.relname AS name,
                   to_date(m.day[1], 'YYYYMMDD')::timestamptz AS since
              FROM pg_inherits i
              JOIN pg_class c ON c.oid = i.inhrelid
             CROSS JOIN regexp_match(c.relname, '^publications_([0-9]{8})$') m(day)
             WHERE i.inhparent = 'outbox.publications'::regclass AND m.day IS NOT NULL) p
     CROSS JOIN LATERAL (SELECT outbox._dependents(p.relation) AS dependents) d
     WHERE CASE WHEN p.since + interval '1 day' <= clock_timestamp()
                THEN NOT outbox._publications_needed(
                             p.relation, p.since, p.since + interval '1 day',
                             current_setting('outbox.retention')::interval + interval '1 day')
           END
     ORDER BY p.name
$$;

COMMENT ON FUNCTION outbox._overdue_publications() IS
    'Partitions of publications that are no longer needed.';

-- _lock_unneeded_publications(relation, since, until, retention)
--     Locks a partition of publications that was found unneeded, before it is
--     dropped. False if another transaction is using it, or has committed something
--     in it in the meantime; and above READ COMMITTED, where the latter cannot be
--     seen.
CREATE FUNCTION outbox._lock_unneeded_publications(
    relation  regclass,
    since     timestamptz,
    until     timestamptz,
    retention interval
)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '200ms'
AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN false;
    END IF;
    EXECUTE format('LOCK TABLE ONLY outbox.publications, ONLY %s IN ACCESS EXCLUSIVE MODE',
                   relation);
    IF outbox._publications_needed(relation, since, until, retention) THEN
        -- this releases the locks, too
        RAISE EXCEPTION 'needed' USING ERRCODE = 'lock_not_available';
    END IF;
    RETURN true;
EXCEPTION
    WHEN lock_not_available OR deadlock_detected OR undefined_table THEN
        RETURN false;
END
$$;

COMMENT ON FUNCTION
    outbox._lock_unneeded_publications(regclass, timestamptz, timestamptz, interval) IS
    'Locks a partition of publications that is no longer needed.';

-- _drop_publications(retention, batch_limit, more)
--     Does one step of dropping a partition of publications that is no longer needed,
--     or of deleting unsorted publications that are no longer needed.
CREATE FUNCTION outbox._drop_publications(
    retention   interval,
    batch_limit integer,
    OUT removed bigint,
    OUT more    boolean
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC'
AS $$
DECLARE
    part    record;
    is_left boolean;
    seen    pg_snapshot;
BEGIN
    removed := 0;
    more := false;
    FOR part IN
        SELECT c.oid::regclass AS relation, to_date(m.day[1], 'YYYYMMDD')::timestamptz AS since,
               (to_date(m.day[1], 'YYYYMMDD') + 1)::timestamptz AS until
          FROM pg_inherits i
          JOIN pg_class c ON c.oid = i.inhrelid
         CROSS JOIN regexp_match(c.relname, '^publications_([0-9]{8})$') m(day)
         WHERE i.inhparent = 'outbox.publications'::regclass AND m.day IS NOT NULL
         ORDER BY c.relname
    LOOP
        CONTINUE WHEN outbox._publications_needed(part.relation, part.since, part.until, retention);
        is_left := outbox._forget_keys(part.relation, greatest(batch_limit / 25, 1));
        IF is_left THEN
            more := true;
            RETURN;
        ELSIF is_left IS NOT NULL THEN
            CONTINUE WHEN NOT outbox._lock_unneeded_publications(part.relation, part.since,
                                                                 part.until, retention);
            removed := outbox._drop_partition(part.relation);
            more := NOT EXISTS (SELECT FROM pg_class WHERE oid = part.relation);
            EXIT WHEN more;
        END IF;
    END LOOP;
    -- unsorted publications of the oldest day, except for those that came after the
    -- check
    seen := pg_current_snapshot();
    FOR part IN
        SELECT date_trunc('day', min(p.published_at)) AS since FROM outbox.publications_unsorted p
    LOOP
        IF part.since IS NOT NULL
           AND NOT outbox._publications_needed('outbox.publications_unsorted', part.since,
                                               part.since + interval '1 day', retention)
        THEN
            WITH gone AS (
                DELETE FROM outbox.publications_unsorted
                 WHERE ctid = ANY (ARRAY(
                           SELECT p.ctid FROM outbox.publications_unsorted p
                            WHERE p.published_at < part.since + interval '1 day'
                              AND pg_visible_in_snapshot(p.xid, seen)
                            LIMIT batch_limit
                              FOR UPDATE SKIP LOCKED))
                RETURNING outbox._forget_publication(namespace, topic, dedupe_key, published_id)
            )
            SELECT removed + count(*), more OR count(*) = batch_limit INTO removed, more FROM gone;
        END IF;
    END LOOP;
END
$$;

COMMENT ON FUNCTION outbox._drop_publications(interval, integer) IS
    'One step of removing publications that are no longer needed.';

-- _purge_rows(tab, condition, cutoff, batch_limit, keys)
--     Deletes rows that meet a condition, in which $1 is the cutoff, with their
--     dedupe keys if "keys" is set; returns how many.
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
    'Deletes rows whose retention is over, with their dedupe keys.';

-- _purge_history(tab, setting, first_keep, batch_limit, keys)
--     Deletes rows of a history table that has an index on (keep, processed_at),
--     class by class; returns how many, at most batch_limit. "setting" is for the
--     default class; first_keep is the class that stands for 0 seconds in the table.
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
    'Deletes rows of a history table whose retention is over.';

-- _purge_memory(tab, condition, batch_limit)
--     Deletes rows that are older than outbox.deduplication_retention; returns how
--     many.
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
    'Deletes rows that are older than outbox.deduplication_retention.';

-- _settled_age()
--     Returns the smallest age, in transactions, of rows that have been in this
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
    'The age, in transactions, of a row that was written in this database a day ago.';

-- _purge_joins(retention, batch_limit, at_once)
--     Deletes joins that ended so long ago, with their members, unless a message
--     waits for them; returns how many rows. If a join came with a dump, its waits
--     may not be loaded yet: unless at_once is set, such a join must have been in
--     this database for a day.
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
    IF NOT FOUND THEN
        PERFORM outbox._begin_progress();
    END IF;
    settled := outbox._settled_age();
    -- skip joins that other transactions have locked
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
    -- a wait may have been inserted before the join was locked
    DELETE FROM outbox.joins j
     WHERE j.join_id = ANY (ended)
       AND NOT EXISTS (SELECT FROM outbox.join_members m WHERE m.join_id = j.join_id)
       AND NOT EXISTS (SELECT FROM outbox.join_waits w WHERE w.join_id = j.join_id);
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN members + removed;
END
$$;

COMMENT ON FUNCTION outbox._purge_joins(interval, integer, boolean) IS
    'Deletes joins whose retention is over.';

-- _cleanup_parts()
--     The valid arguments of _cleanup_part.
CREATE FUNCTION outbox._cleanup_parts()
RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN '{partitions, archive, unsorted, dead, inbox_done, inbox_dead, timer_done, timer_dead,
         run_done, run_dead, keys, received, receptors, perspectives, joins,
         publications, depth}'::pg_catalog.text[];

COMMENT ON FUNCTION outbox._cleanup_parts() IS 'The parts of cleanup.';

-- _cleanup_part(part, retention, dead_retention, batch_limit, join_retention)
--     Does one step of a part of cleanup: returns how much was removed, whether there
--     may be more, and how many partitions were dropped. Null arguments stand for the
--     settings.
CREATE FUNCTION outbox._cleanup_part(
    part           text,
    retention      interval,
    dead_retention interval,
    batch_limit    integer,
    join_retention interval,
    OUT removed    bigint,
    OUT more       boolean,
    OUT dropped    integer
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
    depth_setting interval := current_setting('outbox.depth_retention');
BEGIN
    dropped := 0;
    CASE part
        WHEN 'partitions' THEN
            removed := 0;
            more := false;
            PERFORM outbox._make_partitions(), outbox._make_publication_partitions(),
                    outbox._forget_counters();
        WHEN 'archive' THEN
            SELECT d.removed, d.more, d.dropped INTO removed, more, dropped
              FROM outbox._drop_partitions(done_setting, batch_limit) d;
        WHEN 'unsorted' THEN
            removed := outbox._purge_history('outbox.archive_unsorted', done_setting,
                                             -2147483645, batch_limit, true);
        WHEN 'dead' THEN
            removed := outbox._purge_history('outbox.dead', dead_setting, 0, batch_limit, true);
        WHEN 'keys' THEN
            removed := outbox._purge_rows('outbox.dedupe',
                'taken_until <= $1 ORDER BY taken_until', clock_timestamp(), batch_limit, false);
        WHEN 'received' THEN
            removed := outbox._purge_memory('outbox.message_deduplication',
                'first_seen_at < $1 ORDER BY first_seen_at', batch_limit);
        WHEN 'receptors' THEN
            removed := outbox._purge_memory('outbox.receptor_processing',
                'coalesce(processed_at, started_at) < $1 AND status <> 1', batch_limit);
        WHEN 'perspectives' THEN
            removed := outbox._purge_memory('outbox.perspective_checkpoints',
                'processed_at < $1', batch_limit);
        WHEN 'publications' THEN
            SELECT d.removed, d.more INTO removed, more
              FROM outbox._drop_publications(done_setting, batch_limit) d;
        WHEN 'depth' THEN
            removed := CASE WHEN depth_setting >= '0' THEN
                           outbox._purge_rows('outbox.depth',
                               'sampled_at < $1 ORDER BY sampled_at',
                               clock_timestamp() - depth_setting, batch_limit, false)
                       ELSE 0 END;
        WHEN 'joins' THEN
            removed := outbox._purge_joins(join_setting, batch_limit,
                                           _cleanup_part.join_retention IS NOT NULL);
        ELSE
            -- callers of _cleanup_step name the table
            IF part IS NULL OR part <> ALL (outbox._cleanup_parts()) THEN
                RAISE EXCEPTION 'unknown part "%" of cleanup', part
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
--     Does one step of a part of cleanup, according to the settings: returns 1 if
--     there may be more, else 0. Each call should be in a transaction of its own.
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
--     Returns the longest interval between two cleanups, in milliseconds, such that
--     partitions are created in time, and that rows and keys with a retention of
--     minutes do not stay for an hour.
CREATE FUNCTION outbox._cleanup_interval()
RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT least(3600000, extract(epoch FROM min(outbox._span(k.seconds))) * 500,
                 (SELECT greatest(30000, 1000 * extract(epoch FROM d.taken_until
                                                                   - clock_timestamp()))
                    FROM outbox.dedupe d
                   WHERE d.taken_until IS NOT NULL
                   ORDER BY d.taken_until
                   LIMIT 1))::bigint
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
    'The longest interval between two cleanups, in milliseconds.';

-- cleanup(retention, dead_retention, batch_limit, join_retention)
--     Removes what is no longer kept, and creates the next partitions of the archive.
--     Done messages are removed with their partition; if a retention is given here,
--     all that were done before are deleted, wherever they are. Up to batch_limit
--     (10000) rows are deleted from each table. At most 100 partitions are dropped,
--     because each takes about eight entries in the server's lock table until the end
--     of the transaction. The arguments replace outbox.retention,
--     outbox.dead_retention and outbox.join_retention; topics that have their own
--     settings keep them. Returns how many messages were removed.
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
    dropped  integer := 0;
    part     text;
    step     record;
    current  record;
BEGIN
    PERFORM outbox._check_limit('batch_limit', cleanup.batch_limit);
    PERFORM outbox._writes('outbox.cleanup()');
    -- first, partitions of which only a part is too old
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
    -- dropping partitions locks out readers of the archive until the end of the
    -- transaction, so it comes last
    FOREACH part IN ARRAY array_remove(outbox._cleanup_parts(), 'archive') || text 'archive' LOOP
        LOOP
            SELECT p.removed, p.more, p.dropped INTO step
              FROM outbox._cleanup_part(part, cleanup.retention, cleanup.dead_retention,
                                        rows_max, cleanup.join_retention) p;
            IF part IN ('archive', 'unsorted', 'dead') THEN
                messages := messages + step.removed;
            END IF;
            EXIT WHEN part <> 'archive' OR NOT step.more;
            dropped := dropped + step.dropped;
            EXIT WHEN dropped = 100;
        END LOOP;
    END LOOP;
    RETURN messages;
END
$$;

COMMENT ON FUNCTION outbox.cleanup(interval, interval, integer, interval) IS
    'Removes messages whose retention is over; returns how many.';
