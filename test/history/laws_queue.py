"""Nothing is lost, invented, or doubled, and each end has a cause."""

from collections import Counter, defaultdict

from facts import ABORTED, COMMITTED, DEAD, DONE, DOUBTFUL
from law import law
from plan import HANDLED, KEEP_INBOX, MAX_ATTEMPTS, PURGED, PURGES, SHORT, SHORT_KEPT, wrong_fields
from record import ERROR, FOREVER, OK

# reasons of what is dead
FAILED, EXHAUSTED, EXPIRED, CANCELLED = 4, 5, 6, 9


def possible_end(facts, store, row_id):
    """When a message may have been settled for good, at the earliest."""
    return min((settle.begin for settle in facts.settles.get((store, row_id), ()) if settle.op in ('ack', 'fail', 'nack')),
               default=FOREVER)


@law
def lost(facts):
    """What was committed is done, dead, or still there."""
    there = {row.tag for row in facts.rows if row.topic != 'join.wait'}
    for message in facts.messages.values():
        if message.fate != COMMITTED or not message.enqueued or message.tag in there or message.topic == PURGED:
            continue
        key = facts.ids_by_tag.get(message.tag)
        # a client finished what is kept only for a second
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
    tables = {'': [row.id for row in facts.rows]}
    tables.update((name, [row[0] for row in facts.final.get(name, ())]) for name in ('inbox', 'timers', 'runs'))
    for name, every in tables.items():
        for row_id, count in Counter(every).items():
            if count > 1:
                yield f'id {row_id} is in {count} tables{name and " of " + name}'


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
            if not any(settle.op == 'ack' and settle.owner == row.processed_by
                       and facts.may_have_settled(('', row.id), settle)[0] for settle in settles):
                yield f'{row.tag} (id {row.id}) is done by {row.processed_by}'
        elif row.status == DEAD:
            causes = (any(settle.op == 'fail' for settle in settles) and row.reason == FAILED,
                      (row.tag in facts.cancels or row.id in facts.discards) and row.reason == CANCELLED,
                      (row.attempts >= MAX_ATTEMPTS or ended_by_nack(facts, row)) and row.reason == EXHAUSTED,
                      message and message.expires_at and message.expires_at <= row.processed_at and row.reason == EXPIRED)
            if not any(causes):
                yield f'{row.tag} (id {row.id}) is dead, reason {row.reason}'
            elif row.reason == FAILED and row.error != 'never':
                yield f'{row.tag} (id {row.id}) is dead with error {row.error}'


@law
def ack_undone(facts):
    """What was acknowledged stays done."""
    status = {row.id: row.status for row in facts.rows}
    for (store, row_id), settles in facts.settles.items():
        # what has failed may be requeued
        ends = ('ack',) if (store, row_id) in facts.requeued else ('ack', 'fail')
        sure = [settle for settle in settles if settle.op in ends and settle.sure]
        if len(sure) > 1:
            yield f'id {row_id}{store} was ended twice: {", ".join(str(settle.call) for settle in sure)}'
        if store:
            continue
        for settle in sure:
            if row_id in status and status[row_id] != (DONE if settle.op == 'ack' else DEAD):
                yield f'id {row_id} has status {status[row_id]} after {settle.call}'


@law
def purged(facts):
    """What is purged is gone, and nothing else."""
    calls = [call for call in facts.by_op['purge'] if facts.fate(call) != ABORTED]
    told = sum(call.result for call in calls if call.outcome == OK)
    gone, perhaps = 0, 0
    there = {row.tag for row in facts.rows}
    for message in facts.messages.values():
        if message.topic == PURGED and message.enqueued and message.tag not in there:
            gone += message.fate == COMMITTED
            perhaps += message.fate == DOUBTFUL
            yield from purged_as_asked(facts, message)
    if told > gone + perhaps or told < gone and all(call.outcome == OK for call in calls):
        yield f'{gone} messages are gone, {perhaps} perhaps, and {told} were purged'


def purged_as_asked(facts, message):
    """In each namespace something else is purged: what is ready, or dead, or both."""
    what, key = PURGES[message.namespace], facts.ids_by_tag.get(message.tag)
    if what == 'ready' and any(settle.sure and settle.op == 'fail' for settle in facts.settles.get(key, ())):
        yield f'{message.tag} was dead, and is purged'
    if what == 'dead' and message.fate == COMMITTED and (key is None or (
            possible_end(facts, *key) == FOREVER and facts.leases[key][-1].attempt + len(facts.doubtful_claims) < MAX_ATTEMPTS)):
        yield f'{message.tag} was ready, and is purged'


@law
def kept(facts):
    """What is done can be seen as long as it is to be kept."""
    for call in facts.by_op['look_for']:
        for row_id in call.args['ids'] if call.outcome == OK else ():
            # after a drop another message may be given the id that a client still looks for
            ends = [settle for settle in facts.settles.get(('', row_id), ()) if settle.op == 'ack' and settle.sure
                    and settle.call.client == call.client and settle.call.end <= call.begin]
            over = min((facts.later(settle.begin, settle.call.end, SHORT_KEPT / 1000000) for settle in ends), default=0)
            if call.end < over and row_id not in call.result:
                yield f'{call} does not see id {row_id}, done by {ends[0].call}'
    yield from kept_in_the_inbox(facts)


def kept_in_the_inbox(facts):
    """What an instance has done, and wants to have kept, is kept."""
    there = {row[0] for row in facts.final.get('inbox', ())}
    for (store, row_id), settles in facts.settles.items():
        ends = [settle for settle in settles if settle.op in ('ack', 'fail', 'nack')] if store == '_inbox' else ()
        if (row_id is not None and row_id not in there and ends
                and all(settle.call.args.get('flags') == KEEP_INBOX and settle.call.outcome == OK for settle in ends)):
            yield f'id {row_id}_inbox is not kept after {ends[-1].call}'


def ended_by_nack(facts, row):
    """Whether a nack may have allowed no more attempts than the message has had."""
    return any(settle.op == 'nack' and settle.attempt is not None
               and settle.call.args.get('max', MAX_ATTEMPTS) <= row.attempts <= settle.attempt
               for settle in facts.settles.get(('', row.id), ()))


@law
def counters(facts):
    """What is done has the attempts and retries that it took."""
    for row in facts.rows:
        key = '', row.id
        leases = facts.leases.get(key)
        if row.status != DONE or not leases or key in facts.requeued or row.topic == HANDLED:
            continue
        attempt = max((lease.attempt for lease in leases if lease.owner == row.processed_by), default=0)
        settles = facts.settles.get(key, ())
        nacks = [settle for settle in settles if settle.op == 'nack']
        least, most = sum(settle.sure for settle in nacks), len(nacks)
        released = sum(settle.op == 'release' and settle.sure for settle in settles)
        waived = (row.tag in streams_tags(facts) or any(settle.op == 'release' for settle in settles)
                  or any(lease.owner in facts.given_back or lease.owner in facts.signs_of_life for lease in leases))
        if attempt and (row.attempts > attempt - released or row.attempts < attempt and not waived):
            yield f'{row.tag} (id {row.id}) was done in attempt {attempt}, and counts {row.attempts}'
        if not least <= row.retry_count <= most:
            yield f'{row.tag} (id {row.id}) was retried {least} to {most} times, and counts {row.retry_count}'
        if row.error != ('again' if row.retry_count else None):
            yield f'{row.tag} (id {row.id}) was retried {row.retry_count} times, and its error is {row.error}'


def streams_tags(facts):
    if not hasattr(facts, 'tags_in_streams'):
        facts.tags_in_streams = {message.tag for message in facts.messages.values() if message.stream}
    return facts.tags_in_streams


@law
def swapped(facts):
    """A message keeps its id, topic, namespace, key, stream, and what travels with it."""
    keys = Counter(message.scope() for message in facts.messages.values() if message.fate != ABORTED and message.enqueued)
    for row in facts.rows:
        if row.topic == 'join.wait' or row.tag not in facts.messages and row.tag not in facts.derived:
            continue
        wrong = wrong_fields(row.tag, correlation=row.correlation, headers=row.headers, tenant=row.tenant)
        if wrong:
            yield f'{row.tag} (id {row.id}) has {wrong}'
        message = facts.messages.get(row.tag)
        if message and (row.topic, row.namespace) != (message.topic, message.namespace):
            yield f'{row.tag} (id {row.id}) is of {row.namespace}/{row.topic}'
        if message and (row.stream, row.priority) != (message.stream, message.priority):
            yield f'{row.tag} (id {row.id}) is in stream {row.stream}, and has priority {row.priority}'
        # what is brought back may have to leave its key to another
        if message and row.key != message.key and not (
                row.key is None and ('', row.id) in facts.requeued and keys[message.scope()] > 1):
            yield f'{row.tag} (id {row.id}) has the key {row.key}, not {message.key}'
    told = [(row.tag, row.message_id) for row in facts.rows]
    told += [(lease.tag, lease.message_id) for (store, _), several in facts.leases.items() if not store for lease in several]
    for tag, message_id in told:
        message = facts.messages.get(tag)
        if message and message.message_id and message.enqueued and message.message_id != message_id:
            yield f'{tag} is message {message_id}, not {message.message_id}'


@law
def broken_payload(facts):
    """A message comes out as it went in: payload, headers, correlation id, tenant."""
    for several in facts.leases.values():
        for lease in several:
            if lease.tag.startswith('broken: '):
                yield str(lease)


@law
def dedupe_keys(facts):
    """One message for each key; who comes later learns its id."""
    keyed = defaultdict(list)
    freed = {message.message_id for message in facts.messages.values() if message.tag in facts.cancels}
    for message in facts.messages.values():
        # the key of a cancelled message is free again
        if message.key and message.fate == COMMITTED and message.tag not in facts.cancels:
            keyed[message.scope()].append(message)
    for key, several in keyed.items():
        winners = [message.tag for message in several if message.enqueued and message.message_id]
        ids = {message.message_id for message in several if message.message_id} - freed
        if len(winners) > 1:
            yield f'{key[2]}: {", ".join(winners)} were all enqueued'
        if len(ids) > 1:
            yield f'{key[2]}: callers were told {len(ids)} ids'
    for key, count in Counter((row.namespace, row.topic, row.key) for row in facts.rows
                              if row.key and row.tag not in facts.cancels).items():
        if count > 1:
            yield f'{key[2]}: {count} messages'
    yield from refused_for_nothing(facts)


def refused_for_nothing(facts):
    """Who is refused learns the id of a message that has the key."""
    holders = {message.message_id: message for message in facts.messages.values() if message.enqueued and message.message_id}
    holders.update({row.message_id: facts.messages[row.tag] for row in facts.rows
                    if row.tag in facts.messages and facts.messages[row.tag].enqueued})
    for message in facts.messages.values():
        if message.enqueued or message.fate == ABORTED:
            continue
        holder = holders.get(message.message_id)
        if holder is None:
            continue
        if holder.scope() != message.scope():
            yield f'{message.tag} was refused for {holder.tag}, which has the key {holder.scope()}'
        elif any(call.result is True and call.end < message.begin for call in facts.cancels.get(holder.tag, ())):
            yield f'{message.tag} was refused for {holder.tag}, which had been cancelled'


@law
def inbox_once(facts):
    """Each message is received once, and handled."""
    received = defaultdict(list)
    for call, fate, message_id, tag, _, taken in facts.received:
        if fate != ABORTED:
            received[message_id].append((tag, fate, taken))
    rows = {row[1]: row for row in facts.final.get('inbox', ())}
    known = {row[0] for row in facts.final.get('received', ())}
    tags = {}
    for message_id, calls in received.items():
        tag = calls[0][0]
        tags[tag] = message_id
        # process_work_batch does not say whether it took one
        told = Counter(taken for _, fate, taken in calls if fate == COMMITTED)
        doubtful = any(fate == DOUBTFUL for _, fate, _ in calls)
        if told[True] > 1:
            yield f'{tag} was taken {told[True]} times'
        if told[False] and not told[True] and not told[None] and not doubtful:
            yield f'{tag} was refused, but never taken'
        if told and message_id not in known:
            yield f'{tag} is not remembered'
        key = ('_inbox', facts.ids.get(('_inbox', message_id)))
        if (told[True] or told[None]) and message_id not in rows and possible_end(facts, *key) == FOREVER:
            yield f'{tag} is lost'
    ids = defaultdict(set)
    for (store, row_id), several in facts.leases.items():
        if store == '_inbox':
            ids[several[0].tag].add(row_id)
    for tag, some in ids.items():
        if tag not in tags:
            yield f'{tag} was never received'
        if len(some) > 1:
            yield f'{tag} was handed out as {len(some)} messages'


EXPECTED = {
    '57014',    # cancelled
    '55000',    # strict: the lease is lost
}


@law
def unexpected_error(facts):
    """Calls fail only for what was done to them."""
    for call in facts.calls:
        if call.outcome == ERROR and call.result[0] not in EXPECTED:
            if any(text in ' '.join(call.result) for text in facts.expected):
                continue    # so do the faults of this run
            if call.result[0] == '40001' and 'isolation' in call.args:
                continue    # to be tried again
            if call.op == 'maintain' and call.result[0] == '55P03':
                continue    # it met a lock, does not wait for it, and says so
            if call.op in ('commit_prepared', 'rollback_prepared') and call.result[0] in ('42704', '55000'):
                continue
            yield f'{call}: {" ".join(call.result)}'
