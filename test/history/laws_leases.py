"""Who is given what, when, and in which order."""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict

from facts import ABORTED, COMMITTED, DEAD, DONE, DOUBTFUL, FRESH
from law import law
from laws_publish import subscriptions_of
from laws_queue import CANCELLED, EXHAUSTED, EXPIRED, ended_by_nack, possible_end, streams_tags
from plan import BACKOFF_BASE, CLAIMED_TOPICS, DUE_ATTEMPTS, HANDLED, IS_NEW, IS_RETRY, MAX_ATTEMPTS, REDRIVEN, REPLAYED, RUN, TIMED, marks
from record import ERROR, FOREVER, OK


ENDS_WITH = (*CLAIMED_TOPICS, HANDLED)      # topics for which max_attempts was set
LONG_CALL = 5000000     # us


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
        renewed = facts.later(settle.begin, settle.call.end, settle.lease)
        until = renewed if settle.sure else min(until, renewed)
    if any(lease.first <= at < before or at >= lease.first for at in facts.given_back.get(lease.owner, ()) if at < before):
        return 0
    signs = facts.signs_of_life.get(lease.owner)
    if signs is not None:
        # an instance that is silent for too long is removed
        number = bisect_left(signs, before)
        last = signs[number - 1] if number else 0
        if facts.later(last - FRESH, FOREVER, facts.stale_after[lease.owner]) <= before:
            return 0
    return until


def is_given_back(facts, lease, begin, end):
    """Whether the owner may have made the message ready again in this time."""
    return (any(begin < at < end for at in facts.given_back.get(lease.owner, ()))
            or any(settle.op in ('nack', 'release') and settle.owner == lease.owner and settle.end > begin and settle.begin < end
                   for settle in facts.settles.get((lease.store, lease.id), ())))


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
        for one in facts.publications:
            if one.stream and one.fate == COMMITTED:
                for name in subscriptions_of(one):
                    if name != REPLAYED:
                        self.members[f'@{name}', one.stream].append((one.begin, one.end, one.tag))
        for key, several in self.members.items():
            several.sort()
            for _, _, tag in several:
                self.stream_of[key[0], tag] = key
        self.leases = defaultdict(list)
        published = {one.tag: one.stream for one in facts.publications if one.stream}
        for several in facts.leases.values():
            for lease in several:
                key = self.stream_of.get((lease.store, lease.tag))
                if key is None and lease.store.startswith('@') and lease.tag in published:
                    # in a stream, but not in an order that can be told
                    key = self.stream_of[lease.store, lease.tag] = lease.store, published[lease.tag]
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
        key = self.facts.key_of(store, tag)
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
    """While a lease stands, no other owner is given the message, or ends it."""
    streams = streams_of(facts)
    for key, several in facts.leases.items():
        for lease, after in zip(several, several[1:]):
            if key in facts.requeued and after.first <= lease.last:
                continue    # which was the first cannot be told
            until = lasts_until(facts, lease, after.last)
            if lease.certain and after.last < until and not streams.taken_back(lease, after.last):
                yield f'{lease} stands {(until - after.last) / 1000:.0f} ms longer when {after} begins'
    for row in facts.rows:
        # who reaps or discards has no lease
        several = facts.leases.get(('', row.id), ()) if row.status == DEAD and row.reason in (EXPIRED, CANCELLED) else ()
        before = [lease for lease in several if lease.first < row.processed_at]
        lease = before[-1] if before else None
        if lease and lease.certain and lease.last < row.processed_at and ('', row.id) not in facts.requeued:
            until = lasts_until(facts, lease, row.processed_at)
            # which is when the call began; until it came to the message, that may have been given back
            if is_given_back(facts, lease, row.processed_at, row.processed_at + LONG_CALL):
                continue
            if row.processed_at < until and not streams.taken_back(lease, row.processed_at):
                yield f'{lease} stands {(until - row.processed_at) / 1000:.0f} ms longer when it ends with reason {row.reason}'


@law
def attempts_count(facts):
    """Each attempt is handed out once, in order, and there are at most so many."""
    for (store, row_id), several in facts.leases.items():
        if (store, row_id) in facts.requeued:
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
                    yield f'between {lease} and {after} are attempts that were not handed out'
        first = several[0]
        if first.attempt - 1 > bisect_left(facts.doubtful_claims, first.last):
            yield f'{first} was not the first'
        owners = {lease.owner for lease in several}
        back += sum(len(facts.given_back.get(owner, ())) + (owner in facts.signs_of_life) for owner in owners)
        stream = (store, first.tag) in streams_of(facts).stream_of
        limit = DUE_ATTEMPTS if store else MAX_ATTEMPTS
        if several[-1].attempt > limit + back + len(facts.doubtful_claims) and not stream:
            yield f'{several[-1]} is one too many'
    for row in facts.rows:
        if row.status == DEAD and row.reason == EXHAUSTED and row.topic in ENDS_WITH and row.attempts != MAX_ATTEMPTS:
            if not ended_by_nack(facts, row):
                yield f'{row.tag} (id {row.id}) was out of attempts after {row.attempts}'
    yield from requeued_goes_on(facts)
    yield from limited_by_nack(facts)


def limited_by_nack(facts):
    """What is handed back in the last attempt that the caller allows does not come again."""
    rows = {('', row.id): row for row in facts.rows}
    for key, settles in facts.settles.items():
        row = rows.get(key)
        for settle in settles:
            if (row and row.status != DEAD and settle.op == 'nack' and settle.sure and key not in facts.requeued
                    and 'max' in settle.call.args and settle.call.args['max'] <= settle.attempt
                    and all_count(facts, key, row.tag, settle.attempt)):
                yield f'{row.tag} (id {row.id}) has status {row.status} after {settle.call}, of at most {settle.call.args["max"]} attempts'


def all_count(facts, key, tag, attempt):
    """Whether all attempts before this one surely count."""
    if tag in streams_tags(facts):
        return attempt == 1
    before = [lease for lease in facts.leases.get(key, ()) if lease.attempt <= attempt]
    if len(before) < attempt:
        return False
    for lease, after in zip(before, before[1:]):
        if lease.owner in facts.signs_of_life or any(lease.first <= at <= after.last for at in facts.given_back.get(lease.owner, ())):
            return False
    return not any(settle.op == 'release' and settle.begin <= before[-1].last for settle in facts.settles.get(key, ()))


def requeued_goes_on(facts):
    """What was requeued begins with its first attempt."""
    times = defaultdict(list)
    for call in facts.by_op['requeue']:
        if facts.fate(call) != ABORTED:
            for row_id in call.args['ids']:
                times[call.args['store'], row_id].append(call)
    for key, calls in times.items():
        call = calls[0]
        if len(calls) > 1 or call.outcome != OK or call.result != len(call.args['ids']) or call.tx:
            continue
        later = [lease for lease in facts.leases.get(key, ()) if lease.first > call.end]
        before = [lease for lease in facts.leases.get(key, ()) if lease.last >= call.begin]
        first = min(later, key=lambda lease: lease.first, default=None)
        if first and len(before) == len(later) and first.attempt > 1 + bisect_left(facts.doubtful_claims, first.last):
            yield f'{first} is not the first one after {call}'


@law
def stale_settle(facts):
    """Who has no lease, or an old one, changes nothing."""
    for op in ('ack', 'nack', 'fail', 'renew', 'release'):
        for call in facts.by_op[op]:
            if call.args.get('strict') and call.outcome == OK and call.result != len(set(call.args['ids'])):
                yield f'{call} was strict, and has changed {call.result} of {len(set(call.args["ids"]))}'
    for key, settles in facts.settles.items():
        for settle in settles:
            may, newer = facts.may_have_settled(key, settle) if settle.sure else (True, None)
            if newer:
                yield f'{settle.call}: an old attempt of id {key[1]}{key[0]} was settled after {newer}'
            elif not may:
                yield f'{settle.call}: id {key[1]}{key[0]} was not leased to {settle.owner[:8]}'


@law
def lease_ends(facts):
    """A lease ends when its owner was told, or has asked for."""
    # a client that has claimed and got no answer may have leases without a record
    lost = {call.args['owner'] for call in facts.by_op['claim'] + facts.by_op['work_batch']
            if facts.fate(call) != ABORTED and (call.outcome != OK or facts.fate(call) == DOUBTFUL)}
    for look in facts.by_op['look_at_leases']:
        for row_id, owner, until, *_ in look.result or () if look.outcome == OK else ():
            leases = [lease for lease in facts.leases.get(('', row_id), ()) if lease.owner == owner]
            settles = [settle for settle in facts.settles.get(('', row_id), ()) if settle.owner == owner and settle.op == 'renew']
            known = [(lease.call.begin, lease.call.end, lease.call.args['lease']) for lease in leases]
            known += [(settle.begin, settle.end, settle.lease) for settle in settles]
            # when a silent instance is removed, its leases end, or have just ended, at that moment
            if owner in facts.signs_of_life:
                known += [(call.begin, call.end, 0) for call in facts.by_op['work_batch']
                          if call.args['owner'] != owner and call.begin < look.end]
            if leases and owner not in lost and not any(facts.can_end(begin, end, lasts, until) for begin, end, lasts in known):
                yield f'{look} shows id {row_id} leased to {owner[:8]} until {until}, for which it never asked'
            yield from renewed_before(facts, look, row_id, owner, until)
    for look in facts.by_op['look_for_leases']:
        if look.outcome == OK and look.result and look.args['owner'] not in lost:
            yield f'{look} shows ids {look.result} leased to {look.args["owner"][:8]}, which has gone'


@law
def handed_out_after_its_end(facts):
    """What is done or dead is not handed out again."""
    # the time of a cancelled message is that at which the call began, see cancelled()
    ended = {('', row.id): row.processed_at for row in facts.rows
             if row.status == DONE or row.status == DEAD and row.reason != CANCELLED}
    for key, settles in facts.settles.items():
        for settle in settles:
            if settle.sure and (settle.op == 'ack' or settle.op == 'fail' and key not in facts.requeued):
                ended[key] = min(ended.get(key, FOREVER), settle.end)
    for key, several in facts.leases.items():
        for lease in several:
            if lease.first > ended.get(key, FOREVER):
                yield f'{lease}, {(lease.first - ended[key]) / 1000:.0f} ms after its end'
    yield from back_for_nothing(facts)


def renewed_before(facts, look, row_id, owner, until):
    """What was renewed last, and surely, lasts as long as was said then."""
    leases = [lease for lease in facts.leases.get(('', row_id), ()) if lease.owner == owner]
    renewals = [settle for settle in facts.settles.get(('', row_id), ())
                if settle.owner == owner and settle.op == 'renew' and settle.begin < look.end]
    last = max(renewals, key=lambda settle: settle.end, default=None)
    if (last and last.sure and last.end < look.begin and not facts.moves
            and not any(other is not last and other.end > last.begin for other in renewals)
            and not any(lease.last >= last.begin for lease in leases)
            and (owner not in facts.signs_of_life or facts.was_there(owner, look.begin, look.end))
            and until < last.begin + last.lease * 1000000):
        yield f'{look} shows id {row_id} leased to {owner[:8]} until {until}, {last.begin + last.lease * 1000000 - until} us less than {last.call} said'


def back_for_nothing(facts):
    """What has failed comes back only if an operator asked for that."""
    asked = defaultdict(list)       # key, or namespace -> calls
    for call in facts.by_op['requeue'] + facts.by_op['redrive']:
        if facts.fate(call) != ABORTED:
            for key in [(call.args['store'], row_id) for row_id in call.args['ids']] if call.op == 'requeue' else [call.args['namespace']]:
                asked[key].append(call)
    for key in facts.requeued:
        leases = facts.leases.get(key, ())
        message = facts.messages.get(leases[0].tag) if leases and not key[0] else None
        calls = list(asked[key])
        if message and message.topic == REDRIVEN:
            calls += asked[None] + asked[message.namespace]
        for settle in facts.settles.get(key, ()):
            if settle.sure and settle.op == 'fail':
                for lease in leases:
                    if lease.first > settle.end and not any(call.end > settle.begin and call.begin < lease.last for call in calls):
                        yield f'{lease} after {settle.call}, and nobody asked for it'


@law
def retried_too_early(facts):
    """A message that was handed back comes again when its delay is over, not before."""
    for key, settles in facts.settles.items():
        if not key[0] and key[1] in facts.rescheduled:
            continue
        for settle in settles:
            if settle.op != 'nack' or not settle.sure or settle.call.tx or key in facts.requeued:
                continue
            delay = settle.call.args.get('delay')
            # the backoff, if no delay was asked for, is drawn from half of its base on
            earliest = facts.later(settle.begin, settle.call.end, (BACKOFF_BASE // 2 if delay is None else delay) / 1000)
            for lease in facts.leases.get(key, ()):
                if lease.attempt > settle.attempt and lease.last < earliest:
                    yield f'{lease} is {(earliest - lease.last) / 1000:.0f} ms too early after {settle.call}'


@law
def out_of_time(facts):
    """Nothing is handed out before it is due or after it has expired."""
    timers = {call.args['tag']: call.args['due_at'] for call in facts.by_op['schedule_timer']}
    for (store, row_id), several in facts.leases.items():
        moves = facts.rescheduled.get(row_id, ()) if not store else ()
        for lease in several:
            message = facts.messages.get(lease.tag) if not store else None
            due_at = timers.get(lease.tag) if store == '_timers' else message and not moves and message.due_at
            if due_at and lease.last < due_at:
                yield f'{lease} is {(due_at - lease.last) / 1000:.0f} ms early'
            # what is requeued does not expire again
            if message and message.expired_at and lease.first > message.expired_at and ('', row_id) not in facts.requeued:
                yield f'{lease} is {(lease.first - message.expired_at) / 1000:.0f} ms after it expired'
            if len(moves) == 1 and moves[0].result == len(moves[0].args['ids']) and moves[0].args['due_at'] \
                    and moves[0].end < lease.first and lease.last < moves[0].args['due_at']:
                yield f'{lease} is early after {moves[0]}'


@law
def not_asked_for(facts):
    """A call returns no more than was asked for, and nothing that was not asked for."""
    for call in facts.by_op['claim']:
        if call.outcome != OK or not call.result:
            continue
        args = call.args
        if len(call.result) > args.get('batch', len(call.result)):
            yield f'{call} returned {len(call.result)} messages, not {args["batch"]}'
        for row_id, tag, *_ in call.result:
            message = facts.messages.get(tag)
            if args['store'] or message is None:
                continue
            topics, namespace, tenant = args.get('topics'), args.get('namespace'), args.get('tenant')
            if (topics and message.topic not in topics or namespace and message.namespace != namespace
                    or tenant and marks(tag)[2] != tenant):
                yield f'{call} returned {tag} (id {row_id}) of {message.namespace}/{message.topic}'
            if not topics and message.topic == HANDLED:
                yield f'{call} returned {tag} (id {row_id}), which is the handler\'s'
    for call in facts.by_op['redrive'] + facts.by_op['purge']:
        if call.outcome == OK and call.result > call.args['limit']:
            yield f'{call} did that to {call.result} messages, not {call.args["limit"]}'
    for call in facts.by_op['work_batch']:
        if call.outcome == OK:
            for source, count in Counter(source for source, *_ in call.result or ()).items():
                if count > call.args['batch']:
                    yield f'{call} returned {count} of the {source}, not {call.args["batch"]}'


@law
def flags(facts):
    """An instance learns what is new, and what was tried before."""
    for call in facts.by_op['work_batch']:
        if call.outcome != OK:
            continue
        own = {made['tag'] for made in call.args['messages']}
        for source, (row_id, tag, attempt, *_), _, told in call.result or ():
            if source != 'outbox' or tag not in facts.messages:
                continue
            if bool(told & IS_NEW) != (tag in own and attempt == 1):
                yield f'{call} returned {tag} (id {row_id}) in attempt {attempt} as {"" if told & IS_NEW else "not "}new'
            nacks = [settle for settle in facts.settles.get(('', row_id), ()) if settle.op == 'nack']
            sure = any(settle.sure and settle.end < call.begin for settle in nacks)
            perhaps = any(settle.begin < call.end for settle in nacks)
            if ('', row_id) not in facts.requeued and not sure <= bool(told & IS_RETRY) <= perhaps:
                yield f'{call} returned {tag} (id {row_id}) as {"" if told & IS_RETRY else "not "}tried before'


def topics_of(facts):
    """(store, tag) -> (kind, namespace, topic), as a pause names it."""
    topics = {('', message.tag): ('message', message.namespace, message.topic) for message in facts.messages.values()}
    topics.update((('_inbox', tag), ('inbox', 'default', handler)) for _, _, _, tag, handler, _ in facts.received)
    topics.update((('_timers', call.args['tag']), ('timer', 'default', TIMED)) for call in facts.by_op['schedule_timer'])
    topics.update((('_job_runs', call.args['tag']), ('job_run', 'default', RUN)) for call in facts.by_op['trigger_job'])
    return topics


def pauses_of(facts):
    """(kind, namespace, topic) -> [(begin, end)] in which it was surely paused."""
    def key_of(call):
        return call.args['kind'], call.args['namespace'], call.args['topic']

    pauses, resumes = defaultdict(list), defaultdict(list)
    for call in facts.by_op['resume']:
        if call.outcome != ERROR:
            resumes[key_of(call)].append(call.begin)
    for call in facts.by_op['pause']:
        if call.outcome == OK:
            several = resumes[key_of(call)]
            number = bisect_right(several, call.begin)
            pauses[key_of(call)].append((call.end, several[number] if number < len(several) else FOREVER))
    return pauses


@law
def paused(facts):
    """Nothing of a topic is handed out while it is paused."""
    topics, pauses = topics_of(facts), pauses_of(facts)
    for (store, _), several in facts.leases.items():
        topic = ('subscription', 'default', store[1:]) if store.startswith('@') else topics.get((store, several[0].tag))
        for begin, end in pauses.get(topic, ()):
            for lease in several:
                if lease.call.begin > begin and lease.call.end < end:
                    yield f'{lease}, {(lease.call.begin - begin) / 1000:.0f} ms after the topic was paused'


@law
def cancelled(facts):
    """What was cancelled or discarded is never handed out, and is dead."""
    rows = {row.tag: row for row in facts.rows}
    ids = {row.id: row for row in facts.rows}
    ends = [(rows.get(tag), facts.ids_by_tag.get(tag), call) for tag, calls in facts.cancels.items()
            for call in calls if call.result is True and call.outcome == OK]
    ends += [(ids.get(row_id), ('', row_id), call) for row_id, calls in facts.discards.items()
             for call in calls if call.outcome == OK and call.result == len(call.args['ids'])]
    for row, key, call in ends:
        if row and row.status != DEAD:
            yield f'{row.tag} has status {row.status} after {call}'
        for lease in facts.leases.get(key, ()):
            if lease.first > call.end:
                yield f'{lease} after {call}'


@law
def stream_order(facts):
    """Nothing of a stream is handed out while something before it is open elsewhere."""
    streams = streams_of(facts)
    for key, leases in streams.leases.items():
        if key not in streams.members:
            continue
        place = {tag: (begin, end) for begin, end, tag in streams.members[key]}
        coming = sorted(streams.members[key], key=lambda member: member[1])
        held = defaultdict(list)
        for lease in leases:
            held[lease.tag].append(lease)
        end_of = {tag: streams.end_of(key[0], tag) for tag in place}
        # a dead one that was requeued is not before those that came in between
        again = {tag for tag in place if facts.key_of(key[0], tag) in facts.requeued}
        open_now = {}
        number = 0
        for lease in sorted(leases, key=lambda lease: lease.call.end):
            while number < len(coming) and coming[number][1] <= lease.call.end:
                open_now[coming[number][2]] = coming[number]
                number += 1
            for tag in [tag for tag in open_now if end_of[tag] <= lease.call.end or tag in again]:
                del open_now[tag]
            if lease.tag not in place:
                continue    # its transaction was rolled back, says another law
            begin = place[lease.tag][0]
            for tag, (_, end, _) in open_now.items():
                if end < begin and end < lease.first and not any(
                        other.owner == lease.owner and other.first <= lease.last
                        for other in held[tag]):
                    yield f'{lease} while {tag} before it is open'


@law
def stream_turns(facts):
    """What was put into a stream before something else has committed before it."""
    for (store, stream), members in streams_of(facts).members.items():
        if store:
            continue
        commits = []        # (end of the call, begin of the commit, tag) of what is in a transaction
        for _, end, tag in members:
            message = facts.messages[tag]
            begin = facts.commit_begins.get(message.tx.split('/')[0])
            if begin is not None:
                commits.append((end, begin, tag))
        commits.sort()
        latest, number = (0, None), 0
        for begin, _, tag in sorted(members):
            while number < len(commits) and commits[number][0] < begin:
                latest = max(latest, commits[number][1:])
                number += 1
            if facts.messages[tag].committed < latest[0]:
                yield f'{tag} had committed when {latest[1]}, before it in stream {stream}, did so'


def still_held(facts, key, by):
    """Whether the owner of a settling may have had a message of the stream all the while."""
    for lease in facts.leases.get(key, ()):
        if lease.owner != by.owner or lease.first > by.end:
            continue
        gone = any(settle.sure and settle.op in ('nack', 'release') and settle.owner == by.owner
                   and settle.attempt in (None, lease.attempt) and lease.last < settle.begin and settle.end < by.begin
                   for settle in facts.settles.get(key, ()))
        taken = any(other.certain and other.attempt > lease.attempt and other.call.end < by.begin
                    for other in facts.leases[key])
        if not gone and not taken:
            return True
    return False


@law
def stream_ends(facts):
    """Nothing of a stream ends while something before it has gone back."""
    streams = streams_of(facts)
    for (store, _), members in streams.members.items():
        place = {tag: (begin, end) for begin, end, tag in members}
        end_of = {tag: streams.end_of(store, tag) for tag in place}
        again = {tag for tag in place if facts.key_of(store, tag) in facts.requeued}
        ends = [(settle, tag) for tag in place if tag not in again
                for settle in facts.settles.get(facts.key_of(store, tag), ())
                if settle.op in ('ack', 'fail') and settle.sure and not settle.call.tx]
        coming = sorted(members, key=lambda member: member[1])
        open_now, number = {}, 0
        for settle, tag in sorted(ends, key=lambda one: one[0].end):
            while number < len(coming) and coming[number][1] <= settle.begin:
                open_now[coming[number][2]] = coming[number]
                number += 1
            for other in [other for other in open_now if end_of[other] <= settle.end or other in again]:
                del open_now[other]
            for other, (_, end, _) in open_now.items():
                if end < place[tag][0] and not still_held(facts, facts.key_of(store, other), settle):
                    yield f'{settle.call} ended {tag} while {other} before it was open'
