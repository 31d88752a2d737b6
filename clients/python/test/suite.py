"""The suite of the Python client: suite.py produce | send | drain | worker. See ../../test/run.py."""

import os
import sys
import threading
from datetime import datetime, timedelta, timezone

import psycopg

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import outbox

TENANT = "00000000-0000-4000-8000-0000000000aa"
GIVEN = "01234567-0000-4000-8000-000000000042"
STREAM = "00000000-0000-4000-8000-000000000007"
lock = threading.Lock()
repeated = threading.Event()


def say(*words):
    with lock:
        print(*words, flush=True)


def check(name, got, expected):
    say("ok" if got == expected else "not ok", "-", name)
    if got != expected:
        say(f"# got {got!r}, not {expected!r}")


def produce():
    conn = psycopg.connect("")
    outbox.enqueue(conn, "p.rolled-back", "x")
    conn.rollback()
    with conn.transaction():
        conn.execute("INSERT INTO orders VALUES ('python')")
        outbox.enqueue(conn, "p.committed", {"order": 7})
        outbox.enqueue(conn, "p.text", 'plain "text" é')
        made = outbox.enqueue(
            conn, "p.options", "x", correlation_id="c-1", namespace="shop", tenant_id=TENANT,
            due_time=datetime(2030, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
            expires_at=datetime(2031, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
            dedupe_key=TENANT.replace("-", "") + "/k", stream_id=STREAM, message_id=GIVEN,
            headers={"region": "eu"}, dedupe_for=timedelta(hours=1), on_duplicate="keep",
            priority=1, traceparent="00-argument")
        outbox.enqueue(conn, "p.trace", "x")
        outbox.enqueue(conn, "p.own", "x", headers={"traceparent": "own"})
    check("enqueue answers the message_id", str(made), GIVEN)
    try:
        outbox.enqueue(conn, "p.unknown", "x", colour="red")
        check("an unknown option is an error", "none", "TypeError")
    except TypeError as error:
        check("an unknown option is an error", str(error), "there is no option colour")
    rows = outbox.enqueue_batch(conn, [
        {"topic": "p.batch", "payload": "one"},
        {"topic": "p.batch", "payload": {"n": 2}, "dedupe_key": "twin"},
        {"topic": "p.batch", "payload": "three", "dedupe_key": "twin"}])
    check("a batch says what is new", [row[1:] for row in rows],
          [(True, "enqueued"), (True, "enqueued"), (False, "kept")])
    check("and whose a key is", rows[1][0], rows[2][0])
    outbox.publish(conn, "p.news", "first")
    rows = outbox.publish_batch(conn, [{"topic": "p.news", "payload": str(n)} for n in (2, 3)])
    check("publish_batch counts deliveries", [row[1] for row in rows], [1, 1])
    conn.commit()


def lines():
    """Those that run.py sends: how a transaction ends, and its messages, as topic,payload,stream."""
    for line in sys.stdin:
        how, *words = line.split()
        messages = [dict(zip(("topic", "payload", "stream_id"), word.split(","))) for word in words]
        for message in messages:
            if message["stream_id"] == "-":
                del message["stream_id"]
        published = messages[0]["topic"].startswith("pub.")
        one, many = ((outbox.publish, outbox.publish_batch) if published
                     else (outbox.enqueue, outbox.enqueue_batch))
        yield how, one, many, messages


def send():
    conn = psycopg.connect("", autocommit=True)
    for how, one, many, messages in lines():
        try:
            if conn.closed:
                conn = psycopg.connect("", autocommit=True)
            with conn.transaction() as tx:
                one(conn, **messages[0])
                many(conn, messages[1:])
                if how == "rollback":
                    raise psycopg.Rollback(tx)
        except psycopg.Error as error:
            say("failed", type(error).__name__)
            conn.close()


def drain():
    conn = psycopg.connect("", autocommit=True)
    seen, order = [], []
    worker = outbox.Worker("", concurrency=2)

    @worker.handle("d.ok")
    def _(message):
        seen.append(message.payload)

    @worker.handle("d.fail")
    def _(message):
        raise outbox.Permanent("no such order", reason=4)

    @worker.handle("d.retry")
    def _(message):
        if message.attempts == 1:
            raise outbox.Retry("later", after=3600)

    @worker.handle("d.stream")
    def _(message):
        order.append(message.payload)
        if order == ["1"]:
            raise outbox.Retry("again", after=0)

    for n in range(3):
        outbox.enqueue(conn, "d.ok", str(n))
    for payload in "12":
        outbox.enqueue(conn, "d.stream", payload, stream_id=STREAM)
    outbox.enqueue(conn, "d.ok", "in an hour",
                   due_time=datetime.now(timezone.utc) + timedelta(hours=1))
    outbox.enqueue(conn, "d.fail", "x")
    outbox.enqueue(conn, "d.retry", "x")
    check("drain handles what is due", worker.drain(), 6)
    check("and nothing else", sorted(seen), ["0", "1", "2"])
    check("what is dead says why", conn.execute(
        "SELECT last_error, failure_reason FROM outbox.messages WHERE topic = 'd.fail'").fetchone(),
        ("no such order", 4))
    check("a message once, and none of its stream after one that goes back", order, ["1"])
    check("the next drain goes on", (worker.drain(), order), (2, ["1", "1", "2"]))
    check("time does not pass by itself", worker.drain(), 0)
    check("advance moves it", outbox.advance(conn, 3660), 2)
    check("and drain follows", worker.drain(), 2)
    check("to the end", seen[3:], ["in an hour"])


def handlers(worker):
    """What the scenarios of run.py ask for."""
    def slow(message, seconds):
        if message.cancelled.wait(seconds):
            say("cancelled", message.id)
            message.raise_if_cancelled()
        say("handled", message.message_id, message.topic, message.attempts)

    def handled(message):
        slow(message, 0)

    def effect(message, conn):
        conn.execute("INSERT INTO effects VALUES (%s, %s)", [message.message_id, message.attempts])

    def serial(message, conn):
        effect(message, conn)
        if not repeated.is_set():
            repeated.set()
            conn.execute("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$")

    def failing(message, conn):
        effect(message, conn)
        if message.attempts == 1:
            raise ValueError(message.payload)

    def permanent(message):
        raise outbox.Permanent("no such order", reason=4)

    def text(message):
        raise outbox.Permanent("\0" + 499 * "é" + "\ud800" + 1000 * "é", reason=4)

    def reason(message):
        raise outbox.Permanent("no such reason", reason=10 ** 10)

    def odd(message):
        if message.attempts == 1:
            sys.exit()
        handled(message)

    def retry(message):
        if message.attempts == 1:
            raise outbox.Retry("later", after=0.2)
        handled(message)

    def error(message):
        if message.attempts == 1:
            raise ValueError(message.payload)
        handled(message)

    def late(message):
        slow(message, 5 if message.attempts == 1 else 0)

    def stream(message):
        say("stream", message.payload)
        message.cancelled.wait(0.02)
        if message.payload == "3" and message.attempts == 1:
            raise outbox.Retry("again", after=0)
        say("passed", message.payload)

    worker.handle("w.ok", handled)
    worker.handle("w.trace", lambda message: say("trace", message.traceparent))
    worker.handle("w.tx", effect, transaction=True)
    worker.handle("w.serial", serial, transaction=True)
    worker.handle("w.txfail", failing, transaction=True)
    worker.handle("w.permanent", permanent)
    worker.handle("w.retry", retry)
    worker.handle("w.error", error)
    worker.handle("w.slow", lambda message: slow(message, message.json()["seconds"]))
    worker.handle("w.timeout", late, timeout_seconds=float(os.environ.get("TIMEOUT_SECONDS", 0.3)))
    worker.handle("w.stream", stream)
    worker.handle("w.text", text)
    worker.handle("w.reason", reason)
    worker.handle("w.odd", odd)


def hook(event, **fields):
    if "message" in fields:
        fields["message"] = fields["message"].id
    say("event", event, *(fields[name] for name in fields if name != "seconds"))


def wrap(message, call):
    say("begin", message.id, message.topic)
    return call()


def options():
    return {"concurrency": int(os.environ.get("CONCURRENCY", 4)),
            "lease_seconds": int(os.environ.get("LEASE_SECONDS", 30)),
            "shutdown_seconds": float(os.environ.get("SHUTDOWN_SECONDS", 10)),
            "subscription": os.environ.get("SUBSCRIPTION"), "hook": hook, "wrap": wrap}


def work():
    worker = outbox.Worker("", **options())
    if worker.subscription:
        worker.handle("*", lambda m: say("delivered", m.subscription, m.published_id, m.payload))
    else:
        handlers(worker)
    worker.run()
    say("ended")


if __name__ == "__main__":
    {"produce": produce, "drain": drain, "send": send, "worker": work}[sys.argv[1]]()
