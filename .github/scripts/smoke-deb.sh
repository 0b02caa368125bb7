#!/bin/sh
# smoke-deb.sh DIST: tests the Debian package in DIST for this architecture as a user would. Installs the package with
# dpkg, runs the program, removes the package, and checks that nothing is left. Run it as root in a container or a
# chroot, because it installs to /usr. Does nothing if dpkg or the package is missing.
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
    echo "dpkg is not installed: no package is tested"
    exit 0
}
package=''
for found in "$1"/anneal_*_"$(dpkg --print-architecture)".deb; do
    [ -f "$found" ] || continue
    [ -z "$package" ] || fail "$1 contains several packages: $package and $found"
    package=$found
done
[ -n "$package" ] || {
    echo "$1 contains no package for this architecture: no package is tested"
    exit 0
}
[ ! -e /usr/bin/anneal ] && [ ! -e /usr/lib/anneal ] || fail "anneal is already installed in /usr: test the package on another system"

dpkg -i "$package"
said=$(cd / && env -i /usr/bin/anneal --version)
case $said in
anneal\ *) echo "$said" ;;
*) fail "unexpected output of /usr/bin/anneal --version: $said" ;;
esac
dpkg -r anneal
[ ! -L /usr/bin/anneal ] && [ ! -e /usr/lib/anneal ] || fail "/usr/lib/anneal or its link is left after the removal of the package"
echo "passed: $(basename "$package")"
