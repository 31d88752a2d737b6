#!/usr/bin/python3
"""Is the checker blind to a broken engine? Mutants are the engine with one edit each.

    mutants.py list
    mutants.py file NAME
    mutants.py check SOURCES
    mutants.py apply NAME SOURCES
    mutants.py try NAME bindir=... folder=... [seed=N] [messages=N]

Each file in mutants/ is one: the promise that it breaks, the laws of which one must
report that, the file that is edited, perhaps how its load differs, and the edit: lines
that must be in the file exactly once, those with a minus without it and those with a
plus instead. "check" says which edits no longer apply; src/tools/mutants builds and
tries them all. Without an edit ("sound") nothing may be reported.
"""

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field

FOLDER = os.path.dirname(os.path.abspath(__file__))
SOUND = 'sound'
TRIES = 3       # a load need not come by what is broken
LOAD = {'messages': 4000, 'crashes': 0, 'restarts': 0, 'kills': 0, 'nuisances': 0, 'patience': 20}


@dataclass
class Mutant:
    name: str
    promise: str = 'Nothing is broken.'
    laws: set = field(default_factory=set)
    file: str = ''
    load: dict = field(default_factory=dict)
    old: str = ''
    new: str = ''

    def edited(self, sources):
        """The path of its file, and what it is to contain."""
        path = f'{sources}/{self.file}'
        with open(path, encoding='utf-8') as file:
            text = file.read()
        if self.old == self.new or text.count(self.old) != 1:
            raise ValueError(f'{self.name}: {self.file} has the lines {text.count(self.old)} times, not once')
        return path, text.replace(self.old, self.new)


def names():
    return sorted(name.removesuffix('.edit') for name in os.listdir(f'{FOLDER}/mutants'))


def read(name):
    if name == SOUND:
        return Mutant(name)
    mutant = Mutant(name)
    with open(f'{FOLDER}/mutants/{name}.edit', encoding='utf-8') as file:
        for line in file:
            found = re.fullmatch(r'(promise|laws|file|load): (.*)\n', line)
            if found:
                key, value = found.groups()
                setattr(mutant, key, set(value.split(', ')) if key == 'laws'
                        else dict(pair.split('=') for pair in value.split()) if key == 'load' else value)
                continue
            if line[0] not in ' +-':
                raise ValueError(f'{name}: what is "{line.rstrip()}"?')
            mutant.old += line[1:] if line[0] != '+' else ''
            mutant.new += line[1:] if line[0] != '-' else ''
    return mutant


def reported(mutant, options, attempt):
    """The laws that one load breaks, and what was said."""
    load = {**LOAD, **options, **mutant.load}
    load['seed'] = f'{options["seed"]}.{attempt}'
    run = subprocess.run([sys.executable, '-B', f'{FOLDER}/run.py', *(f'{name}={value}' for name, value in load.items())],
                         check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found = re.findall(r'^not ok - ([^:\n]*)', run.stdout, re.M)
    return set(found) if found or run.returncode == 0 else {'it could not be tried'}, run.stdout


def attempt_all(name, options):
    """Try a mutant; whether it was reported, by which laws, and what was said."""
    mutant = read(name)
    options = {'seed': '1', **options}
    for attempt in range(TRIES if mutant.laws else 1):
        laws, said = reported(mutant, options, attempt)
        if laws & mutant.laws:
            return True, sorted(laws & mutant.laws), said
    return not laws and not mutant.laws, sorted(laws), said


def main():
    what, *arguments = sys.argv[1:]
    if what == 'list':
        print(*names(), sep='\n')
    elif what == 'file':
        print(read(arguments[0]).file)
    elif what == 'check':
        failed = 0
        for name in names():
            try:
                read(name).edited(arguments[0])
            except (ValueError, OSError) as error:
                print(error)
                failed = 1
        return failed
    elif what == 'apply':
        path, text = read(arguments[0]).edited(arguments[1])
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text)
    elif what == 'try':
        began = time.monotonic()
        name, *more = arguments
        good, laws, said = attempt_all(name, dict(pair.split('=') for pair in more))
        print(f'{"ok" if good else "not ok"} - {name}: {", ".join(laws) or "nothing"} is reported, '
              f'{time.monotonic() - began:.0f} s: {read(name).promise}', flush=True)
        if not good:
            print('# ' + said.rstrip().replace('\n', '\n# '))
        return not good
    return 0


if __name__ == '__main__':
    sys.exit(main())
