-- operator.sql: what operators can do with waiting and dead messages.
-- Serves sql_operator.c.
--
-- A message is waiting if it is ready, due or not, or if its lease has ended and no
-- claim has taken it since.

-- discard(ids)
--     Moves waiting messages to dead, with reason 9; they count as failed in their
--     joins, and their dedupe keys are freed. Other messages are skipped. Returns how
--     many were moved.
CREATE FUNCTION outbox.discard(ids bigint[])
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_discard_messages';

COMMENT ON FUNCTION outbox.discard(bigint[]) IS
    'Moves waiting messages to dead, as cancelled; returns how many.';

-- cancel(message_id)
--     The same with one message. False if it is not waiting.
CREATE FUNCTION outbox.cancel(message_id uuid)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_cancel_message';

COMMENT ON FUNCTION outbox.cancel(uuid) IS 'Cancels a waiting message; false if it is not waiting.';

-- cancel_by_key(topic, dedupe_key, namespace)
--     The same with the message that has this dedupe key. False if there is none, or
--     it is not waiting; or if the key was taken for a limited time, which is over.
CREATE FUNCTION outbox.cancel_by_key(
    topic      text,
    dedupe_key text,
    namespace  text DEFAULT 'default'
)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    holder uuid;
BEGIN
    PERFORM outbox._writes('outbox.cancel_by_key()'),
            outbox._check_name('topic', cancel_by_key.topic),
            outbox._check_name('dedupe_key', cancel_by_key.dedupe_key),
            outbox._check_name('namespace', cancel_by_key.namespace);
    SELECT d.message_id
      INTO holder
      FROM outbox.dedupe d
     WHERE d.key = outbox._dedupe_digest(cancel_by_key.namespace, cancel_by_key.topic,
                                         cancel_by_key.dedupe_key)
       AND (d.taken_until IS NULL OR d.taken_until > clock_timestamp());
    RETURN FOUND AND outbox.cancel(holder);
END
$$;

COMMENT ON FUNCTION outbox.cancel_by_key(text, text, text) IS
    'Cancels the message that has a dedupe key, if it is waiting.';

-- reschedule(ids, due_time)
--     Changes the due time of waiting messages; null means now, and infinity parks
--     them. Other messages are skipped. Returns how many were changed.
CREATE FUNCTION outbox.reschedule(
    ids      bigint[],
    due_time timestamptz
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_reschedule_messages';

COMMENT ON FUNCTION outbox.reschedule(bigint[], timestamptz) IS
    'Changes the due time of waiting messages; returns how many.';

-- _purge_messages(ids)
--     Deletes waiting messages, without history; those that another transaction has
--     locked are skipped. Returns how many.
CREATE FUNCTION outbox._purge_messages(ids bigint[])
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_purge_messages';

COMMENT ON FUNCTION outbox._purge_messages(bigint[]) IS
    'Deletes waiting messages, without history.';

-- _waiting_ids(topic, namespace, batch_limit, subscriber)
--     Returns the ids of up to batch_limit waiting messages of a topic: enqueued
--     ones, or the deliveries of a subscriber; of all topics if none is given. It
--     skips from lane to lane; the first message of a lane tells what the lane is
--     for.
CREATE FUNCTION outbox._waiting_ids(
    topic       text,
    namespace   text,
    batch_limit integer,
    subscriber  integer
)
RETURNS SETOF bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE lanes(lane, namespace, topic, subscriber) AS (
        (SELECT q.lane, q.namespace, q.topic, q.subscriber
           FROM outbox.queue q ORDER BY q.lane LIMIT 1)
        UNION ALL
        SELECT n.*
          FROM lanes l,
               LATERAL (SELECT q.lane, q.namespace, q.topic, q.subscriber FROM outbox.queue q
                         WHERE q.lane > l.lane ORDER BY q.lane LIMIT 1) n
    )
    SELECT q.id
      FROM lanes l,
           LATERAL (SELECT w.id
                      FROM outbox.queue w
                     WHERE w.lane = l.lane
                       AND w.namespace = _waiting_ids.namespace
                       AND w.topic = coalesce(_waiting_ids.topic, w.topic)
                       AND w.subscriber IS NOT DISTINCT FROM _waiting_ids.subscriber
                       AND (w.status = 0 OR w.locked_until <= clock_timestamp())
                     ORDER BY w.next_attempt_at, w.id
                     LIMIT _waiting_ids.batch_limit) q
     WHERE l.namespace = _waiting_ids.namespace
       AND l.topic = coalesce(_waiting_ids.topic, l.topic)
       AND l.subscriber IS NOT DISTINCT FROM _waiting_ids.subscriber
     LIMIT _waiting_ids.batch_limit
$$;

COMMENT ON FUNCTION outbox._waiting_ids(text, text, integer, integer) IS
    'The ids of waiting messages of a topic.';

-- _purge_dead(topic, namespace, batch_limit, subscription)
--     Deletes up to batch_limit dead messages of a topic, or deliveries of a
--     subscription, of all topics if none is given, the oldest first, and their
--     dedupe keys; rows that another transaction has locked are skipped. Returns how
--     many.
CREATE FUNCTION outbox._purge_dead(
    topic        text,
    namespace    text,
    batch_limit  integer,
    subscription text
)
RETURNS bigint
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH doomed AS MATERIALIZED (
        SELECT d.id, d.message_id, d.dedupe_key
          FROM outbox.dead d
         WHERE d.namespace = _purge_dead.namespace
           AND d.topic = coalesce(_purge_dead.topic, d.topic)
           AND d.subscription IS NOT DISTINCT FROM _purge_dead.subscription
         ORDER BY d.id
         LIMIT _purge_dead.batch_limit
           FOR UPDATE SKIP LOCKED
    ), keys AS MATERIALIZED (
        SELECT k.key
          FROM outbox.dedupe k
          JOIN doomed d
            ON k.key = outbox._dedupe_digest(_purge_dead.namespace, _purge_dead.topic, d.dedupe_key)
           AND k.message_id = d.message_id
           AND _purge_dead.subscription IS NULL
         WHERE NOT EXISTS (SELECT FROM outbox.queue q WHERE q.message_id = d.message_id)
           FOR UPDATE OF k SKIP LOCKED
    ), freed AS (
        DELETE FROM outbox.dedupe k USING keys WHERE k.key = keys.key
    ), gone AS (
        DELETE FROM outbox.dead d USING doomed WHERE d.id = doomed.id RETURNING d.id
    )
    SELECT count(*) FROM gone
$$;

COMMENT ON FUNCTION outbox._purge_dead(text, text, integer, text) IS
    'Deletes dead messages of a topic.';

-- purge_topic(topic, namespace, what, batch_limit, subscription)
--     Deletes messages of a topic: waiting ones ('ready'), dead ones ('dead'), or
--     both ('all'), at most batch_limit (10000) in a call. Joins count the waiting
--     ones as failed. Messages that are leased, or locked by another transaction, are
--     skipped. Returns how many were deleted; to delete all, repeat the call until
--     that is 0. Deliveries are skipped unless a subscription is given: then only its
--     deliveries are deleted, of all topics if the topic is null.
CREATE FUNCTION outbox.purge_topic(
    topic        text,
    namespace    text    DEFAULT 'default',
    what         text    DEFAULT 'ready',
    batch_limit  integer DEFAULT NULL,
    subscription text    DEFAULT NULL
)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    rows_max   integer := coalesce(purge_topic.batch_limit, 10000);
    removed    bigint := 0;
    subscriber integer;
BEGIN
    IF purge_topic.topic IS NOT NULL OR purge_topic.subscription IS NULL THEN
        PERFORM outbox._check_name('topic', purge_topic.topic);
    END IF;
    IF purge_topic.subscription IS NOT NULL THEN
        subscriber := outbox._subscriber(purge_topic.subscription, purge_topic.namespace);
    END IF;
    PERFORM outbox._writes('outbox.purge_topic()'),
            outbox._check_name('namespace', purge_topic.namespace),
            outbox._require('what', purge_topic.what),
            outbox._check_limit('batch_limit', purge_topic.batch_limit);
    IF purge_topic.what NOT IN ('ready', 'dead', 'all') THEN
        RAISE EXCEPTION 'what must be ready, dead or all'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    rows_max := least(rows_max, 1000000);
    IF purge_topic.what <> 'dead' THEN
        removed := outbox._purge_messages(ARRAY(
            SELECT outbox._waiting_ids(purge_topic.topic, purge_topic.namespace, rows_max,
                                       subscriber)));
    END IF;
    IF purge_topic.what <> 'ready' AND removed < rows_max THEN
        removed := removed + outbox._purge_dead(purge_topic.topic, purge_topic.namespace,
                                                rows_max - removed::integer,
                                                purge_topic.subscription);
    END IF;
    RETURN removed;
END
$$;

COMMENT ON FUNCTION outbox.purge_topic(text, text, text, integer, text) IS
    'Deletes waiting or dead messages of a topic or subscription; returns how many.';
