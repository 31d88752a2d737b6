-- rows that come by plain SQL
TRUNCATE outbox.queue;
\set a '''aaaaaaaa-0000-4000-8000-000000000001'''
\set s1 '''5a5a5a5a-0000-4000-8000-000000000001'''

INSERT INTO outbox.queue (topic, payload) VALUES ('ps', 'plain') RETURNING namespace, topic, payload, status, attempts, message_id IS NOT NULL AS id;
INSERT INTO outbox.queue (topic, payload, namespace, correlation_id, dedupe_key, headers, due_time, expires_at, message_id)
VALUES ('ps', 'full', 'psns', '', 'k', '{}', '2001-01-01', 'infinity', '77777777-7777-4777-8777-777777777777');
INSERT INTO outbox.queue (topic, payload, due_time) VALUES ('ps', 'later', 'infinity');
COPY outbox.queue (topic, payload) FROM stdin;
ps	copied
ps	copied too
\.
SELECT namespace, payload, correlation_id, dedupe_key, status, next_attempt_at <= clock_timestamp() AS due FROM outbox.messages WHERE topic = 'ps' ORDER BY id;
SELECT payload FROM outbox.claim(:a, topics => '{ps}') ORDER BY id;
-- a message whose key is taken is not inserted
INSERT INTO outbox.queue (topic, payload, namespace, dedupe_key) VALUES ('ps', 'second', 'psns', 'k');
SELECT enqueued FROM outbox.try_enqueue('ps', 'third', namespace => 'psns', dedupe_key => 'k');
-- what the caller may not decide is decided
INSERT INTO outbox.queue (topic, payload, status, attempts, retry_count, owner_token, locked_until, lane, next_attempt_at)
VALUES ('ps.raw', 'p', 1, 7, 7, :a, 'infinity', 5, 'infinity');
SELECT payload, status, attempts, retry_count, owner_token FROM outbox.messages WHERE topic = 'ps.raw';
SELECT payload FROM outbox.claim(:a, topics => '{ps.raw}');
-- priority as in enqueue
INSERT INTO outbox.queue (topic, payload, priority) VALUES ('ps.prio', 'high', 2), ('ps.prio', 'none', NULL), ('ps.prio', 'zero', 0), ('ps.prio', 'low', -2)
RETURNING payload, priority;
-- the checks of enqueue
\set VERBOSITY sqlstate
INSERT INTO outbox.queue (topic, payload) VALUES ('', 'p');
INSERT INTO outbox.queue (topic, payload) VALUES (NULL, 'p');
INSERT INTO outbox.queue (topic, payload) VALUES ('ps', NULL);
INSERT INTO outbox.queue (topic, payload, namespace) VALUES ('ps', 'p', '');
INSERT INTO outbox.queue (topic, payload, correlation_id) VALUES ('ps', 'p', repeat('x', 256));
INSERT INTO outbox.queue (topic, payload, message_id) VALUES ('ps', 'p', '77777777-7777-4777-8777-777777777777');
INSERT INTO outbox.queue (topic, payload, tenant_id, dedupe_key) VALUES ('ps', 'p', :s1, 'free');
INSERT INTO outbox.queue (topic, payload, priority) VALUES ('ps', 'p', 3);
INSERT INTO outbox.queue (topic, payload, priority) VALUES ('ps', 'p', -32768);
\set VERBOSITY default
-- streams keep their order
INSERT INTO outbox.queue (topic, payload, stream_id) VALUES ('ps.s', '1', :s1), ('ps.s', '2', :s1);
SELECT outbox.enqueue('ps.s', '3', stream_id => :s1) IS NOT NULL AS ok;
INSERT INTO outbox.queue (topic, payload, stream_id) VALUES ('ps.s', '4', :s1);
SELECT payload FROM outbox.claim(:a, topics => '{ps.s}', batch_size => 2);
INSERT INTO outbox.queue (topic, payload, stream_id) VALUES ('ps.s', '5', :s1);
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.leases WHERE topic = 'ps.s';
SELECT payload FROM outbox.claim(:a, topics => '{ps.s}', batch_size => 3);
INSERT INTO outbox.queue (topic, payload, stream_id) VALUES ('ps.s', '6', :s1);
SELECT payload FROM outbox.claim(:a, topics => '{ps.s}');
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.leases WHERE topic = 'ps.s';

-- updates and deletes by hand are seen
SELECT outbox.enqueue_many('ps.u', ARRAY['1', '2', '3']) IS NOT NULL AS ok;
SELECT payload FROM outbox.claim(:a, topics => '{ps.u}');
UPDATE outbox.queue SET status = 0, owner_token = NULL, locked_until = NULL WHERE topic = 'ps.u' AND payload = '2';
SELECT payload FROM outbox.claim(:a, topics => '{ps.u}');
UPDATE outbox.queue SET locked_until = now() - interval '1 s' WHERE topic = 'ps.u' AND payload = '3';
SELECT payload FROM outbox.claim(:a, topics => '{ps.u}');
BEGIN;
DELETE FROM outbox.queue WHERE topic = 'ps.u';
SELECT payload FROM outbox.claim(:a, topics => '{ps.u}');
ROLLBACK;
UPDATE outbox.queue SET locked_until = now() - interval '1 s' WHERE topic = 'ps.u';
SELECT payload FROM outbox.claim(:a, topics => '{ps.u}') ORDER BY payload;
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.leases WHERE topic LIKE 'ps%';
-- a row that brings its id is taken as it is, as from a dump
BEGIN;
INSERT INTO outbox.queue (id, lane, next_attempt_at, updated_at, created_at, message_id, topic, payload, status, owner_token, locked_until, attempts)
VALUES (900000001, 1, now(), now(), now(), gen_random_uuid(), 'ps.dump', 'p', 1, :a, 'infinity', 4);
SELECT status, attempts FROM outbox.messages WHERE id = 900000001;
ROLLBACK;
\set VERBOSITY sqlstate
INSERT INTO outbox.queue (id, topic, payload) VALUES (900000002, 'ps', 'p');
UPDATE outbox.queue SET status = 2 WHERE topic = 'ps';
\set VERBOSITY default

-- a table to which objects were added is written by SQL, and everything works
CREATE TABLE seen (what text, payload text);
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO public.seen VALUES (TG_OP || ' ' || TG_LEVEL, coalesce(NEW.payload, OLD.payload)); RETURN NULL; END $$;
CREATE TRIGGER see AFTER INSERT OR UPDATE OR DELETE ON outbox.queue FOR EACH ROW EXECUTE FUNCTION see();
SELECT component, ok, status, detail FROM outbox.status() WHERE component = 'tables';
SELECT outbox.enqueue('ps.c', 'watched') IS NOT NULL AS ok;
SELECT payload, attempts FROM outbox.claim(:a, topics => '{ps.c}');
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.leases WHERE topic = 'ps.c';
SELECT payload, status FROM outbox.messages WHERE topic = 'ps.c';
SELECT * FROM seen;
DROP TRIGGER see ON outbox.queue;
-- a trigger that refuses
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER refuse BEFORE UPDATE OR DELETE ON outbox.queue FOR EACH ROW EXECUTE FUNCTION refuse();
SELECT outbox.enqueue('ps.r', 'p') IS NOT NULL AS ok;
SELECT count(*) FROM outbox.claim(:a, topics => '{ps.r}');
DROP TRIGGER refuse ON outbox.queue;
SELECT id AS i FROM outbox.claim(:a, topics => '{ps.r}') \gset
CREATE TRIGGER refuse BEFORE UPDATE OR DELETE ON outbox.queue FOR EACH ROW EXECUTE FUNCTION refuse();
SELECT outbox.ack(:a, ARRAY[:i]), outbox.nack(:a, ARRAY[:i]), outbox.renew(:a, ARRAY[:i]), outbox.release(:a, ARRAY[:i]);
DROP TRIGGER refuse ON outbox.queue;
SELECT outbox.ack(:a, ARRAY[:i]);
-- a check, a column with a default, an index
DELETE FROM outbox.queue;
ALTER TABLE outbox.queue ADD CONSTRAINT short CHECK (length(payload) < 10), ADD COLUMN extra text DEFAULT 'x';
CREATE INDEX lower_topic ON outbox.queue (lower(topic));
\set VERBOSITY sqlstate
SELECT outbox.enqueue('ps.k', 'much too long');
\set VERBOSITY default
SELECT outbox.enqueue('ps.k', 'short') IS NOT NULL AS ok;
SELECT extra FROM outbox.queue WHERE topic = 'ps.k';
SELECT payload FROM outbox.claim(:a, topics => '{ps.k}');
SELECT outbox.nack(:a, array_agg(id), delay => '0') FROM outbox.leases WHERE topic = 'ps.k';
SELECT payload, attempts FROM outbox.claim(:a, topics => '{ps.k}');
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.leases WHERE topic = 'ps.k';
ALTER TABLE outbox.queue DROP COLUMN extra, DROP CONSTRAINT short;
DROP INDEX outbox.lower_topic;
-- a plain index is kept up; one that spoils HOT is reported
CREATE INDEX by_corr ON outbox.queue (correlation_id);
SELECT outbox.enqueue('ps.i', 'p', 'findme') IS NOT NULL AS ok;
SELECT payload FROM outbox.claim(:a, topics => '{ps.i}');
SET enable_seqscan = off;
SELECT payload, status FROM outbox.queue WHERE correlation_id = 'findme';
RESET enable_seqscan;
SELECT component, ok FROM outbox.status() WHERE component IN ('tables', 'queue indexes');
CREATE INDEX by_owner ON outbox.queue (owner_token);
SELECT component, ok, detail FROM outbox.status() WHERE component = 'queue indexes';
DROP INDEX outbox.by_corr, outbox.by_owner;
DROP TABLE seen;
DROP FUNCTION see, refuse;
DROP EXTENSION outbox;
CREATE EXTENSION outbox;
