#!/bin/sh
# Sends thousands of valid and invalid requests to a running `anneal serve`, and checks every answer against the
# server's /openapi.json, with schemathesis (https://schemathesis.readthedocs.io, pip install schemathesis).
#
#     anneal serve -m tiny.gguf --chat-template chatml --listen 127.0.0.1:8080
#     docs/examples/fuzz_openapi.sh http://127.0.0.1:8080 [CASES PER ENDPOINT]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export SCHEMATHESIS_HOOKS=fuzz_openapi PYTHONPATH="$here"
exec st run "${1:-http://127.0.0.1:8080}/openapi.json" --continue-on-failure -n "${2:-500}" --request-timeout 120
