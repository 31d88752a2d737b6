-- 14_handlers.sql: topics that are served inside the database
--
-- OBX-054..060, section 8 of the contract. The handlers are run by hand, which
-- is done in background processes: so this file commits, and cleans up at its
-- end. That a worker runs them is test/t/011_handlers.pl.

\ir include/tools.sql
SELECT plan(9);

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
    'OBX-054 a handler is called once for each message of its topic and namespace, until none is left');

SET ROLE tap_clerk;
SELECT outbox.register_handler('obx-055', 'tap.handle(outbox.message)') \gset
RESET ROLE;
SELECT outbox.enqueue('obx-055', 'p') \gset
SELECT outbox._start_handlers() \gset
SELECT is(
    (SELECT h.xid = a.xmin::text FROM tap.handled h, outbox.archive a
      WHERE h.topic = 'obx-055' AND a.topic = 'obx-055'),
    true,
    'OBX-055 what a handler writes and the end of its message are in one transaction');

SET ROLE tap_clerk;
SELECT outbox.unregister_handler('obx-055'), outbox.register_handler('obx-056', 'tap.handle(outbox.message)') AS r \gset
RESET ROLE;
SELECT outbox.enqueue_many('obx-056', '{good 1,bad,good 2}') \gset
SELECT outbox._start_handlers() AS first \gset
SELECT outbox._start_handlers() AS again \gset
SELECT is(
    ARRAY[:'first', :'again'] || tap.handled('obx-056')
        || ROW(status, owner_token, retry_count, split_part(last_error, E'\n', 1), next_attempt_at BETWEEN updated_at AND clock_timestamp() + interval '1 s')::text,
    '{3,0,"good 1 1","good 2 1","(0,,1,\"cannot handle this\",t)"}',
    'OBX-056 when a handler raises an error, what it wrote is undone, the others'' stays, and its message is tried again by the backoff')
  FROM outbox.messages WHERE topic = 'obx-056' AND payload = 'bad';

SELECT outbox.configure_topic('obx-056', max_attempts => 2), tap.come_due('obx-056') \gset
SELECT outbox._start_handlers() \gset
SELECT is(
    ROW(status, attempts, split_part(last_error, E'\n', 1))::text || tap.handled('obx-056')::text,
    '(3,2,"cannot handle this"){"good 1 1","good 2 1"}',
    'OBX-057 at max_attempts a message whose handler raises errors is failed')
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
    'OBX-058 a handler runs as the role that registered it, which is no superuser unless superusers allow that');

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
    'OBX-059 a topic has one handler, a function of the right kind that its role may call, and only that role removes it');

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
    'OBX-059 (claims) a topic that has a handler is claimed by name only, until the handler is removed');
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
    'OBX-060 a message whose handler cannot be called waits, and is handled when it can')
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
    'OBX-060 (by hand) run_maintenance does what workers do, waits, leases, expiry, but handlers are run in processes of their own');

SELECT * FROM finish();
DROP EXTENSION outbox CASCADE;
DROP SCHEMA tap CASCADE;
DROP OWNED BY tap_clerk, tap_stranger;
DROP ROLE tap_clerk, tap_stranger;
CREATE EXTENSION outbox;
