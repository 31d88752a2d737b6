-- pg-boss.sql - moves the jobs of a queue of pg-boss (10 and later) into outbox
--
--	psql -v queue=NAME [-v ...] -f migrate/pg-boss.sql
--
--	queue       the queue
--	topic       the topic in outbox; the name of the queue, unless said
--	namespace   the namespace in outbox; default, unless said
--	schema      the schema of pg-boss; pgboss, unless said
--	batch       jobs in a transaction; 1000, unless said
--
-- Left where they are: active jobs, until they fail, or expire and pg-boss notices, and
-- jobs of flows (12 and later), which wait for others or others for them. Jobs of queues
-- whose policy is singleton, stately, exclusive or key_strict_fifo become messages of a
-- stream, one for each singleton key; the key of short, stately and exclusive queues
-- becomes a dedupe key.

\set ON_ERROR_STOP on
\if :{?queue} \else
DO $$ BEGIN RAISE EXCEPTION 'say which queue: -v queue=NAME'; END $$;
\endif
\if :{?topic} \else \set topic :queue \endif
\if :{?namespace} \else \set namespace default \endif
\if :{?schema} \else \set schema pgboss \endif
\if :{?batch} \else \set batch 1000 \endif
\ir move.sql

CALL pg_temp.outbox_move(
    source  => format('%I.job', :'schema'),
    key     => 'id',
    live    => format($$ j.name = %L AND j.state < 'completed' $$, :'queue'),
    free    => $$ j.state < 'active'
                  AND to_jsonb(j) ->> 'blocked' IS DISTINCT FROM 'true'
                  AND to_jsonb(j) ->> 'blocking' IS DISTINCT FROM 'true' $$,
    due     => 'j.start_after',
    grouped => $$ CASE WHEN j.policy IN ('singleton', 'stately', 'exclusive', 'key_strict_fifo')
                       THEN coalesce(j.singleton_key, '') END $$,
    sort    => 'j.created_on, j.id',
    batch   => :batch,
    message => format(
        $$ jsonb_build_object(
               'namespace', %1$L,
               'topic', %2$L,
               'message_id', j.id,
               'payload', coalesce(j.data::text, 'null'),
               'due_time', CASE WHEN j.start_after > clock_timestamp() THEN j.start_after END,
               'expires_at', j.keep_until,
               'priority', greatest(-2, least(2, j.priority)),
               'dedupe_key', CASE WHEN j.policy IN ('short', 'stately', 'exclusive')
                                  THEN j.singleton_key END,
               'stream_id', CASE WHEN j.policy IN ('singleton', 'stately', 'exclusive',
                                                   'key_strict_fifo')
                                 THEN md5(%2$L || ' ' || coalesce(j.singleton_key, ''))::uuid END,
               'headers', jsonb_build_object('migrated', jsonb_strip_nulls(jsonb_build_object(
                   'from', 'pg-boss', 'queue', j.name, 'id', j.id,
                   'attempts', CASE WHEN j.started_on IS NULL THEN 0 ELSE j.retry_count + 1 END,
                   'created_at', j.created_on, 'key', j.singleton_key,
                   'dead_letter', j.dead_letter, 'error', j.output)))) $$,
        :'namespace', :'topic'));
