"""A fault: processes of the server get no more memory, for a while.

The limit is on private writable memory (RLIMIT_DATA) and not on all addresses
(RLIMIT_AS), because a stack that cannot grow is a crash by any program, while
malloc that fails is an error to be survived.
"""

import resource
import time

from ordeal import Ordeal


def allocated(pid):
    """Bytes that the limit counts; None for a process that is gone."""
    try:
        with open(f'/proc/{pid}/status', encoding='ascii') as status:
            return next((int(line.split()[1]) * 1024 for line in status if line.startswith('VmData:')), None)
    except (FileNotFoundError, ProcessLookupError):
        return None


def limit(pid, most):
    try:
        resource.prlimit(pid, resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))
    except (ProcessLookupError, PermissionError):
        pass


class Memory(Ordeal):
    """malloc asks for each block apart, so that there are many places where none is to be had."""
    strikes = ('clients', 'workers', 'clients')
    settings = {'jit': 'off'}           # LLVM aborts the process that gets none
    # PL/pgSQL that was initialized by half cannot be loaded again; time zones are loaded by malloc
    errors = ('53200', 'out of memory', 'invalid value for parameter "TimeZone"', 'attempt to redefine parameter "plpgsql',
              'could not convert epoch to timestamp: Cannot allocate memory')

    def prepare(self):
        server = self.run.server
        if 'sanitize' in server.program('pg_config', '--cflags').stdout:
            return 'a sanitizer wants memory of its own'
        server.environment.update(MALLOC_TOP_PAD_='0', MALLOC_TRIM_THRESHOLD_='0')
        return ''

    def strike(self, whose, chance):
        """All clients' backends, or all workers and the launcher, and those that come in the next second."""
        condition = "backend_type = 'client backend'" if whose == 'clients' else "backend_type LIKE 'outbox%'"
        seen = {}
        until = time.monotonic() + chance.uniform(1, 2)
        while time.monotonic() < until:
            for pid in self.run.faults.processes(condition):
                size = allocated(pid)
                if pid not in seen and size:
                    limit(pid, size + chance.choice((0, 0, 64 << 10, 512 << 10)))
                    seen[pid] = True
            time.sleep(0.02)
        for pid in seen:
            limit(pid, resource.RLIM_INFINITY)
        return bool(seen)
