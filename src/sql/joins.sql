-- joins.sql: fan-in. Serves sql_join.c, and join.c, which knows the columns by their
-- numbers. Messages do not depend on joins: the only connection is the trigger that
-- fires when messages leave the queue.
--
-- Members and waits have no foreign key to their join. pg_restore -j loads these
-- tables in any order, with the constraints of the extension in place, and would lose
-- rows. They are added only to an existing join (_lock_join), and are deleted with it
-- (outbox_join_goes).

CREATE TABLE outbox.joins (
    join_id         uuid        NOT NULL,
    grouping_key    text,
    expected_steps  integer     NOT NULL,
    completed_steps integer     NOT NULL DEFAULT 0,
    failed_steps    integer     NOT NULL DEFAULT 0,
    status          smallint    NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    metadata        text,
    CONSTRAINT joins_pkey PRIMARY KEY (join_id),
    CONSTRAINT outbox_joins_grouping_key CHECK (char_length(grouping_key) BETWEEN 1 AND 255),
    CONSTRAINT outbox_joins_steps CHECK (
        expected_steps > 0 AND completed_steps >= 0 AND failed_steps >= 0
        AND completed_steps::bigint + failed_steps <= expected_steps
    ),
    CONSTRAINT outbox_joins_status CHECK (
        CASE status
            WHEN 0 THEN completed_steps::bigint + failed_steps < expected_steps
            WHEN 1 THEN completed_steps = expected_steps
            WHEN 2 THEN completed_steps::bigint + failed_steps = expected_steps AND failed_steps > 0
            ELSE status = 3
        END
    )
) WITH (fillfactor = 50);

CREATE INDEX joins_status_idx ON outbox.joins (status, created_at);
CREATE INDEX joins_grouping_key_idx ON outbox.joins (grouping_key) WHERE grouping_key IS NOT NULL;

COMMENT ON TABLE outbox.joins IS 'Sets of steps whose end can be waited for.';
COMMENT ON COLUMN outbox.joins.join_id IS 'The join.';
COMMENT ON COLUMN outbox.joins.grouping_key IS 'A key chosen by the user to find the join by.';
COMMENT ON COLUMN outbox.joins.expected_steps IS 'How many steps must end.';
COMMENT ON COLUMN outbox.joins.completed_steps IS 'How many steps are done.';
COMMENT ON COLUMN outbox.joins.failed_steps IS 'How many steps have failed.';
COMMENT ON COLUMN outbox.joins.status IS '0 pending, 1 completed, 2 failed, 3 cancelled.';
COMMENT ON COLUMN outbox.joins.created_at IS 'When it was started.';
COMMENT ON COLUMN outbox.joins.last_updated_at IS 'When it last changed.';
COMMENT ON COLUMN outbox.joins.metadata IS 'Additional information, chosen by the user.';

CREATE TABLE outbox.join_members (
    join_id    uuid        NOT NULL,
    message_id uuid        NOT NULL,
    status     smallint    NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT join_members_pkey PRIMARY KEY (join_id, message_id),
    CONSTRAINT outbox_join_members_status CHECK (status BETWEEN 0 AND 2)
) WITH (fillfactor = 50);

CREATE INDEX join_members_message_idx ON outbox.join_members (message_id, join_id);

COMMENT ON TABLE outbox.join_members IS 'The messages that are steps of joins.';
COMMENT ON COLUMN outbox.join_members.join_id IS 'The join.';
COMMENT ON COLUMN outbox.join_members.message_id IS 'The message.';
COMMENT ON COLUMN outbox.join_members.status IS '0 pending, 1 completed, 2 failed.';
COMMENT ON COLUMN outbox.join_members.created_at IS 'When it was attached.';

CREATE TABLE outbox.join_waits (
    join_id    uuid NOT NULL,
    message_id uuid NOT NULL,
    CONSTRAINT join_waits_pkey PRIMARY KEY (join_id, message_id)
);

CREATE INDEX join_waits_message_idx ON outbox.join_waits (message_id);

COMMENT ON TABLE outbox.join_waits IS 'The messages that wait for joins and have not ended.';
COMMENT ON COLUMN outbox.join_waits.join_id IS 'The join.';
COMMENT ON COLUMN outbox.join_waits.message_id IS 'The message, of topic outbox.join_wait_topic.';

-- A row names a join, a message, or both:
--     a join      count its members again, and wake its waits if it has ended
--     a message   it has ended: count that in all joins that have it as a member,
--                 and let it wait for none
--     both        the same in this join only, as reported by hand
CREATE TABLE outbox.join_rechecks (
    id         bigint NOT NULL,
    waits_for  xid    NOT NULL,
    join_id    uuid,
    message_id uuid,
    status     smallint,
    missed_at  timestamptz,
    CONSTRAINT join_rechecks_pkey PRIMARY KEY (id)
);

COMMENT ON TABLE outbox.join_rechecks IS
    'Outcomes that must be counted after the end of another transaction. Nearly always empty.';
COMMENT ON COLUMN outbox.join_rechecks.id IS 'Number of the row.';
COMMENT ON COLUMN outbox.join_rechecks.waits_for IS 'The transaction whose end must be awaited.';
COMMENT ON COLUMN outbox.join_rechecks.join_id IS
    'The join in which to count; null for all joins that have the message.';
COMMENT ON COLUMN outbox.join_rechecks.message_id IS
    'The message whose outcome must be counted; null to count all members again.';
COMMENT ON COLUMN outbox.join_rechecks.status IS 'The outcome; null if it must be looked up.';
COMMENT ON COLUMN outbox.join_rechecks.missed_at IS
    'When there was first nothing to count; the row is deleted a day later.';

-- Nothing is decided about joins while a dump is being loaded.
CREATE TRIGGER outbox_joins_loaded
    BEFORE INSERT ON outbox.joins
    FOR EACH STATEMENT EXECUTE FUNCTION outbox._loads();

COMMENT ON TRIGGER outbox_joins_loaded ON outbox.joins IS
    'Records that this session is loading a dump.';

CREATE TRIGGER outbox_join_members_loaded
    BEFORE INSERT ON outbox.join_members
    FOR EACH STATEMENT EXECUTE FUNCTION outbox._loads();

COMMENT ON TRIGGER outbox_join_members_loaded ON outbox.join_members IS
    'Records that this session is loading a dump.';

CREATE TRIGGER outbox_join_waits_loaded
    BEFORE INSERT ON outbox.join_waits
    FOR EACH STATEMENT EXECUTE FUNCTION outbox._loads();

COMMENT ON TRIGGER outbox_join_waits_loaded ON outbox.join_waits IS
    'Records that this session is loading a dump.';

CREATE TRIGGER outbox_join_rechecks_loaded
    BEFORE INSERT ON outbox.join_rechecks
    FOR EACH STATEMENT EXECUTE FUNCTION outbox._loads();

COMMENT ON TRIGGER outbox_join_rechecks_loaded ON outbox.join_rechecks IS
    'Records that this session is loading a dump.';

-- _queue_ended()
--     Counts the messages that the current call has ended in their joins.
CREATE FUNCTION outbox._queue_ended()
RETURNS trigger
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_queue_ended';

COMMENT ON FUNCTION outbox._queue_ended() IS
    'Counts messages that have ended in their joins.';

-- Fired by the functions that end messages, once per call. A plain DELETE
-- fires it too, and ends no message.
CREATE TRIGGER outbox_queue_ended
    AFTER DELETE ON outbox.queue
    FOR EACH STATEMENT EXECUTE FUNCTION outbox._queue_ended();

COMMENT ON TRIGGER outbox_queue_ended ON outbox.queue IS
    'Counts messages that have ended in their joins.';

-- join_status_name(status)
--     Returns the name of the status of a join; null if there is no such status.
CREATE FUNCTION outbox.join_status_name(status integer)
RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE status
    WHEN 0 THEN 'pending'
    WHEN 1 THEN 'completed'
    WHEN 2 THEN 'failed'
    WHEN 3 THEN 'cancelled'
END;

COMMENT ON FUNCTION outbox.join_status_name(integer) IS
    'The name of a join''s status: 0 pending, 1 completed, 2 failed, 3 cancelled.';

-- _message_end(message_id)
--     Returns how a message has ended, 2 (done) or 3 (failed), or null if it has not
--     ended or is no longer known; and the transaction in progress that is changing
--     it, if there is one.
CREATE FUNCTION outbox._message_end(
    message_id uuid,
    OUT status smallint,
    OUT writer xid
)
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_message_end';

COMMENT ON FUNCTION outbox._message_end(uuid) IS
    'How a message has ended, and which transaction is changing it.';

-- _wake_waits(join_id)
--     Makes the waits of a join claimable now. For a wait that another transaction
--     has locked, a row is added to join_rechecks instead; false if there was one.
CREATE FUNCTION outbox._wake_waits(join_id uuid)
RETURNS boolean
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_wake_waits';

COMMENT ON FUNCTION outbox._wake_waits(uuid) IS 'Makes the waits of a join claimable now.';

-- _join_goes()
--     BEFORE DELETE on outbox.joins: makes the waits of the join claimable, so that
--     they are evaluated and end, and removes what belongs to the join.
CREATE FUNCTION outbox._join_goes()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF TG_RELID <> 'outbox.joins'::regclass THEN
        RAISE EXCEPTION '"outbox._join_goes" cannot be a trigger of "%"', TG_TABLE_NAME
            USING ERRCODE = 'wrong_object_type';
    END IF;
    DELETE FROM outbox.join_members m WHERE m.join_id = OLD.join_id;
    -- a wait that could not be woken must still be found by its join
    IF outbox._wake_waits(OLD.join_id) THEN
        DELETE FROM outbox.join_waits w WHERE w.join_id = OLD.join_id;
    END IF;
    RETURN OLD;
END
$$;

COMMENT ON FUNCTION outbox._join_goes() IS
    'Removes what belongs to a deleted join, and makes its waits claimable.';

CREATE TRIGGER outbox_join_goes
    BEFORE DELETE ON outbox.joins
    FOR EACH ROW EXECUTE FUNCTION outbox._join_goes();

COMMENT ON TRIGGER outbox_join_goes ON outbox.joins IS 'Removes what belongs to a deleted join.';

-- start_join(grouping_key, expected_steps, metadata)
--     Creates a join that ends after a number of steps; returns its id.
CREATE FUNCTION outbox.start_join(
    grouping_key   text,
    expected_steps integer,
    metadata       text DEFAULT NULL
)
RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    new_id uuid := outbox._uuid7();
    since  timestamptz := clock_timestamp();
BEGIN
    PERFORM outbox._require('expected_steps', start_join.expected_steps),
            outbox._check_limit('expected_steps', start_join.expected_steps);
    IF char_length(start_join.grouping_key) > 255 THEN
        RAISE EXCEPTION 'grouping_key must not be longer than 255 characters'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO outbox.joins
        (join_id, grouping_key, expected_steps, metadata, created_at, last_updated_at)
    VALUES (new_id, nullif(start_join.grouping_key, ''),
            start_join.expected_steps, start_join.metadata, since, since);
    PERFORM outbox._log(format('outbox join: %s started, grouping key "%s", %s steps',
                               new_id, coalesce(start_join.grouping_key, ''),
                               start_join.expected_steps));
    RETURN new_id;
END
$$;

COMMENT ON FUNCTION outbox.start_join(text, integer, text) IS
    'Creates a join of a number of steps; returns its id.';

-- _unknown_join(join_id)
--     Raises 42704.
CREATE FUNCTION outbox._unknown_join(join_id uuid)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'join "%" does not exist', join_id
        USING ERRCODE = 'undefined_object';
END
$$;

COMMENT ON FUNCTION outbox._unknown_join(uuid) IS 'Raises the error for an unknown join.';

-- _lock_join(join_id)
--     Keeps the join from being deleted until the end of the transaction. Raises
--     42704 if there is no such join. Does not wait for changes of its counters.
CREATE FUNCTION outbox._lock_join(join_id uuid)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM outbox.joins j WHERE j.join_id = _lock_join.join_id FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM outbox._unknown_join(_lock_join.join_id);
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._lock_join(uuid) IS
    'Keeps a join from being deleted, or raises an error if it does not exist.';

-- attach_message_to_join(join_id, message_id)
--     Makes a message a step of a join; doing so again has no effect. It does not
--     count the message: if it has ended already, or is ending, that is left to the
--     evaluation of waits. Raises 22023 if the id is known to be that of a
--     publication.
CREATE FUNCTION outbox.attach_message_to_join(
    join_id    uuid,
    message_id uuid
)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    message record;
BEGIN
    PERFORM outbox._require('join_id', attach_message_to_join.join_id),
            outbox._require('message_id', attach_message_to_join.message_id);
    PERFORM outbox._refuse_published(attach_message_to_join.message_id),
            outbox._lock_join(attach_message_to_join.join_id);
    INSERT INTO outbox.join_members (join_id, message_id)
    VALUES (attach_message_to_join.join_id, attach_message_to_join.message_id)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
        -- after the insertion: see join.c
        SELECT * INTO message FROM outbox._message_end(attach_message_to_join.message_id);
        IF message.status IS NOT NULL OR message.writer IS NOT NULL THEN
            INSERT INTO outbox.join_rechecks (id, waits_for, message_id, status)
            VALUES (nextval('outbox.message_id_seq'),
                    coalesce(message.writer, pg_current_xact_id()::xid),
                    attach_message_to_join.message_id, message.status);
            PERFORM outbox._wake_worker();
        END IF;
        PERFORM outbox._log(format('outbox join: %s gets message %s as a step',
                                   attach_message_to_join.join_id,
                                   attach_message_to_join.message_id));
    END IF;
END
$$;

COMMENT ON FUNCTION outbox.attach_message_to_join(uuid, uuid) IS
    'Makes a message a step of a join.';

-- enqueue_step(join_id, topic, payload, ...)
--     Enqueues a message and makes it a step of a join.
CREATE FUNCTION outbox.enqueue_step(
    join_id        uuid,
    topic          text,
    payload        text,
    correlation_id text        DEFAULT NULL,
    due_time       timestamptz DEFAULT NULL,
    namespace      text        DEFAULT 'default',
    tenant_id      uuid        DEFAULT NULL,
    dedupe_key     text        DEFAULT NULL,
    stream_id      uuid        DEFAULT NULL,
    headers        jsonb       DEFAULT NULL,
    expires_at     timestamptz DEFAULT NULL,
    message_id     uuid        DEFAULT NULL,
    dedupe_for     interval    DEFAULT NULL,
    on_duplicate   text        DEFAULT 'keep',
    priority       integer     DEFAULT NULL
)
RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    enqueued_id uuid;
BEGIN
    PERFORM outbox._require('join_id', enqueue_step.join_id);
    PERFORM outbox._lock_join(enqueue_step.join_id);
    enqueued_id := outbox.enqueue(
        enqueue_step.topic, enqueue_step.payload, enqueue_step.correlation_id,
        enqueue_step.due_time, enqueue_step.namespace, enqueue_step.tenant_id,
        enqueue_step.dedupe_key, enqueue_step.stream_id, enqueue_step.headers,
        enqueue_step.expires_at, enqueue_step.message_id, enqueue_step.dedupe_for,
        enqueue_step.on_duplicate, enqueue_step.priority);
    PERFORM outbox.attach_message_to_join(enqueue_step.join_id, enqueued_id);
    RETURN enqueued_id;
END
$$;

COMMENT ON FUNCTION outbox.enqueue_step(
    uuid, text, text, text, timestamptz, text, uuid, text, uuid, jsonb, timestamptz, uuid,
    interval, text, integer
) IS
    'Enqueues a message and makes it a step of a join.';

-- report_step_completed(join_id, message_id)
--     Counts a step as completed that does not end in the queue, usually because it
--     is not a message of the queue. The first outcome of a step stands: a second
--     report has no effect. Raises 42704 if there is no such join, or the step is not
--     attached to it.
CREATE FUNCTION outbox.report_step_completed(
    join_id    uuid,
    message_id uuid
)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_report_step_completed';

COMMENT ON FUNCTION outbox.report_step_completed(uuid, uuid) IS
    'Reports that a step of a join is done.';

-- report_step_failed(join_id, message_id)
--     Counts a step as failed, by the rules of report_step_completed.
CREATE FUNCTION outbox.report_step_failed(
    join_id    uuid,
    message_id uuid
)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_report_step_failed';

COMMENT ON FUNCTION outbox.report_step_failed(uuid, uuid) IS
    'Reports that a step of a join has failed.';

-- cancel_join(join_id)
--     Cancels a join. False if it has ended already.
CREATE FUNCTION outbox.cancel_join(join_id uuid)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pending boolean;
BEGIN
    PERFORM outbox._require('join_id', cancel_join.join_id);
    SELECT j.status = 0 INTO pending
      FROM outbox.joins j
     WHERE j.join_id = cancel_join.join_id
       FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM outbox._unknown_join(cancel_join.join_id);
    END IF;
    IF pending THEN
        UPDATE outbox.joins j
           SET status = 3, last_updated_at = clock_timestamp()
         WHERE j.join_id = cancel_join.join_id;
        PERFORM outbox._wake_waits(cancel_join.join_id);
        PERFORM outbox._log(format('outbox join: %s is cancelled', cancel_join.join_id));
    END IF;
    RETURN pending;
END
$$;

COMMENT ON FUNCTION outbox.cancel_join(uuid) IS 'Cancels a pending join.';
