#!/usr/bin/python3
"""Load a server, let it suffer, and check the history of what clients saw.

    run.py bindir=... folder=... [seed=N] [messages=N] [crashes=N] [restarts=N] [kills=N] [nuisances=N]
    run.py folder=... check=1       only check the history that is there

See README.md beside this. The exit status says whether there were anomalies.
"""

import os
import random
import shutil
import sys
import time

import psycopg2

import check
import record
from clients import Lost, Refused
from crew import Board, Crew
from faults import Faults
from plan import (CLAIMED_TOPICS, FOLLOWS, HANDLED, MAX_ATTEMPTS, NAMESPACES, SHORT)
from producers import Producer
from report import Report
from server import Server
from workers import InboxWorker, Instance, Patient, Steward, Worker

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
    GRANT EXECUTE ON FUNCTION outbox.register_handler(text, regprocedure, text, int, int, interval) TO app;
    SET SESSION AUTHORIZATION app;
    SELECT outbox.register_handler('{HANDLED}', 'app.handle(outbox.message)', lease_seconds => 2);
    RESET SESSION AUTHORIZATION;
"""

FINAL = {
    'messages': """
        SELECT id, message_id::text, CASE WHEN topic = 'join.wait' THEN split_part(payload::jsonb ->> 'onCompletePayload', '|', 1)
               ELSE split_part(left(payload, 100), '|', 1) END, topic, namespace, status, attempts, failure_reason, processed_by,
               (extract(epoch FROM CASE WHEN status IN (2, 3) THEN coalesce(processed_at, updated_at) END) * 1000000)::bigint,
               (extract(epoch FROM created_at) * 1000000)::bigint,
               dedupe_key
          FROM outbox.messages""",
    'joins': 'SELECT join_id::text, grouping_key, expected_steps, completed_steps, failed_steps, status FROM outbox.joins',
    'members': 'SELECT join_id::text, message_id::text, status FROM outbox.join_members',
    'handled': 'SELECT tag, count(*) FROM app.handled GROUP BY tag',
    'worked': 'SELECT tag, count(*) FROM app.worked GROUP BY tag',
    'inbox': """
        SELECT id, message_id::text, split_part(payload, '|', 1), status FROM outbox.inbox""",
    'received': 'SELECT message_id::text FROM outbox.message_deduplication',
    'leftovers': """
        SELECT 'queue', count(*) FROM outbox.queue UNION ALL
        SELECT 'inbox_queue', count(*) FROM outbox.inbox_queue UNION ALL
        SELECT 'timer_queue', count(*) FROM outbox.timer_queue UNION ALL
        SELECT 'run_queue', count(*) FROM outbox.run_queue UNION ALL
        SELECT 'join_doubts', count(*) FROM outbox.join_doubts UNION ALL
        SELECT 'join_waits', count(*) FROM outbox.join_waits UNION ALL
        SELECT 'pg_prepared_xacts', count(*) FROM pg_prepared_xacts WHERE database = current_database()""",
}

class Run:
    # clients of a database: producers, workers, inbox workers, instances, stewards
    MANY = {'p': 4, 'w': 4, 'x': 1, 'i': 2, 's': 1}
    FEW = {'p': 2, 'w': 2, 'x': 1, 'i': 1, 's': 1}

    def __init__(self, options):
        self.seed = options['seed']
        self.options = options
        self.folder = options['folder']
        self.histories = f'{self.folder}/histories'
        shutil.rmtree(self.histories, ignore_errors=True)
        os.makedirs(self.histories)
        self.server = Server(options['bindir'], self.folder, options['port'])
        self.databases = [f'load{number}' for number in range(options['databases'])]
        self.ended = {}
        self.tended = 0

    # before

    def set_up(self):
        shutil.rmtree(self.server.data, ignore_errors=True)
        self.server.create()
        self.server.start()
        self.server.rows('CREATE ROLE app LOGIN')
        for db in self.databases:
            self.server.rows(f'CREATE DATABASE {db}')
            self.server.rows(SETUP, db=db)
            if self.setting('outbox.use_direct', db) == 'off':
                # then handlers need the rights themselves
                self.server.rows('GRANT ALL ON ALL TABLES IN SCHEMA outbox TO app', db=db)
            for topic in CLAIMED_TOPICS + (HANDLED,):
                for namespace in NAMESPACES:
                    self.server.rows('SELECT outbox.configure_topic(%s, %s, max_attempts => %s, retention => %s)',
                                     (topic, namespace, MAX_ATTEMPTS, '1 s' if topic == SHORT else None), db=db)

    def setting(self, name, db):
        # an extension's setting is known when its library is loaded
        return self.server.rows("SELECT current_setting(%s) FROM outbox._library() LIMIT 1", (name,), db=db)[0][0]

    def makers(self):
        """The clients of all databases; the first one has several times as much to do as each other."""
        kinds = {'p': Producer, 'w': Worker, 'x': InboxWorker, 'i': Instance, 's': Steward}
        made = []
        amounts = {}
        lead = self.options['lead']
        shares = len(self.databases) - 1 + lead
        for number, db in enumerate(self.databases):
            few = self.FEW if number else self.MANY
            share = self.options['messages'] * (1 if number else lead) // shares
            for letter, count in few.items():
                for which in range(count):
                    name = f'{letter}{number}{which}'
                    amounts[name] = share // few['p']
                    made.append((name, db, kinds[letter]))
        self.board = Board([name for name, _, _ in made])
        self.amount = sum(amount for name, amount in amounts.items() if name.startswith('p'))

        def maker(db, kind):
            more = {}

            def make(name, generation):
                if kind is Producer:
                    more.update(amount=amounts[name], seed=self.seed, streams=self.options['streams'],
                                keys=self.options['keys'])
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
        faults = Faults(self.seed, self.server, self.databases, self.crew, options['crashes'], options['restarts'],
                        options['kills'], options['nuisances'])
        number = 0
        shown = time.monotonic()
        # a plan that makes no headway ends here
        until = time.monotonic() + (options['seconds'] or 120 + options['messages'] // 50)
        while self.crew.names('p') and time.monotonic() < until:
            self.tend()
            while number < len(faults.plan) and self.board.total() >= self.amount * (number + 1) // (len(faults.plan) + 1):
                faults.commit_one(number)
                number += 1
                self.tend()
            if time.monotonic() > shown + 10:
                shown = time.monotonic()
                print(f'# {self.board.total()} of {self.amount} messages, {number} of {len(faults.plan)} faults', flush=True)
            time.sleep(0.01)
        in_time = not self.crew.names('p')
        faults.finish()
        return faults, in_time

    def keeper(self, db, number):
        """A client in this process: it cleans up behind others, and is the patient one at the end."""
        board = Board([])
        board.parent = os.getppid()
        return Patient(self.server, self.histories, self.seed, db, f'k{number}', 0, board)

    # after

    def drain(self):
        """All others have gone. The rows that nobody is given within the patience are left."""
        self.board.stop('worker')
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
        return 'outbox' not in self.setting('shared_preload_libraries', db)

    def resume_all(self):
        """A steward may have gone before it could."""
        for db in self.databases:
            self.server.rows('SELECT outbox.resume_topic(topic, namespace) FROM outbox.topics WHERE paused', db=db)

    def left_in(self, db):
        """Whether there is something that a worker could yet get, or that becomes such."""
        return self.server.rows("""
            SELECT EXISTS (SELECT FROM outbox.queue WHERE topic <> 'join.wait')
                OR EXISTS (SELECT FROM outbox.queue q JOIN outbox.join_waits w USING (message_id)
                             JOIN outbox.joins j USING (join_id) WHERE j.status <> 0)
                OR EXISTS (SELECT FROM outbox.inbox_queue) OR EXISTS (SELECT FROM outbox.timer_queue)
                OR EXISTS (SELECT FROM outbox.run_queue)""", db=db)[0][0]

    def close_joins(self, db, keeper):
        while keeper.call('reconcile', 'SELECT outbox.reconcile_joins()'):
            pass
        for (join,) in self.server.rows('SELECT join_id::text FROM outbox.joins WHERE status = 0', db=db):
            keeper.call('close_join', 'SELECT outbox.cancel_join(%s::uuid)', (join,), args={'join': join})

    def snapshot(self, db, keeper):
        number = keeper.recorder.begin(db, 'final', '', {})
        keeper.recorder.end(number, record.OK, {name: self.server.rows(query, db=db) for name, query in FINAL.items()})

    def amcheck(self):
        checked = self.server.program('pg_amcheck', '-h', self.folder, '-p', self.server.port, '-U', 'postgres',
                                      '--install-missing', '--heapallindexed',
                                      *[f'--database={db}' for db in self.databases])
        return checked.stdout.splitlines() or ['it failed'] * bool(checked.returncode)


def parse(arguments):
    options = {'seed': str(random.SystemRandom().randrange(1_000_000)), 'messages': 5000, 'crashes': 3, 'restarts': 1,
               'kills': 12, 'nuisances': 8, 'databases': 2, 'port': 5433, 'seconds': 0, 'patience': 90, 'streams': 40, 'keys': 0, 'lead': 2, 'check': 0}
    for argument in arguments:
        name, _, value = argument.partition('=')
        options[name] = value if name in ('seed', 'bindir', 'folder') else int(value)
    return options


def suffer(options, report):
    """Load a server, and let the faults come."""
    run = Run(options)
    run.set_up()
    began = time.monotonic()
    faults, in_time = run.load()
    report.say(in_time, 'the producers ended in time')
    print(f'# faults: {faults.counts()} in {time.monotonic() - began:.0f} s', flush=True)
    run.drain()
    print(f'# load and drain: {time.monotonic() - began:.0f} s', flush=True)
    report.say(not run.crew.broken, 'no client ended with an error of its own', run.crew.broken)
    found = run.amcheck()
    report.say(not found, 'pg_amcheck finds tables and indexes sound', found)
    run.server.stop('fast')


def judge(folder, report):
    """Hold the histories in a folder against the laws."""
    anomalies = {name: [] for name in check.names()}
    for db, history in record.read(folder).items():
        checked = check.check(history)
        print(f'# {db}: {checked.summary()}', flush=True)
        for anomaly in checked.anomalies:
            anomalies[anomaly.law].append(f'{db}: {anomaly.text}')
    for name, found in anomalies.items():
        report.say(not found, f'{name}: {check.names()[name]}', found)


def main():
    options = parse(sys.argv[1:])
    told = ('seed', 'messages', 'crashes', 'restarts', 'kills', 'nuisances')
    print('#', *(f'{name}={options[name]}' for name in told), flush=True)
    report = Report()
    if not options['check']:
        suffer(options, report)
    judge(f'{options["folder"]}/histories', report)
    return 1 if report.failed else 0


if __name__ == '__main__':
    sys.exit(main())
