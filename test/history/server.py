"""A private server with the extension: started, crashed, looked into."""

import copy
import os
import signal
import subprocess
import time

import psycopg2

from plan import BACKOFF_BASE, BACKOFF_MAX

SETTINGS = {
    'listen_addresses': '',
    'shared_preload_libraries': 'outbox',
    'max_connections': 300,
    'max_worker_processes': 24,
    'max_prepared_transactions': 50,
    'fsync': 'off',
    'full_page_writes': 'off',
    'max_wal_size': '2GB',
    'restart_after_crash': 'on',
    'outbox.backoff_base': f'{BACKOFF_BASE}ms',
    'outbox.backoff_max': f'{BACKOFF_MAX}ms',
    'outbox.max_workers': 4,
    'outbox.publish_retention': '1 d',
}


class Server:
    def __init__(self, bindir, folder, port):
        self.bindir, self.folder, self.port = bindir, folder, port
        self.data = f'{folder}/data'
        self.log = f'{folder}/server.log'
        self.sockets = self.address = folder    # clients may have another way there
        self.settings = dict(SETTINGS)
        self.initdb = []                        # more options of it
        self.environment = {}                   # of the server

    def program(self, name, *arguments):
        return subprocess.run([f'{self.bindir}/{name}', *map(str, arguments)], check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def create(self):
        made = self.program('initdb', '-D', self.data, '-U', 'postgres', '-A', 'trust',
                            '-E', 'UTF8', '--locale=C', '--no-sync', *self.initdb)
        if made.returncode:
            raise RuntimeError(made.stdout)
        with open(f'{self.data}/postgresql.conf', 'a', encoding='utf-8') as conf:
            for name, value in self.settings.items():
                conf.write(f"{name} = '{value}'\n")
            conf.write(f"port = {self.port}\nunix_socket_directories = '{self.sockets}'\n")
            if os.environ.get('TEMP_CONFIG'):
                with open(os.environ['TEMP_CONFIG'], encoding='utf-8') as more:
                    conf.write(more.read())

    def start(self):
        # not through a pipe, which the server would inherit
        started = subprocess.run([f'{self.bindir}/pg_ctl', '-D', self.data, '-l', self.log, '-w', '-t', '120',
                                  '-s', 'start'], check=False, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL, env={**os.environ, **self.environment})
        if started.returncode:
            raise RuntimeError(f'the server did not start, see {self.log}')

    def running(self):
        return self.program('pg_ctl', '-D', self.data, 'status').returncode == 0

    def revive(self):
        """Wait until connections are accepted again; if the server has given up, start it."""
        until = time.monotonic() + 60
        while True:
            try:
                return self.connect().close()
            except psycopg2.OperationalError:
                if time.monotonic() > until:
                    raise
                if not self.running():
                    self.start()
                time.sleep(0.02)

    def logged(self, text):
        """How often the log has it."""
        with open(self.log, encoding='utf-8', errors='replace') as log:
            return log.read().count(text)

    def copy_to(self, data, sockets):
        """A standby of this server, which does not run yet."""
        made = self.program('pg_basebackup', '-h', self.address, '-p', self.port, '-U', 'postgres', '-D', data,
                            '-R', '-X', 'stream', '-c', 'fast', '--no-sync')
        if made.returncode:
            raise RuntimeError(made.stdout)
        os.makedirs(sockets, exist_ok=True)
        with open(f'{data}/postgresql.conf', 'a', encoding='utf-8') as conf:
            conf.write(f"unix_socket_directories = '{sockets}'\n")
        standby = copy.copy(self)
        standby.data, standby.sockets, standby.address = data, sockets, sockets
        return standby

    def stop(self, mode='immediate'):
        subprocess.run([f'{self.bindir}/pg_ctl', '-D', self.data, '-m', mode, '-w', '-s', 'stop'], check=False)

    def kill(self):
        """Kill the postmaster with -9, and wait until its processes have noticed."""
        with open(f'{self.data}/postmaster.pid', encoding='utf-8') as file:
            postmaster = int(file.readline())
        pids = [row[0] for row in self.rows('SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()')]
        self.signal(postmaster, signal.SIGKILL)
        until = time.monotonic() + 60
        while any(self.signal(pid, 0) for pid in (postmaster, *pids)) and time.monotonic() < until:
            time.sleep(0.01)

    def connect(self, db='postgres', user='postgres', name='history'):
        connection = psycopg2.connect(host=self.address, port=self.port, dbname=db, user=user,
                                      application_name=name)
        connection.autocommit = True
        return connection

    def patient_connect(self, db='postgres', seconds=60, **more):
        """A connection, also while the server recovers."""
        until = time.monotonic() + seconds
        while True:
            try:
                return self.connect(db, **more)
            except psycopg2.OperationalError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def rows(self, statement, parameters=None, db='postgres'):
        connection = self.patient_connect(db)
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, parameters)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def crash(self, pid):
        """Kill a process with -9, and wait until the server has recovered."""
        if not self.signal(pid, signal.SIGKILL):
            return False
        until = time.monotonic() + 60
        while self.signal(pid, 0) and time.monotonic() < until:
            time.sleep(0.005)
        self.patient_connect().close()
        return True

    @staticmethod
    def signal(pid, number):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True
