#!/bin/sh
# Sends thousands of valid and invalid requests to a running `anneal serve`, and checks every answer against the
# server's /openapi.json, with schemathesis (https://schemathesis.readthedocs.io, pip install schemathesis).
#
#     anneal serve -m tiny.gguf --chat-template chatml --listen 127.0.0.1:8080
#     docs/examples/fuzz_openapi.sh http://127.0.0.1:8080 [CASES PER ENDPOINT [OPTIONS OF st run]]
#
# A model refuses valid requests that it was not trained for. With the preset tiny, add the options
# --exclude-path-regex 'rerank|infill'. With rank-tiny, add --include-path-regex rerank. With fim-tiny, add
# --include-path-regex 'infill|/v1/completions'.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export SCHEMATHESIS_HOOKS=fuzz_openapi PYTHONPATH="$here"
url=${1:-http://127.0.0.1:8080}
cases=${2:-500}
shift $(($# < 2 ? $# : 2))
exec st run "$url/openapi.json" --continue-on-failure -n "$cases" --request-timeout 120 "$@"
