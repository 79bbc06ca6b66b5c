#!/bin/bash
# What clients notice when the disk under the query journal stands still for 10 s: pgbench -S through a gateway whose journal
# lies on a file system of its own, which is frozen. Needs root, pgbench and a Postgres of Debian. Fails if a transaction
# failed, if one took a second meanwhile (it would have waited for the disk), or if the journal is damaged.
#
#   bench/journal_stall.sh target/release/tidegate [PORT of the gateway; Postgres takes the next one]
set -euo pipefail
tidegate=$(realpath "$1") port=${2:-6590}
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
work=$(mktemp -d)
chmod 755 "$work"
cd "$work"
gateway=
clean() {
    fsfreeze -u mnt 2>/dev/null || true
    if [ -n "$gateway" ]; then kill "$gateway" 2>/dev/null || true; wait "$gateway" 2>/dev/null || true; fi
    runuser -u postgres -- "$bin/pg_ctl" -D "$work/pg" -m immediate stop >/dev/null 2>&1 || true
    umount mnt 2>/dev/null || true
    rm -rf "$work"
}
trap clean EXIT

truncate -s 2G image
mkfs.ext4 -q image
mkdir mnt pg
mount -o loop image mnt
chown postgres pg
runuser -u postgres -- "$bin/initdb" -D "$work/pg" -A trust >/dev/null
options="-p $((port + 1)) -k $work/pg -c fsync=off -c listen_addresses=127.0.0.1"
runuser -u postgres -- "$bin/pg_ctl" -D "$work/pg" -w -o "$options" -l "$work/pg/log" start >/dev/null
psql -h 127.0.0.1 -p $((port + 1)) -U postgres -qc "create role bench login superuser" -c "create database bench owner bench"
pgbench -h 127.0.0.1 -p $((port + 1)) -U bench -i -q -s 10 bench >/dev/null 2>&1
cat >tidegate.toml <<END
[listen]
addresses = ["127.0.0.1:$port"]
[auth]
method = "trust"
[pool]
size = 20
[databases.bench]
host = "127.0.0.1"
port = $((port + 1))
sslmode = "disable"
[users.bench]
password = "bench"
[journal]
folder = "$work/mnt/journal"
END
"$tidegate" run -c tidegate.toml >gateway.log 2>&1 &
gateway=$!
until psql -h 127.0.0.1 -p "$port" -U bench -qc "select 1" bench >/dev/null 2>&1; do sleep 0.2; done

stall() {
    sleep 8
    echo "frozen $(date +%s)"
    fsfreeze -f mnt
    sleep 10
    fsfreeze -u mnt
    echo "thawed $(date +%s)"
}
stall >marks &
stalling=$!
pgbench -h 127.0.0.1 -p "$port" -U bench -S -c 16 -T 26 -n -l --sampling-rate=0.2 bench >pgbench.out 2>&1
wait "$stalling"
grep -E "^tps|failed" pgbench.out
frozen=$(awk '/frozen/ { print $2 }' marks) thawed=$(awk '/thawed/ { print $2 }' marks)
# The seconds in which it begins and ends belong to neither.
cat pgbench_log* | awk -v f="$frozen" -v t="$thawed" '
    { part = $5 < f ? "1 before" : $5 > f && $5 < t ? "2 frozen" : $5 > t ? "3 after" : ""; if (part) print part, $3 }' |
    sort -k1,1 -k3,3n | awk '
    function row() { printf "%-7s p50 %6.2f ms  p99 %6.2f ms  p99.9 %6.2f ms  max %7.2f ms\n", name,
        us[int(n * .5)] / 1000, us[int(n * .99)] / 1000, us[int(n * .999)] / 1000, us[n - 1] / 1000 }
    { if ($2 != name) { if (n) row(); name = $2; n = 0 } us[n++] = $3 }
    END { row() }'
grep -q "failed transactions: 0 " pgbench.out || { echo "transactions failed" >&2; exit 1; }
cat pgbench_log* | awk -v f="$frozen" -v t="$thawed" '
    $5 > f && $5 < t { n++ }
    $5 > f && $5 < t + 3 && $3 > 1000000 { slow++ }
    END { if (!n || slow) { print slow + 0 " of " n + 0 " took a second while the disk stood still" > "/dev/stderr"; exit 1 } }'
grep VmHWM "/proc/$gateway/status"
kill -TERM "$gateway"
wait "$gateway" || true
gateway=
grep "journal closed" gateway.log
"$tidegate" journal verify mnt/journal
