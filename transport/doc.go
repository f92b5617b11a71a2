// Package transport is where clients meet objects: it listens, authenticates, carries frames of holdfast.v1 over
// WebSockets, lets each reader pull at its own pace, and drains. docs/PROTOCOL.md specifies the wire.
//
// The central type is Server, an http.Handler. It knows objects only as a Dispatcher:
//
//	s, err := transport.NewServer(transport.Options{Dispatcher: host, Logger: logger, Registerer: registry})
//	…
//	web := &http.Server{Handler: s}
//	go web.Serve(listener)
//	<-stop
//	s.Drain(ctx)      // tells clients to come back, closes them spread over time, waits
//	web.Shutdown(ctx) // hijacked connections are not net/http's any more: Drain first
//	s.Close()
//
// The caller's duties: serve HTTP/1.1 (a WebSocket needs its upgrade), Drain before the Dispatcher drains, Close at the
// end. A Server owns every goroutine that it starts; Close returns when they have ended.
//
// # A connection
//
// A Conn is one reader goroutine, which is all that an idle connection costs besides its struct. What is to be sent
// starts a writer goroutine, which ends when nothing is left:
//
//	reader:  frame → limits → Dispatcher ──reply──┐
//	objects: wake ──────────────────────┐         │
//	clock:   ping ────────────┐         │         │
//	                          ▼         ▼         ▼
//	writer:            control lane   ready attachments → cursor.Next → one buffer → one write
//
// What holds, with the numbers of the design's invariants:
//
//   - An attachment is a cursor that the writer pulls (6): one quantum each in turn, so that a long replay delays no
//     other object of the connection. Replies and pings go first.
//   - A durable frame is the Entry's bytes with a prefix; they are never decoded here (3).
//   - Everything queued is bounded (12): requests in flight, replies that wait, attachments. Past the first and last a
//     request is refused with "overloaded"; past the second the connection is not read until there is room.
//   - A connection whose peer takes nothing for WriteTimeout is closed as slow_consumer; one that says nothing, not
//     even a pong, for two ping intervals as idle_timeout. Both resume by cursor.
//   - Nobody's frame names an object of another namespace (7).
package transport
