"""What follows from a history without judging it: fates, messages, leases, settlings.

The fate of a call is COMMITTED, ABORTED or DOUBTFUL. It is doubtful when its
commit was not answered; then what is seen of it decides, and all of it must be
seen.
"""

from collections import defaultdict
from dataclasses import dataclass

from plan import BOOST, FOLLOWS, HANDLED, REDRIVEN, RUN, TIMED, TOPIC_PRIORITIES
from record import ERROR, FOREVER, OK, UNKNOWN

COMMITTED, ABORTED, DOUBTFUL = 'committed', 'aborted', 'doubtful'
DONE, DEAD = 2, 3
LOCKED = 9000000        # us; so long rows are locked by a fault, at most
FRESH = 100000          # us; so old a sign of life may be that is left as it is


@dataclass
class Message:
    """What a producer asked for."""
    tag: str
    topic: str
    namespace: str
    fate: str
    begin: int
    end: int            # of the call; of the commit, if the call was one
    message_id: str = None
    enqueued: bool = True
    stream: str = None
    key: str = None
    due_at: int = None
    expires_at: int = None
    tx: str = ''
    committed: int = 0  # surely by then
    expired_at: int = None  # from then on certainly; not the same where the clock was set
    priority: int = 0

    def scope(self):
        """Where its key is one, and the key."""
        return self.namespace, self.topic, self.key

    def boost(self):
        """So much earlier than its due time it is handed out."""
        return self.priority * BOOST


@dataclass
class Publication:
    tag: str
    topic: str
    fate: str
    begin: int
    end: int            # of the call
    committed: int      # surely by then
    published_id: str
    stream: str
    tx: str


@dataclass
class Lease:
    store: str
    id: int
    tag: str
    attempt: int
    owner: str
    message_id: str
    first: int          # it began between these two,
    last: int
    until: int          # and lasts at least until then
    call: object
    certain: bool

    def __str__(self):
        return f'{self.tag} (id {self.id}, attempt {self.attempt} of {self.owner[:8]}, {self.call})'


@dataclass
class Settle:
    op: str             # ack, nack, fail, renew, release
    owner: str
    attempt: int        # None: any
    begin: int
    end: int
    sure: bool          # it did change the message; else perhaps
    lease: int
    call: object


@dataclass
class Row:
    """A message in the tables at the end."""
    id: int
    message_id: str
    tag: str
    topic: str
    namespace: str
    status: int
    attempts: int
    reason: int
    processed_by: str
    processed_at: int
    created_at: int
    key: str
    retry_count: int
    tenant: str
    correlation: str
    headers: dict
    stream: str
    priority: int
    error: str
    size: str           # as its payload says it


class Facts:
    def __init__(self, history):
        self.calls = history.calls
        self.expected, self.moves, self.dumped = history.expected, history.moves, history.dumped
        self.final, self.cut = history.final, history.cut
        self.rows = [Row(*row) for row in self.final.get('messages', [])]
        self.by_op = defaultdict(list)
        for call in self.calls:
            self.by_op[call.op].append(call)
        self.decide_transactions()
        self.find_messages()
        self.find_requeued()
        self.find_leases()
        self.find_settles()
        self.find_operations()
        self.resolve_doubts()

    # fates

    def decide_transactions(self):
        self.transactions = {}
        self.commit_ends = {}
        self.commit_begins = {}     # of those that were answered
        calls = defaultdict(list)
        for call in self.calls:
            if call.tx and call.op in ('commit', 'rollback', 'prepare', 'commit_prepared', 'rollback_prepared'):
                calls[call.tx].append(call)
        for tx, ends in calls.items():
            told = {(call.op, call.outcome) for call in ends}
            self.commit_ends[tx] = max(call.end for call in ends)
            if told & {('commit', OK), ('commit_prepared', OK)}:
                fate = COMMITTED
                self.commit_begins[tx] = min(call.begin for call in ends if call.op in ('commit', 'commit_prepared'))
            elif told & {('rollback', OK), ('rollback_prepared', OK)}:
                fate = ABORTED
            elif told & {('commit', UNKNOWN), ('commit_prepared', UNKNOWN), ('rollback_prepared', UNKNOWN)}:
                fate = DOUBTFUL
            elif ('prepare', OK) in told and ('commit_prepared', ERROR) in told:
                fate = COMMITTED    # it was prepared, and was not rolled back
            else:
                fate = ABORTED
            self.transactions[tx] = fate

    def fate(self, call):
        if call.outcome == ERROR:
            return ABORTED
        if not call.tx:
            return COMMITTED if call.outcome == OK else DOUBTFUL
        tx = call.tx
        if '/' in tx:
            # a savepoint; without its rollback it shares the fate of the whole
            if self.transactions.get(tx) == ABORTED:
                return ABORTED
            tx = tx.split('/')[0]
        return self.transactions.get(tx, ABORTED)

    def later(self, begin, end, seconds):
        """When a time that began between these two is over, at the earliest."""
        delay = int(seconds * 1000000)
        return self.moves.later(begin, end, delay) if self.moves else begin + delay

    def can_end(self, begin, end, seconds, stamp):
        """Whether the server's clock may show a time when what began between these two is over."""
        delay = int(seconds * 1000000)
        if self.moves:
            return self.moves.can_end(begin, end, delay, stamp)
        return begin + delay <= stamp <= end + delay

    def committed_by(self, call):
        """Until when it has taken effect, if it has."""
        if not call.tx:
            return call.end
        return self.commit_ends.get(call.tx.split('/')[0], FOREVER)

    # what was put in

    def find_messages(self):
        self.messages = {}
        for call in self.calls:
            for number, made in enumerate(call.args.get('messages', ())):
                known = call.outcome == OK and call.op != 'work_batch'
                self.messages[made['tag']] = Message(
                    made['tag'], made['topic'], made['namespace'], self.fate(call), call.begin,
                    self.committed_by(call) if not call.tx else call.end,
                    call.result[number][0] if known else None, call.result[number][1] if known else True,
                    made.get('stream'), made.get('key'), made.get('due_at'), made.get('expires_at'), call.tx,
                    self.committed_by(call), made.get('expired_at', made.get('expires_at')),
                    TOPIC_PRIORITIES.get(made['topic'], 0) if made.get('priority') is None else made['priority'])
        # what met a serialization failure is tried again, with the same tags
        tried = {made['tag']: (call, number) for call in self.calls for number, made in enumerate(call.args.get('published', ()))}
        self.publications = [
            Publication(tag, call.args['published'][number]['topic'], self.fate(call), call.begin, call.end, self.committed_by(call),
                        call.result[number] if call.outcome == OK else None, call.args['published'][number]['stream'], call.tx)
            for tag, (call, number) in tried.items()]
        # what was received: (call, fate, id, tag, handler, whether it was taken, if that is known)
        self.received = [(call, self.fate(call), call.args['id'], call.args['tag'], call.args['handler'], call.result)
                         for call in self.by_op['receive']]
        self.received += [(call, self.fate(call), one['id'], one['tag'], one['handler'], None)
                          for call in self.by_op['work_batch'] for one in call.args.get('received', ())]
        # what the extension puts in itself: tag -> (topics, fate)
        self.derived = {}
        for message in list(self.messages.values()):
            if message.topic == HANDLED:
                self.derived[f'{message.tag}.h'] = ((FOLLOWS,), message.fate)
        for call in self.by_op['schedule_timer']:
            self.derived[call.args['tag']] = ((TIMED,), self.fate(call))
        for call in self.by_op['trigger_job']:
            topics, fate = self.derived.get(call.args['tag'], ((RUN,), ABORTED))
            self.derived[call.args['tag']] = (topics, max(fate, self.fate(call), key=(ABORTED, DOUBTFUL, COMMITTED).index))
        for call in self.by_op['enqueue_join_wait']:
            self.derived[call.args['tag']] = (('joined', 'broken', 'join.wait'), self.fate(call))

    # what an operator did

    def find_requeued(self):
        """(store, id) of what may have become ready once more, and is counted from 0 again."""
        self.requeued = {(call.args['store'], row_id) for call in self.by_op['requeue'] if self.fate(call) != ABORTED
                         for row_id in call.args['ids']}
        if self.by_op['redrive']:
            redriven = {message.tag for message in self.messages.values() if message.topic == REDRIVEN}
            self.requeued.update(('', row.id) for row in self.rows if row.tag in redriven)

    def find_operations(self):
        self.cancels = defaultdict(list)        # tag -> calls
        for call in self.by_op['cancel']:
            if self.fate(call) != ABORTED and call.result is not False:
                self.cancels[call.args['tag']].append(call)
        self.discards = defaultdict(list)       # id -> calls that may have
        self.rescheduled = defaultdict(list)    # id -> calls that may have
        for op, found in (('discard', self.discards), ('reschedule', self.rescheduled)):
            for call in self.by_op[op]:
                if self.fate(call) != ABORTED and call.result != 0:
                    for row_id in call.args['ids']:
                        found[row_id].append(call)

    # what was taken out

    def find_leases(self):
        self.leases = defaultdict(list)     # (store, id) -> leases, by attempt
        self.doubtful_claims = []           # when claims began whose results were lost
        self.ids = {}                       # (store, message_id) -> id
        for call in self.by_op['claim'] + self.by_op['work_batch']:
            fate = self.fate(call)
            if fate == ABORTED:
                continue
            if fate == DOUBTFUL:
                self.doubtful_claims.append(call.begin)
            for entry in call.result or () if call.outcome == OK else ():
                if call.op == 'claim':
                    lease = self.lease(call, call.args['store'], entry, fate)
                else:
                    lease = self.lease(call, '' if entry[0] == 'outbox' else '_inbox', entry[1], fate)
                    # the call does not tell when
                    lease.first, lease.last = call.begin, call.end
                    lease.until = self.later(call.begin, call.end, call.args['lease'])
                self.leases[lease.store, lease.id].append(lease)
                self.ids[lease.store, lease.message_id] = lease.id
        self.doubtful_claims.sort()
        for (store, row_id), several in self.leases.items():
            # the attempts of what was requeued begin with 1 again
            again = (store, row_id) in self.requeued
            several.sort(key=lambda lease: (0 if again else lease.attempt, lease.last))
        # a timer or a run has the tag of the message that it becomes
        self.ids_by_tag = {lease.tag: key for key, several in self.leases.items() for lease in several[:1]
                           if key[0] in ('', '_inbox')}
        # the same publication is a message of each subscription
        self.deliveries = {(key[0], lease.tag): key for key, several in self.leases.items() for lease in several[:1]
                           if key[0].startswith('@')}

    def key_of(self, store, tag):
        """(store, id) of what has this tag; None if it was never seen in a lease."""
        return self.deliveries.get((store, tag)) if store.startswith('@') else self.ids_by_tag.get(tag)

    @staticmethod
    def lease(call, store, entry, fate):
        row_id, tag, attempt, begin, until, message_id = entry
        return Lease(store, row_id, tag, attempt, call.args['owner'], message_id, begin, begin, until, call,
                     fate == COMMITTED)

    def find_settles(self):
        self.settles = defaultdict(list)        # (store, id) -> settlings
        self.given_back = defaultdict(list)     # owner -> when it gave all back, perhaps
        self.signs_of_life = defaultdict(list)  # instance -> when it surely noted that it is alive
        self.stale_after = {}
        for op in ('ack', 'nack', 'fail', 'renew', 'release'):
            for call in self.by_op[op]:
                if self.fate(call) != ABORTED and call.result != 0:
                    self.settle_all(call)
        for call in self.by_op['release_all'] + self.by_op['deregister']:
            if self.fate(call) != ABORTED:
                self.given_back[call.args['owner']].append(call.begin)
        locks = [call.begin for call in self.by_op['fault'] if call.args['name'] == 'lock_rows']
        for call in self.by_op['work_batch']:
            fate = self.fate(call)
            self.stale_after[call.args['owner']] = call.args['stale']
            signs = self.signs_of_life[call.args['owner']]
            # it does not wait for the lock on its row, and is no sign then
            if fate == COMMITTED and not any(begin < call.end and call.begin < begin + LOCKED for begin in locks):
                signs.append(call.begin)
            if fate != ABORTED:
                self.settle_batch(call)
        for key, several in self.settles.items():
            several.sort(key=lambda settle: settle.begin)
            self.find_renewals(key, several)

    def find_renewals(self, key, settles):
        """process_work_batch does not say so, but who surely had a lease has renewed it."""
        message = self.messages.get(self.leases[key][0].tag) if self.leases.get(key) and not key[0] else None
        if message is None or message.stream or key in self.requeued or self.moves:
            return
        for settle in settles:
            if settle.op != 'renew' or settle.call.op != 'work_batch' or settle.call.outcome != OK:
                continue
            before = [lease for lease in self.leases[key] if lease.first <= settle.end]
            lease = before[-1] if before else None
            others = [other for other in settles if other is not settle and lease and lease.first <= other.end and other.begin <= settle.end]
            settle.sure = bool(
                lease and lease.owner == settle.owner and lease.certain and lease.last < settle.begin
                and all(other.sure and other.op == 'renew' and other.call.op == 'work_batch' for other in others)
                and max([lease.until] + [other.begin + other.lease * 1000000 for other in others]) > settle.end
                and self.was_there(settle.owner, settle.begin, settle.end))

    def was_there(self, owner, begin, end):
        """Whether an instance surely was one all this time."""
        signs = [sign for sign in self.signs_of_life.get(owner, ()) if sign < begin]
        return (bool(signs) and max(signs) - FRESH + self.stale_after[owner] * 1000000 > end
                and not any(at < end for at in self.given_back.get(owner, ())))

    def settle_all(self, call):
        ids = call.args['ids']
        attempts = call.args['attempts'] if call.op != 'release' else None
        sure = call.result == len(set(ids)) and self.fate(call) == COMMITTED
        for number, row_id in enumerate(ids):
            self.settles[call.args['store'], row_id].append(
                Settle(call.op, call.args['owner'], attempts[number] if attempts else None, call.begin,
                       self.committed_by(call), sure, call.args.get('lease'), call))

    def settle_batch(self, call):
        """process_work_batch does not say what it settled."""
        def note(source, message_id, op):
            store = '' if source == 'outbox' else '_inbox'
            key = store, self.ids.get((store, message_id))
            # what was another's all the time it cannot settle
            if not any(lease.owner == call.args['owner'] for lease in self.leases.get(key, ())):
                return
            self.settles[key].append(Settle(op, call.args['owner'], None, call.begin, call.end, False,
                                            call.args['lease'], call))

        for source, done in (('outbox', 4), ('inbox', 2)):
            for one in call.args.get(f'{source}_completions', ()):
                note(source, one['message_id'], 'ack' if one['status'] & done else 'release')
            for one in call.args.get(f'{source}_failures', ()):
                note(source, one['MessageId'], 'nack')
            for one in call.args.get(f'renew_{source}_lease_ids', ()):
                note(source, one, 'renew')

    def may_have_settled(self, key, settle):
        """Whether its caller had the lease, as far as it is known who had it."""
        leases = self.leases.get(key, ())
        mine = [lease.attempt for lease in leases if lease.owner == settle.owner and lease.first <= settle.end
                and settle.attempt in (None, lease.attempt)]
        if not mine:
            return False, None
        newer = [lease for lease in leases if lease.certain and lease.attempt > max(mine) and lease.call.end < settle.begin]
        if newer and key not in self.requeued:
            return False, newer[0]
        return True, None

    # doubts

    def resolve_doubts(self):
        """A doubtful transaction of which anything was seen has committed as a whole."""
        self.seen = {row.tag for row in self.rows if row.topic != 'join.wait'}
        self.seen.update(lease.tag for (store, _), several in self.leases.items()
                         if store != '_inbox' and not store.startswith('@') for lease in several)
        seen_transactions = set()
        for message in self.messages.values():
            if message.fate == DOUBTFUL and message.enqueued and message.tag in self.seen:
                seen_transactions.add(message.tx or message.tag)
        for call in self.by_op['schedule_timer'] + self.by_op['trigger_job']:
            if call.tx and self.fate(call) == DOUBTFUL and call.args['tag'] in self.seen:
                seen_transactions.add(call.tx)
        for message in self.messages.values():
            if message.fate == DOUBTFUL and (message.tx.split('/')[0] or message.tag) in seen_transactions:
                message.fate = COMMITTED
        delivered = {row[2] for row in self.final.get('deliveries', ())}
        delivered.update(tag for _, tag in self.deliveries)
        seen_transactions = {one.tx or one.tag for one in self.publications if one.fate == DOUBTFUL and one.tag in delivered}
        for one in self.publications:
            if one.fate == DOUBTFUL and (one.tx or one.tag) in seen_transactions:
                one.fate = COMMITTED
