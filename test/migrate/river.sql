-- river.sql - the jobs of River 0.43 as its migrations lay them out, as far as
-- migrate/river.sql reads them
CREATE TYPE public.river_job_state AS ENUM
    ('available', 'cancelled', 'completed', 'discarded', 'pending', 'retryable', 'running',
     'scheduled');
CREATE TABLE public.river_job (
    id            bigserial PRIMARY KEY,
    state         public.river_job_state NOT NULL DEFAULT 'available',
    attempt       smallint NOT NULL DEFAULT 0,
    max_attempts  smallint NOT NULL DEFAULT 25,
    attempted_at  timestamptz,
    created_at    timestamptz NOT NULL DEFAULT now(),
    finalized_at  timestamptz,
    scheduled_at  timestamptz NOT NULL DEFAULT now(),
    priority      smallint NOT NULL DEFAULT 1 CHECK (priority BETWEEN 1 AND 4),
    args          jsonb NOT NULL,
    attempted_by  text[],
    errors        jsonb[],
    kind          text NOT NULL,
    metadata      jsonb NOT NULL DEFAULT '{}',
    queue         text NOT NULL DEFAULT 'default',
    tags          varchar(255)[] NOT NULL DEFAULT '{}',
    unique_key    bytea,
    unique_states bit(8),
    CHECK ((finalized_at IS NOT NULL) = (state IN ('cancelled', 'completed', 'discarded')))
);
CREATE INDEX ON public.river_job (state, queue, priority, scheduled_at, id);
