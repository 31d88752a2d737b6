"""Edits of a recorded history, each of which a law must notice."""

import laws_leases
import laws_publish
import laws_waits
import record
from facts import ABORTED, COMMITTED, DEAD, DONE
from plan import BOOST, BROKEN_SIZE, IS_NEW, KEEP_INBOX, PURGED, REDRIVEN, TENANTS, marks
from record import Call, OK

EDITS = {}


def edit(law):
    def note(function):
        EDITS[function.__name__] = (law, function)
        return function
    return note


def replace(rows, old, new):
    rows[rows.index(old)] = new


def first(things, what):
    for thing in things:
        return thing
    raise LookupError(f'this history has no {what} to spoil')


def plain_rows(history, facts):
    """Rows of messages that were enqueued and are done, as lists."""
    return [row for row in history.final['messages']
            if row[2] in facts.messages and row[5] == DONE and facts.messages[row[2]].topic.startswith('t')]


def new_call(history, db, op, args, at, result, client='planted'):
    call = Call(client, len(history.calls), db, op, '', args, at, at + 1000, OK, result)
    history.calls.append(call)
    history.calls.sort(key=lambda one: one.begin)


def another_claim(history, lease, attempt, at):
    new_call(history, lease.call.db, 'claim', {'owner': 'f' * 32, 'store': lease.store, 'lease': 2}, at - 500,
             [[lease.id, lease.tag, attempt, at, at + 2000000, lease.message_id]])


@edit('lost')
def a_message_is_gone(history, facts):
    row = first((row for row in plain_rows(history, facts)), 'message')
    history.final['messages'].remove(row)


@edit('from nowhere')
def a_rolled_back_message_is_there(history, facts):
    message = first((m for m in facts.messages.values() if m.fate == ABORTED), 'rolled back message')
    row = list(plain_rows(history, facts)[0])
    row[0], row[2] = 1 << 40, message.tag
    history.final['messages'].append(row)


@edit('from nowhere')
def a_savepoint_is_ignored(history, facts):
    message = first((m for m in facts.messages.values() if '/' in m.tx and m.fate == ABORTED), 'savepoint')
    row = list(plain_rows(history, facts)[0])
    row[0], row[2] = 1 << 40, message.tag
    history.final['messages'].append(row)


@edit('lost')
def half_a_transaction_is_gone(history, facts):
    """Its commit was not answered; one message of it is there, another is not."""
    several = {}
    for message in facts.messages.values():
        if message.tx and '/' not in message.tx and message.fate == COMMITTED and message.topic in ('t0', 't1') and message.enqueued:
            several.setdefault(message.tx, []).append(message.tag)
    tx = first((tx for tx, tags in several.items() if len(tags) > 1), 'transaction of two messages')
    for call in history.calls:
        if call.tx == tx and call.op in ('commit', 'commit_prepared'):
            call.outcome, call.end = record.UNKNOWN, record.FOREVER
    history.final['messages'] = [row for row in history.final['messages'] if row[2] != several[tx][0]]


@edit('doubled')
def a_message_is_there_twice(history, facts):
    row = list(plain_rows(history, facts)[0])
    row[0] = 1 << 40
    history.final['messages'].append(row)


@edit('leases overlap')
def a_lease_is_given_away(history, facts):
    # one that stands, and of which no law can think that it may not
    streams = laws_leases.streams_of(facts).stream_of
    lease, settle = first(((lease, settle) for key, several in facts.leases.items() for lease in several[-1:]
                           for settle in facts.settles.get(key, ())
                           if lease.call.op == 'claim' and settle.op == 'ack' and settle.owner == lease.owner
                           and settle.begin > lease.last + 3000 and lease.certain and key not in facts.requeued
                           and (key[0], lease.tag) not in streams
                           and laws_leases.lasts_until(facts, lease, settle.begin - 1000) > settle.begin), 'lease')
    another_claim(history, lease, lease.attempt + 1, settle.begin - 1000)


@edit('attempts count')
def an_attempt_is_handed_out_twice(history, facts):
    lease = first((several[-1] for several in facts.leases.values() if several[-1].call.op == 'claim'), 'lease')
    another_claim(history, lease, lease.attempt, lease.until + 1000)


@edit('attempts count')
def there_are_too_many_attempts(history, facts):
    lease = first((several[-1] for several in facts.leases.values() if several[-1].call.op == 'claim'), 'lease')
    another_claim(history, lease, 1000, lease.until + 1000)


@edit('stale settle')
def a_stale_ack_counts(history, facts):
    # the new lease is beyond doubt
    old, new = first(((a, b) for key, several in facts.leases.items() for a, b in zip(several, several[1:])
                      if a.owner != b.owner and b.certain and b.attempt > a.attempt and key not in facts.requeued),
                     'message that was claimed twice')
    new_call(history, old.call.db, 'ack', {'owner': old.owner, 'store': old.store, 'ids': [old.id], 'attempts': [old.attempt]},
             new.call.end + 1000, 1)


@edit('handed out after its end')
def a_done_message_comes_again(history, facts):
    lease = first((facts.leases['', row[0]][-1] for row in plain_rows(history, facts) if facts.leases.get(('', row[0]))), 'lease')
    another_claim(history, lease, lease.attempt + 1, lease.until + 60000000)


@edit('ack undone')
def an_ack_is_undone(history, facts):
    sure = first((key[1] for key, settles in facts.settles.items() for settle in settles
                  if not key[0] and settle.op == 'ack' and settle.sure
                  and key[1] in {row[0] for row in plain_rows(history, facts)}), 'ack')
    row = first((row for row in history.final['messages'] if row[0] == sure), 'row')
    replace(history.final['messages'], row, row[:5] + [0] + row[6:])


@edit('stranded')
def a_message_is_left(history, facts):
    row = plain_rows(history, facts)[0]
    replace(history.final['messages'], row, row[:5] + [0] + row[6:])


@edit('ended without cause')
def someone_else_is_said_to_have_done_it(history, facts):
    row = plain_rows(history, facts)[0]
    replace(history.final['messages'], row, row[:8] + ['f' * 32] + row[9:])


@edit('stream order')
def a_stream_is_out_of_order(history, facts):
    streams = laws_leases.streams_of(facts)
    rows = {row[2]: row for row in history.final['messages'] if row[5] == DONE}

    def pairs():
        for (store, _), several in streams.members.items():
            for (_, end, tag), (begin, _, later) in zip(several, several[1:]):
                key, other = facts.ids_by_tag.get(later), facts.ids_by_tag.get(tag)
                if not store and end < begin and tag in rows and key and other:
                    owners = {lease.owner for lease in facts.leases[other]}
                    for lease in facts.leases[key]:
                        if lease.owner not in owners:
                            yield tag, lease

    tag, lease = first(pairs(), 'stream')
    row = rows[tag]
    replace(history.final['messages'], row, row[:9] + [lease.call.end + 1000000] + row[10:])


@edit('stream ends')
def a_stream_ends_out_of_order(history, facts):
    streams = laws_leases.streams_of(facts)
    rows = {row[2]: row for row in history.final['messages'] if row[5] == DONE}

    def pairs():
        for (store, _), several in streams.members.items():
            for (_, end, tag), (begin, _, later) in zip(several, several[1:]):
                key, other = facts.ids_by_tag.get(later), facts.ids_by_tag.get(tag)
                if not store and end < begin and tag in rows and key and other and not {key, other} & facts.requeued:
                    owners = {lease.owner for lease in facts.leases[other]}
                    for settle in facts.settles[key]:
                        if settle.op == 'ack' and settle.sure and not settle.call.tx and settle.owner not in owners:
                            yield tag, settle

    tag, settle = first(pairs(), 'stream')
    row = rows[tag]
    replace(history.final['messages'], row, row[:9] + [settle.end + 1000000] + row[10:])


@edit('dedupe keys')
def a_key_is_taken_twice(history, facts):
    message = first((m for m in facts.messages.values() if m.key and m.fate == COMMITTED and not m.enqueued), 'duplicate')
    call = first((call for call in history.calls for made in call.args.get('messages', ()) if made['tag'] == message.tag), 'call')
    call.result = [['f' * 32, True]]


@edit('join counts')
def a_step_is_not_counted(history, facts):
    cancelled = {call.args['join'] for call in facts.by_op['cancel_join']}
    row = first((row for row in history.final['joins'] if row[3] and row[0] not in cancelled), 'join')
    replace(history.final['joins'], row, row[:3] + [row[3] - 1] + row[4:])


@edit('join counts')
def a_failed_step_counts_as_done(history, facts):
    members = [row[0] for row in history.final['members']]
    row = first((row for row in history.final['joins'] if row[5] == 1 and members.count(row[0]) == row[2]), 'join')
    replace(history.final['joins'], row, row[:3] + [row[3] - 1, row[4] + 1, 2])


@edit('continuations')
def a_continuation_is_missing(history, facts):
    row = first((row for row in history.final['messages'] if row[3] == 'joined'), 'continuation')
    history.final['messages'].remove(row)


@edit('continuations')
def a_continuation_comes_twice(history, facts):
    row = list(first((row for row in history.final['messages'] if row[3] == 'joined'), 'continuation'))
    row[0] = 1 << 40
    history.final['messages'].append(row)


@edit('inbox once')
def a_message_is_received_twice(history, facts):
    call = first((call for call in facts.by_op['receive'] if call.result is False and facts.fate(call) == COMMITTED), 'duplicate')
    first((one for one in history.calls if one.client == call.client and one.number == call.number), 'call').result = True


@edit('timers')
def a_cancelled_timer_comes(history, facts):
    tag = first((call.args['tag'] for call in facts.by_op['cancel_timer'] if call.result is True), 'cancelled timer')
    row = list(first((row for row in history.final['messages'] if row[3] == 'timed'), 'timer'))
    row[0], row[2], row[10] = 1 << 40, tag, record.FOREVER
    history.final['messages'].append(row)


@edit('timers')
def a_timer_does_not_come(history, facts):
    row = first((row for row in history.final['messages'] if row[3] == 'timed'), 'timer')
    history.final['messages'].remove(row)


@edit('runs')
def a_run_does_not_come(history, facts):
    row = first((row for row in history.final['messages'] if row[3] == 'run'), 'run')
    history.final['messages'].remove(row)


@edit('handlers')
def a_handler_writes_twice(history, facts):
    row = first((row for row in history.final['handled']), 'handler')
    replace(history.final['handled'], row, [row[0], 2])


@edit('work with ack')
def work_is_done_twice(history, facts):
    row = first((row for row in history.final['worked']), 'work')
    replace(history.final['worked'], row, [row[0], row[1] + 1])


@edit('out of time')
def a_message_comes_early(history, facts):
    lease = first((several[0] for several in facts.leases.values()
                   if several[0].tag in facts.messages and several[0].call.op == 'claim'), 'lease')
    for call in history.calls:
        for made in call.args.get('messages', ()):
            if made['tag'] == lease.tag:
                made['due_at'] = lease.last + 1000


@edit('not asked for')
def a_claim_returns_another_topic(history, facts):
    call = first((call for call in history.calls if call.op == 'claim' and call.result and not call.args['store']
                  and call.result[0][1] in facts.messages), 'claim')
    call.args['topics'] = ['another']


@edit('not asked for')
def a_claim_returns_too_much(history, facts):
    call = first((call for call in history.calls if call.op == 'claim' and call.result and len(call.result) > 1), 'claim')
    call.args['batch'] = 1


@edit('paused')
def a_paused_topic_is_handed_out(history, facts):
    lease = first((several[0] for several in facts.leases.values()
                   if several[0].tag in facts.messages and several[0].call.op == 'claim'), 'lease')
    message = facts.messages[lease.tag]
    new_call(history, lease.call.db, 'pause', {
        'topic': message.topic, 'namespace': message.namespace, 'kind': 'message'}, lease.call.begin - 2000, None)


@edit('cancelled')
def a_cancelled_message_is_done(history, facts):
    row = plain_rows(history, facts)[0]
    new_call(history, 'sound', 'cancel', {'tag': row[2]}, row[9] - 2000, True)


@edit('retried too early')
def a_retry_does_not_wait(history, facts):
    settle = first((settle for key, settles in facts.settles.items() for settle in settles if settle.op == 'nack' and settle.sure
                    and any(lease.attempt > settle.attempt for lease in facts.leases[key])), 'retry')
    settle.call.args['delay'] = 60000


@edit('broken payload')
def a_payload_is_cut(history, facts):
    call = first((call for call in history.calls if call.op == 'claim' and call.result), 'claim')
    call.result[0][1] = 'broken: p00'


@edit('unexpected error')
def a_call_fails_for_no_reason(history, facts):
    call = first((call for call in history.calls if call.op == 'claim'), 'claim')
    call.outcome, call.result = record.ERROR, ['XX000', 'cannot happen']


@edit('purged')
def more_is_purged_than_is_told(history, facts):
    call = first((call for call in history.calls if call.op == 'purge' and call.result), 'purge')
    call.result -= 1


@edit('kept')
def a_done_message_is_not_seen(history, facts):
    def seen():
        for call in history.calls:
            for row_id in call.args['ids'] if call.op == 'look_for' else ():
                for settle in facts.settles['', row_id]:
                    if (settle.op == 'ack' and settle.sure and settle.call.client == call.client
                            and settle.call.end <= call.begin and call.end < settle.begin + 500000):
                        yield call

    first(seen(), 'look').result = []


@edit('counters')
def an_attempt_is_not_counted(history, facts):
    row = first((row for row in plain_rows(history, facts) if any(
        lease.owner == row[8] for lease in facts.leases.get(('', row[0]), ()))), 'message')
    replace(history.final['messages'], row, row[:6] + [row[6] + 5] + row[7:])


@edit('counters')
def a_retry_is_not_counted(history, facts):
    row = first((row for row in plain_rows(history, facts) if row[12] and ('', row[0]) not in facts.requeued
                 and any(settle.op == 'nack' and settle.sure for settle in facts.settles['', row[0]])), 'retried message')
    replace(history.final['messages'], row, row[:12] + [0] + row[13:])


@edit('swapped')
def two_payloads_are_swapped(history, facts):
    one, other = [row for row in plain_rows(history, facts) if facts.messages[row[2]].message_id][:2]
    replace(history.final['messages'], one, [*one[:2], other[2], *one[3:]])
    replace(history.final['messages'], other, [*other[:2], one[2], *other[3:]])


@edit('swapped')
def a_correlation_id_is_lost(history, facts):
    row = first((row for row in plain_rows(history, facts) if row[14]), 'correlation id')
    replace(history.final['messages'], row, row[:14] + [None] + row[15:])


@edit('lease ends')
def a_lease_is_longer_than_was_asked_for(history, facts):
    call = first((call for call in history.calls if call.op == 'look_at_leases' and call.result
                  and any(lease.owner == call.result[0][1] for lease in facts.leases.get(('', call.result[0][0]), ()))), 'look')
    call.result[0][2] += 3600000000


@edit('not asked for')
def a_claim_returns_what_is_of_another_tenant(history, facts):
    call, tag = first(((call, call.result[0][1]) for call in history.calls
                       if call.op == 'claim' and call.result and not call.args['store']
                       and call.result[0][1] in facts.messages and marks(call.result[0][1])[2]), 'message of a tenant')
    call.args['tenant'] = first((tenant for tenant in TENANTS if tenant != marks(tag)[2]), 'tenant')


def pause_what_is_handed_out(history, facts, store, topic, kind):
    lease = first((several[0] for key, several in facts.leases.items() if key[0] == store), kind)
    new_call(history, lease.call.db, 'pause', {'topic': topic, 'namespace': 'default', 'kind': kind},
             lease.call.begin - 2000, None)


@edit('paused')
def a_paused_timer_is_handed_out(history, facts):
    pause_what_is_handed_out(history, facts, '_timers', 'timed', 'timer')


@edit('cancelled')
def a_discarded_message_is_done(history, facts):
    row = plain_rows(history, facts)[0]
    new_call(history, 'sound', 'discard', {'ids': [row[0]]}, row[9] - 2000, 1)


@edit('timers')
def a_timer_is_handled_and_dispatched(history, facts):
    row = first((row for row in history.final['messages'] if row[3] == 'timed'), 'timer')
    timer = first((timer for timer in history.final['timers'] if timer[2] == row[2]), 'timer')
    owner = 'f' * 32
    new_call(history, 'sound', 'claim', {'owner': owner, 'store': '_timers', 'lease': 2}, row[9] - 3000,
             [[timer[0], row[2], 1, row[9] - 3000, row[9] + 2000000, timer[1]]])
    new_call(history, 'sound', 'ack', {'owner': owner, 'store': '_timers', 'ids': [timer[0]], 'attempts': [1]}, row[9] - 1000, 1)
    replace(history.final['timers'], timer, timer[:6] + [owner])


@edit('receptors')
def a_report_of_a_receptor_counts_twice(history, facts):
    row = first((row for row in history.final['receptors']), 'receptor')
    replace(history.final['receptors'], row, row[:3] + [row[3] + 1] + row[4:])


@edit('receptors')
def a_receptor_that_is_done_starts_again(history, facts):
    first((call for call in history.calls if call.op == 'start_receptor' and call.result is False), 'start').result = True


@edit('perspectives')
def a_checkpoint_goes_back(history, facts):
    row = first((row for row in history.final['perspectives'] if row[2] and row[1] != 'of all'), 'checkpoint')
    replace(history.final['perspectives'], row, row[:2] + [None] + row[3:])


def put_off(history, facts):
    """Have a message lie ready for ten seconds; the message, and since when."""
    busy = laws_waits.Busy([*laws_waits.faults_of(facts), *laws_waits.claims_unknown(facts)])
    lease, message = first(((several[0], message) for (store, row_id), several in facts.leases.items()
                            for message in [facts.messages.get(several[0].tag)]
                            if not store and several[0].call.op == 'claim' and several[0].attempt == 1
                            and len(several) == 1 and message and message.fate == COMMITTED and not message.stream
                            and message.topic == 't0' and not message.due_at and message.committed < record.FOREVER
                            and not busy.overlaps(message.committed, message.committed + 2500000)
                            and row_id not in facts.rescheduled and ('', row_id) not in facts.requeued
                            and message.tag not in facts.cancels), 'lease')
    lease.call.result.remove(first((entry for entry in lease.call.result if entry[0] == lease.id), 'entry'))
    another_claim(history, lease, 1, message.committed + 10000000)
    history.calls = [call for call in history.calls if call.op not in ('pause', 'resume', *laws_waits.OPERATORS)]
    return message


@edit('woken')
def a_claim_sleeps_on(history, facts):
    message = put_off(history, facts)
    call = first((call for call in history.calls if call.op == 'claim'), 'claim')
    history.calls.append(Call('planted', 0, call.db, 'claim', '', {
        'owner': 'e' * 32, 'store': '', 'lease': 2, 'batch': 1, 'wait': 4000, 'topics': ['t0']},
        message.committed - 500000, message.committed + 3500000, OK, []))


@edit('due first')
def the_last_comes_first(history, facts):
    put_off(history, facts)


@edit('order in a batch')
def a_stream_is_handed_out_backwards(history, facts):
    def runs():
        for call in history.calls:
            if call.op == 'claim' and not call.args['store'] and call.outcome == OK:
                several = [facts.messages.get(entry[1]) for entry in call.result or ()]
                for one, other in zip(several, several[1:]):
                    if (one and other and one.stream and one.stream == other.stream and one.end < other.begin
                            and one.fate == other.fate == COMMITTED):
                        yield call

    first(runs(), 'batch of a stream').result.reverse()


@edit('published')
def a_delivery_is_gone(history, facts):
    row = first((row for row in history.final['deliveries'] if row[0] == 'all'), 'delivery')
    history.final['deliveries'].remove(row)


@edit('published')
def a_delivery_is_there_twice(history, facts):
    row = first((row for row in history.final['deliveries'] if row[0] == 'all'), 'delivery')
    history.final['deliveries'].append(['all', 'another', *row[2:]])


@edit('published')
def a_delivery_comes_to_another(history, facts):
    row = first((row for row in history.final['deliveries'] if row[0] == 'wide0'), 'delivery')
    replace(history.final['deliveries'], row, ['some', *row[1:]])


@edit('stream order')
def a_delivery_comes_before_its_turn(history, facts):
    streams = laws_leases.streams_of(facts)

    def pairs():
        for (store, _), several in streams.members.items():
            for (_, end, tag), (begin, _, later) in zip(several, several[1:]):
                key, other = facts.key_of(store, later), facts.key_of(store, tag)
                if store.startswith('@') and end < begin and key and other:
                    owners = {lease.owner for lease in facts.leases[other]}
                    for lease in facts.leases[key]:
                        if lease.owner not in owners:
                            yield other[1], lease

    row_id, lease = first(pairs(), 'stream of deliveries that two have')
    # it is not known to have ended before
    history.calls = [call for call in history.calls if call.begin > lease.call.end or row_id not in call.args.get('ids', ())]


@edit('partitions')
def a_partition_has_two_instances(history, facts):
    def pairs():
        for call, partition, others in laws_publish.taken_beside(facts):
            owner = call.args['owner']
            if call.begin not in facts.signs_of_life[owner]:
                continue
            for other in facts.by_op['work_batch']:
                if (other.args['owner'] in others and other.begin > call.end and other.end < call.begin + laws_publish.SURELY
                        and other.outcome == OK and 'isolation' not in other.args
                        and min(facts.given_back.get(owner, [record.FOREVER])) > other.end):
                    yield call, partition, other

    call, partition, other = first(pairs(), 'two instances beside each other')
    other.result = [*(other.result or ()), next(entry for entry in call.result if entry[2] == partition)]


@edit('urgent first')
def what_is_urgent_comes_last(history, facts):
    def can(entry):
        message = facts.messages.get(entry[1])
        return (message and entry[2] == 1 and not message.stream and entry[0] not in facts.rescheduled
                and ('', entry[0]) not in facts.requeued and not message.due_at)

    def recorded(tag):
        return next(made for call in history.calls for made in call.args.get('messages', ()) if made['tag'] == tag)

    busy, undone = laws_waits.busy_with_order(facts)
    for call in facts.by_op['claim']:
        if (call.outcome != OK or call.args['store'] or call.tx or 'isolation' in call.args or 'wait' not in call.args
                or busy.overlaps(call.begin, call.end)):
            continue
        ready = [facts.messages[entry[1]] for entry in call.result or ()
                 if can(entry) and entry[0] not in undone and facts.messages[entry[1]].committed <= call.begin]
        for i, last in enumerate(ready):
            # as the most urgent class it would surely have come first
            urgent = last.end - 2 * BOOST + laws_waits.SLACK
            if any(urgent < other.begin - other.boost() for other in ready[:i]):
                recorded(last.tag)['priority'] = 2
                return
    raise LookupError('this history has no claim of two messages to spoil')


@edit('stream turns')
def a_stream_has_two_at_once(history, facts):
    def pairs():
        for (store, _), several in laws_leases.streams_of(facts).members.items():
            for (_, end, tag), (begin, _, later) in zip(several, several[1:]):
                one, other = facts.messages.get(tag), facts.messages.get(later)
                if not store and end < begin and one.tx in facts.commit_begins and one.tx != other.tx and other.committed < record.FOREVER:
                    yield one.tx, other

    tx, other = first(pairs(), 'transaction in a stream')
    for call in history.calls:
        if call.tx == tx and call.op in ('commit', 'commit_prepared'):
            call.begin, call.end = other.committed + 1000, other.committed + 2000


@edit('stale settle')
def a_strict_call_is_lax(history, facts):
    call = first((call for call in facts.by_op['ack'] if call.args.get('strict') and call.outcome == OK and not call.tx), 'strict ack')
    call.result -= 1


@edit('flags')
def a_message_is_said_to_be_new(history, facts):
    call = first((call for call in history.calls if call.op == 'work_batch' and call.outcome == OK
                  and any(entry[0] == 'outbox' and entry[1][1] in facts.messages for entry in call.result or ())), 'message of an instance')
    entry = first((entry for entry in call.result if entry[0] == 'outbox' and entry[1][1] in facts.messages), 'message')
    entry[3] ^= IS_NEW


@edit('swapped')
def a_message_loses_its_stream(history, facts):
    row = first((row for row in plain_rows(history, facts) if row[16]), 'message of a stream')
    replace(history.final['messages'], row, row[:16] + [None] + row[17:])


@edit('swapped')
def a_message_loses_its_key(history, facts):
    row = first((row for row in plain_rows(history, facts) if row[11]), 'message with a key')
    replace(history.final['messages'], row, row[:11] + [None] + row[12:])


@edit('dedupe keys')
def a_key_of_another_topic_is_refused(history, facts):
    call, number = first(((call, number) for call in facts.by_op['try_enqueue'] for number, made in enumerate(call.args['messages'])
                          if made.get('key') and call.outcome == OK and facts.fate(call) == COMMITTED
                          and call.result[number][1] is False), 'duplicate')
    other = first((m for m in facts.messages.values() if m.enqueued and m.message_id and m.fate == COMMITTED
                   and m.scope() != facts.messages[call.args['messages'][number]['tag']].scope()), 'message')
    call.result[number][0] = other.message_id


@edit('dedupe keys')
def a_key_is_not_freed(history, facts):
    message = first((m for m in facts.messages.values() if m.key and m.fate == COMMITTED and not m.enqueued
                     and any(m.message_id == other.message_id and other.end < m.begin for other in facts.messages.values()
                             if other.enqueued)), 'duplicate')
    holder = first((m for m in facts.messages.values() if m.enqueued and m.message_id == message.message_id), 'message')
    new_call(history, 'sound', 'cancel', {'tag': holder.tag}, message.begin - 2000, True)


@edit('counters')
def an_error_is_not_noted(history, facts):
    row = first((row for row in plain_rows(history, facts) if row[12] and ('', row[0]) not in facts.requeued), 'retried message')
    replace(history.final['messages'], row, row[:18] + [None] + row[19:])


@edit('ended without cause')
def what_failed_has_another_reason(history, facts):
    row = first((row for row in history.final['messages'] if row[5] == DEAD and row[7] == 4), 'failed message')
    replace(history.final['messages'], row, row[:7] + [99] + row[8:])


@edit('purged')
def what_is_ready_is_purged_as_dead(history, facts):
    there = {row[2] for row in history.final['messages']}
    tag = first((m.tag for m in facts.messages.values() if m.topic == PURGED and m.namespace == 'default' and m.fate == COMMITTED
                 and m.tag not in there and m.tag not in facts.ids_by_tag), 'message that was purged before it was handed out')
    first((made for call in history.calls for made in call.args.get('messages', ()) if made['tag'] == tag), 'call')['namespace'] = 'other'


@edit('handed out after its end')
def what_failed_comes_back_by_itself(history, facts):
    def back():
        for key in facts.requeued:
            message = facts.messages.get(facts.leases[key][0].tag) if facts.leases.get(key) and not key[0] else None
            for settle in facts.settles.get(key, ()):
                if message and message.topic == REDRIVEN and settle.op == 'fail' and settle.sure and any(lease.first > settle.end for lease in facts.leases[key]):
                    yield message

    first(back(), 'message that was redriven')
    for call in history.calls:
        if call.op == 'redrive':
            call.args['namespace'] = 'nowhere'


@edit('attempts count')
def a_nack_in_the_last_attempt_is_tried_again(history, facts):
    statuses = {row[0]: row[5] for row in history.final['messages']}
    settle = first((settle for key, settles in facts.settles.items() for settle in settles
                    if settle.op == 'nack' and settle.sure and settle.attempt and statuses.get(key[1]) == DONE and not key[0]
                    and key not in facts.requeued and laws_leases.all_count(facts, key, facts.leases[key][0].tag, settle.attempt)), 'retry')
    settle.call.args['max'] = 1


@edit('paused')
def a_paused_subscription_is_handed_out(history, facts):
    pause_what_is_handed_out(history, facts, '@all', 'all', 'subscription')


@edit('lease ends')
def a_renewal_is_not_done(history, facts):
    def looks():
        for look in facts.by_op['look_at_leases']:
            for entry in look.result or () if look.outcome == OK else ():
                if not list(laws_leases.renewed_before(facts, look, *entry[:3])) and list(
                        laws_leases.renewed_before(facts, look, *entry[:2], 0)):
                    yield facts.leases['', entry[0]][-1], entry

    lease, entry = first(looks(), 'look at what was renewed')
    entry[2] = lease.call.begin + lease.call.args['lease'] * 1000000


@edit('lease ends')
def a_lease_outlives_its_owner(history, facts):
    call = first((call for call in facts.by_op['look_for_leases'] if call.outcome == OK), 'look for leases')
    call.result = [1]


@edit('kept')
def what_is_to_be_kept_is_gone(history, facts):
    def found():
        for row in history.final['inbox']:
            ends = [settle for settle in facts.settles.get(('_inbox', row[0]), ()) if settle.op in ('ack', 'fail', 'nack')]
            if ends and all(settle.call.args.get('flags') == KEEP_INBOX and settle.call.outcome == OK for settle in ends):
                yield row

    row = first(found(), 'message of the inbox that was to be kept')
    history.final['inbox'].remove(row)


@edit('join counts')
def a_cancelled_join_goes_on(history, facts):
    join = first((call.args['join'] for call in facts.by_op['cancel_join'] if call.result is True), 'cancelled join')
    row = first((row for row in history.final['joins'] if row[0] == join), 'join')
    replace(history.final['joins'], row, row[:5] + [2])


@edit('continuations')
def a_continuation_has_anothers_payload(history, facts):
    row = first((row for row in history.final['messages'] if row[3] == 'joined'), 'continuation')
    replace(history.final['messages'], row, row[:19] + [str(BROKEN_SIZE)])


@edit('not asked for')
def too_many_are_redriven(history, facts):
    first((call for call in facts.by_op['redrive'] if call.outcome == OK), 'redrive').result = 6


@edit('published')
def a_replay_goes_beyond_its_end(history, facts):
    call = first((call for call in facts.by_op['replay'] if call.outcome == OK and call.result), 'replay')
    call.args['until'] = 1


@edit('leases overlap')
def a_leased_message_expires(history, facts):
    streams = laws_leases.streams_of(facts).stream_of
    row, settle = first(((row, settle) for row in plain_rows(history, facts) for lease in facts.leases.get(('', row[0]), ())[-1:]
                         for settle in facts.settles.get(('', row[0]), ())
                         if settle.op == 'ack' and settle.owner == lease.owner and lease.call.op == 'claim' and lease.certain
                         and settle.begin > lease.last + 3000
                         and not laws_leases.is_given_back(facts, lease, settle.begin - 1000, settle.begin - 1000 + laws_leases.LONG_CALL)
                         and ('', row[0]) not in facts.requeued and ('', lease.tag) not in streams
                         and laws_leases.lasts_until(facts, lease, settle.begin - 1000) > settle.begin), 'lease')
    replace(history.final['messages'], row, row[:5] + [DEAD, row[6], 6, None, settle.begin - 1000] + row[10:])
