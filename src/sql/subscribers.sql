-- subscribers.sql: the tables of subscriptions and publications. Serves subscriber.c
-- and publication.c, which know the columns by their numbers.

CREATE SEQUENCE outbox.subscriber_id_seq AS integer;

COMMENT ON SEQUENCE outbox.subscriber_id_seq IS 'Numbers of subscriptions.';

CREATE TABLE outbox.subscribers (
    id           integer     NOT NULL,
    namespace    text        NOT NULL,
    subscription text        NOT NULL,
    topics       text[]      NOT NULL,
    filter       jsonb,
    created_at   timestamptz NOT NULL,
    state        smallint    NOT NULL DEFAULT 0,
    drops        boolean     NOT NULL DEFAULT false,
    until        xid8,
    CONSTRAINT subscribers_pkey PRIMARY KEY (id),
    CONSTRAINT outbox_subscribers_state CHECK (state BETWEEN 0 AND 2)
);

CREATE UNIQUE INDEX subscribers_name_idx ON outbox.subscribers (namespace, subscription)
    WHERE state < 2;

COMMENT ON TABLE outbox.subscribers IS 'Subscriptions. Use the view outbox.subscriptions instead.';
COMMENT ON COLUMN outbox.subscribers.id IS
    'Identifies its deliveries; a subscription that is created again gets a new one.';
COMMENT ON COLUMN outbox.subscribers.namespace IS 'The namespace of the topics.';
COMMENT ON COLUMN outbox.subscribers.subscription IS 'Its name.';
COMMENT ON COLUMN outbox.subscribers.topics IS
    'Patterns of topics: * is one segment between dots, # any number.';
COMMENT ON COLUMN outbox.subscribers.filter IS 'What headers must contain.';
COMMENT ON COLUMN outbox.subscribers.created_at IS 'When it was created.';
COMMENT ON COLUMN outbox.subscribers.state IS
    '0 active; 1 active, and still being sent earlier publications; 2 ended, but has messages.';
COMMENT ON COLUMN outbox.subscribers.drops IS
    'For one that has ended: whether its messages are dropped.';
COMMENT ON COLUMN outbox.subscribers.until IS
    'For one that has ended: transactions before this one may still publish for it.';

CREATE TRIGGER outbox_subscribers_changed
    AFTER INSERT OR UPDATE OR DELETE ON outbox.subscribers
    FOR EACH ROW EXECUTE FUNCTION outbox._topics_changed();

CREATE TRIGGER outbox_subscribers_truncated
    AFTER TRUNCATE ON outbox.subscribers
    FOR EACH STATEMENT EXECUTE FUNCTION outbox._topics_changed();

ALTER TABLE outbox.subscribers ENABLE ALWAYS TRIGGER outbox_subscribers_changed;
ALTER TABLE outbox.subscribers ENABLE ALWAYS TRIGGER outbox_subscribers_truncated;

COMMENT ON TRIGGER outbox_subscribers_changed ON outbox.subscribers IS
    'Makes every session read the subscriptions again.';
COMMENT ON TRIGGER outbox_subscribers_truncated ON outbox.subscribers IS
    'Makes every session read the subscriptions again.';

-- Publications that are kept: for future subscriptions and for replay, or because of
-- a payload that deliveries share, a dedupe key, or pending deliveries. Partitioned
-- by day, so that they can be dropped (retention.sql).
CREATE TABLE outbox.publications (
    day            date        NOT NULL,
    seq            bigint      NOT NULL,
    published_at   timestamptz NOT NULL,
    published_id   uuid        NOT NULL,
    xid            xid8        NOT NULL,
    kept           boolean     NOT NULL,
    given          boolean     NOT NULL,
    priority       smallint,
    due_time       timestamptz,
    expires_at     timestamptz,
    tenant_id      uuid,
    stream_id      uuid,
    namespace      text        NOT NULL,
    topic          text        NOT NULL,
    correlation_id text,
    dedupe_key     text,
    subscribers    integer[]   NOT NULL,
    headers        jsonb,
    payload        text        NOT NULL
) PARTITION BY RANGE (day);

-- For publications without a partition for their day.
CREATE TABLE outbox.publications_unsorted
    PARTITION OF outbox.publications FOR VALUES FROM (MINVALUE) TO ('0001-01-01');

ALTER TABLE outbox.publications_unsorted
    ADD CONSTRAINT publications_unsorted_pkey PRIMARY KEY (seq);
CREATE INDEX publications_unsorted_published_id_idx
    ON outbox.publications_unsorted (published_id);
CREATE INDEX publications_unsorted_xid_idx ON outbox.publications_unsorted (xid);

COMMENT ON TABLE outbox.publications IS 'Publications that are kept, partitioned by day.';
COMMENT ON TABLE outbox.publications_unsorted IS
    'The partition of outbox.publications for publications without another partition.';
DO $$
DECLARE
    tab text;
    col record;
BEGIN
    FOREACH tab IN ARRAY '{publications, publications_unsorted}'::text[] LOOP
        FOR col IN
            SELECT * FROM (VALUES
                ('day', 'The day, in UTC, on which it was published; -infinity: unsorted.'),
                ('seq', 'The order of publications.'),
                ('published_at', 'When it was published.'),
                ('published_id', 'The id that publish has returned.'),
                ('xid', 'The transaction that has published it.'),
                ('kept', 'Whether future subscriptions and replay may get it.'),
                ('given', 'Whether its id was given.'),
                ('priority', 'From -2 to 2; null is 0.'),
                ('due_time', 'As passed to publish.'),
                ('expires_at', 'As passed to publish.'),
                ('tenant_id', 'The tenant that it belongs to.'),
                ('stream_id', 'The stream; each subscription has its own stream for it.'),
                ('namespace', 'The namespace; separates applications that share the database.'),
                ('topic', 'The topic.'),
                ('correlation_id', 'Identifies related messages; chosen by the publisher.'),
                ('dedupe_key', 'The dedupe key; at most one publication of a topic has it.'),
                ('subscribers', 'The subscribers at that time, to which it is delivered.'),
                ('headers', 'A JSON object that is delivered with the payload.'),
                ('payload', 'The payload, which deliveries share if it is large.')) v(name, text)
        LOOP
            EXECUTE format('COMMENT ON COLUMN outbox.%I.%I IS %L', tab, col.name, col.text);
        END LOOP;
    END LOOP;
END
$$;

-- Pending deliveries: of publications for many subscriptions, of streams in which an
-- earlier publication is pending, and to subscriptions that are still being sent
-- earlier publications.
CREATE TABLE outbox.expansions (
    seq          bigint      NOT NULL,
    published_at timestamptz NOT NULL,
    published_id uuid        NOT NULL,
    stream_id    uuid,
    subscribers  integer[]   NOT NULL,
    CONSTRAINT expansions_pkey PRIMARY KEY (seq)
) WITH (
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX expansions_stream_idx ON outbox.expansions (stream_id, seq)
    WHERE stream_id IS NOT NULL;

COMMENT ON TABLE outbox.expansions IS 'Publications with pending deliveries.';
COMMENT ON COLUMN outbox.expansions.seq IS 'The order of publications.';
COMMENT ON COLUMN outbox.expansions.published_at IS 'When it was published.';
COMMENT ON COLUMN outbox.expansions.published_id IS 'The publication.';
COMMENT ON COLUMN outbox.expansions.stream_id IS 'The stream.';
COMMENT ON COLUMN outbox.expansions.subscribers IS
    'The subscribers that it must still be delivered to.';

-- _publication_loaded()
--     BEFORE INSERT on publications. Rows of a dump contain transaction ids of
--     another server, or old ones of this server: they are treated as if the loading
--     transaction had published them.
CREATE FUNCTION outbox._publication_loaded()
RETURNS trigger
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_publication_loaded';

COMMENT ON FUNCTION outbox._publication_loaded() IS
    'Adjusts publications that are restored from a dump to this server.';

CREATE TRIGGER outbox_publication_loaded
    BEFORE INSERT ON outbox.publications
    FOR EACH ROW EXECUTE FUNCTION outbox._publication_loaded();

COMMENT ON TRIGGER outbox_publication_loaded ON outbox.publications IS
    'Adjusts publications that are restored from a dump to this server.';
