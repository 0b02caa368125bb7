#!/bin/sh
# smoke-deb.sh DIST: what somebody does on Debian who was given the package. Installs DIST's .deb for this kind of machine with
# dpkg, runs the program, removes the package, and looks that nothing is left. In a container or a chroot, as root: it
# installs to /usr. Does nothing where there is no dpkg or no package.
set -eu
[ $# -eq 1 ] || {
    echo "usage: smoke-deb.sh DIST" >&2
    exit 2
}
fail() {
    echo "error: $*" >&2
    exit 1
}
command -v dpkg >/dev/null 2>&1 || {
    echo "no dpkg is here: no package is tried"
    exit 0
}
package=''
for found in "$1"/anneal_*_"$(dpkg --print-architecture)".deb; do
    [ -f "$found" ] || continue
    [ -z "$package" ] || fail "several packages are in $1: $package and $found"
    package=$found
done
[ -n "$package" ] || {
    echo "there is no package in $1"
    exit 0
}
[ ! -e /usr/bin/anneal ] && [ ! -e /usr/lib/anneal ] || fail "anneal is in /usr already: try the package elsewhere"

dpkg -i "$package"
said=$(cd / && env -i /usr/bin/anneal --version)
case $said in
anneal\ *) echo "$said" ;;
*) fail "/usr/bin/anneal --version says $said" ;;
esac
dpkg -r anneal
[ ! -L /usr/bin/anneal ] && [ ! -e /usr/lib/anneal ] || fail "the package is removed, and /usr/lib/anneal or its link is left"
echo "passed: $(basename "$package")"
