# lib.sh - a private PostgreSQL to build for and to run on
#
# Sourced by demo, check and bench. Everything happens in a temporary
# directory: the sources are copied there and built there, and the server that
# runs them is a copy of the installed one, with the extension beside it. So
# nothing is installed but packages, no other server is touched, and nothing
# is left when the directory is removed.

set -eu -o pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PGVERSION=${PGVERSION:-}
# The prefix of the installation to run on, if not that of the Debian package.
OUTBOX_SERVER=${OUTBOX_SERVER:-}
SANDBOX=

say() { printf '%s\n' "$*"; }
die() { printf '%s\n' "$*" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo -- "$@"
    fi
}

# Servers refuse to run as root. (runuser would reset the limit of core dumps.)
as_user() {
    if [ "$(id -u)" = 0 ]; then
        (cd / && setpriv --reuid=postgres --regid=postgres --init-groups \
            env HOME="$SANDBOX" PATH="$PATH" "$@")
    else
        "$@"
    fi
}

# The newest major version that this system's packages offer.
offered_version() {
    apt-cache search --names-only '^postgresql-server-dev-[0-9]+$' |
        sed -n 's/^postgresql-server-dev-\([0-9]*\) .*/\1/p' | sort -n | tail -1
}

# Those of the packages that this system knows.
offered() {
    local package
    for package; do
        ! apt-cache show "$package" >/dev/null 2>&1 || echo "$package"
    done
}

# Install what is missing. A package of PostgreSQL would create a cluster and start
# it, and others would start services; that is disabled while they are installed.
need_packages() {
    local missing=() package conf=/etc/postgresql-common/createcluster.conf
    local policy=/usr/sbin/policy-rc.d
    for package; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
            missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    say "installing ${missing[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update >/dev/null || true
    if [ -e "$policy" ]; then
        policy=
    else
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
    fi
    # first, because it brings the setting
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq install -y --no-install-recommends postgresql-common >/dev/null
    as_root cp -p "$conf" "$conf.outbox"
    as_root sed -i 's/^#\? *create_main_cluster.*/create_main_cluster = false/' "$conf"
    if as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
    then
        as_root mv "$conf.outbox" "$conf"
        [ -z "$policy" ] || as_root rm -f "$policy"
    else
        as_root mv "$conf.outbox" "$conf"
        [ -z "$policy" ] || as_root rm -f "$policy"
        die "could not install ${missing[*]}"
    fi
}

choose_version() {
    apt-cache policy postgresql-common 2>/dev/null | grep 'http' >/dev/null ||
        as_root apt-get -qq update >/dev/null
    if [ -n "$OUTBOX_SERVER" ]; then
        PGVERSION=$("$OUTBOX_SERVER/bin/pg_config" --version | sed 's/^PostgreSQL \([0-9]*\).*/\1/')
    elif [ -z "$PGVERSION" ]; then
        PGVERSION=$(offered_version)
    fi
    [ -n "$PGVERSION" ] || die "no PostgreSQL packages found"
}

# Those of the server only if it is the package's.
server_packages() {
    choose_version
    [ -n "$OUTBOX_SERVER" ] ||
        need_packages "postgresql-$PGVERSION" "postgresql-server-dev-$PGVERSION"
    need_packages gcc make "$@"
}

# The folder of the servers that cassert has built. Those of root must be
# readable by user postgres, so they are not in root's home.
cache_folder() {
    if [ -n "${OUTBOX_CACHE:-}" ]; then
        echo "$OUTBOX_CACHE"
    elif [ "$(id -u)" = 0 ]; then
        echo /var/cache/outbox
    else
        echo "${XDG_CACHE_HOME:-$HOME/.cache}/outbox"
    fi
}

# cached_server KIND: the newest one of this major version; empty if there is none
cached_server() {
    { find "$(cache_folder)" -maxdepth 1 -name "postgresql-$PGVERSION.*-$1" 2>/dev/null || true; } |
        sort -V | tail -1
}

# Core dumps are for gdb (see crashes), without shared memory.
want_cores() {
    if command -v gdb >/dev/null && ulimit -c unlimited 2>/dev/null; then
        echo 0x11 2>/dev/null >/proc/self/coredump_filter || true
    fi
}

# An empty directory that is removed when the process ends.
make_folder() {
    SANDBOX=$(mktemp -d /tmp/outbox.XXXXXX)
    trap leave_sandbox EXIT
    trap 'exit 130' INT TERM
    chmod 755 "$SANDBOX"
    mkdir "$SANDBOX/run"
}

# build_in FOLDER PREFIX: build what is in its src, and install it in a copy of
# the server, in its inst.
build_in() {
    local folder
    for folder in "$2" "$("$PG_CONFIG" --sharedir)"; do
        [ ! -e "$1/inst$folder" ] || continue
        mkdir -p "$1/inst$folder"
        cp -a "$folder/." "$1/inst$folder"
    done
    make -s -C "$1/src" PG_CONFIG="$PG_CONFIG" all
    make -s -C "$1/src" PG_CONFIG="$PG_CONFIG" DESTDIR="$1/inst" install >/dev/null
}

# Make the sandbox: sources, build, and a copy of the server around it.
make_sandbox() {
    local prefix=${OUTBOX_SERVER:-/usr/lib/postgresql/$PGVERSION}
    PG_CONFIG=$prefix/bin/pg_config
    make_folder
    mkdir "$SANDBOX/src"
    tar -C "$TOP" --exclude=.git --exclude='*.o' --exclude='*.so' --exclude=./cli/outbox --exclude='./outbox--*.sql' -cf - . |
        tar -C "$SANDBOX/src" -xf - --no-same-owner
    BINDIR=$SANDBOX/inst$prefix/bin
    PGXS=$(dirname "$("$PG_CONFIG" --pgxs)")/../..
    build_in "$SANDBOX" "$prefix"
    "$TOP/src/tools/next-version" "$("$BINDIR/pg_config" --sharedir)/extension"
    if [ "$(id -u)" = 0 ]; then
        chown -R postgres: "$SANDBOX/run" "$SANDBOX/src"
    fi
    export PG_CONFIG PATH="$BINDIR:$PATH" PGHOST="$SANDBOX/run" PGUSER=postgres PGDATABASE=postgres
    unset PGPORT PGSERVICE PGOPTIONS PGPASSWORD 2>/dev/null || true
}

# Build another revision beside it.
make_other() {
    local prefix=${OUTBOX_SERVER:-/usr/lib/postgresql/$PGVERSION} other=$SANDBOX/other
    mkdir -p "$other/src"
    git -C "$TOP" archive "$1" | tar -C "$other/src" -xf - --no-same-owner ||
        die "there is no revision $1"
    OTHER_BINDIR=$other/inst$prefix/bin
    build_in "$other" "$prefix"
}

leave_sandbox() {
    local data
    [ -n "$SANDBOX" ] || return 0
    # also those of TAP tests
    find "$SANDBOX/run" -name postmaster.pid | while read -r data; do
        as_user "$BINDIR/pg_ctl" -D "$(dirname "$data")" -m immediate -s stop || true
    done
    rm -rf "$SANDBOX"
    SANDBOX=
}

# start_server NAME PORT [SETTING...]; it listens on a socket in the sandbox. Its encoding
# is SERVER_ENCODING, or UTF8.
start_server() {
    local name=$1 port=$2 data=$SANDBOX/run/$1 setting
    shift 2
    as_user "$BINDIR/initdb" -D "$data" -U postgres -A trust -E "${SERVER_ENCODING:-UTF8}" --locale=C \
        --no-sync >/dev/null
    {
        echo "port = $port"
        echo "unix_socket_directories = '$SANDBOX/run'"
        echo "listen_addresses = ''"
        echo "fsync = on"
        echo "max_prepared_transactions = 20"
        for setting; do echo "$setting"; done
        # as PostgreSQL::Test::Cluster does
        [ -z "${TEMP_CONFIG:-}" ] || cat "$TEMP_CONFIG"
    } >>"$data/postgresql.conf"
    as_user "$BINDIR/pg_ctl" -D "$data" -l "$data.log" -w -s start ||
        { cat "$data.log" >&2; die "could not start a server"; }
}

stop_server() {
    as_user "$BINDIR/pg_ctl" -D "$SANDBOX/run/$1" -m fast -w -s stop
}
