#!/bin/sh
# rootfs.sh [--suite SUITE] [--mirror URL] ARCHIVE DIR: creates the contents of an image without a container engine. The script
# creates a small Debian system in DIR, without Rust or compilers, and installs ARCHIVE with the install.sh in ARCHIVE's folder.
# Needs root and debootstrap.
#
# SUITE is bookworm [default], or bullseye, which tests that glibc 2.31 is sufficient. URL is a Debian mirror [default:
# debootstrap's].
set -eu
usage() {
    echo "usage: rootfs.sh [--suite SUITE] [--mirror URL] ARCHIVE DIR" >&2
    exit 2
}
suite=bookworm mirror=''
while [ $# -gt 2 ]; do
    case $1 in
    --suite) suite=$2 ;;
    --mirror) mirror=$2 ;;
    *) usage ;;
    esac
    shift 2
done
[ $# -eq 2 ] || usage
archive=$1 root=$2
fail() {
    echo "error: $*" >&2
    exit 1
}
[ "$(id -u)" = 0 ] || fail "debootstrap and chroot need root; run this script as root"
command -v debootstrap >/dev/null || fail "debootstrap is missing; install it"
dist=$(dirname "$archive")
for file in "$archive" "$archive.sha256" "$dist/install.sh"; do [ -f "$file" ] || fail "cannot find $file"; done
# Debian's minimal system has gzip but not zstd.
case $archive in
*.tar.zst) include=--include=zstd ;;
*.tar.gz) include='' ;;
*) fail "$archive is neither a .tar.zst nor a .tar.gz" ;;
esac
[ ! -e "$root" ] || fail "cannot create $root: it already exists; specify a new folder"

# shellcheck disable=SC2086 # one word or none
debootstrap --variant=minbase $include "$suite" "$root" ${mirror:+"$mirror"} >"$root.log" 2>&1 ||
    {
        # A partial system would block the next attempt. File systems mounted in the partial system stay untouched.
        rm -rf --one-file-system "$root" || :
        fail "debootstrap failed; its output is in $root.log: $(tail -n 3 "$root.log")"
    }
rm -f "$root.log"
mkdir "$root/dist"
cp "$archive" "$archive.sha256" "$dist/install.sh" "$root/dist/"
# The installer checks the checksum, and runs the program with this system's libraries.
chroot "$root" /bin/sh /dist/install.sh --from "/dist/${archive##*/}" --prefix /usr/local
rm -r "$root/dist"
# As in Dockerfile.portable.
install -d -o 65532 -g 65532 -m 0700 "$root/var/lib/anneal" "$root/run/anneal"
mkdir -p "$root/models" "$root/etc/anneal"
chroot "$root" /bin/sh -c 'sed -n "s/^PRETTY_NAME=//p" /etc/os-release
    ldd --version | head -n 1
    command -v cargo rustc gcc || echo "no compiler inside"'
