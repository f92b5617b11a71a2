// Package holdfast is the whole program as a library, so that people can build their own binary with their own kinds of
// objects:
//
//	package main
//
//	import "github.com/holdfast-ai/holdfast"
//
//	func main() { holdfast.Main(counter) }
//
// where counter is an actors.Kind. Such a binary has every command of holdfast; its server hosts sessions and the given
// kinds. Main is the package's whole surface.
package holdfast

import (
	"os"

	"github.com/holdfast-ai/holdfast/actors"
	"github.com/holdfast-ai/holdfast/internal/cli"
)

// Main runs the command line of this process and does not return.
func Main(kinds ...actors.Kind) {
	os.Exit(cli.Run(cli.Program{Args: os.Args[1:], Kinds: kinds, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}))
}
