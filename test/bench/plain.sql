-- What enqueue is measured against: a table with the columns and the indexes
-- of outbox.queue, but nothing else. It has no checks, no triggers and full
-- pages, so that inserting costs no more than it must.
CREATE SCHEMA plain;

CREATE TABLE plain.queue (
    LIKE outbox.queue INCLUDING DEFAULTS INCLUDING INDEXES
);

ALTER TABLE plain.queue
    ALTER id ADD GENERATED ALWAYS AS IDENTITY,
    ALTER lane SET DEFAULT 1,
    ALTER next_attempt_at SET DEFAULT now(),
    ALTER updated_at SET DEFAULT now(),
    ALTER created_at SET DEFAULT now(),
    ALTER message_id SET DEFAULT gen_random_uuid();

CREATE FUNCTION plain.enqueue(topic text, payload text)
RETURNS uuid
LANGUAGE sql VOLATILE
AS $$
    INSERT INTO plain.queue (topic, payload) VALUES (topic, payload)
    RETURNING message_id
$$;

-- Ids that ascend, made beforehand, a thousand for each INSERT .. SELECT: so
-- that it needs no time for them, and has no more work with its indexes.
CREATE TABLE plain.ids AS
SELECT i AS number, lpad(to_hex(i), 32, '0')::uuid AS message_id
  FROM generate_series(1, 100000) i;

CREATE INDEX ids_number_idx ON plain.ids (number);

CREATE SEQUENCE plain.thousands;

ANALYZE plain.ids;
