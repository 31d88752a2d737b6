-- trace.sql: the life of a message, of what it has caused, and of what has caused it.
-- Serves sql_admin.c and cause.c, which links messages by the column caused_by.
--
-- All links are found by indexes: caused_by in all tables, message_id, the members of a
-- join, and the ids of deliveries, which are derived from that of the publication.

-- _join_of_wait(payload)
--     Returns the join that a message waits for, given its payload.
CREATE FUNCTION outbox._join_of_wait(payload text)
RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN pg_catalog."substring"(
    payload, '"joinId": ?"([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})"'
)::pg_catalog.uuid;

COMMENT ON FUNCTION outbox._join_of_wait(text) IS 'The join that a message waits for.';

CREATE VIEW outbox._work AS
SELECT 'message'::text AS kind, q.id, q.message_id, q.caused_by, q.published_id, q.namespace,
       q.topic, (SELECT s.subscription FROM outbox.subscribers s
                  WHERE s.id = q.subscriber) AS subscription,
       q.status, q.created_at, q.next_attempt_at, q.updated_at, q.owner_token, q.locked_until,
       q.attempts - q.waived AS attempts, q.failure_reason,
       NULL::timestamptz AS processed_at, NULL::uuid AS processed_by, q.errors,
       q.headers ->> 'traceparent' AS traceparent,
       CASE WHEN q.topic = current_setting('outbox.join_wait_topic', true)
            THEN outbox._join_of_wait(q.payload) END AS join_id
  FROM outbox.queue q
UNION ALL
SELECT 'message', h.id, h.message_id, h.caused_by, h.published_id, h.namespace,
       h.topic, h.subscription, 2::smallint, h.created_at, NULL, NULL, NULL, NULL,
       h.attempts, h.failure_reason, h.processed_at, h.processed_by, h.errors,
       h.headers ->> 'traceparent',
       CASE WHEN h.topic = current_setting('outbox.join_wait_topic', true)
            THEN outbox._join_of_wait(h.payload) END
  FROM outbox.archive h
UNION ALL
SELECT 'message', h.id, h.message_id, h.caused_by, h.published_id, h.namespace,
       h.topic, h.subscription, 3::smallint, h.created_at, NULL, NULL, NULL, NULL,
       h.attempts, h.failure_reason, h.processed_at, h.processed_by, h.errors,
       h.headers ->> 'traceparent',
       CASE WHEN h.topic = current_setting('outbox.join_wait_topic', true)
            THEN outbox._join_of_wait(h.payload) END
  FROM outbox.dead h
UNION ALL
SELECT 'inbox', q.id, q.message_id, q.caused_by, q.published_id, q.namespace,
       q.handler_name, NULL, q.status, q.created_at, q.next_attempt_at, q.updated_at, q.owner_token,
       q.locked_until,
       q.attempts - q.waived, q.failure_reason, NULL, NULL, q.errors,
       q.headers ->> 'traceparent', NULL
  FROM outbox.inbox_queue q
UNION ALL
SELECT 'inbox', h.id, h.message_id, h.caused_by, h.published_id, h.namespace,
       h.handler_name, NULL, 2::smallint, h.created_at, NULL, NULL, NULL, NULL,
       h.attempts, h.failure_reason, h.processed_at, h.processed_by, h.errors,
       h.headers ->> 'traceparent', NULL
  FROM outbox.inbox_done h
UNION ALL
SELECT 'inbox', h.id, h.message_id, h.caused_by, h.published_id, h.namespace,
       h.handler_name, NULL, 3::smallint, h.created_at, NULL, NULL, NULL, NULL,
       h.attempts, h.failure_reason, h.processed_at, h.processed_by, h.errors,
       h.headers ->> 'traceparent', NULL
  FROM outbox.inbox_dead h
UNION ALL
SELECT 'timer', q.id, q.message_id, q.caused_by, q.published_id, q.namespace,
       q.topic, NULL, q.status, q.created_at, q.next_attempt_at, q.updated_at, q.owner_token,
       q.locked_until,
       q.attempts - q.waived, q.failure_reason, NULL, NULL, q.errors,
       q.headers ->> 'traceparent', NULL
  FROM outbox.timer_queue q
UNION ALL
SELECT 'timer', h.id, h.message_id, h.caused_by, h.published_id, h.namespace,
       h.topic, NULL, 2::smallint, h.created_at, NULL, NULL, NULL, NULL,
       h.attempts, h.failure_reason, h.processed_at, h.processed_by, h.errors,
       h.headers ->> 'traceparent', NULL
  FROM outbox.timer_done h
UNION ALL
SELECT 'timer', h.id, h.message_id, h.caused_by, h.published_id, h.namespace,
       h.topic, NULL, 3::smallint, h.created_at, NULL, NULL, NULL, NULL,
       h.attempts, h.failure_reason, h.processed_at, h.processed_by, h.errors,
       h.headers ->> 'traceparent', NULL
  FROM outbox.timer_dead h
UNION ALL
SELECT 'job_run', q.id, q.message_id, q.caused_by, q.published_id, q.namespace,
       q.topic, NULL, q.status, q.created_at, q.next_attempt_at, q.updated_at, q.owner_token,
       q.locked_until,
       q.attempts - q.waived, q.failure_reason, NULL, NULL, q.errors,
       q.headers ->> 'traceparent', NULL
  FROM outbox.run_queue q
UNION ALL
SELECT 'job_run', h.id, h.message_id, h.caused_by, h.published_id, h.namespace,
       h.topic, NULL, 2::smallint, h.created_at, NULL, NULL, NULL, NULL,
       h.attempts, h.failure_reason, h.processed_at, h.processed_by, h.errors,
       h.headers ->> 'traceparent', NULL
  FROM outbox.run_done h
UNION ALL
SELECT 'job_run', h.id, h.message_id, h.caused_by, h.published_id, h.namespace,
       h.topic, NULL, 3::smallint, h.created_at, NULL, NULL, NULL, NULL,
       h.attempts, h.failure_reason, h.processed_at, h.processed_by, h.errors,
       h.headers ->> 'traceparent', NULL
  FROM outbox.run_dead h;

COMMENT ON VIEW outbox._work IS
    'Messages, timers and runs, waiting, leased or finished, as outbox.trace reads them.';
COMMENT ON COLUMN outbox._work.kind IS 'message, inbox, timer or job_run.';
COMMENT ON COLUMN outbox._work.id IS 'The work item.';
COMMENT ON COLUMN outbox._work.message_id IS 'The logical message, timer or run.';
COMMENT ON COLUMN outbox._work.caused_by IS 'What has caused it.';
COMMENT ON COLUMN outbox._work.published_id IS 'The publication, if it is a delivery.';
COMMENT ON COLUMN outbox._work.namespace IS 'The namespace.';
COMMENT ON COLUMN outbox._work.topic IS 'The topic; for the inbox, the handler_name.';
COMMENT ON COLUMN outbox._work.subscription IS 'The subscription, if it is a delivery.';
COMMENT ON COLUMN outbox._work.status IS '0 ready, 1 in progress, 2 done, 3 failed.';
COMMENT ON COLUMN outbox._work.created_at IS 'When it was enqueued.';
COMMENT ON COLUMN outbox._work.next_attempt_at IS 'Not delivered before this time.';
COMMENT ON COLUMN outbox._work.updated_at IS 'When it was last changed.';
COMMENT ON COLUMN outbox._work.owner_token IS 'The owner of the lease.';
COMMENT ON COLUMN outbox._work.locked_until IS 'End of the lease.';
COMMENT ON COLUMN outbox._work.attempts IS 'How often it was handed out.';
COMMENT ON COLUMN outbox._work.failure_reason IS 'Why it, or its last attempt, failed.';
COMMENT ON COLUMN outbox._work.processed_at IS 'When it was finished.';
COMMENT ON COLUMN outbox._work.processed_by IS 'The owner that finished it.';
COMMENT ON COLUMN outbox._work.errors IS 'The errors of failed attempts.';
COMMENT ON COLUMN outbox._work.traceparent IS 'The trace that it belongs to.';
COMMENT ON COLUMN outbox._work.join_id IS 'The join, if it waits for one.';

-- _trace_causes(ids, at_most)
--     Returns what has caused these: messages, timers, runs, publications, joins, or
--     traces. Of a join, these are its members.
CREATE FUNCTION outbox._trace_causes(
    ids     uuid[],
    at_most integer
)
RETURNS uuid[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT array_agg(c.id)
      FROM (SELECT w.caused_by AS id FROM outbox._work w
             WHERE w.message_id = ANY (ids) AND w.caused_by IS NOT NULL
            UNION
            SELECT w.published_id FROM outbox._work w
             WHERE w.message_id = ANY (ids) AND w.published_id IS NOT NULL
            UNION
            SELECT m.id
              FROM (SELECT j.message_id AS id FROM outbox.join_members j
                     WHERE j.join_id = ANY (ids)
                     LIMIT at_most) m
             LIMIT at_most) c
$$;

COMMENT ON FUNCTION outbox._trace_causes(uuid[], integer) IS 'What has caused these messages.';

-- _trace_effects(ids, at_most)
--     Returns what these have caused: messages, timers, runs, and joins in which they
--     count. Of a publication, these are its deliveries.
CREATE FUNCTION outbox._trace_effects(
    ids     uuid[],
    at_most integer
)
RETURNS uuid[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT array_agg(e.id)
      FROM (SELECT c.id
              FROM (SELECT w.message_id AS id FROM outbox._work w
                     WHERE w.caused_by = ANY (ids)
                     LIMIT at_most) c
            UNION
            SELECT m.id
              FROM (SELECT j.join_id AS id FROM outbox.join_members j
                     WHERE j.message_id = ANY (ids)
                     LIMIT at_most) m
            UNION
            SELECT w.join_id FROM outbox._work w
             WHERE w.message_id = ANY (ids) AND w.join_id IS NOT NULL
            UNION
            SELECT w.message_id
              FROM outbox._work w
             WHERE w.message_id = ANY (ARRAY(
                       SELECT outbox._delivery_id(p.id, s.id)
                         FROM unnest(ids) p(id)
                        CROSS JOIN LATERAL (
                            SELECT b.id FROM outbox.subscribers b
                            UNION
                            SELECT unnest(b.subscribers) FROM outbox.publications b
                             WHERE b.published_id = p.id) s
                        WHERE NOT EXISTS (SELECT FROM outbox._work o WHERE o.message_id = p.id)))
             LIMIT at_most) e
$$;

COMMENT ON FUNCTION outbox._trace_effects(uuid[], integer) IS 'What these messages have caused.';

-- _trace_related(message_id)
--     Returns the messages, timers, runs, joins and publications that are related to a
--     message, and how: this, cause, effect, or trace, which is no more than the same
--     trace. At most 1000 of each kind of relation; of the same trace, 100.
CREATE FUNCTION outbox._trace_related(message_id uuid)
RETURNS TABLE (id uuid, relation text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    at_most CONSTANT integer := 1000;

    seen  uuid[] := ARRAY[_trace_related.message_id];
    found uuid[];
    ids   uuid[];
    trace uuid;
BEGIN
    RETURN QUERY SELECT _trace_related.message_id, 'this';
    FOR way IN 1 .. 2 LOOP
        ids := ARRAY[_trace_related.message_id];
        found := '{}';
        LOOP
            ids := CASE way WHEN 1 THEN outbox._trace_causes(ids, at_most)
                            ELSE outbox._trace_effects(ids, at_most) END;
            ids := ARRAY(SELECT u FROM unnest(ids) u EXCEPT SELECT unnest(seen)
                          LIMIT at_most - cardinality(found));
            EXIT WHEN ids = '{}';
            seen := seen || ids;
            found := found || ids;
        END LOOP;
        RETURN QUERY SELECT f, CASE way WHEN 1 THEN 'cause' ELSE 'effect' END
                       FROM unnest(found) f;
    END LOOP;
    FOR trace IN
        SELECT DISTINCT substr(w.traceparent, 4, 32)::uuid
          FROM outbox._work w
         WHERE w.message_id = _trace_related.message_id
           AND w.traceparent ~ '^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$'
    LOOP
        RETURN QUERY
            SELECT DISTINCT s.id, 'trace'
              FROM (SELECT w.message_id AS id FROM outbox._work w
                     WHERE w.caused_by = trace
                     LIMIT 100 + cardinality(seen)) s
             WHERE s.id <> ALL (seen)
             LIMIT 100;
    END LOOP;
END
$$;

COMMENT ON FUNCTION outbox._trace_related(uuid) IS
    'What is related to a message, as its cause, its effect, or by its trace.';

-- _trace(message_id)
--     Does what trace does, without the texts of errors, which not all may read.
CREATE FUNCTION outbox._trace(message_id uuid)
RETURNS TABLE (at timestamptz, event text, relation text, kind text, id bigint, item_id uuid,
               caused_by uuid, namespace text, topic text, subscription text, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM outbox._require('message_id', _trace.message_id);
    -- load the library, which defines the settings used below
    PERFORM outbox._library();
    RETURN QUERY
    WITH related AS MATERIALIZED (
        SELECT r.id, r.relation FROM outbox._trace_related(_trace.message_id) r
    ), work AS MATERIALIZED (
        SELECT r.relation, w.*
          FROM outbox._work w
          JOIN related r ON r.id = w.message_id
         WHERE w.message_id = ANY (ARRAY(SELECT o.id FROM related o))
    ), events AS (
        SELECT w.created_at AS at, 0 AS place,
               CASE w.kind WHEN 'inbox' THEN 'received' WHEN 'timer' THEN 'scheduled'
                           WHEN 'job_run' THEN 'triggered'
                           ELSE CASE
                               WHEN w.published_id IS NOT NULL THEN 'delivered'
                               WHEN EXISTS (SELECT FROM outbox.joins j
                                             WHERE j.join_id = w.caused_by) THEN 'continued'
                               ELSE 'enqueued' END END AS event,
               w.relation, w.kind, w.id, w.message_id, w.caused_by, w.namespace, w.topic,
               w.subscription,
               nullif(concat_ws(', ', 'publication ' || w.published_id::text,
                                'traceparent ' || w.traceparent), '') AS detail
          FROM work w
        UNION ALL
        SELECT '2000-01-01 00:00:00+00'::timestamptz
                   + split_part(e.entry, ' ', 2)::bigint * interval '1 microsecond',
               1, CASE WHEN e.entry ~ '^0 ' THEN 'redriven' ELSE 'failed attempt' END,
               w.relation, w.kind, w.id, w.message_id, w.caused_by, w.namespace, w.topic,
               w.subscription,
               CASE WHEN e.entry !~ '^0 ' THEN 'attempt ' || split_part(e.entry, ' ', 1) END
          FROM work w
         CROSS JOIN LATERAL unnest(w.errors) e(entry)
         WHERE e.entry ~ '^\d{1,9} \d{1,18}'
        UNION ALL
        SELECT w.updated_at, 2, 'leased',
               w.relation, w.kind, w.id, w.message_id, w.caused_by, w.namespace, w.topic,
               w.subscription,
               format('attempt %s, by %s until %s', w.attempts, w.owner_token, w.locked_until)
          FROM work w
         WHERE w.status = 1
        UNION ALL
        SELECT w.next_attempt_at, 2,
               CASE WHEN w.next_attempt_at = 'infinity' THEN 'parked' ELSE 'due' END,
               w.relation, w.kind, w.id, w.message_id, w.caused_by, w.namespace, w.topic,
               w.subscription,
               CASE WHEN w.attempts > 0 THEN w.attempts::text || ' attempts so far' END
          FROM work w
         WHERE w.status = 0
        UNION ALL
        SELECT w.processed_at, 3, CASE w.status WHEN 2 THEN 'acked' ELSE 'dead' END,
               w.relation, w.kind, w.id, w.message_id, w.caused_by, w.namespace, w.topic,
               w.subscription,
               concat_ws(', ', 'attempt ' || nullif(w.attempts, 0)::text,
                         'by ' || w.processed_by::text,
                         CASE WHEN w.status = 3 THEN
                             'reason: ' || coalesce(outbox.reason_name(w.failure_reason),
                                                    w.failure_reason::text) END)
          FROM work w
         WHERE w.status IN (2, 3)
        UNION ALL
        SELECT p.published_at, 0, 'published', r.relation, 'publication', NULL, p.published_id,
               NULL, p.namespace, p.topic, NULL,
               format('for %s subscriptions', cardinality(p.subscribers))
          FROM related r
          JOIN outbox.publications p ON p.published_id = r.id
        UNION ALL
        SELECT j.created_at, 0, 'started', r.relation, 'join', NULL, j.join_id,
               NULL, NULL, NULL, NULL, format('%s steps are expected', j.expected_steps)
          FROM related r
          JOIN outbox.joins j ON j.join_id = r.id
        UNION ALL
        SELECT j.last_updated_at, 3, outbox.join_status_name(j.status), r.relation, 'join',
               NULL, j.join_id, NULL, NULL, NULL, NULL,
               format('%s steps completed, %s failed', j.completed_steps, j.failed_steps)
          FROM related r
          JOIN outbox.joins j ON j.join_id = r.id
         WHERE j.status <> 0
    )
    SELECT e.at, e.event, e.relation, e.kind, e.id, e.message_id, e.caused_by, e.namespace,
           e.topic, e.subscription, nullif(e.detail, '')
      FROM events e
     ORDER BY e.at, e.id, e.place;
END
$$;

COMMENT ON FUNCTION outbox._trace(uuid) IS 'What trace returns, without the texts of errors.';

-- trace(message_id)
--     Returns the life of a message, of what has caused it, and of what it has caused:
--     one row for each event, in the order of time. Takes the id of a timer, a run, a
--     join, a publication, or a trace as well. Finds what is still kept.
CREATE FUNCTION outbox.trace(message_id uuid)
RETURNS TABLE (at timestamptz, event text, relation text, kind text, id bigint, item_id uuid,
               caused_by uuid, namespace text, topic text, subscription text, detail text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF NOT has_column_privilege('outbox.attempts_log', 'error', 'SELECT') THEN
        RETURN QUERY SELECT * FROM outbox._trace(trace.message_id);
        RETURN;
    END IF;
    RETURN QUERY
        SELECT t.at, t.event, t.relation, t.kind, t.id, t.item_id, t.caused_by, t.namespace,
               t.topic, t.subscription,
               concat_ws(': ', t.detail,
                         CASE WHEN t.event = 'failed attempt' THEN
                             (SELECT l.error FROM outbox.attempts_log l
                               WHERE l.id = t.id AND l.kind = t.kind AND l.at = t.at
                               LIMIT 1) END)
          FROM outbox._trace(trace.message_id) WITH ORDINALITY t(
                   at, event, relation, kind, id, item_id, caused_by, namespace, topic,
                   subscription, detail, n)
         ORDER BY t.n;
END
$$;

COMMENT ON FUNCTION outbox.trace(uuid) IS
    'The life of a message, of what has caused it, and of what it has caused.';
