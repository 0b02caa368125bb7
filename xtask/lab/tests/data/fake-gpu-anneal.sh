#!/bin/sh
# Fake anneal for tests of gpu-check, which prints a GPU's results without a GPU. Files next to this script contain the
# output of `bench`, the messages of a real `run`, and `plan`, a script that can change the behaviour.
here=${0%/*}
. "$here/plan"
case "$*" in
*--help*) echo "${flags---require-gpu --placement --device-sampling --copy-bandwidth --op-offload}" ;;
*--placement*) cat "$here/placement.json" ;;
*--copy-bandwidth*) echo '{"copy_bandwidth": [{"device": "CUDA0", "bytes_per_second": 3e12}], "build_info": "/secret"}' ;;
info*) echo '{"backends": ["CUDA", "CPU"], "build_info": "/secret/place", "host": {"hostname": "secret"}}' ;;
bench*--end-to-end*) cat "$here/end-to-end.json" ;;
bench*) bench && cat "$here/kernel.json" ;;
quantize*) cp "$2" "$3" ;;
run*--json*) echo "{\"tokens\": [1, 2, ${token-3}]}" ;;
run*)
    if [ "${CUDA_VISIBLE_DEVICES-all}" = "" ]; then
        echo "error: no GPU came up" >&2
        exit "${refusal-69}"
    fi
    decode
    for word in so it goes; do
        printf '%s ' "$word"
        sleep 0.06
    done
    # Messages of a real run. Without device sampling, the real program does not print the line about sampling.
    case "$*" in
    *--device-sampling=on*) cat "$here/said.txt" >&2 ;;
    *) grep -v '^sampling on the device' "$here/said.txt" >&2 ;;
    esac
    ;;
*) exit 2 ;;
esac
