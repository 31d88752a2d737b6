# deb.sh - Debian packages; sourced by src/tools/packages

# The source package: the archive, and packaging/debian beside it as debian.
make_source() {
    local folder=$1 top=$1/postgresql-outbox-$VERSION
    as_user mkdir -p "$folder"
    unpack "$folder"
    at "$folder" mv "outbox-$VERSION" "$top"
    at "$folder" tar --sort=name --owner=root:0 --group=root:0 --mtime="@$(stat -c %Y "$top/META.json")" \
        -cJf "postgresql-outbox_$VERSION.orig.tar.xz" "postgresql-outbox-$VERSION"
    at "$top" cp -a packaging/debian debian
    at "$top" pg_buildext updatecontrol
}

build_debs() {
    make_source "$WORK/deb"
    at "$WORK/deb/postgresql-outbox-$VERSION" dpkg-buildpackage -us -uc >"$WORK/deb/build.log" 2>&1 ||
        { cat "$WORK/deb/build.log"; return 1; }
    at "$WORK/deb/postgresql-outbox-$VERSION" pg_buildext supported-versions >"$WORK/deb/versions"
}

# The names of the packages, without those of debugging symbols, and some of what is in
# them: the extension for one version of the server each, the command line once.
each_has_its_own() {
    local folder=$WORK/deb version package
    (cd "$folder" && printf '%s\n' *.deb | sed 's/_.*//' | grep -v dbgsym | sort) >"$folder/names"
    { sed 's/.*/postgresql-&-outbox/' "$folder/versions"; printf 'postgresql-outbox-%s\n' tools doc; } | sort >"$folder/expected"
    same "$folder/expected" "$folder/names"
    while read -r package; do
        deb_files "$folder/$package"_*.deb >"$folder/$package.files"
    done <"$folder/names"
    while read -r version; do
        { grep -v ^/usr/share/doc/ "$folder/postgresql-$version-outbox.files" || true; } >"$folder/files"
        sort >"$folder/expected" <<F
/usr/lib/postgresql/$version/lib/outbox.so
/usr/share/postgresql/$version/extension/outbox--$VERSION.sql
/usr/share/postgresql/$version/extension/outbox.control
F
        same "$folder/expected" <(grep -v -- '--.*--' "$folder/files")
    done <"$folder/versions"
    { grep -v ^/usr/share/doc/ "$folder/postgresql-outbox-tools.files" || true; } >"$folder/files"
    sort >"$folder/expected" <<F
/usr/bin/outbox
/usr/share/bash-completion/completions/outbox
/usr/share/man/man1/outbox.1.gz
/usr/share/zsh/vendor-completions/_outbox
F
    same "$folder/expected" "$folder/files"
}

deb_files() {
    dpkg-deb --fsys-tarfile "$1" | tar -t | sed -n 's,^\./\(.*[^/]\)$,/\1,p' | sort
}

lintian_finds_nothing() {
    nothing at "$WORK/deb" lintian --fail-on error,warning "$WORK"/deb/*.changes
}

hardened() {
    local folder=$WORK/deb/postgresql-outbox-$VERSION/debian file options=(--nocfprotection)
    # the flags of each call of the compiler, of which PIE is the default, and what has
    # become of them
    nothing blhc --all --ignore-flag -fPIE --ignore-flag -pie "$WORK/deb/build.log"
    # another thing that Debian does not ask for, and newer versions look for
    ! hardening-check --help | grep -q nobranchprotection || options+=(--nobranchprotection)
    for file in "$folder"/postgresql-[0-9]*-outbox/usr/lib/postgresql/*/lib/outbox.so "$folder"/postgresql-outbox-tools/usr/bin/outbox; do
        hardening-check "${options[@]}" "$file"
    done
}

# Again, in another folder, with other settings of the environment.
reproducible() {
    local folder=$WORK/elsewhere/again
    as_user mkdir -p "$folder"
    make_source "$folder"
    (
        umask 027
        at "$folder/postgresql-outbox-$VERSION" LC_ALL=C TZ=Asia/Tokyo USER=other LANGUAGE=de DEB_BUILD_OPTIONS=parallel=1 \
            dpkg-buildpackage -us -uc >"$folder/build.log" 2>&1 || { cat "$folder/build.log"; exit 1; }
    )
    for kind in deb dsc; do
        (cd "$WORK/deb" && sha256sum ./*.$kind) >"$WORK/deb/sums"
        (cd "$folder" && sha256sum ./*.$kind) >"$folder/sums"
        same "$WORK/deb/sums" "$folder/sums"
    done
}

DEBS=
part_deb() {
    step 'Debian packages are built' build_debs
    [ -n "$DONE" ] || return 0
    DEBS=yes
    step "there is one for each of PostgreSQL $(paste -sd, "$WORK/deb/versions")" each_has_its_own
    step 'lintian finds no error and no warning' lintian_finds_nothing
    step 'the hardening flags have arrived' hardened
    step 'another build has the same bytes' reproducible
}
