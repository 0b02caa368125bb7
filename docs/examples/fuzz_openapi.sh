#!/bin/sh
# Sends thousands of valid and invalid requests to a running `anneal serve`, and checks every answer against the
# server's /openapi.json, with schemathesis (https://schemathesis.readthedocs.io, pip install schemathesis).
#
#     anneal serve -m tiny.gguf --chat-template chatml --listen 127.0.0.1:8080
#     docs/examples/fuzz_openapi.sh http://127.0.0.1:8080 [CASES PER ENDPOINT [OPTIONS OF st run]]
#
# The server refuses requests for which its model was not trained. Therefore, add one of these options:
#
#     model of preset tiny:       --exclude-path-regex 'rerank|infill'
#     model of preset rank-tiny:  --include-path-regex rerank
#     model of preset fim-tiny:   --include-path-regex 'infill|/v1/completions'
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export SCHEMATHESIS_HOOKS=fuzz_openapi PYTHONPATH="$here"
url=${1:-http://127.0.0.1:8080}
cases=${2:-500}
shift $(($# < 2 ? $# : 2))
exec st run "$url/openapi.json" --continue-on-failure -n "$cases" --request-timeout 120 "$@"
