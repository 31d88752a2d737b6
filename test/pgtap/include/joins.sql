-- joins.sql: joins, their steps and waits, for the files that are about them

-- Starts a join whose steps have this topic, and leases them to alice; its id.
CREATE FUNCTION tap.start(topic text, expected integer, VARIADIC steps text[] DEFAULT '{}')
RETURNS uuid
LANGUAGE plpgsql
AS $$
DECLARE
    started uuid := outbox.start_join(topic, expected);
BEGIN
    PERFORM outbox.enqueue_step(started, topic, s.step) FROM unnest(steps) s(step);
    PERFORM outbox.claim(tap.alice(), topics => ARRAY[topic], batch_size => 10000);
    RETURN started;
END
$$;

-- The steps of a topic that are in the queue, by their payloads; all without.
CREATE FUNCTION tap.steps(topic text, VARIADIC steps text[] DEFAULT '{}')
RETURNS bigint[]
LANGUAGE sql
AS $$
    SELECT coalesce(array_agg(q.id ORDER BY q.id), '{}')
      FROM outbox.queue q
     WHERE q.topic = steps.topic
       AND (q.payload = ANY (steps.steps) OR steps.steps = '{}')
$$;

-- How far a join is, in the words of outbox.joins and outbox.join_members:
-- status, completed + failed of expected steps, and its members' states.
CREATE FUNCTION tap.join(join_id uuid)
RETURNS text
LANGUAGE sql
AS $$
    SELECT format('%s %s+%s/%s %s', outbox.join_status_name(j.status),
                  j.completed_steps, j.failed_steps, j.expected_steps,
                  ARRAY(SELECT m.status
                          FROM outbox.join_members m
                         WHERE m.join_id = j.join_id
                         ORDER BY m.message_id))
      FROM outbox.joins j
     WHERE j.join_id = "join".join_id
$$;

-- The messages of these topics, as topic:payload.
CREATE FUNCTION tap.messages(topics text)
RETURNS text[]
LANGUAGE sql
AS $$
    SELECT ARRAY(SELECT m.topic || ':' || m.payload
                   FROM outbox.messages m
                  WHERE m.topic LIKE messages.topics
                  ORDER BY 1)
$$;
