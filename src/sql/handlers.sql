-- handlers.sql: topics that are served inside the database. Serves sql_handler.c,
-- and handler.c, which knows the columns by their numbers.

CREATE TABLE outbox.handlers (
    namespace     text    NOT NULL,
    topic         text    NOT NULL,
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
    CONSTRAINT handlers_pkey PRIMARY KEY (namespace, topic),
    CONSTRAINT outbox_handlers_names CHECK (
        char_length(namespace) BETWEEN 1 AND 255
        AND char_length(topic) BETWEEN 1 AND 255
    ),
    CONSTRAINT outbox_handlers_limits CHECK (
        batch_size BETWEEN 1 AND 10000
        AND lease_seconds BETWEEN 1 AND 86400
        AND timeout_ms BETWEEN 1 AND 86400000
    )
);

COMMENT ON TABLE outbox.handlers IS 'Topics that are served by functions in the database.';
COMMENT ON COLUMN outbox.handlers.namespace IS 'The namespace of the topic.';
COMMENT ON COLUMN outbox.handlers.topic IS 'The topic.';
COMMENT ON COLUMN outbox.handlers.handler IS 'The function, with its argument type.';
COMMENT ON COLUMN outbox.handlers.role IS
    'The role that has registered it, with whose rights it runs.';
COMMENT ON COLUMN outbox.handlers.batch_size IS 'How many messages are taken at a time.';
COMMENT ON COLUMN outbox.handlers.lease_seconds IS 'How long they may take together.';
COMMENT ON COLUMN outbox.handlers.timeout_ms IS
    'How long one may take, in milliseconds; null: as outbox.handler_timeout says.';
COMMENT ON COLUMN outbox.handlers.owner IS 'The owner of the function.';
COMMENT ON COLUMN outbox.handlers.function_oid IS 'The function, by its OID in home.';
COMMENT ON COLUMN outbox.handlers.role_oid IS 'The role, by its OID in home.';
COMMENT ON COLUMN outbox.handlers.owner_oid IS 'The owner, by its OID in home.';
COMMENT ON COLUMN outbox.handlers.home IS
    'The database in which the OIDs mean something; elsewhere the names are looked up once.';

CREATE TRIGGER outbox_handlers_changed
    AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.handlers
    FOR EACH STATEMENT EXECUTE FUNCTION outbox._topics_changed();

ALTER TABLE outbox.handlers ENABLE ALWAYS TRIGGER outbox_handlers_changed;

COMMENT ON TRIGGER outbox_handlers_changed ON outbox.handlers IS
    'Has every session read the handlers again.';

-- register_handler(topic, handler, namespace, batch_size, lease_seconds, timeout)
--     From now on a background worker calls the function for each message of
--     the topic, with the rights of the role that calls this. A call that takes
--     longer than timeout (outbox.handler_timeout) is cancelled, and has failed.
CREATE FUNCTION outbox.register_handler(
    topic         text,
    handler       regprocedure,
    namespace     text     DEFAULT 'default',
    batch_size    integer  DEFAULT NULL,
    lease_seconds integer  DEFAULT NULL,
    timeout       interval DEFAULT NULL
)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_register_handler';

COMMENT ON FUNCTION
    outbox.register_handler(text, regprocedure, text, integer, integer, interval) IS
    'Has a topic''s messages handled by a function, with the rights of the caller.';

-- unregister_handler(topic, namespace)
--     Ends register_handler; the topic's messages are for other workers again.
--     Only a superuser or a member of the role that registered the handler may
--     do this. Raises 42704 if the topic has no handler.
CREATE FUNCTION outbox.unregister_handler(
    topic     text,
    namespace text DEFAULT 'default'
)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_unregister_handler';

COMMENT ON FUNCTION outbox.unregister_handler(text, text) IS
    'Leaves a topic''s messages to workers outside the database again.';

-- _start_handlers()
--     Runs the handlers of all roles whose rights the caller has, in background
--     processes that are connected as these roles, until nothing is left or five
--     seconds are over, and waits for them. Needs no preloading, but room for
--     background processes (53000). Refuses to run in a transaction that has
--     written something (25001). Returns the number of messages handled.
CREATE FUNCTION outbox._start_handlers()
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_start_handlers';

COMMENT ON FUNCTION outbox._start_handlers() IS
    'Runs handlers in background processes, and waits for them.';

-- _handler_problems()
--     Returns the handlers that cannot be called, and why.
CREATE FUNCTION outbox._handler_problems(
    OUT namespace text,
    OUT topic     text,
    OUT handler   text,
    OUT role      name,
    OUT problem   text
)
RETURNS SETOF record
LANGUAGE c STABLE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_handler_problems';

COMMENT ON FUNCTION outbox._handler_problems() IS
    'The handlers that cannot be called.';

-- _worker_troubles()
--     Returns the parts of the workers' rounds that fail in this database, since
--     when, how often in a row, and when they are tried again; of a handler, its
--     namespace and topic, too.
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
    'What the workers of this database cannot do.';

-- _worker_status(preloaded)
--     Returns the rows of status() about workers and handlers: one in any case,
--     and one for each thing that they cannot do.
CREATE FUNCTION outbox._worker_status(preloaded boolean)
RETURNS TABLE (component text, ok boolean, status text, detail text, hint text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    workers record;
BEGIN
    SELECT * INTO workers FROM outbox._workers();
    component := 'workers';
    ok := preloaded AND workers.launcher AND workers.serves
          AND NOT workers.no_slots AND NOT workers.no_posts AND workers.failing_here = 0;
    status := CASE WHEN NOT preloaded THEN 'none'
                   WHEN NOT workers.launcher THEN 'no launcher'
                   ELSE format('%s running', workers.running) END;
    detail := CASE WHEN workers.launcher THEN
                  format('serves this database: %s; waiting for a worker: %s; failing: %s',
                         CASE WHEN workers.serves THEN 'yes' ELSE 'no' END,
                         workers.waiting, workers.failing) END;
    hint := CASE WHEN NOT preloaded THEN
                     'Preload the library, or CALL outbox.maintain() regularly: '
                     'outbox.schedule_maintenance().'
                 WHEN workers.no_slots THEN
                     'The server has no room for a worker: raise max_worker_processes.'
                 WHEN workers.no_posts THEN
                     'There are too many databases and roles with handlers: name the databases '
                     'that have the extension in outbox.databases.'
                 WHEN workers.launcher AND NOT workers.serves THEN
                     'Is the database in outbox.databases, no template, and open to connections?'
                 WHEN NOT ok THEN
                     'See the server log; is max_worker_processes large enough?' END;
    RETURN NEXT;
    RETURN QUERY
        SELECT concat_ws(' of ', 'worker: ' || t.part, t.topic),
               false, 'failing',
               format('%s times in a row since %s, SQLSTATE %s; next try at %s',
                      t.failures, date_trunc('second', t.since), t.sqlstate,
                      date_trunc('second', t.next_try)),
               'The server log says why; everything else goes on.'
          FROM outbox._worker_troubles() t
         ORDER BY t.since;
    RETURN QUERY
        SELECT format('handler of %s/%s', p.namespace, p.topic), false, 'cannot be called',
               format('%s, registered by %s, %s', p.handler, p.role, p.problem),
               'Put that right, or call outbox.unregister_handler, and '
               'outbox.register_handler again. Its messages wait.'
          FROM outbox._handler_problems() p
         ORDER BY p.namespace, p.topic;
END
$$;

COMMENT ON FUNCTION outbox._worker_status(boolean) IS
    'The rows of status() about workers and handlers.';
