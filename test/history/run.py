#!/usr/bin/python3
"""Load a server, let it suffer, and check the history of what clients saw.

    run.py bindir=... folder=... [seed=N] [messages=N] [crashes=N] [restarts=N] [kills=N] [nuisances=N]
           [faults=clock,disk,drop,oom,restore,standby,xid] [each=N]
    run.py folder=... check=1       only check the history that is there

See README.md beside this. The exit status says whether there were anomalies.
"""

import json
import os
import random
import shutil
import sys
import time

import psycopg2

import record
from clients import Lost, Refused
from clock import Clock
from crew import Board, Crew
from disk import Disk, mount_apart
from drop import Drop
from faults import Faults
from final import FINAL
from ids import Ids
from instances import Instance
from judge import judge
from memory import Memory
from operators import Steward
from plan import (CLAIMED_TOPICS, FOLLOWS, HANDLED, MAX_ATTEMPTS, NAMESPACES, PURGED, PURGES, SHORT, SHORT_KEPT, SUBSCRIPTIONS,
                  TOPIC_PRIORITIES)
from producers import Producer, Sparse
from report import Report
from restore import Restore
from server import Server
from standby import Standby
from workers import InboxWorker, Patient, RunWorker, Subscriber, TimerWorker, Waiter, Worker

SETUP = f"""
    CREATE EXTENSION outbox;
    CREATE SCHEMA app;
    GRANT USAGE ON SCHEMA app TO app;
    CREATE TABLE app.worked (tag text);
    CREATE TABLE app.handled (tag text, message_id uuid, attempts int);
    GRANT INSERT ON app.handled TO app;
    SELECT outbox.grant_producer('app');
    -- fails as often as the payload says, and goes on with a message
    CREATE FUNCTION app.handle(m outbox.message) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO app.handled VALUES (split_part(m.payload, '|', 1), m.message_id, m.attempts);
        IF m.attempts <= split_part(m.payload, '|', 2)::int THEN
            RAISE EXCEPTION 'not yet';
        END IF;
        PERFORM outbox.enqueue('{FOLLOWS}', split_part(m.payload, '|', 1) || '.h|0|'::text);
    END $$;
    GRANT EXECUTE ON FUNCTION app.handle(outbox.message) TO app;
    GRANT EXECUTE ON FUNCTION outbox.register_handler TO app;
    SET SESSION AUTHORIZATION app;
    SELECT outbox.register_handler('{HANDLED}', 'app.handle(outbox.message)', lease_seconds => 2);
    RESET SESSION AUTHORIZATION;
"""

ORDEALS = {'clock': Clock, 'disk': Disk, 'drop': Drop, 'oom': Memory, 'restore': Restore, 'standby': Standby, 'xid': Ids}


class Run:
    # clients of a database: producers, workers of messages, deliveries, the inbox, timers and runs, instances, stewards
    MANY = {'p': 4, 'w': 4, 'u': 2, 'x': 1, 't': 1, 'r': 1, 'i': 2, 's': 1}
    FEW = {'p': 2, 'w': 2, 'u': 1, 'x': 1, 't': 1, 'r': 1, 'i': 1, 's': 1}
    # of one where little comes, and all who want it wait for it
    QUIET = {'q': 1, 'v': 2, 'x': 1}

    def __init__(self, options):
        self.seed = options['seed']
        self.options = options
        self.folder = options['folder']
        self.histories = f'{self.folder}/histories'
        shutil.rmtree(self.histories, ignore_errors=True)
        os.makedirs(self.histories)
        self.server = Server(options['bindir'], self.folder, options['port'])
        self.databases = [f'load{number}' for number in range(options['databases'])] + ['quiet']
        self.quiet = {'quiet'}
        self.ended = {}
        self.tended = 0
        self.ordeals = [ORDEALS[name](self, name) for name in options['faults'].split(',') if name]

    # before

    def set_up(self):
        server = self.server
        shutil.rmtree(server.data, ignore_errors=True)
        for ordeal in list(self.ordeals):
            obstacle = ordeal.prepare()
            if obstacle:
                print(f'# left out: {ordeal.name}, since {obstacle}', flush=True)
                self.ordeals.remove(ordeal)
            else:
                server.settings.update(ordeal.settings)
        server.create()
        for ordeal in self.ordeals:
            ordeal.created()
        server.start()
        for ordeal in self.ordeals:
            ordeal.started()
        server.rows('CREATE ROLE app LOGIN')
        self.create_databases()

    def create_databases(self):
        for db in self.databases:
            self.create_database(db)
            if db == 'load1':
                # here timers and runs are for workers alone, except for stewards who dispatch by hand
                self.server.rows(f'ALTER DATABASE {db} SET outbox.dispatch_timers = off')

    def create_database(self, db):
        self.server.rows(f'CREATE DATABASE {db}')
        connection = self.server.patient_connect(db)
        with connection.cursor() as cursor:
            self.install(cursor)
        connection.close()

    @staticmethod
    def install(cursor):
        """Make the extension, and what the clients need."""
        cursor.execute(SETUP)
        for name, (pattern, wanted) in SUBSCRIPTIONS.items():
            cursor.execute('SELECT outbox.subscribe(%s, %s, filter => %s)', (name, [pattern], wanted and json.dumps(wanted)))
        if setting(cursor, 'outbox.use_direct') == 'off':
            # then handlers need the rights themselves
            cursor.execute('GRANT ALL ON ALL TABLES IN SCHEMA outbox TO app')
        for topic in CLAIMED_TOPICS + (HANDLED,):
            for namespace in PURGES if topic == PURGED else NAMESPACES:
                cursor.execute('SELECT outbox.configure_topic(%s, %s, max_attempts => %s, retention => %s, priority => %s)',
                               (topic, namespace, MAX_ATTEMPTS, f'{SHORT_KEPT} us' if topic == SHORT else None,
                                TOPIC_PRIORITIES.get(topic)))

    @staticmethod
    def read_tables(cursor):
        read = {}
        for name, query in FINAL.items():
            cursor.execute(query)
            read[name] = cursor.fetchall()
        return read

    def add_copy(self, db, dumped):
        """A database that began with the content of another; the patient worker will empty it."""
        self.keepers[db] = self.keeper(db, len(self.keepers))
        recorder = self.keepers[db].recorder
        recorder.end(recorder.begin(db, 'dumped', '', {}), record.OK, dumped)

    def clients(self, number, db):
        """How many of each kind a database has."""
        return self.QUIET if db in self.quiet else self.FEW if number else self.MANY

    def share(self, number, db):
        """How much of the load a database has, beside others."""
        return 1 if number else self.options['lead']

    def makers(self):
        """The clients of all databases."""
        kinds = {'p': Producer, 'w': Worker, 'u': Subscriber, 'x': InboxWorker, 't': TimerWorker, 'r': RunWorker, 'i': Instance,
                 's': Steward, 'q': Sparse, 'v': Waiter}
        made = []
        amounts = {}
        shares = {db: 0 if db in self.quiet else self.share(number, db) for number, db in enumerate(self.databases)}
        for number, db in enumerate(self.databases):
            few = self.clients(number, db)
            share = self.options['messages'] * shares[db] // sum(shares.values())
            for letter, count in few.items():
                for which in range(count):
                    name = f'{letter}{number}{which}'
                    amounts[name] = share // few['p'] if letter == 'p' else record.FOREVER
                    made.append((name, db, kinds[letter]))
        self.board = Board([name for name, _, _ in made])
        self.amount = sum(amount for name, amount in amounts.items() if name.startswith('p'))

        def maker(db, kind):
            more = {}

            def make(name, generation):
                if issubclass(kind, Producer):
                    more.update(amount=amounts[name], seed=self.seed, streams=self.options['streams'],
                                keys=self.options['keys'] or min(amounts[name] // 40, 100000) + 1)
                return kind(self.server, self.histories, self.seed, db, name, generation, self.board, **more)
            return make

        return [(name, maker(db, kind)) for name, db, kind in made]

    # while it runs

    def tend(self):
        self.crew.tend()
        if time.monotonic() < self.tended + 0.5:
            return
        self.tended = time.monotonic()
        try:
            self.end_prepared()
        except psycopg2.Error:
            pass

    def end_prepared(self, everybody=False):
        """Transactions that were prepared by clients that are gone would block others."""
        for gid, db in self.server.rows('SELECT gid, database FROM pg_prepared_xacts'):
            if gid.rsplit('.', 1)[0] in self.crew.gone or everybody:
                keeper = self.keepers[db]
                try:
                    keeper.connect()
                    keeper.call('rollback_prepared', f"ROLLBACK PREPARED '{gid}'", tx=gid)
                except (Lost, Refused):
                    pass

    def load(self):
        options = self.options
        self.keepers = {db: self.keeper(db, number) for number, db in enumerate(self.databases)}
        self.crew = Crew(self.makers(), f'{self.folder}/clients.err')
        loud = [db for db in self.databases if db not in self.quiet]
        faults = self.faults = Faults(self.seed, self.server, loud, self.crew, options, self.ordeals)
        number = 0
        shown = time.monotonic()
        # a plan that makes no headway ends here
        until = time.monotonic() + (options['seconds'] or 120 + options['messages'] // 50)
        while self.crew.names('p') and time.monotonic() < until:
            self.tend()
            while number < len(faults.plan) and self.board.total() >= self.amount * (number + 1) // (len(faults.plan) + 1):
                self.note_fault(faults, number)
                number += 1
                self.tend()
            if time.monotonic() > shown + 10:
                shown = time.monotonic()
                print(f'# {self.board.total()} of {self.amount} messages, {number} of {len(faults.plan)} faults', flush=True)
            time.sleep(0.01)
        in_time = not self.crew.names('p')
        faults.finish()
        for ordeal in self.ordeals:
            ordeal.finish()
        record.note_conditions(self.histories, {
            'errors': sorted(state for ordeal in self.ordeals for state in ordeal.errors),
            **{name: value for ordeal in self.ordeals for name, value in ordeal.conditions().items()}})
        return faults, in_time

    def note_fault(self, faults, number):
        """Let it happen, and have it in the histories, where it explains delays."""
        family, name = faults.plan[number]
        if family == 'ordeal':
            name = name[0].name
        notes = [(keeper, keeper.recorder.begin(db, 'fault', '', {'family': family, 'name': name}))
                 for db, keeper in self.keepers.items() if family != 'nuisance' or db not in self.quiet]
        faults.commit_one(number)
        for keeper, note in notes:
            keeper.recorder.end(note, record.OK)

    def keeper(self, db, number):
        """A client in this process: it cleans up behind others, and is the patient one at the end."""
        board = Board([])
        board.parent = os.getppid()
        return Patient(self.server, self.histories, self.seed, db, f'k{number}', 0, board)

    # after

    def drain(self):
        """All others have ended. The rows that are not handed out within the patience are left."""
        self.board.stop('worker')
        self.server.rows("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'v%'")
        self.crew.wait('', 30, self.tend)
        self.crew.end()
        self.end_prepared(everybody=True)
        self.resume_all()
        until = time.monotonic() + self.options['patience']
        waiting = dict(self.keepers)
        cancelled = set()
        while waiting and time.monotonic() < until:
            for db, keeper in list(waiting.items()):
                keeper.connect()
                try:
                    if self.unattended(db):
                        keeper.call('maintain', 'CALL outbox.maintain()')
                    if keeper.drain_once():
                        continue
                    if self.left_in(db):
                        continue
                    if db not in cancelled:
                        # steps are missing whose transactions were undone
                        cancelled.add(db)
                        self.close_joins(db, keeper)
                        continue
                    del waiting[db]
                except (Lost, Refused):
                    pass
            time.sleep(0.05)
        for db, keeper in self.keepers.items():
            self.snapshot(db, keeper)
            keeper.lose()

    def unattended(self, db):
        """Without the library preloaded there are no workers."""
        connection = self.server.patient_connect(db)
        try:
            with connection.cursor() as cursor:
                return 'outbox' not in setting(cursor, 'shared_preload_libraries')
        finally:
            connection.close()

    def resume_all(self):
        """A steward may have gone before it could; and so may the connection of a keeper."""
        for db, keeper in self.keepers.items():
            for _ in range(10):
                try:
                    self.resume_in(db, keeper)
                    break
                except Lost:
                    pass
            else:
                raise Lost()

    def resume_in(self, db, keeper):
        keeper.connect()
        for kind, namespace, topic in self.server.rows(
                'SELECT kind, namespace, topic FROM outbox.topics WHERE paused', db=db):
            args = {'kind': kind, 'namespace': namespace, 'topic': topic}
            keeper.call('resume', 'SELECT outbox.resume_topic(%(topic)s, %(namespace)s, %(kind)s)', args, args=args)

    def left_in(self, db):
        """Whether there is something that a worker could yet get, or that becomes such."""
        return self.server.rows("""
            SELECT EXISTS (SELECT FROM outbox.queue WHERE topic <> 'join.wait')
                OR EXISTS (SELECT FROM outbox.queue q JOIN outbox.join_waits w USING (message_id)
                             JOIN outbox.joins j USING (join_id) WHERE j.status <> 0)
                OR EXISTS (SELECT FROM outbox.inbox_queue) OR EXISTS (SELECT FROM outbox.timer_queue)
                OR EXISTS (SELECT FROM outbox.run_queue) OR outbox._publishes_later()
                OR EXISTS (SELECT FROM outbox.join_rechecks WHERE missed_at IS NULL)""", db=db)[0][0]

    def close_joins(self, db, keeper):
        while keeper.call('reconcile', 'SELECT outbox.reconcile_joins()', args={'end': True}):
            pass
        for (join,) in self.server.rows('SELECT join_id::text FROM outbox.joins WHERE status = 0', db=db):
            keeper.call('close_join', 'SELECT outbox.cancel_join(%s::uuid)', (join,), args={'join': join})

    def snapshot(self, db, keeper):
        number = keeper.recorder.begin(db, 'final', '', {})
        connection = self.server.patient_connect(db)
        with connection.cursor() as cursor:
            keeper.recorder.end(number, record.OK, self.read_tables(cursor))
        connection.close()

    def amcheck(self):
        checked = self.server.program('pg_amcheck', '-h', self.server.address, '-p', self.server.port, '-U', 'postgres',
                                      '--install-missing', '--heapallindexed',
                                      *[f'--database={db}' for db in self.keepers])
        return checked.stdout.splitlines() or ['it failed'] * bool(checked.returncode)


def setting(cursor, name):
    # an extension's setting is known when its library is loaded
    cursor.execute("SELECT current_setting(%s) FROM outbox._library() LIMIT 1", (name,))
    return cursor.fetchone()[0]


def parse(arguments):
    options = {'seed': str(random.SystemRandom().randrange(1_000_000)), 'messages': 5000, 'crashes': 3, 'restarts': 1,
               'kills': 12, 'nuisances': 8, 'databases': 2, 'port': 5433, 'seconds': 0, 'patience': 90, 'streams': 40, 'keys': 0, 'lead': 2, 'check': 0,
               'faults': '', 'each': 1}
    for argument in arguments:
        name, _, value = argument.partition('=')
        options[name] = value if name in ('seed', 'bindir', 'folder', 'faults') else int(value)
    return options


def suffer(options, report):
    """Load a server, and let the faults come."""
    run = Run(options)
    run.set_up()
    began = time.monotonic()
    faults, in_time = run.load()
    report.say(in_time, 'the producers ended in time')
    print(f'# faults: {faults.counts()} in {time.monotonic() - began:.0f} s', flush=True)
    if run.ordeals:
        report.say(not faults.missing, f'each of these faults has come: {options["faults"]}', faults.missing)
    run.drain()
    print(f'# load and drain: {time.monotonic() - began:.0f} s', flush=True)
    report.say(not run.crew.broken, 'no client ended with an error of its own', run.crew.broken)
    found = run.amcheck()
    report.say(not found, 'pg_amcheck finds tables and indexes sound', found)
    for ordeal in run.ordeals:
        ordeal.report(report.say)
    run.server.stop('fast')


def main():
    options = parse(sys.argv[1:])
    if 'disk' in options['faults'] and not options['check']:
        if 'standby' in options['faults']:
            sys.exit('a standby does not get the small disks of its primary: ask for one of them')
        mount_apart()
    told = ('seed', 'messages', 'crashes', 'restarts', 'kills', 'nuisances', 'faults', 'each')
    print('#', *(f'{name}={options[name]}' for name in told), flush=True)
    report = Report()
    if not options['check']:
        suffer(options, report)
    judge(f'{options["folder"]}/histories', report)
    return 1 if report.failed else 0


if __name__ == '__main__':
    sys.exit(main())
