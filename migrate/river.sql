-- river.sql - moves the jobs of River (0.10 and later) into outbox
--
--	psql [-v ...] -f migrate/river.sql
--
--	kind        only jobs of this kind; of all, unless said
--	queue       only jobs of this queue; of all, unless said
--	namespace   the namespace in outbox; default, unless said
--	schema      the schema of River's tables; public, unless said
--	batch       jobs in a transaction; 1000, unless said
--
-- The topic is the kind. Left where they are: running jobs, until they end or River
-- rescues them, and pending ones, which wait for the application. Metadata become
-- headers; a unique key becomes a dedupe key, in hexadecimal digits.

\set ON_ERROR_STOP on
\if :{?kind} \else \set kind '' \endif
\if :{?queue} \else \set queue '' \endif
\if :{?namespace} \else \set namespace default \endif
\if :{?schema} \else \set schema public \endif
\if :{?batch} \else \set batch 1000 \endif
\ir move.sql

CALL pg_temp.outbox_move(
    source  => format('%I.river_job', :'schema'),
    key     => 'id',
    live    => 'j.finalized_at IS NULL'
               || CASE WHEN :'kind' <> '' THEN format(' AND j.kind = %L', :'kind') ELSE '' END
               || CASE WHEN :'queue' <> '' THEN format(' AND j.queue = %L', :'queue') ELSE '' END,
    free    => $$ j.state IN ('available', 'scheduled', 'retryable') $$,
    due     => 'j.scheduled_at',
    sort    => 'j.scheduled_at, j.id',
    batch   => :batch,
    message => format(
        $$ jsonb_build_object(
               'namespace', %1$L,
               'topic', j.kind,
               'payload', j.args::text,
               'due_time', CASE WHEN j.scheduled_at > clock_timestamp() THEN j.scheduled_at END,
               'priority', greatest(-2, 1 - j.priority),
               'dedupe_key', encode(j.unique_key, 'hex'),
               'headers', j.metadata || jsonb_build_object('migrated', jsonb_strip_nulls(
                   jsonb_build_object(
                       'from', 'River', 'queue', j.queue, 'id', j.id, 'attempts', j.attempt,
                       'created_at', j.created_at, 'tags', nullif(to_jsonb(j.tags), '[]'),
                       'error', j.errors[array_upper(j.errors, 1)] ->> 'error')))) $$,
        :'namespace'));
