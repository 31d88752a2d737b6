# What is different in the install script of the made-up next version: what stands
# there once now, and what stands there then. upgrade.sql makes the same of a
# database that has today's.
(
    # a column at the end of a table, with a check and a default
    [   "priority BETWEEN -2 AND 2),\n    CONSTRAINT topics_pkey",
        "priority BETWEEN -2 AND 2),\n    note                text     DEFAULT '' CONSTRAINT outbox_topics_note CHECK (char_length(note) <= 1000),\n    CONSTRAINT topics_pkey"
    ],
    [   "COMMENT ON COLUMN outbox.topics.priority IS",
        "COMMENT ON COLUMN outbox.topics.note IS 'Whatever is to be known of the topic.';\nCOMMENT ON COLUMN outbox.topics.priority IS"
    ],

    # an index, and another fill factor
    [   "CREATE TRIGGER outbox_topics_changed",
        "CREATE INDEX topics_topic_idx ON outbox.topics (topic);\nALTER TABLE outbox.topics SET (fillfactor = 80);\n\nCREATE TRIGGER outbox_topics_changed"
    ],

    # a function with an argument more
    [   "CREATE FUNCTION outbox.cancel(message_id uuid)\nRETURNS boolean\nLANGUAGE c VOLATILE PARALLEL UNSAFE\nAS 'MODULE_PATHNAME', 'outbox_cancel_message';",
        "CREATE FUNCTION outbox._cancel(message_id uuid)\nRETURNS boolean\nLANGUAGE c VOLATILE PARALLEL UNSAFE\nAS 'MODULE_PATHNAME', 'outbox_cancel_message';\n\nCOMMENT ON FUNCTION outbox._cancel(uuid) IS 'What cancel does.';\n\nCREATE FUNCTION outbox.cancel(message_id uuid, reason text DEFAULT NULL)\nRETURNS boolean\nLANGUAGE sql VOLATILE SECURITY DEFINER\nSET search_path = pg_catalog, pg_temp\nAS \$\$ SELECT outbox._cancel(message_id) \$\$;"
    ],
    [ 'COMMENT ON FUNCTION outbox.cancel(uuid) IS', 'COMMENT ON FUNCTION outbox.cancel(uuid, text) IS' ],

    # another body
    [ "    WHEN 9 THEN 'cancelled'\n    WHEN 99", "    WHEN 9 THEN 'cancelled'\n    WHEN 10 THEN 'made up'\n    WHEN 99" ],

    # a view with a column more
    [   "         THEN s.connection END AS connection\n  FROM outbox.store_connections s",
        "         THEN s.connection END AS connection,\n       now() - s.created_at AS age\n  FROM outbox.store_connections s"
    ],
    [   'COMMENT ON COLUMN outbox.stores.store IS',
        "COMMENT ON COLUMN outbox.stores.age IS 'For how long it has been known.';\nCOMMENT ON COLUMN outbox.stores.store IS"
    ],

    # a table whose content is dumped
    [   "CREATE TABLE outbox.topics (",
        "CREATE TABLE outbox.notes (\n    topic text NOT NULL,\n    note  text NOT NULL,\n    CONSTRAINT notes_pkey PRIMARY KEY (topic)\n);\n\nCOMMENT ON TABLE outbox.notes IS 'Notes.';\nCOMMENT ON COLUMN outbox.notes.topic IS 'The topic.';\nCOMMENT ON COLUMN outbox.notes.note IS 'The note.';\n\nCREATE TABLE outbox.topics ("
    ],
    [   "SELECT pg_catalog.pg_extension_config_dump('outbox.topics', '');",
        "SELECT pg_catalog.pg_extension_config_dump('outbox.topics', '');\nSELECT pg_catalog.pg_extension_config_dump('outbox.notes', '');"
    ],
);
