"""What producers are going to do: made up from the seed alone.

Step N of a producer is the same whatever happened before it, so a run is
repeated by its seed, and the successor of a producer that was killed goes on
with the next step.

A payload is TAG|SIZE|FILLER; the tag is different for all messages, and the
filler follows from it, so its receiver can check whether it is complete.
What else travels with a message follows from the marks at the end of its tag:
p00.3.1~ch2 has a correlation id, headers, and tenant 2.
"""

import random
import re
import uuid
from dataclasses import dataclass

TOPICS = ('t0', 't1', 't2', 't3')
KEYED = ('t0', 't1')    # topics of messages that have keys
SHORT = 'short'         # kept for a second when done
SHORT_KEPT = 1000000    # us
HANDLED = 'handled'     # has a handler in the database
FOLLOWS = 'follows'     # what the handler enqueues
OPERATED = 'operated'   # an operator discards and reschedules it
REDRIVEN = 'redriven'   # redriven when it is dead
PURGED = 'purged'       # removed by an operator
PURGES = {'default': 'ready', 'other': 'dead', 'third': 'all'}  # namespace -> what is removed there
PRIORITIES = ('t1', 't2', 't3')     # topics whose messages have some
TOPIC_PRIORITIES = {'t3': 1}    # of messages that have none
BOOST = 60000000        # us; a class of priority
TIMED, RUN, JOINED, BROKEN = 'timed', 'run', 'joined', 'broken'
BROKEN_SIZE = 7
CLAIMED_TOPICS = TOPICS + (SHORT, OPERATED, REDRIVEN, PURGED, FOLLOWS, TIMED, RUN, JOINED, BROKEN)
NAMESPACES = ('default', 'other')
HANDLER_NAMES = ('h0', 'h1')    # of the inbox
# flags of process_work_batch: done messages of the inbox are kept; a message is new, or has been tried
KEEP_INBOX, IS_NEW, IS_RETRY = 4, 1, 32
MAX_ATTEMPTS = 12
DUE_ATTEMPTS = 10               # of timers, runs and the inbox
LONG = 24 * 3600 * 1000         # ms; longer than a run, and than what the clock is set
RARE = {3: 'job', 6: 'timer', 8: 'publish', 10: 'inbox', 13: 'join'}
BACKOFF_BASE, BACKOFF_MAX = 30, 300     # ms
NEVER = 99              # so often the handler fails: always
# subscriptions that are there from the beginning: patterns, and filter. With those that
# come and go, what is published in pub.wide is for more than are served at once.
SUBSCRIPTIONS = {'all': ('pub.#', None), 'some': ('pub.*.x', {'f': '1'}), 'again': ('pub.a', None),
                 **{f'wide{number}': ('pub.wide', None) for number in range(7)}}
OTHERS_WANT = 'pub.b.#'     # what subscriptions want that come and go
REPLAYED = 'again'      # what has been published there is delivered again, now and then
PUBLISHED = ('pub.a', 'pub.a', 'pub.b.x', 'pub.c.x', 'pub.d.y', 'pub.wide')


def payload(tag, size=0):
    return f'{tag}|{size}|{(tag * (size // len(tag) + 1))[:size]}'


def read_payload(text):
    """The tag, and whether the rest is as it was made; (None, False) for a text of another kind."""
    tag, bar, rest = text.partition('|')
    size, more, filler = rest.partition('|')
    if not (bar and more and size.isdigit()):
        return None, False
    return tag, filler == (tag * (int(size) // len(tag) + 1))[:int(size)]


def number_uuid(kind, number):
    return str(uuid.UUID(int=(kind << 96) | (4 << 76) | (8 << 60) | number))


TENANTS = tuple(number_uuid(0x7E, number) for number in range(3))
MARKS = re.compile(r'~([chmjf]*)([0-2]?)$')


def marks(tag):
    """Correlation id, headers, and tenant of the message with this tag."""
    found = MARKS.search(tag)
    if not found:
        return None, None, None
    letters, tenant = found.groups()
    headers = ({'tag': tag} if 'h' in letters
               # those of an enqueue_many have the same
               else {'step': '.'.join(tag.split('.')[:2])} if 'm' in letters
               # what a filter asks for
               else {'f': '1'} if 'f' in letters
               else None)
    return (f'of {tag}' if 'c' in letters else f'job {tag}' if 'j' in letters else None,
            headers, TENANTS[int(tenant)] if tenant else None)


def wrong_fields(tag, **came):
    """What a message came with besides its payload, as far as it differs from what its tag says."""
    correlation, headers, tenant = marks(tag)
    if correlation and correlation.startswith('job ') and came.get('headers'):
        # the run has become a message
        correlation, headers = None, {'job': correlation, 'run': came['headers'].get('run')}
    want = {'correlation': correlation, 'headers': headers, 'tenant': tenant}
    return ', '.join(f'{name} {came[name]}' for name in came if came[name] != want[name])


@dataclass
class Step:
    kind: str           # messages, publish, join, timer, job, inbox
    end: str            # call (each is its own transaction), commit, rollback, prepare, prepare_rollback
    tag: str
    chance: random.Random
    size: int = 1       # how many messages, more or less


class Plan:
    def __init__(self, seed, db, producer, streams, keys):
        self.seed, self.db, self.producer = seed, db, producer
        self.streams = streams
        self.keys = keys

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
            'publish': (('call', 'commit', 'rollback', 'prepare', 'prepare_rollback'), (30, 45, 15, 5, 5)),
        }[kind]
        return Step(kind, chance.choices(*ends)[0], f'{self.producer}.{number}', chance)

    def messages(self, step):
        """Lists of calls (op, messages): the second list is to be undone by a savepoint.

        Within a transaction, keys come before streams, and both in order, so that
        no two producers can wait for each other.
        """
        chance = step.chance
        counter = iter(range(10000))

        def message(own_marks=None, **more):
            letters = chance.choice(('', 'c', 'h', 'ch')) + chance.choice(('', '', '0', '1', '2'))
            tag = f'{step.tag}.{next(counter)}~{letters if own_marks is None else own_marks}'
            made = {'tag': tag, 'topic': chance.choice(TOPICS), 'namespace': chance.choices(NAMESPACES, (4, 1))[0], 'size': 0}
            roll = chance.random()
            if roll < 0.08:
                made['topic'] = SHORT
            elif roll < 0.20:
                made['topic'] = chance.choice((OPERATED, REDRIVEN, PURGED))
                # an operator has time to find it
                made['due'] = chance.randrange(300, 1500)
                if made['topic'] == PURGED:
                    made['namespace'] = chance.choice(list(PURGES))
            elif roll < 0.28:
                made.update(topic=HANDLED, namespace='default', size=chance.choices((0, 1, 3, NEVER), (20, 4, 2, 1))[0])
            elif roll < 0.283:
                made['size'] = 1 << 20
            elif roll < 0.34:
                made['size'] = chance.randrange(3000)
            roll = chance.random()
            if 'due' in made:
                pass
            elif roll < 0.10:
                made['due'] = chance.randrange(1, 1500)
            elif roll < 0.18 and made['topic'] in TOPICS:
                made['expires'] = chance.choice((chance.randrange(1, 60), chance.randrange(20, 1500)))
                if chance.random() < 0.5:
                    # before it is due; or it is never looked at by a claim
                    made['due'] = made['expires'] + chance.choice((chance.randrange(10, 500), LONG))
            made.update(more)
            if made['topic'] in PRIORITIES and chance.random() < 0.4:
                made['priority'] = chance.choice((0, 0, 2) if made['topic'] in TOPIC_PRIORITIES else (-1, 1, 1))
            return made

        calls = []
        stream = 0
        if chance.random() < 0.25:
            key = f'k{chance.randrange(self.keys)}'
            # the same key is another one in another topic or namespace
            where = {'topic': chance.choice(KEYED), 'namespace': chance.choice(NAMESPACES)}
            calls.append(('try_enqueue', [message('ch', key=key, size=0, **where)]))
        if chance.random() < 0.45:
            stream = int(self.streams * chance.random() ** 2)
            name = number_uuid(0x57, stream)
            form = chance.choice(('enqueue', 'enqueue', 'enqueue_many', 'enqueue_batch'))
            same = {'topic': chance.choice(TOPICS), 'namespace': 'default', 'size': 0, 'stream': name}
            several = [message('m' if form == 'enqueue_many' else None, **same) for _ in range(chance.randrange(1, 5))]
            for one in several:
                if one.pop('expires', None):
                    one.pop('due', None)
                if form == 'enqueue_many':
                    one.pop('due', None)
                    one.pop('priority', None)
                elif chance.random() < 0.5:
                    # a stream goes through topics and namespaces
                    one.update(topic=chance.choice(TOPICS), namespace=chance.choice(NAMESPACES))
            calls += [('enqueue', [one]) for one in several] if form == 'enqueue' else [(form, several)]
        if chance.random() < 0.15:
            same = {'topic': chance.choice(TOPICS * 3 + (SHORT, OPERATED, REDRIVEN, PURGED)), 'namespace': 'default'}
            several = [message('m', **same) for _ in range(chance.randrange(2, 40))]
            for one in several:
                one.pop('due', None)
                one.pop('expires', None)
                one.pop('priority', None)
            calls.append(('enqueue_many', several))
        if chance.random() < 0.15:
            calls.append(('enqueue_batch', [message() for _ in range(chance.randrange(2, 12))]))
        for _ in range(chance.randrange(0 if calls else 1, 3)):
            calls.append((chance.choice(('enqueue', 'enqueue', 'try_enqueue')), [message()]))
        undone = []
        if step.end in ('commit', 'prepare') and chance.random() < 0.25:
            undone = [('enqueue', [message()]) for _ in range(chance.randrange(1, 3))]
        return calls, undone

    def publications(self, step):
        """Lists of calls (op, publications); several of one call are of one topic and stream."""
        chance = step.chance
        counter = iter(range(100))

        def publication(topic, stream, own_marks):
            tag = f'{step.tag}.{next(counter)}~{own_marks}'
            return {'tag': tag, 'topic': topic, 'stream': stream, 'size': 5000 if chance.random() < 0.2 else 0}

        # in order, so that no two producers can wait for each other
        streams = sorted({chance.randrange(4) for _ in range(2)}) if chance.random() < 0.5 else [None]
        calls = []
        for stream in streams:
            topic, name = chance.choice(PUBLISHED), None if stream is None else number_uuid(0x59, stream)
            if chance.random() < 0.3:
                calls.append(('publish_many', [publication(topic, name, 'm') for _ in range(chance.randrange(1, 5))]))
            else:
                calls.append(('publish', [publication(topic, name, chance.choice(('', 'f', 'cf', 'f2')))]))
        return calls
