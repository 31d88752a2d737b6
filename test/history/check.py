"""The laws, and what breaks them.

Each law is a function of the facts that yields anomalies; its name is the law's.
README.md says what each promises.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass

from facts import ABORTED, COMMITTED, DEAD, DONE, DOUBTFUL, Facts
from plan import BACKOFF_BASE, FOLLOWS, HANDLED, MAX_ATTEMPTS, SHORT
from record import ERROR, FOREVER, OK


@dataclass
class Anomaly:
    law: str
    text: str

    def __str__(self):
        return f'{self.law}: {self.text}'


LAWS = []


def law(function):
    LAWS.append(function)
    return function


def names():
    """The laws by name, with what they say."""
    return {function.__name__.replace('_', ' '): function.__doc__ for function in LAWS}


@dataclass
class Checked:
    facts: Facts
    anomalies: list

    def summary(self):
        facts = self.facts
        fates = Counter(message.fate for message in facts.messages.values())
        outcomes = Counter(call.outcome for call in facts.calls)
        return (f'{len(facts.calls)} calls ({outcomes["unknown"]} unknown), messages: '
                f'{", ".join(f"{count} {fate}" for fate, count in sorted(fates.items()))}; '
                f'{sum(map(len, facts.leases.values()))} leases of {len(facts.leases)}, '
                f'{len(facts.final.get("joins", ()))} joins, {len(self.anomalies)} anomalies')

    def laws(self):
        return {anomaly.law for anomaly in self.anomalies}


def check(history):
    facts = Facts(history)
    anomalies = []
    for function in LAWS:
        found = [Anomaly(function.__name__.replace('_', ' '), text) for text in function(facts)]
        anomalies += found
    return Checked(facts, anomalies)


# ---------------------------------------------------------------------------
# The total queue
# ---------------------------------------------------------------------------

def possible_end(facts, store, row_id):
    """When a message may have been settled for good, at the earliest."""
    return min((settle.begin for settle in facts.settles.get((store, row_id), ()) if settle.op in ('ack', 'fail', 'nack')),
               default=FOREVER)


@law
def lost(facts):
    """What was committed is done, dead, or still there."""
    there = {row.tag for row in facts.rows if row.topic != 'join.wait'}
    for message in facts.messages.values():
        if message.fate != COMMITTED or not message.enqueued or message.tag in there:
            continue
        key = facts.ids_by_tag.get(message.tag)
        # what is kept for a second only was somebody's to finish
        if message.topic != SHORT or key is None or possible_end(facts, *key) == FOREVER:
            yield f'{message.tag} of topic {message.topic}'


@law
def from_nowhere(facts):
    """What is there was enqueued, by a transaction that was not rolled back."""
    allowed = {tag: message.fate for tag, message in facts.messages.items()}
    allowed.update((tag, fate) for tag, (_, fate) in facts.derived.items())
    for tag in sorted(facts.seen, key=str):
        if tag not in allowed:
            yield f'{tag} was never enqueued'
        elif allowed[tag] == ABORTED:
            yield f'{tag} was rolled back'
        elif tag in facts.messages and not facts.messages[tag].enqueued:
            yield f'{tag} was refused for its dedupe key'


@law
def doubled(facts):
    """One enqueue is one message."""
    ids = defaultdict(set)
    for row in facts.rows:
        if row.tag in facts.messages:
            ids[row.tag].add(row.id)
    for (store, row_id), several in facts.leases.items():
        for lease in several:
            if not store and lease.tag in facts.messages:
                ids[lease.tag].add(row_id)
    for tag, some in ids.items():
        if len(some) > 1:
            yield f'{tag} is {len(some)} messages: {sorted(some)}'
    for row_id, count in Counter(row.id for row in facts.rows).items():
        if count > 1:
            yield f'id {row_id} is in {count} tables'


@law
def stranded(facts):
    """When all is over, nothing is left to be done."""
    for table, count in facts.final.get('leftovers', ()):
        if count:
            yield f'{count} rows in {table}'
    for row in facts.rows:
        if row.status not in (DONE, DEAD):
            yield f'{row.tag} (id {row.id}, topic {row.topic}, attempts {row.attempts})'


@law
def ended_without_cause(facts):
    """Who is done was acknowledged by its owner; who is dead has a reason."""
    for row in facts.rows:
        settles = facts.settles.get(('', row.id), ())
        message = facts.messages.get(row.tag)
        if row.topic in (HANDLED, 'join.wait'):
            continue
        if row.status == DONE:
            if not any(settle.op == 'ack' and settle.owner == row.processed_by for settle in settles):
                yield f'{row.tag} (id {row.id}) is done by {row.processed_by}'
        elif row.status == DEAD:
            causes = (any(settle.op == 'fail' for settle in settles),
                      row.tag in facts.cancels and row.reason == 9,
                      row.attempts >= MAX_ATTEMPTS,
                      message and message.expires_at and message.expires_at <= row.processed_at)
            if not any(causes):
                yield f'{row.tag} (id {row.id}) is dead, reason {row.reason}'


@law
def ack_undone(facts):
    """What was acknowledged stays done."""
    status = {row.id: row.status for row in facts.rows}
    for (store, row_id), settles in facts.settles.items():
        # what has failed may be requeued
        ends = ('ack',) if not store and row_id in facts.requeued else ('ack', 'fail')
        sure = [settle for settle in settles if settle.op in ends and settle.sure]
        if len(sure) > 1:
            yield f'id {row_id}{store} was ended twice: {", ".join(str(settle.call) for settle in sure)}'
        if store:
            continue
        for settle in sure:
            if status.get(row_id, DONE) != (DONE if settle.op == 'ack' else DEAD):
                yield f'id {row_id} has status {status[row_id]} after {settle.call}'


@law
def broken_payload(facts):
    """A payload comes out as it went in."""
    for several in facts.leases.values():
        for lease in several:
            if lease.tag.startswith('broken: '):
                yield str(lease)


# ---------------------------------------------------------------------------
# Leases
# ---------------------------------------------------------------------------

def lasts_until(facts, lease, before):
    """Until when a lease stands at least, as far as calls before some time are concerned."""
    until = lease.until
    for settle in facts.settles.get((lease.store, lease.id), ()):
        if settle.begin > before:
            break
        if settle.owner != lease.owner or settle.attempt not in (None, lease.attempt) or settle.end < lease.first:
            continue
        if settle.op != 'renew':
            return 0
        renewed = settle.begin + settle.lease * 1000000
        until = renewed if settle.sure else min(until, renewed)
    if any(lease.first <= at < before or at >= lease.first for at in facts.given_back.get(lease.owner, ()) if at < before):
        return 0
    signs = facts.signs_of_life.get(lease.owner)
    if signs is not None:
        # an instance that is silent for too long is removed
        number = bisect_left(signs, before)
        last = signs[number - 1] if number else 0
        if last + facts.stale_after[lease.owner] * 1000000 <= before:
            return 0
    return until


class Streams:
    """Who is before whom: the order of commits, as far as the calls tell it."""

    def __init__(self, facts):
        self.facts = facts
        self.members = defaultdict(list)    # (store, stream) -> [(begin, end, tag)], in order
        self.stream_of = {}
        for message in facts.messages.values():
            if message.stream and message.fate == COMMITTED and message.enqueued:
                self.members['', message.stream].append((message.begin, message.end, message.tag))
        for call in facts.by_op['receive']:
            if call.args['stream'] and facts.fate(call) == COMMITTED and call.result:
                self.members['_inbox', call.args['stream']].append((call.begin, call.end, call.args['tag']))
        for key, several in self.members.items():
            several.sort()
            for _, _, tag in several:
                self.stream_of[key[0], tag] = key
        self.leases = defaultdict(list)
        for several in facts.leases.values():
            for lease in several:
                key = self.stream_of.get((lease.store, lease.tag))
                if key:
                    self.leases[key].append(lease)
        self.finished = {row.id: row.processed_at for row in facts.rows if row.processed_at}

    def taken_back(self, lease, before):
        """Whether another message of the stream may have come back to the same owner's disadvantage."""
        key = self.stream_of.get((lease.store, lease.tag))
        for other in self.leases.get(key, ()):
            if (other.owner == lease.owner and other.id != lease.id and other.first < before
                    and lasts_until(self.facts, other, before) <= before):
                return True
        return False

    def end_of(self, store, tag):
        """Not finished before."""
        key = self.facts.ids_by_tag.get(tag)
        if not store and key and key[1] in self.finished:
            return self.finished[key[1]]
        if key is None:
            # never seen in a lease: it is only known to be finished if it was, sometime
            return 0
        return possible_end(self.facts, *key)


def streams_of(facts):
    if not hasattr(facts, 'streams'):
        facts.streams = Streams(facts)
    return facts.streams


@law
def leases_overlap(facts):
    """While a lease stands, nobody else is given the message."""
    streams = streams_of(facts)
    for several in facts.leases.values():
        for lease, after in zip(several, several[1:]):
            until = lasts_until(facts, lease, after.last)
            if lease.certain and after.last < until and not streams.taken_back(lease, after.last):
                yield f'{lease} stands {(until - after.last) / 1000:.0f} ms longer when {after} begins'


@law
def attempts_count(facts):
    """Each attempt is handed out once, in order, and there are at most so many."""
    for (store, row_id), several in facts.leases.items():
        if not store and row_id in facts.requeued:
            continue    # they are counted from 0 again
        back = sum(settle.op == 'release' for settle in facts.settles.get((store, row_id), ()))
        # a claim whose commit was not answered may not have been
        several = [lease for lease in several if lease.certain]
        if not several:
            continue
        for lease, after in zip(several, several[1:]):
            if lease.attempt == after.attempt:
                yield f'{lease} and {after}'
            elif after.last < lease.first:
                yield f'{after} is before {lease}'
            elif after.attempt > lease.attempt + 1:
                # between them it was given to those who never heard of it
                missing = after.attempt - lease.attempt - 1
                if bisect_left(facts.doubtful_claims, after.last) < missing:
                    yield f'between {lease} and {after} are attempts that nobody was given'
        first = several[0]
        if first.attempt - 1 > bisect_left(facts.doubtful_claims, first.last):
            yield f'{first} was not the first'
        owners = {lease.owner for lease in several}
        back += sum(len(facts.given_back.get(owner, ())) + (owner in facts.signs_of_life) for owner in owners)
        stream = (store, first.tag) in streams_of(facts).stream_of
        limit = MAX_ATTEMPTS if not store else 10
        if several[-1].attempt > limit + back + len(facts.doubtful_claims) and not stream:
            yield f'{several[-1]} is one too many'


@law
def stale_settle(facts):
    """Who has no lease, or an old one, changes nothing."""
    for key, settles in facts.settles.items():
        leases = facts.leases.get(key, ())
        for settle in settles:
            if not settle.sure:
                continue
            mine = [lease.attempt for lease in leases if lease.owner == settle.owner and lease.first <= settle.end
                    and settle.attempt in (None, lease.attempt)]
            if not mine:
                yield f'{settle.call}: id {key[1]}{key[0]} was not leased to {settle.owner[:8]}'
                continue
            newer = [lease for lease in leases if lease.certain and lease.attempt > max(mine)
                     and lease.call.end < settle.begin]
            if newer and (key[0] or key[1] not in facts.requeued):
                yield f'{settle.call}: attempt {max(mine)} of id {key[1]}{key[0]} was settled after {newer[0]}'


@law
def handed_out_after_its_end(facts):
    """What is done or dead is not handed out again."""
    ended = {('', row.id): row.processed_at for row in facts.rows if row.status in (DONE, DEAD)}
    for key, settles in facts.settles.items():
        for settle in settles:
            if settle.sure and (settle.op == 'ack' or settle.op == 'fail' and (key[0] or key[1] not in facts.requeued)):
                ended[key] = min(ended.get(key, FOREVER), settle.end)
    for key, several in facts.leases.items():
        for lease in several:
            if lease.first > ended.get(key, FOREVER):
                yield f'{lease}, {(lease.first - ended[key]) / 1000:.0f} ms after its end'


@law
def retried_too_early(facts):
    """A message that was handed back comes again when its delay is over, not before."""
    for key, settles in facts.settles.items():
        for settle in settles:
            if settle.op != 'nack' or not settle.sure or settle.call.tx or not key[0] and key[1] in facts.requeued:
                continue
            delay = settle.call.args.get('delay')
            # the backoff, if no delay was asked for, is drawn from half of its base on
            earliest = settle.begin + 1000 * (BACKOFF_BASE // 2 if delay is None else delay)
            for lease in facts.leases.get(key, ()):
                if lease.attempt > settle.attempt and lease.last < earliest:
                    yield f'{lease} is {(earliest - lease.last) / 1000:.0f} ms too early after {settle.call}'


@law
def out_of_time(facts):
    """Nothing is handed out before it is due or after it has expired."""
    for (store, _), several in facts.leases.items():
        for lease in several:
            message = facts.messages.get(lease.tag) if not store else None
            if message is None:
                continue
            if message.due_at and lease.last < message.due_at:
                yield f'{lease} is {(message.due_at - lease.last) / 1000:.0f} ms early'
            # what is requeued does not expire again
            if message.expires_at and lease.first > message.expires_at and lease.id not in facts.requeued:
                yield f'{lease} is {(lease.first - message.expires_at) / 1000:.0f} ms after it expired'


@law
def not_asked_for(facts):
    """A claim returns no more than was asked for, and nothing that was not asked for."""
    for call in facts.by_op['claim']:
        if call.outcome != OK or not call.result:
            continue
        if len(call.result) > call.args.get('batch', len(call.result)):
            yield f'{call} returned {len(call.result)} messages, not {call.args["batch"]}'
        for row_id, tag, *_ in call.result:
            message = facts.messages.get(tag)
            if call.args['store'] or message is None:
                continue
            topics, namespace = call.args.get('topics'), call.args.get('namespace')
            if topics and message.topic not in topics or namespace and message.namespace != namespace:
                yield f'{call} returned {tag} (id {row_id}) of {message.namespace}/{message.topic}'
            if not topics and message.topic == HANDLED:
                yield f'{call} returned {tag} (id {row_id}), which is the handler\'s'


@law
def paused(facts):
    """Nothing of a topic is handed out while it is paused."""
    pauses = defaultdict(list)
    for call in facts.by_op['pause']:
        if call.outcome == OK:
            key = call.args['namespace'], call.args['topic']
            end = min((other.begin for other in facts.by_op['resume']
                       if (other.args['namespace'], other.args['topic']) == key and other.begin > call.begin
                       and other.outcome != ERROR), default=FOREVER)
            pauses[key].append((call.end, end))
    for (store, _), several in facts.leases.items():
        message = facts.messages.get(several[0].tag)
        if store or message is None:
            continue
        for begin, end in pauses.get((message.namespace, message.topic), ()):
            for lease in several:
                if lease.call.begin > begin and lease.call.end < end:
                    yield f'{lease}, {(lease.call.begin - begin) / 1000:.0f} ms after the topic was paused'


@law
def cancelled(facts):
    """What was cancelled is never handed out, and is dead."""
    rows = {row.tag: row for row in facts.rows}
    for tag, calls in facts.cancels.items():
        for call in calls:
            if call.result is not True or call.outcome != OK:
                continue
            row = rows.get(tag)
            if row and row.status != DEAD:
                yield f'{tag} has status {row.status} after {call}'
            for lease in facts.leases.get(facts.ids_by_tag.get(tag), ()):
                if lease.first > call.end:
                    yield f'{lease} after {call}'


@law
def stream_order(facts):
    """Nothing of a stream is handed out while something before it is open elsewhere."""
    streams = streams_of(facts)
    for key, leases in streams.leases.items():
        place = {tag: (begin, end) for begin, end, tag in streams.members[key]}
        coming = sorted(streams.members[key], key=lambda member: member[1])
        held = defaultdict(list)
        for lease in leases:
            held[lease.tag].append(lease)
        end_of = {tag: streams.end_of(key[0], tag) for tag in place}
        # a dead one that was requeued is not before those that came meanwhile
        again = {tag for tag in place if facts.ids_by_tag.get(tag, ('', 0))[1] in facts.requeued}
        open_now = {}
        number = 0
        for lease in sorted(leases, key=lambda lease: lease.call.end):
            while number < len(coming) and coming[number][1] <= lease.call.end:
                open_now[coming[number][2]] = coming[number]
                number += 1
            for tag in [tag for tag in open_now if end_of[tag] <= lease.call.end or tag in again]:
                del open_now[tag]
            begin = place[lease.tag][0]
            for tag, (_, end, _) in open_now.items():
                if end < begin and end < lease.first and not any(
                        other.owner == lease.owner and other.first <= lease.last
                        for other in held[tag]):
                    yield f'{lease} while {tag} before it is open'


# ---------------------------------------------------------------------------
# Keys, inbox, timers, runs, handlers, work
# ---------------------------------------------------------------------------

@law
def dedupe_keys(facts):
    """One message for each key; who comes later learns its id."""
    keyed = defaultdict(list)
    for message in facts.messages.values():
        # the key of a cancelled message is free again
        if message.key and message.fate == COMMITTED and message.tag not in facts.cancels:
            keyed[message.namespace, message.topic, message.key].append(message)
    for key, several in keyed.items():
        winners = [message.tag for message in several if message.enqueued and message.message_id]
        ids = {message.message_id for message in several if message.message_id}
        if len(winners) > 1:
            yield f'{key[2]}: {", ".join(winners)} were all enqueued'
        if len(ids) > 1:
            yield f'{key[2]}: callers were told {len(ids)} ids'
    for key, count in Counter((row.namespace, row.topic, row.key) for row in facts.rows
                              if row.key and row.tag not in facts.cancels).items():
        if count > 1:
            yield f'{key[2]}: {count} messages'


@law
def inbox_once(facts):
    """Each message is received once, and handled."""
    received = defaultdict(list)
    for call in facts.by_op['receive']:
        fate = facts.fate(call)
        if fate != ABORTED:
            received[call.args['id']].append((call, fate))
    rows = {row[1]: row for row in facts.final.get('inbox', ())}
    known = {row[0] for row in facts.final.get('received', ())}
    tags = {}
    for message_id, calls in received.items():
        tag = calls[0][0].args['tag']
        tags[tag] = message_id
        taken = [call for call, fate in calls if fate == COMMITTED and call.result is True]
        refused = [call for call, fate in calls if fate == COMMITTED and call.result is False]
        doubtful = [call for call, fate in calls if fate == DOUBTFUL]
        if len(taken) > 1:
            yield f'{tag} was taken {len(taken)} times'
        if refused and not taken and not doubtful:
            yield f'{tag} was refused, but never taken'
        if taken and message_id not in known:
            yield f'{tag} is not remembered'
        key = ('_inbox', facts.ids.get(('_inbox', message_id)))
        if taken and message_id not in rows and possible_end(facts, *key) == FOREVER:
            yield f'{tag} is lost'
    ids = defaultdict(set)
    for (store, row_id), several in facts.leases.items():
        if store:
            ids[several[0].tag].add(row_id)
    for tag, some in ids.items():
        if tag not in tags:
            yield f'{tag} was never received'
        if len(some) > 1:
            yield f'{tag} was handed out as {len(some)} messages'


@law
def timers(facts):
    """A timer comes once, not before its time, and never when it was cancelled."""
    rows = defaultdict(list)
    for row in facts.rows:
        rows[row.tag].append(row)
    cancels = defaultdict(list)
    for call in facts.by_op['cancel_timer']:
        cancels[call.args['tag']].append(call)
    for call in facts.by_op['schedule_timer']:
        tag, fate = call.args['tag'], facts.fate(call)
        count = len(rows[tag])
        cancelled = any(cancel.result is True for cancel in cancels[tag])
        perhaps = any(cancel.outcome not in (OK, ERROR) for cancel in cancels[tag])
        if count > 1:
            yield f'{tag} came {count} times'
        if count and cancelled:
            yield f'{tag} came, though it was cancelled'
        if not count and fate == COMMITTED and not cancelled and not perhaps:
            yield f'{tag} never came'
        for row in rows[tag]:
            if row.created_at < call.args['due_at']:
                yield f'{tag} came {(call.args["due_at"] - row.created_at) / 1000:.0f} ms early'


@law
def runs(facts):
    """A job makes as many messages as it was triggered."""
    sure, perhaps = Counter(), Counter()
    for call in facts.by_op['trigger_job']:
        fate = facts.fate(call)
        sure[call.args['tag']] += fate == COMMITTED
        perhaps[call.args['tag']] += fate != ABORTED
    count = Counter(row.tag for row in facts.rows)
    for tag, most in perhaps.items():
        if not sure[tag] <= count[tag] <= most:
            yield f'{tag} came {count[tag]} times, and was triggered {sure[tag]} to {most} times'


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


# ---------------------------------------------------------------------------
# Joins
# ---------------------------------------------------------------------------

@law
def join_counts(facts):
    """A join counts each member that has ended, once, up to what it expects."""
    # the first outcome of what was requeued stands, and is not known
    ends = {row.message_id: row.status for row in facts.rows
            if row.status in (DONE, DEAD) and row.id not in facts.requeued}
    reported = {call.args['member']: call.args['status'] for call in facts.by_op['report']
                if facts.fate(call) == COMMITTED}
    members = defaultdict(dict)
    for join, member, status in facts.final.get('members', ()):
        members[join][member] = status
        end = {DONE: 1, DEAD: 2}.get(ends.get(member), reported.get(member))
        if end is not None and status != end:
            yield f'join {join}: member {member} has status {status}, and ended with {end}'
    cancelled = {call.args['join'] for call in facts.by_op['cancel_join'] if facts.fate(call) != ABORTED and call.result is not False}
    wanted = {call.result: call.args['expected'] for call in facts.by_op['start_join'] if facts.fate(call) == COMMITTED}
    joins = {row[0]: row for row in facts.final.get('joins', ())}
    for join, expected in wanted.items():
        if join not in joins:
            yield f'join {join} is gone'
        elif joins[join][2] != expected:
            yield f'join {join} expects {joins[join][2]}, not {expected}'
    for join, _, expected, completed, failed, status in joins.values():
        ended = Counter(members[join].values())
        if join in cancelled:
            continue
        if completed + failed != min(expected, ended[1] + ended[2]):
            yield (f'join {join} counts {completed} + {failed} of {expected}, '
                   f'and {ended[1]} + {ended[2]} members have ended')
        elif ended[1] + ended[2] <= expected and (completed, failed) != (ended[1], ended[2]):
            yield f'join {join} counts {completed} + {failed}, and its members ended {ended[1]} + {ended[2]}'
        want = 3 if completed + failed < expected else 2 if failed else 1
        if status != want:
            yield f'join {join} has status {status} with {completed} + {failed} of {expected}'
    for call in facts.by_op['enqueue_step'] + facts.by_op['attach']:
        if facts.fate(call) == COMMITTED and call.outcome == OK:
            member = call.args.get('member') or call.result[0][0]
            if member not in members[call.args['join']]:
                yield f'join {call.args["join"]} has no member {member}'


@law
def continuations(facts):
    """Each wait is followed by what its join's end demands, once."""
    came = defaultdict(list)
    for row in facts.rows:
        if row.topic in ('joined', 'broken'):
            came[row.tag].append(row.topic)
    joins = {row[0]: row for row in facts.final.get('joins', ())}
    waits = {row.tag for row in facts.rows if row.topic == 'join.wait'}
    for call in facts.by_op['enqueue_join_wait']:
        fate = facts.fate(call)
        args = call.args
        if fate == COMMITTED and args['tag'] not in waits:
            yield f'wait {args["tag"]} is lost'
        if args['tag'] not in waits or args['join'] not in joins:
            continue
        status, failed = joins[args['join']][5], joins[args['join']][4]
        on_fail = ['broken'] if args['on_fail'] else []
        want = {1: ['joined'], 2: on_fail if args['if_failed'] and failed else ['joined'], 3: on_fail}.get(status, [])
        if came[args['tag']] != want:
            yield f'wait {args["tag"]} on a join of status {status} was followed by {came[args["tag"]]}, not {want}'


# ---------------------------------------------------------------------------
# Errors
# ---------------------------------------------------------------------------

EXPECTED = {
    '57014',    # cancelled
    '55000',    # strict: the lease is lost
}


@law
def unexpected_error(facts):
    """Calls fail only for what was done to them."""
    for call in facts.calls:
        if call.outcome == ERROR and call.result[0] not in EXPECTED:
            if call.op == 'maintain' and call.result[0] == '55P03':
                continue    # it met a lock, does not wait for it, and says so
            if call.op in ('commit_prepared', 'rollback_prepared') and call.result[0] in ('42704', '55000'):
                continue
            yield f'{call}: {" ".join(call.result)}'
