-- pgmq.sql - a queue as pgmq 1.11 lays it out, as far as migrate/pgmq.sql reads it
CREATE SCHEMA pgmq;
CREATE TABLE pgmq.q_orders (
    msg_id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    read_ct      integer     NOT NULL DEFAULT 0,
    enqueued_at  timestamptz NOT NULL DEFAULT now(),
    last_read_at timestamptz,
    vt           timestamptz NOT NULL,
    message      jsonb,
    headers      jsonb
);
CREATE INDEX ON pgmq.q_orders (vt);
