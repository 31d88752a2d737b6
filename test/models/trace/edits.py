"""Edits after which a trace must be refused.

Each is (model, what is done, edit): a function that is given the events of the model
and the place of one, and returns what is there instead, or None if it cannot be done
there.
"""

import project as p


def dropped(*kinds):
    """This event is not told."""
    return lambda events, at: [] if events[at][0] in kinds else None


def dropped_before(kind, next_kind):
    return lambda events, at: [] if events[at][0] == kind and at + 1 < len(events) and \
        events[at + 1][0] == next_kind else None


def dropped_list(events, at):
    """A claim that looks and leaves again is as if it had not been listed."""
    if events[at][0] != p.LIST:
        return None
    after = next((event for event in events[at + 1:] if event[1] == events[at][1] and
                  event[0] in (p.PASS, p.SLEEP, p.LEAVE)), (p.LEAVE,))
    return [] if after[0] != p.LEAVE else None


def changed(kind, value, how):
    """It tells something else; value 0 is what, 1 is who, from 2 on v1 and so on."""
    def edit(events, at):
        event = list(events[at])
        if event[0] != kind or len(event) <= value or how(event[value]) == event[value]:
            return None
        event[value] = how(event[value])
        return [tuple(event)]
    return edit


def is_new(events, at):
    """Does the event leave something else than the one before it?"""
    return events[at - 1][0] != p.RESET and events[at][7:] != events[at - 1][7:]


def dropped_if_new(kind):
    return lambda events, at: [] if events[at][0] == kind and is_new(events, at) and \
        at + 1 < len(events) and events[at + 1][0] == p.GET else None


def doubled(kind):
    return lambda events, at: [events[at], events[at]] if events[at][0] == kind else None


def committed(edit):
    """Only in a transaction that commits: of another, the model knows less."""
    def edit_committed(events, at):
        end = next((event[0] for event in events[at:] if event[1] == events[at][1] and
                    event[0] in (p.J_COMMIT, p.J_ABORT)), None)
        return edit(events, at) if end == p.J_COMMIT else None
    return edit_committed


def undone(events, at):
    """A transaction that has changed the count is rolled back, though a later one changes it."""
    def counts(event):
        return event[0] == p.J_COMMIT and event[2] >= 0
    if not counts(events[at]):
        return None
    for event in events[at + 1:]:
        if event[0] == p.RESET:
            return None
        if counts(event):
            return [(p.J_ABORT, *events[at][1:])]
    return None


def too_early(events, at):
    """A recheck is processed when the join begins."""
    if events[at][0] != p.J_RECHECK:
        return None
    begin = max(n for n in range(at) if events[n][0] == p.RESET)
    if any(event[1] == events[at][1] for event in events[begin:at]):
        return None
    return [(*events[at][:-2], events[begin][-1], events[begin][-1] + 1)]


EDITS = (
    ('lane', 'a record is not told', dropped_before(p.RECORD, p.MARK)),
    ('lane', 'there was no room', changed(p.MARK, 4, lambda kept: 1 - kept)),
    ('lane', 'a mark is not told', dropped(p.MARK)),
    ('lane', 'a scan does not watch', dropped(p.WATCH)),
    ('lane', 'a cursor is raised further', changed(p.STATE, 2, lambda cursor: cursor + 1)),
    ('lane', 'something is due later', changed(p.STATE, 3, lambda due: due + p.TIMES if due < p.NEVER - p.TIMES else due)),
    ('lane', 'a lease was lost in between', changed(p.KNOWN, 2, lambda lost: lost + 1)),
    ('stream_cursor', 'a raise is not told', dropped_if_new(p.RAISE)),
    ('stream_cursor', 'a place is forgotten, and that is not told', dropped_if_new(p.FORGET)),
    ('stream_cursor', 'a place is raised higher than told', changed(p.RAISE, 8, lambda low: low + 1)),
    ('stream_cursor', 'a raise with an old version', changed(p.RAISE, 3, lambda version: version - 1)),
    ('stream_cursor', 'another version', changed(p.FORGET, 11, lambda version: version + 1)),
    ('stream_cursor', 'a gap that is wider', changed(p.WIDEN, 10, lambda last: last + 1)),
    ('message', 'a commit is not told', dropped(p.COMMIT)),
    ('message', 'a claim is not told', dropped(p.CLAIM)),
    ('message', 'a lease is taken over before its end', dropped(p.ENDED)),
    ('message', 'a message is settled twice', doubled(p.SETTLE)),
    ('message', 'an attempt that is over is settled', changed(p.SETTLE, 7, lambda attempt: attempt - (attempt > 0))),
    ('message', 'another owner settles', changed(p.SETTLE, 1, lambda who: who % 2 + 1)),
    ('message', 'an attempt is not counted', changed(p.CLAIM, 5, lambda attempts: max(attempts, 1) - 1)),
    ('message', 'a commit is an abort',
     lambda events, at: changed(p.COMMIT, 0, lambda _: p.ABORT)(events, at)
     if at + 1 < len(events) and events[at + 1][0] != p.RESET else None),
    ('join', 'a mark is not told', committed(dropped(p.J_MARK))),
    ('join', 'a step is counted twice', committed(changed(p.J_COUNT, 3, lambda count: count + (count > 0)))),
    ('join', 'a step that is attached does not see who ends it', committed(changed(p.J_LOOK, 3, lambda writer: 0))),
    ('join', 'a recheck is not left', changed(p.J_COMMIT, 4, lambda left: 0)),
    ('join', 'a recheck waits for another transaction', changed(p.J_COMMIT, 4, lambda left: left << 3 if left < 8 else left >> 3)),
    ('join', 'a recheck is processed before it is left', too_early),
    ('join', 'a recount counts one less', committed(changed(p.J_RECOUNT, 3, lambda count: count - 1))),
    ('join', 'a wait is evaluated as if its join were complete', committed(changed(p.J_SEES, 2, lambda complete: 1 - complete))),
    ('join', 'a wait is not woken', changed(p.J_COMMIT, 7, lambda wait: 0 if wait == 1 else wait)),
    ('join', 'there is no continuation', changed(p.J_COMMIT, 8, lambda continuations: 0)),
    ('join', 'what has counted is rolled back', undone),
    ('waits', 'a call is not told', dropped(p.CALLED)),
    ('waits', 'another claim is called', changed(p.CALLED, 1, lambda who: who % 2 + 1)),
    ('waits', 'all are called, and that is not told', dropped_before(p.ALL, p.CALLED)),
    ('waits', 'a claim is not listed', dropped_list),
    ('waits', 'a claim does not pass the call on', dropped_before(p.PASS, p.CALLED)),
    ('waits', 'a claim passes on, and that is not told', dropped(p.PASS)),
    ('waits', 'another keeps the time', changed(p.SLEEP, 3, lambda keeper: keeper % 2 + 1)),
    ('waits', 'a claim sleeps though it is called', changed(p.SLEEP, 2, lambda awake: 0)),
    ('waits', 'no claim keeps the time any more', dropped(p.APPOINT)),
)


def make(events, edit, chance):
    """The events with this edit, at a random place; None if there is none for it."""
    places = list(range(1, len(events)))
    chance.shuffle(places)
    for at in places:
        instead = edit(events, at)
        if instead is not None:
            return events[:at] + instead + events[at + 1:]
    return None
