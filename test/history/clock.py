"""The server's clock, which is set while it runs, and what that makes of a history.

A server that is started with environment() has the library test/t/clock.c before
libc, and its clock is ahead of the machine's by what a mapped file says. Clients
keep the machine's time, in which the history is written, but ask for due times by
the server's clock. What the server tells or was told is the server's time, and is
translated before it is held against the laws:

- the time of an event (a claim, an end) is the machine's time when the server's
  clock showed it;
- a deadline (the end of a lease or a delay, a due time) has come when the clock
  shows it for the first time after it was set, whether time has passed or the clock
  was set forward; setting the clock back does not undo that;
- a message may be handed out until the clock shows for the last time what is before
  its expiry.

A process may act for a moment upon the time that it has read before the clock was
set; so deadlines that come by setting it count from SLACK before.
"""

import mmap
import os
import struct
import subprocess
import time

from ordeal import Ordeal
from record import FOREVER, OK

SOURCE = os.path.join(os.path.dirname(__file__), '../t/clock.c')
SLACK = 5_000_000
AHEAD = None            # the mapped file, if the clock can be set


def server_now():
    """The server's time, for clients."""
    return time.time_ns() // 1000 + (struct.unpack('q', AHEAD[:8])[0] * 1_000_000 if AHEAD else 0)


class Clock(Ordeal):
    """A fault: the clock is set a day back, and two hours forward."""
    strikes = (-86400, 7200, 0)

    def __init__(self, *more):
        super().__init__(*more)
        self.moves = [[time.time_ns() // 1000, 0]]      # when, and microseconds ahead from then on

    def prepare(self):
        global AHEAD
        folder = self.run.folder
        library, name = f'{folder}/clock.so', f'{folder}/clock'
        built = subprocess.run([os.environ.get('CC', 'cc'), '-shared', '-fPIC', '-O1', '-o', library, SOURCE], check=False)
        if built.returncode:
            return 'there is no C compiler'
        with open(name, 'wb') as file:
            file.write(struct.pack('q', 0))
        with open(name, 'r+b') as file:
            AHEAD = mmap.mmap(file.fileno(), 8)
        self.run.server.environment.update({
            'LD_PRELOAD': library, 'OUTBOX_CLOCK': name,
            'ASAN_OPTIONS': f'{os.environ.get("ASAN_OPTIONS", "")}:verify_asan_link_order=0'.lstrip(':')})
        return ''

    def set(self, seconds):
        self.moves.append([time.time_ns() // 1000, seconds * 1_000_000])
        AHEAD[:8] = struct.pack('q', seconds)

    def strike(self, seconds, _):
        self.set(seconds)
        return True

    def finish(self):
        """So late that nothing need be waited for that was put off while the clock was ahead."""
        self.set(max(self.strikes) + 60)

    def conditions(self):
        return {'moves': self.moves}


class Moves:
    """What of the server's time is what of the machine's."""

    def __init__(self, moves):
        ends = [when for when, _ in moves[1:]] + [FOREVER]
        self.stretches = [(start, end, ahead) for (start, ahead), end in zip(moves, ends)]

    def event(self, stamp):
        for start, end, ahead in self.stretches:
            if start - SLACK <= stamp - ahead <= end + SLACK:
                return stamp - ahead
        return stamp

    def first(self, stamp, since):
        """When the clock first shows it, from some time on."""
        for start, end, ahead in self.stretches:
            if end <= since:
                continue
            if stamp - ahead < max(start, since):
                return max(start - SLACK, since)
            if stamp - ahead < end:
                return stamp - ahead
        return FOREVER

    def last(self, stamp):
        """Until when the clock shows what is before."""
        return max(min(end + SLACK, stamp - ahead) for start, end, ahead in self.stretches if start + ahead < stamp)

    def later(self, begin, end, delay):
        """When a deadline that was set by a call may have come, at the earliest."""
        return min(self.first(max(begin, start) + ahead + delay, max(begin, start))
                   for start, stop, ahead in self.stretches if stop > begin and start < end)


    def can_end(self, begin, end, delay, stamp):
        """Whether a deadline that was set by a call may be when the clock shows this."""
        return any(begin + ahead + delay <= stamp <= end + ahead + delay
                   for start, stop, ahead in self.stretches if stop + SLACK > begin and start < end)


def translate(history, moves):
    """Make all times of a history the machine's."""
    for call in history.calls:
        if call.op == 'claim' and call.outcome == OK:
            for entry in call.result or ():
                entry[3], entry[4] = moves.event(entry[3]), moves.first(entry[4], moves.event(entry[3]))
        for args in (call.args, *call.args.get('messages', ())):
            if args.get('due_at'):
                args['due_at'] = moves.first(args['due_at'], call.begin)
            if args.get('expires_at'):
                args['expired_at'] = moves.last(args['expires_at'])
                args['expires_at'] = moves.first(args['expires_at'], call.begin)
    tables = [call.result for call in history.calls if call.op in ('drop', 'dumped') and call.outcome == OK]
    for row in (row for read in [history.final, *tables] for row in read.get('messages', ())):
        row[9], row[10] = row[9] and moves.event(row[9]), moves.event(row[10])
