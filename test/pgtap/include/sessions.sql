-- sessions.sql: sessions beside the one of the test, through dblink
--
-- What they do is committed, so the files that use them name their topics
-- and joins 'race...' and call tap.tidy_up() before and after. The sessions keep no
-- finished messages unless a test asks for that.

CREATE EXTENSION IF NOT EXISTS dblink;

-- Opens a session of this name, at the server of the test.
CREATE FUNCTION tap.open_session(name text)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM dblink_connect(name, format(
        'host=%s port=%s dbname=%s user=%s',
        trim(split_part(current_setting('unix_socket_directories'), ',', 1)),
        current_setting('port'), current_database(), current_user));
    PERFORM dblink_exec(name, $set$
        SET outbox.retention = 0;
        SET client_min_messages = warning;
        SET statement_timeout = '20s';
    $set$);
END
$$;

-- Runs a query in a session; its only column, as an array.
CREATE FUNCTION tap.ask(name text, query text)
RETURNS text[]
LANGUAGE sql
AS $$
    SELECT ARRAY(SELECT answer
                   FROM dblink(name, format('SELECT (q.a)::text FROM (%s) q(a)', query))
                     AS t(answer text))
$$;

-- Sends a query and returns when the session waits for another.
CREATE FUNCTION tap.ask_and_block(name text, query text)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    pid      integer := (tap.ask(name, 'SELECT pg_backend_pid()'))[1];
    patience timestamptz := clock_timestamp() + interval '5 s';
BEGIN
    PERFORM dblink_send_query(name, format('SELECT (q.a)::text FROM (%s) q(a)', query));
    WHILE cardinality(pg_blocking_pids(pid)) = 0 AND dblink_is_busy(name) = 1
          AND clock_timestamp() < patience
    LOOP
        PERFORM pg_sleep(0.005);
    END LOOP;
    RETURN cardinality(pg_blocking_pids(pid)) > 0;
END
$$;

-- The answer to what was sent, once it is there; an error is its SQLSTATE.
CREATE FUNCTION tap.answer(name text)
RETURNS text[]
LANGUAGE plpgsql
AS $$
DECLARE
    answers text[];
BEGIN
    BEGIN
        answers := ARRAY(SELECT a FROM dblink_get_result(name) AS t(a text));
    EXCEPTION
        WHEN OTHERS THEN
            answers := ARRAY[SQLSTATE];
    END;
    PERFORM FROM dblink_get_result(name) AS t(a text);
    RETURN answers;
END
$$;

-- Has alice, bob and carol run a statement at the same time; what each answers, a text.
CREATE FUNCTION tap.all_at_once(statement text)
RETURNS text[]
LANGUAGE plpgsql
AS $$
DECLARE
    session text;
    answers text[] := '{}';
BEGIN
    FOREACH session IN ARRAY '{alice,bob,carol}'::text[] LOOP
        PERFORM dblink_send_query(session, statement);
    END LOOP;
    FOREACH session IN ARRAY '{alice,bob,carol}'::text[] LOOP
        answers := answers || tap.answer(session);
    END LOOP;
    RETURN answers;
END
$$;

CREATE FUNCTION tap.tidy_up()
RETURNS text
LANGUAGE sql
AS $$
    SELECT dblink_exec('alice', $tidy$
        DELETE FROM outbox.queue q
         USING outbox.join_waits w
          JOIN outbox.joins j USING (join_id)
         WHERE q.message_id = w.message_id AND j.grouping_key LIKE 'race%';
        DELETE FROM outbox.joins WHERE grouping_key LIKE 'race%';
        DELETE FROM outbox.queue WHERE topic LIKE 'race%';
        DELETE FROM outbox.dead WHERE topic LIKE 'race%';
        DELETE FROM outbox.archive WHERE topic LIKE 'race%';
        DELETE FROM outbox.dedupe d WHERE NOT EXISTS (SELECT FROM outbox.messages m WHERE m.message_id = d.message_id);
    $tidy$)
$$;
