-- Instances, partitions, the inbox, and process_work_batch.
SET client_min_messages = warning;
SET outbox.backoff_jitter = off;
DELETE FROM outbox.queue;
\set a '''aaaaaaaa-0000-4000-8000-000000000001'''
\set b '''bbbbbbbb-0000-4000-8000-000000000002'''
CREATE FUNCTION pg_temp.m(n int) RETURNS uuid LANGUAGE sql IMMUTABLE AS
    'SELECT (''00000000-0000-4000-8000-'' || lpad(n::text, 12, ''0''))::uuid';
CREATE FUNCTION pg_temp.s(n int) RETURNS uuid LANGUAGE sql IMMUTABLE AS
    'SELECT (''51515151-0000-4000-8000-'' || lpad(n::text, 12, ''0''))::uuid';

-- an instance appears, says more, and keeps its metadata
SELECT count(*) FROM outbox.process_work_batch(:a, 'svc', 'h1', 7, '{"v": 1}');
SELECT service_name, host_name, process_id, metadata, started_at = last_heartbeat_at AS fresh FROM outbox.instances;
SELECT outbox.heartbeat(:a, 'svc', 'h2', 8);
SELECT service_name, host_name, process_id, metadata FROM outbox.instances;

-- new messages, of both kinds, come back leased and flagged; the same one twice comes once
SELECT source, message_id, topic, handler_name, payload, headers, stream_id, partition_number IS NULL AS any_one, attempts, status, flags
  FROM outbox.process_work_batch(:a, 'svc', 'h2', 8,
    new_outbox_messages => '[
        {"message_id": "00000000-0000-4000-8000-000000000003", "topic": "b", "payload": "three"},
        {"MessageId": "00000000-0000-4000-8000-000000000001", "Destination": "b", "Payload": {"n": 1}, "StreamId": "51515151-0000-4000-8000-000000000001", "Headers": {"h": 1}},
        {"message_id": "00000000-0000-4000-8000-000000000002", "topic": "b", "payload": "two", "stream_id": "51515151-0000-4000-8000-000000000001"}]',
    new_inbox_messages => '[
        {"message_id": "00000000-0000-4000-8000-000000000011", "handler_name": "hd", "payload": "x", "source": "s"},
        {"message_id": "00000000-0000-4000-8000-000000000011", "handler_name": "hd", "payload": "again"}]');
SELECT message_id, handler_name, payload, source, status FROM outbox.inbox;
SELECT count(*) FROM outbox.message_deduplication;
-- what is leased is not handed out again, and stays with its instance
SELECT count(*) FROM outbox.process_work_batch(:a, 'svc', 'h2', 8);
SELECT count(*) FROM outbox.process_work_batch(:b, 'svc', 'h1', 9);

-- another instance's completions and failures change nothing
SELECT count(*) FROM outbox.process_work_batch(:b, 'svc', 'h1', 9,
    outbox_completions => '[{"message_id": "00000000-0000-4000-8000-000000000003", "status": 4}]',
    outbox_failures => '[{"message_id": "00000000-0000-4000-8000-000000000002", "error": "x"}]',
    inbox_completions => '[{"message_id": "00000000-0000-4000-8000-000000000011", "status": 2}]');
SELECT message_id, status, attempts, retry_count FROM outbox.messages WHERE topic = 'b' ORDER BY message_id;

-- progress: bits are added; done with 4, or 2 for the inbox; otherwise the lease is released
SELECT message_id, status, flags, attempts FROM outbox.process_work_batch(:a, 'svc', 'h2', 8, batch_size => 1,
    outbox_completions => '[{"message_id": "00000000-0000-4000-8000-000000000003", "status": 1}]');
SELECT message_id, status, progress FROM outbox.messages WHERE message_id = pg_temp.m(3);
SELECT message_id FROM outbox.process_work_batch(:a, 'svc', 'h2', 8,
    outbox_completions => '[{"message_id": "00000000-0000-4000-8000-000000000003", "status": 6}]',
    inbox_completions => '[{"message_id": "00000000-0000-4000-8000-000000000011", "status": 2}]');
SELECT message_id, status, progress, processed_by FROM outbox.messages WHERE message_id = pg_temp.m(3);
SELECT count(*) FROM outbox.inbox;
-- it was seen
SELECT outbox.receive(pg_temp.m(11), 'hd', 'x');
SELECT count(*) FROM outbox.process_work_batch(:a, 'svc', 'h2', 8,
    new_inbox_messages => '[{"message_id": "00000000-0000-4000-8000-000000000011", "handler_name": "hd", "payload": "x"}]');

-- in completions and failures: done; twice: once
SELECT message_id, attempts FROM outbox.process_work_batch(:a, 'svc', 'h2', 8,
    outbox_completions => '[{"message_id": "00000000-0000-4000-8000-000000000001", "status": 4}, {"message_id": "00000000-0000-4000-8000-000000000001", "status": 1}]',
    outbox_failures => '[{"message_id": "00000000-0000-4000-8000-000000000001", "error": "late"}]');
SELECT message_id, status, progress, last_error FROM outbox.messages WHERE message_id = pg_temp.m(1);

-- a failure: tried again by the backoff, returned when due, flagged
SELECT count(*) FROM outbox.process_work_batch(:a, 'svc', 'h2', 8,
    outbox_failures => '[{"message_id": "00000000-0000-4000-8000-000000000002", "completed_status": 1, "error": "no way", "reason": 2}]');
SELECT status, retry_count, last_error, failure_reason, progress, next_attempt_at - updated_at AS delay FROM outbox.messages WHERE message_id = pg_temp.m(2);
UPDATE outbox.queue SET next_attempt_at = now() WHERE message_id = pg_temp.m(2);
SELECT message_id, attempts, status, flags FROM outbox.process_work_batch(:a, 'svc', 'h2', 8);

-- renewals
SELECT count(*) FROM outbox.process_work_batch(:a, 'svc', 'h2', 8, lease_seconds => 5000,
    renew_outbox_lease_ids => '["00000000-0000-4000-8000-000000000002"]');
SELECT locked_until > now() + interval '4000 s' AS renewed FROM outbox.messages WHERE message_id = pg_temp.m(2);

-- status 0 only releases
SELECT message_id, attempts, flags FROM outbox.process_work_batch(:a, 'svc', 'h2', 8,
    outbox_completions => '[{"message_id": "00000000-0000-4000-8000-000000000002", "status": 0}]');
-- a silent instance is removed, and another one gets what it had leased
UPDATE outbox.instances SET last_heartbeat_at = now() - interval '11 minutes' WHERE instance_id = :a;
SELECT message_id, attempts, flags FROM outbox.process_work_batch(:b, 'svc', 'h1', 9);
SELECT instance_id FROM outbox.instances;
-- when it returns it has lost its lease, and is registered again
SELECT count(*) FROM outbox.process_work_batch(:a, 'svc', 'h2', 8,
    outbox_completions => '[{"message_id": "00000000-0000-4000-8000-000000000002", "status": 4}]');
SELECT status, owner_token FROM outbox.messages WHERE message_id = pg_temp.m(2);
SELECT count(*) FROM outbox.instances;
-- an instance is deregistered
SELECT outbox.deregister_instance(:b), outbox.deregister_instance(:b);
SELECT instance_id FROM outbox.instances;
SELECT status, attempts FROM outbox.messages WHERE message_id = pg_temp.m(2);
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.claim(:a);

-- debug keeps what is done in the inbox
SELECT outbox.receive(pg_temp.m(12), 'hd', 'x', 'src', pg_temp.s(1), '{"h": 2}');
SELECT source, handler_name, partition_number, flags FROM outbox.process_work_batch(:a, 'svc', 'h2', 8);
SELECT count(*) FROM outbox.process_work_batch(:a, 'svc', 'h2', 8, flags => 4,
    inbox_completions => '[{"message_id": "00000000-0000-4000-8000-000000000012", "status": 2}]');
SELECT message_id, source, status, progress, is_processed FROM outbox.inbox;
-- inbox failures, and the twins of the outbox's functions
SELECT outbox.receive(pg_temp.m(13), 'one', 'x'), outbox.receive(pg_temp.m(14), 'two', 'x'), outbox.receive(NULL::uuid, 'x', 'x') IS NULL;
SELECT outbox.receive(pg_temp.m(13), 'one', 'x'), outbox.receive(pg_temp.m(14), 'two', 'x');
SELECT message_id, topic AS handler_name, attempts FROM outbox.claim_inbox(:a, handler_names => '{one}');
SELECT outbox.renew_inbox(:a, array_agg(id), 100), outbox.nack_inbox(:a, array_agg(id), 'hm', '0') FROM outbox.inbox WHERE handler_name = 'one';
SELECT message_id, topic AS handler_name, attempts FROM outbox.claim_inbox(:a);
SELECT outbox.release_inbox(:a);
SELECT outbox.fail_inbox(:a, array_agg(id), 'never', 4) FROM outbox.claim_inbox(:a, handler_names => '{two}');
SELECT outbox.ack_inbox(:a, array_agg(id)) FROM outbox.claim_inbox(:a, handler_names => '{one}');
SELECT message_id, handler_name, status, failure_reason, last_error FROM outbox.inbox ORDER BY message_id;
SELECT outbox.reap_inbox();

-- strict order in a stream, for any instance; equal times keep their order
SELECT string_agg(payload, ',' ) FROM outbox.process_work_batch(:a, 'svc', 'h2', 8,
    new_outbox_messages => (SELECT jsonb_agg(jsonb_build_object('topic', 'ord', 'payload', i::text, 'stream_id', pg_temp.s(2)))
                              FROM generate_series(1, 12) i));
SELECT count(*) FROM outbox.process_work_batch(:b, 'svc', 'h1', 9);
SELECT outbox.release(:a), outbox.deregister_instance(:b);
SELECT string_agg(payload, ',') FROM outbox.process_work_batch(:a, 'svc', 'h2', 8, batch_size => 5);
SELECT string_agg(payload, ',') FROM outbox.process_work_batch(:a, 'svc', 'h2', 8, batch_size => 5);
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.leases WHERE owner_token = :a;

-- partitions: for any number of instances each has exactly one owner, shares are fair, and only the leaver's move
WITH RECURSIVE inst AS (SELECT array_agg(md5(i::text)::uuid) AS ids, n FROM generate_series(1, 64) n, generate_series(1, 64) i WHERE i <= n GROUP BY n),
owners AS (SELECT n, p, count(*) FILTER (WHERE outbox._owns_partition(i, ids, p)) AS owned
             FROM inst, unnest(ids) i, generate_series(0, 199) p GROUP BY n, p)
SELECT count(*), min(owned), max(owned) FROM owners;
WITH inst AS (SELECT array_agg(md5(i::text)::uuid) AS ids FROM generate_series(1, 8) i),
shares AS (SELECT i, count(*) FILTER (WHERE outbox._owns_partition(i, ids, p)) AS n
             FROM inst, unnest(ids) i, generate_series(0, 9999) p GROUP BY i)
SELECT min(n) > 1000 AND max(n) < 1500 AS fair, sum(n) FROM shares;
WITH inst AS (SELECT array_agg(md5(i::text)::uuid) AS ids FROM generate_series(1, 8) i)
SELECT count(*) AS moved_between_those_who_stay
  FROM inst, unnest(ids[1:7]) i, generate_series(0, 999) p
 WHERE outbox._owns_partition(i, ids, p) AND NOT outbox._owns_partition(i, ids[1:7], p);
-- two instances share the streams; each stream belongs to exactly one
SELECT count(*) FROM outbox.process_work_batch(:b, 'svc', 'h1', 9);
SELECT count(*) FROM (SELECT outbox.enqueue('pt', i::text, stream_id => md5(i::text)::uuid) FROM generate_series(1, 40) i OFFSET 0) x;
CREATE TEMP TABLE got AS
    SELECT 'a' AS who, * FROM outbox.process_work_batch(:a, 'svc', 'h2', 8)
    UNION ALL SELECT 'b', * FROM outbox.process_work_batch(:b, 'svc', 'h1', 9);
SELECT count(*), count(DISTINCT message_id), count(*) FILTER (WHERE who = 'a') BETWEEN 10 AND 30 AS shared FROM got;
SELECT bool_and(partition_number = outbox._partition_number(stream_id)) FROM got;
SELECT outbox.ack(:a, array_agg(id)) + outbox.ack(:b, array_agg(id)) FROM got;
-- a maximum number of partitions at a time
SELECT outbox.deregister_instance(:b);
SELECT count(*) FROM (SELECT outbox.enqueue('pt', i::text, stream_id => md5((i % 10)::text)::uuid) FROM generate_series(1, 40) i OFFSET 0) x;
CREATE TEMP TABLE three AS SELECT * FROM outbox.process_work_batch(:a, 'svc', 'h2', 8, max_partitions_per_instance => 3);
SELECT count(*), count(DISTINCT partition_number) FROM three;
SELECT count(*) FROM outbox.process_work_batch(:a, 'svc', 'h2', 8, max_partitions_per_instance => 3);
SELECT outbox.ack(:a, array_agg(id)) FROM three;
SELECT count(DISTINCT partition_number) FROM outbox.process_work_batch(:a, 'svc', 'h2', 8, max_partitions_per_instance => 3);
SELECT outbox.release(:a) > 0 AS released;
SELECT count(DISTINCT stream_id) FROM outbox.process_work_batch(:a, 'svc', 'h2', 8);
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.leases WHERE owner_token = :a;

-- receptors and perspectives, in the batch and outside
SELECT count(*) FROM outbox.process_work_batch(:a, 'svc', 'h2', 8,
    receptor_completions => '[{"message_id": "00000000-0000-4000-8000-000000000001", "receptor_name": "r1", "status": 2}, {"EventId": "00000000-0000-4000-8000-000000000001", "ReceptorName": "r1"}]',
    receptor_failures => '[{"message_id": "00000000-0000-4000-8000-000000000001", "receptor_name": "r2", "error": "e"}]',
    perspective_completions => '[{"stream_id": "51515151-0000-4000-8000-000000000001", "perspective_name": "p", "last_event_id": "00000000-0000-4000-8000-000000000002"}]',
    perspective_failures => '[{"stream_id": "51515151-0000-4000-8000-000000000002", "perspective_name": "p", "error": "e"}]');
SELECT message_id, receptor_name, status, attempts, error, processed_at IS NOT NULL AS done FROM outbox.receptor_processing ORDER BY 2;
SELECT stream_id, perspective_name, last_message_id, status, error FROM outbox.perspective_checkpoints ORDER BY 1;
SELECT outbox.start_receptor(pg_temp.m(1), 'r1'), outbox.start_receptor(pg_temp.m(1), 'r2'), outbox.start_receptor(pg_temp.m(1), 'r3');
SELECT outbox.fail_receptor(pg_temp.m(1), 'r3', 'no'), outbox.complete_receptor(pg_temp.m(1), 'r2');
SELECT receptor_name, status, attempts, error FROM outbox.receptor_processing ORDER BY 1;
SELECT outbox.start_perspective(pg_temp.s(1), 'p'), outbox.start_perspective(pg_temp.s(3), 'p');
SELECT outbox.complete_perspective(pg_temp.s(3), 'p', pg_temp.m(5)), outbox.fail_perspective(pg_temp.s(1), 'p', 'no');
SELECT stream_id, last_message_id, status, error FROM outbox.perspective_checkpoints ORDER BY 1;

-- malformed sections: the error says where, and nothing is done
\set VERBOSITY terse
SELECT outbox.process_work_batch(:a, 's', 'h', 1, outbox_completions => '{}');
SELECT outbox.process_work_batch(:a, 's', 'h', 1, outbox_completions => '[1]');
SELECT outbox.process_work_batch(:a, 's', 'h', 1, outbox_completions => '[{"message_id": "00000000-0000-4000-8000-000000000001", "status": 4}, {"message_id": "x", "status": 4}]');
SELECT outbox.process_work_batch(:a, 's', 'h', 1, outbox_completions => '[{"message_id": "00000000-0000-4000-8000-000000000001"}]');
SELECT outbox.process_work_batch(:a, 's', 'h', 1, outbox_completions => '[{"message_id": "00000000-0000-4000-8000-000000000001", "status": "4"}]');
SELECT outbox.process_work_batch(:a, 's', 'h', 1, outbox_completions => '[{"message_id": "00000000-0000-4000-8000-000000000001", "status": 4.5}]');
SELECT outbox.process_work_batch(:a, 's', 'h', 1, outbox_completions => '[{"message_id": "00000000-0000-4000-8000-000000000001", "status": 99999999999}]');
SELECT outbox.process_work_batch(:a, 's', 'h', 1, outbox_failures => '[{"status": 4}]');
SELECT outbox.process_work_batch(:a, 's', 'h', 1, inbox_failures => '[{"message_id": "00000000-0000-4000-8000-000000000001", "reason": 99999}]');
SELECT outbox.process_work_batch(:a, 's', 'h', 1, new_outbox_messages => '[{"topic": "t"}]');
SELECT outbox.process_work_batch(:a, 's', 'h', 1, new_outbox_messages => '[{"topic": "", "payload": "p"}]');
SELECT outbox.process_work_batch(:a, 's', 'h', 1, new_outbox_messages => '[{"topic": "t", "payload": "p", "Colour": 1}]');
SELECT outbox.process_work_batch(:a, 's', 'h', 1, new_inbox_messages => '[{"handler_name": "t", "payload": "p"}]');
SELECT outbox.process_work_batch(:a, 's', 'h', 1, renew_outbox_lease_ids => '["x"]');
SELECT outbox.process_work_batch(:a, 's', 'h', 1, renew_inbox_lease_ids => '[{}]');
SELECT outbox.process_work_batch(:a, 's', 'h', 1, receptor_completions => '[{"message_id": "00000000-0000-4000-8000-000000000001"}]');
SELECT outbox.process_work_batch(:a, 's', 'h', 1, perspective_failures => '[{"perspective_name": "p"}]');
SELECT outbox.process_work_batch(:a, 's', 'h', 1, receptor_completions => '[{"message_id": "00000000-0000-4000-8000-000000000001", "receptor_name": "r"}, {"message_id": "00000000-0000-4000-8000-000000000001", "receptor_name": ""}]');
SELECT outbox.process_work_batch(:a, 's', 'h', 1, receptor_failures => jsonb_build_array(jsonb_build_object('message_id', '00000000-0000-4000-8000-000000000001', 'receptor_name', (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 200) i))));
SELECT outbox.process_work_batch(:a, 's', 'h', 1, perspective_completions => '[{"stream_id": "00000000-0000-4000-8000-000000000001", "perspective_name": ""}]');
SELECT outbox.process_work_batch(:a, 's', 'h', 1, perspective_failures => jsonb_build_array(jsonb_build_object('stream_id', '00000000-0000-4000-8000-000000000001', 'perspective_name', repeat('ä', 256))));
SELECT outbox.process_work_batch(NULL, 's', 'h', 1);
SELECT outbox.process_work_batch(:a, '', 'h', 1);
SELECT outbox.process_work_batch(:a, 's', NULL, 1);
SELECT outbox.process_work_batch(:a, 's', 'h', NULL);
SELECT outbox.process_work_batch(:a, 's', 'h', 1, batch_size => 0);
SELECT outbox.process_work_batch(:a, 's', 'h', 1, partition_count => 0);
SELECT outbox.process_work_batch(:a, 's', 'h', 1, max_partitions_per_instance => 0);
SELECT outbox.process_work_batch(:a, 's', 'h', 1, stale_threshold_seconds => 0);
SELECT outbox.process_work_batch(:a, 's', 'h', 1, lease_seconds => 0);
SELECT outbox.process_work_batch(:a, 's', 'h', 1, flags => -1);
SELECT count(*) FROM outbox.process_work_batch(:a, 's', 'h', 1, outbox_completions => NULL, renew_inbox_lease_ids => NULL);
SELECT service_name FROM outbox.instances;

-- 10,000 entries in each section: too many where the server discards its caches all the time
SET debug_discard_caches = 0;
CREATE TEMP TABLE many AS SELECT gen_random_uuid() AS id FROM generate_series(1, 10000);
SELECT count(*) FROM outbox.process_work_batch(:a, 's', 'h', 1, batch_size => 10000,
    new_outbox_messages => (SELECT jsonb_agg(jsonb_build_object('message_id', id, 'topic', 'many', 'payload', 'p')) FROM many),
    new_inbox_messages => (SELECT jsonb_agg(jsonb_build_object('message_id', id, 'handler_name', 'many', 'payload', 'p')) FROM many));
SELECT count(*) FROM outbox.process_work_batch(:a, 's', 'h', 1, batch_size => 10000,
    outbox_completions => (SELECT jsonb_agg(jsonb_build_object('message_id', id, 'status', 4)) FROM many),
    inbox_completions => (SELECT jsonb_agg(jsonb_build_object('message_id', id, 'status', 2)) FROM many),
    outbox_failures => (SELECT jsonb_agg(jsonb_build_object('message_id', id, 'error', 'e')) FROM many),
    inbox_failures => (SELECT jsonb_agg(jsonb_build_object('message_id', id, 'error', 'e')) FROM many),
    renew_outbox_lease_ids => (SELECT jsonb_agg(id) FROM many),
    receptor_completions => (SELECT jsonb_agg(jsonb_build_object('message_id', id, 'receptor_name', 'r')) FROM many),
    perspective_completions => (SELECT jsonb_agg(jsonb_build_object('stream_id', id, 'perspective_name', 'r', 'last_message_id', id)) FROM many));
SELECT (SELECT count(*) FROM outbox.messages WHERE topic = 'many' AND status = 2) AS done, (SELECT count(*) FROM outbox.inbox WHERE handler_name = 'many') AS left;

RESET debug_discard_caches;
-- retention of the ids of received messages
SET outbox.deduplication_retention = '1h';
UPDATE outbox.message_deduplication SET first_seen_at = now() - interval '2 hours' WHERE message_id = pg_temp.m(11);
SELECT outbox.cleanup() >= 0 AS ok;
SELECT outbox.receive(pg_temp.m(11), 'hd', 'new again');

-- new messages may have all arguments of enqueue()
SELECT payload FROM outbox.process_work_batch(:a, 'svc', 'h2', 8, new_outbox_messages => '[
    {"topic": "b.more", "payload": "first", "dedupe_key": "k", "dedupe_for": "1 day", "priority": 2},
    {"Topic": "b.more", "Payload": "second", "DedupeKey": "k", "DedupeFor": "1 day", "OnDuplicate": "keep", "Priority": -1}]')
 WHERE topic = 'b.more';
SELECT payload, priority, dedupe_key FROM outbox.messages WHERE topic = 'b.more';
SELECT outbox.process_work_batch(:a, 'svc', 'h2', 8, new_outbox_messages => '[{"topic": "b.more", "payload": "x", "priority": 3}]');
DELETE FROM outbox.instances;
