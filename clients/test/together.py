"""All clients at once: they work in one database, while they are killed and the server restarts.

Each client has a worker for messages, one for a subscription, and a producer. The recorder
stands before the server and before PgBouncer and notes what they call; the history checker
(../../test/history) then decides whether that was right: nothing is lost or doubled, no two
leases overlap, what comes too late changes nothing, and each message ends once.
"""

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psycopg
from psycopg.types.string import TextLoader

HISTORY = Path(__file__).resolve().parents[2] / "test/history"
sys.path.insert(0, str(HISTORY))
from final import FINAL  # pylint: disable=wrong-import-position
from plan import BACKOFF_BASE, BACKOFF_MAX, MAX_ATTEMPTS, SUBSCRIPTIONS, payload  # pylint: disable=wrong-import-position
from record import OK, Recorder  # pylint: disable=wrong-import-position

TOPICS = {"w.ok": 40, "w.tx": 25, "w.stream": 16, "w.retry": 8, "w.error": 6, "w.permanent": 3, "w.timeout": 2}
PUBLISHED = ("pub.a", "pub.a", "pub.b.x", "pub.d.y")
SUBSCRIBED = ("all", "again")       # of the history's subscriptions those that want something of it
SETUP = """
CREATE SCHEMA app;
CREATE TABLE app.handled (tag text);
CREATE VIEW app.worked AS
    SELECT split_part(payload, '|', 1) AS tag FROM effects JOIN outbox.messages USING (message_id);
"""
DATABASE = "together"


class Together:
    """One run: clients are (name, case), a case starts the programs of one language."""

    def __init__(self, server, cases, folder, seed, options, report):
        self.server, self.cases, self.folder, self.report = server, cases, folder, report
        self.chance = random.Random(f"{seed}/together")
        self.batches, self.kills, self.restarts = (int(options.get(name, default)) for name, default in (
            ("batches", 60), ("kills", 40), ("restarts", 3)))
        self.histories = folder / "histories"
        self.histories.mkdir()
        self.faults = Recorder(self.histories, "faults")
        self.keeper = Recorder(self.histories, "keeper")
        self.workers, self.producers, self.lines, self.ports = {}, {}, {}, {}
        self.counts = {"kills": 0, "restarts": 0}
        self.ended = []

    def set_up(self):
        case = next(iter(self.cases.values()))
        conn = case.conn
        conn.execute(SETUP)
        for topic in TOPICS:
            conn.execute("SELECT outbox.configure_topic(%s, max_attempts => %s)", [topic, MAX_ATTEMPTS])
        for name in SUBSCRIBED:
            conn.execute("SELECT outbox.subscribe(%s, %s)", [name, [SUBSCRIPTIONS[name][0]]])
        for name, value in (("backoff_base", BACKOFF_BASE), ("backoff_max", BACKOFF_MAX)):
            conn.execute(f"ALTER DATABASE {DATABASE} SET outbox.{name} = '{value}ms'")
        errors = open(self.folder / "recorder.err", "wb")
        self.recorder = subprocess.Popen(
            [sys.executable, "-B", Path(__file__).parent / "recorder.py", self.histories], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
        bouncer = self.server.start_bouncer()
        for name in self.cases:
            self.ports[name] = [self.listen(f"{name}.{way}", port) for way, port in (
                ("direct", self.server.port), ("bouncer", bouncer))]

    def listen(self, name, port):
        self.recorder.stdin.write(f"{name} {DATABASE} {port}\n")
        self.recorder.stdin.flush()
        return int(self.recorder.stdout.readline())

    # what is sent

    def plan(self, name):
        """Lines for a producer: how a transaction ends, and what is in it."""
        for batch in range(self.batches):
            words = ["rollback" if self.chance.random() < 0.1 else "commit"]
            published = self.chance.random() < 0.2
            # with two, transactions could wait for each other
            stream = f"00000000-0000-4000-8000-{self.chance.randrange(12):012}"
            for place in range(self.chance.randrange(1, 12)):
                topic = (self.chance.choice(PUBLISHED) if published
                         else self.chance.choices(list(TOPICS), TOPICS.values())[0])
                ordered = topic == "w.stream" or published and self.chance.random() < 0.3
                tag = f"{name}.{batch}.{place}" + ".s" * ordered
                words.append(f"{topic},{payload(tag, self.chance.choice((0, 0, 50)))},{stream if ordered else '-'}")
            yield " ".join(words) + "\n"

    # the processes

    def start_worker(self, key):
        """(client, subscription, or '' for messages). The way there is another one each time."""
        name, subscription = key
        more = {"SUBSCRIPTION": subscription} if subscription else {}
        self.workers[key] = self.cases[name].worker(self.chance.choice(self.ports[name]), LEASE_SECONDS=4, **more)

    def start_producer(self, name):
        self.producers[name] = self.cases[name].sender(self.chance.choice(self.ports[name]))

    def tend(self):
        """Start workers again that have ended. Only those may that could not connect at all."""
        for key, worker in self.workers.items():
            if worker.process.poll() is not None:
                if worker.lines("event"):
                    self.ended.append((*key, worker.process.returncode, worker.text()[-1500:]))
                self.start_worker(key)

    def feed(self, share):
        """Give the producers their lines, up to a share of all."""
        for name, lines in self.lines.items():
            while len(lines) > self.batches - int(share * self.batches):
                producer = self.producers[name]
                try:
                    producer.process.stdin.write(lines.pop(0).encode())
                    producer.process.stdin.flush()
                except BrokenPipeError:
                    self.start_producer(name)

    def note_fault(self, family, name, work):
        number = self.faults.begin(DATABASE, "fault", "", {"family": family, "name": name})
        work()
        self.faults.end(number, OK)

    def kill(self):
        several, start = self.chance.choice(((self.workers, self.start_worker),) * 3
                                            + ((self.producers, self.start_producer),))
        key = self.chance.choice(sorted(several))

        def work():
            several[key].kill()
            start(key)
        self.note_fault("kill", "kill_client", work)
        self.counts["kills"] += 1

    def restart(self):
        mode = self.chance.choice(("immediate", "fast"))

        def work():
            self.server.stop(mode)
            self.server.start()
        self.note_fault("restart", mode, work)
        self.counts["restarts"] += 1

    # the run

    def load(self):
        self.lines = {name: list(self.plan(name)) for name in self.cases}
        for place, name in enumerate(self.cases):
            self.start_worker((name, ""))
            self.start_worker((name, SUBSCRIBED[place % 2]))
            if len(self.cases) == 1:
                self.start_worker((name, SUBSCRIBED[1]))
            self.start_producer(name)
        faults = [self.kill] * self.kills + [self.restart] * self.restarts
        self.chance.shuffle(faults)
        for number, fault in enumerate(faults):
            self.feed((number + 1) / (len(faults) + 1))
            time.sleep(self.chance.uniform(0.1, 0.8))
            fault()
            self.tend()
        self.feed(1)
        for producer in self.producers.values():
            producer.process.stdin.close()

    def rows(self, query):
        with psycopg.connect(f"host=localhost port={self.server.port} user=postgres dbname={DATABASE}",
                             autocommit=True) as conn:
            conn.adapters.register_loader("uuid", TextLoader)
            return conn.execute(query).fetchall()

    def drain(self, poll):
        ended = {name: poll(lambda: producer.process.poll() is not None, 60) and producer.process.returncode
                 for name, producer in self.producers.items()}
        self.report("together: the producers end", not any(ended.values()), ended)

        def empty():
            self.tend()
            return self.rows("SELECT NOT (EXISTS (SELECT FROM outbox.queue) OR outbox._publishes_later())")[0][0]
        self.report("together: all is worked off", poll(empty, 120),
                    self.rows("SELECT topic, state, count(*) FROM outbox.messages GROUP BY 1, 2"))
        poll(lambda: self.rows("""SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                                     AND state = 'active' AND query LIKE '%outbox.claim(%'
                                     AND pid <> pg_backend_pid()""")[0][0] >= len(self.workers))
        # docs/clients.md says what postgres.js does
        ended = [end for end in self.ended if end[0] != "postgresjs"]
        self.report("together: no worker ends by itself", not ended, ended)
        ended = {key: worker.terminate() for key, worker in self.workers.items()}
        self.report("together: the workers end well", all(code == 0 for code, _ in ended.values()), ended)
        number = self.keeper.begin(DATABASE, "final", "", {})
        self.keeper.end(number, OK, {name: self.rows(query) for name, query in FINAL.items()})
        self.recorder.stdin.close()
        self.recorder.wait()
        errors = (self.folder / "recorder.err").read_text()
        self.report("together: the recorder has understood all", not errors, errors)

    def shares(self):
        """Each client has done its part, and not only in name."""
        counts = {}
        for name in self.cases:
            text = "".join(path.read_text() for path in self.histories.glob(f"{name}.*"))
            counts[name] = {op: text.count(f'"{op}"') for op in
                            ("claim", "ack", "renew", "nack", "work", "commit", "enqueue_batch", "publish_batch")}
            print(f"# {name}: " + ", ".join(f"{count} {op}" for op, count in counts[name].items()), flush=True)
        self.report("together: each has produced and worked", all(
            row[op] for row in counts.values()
            for op in ("claim", "ack", "work", "enqueue_batch", "publish_batch")), counts)

    @staticmethod
    def checked(folder):
        return subprocess.run([sys.executable, "-B", HISTORY / "run.py", f"folder={folder}", "check=1"],
                              capture_output=True, text=True, check=False)

    def judge(self):
        done = self.checked(self.folder)
        lines = done.stdout.splitlines()
        print("".join(f"{line}\n" for line in lines if line.startswith(f"# {DATABASE}:")), end="")
        laws = [line for line in lines if line.startswith(("ok", "not ok", "#   "))]
        self.report(f"together: {sum(line.startswith('ok') for line in laws)} laws hold", done.returncode == 0,
                    "\n".join(line for line in laws if not line.startswith("ok")) + done.stderr[-2000:])

    # would the checker notice?

    def notes(self, op):
        """(args, result, when it ended) of calls that had a result and were no part of a transaction."""
        for path in sorted(self.histories.glob("*.history")):
            begun = {}
            for line in path.read_text().splitlines():
                count, what, at, *rest = json.loads(line)
                if what == "begin":
                    begun[count] = rest
                elif rest[0] == OK and rest[1] and begun[count][1:3] == [op, ""]:
                    yield begun[count][3], rest[1], at

    def plant(self, law, op, change, like=None, fit=bool):
        """A copy of the histories in which one call more has been noted, as a broken client or server
        would do it. It is made of another one."""
        folder = self.folder / law.replace(" ", "-")
        shutil.copytree(self.histories, folder / "histories")
        args, result, at = change(*self.chance.choice([note for note in self.notes(like or op) if fit(note[1])]))
        lines = [1, "begin", at, DATABASE, op, "", args], [1, "end", at + 1000, OK, result]
        (folder / "histories/planted.history").write_text("".join(json.dumps(line) + "\n" for line in lines))
        done = self.checked(folder)
        self.report(f"together: the checker would notice: {law}", f"not ok - {law}:" in done.stdout, done.stdout[-2000:])

    def blind(self):
        other = "00000000-0000-4000-8000-00000000000e"

        def steal(args, result, at):
            row_id, tag, attempt, begin, until, message_id = result[0]
            return {**args, "owner": other}, [[row_id, tag, attempt + 1, begin + 1, until, message_id]], begin + 1

        # of a message of no stream, which could be taken back with the one before it
        self.plant("leases overlap", "claim", steal, fit=lambda result: not result[0][1].endswith(".s"))
        self.plant("ack undone", "ack", lambda args, result, at: (args, len(args["ids"]), at + 1000))
        self.plant("stale settle", "ack", lambda args, result, at: ({**args, "owner": other}, len(args["ids"]), at))
        self.plant("lost", "enqueue_batch", lambda args, result, at: (
            {"messages": [{"tag": "never.seen", "topic": "w.ok", "namespace": "default", "stream": None}]},
            [[other, True]], at), "claim")

    def run(self, poll):
        self.set_up()
        try:
            self.load()
            print(f"# together: {self.counts['kills']} kills, {self.counts['restarts']} restarts", flush=True)
            self.drain(poll)
            self.shares()
        finally:
            for process in (*self.workers.values(), *self.producers.values()):
                if process.process.poll() is None:
                    process.kill()
            self.recorder.kill()
        self.judge()
        self.blind()
