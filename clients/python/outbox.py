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
    stream_id attempts retry_count created_at due_time locked_until owner_token subscription
    published_id priority""".split()
_ENQUEUE_BATCH = """SELECT message_id, enqueued, outcome
                      FROM outbox.enqueue_batch(%s::jsonb) ORDER BY ordinal"""
_PUBLISH_BATCH = """SELECT message_id, deliveries
                      FROM outbox.publish_batch(%s::jsonb) ORDER BY ordinal"""
_CLAIM = f"""SELECT {', '.join(_COLUMNS)}
               FROM outbox.claim(%s::uuid, %s::int, %s::int, %s::text, %s::text[],
                                 %s::uuid, %s::int, %s::int, %s::text)"""
_HELD = """unnest(%(owners)s::uuid[], %(ids)s::bigint[], %(attempts)s::int[])
                 AS held(owner, id, attempt)"""
_ACK = f"""SELECT coalesce(sum(outbox.ack(owner, ids, attempts)), 0)
             FROM (SELECT owner, array_agg(id), array_agg(attempt) FROM {_HELD} GROUP BY owner)
                  AS own(owner, ids, attempts)"""
_ACK_ONE = "SELECT outbox.ack_one(%s::uuid, %s::bigint, %s::int, strict => true)"
_NACK = """SELECT outbox.nack_one(%(owner)s::uuid, %(id)s::bigint, %(text)s::text,
                                  %(extra)s::interval, %(attempt)s::int)"""
_FAIL = """SELECT outbox.fail_one(%(owner)s::uuid, %(id)s::bigint, %(text)s::text, %(extra)s::int,
                                  %(attempt)s::int)"""
# renews; its rows are the leases that are lost
_RENEW = f"""SELECT id, attempt FROM {_HELD}
              WHERE outbox.renew_one(owner, id, %(lease)s::int, attempt) = 0"""
_RELEASE = f"SELECT outbox.release_one(owner, id) FROM {_HELD}"
_RELEASE_ALL = "SELECT outbox.release(%(owner)s::uuid)"
_ADVANCE = """SELECT coalesce(sum(outbox.reschedule(ARRAY[id], next_attempt_at - %s::interval)), 0)
                FROM outbox.messages
               WHERE state = 'ready' AND next_attempt_at > clock_timestamp()"""

# connections of a worker; psycopg returns bytes for text unless the encoding has a name
_OWN = {"autocommit": True, "prepare_threshold": None, "client_encoding": "utf8"}
_ACK_SECONDS, _ACK_IDS, _MOST_UNSETTLED, _TRANSACTION_TRIES = 0.005, 100, 1000, 3

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
    here, it must be awaited if the connection is an AsyncConnection."""
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

    def __init__(self, row, until: float):
        self.__dict__.update(zip(_COLUMNS, row))
        self.cancelled = threading.Event()
        self._until = until             # its lease lasts as long, or longer
        self._thread = None             # done when the thread of its handler has ended
        self._interrupt = None          # ends what its handler waits for
        self._lock = threading.Lock()   # for the next two
        self._outcome = None            # decided once: ack, retry, fail or lost
        self._conn = None               # where a thread's query may be cancelled

    def json(self):
        """The payload, decoded."""
        return json.loads(self.payload)

    @property
    def traceparent(self) -> str | None:
        return (self.headers or {}).get("traceparent")

    def raise_if_cancelled(self) -> None:
        if self.cancelled.is_set():
            raise LeaseLost()

    def _cancel(self) -> None:
        self.cancelled.set()
        if self._interrupt:
            self._interrupt()

    def _decide(self, outcome: str) -> bool:
        """Set what becomes of it, unless that is decided."""
        with self._lock:
            if self._outcome:
                return False
            self._outcome = outcome
            return True

    def _use(self, conn) -> None:
        with self._lock:
            self._conn = conn

    def _cancel_query(self) -> None:
        with self._lock, contextlib.suppress(psycopg.Error):
            if self._conn:
                self._conn.cancel()

    def _undo_ack(self, error: Exception, left: int) -> None:
        """The transaction was rolled back: raise the error, unless it is to be repeated."""
        with self._lock:
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

    def take(self, messages: list[Message], full: bool) -> None:
        self.full, self.claimed = full, time.monotonic()
        self.waiting += messages

    def _startable(self) -> int | None:
        busy = {message.stream_id for message in self.running} - {None}
        now = time.monotonic()
        return next((index for index, message in enumerate(self.waiting)
                     if message.stream_id not in busy and now < message._until), None)

    def next(self) -> Message | None:
        """A message that may be handled now."""
        if len(self.running) == self.slots or (index := self._startable()) is None:
            return None
        message = self.waiting.pop(index)
        self.running.add(message)
        return message

    def drop(self, wanted: Callable[[Message], bool]) -> list[Message]:
        """Take out what no handler has begun."""
        dropped = [message for message in self.waiting if wanted(message)]
        self.waiting = [message for message in self.waiting if message not in dropped]
        return dropped

    def leased(self) -> list[Message]:
        """What must be renewed."""
        return self.waiting + [message for message in self.running if not message._outcome]


def _repeatable(error: psycopg.Error) -> bool:
    if error.sqlstate is None:          # the connection has gone, or cannot be made
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    return re.match("08|40001|40P01|53300|57P0[123]", error.sqlstate) is not None


def _describe(error: BaseException) -> str:
    """What is recorded of an error: never a text that may quote the payload."""
    if isinstance(error, (Permanent, Retry)):
        return str(error).replace("\0", "")[:500].encode("utf-8", "replace").decode()
    state = getattr(error, "sqlstate", None)
    return type(error).__name__ + (f" {state}" if state else "")


def _in_thread(body: Callable[[], None]) -> None:
    threading.Thread(target=body, daemon=True).start()


def _held(messages: list[Message], **more) -> dict:
    return {"owners": [m.owner_token for m in messages], "ids": [m.id for m in messages],
            "attempts": [m.attempts for m in messages], **more}


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
        self._loop = None

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
        if self._loop is None:
            return
        if self._ended.is_set():
            self._deadline = 0
        self._ended.set()
        self._to_claim.set()

    async def _run(self, draining: bool) -> int:
        if not self._handlers:
            raise ValueError("no topic has a handler")
        self.owner = uuid.uuid4()
        self._strays: list[uuid.UUID] = []          # owners of claims without an answer
        self._hand = _Hand(self.concurrency, self.max_batch)
        self._draining, self._handled, self._error = draining, 0, None
        self._retried = set()                       # ids and streams, while draining
        self._acks: list[Message] = []
        self._acks_since = 0.0
        self._calls: list[tuple[str, dict]] = []    # what fails or goes back
        self._third = self.lease_seconds / 3
        self._renew_at = time.monotonic() + self._third
        self._deadline, self._closing, self._claiming = float("inf"), False, False
        self._ended, self._to_claim, self._to_settle = (asyncio.Event() for _ in "123")
        self._tasks, self._free = set(), []         # handlers, and connections for them
        self._conns, self._delays = {}, {"claim": 0.1, "settle": 0.1}
        self._loop = asyncio.get_running_loop()
        signals, tasks = {}, []
        try:
            for name in ("claim", "settle"):
                self._conns[name] = await self._open()
            signals = self._catch_signals()
            tasks = [asyncio.create_task(self._guard(self._claim_loop())),
                     asyncio.create_task(self._guard(self._settle_loop()))]
            await self._ended.wait()
            await self._shut_down(*tasks)
        finally:
            for number, handler in signals.items():
                self._loop.remove_signal_handler(number)
                signal.signal(number, handler)
            self._loop = None
            left = [m._thread for m in self._hand.running if m._thread]
            for task in (*tasks, *self._tasks, *left):
                task.cancel()
            for conn in (*self._conns.values(), *self._free):
                if (closing := conn.close()) is not None:
                    await closing
        if self._error:
            raise self._error
        return self._handled

    def _catch_signals(self) -> dict:
        """What was there before, by number."""
        if threading.current_thread() is not threading.main_thread():
            return {}
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            self._loop.add_signal_handler(number, self.stop)
        return before

    async def _guard(self, loop) -> None:
        try:
            await loop
        except Exception as error:
            self._error = self._error or error
            self._ended.set()
            self._to_claim.set()

    async def _shut_down(self, claimer, settler) -> None:
        self._deadline = min(self._deadline, time.monotonic() + self.shutdown_seconds)
        while not claimer.done() and time.monotonic() < self._deadline:
            if self._claiming:
                _in_thread(self._cancel_claim)
            else:
                claimer.cancel()
            await asyncio.wait([claimer], timeout=0.1)
        self._calls.append((_RELEASE, _held(self._hand.drop(lambda message: True))))
        self._to_settle.set()
        while self._hand.running and time.monotonic() < self._deadline and not settler.done():
            await asyncio.sleep(0.01)
        for message in [message for message in self._hand.running if not message._outcome]:
            self._judge(message, LeaseLost())
            message._cancel()
        self._closing = True
        self._to_settle.set()
        await asyncio.wait([settler], timeout=max(self._deadline - time.monotonic(), 0) + 5)

    def _cancel_claim(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self._conns["claim"].cancel()

    async def _open(self) -> psycopg.AsyncConnection:
        return await psycopg.AsyncConnection.connect(self._connect(), **_OWN)

    async def _recover(self, name: str, error: psycopg.Error) -> None:
        """Wait until another try may be made, unless the error is for good."""
        if not _repeatable(error) or time.monotonic() > self._deadline + 2:
            raise error
        await self._conns[name].close()
        self._hook("reconnect", error=_describe(error))
        delay = self._delays[name] * random.uniform(0.5, 1)
        await asyncio.sleep(min(delay, 0.5) if self._ended.is_set() else delay)
        self._delays[name] = min(2 * self._delays[name], 5)

    # Claim and handle

    async def _claim_loop(self) -> None:
        topics = None if "*" in self._handlers else list(self._handlers)
        wait_ms = 0 if self._draining else self.wait_ms
        while not self._ended.is_set():
            self._to_claim.clear()
            unsettled = len(self._acks) + len(self._calls)
            if unsettled >= _MOST_UNSETTLED or not (asked := self._hand.ask()):
                await self._to_claim.wait()
                continue
            idle = not (self._hand.running or unsettled)
            sent = time.monotonic()
            rows = await self._claim([
                self.lease_seconds, asked, self.namespace, topics, self.tenant_id,
                self.max_attempts, wait_ms, self.subscription])
            if rows is None:
                continue
            # surely not sooner: what came late, or to a stopped process, is renewed first
            until = sent + self.lease_seconds
            self._renew_at = min(self._renew_at, sent + self._third)
            self._to_settle.set()
            self._hand.take([message for message in (Message(row, until) for row in rows)
                             if (message.stream_id or message.id) not in self._retried],
                            len(rows) == asked)
            self._hook("claimed", count=len(rows), asked=asked)
            self._start()
            if self._draining and not rows:
                if idle:
                    self.stop()
                await asyncio.sleep(0.01)

    async def _claim(self, parameters: list) -> list | None:
        """The rows of a claim; None if it was not answered. What that has taken is the old
        owner's then: it must not count as held by this worker, which knows nothing of it."""
        try:
            if self._conns["claim"].closed:
                self._conns["claim"] = await self._open()
                self._strays.append(self.owner)
                self.owner = uuid.uuid4()
                self._to_settle.set()
            self._claiming = True
            try:
                rows = await _arows(self._conns["claim"], _CLAIM, [self.owner, *parameters])
            finally:
                self._claiming = False
            self._delays["claim"] = 0.1
            return rows
        except psycopg.Error as error:
            if not self._ended.is_set() and error.sqlstate != "57014":
                await self._recover("claim", error)
            return None

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
            error = await self._invoke(message, handler, timeout, transaction)
        except asyncio.CancelledError:
            error = LeaseLost()
        except (Exception, SystemExit) as raised:
            error = raised
        self._judge(message, error)
        if message._thread and not message._thread.done():
            message._cancel()
            await asyncio.wait([message._thread])
            self._judge(message, message._thread.result())
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

    async def _invoke(self, message: Message, handler: Callable, timeout: float | None,
                      transaction: bool) -> BaseException | None:
        """Run the handler; the error with which it has ended may be raised or returned."""
        if not transaction:
            async with asyncio.timeout(timeout):
                await self._wrapped(message, handler)
            return None
        for left in reversed(range(_TRANSACTION_TRIES)):
            conn = None
            try:
                async with contextlib.AsyncExitStack() as stack:
                    conn = await self._begin(stack)
                    async with asyncio.timeout(timeout):
                        await self._wrapped(message, handler, conn)
                    if not message._decide("ack"):      # from here on, the transaction decides
                        raise LeaseLost()
                    await _arows(conn, _ACK_ONE, [message.owner_token, message.id, message.attempts])
                return None
            except Exception as error:
                message._undo_ack(error, left)
            finally:
                if conn and conn.info.transaction_status == TransactionStatus.IDLE:
                    self._free.append(conn)
                elif conn:
                    await conn.close()

    async def _begin(self, stack: contextlib.AsyncExitStack) -> psycopg.AsyncConnection:
        """A connection in a transaction. One that was idle may have broken since."""
        while self._free:
            conn = self._free.pop()
            try:
                await stack.enter_async_context(conn.transaction())
                return conn
            except psycopg.Error:
                await conn.close()
        conn = await self._open()
        await stack.enter_async_context(conn.transaction())
        return conn

    def _judge(self, message: Message, error: BaseException | None) -> None:
        """The handler has ended, or must: what becomes of the message."""
        outcome = ("ack" if error is None else "lost" if isinstance(error, LeaseLost)
                   else "fail" if isinstance(error, Permanent) else "retry")
        if not message._decide(outcome):
            return
        values = {"owner": message.owner_token, "id": message.id, "attempt": message.attempts,
                  "text": _describe(error), "extra": None}
        if outcome == "ack":
            self._acks_since = self._acks_since if self._acks else time.monotonic()
            self._acks.append(message)
        elif outcome == "fail":
            self._calls.append((_FAIL, values | {"extra": error.reason}))
        else:
            # the server takes back what is behind it in its stream
            self._hand.drop(lambda other: other.stream_id == message.stream_id is not None)
            if outcome == "retry":
                after = error.after if isinstance(error, Retry) else None
                self._calls.append((_NACK, values | {"extra": after}))
                self._retried.update([message.stream_id or message.id] * self._draining)
        self._to_settle.set()

    def _lose(self, message: Message) -> None:
        if not message._outcome:
            self._hand.drop(lambda other: other is message)
            self._judge(message, LeaseLost())
            message._cancel()
            self._hook("lost", message=message)

    # Settle and renew

    async def _settle_loop(self) -> None:
        while True:
            self._to_settle.clear()
            now, closing = time.monotonic(), self._closing
            acks_due = self._acks and (closing or len(self._acks) >= _ACK_IDS
                                       or now >= self._acks_since + _ACK_SECONDS)
            if now >= self._renew_at and not closing:
                await self._renew()
            elif self._calls or acks_due:
                calls, self._calls = self._calls, []
                if acks_due:
                    await self._ack()
                for sql, values in calls:
                    await self._tell(sql, values)
                self._to_claim.set()
            elif closing:
                for owner in (*self._strays, self.owner):
                    await self._send(_RELEASE_ALL, {"owner": owner})
                return
            elif self._strays and (owner := self._forgotten()):
                self._strays.remove(owner)
                await self._send(_RELEASE_ALL, {"owner": owner})
            else:
                until = self._acks_since + _ACK_SECONDS if self._acks else self._renew_at
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._to_settle.wait(), min(until, self._renew_at) - now)

    async def _send(self, sql: str, values) -> tuple[list, bool]:
        """The rows of a statement, and whether it was repeated."""
        repeated = False
        while True:
            try:
                if self._conns["settle"].closed:
                    self._conns["settle"] = await self._open()
                rows = await _arows(self._conns["settle"], sql, values)
                self._delays["settle"] = 0.1
                return rows, repeated
            except psycopg.Error as error:
                for message in self._hand.leased():
                    if time.monotonic() > message._until:
                        self._lose(message)
                await self._recover("settle", error)
                repeated = True

    async def _ack(self) -> None:
        acks, self._acks = self._acks[:_ACK_IDS], self._acks[_ACK_IDS:]
        rows, repeated = await self._send(_ACK, _held(acks))
        # how many the first of several calls has acknowledged is not known
        lost = 0 if repeated else len(acks) - int(rows[0][0])
        self._hook("settled", count=len(acks), lost=lost)

    async def _tell(self, sql: str, values: dict) -> None:
        try:
            await self._send(sql, values)
        except (psycopg.DataError, UnicodeError):
            if "text" not in values:
                raise
            # the server does not take what the handler has said
            await self._send(sql, {**values, "text": None, "extra": None})

    def _forgotten(self) -> uuid.UUID | None:
        """A stray owner of which nothing is in hand any more."""
        held = (*self._hand.waiting, *self._hand.running, *self._acks)
        known = {message.owner_token for message in held}
        return next((owner for owner in self._strays if owner not in known), None)

    async def _renew(self) -> None:
        began, held = time.monotonic(), self._hand.leased()
        self._renew_at = began + self._third
        lost = set((await self._send(_RENEW, _held(held, lease=self.lease_seconds)))[0]) if held else ()
        for message in held:
            if (message.id, message.attempts) in lost:
                self._lose(message)
            message._until = began + self.lease_seconds
        self._start()


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
        if (loop := self._loop) is not None:
            with contextlib.suppress(RuntimeError):     # it has ended
                loop.call_soon_threadsafe(super().stop)

    async def _invoke(self, message: Message, handler: Callable, timeout: float | None,
                      transaction: bool) -> BaseException | None:
        ended = concurrent.futures.Future()
        ended.set_running_or_notify_cancel()

        def body():
            try:
                (self._transact if transaction else self._wrapped)(message, handler)
                ended.set_result(None)
            except BaseException as error:      # sys.exit() ends a thread only
                ended.set_result(error)

        message._interrupt = lambda: _in_thread(message._cancel_query)
        message._thread = asyncio.wrap_future(ended)
        _in_thread(body)
        async with asyncio.timeout(timeout):
            return await asyncio.shield(message._thread)

    def _transact(self, message: Message, handler: Callable) -> None:
        for left in reversed(range(_TRANSACTION_TRIES)):
            conn = None
            try:
                with contextlib.ExitStack() as stack:
                    conn = self._begin_in(stack)
                    message._use(conn)
                    self._wrapped(message, handler, conn)
                    message._use(None)
                    if not message._decide("ack"):      # from here on, the transaction decides
                        raise LeaseLost()
                    _rows(conn, _ACK_ONE, [message.owner_token, message.id, message.attempts])
                return
            except Exception as error:
                message._undo_ack(error, left)
            finally:
                message._use(None)
                if conn and conn.info.transaction_status == TransactionStatus.IDLE:
                    self._free.append(conn)
                elif conn:
                    conn.close()

    def _begin_in(self, stack: contextlib.ExitStack) -> psycopg.Connection:
        while True:
            try:
                conn, fresh = self._free.pop(), False
            except IndexError:
                conn, fresh = psycopg.connect(self._connect(), **_OWN), True
            try:
                stack.enter_context(conn.transaction())
                return conn
            except psycopg.Error:
                conn.close()
                if fresh:
                    raise
