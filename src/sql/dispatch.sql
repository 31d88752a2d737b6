-- dispatch.sql: timers and runs of jobs that are due become messages. Serves
-- sql_timer.c.

-- _claim_due(owner_token, runs, limits)
--     Claims timers or runs that are due.
CREATE FUNCTION outbox._claim_due(
    owner_token uuid,
    runs        boolean,
    limits      integer
)
RETURNS SETOF outbox.message
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF runs THEN
        RETURN QUERY SELECT * FROM outbox.claim_job_runs(owner_token, 60, limits);
    ELSE
        RETURN QUERY SELECT * FROM outbox.claim_timers(owner_token, 60, limits);
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._claim_due(uuid, boolean, integer) IS
    'Claims timers or runs that are due.';

-- _ack_due(owner_token, runs, ids)
--     Finishes timers or runs; returns how many.
CREATE FUNCTION outbox._ack_due(
    owner_token uuid,
    runs        boolean,
    ids         bigint[]
)
RETURNS integer
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN runs THEN outbox.ack_job_runs(owner_token, ids)
                ELSE outbox.ack_timers(owner_token, ids) END
$$;

COMMENT ON FUNCTION outbox._ack_due(uuid, boolean, bigint[]) IS 'Finishes timers, or runs.';

-- _put_back_due(owner_token, id, at, run)
--     _put_back for a timer or a run.
CREATE FUNCTION outbox._put_back_due(
    owner_token uuid,
    id          bigint,
    at          timestamptz,
    run         boolean
)
RETURNS void
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_put_back_due';

COMMENT ON FUNCTION outbox._put_back_due(uuid, bigint, timestamptz, boolean) IS
    'Releases the lease of a timer or run, not to be claimed before a given time; the attempt '
    'does not count.';

-- _dispatch(runs, limits)
--     Dispatches timers or runs that are due, all of them or none. Returns how many.
CREATE FUNCTION outbox._dispatch(
    runs   boolean,
    limits integer
)
RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    owner_token uuid := gen_random_uuid();
    ids         bigint[];
BEGIN
    SELECT array_agg(t.id) INTO ids
      FROM (SELECT c.id,
                   outbox._enqueue_caused(
                       c.message_id, c.topic, c.payload, 'default',
                       CASE WHEN NOT runs THEN c.correlation_id END,
                       CASE WHEN runs THEN
                           coalesce(c.headers, '{}')
                           || jsonb_build_object('job', c.correlation_id, 'run', c.id)
                            ELSE c.headers END)
              FROM outbox._claim_due(owner_token, runs, limits) c
            OFFSET 0) t;
    RETURN outbox._ack_due(owner_token, runs, ids);
END
$$;

COMMENT ON FUNCTION outbox._dispatch(boolean, integer) IS
    'Dispatches what is due, either all of it or nothing.';

-- _dispatch_singly(runs, limits)
--     The same, one by one. What cannot be enqueued is returned for a retry, with the
--     error. What would have to wait for another transaction is postponed (_put_off),
--     and from then on the others wait only for a moment. Each takes a
--     subtransaction; see process_join_waits. Returns how many were dispatched, how
--     many refused, how many of these for the first time, and how many postponed.
CREATE FUNCTION outbox._dispatch_singly(
    runs           boolean,
    limits         integer,
    OUT dispatched integer,
    OUT refused    integer,
    OUT newly      integer,
    OUT put_off    integer
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    owner_token  uuid := gen_random_uuid();
    lock_timeout text := current_setting('lock_timeout');
    due          outbox.message;
BEGIN
    dispatched := 0;
    refused := 0;
    newly := 0;
    put_off := 0;
    FOR due IN SELECT * FROM outbox._claim_due(owner_token, runs, limits) LOOP
        BEGIN
            PERFORM outbox._enqueue_caused(
                due.message_id, due.topic, due.payload, 'default',
                CASE WHEN NOT runs THEN due.correlation_id END,
                CASE WHEN runs THEN
                    coalesce(due.headers, '{}')
                    || jsonb_build_object('job', due.correlation_id, 'run', due.id)
                     ELSE due.headers END);
            dispatched := dispatched + outbox._ack_due(owner_token, runs, ARRAY[due.id]);
        EXCEPTION
            WHEN OTHERS THEN
                IF outbox._is_blocked(SQLSTATE) THEN
                    PERFORM outbox._put_back_due(
                        owner_token, due.id,
                        outbox._put_off(CASE WHEN runs THEN 'run' ELSE 'timer' END, due), runs);
                    put_off := put_off + 1;
                ELSIF NOT outbox._is_own_fault(SQLSTATE) THEN
                    RAISE;
                ELSE
                    refused := refused + CASE WHEN runs THEN
                        outbox.abandon_job_runs(owner_token, ARRAY[due.id], SQLERRM)
                        ELSE outbox.abandon_timers(owner_token, ARRAY[due.id], SQLERRM) END;
                    newly := newly + (due.retry_count = 0)::integer;
                END IF;
        END;
    END LOOP;
    IF current_setting('lock_timeout') <> lock_timeout THEN
        PERFORM set_config('lock_timeout', lock_timeout, true);
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._dispatch_singly(boolean, integer) IS
    'Dispatches what is due, one by one; what cannot be enqueued is retried later.';

-- _dispatch_due(runs, batch_limit)
--     dispatch_due, for timers or for runs: returns how many were dispatched, and how
--     many were not, and will be retried. Callers that loop until nothing is due must
--     count both. The first few are dispatched together, then twice as many, and so
--     on: one that is refused undoes what was dispatched together with it, which is
--     never much more than was done before. Error messages are not logged, because
--     they may contain payloads.
CREATE FUNCTION outbox._dispatch_due(
    runs           boolean,
    batch_limit    integer,
    OUT dispatched integer,
    OUT left_over  integer
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    limits integer := least(coalesce(batch_limit, 1000), 10000);
    batch  integer := least(limits, 50);
    done   integer;
    state  text;
    singly record;
BEGIN
    dispatched := 0;
    left_over := 0;
    IF outbox._is_loading() THEN
        RETURN;
    END IF;
    WHILE dispatched < limits LOOP
        BEGIN
            done := outbox._dispatch(runs, batch);
        EXCEPTION
            WHEN OTHERS THEN
                IF NOT outbox._is_own_fault(SQLSTATE) AND NOT outbox._is_blocked(SQLSTATE) THEN
                    RAISE;
                END IF;
                state := SQLSTATE;
                EXIT;
        END;
        dispatched := dispatched + done;
        -- nothing else is due
        EXIT WHEN done < batch;
        batch := least(batch * 2, limits - dispatched);
    END LOOP;
    IF state IS NULL THEN
        RETURN;
    END IF;
    SELECT * INTO singly FROM outbox._dispatch_singly(runs, least(limits - dispatched, 50));
    dispatched := dispatched + singly.dispatched;
    left_over := singly.refused + singly.put_off;
    -- do not log each attempt
    IF singly.newly > 0 THEN
        RAISE LOG 'outbox: % could not be dispatched together (SQLSTATE %)',
            CASE WHEN runs THEN 'runs' ELSE 'timers' END, state
            USING DETAIL = format('One by one %s were dispatched, and %s refused, %s of them '
                                  'for the first time.',
                                  singly.dispatched, singly.refused, singly.newly),
                  HINT = 'The errors are in outbox.attempts_log.';
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._dispatch_due(boolean, integer) IS
    'Like dispatch_due, and returns how many could not be dispatched as well.';

-- dispatch_due(batch_limit)
--     Turns timers and runs that are due into messages of the outbox, all in this
--     transaction. Returns how many. Does nothing while another session loads a dump.
--     One that cannot be enqueued, for example because a trigger refuses it, does not
--     affect the others: it is retried after the backoff, and is dead after
--     max_attempts. One that runs into lock_timeout is postponed, for up to a minute.
--     An error that is deferred to the commit affects all of them.
CREATE FUNCTION outbox.dispatch_due(batch_limit integer DEFAULT NULL)
RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    limits integer := coalesce(dispatch_due.batch_limit, 1000);
    done   integer;
BEGIN
    PERFORM outbox._check_limit('batch_limit', dispatch_due.batch_limit);
    SELECT d.dispatched INTO done FROM outbox._dispatch_due(false, limits) d;
    IF done < limits THEN
        done := done + (SELECT d.dispatched FROM outbox._dispatch_due(true, limits - done) d);
    END IF;
    RETURN done;
END
$$;

COMMENT ON FUNCTION outbox.dispatch_due(integer) IS
    'Turns timers and runs that are due into messages.';

-- _due_status()
--     The rows of status() about timers and runs that are not dispatched: the first
--     1000 of each lane are examined.
CREATE FUNCTION outbox._due_status()
RETURNS TABLE (component text, ok boolean, status text, detail text, hint text)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE timer_lanes(lane) AS (
        (SELECT q.lane FROM outbox.timer_queue q ORDER BY q.lane LIMIT 1)
        UNION ALL
        SELECT (SELECT q.lane FROM outbox.timer_queue q
                 WHERE q.lane > l.lane ORDER BY q.lane LIMIT 1)
          FROM timer_lanes l
         WHERE l.lane IS NOT NULL
    ), run_lanes(lane) AS (
        (SELECT q.lane FROM outbox.run_queue q ORDER BY q.lane LIMIT 1)
        UNION ALL
        SELECT (SELECT q.lane FROM outbox.run_queue q
                 WHERE q.lane > l.lane ORDER BY q.lane LIMIT 1)
          FROM run_lanes l
         WHERE l.lane IS NOT NULL
    ), sample AS (
        SELECT 'timer' AS kind, s.*
          FROM timer_lanes l,
               LATERAL (SELECT q.topic, q.namespace, q.retry_count,
                               coalesce(q.due_time, q.created_at) AS due_at
                          FROM outbox.timer_queue q
                         WHERE q.lane = l.lane
                         ORDER BY q.next_attempt_at, q.id
                         LIMIT 1000) s
        UNION ALL
        SELECT 'job_run', s.*
          FROM run_lanes l,
               LATERAL (SELECT q.topic, q.namespace, q.retry_count,
                               coalesce(q.due_time, q.created_at)
                          FROM outbox.run_queue q
                         WHERE q.lane = l.lane
                         ORDER BY q.next_attempt_at, q.id
                         LIMIT 1000) s
    ), stats AS (
        SELECT s.topic,
               count(*) FILTER (WHERE s.retry_count = 0
                                  AND s.due_at < now() - interval '5 minutes'
                                  AND NOT coalesce(t.paused, false)) AS overdue,
               min(s.due_at) FILTER (WHERE NOT coalesce(t.paused, false)) AS since,
               count(*) FILTER (WHERE s.retry_count >= 3) AS failing
          FROM sample s
          LEFT JOIN outbox.topics t
            ON t.kind = s.kind AND t.namespace = s.namespace AND t.topic = s.topic
         GROUP BY s.topic
    ), sums AS (
        SELECT coalesce(sum(overdue), 0) AS overdue,
               coalesce(sum(failing), 0) AS failing,
               min(since) FILTER (WHERE overdue > 0) AS since,
               left(string_agg(format('%s: %s', topic, overdue), ', ' ORDER BY overdue DESC, topic)
                        FILTER (WHERE overdue > 0), 200) AS overdue_topics,
               left(string_agg(format('%s: %s', topic, failing), ', ' ORDER BY failing DESC, topic)
                        FILTER (WHERE failing > 0), 200) AS failing_topics
          FROM stats
    )
    SELECT 'overdue timers and runs', overdue = 0,
           concat(overdue, CASE WHEN overdue >= 1000 THEN ' or more' END),
           overdue_topics || format('; the oldest since %s', date_trunc('second', since)),
           CASE WHEN overdue > 0 THEN
               'Check that a background worker, outbox.maintain or claim_timers dispatches them, '
               'and that no transaction holds locks that they need.' END
      FROM sums
    UNION ALL
    SELECT 'failing timers and runs', failing = 0,
           concat(failing, CASE WHEN failing >= 1000 THEN ' or more' END), failing_topics,
           CASE WHEN failing > 0 THEN
               'They have failed three times or more, and are retried; '
               'outbox.attempts_log has the errors.' END
      FROM sums
$$;

COMMENT ON FUNCTION outbox._due_status() IS
    'The rows of status() about timers and runs that are not dispatched.';
