#!/bin/sh
# Fake engine, which prints an engine's output without computing anything. The file `plan` next to this script sets:
#   speed    tokens per second in prefill (decode: a tenth)         tokens   token that is generated repeatedly
#   work     number of loops per phase, which use CPU time          crash    command that crashes
#   unstable non-empty if two runs print different tokens           nan      non-empty if the logits are NaN
#   leak     bytes of memory that a long run leaks per step         slow     seconds by which a long run's steps grow
#   gpu      name of a GPU that is found                            pause    seconds per step of a long run
speed=1000 tokens=7 work=300000 crash= unstable= nan= leak=0 slow=0 gpu= pause=0.15
. "$(dirname "$0")/plan"

command=$1
[ "$command" = "$crash" ] && { echo "planted crash" >&2; kill -ABRT $$; }
case "$*" in *--unheard-of*) echo "error: unexpected argument '--unheard-of'" >&2; exit 2 ;; esac
case "$*" in bench*--not-in-bench*) echo "error: unexpected argument '--not-in-bench'" >&2; exit 2 ;; esac
value() { # prints the value of the flag $1
  want=$1; shift
  while [ $# -gt 0 ]; do [ "$1" = "$want" ] && { echo "$2"; return; }; shift; done
}
runs="$0.runs"
echo "$*" >> "$runs"
n=$(grep -c '' "$runs")

case "$command" in
info)
  printf '{"backends": ["CPU"], "devices": [{"kind": "cpu", "name": "x"}'
  [ -n "$gpu" ] && printf ', {"kind": "gpu", "name": "%s"}' "$gpu"
  printf ']}' ;;
run)
  count=$(value -n "$@")
  case "$*" in
  *--json*)
    [ -n "$unstable" ] && tokens=$n
    list=$tokens; i=1
    while [ $i -lt "$count" ]; do list="$list,$tokens"; i=$((i + 1)); done
    printf '{"prompt_tokens": 100, "stop": "length", "tokens": [%s]}' "$list" ;;
  *)
    # A long run of 30 steps. Leaked memory is never freed.
    hoard= step=0
    while [ $step -lt 30 ]; do
      printf 'text and '
      [ "$leak" -gt 0 ] && hoard="$hoard$(head -c "$leak" /dev/zero | tr '\0' x)"
      sleep "$(awk "BEGIN { print $pause + $slow * $step }")"
      step=$((step + 1))
    done ;;
  esac ;;
logits)
  out=$(value --out "$@")
  word='\000\000\200\077'
  [ -n "$nan" ] && word='\000\000\300\177'
  # Logits of one token, with a vocabulary of two: 1 and 8, or 1 and -8 if `tokens` is not the default.
  other='\000\000\000\101'
  [ "$tokens" -ne 7 ] && other='\000\000\000\301'
  printf "ALOGITS1\002\000\000\000\001\000\000\000\001\000\000\000$word$other" > "$out" ;;
bench)
  jitter=$((n * 7 % 5 - 2))
  row() {
    printf '{"avg_ns": 1e9, "avg_ts": %s, "tpot_p50_ns": 8e6, "tpot_p95_ns": 9e6' "$1"
    printf ', "tpot_p99_ns": 1e7, "tpot_jitter_ns": 1e5}\n'
  }
  row 1
  i=0; while [ $i -lt "$work" ]; do i=$((i + 1)); done
  case "$*" in *"-n 0"*) ;; *) speed=$((speed / 10)) ;; esac
  row "$((speed * (1000 + jitter))).0e-3"
  # Gives the watcher time to read the resource use of the second row.
  sleep 0.05
  row 1 ;;
esac
