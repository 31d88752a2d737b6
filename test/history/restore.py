"""A fault: the database is dumped under load, and restored where workers serve the copy.

What the dump holds is read with the snapshot that pg_dump has, and is the beginning
of the copy's history; the rest is what the patient worker is given at the end.
"""

import re
from collections import Counter, defaultdict

from facts import DEAD, DONE
from law import law
from laws_made import by_tag, handled_by_workers
from laws_queue import possible_end
from ordeal import Ordeal
from plan import FOLLOWS, REPLAYED, RUN, SHORT, SUBSCRIPTIONS, TIMED
from record import FOREVER, OK

# timers and runs: their table, store, and the topic of the messages that they become
COMING = (('timers', '_timers', TIMED), ('runs', '_job_runs', RUN))

# pg_dump fails if a table is dropped after its snapshot, and before it can lock it; and
# partitions are kept for a second here
DROPPED = re.compile(r'relation "outbox\.archive_\w+" does not exist')
TRIES = 5


class Restore(Ordeal):
    strikes = ('custom',)
    settings = {'outbox.discovery_interval': '2s'}

    def strike(self, what, chance):
        run, server = self.run, self.run.server
        source, copy, file = run.databases[0], f'copy{len(run.keepers)}', f'{run.folder}/dump'
        where = ('-h', server.address, '-p', server.port, '-U', 'postgres')
        made = None
        for _ in range(TRIES):
            connection = server.patient_connect(source)
            try:
                with connection.cursor() as cursor:
                    cursor.execute('BEGIN ISOLATION LEVEL REPEATABLE READ')
                    cursor.execute('SELECT pg_export_snapshot()')
                    snapshot = cursor.fetchone()[0]
                    dumped = run.read_tables(cursor)
                    made = server.program('pg_dump', *where, '-Fc', f'--snapshot={snapshot}', '-f', file, source)
            finally:
                connection.close()
            if not DROPPED.search(made.stdout):
                break
        if made.returncode:
            raise RuntimeError(made.stdout)
        server.rows(f'CREATE DATABASE {copy}')
        run.crew.tend()
        made = server.program('pg_restore', *where, '-d', copy, '--exit-on-error', file)
        if made.returncode:
            raise RuntimeError(made.stdout)
        run.add_copy(copy, dumped)
        return True


@law
def restored(facts):
    """What the dump held ends in the copy, once, and nothing else is there."""
    dumped = facts.dumped
    if dumped is None:
        return
    rows = defaultdict(list)
    for row in facts.rows:
        rows[row.message_id].append(row)
    was = {row[1]: row for row in dumped['messages']}
    for message_id, old in was.items():
        now = rows.get(message_id, ())
        if not now and old[3] == SHORT and (old[5] == DONE or ('', message_id) in facts.ids):
            continue    # it is kept for a second
        if len(now) != 1:
            yield f'{old[2]} is there {len(now)} times'
        elif old[5] in (DONE, DEAD) and now[0].status != old[5]:
            yield f'{old[2]} had status {old[5]} and has {now[0].status}'
    for row in facts.rows:
        if row.message_id not in was and row.topic not in (TIMED, RUN, FOLLOWS, 'joined', 'broken'):
            yield f'{row.tag} of topic {row.topic} was not in the dump'
    for coming in COMING:
        yield from restored_coming(facts, dumped, was, *coming)
    yield from restored_joins(facts, dumped)
    inbox = Counter(row[1] for row in facts.final['inbox'])
    for row in dumped['inbox']:
        key = '_inbox', facts.ids.get(('_inbox', row[1]))
        # what is done is not kept, unless process_work_batch was told to
        if inbox[row[1]] > 1 or not inbox[row[1]] and possible_end(facts, *key) == FOREVER:
            yield f'{row[2]} is in the inbox {inbox[row[1]]} times'
    # those that come and go may have ended
    deliveries = {row[1]: row for row in facts.final['deliveries']}
    for row in dumped['deliveries']:
        if row[0] in SUBSCRIPTIONS and (row[1] not in deliveries or row[3] in (DONE, DEAD) and deliveries[row[1]][3] != row[3]):
            yield f'{row[2]} for {row[0]} had status {row[3]}, and is {deliveries.get(row[1])}'
    for (name, tag), count in Counter((row[0], row[2]) for row in facts.final['deliveries']).items():
        if count > 1 and name != REPLAYED:
            yield f'{tag} came to {name} {count} times'
    for table in ('receptors', 'perspectives'):
        if sorted(map(str, dumped[table])) != sorted(map(str, facts.final[table])):
            yield f'the {table} are not those of the dump'


def restored_coming(facts, dumped, was, table, store, topic):
    """A timer or run that waited has come, once; one that had ended has not."""
    status = {row[1]: row[3] for row in dumped[table]}
    now = Counter(row[1] for row in facts.final[table])
    for key in status.keys() | now.keys():
        if now[key] != (key in status):
            yield f'{key} is there {now[key]} times among the {table}'
    came = Counter(row.tag for row in facts.rows if row.topic == topic and row.message_id not in was)
    waited = [row for row in facts.final[table] if status.get(row[1]) not in (DONE, DEAD)]
    rows = by_tag(waited, 2)
    for tag in rows.keys() | came.keys():
        dispatched = handled_by_workers(facts, store, rows, tag)[2]
        if came[tag] != dispatched:
            yield f'{tag} came {came[tag]} times as a message, and {dispatched} {table} ended without a worker'


def restored_joins(facts, dumped):
    open_joins = {row[0] for row in dumped['joins'] if row[5] == 0}
    joins = {row[0]: row for row in facts.final['joins']}
    for old in dumped['joins']:
        now = joins.get(old[0])
        if now is None:
            yield f'join {old[0]} is gone'
        elif old[0] not in open_joins and now != old:
            yield f'join {old[0]} had ended as {old[3:]} and is {now[3:]}'
    members = defaultdict(Counter)
    for join, _, status in facts.final['members']:
        members[join][status] += 1
    for join in open_joins & joins.keys():
        _, _, expected, completed, failed, status = joins[join]
        if completed + failed != min(expected, members[join][1] + members[join][2]):
            yield f'join {join} counts {completed} + {failed} of {expected}, its members are {dict(members[join])}'
        if status != (3 if completed + failed < expected else 2 if failed else 1):
            yield f'join {join} has status {status} with {completed} + {failed} of {expected}'


def begin(history):
    """Take what was in the dump out of the history of a copy."""
    history.dumped = next(call.result for call in history.calls if call.op == 'dumped' and call.outcome == OK)
    history.calls = [call for call in history.calls if call.op != 'dumped']
