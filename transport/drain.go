package transport

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-ai/holdfast/proto"
)

// drainPace is how fast connections are closed, unless DrainSpread makes it faster: a few connections must not take
// long, and many must not come back in the same instant.
const drainPace = 2 * time.Millisecond

// Drain stops taking connections, tells every client to connect again, each after a time of its own, closes them one
// after the other with code 1012, and waits until they have ended. Frames go on until a connection is closed, but a
// new Submit is refused as "draining". When ctx ends first, the rest is closed at once; Drain still waits for it, and
// returns the cause.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	s.mu.draining = true
	conns := s.connsLocked()
	var empty chan struct{}
	if len(conns) > 0 {
		if s.mu.empty == nil {
			s.mu.empty = make(chan struct{})
		}
		empty = s.mu.empty
	}
	s.mu.Unlock()
	if len(conns) == 0 {
		return nil
	}
	over := min(s.o.DrainSpread, time.Duration(len(conns))*drainPace)
	s.o.Logger.Info("draining connections", "connections", len(conns), "over", over)
	for i, c := range conns {
		// A client waits at least until the last connection is closed, and then some: its own share.
		reconnect := over + s.spread(s.o.DrainSpread/5)
		c.drain(over*time.Duration(i)/time.Duration(len(conns)), reconnect)
	}
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
	}
	for _, c := range conns {
		c.abort(string(proto.CodeDraining))
	}
	<-empty
	return fmt.Errorf("transport: drain: cut the connections that were left: %w", context.Cause(ctx))
}
