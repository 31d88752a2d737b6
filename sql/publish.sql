-- publish.sql: subscriptions, and what is published for them.

-- patterns
SELECT p, t, outbox._topic_matches(t, ARRAY[p])
  FROM (VALUES ('a', 'a'), ('a', 'a.b'), ('*', 'a'), ('*', 'a.b'), ('a.*', 'a.b'), ('a.*', 'a'), ('a.*', 'a.'), ('#', 'a.b.c'),
               ('a.#', 'a'), ('a.#', 'a.b.c'), ('a.#.z', 'a.z'), ('a.#.z', 'a.b.c.z'), ('a.#.z', 'a.b.z.c'), ('#.b.#', 'a.b.c'), ('#.b.#', 'a.c'),
               ('#.#', 'a'), ('*.#', 'a.b'), ('*.*', 'a'), ('a..b', 'a..b'), ('a.*.b', 'a..b'), ('#.x.*.y.#', 'x.x.1.y'), ('A', 'a')) v(p, t);
SELECT outbox.subscribe('s', NULL);
SELECT outbox.subscribe('s', '{}');
SELECT outbox.subscribe('s', '{a,NULL}');
SELECT outbox.subscribe('s', '{{a},{b}}');
SELECT outbox.subscribe('s', '{""}');
SELECT outbox.subscribe('s', '{a*}');
SELECT outbox.subscribe('s', '{a.#b}');
SELECT outbox.subscribe('s', ARRAY[repeat('a', 256)]);
SELECT outbox.subscribe('', '{a}');
SELECT outbox.subscribe(NULL, '{a}');
SELECT outbox.subscribe('s', '{a}', namespace => '');
SELECT outbox.subscribe('s', '{a}', filter => '[]');
SELECT outbox.subscribe('s', '{a}', start_at => now());
SELECT count(*) FROM outbox.subscriptions;

-- who gets it
SELECT outbox.subscribe('billing', '{order.*}'), outbox.subscribe('mail', '{#}'), outbox.subscribe('eu', '{order.placed}', filter => '{"region": "eu"}'),
       outbox.subscribe('billing', '{order.*}', namespace => 'other');
SELECT * FROM outbox.route('order.placed');
SELECT * FROM outbox.route('order.placed', '{"region": "eu", "n": 1}');
SELECT * FROM outbox.route('order.placed', '{"region": "us"}');
SELECT * FROM outbox.route('order.placed', namespace => 'other');
SELECT * FROM outbox.route('order.placed', namespace => 'nowhere');
SELECT * FROM outbox.route(NULL);
SELECT outbox.publish('order.placed', '{"id": 1}'::jsonb, correlation_id => 'c', headers => '{"region": "eu"}', priority => 1) AS id \gset
SELECT subscription, namespace, topic, payload, correlation_id, headers, priority, published_id = :'id' AS of_it, message_id <> :'id' AS own_id, state FROM outbox.messages WHERE published_id = :'id' ORDER BY id;
-- without subscriptions
SELECT outbox.publish('nothing', 'x', namespace => 'nowhere') IS NOT NULL AS published;
SELECT count(*) FROM outbox.messages WHERE namespace = 'nowhere';
-- enqueue is for one
SELECT outbox.enqueue('order.placed', 'plain') IS NOT NULL AS enqueued;

-- claims
SELECT subscription, topic, payload, priority, published_id = :'id' AS of_it FROM outbox.claim(owner_token => '00000000-0000-4000-8000-00000000000a', subscription => 'billing');
SELECT subscription, topic, payload FROM outbox.claim(owner_token => '00000000-0000-4000-8000-00000000000a', subscription => 'billing');
SELECT subscription, topic, payload FROM outbox.claim(owner_token => '00000000-0000-4000-8000-00000000000b', topics => '{order.placed}');
SELECT subscription, topic, payload FROM outbox.claim(subscription => 'mail', topics => '{other}');
SELECT subscription, topic, payload FROM outbox.claim(subscription => 'nobody');
SELECT subscription, topic, payload FROM outbox.claim(subscription => 'mail', namespace => 'other');
SELECT outbox.publish('order.paid', 'p2', namespace => 'other') IS NOT NULL AS published;
SELECT outbox.publish('order.paid', 'p1') IS NOT NULL AS published;
SELECT namespace, subscription, payload FROM outbox.claim(owner_token => '00000000-0000-4000-8000-00000000000a', subscription => 'billing') ORDER BY payload;

-- each has its own life
SELECT outbox.nack('00000000-0000-4000-8000-00000000000a', array_agg(id), error => 'not now', delay => '0') FROM outbox.messages WHERE owner_token = '00000000-0000-4000-8000-00000000000a' AND topic = 'order.placed';
SELECT outbox.fail('00000000-0000-4000-8000-00000000000a', array_agg(id), error => 'never') FROM outbox.messages WHERE owner_token = '00000000-0000-4000-8000-00000000000a';
SELECT namespace, subscription, ready, leased, dead, paused, topics, filter FROM outbox.subscriptions;
SELECT subscription, namespace, topic, payload, last_error FROM outbox.messages WHERE state = 'failed' AND subscription IS NOT NULL ORDER BY id;
SELECT outbox.redrive('order.paid', 'other');
SELECT namespace, subscription, payload, published_id IS NOT NULL AS published FROM outbox.claim(owner_token => '00000000-0000-4000-8000-00000000000a', subscription => 'billing', namespace => 'other');
SELECT outbox.ack('00000000-0000-4000-8000-00000000000a', array_agg(id)) FROM outbox.messages WHERE owner_token = '00000000-0000-4000-8000-00000000000a';
SELECT subscription, payload FROM outbox.messages WHERE state = 'done' AND namespace = 'other';

-- policies
SELECT outbox.pause_subscription('mail');
SELECT payload FROM outbox.claim(subscription => 'mail');
SELECT outbox.resume_subscription('mail');
SELECT outbox.configure_subscription('mail', max_attempts => 1);
SELECT kind, topic, max_attempts FROM outbox.policies WHERE kind = 'subscription';
SELECT payload FROM outbox.claim(owner_token => '00000000-0000-4000-8000-00000000000c', subscription => 'mail');
SELECT outbox.nack('00000000-0000-4000-8000-00000000000c', array_agg(id), error => 'once') FROM outbox.messages WHERE owner_token = '00000000-0000-4000-8000-00000000000c';
SELECT payload, state, failure_reason FROM outbox.messages WHERE subscription = 'mail' ORDER BY id;
SELECT outbox.configure_subscription('nobody', max_attempts => 1);
SELECT outbox.pause_subscription('nobody');
SELECT outbox.resume_subscription('mail', 'nowhere');

-- streams: one for each subscription
SELECT outbox.publish('order.s', 's' || i, stream_id => '00000000-0000-4000-8000-000000000001') IS NOT NULL FROM generate_series(1, 3) i;
SELECT payload, stream_id FROM outbox.claim(owner_token => '00000000-0000-4000-8000-00000000000d', batch_size => 1, subscription => 'billing', topics => '{order.s}');
SELECT payload FROM outbox.claim(owner_token => '00000000-0000-4000-8000-00000000000e', subscription => 'billing', topics => '{order.s}');
SELECT payload FROM outbox.claim(owner_token => '00000000-0000-4000-8000-00000000000e', subscription => 'mail', topics => '{order.s}');
SELECT outbox.ack('00000000-0000-4000-8000-00000000000d', array_agg(id)) FROM outbox.messages WHERE owner_token = '00000000-0000-4000-8000-00000000000d';
SELECT payload FROM outbox.claim(owner_token => '00000000-0000-4000-8000-00000000000e', subscription => 'billing', topics => '{order.s}');
SELECT subscription, payload, state FROM outbox.messages WHERE stream_id = '00000000-0000-4000-8000-000000000001' ORDER BY subscription, payload;

-- large payloads are stored once
SELECT outbox.publish('order.big', repeat('x', 3000)) IS NOT NULL AS published;
SELECT subscription, length(payload) FROM outbox.messages WHERE topic = 'order.big' ORDER BY 1;
SELECT count(*) FROM outbox.publications WHERE topic = 'order.big';
SELECT length(payload) FROM outbox.queue WHERE topic = 'order.big';
SELECT subscription, length(payload) FROM outbox.claim(owner_token => '00000000-0000-4000-8000-00000000000d', subscription => 'billing', topics => '{order.big}');
SELECT outbox.fail('00000000-0000-4000-8000-00000000000d', array_agg(id)) FROM outbox.messages WHERE owner_token = '00000000-0000-4000-8000-00000000000d';
SELECT subscription, length(payload) FROM outbox.messages WHERE topic = 'order.big' AND state = 'failed';
SELECT outbox.redrive('order.big');
SELECT subscription, length(payload) FROM outbox.claim(owner_token => '00000000-0000-4000-8000-00000000000d', subscription => 'billing', topics => '{order.big}');

-- keys and ids are those of the publication, and apart from those of enqueue
SELECT outbox.enqueue('order.key', 'e', dedupe_key => 'k') IS NOT NULL AS enqueued;
SELECT outbox.publish('order.key', '1', dedupe_key => 'k') AS k1 \gset
SELECT outbox.publish('order.key', '2', dedupe_key => 'k') = :'k1' AS the_same;
SELECT subscription, payload, dedupe_key FROM outbox.messages WHERE published_id = :'k1' ORDER BY 1;
SELECT outbox.publish('order.key', '1', on_duplicate => 'replace');
SELECT outbox.publish('order.id', 'x', message_id => '00000000-0000-4000-8000-0000000000aa');
SELECT outbox.publish('order.id', 'x', message_id => '00000000-0000-4000-8000-0000000000aa');
-- a call that is repeated has both; the key comes first, and an id that is not used stays free
SELECT outbox.publish('order.key', '1', dedupe_key => 'both', message_id => '00000000-0000-4000-8000-0000000000ac') FROM generate_series(1, 2);
SELECT outbox.publish('order.key', '1', dedupe_key => 'both', message_id => '00000000-0000-4000-8000-0000000000ad');
SELECT outbox.publish('order.key', '2', message_id => '00000000-0000-4000-8000-0000000000ad');
SELECT ordinal, message_id, deliveries FROM outbox.publish_batch('[{"topic": "order.key", "payload": 1, "dedupe_key": "both", "message_id": "00000000-0000-4000-8000-0000000000ae"}, {"topic": "order.key", "payload": 1, "dedupe_key": "b3", "message_id": "00000000-0000-4000-8000-0000000000ae"}]');
SELECT outbox.publish('order.id', 'x', due_time => 'infinity', expires_at => 'infinity', tenant_id => '00000000-0000-4000-8000-0000000000bb', message_id => '00000000-0000-4000-8000-0000000000ab');
SELECT subscription, due_time, expires_at, tenant_id FROM outbox.messages WHERE published_id = '00000000-0000-4000-8000-0000000000ab' ORDER BY 1;
SELECT outbox.publish(NULL, 'x');
SELECT outbox.publish('t', NULL::text);
SELECT outbox.publish('t', 'x', priority => 3);

-- many at once
SELECT cardinality(outbox.publish_many('order.many', '{a,b,c}'));
SELECT subscription, string_agg(payload, ',' ORDER BY id) FROM outbox.messages WHERE topic = 'order.many' GROUP BY 1 ORDER BY 1;
SELECT cardinality(outbox.publish_many('order.many', '{d,e}', stream_id => '00000000-0000-4000-8000-000000000002'));
SELECT ordinal, deliveries FROM outbox.publish_batch('[{"topic": "order.b", "payload": 1}, {"topic": "b", "payload": {"a": 2}}, {"topic": "order.b", "payload": "x", "dedupe_key": "b"}, {"topic": "order.b", "payload": "y", "dedupe_key": "b"}]');
SELECT outbox.publish_batch('[{"topic": "order.b", "payload": 1, "on_duplicate": "debounce"}]');
SELECT cardinality(outbox.publish_many_json('order.many', '[{"a": 1}, 2]'));
SELECT outbox.publish('order.json', '{"a":  1}'::json) IS NOT NULL AS published;
INSERT INTO outbox.queue (topic, payload, subscriber) VALUES ('x', 'x', 1);

-- a subscription is changed
SELECT outbox.subscribe('billing', '{invoice.#}');
SELECT * FROM outbox.route('order.placed');
SELECT * FROM outbox.route('invoice');

-- many subscribers: in the background
SELECT outbox.subscribe('m' || i, '{many}', namespace => 'many') FROM generate_series(1, 12) i;
SELECT outbox.publish_batch('[{"topic": "many", "namespace": "many", "payload": "1"}]') IS NOT NULL;
SELECT deliveries FROM outbox.publish_batch('[{"topic": "many", "namespace": "many", "payload": "2", "stream_id": "00000000-0000-4000-8000-000000000003"}]');
SELECT count(*) FROM outbox.messages WHERE namespace = 'many';
SELECT outbox.unsubscribe('m' || i, 'many') FROM generate_series(4, 12) i;
-- behind those that are still to come
SELECT deliveries FROM outbox.publish_batch('[{"topic": "many", "namespace": "many", "payload": "3", "stream_id": "00000000-0000-4000-8000-000000000003"}]');
SELECT count(*) FROM outbox.messages WHERE namespace = 'many';
SELECT outbox.run_maintenance() > 0 AS some;
CALL outbox.maintain();
SELECT count(*) FROM outbox.expansions;
SELECT payload, state, count(*), last_error FROM outbox.messages WHERE namespace = 'many' GROUP BY 1, 2, 4 ORDER BY 1, 2;
SELECT payload FROM outbox.claim(subscription => 'm1', namespace => 'many');

-- unsubscribe
SELECT outbox.unsubscribe('nobody'), outbox.unsubscribe('m2', 'many', drop_messages => true);
SELECT count(*) FROM outbox.messages WHERE subscription = 'm2';
SELECT payload FROM outbox.claim(owner_token => '00000000-0000-4000-8000-00000000000d', subscription => 'm3', namespace => 'many', batch_size => 1);
SELECT outbox.unsubscribe('m3', 'many');
SELECT subscription, payload, state FROM outbox.messages WHERE subscription = 'm3' ORDER BY payload;
SELECT outbox.ack('00000000-0000-4000-8000-00000000000d', array_agg(id)) FROM outbox.messages WHERE owner_token = '00000000-0000-4000-8000-00000000000d' AND namespace = 'many';
CALL outbox.maintain();
SELECT count(*) FROM outbox.subscribers WHERE namespace = 'many' AND state = 2;
SELECT outbox.requeue(array_agg(id)) FROM outbox.messages WHERE subscription = 'm3' AND state = 'failed';
-- a name that comes back is another subscription
SELECT outbox.subscribe('m3', '{many}', namespace => 'many');
SELECT count(*) FROM outbox.claim(subscription => 'm3', namespace => 'many');
SELECT outbox.requeue(array_agg(id)) FROM outbox.messages WHERE subscription = 'm3' AND state = 'failed';
SELECT payload FROM outbox.claim(subscription => 'm3', namespace => 'many');

-- what was published before
SET outbox.publish_retention = '1 d';
SELECT outbox.publish('old', 'o' || i, namespace => 'old', headers => jsonb_build_object('n', i)) IS NOT NULL AS published FROM generate_series(1, 4) i;
SELECT outbox.subscribe('late', '{old}', namespace => 'old', start_at => now() - interval '1 h');
SELECT outbox.subscribe('later', '{#}', namespace => 'old', filter => '{"n": 2}', start_at => '-infinity');
SELECT outbox.subscribe('never', '{#}', namespace => 'old', start_at => 'infinity');
SELECT outbox.subscribe('late', '{old,older}', namespace => 'old', start_at => now());
SELECT outbox.publish('old', 'new', namespace => 'old') IS NOT NULL AS published;
SELECT outbox.publish('old', 'stream', namespace => 'old', stream_id => '00000000-0000-4000-8000-000000000004') IS NOT NULL AS published;
SELECT subscription, starting, ready FROM outbox.subscriptions WHERE namespace = 'old';
CALL outbox.maintain();
SELECT subscription, starting, ready FROM outbox.subscriptions WHERE namespace = 'old';
SELECT payload FROM outbox.claim(subscription => 'late', namespace => 'old') ORDER BY id;
SELECT payload FROM outbox.claim(subscription => 'later', namespace => 'old');
SELECT outbox.replay('late', now() - interval '1 h', topics => '{o*}', namespace => 'old');
SELECT outbox.replay('late', NULL, namespace => 'old');
SELECT outbox.replay('nobody', now());
SELECT outbox.replay('late', now() - interval '1 h', until_time => now() + interval '1 h', topics => '{old}', namespace => 'old');
CALL outbox.maintain();
SELECT payload FROM outbox.claim(subscription => 'late', namespace => 'old') ORDER BY id;
RESET outbox.publish_retention;
SELECT outbox.configure_topic('old', 'old', publish_retention => '1 h');
SELECT outbox.replay('later', now() - interval '1 h', namespace => 'old');
SELECT outbox.reset_topic('old', 'old');
SELECT outbox.replay('later', now() - interval '1 h', namespace => 'old');

-- by the day
SELECT count(*) > 0 AS partitions FROM pg_class WHERE relname ~ '^publications_\d{8}$';
CALL outbox.maintain();
SELECT bool_and(day = '-infinity' OR day = (published_at AT TIME ZONE 'UTC')::date) AS sorted FROM outbox.publications;
SELECT component, ok, status, detail FROM outbox.status() WHERE component = 'tables' AND NOT ok;

-- deliveries refer to the row of their publication only if they need it
SELECT outbox.subscribe('r' || i, CASE i WHEN 1 THEN '{few,many}' ELSE '{many}' END::text[], namespace => 'rows') FROM generate_series(1, 9) i;
SELECT outbox.publish(topic, 'copied ' || topic, namespace => 'rows') IS NOT NULL AS published,
       outbox.publish(topic, 'key ' || topic, namespace => 'rows', dedupe_key => topic) IS NOT NULL AS published,
       outbox.publish(topic, 'id ' || topic, namespace => 'rows', message_id => gen_random_uuid()) IS NOT NULL AS published,
       outbox.publish(topic, rpad('large ' || topic, 3000), namespace => 'rows') IS NOT NULL AS published
  FROM unnest('{few,many}'::text[]) topic;
CALL outbox.maintain();
SELECT trim(m.payload) AS payload, count(*) AS deliveries, count(q.published_at) AS refer
  FROM outbox.queue q JOIN outbox.messages m USING (id) WHERE q.namespace = 'rows' GROUP BY 1 ORDER BY 1;

-- a partition that is being restored has no index yet
BEGIN;
SELECT outbox.publish('many', 'restored', namespace => 'rows', headers => '{"a": 1}') IS NOT NULL AS published;
DO $$
DECLARE
    found regclass;
BEGIN
    FOR found IN
        SELECT x.indexrelid::regclass
          FROM pg_index x
          JOIN pg_inherits h ON h.inhrelid = x.indrelid
          JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = x.indkey[0]
         WHERE h.inhparent = 'outbox.publications'::regclass AND a.attname = 'published_id'
    LOOP
        EXECUTE format('DROP INDEX %s', found);
    END LOOP;
END
$$;
SELECT expanded FROM outbox._expand(0, 32);
SELECT payload, headers, count(*) FROM outbox.messages WHERE payload = 'restored' GROUP BY 1, 2;
ROLLBACK;

-- what cannot be a subscriber
SELECT outbox._deliver(array_agg(published_at), array_agg(published_id), '{1,-1}', 0) FROM outbox.publications;
SELECT outbox._deliver(array_agg(published_at), array_agg(published_id), '{0}', 0) FROM outbox.publications;

-- rolled back
BEGIN;
SELECT outbox.subscribe('gone', '{gone}', namespace => 'gone');
SAVEPOINT a;
SELECT outbox.publish('gone', 'x', namespace => 'gone') IS NOT NULL AS published;
SELECT payload FROM outbox.claim(subscription => 'gone', namespace => 'gone');
ROLLBACK TO a;
SELECT payload FROM outbox.claim(subscription => 'gone', namespace => 'gone');
ROLLBACK;
SELECT * FROM outbox.route('gone', namespace => 'gone');
SELECT outbox.publish('gone', 'x', namespace => 'gone') IS NOT NULL AS published;
SELECT count(*) FROM outbox.messages WHERE namespace = 'gone';
DO $$ BEGIN PERFORM outbox.unsubscribe(subscription, namespace, true) FROM outbox.subscriptions; END $$;
CALL outbox.maintain();
SELECT count(*) FROM outbox.subscribers WHERE state < 2;
