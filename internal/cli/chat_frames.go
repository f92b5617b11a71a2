package cli

import (
	"context"
	"errors"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// errGap says that an entry is missing: the connection is dropped and the log read from the cursor.
var errGap = errors.New("the server left out an entry")

// frame takes one frame of the server. It reports whether the connection is attached because of it; its error ends
// the connection.
func (l *wireLink) frame(ctx context.Context, in *wire, f *wirepb.Frame) (attached bool, err error) {
	switch b := f.Body.(type) {
	case *wirepb.Frame_Welcome:
		if ms := b.Welcome.PingIntervalMs; ms > 0 {
			in.interval = time.Duration(ms) * time.Millisecond
		}
		in.namespace = b.Welcome.Namespace
		return false, l.attach(in)
	case *wirepb.Frame_Attached:
		if f.Request == in.request {
			l.attached(ctx, in, b.Attached)
			return true, nil
		}
	case *wirepb.Frame_Entry:
		return false, l.entry(ctx, in, b.Entry)
	case *wirepb.Frame_Status:
		if in.attached {
			l.give(ctx, event{status: b.Status})
		}
	case *wirepb.Frame_CaughtUp:
		l.give(ctx, event{caughtUp: true})
	case *wirepb.Frame_Accepted:
		l.settle(b.Accepted.MessageId, accepted{turn: b.Accepted.Turn})
	case *wirepb.Frame_Stopping:
		l.stopAnswered(f.Request)
	case *wirepb.Frame_Closing:
		l.mu.Lock()
		l.mu.closing = time.Duration(b.Closing.ReconnectAfterMs) * time.Millisecond
		l.mu.Unlock()
	case *wirepb.Frame_Error:
		return false, l.refused(ctx, in, f.Object, f.Request, b.Error)
	}
	return false, nil
}

func (l *wireLink) attach(in *wire) error {
	l.mu.Lock()
	l.mu.wire = nil // nobody else writes until the attachment is answered
	l.mu.object = in.namespace + "/session/" + l.o.session
	l.mu.request++
	in.request = l.mu.request
	f := &wirepb.Frame{Object: l.mu.object, Request: in.request}
	l.mu.Unlock()
	a := &wirepb.Attach{Tail: l.o.tail}
	if l.cursor != nil {
		a = &wirepb.Attach{After: protobuf.CloneOf(l.cursor)}
	}
	f.Body = &wirepb.Frame_Attach{Attach: a}
	in.attached = false
	return in.send(f)
}

func (l *wireLink) attached(ctx context.Context, in *wire, a *wirepb.Attached) {
	from := a.GetFrom()
	if from == nil {
		from = &wirepb.Cursor{}
	}
	if l.cursor != nil && !protobuf.Equal(l.cursor, from) {
		l.give(ctx, event{reset: true})
	}
	l.cursor = protobuf.CloneOf(from)
	in.attached, l.reached = true, true
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.wire = in
	for _, p := range l.mu.submits {
		l.sendSubmitLocked(p)
	}
	for turn := range l.mu.stops {
		l.sendStopLocked(turn)
	}
}

func (l *wireLink) detach() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.wire = nil
}

func (l *wireLink) entry(ctx context.Context, in *wire, e *wirepb.Entry) error {
	switch {
	case !in.attached || e.Offset <= l.cursor.Offset:
		return nil // seen before
	case e.Offset != l.cursor.Offset+1:
		return errGap
	}
	l.cursor.Offset = e.Offset
	if e.GetTerminal() != nil {
		l.mu.Lock()
		delete(l.mu.stops, e.Turn)
		l.mu.Unlock()
	}
	l.give(ctx, event{entry: e})
	return nil
}

// refused finds what an Error is about: a submit, a stop, the attachment or the connection.
func (l *wireLink) refused(ctx context.Context, in *wire, object string, request uint64, e *wirepb.Error) error {
	refusal := &proto.Error{
		Code: proto.Code(clean(e.Code)), Message: clean(e.Message), Hint: clean(e.Hint),
		RetryAfter: time.Duration(e.RetryAfterMs) * time.Millisecond,
	}
	if l.submitRefused(request, e, refusal) || l.stopRefused(request, e, refusal) {
		return nil
	}
	switch {
	case object == "" && request == 0:
		in.refusal = refusal // about the connection: a close follows
		return nil
	case request != 0 && request != in.request:
		return nil // of something that is settled
	case refusal.Code == proto.CodeGone:
		l.cursor = nil
		l.give(ctx, event{reset: true})
		return l.attach(in)
	case e.Retryable:
		l.mu.Lock()
		if refusal.RetryAfter > 0 {
			l.mu.closing = refusal.RetryAfter
		}
		l.mu.Unlock()
		return refusal
	}
	return &fatalError{refusal}
}

func (l *wireLink) submitRefused(request uint64, e *wirepb.Error, refusal *proto.Error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, p := range l.mu.submits {
		if e.MessageId != id && (request == 0 || p.request != request) {
			continue
		}
		if e.Retryable {
			l.laterLocked("submit "+id, refusal.RetryAfter, func() {
				if p := l.mu.submits[id]; p != nil {
					l.sendSubmitLocked(p)
				}
			})
			return true
		}
		delete(l.mu.submits, id)
		p.result <- accepted{err: refusal}
		return true
	}
	return false
}

func (l *wireLink) stopRefused(request uint64, e *wirepb.Error, refusal *proto.Error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for turn, r := range l.mu.stops {
		if request == 0 || r != request {
			continue
		}
		if e.Retryable {
			l.laterLocked("stop", refusal.RetryAfter, func() { l.sendStopLocked(turn) })
		} else {
			delete(l.mu.stops, turn)
		}
		return true
	}
	return false
}

// laterLocked runs f, with mu held, after d and up to half as much again. Close stops what is pending.
func (l *wireLink) laterLocked(name string, d time.Duration, f func()) {
	if d <= 0 {
		d = time.Second
	}
	if t := l.mu.timers[name]; t != nil {
		t.Stop()
	}
	l.mu.timers[name] = time.AfterFunc(d+jitter(d/2), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.mu.finished {
			f()
		}
	})
}

// Submit implements link.
func (l *wireLink) Submit(ctx context.Context, messageID, text string) (uint64, error) {
	p := &pendingSubmit{submit: &wirepb.Submit{MessageId: messageID, Text: text}, result: make(chan accepted, 1)}
	l.mu.Lock()
	l.mu.submits[messageID] = p
	l.sendSubmitLocked(p)
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.mu.submits, messageID)
		l.mu.Unlock()
	}()
	select {
	case a := <-p.result:
		return a.turn, a.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

func (l *wireLink) settle(id string, a accepted) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.mu.submits[id]; p != nil {
		delete(l.mu.submits, id)
		p.result <- a
	}
}

// Stop implements link.
func (l *wireLink) Stop(turn uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.stops[turn] = 0
	l.sendStopLocked(turn)
}

func (l *wireLink) stopAnswered(request uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for turn, r := range l.mu.stops {
		if r == request {
			delete(l.mu.stops, turn)
		}
	}
}

func (l *wireLink) sendSubmitLocked(p *pendingSubmit) {
	l.mu.request++
	p.request = l.mu.request
	l.sendLocked(&wirepb.Frame{Request: p.request, Body: &wirepb.Frame_Submit{Submit: p.submit}})
}

func (l *wireLink) sendStopLocked(turn uint64) {
	if _, wanted := l.mu.stops[turn]; !wanted {
		return
	}
	l.mu.request++
	l.mu.stops[turn] = l.mu.request
	l.sendLocked(&wirepb.Frame{Request: l.mu.request, Body: &wirepb.Frame_Stop{Stop: &wirepb.Stop{Turn: turn}}})
}

// sendLocked writes f if the link is attached; what is not answered is sent again after the next attachment. mu is
// what serialises the writes.
func (l *wireLink) sendLocked(f *wirepb.Frame) {
	if l.mu.wire == nil {
		return
	}
	f.Object = l.mu.object
	if err := l.mu.wire.send(f); err != nil {
		l.mu.wire.ws.Close() // the reader finds out and connects again
	}
}

var _ link = (*wireLink)(nil)
