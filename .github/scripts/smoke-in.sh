#!/bin/sh
# smoke-in.sh IMAGE DIST PROFILE MODEL: smoke.sh in a container of IMAGE, an old distribution for one, and then smoke-deb.sh,
# which does nothing where there is no dpkg or no package. DIST and MODEL are read only there.
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
