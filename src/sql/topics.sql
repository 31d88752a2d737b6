-- topics.sql: policies of topics. Serves trigger.c, and policy.c, which knows the
-- columns by their numbers.

CREATE TABLE outbox.topics (
    kind                text     NOT NULL DEFAULT 'message',
    namespace           text     NOT NULL DEFAULT 'default',
    topic               text     NOT NULL,
    paused              boolean  NOT NULL DEFAULT false,
    max_attempts        integer  CONSTRAINT outbox_topics_max_attempts CHECK (max_attempts >= 1),
    backoff_base        interval CONSTRAINT outbox_topics_backoff_base CHECK (
                            extract(epoch FROM backoff_base) BETWEEN 0 AND 31622400),
    backoff_max         interval CONSTRAINT outbox_topics_backoff_max CHECK (
                            extract(epoch FROM backoff_max) BETWEEN 0 AND 31622400),
    backoff_jitter      boolean,
    retention           interval,
    dead_retention      interval,
    check_dedupe_tenant boolean,
    publish_retention   interval,
    priority            smallint CONSTRAINT outbox_topics_priority CHECK (
                            priority BETWEEN -2 AND 2),
    CONSTRAINT topics_pkey PRIMARY KEY (kind, namespace, topic),
    CONSTRAINT outbox_topics_kind CHECK (
        kind IN ('message', 'inbox', 'timer', 'job_run', 'subscription')),
    CONSTRAINT outbox_topics_names CHECK (
        char_length(namespace) BETWEEN 1 AND 255
        AND char_length(topic) BETWEEN 1 AND 255
    )
);

COMMENT ON TABLE outbox.topics IS 'Policies of topics. Null values stand for the settings.';
COMMENT ON COLUMN outbox.topics.kind IS
    'What the policy is for: message, inbox (the topic is the handler_name), timer, job_run, or '
    'subscription (the topic is its name).';
COMMENT ON COLUMN outbox.topics.namespace IS 'The namespace of the topic.';
COMMENT ON COLUMN outbox.topics.topic IS 'The topic.';
COMMENT ON COLUMN outbox.topics.paused IS 'No message is handed out while this is true.';
COMMENT ON COLUMN outbox.topics.max_attempts IS 'Overrides outbox.max_attempts.';
COMMENT ON COLUMN outbox.topics.backoff_base IS 'Overrides outbox.backoff_base.';
COMMENT ON COLUMN outbox.topics.backoff_max IS 'Overrides outbox.backoff_max.';
COMMENT ON COLUMN outbox.topics.backoff_jitter IS 'Overrides outbox.backoff_jitter.';
COMMENT ON COLUMN outbox.topics.retention IS
    'Overrides outbox.retention; negative: forever, 0: not kept.';
COMMENT ON COLUMN outbox.topics.dead_retention IS
    'Overrides outbox.dead_retention; negative: forever, 0: not kept.';
COMMENT ON COLUMN outbox.topics.check_dedupe_tenant IS 'Overrides outbox.check_dedupe_tenant.';
COMMENT ON COLUMN outbox.topics.publish_retention IS
    'Overrides outbox.publish_retention; negative: forever, 0: not kept.';
COMMENT ON COLUMN outbox.topics.priority IS
    'The priority, from -2 to 2, of messages that are enqueued without one; null is 0.';

-- _topics_changed()
--     AFTER each change of a row of topics, handlers or subscribers, and TRUNCATE.
--     Makes every session read them again, and wakes claims and workers. Replication
--     fires only row triggers, except for TRUNCATE.
CREATE FUNCTION outbox._topics_changed()
RETURNS trigger
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_topics_changed';

COMMENT ON FUNCTION outbox._topics_changed() IS 'Makes every session read the policies again.';

CREATE TRIGGER outbox_topics_changed
    AFTER INSERT OR UPDATE OR DELETE ON outbox.topics
    FOR EACH ROW EXECUTE FUNCTION outbox._topics_changed();

CREATE TRIGGER outbox_topics_truncated
    AFTER TRUNCATE ON outbox.topics
    FOR EACH STATEMENT EXECUTE FUNCTION outbox._topics_changed();

ALTER TABLE outbox.topics ENABLE ALWAYS TRIGGER outbox_topics_changed;
ALTER TABLE outbox.topics ENABLE ALWAYS TRIGGER outbox_topics_truncated;

COMMENT ON TRIGGER outbox_topics_changed ON outbox.topics IS
    'Makes every session read the policies again.';
COMMENT ON TRIGGER outbox_topics_truncated ON outbox.topics IS
    'Makes every session read the policies again.';

-- _check_backoff(what, value)
--     Raises 22023 if a delay is negative or longer than 366 days. The comparison is
--     in seconds, as policies are. A null is accepted.
CREATE FUNCTION outbox._check_backoff(
    what  text,
    value interval
)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF extract(epoch FROM value) NOT BETWEEN 0 AND 366 * 86400 THEN
        RAISE EXCEPTION '% must be between 0 and 366 days', what
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._check_backoff(text, interval) IS
    'Raises an error if a delay is negative or too long.';

-- _check_kind(kind)
--     Raises 22023 if there is no such kind of work, and 22004 for a null.
CREATE FUNCTION outbox._check_kind(kind text)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF kind IS NULL THEN
        RAISE EXCEPTION 'kind must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF kind NOT IN ('message', 'inbox', 'timer', 'job_run', 'subscription') THEN
        RAISE EXCEPTION 'kind "%" is unknown', left(kind, 100)
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Kinds are message, inbox, timer, job_run and subscription.';
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._check_kind(text) IS 'Raises an error for an unknown kind of work.';

-- _is_waiting_topic(topic, namespace, kind)
--     Returns whether the live table of this kind has a row of this topic. Returns
--     true if there are too many lanes to search.
CREATE FUNCTION outbox._is_waiting_topic(
    topic     text,
    namespace text,
    kind      text
)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    most CONSTANT integer := 10000;
    waiting       boolean;
BEGIN
    EXECUTE format($query$
        WITH RECURSIVE lanes(n, lane, namespace, topic) AS (
            (SELECT 1, q.lane, q.namespace, q.%2$I FROM outbox.%1$I q ORDER BY q.lane LIMIT 1)
            UNION ALL
            SELECT l.n + 1, next.*
              FROM lanes l,
                   LATERAL (SELECT q.lane, q.namespace, q.%2$I FROM outbox.%1$I q
                             WHERE q.lane > l.lane ORDER BY q.lane LIMIT 1) next
             WHERE l.n < $3
        )
        SELECT EXISTS (SELECT FROM lanes l
                        WHERE (l.namespace = $2 AND l.topic = $1) OR l.n = $3)
        $query$,
        CASE kind WHEN 'message' THEN 'queue' WHEN 'inbox' THEN 'inbox_queue'
                  WHEN 'timer' THEN 'timer_queue' ELSE 'run_queue' END,
        CASE kind WHEN 'inbox' THEN 'handler_name' ELSE 'topic' END)
       INTO waiting
      USING topic, namespace, most;
    RETURN waiting;
END
$$;

COMMENT ON FUNCTION outbox._is_waiting_topic(text, text, text) IS
    'Whether the live table has rows of a topic.';

-- _is_known_topic(topic, namespace, kind)
--     Returns whether there is any sign that the topic exists: a policy, or a row in
--     the live table; for messages also a handler, a dead message, or a recent claim;
--     for runs a job.
CREATE FUNCTION outbox._is_known_topic(
    topic     text,
    namespace text,
    kind      text
)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF kind = 'subscription' THEN
        RETURN EXISTS (SELECT FROM outbox.subscribers s
                        WHERE s.namespace = _is_known_topic.namespace
                          AND s.subscription = _is_known_topic.topic
                          AND s.state < 2);
    END IF;
    RETURN EXISTS (SELECT FROM outbox.topics t
                    WHERE t.kind = _is_known_topic.kind
                      AND t.namespace = _is_known_topic.namespace
                      AND t.topic = _is_known_topic.topic)
        OR (kind = 'message'
            AND (EXISTS (SELECT FROM outbox.handlers h
                          WHERE h.namespace = _is_known_topic.namespace
                            AND h.topic = _is_known_topic.topic
                            AND h.subscription = '')
                 OR EXISTS (SELECT FROM outbox.dead d
                             WHERE d.namespace = _is_known_topic.namespace
                               AND d.topic = _is_known_topic.topic)
                 OR EXISTS (SELECT FROM outbox._topic_claims() c
                             WHERE c.namespace = _is_known_topic.namespace
                               AND c.topic = _is_known_topic.topic)))
        OR (kind = 'job_run' AND namespace = 'default'
            AND EXISTS (SELECT FROM outbox.jobs j WHERE j.topic = _is_known_topic.topic))
        OR outbox._is_waiting_topic(topic, namespace, kind);
END
$$;

COMMENT ON FUNCTION outbox._is_known_topic(text, text, text) IS
    'Whether there is any sign that a topic exists.';

-- _note_new_topic(topic, namespace, kind)
--     Raises a NOTICE if there is no sign that the topic exists: its name may be
--     wrong.
CREATE FUNCTION outbox._note_new_topic(
    topic     text,
    namespace text,
    kind      text
)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF kind = 'subscription' AND NOT outbox._is_known_topic(topic, namespace, kind) THEN
        RAISE NOTICE 'there is no subscription "%" in namespace "%"', topic, namespace
            USING HINT = 'The policy applies as soon as there is one.';
    ELSIF NOT outbox._is_known_topic(topic, namespace, kind) THEN
        RAISE NOTICE 'no % of topic "%" in namespace "%" is waiting%',
            CASE kind WHEN 'inbox' THEN 'received message'
                      WHEN 'job_run' THEN 'run of a job' ELSE kind END,
            topic, namespace, CASE kind WHEN 'message' THEN ' or dead' ELSE '' END
            USING HINT = 'The policy applies as soon as there is one. '
                         'Names of topics are compared literally, without patterns.';
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._note_new_topic(text, text, text) IS
    'Raises a notice if a topic is unknown.';

-- configure_topic(topic, namespace, ..., kind, priority)
--     Changes the policy of a topic; null arguments leave settings unchanged. A
--     negative retention means forever. Messages, received messages, timers and runs
--     of jobs have separate policies. The priority applies to messages enqueued
--     later; existing ones keep theirs.
CREATE FUNCTION outbox.configure_topic(
    topic               text,
    namespace           text     DEFAULT 'default',
    max_attempts        integer  DEFAULT NULL,
    backoff_base        interval DEFAULT NULL,
    backoff_max         interval DEFAULT NULL,
    retention           interval DEFAULT NULL,
    dead_retention      interval DEFAULT NULL,
    backoff_jitter      boolean  DEFAULT NULL,
    check_dedupe_tenant boolean  DEFAULT NULL,
    kind                text     DEFAULT 'message',
    publish_retention   interval DEFAULT NULL,
    priority            integer  DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._check_name('topic', configure_topic.topic);
    PERFORM outbox._check_name('namespace', configure_topic.namespace);
    PERFORM outbox._check_limit('max_attempts', configure_topic.max_attempts);
    PERFORM outbox._check_backoff('backoff_base', configure_topic.backoff_base),
            outbox._check_backoff('backoff_max', configure_topic.backoff_max),
            outbox._check_kind(configure_topic.kind);
    IF configure_topic.priority NOT BETWEEN -2 AND 2 THEN
        RAISE EXCEPTION 'priority must be between -2 and 2'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF configure_topic.kind <> 'message' AND configure_topic.check_dedupe_tenant IS NOT NULL THEN
        RAISE EXCEPTION 'only messages have check_dedupe_tenant'
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF configure_topic.kind <> 'message' AND configure_topic.publish_retention IS NOT NULL THEN
        RAISE EXCEPTION 'only messages have publish_retention'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF configure_topic.priority IS NOT NULL AND configure_topic.kind <> 'message' THEN
        RAISE EXCEPTION 'only messages have a priority'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'What timers and jobs enqueue has the priority of its topic.';
    END IF;
    PERFORM outbox._note_new_topic(configure_topic.topic, configure_topic.namespace,
                                   configure_topic.kind);

    INSERT INTO outbox.topics AS t
        (kind, namespace, topic, max_attempts, backoff_base, backoff_max,
         backoff_jitter, retention, dead_retention, check_dedupe_tenant, publish_retention,
         priority)
    VALUES
        (configure_topic.kind, configure_topic.namespace, configure_topic.topic,
         configure_topic.max_attempts, configure_topic.backoff_base,
         configure_topic.backoff_max, configure_topic.backoff_jitter,
         configure_topic.retention, configure_topic.dead_retention,
         configure_topic.check_dedupe_tenant, configure_topic.publish_retention,
         configure_topic.priority)
    ON CONFLICT ON CONSTRAINT topics_pkey DO UPDATE
        SET max_attempts        = coalesce(excluded.max_attempts, t.max_attempts),
            backoff_base        = coalesce(excluded.backoff_base, t.backoff_base),
            backoff_max         = coalesce(excluded.backoff_max, t.backoff_max),
            backoff_jitter      = coalesce(excluded.backoff_jitter, t.backoff_jitter),
            retention           = coalesce(excluded.retention, t.retention),
            dead_retention      = coalesce(excluded.dead_retention, t.dead_retention),
            check_dedupe_tenant = coalesce(excluded.check_dedupe_tenant, t.check_dedupe_tenant),
            publish_retention   = coalesce(excluded.publish_retention, t.publish_retention),
            priority            = coalesce(excluded.priority, t.priority);
END
$$;

COMMENT ON FUNCTION outbox.configure_topic(
    text, text, integer, interval, interval, interval, interval, boolean, boolean, text,
    interval, integer
) IS 'Changes the policy of a topic; null arguments leave settings unchanged.';

-- reset_topic(topic, namespace, setting, kind)
--     Resets the policy of a topic, or one setting of it, named as the argument of
--     configure_topic; 'paused' does what resume_topic does. The settings of the
--     server apply then. True if there was something to reset.
CREATE FUNCTION outbox.reset_topic(
    topic     text,
    namespace text DEFAULT 'default',
    setting   text DEFAULT NULL,
    kind      text DEFAULT 'message'
)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    changed bigint;
BEGIN
    PERFORM outbox._check_name('topic', reset_topic.topic);
    PERFORM outbox._check_name('namespace', reset_topic.namespace);
    PERFORM outbox._check_kind(reset_topic.kind);
    IF reset_topic.setting IS NULL THEN
        DELETE FROM outbox.topics t
         WHERE t.kind = reset_topic.kind
           AND t.namespace = reset_topic.namespace
           AND t.topic = reset_topic.topic;
        RETURN FOUND;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_attribute a
                    WHERE a.attrelid = 'outbox.topics'::regclass
                      AND a.attnum > 0 AND NOT a.attisdropped
                      AND a.attname NOT IN ('kind', 'namespace', 'topic')
                      AND a.attname = reset_topic.setting)
    THEN
        RAISE EXCEPTION 'unknown setting "%" of a topic', left(reset_topic.setting, 100)
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Settings are columns of outbox.topics, for example max_attempts.';
    END IF;
    EXECUTE format('UPDATE outbox.topics t SET %1$I = DEFAULT '
                   'WHERE t.namespace = $1 AND t.topic = $2 AND t.kind = $3 '
                   'AND t.%1$I IS NOT NULL AND (%1$L <> ''paused'' OR t.paused)',
                   reset_topic.setting)
      USING reset_topic.namespace, reset_topic.topic, reset_topic.kind;
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed > 0;
END
$$;

COMMENT ON FUNCTION outbox.reset_topic(text, text, text, text) IS
    'Resets the policy of a topic, or one setting of it.';

-- _set_paused(topic, namespace, kind, paused)
--     pause_topic and resume_topic.
CREATE FUNCTION outbox._set_paused(
    topic     text,
    namespace text,
    kind      text,
    paused    boolean
)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._check_name('topic', _set_paused.topic);
    PERFORM outbox._check_name('namespace', _set_paused.namespace);
    PERFORM outbox._check_kind(_set_paused.kind);
    PERFORM outbox._note_new_topic(_set_paused.topic, _set_paused.namespace, _set_paused.kind);
    INSERT INTO outbox.topics AS t (kind, namespace, topic, paused)
    VALUES (_set_paused.kind, _set_paused.namespace, _set_paused.topic, _set_paused.paused)
    ON CONFLICT ON CONSTRAINT topics_pkey DO UPDATE
        SET paused = excluded.paused
      WHERE t.paused <> excluded.paused;
END
$$;

COMMENT ON FUNCTION outbox._set_paused(text, text, text, boolean) IS
    'The common part of pause_topic and resume_topic.';

-- pause_topic(topic, namespace, kind)
--     Stops handing out messages of the topic; existing leases are not affected.
CREATE FUNCTION outbox.pause_topic(
    topic     text,
    namespace text DEFAULT 'default',
    kind      text DEFAULT 'message'
)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT outbox._set_paused(topic, namespace, kind, true) $$;

COMMENT ON FUNCTION outbox.pause_topic(text, text, text) IS
    'Stops the delivery of a topic''s messages.';

-- resume_topic(topic, namespace, kind)
--     Undoes pause_topic: messages of the topic can be claimed again.
CREATE FUNCTION outbox.resume_topic(
    topic     text,
    namespace text DEFAULT 'default',
    kind      text DEFAULT 'message'
)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT outbox._set_paused(topic, namespace, kind, false) $$;

COMMENT ON FUNCTION outbox.resume_topic(text, text, text) IS
    'Resumes the delivery of a topic''s messages.';

-- _default_policy()
--     Returns the policy of topics that have none: the settings of this session.
--     Views call it with the privileges of the reader, who needs EXECUTE.
CREATE FUNCTION outbox._default_policy()
RETURNS TABLE (
    max_attempts        integer,
    backoff_base        interval,
    backoff_max         interval,
    backoff_jitter      boolean,
    retention           interval,
    dead_retention      interval,
    check_dedupe_tenant boolean
)
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 1
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- load the library, which defines the settings
    PERFORM outbox._library();
    RETURN QUERY
        SELECT current_setting('outbox.max_attempts')::integer,
               current_setting('outbox.backoff_base')::interval,
               current_setting('outbox.backoff_max')::interval,
               current_setting('outbox.backoff_jitter')::boolean,
               current_setting('outbox.retention')::interval,
               current_setting('outbox.dead_retention')::interval,
               current_setting('outbox.check_dedupe_tenant')::boolean;
END
$$;

COMMENT ON FUNCTION outbox._default_policy() IS
    'The settings, as they apply to topics without a policy.';

-- _retention_name(retention)
--     Returns a retention in readable form.
CREATE FUNCTION outbox._retention_name(retention interval)
RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN retention < '0' THEN 'forever'
                WHEN retention = '0' THEN 'not kept'
                ELSE retention::text END
$$;

COMMENT ON FUNCTION outbox._retention_name(interval) IS 'A retention in readable form.';

-- The effective policies, whereas outbox.topics has what was set: one row for each
-- topic that has a policy, and one for all others.
CREATE VIEW outbox.policies AS
SELECT p.kind,
       p.topic,
       p.namespace,
       p.paused,
       coalesce(p.max_attempts, d.max_attempts) AS max_attempts,
       coalesce(p.backoff_base, d.backoff_base) AS backoff_base,
       coalesce(p.backoff_max, d.backoff_max) AS backoff_max,
       coalesce(p.backoff_jitter, d.backoff_jitter) AS backoff_jitter,
       outbox._retention_name(coalesce(p.retention,
                                       CASE WHEN p.kind = 'inbox' THEN interval '0'
                                            ELSE d.retention END)) AS retention,
       outbox._retention_name(coalesce(p.dead_retention, d.dead_retention)) AS dead_retention,
       CASE WHEN coalesce(p.kind, 'message') = 'message'
            THEN coalesce(p.check_dedupe_tenant, d.check_dedupe_tenant)
       END AS check_dedupe_tenant,
       CASE WHEN coalesce(p.kind, 'message') = 'message'
            THEN coalesce(p.priority, 0::smallint)
       END AS priority
  FROM outbox._default_policy() d,
       (SELECT t.kind, t.topic, t.namespace, t.paused, t.max_attempts, t.backoff_base,
               t.backoff_max, t.backoff_jitter, t.retention, t.dead_retention,
               t.check_dedupe_tenant, t.priority
          FROM outbox.topics t
        UNION ALL
        SELECT NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL) p
 ORDER BY p.kind, p.topic, p.namespace;

COMMENT ON VIEW outbox.policies IS
    'The effective policy of each topic that has one, and, in the row without a topic, of all '
    'others.';
COMMENT ON COLUMN outbox.policies.kind IS
    'What the policy is for: message, inbox (the topic is the handler_name), timer, job_run, or '
    'subscription (the topic is its name).';
COMMENT ON COLUMN outbox.policies.topic IS 'The topic; null for all topics that are not listed.';
COMMENT ON COLUMN outbox.policies.namespace IS 'The namespace of the topic.';
COMMENT ON COLUMN outbox.policies.paused IS 'No message is handed out while this is true.';
COMMENT ON COLUMN outbox.policies.max_attempts IS
    'The number of attempts before a message is dead.';
COMMENT ON COLUMN outbox.policies.backoff_base IS 'The delay before the first retry.';
COMMENT ON COLUMN outbox.policies.backoff_max IS 'The longest delay.';
COMMENT ON COLUMN outbox.policies.backoff_jitter IS
    'Whether the delay is chosen at random between half and all of it.';
COMMENT ON COLUMN outbox.policies.retention IS
    'How long done messages are kept; received ones are not kept unless a policy says so.';
COMMENT ON COLUMN outbox.policies.dead_retention IS 'How long dead messages are kept.';
COMMENT ON COLUMN outbox.policies.check_dedupe_tenant IS
    'Whether a tenant''s dedupe keys must begin with the tenant.';
COMMENT ON COLUMN outbox.policies.priority IS
    'The priority of messages that are enqueued without one.';
