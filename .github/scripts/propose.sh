#!/bin/sh
# propose.sh IN BRANCH: applies IN/pins.patch, which upgrade.sh wrote, pushes it as BRANCH and opens a pull request with
# IN/page.md, or updates the open pull request.
set -eu
[ $# -eq 2 ] || {
    echo "usage: propose.sh IN BRANCH" >&2
    exit 2
}
in=$(cd "$1" && pwd) branch=$2
cd "$(dirname "$0")/../.."
# Only the pins may change, because nobody has reviewed the patch yet.
git apply --numstat "$in/pins.patch" | while read -r _ _ file; do
    case $file in
    vendor/source/*) ;;
    *)
        echo "error: the patch changes $file, which is not a pin" >&2
        exit 1
        ;;
    esac
done
git switch --quiet --force-create "$branch"
git apply --index "$in/pins.patch"
git -c user.name=upgrade -c user.email=upgrade@localhost commit --quiet -m "Upgrade llama.cpp"
git push --quiet --force origin "$branch"
if [ -n "$(gh pr list --head "$branch" --json number --jq '.[].number')" ]; then
    gh pr edit "$branch" --body-file "$in/page.md"
else
    gh pr create --head "$branch" --title "Upgrade llama.cpp" --body-file "$in/page.md"
fi
