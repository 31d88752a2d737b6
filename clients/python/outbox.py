"""A client of outbox for psycopg 3: functions that enqueue in the caller's transaction,
and workers that run handlers in threads (Worker) or in tasks of asyncio (AsyncWorker).

Both are one event loop, which claims, settles and renews on two connections; threads run
nothing but handlers. ../README.md is the design that the clients have in common.
"""
from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import os
import random
import re
import signal
import threading
import time
import uuid
from datetime import datetime, timedelta
from typing import Any, Callable, Iterable, TypedDict, Unpack

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

_OPTIONS = {
    "correlation_id": "text", "due_time": "timestamptz", "namespace": "text",
    "tenant_id": "uuid", "dedupe_key": "text", "stream_id": "uuid", "headers": "jsonb",
    "expires_at": "timestamptz", "message_id": "uuid", "dedupe_for": "interval",
    "on_duplicate": "text", "priority": "int"}
_COLUMNS = """id message_id namespace topic payload headers correlation_id tenant_id dedupe_key
    stream_id attempts retry_count created_at due_time locked_until subscription published_id
    priority""".split()
_ENQUEUE_BATCH = """SELECT message_id, enqueued, outcome
                      FROM outbox.enqueue_batch(%s::jsonb) ORDER BY ordinal"""
_PUBLISH_BATCH = """SELECT message_id, deliveries
                      FROM outbox.publish_batch(%s::jsonb) ORDER BY ordinal"""
_CLAIM = f"""SELECT {', '.join(_COLUMNS)}
               FROM outbox.claim(%s::uuid, %s::int, %s::int, %s::text, %s::text[],
                                 %s::uuid, %s::int, %s::int, %s::text)"""
_ACK = "SELECT outbox.ack(%s::uuid, %s::bigint[], %s::int[])"
_ACK_ONE = "SELECT outbox.ack_one(%s::uuid, %s::bigint, %s::int, strict => true)"
_NACK = """SELECT outbox.release(%s::uuid, %s::bigint[]),
                  outbox.nack_one(%s::uuid, %s::bigint, %s::text, %s::interval, %s::int)"""
_FAIL = "SELECT outbox.fail_one(%s::uuid, %s::bigint, %s::text, %s::int, %s::int)"
_RENEW = "SELECT outbox.renew(%s::uuid, %s::bigint[], %s::int, %s::int[])"
_LOST = """SELECT id, attempt FROM unnest(%s::bigint[], %s::int[]) AS held(id, attempt)
            WHERE outbox.renew_one(%s::uuid, id, %s::int, attempt) = 0"""
_RELEASE = "SELECT outbox.release(%s::uuid, %s::bigint[])"
_RELEASE_ALL = "SELECT outbox.release(%s::uuid)"
_ADVANCE = """SELECT coalesce(sum(outbox.reschedule(ARRAY[id], next_attempt_at - %s::interval)), 0)
                FROM outbox.messages
               WHERE state = 'ready' AND next_attempt_at > clock_timestamp()"""

_ACK_SECONDS, _ACK_IDS, _TRANSACTION_TRIES = 0.005, 100, 3

Options = TypedDict("Options", {
    "correlation_id": str, "due_time": datetime, "namespace": str, "tenant_id": uuid.UUID | str,
    "dedupe_key": str, "stream_id": uuid.UUID | str, "headers": dict[str, Any],
    "expires_at": datetime, "message_id": uuid.UUID | str, "dedupe_for": timedelta,
    "on_duplicate": str, "priority": int, "traceparent": str}, total=False)


class Permanent(Exception):
    """The message can never be handled: it becomes a dead letter with this text."""

    def __init__(self, text: str = "", reason: int | None = None):
        super().__init__(text)
        self.reason = reason


class Retry(Exception):
    """The message is handed out again after so many seconds, or the server's backoff."""

    def __init__(self, text: str = "", after: float | None = None):
        super().__init__(text)
        self.after = None if after is None else timedelta(seconds=after)


class LeaseLost(Exception):
    """Another worker has the message, or soon will have: nothing more counts."""


# Producer

def _as_text(payload) -> str:
    return payload if isinstance(payload, str) else json.dumps(payload)


def _complete(options: Options) -> dict:
    """The options as arguments of the server: traceparent becomes a header."""
    given = {name: value for name, value in options.items() if value is not None}
    trace = given.pop("traceparent", None) or os.environ.get("TRACEPARENT")
    if unknown := given.keys() - _OPTIONS.keys():
        raise TypeError(f"there is no option {', '.join(sorted(unknown))}")
    if trace:
        given["headers"] = {"traceparent": trace, **given.get("headers", {})}
    return given


def _one(function: str, topic: str, payload, options: Options):
    given = _complete(options)
    if "headers" in given:
        given["headers"] = json.dumps(given["headers"])
    named = "".join(f", {name} => %s::{_OPTIONS[name]}" for name in given)
    return (f"SELECT outbox.{function}(%s::text, %s::text{named})",
            [topic, _as_text(payload), *given.values()])


def _batch(messages) -> list[str]:
    return [json.dumps([
        {"topic": message["topic"], "payload": _as_text(message["payload"]),
         **_complete({name: value for name, value in message.items()
                      if name not in ("topic", "payload")})}
        for message in messages], default=str)]


def _rows(conn, sql, parameters):
    with conn.cursor(row_factory=tuple_row) as cursor:
        return cursor.execute(sql, parameters, prepare=False).fetchall()


async def _arows(conn, sql, parameters):
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(sql, parameters, prepare=False)
        return await cursor.fetchall()


def _send(conn, statement, result):
    async def asend():
        return result(await _arows(conn, *statement))
    if isinstance(conn, psycopg.AsyncConnection):
        return asend()
    return result(_rows(conn, *statement))


def enqueue(conn, topic: str, payload, **options: Unpack[Options]):
    """Enqueue a message in the connection's transaction; its message_id. As all functions
    here, it is to be awaited if the connection is an AsyncConnection."""
    return _send(conn, _one("enqueue", topic, payload, options), lambda rows: rows[0][0])


def publish(conn, topic: str, payload, **options: Unpack[Options]):
    """Publish a message for all who have subscribed; the published id."""
    return _send(conn, _one("publish", topic, payload, options), lambda rows: rows[0][0])


def enqueue_batch(conn, messages: Iterable[dict]):
    """Enqueue dictionaries with topic, payload, options: (message_id, enqueued, outcome)."""
    return _send(conn, (_ENQUEUE_BATCH, _batch(messages)), list)


def publish_batch(conn, messages: Iterable[dict]):
    """Publish dictionaries with topic, payload and options: (published id, deliveries)."""
    return _send(conn, (_PUBLISH_BATCH, _batch(messages)), list)


def advance(conn, seconds: float):
    """For tests: all waiting messages become due that much earlier; how many."""
    return _send(conn, (_ADVANCE, [timedelta(seconds=seconds)]), lambda rows: int(rows[0][0]))


class Message:
    """A claimed message: the columns of outbox.message, and whether it is cancelled."""

    def __init__(self, row):
        self.__dict__.update(zip(_COLUMNS, row))
        self.cancelled = threading.Event()
        self._outcome = None            # decided once: ack, retry, fail or lost
        self._interrupt = None          # ends what its handler waits for
        self._thread = None             # done when the thread of its handler has ended

    def json(self):
        """The payload, decoded."""
        return json.loads(self.payload)

    @property
    def traceparent(self) -> str | None:
        return (self.headers or {}).get("traceparent")

    def _cancel(self) -> None:
        self.cancelled.set()
        if self._interrupt:
            self._interrupt()

    def raise_if_cancelled(self) -> None:
        if self.cancelled.is_set():
            raise LeaseLost()

    def _begin_ack(self) -> None:
        """The handler's transaction is about to acknowledge: from here on, that decides."""
        if self._outcome:
            raise LeaseLost()
        self._outcome = "ack"

    def _undo_ack(self, error: Exception, left: int) -> None:
        """It was rolled back: raise the error, unless it is to be repeated."""
        begun = self._outcome == "ack"
        if begun:
            self._outcome = None
        state = getattr(error, "sqlstate", None)
        if begun and state == "55000":
            raise LeaseLost() from None
        if not left or state not in ("40001", "40P01"):
            raise error


class _Hand:
    """What a worker has in hand: what is next, and how many to ask for."""

    def __init__(self, slots: int, most: int):
        self.slots, self.most, self.target = slots, max(slots, most), slots
        self.waiting: list[Message] = []
        self.running: set[Message] = set()
        self.full, self.claimed = False, 0.0

    def ask(self) -> int:
        """How many messages to claim now; 0 if no slot is free for one."""
        held, free = len(self.waiting) + len(self.running), self.slots - len(self.running)
        if free == 0 or self._startable() is not None:
            return 0
        took = time.monotonic() - self.claimed
        if not self.full or took > 0.5:
            self.target = self.slots
        elif took < 0.1:
            self.target = min(2 * self.target, self.most)
        return min(max(self.target - held, free), self.most - held)

    def take(self, messages: list[Message], asked: int) -> None:
        self.full, self.claimed = len(messages) == asked, time.monotonic()
        self.waiting += messages

    def _startable(self) -> int | None:
        busy = {message.stream_id for message in self.running} - {None}
        return next((index for index, message in enumerate(self.waiting)
                     if message.stream_id not in busy), None)

    def next(self) -> Message | None:
        """A message that may be handled now."""
        if len(self.running) == self.slots or (index := self._startable()) is None:
            return None
        message = self.waiting.pop(index)
        self.running.add(message)
        return message

    def drop(self, wanted: Callable[[Message], bool]) -> list[int]:
        """Take out what no handler has begun; the ids."""
        dropped = [message for message in self.waiting if wanted(message)]
        self.waiting = [message for message in self.waiting if message not in dropped]
        return [message.id for message in dropped]


def _repeatable(error: psycopg.Error) -> bool:
    if error.sqlstate is None:          # the connection has gone, or cannot be made
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    return re.match("08|40001|40P01|57P0[123]", error.sqlstate) is not None


def _describe(error: BaseException) -> str:
    """What is recorded of an error: never a text that may quote the payload."""
    if isinstance(error, (Permanent, Retry)):
        return str(error)[:500].replace("\0", "")
    state = getattr(error, "sqlstate", None)
    return type(error).__name__ + (f" {state}" if state else "")


class AsyncWorker:
    """Runs handlers, which are coroutines, in tasks. Those that lose their lease or take
    too long are cancelled."""

    def __init__(self, connect: str | Callable[[], str], *, concurrency: int = 10,
                 subscription: str | None = None, namespace: str | None = None,
                 tenant_id: uuid.UUID | str | None = None, max_attempts: int | None = None,
                 lease_seconds: int = 30, wait_ms: int = 20000, max_batch: int = 100,
                 shutdown_seconds: float = 25, hook: Callable[..., None] | None = None,
                 wrap: Callable | None = None):
        """connect is a connection string, or a function that returns one.
        hook(event, **fields) and wrap(message, call) are for metrics and spans."""
        self._connect = connect if callable(connect) else lambda: connect
        self.concurrency, self.max_batch = concurrency, max_batch
        self.subscription, self.namespace, self.tenant_id = subscription, namespace, tenant_id
        self.max_attempts, self.lease_seconds, self.wait_ms = max_attempts, lease_seconds, wait_ms
        self.shutdown_seconds, self._wrap = shutdown_seconds, wrap
        self._hook = hook or (lambda event, **fields: None)
        self._handlers: dict[str, tuple[Callable, float | None, bool]] = {}

    def handle(self, topic: str, handler: Callable | None = None, *,
               timeout_seconds: float | None = None, transaction: bool = False):
        """Have handler(message) run for the topic, or for all others if it is '*'. With
        transaction it is handler(message, conn), and the ack commits with its writes.
        Without handler, a decorator."""
        if handler is None:
            return lambda function: self.handle(
                topic, function, timeout_seconds=timeout_seconds, transaction=transaction)
        self._handlers[topic] = (handler, timeout_seconds, transaction)
        return handler

    async def run(self) -> None:
        """Work until SIGTERM, SIGINT or stop()."""
        await self._run(False)

    async def drain(self) -> int:
        """For tests: work until nothing is due, without waiting; how many were handled."""
        return await self._run(True)

    def stop(self) -> None:
        """Begin to end run(). Called twice, do not wait for handlers. From another thread:
        loop.call_soon_threadsafe(worker.stop)."""
        if self._ended.is_set():
            self._deadline = 0
        self._ended.set()
        self._to_claim.set()

    async def _run(self, draining: bool) -> int:
        if not self._handlers:
            raise ValueError("no topic has a handler")
        self.owner = uuid.uuid4()
        self._hand = _Hand(self.concurrency, self.max_batch)
        self._draining, self._handled, self._error = draining, 0, None
        self._acks: list[Message] = []
        self._acks_since = 0.0
        self._calls: list[tuple[str, list]] = []    # what fails or goes back
        self._renew_at = time.monotonic() + self.lease_seconds / 3
        self._deadline, self._closing = float("inf"), False
        self._ended, self._to_claim, self._to_settle = (asyncio.Event() for _ in "123")
        self._tasks, self._free = set(), []         # handlers, and connections for them
        self._conns = {"claim": await self._open(), "settle": await self._open()}
        self._loop = loop = asyncio.get_running_loop()
        in_main = threading.current_thread() is threading.main_thread()
        signals = (signal.SIGTERM, signal.SIGINT) if in_main else ()
        for number in signals:
            loop.add_signal_handler(number, self.stop)
        claimer = asyncio.create_task(self._guard(self._claim_loop()))
        settler = asyncio.create_task(self._guard(self._settle_loop()))
        try:
            await self._ended.wait()
            await self._shut_down(claimer, settler)
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
            left = [m._thread for m in self._hand.running if m._thread]
            for task in (claimer, settler, *self._tasks, *left):
                task.cancel()
            for conn in (*self._conns.values(), *self._free):
                if (closing := conn.close()) is not None:
                    await closing
        if self._error:
            raise self._error
        return self._handled

    async def _guard(self, loop) -> None:
        try:
            await loop
        except Exception as error:
            self._error = self._error or error
            self.stop()

    async def _shut_down(self, claimer, settler) -> None:
        self._deadline = min(self._deadline, time.monotonic() + self.shutdown_seconds)
        while not claimer.done():
            with contextlib.suppress(psycopg.Error):
                await asyncio.to_thread(self._conns["claim"].cancel)
            await asyncio.wait([claimer], timeout=0.1)
        self._calls.append((_RELEASE, [self.owner, self._hand.drop(lambda message: True)]))
        self._to_settle.set()
        while self._hand.running and time.monotonic() < self._deadline and not settler.done():
            await asyncio.sleep(0.01)
        for message in list(self._hand.running):
            self._judge(message, LeaseLost())
            message._cancel()
        self._closing = True
        self._to_settle.set()
        await asyncio.wait([settler], timeout=5)

    async def _open(self) -> psycopg.AsyncConnection:
        return await psycopg.AsyncConnection.connect(
            self._connect(), autocommit=True, prepare_threshold=None)

    async def _call(self, name: str, sql: str, parameters: list) -> tuple[list, bool]:
        """The rows of a statement, and whether it was repeated."""
        delay, repeated = 0.1, False
        while True:
            try:
                if self._conns[name].closed:
                    self._conns[name] = await self._open()
                return await _arows(self._conns[name], sql, parameters), repeated
            except psycopg.Error as error:
                if name == "claim" and (self._ended.is_set() or error.sqlstate == "57014"):
                    return [], False
                if not _repeatable(error) or time.monotonic() > self._deadline + 2:
                    raise
                await self._conns[name].close()
                self._hook("reconnect", error=_describe(error))
            await asyncio.sleep(delay * random.uniform(0.5, 1))
            delay, repeated = min(2 * delay, 5), True

    # Claim and handle

    async def _claim_loop(self) -> None:
        topics = None if "*" in self._handlers else list(self._handlers)
        wait_ms = 0 if self._draining else self.wait_ms
        while not self._ended.is_set():
            self._to_claim.clear()
            if not (asked := self._hand.ask()):
                await self._to_claim.wait()
                continue
            idle = not (self._hand.running or self._acks or self._calls)
            rows, _ = await self._call("claim", _CLAIM, [
                self.owner, self.lease_seconds, asked, self.namespace, topics,
                self.tenant_id, self.max_attempts, wait_ms, self.subscription])
            self._hand.take([Message(row) for row in rows], asked)
            self._hook("claimed", count=len(rows), asked=asked)
            self._start()
            if self._draining and not rows:
                if idle:
                    self.stop()
                await asyncio.sleep(0.01)

    def _start(self) -> None:
        while not self._ended.is_set() and (message := self._hand.next()):
            task = asyncio.create_task(self._guard(self._handle(message)))
            message._interrupt = task.cancel
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _handle(self, message: Message) -> None:
        handler, timeout, transaction = self._handlers.get(message.topic) or self._handlers["*"]
        began, error = time.monotonic(), None
        try:
            async with asyncio.timeout(timeout):
                await self._invoke(message, handler, transaction)
        except asyncio.CancelledError:
            error = LeaseLost()
        except Exception as raised:
            error = raised
        self._judge(message, error)
        if message._thread and not message._thread.done():
            message._cancel()
            await asyncio.wait([message._thread])
        self._hand.running.remove(message)
        self._handled += 1
        self._start()
        self._to_claim.set()
        self._hook("finished", message=message, outcome=message._outcome,
                   seconds=time.monotonic() - began)

    def _wrapped(self, message: Message, handler: Callable, *more):
        """What handler(message, ...) returns: of a worker of asyncio, to be awaited."""
        if self._wrap:
            return self._wrap(message, lambda: handler(message, *more))
        return handler(message, *more)

    async def _invoke(self, message: Message, handler: Callable, transaction: bool) -> None:
        if not transaction:
            return await self._wrapped(message, handler)
        for left in reversed(range(_TRANSACTION_TRIES)):
            conn = self._free.pop() if self._free else await self._open()
            try:
                async with conn.transaction():
                    await self._wrapped(message, handler, conn)
                    message._begin_ack()
                    await _arows(conn, _ACK_ONE, [self.owner, message.id, message.attempts])
                return
            except Exception as error:
                message._undo_ack(error, left)
            finally:
                if conn.info.transaction_status == TransactionStatus.IDLE:
                    self._free.append(conn)

    def _judge(self, message: Message, error: BaseException | None) -> None:
        """The handler has ended, or must: what becomes of the message."""
        if message._outcome:
            return
        if error is None:
            message._outcome = "ack"
            self._acks_since = self._acks_since if self._acks else time.monotonic()
            self._acks.append(message)
        elif isinstance(error, LeaseLost):
            message._outcome = "lost"
            self._drop_stream(message)
        elif isinstance(error, Permanent):
            message._outcome = "fail"
            self._calls.append((_FAIL, [self.owner, message.id, _describe(error), error.reason,
                                        message.attempts]))
        else:
            message._outcome = "retry"
            behind = self._drop_stream(message)
            self._calls.append((_NACK, [self.owner, behind, self.owner, message.id,
                                        _describe(error), getattr(error, "after", None),
                                        message.attempts]))
        self._to_settle.set()

    def _drop_stream(self, message: Message) -> list[int]:
        """What is behind it in its stream is not to be handled now, if it goes back."""
        return self._hand.drop(lambda other: other.stream_id == message.stream_id is not None)

    # Settle and renew

    async def _settle_loop(self) -> None:
        while True:
            self._to_settle.clear()
            now, closing = time.monotonic(), self._closing
            acks_due = self._acks and (closing or len(self._acks) >= _ACK_IDS
                                       or now >= self._acks_since + _ACK_SECONDS)
            if self._calls or acks_due:
                calls, self._calls = self._calls, []
                count = _ACK_IDS if acks_due else 0
                acks, self._acks = self._acks[:count], self._acks[count:]
                await self._settle(acks, calls)
            elif closing:
                await self._settle([], [(_RELEASE_ALL, [self.owner])])
                return
            elif now >= self._renew_at:
                self._renew_at = now + self.lease_seconds / 3
                await self._renew()
            else:
                until = self._acks_since + _ACK_SECONDS if self._acks else self._renew_at
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._to_settle.wait(), min(until, self._renew_at) - now)

    async def _settle(self, acks: list[Message], calls: list) -> None:
        if acks:
            rows, repeated = await self._call("settle", _ACK, [
                self.owner, [m.id for m in acks], [m.attempts for m in acks]])
            self._hook("settled", count=len(acks), lost=0 if repeated else len(acks) - rows[0][0])
        for sql, parameters in calls:
            await self._call("settle", sql, parameters)

    async def _renew(self) -> None:
        held = self._hand.waiting + [m for m in self._hand.running if m._outcome is None]
        if not held:
            return
        ids, attempts = [m.id for m in held], [m.attempts for m in held]
        rows, _ = await self._call("settle", _RENEW,
                                   [self.owner, ids, self.lease_seconds, attempts])
        if rows[0][0] == len(held):
            return
        rows, _ = await self._call("settle", _LOST,
                                   [ids, attempts, self.owner, self.lease_seconds])
        lost = [m for m in held if (m.id, m.attempts) in rows and not m._outcome]
        self._hand.drop(lambda message: message in lost)
        for message in lost:
            self._judge(message, LeaseLost())
            message._cancel()
            self._hook("lost", message=message)


class Worker(AsyncWorker):
    """Runs handlers, which are functions, in threads. A thread cannot be interrupted: a
    handler that works for long asks message.cancelled, or calls raise_if_cancelled(). A
    query in its transaction is cancelled, and what it returns counts no more."""

    def run(self) -> None:
        """Work until SIGTERM, SIGINT or stop()."""
        asyncio.run(self._run(False))

    def drain(self) -> int:
        """For tests: work until nothing is due, without waiting; how many were handled."""
        return asyncio.run(self._run(True))

    def stop(self) -> None:
        """Begin to end run(), from any thread. Called twice, do not wait for handlers."""
        with contextlib.suppress(RuntimeError):     # it has ended
            self._loop.call_soon_threadsafe(super().stop)

    async def _invoke(self, message: Message, handler: Callable, transaction: bool) -> None:
        ended = concurrent.futures.Future()
        ended.set_running_or_notify_cancel()

        def body():
            try:
                (self._transact if transaction else self._wrapped)(message, handler)
                ended.set_result(None)
            except BaseException as error:
                ended.set_exception(error)

        message._interrupt, message._thread = None, asyncio.wrap_future(ended)
        threading.Thread(target=body, daemon=True).start()
        await asyncio.shield(message._thread)

    def _transact(self, message: Message, handler: Callable) -> None:
        for left in reversed(range(_TRANSACTION_TRIES)):
            conn = self._free.pop() if self._free else psycopg.connect(
                self._connect(), autocommit=True, prepare_threshold=None)
            message._interrupt = conn.cancel
            try:
                with conn.transaction():
                    self._wrapped(message, handler, conn)
                    message._begin_ack()
                    message._interrupt = None
                    _rows(conn, _ACK_ONE, [self.owner, message.id, message.attempts])
                return
            except Exception as error:
                message._undo_ack(error, left)
            finally:
                message._interrupt = None
                if conn.info.transaction_status == TransactionStatus.IDLE:
                    self._free.append(conn)
