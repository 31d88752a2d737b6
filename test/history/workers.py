"""Those who take something out: workers, instances, and the patient one at the end.

A claim's result is a list of leases [id, tag, attempts, from, until, message_id];
from and until are the server's times, which process_work_batch does not tell.
"""

import json
import time
import uuid

from clients import Client, Lost, Refused
from plan import CLAIMED_TOPICS, TOPICS, payload, read_payload

CLAIM = """
    SELECT id, payload, attempts, (extract(epoch FROM locked_until) * 1000000)::bigint, message_id
      FROM outbox.{function}(%(owner)s::uuid, lease_seconds => %(lease)s, batch_size => %(batch)s,
           namespace => %(namespace)s, {topics} => %(topics)s::text[], wait_ms => %(wait)s)
"""


def new_owner(chance):
    return str(uuid.UUID(int=chance.getrandbits(128), version=4))


def leases(rows, lease):
    found = []
    for row_id, text, attempts, until, message_id in rows:
        tag, whole = read_payload(text)
        found.append([row_id, tag if whole else f'broken: {text[:40]}', attempts,
                      until - lease * 1000000, until, str(message_id)])
    return found


class Worker(Client):
    kind = 'worker'
    store = ''          # what the names of the calls end with
    topics_name = 'topics'

    def __init__(self, *more):
        super().__init__(*more)
        self.owner = new_owner(self.chance)
        self.forgotten = []     # leases that were left to end

    def claim(self, **options):
        chance = self.chance
        args = {'owner': self.owner, 'store': self.store, 'lease': chance.choices((1, 2, 10), (3, 3, 1))[0],
                'batch': 100 if chance.random() < 0.2 else chance.randrange(1, 20),
                'namespace': 'default' if chance.random() < 0.1 else None, 'topics': None,
                'wait': chance.choice((0, 20, 500))}
        if not self.store and chance.random() < 0.2:
            args['topics'] = chance.sample(CLAIMED_TOPICS, 3)
        args.update(options)
        statement = CLAIM.format(function='claim' + self.store, topics=self.topics_name)
        tx = ''
        if chance.random() < 0.05:
            tx = self.begin()
        taken = self.call('claim', statement, args, tx, args, lambda rows: leases(rows, args['lease']))
        if tx:
            how = chance.choice(('commit', 'rollback'))
            if chance.random() < 0.2:
                self.end_in_two(tx, f'{how} prepared')
            else:
                self.end(tx, how)
            if how == 'rollback':
                return []
        return taken or []

    # settling

    def settle(self, op, taken, tx='', strict=False, fenced=True):
        if not taken:
            return 0
        chance = self.chance
        ids = [lease[0] for lease in taken]
        attempts = [lease[2] for lease in taken] if fenced else None
        args = {'owner': self.owner, 'store': self.store, 'ids': ids, 'attempts': attempts}
        more = ''
        if op == 'renew':
            args['lease'] = chance.choice((1, 2))
            more = ', lease_seconds => %(lease)s'
        elif op == 'nack':
            more = ", error => 'again'"
            args['delay'] = chance.randrange(600) if chance.random() < 0.4 else None
            more += ", delay => %(delay)s * interval '1 ms'"
        elif op == 'fail':
            more = ", error => 'never', reason => 4"
        if op != 'release':
            more += ', attempts => %(attempts)s::int[]'
        if strict:
            more += ', strict => true'
        return self.call(op, f'SELECT outbox.{op}{self.store}(%(owner)s::uuid, %(ids)s::bigint[]{more})',
                         args, tx, args)

    def handle(self, taken):
        chance = self.chance
        roll = chance.random()
        if roll < 0.45:
            self.settle('ack', taken, fenced=chance.random() < 0.7)
        elif roll < 0.50 and not self.store:
            self.ack_with_work(taken)
        elif roll < 0.53:
            self.call('release_all', f'SELECT outbox.release{self.store}(%s::uuid)', (self.owner,),
                      args={'owner': self.owner, 'store': self.store})
        else:
            for lease in taken:
                self.handle_one(lease, taken)

    def handle_one(self, lease, taken):
        chance = self.chance
        op = chance.choices(('ack', 'nack', 'fail', 'renew', 'release', 'forget'), (80, 8, 1, 6, 3, 2))[0]
        if op == 'forget':
            self.forgotten.append(lease)
            return
        if op == 'renew':
            self.settle('renew', taken if chance.random() < 0.3 else [lease])
            op = 'ack'
        self.settle(op, [lease], strict=chance.random() < 0.2)

    def ack_with_work(self, taken):
        """The work and a strict ack in one transaction: exactly once."""
        tx = self.begin()
        self.call('work', 'INSERT INTO app.worked SELECT unnest(%s::text[])', ([lease[1] for lease in taken],), tx,
                  {'tags': [lease[1] for lease in taken]})
        self.settle('ack', taken, tx, strict=True)
        if self.chance.random() < 0.2:
            self.end_in_two(tx, 'commit prepared')
        else:
            self.end(tx, 'commit')

    def try_stale(self):
        """Acknowledge what was forgotten: it works only if nobody has taken it since."""
        stale = [self.forgotten.pop(0)]
        self.settle(self.chance.choice(('ack', 'nack', 'renew')), stale, strict=self.chance.random() < 0.5)

    def round(self):
        if self.chance.random() < 0.01:
            self.call('reap', f'SELECT outbox.reap{self.store}()')
        if len(self.forgotten) > 5:
            self.try_stale()
        try:
            taken = self.claim()
        except Lost:
            # what it took, if anything, is the old owner's until the leases end
            self.owner = new_owner(self.chance)
            self.forgotten = []
            raise
        if taken:
            self.handle(taken)

    def finish(self):
        if self.chance.random() < 0.5:
            self.call('release_all', f'SELECT outbox.release{self.store}(%s::uuid)', (self.owner,),
                      args={'owner': self.owner, 'store': self.store})


class InboxWorker(Worker):
    store = '_inbox'
    topics_name = 'handler_names'


class Instance(Client):
    """A program that calls process_work_batch; it comes, works, and goes, in silence or not."""
    kind = 'worker'
    LEASE, STALE = 2, 3

    def __init__(self, *more):
        super().__init__(*more)
        self.come()

    def come(self):
        self.owner = new_owner(self.chance)
        self.rounds = self.chance.randrange(5, 120)
        self.done, self.failed, self.kept = [], [], []
        self.sent = 0

    def work_batch(self):
        chance = self.chance
        one = {'outbox': 4, 'inbox': 2}
        sections = {
            'outbox_completions': [], 'inbox_completions': [], 'outbox_failures': [], 'inbox_failures': [],
            'renew_outbox_lease_ids': [], 'renew_inbox_lease_ids': [], 'new_outbox_messages': [],
            'new_inbox_messages': []}
        messages = []
        for source, lease in self.done:
            # a status with fewer bits gives the lease back
            sections[f'{source}_completions'].append(
                {'message_id': lease[5], 'status': one[source] if chance.random() < 0.95 else chance.choice((0, 1))})
        for source, lease in self.failed:
            sections[f'{source}_failures'].append({'MessageId': lease[5], 'error': 'again'})
        for source, lease in self.kept:
            sections[f'renew_{source}_lease_ids'].append(lease[5])
        if chance.random() < 0.2:
            self.serial += 1
            message = {'tag': f'{self.name}.b{self.serial}', 'topic': chance.choice(TOPICS), 'namespace': 'default', 'size': 0}
            messages.append(message)
            sections['new_outbox_messages'].append({'topic': message['topic'], 'payload': payload(message['tag'])})
        args = {'owner': self.owner, 'lease': self.LEASE, 'stale': self.STALE, 'messages': messages,
                **{name: section for name, section in sections.items() if section and not name.startswith('new')}}
        named = ''.join(f', {name} => %({name})s::jsonb' for name, section in sections.items() if section)
        values = {name: json.dumps(section) for name, section in sections.items()}

        def parse(rows):
            taken = []
            for source, row_id, message_id, text, attempts in rows:
                tag, whole = read_payload(text)
                taken.append([source, [row_id, tag if whole else f'broken: {text[:40]}', attempts, 0, 0, str(message_id)]])
            return taken

        return self.call('work_batch', f"""
            SELECT source, id, message_id, payload, attempts
              FROM outbox.process_work_batch(%(owner)s::uuid, 'history', 'here', 1{named},
                   lease_seconds => %(lease)s, stale_threshold_seconds => %(stale)s, batch_size => %(batch)s)
            """, {**args, **values, 'batch': chance.randrange(1, 30)}, args=args, parse=parse)

    def round(self):
        chance = self.chance
        if self.rounds == 0:
            if chance.random() < 0.6:
                self.call('deregister', 'SELECT outbox.deregister_instance(%s::uuid)', (self.owner,),
                          args={'owner': self.owner})
            self.come()
        self.rounds -= 1
        try:
            taken = self.work_batch()
        except Lost:
            self.come()
            raise
        except Refused:
            self.done, self.failed, self.kept = [], [], []
            raise
        again = self.kept
        self.done, self.failed, self.kept = [], [], []
        for entry in taken + again:
            chance.choices((self.done, self.failed, self.kept, []), (85, 5, 5, 5))[0].append(entry)
        time.sleep(chance.random() * 0.02)


class Steward(Client):
    """Does by hand, and all the time, what workers and operators do now and then."""
    kind = 'worker'
    CHORES = {
        'cleanup': 'SELECT outbox.cleanup()',
        'run_maintenance': 'SELECT count(*) FROM outbox.run_maintenance()',
        'maintain': 'CALL outbox.maintain()',
        'reap': 'SELECT outbox.reap()',
        'reap_inbox': 'SELECT outbox.reap_inbox()',
        'reap_timers': 'SELECT outbox.reap_expired_timers()',
        'reap_runs': 'SELECT outbox.reap_expired_job_runs()',
        'dispatch': 'SELECT outbox.dispatch_due(10)',
        'process_waits': 'SELECT outbox.process_join_waits(5)',
        'reconcile': 'SELECT outbox.reconcile_joins()',
        'status': 'SELECT count(*) FROM outbox.status()',
        'explain': 'SELECT count(*) FROM outbox.explain_message((SELECT max(id) FROM outbox.queue))',
    }

    def round(self):
        chance = self.chance
        roll = chance.random()
        if roll < 0.15:
            self.pause()
        elif roll < 0.30:
            self.requeue()
        else:
            chore = chance.choice(sorted(self.CHORES))
            self.call(chore, self.CHORES[chore])
        time.sleep(chance.random() * 0.2)

    def pause(self):
        topic = self.chance.choice(TOPICS)
        args = {'topic': topic, 'namespace': 'default'}
        self.call('pause', 'SELECT outbox.pause_topic(%(topic)s, %(namespace)s)', args, args=args)
        time.sleep(self.chance.random() * 0.4)
        self.call('resume', 'SELECT outbox.resume_topic(%(topic)s, %(namespace)s)', args, args=args)

    def requeue(self):
        """What was failed for good gets another chance."""
        ids = self.call('look', 'SELECT array_agg(id) FROM (SELECT id FROM outbox.dead WHERE failure_reason = 4 LIMIT 3) d')
        if ids:
            self.call('requeue', 'SELECT outbox.requeue(%s::bigint[])', (ids,), args={'ids': ids})


class Patient(Worker):
    """Takes whatever is left when all others have gone."""
    kind = 'patient'

    def drain_once(self):
        """How many messages it got."""
        count = 0
        for worker_store, topics_name in (('', 'topics'), ('_inbox', 'handler_names')):
            self.store, self.topics_name = worker_store, topics_name
            taken = self.call('claim', CLAIM.format(function='claim' + worker_store, topics=topics_name),
                              *[{'owner': self.owner, 'store': worker_store, 'lease': 30, 'batch': 1000,
                                 'namespace': None, 'topics': None, 'wait': 0}], '',
                              {'owner': self.owner, 'store': worker_store, 'lease': 30},
                              lambda rows: leases(rows, 30))
            self.settle('ack', taken)
            count += len(taken or [])
        return count
