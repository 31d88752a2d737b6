-- health.sql: rows of status() about what keeps messages from being delivered without an
-- error anywhere: transactions that stay open, streams that do not move on, messages
-- that were received and are not claimed, settings, triggers. Serves sql_status.c.

-- _lockers(age)
--     Sessions whose transactions are older than that, and keep others from the tables:
--     they have written them, or hold a lock with which others cannot write, or others wait
--     for them that ask for such a lock, behind whom all must wait. Those that ask for one
--     are among them, with "waits"; "alone" says that others cannot even read. VACUUM,
--     which gives way, is not.
CREATE FUNCTION outbox._lockers(age interval)
RETURNS TABLE (
    pid        integer,
    who        text,
    xact_start timestamptz,
    waits      boolean,
    alone      boolean,
    blocked    bigint
)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH locks AS MATERIALIZED (
        SELECT k.pid, k.granted, k.mode, c.relname
          FROM pg_locks k
          JOIN pg_class c ON c.oid = k.relation AND c.relnamespace = 'outbox'::regnamespace
         WHERE k.locktype = 'relation'
           AND k.mode IN ('RowExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock',
                          'ExclusiveLock', 'AccessExclusiveLock')
           AND k.database = (SELECT d.oid FROM pg_database d
                              WHERE d.datname = current_database())
           AND k.pid <> pg_backend_pid()
    ), strong AS MATERIALIZED (
        SELECT l.pid, bool_or(NOT l.granted) AS waits,
               bool_or(l.mode = 'AccessExclusiveLock') AS alone,
               string_agg(DISTINCT format('%s on outbox.%s', l.mode, l.relname), ', ') AS locks
          FROM locks l
         WHERE l.mode <> 'RowExclusiveLock'
         GROUP BY l.pid
    ), sessions AS (
        SELECT l.pid FROM locks l WHERE l.granted
        UNION
        SELECT g.pid FROM strong g
        UNION
        SELECT b.pid FROM strong g, unnest(pg_blocking_pids(g.pid)) b(pid) WHERE g.waits
    ), known AS MATERIALIZED (
        SELECT a.pid, a.backend_type, a.application_name, a.state, a.xact_start
          FROM sessions o
          JOIN pg_stat_activity a ON a.pid = o.pid
         -- on a standby the startup process has no such time
         WHERE (a.xact_start < clock_timestamp() - _lockers.age OR _lockers.age = interval '0')
           AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
    ), blockers AS MATERIALIZED (
        -- one look at the table of locks for each session that waits, and none in vain
        SELECT b.pid, count(DISTINCT w.pid) AS n
          FROM pg_stat_activity w, unnest(pg_blocking_pids(w.pid)) b(pid)
         WHERE w.wait_event_type = 'Lock' AND EXISTS (SELECT FROM known)
         GROUP BY b.pid
    )
    SELECT a.pid,
           concat_ws(', ', format('process %s', a.pid),
                     nullif(a.backend_type, 'client backend'),
                     'application ' || nullif(a.application_name, ''), a.state,
                     'since ' || date_trunc('second', a.xact_start),
                     CASE WHEN g.waits THEN 'waits for ' ELSE 'has ' END || g.locks,
                     format('%s others wait for it', coalesce(w.n, 0))),
           a.xact_start, coalesce(g.waits, false), coalesce(g.alone, false), coalesce(w.n, 0)
      FROM known a
      LEFT JOIN strong g ON g.pid = a.pid
      LEFT JOIN blockers w ON w.pid = a.pid
$$;

COMMENT ON FUNCTION outbox._lockers(interval) IS
    'Sessions whose transactions keep others from the tables.';

-- _preparers(age)
--     Prepared transactions that are older than that, and keep others from the tables. They
--     have no process, so nothing says who waits for them.
CREATE FUNCTION outbox._preparers(age interval)
RETURNS TABLE (
    who      text,
    prepared timestamptz,
    strong   boolean
)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT concat_ws(', ', format('%L since %s', x.gid, date_trunc('second', x.prepared)),
                     'has ' || string_agg(DISTINCT format('%s on outbox.%s', k.mode, c.relname),
                                          ', ') FILTER (WHERE k.mode <> 'RowExclusiveLock')),
           x.prepared, bool_or(k.mode <> 'RowExclusiveLock')
      FROM pg_locks k
      JOIN pg_class c ON c.oid = k.relation AND c.relnamespace = 'outbox'::regnamespace
      JOIN pg_locks i ON i.virtualtransaction = k.virtualtransaction
                     AND i.locktype = 'transactionid' AND i.mode = 'ExclusiveLock'
      JOIN pg_prepared_xacts x ON x.transaction = i.transactionid
     WHERE k.locktype = 'relation' AND k.pid IS NULL
       AND k.mode NOT IN ('AccessShareLock', 'RowShareLock', 'ShareUpdateExclusiveLock')
       AND k.database = (SELECT d.oid FROM pg_database d
                          WHERE d.datname = current_database())
       AND x.prepared < clock_timestamp() - _preparers.age
     GROUP BY x.gid, x.prepared
$$;

COMMENT ON FUNCTION outbox._preparers(interval) IS
    'Prepared transactions that keep others from the tables.';

-- _transaction_status()
--     The rows of status() about transactions that stay open after they have written a
--     live table, or locked one: others do not see their messages, cannot claim what they
--     have claimed, and wait for their turn in a stream, or for the lock.
CREATE FUNCTION outbox._transaction_status()
RETURNS TABLE (component text, ok boolean, status text, detail text, hint text)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'open transactions', count(*) = 0, count(*)::text,
           left(string_agg(s.who, '; ' ORDER BY s.blocked DESC, s.xact_start), 500),
           CASE WHEN count(*) > 0 THEN
               'What they have enqueued cannot be seen, what they have claimed cannot be claimed, '
               'and producers of their streams wait, as does what needs a table that they have '
               'locked. Commit, or pg_terminate_backend().' END
      FROM outbox._lockers('1 minute') s
      JOIN pg_stat_activity a ON a.pid = s.pid
     -- those that wait for them are counted with them
     WHERE a.wait_event_type IS DISTINCT FROM 'Lock'
    UNION ALL
    SELECT 'prepared transactions', count(*) = 0, count(*)::text,
           left(string_agg(p.who, '; ' ORDER BY p.prepared), 500),
           CASE WHEN count(*) > 0 THEN
               'They hold messages as open transactions do. COMMIT PREPARED or ROLLBACK '
               'PREPARED.' END
      FROM outbox._preparers('1 minute') p
$$;

COMMENT ON FUNCTION outbox._transaction_status() IS
    'The rows of status() about transactions that stay open.';

-- _locked_status()
--     The rows of status() while tables cannot be read: this reads none.
CREATE FUNCTION outbox._locked_status()
RETURNS TABLE (component text, ok boolean, status text, detail text, hint text)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'locked tables', false, 'cannot be read',
           left(string_agg(l.who, '; ' ORDER BY l.waits, l.blocked DESC NULLS FIRST, l.since), 500),
           'Until then nothing can be enqueued or claimed, and other rows are not known. Let the '
           'first of these end, or pg_cancel_backend() what waits for the lock.'
      FROM (SELECT s.who, s.waits, s.blocked, s.xact_start
              FROM outbox._lockers('0') s
             WHERE s.waits OR s.blocked > 0 OR s.alone
            UNION ALL
            -- one that has only written blocks who asks for a strong lock
            SELECT 'prepared transaction ' || p.who, false, CASE WHEN NOT p.strong THEN 0 END,
                   p.prepared
              FROM outbox._preparers('0') p) l (who, waits, blocked, since)
    UNION ALL
    SELECT * FROM outbox._transaction_status()
$$;

COMMENT ON FUNCTION outbox._locked_status() IS
    'The rows of status() while tables cannot be read.';

-- _waiting_streams()
--     Returns the streams to look at for one that does not move on, and the first
--     message of each: 5000 of them, and, if there are more, those of the messages that
--     have been due for the longest time in each lane, which is where messages wait
--     behind such a one. So the cost is bounded, however many streams and lanes there
--     are.
CREATE FUNCTION outbox._waiting_streams()
RETURNS TABLE (stream_id uuid, id bigint)
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1000
AS 'MODULE_PATHNAME', 'outbox_waiting_streams';

COMMENT ON FUNCTION outbox._waiting_streams() IS
    'The streams to look at for one that does not move on.';

-- _all_waiting_streams()
--     Returns the ids of the first messages, for callers that need them more than once.
CREATE FUNCTION outbox._all_waiting_streams()
RETURNS bigint[]
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT ARRAY(SELECT s.id FROM outbox._waiting_streams() s) $$;

COMMENT ON FUNCTION outbox._all_waiting_streams() IS
    'The first messages of the streams to look at.';

-- _stream_status(heads)
--     The row of status() about streams whose first message is not claimable for a
--     while, with others behind it, of those that _waiting_streams finds, or of these.
CREATE FUNCTION outbox._stream_status(heads bigint[] DEFAULT NULL)
RETURNS TABLE (component text, ok boolean, status text, detail text, hint text)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
    WITH heads AS (
        SELECT h.*
          FROM unnest(coalesce(_stream_status.heads, outbox._all_waiting_streams())) s(id)
          JOIN outbox.queue h ON h.id = s.id
         WHERE ((h.status = 0 AND h.next_attempt_at > now())
                OR (h.status = 1 AND h.updated_at < now() - interval '5 minutes'))
           AND EXISTS (SELECT FROM outbox.queue b
                        WHERE b.stream_id = h.stream_id AND b.stream_seq > h.stream_seq
                          AND b.next_attempt_at < now() - interval '5 minutes')
    )
    SELECT 'streams', count(*) = 0, format('%s stuck', count(*)),
           left(string_agg(format('message %s of topic "%s", %s', h.id, h.topic,
                                  CASE WHEN h.status = 1
                                       THEN format('leased until %s',
                                                   date_trunc('second', h.locked_until))
                                       ELSE format('due %s, after %s failed attempts',
                                                   date_trunc('second', h.next_attempt_at),
                                                   h.retry_count) END), '; '
                           ORDER BY h.id), 500),
           CASE WHEN count(*) > 0 THEN
               'Others of their streams have been waiting behind them for five minutes: see '
               'outbox.stream_heads. outbox.reschedule makes them due, outbox.discard lets the '
               'others pass.' END
      FROM heads h
$$;

COMMENT ON FUNCTION outbox._stream_status(bigint[]) IS
    'The row of status() about streams that do not move on.';

-- _paused_status()
--     The row of status() about topics, subscriptions and other work that is paused while
--     something has been waiting for an hour.
CREATE FUNCTION outbox._paused_status()
RETURNS TABLE (component text, ok boolean, status text, detail text, hint text)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH topics AS MATERIALIZED (
        SELECT t.kind, t.namespace, t.topic
          FROM outbox.topics t
         WHERE t.paused
         LIMIT 1000
    ), waiting AS MATERIALIZED (
        SELECT s.namespace, s.topic, s.subscription, s.oldest_ready_at
          FROM outbox.topic_stats s
         WHERE s.paused AND EXISTS (SELECT FROM topics)
    ), paused AS (
        SELECT t.kind, t.namespace, t.topic, min(s.oldest_ready_at) AS since
          FROM topics t
          LEFT JOIN waiting s
            ON s.namespace = t.namespace
           AND CASE t.kind WHEN 'message' THEN s.subscription IS NULL AND s.topic = t.topic
                           WHEN 'subscription' THEN s.subscription = t.topic END
         GROUP BY t.kind, t.namespace, t.topic
    )
    SELECT 'paused', coalesce(min(p.since) > now() - interval '1 hour', true), count(*)::text,
           left(string_agg(format('%s %s/%s%s', p.kind, p.namespace, p.topic,
                                  ', with messages due since '
                                  || date_trunc('second', p.since)::text),
                           '; ' ORDER BY p.since, p.kind, p.namespace, p.topic), 500),
           CASE WHEN min(p.since) <= now() - interval '1 hour' THEN
               'Nothing of them is handed out: outbox.resume_topic, outbox.resume_subscription.'
           END
      FROM paused p
$$;

COMMENT ON FUNCTION outbox._paused_status() IS 'The row of status() about what is paused.';

-- _inbox_status()
--     The rows of status() about received messages that are not claimed, of those that
--     _lane_counts finds.
CREATE FUNCTION outbox._inbox_status()
RETURNS TABLE (component text, ok boolean, status text, detail text, hint text)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH stats AS (
        SELECT min(l.oldest_ready_at) AS oldest, sum(l.expired)::bigint AS expired,
               sum(l.failing)::bigint AS failing, l.topic AS handler_name
          FROM outbox._lane_counts('outbox.inbox_queue') l
          LEFT JOIN outbox.topics t
            ON t.kind = 'inbox' AND t.namespace = l.namespace AND t.topic = l.topic
         WHERE NOT coalesce(t.paused, false)
         GROUP BY l.topic
    ), sums AS (
        SELECT min(oldest) AS oldest,
               (array_agg(handler_name ORDER BY oldest)
                    FILTER (WHERE oldest IS NOT NULL))[1] AS oldest_name,
               coalesce(sum(expired), 0) AS expired,
               coalesce(sum(failing), 0) AS failing,
               left(string_agg(handler_name, ', ' ORDER BY handler_name)
                        FILTER (WHERE failing > 0), 200) AS failing_names,
               left(string_agg(handler_name, ', ' ORDER BY handler_name)
                        FILTER (WHERE expired > 0), 200) AS expired_names
          FROM stats
    )
    SELECT 'oldest ready inbox message', coalesce(oldest > now() - interval '5 minutes', true),
           coalesce(date_trunc('milliseconds', now() - oldest)::text, 'none'),
           'handler_name ' || oldest_name,
           CASE WHEN oldest <= now() - interval '5 minutes' THEN
               'Check that outbox.claim_inbox or outbox.process_work_batch is called for it.' END
      FROM sums
    UNION ALL
    SELECT 'expired inbox leases', expired = 0, expired::text, expired_names,
           CASE WHEN expired > 0 THEN
               'Workers crash or take too long. The messages will be handed out again.' END
      FROM sums
    UNION ALL
    SELECT 'failing inbox messages', failing = 0, failing::text, failing_names,
           CASE WHEN failing > 0 THEN
               'They have failed three times or more, and are retried; outbox.attempts_log has '
               'the errors.' END
      FROM sums
$$;

COMMENT ON FUNCTION outbox._inbox_status() IS
    'The rows of status() about received messages.';

-- _instance_status()
--     The row of status() about instances, and those that are silent and were not
--     removed. These keep nothing back for long: their leases end, and the next call of
--     process_work_batch removes them.
CREATE FUNCTION outbox._instance_status()
RETURNS TABLE (component text, ok boolean, status text, detail text, hint text)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'instances', true, count(*)::text,
           left(string_agg(format('%s on %s, process %s, silent since %s', i.service_name,
                                  i.host_name, i.process_id,
                                  date_trunc('second', i.last_heartbeat_at)), '; '
                           ORDER BY i.last_heartbeat_at) FILTER (WHERE i.is_silent), 500),
           CASE WHEN count(*) FILTER (WHERE i.is_silent) > 0 THEN
               'The next outbox.process_work_batch, or outbox.deregister_instance, ends them.' END
      FROM (SELECT o.*, o.last_heartbeat_at < clock_timestamp() - interval '10 minutes'
                   AS is_silent
              FROM outbox.instances o) i
$$;

COMMENT ON FUNCTION outbox._instance_status() IS 'The row of status() about instances.';

-- _server_status()
--     The rows of status() about a server that cannot write, and about settings and
--     triggers that are not as the extension needs them.
CREATE FUNCTION outbox._server_status()
RETURNS TABLE (component text, ok boolean, status text, detail text, hint text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    component := 'server';
    ok := NOT pg_is_in_recovery();
    status := CASE WHEN ok THEN 'writes' ELSE 'standby' END;
    hint := CASE WHEN NOT ok THEN
                'Nothing can be enqueued or claimed here, and there are no workers: ask the '
                'primary.' END;
    RETURN NEXT;

    -- what is set for this database, for all or for some roles, or in this session
    component := 'settings';
    SELECT string_agg(format('%s%s', s.setting, s.who), ', ' ORDER BY s.setting, s.who)
      INTO detail
      FROM (SELECT c.setting,
                   CASE WHEN r.setrole <> 0
                        THEN format(' of role %s', r.setrole::regrole) ELSE '' END AS who
              FROM pg_db_role_setting r
             CROSS JOIN LATERAL unnest(r.setconfig) c(setting)
             WHERE r.setdatabase IN (0, (SELECT d.oid FROM pg_database d
                                          WHERE d.datname = current_database()))
            UNION
            SELECT format('%s=%s', p.name, p.setting), ''
              FROM pg_settings p
             WHERE p.source NOT IN ('database', 'user', 'database user')) s
     WHERE s.setting ~ '^default_transaction_read_only=(on|true|yes|1)$'
        OR s.setting ~ '^outbox\.(use_cursor|use_direct)=(off|false|no|0)$'
        OR s.setting ~ '^session_replication_role=replica$'
        OR s.setting ~ '^default_transaction_isolation=(repeatable read|serializable)$';
    ok := detail IS NULL;
    status := CASE WHEN ok THEN 'as they should be' ELSE 'in the way' END;
    hint := CASE WHEN NOT ok THEN
                'Read-only transactions can neither enqueue nor claim; above READ COMMITTED '
                'claims fail with 40001; as replica, plain INSERTs are not completed; without '
                'outbox.use_cursor and outbox.use_direct all calls are slow. Workers ignore '
                'these settings.' END;
    RETURN NEXT;

    component := 'triggers';
    SELECT string_agg(format('%s of %s %s', t.name, t.relation, t.state), ', ' ORDER BY t.name,
                      t.relation::text)
      INTO detail
      FROM (SELECT g.tgname AS name, g.tgrelid::regclass AS relation,
                   CASE g.tgenabled WHEN 'D' THEN 'is disabled'
                                    WHEN 'R' THEN 'is for replicas only' END AS state
              FROM pg_trigger g
              JOIN pg_class c ON c.oid = g.tgrelid AND c.relnamespace = 'outbox'::regnamespace
              JOIN pg_proc f ON f.oid = g.tgfoid AND f.pronamespace = c.relnamespace
             WHERE NOT g.tgisinternal AND g.tgenabled IN ('D', 'R')
            UNION ALL
            SELECT 'the trigger with ' || m.function, l.relation::regclass, 'is missing'
              FROM unnest('{outbox.queue, outbox.inbox_queue, outbox.timer_queue,
                            outbox.run_queue}'::text[]) l(relation),
                   unnest('{outbox._queue_written, outbox._queue_changed,
                            outbox._queue_truncated}'::text[]) m(function)
             WHERE NOT EXISTS (SELECT FROM pg_trigger g
                                WHERE g.tgrelid = l.relation::regclass
                                  AND g.tgfoid = m.function::regproc)) t;
    ok := detail IS NULL;
    status := CASE WHEN ok THEN 'as they should be' ELSE 'not enabled' END;
    hint := CASE WHEN NOT ok THEN
                'Rows that plain SQL writes are not completed, not found by claims, or not counted '
                'in joins. ALTER TABLE ... ENABLE TRIGGER, or ENABLE ALWAYS TRIGGER for those '
                'that report changes and TRUNCATE.' END;
    RETURN NEXT;
END
$$;

COMMENT ON FUNCTION outbox._server_status() IS
    'The rows of status() about the server, its settings, and triggers.';

-- _upkeep_status()
--     The rows of status() about work of the background that is left undone: steps of
--     joins that could not be counted at once, and messages that were done while there
--     was no partition for them.
CREATE FUNCTION outbox._upkeep_status()
RETURNS TABLE (component text, ok boolean, status text, detail text, hint text)
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'join rechecks', d.n = 0 OR w.obstacle IS NULL AND d.blocked = 0,
           concat(d.n, CASE WHEN d.n >= 1000 THEN ' or more' END),
           CASE WHEN d.n > 0 THEN
               concat_ws('; ', format('%s of them depend on transactions that have not ended',
                                      d.blocked), w.obstacle) END,
           CASE WHEN d.n > 0 THEN
               'Steps of joins are counted, and waits are woken, by a worker or maintenance.' END
      FROM (SELECT count(*) AS n,
                   count(*) FILTER (WHERE outbox._in_progress(o.waits_for)) AS blocked
              FROM (SELECT j.waits_for FROM outbox.join_rechecks j LIMIT 1000) o) d
     CROSS JOIN LATERAL (SELECT CASE WHEN d.n > 0
                                     THEN outbox._worker_obstacle('{waits}') END AS obstacle) w
    UNION ALL
    SELECT 'partitions', count(*) = 0,
           CASE WHEN count(*) = 0 THEN 'in time' ELSE 'missing' END,
           CASE WHEN count(*) > 0 THEN
               'the archive has no partition for what is done now' END,
           CASE WHEN count(*) > 0 THEN
               'Retention and partitions are the work of a worker or outbox.maintain(): check '
               'that it runs, and that no session has locked outbox.archive.' END
      FROM (SELECT u.processed_at FROM outbox.archive_unsorted u LIMIT 1000) o
     -- a worker makes those of a new database only after some minutes
     WHERE o.processed_at < now() - interval '10 minutes'
       AND NOT EXISTS (SELECT FROM outbox._partitions() p
                        WHERE p.since <= now() AND now() < p.until)
$$;

COMMENT ON FUNCTION outbox._upkeep_status() IS
    'The rows of status() about work of the background that is left undone.';

-- _worker_silence()
--     Returns for how long no worker has finished a round here, by the samples for
--     outbox.depth; 0 where none is expected: on a standby, where workers or samples are
--     off, where rows come by replication, and while a dump is loaded. Without the library
--     preloaded, it is maintenance that takes them, if there is anything.
CREATE FUNCTION outbox._worker_silence()
RETURNS interval
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN pg_is_in_recovery()
                     OR NOT current_setting('outbox.workers')::boolean
                     OR current_setting('outbox.depth_retention')::interval = '0'
                     OR outbox._is_loading()
                THEN '0'
                ELSE greatest('0', coalesce(clock_timestamp() - w.seen_at, '0')) END
      FROM (SELECT CASE WHEN (SELECT l.preloaded FROM outbox._library() l)
                        THEN (SELECT o.seen_at FROM outbox._workers() o)
                        ELSE (SELECT greatest(q.created_at,
                                              (SELECT max(d.sampled_at)
                                                 FROM outbox.depth d))
                                FROM outbox.queue q
                               ORDER BY q.id LIMIT 1) END AS seen_at) w
$$;

COMMENT ON FUNCTION outbox._worker_silence() IS
    'For how long no worker has finished a round in this database.';

-- _horizon_holders()
--     Returns what keeps rows that were deleted since from being removed: open
--     transactions of this database, with a snapshot or an id of their own, standbys
--     that report theirs, prepared transactions, and replication slots. A lazy vacuum
--     holds nothing, and neither does a session of another database. Logical slots
--     hold only rows of system catalogs.
CREATE FUNCTION outbox._horizon_holders()
RETURNS TABLE (who text, since timestamptz, xmin_age integer, is_catalog boolean)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN a.backend_type = 'walsender' AND a.datname IS NULL
                THEN format('standby %s', coalesce(nullif(a.application_name, ''),
                                                   a.client_addr::text))
                ELSE concat('session ', a.pid, ', ' || a.state,
                            ', application ' || nullif(a.application_name, '')) END,
           a.xact_start, greatest(age(a.backend_xmin), age(a.backend_xid)), false
      FROM pg_stat_activity a
     WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
       AND a.pid <> pg_backend_pid()
       AND (a.datname = current_database() OR a.datname IS NULL)
       AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
    UNION ALL
    SELECT format('prepared transaction %L', x.gid), x.prepared, age(x.transaction), false
      FROM pg_prepared_xacts x
     WHERE x.database = current_database()
    UNION ALL
    SELECT format('replication slot %s, %s', r.slot_name,
                  CASE WHEN r.active THEN format('used by process %s', r.active_pid)
                       ELSE 'not in use' END),
           NULL, age(h.xid), h.is_catalog
      FROM pg_replication_slots r
     CROSS JOIN LATERAL (VALUES (r.xmin, false), (r.catalog_xmin, true)) h(xid, is_catalog)
     WHERE h.xid IS NOT NULL
$$;

COMMENT ON FUNCTION outbox._horizon_holders() IS
    'What keeps deleted rows from being removed.';

-- _horizon_status()
--     The row of status() about what keeps deleted rows from being removed.
CREATE FUNCTION outbox._horizon_status()
RETURNS TABLE (component text, ok boolean, status text, detail text, hint text)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'xmin horizon', coalesce(max(h.xmin_age) < 1000000, true),
           coalesce(max(h.xmin_age)::text || ' transactions behind', 'not held'),
           left(string_agg(concat(h.who, ', since ' || date_trunc('second', h.since)::text,
                                  CASE WHEN h.is_catalog THEN ', rows of system catalogs' END),
                           '; ' ORDER BY h.xmin_age DESC, h.who)
                    FILTER (WHERE h.xmin_age >= 1000000 OR h.place = 1), 500),
           CASE WHEN max(h.xmin_age) >= 1000000 THEN
               'Finished rows cannot be removed while it is held. '
               'End the session or the transaction, see to the standby, or drop the slot.' END
      FROM (SELECT o.*, row_number() OVER (ORDER BY o.xmin_age DESC) AS place
              FROM outbox._horizon_holders() o) h
$$;

COMMENT ON FUNCTION outbox._horizon_status() IS
    'The row of status() about what keeps deleted rows from being removed.';

-- _health_status(heads)
--     All rows of this file.
CREATE FUNCTION outbox._health_status(heads bigint[] DEFAULT NULL)
RETURNS TABLE (component text, ok boolean, status text, detail text, hint text)
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT * FROM outbox._server_status()
    UNION ALL
    SELECT * FROM outbox._transaction_status()
    UNION ALL
    SELECT * FROM outbox._stream_status(heads)
    UNION ALL
    SELECT * FROM outbox._paused_status()
    UNION ALL
    SELECT * FROM outbox._inbox_status()
    UNION ALL
    SELECT * FROM outbox._instance_status()
    UNION ALL
    SELECT * FROM outbox._upkeep_status()
$$;

COMMENT ON FUNCTION outbox._health_status(bigint[]) IS
    'The rows of status() about what keeps messages from being delivered.';
