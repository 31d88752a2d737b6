"""How long each client is.

    lines.py [CLIENTS]

Prints for each language its lines of code, those of them that say something, and these for
each file. A line of code is one that is left without comments and blank lines. It says
something if it has a letter or a digit in it, and does not only import another file.
"""

import re
import sys
from pathlib import Path

SOURCES = {".py", ".mjs", ".mts", ".go", ".java", ".rb", ".php", ".pm", ".c", ".h"}
# a comment, or a string, which may look as if there were one in it
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*|`[^`]*`"
                     r'|"(?:\\.|[^"\\\n])*"' r"|'(?:\\.|[^'\\\n])*'", re.S)
DOCUMENTATION = re.compile(r'^\s*"""(?:[^"]|"(?!""))*"""\s*$', re.M)
IMPORT = re.compile(r'\s*(?:import|from|#include|package|use|require|using)\b.*[^{(]$|\s*"[\w/]+"$')


def without_comments(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".py", ".rb", ".pm"):
        if path.suffix == ".py":
            text = DOCUMENTATION.sub("", text)
        # a comment begins a line, or follows a blank: # is more than that in Perl and Ruby
        return re.sub(r"(^|\s)#\s[^\n]*$", r"\1", text, flags=re.M)
    return COMMENT.sub(lambda found: found[0] if found[0][0] in "\"'`" else "\n" * found[0].count("\n"), text)


def count(path):
    """Lines of code, and those that say something."""
    lines = [line for line in without_comments(path).splitlines() if line.strip()]
    return len(lines), sum(1 for line in lines if re.search(r"\w", line) and not IMPORT.match(line))


def sources(folder):
    return [path for path in sorted(folder.rglob("*")) if path.suffix in SOURCES
            and not {"test", "node_modules"} & set(path.relative_to(folder).parts)]


def main():
    clients = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1])
    for folder in sorted(path for path in clients.iterdir() if path.is_dir() and path.name != "test"):
        counts = {path: count(path) for path in sources(folder)}
        print(folder.name, sum(code for code, _ in counts.values()), sum(said for _, said in counts.values()),
              " ".join(f"{path.name}={said}" for path, (_, said) in counts.items()))


if __name__ == "__main__":
    main()
