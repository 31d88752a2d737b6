-- 16_databases.sql: the workers of many databases, as far as SQL can see them
--
-- OBX-067 and 076, as far as settings tell, and what section 8 of the contract promises
-- besides. What workers do, OBX-066..070 and 075..079, is in test/t/010_workers.pl. The
-- settings are there with the library preloaded.

BEGIN;
\ir include/tools.sql
SELECT plan(8);

LOAD 'outbox';
SELECT current_setting('shared_preload_libraries') ~ '\moutbox\M' AS preloaded,
       current_setting('shared_preload_libraries') !~ '\moutbox\M' AS not_preloaded \gset

CREATE FUNCTION tap.setting(name text)
RETURNS text
LANGUAGE sql
AS $$
    SELECT concat_ws(' ', s.boot_val, s.unit, s.context, s.vartype, s.min_val, s.enumvals)
      FROM pg_settings s
     WHERE s.name = setting.name
$$;

\if :not_preloaded
SELECT skip('the library is not preloaded', 5);
\else
SELECT is(
    tap.setting('outbox.databases'), '* sighup string',
    'section 8: workers serve all databases that have the extension, unless outbox.databases lists some');
SELECT is(
    tap.setting('outbox.discovery_interval'), '300 s sighup integer 1',
    'OBX-076: unless set otherwise, new databases are looked for every five minutes');
SELECT is(
    tap.setting('outbox.max_workers'), '4 sighup integer 1',
    'section 8: at most four workers run at a time');
SELECT is(
    tap.setting('outbox.selection_strategy'), 'round_robin sighup enum {round_robin,drain_first}',
    'OBX-067: outbox.selection_strategy chooses the database that a worker serves next: round_robin, unless set, or drain_first');
SELECT is(
    tap.sqlstates($$SET outbox.databases = 'postgres'$$, $$SET outbox.discovery_interval = 1$$,
                  $$SET outbox.max_handler_workers = 1$$, $$SET outbox.max_workers = 1$$, $$SET outbox.selection_strategy = drain_first$$,
                  $$ALTER DATABASE postgres SET outbox.max_workers = 1$$),
    '{55P02,55P02,55P02,55P02,55P02,55P02}',
    'section 8: these settings are of the server: no session and no database has its own');
\endif

SELECT is(
    ARRAY[l.status, l.ok::text, (l.hint IS NULL)::text, regexp_replace(w.status, '^\d+', 'N'),
          (w.hint LIKE 'Preload the library%')::text],
    CASE WHEN :'preloaded'
         THEN ARRAY['preloaded', 'true', 'true', 'N running',
                    -- a database that is not served has another hint
                    CASE WHEN current_setting('outbox.databases') = '' THEN 'false' END]
         ELSE ARRAY['loaded on demand', 'false', 'false', 'none', 'true'] END,
    'section 8: status() shows whether there are workers, and without the library what to do')
  FROM outbox.status() w, outbox.status() l
 WHERE w.component = 'workers' AND l.component = 'library';

SELECT is(
    regexp_replace(detail, '\d+', 'N', 'g'),
    CASE WHEN :'preloaded'
         THEN format('serves this database: %s; waiting for a worker: N; failing: N%s',
                     CASE WHEN current_setting('outbox.databases') = '' THEN 'no' ELSE 'yes' END,
                     CASE WHEN current_setting('outbox.databases') = ''
                          THEN '; outbox.databases does not name the database' END) END,
    'section 8: status() shows whether this database is served, and how many wait for a worker or fail')
  FROM outbox.status()
 WHERE component = 'workers';

SELECT count(*) = 0 AS no_cron FROM pg_extension WHERE extname = 'pg_cron' \gset
\if :no_cron
SELECT is(
    tap.sqlstates('SELECT outbox.schedule_maintenance()', $$SELECT outbox.schedule_maintenance('*/5 * * * *')$$)
        || outbox.run_maintenance()::text,
    '{0A000,0A000,0}',
    'section 8: without workers run_maintenance does their work; to have it called by pg_cron there must be one');
\else
SELECT skip('pg_cron is installed', 1);
\endif

SELECT * FROM finish();
ROLLBACK;
