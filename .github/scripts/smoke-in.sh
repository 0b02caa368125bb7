#!/bin/sh
# smoke-in.sh IMAGE DIST PROFILE MODEL: runs smoke.sh and then smoke-deb.sh in a container of IMAGE, such as an old
# distribution. smoke-deb.sh does nothing if dpkg or the package is missing. The container mounts DIST and MODEL
# read-only.
set -eu
[ $# -eq 4 ] || {
    echo "usage: smoke-in.sh IMAGE DIST PROFILE MODEL" >&2
    exit 2
}
here=$(cd "$(dirname "$0")" && pwd)
dist=$(cd "$2" && pwd)
model=$(cd "$(dirname "$4")" && pwd)/$(basename "$4")
exec docker run --rm --mount "type=bind,source=$here,target=/scripts,readonly" \
    --mount "type=bind,source=$dist,target=/dist,readonly" \
    --mount "type=bind,source=$model,target=/model.gguf,readonly" \
    "$1" sh -c 'sh /scripts/smoke.sh /dist "$1" /model.gguf && sh /scripts/smoke-deb.sh /dist' sh "$3"
