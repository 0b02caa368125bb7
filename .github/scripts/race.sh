#!/bin/sh
# race.sh BASE OUT: builds the commit BASE and this checkout with the same profile, and races both builds on the tiny
# model. Writes the comparison to OUT/race.json and the table, in Markdown, to OUT/race.md. A slower build does not fail
# the script, because machines of continuous integration are shared.
#
# PROFILE (native) and PAIRS (20) set the profile and the number of pairs.
set -eu
[ $# -eq 2 ] || {
    echo "usage: race.sh BASE OUT" >&2
    exit 2
}
base=$(git rev-parse --verify "$1^{commit}")
profile=${PROFILE:-native} pairs=${PAIRS:-20}
root=$(git rev-parse --show-toplevel)
cd "$root"
mkdir -p "$2"
out=$(cd "$2" && pwd)
# The other checkout is below the target folder, so that a second race compiles only what changed.
other=$root/target/race
if [ -e "$other/.git" ]; then
    git -C "$other" checkout --quiet --detach "$base"
else
    git worktree add --quiet --force --detach "$other" "$base"
fi

cargo xtask build --profile "$profile" --yes
(cd "$other" && cargo xtask build --profile "$profile" --yes)
cargo xtask model synth --preset tiny --out "$out/tiny.gguf"
cargo xtask bench compare --builds "base=$other/target/anneal/$profile,$profile" --models "$out/tiny.gguf" \
    --phases prefill,decode,load,start-version,peak-memory,binary-size -p 128 -n 32 --pairs "$pairs" --json >"$out/race.json"
{
    echo "## Race against $(echo "$base" | cut -c 1-12)"
    echo
    echo 'Medians of paired runs of the tiny model with 95 % intervals, on a shared machine. If an interval contains 1, no'
    echo 'difference was shown. The tiny model shows overheads of the engine, but not the speed of kernels.'
    "$root/.github/scripts/figures.sh" "$out/race.json"
} >"$out/race.md"
cat "$out/race.md"
