-- 24_duplicates.sql: what becomes of duplicates, and the argument priority
--
-- The last paragraph of section 13 of the contract, and what section 14 says of
-- arguments. Races are in the isolation specs duplicate_races and dedupe_time, two
-- phases and the worker in test/t/025_duplicates.pl.

BEGIN;
\ir include/tools.sql
SELECT plan(16);

-- dedupe_for

SELECT outbox.enqueue('du-for', 'first', dedupe_key => 'k', dedupe_for => '1 hour') AS first,
       outbox.configure_topic('du-for', retention => '0') \gset
SELECT outbox.ack(tap.alice(), array_agg(id)) FROM outbox.claim(tap.alice(), topics => '{du-for}') \gset
SELECT outbox.cleanup() \gset
SELECT is(
    ARRAY[(SELECT count(*) FROM outbox.messages WHERE topic = 'du-for')::text,
          (outbox.try_enqueue('du-for', 'second', dedupe_key => 'k')).outcome,
          (outbox.enqueue('du-for', 'third', dedupe_key => 'k') = :'first')::text],
    '{0,kept,true}',
    'section 13: dedupe_for, the key is taken for that long, though its message is done and forgotten');

UPDATE outbox.dedupe SET taken_until = clock_timestamp() WHERE message_id = :'first';
SELECT outbox.enqueue('du-for', 'fourth', dedupe_key => 'k', dedupe_for => '1 hour') AS fourth \gset
UPDATE outbox.dedupe SET taken_until = clock_timestamp() WHERE message_id = :'fourth';
SELECT outbox.enqueue('du-for', 'fifth', dedupe_key => 'k') AS fifth \gset
SELECT is(
    ARRAY(SELECT payload FROM outbox.messages WHERE topic = 'du-for' ORDER BY id),
    '{fourth,fifth}',
    'section 13: dedupe_for, when it is over the next one is new, though the first still waits');

SELECT outbox.ack(tap.alice(), array_agg(id)) FROM outbox.claim(tap.alice(), topics => '{du-for}', batch_size => 1) \gset
SELECT is(
    outbox.enqueue('du-for', 'sixth', dedupe_key => 'k'), :'fifth',
    'section 13: dedupe_for, the first one frees no key but its own');

SELECT outbox.enqueue('du-first', '1', dedupe_key => 'k', dedupe_for => '1 hour') AS first,
       outbox.enqueue('du-first', '2', dedupe_key => 'k', dedupe_for => '2 hours') \gset
SELECT cmp_ok(
    (SELECT taken_until FROM outbox.dedupe WHERE message_id = :'first'), '<', now() + interval '61 minutes',
    'section 13: dedupe_for, it counts from the first enqueue on');

SELECT is(
    tap.sqlstates(
        $$SELECT outbox.enqueue('du-bad', 'p', dedupe_key => 'k', dedupe_for => '0')$$,
        $$SELECT outbox.enqueue('du-bad', 'p', dedupe_key => 'k', dedupe_for => '-1 day')$$,
        $$SELECT outbox.enqueue('du-bad', 'p', dedupe_key => 'k', dedupe_for => '367 days')$$,
        $$SELECT outbox.enqueue('du-bad', 'p', dedupe_key => 'k', on_duplicate => 'drop')$$,
        $$SELECT outbox.enqueue('du-bad', 'p', priority => 3)$$,
        $$SELECT outbox.enqueue_batch('[{"topic": "du-bad", "payload": "p", "priority": -3}]')$$,
        $$INSERT INTO outbox.queue (topic, payload, priority) VALUES ('du-bad', 'p', 3)$$)
    || (SELECT count(*)::text FROM outbox.messages WHERE topic = 'du-bad'),
    '{22023,22023,22023,22023,22023,22023,22023,0}',
    'section 13: what is out of range is refused, and nothing is enqueued');

-- on_duplicate

SELECT outbox.enqueue('du-on', 'old', due_time => '2999-01-01', dedupe_key => 'k', headers => '{"h": 1}') AS m \gset
SELECT is(
    (SELECT t::text FROM outbox.try_enqueue('du-on', 'kept', dedupe_key => 'k') t)
    || (SELECT payload FROM outbox.messages WHERE topic = 'du-on'),
    format('(%s,f,kept)old', :'m'::uuid),
    'section 13: on_duplicate, keep is the default');
SELECT is(
    (SELECT t::text FROM outbox.try_enqueue('du-on', 'new', due_time => '2001-01-01', dedupe_key => 'k', on_duplicate => 'replace', headers => '{"h": 2}') t),
    format('(%s,f,replaced)', :'m'::uuid),
    'section 13: on_duplicate, replace returns that outcome, and the message''s id');
SELECT is(
    (SELECT ROW(payload, headers, due_time = '2999-01-01')::text FROM outbox.messages WHERE topic = 'du-on'),
    '(new,"{""h"": 2}",t)',
    'section 13: on_duplicate, replace gives payload and headers, and nothing else');

SELECT outbox.enqueue('du-put', 'old', due_time => now() + interval '10 min', dedupe_key => 'k') AS m \gset
SELECT outcome FROM outbox.try_enqueue('du-put', 'new', due_time => now() + interval '20 min', dedupe_key => 'k', on_duplicate => 'debounce') \gset
SELECT is(
    ARRAY[:'outcome',
          (SELECT ROW(payload, due_time = now() + interval '20 min')::text FROM outbox.messages WHERE topic = 'du-put')],
    '{debounced,"(old,t)"}',
    'section 13: on_duplicate, debounce gives the due time, and nothing else');
SELECT outcome FROM outbox.try_enqueue('du-put', 'new', due_time => 'infinity', dedupe_key => 'k', on_duplicate => 'debounce') \gset
SELECT is(
    ARRAY[:'outcome',
          (SELECT (due_time - created_at)::text FROM outbox.messages WHERE topic = 'du-put')],
    '{debounced,01:00:00}',
    'section 13: on_duplicate, debounce puts off for outbox.debounce_max after the creation at most');
SELECT is(
    ARRAY[(outbox.try_enqueue('du-put', 'new', dedupe_key => 'k', on_duplicate => 'debounce')).outcome,
          (SELECT payload FROM outbox.claim(tap.alice(), topics => '{du-put}'))],
    '{debounced,old}',
    'section 13: on_duplicate, debounce without a due_time is now');

SELECT outbox.enqueue('du-not', 'old', dedupe_key => 'done'), outbox.enqueue('du-not', 'old', dedupe_key => 'dead'),
       outbox.enqueue('du-not', 'old', dedupe_key => 'leased') \gset
SELECT outbox.ack_one(tap.alice(), id) FROM outbox.claim(tap.alice(), topics => '{du-not}', batch_size => 1) \gset
SELECT outbox.fail_one(tap.alice(), id) FROM outbox.claim(tap.alice(), topics => '{du-not}', batch_size => 1) \gset
SELECT id FROM outbox.claim(tap.alice(), topics => '{du-not}') \gset
SELECT is(
    ARRAY(SELECT (outbox.try_enqueue('du-not', 'new', dedupe_key => k, on_duplicate => o)).outcome
            FROM unnest('{done,dead,leased}'::text[]) k, unnest('{replace,debounce}'::text[]) o)
    || ARRAY(SELECT DISTINCT payload FROM outbox.messages WHERE topic = 'du-not'),
    '{kept,kept,kept,kept,kept,kept,old}',
    'section 13: on_duplicate, what is done, dead or leased is kept');

SELECT is(
    ARRAY[(outbox.try_enqueue('du-none', 'p', on_duplicate => 'replace')).outcome,
          (outbox.try_enqueue('du-none', 'p', dedupe_key => '', on_duplicate => 'debounce')).outcome],
    '{enqueued,enqueued}',
    'section 13: on_duplicate, without a dedupe_key it is ignored');

SELECT ARRAY(
    SELECT ROW(ordinal, enqueued, outcome)::text
      FROM outbox.enqueue_batch('[{"topic": "du-batch", "payload": "1", "dedupe_key": "k"},
                                  {"topic": "du-batch", "payload": "2", "dedupe_key": "k", "on_duplicate": "replace"},
                                  {"topic": "du-batch", "payload": "3", "dedupe_key": "k", "on_duplicate": "debounce"},
                                  {"topic": "du-batch", "payload": "4", "dedupe_key": "k"}]')
     ORDER BY ordinal) AS outcomes \gset
SELECT is(
    :'outcomes'::text[] || ARRAY(SELECT payload FROM outbox.messages WHERE topic = 'du-batch'),
    '{"(1,t,enqueued)","(2,f,replaced)","(3,f,debounced)","(4,f,kept)",2}',
    'section 13: on_duplicate, a batch returns the outcomes');

SELECT count(outbox.enqueue('du-line', i::text, stream_id => '5a5a5a5a-0000-4000-8000-0000000000d1', dedupe_key => i::text)) FROM generate_series(1, 3) i \gset
SELECT outbox.enqueue('du-line', '2 new', dedupe_key => '2', on_duplicate => 'replace'),
       outbox.enqueue('du-line', '3 new', dedupe_key => '3', on_duplicate => 'debounce', due_time => '2001-01-01') \gset
SELECT is(
    ARRAY(SELECT payload FROM outbox.claim(tap.alice(), topics => '{du-line}') ORDER BY id),
    '{1,"2 new",3}',
    'section 13: on_duplicate, streams keep their order');

-- priority

SELECT outbox.enqueue('du-prio', 'text', priority => 2), outbox.enqueue('du-prio', '1'::jsonb, priority => -2),
       outbox.enqueue('du-prio', '1'::json, priority => 0), outbox.enqueue('du-prio', 'none'),
       (outbox.try_enqueue('du-prio', 'try', priority => 1)).outcome,
       outbox.enqueue_step(outbox.start_join('du-prio', 1), 'du-prio', 'step', priority => -1) \gset
SELECT is(
    ARRAY(SELECT priority FROM outbox.messages WHERE topic = 'du-prio' ORDER BY id),
    '{2,-2,0,0,1,-1}'::smallint[],
    'section 14: priority is an argument of every form, 0 if it is not given');

SELECT * FROM finish();
ROLLBACK;
