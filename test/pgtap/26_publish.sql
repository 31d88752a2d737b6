-- 24_publish.sql: publish and subscribe
--
-- Section 13 of the contract, as far as one session can see it. What takes a server of
-- its own is in test/t: handlers of subscriptions in 011_handlers.pl, dumps in
-- 019_restore.pl. What comes in the background is in sql/publish.sql.

BEGIN;
\ir include/tools.sql
SELECT plan(23);

CREATE FUNCTION pg_temp.claimed(subscription text, topics text[] DEFAULT NULL, batch integer DEFAULT 100)
RETURNS text[]
LANGUAGE sql
AS $$ SELECT ARRAY(SELECT c.payload FROM outbox.claim('aaaaaaaa-0000-4000-8000-000000000024', batch_size => batch, namespace => 'pb',
                                                    topics => claimed.topics, subscription => claimed.subscription) c) $$;

SELECT outbox.subscribe('bill', '{order.*}', namespace => 'pb'), outbox.subscribe('mail', '{order.#,user}', namespace => 'pb'),
       outbox.subscribe('eu', '{#}', namespace => 'pb', filter => '{"region": "eu"}') \gset

SELECT is(
    ARRAY(SELECT outbox.route('order.placed', namespace => 'pb')) || '/'::text || ARRAY(SELECT outbox.route('order.placed', '{"region": "eu", "n": 1}', 'pb'))
        || '/'::text || ARRAY(SELECT outbox.route('order.placed.late', namespace => 'pb')) || '/'::text || ARRAY(SELECT outbox.route('order', namespace => 'pb'))
        || '/'::text || ARRAY(SELECT outbox.route('user', namespace => 'pb')) || '/'::text || ARRAY(SELECT outbox.route('order.placed')),
    '{bill,mail,/,bill,mail,eu,/,mail,/,mail,/,mail,/}',
    'section 13: route says who gets it: * is one segment, # any number, a filter is what headers contain');

SELECT outbox.publish('order.placed', 'p1', correlation_id => 'c', namespace => 'pb', headers => '{"region": "eu"}', priority => 1) AS p1 \gset
SELECT is(
    ARRAY(SELECT concat_ws(' ', subscription, payload, correlation_id, headers, priority, published_id = :'p1', message_id <> published_id)
            FROM outbox.messages WHERE namespace = 'pb' ORDER BY id),
    ARRAY['bill p1 c {"region": "eu"} 1 t t', 'mail p1 c {"region": "eu"} 1 t t', 'eu p1 c {"region": "eu"} 1 t t'],
    'section 13: each subscription gets a message of its own, with all that was published');
SELECT is(
    ARRAY[outbox.publish('nobody', 'p', namespace => 'pb') IS NOT NULL,
          EXISTS (SELECT FROM outbox.messages WHERE namespace = 'pb' AND topic = 'nobody')],
    '{t,f}',
    'section 13: without a subscription publish still returns an id');

SELECT outbox.enqueue('order.placed', 'task', namespace => 'pb') \gset
SELECT is(
    pg_temp.claimed('bill')::text || pg_temp.claimed('bill')::text || ARRAY(SELECT payload FROM outbox.claim(namespace => 'pb'))::text
        || pg_temp.claimed('mail', '{user}')::text || pg_temp.claimed('mail', '{order.placed}')::text,
    '{p1}{}{task}{}{p1}',
    'section 13: a claim that names a subscription sees its deliveries, no other one does; topics work within it');
SELECT is(
    tap.sqlstates($$SELECT outbox.claim(subscription => 'nobody')$$, $$SELECT outbox.claim(subscription => 'bill', namespace => 'default')$$,
                  $$SELECT outbox.process_work_batch('aaaaaaaa-0000-4000-8000-000000000024', 's', 'h', 1, subscription => 'nobody')$$,
                  $$SELECT outbox.pause_subscription('nobody')$$, $$SELECT outbox.configure_subscription('nobody')$$, $$SELECT outbox.replay('nobody', now())$$,
                  $$SELECT outbox.redrive(subscription => 'nobody')$$, $$SELECT outbox.purge_topic(NULL, subscription => 'nobody')$$),
    '{42704,42704,42704,42704,42704,42704,42704,42704}',
    'section 13: an unknown subscription is 42704');
SELECT is(
    tap.sqlstates($$SELECT outbox.subscribe('', '{a}')$$, $$SELECT outbox.subscribe('s', '{a*}')$$, $$SELECT outbox.subscribe('s', '{}')$$,
                  $$SELECT outbox.subscribe('s', '{{a}}')$$, $$SELECT outbox.subscribe('s', '{a}', filter => '[]')$$,
                  $$SELECT outbox.subscribe('s', array_fill('a'::text, ARRAY[1001]))$$, $$SELECT outbox.subscribe('s', NULL)$$,
                  $$SELECT outbox.subscribe('s', '{a,NULL}')$$, $$SELECT outbox.publish('t', 'p', on_duplicate => 'replace')$$,
                  $$SELECT outbox.subscribe('s', '{a}', start_at => now())$$, $$SELECT outbox.replay('bill', now(), namespace => 'pb')$$),
    '{22023,22023,22023,22023,22023,22023,22004,22004,22023,55000,55000}',
    'section 13: bad names, patterns and filters are refused, and a start or replay where nothing is kept');

SELECT outbox.nack('aaaaaaaa-0000-4000-8000-000000000024', array_agg(id), 'no', '0') FROM outbox.leases WHERE subscription = 'bill' \gset
SELECT outbox.ack('aaaaaaaa-0000-4000-8000-000000000024', array_agg(id)) FROM outbox.leases WHERE subscription = 'mail' \gset
SELECT is(
    ARRAY(SELECT concat_ws(' ', subscription, state, retry_count) FROM outbox.messages WHERE namespace = 'pb' AND published_id IS NOT NULL ORDER BY 1),
    '{"bill ready 1","eu ready 0","mail done 0"}',
    'section 13: each delivery has its own lease and retries');
SELECT outbox.configure_subscription('bill', 'pb', max_attempts => 2), outbox.pause_subscription('eu', 'pb') \gset
SELECT pg_temp.claimed('bill') AS got, pg_temp.claimed('eu') AS paused \gset
SELECT outbox.nack('aaaaaaaa-0000-4000-8000-000000000024', array_agg(id), 'no', '0') FROM outbox.leases WHERE subscription = 'bill' \gset
SELECT outbox.resume_subscription('eu', 'pb') \gset
SELECT is(
    :'got' || :'paused' || pg_temp.claimed('eu')::text
        || ARRAY(SELECT concat_ws(' ', subscription, reason_name) FROM outbox.dead_letters WHERE namespace = 'pb')::text,
    '{p1}{}{p1}{"bill max attempts exceeded"}',
    'section 13: policies, pause and dead letters are the subscription''s');
SELECT is(
    outbox.redrive(namespace => 'pb', subscription => 'mail') || ' ' || outbox.redrive(namespace => 'pb', subscription => 'bill') || pg_temp.claimed('bill')::text,
    '0 1{p1}',
    'section 13: redrive of a subscription brings back its dead, and no others');

SELECT count(outbox.publish('order.s', 's' || i, namespace => 'pb', stream_id => '00000000-0000-4000-8000-000000000024')) FROM generate_series(1, 3) i \gset
SELECT is(
    pg_temp.claimed('bill', '{order.s}', 1)::text
        || ARRAY(SELECT payload FROM outbox.claim('bbbbbbbb-0000-4000-8000-000000000024', namespace => 'pb', topics => '{order.s}', subscription => 'bill'))::text
        || pg_temp.claimed('mail', '{order.s}')::text
        || ARRAY(SELECT DISTINCT stream_id FROM outbox.messages WHERE topic = 'order.s')::text,
    '{s1}{}{s1,s2,s3}{00000000-0000-4000-8000-000000000024}',
    'section 13: a stream is in order within each subscription, and one delays no other');
SELECT is(
    ARRAY(SELECT concat_ws(' ', subscription, behind) FROM outbox.stream_heads WHERE stream_id = '00000000-0000-4000-8000-000000000024' ORDER BY 1),
    '{"bill 2","mail 2"}',
    'section 13: stream_heads shows the stream that was published in');

SELECT outbox.enqueue('order.k', 'e', namespace => 'pb', dedupe_key => 'k') AS e,
       outbox.publish('order.k', '1', namespace => 'pb', dedupe_key => 'k') AS k,
       outbox.publish('order.id', 'x', namespace => 'pb', message_id => '00000000-0000-4000-8000-0000000024aa') AS i \gset
SELECT is(
    ARRAY[:'e' <> :'k', outbox.publish('order.k', '2', namespace => 'pb', dedupe_key => 'k') = :'k',
          (SELECT count(*) = 2 FROM outbox.messages WHERE published_id = :'k')]::text
        || tap.sqlstates($$SELECT outbox.publish('other', 'y', namespace => 'pb', message_id => '00000000-0000-4000-8000-0000000024aa')$$)::text,
    '{t,t,t}{23505}',
    'section 13: keys and ids are the publication''s, and keys apart from those of enqueue');
SELECT is(
    ARRAY(SELECT concat_ws(' ', ordinal, deliveries)
            FROM outbox.publish_batch('[{"topic": "order.b", "namespace": "pb", "payload": 1}, {"topic": "user", "namespace": "pb", "payload": {}, "headers": {"region": "eu"}},
                                        {"topic": "order.b", "namespace": "pb", "payload": 2, "dedupe_key": "b"}, {"topic": "order.b", "namespace": "pb", "payload": 3, "dedupe_key": "b"}]')
           ORDER BY ordinal),
    '{"1 2","2 2","3 2","4 0"}',
    'section 13: deliveries is how many subscriptions matched at the call');
SELECT cardinality(outbox.publish_many('order.m', '{a,b}', 'pb')) || ' ' || cardinality(outbox.publish_many_json('order.m', '[{"a": 1}]', 'pb')) AS published \gset
SELECT is(
    :'published' || ARRAY(SELECT payload FROM outbox.messages WHERE topic = 'order.m' AND subscription = 'bill' ORDER BY id)::text,
    '2 1{a,b,"{\"a\": 1}"}',
    'section 13: publish_many publishes all, in order');

SELECT outbox.publish('order.big', repeat('x', 5000), namespace => 'pb') AS big \gset
SELECT is(
    ARRAY(SELECT length(payload)::text FROM outbox.messages WHERE published_id = :'big')
        || (SELECT count(*)::text FROM outbox.publications WHERE published_id = :'big')
        || (SELECT length(payload)::text FROM outbox.claim(namespace => 'pb', topics => '{order.big}', subscription => 'mail')),
    '{5000,5000,1,5000}',
    'section 13: a large payload is stored once, for all subscriptions');

SELECT string_agg(payload, ',') AS got FROM outbox.process_work_batch('cccccccc-0000-4000-8000-000000000024', 's', 'h', 1, subscription => 'eu') \gset
SELECT count(*) AS then FROM outbox.process_work_batch('cccccccc-0000-4000-8000-000000000024', 's', 'h', 1, subscription => 'eu',
                     outbox_completions => (SELECT jsonb_agg(jsonb_build_object('message_id', message_id, 'status', 4)) FROM outbox.leases
                                             WHERE owner_token = 'cccccccc-0000-4000-8000-000000000024')) \gset
SELECT is(
    :'got' || ' ' || :'then' || ' ' || (SELECT string_agg(state, ',') FROM outbox.messages WHERE subscription = 'eu' AND topic = 'user'),
    '{} 0 done',
    'section 13: process_work_batch takes the deliveries of a subscription, and completes them');

SELECT outbox.start_join('pb', 1) AS j \gset
SELECT is(
    tap.sqlstates(format('SELECT outbox.attach_message_to_join(%L, %L)', :'j', :'p1'), format('SELECT outbox.attach_message_to_join(%L, %L)', :'j', :'big'),
                  format('SELECT outbox.attach_message_to_join(%L, %L)', :'j', gen_random_uuid())),
    '{22023,22023,00000}',
    'section 13: an id that is known to be published is no step of a join');

SELECT is(
    ARRAY(SELECT concat_ws(' ', gate, passed) FROM outbox.explain_message(:'p1'::uuid)),
    '{"published t","subscription \"bill\" t","subscription \"eu\" t","subscription \"mail\" t"}',
    'section 13: explain_message says who has got a publication');
SELECT is(
    ARRAY(SELECT concat_ws(' ', e.gate, e.passed)
            FROM (SELECT id FROM outbox.messages WHERE subscription = 'bill' AND topic = 'order.b' ORDER BY id LIMIT 1) m, outbox.explain_message(m.id) e),
    '{"unfinished t","due t","not expired t","not leased t","not locked t","in its lane t","claims can write t","visible to all t","subscribed t","subscription not paused t","attempts left t","first in stream t","for any instance t","for any worker f"}',
    'section 13: and of a delivery what can be in the way');
SELECT outbox.purge_topic('order.b', 'pb') AS none, outbox.purge_topic('order.b', 'pb', subscription => 'bill') AS two \gset
SELECT is(
    :'none' || ' ' || :'two' || ARRAY(SELECT DISTINCT subscription FROM outbox.messages WHERE topic = 'order.b' AND state = 'ready')::text,
    '0 2{mail}',
    'section 13: purge_topic leaves deliveries alone, unless their subscription is named');

SELECT pg_temp.claimed('mail', '{order.b}', 1) AS got \gset
SELECT outbox.unsubscribe('mail', 'pb') || ' ' || outbox.unsubscribe('mail', 'pb') AS ended \gset
SELECT outbox.ack('aaaaaaaa-0000-4000-8000-000000000024', array_agg(id)) AS acked FROM outbox.leases WHERE subscription = 'mail' AND topic = 'order.b' \gset
SELECT is(
    concat_ws(' ', :'got', :'ended', :'acked') || ARRAY(SELECT DISTINCT state || ' ' || failure_reason FROM outbox.messages WHERE subscription = 'mail' AND topic IN ('order.b', 'order.m') ORDER BY 1)::text,
    '{1} true false 1{"done 0","failed 99"}',
    'section 13: unsubscribe: what is ready is dead, what is leased can be settled');
SELECT outbox.unsubscribe('bill', 'pb', drop_messages => true) AS ended \gset
SELECT is(
    :'ended' || ' '
        || (SELECT count(*) FROM outbox.messages WHERE subscription = 'bill' AND state = 'ready') || ' '
        || (SELECT count(*) FROM outbox.policies WHERE kind = 'subscription' AND topic = 'bill'),
    't 0 0',
    'section 13: or is dropped; the policy goes with it');

CREATE ROLE pb_producer;
CREATE ROLE pb_worker;
CREATE ROLE pb_monitor;
SELECT outbox.grant_producer('pb_producer'), outbox.grant_worker('pb_worker'), outbox.grant_monitor('pb_monitor') \gset
SELECT is(
    tap.sqlstates_as('pb_producer', $$SELECT outbox.publish('t', 'p')$$, $$SELECT outbox.route('t')$$, $$SELECT outbox.subscribe('s', '{t}')$$, $$SELECT outbox.claim(subscription => 'eu')$$)
        || tap.sqlstates_as('pb_worker', $$SELECT outbox.claim(subscription => 'eu')$$, $$SELECT outbox.publish('t', 'p')$$, $$SELECT outbox.unsubscribe('eu', 'pb')$$, $$SELECT payload FROM outbox.publications$$)
        || tap.sqlstates_as('pb_monitor', $$SELECT topics FROM outbox.subscriptions$$, $$SELECT filter FROM outbox.subscriptions$$, $$SELECT payload FROM outbox.publications$$, $$SELECT outbox.pause_subscription('eu', 'pb')$$),
    '{00000,00000,42501,42501,00000,42501,42501,42501,00000,42501,42501,42501}',
    'section 13: a producer publishes, a worker claims for any subscription, neither subscribes; a monitor sees no payload and no filter');

SELECT * FROM finish();
ROLLBACK;
