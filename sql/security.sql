-- who may do what
TRUNCATE outbox.queue;
CREATE ROLE ob_none;
CREATE ROLE ob_producer;
CREATE ROLE ob_worker;
CREATE ROLE ob_monitor;
CREATE ROLE ob_admin;
SELECT outbox.grant_producer('ob_producer'), outbox.grant_worker('ob_worker'), outbox.grant_monitor('ob_monitor'), outbox.grant_admin('ob_admin');
-- twice is no error
SELECT outbox.grant_producer('ob_producer');

SELECT proname, string_agg(DISTINCT r, ' ' ORDER BY r) AS may
  FROM pg_proc p, unnest(ARRAY['ob_none', 'ob_producer', 'ob_worker', 'ob_monitor', 'ob_admin']) r
 WHERE p.pronamespace = 'outbox'::regnamespace AND has_function_privilege(r, p.oid, 'EXECUTE')
 GROUP BY proname ORDER BY proname;
SELECT c.relname, r AS role,
       concat_ws(' ', CASE WHEN has_table_privilege(r, c.oid, 'SELECT') THEN 'select' END,
                 CASE WHEN has_table_privilege(r, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE') THEN 'write' END) AS may
  FROM pg_class c, unnest(ARRAY['ob_none', 'ob_producer', 'ob_worker', 'ob_monitor', 'ob_admin']) r
 WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S') AND NOT c.relispartition
   AND has_table_privilege(r, c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')
 ORDER BY 1, 2;

\set VERBOSITY sqlstate
SET ROLE ob_none;
SELECT outbox.enqueue('sec', 'p');
RESET ROLE;
-- a producer produces, and reads nothing
SET ROLE ob_producer;
SELECT outbox.enqueue('sec', 'secret', dedupe_key => 'k', stream_id => '5ec5ec5e-0000-4000-8000-000000000001') IS NOT NULL AS ok;
SELECT cardinality(outbox.enqueue_many('sec', ARRAY['a', 'b'])) AS n;
SELECT ordinal FROM outbox.enqueue_batch('[{"topic": "sec", "payload": "c"}]');
SELECT enqueued FROM outbox.try_enqueue('sec', 'again', dedupe_key => 'k');
SELECT payload FROM outbox.messages;
SELECT payload FROM outbox.queue;
SELECT * FROM outbox.claim('aaaaaaaa-0000-4000-8000-000000000001');
INSERT INTO outbox.queue (topic, payload) VALUES ('sec', 'p');
RESET ROLE;
-- a worker works: all that a message can become, and the archive's partition with it
DO $$ DECLARE p regclass; BEGIN FOR p IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'outbox.archive'::regclass AND inhrelid <> 'outbox.archive_unsorted'::regclass LOOP EXECUTE format('DROP TABLE %s', p); END LOOP; END $$;
SET ROLE ob_worker;
SELECT payload FROM outbox.claim('aaaaaaaa-0000-4000-8000-000000000001', topics => '{sec}') ORDER BY id;
RESET ROLE;
SELECT array_agg(id ORDER BY id) AS ids FROM outbox.leases WHERE topic = 'sec' \gset
SET ROLE ob_worker;
SELECT outbox.ack('aaaaaaaa-0000-4000-8000-000000000001', (:'ids'::bigint[])[1:1]),
       outbox.nack('aaaaaaaa-0000-4000-8000-000000000001', (:'ids'::bigint[])[2:2], delay => '0'),
       outbox.fail('aaaaaaaa-0000-4000-8000-000000000001', (:'ids'::bigint[])[3:3]),
       outbox.renew('aaaaaaaa-0000-4000-8000-000000000001', (:'ids'::bigint[])[4:4]),
       outbox.release('aaaaaaaa-0000-4000-8000-000000000001'), outbox.reap();
SELECT outbox.enqueue('sec', 'p');
SELECT outbox.requeue('{1}');
SELECT payload FROM outbox.messages;
RESET ROLE;
SELECT DISTINCT pg_get_userbyid(relowner) = current_user AS made_by_the_owner FROM pg_class JOIN pg_inherits ON inhrelid = oid WHERE inhparent = 'outbox.archive'::regclass;
-- a monitor sees what there is, and no payload
SET ROLE ob_monitor;
SELECT topic, status FROM outbox.messages WHERE topic = 'sec' ORDER BY id;
SELECT payload FROM outbox.messages;
SELECT headers FROM outbox.messages;
SELECT last_error FROM outbox.dead_letters;
SELECT topic, ready, dead FROM outbox.topic_stats WHERE topic = 'sec';
SELECT count(*) FROM outbox.leases;
SELECT count(*) FROM outbox.stream_heads;
SELECT count(*) > 5 AS ok FROM outbox.status();
SELECT outbox.pause_topic('sec');
RESET ROLE;
-- an admin runs things, and does not write the tables
SET ROLE ob_admin;
SELECT outbox.pause_topic('sec'), outbox.resume_topic('sec'), outbox.configure_topic('sec', max_attempts => 5), outbox.reset_topic('sec');
SELECT outbox.redrive('sec', 'default'), outbox.cleanup() >= 0 AS cleaned;
SELECT payload FROM outbox.messages WHERE topic = 'sec' ORDER BY id;
SELECT topic, ready FROM outbox.topic_stats WHERE topic = 'sec';
DELETE FROM outbox.queue;
UPDATE outbox.topics SET paused = true;
SET outbox.retention = 0;
RESET ROLE;
SELECT outbox.grant_worker('no_such_role');
SELECT outbox.grant_worker(NULL);
-- row level security: the rows that the caller may see are all that there are
CREATE ROLE ob_tenant;
SELECT outbox.grant_worker('ob_tenant'), outbox.grant_producer('ob_tenant');
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.queue TO ob_tenant;
SELECT outbox.enqueue('sec.rls', 'mine', tenant_id => '11111111-1111-4111-8111-111111111111') IS NOT NULL AS ok;
SELECT outbox.enqueue('sec.rls', 'yours', tenant_id => '22222222-2222-4222-8222-222222222222') IS NOT NULL AS ok;
ALTER TABLE outbox.queue ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON outbox.queue TO ob_tenant USING (tenant_id = '11111111-1111-4111-8111-111111111111');
SET ROLE ob_tenant;
SELECT payload FROM outbox.claim('bbbbbbbb-0000-4000-8000-000000000002', topics => '{sec.rls}');
SELECT outbox.enqueue('sec.rls', 'not mine', tenant_id => '22222222-2222-4222-8222-222222222222');
SELECT outbox.enqueue('sec.rls', 'mine too', tenant_id => '11111111-1111-4111-8111-111111111111') IS NOT NULL AS ok;
RESET ROLE;
SELECT payload, status FROM outbox.messages WHERE topic = 'sec.rls' ORDER BY id;
DROP POLICY own ON outbox.queue;
ALTER TABLE outbox.queue DISABLE ROW LEVEL SECURITY;
SELECT payload FROM outbox.claim('cccccccc-0000-4000-8000-000000000003', topics => '{sec.rls}');
REVOKE ALL ON outbox.queue FROM ob_tenant;
DO $$ DECLARE r text; BEGIN FOREACH r IN ARRAY ARRAY['ob_none', 'ob_producer', 'ob_worker', 'ob_monitor', 'ob_admin', 'ob_tenant'] LOOP EXECUTE format('DROP OWNED BY %I; DROP ROLE %I', r, r); END LOOP; END $$;
