"""A load on a server that writes a trace, until the trace is long enough.

Clients enqueue, publish, claim, settle, leave their leases to end and come back with
attempts that are over, while others reap, redrive, release what an owner has, change
policies, have memory distrusted, and terminate sessions; part of it is rolled back. Of
the databases, one has streams, one plenty of messages, one so few that claims wait, and
one joins.
"""

import collections
import queue
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
TERMINATE = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1"""
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
            self.call(TERMINATE)


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


# ----------------------------------------------------------------------
# Joins: steps that end while others of the same join do, and while they are attached


PAUSES = (0, 0.003, 0.012)
FILE_WAIT = "SELECT outbox.enqueue_join_wait(%s::uuid, %s, 'c', '', on_fail_topic => 'd', on_fail_payload => '')"
SOON_EXPIRED = ", due_time => now() + interval '1 h', expires_at => clock_timestamp() + interval '10 ms'"


class Planner(Client):
    """Starts joins; some steps are attached later, and some waits are filed later."""
    in_transaction, rolled_back, pause = 0.5, 0.1, 0.002

    def step(self):
        waiting = self.call("SELECT count(*) FROM outbox.queue WHERE topic = 'a'")
        if waiting is None or waiting[0][0] > 12:
            time.sleep(0.005)
            return
        late = self.maybe_in_transaction(self.plan)
        if late is not None:
            self.load.late.update(late)
            time.sleep(0.02 * self.chance.random())

    def plan(self):
        """What is called while steps end, by the step; None if the session ended."""
        chance, late = self.chance, collections.defaultdict(list)
        many = chance.choice((1, 2, 3, 3))
        expires = chance.choice((0, *range(many)))
        started = self.call('SELECT outbox.start_join(NULL, %s)::text', many)
        if started is None:
            return None
        join = started[0][0]
        for number in range(1, many + 1):
            is_late = chance.random() < 0.4
            made = self.call(f"""SELECT outbox.{'enqueue(' if is_late else 'enqueue_step(%s::uuid, '}'a', 'x'
                                 {SOON_EXPIRED if number == expires else ''})::text""", *([] if is_late else [join]))
            if made is None:
                return None
            step = made[0][0]
            if is_late:
                late[step].append(('SELECT outbox.attach_message_to_join(%s::uuid, %s::uuid)', join, step))
        wait = (FILE_WAIT, join, chance.random() < 0.5)
        if chance.random() < 0.5:
            late[step].append(wait)
        elif self.call(*wait) is None:
            return None
        return late


class Ender(Client):
    """Has steps end, alone or with others of the same join."""
    in_transaction, rolled_back = 0.8, 0.3

    def step(self):
        chance, owner = self.chance, str(uuid.UUID(int=self.chance.getrandbits(128)))
        self.pause = chance.choice(PAUSES)
        if chance.random() < 0.15:
            self.maybe_in_transaction(lambda: self.call('SELECT outbox.reap()'))
        leases = self.call("""SELECT id, message_id::text FROM outbox.claim(%s::uuid, batch_size => 1, topics => '{a}',
                                  lease_seconds => 2)""", owner)
        if not leases:
            time.sleep(0.003)
            return
        message, step = leases[0]
        if chance.random() < 0.8:
            for call in self.load.late.pop(step, ()):
                self.load.now.put(call)
        what, = chance.choices(('ack', 'fail', 'nack', 'leave'), (75, 10, 10, 5))
        more = {'nack': ", delay => interval '0'", 'fail': ", error => 'never'"}.get(what, '')
        while what != 'leave' and not self.load.is_over() and self.maybe_in_transaction(lambda: self.call(
                f'SELECT outbox.{what}(%s::uuid, ARRAY[%s]::bigint[]{more})', owner, message)) is None:
            pass


class Attacher(Client):
    """Attaches late steps and files late waits, most of them while steps end."""
    in_transaction, rolled_back = 0.8, 0.3

    def step(self):
        chance, late = self.chance, self.load.late
        try:
            calls = [self.load.now.get(timeout=0.01)]
        except queue.Empty:
            calls = late.pop(chance.choice(list(late) or [None]), ()) if chance.random() < 0.2 else ()
        for call in calls:
            self.pause = chance.choice(PAUSES)
            while not self.load.is_over() and self.maybe_in_transaction(lambda call=call: self.call(*call)) is None:
                pass


class Evaluator(Client):
    """Processes rechecks and evaluates waits, and sometimes terminates a session."""
    in_transaction, rolled_back = 0.6, 0.2

    def step(self):
        chance = self.chance
        time.sleep(0.006 * chance.random())
        self.pause = chance.choice(PAUSES)
        self.maybe_in_transaction(lambda: self.call('SELECT outbox.process_join_waits()'))
        if chance.random() < 0.01:
            self.call(TERMINATE)


def kinds_of_clients(database):
    if database == 'joins':
        return (Planner, 2), (Ender, 4), (Attacher, 2), (Evaluator, 2)
    return ((Producer, PRODUCERS[database]), (Worker, OWNERS[database]), (Steward, 1), (Reader, 1),
            (Crowd, database == 'messages'))


class Load:
    """so_far() says how much of it there was, up to 1."""
    def __init__(self, dsn, seed, so_far, databases):
        self.dsn, self.seed, self.so_far = dsn, seed, so_far
        self.failures = []
        # calls that are made while steps of joins end: by step, and now
        self.late, self.now = {}, queue.Queue()
        self.began = self.seen_at = time.monotonic()
        self.seen = 0
        self.clients = [kind(self, database, number)
                        for database in databases
                        for kind, many in kinds_of_clients(database)
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
