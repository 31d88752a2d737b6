-- topics.sql: what holds for a topic. Serves trigger.c, and policy.c, which knows
-- the columns by their numbers.

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
    CONSTRAINT topics_pkey PRIMARY KEY (kind, namespace, topic),
    CONSTRAINT outbox_topics_kind CHECK (kind IN ('message', 'inbox', 'timer', 'job_run')),
    CONSTRAINT outbox_topics_names CHECK (
        char_length(namespace) BETWEEN 1 AND 255
        AND char_length(topic) BETWEEN 1 AND 255
    )
);

COMMENT ON TABLE outbox.topics IS
    'Policies of topics. What is null is as the settings say.';
COMMENT ON COLUMN outbox.topics.kind IS
    'What has this topic: message, inbox (the topic is the handler_name), timer or job_run.';
COMMENT ON COLUMN outbox.topics.namespace IS 'The namespace of the topic.';
COMMENT ON COLUMN outbox.topics.topic IS 'The topic.';
COMMENT ON COLUMN outbox.topics.paused IS 'No message is handed out while this is true.';
COMMENT ON COLUMN outbox.topics.max_attempts IS 'Instead of outbox.max_attempts.';
COMMENT ON COLUMN outbox.topics.backoff_base IS 'Instead of outbox.backoff_base.';
COMMENT ON COLUMN outbox.topics.backoff_max IS 'Instead of outbox.backoff_max.';
COMMENT ON COLUMN outbox.topics.backoff_jitter IS 'Instead of outbox.backoff_jitter.';
COMMENT ON COLUMN outbox.topics.retention IS
    'Instead of outbox.retention; negative means for ever, 0 not at all.';
COMMENT ON COLUMN outbox.topics.dead_retention IS
    'Instead of outbox.dead_retention; negative means for ever, 0 not at all.';
COMMENT ON COLUMN outbox.topics.check_dedupe_tenant IS
    'Instead of outbox.check_dedupe_tenant.';

-- _topics_changed()
--     After each statement that changes topics or handlers. Makes every session
--     read them again, and wakes claims and workers.
CREATE FUNCTION outbox._topics_changed()
RETURNS trigger
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_topics_changed';

COMMENT ON FUNCTION outbox._topics_changed() IS
    'Has every session read the policies again.';

CREATE TRIGGER outbox_topics_changed
    AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.topics
    FOR EACH STATEMENT EXECUTE FUNCTION outbox._topics_changed();

ALTER TABLE outbox.topics ENABLE ALWAYS TRIGGER outbox_topics_changed;

COMMENT ON TRIGGER outbox_topics_changed ON outbox.topics IS
    'Has every session read the policies again.';

-- _check_backoff(what, value)
--     Raises 22023 if a delay is negative or longer than 366 days. The policy is in
--     seconds, so that is what is compared. A null passes.
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
    'Refuses a delay that is negative or too long.';

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
    ELSIF kind NOT IN ('message', 'inbox', 'timer', 'job_run') THEN
        RAISE EXCEPTION 'kind "%" is unknown', left(kind, 100)
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Kinds are message, inbox, timer and job_run.';
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._check_kind(text) IS
    'Refuses what is no kind of work.';

-- _is_waiting_topic(topic, namespace, kind)
--     Is there a row of this topic in the live table of this kind? Where there are
--     too many lanes to look at all, the answer is yes.
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
    'Whether something of this topic waits.';

-- _is_known_topic(topic, namespace, kind)
--     Does anything say that there is such a topic: a policy, something that waits;
--     for messages also a handler, a dead one, a claim not long ago; for runs a job?
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
    RETURN EXISTS (SELECT FROM outbox.topics t
                    WHERE t.kind = _is_known_topic.kind
                      AND t.namespace = _is_known_topic.namespace
                      AND t.topic = _is_known_topic.topic)
        OR (kind = 'message'
            AND (EXISTS (SELECT FROM outbox.handlers h
                          WHERE h.namespace = _is_known_topic.namespace
                            AND h.topic = _is_known_topic.topic)
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
    'Whether anything says that there is such a topic.';

-- _note_new_topic(topic, namespace, kind)
--     A NOTICE if nothing says that there is such a topic: its name may be wrong.
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
    IF NOT outbox._is_known_topic(topic, namespace, kind) THEN
        RAISE NOTICE 'no % of topic "%" in namespace "%" is waiting%',
            CASE kind WHEN 'inbox' THEN 'received message'
                      WHEN 'job_run' THEN 'run of a job' ELSE kind END,
            topic, namespace, CASE kind WHEN 'message' THEN ' or dead' ELSE '' END
            USING HINT = 'The policy is kept for when there is one. '
                         'Names of topics are compared as they are; there are no patterns.';
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._note_new_topic(text, text, text) IS
    'Says that nothing is known of a topic.';

-- configure_topic(topic, namespace, ..., kind)
--     Sets what is given of a topic's policy, and leaves the rest as it is.
--     For an interval that is a retention, negative means for ever. Messages, what
--     was received, timers and runs of jobs have policies of their own.
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
    kind                text     DEFAULT 'message'
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
    IF configure_topic.check_dedupe_tenant IS NOT NULL AND configure_topic.kind <> 'message' THEN
        RAISE EXCEPTION 'only messages have check_dedupe_tenant'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM outbox._note_new_topic(configure_topic.topic, configure_topic.namespace,
                                   configure_topic.kind);

    INSERT INTO outbox.topics AS t
        (kind, namespace, topic, max_attempts, backoff_base, backoff_max,
         backoff_jitter, retention, dead_retention, check_dedupe_tenant)
    VALUES
        (configure_topic.kind, configure_topic.namespace, configure_topic.topic,
         configure_topic.max_attempts, configure_topic.backoff_base,
         configure_topic.backoff_max, configure_topic.backoff_jitter,
         configure_topic.retention, configure_topic.dead_retention,
         configure_topic.check_dedupe_tenant)
    ON CONFLICT ON CONSTRAINT topics_pkey DO UPDATE
        SET max_attempts        = coalesce(excluded.max_attempts, t.max_attempts),
            backoff_base        = coalesce(excluded.backoff_base, t.backoff_base),
            backoff_max         = coalesce(excluded.backoff_max, t.backoff_max),
            backoff_jitter      = coalesce(excluded.backoff_jitter, t.backoff_jitter),
            retention           = coalesce(excluded.retention, t.retention),
            dead_retention      = coalesce(excluded.dead_retention, t.dead_retention),
            check_dedupe_tenant = coalesce(excluded.check_dedupe_tenant, t.check_dedupe_tenant);
END
$$;

COMMENT ON FUNCTION outbox.configure_topic(
    text, text, integer, interval, interval, interval, interval, boolean, boolean, text
) IS
    'Sets what is given of a topic''s policy; what is null stays as it is.';

-- reset_topic(topic, namespace, setting, kind)
--     Forgets a topic's policy, or one value of it, named as the argument of
--     configure_topic; 'paused' is as resume_topic. What is forgotten is as the
--     settings say. True if there was something to forget.
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
        RAISE EXCEPTION 'setting "%" is none of a topic', left(reset_topic.setting, 100)
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Settings are the columns of outbox.topics, as in max_attempts.';
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
    'Forgets a topic''s policy, or one value of it.';

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
    'What pause_topic and resume_topic have in common.';

-- pause_topic(topic, namespace, kind)
--     No message of the topic is handed out any more; leases go on.
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
--     Ends pause_topic: messages of the topic can be claimed again.
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
    'Goes on with the delivery of a topic''s messages.';

-- _default_policy()
--     What holds for topics without a policy: the settings of this session. Views call
--     it with the rights of the reader, who needs EXECUTE.
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
    -- the library knows the settings
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
    'What the settings say for topics without a policy.';

-- _retention_name(retention)
--     A retention as people say it.
CREATE FUNCTION outbox._retention_name(retention interval)
RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN retention < '0' THEN 'for ever'
                WHEN retention = '0' THEN 'not kept'
                ELSE retention::text END
$$;

COMMENT ON FUNCTION outbox._retention_name(interval) IS
    'A retention as people say it.';

-- What is in force, where outbox.topics has what was set: a row for each topic that has
-- a policy, and one for all others.
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
       END AS check_dedupe_tenant
  FROM outbox._default_policy() d,
       (SELECT t.kind, t.topic, t.namespace, t.paused, t.max_attempts, t.backoff_base,
               t.backoff_max, t.backoff_jitter, t.retention, t.dead_retention,
               t.check_dedupe_tenant
          FROM outbox.topics t
        UNION ALL
        SELECT NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, NULL, NULL, NULL) p
 ORDER BY p.kind, p.topic, p.namespace;

COMMENT ON VIEW outbox.policies IS
    'What holds for each topic with a policy, and, in the row without a topic, for all others.';
COMMENT ON COLUMN outbox.policies.kind IS
    'What has this topic: message, inbox (the topic is the handler_name), timer or job_run.';
COMMENT ON COLUMN outbox.policies.topic IS 'The topic; null for all that are not listed.';
COMMENT ON COLUMN outbox.policies.namespace IS 'The namespace of the topic.';
COMMENT ON COLUMN outbox.policies.paused IS 'No message is handed out while this is true.';
COMMENT ON COLUMN outbox.policies.max_attempts IS 'Deliveries before a message is dead.';
COMMENT ON COLUMN outbox.policies.backoff_base IS 'The delay before the first retry.';
COMMENT ON COLUMN outbox.policies.backoff_max IS 'The longest delay.';
COMMENT ON COLUMN outbox.policies.backoff_jitter IS
    'Whether the delay is drawn between half and all of it.';
COMMENT ON COLUMN outbox.policies.retention IS
    'How long done messages are kept; received ones are not, unless a policy says so.';
COMMENT ON COLUMN outbox.policies.dead_retention IS 'How long dead messages are kept.';
COMMENT ON COLUMN outbox.policies.check_dedupe_tenant IS
    'Whether a tenant''s dedupe keys must begin with the tenant.';
