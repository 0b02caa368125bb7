#!/bin/sh
# check-tag.sh TAG: fails unless TAG is `v` followed by the version in Cargo.toml. Archives are named after this
# version, so a release with a different tag would contain files named after an older version.
set -eu
[ $# -eq 1 ] || {
    echo "usage: check-tag.sh TAG" >&2
    exit 2
}
manifest=$(dirname "$0")/../../Cargo.toml
# The first version in [workspace.package].
version=$(sed -n '/^\[workspace\.package\]/,/^\[workspace\.dep/s/^version = "\(.*\)"$/\1/p' "$manifest")
if [ "$1" != "v$version" ]; then
    echo "error: the tag is $1, but the version in Cargo.toml is $version: set the version, commit, and tag that commit" >&2
    exit 1
fi
echo "$1 is the version in Cargo.toml"
