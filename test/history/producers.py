"""Those who put something in: messages, joins, timers, runs, received messages."""

import functools
import json
import time

from clients import Client, Refused, age, timestamp
from plan import (BROKEN, BROKEN_SIZE, HANDLED, HANDLER_NAMES, JOINED, NAMESPACES, RUN, TIMED, TOPICS, Plan, marks, number_uuid,
                  payload)

ENQUEUE = """
    (topic => %(topic)s, payload => %(payload)s::text, namespace => %(namespace)s,
     dedupe_key => %(key)s, stream_id => %(stream)s::uuid,
     due_time => %(due)s::timestamptz, expires_at => %(expires)s::timestamptz,
     correlation_id => %(correlation)s, headers => %(headers)s::jsonb, tenant_id => %(tenant)s::uuid,
     priority => %(priority)s)
"""
PUBLISH = """
    SELECT outbox.publish(%(topic)s, %(payload)s::text, stream_id => %(stream)s::uuid, correlation_id => %(correlation)s,
           headers => %(headers)s::jsonb, tenant_id => %(tenant)s::uuid)
"""


def as_json(value):
    return None if value is None else json.dumps(value)


def parameters(message):
    correlation, headers, tenant = marks(message['tag'])
    return {
        'correlation': correlation,
        'headers': as_json(headers),
        'tenant': tenant,
        'topic': message['topic'],
        'payload': payload(message['tag'], message['size']),
        'namespace': message.get('namespace', 'default'),
        'key': message.get('key'),
        'stream': message.get('stream'),
        'due': timestamp(message.get('due_at')),
        'expires': timestamp(message.get('expires_at')),
        'priority': message.get('priority'),
    }


class Producer(Client):
    kind = 'producer'

    def __init__(self, *more, amount, **options):
        super().__init__(*more)
        self.plan = Plan(options['seed'], self.db, self.slot, options['streams'], options['keys'])
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
        """Run work(tx) as the step demands, again if it met a serialization failure."""
        for _ in range(10):
            try:
                self.within_once(step, work)
                return
            except Refused as refused:
                self.abandon()
                if refused.sqlstate != '40001' or step.end == 'call':
                    return

    def within_once(self, step, work):
        if step.end == 'call':
            work('')
            return
        tx = self.begin()
        work(tx)
        # idle, having written; so that subscriptions begin while it is
        if step.chance.random() < (0.25 if step.kind == 'publish' else 0.03):
            time.sleep(step.chance.uniform(0.1, 1.5))
        if step.end in ('commit', 'rollback'):
            self.end(tx, step.end)
        else:
            self.end_in_two(tx, 'commit prepared' if step.end == 'prepare' else 'rollback prepared')

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
                SELECT unnest(outbox.enqueue_many(%s, %s::text[], namespace => %s, stream_id => %s::uuid,
                       headers => %s::jsonb))
                """, (first['topic'], [payload(m['tag'], m['size']) for m in messages],
                      first['namespace'], first.get('stream'), as_json(marks(first['tag'])[1])), tx, args,
                      lambda rows: [[str(row[0]), True] for row in rows])
        names = {'key': 'dedupe_key', 'stream': 'stream_id', 'due': 'due_time', 'expires': 'expires_at',
                 'correlation': 'correlation_id', 'tenant': 'tenant_id'}
        batch = [{names.get(name, name): json.loads(value) if name == 'headers' else value
                  for name, value in parameters(message).items() if value is not None} for message in messages]
        return self.call(form, 'SELECT message_id, enqueued FROM outbox.enqueue_batch(%s::jsonb) ORDER BY ordinal',
                         (json.dumps(batch),), tx, args, lambda rows: [[str(row[0]), row[1]] for row in rows])

    def messages(self, step):
        calls, undone = self.plan.messages(step)
        step.size = sum(len(messages) for _, messages in calls)

        def work(tx):
            for form, messages in calls:
                sent = self.send(tx, form, messages)
                key = messages[0].get('key')
                if step.chance.random() < (0.3 if key else 0.04) and sent[0][1] and messages[0]['topic'] in TOPICS:
                    # the key of what is not committed may become another's
                    cancel = self.cancel_by_key if key and not tx else self.cancel
                    self.late.append((self.number + step.chance.randrange(0 if key else 1, 5),
                                      functools.partial(cancel, messages[0], sent[0][0])))
            if undone:
                self.call('savepoint', 'SAVEPOINT s', tx=f'{tx}/s')
                for form, messages in undone:
                    self.send(f'{tx}/s', form, messages)
                self.call('rollback', 'ROLLBACK TO SAVEPOINT s', tx=f'{tx}/s')

        self.within(step, work)

    def cancel(self, message, message_id):
        self.call('cancel', 'SELECT outbox.cancel(%s::uuid)', (message_id,), args={'tag': message['tag']})

    def cancel_by_key(self, message, _):
        self.call('cancel', 'SELECT outbox.cancel_by_key(%s, %s, %s)',
                  (message['topic'], message['key'], message['namespace']), args={'tag': message['tag']})

    # publications

    def publish(self, step):
        calls = self.plan.publications(step)

        def work(tx):
            for form, several in calls:
                args, first = {'published': several}, several[0]
                if form == 'publish':
                    self.call(form, PUBLISH, parameters(first), tx, args, lambda rows: [str(rows[0][0])])
                else:
                    self.call(form, 'SELECT unnest(outbox.publish_many(%s, %s::text[], stream_id => %s::uuid, headers => %s::jsonb))',
                              (first['topic'], [payload(one['tag'], one['size']) for one in several], first['stream'],
                               as_json(marks(first['tag'])[1])), tx, args, lambda rows: [str(row[0]) for row in rows])

        self.within(step, work)

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
            tag = f'{step.tag}.{number}~{chance.choice(("", "ch", "c1", "h2"))}'
            return {'tag': tag, 'topic': topic, 'namespace': 'default', 'size': size}

        def wait(number):
            fails = chance.random() < 0.5
            on_fail = chance.random() < 0.7
            tag = f'{step.tag}.w{number}~{chance.choice(("", "h"))}'
            args = {'join': join, 'tag': tag, 'if_failed': fails, 'on_fail': on_fail, 'namespace': chance.choice(NAMESPACES)}
            # the two continuations differ in size
            self.call('enqueue_join_wait', """
                SELECT outbox.enqueue_join_wait(%s::uuid, %s, %s, %s::text, %s, %s::text, namespace => %s, headers => %s::jsonb)
                """, (join, fails, JOINED, payload(tag), BROKEN if on_fail else None,
                      payload(tag, BROKEN_SIZE) if on_fail else None, args['namespace'], as_json(marks(tag)[1])), args=args)

        def enqueue_step(tx, one):
            self.call('enqueue_step', """
                SELECT outbox.enqueue_step(%(join)s::uuid, %(topic)s, %(payload)s::text, namespace => %(namespace)s,
                       correlation_id => %(correlation)s, headers => %(headers)s::jsonb, tenant_id => %(tenant)s::uuid)
                """, {'join': join, **parameters(one)}, tx,
                      {'join': join, 'messages': [one]}, lambda rows: [[str(rows[0][0]), True]])

        def attach(tx, message_id):
            self.call('attach', 'SELECT outbox.attach_message_to_join(%s::uuid, %s::uuid)', (join, message_id), tx,
                      {'join': join, 'member': message_id})

        def attach_later(number):
            one = message(number)
            sent = self.send('', 'enqueue', [one])
            if chance.random() < 0.5:
                # it may end while it becomes a member
                tx = self.begin()
                attach(tx, sent[0][0])
                time.sleep(chance.uniform(0.02, 0.4))
                self.end(tx, 'commit')
                return
            self.late.append((self.number + chance.randrange(1, 30), lambda: attach('', sent[0][0])))

        def report(number):
            member = number_uuid(0x5E, chance.getrandbits(60))
            how = chance.choice(('completed', 'failed'))
            attach('', member)
            self.call('report', f'SELECT outbox.report_step_{how}(%s::uuid, %s::uuid)', (join, member),
                      args={'join': join, 'member': member, 'status': 1 if how == 'completed' else 2})
            if chance.random() < 0.7:
                # what is repeated, or contradicts, changes nothing
                how = chance.choice(('completed', 'failed'))
                self.call('report_again', f'SELECT outbox.report_step_{how}(%s::uuid, %s::uuid)', (join, member), args={'join': join})

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
        if chance.random() < 0.16:
            # at once, or when it may have ended
            cancel = functools.partial(self.call, 'cancel_join', 'SELECT outbox.cancel_join(%s::uuid)', (join,), args={'join': join})
            if chance.random() < 0.5:
                cancel()
            else:
                self.late.append((self.number + chance.randrange(1, 30), cancel))

    # timers and runs

    def timer(self, step):
        chance = step.chance
        tag = f'{step.tag}~{chance.choice(("", "c"))}'
        args = {'tag': tag, 'due_at': age(chance.randrange(0, 1200))}
        ids = []

        def work(tx):
            ids.append(self.call('schedule_timer', 'SELECT outbox.schedule_timer(%s, %s::text, %s::timestamptz, %s)',
                                 (TIMED, payload(tag), timestamp(args['due_at']), marks(tag)[0]), tx, args))

        self.within(step, work)

        def cancel():
            self.call('cancel_timer', 'SELECT outbox.cancel_timer(%s::uuid)', (ids[-1],), args={'tag': tag})

        if ids and chance.random() < 0.5:
            if chance.random() < 0.5:
                cancel()
            else:
                self.late.append((self.number + chance.randrange(1, 40), cancel))

    def job(self, step):
        tag = f'{step.tag}~j'
        name = f'job {tag}'
        # without pg_cron a job comes by plain SQL
        self.call('create_job', 'INSERT INTO outbox.jobs (job_name, topic, cron_schedule, payload) VALUES (%s, %s, %s, %s)',
                  (name, RUN, '0 0 1 1 *', payload(tag)), args={'tag': tag})
        times = step.chance.randrange(1, 4)

        def work(tx):
            for _ in range(times):
                self.call('trigger_job', 'SELECT outbox.trigger_job(%s)', (name,), tx, {'tag': tag})

        self.within(step, work)
        if step.chance.random() < 0.2:
            # what waits or runs is not touched by this
            self.call('set_job_enabled', 'SELECT outbox.set_job_enabled(%s, false)', (name,))
        elif step.chance.random() < 0.1:
            self.late.append((self.number + step.chance.randrange(1, 20), functools.partial(self.delete_job, name, tag)))

    def delete_job(self, name, tag):
        """Runs that wait go with it."""
        self.call('delete_job', 'SELECT outbox.delete_job(%s)', (name,), args={'tag': tag})

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
                          (member, HANDLER_NAMES[which % 2], payload(tag), stream), tx,
                          {'id': member, 'tag': tag, 'stream': stream, 'handler': HANDLER_NAMES[which % 2]})

        self.within(step, work)


class Sparse(Producer):
    """Goes on until the end, and leaves those alone who wait for something to come."""
    kind = 'worker'

    def round(self):
        # there are times in which nothing else wakes a claim
        time.sleep(self.chance.uniform(0.05, 0.3) if self.chance.random() < 0.6 else self.chance.uniform(1.5, 3))
        return super().round()
