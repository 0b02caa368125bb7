#!/bin/sh
# figures.sh COMPARISON...: prints the results in each COMPARISON, a file that `cargo xtask bench compare --json` wrote,
# as tables in Markdown.
set -eu
[ $# -ge 1 ] || {
    echo "usage: figures.sh COMPARISON..." >&2
    exit 2
}
for comparison in "$@"; do
    echo
    jq -r '
        def round3: . * 1000 | round / 1000;
        "\(.machine); \(.threads) threads; `\(.command)`",
        "",
        "| what | build | median | against \(.builds[0].name) | |",
        "| --- | --- | ---: | --- | --- |",
        (.figures[] | . as $figure | .results[]
            | "| \($figure.phase) \($figure.model // "") \($figure.shape // {} | [.prompt, .generate] | map(select(. != null)) | map(tostring) | join("+"))"
            + " | \(.build) | \(.median | round3) \($figure.unit)"
            + " | \(if .ratio then "\(.ratio.median | round3) [\(.ratio.low | round3), \(.ratio.high | round3)]" else "" end)"
            + " | \(.verdict // "") |")
    ' "$comparison"
done
