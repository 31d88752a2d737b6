"""The history: what clients called, when, and what they were told.

Each client appends to a file of its own, a line when a call begins and one when
it ends. A line is one write, so a client that is killed leaves whole lines; a
call without an end has an unknown outcome, like one whose connection was lost.

Times are microseconds of the machine's clock, which is the server's as well.
"""

import glob
import json
import os
import time
from dataclasses import dataclass, field

OK = 'ok'               # done, as far as its transaction is
ERROR = 'error'         # certainly not done
UNKNOWN = 'unknown'     # the connection was lost, or the client died
FOREVER = 1 << 62


def now():
    return time.time_ns() // 1000


@dataclass
class Call:
    client: str
    number: int
    db: str
    op: str
    tx: str             # of the transaction, with /s appended in a savepoint; '' if the call is one
    args: dict
    begin: int
    end: int = FOREVER
    outcome: str = UNKNOWN
    result: object = None

    def __str__(self):
        return f'{self.client}:{self.number} {self.op} {self.outcome}'


@dataclass
class History:
    """The calls in one database, and what was in its tables at the end."""
    calls: list = field(default_factory=list)
    final: dict = field(default_factory=dict)
    expected: set = field(default_factory=set)      # parts of errors that the faults explain
    moves: object = None                            # of the server's clock, if it was set
    cut: bool = False                               # it was cut short, with work left to do
    dumped: dict = None                             # what a copy began with


class Recorder:
    def __init__(self, folder, client):
        self.file = os.open(f'{folder}/{client}.history', os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.number = 0

    def write(self, *words):
        os.write(self.file, (json.dumps(words, separators=(',', ':')) + '\n').encode())

    def begin(self, db, op, tx, args):
        self.number += 1
        self.write(self.number, 'begin', now(), db, op, tx, args)
        return self.number

    def end(self, number, outcome, result=None):
        self.write(number, 'end', now(), outcome, result)


def read_client(path):
    calls = {}
    client = os.path.basename(path).removesuffix('.history')
    with open(path, encoding='utf-8') as lines:
        for line in lines:
            number, what, *rest = json.loads(line)
            if what == 'begin':
                at, db, op, tx, args = rest
                calls[number] = Call(client, number, db, op, tx, args, at)
            else:
                at, outcome, result = rest
                call = calls[number]
                call.outcome, call.result = outcome, result
                # the effect of an unknown call may come later than the client gave up
                if outcome != UNKNOWN:
                    call.end = at
    return list(calls.values())


def note_conditions(folder, conditions):
    with open(f'{folder}/conditions.json', 'w', encoding='utf-8') as file:
        json.dump(conditions, file)


def read_conditions(folder):
    try:
        with open(f'{folder}/conditions.json', encoding='utf-8') as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def read_each(folder):
    """The histories in a folder, one after the other, as (database, history)."""
    paths = {}
    for path in sorted(glob.glob(f'{folder}/*.history')):
        with open(path, encoding='utf-8') as lines:
            first = lines.readline()
        if first:
            paths.setdefault(json.loads(first)[3], []).append(path)
    for db, several in sorted(paths.items()):
        history = History()
        for path in several:
            for call in read_client(path):
                if call.op == 'final':
                    history.final = call.result
                else:
                    history.calls.append(call)
        history.calls.sort(key=lambda call: call.begin)
        yield db, history
