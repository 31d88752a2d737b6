-- dump.sql: what pg_dump has to carry. The partitions of the archive are
-- tables of their own and need no mention, but for the one that is always there.

SELECT pg_catalog.pg_extension_config_dump('outbox.message_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.queue', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.dedupe', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.archive', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.archive_unsorted', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.dead', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.topics', '');
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
SELECT pg_catalog.pg_extension_config_dump('outbox.join_doubts', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.store_connections', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.routes', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.default_route', '');

-- There is a database for the launcher.
SELECT outbox._wake_worker();
