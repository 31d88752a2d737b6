-- waits.sql: messages that wait for joins, and their continuations. Nearly all of it
-- is in SQL: a wait is handled only once or twice, so speed is not critical. Serves
-- sql_join.c.
--
-- A wait is evaluated without a lock on its join. The call that ends the join changes
-- it first, and then wakes its waits; the evaluation leases the wait first, and then
-- reads the join. So if the evaluation finds the join pending, and no transaction
-- changing it, the call that ends it finds the wait parked, or finds it locked and
-- inserts a recheck. If a transaction is changing the join, the evaluation itself
-- inserts a recheck.
--
-- Rechecks are processed with locks on joins and members, all with SKIP LOCKED: so
-- nothing here waits for another transaction, and it cannot be part of a deadlock.
--
-- Nothing is deleted here because another row is missing: a dump may be about to load
-- it.

-- _in_progress(xid)
--     Returns whether the transaction is in progress. False for the current one.
--     Above READ COMMITTED also true if it ended after the snapshot was taken,
--     because its changes are not visible then.
CREATE FUNCTION outbox._in_progress(xid xid)
RETURNS boolean
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_in_progress';

COMMENT ON FUNCTION outbox._in_progress(xid) IS
    'Whether a transaction other than the current one is in progress.';

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
    'Releases a lease, not to be claimed before a given time; the attempt does not count.';

-- _put_off(what, thing)
--     Returns when to try a wait, a timer or a run again that would have to wait for
--     another transaction: after a second, and after twice as long each time, up to a
--     minute. Lowers lock_timeout, so that others of this call wait only for a
--     moment; the caller must restore it.
CREATE FUNCTION outbox._put_off(
    what  text,
    thing outbox.message
)
RETURNS timestamptz
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- attempts that ended neither successfully nor with an error
    times integer := greatest(thing.attempts - thing.retry_count - 1, 0);
BEGIN
    IF current_setting('lock_timeout')::interval > '10 ms' THEN
        PERFORM set_config('lock_timeout', '10ms', true);
    END IF;
    -- only once, when it is clear that this takes long
    IF times = 6 THEN
        RAISE LOG '%', format('outbox: %s %s is blocked by another transaction, and is retried '
                              'every minute', what, thing.message_id)
            USING HINT = 'A row or table that it needs, perhaps in a trigger on outbox.queue, '
                         'is locked.';
    END IF;
    RETURN clock_timestamp() + least(1 << least(times, 6), 60) * interval '1 s';
END
$$;

COMMENT ON FUNCTION outbox._put_off(text, outbox.message) IS
    'The time of the next try of something that would have to wait for another transaction.';

-- _ack_wait(owner_token, id)
--     ack for a wait. If the wait is itself a step of another join, and that is
--     locked, inserts a row into join_rechecks instead of waiting.
CREATE FUNCTION outbox._ack_wait(
    owner_token uuid,
    id          bigint
)
RETURNS void
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_ack_wait';

COMMENT ON FUNCTION outbox._ack_wait(uuid, bigint) IS
    'Finishes a wait without waiting for joins of which it is a step.';

-- _nack_wait(owner_token, id, error)
--     The same for nack: the wait is retried after the backoff, and fails at
--     max_attempts.
CREATE FUNCTION outbox._nack_wait(
    owner_token uuid,
    id          bigint,
    error       text
)
RETURNS void
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_nack_wait';

COMMENT ON FUNCTION outbox._nack_wait(uuid, bigint, text) IS
    'Schedules a retry of a wait that could not be evaluated.';

-- _fail_wait(owner_token, id, error)
--     The same for fail, with reason 4 (validation).
CREATE FUNCTION outbox._fail_wait(
    owner_token uuid,
    id          bigint,
    error       text
)
RETURNS void
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_fail_wait';

COMMENT ON FUNCTION outbox._fail_wait(uuid, bigint, text) IS
    'Fails a wait that cannot be evaluated.';

-- _wake_wait(message_id)
--     Makes a wait claimable now; false if another transaction has locked it.
CREATE FUNCTION outbox._wake_wait(message_id uuid)
RETURNS boolean
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_wake_wait';

COMMENT ON FUNCTION outbox._wake_wait(uuid) IS 'Makes a wait claimable now.';

-- _look_at_join(join_id)
--     Returns the status of a join as it is now, whatever the snapshot, and how many
--     of its steps have failed, or null if there is no such join; and the transaction
--     in progress that is changing it, if there is one.
CREATE FUNCTION outbox._look_at_join(
    join_id uuid,
    OUT status smallint,
    OUT failed_steps integer,
    OUT writer xid
)
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_look_at_join';

COMMENT ON FUNCTION outbox._look_at_join(uuid) IS
    'The present state of a join, and the transaction that is changing it.';

-- enqueue_join_wait(join_id, fail_if_any_step_failed, on_complete_topic, ...)
--     Enqueues a message that waits for the end of the join; then another message is
--     enqueued, the continuation. Without on_fail_topic, or with an empty one, no
--     continuation follows a failure. Returns the message_id of the wait.
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
    IF enqueue_join_wait.on_fail_topic <> '' THEN
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
            'onFailTopic', nullif(enqueue_join_wait.on_fail_topic, ''),
            'onFailPayload', enqueue_join_wait.on_fail_payload)::text,
        namespace => enqueue_join_wait.namespace,
        headers => enqueue_join_wait.headers,
        message_id => wait_id);
    RETURN wait_id;
END
$$;

COMMENT ON FUNCTION outbox.enqueue_join_wait(uuid, boolean, text, text, text, text, text, jsonb) IS
    'Enqueues a message that waits for the end of a join; then a continuation is enqueued.';

-- _join_add(expected, completed, failed, more_completed, more_failed)
--     The arithmetic of joins: counts failed steps first, up to the number of
--     expected steps.
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
    'The counters of a pending join after adding steps.';

-- _recount(join_id)
--     Counts the members of a pending join that are marked and were not counted.
--     Returns how many steps were added; null if another transaction has locked the
--     join.
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
        PERFORM outbox._log(format(
            'outbox join: %s is complete, status %s, %s completed, %s failed',
            _recount.join_id, outbox.join_status_name(sums.status), sums.completed, sums.failed));
    END IF;
    RETURN sums.added;
END
$$;

COMMENT ON FUNCTION outbox._recount(uuid) IS
    'Counts the members of a join that were marked and not counted.';

-- _count_late(join_id, message_id, status)
--     Sets the outcome of a member from a message's status. Returns how many steps
--     that adds to the join; null if another transaction has locked the join or the
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
        RETURN NULL;
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
    'Sets the outcome of a member of a join later.';

-- _process_join_recheck(recheck)
--     Does the counting or waking that a recheck asks for. "resolved" is false if
--     another transaction holds a lock, null if the member or message does not exist.
CREATE FUNCTION outbox._process_join_recheck(
    recheck      outbox.join_rechecks,
    OUT resolved boolean,
    OUT counted  integer
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    outcome smallint;
    member  record;
    added   integer;
    ended   boolean;
BEGIN
    counted := 0;
    IF recheck.message_id IS NULL THEN
        added := outbox._recount(recheck.join_id);
        IF added IS NULL THEN
            resolved := false;
            RETURN;
        END IF;
        counted := added;
        SELECT j.status <> 0 INTO ended FROM outbox.joins j WHERE j.join_id = recheck.join_id;
        resolved := CASE WHEN FOUND THEN true END;
        -- of a deleted join, the waits that could not be woken are left
        IF coalesce(ended, true) THEN
            PERFORM outbox._wake_waits(recheck.join_id);
        END IF;
        RETURN;
    END IF;

    outcome := coalesce(recheck.status, (outbox._message_end(recheck.message_id)).status);
    IF outcome IS NULL THEN
        -- it has not ended after all, or its outcome is unknown
        resolved := CASE WHEN EXISTS (SELECT FROM outbox.queue q
                                      WHERE q.message_id = recheck.message_id) THEN true END;
        RETURN;
    END IF;
    FOR member IN
        SELECT m.join_id, m.status
          FROM outbox.join_members m
          JOIN outbox.joins j ON j.join_id = m.join_id
         WHERE m.message_id = recheck.message_id
           AND (recheck.join_id IS NULL OR m.join_id = recheck.join_id)
         ORDER BY m.join_id
    LOOP
        resolved := coalesce(resolved, true);
        CONTINUE WHEN member.status <> 0;
        added := outbox._count_late(member.join_id, recheck.message_id, outcome);
        resolved := resolved AND added IS NOT NULL;
        counted := counted + coalesce(added, 0);
    END LOOP;

    -- the message may have been a wait, whose row another transaction had locked
    IF EXISTS (SELECT FROM outbox.join_waits w WHERE w.message_id = recheck.message_id) THEN
        DELETE FROM outbox.join_waits w
         WHERE w.ctid = ANY (ARRAY(
                   SELECT k.ctid
                     FROM outbox.join_waits k
                    WHERE k.message_id = recheck.message_id
                      FOR UPDATE SKIP LOCKED));
        resolved := coalesce(resolved, true)
                   AND NOT EXISTS (SELECT FROM outbox.join_waits w
                                    WHERE w.message_id = recheck.message_id);
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._process_join_recheck(outbox.join_rechecks) IS
    'Processes one row of join_rechecks.';

-- _process_join_rechecks(batch_limit, missed)
--     Counts what could not be counted earlier, and wakes waits that could not be
--     woken. Returns how many steps were counted. A recheck about a member or message
--     that does not exist is tried again when "missed" is true, and deleted after a
--     day: usually that transaction was rolled back, but a dump may also be about to
--     load the row.
CREATE FUNCTION outbox._process_join_rechecks(
    batch_limit integer,
    missed      boolean DEFAULT false
)
RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    recheck outbox.join_rechecks;
    attempt record;
    counted integer := 0;
BEGIN
    IF pg_relation_size('outbox.join_rechecks') = 0 THEN
        RETURN 0;
    END IF;
    FOR recheck IN
        SELECT * FROM outbox.join_rechecks r
         WHERE r.id IN (
                   SELECT o.id
                     FROM outbox.join_rechecks o
                    WHERE (o.missed_at IS NULL OR missed)
                      AND NOT outbox._in_progress(o.waits_for)
                    -- so that many that cannot be resolved do not block others
                    ORDER BY random()
                    LIMIT batch_limit)
         -- the first outcome stands
         ORDER BY r.id
           FOR UPDATE SKIP LOCKED
    LOOP
        attempt := outbox._process_join_recheck(recheck);
        counted := counted + attempt.counted;
        IF attempt.resolved OR (attempt.resolved IS NULL
                                AND recheck.missed_at < clock_timestamp() - interval '1 day') THEN
            DELETE FROM outbox.join_rechecks r WHERE r.id = recheck.id;
        ELSIF attempt.resolved IS NULL AND recheck.missed_at IS NULL THEN
            UPDATE outbox.join_rechecks r SET missed_at = clock_timestamp() WHERE r.id = recheck.id;
        END IF;
    END LOOP;
    RETURN counted;
END
$$;

COMMENT ON FUNCTION outbox._process_join_rechecks(integer, boolean) IS
    'Processes rows of join_rechecks; returns how many steps were counted.';

-- _evaluate_wait(owner_token, wait)
--     Decides what to do with a wait, which must be leased to the owner.
CREATE FUNCTION outbox._evaluate_wait(
    owner_token uuid,
    wait        outbox.message
)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    terms    jsonb := wait.payload::jsonb;
    the_id   uuid := terms ->> 'joinId';
    the_join record;
    fails    boolean;
    topic    text;
    payload  text;
BEGIN
    -- it was enqueued directly, or has lost its row
    IF NOT EXISTS (SELECT FROM outbox.join_waits w
                    WHERE w.join_id = the_id AND w.message_id = wait.message_id)
       AND EXISTS (SELECT FROM outbox.joins j WHERE j.join_id = the_id AND j.status = 0)
    THEN
        INSERT INTO outbox.join_waits (join_id, message_id)
        VALUES (the_id, wait.message_id)
        ON CONFLICT DO NOTHING;
    END IF;

    SELECT * INTO the_join FROM outbox._look_at_join(the_id);
    IF the_join.status IS NULL THEN
        PERFORM outbox._fail_wait(owner_token, wait.id, 'the join does not exist');
        PERFORM outbox._log(format('outbox join wait: %s fails, its join does not exist',
                                   wait.message_id));
        RETURN;
    ELSIF the_join.status = 0 THEN
        PERFORM outbox._put_back(owner_token, wait.id, 'infinity');
        IF the_join.writer IS NOT NULL THEN
            -- if that transaction ends the join, it may have looked for waits before
            -- this one was parked
            INSERT INTO outbox.join_rechecks (id, waits_for, join_id)
            VALUES (nextval('outbox.message_id_seq'), the_join.writer, the_id);
            PERFORM outbox._wake_worker();
        END IF;
        PERFORM outbox._log(format('outbox join wait: %s goes on waiting', wait.message_id));
        RETURN;
    END IF;

    fails := the_join.status = 3
             OR ((terms ->> 'failIfAnyStepFailed')::boolean AND the_join.failed_steps > 0);
    topic := CASE WHEN fails THEN nullif(terms ->> 'onFailTopic', '')
                  ELSE terms ->> 'onCompleteTopic' END;
    payload := terms ->> CASE WHEN fails THEN 'onFailPayload' ELSE 'onCompletePayload' END;
    IF topic IS NOT NULL THEN
        PERFORM outbox._enqueue_caused(the_id, topic, coalesce(payload, ''), wait.namespace, NULL,
                                       wait.headers);
    END IF;
    PERFORM outbox._ack_wait(owner_token, wait.id);
    PERFORM outbox._log(format('outbox join wait: %s is over, join %s, continuation "%s"',
                               wait.message_id,
                               outbox.join_status_name(the_join.status),
                               coalesce(topic, 'none')));
END
$$;

COMMENT ON FUNCTION outbox._evaluate_wait(uuid, outbox.message) IS
    'Decides what to do with a wait for a join.';

-- _try_wait(owner_token, wait)
--     Evaluates a wait; an error affects only this wait. A wait with invalid contents
--     fails; any other error counts as an attempt. A wait that would have to wait for
--     another transaction is postponed. Errors that are not caused by the wait, such
--     as a lack of memory or disk space, are raised.
CREATE FUNCTION outbox._try_wait(
    owner_token uuid,
    wait        outbox.message
)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._evaluate_wait(owner_token, wait);
EXCEPTION
    WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
        PERFORM outbox._fail_wait(owner_token, wait.id, SQLERRM);
    WHEN OTHERS THEN
        IF outbox._is_blocked(SQLSTATE) THEN
            PERFORM outbox._put_back(owner_token, wait.id, outbox._put_off('wait', wait));
        ELSIF NOT outbox._is_own_fault(SQLSTATE) THEN
            RAISE;
        ELSE
            PERFORM outbox._nack_wait(owner_token, wait.id, SQLERRM);
        END IF;
END
$$;

COMMENT ON FUNCTION outbox._try_wait(uuid, outbox.message) IS
    'Evaluates a wait; an error affects only this wait.';

-- process_join_waits(batch_limit)
--     Evaluates the waits that are due: new ones, and those whose joins have ended.
--     Returns how many were evaluated. The default limit is 50, because each takes a
--     subtransaction, and more than 64 of them slow down all snapshots of the server.
--     The background worker calls this. Does nothing while another session loads a
--     dump.
CREATE FUNCTION outbox.process_join_waits(batch_limit integer DEFAULT NULL)
RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    owner_token  uuid := gen_random_uuid();
    lock_timeout text := current_setting('lock_timeout');
    wait         outbox.message;
    evaluated    integer := 0;
BEGIN
    PERFORM outbox._check_limit('batch_limit', process_join_waits.batch_limit);
    PERFORM outbox._writes('outbox.process_join_waits()');
    IF outbox._is_loading() THEN
        RETURN 0;
    END IF;
    PERFORM outbox._process_join_rechecks(coalesce(process_join_waits.batch_limit, 1000));
    FOR wait IN
        SELECT * FROM outbox.claim(
            owner_token,
            batch_size => least(coalesce(process_join_waits.batch_limit, 50), 10000),
            topics => ARRAY[current_setting('outbox.join_wait_topic')],
            max_attempts => 2147483647)
    LOOP
        PERFORM outbox._try_wait(owner_token, wait);
        evaluated := evaluated + 1;
    END LOOP;
    IF current_setting('lock_timeout') <> lock_timeout THEN
        PERFORM set_config('lock_timeout', lock_timeout, true);
    END IF;
    RETURN evaluated;
END
$$;

COMMENT ON FUNCTION outbox.process_join_waits(integer) IS
    'Evaluates the waits for joins that are due.';

-- _count_ended_members(batch_limit)
--     Looks for pending members whose messages have ended, and counts them. It
--     reads the table in pieces from a random one on, without a lock, for half a
--     second at most, and locks what it finds. Returns how many steps it counted.
CREATE FUNCTION outbox._count_ended_members(batch_limit integer)
RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- number of blocks of a piece
    piece CONSTANT bigint := 16;

    deadline timestamptz := clock_timestamp() + interval '500 ms';
    pieces   bigint := (pg_relation_size('outbox.join_members')
                        / current_setting('block_size')::bigint + piece - 1) / piece;
    at       bigint := floor(random() * pieces);
    counted  integer := 0;
    late     record;
BEGIN
    FOR i IN 1 .. pieces LOOP
        FOR late IN
            SELECT m.join_id, m.message_id, m.outcome
              FROM (SELECT p.join_id, p.message_id,
                           (outbox._message_end(p.message_id)).status AS outcome
                      FROM outbox.join_members p
                      JOIN outbox.joins j ON j.join_id = p.join_id AND j.status = 0
                     WHERE p.ctid >= format('(%s,0)', at * piece)::tid
                       AND p.ctid < format('(%s,0)', (at + 1) * piece)::tid
                       AND p.status = 0
                    OFFSET 0) m
             WHERE m.outcome IS NOT NULL
        LOOP
            counted := counted + coalesce(
                outbox._count_late(late.join_id, late.message_id, late.outcome), 0);
        END LOOP;
        EXIT WHEN counted >= batch_limit OR clock_timestamp() > deadline;
        at := (at + 1) % pieces;
    END LOOP;
    RETURN counted;
END
$$;

COMMENT ON FUNCTION outbox._count_ended_members(integer) IS
    'Counts members of joins whose messages have ended.';

-- _wake_lost_waits(batch_limit)
--     Looks for parked waits that nothing else would wake: their join has ended or
--     does not exist, or they are not in join_waits. Makes them claimable; their
--     evaluation decides what to do with them. It visits the lanes of the queue from
--     a random one on, for half a second at most. Returns how many it woke.
CREATE FUNCTION outbox._wake_lost_waits(batch_limit integer)
RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wait_topic text := current_setting('outbox.join_wait_topic');
    deadline   timestamptz := clock_timestamp() + interval '500 ms';
    first_lane bigint;
    lane_at    bigint;
    wrapped    boolean := false;
    woken      integer := 0;
    lost       record;
BEGIN
    -- lanes are hashes, so any number can be the first
    first_lane := hashint8extended(floor(random() * 1000000000)::bigint, 0);
    lane_at := first_lane;
    LOOP
        SELECT q.lane INTO lane_at
          FROM outbox.queue q
         WHERE q.lane >= lane_at
         ORDER BY q.lane
         LIMIT 1;
        EXIT WHEN wrapped AND (lane_at IS NULL OR lane_at >= first_lane);
        IF lane_at IS NULL THEN
            wrapped := true;
            lane_at := -9223372036854775808;
            CONTINUE;
        END IF;
        FOR lost IN
            SELECT w.message_id
              FROM (SELECT q.message_id,
                           substring(q.payload FROM '"joinId": ?"([0-9a-fA-F]{8}'
                               '(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})"')::uuid AS join_id
                      FROM outbox.queue q
                     WHERE q.lane = lane_at AND q.next_attempt_at = 'infinity'
                       AND q.topic = wait_topic AND q.status = 0
                    OFFSET 0) w
             WHERE NOT EXISTS (SELECT FROM outbox.join_waits k
                                WHERE k.message_id = w.message_id)
                OR NOT EXISTS (SELECT FROM outbox.joins j
                                WHERE j.join_id = w.join_id AND j.status = 0)
             LIMIT batch_limit
        LOOP
            woken := woken + outbox._wake_wait(lost.message_id)::integer;
        END LOOP;
        EXIT WHEN woken >= batch_limit OR clock_timestamp() > deadline
                  OR lane_at = 9223372036854775807;
        lane_at := lane_at + 1;
    END LOOP;
    RETURN woken;
END
$$;

COMMENT ON FUNCTION outbox._wake_lost_waits(integer) IS
    'Wakes parked waits that nothing else would wake.';

-- reconcile_joins(batch_limit)
--     Finds inconsistencies that plain SQL or a dump can cause: members whose
--     messages ended before they were attached, and parked waits that nothing else
--     would wake. Returns how many steps it counted and waits it woke. One call takes
--     at most about a second, and locks only what it finds; the rest is left to later
--     calls. Wakes the worker as well. Does nothing while another session loads a
--     dump.
CREATE FUNCTION outbox.reconcile_joins(batch_limit integer DEFAULT NULL)
RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found_max integer := coalesce(reconcile_joins.batch_limit, 1000);
BEGIN
    PERFORM outbox._writes('outbox.reconcile_joins()');
    PERFORM outbox._check_limit('batch_limit', reconcile_joins.batch_limit);
    IF outbox._is_loading() THEN
        RETURN 0;
    END IF;
    -- rows that were loaded without triggers were not reported
    PERFORM outbox._wake_worker();
    RETURN outbox._process_join_rechecks(found_max, true)
           + outbox._count_ended_members(found_max)
           + outbox._wake_lost_waits(found_max);
END
$$;

COMMENT ON FUNCTION outbox.reconcile_joins(integer) IS
    'Counts members whose messages had ended before they were attached; wakes lost waits.';
