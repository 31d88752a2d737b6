"""What follows from a history without judging it: fates, messages, leases, settlings.

The fate of a call is COMMITTED, ABORTED or DOUBTFUL. It is doubtful when its
commit was not answered; then what is seen of it decides, and all of it must be
seen.
"""

from collections import defaultdict
from dataclasses import dataclass

from plan import FOLLOWS, HANDLED, RUN, TIMED
from record import ERROR, FOREVER, OK, UNKNOWN

COMMITTED, ABORTED, DOUBTFUL = 'committed', 'aborted', 'doubtful'
DONE, DEAD = 2, 3


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


class Facts:
    def __init__(self, history):
        self.calls = history.calls
        self.final = history.final
        self.rows = [Row(*row) for row in self.final.get('messages', [])]
        self.by_op = defaultdict(list)
        for call in self.calls:
            self.by_op[call.op].append(call)
        self.decide_transactions()
        self.find_messages()
        self.requeued = {row_id for call in self.by_op['requeue'] if self.fate(call) != ABORTED
                         for row_id in call.args['ids']}
        self.find_leases()
        self.find_settles()
        self.cancels = defaultdict(list)
        for call in self.by_op['cancel']:
            if self.fate(call) != ABORTED and call.result is not False:
                self.cancels[call.args['tag']].append(call)
        self.resolve_doubts()

    # fates

    def decide_transactions(self):
        self.transactions = {}
        self.commit_ends = {}
        calls = defaultdict(list)
        for call in self.calls:
            if call.tx and call.op in ('commit', 'rollback', 'prepare', 'commit_prepared', 'rollback_prepared'):
                calls[call.tx].append(call)
        for tx, ends in calls.items():
            told = {(call.op, call.outcome) for call in ends}
            self.commit_ends[tx] = max(call.end for call in ends)
            if told & {('commit', OK), ('commit_prepared', OK)}:
                fate = COMMITTED
            elif told & {('rollback', OK), ('rollback_prepared', OK)}:
                fate = ABORTED
            elif told & {('commit', UNKNOWN), ('commit_prepared', UNKNOWN), ('rollback_prepared', UNKNOWN)}:
                fate = DOUBTFUL
            elif ('prepare', OK) in told and ('commit_prepared', ERROR) in told:
                fate = COMMITTED    # it was prepared, and nobody has rolled it back
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
                    made.get('stream'), made.get('key'), made.get('due_at'), made.get('expires_at'), call.tx)
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

    # what was taken out

    def find_leases(self):
        self.leases = defaultdict(list)     # (store, id) -> leases, by attempt
        self.doubtful_claims = []           # when claims began whose results nobody saw
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
                    lease.until = call.begin + call.args['lease'] * 1000000
                self.leases[lease.store, lease.id].append(lease)
                self.ids[lease.store, lease.message_id] = lease.id
        self.doubtful_claims.sort()
        for (store, row_id), several in self.leases.items():
            # the attempts of what was requeued begin with 1 again
            again = not store and row_id in self.requeued
            several.sort(key=lambda lease: (0 if again else lease.attempt, lease.first))
        self.ids_by_tag = {lease.tag: key for key, several in self.leases.items() for lease in several[:1]}

    @staticmethod
    def lease(call, store, entry, fate):
        row_id, tag, attempt, begin, until, message_id = entry
        return Lease(store, row_id, tag, attempt, call.args['owner'], message_id, begin, begin, until, call,
                     fate == COMMITTED)

    def find_settles(self):
        self.settles = defaultdict(list)        # (store, id) -> settlings
        self.given_back = defaultdict(list)     # owner -> when it gave all back, perhaps
        self.signs_of_life = defaultdict(list)  # instance -> when it called
        self.stale_after = {}
        for op in ('ack', 'nack', 'fail', 'renew', 'release'):
            for call in self.by_op[op]:
                if self.fate(call) != ABORTED and call.result != 0:
                    self.settle_all(call)
        for call in self.by_op['release_all'] + self.by_op['deregister']:
            if self.fate(call) != ABORTED:
                self.given_back[call.args['owner']].append(call.begin)
        for call in self.by_op['work_batch']:
            fate = self.fate(call)
            self.stale_after[call.args['owner']] = call.args['stale']
            if fate == COMMITTED:
                self.signs_of_life[call.args['owner']].append(call.begin)
            if fate != ABORTED:
                self.settle_batch(call)
        for several in self.settles.values():
            several.sort(key=lambda settle: settle.begin)

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
            key = ('' if source == 'outbox' else '_inbox', self.ids.get(('' if source == 'outbox' else '_inbox', message_id)))
            self.settles[key].append(Settle(op, call.args['owner'], None, call.begin, call.end, False,
                                            call.args['lease'], call))

        for source, done in (('outbox', 4), ('inbox', 2)):
            for one in call.args.get(f'{source}_completions', ()):
                note(source, one['message_id'], 'ack' if one['status'] & done else 'release')
            for one in call.args.get(f'{source}_failures', ()):
                note(source, one['MessageId'], 'nack')
            for one in call.args.get(f'renew_{source}_lease_ids', ()):
                note(source, one, 'renew')

    # doubts

    def resolve_doubts(self):
        """A doubtful transaction of which anything was seen has committed as a whole."""
        self.seen = {row.tag for row in self.rows if row.topic != 'join.wait'}
        self.seen.update(lease.tag for (store, _), several in self.leases.items() if not store for lease in several)
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
