"""A client: a process with a connection, which records what it calls."""

import os
import random
import signal
import time
from datetime import datetime, timezone

import psycopg2
from psycopg2.extensions import TRANSACTION_STATUS_IDLE

from clock import server_now
from record import ERROR, OK, UNKNOWN, Recorder


# what transactions of a connection are by default; None is READ COMMITTED
ISOLATION = (None, 'repeatable read', 'serializable'), (16, 2, 1)


class Lost(Exception):
    """The connection is gone, and what became of the call is not known."""


class Refused(Exception):
    """The call failed, and did nothing."""

    def __init__(self, sqlstate, text):
        super().__init__(f'{sqlstate} {text}')
        self.sqlstate = sqlstate


def timestamp(microseconds):
    if microseconds is None:
        return None
    return datetime.fromtimestamp(microseconds / 1e6, timezone.utc).isoformat(timespec='microseconds')


class Client:
    """What all clients have in common.

    A generation is one life: the successor of a client that was killed has the
    name, the next generation, and goes on where the other's counter stands.
    """
    kind = 'client'
    isolations = ISOLATION

    def __init__(self, server, folder, seed, db, name, generation, board):
        self.server, self.db, self.board = server, db, board
        self.name = f'{name}-{generation}'
        self.slot = name
        self.recorder = Recorder(folder, self.name)
        self.chance = random.Random(f'{seed}/{db}/{self.name}')
        self.connection = None
        self.isolation = None
        self.serial = 0

    # the connection

    def connect(self):
        """Have a connection; false if the client is to end."""
        while self.connection is None:
            if self.stopped():
                return False
            try:
                self.connection = self.server.connect(self.db, name=self.name)
                self.isolation = self.chance.choices(*self.isolations)[0]
                if self.isolation:
                    with self.connection.cursor() as cursor:
                        cursor.execute(f"SET default_transaction_isolation = '{self.isolation}'")
            except psycopg2.OperationalError:
                self.lose()
                time.sleep(0.02)
        return True

    def lose(self):
        if self.connection is not None:
            try:
                self.connection.close()
            except psycopg2.Error:
                pass
        self.connection = None

    def stopped(self):
        return self.board.stopped(self.kind) or os.getppid() != self.board.parent

    # calls

    def call(self, op, statement, parameters=None, tx='', args=None, parse=None):
        """Run a statement and record it; what parse makes of its rows.

        A serialization failure is tried again, if it is not for the whole
        transaction to do that.
        """
        for _ in range(0 if tx else 10):
            try:
                return self.call_once(op, statement, parameters, tx, args, parse)
            except Refused as refused:
                if refused.sqlstate != '40001':
                    raise
        return self.call_once(op, statement, parameters, tx, args, parse)

    def call_once(self, op, statement, parameters, tx, args, parse):
        args = args or {}
        if self.isolation:
            args = {**args, 'isolation': self.isolation}
        number = self.recorder.begin(self.db, op, tx, args)
        result = None
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(statement, parameters)
                if cursor.description:
                    rows = cursor.fetchall()
                    result = parse(rows) if parse else rows[0][0] if rows else None
        except psycopg2.Error as error:
            state = error.pgcode
            if not state or state.startswith(('08', '57P')) or self.connection.closed:
                self.recorder.end(number, UNKNOWN, state)
                self.lose()
                raise Lost() from error
            self.recorder.end(number, ERROR, [state, str(error).split('\n', maxsplit=1)[0]])
            raise Refused(state, str(error)) from error
        self.recorder.end(number, OK, result)
        return result

    def begin(self):
        """A transaction; its name."""
        self.serial += 1
        tx = f'{self.name}.{self.serial}'
        self.call('begin', 'BEGIN', tx=tx)
        return tx

    def end(self, tx, how):
        self.call(how, how.upper(), tx=tx)

    def end_in_two(self, tx, how):
        """PREPARE TRANSACTION, and then 'commit prepared' or 'rollback prepared'."""
        try:
            self.call('prepare', f"PREPARE TRANSACTION '{tx}'", tx=tx)
        except Lost:
            # there may be one nevertheless, which this client must end
            pass
        if self.chance.random() < 0.2:
            # claims come across what it has locked
            time.sleep(self.chance.uniform(0.05, 0.8))
        while self.connect():
            try:
                self.call(how.replace(' ', '_'), f"{how.upper()} '{tx}'", tx=tx)
                return
            except Lost:
                pass
            except Refused as refused:
                # 42704: there is none, or it was ended before; 55000: another session is at it
                if refused.sqlstate == '42704':
                    return
                time.sleep(0.01)

    def abandon(self):
        """After an error, whatever the state of the connection."""
        if self.connection is not None and self.connection.info.transaction_status != TRANSACTION_STATUS_IDLE:
            try:
                with self.connection.cursor() as cursor:
                    cursor.execute('ROLLBACK')
            except psycopg2.Error:
                self.lose()

    # the process

    def round(self):
        raise NotImplementedError

    def finish(self):
        """What a client that is stopped still does."""

    def run(self):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while self.connect() and not self.stopped():
            try:
                if self.round() is False:
                    break
            except Lost:
                pass
            except Refused:
                self.abandon()
        if self.connection is not None:
            try:
                self.finish()
            except (Lost, Refused):
                pass
        self.lose()


def age(milliseconds):
    """So long from now, by the server's clock; None stays None."""
    return None if milliseconds is None else server_now() + milliseconds * 1000
