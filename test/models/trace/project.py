"""Events of the C code, as the models know them.

An event of the code is (what, process, values), as src/trace.h has it; of a model, a
tuple of integers: which event, who, and v1 to v10. Each model's file says which
events it knows and what they tell. A function here takes all events in their order,
and returns those of one model.

Places, tickets, owners and processes are renumbered, in their order, since a model
counts with small numbers.
"""

import collections
import struct

EVENT = struct.Struct('=16sii13q')
MIN = -2**63


def read(file):
    """The events; those that a killed process did not finish are left out."""
    with open(file, 'rb') as trace:
        written = struct.unpack('=q', trace.read(EVENT.size)[:8])[0]
        data = trace.read(written * EVENT.size)
    events = []
    for what, process, nvalues, *values in EVENT.iter_unpack(data[:len(data) // EVENT.size * EVENT.size]):
        if what[0]:
            events.append((what.rstrip(b'\0').decode(), process, tuple(values[:nvalues])))
    return events


class Numbers(dict):
    """Gives out numbers from 1."""
    def __missing__(self, name):
        self[name] = len(self) + 1
        return self[name]


def most(values):
    """The one that there is most often."""
    return collections.Counter(values).most_common(1)[0][0]


# ----------------------------------------------------------------------
# stream_cursor.pml

RESET, GET, RAISE, WIDEN, FORGET = 1, 2, 3, 4, 5
STREAM_EVENTS = {'stream.get': GET, 'stream.raise': RAISE, 'stream.widen': WIDEN, 'stream.forget': FORGET}


def streams(events):
    """Entry by entry."""
    entries = {}
    for what, _, values in events:
        if what in STREAM_EVENTS:
            entries.setdefault(values[0], []).append((STREAM_EVENTS[what], *values[1:]))
    result = []
    for entry in entries.values():
        places = {place for event in entry for place in (*event[3:8], *event[9:12]) if place not in (MIN, 0)}
        number = {place: n for n, place in enumerate(sorted(places), 1)}
        names = Numbers()
        result.append((RESET, 0))
        for what, stream, version, low, first, last, new_first, new_last, of_stream, *of_places, of_version in entry:
            if what == RAISE:
                low = new_first
            elif what == WIDEN:
                first, last = new_first, new_last
            result.append((what, 0, names[stream], version, *(number.get(p, 0) for p in (low, first, last)),
                           *((names[of_stream], *(number.get(p, 0) for p in of_places)) if of_stream else (0, 0, 0, 0)),
                           of_version))
    return result, {}


# ----------------------------------------------------------------------
# message.pml

CLAIM, SETTLE, REAP, REDRIVE, ENDED, COMMIT, ABORT = 2, 3, 4, 5, 6, 7, 8
READY, LEASED, DONE, DEAD = 0, 1, 2, 3
CLAIMS = ('row.claim', 'row.take')     # of a message without a stream, and with one
ROW_EVENTS = {'row.claim': CLAIM, 'row.take': CLAIM, 'row.bury': CLAIM, 'row.ack': SETTLE, 'row.fail': SETTLE, 'row.back': SETTLE,
              'row.reap': REAP, 'row.redrive': REDRIVE}
LEFT_OUT = ('row.renew', 'row.revoke')


def ends_of_transactions(events):
    """Of each: where it was about to commit, where its end was told, and whether it has committed."""
    about, ends = {}, {}
    for at, (what, _, values) in enumerate(events):
        if what == 'xact.commits':
            about[values[0]] = at
        elif what == 'xact.end':
            ends[values[0]] = (about.get(values[0], at), at, values[1] != 0)
    return ends


def message_events(events):
    """Of each message in the table in which most is claimed."""
    table = most(values[0] for what, _, values in events if what in CLAIMS)
    messages, left_out = {}, set()
    for at, (what, process, values) in enumerate(events):
        if what in LEFT_OUT:
            left_out.add(values[1] if what == 'row.renew' else values[0])
        elif what in ROW_EVENTS and values[0] == table:
            messages.setdefault(values[1], []).append((at, what, process, values))
    for message in left_out:
        messages.pop(message, None)
    return messages


def of_message(changes, ends, owners, owner_of):
    """
    The events of one message, up to the last transaction that has ended.

    A process tells of the end of its transaction when others may have seen it. So that
    end is where it was told, or before the next change of the row, if that was told
    first; but not before the transaction was about to commit.
    """
    workers = len(owners)
    reaper, operator, clock = workers + 1, workers + 2, workers + 3
    result = [(RESET, 0)]
    until = None                # the end of the lease
    for n, (at, what, process, values) in enumerate(changes):
        xid = values[2]
        if xid not in ends:
            break
        about, _, committed = ends[xid]
        model_event = ROW_EVENTS[what]
        if what == 'row.redrive':
            who, told, new_until = operator, (), None
        else:
            now, attempt, old_status, old_attempts, old_owner, status, attempts, waived, owner, new_until = values[3:]
            if status < 0:
                status, attempts, waived = {'row.ack': DONE}.get(what, DEAD), -1, -1
            if model_event == CLAIM:
                who = owners[owner] if what in CLAIMS else owner_of.get(process, 1)
            else:
                who = owners[old_owner] if model_event == SETTLE else reaper
            if model_event in (CLAIM, REAP) and old_status == LEASED and until is not None and until <= now:
                result.append((ENDED, clock))
                until = None
            if what == 'row.take' and old_status == LEASED and until is not None:
                return result   # an earlier message of its stream went back: no lease stands
            told = (old_status, old_attempts, status, attempts, waived, attempt + 1 if attempt >= 0 else 0)
            new_until = new_until if status == LEASED else None
        result.append((model_event, who, *told))
        end = (COMMIT if committed else ABORT, who)
        if committed and n + 1 < len(changes) and changes[n + 1][0] < about:
            return result       # the next one did not wait for the row
        result.append(end)
        if committed:
            until = new_until
    return result


def messages(events):
    owner_of, owners = {}, Numbers()
    for what, process, values in events:
        if what in CLAIMS:
            owner_of[process] = owners[values[11]]
    ends = ends_of_transactions(events)
    result = []
    for changes in message_events(events).values():
        xids = [change[3][2] for change in changes]
        if len(set(xids)) == len(xids):
            result += of_message(changes, ends, owners, owner_of)
    return result, {'WORKERS': len(owners), 'MAX_ATTEMPTS': 3, 'RELEASES': 1000000, 'REDRIVES': 1000000}


# ----------------------------------------------------------------------
# waits.pml

JOIN, LIST, NOTHING, LEAVE, SLEEP, CALLED, KEEPER, APPOINT, CALL, DUE, RELEASE, ALL, PASS = range(1, 14)
WAIT_EVENTS = {'wait.join': JOIN, 'wait.list': LIST, 'wait.nothing': NOTHING, 'wait.leave': LEAVE,
               'wait.sleep': SLEEP, 'wait.called': CALLED, 'wait.keeper': KEEPER, 'wait.appoint': APPOINT,
               'wait.call': CALL, 'wait.due': DUE, 'wait.release': RELEASE, 'wait.all': ALL, 'wait.pass': PASS}
BY_NAMESPACE, BY_TOPIC, BY_TENANT, BY_TOKEN = 1, 2, 4, 8


def group_hash(kind, lane):
    """What tells the lane's group of this kind from others, as agenda.c has it; None if it is in none."""
    namespace, topic, tenant, subscriber, _, token = lane
    if token != 0 or kind == BY_TOKEN:
        return token if token != 0 and kind == BY_TOKEN else None
    result = (namespace << 32 if kind & BY_NAMESPACE else 0) | (topic if kind & BY_TOPIC else 0)
    if kind & BY_TENANT:
        result = result * 0x9e3779b97f4a7c15 + tenant
    if subscriber != 0:
        result = (result + subscriber % 2**32) * 0xff51afd7ed558ccd
    return (result + 2**63) % 2**64 - 2**63


def waits(events):
    """Of the agenda in which most claims wait."""
    agenda = most(values[0] for what, _, values in events if what == 'wait.join')
    events = [event for event in events if event[0].startswith('wait.') and event[2][0] == agenda]
    # not what was known when it was the agenda of another table
    first = next(at for at, event in enumerate(events) if event[0] == 'wait.join')
    events = events[max([0] + [at for at in range(first) if events[at][0] == 'wait.all' and not events[at][2][2]]):]
    lanes, sleepers = Numbers(), Numbers()
    for what, _, values in events:
        if what in ('wait.call', 'wait.due', 'wait.pass'):
            lanes[values[3:]]
    if len(lanes) > 30:
        raise ValueError('too many lanes')
    result, sleeper_of, joined = [], {}, None
    for what, process, (_, keeper, *more) in events:
        if what == 'wait.group':
            kind, hashed = more[1:]
            if joined is not None:
                wanted = sum(1 << number for lane, number in lanes.items() if group_hash(kind, lane) == hashed)
                result[joined] = (JOIN, result[joined][1], result[joined][2] | wanted)
            continue
        model_event = WAIT_EVENTS[what]
        if model_event in (CALL, DUE, PASS):
            result.append((model_event, lanes[tuple(more[1:])], more[0]))
        elif model_event == JOIN:
            sleeper_of[process] = sleepers[more[0]]
            joined = len(result)
            result.append((JOIN, sleepers[more[0]], 0))
        elif model_event == SLEEP:
            result.append((SLEEP, sleeper_of[process], more[0], sleepers[keeper] if keeper else 0, more[1]))
        elif model_event == KEEPER:
            result.append((KEEPER, 0))
        elif model_event == ALL:
            result.append((ALL, 0, more[0]))
        else:
            result.append((model_event, sleepers[more[0]], *more[1:]))
    return result, {'CLAIMS': len(sleepers), 'LANES': max(len(lanes), 2)}


# ----------------------------------------------------------------------
# lane.pml

NEW, WATCH, UNWATCH, RECORD, MARK, ADVANCE, RAISED, KNOWN, STATE = range(1, 10)
LANE_EVENTS = {'lane.new': NEW, 'lane.watch': WATCH, 'lane.unwatch': UNWATCH, 'lane.record': RECORD, 'lane.mark': MARK,
               'lane.advance': ADVANCE, 'lane.raise': RAISED, 'lane.known': KNOWN, 'lane.state': STATE}
TIMES = 4096                # keys with the same time, at most
NEVER = 2**31 - 1
MAX = 2**63 - 1


def keys_of(what, values):
    """The keys in the event, and its times as the first keys that have them."""
    if what in (RECORD, MARK, RAISED):
        return [values[2:4], values[4:6]]
    if what == ADVANCE:
        return [values[2:4], (values[4], MIN), values[5:7], (values[8], MIN)]
    if what == STATE:
        return [values[1:3], (values[3], MIN), values[4:6], values[6:8]]
    return []


def number_keys(events):
    """A number for each key, as lane.pml has them."""
    times = {}
    for what, values in events:
        for time, number in keys_of(what, values):
            times.setdefault(time, {MIN}).add(number)
    result = {}
    for n, time in enumerate(sorted(times)):
        n = {MIN: 0, MAX: NEVER // TIMES}.get(time, n + 1)
        if len(times[time]) >= TIMES or n > NEVER // TIMES:
            raise ValueError('too many keys')
        for k, number in enumerate(sorted(times[time])):
            result[time, number] = n * TIMES + k
    result[MAX, MAX] = NEVER
    result[0, 0] = 0            # before the first scan
    return result


def of_lane(events):
    number = number_keys(events)
    for what, values in events:
        keys = [number[key] for key in keys_of(what, values)]
        if what == NEW:
            yield (NEW, 0)
        elif what in (WATCH, UNWATCH):
            yield (what, values[1])
        elif what == RECORD:
            yield (RECORD, 0, *keys, {MIN: 0, MAX: NEVER}.get(values[1], 1))
        elif what == MARK:
            yield (MARK, 0, *keys, values[1])
        elif what == ADVANCE:
            yield (ADVANCE, values[1], keys[0], keys[1], keys[2], values[7], keys[3])
        elif what == RAISED:
            yield (RAISED, 0, keys[0])
        elif what == KNOWN:
            yield (KNOWN, 0, values[1])
        else:
            yield (STATE, 0, *keys, *values[8:])


def lanes(events):
    """Lane by lane, from when it was made until another is in its place; no parts."""
    places = {}
    for what, _, values in events:
        if what in LANE_EVENTS:
            if what == 'lane.new':
                places.setdefault(values[0], []).append((values[1], []))
            places[values[0]][-1][1].append((LANE_EVENTS[what], values))
    return [event for place in places.values() for token, of_place in place if token == 0
            for event in of_lane(of_place)], {}


MODELS = {'lane': lanes, 'stream_cursor': streams, 'message': messages, 'waits': waits}
