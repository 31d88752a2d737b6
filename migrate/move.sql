-- move.sql - moves messages out of the table of another queue into outbox; the other
-- scripts of this folder include it, and say what the rows of the table mean
--
-- Each transaction deletes rows there and enqueues them here. So at any moment,
-- whatever is killed, a message is in exactly one of the two. Rows that another
-- transaction has locked, and rows that a worker has in work, are left where they are:
-- old and new workers can run at the same time. Run it again until nothing remains.
--
-- What it creates is temporary, and gone with the session.

\set ON_ERROR_STOP on
\set QUIET on
SET search_path = pg_catalog, pg_temp;  -- names of other objects must be qualified
SET default_transaction_isolation = 'read committed';
SET statement_timeout = 0;
SET lock_timeout = '1s';                -- for a key or stream that another transaction has

-- outbox_move_rows(what, keys, grouped, ...)
--     Moves the rows with these keys that may still be moved, in one statement; those of
--     a group all at once or not at all. If that fails, moves each half by itself, and
--     so on, so that a message that outbox cannot take stays alone. "what" has the
--     statements that outbox_move has made.
CREATE OR REPLACE FUNCTION pg_temp.outbox_move_rows(
    what            jsonb,
    keys            text[],
    grouped         text,
    INOUT moved     bigint,
    INOUT key_taken bigint,
    INOUT failed    bigint
)
LANGUAGE plpgsql
AS $$
DECLARE
    half     integer := cardinality(keys) / 2;
    n        bigint;
    still    bigint;
    enqueued bigint;
    messages jsonb;
    again    jsonb;
BEGIN
    IF grouped IS NOT NULL THEN
        EXECUTE what ->> 'lock' USING grouped;
        EXECUTE what ->> 'busy' INTO n USING grouped;
        IF n > 0 THEN
            RETURN;
        END IF;
    END IF;
    EXECUTE what ->> 'take' INTO n, still, messages USING keys;
    IF n = 0 THEN
        RETURN;
    ELSIF still > 0 THEN
        RAISE EXCEPTION 'a row that is marked is still live'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'It would be moved again: set what makes the condition false.';
    END IF;
    -- a message is not lost because another one has its key
    SELECT count(*) FILTER (WHERE e.enqueued),
           coalesce(jsonb_agg((messages -> (e.ordinal - 1)) - 'dedupe_key' ORDER BY e.ordinal)
                      FILTER (WHERE NOT e.enqueued), '[]')
      INTO enqueued, again
      FROM outbox.enqueue_batch(messages) e;
    IF enqueued < n AND what ->> 'duplicates' = 'send' THEN
        PERFORM FROM outbox.enqueue_batch(again);
    END IF;
    moved := moved + n;
    key_taken := key_taken + jsonb_array_length(again);
EXCEPTION
    -- what one row may be the reason of; anything else ends the run
    WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
        IF half > 0 AND grouped IS NULL THEN
            SELECT * INTO moved, key_taken, failed
              FROM pg_temp.outbox_move_rows(what, keys[:half], NULL, moved, key_taken, failed);
            SELECT * INTO moved, key_taken, failed
              FROM pg_temp.outbox_move_rows(what, keys[half + 1:], NULL, moved, key_taken, failed);
        ELSE
            IF failed < 20 THEN
                RAISE WARNING '% % of % cannot be moved: %',
                    what ->> 'key', array_to_string(keys[:10], ', '), what ->> 'source', SQLERRM;
            ELSIF failed = 20 THEN
                RAISE WARNING 'more rows of % cannot be moved', what ->> 'source';
            END IF;
            failed := failed + cardinality(keys);
        END IF;
    WHEN lock_not_available OR transaction_rollback THEN
        IF half > 0 AND grouped IS NULL THEN
            SELECT * INTO moved, key_taken, failed
              FROM pg_temp.outbox_move_rows(what, keys[:half], NULL, moved, key_taken, failed);
            SELECT * INTO moved, key_taken, failed
              FROM pg_temp.outbox_move_rows(what, keys[half + 1:], NULL, moved, key_taken, failed);
        END IF;
END
$$;

-- outbox_move(source, key, live, free, message, sort, ...)
--     Moves all rows of a table that may be moved now, in transactions of at most
--     "batch". The arguments from "live" on are SQL, in which a row is called j.
--         key         a column that is unique among the live rows
--         live        condition: the message is not finished
--         free        condition: and no worker has it
--         message     the message, as an object for outbox.enqueue_batch
--         sort        the order in which messages are enqueued
--         due         when the message is due
--         grouped     messages of which one is processed at a time, in order, have this in
--                     common: a group is moved when no worker has any of it, and what is
--                     not due yet stays, since it would stop what is behind it in the stream
--         mark        SET this in a row, instead of deleting it
--         duplicates  a message whose dedupe key is taken: 'send' it without the key, or
--                     'drop' it
--     Returns how many were moved, and of how many of these the key was taken; how many
--     cannot be moved, of which the first have warnings; and how many live rows remain.
CREATE OR REPLACE PROCEDURE pg_temp.outbox_move(
    source          regclass,
    key             text,
    live            text,
    free            text,
    message         text,
    sort            text,
    due             text    DEFAULT 'NULL::timestamptz',
    grouped         text    DEFAULT 'NULL::text',
    mark            text    DEFAULT NULL,
    duplicates      text    DEFAULT 'send',
    batch           integer DEFAULT 1000,
    INOUT moved     bigint  DEFAULT 0,
    INOUT key_taken bigint  DEFAULT 0,
    INOUT failed    bigint  DEFAULT 0,
    INOUT remaining bigint  DEFAULT 0
)
LANGUAGE plpgsql
AS $$
DECLARE
    wanted text := format(
        '(%s) AND (%s) AND ((%s) IS NULL OR (%s) IS NULL OR (%s) <= clock_timestamp())',
        live, free, grouped, due, due);
    type   text;
    what   jsonb;
    keys   text[] := '{}';
    last   text;
    told   timestamptz := clock_timestamp();
    j      record;
BEGIN
    SELECT format_type(a.atttypid, a.atttypmod) INTO type
      FROM pg_attribute a
     WHERE a.attrelid = source AND a.attname = key AND a.attnum > 0;
    IF type IS NULL THEN
        RAISE EXCEPTION 'column "%" of % does not exist', key, source
            USING ERRCODE = 'undefined_column';
    ELSIF duplicates IS NULL OR duplicates NOT IN ('send', 'drop') THEN
        RAISE EXCEPTION 'duplicates must be send or drop'
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF batch IS NULL OR batch NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'batch must be between 1 and 10000'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    what := jsonb_build_object(
        'source', source, 'key', key, 'duplicates', duplicates,
        'lock', format('SELECT FROM %s j WHERE (%s) AND (%s) = $1 FOR UPDATE NOWAIT',
                       source, live, grouped),
        'busy', format('SELECT count(*) FROM %s j WHERE (%s) AND (%s) = $1 AND (%s) IS NOT TRUE',
                       source, live, grouped, free),
        'take', format(
            'WITH taken AS MATERIALIZED ('
            '    SELECT j.%1$I AS key FROM %2$s j'
            '     WHERE j.%1$I = ANY ($1::%3$s[]) AND %4$s FOR UPDATE OF j SKIP LOCKED'
            '), gone AS ('
            '    %5$s WHERE j.%1$I = taken.key AND %4$s RETURNING j.*'
            ') SELECT count(*), %6$s, jsonb_agg(%7$s ORDER BY %8$s) FROM gone j',
            key, source, type, wanted,
            CASE WHEN mark IS NULL THEN format('DELETE FROM %s j USING taken', source)
                 ELSE format('UPDATE %s j SET %s FROM taken', source, mark) END,
            CASE WHEN mark IS NULL THEN '0' ELSE format('count(*) FILTER (WHERE %s)', live) END,
            message, sort));
    moved := 0;
    key_taken := 0;
    failed := 0;

    -- the first COMMIT reads the cursor to its end, and so ends its snapshot
    FOR j IN EXECUTE format(
        'SELECT j.%I::text AS key, (%s)::text AS grouped FROM %s j WHERE %s'
        ' ORDER BY 2 NULLS FIRST, %s',
        key, grouped, source, wanted, sort)
    LOOP
        IF cardinality(keys) > 0
           AND (j.grouped IS DISTINCT FROM last
                OR j.grouped IS NULL AND cardinality(keys) >= batch)
        THEN
            SELECT * INTO moved, key_taken, failed
              FROM pg_temp.outbox_move_rows(what, keys, last, moved, key_taken, failed);
            COMMIT;
            keys := '{}';
            IF clock_timestamp() > told + interval '10 s' THEN
                told := clock_timestamp();
                RAISE NOTICE '% moved', moved;
            END IF;
        END IF;
        keys := keys || j.key;
        last := j.grouped;
    END LOOP;
    IF cardinality(keys) > 0 THEN
        SELECT * INTO moved, key_taken, failed
          FROM pg_temp.outbox_move_rows(what, keys, last, moved, key_taken, failed);
        COMMIT;
    END IF;
    EXECUTE format('SELECT count(*) FROM %s j WHERE %s', source, live) INTO remaining;
END
$$;
