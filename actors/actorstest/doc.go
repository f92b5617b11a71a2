// Package actorstest runs a host of objects in memory, on a clock that stands still, over a real engine on a file system
// that can crash, and with models that do as they are told.
//
// The central type is Harness:
//
//	h := actorstest.New(t, actorstest.Options{
//		Kinds:  []actors.Kind{session.Kind(session.Options{})},
//		Models: &actorstest.Model{Length: 20},
//	})
//	turn := h.Accept(alice, "default/session/s", "m1", "hello")
//	r := h.Attach(alice, "default/session/s", nil)
//	r.UntilTerminal(turn)
//	h.Crash() // only what was synced is left; a new host goes on
//
// A test need not close anything: New registers a cleanup that does, and that fails the test if something hangs.
package actorstest
