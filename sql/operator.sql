-- what an operator does with messages that wait, and what the views show
TRUNCATE outbox.queue, outbox.dead, outbox.dedupe, outbox.archive, outbox.joins, outbox.join_members, outbox.join_waits, outbox.inbox_dead, outbox.timer_dead, outbox.run_dead;
\set a '''aaaaaaaa-0000-4000-8000-000000000001'''
\set s '''5ec5ec5e-0000-4000-8000-000000000009'''
CREATE FUNCTION ids(of_topic text) RETURNS bigint[] LANGUAGE sql AS
    'SELECT array_agg(id ORDER BY id) FROM outbox.messages WHERE topic = of_topic';

-- discard: what waits is dead, as cancelled; what is leased, finished or unknown is skipped
SELECT cardinality(outbox.enqueue_many('op.a', '{1,2,3,4,5}')) AS n;
SELECT id AS leased FROM outbox.claim(:a, topics => '{op.a}', batch_size => 1) \gset
SELECT outbox.reschedule((ids('op.a'))[2:2], 'infinity') AS parked;
SELECT outbox.discard(ids('op.a') || ids('op.a') || ARRAY[NULL, -1, 9223372036854775807]) AS discarded;
SELECT outbox.discard(ids('op.a')) AS again, outbox.discard('{}') AS none, outbox.discard(NULL) AS nothing;
SELECT payload, state, outbox.reason_name(failure_reason) AS reason FROM outbox.messages WHERE topic = 'op.a' ORDER BY id;
SELECT outbox.ack(:a, ARRAY[:leased]::bigint[]) AS still_the_owners;
-- a lease that has ended is no lease
SELECT outbox.requeue(ids('op.a')) AS back;
SELECT count(*) FROM outbox.claim(:a, topics => '{op.a}', batch_size => 2);
UPDATE outbox.queue SET locked_until = now() - interval '1 s' WHERE topic = 'op.a' AND status = 1;
SELECT outbox.discard(ids('op.a')) AS discarded;
SELECT outbox.ack(:a, ids('op.a')) AS lost;

-- in a stream: the next one can be claimed
SELECT outbox.enqueue('op.stream', i::text, stream_id => :s) IS NOT NULL AS ok FROM generate_series(1, 3) i;
SELECT behind, state FROM outbox.stream_heads WHERE stream_id = :s;
SELECT outbox.discard((ids('op.stream'))[1:1]) AS discarded;
SELECT payload FROM outbox.claim(:a, topics => '{op.stream}', batch_size => 1);
SELECT outbox.release(:a);
-- and one that is postponed keeps the others waiting
SELECT outbox.reschedule((ids('op.stream'))[2:2], now() + interval '1 hour') AS put_off;
SELECT count(*) FROM outbox.claim(:a, topics => '{op.stream}');
SELECT outbox.reschedule((ids('op.stream'))[2:2], NULL) AS now;
SELECT payload FROM outbox.claim(:a, topics => '{op.stream}') ORDER BY id;
SELECT outbox.release(:a);

-- joins count what is cancelled, and what is purged
SELECT outbox.start_join('op', 2) AS j \gset
SELECT outbox.enqueue_step(:'j', 'op.step', 'x') AS step \gset
SELECT outbox.enqueue_step(:'j', 'op.step', 'y') IS NOT NULL AS ok;
SELECT outbox.cancel(:'step') AS cancelled, outbox.cancel(:'step') AS again, outbox.cancel(gen_random_uuid()) AS unknown;
SELECT outbox.purge_topic('op.step') AS purged;
SELECT state, completed_steps, failed_steps FROM outbox.join_progress WHERE join_id = :'j';
SELECT payload, state FROM outbox.messages WHERE topic = 'op.step';

-- the key of a cancelled message is free; when the message comes back it takes the key, if it can
SELECT outbox.enqueue('op.key', '1', dedupe_key => 'k') IS NOT NULL AS ok;
SELECT outbox.cancel_by_key('op.key', 'k', 'other') AS other, outbox.cancel_by_key('op.key', 'k') AS cancelled, outbox.cancel_by_key('op.key', 'k') AS again;
SELECT outbox.requeue(ids('op.key')) AS back;
SELECT enqueued FROM outbox.try_enqueue('op.key', '2', dedupe_key => 'k');
SELECT outbox.cancel_by_key('op.key', 'k') AS cancelled;
SELECT enqueued FROM outbox.try_enqueue('op.key', '3', dedupe_key => 'k');
SELECT outbox.requeue(ids('op.key')) AS back;
SELECT payload, state, dedupe_key FROM outbox.messages WHERE topic = 'op.key' ORDER BY id;
-- rolled back, it is still taken
BEGIN;
SELECT outbox.cancel_by_key('op.key', 'k') AS cancelled;
ROLLBACK;
SELECT enqueued FROM outbox.try_enqueue('op.key', '4', dedupe_key => 'k');
SELECT payload FROM outbox.claim(:a, topics => '{op.key}') ORDER BY id;

-- purge_topic: bounded, with all tenants, and not what is leased
SELECT count(outbox.enqueue('op.purge', 'p', tenant_id => CASE WHEN i % 2 = 0 THEN 'aaaaaaaa-0000-4000-8000-00000000000a'::uuid END)) FROM generate_series(1, 10) i;
SELECT count(*) FROM outbox.claim(:a, topics => '{op.purge}', batch_size => 2);
SELECT outbox.fail(:a, ids('op.purge')) AS dead;
SELECT count(*) FROM outbox.claim(:a, topics => '{op.purge}', batch_size => 1);
SELECT outbox.purge_topic('op.purge', batch_limit => 3) AS purged;
SELECT due, leased, dead FROM outbox.topic_counts WHERE topic = 'op.purge';
SELECT outbox.purge_topic('op.purge', 'default', 'all', 5) AS purged;
SELECT outbox.purge_topic('op.purge', what => 'all') AS purged, outbox.purge_topic('op.purge', what => 'all') AS again;
SELECT due, leased, dead FROM outbox.topic_counts WHERE topic = 'op.purge';
SELECT enqueued FROM outbox.try_enqueue('op.purge', 'k', dedupe_key => 'k');
SELECT outbox.discard(ids('op.purge')), outbox.purge_topic('op.purge', what => 'dead') AS purged;
SELECT count(*) FROM outbox.dedupe WHERE key = outbox._dedupe_digest('default', 'op.purge', 'k');
SELECT outbox.release(:a) > 0 AS released;

-- dead ones of other kinds come back
SELECT outbox.receive('bbbbbbbb-0000-4000-8000-000000000001', 'op.in', 'x') AS new;
SELECT outbox.fail_inbox(:a, array_agg(id), 'no good', 4) FROM outbox.claim_inbox(:a, handler_names => '{op.in}');
SELECT handler_name, attempts, reason_name, last_error, payload FROM outbox.dead_inbox;
SELECT component, ok, status, detail FROM outbox.status() WHERE component ~ 'dead (inbox|timers|runs)' ORDER BY 1;
SELECT outbox.requeue_inbox(array_agg(id)) FROM outbox.dead_inbox;
SELECT state, attempts FROM outbox.inbox WHERE handler_name = 'op.in';
SELECT outbox.ack_inbox(:a, array_agg(id)) FROM outbox.claim_inbox(:a, handler_names => '{op.in}');
SELECT outbox.schedule_timer('op.timer', 'x', now()) IS NOT NULL AS ok;
SELECT outbox.fail_timers(:a, array_agg(id), 'no good') FROM outbox.claim_timers(:a) WHERE topic = 'op.timer';
SELECT outbox.requeue_timers(array_agg(id)) FROM outbox.dead_timers WHERE topic = 'op.timer';
SELECT state FROM outbox.timers WHERE topic = 'op.timer';
SELECT outbox._add_run('op.job', 'op.run', 'x') > 0 AS ok;
SELECT outbox.fail_job_runs(:a, array_agg(id), 'no good') FROM outbox.claim_job_runs(:a) WHERE topic = 'op.run';
SELECT outbox.requeue_job_runs(array_agg(id)) FROM outbox.dead_job_runs WHERE topic = 'op.run';
SELECT job_name, state FROM outbox.job_runs WHERE topic = 'op.run';
DELETE FROM outbox.timer_queue; DELETE FROM outbox.run_queue;

-- failures, and leases
SELECT outbox.enqueue('op.fail', 'x') IS NOT NULL AS ok FROM generate_series(1, 3);
SELECT outbox.fail(:a, array_agg(id), E'line 1\nline 2', 4) FROM outbox.claim(:a, topics => '{op.fail}');
SELECT topic, namespace, reason_name, count, last_error, last_id = (ids('op.fail'))[3] AS last FROM outbox.failures WHERE topic = 'op.fail';
SELECT outbox.enqueue('op.who', 'x') IS NOT NULL AS ok;
SET application_name = 'op_worker';
SELECT count(*) FROM outbox.claim('dddddddd-0000-4000-8000-000000000004', topics => '{op.who}');
RESET application_name;
SELECT topic, pid = pg_backend_pid() AS mine, application, time_left BETWEEN '20 s' AND '30 s' AS time_left FROM outbox.leases WHERE topic = 'op.who';
SELECT namespace, waiting, last_pid = pg_backend_pid() AS mine, last_application, last_claim_age < '1 min' AS lately FROM outbox.claimers WHERE topic = 'op.who';
SELECT detail ~ format('claimed by process %s, application op_worker', pg_backend_pid()) AS says_who FROM outbox.explain_message((ids('op.who'))[1]) WHERE gate = 'not leased';
SELECT outbox.release('dddddddd-0000-4000-8000-000000000004');
-- the leases that were claimed first
SELECT outbox.enqueue('op.old', i::text, namespace => CASE WHEN i = 4 THEN 'tenant' ELSE 'default' END) IS NOT NULL AS ok FROM generate_series(1, 4) i;
SELECT outbox.subscribe('op_sub', '{op.new}');
SELECT outbox.publish('op.new', '5') IS NOT NULL AS ok;
SELECT payload FROM outbox.claim(:a, batch_size => 1, subscription => 'op_sub');
SELECT payload FROM outbox.claim(:a, batch_size => 1, topics => '{op.old}', namespace => 'tenant');
SELECT payload FROM outbox.claim(:a, batch_size => 1, topics => '{op.old}', namespace => 'default');
SELECT payload FROM outbox.claim('dddddddd-0000-4000-8000-000000000004', batch_size => 2, topics => '{op.old}', namespace => 'default');
CREATE TEMP VIEW payloads AS SELECT id, payload FROM outbox.messages;
SELECT p.payload, l.topic, l.namespace, l.subscription FROM outbox.oldest_leases() WITH ORDINALITY l JOIN payloads p USING (id) WHERE l.topic IN ('op.old', 'op.new') ORDER BY l.ordinality;
SELECT p.payload FROM outbox.oldest_leases(2, 'op.old') WITH ORDINALITY l JOIN payloads p USING (id) ORDER BY l.ordinality;
SELECT p.payload FROM outbox.oldest_leases(3, topic => 'op.old', namespace => 'default') WITH ORDINALITY l JOIN payloads p USING (id) ORDER BY l.ordinality;
SELECT p.payload FROM outbox.oldest_leases(subscription => 'op_sub') l JOIN payloads p USING (id);
SELECT count(*) FROM outbox.oldest_leases(NULL, 'op.new', 'tenant');
SELECT outbox.oldest_leases(0);
SELECT outbox.oldest_leases(100001);
DROP VIEW payloads;
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.oldest_leases(subscription => 'op_sub');
SELECT outbox.release(:a), outbox.release('dddddddd-0000-4000-8000-000000000004');
SELECT outbox.unsubscribe('op_sub');
SELECT outbox.purge_topic('op.old'), outbox.purge_topic('op.old', 'tenant');
-- released attempts do not count
SELECT attempts FROM outbox.messages WHERE topic = 'op.who';
SELECT attempts FROM outbox.claim(:a, topics => '{op.who}');

-- explain_message in three forms
SELECT gate, passed, regexp_replace(detail, ' at [^,]*', ' at ...') AS detail FROM outbox.explain_message((ids('op.fail'))[1]);
SELECT message_id AS m, id AS i FROM outbox.messages WHERE id = (ids('op.fail'))[1] \gset
SELECT count(*) FROM outbox.explain_message(:'m'::uuid) WHERE detail ~ 'validation';
SELECT count(*) FROM outbox.explain_message(:'m') WHERE detail ~ 'validation';
SELECT count(*) FROM outbox.explain_message(:'i') WHERE detail ~ 'validation';
SELECT * FROM outbox.explain_message(gen_random_uuid());
SELECT outbox.nack(:a, ids('op.who'), 'later', '1 hour');
SELECT detail ~ 'a retry after 1 failed attempts, reason: unknown$' AS says_why FROM outbox.explain_message((ids('op.who'))[1]) WHERE gate = 'due';
-- a message in the partition of an instance
SELECT outbox.heartbeat('eeeeeeee-0000-4000-8000-000000000001', 'svc', 'host1', 11), outbox.heartbeat('eeeeeeee-0000-4000-8000-000000000002', 'svc', 'host2', 12);
SELECT outbox.enqueue('op.part', 'x', stream_id => gen_random_uuid()) IS NOT NULL AS ok FROM generate_series(1, 20);
CREATE TEMP TABLE explained AS
    SELECT m.id, substring(e.detail FROM 'instance (\S+)') AS owner
      FROM outbox.messages m, outbox.explain_message(m.id) e WHERE m.topic = 'op.part' AND e.gate = 'for any instance';
SELECT count(*) AS of_the_first, count(*) FILTER (WHERE e.owner LIKE '%1') AS explained
  FROM outbox.process_work_batch('eeeeeeee-0000-4000-8000-000000000001', 'svc', 'host1', 11) w JOIN explained e ON e.id = w.id \gset
SELECT :of_the_first = :explained AND :of_the_first = (SELECT count(*) FROM explained WHERE owner LIKE '%1') AS right;
SELECT outbox.deregister_instance('eeeeeeee-0000-4000-8000-000000000001') > 0 AS ok, outbox.deregister_instance('eeeeeeee-0000-4000-8000-000000000002');
SELECT outbox.purge_topic('op.part');

-- status: problems come first, with names
SELECT outbox.enqueue('op.late', 'x') IS NOT NULL AS ok;
UPDATE outbox.queue SET next_attempt_at = now() - interval '10 min' WHERE topic = 'op.late';
SELECT ok, detail FROM outbox.status() WHERE component = 'oldest ready message';
SELECT outbox.pause_topic('op.late');
SELECT ok, detail ~ 'paused, and left out: op.late' AS paused FROM outbox.status() WHERE component = 'oldest ready message';
SELECT topic, paused, ready, oldest_ready_age >= '10 min' AS old FROM outbox.topic_stats LIMIT 1;
SELECT bool_and(ok >= before) AS worst_first FROM (SELECT ok, lag(ok, 1, false) OVER (ORDER BY n) AS before FROM outbox.status() WITH ORDINALITY s(c, ok, st, d, h, n)) o;
SELECT ok, status, detail FROM outbox.status() WHERE component = 'dead messages';

-- policies: a topic that is not known, and unsetting one value
SELECT outbox.pause_topic('op.*');
SELECT outbox.configure_topic('op.*', max_attempts => 3, backoff_jitter => false);
SELECT outbox.reset_topic('op.*', setting => 'max_attempts'), outbox.reset_topic('op.*', setting => 'max_attempts') AS again,
       outbox.reset_topic('op.*', setting => 'paused') AS paused, outbox.reset_topic('op.*', setting => 'backoff_jitter') AS jitter;
SELECT paused, max_attempts, backoff_jitter FROM outbox.topics WHERE topic = 'op.*';
SELECT outbox.reset_topic('op.*'), outbox.reset_topic('op.late');
SELECT outbox.redrive('op.fail');

\set VERBOSITY sqlstate
SELECT outbox.reset_topic('op.*', setting => 'topic');
SELECT outbox.cancel(NULL);
SELECT outbox.cancel_by_key('t', NULL);
SELECT outbox.cancel_by_key('t', '');
SELECT outbox.purge_topic('t', what => 'leased');
SELECT outbox.purge_topic('t', what => NULL);
SELECT outbox.purge_topic('t', batch_limit => 0);
SELECT outbox.purge_topic(NULL);
SELECT outbox.discard('{{1,2}}');
SELECT outbox.explain_message('x');
SELECT outbox.explain_message('99999999999999999999');
SELECT outbox.explain_message(NULL);
SELECT outbox.configure_topic('t', backoff_base => '-1 year 361 days');
SELECT outbox.configure_topic('t', backoff_max => '178000000 years');
SELECT outbox.nack(:a, '{1}', delay => '367 days');
SELECT outbox.nack(:a, '{1}', delay => '2147483647 days -71582788 mons');
SELECT outbox.ack(:a, array_fill(NULL::bigint, ARRAY[10000001]));
BEGIN READ ONLY; SELECT outbox.discard('{1}'); ROLLBACK;
BEGIN READ ONLY; SELECT outbox.purge_topic('t'); ROLLBACK;

-- payloads of any type, headers that are objects
SELECT outbox.enqueue('op.json', '{"b":1,  "a":2}'::json) IS NOT NULL AS json, outbox.enqueue('op.json', '{"b":1,  "a":2}'::jsonb) IS NOT NULL AS jsonb,
       outbox.enqueue('op.json', '{"b":1,  "a":2}') IS NOT NULL AS unknown, cardinality(outbox.enqueue_many_json('op.json', '[1, "x", {"c": null}]')) AS many;
SELECT payload FROM outbox.messages WHERE topic = 'op.json' ORDER BY id;
SELECT (outbox.try_enqueue('op.json', row_to_json(r))).enqueued FROM (SELECT 1 AS a) r;
SELECT outbox.receive(gen_random_uuid(), 'op.in', '1'::json) AND outbox.receive(gen_random_uuid(), 'op.in', '1'::jsonb) AS received,
       outbox.schedule_timer('op.timer', '1'::json, 'infinity') IS NOT NULL AND outbox.schedule_timer('op.timer', '1'::jsonb, 'infinity') IS NOT NULL AS scheduled;
SELECT outbox.start_join('op', 2) AS j \gset
SELECT outbox.enqueue_step(:'j', 'op.step', '1'::json) IS NOT NULL AND outbox.enqueue_step(:'j', 'op.step', '1'::jsonb) IS NOT NULL AS steps,
       outbox.enqueue_join_wait(:'j', false, 'op.c', '1'::json, 'op.f', '2'::json) IS NOT NULL AND outbox.enqueue_join_wait(:'j', false, 'op.c', '1'::jsonb) IS NOT NULL AS waits;
SELECT outbox.enqueue_many_json('op.json', '{}');
SELECT outbox.enqueue_many_json('op.json', NULL);
SELECT outbox.enqueue('op.json', NULL::json);
SELECT outbox.enqueue('op.json', 'x', headers => '"s"');
SELECT outbox.enqueue('op.json', 'x', headers => '[]');
SELECT outbox.enqueue('op.json', 'x', headers => jsonb_build_object('h', repeat('x', 1048577)));
SELECT outbox.enqueue('op.json', repeat('x', 268435457));
SELECT outbox.enqueue_batch('[{"topic": "op.json", "payload": 1, "headers": 1}]');
SELECT outbox.receive(gen_random_uuid(), 'op.in', 'x', headers => '1');
INSERT INTO outbox.queue (topic, payload, headers) VALUES ('op.json', 'x', '1');
SELECT source FROM outbox.process_work_batch(:a, 's', 'h', 1, receptor_completions => '[{"messageId": "aaaaaaaa-0000-4000-8000-000000000001", "receptorName": "", "status": 1}]');
SELECT source FROM outbox.process_work_batch(:a, 's', 'h', 1, perspective_failures => jsonb_build_array(jsonb_build_object('streamId', gen_random_uuid(), 'perspectiveName', repeat('x', 256), 'status', 1)));
\set VERBOSITY default
SELECT count(*) FROM outbox.process_work_batch(:a, 's', 'h', 1, new_outbox_messages => '[{"destination": "op.camel", "payload": 1, "correlationId": "c"}]') WHERE topic = 'op.camel';
SELECT correlation_id FROM outbox.messages WHERE topic = 'op.camel';

SELECT outbox.deregister_instance(:a) > 0 AS ok;
DROP FUNCTION ids(text);
TRUNCATE outbox.queue, outbox.dead, outbox.dedupe, outbox.archive, outbox.joins, outbox.join_members, outbox.join_waits, outbox.inbox_queue, outbox.message_deduplication, outbox.timer_queue, outbox.topics;
