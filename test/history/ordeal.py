"""What the faults that change the server as a whole have in common.

Each is asked for by name (faults=disk,clock), prepares the server, and strikes as
often as it has STRIKES, each time with one of them, at places made up from the seed.
"""


class Ordeal:
    strikes = ()
    settings = {}       # of the server
    errors = ()         # parts of errors that calls may then end with, after their SQLSTATEs

    def __init__(self, run, name):
        self.run, self.name = run, name

    def prepare(self):
        """Before the cluster is made; why the fault is impossible here, or an empty string."""
        return ''

    def created(self):
        """There is a cluster, and it does not run."""

    def started(self):
        """It runs, and has no database of ours."""

    def strike(self, what, chance):
        """Let it happen; whether it did."""
        raise NotImplementedError

    def finish(self):
        """The load is over."""

    def conditions(self):
        """What the checker must know."""
        return {}

    def report(self, say):
        """What is to be seen on the server when all is over."""
