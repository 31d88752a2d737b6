-- 08_concurrency.sql: what sessions see of each other
--
-- OBX-097..101, OBX-002, OBX-021 and JOIN-060..062, sections 3 to 5 of the contract. Three sessions,
-- alice, bob and carol, do the work; that of the test only asks them.

BEGIN;
\ir include/tools.sql
SELECT plan(15);

SELECT count(*) = 0 AS no_dblink FROM pg_available_extensions WHERE name = 'dblink' \gset
\if :no_dblink
SELECT skip('dblink is not installed', 15);
\else

\ir include/sessions.sql
SELECT tap.open_session(s) FROM unnest('{alice,bob,carol}'::text[]) s \g /dev/null
SELECT tap.tidy_up() \gset

-- What bob sees of an enqueue of alice's, while it is open and after its end.
CREATE FUNCTION tap.seen_by_bob(topic text, ending text)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    sees      text := format('SELECT string_agg(payload, ''+'' ORDER BY id) FROM outbox.messages WHERE topic = %L', topic);
    meanwhile text;
BEGIN
    PERFORM dblink_exec('alice', 'BEGIN');
    PERFORM tap.ask('alice', format('SELECT outbox.enqueue(%L, ''kept'')', topic));
    PERFORM dblink_exec('alice', 'SAVEPOINT s');
    PERFORM tap.ask('alice', format('SELECT outbox.enqueue(%L, ''undone'')', topic));
    PERFORM dblink_exec('alice', 'ROLLBACK TO s');
    meanwhile := (tap.ask('bob', sees))[1];
    PERFORM dblink_exec('alice', ending);
    RETURN format('%s, then %s', coalesce(meanwhile, 'nothing'), coalesce((tap.ask('bob', sees))[1], 'nothing'));
END
$$;

SELECT is(
    ARRAY[tap.seen_by_bob('race-002-committed', 'COMMIT'), tap.seen_by_bob('race-002-rolled-back', 'ROLLBACK')],
    '{"nothing, then kept","nothing, then nothing"}',
    'OBX-002 an enqueue is visible if and only if its transaction, and savepoint, commits');

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
    '{"nothing, then nothing",kept}',
    'OBX-002 (two phases) a prepared enqueue is claimable once it is committed, not before');
\endif

SELECT clock_timestamp() AS before,
       tap.ask('bob', $$SELECT payload FROM outbox.claim(md5('bob')::uuid, topics => '{race-021}', wait_ms => 50)$$) AS in_vain,
       clock_timestamp() AS after,
       tap.ask('alice', $$SELECT outbox.enqueue('race-021', 'soon', due_time => clock_timestamp() + interval '150 ms')$$) \gset
SELECT is(
    ROW(:'in_vain'::text[], :'after'::timestamptz - :'before' >= interval '50 ms',
        tap.ask('bob', $$SELECT payload FROM outbox.claim(md5('bob')::uuid, topics => '{race-021}', wait_ms => 10000)$$),
        clock_timestamp() < :'after'::timestamptz + interval '5 s')::text,
    '({},t,{soon},t)',
    'OBX-021 with wait_ms an empty result comes after that time, unless a message comes due');

SELECT tap.ask('alice', $$SELECT outbox.enqueue_many('race-097', '{1,2,3,4,5,6}')$$) \gset
SELECT dblink_exec('alice', 'BEGIN'), dblink_exec('bob', 'BEGIN') AS begin_too \gset
SELECT tap.ask('alice', $$SELECT payload FROM outbox.claim(md5('alice')::uuid, batch_size => 2, topics => '{race-097}')$$) AS alices,
       tap.ask('bob', $$SELECT payload FROM outbox.claim(md5('bob')::uuid, batch_size => 2, topics => '{race-097}')$$) AS bobs,
       dblink_exec('alice', 'COMMIT'), dblink_exec('bob', 'COMMIT') AS commit_too,
       tap.ask('carol', $$SELECT payload FROM outbox.claim(md5('carol')::uuid, topics => '{race-097}')$$) AS carols \gset
SELECT is(
    ARRAY[:'alices', :'bobs', :'carols'], '{"{1,2}","{3,4}","{5,6}"}',
    'OBX-097 claims at the same time never hand out the same message, and miss none');

SELECT tap.ask('alice', $$SELECT outbox.enqueue_many('race-098', '{1,2}')$$) \gset
SELECT dblink_exec('alice', 'BEGIN') \gset
SELECT tap.ask('alice', $$SELECT payload FROM outbox.claim(md5('alice')::uuid, batch_size => 1, topics => '{race-098}')$$),
       dblink_exec('bob', $$SET lock_timeout = '100ms'$$) \gset
SELECT is(
    tap.ask('bob', $$SELECT payload FROM outbox.claim(md5('bob')::uuid, topics => '{race-098}')$$)
        || tap.ask('bob', $$SELECT count(*) FROM outbox.claim(md5('bob')::uuid, topics => '{race-098}')$$),
    '{2,0}',
    'OBX-098 a claim never waits for another claimer, it passes over what that one holds');
SELECT dblink_exec('alice', 'COMMIT'), dblink_exec('bob', 'RESET lock_timeout') \gset

SELECT tap.ask('alice', $$SELECT outbox.enqueue_many('race-099', '{1,2}')$$) \gset
SELECT dblink_exec('alice', 'BEGIN') \gset
SELECT tap.ask('alice', $$SELECT payload FROM outbox.claim(md5('alice')::uuid, topics => '{race-099}')$$),
       tap.ask('bob', $$SELECT payload FROM outbox.claim(md5('bob')::uuid, topics => '{race-099}')$$) AS early,
       dblink_exec('alice', 'ROLLBACK') \gset
SELECT is(
    :'early'::text[]
        || tap.ask('bob', $$SELECT payload || ' ' || attempts FROM outbox.claim(md5('bob')::uuid, topics => '{race-099}')$$),
    '{"1 1","2 1"}',
    'OBX-099 what a claim had taken is there for others when its transaction rolls back, as it was before');

SELECT tap.ask('alice', $$SELECT outbox.enqueue('race-100', 'p')$$) \gset
SELECT tap.ask('alice', $$SELECT id FROM outbox.claim(md5('alice')::uuid, topics => '{race-100}')$$) AS leased,
       dblink_exec('alice', 'BEGIN') \gset
SELECT tap.ask('alice', format($$SELECT outbox.ack(md5('alice')::uuid, %L)$$, :'leased')) AS first,
       tap.ask_and_block('bob', format($$SELECT outbox.fail(md5('alice')::uuid, %L)$$, :'leased')) AS waits,
       dblink_exec('alice', 'COMMIT') \gset
SELECT is(
    :'first'::text[] || ARRAY[:'waits'] || tap.answer('bob')
        || tap.ask('carol', $$SELECT count(*) FROM outbox.messages WHERE topic = 'race-100'$$),
    '{1,t,0,0}',
    'OBX-100 of two sessions that settle a lease at the same time, one does, and the other is told');

SELECT tap.ask('alice', $$SELECT outbox.enqueue_many('race-101', '{1,2}')$$) \gset
SELECT tap.ask('alice', $$SELECT id FROM outbox.claim(md5('alice')::uuid, topics => '{race-101}')$$) AS leased,
       dblink_exec('carol', 'BEGIN') \gset
SELECT tap.ask('carol', $$SELECT id FROM outbox.queue WHERE topic = 'race-101' AND payload = '2' FOR UPDATE$$) \gset
SELECT tap.ask_and_block('bob', format($$SELECT outbox.nack(md5('alice')::uuid, ARRAY[%s, %s])$$,
                                       (:'leased'::text[])[2], (:'leased'::text[])[1])) AS bob_waits,
       tap.ask_and_block('alice', format($$SELECT outbox.ack(md5('alice')::uuid, ARRAY[%s, %s])$$,
                                         (:'leased'::text[])[1], (:'leased'::text[])[2])) AS alice_waits,
       dblink_exec('carol', 'ROLLBACK') \gset
SELECT is(
    ARRAY[:'bob_waits', :'alice_waits'] || tap.answer('bob') || tap.answer('alice'),
    '{t,t,2,0}',
    'OBX-101 calls that settle the same messages in opposite orders do not deadlock');

SELECT dblink_exec('alice', 'BEGIN') \gset
SELECT tap.ask('alice', $$SELECT outbox.enqueue('race-key', 'first', dedupe_key => 'k')$$) AS first,
       tap.ask_and_block('bob', $$SELECT outbox.try_enqueue('race-key', 'second', dedupe_key => 'k')$$) AS waits,
       dblink_exec('alice', 'COMMIT') \gset
SELECT is(
    ARRAY[:'waits'] || tap.answer('bob'),
    ARRAY['t', format('(%s,f)', (:'first'::text[])[1])],
    'shared outbox: dedupe, of two racing transactions the second waits and gets the first one''s id');

SELECT dblink_exec('alice', 'BEGIN') \gset
SELECT tap.ask('alice', $$SELECT outbox.enqueue('race-key-2', 'first', dedupe_key => 'k')$$),
       tap.ask_and_block('bob', $$SELECT (outbox.try_enqueue('race-key-2', 'second', dedupe_key => 'k')).enqueued$$) AS waits,
       dblink_exec('alice', 'ROLLBACK') \gset
SELECT is(
    ARRAY[:'waits'] || tap.answer('bob')
        || tap.ask('carol', $$SELECT payload FROM outbox.messages WHERE topic = 'race-key-2'$$),
    '{t,true,second}',
    'shared outbox: dedupe, if the first of two racing transactions rolls back, the second enqueues');

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
    'streams: enqueuers of one stream take turns, and their messages come in the order of the commits');

SELECT dblink_send_query('alice', $$
    SELECT payload FROM outbox.claim(md5('alice')::uuid, topics => '{race-wait}', wait_ms => 15000)
$$) \gset
SELECT clock_timestamp() AS before,
       dblink_exec('bob', 'BEGIN') AS b, tap.ask('bob', $$SELECT outbox.enqueue('race-wait', 'p')$$) AS e,
       dblink_is_busy('alice') AS waits, dblink_exec('bob', 'COMMIT') AS c \gset
SELECT is(
    ARRAY[:'waits'] || tap.answer('alice') || (clock_timestamp() < :'before'::timestamptz + interval '5 s')::text,
    '{1,p,true}',
    'waiting: a claim with wait_ms takes a message when that commits, long before the time is over');

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
    'JOIN-060 when the last two steps end at once both count, and one continuation follows');

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
    'JOIN-061 what is attached while it ends, in either order, is counted when waits are evaluated');

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
    'JOIN-062 calls that end the same steps in opposite orders do not deadlock, and the first outcome counts');

SELECT tap.tidy_up() \gset
SELECT dblink_disconnect(s) FROM unnest('{alice,bob,carol}'::text[]) s \g /dev/null

\endif
SELECT * FROM finish();
ROLLBACK;
