"""A load on a server that writes a trace, until the trace is long enough.

Clients enqueue, publish, claim, settle, leave their leases to end and come back with
attempts that are over, while others reap, redrive, release what an owner has, change
policies, have memory distrusted, and terminate sessions; part of it is rolled back. Of
the databases, one has streams, one plenty of messages, and one so few that claims wait.
"""

import random
import threading
import time
import uuid

import psycopg2

MIN_SECONDS = 4
PATIENCE = 20
PRODUCERS = {'streams': 2, 'messages': 2, 'waits': 5}
OWNERS = {'streams': 4, 'messages': 4, 'waits': 6}
TOPICS = ('a', 'b')
OTHERS = [f'other {n}' for n in range(16)]
PRIORITIES = (-1, 1)
STREAMS = 6
PLENTY = {'streams': 300, 'messages': 300, 'waits': 8}


class Client(threading.Thread):
    def __init__(self, load, database, number):
        super().__init__(daemon=True)
        self.load, self.database, self.number = load, database, number
        self.chance = random.Random(f'{load.seed} {type(self).__name__} {database} {number}')
        self.connection = None

    def run(self):
        try:
            while not self.load.is_over():
                self.step()
                self.load.keep_pace()
            if self.connection is not None:
                self.connection.close()
        except Exception as error:
            self.load.failures.append(f'{type(self).__name__}: {error!r}')

    def call(self, statement, *args):
        """The rows; None if the session ended, or the call was cancelled."""
        try:
            if self.connection is None:
                self.connection = psycopg2.connect(f'{self.load.dsn} dbname={self.database}')
                self.connection.autocommit = True
            with self.connection.cursor() as cursor:
                cursor.execute(statement, args)
                return cursor.fetchall() if cursor.description else []
        except psycopg2.OperationalError:
            # also a cancelled statement; what was begun is rolled back
            if self.connection is not None:
                self.connection.close()
            self.connection = None
            return None

    # how often in a transaction, how often that is rolled back, and how long it takes
    in_transaction, rolled_back, pause = 0.15, 0.5, 0

    def maybe_in_transaction(self, call):
        """Its result, or None if it was rolled back."""
        if self.chance.random() > self.in_transaction:
            return call()
        if self.call('BEGIN') is None:
            return None
        result = call()
        time.sleep(self.pause)
        if self.chance.random() < self.rolled_back:
            self.call('ROLLBACK')
            return None
        return result if self.call('COMMIT') is not None else None


class Producer(Client):
    """Commits messages that are due since a while, which scans may have passed."""
    in_transaction, rolled_back, pause = 0.4, 0.2, 0.002

    def step(self):
        chance = self.chance
        plenty = PLENTY[self.database]
        waiting = self.call('SELECT count(*) FROM (SELECT FROM outbox.queue LIMIT %s) q', plenty)
        if waiting is None or waiting[0][0] >= plenty:
            time.sleep(0.02 if plenty > 10 else 0.002)
            return
        stream = str(uuid.UUID(int=(chance.randrange(STREAMS) + 1) << 64)) if self.database == 'streams' else None
        topic, what = chance.choice(TOPICS), chance.random()
        if what < 0.1:
            self.maybe_in_transaction(lambda: self.call(
                "SELECT outbox.publish(%s, 'x', stream_id => %s::uuid)", topic, stream))
        elif what < 0.3:
            self.maybe_in_transaction(lambda: self.call(
                "SELECT outbox.enqueue(%s, 'x', stream_id => %s::uuid, priority => %s)", topic, stream,
                chance.choice(PRIORITIES)))
        else:
            self.maybe_in_transaction(lambda: self.call(
                'SELECT outbox.enqueue_many(%s, %s::text[], stream_id => %s::uuid)', topic,
                ['x'] * chance.randrange(1, 12 if plenty > 10 else 4), stream))


class Worker(Client):
    def __init__(self, *more):
        super().__init__(*more)
        self.owner = str(uuid.UUID(int=(self.number + 1) << 120 | self.number))
        self.old = []           # leases that were left to end

    def step(self):
        chance = self.chance
        if self.old and chance.random() < 0.1:
            self.settle([self.old.pop(chance.randrange(len(self.old)))])
            return
        waits = {'streams': 0, 'messages': chance.choice((0, 0, 60)), 'waits': chance.choice((5, 60, 200))}[self.database]
        topics = chance.choice((None, ['a'], ['b'], ['a', 'b']))
        most = 60 if self.database == 'streams' else 12
        if self.database == 'messages' and chance.random() < 0.08:
            # a scan that takes its time, and comes to the end
            most = 2 * PLENTY['messages']
        subscription = 's' if chance.random() < 0.15 else None
        limited = waits and chance.random() < 0.1
        if limited:
            self.call("SET statement_timeout = '20ms'")
        leases = self.maybe_in_transaction(lambda: self.call(
            '''SELECT id, attempts FROM outbox.claim(%s::uuid, lease_seconds => 1, batch_size => %s,
                   topics => %s::text[], wait_ms => %s, subscription => %s)''',
            self.owner, 1 if waits else chance.randrange(1, most), topics, waits, subscription))
        if limited:
            self.call('SET statement_timeout = 0')
        # an attempt that is over, of a message that is the owner's again
        taken = {lease[0] for lease in leases or ()}
        for lease in [old for old in self.old if old[0] in taken]:
            self.old.remove(lease)
            self.settle([lease])
        if leases and self.database == 'streams' and chance.random() < 0.5:
            # what is behind the first goes before it
            self.settle(leases[1:])
            leases = leases[:1]
        while leases:
            n = chance.randrange(1, len(leases) + 1)
            self.settle(leases[:n])
            leases = leases[n:]

    def settle(self, leases):
        if not leases:
            return
        chance = self.chance
        what, = chance.choices(('ack', 'nack', 'fail', 'release', 'leave'), (60, 25, 3, 4, 8))
        ids = [lease[0] for lease in leases]
        attempts = [lease[1] for lease in leases] if chance.random() < 0.7 else None
        if what == 'leave':
            self.old += leases
        elif what == 'release':
            self.maybe_in_transaction(lambda: self.call(
                'SELECT outbox.release(%s::uuid, %s::bigint[])', self.owner, ids))
        else:
            more = {'ack': '', 'nack': ", delay => interval '0'", 'fail': ", error => 'never'"}[what]
            self.maybe_in_transaction(lambda: self.call(
                f'SELECT outbox.{what}(%s::uuid, %s::bigint[], attempts => %s::int[]{more})',
                self.owner, ids, attempts))


class Steward(Client):
    """Reaps, redrives, releases what an owner has, changes policies, has memory distrusted, terminates sessions."""
    def step(self):
        chance = self.chance
        time.sleep(chance.random() * 0.2)
        what = chance.random()
        if what < 0.5:
            self.maybe_in_transaction(lambda: self.call('SELECT outbox.reap()'))
        elif what < 0.75:
            dead = [row[0] for row in self.call('SELECT id FROM outbox.dead ORDER BY id LIMIT 5') or []]
            self.maybe_in_transaction(lambda: self.call('SELECT outbox.requeue(%s::bigint[])', dead))
        elif what < 0.8:
            self.call("SELECT outbox.configure_topic('a', max_attempts => 3)")
        elif what < 0.85:
            # what a session without triggers has written may be anything
            self.call("""SET session_replication_role = replica;
                         SELECT outbox.claim(gen_random_uuid(), topics => '{none}');
                         RESET session_replication_role""")
        elif what < 0.95:
            worker = chance.choice([c for c in self.load.clients if isinstance(c, Worker) and c.database == self.database])
            self.maybe_in_transaction(lambda: self.call('SELECT outbox.release(%s::uuid)', worker.owner))
        else:
            self.call('''SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                          WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1''')


class Reader(Client):
    """Has a snapshot, so that the entries of what is gone stay."""
    def step(self):
        self.call('BEGIN ISOLATION LEVEL REPEATABLE READ')
        self.call('SELECT count(*) FROM outbox.queue')
        until = time.monotonic() + 1
        while time.monotonic() < until and not self.load.is_over():
            time.sleep(0.05)
        self.call('COMMIT')


class Crowd(Client):
    """Waits in so many groups that little room in memory leaves none for marks."""
    def step(self):
        self.call('SELECT outbox.claim(topics => %s::text[], wait_ms => 100)', OTHERS)
        time.sleep(0.05)


class Load:
    """so_far() says how much of it there was, up to 1."""
    def __init__(self, dsn, seed, so_far, databases):
        self.dsn, self.seed, self.so_far = dsn, seed, so_far
        self.failures = []
        self.began = self.seen_at = time.monotonic()
        self.seen = 0
        self.clients = [kind(self, database, number)
                        for database in databases
                        for kind, many in ((Producer, PRODUCERS[database]), (Worker, OWNERS[database]), (Steward, 1), (Reader, 1),
                                           (Crowd, database == 'messages'))
                        for number in range(many)]

    def is_over(self):
        so_far, now = self.so_far(), time.monotonic()
        if so_far != self.seen:
            self.seen, self.seen_at = so_far, now
        # a broken library may leave nothing to do
        return bool(self.failures) or so_far >= 1 or now - self.seen_at > PATIENCE

    def keep_pace(self):
        """Go on when it is time; or leases would not end while the load lasts."""
        while not self.is_over() and self.so_far() > (time.monotonic() - self.began) / MIN_SECONDS:
            time.sleep(0.01)

    def run(self):
        for client in self.clients:
            client.start()
        time.sleep(MIN_SECONDS)
        if self.so_far() <= 0:
            self.failures.append('no trace is written; was the library built with -DOUTBOX_TRACE?')
        for client in self.clients:
            client.join()
