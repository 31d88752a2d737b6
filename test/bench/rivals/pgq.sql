-- PgQ: a queue and its consumer. A tick ends a batch after 100 events, so that
-- its batches are as large as the others'; drive calls the ticker by hand.
CREATE EXTENSION pgq;
SELECT pgq.create_queue('bench');
SELECT pgq.set_queue_config('bench', 'ticker_max_count', '100');
SELECT pgq.register_consumer('bench', 'drive');
