//go:build !unix

package wasm

// onUnix reports whether permission bits mean something.
const onUnix = false
