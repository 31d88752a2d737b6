-- 08_concurrency.sql: what sessions see of each other
--
-- OBX-002, 003, 017, 034, 047, 097..101, 121, JOIN-023, 032, 060..062, and what sections
-- 3 to 5 of the contract promise besides. Three sessions, alice, bob and carol, do the
-- work; that of the test only asks them.

BEGIN;
\ir include/tools.sql
SELECT plan(27);

SELECT count(*) = 0 AS no_dblink FROM pg_available_extensions WHERE name = 'dblink' \gset
\if :no_dblink
SELECT skip('dblink is not installed', 27);
\else

\ir include/sessions.sql
SELECT tap.open_session(s) FROM unnest('{alice,bob,carol}'::text[]) s \g /dev/null
SELECT tap.tidy_up() \gset

-- Enqueue: by itself, and in a transaction

SELECT tap.ask('alice', $$SELECT outbox.enqueue('race-002', 'p')$$),
       tap.ask('alice', $$SELECT pg_current_xact_id_if_assigned() IS NULL$$) AS no_transaction,
       tap.ask('bob', $$SELECT payload FROM outbox.claim(md5('bob')::uuid, topics => '{race-002}')$$) AS claimed,
       tap.sqlstates($$SELECT tap.ask('alice', $q$SELECT outbox.enqueue_batch('[{"topic": "race-002", "payload": "half"}, {"topic": "", "payload": "bad"}]')$q$)$$) AS half \gset
SELECT is(
    :'no_transaction'::text[] || :'claimed'::text[] || :'half'::text[]
        || tap.ask('bob', $$SELECT count(*) FROM outbox.messages WHERE topic = 'race-002' AND payload = 'half'$$),
    '{true,p,22023,0}',
    'OBX-002: an enqueue outside of a transaction is one, which commits the message at once, or with an error none');

-- What bob sees of an order and the message that alice enqueues with it, while her
-- transaction is open and after its end; and whether that is one transaction.
CREATE FUNCTION tap.seen_by_bob(topic text, ending text)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    sees      text := format('SELECT coalesce((SELECT string_agg(payload, ''+'' ORDER BY id) FROM outbox.messages WHERE topic = %1$L), ''no message'')
                                     || '' '' || count(*) || '' orders'' FROM race_orders WHERE topic = %1$L', topic);
    meanwhile text;
    before    text;
    after     text;
BEGIN
    PERFORM dblink_exec('alice', 'BEGIN');
    before := (tap.ask('alice', 'SELECT pg_current_xact_id()'))[1];
    PERFORM dblink_exec('alice', format('INSERT INTO race_orders VALUES (%L)', topic));
    PERFORM tap.ask('alice', format('SELECT outbox.enqueue(%L, ''kept'')', topic));
    PERFORM dblink_exec('alice', 'SAVEPOINT s');
    PERFORM tap.ask('alice', format('SELECT outbox.enqueue(%L, ''undone'')', topic));
    PERFORM dblink_exec('alice', 'ROLLBACK TO s');
    after := (tap.ask('alice', 'SELECT pg_current_xact_id()'))[1];
    meanwhile := (tap.ask('bob', sees))[1];
    PERFORM dblink_exec('alice', ending);
    RETURN format('%s, then %s%s', meanwhile, (tap.ask('bob', sees))[1],
                  CASE WHEN before <> after THEN ', in two transactions' END);
END
$$;
SELECT dblink_exec('alice', 'DROP TABLE IF EXISTS race_orders'), dblink_exec('alice', 'CREATE TABLE race_orders (topic text)') \gset

SELECT is(
    ARRAY[tap.seen_by_bob('race-003-committed', 'COMMIT'), tap.seen_by_bob('race-003-rolled-back', 'ROLLBACK')],
    '{"no message 0 orders, then kept 1 orders","no message 0 orders, then no message 0 orders"}',
    'OBX-003, SHARED-01, SHARED-17, QUEUE-02: an enqueue takes part in the caller''s transaction, and savepoint, and ends neither');

SELECT current_setting('max_prepared_transactions') = '0' AS no_2pc \gset
\if :no_2pc
SELECT skip('max_prepared_transactions is 0', 1);
\else
SELECT tap.seen_by_bob('race-2pc', 'PREPARE TRANSACTION ''outbox race''') AS prepared,
       tap.ask('bob', $$SELECT payload FROM outbox.claim(md5('bob')::uuid, topics => '{race-2pc}')$$) AS early,
       dblink_exec('alice', 'COMMIT PREPARED ''outbox race''') \gset
SELECT is(
    ARRAY[:'prepared'] || :'early'::text[]
        || tap.ask('bob', $$SELECT payload FROM outbox.claim(md5('bob')::uuid, topics => '{race-2pc}')$$),
    '{"no message 0 orders, then no message 0 orders",kept}',
    'section 3: a prepared enqueue is claimable once it is committed, not before');
\endif

SELECT clock_timestamp() AS before,
       tap.ask('bob', $$SELECT payload FROM outbox.claim(md5('bob')::uuid, topics => '{race-wait-ms}', wait_ms => 50)$$) AS in_vain,
       clock_timestamp() AS after,
       tap.ask('alice', $$SELECT outbox.enqueue('race-wait-ms', 'soon', due_time => clock_timestamp() + interval '150 ms')$$) \gset
SELECT is(
    ROW(:'in_vain'::text[], :'after'::timestamptz - :'before' >= interval '50 ms',
        tap.ask('bob', $$SELECT payload FROM outbox.claim(md5('bob')::uuid, topics => '{race-wait-ms}', wait_ms => 10000)$$),
        clock_timestamp() < :'after'::timestamptz + interval '5 s')::text,
    '({},t,{soon},t)',
    'section 4: with wait_ms an empty result comes after that time, unless a message comes due');

-- Claims

SELECT tap.ask('alice', $$SELECT outbox.enqueue_many('race-017', '{1,2,3,4,5,6}')$$) \gset
SELECT dblink_exec('alice', 'BEGIN'), dblink_exec('bob', 'BEGIN') AS begin_too \gset
SELECT tap.ask('alice', $$SELECT payload FROM outbox.claim(md5('alice')::uuid, batch_size => 2, topics => '{race-017}')$$) AS alices,
       tap.ask('bob', $$SELECT payload FROM outbox.claim(md5('bob')::uuid, batch_size => 2, topics => '{race-017}')$$) AS bobs,
       dblink_exec('alice', 'COMMIT'), dblink_exec('bob', 'COMMIT') AS commit_too,
       tap.ask('carol', $$SELECT payload FROM outbox.claim(md5('carol')::uuid, topics => '{race-017}')$$) AS carols \gset
SELECT is(
    ARRAY[:'alices', :'bobs', :'carols'], '{"{1,2}","{3,4}","{5,6}"}',
    'OBX-017: of open claims each takes up to batch_size messages, which it holds; none is in two, and none is missed');

SELECT tap.ask('alice', $$SELECT outbox.enqueue_many('race-skip', '{1,2}')$$) \gset
SELECT dblink_exec('alice', 'BEGIN') \gset
SELECT tap.ask('alice', $$SELECT payload FROM outbox.claim(md5('alice')::uuid, batch_size => 1, topics => '{race-skip}')$$),
       dblink_exec('bob', $$SET lock_timeout = '100ms'$$) \gset
SELECT is(
    tap.ask('bob', $$SELECT payload FROM outbox.claim(md5('bob')::uuid, topics => '{race-skip}')$$)
        || tap.ask('bob', $$SELECT count(*) FROM outbox.claim(md5('bob')::uuid, topics => '{race-skip}')$$),
    '{2,0}',
    'OBX-017, SHARED-19, QUEUE-11: a claim never waits for another claimer, it passes over what that one holds');
SELECT dblink_exec('alice', 'COMMIT'), dblink_exec('bob', 'RESET lock_timeout') \gset

SELECT tap.ask('alice', $$SELECT outbox.enqueue_many('race-back', '{1,2}')$$) \gset
SELECT dblink_exec('alice', 'BEGIN') \gset
SELECT tap.ask('alice', $$SELECT payload FROM outbox.claim(md5('alice')::uuid, topics => '{race-back}')$$),
       tap.ask('bob', $$SELECT payload FROM outbox.claim(md5('bob')::uuid, topics => '{race-back}')$$) AS early,
       dblink_exec('alice', 'ROLLBACK') \gset
SELECT is(
    :'early'::text[]
        || tap.ask('bob', $$SELECT payload || ' ' || attempts FROM outbox.claim(md5('bob')::uuid, topics => '{race-back}')$$),
    '{"1 1","2 1"}',
    'OBX-017, SHARED-29: what a claim had taken is there for others when its transaction rolls back, as it was before');

SELECT tap.ask('alice', $$SELECT outbox.enqueue_many('race-work', '{1,2,3,4,5,6}')$$) \gset
SELECT dblink_exec('alice', 'BEGIN'), dblink_exec('bob', $$SET lock_timeout = '100ms'$$) AS b \gset
SELECT tap.ask('alice', $$SELECT id FROM outbox.process_work_batch(md5('alice')::uuid, 's', 'h', 1, batch_size => 3)$$) AS alices,
       tap.ask('bob', $$SELECT id FROM outbox.process_work_batch(md5('bob')::uuid, 's', 'h', 2, batch_size => 3)$$) AS bobs,
       dblink_exec('alice', 'COMMIT'), dblink_exec('bob', 'RESET lock_timeout') AS r \gset
SELECT is(
    ROW(cardinality(:'alices'::text[]), cardinality(:'bobs'::text[]), :'alices'::text[] && :'bobs'::text[])::text, '(3,3,f)',
    'WORK-03: of two round trips at the same time neither waits, and each gets messages of its own');
SELECT tap.ask(w, format('SELECT outbox.deregister_instance(md5(%L)::uuid)', w)) FROM unnest('{alice,bob}'::text[]) w \g /dev/null

SELECT tap.ask('alice', $$SELECT outbox.enqueue('race-token', 'p')$$) \gset
SELECT tap.ask('alice', $$SELECT id FROM outbox.claim(md5('alice')::uuid, topics => '{race-token}')$$) AS leased,
       tap.ask('alice', $$SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'RowExclusiveLock'$$) AS locks \gset
SELECT is(
    :'locks'::text[] || tap.ask('bob', format($$SELECT outbox.renew(md5('alice')::uuid, %L)$$, :'leased'))
        || tap.ask('bob', format($$SELECT outbox.ack(md5('alice')::uuid, %L)$$, :'leased')),
    '{0,1,1}',
    'QUEUE-16: a lease needs no open transaction, and belongs to its token: another session goes on with it');

-- The end of a message, and of the steps that it is

-- What bob sees of a message and its join, in one look, before alice ends the message,
-- while her transaction is open, and when it has committed.
CREATE FUNCTION tap.ends(topic text, call text)
RETURNS text[]
LANGUAGE plpgsql
AS $$
DECLARE
    sees text := format($q$SELECT format('%%s %%s+%%s', outbox.status_name(m.status), j.completed_steps, j.failed_steps)
                             FROM outbox.messages m JOIN outbox.join_members USING (message_id) JOIN outbox.joins j USING (join_id)
                            WHERE m.topic = %L$q$, topic);
    seen text[];
BEGIN
    PERFORM tap.ask('alice', format('SELECT outbox.enqueue_step(outbox.start_join(%1$L, 2), %1$L, ''p'')', topic)),
            tap.ask('alice', format('SELECT id FROM outbox.claim(md5(''alice'')::uuid, topics => ARRAY[%L])', topic));
    seen := tap.ask('bob', sees);
    PERFORM dblink_exec('alice', 'BEGIN');
    seen := seen || tap.ask('alice', format('SELECT outbox.%I(md5(''alice'')::uuid, array_agg(id)) FROM outbox.queue WHERE topic = %L', call, topic));
    seen := seen || tap.ask('bob', sees);
    PERFORM dblink_exec('alice', 'COMMIT');
    RETURN seen || tap.ask('bob', sees);
END
$$;
SELECT dblink_exec('alice', $$SET outbox.retention = '1 h'$$) \gset
SELECT is(
    tap.ends('race-034', 'ack'), '{"in progress 0+0",1,"in progress 0+0","done 1+0"}',
    'OBX-034, JOIN-032: others see a message acked and its step counted at once');
SELECT is(
    tap.ends('race-047', 'fail'), '{"in progress 0+0",1,"in progress 0+0","failed 0+1"}',
    'OBX-047, JOIN-032: others see a message failed and its step counted at once');
SELECT dblink_exec('alice', 'SET outbox.retention = 0') \gset

-- Calls, and what they are safe from

SELECT tap.ask('alice', $$SELECT outbox.enqueue_many('race-097', '{1,2}')$$) \gset
SELECT tap.ask('alice', $$SELECT id FROM outbox.claim(md5('alice')::uuid, topics => '{race-097}')$$) AS leased \gset
SELECT tap.sqlstates(
           $$SELECT tap.ask('alice', 'SELECT outbox.enqueue_many(''race-097'', ARRAY[''new'', NULL])')$$,
           $$SELECT tap.ask('alice', 'SELECT outbox.enqueue_step(gen_random_uuid(), ''race-097'', ''new'')')$$,
           format($$SELECT tap.ask('alice', 'SELECT outbox.ack(md5(''alice'')::uuid, ''%s'', strict => true)')$$, :'leased'::bigint[] || '{-1}'),
           format($$SELECT tap.ask('alice', 'SELECT outbox.fail(md5(''alice'')::uuid, ''%s'', strict => true)')$$, :'leased'::bigint[] || '{-1}'),
           format($$SELECT tap.ask('alice', 'SELECT outbox.nack(md5(''alice'')::uuid, ''%s'', strict => true)')$$, :'leased'::bigint[] || '{-1}')) AS states \gset
SELECT tap.ask('alice', format($$SELECT outbox.nack(md5('alice')::uuid, %L, delay => '1 h')$$, :'leased')) \gset
SELECT is(
    :'states'::text[] || tap.ask('bob', $$SELECT payload || ' ' || status || ' ' || retry_count FROM outbox.messages WHERE topic = 'race-097' ORDER BY id$$)
        || tap.ask('bob', $$SELECT count(DISTINCT xmin::text) FROM outbox.queue WHERE topic = 'race-097'$$),
    '{22004,42704,55000,55000,55000,"1 0 1","2 0 1",1}',
    'OBX-097: a call is one transaction: it writes all it has to, or with an error nothing');

SELECT tap.ask('alice', $$SELECT outbox.enqueue('race-098', 'committed')$$), dblink_exec('alice', 'BEGIN') \gset
SELECT tap.ask('alice', $$SELECT outbox.enqueue('race-098', 'uncommitted')$$) \gset
CREATE FUNCTION tap.claims_at(level text)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    seen  text;
    taken text;
    bobs  text;
BEGIN
    PERFORM dblink_exec('bob', 'BEGIN ISOLATION LEVEL ' || level);
    -- from now on a transaction above READ COMMITTED sees what there is now
    seen := (tap.ask('bob', $q$SELECT count(*) FROM outbox.messages WHERE topic = 'race-098' AND status = 0$q$))[1];
    taken := (tap.ask('carol', $q$SELECT payload FROM outbox.claim(md5('carol')::uuid, topics => '{race-098}')$q$))[1];
    BEGIN
        bobs := coalesce((tap.ask('bob', $q$SELECT payload FROM outbox.claim(md5('bob')::uuid, topics => '{race-098}')$q$))[1], 'nothing');
    EXCEPTION
        WHEN serialization_failure THEN bobs := 'nothing';
    END;
    PERFORM dblink_exec('bob', 'ROLLBACK'), tap.ask('carol', $q$SELECT outbox.release(md5('carol')::uuid)$q$);
    RETURN concat_ws(', ', seen, taken, bobs);
END
$$;
SELECT is(
    ARRAY[tap.claims_at('READ COMMITTED'), tap.claims_at('REPEATABLE READ'), tap.claims_at('SERIALIZABLE')],
    '{"1, committed, nothing","1, committed, nothing","1, committed, nothing"}',
    'OBX-098: at every isolation level, a claim takes neither what is not committed nor what another has taken since its snapshot');
SELECT dblink_exec('alice', 'ROLLBACK') \gset

SELECT tap.ask('alice', $$SELECT outbox.enqueue_many('race-099', '{1,2}')$$) \gset
SELECT tap.ask('alice', $$SELECT id FROM outbox.claim(md5('alice')::uuid, topics => '{race-099}')$$) AS leased,
       dblink_exec('carol', 'BEGIN') \gset
SELECT tap.ask('carol', $$SELECT id FROM outbox.queue WHERE topic = 'race-099' AND payload = '2' FOR UPDATE$$) \gset
SELECT tap.ask_and_block('bob', format($$SELECT outbox.nack(md5('alice')::uuid, ARRAY[%s, %s])$$,
                                       (:'leased'::text[])[2], (:'leased'::text[])[1])) AS bob_waits,
       tap.ask_and_block('alice', format($$SELECT outbox.ack(md5('alice')::uuid, ARRAY[%s, %s])$$,
                                         (:'leased'::text[])[1], (:'leased'::text[])[2])) AS alice_waits,
       dblink_exec('carol', 'ROLLBACK') \gset
SELECT is(
    ARRAY[:'bob_waits', :'alice_waits'] || tap.answer('bob') || tap.answer('alice'),
    '{t,t,2,0}',
    'OBX-099: calls that settle the same messages in opposite orders do not deadlock');

SELECT tap.ask('alice', $$SELECT outbox.enqueue_many('race-dead', '{1,2}')$$) \gset
SELECT tap.ask('alice', $$SELECT id FROM outbox.claim(md5('alice')::uuid, topics => '{race-dead}')$$) AS leased,
       dblink_exec('alice', 'BEGIN'), dblink_exec('bob', 'BEGIN') AS begin_too,
       dblink_exec('alice', $$SET deadlock_timeout = '10s'$$) AS patient, dblink_exec('bob', $$SET deadlock_timeout = '50ms'$$) AS hasty \gset
SELECT tap.ask('alice', format($$SELECT outbox.ack(md5('alice')::uuid, ARRAY[%s])$$, (:'leased'::text[])[1])) AS alices,
       tap.ask('bob', format($$SELECT outbox.ack(md5('alice')::uuid, ARRAY[%s])$$, (:'leased'::text[])[2])) AS bobs,
       tap.ask_and_block('alice', format($$SELECT outbox.ack(md5('alice')::uuid, ARRAY[%s])$$, (:'leased'::text[])[2])) AS alice_waits,
       dblink_send_query('bob', format($$SELECT outbox.ack(md5('alice')::uuid, ARRAY[%s])::text$$, (:'leased'::text[])[1])) AS sent \gset
SELECT tap.answer('bob') AS bobs_error, dblink_exec('bob', 'ROLLBACK') AS b, tap.answer('alice') AS alices_second, dblink_exec('alice', 'COMMIT') AS c \gset
SELECT is(
    ARRAY[:'alices', :'bobs', :'alice_waits', :'bobs_error', :'alices_second']
        || tap.ask('carol', $$SELECT count(*) FROM outbox.queue WHERE topic = 'race-dead'$$),
    '{"{1}","{1}",t,"{40P01}","{1}",0}',
    'OBX-099: when transactions lock each other out, one gets the deadlock''s error and the other goes on; nothing is lost');
SELECT dblink_exec('alice', 'RESET deadlock_timeout'), dblink_exec('bob', 'RESET deadlock_timeout') \gset

-- Three workers at the same messages: each counts its acks, and a table has the owner of
-- each claim.
SELECT dblink_exec('alice', 'CREATE TABLE race_claims (id bigint, owner uuid, at timestamptz DEFAULT clock_timestamp())'),
       tap.ask('alice', $$SELECT outbox.enqueue_many('race-100', ARRAY(SELECT i::text FROM generate_series(1, 600) i))$$) \gset
SELECT dblink_exec(w, format($do$
           CREATE PROCEDURE pg_temp.work(INOUT acked text) LANGUAGE plpgsql AS $f$
           DECLARE
               ids bigint[];
           BEGIN
               LOOP
                   ids := ARRAY(SELECT id FROM outbox.claim(md5(%L)::uuid, topics => '{race-100}', batch_size => 7));
                   EXIT WHEN ids = '{}';
                   INSERT INTO race_claims SELECT unnest(ids), md5(%1$L)::uuid;
                   COMMIT;
                   acked := acked::integer + outbox.ack(md5(%1$L)::uuid, ids);
                   COMMIT;
               END LOOP;
           END
           $f$ $do$, w))
  FROM unnest('{alice,bob,carol}'::text[]) w \g /dev/null
SELECT tap.all_at_once('CALL pg_temp.work(''0'')') AS acked \gset
SELECT is(
    ARRAY[(SELECT sum(n::integer)::text FROM unnest(:'acked'::text[]) n)]
        || tap.ask('alice', $$SELECT count(*) FROM outbox.queue WHERE topic = 'race-100'$$),
    '{600,0}',
    'OBX-100, SHARED-42: three workers at the same messages finish all of them');
SELECT is(
    tap.ask('alice', $$SELECT count(*) || ' ' || count(DISTINCT id) FROM race_claims$$)
        || tap.ask('alice', $$SELECT count(*) FROM (SELECT id FROM race_claims GROUP BY id HAVING count(DISTINCT owner) > 1) twice$$),
    '{"600 600",0}',
    'OBX-101, SHARED-34, SHARED-42: of three workers at the same messages no two claim the same one');
SELECT dblink_exec('alice', 'DROP TABLE race_claims, race_orders') \gset

SELECT tap.ask('alice', $$SELECT outbox.enqueue('race-settle', 'p')$$) \gset
SELECT tap.ask('alice', $$SELECT id FROM outbox.claim(md5('alice')::uuid, topics => '{race-settle}')$$) AS leased,
       dblink_exec('alice', 'BEGIN') \gset
SELECT tap.ask('alice', format($$SELECT outbox.ack(md5('alice')::uuid, %L)$$, :'leased')) AS first,
       tap.ask_and_block('bob', format($$SELECT outbox.fail(md5('alice')::uuid, %L)$$, :'leased')) AS waits,
       dblink_exec('alice', 'COMMIT') \gset
SELECT is(
    :'first'::text[] || ARRAY[:'waits'] || tap.answer('bob')
        || tap.ask('carol', $$SELECT count(*) FROM outbox.messages WHERE topic = 'race-settle'$$),
    '{1,t,0,0}',
    'section 4: of two sessions that settle a lease at the same time, one does, and the other gets 0');

SELECT dblink_exec('alice', 'BEGIN') \gset
SELECT tap.ask('alice', $$SELECT outbox.enqueue('race-key', 'first', dedupe_key => 'k')$$) AS first,
       tap.ask_and_block('bob', $$SELECT outbox.try_enqueue('race-key', 'second', dedupe_key => 'k')$$) AS waits,
       dblink_exec('alice', 'COMMIT') \gset
SELECT is(
    ARRAY[:'waits'] || tap.answer('bob'),
    ARRAY['t', format('(%s,f,kept)', (:'first'::text[])[1])],
    'SHARED-41: of two racing transactions the second waits and gets the first one''s id');

SELECT dblink_exec('alice', 'BEGIN') \gset
SELECT tap.ask('alice', $$SELECT outbox.enqueue('race-key-2', 'first', dedupe_key => 'k')$$),
       tap.ask_and_block('bob', $$SELECT (outbox.try_enqueue('race-key-2', 'second', dedupe_key => 'k')).enqueued$$) AS waits,
       dblink_exec('alice', 'ROLLBACK') \gset
SELECT is(
    ARRAY[:'waits'] || tap.answer('bob')
        || tap.ask('carol', $$SELECT payload FROM outbox.messages WHERE topic = 'race-key-2'$$),
    '{t,true,second}',
    'SHARED-41: if the first of two racing transactions rolls back, the second enqueues');

SELECT dblink_exec('alice', 'BEGIN') \gset
SELECT tap.ask('alice', $$SELECT outbox.enqueue('race-stream', 'first', stream_id => md5('stream')::uuid)$$),
       tap.ask_and_block('bob', $$SELECT outbox.enqueue('race-stream', 'second', stream_id => md5('stream')::uuid)$$) AS waits,
       tap.ask('carol', $$SELECT payload FROM outbox.claim(md5('carol')::uuid, topics => '{race-stream}')$$) AS early,
       dblink_exec('alice', 'COMMIT') \gset
SELECT cardinality(tap.answer('bob')) AS answers \gset
SELECT is(
    ARRAY[:'waits'] || :'early'::text[]
        || tap.ask('carol', $$SELECT payload FROM outbox.claim(md5('carol')::uuid, topics => '{race-stream}')$$),
    '{t,first,second}',
    'section 3: enqueuers of one stream take turns, and their messages come in the order of the commits');

SELECT dblink_send_query('alice', $$
    SELECT payload FROM outbox.claim(md5('alice')::uuid, topics => '{race-wait}', wait_ms => 15000)
$$) \gset
SELECT clock_timestamp() AS before,
       dblink_exec('bob', 'BEGIN') AS b, tap.ask('bob', $$SELECT outbox.enqueue('race-wait', 'p')$$) AS e,
       dblink_is_busy('alice') AS waits, dblink_exec('bob', 'COMMIT') AS c \gset
SELECT is(
    ARRAY[:'waits'] || tap.answer('alice') || (clock_timestamp() < :'before'::timestamptz + interval '5 s')::text,
    '{1,p,true}',
    'section 4: a claim with wait_ms takes a message when that commits, long before the time is over');

-- Starts a join with two steps that are leased to alice, and a wait; its id.
CREATE FUNCTION tap.race(topic text)
RETURNS uuid
LANGUAGE plpgsql
AS $$
DECLARE
    started text := (tap.ask('carol', format('SELECT outbox.start_join(%L, 2)', topic)))[1];
BEGIN
    PERFORM tap.ask('carol', format($q$SELECT outbox.enqueue_step(%L, %L, s) FROM unnest('{1,2}'::text[]) s$q$, started, topic)),
            tap.ask('carol', format($q$SELECT outbox.enqueue_join_wait(%L, false, %L, '')$q$, started, topic || '-next')),
            tap.ask('carol', format($q$SELECT id FROM outbox.claim(md5('alice')::uuid, topics => ARRAY[%L])$q$, topic));
    RETURN started;
END
$$;

-- What has become of it, once its wait was evaluated twice.
CREATE FUNCTION tap.raced(join_id uuid)
RETURNS text[]
LANGUAGE sql
AS $$
    SELECT tap.ask('carol', 'SELECT outbox.process_join_waits()'),
           tap.ask('carol', 'SELECT outbox.process_join_waits()');
    SELECT tap.ask('carol', format($q$
        SELECT format('%%s %%s+%%s, %%s next', outbox.join_status_name(j.status), j.completed_steps, j.failed_steps,
                      (SELECT count(*) FROM outbox.queue q WHERE q.topic = j.grouping_key || '-next'))
          FROM outbox.joins j WHERE j.join_id = %L$q$, raced.join_id));
$$;

SELECT tap.race('race-j060') AS j, dblink_exec('alice', 'BEGIN') \gset
SELECT tap.ask('alice', $$SELECT outbox.ack(md5('alice')::uuid, array_agg(id)) FROM outbox.queue WHERE topic = 'race-j060' AND payload = '1'$$),
       tap.ask_and_block('bob', $$SELECT outbox.fail(md5('alice')::uuid, array_agg(id)) FROM outbox.queue WHERE topic = 'race-j060' AND payload = '2'$$) AS waits,
       dblink_exec('alice', 'COMMIT') \gset
SELECT is(
    ARRAY[:'waits'] || tap.answer('bob') || tap.raced(:'j'),
    '{t,1,"failed 1+1, 1 next"}',
    'JOIN-060, JOIN-061: when the last two steps end at once the second waits for the first; both count, and one continuation follows');

SELECT tap.race('race-j061') AS j, dblink_exec('alice', 'BEGIN'), dblink_exec('bob', 'BEGIN') AS begin_too \gset
SELECT (tap.ask('carol', $$SELECT outbox.start_join('race-j061-late', 2)$$))[1] AS late \gset
SELECT (tap.ask('carol', $$SELECT message_id FROM outbox.queue WHERE topic = 'race-j061' AND payload = '1'$$))[1] AS m1,
       (tap.ask('carol', $$SELECT message_id FROM outbox.queue WHERE topic = 'race-j061' AND payload = '2'$$))[1] AS m2 \gset
SELECT tap.ask('alice', format('SELECT outbox.attach_message_to_join(%L, %L)', :'late', :'m1')) AS before,
       tap.ask('bob', $$SELECT outbox.fail(md5('alice')::uuid, array_agg(id)) FROM outbox.queue WHERE topic = 'race-j061'$$) AS failed,
       tap.ask('alice', format('SELECT outbox.attach_message_to_join(%L, %L)', :'late', :'m2')) AS after,
       dblink_exec('bob', 'COMMIT'), dblink_exec('alice', 'COMMIT') AS commit_too \gset
SELECT is(
    tap.ask('carol', format('SELECT failed_steps FROM outbox.joins WHERE join_id = %L', :'late'))
        || tap.raced(:'late') || tap.raced(:'j'),
    '{0,"failed 0+2, 0 next","failed 0+2, 1 next"}',
    'section 5: what is attached while it ends, in either order, is counted when waits are evaluated');

-- More steps than are expected, ended by three workers at the same time.
SELECT tap.ask('carol', $$SELECT outbox.start_join('race-j023', 50)$$) AS j \gset
SELECT tap.ask('carol', format($$SELECT outbox.enqueue_step(%L, 'race-j023', i::text) FROM generate_series(1, 90) i$$, (:'j'::text[])[1])) \gset
SELECT dblink_exec(w, format($do$
           CREATE PROCEDURE pg_temp.end_steps(INOUT most text) LANGUAGE plpgsql AS $f$
           DECLARE
               ids bigint[];
           BEGIN
               LOOP
                   ids := ARRAY(SELECT id FROM outbox.claim(md5(%L)::uuid, topics => '{race-j023}', batch_size => 1));
                   COMMIT;
                   EXIT WHEN ids = '{}';
                   IF ids[1] %% 3 = 0 THEN PERFORM outbox.fail(md5(%1$L)::uuid, ids); ELSE PERFORM outbox.ack(md5(%1$L)::uuid, ids); END IF;
                   COMMIT;
                   most := greatest(most::integer, (SELECT completed_steps + failed_steps FROM outbox.joins WHERE grouping_key = 'race-j023'));
               END LOOP;
           END
           $f$ $do$, w))
  FROM unnest('{alice,bob,carol}'::text[]) w \g /dev/null
SELECT tap.all_at_once('CALL pg_temp.end_steps(''0'')') AS most \gset
SELECT is(
    ARRAY[(SELECT max(n::integer)::text FROM unnest(:'most'::text[]) n)] || tap.ask('alice', $$
        SELECT concat_ws(' ', completed_steps + failed_steps, (SELECT count(*) FILTER (WHERE m.status > 0) FROM outbox.join_members m WHERE m.join_id = j.join_id))
          FROM outbox.joins j WHERE grouping_key = 'race-j023'$$),
    '{50,"50 90"}',
    'JOIN-023, JOIN-060: however many steps end at the same time, no more are counted than are expected');

SELECT tap.race('race-j062') AS j, dblink_exec('alice', 'BEGIN') \gset
SELECT (tap.ask('carol', $$SELECT message_id FROM outbox.queue WHERE topic = 'race-j062' AND payload = '1'$$))[1] AS m1,
       (tap.ask('carol', $$SELECT message_id FROM outbox.queue WHERE topic = 'race-j062' AND payload = '2'$$))[1] AS m2 \gset
SELECT tap.ask('alice', format('SELECT outbox.report_step_completed(%L, %L)', :'j', :'m1')),
       tap.ask_and_block('bob', $$SELECT outbox.fail(md5('alice')::uuid, array_agg(id ORDER BY id DESC)) FROM outbox.queue WHERE topic = 'race-j062'$$) AS waits,
       tap.ask('alice', format('SELECT outbox.report_step_completed(%L, %L)', :'j', :'m2')) AS second,
       dblink_exec('alice', 'COMMIT') \gset
SELECT is(
    ARRAY[:'waits'] || tap.answer('bob') || tap.raced(:'j'),
    '{t,2,"completed 2+0, 1 next"}',
    'JOIN-062: calls that end the same steps in opposite orders do not deadlock, and the first outcome counts');

-- Stores and routes

SELECT tap.ask('alice', $$SELECT outbox.register_store('race store', 'c')$$),
       tap.ask('alice', $$SELECT outbox.map_route('race key', 'race store')$$) AS mapped \gset
-- how many buffers bob's second look-up of a route reads
CREATE FUNCTION tap.look_up_again()
RETURNS text
LANGUAGE sql
AS $$
    SELECT tap.ask('bob', $q$SELECT outbox.route_store('race key')$q$);
    SELECT concat_ws(' ', plan -> 0 -> 'Plan' ->> 'Shared Hit Blocks', plan -> 0 -> 'Plan' ->> 'Shared Read Blocks')
      FROM dblink('bob', $q$EXPLAIN (ANALYZE, BUFFERS, FORMAT json) SELECT outbox.route_store('race key')$q$) AS t (plan json);
$$;
SELECT is(
    ARRAY[tap.look_up_again()] || tap.ask('bob', $$SELECT outbox.route_store('race key')$$), '{"0 0","race store"}',
    'OBX-121: a session keeps what it knows of stores and routes: the next look-up reads nothing');
SELECT tap.ask('alice', $$SELECT outbox.unmap_route('race key')$$), tap.ask('alice', $$SELECT outbox.drop_store('race store')$$) \gset

SELECT tap.tidy_up() \gset
SELECT dblink_disconnect(s) FROM unnest('{alice,bob,carol}'::text[]) s \g /dev/null

\endif
SELECT * FROM finish();
ROLLBACK;
