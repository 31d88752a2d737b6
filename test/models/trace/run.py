#!/usr/bin/python3
"""Load a server that writes a trace, and lead the models along it.

    run.py bindir=... folder=... [seed=N] [events=N] [edits=0] [only=MODEL]

So many events of the code are written in each of the databases; with "only" there is
just the one that this model is about. See README.md beside the models. Reports in TAP's
format.
"""

import os
import random
import re
import shutil
import struct
import subprocess
import sys

import psycopg2

import edits
import load
import project

HERE = os.path.dirname(os.path.abspath(__file__))
SETTINGS = {'listen_addresses': '', 'shared_preload_libraries': 'outbox', 'fsync': 'off',
            'outbox.databases': '', 'port': 5433, 'max_connections': 50, 'autovacuum_naptime': '5s',
            'wal_level': 'logical'}
DATABASES = ('streams', 'messages', 'waits', 'joins')
ABOUT = {'stream_cursor': ['streams'], 'message': ['messages'], 'waits': ['waits'], 'join': ['joins']}
# the first member of all, without which no end looks for members
FOR_JOINS = ('SELECT outbox.attach_message_to_join(outbox.start_join(NULL, 2), gen_random_uuid())',
             "SELECT pg_create_logical_replication_slot('trace', 'test_decoding')")
VALUES = 12         # of an event, in replay.h
PIECE = 100000      # events that are followed in one run, if they can be parted


class Refused(Exception):
    pass


def program(*command, **more):
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode:
        raise RuntimeError(f'{command}: {done.stdout}')
    return done.stdout


COLUMN = re.compile(r"(\w+)\[[^]]*\]:(?:'((?:[^']|'')*)'|(\S+))")


def changes_of_rows(dsn):
    """What was committed in the tables of joins, and in the queue, as further events: (xid, table, operation, columns)."""
    connection = psycopg2.connect(f'{dsn} dbname=joins')
    cursor = connection.cursor()
    cursor.execute("""SELECT xid::text::integer, data FROM pg_logical_slot_get_changes('trace', NULL, NULL)
                       WHERE data ~ '^table outbox.(joins|join_members|join_waits|join_rechecks|queue):'""")
    events = []
    for xid, data in cursor:
        table, operation, columns = re.fullmatch(r'table outbox\.(\w+): (\w+): (.*)', data, re.DOTALL).groups()
        row = {name: None if plain == 'null' else plain or quoted for name, quoted, plain in COLUMN.findall(columns)}
        events.append(('table', 0, (xid, table, operation, row)))
    connection.close()
    return events


def make_trace(bindir, folder, seed, wanted, databases):
    """Run a server with a load on it; its events."""
    data = f'{folder}/data'
    program(f'{bindir}/initdb', '-D', data, '-U', 'postgres', '-A', 'trust', '-E', 'UTF8', '--locale=C', '--no-sync')
    with open(f'{data}/postgresql.conf', 'a', encoding='utf-8') as conf:
        conf.writelines(f"{name} = '{value}'\n" for name, value in SETTINGS.items())
        conf.write(f"unix_socket_directories = '{folder}'\n")
    dsn = f'host={folder} port={SETTINGS["port"]} user=postgres'
    subprocess.run([f'{bindir}/pg_ctl', '-D', data, '-l', f'{folder}/log', '-w', '-s', 'start'], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for database in databases:
            for name, statement in (('postgres', f'CREATE DATABASE {database}'), (database, '''
                    CREATE EXTENSION outbox;
                    SELECT outbox.subscribe('s', '{a}');
                    SELECT outbox.configure_subscription('s', max_attempts => 3);
                    SELECT outbox.configure_topic(topic, max_attempts => 3)
                      FROM unnest(ARRAY['a', 'b']) topic''')):
                connection = psycopg2.connect(f'{dsn} dbname={name}')
                connection.autocommit = True
                connection.cursor().execute(statement)
                for more in FOR_JOINS if name == 'joins' else ():
                    connection.cursor().execute(more)
                connection.close()
        # each database has its share of the room
        for n, database in enumerate(databases, 1):
            trace_file(data, wanted * len(databases) * 2)
            run = load.Load(dsn, seed, lambda n=n: count(data) / wanted - n + 1, [database])
            run.run()
            if run.failures:
                raise RuntimeError(run.failures)
        rows = changes_of_rows(dsn) if 'joins' in databases else []
    finally:
        subprocess.run([f'{bindir}/pg_ctl', '-D', data, '-m', 'fast', '-w', '-s', 'stop'], check=False)
    return project.read(f'{data}/outbox.trace') + rows


def trace_file(data, room):
    if not os.path.exists(f'{data}/outbox.trace'):
        with open(f'{data}/outbox.trace', 'wb') as file:
            file.truncate((room + 1) * project.EVENT.size)


def count(data):
    with open(f'{data}/outbox.trace', 'rb') as file:
        return struct.unpack('=q', file.read(8))[0]


class Model:
    """A verifier that follows traces."""
    def __init__(self, name, constants, folder):
        self.name, self.folder = name, f'{folder}/{name}'
        shutil.rmtree(self.folder, ignore_errors=True)
        os.mkdir(self.folder)
        for file in (f'{HERE}/../{name}.pml', f'{HERE}/replay.pml', f'{HERE}/replay.h'):
            shutil.copy(file, self.folder)
        program('spin', '-DREPLAY', *(f'-D{k}={v}' for k, v in constants.items()), '-a', f'{name}.pml',
                cwd=self.folder)
        program('gcc', '-w', '-O1', '-DSAFETY', '-DNOREDUCE', '-DNOFAIR', '-DCOLLAPSE', '-DVECTORSZ=4096', '-o', 'pan', 'pan.c',
                cwd=self.folder)

    def follow(self, events):
        """How many events it has followed; Refused if not all."""
        for piece in pieces(events):
            self.follow_piece(piece)
        return sum(event[0] != 0 for event in events)

    def follow_piece(self, events):
        with open(f'{self.folder}/trace', 'wb') as file:
            for event in events:
                file.write(struct.pack(f'={VALUES}i', *event, *[0] * (VALUES - len(event))))
        # where an order is looked for, there are some in which it cannot go on
        more = ['-E'] if self.name in project.IN_ANY_ORDER else []
        said = program('./pan', '-n', *more, f'-m{20 * len(events) + 1000}', '-w22', cwd=self.folder)
        reached = int(said.split('replay: ')[1].split()[0])
        if 'errors: 0' not in said or reached != len(events) or 'max search depth too small' in said:
            because = [line for line in said.split('\n') if line.startswith('pan:') and 'at depth ' in line]
            # if each process takes its own, what they would take next, and all of this part
            following = [int(n) for n in said.split('next:')[1].split('\n')[0].split()]
            first = max([n for n in range(min(following or [0])) if events[n][0] == project.RESET], default=0) \
                if following else max(0, reached - 4)
            last = max([first, *(n for n in following if n < first + 200)]) if following else reached
            raise Refused(f'at event {reached} of {len(events)}: {events[first:last + 1]} {because}, {following}')


def pieces(events):
    """Where a model starts again, another run may follow."""
    piece = []
    for event in events:
        if len(piece) >= PIECE and event[:2] == (project.RESET, 0):
            yield piece
            piece = []
        piece.append(event)
    yield piece


def check(events, folder, chance, with_edits, models):
    """Lead the models along the trace; the titles of what failed, and of all."""
    failed, titles = [], []
    for name, projection in models.items():
        told, constants = projection(events)
        model = Model(name, constants, folder)
        title = f'{name} follows {len(told)} events of the code'
        titles.append(title)
        try:
            model.follow(told)
        except Refused as refused:
            failed.append((title, str(refused)))
            continue
        for of_model, what, how in edits.EDITS if with_edits else ():
            if of_model != name:
                continue
            title = f'{name} does not follow where {what}'
            titles.append(title)
            edited = edits.make(told, how, chance)
            try:
                if edited is None:
                    titles[-1] += ' # SKIP there is no such event'
                else:
                    model.follow(edited)
                    failed.append((title, 'it does'))
            except Refused:
                pass
    return failed, titles


def main():
    options = dict(argument.split('=', 1) for argument in sys.argv[1:])
    folder = options['folder']
    seed = options.get('seed') or str(random.randrange(10**6))
    print(f'# seed={seed}')
    only = options.get('only')
    events = make_trace(options['bindir'], folder, seed, int(options.get('events', 10000)), ABOUT.get(only, DATABASES))
    print(f'# {len(events)} events of the code')
    failed, titles = check(events, folder, random.Random(seed), options.get('edits') != '0',
                           {only: project.MODELS[only]} if only else project.MODELS)
    for number, title in enumerate(titles, 1):
        why = dict(failed).get(title)
        print(f'{"not ok" if why else "ok"} {number} - {title}')
        if why:
            print(f'# {why}')
    print(f'1..{len(titles)}')
    return bool(failed)


if __name__ == '__main__':
    sys.exit(main())
