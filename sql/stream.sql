-- streams: strictly in order
\set a '''aaaaaaaa-0000-4000-8000-000000000001'''
\set b '''bbbbbbbb-0000-4000-8000-000000000002'''
\set s1 '''51515151-0000-4000-8000-000000000001'''
\set s2 '''52525252-0000-4000-8000-000000000002'''
SET outbox.backoff_jitter = off;
-- no lease ends except those that this test ends
DO $$ BEGIN PERFORM outbox.renew(owner_token, array_agg(id), 86400) FROM outbox.leases GROUP BY owner_token; END $$;
SET outbox.lease_seconds = '1 h';

DELETE FROM outbox.queue WHERE stream_id IS NOT NULL;
CREATE VIEW line AS
SELECT payload, status, left(owner_token::text, 1) AS owner, attempts, waived
  FROM outbox.queue WHERE stream_id IS NOT NULL ORDER BY stream_id, stream_seq;

-- one at a time if taken one at a time; others get nothing, the owner goes on
SELECT outbox.enqueue('sm', i::text, stream_id => :s1) IS NOT NULL AS ok FROM generate_series(1, 4) i;
SELECT payload FROM outbox.claim(:a, batch_size => 1, topics => '{sm}');
SELECT * FROM line;
SELECT payload FROM outbox.claim(:b, topics => '{sm}');
SELECT payload FROM outbox.claim(:a, batch_size => 1, topics => '{sm}');
SELECT * FROM line;
-- what comes in behind waits, too
SELECT outbox.enqueue('sm', '5', stream_id => :s1) IS NOT NULL AS ok;
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.leases WHERE topic = 'sm';
SELECT * FROM line;
SELECT payload FROM outbox.claim(:b, batch_size => 1, topics => '{sm}');
SELECT payload FROM outbox.claim(:a, topics => '{sm}');
SELECT outbox.ack(:b, array_agg(id)) FROM outbox.leases WHERE topic = 'sm';
-- several at once, in order
SELECT payload FROM outbox.claim(:a, topics => '{sm}');
-- a message enqueued while all before it are leased is for their owner
SELECT outbox.enqueue('sm', '6', stream_id => :s1) IS NOT NULL AS ok;
SELECT * FROM line;
SELECT payload FROM outbox.claim(:b, topics => '{sm}');
SELECT payload FROM outbox.claim(:a, topics => '{sm}');
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.leases WHERE topic = 'sm';

-- a message that waits for its retry blocks, and what was leased behind it is taken back
SELECT outbox.enqueue_many('sm', ARRAY['1', '2', '3', '4'], stream_id => :s1) IS NOT NULL AS ok;
SELECT array_agg(id) AS ids FROM outbox.claim(:a, batch_size => 3, topics => '{sm}') \gset
SELECT outbox.nack(:a, (:'ids'::bigint[])[1:1], 'not now', '1 h');
SELECT * FROM line;
SELECT outbox.ack(:a, (:'ids'::bigint[])[2:3]) AS no_longer_leased;
SELECT payload FROM outbox.claim(:b, topics => '{sm}');
SELECT payload FROM outbox.claim(:a, topics => '{sm}');
UPDATE outbox.queue SET next_attempt_at = now() WHERE id = (:'ids'::bigint[])[1];
SELECT payload, attempts FROM outbox.claim(:b, topics => '{sm}');
-- the attempt that was cut short does not count
SELECT * FROM line;
-- nack in the middle: what is before it stays leased
SELECT outbox.nack(:b, (:'ids'::bigint[])[2:2], 'not now', '0');
SELECT * FROM line;
SELECT payload FROM outbox.claim(:a, topics => '{sm}');
SELECT outbox.ack(:b, (:'ids'::bigint[])[1:1]);
SELECT * FROM line;
SELECT payload FROM outbox.claim(:a, topics => '{sm}', batch_size => 1);
-- a dead message no longer blocks
SELECT outbox.fail(:a, (:'ids'::bigint[])[2:2]);
SELECT payload FROM outbox.claim(:b, topics => '{sm}', batch_size => 1);
-- brought back, it is the last one
SELECT outbox.requeue((:'ids'::bigint[])[2:2]);
SELECT * FROM line;
SELECT outbox.ack(:b, array_agg(id)) FROM outbox.leases WHERE topic = 'sm';
SELECT payload FROM outbox.claim(:b, topics => '{sm}');
-- giving back the first gives back the rest
SELECT outbox.release(:b, ARRAY[min(id)]) FROM (SELECT id FROM outbox.queue WHERE topic = 'sm' ORDER BY stream_seq LIMIT 1) s;
SELECT * FROM line;
SELECT payload FROM outbox.claim(:a, topics => '{sm}', max_attempts => 3);
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.leases WHERE topic = 'sm';

-- a lease that has ended: a claim that takes the first takes the rest, or frees it
SELECT outbox.enqueue_many('sm', ARRAY['1', '2', '3'], stream_id => :s1) IS NOT NULL AS ok;
SELECT payload FROM outbox.claim(:a, 1, 1, topics => '{sm}');
SELECT payload FROM outbox.claim(:a, 100, 1, topics => '{sm}');
SELECT payload, attempts FROM outbox.claim(:b, 100, 1, topics => '{sm}', wait_ms => 3000);
SELECT * FROM line;
SELECT outbox.ack(:a, array_agg(id)) AS lost FROM outbox.queue WHERE payload = '2' AND topic = 'sm';
SELECT payload, attempts FROM outbox.claim(:b, topics => '{sm}');
SELECT outbox.ack(:b, array_agg(id)) FROM outbox.leases WHERE topic = 'sm';
-- and by reap
SELECT outbox.enqueue_many('sm', ARRAY['1', '2', '3'], stream_id => :s1) IS NOT NULL AS ok;
SELECT payload FROM outbox.claim(:a, 1, 1, topics => '{sm}');
SELECT payload FROM outbox.claim(:a, 100, 1, topics => '{sm}');
DO $$ BEGIN WHILE outbox.reap() = 0 LOOP PERFORM pg_sleep(0.01); END LOOP; END $$;
SELECT * FROM line;
SELECT payload FROM outbox.claim(:b, topics => '{sm}');
SELECT outbox.ack(:b, array_agg(id)) FROM outbox.leases WHERE topic = 'sm';

-- a stream has several topics; what is not wanted blocks all the same
SELECT outbox.enqueue('sm.x', '1', stream_id => :s1) IS NOT NULL AS ok;
SELECT outbox.enqueue('sm.y', '2', stream_id => :s1) IS NOT NULL AS ok;
SELECT outbox.enqueue('sm.x', '3', stream_id => :s1, namespace => 'other') IS NOT NULL AS ok;
SELECT payload FROM outbox.claim(:a, topics => '{sm.y}');
SELECT payload FROM outbox.claim(:a, topics => '{sm.x}');
SELECT * FROM line;
SELECT payload FROM outbox.claim(:b, topics => '{sm.y}');
SELECT payload FROM outbox.claim(:a, topics => '{sm.y}');
SELECT payload FROM outbox.claim(:a, namespace => 'other');
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.leases WHERE stream_id = :s1;

-- not due blocks, and so does paused
SELECT outbox.enqueue('sm', 'later', stream_id => :s1, due_time => 'infinity') IS NOT NULL AS ok;
SELECT outbox.enqueue('sm', 'behind', stream_id => :s1) IS NOT NULL AS ok;
SELECT payload FROM outbox.claim(:a, topics => '{sm}');
-- unless it expires
UPDATE outbox.queue SET expires_at = now() WHERE payload = 'later' AND topic = 'sm';
SELECT outbox.reap();
SELECT payload FROM outbox.claim(:a, topics => '{sm}');
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.leases WHERE stream_id = :s1;

-- two streams do not know of each other; the oldest first
SELECT outbox.enqueue('sm', 'a1', stream_id => :s1), outbox.enqueue('sm', 'b1', stream_id => :s2),
       outbox.enqueue('sm', 'n1'), outbox.enqueue('sm', 'a2', stream_id => :s1), outbox.enqueue('sm', 'b2', stream_id => :s2) IS NOT NULL AS ok \gset x_
SELECT string_agg(payload, ' ') FROM outbox.claim(:a, batch_size => 4, topics => '{sm}');
SELECT string_agg(payload, ' ') FROM outbox.claim(:b, topics => '{sm}');
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.leases WHERE topic = 'sm';
SELECT string_agg(payload, ' ') FROM outbox.claim(:b, topics => '{sm}');
SELECT outbox.ack(:b, array_agg(id)) FROM outbox.leases WHERE topic = 'sm';

-- within one transaction
BEGIN;
SELECT outbox.enqueue('sm', '1', stream_id => :s1) IS NOT NULL AS ok;
SAVEPOINT s;
SELECT outbox.enqueue('sm', 'undone', stream_id => :s1) IS NOT NULL AS ok;
ROLLBACK TO s;
SELECT outbox.enqueue('sm', '2', stream_id => :s1) IS NOT NULL AS ok;
SELECT payload FROM outbox.claim(:a, batch_size => 1, topics => '{sm}');
SAVEPOINT s;
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.leases WHERE topic = 'sm';
SELECT payload FROM outbox.claim(:b, topics => '{sm}');
ROLLBACK TO s;
SELECT payload FROM outbox.claim(:b, topics => '{sm}');
SELECT payload FROM outbox.claim(:a, topics => '{sm}');
ROLLBACK;
SELECT count(*) FROM outbox.queue WHERE stream_id IS NOT NULL;

-- a batch: streams by id, messages in the order given
SELECT bool_and(enqueued) AS ok FROM outbox.enqueue_batch((
    SELECT jsonb_agg(jsonb_build_object('topic', 'sm.batch', 'payload', i::text,
               'stream_id', ('00000000-0000-4000-8000-00000000000' || i % 3)::uuid) ORDER BY i)
      FROM generate_series(1, 30) i));
SELECT bool_and(payload::int > coalesce(before, 0)) AS in_order, count(*)
  FROM (SELECT payload, lag(payload::int) OVER (PARTITION BY stream_id ORDER BY stream_seq) AS before
          FROM outbox.queue WHERE topic = 'sm.batch') s;
SELECT string_agg(payload, ' ') FROM outbox.claim(:a, batch_size => 12, topics => '{sm.batch}');
SELECT h.stream_id, m.payload, h.status FROM outbox.stream_heads h JOIN outbox.messages m USING (id) ORDER BY 1;
SELECT outbox.ack(:a, array_agg(id)) FROM outbox.leases WHERE topic = 'sm.batch';
SELECT string_agg(payload, ' ') FROM outbox.claim(:b, topics => '{sm.batch}');
SELECT outbox.ack(:b, array_agg(id)) FROM outbox.leases WHERE topic = 'sm.batch';
DROP VIEW line;
