-- work.sql: taking messages and settling them. Serves sql_work.c.

CREATE TYPE outbox.message AS (
    id             bigint,
    message_id     uuid,
    namespace      text,
    topic          text,
    payload        text,
    headers        jsonb,
    correlation_id text,
    tenant_id      uuid,
    dedupe_key     text,
    stream_id      uuid,
    attempts       integer,
    retry_count    integer,
    created_at     timestamptz,
    due_time       timestamptz,
    locked_until   timestamptz,
    owner_token    uuid
);

COMMENT ON TYPE outbox.message IS 'A message as it is handed to a worker.';
COMMENT ON COLUMN outbox.message.id IS 'The work item: what ack and the others want.';
COMMENT ON COLUMN outbox.message.message_id IS
    'The logical message, constant across retries and replays.';
COMMENT ON COLUMN outbox.message.namespace IS 'Keeps applications apart that share the database.';
COMMENT ON COLUMN outbox.message.topic IS 'What the message is about.';
COMMENT ON COLUMN outbox.message.payload IS 'The message itself.';
COMMENT ON COLUMN outbox.message.headers IS 'Whatever travels with the payload.';
COMMENT ON COLUMN outbox.message.correlation_id IS 'Ties messages together, for their users.';
COMMENT ON COLUMN outbox.message.tenant_id IS 'Whose message it is.';
COMMENT ON COLUMN outbox.message.dedupe_key IS 'No two messages of a topic have the same.';
COMMENT ON COLUMN outbox.message.stream_id IS
    'Messages of a stream are delivered one after the other.';
COMMENT ON COLUMN outbox.message.attempts IS 'How often it was handed out, this time included.';
COMMENT ON COLUMN outbox.message.retry_count IS 'How often it was handed back as not done.';
COMMENT ON COLUMN outbox.message.created_at IS 'When it was enqueued.';
COMMENT ON COLUMN outbox.message.due_time IS 'As given to enqueue.';
COMMENT ON COLUMN outbox.message.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.message.owner_token IS 'Who has the lease.';

-- claim(owner_token, ...)
--     Takes up to batch_size due messages and leases them to the owner. Without
--     an owner_token the call makes one, which the messages carry. Never waits
--     for another claimer. With wait_ms it waits for messages to come. Topics
--     are all but that of join waits when they are not named.
CREATE FUNCTION outbox.claim(
    owner_token   uuid    DEFAULT NULL,
    lease_seconds integer DEFAULT NULL,
    batch_size    integer DEFAULT NULL,
    namespace     text    DEFAULT NULL,
    topics        text[]  DEFAULT NULL,
    tenant_id     uuid    DEFAULT NULL,
    max_attempts  integer DEFAULT NULL,
    wait_ms       integer DEFAULT 0
)
RETURNS SETOF outbox.message
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 50
AS 'MODULE_PATHNAME', 'outbox_claim_messages';

COMMENT ON FUNCTION outbox.claim(uuid, integer, integer, text, text[], uuid, integer, integer) IS
    'Takes due messages and leases them to the owner, by default a new one.';

-- ack(owner_token, ids, ...)
--     Finishes messages. Only leases of the owner are touched, with attempts
--     only if they match; the result says how many. strict makes anything
--     else an error. ids may be null, like those that an aggregate over no
--     message yields: then there is nothing to do.
CREATE FUNCTION outbox.ack(
    owner_token uuid,
    ids         bigint[],
    attempts    integer[] DEFAULT NULL,
    strict      boolean   DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_ack';

COMMENT ON FUNCTION outbox.ack(uuid, bigint[], integer[], boolean) IS
    'Finishes messages; returns how many were the owner''s.';

-- nack(owner_token, ids, ...)
--     Hands messages back, to be tried again after the backoff, or after the
--     delay when one is given; those that have had their attempts fail.
CREATE FUNCTION outbox.nack(
    owner_token  uuid,
    ids          bigint[],
    error        text      DEFAULT NULL,
    delay        interval  DEFAULT NULL,
    attempts     integer[] DEFAULT NULL,
    strict       boolean   DEFAULT false,
    max_attempts integer   DEFAULT NULL
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_nack';

COMMENT ON FUNCTION outbox.nack(uuid, bigint[], text, interval, integer[], boolean, integer) IS
    'Hands messages back to be tried again, after the backoff or the delay.';

-- abandon(owner_token, ids, ...)
--     nack by its other name.
CREATE FUNCTION outbox.abandon(
    owner_token  uuid,
    ids          bigint[],
    error        text      DEFAULT NULL,
    delay        interval  DEFAULT NULL,
    attempts     integer[] DEFAULT NULL,
    strict       boolean   DEFAULT false,
    max_attempts integer   DEFAULT NULL
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_nack';

COMMENT ON FUNCTION outbox.abandon(uuid, bigint[], text, interval, integer[], boolean, integer) IS
    'The same as nack.';

-- fail(owner_token, ids, ...)
--     Fails messages for good. They stay in outbox.dead_letters, and can be
--     brought back with requeue.
CREATE FUNCTION outbox.fail(
    owner_token uuid,
    ids         bigint[],
    error       text      DEFAULT NULL,
    reason      integer   DEFAULT NULL,
    attempts    integer[] DEFAULT NULL,
    strict      boolean   DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_fail';

COMMENT ON FUNCTION outbox.fail(uuid, bigint[], text, integer, integer[], boolean) IS
    'Fails messages for good.';

-- renew(owner_token, ids, ...)
--     Lets leases last lease_seconds from now.
CREATE FUNCTION outbox.renew(
    owner_token   uuid,
    ids           bigint[],
    lease_seconds integer   DEFAULT NULL,
    attempts      integer[] DEFAULT NULL,
    strict        boolean   DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_renew';

COMMENT ON FUNCTION outbox.renew(uuid, bigint[], integer, integer[], boolean) IS
    'Lets leases last longer, counted from now.';

-- release(owner_token)
--     Gives back all leases of the owner; the attempts do not count. For
--     workers that stop.
CREATE FUNCTION outbox.release(owner_token uuid)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_release_all_messages';

COMMENT ON FUNCTION outbox.release(uuid) IS
    'Gives all leases of the owner back without counting the attempt.';

-- release(owner_token, ids, strict)
--     Gives leases back; the attempts do not count.
CREATE FUNCTION outbox.release(
    owner_token uuid,
    ids         bigint[],
    strict      boolean DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_release';

COMMENT ON FUNCTION outbox.release(uuid, bigint[], boolean) IS
    'Gives leases back without counting the attempt.';

-- reap(batch_limit)
--     Returns messages whose leases have ended to ready, or fails them if they
--     have had their attempts; fails messages that have expired.
CREATE FUNCTION outbox.reap(batch_limit integer DEFAULT NULL)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_reap_messages';

COMMENT ON FUNCTION outbox.reap(integer) IS
    'Returns messages whose leases have ended to ready, and fails expired ones.';

-- reap_expired(batch_limit)
--     Returns messages whose leases have ended to ready, or fails them if they
--     have had their attempts; fails messages that have expired.
CREATE FUNCTION outbox.reap_expired(batch_limit integer DEFAULT NULL)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_reap_messages';

COMMENT ON FUNCTION outbox.reap_expired(integer) IS
    'The same as reap.';

-- requeue(ids)
--     Puts dead messages back into the queue; their attempts are counted from 0.
CREATE FUNCTION outbox.requeue(ids bigint[])
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_requeue_messages';

COMMENT ON FUNCTION outbox.requeue(bigint[]) IS
    'Puts dead messages back into the queue.';

-- redrive(topic, namespace, batch_limit)
--     Puts the dead messages of a topic, a namespace, or all, back into the
--     queue, the oldest first, at most batch_limit (10000) of them.
CREATE FUNCTION outbox.redrive(
    topic       text    DEFAULT NULL,
    namespace   text    DEFAULT NULL,
    batch_limit integer DEFAULT NULL
)
RETURNS integer
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF redrive.topic IS NOT NULL THEN
        PERFORM outbox._check_name('topic', redrive.topic);
    END IF;
    IF redrive.namespace IS NOT NULL THEN
        PERFORM outbox._check_name('namespace', redrive.namespace);
    END IF;
    PERFORM outbox._check_limit('batch_limit', redrive.batch_limit);
    RETURN outbox.requeue(ARRAY(
        SELECT d.id
          FROM outbox.dead d
         WHERE (redrive.namespace IS NULL OR d.namespace = redrive.namespace)
           AND (redrive.topic IS NULL OR d.topic = redrive.topic)
           -- nor one that a dump has brought back already
           AND NOT EXISTS (SELECT FROM outbox.queue q WHERE q.id = d.id)
           AND NOT EXISTS (SELECT FROM outbox.queue q WHERE q.message_id = d.message_id)
         ORDER BY d.id
         LIMIT coalesce(redrive.batch_limit, 10000)
    ));
END
$$;

COMMENT ON FUNCTION outbox.redrive(text, text, integer) IS
    'Puts dead messages of a topic or namespace back into the queue.';

-- The functions below do with one message what those above do with a list, and
-- have the same arguments but for id and attempt. They have names of their own
-- because an argument of unknown type, as most drivers send it, would fit both.

-- ack_one(owner_token, id, ...)
--     Finishes a message; see ack.
CREATE FUNCTION outbox.ack_one(
    owner_token uuid,
    id          bigint,
    attempt     integer DEFAULT NULL,
    strict      boolean DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_ack_one';

COMMENT ON FUNCTION outbox.ack_one(uuid, bigint, integer, boolean) IS
    'Finishes a message; returns 1, or 0 if it was not the owner''s.';

-- nack_one(owner_token, id, ...)
--     Hands a message back, to be tried again later; see nack.
CREATE FUNCTION outbox.nack_one(
    owner_token  uuid,
    id           bigint,
    error        text     DEFAULT NULL,
    delay        interval DEFAULT NULL,
    attempt      integer  DEFAULT NULL,
    strict       boolean  DEFAULT false,
    max_attempts integer  DEFAULT NULL
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_nack_one';

COMMENT ON FUNCTION outbox.nack_one(uuid, bigint, text, interval, integer, boolean, integer) IS
    'Hands a message back to be tried again, after the backoff or the delay.';

-- fail_one(owner_token, id, ...)
--     Fails a message for good; see fail.
CREATE FUNCTION outbox.fail_one(
    owner_token uuid,
    id          bigint,
    error       text    DEFAULT NULL,
    reason      integer DEFAULT NULL,
    attempt     integer DEFAULT NULL,
    strict      boolean DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_fail_one';

COMMENT ON FUNCTION outbox.fail_one(uuid, bigint, text, integer, integer, boolean) IS
    'Fails a message for good.';

-- renew_one(owner_token, id, ...)
--     Lets a lease last lease_seconds from now; see renew.
CREATE FUNCTION outbox.renew_one(
    owner_token   uuid,
    id            bigint,
    lease_seconds integer DEFAULT NULL,
    attempt       integer DEFAULT NULL,
    strict        boolean DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_renew_one';

COMMENT ON FUNCTION outbox.renew_one(uuid, bigint, integer, integer, boolean) IS
    'Lets a lease last longer, counted from now.';

-- release_one(owner_token, id, strict)
--     Gives a lease back; the attempt does not count. See release.
CREATE FUNCTION outbox.release_one(
    owner_token uuid,
    id          bigint,
    strict      boolean DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_release_one';

COMMENT ON FUNCTION outbox.release_one(uuid, bigint, boolean) IS
    'Gives a lease back without counting the attempt.';

-- requeue_one(id)
--     Puts a dead message back into the queue; see requeue.
CREATE FUNCTION outbox.requeue_one(id bigint)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_requeue_one';

COMMENT ON FUNCTION outbox.requeue_one(bigint) IS
    'Puts a dead message back into the queue.';
