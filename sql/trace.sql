-- Traces: outbox.traceparent in headers, what has caused a message, and trace().
TRUNCATE outbox.queue, outbox.dead, outbox.archive, outbox.joins, outbox.join_members, outbox.join_waits, outbox.timer_done, outbox.run_done;
\set a '''aaaaaaaa-0000-4000-8000-000000000001'''
\set t1 '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
\set t2 '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00'
-- the life of something, without ids and times
CREATE FUNCTION life(of_id uuid) RETURNS TABLE (event text, relation text, kind text, topic text, subscription text, detail text)
LANGUAGE sql AS $$
    SELECT t.event, t.relation, t.kind, t.topic, t.subscription,
           regexp_replace(regexp_replace(t.detail, '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', 'ID', 'g'),
                          'until .*', 'until then')
      FROM outbox.trace(of_id) t
$$;

-- only a traceparent of version 00 is one
SELECT outbox.status_name(0);
SET outbox.traceparent = 'x';
SET outbox.traceparent = '01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
SET outbox.traceparent = '00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01';
SET outbox.traceparent = '00-00000000000000000000000000000000-b7ad6b7169203331-01';
SET outbox.traceparent = '00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01';
SET outbox.traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x';
SET outbox.traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0g';
SET outbox.traceparent = '00-0af7651916cd43dd8448eb211c80319cb7ad6b7169203331--01';
SHOW outbox.traceparent;

-- everything that is enqueued gets it, unless its headers have one
SET outbox.traceparent = :'t1';
SELECT outbox.enqueue('tr.one', '1') IS NOT NULL AS ok;
SELECT outbox.enqueue('tr.headers', '2', headers => '{"a": 1}') IS NOT NULL AS ok;
SELECT outbox.enqueue('tr.own', '3', headers => jsonb_build_object('traceparent', :'t2')) IS NOT NULL AS ok;
SELECT outbox.enqueue('tr.odd', '4', headers => '{"traceparent": 5}') IS NOT NULL AS ok;
SELECT cardinality(outbox.enqueue_many('tr.many', '{5,6}')) AS n;
SELECT count(*) FROM outbox.enqueue_batch('[{"topic": "tr.batch", "payload": "7"}, {"topic": "tr.batch", "payload": "8", "headers": {"b": 2}}]');
INSERT INTO outbox.queue (topic, payload) VALUES ('tr.plain', '9');
SELECT outbox.receive('aaaaaaaa-0000-4000-8000-00000000000a', 'tr.inbox', '10');
RESET outbox.traceparent;
SELECT outbox.enqueue('tr.none', '11') IS NOT NULL AS ok;
SELECT topic, payload, headers, caused_by FROM outbox.queue WHERE topic LIKE 'tr.%' ORDER BY payload::integer;
SELECT handler_name, headers, caused_by FROM outbox.inbox_queue WHERE handler_name = 'tr.inbox';
SELECT outbox.ack_inbox(owner_token, array_agg(id)) FROM outbox.claim_inbox(handler_names => '{tr.inbox}') GROUP BY owner_token;
-- what is replaced has the trace of what it was replaced by
SELECT outbox.enqueue('tr.replaced', 'old', dedupe_key => 'k') IS NOT NULL AS ok;
SET outbox.traceparent = :'t2';
SELECT outcome FROM outbox.try_enqueue('tr.replaced', 'new', dedupe_key => 'k', on_duplicate => 'replace');
RESET outbox.traceparent;
SELECT payload, headers FROM outbox.queue WHERE topic = 'tr.replaced';
-- a trace by its id, and what else is in the trace of a message
SELECT event, relation, kind, topic FROM life('0af76519-16cd-43dd-8448-eb211c80319c') WHERE event <> 'due';
SELECT message_id AS one FROM outbox.messages WHERE topic = 'tr.one' \gset
SELECT event, relation, kind, topic FROM life(:'one') WHERE event <> 'due';
DELETE FROM outbox.queue;

-- retried, dead, brought back, and done
SET outbox.traceparent = :'t1';
SELECT outbox.enqueue('tr.life', 'x') AS m \gset
RESET outbox.traceparent;
SELECT * FROM life(:'m');
SELECT count(*) FROM outbox.claim(:a, topics => '{tr.life}');
SELECT * FROM life(:'m') OFFSET 1;
SELECT outbox.nack(:a, array_agg(id), 'not yet', delay => '0') FROM outbox.messages WHERE topic = 'tr.life';
SELECT count(*) FROM outbox.claim(:a, topics => '{tr.life}');
SELECT outbox.fail(:a, array_agg(id), 'never') FROM outbox.messages WHERE topic = 'tr.life';
SELECT outbox.redrive(topic => 'tr.life');
SELECT count(*) FROM outbox.claim(:a, topics => '{tr.life}');
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.messages WHERE topic = 'tr.life';
SELECT * FROM life(:'m');
SELECT attempt, error FROM outbox.attempts_log WHERE topic = 'tr.life';
SELECT headers, caused_by FROM outbox.archive WHERE topic = 'tr.life';

-- a timer, with a trace and without; the session that dispatches it has another
SET outbox.traceparent = :'t1';
SELECT outbox.schedule_timer('tr.timer1', 'x', now()) AS timer1 \gset
RESET outbox.traceparent;
SELECT outbox.schedule_timer('tr.timer2', 'x', now()) AS timer2 \gset
SET outbox.traceparent = :'t2';
SELECT outbox.dispatch_due();
RESET outbox.traceparent;
SELECT topic, headers, caused_by IN (:'timer1', :'timer2') AS by_the_timer FROM outbox.queue WHERE topic LIKE 'tr.timer%' ORDER BY topic;
SELECT * FROM life(:'timer1') WHERE event <> 'due';
SELECT message_id AS m FROM outbox.queue WHERE topic = 'tr.timer2' \gset
SELECT event, relation, kind, topic, detail FROM life(:'m') WHERE event <> 'due';

-- a run
SET outbox.traceparent = :'t1';
SELECT outbox._add_run('tr.job', 'tr.run', 'x') IS NOT NULL AS ok;
RESET outbox.traceparent;
SELECT outbox.dispatch_due();
SELECT topic, headers - 'run' AS headers FROM outbox.queue WHERE topic = 'tr.run';
SELECT message_id AS m FROM outbox.queue WHERE topic = 'tr.run' \gset
SELECT event, relation, kind, topic FROM life(:'m') WHERE event <> 'due' AND relation <> 'trace';

-- a join: its steps cause its continuation, which is in the trace of the wait
SELECT outbox.start_join('tr', 2) AS j \gset
SELECT outbox.enqueue_step(:'j', 'tr.step', '1') AS s1, outbox.enqueue_step(:'j', 'tr.step', '2') AS s2 \gset
SET outbox.traceparent = :'t2';
SELECT outbox.enqueue_join_wait(:'j', false, 'tr.then', 'x') AS w \gset
RESET outbox.traceparent;
SELECT outbox.process_join_waits();
SELECT event, relation, kind, topic, detail FROM life(:'w');
SELECT count(*) FROM outbox.claim(:a, topics => '{tr.step}');
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.messages WHERE topic = 'tr.step';
SELECT outbox.process_join_waits();
SELECT headers, caused_by = :'j' AS by_the_join FROM outbox.queue WHERE topic = 'tr.then';
SELECT * FROM life(:'s1') WHERE event <> 'due';
SELECT message_id AS m FROM outbox.queue WHERE topic = 'tr.then' \gset
SELECT event, relation, kind, topic FROM life(:'m') WHERE event <> 'due' ORDER BY 1, 2, 3, 4;
SELECT event, relation, kind, topic FROM life(:'j') WHERE event <> 'due' ORDER BY 1, 2, 3, 4;

-- a publication, and its deliveries; replays and retries keep the trace
SELECT outbox.subscribe('tr.a', '{tr.news}'), outbox.subscribe('tr.b', '{tr.news}');
SET outbox.traceparent = :'t1';
SELECT outbox.publish('tr.news', 'x') AS p \gset
RESET outbox.traceparent;
SELECT subscription, headers FROM outbox.messages WHERE topic = 'tr.news' ORDER BY subscription;
SELECT * FROM life(:'p') WHERE event <> 'due';
SELECT message_id AS m FROM outbox.messages WHERE subscription = 'tr.b' \gset
SELECT event, relation, kind, topic, subscription FROM life(:'m') WHERE event <> 'due' AND topic = 'tr.news';
SELECT outbox.unsubscribe('tr.a', drop_messages => true), outbox.unsubscribe('tr.b', drop_messages => true);

-- nothing, and bad arguments
SELECT * FROM outbox.trace('bbbbbbbb-0000-4000-8000-00000000000b');
\set VERBOSITY sqlstate
SELECT * FROM outbox.trace(NULL);
\set VERBOSITY default

-- a monitor sees the life without errors, an admin with them; others nothing
CREATE ROLE trace_monitor;
CREATE ROLE trace_admin;
SELECT outbox.grant_monitor('trace_monitor'), outbox.grant_admin('trace_admin');
SELECT message_id AS m FROM outbox.archive WHERE topic = 'tr.life' \gset
SET ROLE trace_monitor;
SELECT event, detail FROM outbox.trace(:'m') WHERE event = 'failed attempt';
SET ROLE trace_admin;
SELECT event, detail FROM outbox.trace(:'m') WHERE event = 'failed attempt';
RESET ROLE;
SELECT outbox.revoke_monitor('trace_monitor'), outbox.revoke_admin('trace_admin');
DROP ROLE trace_monitor, trace_admin;

-- no sequential scan of a table of messages
SET enable_seqscan = off;
DO $$
DECLARE
    line text;
BEGIN
    FOR line IN EXPLAIN SELECT * FROM outbox._work w WHERE w.caused_by = ANY ('{aaaaaaaa-0000-4000-8000-00000000000a}') LOOP
        IF line ~ 'Seq Scan' THEN RAISE NOTICE '%', line; END IF;
    END LOOP;
    FOR line IN EXPLAIN SELECT * FROM outbox._work w WHERE w.message_id = ANY ('{aaaaaaaa-0000-4000-8000-00000000000a}') LOOP
        IF line ~ 'Seq Scan' THEN RAISE NOTICE '%', line; END IF;
    END LOOP;
END
$$;
RESET enable_seqscan;
DROP FUNCTION life(uuid);
TRUNCATE outbox.queue, outbox.dead, outbox.archive, outbox.joins, outbox.join_members, outbox.join_waits, outbox.timer_done, outbox.run_done;
