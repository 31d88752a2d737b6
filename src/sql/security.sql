-- security.sql: privileges. Nothing is granted to PUBLIC.

REVOKE ALL ON SCHEMA outbox FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA outbox FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA outbox FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA outbox FROM PUBLIC;
REVOKE ALL ON TYPE outbox.message, outbox.enqueue_result, outbox.work_item FROM PUBLIC;

-- _close_row_types()
--     Revokes USAGE on the row types of tables and views from PUBLIC: a column or a
--     function of such a type would prevent dropping the table. Used by upgrade
--     scripts, too.
CREATE FUNCTION outbox._close_row_types()
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    types oid[];
BEGIN
    SELECT array_agg(t.oid) INTO types
      FROM pg_type t
      JOIN pg_class c ON c.oid = t.typrelid
     WHERE t.typnamespace = 'outbox'::regnamespace
       AND c.relkind IN ('r', 'p', 'v');
    EXECUTE (SELECT string_agg(format('REVOKE ALL ON TYPE %s FROM PUBLIC', t::regtype), '; ')
               FROM unnest(types) t);
    -- The server records the initial privileges of an extension, so that pg_dump
    -- leaves them out. But pg_dump does not support privileges on row types, and
    -- would issue a warning for each of these records.
    DELETE FROM pg_init_privs p
     WHERE p.classoid = 'pg_type'::regclass AND p.objoid = ANY (types);
END
$$;

COMMENT ON FUNCTION outbox._close_row_types() IS 'Revokes USAGE on row types from PUBLIC.';

SELECT outbox._close_row_types();

-- _rights(kind)
--     Returns the privileges of a producer, a worker, a monitor or an admin, in the
--     syntax of GRANT and REVOKE, with the OID if it is for a function.
CREATE FUNCTION outbox._rights(kind text)
RETURNS TABLE (granted text, function oid)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('EXECUTE ON ROUTINE %s', p.oid::regprocedure), p.oid
      FROM pg_proc p
     WHERE p.pronamespace = 'outbox'::regnamespace
       AND CASE kind
           WHEN 'producer' THEN p.proname IN (
               'enqueue', 'try_enqueue', 'enqueue_many', 'enqueue_many_json', 'enqueue_batch',
               'publish', 'publish_many', 'publish_many_json', 'publish_batch', 'route',
               'start_join', 'attach_message_to_join', 'enqueue_step', 'enqueue_join_wait',
               'cancel_join', 'schedule_timer', 'cancel_timer', 'route_store')
           WHEN 'worker' THEN p.proname IN (
               'claim', 'ack', 'nack', 'abandon', 'fail', 'renew', 'release',
               'ack_one', 'nack_one', 'fail_one', 'renew_one', 'release_one',
               'reap', 'reap_expired', 'status_name', 'reason_name',
               'report_step_completed', 'report_step_failed', 'process_join_waits',
               'register_handler', 'unregister_handler',
               'receive', 'claim_inbox', 'ack_inbox', 'nack_inbox', 'fail_inbox', 'renew_inbox',
               'release_inbox', 'reap_inbox',
               'process_work_batch', 'heartbeat', 'deregister_instance',
               'claim_timers', 'ack_timers', 'abandon_timers', 'fail_timers', 'renew_timers',
               'reap_expired_timers',
               'claim_job_runs', 'ack_job_runs', 'abandon_job_runs', 'fail_job_runs',
               'renew_job_runs', 'reap_expired_job_runs',
               'dispatch_due', 'route_store',
               'start_receptor', 'complete_receptor', 'fail_receptor',
               'start_perspective', 'complete_perspective', 'fail_perspective')
           WHEN 'monitor' THEN p.proname IN (
               'status_name', 'join_status_name', 'reason_name', 'status', 'explain_message',
               'trace',
               'metrics', 'metric_samples', 'alerts', 'oldest_leases', 'route_store',
               -- called by views with the privileges of the reader
               '_partition_number', '_subscriber_stream', '_lane_counts', '_leased_ids',
               '_owner_claims',
               '_topic_claims',
               '_waiting_claims', '_counters', '_default_policy', '_retention_name', '_trace')
           WHEN 'admin' THEN p.proname !~ '^(_|grant_|revoke_)' OR p.proname IN (
               -- called by views and functions with the privileges of the caller
               '_partition_number', '_subscriber_stream', '_lane_counts', '_leased_ids',
               '_owner_claims',
               '_topic_claims',
               '_waiting_claims', '_counters', '_default_policy', '_retention_name', '_trace',
               '_start_handlers',
               '_maintenance_parts', '_maintenance_step', '_maintenance_failed',
               '_cleanup_parts', '_cleanup_step', '_dispatch_due', '_publish_step', '_sample_depth',
               '_is_replicated')
           END
    UNION ALL
    -- for handler functions, and for variables that hold messages
    SELECT 'USAGE ON TYPE outbox.message', NULL
     WHERE kind = 'worker'
    UNION ALL
    SELECT format('SELECT ON outbox.%I', c.relname), NULL
      FROM pg_class c
     WHERE c.relnamespace = 'outbox'::regnamespace
       AND CASE kind
           WHEN 'monitor' THEN c.relname IN (
               'messages_info', 'topic_stats', 'topic_counts', 'topic_counters', 'stat', 'leases',
               'claimers', 'workers', 'handler_stats', 'topics',
               'policies', 'handlers', 'join_progress',
               'join_members', 'join_waits', 'instances', 'upcoming', 'depth',
                'stores', 'routes', 'default_route')
           WHEN 'admin' THEN c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
           END
    UNION ALL
    -- of other views and tables, all columns except payloads, headers, and texts of
    -- users
    SELECT format('SELECT (%s) ON outbox.%I',
                  string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum), c.relname),
           NULL
      FROM pg_class c
      JOIN pg_attribute a ON a.attrelid = c.oid
     WHERE kind = 'monitor'
       AND c.relnamespace = 'outbox'::regnamespace
       AND c.relname IN ('messages', 'dead_letters', 'failures', 'stream_heads', 'joins',
                         'inbox', 'dead_inbox', 'dead_timers', 'dead_job_runs', 'attempts_log',
                         'receptor_processing', 'perspective_checkpoints',
                         'timers', 'jobs', 'job_runs', 'subscriptions')
       AND a.attnum > 0
       AND NOT a.attisdropped
       AND a.attname NOT IN ('payload', 'headers', 'filter', 'last_error', 'error', 'metadata',
                             'output')
     GROUP BY c.relname
    UNION ALL
    -- to find messages in the order of delivery, as messages_info cannot
    SELECT c.columns, NULL
      FROM (VALUES ('SELECT (id, lane, status, next_attempt_at, namespace, topic, subscriber) '
                    'ON outbox.queue'),
                   ('SELECT (id, namespace, subscription) ON outbox.subscribers')) c(columns)
     WHERE kind = 'monitor'
$$;

COMMENT ON FUNCTION outbox._rights(text) IS
    'The privileges of a producer, a worker, a monitor or an admin.';

-- _begin_rights(role, kind)
--     Checks the role, and acquires locks: two sessions that grant concurrently would
--     update the same rows of the catalogs, and so would one that creates a partition
--     of the archive. The first lock conflicts only with these, with VACUUM and with
--     DDL.
CREATE FUNCTION outbox._begin_rights(
    role regrole,
    kind text
)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF role IS NULL THEN
        RAISE EXCEPTION 'role must not be null'
            USING ERRCODE = 'null_value_not_allowed';
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = role) THEN
        RAISE EXCEPTION 'role with OID % does not exist', role::oid
            USING ERRCODE = 'undefined_object';
    END IF;
    LOCK TABLE outbox.topics IN SHARE UPDATE EXCLUSIVE MODE;
    IF kind = 'admin' THEN
        LOCK TABLE outbox.archive IN SHARE UPDATE EXCLUSIVE MODE;
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._begin_rights(regrole, text) IS
    'Checks a role, and locks out concurrent grants.';

-- _grant(role, kind)
--     What the grant functions have in common.
CREATE FUNCTION outbox._grant(
    role regrole,
    kind text
)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    granted text;
BEGIN
    PERFORM outbox._begin_rights(role, kind);
    EXECUTE format('GRANT USAGE ON SCHEMA outbox TO %s', role);
    FOR granted IN SELECT r.granted FROM outbox._rights(kind) r LOOP
        EXECUTE format('GRANT %s TO %s', granted, role);
    END LOOP;
END
$$;

COMMENT ON FUNCTION outbox._grant(regrole, text) IS 'The common part of the grant functions.';

-- _kinds(role)
--     Returns the kinds of which a role has all functions, by privileges granted to
--     the role itself.
CREATE FUNCTION outbox._kinds(role regrole)
RETURNS SETOF text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT k.kind
      FROM unnest(ARRAY['producer', 'worker', 'monitor', 'admin']) k(kind)
     WHERE (SELECT bool_and(EXISTS (SELECT FROM aclexplode(p.proacl) a
                                     WHERE a.grantee = role AND a.privilege_type = 'EXECUTE'))
              FROM outbox._rights(k.kind) r
              JOIN pg_proc p ON p.oid = r.function)
$$;

COMMENT ON FUNCTION outbox._kinds(regrole) IS
    'The kinds of privileges that were granted to a role.';

-- _revoke(role, kind)
--     Revokes what _grant has granted, except for what the role also has by another
--     kind. An admin has the privileges of all kinds, so all of them are revoked.
CREATE FUNCTION outbox._revoke(
    role regrole,
    kind text
)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    kinds   text[] := ARRAY[kind];
    others  text[];
    granted text;
BEGIN
    PERFORM outbox._begin_rights(role, kind);
    IF kind = 'admin' THEN
        kinds := ARRAY['producer', 'worker', 'monitor', 'admin'];
    ELSE
        SELECT array_agg(k) INTO others FROM outbox._kinds(role) k WHERE k <> kind;
    END IF;
    FOR granted IN
        SELECT r.granted FROM unnest(kinds) k, outbox._rights(k) r
        EXCEPT
        SELECT r.granted FROM unnest(others) k, outbox._rights(k) r
    LOOP
        EXECUTE format('REVOKE %s FROM %s', granted, role);
    END LOOP;
    IF others IS NULL THEN
        EXECUTE format('REVOKE USAGE ON SCHEMA outbox FROM %s', role);
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._revoke(regrole, text) IS 'The common part of the revoke functions.';

-- _grant_for_users(role, kind)
--     Does what _grant does, in an upgrade script: privileges granted by a script
--     count as part of the extension, so that dumps do not contain them. Those
--     granted by this function do not.
CREATE FUNCTION outbox._grant_for_users(
    role regrole,
    kind text
)
RETURNS void
LANGUAGE c VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_grant_for_users';

COMMENT ON FUNCTION outbox._grant_for_users(regrole, text) IS
    'Grants privileges in an upgrade script.';

-- _note_rights()
--     At the beginning of an upgrade script: records the granted privileges for
--     _grant_again. Roles without USAGE on the schema are ignored. Concurrent grants
--     and revokes wait for the end of the transaction, because what is revoked in the
--     meantime would be granted again.
CREATE FUNCTION outbox._note_rights()
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    LOCK TABLE outbox.topics IN SHARE UPDATE EXCLUSIVE MODE;
    PERFORM set_config('outbox_upgrade.rights',
                       coalesce(jsonb_agg(ARRAY[a.grantee::text, k])::text, '[]'), true)
       FROM pg_namespace n,
            LATERAL (SELECT DISTINCT grantee FROM aclexplode(n.nspacl)
                      WHERE grantee NOT IN (0, n.nspowner)) a,
            LATERAL outbox._kinds(a.grantee) k
      WHERE n.nspname = 'outbox'
        -- an admin has the functions of all kinds
        AND (k = 'admin' OR 'admin' <> ALL (SELECT outbox._kinds(a.grantee)));
END
$$;

COMMENT ON FUNCTION outbox._note_rights() IS
    'Records the granted privileges, at the beginning of an upgrade script.';

-- _grant_again()
--     At the end of an upgrade script: grants the recorded kinds of privileges as the
--     new version defines them. A function that is dropped and created again loses
--     its grants, and a new one has none.
CREATE FUNCTION outbox._grant_again()
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    rights text := nullif(current_setting('outbox_upgrade.rights', true), '');
BEGIN
    IF rights IS NULL THEN
        RAISE EXCEPTION 'outbox._note_rights() has not been called in this transaction'
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM outbox._grant_for_users((r.value ->> 0)::oid::regrole, r.value ->> 1)
       FROM jsonb_array_elements(rights::jsonb) r;
END
$$;

COMMENT ON FUNCTION outbox._grant_again() IS
    'Restores the granted privileges, at the end of an upgrade script.';

-- grant_producer(role)
--     Lets a role enqueue messages, and nothing else: it cannot read messages.
CREATE FUNCTION outbox.grant_producer(role regrole)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT outbox._grant(role, 'producer') $$;

COMMENT ON FUNCTION outbox.grant_producer(regrole) IS
    'Lets a role enqueue messages.';

-- grant_worker(role)
--     Lets a role claim messages and settle them.
CREATE FUNCTION outbox.grant_worker(role regrole)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT outbox._grant(role, 'worker') $$;

COMMENT ON FUNCTION outbox.grant_worker(regrole) IS 'Lets a role claim messages and settle them.';

-- grant_monitor(role)
--     Lets a role monitor the extension, without access to payloads, headers and
--     errors.
CREATE FUNCTION outbox.grant_monitor(role regrole)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT outbox._grant(role, 'monitor') $$;

COMMENT ON FUNCTION outbox.grant_monitor(regrole) IS
    'Lets a role monitor the extension, without access to payloads.';

-- grant_admin(role)
--     Lets a role use everything that the extension offers, and read everything. It
--     does not allow writing the tables.
CREATE FUNCTION outbox.grant_admin(role regrole)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT outbox._grant(role, 'admin') $$;

COMMENT ON FUNCTION outbox.grant_admin(regrole) IS
    'Lets a role use everything that the extension offers.';

-- revoke_producer(role)
--     Takes back what grant_producer has granted, but not what the role has by
--     another of the grant functions.
CREATE FUNCTION outbox.revoke_producer(role regrole)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT outbox._revoke(role, 'producer') $$;

COMMENT ON FUNCTION outbox.revoke_producer(regrole) IS 'Revokes what grant_producer has granted.';

-- revoke_worker(role)
--     Takes back what grant_worker has granted, but not what the role has by
--     another of the grant functions.
CREATE FUNCTION outbox.revoke_worker(role regrole)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT outbox._revoke(role, 'worker') $$;

COMMENT ON FUNCTION outbox.revoke_worker(regrole) IS 'Revokes what grant_worker has granted.';

-- revoke_monitor(role)
--     Takes back what grant_monitor has granted, but not what the role has by
--     another of the grant functions.
CREATE FUNCTION outbox.revoke_monitor(role regrole)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT outbox._revoke(role, 'monitor') $$;

COMMENT ON FUNCTION outbox.revoke_monitor(regrole) IS 'Revokes what grant_monitor has granted.';

-- revoke_admin(role)
--     Revokes everything that any of the grant functions has granted.
CREATE FUNCTION outbox.revoke_admin(role regrole)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT outbox._revoke(role, 'admin') $$;

COMMENT ON FUNCTION outbox.revoke_admin(regrole) IS
    'Revokes everything that was granted to a role.';

REVOKE ALL ON FUNCTION
    outbox._close_row_types(), outbox._rights(text), outbox._begin_rights(regrole, text),
    outbox._grant(regrole, text), outbox._kinds(regrole), outbox._revoke(regrole, text),
    outbox._grant_for_users(regrole, text), outbox._note_rights(), outbox._grant_again(),
    outbox.grant_producer(regrole), outbox.revoke_producer(regrole),
    outbox.grant_worker(regrole), outbox.revoke_worker(regrole),
    outbox.grant_monitor(regrole), outbox.revoke_monitor(regrole),
    outbox.grant_admin(regrole), outbox.revoke_admin(regrole)
FROM PUBLIC;
