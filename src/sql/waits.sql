-- waits.sql: messages that wait for joins, and what comes after. Nearly all in
-- SQL: a wait is handled once or twice in its life, and needs nothing special.
-- Serves sql_join.c.
--
-- Whoever evaluates locks a join only if it is free, and never waits for
-- another transaction while it holds one: so it cannot be part of a deadlock,
-- and a join that is just being changed is looked at a moment later.

-- _in_progress(xid)
--     Is the transaction in progress? False for the current one.
CREATE FUNCTION outbox._in_progress(xid xid)
RETURNS boolean
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_in_progress';

COMMENT ON FUNCTION outbox._in_progress(xid) IS
    'Whether a transaction, other than this one, has not ended.';

-- _put_back(owner_token, id, at)
--     Releases a lease; the message cannot be claimed before that time.
CREATE FUNCTION outbox._put_back(
    owner_token uuid,
    id          bigint,
    at          timestamptz
)
RETURNS void
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_put_back';

COMMENT ON FUNCTION outbox._put_back(uuid, bigint, timestamptz) IS
    'Gives a lease back until some time; the attempt does not count.';

-- _ack_wait(owner_token, id)
--     ack for a wait. The caller holds the lock on its join. If the wait is
--     itself a step of another join, and that is locked, it is left to
--     join_doubts rather than waited for, so that there is no deadlock.
CREATE FUNCTION outbox._ack_wait(
    owner_token uuid,
    id          bigint
)
RETURNS void
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_ack_wait';

COMMENT ON FUNCTION outbox._ack_wait(uuid, bigint) IS
    'Finishes a wait without waiting for joins of which it is a step.';

-- enqueue_join_wait(join_id, fail_if_any_step_failed, on_complete_topic, ...)
--     When the join has ended, a message follows: the continuation. Returns
--     the message_id of the wait.
CREATE FUNCTION outbox.enqueue_join_wait(
    join_id                 uuid,
    fail_if_any_step_failed boolean,
    on_complete_topic       text,
    on_complete_payload     text,
    on_fail_topic           text  DEFAULT NULL,
    on_fail_payload         text  DEFAULT NULL,
    namespace               text  DEFAULT 'default',
    headers                 jsonb DEFAULT NULL
)
RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wait_id uuid := outbox._uuid7();
BEGIN
    PERFORM outbox._require('join_id', enqueue_join_wait.join_id),
            outbox._require('fail_if_any_step_failed', enqueue_join_wait.fail_if_any_step_failed),
            outbox._check_name('on_complete_topic', enqueue_join_wait.on_complete_topic),
            outbox._require('on_complete_payload', enqueue_join_wait.on_complete_payload);
    IF enqueue_join_wait.on_fail_topic IS NOT NULL THEN
        PERFORM outbox._check_name('on_fail_topic', enqueue_join_wait.on_fail_topic);
    END IF;
    PERFORM outbox._lock_join(enqueue_join_wait.join_id);
    INSERT INTO outbox.join_waits (join_id, message_id)
    VALUES (enqueue_join_wait.join_id, wait_id);
    PERFORM outbox.enqueue(
        current_setting('outbox.join_wait_topic'),
        jsonb_build_object(
            'joinId', enqueue_join_wait.join_id,
            'failIfAnyStepFailed', enqueue_join_wait.fail_if_any_step_failed,
            'onCompleteTopic', enqueue_join_wait.on_complete_topic,
            'onCompletePayload', enqueue_join_wait.on_complete_payload,
            'onFailTopic', enqueue_join_wait.on_fail_topic,
            'onFailPayload', enqueue_join_wait.on_fail_payload)::text,
        namespace => enqueue_join_wait.namespace,
        headers => enqueue_join_wait.headers,
        message_id => wait_id);
    RETURN wait_id;
END
$$;

COMMENT ON FUNCTION outbox.enqueue_join_wait(uuid, boolean, text, text, text, text, text, jsonb) IS
    'Has a message follow when a join has ended.';

-- _join_add(expected, completed, failed, more_completed, more_failed)
--     The arithmetic of joins: as far as there is room, and failed steps first.
CREATE FUNCTION outbox._join_add(
    expected        integer,
    INOUT completed integer,
    INOUT failed    integer,
    more_completed  integer,
    more_failed     integer,
    OUT status      smallint,
    OUT added       integer
)
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_join_add_sql';

COMMENT ON FUNCTION outbox._join_add(integer, integer, integer, integer, integer) IS
    'What a pending join becomes with so many more steps.';

-- _recount(join_id)
--     Counts what has not been counted yet of a join that is pending: members
--     that are marked, and members whose messages had ended when they were
--     attached. Null if somebody else is just changing the join, else how many
--     steps were added.
CREATE FUNCTION outbox._recount(join_id uuid)
RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    open_join outbox.joins;
    marked    record;
    sums      record;
BEGIN
    SELECT * INTO open_join
      FROM outbox.joins j
     WHERE j.join_id = _recount.join_id
       FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN CASE WHEN EXISTS (SELECT FROM outbox.joins j WHERE j.join_id = _recount.join_id)
                    THEN NULL ELSE 0 END;
    END IF;
    IF open_join.status <> 0 THEN
        RETURN 0;
    END IF;

    -- Who has locked a member is about to mark it himself.
    UPDATE outbox.join_members m
       SET status = late.outcome
      FROM (SELECT p.message_id, (outbox._message_end(p.message_id)).status - 1 AS outcome
              FROM (SELECT i.message_id
                      FROM outbox.join_members i
                     WHERE i.join_id = _recount.join_id AND i.status = 0
                       FOR UPDATE SKIP LOCKED) p
            OFFSET 0) late
     WHERE m.join_id = _recount.join_id
       AND m.message_id = late.message_id
       AND late.outcome IS NOT NULL;

    SELECT count(*) FILTER (WHERE m.status = 1) AS completed,
           count(*) FILTER (WHERE m.status = 2) AS failed
      INTO marked
      FROM outbox.join_members m
     WHERE m.join_id = _recount.join_id AND m.status <> 0;
    SELECT * INTO sums
      FROM outbox._join_add(
               open_join.expected_steps, open_join.completed_steps, open_join.failed_steps,
               greatest(marked.completed - open_join.completed_steps, 0)::integer,
               greatest(marked.failed - open_join.failed_steps, 0)::integer);
    IF sums.added = 0 THEN
        RETURN 0;
    END IF;

    UPDATE outbox.joins j
       SET completed_steps = sums.completed,
           failed_steps = sums.failed,
           status = sums.status,
           last_updated_at = clock_timestamp()
     WHERE j.join_id = _recount.join_id;
    IF sums.status <> 0 THEN
        PERFORM outbox._wake_waits(_recount.join_id);
        PERFORM outbox._log(format('outbox join: %s is complete', _recount.join_id));
    END IF;
    RETURN sums.added;
END
$$;

COMMENT ON FUNCTION outbox._recount(uuid) IS
    'Counts what has not been counted yet of a join.';

-- _settle_join_doubts(batch_limit)
--     Counts what could not be counted at the time, and wakes waits that could
--     not be woken. Returns how many steps were counted.
CREATE FUNCTION outbox._settle_join_doubts(batch_limit integer)
RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    doubt   outbox.join_doubts;
    member  record;
    outcome smallint;
    added   integer;
    counted integer := 0;
    settled boolean;
BEGIN
    IF pg_relation_size('outbox.join_doubts') = 0 THEN
        RETURN 0;
    END IF;
    FOR doubt IN
        SELECT * FROM outbox.join_doubts d
         WHERE NOT outbox._in_progress(d.waits_for)
         ORDER BY d.id
         LIMIT batch_limit
           FOR UPDATE SKIP LOCKED
    LOOP
        settled := true;
        IF doubt.join_id IS NOT NULL THEN
            added := outbox._recount(doubt.join_id);
            settled := added IS NOT NULL;
            counted := counted + coalesce(added, 0);
            PERFORM outbox._wake_waits(j.join_id)
               FROM outbox.joins j
              WHERE j.join_id = doubt.join_id AND j.status <> 0 AND settled;
        ELSE
            outcome := coalesce(doubt.status, (outbox._message_end(doubt.message_id)).status);
            FOR member IN
                SELECT m.join_id
                  FROM outbox.join_members m
                 WHERE m.message_id = doubt.message_id AND m.status = 0
                 ORDER BY m.join_id
            LOOP
                EXIT WHEN outcome IS NULL;
                added := outbox._count_late(member.join_id, doubt.message_id, outcome);
                settled := settled AND added IS NOT NULL;
                counted := counted + coalesce(added, 0);
            END LOOP;
        END IF;
        IF settled THEN
            DELETE FROM outbox.join_doubts d WHERE d.id = doubt.id;
        END IF;
    END LOOP;
    RETURN counted;
END
$$;

COMMENT ON FUNCTION outbox._settle_join_doubts(integer) IS
    'Counts what could not be counted at the time; returns how many steps.';

-- _count_late(join_id, message_id, status)
--     Gives a member its outcome, a message's status: how many steps that adds
--     to the join; null if somebody else is just changing the join or the
--     member.
CREATE FUNCTION outbox._count_late(
    join_id    uuid,
    message_id uuid,
    status     smallint
)
RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM outbox.joins j
      WHERE j.join_id = _count_late.join_id
        FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN CASE WHEN NOT EXISTS (SELECT FROM outbox.joins j
                                      WHERE j.join_id = _count_late.join_id)
                    THEN 0 END;
    END IF;
    PERFORM FROM outbox.join_members m
      WHERE m.join_id = _count_late.join_id AND m.message_id = _count_late.message_id
        FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    UPDATE outbox.join_members m
       SET status = _count_late.status - 1
     WHERE m.join_id = _count_late.join_id AND m.message_id = _count_late.message_id
       AND m.status = 0;
    RETURN outbox._recount(_count_late.join_id);
END
$$;

COMMENT ON FUNCTION outbox._count_late(uuid, uuid, smallint) IS
    'Gives a member of a join its outcome, after the fact.';

-- _evaluate_wait(owner_token, wait)
--     Decides what comes of a wait that is leased to us.
CREATE FUNCTION outbox._evaluate_wait(
    owner_token uuid,
    wait        outbox.message
)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    terms     jsonb := wait.payload::jsonb;
    the_join  outbox.joins;
    the_id    uuid := terms ->> 'joinId';
    fails     boolean;
    added     integer := outbox._recount(the_id);
    topic     text;
    payload   text;
BEGIN
    SELECT * INTO the_join FROM outbox.joins j WHERE j.join_id = the_id;
    IF NOT FOUND THEN
        PERFORM outbox.fail_one(owner_token, wait.id, 'the join does not exist', 4);
        PERFORM outbox._log(format('outbox join wait: %s fails, its join does not exist',
                                   wait.message_id));
        RETURN;
    ELSIF added IS NULL THEN
        -- somebody is changing the join; if that completes it, he wakes us
        PERFORM outbox._put_back(
            owner_token, wait.id,
            clock_timestamp()
            + least(20 * 2 ^ least(wait.attempts, 10),
                    extract(epoch FROM current_setting('outbox.poll_interval')::interval) * 1000)
              * interval '1 millisecond');
        RETURN;
    ELSIF the_join.status = 0 THEN
        PERFORM outbox._put_back(owner_token, wait.id, 'infinity');
        PERFORM outbox._log(format('outbox join wait: %s goes on waiting', wait.message_id));
        RETURN;
    END IF;

    fails := the_join.status = 3
             OR ((terms ->> 'failIfAnyStepFailed')::boolean AND the_join.failed_steps > 0);
    topic := terms ->> CASE WHEN fails THEN 'onFailTopic' ELSE 'onCompleteTopic' END;
    payload := terms ->> CASE WHEN fails THEN 'onFailPayload' ELSE 'onCompletePayload' END;
    IF topic IS NOT NULL THEN
        PERFORM outbox.enqueue(topic, coalesce(payload, ''),
                               namespace => wait.namespace, headers => wait.headers);
    END IF;
    PERFORM outbox._ack_wait(owner_token, wait.id);
    DELETE FROM outbox.join_waits w
     WHERE w.join_id = the_id AND w.message_id = wait.message_id;
    PERFORM outbox._log(format('outbox join wait: %s is over, join %s, continuation "%s"',
                               wait.message_id, outbox.join_status_name(the_join.status),
                               coalesce(topic, 'none')));
END
$$;

COMMENT ON FUNCTION outbox._evaluate_wait(uuid, outbox.message) IS
    'Decides what comes of a wait for a join.';

-- process_join_waits(batch_limit)
--     Evaluates the waits that are due: those just filed, and those whose
--     joins have ended. Returns how many were evaluated. This is what the
--     background worker does.
CREATE FUNCTION outbox.process_join_waits(batch_limit integer DEFAULT NULL)
RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    owner_token uuid := gen_random_uuid();
    wait        outbox.message;
    evaluated   integer := 0;
BEGIN
    PERFORM outbox._check_limit('batch_limit', process_join_waits.batch_limit);
    PERFORM outbox._writes('outbox.process_join_waits()');
    PERFORM outbox._settle_join_doubts(coalesce(process_join_waits.batch_limit, 1000));
    FOR wait IN
        SELECT * FROM outbox.claim(
            owner_token,
            batch_size => least(coalesce(process_join_waits.batch_limit, 100), 10000),
            topics => ARRAY[current_setting('outbox.join_wait_topic')],
            max_attempts => 2147483647)
    LOOP
        BEGIN
            PERFORM outbox._evaluate_wait(owner_token, wait);
        EXCEPTION
            WHEN data_exception OR check_violation OR not_null_violation THEN
                -- somebody has made this wait by hand, and not well
                PERFORM outbox.fail_one(owner_token, wait.id, SQLERRM, 4);
        END;
        evaluated := evaluated + 1;
    END LOOP;
    RETURN evaluated;
END
$$;

COMMENT ON FUNCTION outbox.process_join_waits(integer) IS
    'Evaluates the waits for joins that are due.';

-- reconcile_joins(batch_limit)
--     Counts members whose messages had ended before they were attached.
--     Returns how many were counted.
CREATE FUNCTION outbox.reconcile_joins(batch_limit integer DEFAULT NULL)
RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pending uuid;
    counted integer := 0;
BEGIN
    PERFORM outbox._writes('outbox.reconcile_joins()');
    PERFORM outbox._check_limit('batch_limit', reconcile_joins.batch_limit);
    FOR pending IN
        SELECT j.join_id FROM outbox.joins j WHERE j.status = 0 ORDER BY j.created_at
    LOOP
        EXIT WHEN counted >= reconcile_joins.batch_limit;
        counted := counted + coalesce(outbox._recount(pending), 0);
    END LOOP;
    RETURN counted + outbox._settle_join_doubts(coalesce(reconcile_joins.batch_limit, 10000));
END
$$;

COMMENT ON FUNCTION outbox.reconcile_joins(integer) IS
    'Counts members of joins whose messages had ended before they were attached.';
