-- 12_joins.sql: steps, and counting them
--
-- JOIN-001..043 and 080..082, OBX-080..089, 095 and 096, and what section 5 of the
-- contract promises besides. What sessions see of each other is in 08_concurrency.sql,
-- what is installed in 09_deployment.sql, what is logged in 15_logging.sql.

BEGIN;
\ir include/tools.sql
\ir include/joins.sql
SELECT plan(50);

-- Starting

SELECT outbox.start_join('Order "7"', 3, '{"k": not json') AS j, outbox.start_join('Order "8"', 1) AS plain \gset
SELECT is(
    ARRAY(SELECT ROW(join_id, grouping_key, expected_steps, metadata)::text FROM outbox.joins
           WHERE join_id IN (:'j', :'plain') ORDER BY grouping_key),
    ARRAY[ROW(:'j', 'Order "7"', 3, '{"k": not json')::text, ROW(:'plain', 'Order "8"', 1, NULL)::text],
    'OBX-080, JOIN-006: start_join stores a join with key, steps and metadata as given, which may be left out, under the id that it returns');

SELECT is(
    ROW(status, completed_steps, failed_steps)::text || (SELECT count(*) FROM outbox.join_members WHERE join_id = :'j'),
    '(0,0,0)0',
    'OBX-082, JOIN-001: a join begins pending, with nothing completed, nothing failed and no member')
  FROM outbox.joins WHERE join_id = :'j';

SELECT clock_timestamp() AS before \gset
SELECT outbox.start_join('join-005', 1) AS j, clock_timestamp() AS after \gset
SELECT is(
    ARRAY[created_at BETWEEN :'before' AND :'after', last_updated_at BETWEEN :'before' AND :'after'], '{t,t}',
    'JOIN-005: the clock at the start is both the creation and the last update')
  FROM outbox.joins WHERE join_id = :'j';

SELECT tap.sqlstates(
    $$SELECT outbox.start_join('join-002', 0)$$,
    $$SELECT outbox.start_join('join-002', -2147483648)$$,
    $$SELECT outbox.start_join('join-002', NULL)$$,
    $$SELECT outbox.start_join('join-002', 2147483647)$$) AS states \gset
SELECT is(
    :'states'::text[] || ARRAY(SELECT expected_steps::text FROM outbox.joins WHERE grouping_key = 'join-002'),
    '{22023,22023,22004,00000,2147483647}',
    'JOIN-002: 0 steps, or less, are refused, and no join is stored');

SELECT outbox.start_join('', 1, 'join-003'), outbox.start_join(NULL, 1, 'join-003') AS second \gset
SELECT results_eq(
    $$SELECT grouping_key, count(*) FROM outbox.joins WHERE metadata = 'join-003' GROUP BY 1$$,
    $$VALUES (NULL::text, 2::bigint)$$,
    'JOIN-003: an empty grouping_key is null');

SELECT is(
    tap.sqlstates(
        $$SELECT outbox.start_join(repeat('x', 256), 1)$$,
        $$SELECT outbox.start_join(repeat(U&'\+01F600', 256), 1)$$,
        $$SELECT outbox.start_join(repeat(U&'\+01F600', 255), 1)$$),
    '{22023,22023,00000}',
    'JOIN-004: a grouping_key is at most 255 characters, however many bytes these are');

SELECT count(DISTINCT outbox.start_join(CASE WHEN i % 2 = 0 THEN 'obx-081' END, 1, 'obx-081')) AS ids FROM generate_series(1, 100) i \gset
SELECT is(
    ROW(:ids, count(*), count(DISTINCT join_id))::text, '(100,100,100)',
    'OBX-081: every join has an id of its own, with the same key or none')
  FROM outbox.joins WHERE metadata = 'obx-081';

SELECT outbox.start_join('s5-start', 1) AS first, outbox.start_join('s5-start', 2) AS second \gset
SAVEPOINT before;
SELECT outbox.start_join('s5-start', 3) AS third \gset
ROLLBACK TO before;
SELECT is(
    ARRAY(SELECT join_id FROM outbox.joins WHERE grouping_key = 's5-start' ORDER BY join_id),
    ARRAY[:'first', :'second']::uuid[],
    'section 5: the same key starts another join, and what is rolled back started none');

-- Attaching

SELECT tap.start('join-010', 2) AS j, outbox.enqueue('join-010', 'p') AS m \gset
SELECT outbox.attach_message_to_join(:'j', :'m') \gset
SELECT is(
    ROW(join_id, message_id, status, created_at BETWEEN now() AND clock_timestamp())::text,
    ROW(:'j', :'m', 0, true)::text,
    'OBX-083, JOIN-010: attach makes a message a member of the join, pending, at the time of the clock')
  FROM outbox.join_members WHERE message_id = :'m';

SELECT is(
    tap.sqlstates(
        'SELECT outbox.attach_message_to_join(gen_random_uuid(), gen_random_uuid())',
        format('SELECT outbox.attach_message_to_join(NULL, %L)', :'m'),
        format('SELECT outbox.attach_message_to_join(%L, NULL)', :'j'))
        || (SELECT count(*) FROM outbox.join_members WHERE join_id = :'j')::text,
    '{42704,22004,22004,1}',
    'JOIN-012: attach to an unknown join is 42704, a null 22004, and adds nothing');

SELECT tap.start('join-011', 3, 'done', 'dead', 'open') AS j \gset
SELECT outbox.ack(tap.alice(), tap.steps('join-011', 'done')), outbox.fail(tap.alice(), tap.steps('join-011', 'dead')) AS f \gset
SELECT to_jsonb(j) || jsonb_build_object('members', (SELECT jsonb_agg(m ORDER BY message_id) FROM outbox.join_members m WHERE m.join_id = j.join_id)) AS before
  FROM outbox.joins j WHERE join_id = :'j' \gset
SELECT count(outbox.attach_message_to_join(:'j', message_id))
  FROM outbox.join_members, generate_series(1, 3) WHERE join_id = :'j' \gset
SELECT outbox.reconcile_joins() \gset
SELECT is(
    to_jsonb(j) || jsonb_build_object('members', (SELECT jsonb_agg(m ORDER BY message_id) FROM outbox.join_members m WHERE m.join_id = j.join_id)),
    :'before'::jsonb,
    'OBX-084, JOIN-011: attaching a member again, three times, changes nothing in the join and its members, whatever has become of it')
  FROM outbox.joins j WHERE join_id = :'j';

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
    'JOIN-013: attach changes no counter, whatever has become of the message');

SELECT outbox.reconcile_joins() AS counted, outbox.reconcile_joins() AS again \gset
SELECT is(
    format('%s, then %s: ', :'counted', :'again') || tap.join(:'j'), '2, then 0: pending 1+1/4 {1,2,0,0}',
    'section 5: members whose messages had ended when they were attached are counted later, once');

-- Reporting by hand

SELECT tap.start('join-020', 2, '1', '2') AS j, tap.start('join-020-b', 2) AS other \gset
SELECT count(outbox.attach_message_to_join(:'other', message_id)) FROM outbox.join_members WHERE join_id = :'j' \gset
SELECT outbox.report_step_completed(:'j', message_id) FROM outbox.messages WHERE topic = 'join-020' AND payload = '1' \gset
SELECT is(
    ARRAY[tap.join(:'j'), tap.join(:'other')], '{"pending 1+0/2 {1,0}","pending 0+0/2 {0,0}"}',
    'OBX-085, JOIN-020: report_step_completed marks the member and counts a completed step, in that join only');

SELECT outbox.report_step_failed(:'j', message_id) FROM outbox.messages WHERE topic = 'join-020' AND payload = '2' \gset
SELECT is(
    tap.join(:'j') || ARRAY(SELECT status FROM outbox.queue WHERE topic = 'join-020')::text, 'failed 1+1/2 {1,2}{1,1}',
    'OBX-087, JOIN-021: report_step_failed marks the member and counts a failed step; the message itself goes on');

SELECT tap.start('join-022', 4, '1', '2') AS j \gset
SELECT count(outbox.report_step_completed(:'j', m.message_id)), count(outbox.report_step_failed(:'j', n.message_id)) AS failed
  FROM outbox.messages m, outbox.messages n, generate_series(1, 3)
 WHERE m.topic = 'join-022' AND m.payload = '1' AND n.topic = 'join-022' AND n.payload = '2' \gset
SELECT is(
    tap.join(:'j'), 'pending 1+1/4 {1,2}',
    'OBX-086, OBX-088, JOIN-022: reported three times, a step counts once');

SELECT tap.start('join-024', 2, '1', '2') AS j \gset
SELECT message_id AS m1 FROM outbox.messages WHERE topic = 'join-024' AND payload = '1' \gset
SELECT message_id AS m2 FROM outbox.messages WHERE topic = 'join-024' AND payload = '2' \gset
SAVEPOINT before;
SELECT outbox.report_step_completed(:'j', :'m1') \gset
SELECT (SELECT xmin FROM outbox.joins WHERE join_id = :'j') = (SELECT xmin FROM outbox.join_members WHERE message_id = :'m1') AS together \gset
ROLLBACK TO before;
SELECT tap.join(:'j') AS undone \gset
SAVEPOINT before;
SELECT outbox.report_step_failed(:'j', :'m2') \gset
SELECT (SELECT xmin FROM outbox.joins WHERE join_id = :'j') = (SELECT xmin FROM outbox.join_members WHERE message_id = :'m2') AS too \gset
ROLLBACK TO before;
SELECT is(
    ARRAY[:'together', :'undone', :'too', tap.join(:'j')], '{t,"pending 0+0/2 {0,0}",t,"pending 0+0/2 {0,0}"}',
    'JOIN-024: member and counter are written by one transaction, and go with it');

SELECT tap.start('s5-report', 1, '1') AS j, tap.start('s5-report-b', 1, '2') AS other \gset
SELECT is(
    tap.sqlstates(
        'SELECT outbox.report_step_completed(gen_random_uuid(), gen_random_uuid())',
        'SELECT outbox.report_step_failed(gen_random_uuid(), gen_random_uuid())',
        format('SELECT outbox.report_step_completed(NULL, %L)', :'j'),
        format('SELECT outbox.report_step_failed(%L, NULL)', :'j'),
        format($$SELECT outbox.report_step_failed(%L, message_id) FROM outbox.messages WHERE topic = 's5-report-b'$$, :'j'))
        || tap.join(:'j'),
    '{42704,42704,22004,22004,42704,"pending 0+0/1 {0}"}',
    'section 5: a report of an unknown join, or of what is not attached to it, is 42704, a null 22004; nothing changes');

SELECT tap.start('s5-first', 4, '1', '2', '3') AS j \gset
SELECT outbox.ack(tap.alice(), tap.steps('s5-first', '1')), outbox.fail(tap.alice(), tap.steps('s5-first', '2')) AS failed \gset
SELECT count(outbox.report_step_failed(:'j', message_id)), count(outbox.report_step_completed(:'j', message_id)) AS completed
  FROM outbox.join_members, generate_series(1, 2) WHERE join_id = :'j' \gset
SELECT outbox.ack(tap.alice(), tap.steps('s5-first', '3')) \gset
SELECT is(
    tap.join(:'j'), 'pending 1+2/4 {1,2,2}',
    'section 5: the first outcome of a member stands, whatever repeats or contradicts it');

-- Reports by the messages themselves

SELECT tap.start('join-030', 2, 'p') AS j, tap.start('join-030-b', 1) AS other \gset
SELECT outbox.attach_message_to_join(:'other', message_id) FROM outbox.join_members WHERE join_id = :'j' \gset
SELECT outbox.ack(tap.alice(), tap.steps('join-030')) \gset
SELECT is(
    ARRAY[tap.join(:'j'), tap.join(:'other')], '{"pending 1+0/2 {1}","completed 1+0/1 {1}"}',
    'OBX-089, JOIN-030, JOIN-081: ack completes the step in every join that has the message, without any report');

SELECT tap.start('join-031', 2, 'p') AS j, tap.start('join-031-b', 1) AS other \gset
SELECT outbox.attach_message_to_join(:'other', message_id) FROM outbox.join_members WHERE join_id = :'j' \gset
SELECT outbox.fail(tap.alice(), tap.steps('join-031')) \gset
SELECT is(
    ARRAY[tap.join(:'j'), tap.join(:'other')], '{"pending 0+1/2 {2}","failed 0+1/1 {2}"}',
    'OBX-089, JOIN-031, JOIN-081: fail fails the step in every join that has the message, without any report');

SELECT tap.start('s5-ends-nack', 2, 'p') AS j_nack, tap.start('s5-ends-claim', 2, 'p') AS j_claim,
       tap.start('s5-ends-reap', 2, 'p') AS j_reap, tap.start('s5-ends-expires', 3) AS j_expires \gset
SELECT outbox.nack(tap.alice(), tap.steps('s5-ends-nack'), max_attempts => 1),
       tap.end_leases('s5-ends-claim'), tap.end_leases('s5-ends-reap') AS e \gset
SELECT count(*) FROM outbox.claim(tap.bob(), topics => '{s5-ends-claim}', max_attempts => 1) \gset
SELECT outbox.configure_topic('s5-ends-reap', max_attempts => 1) \gset
SELECT outbox.enqueue_step(:'j_expires', 's5-ends-expires', 'p', expires_at => clock_timestamp() - interval '1 s') \gset
SELECT count(*) FROM outbox.claim(tap.bob(), topics => '{s5-ends-expires}') \gset
SELECT outbox.enqueue_step(:'j_expires', 's5-ends-expires', 'p', expires_at => clock_timestamp() - interval '1 s') \gset
SELECT outbox.reap() \gset
SELECT is(
    ARRAY[tap.join(:'j_nack'), tap.join(:'j_claim'), tap.join(:'j_reap'), tap.join(:'j_expires')],
    '{"pending 0+1/2 {2}","pending 0+1/2 {2}","pending 0+1/2 {2}","pending 0+2/3 {2,2}"}',
    'section 5: so does every other end: no attempts left in nack, claim and reap, and expiry');

SELECT tap.start('s5-many', 60, VARIADIC ARRAY(SELECT i::text FROM generate_series(1, 50) i)) AS j \gset
SELECT pg_stat_get_xact_tuples_updated('outbox.joins'::regclass) AS before,
       outbox.ack(tap.alice(), tap.steps('s5-many')) AS acked \gset
SELECT is(
    ARRAY[:'acked', (pg_stat_get_xact_tuples_updated('outbox.joins'::regclass) - :'before')::text,
          (SELECT completed_steps::text FROM outbox.joins WHERE join_id = :'j'),
          (SELECT count(*)::text FROM outbox.join_members WHERE join_id = :'j' AND status = 1)],
    '{50,1,50,50}',
    'section 5: a call that ends many members of a join counts them all, and changes the join once');

SELECT tap.start('join-032', 2, '1', '2') AS j \gset
SAVEPOINT before;
SELECT outbox.ack(tap.alice(), tap.steps('join-032')) \gset
SELECT tap.join(:'j') AS meanwhile \gset
ROLLBACK TO before;
SELECT is(
    ARRAY[:'meanwhile', tap.join(:'j')], '{"completed 2+0/2 {1,1}","pending 0+0/2 {0,0}"}',
    'JOIN-032: when an ack is undone, so is what it has counted');

-- The same steps, ended by calls of the messages, and by reports.
SELECT tap.start('join-034', 4, '1', '2', '3', '4') AS by_messages, tap.start('join-034-b', 4, '1', '2', '3', '4') AS by_hand \gset
SELECT outbox.enqueue_join_wait(:'by_messages', true, 'join-034-next', 'ok', 'join-034-bad', 'bad') AS w,
       outbox.enqueue_join_wait(:'by_hand', true, 'join-034-b-next', 'ok', 'join-034-b-bad', 'bad') AS v \gset
SELECT outbox.process_join_waits(), outbox.ack(tap.alice(), tap.steps('join-034', '1', '2')) AS acked, outbox.fail(tap.alice(), tap.steps('join-034', '3')) AS failed \gset
SELECT outbox.report_step_completed(:'by_hand', message_id) FROM outbox.messages WHERE topic = 'join-034-b' AND payload IN ('1', '2') \g /dev/null
SELECT outbox.report_step_failed(:'by_hand', message_id) FROM outbox.messages WHERE topic = 'join-034-b' AND payload = '3' \gset
SELECT tap.join(:'by_messages') AS messages_first, tap.join(:'by_hand') AS hand_first \gset
SELECT outbox.ack(tap.alice(), tap.steps('join-034', '4')), outbox.report_step_completed(:'by_hand', message_id)
  FROM outbox.messages WHERE topic = 'join-034-b' AND payload = '4' \gset
SELECT outbox.process_join_waits() AS waits \gset
SELECT is(
    ARRAY[:'hand_first', tap.join(:'by_hand'), :'waits', tap.messages('join-034-b-%')::text],
    ARRAY[:'messages_first', tap.join(:'by_messages'), '2', replace(tap.messages('join-034-bad')::text, '034', '034-b')],
    'JOIN-034: reports leave a join, its members and what follows as the ends of the messages do');

-- Completion

SELECT tap.start('join-040', 3, '1', '2', '3') AS j \gset
SELECT outbox.ack(tap.alice(), tap.steps('join-040', '1', '2')) \gset
SELECT tap.join(:'j') AS before, outbox.ack(tap.alice(), tap.steps('join-040', '3')) AS last \gset
SELECT is(
    ARRAY[:'before', tap.join(:'j')], '{"pending 2+0/3 {1,1,0}","completed 3+0/3 {1,1,1}"}',
    'JOIN-040, JOIN-041: a join is completed when the last of its steps is, not before');

SELECT tap.start('join-041', 3, '1', '2', '3') AS j \gset
SELECT outbox.fail(tap.alice(), tap.steps('join-041', '1')) \gset
SELECT tap.join(:'j') AS before, outbox.ack(tap.alice(), tap.steps('join-041', '2', '3')) AS last \gset
SELECT is(
    ARRAY[:'before', tap.join(:'j')], '{"pending 0+1/3 {2,0,0}","failed 2+1/3 {2,1,1}"}',
    'JOIN-040, JOIN-041: a join in which a step failed is failed, but not before all have ended');

SELECT tap.start('join-042', 2, '1', '2', '3', '4', '5') AS j \gset
SELECT outbox.ack(tap.alice(), tap.steps('join-042', '1', '2', '3')) \gset
SELECT last_updated_at AS at FROM outbox.joins WHERE join_id = :'j' \gset
SELECT outbox.fail(tap.alice(), tap.steps('join-042', '4')), outbox.enqueue_step(:'j', 'join-042', '6') AS late \gset
SELECT outbox.report_step_failed(:'j', message_id) FROM outbox.messages WHERE topic = 'join-042' AND payload = '5' \gset
SELECT outbox.reconcile_joins() \gset
SELECT is(
    tap.join(:'j') || (last_updated_at = :'at'), 'completed 2+0/2 {1,1,1,2,2,0}true',
    'JOIN-042, JOIN-023: a join that is completed never changes, though more steps end; they are known of its members only')
  FROM outbox.joins WHERE join_id = :'j';

SELECT tap.start('join-042-failed', 2, '1', '2', '3', '4') AS j \gset
SELECT outbox.fail(tap.alice(), tap.steps('join-042-failed', '1', '2')) \gset
SELECT to_jsonb(j) AS before FROM outbox.joins j WHERE join_id = :'j' \gset
SELECT outbox.ack(tap.alice(), tap.steps('join-042-failed', '3')) \gset
SELECT outbox.report_step_completed(:'j', message_id) FROM outbox.messages WHERE topic = 'join-042-failed' AND payload IN ('1', '4') \g /dev/null
SELECT outbox.cancel_join(:'j') \gset
SELECT is(
    to_jsonb(j), :'before'::jsonb,
    'JOIN-042: a join that has failed never changes, though more steps end and it is cancelled')
  FROM outbox.joins j WHERE join_id = :'j';

SELECT tap.start('join-023', 2, '1') AS j \gset
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
    'JOIN-023: the table itself takes no counters beyond the steps, and no status that does not follow from them');

SELECT tap.start('join-043', 3, '1', '2') AS j \gset
SELECT last_updated_at AS at0 FROM outbox.joins WHERE join_id = :'j' \gset
SELECT outbox.ack(tap.alice(), tap.steps('join-043', '1')) \gset
SELECT last_updated_at AS at1 FROM outbox.joins WHERE join_id = :'j' \gset
SELECT outbox.report_step_failed(:'j', message_id) FROM outbox.messages WHERE topic = 'join-043' AND payload = '1' \gset
SELECT outbox.nack(tap.alice(), tap.steps('join-043', '2')) \gset
SELECT last_updated_at AS at2 FROM outbox.joins WHERE join_id = :'j' \gset
SELECT outbox.cancel_join(:'j') \gset
SELECT is(
    ARRAY[:'at1' > :'at0', :'at2' = :'at1', last_updated_at > :'at2', last_updated_at <= clock_timestamp()], '{t,t,t,t}',
    'JOIN-043: last_updated_at moves with every change of a join, and only then')
  FROM outbox.joins WHERE join_id = :'j';

-- Messages of many joins, and joins of one context

SELECT tap.start('join-080', 3, 'm', 'n') AS j1, tap.start('join-080-b', 2) AS j2, tap.start('join-080-c', 1) AS j3, tap.start('join-080-d', 1) AS none \gset
SELECT count(outbox.attach_message_to_join(j, message_id)) AS attached
  FROM outbox.messages, unnest(ARRAY[:'j2', :'j3']::uuid[]) j WHERE topic = 'join-080' AND payload = 'm' \gset
SELECT count(*) AS rows FROM outbox.join_members WHERE message_id = (SELECT message_id FROM outbox.messages WHERE topic = 'join-080' AND payload = 'm') \gset
SELECT outbox.ack(tap.alice(), tap.steps('join-080', 'm')) \gset
SELECT is(
    ARRAY[:'rows', tap.join(:'j1'), tap.join(:'j2'), tap.join(:'j3'), tap.join(:'none')],
    '{3,"pending 1+0/3 {1,0}","pending 1+0/2 {1}","completed 1+0/1 {1}","pending 0+0/1 {}"}',
    'OBX-096, JOIN-080, JOIN-081: a message may be a step of three joins, has a row in each, and counts in all of them');

SELECT outbox.start_join('customer ' || i % 3, 1, 'obx-095') FROM generate_series(1, 9) i \g /dev/null
SELECT outbox.start_join(NULL, 1, 'obx-095') \gset
SELECT is(
    ARRAY(SELECT concat_ws(': ', grouping_key, count(*)) FROM outbox.join_progress WHERE grouping_key LIKE 'customer%' GROUP BY grouping_key ORDER BY 1)
        || (SELECT count(*)::text FROM outbox.joins WHERE metadata = 'obx-095' AND grouping_key IS NULL),
    '{"customer 0: 3","customer 1: 3","customer 2: 3",1}',
    'OBX-095: joins with the same grouping key are one context, to be asked for by it; a join may have none');

SELECT outbox.start_join('context ' || i, 1) FROM generate_series(1, 3000) i \g /dev/null
ANALYZE outbox.joins;
CREATE FUNCTION tap.plan(query text)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    plan json;
BEGIN
    EXECUTE 'EXPLAIN (FORMAT json) ' || query INTO plan;
    RETURN plan;
END
$$;
SELECT is(
    substring(tap.plan($$SELECT * FROM outbox.joins WHERE grouping_key = 'context 7'$$) FROM '"Index Name": "([^"]*)"'), 'joins_grouping_key_idx',
    'JOIN-082: the joins of a context are found by an index');

-- Saying it twice

SELECT tap.start('s5-again', 2, '1', '2') AS j \gset
SELECT tap.steps('s5-again', '1') AS step \gset
SELECT ARRAY[outbox.ack(tap.alice(), :'step'), outbox.ack(tap.alice(), :'step'), outbox.fail(tap.alice(), :'step'),
             outbox.ack(tap.alice(), :'step'::bigint[] || :'step'::bigint[])] AS acked \gset
SELECT is(
    :'acked' || tap.join(:'j'), '{1,0,0,0}pending 1+0/2 {1,0}',
    'section 5: a message that is acked again counts no second time');

SELECT tap.start('s5-late', 3) AS j, tap.lease('s5-late', 'late') AS leased \gset
SELECT message_id AS m FROM outbox.queue WHERE topic = 's5-late' \gset
SELECT outbox.ack(tap.alice(), :'leased'), outbox.attach_message_to_join(:'j', :'m') AS a, outbox.report_step_completed(:'j', :'m') AS r \gset
SELECT outbox.reconcile_joins() AS counted, outbox.process_join_waits() AS evaluated \gset
SELECT is(
    :'counted' || ' ' || tap.join(:'j'), '0 pending 1+0/3 {1}',
    'section 5: what was attached late and reported by hand before that is not counted again');

SELECT tap.start('s5-redriven', 3, '1', '2') AS j \gset
SELECT outbox.fail(tap.alice(), tap.steps('s5-redriven', '1')) \gset
SELECT outbox.redrive(topic => 's5-redriven') AS back \gset
SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{s5-redriven}') \gset
SELECT outbox.ack(tap.alice(), tap.steps('s5-redriven')) AS acked \gset
SELECT is(
    ARRAY[:'back', :'acked', tap.join(:'j')], '{1,2,"pending 1+1/3 {2,1}"}',
    'section 5: a failed message that is brought back and acked was counted, and stays failed');

SELECT tap.start('s5-back', 2, '1', '2') AS j \gset
SELECT outbox.nack(tap.alice(), tap.steps('s5-back', '1'), delay => '0'), outbox.renew(tap.alice(), tap.steps('s5-back')) AS r,
       outbox.release(tap.alice(), tap.steps('s5-back', '2')) AS released, tap.join(:'j') AS before \gset
SELECT count(*) FROM outbox.claim(tap.bob(), topics => '{s5-back}') \gset
SELECT outbox.ack(tap.bob(), tap.steps('s5-back')) \gset
SELECT is(
    ARRAY[:'before', tap.join(:'j')], '{"pending 0+0/2 {0,0}","completed 2+0/2 {1,1}"}',
    'section 5: nack, release and renew report nothing: a step that is tried again counts once');

-- What people see

SELECT tap.start('s5-progress', 4, '1', '2', '3') AS j \gset
SELECT outbox.ack(tap.alice(), tap.steps('s5-progress', '1')), outbox.fail(tap.alice(), tap.steps('s5-progress', '2')) AS f,
       outbox.enqueue_join_wait(:'j', true, 's5-progress-next', '') AS w \gset
SELECT is(
    ROW(grouping_key, state, expected_steps, completed_steps, failed_steps, missing_steps, members, waits)::text,
    '(s5-progress,pending,4,1,1,2,3,1)',
    'section 5: join_progress shows how far a join is, its members and its waits')
  FROM outbox.join_progress WHERE join_id = :'j';

SELECT ROW(ok, status, detail IS NULL)::text AS before FROM outbox.status() WHERE component = 'joins' \gset
UPDATE outbox.joins SET created_at = now() - interval '2 days', last_updated_at = now() - interval '2 days' WHERE join_id = :'j';
SELECT is(
    ARRAY[:'before', ROW(ok, status, detail IS NULL)::text], '{"(t,\"0 stuck\",t)","(f,\"1 stuck\",f)"}',
    'section 5: status() reports joins that have not changed for a day')
  FROM outbox.status() WHERE component = 'joins';

SELECT is(
    ARRAY(SELECT outbox.join_status_name(s) FROM generate_series(-1, 4) s)
        || outbox.join_status_name(NULL),
    '{NULL,pending,completed,failed,cancelled,NULL,NULL}',
    'section 5: join_status_name spells the four states');

SELECT tap.start('s5-goes', 2, '1', '2') AS j \gset
SELECT outbox.enqueue_join_wait(:'j', true, 's5-goes-next', '') \gset
DELETE FROM outbox.joins WHERE join_id = :'j';
SELECT is(
    ARRAY[(SELECT count(*) FROM outbox.join_members WHERE join_id = :'j'),
          (SELECT count(*) FROM outbox.join_waits WHERE join_id = :'j'),
          outbox.ack(tap.alice(), tap.steps('s5-goes'))],
    '{0,0,2}',
    'section 5: members and waits go with their join; the messages stay');

-- Steps that are enqueued and attached in one

SELECT tap.start('s5-step', 1) AS j \gset
SELECT outbox.enqueue_step(:'j', 's5-step', 'p', 'c', '2100-01-01 00:00+00', 'ns', md5('t')::uuid,
                           replace(md5('t'), '-', '') || '/k', md5('s')::uuid, '{"h": 1}', '2200-01-01 00:00+00', md5('m')::uuid) AS m \gset
SELECT is(
    ROW(message_id, namespace, topic, payload, correlation_id, due_time, tenant_id, right(dedupe_key, 2), stream_id, headers, expires_at)::text
        || tap.join(:'j'),
    ROW(md5('m')::uuid, 'ns', 's5-step', 'p', 'c', '2100-01-01 00:00+00'::timestamptz, md5('t')::uuid, '/k', md5('s')::uuid,
        '{"h": 1}'::jsonb, '2200-01-01 00:00+00'::timestamptz)::text || 'pending 0+0/1 {0}',
    'section 5: enqueue_step enqueues a message, with all that enqueue takes, and attaches it')
  FROM outbox.messages WHERE message_id = :'m';

SELECT tap.start('s5-step-errors', 1) AS j \gset
SELECT is(
    tap.sqlstates(
        $$SELECT outbox.enqueue_step(gen_random_uuid(), 's5-step-errors', 'p')$$,
        $$SELECT outbox.enqueue_step(NULL, 's5-step-errors', 'p')$$,
        format($$SELECT outbox.enqueue_step(%L, '', 'p')$$, :'j'),
        format($$SELECT outbox.enqueue_step(%L, 's5-step-errors', NULL)$$, :'j'))
        || (SELECT count(*)::text FROM outbox.messages WHERE topic = 's5-step-errors') || tap.join(:'j'),
    '{42704,22004,22023,22004,0,"pending 0+0/1 {}"}',
    'section 5: enqueue_step does both or, with the errors of attach and of enqueue, nothing');

SELECT tap.start('s5-any', 2, 'first') AS j \gset
SELECT outbox.enqueue_step(:'j', 's5-any-other', 'second', namespace => 's5-any', tenant_id => md5('t')::uuid) \gset
SELECT outbox.ack(tap.alice(), tap.steps('s5-any')) \gset
SELECT outbox.fail(tap.bob(), array_agg(id)) FROM outbox.claim(tap.bob(), namespace => 's5-any', topics => '{s5-any-other}') \gset
SELECT is(
    tap.join(:'j'), 'failed 1+1/2 {1,2}',
    'section 5: the steps of a join may have any topic, namespace, tenant and worker');

SELECT tap.start('s5-step-key', 2) AS j \gset
SELECT outbox.enqueue_step(:'j', 's5-step-key', 'first', dedupe_key => 'k') AS first,
       outbox.enqueue_step(:'j', 's5-step-key', 'again', dedupe_key => 'k') AS again \gset
SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{s5-step-key}') \gset
SELECT outbox.ack(tap.alice(), tap.steps('s5-step-key')), outbox.enqueue_step(:'j', 's5-step-key', 'late', dedupe_key => 'k') AS late \gset
SELECT is(
    ARRAY[:'first' = :'again', :'first' = :'late']::text || tap.join(:'j'), '{t,t}pending 1+0/2 {1}',
    'section 5: a step whose dedupe_key is taken is the message that has it');

SELECT tap.start('s5-cancel', 1, '1') AS j, tap.start('s5-cancel-over', 1, '1') AS over \gset
SELECT outbox.ack(tap.alice(), tap.steps('s5-cancel-over')) \gset
SELECT is(
    ARRAY[outbox.cancel_join(:'j'), outbox.cancel_join(:'j'), outbox.cancel_join(:'over')]::text
        || ARRAY[tap.join(:'j'), tap.join(:'over')]::text
        || tap.sqlstates('SELECT outbox.cancel_join(gen_random_uuid())', 'SELECT outbox.cancel_join(NULL)')::text,
    '{t,f,f}{"cancelled 0+0/1 {0}","completed 1+0/1 {1}"}{42704,22004}',
    'section 5: cancel_join ends a join that is pending, and says whether it did');

SELECT outbox.fail(tap.alice(), tap.steps('s5-cancel')), outbox.enqueue_step(:'j', 's5-cancel', 'late') AS late,
       outbox.reconcile_joins() AS counted \gset
SELECT is(
    tap.join(:'j'), 'cancelled 0+0/1 {2,0}',
    'section 5: once cancelled a join counts no more; its members are kept');

SELECT outbox.start_join('s5-reconcile', 2, i::text) AS j FROM generate_series(1, 3) i \g /dev/null
SELECT tap.lease('s5-reconcile', '1', '2') AS leased \gset
SELECT outbox.ack(tap.alice(), (:'leased'::bigint[])[1:1]), outbox.fail(tap.alice(), (:'leased'::bigint[])[2:2]) AS f \gset
SELECT count(outbox.attach_message_to_join(j.join_id, m.message_id))
  FROM outbox.joins j, outbox.messages m WHERE j.grouping_key = 's5-reconcile' AND m.topic = 's5-reconcile' \gset
SELECT ARRAY[outbox.reconcile_joins(), outbox.reconcile_joins()] AS counted \gset
SELECT is(
    :'counted' || ARRAY(SELECT tap.join(join_id) FROM outbox.joins WHERE grouping_key = 's5-reconcile')::text
        || tap.sqlstates('SELECT outbox.reconcile_joins(0)')::text,
    '{6,0}{"failed 1+1/2 {1,2}","failed 1+1/2 {1,2}","failed 1+1/2 {1,2}"}{22023}',
    'section 5: reconcile_joins counts what was missed in all joins, and says how much; no batch is less than 1');

SELECT tap.start('s5-retention-pending', 1) AS pending, tap.start('s5-retention-over', 1, 'p') AS over, tap.start('s5-retention-waited', 1, 'p') AS waited \gset
SELECT outbox.ack(tap.alice(), tap.steps('s5-retention-over')), outbox.ack(tap.alice(), tap.steps('s5-retention-waited')) AS a,
       outbox.enqueue_join_wait(:'waited', true, 's5-retention-next', '') AS w,
       outbox.cleanup() AS usual,
       (SELECT count(*) FROM outbox.joins WHERE grouping_key LIKE 's5-retention-%') AS young \gset
UPDATE outbox.joins SET created_at = now() - interval '31 days', last_updated_at = now() - interval '31 days' WHERE grouping_key LIKE 's5-retention-%';
UPDATE outbox.cleanup_progress SET at = now() - interval '32 days' WHERE name = 'installed';
SELECT outbox.cleanup() \gset
SELECT count(*) AS members FROM outbox.join_members WHERE join_id = :'over' \gset
SELECT is(
    ARRAY[:'young', :'members'] || ARRAY(SELECT grouping_key FROM outbox.joins WHERE grouping_key LIKE 's5-retention-%' ORDER BY 1),
    '{3,0,s5-retention-pending,s5-retention-waited}',
    'section 5: joins that ended join_retention ago (30 days) go with their members; none that is pending or waited for');

SELECT * FROM finish();
ROLLBACK;
