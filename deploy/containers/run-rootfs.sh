#!/bin/sh
# run-rootfs.sh [--cpus N] [--config FILE] ROOT MODEL [PORT]: serves MODEL as a container engine would, from a root file system that
# rootfs.sh created: in separate mount and process namespaces, read-only except for two tmpfs, without capabilities, as user 65532.
# --cpus N adds a CPU quota, such as 1.5, if the script can create a control group. FILE is a server_config.toml, which is mounted at
# the same path as in the pods of deploy/kubernetes. The script tests the server from outside: the health endpoint, an API key, a
# completion, the image's health check, and SIGTERM. Needs root, unshare and curl.
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
[ "$(id -u)" = 0 ] || fail "mounts and chroot need root; run this script as root"
root=$(cd "$1" && pwd)
model=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
[ -f "$model" ] || fail "cannot find $model"
port=${3:-18080}

work=$(mktemp -d)
outer='' group=''
leave() {
    code=$?
    # With --kill-child, this also kills all processes in the namespaces.
    [ -z "$outer" ] || kill -9 "$outer" 2>/dev/null || :
    [ -z "$group" ] || rmdir "$group" 2>/dev/null || :
    rm -rf "$work"
    exit "$code"
}
trap leave EXIT
trap 'exit 130' INT TERM HUP
# A server that other machines can reach needs API keys, which only the server's user may read.
mkdir -p "$work/etc/keys" "$work/etc/config"
[ -z "$config" ] || cp "$config" "$work/etc/config/server_config.toml"
key=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
echo "$key" >"$work/etc/keys/api-keys.txt"
chmod 440 "$work/etc/keys/api-keys.txt"
chgrp 65532 "$work/etc/keys/api-keys.txt"
# Other users cannot access the folder that mktemp creates, so its mounted subfolders need these modes.
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
# The server gets only the environment of the image, and cannot regain privileges.
exec chroot "$root" /usr/bin/setpriv --reuid 65532 --regid 65532 --clear-groups --no-new-privs --bounding-set=-all \
    --inh-caps=-all /usr/bin/env -i ANNEAL_STATE_DIR=/var/lib/anneal XDG_RUNTIME_DIR=/run/anneal \
    /usr/local/bin/anneal serve --socket /run/anneal/anneal.sock --listen "127.0.0.1:$port" "$@"
INSIDE

if [ -n "$cpus" ]; then
    # Version 1 of control groups mounts the CPU controller separately; version 2 has a single hierarchy.
    controller=/sys/fs/cgroup
    [ ! -d "$controller/cpu" ] || controller=$controller/cpu
    group=$controller/anneal-rootfs-$$
    mkdir "$group" || fail "cannot create a control group; omit --cpus"
    quota=$(awk -v cpus="$cpus" 'BEGIN { printf "%d", cpus * 100000 }')
    if [ -e "$group/cpu.max" ]; then
        echo "$quota 100000" >"$group/cpu.max"
    else
        echo 100000 >"$group/cpu.cfs_period_us"
        echo "$quota" >"$group/cpu.cfs_quota_us" || fail "cannot set a CPU quota in $group; omit --cpus"
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
    kill -0 "$outer" 2>/dev/null || fail "the server exited: $(cat "$work/log")"
    [ "$tries" -lt 100 ] || fail "the server is not healthy after 30 s: $(cat "$work/curl" "$work/log")"
    sleep 0.3
done
echo "GET /health: $health"
[ "$health" = '{"status":"ok"}' ] || fail "the server is not healthy"
status=$(curl -sS -o /dev/null -w '%{http_code}' "$url/v1/models")
[ "$status" = 401 ] || fail "without a key, /v1/models answers with status $status instead of 401"
echo "without a key: $status"

# The child of unshare is the server, process 1 of its namespace.
pid=$(cat "/proc/$outer/task/$outer/children")
pid=${pid%% *}
sed -n -E 's/^(Uid|CapEff|NoNewPrivs|Threads):/\1/p' "/proc/$pid/status" | tr -s '\t\n' ' '
echo
[ "$(awk '$1 == "Uid:" { print $2 }' "/proc/$pid/status")" = 65532 ] || fail "the server does not run as user 65532"
[ "$(awk '$1 == "CapEff:" { print $2 }' "/proc/$pid/status")" = 0000000000000000 ] || fail "the server has capabilities"
if [ "$(awk '$5 == "/" { print substr($6, 1, 2) }' "/proc/$pid/mountinfo" | tail -n 1)" != ro ]; then
    fail "the root file system of the server is writable"
fi

# Runs the image's HEALTHCHECK in the server's namespaces and as its user.
nsenter -t "$pid" -m -p -r -G 65532 -S 65532 /usr/local/bin/anneal top --once --interval 0.1 /run/anneal/anneal.sock >"$work/top" ||
    fail "anneal top --once failed: $(cat "$work/top")"
echo "health check: $(sed -n 1p "$work/top")"
curl -sS "$url/status" -H "Authorization: Bearer $key" | grep -o '"threads":{[^}]*}'
answer=$(curl -sS --max-time 60 "$url/v1/completions" -H "Authorization: Bearer $key" -H 'Content-Type: application/json' \
    -d '{"prompt": "hello", "max_tokens": 8, "temperature": 0}')
echo "$answer" | cut -c 1-160
case $answer in
*'"choices"'*) ;;
*) fail "the server sent no completion: $answer $(cat "$work/log")" ;;
esac

kill -TERM "$pid"
code=0
wait "$outer" || code=$?
outer=''
[ "$code" = 0 ] || fail "after SIGTERM, the server exited with code $code: $(cat "$work/log")"
echo "SIGTERM: exit code 0"
