package transport

import (
	"net/http"

	"github.com/holdfast-ai/holdfast/transport/ws"
)

// echoLimit is the largest message that /echo returns: conformance suites send up to 16 MiB.
const echoLimit = 16 << 20

// serveEcho upgrades a client whose messages come back as they are, through the reader and the writer of a Conn.
func (s *Server) serveEcho(w http.ResponseWriter, r *http.Request) {
	if e := s.checkUpgrade(r, false); e != nil {
		s.refuse(w, r, e)
		return
	}
	s.accept(w, r, nil, func(c *Conn) { c.echo = true })
}

// echoMessage queues a message to be sent back.
func (c *Conn) echoMessage(kind ws.Opcode, message []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queueLocked(outgoing{message: append([]byte(nil), message...), kind: kind})
}
