package transport

import (
	"fmt"

	"github.com/holdfast-ai/holdfast/internal/invariants"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// attachment is one object that a connection follows.
type attachment struct {
	c      *Conn
	object string

	// Guarded by c.mu.
	cursor  proto.Cursor // nil while it is opened; used by the writer only
	queued  bool         // is in c.mu.ready
	dropped bool         // detached, replaced or dead: says nothing more

	// The writer's, set before it first sees the attachment.
	prefix    []byte // see codec.prefix
	last      uint64 // offset of the last entry sent
	watermark uint64 // of Attached
	caughtUp  bool   // CaughtUp was sent
}

// attach opens a cursor, off the reader: an object that is slow to wake must not hold up Stop and Ping.
func (c *Conn) attach(f *wirepb.Frame, b *wirepb.Attach) {
	a := &attachment{c: c, object: f.Object}
	if e := c.admitAttachment(a); e != nil {
		c.refuse(f, e)
		return
	}
	c.s.metrics.attaches.Inc()
	go a.open(f, b)
}

// admitAttachment puts a in the place of the object's earlier attachment, or refuses it.
func (c *Conn) admitAttachment(a *attachment) *proto.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.phase != phaseOpen {
		return proto.Errorf(proto.CodeDraining, "the connection is closing")
	}
	if c.mu.inFlight >= c.s.o.MaxInFlight {
		return proto.Errorf(proto.CodeOverloaded, "the connection has %d requests in flight", c.mu.inFlight)
	}
	old := c.mu.attachments[a.object]
	if old == nil && len(c.mu.attachments) >= c.s.o.MaxAttachments {
		return &proto.Error{
			Code:    proto.CodeOverloaded,
			Message: fmt.Sprintf("the connection follows %d objects", len(c.mu.attachments)),
			Hint:    "detach from an object, or use another connection",
		}
	}
	if old != nil {
		c.dropLocked(old)
	}
	if c.mu.attachments == nil {
		c.mu.attachments = make(map[string]*attachment, 1)
	}
	c.mu.attachments[a.object] = a
	c.mu.inFlight++
	c.wg.Add(1)
	return nil
}

// dropLocked ends an attachment. Its cursor is the writer's to close.
func (c *Conn) dropLocked(a *attachment) {
	if c.mu.attachments[a.object] == a {
		delete(c.mu.attachments, a.object)
	}
	if a.dropped {
		return
	}
	a.dropped = true
	if a.cursor != nil {
		c.mu.dropped = append(c.mu.dropped, a)
		c.startWriterLocked()
	}
}

// open asks the Dispatcher for the cursor and answers the Attach.
func (a *attachment) open(f *wirepb.Frame, b *wirepb.Attach) {
	c := a.c
	defer c.wg.Done()
	cursor, err := a.callAttach(b)
	if err == nil && cursor == nil {
		err = &proto.Error{Code: proto.CodeInternal, Message: "the server failed to attach"}
	}
	var from *wirepb.Attached
	if err == nil {
		from = cursor.Attached()
		a.prefix = c.codec.prefix(a.object)
		a.last, a.watermark = from.GetFrom().GetOffset(), from.GetWatermark()
	}
	c.mu.Lock()
	c.mu.inFlight--
	current := !a.dropped && c.mu.phase == phaseOpen
	switch {
	case err == nil && current:
		a.cursor = cursor
		c.s.metrics.attachments.Inc()
		c.queueLocked(outgoing{frame: &wirepb.Frame{Object: f.Object, Request: f.Request, Body: &wirepb.Frame_Attached{Attached: from}}})
		c.readyLocked(a) // at least CaughtUp may be due
	case err == nil:
		c.queueLocked(outgoing{frame: detached(f)}) // replaced or detached before it began
	default:
		c.dropLocked(a)
	}
	c.mu.Unlock()
	switch {
	case err != nil:
		c.refuse(f, asError(err))
	case !current:
		cursor.Close()
	}
}

func (a *attachment) callAttach(b *wirepb.Attach) (cursor proto.Cursor, err error) {
	defer func() {
		if p := recover(); p != nil {
			a.c.s.panicked(p, "attach", "conn", a.c.id, "object", a.object)
			err = &proto.Error{Code: proto.CodeInternal, Message: "the server failed to attach"}
		}
	}()
	return a.c.s.o.Dispatcher.Attach(a.c.ctx, a.c.principal, a.object, b, a.wake)
}

// wake is called by the object when there may be more.
func (a *attachment) wake() {
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	if a.cursor != nil { // else open makes it ready
		a.c.readyLocked(a)
	}
}

// readyLocked gives an attachment its turn, behind the others.
func (c *Conn) readyLocked(a *attachment) {
	if a.queued || a.dropped || c.mu.phase != phaseOpen {
		return
	}
	a.queued = true
	c.mu.ready = append(c.mu.ready, a)
	c.startWriterLocked()
}

// detach ends an attachment; entries of it that were not written yet are not sent after Detached.
func (c *Conn) detach(f *wirepb.Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.mu.attachments[f.Object]; a != nil {
		c.dropLocked(a)
	}
	c.queueLocked(outgoing{frame: detached(f)})
}

func detached(f *wirepb.Frame) *wirepb.Frame {
	return &wirepb.Frame{Object: f.Object, Request: f.Request, Body: &wirepb.Frame_Detached{Detached: &wirepb.Detached{}}}
}

// pull appends to batch what the attachment says next, at most about quantum bytes of it. It reports whether there may
// be more.
func (a *attachment) pull(w *scratch) (more bool, err error) {
	w.items, err = a.callNext(w.items[:0])
	defer func() { clear(w.items) }() // entries are shared, and must not be kept alive by a pool
	if err != nil {
		return false, err
	}
	for i := range w.items {
		if err := a.appendItem(w, &w.items[i]); err != nil {
			return false, err
		}
	}
	return len(w.items) > 0, a.appendCaughtUp(w)
}

func (a *attachment) callNext(dst []proto.Item) (items []proto.Item, err error) {
	defer func() {
		if p := recover(); p != nil {
			a.c.s.panicked(p, "cursor", "conn", a.c.id, "object", a.object)
			items, err = dst[:0], &proto.Error{Code: proto.CodeInternal, Message: "the server failed to read the log"}
		}
	}()
	return a.cursor.Next(a.c.ctx, dst, quantum)
}

func (a *attachment) appendItem(w *scratch, it *proto.Item) (err error) {
	m := a.c.s.metrics
	if it.Status != nil {
		if err := a.appendCaughtUp(w); err != nil {
			return err
		}
		m.sentStatus.Inc()
		w.batch, err = a.c.codec.append(w.batch, &wirepb.Frame{Object: a.object, Body: &wirepb.Frame_Status{Status: it.Status}})
		return err
	}
	if it.Offset != a.last+1 {
		if invariants.Enabled {
			panic(fmt.Sprintf("cursor of %s went from offset %d to %d", a.object, a.last, it.Offset))
		}
		return proto.Errorf(proto.CodeInternal, "the log has a gap after offset %d", a.last) // never a silent one
	}
	a.last = it.Offset
	m.sentEntries.Inc()
	if w.batch, err = a.c.codec.appendEntry(w.batch, a.prefix, it.Entry); err != nil {
		return err
	}
	return a.appendCaughtUp(w)
}

// appendCaughtUp says, once, that the entries that were there at the attachment have been sent.
func (a *attachment) appendCaughtUp(w *scratch) (err error) {
	if a.caughtUp || a.last < a.watermark {
		return nil
	}
	a.caughtUp = true
	a.c.s.metrics.sent.WithLabelValues("caught_up").Inc()
	w.batch, err = a.c.codec.append(w.batch, &wirepb.Frame{Object: a.object, Body: &wirepb.Frame_CaughtUp{CaughtUp: &wirepb.CaughtUp{Offset: a.watermark}}})
	return err
}

// closeCursors closes what the writer has not. No writer runs or can start.
func (c *Conn) closeCursors() {
	c.mu.Lock()
	left := c.mu.dropped
	for _, a := range c.mu.attachments {
		if a.cursor != nil {
			left = append(left, a)
		}
	}
	c.mu.dropped, c.mu.attachments, c.mu.ready = nil, nil, nil
	c.mu.Unlock()
	for _, a := range left {
		a.close()
	}
}

// close closes the cursor. It must not be called under c.mu: it waits for a wake under way.
func (a *attachment) close() {
	defer func() {
		if p := recover(); p != nil {
			a.c.s.panicked(p, "cursor", "conn", a.c.id, "object", a.object)
		}
	}()
	a.c.s.metrics.attachments.Dec()
	a.cursor.Close()
}
