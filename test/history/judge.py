"""The histories of a run are held against the laws."""

import check
import law
import record
import restore  # for its law, too
from clock import Moves, translate
from drop import eras

# these look at the end of all work, which a history that was cut short has not
AT_THE_END = {'stranded', 'timers', 'runs', 'join counts', 'continuations'}
# these need no producers, whose calls a copy does not have
OF_A_COPY = {'stranded', 'doubled', 'broken payload', 'leases overlap', 'stale settle', 'handed out after its end', 'handlers',
             'unexpected error', 'restored'}


def judge(folder, report):
    """Report for each law what breaks it."""
    names = law.names()
    anomalies = {name: [] for name in names}
    for title, history, only in parts(folder):
        checked = check.check(history, only)
        print(f'# {title}: {checked.summary()}', flush=True)
        for anomaly in checked.anomalies:
            anomalies[anomaly.law].append(f'{title}: {anomaly.text}')
    for name, found in anomalies.items():
        report.say(not found, f'{name}: {names[name]}', found)


def parts(folder):
    """(title, history, names of laws) of each database, or of each era of it."""
    conditions = record.read_conditions(folder)
    for db, history in record.read_each(folder):
        history.expected = set(conditions.get('errors', ()))
        if conditions.get('moves'):
            history.moves = Moves(conditions['moves'])
            translate(history, history.moves)
        if any(call.op == 'dumped' for call in history.calls):
            restore.begin(history)
            yield db, history, OF_A_COPY
            continue
        several = eras(history)
        for number, era in enumerate(several):
            yield db if len(several) == 1 else f'{db}, era {number + 1}', era, laws_of(era)


def laws_of(history):
    return set(law.names()) - (AT_THE_END if history.cut else set())
