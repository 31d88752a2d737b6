-- pg-boss.sql - the jobs of pg-boss 12 as it lays them out, as far as migrate/pg-boss.sql
-- and docs/migrating.md read them
CREATE SCHEMA pgboss;
CREATE TYPE pgboss.job_state AS ENUM
    ('created', 'retry', 'active', 'completed', 'cancelled', 'failed');
CREATE TABLE pgboss.job (
    id            uuid NOT NULL DEFAULT gen_random_uuid(),
    name          text NOT NULL,
    priority      integer NOT NULL DEFAULT 0,
    data          jsonb,
    state         pgboss.job_state NOT NULL DEFAULT 'created',
    retry_limit   integer NOT NULL DEFAULT 2,
    retry_count   integer NOT NULL DEFAULT 0,
    singleton_key text,
    start_after   timestamptz NOT NULL DEFAULT now(),
    created_on    timestamptz NOT NULL DEFAULT now(),
    started_on    timestamptz,
    completed_on  timestamptz,
    keep_until    timestamptz NOT NULL DEFAULT now() + interval '14 days',
    output        jsonb,
    dead_letter   text,
    policy        text,
    blocked       boolean NOT NULL DEFAULT false,
    blocking      boolean NOT NULL DEFAULT false,
    PRIMARY KEY (name, id)
) PARTITION BY LIST (name);
CREATE TABLE pgboss.job_common PARTITION OF pgboss.job DEFAULT;
CREATE TABLE pgboss.schedule (
    name     text NOT NULL,
    key      text NOT NULL DEFAULT '',
    cron     text NOT NULL,
    timezone text,
    data     jsonb,
    options  jsonb,
    PRIMARY KEY (name, key)
);
