-- what CREATE EXTENSION makes
CREATE EXTENSION outbox;

-- every object says what it is
SELECT d.objtype, d.name
  FROM (SELECT 'relation' AS objtype, c.oid::regclass::text AS name,
               obj_description(c.oid, 'pg_class') AS comment
          FROM pg_class c
         WHERE c.relnamespace = 'outbox'::regnamespace
           AND c.relkind IN ('r', 'p', 'v', 'S')
        UNION ALL
        SELECT 'column', format('%s.%I', c.oid::regclass, a.attname),
               col_description(c.oid, a.attnum)
          FROM pg_class c
          JOIN pg_attribute a ON a.attrelid = c.oid
         WHERE c.relnamespace = 'outbox'::regnamespace
           AND c.relkind IN ('r', 'p', 'v', 'c')
           AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT 'function', p.oid::regprocedure::text, obj_description(p.oid, 'pg_proc')
          FROM pg_proc p
         WHERE p.pronamespace = 'outbox'::regnamespace
        UNION ALL
        SELECT 'type', t.oid::regtype::text, obj_description(t.oid, 'pg_type')
          FROM pg_type t
          JOIN pg_class c ON c.oid = t.typrelid
         WHERE t.typnamespace = 'outbox'::regnamespace AND c.relkind = 'c'
        UNION ALL
        SELECT 'trigger', t.tgname, obj_description(t.oid, 'pg_trigger')
          FROM pg_trigger t
          JOIN pg_class c ON c.oid = t.tgrelid
         WHERE c.relnamespace = 'outbox'::regnamespace AND NOT t.tgisinternal AND t.tgparentid = 0
        UNION ALL
        SELECT 'schema', n.nspname, obj_description(n.oid, 'pg_namespace')
          FROM pg_namespace n WHERE n.nspname = 'outbox') d
 WHERE d.comment IS NULL
 ORDER BY 1, 2;

-- nothing is granted to PUBLIC
SELECT p.oid::regprocedure
  FROM pg_proc p
 WHERE p.pronamespace = 'outbox'::regnamespace
   AND has_function_privilege('public', p.oid, 'EXECUTE');
SELECT c.oid::regclass
  FROM pg_class c
 WHERE c.relnamespace = 'outbox'::regnamespace
   AND c.relkind IN ('r', 'p', 'v', 'S')
   AND has_table_privilege('public', c.oid, 'SELECT, INSERT, UPDATE, DELETE');
SELECT has_schema_privilege('public', 'outbox', 'USAGE') AS usage;

-- functions with another role's privileges do not trust the caller's search_path
SELECT p.oid::regprocedure
  FROM pg_proc p
 WHERE p.pronamespace = 'outbox'::regnamespace
   AND p.prosecdef
   AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false);

-- what writes says so
SELECT p.oid::regprocedure
  FROM pg_proc p
  JOIN pg_language l ON l.oid = p.prolang
 WHERE p.pronamespace = 'outbox'::regnamespace
   AND l.lanname = 'c'
   AND p.provolatile = 'v'
   AND p.proparallel <> 'u';

-- what a dump must carry
SELECT unnest(extconfig)::regclass::text COLLATE "C" AS relation
  FROM pg_extension WHERE extname = 'outbox' ORDER BY 1;
SELECT c.oid::regclass
  FROM pg_class c
  JOIN pg_extension e ON e.extname = 'outbox'
 WHERE c.relnamespace = 'outbox'::regnamespace
   AND c.relkind IN ('r', 'S')
   AND NOT c.relispartition
   AND c.relname <> 'cleanup_progress'    -- what it says is of this server
   AND c.oid <> ALL (e.extconfig);

-- the states have names
SELECT s, outbox.status_name(s), outbox.join_status_name(s) FROM generate_series(-1, 4) s;
-- and the reasons
SELECT r, outbox.reason_name(r) FROM unnest(ARRAY[-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 99, 32768]) r;

-- in one transaction, and back
BEGIN;
DROP EXTENSION outbox;
CREATE EXTENSION outbox;
SELECT outbox.enqueue('extension', 'after') IS NOT NULL AS enqueued;
SELECT payload FROM outbox.claim('aaaaaaaa-0000-4000-8000-000000000001', topics => '{extension}');
ROLLBACK;
SELECT count(*) FROM outbox.messages;
BEGIN;
DROP EXTENSION outbox;
CREATE EXTENSION outbox;
COMMIT;
SELECT outbox.enqueue('extension', 'anew') IS NOT NULL AS enqueued;
SELECT payload FROM outbox.claim('aaaaaaaa-0000-4000-8000-000000000001', topics => '{extension}');
DROP EXTENSION outbox;
-- the schema must be the extension's
CREATE SCHEMA outbox;
\set VERBOSITY sqlstate
CREATE EXTENSION outbox;
\set VERBOSITY default
DROP SCHEMA outbox;
CREATE EXTENSION outbox;
