-- handlers.sql: topics that are served inside the database. Serves sql_handler.c,
-- and handler.c, which knows the columns by their numbers.

CREATE TABLE outbox.handlers (
    namespace     text    NOT NULL,
    topic         text    NOT NULL,
    handler       text    NOT NULL,
    role          name    NOT NULL,
    batch_size    integer NOT NULL,
    lease_seconds integer NOT NULL,
    CONSTRAINT handlers_pkey PRIMARY KEY (namespace, topic),
    CONSTRAINT outbox_handlers_names CHECK (
        char_length(namespace) BETWEEN 1 AND 255
        AND char_length(topic) BETWEEN 1 AND 255
    ),
    CONSTRAINT outbox_handlers_limits CHECK (
        batch_size BETWEEN 1 AND 10000 AND lease_seconds BETWEEN 1 AND 86400
    )
);

COMMENT ON TABLE outbox.handlers IS 'Topics that are served by functions in the database.';
COMMENT ON COLUMN outbox.handlers.namespace IS 'The namespace of the topic.';
COMMENT ON COLUMN outbox.handlers.topic IS 'The topic.';
COMMENT ON COLUMN outbox.handlers.handler IS 'The function, with its argument type.';
COMMENT ON COLUMN outbox.handlers.role IS 'Who has registered it; it runs with his rights.';
COMMENT ON COLUMN outbox.handlers.batch_size IS 'How many messages are taken at a time.';
COMMENT ON COLUMN outbox.handlers.lease_seconds IS 'How long they may take together.';

CREATE TRIGGER outbox_handlers_changed
    AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.handlers
    FOR EACH STATEMENT EXECUTE FUNCTION outbox._topics_changed();

ALTER TABLE outbox.handlers ENABLE ALWAYS TRIGGER outbox_handlers_changed;

COMMENT ON TRIGGER outbox_handlers_changed ON outbox.handlers IS
    'Has every session read the handlers anew.';

-- register_handler(topic, handler, namespace, batch_size, lease_seconds)
--     From now on a background worker calls the function for each message of
--     the topic, with the rights of the role that calls this.
CREATE FUNCTION outbox.register_handler(
    topic         text,
    handler       regprocedure,
    namespace     text    DEFAULT 'default',
    batch_size    integer DEFAULT NULL,
    lease_seconds integer DEFAULT NULL
)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_register_handler';

COMMENT ON FUNCTION outbox.register_handler(text, regprocedure, text, integer, integer) IS
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

-- _run_handlers()
--     Runs one batch of each handler whose role the caller is a member of, with
--     the rights of that role. Returns the number of messages handled.
CREATE FUNCTION outbox._run_handlers()
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_run_handlers';

COMMENT ON FUNCTION outbox._run_handlers() IS
    'One round of all handlers, in this transaction.';
