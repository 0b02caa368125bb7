#!/bin/sh
# run-rootfs.sh [--cpus N] [--config FILE] ROOT MODEL [PORT]: serves MODEL from a root file system of rootfs.sh as a
# container engine would: mounts and processes of its own, everything read only but two tmpfs, no capability, user 65532,
# and with --cpus a quota, as in 1.5, where this may make control groups. FILE is a server_config.toml, mounted where the
# pods of deploy/kubernetes have theirs. Then looks at it from outside: health, a key, an answer, the image's health check,
# SIGTERM. Takes root, unshare, curl.
set -eu
usage() {
    echo "usage: run-rootfs.sh [--cpus N] [--config FILE] ROOT MODEL [PORT]" >&2
    exit 2
}
fail() {
    echo "error: $*" >&2
    exit 1
}
cpus='' config=''
while [ $# -gt 2 ]; do
    case $1 in
    --cpus) cpus=$2 ;;
    --config) config=$2 ;;
    *) break ;;
    esac
    shift 2
done
if [ $# -lt 2 ] || [ $# -gt 3 ]; then usage; fi
[ "$(id -u)" = 0 ] || fail "mounts and chroot take root"
root=$(cd "$1" && pwd)
model=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
[ -f "$model" ] || fail "there is no $model"
port=${3:-18080}

work=$(mktemp -d)
outer='' group=''
leave() {
    code=$?
    # With it goes everything inside (--kill-child).
    [ -z "$outer" ] || kill -9 "$outer" 2>/dev/null || :
    [ -z "$group" ] || rmdir "$group" 2>/dev/null || :
    rm -rf "$work"
    exit "$code"
}
trap leave EXIT
trap 'exit 130' INT TERM HUP
# Who listens for others needs a key; whoever runs the server may read it and nobody else.
mkdir -p "$work/etc/keys" "$work/etc/config"
[ -z "$config" ] || cp "$config" "$work/etc/config/server_config.toml"
key=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
echo "$key" >"$work/etc/keys/api-keys.txt"
chmod 440 "$work/etc/keys/api-keys.txt"
chgrp 65532 "$work/etc/keys/api-keys.txt"
# The folder of mktemp is closed, and only this of it is mounted.
chmod 755 "$work/etc" "$work/etc/keys" "$work/etc/config"

cat >"$work/inside" <<'INSIDE'
set -eu
root=$1 model=$2 etc=$3 port=$4 group=$5
[ -z "$group" ] || echo 0 >"$group/cgroup.procs"
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount --rbind /sys "$root/sys"
for own in run/anneal var/lib/anneal; do
    mount -t tmpfs -o nosuid,nodev,noexec,size=16m,uid=65532,gid=65532,mode=0700 tmpfs "$root/$own"
done
mount -t tmpfs -o nosuid,nodev,noexec,size=1m,mode=0755 tmpfs "$root/models"
touch "$root/models/model.gguf"
mount --bind "$model" "$root/models/model.gguf"
mount -o remount,bind,ro "$root/models/model.gguf"
mount -o remount,ro "$root/models"
mount --bind "$etc" "$root/etc/anneal"
mount -o remount,bind,ro "$root/etc/anneal"
mount -o remount,bind,ro "$root"
shift 5
# No environment but the image's, and no way back to more rights.
exec chroot "$root" /usr/bin/setpriv --reuid 65532 --regid 65532 --clear-groups --no-new-privs --bounding-set=-all \
    --inh-caps=-all /usr/bin/env -i ANNEAL_STATE_DIR=/var/lib/anneal XDG_RUNTIME_DIR=/run/anneal \
    /usr/local/bin/anneal serve --socket /run/anneal/anneal.sock --listen "127.0.0.1:$port" "$@"
INSIDE

if [ -n "$cpus" ]; then
    # Version 1 mounts the controller by itself, version 2 has all in one.
    controller=/sys/fs/cgroup
    [ ! -d "$controller/cpu" ] || controller=$controller/cpu
    group=$controller/anneal-rootfs-$$
    mkdir "$group" || fail "cannot make a control group: leave out --cpus"
    quota=$(awk -v cpus="$cpus" 'BEGIN { printf "%d", cpus * 100000 }')
    if [ -e "$group/cpu.max" ]; then
        echo "$quota 100000" >"$group/cpu.max"
    else
        echo 100000 >"$group/cpu.cfs_period_us"
        echo "$quota" >"$group/cpu.cfs_quota_us" || fail "there is no CPU quota in $group: leave out --cpus"
    fi
    echo "quota: $cpus CPUs"
fi
if [ -n "$config" ]; then
    set -- --config /etc/anneal/config/server_config.toml
else
    set -- -m /models/model.gguf --api-key-file /etc/anneal/keys/api-keys.txt
fi
unshare --mount --pid --fork --kill-child sh "$work/inside" "$root" "$model" "$work/etc" "$port" "$group" "$@" >"$work/log" 2>&1 &
outer=$!
url=http://127.0.0.1:$port
tries=0
until health=$(curl -sS --max-time 5 "$url/health" 2>"$work/curl"); do
    tries=$((tries + 1))
    kill -0 "$outer" 2>/dev/null || fail "it ended: $(cat "$work/log")"
    [ "$tries" -lt 100 ] || fail "no health after 30 s: $(cat "$work/curl" "$work/log")"
    sleep 0.3
done
echo "GET /health: $health"
[ "$health" = '{"status":"ok"}' ] || fail "it is not healthy"
status=$(curl -sS -o /dev/null -w '%{http_code}' "$url/v1/models")
[ "$status" = 401 ] || fail "without a key /v1/models answers $status and not 401"
echo "without a key: $status"

# unshare's child is the server: process 1 of its namespace.
pid=$(cat "/proc/$outer/task/$outer/children")
pid=${pid%% *}
sed -n -E 's/^(Uid|CapEff|NoNewPrivs|Threads):/\1/p' "/proc/$pid/status" | tr -s '\t\n' ' '
echo
[ "$(awk '$1 == "Uid:" { print $2 }' "/proc/$pid/status")" = 65532 ] || fail "it does not run as 65532"
[ "$(awk '$1 == "CapEff:" { print $2 }' "/proc/$pid/status")" = 0000000000000000 ] || fail "it has capabilities"
if [ "$(awk '$5 == "/" { print substr($6, 1, 2) }' "/proc/$pid/mountinfo" | tail -n 1)" != ro ]; then
    fail "its root can be written to"
fi

# What HEALTHCHECK runs, in the server's namespaces and as its user.
nsenter -t "$pid" -m -p -r -G 65532 -S 65532 /usr/local/bin/anneal top --once --interval 0.1 /run/anneal/anneal.sock >"$work/top" ||
    fail "anneal top --once: $(cat "$work/top")"
echo "health check: $(sed -n 1p "$work/top")"
curl -sS "$url/status" -H "Authorization: Bearer $key" | grep -o '"threads":{[^}]*}'
answer=$(curl -sS --max-time 60 "$url/v1/completions" -H "Authorization: Bearer $key" -H 'Content-Type: application/json' \
    -d '{"prompt": "hello", "max_tokens": 8, "temperature": 0}')
echo "$answer" | cut -c 1-160
case $answer in
*'"choices"'*) ;;
*) fail "no answer: $answer $(cat "$work/log")" ;;
esac

kill -TERM "$pid"
code=0
wait "$outer" || code=$?
outer=''
[ "$code" = 0 ] || fail "SIGTERM ended it with $code: $(cat "$work/log")"
echo "SIGTERM: exit code 0"
