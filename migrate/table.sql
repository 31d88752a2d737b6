-- table.sql - moves the rows of a table that was written by hand as a queue into outbox
--
--	psql -v table=SCHEMA.NAME -v topic=SQL [-v ...] -f migrate/table.sql
--
-- All values are SQL about a row, which is called j; what is not in pg_catalog must be
-- named with its schema.
--
--	table       the table
--	topic       its topic, such as "'mail'" or "'order.' || j.kind"
--	key         the column of its primary key; id, unless said
--	live        condition: it is not finished; j.status IN ('ready', 'running')
--	free        condition: and no worker has it;
--	            j.status = 'ready' OR j.locked_until < clock_timestamp()
--	payload     j.payload
--	due         when it is due; NULL
--	sort        the order of the messages; the key, unless said
--	priority    from -2 (can wait) to 2 (urgent); NULL
--	dedupe_key  NULL
--	stream_id   a UUID: those that have it in common are moved together; NULL
--	headers     a JSON object; {"migrated": {"from": the table, "id": the key}}, unless said
--	namespace   default, unless said
--	mark        SET this in the row, instead of deleting it; nothing, unless said
--	duplicates  if the dedupe key is taken: send the message without it, or drop it; send
--	batch       rows in a transaction; 1000

\set ON_ERROR_STOP on
\if :{?table} \else
DO $$ BEGIN RAISE EXCEPTION 'say which table: -v table=SCHEMA.NAME'; END $$;
\endif
\if :{?topic} \else
DO $$ BEGIN RAISE EXCEPTION 'say which topic: -v topic=SQL'; END $$;
\endif
\if :{?key} \else \set key id \endif
\if :{?live} \else \set live 'j.status IN (\'ready\', \'running\')' \endif
\if :{?free} \else \set free 'j.status = \'ready\' OR j.locked_until < clock_timestamp()' \endif
\if :{?payload} \else \set payload j.payload \endif
\if :{?due} \else \set due NULL \endif
\if :{?sort} \else \set sort j. :key \endif
\if :{?priority} \else \set priority NULL \endif
\if :{?dedupe_key} \else \set dedupe_key NULL \endif
\if :{?stream_id} \else \set stream_id NULL \endif
\if :{?namespace} \else \set namespace default \endif
\if :{?mark} \else \set mark '' \endif
\if :{?duplicates} \else \set duplicates send \endif
\if :{?batch} \else \set batch 1000 \endif
\ir move.sql
\if :{?headers}
\else
    SELECT format($$ jsonb_build_object('migrated', jsonb_build_object('from', %L, 'id', j.%I)) $$,
                  :'table', :'key') AS headers \gset
\endif

CALL pg_temp.outbox_move(
    source     => :'table',
    key        => :'key',
    live       => :'live',
    free       => :'free',
    due        => format('(%s)::timestamptz', :'due'),
    grouped    => format('(%s)::text', :'stream_id'),
    sort       => :'sort',
    mark       => nullif(:'mark', ''),
    duplicates => :'duplicates',
    batch      => :batch,
    message    => format(
        $$ jsonb_build_object(
               'namespace', %L,
               'topic', (%s)::text,
               'payload', (%s)::text,
               'due_time', (%s)::timestamptz,
               'priority', (%s)::int,
               'dedupe_key', (%s)::text,
               'stream_id', (%s)::uuid,
               'headers', (%s)::jsonb) $$,
        :'namespace', :'topic', :'payload', :'due', :'priority', :'dedupe_key', :'stream_id',
        :'headers'));
