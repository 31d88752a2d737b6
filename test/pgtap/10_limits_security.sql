-- 10_limits_security.sql: limits, what calls cost, and who may do what
--
-- OBX-114, 116..120, 122..126, and what sections 4 and 11 of the contract promise
-- besides. OBX-121 is in 08_concurrency.sql; that an idle server uses nothing, OBX-122, is in
-- test/t/010_workers.pl, and OBX-126 with a real connection in test/t/018_contact.pl.

BEGIN;
\ir include/tools.sql
SELECT plan(23);

-- What calls cost comes first, while the transaction has left no traces.

SELECT outbox.enqueue_many('s4-hot', ARRAY(SELECT i::text FROM generate_series(1, 100) i)) \gset
SELECT pg_stat_get_xact_tuples_hot_updated('outbox.queue'::regclass) AS before \gset
SELECT count(*) AS claimed FROM outbox.claim(tap.alice(), batch_size => 100, topics => '{s4-hot}') \gset
SELECT is(
    ROW(:claimed, pg_stat_get_xact_tuples_hot_updated('outbox.queue'::regclass) - :before)::text,
    '(100,100)',
    'section 4: a claim is a HOT update of every message: it writes no index');

\set claim_two 'SELECT FROM outbox.claim(tap.alice(), batch_size => 2, topics => ''{obx-119}'')'
SELECT outbox.enqueue_many('obx-119', array_fill('p'::text, ARRAY[24])) \gset
SELECT tap.buffers(:'claim_two') AS before,
       cardinality(outbox.enqueue_many('obx-119-backlog', array_fill('p'::text, ARRAY[20000]))) AS of_another_topic,
       cardinality(outbox.enqueue_many('obx-119', array_fill('p'::text, ARRAY[20000]), due_time => clock_timestamp() + interval '1 h')) AS not_due \gset
SELECT count(*) AS leased FROM outbox.claim(tap.bob(), batch_size => 10000, topics => '{obx-119-backlog}') \gset
SELECT cmp_ok(
    tap.buffers(:'claim_two'), '<=', :before + 12,
    'OBX-119: a claim reads an index of what is due: 40,000 messages that are not due, leased, or of another topic cost it nothing');

SELECT is(
    ARRAY(SELECT regexp_replace(pg_get_indexdef(indexrelid), '^.* USING ', '') FROM pg_index
           WHERE indexrelid = 'outbox.queue_ready_idx'::regclass AND indisvalid),
    '{"btree (lane, next_attempt_at, id) WITH (deduplicate_items=off)"}',
    'OBX-119, SHARED-08: the index of what is ready has the messages of a topic in the order in which they come due');

SELECT bool_and(ok) AS in_memory FROM outbox.status() WHERE component IN ('library', 'shared memory') \gset
\if :in_memory
\set claim_none 'SELECT FROM outbox.claim(md5(''nobody'')::uuid, topics => ''{obx-122}'')'
SELECT is(
    tap.buffers(:'claim_none'), 0,
    'OBX-122: a worker that asks in vain costs no look at the database');
\else
SELECT skip('the library is not preloaded, or all its lanes are in use', 1);
\endif

-- The best of five rounds, which other sessions may disturb, of 2,000 messages each.
CREATE FUNCTION tap.messages_per_second()
RETURNS numeric
LANGUAGE plpgsql
AS $$
DECLARE
    best    numeric := 0;
    started timestamptz;
BEGIN
    FOR round IN 1 .. 5 LOOP
        started := clock_timestamp();
        PERFORM outbox.enqueue('obx-118', i::text) FROM generate_series(1, 2000) i;
        FOR batch IN 1 .. 20 LOOP
            PERFORM outbox.ack(tap.alice(), ARRAY(SELECT id FROM outbox.claim(tap.alice(), batch_size => 100, topics => '{obx-118}')));
        END LOOP;
        best := greatest(best, 2000 / extract(epoch FROM clock_timestamp() - started));
    END LOOP;
    RETURN best;
END
$$;
SELECT tap.messages_per_second() AS speed \gset
SELECT is(
    ARRAY[:speed > 1000, (SELECT count(*) FROM outbox.messages WHERE topic = 'obx-118' AND status = 2) = 10000], '{t,t}',
    'OBX-118: thousands of messages a second are enqueued one by one, claimed and acked by one session');

SELECT tap.lease('obx-120', VARIADIC ARRAY(SELECT i::text FROM generate_series(1, 400) i)) AS leased \gset
SELECT ARRAY[outbox.ack(tap.alice(), (:'leased'::bigint[])[1:100]), outbox.abandon(tap.alice(), (:'leased'::bigint[])[101:200]),
             outbox.fail(tap.alice(), (:'leased'::bigint[])[201:300])] AS changed, tap.end_leases('obx-120') \gset
SELECT outbox.reap() AS reaped \gset
SELECT is(
    ARRAY[cardinality(:'leased'::bigint[])]::text || :'changed' || :reaped, '{400}{100,100,100}100',
    'OBX-120: one call claims, acks, abandons, fails or reaps hundreds of messages');

-- limits

SELECT tap.lease('obx-114', repeat('ä𝄞', 1000000)) AS leased \gset
SELECT outbox.nack(tap.alice(), :'leased', delay => '0') \gset
SELECT md5(payload) AS claimed FROM outbox.claim(tap.alice(), topics => '{obx-114}') \gset
SELECT outbox.ack(tap.alice(), :'leased') \gset
SELECT is(
    ARRAY[:'claimed', md5(payload)], ARRAY[md5(repeat('ä𝄞', 1000000)), md5(repeat('ä𝄞', 1000000))],
    'OBX-114: a payload of 2,000,000 characters, and 6,000,000 bytes, is claimed, handed back and acked as it was')
  FROM outbox.messages WHERE topic = 'obx-114';

SELECT is(
    tap.sqlstates(VARIADIC ARRAY(SELECT format('SELECT outbox.claim(tap.alice(), %s, topics => ''{obx-116}'')', s) FROM unnest('{1,10,30,300,86400,0,86401,-1}'::integer[]) s)
                               || 'SET LOCAL outbox.lease_seconds = 0'::text || 'SELECT outbox.renew(tap.alice(), ''{1}'', 86401)'::text)
        || (SELECT boot_val FROM pg_settings WHERE name = 'outbox.lease_seconds'),
    '{00000,00000,00000,00000,00000,22023,22023,22023,22023,22023,30}',
    'OBX-116: a lease may last 10 to 300 seconds, 30 unless asked for, and down to 1 and up to 86400');

SELECT is(
    tap.sqlstates(VARIADIC ARRAY(SELECT format('SELECT outbox.claim(tap.alice(), batch_size => %s, topics => ''{obx-117}'')', n) FROM unnest('{1,50,100,10000,0,10001,-2147483648}'::integer[]) n)
                               || 'SET LOCAL outbox.batch_size = 10001'::text || 'SELECT outbox.reap(0)'::text)
        || (SELECT boot_val FROM pg_settings WHERE name = 'outbox.batch_size'),
    '{00000,00000,00000,00000,22023,22023,22023,22023,22023,50}',
    'OBX-117: a batch may be of 1 to 100 messages, 50 unless asked for, and up to 10000');

SELECT is(
    tap.sqlstates(
        $$SELECT outbox.claim(tap.alice(), wait_ms => -1)$$,
        $$SELECT outbox.claim(tap.alice(), wait_ms => 60001)$$,
        $$SELECT outbox.claim(tap.alice(), max_attempts => 0)$$,
        $$SELECT outbox.nack(tap.alice(), '{1}', max_attempts => -1)$$,
        $$SELECT outbox.nack(tap.alice(), '{1}', delay => '-1 s')$$,
        $$SELECT outbox.nack(tap.alice(), '{1}', delay => '178000000 years')$$,
        $$SELECT outbox.fail(tap.alice(), '{1}', reason => -1)$$),
    '{22023,22023,22023,22023,22023,22023,22023}',
    'section 4: waits, attempts, delays and reasons out of range are refused with 22023');

SELECT is(
    tap.sqlstates(
        $$SELECT outbox.enqueue(repeat('𝄞', 255), 'p', repeat('é', 255),
                                namespace => repeat('𝄞', 255), dedupe_key => repeat('ü', 255))$$,
        $$SELECT outbox.enqueue(repeat('𝄞', 256), 'p')$$,
        $$SELECT outbox.enqueue('s1-characters', 'p', repeat('é', 256))$$,
        $$SELECT outbox.enqueue('s1-characters', 'p', namespace => repeat('𝄞', 256))$$,
        $$SELECT outbox.enqueue('s1-characters', 'p', dedupe_key => repeat('ü', 256))$$,
        $$SELECT outbox.claim(tap.alice(), topics => ARRAY[repeat('𝄞', 255)], namespace => repeat('𝄞', 255))$$,
        $$SELECT outbox.claim(tap.alice(), namespace => repeat('𝄞', 256))$$),
    '{00000,22023,22023,22023,22023,00000,22023}',
    'section 1: limits of length are in characters, not in bytes');

SELECT tap.lease('s11-arrays', '1', '2') AS leased \gset
SELECT is(
    tap.sqlstates(
        $$SELECT outbox.ack(NULL, '{1}')$$,
        $$SELECT outbox.ack(tap.alice(), '{{1},{2}}')$$,
        $$SELECT outbox.ack(tap.alice(), '{1,2}', '{1}')$$,
        $$SELECT outbox.claim(tap.alice(), topics => ARRAY['t', NULL])$$,
        $$SELECT outbox.enqueue_many('s11-arrays', ARRAY['a', NULL])$$,
        $$SELECT outbox.enqueue_many('s11-arrays', '{{a},{b}}')$$)
    || ARRAY[outbox.ack(tap.alice(), NULL),
             outbox.ack(tap.alice(), ARRAY(SELECT generate_series(-1000000, -1)::bigint)),
             outbox.ack(tap.alice(), format('[-5:-4]={%s}', array_to_string(:'leased'::bigint[], ','))::bigint[])]::text[],
    '{22004,22023,22023,22004,22004,22023,0,0,2}',
    'section 11: arrays are checked for nulls, dimensions and lengths; any lower bound and a million elements will do');

-- security

SELECT is(
    ARRAY(SELECT p.oid::regprocedure::text
            FROM pg_proc p
           WHERE p.pronamespace = 'outbox'::regnamespace
             AND has_function_privilege('public', p.oid, 'EXECUTE')
          UNION ALL
          SELECT c.oid::regclass::text
            FROM pg_class c
           WHERE c.relnamespace = 'outbox'::regnamespace
             AND CASE
                     WHEN c.relkind = 'S' THEN has_sequence_privilege('public', c.oid, 'USAGE, SELECT, UPDATE')
                     WHEN c.relkind IN ('r', 'p', 'v') THEN
                         has_table_privilege('public', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
                         OR has_any_column_privilege('public', c.oid, 'SELECT, INSERT, UPDATE, REFERENCES')
                     WHEN c.relkind = 'c' THEN has_type_privilege('public', c.reltype, 'USAGE')
                 END
          UNION ALL
          SELECT 'schema outbox' WHERE has_schema_privilege('public', 'outbox', 'USAGE, CREATE')),
    '{}',
    'section 11: PUBLIC may do nothing with the schema, its relations, types and functions');

CREATE ROLE obx_producer;
CREATE ROLE obx_worker;
CREATE ROLE obx_monitor;
CREATE ROLE obx_admin;
CREATE ROLE obx_stranger;
SELECT outbox.grant_producer('obx_producer'), outbox.grant_worker('obx_worker'),
       outbox.grant_monitor('obx_monitor'), outbox.grant_admin('obx_admin') \gset

SELECT is(
    ARRAY(SELECT r || ' ' || c.oid::regclass FROM unnest('{obx_producer,obx_worker,obx_monitor,obx_admin}'::text[]) r, pg_class c
           WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p', 'v')
             AND has_table_privilege(r, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')),
    '{}',
    'OBX-123: no role needs or has the right to write a table');

SELECT tap.sqlstates_as('obx_producer', $$SELECT outbox.enqueue('obx-124', i::text) FROM generate_series(1, 4) i$$) AS enqueued \gset
SELECT tap.sqlstates_as('obx_worker',
    $$CREATE TEMP TABLE mine ON COMMIT DROP AS SELECT id FROM outbox.claim(md5('w')::uuid, topics => '{obx-124}')$$,
    $$SELECT outbox.ack(md5('w')::uuid, ARRAY(SELECT id FROM mine ORDER BY id LIMIT 1))$$,
    $$SELECT outbox.abandon(md5('w')::uuid, ARRAY(SELECT id FROM mine ORDER BY id LIMIT 1 OFFSET 1))$$,
    $$SELECT outbox.fail(md5('w')::uuid, ARRAY(SELECT id FROM mine ORDER BY id LIMIT 1 OFFSET 2))$$,
    $$SELECT outbox.reap()$$) AS worked \gset
SELECT is(
    :'enqueued'::text[] || :'worked'::text[]
        || ARRAY(SELECT outbox.status_name(status) FROM outbox.messages WHERE topic = 'obx-124' ORDER BY id)
        || tap.sqlstates_as('obx_stranger', $$SELECT outbox.enqueue('t', 'p')$$, 'SELECT outbox.claim()', $$SELECT outbox.ack(md5('w')::uuid, '{1}')$$,
                            $$SELECT outbox.abandon(md5('w')::uuid, '{1}')$$, $$SELECT outbox.fail(md5('w')::uuid, '{1}')$$, 'SELECT outbox.reap()'),
    '{00000,00000,00000,00000,00000,00000,done,ready,failed,"in progress",42501,42501,42501,42501,42501,42501}',
    'OBX-123, OBX-124: EXECUTE on the functions, which grant_producer and grant_worker give, is all that they need; without it each call is refused');

-- What a role may call, without the parts that are for insiders.
CREATE FUNCTION tap.may_call(role text)
RETURNS text[]
LANGUAGE sql
AS $$
    SELECT ARRAY(SELECT DISTINCT p.proname::text
                   FROM pg_proc p
                  WHERE p.pronamespace = 'outbox'::regnamespace
                    AND p.proname !~ '^_'
                    AND has_function_privilege(role, p.oid, 'EXECUTE')
                  ORDER BY 1)
$$;

SELECT tap.sqlstates_as('obx_producer',
    $$SELECT outbox.enqueue('s11-producer', 'p', dedupe_key => 'k', stream_id => '23232323-0000-4000-8000-000000000001')$$,
    $$SELECT outbox.try_enqueue('s11-producer', 'p', dedupe_key => 'k')$$,
    $$SELECT outbox.enqueue_many('s11-producer', '{a,b}')$$,
    $$SELECT outbox.enqueue_batch('[{"topic": "s11-producer", "payload": "p"}]')$$,
    $$SELECT outbox.claim('aaaaaaaa-0000-4000-8000-000000000001')$$,
    $$SELECT payload FROM outbox.messages$$,
    $$SELECT payload FROM outbox.queue$$,
    $$INSERT INTO outbox.queue (topic, payload) VALUES ('s11-producer', 'p')$$) AS states \gset
SELECT is(
    :'states'::text[] || (SELECT count(*)::text FROM outbox.messages WHERE topic = 's11-producer'),
    '{00000,00000,00000,00000,42501,42501,42501,42501,4}',
    'section 11: a producer enqueues, and cannot claim, read a payload, or write a table');

SELECT is(
    tap.may_call('obx_worker')
        || tap.sqlstates_as('obx_worker', $$SELECT outbox.claim('aaaaaaaa-0000-4000-8000-000000000001', topics => '{s11-producer}')$$,
                                          $$SELECT outbox.enqueue('s11-worker', 'p')$$,
                                          $$SELECT outbox.requeue('{1}')$$,
                                          $$SELECT payload FROM outbox.messages$$,
                                          $$DELETE FROM outbox.queue$$),
    '{abandon,abandon_job_runs,abandon_timers,ack,ack_inbox,ack_job_runs,ack_one,ack_timers,claim,claim_inbox,claim_job_runs,claim_timers,complete_perspective,complete_receptor,deregister_instance,dispatch_due,fail,fail_inbox,fail_job_runs,fail_one,fail_perspective,fail_receptor,fail_timers,heartbeat,nack,nack_inbox,nack_one,process_join_waits,process_work_batch,reap,reap_expired,reap_expired_job_runs,reap_expired_timers,reap_inbox,reason_name,receive,register_handler,release,release_inbox,release_one,renew,renew_inbox,renew_job_runs,renew_one,renew_timers,report_step_completed,report_step_failed,route_store,start_perspective,start_receptor,status_name,unregister_handler,00000,42501,42501,42501,42501}',
    'section 11: a worker takes and settles messages, and nothing else');

SELECT is(
    tap.sqlstates_as('obx_monitor',
        $$SELECT id, topic, status, attempts FROM outbox.messages$$,
        $$SELECT * FROM outbox.topic_stats, outbox.leases$$,
        $$SELECT id, topic FROM outbox.dead_letters$$,
        $$SELECT * FROM outbox.status()$$,
        $$SELECT payload FROM outbox.messages$$,
        $$SELECT headers FROM outbox.messages$$,
        $$SELECT last_error FROM outbox.messages$$,
        $$SELECT payload FROM outbox.dead_letters$$,
        $$SELECT payload FROM outbox.queue$$,
        $$SELECT outbox.pause_topic('s11-monitor')$$),
    '{00000,00000,00000,00000,42501,42501,42501,42501,42501,42501}',
    'section 11: a monitor sees what there is, but no payload, no headers and no error, and changes nothing');

SELECT is(
    ARRAY(SELECT DISTINCT array_to_string(p.proconfig, '; ') ~ '^search_path=pg_catalog, pg_temp\M'
            FROM pg_proc p
           WHERE p.pronamespace = 'outbox'::regnamespace AND p.prosecdef),
    '{t}',
    'section 11: every function with the rights of its owner pins its search_path');

SELECT is(
    tap.may_call('obx_stranger')
        || tap.sqlstates_as('obx_stranger', $$SELECT outbox.enqueue('t', 'p')$$,
                                            $$SELECT outbox.status_name(0)$$,
                                            $$SELECT * FROM outbox.topics$$),
    '{42501,42501,42501}',
    'section 11: a role that was granted nothing may call and read nothing');

SELECT is(
    tap.sqlstates_as('obx_admin',
        $$SELECT outbox.pause_topic('obx-admin')$$,
        $$SELECT outbox.reset_topic('obx-admin')$$,
        $$SELECT payload FROM outbox.messages$$,
        $$SELECT outbox.cleanup()$$,
        $$SELECT outbox.redrive('no such namespace')$$,
        $$UPDATE outbox.topics SET paused = true$$,
        $$DELETE FROM outbox.queue$$,
        $$SELECT outbox.grant_admin('obx_stranger')$$),
    '{00000,00000,00000,00000,00000,42501,42501,42501}',
    'section 11: an admin calls and reads all, writes no table, and makes no other admins');

CREATE SCHEMA hostile;
CREATE FUNCTION hostile.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT 'infinity'::timestamptz $$;
CREATE FUNCTION hostile.count(anyelement) RETURNS bigint LANGUAGE sql AS $$ SELECT 1 / 0 $$;
CREATE FUNCTION hostile.format(text, VARIADIC text[]) RETURNS text LANGUAGE sql AS $$ SELECT 'SELECT 1 / 0' $$;
CREATE FUNCTION hostile.never(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT false $$;
CREATE OPERATOR hostile.= (LEFTARG = text, RIGHTARG = text, FUNCTION = hostile.never);
SELECT tap.lease('obx-hostile', 'p') AS leased \gset
SELECT outbox.fail(tap.alice(), :'leased') \gset
SET LOCAL search_path = hostile, pg_catalog, public;
SELECT outbox.cleanup(dead_retention => '1 day') AS removed, outbox.redrive('obx-hostile', 'default') AS redriven,
       outbox.configure_topic('obx-hostile', max_attempts => 2), outbox.reset_topic('obx-hostile') \gset
RESET search_path;
SELECT is(
    ARRAY[:'removed', :'redriven', :'reset_topic'], '{0,1,t}',
    'section 11: functions and operators of the caller are not mistaken for those of the system');

SAVEPOINT writable;
SET TRANSACTION READ ONLY;
SELECT tap.sqlstates(
    $$SELECT outbox.enqueue('t', 'p')$$,
    $$SELECT outbox.claim(tap.alice())$$,
    $$SELECT outbox.ack(tap.alice(), '{1}')$$,
    $$SELECT count(*) FROM outbox.messages$$) AS states \gset
ROLLBACK TO writable;
SELECT is(
    :'states'::text[], '{25006,25006,25006,00000}',
    'section 11: what writes says 25006 where nothing may be written, and reads work');

SELECT * FROM finish();
ROLLBACK;
