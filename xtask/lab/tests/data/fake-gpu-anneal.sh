#!/bin/sh
# An anneal for tests of gpu-check: what a GPU would do is said, not done. Beside it lie what `bench` prints, what
# `run` said of a real generation, and `plan`, a script that may change it all.
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
    # The real one's words; where the host chose it says nothing of it.
    case "$*" in
    *--device-sampling=on*) cat "$here/said.txt" >&2 ;;
    *) grep -v '^sampling on the device' "$here/said.txt" >&2 ;;
    esac
    ;;
*) exit 2 ;;
esac
