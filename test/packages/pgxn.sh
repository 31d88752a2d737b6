# pgxn.sh - META.json, and the archive of a release; sourced by src/tools/packages

build_without_git() {
    local folder=$WORK/pgxn
    as_user mkdir -p "$folder/bin" "$folder/inst"
    printf '#!/bin/sh\necho "$@" >>%q\nexit 127\n' "$folder/git-was-called" | as_user tee "$folder/bin/git" >/dev/null
    as_user chmod +x "$folder/bin/git"
    unpack "$folder"
    at "$folder/outbox-$VERSION" PATH="$folder/bin:$PATH" make -s PG_CONFIG="$PG_CONFIG"
    at "$folder/outbox-$VERSION" PATH="$folder/bin:$PATH" make -s PG_CONFIG="$PG_CONFIG" DESTDIR="$folder/inst" install
    [ ! -e "$folder/git-was-called" ]
    (cd "$folder/inst" && find . -type f | sed 's/^\.//' | sort) >"$folder/files"
    sort >"$folder/expected" <<F
$BINDIR/outbox
$("$PG_CONFIG" --pkglibdir)/outbox.so
$("$PG_CONFIG" --sharedir)/extension/outbox.control
$("$PG_CONFIG" --sharedir)/extension/outbox--$VERSION.sql
$(cd "$TOP/src/sql" && find . -path './upgrade/outbox--*--*.sql' | sed "s,.*/,$("$PG_CONFIG" --sharedir)/extension/,")
$("$PG_CONFIG" --mandir)/man1/outbox.1
$("$PG_CONFIG" --sharedir)/outbox/_outbox
$("$PG_CONFIG" --sharedir)/outbox/completion.bash
F
    sed -i '/^$/d' "$folder/expected"
    same "$folder/expected" "$folder/files"
}

part_pgxn() {
    if [ -e "$TOP/.git" ]; then
        step 'META.json keeps to the specification' nothing "$TOP/src/tools/meta"
        step 'the archive holds what it must' nothing "$SANDBOX/clone/src/tools/meta" "$ZIP"
        step 'what is wrong with either would be noticed' prove "$TOP/test/packages/meta.pl" :: "$SANDBOX/clone"
    else
        say "skipped, since there is no git repository: the archive of a release"
    fi
    step 'the archive builds and installs, without git' build_without_git
    [ -n "$DONE" ] || return 0
    step 'and works' works_in pgxn "$WORK/pgxn/inst" "$WORK/pgxn/inst$BINDIR/outbox"
}
