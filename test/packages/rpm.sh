# rpm.sh - RPM packages; sourced by src/tools/packages

build_rpms() {
    local folder=$WORK/rpm
    as_user mkdir -p "$folder/SOURCES"
    as_user cp "$ZIP" "$folder/SOURCES"
    at "$folder" rpmbuild -ba --nodeps --define "_topdir $folder" --define "_dbpath $folder/db" \
        --define "_tmppath $folder" --define "pgmajorversion $PGVERSION" \
        --define "pginstdir ${BINDIR%/bin}" --define "pglibdir $("$PG_CONFIG" --pkglibdir)" \
        --define "pgsharedir $("$PG_CONFIG" --sharedir)" "$WORK/outbox-$VERSION/packaging/rpm/outbox.spec"
}

rpmlint_finds_nothing() {
    local folder=$WORK/rpm
    at "$folder" rpmlint --strict --config "$WORK/outbox-$VERSION/packaging/rpm/rpmlint.toml" \
        "$folder"/RPMS/*/*.rpm "$folder"/SRPMS/*.rpm
}

# rpm_files NAME and deb_names NAME: what a package has installed, in the words of the former
rpm_files() {
    rpm --dbpath "$WORK/rpm/db" -qp --qf '[%{FILEMODES:perms} %{FILENAMES}\n]' "$WORK/rpm/RPMS"/*/"$1-$VERSION"-*.rpm |
        sed -n 's/^[^d][^ ]* //p' | sed -E '/^\/usr\/lib\/\.build-id|\/(LICENSE|CHANGELOG\.md)$/d; s,^(/usr/share/doc/[^/]*)-[0-9.]*/,\1/,; s,^(/usr/share/man/.*)\.gz$,\1,' | sort
}

deb_names() {
    deb_files "$WORK/deb/$1"_*.deb | sed -E '/^\/usr\/share\/doc\/[^/]*\/(changelog.*|copyright|clients|monitoring)$/d
        s,^(/usr/share/man/.*)\.gz$,\1,; s,/zsh/vendor-completions/,/zsh/site-functions/,
        s,^(/usr/share/doc/[^/]*)/examples/,\1/,' | sort
}

rpms_have_the_same() {
    local name
    for name in "postgresql-$PGVERSION-outbox" postgresql-outbox-tools postgresql-outbox-doc; do
        deb_names "$name" >"$WORK/rpm/expected"
        [ -s "$WORK/rpm/expected" ]
        rpm_files "${name/postgresql-$PGVERSION-outbox/outbox_$PGVERSION}" >"$WORK/rpm/files"
        same "$WORK/rpm/expected" "$WORK/rpm/files"
    done
}

rpms_work() {
    local inst=$WORK/rpm/inst package
    as_user mkdir "$inst"
    for package in "$WORK"/rpm/RPMS/*/*.rpm; do
        rpm2cpio "$package" | at "$inst" cpio -id --quiet
    done
    works_in rpm "$inst" "$inst/usr/bin/outbox"
}

part_rpm() {
    step 'RPM packages are built' build_rpms
    [ -n "$DONE" ] || return 0
    step 'rpmlint finds nothing' rpmlint_finds_nothing
    if [ -n "$DEBS" ]; then
        step 'they have the files of the Debian packages' rpms_have_the_same
    else
        say "skipped, since there are no Debian packages: a comparison with them"
    fi
    step 'what is in them works' rpms_work
    say "not checked, since this is no system of RPM: that they install, and what they depend on"
}
