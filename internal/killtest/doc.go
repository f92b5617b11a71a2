// Package killtest proves invariants 2, 3, 4 and 5 from outside: it starts the real server, streams many sessions,
// kills the process with SIGKILL at random moments, restarts it on the same data folder and compares every offset that
// any client ever saw, byte for byte.
//
// It speaks the wire by itself, without transport/client, so that a mistake in the client cannot hide one in the
// server. The central type is Harness; a test makes one, runs rounds and verifies at the end:
//
//	h := killtest.New(t, killtest.Options{Rounds: 10, Seed: 1})
//	h.Run()
//	h.Verify()
package killtest
