// Package transporttest is a Dispatcher in memory: objects with logs and cursors, and nothing behind them. Tests of
// servers and clients of holdfast.v1 drive it; its central type is Objects.
//
//	objects := transporttest.New()
//	server, err := transport.NewServer(transport.Options{Dispatcher: objects})
//	…
//	objects.Append("default/session/a", chunk)
//
// A Submit appends a UserMessage and, unless Objects.OnSubmit is set, at once a Terminal.
package transporttest
