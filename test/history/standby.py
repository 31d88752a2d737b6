"""A fault: the primary is killed, and a synchronous standby takes its place.

Clients find the server by a symbolic link to the folder of its socket, which is
set after the promotion. What was acknowledged before must be there, so the primary
is killed only when the standby has what had been acknowledged before it became
synchronous, or was by a wait that was cancelled.
"""

import glob
import os
import shutil
import time

from ordeal import Ordeal


class Standby(Ordeal):
    strikes = ('kill', 'immediate')

    def __init__(self, *more):
        super().__init__(*more)
        self.number = 0

    def prepare(self):
        self.link(self.run.server.sockets)
        self.run.server.address = self.address()
        return ''

    def address(self):
        return f'{self.run.folder}/at'

    def link(self, target):
        os.symlink(target, f'{self.address()}.new')
        os.replace(f'{self.address()}.new', self.address())

    def strike(self, how, chance):
        server = self.run.server
        self.number += 1
        shutil.rmtree(f'{self.run.folder}/data{self.number}', ignore_errors=True)
        standby = server.copy_to(f'{self.run.folder}/data{self.number}', f'{self.run.folder}/at{self.number}')
        standby.start()
        server.rows("ALTER SYSTEM SET synchronous_standby_names = '*'")
        server.rows('SELECT pg_reload_conf()')
        self.wait_for("SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'")
        # clients go on with it
        before = self.run.board.total()
        pause = time.monotonic() + chance.uniform(0.5, 1.5)
        while self.run.crew.names('p') and (time.monotonic() < pause or
                                            self.run.board.total() < before + 20 and time.monotonic() < pause + 20):
            self.run.tend()
            time.sleep(0.02)
        end = server.rows('SELECT pg_current_wal_lsn()')[0][0]
        self.wait_for(f"SELECT bool_and(flush_lsn >= '{end}') FROM pg_stat_replication")
        if how == 'kill':
            server.kill()
        else:
            server.stop(how)
        standby.program('pg_ctl', '-D', standby.data, '-w', '-t', '120', 'promote')
        # a core dump is looked at in the end
        for core in glob.glob(f'{server.data}/core*'):
            os.rename(core, f'{self.run.folder}/core.{self.number}')
        shutil.rmtree(server.data)
        server.data, server.sockets = standby.data, standby.sockets
        self.link(server.sockets)
        return True

    def wait_for(self, condition):
        until = time.monotonic() + 60
        while not self.run.server.rows(condition)[0][0]:
            if time.monotonic() > until:
                raise RuntimeError(f'in vain: {condition}')
            time.sleep(0.02)
