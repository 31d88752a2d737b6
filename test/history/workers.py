"""Those who take something out: workers, instances, and the patient one at the end.

A claim's result is a list of leases [id, tag, attempts, from, until, message_id];
from and until are the server's times, which process_work_batch does not tell.
"""

import time
import uuid

from clients import Client, Lost, age, timestamp
from plan import (CLAIMED_TOPICS, HANDLER_NAMES, OTHERS_WANT, PURGED, REDRIVEN, REPLAYED, SHORT, SUBSCRIPTIONS, TENANTS, TIMED, read_payload,
                  wrong_fields)

COLUMNS = """
    id, payload, attempts, (extract(epoch FROM locked_until) * 1000000)::bigint, message_id, topic,
    correlation_id, headers, tenant_id"""
CLAIM = """
    SELECT {columns} FROM outbox.claim{store}(%(owner)s::uuid, lease_seconds => %(lease)s, batch_size => %(batch)s,
           namespace => %(namespace)s, {topics} => %(topics)s::text[], tenant_id => %(tenant)s::uuid, wait_ms => %(wait)s)
"""
CLAIM_DELIVERIES = """
    SELECT {columns} FROM outbox.claim{store}(%(owner)s::uuid, lease_seconds => %(lease)s, batch_size => %(batch)s,
           subscription => %(subscription)s, wait_ms => %(wait)s)
"""
CLAIM_DUE = """
    SELECT {columns} FROM outbox.claim{store}(%(owner)s::uuid, lease_seconds => %(lease)s, batch_size => %(batch)s)
"""


def new_owner(chance):
    return str(uuid.UUID(int=chance.getrandbits(128), version=4))


def judge(text, **came):
    """The tag; or what is wrong with a message, after 'broken: '."""
    tag, whole = read_payload(text)
    if not whole:
        return f'broken: {text[:40]}'
    wrong = wrong_fields(tag, **came)
    return f'broken: {tag} has {wrong}' if wrong else tag


def leases(rows, lease):
    found = []
    for row_id, text, attempts, until, message_id, _, correlation, headers, tenant in rows:
        found.append([row_id, judge(text, correlation=correlation, headers=headers, tenant=tenant), attempts,
                      until - lease * 1000000, until, str(message_id)])
    return found


class Worker(Client):
    kind = 'worker'
    store = ''          # what the names of the calls end with; @ and a subscription
    statement = CLAIM
    topics = CLAIMED_TOPICS
    names = {}          # of calls that are named otherwise
    ways = {'ack': 80, 'nack': 8, 'fail': 1, 'renew': 6, 'release': 3, 'forget': 2}
    works, undoes, dwells = 0.05, 0.2, 0.5      # how often it acks together with its work, rolls that back, and not at once

    def __init__(self, *more):
        super().__init__(*more)
        self.owner = new_owner(self.chance)
        self.forgotten = []     # leases that were left to end
        self.redriven = set()   # of the last claim, the ids of topics that are redriven or purged
        self.looks = []         # (when, ids to look for)
        self.short = set()      # and of the one that is kept for a second

    def claim(self, **options):
        chance = self.chance
        args = {'owner': self.owner, 'store': self.store, 'lease': chance.choices((1, 2, 10), (3, 3, 1))[0],
                'batch': 100 if chance.random() < 0.2 else chance.randrange(1, 20)}
        if self.statement == CLAIM:
            args.update(namespace='default' if chance.random() < 0.1 else None,
                        topics=chance.sample(self.topics, len(self.topics) // 3 + 1) if chance.random() < 0.2 else None,
                        tenant=chance.choice(TENANTS) if not self.store and chance.random() < 0.1 else None,
                        wait=chance.choice((0, 0, 20, 500)))
        elif self.statement == CLAIM_DELIVERIES:
            args.update(subscription=self.store[1:], wait=chance.choice((0, 0, 20)))
        args.update(options)
        tx = ''
        if chance.random() < 0.05:
            tx = self.begin()
        taken = self.ask(args, tx)
        if tx:
            how = chance.choice(('commit', 'rollback'))
            if chance.random() < 0.2:
                self.end_in_two(tx, f'{how} prepared')
            else:
                self.end(tx, how)
            if how == 'rollback':
                return []
        return taken or []

    def ask(self, args, tx=''):
        def parse(rows):
            self.redriven = {row[0] for row in rows if row[5] in (REDRIVEN, PURGED)}
            self.short = {row[0] for row in rows if row[5] == SHORT}
            return leases(rows, args['lease'])

        topics = 'handler_names' if self.store else 'topics'
        return self.call('claim', self.statement.format(columns=COLUMNS, store=self.suffix(), topics=topics), args, tx, args, parse)

    def suffix(self):
        return '' if self.store.startswith('@') else self.store

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
            if not self.store and chance.random() < 0.15:
                # other than the topic's
                args['max'] = chance.choice((1, 2, 2, 3))
                more += ', max_attempts => %(max)s'
        elif op == 'fail':
            more = ", error => 'never', reason => 4"
        single = not self.store and len(ids) == 1 and chance.random() < 0.3
        if op != 'release':
            more += ', attempt => (%(attempts)s::int[])[1]' if single else ', attempts => %(attempts)s::int[]'
        if strict:
            args['strict'] = True
            more += ', strict => true'
        name, which = (f'{op}_one', '(%(ids)s::bigint[])[1]') if single else (self.names.get(op, op) + self.suffix(), '%(ids)s::bigint[]')
        return self.call(op, f'SELECT outbox.{name}(%(owner)s::uuid, {which}{more})', args, tx, args)

    def handle(self, taken):
        chance = self.chance
        roll = chance.random()
        if roll < 0.45:
            self.settle('ack', taken, fenced=chance.random() < 0.7)
            self.look_for(taken)
        elif roll < 0.45 + self.works and not self.store:
            self.ack_with_work(taken)
        elif roll < 0.48 + self.works and 'release' in self.ways:
            self.call('release_all', f'SELECT outbox.release{self.suffix()}(%s::uuid)', (self.owner,),
                      args={'owner': self.owner, 'store': self.store})
        else:
            for lease in taken:
                self.handle_one(lease, taken)

    def handle_one(self, lease, taken):
        chance = self.chance
        op = chance.choices(list(self.ways), list(self.ways.values()))[0]
        if lease[0] in self.redriven and chance.random() < 0.4:
            op = 'fail'
        if lease[2] > 1 and chance.random() < 0.3:
            # as another who has the same token, and had the lease before
            self.settle(chance.choice(('ack', 'nack', 'fail', 'renew')), [lease[:2] + [lease[2] - 1] + lease[3:]])
        if op == 'forget':
            self.forgotten.append(lease)
            return
        if op == 'renew':
            self.settle('renew', taken if chance.random() < 0.3 else [lease])
            op = 'ack'
        self.settle(op, [lease], strict=chance.random() < 0.2)
        if op == 'ack':
            self.look_for([lease])

    def look_for(self, done):
        """What is done is kept for a while."""
        ids = [lease[0] for lease in done if lease[0] in self.short]
        if ids:
            self.looks.append((time.monotonic() + self.chance.random() * 0.9, ids))

    def look(self):
        """But not at once."""
        _, ids = self.looks.pop(0)
        self.call('look_for', 'SELECT id FROM outbox.messages WHERE id = ANY (%s)', (ids,), '', {'ids': ids},
                  lambda rows: [row[0] for row in rows])

    def ack_with_work(self, taken):
        """The work and a strict ack in one transaction: exactly once."""
        tx = self.begin()
        self.call('work', 'INSERT INTO app.worked SELECT unnest(%s::text[])', ([lease[1] for lease in taken],), tx,
                  {'tags': [lease[1] for lease in taken]})
        inner = tx
        if self.chance.random() < 0.2:
            inner = f'{tx}/s'
            self.call('savepoint', 'SAVEPOINT s', tx=inner)
        self.settle('ack', taken, inner, strict=True)
        if inner != tx:
            self.call('rollback', 'ROLLBACK TO SAVEPOINT s', tx=inner)
        how = 'rollback' if inner != tx or self.chance.random() < self.undoes else 'commit'
        if how == 'rollback' and self.chance.random() < self.dwells:
            # their leases end in the meantime, and claims come across them
            time.sleep(self.chance.uniform(0.5, 2.5))
        if self.chance.random() < 0.2:
            self.end_in_two(tx, f'{how} prepared')
        else:
            self.end(tx, how)
        if how == 'rollback' and self.chance.random() < 0.5:
            # else they come again when their leases end
            self.settle('nack', taken)

    def try_stale(self):
        """Acknowledge what was forgotten: it works only if it was not taken over since."""
        stale = [self.forgotten.pop(0)]
        self.settle(self.chance.choice(('ack', 'nack', 'renew')), stale, strict=self.chance.random() < 0.5)

    def round(self):
        if self.chance.random() < 0.01:
            self.call('reap', f'SELECT outbox.{self.names.get("reap", "reap")}{self.suffix()}()')
        if len(self.forgotten) > 5:
            self.try_stale()
        while self.looks and self.looks[0][0] < time.monotonic():
            self.look()
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
        if 'release' in self.ways and self.chance.random() < 0.5:
            self.call('release_all', f'SELECT outbox.release{self.suffix()}(%s::uuid)', (self.owner,),
                      args={'owner': self.owner, 'store': self.store})


class Waiter(Worker):
    """Never looks without waiting, so that whatever it gets has woken it."""
    topics = ('t0', 't1', SHORT, TIMED)
    ways = {'ack': 60, 'nack': 20, 'fail': 1, 'renew': 5, 'release': 10, 'forget': 4}
    works, undoes, dwells = 0.25, 0.5, 0.9      # nothing but the rollback wakes the others then
    isolations = (None,), (1,)
    WAIT = 12000        # ms; longer than it takes one of the others to look again

    def ask(self, args, tx=''):
        return super().ask({**args, 'wait': self.WAIT, 'batch': self.chance.randrange(1, 4)}, tx)


class InboxWorker(Worker):
    store = '_inbox'
    topics = HANDLER_NAMES


class TimerWorker(Worker):
    """Takes timers that are due itself, beside the dispatcher."""
    store = '_timers'
    statement = CLAIM_DUE
    names = {'nack': 'abandon', 'reap': 'reap_expired'}
    ways = {'ack': 60, 'nack': 20, 'fail': 4, 'renew': 12, 'forget': 4}

    def round(self):
        super().round()
        # it must leave something to the dispatcher
        time.sleep(self.chance.random() * 0.1)


class RunWorker(TimerWorker):
    store = '_job_runs'


class Subscriber(Worker):
    """Claims for one subscription after the other, and has some of its own that come and go."""
    statement = CLAIM_DELIVERIES

    def __init__(self, *more):
        super().__init__(*more)
        self.own = []
        self.tidy = True        # what a predecessor has left may still be there
        self.past = {}          # of each subscription, what was forgotten
        self.replays = self.lives = 0   # each delivers all that there was

    def round(self):
        chance = self.chance
        roll = chance.random()
        if self.tidy:
            self.tidy = False
            for name in self.subscriptions():
                if name.startswith(f'd{self.slot}-'):
                    self.unsubscribe(name)
        elif roll < 0.01 and self.own:
            self.unsubscribe(self.own.pop(0))
        elif roll < 0.06 and len(self.own) < 4 and self.lives < 20:
            self.own.append(self.subscribe())
        elif roll < 0.09 and self.replays < 5:
            self.replays += 1
            self.replay()
        else:
            self.store = '@' + chance.choice([*SUBSCRIPTIONS, *self.own * 2])
            self.forgotten = self.past.setdefault(self.store, [])
            super().round()
        time.sleep(chance.random() * 0.02)

    def replay(self):
        """All that there was, or what was published in a time, or in some topics."""
        chance = self.chance
        args = {'subscription': REPLAYED}
        if chance.random() < 0.5:
            args['since'] = age(-chance.randrange(500, 6000))
        if chance.random() < 0.4:
            args['until'] = age(-chance.randrange(6000))
        if chance.random() < 0.4:
            args['topics'] = chance.choice((['pub.*'], ['pub.b.#'], ['pub.b', 'pub.wide']))
        self.call('replay', 'SELECT outbox.replay(%s, %s, %s, %s)',
                  (REPLAYED, timestamp(args.get('since')) or '-infinity', timestamp(args.get('until')), args.get('topics')), args=args)

    def subscriptions(self):
        return self.call('look', 'SELECT array_agg(subscription ORDER BY subscription) FROM outbox.subscriptions') or []

    def subscribe(self):
        """Its name is never used again."""
        self.serial += 1
        self.lives += 1
        args = {'subscription': f'd{self.name}.{self.serial}', 'start': self.chance.random() < 0.5}
        if args['start'] and self.chance.random() < 0.3:
            args['since'] = age(-self.chance.randrange(500, 6000))
        self.call('subscribe', 'SELECT outbox.subscribe(%s, %s, start_at => %s)',
                  (args['subscription'], [OTHERS_WANT], timestamp(args.get('since')) or ('-infinity' if args['start'] else None)), args=args)
        return args['subscription']

    def unsubscribe(self, name):
        args = {'subscription': name, 'drop': self.chance.random() < 0.5}
        self.past.pop(f'@{name}', None)
        self.call('unsubscribe', 'SELECT outbox.unsubscribe(%s, drop_messages => %s)', (name, args['drop']), args=args)


class Patient(Worker):
    """Takes whatever is left when all others have gone."""
    kind = 'patient'

    def drain_once(self):
        """How many messages it got."""
        count = 0
        deliveries = [(f'@{name}', CLAIM_DELIVERIES) for name, in self.server.rows(
            'SELECT subscription FROM outbox.subscriptions WHERE ready + leased > 0', db=self.db)]
        for store, statement in (('', CLAIM), ('_inbox', CLAIM), ('_timers', CLAIM_DUE), ('_job_runs', CLAIM_DUE), *deliveries):
            self.store, self.statement = store, statement
            args = {'owner': self.owner, 'store': store, 'lease': 30, 'batch': 1000}
            if statement == CLAIM:
                args.update(namespace=None, topics=None, tenant=None, wait=0)
            elif statement == CLAIM_DELIVERIES:
                args.update(subscription=store[1:], wait=0)
            taken = self.ask(args)
            self.settle('ack', taken)
            count += len(taken or [])
        return count
