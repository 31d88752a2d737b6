-- 11_shared_outbox.sql: one outbox, many applications and tenants
--
-- SHARED-nn, sections 3 and 4 of the contract: storage, namespace, tenant, dedupe,
-- attempts, dead, lease guard, jitter. The races for a dedupe key are in
-- 08_concurrency.sql.

BEGIN;
\ir include/tools.sql
SELECT plan(27);

\set tenant '11111111-aaaa-4111-8111-11111111111b'

-- storage

SELECT is(
    ARRAY(SELECT format('%s %s', a.attname, format_type(a.atttypid, -1)) FROM pg_attribute a
           WHERE a.attrelid = 'outbox.messages'::regclass
             AND a.attname IN ('message_id', 'namespace', 'topic', 'tenant_id', 'dedupe_key', 'payload', 'status', 'attempts',
                               'next_attempt_at', 'owner_token', 'locked_until', 'last_error', 'created_at', 'updated_at')
           ORDER BY a.attname),
    ARRAY['attempts integer', 'created_at timestamp with time zone', 'dedupe_key text', 'last_error text',
          'locked_until timestamp with time zone', 'message_id uuid', 'namespace text', 'next_attempt_at timestamp with time zone',
          'owner_token uuid', 'payload text', 'status smallint', 'tenant_id uuid', 'topic text', 'updated_at timestamp with time zone'],
    'SHARED-06: outbox.messages has what is to be known of a message, its state, its lease and its errors');

-- What the clock of a message says after each of its changes, in their order.
CREATE FUNCTION tap.changes(topic text)
RETURNS timestamptz[]
LANGUAGE plpgsql
AS $$
DECLARE
    change text;
    times  timestamptz[];
BEGIN
    PERFORM outbox.enqueue(topic, 'p');
    FOREACH change IN ARRAY ARRAY[NULL, 'claim', 'nack', 'claim', 'renew', 'release', 'claim', 'reap', 'claim', 'ack'] LOOP
        IF change = 'claim' THEN
            PERFORM outbox.claim(tap.alice(), topics => ARRAY[topic]);
        ELSIF change = 'nack' THEN
            PERFORM outbox.nack(tap.alice(), ARRAY(SELECT id FROM outbox.queue q WHERE q.topic = changes.topic), delay => '0');
        ELSIF change = 'reap' THEN
            UPDATE outbox.queue q SET locked_until = now() - interval '1 s' WHERE q.topic = changes.topic;
            PERFORM outbox.reap();
        ELSIF change IS NOT NULL THEN
            EXECUTE format('SELECT outbox.%I(tap.alice(), ARRAY(SELECT id FROM outbox.queue WHERE topic = %L))', change, topic);
        END IF;
        times := times || (SELECT m.updated_at FROM outbox.messages m WHERE m.topic = changes.topic);
    END LOOP;
    RETURN times;
END
$$;
SELECT tap.changes('so-changes') AS changes, clock_timestamp() AS after \gset
SELECT is(
    (SELECT ROW(count(*), count(DISTINCT t), bool_and(t BETWEEN now() AND :'after'), array_agg(t ORDER BY n) = array_agg(t ORDER BY t))::text
       FROM unnest(:'changes'::timestamptz[]) WITH ORDINALITY u (t, n)),
    '(10,10,t,t)',
    'SHARED-07: updated_at moves with every change of a message: claim, nack, renew, release, reap, ack');

SELECT tap.lease('so-ended', VARIADIC ARRAY(SELECT i::text FROM generate_series(1, 5000) i)) AS leased \gset
UPDATE outbox.queue SET locked_until = now() - interval '1 s' WHERE id = (:'leased'::bigint[])[77];
SELECT outbox.reap(1) AS reaped, outbox.reap(1) AS again \gset
SELECT is(
    ARRAY[:'reaped', :'again'] || ARRAY(SELECT payload FROM outbox.messages WHERE topic = 'so-ended' AND status = 0), '{1,0,77}',
    'SHARED-09: reap finds the one lease that has ended among thousands that have not');

-- namespace

SELECT outbox.enqueue('so-ns', 'one', namespace => 'n1') AS e1,
       outbox.enqueue('so-ns', 'two', namespace => 'n2') AS e2 \gset
SELECT is(
    ARRAY[(SELECT string_agg(payload, '+') FROM outbox.claim(tap.alice(), namespace => 'n1')),
          (SELECT string_agg(payload, '+') FROM outbox.claim(tap.alice(), namespace => 'N1')),
          (SELECT string_agg(payload, '+') FROM outbox.claim(tap.bob(), topics => '{so-ns}'))],
    '{one,NULL,two}',
    'SHARED-05: namespace, a claim in one gets no message of another; names are case-sensitive');

SELECT outbox.pause_topic('so-ns-pause', 'n1'),
       outbox.enqueue('so-ns-pause', 'one', namespace => 'n1') AS e1,
       outbox.enqueue('so-ns-pause', 'two', namespace => 'n2') AS e2 \gset
SELECT is(
    ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{so-ns-pause}')), '{two}',
    'SHARED-05: namespace, the policy of a topic holds in its own only');

SELECT is(
    ARRAY[(outbox.try_enqueue('so-key', 'p', dedupe_key => 'k')).enqueued,
          (outbox.try_enqueue('so-key', 'p', dedupe_key => 'k', namespace => 'n1')).enqueued,
          (outbox.try_enqueue('so-key-2', 'p', dedupe_key => 'k')).enqueued,
          (outbox.try_enqueue('so-key', 'p', dedupe_key => 'K')).enqueued,
          (outbox.try_enqueue('so-key', 'p', dedupe_key => 'k')).enqueued],
    '{t,t,t,t,f}',
    'SHARED-10: dedupe, a key is one per namespace and topic, and case-sensitive');

-- tenant

SELECT outbox.enqueue('so-tenant', 'mine', tenant_id => :'tenant') AS e1,
       outbox.enqueue('so-tenant', 'theirs', tenant_id => tap.bob()) AS e2,
       outbox.enqueue('so-tenant', 'nobody''s') AS e3 \gset
SELECT is(
    ARRAY[(SELECT string_agg(payload, '+') FROM outbox.claim(tap.alice(), topics => '{so-tenant}', tenant_id => :'tenant')),
          (SELECT string_agg(payload, '+') FROM outbox.claim(tap.alice(), topics => '{so-tenant}'))],
    '{mine,theirs+nobody''s}',
    'SHARED-11: tenant, a claim for one gets its messages only; a claim for none gets all');

SELECT is(
    ARRAY(SELECT (outbox.try_enqueue('so-prefix', 'p', tenant_id => :'tenant', dedupe_key => k)).enqueued
            FROM unnest(ARRAY['11111111-aaaa-4111-8111-11111111111b/1', '11111111aaaa4111811111111111111b/1',
                              '11111111AAAA4111811111111111111B/2', '11111111-AAAA-4111-8111-11111111111B/']) k),
    '{t,t,t,t}',
    'SHARED-13: tenant prefix, 32 digits with or without hyphens, in either case, then a slash');

SELECT tap.sqlstates(VARIADIC ARRAY(
    SELECT format('SELECT outbox.enqueue(%L, %L, tenant_id => %L, dedupe_key => %L)', 'so-refused', 'p', :'tenant', k)
      FROM unnest(ARRAY['free', '/', '11111111-aaaa-4111-8111-11111111111b', '11111111-aaaa-4111-8111-11111111111c/1',
                        '11111111-aaaa4111811111111111111b/1', ' 11111111aaaa4111811111111111111b/1']) k)) AS states \gset
SELECT is(
    :'states'::text[] || (SELECT count(*)::text FROM outbox.messages WHERE topic = 'so-refused'),
    '{22023,22023,22023,22023,22023,22023,0}',
    'SHARED-13: tenant prefix, a key with another one is refused with 22023, and nothing is inserted');

SELECT outbox.configure_topic('so-free', check_dedupe_tenant => false) \gset
SELECT (outbox.try_enqueue('so-free', 'p', tenant_id => :'tenant', dedupe_key => 'free')).enqueued AS by_policy,
       outbox.reset_topic('so-free') \gset
SET LOCAL outbox.check_dedupe_tenant = off;
SELECT (outbox.try_enqueue('so-free', 'p', tenant_id => :'tenant', dedupe_key => 'too')).enqueued AS by_setting \gset
RESET outbox.check_dedupe_tenant;
SELECT is(
    ARRAY[:'by_policy', :'by_setting']
        || tap.sqlstates($$SELECT outbox.enqueue('so-free', 'p', tenant_id => tap.bob(), dedupe_key => 'not')$$,
                         $$SELECT outbox.enqueue('so-free', 'p', dedupe_key => 'no tenant')$$),
    '{t,t,22023,00000}',
    'SHARED-13: tenant prefix, the topic''s policy or the setting turns the check off; without tenant there is none');

SELECT is(
    ARRAY(SELECT (outbox.try_enqueue('so-format', 'p', dedupe_key => k)).enqueued
            FROM unnest(ARRAY['11111111-aaaa-4111-8111-11111111111b/turn/request', 'order 7', '/', E'\t', repeat('k', 255), 'order 7']) k),
    '{t,t,t,t,t,f}',
    'SHARED-12: without a tenant a key may have any form');

-- dedupe

SELECT outbox.enqueue('so-lost', 'kept', dedupe_key => 'k1') \gset
SAVEPOINT undo;
SELECT outbox.enqueue('so-lost', 'undone', dedupe_key => 'k2') \gset
ROLLBACK TO undo;
SELECT is(
    ARRAY[(outbox.try_enqueue('so-lost', 'again', dedupe_key => 'k1')).enqueued,
          (outbox.try_enqueue('so-lost', 'again', dedupe_key => 'k2')).enqueued],
    '{f,t}',
    'SHARED-17: dedupe, what is rolled back leaves its key free');

SELECT results_eq(
    $$SELECT ordinal, enqueued
        FROM outbox.enqueue_batch('[{"topic": "so-batch", "payload": "1", "dedupe_key": "k"},
                                    {"topic": "so-batch", "payload": "2", "dedupe_key": "k"},
                                    {"topic": "so-batch", "payload": "3"},
                                    {"topic": "so-batch", "payload": "4", "dedupe_key": ""}]')
       ORDER BY ordinal$$,
    $$VALUES (1, true), (2, false), (3, true), (4, true)$$,
    'SHARED-16: dedupe, within a batch the first one wins, and no key is no duplicate');

SELECT outbox.enqueue('so-kept', 'first', dedupe_key => 'k') AS first \gset
SELECT outbox.ack(tap.alice(), array_agg(id)) FROM outbox.claim(tap.alice(), topics => '{so-kept}') \gset
SELECT outbox.enqueue('so-kept', 'while kept', dedupe_key => 'k') = :'first' AS taken,
       outbox.cleanup(retention => '0') \gset
SELECT is(
    ARRAY[:'taken', (outbox.try_enqueue('so-kept', 'after', dedupe_key => 'k')).enqueued::text], '{t,true}',
    'section 3: dedupe, retention frees the key when it removes the message');

SELECT outbox.enqueue('so-requeued', 'p', dedupe_key => 'k') AS first \gset
SELECT array_agg(id) AS leased FROM outbox.claim(tap.alice(), topics => '{so-requeued}') \gset
SELECT outbox.fail(tap.alice(), :'leased'), outbox.requeue(:'leased') \gset
SELECT is(
    outbox.enqueue('so-requeued', 'p', dedupe_key => 'k'), :'first',
    'section 3: dedupe, a message that is brought back still has its key');

-- attempts

SELECT tap.lease('so-attempts', 'p') AS leased \gset
SELECT outbox.nack(tap.alice(), :'leased', delay => '0') \gset
SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{so-attempts}') \gset
SELECT tap.end_leases('so-attempts') \gset
SELECT results_eq(
    $$SELECT attempts, retry_count FROM outbox.claim(tap.bob(), topics => '{so-attempts}')$$,
    $$VALUES (3, 1)$$,
    'SHARED-31, SHARED-32: attempts, every hand-out counts, however the one before has ended');

SELECT tap.lease('so-release', 'p') AS leased \gset
SELECT outbox.release(tap.alice(), :'leased') AS released,
       (SELECT count(*) FROM outbox.claim(tap.bob(), topics => '{so-release}', max_attempts => 1)) AS again \gset
SELECT outbox.release(tap.bob()) AS all_of_bobs \gset
SELECT is(
    ARRAY[:'released', :'again', (:all_of_bobs >= 1)::text]
        || ARRAY(SELECT concat_ws(' ', status, retry_count, next_attempt_at <= clock_timestamp())
                   FROM outbox.messages WHERE topic = 'so-release'),
    '{1,1,true,0 0 t}',
    'section 4: attempts, release gives a lease back at once, and that attempt is not held against the message');

CREATE FUNCTION tap.poison(topic text)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    handed_out integer := 0;
BEGIN
    PERFORM outbox.enqueue(topic, 'poison');
    FOR round IN 1 .. 20 LOOP
        handed_out := handed_out + (SELECT count(*) FROM outbox.claim(tap.alice(), topics => ARRAY[topic]));
        PERFORM tap.end_leases(topic);
    END LOOP;
    RETURN handed_out;
END
$$;
SELECT tap.poison('so-poison') AS handed_out \gset
SELECT is(
    ROW(:handed_out, status, attempts, failure_reason)::text, '(10,3,10,5)',
    'SHARED-31: attempts, a message that ends every worker is dead after outbox.max_attempts, 10')
  FROM outbox.messages WHERE topic = 'so-poison';

-- dead

SELECT tap.lease('so-dead', 'p') AS leased \gset
SELECT outbox.fail(tap.alice(), :'leased', 'no such customer', 4) \gset
SELECT results_eq(
    $$SELECT payload, last_error, failure_reason::integer, attempts, failed_by
        FROM outbox.dead_letters WHERE topic = 'so-dead'$$,
    $$VALUES ('p', 'no such customer', 4, 1, tap.alice())$$,
    'SHARED-03: dead, a failed message stays in dead_letters with its error, reason and owner');

SELECT outbox.fail(tap.alice(), tap.lease('so-told', 'p', 'q'), 'broken', 2) \gset
SELECT is(
    (SELECT ROW(count, last_error)::text FROM outbox.failures WHERE topic = 'so-told')
        || (SELECT dead FROM outbox.topic_stats WHERE topic = 'so-told')
        || (SELECT status = (SELECT count(*)::text FROM outbox.dead) FROM outbox.status() WHERE component = 'dead messages'),
    '(2,broken)2true',
    'SHARED-03: views and status() count the dead, for monitoring');

SELECT outbox.enqueue_many('so-redrive', '{1,2,3}') AS e1,
       outbox.enqueue_many('so-redrive', '{4}', 'so-ns') AS e2,
       outbox.enqueue_many('so-redrive-2', '{5}', 'so-ns') AS e3 \gset
SELECT outbox.fail(tap.alice(), array_agg(id)) FROM outbox.claim(tap.alice(), topics => '{so-redrive,so-redrive-2}') \gset
SELECT outbox.redrive('so-redrive-2', 'so-ns') AS of_both, outbox.redrive('so-redrive', 'default', 2) AS two,
       outbox.redrive(namespace => 'so-ns') AS of_namespace \gset
SELECT is(
    ARRAY[:'of_both', :'two', :'of_namespace']
        || ARRAY(SELECT payload FROM outbox.claim(tap.bob(), topics => '{so-redrive,so-redrive-2}') ORDER BY payload),
    '{1,2,1,1,2,4,5}',
    'section 4: dead, redrive brings back those of a namespace or topic, the oldest first, up to its limit');

SELECT outbox.enqueue_many('so-dead-head', '{1,2}', stream_id => tap.bob()) \gset
SELECT array_agg(id) AS leased FROM outbox.claim(tap.alice(), topics => '{so-dead-head}', batch_size => 1) \gset
SELECT outbox.fail(tap.alice(), :'leased') \gset
SELECT is(
    ARRAY(SELECT payload FROM outbox.claim(tap.bob(), topics => '{so-dead-head}')), '{2}',
    'section 4: dead, a failed message no longer blocks its stream');

-- lease guard

SELECT tap.lease('so-guard', 'p') AS leased \gset
SELECT tap.end_leases('so-guard') \gset
SELECT count(*) FROM outbox.claim(tap.bob(), topics => '{so-guard}') \gset
SELECT is(
    ARRAY[outbox.ack(tap.alice(), :'leased'), outbox.nack(tap.alice(), :'leased'), outbox.fail(tap.alice(), :'leased'),
          outbox.renew(tap.alice(), :'leased'), outbox.release(tap.alice(), :'leased'), outbox.ack(tap.bob(), :'leased')],
    '{0,0,0,0,0,1}',
    'SHARED-24: lease guard, once another has taken the message the former owner can do nothing to it');

SELECT tap.lease('so-fence', 'p') AS leased \gset
SELECT tap.end_leases('so-fence') \gset
SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{so-fence}') \gset
SELECT is(
    ARRAY[outbox.nack(tap.alice(), :'leased', attempts => '{1}'), outbox.fail(tap.alice(), :'leased', attempts => '{1}'),
          outbox.renew(tap.alice(), :'leased', attempts => '{1}'), outbox.ack(tap.alice(), :'leased', '{1}'),
          outbox.ack(tap.alice(), :'leased', '{2}')],
    '{0,0,0,0,1}',
    'SHARED-24: lease guard, a stale attempt is fenced out though it has the owner''s token');

SELECT tap.lease('so-renew', 'p') AS leased \gset
SELECT clock_timestamp() AS before, outbox.renew(tap.alice(), :'leased', 3600) AS renewed \gset
SELECT is(
    ROW(:renewed, attempts, locked_until BETWEEN :'before'::timestamptz + interval '1 h'
                                             AND clock_timestamp() + interval '1 h')::text,
    '(1,1,t)',
    'section 4: lease guard, renew lets the lease last lease_seconds from now')
  FROM outbox.messages WHERE topic = 'so-renew';

-- jitter

SELECT tap.lease('so-jitter', VARIADIC ARRAY(SELECT i::text FROM generate_series(1, 200) i)) AS leased \gset
UPDATE outbox.queue SET retry_count = 3 WHERE topic = 'so-jitter';
SELECT outbox.nack(tap.alice(), :'leased') \gset
SELECT is(
    ROW(count(*), min(delay) BETWEEN '4 s' AND '5 s', max(delay) BETWEEN '7 s' AND '8 s',
        count(*) FILTER (WHERE delay < '6 s') BETWEEN 50 AND 150)::text,
    '(200,t,t,t)',
    'SHARED-36: jitter bounds, 200 third retries spread evenly over 4 to 8 s')
  FROM (SELECT next_attempt_at - updated_at AS delay
          FROM outbox.messages WHERE topic = 'so-jitter') d;

SELECT outbox.configure_topic('so-exact', backoff_jitter => false) \gset
SELECT tap.lease('so-exact', VARIADIC ARRAY(SELECT i::text FROM generate_series(1, 20) i)) AS leased \gset
SELECT outbox.nack(tap.alice(), :'leased') \gset
SELECT is(
    ARRAY(SELECT DISTINCT next_attempt_at - updated_at FROM outbox.messages WHERE topic = 'so-exact'),
    '{1 s}'::interval[],
    'SHARED-36: jitter bounds, without jitter every delay is exact');

SELECT * FROM finish();
ROLLBACK;
