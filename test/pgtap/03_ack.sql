-- 03_ack.sql: finishing messages
--
-- OBX-027..034, section 4 of the contract.

BEGIN;
\ir include/tools.sql
SELECT plan(8);

SELECT tap.lease('obx-027', 'p') AS leased \gset
SELECT clock_timestamp() AS before, outbox.ack(tap.alice(), :'leased') AS acked \gset
SELECT is(
    ROW(:acked, status, is_processed, owner_token, locked_until,
        processed_at BETWEEN :'before' AND clock_timestamp())::text,
    '(1,2,t,,,t)',
    'OBX-027 ack finishes a message: status 2, processed_at by the clock, the lease gone')
  FROM outbox.messages WHERE topic = 'obx-027';

SELECT tap.lease('obx-028', 'p') AS leased \gset
SELECT outbox.ack(tap.alice(), :'leased') \gset
SELECT is(processed_by, tap.alice()::text, 'OBX-028 processed_by is the owner who acked')
  FROM outbox.messages WHERE topic = 'obx-028';

SELECT tap.lease('obx-029', 'acked', 'not') AS leased \gset
SELECT outbox.ack(tap.alice(), (:'leased'::bigint[])[1:1]) \gset
SELECT tap.end_leases('obx-029') \gset
SELECT is(
    ARRAY(SELECT payload FROM outbox.claim(tap.bob(), topics => '{obx-029}')), '{not}',
    'OBX-029 what is acked is never claimable again');

SELECT tap.lease('obx-030', '1', '2') AS leased \gset
SELECT outbox.ack(tap.bob(), :'leased') AS by_another \gset
SELECT is(
    ARRAY[:'by_another'] || ARRAY(SELECT format('%s %s', status, owner_token)
                                    FROM outbox.messages WHERE topic = 'obx-030'),
    ARRAY['0', '1 ' || tap.alice(), '1 ' || tap.alice()],
    'OBX-030 ack touches only messages that are leased to the caller');

SELECT tap.lease('obx-031', '1', '2') AS leased \gset
SELECT tap.end_leases('obx-031') \gset
SELECT count(*) FROM outbox.claim(tap.alice(), topics => '{obx-031}') \gset
SELECT is(
    ARRAY[outbox.ack(tap.alice(), :'leased', '{1,1}'),
          outbox.ack(tap.alice(), :'leased', '{NULL,NULL}'),
          outbox.ack(tap.alice(), :'leased', '{2,1}'),
          outbox.ack(tap.alice(), (:'leased'::bigint[])[2:2], '{2}')],
    '{0,0,1,1}',
    'OBX-031 with attempts, only a lease of that very attempt is acked');

SELECT tap.lease('obx-032', '1', '2', '3') AS leased \gset
SELECT is(
    ARRAY[outbox.ack(tap.alice(), (:'leased'::bigint[])[1:1]),
          outbox.ack(tap.alice(), :'leased'::bigint[] || (:'leased'::bigint[])[2:3] || '{NULL,0,-1,9223372036854775807}'),
          outbox.ack(tap.alice(), :'leased'),
          outbox.ack(tap.alice(), '{}')],
    '{1,2,0,0}',
    'OBX-032 unknown, finished, null and duplicate ids are ignored; the result is how many were acked');

SELECT tap.lease('obx-033', '1', '2') AS leased \gset
CREATE FUNCTION tap.strict_ack(ids bigint[])
RETURNS text[]
LANGUAGE plpgsql
AS $$
DECLARE
    detail text;
BEGIN
    PERFORM outbox.ack(tap.alice(), ids, strict => true);
    RETURN '{acked}';
EXCEPTION
    WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
        RETURN ARRAY[SQLSTATE, substring(SQLERRM FROM 'lease lost'), substring(detail FROM '-77')];
END
$$;
SELECT tap.strict_ack(:'leased'::bigint[] || '{-77}') AS refused \gset
SELECT is(
    :'refused'::text[]
        || ARRAY(SELECT status::text FROM outbox.messages WHERE topic = 'obx-033')
        || tap.strict_ack(:'leased'),
    '{55000,"lease lost",-77,1,1,acked}',
    'OBX-033 strict raises 55000 "lease lost" with the ids in DETAIL and changes nothing');

SELECT tap.lease('obx-034', 'not taken', 'taken') AS leased \gset
SELECT tap.end_leases('obx-034') \gset
SELECT outbox.ack(tap.alice(), (:'leased'::bigint[])[1:1]) AS late \gset
SELECT count(*) AS taken FROM outbox.claim(tap.bob(), topics => '{obx-034}') \gset
SELECT is(
    ARRAY[:late, :taken, outbox.ack(tap.alice(), (:'leased'::bigint[])[2:2]),
          outbox.ack(tap.bob(), (:'leased'::bigint[])[2:2])],
    '{1,1,0,1}',
    'OBX-034 an expired lease can still be acked by its owner, unless somebody took the message');

SELECT * FROM finish();
ROLLBACK;
