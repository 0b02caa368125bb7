#!/bin/sh
# packages.sh ARCHIVE HOMEPAGE ADDRESS OUT: writes a Homebrew formula and a PKGBUILD for the AUR into the folder OUT, for
# the archive ARCHIVE of x86_64, which users will download from ADDRESS/.
set -eu
[ $# = 4 ] || {
    echo "usage: packages.sh ARCHIVE HOMEPAGE ADDRESS OUT" >&2
    exit 2
}
archive=$1 homepage=$2 address=${3%/} out=$4
file=${archive##*/}
name=${file%.tar.*}
version=${name#anneal-}
version=${version%%-x86_64-unknown-linux-gnu-*}
case $file in
anneal-*-x86_64-unknown-linux-gnu-*.tar.zst | anneal-*-x86_64-unknown-linux-gnu-*.tar.gz) ;;
*)
    echo "error: $file is not an archive for x86_64" >&2
    exit 1
    ;;
esac
# These values become part of Ruby and bash programs.
case $homepage$address$file in
*[!A-Za-z0-9:/._~%+-]*)
    echo "error: the addresses and the archive's name may contain only letters, digits and :/._~%+-" >&2
    exit 1
    ;;
esac
sum=$(sha256sum <"$archive" | cut -c 1-64)
mkdir -p "$out"
for template in anneal.rb PKGBUILD; do
    # pacman's versions have no hyphen.
    sed -e "s|@HOMEPAGE@|$homepage|g" -e "s|@URL@|$address/$file|g" -e "s|@VERSION@|$version|g" \
        -e "s|@PKGVER@|$(echo "$version" | tr -d -)|g" -e "s|@SHA256@|$sum|g" -e "s|@NAME@|$name|g" \
        -e "s|@FILE@|$file|g" \
        "$(dirname "$0")/../../deploy/packages/$template.in" >"$out/$template"
done
bash -n "$out/PKGBUILD"
if command -v ruby >/dev/null; then ruby -c "$out/anneal.rb" >/dev/null; fi
if sed 's/^#.*//' "$out/PKGBUILD" "$out/anneal.rb" | grep -n '@[A-Z]*@'; then
    echo "error: a template contains a placeholder that was not filled in" >&2
    exit 1
fi
echo "$out/anneal.rb and $out/PKGBUILD"
