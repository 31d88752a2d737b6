"""The suite of the Python client for asyncio; see suite.py."""

import asyncio
import os
import sys
from datetime import datetime, timedelta, timezone

import psycopg

from suite import GIVEN, STREAM, TENANT, check, lines, options, outbox, repeated, say


async def produce():
    conn = await psycopg.AsyncConnection.connect("")
    await outbox.enqueue(conn, "p.rolled-back", "x")
    await conn.rollback()
    async with conn.transaction():
        await conn.execute("INSERT INTO orders VALUES ('asyncio')")
        await outbox.enqueue(conn, "p.committed", {"order": 7})
        await outbox.enqueue(conn, "p.text", 'plain "text" é')
        made = await outbox.enqueue(
            conn, "p.options", "x", correlation_id="c-1", namespace="shop", tenant_id=TENANT,
            due_time=datetime(2030, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
            expires_at=datetime(2031, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
            dedupe_key=TENANT.replace("-", "") + "/k", stream_id=STREAM, message_id=GIVEN,
            headers={"region": "eu"}, dedupe_for=timedelta(hours=1), on_duplicate="keep",
            priority=1, traceparent="00-argument")
        await outbox.enqueue(conn, "p.trace", "x")
        await outbox.enqueue(conn, "p.own", "x", headers={"traceparent": "own"})
    check("enqueue answers the message_id", str(made), GIVEN)
    rows = await outbox.enqueue_batch(conn, [
        {"topic": "p.batch", "payload": "one"},
        {"topic": "p.batch", "payload": {"n": 2}, "dedupe_key": "twin"},
        {"topic": "p.batch", "payload": "three", "dedupe_key": "twin"}])
    check("a batch says what is new", [row[1:] for row in rows],
          [(True, "enqueued"), (True, "enqueued"), (False, "kept")])
    check("and whose a key is", rows[1][0], rows[2][0])
    await outbox.publish(conn, "p.news", "first")
    rows = await outbox.publish_batch(
        conn, [{"topic": "p.news", "payload": str(n)} for n in (2, 3)])
    check("publish_batch counts deliveries", [row[1] for row in rows], [1, 1])
    await conn.commit()


async def send():
    conn = await psycopg.AsyncConnection.connect("", autocommit=True)
    for how, one, many, messages in lines():
        try:
            if conn.closed:
                conn = await psycopg.AsyncConnection.connect("", autocommit=True)
            async with conn.transaction() as tx:
                await one(conn, **messages[0])
                await many(conn, messages[1:])
                if how == "rollback":
                    raise psycopg.Rollback(tx)
        except psycopg.Error as error:
            say("failed", type(error).__name__)
            await conn.close()


async def drain():
    conn = await psycopg.AsyncConnection.connect("", autocommit=True)
    seen, order = [], []
    worker = outbox.AsyncWorker("", concurrency=2)

    @worker.handle("d.ok")
    async def _(message):
        seen.append(message.payload)

    @worker.handle("d.retry")
    async def _(message):
        if message.attempts == 1:
            raise outbox.Retry("later", after=3600)

    @worker.handle("d.stream")
    async def _(message):
        order.append(message.payload)
        if order == ["1"]:
            raise outbox.Retry("again", after=0)

    for n in range(3):
        await outbox.enqueue(conn, "d.ok", str(n))
    for payload in "12":
        await outbox.enqueue(conn, "d.stream", payload, stream_id=STREAM)
    await outbox.enqueue(conn, "d.retry", "x")
    check("drain handles what is due", await worker.drain(), 5)
    check("and all of it", sorted(seen), ["0", "1", "2"])
    check("a message once, and none of its stream after one that goes back", order, ["1"])
    check("the next drain goes on", (await worker.drain(), order), (2, ["1", "1", "2"]))
    check("time does not pass by itself", await worker.drain(), 0)
    check("advance moves it", await outbox.advance(conn, 3660), 1)
    check("and drain follows", await worker.drain(), 1)


def handlers(worker):
    async def slow(message, seconds):
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            say("cancelled", message.id)
            raise
        say("handled", message.message_id, message.topic, message.attempts)

    async def handled(message):
        await slow(message, 0)

    async def effect(message, conn):
        await conn.execute("INSERT INTO effects VALUES (%s, %s)",
                           [message.message_id, message.attempts])

    async def serial(message, conn):
        await effect(message, conn)
        if not repeated.is_set():
            repeated.set()
            await conn.execute("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$")

    async def failing(message, conn):
        await effect(message, conn)
        if message.attempts == 1:
            raise ValueError(message.payload)

    async def permanent(message):
        raise outbox.Permanent("no such order", reason=4)

    async def text(message):
        raise outbox.Permanent("\0" + 499 * "é" + "\ud800" + 1000 * "é", reason=4)

    async def reason(message):
        raise outbox.Permanent("no such reason", reason=10 ** 10)

    async def odd(message):
        if message.attempts == 1:
            sys.exit()
        await handled(message)

    async def retry(message):
        if message.attempts == 1:
            raise outbox.Retry("later", after=0.2)
        await handled(message)

    async def error(message):
        if message.attempts == 1:
            raise ValueError(message.payload)
        await handled(message)

    async def late(message):
        await slow(message, 5 if message.attempts == 1 else 0)

    async def trace(message):
        say("trace", message.traceparent)

    async def stream(message):
        say("stream", message.payload)
        await asyncio.sleep(0.02)
        if message.payload == "3" and message.attempts == 1:
            raise outbox.Retry("again", after=0)
        say("passed", message.payload)

    worker.handle("w.ok", handled)
    worker.handle("w.trace", trace)
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


async def work():
    worker = outbox.AsyncWorker("", **options())
    if worker.subscription:
        @worker.handle("*")
        async def _(m):
            say("delivered", m.subscription, m.published_id, m.payload)
    else:
        handlers(worker)
    await worker.run()
    say("ended")


if __name__ == "__main__":
    asyncio.run({"produce": produce, "send": send, "drain": drain, "worker": work}[sys.argv[1]]())
