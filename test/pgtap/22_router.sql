-- 22_router.sql: which store is responsible for a key
--
-- OBX-072..074 and 126, and what section 16 of the contract promises besides. OBX-121,
-- which takes what is committed, is in 08_concurrency.sql.

BEGIN;
\ir include/tools.sql
SELECT plan(13);

SELECT outbox.register_store('eu', 'service=eu'), outbox.register_store('us', 'service=us'),
       outbox.map_route('acme', 'eu'), outbox.map_route('globex', 'us'),
       outbox.map_route('00000000-0000-4000-8000-00000000abcd', 'us');

SELECT is(
    ARRAY(SELECT outbox.route_store(key) FROM unnest(ARRAY['acme', 'globex', 'acme']) key),
    ARRAY['eu', 'us', 'eu'],
    'OBX-072: a key leads to the store that it is mapped to');
SELECT is(
    (SELECT array_agg(connection ORDER BY store) FROM outbox.stores WHERE store IN ('eu', 'us')),
    ARRAY['service=eu', 'service=us'],
    'OBX-072: the connection of a store is as it was registered');
SELECT is(
    ARRAY[outbox.unmap_route('acme')::text, outbox.map_route('acme', 'us')::text, outbox.route_store('acme')],
    ARRAY['true', '', 'us'],
    'OBX-072: a key that is mapped to another store leads there with the next call');
SELECT is(
    tap.sqlstates($$SELECT outbox.route_store('hooli')$$, $$SELECT outbox.route_store('ACME')$$,
                  $$SELECT outbox.route_store('00000000-0000-4000-8000-00000000abce'::uuid)$$),
    '{42704,42704,42704}',
    'OBX-073: a key that nothing maps is an error');
SELECT is(
    outbox.unmap_route('globex')::text || tap.sqlstates($$SELECT outbox.route_store('globex')$$)::text,
    'true{42704}',
    'OBX-073: a key that is mapped no more is an error again');
SELECT is(
    ARRAY[outbox.set_default_route('store:eu')::text, outbox.route_store('hooli'), outbox.route_store('acme'),
          outbox.set_default_route(NULL)::text] || tap.sqlstates($$SELECT outbox.route_store('hooli')$$),
    ARRAY['', 'eu', 'us', '', '42704'],
    'OBX-073: a default is the store of keys that are not mapped');
SELECT is(
    ARRAY[outbox.route_store('00000000-0000-4000-8000-00000000abcd'),
          outbox.route_store('00000000-0000-4000-8000-00000000abcd'::uuid),
          outbox.route_store('{00000000-0000-4000-8000-00000000ABCD}'::uuid)],
    ARRAY['us', 'us', 'us'],
    'OBX-074: text and UUID of a key lead to the same store');
SELECT is(
    ARRAY[outbox.map_route('00000000-0000-4000-8000-00000000abcf'::uuid, 'eu')::text,
          outbox.route_store('00000000-0000-4000-8000-00000000abcf'),
          outbox.unmap_route('00000000-0000-4000-8000-00000000abcf'::uuid)::text]
        || tap.sqlstates($$SELECT outbox.route_store('00000000-0000-4000-8000-00000000abcf')$$),
    ARRAY[NULL, 'eu', 'true', '42704'],
    'OBX-074: a UUID can be mapped as well as a text');

SELECT outbox.register_store('safe', 'host=db.example port=6432 dbname=app sslmode=verify-full sslrootcert=system') \gset
SELECT is(
    connection, 'host=db.example port=6432 dbname=app sslmode=verify-full sslrootcert=system',
    'OBX-126: the connection of a store may ask for encryption: it is kept and shown to admins as it is')
  FROM outbox.stores WHERE store = 'safe';

SELECT is(
    tap.sqlstates($$SELECT outbox.register_store('eu', 'c')$$, $$SELECT outbox.map_route('acme', 'eu')$$,
                  $$SELECT outbox.map_route('new', 'moon')$$, $$SELECT outbox.set_default_route('store:moon')$$,
                  $$SELECT outbox.drop_store('moon')$$, $$SELECT outbox.drop_store('us')$$,
                  $$SELECT outbox.route_store(NULL::text)$$, $$SELECT outbox.route_store('')$$,
                  $$SELECT outbox.set_default_route('anything')$$),
    '{42710,42710,42704,42704,42704,2BP01,22004,22023,22023}',
    'section 16: duplicates, unknown stores, stores in use, nulls and bad values are refused');

DELETE FROM outbox.routes;
DELETE FROM outbox.store_connections;
SELECT outbox.register_store('store ' || i, 'c'), outbox.set_default_route('hash')
  FROM generate_series(1, 20) i;
CREATE TEMP TABLE before AS
SELECT i::text AS key, outbox.route_store(i::text) AS store FROM generate_series(1, 20000) i;
SELECT is(
    (SELECT count(DISTINCT store)::text FROM before)
        || (SELECT bool_and(n BETWEEN 800 AND 1200) FROM (SELECT count(*) AS n FROM before GROUP BY store) s),
    '20true',
    'section 16: by the consistent hash all stores have about the same share');
SELECT outbox.register_store('store 21', 'c');
SELECT is(
    (SELECT ARRAY[(count(*) BETWEEN 800 AND 1100)::text,
                  string_agg(DISTINCT outbox.route_store(key), ',')]
       FROM before
      WHERE outbox.route_store(key) <> store),
    ARRAY['true', 'store 21'],
    'section 16: a store that is added takes one share, and nothing else moves');
SELECT outbox.drop_store('store 21'), outbox.drop_store('store 7');
SELECT is(
    (SELECT ARRAY[(count(*) = (SELECT count(*) FROM before WHERE store = 'store 7'))::text,
                  string_agg(DISTINCT store, ','), count(DISTINCT outbox.route_store(key))::text]
       FROM before
      WHERE outbox.route_store(key) <> store),
    ARRAY['true', 'store 7', '19'],
    'section 16: a store that is dropped leaves its share to all others, and nothing else moves');

SELECT * FROM finish();
ROLLBACK;
