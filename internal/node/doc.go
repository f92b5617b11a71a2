// Package node wires a server: it opens every layer in order, serves, and closes them in reverse.
//
// The central type is Node. A caller opens one and runs it until a context ends:
//
//	n, err := node.Open(ctx, node.Config{Data: dir}, node.Options{Logger: logger})
//	if err != nil {
//		return err // an *Error: coded, with a hint and an exit status
//	}
//	return n.Run(ctx) // serves; drains and closes when ctx ends
//
// Config is all that can be configured, Settings how each is called in files, in the environment and on the command
// line; this package reads none of these. Run may be called once; Close instead of Run gives up a node that was opened.
//
// This is the one package that sees both transport and actors; that one serves the other is asserted here.
package node
