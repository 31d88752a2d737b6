-- tools.sql: what the test files share
--
-- To be read inside a file's transaction, which takes all of it back. Without
-- arguments of psql the output is the same as under pg_prove.

\set ECHO none
\set QUIET on
\set ON_ERROR_STOP on
\set ON_ERROR_ROLLBACK off
\pset format unaligned
\pset tuples_only on
\pset pager off

SET LOCAL client_min_messages = warning;

CREATE SCHEMA tap;

-- Two workers.
CREATE FUNCTION tap.alice()
RETURNS uuid
LANGUAGE sql IMMUTABLE
AS $$ SELECT md5('alice')::uuid $$;

CREATE FUNCTION tap.bob()
RETURNS uuid
LANGUAGE sql IMMUTABLE
AS $$ SELECT md5('bob')::uuid $$;

-- Enqueues messages and leases them to alice; their ids, in order.
CREATE FUNCTION tap.lease(topic text, VARIADIC payloads text[])
RETURNS bigint[]
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM outbox.enqueue_many(topic, payloads);
    RETURN ARRAY(
        SELECT c.id
          FROM outbox.claim(tap.alice(), topics => ARRAY[topic], batch_size => 10000) c
    );
END
$$;

-- As if the leases of the topic had ended a second ago.
CREATE FUNCTION tap.end_leases(topic text)
RETURNS void
LANGUAGE sql
AS $$
    UPDATE outbox.queue q
       SET locked_until = now() - interval '1 s'
     WHERE q.topic = end_leases.topic
       AND q.status = 1;
$$;

-- As if all that waits in the topic had come due.
CREATE FUNCTION tap.come_due(topic text)
RETURNS void
LANGUAGE sql
AS $$
    UPDATE outbox.queue q
       SET next_attempt_at = now()
     WHERE q.topic = come_due.topic
       AND q.status = 0;
$$;

-- The delays after the first, second ... failed attempt of a message.
CREATE FUNCTION tap.retry_delays(topic text, rounds integer)
RETURNS interval[]
LANGUAGE plpgsql
AS $$
DECLARE
    leased bigint[] := tap.lease(topic, 'to be retried');
    delays interval[] := '{}';
BEGIN
    FOR round IN 1 .. rounds LOOP
        PERFORM outbox.nack(tap.alice(), leased);
        delays := delays || (SELECT m.next_attempt_at - m.updated_at
                               FROM outbox.messages m
                              WHERE m.id = leased[1]);
        PERFORM tap.come_due(topic);
        PERFORM outbox.claim(tap.alice(), topics => ARRAY[topic]);
    END LOOP;
    RETURN delays;
END
$$;

-- The SQLSTATE of each statement, run by a role; 00000 is success.
CREATE FUNCTION tap.sqlstates_as(role text, VARIADIC statements text[])
RETURNS text[]
LANGUAGE plpgsql
AS $$
DECLARE
    states    text[] := '{}';
    statement text;
BEGIN
    EXECUTE format('SET LOCAL ROLE %I', role);
    FOREACH statement IN ARRAY statements LOOP
        BEGIN
            EXECUTE statement;
            states := states || '00000'::text;
        EXCEPTION
            WHEN OTHERS THEN
                states := states || SQLSTATE;
        END;
    END LOOP;
    RESET ROLE;
    RETURN states;
END
$$;

CREATE FUNCTION tap.sqlstates(VARIADIC statements text[])
RETURNS text[]
LANGUAGE sql
AS $$ SELECT tap.sqlstates_as(current_user, VARIADIC statements) $$;

-- How many buffers the execution of a statement looks at: the least of four
-- times, as the first fills caches, and others may be emptied by other sessions.
CREATE FUNCTION tap.buffers(statement text)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    plan   json;
    fewest integer;
BEGIN
    FOR time IN 1 .. 4 LOOP
        EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, FORMAT json) ' || statement INTO plan;
        fewest := least(fewest, (plan -> 0 -> 'Plan' ->> 'Shared Hit Blocks')::integer
                               + (plan -> 0 -> 'Plan' ->> 'Shared Read Blocks')::integer);
    END LOOP;
    RETURN fewest;
END
$$;
