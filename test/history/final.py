"""What is read from the tables at the end, by the names that the laws have for it."""

FINAL = {
    'messages': """
        SELECT id, message_id::text, CASE WHEN topic = 'join.wait' THEN split_part(payload::jsonb ->> 'onCompletePayload', '|', 1)
               ELSE split_part(left(payload, 100), '|', 1) END, topic, namespace, status, attempts, failure_reason, processed_by,
               (extract(epoch FROM CASE WHEN status IN (2, 3) THEN coalesce(processed_at, updated_at) END) * 1000000)::bigint,
               (extract(epoch FROM created_at) * 1000000)::bigint,
               dedupe_key, retry_count, tenant_id::text, correlation_id, headers, stream_id::text, priority, last_error,
               CASE WHEN topic <> 'join.wait' THEN split_part(left(payload, 100), '|', 2) END
          FROM outbox.messages WHERE published_id IS NULL""",
    'deliveries': """
        SELECT subscription, message_id::text, split_part(left(payload, 100), '|', 1), status, published_id::text, failure_reason
          FROM outbox.messages WHERE published_id IS NOT NULL""",
    'joins': 'SELECT join_id::text, grouping_key, expected_steps, completed_steps, failed_steps, status FROM outbox.joins',
    'members': 'SELECT join_id::text, message_id::text, status FROM outbox.join_members',
    'handled': 'SELECT tag, count(*) FROM app.handled GROUP BY tag',
    'worked': 'SELECT tag, count(*) FROM app.worked GROUP BY tag',
    'inbox': """
        SELECT id, message_id::text, split_part(payload, '|', 1), status FROM outbox.inbox""",
    'timers': """
        SELECT id, timer_id::text, split_part(payload, '|', 1), status, attempts, failure_reason, processed_by
          FROM outbox.timers""",
    'runs': """
        SELECT id, run_id::text, split_part(payload, '|', 1), status, attempts, failure_reason, processed_by
          FROM outbox.job_runs""",
    'receptors': 'SELECT message_id::text, receptor_name, status, attempts, error FROM outbox.receptor_processing',
    'perspectives': """
        SELECT stream_id::text, perspective_name, last_message_id::text, status, error
          FROM outbox.perspective_checkpoints""",
    'received': 'SELECT message_id::text FROM outbox.message_deduplication',
    'leftovers': """
        SELECT 'queue', count(*) FROM outbox.queue UNION ALL
        SELECT 'inbox_queue', count(*) FROM outbox.inbox_queue UNION ALL
        SELECT 'timer_queue', count(*) FROM outbox.timer_queue UNION ALL
        SELECT 'run_queue', count(*) FROM outbox.run_queue UNION ALL
        -- of a member whose transaction was rolled back one stays for a day, in case a dump brings it back
        SELECT 'join_rechecks', count(*) FROM outbox.join_rechecks r
         WHERE r.missed_at IS NULL
            OR EXISTS (SELECT FROM outbox.join_members m JOIN outbox.joins j USING (join_id)
                        WHERE m.message_id = r.message_id AND (r.join_id IS NULL OR m.join_id = r.join_id))
            OR r.message_id IS NULL AND EXISTS (SELECT FROM outbox.joins j WHERE j.join_id = r.join_id)
            OR EXISTS (SELECT FROM outbox.join_waits w WHERE w.message_id = r.message_id) UNION ALL
        SELECT 'join_waits', count(*) FROM outbox.join_waits UNION ALL
        SELECT 'expansions', count(*) FROM outbox.expansions UNION ALL
        SELECT 'replays', count(*) FROM outbox.replays UNION ALL
        SELECT 'pg_prepared_xacts', count(*) FROM pg_prepared_xacts WHERE database = current_database()""",
}
