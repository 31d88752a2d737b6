-- 12_joins.sql: steps, and counting them
--
-- JOIN-001..043 and 070..092, OBX-080..085, 094 and 095, section 5 of the
-- contract. What sessions see of each other is in 08_concurrency.sql.

BEGIN;
\ir include/tools.sql
\ir include/joins.sql
SELECT plan(43);

-- Starting

SELECT outbox.start_join('Order "7"', 3, '{"k": not json') AS j \gset
SELECT is(
    ARRAY[grouping_key, expected_steps::text, metadata], ARRAY['Order "7"', '3', '{"k": not json'],
    'JOIN-001 start_join makes a join, with key and metadata as given, and returns its id')
  FROM outbox.joins WHERE join_id = :'j';

SELECT is(
    ROW(status, completed_steps, failed_steps, created_at BETWEEN now() AND clock_timestamp(),
        last_updated_at BETWEEN created_at AND clock_timestamp())::text
        || (SELECT count(*) FROM outbox.join_members WHERE join_id = :'j'),
    '(0,0,0,t,t)0',
    'JOIN-002 a join begins pending, with no step and nothing counted, at the time of the clock')
  FROM outbox.joins WHERE join_id = :'j';

SELECT tap.sqlstates(
    $$SELECT outbox.start_join('join-003', 0)$$,
    $$SELECT outbox.start_join('join-003', -2147483648)$$,
    $$SELECT outbox.start_join('join-003', NULL)$$,
    $$SELECT outbox.start_join('join-003', 2147483647)$$) AS states \gset
SELECT is(
    :'states'::text[] || ARRAY(SELECT expected_steps::text FROM outbox.joins WHERE grouping_key = 'join-003'),
    '{22023,22023,22004,00000,2147483647}',
    'JOIN-003 at least one step is expected');

SELECT outbox.start_join('', 1, 'join-004'), outbox.start_join(NULL, 1, 'join-004') AS second \gset
SELECT results_eq(
    $$SELECT grouping_key, count(*) FROM outbox.joins WHERE metadata = 'join-004' GROUP BY 1$$,
    $$VALUES (NULL::text, 2::bigint)$$,
    'JOIN-004 an empty grouping_key is null');

SELECT is(
    tap.sqlstates(
        $$SELECT outbox.start_join(repeat('x', 256), 1)$$,
        $$SELECT outbox.start_join(repeat(U&'\+01F600', 256), 1)$$,
        $$SELECT outbox.start_join(repeat(U&'\+01F600', 255), 1)$$),
    '{22023,22023,00000}',
    'JOIN-005 a grouping_key is at most 255 characters, however many bytes these are');

SELECT outbox.start_join('join-006', 1) AS first, outbox.start_join('join-006', 2) AS second \gset
SAVEPOINT before;
SELECT outbox.start_join('join-006', 3) AS third \gset
ROLLBACK TO before;
SELECT is(
    ARRAY(SELECT join_id FROM outbox.joins WHERE grouping_key = 'join-006' ORDER BY join_id),
    ARRAY[:'first', :'second']::uuid[],
    'JOIN-006 the same key starts another join, and what is rolled back started none');

-- Attaching

SELECT tap.start('join-010', 2) AS j, outbox.enqueue('join-010', 'p') AS m \gset
SELECT outbox.attach_message_to_join(:'j', :'m') \gset
SELECT is(
    ROW(join_id, message_id, status, created_at BETWEEN now() AND clock_timestamp())::text,
    ROW(:'j', :'m', 0, true)::text,
    'JOIN-010 attach makes a message a member of the join, pending')
  FROM outbox.join_members WHERE message_id = :'m';

SELECT is(
    tap.sqlstates(
        'SELECT outbox.attach_message_to_join(gen_random_uuid(), gen_random_uuid())',
        format('SELECT outbox.attach_message_to_join(NULL, %L)', :'m'),
        format('SELECT outbox.attach_message_to_join(%L, NULL)', :'j'))
        || (SELECT count(*) FROM outbox.join_members WHERE join_id = :'j')::text,
    '{42704,22004,22004,1}',
    'JOIN-011 attach to an unknown join is 42704, a null 22004, and adds nothing');

SELECT tap.start('join-012', 3, 'done', 'open') AS j \gset
SELECT outbox.ack(tap.alice(), tap.steps('join-012', 'done')) \gset
SELECT count(outbox.attach_message_to_join(:'j', message_id))
  FROM outbox.join_members, generate_series(1, 2) WHERE join_id = :'j' \gset
SELECT outbox.reconcile_joins() \gset
SELECT is(
    tap.join(:'j'), 'pending 1+0/3 {1,0}',
    'JOIN-012 attach is idempotent: a member stays one, and as it is');

SELECT tap.lease('join-013-members', 'done', 'dead', 'ready') AS leased \gset
SELECT outbox.ack(tap.alice(), (:'leased'::bigint[])[1:1]), outbox.fail(tap.alice(), (:'leased'::bigint[])[2:2]) AS f,
       tap.start('join-013', 4) AS j \gset
SELECT last_updated_at AS at FROM outbox.joins WHERE join_id = :'j' \gset
SELECT count(outbox.attach_message_to_join(:'j', message_id)),
       outbox.attach_message_to_join(:'j', 'ffffffff-ffff-4fff-bfff-ffffffffffff') AS unknown
  FROM outbox.messages WHERE topic = 'join-013-members' \gset
SELECT is(
    tap.join(:'j') || (SELECT last_updated_at = :'at' FROM outbox.joins WHERE join_id = :'j'),
    'pending 0+0/4 {0,0,0,0}true',
    'JOIN-013 attach changes no counter, whatever has become of the message');

SELECT outbox.reconcile_joins() AS counted, outbox.reconcile_joins() AS again \gset
SELECT is(
    format('%s, then %s: ', :'counted', :'again') || tap.join(:'j'), '2, then 0: pending 1+1/4 {1,2,0,0}',
    'JOIN-014 members whose messages had ended when they were attached are counted later, once');

-- Reporting by hand

SELECT tap.start('join-020', 2, '1', '2') AS j, tap.start('join-020-b', 2) AS other \gset
SELECT count(outbox.attach_message_to_join(:'other', message_id)) FROM outbox.join_members WHERE join_id = :'j' \gset
SELECT outbox.report_step_completed(:'j', message_id) FROM outbox.messages WHERE topic = 'join-020' AND payload = '1' \gset
SELECT is(
    ARRAY[tap.join(:'j'), tap.join(:'other')], '{"pending 1+0/2 {1,0}","pending 0+0/2 {0,0}"}',
    'JOIN-020 report_step_completed counts a completed step, in that join only');

SELECT outbox.report_step_failed(:'j', message_id) FROM outbox.messages WHERE topic = 'join-020' AND payload = '2' \gset
SELECT is(
    tap.join(:'j') || ARRAY(SELECT status FROM outbox.queue WHERE topic = 'join-020')::text, 'failed 1+1/2 {1,2}{1,1}',
    'JOIN-021 report_step_failed counts a failed step; the message itself goes on');

SELECT tap.start('join-022', 1, '1') AS j, tap.start('join-022-b', 1, '2') AS other \gset
SELECT is(
    tap.sqlstates(
        'SELECT outbox.report_step_completed(gen_random_uuid(), gen_random_uuid())',
        'SELECT outbox.report_step_failed(gen_random_uuid(), gen_random_uuid())',
        format('SELECT outbox.report_step_completed(NULL, %L)', :'j'),
        format('SELECT outbox.report_step_failed(%L, NULL)', :'j'),
        format($$SELECT outbox.report_step_failed(%L, message_id) FROM outbox.messages WHERE topic = 'join-022-b'$$, :'j'))
        || tap.join(:'j'),
    '{42704,42704,22004,22004,42704,"pending 0+0/1 {0}"}',
    'JOIN-022 a report of an unknown join, or of what is not attached to it, is 42704, a null 22004; nothing changes');

SELECT tap.start('join-023', 4, '1', '2', '3') AS j \gset
SELECT outbox.ack(tap.alice(), tap.steps('join-023', '1')), outbox.fail(tap.alice(), tap.steps('join-023', '2')) AS failed \gset
SELECT count(outbox.report_step_failed(:'j', message_id)), count(outbox.report_step_completed(:'j', message_id)) AS completed
  FROM outbox.join_members, generate_series(1, 2) WHERE join_id = :'j' \gset
SELECT outbox.ack(tap.alice(), tap.steps('join-023', '3')) \gset
SELECT is(
    tap.join(:'j'), 'pending 1+2/4 {1,2,2}',
    'JOIN-023 the first outcome of a member stands, whoever repeats or contradicts it');

SELECT tap.start('join-024', 3, '1', '2') AS j \gset
SELECT last_updated_at AS at0 FROM outbox.joins WHERE join_id = :'j' \gset
SELECT outbox.ack(tap.alice(), tap.steps('join-024', '1')) \gset
SELECT last_updated_at AS at1 FROM outbox.joins WHERE join_id = :'j' \gset
SELECT outbox.report_step_failed(:'j', message_id) FROM outbox.messages WHERE topic = 'join-024' AND payload = '1' \gset
SELECT outbox.nack(tap.alice(), tap.steps('join-024', '2')) \gset
SELECT last_updated_at AS at2 FROM outbox.joins WHERE join_id = :'j' \gset
SELECT outbox.cancel_join(:'j') \gset
SELECT is(
    ARRAY[:'at1' > :'at0', :'at2' = :'at1', last_updated_at > :'at2', last_updated_at <= clock_timestamp()], '{t,t,t,t}',
    'JOIN-024 last_updated_at moves with every change of a join, and only then')
  FROM outbox.joins WHERE join_id = :'j';

-- Reports by the messages themselves

SELECT tap.start('join-030', 2, 'p') AS j, tap.start('join-030-b', 1) AS other \gset
SELECT outbox.attach_message_to_join(:'other', message_id) FROM outbox.join_members WHERE join_id = :'j' \gset
SELECT outbox.ack(tap.alice(), tap.steps('join-030')) \gset
SELECT is(
    ARRAY[tap.join(:'j'), tap.join(:'other')], '{"pending 1+0/2 {1}","completed 1+0/1 {1}"}',
    'JOIN-030 ack reports a completed step to every join that has the message');

SELECT tap.start('join-031', 2, 'p') AS j, tap.start('join-031-b', 1) AS other \gset
SELECT outbox.attach_message_to_join(:'other', message_id) FROM outbox.join_members WHERE join_id = :'j' \gset
SELECT outbox.fail(tap.alice(), tap.steps('join-031')) \gset
SELECT is(
    ARRAY[tap.join(:'j'), tap.join(:'other')], '{"pending 0+1/2 {2}","failed 0+1/1 {2}"}',
    'JOIN-031 fail reports a failed step to every join that has the message');

SELECT tap.start('join-032-nack', 2, 'p') AS j_nack, tap.start('join-032-claim', 2, 'p') AS j_claim,
       tap.start('join-032-reap', 2, 'p') AS j_reap, tap.start('join-032-expires', 3) AS j_expires \gset
SELECT outbox.nack(tap.alice(), tap.steps('join-032-nack'), max_attempts => 1),
       tap.end_leases('join-032-claim'), tap.end_leases('join-032-reap') AS e \gset
SELECT count(*) FROM outbox.claim(tap.bob(), topics => '{join-032-claim}', max_attempts => 1) \gset
SELECT outbox.configure_topic('join-032-reap', max_attempts => 1) \gset
SELECT outbox.enqueue_step(:'j_expires', 'join-032-expires', 'p', expires_at => clock_timestamp() - interval '1 s') \gset
SELECT count(*) FROM outbox.claim(tap.bob(), topics => '{join-032-expires}') \gset
SELECT outbox.enqueue_step(:'j_expires', 'join-032-expires', 'p', expires_at => clock_timestamp() - interval '1 s') \gset
SELECT outbox.reap() \gset
SELECT is(
    ARRAY[tap.join(:'j_nack'), tap.join(:'j_claim'), tap.join(:'j_reap'), tap.join(:'j_expires')],
    '{"pending 0+1/2 {2}","pending 0+1/2 {2}","pending 0+1/2 {2}","pending 0+2/3 {2,2}"}',
    'JOIN-032 so does every other end: no attempts left in nack, claim and reap, and expiry');

SELECT tap.start('join-033', 60, VARIADIC ARRAY(SELECT i::text FROM generate_series(1, 50) i)) AS j \gset
SELECT pg_stat_get_xact_tuples_updated('outbox.joins'::regclass) AS before,
       outbox.ack(tap.alice(), tap.steps('join-033')) AS acked \gset
SELECT is(
    ARRAY[:'acked', (pg_stat_get_xact_tuples_updated('outbox.joins'::regclass) - :'before')::text,
          (SELECT completed_steps::text FROM outbox.joins WHERE join_id = :'j'),
          (SELECT count(*)::text FROM outbox.join_members WHERE join_id = :'j' AND status = 1)],
    '{50,1,50,50}',
    'JOIN-033 a call that ends many members of a join counts them all, and changes the join once');

SELECT tap.start('join-034', 2, '1', '2') AS j \gset
SAVEPOINT before;
SELECT outbox.ack(tap.alice(), tap.steps('join-034')) \gset
SELECT tap.join(:'j') AS meanwhile \gset
ROLLBACK TO before;
SELECT is(
    ARRAY[:'meanwhile', tap.join(:'j')], '{"completed 2+0/2 {1,1}","pending 0+0/2 {0,0}"}',
    'JOIN-034 what is reported is in the transaction of the call, and goes with it');

-- Completion

SELECT tap.start('join-040', 3, '1', '2', '3') AS j \gset
SELECT outbox.ack(tap.alice(), tap.steps('join-040', '1', '2')) \gset
SELECT tap.join(:'j') AS before, outbox.ack(tap.alice(), tap.steps('join-040', '3')) AS last \gset
SELECT is(
    ARRAY[:'before', tap.join(:'j')], '{"pending 2+0/3 {1,1,0}","completed 3+0/3 {1,1,1}"}',
    'JOIN-040 a join is completed when the last of its steps is, not before');

SELECT tap.start('join-041', 3, '1', '2', '3') AS j \gset
SELECT outbox.fail(tap.alice(), tap.steps('join-041', '1')) \gset
SELECT tap.join(:'j') AS before, outbox.ack(tap.alice(), tap.steps('join-041', '2', '3')) AS last \gset
SELECT is(
    ARRAY[:'before', tap.join(:'j')], '{"pending 0+1/3 {2,0,0}","failed 2+1/3 {2,1,1}"}',
    'JOIN-041 a join in which a step failed is failed, but not before all have ended');

SELECT tap.start('join-042', 2, '1', '2', '3', '4', '5') AS j \gset
SELECT outbox.ack(tap.alice(), tap.steps('join-042', '1', '2', '3')) \gset
SELECT last_updated_at AS at FROM outbox.joins WHERE join_id = :'j' \gset
SELECT outbox.fail(tap.alice(), tap.steps('join-042', '4')), outbox.enqueue_step(:'j', 'join-042', '6') AS late \gset
SELECT outbox.report_step_failed(:'j', message_id) FROM outbox.messages WHERE topic = 'join-042' AND payload = '5' \gset
SELECT outbox.reconcile_joins() \gset
SELECT is(
    tap.join(:'j') || (last_updated_at = :'at'), 'completed 2+0/2 {1,1,1,2,2,0}true',
    'JOIN-042 a join that has ended never changes; what follows is known of its members only')
  FROM outbox.joins WHERE join_id = :'j';

SELECT tap.start('join-043', 2, '1') AS j \gset
SELECT is(
    tap.sqlstates(
        format('UPDATE outbox.joins SET completed_steps = 3 WHERE join_id = %L', :'j'),
        format('UPDATE outbox.joins SET completed_steps = 1, failed_steps = 2, status = 2 WHERE join_id = %L', :'j'),
        format('UPDATE outbox.joins SET completed_steps = 1, failed_steps = 1, status = 1 WHERE join_id = %L', :'j'),
        format('UPDATE outbox.joins SET failed_steps = -1 WHERE join_id = %L', :'j'),
        format('UPDATE outbox.joins SET completed_steps = 2 WHERE join_id = %L', :'j'),
        format('UPDATE outbox.joins SET status = 1 WHERE join_id = %L', :'j'),
        format('UPDATE outbox.joins SET status = 4 WHERE join_id = %L', :'j'),
        format('UPDATE outbox.join_members SET status = 3 WHERE join_id = %L', :'j')),
    '{23514,23514,23514,23514,23514,23514,23514,23514}',
    'JOIN-043 the table itself takes no counters beyond the steps, and no status that they do not tell');

-- Saying it twice

SELECT tap.start('join-070', 2, '1', '2') AS j \gset
SELECT tap.steps('join-070', '1') AS step \gset
SELECT ARRAY[outbox.ack(tap.alice(), :'step'), outbox.ack(tap.alice(), :'step'), outbox.fail(tap.alice(), :'step'),
             outbox.ack(tap.alice(), :'step'::bigint[] || :'step'::bigint[])] AS acked \gset
SELECT is(
    :'acked' || tap.join(:'j'), '{1,0,0,0}pending 1+0/2 {1,0}',
    'JOIN-070 a message that is acked again counts no second time');

SELECT tap.start('join-071', 3) AS j, tap.lease('join-071', 'late') AS leased \gset
SELECT message_id AS m FROM outbox.queue WHERE topic = 'join-071' \gset
SELECT outbox.ack(tap.alice(), :'leased'), outbox.attach_message_to_join(:'j', :'m') AS a, outbox.report_step_completed(:'j', :'m') AS r \gset
SELECT outbox.reconcile_joins() AS counted, outbox.process_join_waits() AS evaluated \gset
SELECT is(
    :'counted' || ' ' || tap.join(:'j'), '0 pending 1+0/3 {1}',
    'JOIN-071 what was attached late and reported by hand meanwhile is not counted again');

SELECT tap.start('join-072', 3, '1', '2') AS j \gset
SELECT outbox.fail(tap.alice(), tap.steps('join-072', '1')) \gset
SELECT outbox.redrive(topic => 'join-072') AS back \gset
SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{join-072}') \gset
SELECT outbox.ack(tap.alice(), tap.steps('join-072')) AS acked \gset
SELECT is(
    ARRAY[:'back', :'acked', tap.join(:'j')], '{1,2,"pending 1+1/3 {2,1}"}',
    'JOIN-072 a failed message that is brought back and acked was counted, and stays failed');

SELECT tap.start('join-073', 2, '1', '2') AS j \gset
SELECT outbox.nack(tap.alice(), tap.steps('join-073', '1'), delay => '0'), outbox.renew(tap.alice(), tap.steps('join-073')) AS r,
       outbox.release(tap.alice(), tap.steps('join-073', '2')) AS released, tap.join(:'j') AS before \gset
SELECT count(*) FROM outbox.claim(tap.bob(), topics => '{join-073}') \gset
SELECT outbox.ack(tap.bob(), tap.steps('join-073')) \gset
SELECT is(
    ARRAY[:'before', tap.join(:'j')], '{"pending 0+0/2 {0,0}","completed 2+0/2 {1,1}"}',
    'JOIN-073 nack, release and renew report nothing: a step that is tried again counts once');

-- What people see

SELECT tap.start('join-080', 4, '1', '2', '3') AS j \gset
SELECT outbox.ack(tap.alice(), tap.steps('join-080', '1')), outbox.fail(tap.alice(), tap.steps('join-080', '2')) AS f,
       outbox.enqueue_join_wait(:'j', true, 'join-080-next', '') AS w \gset
SELECT is(
    ROW(grouping_key, status, expected_steps, completed_steps, failed_steps, missing_steps, members, waits)::text,
    '(join-080,pending,4,1,1,2,3,1)',
    'JOIN-080 join_progress tells how far a join is, who is in it and who waits')
  FROM outbox.join_progress WHERE join_id = :'j';

SELECT ROW(ok, status, detail IS NULL)::text AS before FROM outbox.status() WHERE component = 'joins' \gset
UPDATE outbox.joins SET created_at = now() - interval '2 days', last_updated_at = now() - interval '2 days' WHERE join_id = :'j';
SELECT is(
    ARRAY[:'before', ROW(ok, status, detail IS NULL)::text], '{"(t,\"0 stuck\",t)","(f,\"1 stuck\",f)"}',
    'JOIN-081 status() tells of joins that have not changed for a day')
  FROM outbox.status() WHERE component = 'joins';

SELECT is(
    ARRAY(SELECT outbox.join_status_name(s) FROM generate_series(-1, 4) s)
        || outbox.join_status_name(NULL),
    '{NULL,pending,completed,failed,cancelled,NULL,NULL}',
    'JOIN-082 join_status_name spells the four states');

-- What the install script makes

SELECT is(
    ARRAY(SELECT pg_get_constraintdef(oid) FROM pg_constraint
           WHERE conrelid = 'outbox.join_members'::regclass AND contype IN ('p', 'f', 'u') ORDER BY contype)
        || ARRAY(SELECT a.attname::text FROM pg_index i
                   JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
                  WHERE i.indrelid = 'outbox.join_members'::regclass ORDER BY 1),
    '{"PRIMARY KEY (join_id, message_id)",join_id,message_id}',
    'JOIN-090 members have their key, an index by message, and no foreign key, which pg_restore -j would break');

SELECT tap.start('join-091', 2, '1', '2') AS j \gset
SELECT outbox.enqueue_join_wait(:'j', true, 'join-091-next', '') \gset
DELETE FROM outbox.joins WHERE join_id = :'j';
SELECT is(
    ARRAY[(SELECT count(*) FROM outbox.join_members WHERE join_id = :'j'),
          (SELECT count(*) FROM outbox.join_waits WHERE join_id = :'j'),
          outbox.ack(tap.alice(), tap.steps('join-091'))],
    '{0,0,2}',
    'JOIN-091 members and waits go with their join; the messages stay');

SELECT is(
    ARRAY(SELECT format('%s %s %s', attname, format_type(atttypid, -1), attnotnull) FROM pg_attribute
           WHERE attrelid = 'outbox.joins'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum),
    ARRAY['join_id uuid t', 'grouping_key text f', 'expected_steps integer t', 'completed_steps integer t',
          'failed_steps integer t', 'status smallint t', 'created_at timestamp with time zone t',
          'last_updated_at timestamp with time zone t', 'metadata text f'],
    'JOIN-092 outbox.joins has the columns that the contract gives it');

-- Steps that are enqueued and attached in one

SELECT tap.start('obx-080', 1) AS j \gset
SELECT outbox.enqueue_step(:'j', 'obx-080', 'p', 'c', '2100-01-01 00:00+00', 'ns', md5('t')::uuid,
                           replace(md5('t'), '-', '') || '/k', md5('s')::uuid, '{"h": 1}', '2200-01-01 00:00+00', md5('m')::uuid) AS m \gset
SELECT is(
    ROW(message_id, namespace, topic, payload, correlation_id, due_time, tenant_id, right(dedupe_key, 2), stream_id, headers, expires_at)::text
        || tap.join(:'j'),
    ROW(md5('m')::uuid, 'ns', 'obx-080', 'p', 'c', '2100-01-01 00:00+00'::timestamptz, md5('t')::uuid, '/k', md5('s')::uuid,
        '{"h": 1}'::jsonb, '2200-01-01 00:00+00'::timestamptz)::text || 'pending 0+0/1 {0}',
    'OBX-080 enqueue_step enqueues a message, with all that enqueue takes, and attaches it')
  FROM outbox.messages WHERE message_id = :'m';

SELECT tap.start('obx-081', 1) AS j \gset
SELECT is(
    tap.sqlstates(
        $$SELECT outbox.enqueue_step(gen_random_uuid(), 'obx-081', 'p')$$,
        $$SELECT outbox.enqueue_step(NULL, 'obx-081', 'p')$$,
        format($$SELECT outbox.enqueue_step(%L, '', 'p')$$, :'j'),
        format($$SELECT outbox.enqueue_step(%L, 'obx-081', NULL)$$, :'j'))
        || (SELECT count(*)::text FROM outbox.messages WHERE topic = 'obx-081') || tap.join(:'j'),
    '{42704,22004,22023,22004,0,"pending 0+0/1 {}"}',
    'OBX-081 enqueue_step does both or, with the errors of attach and of enqueue, nothing');

SELECT tap.start('obx-082', 2, 'first') AS j \gset
SELECT outbox.enqueue_step(:'j', 'obx-082-other', 'second', namespace => 'obx-082', tenant_id => md5('t')::uuid) \gset
SELECT outbox.ack(tap.alice(), tap.steps('obx-082')) \gset
SELECT outbox.fail(tap.bob(), array_agg(id)) FROM outbox.claim(tap.bob(), namespace => 'obx-082', topics => '{obx-082-other}') \gset
SELECT is(
    tap.join(:'j'), 'failed 1+1/2 {1,2}',
    'OBX-082 the steps of a join may have any topic, namespace, tenant and worker');

SELECT tap.start('obx-083', 2) AS j \gset
SELECT outbox.enqueue_step(:'j', 'obx-083', 'first', dedupe_key => 'k') AS first,
       outbox.enqueue_step(:'j', 'obx-083', 'again', dedupe_key => 'k') AS again \gset
SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{obx-083}') \gset
SELECT outbox.ack(tap.alice(), tap.steps('obx-083')), outbox.enqueue_step(:'j', 'obx-083', 'late', dedupe_key => 'k') AS late \gset
SELECT is(
    ARRAY[:'first' = :'again', :'first' = :'late']::text || tap.join(:'j'), '{t,t}pending 1+0/2 {1}',
    'OBX-083 a step whose dedupe_key is taken is the message that has it');

SELECT tap.start('obx-084', 1, '1') AS j, tap.start('obx-084-over', 1, '1') AS over \gset
SELECT outbox.ack(tap.alice(), tap.steps('obx-084-over')) \gset
SELECT is(
    ARRAY[outbox.cancel_join(:'j'), outbox.cancel_join(:'j'), outbox.cancel_join(:'over')]::text
        || ARRAY[tap.join(:'j'), tap.join(:'over')]::text
        || tap.sqlstates('SELECT outbox.cancel_join(gen_random_uuid())', 'SELECT outbox.cancel_join(NULL)')::text,
    '{t,f,f}{"cancelled 0+0/1 {0}","completed 1+0/1 {1}"}{42704,22004}',
    'OBX-084 cancel_join ends a join that is pending, and says whether it did');

SELECT outbox.fail(tap.alice(), tap.steps('obx-084')), outbox.enqueue_step(:'j', 'obx-084', 'late') AS late,
       outbox.reconcile_joins() AS counted \gset
SELECT is(
    tap.join(:'j'), 'cancelled 0+0/1 {2,0}',
    'OBX-085 once cancelled a join counts no more; its members are kept');

SELECT outbox.start_join('obx-094', 2, i::text) AS j FROM generate_series(1, 3) i \g /dev/null
SELECT tap.lease('obx-094', '1', '2') AS leased \gset
SELECT outbox.ack(tap.alice(), (:'leased'::bigint[])[1:1]), outbox.fail(tap.alice(), (:'leased'::bigint[])[2:2]) AS f \gset
SELECT count(outbox.attach_message_to_join(j.join_id, m.message_id))
  FROM outbox.joins j, outbox.messages m WHERE j.grouping_key = 'obx-094' AND m.topic = 'obx-094' \gset
SELECT ARRAY[outbox.reconcile_joins(), outbox.reconcile_joins()] AS counted \gset
SELECT is(
    :'counted' || ARRAY(SELECT tap.join(join_id) FROM outbox.joins WHERE grouping_key = 'obx-094')::text
        || tap.sqlstates('SELECT outbox.reconcile_joins(0)')::text,
    '{6,0}{"failed 1+1/2 {1,2}","failed 1+1/2 {1,2}","failed 1+1/2 {1,2}"}{22023}',
    'OBX-094 reconcile_joins counts what was missed in all joins, and says how much; no batch is less than 1');

SELECT tap.start('obx-095-pending', 1) AS pending, tap.start('obx-095-over', 1, 'p') AS over, tap.start('obx-095-waited', 1, 'p') AS waited \gset
SELECT outbox.ack(tap.alice(), tap.steps('obx-095-over')), outbox.ack(tap.alice(), tap.steps('obx-095-waited')) AS a,
       outbox.enqueue_join_wait(:'waited', true, 'obx-095-next', '') AS w,
       outbox.cleanup() AS usual,
       (SELECT count(*) FROM outbox.joins WHERE grouping_key LIKE 'obx-095-%') AS young \gset
UPDATE outbox.joins SET created_at = now() - interval '31 days', last_updated_at = now() - interval '31 days' WHERE grouping_key LIKE 'obx-095-%';
UPDATE outbox.cleanup_progress SET at = now() - interval '32 days' WHERE name = 'installed';
SELECT outbox.cleanup() \gset
SELECT count(*) AS members FROM outbox.join_members WHERE join_id = :'over' \gset
SELECT is(
    ARRAY[:'young', :'members'] || ARRAY(SELECT grouping_key FROM outbox.joins WHERE grouping_key LIKE 'obx-095-%' ORDER BY 1),
    '{3,0,obx-095-pending,obx-095-waited}',
    'OBX-095 joins that ended join_retention ago (30 days) go with their members; none that is pending or waited for');

SELECT * FROM finish();
ROLLBACK;
