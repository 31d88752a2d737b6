# docker.sh - the image of packaging/Dockerfile; sourced by src/tools/packages

image_works() {
    local engine=$1 tag=outbox-test:$$ container=outbox-test-$$ options=() began
    # what it has built on the way would stay
    [ "$engine" != podman ] || options=(--layers=false)
    trap "'$engine' rm -f -v '$container'; '$engine' rmi '$tag'" EXIT
    "$engine" build "${options[@]}" -t "$tag" -f "$WORK/outbox-$VERSION/packaging/Dockerfile" "$WORK/outbox-$VERSION"
    "$engine" run -d --name "$container" -e POSTGRES_PASSWORD=secret "$tag"
    # while the entry point makes the database, the server listens on no address
    began=$SECONDS
    until "$engine" exec "$container" pg_isready -q -h 127.0.0.1; do
        if [ $((SECONDS - began)) -ge 300 ]; then
            "$engine" logs "$container"
            return 1
        fi
        sleep 0.2
    done
    [ "$("$engine" exec -u postgres "$container" psql -XAtc "$CREATED")" = 1 ]
    "$engine" exec -i -u postgres "$container" sh -s <"$WORK/outbox-$VERSION/packaging/smoke"
}

CREATED="SELECT count(*) FROM pg_extension WHERE extname = 'outbox'"

# What the official image has that the Dockerfile refers to.
official_image() {
    fresh_debian "$CHROOTS/official"
    in_debian "$CHROOTS/official" bash -euxc '
        apt-get -qq update
        apt-get -qq install -y --no-install-recommends postgresql-common
        echo "create_main_cluster = false" >>/etc/postgresql-common/createcluster.conf
        apt-get -qq install -y --no-install-recommends "postgresql-$0"
        cd /usr/share/postgresql
        dpkg-divert --add --rename --divert "$PWD/postgresql.conf.sample.dpkg" "$PWD/$0/postgresql.conf.sample"
        cp postgresql.conf.sample.dpkg postgresql.conf.sample
        ln -s ../postgresql.conf.sample "$0/"
        mkdir /docker-entrypoint-initdb.d
        install -d -o postgres -g postgres -m 777 /var/lib/postgresql/data' "$PGVERSION"
}

image_steps() {
    "$TOP/src/tools/dockerfile" "$WORK/outbox-$VERSION/packaging/Dockerfile" "$WORK/outbox-$VERSION" "$CHROOTS/official" \
        "$CHROOTS" "PG_MAJOR=$PGVERSION" PGDATA=/var/lib/postgresql/data LANG=C.UTF-8 \
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$BINDIR" | tee "$WORK/steps"
}

# What the entry point of the image does with an empty data directory, and then the server.
image_steps_work() {
    local root
    root=$(tail -1 "$WORK/steps")
    cp "$WORK/outbox-$VERSION/packaging/smoke" "$root/srv"
    in_debian "$root" setpriv --reuid=postgres --regid=postgres --init-groups \
        env -i PATH="/usr/bin:/bin:$BINDIR" PGDATA=/var/lib/postgresql/data LANG=C.UTF-8 sh -euxc '
        initdb -A trust
        pg_ctl -o "-c listen_addresses=" -w start
        for file in /docker-entrypoint-initdb.d/*; do
            case $file in
            *.sql) psql -v ON_ERROR_STOP=1 --no-psqlrc -f "$file" ;;
            *) echo "$file is not known here"; exit 1 ;;
            esac
        done
        pg_ctl -m fast -w stop
        pg_ctl -o "-c listen_addresses=" -w start
        [ "$(psql -XAtc "$0")" = 1 ]
        /srv/smoke
        pg_ctl -m fast -w stop' "$CREATED"
}

part_docker() {
    local engine
    engine=$(engine)
    if [ -n "$engine" ]; then
        step "the image is built and run by $engine, and works" image_works "$engine"
        return
    fi
    say "there is no docker or podman that runs: the steps of the Dockerfile, in a Debian"
    [ -d "$CHROOTS/debian" ] || return 0
    step 'a Debian that has what the official image has' official_image
    [ -n "$DONE" ] || return 0
    step 'the steps of the Dockerfile' image_steps
    [ -n "$DONE" ] || return 0
    step 'what they have made works' image_steps_work
}
