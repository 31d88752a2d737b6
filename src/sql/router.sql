-- router.sql: which of several databases is responsible for a key. Serves
-- sql_router.c, and router.c, which knows the columns by their numbers.
--
-- A store is a database, here or elsewhere; the extension never connects to it.
-- Routes refer to stores without a foreign key: pg_restore -j loads the tables in any
-- order. Instead, functions that map a key to a store lock the store's row FOR KEY
-- SHARE, which conflicts only with drop_store.

CREATE TABLE outbox.store_connections (
    store      text COLLATE "C" NOT NULL,
    connection text             NOT NULL,
    created_at timestamptz      NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT store_connections_pkey PRIMARY KEY (store)
);

COMMENT ON TABLE outbox.store_connections IS
    'The stores of the router, with their connections, which are secret.';
COMMENT ON COLUMN outbox.store_connections.store IS 'The name of the store.';
COMMENT ON COLUMN outbox.store_connections.connection IS
    'The connection, as passed to register_store.';
COMMENT ON COLUMN outbox.store_connections.created_at IS 'When it was registered.';

CREATE TABLE outbox.routes (
    routing_key text COLLATE "C" NOT NULL,
    store       text COLLATE "C" NOT NULL,
    created_at  timestamptz      NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT routes_pkey PRIMARY KEY (routing_key)
);

CREATE INDEX routes_store_idx ON outbox.routes (store);

COMMENT ON TABLE outbox.routes IS 'The keys that are mapped to a store.';
COMMENT ON COLUMN outbox.routes.routing_key IS 'The key; for a UUID, its text form in lower case.';
COMMENT ON COLUMN outbox.routes.store IS 'The store that is responsible for it.';
COMMENT ON COLUMN outbox.routes.created_at IS 'When it was mapped.';
COMMENT ON INDEX outbox.routes_store_idx IS 'Finds the keys of a store.';

CREATE TABLE outbox.default_route (
    only_row boolean NOT NULL DEFAULT true,
    rule     text    NOT NULL,
    CONSTRAINT default_route_pkey PRIMARY KEY (only_row),
    CONSTRAINT outbox_default_route_only_row CHECK (only_row),
    CONSTRAINT outbox_default_route_rule CHECK (rule = 'hash' OR rule LIKE 'store:_%')
);

COMMENT ON TABLE outbox.default_route IS 'The rule for keys that are not mapped: at most one row.';
COMMENT ON COLUMN outbox.default_route.only_row IS 'Always true, so that there is at most one row.';
COMMENT ON COLUMN outbox.default_route.rule IS
    'hash: a consistent hash over all stores; store:NAME: that one.';

-- _routes_changed()
--     AFTER INSERT, UPDATE and DELETE on each of these tables. Makes every session
--     look up routes again.
CREATE FUNCTION outbox._routes_changed()
RETURNS trigger
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_routes_changed';

COMMENT ON FUNCTION outbox._routes_changed() IS 'Makes every session look up routes again.';

CREATE TRIGGER outbox_store_connections_changed
    AFTER INSERT OR UPDATE OR DELETE ON outbox.store_connections
    FOR EACH ROW EXECUTE FUNCTION outbox._routes_changed();

CREATE TRIGGER outbox_routes_changed
    AFTER INSERT OR UPDATE OR DELETE ON outbox.routes
    FOR EACH ROW EXECUTE FUNCTION outbox._routes_changed();

CREATE TRIGGER outbox_default_route_changed
    AFTER INSERT OR UPDATE OR DELETE ON outbox.default_route
    FOR EACH ROW EXECUTE FUNCTION outbox._routes_changed();

-- Replication that applies changes fires row triggers that are ALWAYS enabled.
ALTER TABLE outbox.store_connections ENABLE ALWAYS TRIGGER outbox_store_connections_changed;
ALTER TABLE outbox.routes ENABLE ALWAYS TRIGGER outbox_routes_changed;
ALTER TABLE outbox.default_route ENABLE ALWAYS TRIGGER outbox_default_route_changed;

COMMENT ON TRIGGER outbox_store_connections_changed ON outbox.store_connections IS
    'Makes every session look up routes again.';
COMMENT ON TRIGGER outbox_routes_changed ON outbox.routes IS
    'Makes every session look up routes again.';
COMMENT ON TRIGGER outbox_default_route_changed ON outbox.default_route IS
    'Makes every session look up routes again.';

-- _store_is_used(store)
--     Returns whether a key is mapped to the store, or it is the default, as of now,
--     whatever the isolation level.
CREATE FUNCTION outbox._store_is_used(store text)
RETURNS boolean
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_store_is_used';

COMMENT ON FUNCTION outbox._store_is_used(text) IS
    'Whether a key is mapped to this store, or it is the default.';

-- _check_connection(connection)
--     Raises 22004 or 22023 for an invalid connection. Error messages do not contain
--     its text.
CREATE FUNCTION outbox._check_connection(connection text)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._require('connection', connection);
    IF char_length(connection) NOT BETWEEN 1 AND 4096 THEN
        RAISE EXCEPTION 'connection must have 1 to 4096 characters'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._check_connection(text) IS
    'Raises an error if a connection is null, empty or too long.';

-- _hold_store(store)
--     Keeps the store from being dropped until the end of the transaction. Raises
--     42704 if it is not registered.
CREATE FUNCTION outbox._hold_store(store text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM outbox.store_connections s
      WHERE s.store = _hold_store.store
        FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'store "%" is not registered', _hold_store.store
            USING ERRCODE = 'undefined_object', HINT = 'Call outbox.register_store first.';
    END IF;
END
$$;

COMMENT ON FUNCTION outbox._hold_store(text) IS
    'Keeps a store from being dropped until the end of the transaction.';

-- register_store(store, connection)
--     Registers a store. The extension does not use the connection; it only stores it
--     for roles that may read it.
CREATE FUNCTION outbox.register_store(
    store      text,
    connection text
)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._writes('outbox.register_store()');
    PERFORM outbox._check_name('store', register_store.store);
    PERFORM outbox._check_connection(register_store.connection);
    INSERT INTO outbox.store_connections (store, connection)
    VALUES (register_store.store, register_store.connection)
    ON CONFLICT ON CONSTRAINT store_connections_pkey DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'store "%" is already registered', register_store.store
            USING ERRCODE = 'duplicate_object',
                  HINT = 'Call outbox.set_store_connection to change its connection.';
    END IF;
END
$$;

COMMENT ON FUNCTION outbox.register_store(text, text) IS 'Registers a store with the router.';

-- set_store_connection(store, connection)
--     Changes the connection of a store, for example its password or host.
CREATE FUNCTION outbox.set_store_connection(
    store      text,
    connection text
)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._writes('outbox.set_store_connection()');
    PERFORM outbox._check_name('store', set_store_connection.store);
    PERFORM outbox._check_connection(set_store_connection.connection);
    UPDATE outbox.store_connections s
       SET connection = set_store_connection.connection
     WHERE s.store = set_store_connection.store;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'store "%" is not registered', set_store_connection.store
            USING ERRCODE = 'undefined_object', HINT = 'Call outbox.register_store first.';
    END IF;
END
$$;

COMMENT ON FUNCTION outbox.set_store_connection(text, text) IS
    'Changes the connection of a store.';

-- drop_store(store)
--     Removes a store to which no key is mapped, and which is not the default. Waits
--     for transactions that are mapping keys to it. With the default "hash", the
--     store's share of the keys goes to the other stores.
CREATE FUNCTION outbox.drop_store(store text)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._writes('outbox.drop_store()');
    PERFORM outbox._check_name('store', drop_store.store);
    DELETE FROM outbox.store_connections s
     WHERE s.store = drop_store.store;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'store "%" is not registered', drop_store.store
            USING ERRCODE = 'undefined_object';
    END IF;
    IF outbox._store_is_used(drop_store.store) THEN
        RAISE EXCEPTION 'store "%" cannot be dropped, because it is in use', drop_store.store
            USING ERRCODE = 'dependent_objects_still_exist',
                  DETAIL = 'Keys are mapped to it, or it is the default.',
                  HINT = 'Call outbox.unmap_route for its keys in outbox.routes,'
                         || ' and outbox.set_default_route.';
    END IF;
END
$$;

COMMENT ON FUNCTION outbox.drop_store(text) IS 'Removes a store that is not in use.';

-- map_route(routing_key, store)
--     Makes the store responsible for the key.
CREATE FUNCTION outbox.map_route(
    routing_key text,
    store       text
)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._writes('outbox.map_route()');
    PERFORM outbox._check_name('routing_key', map_route.routing_key);
    PERFORM outbox._check_name('store', map_route.store);
    PERFORM outbox._hold_store(map_route.store);
    INSERT INTO outbox.routes (routing_key, store)
    VALUES (map_route.routing_key, map_route.store)
    ON CONFLICT ON CONSTRAINT routes_pkey DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'routing key "%" is already mapped', map_route.routing_key
            USING ERRCODE = 'duplicate_object',
                  HINT = 'Call outbox.unmap_route first.';
    END IF;
END
$$;

COMMENT ON FUNCTION outbox.map_route(text, text) IS 'Maps a key to a store.';

-- map_route(routing_key, store)
--     The same for a UUID.
CREATE FUNCTION outbox.map_route(
    routing_key uuid,
    store       text
)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT outbox.map_route(routing_key::text, store) $$;

COMMENT ON FUNCTION outbox.map_route(uuid, text) IS 'Maps a UUID to a store.';

-- unmap_route(routing_key)
--     Removes the mapping of a key, so that the default applies to it again. True if
--     it was mapped.
CREATE FUNCTION outbox.unmap_route(routing_key text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._writes('outbox.unmap_route()');
    PERFORM outbox._check_name('routing_key', unmap_route.routing_key);
    DELETE FROM outbox.routes r
     WHERE r.routing_key = unmap_route.routing_key;
    RETURN FOUND;
END
$$;

COMMENT ON FUNCTION outbox.unmap_route(text) IS
    'Removes the mapping of a key; false if there was none.';

-- unmap_route(routing_key)
--     The same for a UUID.
CREATE FUNCTION outbox.unmap_route(routing_key uuid)
RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT outbox.unmap_route(routing_key::text) $$;

COMMENT ON FUNCTION outbox.unmap_route(uuid) IS
    'Removes the mapping of a UUID; false if there was none.';

-- set_default_route(rule)
--     Sets the rule for keys that are not mapped: null, no store; hash, a consistent
--     hash over all stores; store:NAME, that store.
CREATE FUNCTION outbox.set_default_route(rule text)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox._writes('outbox.set_default_route()');
    IF rule IS NULL THEN
        DELETE FROM outbox.default_route;
        RETURN;
    END IF;
    IF rule LIKE 'store:%' THEN
        PERFORM outbox._check_name('the name of the store', substr(rule, 7));
        PERFORM outbox._hold_store(substr(rule, 7));
    ELSIF rule <> 'hash' THEN
        RAISE EXCEPTION 'rule must be null, "hash", or "store:" and the name of a store'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO outbox.default_route AS d (rule)
    VALUES (set_default_route.rule)
    ON CONFLICT ON CONSTRAINT default_route_pkey DO UPDATE
        SET rule = excluded.rule;
END
$$;

COMMENT ON FUNCTION outbox.set_default_route(text) IS 'Sets the rule for keys that are not mapped.';

-- route_store(routing_key)
--     Returns the store that is responsible for the key. Raises 42704 if it is
--     not mapped and there is no default.
CREATE FUNCTION outbox.route_store(routing_key text)
RETURNS text
LANGUAGE c STABLE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_route_store';

COMMENT ON FUNCTION outbox.route_store(text) IS 'The store that is responsible for a key.';

-- route_store(routing_key)
--     The same for a UUID, whose key is its text form in lower case.
CREATE FUNCTION outbox.route_store(routing_key uuid)
RETURNS text
LANGUAGE c STABLE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_route_store_uuid';

COMMENT ON FUNCTION outbox.route_store(uuid) IS 'The store that is responsible for a UUID.';

-- The connection is shown only to roles that can read the table itself.
CREATE VIEW outbox.stores AS
SELECT s.store,
       coalesce(d.rule = 'store:' || s.store, false) AS is_default,
       (SELECT count(*) FROM outbox.routes r WHERE r.store = s.store) AS routes,
       s.created_at,
       CASE WHEN has_table_privilege('outbox.store_connections'::regclass, 'SELECT')
            THEN s.connection END AS connection
  FROM outbox.store_connections s
  LEFT JOIN outbox.default_route d ON true;

COMMENT ON VIEW outbox.stores IS 'The stores of the router.';
COMMENT ON COLUMN outbox.stores.store IS 'The name of the store.';
COMMENT ON COLUMN outbox.stores.is_default IS
    'Whether it is responsible for keys that are not mapped.';
COMMENT ON COLUMN outbox.stores.routes IS 'How many keys are mapped to it.';
COMMENT ON COLUMN outbox.stores.created_at IS 'When it was registered.';
COMMENT ON COLUMN outbox.stores.connection IS
    'The connection; null for roles that cannot read outbox.store_connections.';
