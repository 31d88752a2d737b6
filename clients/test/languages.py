"""How the suite of each language is built and run."""

import os
import subprocess
from types import SimpleNamespace


def build(*command, **more):
    subprocess.run([str(word) for word in command], check=True, **more)


def language(name, suite, tutorial=None, without=(), **environment):
    """suite and tutorial are commands: the suite takes its own as one more word, and the
    tutorial a file. without are the scenarios that are left out."""
    return SimpleNamespace(name=name, suite=[str(word) for word in suite], tutorial=tutorial,
                           without=without, environment=environment)


def python(clients, folder):
    return language("python", ["/usr/bin/python3", "-B", clients / "python/test/suite.py"],
                    ["/usr/bin/python3", "-B"], PYTHONPATH=str(clients / "python"))


def asyncio(clients, folder):
    return language("asyncio", ["/usr/bin/python3", "-B", clients / "python/test/suite_asyncio.py"],
                    ["/usr/bin/python3", "-B"], PYTHONPATH=str(clients / "python"))


def modules(clients, folder):
    """Node's modules beside the client, once."""
    if not (clients / "node/node_modules").exists():
        build("npm", "--prefix", clients / "node", "--cache", folder / "npm", "--no-audit",
              "--no-fund", "--no-package-lock", "--no-update-notifier", "--loglevel=error", "install",
              stdout=subprocess.DEVNULL)


def node(clients, folder):
    modules(clients, folder)
    build(clients / "node/node_modules/.bin/tsc", "--noEmit", "--strict", "--skipLibCheck",
          "--target", "es2022", "--module", "nodenext", "--types", "node", "test/types.ts",
          cwd=clients / "node")
    return language("node", ["node", clients / "node/test/suite.mjs"], ["node"])


def postgresjs(clients, folder):
    """The other driver. When a connection breaks while it writes, postgres.js 3.4.9 raises
    an error that nothing can catch, and the process ends: docs/clients.md says so."""
    modules(clients, folder)
    return language("postgresjs", ["node", clients / "node/test/suite.mjs"],
                    DRIVER="postgres")


def go(clients, folder, *tags):
    """With Debian's packages as GOPATH, so nothing is fetched, and with the race detector."""
    path = folder / "gopath"
    if not path.exists():
        (path / "src").mkdir(parents=True)
        (path / "src/outbox").symlink_to(clients / "go")
    environment = {"GOPATH": f"{path}:/usr/share/gocode", "GO111MODULE": "off",
                   "GOFLAGS": "-buildvcs=false", "GOCACHE": str(folder / "gocache")}
    program = folder / f"go-suite{len(tags)}"
    build("go", "vet", *tags, "outbox", "outbox/test", env=os.environ | environment)
    build("go", "build", "-race", *tags, "-o", program, "outbox/test", env=os.environ | environment)
    return language("pgx" if tags else "go", [program], ["go", "run"], **environment)


def pgx(clients, folder):
    return go(clients, folder, "-tags=pgx")


def perl(clients, folder):
    return language("perl", ["/usr/bin/perl", clients / "perl/test/suite.pl"], ["/usr/bin/perl"],
                    PERL5LIB=str(clients / "perl"))


def c(clients, folder):
    """Built with warnings as errors, and with the address sanitizer."""
    include = subprocess.run(["pg_config", "--includedir"], capture_output=True, text=True,
                             check=True).stdout.strip()
    build("gcc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Wshadow", "-Wno-unused-parameter",
          "-Wno-missing-field-initializers", "-Werror", "-fsanitize=address,undefined",
          f"-I{include}", f"-I{clients}/c", *sorted((clients / "c").glob("*.c")),
          clients / "c/test/suite.c", "-o", folder / "c-suite", "-lpq", "-pthread")
    return language("c", [folder / "c-suite"], C_INCLUDE_PATH=f"{include}:{clients}/c")


def ruby(clients, folder):
    return language("ruby", ["/usr/bin/ruby", "-W", clients / "ruby/test/suite.rb"],
                    ["/usr/bin/ruby", "-I", clients / "ruby"])


def php(clients, folder):
    return language("php", ["/usr/bin/php", clients / "php/test/suite.php"])


def java(clients, folder):
    classes = f"{folder}/java-classes:/usr/share/java/postgresql.jar"
    build("javac", "-Xlint:all", "-Werror", "-cp", "/usr/share/java/postgresql.jar", "-d",
          folder / "java-classes", *sorted((clients / "java/outbox").glob("*.java")),
          clients / "java/test/Suite.java")
    return language("java", ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", classes, "Suite"],
                    CLASSPATH=classes)


LANGUAGES = {maker.__name__: maker for maker in (python, asyncio, node, postgresjs, go, pgx, perl, c,
                                                    ruby, php, java)}
