-- handlers.sql: functions in the database that handle messages of topics and
-- subscriptions. Serves sql_handler.c, and handler.c, which knows the columns by
-- their numbers.

CREATE TABLE outbox.handlers (
    namespace     text    NOT NULL,
    topic         text    NOT NULL,
    subscription  text    NOT NULL DEFAULT '',
    handler       text    NOT NULL,
    role          name    NOT NULL,
    batch_size    integer NOT NULL,
    lease_seconds integer NOT NULL,
    timeout_ms    integer,
    owner         name    NOT NULL,
    function_oid  oid     NOT NULL,
    role_oid      oid     NOT NULL,
    owner_oid     oid     NOT NULL,
    home          text    NOT NULL,
    CONSTRAINT handlers_pkey PRIMARY KEY (namespace, topic, subscription),
    CONSTRAINT outbox_handlers_names CHECK (
        char_length(namespace) BETWEEN 1 AND 255
        AND char_length(topic) BETWEEN 1 AND 255
        AND char_length(subscription) <= 255
    ),
    CONSTRAINT outbox_handlers_limits CHECK (
        batch_size BETWEEN 1 AND 10000
        AND lease_seconds BETWEEN 1 AND 86400
        AND timeout_ms BETWEEN 1 AND 86400000
    )
);

COMMENT ON TABLE outbox.handlers IS
    'Topics and subscriptions whose messages are handled by functions in the database.';
COMMENT ON COLUMN outbox.handlers.namespace IS 'The namespace of the topic or subscription.';
COMMENT ON COLUMN outbox.handlers.topic IS
    'The topic; for a subscription, the pattern with which the handler was registered.';
COMMENT ON COLUMN outbox.handlers.subscription IS
    'The subscription; empty if the handler is for messages enqueued in the topic.';
COMMENT ON COLUMN outbox.handlers.handler IS 'The function, with its argument type.';
COMMENT ON COLUMN outbox.handlers.role IS
    'The role that registered it; it runs with the privileges of this role.';
COMMENT ON COLUMN outbox.handlers.batch_size IS 'How many messages are claimed at a time.';
COMMENT ON COLUMN outbox.handlers.lease_seconds IS
    'The duration of the lease, for all of them together.';
COMMENT ON COLUMN outbox.handlers.timeout_ms IS
    'The timeout for one message, in milliseconds; null: as set by outbox.handler_timeout.';
COMMENT ON COLUMN outbox.handlers.owner IS 'The owner of the function.';
COMMENT ON COLUMN outbox.handlers.function_oid IS 'The OID of the function in home.';
COMMENT ON COLUMN outbox.handlers.role_oid IS 'The OID of the role in home.';
COMMENT ON COLUMN outbox.handlers.owner_oid IS 'The OID of the owner in home.';
COMMENT ON COLUMN outbox.handlers.home IS
    'The database in which the OIDs are valid; elsewhere the names are looked up once.';

CREATE TRIGGER outbox_handlers_changed
    AFTER INSERT OR UPDATE OR DELETE ON outbox.handlers
    FOR EACH ROW EXECUTE FUNCTION outbox._topics_changed();

CREATE TRIGGER outbox_handlers_truncated
    AFTER TRUNCATE ON outbox.handlers
    FOR EACH STATEMENT EXECUTE FUNCTION outbox._topics_changed();

ALTER TABLE outbox.handlers ENABLE ALWAYS TRIGGER outbox_handlers_changed;
ALTER TABLE outbox.handlers ENABLE ALWAYS TRIGGER outbox_handlers_truncated;

COMMENT ON TRIGGER outbox_handlers_changed ON outbox.handlers IS
    'Makes every session read the handlers again.';
COMMENT ON TRIGGER outbox_handlers_truncated ON outbox.handlers IS
    'Makes every session read the handlers again.';

-- register_handler(topic, handler, namespace, batch_size, lease_seconds, timeout,
--                  subscription)
--     Makes a background worker call the function for each message of the topic, with
--     the privileges of the role that calls this. A call that takes longer than
--     timeout (outbox.handler_timeout) is cancelled, and has failed. With a
--     subscription the function is called for what is published in topics that match
--     the pattern "topic": the subscription is created, or its topics are replaced by
--     this pattern, which requires EXECUTE on subscribe unless it has exactly this
--     pattern already. Its existing messages are handled, too.
CREATE FUNCTION outbox.register_handler(
    topic         text,
    handler       regprocedure,
    namespace     text     DEFAULT 'default',
    batch_size    integer  DEFAULT NULL,
    lease_seconds integer  DEFAULT NULL,
    timeout       interval DEFAULT NULL,
    subscription  text     DEFAULT NULL
)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_register_handler';

COMMENT ON FUNCTION
    outbox.register_handler(text, regprocedure, text, integer, integer, interval, text) IS
    'Makes a worker call a function for messages, with the privileges of the caller.';

-- unregister_handler(topic, namespace, subscription)
--     Undoes register_handler, so that other workers can claim the topic's messages
--     again. Only a superuser or a member of the role that registered the handler may
--     do this. Raises 42704 if the topic has no handler. For a subscription, the
--     topic is the pattern of the registration, or null. The subscription itself
--     stays, and its messages wait for claims that name it; unsubscribe removes both.
CREATE FUNCTION outbox.unregister_handler(
    topic        text,
    namespace    text DEFAULT 'default',
    subscription text DEFAULT NULL
)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_unregister_handler';

COMMENT ON FUNCTION outbox.unregister_handler(text, text, text) IS
    'Removes the handler of a topic or subscription.';

-- _start_handlers()
--     Runs the handlers of all roles whose privileges the caller has, in background
--     processes that are connected as these roles, until nothing is left or five
--     seconds have passed, and waits for them. Does not need preloading, but free
--     slots for background processes (53000). Refuses to run in a transaction that
--     has written something (25001). Returns the number of messages handled.
CREATE FUNCTION outbox._start_handlers()
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_start_handlers';

COMMENT ON FUNCTION outbox._start_handlers() IS
    'Runs handlers in background processes, and waits for them.';

-- _handler_problems()
--     Returns the handlers that cannot be called, and the reasons.
CREATE FUNCTION outbox._handler_problems(
    OUT namespace    text,
    OUT topic        text,
    OUT handler      text,
    OUT role         name,
    OUT problem      text,
    OUT subscription text
)
RETURNS SETOF record
LANGUAGE c STABLE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_handler_problems';

COMMENT ON FUNCTION outbox._handler_problems() IS
    'The handlers that cannot be called.';

-- _worker_troubles()
--     Returns the parts of the workers' rounds that fail in this database, since
--     when, how often in a row, and the time of the next retry; for a handler, also
--     its namespace and topic or subscription.
CREATE FUNCTION outbox._worker_troubles(
    OUT part     text,
    OUT failures integer,
    OUT sqlstate text,
    OUT since    timestamptz,
    OUT next_try timestamptz,
    OUT topic    text
)
RETURNS SETOF record
LANGUAGE c STABLE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'outbox_worker_troubles';

COMMENT ON FUNCTION outbox._worker_troubles() IS
    'The parts of the workers'' rounds that fail in this database.';

-- _posts()
--     Returns the posts of this database: places where a worker may be needed. One
--     has no role, that of the extension's own work; the others are of the roles with
--     handlers. Failures are those of workers that have ended with an error, or could
--     not start, in a row; the next is started at the time "due", or when the post is
--     called, as soon as there is room for a worker.
CREATE FUNCTION outbox._posts(
    OUT role_oid oid,
    OUT running  boolean,
    OUT failures integer,
    OUT due      timestamptz,
    OUT called   boolean
)
RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_posts_sql';

COMMENT ON FUNCTION outbox._posts() IS
    'The places in this database where a worker may be needed.';

-- _why_no_worker(role)
--     Returns what keeps a worker from connecting to this database, as far as the
--     catalogs know; for the handlers of a role, or for the extension's own work.
CREATE FUNCTION outbox._why_no_worker(role regrole DEFAULT NULL)
RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT nullif(concat_ws(
               '; ',
               (SELECT CASE WHEN NOT d.datallowconn THEN
                           'the database does not allow connections: ALTER DATABASE ... '
                           'ALLOW_CONNECTIONS true'
                            WHEN d.datistemplate THEN
                           'the database is a template: ALTER DATABASE ... IS_TEMPLATE false' END
                  FROM pg_database d
                 WHERE d.datname = current_database()),
               (SELECT 'outbox.databases does not name the database'
                 WHERE current_setting('outbox.databases', true) <> '*'
                   AND current_database() NOT IN (
                           SELECT trim(BOTH ' "' FROM n)
                             FROM string_to_table(current_setting('outbox.databases'), ',') n)),
               (SELECT format('role %I has no privilege to connect to the database', r.rolname)
                  FROM pg_roles r
                 WHERE r.oid = role
                   AND NOT has_database_privilege(r.oid, current_database(), 'CONNECT'))), '')
$$;

COMMENT ON FUNCTION outbox._why_no_worker(regrole) IS
    'What keeps a worker from connecting to this database.';

-- _worker_status(preloaded)
--     Returns the rows of status() about workers and handlers: one in any case, and
--     one for each part that fails, and each post whose worker ends with errors.
CREATE FUNCTION outbox._worker_status(preloaded boolean)
RETURNS TABLE (component text, ok boolean, status text, detail text, hint text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    workers record;
    is_off  boolean := NOT current_setting('outbox.workers')::boolean;
    silence interval := outbox._worker_silence();
BEGIN
    SELECT * INTO workers FROM outbox._workers();
    component := 'workers';
    ok := preloaded AND workers.launcher AND workers.serves AND NOT is_off
          AND NOT workers.no_slots AND NOT workers.no_posts AND workers.failing_here = 0
          AND silence < interval '5 minutes';
    status := CASE WHEN NOT preloaded THEN 'none'
                   WHEN NOT workers.launcher THEN 'no launcher'
                   WHEN is_off THEN 'off'
                   ELSE format('%s running', workers.running) END;
    detail := nullif(concat_ws(
        '; ',
        CASE WHEN workers.launcher THEN
            format('serves this database: %s; waiting for a worker: %s; failing: %s',
                   CASE WHEN workers.serves THEN 'yes' ELSE 'no' END,
                   workers.waiting, workers.failing) END,
        CASE WHEN workers.launcher AND NOT workers.serves THEN outbox._why_no_worker() END,
        CASE WHEN silence >= interval '5 minutes' THEN
            format('%s for %s', CASE WHEN preloaded THEN 'no round has been finished here'
                                     ELSE 'no maintenance has taken a sample here' END,
                   date_trunc('second', silence)) END), '');
    hint := CASE WHEN ok THEN NULL
                 WHEN NOT preloaded THEN
                     'Preload the library, or CALL outbox.maintain() regularly: '
                     'outbox.schedule_maintenance().'
                 WHEN workers.no_slots THEN
                     'The server has no free slot for a worker: increase max_worker_processes.'
                 WHEN workers.no_posts THEN
                     'There are too many databases and roles with handlers: name the databases '
                     'that have the extension in outbox.databases.'
                 WHEN workers.launcher AND NOT workers.serves THEN
                     'Is the database in outbox.databases, no template, and open to connections?'
                 WHEN is_off THEN
                     'outbox.workers is off: ALTER DATABASE ... RESET outbox.workers.'
                 WHEN NOT workers.launcher THEN
                     'Workers are started by the launcher: see the server log, and check '
                     'max_worker_processes. A standby has none.'
                 WHEN workers.failing_here = 0 AND workers.waiting > 0 THEN
                     'All workers are busy: increase outbox.max_workers, or end what keeps '
                     'them busy.'
                 WHEN workers.failing_here = 0 THEN
                     'The worker hangs: see its row of pg_stat_activity, and '
                     'pg_blocking_pids(pid). After pg_terminate_backend(pid) another one starts.'
                 ELSE 'See the server log, and check max_worker_processes.' END;
    RETURN NEXT;
    RETURN QUERY
        SELECT CASE WHEN p.role_oid IS NULL THEN 'worker of the database'
                    ELSE format('worker of role %s', p.role_oid::regrole) END,
               false, 'cannot run',
               format('has ended with an error %s times in a row; the next one starts at %s',
                      p.failures, date_trunc('second', p.due)),
               coalesce(upper(left(w.why, 1)) || right(w.why, -1) || '.',
                        'The server log has the reason.')
          FROM outbox._posts() p
         CROSS JOIN LATERAL outbox._why_no_worker(p.role_oid::regrole) w(why)
         WHERE p.failures > 1
         ORDER BY p.role_oid NULLS FIRST;
    RETURN QUERY
        SELECT concat_ws(' of ', 'worker: ' || t.part, t.topic),
               false, 'failing',
               format('%s times in a row since %s, SQLSTATE %s; next try at %s',
                      t.failures, date_trunc('second', t.since), t.sqlstate,
                      date_trunc('second', t.next_try)),
               'The server log has the reason. Other work goes on.'
          FROM outbox._worker_troubles() t
         ORDER BY t.since;
    RETURN QUERY
        SELECT CASE WHEN p.subscription IS NULL
                    THEN format('handler of %s/%s', p.namespace, p.topic)
                    ELSE format('handler of subscription %s/%s', p.namespace, p.subscription)
                END,
               false, 'cannot be called',
               format('%s, registered by %s, %s', p.handler, p.role, p.problem),
               'Fix the problem, or call outbox.unregister_handler and then '
               'outbox.register_handler. Its messages wait.'
          FROM outbox._handler_problems() p
         ORDER BY p.namespace, p.topic, p.subscription;
END
$$;

COMMENT ON FUNCTION outbox._worker_status(boolean) IS
    'The rows of status() about workers and handlers.';
