-- From today's version to the made-up next one; see changes.pl.

-- what follows may need functions that an older library does not have
SELECT outbox._require_library();

-- a function that is dropped loses what was granted on it, and a new one is granted
-- to no role, so the granted privileges are recorded first, and granted again at the end
SELECT outbox._note_rights();

ALTER TABLE outbox.topics
    ADD COLUMN note text DEFAULT '' CONSTRAINT outbox_topics_note CHECK (char_length(note) <= 1000);
COMMENT ON COLUMN outbox.topics.note IS 'Whatever is to be known of the topic.';
CREATE INDEX topics_topic_idx ON outbox.topics (topic);
ALTER TABLE outbox.topics SET (fillfactor = 80);

DROP FUNCTION outbox.cancel(uuid);

CREATE FUNCTION outbox._cancel(message_id uuid)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_cancel_message';

COMMENT ON FUNCTION outbox._cancel(uuid) IS 'What cancel does.';

CREATE FUNCTION outbox.cancel(message_id uuid, reason text DEFAULT NULL)
RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT outbox._cancel(message_id) $$;

COMMENT ON FUNCTION outbox.cancel(uuid, text) IS
    'Cancels a waiting message; false if it is not waiting.';

CREATE OR REPLACE FUNCTION outbox.reason_name(reason integer)
RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE reason
    WHEN 0 THEN 'none'
    WHEN 1 THEN 'transport not ready'
    WHEN 2 THEN 'transport error'
    WHEN 3 THEN 'serialization'
    WHEN 4 THEN 'validation'
    WHEN 5 THEN 'max attempts exceeded'
    WHEN 6 THEN 'lease or message expired'
    WHEN 7 THEN 'event storage'
    WHEN 8 THEN 'throttled'
    WHEN 9 THEN 'cancelled'
    WHEN 10 THEN 'made up'
    WHEN 99 THEN 'unknown'
END;

CREATE OR REPLACE VIEW outbox.stores AS
SELECT s.store,
       coalesce(d.rule = 'store:' || s.store, false) AS is_default,
       (SELECT count(*) FROM outbox.routes r WHERE r.store = s.store) AS routes,
       s.created_at,
       CASE WHEN has_table_privilege('outbox.store_connections'::regclass, 'SELECT')
            THEN s.connection END AS connection,
       now() - s.created_at AS age
  FROM outbox.store_connections s
  LEFT JOIN outbox.default_route d ON true;

COMMENT ON COLUMN outbox.stores.age IS 'For how long it has been known.';

CREATE TABLE outbox.notes (
    topic text NOT NULL,
    note  text NOT NULL,
    CONSTRAINT notes_pkey PRIMARY KEY (topic)
);

COMMENT ON TABLE outbox.notes IS 'Notes.';
COMMENT ON COLUMN outbox.notes.topic IS 'The topic.';
COMMENT ON COLUMN outbox.notes.note IS 'The note.';

SELECT pg_catalog.pg_extension_config_dump('outbox.notes', '');

REVOKE ALL ON outbox.notes FROM PUBLIC;
SELECT outbox._close_row_types();
REVOKE ALL ON FUNCTION outbox._cancel(uuid), outbox.cancel(uuid, text) FROM PUBLIC;

SELECT outbox._grant_again();
