package actors

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	pb "google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/statepb"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/storage"
)

// Context is what a handler may do. It is valid until Handle returns. Reads see what this and earlier handlers wrote,
// durable or not; writes and outputs count only if Handle returns nil.
type Context struct {
	a         *Activation // nil when the handler is over
	principal proto.Principal
	reply     *reply
	replied   bool
	alarm     string

	writes  writes
	outputs []output
	starts  []*effect
	cancels []cancellation
}

type cancellation struct {
	key   string
	cause error
}

// ID is the object's address.
func (c *Context) ID() ID { return c.a.id }

// Principal is who sent the message; zero for other events.
func (c *Context) Principal() proto.Principal { return c.principal }

// Now is the host's clock. It is not a position in any order: clocks step.
func (c *Context) Now() time.Time { return c.a.host.o.Clock.Now() }

// Random returns 64 random bits.
func (c *Context) Random() uint64 { return c.a.host.o.Random() }

// Logger has the object's address. Never log what people write.
func (c *Context) Logger() *slog.Logger { return c.a.log }

// Models runs models. Nil if the host has none. Use it in effects.
func (c *Context) Models() inference.Runner { return c.a.host.o.Models }

// Exists reports whether the object has ever been written to.
func (c *Context) Exists() bool { return c.writes.meta != nil || c.a.meta != nil }

// NextOffset is the offset that the next Append returns.
func (c *Context) NextOffset() uint64 { return c.writes.first + uint64(len(c.writes.frames)) }

// Append adds an entry to the log. It sets the entry's offset, which it returns, and its time, and turn to the offset
// if it is 0 in a UserMessage. The entry must not be changed afterwards.
func (c *Context) Append(e *wirepb.Entry) uint64 {
	c.create()
	e.Offset = c.NextOffset()
	e.TimeUnixMs = c.Now().UnixMilli()
	if e.GetUserMessage() != nil && e.Turn == 0 {
		e.Turn = e.Offset
	}
	frame, err := pb.Marshal(e)
	if err != nil {
		panic(fmt.Sprintf("actors: marshal an entry: %v", err)) // only invalid UTF-8, which kinds must refuse
	}
	c.writes.frames = append(c.writes.frames, frame)
	c.writes.size += len(frame)
	return e.Offset
}

// create writes the object's first record if it has none.
func (c *Context) create() {
	if !c.Exists() {
		c.setMeta(nil)
	}
}

func (c *Context) setMeta(state []byte) {
	var m *statepb.Meta
	switch {
	case c.writes.meta != nil:
		m = c.writes.meta
	case c.a.meta != nil:
		m = pb.Clone(c.a.meta).(*statepb.Meta)
	default:
		id := c.a.id
		m = &statepb.Meta{
			Namespace: id.Namespace, Kind: id.Kind, Name: id.Name, Incarnation: c.a.stored.Incarnation(),
			CreatedUnixMs: c.Now().UnixMilli(), FirstOffset: 1,
		}
	}
	m.KindVersion = c.a.place.kind.Version
	m.State = state
	c.writes.meta = m
	c.writes.size += len(state) + 64
}

// State is the small state that SetState last set; nil at first. It must not be changed.
func (c *Context) State() []byte {
	if c.writes.meta != nil {
		return c.writes.meta.State
	}
	return c.a.meta.GetState()
}

// SetState replaces the state that every activation loads. Ownership passes. Readers that attach while this is
// durable learn of the live turn that Kind.Live finds in it.
func (c *Context) SetState(state []byte) {
	c.setMeta(state)
	if live := c.a.place.kind.Live; live != nil {
		turn, f := live(state), &c.a.place.feed
		c.outputs = append(c.outputs, output{run: func() { f.setLive(turn) }})
	}
}

// each calls f with the write-sets that storage does not show yet, newest first, until it returns true.
func (c *Context) each(f func(*writes) bool) bool {
	if f(&c.writes) {
		return true
	}
	for _, g := range []*group{c.a.pending, c.a.inflight} {
		if g != nil && f(&g.writes) {
			return true
		}
	}
	return false
}

// overlaid looks a key up in the write-sets, then in storage. Nil without an error: there is none.
func overlaid[K comparable, V any](c *Context, key K, of func(*writes) map[K]*V, stored func() (*V, error)) (*V, error) {
	var v *V
	if c.each(func(w *writes) (ok bool) { v, ok = of(w)[key]; return ok }) {
		return v, nil
	}
	v, err := stored()
	if isNotFound(err) {
		return nil, nil
	}
	return v, err
}

// Turn returns a copy of the index record of a turn, nil if there is none.
func (c *Context) Turn(turn uint64) (*statepb.Turn, error) {
	t, err := overlaid(c, turn, func(w *writes) map[uint64]*statepb.Turn { return w.turns },
		func() (*statepb.Turn, error) { return c.a.stored.Turn(turn) })
	if t == nil || err != nil {
		return nil, err
	}
	return pb.Clone(t).(*statepb.Turn), nil
}

// PutTurn writes a copy of t.
func (c *Context) PutTurn(t *statepb.Turn) {
	c.create()
	set(&c.writes.turns, t.Turn, pb.Clone(t).(*statepb.Turn))
	c.writes.size += 64 + 4*len(t.GetAttempt().GetPrompt())
}

// MessageID returns what a user's message id started, nil if it is not known. It must not be changed.
func (c *Context) MessageID(user, id string) (*statepb.MessageID, error) {
	return overlaid(c, messageKey{user, id}, func(w *writes) map[messageKey]*statepb.MessageID { return w.ids },
		func() (*statepb.MessageID, error) { return c.a.stored.MessageID(user, id) })
}

// PutMessageID remembers what a user's message id started. Ownership of m passes.
func (c *Context) PutMessageID(user, id string, m *statepb.MessageID) {
	c.create()
	set(&c.writes.ids, messageKey{user, id}, m)
	c.writes.size += 128
}

// ForgetMessageID removes one.
func (c *Context) ForgetMessageID(user, id string) {
	set(&c.writes.ids, messageKey{user, id}, nil)
	c.writes.size += 64
}

// Value returns the value of a key, nil if there is none. It must not be changed.
func (c *Context) Value(key []byte) ([]byte, error) {
	var v []byte
	if c.each(func(w *writes) (ok bool) { v, ok = w.values[string(key)]; return ok }) {
		return v, nil
	}
	v, err := c.a.stored.Value(key)
	if isNotFound(err) {
		return nil, nil
	}
	return v, err
}

// Put sets the value of a key. Ownership of value passes.
func (c *Context) Put(key, value []byte) {
	c.create()
	if value == nil {
		value = []byte{}
	}
	set(&c.writes.values, string(key), value)
	c.writes.size += len(key) + len(value)
}

// Delete removes a key.
func (c *Context) Delete(key []byte) {
	set(&c.writes.values, string(key), nil)
	c.writes.size += len(key)
}

// SetAlarm asks for an Alarm event at due, replacing the alarm with that key. It survives restarts; one that is
// overdue comes at once.
func (c *Context) SetAlarm(key string, due time.Time) { c.setAlarm(key, due, false) }

// SetSystemAlarm is SetAlarm for what keeps the object's promises, such as finishing a turn.
func (c *Context) SetSystemAlarm(key string, due time.Time) { c.setAlarm(key, due, true) }

func (c *Context) setAlarm(key string, due time.Time, system bool) {
	c.create()
	set(&c.writes.alarms, key, &statepb.Alarm{Key: key, DueUnixMs: due.UnixMilli(), System: system})
	c.writes.size += 64
}

// ClearAlarm removes an alarm.
func (c *Context) ClearAlarm(key string) {
	set(&c.writes.alarms, key, nil)
	c.writes.size += 64
}

// SetLive marks a turn that a restart must wake; ClearLive ends that.
func (c *Context) SetLive(turn uint64) {
	c.create()
	set(&c.writes.live, turn, true)
	c.writes.size += 32
}

// ClearLive ends what SetLive began.
func (c *Context) ClearLive(turn uint64) {
	set(&c.writes.live, turn, false)
	c.writes.size += 32
}

// Reply answers the message, once everything that this handler could have seen is durable.
func (c *Context) Reply(f *wirepb.Frame) {
	if c.reply == nil || c.replied {
		panic("actors: Reply without a message that waits for one")
	}
	c.replied = true
	c.outputs = append(c.outputs, c.reply.sending(f))
}

// Status publishes an ephemeral frame, as late as a reply would be.
func (c *Context) Status(st *wirepb.Status) {
	f := &c.a.place.feed
	c.outputs = append(c.outputs, output{run: func() { f.setStatus(st) }})
}

// After calls f when everything that this handler wrote and could have seen is durable; f must not block, nor touch
// the object. For metrics and logs.
func (c *Context) After(f func()) { c.outputs = append(c.outputs, output{run: f}) }

// Start asks for an effect, which begins when this handler's writes are durable.
func (c *Context) Start(e Effect) {
	if c.a.effects[e.Key] != nil {
		panic(fmt.Sprintf("actors: effect %q exists already", e.Key))
	}
	ef := &effect{a: c.a, key: e.Key, run: e.Run}
	ef.ctx, ef.cancel = context.WithCancelCause(c.a.ctx)
	c.starts = append(c.starts, ef)
	c.outputs = append(c.outputs, output{run: ef.start, fail: func(error) { ef.cancel(ErrStopped) }})
}

// Cancel ends the context of an effect. Its Done follows; an effect that has not begun never does.
func (c *Context) Cancel(key string, cause error) {
	c.cancels = append(c.cancels, cancellation{key, cause})
}

// Log returns a reader of the object's durable past.
func (c *Context) Log() Log { return Log{stored: c.a.stored} }

// Log reads what is durable of one object. It may be kept by effects of the activation, and used concurrently.
type Log struct{ stored *storage.Object }

// Turn returns the index record of a turn, nil if there is none.
func (l Log) Turn(turn uint64) (*statepb.Turn, error) {
	t, err := l.stored.Turn(turn)
	if isNotFound(err) {
		return nil, nil
	}
	return t, err
}

// Turns returns up to limit index records of turns above after, in order.
func (l Log) Turns(after uint64, limit int) ([]*statepb.Turn, error) {
	return l.stored.Turns(after, limit)
}

// Read calls f with the entries after < offset <= upTo in order, until it returns false. Offsets above the watermark
// must not be asked for. It reads about chunk bytes at a time.
func (l Log) Read(after, upTo uint64, chunk int, f func(*wirepb.Entry) bool) error {
	for after < upTo {
		frames, err := l.stored.ReadLog(after, upTo, chunk)
		if err != nil {
			return fmt.Errorf("read entries after %d: %w", after, err)
		}
		if len(frames) == 0 {
			return fmt.Errorf("read entries after %d: none up to %d: %w", after, upTo, storage.ErrCorrupt)
		}
		for _, fr := range frames {
			e := new(wirepb.Entry)
			if err := pb.Unmarshal(fr.Data, e); err != nil {
				return fmt.Errorf("entry %d: %w: %w", fr.Offset, storage.ErrCorrupt, err)
			}
			after = fr.Offset
			if !f(e) {
				return nil
			}
		}
	}
	return nil
}
