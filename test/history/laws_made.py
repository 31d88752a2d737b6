"""What follows from calls by itself: timers, runs, and what handlers do."""

from collections import Counter, defaultdict

from facts import ABORTED, COMMITTED, DEAD, DONE, DOUBTFUL
from law import law
from plan import DUE_ATTEMPTS, FOLLOWS, HANDLED
from record import ERROR, OK


def handled_by_workers(facts, store, table, tag):
    """Of the timers or runs with a tag: how many there are, how many workers ended, how many became messages."""
    there = worked = dispatched = 0
    for row_id, _, _, status, _, _, owner in table.get(tag, ()):
        there += 1
        ended = status == DEAD or any(settle.op == 'ack' and settle.owner == owner
                                      and facts.may_have_settled((store, row_id), settle)[0]
                                      for settle in facts.settles.get((store, row_id), ()))
        worked += ended
        dispatched += status == DONE and not ended
    return there, worked, dispatched


def by_tag(rows, position):
    found = defaultdict(list)
    for row in rows:
        found[row[position]].append(row)
    return found


def dead_without_reason(facts, store, rows):
    for row_id, _, tag, status, attempts, reason, _ in rows:
        failed = any(settle.op == 'fail' for settle in facts.settles.get((store, row_id), ()))
        if status == DEAD and not failed and attempts < DUE_ATTEMPTS:
            yield f'{tag} (id {row_id}) is dead, reason {reason}'


@law
def timers(facts):
    """A timer comes once, to a worker or as a message, not before its time, and never when it was cancelled."""
    rows = defaultdict(list)
    for row in facts.rows:
        rows[row.tag].append(row)
    table = by_tag(facts.final.get('timers', ()), 2)
    cancels = defaultdict(list)
    for call in facts.by_op['cancel_timer']:
        cancels[call.args['tag']].append(call)
    fates = defaultdict(set)
    for call in facts.by_op['schedule_timer']:
        fates[call.args['tag']].add(facts.fate(call))
    leases = {several[0].tag: several for (store, _), several in facts.leases.items() if store == '_timers'}
    due_at = {call.args['tag']: call.args['due_at'] for call in facts.by_op['schedule_timer']}
    for tag, fate in fates.items():
        there, worked, dispatched = handled_by_workers(facts, '_timers', table, tag)
        count = len(rows[tag])
        cancelled = any(cancel.result is True for cancel in cancels[tag])
        perhaps = any(cancel.outcome not in (OK, ERROR) for cancel in cancels[tag])
        if there > 1 or count > 1:
            yield f'{tag} is {there} timers, and came {count} times'
        if (there or count) and cancelled:
            yield f'{tag} came, though it was cancelled'
        if not there and COMMITTED in fate and not cancelled and not perhaps:
            yield f'{tag} never came'
        if there and fate == {ABORTED}:
            yield f'{tag} came, though it was rolled back'
        if count != dispatched and not cancelled:
            yield f'{tag} came {count} times as a message; timers: {there}, ended by workers: {worked}'
        for row in rows[tag]:
            if row.created_at < due_at[tag]:
                yield f'{tag} came {(due_at[tag] - row.created_at) / 1000:.0f} ms early'
        for cancel in cancels[tag]:
            for entry in leases.get(tag, ()):
                if cancel.result is True and cancel.outcome == OK and entry.first > cancel.end:
                    yield f'{entry} after {cancel}'
    yield from dead_without_reason(facts, '_timers', facts.final.get('timers', ()))


@law
def runs(facts):
    """A job is run as often as it was triggered, each time by a worker or as a message."""
    sure, perhaps = Counter(), Counter()
    for call in facts.by_op['trigger_job']:
        fate = facts.fate(call)
        sure[call.args['tag']] += fate == COMMITTED
        perhaps[call.args['tag']] += fate != ABORTED
    deleted = {call.args['tag'] for call in facts.by_op['delete_job'] if facts.fate(call) != ABORTED}
    table = by_tag(facts.final.get('runs', ()), 2)
    count = Counter(row.tag for row in facts.rows)
    for tag, most in perhaps.items():
        there, worked, dispatched = handled_by_workers(facts, '_job_runs', table, tag)
        # what waited when its job was deleted is gone
        least = 0 if tag in deleted else sure[tag]
        if not least <= there <= most:
            yield f'{tag} was run {there} times, and was triggered {sure[tag]} to {most} times'
        if count[tag] != dispatched:
            yield f'{tag} came {count[tag]} times as a message; runs: {there}, ended by workers: {worked}'
    yield from dead_without_reason(facts, '_job_runs', facts.final.get('runs', ()))


@law
def handlers(facts):
    """What a handler writes is there if its message is done, once, and not if it is not."""
    wrote = dict(facts.final.get('handled', ()))
    follows = Counter(row.tag for row in facts.rows if row.topic == FOLLOWS)
    for row in facts.rows:
        if row.topic == HANDLED:
            want = int(row.status == DONE)
            if wrote.get(row.tag, 0) != want:
                yield f'{row.tag} has status {row.status}, and its handler wrote {wrote.get(row.tag, 0)} times'
            if follows[f'{row.tag}.h'] != want:
                yield f'{row.tag} has status {row.status}, and its handler enqueued {follows[f"{row.tag}.h"]} messages'
    known = {row.tag for row in facts.rows if row.topic == HANDLED}
    for tag in wrote:
        if tag not in known:
            yield f'a handler wrote for {tag}, which is not there'


@law
def work_with_ack(facts):
    """Work in the transaction of a strict ack is done exactly once."""
    wrote = dict(facts.final.get('worked', ()))
    want = Counter()
    perhaps = set()
    for call in facts.by_op['work']:
        fate = facts.fate(call)
        for tag in call.args['tags']:
            want[tag] += fate == COMMITTED
            if fate == DOUBTFUL:
                perhaps.add(tag)
    for tag in want.keys() | wrote.keys():
        if not (wrote.get(tag, 0) == want[tag] or tag in perhaps and wrote.get(tag, 0) in (want[tag], want[tag] + 1)):
            yield f'{tag} was worked on {wrote.get(tag, 0)} times, and {want[tag]} were committed'
        elif wrote.get(tag, 0) > 1 and not tag.rpartition('.')[0].startswith('job'):
            if tag in facts.messages:
                yield f'{tag} was worked on {wrote[tag]} times'
