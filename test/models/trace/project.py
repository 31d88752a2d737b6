"""Events of the code, as the models know them.

An event of the code is (what, process, values), as src/trace.h has it, or ('table', 0,
(transaction, table, operation, columns)) for a row that was committed; of a model, a
tuple of integers: which event, who, and v1 to v10. Each model's file says which
events it knows and what they tell. A function here takes all events in their order,
and returns those of one model.

Places, tickets, owners and processes are renumbered, in their order, since a model
counts with small numbers.
"""

import collections
import struct
import uuid

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


def message_events(events, table):
    """Of each message in this table."""
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
    # the one in which most is claimed
    table = most(values[0] for what, _, values in events if what in CLAIMS)
    owner_of, owners = {}, Numbers()
    for what, process, values in events:
        if what in CLAIMS and values[0] == table:
            owner_of[process] = owners[values[11]]
    ends = ends_of_transactions(events)
    result = []
    for changes in message_events(events, table).values():
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


# ----------------------------------------------------------------------
# join.pml

(J_GONE, J_MARK, J_COUNT, J_WAKE, J_ATTACH, J_LOOK, J_RECHECK, J_RECOUNT, J_RECHECKED, J_CLAIM, J_SEES, J_PARK, J_FINISH,
 J_COMMIT, J_ABORT, J_UNTOLD) = range(2, 18)
STEPS = 3           # MESSAGES in join.pml
EVALUATORS = 3      # WORKERS there
UNCHANGED, CHANGED, LEFT_BEHIND = 0, 1, 2
PARKED = 'infinity'


class LeftOut(Exception):
    """The model has nothing like it."""


class Change:
    """What a transaction has done to one join: events of the code, and rows."""
    def __init__(self, xid):
        self.xid = xid
        self.events = []        # (where, what, values)
        self.rows = []          # (table, operation, columns)


class Join:
    def __init__(self, maker, expected, messages):
        self.maker, self.expected, self.messages = maker, expected, messages
        self.wait, self.nwaits = None, 0
        self.members = set()
        self.first_members = set()
        self.changes = {}
        self.touched = set()    # transactions that have changed its messages otherwise

    def change(self, xid):
        return self.changes.setdefault(xid, Change(xid))


def uuid_number(text):
    """As events name a UUID."""
    if text is None:
        return None
    first, last = struct.unpack('=2q', uuid.UUID(text).bytes)
    return first ^ last


class Tables:
    """What the rows tell of joins: which message, wait and recheck belongs to which."""
    def __init__(self, events):
        self.joins = {}
        self.join_of = {}               # of a message, or a wait
        self.message_of = {}            # of a row of the queue
        self.recheck_of = {}            # (join, message or None)
        self.missed_by = {}             # of a recheck, the transaction that found nothing
        self.steps = collections.defaultdict(Numbers)   # of a join, also those whose attaching was rolled back
        self.left_out = {}              # joins, and why
        for what, _, values in events:
            if what == 'join.attach':
                self.is_step(values[1], values[0])
            elif what == 'table':
                self.look_at(*values)
        for what, _, values in events:
            if what == 'table':
                self.assign(*values)

    def is_step(self, message, join):
        self.steps[join][message]
        if self.join_of.setdefault(message, join) != join:
            self.left_out[join] = self.left_out[self.join_of[message]] = 'a step of several joins'

    def look_at(self, xid, table, operation, row):
        if table == 'join_rechecks' and operation == 'UPDATE':
            self.missed_by[int(row['id'])] = xid
        elif operation != 'INSERT':
            if table == 'joins' and (operation == 'DELETE' or row['status'] == '3'):
                self.left_out[uuid_number(row['join_id'])] = 'deleted, or cancelled'
        elif table == 'joins':
            name = uuid_number(row['join_id'])
            self.joins[name] = Join(xid, int(row['expected_steps']), self.steps[name])
        elif table == 'join_members':
            join, message = uuid_number(row['join_id']), uuid_number(row['message_id'])
            self.is_step(message, join)
            self.joins[join].members.add(message)
            if xid == self.joins[join].maker:
                self.joins[join].first_members.add(message)
        elif table == 'join_waits':
            join, message = uuid_number(row['join_id']), uuid_number(row['message_id'])
            self.join_of[message] = join
            self.joins[join].wait = message
            self.joins[join].nwaits += 1
        elif table == 'queue':
            self.message_of[int(row['id'])] = uuid_number(row['message_id'])
        elif table == 'join_rechecks':
            join, message = uuid_number(row['join_id']), uuid_number(row['message_id'])
            self.recheck_of[int(row['id'])] = (join if join is not None else self.join_of.get(message), message)

    def assign(self, xid, table, operation, row):
        """The row to the transaction that wrote it."""
        if table == 'queue':
            cause = uuid_number(row.get('caused_by'))
            join = cause if cause in self.joins else self.join_of.get(self.message_of.get(int(row['id'])))
        elif table == 'join_rechecks':
            join = self.recheck_of[int(row['id'])][0]
        else:
            join = uuid_number(row['join_id'])
        if join in self.joins and xid != self.joins[join].maker:
            self.joins[join].change(xid).rows.append((table, operation, row))


def join_events(events, ends):
    """Of each join the transactions, with the events of the code."""
    tables = Tables(events)
    joins, join_of = tables.joins, tables.join_of
    xids = {values[0] for what, _, values in events if what == 'table'}
    of_queue = most(values[0] for what, _, values in events if what in CLAIMS and values[2] in xids)
    recheck = {}                # of a process, the join it is about
    for at, (what, process, values) in enumerate(events):
        join, told = None, None
        if what in ROW_EVENTS and values[0] == of_queue:
            message = tables.message_of.get(values[1])
            join, xid = join_of.get(message), values[2]
            if join in joins and message != joins[join].wait:
                joins[join].touched.add(xid)
                continue
            told = (what, values[8])
        elif what in ('join.gone', 'join.mark', 'join.sees'):
            join, xid, told = join_of.get(values[0]), values[1], (what, *values)
        elif what in ('join.count', 'join.wake', 'join.look'):
            join, xid, told = values[0], values[1], (what, *values)
        elif what == 'join.add':
            join, xid, told = recheck.get(process), values[1], (what, *values)
        elif what in ('join.recheck', 'join.rechecked'):
            join, message = tables.recheck_of.get(values[0], (None, None))
            recheck[process] = join
            xid, told = values[1], (what, message, *values[1:])
            if tables.missed_by.get(values[0], xid) != xid and ends[tables.missed_by[values[0]]][0] < at:
                # the model has deleted it then
                tables.left_out[join] = 'a recheck about nothing, again'
        if join in joins and xid != joins[join].maker:
            joins[join].change(xid).events.append((at, *told))
    return tables


class Follower:
    """Makes the events of the model, of one join."""
    def __init__(self, join, known, ends, before):
        self.join, self.known, self.ends, self.before = join, known, ends, before
        self.processes = {}     # of a transaction
        self.told = {}          # of a process
        if join.nwaits > 1:
            raise LeftOut('several waits')
        if len(join.messages) > STEPS or len(join.members) > join.expected:
            raise LeftOut('too many steps')

    def process(self, change):
        """What it is: a message that ends, one that is attached, or an evaluation."""
        join, kinds = self.join, {event[1] for event in change.events}
        if kinds & {'join.recheck', 'row.claim', 'join.look'}:
            return self.evaluator(change)
        about = {event[2] for event in change.events if event[1] in ('join.gone', 'join.mark', 'join.sees')}
        if len(about) != 1 or ('join.sees' in kinds) == ('join.gone' in kinds):
            raise LeftOut('a transaction that does more than one thing')
        number = join.messages[about.pop()]
        return number if 'join.gone' in kinds else STEPS + number

    def evaluator(self, change):
        begins = self.before[change.events[0][0]]
        for process in range(2 * STEPS + 1, 2 * STEPS + EVALUATORS + 1):
            if process not in self.told or self.told[process][-1][-1] <= begins:
                return process
        raise LeftOut('too many evaluations at once')

    def number(self, xid):
        """The process of another transaction; 0 if it has none."""
        if xid in self.join.touched and xid not in self.processes:
            raise LeftOut('a step is attached that is being changed, and does not end')
        return self.processes.get(xid, 0)

    def follow(self):
        """All events of the model, in the order in which they were told."""
        changes = [change for change in self.join.changes.values() if change.events]
        changes.sort(key=lambda change: change.events[0][0])
        for change in changes:
            process = self.processes[change.xid] = self.process(change)
            windows = self.told.setdefault(process, [])
            for at, *told in change.events:
                windows.append((change, told, self.before[at], at))
            about, at, committed = self.ends.get(change.xid, (len(self.before), len(self.before), False))
            windows.append((change, ['xact.end', committed], about if committed else self.before.get(at, at - 1), at))
        # without an event, the model does not know it either
        result = [(J_UNTOLD, 0, *[0] * 8, *self.ends[change.xid][:2]) for change in self.join.changes.values()
                  if not change.events and any(row[0] in ('joins', 'join_members', 'join_rechecks') for row in change.rows)]
        for process, windows in self.told.items():
            result += self.in_time(process, windows)
        result.sort(key=lambda event: event[-1])
        return result

    def in_time(self, process, windows):
        """The events of one process; each is after the one before it."""
        result, latest, told_before = [], None, ()
        for change, told, after, before in windows:
            for event in self.model_events(change, told, told_before):
                if event[0] == J_RECHECK:
                    after = before - 1
                result.append([event[0], process, *event[1:], *[0] * (9 - len(event)), after, before])
            told_before = (*told_before, told[0]) if told[0] != 'xact.end' else ()
        for event in reversed(result):
            event[-1] = latest = event[-1] if latest is None else min(event[-1], latest)
        return [tuple(event) for event in result]

    def model_events(self, change, told, told_before):
        """Those that the model has for one of the code, in the same transaction as those told before."""
        what, *values = told
        join = self.join
        if what == 'join.gone' and values[0] == join.wait:
            yield (J_FINISH,)
        elif what == 'join.gone':
            waits = [event[6] for event in change.events if event[1] == 'join.mark']
            yield (J_GONE, int(waits[:1] == [0]))
        elif what == 'join.mark' and values[0] != join.wait:
            if values[2] != UNCHANGED or 'join.mark' not in told_before:
                yield (J_MARK, values[2], self.number(values[3]) if values[2] == LEFT_BEHIND else 0)
        elif what == 'join.count':
            yield (J_COUNT, values[2], values[3] if values[2] == CHANGED else 0)
        elif what == 'join.wake':
            yield (J_WAKE, UNCHANGED if values[2] else LEFT_BEHIND, self.number(values[3]) if not values[2] else 0)
        elif what == 'join.sees' and 'join.recheck' not in told_before:
            yield (J_ATTACH,)
            yield (J_LOOK, values[2], self.number(values[3]) if values[3] else 0)
        elif what == 'join.recheck':
            yield (J_RECHECK, self.about(values[0]))
        elif what == 'join.add':
            yield (J_RECOUNT, *values[2:])
        elif what == 'join.rechecked':
            yield (J_RECHECKED, int(values[2] != 0))
        elif what == 'row.claim':
            yield (J_CLAIM,)
        elif what == 'join.look':
            yield (J_SEES, values[2], self.number(values[3]) if values[3] else 0)
        elif what == 'row.back':
            yield (J_PARK,)
        elif what == 'row.fail':
            raise LeftOut('a wait that fails')
        elif what == 'xact.end':
            yield (J_COMMIT, *self.tables(change)) if values[0] else (J_ABORT,)

    def about(self, message):
        return self.join.messages[message] if message is not None else 0

    def tables(self, change):
        """What the transaction has written, as compare_tables in the model has it."""
        count, members, left, about, gone, wait, continuations = -1, 0, 0, 0, 0, 0, 0
        for table, operation, row in change.rows:
            if table == 'joins':
                count = int(row['completed_steps']) + int(row['failed_steps'])
            elif table == 'join_members':
                members |= 1 << self.about(uuid_number(row['message_id']))
            elif table == 'join_rechecks' and operation == 'INSERT':
                left += 1 << 3 * self.number(int(row['waits_for']))
                about = self.about(uuid_number(row['message_id'])) + 1
            elif table == 'join_rechecks':
                gone += 1 << 3 * self.about(self.known.recheck_of[int(row['id'])][1])
            elif table == 'queue' and operation == 'INSERT':
                continuations += row['caused_by'] is not None
            elif table == 'queue':
                message = self.known.message_of[int(row['id'])]
                if message != self.join.wait:
                    members |= (1 << STEPS + self.about(message)) * (operation == 'DELETE')
                elif operation == 'DELETE':
                    wait = 3
                else:
                    wait = 2 if row['next_attempt_at'] == PARKED else 1
        return count, members, left, about, gone, wait, continuations


def joins(events):
    """Join by join."""
    ends, before, last = ends_of_transactions(events), {}, {}
    tables = join_events(events, ends)
    for at, (_, process, _) in enumerate(events):
        before[at] = last.get(process, -1)
        last[process] = at
    result, left_out = [], collections.Counter()
    for name, join in tables.joins.items():
        try:
            if name in tables.left_out:
                raise LeftOut(tables.left_out[name])
            told = Follower(join, tables, ends, before).follow()
        except LeftOut as because:
            left_out[str(because)] += 1
            continue
        begin = result[-1][-1] + 1 if result else 0
        place = {at: n for n, at in enumerate(sorted({at for event in told for at in event[-2:]}), begin + 1)}
        members = sum(1 << join.messages[message] for message in join.first_members)
        result.append((RESET, 0, join.expected, members, *[0] * 6, begin, begin + 1))
        result += [(*event[:-2], place[event[-2]], place[event[-1]]) for event in told]
    followed = len(tables.joins) - sum(left_out.values())
    print(f'# {followed} joins are followed, others are not: {dict(left_out)}')
    if followed <= sum(left_out.values()):
        raise ValueError('too few joins are as the model has them')
    return result, {'MESSAGES': STEPS, 'LATE': STEPS, 'WORKERS': EVALUATORS}


MODELS = {'lane': lanes, 'stream_cursor': streams, 'message': messages, 'waits': waits, 'join': joins}
IN_ANY_ORDER = ('join',)    # in which each process takes its own events
