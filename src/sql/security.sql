-- security.sql: who may do what. Nothing is for everybody.

REVOKE ALL ON SCHEMA outbox FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA outbox FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA outbox FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM PUBLIC;
REVOKE ALL ON TYPE outbox.message, outbox.enqueue_result, outbox.work_item FROM PUBLIC;

-- grant_producer(role)
--     Lets a role enqueue, and nothing else: it cannot read a message.
CREATE FUNCTION outbox.grant_producer(role regrole)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._grant(role, ARRAY[
        'enqueue', 'try_enqueue', 'enqueue_many', 'enqueue_batch',
        'start_join', 'attach_message_to_join', 'enqueue_step', 'enqueue_join_wait', 'cancel_join',
        'schedule_timer', 'cancel_timer', 'route_store'], '{}');
END
$$;

COMMENT ON FUNCTION outbox.grant_producer(regrole) IS
    'Lets a role enqueue messages.';

-- grant_worker(role)
--     Lets a role take messages and settle them.
CREATE FUNCTION outbox.grant_worker(role regrole)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._grant(role, ARRAY[
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
        'claim_job_runs', 'ack_job_runs', 'abandon_job_runs', 'fail_job_runs', 'renew_job_runs',
        'reap_expired_job_runs',
        'dispatch_due', 'route_store',
        'start_receptor', 'complete_receptor', 'fail_receptor',
        'start_perspective', 'complete_perspective', 'fail_perspective'], '{}');
    -- to write a handler, or to keep messages in variables
    EXECUTE format('GRANT USAGE ON TYPE outbox.message TO %s', role);
END
$$;

COMMENT ON FUNCTION outbox.grant_worker(regrole) IS
    'Lets a role take messages and settle them.';

-- grant_monitor(role)
--     Lets a role see what is going on, but no payload, no headers and no
--     error texts.
CREATE FUNCTION outbox.grant_monitor(role regrole)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    harmless text;
BEGIN
    PERFORM outbox._grant(
        role,
        ARRAY['status_name', 'join_status_name', 'reason_name', 'status', 'explain_message',
              'route_store', '_partition_number', '_leased_ids'],
        ARRAY['topic_stats', 'leases', 'topics', 'handlers', 'join_progress', 'join_members',
              'join_waits', 'instances', 'upcoming', 'stores', 'routes', 'default_route']);
    FOR harmless IN
        SELECT format('GRANT SELECT (%s) ON outbox.%I TO %s',
                      string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum),
                      c.relname, role)
          FROM pg_class c
          JOIN pg_attribute a ON a.attrelid = c.oid
         WHERE c.relnamespace = 'outbox'::regnamespace
           AND c.relname IN ('messages', 'dead_letters', 'stream_heads', 'joins', 'inbox',
                             'receptor_processing', 'perspective_checkpoints',
                             'timers', 'jobs', 'job_runs')
           AND a.attnum > 0
           AND NOT a.attisdropped
           AND a.attname NOT IN ('payload', 'headers', 'last_error', 'error', 'metadata', 'output')
         GROUP BY c.relname
    LOOP
        EXECUTE harmless;
    END LOOP;
END
$$;

COMMENT ON FUNCTION outbox.grant_monitor(regrole) IS
    'Lets a role see what is going on, but no payloads.';

-- grant_admin(role)
--     Lets a role do all that the extension offers, and read everything. It
--     does not let it write the tables.
CREATE FUNCTION outbox.grant_admin(role regrole)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._grant(
        role,
        ARRAY(SELECT p.proname
                FROM pg_proc p
               WHERE p.pronamespace = 'outbox'::regnamespace
                 AND (p.proname !~ '^(_|grant_)'
                      -- those that others call with the rights of the caller
                      OR p.proname IN ('_partition_number', '_leased_ids', '_run_handlers'))),
        ARRAY(SELECT c.relname
                FROM pg_class c
               WHERE c.relnamespace = 'outbox'::regnamespace
                 AND c.relkind IN ('r', 'p', 'v')
                 AND NOT c.relispartition));
END
$$;

COMMENT ON FUNCTION outbox.grant_admin(regrole) IS
    'Lets a role do all that the extension offers.';

-- _grant(role, functions, relations)
--     Grants USAGE of the schema, EXECUTE of all functions with these names, and
--     SELECT of these relations. A partition of the archive that is made at the
--     same time updates the archive's row of pg_class, as GRANT does, and so does
--     another call of this function: the lock keeps them apart.
CREATE FUNCTION outbox._grant(
    role      regrole,
    functions text[],
    relations text[]
)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    grantable text;
BEGIN
    IF role IS NULL THEN
        RAISE EXCEPTION 'role must not be null'
            USING ERRCODE = 'null_value_not_allowed';
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = role) THEN
        RAISE EXCEPTION 'role with OID % does not exist', role::oid
            USING ERRCODE = 'undefined_object';
    END IF;
    LOCK TABLE outbox.archive IN SHARE UPDATE EXCLUSIVE MODE;
    EXECUTE format('GRANT USAGE ON SCHEMA outbox TO %s', role);
    FOR grantable IN
        SELECT format('GRANT EXECUTE ON FUNCTION %s TO %s', p.oid::regprocedure, role)
          FROM pg_proc p
         WHERE p.pronamespace = 'outbox'::regnamespace
           AND p.proname = ANY (functions)
         UNION ALL
        SELECT format('GRANT SELECT ON outbox.%I TO %s', r, role)
          FROM unnest(relations) r
    LOOP
        EXECUTE grantable;
    END LOOP;
END
$$;

COMMENT ON FUNCTION outbox._grant(regrole, text[], text[]) IS
    'What the grant functions have in common.';

REVOKE ALL ON FUNCTION
    outbox.grant_producer(regrole), outbox.grant_worker(regrole),
    outbox.grant_monitor(regrole), outbox.grant_admin(regrole),
    outbox._grant(regrole, text[], text[])
FROM PUBLIC;
