#!/usr/bin/python3
"""Is the checker blind? Defects are planted, and each must be reported as what it is.

    plant.py bindir=... folder=... [seed=N]

EDITS change a recorded history. SABOTAGE breaks the extension on a running
server by SQL, each in a database of its own, while clients are at work; in one
more database nothing is broken, and nothing may be reported.
"""

import copy
import sys
import time

import psycopg2

import check
import record
from crew import spawn
from facts import ABORTED, COMMITTED, DONE, Facts
from plan import Plan
from record import Call, OK
from report import Report
from run import Run, parse

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
    lease, settle = first(((lease, settle) for key, several in facts.leases.items() for lease in several[-1:]
                           for settle in facts.settles.get(key, ())
                           if lease.call.op == 'claim' and settle.op == 'ack' and settle.owner == lease.owner
                           and settle.begin > lease.first + 3000), 'lease')
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
    old, new = first(((a, b) for several in facts.leases.values() for a, b in zip(several, several[1:])
                      if a.owner != b.owner), 'message that was claimed twice')
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
    streams = check.streams_of(facts)
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
    new_call(history, lease.call.db, 'pause', {'topic': message.topic, 'namespace': message.namespace}, lease.call.begin - 2000, None)


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


# law, and a statement that is repeated as long as there is load
SABOTAGE = {
    'loses_messages': ('lost', """
        DELETE FROM outbox.queue WHERE id IN (
            SELECT id FROM outbox.queue WHERE status = 0 AND topic LIKE 't_' LIMIT 1 FOR UPDATE SKIP LOCKED)"""),
    'invents_messages': ('from nowhere', "SELECT outbox.enqueue('t0', 'ghost|0|'::text)"),
    'doubles_messages': ('doubled', """
        SELECT outbox.enqueue(topic, payload) FROM outbox.queue WHERE topic LIKE 't_' LIMIT 1"""),
    'takes_leases_away': ('leases overlap', """
        UPDATE outbox.queue SET status = 0, owner_token = NULL, locked_until = NULL WHERE id IN (
            SELECT id FROM outbox.queue WHERE status = 1 AND locked_until > clock_timestamp() + '500 ms'
             LIMIT 20 FOR UPDATE SKIP LOCKED)"""),
    'forgets_attempts': ('attempts count', """
        UPDATE outbox.queue SET attempts = 0, waived = 0 WHERE id IN (
            SELECT id FROM outbox.queue WHERE attempts > 0 LIMIT 20 FOR UPDATE SKIP LOCKED)"""),
    'brings_done_back': ('handed out after its end', """
        WITH gone AS (DELETE FROM outbox.archive WHERE id IN (
            SELECT id FROM outbox.archive WHERE topic LIKE 't_' ORDER BY random() LIMIT 1) RETURNING *)
        INSERT INTO outbox.queue (id, message_id, namespace, topic, payload, attempts, next_attempt_at, created_at, updated_at)
        SELECT id, message_id, namespace, topic, payload, attempts, clock_timestamp(), created_at, clock_timestamp() FROM gone"""),
    'forgets_who_did_it': ('ended without cause', """
        UPDATE outbox.archive SET processed_by = gen_random_uuid() WHERE id IN (
            SELECT id FROM outbox.archive WHERE topic LIKE 't_' LIMIT 1)"""),
    'parks_messages': ('stranded', """
        UPDATE outbox.queue SET next_attempt_at = 'infinity' WHERE id IN (
            SELECT id FROM outbox.queue WHERE status = 0 AND topic LIKE 't_' LIMIT 1 FOR UPDATE SKIP LOCKED)"""),
    'forgets_streams': ('stream order', """
        UPDATE outbox.queue SET stream_id = NULL, stream_seq = NULL WHERE id IN (
            SELECT id FROM outbox.queue WHERE status = 0 AND stream_id IS NOT NULL
             ORDER BY stream_seq DESC LIMIT 20 FOR UPDATE SKIP LOCKED)"""),
    'forgets_keys': ('dedupe keys', 'DELETE FROM outbox.dedupe'),
    'counts_wrongly': ('join counts', """
        UPDATE outbox.joins SET completed_steps = completed_steps - 1, failed_steps = failed_steps + 1, status = 2
         WHERE status = 1"""),
    'continues_twice': ('continuations', """
        SELECT outbox.enqueue(topic, payload) FROM outbox.messages WHERE topic = 'joined' LIMIT 1"""),
    'forgets_what_was_received': ('inbox once', 'DELETE FROM outbox.message_deduplication'),
    'doubles_timers': ('timers', """
        SELECT outbox.enqueue(topic, payload) FROM outbox.messages WHERE topic = 'timed' LIMIT 1"""),
    'doubles_runs': ('runs', """
        SELECT outbox.enqueue(topic, payload) FROM outbox.messages WHERE topic = 'run' LIMIT 1"""),
    'handles_twice': ('handlers', """
        INSERT INTO app.handled SELECT * FROM app.handled LIMIT 1"""),
    'works_twice': ('work with ack', """
        INSERT INTO app.worked SELECT * FROM app.worked LIMIT 1"""),
    'comes_early': ('out of time', """
        UPDATE outbox.queue SET next_attempt_at = clock_timestamp() WHERE id IN (
            SELECT id FROM outbox.queue WHERE status = 0 AND due_time > clock_timestamp() + '300 ms'
             LIMIT 5 FOR UPDATE SKIP LOCKED)"""),
    'retries_at_once': ('retried too early', """
        DO $do$ BEGIN
            IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'zz_at_once') THEN
                CREATE FUNCTION app.at_once() RETURNS trigger LANGUAGE plpgsql AS
                    'BEGIN NEW.next_attempt_at := clock_timestamp(); RETURN NEW; END';
                CREATE TRIGGER zz_at_once BEFORE UPDATE ON outbox.queue FOR EACH ROW
                    WHEN (NEW.retry_count > OLD.retry_count) EXECUTE FUNCTION app.at_once();
            END IF;
        END $do$"""),
    'cuts_payloads': ('broken payload', """
        UPDATE outbox.queue SET payload = 'nothing' WHERE id IN (
            SELECT id FROM outbox.queue WHERE status = 0 AND topic LIKE 't_' LIMIT 1 FOR UPDATE SKIP LOCKED)"""),
}


def try_seeds(report):
    """The same seed makes the same plan, and another seed another."""
    def planned(seed):
        plan = Plan(seed, 'db', 'p00', 1000, 40, 0)
        return [(step.kind, step.end, plan.messages(step)) for step in map(plan.step, range(200))]

    report.say(planned('1') == planned('1'), 'the same seed makes the same plan')
    report.say(planned('1') != planned('2'), 'another seed makes another plan')


def try_edits(history, report):
    for name, (law, function) in EDITS.items():
        spoilt = copy.deepcopy(history)
        try:
            function(spoilt, Facts(spoilt))
            found = check.check(spoilt).laws()
        except LookupError as error:
            found = {str(error)}
        report.say(law in found, f'planted in the history: {name.replace("_", " ")}: {law}'
                   + ('' if law in found else f', reported: {sorted(found)}'))


class Sabotaged(Run):
    FEW = MANY = {'p': 1, 'w': 2, 'x': 1, 'i': 1}

    def __init__(self, options):
        super().__init__(options)
        self.databases = ['sound', *SABOTAGE]

    def load(self):
        saboteurs = [spawn(lambda db=db: self.sabotage(db)) for db in SABOTAGE]
        try:
            return super().load()
        finally:
            for pid in saboteurs:
                self.server.signal(pid, 9)

    def sabotage(self, db):
        connection = self.server.connect(db)
        with connection.cursor() as cursor:
            # the extension must not be asked for more than it is made for
            cursor.execute("SET lock_timeout = '1s'")
            while True:
                try:
                    cursor.execute(SABOTAGE[db][1])
                except psycopg2.OperationalError:
                    if connection.closed:
                        return
                time.sleep(0.02)


def try_sabotage(options, report):
    # longer than the longest lease that somebody may have left behind
    run = Sabotaged({**options, 'patience': 14, 'streams': 3, 'keys': 5, 'lead': 6})
    run.set_up()
    run.load()
    run.drain()
    run.server.stop('fast')
    histories = record.read(run.histories)
    for db in run.databases:
        checked = check.check(histories[db])
        law = SABOTAGE[db][0] if db in SABOTAGE else None
        found = checked.laws()
        good = law in found if law else not found
        report.say(good, f'{db.replace("_", " ")}: {law or "nothing"}, of {sorted(found)}')
        if not good:
            print(f'# {checked.summary()}', *checked.anomalies[:5], sep='\n# ')
    return histories['sound']


def main():
    options = parse(sys.argv[1:])
    options.update(crashes=0, restarts=0, kills=0, nuisances=0)
    print(f'# seed={options["seed"]}', flush=True)
    report = Report()
    sound = try_sabotage(options, report)
    try_edits(sound, report)
    try_seeds(report)
    return 1 if report.failed else 0


if __name__ == '__main__':
    sys.exit(main())
