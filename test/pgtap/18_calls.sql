-- 18_calls.sql: the calls themselves: names, arguments, defaults
--
-- Section 4 of the contract, and what sections 6 and 7 say is like it.

BEGIN;
\ir include/tools.sql
SELECT plan(16);

-- The functions whose names match, with their arguments and what they return.
CREATE FUNCTION tap.calls(pattern text)
RETURNS TABLE (name text, arguments text, result text)
LANGUAGE sql
AS $$
    SELECT p.proname::text, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid)
      FROM pg_proc p
     WHERE p.pronamespace = 'outbox'::regnamespace AND p.proname ~ pattern
$$;

SELECT bag_eq(
    $$SELECT * FROM tap.calls('^(ack|nack|abandon|fail|renew|release|requeue|redrive|reap|reap_expired)$')$$,
    $$VALUES ('ack', 'owner_token uuid, ids bigint[], attempts integer[] DEFAULT NULL::integer[], strict boolean DEFAULT false', 'integer'),
             ('nack', 'owner_token uuid, ids bigint[], error text DEFAULT NULL::text, delay interval DEFAULT NULL::interval, attempts integer[] DEFAULT NULL::integer[], strict boolean DEFAULT false, max_attempts integer DEFAULT NULL::integer', 'integer'),
             ('abandon', 'owner_token uuid, ids bigint[], error text DEFAULT NULL::text, delay interval DEFAULT NULL::interval, attempts integer[] DEFAULT NULL::integer[], strict boolean DEFAULT false, max_attempts integer DEFAULT NULL::integer', 'integer'),
             ('fail', 'owner_token uuid, ids bigint[], error text DEFAULT NULL::text, reason integer DEFAULT NULL::integer, attempts integer[] DEFAULT NULL::integer[], strict boolean DEFAULT false', 'integer'),
             ('renew', 'owner_token uuid, ids bigint[], lease_seconds integer DEFAULT NULL::integer, attempts integer[] DEFAULT NULL::integer[], strict boolean DEFAULT false', 'integer'),
             ('release', 'owner_token uuid', 'integer'),
             ('release', 'owner_token uuid, ids bigint[], strict boolean DEFAULT false', 'integer'),
             ('requeue', 'ids bigint[]', 'integer'),
             ('redrive', 'topic text DEFAULT NULL::text, namespace text DEFAULT NULL::text, batch_limit integer DEFAULT NULL::integer, subscription text DEFAULT NULL::text', 'integer'),
             ('reap', 'batch_limit integer DEFAULT NULL::integer', 'integer'),
             ('reap_expired', 'batch_limit integer DEFAULT NULL::integer', 'integer')$$,
    'section 4: arguments have the names, types, order and defaults of the contract');

SELECT bag_eq(
    $$SELECT * FROM tap.calls('_one$')$$,
    $$SELECT name || '_one',
             replace(replace(arguments, 'ids bigint[]', 'id bigint'),
                     'attempts integer[] DEFAULT NULL::integer[]', 'attempt integer DEFAULT NULL::integer'),
             result
        FROM tap.calls('^(ack|nack|fail|renew|release|requeue)$')
       WHERE arguments ~ 'ids'$$,
    'section 4: those for one message have id and attempt, and are otherwise those for many');

SELECT bag_eq(
    $$SELECT * FROM tap.calls('^(ack|abandon|fail|renew|reap_expired)_(timers|job_runs)$')$$,
    $$SELECT name || '_' || store,
             arguments || CASE WHEN name = 'ack' AND store = 'job_runs' THEN ', output text DEFAULT NULL::text' ELSE '' END AS arguments,
             result
        FROM tap.calls('^(ack|abandon|fail|renew|reap_expired)$'), unnest('{timers,job_runs}'::text[]) store$$,
    'QUEUE-01: timers and runs are settled with the arguments of messages');

-- Why a call cannot be prepared with parameters of unknown type; null if it can.
CREATE FUNCTION tap.unprepared(call text)
RETURNS text
LANGUAGE plpgsql
AS $$
BEGIN
    EXECUTE 'PREPARE untyped AS SELECT * FROM outbox.' || call;
    DEALLOCATE untyped;
    RETURN NULL;
EXCEPTION
    WHEN OTHERS THEN
        RETURN SQLSTATE || ' ' || call;
END
$$;

-- Each function of the schema that is for callers, with each number of its
-- optional arguments, by position and by name.
CREATE VIEW tap.every_call AS
SELECT p.proname, format('%I(%s)', p.proname, unnest(ARRAY[a.numbers, a.names])) AS call
  FROM pg_proc p,
       generate_series(p.pronargs - p.pronargdefaults::integer, p.pronargs) n,
       LATERAL (SELECT string_agg('$' || i, ', ' ORDER BY i),
                       string_agg(p.proargnames[i] || ' => $' || i, ', ' ORDER BY i)
                  FROM generate_series(1, n) i) a(numbers, names)
 WHERE p.pronamespace = 'outbox'::regnamespace AND p.prokind = 'f' AND p.proname !~ '^_';
SELECT is(
    ARRAY(SELECT DISTINCT e.proname::text FROM tap.every_call e ORDER BY 1),
    ARRAY(SELECT DISTINCT p.proname::text FROM pg_proc p
           WHERE p.pronamespace = 'outbox'::regnamespace AND p.prokind = 'f' AND p.proname !~ '^_' ORDER BY 1),
    'section 4: no function is left out of the next');
SELECT is(
    ARRAY(SELECT DISTINCT tap.unprepared(e.call) FROM tap.every_call e WHERE tap.unprepared(e.call) IS NOT NULL),
    '{}',
    'section 4: each can be prepared with parameters of unknown type, any number of the optional ones left out');

SAVEPOINT overloaded;
CREATE FUNCTION outbox.ack(owner_token uuid, ids bigint) RETURNS integer LANGUAGE sql AS 'SELECT 1';
SELECT tap.unprepared('ack($1, $2)') AS overloaded \gset
ROLLBACK TO overloaded;
SELECT is(:'overloaded'::text, '42725 ack($1, $2)', 'section 4: an overload that a driver cannot tell apart would be found');

SELECT outbox.enqueue_many('calls-owner', '{1,2,3}') \gset
SELECT owner_token AS first FROM outbox.claim(batch_size => 1, topics => '{calls-owner}') \gset
SELECT string_agg(DISTINCT owner_token::text, ' ') AS second FROM outbox.claim(topics => '{calls-owner}') \gset
SELECT is(
    ARRAY(SELECT DISTINCT (owner_token = :'first')::text FROM outbox.messages WHERE topic = 'calls-owner' AND payload = '1')
        || ARRAY[(:'second'::uuid <> :'first')::text, outbox.release(:'first')::text, outbox.release(:'second')::text],
    '{true,true,1,2}',
    'section 4: without an owner_token each claim makes one, which its messages carry');

SELECT is(
    ARRAY(SELECT outbox.ack(tap.alice(), array_agg(id), array_agg(attempts)) FROM outbox.claim(tap.alice(), topics => '{calls-none}'))
        || ARRAY[outbox.nack(tap.alice(), NULL), outbox.fail(tap.alice(), NULL), outbox.renew(tap.alice(), NULL),
                 outbox.release(tap.alice(), NULL), outbox.requeue(NULL), outbox.ack(tap.alice(), NULL, strict => true),
                 outbox.ack_inbox(tap.alice(), NULL), outbox.ack_timers(tap.alice(), NULL), outbox.ack_job_runs(tap.alice(), NULL)],
    '{0,0,0,0,0,0,0,0,0,0}',
    'section 4: null ids are an empty list, as array_agg makes them of an empty claim');

SELECT is(
    tap.sqlstates(
        $$SELECT outbox.ack(NULL, '{1}')$$, $$SELECT outbox.nack(NULL, '{1}')$$, $$SELECT outbox.abandon(NULL, '{1}')$$,
        $$SELECT outbox.fail(NULL, '{1}')$$, $$SELECT outbox.renew(NULL, '{1}')$$, $$SELECT outbox.release(NULL)$$,
        $$SELECT outbox.release(NULL, '{1}')$$, $$SELECT outbox.ack_one(NULL, 1)$$, $$SELECT outbox.nack_one(NULL, 1)$$,
        $$SELECT outbox.fail_one(NULL, 1)$$, $$SELECT outbox.renew_one(NULL, 1)$$, $$SELECT outbox.release_one(NULL, 1)$$,
        $$SELECT outbox.release_inbox(NULL)$$, $$SELECT outbox.ack_timers(NULL, NULL)$$),
    array_fill('22004'::text, ARRAY[14]),
    'section 4: an owner_token that is null is refused with 22004, but in claim');

SELECT tap.lease('calls-one', '1', '2', '3', '4', '5', '6') AS leased \gset
SELECT l[1] AS l1, l[2] AS l2, l[3] AS l3, l[4] AS l4, l[5] AS l5, l[6] AS l6 FROM (SELECT :'leased'::bigint[]) AS leased (l) \gset
SELECT ARRAY[outbox.ack_one(tap.bob(), :l1), outbox.ack_one(tap.alice(), :l1, 2), outbox.ack_one(tap.alice(), NULL),
             outbox.ack_one(tap.alice(), :l1, 1), outbox.nack_one(tap.alice(), :l2, 'later', '1 day'),
             outbox.fail_one(tap.alice(), :l3, 'never', 4), outbox.renew_one(tap.alice(), :l4, 3600),
             outbox.release_one(tap.alice(), :l5), outbox.fail_one(tap.alice(), :l6), outbox.requeue_one(:l6)] AS changed \gset
SELECT is(
    :'changed'::text[]
        || ARRAY(SELECT concat_ws(' ', status, retry_count, last_error, failure_reason, locked_until > now() + interval '50 min')
                   FROM outbox.messages WHERE topic = 'calls-one' ORDER BY id),
    '{0,0,0,1,1,1,1,1,1,1,2 0 0,0 1 later 99,3 0 never 4,1 0 0 t,0 0 0,0 0 0}',
    'section 4: one message is acked, nacked, failed, renewed, released and requeued by its id');

CREATE FUNCTION tap.lost(call text)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    detail text;
BEGIN
    EXECUTE 'SELECT outbox.' || call;
    RETURN 'done';
EXCEPTION
    WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
        RETURN concat_ws(' ', SQLSTATE, substring(SQLERRM FROM 'lease lost'), substring(detail FROM '-77'));
END
$$;
SELECT tap.lease('calls-strict', '1') AS leased \gset
SELECT is(
    ARRAY(SELECT DISTINCT tap.lost(format(c.call, tap.alice(), (:'leased'::bigint[])[1]))
            FROM unnest(ARRAY['renew(%L, ''{%s,-77}'', strict => true)', 'release(%L, ''{%s,-77}'', true)',
                              'nack(%L, ''{%s,-77}'', strict => true)', 'ack(%L, ''{%s,-77}'', ''{1,NULL}'', true)',
                              'ack_one(%L, -77, NULL, true)', 'nack_one(%L, -77, strict => true)',
                              'fail_one(%L, -77, strict => true)', 'renew_one(%L, -77, strict => true)',
                              'release_one(%L, -77, true)', 'release_inbox(%L, ''{%s,-77}'', true)',
                              'renew_timers(%L, ''{-77}'', strict => true)', 'renew_job_runs(%L, ''{-77}'', strict => true)']) AS c (call))
        || ARRAY(SELECT concat_ws(' ', status, attempts, retry_count) FROM outbox.messages WHERE topic = 'calls-strict'),
    '{55000 lease lost -77,1 1 0}',
    'section 4: with strict each does all or, with 55000 and the ids in DETAIL, nothing');

SELECT is(
    ARRAY(SELECT outbox.reason_name(r) FROM unnest(ARRAY[-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 99, NULL]) r)
        || ARRAY(SELECT outbox.status_name(s) FROM unnest(ARRAY[0, 1, 2, 3, 4]) s),
    ARRAY[NULL, 'none', 'transport not ready', 'transport error', 'serialization', 'validation', 'max attempts exceeded',
          'lease or message expired', 'event storage', 'throttled', 'cancelled', NULL, 'unknown', NULL,
          'ready', 'in progress', 'done', 'failed', NULL],
    'section 4: reason_name and status_name spell numbers of type int');

SELECT bag_eq(
    $$SELECT * FROM tap.calls('^(discard|cancel|cancel_by_key|reschedule|purge_topic|explain_message|requeue_.*|reset_topic|(grant|revoke)_(producer|worker|monitor|admin))$')
       WHERE name <> 'requeue_one'$$,
    $$VALUES ('discard', 'ids bigint[]', 'integer'), ('cancel', 'message_id uuid', 'boolean'),
             ('cancel_by_key', 'topic text, dedupe_key text, namespace text DEFAULT ''default''::text', 'boolean'),
             ('reschedule', 'ids bigint[], due_time timestamp with time zone', 'integer'),
             ('purge_topic', 'topic text, namespace text DEFAULT ''default''::text, what text DEFAULT ''ready''::text, batch_limit integer DEFAULT NULL::integer, subscription text DEFAULT NULL::text', 'bigint'),
             ('explain_message', 'id bigint', 'TABLE(gate text, passed boolean, detail text)'),
             ('explain_message', 'message_id uuid', 'TABLE(gate text, passed boolean, detail text)'),
             ('explain_message', 'message text', 'TABLE(gate text, passed boolean, detail text)'),
             ('requeue_inbox', 'ids bigint[]', 'integer'), ('requeue_timers', 'ids bigint[]', 'integer'), ('requeue_job_runs', 'ids bigint[]', 'integer'),
             ('reset_topic', 'topic text, namespace text DEFAULT ''default''::text, setting text DEFAULT NULL::text, kind text DEFAULT ''message''::text', 'boolean'),
             ('grant_producer', 'role regrole', 'void'), ('grant_worker', 'role regrole', 'void'), ('grant_monitor', 'role regrole', 'void'), ('grant_admin', 'role regrole', 'void'),
             ('revoke_producer', 'role regrole', 'void'), ('revoke_worker', 'role regrole', 'void'), ('revoke_monitor', 'role regrole', 'void'), ('revoke_admin', 'role regrole', 'void')$$,
    'section 4: those of operators have the names, types, order and defaults of the contract');

SELECT results_eq(
    $$SELECT p.proname::text COLLATE "C", array_agg(a.type ORDER BY a.type), bool_and(a.has_default = (a.type = 'text' AND p.proname = 'create_or_update_job'))
        FROM pg_proc p, LATERAL (SELECT format_type(t, NULL) AS type, i > p.pronargs - p.pronargdefaults AS has_default
                                   FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY u(t, i)
                                  WHERE p.proargnames[i] IN ('payload', 'on_complete_payload')) a
       WHERE p.pronamespace = 'outbox'::regnamespace AND p.proname !~ '^_' GROUP BY p.proname ORDER BY 1$$,
    $$SELECT name COLLATE "C", '{json,jsonb,text}'::text[], true FROM unnest('{create_or_update_job,enqueue,enqueue_join_wait,enqueue_step,publish,receive,schedule_timer,try_enqueue}'::text[]) name$$,
    'section 4: wherever there is one payload it is text, json or jsonb, with a default in the text form only');

SELECT bag_eq(
    $$SELECT * FROM tap.calls('^(subscribe|unsubscribe|route|replay|configure_subscription|pause_subscription|resume_subscription|publish_many|publish_many_json|publish_batch|register_handler|unregister_handler)$')$$,
    $$VALUES ('subscribe', 'subscription text, topics text[], namespace text DEFAULT ''default''::text, filter jsonb DEFAULT NULL::jsonb, start_at timestamp with time zone DEFAULT NULL::timestamp with time zone', 'void'),
             ('unsubscribe', 'subscription text, namespace text DEFAULT ''default''::text, drop_messages boolean DEFAULT false', 'boolean'),
             ('route', 'topic text, headers jsonb DEFAULT NULL::jsonb, namespace text DEFAULT ''default''::text', 'SETOF text'),
             ('replay', 'subscription text, from_time timestamp with time zone, until_time timestamp with time zone DEFAULT NULL::timestamp with time zone, topics text[] DEFAULT NULL::text[], namespace text DEFAULT ''default''::text', 'bigint'),
             ('configure_subscription', 'subscription text, namespace text DEFAULT ''default''::text, max_attempts integer DEFAULT NULL::integer, backoff_base interval DEFAULT NULL::interval, backoff_max interval DEFAULT NULL::interval, retention interval DEFAULT NULL::interval, dead_retention interval DEFAULT NULL::interval, backoff_jitter boolean DEFAULT NULL::boolean', 'void'),
             ('pause_subscription', 'subscription text, namespace text DEFAULT ''default''::text', 'void'), ('resume_subscription', 'subscription text, namespace text DEFAULT ''default''::text', 'void'),
             ('publish_many', 'topic text, payloads text[], namespace text DEFAULT ''default''::text, headers jsonb DEFAULT NULL::jsonb, due_time timestamp with time zone DEFAULT NULL::timestamp with time zone, stream_id uuid DEFAULT NULL::uuid', 'uuid[]'),
             ('publish_many_json', 'topic text, payloads jsonb, namespace text DEFAULT ''default''::text, headers jsonb DEFAULT NULL::jsonb, due_time timestamp with time zone DEFAULT NULL::timestamp with time zone, stream_id uuid DEFAULT NULL::uuid', 'uuid[]'),
             ('publish_batch', 'messages jsonb', 'TABLE(ordinal integer, message_id uuid, deliveries integer)'),
             ('register_handler', 'topic text, handler regprocedure, namespace text DEFAULT ''default''::text, batch_size integer DEFAULT NULL::integer, lease_seconds integer DEFAULT NULL::integer, timeout interval DEFAULT NULL::interval, subscription text DEFAULT NULL::text', 'void'),
             ('unregister_handler', 'topic text, namespace text DEFAULT ''default''::text, subscription text DEFAULT NULL::text', 'void')$$,
    'section 13: calls have the names, types, order and defaults of the contract');

-- A worker's loop: what it can do it acks, what it cannot it abandons.
CREATE FUNCTION tap.work_off(topic text)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    turns     integer := 0;
    item      outbox.message;
    succeeded bigint[];
    failed    bigint[];
BEGIN
    LOOP
        succeeded := '{}';
        failed := '{}';
        FOR item IN SELECT * FROM outbox.claim(tap.alice(), 30, 50, topics => ARRAY[topic]) LOOP
            IF item.payload::integer % 3 = 0 AND item.attempts = 1 THEN
                failed := failed || item.id;
            ELSE
                succeeded := succeeded || item.id;
            END IF;
        END LOOP;
        EXIT WHEN succeeded || failed = '{}';
        turns := turns + 1;
        PERFORM outbox.ack(tap.alice(), succeeded), outbox.abandon(tap.alice(), failed, 'not yet', '0');
    END LOOP;
    RETURN turns;
END
$$;
SELECT outbox.enqueue_many('calls-loop', ARRAY(SELECT i::text FROM generate_series(1, 120) i)) \gset
SELECT tap.work_off('calls-loop') AS turns \gset
SELECT is(
    (SELECT ROW(:turns, count(*), min(status), max(status), sum(retry_count), sum(attempts))::text FROM outbox.messages WHERE topic = 'calls-loop'),
    '(4,120,2,2,40,160)',
    'QUEUE-15, SHARED-21: a worker that claims, acks what has succeeded and abandons the rest, comes to an end of all');

SELECT * FROM finish();
ROLLBACK;
