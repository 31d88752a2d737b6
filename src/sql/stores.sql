-- stores.sql: the other live tables: the inbox, timers, and runs of jobs. They
-- are served by the same code as the queue, which knows the columns by their
-- numbers: so they have the queue's columns, and their history the archive's.
DO $$
DECLARE
    store text;
BEGIN
    FOREACH store IN ARRAY ARRAY['inbox', 'timer', 'run']
    LOOP
        EXECUTE format($c$
            CREATE TABLE outbox.%1$s_queue (
                LIKE outbox.queue INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING COMMENTS,
                CONSTRAINT %1$s_queue_pkey PRIMARY KEY (id),
                CONSTRAINT %1$s_queue_message_id_key UNIQUE (message_id)
            ) WITH (
                fillfactor = 45,
                autovacuum_vacuum_threshold = 5000,
                autovacuum_vacuum_scale_factor = 0.1,
                autovacuum_analyze_threshold = 50000,
                autovacuum_vacuum_cost_delay = 0
            );

            CREATE INDEX %1$s_queue_ready_idx ON outbox.%1$s_queue (lane, ready_at, id)
                WITH (deduplicate_items = off);
            CREATE INDEX %1$s_queue_stream_idx ON outbox.%1$s_queue (stream_id, stream_seq)
                WITH (deduplicate_items = off)
                WHERE stream_id IS NOT NULL;
            CREATE INDEX %1$s_queue_expires_idx ON outbox.%1$s_queue (expires_at)
                WHERE expires_at IS NOT NULL;

            CREATE TRIGGER outbox_%1$s_queue_changed
                AFTER INSERT OR UPDATE OR DELETE ON outbox.%1$s_queue
                FOR EACH ROW EXECUTE FUNCTION outbox._queue_changed();
            ALTER TABLE outbox.%1$s_queue ENABLE ALWAYS TRIGGER outbox_%1$s_queue_changed;
            COMMENT ON TRIGGER outbox_%1$s_queue_changed ON outbox.%1$s_queue IS
                'Lets the scans know of a row written by plain SQL.';

            CREATE TABLE outbox.%1$s_done (LIKE outbox.archive INCLUDING COMMENTS);
            CREATE INDEX %1$s_done_message_id_idx ON outbox.%1$s_done (message_id);
            CREATE INDEX %1$s_done_processed_idx ON outbox.%1$s_done (processed_at);
            CREATE TABLE outbox.%1$s_dead (LIKE outbox.archive INCLUDING COMMENTS);
            CREATE INDEX %1$s_dead_message_id_idx ON outbox.%1$s_dead (message_id);
            CREATE INDEX %1$s_dead_processed_idx ON outbox.%1$s_dead (processed_at);
        $c$, store);
    END LOOP;
END
$$;
