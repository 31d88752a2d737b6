"""What producers are going to do: made up from the seed alone.

Step N of a producer is the same whatever happened before it, so a run is
repeated by its seed, and the successor of a producer that was killed goes on
with the next step.

A payload is TAG|SIZE|FILLER; the tag is different for all messages, and the
filler follows from it, so whoever gets the message can tell whether it is whole.
"""

import random
import uuid
from dataclasses import dataclass

TOPICS = ('t0', 't1', 't2', 't3')
SHORT = 'short'         # kept for a second when done
HANDLED = 'handled'     # has a handler in the database
FOLLOWS = 'follows'     # what the handler enqueues
TIMED, RUN, JOINED, BROKEN = 'timed', 'run', 'joined', 'broken'
CLAIMED_TOPICS = TOPICS + (SHORT, FOLLOWS, TIMED, RUN, JOINED, BROKEN)
NAMESPACES = ('default', 'other')
MAX_ATTEMPTS = 12
RARE = {3: 'job', 6: 'timer', 10: 'inbox', 13: 'join'}
BACKOFF_BASE = 30       # ms
NEVER = 99              # so often the handler fails: always


def payload(tag, size=0):
    return f'{tag}|{size}|{(tag * (size // len(tag) + 1))[:size]}'


def read_payload(text):
    """The tag, and whether the rest is as it was made; (None, False) for a text of another kind."""
    tag, bar, rest = text.partition('|')
    size, more, filler = rest.partition('|')
    if not (bar and more and size.isdigit()):
        return None, False
    return tag, filler == (tag * (int(size) // len(tag) + 1))[:int(size)]


@dataclass
class Step:
    kind: str           # messages, join, timer, job, inbox
    end: str            # call (each is its own transaction), commit, rollback, prepare, prepare_rollback
    tag: str
    chance: random.Random
    size: int = 1       # how many messages, more or less


def number_uuid(kind, number):
    return str(uuid.UUID(int=(kind << 96) | (4 << 76) | (8 << 60) | number))


class Plan:
    def __init__(self, seed, db, producer, amount, streams, keys):
        self.seed, self.db, self.producer, self.amount = seed, db, producer, amount
        self.streams = streams
        self.keys = keys or amount // 4 + 1

    def step(self, number):
        chance = random.Random(f'{self.seed}/{self.db}/{self.producer}/{number}')
        # what is rare comes in every stretch of steps
        kind = RARE.get(number % 16) or chance.choices(('messages', 'join', 'timer', 'job', 'inbox'), (88, 5, 2, 1, 4))[0]
        ends = {
            'messages': (('call', 'commit', 'rollback', 'prepare', 'prepare_rollback'), (35, 40, 10, 10, 5)),
            'join': (('call', 'commit'), (70, 30)),
            'timer': (('call', 'commit', 'rollback'), (70, 20, 10)),
            'job': (('call', 'commit', 'rollback'), (70, 20, 10)),
            'inbox': (('call', 'commit', 'rollback', 'prepare'), (60, 20, 15, 5)),
        }[kind]
        return Step(kind, chance.choices(*ends)[0], f'{self.producer}.{number}', chance)

    def messages(self, step):
        """Lists of calls (op, messages): the second list is to be undone by a savepoint.

        Within a transaction, keys come before streams, and both in order, so that
        no two producers can wait for each other.
        """
        chance = step.chance
        counter = iter(range(10000))

        def message(**more):
            tag = f'{step.tag}.{next(counter)}'
            made = {'tag': tag, 'topic': chance.choice(TOPICS), 'namespace': chance.choices(NAMESPACES, (4, 1))[0], 'size': 0}
            roll = chance.random()
            if roll < 0.06:
                made['topic'] = SHORT
            elif roll < 0.14:
                made.update(topic=HANDLED, namespace='default', size=chance.choices((0, 1, 3, NEVER), (20, 4, 2, 1))[0])
            elif roll < 0.143:
                made['size'] = 1 << 20
            elif roll < 0.2:
                made['size'] = chance.randrange(3000)
            roll = chance.random()
            if roll < 0.10:
                made['due'] = chance.randrange(1, 1500)
            elif roll < 0.13 and made['topic'] in TOPICS:
                made['expires'] = chance.randrange(20, 1500)
            made.update(more)
            return made

        calls = []
        stream = 0
        if chance.random() < 0.25:
            key = f'k{chance.randrange(self.keys)}'
            calls.append(('try_enqueue', [message(key=key, topic='t0', namespace='default', size=0)]))
        if chance.random() < 0.45:
            stream = int(self.streams * chance.random() ** 2)
            name = number_uuid(0x57, stream)
            form = chance.choice(('enqueue', 'enqueue', 'enqueue_many', 'enqueue_batch'))
            same = {'topic': chance.choice(TOPICS), 'namespace': 'default', 'size': 0, 'stream': name}
            several = [message(**same) for _ in range(chance.randrange(1, 5))]
            for one in several:
                one.pop('expires', None)
                if form == 'enqueue_many':
                    one.pop('due', None)
            calls += [('enqueue', [one]) for one in several] if form == 'enqueue' else [(form, several)]
        if chance.random() < 0.15:
            same = {'topic': chance.choice(TOPICS), 'namespace': 'default'}
            several = [message(**same) for _ in range(chance.randrange(2, 40))]
            for one in several:
                one.pop('due', None)
                one.pop('expires', None)
            calls.append(('enqueue_many', several))
        if chance.random() < 0.15:
            calls.append(('enqueue_batch', [message() for _ in range(chance.randrange(2, 12))]))
        for _ in range(chance.randrange(0 if calls else 1, 3)):
            calls.append((chance.choice(('enqueue', 'enqueue', 'try_enqueue')), [message()]))
        undone = []
        if step.end in ('commit', 'prepare') and chance.random() < 0.25:
            undone = [('enqueue', [message()]) for _ in range(chance.randrange(1, 3))]
        return calls, undone
