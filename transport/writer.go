package transport

import (
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/transport/ws"
)

const (
	// quantum is how many bytes one attachment may say before it is another's turn.
	quantum = 16 << 10
	// flushAt is the size from which a batch is written rather than filled.
	flushAt = 32 << 10
)

// scratch is what a writer needs while it runs.
type scratch struct {
	batch []byte // WebSocket frames to be written together
	items []proto.Item
	out   []outgoing
}

// task is what a writer does next.
type task uint8

const (
	taskEnd   task = iota // nothing is left: the goroutine ends
	taskOut               // the control lane
	taskClose             // the end of an orderly close
	taskDrop              // close cursors
	taskPull              // the attachment whose turn it is
	taskFlush             // nothing is left, but the batch
)

// startWriterLocked makes sure that a writer runs.
func (c *Conn) startWriterLocked() {
	if c.mu.writing || c.mu.phase == phaseDead {
		return
	}
	c.mu.writing = true
	c.wg.Add(1)
	go c.write()
}

// write is the writer goroutine: it gathers frames into a batch, control lane first, and writes the batch when it is
// large or when nothing more is at hand.
func (c *Conn) write() {
	defer c.wg.Done()
	w := c.s.scratch.Get().(*scratch)
	defer func() {
		w.batch = w.batch[:0]
		if cap(w.batch) <= keptBuffer {
			c.s.scratch.Put(w)
		}
	}()
	for {
		t, a := c.take(w)
		switch t {
		case taskEnd:
			return
		case taskOut:
			c.appendOut(w)
		case taskDrop:
			c.closeDropped()
		case taskPull:
			c.pull(w, a)
		case taskClose:
			c.writeClose(w)
			continue
		}
		if t == taskFlush || len(w.batch) >= flushAt {
			c.flush(w)
		}
	}
}

// take chooses the next task.
func (c *Conn) take(w *scratch) (task, *attachment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.mu.phase == phaseDead:
	case len(c.mu.out) > 0 || c.mu.pong != nil || c.mu.ping:
		w.out = w.out[:0]
		if c.mu.pong != nil {
			w.out = append(w.out, outgoing{message: c.mu.pong, kind: ws.Pong})
		}
		if c.mu.ping {
			w.out = append(w.out, outgoing{kind: ws.Ping})
		}
		w.out = append(w.out, c.mu.out...)
		c.mu.out, c.mu.pong, c.mu.ping = nil, nil, false
		c.signalSpaceLocked()
		return taskOut, nil
	case c.mu.phase == phaseClosing && !c.mu.closing.sent:
		c.mu.closing.sent = true
		return taskClose, nil
	case c.mu.phase == phaseClosing:
	case len(c.mu.dropped) > 0:
		return taskDrop, nil
	case len(c.mu.ready) > 0:
		a := c.mu.ready[0]
		c.mu.ready[0] = nil
		c.mu.ready = c.mu.ready[1:]
		a.queued = false
		if a.dropped {
			return taskDrop, nil
		}
		return taskPull, a
	case len(w.batch) > 0:
		return taskFlush, nil
	}
	c.mu.writing = false
	return taskEnd, nil
}

// appendOut encodes the control lane.
func (c *Conn) appendOut(w *scratch) {
	for i, o := range w.out {
		w.out[i] = outgoing{}
		if o.frame == nil {
			w.batch = ws.AppendMessage(w.batch, o.kind, o.message)
			continue
		}
		c.appendFrame(w, o.frame)
	}
}

// appendFrame encodes one frame. A frame that cannot be encoded is a mistake of ours; the connection is closed rather
// than a reply lost.
func (c *Conn) appendFrame(w *scratch, f *wirepb.Frame) {
	start := len(w.batch)
	b, err := c.codec.append(w.batch, f)
	if err != nil {
		w.batch = b[:start]
		c.log().Error("cannot encode a frame", "kind", kindOf(f), "err", err)
		c.abort(string(proto.CodeInternal))
		return
	}
	w.batch = b
	c.s.metrics.sent.WithLabelValues(kindOf(f)).Inc()
}

func (c *Conn) closeDropped() {
	c.mu.Lock()
	dropped := c.mu.dropped
	c.mu.dropped = nil
	c.mu.Unlock()
	for _, a := range dropped {
		a.close()
	}
}

// pull gives an attachment its turn.
func (c *Conn) pull(w *scratch, a *attachment) {
	more, err := a.pull(w)
	if err == nil {
		if more {
			c.mu.Lock()
			c.readyLocked(a)
			c.mu.Unlock()
		}
		return
	}
	c.mu.Lock()
	said := !a.dropped && c.mu.phase == phaseOpen
	c.dropLocked(a)
	c.mu.Unlock()
	if said {
		e := asError(err)
		c.log().Info("an attachment ended", "object", a.object, "code", e.Code, "reason", e.Error())
		c.appendFrame(w, c.refusal(&wirepb.Frame{Object: a.object}, wireError(e)))
	}
}

// flush writes the batch.
func (c *Conn) flush(w *scratch) {
	if len(w.batch) == 0 {
		return
	}
	c.watch()
	err := c.ws.Write(w.batch)
	c.unwatch()
	if err != nil {
		c.abort("lost")
	} else {
		c.s.metrics.bytesOut.Add(float64(len(w.batch)))
	}
	if cap(w.batch) > keptBuffer {
		w.batch = nil
	}
	w.batch = w.batch[:0]
}

// writeClose writes what an orderly close says last. The peer's own close frame, or CloseTimeout, ends the connection.
func (c *Conn) writeClose(w *scratch) {
	c.mu.Lock()
	cl := c.mu.closing
	c.mu.Unlock()
	if c.codec != nil {
		if cl.error != nil {
			c.appendFrame(w, &wirepb.Frame{Body: &wirepb.Frame_Error{Error: cl.error}})
		}
		if cl.notice != nil {
			c.appendFrame(w, &wirepb.Frame{Body: &wirepb.Frame_Closing{Closing: cl.notice}})
		}
	}
	w.batch = ws.AppendClose(w.batch, cl.code, cl.text)
	c.flush(w)
	c.mu.Lock()
	linger := c.mu.linger
	c.mu.closing.written = true
	c.mu.Unlock()
	switch {
	case cl.final:
		c.abort("closed")
	case linger:
		c.ws.CloseWrite()
	}
}

// watch arms the check that a flush gets on.
func (c *Conn) watch() {
	seen := c.ws.Progress()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.flushes++
	c.mu.flush = c.mu.flushes
	c.watchLocked(c.mu.flush, seen)
}

func (c *Conn) watchLocked(flush, seen uint64) {
	c.mu.stall = c.s.o.Clock.AfterFunc(c.s.o.WriteTimeout, func() {
		now := c.ws.Progress()
		c.mu.Lock()
		over := c.mu.flush != flush || c.mu.phase == phaseDead
		if !over && now != seen {
			c.watchLocked(flush, now)
		}
		c.mu.Unlock()
		if !over && now == seen {
			c.log().Info("closing a connection whose peer takes nothing", "after", c.s.o.WriteTimeout)
			c.abort(string(proto.CodeSlowConsumer))
		}
	})
}

func (c *Conn) unwatch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.flush = 0
	if c.mu.stall != nil {
		c.mu.stall.Stop()
		c.mu.stall = nil
	}
}
