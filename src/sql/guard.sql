-- outbox: transactional outbox, work queue and fan-in joins

\echo Use "CREATE EXTENSION outbox" to load this file. \quit
