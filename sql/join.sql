-- Joins: counting, completion, waits, continuations.
SET client_min_messages = warning;
DELETE FROM outbox.queue WHERE topic = 'join.wait';
\set a '''00000000-0000-4000-8000-00000000000a'''
CREATE TEMP TABLE j (name text PRIMARY KEY, id uuid);
CREATE FUNCTION pg_temp.j(name text) RETURNS uuid LANGUAGE sql
    AS 'SELECT id FROM j WHERE j.name = $1';
CREATE FUNCTION pg_temp.show(name text, OUT expected int, OUT completed int, OUT failed int, OUT status text) LANGUAGE sql
    AS 'SELECT expected_steps, completed_steps, failed_steps, outbox.join_status_name(status)
          FROM outbox.joins WHERE join_id = pg_temp.j($1)';
-- claim all messages of a topic, and do something with them; returns how many
CREATE FUNCTION pg_temp.ack(t text, n int DEFAULT 100) RETURNS int LANGUAGE sql AS
    'SELECT outbox.ack(''00000000-0000-4000-8000-00000000000a'', coalesce(array_agg(id), ''{}''))
       FROM outbox.claim(''00000000-0000-4000-8000-00000000000a'', topics => ARRAY[t], batch_size => n)';
CREATE FUNCTION pg_temp.fail(t text, n int DEFAULT 100) RETURNS int LANGUAGE sql AS
    'SELECT outbox.fail(''00000000-0000-4000-8000-00000000000a'', coalesce(array_agg(id), ''{}''), ''no'')
       FROM outbox.claim(''00000000-0000-4000-8000-00000000000a'', topics => ARRAY[t], batch_size => n)';
-- no lease ends except those that this test ends
DO $$ BEGIN PERFORM outbox.renew(owner_token, array_agg(id), 86400) FROM outbox.leases GROUP BY owner_token; END $$;
SET outbox.lease_seconds = '1 h';

-- starting
INSERT INTO j VALUES ('one', outbox.start_join('order 7', 3, '{"k": 1}'));
SELECT grouping_key, expected_steps, completed_steps, failed_steps, status, metadata,
       created_at = last_updated_at AS fresh
  FROM outbox.joins WHERE join_id = pg_temp.j('one');
INSERT INTO j VALUES ('nameless', outbox.start_join('', 1));
SELECT grouping_key IS NULL AS none FROM outbox.joins WHERE join_id = pg_temp.j('nameless');
\set VERBOSITY sqlstate
SELECT outbox.start_join('g', 0);
SELECT outbox.start_join('g', -1);
SELECT outbox.start_join('g', NULL);
SELECT outbox.start_join(repeat('x', 256), 1);
SELECT outbox.attach_message_to_join(gen_random_uuid(), gen_random_uuid());
SELECT outbox.attach_message_to_join(NULL, gen_random_uuid());
SELECT outbox.attach_message_to_join(pg_temp.j('one'), NULL);
SELECT outbox.enqueue_step(gen_random_uuid(), 't', 'p');
SELECT outbox.enqueue_step(pg_temp.j('one'), '', 'p');
SELECT outbox.report_step_completed(gen_random_uuid(), gen_random_uuid());
SELECT outbox.report_step_failed(pg_temp.j('one'), NULL);
SELECT outbox.cancel_join(gen_random_uuid());
SELECT outbox.cancel_join(NULL);
SELECT outbox.enqueue_join_wait(gen_random_uuid(), true, 't', 'p');
SELECT outbox.enqueue_join_wait(pg_temp.j('one'), NULL, 't', 'p');
SELECT outbox.enqueue_join_wait(pg_temp.j('one'), true, '', 'p');
SELECT outbox.enqueue_join_wait(pg_temp.j('one'), true, 't', NULL);
SELECT outbox.enqueue_join_wait(pg_temp.j('one'), true, 't', 'p', repeat('x', 256));
SELECT outbox.process_join_waits(0);
SELECT outbox.reconcile_joins(-1);
INSERT INTO outbox.joins (join_id, expected_steps, completed_steps) VALUES (gen_random_uuid(), 1, 2);
\set VERBOSITY default

-- steps, one call that ends several, one that ends another way
SELECT count(outbox.enqueue_step(pg_temp.j('one'), 'jn.one', 'p' || i)) FROM generate_series(1, 3) i;
SELECT count(*), min(status), max(status) FROM outbox.join_members WHERE join_id = pg_temp.j('one');
SELECT pg_temp.ack('jn.one', 2);
SELECT * FROM pg_temp.show('one');
SELECT pg_temp.fail('jn.one');
SELECT * FROM pg_temp.show('one');
SELECT status, count(*) FROM outbox.join_members WHERE join_id = pg_temp.j('one') GROUP BY 1 ORDER BY 1;
-- once it has ended, nothing changes it
SELECT outbox.report_step_completed(pg_temp.j('one'), message_id) FROM outbox.join_members WHERE join_id = pg_temp.j('one') AND status = 2;
SELECT * FROM pg_temp.show('one');
SELECT outbox.cancel_join(pg_temp.j('one'));

-- a wait filed before the end, one filed after; one for success only
INSERT INTO j VALUES ('two', outbox.start_join('two', 2));
SELECT outbox.enqueue_join_wait(pg_temp.j('two'), true, 'jn.ok', 'all well', 'jn.bad', 'not all', 'jn', '{"h": 1}') IS NOT NULL AS filed;
SELECT outbox.enqueue_join_wait(pg_temp.j('two'), false, 'jn.ended', '') IS NOT NULL AS filed;
SELECT outbox.enqueue_join_wait(pg_temp.j('two'), true, 'jn.never', 'x') IS NOT NULL AS filed;
SELECT outbox.process_join_waits();
SELECT outbox.process_join_waits();
SELECT topic, status, attempts, next_attempt_at FROM outbox.messages WHERE topic = 'join.wait' AND status = 0 ORDER BY id;
SELECT count(outbox.enqueue_step(pg_temp.j('two'), 'jn.two', 'p')) FROM generate_series(1, 2);
SELECT pg_temp.ack('jn.two', 1);
SELECT outbox.process_join_waits();
SELECT pg_temp.fail('jn.two', 1);
SELECT outbox.process_join_waits();
SELECT namespace, topic, payload, headers FROM outbox.messages WHERE topic IN ('jn.ok', 'jn.bad', 'jn.ended', 'jn.never') ORDER BY topic;
SELECT outbox.enqueue_join_wait(pg_temp.j('two'), true, 'jn.ok', 'x', 'jn.late', 'late') IS NOT NULL AS filed;
SELECT outbox.process_join_waits(), outbox.process_join_waits();
SELECT topic, payload, headers FROM outbox.messages WHERE topic = 'jn.late';
SELECT count(*) FROM outbox.join_waits;

-- every way to end counts: attempts in nack, in claim, in reap, expiry
INSERT INTO j VALUES ('ways', outbox.start_join('ways', 4));
SELECT outbox.enqueue_step(pg_temp.j('ways'), 'jn.nack', 'p') IS NOT NULL AS ok;
SELECT outbox.nack(:a, array_agg(id), max_attempts => 1) FROM outbox.claim(:a, topics => '{jn.nack}');
SELECT * FROM pg_temp.show('ways');
SELECT outbox.enqueue_step(pg_temp.j('ways'), 'jn.claim', 'p') IS NOT NULL AS ok;
SELECT count(*) FROM outbox.claim(:a, topics => '{jn.claim}');
SELECT outbox.nack(:a, array_agg(id), delay => '0') FROM outbox.leases WHERE topic = 'jn.claim';
SELECT count(*) FROM outbox.claim(:a, topics => '{jn.claim}', max_attempts => 1);
SELECT * FROM pg_temp.show('ways');
SELECT outbox.enqueue_step(pg_temp.j('ways'), 'jn.expires', 'p', expires_at => now() - interval '1 s') IS NOT NULL AS ok;
SELECT outbox.reap();
SELECT * FROM pg_temp.show('ways');
SELECT outbox.enqueue_step(pg_temp.j('ways'), 'jn.expires', 'p', expires_at => now() - interval '1 s') IS NOT NULL AS ok;
SELECT count(*) FROM outbox.claim(:a, topics => '{jn.expires}');
SELECT * FROM pg_temp.show('ways');

-- more outcomes than steps; a message in two joins; by hand
INSERT INTO j VALUES ('few', outbox.start_join('few', 2)), ('other', outbox.start_join('other', 5));
CREATE TEMP TABLE m AS SELECT outbox.enqueue('jn.few', 'p' || i) AS message_id FROM generate_series(1, 3) i;
SELECT outbox.attach_message_to_join(pg_temp.j('few'), message_id), outbox.attach_message_to_join(pg_temp.j('other'), message_id),
       outbox.attach_message_to_join(pg_temp.j('few'), message_id) FROM m;
SELECT pg_temp.ack('jn.few');
SELECT * FROM pg_temp.show('few');
SELECT * FROM pg_temp.show('other');
SELECT status, count(*) FROM outbox.join_members WHERE join_id = pg_temp.j('few') GROUP BY 1;
INSERT INTO j VALUES ('hand', outbox.start_join('hand', 2));
SELECT outbox.attach_message_to_join(pg_temp.j('hand'), ('00000000-0000-4000-8000-00000000010' || i)::uuid) FROM generate_series(1, 2) i;
SELECT outbox.report_step_failed(pg_temp.j('hand'), '00000000-0000-4000-8000-000000000101');
SELECT outbox.report_step_completed(pg_temp.j('hand'), '00000000-0000-4000-8000-000000000101');
-- what is not attached is no step
\set VERBOSITY sqlstate
SELECT outbox.report_step_completed(pg_temp.j('hand'), '00000000-0000-4000-8000-000000000999');
SELECT outbox.report_step_failed(pg_temp.j('few'), '00000000-0000-4000-8000-000000000101');
\set VERBOSITY default
DO $$
BEGIN
    PERFORM outbox.report_step_failed(pg_temp.j('few'), '00000000-0000-4000-8000-000000000101');
EXCEPTION
    WHEN undefined_object THEN
        RAISE WARNING '%', regexp_replace(SQLERRM, 'join ".*"', 'join ...');
END
$$;
SELECT * FROM pg_temp.show('hand');
SELECT outbox.report_step_completed(pg_temp.j('hand'), '00000000-0000-4000-8000-000000000102');
SELECT * FROM pg_temp.show('hand');

-- attached too late: counted when waits are evaluated
INSERT INTO j VALUES ('late', outbox.start_join('late', 2));
SELECT outbox.attach_message_to_join(pg_temp.j('late'), message_id) FROM m LIMIT 1;
SELECT * FROM pg_temp.show('late');
SELECT outbox.enqueue_join_wait(pg_temp.j('late'), true, 'jn.late2', 'x') IS NOT NULL AS filed;
SELECT outbox.process_join_waits();
SELECT * FROM pg_temp.show('late');
SELECT outbox.attach_message_to_join(pg_temp.j('late'), message_id) FROM m OFFSET 1 LIMIT 1;
SELECT outbox.reconcile_joins() > 0 AS counted;
SELECT * FROM pg_temp.show('late');
SELECT outbox.process_join_waits();
SELECT topic, payload FROM outbox.messages WHERE topic = 'jn.late2';
SELECT count(*) FROM outbox.join_rechecks;

-- cancelled
INSERT INTO j VALUES ('cancel', outbox.start_join('cancel', 2));
SELECT outbox.enqueue_join_wait(pg_temp.j('cancel'), false, 'jn.c.ok', 'x', 'jn.c.no', 'cancelled') IS NOT NULL AS filed;
SELECT outbox.process_join_waits();
SELECT outbox.cancel_join(pg_temp.j('cancel')), outbox.cancel_join(pg_temp.j('cancel'));
SELECT outbox.process_join_waits();
SELECT topic, payload FROM outbox.messages WHERE topic LIKE 'jn.c.%';
SELECT outbox.enqueue_step(pg_temp.j('cancel'), 'jn.cs', 'p') IS NOT NULL AS ok;
SELECT pg_temp.ack('jn.cs');
SELECT * FROM pg_temp.show('cancel');
SELECT status FROM outbox.join_members WHERE join_id = pg_temp.j('cancel');

-- waits that make no sense fail, and nothing else does
SELECT outbox.enqueue('join.wait', 'not json') IS NOT NULL AS ok, outbox.enqueue('join.wait', '{"joinId": "no uuid"}') IS NOT NULL AS ok,
       outbox.enqueue('join.wait', '{}') IS NOT NULL AS ok,
       outbox.enqueue('join.wait', '{"joinId": "00000000-0000-4000-8000-000000000001"}') IS NOT NULL AS ok;
SELECT outbox.process_join_waits();
SELECT payload, failure_reason FROM outbox.messages WHERE topic = 'join.wait' AND status = 3 ORDER BY id;

-- nor one that is nested too deeply to be read; another one in the same round is evaluated
INSERT INTO j VALUES ('healthy', outbox.start_join('healthy', 1));
SELECT outbox.enqueue('join.wait', repeat('[', 200000)) IS NOT NULL AS ok;
SELECT outbox.enqueue_join_wait(pg_temp.j('healthy'), false, 'jn.healthy', 'x') IS NOT NULL AS filed;
SELECT outbox.cancel_join(pg_temp.j('healthy'));
SELECT outbox.enqueue_join_wait(pg_temp.j('healthy'), false, 'jn.healthy', 'x', 'jn.healthy', 'y') IS NOT NULL AS filed;
SELECT outbox.process_join_waits();
SELECT left(payload, 3) AS payload, status, failure_reason, last_error FROM outbox.messages WHERE payload LIKE '[[[%';
SELECT payload FROM outbox.messages WHERE topic = 'jn.healthy';
-- one that cannot be evaluated for another reason is tried again, as often as any message
CREATE FUNCTION jn_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.topic = 'jn.refused' THEN
        RAISE EXCEPTION 'not today';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER jn_refuse BEFORE INSERT ON outbox.queue FOR EACH ROW EXECUTE FUNCTION jn_refuse();
SELECT outbox.enqueue_join_wait(pg_temp.j('healthy'), false, 'x', 'x', 'jn.refused', 'x') IS NOT NULL AS filed;
SELECT outbox.enqueue_join_wait(pg_temp.j('healthy'), false, 'x', 'x', 'jn.healthy', 'z') IS NOT NULL AS filed;
SET outbox.backoff_base = 0;
SET outbox.max_attempts = 3;
SELECT outbox.process_join_waits();
SELECT status, attempts, retry_count, last_error FROM outbox.messages WHERE topic = 'join.wait' AND payload LIKE '%jn.refused%';
SELECT count(*) FROM outbox.messages WHERE topic = 'jn.healthy' AND payload = 'z';
SELECT outbox.process_join_waits(), outbox.process_join_waits();
SELECT status, attempts, retry_count, failure_reason, last_error FROM outbox.messages WHERE topic = 'join.wait' AND payload LIKE '%jn.refused%';
RESET outbox.max_attempts;
RESET outbox.backoff_base;
DROP TRIGGER jn_refuse ON outbox.queue;
DROP FUNCTION jn_refuse();

-- a wait that has lost its row, or was not woken, is found; one that has ended leaves none
INSERT INTO j VALUES ('lost', outbox.start_join('lost', 1));
SELECT count(outbox.enqueue_join_wait(pg_temp.j('lost'), false, 'jn.lost', i::text, namespace => i::text)) FROM generate_series(1, 3) i;
SELECT outbox.process_join_waits();
DELETE FROM outbox.join_waits WHERE join_id = pg_temp.j('lost');
SELECT outbox.reconcile_joins(), outbox.reconcile_joins();
SELECT outbox.process_join_waits();
SELECT count(*) FROM outbox.join_waits WHERE join_id = pg_temp.j('lost');
DELETE FROM outbox.join_waits WHERE join_id = pg_temp.j('lost');
UPDATE outbox.joins SET completed_steps = 1, status = 1 WHERE join_id = pg_temp.j('lost');
SELECT outbox.process_join_waits(), outbox.reconcile_joins(), outbox.process_join_waits();
SELECT namespace, payload FROM outbox.messages WHERE topic = 'jn.lost' ORDER BY 1;
INSERT INTO j VALUES ('kept', outbox.start_join('kept', 1));
SELECT outbox.enqueue_join_wait(pg_temp.j('kept'), false, 'jn.kept', 'x') AS w \gset
SELECT outbox.fail(:a, array_agg(id)) FROM outbox.claim(:a, topics => '{join.wait}');
SELECT count(*) FROM outbox.join_waits WHERE join_id = pg_temp.j('kept');
-- it may be brought back
SELECT outbox.requeue(array_agg(id)) FROM outbox.messages WHERE message_id = :'w';
SELECT outbox.process_join_waits();
SELECT count(*) FROM outbox.join_waits WHERE join_id = pg_temp.j('kept');
SELECT outbox.cancel_join(pg_temp.j('kept')), outbox.process_join_waits();

-- nothing is decided while another session loads a dump: see 019_restore.pl
SELECT outbox._is_loading();

-- a claim that is rolled back, and a settlement that is
INSERT INTO j VALUES ('undo', outbox.start_join('undo', 1));
SELECT outbox.enqueue_step(pg_temp.j('undo'), 'jn.undo', 'p') IS NOT NULL AS ok;
BEGIN;
SELECT pg_temp.ack('jn.undo');
SELECT * FROM pg_temp.show('undo');
ROLLBACK;
SELECT * FROM pg_temp.show('undo');
BEGIN;
SAVEPOINT s;
SELECT pg_temp.ack('jn.undo');
ROLLBACK TO s;
SELECT pg_temp.fail('jn.undo');
COMMIT;
SELECT * FROM pg_temp.show('undo');
-- a dead message that comes back does not count again
SELECT outbox.redrive(topic => 'jn.undo');
SELECT pg_temp.ack('jn.undo');
SELECT * FROM pg_temp.show('undo');

-- a plain DELETE ends no message
INSERT INTO j VALUES ('plain', outbox.start_join('plain', 1));
SELECT outbox.enqueue_step(pg_temp.j('plain'), 'jn.plain', 'p') IS NOT NULL AS ok;
DELETE FROM outbox.queue WHERE topic = 'jn.plain';
SELECT * FROM pg_temp.show('plain');

-- views and status
SELECT grouping_key, state, expected_steps, completed_steps, failed_steps, missing_steps, members, waits
  FROM outbox.join_progress WHERE grouping_key IN ('order 7', 'few', 'late', 'cancel', 'plain') ORDER BY grouping_key;
SELECT component, ok, status FROM outbox.status() WHERE component = 'joins';
UPDATE outbox.joins SET created_at = now() - interval '2 days', last_updated_at = now() - interval '2 days' WHERE status = 0;
SELECT component, ok, status FROM outbox.status() WHERE component = 'joins';

-- retention: not while it is pending, nor while a message waits
SELECT count(*) FROM outbox.joins WHERE status <> 0;
SELECT outbox.enqueue_join_wait(pg_temp.j('few'), false, 'jn.keep', 'x') IS NOT NULL AS filed;
SELECT outbox.cleanup(join_retention => '0') >= 0 AS ok;
SELECT grouping_key, status FROM outbox.joins ORDER BY grouping_key;
SELECT count(*) FROM outbox.join_members m WHERE NOT EXISTS (SELECT FROM outbox.joins j WHERE j.join_id = m.join_id);
DELETE FROM outbox.joins;
SELECT (SELECT count(*) FROM outbox.join_members) AS members, (SELECT count(*) FROM outbox.join_waits) AS waits;
SELECT outbox.process_join_waits();
SELECT count(*) FROM outbox.messages WHERE topic = 'jn.keep';
