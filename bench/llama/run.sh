#!/usr/bin/env bash
# The WebAssembly runtime beside llama.cpp, on the same model file, one thread each, interleaved. Prints a table.
#
#   bench/llama/run.sh [PAIRS]     PAIRS: how often each figure is measured, default 10
#
# Needs pip, npm, tar, unzip and g++, on x86-64 Linux with AVX-512. Downloads are kept in bench/.work.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$here/../.work/llama
mkdir -p "$work"
work=$(cd "$work" && pwd)
"$here/fetch.sh" "$work"
bins=$work/llama/bins
g++ -O2 -std=c++17 -I "$work/llama/include" "$here/peer/peer.cpp" -o "$work/peer" \
  "$bins"/libllama.v*.so "$bins"/libggml.v*.so "$bins/libggml-base.so" -Wl,-rpath,"$bins"
cd "$here"
CGO_ENABLED=0 go build -trimpath -o "$work/bench" .
"$work/bench" -work "$work" -pairs "${1:-10}"
