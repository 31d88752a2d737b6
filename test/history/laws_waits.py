"""How soon messages are handed out, and which first.

Both laws are about messages that lay ready for long, and accuse only where no
fault, pause, operator or other claim can have stood in the way.
"""

import heapq
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass

import clock
from facts import ABORTED, COMMITTED, DOUBTFUL
from law import law
from laws_leases import pauses_of
from plan import BACKOFF_MAX, HANDLED, marks
from record import ERROR, FOREVER, OK

SECOND = 1000000
WAKE = 2 * SECOND       # a waiting claim has a message after this time at the latest
SLACK = 1 * SECOND      # messages become due in an order that is beyond doubt

# for how long after it has begun a fault may be in the way
FAULTS = {'crash': 3 * SECOND, 'restart': 3 * SECOND, 'nuisance': 9 * SECOND, 'ordeal': 9 * SECOND}
STOPS = {'stop_client': 5 * SECOND, 'stop_backend': 4 * SECOND}
OPERATORS = ('purge', 'discard', 'reschedule', 'cancel', 'requeue', 'redrive', 'look', 'maintain', 'configure', 'reset')


@dataclass
class Ready:
    """A message that could have been handed out between two times, and was not."""
    message: object
    row_id: int
    due: int        # its place among others, at the latest
    begin: int
    end: int


class Busy:
    """Times, as one list of intervals that do not meet."""

    def __init__(self, intervals):
        self.begins, self.ends = [], []
        for begin, end in sorted(intervals):
            if self.ends and begin <= self.ends[-1]:
                self.ends[-1] = max(self.ends[-1], end)
            else:
                self.begins.append(begin)
                self.ends.append(end)

    def overlaps(self, begin, end):
        number = bisect_right(self.begins, end)
        return number > 0 and self.ends[number - 1] >= begin


def end_of_tx(facts, call):
    return facts.commit_ends.get(call.tx.split('/')[0], call.end) if call.tx else call.end


def faults_of(facts):
    for call in facts.by_op['fault']:
        family, name = call.args['family'], call.args['name']
        if name == 'clock':
            # it is unknown when something comes that was postponed by a clock that is then set
            yield call.begin - clock.SLACK, FOREVER
        elif family in FAULTS or name in STOPS:
            yield call.begin, min(call.end, call.begin + 60 * SECOND) + FAULTS.get(family, STOPS.get(name, 0))


def claims_unknown(facts):
    """When claims may have had rows locked without a record of it."""
    for call in facts.by_op['claim'] + facts.by_op['work_batch']:
        if call.outcome == ERROR:
            yield call.begin, call.end
        elif call.outcome != OK or facts.fate(call) == DOUBTFUL:
            yield call.begin, call.begin + 10 * SECOND


def claims_undone(facts):
    """id -> the times in which claims had the message that gave it back."""
    undone = defaultdict(list)
    for call in facts.by_op['claim']:
        if call.outcome == OK and not call.args['store'] and facts.fate(call) == ABORTED:
            for row_id, *_ in call.result or ():
                undone[row_id].append((call.begin, min(end_of_tx(facts, call), call.begin + 60 * SECOND)))
    return undone


def latest_return(facts, key, lease):
    """When a message was ready again after a lease, at the latest; None if that is not known."""
    until = lease.until if lease.until >= lease.call.end else lease.call.end + lease.call.args['lease'] * SECOND
    for settle in facts.settles.get(key, ()):
        if settle.owner != lease.owner or settle.attempt not in (None, lease.attempt) or settle.end < lease.first:
            continue
        if settle.op == 'renew':
            if settle.end == FOREVER:
                return None
            until = max(until, settle.end + settle.lease * SECOND)
        elif not settle.sure or settle.op not in ('nack', 'release'):
            return None
        else:
            delay = 0 if settle.op == 'release' else settle.call.args.get('delay')
            return settle.end + (BACKOFF_MAX if delay is None else delay) * 1000
    return until


def ready_for(facts, least):
    """Messages of no stream that lay ready for so long; each such time ends with a claim."""
    undone = claims_undone(facts)
    for key, several in facts.leases.items():
        message = facts.messages.get(several[0].tag)
        if (key[0] or message is None or message.fate != COMMITTED or not message.enqueued or message.stream
                or message.topic == HANDLED or message.tag in facts.cancels or key[1] in facts.discards
                or key[1] in facts.rescheduled or key in facts.requeued):
            continue
        before = None
        for lease in several:
            # a gap in the attempts is a lease of which nothing is known
            if lease.certain and lease.attempt == (before.attempt + 1 if before else 1):
                begin = latest_return(facts, key, before) if before else message.committed
                if begin is not None and begin != FOREVER:
                    begin = max(begin, message.due_at or 0)
                    # a claim that was rolled back had it in between
                    begin = max([begin, *(until for other, until in undone.get(key[1], ()) if other < lease.first)])
                    if lease.first - begin > least:
                        yield Ready(message, key[1], begin - message.boost(), begin, min(lease.first, lease.call.begin + 60 * SECOND))
            before = lease if lease.certain else None
            if before is None:
                break


def asks_for(call, message):
    args = call.args
    return ((not args.get('topics') or message.topic in args['topics'])
            and (not args.get('namespace') or message.namespace == args['namespace'])
            and (not args.get('tenant') or marks(message.tag)[2] == args['tenant']))


def paused_during(pauses, message, begin, end):
    return any(other < end and begin < until
               for other, until in pauses.get(('message', message.namespace, message.topic), ()))


def widened_pauses(facts):
    """Pauses, and the times in which there may have been one."""
    pauses = pauses_of(facts)
    for call in facts.by_op['pause'] + facts.by_op['resume']:
        if call.outcome != ERROR:
            key = call.args['kind'], call.args['namespace'], call.args['topic']
            pauses[key].append((call.begin, min(call.end, call.begin + 60 * SECOND)))
    return pauses


@law
def woken(facts):
    """A claim that waits has a message soon after there is one for it."""
    waits = [call for call in facts.by_op['claim'] if call.args.get('wait', 0) > WAKE // 1000 and call.outcome == OK
             and not call.args['store'] and 'isolation' not in call.args]
    if not waits:
        return
    busy = Busy([*faults_of(facts), *claims_unknown(facts)])
    pauses = widened_pauses(facts)
    ready = sorted(ready_for(facts, WAKE), key=lambda one: one.begin)
    begins = [one.begin for one in ready]
    for call in waits:
        end = min([call.end] + [entry[3] for entry in call.result or ()])
        # those that became ready in between, early enough
        for one in ready[bisect_right(begins, call.begin):bisect_right(begins, end - WAKE)]:
            until = one.begin + WAKE
            if until < one.end and asks_for(call, one.message) and not busy.overlaps(one.begin, until) \
                    and not paused_during(pauses, one.message, one.begin, until):
                yield (f'{call} slept on for {(min(end, one.end) - one.begin) / 1000:.0f} ms when {one.message.tag} '
                       f'(id {one.row_id}) was ready')


@law
def due_first(facts):
    """What was due long before is handed out first."""
    claims = sorted((call for call in facts.by_op['claim'] if call.outcome == OK and call.result and not call.tx
                     and not call.args['store'] and 'isolation' not in call.args and 'wait' in call.args
                     and not call.args.get('topics') and not call.args.get('namespace') and not call.args.get('tenant')),
                    key=lambda call: call.begin)
    ready = sorted(ready_for(facts, 2 * SLACK), key=lambda one: one.begin)
    busy = Busy([*faults_of(facts), *claims_unknown(facts)]
                + [(call.begin, min(call.end, call.begin + 60 * SECOND)) for op in OPERATORS for call in facts.by_op[op]])
    pauses = widened_pauses(facts)
    waiting, number = [], 0     # those that are ready, the first due first
    for call in claims:
        while number < len(ready) and ready[number].begin < call.begin - SLACK:
            heapq.heappush(waiting, (ready[number].due, number))
            number += 1
        while waiting and ready[waiting[0][1]].end <= call.end:
            heapq.heappop(waiting)
        if not waiting or busy.overlaps(call.begin - SLACK // 10, call.end):
            continue
        first = ready[waiting[0][1]]
        for row_id, tag, attempt, *_ in call.result:
            message = facts.messages.get(tag)
            # when it was due, at the earliest, is known of first attempts
            if (message and attempt == 1 and not message.stream and row_id not in facts.rescheduled
                    and max(message.begin, message.due_at or 0) - message.boost() > first.due + SLACK
                    and not paused_during(pauses, first.message, call.begin - SLACK, call.end)):
                yield f'{call} returned {tag}, and not {first.message.tag} (id {first.row_id}), which was due before'
                break


@law
def order_in_a_batch(facts):
    """What is handed out together is in the order of its stream."""
    for call in facts.by_op['claim']:
        if call.outcome != OK or call.args['store']:
            continue
        begins = defaultdict(int)
        for row_id, tag, *_ in call.result or ():
            message = facts.messages.get(tag)
            # one that was requeued is not before those that came in between
            if message and message.stream and message.fate == COMMITTED and ('', row_id) not in facts.requeued:
                if message.end < begins[message.stream]:
                    yield f'{call} returned {tag} too late'
                begins[message.stream] = max(begins[message.stream], message.begin)


def busy_with_order(facts):
    """When and for which messages the order of what is handed out together is not known."""
    return Busy([*faults_of(facts), *claims_unknown(facts)]), claims_undone(facts)


@law
def urgent_first(facts):
    """What is handed out together is in the order of due times and priorities."""
    busy, undone = busy_with_order(facts)
    for call in facts.by_op['claim']:
        if call.outcome != OK or call.args['store'] or call.tx or 'isolation' in call.args or 'wait' not in call.args:
            continue
        latest, which = 0, None
        for row_id, tag, attempt, *_ in call.result or ():
            message = facts.messages.get(tag)
            if (message is None or attempt != 1 or message.stream or row_id in facts.rescheduled or row_id in undone
                    or ('', row_id) in facts.requeued
                    or max(message.committed, message.due_at or 0) > call.begin):
                continue
            if max(message.end, message.due_at or 0) - message.boost() + SLACK < latest and not busy.overlaps(call.begin, call.end):
                yield f'{call} returned {which} before {tag}, priority {message.priority}'
                break
            if max(message.begin, message.due_at or 0) - message.boost() > latest:
                latest, which = max(message.begin, message.due_at or 0) - message.boost(), f'{tag}, priority {message.priority}'
