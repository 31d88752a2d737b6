"""What is published comes to each subscription that wants it, once; and who is whose instance."""

import re
from bisect import bisect_right
from collections import Counter, defaultdict

from facts import ABORTED, COMMITTED
from law import law
from plan import OTHERS_WANT, REPLAYED, SUBSCRIPTIONS, marks
from record import FOREVER, OK

SURELY = 2000000    # us; an instance is removed after 3 s without a sign of life


def wants(pattern, wanted, one):
    """Whether a subscription with this pattern and filter gets a publication."""
    words = r'\.'.join({'*': '[^.]+', '#': '.*'}.get(word, word) for word in pattern.split('.'))
    headers = marks(one.tag)[1] or {}
    return bool(re.fullmatch(words, one.topic)) and (wanted or {}).items() <= headers.items()


def subscriptions_of(one):
    """Those of the subscriptions that are always there which get a publication."""
    return [name for name, (pattern, wanted) in SUBSCRIPTIONS.items() if wants(pattern, wanted, one)]


def replays_of(facts, one):
    """How often a publication was replayed: surely, and perhaps."""
    least = most = 0
    for call in facts.by_op['replay']:
        if facts.fate(call) == ABORTED or call.end < one.begin:
            continue
        if call.args.get('topics') and not any(wants(pattern, None, one) for pattern in call.args['topics']):
            continue
        sure, perhaps = within(facts, one, call.args.get('since'), call.args.get('until'))
        most += perhaps
        least += sure and call.outcome == OK and one.committed < call.begin
    return least, most


def within(facts, one, since, until):
    """Whether it was published between these times: surely, and perhaps."""
    if facts.moves and (since or until):
        return False, True
    return ((not since or since <= one.begin) and (not until or one.end < until),
            (not since or since <= one.end) and (not until or one.begin < until))


def how_often(facts, one):
    """subscription -> how often it gets a publication, at least and at most, whatever its fate."""
    found = {name: (1, 1) for name in subscriptions_of(one)}
    if REPLAYED in found:
        least, most = replays_of(facts, one)
        found[REPLAYED] = 1 + least, 1 + most
    return found


def lives(facts):
    """name -> (the call that made it, the calls that may have ended it) of the other subscriptions."""
    ends = defaultdict(list)
    for call in facts.by_op['unsubscribe']:
        if facts.fate(call) != ABORTED and call.result is not False:
            ends[call.args['subscription']].append(call)
    return {call.args['subscription']: (call, ends[call.args['subscription']])
            for call in facts.by_op['subscribe'] if facts.fate(call) != ABORTED}


def while_there(facts, one, made, ends):
    """How often a subscription that comes and goes gets a publication, at least and at most."""
    if not wants(OTHERS_WANT, None, one):
        return 0, 0
    sure, perhaps = within(facts, one, made.args.get('since'), None)
    if made.end < one.begin:
        least = most = 1
    else:
        least, most = int(made.args['start'] and sure), int(made.args['start'] and perhaps)
        if one.committed >= made.begin:
            # it may have been there when that was published
            most = 1
            if not made.args['start']:
                return 0, 1
    if made.outcome != OK:
        least = 0
    if any(call.outcome == OK and call.end < one.begin for call in ends):
        return 0, 0
    if ends:
        # what it had not got by then it does not get; what it had may be dropped
        gone = min(call.begin for call in ends)
        if any(call.args['drop'] for call in ends) or made.args['start'] or one.committed >= gone:
            least = 0
    return least, most


@law
def published(facts):
    """What is published comes once to each subscription that wants it, and once more for each replay."""
    if facts.dumped is not None:
        return
    came = Counter((row[0], row[2]) for row in facts.final.get('deliveries', ()))
    known = {one.tag: one for one in facts.publications}
    others = lives(facts)
    for one in facts.publications:
        wanted = how_often(facts, one)
        wanted.update((name, while_there(facts, one, *life)) for name, life in others.items())
        for name, (least, most) in wanted.items():
            # what is done in the background may have been cut off
            if one.fate != COMMITTED or facts.cut:
                least = 0
            if one.fate == ABORTED:
                most = 0
            count = came.pop((name, one.tag), 0)
            if not least <= count <= most:
                times = f'{least}' if least == most else f'{least} to {most}'
                yield f'{one.tag} ({one.topic}, {one.fate}) came to {name} {count} times, not {times}'
    for name, tag in came:
        yield f'{tag} came to {name}, ' + ('which does not want it' if tag in known else 'and was never published')
    for row in facts.final.get('deliveries', ()):
        one = known.get(row[2])
        if one and one.published_id and row[4] != one.published_id:
            yield f'{row[2]} is a delivery of {row[4]}, not of {one.published_id}'


@law
def partitions(facts):
    """A partition is of one instance while both are there: what one gets beside another, the other does not."""
    beaten = {}     # (partition, owner, another) -> the call in which the first got something beside the other
    for call, partition, others in taken_beside(facts):
        owner = call.args['owner']
        for other in others:
            beaten.setdefault((partition, owner, other), call)
            if (partition, other, owner) in beaten:
                yield f'{call} of {owner[:8]} has partition {partition}, and so had {beaten[partition, other, owner]} of {other[:8]}'


def taken_beside(facts):
    """(call, partition, owners) of what instances got while these others surely were there."""
    if facts.moves:
        return
    lived = {owner: set(times) for owner, times in facts.signs_of_life.items()}
    # signs of life, in the order of time
    signs = [call for call in facts.by_op['work_batch'] if call.begin in lived.get(call.args['owner'], ())]
    begins = [call.begin for call in signs]
    gone = {owner: min(times) for owner, times in facts.given_back.items()}
    faults = [(call.begin, call.end) for call in facts.by_op['fault'] if call.args['family'] in ('crash', 'restart', 'ordeal')]

    def there(call):
        """The others that surely were instances during a call."""
        recent = signs[bisect_right(begins, call.end - SURELY):bisect_right(begins, call.begin)]
        return {one.args['owner'] for one in recent
                if one.end < call.begin and one.args['owner'] != call.args['owner']
                and gone.get(one.args['owner'], FOREVER) > call.end
                and not any(begin < call.end and one.begin < end for begin, end in faults)}

    for call in facts.by_op['work_batch']:
        if call.outcome != OK or 'isolation' in call.args:
            continue
        taken = {entry[2] for entry in call.result or () if entry[2] is not None}
        others = there(call) if taken else ()
        for partition in taken:
            yield call, partition, others
