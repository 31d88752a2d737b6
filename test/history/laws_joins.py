"""What joins count, and what follows when they end."""

from collections import Counter, defaultdict

from facts import ABORTED, COMMITTED, DEAD, DONE
from law import law
from plan import BROKEN, BROKEN_SIZE, JOINED
from record import OK


@law
def join_counts(facts):
    """A join counts each member that has ended, once, up to what it expects."""
    # the first outcome of what was requeued stands, and is not known
    ends = {row.message_id: row.status for row in facts.rows
            if row.status in (DONE, DEAD) and ('', row.id) not in facts.requeued}
    reported = {call.args['member']: call.args['status'] for call in facts.by_op['report']
                if facts.fate(call) == COMMITTED}
    members = defaultdict(dict)
    for join, member, status in facts.final.get('members', ()):
        members[join][member] = status
        end = {DONE: 1, DEAD: 2}.get(ends.get(member), reported.get(member))
        if end is not None and status != end:
            yield f'join {join}: member {member} has status {status}, and ended with {end}'
    cancelled = {call.args['join'] for call in facts.by_op['cancel_join'] if facts.fate(call) != ABORTED and call.result is not False}
    surely = {call.args['join'] for call in facts.by_op['cancel_join'] if facts.fate(call) == COMMITTED and call.result is True}
    wanted = {call.result: call.args['expected'] for call in facts.by_op['start_join'] if facts.fate(call) == COMMITTED}
    joins = {row[0]: row for row in facts.final.get('joins', ())}
    for join, expected in wanted.items():
        if join not in joins:
            yield f'join {join} is gone'
        elif joins[join][2] != expected:
            yield f'join {join} expects {joins[join][2]}, not {expected}'
    for join, _, expected, completed, failed, status in joins.values():
        ended = Counter(members[join].values())
        if join in surely and status != 3:
            yield f'join {join} was cancelled, and has status {status}'
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
    if facts.dumped is None:
        for call in facts.by_op['reconcile']:
            # by then workers have counted all
            if call.args.get('end') and call.result:
                yield f'{call} at the end counted {call.result} steps'
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
        if row.topic in (JOINED, BROKEN):
            came[row.tag].append((row.topic, row.namespace, row.size))
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
        on_fail = [(BROKEN, args['namespace'], str(BROKEN_SIZE))] if args['on_fail'] else []
        on_end = [(JOINED, args['namespace'], '0')]
        want = {1: on_end, 2: on_fail if args['if_failed'] and failed else on_end, 3: on_fail}.get(status, [])
        if came[args['tag']] != want:
            yield f'wait {args["tag"]} on a join of status {status} was followed by {came[args["tag"]]}, not {want}'
