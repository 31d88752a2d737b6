-- dump.sql: the tables that pg_dump must include. The partitions of the archive are
-- not members of the extension and need no mention, except for the one that always
-- exists.

SELECT pg_catalog.pg_extension_config_dump('outbox.message_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.queue', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.dedupe', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.archive', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.archive_unsorted', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.dead', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.topics', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.subscriber_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.subscribers', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.publications', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.publications_unsorted', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.expansions', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.replays', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.handlers', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.inbox_queue', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.inbox_done', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.inbox_dead', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.message_deduplication', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.instances', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.timer_queue', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.timer_done', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.timer_dead', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.run_queue', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.run_done', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.run_dead', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.jobs', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.receptor_processing', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.perspective_checkpoints', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.joins', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.join_members', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.join_waits', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.join_rechecks', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.depth', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.store_connections', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.routes', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.default_route', '');

-- Tell the launcher that this database has the extension now.
SELECT outbox._wake_worker();
