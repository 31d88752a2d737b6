"""A fault: the extension is dropped with all it has, and made again.

The history of its database falls into two eras. While the extension is dropped its
tables are locked and read, so it is known what the first era has left. Each call
belongs to the era in which it was done. Of each client one call at most was on its
way at that time: if its result has messages, they tell; else it is of unknown
outcome in both.
"""

import copy
import time

import psycopg2

from ordeal import Ordeal
from plan import SUBSCRIPTIONS
from record import ERROR, FOREVER, OK, UNKNOWN, History

# while there is none, or another than the session has known a moment before
GONE = {'3F000', '42P01', '42883', '42704', '42703', '55000', '40P01', 'XX000'}
TABLES = """
    SELECT string_agg(format('%I.%I', n.nspname, c.relname), ', ')
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname IN ('outbox', 'app') AND c.relkind IN ('r', 'p') AND NOT c.relispartition"""


class Drop(Ordeal):
    strikes = ('at once', 'with a gap')

    def strike(self, how, chance):
        run = self.run
        db = [db for db in run.databases if db not in run.quiet][-1]
        recorder = run.keepers[db].recorder
        connection = run.server.patient_connect(db)
        connection.autocommit = False
        try:
            with connection.cursor() as cursor:
                attempt, number, left = self.drop(cursor, recorder, db)
                if how == 'with a gap':
                    connection.commit()
                    time.sleep(chance.uniform(0.2, 1))
                run.install(cursor)
                connection.commit()
            recorder.end(number, OK, left)
            recorder.end(attempt, OK)
        finally:
            connection.close()
        return True

    def drop(self, cursor, recorder, db):
        """Try until it succeeds; the numbers of its two records, and what was there."""
        until = time.monotonic() + 60
        while True:
            attempt, number = recorder.begin(db, 'lock', '', {}), None
            try:
                # others do not wait so long that they deadlock
                cursor.execute("SET LOCAL lock_timeout = '500ms'")
                cursor.execute(TABLES)
                cursor.execute(f'LOCK TABLE {cursor.fetchone()[0]} IN ACCESS EXCLUSIVE MODE')
                # clients that still wait do so for what comes after this
                number = recorder.begin(db, 'drop', '', {})
                left = self.run.read_tables(cursor)
                cursor.execute('DROP EXTENSION outbox CASCADE')
                cursor.execute('DROP SCHEMA app CASCADE')
                return attempt, number, left
            except psycopg2.Error as error:
                for begun in (attempt, number):
                    if begun is not None:
                        recorder.end(begun, ERROR, [error.pgcode, str(error)])
                cursor.connection.rollback()
                if time.monotonic() > until:
                    raise


def eras(history):
    """The histories into which drops divide one, all but the last cut short."""
    drops = [call for call in history.calls if call.op == 'drop']
    tries = [(call.begin, call.end) for call in history.calls if call.op == 'lock']
    calls = [call for call in history.calls if call.op not in ('drop', 'lock')]
    begins = {}
    for call in calls:
        transaction = transaction_of(call)
        begins[transaction] = min(begins.get(transaction, FOREVER), call.begin)
    found = []
    for drop in (call for call in drops if call.outcome == OK):
        before, calls = divide(calls, drop)
        found.append(History(before, drop.result, history.expected, history.moves, cut=True))
    found.append(History(calls, history.final, history.expected, history.moves))
    if len(found) > 1:
        for number, era in enumerate(found):
            forget_errors(era, tries, begins, number > 0)
    return found


def transaction_of(call):
    return call.tx.split('/')[0] or (call.client, call.number)


def divide(calls, drop):
    there = {row[1] for name in ('messages', 'deliveries', 'inbox', 'timers', 'runs') for row in drop.result[name]}
    before, after = [], []
    on_the_way = set()
    for call in calls:      # in the order of their begins
        if call.end < drop.begin:
            before.append(call)
        elif call.begin > drop.begin:
            after.append(call)
        elif call.op == 'fault':
            before.append(call)
            after.append(call)
        elif call.outcome == UNKNOWN or call.client in on_the_way:
            before.append(call)
            after.append(copy.copy(call))
        else:
            on_the_way.add(call.client)
            ids = ids_in(call)
            if ids:
                (before if ids & there else after).append(call)
            else:
                before.append(doubtful(call))
                after.append(doubtful(call))
    return before, after


def ids_in(call):
    """The messages that a claim has returned."""
    if call.outcome != OK or call.op not in ('claim', 'work_batch'):
        return set()
    return {entry[5] if call.op == 'claim' else entry[1][5] for entry in call.result or ()}


def doubtful(call):
    if call.outcome == OK:
        call = copy.copy(call)
        call.outcome, call.result, call.end = UNKNOWN, None, FOREVER
    return call


def forget_errors(era, tries, begins, later):
    """Errors of calls that met a drop, or that ask for what an era before had.

    A transaction that began while there was no extension may not see it later either:
    it looks at what others have changed in the catalogs when it locks something.
    """
    known = {call.result for call in era.calls if call.op == 'start_join' and call.outcome == OK}
    known |= {call.args['tag'] for call in era.calls if call.op == 'create_job'}
    known |= {call.args['subscription'] for call in era.calls if call.op == 'subscribe'}
    known |= set(SUBSCRIPTIONS)

    def excused(call):
        if call.outcome != ERROR:
            return False
        since = begins[transaction_of(call)]
        if call.result[0] in GONE and any(since < end and begin < call.end for begin, end in tries):
            return True
        wanted = call.args.get('join') or call.args.get('subscription') or call.op == 'trigger_job' and call.args['tag']
        return later and call.result[0] == '42704' and wanted and wanted not in known

    era.calls = [call for call in era.calls if not excused(call)]
