-- publish.sql: subscriptions and publications. Serves sql_publish.c.

-- Deliveries of earlier publications, at the start of a subscription, or by a replay.
CREATE TABLE outbox.replays (
    id         bigint      NOT NULL,
    subscriber integer     NOT NULL,
    starts     boolean     NOT NULL,
    from_time  timestamptz NOT NULL,
    until_time timestamptz,
    topics     text[],
    horizon    xid8,
    seen       pg_snapshot,
    seeing     pg_snapshot,
    place      bigint      NOT NULL DEFAULT 0,
    delivered  bigint      NOT NULL DEFAULT 0,
    database   text        NOT NULL,
    restored   boolean     NOT NULL DEFAULT false,
    blocked_at timestamptz,
    CONSTRAINT replays_pkey PRIMARY KEY (id)
);

COMMENT ON TABLE outbox.replays IS
    'Subscriptions to which earlier publications are being delivered, with their progress.';
COMMENT ON COLUMN outbox.replays.id IS 'The replay.';
COMMENT ON COLUMN outbox.replays.subscriber IS 'The subscriber that gets it.';
COMMENT ON COLUMN outbox.replays.starts IS
    'Whether it is the start of a subscription, which gets each publication once.';
COMMENT ON COLUMN outbox.replays.from_time IS 'Publications from this time on.';
COMMENT ON COLUMN outbox.replays.until_time IS 'Publications before this time.';
COMMENT ON COLUMN outbox.replays.topics IS 'Only topics that match these patterns.';
COMMENT ON COLUMN outbox.replays.horizon IS
    'Transactions before this one may have published without seeing the subscription.';
COMMENT ON COLUMN outbox.replays.seen IS 'The snapshot whose publications have been delivered.';
COMMENT ON COLUMN outbox.replays.seeing IS 'The snapshot whose publications are being delivered.';
COMMENT ON COLUMN outbox.replays.place IS 'The last publication that was examined.';
COMMENT ON COLUMN outbox.replays.delivered IS 'How many publications were delivered.';
COMMENT ON COLUMN outbox.replays.database IS
    'The cluster and database to which the transaction ids belong.';
COMMENT ON COLUMN outbox.replays.restored IS
    'Whether it was restored from a dump, so that deliveries that exist already are looked up.';
COMMENT ON COLUMN outbox.replays.blocked_at IS
    'When a transaction in progress was last in its way.';

-- _check_patterns(topics)
--     Raises 22004 or 22023 if these are not valid patterns of topics.
CREATE FUNCTION outbox._check_patterns(topics text[])
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pattern text;
BEGIN
    IF cardinality(topics) = 0 OR array_ndims(topics) <> 1 THEN
        RAISE EXCEPTION 'topics must be an array that is not empty'
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF topics IS NULL OR array_position(topics, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'topics must not be null or contain nulls'
            USING ERRCODE = 'null_value_not_allowed';
    ELSIF cardinality(topics) > 1000 THEN
        RAISE EXCEPTION 'topics must not have more than 1000 elements'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOREACH pattern IN ARRAY topics LOOP
        PERFORM outbox._check_name('topics', pattern);
        IF NOT outbox._is_topic_pattern(pattern) THEN
            RAISE EXCEPTION 'pattern "%" is not valid', pattern
                USING ERRCODE = 'invalid_parameter_value',
                      HINT = '* and # must be segments of their own: * matches one segment, '
                             '# any number of segments.';
        END IF;
    END LOOP;
END
$$;

COMMENT ON FUNCTION outbox._check_patterns(text[]) IS
    'Raises an error if these are not valid patterns of topics.';

-- _is_topic_pattern(pattern)
--     Returns whether this is a valid pattern of topics.
CREATE FUNCTION outbox._is_topic_pattern(pattern text)
RETURNS boolean
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_is_topic_pattern';

COMMENT ON FUNCTION outbox._is_topic_pattern(text) IS 'Whether this is a valid pattern of topics.';

-- _topic_matches(topic, patterns)
--     Returns whether a topic matches one of these patterns.
CREATE FUNCTION outbox._topic_matches(
    topic    text,
    patterns text[]
)
RETURNS boolean
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_topic_matches';

COMMENT ON FUNCTION outbox._topic_matches(text, text[]) IS
    'Whether a topic matches one of these patterns.';

-- _database()
--     Returns a string that identifies this database; it differs from that of the
--     database from which it was restored.
CREATE FUNCTION outbox._database()
RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('%s/%s', c.system_identifier, d.oid)
      FROM pg_control_system() c, pg_database d
     WHERE d.datname = current_database()
$$;

COMMENT ON FUNCTION outbox._database() IS 'A string that identifies this database.';

-- _is_delivered(published_id, subscriber)
--     Returns whether this publication was delivered to a subscription, as far as
--     messages are kept.
CREATE FUNCTION outbox._is_delivered(
    published_id uuid,
    subscriber   integer
)
RETURNS boolean
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_is_delivered';

COMMENT ON FUNCTION outbox._is_delivered(uuid, integer) IS
    'Whether a publication was delivered to a subscription.';

-- _delivery_id(published_id, subscriber)
--     Returns the message_id of the delivery of a publication to a subscription;
--     deliveries by replay have other ids.
CREATE FUNCTION outbox._delivery_id(
    published_id uuid,
    subscriber   integer
)
RETURNS uuid
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_delivery_id_of';

COMMENT ON FUNCTION outbox._delivery_id(uuid, integer) IS
    'The message_id of the delivery of a publication.';

-- _is_published(id, published_at)
--     Returns whether a publication with this id is kept. The lookup is fast if the
--     time when it was published is given.
CREATE FUNCTION outbox._is_published(
    id           uuid,
    published_at timestamptz
)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_is_published';

COMMENT ON FUNCTION outbox._is_published(uuid, timestamptz) IS 'Whether a publication is kept.';

-- _refuse_published(id)
--     Raises 22023 if this is known to be the id of a publication, because a join
--     cannot count the end of a publication. It is known while the publication is
--     kept, or a delivery of it is in the queue.
CREATE FUNCTION outbox._refuse_published(id uuid)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM outbox.queue q WHERE q.message_id = _refuse_published.id)
       AND (outbox._is_published(_refuse_published.id, NULL)
            OR EXISTS (SELECT FROM outbox.subscribers s
                        CROSS JOIN LATERAL (
                            SELECT FROM outbox.queue q
                             WHERE q.message_id = outbox._delivery_id(_refuse_published.id, s.id)
                             LIMIT 1) q))
    THEN
        RAISE EXCEPTION 'a publication cannot be a step of a join'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Each subscription gets its own message. Use outbox.enqueue_step for '
                         'messages that a join must wait for.';
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._refuse_published(uuid) IS
    'Raises an error if this is the id of a publication.';

-- _keeps_publications()
--     Returns whether publications of any topic are kept.
CREATE FUNCTION outbox._keeps_publications()
RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT current_setting('outbox.publish_retention')::interval <> '0'
           OR EXISTS (SELECT FROM outbox.topics t WHERE t.publish_retention <> '0')
$$;

COMMENT ON FUNCTION outbox._keeps_publications() IS
    'Whether publications are kept for future subscriptions.';

-- _check_replay(from_time)
--     Raises an error if nothing can be replayed: 55000 if no publications are kept.
CREATE FUNCTION outbox._check_replay(from_time timestamptz)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF from_time = 'infinity' THEN
        RAISE EXCEPTION 'the time to start at must not be infinity'
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF NOT outbox._keeps_publications() THEN
        RAISE EXCEPTION 'no publications are kept'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Set outbox.publish_retention, or the topic''s publish_retention; '
                         'it holds for what is published from then on.';
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._check_replay(timestamptz) IS
    'Raises an error if nothing can be replayed.';

-- subscribe(subscription, topics, namespace, filter, start_at)
--     Creates a subscription, which gets its own message for each publication in
--     topics that match one of the patterns, with headers that contain the filter.
--     With start_at it also gets what was published since then, as far as that is
--     kept. If the subscription exists, its topics and its filter are replaced.
CREATE FUNCTION outbox.subscribe(
    subscription text,
    topics       text[],
    namespace    text        DEFAULT 'default',
    filter       jsonb       DEFAULT NULL,
    start_at     timestamptz DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    subscriber integer;
    is_new     boolean;
BEGIN
    PERFORM outbox._writes('outbox.subscribe()');
    PERFORM outbox._check_name('subscription', subscribe.subscription),
            outbox._check_name('namespace', subscribe.namespace),
            outbox._check_patterns(subscribe.topics);
    IF jsonb_typeof(subscribe.filter) <> 'object' THEN
        RAISE EXCEPTION 'filter must be a JSON object'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;

    INSERT INTO outbox.subscribers AS s
        (id, namespace, subscription, topics, filter, created_at, state)
    VALUES
        (nextval('outbox.subscriber_id_seq'), subscribe.namespace, subscribe.subscription,
         subscribe.topics, subscribe.filter, clock_timestamp(),
         CASE WHEN subscribe.start_at IS NULL THEN 0 ELSE 1 END)
    ON CONFLICT (namespace, subscription) WHERE state < 2 DO UPDATE
        SET topics = excluded.topics,
            filter = excluded.filter
    RETURNING s.id, s.xmax = 0 INTO subscriber, is_new;

    IF subscribe.start_at IS NULL THEN
        RETURN;
    ELSIF NOT is_new THEN
        RAISE NOTICE 'subscription "%" already exists; start_at is ignored',
            subscribe.subscription
            USING HINT = 'outbox.replay() delivers what was published before.';
        RETURN;
    END IF;
    PERFORM outbox._check_replay(subscribe.start_at);
    INSERT INTO outbox.replays (id, subscriber, starts, from_time, database)
    VALUES (nextval('outbox.message_id_seq'), subscriber, true, subscribe.start_at,
            outbox._database());
    PERFORM outbox._wake_worker();
END
$$;

COMMENT ON FUNCTION outbox.subscribe(text, text[], text, jsonb, timestamptz) IS
    'Creates or changes a subscription, which gets its own message for each matching '
    'publication.';

-- _subscriber(subscription, namespace)
--     Returns the number of a subscription; raises 42704 if there is none.
CREATE FUNCTION outbox._subscriber(
    subscription text,
    namespace    text
)
RETURNS integer
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    subscriber integer;
BEGIN
    PERFORM outbox._check_name('subscription', _subscriber.subscription),
            outbox._check_name('namespace', _subscriber.namespace);
    SELECT s.id INTO subscriber
      FROM outbox.subscribers s
     WHERE s.namespace = _subscriber.namespace
       AND s.subscription = _subscriber.subscription
       AND s.state < 2;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'subscription "%" does not exist in namespace "%"',
            _subscriber.subscription, _subscriber.namespace
            USING ERRCODE = 'undefined_object';
    END IF;
    RETURN subscriber;
END
$$;

COMMENT ON FUNCTION outbox._subscriber(text, text) IS 'The number of a subscription.';

-- _discard_deliveries(ids, drops)
--     Ends messages of a subscription that has ended: they are moved to dead, or
--     deleted. Returns how many.
CREATE FUNCTION outbox._discard_deliveries(
    ids   bigint[],
    drops boolean
)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_discard_deliveries';

COMMENT ON FUNCTION outbox._discard_deliveries(bigint[], boolean) IS
    'Ends messages of a subscription that has ended.';

-- _delivery_lanes()
--     Returns the lanes of the queue that contain deliveries, with their subscribers,
--     by skipping along the index.
CREATE FUNCTION outbox._delivery_lanes()
RETURNS TABLE (lane bigint, subscriber integer)
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE lanes(lane, subscriber) AS (
        (SELECT q.lane, q.subscriber FROM outbox.queue q ORDER BY q.lane LIMIT 1)
        UNION ALL
        SELECT next.*
          FROM lanes l,
               LATERAL (SELECT q.lane, q.subscriber FROM outbox.queue q
                         WHERE q.lane > l.lane ORDER BY q.lane LIMIT 1) next
    )
    SELECT l.lane, l.subscriber FROM lanes l WHERE l.subscriber IS NOT NULL
$$;

COMMENT ON FUNCTION outbox._delivery_lanes() IS 'The lanes of the queue that contain deliveries.';

-- _clear_subscriber(subscriber, drops, batch_limit)
--     Ends up to batch_limit messages of a subscription that has ended, except for
--     leased ones; returns how many.
CREATE FUNCTION outbox._clear_subscriber(
    subscriber  integer,
    drops       boolean,
    batch_limit integer
)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ids bigint[];
BEGIN
    SELECT array_agg(found.id) INTO ids
      FROM (SELECT w.id
              FROM outbox._delivery_lanes() l,
                   LATERAL (SELECT q.id
                              FROM outbox.queue q
                             WHERE q.lane = l.lane
                               AND q.subscriber = _clear_subscriber.subscriber
                               AND (q.status = 0 OR q.locked_until <= clock_timestamp())
                             ORDER BY q.next_attempt_at, q.id
                             LIMIT batch_limit) w
             WHERE l.subscriber = _clear_subscriber.subscriber
             LIMIT batch_limit) found;
    RETURN CASE WHEN ids IS NULL THEN 0 ELSE outbox._discard_deliveries(ids, drops) END;
END
$$;

COMMENT ON FUNCTION outbox._clear_subscriber(integer, boolean, integer) IS
    'Ends messages of a subscription that has ended.';

-- unsubscribe(subscription, namespace, drop_messages)
--     Ends a subscription: it gets no further publications. Messages that it has not
--     claimed are moved to dead, or dropped if drop_messages is set; messages that it
--     has leased can still be settled. Its policy and its handler are removed. False
--     if there is no such subscription.
CREATE FUNCTION outbox.unsubscribe(
    subscription  text,
    namespace     text    DEFAULT 'default',
    drop_messages boolean DEFAULT false
)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    gone integer;
BEGIN
    PERFORM outbox._writes('outbox.unsubscribe()');
    PERFORM outbox._check_name('subscription', unsubscribe.subscription),
            outbox._check_name('namespace', unsubscribe.namespace);
    -- lock it before the subscription, as register_handler does
    LOCK TABLE outbox.handlers IN ROW EXCLUSIVE MODE;
    UPDATE outbox.subscribers s
       SET state = 2, drops = coalesce(unsubscribe.drop_messages, false)
     WHERE s.namespace = unsubscribe.namespace
       AND s.subscription = unsubscribe.subscription
       AND s.state < 2
    RETURNING s.id INTO gone;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM outbox.replays r WHERE r.subscriber = gone;
    DELETE FROM outbox.topics t
     WHERE t.kind = 'subscription'
       AND t.namespace = unsubscribe.namespace
       AND t.topic = unsubscribe.subscription;
    DELETE FROM outbox.handlers h
     WHERE h.namespace = unsubscribe.namespace
       AND h.subscription = unsubscribe.subscription
       AND unsubscribe.subscription <> '';
    -- the rest, and what is being published now, is done in the background
    PERFORM outbox._clear_subscriber(gone, coalesce(unsubscribe.drop_messages, false), 10000),
            outbox._wake_worker();
    RETURN true;
END
$$;

COMMENT ON FUNCTION outbox.unsubscribe(text, text, boolean) IS
    'Ends a subscription; false if there is none.';

-- route(topic, headers, namespace)
--     Returns the subscriptions that match this topic and these headers.
CREATE FUNCTION outbox.route(
    topic     text,
    headers   jsonb DEFAULT NULL,
    namespace text  DEFAULT 'default'
)
RETURNS SETOF text
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 3
AS 'MODULE_PATHNAME', 'outbox_route';

COMMENT ON FUNCTION outbox.route(text, jsonb, text) IS
    'The subscriptions that a publication would be delivered to.';

-- publish(topic, payload text, ...)
--     Puts one message into the queue for each matching subscription, in the caller's
--     transaction. Returns the id of the publication, even if no subscription
--     matches. The arguments are those of enqueue.
CREATE FUNCTION outbox.publish(
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
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_publish_text';

COMMENT ON FUNCTION outbox.publish(
    text, text, text, timestamptz, text, uuid, text, uuid, jsonb, timestamptz, uuid,
    interval, text, integer
) IS 'Puts a message into the queue for each matching subscription.';

-- publish(topic, payload jsonb, ...)
--     The same; the payload is the text of the jsonb.
CREATE FUNCTION outbox.publish(
    topic          text,
    payload        jsonb,
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
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_publish_jsonb';

COMMENT ON FUNCTION outbox.publish(
    text, jsonb, text, timestamptz, text, uuid, text, uuid, jsonb, timestamptz, uuid,
    interval, text, integer
) IS 'Puts a message into the queue for each matching subscription.';

-- publish_many(topic, payloads, ...)
--     Publishes several messages that differ only in their payloads. Returns their
--     ids in the order of the payloads.
CREATE FUNCTION outbox.publish_many(
    topic     text,
    payloads  text[],
    namespace text        DEFAULT 'default',
    headers   jsonb       DEFAULT NULL,
    due_time  timestamptz DEFAULT NULL,
    stream_id uuid        DEFAULT NULL
)
RETURNS uuid[]
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_publish_many';

COMMENT ON FUNCTION outbox.publish_many(text, text[], text, jsonb, timestamptz, uuid) IS
    'Publishes several messages that differ only in their payloads.';

-- publish_batch(messages)
--     Publishes messages, given as a JSON array of objects as for enqueue_batch.
--     deliveries is the number of subscriptions that get it, or 0 if another
--     publication has its dedupe key.
CREATE FUNCTION outbox.publish_batch(messages jsonb)
RETURNS TABLE (ordinal integer, message_id uuid, deliveries integer)
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'outbox_publish_batch';

COMMENT ON FUNCTION outbox.publish_batch(jsonb) IS
    'Publishes several messages, given as a JSON array of objects.';

-- configure_subscription(subscription, namespace, ...)
--     Changes the policy of a subscription, as configure_topic does for a topic.
CREATE FUNCTION outbox.configure_subscription(
    subscription   text,
    namespace      text     DEFAULT 'default',
    max_attempts   integer  DEFAULT NULL,
    backoff_base   interval DEFAULT NULL,
    backoff_max    interval DEFAULT NULL,
    retention      interval DEFAULT NULL,
    dead_retention interval DEFAULT NULL,
    backoff_jitter boolean  DEFAULT NULL
)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT outbox._writes('outbox.configure_subscription()');
    SELECT outbox._subscriber(subscription, namespace);
    SELECT outbox.configure_topic(
        subscription, namespace, max_attempts => max_attempts, backoff_base => backoff_base,
        backoff_max => backoff_max, retention => retention, dead_retention => dead_retention,
        backoff_jitter => backoff_jitter, kind => 'subscription');
$$;

COMMENT ON FUNCTION outbox.configure_subscription(
    text, text, integer, interval, interval, interval, interval, boolean
) IS 'Changes the policy of a subscription; null arguments leave settings unchanged.';

-- pause_subscription(subscription, namespace)
--     Stops handing out messages of the subscription; existing leases are not
--     affected.
CREATE FUNCTION outbox.pause_subscription(
    subscription text,
    namespace    text DEFAULT 'default'
)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT outbox._writes('outbox.pause_subscription()');
    SELECT outbox._subscriber(subscription, namespace);
    SELECT outbox._set_paused(subscription, namespace, 'subscription', true);
$$;

COMMENT ON FUNCTION outbox.pause_subscription(text, text) IS
    'Stops the delivery of a subscription''s messages.';

-- resume_subscription(subscription, namespace)
--     Undoes pause_subscription.
CREATE FUNCTION outbox.resume_subscription(
    subscription text,
    namespace    text DEFAULT 'default'
)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT outbox._writes('outbox.resume_subscription()');
    SELECT outbox._subscriber(subscription, namespace);
    SELECT outbox._set_paused(subscription, namespace, 'subscription', false);
$$;

COMMENT ON FUNCTION outbox.resume_subscription(text, text) IS
    'Resumes the delivery of a subscription''s messages.';

-- _committed()
--     Returns a snapshot of what has been committed. pg_current_snapshot() would
--     contain the changes of this transaction as well if a later transaction has
--     ended.
CREATE FUNCTION outbox._committed()
RETURNS pg_snapshot
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('%s:%s:%s', pg_snapshot_xmin(c.snapshot), pg_snapshot_xmax(c.snapshot),
                  (SELECT string_agg(x.xid::text, ',' ORDER BY x.xid)
                     FROM (SELECT pg_snapshot_xip(c.snapshot)
                           UNION
                           SELECT pg_current_xact_id_if_assigned()) x(xid)
                    WHERE x.xid < pg_snapshot_xmax(c.snapshot)))::pg_snapshot
      FROM pg_current_snapshot() c(snapshot)
$$;

COMMENT ON FUNCTION outbox._committed() IS 'A snapshot of what other transactions have committed.';

-- replay(subscription, from_time, until_time, topics, namespace)
--     Delivers publications of a period again, as new messages, in the background, as
--     far as they are kept and committed. Returns how many publications there are.
CREATE FUNCTION outbox.replay(
    subscription text,
    from_time    timestamptz,
    until_time   timestamptz DEFAULT NULL,
    topics       text[]      DEFAULT NULL,
    namespace    text        DEFAULT 'default'
)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    subscriber integer;
    committed  pg_snapshot;
    matching   bigint;
BEGIN
    PERFORM outbox._writes('outbox.replay()');
    subscriber := outbox._subscriber(replay.subscription, replay.namespace);
    IF replay.from_time IS NULL THEN
        RAISE EXCEPTION 'from_time must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF replay.topics IS NOT NULL THEN
        PERFORM outbox._check_patterns(replay.topics);
    END IF;
    PERFORM outbox._check_replay(replay.from_time);
    committed := outbox._committed();
    SELECT count(*) INTO matching
      FROM outbox.subscribers s
      JOIN outbox.publications p
        ON p.kept
       AND pg_visible_in_snapshot(p.xid, committed)
       AND p.namespace = s.namespace
       AND p.published_at >= replay.from_time
       AND (replay.until_time IS NULL OR p.published_at < replay.until_time)
       AND outbox._topic_matches(p.topic, s.topics)
       AND (replay.topics IS NULL OR outbox._topic_matches(p.topic, replay.topics))
       AND (s.filter IS NULL OR coalesce(p.headers, '{}') @> s.filter)
     WHERE s.id = subscriber;
    INSERT INTO outbox.replays
        (id, subscriber, starts, from_time, until_time, topics, seeing, database)
    VALUES (nextval('outbox.message_id_seq'), subscriber, false, replay.from_time,
            replay.until_time, replay.topics, committed, outbox._database());
    PERFORM outbox._wake_worker();
    RETURN matching;
END
$$;

COMMENT ON FUNCTION outbox.replay(text, timestamptz, timestamptz, text[], text) IS
    'Delivers earlier publications again; returns how many there are.';

-- _deliver(published_at, published_id, subscribers, nonce)
--     Delivers publications that have rows to each of these subscribers; returns the
--     number of deliveries. The nonce is 0, or that of the replay.
CREATE FUNCTION outbox._deliver(
    published_at timestamptz[],
    published_id uuid[],
    subscribers  integer[],
    nonce        bigint
)
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_deliver_sql';

COMMENT ON FUNCTION outbox._deliver(timestamptz[], uuid[], integer[], bigint) IS
    'Delivers publications to subscribers.';

-- _expand(place, batch_limit)
--     Delivers the next publications behind this place that have pending deliveries,
--     each to all subscriptions that can have it now. Returns the place of the last one, or
--     where the next call must continue, null at the end; and how many were delivered.
CREATE FUNCTION outbox._expand(
    INOUT place bigint,
    batch_limit integer DEFAULT 1,
    OUT expanded integer
)
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_expand_sql';

COMMENT ON FUNCTION outbox._expand(bigint, integer) IS
    'Delivers the next publications that have pending deliveries.';

-- _subscribers_horizon()
--     Returns the first transaction from which on all see the changes of
--     subscriptions that the caller sees. Null if that cannot be determined now.
CREATE FUNCTION outbox._subscribers_horizon()
RETURNS xid8
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_subscribers_horizon_sql';

COMMENT ON FUNCTION outbox._subscribers_horizon() IS
    'The first transaction from which on all see the current subscriptions.';

-- _replay_step(replay)
--     A step of this replay: up to 1000 publications are looked at, and delivered if the
--     subscription has not got them. How many were looked at, or 1 if something else
--     was to be done; 0 if there is nothing to do now. Raises 55P03 if another
--     transaction is in the way.
--
--     The beginning of a subscription is done in passes. The first one takes what is
--     visible when it begins; the next ones what has become visible since. When all
--     transactions have ended that had begun before the subscription was committed,
--     nothing more can come that did not know it.
CREATE FUNCTION outbox._replay_step(replay bigint)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    current  pg_snapshot := pg_current_snapshot();
    step     record;
    wanted   record;
    next_xid xid8;
BEGIN
    SELECT r.*, s.namespace, s.topics AS patterns, s.filter INTO step
      FROM outbox.replays r
      JOIN outbox.subscribers s ON s.id = r.subscriber
     WHERE r.id = _replay_step.replay
       FOR UPDATE OF r SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    -- taken after the rows were read
    current := pg_current_snapshot();
    IF step.database <> outbox._database() THEN
        -- a dump has all that was committed, with other transaction ids
        UPDATE outbox.replays r
           SET database = outbox._database(),
               restored = true,
               horizon = NULL,
               seen = NULL,
               seeing = CASE WHEN r.starts THEN NULL ELSE current END,
               place = CASE WHEN r.seen IS NULL THEN r.place ELSE 0 END
         WHERE r.id = step.id;
        RETURN 1;
    END IF;
    IF step.seeing IS NULL THEN
        next_xid := coalesce(step.horizon, outbox._subscribers_horizon());
        IF next_xid IS NULL THEN
            RETURN 0;
        END IF;
        UPDATE outbox.replays r
           SET horizon = next_xid,
               seeing = current,
               place = CASE WHEN r.horizon IS NULL THEN r.place ELSE 0 END
         WHERE r.id = step.id;
        RETURN 1;
    END IF;

    SELECT count(*) AS looked, max(p.seq) AS place,
           array_agg(p.published_at ORDER BY p.seq) FILTER (WHERE p.wanted) AS published_at,
           array_agg(p.published_id ORDER BY p.seq) FILTER (WHERE p.wanted) AS published_id
      INTO wanted
      FROM (SELECT q.seq, q.published_at, q.published_id,
                   q.kept
                   AND q.namespace = step.namespace
                   AND q.published_at >= step.from_time
                   AND (step.until_time IS NULL OR q.published_at < step.until_time)
                   AND pg_visible_in_snapshot(q.xid, step.seeing)
                   AND (step.seen IS NULL OR NOT pg_visible_in_snapshot(q.xid, step.seen))
                   AND NOT (step.starts AND step.subscriber = ANY (q.subscribers))
                   AND outbox._topic_matches(q.topic, step.patterns)
                   AND (step.topics IS NULL OR outbox._topic_matches(q.topic, step.topics))
                   AND (step.filter IS NULL OR coalesce(q.headers, '{}') @> step.filter)
                   AND NOT (step.restored AND step.starts
                            AND outbox._is_delivered(q.published_id, step.subscriber))
                   AS wanted
              FROM outbox.publications q
             WHERE q.seq > step.place
               AND (q.day = '-infinity'
                    OR q.day >= (step.from_time AT TIME ZONE 'UTC')::date)
               AND (step.seen IS NULL OR q.xid >= pg_snapshot_xmin(step.seen))
             ORDER BY q.seq
             LIMIT 1000) p;
    IF wanted.published_id IS NOT NULL THEN
        PERFORM outbox._deliver(wanted.published_at, wanted.published_id,
                                ARRAY[step.subscriber],
                                CASE WHEN step.starts THEN 0 ELSE step.id END);
    END IF;
    IF wanted.looked = 1000 THEN
        UPDATE outbox.replays r
           SET place = wanted.place,
               blocked_at = NULL,
               delivered = r.delivered + coalesce(cardinality(wanted.published_id), 0)
         WHERE r.id = step.id;
    ELSIF step.starts AND pg_snapshot_xmin(step.seeing) < step.horizon THEN
        UPDATE outbox.replays r
           SET seen = r.seeing,
               seeing = NULL,
               blocked_at = NULL,
               delivered = r.delivered + coalesce(cardinality(wanted.published_id), 0)
         WHERE r.id = step.id;
    ELSE
        DELETE FROM outbox.replays r WHERE r.id = step.id;
        UPDATE outbox.subscribers s
           SET state = 0
         WHERE s.id = step.subscriber AND s.state = 1 AND step.starts;
    END IF;
    RETURN greatest(wanted.looked, 1);
END
$$;

COMMENT ON FUNCTION outbox._replay_step(bigint) IS 'A step of a replay.';

-- _replay()
--     A step of a replay, the first one that can go on: of those that a transaction in
--     progress keeps from it, the one comes last that has been tried last. What
--     _replay_step returns, or 0 if none can go on.
CREATE FUNCTION outbox._replay()
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '20ms'
AS $$
DECLARE
    current pg_snapshot := pg_current_snapshot();
    replay  bigint;
    done    bigint;
BEGIN
    FOR replay IN
        SELECT r.id
          FROM outbox.replays r
         WHERE r.seeing IS NOT NULL OR r.horizon IS NULL OR r.database <> outbox._database()
            OR pg_snapshot_xmin(current) > pg_snapshot_xmin(r.seen)
         ORDER BY r.blocked_at NULLS FIRST, r.id
         LIMIT 50
    LOOP
        BEGIN
            done := outbox._replay_step(replay);
            IF done > 0 THEN
                RETURN done;
            END IF;
        EXCEPTION
            WHEN lock_not_available THEN
                UPDATE outbox.replays r
                   SET blocked_at = clock_timestamp()
                 WHERE r.id = (SELECT b.id FROM outbox.replays b
                                WHERE b.id = replay
                                  FOR UPDATE SKIP LOCKED);
        END;
    END LOOP;
    RETURN 0;
END
$$;

COMMENT ON FUNCTION outbox._replay() IS 'A step of the replay that can go on.';

-- _forget_subscribers(batch_limit)
--     Ends messages of subscriptions that have ended, and deletes subscriptions that
--     have no messages left and can get no more. Returns how many messages, or 1 if
--     something else was done.
CREATE FUNCTION outbox._forget_subscribers(batch_limit integer)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    current   pg_snapshot := pg_current_snapshot();
    left_now  integer[];
    over      integer[];
    present   integer[];
    unclaimed integer[];
    horizon   xid8;
    gone      record;
    n         bigint;
BEGIN
    -- Those that have just ended; and those with the id of a transaction that this server
    -- has not had, because it came with a dump. The horizon tells these from ids of
    -- transactions that are in progress, which may also be beyond the snapshot.
    SELECT array_agg(s.id) INTO left_now
      FROM (SELECT s.id FROM outbox.subscribers s
             WHERE s.state = 2
               AND (s.until IS NULL OR s.until > pg_snapshot_xmax(current))
               FOR UPDATE SKIP LOCKED) s;
    IF left_now IS NOT NULL THEN
        horizon := outbox._subscribers_horizon();
        UPDATE outbox.subscribers s SET until = horizon
         WHERE s.id = ANY (left_now)
           AND horizon IS NOT NULL
           AND (s.until IS NULL OR s.until > horizon);
        IF FOUND THEN
            RETURN 1;
        END IF;
    END IF;
    IF NOT EXISTS (SELECT FROM outbox.subscribers s WHERE s.state = 2) THEN
        RETURN 0;
    END IF;
    -- for whom nothing can come; before their messages are looked for, and all at once,
    -- since that goes along all lanes
    SELECT array_agg(s.id) INTO over
      FROM outbox.subscribers s
     WHERE s.state = 2
       AND s.until <= pg_snapshot_xmin(current)
       AND s.id NOT IN (SELECT unnest(e.subscribers) FROM outbox.expansions e);
    SELECT coalesce(array_agg(DISTINCT l.subscriber), '{}'),
           array_agg(DISTINCT l.subscriber) FILTER (
               WHERE EXISTS (SELECT FROM outbox.queue q
                              WHERE q.lane = l.lane
                                AND q.subscriber = l.subscriber
                                AND (q.status = 0 OR q.locked_until <= clock_timestamp())))
      INTO present, unclaimed
      FROM outbox._delivery_lanes() l
      JOIN outbox.subscribers s ON s.id = l.subscriber
     WHERE s.state = 2;
    FOR gone IN
        SELECT s.id, s.drops
          FROM outbox.subscribers s
         WHERE s.state = 2 AND s.id = ANY (unclaimed)
         ORDER BY s.id
           FOR UPDATE SKIP LOCKED
    LOOP
        n := outbox._clear_subscriber(gone.id, gone.drops, batch_limit);
        IF n > 0 THEN
            RETURN n;
        END IF;
    END LOOP;
    DELETE FROM outbox.subscribers s
     WHERE s.id IN (SELECT g.id
                      FROM outbox.subscribers g
                     WHERE g.id = ANY (over) AND g.id <> ALL (present)
                       FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n;
END
$$;

COMMENT ON FUNCTION outbox._forget_subscribers(integer) IS 'Removes subscriptions that have ended.';

-- _publish_step()
--     Does one step of the work that publish and subscribe leave to the background;
--     returns how much there was to do. Each call should be in a transaction of its
--     own.
CREATE FUNCTION outbox._publish_step()
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    place    bigint := 0;
    expanded integer;
    done     bigint := outbox._replay();
BEGIN
    IF done > 0 THEN
        RETURN done;
    END IF;
    WHILE place IS NOT NULL AND done = 0 LOOP
        SELECT e.place, e.expanded INTO place, expanded FROM outbox._expand(place, 32) e;
        done := done + expanded;
    END LOOP;
    RETURN CASE WHEN done > 0 THEN done ELSE outbox._forget_subscribers(5000) END;
END
$$;

COMMENT ON FUNCTION outbox._publish_step() IS
    'One step of the work that publish and subscribe leave to the background.';

-- _publishes_later()
--     Returns whether there is work that _publish_step could not do now.
CREATE FUNCTION outbox._publishes_later()
RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (SELECT FROM outbox.replays)
           OR EXISTS (SELECT FROM outbox.expansions)
           OR EXISTS (SELECT FROM outbox.subscribers s WHERE s.state = 2)
$$;

COMMENT ON FUNCTION outbox._publishes_later() IS
    'Whether publish and subscribe have left work that cannot be done now.';

-- _explain_publication(published_id)
--     Returns to which subscriptions a publication was delivered, and to which it
--     will be; no row if there is none. Called by explain_message.
CREATE FUNCTION outbox._explain_publication(published_id uuid)
RETURNS TABLE (gate text, passed boolean, detail text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    publication record;
    pending     record;
    receiver    record;
    delivery    record;
    is_known    boolean := false;
BEGIN
    SELECT p.published_at, p.namespace, p.topic, p.kept, p.subscribers, p.seq
      INTO publication
      FROM outbox.publications p
     WHERE p.published_id = _explain_publication.published_id
     LIMIT 1;
    SELECT array_agg(e.subscriber) AS subscribers, bool_or(e.stream_id IS NOT NULL) AS in_stream
      INTO pending
      FROM (SELECT x.stream_id, unnest(x.subscribers) AS subscriber
              FROM outbox.expansions x
             WHERE x.published_id = _explain_publication.published_id) e;
    IF publication.published_at IS NOT NULL THEN
        is_known := true;
        gate := 'published';
        passed := true;
        detail := format('at %s, in topic "%s"; for %s subscriptions%s',
                         publication.published_at, publication.topic,
                         cardinality(publication.subscribers),
                         CASE WHEN publication.kept
                              THEN ', and kept for replay and subscriptions to come' END);
        RETURN NEXT;
    END IF;
    FOR receiver IN
        SELECT r.id, s.namespace, s.subscription, s.state
          FROM (SELECT s.id FROM outbox.subscribers s
                UNION
                SELECT unnest(publication.subscribers)) r(id)
          LEFT JOIN outbox.subscribers s ON s.id = r.id
         ORDER BY s.namespace, s.subscription, r.id
    LOOP
        SELECT m.id, m.state, m.namespace, m.subscription
          INTO delivery
          FROM outbox.messages m
         WHERE m.message_id = outbox._delivery_id(_explain_publication.published_id, receiver.id)
         ORDER BY m.status
         LIMIT 1;
        IF delivery.id IS NULL
           AND receiver.id <> ALL (coalesce(publication.subscribers, '{}'))
           AND receiver.id <> ALL (coalesce(pending.subscribers, '{}'))
        THEN
            CONTINUE;
        END IF;
        IF NOT is_known THEN
            is_known := true;
            gate := 'published';
            passed := true;
            detail := 'what was published is kept by its deliveries only';
            RETURN NEXT;
        END IF;
        gate := format('subscription "%s"', coalesce(receiver.subscription, delivery.subscription,
                                                     'number ' || receiver.id));
        passed := receiver.id <> ALL (coalesce(pending.subscribers, '{}'));
        detail := CASE
            WHEN delivery.id IS NOT NULL THEN format('message %s: %s', delivery.id, delivery.state)
            WHEN passed AND receiver.state IS NULL THEN 'it has unsubscribed'
            WHEN passed THEN 'it was delivered, and the message is no longer kept, or was dropped'
            WHEN receiver.state IS NULL OR receiver.state = 2 THEN
                'still to be delivered, but it has unsubscribed'
            WHEN receiver.state = 1 AND pending.in_stream THEN
                'still to be delivered: the subscription gets what was published before first'
            WHEN EXISTS (SELECT FROM outbox.expansions e
                           JOIN outbox.expansions before
                             ON before.stream_id = e.stream_id AND before.seq < e.seq
                            AND receiver.id = ANY (before.subscribers)
                          WHERE e.published_id = _explain_publication.published_id
                            AND receiver.id = ANY (e.subscribers)) THEN
                'still to be delivered, after others of its stream'
            ELSE 'still to be delivered, in the background' END;
        RETURN NEXT;
    END LOOP;
END
$$;

COMMENT ON FUNCTION outbox._explain_publication(uuid) IS
    'To which subscriptions a publication was delivered, and to which it will be.';

-- _subscription_status()
--     The rows of status() about subscriptions and publications.
CREATE FUNCTION outbox._subscription_status()
RETURNS TABLE (component text, ok boolean, status text, detail text, hint text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found record;
BEGIN
    -- due for five minutes, without any claim
    SELECT count(*) AS n,
           string_agg(format('%s/%s', s.namespace, s.subscription), ', '
                      ORDER BY s.oldest_ready_age DESC)
               FILTER (WHERE NOT s.paused
                         AND s.oldest_ready_age >= interval '5 minutes'
                         AND NOT EXISTS (SELECT FROM outbox.handlers h
                                          WHERE h.namespace = s.namespace
                                            AND h.subscription = s.subscription)
                         AND NOT EXISTS (SELECT FROM outbox._waiting_claims() w
                                          WHERE w.subscription = s.subscription
                                            AND coalesce(w.namespace, s.namespace) = s.namespace)
                         AND NOT EXISTS (SELECT FROM outbox._topic_claims() c
                                          WHERE c.namespace = s.namespace
                                            AND c.subscription = s.subscription
                                            AND c.claimed_at > now() - interval '5 minutes'))
               AS unclaimed
      INTO found
      FROM outbox.subscriptions s;
    component := 'subscriptions';
    ok := found.unclaimed IS NULL;
    status := found.n::text;
    detail := 'no claims for ' || left(found.unclaimed, 200);
    hint := CASE WHEN NOT ok THEN
                'Claim with this subscription, register a handler for it, or end it: '
                'outbox.unsubscribe.' END;
    RETURN NEXT;

    SELECT count(DISTINCT e.published_id) AS n, count(*) >= 10000 AS is_more,
           min(e.published_at) AS since, bool_or(EXISTS (SELECT FROM outbox.subscribers s
                            WHERE s.id = ANY (e.subscribers) AND s.state = 1)) AS starting
      INTO found
      FROM (SELECT x.published_id, x.published_at, x.subscribers FROM outbox.expansions x
             ORDER BY x.seq LIMIT 10000) e;
    component := 'publications to deliver';
    ok := found.n = 0 OR found.since > now() - interval '1 minute';
    status := found.n::text || CASE WHEN found.is_more THEN ' or more' ELSE '' END;
    detail := CASE WHEN found.n > 0 THEN
                  format('the oldest was published at %s%s', date_trunc('second', found.since),
                         CASE WHEN found.starting THEN
                             '; streams wait for subscriptions that are starting' END) END;
    hint := CASE WHEN NOT ok THEN
                'They are delivered in the background. Check that a worker or maintenance runs, '
                'and that transactions which have published in their streams have ended.' END;
    RETURN NEXT;

    FOR found IN
        SELECT s.namespace, s.subscription, r.starts, r.delivered, r.horizon, r.seeing, r.seen,
               r.blocked_at,
               (SELECT p.published_at FROM outbox.publications p
                 WHERE p.seq > r.place ORDER BY p.seq LIMIT 1) AS at
          FROM outbox.replays r
          LEFT JOIN outbox.subscribers s ON s.id = r.subscriber
         ORDER BY r.id
         LIMIT 100
    LOOP
        component := format('%s of %s/%s', CASE WHEN found.starts THEN 'start' ELSE 'replay' END,
                            found.namespace, found.subscription);
        ok := true;
        status := format('%s delivered', found.delivered);
        detail := CASE
            WHEN found.seeing IS NULL AND found.seen IS NOT NULL THEN
                format('waits for transactions before %s, which may have published without '
                       'knowing the subscription', found.horizon)
            WHEN found.blocked_at IS NOT NULL THEN
                format('waits for a transaction that writes in a stream of it, or changes the '
                       'subscription; tried at %s', date_trunc('second', found.blocked_at))
            ELSE 'next is what was published at ' || date_trunc('second', found.at) END;
        hint := NULL;
        RETURN NEXT;
    END LOOP;

    SELECT count(*) AS n, count(*) FILTER (WHERE g.is_left) AS n_left,
           string_agg(format('%s/%s', g.namespace, g.subscription), ', ' ORDER BY g.id) AS names
      INTO found
      FROM (SELECT s.id, s.namespace, s.subscription,
                   s.id IN (SELECT l.subscriber FROM outbox._delivery_lanes() l) AS is_left
              FROM outbox.subscribers s
             WHERE s.state = 2
             ORDER BY s.id
             LIMIT 100) g;
    component := 'subscriptions that are gone';
    ok := true;
    status := found.n::text || CASE WHEN found.n >= 100 THEN ' or more' ELSE '' END;
    detail := CASE WHEN found.n > 0 THEN
                  format('%s; %s of them with messages that are leased, or not removed yet',
                         left(found.names, 200), found.n_left) END;
    hint := NULL;
    RETURN NEXT;

    SELECT count(*) AS n, min(p.name::text) AS first, min(p.dependents) AS dependents
      INTO found
      FROM outbox._overdue_publications() p;
    component := 'publications';
    ok := found.n = 0;
    status := format('%s overdue', found.n);
    detail := CASE WHEN NOT ok THEN
                  format('partitions that are no longer needed, and were not dropped, '
                         'such as %s; %s',
                         found.first,
                         coalesce('in the way: ' || found.dependents, 'nothing depends on it'))
              END;
    hint := CASE WHEN found.dependents IS NOT NULL THEN 'Drop what depends on them.'
                 WHEN NOT ok THEN
                     'Check that maintenance runs, and that no session has locked them.' END;
    RETURN NEXT;
END
$$;

COMMENT ON FUNCTION outbox._subscription_status() IS
    'The rows of status() about subscriptions.';

-- At most 10000 messages of each lane, and 10000 dead ones of each subscription, are
-- counted, and fewer where there are many lanes or subscriptions, as in topic_stats.
CREATE VIEW outbox.subscriptions AS
WITH dead_limit(rows) AS (
    SELECT greatest(2, least(10000, 200000 / greatest(count(*), 1))) FROM outbox.subscribers s
), live AS (
    SELECT l.subscriber, sum(l.ready)::bigint AS ready, sum(l.leased)::bigint AS leased,
           min(l.oldest_ready_at) AS oldest
      FROM outbox._lane_counts('outbox.queue', true) l
     WHERE l.subscriber IS NOT NULL
     GROUP BY l.subscriber
)
SELECT s.namespace,
       s.subscription,
       s.topics,
       s.filter,
       coalesce(t.paused, false) AS paused,
       coalesce(live.ready, 0) AS ready,
       coalesce(live.leased, 0) AS leased,
       (SELECT count(*)
          FROM (SELECT FROM outbox.dead d
                 WHERE d.subscription = s.subscription AND d.namespace = s.namespace
                 LIMIT (SELECT m.rows FROM dead_limit m)) n) AS dead,
       date_trunc('second', now() - live.oldest) AS oldest_ready_age,
       s.state = 1 AS starting,
       s.created_at
  FROM outbox.subscribers s
  LEFT JOIN live ON live.subscriber = s.id
  LEFT JOIN outbox.topics t
    ON t.kind = 'subscription'
   AND t.namespace = s.namespace
   AND t.topic = s.subscription
 WHERE s.state < 2
 ORDER BY s.namespace, s.subscription;

COMMENT ON VIEW outbox.subscriptions IS 'Subscriptions, with the number of their messages.';
COMMENT ON COLUMN outbox.subscriptions.namespace IS 'The namespace of the topics.';
COMMENT ON COLUMN outbox.subscriptions.subscription IS 'Its name.';
COMMENT ON COLUMN outbox.subscriptions.topics IS 'Patterns of the topics that it receives.';
COMMENT ON COLUMN outbox.subscriptions.filter IS 'What headers must contain.';
COMMENT ON COLUMN outbox.subscriptions.paused IS 'Nothing is handed out while this is true.';
COMMENT ON COLUMN outbox.subscriptions.ready IS
    'Messages that are due, and not behind others of their streams.';
COMMENT ON COLUMN outbox.subscriptions.leased IS 'Messages that are leased.';
COMMENT ON COLUMN outbox.subscriptions.dead IS 'Messages that have failed.';
COMMENT ON COLUMN outbox.subscriptions.oldest_ready_age IS
    'How long the oldest ready message has been due.';
COMMENT ON COLUMN outbox.subscriptions.starting IS
    'Whether publications from before it was created are still being delivered.';
COMMENT ON COLUMN outbox.subscriptions.created_at IS 'When it was created.';
