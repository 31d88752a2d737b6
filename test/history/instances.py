"""Programs that call process_work_batch: they come, work, and go, in silence or not.

Beside messages they report what their receptors and perspectives have done, which
the engine only writes down: each to a few keys of its own, and to a few of all.
"""

import json
import time

from clients import Client, Lost, Refused
from plan import HANDLER_NAMES, KEEP_INBOX, TOPICS, marks, number_uuid, payload
from workers import judge, new_owner

SECTIONS = ('outbox_completions', 'inbox_completions', 'outbox_failures', 'inbox_failures',
            'renew_outbox_lease_ids', 'renew_inbox_lease_ids', 'receptor_completions', 'receptor_failures',
            'perspective_completions', 'perspective_failures', 'new_outbox_messages', 'new_inbox_messages')
# what the record keeps as it was sent
TOLD = SECTIONS[:6]
DONE = {'outbox': 4, 'inbox': 2}


class Instance(Client):
    kind = 'worker'
    LEASE, STALE = 2, 3
    PARTITIONS = 7

    def __init__(self, *more):
        super().__init__(*more)
        self.come()

    def come(self):
        self.owner = new_owner(self.chance)
        self.rounds = self.chance.randrange(5, 120)
        self.done, self.failed, self.kept = [], [], []
        self.past = []      # leases that were left to end

    # one round trip

    def reports(self, sections):
        """What is to be said of messages."""
        chance = self.chance
        if self.past and chance.random() < 0.2:
            # of what it may no longer have
            chance.choice((self.done, self.failed, self.kept)).append(self.past.pop(0))
        for source, lease in self.done:
            # a status with fewer bits gives the lease back
            sections[f'{source}_completions'].append(
                {'message_id': lease[5], 'status': DONE[source] if chance.random() < 0.95 else chance.choice((0, 1))})
        for source, lease in self.failed:
            sections[f'{source}_failures'].append({'MessageId': lease[5], 'error': 'again'})
        for source, lease in self.kept:
            sections[f'renew_{source}_lease_ids'].append(lease[5])

    def new_messages(self, sections):
        """What it puts in: (messages, received messages)."""
        chance = self.chance
        messages, received = [], []
        if chance.random() < 0.2:
            self.serial += 1
            message = {'tag': f'{self.name}.b{self.serial}~{chance.choice(("", "ch", "h1"))}',
                       'topic': chance.choice(TOPICS), 'namespace': 'default', 'size': 0}
            messages.append(message)
            correlation, headers, tenant = marks(message['tag'])
            sections['new_outbox_messages'].append({
                'topic': message['topic'], 'payload': payload(message['tag']), 'correlation_id': correlation,
                'headers': headers, 'tenant_id': tenant})
        if chance.random() < 0.15:
            # others receive the same
            number = int(time.time() * 3)
            one = {'id': number_uuid(0x2B, number), 'tag': f'b{number}~h', 'stream': None, 'handler': HANDLER_NAMES[number % 2]}
            received.append(one)
            sections['new_inbox_messages'].append({
                'message_id': one['id'], 'handler_name': one['handler'], 'payload': payload(one['tag']),
                'headers': marks(one['tag'])[1]})
        return messages, received

    def receptor_key(self):
        """A message and a receptor; whether they are its own."""
        chance = self.chance
        if chance.random() < 0.4:
            return number_uuid(0x4F, chance.randrange(4)), 'of all', False
        return number_uuid(0x4E, chance.randrange(3)), f'of {self.name}', True

    def derived(self, sections):
        """What receptors and perspectives have done: two lists of [key, name, (last message,) status, error, failed]."""
        chance = self.chance
        receptors, perspectives = [], []
        while chance.random() < 0.3:
            entry = [chance.choice((None, 2, 3, 7)), chance.choice((None, f'e{self.serial}')), chance.random() < 0.4]
            key, name, _ = self.receptor_key()
            if chance.random() < 0.5:
                receptors.append([key, name, *entry])
            else:
                perspectives.append([key, name, chance.choice((None, number_uuid(0x50, chance.getrandbits(40)))), *entry])
        # completions count before failures
        for several in (receptors, perspectives):
            several.sort(key=lambda one: one[-1])
        for key, name, status, error, failed in receptors:
            sections['receptor_failures' if failed else 'receptor_completions'].append(
                {'message_id': key, 'receptor_name': name, 'status': status, 'error': error})
        for key, name, last, status, error, failed in perspectives:
            sections['perspective_failures' if failed else 'perspective_completions'].append(
                {'stream_id': key, 'perspective_name': name, 'last_message_id': last, 'status': status, 'error': error})
        return receptors, perspectives

    def look_at(self, condition, parameter):
        return self.call('look_at_leases', f"""
            SELECT id, owner_token::text, (extract(epoch FROM locked_until) * 1000000)::bigint, message_id::text
              FROM outbox.leases WHERE {condition} LIMIT 3""", (parameter,), parse=lambda rows: [list(row) for row in rows])

    def meddle(self, sections):
        """Name messages that are leased to others, which must change nothing; their ids."""
        others = self.look_at('owner_token <> %s::uuid', self.owner)
        for _, _, _, message_id in others:
            # their leases first: nothing else tells whether they were renewed
            what = self.chance.choices(('renew', 'complete', 'fail'), (4, 1, 1))[0]
            if what == 'renew':
                sections['renew_outbox_lease_ids'].append(message_id)
            elif what == 'complete':
                sections['outbox_completions'].append({'message_id': message_id, 'status': DONE['outbox']})
            else:
                sections['outbox_failures'].append({'MessageId': message_id, 'error': 'not mine'})
        return [row[0] for row in others]

    def work_batch(self):
        chance = self.chance
        sections = {name: [] for name in SECTIONS}
        self.reports(sections)
        others = self.meddle(sections) if chance.random() < 0.15 else []
        messages, received = self.new_messages(sections)
        receptors, perspectives = self.derived(sections)
        args = {'owner': self.owner, 'lease': self.LEASE, 'stale': self.STALE, 'batch': chance.randrange(1, 30),
                'flags': chance.choice((0, 0, KEEP_INBOX)), 'messages': messages, **{name: sections[name] for name in TOLD if sections[name]}}
        args.update({name: value for name, value in (
            ('received', received), ('receptors', receptors), ('perspectives', perspectives)) if value})
        named = ''.join(f', {name} => %({name})s::jsonb' for name, section in sections.items() if section)
        values = {name: json.dumps(section) for name, section in sections.items()}

        def parse(rows):
            return [[source, [row_id, judge(text, headers=headers), attempts, 0, 0, str(message_id)], partition, flags]
                    for source, row_id, message_id, text, headers, attempts, partition, flags in rows]

        taken = self.call('work_batch', f"""
            SELECT source, id, message_id, payload, headers, attempts, partition_number, flags
              FROM outbox.process_work_batch(%(owner)s::uuid, 'history', 'here', 1{named}, flags => %(flags)s,
                   partition_count => {self.PARTITIONS}, lease_seconds => %(lease)s, stale_threshold_seconds => %(stale)s, batch_size => %(batch)s)
            """, {**args, **values}, args=args, parse=parse)
        if others:
            self.look_at('id = ANY (%s)', others)
        if sections['renew_outbox_lease_ids'] and chance.random() < 0.5:
            self.look_at('message_id = ANY (%s::uuid[])', sections['renew_outbox_lease_ids'])
        return taken

    # the same one by one

    def report_one(self):
        """start_, complete_ and fail_ of a receptor or perspective."""
        chance = self.chance
        key, name, own = self.receptor_key()
        # attempts can be distinguished only where no other client begins any
        what = chance.choice(('start', 'complete', 'fail') if own else ('complete', 'fail'))
        error = f'f{self.serial}'
        if chance.random() < 0.5:
            args = {'receptors': [[key, name, None, error if what == 'fail' else None, what == 'fail']]}
            more = ', error => %(error)s' if what == 'fail' else ''
            kind = 'receptor'
        else:
            last = number_uuid(0x51, chance.getrandbits(40)) if what != 'start' else None
            args = {'perspectives': [[key, name, last, None, error if what == 'fail' else None, what == 'fail']],
                    'last': last}
            more = {'start': '', 'complete': ', last_message_id => %(last)s::uuid',
                    'fail': ', error => %(error)s, last_message_id => %(last)s::uuid'}[what]
            kind = 'perspective'
        self.call(f'{what}_{kind}', f'SELECT outbox.{what}_{kind}(%(key)s::uuid, %(name)s{more})',
                  {**args, 'key': key, 'name': name, 'error': error}, args=args,
                  parse=lambda rows: rows[0][0] if what == 'start' else None)

    # life

    def round(self):
        chance = self.chance
        if self.rounds == 0:
            if chance.random() < 0.6:
                self.call('deregister', 'SELECT outbox.deregister_instance(%s::uuid)', (self.owner,),
                          args={'owner': self.owner})
                self.call('look_for_leases', """
                    SELECT array_agg(id) FROM (SELECT id, owner_token, locked_until FROM outbox.queue UNION ALL
                                               SELECT id, owner_token, locked_until FROM outbox.inbox_queue) q
                     WHERE owner_token = %s::uuid AND locked_until > clock_timestamp()""", (self.owner,), args={'owner': self.owner})
            self.come()
        self.rounds -= 1
        self.serial += 1
        if chance.random() < 0.2:
            self.report_one()
        try:
            taken = self.work_batch()
        except Lost:
            self.come()
            raise
        except Refused:
            self.done, self.failed, self.kept = [], [], []
            raise
        taken = [entry[:2] for entry in taken]
        again = self.kept
        self.done, self.failed, self.kept = [], [], []
        for entry in taken + again:
            chance.choices((self.done, self.failed, self.kept, self.past), (85, 5, 5, 5))[0].append(entry)
        time.sleep(chance.random() * 0.02)
