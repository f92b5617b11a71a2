package transporttest

import (
	"context"
	"fmt"
	"sync"

	pb "google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// Objects is a Dispatcher. Its methods are safe for concurrent use; the hooks are set before the first frame.
type Objects struct {
	// OnSubmit answers a Submit in place of the default. It may keep reply, and panic.
	OnSubmit func(f *wirepb.Frame, reply func(*wirepb.Frame))
	// OnStop answers a Stop in place of the default.
	OnStop func(f *wirepb.Frame, reply func(*wirepb.Frame))
	// OnAttach is asked before an attachment; its error is the answer.
	OnAttach func(ctx context.Context, object string) error
	// OnNext is asked before items are read; its error is the answer.
	OnNext func(object string) error

	mu struct {
		sync.Mutex
		logs  map[string]*log
		open  int // cursors
		pulls int // calls of Next that returned items
	}
}

type log struct {
	generation  uint64
	incarnation uint32
	firstHeld   uint64
	entries     [][]byte // entries[i] has offset i+1
	turns       map[string]uint64
	status      *wirepb.Status
	statusSeq   int
	cursors     map[*cursor]struct{}
}

// New returns Objects whose logs are empty.
func New() *Objects {
	o := &Objects{}
	o.mu.logs = make(map[string]*log)
	return o
}

func (o *Objects) logLocked(object string) *log {
	l := o.mu.logs[object]
	if l == nil {
		l = &log{generation: 1, incarnation: 1, firstHeld: 1, turns: make(map[string]uint64), cursors: make(map[*cursor]struct{})}
		o.mu.logs[object] = l
	}
	return l
}

// Append gives each entry the next offset, and wakes the readers. It returns the last offset.
func (o *Objects) Append(object string, entries ...*wirepb.Entry) uint64 {
	o.mu.Lock()
	l := o.logLocked(object)
	for _, e := range entries {
		l.appendEntry(e)
	}
	last := uint64(len(l.entries))
	wakes := l.wakes()
	o.mu.Unlock()
	wake(wakes)
	return last
}

func (l *log) appendEntry(e *wirepb.Entry) uint64 {
	e.Offset = uint64(len(l.entries)) + 1
	b, err := pb.Marshal(e)
	if err != nil {
		panic(fmt.Sprintf("marshal an entry: %v", err))
	}
	l.entries = append(l.entries, b)
	return e.Offset
}

// wakes collects the callbacks to call without the lock.
func (l *log) wakes() []*cursor {
	cs := make([]*cursor, 0, len(l.cursors))
	for c := range l.cursors {
		cs = append(cs, c)
	}
	return cs
}

func wake(cs []*cursor) {
	for _, c := range cs {
		c.wakeUp()
	}
}

// SetStatus makes s the object's ephemeral frame.
func (o *Objects) SetStatus(object string, s *wirepb.Status) {
	o.mu.Lock()
	l := o.logLocked(object)
	l.status = s
	l.statusSeq++
	wakes := l.wakes()
	o.mu.Unlock()
	wake(wakes)
}

// Erase begins a new, empty incarnation of the object.
func (o *Objects) Erase(object string) {
	o.mu.Lock()
	l := o.logLocked(object)
	fresh := &log{generation: l.generation, incarnation: l.incarnation + 1, firstHeld: 1, turns: make(map[string]uint64), cursors: make(map[*cursor]struct{})}
	o.mu.logs[object] = fresh
	wakes := l.wakes()
	o.mu.Unlock()
	wake(wakes)
}

// Retain drops the entries before offset first.
func (o *Objects) Retain(object string, first uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.logLocked(object).firstHeld = first
}

// Entries returns the marshaled log of an object.
func (o *Objects) Entries(object string) [][]byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([][]byte(nil), o.logLocked(object).entries...)
}

// Cursors is the number of cursors that are open.
func (o *Objects) Cursors() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.open
}

// Pulls counts the calls of Next that returned something.
func (o *Objects) Pulls() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.pulls
}

// Dispatch answers Submit and Stop.
func (o *Objects) Dispatch(_ context.Context, p proto.Principal, f *wirepb.Frame, reply func(*wirepb.Frame)) {
	switch b := f.Body.(type) {
	case *wirepb.Frame_Submit:
		if o.OnSubmit != nil {
			o.OnSubmit(f, reply)
			return
		}
		reply(o.Accept(p, f))
	case *wirepb.Frame_Stop:
		if o.OnStop != nil {
			o.OnStop(f, reply)
			return
		}
		reply(&wirepb.Frame{Object: f.Object, Request: f.Request, Body: &wirepb.Frame_Stopping{Stopping: &wirepb.Stopping{Turn: b.Stop.Turn, Ended: true}}})
	default:
		panic(fmt.Sprintf("a %T was dispatched", f.Body))
	}
}

// Accept starts the turn of a Submit, or finds it, and returns the answer.
func (o *Objects) Accept(p proto.Principal, f *wirepb.Frame) *wirepb.Frame {
	m := f.GetSubmit()
	o.mu.Lock()
	l := o.logLocked(f.Object)
	turn, known := l.turns[m.MessageId]
	if !known {
		turn = uint64(len(l.entries)) + 1
		l.turns[m.MessageId] = turn
		l.appendEntry(&wirepb.Entry{Turn: turn, Body: &wirepb.Entry_UserMessage{UserMessage: &wirepb.UserMessage{MessageId: m.MessageId, Text: m.Text, User: p.User}}})
		l.appendEntry(&wirepb.Entry{Turn: turn, Body: &wirepb.Entry_Terminal{Terminal: &wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_COMPLETED}}})
	}
	wakes := l.wakes()
	o.mu.Unlock()
	wake(wakes)
	return &wirepb.Frame{Object: f.Object, Request: f.Request, Body: &wirepb.Frame_Accepted{Accepted: &wirepb.Accepted{MessageId: m.MessageId, Turn: turn, Duplicate: known}}}
}

// Attach opens a cursor.
func (o *Objects) Attach(ctx context.Context, _ proto.Principal, object string, a *wirepb.Attach, wake func()) (proto.Cursor, error) {
	if o.OnAttach != nil {
		if err := o.OnAttach(ctx, object); err != nil {
			return nil, err
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.logLocked(object)
	after, end := a.GetAfter().GetOffset(), uint64(len(l.entries))
	given := a.GetAfter()
	named := given.GetGeneration() != 0 || given.GetIncarnation() != 0
	switch {
	case named && (given.Generation != l.generation || given.Incarnation != l.incarnation), after+1 < l.firstHeld, after > end:
		if a.GetAfter() != nil {
			return nil, l.gone()
		}
		after = l.firstHeld - 1
	}
	if a.GetTail() > 0 {
		after = max(end-min(end, a.Tail), l.firstHeld-1)
	}
	c := &cursor{o: o, l: l, object: object, last: after}
	c.mu.wake = wake
	c.attached = &wirepb.Attached{From: l.at(after), Watermark: end, FirstHeld: l.firstHeld}
	if l.status != nil {
		c.statusSeq = l.statusSeq - 1
	}
	l.cursors[c] = struct{}{}
	o.mu.open++
	return c, nil
}

func (l *log) at(offset uint64) *wirepb.Cursor {
	return &wirepb.Cursor{Generation: l.generation, Incarnation: l.incarnation, Offset: offset}
}

func (l *log) gone() *proto.Error {
	return &proto.Error{Code: proto.CodeGone, Message: "the cursor is not of what is held", FirstHeld: l.firstHeld, Present: l.at(uint64(len(l.entries)))}
}

type cursor struct {
	o         *Objects
	l         *log
	object    string
	attached  *wirepb.Attached
	last      uint64 // guarded by o.mu
	statusSeq int

	mu struct {
		sync.Mutex // held while wake runs, so that Close can wait
		wake       func()
	}
}

func (c *cursor) wakeUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.wake != nil {
		c.mu.wake()
	}
}

func (c *cursor) Attached() *wirepb.Attached { return c.attached }

func (c *cursor) Next(_ context.Context, dst []proto.Item, maxBytes int) ([]proto.Item, error) {
	if c.o.OnNext != nil {
		if err := c.o.OnNext(c.object); err != nil {
			return dst, err
		}
	}
	c.o.mu.Lock()
	defer c.o.mu.Unlock()
	if c.o.mu.logs[c.object] != c.l {
		return dst, c.o.mu.logs[c.object].gone()
	}
	before := len(dst)
	for n := 0; c.last < uint64(len(c.l.entries)) && n < maxBytes; {
		e := c.l.entries[c.last]
		c.last++
		dst = append(dst, proto.Item{Offset: c.last, Entry: e})
		n += len(e)
	}
	if c.statusSeq != c.l.statusSeq && c.last == uint64(len(c.l.entries)) {
		c.statusSeq = c.l.statusSeq
		dst = append(dst, proto.Item{Status: c.l.status})
	}
	if len(dst) > before {
		c.o.mu.pulls++
	}
	return dst, nil
}

func (c *cursor) Close() {
	c.o.mu.Lock()
	if _, open := c.l.cursors[c]; !open {
		c.o.mu.Unlock()
		panic("a cursor was closed twice")
	}
	delete(c.l.cursors, c)
	c.o.mu.open--
	c.o.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.wake = nil
}
