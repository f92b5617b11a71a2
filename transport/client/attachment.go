package client

import (
	"context"
	"fmt"

	"github.com/holdfast-ai/holdfast/internal/clock"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// Attachment follows one object. Next is for one goroutine at a time, the rest for any.
type Attachment struct {
	c      *Client
	object string
	o      AttachOptions
	wake   chan struct{} // buffered: there may be something for Next

	// Guarded by c.mu.
	state   state
	request uint64         // of the Attach in flight
	cursor  *wirepb.Cursor // after the last entry queued; nil: begin as o says
	known   bool           // cursor is of a history that the server has told of
	misses  int            // times in a row that the cursor was gone
	queue   []Event
	entries int // in queue
	bytes   int // of those entries
	status  *wirepb.Status
	retry   clock.Timer
	err     error
}

type state uint8

const (
	stateIdle      state = iota // there is no connection, or a retry waits
	stateAttaching              // entries that come are of an earlier attachment
	stateAttached
	stateFull // detached until the queue is empty
)

// Attach begins to follow an object. A client follows each object at most once.
func (c *Client) Attach(object string, o AttachOptions) (*Attachment, error) {
	a := &Attachment{c: c, object: object, o: o, cursor: o.After, wake: make(chan struct{}, 1)}
	a.known = o.After.GetGeneration() != 0 || o.After.GetIncarnation() != 0
	if a.cursor != nil {
		a.cursor = &wirepb.Cursor{Generation: o.After.Generation, Incarnation: o.After.Incarnation, Offset: o.After.Offset}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.err != nil {
		return nil, c.mu.err
	}
	if c.mu.attachments[object] != nil {
		return nil, fmt.Errorf("client: attach to %q: this client follows it already; close the earlier attachment first", object)
	}
	c.mu.attachments[object] = a
	a.attachLocked()
	return a, nil
}

// Next waits for what the object says next. Its error is the last word: of the attachment (a *proto.Error), of the
// client, or of ctx, after which Next may be called again.
func (a *Attachment) Next(ctx context.Context) (Event, error) {
	for {
		if ev, ok, err := a.take(); ok || err != nil {
			return ev, err
		}
		select {
		case <-a.wake:
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		}
	}
}

// take returns what waits: events in their order, then the status, then the end.
func (a *Attachment) take() (Event, bool, error) {
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	switch {
	case len(a.queue) > 0:
		ev := pop(&a.queue)
		if ev.Entry != nil {
			a.entries--
			a.bytes -= len(ev.Raw)
		}
		if len(a.queue) == 0 && a.state == stateFull {
			a.state = stateIdle
			a.attachLocked()
		}
		return ev, true, nil
	case a.status != nil:
		ev := Event{Status: a.status}
		a.status = nil
		return ev, true, nil
	}
	return Event{}, false, a.err
}

// Cursor is where a later attachment would go on: after the last entry that has been queued for Next.
func (a *Attachment) Cursor() *wirepb.Cursor {
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	if a.cursor == nil {
		return nil
	}
	return &wirepb.Cursor{Generation: a.cursor.Generation, Incarnation: a.cursor.Incarnation, Offset: a.cursor.Offset}
}

// Close ends the attachment. What is queued is dropped, and Next returns ErrClosed.
func (a *Attachment) Close() {
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	if a.err != nil {
		return
	}
	if a.state == stateAttaching || a.state == stateAttached {
		a.detachLocked()
	}
	a.queue, a.status = nil, nil
	a.endLocked(ErrClosed)
}

func (a *Attachment) endLocked(err error) {
	if a.err != nil {
		return
	}
	a.err = err
	a.state = stateIdle
	if a.retry != nil {
		a.retry.Stop()
	}
	delete(a.c.mu.attachments, a.object)
	a.notify()
}

func (a *Attachment) notify() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// attachLocked asks the server for what follows the cursor.
func (a *Attachment) attachLocked() {
	if a.c.mu.link == nil || a.err != nil || a.state == stateFull {
		return
	}
	a.state = stateAttaching
	a.c.mu.request++
	a.request = a.c.mu.request
	attach := &wirepb.Attach{}
	if a.cursor != nil {
		attach.After = &wirepb.Cursor{Generation: a.cursor.Generation, Incarnation: a.cursor.Incarnation, Offset: a.cursor.Offset}
	} else {
		attach.Tail = a.o.Tail
	}
	a.c.mu.link.sendLocked(&wirepb.Frame{Object: a.object, Request: a.request, Body: &wirepb.Frame_Attach{Attach: attach}})
}

func (a *Attachment) detachLocked() {
	if a.c.mu.link != nil {
		a.c.mu.link.sendLocked(&wirepb.Frame{Object: a.object, Body: &wirepb.Frame_Detach{Detach: &wirepb.Detach{}}})
	}
}

// lostLocked notes that the connection is gone.
func (a *Attachment) lostLocked(cause error) {
	a.status = nil // was true of another moment
	if a.state != stateFull {
		a.state = stateIdle
	}
	if a.retry != nil {
		a.retry.Stop()
		a.retry = nil
	}
	a.queueLocked(Event{Lost: cause})
}

// receivedLocked handles a frame about the object.
func (a *Attachment) receivedLocked(f *wirepb.Frame, raw []byte) {
	switch b := f.Body.(type) {
	case *wirepb.Frame_Attached:
		if a.state == stateAttaching && f.Request == a.request {
			a.attachedLocked(b.Attached)
		}
	case *wirepb.Frame_Error:
		if a.state == stateAttaching && f.Request == a.request || a.state == stateAttached && f.Request == 0 {
			a.refusedLocked(b.Error)
		}
	case *wirepb.Frame_Entry:
		if a.state == stateAttached {
			a.entryLocked(b.Entry, raw)
		}
	case *wirepb.Frame_Status:
		if a.state == stateAttached {
			a.status = b.Status
			a.notify()
		}
	case *wirepb.Frame_CaughtUp:
		if a.state == stateAttached {
			a.queueLocked(Event{CaughtUp: true})
		}
	}
}

func (a *Attachment) attachedLocked(m *wirepb.Attached) {
	from := m.GetFrom()
	was := a.cursor
	if was != nil && (a.known && (was.Generation != from.GetGeneration() || was.Incarnation != from.GetIncarnation()) || was.Offset != from.GetOffset()) {
		a.queueLocked(Event{Reset: &Reset{FirstHeld: m.FirstHeld, Present: from}})
	}
	a.state, a.misses, a.known = stateAttached, 0, true
	a.cursor = &wirepb.Cursor{Generation: from.GetGeneration(), Incarnation: from.GetIncarnation(), Offset: from.GetOffset()}
	a.queueLocked(Event{Attached: m})
}

// entryLocked queues an entry that is the next one. Duplicates are dropped; after a gap, which no correct server
// makes, the missing entries are asked for.
func (a *Attachment) entryLocked(e *wirepb.Entry, raw []byte) {
	switch {
	case e.Offset <= a.cursor.Offset:
		return
	case e.Offset != a.cursor.Offset+1:
		a.c.o.Logger.Warn("the server left out entries", "object", a.object, "after", a.cursor.Offset, "came", e.Offset)
		a.attachLocked()
		return
	}
	if a.entries > 0 && (a.entries >= a.c.o.MaxBuffered || a.bytes+len(raw) > a.c.o.MaxBufferedBytes) {
		a.detachLocked()
		a.state = stateFull
		return
	}
	a.cursor.Offset = e.Offset
	a.entries++
	a.bytes += len(raw)
	a.queue = append(a.queue, Event{Entry: e, Raw: raw})
	a.notify()
}

// queueLocked queues an event that is not an entry. After the last entry one of each kind is enough, the newest:
// otherwise a connection that keeps breaking would fill the queue of a caller that is away.
func (a *Attachment) queueLocked(ev Event) {
	for i := len(a.queue) - 1; i >= 0 && a.queue[i].Entry == nil; i-- {
		if a.queue[i].kind() == ev.kind() {
			a.queue = append(a.queue[:i], a.queue[i+1:]...)
			break
		}
	}
	a.queue = append(a.queue, ev)
	a.notify()
}

func (ev *Event) kind() int {
	switch {
	case ev.Entry != nil:
		return 0
	case ev.Status != nil:
		return 1
	case ev.Attached != nil:
		return 2
	case ev.CaughtUp:
		return 3
	case ev.Lost != nil:
		return 4
	}
	return 5
}

// refusedLocked handles the refusal, or the end, of an attachment.
func (a *Attachment) refusedLocked(e *wirepb.Error) {
	a.state = stateIdle
	switch {
	case proto.Code(e.Code) == proto.CodeGone && a.misses == 0:
		a.misses++
		a.queueLocked(Event{Reset: &Reset{FirstHeld: e.FirstHeld, Present: e.Present}})
		a.cursor, a.known = nil, false
		if p := e.Present; p != nil && a.o.Tail == 0 {
			a.cursor = &wirepb.Cursor{Generation: p.Generation, Incarnation: p.Incarnation, Offset: max(e.FirstHeld, 1) - 1}
			a.known = true
		}
		a.attachLocked()
	case e.Retryable:
		a.retry = a.c.o.Clock.AfterFunc(a.c.retryDelay(e), func() {
			a.c.mu.Lock()
			defer a.c.mu.Unlock()
			if a.state == stateIdle {
				a.attachLocked()
			}
		})
	default:
		a.endLocked(refusal(e))
	}
}
