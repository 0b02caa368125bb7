#!/bin/sh
# upgrade.sh OUT [ARGUMENT...]: runs `cargo xtask upgrade` with these arguments and writes into OUT:
#   page.md     the page of the upgrade
#   verdict     kept, not kept, cannot tell or up to date
#   pins.patch  the changes of the pins, if the new version was kept
# Fails if the upgrade fails for a reason other than the new version.
set -eu
[ $# -ge 1 ] || {
    echo "usage: upgrade.sh OUT [ARGUMENT...]" >&2
    exit 2
}
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/../.."
[ -z "$(git status --porcelain vendor)" ] || {
    echo "error: vendor has uncommitted changes, which would become part of the pull request" >&2
    exit 1
}
# A record of an earlier upgrade must not be mistaken for the result of this upgrade.
rm -rf target/anneal/upgrade "$out/pins.patch"
code=0
cargo xtask upgrade "$@" >"$out/page.txt" || code=$?
git diff --binary -- vendor >"$out/pins.patch"
case $code in
0) if [ -s "$out/pins.patch" ]; then verdict=kept; else verdict='up to date'; fi ;;
1) verdict='not kept' ;;
75) verdict='cannot tell' ;;
*) exit "$code" ;;
esac
# The same exit code stands for a version that was not kept and for a failure, but only the former leaves a record.
if [ "$verdict" = 'not kept' ] && ! ls target/anneal/upgrade/to-*.json >/dev/null 2>&1; then
    exit 1
fi
[ -s "$out/pins.patch" ] || rm -f "$out/pins.patch"
echo "$verdict" >"$out/verdict"
{
    echo "## Upgrade of llama.cpp: $verdict"
    echo
    echo '```text'
    cat "$out/page.txt"
    echo '```'
} >"$out/page.md"
rm -f "$out/page.txt"
cat "$out/page.md"
