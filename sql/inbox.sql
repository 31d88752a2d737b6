-- The inbox: each message once, then the calls of the work queue.
SET client_min_messages = warning;
SET outbox.backoff_jitter = off;
DELETE FROM outbox.inbox_queue;
DELETE FROM outbox.inbox_dead;
DELETE FROM outbox.inbox_done;
DELETE FROM outbox.message_deduplication;
\set a '''00000000-0000-4000-8000-00000000000a'''

SELECT outbox.receive('00000000-0000-4000-8000-000000000101', 'mail', '{"to": "ann"}', 'shop');
SELECT outbox.receive('00000000-0000-4000-8000-000000000101', 'mail', 'again');
SELECT outbox.receive('00000000-0000-4000-8000-000000000102', 'bill', 'x', headers => '{"k": 1}');
SELECT outbox.receive('00000000-0000-4000-8000-000000000103', 'mail', 'one', stream_id => '00000000-0000-4000-8000-0000000000aa');
SELECT outbox.receive('00000000-0000-4000-8000-000000000104', 'mail', 'two', stream_id => '00000000-0000-4000-8000-0000000000aa');
SELECT message_id, handler_name, source, payload, status FROM outbox.inbox ORDER BY id;

-- rolled back, it was not received
BEGIN;
SELECT outbox.receive('00000000-0000-4000-8000-000000000105', 'mail', 'x');
ROLLBACK;
SELECT count(*) FROM outbox.message_deduplication;

-- bad arguments
\set VERBOSITY sqlstate
SELECT outbox.receive(NULL, 'mail', 'x');
SELECT outbox.receive(gen_random_uuid(), '', 'x');
SELECT outbox.receive(gen_random_uuid(), 'mail', NULL);
SELECT outbox.receive(gen_random_uuid(), repeat('h', 256), 'x');
\set VERBOSITY default

-- leased by handler, in the order of the stream
SELECT message_id, topic AS handler_name, payload, attempts FROM outbox.claim_inbox(:a, handler_names => '{mail}');
SELECT count(*) FROM outbox.claim_inbox('00000000-0000-4000-8000-00000000000b', handler_names => '{mail}');
SELECT outbox.renew_inbox(:a, array_agg(id), 100) FROM outbox.inbox WHERE status = 1;
SELECT outbox.ack_inbox(:a, array_agg(id)) FROM outbox.inbox WHERE message_id = '00000000-0000-4000-8000-000000000101';
-- the first of the stream is returned, which revokes the lease of the second
SELECT outbox.nack_inbox(:a, array_agg(id), 'not now', '0') FROM outbox.inbox WHERE message_id = '00000000-0000-4000-8000-000000000103';
SELECT outbox.ack_inbox(:a, array_agg(id)) FROM outbox.inbox WHERE message_id = '00000000-0000-4000-8000-000000000104';
SELECT message_id, status, attempts, retry_count, last_error FROM outbox.inbox ORDER BY id;
SELECT count(*) FROM outbox.claim_inbox(:a, handler_names => '{mail}');
SELECT outbox.release_inbox(:a);
-- leases are released all or none, and without ids all of the owner's
SELECT count(*) AS n, count(DISTINCT owner_token) AS owners, min(owner_token::text) AS o FROM outbox.claim_inbox(handler_names => '{mail}') \gset
SELECT :n AS leased, :owners AS owners;
SELECT array_agg(id ORDER BY id) AS ids FROM outbox.inbox WHERE owner_token = :'o' \gset
SELECT outbox.release_inbox(:'o', NULL), outbox.release_inbox(:a, :'ids'), outbox.renew_inbox(:a, NULL, strict => true);
\set VERBOSITY sqlstate
SELECT outbox.release_inbox(:'o', (:'ids'::bigint[]) || -1::bigint, true);
SELECT outbox.renew_inbox(:'o', (:'ids'::bigint[]) || -1::bigint, strict => true);
SELECT outbox.release_inbox(NULL);
\set VERBOSITY default
SELECT outbox.release_inbox(:'o', (:'ids'::bigint[])[2:2], true), outbox.release_inbox(:'o');
SELECT outbox.fail_inbox(:a, array_agg(id), 'never') FROM outbox.claim_inbox(:a, handler_names => '{bill}');
SELECT outbox.reap_inbox();
SELECT message_id, handler_name, status, failure_reason, last_error FROM outbox.inbox ORDER BY id;
-- what was received is not received again, done or dead
SELECT outbox.receive('00000000-0000-4000-8000-000000000101', 'mail', 'once more'),
       outbox.receive('00000000-0000-4000-8000-000000000102', 'bill', 'once more');
-- explain_message is about messages, but knows what else an id can be
SELECT e.gate, regexp_replace(e.detail, ' at [^,]*', ' at ...') AS detail FROM outbox.explain_message((SELECT min(id) FROM outbox.inbox)) e;
SELECT e.gate, regexp_replace(e.detail, ' at [^,]*', ' at ...') AS detail FROM outbox.explain_message('00000000-0000-4000-8000-000000000102') e;
SELECT e.gate, e.detail FROM outbox.explain_message(outbox.schedule_timer('in.timer', 't', 'infinity')) e WHERE NOT e.passed AND gate <> 'dispatched' OR gate = 'attempts left';
SELECT outbox.cancel_timer(timer_id) FROM outbox.timers WHERE topic = 'in.timer';
