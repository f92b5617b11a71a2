package node_test

import (
	"context"
	"fmt"
	"os"

	"github.com/holdfast-ai/holdfast/internal/node"
)

func ExampleOpen() {
	dir, err := os.MkdirTemp("", "node")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	c := node.Defaults()
	c.Listen, c.Admin, c.Data, c.NoModel = "127.0.0.1:0", "", dir, true
	ctx, cancel := context.WithCancel(context.Background())
	n, err := node.Open(ctx, c, node.Options{Serving: func() {
		fmt.Println("serving")
		cancel() // a signal, in a program
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("ended:", n.Run(ctx))
	// Output:
	// serving
	// ended: <nil>
}
