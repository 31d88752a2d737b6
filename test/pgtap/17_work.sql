-- 17_work.sql: instances, partitions, the inbox, and process_work_batch
--
-- WORK-nn, and section 6 of the contract, each of its sentences. What sessions see of
-- each other is in the isolation specs instances, batch_races and inbox_races, and in
-- test/t/012_instances.pl.

BEGIN;
\ir include/tools.sql
SET LOCAL outbox.backoff_jitter = off;
SELECT plan(67);

-- Message number n.
CREATE FUNCTION tap.m(n integer)
RETURNS uuid
LANGUAGE sql IMMUTABLE
AS $$ SELECT ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid $$;

-- Nothing is there, but what others have done.
CREATE FUNCTION tap.clear()
RETURNS void
LANGUAGE sql
AS $$
    DELETE FROM outbox.queue;
    DELETE FROM outbox.archive WHERE message_id <= tap.m(999);
    DELETE FROM outbox.inbox_queue;
    DELETE FROM outbox.inbox_done;
    DELETE FROM outbox.inbox_dead;
    DELETE FROM outbox.message_deduplication;
    DELETE FROM outbox.instances;
$$;

-- A list of entries about messages of these numbers, all alike.
CREATE FUNCTION tap.entries(entry jsonb, VARIADIC numbers integer[])
RETURNS jsonb
LANGUAGE sql
AS $$
    SELECT jsonb_agg(jsonb_build_object('message_id', tap.m(n)) || entry ORDER BY place)
      FROM unnest(numbers) WITH ORDINALITY u(n, place)
$$;

-- A round trip; the arguments that are not missing, by their names.
CREATE FUNCTION tap.work(who uuid, arguments jsonb DEFAULT '{}')
RETURNS SETOF outbox.work_item
LANGUAGE sql
AS $$
    SELECT *
      FROM outbox.process_work_batch(
               who, 'pgtap', 'here', 1, arguments -> 'metadata',
               arguments -> 'outbox_completions', arguments -> 'outbox_failures',
               arguments -> 'inbox_completions', arguments -> 'inbox_failures',
               arguments -> 'receptor_completions', arguments -> 'receptor_failures',
               arguments -> 'perspective_completions', arguments -> 'perspective_failures',
               arguments -> 'new_outbox_messages', arguments -> 'new_inbox_messages',
               arguments -> 'renew_outbox_lease_ids', arguments -> 'renew_inbox_lease_ids',
               (arguments ->> 'flags')::integer, (arguments ->> 'partition_count')::integer,
               (arguments ->> 'max_partitions_per_instance')::integer,
               (arguments ->> 'lease_seconds')::integer,
               (arguments ->> 'stale_threshold_seconds')::integer,
               (arguments ->> 'batch_size')::integer)
$$;

-- The payloads that a round trip returns, in their order.
CREATE FUNCTION tap.payloads(who uuid, arguments jsonb DEFAULT '{}')
RETURNS text
LANGUAGE sql
AS $$ SELECT coalesce(string_agg(w.payload, ','), 'nothing') FROM tap.work(who, arguments) w $$;

-- The same with one argument.
CREATE FUNCTION tap.payloads(who uuid, name text, value anyelement)
RETURNS text
LANGUAGE sql
AS $$ SELECT tap.payloads(who, jsonb_build_object(name, value)) $$;

-- New messages 1, 2 ..., with their numbers as payloads, leased to alice.
CREATE FUNCTION tap.lease_both(outbox integer, inbox integer, stream uuid DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM tap.clear();
    PERFORM outbox.enqueue('work', n::text, stream_id => stream, message_id => tap.m(n)) FROM generate_series(1, outbox) n;
    PERFORM outbox.receive(tap.m(n), 'work', n::text, stream_id => stream) FROM generate_series(1, inbox) n;
    PERFORM tap.work(tap.alice());
END
$$;

-- What messages are now: number, status, progress, attempts and retries.
CREATE FUNCTION tap.states(box regclass)
RETURNS text[]
LANGUAGE plpgsql
AS $$
DECLARE
    states text[];
BEGIN
    EXECUTE format(
        'SELECT array_agg(format(''%%s %%s progress %%s attempts %%s retries %%s'', ltrim(right(message_id::text, 3), ''0''),
                                 outbox.status_name(status), progress, attempts, retry_count) ORDER BY message_id)
           FROM %s WHERE message_id <= tap.m(999)', box) INTO states;
    RETURN states;
END
$$;

-- How many rows a relation has, after what the statement has done so far.
CREATE FUNCTION tap.count(relation text)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    n bigint;
BEGIN
    EXECUTE 'SELECT count(*) FROM ' || relation INTO n;
    RETURN n;
END
$$;

-- As if an instance had been silent for so long.
CREATE FUNCTION tap.fall_silent(who uuid, since interval)
RETURNS void
LANGUAGE sql
AS $$ UPDATE outbox.instances SET last_heartbeat_at = clock_timestamp() - since WHERE instance_id = who $$;

-- The order of a round trip, and its being one transaction

SELECT tap.lease_both(2, 1, md5('a stream')::uuid) \gset
SELECT is(
    tap.payloads(tap.alice(), jsonb_build_object(
        'batch_size', 1,
        'outbox_completions', tap.entries('{"status": 4}', 1),
        'outbox_failures', tap.entries('{"error": "e"}', 1, 2),
        'receptor_completions', tap.entries('{"receptor_name": "r"}', 1),
        'new_outbox_messages', '[{"topic": "work", "payload": "new"}]'::jsonb,
        'new_inbox_messages', tap.entries('{"handler_name": "work", "payload": "again"}', 1)))
        || tap.states('outbox.messages')::text,
    'new{"1 done progress 4 attempts 1 retries 0","2 ready progress 32768 attempts 1 retries 1"}',
    'WORK-17: completions come before failures, these before new messages, and the claim comes last');

SELECT tap.lease_both(2, 1) \gset
SELECT is(
    tap.sqlstates(format($$SELECT tap.work(tap.alice(), %L)$$, jsonb_build_object(
        'metadata', '{"new": true}'::jsonb,
        'outbox_completions', tap.entries('{"status": 4}', 1),
        'new_outbox_messages', tap.entries('{"topic": "work", "payload": "there already"}', 2))))
        || tap.states('outbox.messages') || (SELECT i.metadata::text FROM outbox.instances i),
    ARRAY['23505', '1 in progress progress 0 attempts 1 retries 0', '2 in progress progress 0 attempts 1 retries 0', NULL],
    'WORK-17: a round trip is one transaction: if one thing cannot be done nothing is');

-- Instances

SELECT tap.clear(), tap.work(tap.alice(), '{"metadata": {"v": 1}}') \g /dev/null
SELECT tap.fall_silent(tap.alice(), '1 h'), tap.work(tap.alice()) \g /dev/null
SELECT is(
    array_agg(concat_ws(' ', service_name, host_name, process_id, metadata, last_heartbeat_at > now() - interval '1 min')),
    ARRAY['pgtap here 1 {"v": 1} t'],
    'WORK-14, WORK-19: a round trip is a sign of life; metadata is kept when none is given')
  FROM outbox.instances WHERE instance_id = tap.alice();

SELECT outbox.heartbeat(tap.alice(), 'other', 'there', 2, '{"v": 2}'), outbox.heartbeat(tap.bob(), 'pgtap', 'here', 3) \gset
SELECT is(
    array_agg(concat_ws(' ', service_name, host_name, process_id, metadata,
                        started_at <= last_heartbeat_at AND last_heartbeat_at <= clock_timestamp()) ORDER BY process_id),
    ARRAY['other there 2 {"v": 2} t', 'pgtap here 3 t'],
    'WORK-14: heartbeat enters an instance, or what is new of it')
  FROM outbox.instances;

SELECT tap.lease_both(2, 1), outbox.heartbeat(md5('carol')::uuid, 'pgtap', 'here', 3) \gset
SELECT tap.fall_silent(tap.alice(), '601 s'), tap.fall_silent(md5('carol')::uuid, '599 s') \gset
SELECT tap.payloads(tap.bob()) AS taken \gset
SELECT is(
    ARRAY[:'taken'] || array_agg(instance_id::text ORDER BY instance_id <> tap.bob()),
    ARRAY['1,2,1', tap.bob()::text, md5('carol')::uuid::text],
    'WORK-14, WORK-19: other instances that were silent for 600 s are removed, and their leases end')
  FROM outbox.instances;

SELECT tap.lease_both(1, 0), tap.fall_silent(tap.alice(), '5 s') \gset
SELECT is(
    ARRAY[tap.payloads(tap.bob(), 'stale_threshold_seconds', 6), tap.payloads(tap.bob(), 'stale_threshold_seconds', 4)],
    ARRAY['nothing', '1'],
    'WORK-19: the caller says for how long others may be silent');

SELECT tap.lease_both(1, 1), tap.fall_silent(tap.alice(), '1 d') \gset
SELECT is(
    ARRAY[tap.payloads(tap.alice(), jsonb_build_object('outbox_completions', tap.entries('{"status": 4}', 1)))]
        || tap.states('outbox.messages') || tap.count('outbox.instances'),
    ARRAY['nothing', '1 done progress 4 attempts 1 retries 0', '1'],
    'section 6: an instance that returns before it was removed has kept its leases');

SELECT tap.lease_both(1, 1), tap.fall_silent(tap.alice(), '1 d') \gset
SELECT tap.work(tap.bob()) \g /dev/null
SELECT is(
    ARRAY[tap.payloads(tap.alice(), jsonb_build_object('outbox_completions', tap.entries('{"status": 4}', 1),
                                                       'inbox_failures', tap.entries('{}', 1)))]
        || tap.states('outbox.messages') || tap.states('outbox.inbox') || tap.count('outbox.instances'),
    ARRAY['nothing', '1 in progress progress 0 attempts 2 retries 0', '1 in progress progress 0 attempts 2 retries 0', '2'],
    'WORK-29: one that returns after that can do nothing to what others have taken, and is welcome');

SELECT tap.lease_both(3, 2) \gset
SELECT is(
    ARRAY[outbox.deregister_instance(tap.alice())::text, outbox.deregister_instance(tap.alice())::text,
          tap.count('outbox.instances'), tap.payloads(tap.bob())],
    '{5,0,0,"1,2,3,1,2"}',
    'section 6: deregister_instance removes an instance, gives its leases back, and says how many');

-- Leases

SELECT tap.lease_both(1, 1) \gset
SELECT is(
    (SELECT array_agg(owner_token) FROM (SELECT owner_token FROM outbox.messages WHERE message_id = tap.m(1) UNION ALL SELECT owner_token FROM outbox.inbox) o)
        || CASE WHEN outbox.ack(tap.alice(), ARRAY(SELECT id FROM outbox.queue)) = 1 THEN tap.alice() END,
    ARRAY[tap.alice(), tap.alice(), tap.alice()],
    'WORK-09: the instance''s id is the owner token of its leases');

SELECT tap.clear() \gset
SELECT outbox.enqueue('work', n::text, stream_id => md5(n::text)::uuid, message_id => tap.m(n)) FROM generate_series(1, 20) n \g /dev/null
SELECT tap.work(tap.alice(), '{"lease_seconds": 50}') \g /dev/null
SELECT string_agg(tap.payloads(w), ' ') AS others FROM unnest(ARRAY[tap.bob(), md5('carol')::uuid]) w \gset
SELECT tap.end_leases('work') \gset
SELECT is(
    ARRAY[:'others', (SELECT sum(n)::text FROM (SELECT count(*) AS n FROM unnest(ARRAY[tap.alice(), tap.bob(), md5('carol')::uuid]) w, tap.work(w)) x)],
    ARRAY['nothing nothing', '20'],
    'WORK-01, WORK-20: a message stays with its instance until the lease ends, whatever instances join; then it goes by shares');

SELECT tap.lease_both(2, 0) \gset
SELECT tap.work(tap.alice(), jsonb_build_object('lease_seconds', 5000, 'renew_outbox_lease_ids', jsonb_build_array(tap.m(2)))) \g /dev/null
SELECT is(
    array_agg((locked_until - now() > interval '4000 s') ORDER BY message_id), '{f,t}',
    'WORK-22: renewals are lists of message ids; the leases last lease_seconds from now')
  FROM outbox.messages WHERE topic = 'work';

SELECT tap.lease_both(0, 2) \gset
SELECT tap.work(tap.alice(), jsonb_build_object('lease_seconds', 5000, 'renew_inbox_lease_ids', jsonb_build_array(tap.m(2)))) \g /dev/null
SELECT is(
    array_agg((locked_until - now() > interval '4000 s') ORDER BY message_id), '{f,t}',
    'WORK-22: renewals of the inbox are such lists, too')
  FROM outbox.inbox;

SELECT tap.lease_both(1, 1) \gset
SELECT tap.work(tap.bob(), jsonb_build_object('lease_seconds', 5000, 'renew_outbox_lease_ids', jsonb_build_array(tap.m(1)))) \g /dev/null
SELECT is(
    array_agg(concat(owner_token = tap.alice(), locked_until - updated_at = interval '300 s')), '{tt}',
    'WORK-01, WORK-18: a lease lasts 300 s by default, and only its owner renews it')
  FROM outbox.messages WHERE topic = 'work';

-- Sections

SELECT tap.clear() \gset
SELECT tap.work(tap.alice(), '{
    "new_outbox_messages": [{"MessageId": "00000000-0000-4000-8000-000000000001", "Destination": "work", "Payload": "1"},
                            {"MessageId": "00000000-0000-4000-8000-000000000002", "Topic": "work", "Payload": "2"}],
    "new_inbox_messages": [{"MessageId": "00000000-0000-4000-8000-000000000001", "HandlerName": "work", "Payload": "1"}]}') \g /dev/null
SELECT is(
    ARRAY[tap.payloads(tap.alice(), '{
        "outbox_completions": [{"MessageId": "00000000-0000-4000-8000-000000000001", "Status": 4}],
        "outbox_failures": [{"MessageId": "00000000-0000-4000-8000-000000000002", "CompletedStatus": 1, "Error": "e", "Reason": 3}],
        "inbox_completions": [{"MessageId": "00000000-0000-4000-8000-000000000001", "Status": 1}],
        "receptor_completions": [{"EventId": "00000000-0000-4000-8000-000000000001", "ReceptorName": "Pascal", "Status": 2}],
        "perspective_completions": [{"StreamId": "00000000-0000-4000-8000-000000000001", "PerspectiveName": "Pascal", "LastEventId": "00000000-0000-4000-8000-000000000002"}]}')]
        || tap.states('outbox.messages') || tap.states('outbox.inbox')
        || tap.count($$outbox.receptor_processing r, outbox.perspective_checkpoints p
                      WHERE r.receptor_name = 'Pascal' AND p.perspective_name = 'Pascal'$$),
    ARRAY['1', '1 done progress 4 attempts 1 retries 0', '2 ready progress 32769 attempts 1 retries 1',
          '1 in progress progress 1 attempts 1 retries 0', '1'],
    'section 6: keys are in snake_case or in PascalCase');

SELECT tap.clear() \gset
SELECT tap.work(tap.alice(), '{"new_outbox_messages": [{
    "message_id": "00000000-0000-4000-8000-000000000001", "topic": "work", "payload": {"n": 1}, "headers": {"h": 1},
    "stream_id": "51515151-0000-4000-8000-000000000001", "correlation_id": "c", "due_time": "2001-01-01T00:00:00Z", "namespace": "n",
    "tenant_id": "00000000-0000-4000-8000-0000000000aa", "dedupe_key": "000000000000400080000000000000aa/k", "expires_at": "infinity"}]}') \g /dev/null
SELECT is(
    array_agg(concat_ws(' ', topic, payload, headers, right(stream_id::text, 1), correlation_id, extract(year FROM due_time AT TIME ZONE 'UTC'), namespace,
                        right(tenant_id::text, 2), right(dedupe_key, 2), expires_at)),
    ARRAY['work {"n": 1} {"h": 1} 1 c 2001 n aa /k infinity'],
    'section 6: a new message may have all that enqueue takes')
  FROM outbox.messages WHERE message_id = tap.m(1);

SELECT tap.clear() \gset
SELECT tap.work(tap.alice(), '{"new_inbox_messages": [{"message_id": "00000000-0000-4000-8000-000000000001", "handler_name": "work", "payload": "p",
    "source": "s", "stream_id": "51515151-0000-4000-8000-000000000001", "headers": {"h": 1}}]}') \g /dev/null
SELECT is(
    array_agg(concat_ws(' ', handler_name, payload, source, right(stream_id::text, 1), headers)), ARRAY['work p s 1 {"h": 1}'],
    'section 6: a received message has handler, payload, source, stream and headers')
  FROM outbox.inbox;

SELECT tap.work(tap.alice(), jsonb_build_object(
    'receptor_completions', tap.entries('{"receptor_name": "a"}', 1, 2) || '[{"event_id": "00000000-0000-4000-8000-000000000003", "receptor_name": "a", "status": 7}]',
    'receptor_failures', tap.entries('{"receptor_name": "a", "error": "e"}', 2) || tap.entries('{"receptor_name": "b", "error": "e", "status": 9}', 1))) \g /dev/null
SELECT is(
    array_agg(concat_ws(' ', right(message_id::text, 1), receptor_name, status, attempts, error, processed_at IS NOT NULL) ORDER BY message_id, receptor_name),
    ARRAY['1 a 2 1 t', '1 b 9 1 e f', '2 a 3 2 e f', '3 a 7 1 t'],
    'WORK-25: receptors are noted for each message and receptor, once, with status, attempts and error')
  FROM outbox.receptor_processing WHERE receptor_name IN ('a', 'b');

SELECT outbox.start_receptor(tap.m(4), 'c') AS first, outbox.complete_receptor(tap.m(4), 'c'), outbox.start_receptor(tap.m(4), 'c') AS done,
       outbox.start_receptor(tap.m(5), 'c') AS other, outbox.fail_receptor(tap.m(5), 'c', 'e'), outbox.start_receptor(tap.m(5), 'c') AS again \gset
SELECT is(
    ARRAY[:'first', :'done', :'other', :'again'] || array_agg(concat_ws(' ', right(message_id::text, 1), status, attempts) ORDER BY message_id),
    '{t,f,t,t,"4 2 1","5 1 2"}',
    'section 6: receptors start, complete and fail outside of round trips as well; what is done does not start again')
  FROM outbox.receptor_processing WHERE receptor_name = 'c';

SELECT tap.work(tap.alice(), jsonb_build_object(
    'perspective_completions', jsonb_build_array(
        jsonb_build_object('stream_id', tap.m(1), 'perspective_name', 'a', 'last_message_id', tap.m(7)),
        jsonb_build_object('stream_id', tap.m(2), 'perspective_name', 'a', 'last_event_id', tap.m(8), 'status', 5)),
    'perspective_failures', jsonb_build_array(jsonb_build_object('stream_id', tap.m(1), 'perspective_name', 'a', 'error', 'e')))) \g /dev/null
SELECT is(
    array_agg(concat_ws(' ', right(stream_id::text, 1), right(last_message_id::text, 1), status, error) ORDER BY stream_id),
    ARRAY['1 7 3 e', '2 8 5'],
    'WORK-25: perspectives have one checkpoint in each stream, which a failure does not move')
  FROM outbox.perspective_checkpoints WHERE perspective_name = 'a';

SELECT outbox.start_perspective(tap.m(4), 'c') IS NULL AS first, outbox.complete_perspective(tap.m(4), 'c', tap.m(6)),
       outbox.start_perspective(tap.m(4), 'c') AS second, outbox.fail_perspective(tap.m(4), 'c', 'e') \gset
SELECT is(
    ARRAY[:'first', :'second'] || array_agg(concat_ws(' ', right(last_message_id::text, 1), status, error)),
    ARRAY['t', tap.m(6)::text, '6 3 e'],
    'section 6: perspectives start, complete and fail outside of round trips as well, and go on where they were')
  FROM outbox.perspective_checkpoints WHERE perspective_name = 'c';

-- Wrong shapes

CREATE FUNCTION tap.complaint(arguments jsonb)
RETURNS text
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM tap.work(tap.bob(), arguments);
    RETURN 'none';
EXCEPTION
    WHEN OTHERS THEN
        RETURN SQLSTATE || ' ' || SQLERRM;
END
$$;

SELECT tap.lease_both(1, 1) \gset
CREATE TEMP TABLE complaints ON COMMIT DROP AS
SELECT n, s.name || '[1]' || s.where AS place,
       tap.complaint(jsonb_build_object(s.name, tap.entries(s.entry, 1) || s.wrong)) AS complaint
  FROM (VALUES
        (1, 'outbox_completions', '{"status": 4}'::jsonb, '[{"message_id": "x", "status": 4}]'::jsonb, '.message_id'),
        (2, 'outbox_failures', '{}', tap.entries('{"error": 5}', 2), '.error'),
        (3, 'inbox_completions', '{"status": 2}', tap.entries('{}', 2), '.status'),
        (4, 'inbox_failures', '{}', tap.entries('{"reason": "throttled"}', 2), '.reason'),
        (5, 'receptor_completions', '{"receptor_name": "shape"}', tap.entries('{}', 2), '.receptor_name'),
        (6, 'receptor_failures', '{"receptor_name": "shape"}', '[{"receptor_name": "shape"}]', '.message_id'),
        (7, 'new_outbox_messages', '{"topic": "t", "payload": "p"}', '[{"topic": "t", "payload": "p", "colour": "red"}]', ' has an unknown key "colour"'),
        (8, 'new_inbox_messages', '{"handler_name": "h", "payload": "p"}', '[{"handler_name": "h", "payload": "p"}]', '.message_id'),
        (9, 'outbox_completions', '{"status": 4}', '["no object"]', '')) s(n, name, entry, wrong, "where");
INSERT INTO complaints
SELECT 9 + n, s.name || s.where, tap.complaint(jsonb_build_object(s.name, s.wrong))
  FROM (VALUES
        (1, 'perspective_completions', '[{"stream_id": 1, "perspective_name": "p"}]'::jsonb, '[0].stream_id'),
        (2, 'perspective_failures', '[{"stream_id": "00000000-0000-4000-8000-000000000001"}]', '[0].perspective_name'),
        (3, 'renew_outbox_lease_ids', '["00000000-0000-4000-8000-000000000001", 1]', '[1]'),
        (4, 'renew_inbox_lease_ids', '[null]', '[0]'),
        (5, 'outbox_failures', '{"message_id": "00000000-0000-4000-8000-000000000001"}', '')) s(n, name, wrong, "where");
SELECT is(
    ARRAY(SELECT place || ': ' || complaint FROM complaints
           WHERE complaint NOT LIKE '22023 %' OR strpos(complaint, place) = 0 ORDER BY n), '{}',
    'section 6: of a wrong shape 22023 names section, index and key');

SELECT is(
    tap.states('outbox.messages') || tap.states('outbox.inbox') || tap.count('outbox.instances')
        || tap.count($$outbox.receptor_processing WHERE receptor_name = 'shape'$$),
    ARRAY['1 in progress progress 0 attempts 1 retries 0', '1 in progress progress 0 attempts 1 retries 0', '1', '0'],
    'section 6: and nothing is done, not even what is right');

SELECT is(
    tap.sqlstates($$SELECT outbox.process_work_batch(NULL, 's', 'h', 1)$$, $$SELECT outbox.process_work_batch(tap.alice(), NULL, 'h', 1)$$,
                  $$SELECT outbox.process_work_batch(tap.alice(), 's', '', 1)$$, $$SELECT outbox.process_work_batch(tap.alice(), 's', 'h', NULL)$$,
                  $$SELECT tap.work(tap.alice(), '{"batch_size": 0}')$$, $$SELECT tap.work(tap.alice(), '{"batch_size": 10001}')$$,
                  $$SELECT tap.work(tap.alice(), '{"lease_seconds": 86401}')$$, $$SELECT tap.work(tap.alice(), '{"partition_count": 0}')$$,
                  $$SELECT tap.work(tap.alice(), '{"max_partitions_per_instance": 0}')$$, $$SELECT tap.work(tap.alice(), '{"stale_threshold_seconds": 0}')$$,
                  $$SELECT tap.work(tap.alice(), '{"flags": -1}')$$, $$SELECT outbox.heartbeat(NULL, 's', 'h', 1)$$,
                  $$SELECT outbox.deregister_instance(NULL)$$),
    '{22004,22004,22023,22004,22023,22023,22023,22023,22023,22023,22023,22004,22004}',
    'section 6: arguments that are missing or out of range are refused');

-- Empty sections

SELECT tap.clear(), tap.work(tap.alice()) \g /dev/null
-- what is left is the sign of life, and the two claims
CREATE FUNCTION tap.batch_buffers(sections text)
RETURNS integer
LANGUAGE sql
AS $$
    SELECT tap.buffers(format('SELECT outbox.process_work_batch(tap.alice(), ''s'', ''h'', 1, NULL%s)',
                              repeat(', ' || sections, 12)))
$$;
SELECT tap.batch_buffers('NULL') AS without, tap.batch_buffers(quote_literal('[]')) AS empty,
       tap.buffers($$SELECT outbox.heartbeat(tap.alice(), 's', 'h', 1)$$)
           + tap.buffers($$SELECT * FROM outbox.claim(tap.alice())$$)
           + tap.buffers($$SELECT * FROM outbox.claim_inbox(tap.alice())$$) AS in_parts \gset
SELECT is(
    ARRAY[:empty > 0, :empty <= :without, :empty <= :in_parts + 8], '{t,t,t}',
    'WORK-27: empty sections cost nothing');

-- Progress

SELECT tap.lease_both(1, 1) \gset
SELECT tap.work(tap.alice(), jsonb_build_object('batch_size', 1, 'outbox_completions', tap.entries('{"status": 1}', 1), 'inbox_completions', tap.entries('{"status": 1}', 1))) \g /dev/null
SELECT tap.work(tap.alice(), jsonb_build_object('outbox_completions', tap.entries('{"status": 2}', 1), 'inbox_completions', tap.entries('{"status": 4}', 1))) \g /dev/null
SELECT is(
    tap.states('outbox.messages') || tap.states('outbox.inbox'),
    ARRAY['1 in progress progress 3 attempts 1 retries 0', '1 in progress progress 5 attempts 1 retries 0'],
    'section 6: progress is a mask of bits, and what is reported is added; with less than all a message is not done');

SELECT tap.work(tap.alice(), jsonb_build_object('flags', 4, 'outbox_completions', tap.entries('{"status": 4}', 1), 'inbox_completions', tap.entries('{"status": 2}', 1))) \g /dev/null
SELECT is(
    tap.states('outbox.messages') || tap.states('outbox.inbox'),
    ARRAY['1 done progress 7 attempts 1 retries 0', '1 done progress 7 attempts 1 retries 0'],
    'WORK-15: an outbox message is done when 4 is set, an inbox message when 2 is set');

SELECT tap.lease_both(2, 2) \gset
SELECT is(
    ARRAY[tap.payloads(tap.alice(), jsonb_build_object('outbox_completions', tap.entries('{"status": 1}', 1), 'inbox_completions', tap.entries('{"status": 1}', 2)))]
        || tap.states('outbox.messages') || tap.states('outbox.inbox'),
    ARRAY['1,2', '1 in progress progress 1 attempts 1 retries 0', '2 in progress progress 0 attempts 1 retries 0',
          '1 in progress progress 0 attempts 1 retries 0', '2 in progress progress 1 attempts 1 retries 0'],
    'section 6: a completion with fewer bits records progress and gives the lease back');

SELECT tap.lease_both(1, 1) \gset
SELECT tap.work(tap.alice(), jsonb_build_object('batch_size', 1, 'outbox_completions', tap.entries('{"status": 0}', 1), 'inbox_completions', tap.entries('{"status": 0}', 1))) \g /dev/null
SELECT is(
    tap.states('outbox.messages') || tap.states('outbox.inbox') || outbox.release(tap.alice())::text,
    ARRAY['1 in progress progress 0 attempts 1 retries 0', '1 in progress progress 0 attempts 1 retries 0', '1'],
    'section 6: status 0 gives the lease back and does nothing else');

SELECT tap.lease_both(1, 0) \gset
SELECT tap.work(tap.alice(), jsonb_build_object('outbox_failures', tap.entries('{"completed_status": 1}', 1))) \g /dev/null
SELECT is(
    tap.states('outbox.messages'), ARRAY['1 ready progress 32769 attempts 1 retries 1'],
    'section 6: a failure records what was achieved, and sets 32768');

-- Flags

SELECT tap.lease_both(0, 2) \gset
SELECT tap.work(tap.alice(), jsonb_build_object('inbox_completions', tap.entries('{"status": 2}', 1))) \g /dev/null
SELECT tap.work(tap.alice(), jsonb_build_object('flags', 4, 'inbox_completions', tap.entries('{"status": 2}', 2))) \g /dev/null
SELECT is(
    tap.states('outbox.inbox'), ARRAY['2 done progress 2 attempts 1 retries 0'],
    'WORK-24, WORK-26: done inbox messages are deleted, but with the flag 4 they are kept');

SELECT tap.clear(), outbox.enqueue('work', 'there before') \gset
SELECT is(
    array_agg(concat_ws(' ', source, payload, flags) ORDER BY source, payload DESC),
    '{"inbox new 1","outbox there before 0","outbox new 1"}',
    'WORK-26: what this very call has stored is flagged 1')
  FROM tap.work(tap.alice(), '{"new_outbox_messages": [{"topic": "work", "payload": "new"}],
                               "new_inbox_messages": [{"message_id": "00000000-0000-4000-8000-000000000001", "handler_name": "work", "payload": "new"}]}');

SELECT tap.end_leases('work') \gset
SELECT is(
    array_agg(concat_ws(' ', payload, flags, attempts) ORDER BY payload), '{"new 2 2","there before 2 2"}',
    'WORK-02, WORK-26: what is taken over from a lease that has ended is flagged 2')
  FROM tap.work(tap.bob(), '{}');

SELECT tap.lease_both(1, 1) \gset
SELECT tap.work(tap.alice(), jsonb_build_object('outbox_failures', tap.entries('{}', 1), 'inbox_failures', tap.entries('{}', 1))) \g /dev/null
UPDATE outbox.inbox_queue SET next_attempt_at = now();
SELECT tap.come_due('work') \gset
SELECT is(
    array_agg(concat_ws(' ', source, flags, attempts)), '{"outbox 32 2","inbox 32 2"}',
    'WORK-23, WORK-26: what is tried again after a failure is flagged 32, and is returned again when due')
  FROM tap.work(tap.alice());

-- Completions and failures

SELECT tap.lease_both(2, 2), outbox.enqueue('work', 'nobody''s', message_id => tap.m(3)) \gset
SELECT tap.work(tap.bob(), jsonb_build_object(
    'batch_size', 1, 'outbox_completions', tap.entries('{"status": 4}', 1, 3), 'outbox_failures', tap.entries('{}', 2, 3),
    'inbox_completions', tap.entries('{"status": 2}', 1), 'inbox_failures', tap.entries('{}', 2))) \g /dev/null
SELECT is(
    tap.states('outbox.messages') || tap.states('outbox.inbox'),
    ARRAY['1 in progress progress 0 attempts 1 retries 0', '2 in progress progress 0 attempts 1 retries 0', '3 in progress progress 0 attempts 1 retries 0',
          '1 in progress progress 0 attempts 1 retries 0', '2 in progress progress 0 attempts 1 retries 0'],
    'section 6: completions and failures apply only to messages that are leased to the instance');

SELECT tap.lease_both(2, 0) \gset
SELECT tap.work(tap.alice(), jsonb_build_object(
    'outbox_completions', tap.entries('{"status": 4}', 1, 1, 1) || tap.entries('{"status": 0}', 1),
    'outbox_failures', tap.entries('{}', 1, 2, 2, 2))) \g /dev/null
SELECT is(
    tap.states('outbox.messages'),
    ARRAY['1 done progress 4 attempts 1 retries 0', '2 ready progress 32768 attempts 1 retries 1'],
    'section 6: a message both in completions and failures is done; one named twice is done, or fails, once');

CREATE FUNCTION tap.delays(rounds integer)
RETURNS interval[]
LANGUAGE plpgsql
AS $$
DECLARE
    delays interval[] := '{}';
BEGIN
    PERFORM tap.lease_both(1, 0);
    FOR round IN 1 .. rounds LOOP
        PERFORM tap.work(tap.alice(), jsonb_build_object('outbox_failures', tap.entries('{"error": "e"}', 1)));
        delays := delays || (SELECT next_attempt_at - updated_at FROM outbox.messages WHERE message_id = tap.m(1));
        PERFORM tap.come_due('work');
        PERFORM tap.work(tap.alice());
    END LOOP;
    RETURN delays;
END
$$;
SELECT is(
    tap.delays(8), '{1s,2s,4s,8s,16s,32s,1min,1min}'::interval[],
    'WORK-23: a message that fails is tried again by the backoff');

SELECT tap.clear() \gset
SELECT outbox.configure_topic('work', max_attempts => 2) \gset
SELECT tap.lease_both(1, 0) \gset
SELECT tap.work(tap.alice(), jsonb_build_object('outbox_failures', tap.entries('{"reason": 2, "error": "one"}', 1))) \g /dev/null
SELECT tap.come_due('work'), tap.work(tap.alice()) \g /dev/null
SELECT tap.work(tap.alice(), jsonb_build_object('outbox_failures', tap.entries('{"reason": 2, "error": "two"}', 1))) \g /dev/null
SELECT is(
    array_agg(concat_ws(' ', outbox.status_name(status), failure_reason, last_error)), '{"failed 5 two"}',
    'section 6: at max_attempts a message fails for good, with reason 5')
  FROM outbox.messages WHERE message_id = tap.m(1);
DELETE FROM outbox.dead WHERE message_id = tap.m(1);
DELETE FROM outbox.topics WHERE topic = 'work';

SELECT tap.lease_both(11, 0) \gset
SELECT tap.work(tap.alice(), jsonb_build_object('outbox_failures',
    (SELECT jsonb_agg(jsonb_build_object('message_id', tap.m(n::integer), 'error', 'e' || n) || CASE WHEN n > 1 THEN jsonb_build_object('reason', r) ELSE '{}' END)
       FROM unnest('{99,0,1,2,3,4,5,6,7,8,99}'::integer[]) WITH ORDINALITY u(r, n)))) \g /dev/null
SELECT is(
    array_agg(failure_reason || last_error ORDER BY message_id), '{99e1,99e2,1e3,2e4,3e5,4e6,5e7,6e8,7e9,8e10,99e11}',
    'section 6: a failure keeps its error and its reason, 99 if none is given')
  FROM outbox.messages WHERE message_id <= tap.m(11);

-- What is returned

SELECT tap.lease_both(3, 3), outbox.enqueue('work', 'more', message_id => tap.m(4)) \gset
SELECT is(
    ARRAY[tap.payloads(tap.alice()), tap.payloads(tap.alice())], ARRAY['more', 'nothing'],
    'WORK-17: only messages that were leased in this call are returned');

SELECT tap.clear() \gset
SELECT is(
    array_agg(concat_ws(' ', source, topic, handler_name, payload, headers, right(stream_id::text, 1), partition_number IS NOT NULL, attempts, status,
                        created_at = now() OR created_at > now(), sequence_order > 0)),
    '{"outbox t 1 {\"h\": 1} 1 t 1 0 t t","inbox h 2 f 1 0 t t"}',
    'section 6: a message is returned whole, with a topic or with the name of a handler')
  FROM tap.work(tap.alice(), '{
    "new_outbox_messages": [{"topic": "t", "payload": "1", "headers": {"h": 1}, "stream_id": "51515151-0000-4000-8000-000000000001"}],
    "new_inbox_messages": [{"message_id": "00000000-0000-4000-8000-000000000002", "handler_name": "h", "payload": "2"}]}');

SELECT tap.clear() \gset
SELECT outbox.receive(tap.m(n), 'work', n::text, stream_id => md5((n % 3)::text)::uuid) FROM generate_series(1, 9) n \g /dev/null
SELECT outbox.enqueue('work', n::text, stream_id => CASE WHEN n > 3 THEN md5((n % 3)::text)::uuid END) FROM generate_series(1, 12) n \g /dev/null
CREATE TEMP TABLE returned ON COMMIT DROP AS
SELECT row_number() OVER () AS place, w.* FROM tap.work(tap.alice()) w;
SELECT is(
    array_agg(place ORDER BY source DESC, stream_id, sequence_order, created_at, id), ARRAY(SELECT generate_series(1, 21)::bigint),
    'WORK-10: the outbox comes first, and both are in the order of stream, then age')
  FROM returned;

SELECT tap.clear() \gset
SELECT is(
    tap.payloads(tap.alice(), jsonb_build_object('new_outbox_messages',
        (SELECT jsonb_agg(jsonb_build_object('topic', 'work', 'payload', n::text, 'stream_id', md5('a stream')) ORDER BY n) FROM generate_series(1, 30) n))),
    (SELECT string_agg(n::text, ',' ORDER BY n) FROM generate_series(1, 30) n),
    'WORK-10: what is sent at the same moment keeps its order in a stream');

SELECT tap.clear() \gset
SELECT outbox.enqueue('work', n::text), outbox.receive(tap.m(n), 'work', n::text) FROM generate_series(1, 150) n \g /dev/null
SELECT is(
    (SELECT array_agg(n ORDER BY source DESC) FROM (SELECT source, count(*) AS n FROM tap.work(tap.alice(), '{"batch_size": 7}') GROUP BY 1) x)
        || (SELECT array_agg(n ORDER BY source DESC) FROM (SELECT source, count(*) AS n FROM tap.work(tap.alice()) GROUP BY 1) x),
    '{7,7,100,100}',
    'section 6: never more than batch_size are returned of either source, 100 by default');

-- Partitions

SELECT tap.clear() \gset
SELECT outbox.enqueue('work', n::text, stream_id => CASE WHEN n > 1 THEN md5(n::text)::uuid END, message_id => tap.m(n)) FROM generate_series(1, 50) n \g /dev/null
CREATE TEMP TABLE partitions ON COMMIT DROP AS
SELECT c.n AS partitions, w.* FROM unnest('{2147483647,10000,7,1}'::integer[]) c(n),
       LATERAL (SELECT message_id, partition_number FROM tap.work(tap.alice(), jsonb_build_object('partition_count', c.n)) WHERE outbox.release(tap.alice(), ARRAY[id]) = 1 OFFSET 0) w;
SELECT is(
    ARRAY[count(*), count(*) FILTER (WHERE p.partition_number = h.partition_number % p.partitions AND h.partition_number >= 0),
          count(*) FILTER (WHERE p.message_id = tap.m(1) AND p.partition_number IS NULL), count(DISTINCT h.partition_number)],
    '{200,196,4,49}',
    'WORK-04: a partition''s number is the hash of the stream, without its sign, modulo their count; null without a stream')
  FROM partitions p JOIN partitions h ON h.message_id = p.message_id AND h.partitions = 2147483647;

SELECT is(
    (SELECT array_agg(DISTINCT owners) FROM (
        SELECT count(*) FILTER (WHERE outbox._owns_partition(i, others, p)) AS owners
          FROM (SELECT n, array_agg(md5(i::text)::uuid) AS others FROM generate_series(1, 64) n, generate_series(1, 64) i WHERE i <= n GROUP BY n) o,
               unnest(others) i, generate_series(0, 99) p
         GROUP BY n, p) x),
    '{1}',
    'WORK-05: each partition has exactly one owner, for 1 to 64 instances');

SELECT is(
    (SELECT array_agg(DISTINCT owners) FROM (
        SELECT count(*) FILTER (WHERE outbox._owns_partition(i, others, p)) AS owners
          FROM (SELECT ARRAY(SELECT ('00000000-0000-0000-0000-' || lpad(to_hex(n), 12, '0'))::uuid FROM generate_series(0, 15) n) AS others) o,
               unnest(others) i, generate_series(0, 999) p
         GROUP BY p) x),
    '{1}',
    'WORK-05: each partition has exactly one owner among instances whose ids are nearly the same');

WITH instances AS (SELECT array_agg(md5(i::text)::uuid ORDER BY i) AS ids FROM generate_series(1, 9) i),
     moves AS (SELECT outbox._owns_partition(i, ids[1:8], p) AS before, outbox._owns_partition(i, ids, p) AS after
                 FROM instances, unnest(ids[1:8]) i, generate_series(0, 999) p)
SELECT is(
    ARRAY[count(*) FILTER (WHERE after AND NOT before), (count(*) FILTER (WHERE before AND NOT after) BETWEEN 60 AND 170)::integer], '{0,1}',
    'WORK-08: one that joins takes its share from the others, and between them nothing moves')
  FROM moves;

SELECT tap.clear(), tap.work(tap.alice()), tap.work(tap.bob()) \g /dev/null
SELECT outbox.enqueue('work', n::text, stream_id => md5(n::text)::uuid) FROM generate_series(1, 40) n \g /dev/null
SELECT outbox.receive(tap.m(n), 'work', n::text, stream_id => md5(n::text)::uuid) FROM generate_series(1, 40) n \g /dev/null
CREATE TEMP TABLE shares ON COMMIT DROP AS
SELECT w.who, r.* FROM unnest(ARRAY[tap.alice(), tap.bob()]) w(who), LATERAL tap.work(w.who) r;
SELECT is(
    ARRAY[count(*), count(*) FILTER (WHERE outbox._owns_partition(who, ARRAY[tap.alice(), tap.bob()], partition_number)), count(DISTINCT who)],
    '{80,80,2}',
    'WORK-05, WORK-06: live instances share the streams, of outbox and inbox, by the owners of their partitions; none has no owner')
  FROM shares;

SELECT tap.clear(), tap.work(tap.alice()), tap.work(tap.bob()), outbox.enqueue_many('work', '{1,2,3,4}'), outbox.receive(tap.m(1), 'work', '5') \g /dev/null
SELECT is(
    ARRAY[tap.payloads(tap.alice(), '{"batch_size": 2}'), tap.payloads(tap.bob(), '{"batch_size": 2}')], ARRAY['1,2,5', '3,4'],
    'section 6: messages without a stream may be taken by any');

SELECT tap.clear(), tap.work(tap.alice()), tap.work(tap.bob()) \g /dev/null
SELECT outbox.enqueue('work', n::text, stream_id => md5((n % 20)::text)::uuid, message_id => tap.m(n)) FROM generate_series(1, 100) n \g /dev/null
CREATE TEMP TABLE disputed ON COMMIT DROP AS
SELECT row_number() OVER () AS place, w.who, r.*
  FROM (SELECT * FROM generate_series(1, 30) n, unnest(ARRAY[tap.alice(), tap.bob()]) who ORDER BY n, who OFFSET 0) w,
       LATERAL tap.work(w.who, jsonb_build_object('batch_size', 2, 'partition_count', CASE WHEN w.who = tap.alice() THEN w.n ELSE 40 - w.n END)) r;
SELECT is(
    ARRAY[count(*), count(DISTINCT message_id), count(DISTINCT stream_id), (SELECT count(*) FROM (SELECT FROM disputed GROUP BY stream_id HAVING count(DISTINCT who) > 1) x),
          (SELECT count(*) FROM (SELECT lag(sequence_order) OVER (PARTITION BY stream_id ORDER BY place) > sequence_order AS late FROM disputed) x WHERE late),
          (SELECT count(DISTINCT who) FROM disputed)],
    '{100,100,20,0,0,2}',
    'WORK-13: instances that disagree on partitions never both hold a message, nor a stream, and order stands')
  FROM disputed;

SELECT tap.clear() \gset
SELECT outbox.enqueue('work', n::text, stream_id => md5((n % 10)::text)::uuid) FROM generate_series(1, 40) n \g /dev/null
SELECT outbox.receive(tap.m(n), 'work', n::text, stream_id => md5((n % 10)::text)::uuid) FROM generate_series(1, 10) n \g /dev/null
CREATE TEMP TABLE capped ON COMMIT DROP AS
SELECT c.n AS call, r.* FROM generate_series(1, 3) c(n), 
       LATERAL tap.work(tap.alice(), jsonb_build_object('max_partitions_per_instance', 3, 'batch_size', 5, 'lease_seconds', 300 + c.n)) r;
SELECT is(
    ARRAY[count(DISTINCT partition_number), count(DISTINCT partition_number) FILTER (WHERE source = 'inbox'), count(*) FILTER (WHERE source = 'outbox')],
    '{3,3,12}',
    'WORK-21: max_partitions_per_instance caps the partitions that an instance holds, over calls, outbox and inbox')
  FROM capped;

SELECT outbox.ack(tap.alice(), array_agg(id)) AS acked, outbox.release_inbox(tap.alice()) AS released FROM capped WHERE source = 'outbox' \gset
SELECT is(
    ARRAY[count(DISTINCT partition_number)], '{3}',
    'WORK-21: an instance that gives partitions up has room for others')
  FROM tap.work(tap.alice(), '{"max_partitions_per_instance": 3}');

-- Streams stay with their instances, until these are gone.

SELECT tap.clear(), tap.work(tap.alice()), tap.work(tap.bob()) \g /dev/null
-- what each gets of a new message in each of 20 streams, round after round
CREATE FUNCTION tap.rounds(rounds integer)
RETURNS TABLE (round integer, who uuid, stream_id uuid)
LANGUAGE plpgsql
AS $$
DECLARE
    worker uuid;
BEGIN
    FOR round IN 1 .. rounds LOOP
        PERFORM outbox.enqueue('work', round::text, stream_id => md5(s::text)::uuid) FROM generate_series(1, 20) s;
        FOREACH worker IN ARRAY ARRAY[tap.alice(), tap.bob()] LOOP
            RETURN QUERY SELECT rounds.round, worker, w.stream_id FROM tap.work(worker) w;
            PERFORM outbox.ack(worker, ARRAY(SELECT id FROM outbox.queue WHERE owner_token = worker));
        END LOOP;
    END LOOP;
END
$$;
CREATE TEMP TABLE rounds ON COMMIT DROP AS SELECT * FROM tap.rounds(5);
SELECT is(
    (SELECT ROW(count(*), count(DISTINCT who), count(DISTINCT (who, stream_id)))::text FROM rounds), '(100,2,20)',
    'WORK-07: in every round a stream goes to the same instance, and both have some');

SELECT tap.fall_silent(tap.alice(), '601 s') \gset
SELECT outbox.enqueue('work', 'late', stream_id => md5(s::text)::uuid) FROM generate_series(1, 20) s \g /dev/null
SELECT is(
    (SELECT count(*) FROM tap.work(tap.bob())), 20::bigint,
    'WORK-08, WORK-19: when an instance has fallen silent, the one that is left has its streams, too');

SELECT is(
    ARRAY(SELECT relname::text FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relname ~ 'partition|assign'), '{}',
    'WORK-05: no table assigns partitions to instances');

SELECT tap.lease_both(3, 0, md5('a stream')::uuid) \gset
SELECT tap.payloads(tap.alice(), jsonb_build_object('outbox_failures', tap.entries('{"error": "e"}', 1))) AS alices, tap.payloads(tap.bob()) AS bobs \gset
SELECT tap.come_due('work') \gset
SELECT is(
    ARRAY[:'alices', :'bobs', string_agg(tap.payloads(w), ' ' ORDER BY w = tap.alice())], '{nothing,nothing,"nothing 1,2,3"}',
    'WORK-12: a message that waits for its retry blocks the later ones of its stream for all, also those that were handed out; then they come in order')
  FROM (SELECT w FROM unnest(ARRAY[tap.bob(), tap.alice()]) w ORDER BY outbox._owns_partition(w, ARRAY[tap.alice(), tap.bob()], outbox._partition_number(md5('a stream')::uuid, 10000)) OFFSET 0) x;

SELECT tap.clear() \gset
SELECT is(
    tap.payloads(tap.alice(), '{"new_outbox_messages": [{"topic": "work", "payload": "same"}, {"topic": "work", "payload": "same"}]}'), 'same,same',
    'WORK-16: what an application sends twice into the outbox, without a key, is two messages');

SELECT tap.clear() \gset
SELECT outbox.enqueue('work', n::text, stream_id => md5('a stream')::uuid, message_id => tap.m(n)) FROM generate_series(1, 2) n \g /dev/null
SELECT outbox.claim(tap.alice(), topics => '{work}', batch_size => 1) \g /dev/null
SELECT is(
    (SELECT array_agg(gate ORDER BY gate) FROM outbox.explain_message(tap.m(1)) WHERE NOT passed)
        || (SELECT array_agg(gate ORDER BY gate) FROM outbox.explain_message(tap.m(2)) WHERE NOT passed)
        || (SELECT regexp_replace(detail, '^.* (in progress by)', '\1') FROM outbox.explain_message(tap.m(2)) WHERE gate = 'first in stream'),
    ARRAY['not leased', 'first in stream', 'in progress by ' || tap.alice()],
    'WORK-28: explain_message shows why a message is not claimed: its lease, or which one of its stream is before it');

-- The inbox

SELECT tap.clear() \gset
SELECT outbox.receive(tap.m(1), 'work', 'first', 'source', md5('s')::uuid, '{"h": 1}') AS first, outbox.receive(tap.m(1), 'other', 'second') AS second \gset
SELECT is(
    ARRAY[:'first', :'second'] || array_agg(concat_ws(' ', handler_name, payload, source, stream_id = md5('s')::uuid, headers, status, attempts)),
    '{t,f,"work first source t {\"h\": 1} 0 0"}',
    'WORK-16: receive puts a message into the inbox; false says that it was seen before, and the first one stands')
  FROM outbox.inbox;

SELECT tap.payloads(tap.alice(), jsonb_build_object('new_inbox_messages', tap.entries('{"handler_name": "work", "payload": "batch"}', 1, 2, 2))) AS taken \gset
SELECT tap.payloads(tap.alice(), jsonb_build_object('inbox_completions', tap.entries('{"status": 2}', 1, 2))) AS done \gset
SELECT is(
    ARRAY[:'taken', :'done', outbox.receive(tap.m(1), 'work', 'late')::text,
          tap.payloads(tap.alice(), jsonb_build_object('new_inbox_messages', tap.entries('{"handler_name": "work", "payload": "late"}', 1, 2))),
          tap.count('outbox.inbox'), tap.count('outbox.message_deduplication')],
    '{"first,batch",nothing,false,nothing,0,2}',
    'WORK-16: a message is taken into the inbox once, however it comes in, and though it is done and gone');

UPDATE outbox.message_deduplication SET first_seen_at = now() - interval '100 years' WHERE message_id = tap.m(1);
SELECT outbox.cleanup() AS for_ever \gset
SELECT outbox.receive(tap.m(1), 'work', 'after a century') AS late \gset
SET LOCAL outbox.deduplication_retention = '1d';
SELECT outbox.cleanup() AS for_a_day \gset
SELECT is(
    ARRAY[:'late', outbox.receive(tap.m(1), 'work', 'again')::text, outbox.receive(tap.m(2), 'work', 'again')::text], '{f,true,false}',
    'WORK-16: what was seen is remembered forever, or for outbox.deduplication_retention');
RESET outbox.deduplication_retention;

SELECT is(
    tap.sqlstates($$SELECT outbox.receive(NULL, 'work', 'x')$$, $$SELECT outbox.receive(tap.m(9), NULL, 'x')$$, $$SELECT outbox.receive(tap.m(9), '', 'x')$$,
                  $$SELECT outbox.receive(tap.m(9), repeat('é', 256), 'x')$$, $$SELECT outbox.receive(tap.m(9), 'work', NULL)$$,
                  $$SELECT outbox.receive(tap.m(9), 'work', 'x', repeat('é', 256))$$) || outbox.receive(tap.m(9), repeat('é', 255), '', '')::text,
    '{22004,22004,22023,22023,22004,22023,true}',
    'section 6: what is wrong with a received message is an error of receive, and it was not seen then');

SELECT bag_eq(
    $$SELECT p.proname::text, pg_get_function_arguments(p.oid) FROM pg_proc p
       WHERE p.pronamespace = 'outbox'::regnamespace AND p.proname ~ '^(claim|ack|nack|fail|renew|release|reap)_inbox$'$$,
    $$SELECT p.proname || '_inbox', replace(replace(pg_get_function_arguments(p.oid), 'topics', 'handler_names'), ', subscription text DEFAULT NULL::text', '') FROM pg_proc p
       WHERE p.pronamespace = 'outbox'::regnamespace AND p.proname ~ '^(claim|ack|nack|fail|renew|release|reap)$'$$,
    'section 6: the inbox has the calls of the outbox, with handler_names for topics');

SELECT tap.clear() \gset
SELECT outbox.receive(tap.m(n), CASE WHEN n < 4 THEN 'work' ELSE 'other' END, n::text) FROM generate_series(1, 5) n \g /dev/null
CREATE TEMP TABLE claimed ON COMMIT DROP AS
SELECT * FROM outbox.claim_inbox(tap.alice(), 100, 10, handler_names => '{work}');
SELECT is(
    (SELECT string_agg(payload || topic, ',' ORDER BY id) FROM claimed)
        || ARRAY[outbox.ack_inbox(tap.bob(), ARRAY(SELECT id FROM claimed)),
                 outbox.renew_inbox(tap.alice(), ARRAY(SELECT id FROM claimed WHERE payload = '1'), 5000),
                 outbox.ack_inbox(tap.alice(), ARRAY(SELECT id FROM claimed WHERE payload = '1')),
                 outbox.nack_inbox(tap.alice(), ARRAY(SELECT id FROM claimed WHERE payload = '2'), 'e', '0'),
                 outbox.fail_inbox(tap.alice(), ARRAY(SELECT id FROM claimed WHERE payload = '3'), 'e', 4)]::text
        || tap.states('outbox.inbox')::text,
    '1work,2work,3work{0,1,1,1,1}' || ARRAY['2 ready progress 0 attempts 1 retries 1', '3 failed progress 0 attempts 1 retries 0',
                                            '4 ready progress 0 attempts 0 retries 0', '5 ready progress 0 attempts 0 retries 0']::text,
    'section 6: claim_inbox leases by handler_names; its owner renews, acks, nacks and fails, and no other');

SELECT count(*) AS leased FROM outbox.claim_inbox(tap.bob()) \gset
UPDATE outbox.inbox_queue SET locked_until = now() - interval '1 s' WHERE message_id = tap.m(4);
SELECT is(
    ARRAY[:leased, outbox.reap_inbox(), outbox.release_inbox(tap.bob()), (SELECT count(*) FROM outbox.claim_inbox(tap.alice()))], '{3,1,2,3}',
    'section 6: reap_inbox returns leases that have ended, release_inbox those of an owner');

SELECT tap.clear() \gset
SELECT outbox.receive(tap.m(n), 'work', n::text, stream_id => md5('s')::uuid) FROM generate_series(1, 3) n \g /dev/null
SELECT string_agg(payload, ',') AS one FROM outbox.claim_inbox(tap.alice(), batch_size => 1) \gset
SELECT is(
    ARRAY[:'one', tap.payloads(tap.bob()), (SELECT string_agg(payload, ',') FROM outbox.claim_inbox(tap.alice()))], '{1,nothing,"2,3"}',
    'WORK-10, WORK-11: streams of the inbox are strict as those of the outbox');

SELECT * FROM finish();
ROLLBACK;
