-- the router: which store is responsible for a key
SET client_min_messages = warning;
CREATE ROLE ob_router_app;
CREATE ROLE ob_router_monitor;
CREATE ROLE ob_router_admin;
SELECT outbox.grant_producer('ob_router_app'), outbox.grant_worker('ob_router_app'),
       outbox.grant_monitor('ob_router_monitor'), outbox.grant_admin('ob_router_admin');
RESET client_min_messages;
\set u '''6c1d4f0e-5a8e-4d61-9f0c-0f5f6a1f2a11'''

-- null: only what is mapped
SELECT outbox.route_store('nobody');
SELECT outbox.register_store('eu', 'host=eu password=secret');
SELECT outbox.register_store('us', 'service=us');
SELECT outbox.map_route('alpha', 'eu'), outbox.map_route('beta', 'us'), outbox.map_route(:u::uuid, 'us');
SELECT outbox.route_store('alpha'), outbox.route_store('beta');
-- a UUID's key is its spelling in lower case
SELECT outbox.route_store(:u), outbox.route_store(:u::uuid), outbox.route_store(upper(:u)::uuid);
SELECT outbox.route_store(upper(:u));
-- keys differ in case, and in spaces
SELECT outbox.route_store('Alpha');
SELECT outbox.route_store('alpha ');
SELECT store, is_default, routes, connection FROM outbox.stores ORDER BY store;
-- drivers give parameters no types
PREPARE route AS SELECT outbox.route_store($1);
EXECUTE route('alpha');
PREPARE map AS SELECT outbox.map_route($1, $2);
EXECUTE map('gamma', 'eu');
PREPARE unmap AS SELECT outbox.unmap_route($1);
EXECUTE unmap('gamma');
EXECUTE route('gamma');

-- what a transaction has changed is in force for its next call, and gone with it
BEGIN;
SELECT outbox.map_route('delta', 'eu'), outbox.route_store('delta'), outbox.unmap_route('delta');
SAVEPOINT s;
SELECT outbox.unmap_route('alpha'), outbox.map_route('alpha', 'us'), outbox.route_store('alpha');
SELECT outbox.set_default_route('store:eu'), outbox.route_store('delta');
SELECT outbox.register_store('asia', 'a'), outbox.map_route('delta', 'asia'), outbox.route_store('delta');
ROLLBACK TO s;
SELECT outbox.route_store('alpha');
SAVEPOINT s;
SELECT outbox.route_store('delta');
ROLLBACK TO s;
SELECT outbox.unmap_route('beta'), outbox.map_route('beta', 'eu'), outbox.route_store('beta');
ROLLBACK;
SELECT outbox.route_store('alpha'), outbox.route_store('beta');
-- plain SQL works as well
UPDATE outbox.routes SET store = 'us' WHERE routing_key = 'alpha';
SELECT outbox.route_store('alpha');
INSERT INTO outbox.routes VALUES ('epsilon', 'eu');
SELECT outbox.route_store('epsilon');
BEGIN;
TRUNCATE outbox.routes;
SELECT outbox.route_store('epsilon');
ROLLBACK;
SELECT outbox.route_store('epsilon');
DELETE FROM outbox.routes WHERE routing_key = 'epsilon';
SELECT outbox.route_store('epsilon');

-- a store as the default
SELECT outbox.set_default_route('store:eu');
SELECT outbox.route_store('epsilon'), outbox.route_store('alpha');
SELECT store, is_default, routes FROM outbox.stores ORDER BY store;
SELECT outbox.set_default_route('store:us');
SELECT outbox.route_store('epsilon'), outbox.route_store(gen_random_uuid());
-- a name may have colons
SELECT outbox.register_store('store:a:b', 'c'), outbox.set_default_route('store:store:a:b');
SELECT outbox.route_store('epsilon');
SELECT outbox.set_default_route(NULL), outbox.drop_store('store:a:b');
SELECT outbox.route_store('epsilon');

-- what is refused
SELECT outbox.register_store('eu', 'another');
SELECT outbox.map_route('alpha', 'eu');
SELECT outbox.map_route('zeta', 'mars');
SELECT outbox.set_default_route('store:mars');
SELECT outbox.set_store_connection('mars', 'c');
SELECT outbox.drop_store('mars');
SELECT outbox.drop_store('us');
SELECT outbox.set_default_route('store:eu');
SELECT outbox.drop_store('eu');
SELECT outbox.unmap_route('zeta'), outbox.unmap_route(gen_random_uuid());
\set VERBOSITY sqlstate
SELECT outbox.register_store(NULL, 'c');
SELECT outbox.register_store('', 'c');
SELECT outbox.register_store(repeat('x', 256), 'c');
SELECT outbox.register_store('x', NULL);
SELECT outbox.register_store('x', '');
SELECT outbox.register_store('x', repeat('x', 4097));
SELECT outbox.set_store_connection(NULL, 'c');
SELECT outbox.set_store_connection('us', NULL);
SELECT outbox.set_store_connection('us', '');
SELECT outbox.drop_store(NULL);
SELECT outbox.drop_store('');
SELECT outbox.map_route(NULL::text, 'us');
SELECT outbox.map_route(NULL::uuid, 'us');
SELECT outbox.map_route('', 'us');
SELECT outbox.map_route(repeat('x', 256), 'us');
SELECT outbox.map_route('zeta', NULL);
SELECT outbox.map_route('zeta', '');
SELECT outbox.unmap_route(NULL::text);
SELECT outbox.unmap_route(NULL::uuid);
SELECT outbox.unmap_route('');
SELECT outbox.route_store(NULL::text);
SELECT outbox.route_store(NULL::uuid);
SELECT outbox.route_store('');
SELECT outbox.route_store(repeat('x', 256));
SELECT outbox.set_default_route('');
SELECT outbox.set_default_route('HASH');
SELECT outbox.set_default_route('eu');
SELECT outbox.set_default_route('store:');
SELECT outbox.set_default_route('store:' || repeat('x', 256));
INSERT INTO outbox.default_route VALUES (true, 'nonsense');
\set VERBOSITY default
SELECT outbox.map_route(repeat('ä', 255), 'us'), outbox.route_store(repeat('ä', 255)), outbox.unmap_route(repeat('ä', 255));

-- dropping, when nothing leads there
SELECT outbox.set_default_route(NULL), outbox.unmap_route('alpha'), outbox.unmap_route('beta'), outbox.unmap_route(:u::uuid);
SELECT outbox.drop_store('us');
SELECT outbox.set_store_connection('eu', 'host=eu password=changed');
SELECT store, connection FROM outbox.stores;
SELECT outbox.drop_store('eu');

-- a consistent hash: known answers, which must never change
SELECT outbox.set_default_route('hash');
SELECT outbox.route_store('nobody');
SELECT outbox.register_store('s' || i, 'c') FROM generate_series(1, 10) i;
SELECT left(key, 8) AS key, outbox.route_store(key)
  FROM unnest(ARRAY['a', 'tenant 1', 'tenant 2', 'Grüße', '日本', ' ', repeat('x', 255)]) key;
SELECT outbox.route_store(:u), outbox.route_store(:u::uuid);
SELECT md5(string_agg(outbox.route_store('key ' || i), ' ' ORDER BY i)) FROM generate_series(1, 10000) i;
-- every store has its share
SELECT count(*) AS stores, min(n) > 800 AS at_least, max(n) < 1200 AS at_most
  FROM (SELECT count(*) AS n FROM generate_series(1, 10000) i GROUP BY outbox.route_store('key ' || i)) s;
CREATE TEMP TABLE was AS
SELECT 'key ' || i AS key, outbox.route_store('key ' || i) AS store FROM generate_series(1, 10000) i;
-- one more takes its share from the others, and nothing else moves
SELECT outbox.register_store('s0', 'c');
SELECT count(*) BETWEEN 800 AND 1020 AS moved, count(*) FILTER (WHERE outbox.route_store(key) <> 's0') AS elsewhere,
       count(DISTINCT store) AS from_all
  FROM was WHERE outbox.route_store(key) <> store;
-- one less leaves its share to all others
SELECT outbox.drop_store('s0');
SELECT count(*) FROM was WHERE outbox.route_store(key) <> store;
SELECT outbox.drop_store('s3');
SELECT count(*) = (SELECT count(*) FROM was WHERE store = 's3') AS its_own, bool_and(store = 's3') AS only_its_own,
       count(DISTINCT outbox.route_store(key)) AS to_all
  FROM was WHERE outbox.route_store(key) <> store;
-- a route comes before the default
SELECT outbox.map_route('key 1', 's1'), outbox.map_route('key 2', 's2'), outbox.route_store('key 1'), outbox.route_store('key 2');

-- connections are secrets
SET ROLE ob_router_app;
SELECT outbox.route_store('key 1');
\set VERBOSITY sqlstate
SELECT * FROM outbox.stores;
SELECT connection FROM outbox.store_connections;
SELECT outbox.register_store('x', 'c');
SELECT outbox.set_store_connection('s1', 'c');
SELECT outbox.drop_store('s1');
SELECT outbox.map_route('x', 's1');
SELECT outbox.unmap_route('key 1');
SELECT outbox.set_default_route(NULL);
SELECT outbox._store_is_used('s1');
SET ROLE ob_router_monitor;
SELECT store, routes, connection FROM outbox.stores WHERE routes > 0 ORDER BY store;
SELECT outbox.route_store('key 1');
SELECT count(*) FROM outbox.stores WHERE connection IS NOT NULL;
SELECT connection FROM outbox.store_connections;
SELECT outbox.drop_store('s1');
SET ROLE ob_router_admin;
SELECT outbox.register_store('x', 'password=p'), outbox.map_route('y', 'x'), outbox.set_store_connection('x', 'password=q');
SELECT routing_key, store FROM outbox.routes WHERE store = 'x';
SELECT store, connection FROM outbox.stores WHERE store = 'x';
SELECT outbox.unmap_route('y'), outbox.drop_store('x'), outbox.set_default_route('hash');
INSERT INTO outbox.routes VALUES ('z', 's1');
RESET ROLE;
\set VERBOSITY default

-- reading needs no right to write
BEGIN READ ONLY;
SELECT outbox.route_store('key 1');
SELECT outbox.map_route('z', 's1');
ROLLBACK;

-- its trigger is for its tables
CREATE TABLE other (i int);
CREATE TRIGGER other AFTER INSERT ON other FOR EACH ROW EXECUTE FUNCTION outbox._routes_changed();
INSERT INTO other VALUES (1);
DROP TABLE other;
SELECT outbox._routes_changed();

DELETE FROM outbox.routes;
DELETE FROM outbox.default_route;
DELETE FROM outbox.store_connections;
DROP OWNED BY ob_router_app, ob_router_monitor, ob_router_admin;
DROP ROLE ob_router_app, ob_router_monitor, ob_router_admin;
