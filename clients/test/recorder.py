"""A proxy before the server, which notes what clients call and what they are answered.

    recorder.py FOLDER

A line on its standard input is a name, a database, and a port of localhost; it answers with
the port on which it listens for that. It reads PostgreSQL's protocol, so it needs nothing of
the clients, and notes what passes in the form of test/history/record.py, a file for each name.
A call without an answer, because the connection broke or its client was killed, has an
unknown outcome.
"""

import asyncio
import json
import re
import struct
import sys
import traceback
import uuid
from collections import deque
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "test/history"))
from plan import read_payload  # pylint: disable=wrong-import-position
from record import ERROR, OK, UNKNOWN, Recorder, now  # pylint: disable=wrong-import-position
from workers import leases  # pylint: disable=wrong-import-position

SSL, GSS, CANCEL = 80877103, 80877104, 80877102
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
CALL = re.compile(r"outbox\.(claim|ack|ack_one|nack_one|fail_one|renew_one|release_one|release"
                  r"|enqueue|enqueue_batch|publish|publish_batch)\s*\(")
HELD = re.compile(r"unnest\(")
TOKEN = re.compile(r"(?P<name>\w+)\s*=>|(?P<escape>E?)'(?P<text>(?:[^']|'')*)'|\$(?P<number>\d+)"
                   r"|(?P<null>NULL)\b|(?P<mark>[(),])|\w+|.", re.S)
PARAMETERS = {
    "claim": "owner lease batch namespace topics tenant max_attempts wait subscription",
    "ack_one": "owner id attempt", "nack_one": "owner id error delay attempt",
    "fail_one": "owner id error reason attempt", "release": "owner ids",
    "renew_one": "owner id lease attempt", "enqueue": "topic payload", "enqueue_batch": "messages",
    "publish": "topic payload", "publish_batch": "messages"}
UNITS = {"us": 1e-3, "microseconds": 1e-3, "ms": 1, "milliseconds": 1, "s": 1e3, "": 1e3, "secs": 1e3,
         "second": 1e3, "seconds": 1e3}
INTEGERS = {20: ">q", 21: ">h", 23: ">i"}


def decode(value, format_, type_):
    """A value as text, or a list of such for a binary array."""
    if value is None or not format_:
        return None if value is None else value.decode("utf-8", "replace")
    if type_ in INTEGERS:
        return str(struct.unpack(INTEGERS[type_], value)[0])
    if type_ == 2950:
        return str(uuid.UUID(bytes=value))
    if type_ == 1184:
        return str(datetime.fromtimestamp(struct.unpack(">q", value)[0] / 1e6 + 946684800).astimezone())
    if type_ == 1186:
        return f"{struct.unpack('>qii', value)[0]} us"
    if type_ in (1005, 1007, 1016, 2951):
        dimensions, _, element = struct.unpack_from(">iii", value)
        at, found = 20, []
        while dimensions and at < len(value):
            length, = struct.unpack_from(">i", value, at)
            found.append(decode(value[at + 4:at + 4 + length], 1, element))
            at += 4 + length
        return found
    return value.decode("utf-8", "replace")     # text, json and the like are the same in both


def items(array):
    """Those of an array, none of which has a comma in it."""
    if isinstance(array, str):
        return [item.strip('"') for item in array[1:-1].split(",") if item]
    return array or []


def number(text):
    return None if text is None else int(text)


def milliseconds(text):
    if text is None:
        return None
    if clock := re.fullmatch(r"(\d+):(\d+):([\d.]+)", text):
        return 1000 * (3600 * int(clock[1]) + 60 * int(clock[2]) + float(clock[3]))
    amount, unit = re.fullmatch(r"(?:PT)?([\d.e-]+) ?(\w*)", text).groups()
    return float(amount) * UNITS[unit.lower()]


class Call:
    """A statement that was sent, and its answer."""

    def __init__(self, sql, values, tx):
        self.sql, self.values, self.tx = sql, values, tx
        self.begun = now()
        self.rows = []
        self.tag = ""
        self.error = None

    def arguments(self, at, names):
        """Those of the function whose parenthesis is open before that place: parameters, or literals,
        for some drivers put them in."""
        given, name, position, depth = {}, None, 0, 1
        for token in TOKEN.finditer(self.sql, at):
            depth += {"(": 1, ")": -1}.get(token["mark"], 0)
            if not depth:
                break
            if token["mark"] == "," and depth == 1:
                name, position = None, position + 1
            elif token["name"]:
                name = token["name"]
            elif token["number"] or token["null"] or token["text"] is not None:
                value = self.values[int(token["number"]) - 1] if token["number"] else token["text"]
                if token["text"] is not None:
                    value = value.replace("''", "'")
                    value = value.replace("\\\\", "\\") if token["escape"] else value
                given.setdefault(name or names[position], value)
        return given

    def held(self):
        """[(owner, id, attempt)] of a statement about many."""
        parts = map(items, self.arguments(HELD.search(self.sql).end(), range(3)).values())
        return [(str(uuid.UUID(owner)), int(row_id), int(attempt))
                for owner, row_id, attempt in zip(*parts)]


class Notes:
    """What the clients of one name have called, in the words of the history."""

    def __init__(self, folder, name, db):
        self.recorder, self.db = Recorder(folder, name), db

    def write(self, call, op, args, result=None, outcome=None):
        self.recorder.number += 1
        count = self.recorder.number
        state = call.error[0] if call.error else ""
        if outcome is None:
            outcome = (UNKNOWN if call.error and (not state or state.startswith(("08", "57P")))
                       else ERROR if call.error else OK)
        self.recorder.write(count, "begin", call.begun, self.db, op, call.tx, args)
        self.recorder.write(count, "end", now(), outcome, call.error if outcome == ERROR else result)

    def note(self, call):
        """A call that has ended, well or not."""
        word = call.sql.strip().rstrip(";").upper().split(" ")[0]
        if word in ("COMMIT", "ROLLBACK", "END"):
            # a COMMIT may be answered by ROLLBACK
            self.write(call, "rollback" if "ROLLBACK" in (word, call.tag) else "commit", {})
        elif found := CALL.search(call.sql):
            getattr(self, found[1])(call, call.arguments(found.end(), PARAMETERS.get(found[1], "").split() or range(9)))
        elif "INSERT INTO effects" in call.sql:
            message_id = next(iter(UUID.findall(call.sql)), None) or call.values[0]
            self.write(call, "work", {"tags": [Notes.tags.get(message_id, message_id)]})

    tags = {}       # message_id -> tag
    stores = {}     # id -> what the history calls its store: @ and the subscription of a delivery

    def claim(self, call, given):
        lease, subscription = int(given["lease"]), given.get("subscription")
        args = {"owner": str(uuid.UUID(given["owner"])), "store": f"@{subscription}" if subscription else "",
                "lease": lease, **({"subscription": subscription} if subscription else {}),
                "batch": int(given["batch"]), "wait": int(given["wait"] or 0),
                "topics": items(given["topics"]) or None, "namespace": None, "tenant": None}
        rows = [(int(row["id"]), row["payload"], int(row["attempts"]),
                 round(datetime.fromisoformat(row["locked_until"]).timestamp() * 1e6), row["message_id"],
                 row["topic"], row.get("correlation_id"), json.loads(row.get("headers") or "{}") or None,
                 row.get("tenant_id")) for row in call.rows]
        found = leases(rows, lease)
        Notes.tags.update((entry[5], entry[1]) for entry in found)
        Notes.stores.update((entry[0], args["store"]) for entry in found)
        self.write(call, "claim", args, found)

    def settle(self, call, op, messages, changed, **more):
        """One call for each owner. changed says for each message whether it was; or whether all were."""
        for owner, store in dict.fromkeys((message[0], Notes.stores.get(message[1], "")) for message in messages):
            mine = [place for place, message in enumerate(messages)
                    if (message[0], Notes.stores.get(message[1], "")) == (owner, store)]
            result = None
            if isinstance(changed, list) and not call.error:
                # those that were not changed need no note
                mine = [place for place in mine if changed[place]]
                result = len(mine)
            elif changed is not None and not call.error:
                result = len(mine) if changed else 0
            if mine:
                self.write(call, op, {"owner": owner, "store": store, "ids": [messages[place][1] for place in mine],
                                      "attempts": [messages[place][2] for place in mine], **more}, result)

    def first(self, call):
        return None if call.error or not call.rows else number(next(iter(call.rows[0].values())))

    def ack(self, call, _):
        messages, count = call.held(), self.first(call)
        # of a part it is not known which
        self.settle(call, "ack", messages, True if count == len(messages) else False if count == 0 else None)

    def one(self, call, op, given, **more):
        message = str(uuid.UUID(given["owner"])), int(given["id"]), number(given["attempt"])
        count = self.first(call)
        self.settle(call, op, [message], None if count is None else bool(count), **more)

    def ack_one(self, call, given):
        self.one(call, "ack", given, strict=True)

    def nack_one(self, call, given):
        self.one(call, "nack", given, delay=milliseconds(given.get("delay")))

    def fail_one(self, call, given):
        self.one(call, "fail", given)

    def renew_one(self, call, given):
        messages = call.held()
        lost = {(int(row["id"]), int(row["attempt"])) for row in call.rows}
        self.settle(call, "renew", messages, [message[1:] not in lost for message in messages],
                    lease=int(given["lease"]))

    def release_one(self, call, _):
        self.settle(call, "release", call.held(), [row["release_one"] != "0" for row in call.rows])

    def release(self, call, given):
        self.write(call, "release_all", {"owner": str(uuid.UUID(given["owner"])), "store": ""}, self.first(call))

    def made(self, call, op, messages):
        noted = [{"tag": read_payload(message["payload"])[0], "topic": message["topic"], "namespace": "default",
                  "stream": message.get("stream_id")} for message in messages]
        ids = [row.get("message_id") or next(iter(row.values())) for row in call.rows]
        if op.startswith("publish"):
            self.write(call, op, {"published": noted}, ids)
        else:
            self.write(call, op, {"messages": noted}, [
                [message_id, row.get("enqueued") != "f"] for message_id, row in zip(ids, call.rows)])

    def enqueue(self, call, given):
        self.made(call, "enqueue", [given])

    def enqueue_batch(self, call, given):
        self.made(call, "enqueue_batch", json.loads(given["messages"]))

    def publish(self, call, given):
        self.made(call, "publish", [given])

    def publish_batch(self, call, given):
        self.made(call, "publish_batch", json.loads(given["messages"]))


class Reader:
    """Cuts a stream of bytes into messages of the protocol."""

    def __init__(self, stream):
        self.stream = stream

    async def message(self):
        head = await self.stream.readexactly(5)
        return head[:1], head + await self.stream.readexactly(struct.unpack(">i", head[1:])[0] - 4)


def strings(body, at, count):
    """So many strings that end with zero, and where the next thing begins."""
    found = []
    for _ in range(count):
        end = body.index(0, at)
        found.append(body[at:end].decode("utf-8", "replace"))
        at = end + 1
    return *found, at


class Connection:
    """What one connection of a client is about."""

    def __init__(self, notes, name):
        self.notes, self.name = notes, name
        self.statements, self.portals = {}, {}
        self.groups = deque()       # of calls, each up to a Sync
        self.open = None            # the last of them, until its Sync
        self.described = deque()    # statements whose description is awaited
        self.columns = []
        self.place = 0              # of the call that is answered
        self.tx, self.transactions = "", 0

    def group(self):
        if self.open is None:
            self.open = []
            self.groups.append(self.open)
        return self.open

    def begin(self, sql, values):
        word = sql.strip().rstrip(";").upper().split(" ")[0]
        if word in ("BEGIN", "START"):
            self.transactions += 1
            self.tx = f"{self.name}.{self.transactions}"
        self.group().append(Call(sql, values, self.tx))
        if word in ("COMMIT", "ROLLBACK", "END") and " TO " not in sql.upper():
            self.tx = ""

    def sent(self, kind, body):
        """A message of the client."""
        if kind == b"Q":
            self.begin(strings(body, 5, 1)[0], [])
            self.open = None
        elif kind == b"P":
            name, sql, at = strings(body, 5, 2)
            count, = struct.unpack_from(">h", body, at)
            self.group()
            self.statements[name] = [sql, list(struct.unpack_from(f">{count}i", body, at + 2))]
        elif kind == b"B":
            self.bind(body)
        elif kind == b"D" and body[5:6] == b"S":
            self.group()
            self.described.append(self.statements.get(strings(body, 6, 1)[0]))
        elif kind == b"E":
            self.begin(*self.portals[strings(body, 5, 1)[0]])
        elif kind == b"S":
            self.group()
            self.open = None

    def bind(self, body):
        portal, name, at = strings(body, 5, 2)
        count, = struct.unpack_from(">h", body, at)
        formats = struct.unpack_from(f">{count}h", body, at + 2)
        at += 2 + 2 * count
        count, = struct.unpack_from(">h", body, at)
        at += 2
        sql, types = self.statements[name]
        values = []
        for place in range(count):
            length, = struct.unpack_from(">i", body, at)
            at += 4
            value = None if length < 0 else body[at:at + length]
            at += max(length, 0)
            format_ = formats[place] if len(formats) > 1 else formats[0] if formats else 0
            values.append(decode(value, format_, types[place] if place < len(types) else 0))
        self.group()
        self.portals[portal] = sql, values

    def answered(self, kind, body):
        """A message of the server."""
        calls = self.groups[0] if self.groups else []
        call = calls[self.place] if self.place < len(calls) else None
        if kind == b"t" and self.described:
            count, = struct.unpack_from(">h", body, 5)
            if statement := self.described.popleft():
                statement[1] = list(struct.unpack_from(f">{count}i", body, 7))
        elif kind == b"T":
            self.columns, at = [], 7
            for _ in range(struct.unpack_from(">h", body, 5)[0]):
                name, at = strings(body, at, 1)
                # some clients give them other names, which differ in no more than that
                name = re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), name)
                self.columns.append((name, *struct.unpack_from(">6xi6xh", body, at)))
                at += 18
        elif kind == b"D" and call:
            self.row(call, body)
        elif kind in (b"C", b"I", b"s") and call:
            # what is no transaction of its own commits only now, before the answer that it is ready
            call.tag = strings(body, 5, 1)[0] if kind == b"C" else ""
            self.place += 1
        elif kind == b"E":
            fields = {field[:1]: field[1:].decode("utf-8", "replace") for field in body[5:].split(b"\0") if field}
            # what is behind it in its group is not done either
            for one in calls[self.place:]:
                one.error = [fields[b"C"], fields[b"M"]]
            self.place = len(calls)
        elif kind == b"Z" and self.groups:
            for one in self.groups.popleft():
                self.notes.note(one)
            self.place = 0

    def row(self, call, body):
        at, row = 7, {}
        for name, type_, format_ in self.columns:
            length, = struct.unpack_from(">i", body, at)
            at += 4
            row[name] = decode(None if length < 0 else body[at:at + length], format_, type_)
            at += max(length, 0)
        call.rows.append(row)

    def broken(self):
        """What has no answer now never has one."""
        for calls in self.groups:
            for call in calls:
                call.error, call.rows = call.error or ["", ""], []
                self.notes.note(call)
        self.groups.clear()


class Way:
    """A port on which clients of one name are taken to a port of the server."""

    def __init__(self, folder, name, db, port):
        self.name, self.port, self.count = name, port, 0
        self.notes = Notes(folder, name, db)

    async def listen(self):
        server = await asyncio.start_server(self.accept, "127.0.0.1", 0, limit=1 << 26)
        return server.sockets[0].getsockname()[1]

    async def accept(self, client, to_client):
        self.count += 1
        connection = Connection(self.notes, f"{self.name}-{self.count}")
        try:
            server, to_server = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 26)
        except OSError:
            to_client.close()
            return
        try:
            if await self.start(client, to_client, server, to_server):
                tasks = [asyncio.create_task(self.pump(client, to_server, connection.sent)),
                         asyncio.create_task(self.pump(server, to_client, connection.answered))]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                for result in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(result, Exception):
                        traceback.print_exception(result)
        except (OSError, EOFError):
            pass
        finally:
            connection.broken()
            to_client.close()
            to_server.close()

    async def start(self, client, to_client, server, to_server):
        """Whether a session begins: before it there are requests without a kind."""
        while True:
            head = await client.readexactly(8)
            length, code = struct.unpack(">ii", head)
            to_server.write(head + await client.readexactly(length - 8))
            if code == CANCEL:
                await server.read()
                return False
            if code not in (SSL, GSS):
                return True
            to_client.write(await server.readexactly(1))

    @staticmethod
    async def pump(source, target, note):
        reader = Reader(source)
        try:
            while True:
                kind, message = await reader.message()
                note(kind, message)
                target.write(message)
                await target.drain()
        except (OSError, EOFError):
            pass


async def main():
    folder = sys.argv[1]
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := (await lines.readline()).decode().split():
        name, db, port = line
        print(await Way(folder, name, db, int(port)).listen(), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
