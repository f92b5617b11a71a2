// Package ws is the WebSocket framing of a server: RFC 6455 over gorilla/websocket, with what a server of many idle
// connections needs on top.
//
// The central type is Conn. Upgrade makes one of an HTTP request; the caller then owns it:
//
//	c, err := ws.Upgrade(w, r, ws.Options{Subprotocols: names, OnPing: pong})
//	if err != nil {
//		return // answered
//	}
//	go func() { // and return from the handler, so that net/http frees its buffers
//		defer c.Close()
//		for {
//			kind, err := c.Next() // no buffer is held while nothing comes
//			…
//			message, err := c.Read(buf[:0], limit)
//			…
//		}
//	}()
//
// One goroutine calls Next and Read, one calls Write; Close, Heard and Progress are for any. Nothing but Write writes: what
// gorilla would send by itself (a close frame after a protocol error) comes back from Next or Read as a *CloseError instead,
// and is the caller's to send. So a caller's writer can put any number of messages into one buffer with AppendMessage
// and its siblings, and send them in one system call.
//
// Beyond gorilla: text is checked to be UTF-8, as it arrives (1007); a close frame with a payload of one byte is a
// protocol error (1002); a message over the limit is reported before anything is sent.
package ws
