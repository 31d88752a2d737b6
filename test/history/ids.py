"""A fault: transaction ids and multixact ids begin again from 0 during the run.

The fresh cluster is frozen, told that it has used up nearly all ids (or half of
them, where the comparison of two ids turns round), and frozen again.
"""

import time

from ordeal import Ordeal


SHARE = """
    DO $$ DECLARE at tid; BEGIN
        FOR at IN SELECT ctid FROM outbox.{table} LIMIT 30 LOOP
            BEGIN
                PERFORM FROM outbox.{table} WHERE ctid = at FOR KEY SHARE SKIP LOCKED;
            EXCEPTION WHEN division_by_zero THEN    -- for its savepoint
            END;
        END LOOP;
    END $$"""


class Ids(Ordeal):
    strikes = ('multis', 'multis', 'multis')

    def __init__(self, *more):
        super().__init__(*more)
        # by the seed, but most often all of them
        self.limit = 1 << (31 if self.run.seed.endswith(('3', '6')) else 32)
        self.multis = 1 << 32

    def created(self):
        server = self.run.server
        # the ids that a run takes are some two for each message
        xid = self.limit - 2500 - self.run.options['messages'] // 4
        multi, member = self.multis - 60, (1 << 32) - 150
        server.start()
        server.rows('ALTER DATABASE template0 ALLOW_CONNECTIONS true')
        self.freeze()
        for name, number, size in (('pg_xact', xid >> 20, 1 << 18), ('pg_multixact/offsets', multi >> 16, 1 << 18),
                                   ('pg_multixact/members', member // 52352, 1 << 18)):
            with open(f'{server.data}/{name}/{number:04X}', 'wb') as segment:
                segment.write(bytes(size))
        done = server.program('pg_resetwal', '-D', server.data, '-x', xid, '-u', xid, '-m', f'{multi},{multi}', '-O', member)
        if done.returncode:
            raise RuntimeError(done.stdout)
        # nothing may be written before all rows are frozen by the new ids, too
        server.start()
        self.freeze()

    def strike(self, what, chance):
        """Two sessions lock the same rows, which takes a multixact id for each subtransaction that does."""
        server = self.run.server
        for db in self.run.databases:
            first, second = server.patient_connect(db), server.patient_connect(db)
            try:
                for session in (first, second):
                    session.autocommit = False
                    with session.cursor() as cursor:
                        for table in ('topics', 'queue', 'joins'):
                            cursor.execute(SHARE.format(table=table))
                time.sleep(chance.uniform(0, 0.5))
            finally:
                first.close()
                second.close()
        return True

    def freeze(self):
        server = self.run.server
        frozen = server.program('vacuumdb', '-h', server.address, '-p', server.port, '-U', 'postgres', '--all', '--freeze')
        if frozen.returncode:
            raise RuntimeError(frozen.stdout)
        server.stop('fast')


    def report(self, say):
        xid, multi = self.run.server.rows("""
            SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
                   (SELECT next_multixact_id::text::bigint FROM pg_control_checkpoint())""")[0]
        say(xid > self.limit, f'transaction ids have passed {self.limit}: {xid}')
        say(multi < self.multis // 2, f'multixact ids have passed {self.multis}: {multi}')
