-- 09_deployment.sql: installing, updating, removing
--
-- OBX-108..112, JOIN-014, JOIN-033, JOIN-090..092: the deployment of the schema, which
-- is CREATE EXTENSION and ALTER EXTENSION, and what it must and must not make. That
-- background workers make nothing either is in test/t/010_workers.pl.

BEGIN;
\ir include/tools.sql
\ir include/joins.sql
SELECT plan(13);

-- What there is in the schema: its relations with their columns, indexes and
-- constraints, its functions and triggers. Partitions come and go.
CREATE FUNCTION tap.objects()
RETURNS text[]
LANGUAGE sql
AS $$
    SELECT array_agg(o ORDER BY o COLLATE "C")
      FROM (SELECT concat_ws(' ', c.relkind, c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid))
              FROM pg_class c
              LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
              LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
             WHERE c.relnamespace = 'outbox'::regnamespace AND NOT c.relispartition
             UNION ALL
            SELECT pg_get_indexdef(i.indexrelid)
              FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
             WHERE c.relnamespace = 'outbox'::regnamespace AND NOT c.relispartition
             UNION ALL
            SELECT c.relname || ' ' || pg_get_constraintdef(o.oid)
              FROM pg_constraint o JOIN pg_class c ON c.oid = o.conrelid
             WHERE o.connamespace = 'outbox'::regnamespace AND NOT c.relispartition
             UNION ALL
            SELECT p.oid::regprocedure || prosrc
              FROM pg_proc p WHERE p.pronamespace = 'outbox'::regnamespace
             UNION ALL
            SELECT pg_get_triggerdef(t.oid)
              FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
             WHERE c.relnamespace = 'outbox'::regnamespace AND NOT c.relispartition AND NOT t.tgisinternal) x (o)
$$;

-- The same, with a message.
CREATE FUNCTION tap.installed()
RETURNS text
LANGUAGE sql
AS $$
    SELECT concat_ws(' ', (SELECT extversion FROM pg_extension WHERE extname = 'outbox'), md5(tap.objects()::text),
                     (SELECT count(*) FROM outbox.messages WHERE topic = 'obx-deployed'))
$$;
SELECT outbox.enqueue('obx-deployed', 'p') \gset
SELECT tap.installed() AS before, tap.objects() AS objects \gset

SAVEPOINT installed;
DROP EXTENSION outbox;
SELECT to_regnamespace('outbox') IS NULL AS all_gone \gset
CREATE EXTENSION outbox;
SELECT is(tap.objects(), :'objects'::text[],
    'OBX-108: where nothing is, the deployment makes all tables, indexes, functions and triggers');

SELECT count(*) AS messages FROM outbox.messages \gset
SELECT tap.start('obx-108', 1, 'p') AS j \gset
SELECT outbox.enqueue_join_wait(:'j', true, 'obx-108-next', 'p'), outbox.ack(tap.alice(), tap.steps('obx-108')) AS acked \gset
SELECT is(
    ARRAY[:'all_gone', :'messages', :'acked', outbox.process_join_waits()::text, tap.join(:'j')],
    '{t,0,1,1,"completed 1+0/1 {1}"}',
    'OBX-108, JOIN-090: what the deployment makes works, from an enqueue to the end of a join');
ROLLBACK TO installed;

DROP EXTENSION outbox;
LOAD 'outbox';
SELECT is(
    tap.sqlstates($$SELECT outbox.enqueue('obx-109', 'p')$$, $$SELECT * FROM outbox.claim()$$, $$SELECT count(*) FROM outbox.joins$$,
                  $$SET LOCAL outbox.log_level = debug2$$)
        || ARRAY[to_regnamespace('outbox')::text, (SELECT count(*)::text FROM pg_extension WHERE extname = 'outbox')],
    '{3F000,3F000,42P01,00000,NULL,0}',
    'OBX-109: without the deployment there is nothing, and no use of the library makes it');
ROLLBACK TO installed;

SELECT tap.sqlstates('CREATE EXTENSION IF NOT EXISTS outbox', 'CREATE EXTENSION IF NOT EXISTS outbox',
                     'ALTER EXTENSION outbox UPDATE', 'ALTER EXTENSION outbox UPDATE') AS states \gset
SELECT is(
    :'states'::text[] || tap.installed(), ARRAY['00000', '00000', '00000', '00000', :'before'],
    'OBX-110, JOIN-091: deployed again, or updated to the version that is there, all stays as it is, and no error comes');

SELECT is(
    ARRAY(SELECT c.relname || ' ' || c.relpersistence::text FROM pg_class c
           WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p')
             AND c.relname IN ('queue', 'archive', 'dead', 'joins', 'join_members') ORDER BY 1)
        || (SELECT c.relkind::text FROM pg_class c WHERE c.oid = 'outbox.messages'::regclass),
    '{"archive p","dead p","join_members p","joins p","queue p",v}',
    'OBX-111, JOIN-090: there are tables of messages, of joins and of their members, none of them unlogged');

SELECT is(
    ARRAY(SELECT DISTINCT p.proname || ' ' || p.prokind::text FROM pg_proc p
           WHERE p.pronamespace = 'outbox'::regnamespace
             AND p.proname IN ('claim', 'ack', 'abandon', 'nack', 'fail', 'reap', 'reap_expired') ORDER BY 1),
    '{"abandon f","ack f","claim f","fail f","nack f","reap f","reap_expired f"}',
    'OBX-112, OBX-120, QUEUE-05: claim, ack, abandon, fail and reap are functions of the database');

-- Joins

SELECT is(
    ARRAY(SELECT pg_get_constraintdef(oid) FROM pg_constraint
           WHERE conrelid IN ('outbox.joins'::regclass, 'outbox.join_members'::regclass) AND contype IN ('p', 'f', 'u') ORDER BY 1)
        || ARRAY(SELECT regexp_replace(pg_get_indexdef(indexrelid), '^.* ON ', '') FROM pg_index
                  WHERE indrelid = 'outbox.join_members'::regclass AND NOT indisprimary),
    '{"PRIMARY KEY (join_id)","PRIMARY KEY (join_id, message_id)","outbox.join_members USING btree (message_id, join_id)"}',
    'JOIN-090: joins and members have their keys, and members an index by message');

SELECT is(
    ARRAY(SELECT format('%s %s %s', attname, format_type(atttypid, -1), attnotnull) FROM pg_attribute
           WHERE attrelid = 'outbox.joins'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum),
    ARRAY['join_id uuid t', 'grouping_key text f', 'expected_steps integer t', 'completed_steps integer t',
          'failed_steps integer t', 'status smallint t', 'created_at timestamp with time zone t',
          'last_updated_at timestamp with time zone t', 'metadata text f'],
    'JOIN-090: a join has key, steps, counters, status, times and metadata');

SELECT is(
    ARRAY(SELECT conname::text FROM pg_constraint
           WHERE contype = 'f' AND (connamespace = 'outbox'::regnamespace
                                    OR confrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'outbox'::regnamespace))),
    '{}',
    'JOIN-014: no foreign key leads from messages to joins, nor back');

SELECT is(
    ARRAY(SELECT a.attname::text FROM pg_attribute a
           WHERE a.attrelid IN ('outbox.queue'::regclass, 'outbox.archive'::regclass, 'outbox.dead'::regclass, 'outbox.messages'::regclass)
             AND a.attnum > 0 AND (a.attname ~ 'join|step|wait' OR a.attname = 'grouping_key')),
    '{}',
    'JOIN-033, JOIN-092: no table of messages has a column for joins');

-- Two columns are all that a member has of a message: what is put there by hand counts.
SELECT outbox.start_join('join-033', 2) AS j, tap.lease('join-033', '1', '2') AS leased \gset
INSERT INTO outbox.join_members (join_id, message_id) SELECT :'j', message_id FROM outbox.queue WHERE topic = 'join-033';
SELECT outbox.ack(tap.alice(), (:'leased'::bigint[])[1:1]), outbox.fail(tap.alice(), (:'leased'::bigint[])[2:2]) AS f \gset
SELECT is(
    tap.join(:'j'), 'failed 1+1/2 {1,2}',
    'JOIN-033: the rows of join_members are all that leads from a message to its joins');

-- Besides

SELECT bag_eq(
    $$SELECT c.relation::regclass::text, c.condition
        FROM pg_extension e, unnest(e.extconfig, e.extcondition) AS c (relation, condition)
       WHERE e.extname = 'outbox'$$,
    $$SELECT oid::regclass::text, ''
        FROM pg_class
       WHERE relnamespace = 'outbox'::regnamespace
         AND relkind IN ('r', 'p', 'S')
         AND (NOT relispartition OR relname IN ('archive_unsorted', 'publications_unsorted'))
         AND relname <> 'cleanup_progress'$$,
    'section 11: pg_dump carries all rows of every table, but of how far cleanup has come, and every sequence');

SELECT is(
    ARRAY[e.extversion, s.status, s.ok::text],
    ARRAY[a.default_version, a.default_version, 'true'],
    'section 11: the control file, the installed SQL and the library are of the same version')
  FROM pg_extension e
  JOIN pg_available_extensions a ON a.name = e.extname
  JOIN outbox.status() s ON s.component = 'version'
 WHERE e.extname = 'outbox';

SELECT * FROM finish();
ROLLBACK;
