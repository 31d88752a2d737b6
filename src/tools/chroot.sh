# chroot.sh - other Debian systems, made with debootstrap
#
# Sourced by versions and packages, after lib.sh. What is here needs root.

# The mirrors that this system uses.
mirrors() {
    sed -n 's/^deb \(\[[^]]*\] \)\{0,1\}\(http[^ ]*\) .* main.*/\2/p; s/^URIs: *//p' \
        /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null || true
}

# make_debian RELEASE FOLDER PACKAGES: with these packages, as debootstrap wants them, the
# mirrors of this system, its proxy, and its way to resolve names.
make_debian() {
    local release=$1 root=$2 packages=$3 mirror security file
    mirror=$(mirrors | grep -v security | head -1 || true)
    security=$(mirrors | grep security | head -1 || true)
    if ! [ -e "$root/usr/bin/dpkg" ]; then
        say "making a Debian $release"
        debootstrap --variant=minbase --include="$packages" "$release" "$root" \
            ${mirror:+"$mirror"} >"$root.log" || { tail -20 "$root.log" >&2; return 1; }
    fi
    # the newest minor version: pg_upgrade refuses one that is older than the old server's
    if [ "$release" != sid ] && [ -n "$security" ]; then
        echo "deb $security $release-security main" >"$root/etc/apt/sources.list.d/security.list"
    fi
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    for file in /etc/apt/apt.conf.d/*proxy*; do
        [ ! -e "$file" ] || cp "$file" "$root/etc/apt/apt.conf.d/"
    done
}

# with_mounts FOLDER COMMAND...: run it outside, while the system in the folder has /proc,
# /dev/shm and a /tmp of its own. These go with the process that made them, and so does
# all that was started there.
with_mounts() {
    unshare --mount --pid --fork --kill-child -- bash -euc '
        mount -t proc proc "$0/proc"
        mkdir -p "$0/dev/shm"
        mount -t tmpfs tmpfs "$0/dev/shm"
        mount -t tmpfs tmpfs "$0/tmp"
        "$@"' "$@"
}

# in_debian FOLDER COMMAND...: run it there, as root.
in_debian() {
    with_mounts "$1" chroot "$@"
}
