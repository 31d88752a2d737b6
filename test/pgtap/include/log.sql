-- log.sql: what a statement logs at outbox.log_level
--
-- A session's messages go to its client only, so another psql runs the
-- statement, in a transaction that it rolls back. Set "script" and include
-- this file: "log" is what that psql has printed, the messages among it.
-- "level" and "verbosity" may be set too; they are log and terse.

\setenv PGHOST :HOST
\setenv PGPORT :PORT
\setenv PGUSER :USER
\setenv PGDATABASE :DBNAME
\if :{?level}
\else
    \set level log
    \set verbosity terse
\endif
SELECT format('SET LOCAL client_min_messages = %s; SET LOCAL outbox.log_level = %1$s;', :'level') AS settings,
       replace(:'script', E'\n', ' ') AS script \gset
\set log `psql -XAtq -v VERBOSITY=:verbosity -c "LOAD 'outbox'" -c BEGIN -c :'settings' -c :'script' -c ROLLBACK 2>&1`
