-- 09_deployment.sql: installing, updating, removing
--
-- OBX-108..112, section 12 of the contract: the deployment of a schema is
-- CREATE EXTENSION and ALTER EXTENSION.

BEGIN;
\ir include/tools.sql
SELECT plan(5);

-- What there is in the schema, and a message.
CREATE FUNCTION tap.installed()
RETURNS text
LANGUAGE sql
AS $$
    SELECT concat_ws(' ',
        (SELECT extversion FROM pg_extension WHERE extname = 'outbox'),
        (SELECT md5(string_agg(pg_describe_object(classid, objid, objsubid), ',' ORDER BY classid, objid))
           FROM pg_depend
          WHERE refclassid = 'pg_extension'::regclass
            AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'outbox')),
        (SELECT count(*) FROM outbox.messages WHERE topic = 'obx-deployed'))
$$;
SELECT outbox.enqueue('obx-deployed', 'p') \gset
SELECT tap.installed() AS before \gset

CREATE EXTENSION IF NOT EXISTS outbox;
SELECT is(tap.installed(), :'before',
    'OBX-108 CREATE EXTENSION IF NOT EXISTS leaves an installed one, and its messages, as they are');

ALTER EXTENSION outbox UPDATE;
SELECT is(tap.installed(), :'before',
    'OBX-109 ALTER EXTENSION UPDATE to the version that is there changes nothing');

SAVEPOINT installed;
DROP EXTENSION outbox;
SELECT to_regnamespace('outbox') IS NULL AS all_gone \gset
CREATE EXTENSION outbox;
SELECT count(*) AS messages FROM outbox.messages \gset
SELECT tap.lease('obx-110', 'p') AS leased \gset
SELECT outbox.ack(tap.alice(), :'leased') AS acked \gset
ROLLBACK TO installed;
SELECT is(
    ARRAY[:'all_gone', :'messages', :'acked', tap.installed()],
    ARRAY['t', '0', '1', :'before'],
    'OBX-110 DROP EXTENSION leaves nothing, CREATE EXTENSION makes it anew, and both roll back');

SELECT bag_eq(
    $$SELECT c.relation::regclass::text, c.condition
        FROM pg_extension e, unnest(e.extconfig, e.extcondition) AS c (relation, condition)
       WHERE e.extname = 'outbox'$$,
    $$SELECT oid::regclass::text, ''
        FROM pg_class
       WHERE relnamespace = 'outbox'::regnamespace
         AND relkind IN ('r', 'p', 'S')
         AND (NOT relispartition OR relname = 'archive_unsorted')
         AND relname <> 'cleanup_progress'$$,
    'OBX-111 pg_dump carries all rows of every table, but of how far cleanup has come, and every sequence');

SELECT is(
    ARRAY[e.extversion, s.status, s.ok::text],
    ARRAY[a.default_version, a.default_version, 'true'],
    'OBX-112 the control file, the installed SQL and the library are of the same version')
  FROM pg_extension e
  JOIN pg_available_extensions a ON a.name = e.extname
  JOIN outbox.status() s ON s.component = 'version'
 WHERE e.extname = 'outbox';

SELECT * FROM finish();
ROLLBACK;
