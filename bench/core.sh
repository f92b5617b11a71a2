#!/usr/bin/env bash
# Holdfast beside workerd on this machine, interleaved: durable acknowledgements, CPU a paced token, memory of an idle
# socket. Prints one line of JSON a run; PAIRS (default 3) sets how often each pair is repeated.
#
#   bench/core.sh            everything
#   bench/core.sh ack idle   some of: ack stream burst idle
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$here/.work
pairs=${PAIRS:-3}
what=${*:-ack stream burst idle}
mkdir -p "$work/bin" "$work/workerd"
cd "$here/.."
CGO_ENABLED=0 go build -trimpath -o "$work/bin/holdfast" ./cmd/holdfast
CGO_ENABLED=0 go build -trimpath -o "$work/bin/loadgen" ./bench/loadgen
cp "$here"/peers/workerd/{package.json,config.capnp,session.js} "$work/workerd/"
[ -x "$work/workerd/node_modules/@cloudflare/workerd-linux-64/bin/workerd" ] ||
  (cd "$work/workerd" && npm install --ignore-scripts --no-audit --no-fund --silent)

pid=
stop() { if [ -n "$pid" ]; then kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; pid=; fi; }
trap stop EXIT
wait_for() { for _ in $(seq 200); do curl -fs -o /dev/null "$1" && return; sleep .05; done; [ "$2" = any ] || { echo "no answer from $1" >&2; exit 1; }; }

start_workerd() {
  rm -rf "$work/workerd/data"; mkdir -p "$work/workerd/data"
  (cd "$work/workerd" && exec node_modules/@cloudflare/workerd-linux-64/bin/workerd serve config.capnp) >"$work/workerd.log" 2>&1 &
  pid=$!; addr=127.0.0.1:8787
  sleep 1
}
start_holdfast() {
  rm -rf "$work/data"
  printf 'echo: true\nlog:\n  level: warn\n' >"$work/config.yaml"
  "$work/bin/holdfast" serve --no-model --listen 127.0.0.1:8428 --admin 127.0.0.1:8429 --data "$work/data" --config "$work/config.yaml" >"$work/holdfast.log" 2>&1 &
  pid=$!; addr=127.0.0.1:8428
  wait_for "http://$addr/healthz" must
}
run() { # adapter, flags…
  local adapter=$1; shift
  case $adapter in workerd*) start_workerd ;; *) start_holdfast ;; esac
  "$work/bin/loadgen" -adapter "$adapter" -addr "$addr" -pid "$pid" "$@"
  stop
}

ulimit -n "$(ulimit -Hn)"
for _ in $(seq "$pairs"); do
  for w in $what; do
    case $w in
      ack)    for a in workerd holdfast; do run $a -mode ack -c 64; done
              for a in workerd holdfast; do run $a -mode ack -c 1; done ;;
      stream) for a in workerd workerd-durable holdfast; do run $a -mode stream -c 200 -tokens 256 -gap 20; done ;;
      burst)  for a in workerd workerd-durable holdfast; do run $a -mode stream -c 32 -tokens 128; done ;;
      idle)   for a in workerd holdfast; do run $a -mode idle -c 2000; done ;;
      *)      echo "no such figure: $w" >&2; exit 2 ;;
    esac
  done
done
