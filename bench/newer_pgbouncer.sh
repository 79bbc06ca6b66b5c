#!/bin/sh
# Unpacks the PgBouncer of a later Debian suite into a folder, beside the system and without touching it, for measuring.
# usage: newer_pgbouncer.sh DIR [SUITE]      then: cargo xtask bench gateway --pgbouncer DIR/pgbouncer
#
# Prepared statements in transaction mode came with PgBouncer 1.21; Debian 12 has 1.18. The package sources are those of
# this machine with another suite, the signatures are checked as always, and the program runs with its own C library.
set -eu
dir=$(mkdir -p "$1" && cd "$1" && pwd)
suite=${2:-trixie}
sources=/etc/apt/sources.list.d/debian.sources
[ -r "$sources" ] || { echo "no $sources to take the mirror from" >&2; exit 1; }

apt=$dir/apt
mkdir -p "$apt/etc/apt.conf.d" "$apt/etc/preferences.d" "$apt/etc/sources.list.d" "$apt/etc/trusted.gpg.d" \
    "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/debs"
: >"$apt/status"
uri=$(sed -n 's/^URIs: *//p' "$sources" | head -n 1)
key=$(sed -n 's/^Signed-By: *//p' "$sources" | head -n 1)
printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' "$uri" "$suite" "$key" \
    >"$apt/etc/sources.list.d/later.sources"
cat >"$apt/apt.conf" <<CONF
Dir::Etc "$apt/etc";
Dir::State::lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
APT::Sandbox::User "root";
CONF
export APT_CONFIG="$apt/apt.conf"
apt-get update -qq
(cd "$apt/debs" && apt-get download -qq pgbouncer libc6 libcares2 libevent-2.1-7t64 libpam0g libssl3t64 libsystemd0 \
    libcap2 libgcc-s1 libzstd1 libaudit1 libcap-ng0 zlib1g)
for package in "$apt"/debs/*.deb; do dpkg-deb -x "$package" "$dir"; done

cat >"$dir/pgbouncer" <<'RUN'
#!/bin/sh
root=$(dirname "$(readlink -f "$0")")
libs=$root/usr/lib/x86_64-linux-gnu
exec "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$libs" "$root/usr/sbin/pgbouncer" "$@"
RUN
chmod +x "$dir/pgbouncer"
chmod -R a+rX "$dir"
"$dir/pgbouncer" --version
