#!/usr/bin/python3
"""Is the checker blind? Defects are planted, and each must be reported as what it is.

    plant.py bindir=... folder=... [seed=N]

edits.py changes a recorded history. SABOTAGE breaks the extension on a running
server by SQL, each in a database of its own, while clients are at work; in one
more database nothing is broken, and nothing may be reported.
"""

import copy
import pickle
import sys
import time

import psycopg2

import check
import clock
import drop
import judge
import record
from crew import spawn
from edits import EDITS
from facts import Facts
from plan import SHORT, TENANTS, Plan
from record import OK, Call
from report import Report
from run import Run, parse

# laws, and statements that are repeated as long as there is load
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
            SELECT id FROM outbox.queue q WHERE status = 0 AND EXISTS (
                SELECT FROM outbox.queue b WHERE b.stream_id = q.stream_id AND b.stream_seq < q.stream_seq)
             FOR UPDATE SKIP LOCKED)"""),
    'forgets_keys': ('dedupe keys', 'DELETE FROM outbox.dedupe'),
    'counts_wrongly': ('join counts', """
        UPDATE outbox.joins SET completed_steps = completed_steps - 1, failed_steps = failed_steps + 1, status = 2
         WHERE status = 1"""),
    'loses_deliveries': ('published', """
        DELETE FROM outbox.queue WHERE id IN (
            SELECT id FROM outbox.queue WHERE status = 0 AND subscriber IS NOT NULL LIMIT 1 FOR UPDATE SKIP LOCKED)"""),
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
    'forgets_fields': ('broken payload', """
        UPDATE outbox.queue SET correlation_id = NULL, headers = NULL WHERE id IN (
            SELECT id FROM outbox.queue WHERE status = 0 AND retry_count > 0 AND headers IS NOT NULL
             LIMIT 5 FOR UPDATE SKIP LOCKED)"""),
    'swaps_payloads': ('swapped', """
        UPDATE outbox.queue q SET payload = o.payload, headers = o.headers, correlation_id = o.correlation_id, tenant_id = o.tenant_id
          FROM (SELECT id, payload, headers, correlation_id, tenant_id,
                       coalesce(lead(id) OVER (ORDER BY id), first_value(id) OVER (ORDER BY id)) AS other
                  FROM (SELECT * FROM outbox.queue WHERE status = 0 AND topic LIKE 't_' LIMIT 2 FOR UPDATE SKIP LOCKED) two) o
         WHERE q.id = o.other"""),
    'mixes_tenants': ('broken payload', f"""
        UPDATE outbox.queue SET tenant_id = '{TENANTS[0]}' WHERE id IN (
            SELECT id FROM outbox.queue WHERE status = 0 AND tenant_id IN ('{TENANTS[1]}', '{TENANTS[2]}')
             LIMIT 20 FOR UPDATE SKIP LOCKED)"""),
    'meddles_with_history': (('counters', 'kept', 'purged'), """
        UPDATE outbox.archive SET retry_count = retry_count + 1 WHERE id IN (
            SELECT id FROM outbox.archive WHERE topic LIKE 't_' ORDER BY random() LIMIT 1);;
        DELETE FROM outbox.archive WHERE topic = 'short';;
        DELETE FROM outbox.archive WHERE topic = 'purged'"""),
    'meddles_with_events': (('receptors', 'perspectives', 'timers', 'runs'), """
        UPDATE outbox.receptor_processing SET attempts = attempts + 1 WHERE receptor_name <> 'of all';;
        UPDATE outbox.perspective_checkpoints SET last_message_id = gen_random_uuid();;
        DELETE FROM outbox.timer_queue WHERE id IN (
            SELECT id FROM outbox.timer_queue WHERE status = 0 LIMIT 1 FOR UPDATE SKIP LOCKED);;
        DELETE FROM outbox.run_queue WHERE id IN (
            SELECT id FROM outbox.run_queue WHERE status = 0 LIMIT 1 FOR UPDATE SKIP LOCKED)"""),
    'meddles_with_operators': (('lease ends', 'paused', 'cancelled'), """
        UPDATE outbox.queue SET locked_until = locked_until + '3 s' WHERE id IN (
            SELECT id FROM outbox.queue WHERE status = 1 LIMIT 5 FOR UPDATE SKIP LOCKED);;
        UPDATE outbox.topics SET paused = false WHERE paused;;
        WITH gone AS (DELETE FROM outbox.dead WHERE failure_reason = 9 RETURNING *)
        INSERT INTO outbox.queue (id, message_id, namespace, topic, payload, attempts, next_attempt_at, created_at, updated_at)
        SELECT id, message_id, namespace, topic, payload, attempts, clock_timestamp(), created_at, clock_timestamp() FROM gone"""),
    'disorders': (('due first', 'order in a batch'), """
        UPDATE outbox.queue SET next_attempt_at = clock_timestamp() + '2500 ms' WHERE id IN (
            SELECT id FROM outbox.queue WHERE status = 0 AND attempts = 0 AND stream_id IS NULL
               AND next_attempt_at < created_at + '200 ms' LIMIT 1 FOR UPDATE SKIP LOCKED);;
        UPDATE outbox.queue q SET stream_seq = o.stream_seq
          FROM (SELECT stream_seq, CASE n WHEN 1 THEN last_value(id) OVER w ELSE first_value(id) OVER w END AS other
                  FROM (SELECT *, row_number() OVER (ORDER BY stream_seq) AS n
                          FROM (SELECT * FROM outbox.queue a WHERE stream_id IS NOT NULL AND published_id IS NULL
                                   AND EXISTS (SELECT FROM outbox.queue b WHERE b.stream_id = a.stream_id AND b.id <> a.id)
                                 ORDER BY stream_id, stream_seq LIMIT 2 FOR UPDATE SKIP LOCKED) two) n
                WINDOW w AS (ORDER BY stream_seq ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)) o
         WHERE q.id = o.other"""),
    'wakes_late': ('woken', """
        DO $do$ BEGIN
            IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'zz_late') THEN
                CREATE FUNCTION app.late() RETURNS trigger LANGUAGE plpgsql AS
                    'BEGIN NEW.next_attempt_at := greatest(NEW.due_time, clock_timestamp()) + interval ''3 s''; RETURN NEW; END';
                CREATE TRIGGER zz_late BEFORE INSERT ON outbox.queue FOR EACH ROW EXECUTE FUNCTION app.late();
            END IF;
        END $do$"""),
}


def try_seeds(report):
    """The same seed makes the same plan, and another seed another."""
    def planned(seed):
        plan = Plan(seed, 'db', 'p00', 40, 250)
        return [(step.kind, step.end, plan.messages(step)) for step in map(plan.step, range(200))]

    report.say(planned('1') == planned('1'), 'the same seed makes the same plan')
    report.say(planned('1') != planned('2'), 'another seed makes another plan')


def try_edits(history, options, report):
    """A history may lack what an edit needs, as a slow machine's does; then others are made."""
    remaining = list(EDITS)
    for attempt in range(TRIES):
        if attempt:
            history = sabotage_once(tried_again(options, f'sound{attempt}'), [])['sound']
        whole = pickle.dumps(history)
        lacking = []
        for name in remaining:
            law, function = EDITS[name]
            spoilt = pickle.loads(whole)
            try:
                function(spoilt, Facts(spoilt))
                found = check.check(spoilt, {law}).laws()
            except LookupError as error:
                if attempt < TRIES - 1:
                    lacking.append(name)
                    continue
                found = {str(error)}
            report.say(law in found, f'planted in the history: {name.replace("_", " ")}: {law}'
                       + ('' if law in found else f', {sorted(found)}'))
        remaining = lacking
        if not remaining:
            break
        print(f'# the history does not serve for: {", ".join(remaining)}', flush=True)


def try_ordeals(history, report):
    """What the faults of the whole server leave to the checker: copies, eras, clocks."""
    def lose_message(final):
        final['messages'].remove(next(row for row in final['messages'] if row[3] != SHORT))

    def copied(spoil):
        copy_of = copy.deepcopy(history)
        copy_of.dumped = copy.deepcopy(copy_of.final)
        spoil(copy_of.final)
        return bool(check.check(copy_of, {'restored'}).anomalies)

    report.say(not copied(lambda final: None), 'a copy that is as the dump is reported as nothing')
    report.say(copied(lose_message), 'planted in a copy: a message is gone: restored')
    report.say(copied(lambda final: final['joins'].pop()), 'planted in a copy: a join is gone: restored')
    report.say(copied(lambda final: final['messages'].append(final['messages'][0])), 'planted in a copy: a message is there twice: restored')

    report.say(copied(lambda final: final['timers'].pop()), 'planted in a copy: a timer is gone: restored')
    report.say(copied(lambda final: final['receptors'].pop()), 'planted in a copy: a receptor is forgotten: restored')

    # all that there was was dropped in the end, and is not what a second era begins with
    divided = copy.deepcopy(history)
    end = max(call.begin for call in divided.calls) + 1
    divided.calls.append(Call('planted', 0, 'sound', 'drop', '', {}, end, end + 1, OK, copy.deepcopy(history.final)))
    eras = drop.eras(divided)
    report.say(len(eras) == 2 and len(eras[0].calls) + 1 == len(divided.calls), 'a drop divides a history')
    report.say(not check.check(eras[0], judge.laws_of(eras[0])).anomalies, 'its first era is sound')
    report.say('from nowhere' in check.check(eras[1], judge.laws_of(eras[1])).laws(),
               'planted in its second era: messages of the first: from nowhere')
    # a client that goes on over a drop looks for an id that another message is given
    late = copy.deepcopy(history)
    looks = [call for call in late.calls if call.op == 'look_for' and call.outcome == OK]
    for call in looks:
        call.begin, call.end, call.result = 0, 1, []
    late.calls.sort(key=lambda call: call.begin)
    report.say(looks and not check.check(late, {'kept'}).anomalies, 'who looks before a message is done need not see it')
    lose_message(eras[0].final)
    report.say(bool(check.check(eras[0], judge.laws_of(eras[0])).anomalies), 'planted in its first era: a message is gone')

    # 100 s, a day back at 50 s, and right again at 70 s
    moves = clock.Moves([[0, 0], [50, -86400], [70, 0]])
    clock.SLACK, slack = 0, clock.SLACK
    report.say([moves.first(60, 40), moves.first(60 - 86400, 55), moves.first(65 - 86400, 20), moves.first(75, 40)] == [70, 60, 20, 75]
               and [moves.event(30), moves.event(60 - 86400), moves.event(80)] == [30, 60, 80]
               and moves.later(45, 46, 10) == 70 and moves.later(45, 55, 10) == 60
               and [moves.can_end(45, 55, 10, stamp) for stamp in (54, 60, 60 - 86400, 66 - 86400)] == [False, True, True, False],
               'a deadline comes when the clock first shows it')
    clock.SLACK = slack


TRIES = 3                   # of a sabotage, and of an edit


class Sabotaged(Run):
    FEW = {'p': 1, 'w': 2, 'x': 1, 'i': 1}
    # what a sabotage needs besides
    MORE = {'meddles_with_events': {'t': 1, 'r': 1}, 'meddles_with_operators': {'s': 1}, 'meddles_with_history': {'s': 1}}

    def __init__(self, options, names):
        super().__init__(options)
        self.names = names
        self.databases = ['sound', *names]
        self.quiet = {'wakes_late'} & set(names)

    def create_databases(self):
        # the first one, and copies
        self.create_database('model')
        for db in self.databases:
            self.server.rows(f'CREATE DATABASE {db} TEMPLATE model')
        self.server.rows('DROP DATABASE model')

    def share(self, number, db):
        return 2 if db in self.MORE else super().share(number, db)

    def clients(self, number, db):
        return {**super().clients(number, db), **self.MORE.get(db, {})}

    def load(self):
        saboteurs = [spawn(lambda db=db: self.sabotage(db)) for db in self.names]
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
                for statement in SABOTAGE[db][1].split(';;\n'):
                    try:
                        cursor.execute(statement)
                    except psycopg2.Error as error:
                        if connection.closed:
                            return
                        print(f'# {db}: {error}', flush=True)
                time.sleep(0.02)


def laws_of(db):
    laws = SABOTAGE[db][0] if db in SABOTAGE else ()
    return (laws,) if isinstance(laws, str) else laws


def tried_again(options, name):
    """The same with another seed, and in a folder of its own."""
    return {**options, 'seed': f'{options["seed"]}.{name}', 'folder': f'{options["folder"]}/{name}'}


def sabotage_once(options, names):
    """The histories of these databases, and of a sound one."""
    # longer than the longest lease that may have been left behind
    run = Sabotaged({**options, 'patience': 14, 'streams': 3, 'keys': 5, 'lead': 6}, names)
    run.set_up()
    run.load()
    run.drain()
    run.server.stop('fast')
    return dict(record.read_each(run.histories))


def try_sabotage(options, report):
    """A defect need not show in each load: what is not found is tried again, with others."""
    first, names = None, list(SABOTAGE)
    for attempt in range(TRIES):
        histories = sabotage_once(tried_again(options, attempt) if attempt else options, names)
        first = first or histories['sound']
        missed = []
        for db in ['sound', *names]:
            checked, laws = check.check(histories[db]), laws_of(db)
            found = checked.laws()
            good = found.issuperset(laws) if laws else not found
            if not good and laws and attempt < TRIES - 1:
                missed.append(db)
                continue
            report.say(good, f'{db.replace("_", " ")}: {" and ".join(laws) or "nothing"}, of {sorted(found)}')
            if not good:
                print(f'# {checked.summary()}', *checked.anomalies[:5], sep='\n# ')
        names = missed
        if not names:
            break
    return first


def main():
    options = parse(sys.argv[1:])
    options.update(crashes=0, restarts=0, kills=0, nuisances=0)
    print(f'# seed={options["seed"]}', flush=True)
    report = Report()
    sound = try_sabotage(options, report)
    try_edits(sound, options, report)
    try_ordeals(sound, report)
    try_seeds(report)
    return 1 if report.failed else 0


if __name__ == '__main__':
    sys.exit(main())
