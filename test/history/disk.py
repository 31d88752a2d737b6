"""A fault: the disk is full, that of the WAL or that of the data.

Both are small file systems in memory, mounted where only this run and its server
see them, and a file that takes what is left makes them full. A server that cannot
write WAL panics, and may fail to recover as long as there is no space, so it is
started again afterwards. One that cannot extend a table goes on.
"""

import errno
import os
import resource
import subprocess
import sys
import time

import psycopg2

from ordeal import Ordeal

MOUNTS = 'OUTBOX_MOUNTS'
ALONE = ('unshare', '--user', '--map-current-user', '--keep-caps', '--mount')


def mount_apart():
    """Go on where file systems can be mounted; false if there is no such place."""
    if MOUNTS in os.environ:
        return True
    probe = subprocess.run([*ALONE, 'mount', '-t', 'tmpfs', '-o', 'size=1m', 'none', '/tmp'], check=False,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if probe.returncode:
        return False
    os.environ[MOUNTS] = '1'
    os.execvp(ALONE[0], [*ALONE, *sys.orig_argv])


class Disk(Ordeal):
    strikes = ('data', 'wal')
    # so that all WAL there ever is fits, and a new segment is soon wanted
    settings = {'max_wal_size': '32MB', 'min_wal_size': '2MB'}
    errors = ('53100',)

    def __init__(self, *more):
        super().__init__(*more)
        self.mounts = {what: f'{self.run.folder}/small_{what}' for what in self.strikes}

    def prepare(self):
        if MOUNTS not in os.environ:
            return 'no file system can be mounted here'
        sizes = {'wal': 160, 'data': 300 + self.run.options['messages'] // 100}
        for what, folder in self.mounts.items():
            os.makedirs(folder, exist_ok=True)
            subprocess.run(['mount', '-t', 'tmpfs', '-o', f'size={sizes[what]}m', 'none', folder], check=True)
        # a panic is what is expected, so it needs no core
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        self.run.server.initdb += ['--wal-segsize=1', f'--waldir={self.mounts["wal"]}/pg_wal']
        return ''

    def started(self):
        """Databases are made where their template is."""
        os.mkdir(f'{self.mounts["data"]}/space')
        self.run.server.rows(f"CREATE TABLESPACE small LOCATION '{self.mounts['data']}/space'")
        self.run.server.rows('ALTER DATABASE template1 SET TABLESPACE small')

    def strike(self, what, chance):
        server = self.run.server
        before = server.logged('No space left on device')
        until = time.monotonic() + 10
        seen = False
        filler = os.open(f'{self.mounts[what]}/filler', os.O_WRONLY | os.O_CREAT)
        try:
            while time.monotonic() < until and not seen:
                self.fill(filler, self.mounts[what])
                if what == 'wal' and server.running():
                    try:
                        server.connect().cursor().execute('SELECT pg_switch_wal()')
                    except psycopg2.Error:   # the server is not there
                        pass
                seen = server.logged('No space left on device') > before
            until = time.monotonic() + chance.uniform(0, 1.5)
            while time.monotonic() < until:
                self.fill(filler, self.mounts[what])
        finally:
            os.close(filler)
            os.unlink(f'{self.mounts[what]}/filler')
        server.revive()
        return seen

    @staticmethod
    def fill(filler, folder):
        """Take all that is left."""
        stat = os.statvfs(folder)
        left = stat.f_bavail * stat.f_frsize
        while left >= stat.f_frsize:
            try:
                os.posix_fallocate(filler, os.fstat(filler).st_size, left)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            left //= 2
        time.sleep(0.01)
