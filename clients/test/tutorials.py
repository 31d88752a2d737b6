"""Follow a tutorial as a new user would, in a database and a folder of its own: first in the
encoding of the server, and then in SQL_ASCII, which a server has that was created without
a locale.

What is in docs/tutorials is run block by block: SQL, programs that are written to a file,
and commands. A block of text is the output of the block before it. Comments before a block
mean what they mean in test/t/035_documents.pl: program, until, not run.
"""

import os
import re
import signal
import subprocess
import time

import psycopg

MOST_LINES = 15


def blocks(page):
    """(language, comments, code) of each block."""
    for comment, language, code in re.findall(
            r"((?:<!-- .*? -->\n)*)^```(\w+)\n(.*?)^```$", page, re.M | re.S):
        yield language, dict(re.findall(r"<!-- ([\w ]+): (.*?) -->", comment)), code


def user_lines(code):
    """Without what names other files, and without lines that only close something."""
    return [line for line in code.splitlines() if re.search(r"\w", line) and not re.match(
        r"\s*(import\b|from\b.* import\b|require|use \w|#include|package\b|\"|_ \"|<\?php)", line)]


def follow(case, folder):
    page = folder / f"{case.language.name}.md"
    if page.exists():
        follow_in(case, folder, page, "tutorial", "")
        follow_in(case, folder, page, "tutorial_ascii",
                  "TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'")


def follow_in(case, folder, page, name, options):
    """In a database that is created with these options."""
    database = f"{case.language.name}_{name}"
    case.conn.execute(f"CREATE DATABASE {database} {options}")
    place = case.folder / name
    place.mkdir()
    (place / "outbox").symlink_to(folder.parents[1])
    modules = folder.parents[1] / "clients/node/node_modules"
    if modules.exists():
        (place / "node_modules").symlink_to(modules)
    environment = case.environment() | {"PGDATABASE": database}
    output, lines, compared = None, 0, 0
    with psycopg.connect(case.dsn(database), autocommit=True) as conn:
        for language, comments, code in blocks(page.read_text()):
            if language == "text":
                case.equal(f"{name}: it shows {code.strip()[:40]!r}", output.strip(), code.strip())
                compared += 1
            elif "not run" in comments:
                continue
            elif "program" in comments:
                (place / comments["program"]).write_text(code)
                lines += len(user_lines(code))
            elif language == "sql":
                conn.execute(code)
            elif language == "bash":
                output = command(conn, place, environment, code, comments.get("until"))
    case.check(f"{name}: it takes {lines} lines", 0 < lines <= MOST_LINES)
    case.check(f"{name}: something was shown", compared > 0)


def command(conn, place, environment, code, until):
    """What it prints. With a query, it is ended when that is true."""
    process = subprocess.Popen(["bash", "-ec", code], cwd=place, env=environment,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               start_new_session=True)
    end = time.monotonic() + 90
    while until and time.monotonic() < end and process.poll() is None:
        if conn.execute(until).fetchone()[0]:
            os.killpg(process.pid, signal.SIGTERM)
            break
        time.sleep(0.05)
    try:
        return process.communicate(timeout=90)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0] + "\nit did not end"
