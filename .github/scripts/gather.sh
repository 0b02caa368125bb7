#!/bin/sh
# gather.sh OUT DIST...: copies the folders DIST, which `cargo xtask dist` made on several machines, into the folder
# OUT with a single index.json, so that `install --from` finds all archives at one address, and a single downloads.md.
# Checks all digests first.
set -eu
[ $# -ge 2 ] || {
    echo "usage: gather.sh OUT DIST..." >&2
    exit 2
}
out=$1
shift
mkdir -p "$out"
for dist in "$@"; do
    (cd "$dist" && for sum in *.sha256; do sha256sum --check --quiet "$sum"; done)
    for file in "$dist"/*; do
        name=${file##*/}
        case $name in index.json | downloads.md) continue ;; esac
        if [ -e "$out/$name" ] && ! cmp -s "$file" "$out/$name"; then
            echo "error: $name is in two folders, with different content" >&2
            exit 1
        fi
        cp -p "$file" "$out/$name"
    done
done
indexes=''
for dist in "$@"; do indexes="$indexes $dist/index.json"; done
# shellcheck disable=SC2086 # the workflow's folders have no spaces in their names
jq -s 'if (map(.schema) | unique | length) == 1 then . else error("the index.json files have different formats") end
    | {schema: .[0].schema, archives: (map(.archives) | add | unique_by(.file))}' $indexes >"$out/index.json"
# The first two lines are the same header.
for dist in "$@"; do tail -n +3 "$dist/downloads.md"; done | sort -u >"$out/rows"
{ head -n 2 "$1/downloads.md"; cat "$out/rows"; } >"$out/downloads.md"
rm "$out/rows"
ls -l "$out"
