-- graphile-worker.sql - the jobs of graphile-worker 0.17 as it lays them out, as far as
-- migrate/graphile-worker.sql reads them
CREATE SCHEMA graphile_worker;
CREATE TABLE graphile_worker._private_tasks (
    id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    identifier text NOT NULL UNIQUE
);
CREATE TABLE graphile_worker._private_job_queues (
    id           integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_name   text NOT NULL UNIQUE,
    locked_at    timestamptz,
    locked_by    text,
    is_available boolean GENERATED ALWAYS AS (locked_at IS NULL) STORED NOT NULL
);
CREATE TABLE graphile_worker._private_jobs (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_queue_id integer,
    task_id      integer NOT NULL,
    payload      json NOT NULL DEFAULT '{}',
    priority     smallint NOT NULL DEFAULT 0,
    run_at       timestamptz NOT NULL DEFAULT now(),
    attempts     smallint NOT NULL DEFAULT 0,
    max_attempts smallint NOT NULL DEFAULT 25,
    last_error   text,
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now(),
    key          text UNIQUE,
    locked_at    timestamptz,
    locked_by    text,
    revision     integer NOT NULL DEFAULT 0,
    flags        jsonb,
    is_available boolean GENERATED ALWAYS AS (locked_at IS NULL AND attempts < max_attempts)
                 STORED NOT NULL
);
ALTER TABLE graphile_worker._private_jobs ENABLE ROW LEVEL SECURITY;
