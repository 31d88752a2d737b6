"""Those who put something in: messages, joins, timers, runs, received messages."""

import functools
import json
import time

from clients import Client, Refused, age, timestamp
from plan import HANDLED, JOINED, BROKEN, RUN, TIMED, TOPICS, Plan, number_uuid, payload

ENQUEUE = """
    (topic => %(topic)s, payload => %(payload)s::text, namespace => %(namespace)s,
     dedupe_key => %(key)s, stream_id => %(stream)s::uuid,
     due_time => %(due)s::timestamptz, expires_at => %(expires)s::timestamptz)
"""


def parameters(message):
    return {
        'topic': message['topic'],
        'payload': payload(message['tag'], message['size']),
        'namespace': message['namespace'],
        'key': message.get('key'),
        'stream': message.get('stream'),
        'due': timestamp(message.get('due_at')),
        'expires': timestamp(message.get('expires_at')),
    }


class Producer(Client):
    kind = 'producer'

    def __init__(self, *more, amount, **options):
        super().__init__(*more)
        self.plan = Plan(options['seed'], self.db, self.slot, amount, options['streams'], options['keys'])
        self.amount = amount
        self.late = []      # what is to be done in later steps: (step number, function)

    def round(self):
        if self.board.made(self.slot) >= self.amount:
            return False
        # the step counts as begun, so a successor does not make its messages again
        self.number = self.board.take_step(self.slot)
        step = self.plan.step(self.number)
        try:
            getattr(self, step.kind)(step)
        finally:
            self.board.count(self.slot, step.size)
            due = [action for when, action in self.late if when <= self.number]
            self.late = [entry for entry in self.late if entry[0] > self.number]
        for action in due:
            if not self.connect():
                break
            try:
                action()
            except Refused:
                self.abandon()
        if step.chance.random() < 0.3:
            time.sleep(0.002)
        return True

    def finish(self):
        for _, action in self.late:
            action()

    # transactions

    def within(self, step, work):
        """Run work(tx) as the step demands."""
        if step.end == 'call':
            work('')
            return
        tx = self.begin()
        try:
            work(tx)
            if step.chance.random() < 0.03:
                time.sleep(step.chance.uniform(0.1, 1.5))   # idle, having written
            if step.end in ('commit', 'rollback'):
                self.end(tx, step.end)
                return
            self.end_in_two(tx, 'commit prepared' if step.end == 'prepare' else 'rollback prepared')
        except Refused:
            self.abandon()

    # messages

    def send(self, tx, form, messages):
        for message in messages:
            message['due_at'] = age(message.get('due'))
            message['expires_at'] = age(message.get('expires'))
        args = {'messages': messages}
        if form in ('enqueue', 'try_enqueue'):
            # message_id, enqueued
            result = '* FROM outbox.try_enqueue' if form == 'try_enqueue' else 'outbox.enqueue'
            return self.call(form, f'SELECT {result}{ENQUEUE}', parameters(messages[0]), tx, args,
                             lambda rows: [[str(rows[0][0]), rows[0][1] if len(rows[0]) > 1 else True]])
        if form == 'enqueue_many':
            first = messages[0]
            return self.call(form, """
                SELECT unnest(outbox.enqueue_many(%s, %s::text[], namespace => %s, stream_id => %s::uuid))
                """, (first['topic'], [payload(m['tag'], m['size']) for m in messages],
                      first['namespace'], first.get('stream')), tx, args,
                      lambda rows: [[str(row[0]), True] for row in rows])
        names = {'key': 'dedupe_key', 'stream': 'stream_id', 'due': 'due_time', 'expires': 'expires_at'}
        batch = [{names.get(name, name): value for name, value in parameters(message).items()
                  if value is not None} for message in messages]
        return self.call(form, 'SELECT message_id, enqueued FROM outbox.enqueue_batch(%s::jsonb) ORDER BY ordinal',
                         (json.dumps(batch),), tx, args, lambda rows: [[str(row[0]), row[1]] for row in rows])

    def messages(self, step):
        calls, undone = self.plan.messages(step)
        step.size = sum(len(messages) for _, messages in calls)

        def work(tx):
            for form, messages in calls:
                sent = self.send(tx, form, messages)
                if step.chance.random() < 0.02 and sent[0][1] and messages[0]['topic'] in TOPICS:
                    self.late.append((self.number + step.chance.randrange(1, 5),
                                      functools.partial(self.cancel, messages[0], sent[0][0])))
            if undone:
                self.call('savepoint', 'SAVEPOINT s', tx=f'{tx}/s')
                for form, messages in undone:
                    self.send(f'{tx}/s', form, messages)
                self.call('rollback', 'ROLLBACK TO SAVEPOINT s', tx=f'{tx}/s')

        self.within(step, work)

    def cancel(self, message, message_id):
        self.call('cancel', 'SELECT outbox.cancel(%s::uuid)', (message_id,), args={'tag': message['tag']})

    # joins

    def join(self, step):
        chance = step.chance
        expected = chance.randrange(1, 6)
        late = chance.random() < 0.3
        step.size = expected
        join = self.call('start_join', 'SELECT outbox.start_join(%s, %s)', (step.tag, expected),
                         args={'tag': step.tag, 'expected': expected})

        def message(number):
            # some of the steps fail
            topic, size = (HANDLED, chance.choice((0, 0, 99))) if chance.random() < 0.3 else (chance.choice(TOPICS), 0)
            return {'tag': f'{step.tag}.{number}', 'topic': topic, 'namespace': 'default', 'size': size}

        def wait(number):
            fails = chance.random() < 0.5
            on_fail = chance.random() < 0.7
            args = {'join': join, 'tag': f'{step.tag}.w{number}', 'if_failed': fails, 'on_fail': on_fail}
            self.call('enqueue_join_wait', """
                SELECT outbox.enqueue_join_wait(%s::uuid, %s, %s, %s::text, %s, %s::text)
                """, (join, fails, JOINED, payload(args['tag']), BROKEN if on_fail else None,
                      payload(args['tag']) if on_fail else None), args=args)

        def enqueue_step(tx, one):
            self.call('enqueue_step', """
                SELECT outbox.enqueue_step(%s::uuid, %s, %s::text, namespace => %s)
                """, (join, one['topic'], payload(one['tag'], one['size']), one['namespace']), tx,
                      {'join': join, 'messages': [one]}, lambda rows: [[str(rows[0][0]), True]])

        def attach(tx, message_id):
            self.call('attach', 'SELECT outbox.attach_message_to_join(%s::uuid, %s::uuid)', (join, message_id), tx,
                      {'join': join, 'member': message_id})

        def attach_later(number):
            one = message(number)
            sent = self.send('', 'enqueue', [one])
            self.late.append((self.number + chance.randrange(1, 30), lambda: attach('', sent[0][0])))

        def report(number):
            member = number_uuid(0x5E, chance.getrandbits(60))
            how = chance.choice(('completed', 'failed'))
            attach('', member)
            self.call('report', f'SELECT outbox.report_step_{how}(%s::uuid, %s::uuid)', (join, member),
                      args={'join': join, 'member': member, 'status': 1 if how == 'completed' else 2})

        waits = chance.randrange(0, 4)
        before = chance.randrange(0, waits + 1)
        for number in range(before):
            wait(number)
        surplus = chance.random() < 0.1     # more members than the join expects
        steps = list(range(expected + surplus))
        if late:
            attach_later(steps.pop())
        if steps and chance.random() < 0.15:
            report(steps.pop())
        self.within(step, lambda tx: [enqueue_step(tx, message(number)) for number in steps])
        for number in range(before, waits):
            wait(number)
        if chance.random() < 0.08:
            self.call('cancel_join', 'SELECT outbox.cancel_join(%s::uuid)', (join,), args={'join': join})

    # timers and runs

    def timer(self, step):
        chance = step.chance
        args = {'tag': step.tag, 'due_at': age(chance.randrange(0, 1200))}
        ids = []

        def work(tx):
            ids.append(self.call('schedule_timer', 'SELECT outbox.schedule_timer(%s, %s::text, %s::timestamptz)',
                                 (TIMED, payload(step.tag), timestamp(args['due_at'])), tx, args))

        self.within(step, work)

        def cancel():
            self.call('cancel_timer', 'SELECT outbox.cancel_timer(%s::uuid)', (ids[0],), args={'tag': step.tag})

        if ids and chance.random() < 0.5:
            if chance.random() < 0.5:
                cancel()
            else:
                self.late.append((self.number + chance.randrange(1, 40), cancel))

    def job(self, step):
        name = f'job {step.tag}'
        # without pg_cron a job comes by plain SQL
        self.call('create_job', 'INSERT INTO outbox.jobs (job_name, topic, cron_schedule, payload) VALUES (%s, %s, %s, %s)',
                  (name, RUN, '0 0 1 1 *', payload(step.tag)), args={'tag': step.tag})
        times = step.chance.randrange(1, 4)

        def work(tx):
            for _ in range(times):
                self.call('trigger_job', 'SELECT outbox.trigger_job(%s)', (name,), tx, {'tag': step.tag})

        self.within(step, work)

    # the inbox

    def inbox(self, step):
        """Several producers receive the same few messages."""
        chance = step.chance
        group = self.number // 25

        def work(tx):
            # in order, so that no two producers can wait for each other
            for which in sorted({chance.randrange(6) for _ in range(chance.randrange(1, 4))}):
                tag = f'i{group}.{which}'
                member = number_uuid(0x1B, group * 10 + which)
                stream = number_uuid(0x1C, which) if which >= 4 else None
                self.call('receive', 'SELECT outbox.receive(%s::uuid, %s, %s::text, stream_id => %s::uuid)',
                          (member, f'h{which % 2}', payload(tag), stream), tx,
                          {'id': member, 'tag': tag, 'stream': stream})

        self.within(step, work)
