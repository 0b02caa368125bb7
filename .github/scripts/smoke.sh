#!/bin/sh
# smoke.sh DIST PROFILE MODEL: tests the archive of PROFILE in DIST for this architecture as a user would. Installs
# the archive with install.sh, runs the program, serves MODEL and checks that the server answers, installs again,
# uninstalls, and checks that nothing is left. Needs neither Rust nor a compiler. Runs on a machine, in a container or
# in a chroot.
#
# Uses the .tar.zst if zstd is installed, else the .tar.gz.
set -eu
[ $# -eq 3 ] || {
    echo "usage: smoke.sh DIST PROFILE MODEL" >&2
    exit 2
}
dist=$1 profile=$2 model=$3
fail() {
    echo "error: $*" >&2
    exit 1
}
has() { command -v "$1" >/dev/null 2>&1; }

# Tools that install.sh and this script need and small images lack.
missing=''
for tool in awk find tar gzip; do
    has "$tool" || missing="$missing $tool"
done
if [ -n "$missing" ]; then
    echo "missing tools:$missing; installing them"
    if has apt-get; then
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends mawk findutils tar gzip >/dev/null
    elif has dnf; then
        dnf install -y -q gawk findutils tar gzip
    else
        fail "cannot install$missing: neither apt-get nor dnf is available"
    fi
fi

if has zstd; then end=tar.zst; else end=tar.gz; fi
archive=''
machine=$(uname -m)
for found in "$dist"/anneal-*"-$machine-unknown-linux-gnu-$profile.$end"; do
    [ -f "$found" ] || fail "$dist contains no .$end archive of $profile for $machine"
    [ -z "$archive" ] || fail "$dist contains several archives of $profile: $archive and $found"
    archive=$found
done

work=$(mktemp -d)
server=''
leave() {
    code=$?
    [ -z "$server" ] || kill -9 "$server" 2>/dev/null || :
    rm -rf "$work"
    exit "$code"
}
trap leave EXIT
trap 'exit 130' INT TERM HUP
prefix=$work/prefix
# Keeps the user's own settings and caches out of the test.
export HOME="$work" ANNEAL_STATE_DIR="$work/state"

if [ -r /etc/os-release ]; then sed -n 's/^PRETTY_NAME=//p' /etc/os-release; fi
ldd --version 2>/dev/null | head -n 1 || :
sh "$dist/install.sh" --from "$archive" --prefix "$prefix"
anneal=$prefix/bin/anneal
"$anneal" --version
"$anneal" info | sed -n '1,12p'

# By default, a build for GPUs refuses to run without a GPU, and most machines that test archives have none.
gpu=''
case $profile in
cuda-*)
    code=0
    "$anneal" run -m "$model" -p hello -n 1 >/dev/null 2>"$work/said" || code=$?
    case $code in
    0) echo 'found a GPU' ;;
    69)
        grep -q -e '--require-gpu=no' "$work/said" || { cat "$work/said" >&2; fail "the error does not mention --require-gpu=no"; }
        sed -n 1p "$work/said"
        gpu=--require-gpu=no
        ;;
    *) cat "$work/said" >&2; fail "anneal run exited with code $code" ;;
    esac
    ;;
esac

# shellcheck disable=SC2086 # one word or none
run() { "$anneal" run -m "$model" -p hello -n 16 --greedy $gpu 2>"$work/said" || { cat "$work/said" >&2; fail "anneal run failed"; }; }
first=$(run)
[ -n "$first" ] || fail "anneal run wrote no text"
echo "$first"
[ "$first" = "$(run)" ] || fail "the same prompt gave a different text"

# shellcheck disable=SC2086
"$anneal" serve -m "$model" --socket "$work/socket" $gpu 2>"$work/served" &
server=$!
tries=0
until "$anneal" top --once --interval 0.1 "$work/socket" >"$work/top" 2>&1; do
    tries=$((tries + 1))
    kill -0 "$server" 2>/dev/null || { cat "$work/served" >&2; fail "anneal serve exited before it answered"; }
    [ "$tries" -lt 100 ] || { cat "$work/top" "$work/served" >&2; fail "the server does not answer"; }
    sleep 0.3
done
sed -n 1,2p "$work/top"
kill -TERM "$server"
code=0
wait "$server" || code=$?
server=''
[ "$code" = 0 ] || fail "anneal serve exited with code $code after SIGTERM"
[ ! -e "$work/socket" ] || fail "the socket still exists after anneal serve exited"

sh "$dist/install.sh" --from "$archive" --prefix "$prefix"
sh "$dist/install.sh" --uninstall --all --prefix "$prefix"
if [ -e "$prefix" ] && [ -n "$(find "$prefix" ! -type d)" ]; then
    find "$prefix" >&2
    fail "these files are left after --uninstall --all"
fi
echo "passed: $(basename "$archive")"
