-- 14_handlers.sql: topics that are served inside the database
--
-- OBX-054..058, and what section 8 of the contract promises besides. The handlers are
-- run by hand, which is done in background processes: so this file commits, and cleans
-- up at its end. That workers run them, never two for one message (OBX-059), many at a
-- time (OBX-060), is in test/t/011_handlers.pl and test/t/010_workers.pl.

\ir include/tools.sql
SELECT plan(13);

CREATE ROLE tap_clerk LOGIN;
CREATE ROLE tap_stranger LOGIN;
SELECT outbox.grant_worker('tap_clerk'), outbox.grant_worker('tap_stranger') AS g \gset
GRANT USAGE ON SCHEMA tap TO tap_clerk, tap_stranger;
CREATE TABLE tap.handled (topic text, payload text, attempts integer, by_role name DEFAULT current_user,
    xid text DEFAULT pg_current_xact_id()::text);
GRANT INSERT ON tap.handled TO tap_clerk;

-- Writes down what it gets; has trouble with payloads that say so.
CREATE FUNCTION tap.handle(message outbox.message)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO tap.handled (topic, payload, attempts) VALUES (message.topic, message.payload, message.attempts);
    IF message.payload LIKE '%bad%' THEN
        RAISE EXCEPTION 'cannot handle this' USING ERRCODE = 'P0042';
    END IF;
END
$$;
CREATE FUNCTION tap.not_a_handler(message text) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION tap.not_void(message outbox.message) RETURNS integer LANGUAGE sql AS 'SELECT 1';

CREATE FUNCTION tap.handled(topic text)
RETURNS text[]
LANGUAGE sql
AS $$ SELECT ARRAY(SELECT h.payload || ' ' || h.attempts FROM tap.handled h WHERE h.topic = handled.topic ORDER BY h.payload) $$;

SET ROLE tap_clerk;
SELECT outbox.register_handler('obx-054', 'tap.handle(outbox.message)', namespace => 'ns-054', batch_size => 2) \gset
RESET ROLE;
SELECT outbox.enqueue_many('obx-054', '{1,2,3}', namespace => 'ns-054'), outbox.enqueue('obx-054', 'elsewhere') AS e \gset
SELECT outbox._start_handlers() AS first \gset
SELECT ARRAY[:'first', outbox._start_handlers()] AS rounds \gset
SELECT is(
    :'rounds' || tap.handled('obx-054')::text
        || ARRAY(SELECT payload || ' ' || outbox.status_name(status) FROM outbox.messages WHERE topic = 'obx-054' ORDER BY id)::text,
    '{3,0}{"1 1","2 1","3 1"}{"1 done","2 done","3 done","elsewhere ready"}',
    'SHARED-04: a handler is called once for each message of its topic and namespace, until none is left');

-- Handlers that write down which of them it was, and what they got.
CREATE TABLE tap.routed (n serial, handler text, message jsonb);
GRANT INSERT ON tap.routed TO tap_clerk;
GRANT USAGE ON SEQUENCE tap.routed_n_seq TO tap_clerk;
CREATE FUNCTION tap.routed_to_one(message outbox.message) RETURNS void LANGUAGE sql
    AS $$ INSERT INTO tap.routed (handler, message) VALUES ('one', to_jsonb(message)) $$;
CREATE FUNCTION tap.routed_to_two(message outbox.message) RETURNS void LANGUAGE sql
    AS $$ INSERT INTO tap.routed (handler, message) VALUES ('two', to_jsonb(message)) $$;
SET ROLE tap_clerk;
SELECT outbox.register_handler('obx-054-one', 'tap.routed_to_one(outbox.message)'),
       outbox.register_handler('obx-054-two', 'tap.routed_to_two(outbox.message)'),
       outbox.register_handler('Obx-054-One', 'tap.routed_to_two(outbox.message)') \gset
RESET ROLE;
SELECT outbox.enqueue(topic, 'p') FROM unnest('{obx-054-one,obx-054-two,Obx-054-One,obx-054-one,obx-054-none}'::text[]) topic \g /dev/null
SELECT outbox._start_handlers() AS handled \gset
SELECT is(
    ARRAY[:'handled'] || ARRAY(SELECT concat_ws(' ', topic, handler, count(*))
                            FROM (SELECT message ->> 'topic' COLLATE "C" AS topic, handler FROM tap.routed) r GROUP BY topic, handler ORDER BY topic),
    '{4,"Obx-054-One two 1","obx-054-one one 2","obx-054-two two 1"}',
    'OBX-054: each message goes to the handler of its topic, and to no other');

SELECT is(
    (SELECT concat_ws(' ', outbox.status_name(status), attempts, retry_count) FROM outbox.messages WHERE topic = 'obx-054-none')
        || ARRAY(SELECT payload FROM outbox.claim(tap.bob()) WHERE topic = 'obx-054-none')::text,
    'ready 0 0{p}',
    'OBX-055: a message whose topic has no handler is left for workers that claim it, untouched');
SELECT outbox.ack(tap.bob(), array_agg(id)) FROM outbox.leases \gset

SELECT outbox.unregister_handler(topic) FROM unnest('{obx-054-one,obx-054-two,Obx-054-One}'::text[]) topic \g /dev/null
SET ROLE tap_clerk;
SELECT outbox.register_handler('obx-057', 'tap.routed_to_one(outbox.message)') \gset
RESET ROLE;
\set tenant '57575757-0000-4000-8000-000000000001'
SELECT outbox.enqueue('obx-057', 'p', 'c', '2001-01-01 UTC', 'default', :'tenant', :'tenant' || '/k', :'tenant', '{"h": 1}', '2999-01-01', :'tenant') AS m \gset
SELECT to_jsonb(c) - '{attempts,owner_token,locked_until,retry_count}'::text[] AS claimed FROM outbox.claim(tap.alice(), topics => '{obx-057}') c \gset
SELECT outbox.release(tap.alice()) \gset
SELECT outbox._start_handlers() AS handled \gset
SELECT is(
    message - '{attempts,owner_token,locked_until,retry_count}'::text[] || jsonb_build_object('leased', message ->> 'locked_until' IS NOT NULL AND message ->> 'owner_token' IS NOT NULL),
    :'claimed'::jsonb || '{"leased": true}',
    'OBX-057, SHARED-38: a handler is given the whole message, as claim returns it, and leased')
  FROM tap.routed WHERE message ->> 'topic' = 'obx-057';

-- Fails at its first attempt, whose writes are undone.
CREATE FUNCTION tap.handle_again(message outbox.message) RETURNS void LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO tap.routed (handler, message) VALUES ('again', to_jsonb(message));
    IF message.retry_count = 0 THEN
        RAISE EXCEPTION 'not yet';
    END IF;
END
$$;
SELECT outbox.unregister_handler('obx-057'), outbox.configure_topic('obx-058', backoff_base => '0') \gset
SET ROLE tap_clerk;
SELECT outbox.register_handler('obx-058', 'tap.handle_again(outbox.message)') \gset
RESET ROLE;
SELECT outbox.enqueue('obx-058', 'p') AS m \gset
SELECT outbox._start_handlers() AS first \gset
SELECT outbox._start_handlers() AS again \gset
SELECT is(
    ARRAY(SELECT concat_ws(' ', message ->> 'message_id', message ->> 'attempts', message ->> 'retry_count') FROM tap.routed WHERE handler = 'again'),
    ARRAY[:'m' || ' 2 1'],
    'OBX-058, SHARED-26: a message that is handled again has the same message_id, and says which attempt it is; what failed has left nothing');
SELECT outbox.unregister_handler('obx-058') \gset

SET ROLE tap_clerk;
SELECT outbox.register_handler('s8-writes', 'tap.handle(outbox.message)') \gset
RESET ROLE;
SELECT outbox.enqueue('s8-writes', 'p') \gset
SELECT outbox._start_handlers() \gset
SELECT is(
    (SELECT h.xid = a.xmin::text FROM tap.handled h, outbox.archive a
      WHERE h.topic = 's8-writes' AND a.topic = 's8-writes'),
    true,
    'section 8: what a handler writes and the end of its message are in one transaction');

SET ROLE tap_clerk;
SELECT outbox.unregister_handler('s8-writes'), outbox.register_handler('obx-056', 'tap.handle(outbox.message)') AS r \gset
RESET ROLE;
SELECT outbox.enqueue_many('obx-056', '{good 1,bad,good 2}') \gset
SELECT outbox._start_handlers() AS first \gset
SELECT outbox._start_handlers() AS again \gset
SELECT is(
    ARRAY[:'first', :'again'] || tap.handled('obx-056')
        || ROW(status, owner_token, retry_count, split_part(last_error, E'\n', 1), next_attempt_at BETWEEN updated_at AND clock_timestamp() + interval '1 s')::text,
    '{3,0,"good 1 1","good 2 1","(0,,1,\"cannot handle this\",t)"}',
    'OBX-056, SHARED-23: when a handler raises an error, what it wrote is undone, the others'' stays, and its message is tried again by the backoff')
  FROM outbox.messages WHERE topic = 'obx-056' AND payload = 'bad';

SELECT outbox.configure_topic('obx-056', max_attempts => 2), tap.come_due('obx-056') \gset
SELECT outbox._start_handlers() \gset
SELECT is(
    ROW(status, attempts, split_part(last_error, E'\n', 1))::text || tap.handled('obx-056')::text,
    '(3,2,"cannot handle this"){"good 1 1","good 2 1"}',
    'OBX-056: at max_attempts a message whose handler raises errors is failed')
  FROM outbox.messages WHERE topic = 'obx-056' AND payload = 'bad';

SELECT is(
    (SELECT array_agg(DISTINCT by_role) FROM tap.handled)::text[]
        || tap.sqlstates($$SELECT outbox.register_handler('obx-058', 'tap.handle(outbox.message)')$$,
                         $$SET outbox.allow_superuser_handlers = on$$,
                         $$SELECT outbox.register_handler('obx-058', 'tap.handle(outbox.message)')$$,
                         $$SELECT outbox.unregister_handler('obx-058')$$,
                         $$SET outbox.allow_superuser_handlers = off$$)
        || tap.sqlstates_as('tap_clerk', $$SET outbox.allow_superuser_handlers = on$$),
    '{tap_clerk,42501,00000,00000,00000,00000,42501}',
    'section 8: a handler runs as the role that registered it, which is no superuser unless superusers allow that');

REVOKE EXECUTE ON FUNCTION tap.handle FROM public;
GRANT EXECUTE ON FUNCTION tap.handle TO tap_clerk;
SELECT is(
    tap.sqlstates_as('tap_clerk',
        $$SELECT outbox.register_handler('obx-056', 'tap.handle(outbox.message)')$$,
        $$SELECT outbox.register_handler('obx-059', 'tap.not_a_handler(text)')$$,
        $$SELECT outbox.register_handler('obx-059', 'tap.not_void(outbox.message)')$$,
        $$SELECT outbox.register_handler('obx-059', 4294967295::oid::regprocedure)$$,
        $$SELECT outbox.register_handler('obx-059', NULL)$$,
        $$SELECT outbox.register_handler(NULL, 'tap.handle(outbox.message)')$$,
        $$SELECT outbox.register_handler('', 'tap.handle(outbox.message)')$$,
        $$SELECT outbox.register_handler('obx-059', 'tap.handle(outbox.message)', batch_size => 0)$$,
        $$SELECT outbox.register_handler('obx-059', 'tap.handle(outbox.message)', lease_seconds => 86401)$$,
        $$SELECT outbox.unregister_handler('obx-059')$$)
        || tap.sqlstates_as('tap_stranger',
        $$SELECT outbox.register_handler('obx-059', 'tap.handle(outbox.message)')$$,
        $$SELECT outbox.unregister_handler('obx-056')$$),
    '{42710,22023,22023,42704,22004,22004,22023,22023,22023,42704,42501,42501}',
    'section 8: a topic has one handler, a function of the right kind that its role may call, and only that role removes it');

SELECT count(*) AS kept FROM outbox.handlers
 WHERE (namespace, topic, handler, role, batch_size) = ('ns-054', 'obx-054', 'tap.handle(outbox.message)', 'tap_clerk', 2) \gset
SELECT outbox.enqueue('obx-056', 'late') \gset
SELECT count(*) AS any_topic FROM outbox.claim(tap.bob(), batch_size => 10000) WHERE topic = 'obx-056' \gset
SELECT count(*) AS by_name FROM outbox.claim(tap.bob(), topics => '{obx-056}') \gset
SELECT outbox.release(tap.bob()) \gset
SELECT outbox.unregister_handler('obx-056') \gset
SELECT count(*) AS then FROM outbox.claim(tap.bob(), batch_size => 10000) WHERE topic = 'obx-056' \gset
SELECT is(
    ARRAY[:'kept', :'any_topic', :'by_name', :'then'], '{1,0,1,1}',
    'section 8: a topic that has a handler is claimed by name only, until the handler is removed');
SELECT outbox.release(tap.bob()) \gset

SET ROLE tap_clerk;
SELECT outbox.register_handler('obx-060', 'tap.handle(outbox.message)') \gset
RESET ROLE;
SELECT outbox.enqueue('obx-060', 'p') \gset
ALTER FUNCTION tap.handle RENAME TO handle_no_more;
ALTER FUNCTION tap.handle_no_more OWNER TO tap_stranger;
SET client_min_messages = error;
SELECT outbox._start_handlers() \gset
SELECT ROW(status, attempts, retry_count, owner_token, last_error)::text AS meanwhile
  FROM outbox.messages WHERE topic = 'obx-060' \gset
SELECT problem FROM outbox._handler_problems() WHERE topic = 'obx-060' \gset
DROP FUNCTION tap.handle_no_more;
CREATE FUNCTION tap.handle(message outbox.message) RETURNS void LANGUAGE sql
    AS $$ INSERT INTO tap.handled (topic, payload) VALUES (message.topic, 'by the new one') $$;
SELECT outbox._start_handlers() \gset
SET client_min_messages = warning;
SELECT is(
    ARRAY[:'meanwhile', :'problem', outbox.status_name(status), (SELECT payload FROM tap.handled WHERE topic = 'obx-060')],
    '{"(0,0,0,,)","has a function that belongs to another owner now",done,"by the new one"}',
    'OBX-055: a message whose handler cannot be called waits, and is handled when it can')
  FROM outbox.messages WHERE topic = 'obx-060';

SET ROLE tap_clerk;
SELECT outbox.register_handler('obx-060-round', 'tap.handle(outbox.message)') \gset
RESET ROLE;
SELECT outbox.start_join('obx-060', 1) AS j \gset
SELECT outbox.enqueue_step(:'j', 'obx-060-round', 'p'), tap.lease('obx-060-lease', 'p') AS leased,
       outbox.enqueue_join_wait(:'j', true, 'obx-060-next', 'p') AS w,
       outbox.enqueue('obx-060-expires', 'p', expires_at => clock_timestamp() - interval '1 s') AS e, tap.end_leases('obx-060-lease') \gset
SELECT outbox.run_maintenance() AS done \gset
SELECT ARRAY(SELECT topic || ' ' || outbox.status_name(status) FROM outbox.messages WHERE topic LIKE 'obx-060-%' ORDER BY 1) AS first \gset
SELECT outbox._start_handlers() AS handled \gset
SELECT outbox.run_maintenance() AS again \gset
SELECT is(
    ARRAY[:'done', :'handled', :'again', :'first'] || ARRAY(SELECT topic || ' ' || outbox.status_name(status) FROM outbox.messages WHERE topic LIKE 'obx-060-%' ORDER BY 1),
    ARRAY['3', '1', '1', '{"obx-060-expires failed","obx-060-lease ready","obx-060-round ready"}',
          'obx-060-expires failed', 'obx-060-lease ready', 'obx-060-next ready', 'obx-060-round done'],
    'section 8: run_maintenance does what workers do, waits, leases, expiry, but handlers are run in processes of their own');

SELECT * FROM finish();
DROP EXTENSION outbox CASCADE;
DROP SCHEMA tap CASCADE;
DROP OWNED BY tap_clerk, tap_stranger;
DROP ROLE tap_clerk, tap_stranger;
CREATE EXTENSION outbox;
