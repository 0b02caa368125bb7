#!/bin/sh
# Distributes a model over two workers. Each worker runs in a separate network namespace, connected by a veth pair:
#
#   docs/examples/two_workers.sh ANNEAL MODEL
#
# Needs root and iproute2. ANNEAL is a build with RPC, such as native. Everything is removed at the end.
set -eu
[ $# = 2 ] || { echo "usage: $0 ANNEAL MODEL" >&2; exit 2; }
anneal=$1 model=$2 folder=$(mktemp -d)
# Prefix of the names of namespaces and interfaces. The name of an interface has at most 15 characters.
name=w$$-
pids=

end() {
    for pid in $pids; do kill "$pid" 2>/dev/null || :; done
    wait
    for number in 1 2; do ip netns delete "$name$number" 2>/dev/null || :; done
    rm -r "$folder"
}
trap end EXIT
trap 'exit 130' INT TERM

for number in 1 2; do
    ip netns add "$name$number"
    ip link add "$name$number" type veth peer name eth0 netns "$name$number"
    ip address add "10.77.$number.1/30" dev "$name$number"
    ip link set "$name$number" up
    ip -n "$name$number" address add "10.77.$number.2/30" dev eth0
    ip -n "$name$number" link set eth0 up
    ip -n "$name$number" link set lo up
    : >"$folder/$number"
    # --trust-network is safe, because no other machine is in this network.
    ip netns exec "$name$number" "$anneal" worker -t 1 --listen "10.77.$number.2:50052" --trust-network \
        2>"$folder/$number" &
    pids="$pids $!"
    tries=0
    until grep -q 'listens at' "$folder/$number"; do
        sleep 0.1
        tries=$((tries + 1))
        [ "$tries" -lt 100 ] || { cat "$folder/$number" >&2; exit 1; }
    done
    cat "$folder/$number" >&2
done

run() { "$anneal" run -m "$model" -p "Once upon a time" -n 32 --greedy --ignore-eos --no-repack -t 1 "$@"; }
# Does not use a pipe, because sh returns only the exit code of its last command: two failed runs would compare as
# equal.
show() {
    file=$1
    shift
    run "$@" >"$file" || { code=$?; cat "$file"; echo "$0: $anneal run $* failed ($code)" >&2; exit 1; }
    cat "$file"
    [ -s "$file" ] || { echo "$0: $anneal run $* printed no text" >&2; exit 1; }
}
echo "over both:"
show "$folder/both" --rpc 10.77.1.2,10.77.2.2
echo "here alone:"
show "$folder/here" --devices none
cmp "$folder/both" "$folder/here" && echo "the same text"
