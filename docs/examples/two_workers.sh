#!/bin/sh
# Two workers, each in a network namespace of its own joined to this one by a cable (veth), and a model over both:
#
#   docs/examples/two_workers.sh ANNEAL MODEL
#
# as root, with iproute2; ANNEAL is a build with RPC in it, as native is. All of it is taken away again.
set -eu
[ $# = 2 ] || { echo "usage: $0 ANNEAL MODEL" >&2; exit 2; }
anneal=$1 model=$2 folder=$(mktemp -d)
# Names of networks and cables; the latter have 15 letters at most.
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
    # Nobody else is in a network of two.
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
# Not through a pipe: sh would take its last command's word for that of the first, and two runs that failed say the same nothing.
show() {
    file=$1
    shift
    run "$@" >"$file" || { code=$?; cat "$file"; echo "$0: $anneal run $* failed ($code)" >&2; exit 1; }
    cat "$file"
    [ -s "$file" ] || { echo "$0: $anneal run $* said nothing" >&2; exit 1; }
}
echo "over both:"
show "$folder/both" --rpc 10.77.1.2,10.77.2.2
echo "here alone:"
show "$folder/here" --devices none
cmp "$folder/both" "$folder/here" && echo "the same text"
