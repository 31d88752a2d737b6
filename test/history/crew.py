"""The processes of the clients: started, replaced when they die, and counted."""

import multiprocessing.sharedctypes
import os
import signal
import sys
import time
import traceback


def spawn(work, errors='/dev/null'):
    """Run work in a process of its own, whose errors go to a file; its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        # libpq writes there, too, about each server that dies
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), 2)
        work()
        status = 0
    except Exception:   # a child must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def ended(pid):
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


class Board:
    """What clients and their parent share: who is to stop, and how far producers are."""
    KINDS = ('producer', 'worker', 'patient')

    def __init__(self, slots):
        self.parent = os.getpid()
        self.slots = {slot: number for number, slot in enumerate(slots)}
        self.stops = multiprocessing.sharedctypes.RawArray('b', len(self.KINDS))
        self.steps = multiprocessing.sharedctypes.RawArray('l', len(slots))
        self.counts = multiprocessing.sharedctypes.RawArray('l', len(slots))

    def stop(self, kind):
        self.stops[self.KINDS.index(kind)] = 1

    def stopped(self, kind):
        return bool(self.stops[self.KINDS.index(kind)])

    def take_step(self, slot):
        number = self.steps[self.slots[slot]]
        self.steps[self.slots[slot]] = number + 1
        return number

    def count(self, slot, messages):
        self.counts[self.slots[slot]] += messages

    def made(self, slot):
        return self.counts[self.slots[slot]]

    def total(self):
        return sum(self.counts)


class Crew:
    """MAKERS are (name, function): function(name, generation) makes a client."""

    def __init__(self, makers, errors):
        self.makers = dict(makers)
        self.errors = errors
        self.generations = dict.fromkeys(self.makers, 0)
        self.alive = {}     # process id -> name
        self.gone = set()   # NAME-GENERATION of those that have ended
        self.kills = 0
        self.broken = []    # clients that ended with an error of their own
        for name in self.makers:
            self.start(name)

    def start(self, name):
        generation = self.generations[name]
        self.generations[name] += 1
        pid = spawn(lambda: self.makers[name](name, generation).run(), self.errors)
        self.alive[pid] = (name, generation)

    def tend(self):
        """Give those that were killed successors."""
        for pid in list(self.alive):
            try:
                done, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                done, status = pid, 0
            if done != pid:
                continue
            name, generation = self.alive.pop(pid)
            self.gone.add(f'{name}-{generation}')
            if os.WIFSIGNALED(status):
                self.start(name)
            elif os.WEXITSTATUS(status):
                self.broken.append(f'{name}-{generation}')

    def random_pid(self, chance):
        return chance.choice(sorted(self.alive)) if self.alive else None

    def kill(self, chance):
        pid = self.random_pid(chance)
        if pid is None:
            return False
        os.kill(pid, signal.SIGKILL)
        return True

    def names(self, prefix):
        return [name for name, _ in self.alive.values() if name.startswith(prefix)]

    def wait(self, prefix, seconds, tend=lambda: None):
        """Wait until all whose names begin so have ended."""
        until = time.monotonic() + seconds
        while self.names(prefix):
            if time.monotonic() > until:
                return False
            self.tend()
            tend()
            time.sleep(0.02)
        return True

    def end(self):
        for pid in self.alive:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.alive = {}
