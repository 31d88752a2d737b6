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

-- a key is free again when its message is gone, even if nobody cleaned up
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
