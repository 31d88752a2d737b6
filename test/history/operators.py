"""Those who do by hand, and all the time, what workers and operators do now and then."""

import time
import uuid

from clients import Client, age, timestamp
from plan import (BACKOFF_BASE, HANDLER_NAMES, NAMESPACES, OPERATED, PURGED, PURGES, REDRIVEN, RUN, SUBSCRIPTIONS, TIMED,
                  TOPICS)

CHORES = {
    'cleanup': 'SELECT outbox.cleanup()',
    'run_maintenance': 'SELECT count(*) FROM outbox.run_maintenance()',
    'maintain': 'CALL outbox.maintain()',
    'reap': 'SELECT outbox.reap()',
    'reap_expired': 'SELECT outbox.reap_expired(3)',
    'reap_inbox': 'SELECT outbox.reap_inbox()',
    'reap_timers': 'SELECT outbox.reap_expired_timers()',
    'reap_runs': 'SELECT outbox.reap_expired_job_runs()',
    'dispatch': 'SELECT outbox.dispatch_due(10)',
    'process_waits': 'SELECT outbox.process_join_waits(5)',
    'reconcile': 'SELECT outbox.reconcile_joins()',
    'status': 'SELECT count(*) FROM outbox.status()',
    'explain': 'SELECT count(*) FROM outbox.explain_message((SELECT coalesce(max(id), 0) FROM outbox.queue))',
    'stats': 'SELECT count(*) FROM outbox.topic_stats',
}
# what can be dead, its view, and how it is brought back
DEAD = {'': f"""outbox.dead WHERE failure_reason = 4 AND published_id IS NULL
            AND topic NOT IN ('{OPERATED}', '{PURGED}', '{REDRIVEN}')""",
        '_inbox': 'outbox.dead_inbox', '_timers': 'outbox.dead_timers', '_job_runs': 'outbox.dead_job_runs'}
PAUSED = {'message': TOPICS, 'inbox': HANDLER_NAMES, 'timer': (TIMED,), 'job_run': (RUN,), 'subscription': tuple(SUBSCRIPTIONS)}


class Steward(Client):
    kind = 'worker'

    def round(self):
        chance = self.chance
        act = chance.choices((self.pause, self.requeue, self.redrive, self.discard, self.reschedule, self.purge,
                              self.configure, self.visit, self.look_at_leases, self.chore),
                             (18, 10, 5, 5, 5, 8, 4, 4, 8, 33))[0]
        act()
        time.sleep(chance.random() * 0.2)

    def chore(self):
        name = self.chance.choice(sorted(CHORES))
        self.call(name, CHORES[name])

    def pause(self):
        kind = self.chance.choices(list(PAUSED), (6, 2, 1, 1, 2))[0]
        args = {'topic': self.chance.choice(PAUSED[kind]), 'namespace': 'default', 'kind': kind}
        which = ('subscription(%(topic)s, %(namespace)s)' if kind == 'subscription'
                 else 'topic(%(topic)s, %(namespace)s, %(kind)s)')
        self.call('pause', f'SELECT outbox.pause_{which}', args, args=args)
        time.sleep(self.chance.random() * 0.6)
        self.call('resume', f'SELECT outbox.resume_{which}', args, args=args)

    def configure(self):
        """Longer retries for a while, so that no lower bound of the laws falls."""
        kind = self.chance.choice(list(PAUSED))
        args = {'topic': self.chance.choice(PAUSED[kind]), 'kind': kind}
        self.call('configure', """
            SELECT outbox.configure_topic(%(topic)s, backoff_base => %(base)s * interval '1 ms', backoff_jitter => %(jitter)s,
                   kind => %(kind)s)
            """, {**args, 'base': 2 * BACKOFF_BASE, 'jitter': self.chance.random() < 0.5}, args=args)
        time.sleep(self.chance.random() * 0.2)
        for setting in ('backoff_base', 'backoff_jitter'):
            self.call('reset', "SELECT outbox.reset_topic(%(topic)s, 'default', %(setting)s, %(kind)s)",
                      {**args, 'setting': setting}, args=args)

    # what waits

    def some_ids(self, topic):
        return self.call('look', """
            SELECT array_agg(id) FROM (SELECT id FROM outbox.queue WHERE topic = %s AND status = 0 LIMIT 3) q
            """, (topic,))

    def discard(self):
        ids = self.some_ids(OPERATED)
        if ids:
            self.call('discard', 'SELECT outbox.discard(%s::bigint[])', (ids,), args={'ids': ids})

    def reschedule(self):
        ids = self.some_ids(OPERATED)
        if ids:
            due_at = age(self.chance.choice((None, 200, 1000)))
            self.call('reschedule', 'SELECT outbox.reschedule(%s::bigint[], %s::timestamptz)',
                      (ids, timestamp(due_at)), args={'ids': ids, 'due_at': due_at})

    def purge(self):
        namespace, what = self.chance.choice(list(PURGES.items()))
        args = {'topic': PURGED, 'namespace': namespace, 'what': what, 'limit': 3}
        self.call('purge', 'SELECT outbox.purge_topic(%(topic)s, %(namespace)s, %(what)s, %(limit)s)', args, args=args)

    # what is dead

    def requeue(self):
        """What was failed for good gets another chance."""
        store = self.chance.choice(list(DEAD))
        ids = self.call('look', f'SELECT array_agg(id) FROM (SELECT id FROM {DEAD[store]} LIMIT 3) d')
        if ids and len(ids) == 1 and not store:
            self.call('requeue', 'SELECT outbox.requeue_one(%s::bigint)', ids, args={'ids': ids, 'store': store})
        elif ids:
            self.call('requeue', f'SELECT outbox.requeue{store}(%s::bigint[])', (ids,), args={'ids': ids, 'store': store})

    def redrive(self):
        args = {'topic': REDRIVEN, 'namespace': self.chance.choice((None, *NAMESPACES)), 'limit': 5}
        self.call('redrive', 'SELECT outbox.redrive(%(topic)s, %(namespace)s, %(limit)s)', args, args=args)

    # who is there

    def visit(self):
        """An instance that has nothing to do."""
        owner = str(uuid.UUID(int=self.chance.getrandbits(128), version=4))
        self.call('heartbeat', "SELECT outbox.heartbeat(%s::uuid, 'visitor', 'here', 2)", (owner,))
        if self.chance.random() < 0.5:
            self.call('leave', 'SELECT outbox.deregister_instance(%s::uuid)', (owner,))

    def look_at_leases(self):
        self.call('look_at_leases', """
            SELECT id, owner_token::text, (extract(epoch FROM locked_until) * 1000000)::bigint
              FROM outbox.leases LIMIT 40""", parse=lambda rows: [list(row) for row in rows])
