"""What befalls the server and its clients, in an order made up from the seed."""

import random
import signal
import time

import psycopg2

from crew import ended, spawn

TABLES = ('queue', 'inbox_queue', 'timer_queue', 'run_queue', 'joins', 'join_members', 'join_waits',
          'topics', 'dedupe', 'instances', 'message_deduplication', 'dead', 'archive', 'jobs')
LIVE = ('queue', 'inbox_queue', 'timer_queue', 'run_queue')
CLUSTERED = ('queue', 'inbox_queue', 'joins', 'join_members', 'dedupe')

# how often each fault comes, for one call of crashes=, kills=, ...
CRASHES = ('backend', 'backend', 'backend', 'worker', 'checkpointer', 'walwriter')
KILLS = ('terminate', 'terminate', 'cancel', 'cancel', 'kill_client', 'stop_client', 'stop_backend')
RESTARTS = ('immediate', 'immediate', 'fast', 'kill')
NUISANCES = ('lock_rows', 'lock_rows', 'old_snapshot', 'reindex', 'vacuum_full', 'cluster', 'alter_table', 'truncate')


class Faults:
    def __init__(self, seed, server, databases, crew, many, ordeals):
        self.chance = random.Random(f'{seed}/faults')
        self.server, self.databases, self.crew = server, databases, crew
        chance = self.chance
        self.plan = ([('crash', chance.choice(CRASHES)) for _ in range(many['crashes'])]
                     + [('restart', chance.choice(RESTARTS)) for _ in range(many['restarts'])]
                     + [('kill', chance.choice(KILLS)) for _ in range(many['kills'])]
                     + [('nuisance', chance.choice(NUISANCES)) for _ in range(many['nuisances'])])
        chance.shuffle(self.plan)
        self.add_ordeals(ordeals, many['each'])
        self.done = {'crash': 0, 'restart': 0, 'kill': 0, 'nuisance': 0}
        self.refused = 0
        self.missing = []       # ordeals that came to nothing
        self.beside = []

    def add_ordeals(self, ordeals, each):
        """Among the others; those of one kind in their order, and apart."""
        placed = [((number + 0.5) / len(self.plan), fault) for number, fault in enumerate(self.plan)]
        for ordeal in ordeals:
            strikes = [(ordeal, strike) for _ in range(each) for strike in ordeal.strikes]
            placed += [((number + self.chance.uniform(0.1, 0.8)) / len(strikes), ('ordeal', strike))
                       for number, strike in enumerate(strikes)]
        self.plan = [fault for _, fault in sorted(placed, key=lambda entry: entry[0])]

    def commit_one(self, number):
        """Let fault NUMBER of the plan happen."""
        family, name = self.plan[number]
        if family == 'ordeal':
            self.strike(*name)
            return
        try:
            if getattr(self, family)(name):
                self.done[family] += 1
            else:
                self.refused += 1
        except psycopg2.Error:
            self.refused += 1

    def strike(self, ordeal, what):
        name, began = ordeal.name, time.monotonic()
        try:
            done = ordeal.strike(what, self.chance)
        except psycopg2.Error as error:
            done = False
            print(f'# {error}', flush=True)
        if not done:
            self.missing.append(f'{name}: {what}')
        print(f'# fault {name}: {what}, {time.monotonic() - began:.1f} s', flush=True)

    def counts(self):
        told = {'crash': 'crashes', 'restart': 'restarts', 'kill': 'kills and stops', 'nuisance': 'nuisances'}
        return ', '.join(f'{self.done[family]} {name}' for family, name in told.items()) + f', {self.refused} came to nothing'

    def finish(self):
        """Wait for what goes on beside."""
        while self.beside:
            self.beside = [pid for pid in self.beside if not ended(pid)]
            time.sleep(0.02)

    def processes(self, condition):
        return [row[0] for row in self.server.rows(
            f'SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND {condition} ORDER BY pid')]

    # the server

    def crash(self, what):
        condition = {
            'backend': "backend_type = 'client backend'",
            'worker': "backend_type LIKE 'outbox%%'",
            'checkpointer': "backend_type = 'checkpointer'",
            'walwriter': "backend_type = 'walwriter'",
        }[what].replace('%%', '%')
        pids = self.processes(condition) or self.processes("backend_type = 'client backend'")
        return bool(pids) and self.server.crash(self.chance.choice(pids))

    def restart(self, mode):
        if mode == 'kill':
            self.server.kill()
        else:
            self.server.stop(mode)
        self.server.start()
        return True

    # sessions and clients

    def kill(self, how):
        chance = self.chance
        if how in ('terminate', 'cancel'):
            # those that wait in a claim now and then on purpose
            waiting = self.processes("backend_type = 'client backend' AND wait_event_type = 'Extension'")
            pids = waiting if waiting and chance.random() < 0.5 else self.processes(
                "application_name <> 'history' AND backend_type = 'client backend'"
                " OR backend_type LIKE 'outbox worker%' OR backend_type LIKE 'outbox handlers%'")
            return bool(pids) and self.server.rows(
                f'SELECT pg_{how}_backend(%s)', (chance.choice(pids),))[0][0]
        if how == 'kill_client':
            return self.crew.kill(chance)
        pid = self.crew.random_pid(chance)
        if how == 'stop_backend':
            pids = self.processes("backend_type = 'client backend'")
            pid = chance.choice(pids) if pids else None
        return pid is not None and self.stop_for_a_while(pid, chance.uniform(0.2, 3) if how == 'stop_client' else 1.5)

    def stop_for_a_while(self, pid, seconds):
        """Stopped for longer than its leases last, perhaps; others go on."""
        if not self.server.signal(pid, signal.SIGSTOP):
            return False

        def go_on():
            time.sleep(seconds)
            self.server.signal(pid, signal.SIGCONT)

        self.aside(go_on)
        return True

    # sessions in the way

    def aside(self, work):
        def guarded():
            try:
                work()
            except psycopg2.Error:
                pass    # it was killed, like others

        self.beside.append(spawn(guarded))

    def nuisance(self, what):
        db = self.chance.choice(self.databases)
        work = getattr(self, what)(db)
        self.aside(work)
        return True

    def session(self, db, *statements, pause=0.0):
        connection = self.server.connect(db, name='nuisance')
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '3s'")
                for number, statement in enumerate(statements):
                    if number == len(statements) - 1:
                        time.sleep(pause)
                    cursor.execute(statement)
        finally:
            connection.close()

    def lock_rows(self, db):
        table = self.chance.choice(TABLES)
        strength = self.chance.choice(('UPDATE', 'NO KEY UPDATE', 'SHARE', 'KEY SHARE'))
        few = self.chance.randrange(1, 60)
        pause = self.chance.uniform(0.2, 2.5)
        return lambda: self.session(
            db, 'BEGIN', f'SELECT FROM outbox.{table} LIMIT {few} FOR {strength} SKIP LOCKED', 'ROLLBACK', pause=pause)

    def old_snapshot(self, db):
        pause = self.chance.uniform(1, 6)
        return lambda: self.session(
            db, 'BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT count(*) FROM outbox.queue', 'ROLLBACK', pause=pause)

    def reindex(self, db):
        table = self.chance.choice(TABLES)
        return lambda: self.session(db, f'REINDEX TABLE CONCURRENTLY outbox.{table}')

    def vacuum_full(self, db):
        table = self.chance.choice(TABLES)
        return lambda: self.session(db, f'VACUUM FULL outbox.{table}')

    def cluster(self, db):
        table = self.chance.choice(CLUSTERED)
        return lambda: self.session(db, f'CLUSTER outbox.{table} USING {table}_pkey')

    def alter_table(self, db):
        table = self.chance.choice(LIVE)
        fillfactor = self.chance.randrange(40, 90)
        return lambda: self.session(db, f'ALTER TABLE outbox.{table} SET (fillfactor = {fillfactor})')

    def truncate(self, db):
        table = self.chance.choice(LIVE)
        pause = self.chance.uniform(0, 0.5)
        return lambda: self.session(db, 'BEGIN', f'TRUNCATE outbox.{table}', 'ROLLBACK', pause=pause)
