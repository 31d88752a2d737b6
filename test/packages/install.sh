# install.sh - the Debian packages in a Debian that has nothing else; sourced by
# src/tools/packages

# The block of README.md that says how to install them. The packages are there already,
# where "make packages" has left them.
readme_commands() {
    local folder
    awk '/^<!-- not run: make packages runs it/ { here = 1; next }
        here && /^```bash/ { block = 1; next }
        block && /^```/ { exit }
        block' "$TOP/README.md" >"$WORK/readme.sh"
    folder=$(sed -n 's,^make packages ARGS="deb \(/.*\)"$,\1,p' "$WORK/readme.sh")
    [ -n "$folder" ] && grep -q 'apt-get install' "$WORK/readme.sh"
    # README.md is about Debian 12
    sed -i "s/\b15\b/$PGVERSION/g; s,^make packages .*,cp -r /srv/packages $folder," "$WORK/readme.sh"
}

# The files of a system that are called after outbox, except those in a server's data.
named_outbox() {
    (cd "$1" && find etc usr var -path var/lib/postgresql -prune -o -name '*outbox*' -print | sort)
}

fresh_debian() {
    cp -a --reflink=auto "$CHROOTS/debian" "$1"
}

as_readme_says() {
    local root=$CHROOTS/install
    readme_commands
    fresh_debian "$root"
    mkdir "$root/srv/packages"
    cp "$WORK"/deb/*.deb "$root/srv/packages"
    cp "$WORK/outbox-$VERSION/packaging/smoke" "$root/srv"
    named_outbox "$root" >"$WORK/before"
    # someone who answers
    echo 'APT::Get::Assume-Yes "true";' >"$root/etc/apt/apt.conf.d/yes"
    in_debian "$root" bash -euxo pipefail -s <"$WORK/readme.sh"
}

installed_works() {
    in_debian "$CHROOTS/install" bash -euc '
        pg_ctlcluster "$0" main start
        sudo -u postgres /srv/smoke
        pg_ctlcluster "$0" main stop' "$PGVERSION"
}

can_be_completed() {
    in_debian "$CHROOTS/install" bash -euc '
        . /usr/share/bash-completion/completions/outbox
        complete -p outbox
        COMP_WORDS=(outbox sta) COMP_CWORD=1
        _outbox
        [ "${COMPREPLY[*]}" = status ]
        zcat /usr/share/man/man1/outbox.1.gz | grep -q "^\.TH OUTBOX 1"'
}

leaves_no_trace() {
    local root=$CHROOTS/install
    in_debian "$root" bash -euc '
        apt-get install -y -qq /srv/packages/postgresql-outbox-doc_*.deb
        ls /usr/share/doc/postgresql-outbox-doc/clients/python/outbox.py
        apt-get purge -y -qq "postgresql-*-outbox" "postgresql-outbox-*"'
    named_outbox "$root" >"$WORK/after"
    same "$WORK/before" "$WORK/after"
}

part_install() {
    step 'in a new Debian: installed as README.md says' as_readme_says
    [ -n "$DONE" ] || return 0
    step 'the extension, its workers and the command line work' installed_works
    step 'the command line has its completion and its manual' can_be_completed
    step 'purging the packages leaves nothing of them' leaves_no_trace
}

autopkgtest_passes() {
    fresh_debian "$CHROOTS/autopkgtest"
    with_mounts "$CHROOTS/autopkgtest" autopkgtest -B "$WORK"/deb/*.deb "$WORK"/deb/*.dsc -- chroot "$CHROOTS/autopkgtest"
}

part_autopkgtest() {
    step 'autopkgtest' autopkgtest_passes
}
