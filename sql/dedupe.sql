-- at most one message per dedupe key
\set a '''aaaaaaaa-0000-4000-8000-000000000001'''
\set tenant '''11111111-aaaa-4111-8111-11111111111b'''

SELECT outbox.enqueue('dd', 'first', dedupe_key => 'k') AS m \gset
SELECT outbox.enqueue('dd', 'second', dedupe_key => 'k') = :'m' AS the_first_ones;
SELECT message_id = :'m' AS same, enqueued FROM outbox.try_enqueue('dd', 'third', dedupe_key => 'k');
SELECT message_id = :'m' AS same, enqueued FROM outbox.try_enqueue('dd', '{"a": 1}'::jsonb, dedupe_key => 'k');
SELECT message_id <> :'m' AS other, enqueued FROM outbox.try_enqueue('dd', 'other key', dedupe_key => 'K');
SELECT message_id <> :'m' AS other, enqueued FROM outbox.try_enqueue('dd', 'other namespace', dedupe_key => 'k', namespace => 'ns');
SELECT message_id <> :'m' AS other, enqueued FROM outbox.try_enqueue('dd2', 'other topic', dedupe_key => 'k');
SELECT payload FROM outbox.messages WHERE topic LIKE 'dd%' ORDER BY id;

-- finished messages count, too
SELECT id AS i FROM outbox.claim(:a, topics => '{dd}', namespace => 'default', batch_size => 1) \gset
SELECT outbox.ack(:a, ARRAY[:i]);
SELECT message_id = :'m' AS same, enqueued FROM outbox.try_enqueue('dd', 'done', dedupe_key => 'k');
SELECT id AS i, message_id AS m2 FROM outbox.claim(:a, topics => '{dd}', namespace => 'default', batch_size => 1) \gset
SELECT outbox.fail(:a, ARRAY[:i]);
SELECT message_id = :'m2' AS same, enqueued FROM outbox.try_enqueue('dd', 'dead', dedupe_key => 'K');
SELECT outbox.requeue(ARRAY[:i]);
SELECT message_id = :'m2' AS same, enqueued FROM outbox.try_enqueue('dd', 'back', dedupe_key => 'K');

-- a transaction that is rolled back leaves the key free
BEGIN;
SELECT enqueued FROM outbox.try_enqueue('dd.tx', 'p', dedupe_key => 'k');
SELECT enqueued FROM outbox.try_enqueue('dd.tx', 'q', dedupe_key => 'k');
SAVEPOINT s;
SELECT enqueued FROM outbox.try_enqueue('dd.tx', 'r', dedupe_key => 'k2');
ROLLBACK TO s;
SELECT enqueued FROM outbox.try_enqueue('dd.tx', 's', dedupe_key => 'k2');
ROLLBACK;
SELECT enqueued FROM outbox.try_enqueue('dd.tx', 'p', dedupe_key => 'k');
SELECT payload FROM outbox.messages WHERE topic = 'dd.tx';

-- within one batch the first one wins
SELECT ordinal, enqueued, message_id = first_value(message_id) OVER (ORDER BY ordinal) AS same
  FROM outbox.enqueue_batch('[
    {"topic": "dd.batch", "payload": "1", "dedupe_key": "k"},
    {"topic": "dd.batch", "payload": "2", "dedupe_key": "k"},
    {"topic": "dd.batch", "payload": "3", "dedupe_key": "l"},
    {"topic": "dd.batch", "payload": "4"}]');
SELECT payload FROM outbox.messages WHERE topic = 'dd.batch' ORDER BY id;

-- a key is free again when its message is gone, even without cleanup
SELECT outbox.enqueue('dd.gone', 'old', dedupe_key => 'k') AS m \gset
DELETE FROM outbox.queue WHERE message_id = :'m';
SELECT message_id <> :'m' AS other, enqueued FROM outbox.try_enqueue('dd.gone', 'new', dedupe_key => 'k');
SELECT enqueued FROM outbox.try_enqueue('dd.gone', 'newer', dedupe_key => 'k');
SELECT payload FROM outbox.messages WHERE topic = 'dd.gone';

-- the key of a tenant's message names the tenant
SELECT enqueued FROM outbox.try_enqueue('dd.tenant', 'p', tenant_id => :tenant, dedupe_key => '11111111-aaaa-4111-8111-11111111111b/1');
SELECT enqueued FROM outbox.try_enqueue('dd.tenant', 'p', tenant_id => :tenant, dedupe_key => '11111111aaaa4111811111111111111b/1');
SELECT enqueued FROM outbox.try_enqueue('dd.tenant', 'p', tenant_id => :tenant, dedupe_key => '11111111AAAA4111811111111111111B/');
SELECT enqueued FROM outbox.try_enqueue('dd.tenant', 'p', tenant_id => :tenant);
SELECT enqueued FROM outbox.try_enqueue('dd.tenant', 'p', dedupe_key => 'free');
\set VERBOSITY sqlstate
SELECT outbox.enqueue('dd.tenant', 'p', tenant_id => :tenant, dedupe_key => 'free');
SELECT outbox.enqueue('dd.tenant', 'p', tenant_id => :tenant, dedupe_key => '11111111-aaaa-4111-8111-11111111111b');
SELECT outbox.enqueue('dd.tenant', 'p', tenant_id => :tenant, dedupe_key => '11111111-aaaa-4111-8111-11111111111c/1');
SELECT outbox.enqueue('dd.tenant', 'p', tenant_id => :tenant, dedupe_key => '11111111-aaaa4111811111111111111b/1');
SELECT outbox.enqueue('dd.tenant', 'p', tenant_id => :tenant, dedupe_key => '/');
\set VERBOSITY default
SELECT outbox.enqueue('dd.tenant', 'p', tenant_id => :tenant, dedupe_key => 'free');
SELECT count(*) FROM outbox.messages WHERE topic = 'dd.tenant';
-- unless that is turned off, for all or for a topic
SELECT outbox.configure_topic('dd.tenant', check_dedupe_tenant => false);
SELECT enqueued FROM outbox.try_enqueue('dd.tenant', 'p', tenant_id => :tenant, dedupe_key => 'mine');
SELECT outbox.reset_topic('dd.tenant');
SET outbox.check_dedupe_tenant = off;
SELECT enqueued FROM outbox.try_enqueue('dd.tenant', 'p', tenant_id => :tenant, dedupe_key => 'too');
RESET outbox.check_dedupe_tenant;

-- a key that is taken for some time: until then, whatever happens to its message
SELECT outbox.enqueue('dd.for', '1', dedupe_key => 'k', dedupe_for => '1 hour') AS m \gset
SELECT taken_until - now() BETWEEN '59 min' AND '61 min' AS in_an_hour, message_id = :'m' AS holder
  FROM outbox.dedupe WHERE message_id = :'m';
SELECT message_id = :'m' AS same, outcome FROM outbox.try_enqueue('dd.for', '2', dedupe_key => 'k', dedupe_for => '2 hours');
SELECT message_id = :'m' AS same, outcome FROM outbox.try_enqueue('dd.for', '2', dedupe_key => 'k');
-- the second neither extends the time nor ends it
SELECT taken_until - now() BETWEEN '59 min' AND '61 min' AS in_an_hour FROM outbox.dedupe WHERE message_id = :'m';
-- done, and not kept
SELECT outbox.configure_topic('dd.for', retention => '0');
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.claim(:a, topics => '{dd.for}');
SELECT count(*) FROM outbox.messages WHERE topic = 'dd.for';
SELECT message_id = :'m' AS same, outcome FROM outbox.try_enqueue('dd.for', '3', dedupe_key => 'k');
SELECT outbox._cleanup_step('keys');
SELECT message_id = :'m' AS same, outcome FROM outbox.try_enqueue('dd.for', '3', dedupe_key => 'k');
-- when the time is over the next one is new, and has the key as it says itself
UPDATE outbox.dedupe SET taken_until = now() WHERE message_id = :'m';
SELECT message_id AS m4, message_id = :'m' AS same, outcome FROM outbox.try_enqueue('dd.for', '4', dedupe_key => 'k', dedupe_for => '1 month') \gset
\echo :same :outcome
SELECT taken_until > now() + interval '27 days' AS month FROM outbox.dedupe WHERE message_id = :'m4';
-- even if the first one still waits: then both do, and the key is the second's
UPDATE outbox.dedupe SET taken_until = now() WHERE message_id = :'m4';
SELECT outbox.cancel_by_key('dd.for', 'k');
SELECT message_id AS m5, outcome FROM outbox.try_enqueue('dd.for', '5', dedupe_key => 'k') \gset
SELECT payload, dedupe_key FROM outbox.messages WHERE topic = 'dd.for' ORDER BY id;
SELECT taken_until IS NULL AS as_long_as_it_is_kept FROM outbox.dedupe WHERE message_id = :'m5';
-- the first one ends, and is forgotten, and frees only what is its own
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.claim(:a, topics => '{dd.for}', batch_size => 1);
SELECT payload FROM outbox.messages WHERE topic = 'dd.for';
SELECT message_id = :'m5' AS same, outcome FROM outbox.try_enqueue('dd.for', '6', dedupe_key => 'k');
-- a key without a time is freed with its message
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.claim(:a, topics => '{dd.for}');
SELECT outcome FROM outbox.try_enqueue('dd.for', '7', dedupe_key => 'k', dedupe_for => '1 h');
-- one that is cancelled frees its key at once, and takes it again if it can
SELECT outbox.cancel_by_key('dd.for', 'k');
SELECT outcome FROM outbox.try_enqueue('dd.for', '8', dedupe_key => 'k', dedupe_for => '1 h');
SELECT outbox.redrive('dd.for');
SELECT payload, dedupe_key FROM outbox.messages WHERE topic = 'dd.for' ORDER BY id;
-- one that failed comes back with its key only if no other has it by now
SELECT outbox.fail(:a, array_agg(id)) FROM outbox.claim(:a, topics => '{dd.for}') WHERE payload = '8';
UPDATE outbox.dedupe SET taken_until = now() WHERE key = outbox._dedupe_digest('default', 'dd.for', 'k');
SELECT outcome FROM outbox.try_enqueue('dd.for', '9', dedupe_key => 'k', dedupe_for => '1 h');
SELECT outbox.redrive('dd.for');
SELECT payload, dedupe_key FROM outbox.messages WHERE topic = 'dd.for' ORDER BY id;
SELECT outbox.fail(:a, array_agg(id)) FROM outbox.claim(:a, topics => '{dd.for}') WHERE payload = '9';
SELECT outbox.redrive('dd.for');
SELECT payload, dedupe_key FROM outbox.messages WHERE topic = 'dd.for' ORDER BY id;
-- in a transaction, also if its own key is over by then
BEGIN;
SELECT outcome FROM outbox.try_enqueue('dd.tx', 'p', dedupe_key => 'us', dedupe_for => '1 us');
SELECT outcome FROM outbox.try_enqueue('dd.tx', 'q', dedupe_key => 'us', dedupe_for => '1 day');
SELECT outcome FROM outbox.try_enqueue('dd.tx', 'r', dedupe_key => 'us', dedupe_for => '1 day');
ROLLBACK;
SELECT (outbox.try_enqueue('dd.tx', i::text, dedupe_key => 'us', dedupe_for => '1 us')).outcome FROM generate_series(1, 3) i;
SELECT ordinal, outcome FROM outbox.enqueue_batch('[
    {"topic": "dd.tx", "payload": "1", "dedupe_key": "both", "dedupe_for": "1 us"},
    {"topic": "dd.tx", "payload": "2", "dedupe_key": "both", "dedupe_for": "1 day"},
    {"topic": "dd.tx", "payload": "3", "dedupe_key": "both"}]');
-- plain SQL respects it, and takes keys for as long as messages are kept
WITH i AS (INSERT INTO outbox.queue (topic, payload, dedupe_key) VALUES ('dd.tx', 'sql', 'both') RETURNING 1) SELECT count(*) FROM i;
UPDATE outbox.dedupe SET taken_until = now() WHERE key = outbox._dedupe_digest('default', 'dd.tx', 'both');
WITH i AS (INSERT INTO outbox.queue (topic, payload, dedupe_key) VALUES ('dd.tx', 'sql', 'both') RETURNING 1) SELECT count(*) FROM i;
SELECT taken_until FROM outbox.dedupe WHERE key = outbox._dedupe_digest('default', 'dd.tx', 'both');
-- cleanup forgets the keys whose time is over, and no others
DELETE FROM outbox.dedupe;
SELECT count(outbox.enqueue('dd.clean', i::text, dedupe_key => i::text, dedupe_for => i * interval '1 hour')) FROM generate_series(1, 30) i;
SELECT outbox.enqueue('dd.clean', 'plain', dedupe_key => 'plain') IS NOT NULL AS ok;
UPDATE outbox.dedupe SET taken_until = taken_until - interval '10 hours 30 min';
SELECT outbox._cleanup_step('keys');
SELECT count(*), count(taken_until) AS timed, min(taken_until) > now() AS later FROM outbox.dedupe;
-- a step has its limit, and says that there is more
INSERT INTO outbox.dedupe SELECT gen_random_uuid(), gen_random_uuid(), now() FROM generate_series(1, 5100);
SELECT outbox._cleanup_step('keys');
SELECT outbox._cleanup_step('keys');
SELECT count(*) FROM outbox.dedupe;
-- a worker looks again when the first is over, but not all the time
SELECT outbox._cleanup_interval() BETWEEN 1700000 AND 1800000 AS in_half_an_hour;
UPDATE outbox.dedupe SET taken_until = taken_until - interval '29 min 50 s';
SELECT outbox._cleanup_interval();
DELETE FROM outbox.dedupe WHERE taken_until IS NOT NULL;
SELECT outbox._cleanup_interval();
SELECT outbox.reset_topic('dd.for');
