-- explain.sql: why a message is not being delivered. Serves sql_admin.c and
-- sql_instance.c.

-- _message_fate(id)
--     Returns whether a message can be handed out: 'live', 'expired' or 'exhausted'.
--     Claims, reap and nack use the same C function.
CREATE FUNCTION outbox._message_fate(id bigint)
RETURNS text
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_message_fate';

COMMENT ON FUNCTION outbox._message_fate(bigint) IS
    'Whether a message of the queue can be handed out: live, expired or exhausted.';

-- _message_locker(id)
--     Returns the transaction that has locked a message, if there is one.
CREATE FUNCTION outbox._message_locker(id bigint)
RETURNS xid
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_message_locker';

COMMENT ON FUNCTION outbox._message_locker(bigint) IS
    'The transaction that has locked a message of the queue.';

-- _partition_owner(partition, instances)
--     Returns the one of these instances that owns a partition.
CREATE FUNCTION outbox._partition_owner(
    partition integer,
    instances uuid[]
)
RETURNS uuid
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_partition_owner';

COMMENT ON FUNCTION outbox._partition_owner(integer, uuid[]) IS
    'The instance that owns a partition, given all live instances.';

-- _lane_of(namespace, topic, tenant_id, subscriber, priority)
--     Returns the lane in which claims look for such a message.
CREATE FUNCTION outbox._lane_of(
    namespace  text,
    topic      text,
    tenant_id  uuid,
    subscriber integer,
    priority   integer
)
RETURNS bigint
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_lane_of_sql';

COMMENT ON FUNCTION outbox._lane_of(text, text, uuid, integer, integer) IS
    'The lane in which claims look for a message.';

-- _explain_finished(id)
--     Describes a message, timer or run that is not in a live table. It must not show
--     the error, because monitoring roles may call explain_message.
CREATE FUNCTION outbox._explain_finished(id bigint)
RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(
        (SELECT format('failed at %s, reason: %s; outbox.%s has the error, outbox.%s brings it '
                       'back',
                       f.processed_at,
                       coalesce(outbox.reason_name(f.failure_reason), f.failure_reason::text),
                       f.view, f.requeue)
           FROM (SELECT d.processed_at, d.failure_reason, 'dead_letters' AS view,
                        'requeue' AS requeue
                   FROM outbox.dead d WHERE d.id = _explain_finished.id
                 UNION ALL
                 SELECT d.processed_at, d.failure_reason, 'dead_inbox', 'requeue_inbox'
                   FROM outbox.inbox_dead d WHERE d.id = _explain_finished.id
                 UNION ALL
                 SELECT d.processed_at, d.failure_reason, 'dead_timers', 'requeue_timers'
                   FROM outbox.timer_dead d WHERE d.id = _explain_finished.id
                 UNION ALL
                 SELECT d.processed_at, d.failure_reason, 'dead_job_runs', 'requeue_job_runs'
                   FROM outbox.run_dead d WHERE d.id = _explain_finished.id) f
          LIMIT 1),
        (SELECT format('done at %s%s', f.processed_at, f.what)
           FROM (SELECT a.processed_at, '' AS what
                   FROM outbox.archive a WHERE a.id = _explain_finished.id
                 UNION ALL
                 SELECT d.processed_at, '; a received message'
                   FROM outbox.inbox_done d WHERE d.id = _explain_finished.id
                 UNION ALL
                 SELECT d.processed_at, '; a timer, which has become a message: see outbox.trace'
                   FROM outbox.timer_done d WHERE d.id = _explain_finished.id
                 UNION ALL
                 SELECT d.processed_at, '; a run, which has become a message: see outbox.trace'
                   FROM outbox.run_done d WHERE d.id = _explain_finished.id) f
          LIMIT 1),
        'there is no such message, or it is no longer kept')
$$;

COMMENT ON FUNCTION outbox._explain_finished(bigint) IS
    'What became of a message that is in no live table.';

-- _explain_partition(stream_id)
--     Describes the live instance that owns the partition of a stream; null if there
--     are no instances. Assumes the default number of partitions.
CREATE FUNCTION outbox._explain_partition(stream_id uuid)
RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH alive AS (
        SELECT array_agg(i.instance_id) AS ids
          FROM outbox.instances i
         WHERE i.last_heartbeat_at > clock_timestamp() - interval '10 minutes'
    )
    SELECT format('partition %s of 10000 belongs to instance %s (%s on %s, process %s): '
                  'process_work_batch of other instances leaves it',
                  outbox._partition_number(_explain_partition.stream_id), i.instance_id,
                  i.service_name, i.host_name, i.process_id)
      FROM alive a
      JOIN outbox.instances i
        ON i.instance_id = outbox._partition_owner(
               outbox._partition_number(_explain_partition.stream_id), a.ids)
     WHERE cardinality(a.ids) > 1
$$;

COMMENT ON FUNCTION outbox._explain_partition(uuid) IS
    'The instance that owns the partition of a stream.';

-- _waits_for_turn(role)
--     Returns whether the handlers of a role, or the extension's own work, wait for one
--     of the processes that may run at the same time.
CREATE FUNCTION outbox._waits_for_turn(role regrole)
RETURNS boolean
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (SELECT
                     FROM outbox._posts() p, outbox._workers() w
                    WHERE p.role_oid IS NOT DISTINCT FROM _waits_for_turn.role::oid
                      AND NOT p.running AND (p.called OR p.due <= clock_timestamp())
                      AND w.waiting > 0)
$$;

COMMENT ON FUNCTION outbox._waits_for_turn(regrole) IS
    'Whether the handlers of a role wait for one of the processes that may run.';

-- _busy_worker(role)
--     Describes what the worker of a role has been doing for ten seconds or more; null
--     if it is not busy for so long.
CREATE FUNCTION outbox._busy_worker(role regrole)
RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('the worker of role %s has been busy since %s (process %s, %s)', role,
                  date_trunc('second', a.query_start), a.pid, a.query)
      FROM pg_stat_activity a
     WHERE a.backend_type = 'outbox worker'
       AND a.datname = current_database()
       AND a.usesysid = role
       AND a.state = 'active'
       AND a.query_start < clock_timestamp() - interval '10 s'
     ORDER BY a.query_start
     LIMIT 1
$$;

COMMENT ON FUNCTION outbox._busy_worker(regrole) IS
    'What the worker of a role has been doing for a while.';

-- _worker_obstacle(parts)
--     Returns why no worker does this work in this database, or why it fails there;
--     null if a worker does it. The parts are those of _worker_troubles.
CREATE FUNCTION outbox._worker_obstacle(parts text[])
RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    workers record;
    trouble record;
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN 'workers run on the primary only';
    END IF;
    SELECT * INTO workers FROM outbox._workers();
    IF NOT (SELECT l.preloaded FROM outbox._library() l) THEN
        RETURN 'the library is not preloaded, so only outbox.maintain() does it';
    ELSIF NOT workers.launcher THEN
        RETURN 'the launcher does not run; see outbox.status()';
    ELSIF NOT workers.serves THEN
        RETURN 'workers do not serve this database; see outbox.status()';
    ELSIF NOT current_setting('outbox.workers')::boolean THEN
        RETURN 'outbox.workers is off';
    ELSIF outbox._is_replicated() THEN
        RETURN 'a subscription of logical replication writes here; see outbox.status()';
    ELSIF outbox._is_loading() THEN
        RETURN 'a dump is being loaded';
    ELSIF workers.no_slots THEN
        RETURN 'the server has no slot for a worker; see outbox.status()';
    ELSIF EXISTS (SELECT FROM outbox._posts() p WHERE p.role_oid IS NULL AND p.failures > 1) THEN
        RETURN 'the worker cannot start; see outbox.status()';
    ELSIF outbox._waits_for_turn(NULL) THEN
        RETURN format('the worker waits for its turn; outbox.max_workers is %s',
                      current_setting('outbox.max_workers'));
    ELSIF outbox._worker_silence() >= interval '5 minutes' THEN
        RETURN 'the worker has not finished a round for minutes; see outbox.status()';
    END IF;
    SELECT * INTO trouble
      FROM outbox._worker_troubles() t
     WHERE t.part = ANY (parts)
     LIMIT 1;
    IF trouble.part IS NOT NULL THEN
        RETURN format('it has failed %s times since %s, SQLSTATE %s; next try at %s',
                      trouble.failures, trouble.since, trouble.sqlstate, trouble.next_try);
    END IF;
    RETURN NULL;
END
$$;

COMMENT ON FUNCTION outbox._worker_obstacle(text[]) IS
    'Why no worker does this work, or why it fails.';

-- _explain_worker(kind, namespace, topic, subscriber, payload)
--     Returns whether the worker on which the delivery of such a message depends does
--     its work: for what a handler handles, a wait for a join, a timer, or a run. No
--     row if it does not depend on one.
CREATE FUNCTION outbox._explain_worker(
    kind       text,
    namespace  text,
    topic      text,
    subscriber integer,
    payload    text
)
RETURNS TABLE (gate text, passed boolean, detail text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    handler  outbox.handlers;
    the_join record;
BEGIN
    IF kind IN ('timer', 'job_run') THEN
        gate := 'dispatched';
        detail := CASE WHEN NOT current_setting('outbox.dispatch_timers')::boolean
                       THEN 'outbox.dispatch_timers is off: only claims of timers and runs get it'
                       ELSE outbox._worker_obstacle('{timers}') END;
        passed := detail IS NULL;
        RETURN NEXT;
        RETURN;
    ELSIF kind = 'message' AND topic = current_setting('outbox.join_wait_topic') THEN
        SELECT j.join_id, j.status, j.expected_steps, j.completed_steps, j.failed_steps,
               (SELECT count(*) FROM outbox.join_members m WHERE m.join_id = j.join_id) AS members
          INTO the_join
          FROM outbox.joins j
         WHERE j.join_id = outbox._join_of_wait(payload);
        gate := 'join has ended';
        passed := the_join.status IS DISTINCT FROM 0;
        detail := CASE WHEN NOT passed THEN
                      format('join %s: %s of %s steps completed, %s failed, %s attached%s',
                             the_join.join_id, the_join.completed_steps, the_join.expected_steps,
                             the_join.failed_steps, the_join.members,
                             CASE WHEN the_join.members < the_join.expected_steps
                                  THEN '; not all steps are attached' END)
                       WHEN the_join.join_id IS NULL THEN 'the join does not exist' END;
        RETURN NEXT;
        gate := 'waits are evaluated';
        detail := outbox._worker_obstacle('{waits}');
        passed := detail IS NULL;
        RETURN NEXT;
        RETURN;
    ELSIF kind = 'message' THEN
        SELECT h.* INTO handler
          FROM outbox.handlers h
         WHERE CASE WHEN _explain_worker.subscriber IS NULL
                    THEN h.subscription = '' AND h.namespace = _explain_worker.namespace
                         AND h.topic = _explain_worker.topic
                    ELSE (h.namespace, h.subscription) = (
                             SELECT s.namespace, s.subscription FROM outbox.subscribers s
                              WHERE s.id = _explain_worker.subscriber) END;
    END IF;
    IF handler.handler IS NULL THEN
        RETURN;
    END IF;
    gate := 'handler is called';
    detail := coalesce(
        (SELECT p.problem
           FROM outbox._handler_problems() p
          WHERE p.namespace = handler.namespace
            AND coalesce(p.subscription, '') = handler.subscription
            AND (handler.subscription <> '' OR p.topic = handler.topic)
          LIMIT 1),
        outbox._worker_obstacle('{handlers}'),
        (SELECT format('the worker of role %s cannot start: it has failed %s times, next try at %s',
                       handler.role, p.failures, p.due)
           FROM outbox._posts() p
          WHERE p.role_oid = handler.role_oid AND p.failures > 1
          LIMIT 1),
        (SELECT format('its worker fails: %s times since %s, SQLSTATE %s; next try at %s',
                       t.failures, t.since, t.sqlstate, t.next_try)
           FROM outbox._worker_troubles() t
          WHERE t.part = 'handler'
            AND t.topic = CASE handler.subscription
                              WHEN '' THEN format('%s/%s', handler.namespace, handler.topic)
                              ELSE format('subscription %s/%s', handler.namespace,
                                          handler.subscription) END
          LIMIT 1),
        CASE WHEN outbox._waits_for_turn(handler.role_oid::regrole) THEN
            format('the worker of role %s waits for its turn; outbox.max_handler_workers is %s',
                   handler.role, current_setting('outbox.max_handler_workers')) END,
        outbox._busy_worker(handler.role_oid::regrole));
    passed := detail IS NULL;
    RETURN NEXT;
END
$$;

COMMENT ON FUNCTION outbox._explain_worker(text, text, text, integer, text) IS
    'Whether the worker on which the delivery of a message depends does its work.';

-- explain_message(id)
--     Explains why this message is not being delivered. One row for each condition
--     that delivery depends on. Takes received messages, timers and runs as well.
CREATE FUNCTION outbox.explain_message(id bigint)
RETURNS TABLE (gate text, passed boolean, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    message outbox.queue;
    policy  outbox.topics;
    ahead   record;
    limits  integer;
    fate    text;
    locker  xid;
    stream  uuid;
    receiver outbox.subscribers;
    kind    text := 'message';
    at      timestamptz := clock_timestamp();
BEGIN
    PERFORM outbox._require('id', explain_message.id);
    -- load the library, which defines the settings used below
    PERFORM outbox._library();
    -- the live tables have the same columns
    SELECT * INTO message FROM outbox.queue q WHERE q.id = explain_message.id;
    IF NOT FOUND THEN
        kind := 'inbox';
        SELECT * INTO message FROM outbox.inbox_queue q WHERE q.id = explain_message.id;
    END IF;
    IF NOT FOUND THEN
        kind := 'timer';
        SELECT * INTO message FROM outbox.timer_queue q WHERE q.id = explain_message.id;
    END IF;
    IF NOT FOUND THEN
        kind := 'job_run';
        SELECT * INTO message FROM outbox.run_queue q WHERE q.id = explain_message.id;
    END IF;
    gate := 'unfinished';
    passed := message.id IS NOT NULL;
    detail := CASE WHEN NOT passed THEN outbox._explain_finished(explain_message.id) END;
    RETURN NEXT;
    IF NOT passed THEN
        RETURN;
    END IF;

    gate := 'due';
    passed := message.next_attempt_at <= at;
    detail := CASE WHEN NOT passed THEN
                  format('not before %s%s', message.next_attempt_at,
                         CASE WHEN message.retry_count > 0 THEN
                             format(', a retry after %s failed attempts, reason: %s',
                                    message.retry_count,
                                    coalesce(outbox.reason_name(message.failure_reason),
                                             message.failure_reason::text)) END) END;
    RETURN NEXT;

    gate := 'not expired';
    fate := outbox._message_fate(message.id);
    passed := fate IS DISTINCT FROM 'expired';
    detail := CASE WHEN NOT passed THEN format('expired at %s', message.expires_at) END;
    RETURN NEXT;

    gate := 'not leased';
    passed := message.status = 0 OR message.locked_until <= at;
    detail := CASE WHEN NOT passed THEN
                  format('by %s until %s%s', message.owner_token, message.locked_until,
                         (SELECT format(', claimed by process %s%s%s', c.pid,
                                        ', application ' || c.application, ', host ' || c.host)
                            FROM outbox._owner_claims() c
                           WHERE c.owner_token = message.owner_token)) END;
    RETURN NEXT;

    gate := 'not locked';
    locker := outbox._message_locker(message.id);
    passed := locker IS NULL;
    detail := CASE WHEN NOT passed THEN
                  format('by transaction %s, which has not ended%s', locker,
                         (SELECT ', of process ' || l.pid
                            FROM pg_locks l
                           WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock'
                             AND l.transactionid = locker)) END;
    RETURN NEXT;

    gate := 'in its lane';
    passed := message.lane = outbox._lane_of(message.namespace, message.topic, message.tenant_id,
                                             message.subscriber, message.priority);
    detail := CASE WHEN NOT passed THEN
                  'its row was written without the triggers of the table; an UPDATE of the row '
                  'with them puts it where claims look' END;
    RETURN NEXT;

    gate := 'claims can write';
    passed := NOT (pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean);
    detail := CASE WHEN pg_is_in_recovery() THEN 'this server is a standby: ask the primary'
                   WHEN NOT passed THEN
                       'transactions are read-only: see default_transaction_read_only' END;
    RETURN NEXT;

    gate := 'visible to all';
    passed := NOT (SELECT c.relrowsecurity
                     FROM pg_class c
                    WHERE c.oid = CASE kind WHEN 'message' THEN 'outbox.queue'
                                            WHEN 'inbox' THEN 'outbox.inbox_queue'
                                            WHEN 'timer' THEN 'outbox.timer_queue'
                                            ELSE 'outbox.run_queue' END::regclass);
    detail := CASE WHEN NOT passed THEN
                  'the table has row level security, which may hide it from roles that claim' END;
    RETURN NEXT;

    SELECT * INTO receiver FROM outbox.subscribers s WHERE s.id = message.subscriber;
    SELECT * INTO policy
      FROM outbox.topics t
     WHERE t.kind = CASE WHEN message.subscriber IS NULL THEN kind ELSE 'subscription' END
       AND t.namespace = message.namespace
       AND t.topic = CASE WHEN message.subscriber IS NULL THEN message.topic
                          ELSE receiver.subscription END;
    IF message.subscriber IS NULL THEN
        gate := 'topic not paused';
        passed := NOT coalesce(policy.paused, false);
        detail := CASE WHEN NOT passed THEN 'see outbox.resume_topic' END;
        RETURN NEXT;
        stream := message.stream_id;
    ELSE
        gate := 'subscribed';
        passed := coalesce(receiver.state < 2, false);
        detail := CASE WHEN NOT passed THEN
                      format('%s has unsubscribed: the message %s',
                             coalesce('subscription "' || receiver.subscription || '"',
                                      'its subscription'),
                             CASE WHEN message.status = 1 THEN 'can still be settled'
                                  WHEN receiver.drops THEN 'will be dropped'
                                  ELSE 'will be dead' END)
                  ELSE format('subscription "%s"', receiver.subscription) END;
        RETURN NEXT;
        gate := 'subscription not paused';
        passed := NOT coalesce(policy.paused, false);
        detail := CASE WHEN NOT passed THEN 'see outbox.resume_subscription' END;
        RETURN NEXT;
        stream := outbox._subscriber_stream(message.stream_id, message.subscriber);
    END IF;

    gate := 'attempts left';
    limits := coalesce(policy.max_attempts, current_setting('outbox.max_attempts')::integer);
    passed := fate IS DISTINCT FROM 'exhausted';
    detail := format('%s of %s', message.attempts - message.waived, limits);
    RETURN NEXT;

    gate := 'first in stream';
    IF kind = 'inbox' THEN
        SELECT q.id, outbox.status_name(q.status) AS state, q.owner_token, q.next_attempt_at
          INTO ahead
          FROM outbox.inbox_queue q
         WHERE q.stream_id = message.stream_id AND q.stream_seq < message.stream_seq
         ORDER BY q.stream_seq
         LIMIT 1;
    ELSE
        SELECT q.id, outbox.status_name(q.status) AS state, q.owner_token, q.next_attempt_at
          INTO ahead
          FROM outbox.queue q
         WHERE q.stream_id = message.stream_id AND q.stream_seq < message.stream_seq
         ORDER BY q.stream_seq
         LIMIT 1;
    END IF;
    passed := ahead.id IS NULL;
    detail := CASE WHEN NOT passed THEN
                  format('message %s is before it: %s%s', ahead.id, ahead.state,
                         coalesce(' by ' || ahead.owner_token,
                                  ', due ' || ahead.next_attempt_at)) END;
    RETURN NEXT;

    gate := 'for any instance';
    detail := CASE WHEN stream IS NOT NULL THEN outbox._explain_partition(stream) END;
    passed := detail IS NULL;
    RETURN NEXT;

    RETURN QUERY SELECT w.* FROM outbox._explain_worker(
        kind, message.namespace, message.topic, message.subscriber, message.payload) w;

    gate := 'for any worker';
    detail := CASE
        WHEN kind = 'inbox' THEN 'a received message: only outbox.claim_inbox gets it'
        WHEN kind = 'timer' THEN 'a timer: a worker makes a message of it'
        WHEN kind = 'job_run' THEN 'a run of a job: a worker makes a message of it'
        WHEN message.subscriber IS NOT NULL THEN
            format('a delivery: only claims that name its subscription get it%s',
                   (SELECT format('; handled by %s', h.handler)
                      FROM outbox.handlers h
                     WHERE h.namespace = receiver.namespace
                       AND h.subscription = receiver.subscription))
        WHEN message.topic = current_setting('outbox.join_wait_topic')
            THEN 'a wait for a join: only claims that name the topic get it'
        ELSE (SELECT format('handled by %s: only claims that name the topic get it', h.handler)
                FROM outbox.handlers h
               WHERE h.namespace = message.namespace AND h.topic = message.topic
                 AND h.subscription = '') END;
    passed := detail IS NULL;
    RETURN NEXT;

    -- of work that anyone may claim, claims are only known if they have come recently
    IF message.next_attempt_at < at - interval '5 minutes' AND message.status = 0
       AND kind = 'message' AND (passed OR message.subscriber IS NOT NULL)
    THEN
        gate := 'claimed for';
        passed := EXISTS (SELECT FROM outbox._waiting_claims() w
                           WHERE coalesce(w.namespace, message.namespace) = message.namespace
                             AND w.subscription IS NOT DISTINCT FROM receiver.subscription
                             AND (w.topics IS NULL OR message.topic = ANY (w.topics)))
                  OR EXISTS (SELECT FROM outbox._topic_claims() c
                              WHERE c.claimed_at > at - interval '5 minutes'
                                AND c.namespace = message.namespace
                                AND c.subscription IS NOT DISTINCT FROM receiver.subscription
                                AND (c.topic = message.topic OR c.topic IS NULL));
        detail := CASE WHEN NOT passed THEN
                      'no claim for it has been made for five minutes; see outbox.claimers' END;
        RETURN NEXT;
    END IF;
END
$$;

COMMENT ON FUNCTION outbox.explain_message(bigint) IS
    'Why a message is not being delivered: one row for each condition.';

-- explain_message(message_id)
--     The same for a message given by its message_id. For a publication: to which
--     subscriptions it was delivered, and to which it will be.
CREATE FUNCTION outbox.explain_message(message_id uuid)
RETURNS TABLE (gate text, passed boolean, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found_id bigint;
BEGIN
    PERFORM outbox._require('message_id', explain_message.message_id);
    -- a message that was done and restored by a dump is in the queue
    found_id := coalesce(
                   (SELECT m.id FROM outbox.messages m
                     WHERE m.message_id = explain_message.message_id
                     ORDER BY m.status LIMIT 1),
                   (SELECT i.id FROM outbox.inbox i
                     WHERE i.message_id = explain_message.message_id LIMIT 1),
                   (SELECT t.id FROM outbox.timers t
                     WHERE t.timer_id = explain_message.message_id LIMIT 1),
                   (SELECT r.id FROM outbox.job_runs r
                     WHERE r.run_id = explain_message.message_id LIMIT 1));
    IF found_id IS NULL THEN
        RETURN QUERY SELECT e.* FROM outbox._explain_publication(explain_message.message_id) e;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    -- id 0, which no message has
    RETURN QUERY SELECT e.* FROM outbox.explain_message(coalesce(found_id, 0)) e;
END
$$;

COMMENT ON FUNCTION outbox.explain_message(uuid) IS
    'Why a message is not being delivered, by its message_id.';

-- explain_message(message)
--     The same for either of them. PostgreSQL selects this form for a parameter or
--     literal without a type. Raises 22023 for anything else.
CREATE FUNCTION outbox.explain_message(message text)
RETURNS TABLE (gate text, passed boolean, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    id         bigint;
    message_id uuid;
BEGIN
    PERFORM outbox._require('message', explain_message.message);
    BEGIN
        IF explain_message.message ~ '^\s*[+-]?[0-9]+\s*$' THEN
            id := explain_message.message;
        ELSE
            message_id := explain_message.message;
        END IF;
    EXCEPTION
        WHEN data_exception THEN
            RAISE EXCEPTION 'message must be the id or the message_id of a message'
                USING ERRCODE = 'invalid_parameter_value';
    END;
    IF id IS NOT NULL THEN
        RETURN QUERY SELECT e.* FROM outbox.explain_message(id) e;
    ELSE
        RETURN QUERY SELECT e.* FROM outbox.explain_message(message_id) e;
    END IF;
END
$$;

COMMENT ON FUNCTION outbox.explain_message(text) IS
    'Why a message is not being delivered, by its id or its message_id.';
