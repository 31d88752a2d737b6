-- operator.sql: what an operator does with messages that wait, and with dead ones.
-- Serves sql_operator.c.
--
-- A message waits if it is ready, due or not, or if its lease has ended and no
-- claim has taken it since.

-- discard(ids)
--     Messages that wait are not delivered: they are dead, with reason 9, and
--     count as failed in their joins. Their dedupe keys are free. Other messages
--     are passed over. Returns how many there were.
CREATE FUNCTION outbox.discard(ids bigint[])
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_discard_messages';

COMMENT ON FUNCTION outbox.discard(bigint[]) IS
    'Messages that wait become dead, as cancelled; returns how many.';

-- cancel(message_id)
--     The same with one message. False if it does not wait.
CREATE FUNCTION outbox.cancel(message_id uuid)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_cancel_message';

COMMENT ON FUNCTION outbox.cancel(uuid) IS
    'Cancels a message that waits; false if it does not.';

-- cancel_by_key(topic, dedupe_key, namespace)
--     The same with the message that has this dedupe key. False if there is none,
--     or it does not wait.
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
                                         cancel_by_key.dedupe_key);
    RETURN FOUND AND outbox.cancel(holder);
END
$$;

COMMENT ON FUNCTION outbox.cancel_by_key(text, text, text) IS
    'Cancels the message with a dedupe key, if it waits.';

-- reschedule(ids, due_time)
--     Messages that wait become due at this time, instead of theirs; null is now,
--     and infinity parks them. Others are passed over. Returns how many there were.
CREATE FUNCTION outbox.reschedule(
    ids      bigint[],
    due_time timestamptz
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_reschedule_messages';

COMMENT ON FUNCTION outbox.reschedule(bigint[], timestamptz) IS
    'Messages that wait become due at another time; returns how many.';

-- _purge_messages(ids)
--     Removes messages that wait, and keeps nothing of them; those that another
--     transaction has locked stay. Returns how many.
CREATE FUNCTION outbox._purge_messages(ids bigint[])
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_purge_messages';

COMMENT ON FUNCTION outbox._purge_messages(bigint[]) IS
    'Removes messages that wait.';

-- _waiting_ids(topic, namespace, batch_limit)
--     The ids of so many messages of a topic that wait. It hops from lane to lane;
--     whose lane it is, the first message tells.
CREATE FUNCTION outbox._waiting_ids(
    topic       text,
    namespace   text,
    batch_limit integer
)
RETURNS SETOF bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE lanes(lane, namespace, topic) AS (
        (SELECT q.lane, q.namespace, q.topic FROM outbox.queue q ORDER BY q.lane LIMIT 1)
        UNION ALL
        SELECT n.*
          FROM lanes l,
               LATERAL (SELECT q.lane, q.namespace, q.topic FROM outbox.queue q
                         WHERE q.lane > l.lane ORDER BY q.lane LIMIT 1) n
    )
    SELECT q.id
      FROM lanes l,
           LATERAL (SELECT w.id
                      FROM outbox.queue w
                     WHERE w.lane = l.lane
                       AND w.namespace = _waiting_ids.namespace
                       AND w.topic = _waiting_ids.topic
                       AND (w.status = 0 OR w.locked_until <= clock_timestamp())
                     ORDER BY w.next_attempt_at, w.id
                     LIMIT _waiting_ids.batch_limit) q
     WHERE l.namespace = _waiting_ids.namespace
       AND l.topic = _waiting_ids.topic
     LIMIT _waiting_ids.batch_limit
$$;

COMMENT ON FUNCTION outbox._waiting_ids(text, text, integer) IS
    'Messages of a topic that wait.';

-- _purge_dead(topic, namespace, batch_limit)
--     Removes so many dead messages of a topic, the oldest first, and their dedupe
--     keys; what another transaction has locked stays. Returns how many.
CREATE FUNCTION outbox._purge_dead(
    topic       text,
    namespace   text,
    batch_limit integer
)
RETURNS bigint
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH doomed AS MATERIALIZED (
        SELECT d.id, d.message_id, d.dedupe_key
          FROM outbox.dead d
         WHERE d.namespace = _purge_dead.namespace AND d.topic = _purge_dead.topic
         ORDER BY d.id
         LIMIT _purge_dead.batch_limit
           FOR UPDATE SKIP LOCKED
    ), keys AS MATERIALIZED (
        SELECT k.key
          FROM outbox.dedupe k
          JOIN doomed d
            ON k.key = outbox._dedupe_digest(_purge_dead.namespace, _purge_dead.topic, d.dedupe_key)
           AND k.message_id = d.message_id
         WHERE NOT EXISTS (SELECT FROM outbox.queue q WHERE q.message_id = d.message_id)
           FOR UPDATE OF k SKIP LOCKED
    ), freed AS (
        DELETE FROM outbox.dedupe k USING keys WHERE k.key = keys.key
    ), gone AS (
        DELETE FROM outbox.dead d USING doomed WHERE d.id = doomed.id RETURNING d.id
    )
    SELECT count(*) FROM gone
$$;

COMMENT ON FUNCTION outbox._purge_dead(text, text, integer) IS
    'Removes dead messages of a topic.';

-- purge_topic(topic, namespace, what, batch_limit)
--     Removes messages of a topic for good: those that wait ('ready'), dead ones
--     ('dead'), or both ('all'), at most batch_limit (10000) in a call. Joins count
--     those that waited as failed. What is leased, or locked by another transaction,
--     stays. Returns how many were removed; repeat it until that is 0.
CREATE FUNCTION outbox.purge_topic(
    topic       text,
    namespace   text    DEFAULT 'default',
    what        text    DEFAULT 'ready',
    batch_limit integer DEFAULT NULL
)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    rows_max integer := coalesce(purge_topic.batch_limit, 10000);
    removed  bigint := 0;
BEGIN
    PERFORM outbox._writes('outbox.purge_topic()'),
            outbox._check_name('topic', purge_topic.topic),
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
            SELECT outbox._waiting_ids(purge_topic.topic, purge_topic.namespace, rows_max)));
    END IF;
    IF purge_topic.what <> 'ready' AND removed < rows_max THEN
        removed := removed + outbox._purge_dead(purge_topic.topic, purge_topic.namespace,
                                                rows_max - removed::integer);
    END IF;
    RETURN removed;
END
$$;

COMMENT ON FUNCTION outbox.purge_topic(text, text, text, integer) IS
    'Removes messages of a topic that wait, or are dead; returns how many.';
