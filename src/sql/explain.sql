-- explain.sql: why a message is not being delivered. Serves sql_admin.c and
-- sql_instance.c.

-- _message_fate(id)
--     What would come of handing out a message: 'live', 'expired' or
--     'exhausted'. Claims, reap and nack ask the same function.
CREATE FUNCTION outbox._message_fate(id bigint)
RETURNS text
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_message_fate';

COMMENT ON FUNCTION outbox._message_fate(bigint) IS
    'What would come of handing out a message of the queue.';

-- _message_locker(id)
--     Which transaction keeps others from claiming a message, if one does.
CREATE FUNCTION outbox._message_locker(id bigint)
RETURNS xid
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_message_locker';

COMMENT ON FUNCTION outbox._message_locker(bigint) IS
    'Which transaction keeps others from claiming a message of the queue.';

-- _partition_owner(partition, instances)
--     Which of these instances owns a partition.
CREATE FUNCTION outbox._partition_owner(
    partition integer,
    instances uuid[]
)
RETURNS uuid
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_partition_owner';

COMMENT ON FUNCTION outbox._partition_owner(integer, uuid[]) IS
    'Which of these instances owns a partition.';

-- _explain_finished(id)
--     What became of a message that is not in the queue. It must not show the error,
--     since monitors may call explain_message.
CREATE FUNCTION outbox._explain_finished(id bigint)
RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(
        (SELECT format('failed at %s, reason: %s; outbox.dead_letters has the error, '
                       'outbox.requeue brings it back',
                       d.processed_at,
                       coalesce(outbox.reason_name(d.failure_reason), d.failure_reason::text))
           FROM outbox.dead d
          WHERE d.id = _explain_finished.id),
        (SELECT format('done at %s', a.processed_at)
           FROM outbox.archive a
          WHERE a.id = _explain_finished.id
          LIMIT 1),
        (SELECT 'a received message: see outbox.inbox'
           FROM outbox.inbox i
          WHERE i.id = _explain_finished.id
          LIMIT 1),
        (SELECT 'a timer: see outbox.timers'
           FROM outbox.timers t
          WHERE t.id = _explain_finished.id
          LIMIT 1),
        (SELECT 'a run of a job: see outbox.job_runs'
           FROM outbox.job_runs r
          WHERE r.id = _explain_finished.id
          LIMIT 1),
        'there is no such message, or it is kept no longer')
$$;

COMMENT ON FUNCTION outbox._explain_finished(bigint) IS
    'What became of a message that is not in the queue.';

-- _explain_partition(stream_id)
--     The live instance to whose partitions a stream belongs, in words; null if there
--     are no instances. It is reckoned with the default number of partitions.
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
    'To which instance''s partitions a stream belongs.';

-- explain_message(id)
--     Why is this message not being delivered? One row for each thing that can
--     be in the way.
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
    at      timestamptz := clock_timestamp();
BEGIN
    PERFORM outbox._require('id', explain_message.id);
    -- the library knows the settings that are asked for below
    PERFORM outbox._library();
    SELECT * INTO message FROM outbox.queue q WHERE q.id = explain_message.id;
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
                             format(', to be tried again after %s failed attempts, reason: %s',
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

    SELECT * INTO policy
      FROM outbox.topics t
     WHERE t.kind = 'message'
       AND t.namespace = message.namespace AND t.topic = message.topic;
    gate := 'topic not paused';
    passed := NOT coalesce(policy.paused, false);
    detail := CASE WHEN NOT passed THEN 'see outbox.resume_topic' END;
    RETURN NEXT;

    gate := 'attempts left';
    limits := coalesce(policy.max_attempts, current_setting('outbox.max_attempts')::integer);
    passed := fate IS DISTINCT FROM 'exhausted';
    detail := format('%s of %s', message.attempts - message.waived, limits);
    RETURN NEXT;

    gate := 'first in stream';
    SELECT q.id, outbox.status_name(q.status) AS state, q.owner_token, q.next_attempt_at
      INTO ahead
      FROM outbox.queue q
     WHERE q.stream_id = message.stream_id AND q.stream_seq < message.stream_seq
     ORDER BY q.stream_seq
     LIMIT 1;
    passed := ahead.id IS NULL;
    detail := CASE WHEN NOT passed THEN
                  format('message %s is before it: %s%s', ahead.id, ahead.state,
                         coalesce(' by ' || ahead.owner_token,
                                  ', due ' || ahead.next_attempt_at)) END;
    RETURN NEXT;

    gate := 'for any instance';
    detail := CASE WHEN message.stream_id IS NOT NULL THEN
                  outbox._explain_partition(message.stream_id) END;
    passed := detail IS NULL;
    RETURN NEXT;

    gate := 'for any worker';
    detail := CASE
        WHEN message.topic = current_setting('outbox.join_wait_topic')
            THEN 'a wait for a join: only claims that name the topic get it'
        ELSE (SELECT format('handled by %s: only claims that name the topic get it', h.handler)
                FROM outbox.handlers h
               WHERE h.namespace = message.namespace AND h.topic = message.topic) END;
    passed := detail IS NULL;
    RETURN NEXT;
END
$$;

COMMENT ON FUNCTION outbox.explain_message(bigint) IS
    'Why a message is not being delivered: one row for each thing that can be in the way.';

-- explain_message(message_id)
--     The same, for a message that is named by its message_id.
CREATE FUNCTION outbox.explain_message(message_id uuid)
RETURNS TABLE (gate text, passed boolean, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._require('message_id', explain_message.message_id);
    -- of no message, the id 0; one that is back after it was done is in the queue
    RETURN QUERY
        SELECT e.*
          FROM outbox.explain_message(coalesce(
                   (SELECT m.id FROM outbox.messages m
                     WHERE m.message_id = explain_message.message_id
                     ORDER BY m.status LIMIT 1),
                   (SELECT i.id FROM outbox.inbox i
                     WHERE i.message_id = explain_message.message_id LIMIT 1),
                   (SELECT t.id FROM outbox.timers t
                     WHERE t.timer_id = explain_message.message_id LIMIT 1),
                   (SELECT r.id FROM outbox.job_runs r
                     WHERE r.run_id = explain_message.message_id LIMIT 1), 0)) e;
END
$$;

COMMENT ON FUNCTION outbox.explain_message(uuid) IS
    'Why a message is not being delivered, by its message_id.';

-- explain_message(message)
--     The same, for either of them. It is the form that a parameter or literal
--     without a type takes. Raises 22023 for anything else.
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
