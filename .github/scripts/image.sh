#!/bin/sh
# image.sh push DIST PROFILE REGISTRY VERSION: builds the image of PROFILE for this architecture from the archive in DIST
# and pushes it as REGISTRY/anneal:VERSION-ARCHITECTURE.
# image.sh join REGISTRY VERSION ARCHITECTURE...: makes REGISTRY/anneal:VERSION from these images.
#
# Logs in as REGISTRY_USER with the password in REGISTRY_TOKEN.
set -eu
usage() {
    sed -n 's/^# \(image\.sh [^:]*\):.*/usage: \1/p' "$0" >&2
    exit 2
}
[ $# -ge 4 ] || usage
login() {
    # Without a slash, docker would treat the name as a user of the default registry.
    case $1 in */*) ;; *) echo "error: $1 does not have the form REGISTRY/OWNER" >&2; exit 1 ;; esac
    printf %s "$REGISTRY_TOKEN" | docker login "${1%%/*}" --username "$REGISTRY_USER" --password-stdin
}
case $1 in
push)
    [ $# -eq 5 ] || usage
    image=$4/anneal:$5-$(uname -m)
    login "$4"
    docker build -f "$(dirname "$0")/../../deploy/containers/Dockerfile.portable" -t "$image" \
        --build-arg DIST=given --build-arg "PROFILE=$3" --build-context "dist=$2" "$(dirname "$0")/../.."
    docker push "$image"
    ;;
join)
    registry=$2 version=$3
    shift 3
    login "$registry"
    count=$#
    for machine; do set -- "$@" "$registry/anneal:$version-$machine"; done
    shift "$count"
    docker buildx imagetools create --tag "$registry/anneal:$version" "$@"
    ;;
*) usage ;;
esac
