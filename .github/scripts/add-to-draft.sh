#!/bin/sh
# add-to-draft.sh TAG RELEASE PROFILE NOTES: adds the archives of PROFILE in the folder RELEASE, which gather.sh made,
# to the draft of TAG, and replaces the draft's index.json, downloads.md and notes. Changes nothing in a release that is
# already published.
set -eu
[ $# -eq 4 ] || {
    echo "usage: add-to-draft.sh TAG RELEASE PROFILE NOTES" >&2
    exit 2
}
tag=$1 release=$2 profile=$3 notes=$4
if [ "$(gh release view "$tag" --json isDraft --jq .isDraft)" != true ]; then
    echo "error: $tag is already published, so its files stay as they are" >&2
    exit 1
fi
gh release upload "$tag" --clobber "$release"/*"-$profile."* "$release/index.json" "$release/downloads.md"
gh release edit "$tag" --notes-file "$notes"
