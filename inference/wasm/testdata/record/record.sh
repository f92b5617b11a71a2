#!/usr/bin/env bash
# Records testdata/smollm2-135m.vectors anew. Takes some minutes, most of them downloads.
#
#   record.sh [WORK]     WORK keeps downloads between runs; default: a temporary folder
#
# Needs bash, pip with Python 3, npm, tar, unzip and g++, on x86-64 Linux with AVX-512.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=${1:-$(mktemp -d)}
mkdir -p "$work" && cd "$work"
"$here/../../../../bench/llama/fetch.sh" "$work"
[ -d venv ] || { python3 -m venv venv && venv/bin/pip install -q numpy==2.4.6; }
bins=$work/llama/bins
g++ -O2 -std=c++17 -I "$work/llama/include" "$here/reference.cpp" -o reference \
  "$bins"/libllama.v*.so "$bins"/libggml.v*.so "$bins/libggml-base.so" -Wl,-rpath,"$bins"
for backend in haswell sapphirerapids; do
  ./reference "$bins/libggml-cpu-$backend.so" model.gguf "$here/text.txt" tokens.bin "$backend.logits"
done
venv/bin/python "$here/record.py" model.gguf tokens.bin haswell.logits sapphirerapids.logits "$here/../smollm2-135m.vectors"
