-- pgmq.sql - moves the messages of a queue of pgmq (1.0 and later) into outbox
--
--	psql -v queue=NAME [-v ...] -f migrate/pgmq.sql
--
--	queue       the queue
--	topic       the topic in outbox; the name of the queue, unless said
--	namespace   the namespace in outbox; default, unless said
--	batch       messages in a transaction; 1000, unless said
--
-- Left where they are: messages that were read, until their visibility timeout ends. A
-- message that was never read and is not visible yet is delayed, and gets a due time.
-- Messages with the header x-pgmq-group become messages of a stream.

\set ON_ERROR_STOP on
\if :{?queue} \else
DO $$ BEGIN RAISE EXCEPTION 'say which queue: -v queue=NAME'; END $$;
\endif
\if :{?topic} \else \set topic :queue \endif
\if :{?namespace} \else \set namespace default \endif
\if :{?batch} \else \set batch 1000 \endif
\ir move.sql

-- columns that older versions do not have are read by their names
CALL pg_temp.outbox_move(
    source  => format('pgmq.%I', lower('q_' || :'queue')),
    key     => 'msg_id',
    live    => 'true',
    free    => 'j.vt <= clock_timestamp() OR j.read_ct = 0',
    due     => 'j.vt',
    grouped => $$ to_jsonb(j) -> 'headers' ->> 'x-pgmq-group' $$,
    sort    => 'j.msg_id',
    batch   => :batch,
    message => format(
        $$ jsonb_build_object(
               'namespace', %1$L,
               'topic', %2$L,
               'payload', coalesce(j.message::text, 'null'),
               'due_time', CASE WHEN j.vt > clock_timestamp() THEN j.vt END,
               'stream_id', md5(%2$L || ' ' || (to_jsonb(j) -> 'headers' ->> 'x-pgmq-group'))::uuid,
               'headers', CASE WHEN jsonb_typeof(to_jsonb(j) -> 'headers') = 'object'
                               THEN to_jsonb(j) -> 'headers' ELSE '{}' END
                   || jsonb_build_object('migrated', jsonb_build_object(
                          'from', 'pgmq', 'queue', %3$L, 'id', j.msg_id,
                          'attempts', j.read_ct, 'created_at', j.enqueued_at))) $$,
        :'namespace', :'topic', :'queue'));
