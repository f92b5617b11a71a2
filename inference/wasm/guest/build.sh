#!/bin/sh
# Builds llama.wasm from the C sources beside this script.
#
#   build.sh            rebuild llama.wasm and llama.wasm.sha256
#   build.sh --check    rebuild into a temporary folder and fail unless it equals the committed files
#
# Needs clang and wasm-ld (Debian: clang lld). CLANG names another compiler. The output depends on the compiler's
# version: the committed file was made by the one named in llama.wasm.compiler.
set -eu
cd "$(dirname "$0")"
clang=${CLANG:-clang}
build() { # output
  "$clang" --target=wasm32 -std=c17 -nostdlib -ffreestanding -O3 -ffp-contract=off -msimd128 -mbulk-memory \
    -Wall -Wextra -Werror -Wl,--no-entry -Wl,--strip-all -Wl,-z,stack-size=65536 llama.c -o "$1"
}
compiler() { "$clang" --version | head -n 1; }
sum() { sha256sum "$1" | cut -d ' ' -f 1; }
case ${1:-} in
"")
  build llama.wasm
  sum llama.wasm >llama.wasm.sha256
  compiler >llama.wasm.compiler
  ;;
--check)
  tmp=$(mktemp -d)
  trap 'rm -rf "$tmp"' EXIT
  [ "$(sum llama.wasm)" = "$(cat llama.wasm.sha256)" ] || { echo "llama.wasm does not have the digest in llama.wasm.sha256: run $0" >&2; exit 1; }
  build "$tmp/llama.wasm"
  cmp -s "$tmp/llama.wasm" llama.wasm || {
    echo "llama.wasm is not what its sources build to: run $0 (committed: $(cat llama.wasm.compiler); here: $(compiler))" >&2
    exit 1
  }
  ;;
*)
  echo "usage: $0 [--check]" >&2
  exit 2
  ;;
esac
