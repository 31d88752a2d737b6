-- graphile-worker.sql - moves the jobs of graphile-worker (0.16 and later) into outbox
--
--	psql [-v ...] -f migrate/graphile-worker.sql
--
--	task        only jobs of this task; of all, unless said
--	namespace   the namespace in outbox; default, unless said
--	schema      the schema of graphile-worker; graphile_worker, unless said
--	batch       jobs in a transaction; 1000, unless said
--
-- The topic is the name of the task. Left where they are: jobs that are locked, and were
-- so in the last 4 hours, after which graphile-worker takes their worker for dead, too;
-- and jobs that have used up their attempts. Jobs of a named queue become messages of a
-- stream; the key of a job becomes a dedupe key.

\set ON_ERROR_STOP on
\if :{?task} \else \set task '' \endif
\if :{?namespace} \else \set namespace default \endif
\if :{?schema} \else \set schema graphile_worker \endif
\if :{?batch} \else \set batch 1000 \endif
\ir move.sql

CALL pg_temp.outbox_move(
    source  => format('%I._private_jobs', :'schema'),
    key     => 'id',
    live    => 'j.attempts < j.max_attempts'
               || CASE WHEN :'task' <> '' THEN format(
                      ' AND j.task_id = (SELECT t.id FROM %I._private_tasks t'
                      '                   WHERE t.identifier = %L)',
                      :'schema', :'task') ELSE '' END,
    free    => $$ j.locked_at IS NULL OR j.locked_at < now() - interval '4 hours' $$,
    due     => 'j.run_at',
    grouped => 'j.job_queue_id::text',
    sort    => 'j.priority, j.run_at, j.id',
    batch   => :batch,
    message => format(
        $$ jsonb_build_object(
               'namespace', %1$L,
               'topic', (SELECT t.identifier FROM %2$I._private_tasks t WHERE t.id = j.task_id),
               'payload', j.payload::text,
               'due_time', CASE WHEN j.run_at > clock_timestamp() THEN j.run_at END,
               'priority', greatest(-2, least(2, -j.priority)),
               'dedupe_key', j.key,
               'stream_id', (SELECT md5(q.queue_name)::uuid
                               FROM %2$I._private_job_queues q WHERE q.id = j.job_queue_id),
               'headers', jsonb_build_object('migrated', jsonb_strip_nulls(jsonb_build_object(
                   'from', 'graphile-worker', 'id', j.id,
                   'queue', (SELECT q.queue_name
                               FROM %2$I._private_job_queues q WHERE q.id = j.job_queue_id),
                   'attempts', j.attempts, 'created_at', j.created_at,
                   'flags', j.flags, 'error', j.last_error)))) $$,
        :'namespace', :'schema'));
