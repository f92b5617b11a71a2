package holdfast_test

import (
	"github.com/holdfast-ai/holdfast"
	"github.com/holdfast-ai/holdfast/actors"
)

// counter would be a kind of the program's own.
var counter = actors.Kind{Name: "counter", Version: 1, New: func(actors.ID) actors.Object { return nil }}

// The main function of a program with a kind of its own.
func ExampleMain() {
	holdfast.Main(counter)
}
