// Package wiretest is a scripted server that speaks holdfast.v1, for the tests of clients: it says exactly what a test
// tells it to, the things included that a real server does only in trouble (refusals, fatal closes, cut connections,
// another history). It keeps logs in memory and has no actors, no model and no disk.
//
// The central type is Server:
//
//	s := wiretest.New(t, wiretest.Options{OnSubmit: func(turn *wiretest.Turn) {
//		turn.Attempt("scripted")
//		turn.Say("Hello ", "world.")
//		turn.Complete()
//	}})
//	client := dial(s.URL + "/v1/ws")
//
// OnSubmit runs on a goroutine of its own for each new turn; New's cleanup waits for all of them, so a script that
// waits for something must also return when Turn.Context is done.
package wiretest
