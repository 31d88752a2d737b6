-- work.sql: claiming messages and settling them. Serves sql_work.c.

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
    owner_token    uuid,
    subscription   text,
    published_id   uuid,
    priority       smallint
);

COMMENT ON TYPE outbox.message IS 'A message as it is handed to a worker.';
COMMENT ON COLUMN outbox.message.id IS 'The work item; ack and similar functions take this id.';
COMMENT ON COLUMN outbox.message.message_id IS
    'The logical message, constant across retries and replays.';
COMMENT ON COLUMN outbox.message.namespace IS
    'The namespace; separates applications that share the database.';
COMMENT ON COLUMN outbox.message.topic IS 'The topic of the message.';
COMMENT ON COLUMN outbox.message.payload IS 'The payload.';
COMMENT ON COLUMN outbox.message.headers IS 'A JSON object that is delivered with the payload.';
COMMENT ON COLUMN outbox.message.correlation_id IS
    'Identifies related messages; chosen by the producer.';
COMMENT ON COLUMN outbox.message.tenant_id IS 'The tenant that the message belongs to.';
COMMENT ON COLUMN outbox.message.dedupe_key IS
    'The dedupe key; at most one message of a topic has it.';
COMMENT ON COLUMN outbox.message.stream_id IS 'The stream; its messages are delivered in order.';
COMMENT ON COLUMN outbox.message.attempts IS 'How often it was handed out, this time included.';
COMMENT ON COLUMN outbox.message.retry_count IS 'How often it was returned for a retry.';
COMMENT ON COLUMN outbox.message.created_at IS 'When it was enqueued.';
COMMENT ON COLUMN outbox.message.due_time IS 'As passed to enqueue.';
COMMENT ON COLUMN outbox.message.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox.message.owner_token IS 'The owner of the lease.';
COMMENT ON COLUMN outbox.message.subscription IS
    'The subscription, if it is a delivery; null if it was enqueued.';
COMMENT ON COLUMN outbox.message.published_id IS 'The publication, if it is a delivery.';
COMMENT ON COLUMN outbox.message.priority IS 'The priority, from -2 to 2; higher is more urgent.';

-- claim(owner_token, ...)
--     Leases up to batch_size due messages to the owner. Without an owner_token the
--     call generates one, which the messages contain. Never waits for other claims.
--     With wait_ms it waits until there are messages. If no topics are named, claims
--     from all topics except that of join waits and those that have handlers.
CREATE FUNCTION outbox.claim(
    owner_token   uuid    DEFAULT NULL,
    lease_seconds integer DEFAULT NULL,
    batch_size    integer DEFAULT NULL,
    namespace     text    DEFAULT NULL,
    topics        text[]  DEFAULT NULL,
    tenant_id     uuid    DEFAULT NULL,
    max_attempts  integer DEFAULT NULL,
    wait_ms       integer DEFAULT 0,
    subscription  text    DEFAULT NULL
)
RETURNS SETOF outbox.message
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 50
AS 'MODULE_PATHNAME', 'outbox_claim_messages';

COMMENT ON FUNCTION outbox.claim(
    uuid, integer, integer, text, text[], uuid, integer, integer, text
) IS 'Claims due messages for an owner, by default a new one.';

-- ack(owner_token, ids, ...)
--     Finishes messages. Only leases of the owner are settled, and, if attempts are
--     given, only those that match; returns how many. With strict, it is an error if
--     one is not settled. ids may be null, which is the result of an aggregate over
--     no messages: then there is nothing to do.
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
    'Finishes messages; returns how many were leased to the owner.';

-- nack(owner_token, ids, ...)
--     Returns messages for a retry after the backoff, or after the delay if one is
--     given; those that are out of attempts fail.
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
    'Returns messages for a retry, after the backoff or the given delay.';

-- abandon(owner_token, ids, ...)
--     Another name of nack.
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
--     Fails messages permanently. They are shown by outbox.dead_letters, and can be
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
    'Fails messages permanently.';

-- renew(owner_token, ids, ...)
--     Makes leases last lease_seconds from now.
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
    'Renews leases, counted from now.';

-- release(owner_token)
--     Releases all leases of the owner; the attempts do not count. For workers that
--     stop.
CREATE FUNCTION outbox.release(owner_token uuid)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_release_all_messages';

COMMENT ON FUNCTION outbox.release(uuid) IS
    'Releases all leases of an owner; the attempts do not count.';

-- release(owner_token, ids, strict)
--     Releases leases; the attempts do not count.
CREATE FUNCTION outbox.release(
    owner_token uuid,
    ids         bigint[],
    strict      boolean DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_release';

COMMENT ON FUNCTION outbox.release(uuid, bigint[], boolean) IS
    'Releases leases; the attempts do not count.';

-- reap(batch_limit)
--     Makes messages whose leases have ended ready again, or fails them if they
--     are out of attempts; fails messages that have expired.
CREATE FUNCTION outbox.reap(batch_limit integer DEFAULT NULL)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_reap_messages';

COMMENT ON FUNCTION outbox.reap(integer) IS
    'Makes messages whose leases have ended ready again, and fails expired ones.';

-- reap_expired(batch_limit)
--     Makes messages whose leases have ended ready again, or fails them if they
--     are out of attempts; fails messages that have expired.
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

-- redrive(topic, namespace, batch_limit, subscription)
--     Puts the dead messages of a topic, a namespace, a subscription, or all, back
--     into the queue, the oldest first, at most batch_limit (10000) of them. Those of
--     a subscription that has ended stay in dead.
CREATE FUNCTION outbox.redrive(
    topic        text    DEFAULT NULL,
    namespace    text    DEFAULT NULL,
    batch_limit  integer DEFAULT NULL,
    subscription text    DEFAULT NULL
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
    IF redrive.subscription IS NOT NULL THEN
        PERFORM outbox._check_name('subscription', redrive.subscription);
        IF NOT EXISTS (SELECT FROM outbox.subscribers s
                        WHERE s.subscription = redrive.subscription
                          AND s.namespace = coalesce(redrive.namespace, s.namespace)
                          AND s.state < 2)
        THEN
            RAISE EXCEPTION 'subscription "%" does not exist', redrive.subscription
                USING ERRCODE = 'undefined_object';
        END IF;
    END IF;
    PERFORM outbox._check_limit('batch_limit', redrive.batch_limit);
    RETURN outbox.requeue(ARRAY(
        SELECT d.id
          FROM outbox.dead d
         WHERE (redrive.namespace IS NULL OR d.namespace = redrive.namespace)
           AND (redrive.topic IS NULL OR d.topic = redrive.topic)
           AND (redrive.subscription IS NULL OR d.subscription = redrive.subscription)
           -- skip those that cannot come back, so that they do not count towards the
           -- limit
           AND (d.published_id IS NULL
                OR EXISTS (SELECT FROM outbox.subscribers s
                            WHERE s.subscription = d.subscription
                              AND s.namespace = d.namespace
                              AND s.state < 2))
           -- and those that a dump has restored to the queue
           AND NOT EXISTS (SELECT FROM outbox.queue q WHERE q.id = d.id)
           AND NOT EXISTS (SELECT FROM outbox.queue q WHERE q.message_id = d.message_id)
         ORDER BY d.id
         LIMIT coalesce(redrive.batch_limit, 10000)
    ));
END
$$;

COMMENT ON FUNCTION outbox.redrive(text, text, integer, text) IS
    'Puts dead messages of a topic, namespace or subscription back into the queue.';

-- The functions below do for one message what those above do for a list, and have the
-- same arguments except for id and attempt. Their names are different because an
-- argument of unknown type, as most drivers send it, would match both.

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
    'Finishes a message; returns 1, or 0 if it was not leased to the owner.';

-- nack_one(owner_token, id, ...)
--     Returns a message for a retry; see nack.
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
    'Returns a message for a retry, after the backoff or the given delay.';

-- fail_one(owner_token, id, ...)
--     Fails a message permanently; see fail.
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
    'Fails a message permanently.';

-- renew_one(owner_token, id, ...)
--     Makes a lease last lease_seconds from now; see renew.
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
    'Renews a lease, counted from now.';

-- release_one(owner_token, id, strict)
--     Releases a lease; the attempt does not count. See release.
CREATE FUNCTION outbox.release_one(
    owner_token uuid,
    id          bigint,
    strict      boolean DEFAULT false
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_release_one';

COMMENT ON FUNCTION outbox.release_one(uuid, bigint, boolean) IS
    'Releases a lease; the attempt does not count.';

-- requeue_one(id)
--     Puts a dead message back into the queue; see requeue.
CREATE FUNCTION outbox.requeue_one(id bigint)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_requeue_one';

COMMENT ON FUNCTION outbox.requeue_one(bigint) IS
    'Puts a dead message back into the queue.';
