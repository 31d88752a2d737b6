"""What instances report of receptors and perspectives: it is written down, and all there is to it.

A client's calls come one after the other, so of a key that only one client uses
each state is known, or one of a few if the outcome of a call is not. Of a key that
all use, the attempts are.
"""

from collections import defaultdict

from facts import ABORTED, COMMITTED
from law import law
from record import OK

STARTED, ENDED, FAILED = 1, 2, 3


def entries_by_key(facts, section):
    """(key, name) -> [(call, fate, its entries, in order)], in order."""
    found = defaultdict(list)
    for call in facts.calls:
        if section in call.args and facts.fate(call) != ABORTED:
            entries = defaultdict(list)
            for key, name, *entry in call.args[section]:
                entries[key, name].append(entry)
            for key, several in entries.items():
                found[key].append((call, facts.fate(call), several))
    return found


def status_of(entry):
    _, _, failed = entry[-3:]
    return entry[-3] if entry[-3] is not None else FAILED if failed else ENDED


def is_start(call):
    return call.op.startswith('start_')


def replay(calls, begin, note, answer):
    """The states that a key can be in, and the calls whose answers none of them explains."""
    states, odd = {None}, []
    for call, fate, entries in calls:
        if is_start(call) and call.outcome == OK:
            fitting = {state for state in states if answer(state) == call.result}
            if not fitting:
                odd.append(call)
            states = fitting or states
        after = {begin(state) if is_start(call) else note(state, entries) for state in states}
        states = after if fate == COMMITTED else states | after
    return states, odd


# receptors: (status, attempts, error)

def begin_receptor(state):
    if state is None:
        return STARTED, 1, None
    return state if state[0] == ENDED else (STARTED, state[1] + 1, state[2])


def note_receptor(state, entries):
    status, error = status_of(entries[-1]), entries[-1][-2]
    # completions and failures of one call are an attempt each
    attempts = len({failed for _, _, failed in entries})
    if state is not None:
        attempts += state[1] - (state[0] == STARTED)
    return status, attempts, error


@law
def receptors(facts):
    """What receptors report is what is written down, and each report is one attempt."""
    rows = {(row[0], row[1]): tuple(row[2:]) for row in facts.final.get('receptors', ())}
    known = entries_by_key(facts, 'receptors')
    for key, calls in known.items():
        if key[1] == 'of all':
            counts = [(fate, len({failed for _, _, failed in entries})) for _, fate, entries in calls]
            least = sum(count for fate, count in counts if fate == COMMITTED)
            most = sum(count for _, count in counts)
            attempts = rows[key][1] if key in rows else 0
            if not least <= attempts <= most:
                yield f'{key} has {attempts} attempts, not {least} to {most}'
            continue
        states, odd = replay(calls, begin_receptor, note_receptor, lambda state: state is None or state[0] != ENDED)
        for call in odd:
            yield f'{call} answered {call.result}'
        if rows.get(key) not in states:
            yield f'{key} is {rows.get(key)}, not {" or ".join(map(str, states))}'
    for key in rows.keys() - known.keys():
        yield f'{key} was never reported'


# perspectives: (last message, status, error)

def begin_perspective(state):
    return (None, STARTED, None) if state is None else (state[0], STARTED, state[2])


def note_perspective(state, entries):
    lasts = [last for last, *_ in entries if last is not None]
    last = lasts[-1] if lasts else state[0] if state else None
    return last, status_of(entries[-1]), entries[-1][-2]


@law
def perspectives(facts):
    """A perspective's checkpoint is what it reported last."""
    rows = {(row[0], row[1]): tuple(row[2:]) for row in facts.final.get('perspectives', ())}
    known = entries_by_key(facts, 'perspectives')
    for key, calls in known.items():
        if key[1] == 'of all':
            lasts = {last for _, _, entries in calls for last, *_ in entries}
            if rows.get(key, (None,))[0] not in lasts | {None}:
                yield f'{key} has {rows[key][0]}, which was not reported'
            continue
        states, odd = replay(calls, begin_perspective, note_perspective, lambda state: state and state[0])
        for call in odd:
            yield f'{call} answered {call.result}'
        if rows.get(key) not in states:
            yield f'{key} is {rows.get(key)}, not {" or ".join(map(str, states))}'
    for key in rows.keys() - known.keys():
        yield f'{key} was never reported'
