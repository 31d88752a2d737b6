-- restored: messages that a dump brings back while this database has them in its
-- history: whatever happens to them, nothing is blocked forever

\set owner '''10000000-0000-0000-0000-000000000001'''
SET outbox.max_attempts = 10;
CREATE TEMP TABLE dump AS SELECT * FROM outbox.queue WITH NO DATA;

-- what is done is done again, and history has both
SELECT outbox._make_partition(-2, now(), '1 day') IS NOT NULL AS ok;
SELECT count(outbox.enqueue('re.done', p, dedupe_key => p)) FROM unnest('{a,b}'::text[]) p;
INSERT INTO dump SELECT * FROM outbox.queue WHERE topic = 're.done';
SELECT outbox.ack(:owner, array_agg(id)) FROM outbox.claim(:owner, topics => '{re.done}');
INSERT INTO outbox.queue SELECT * FROM dump;
SELECT payload, state, count(*) FROM outbox.messages WHERE topic = 're.done' GROUP BY 1, 2 ORDER BY 1, 2;
SELECT gate, passed FROM outbox.explain_message((SELECT min(id) FROM dump)) WHERE NOT passed OR gate = 'unfinished';
SELECT outbox.ack(:owner, array_agg(id)) FROM outbox.claim(:owner, topics => '{re.done}') WHERE payload = 'a';
SELECT payload, state, count(*) FROM outbox.messages WHERE topic = 're.done' GROUP BY 1, 2 ORDER BY 1, 2;
SELECT count(DISTINCT id), count(*), count(DISTINCT tableoid), min(tableoid::regclass::text) ~ 'archive_default' AS sorted FROM outbox.archive WHERE topic = 're.done';
-- without a partition, too
SELECT outbox.configure_topic('re.unsorted', retention => '3 days');
SELECT count(outbox.enqueue('re.unsorted', 'x'));
TRUNCATE dump;
INSERT INTO dump SELECT * FROM outbox.queue WHERE topic = 're.unsorted';
SELECT outbox.ack(:owner, array_agg(id)) FROM outbox.claim(:owner, topics => '{re.unsorted}');
INSERT INTO outbox.queue SELECT * FROM dump;
SELECT outbox.ack(:owner, array_agg(id)) FROM outbox.claim(:owner, topics => '{re.unsorted}');
SELECT count(DISTINCT id), count(*), min(tableoid::regclass::text) FROM outbox.archive WHERE topic = 're.unsorted';

-- a message that is back keeps its dedupe key when its history goes
SELECT count(*) FILTER (WHERE outbox._forget_key(namespace, topic, dedupe_key, message_id)) AS forgotten, count(*) FROM outbox.archive WHERE topic = 're.done';
SELECT enqueued FROM outbox.try_enqueue('re.done', 'again', dedupe_key => 'b');
SELECT enqueued FROM outbox.try_enqueue('re.done', 'again', dedupe_key => 'a');

-- what has failed fails again: the dead have it once, as it was the last time
SELECT count(outbox.enqueue('re.dead', p)) FROM unnest('{nacked,failed,exhausted,expired,discarded}'::text[]) p;
TRUNCATE dump;
INSERT INTO dump SELECT * FROM outbox.queue WHERE topic = 're.dead';
SELECT outbox.fail(:owner, array_agg(id), 'first') FROM outbox.claim(:owner, topics => '{re.dead}');
INSERT INTO outbox.queue SELECT * FROM dump;
UPDATE outbox.queue SET attempts = 10 WHERE topic = 're.dead' AND payload = 'exhausted';
UPDATE outbox.queue SET expires_at = now() WHERE topic = 're.dead' AND payload = 'expired';
SELECT outbox.discard(array_agg(id)) FROM dump WHERE payload = 'discarded';
CREATE TEMP TABLE got AS SELECT * FROM outbox.claim(:owner, topics => '{re.dead}', max_attempts => 10);
SELECT payload, attempts FROM got ORDER BY id;
SELECT outbox.fail(:owner, array_agg(id), 'second') FROM got WHERE payload = 'failed';
SELECT outbox.nack(:owner, array_agg(id), 'second', max_attempts => 1) FROM got WHERE payload = 'nacked';
SELECT outbox.reap();
SELECT payload, state, outbox.reason_name(failure_reason), last_error FROM outbox.messages WHERE topic = 're.dead' ORDER BY id;
SELECT payload, id = (SELECT id FROM dump WHERE dump.message_id = m.message_id) AS same_id FROM outbox.messages m WHERE topic = 're.dead' ORDER BY id;

-- one that is back cannot be brought back as well, until it has ended
INSERT INTO outbox.queue SELECT * FROM dump WHERE payload = 'failed';
SELECT outbox.redrive('re.dead');
SELECT payload, state, count(*) FROM outbox.messages WHERE topic = 're.dead' GROUP BY 1, 2 ORDER BY 1, 2;
SELECT outbox.ack(:owner, array_agg(id)) FROM outbox.claim(:owner, topics => '{re.dead}');
SELECT outbox.requeue(array_agg(id)) FROM dump;
SELECT outbox.ack(:owner, array_agg(id)) FROM outbox.claim(:owner, topics => '{re.dead}');
SELECT payload, state, count(*) FROM outbox.messages WHERE topic = 're.dead' GROUP BY 1, 2 ORDER BY 1, 2;

-- two messages with one id: the sequence of ids was set back
SELECT count(outbox.enqueue('re.id', 'one'));
SELECT last_value AS last_id FROM outbox.message_id_seq \gset
SELECT outbox.fail(:owner, array_agg(id), 'one') FROM outbox.claim(:owner, topics => '{re.id}');
SELECT ok FROM outbox.status() WHERE component = 'ids';
SELECT setval('outbox.message_id_seq', :last_id - 1) = :last_id - 1;
SELECT count(outbox.enqueue('re.id', 'two'));
SELECT outbox.redrive('re.id');
SELECT setval('outbox.message_id_seq', :last_id - 1) = :last_id - 1;
SELECT ok, status, detail = format('the next id is %s, but %s is in use', :last_id, :last_id) AS detail, hint LIKE '%setval(''outbox.message_id_seq'', greatest(' || :last_id || ', last_value)) FROM outbox.message_id_seq;' AS hint FROM outbox.status() WHERE component = 'ids';
\set VERBOSITY sqlstate
SELECT outbox.enqueue('re.id', 'three');
\set VERBOSITY default
SELECT setval('outbox.message_id_seq', :last_id) = :last_id;
SELECT outbox.fail(:owner, array_agg(id), 'two') FROM outbox.claim(:owner, topics => '{re.id}');
SELECT payload, last_error, id > :last_id AS is_new FROM outbox.dead_letters WHERE topic = 're.id' ORDER BY id;
SELECT outbox.redrive('re.id');
SELECT outbox.ack(:owner, array_agg(id)) FROM outbox.claim(:owner, topics => '{re.id}');

-- and many ids after it are taken: a message that dies beside others finds a free one
SELECT count(outbox.enqueue('re.many', i::text)) FROM generate_series(1, 20) i;
SELECT min(id) AS first_id FROM outbox.queue WHERE topic = 're.many' \gset
SELECT outbox.fail(:owner, array_agg(id)) FROM outbox.claim(:owner, topics => '{re.many}', batch_size => 20);
INSERT INTO outbox.queue SELECT q.* FROM (SELECT * FROM dump LIMIT 1) d, LATERAL jsonb_populate_record(NULL::outbox.queue, to_jsonb(d) || jsonb_build_object('id', :first_id, 'message_id', gen_random_uuid(), 'topic', 're.many', 'payload', 'expired', 'expires_at', now() - interval '1 s', 'status', 0, 'owner_token', NULL, 'locked_until', NULL)) q;
SELECT setval('outbox.message_id_seq', :first_id) = :first_id;
SELECT ok FROM outbox.status() WHERE component = 'ids';
SELECT outbox.reap();
SELECT count(*), count(DISTINCT id), max(id) FILTER (WHERE payload = 'expired') - min(id) AS places FROM outbox.dead WHERE topic = 're.many';
SELECT count(outbox.enqueue('re.many', 'good'));
SELECT payload FROM outbox.claim(:owner, topics => '{re.many}');
DELETE FROM outbox.queue WHERE topic = 're.many';
DELETE FROM outbox.dead WHERE topic = 're.many';

-- received messages, and timers
SELECT outbox.receive('20000000-0000-0000-0000-000000000001', 're.inbox', 'x');
CREATE TEMP TABLE received AS SELECT * FROM outbox.inbox_queue WHERE message_id = '20000000-0000-0000-0000-000000000001';
SELECT outbox.fail_inbox(:owner, array_agg(id), 'first') FROM outbox.claim_inbox(:owner, handler_names => '{re.inbox}');
INSERT INTO outbox.inbox_queue SELECT * FROM received;
SELECT outbox.requeue_inbox(array_agg(id)) FROM received;
SELECT outbox.fail_inbox(:owner, array_agg(id), 'second') FROM outbox.claim_inbox(:owner, handler_names => '{re.inbox}');
SELECT last_error FROM outbox.dead_inbox WHERE handler_name = 're.inbox';
SELECT outbox.requeue_inbox(array_agg(id)) FROM received;
SELECT outbox.ack_inbox(:owner, array_agg(id)) FROM outbox.claim_inbox(:owner, handler_names => '{re.inbox}');
SELECT count(outbox.schedule_timer('re.timer', 'x', now()));
CREATE TEMP TABLE timers AS SELECT * FROM outbox.timer_queue WHERE topic = 're.timer';
SELECT outbox.ack_timers(:owner, array_agg(id)) FROM outbox.claim_timers(:owner) WHERE topic = 're.timer';
INSERT INTO outbox.timer_queue SELECT * FROM timers;
SELECT outbox.ack_timers(:owner, array_agg(id)) FROM outbox.claim_timers(:owner) WHERE topic = 're.timer';
SELECT state, count(*) FROM outbox.timers WHERE topic = 're.timer' GROUP BY 1;

SELECT outbox.purge_topic('re.dead', what => 'all') + outbox.purge_topic('re.done', what => 'all') + outbox.purge_topic('re.id', what => 'all') AS purged;
RESET outbox.max_attempts;
DISCARD ALL;
