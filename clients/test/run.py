"""Lead the suites of the clients through the same scenarios, on a server of their own.

    run.py bindir=... folder=... [seed=N] [only=SCENARIO,...] [batches=N] [kills=N] [restarts=N]
           [LANGUAGE...]

Each language has a database, and a program with three commands: produce and drain test
themselves and print TAP; worker handles the topics w.*, and prints what happens: begin,
handled, cancelled, and the events of its hook. That output is the world outside of the
database: it stays when the worker is killed. Prints TAP.
"""

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psycopg

from languages import LANGUAGES
from proxy import Proxy
from together import DATABASE, Together
from tutorials import follow

TOP = Path(__file__).resolve().parents[2]
numbers = {"ok": 0, "failed": 0}


def report(name, passed, details=""):
    numbers["ok" if passed else "failed"] += 1
    print(f"{'ok' if passed else 'not ok'} {sum(numbers.values())} - {name}", flush=True)
    if not passed:
        for line in str(details).splitlines()[-40:]:
            print(f"#   {line}", flush=True)


def equal(name, got, expected):
    report(name, got == expected,
           f"got      {repr(got)[-3000:]}\nexpected {repr(expected)[-3000:]}")


def poll(check, seconds=30):
    until = time.monotonic() + seconds
    while not (result := check()) and time.monotonic() < until:
        time.sleep(0.02)
    return result


def listens(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
        return True
    except OSError:
        return False


class Server:
    """A server with the library, and PgBouncer in front of it, in transaction mode."""

    def __init__(self, bindir, folder, port):
        self.bindir, self.data, self.folder, self.port = bindir, folder / "data", folder, port
        self.bouncer = None
        self._run("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
                  "--locale=C", "--no-sync")
        with open(self.data / "postgresql.conf", "a") as conf:
            conf.write(f"""
port = {port}
listen_addresses = 'localhost'
unix_socket_directories = '{folder}'
shared_preload_libraries = 'outbox'
max_connections = 200
autovacuum_naptime = 10s
""")
        self.start()

    def _run(self, program, *arguments):
        subprocess.run([Path(self.bindir) / program, *map(str, arguments)], check=True,
                       stdout=subprocess.DEVNULL)

    def start(self):
        self._run("pg_ctl", "-D", self.data, "-l", self.folder / "server.log", "-w", "-s", "start")

    def stop(self, mode):
        self._run("pg_ctl", "-D", self.data, "-m", mode, "-w", "-s", "stop")

    def start_bouncer(self):
        port = self.port + 1
        (self.folder / "users").write_text('"postgres" ""\n')
        (self.folder / "pgbouncer.ini").write_text(f"""[databases]
* = host={self.folder} port={self.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {self.folder}/users
pool_mode = transaction
default_pool_size = 40
server_login_retry = 1
ignore_startup_parameters = extra_float_digits
logfile = {self.folder}/pgbouncer.log
""")
        program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
        self.bouncer = subprocess.Popen([program, "-q", self.folder / "pgbouncer.ini"],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if not poll(lambda: listens(port)):
            raise RuntimeError(f"PgBouncer does not listen on port {port}")
        return port

    def end(self):
        if self.bouncer:
            self.bouncer.kill()
            self.bouncer.wait()
        self.stop("immediate")


class Worker:
    """A running suite, and what it has printed."""

    def __init__(self, case, port=None, command="worker", stdin=None, **environment):
        self.case = case
        self.output = case.folder / f"{command}-{case.counter}.out"
        case.counter += 1
        with open(self.output, "wb") as out:
            self.process = subprocess.Popen(
                case.language.suite + [command], stdin=stdin, stdout=out, stderr=subprocess.STDOUT,
                env=case.environment(port, **environment), start_new_session=True)

    def text(self):
        return self.output.read_text(errors="replace")

    def lines(self, kind):
        return [line.split()[1:] for line in self.text().splitlines()
                if line == kind or line.startswith(kind + " ")]

    def wait_for(self, kind, count=1, seconds=30):
        return poll(lambda: len(self.lines(kind)) >= count, seconds)

    def terminate(self, seconds=20):
        """SIGTERM; the exit code, and how long it took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds), time.monotonic() - began
        except subprocess.TimeoutExpired:
            self.kill()
            return "killed", time.monotonic() - began

    def signal_all(self, number):
        """A signal to all its processes."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def kill(self):
        self.signal_all(signal.SIGKILL)
        self.process.wait()


class Case:
    """One language: its database, its folder, and the scenarios."""

    def __init__(self, server, language, folder, seed, database=None):
        self.server, self.language, self.folder, self.counter = server, language, folder, 0
        self.seed = seed
        self.database = database or language.name
        self.workers = []
        folder.mkdir()

    def create_database(self):
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as conn:
            conn.execute(f'CREATE DATABASE "{self.database}"')
        self.connect()
        self.conn.execute("CREATE EXTENSION outbox")
        self.conn.execute("CREATE TABLE orders (who text)")
        self.conn.execute("CREATE TABLE effects (message_id uuid, attempts int)")
        self.conn.execute("SELECT outbox.subscribe('readers', '{p.news}')")

    def dsn(self, database=None):
        return (f"host=localhost port={self.server.port} user=postgres "
                f"dbname={database or self.database}")

    def environment(self, port=None, **more):
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return kept | self.language.environment | {
            "PGHOST": "localhost", "PGPORT": str(port or self.server.port), "PGUSER": "postgres",
            "PGDATABASE": self.database, "LC_ALL": "C.UTF-8"} | {
            name: str(value) for name, value in more.items()}

    def worker(self, port=None, **environment):
        self.workers.append(Worker(self, port, **environment))
        return self.workers[-1]

    def sender(self, port=None):
        """A producer, which takes what it is to send from its standard input."""
        return Worker(self, port, "send", subprocess.PIPE)

    def idle_worker(self, port=None, **environment):
        """One whose claim waits on the server."""
        worker = self.worker(port, **environment)
        poll(self.waits)
        return worker

    def waits(self):
        return self.value("""SELECT count(*) FROM pg_stat_activity
                              WHERE datname = current_database() AND pid <> pg_backend_pid()
                                AND state = 'active' AND query LIKE '%outbox.claim(%'""")

    def rows(self, query, *parameters):
        return self.conn.execute(query, parameters or None).fetchall()

    def value(self, query, *parameters):
        return self.rows(query, *parameters)[0][0]

    def enqueue(self, topic, *payloads, **options):
        given = "".join(f", {name} => %s" for name in options)
        return [str(self.value(f"SELECT outbox.enqueue(%s, %s::text{given})", topic, payload,
                               *options.values())) for payload in payloads]

    def unfinished(self, topics="w.%"):
        return self.value("""SELECT count(*) FROM outbox.messages
                              WHERE topic LIKE %s AND state IN ('ready', 'in progress')""", topics)

    def states(self, topic):
        return self.rows("""SELECT state, attempts FROM outbox.messages
                             WHERE topic = %s ORDER BY id""", topic)

    def ends_of(self, ids):
        return self.rows("""SELECT state, attempts FROM outbox.messages
                             WHERE message_id = ANY (%s::uuid[]) ORDER BY id""", ids)

    def equal(self, name, got, expected):
        equal(f"{self.language.name}: {name}", got, expected)

    def check(self, name, passed, details=""):
        report(f"{self.language.name}: {name}", passed, details)

    def no_leases(self, name):
        self.equal(name, self.value("SELECT count(*) FROM outbox.leases"), 0)

    # The scenarios

    def by_itself(self, command):
        """A command that tests itself."""
        done = subprocess.run(self.language.suite + [command], capture_output=True, text=True,
                              env=self.environment(TRACEPARENT="00-environment"), timeout=120)
        lines = re.findall(r"^(not ok|ok) - (.*)", done.stdout, re.M)
        for result, name in lines:
            self.check(f"{command}: {name}", result == "ok", done.stdout + done.stderr)
        self.equal(f"{command} ends well", (done.returncode, bool(lines)), (0, True))
        if done.returncode:
            print(done.stdout[-2000:] + done.stderr[-2000:])

    def produce(self):
        self.by_itself("produce")
        self.equal("what was rolled back is not there",
                   self.value("SELECT count(*) FROM outbox.messages WHERE topic = 'p.rolled-back'"), 0)
        self.equal("what was committed is, with its order", self.rows(
            """SELECT payload::jsonb, count(o.*) FROM outbox.messages m, orders o
                WHERE topic = 'p.committed' GROUP BY 1"""), [({"order": 7}, 1)])
        self.equal("a text arrives as it was", self.rows(
            "SELECT payload FROM outbox.messages WHERE topic = 'p.text'"), [('plain "text" é',)])
        self.equal("options arrive", self.rows(
            """SELECT correlation_id, namespace, tenant_id::text, dedupe_key, stream_id::text,
                      headers, priority, message_id::text, due_time = '2030-01-02 03:04:05Z',
                      expires_at = '2031-01-02 03:04:05Z'
                 FROM outbox.messages WHERE topic = 'p.options'"""),
            [("c-1", "shop", "00000000-0000-4000-8000-0000000000aa",
              "000000000000400080000000000000aa/k", "00000000-0000-4000-8000-000000000007",
              {"region": "eu", "traceparent": "00-argument"}, 1,
              "01234567-0000-4000-8000-000000000042", True, True)])
        self.equal("the trace is the environment's, unless there is one", self.rows(
            """SELECT topic, headers ->> 'traceparent' FROM outbox.messages
                WHERE topic IN ('p.trace', 'p.own', 'p.batch') ORDER BY id"""),
            [("p.trace", "00-environment"), ("p.own", "own"),
             ("p.batch", "00-environment"), ("p.batch", "00-environment")])
        self.equal("a batch arrives", self.rows(
            """SELECT payload = 'one', payload LIKE '{%' AND payload::jsonb = '{"n": 2}'
                 FROM outbox.messages WHERE topic = 'p.batch' ORDER BY id"""),
            [(True, False), (False, True)])

    def subscription(self):
        worker = self.worker(SUBSCRIPTION="readers")
        worker.wait_for("delivered", 3)
        self.equal("a subscription's deliveries are handled", sorted(
            (line[0], line[2]) for line in worker.lines("delivered")),
            [("readers", "2"), ("readers", "3"), ("readers", "first")])
        self.equal("and a worker that waits ends at once", self.ends(worker), (0, True))
        self.no_leases("without leases")

    def ends(self, worker, seconds=3):
        code, took = worker.terminate()
        return (code, took < seconds) if code == 0 and took < seconds else (
            code, took, worker.text()[-1500:])

    def work(self):
        stream = "00000000-0000-4000-8000-000000000001"
        self.conn.execute("SELECT outbox.enqueue_many('w.ok', array_agg(i::text))"
                          " FROM generate_series(1, 1000) i")
        trace = self.enqueue("w.trace", "x", headers='{"traceparent": "00-abc"}')
        transacted = self.enqueue("w.tx", *map(str, range(20)))
        serial = self.enqueue("w.serial", "x")
        failing = self.enqueue("w.txfail", "a secret")
        self.enqueue("w.permanent", "x")
        self.enqueue("w.retry", "x")
        self.enqueue("w.error", "a secret")
        self.enqueue("w.timeout", "x")
        self.enqueue("w.stream", *map(str, range(1, 7)), stream_id=stream)
        worker = self.worker(LEASE_SECONDS=6)
        poll(lambda: not self.unfinished())
        self.equal("all is worked off", self.unfinished(), 0)
        if self.unfinished():
            print(worker.text()[-3000:])
        self.equal("each message once", len(set(line[0] for line in worker.lines("handled")
                                                if line[1] == "w.ok")), 1000)
        self.equal("the trace is there", worker.lines("trace"), [["00-abc"]])
        self.equal("what handlers write commits with the ack", sorted(map(str, (
            row[0] for row in self.rows("SELECT message_id FROM effects")))),
            sorted(transacted + serial + failing))
        self.equal("40001 repeats a transaction in the same attempt", self.states("w.serial"),
                   [("done", 1)])
        self.equal("a failed one is rolled back, and tried again", self.rows(
            "SELECT attempts FROM effects WHERE message_id = %s", failing[0]), [(2,)])
        self.equal("Permanent makes a dead letter", self.rows(
            """SELECT state, attempts, last_error, failure_reason FROM outbox.messages
                WHERE topic = 'w.permanent'"""), [("failed", 1, "no such order", 4)])
        self.equal("Retry comes again", self.states("w.retry"), [("done", 2)])
        self.equal("so does what takes too long", self.states("w.timeout"), [("done", 2)])
        self.equal("and is cancelled", len(worker.lines("cancelled")), 1)
        errors = [row[0] for row in self.rows(
            """SELECT l.error FROM outbox.attempts_log l JOIN outbox.messages m USING (id)
                WHERE m.topic IN ('w.error', 'w.txfail')""")]
        self.check("an error is recorded without the payload",
                   len(errors) == 2 and all(errors) and "secret" not in "".join(errors), errors)
        steps = [words[1] + words[0] for words in re.findall(
            r"^(stream|passed) (\d)", worker.text(), re.M)]
        self.equal("a stream keeps its order", [step[0] + step[1] for step in steps],
                   "1s 1p 2s 2p 3s 3s 3p 4s 4p 5s 5p 6s 6p".split())
        settled = [line for line in worker.lines("event") if line[0] == "settled"]
        self.check("acks are gathered", len(settled) < 400 and
                   max(int(line[1]) for line in settled) <= 100, settled)
        self.equal("and all are in time", {line[2] for line in settled}, {"0"})
        asked = [int(line[2]) for line in worker.lines("event") if line[0] == "claimed"]
        self.check("batches grow while there is much to do, to 100 at most",
                   4 < max(asked) <= 100, asked)
        began = time.monotonic()
        self.enqueue("w.ok", "last")
        worker.wait_for("handled", 1004)
        self.check("a waiting worker wakes up", time.monotonic() - began < 0.5 and
                   len(worker.lines("handled")) >= 1004, worker.text()[-1000:])
        self.equal("spans are begun for each", len(worker.lines("begin")) >= 1030, True)
        self.equal("SIGTERM ends it at once", self.ends(worker), (0, True))
        self.equal("and run() returns", worker.lines("ended"), [[]])
        self.no_leases("nothing is leased after that")

    def stop(self):
        ids = self.enqueue("w.slow", '{"seconds": 1}', '{"seconds": 1}')
        worker = self.worker()
        worker.wait_for("begin", 2)
        self.equal("SIGTERM lets handlers end", self.ends(worker, 5), (0, True))
        self.equal("and their messages are done", [
            row for row in self.states("w.slow")], [("done", 1)] * len(ids))
        late = self.enqueue("w.slow", '{"seconds": 60}')
        worker = self.worker(SHUTDOWN_SECONDS=0.5)
        worker.wait_for("begin")
        self.equal("but not longer than it may wait", self.ends(worker, 5), (0, True))
        self.equal("what is left is released, and does not count", self.rows(
            "SELECT state, attempts FROM outbox.messages WHERE message_id = %s", late[0]),
            [("ready", 0)])
        self.conn.execute("SELECT outbox.purge_topic('w.slow')")

    def kill(self):
        slow = self.enqueue("w.slow", '{"seconds": 1}')
        transacted = self.enqueue("w.tx", *map(str, range(200)))
        worker = self.worker(LEASE_SECONDS=2)
        worker.wait_for("begin", 30)
        worker.kill()
        handled = [line for line in worker.lines("handled") if line[0] == slow[0]]
        worker = self.worker(LEASE_SECONDS=2)
        poll(lambda: not self.unfinished())
        handled += [line for line in worker.lines("handled") if line[0] == slow[0]]
        self.equal("kill -9 in mid-message: another worker does it", handled,
                   [[slow[0], "w.slow", "2"]])
        self.equal("and transactions happen once", self.value(
            "SELECT count(*) = 200 AND count(DISTINCT message_id) = 200 FROM effects"
            " WHERE message_id = ANY(%s::uuid[])", transacted), True)
        self.equal("ends", self.ends(worker), (0, True))

    def rob(self):
        self.enqueue("w.slow", '{"seconds": 60}')
        worker = self.worker(LEASE_SECONDS=3)
        worker.wait_for("begin")
        (owner, id), = self.rows("SELECT owner_token, id FROM outbox.leases WHERE topic = 'w.slow'")
        began = time.monotonic()
        thief = "00000000-0000-4000-8000-00000000000f"
        with self.conn.transaction():
            self.conn.execute("SELECT outbox.release(%s, %s::bigint[])", [owner, [id]])
            self.conn.execute("SELECT outbox.claim(%s, topics => '{w.slow}', lease_seconds => 60)",
                              [thief])
        worker.wait_for("cancelled")
        self.equal("a handler whose lease is lost is cancelled", worker.lines("cancelled"),
                   [[str(id)]])
        self.check("within a third of the lease", time.monotonic() - began < 2.5)
        poll(lambda: ["finished", str(id), "lost"] in worker.lines("event"), 5)
        self.check("the hook hears of it", ["lost", str(id)] in worker.lines("event") and
                   ["finished", str(id), "lost"] in worker.lines("event"), worker.text())
        self.equal("a long lease is renewed", self.value(
            "SELECT outbox.ack_one(%s, %s)", thief, id), 1)
        long = self.enqueue("w.slow", '{"seconds": 5}')
        worker.wait_for("handled", 1)
        self.equal("and its handler ends in its first attempt",
                   worker.lines("handled"), [[long[0], "w.slow", "1"]])
        again = self.enqueue("w.slow", '{"seconds": 4}')
        worker.wait_for("begin", 3)
        (id,), = self.rows("SELECT id FROM outbox.leases")
        self.conn.execute("SELECT outbox.release(%s, %s::bigint[])", [owner, [id]])
        worker.wait_for("handled", 2)
        self.equal("a message that comes back to a worker that had it is handled once",
                   (worker.lines("handled")[1:], worker.lines("cancelled")[1:]),
                   ([[again[0], "w.slow", "2"]], [[str(id)]]))
        self.equal("ends then", self.ends(worker), (0, True))

    def load(self, port=None):
        """600 messages while something happens; all must be done."""
        before = self.value("SELECT count(*) FROM effects")
        worker = self.idle_worker(port, LEASE_SECONDS=4)
        plain = self.enqueue("w.ok", *map(str, range(300)))
        transacted = self.enqueue("w.tx", *map(str, range(300)))
        return worker, plain, transacted, before

    def loaded(self, what, load):
        worker, plain, _, before = load
        poll(lambda: not self.unfinished(), 60)
        self.equal(f"{what}: all is worked off", self.unfinished(), 0)
        handled = {line[0] for line in worker.lines("handled")}
        self.equal(f"{what}: everything was handled", set(plain) - handled, set())
        self.equal(f"{what}: transactions once", self.value("SELECT count(*) FROM effects") - before,
                   300)
        self.equal(f"{what}: none twice", self.value(
            "SELECT count(*) FROM effects GROUP BY message_id ORDER BY 1 DESC LIMIT 1"), 1)
        self.equal(f"{what}: the worker lives, and ends", self.ends(worker, 5), (0, True))

    def no_errors(self, name, ids):
        self.equal(name, self.rows(
            """SELECT l.error, count(*) FROM outbox.attempts_log l JOIN outbox.messages m USING (id)
                WHERE m.message_id = ANY (%s::uuid[]) GROUP BY 1""", ids), [])

    def restart_server(self, mode):
        self.server.stop(mode)
        self.server.start()
        self.connect()

    def connect(self):
        self.conn = psycopg.connect(self.dsn(), autocommit=True)

    def restart(self):
        load = self.load()
        self.restart_server("immediate")
        self.loaded("a crash of the server", load)
        self.check("the hook hears of reconnecting", "reconnect" in load[0].text())

    def terminate(self):
        load = self.load()
        for _ in range(5):
            self.conn.execute("""SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                                  WHERE datname = current_database() AND pid <> pg_backend_pid()
                                    AND backend_type = 'client backend'""")
            time.sleep(0.1)
        self.loaded("terminated backends", load)

    def bouncer(self):
        port = self.server.start_bouncer()
        load = self.load(port)
        poll(lambda: not self.unfinished(), 60)
        began = time.monotonic()
        last = self.enqueue("w.ok", "wake up")
        poll(lambda: last[0] in load[0].text(), 5)
        self.check("through PgBouncer a waiting worker wakes up", time.monotonic() - began < 0.5)
        self.loaded("PgBouncer", load)
        self.no_errors("no transaction failed through PgBouncer", load[2])
        self.no_leases("nothing is leased through PgBouncer")
        self.server.bouncer.kill()
        self.server.bouncer.wait()
        self.server.bouncer = None

    def odd(self):
        """What handlers say and do that others would not."""
        odd = self.enqueue("w.odd", "x")
        self.enqueue("w.text", "x")
        reason = self.enqueue("w.reason", "x")
        worker = self.worker()
        poll(lambda: not self.unfinished("w.%"))
        self.equal("a text is cut at 500 characters, and no error of its own", self.rows(
            """SELECT state, left(last_error, 499) = repeat('é', 499), length(last_error), failure_reason
                 FROM outbox.messages WHERE topic = 'w.text'"""), [("failed", True, 500, 4)])
        self.equal("nor is a reason that there is not", self.ends_of(reason), [("failed", 1)])
        self.equal("a handler that ends in an odd way has not succeeded", (
            self.ends_of(odd), worker.lines("handled")), ([("done", 2)], [[odd[0], "w.odd", "2"]]))
        self.equal("and the worker lives on", self.ends(worker), (0, True))

    def outage(self):
        """While the server is away: timeouts, leases and SIGTERM."""
        self.enqueue("w.slow", '{"seconds": 60}')
        self.enqueue("w.slow", '{"seconds": 0.6}')
        self.enqueue("w.timeout", "x")
        worker = self.worker(LEASE_SECONDS=4, TIMEOUT_SECONDS=2, SHUTDOWN_SECONDS=1)
        worker.wait_for("begin", 3)
        began = time.monotonic()
        self.server.stop("fast")
        worker.wait_for("cancelled", 1, 20)
        self.check("a handler is cancelled that takes too long while the server is away",
                   time.monotonic() - began < 4.8, time.monotonic() - began)
        worker.wait_for("cancelled", 2, 20)
        self.check("and one whose lease ends meanwhile",
                   time.monotonic() - began < 10, (time.monotonic() - began, worker.text()))
        code, took = worker.terminate()
        self.check("SIGTERM is obeyed without the server", code != "killed" and took < 8, (code, took))
        self.server.start()
        self.connect()
        # what nobody could acknowledge comes again
        worker = self.worker(LEASE_SECONDS=4)
        self.conn.execute("SELECT outbox.purge_topic('w.slow')")
        poll(lambda: not self.unfinished("w.timeout"))
        self.equal("and the next worker goes on", self.unfinished("w.timeout"), 0)
        worker.kill()
        self.conn.execute("SELECT outbox.release(owner_token) FROM outbox.leases")
        self.conn.execute("SELECT outbox.purge_topic('w.slow')")

    def idle(self):
        """The server restarts while nothing happens."""
        worker = self.worker(LEASE_SECONDS=30)
        self.enqueue("w.tx", *map(str, range(20)))
        poll(lambda: not self.unfinished("w.tx") and self.waits())
        self.restart_server("fast")
        poll(self.waits)
        ids = self.enqueue("w.tx", *map(str, range(20)))
        poll(lambda: not self.unfinished("w.tx"))
        self.equal("connections that broke while they were idle fail no message", self.ends_of(ids),
                   [("done", 1)] * 20)
        self.no_errors("nor is an error recorded", ids)
        self.equal("and it ends", self.ends(worker), (0, True))

    def orphan(self):
        """kill -9 of nothing but the main process, while it waits for messages."""
        worker = self.idle_worker()
        worker.process.kill()
        worker.process.wait()
        late = self.enqueue("w.ok", "x")
        other = self.worker()
        began = time.monotonic()
        poll(lambda: not self.unfinished("w.ok"), 40)
        self.check("what a killed worker waited for, another one has at once",
                   time.monotonic() - began < 4 and late[0] in other.text(), time.monotonic() - began)
        worker.kill()
        self.equal("which ends", self.ends(other), (0, True))

    def pause(self):
        """SIGSTOP past the end of the lease."""
        slow = self.enqueue("w.slow", '{"seconds": 60}')
        worker = self.worker(LEASE_SECONDS=2)
        worker.wait_for("begin")
        worker.signal_all(signal.SIGSTOP)
        thief = "00000000-0000-4000-8000-00000000000f"
        poll(lambda: self.value("SELECT count(*) FROM outbox.claim(%s, topics => '{w.slow}', lease_seconds => 60)", thief))
        worker.signal_all(signal.SIGCONT)
        began = time.monotonic()
        worker.wait_for("cancelled", 1, 10)
        self.check("a worker that was stopped notices that another has its message",
                   len(worker.lines("cancelled")) == 1 and time.monotonic() - began < 1.5, worker.text())
        self.equal("and leaves it alone", self.value("SELECT sum(outbox.ack_one(%s, id)) FROM outbox.leases", thief), 1)
        # its claim may have got the message once more while it was stopped
        self.equal("also if it was claimed for it again", len(worker.lines("begin")), 1)
        self.equal("the message is done", [row[0] for row in self.ends_of(slow)], ["done"])
        self.equal("it ends", self.ends(worker), (0, True))

    def cut(self):
        """Replies are lost: the server has done what was asked, and the worker does not know."""
        proxy = Proxy(self.server.port, self.seed)
        stream = "00000000-0000-4000-8000-000000000002"
        worker = self.idle_worker(proxy.port, CONCURRENCY=1)

        def lose(request, topic, *payloads, **options):
            proxy.lose_reply(request)
            began = time.monotonic()
            ids = self.enqueue(topic, *payloads, **options)
            poll(lambda: not self.unfinished(topic))
            self.check(f"the reply to {request.decode()} was lost", proxy.lost.wait(5))
            self.check("and it takes no lease's time to go on", time.monotonic() - began < 8, time.monotonic() - began)
            return ids

        ids = lose(b"outbox.claim(", "w.stream", "1", "2", "4", stream_id=stream)
        self.equal("what was claimed without an answer is before what comes after it in its stream", [
            tuple(words) for words in re.findall(r"^(stream|passed) (\d)", worker.text(), re.M)],
            [(word, number) for number in "124" for word in ("stream", "passed")])
        self.equal("and it is no attempt", self.ends_of(ids), [("done", 1)] * 3)
        ids = lose(b"outbox.ack(", "w.ok", "x")
        self.equal("an ack is repeated, the handler is not", (
            self.ends_of(ids), len(worker.lines("handled"))), ([("done", 1)], 1))
        before = self.value("SELECT count(*) FROM effects")
        lose(b"commit", "w.tx", "x")
        self.equal("a commit without an answer is not done twice",
                   self.value("SELECT count(*) FROM effects") - before, 1)
        ids = lose(b"outbox.nack_one(", "w.retry", "x")
        self.equal("handing back twice is once", self.ends_of(ids), [("done", 2)])
        self.equal("it ends in spite of that", self.ends(worker), (0, True))
        self.no_leases("nothing is leased in spite of lost replies")
        worker = self.idle_worker(proxy.port)
        proxy.crumbs = True
        self.enqueue("w.ok", *map(str, range(60)))
        poll(lambda: not self.unfinished("w.ok"))
        self.equal("replies may come in crumbs", self.unfinished("w.ok"), 0)
        self.equal("it ends then, too", self.ends(worker), (0, True))
        proxy.close()

    def run(self, only):
        self.create_database()
        scenarios = only or ["drain", "produce", "subscription", "work", "stop", "kill", "orphan", "rob", "odd",
                             "pause", "cut", "outage", "idle", "restart", "terminate", "bouncer", "tutorial"]
        for name in scenarios:
            if name in self.language.without:
                continue
            began = time.monotonic()
            if name == "together":
                continue
            try:
                if name == "drain":
                    self.by_itself("drain")
                elif name == "tutorial":
                    follow(self, TOP / "docs" / "tutorials")
                else:
                    getattr(self, name)()
            except Exception as error:
                self.check(f"{name} ends without an error", False, repr(error))
            finally:
                for worker in self.workers:
                    if worker.process.poll() is None:
                        worker.kill()
                self.workers = []
            print(f"# {self.language.name}: {name} took {time.monotonic() - began:.1f} s", flush=True)


def run_together(server, languages, folder, seed, settings):
    folder.mkdir()
    cases = {language.name: Case(server, language, folder / language.name, seed, DATABASE) for language in languages}
    next(iter(cases.values())).create_database()
    Together(server, cases, folder, seed, settings, report).run(poll)


def main():
    settings = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
    names = [word for word in sys.argv[1:] if "=" not in word] or list(LANGUAGES)
    if wrong := set(names) - set(LANGUAGES):
        sys.exit(f"there is no client called {', '.join(sorted(wrong))}")
    folder = Path(settings["folder"])
    seed = settings.get("seed") or str(random.randrange(1000000))
    print(f"# seed={seed}", flush=True)
    only = settings["only"].split(",") if "only" in settings else []
    server = Server(settings["bindir"], folder, int(settings.get("port", 5432)))
    try:
        languages = [LANGUAGES[name](TOP / "clients", folder) for name in names]
        for language in languages:
            if only != ["together"]:
                Case(server, language, folder / language.name, seed).run(only)
        if not only or "together" in only:
            run_together(server, languages, folder / "together", seed, settings)
    finally:
        server.end()
    print(f"1..{sum(numbers.values())}\n{numbers['ok']} passed, {numbers['failed']} failed")
    sys.exit(1 if numbers["failed"] else 0)


if __name__ == "__main__":
    main()
