-- what happens to the message that has the dedupe key: on_duplicate
\set a '''aaaaaaaa-0000-4000-8000-000000000001'''
\set b '''bbbbbbbb-0000-4000-8000-000000000002'''
\set s1 '''5a5a5a5a-0000-4000-8000-000000000001'''
SET client_min_messages = warning;
DELETE FROM outbox.queue;

-- replace: payload and headers of a message that waits, and nothing else
SELECT outbox.enqueue('dp', 'old', 'corr', '2999-01-01', dedupe_key => 'k', headers => '{"h": 1}', priority => 1) AS m \gset
SELECT next_attempt_at AS at, id AS i FROM outbox.messages WHERE message_id = :'m' \gset
SELECT message_id = :'m' AS same, enqueued, outcome
  FROM outbox.try_enqueue('dp', 'new', 'other', '2001-01-01', dedupe_key => 'k', on_duplicate => 'replace', headers => '{"h": 2}',
                          priority => -2, expires_at => '2000-01-01', stream_id => :s1, message_id => '33333333-3333-4333-8333-000000000001');
SELECT payload, headers, correlation_id, due_time, next_attempt_at = :'at' AS same_place, priority, expires_at, stream_id, attempts, updated_at > created_at AS updated
  FROM outbox.messages WHERE topic = 'dp';
SELECT outcome FROM outbox.try_enqueue('dp', '{"json": 1}'::jsonb, dedupe_key => 'k', on_duplicate => 'replace');
SELECT payload, headers FROM outbox.messages WHERE topic = 'dp';
SELECT outcome FROM outbox.try_enqueue('dp', repeat('long', 100000), dedupe_key => 'k', on_duplicate => 'replace');
SELECT outcome FROM outbox.try_enqueue('dp', 'kept', dedupe_key => 'k');
SELECT outcome FROM outbox.try_enqueue('dp', 'kept', dedupe_key => 'k', on_duplicate => 'keep');
SELECT outcome FROM outbox.try_enqueue('dp', 'kept', dedupe_key => 'k', on_duplicate => NULL);
SELECT length(payload) FROM outbox.messages WHERE topic = 'dp';
-- without a key it means nothing
SELECT enqueued, outcome FROM outbox.try_enqueue('dp.none', 'a', on_duplicate => 'replace');
SELECT enqueued, outcome FROM outbox.try_enqueue('dp.none', 'b', dedupe_key => '', on_duplicate => 'debounce');
-- what is refused changes nothing
\set VERBOSITY sqlstate
SELECT outbox.try_enqueue('dp', NULL::text, dedupe_key => 'k', on_duplicate => 'replace');
SELECT outbox.try_enqueue('dp', 'p', dedupe_key => 'k', on_duplicate => 'replace', headers => '[]');
SELECT outbox.try_enqueue('dp', 'p', dedupe_key => 'k', on_duplicate => 'replacE');
\set VERBOSITY default
SELECT length(payload) FROM outbox.messages WHERE topic = 'dp';

-- leased, it is kept; released, it waits
SELECT outbox.reschedule(ARRAY[:i], NULL);
SELECT length(payload), attempts FROM outbox.claim(:a, topics => '{dp}');
SELECT outcome FROM outbox.try_enqueue('dp', 'new', dedupe_key => 'k', on_duplicate => 'replace');
SELECT outcome FROM outbox.try_enqueue('dp', 'new', dedupe_key => 'k', on_duplicate => 'debounce');
SELECT outbox.nack(:a, ARRAY[:i], 'again', '1 hour');
SELECT outcome FROM outbox.try_enqueue('dp', 'retried', dedupe_key => 'k', on_duplicate => 'replace');
SELECT payload, status, attempts, retry_count, last_error, next_attempt_at > now() + interval '59 min' AS waits_for_its_retry FROM outbox.messages WHERE topic = 'dp';
-- a lease that has ended is removed: its owner has the old message
SELECT outbox.reschedule(ARRAY[:i], NULL);
SELECT payload FROM outbox.claim(:a, topics => '{dp}');
UPDATE outbox.queue SET locked_until = now() - interval '1 s' WHERE id = :i;
SELECT outcome FROM outbox.try_enqueue('dp', 'after the lease', dedupe_key => 'k', on_duplicate => 'replace');
SELECT outbox.ack(:a, ARRAY[:i]);
SELECT payload, attempts FROM outbox.claim(:a, topics => '{dp}');
-- done or dead, it is kept
SELECT outbox.fail(:a, ARRAY[:i]);
SELECT outcome FROM outbox.try_enqueue('dp', 'new', dedupe_key => 'k', on_duplicate => 'replace');
SELECT outcome FROM outbox.try_enqueue('dp', 'new', dedupe_key => 'k', on_duplicate => 'debounce');
SELECT outbox.requeue(ARRAY[:i]);
SELECT outcome FROM outbox.try_enqueue('dp', 'back', dedupe_key => 'k', on_duplicate => 'replace');
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.claim(:a, topics => '{dp}');
SELECT outcome FROM outbox.try_enqueue('dp', 'new', dedupe_key => 'k', on_duplicate => 'replace');
SELECT payload, status FROM outbox.messages WHERE topic = 'dp';
-- so is one that will not be handed out any more: it has expired, or its attempts are used up
SELECT outbox.enqueue('dp.over', 'old', dedupe_key => 'e', expires_at => now() - interval '1 s') IS NOT NULL AS ok;
SELECT outcome FROM outbox.try_enqueue('dp.over', 'new', dedupe_key => 'e', on_duplicate => 'replace');
SELECT outbox.enqueue('dp.over', 'old', dedupe_key => 'x') IS NOT NULL AS ok;
SELECT payload FROM outbox.claim(:a, topics => '{dp.over}');
UPDATE outbox.queue SET locked_until = now() - interval '1 s', attempts = 10 WHERE topic = 'dp.over' AND dedupe_key = 'x';
SELECT outcome FROM outbox.try_enqueue('dp.over', 'new', dedupe_key => 'x', on_duplicate => 'debounce');
SELECT payload FROM outbox.messages WHERE topic = 'dp.over' ORDER BY id;
-- and a wait, which must not be replaced
SELECT outbox.start_join('dp', 1) AS j \gset
SELECT outbox.enqueue_join_wait(:'j', false, 'dp.after', 'p') AS w \gset
INSERT INTO outbox.dedupe VALUES (outbox._dedupe_digest('default', 'join.wait', 'w'), :'w');
SELECT message_id = :'w' AS same, outcome FROM outbox.try_enqueue('join.wait', 'broken', dedupe_key => 'w', on_duplicate => 'replace');
SELECT message_id = :'w' AS same, outcome FROM outbox.try_enqueue('join.wait', 'broken', due_time => now(), dedupe_key => 'w', on_duplicate => 'debounce');
SELECT outbox.cancel_join(:'j');
SELECT outbox.process_join_waits() > 0 AS evaluated;

-- a step of a join stays one
SELECT outbox.start_join('dp', 1) AS j \gset
SELECT outbox.enqueue_step(:'j', 'dp.step', 'old', dedupe_key => 's') AS m \gset
SELECT outbox.enqueue_step(:'j', 'dp.step', 'new', dedupe_key => 's', on_duplicate => 'replace') = :'m' AS same;
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.claim(:a, topics => '{dp.step}') WHERE payload = 'new';
SELECT status, completed_steps FROM outbox.joins WHERE join_id = :'j';

-- in a stream its place stays
SELECT outbox.enqueue('dp.s', i::text, stream_id => :s1, dedupe_key => i::text) IS NOT NULL AS ok FROM generate_series(1, 3) i;
SELECT outcome FROM outbox.try_enqueue('dp.s', '1 new', stream_id => :s1, dedupe_key => '1', on_duplicate => 'replace');
SELECT outcome FROM outbox.try_enqueue('dp.s', 'x', stream_id => :s1, dedupe_key => '2', on_duplicate => 'debounce', due_time => now() + interval '1 min');
SELECT payload FROM outbox.claim(:a, topics => '{dp.s}');
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.leases WHERE topic = 'dp.s';
SELECT payload FROM outbox.claim(:a, topics => '{dp.s}');
SELECT outcome FROM outbox.try_enqueue('dp.s', 'x', dedupe_key => '2', on_duplicate => 'debounce');
SELECT payload FROM outbox.claim(:a, topics => '{dp.s}');
-- a lease that has ended there revokes those behind it
UPDATE outbox.queue SET locked_until = now() - interval '1 s' WHERE topic = 'dp.s' AND payload = '2';
SELECT outcome FROM outbox.try_enqueue('dp.s', '2 new', dedupe_key => '2', on_duplicate => 'replace');
SELECT payload, status FROM outbox.messages WHERE topic = 'dp.s' AND status < 2 ORDER BY id;
SELECT payload FROM outbox.claim(:b, topics => '{dp.s}');
SELECT outbox.ack(:b, array_agg(id)) FROM outbox.leases WHERE topic = 'dp.s';

-- debounce: the due time becomes the new one
SELECT outbox.enqueue('dp.d', 'first', dedupe_key => 'k', due_time => now() + interval '10 s', headers => '{"h": 1}') AS m \gset
SELECT message_id = :'m' AS same, enqueued, outcome FROM outbox.try_enqueue('dp.d', 'second', dedupe_key => 'k', due_time => now() + interval '20 s', on_duplicate => 'debounce', headers => '{"h": 2}');
SELECT payload, headers, due_time > now() + interval '11 s' AS later, next_attempt_at = due_time AS as_given FROM outbox.messages WHERE topic = 'dp.d';
SELECT outcome FROM outbox.try_enqueue('dp.d', 'third', dedupe_key => 'k', due_time => now() + interval '5 s', on_duplicate => 'debounce');
SELECT payload, due_time < now() + interval '6 s' AS sooner, next_attempt_at = due_time AS as_given FROM outbox.messages WHERE topic = 'dp.d';
-- but not forever
SELECT outcome FROM outbox.try_enqueue('dp.d', 'p', dedupe_key => 'k', due_time => 'infinity', on_duplicate => 'debounce');
SELECT due_time - created_at AS at_most, next_attempt_at = due_time AS same FROM outbox.messages WHERE topic = 'dp.d';
SET outbox.debounce_max = '90s';
SELECT outcome FROM outbox.try_enqueue('dp.d', 'p', dedupe_key => 'k', due_time => now() + interval '1 day', on_duplicate => 'debounce');
SELECT due_time - created_at AS at_most, next_attempt_at = due_time AS same, updated_at AS u FROM outbox.messages WHERE topic = 'dp.d' \gset
\echo :at_most :same
-- then nothing changes any more
SELECT outcome FROM outbox.try_enqueue('dp.d', 'p', dedupe_key => 'k', due_time => now() + interval '2 days', on_duplicate => 'debounce');
SELECT updated_at = :'u' AS untouched FROM outbox.messages WHERE topic = 'dp.d';
UPDATE outbox.queue SET created_at = created_at - interval '1 hour' WHERE topic = 'dp.d';
SELECT outcome FROM outbox.try_enqueue('dp.d', 'p', dedupe_key => 'k', due_time => now() + interval '1 min', on_duplicate => 'debounce');
SELECT due_time - created_at AS at_most, next_attempt_at = due_time AS same, due_time < now() AS due FROM outbox.messages WHERE topic = 'dp.d';
-- one that is due keeps its place when it is debounced without a delay
SELECT next_attempt_at AS at FROM outbox.messages WHERE topic = 'dp.d' \gset
SELECT outcome FROM outbox.try_enqueue('dp.d', 'p', dedupe_key => 'k', on_duplicate => 'debounce');
SELECT due_time, next_attempt_at = :'at' AS same FROM outbox.messages WHERE topic = 'dp.d';
SELECT payload FROM outbox.claim(:a, topics => '{dp.d}');
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.leases WHERE topic = 'dp.d';
RESET outbox.debounce_max;
-- null and the past are now
SELECT outbox.enqueue('dp.now', i::text, dedupe_key => i::text, due_time => 'infinity') IS NOT NULL AS ok FROM generate_series(1, 3) i;
SELECT payload FROM outbox.claim(:a, topics => '{dp.now}');
SELECT outcome FROM outbox.try_enqueue('dp.now', 'p', dedupe_key => '1', on_duplicate => 'debounce');
SELECT outcome FROM outbox.try_enqueue('dp.now', 'p', dedupe_key => '2', due_time => '2001-01-01', on_duplicate => 'debounce');
SELECT outcome FROM outbox.try_enqueue('dp.now', 'p', dedupe_key => '3', due_time => '-infinity', on_duplicate => 'debounce');
SELECT payload, due_time FROM outbox.claim(:a, topics => '{dp.now}') ORDER BY id;
-- a retry does not come sooner for it, but may come later
SELECT outbox.nack(:a, array_agg(id), 'no', '10 min') FROM outbox.leases WHERE topic = 'dp.now';
SELECT outcome FROM outbox.try_enqueue('dp.now', 'p', dedupe_key => '1', on_duplicate => 'debounce');
SELECT outcome FROM outbox.try_enqueue('dp.now', 'p', dedupe_key => '2', due_time => now() + interval '20 min', on_duplicate => 'debounce');
SELECT payload, next_attempt_at > now() + interval '9 min' AS waits, next_attempt_at > now() + interval '19 min' AS longer
  FROM outbox.messages WHERE topic = 'dp.now' ORDER BY id;
SELECT outbox.purge_topic('dp.now');
-- users cannot change the limit
\set VERBOSITY sqlstate
SET outbox.debounce_max = -1;
CREATE ROLE dp_user;
SET ROLE dp_user;
SET outbox.debounce_max = '1d';
RESET ROLE;
DROP ROLE dp_user;
\set VERBOSITY default

-- in a batch, also of messages that are enqueued by the same call
SELECT outbox.enqueue('dp.b', 'there', dedupe_key => 'there') IS NOT NULL AS ok;
SELECT ordinal, message_id = first_value(message_id) OVER (PARTITION BY ordinal IN (1, 2, 3, 7) ORDER BY ordinal) AS same, enqueued, outcome
  FROM outbox.enqueue_batch('[
    {"topic": "dp.b", "payload": "1", "dedupe_key": "k", "headers": {"h": 1}},
    {"topic": "dp.b", "payload": "2", "dedupe_key": "k", "on_duplicate": "replace"},
    {"topic": "dp.b", "payload": "3", "dedupe_key": "k", "on_duplicate": "debounce", "due_time": "infinity"},
    {"topic": "dp.b", "payload": "4", "dedupe_key": "there", "on_duplicate": "replace"},
    {"topic": "dp.b", "payload": "5", "dedupe_key": "there", "on_duplicate": "replace"},
    {"topic": "dp.b", "payload": "6", "dedupe_key": "there", "on_duplicate": "keep"},
    {"topic": "dp.b", "payload": "7", "dedupe_key": "k"}]') ORDER BY ordinal;
SELECT payload, headers, due_time - created_at BETWEEN '59 min' AND '61 min' AS in_an_hour FROM outbox.messages WHERE topic = 'dp.b' ORDER BY id;
SELECT count(*) FROM outbox.process_work_batch(:a, 'svc', 'h', 1, batch_size => 1, new_outbox_messages => '[
    {"topic": "dp.b", "payload": "8", "dedupeKey": "k", "onDuplicate": "replace"}]');
SELECT payload FROM outbox.messages WHERE topic = 'dp.b' AND dedupe_key = 'k';
DELETE FROM outbox.instances;

-- it is part of the transaction, and sees what that has done before
BEGIN;
SELECT outcome FROM outbox.try_enqueue('dp.tx', '1', dedupe_key => 'k');
SELECT outcome FROM outbox.try_enqueue('dp.tx', '2', dedupe_key => 'k', on_duplicate => 'replace');
SAVEPOINT s;
SELECT outcome FROM outbox.try_enqueue('dp.tx', '3', dedupe_key => 'k', on_duplicate => 'replace');
SELECT outcome FROM outbox.try_enqueue('dp.tx', '4', dedupe_key => 'k', due_time => now() + interval '1 min', on_duplicate => 'debounce');
SELECT payload FROM outbox.claim(:a, topics => '{dp.tx}');
ROLLBACK TO s;
SELECT payload FROM outbox.claim(:a, topics => '{dp.tx}');
SELECT outcome FROM outbox.try_enqueue('dp.tx', '5', dedupe_key => 'k', on_duplicate => 'replace');
ROLLBACK TO s;
SELECT outcome FROM outbox.try_enqueue('dp.tx', '6', dedupe_key => 'k', on_duplicate => 'replace');
COMMIT;
SELECT payload FROM outbox.claim(:a, topics => '{dp.tx}');
SELECT (outbox.try_enqueue('dp.tx', i::text, dedupe_key => 'same', on_duplicate => 'replace')).outcome FROM generate_series(1, 3) i;
SELECT payload FROM outbox.claim(:a, topics => '{dp.tx}');

-- the examples of README.md, each twice
SELECT outbox.enqueue('payment', '{"order": 7}', dedupe_key => 'order 7') IS NOT NULL AS ok FROM generate_series(1, 2);
SELECT outbox.enqueue('reminder', '{"user": 3}', dedupe_key => 'user 3', dedupe_for => '1 day') IS NOT NULL AS ok FROM generate_series(1, 2);
SELECT t.outcome FROM generate_series(1, 2) i, LATERAL outbox.try_enqueue('search.index', format('{"doc": 5, "version": %s}', i), dedupe_key => 'doc 5', on_duplicate => 'replace') t;
SELECT t.outcome FROM generate_series(1, 2) i, LATERAL outbox.try_enqueue('cart.saved', '{"cart": 9}', due_time => now() + i * interval '10 s', dedupe_key => 'cart 9', on_duplicate => 'debounce') t;
SELECT topic, payload, due_time - created_at BETWEEN '11 s' AND '21 s' AS in_twenty_seconds
  FROM outbox.messages WHERE topic IN ('payment', 'reminder', 'search.index', 'cart.saved') ORDER BY id;
-- the key is freed with the message
SELECT outbox.configure_topic('search.index', retention => '0');
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.claim(:a, topics => '{search.index}');
SELECT outcome FROM outbox.try_enqueue('search.index', '{"doc": 5, "version": 3}', dedupe_key => 'doc 5', on_duplicate => 'replace');
-- and the outcome is kept while a worker has the message
SELECT payload FROM outbox.claim(:a, topics => '{search.index}');
SELECT outcome FROM outbox.try_enqueue('search.index', '{"doc": 5, "version": 4}', dedupe_key => 'doc 5', on_duplicate => 'replace');
SELECT outbox.reset_topic('search.index');
SELECT outbox.purge_topic(t, what => 'all') FROM unnest('{payment,reminder,cart.saved}'::text[]) t;
DELETE FROM outbox.queue;
