#!/bin/sh
# table.sh DIST [COMPARISON...]: prints release notes in Markdown: the files in DIST with their sizes and
# SHA-256 digests, and the results in each COMPARISON, a file that `cargo xtask bench compare --json` wrote.
set -eu
[ $# -ge 1 ] || {
    echo "usage: table.sh DIST [COMPARISON...]" >&2
    exit 2
}
dist=$1
shift

echo '## Files'
echo
echo '| file | size | SHA-256 |'
echo '| --- | ---: | --- |'
count=0
for file in "$dist"/anneal-*.tar.zst "$dist"/anneal-*.tar.gz "$dist"/anneal_*.deb "$dist"/anneal-*.whl "$dist"/install.sh; do
    [ -f "$file" ] || continue
    [ "${file##*/}" = install.sh ] || count=$((count + 1))
    bytes=$(wc -c <"$file")
    size=$(awk -v b="$bytes" 'BEGIN { if (b < 1048576) printf "%.1f KiB", b / 1024; else printf "%.1f MiB", b / 1048576 }')
    sum=$(sha256sum <"$file" | cut -c 1-64)
    echo "| \`${file##*/}\` | $size | \`$sum\` |"
done
if [ "$count" = 0 ]; then
    echo "error: $dist contains no archives" >&2
    exit 1
fi

[ $# -gt 0 ] || exit 0
echo
echo '## Measured'
echo
echo 'Medians of paired runs with 95 % intervals, on the shared machine that built the archive. If an interval contains 1, no'
echo 'difference was shown.'
exec "$(dirname "$0")/figures.sh" "$@"
