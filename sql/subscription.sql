-- What looks at messages, and deliveries of subscriptions. Called as the views and
-- operator's calls are.
SET datestyle = 'ISO, MDY';
\set a '\'00000000-0000-4000-8000-00000000005a\''
\set s '\'00000000-0000-4000-8000-0000000000e1\''
SELECT outbox.subscribe('one', '{sv.#}', namespace => 'sv'), outbox.subscribe('two', '{sv.*}', namespace => 'sv');
SELECT outbox.publish('sv.a', 'p1', namespace => 'sv', stream_id => :s) AS p1 \gset
SELECT outbox.publish('sv.a', 'p2', namespace => 'sv', stream_id => :s) AS p2 \gset
SELECT outbox.publish('sv.late', 'p3', namespace => 'sv', due_time => 'infinity', correlation_id => 'c3') AS p3 \gset
SELECT outbox.publish('sv.big', repeat('x', 3000), namespace => 'sv') AS p4 \gset
SELECT outbox.enqueue('sv.a', 'plain', namespace => 'sv', stream_id => :s) AS plain \gset

-- what is there
SELECT topic, subscription, ready, delayed, waiting_in_stream, leased, dead, paused FROM outbox.topic_stats WHERE namespace = 'sv' ORDER BY 1, 2;
SELECT subscription, ready, leased, oldest_ready_age IS NOT NULL AS has_oldest FROM outbox.subscriptions WHERE namespace = 'sv' ORDER BY 1;
SELECT topic, subscription, due, delayed, leased, dead FROM outbox.topic_counts WHERE namespace = 'sv' ORDER BY 1, 2;
SELECT stream_id, topic, subscription, state, behind, partition_number = outbox._partition_number(:s) AS same_partition FROM outbox.stream_heads WHERE namespace = 'sv' ORDER BY subscription;
SELECT next_attempt_at, kind, topic, name, subscription FROM outbox.upcoming WHERE topic = 'sv.late' ORDER BY subscription;
SELECT topic, subscription, stream_id, published_id = :'p1' AS of_p1, state, priority FROM outbox.messages_info WHERE namespace = 'sv' AND topic = 'sv.a' ORDER BY id;

-- leased
SELECT subscription, payload FROM outbox.claim(:a, batch_size => 1, namespace => 'sv', topics => '{sv.a}', subscription => 'one');
SELECT topic, subscription, stream_id, published_id = :'p1' AS of_p1 FROM outbox.leases WHERE namespace = 'sv';
SELECT topic, subscription, waiting, last_pid = pg_backend_pid() AS mine FROM outbox.claimers WHERE namespace = 'sv';
SELECT topic, subscription, leased, waiting_in_stream FROM outbox.topic_stats WHERE namespace = 'sv' AND topic = 'sv.a' ORDER BY 2;

-- why not
SELECT id AS first FROM outbox.messages WHERE published_id = :'p1' AND subscription = 'one' \gset
SELECT id AS second, message_id AS second_id FROM outbox.messages WHERE published_id = :'p2' AND subscription = 'one' \gset
SELECT outbox.configure_subscription('one', 'sv', max_attempts => 2), outbox.pause_subscription('one', 'sv');
SELECT gate, passed, replace(detail, :'first', 'FIRST') FROM outbox.explain_message(:second) WHERE gate <> 'first in stream' AND NOT passed OR gate IN ('subscribed', 'attempts left');
SELECT gate, passed, detail ~ :'first' AS names_it FROM outbox.explain_message(:'second_id'::uuid) WHERE gate = 'first in stream';
SELECT count(*) FROM outbox.explain_message(:'second_id') WHERE gate = 'topic not paused';
SELECT outbox.resume_subscription('one', 'sv');
SELECT gate, passed, regexp_replace(regexp_replace(detail, 'message \d+', 'message N'), 'at \d.*?,', 'at TIME,') FROM outbox.explain_message(:'p1'::uuid);
SELECT gate, passed, regexp_replace(regexp_replace(detail, 'message \d+', 'message N'), 'at \d.*?,', 'at TIME,') FROM outbox.explain_message(:'p4');

-- failed
SELECT outbox.nack(:a, ARRAY[:first], 'not now', delay => '0');
SELECT attempt, error, topic, subscription FROM outbox.attempts_log WHERE id = :first;
SELECT subscription, payload FROM outbox.claim(:a, batch_size => 1, namespace => 'sv', topics => '{sv.big}', subscription => 'two') \gset big_
SELECT :'big_subscription', length(:'big_payload');
SELECT outbox.fail(:a, array_agg(id), 'never', reason => 4) FROM outbox.leases WHERE namespace = 'sv';
SELECT topic, subscription, length(payload), published_id = :'p4' AS of_p4, reason_name FROM outbox.dead_letters WHERE namespace = 'sv';
SELECT topic, subscription, reason_name, count, last_error FROM outbox.failures WHERE namespace = 'sv';
SELECT topic, subscription, dead FROM outbox.topic_stats WHERE namespace = 'sv' AND dead > 0;
SELECT topic, subscription, dead FROM outbox.topic_counts WHERE namespace = 'sv' AND dead > 0;
SELECT outbox.redrive(namespace => 'sv', subscription => 'one');
SELECT outbox.redrive(namespace => 'sv', subscription => 'nobody');
SELECT outbox.redrive(namespace => 'sv', subscription => '');
SELECT outbox.redrive(namespace => 'sv', subscription => 'two');
SELECT subscription, length(payload) FROM outbox.claim(:a, namespace => 'sv', topics => '{sv.big}', subscription => 'two');

-- changed by hand
SELECT outbox.release(:a);
SELECT array_agg(id ORDER BY id) AS late FROM outbox.messages WHERE published_id = :'p3' \gset
SELECT outbox.reschedule(:'late', '2000-01-01');
SELECT subscription, next_attempt_at <= now() AS due, due_time FROM outbox.messages WHERE published_id = :'p3' ORDER BY 1;
SELECT outbox.discard(ARRAY[(:'late'::bigint[])[1]]);
SELECT subscription, state, failure_reason FROM outbox.messages WHERE published_id = :'p3' ORDER BY 1;
SELECT outbox.cancel(:'p3'), outbox.cancel(message_id) FROM outbox.messages WHERE published_id = :'p3' AND state = 'ready';
SELECT outbox.redrive(topic => 'sv.late', namespace => 'sv');

-- purged: what was enqueued, or what is a subscription's
SELECT outbox.purge_topic('sv.a', 'sv', 'all');
SELECT subscription, count(*) FROM outbox.messages WHERE namespace = 'sv' AND topic = 'sv.a' GROUP BY 1 ORDER BY 1;
SELECT outbox.purge_topic('sv.a', 'sv', subscription => 'two'), outbox.purge_topic(NULL, 'sv', subscription => 'nobody');
SELECT outbox.purge_topic('sv.a', 'sv', subscription => 'two');
SELECT outbox.fail(:a, array_agg(c.id)) FROM outbox.claim(:a, namespace => 'sv', topics => '{sv.big}', subscription => 'two') c;
SELECT outbox.purge_topic(NULL, 'sv', 'all', 1, 'two'), outbox.purge_topic(NULL, 'sv', 'all', subscription => 'two'), outbox.purge_topic(NULL, 'sv', 'all', subscription => 'two');
SELECT subscription, count(*) FROM outbox.messages WHERE namespace = 'sv' GROUP BY 1 ORDER BY 1;
SELECT outbox.purge_topic(NULL, 'sv');

-- a publication is no step of a join
SELECT outbox.start_join('sv', 1) AS j \gset
SELECT outbox.attach_message_to_join(:'j', :'p1');
SELECT outbox.attach_message_to_join(:'j', :'p4');
SELECT outbox.attach_message_to_join(:'j', message_id) FROM outbox.messages WHERE published_id = :'p1' AND subscription = 'one';
SELECT outbox.attach_message_to_join(:'j', gen_random_uuid());
SELECT outbox.ack(:a, array_agg(c.id)) FROM outbox.claim(:a, namespace => 'sv', batch_size => 1, topics => '{sv.a}', subscription => 'one') c;
SELECT completed_steps, status FROM outbox.joins WHERE join_id = :'j';

-- a round trip for a subscription
SELECT outbox.publish('sv.a', 'w' || i, namespace => 'sv', stream_id => :s) IS NOT NULL FROM generate_series(1, 2) i;
SELECT outbox.publish('sv.big', repeat('y', 3000), namespace => 'sv') IS NOT NULL AS published;
SELECT * FROM outbox.process_work_batch(:a, 's', 'h', 1, subscription => 'nobody');
SELECT count(*) FROM outbox.process_work_batch(:a, 's', 'h', 1, new_outbox_messages => '[{"topic": "sv.a", "namespace": "sv", "payload": "new", "stream_id": "00000000-0000-4000-8000-0000000000e1"}]', batch_size => 1, subscription => 'two', max_partitions_per_instance => 1) WHERE source = 'outbox';
SELECT topic, left(payload, 3) AS payload, length(payload), stream_id, partition_number = outbox._partition_number(:s) AS same_partition, attempts FROM outbox.process_work_batch(:a, 's', 'h', 1, subscription => 'two') WHERE source = 'outbox' ORDER BY 1;
SELECT count(*) FROM outbox.process_work_batch(:a, 's', 'h', 1, subscription => 'two', outbox_completions => (
    SELECT jsonb_agg(jsonb_build_object('message_id', message_id, 'status', 4)) FROM outbox.leases WHERE subscription = 'two')) WHERE source = 'outbox';
SELECT subscription, left(payload, 3) AS payload, state FROM outbox.messages WHERE subscription = 'two' AND namespace = 'sv' ORDER BY id;
-- without one it also gets what other tests have left
SELECT payload FROM outbox.process_work_batch(:a, 's', 'h', 1, batch_size => 10000) WHERE topic = 'sv.a';
SELECT (SELECT count(*) FROM outbox.queue WHERE owner_token = :a) + (SELECT count(*) FROM outbox.inbox_queue WHERE owner_token = :a) AS leased \gset
SELECT outbox.deregister_instance(:a) = :leased AS all_given_back, :leased > 0 AS some;

-- what is to come, and what does not move
SELECT outbox.subscribe('many' || i, '{sv.x}', namespace => 'sv') FROM generate_series(1, 10) i;
SELECT outbox.publish('sv.x', 'x', namespace => 'sv', stream_id => :s) AS px \gset
SELECT outbox.publish('sv.x', 'y', namespace => 'sv', stream_id => :s) AS py \gset
SELECT gate, passed, regexp_replace(detail, 'at \d.*?,', 'at TIME,') FROM outbox.explain_message(:'py') LIMIT 2;
SELECT gate, detail FROM outbox.explain_message(:'px') WHERE gate = 'subscription "one"';
SELECT outbox.attach_message_to_join(:'j', :'px');
SELECT component, ok, status, regexp_replace(detail, 'at \d.*', 'at TIME') FROM outbox.status() WHERE component ~ 'publications to deliver';
UPDATE outbox.expansions SET published_at = published_at - interval '10 min';
SELECT component, ok, status, hint IS NOT NULL AS hint FROM outbox.status() WHERE component ~ 'publications to deliver';
UPDATE outbox.expansions SET published_at = published_at + interval '10 min';
CALL outbox.maintain();
SELECT gate, passed, regexp_replace(detail, 'message \d+', 'message N') FROM outbox.explain_message(:'py') WHERE gate ~ 'many3|one';
-- other tests may have left some that are gone
SELECT status AS gone_before FROM outbox.status() WHERE component = 'subscriptions that are gone' \gset
SELECT component, ok, CASE component WHEN 'subscriptions' THEN status END AS status FROM outbox.status() WHERE component ~ '^subscriptions';
UPDATE outbox.queue SET next_attempt_at = next_attempt_at - interval '1 h' WHERE subscriber = (SELECT id FROM outbox.subscribers WHERE subscription = 'many3');
SELECT component, ok, status, detail, hint IS NOT NULL AS hint FROM outbox.status() WHERE component ~ '^subscriptions$';
SELECT detail ~ 'topic "sv.x", namespace "sv", subscription "many3"' AS names_it FROM outbox.status() WHERE component = 'oldest ready message';
SELECT outbox.pause_subscription('many3', 'sv');
SELECT ok FROM outbox.status() WHERE component ~ '^subscriptions$';
SELECT detail ~ 'subscription many3' AS paused, detail ~ 'subscription "many3"' AS oldest FROM outbox.status() WHERE component = 'oldest ready message';

-- gone
SELECT count(*) FROM outbox.claim(:a, namespace => 'sv', batch_size => 1, subscription => 'many1');
SELECT outbox.unsubscribe('many1', 'sv');
SELECT id AS gone FROM outbox.leases WHERE subscription = 'many1' \gset
SELECT gate, passed, detail FROM outbox.explain_message(:gone) WHERE gate IN ('subscribed', 'for any worker');
SELECT component, ok, status::integer - :gone_before AS more, detail ~ 'sv/many1; \d+ of them with messages that are leased, or not removed yet$' AS names_it FROM outbox.status() WHERE component ~ '^subscriptions that';
SELECT outbox.ack_one(:a, :gone);
SELECT count(*), outbox.redrive(namespace => 'sv', topic => 'sv.x') AS back FROM outbox.dead_letters WHERE subscription = 'many1';
CALL outbox.maintain();
-- those of other tests may be gone by now as well
SELECT component, ok, status::integer <= :gone_before AS no_more, coalesce(detail ~ 'sv/many1', false) AS names_it FROM outbox.status() WHERE component ~ '^subscriptions that';
SELECT gate, passed, regexp_replace(detail, 'message \d+', 'message N') FROM outbox.explain_message(:'px') WHERE gate ~ 'many1"';

-- a replay, and its place
SET outbox.publish_retention = '1 d';
SELECT outbox.publish('sv.y', 'y' || i, namespace => 'sv') IS NOT NULL AS published FROM generate_series(1, 2) i;
SELECT outbox.replay('one', now() - interval '1 h', topics => '{sv.y}', namespace => 'sv');
SELECT component, ok, status, regexp_replace(detail, 'at \d.*', 'at TIME') FROM outbox.status() WHERE component ~ '^replay';
CALL outbox.maintain();
SELECT count(*) FROM outbox.status() WHERE component ~ '^replay';
SELECT count(*) FROM outbox.claim(:a, namespace => 'sv', topics => '{sv.y}', subscription => 'one');
SELECT outbox.subscribe('start', '{sv.y}', namespace => 'sv', start_at => '-infinity');
SELECT component, ok, status, detail IS NOT NULL AS detail FROM outbox.status() WHERE component ~ '^start';
CALL outbox.maintain();
SELECT count(*) FROM outbox.status() WHERE component ~ '^start';

-- what a monitor may see
CREATE ROLE sv_monitor;
SELECT outbox.grant_monitor('sv_monitor');
SET ROLE sv_monitor;
SELECT count(*) > 0 AS seen FROM outbox.topic_stats WHERE subscription = 'one';
SELECT namespace, subscription, topics FROM outbox.subscriptions WHERE subscription = 'one';
SELECT filter FROM outbox.subscriptions;
SELECT payload FROM outbox.publications;
SELECT published_id FROM outbox.publications;
SELECT * FROM outbox.subscribers;
SELECT * FROM outbox.expansions;
SELECT * FROM outbox.replays;
SELECT outbox.publish('x', 'x');
SELECT outbox.subscribe('x', '{x}');
SELECT count(*) FROM outbox.explain_message(:'px'::uuid);
RESET ROLE;
SELECT outbox.revoke_monitor('sv_monitor');
DROP ROLE sv_monitor;

DO $$ BEGIN PERFORM outbox.unsubscribe(subscription, namespace, true) FROM outbox.subscriptions; END $$;
SELECT outbox.release(:a) >= 0 AS released;
CALL outbox.maintain();
SELECT outbox.purge_topic('sv.a', 'sv', 'all');
SELECT count(*) FROM outbox.subscribers WHERE namespace = 'sv';
