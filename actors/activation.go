package actors

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/holdfast-ai/holdfast/internal/invariants"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/statepb"
	"github.com/holdfast-ai/holdfast/storage"
)

// Activation is an object's life in memory: its mailbox, its behaviour, its write-sets on the way to disk. One
// goroutine at a time runs it, so that its fields need no lock. What holds between two items of its mailbox:
//
//  1. inflight is the only commit of the object that storage has and has not answered.
//  2. pending is nil or not empty, and inflight is then not nil.
//  3. next is one above the last offset of storage, inflight and pending together.
//  4. Once stopping, no handler runs; the activation ends when 1 and 2 have emptied.
type Activation struct {
	host  *Host
	place *place
	id    ID
	log   *slog.Logger
	pid   *actor.PID
	prev  <-chan struct{} // closed when the activation before this one has ended; nil if there is none
	done  chan struct{}   // closed at the end
	mail  mailbox
	used  atomic.Int64 // UnixNano of the last event, by the host's clock
	swept atomic.Bool  // a sweep waits in the mailbox
	force atomic.Bool  // and is not to ask for how long it has been idle

	ctx    context.Context // of effects
	cancel context.CancelCauseFunc

	stored   *storage.Object
	object   Object
	meta     *statepb.Meta // with everything merged; nil until the object exists
	durable  *statepb.Meta // as on disk
	alarms   map[string]*statepb.Alarm
	next     uint64
	pending  *group
	inflight *group
	effects  map[string]*effect
	ready    []*effect // have an Output to take
	stopping error     // why, once it is
	ended    bool
}

// Items of the control lane beside *request and *effect.
type (
	wakeUp     struct{}
	sweep      struct{}
	stopNow    struct{ cause error }
	commitDone struct{ err error }
	firedAlarm struct {
		key  string
		due  time.Time
		done func(error) // exactly once
	}
)

// wake is the one message that protoactor carries: look into the mailbox.
type wake struct{}

// Receive implements actor.Actor.
func (a *Activation) Receive(c actor.Context) {
	if _, ok := c.Message().(*wake); !ok || a.ended {
		return
	}
	defer a.contain(c)
	for !a.ended {
		if a.object == nil && a.stopping == nil {
			a.load()
			continue
		}
		user := a.pending == nil || a.pending.size < a.host.o.PendingBytes
		item, ok := a.mail.next(user)
		if !ok {
			return
		}
		a.handle(item)
		if invariants.Enabled {
			a.check()
		}
	}
	c.Stop(c.Self())
}

// contain ends an activation whose host code panicked: nothing is known of its state, so nothing of it may get out.
// Where invariants are checked, the process ends instead.
func (a *Activation) contain(c actor.Context) {
	r := recover()
	if r == nil {
		return
	}
	a.host.metrics.panics.Inc()
	a.log.Error("activation panicked", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
	if invariants.Enabled {
		go panic(r) // on a goroutine of its own: protoactor recovers those of actors
	}
	cause := &panicError{value: r}
	for _, g := range []*group{a.inflight, a.pending} {
		if g != nil {
			g.fail(commitFailure(cause))
		}
	}
	a.inflight, a.pending = nil, nil
	a.stop(cause)
	if !a.ended {
		a.end()
	}
	c.Stop(c.Self())
}

// schedule makes Receive run. Called by whom the mailbox told to.
func (a *Activation) schedule() { a.host.system.Root.Send(a.pid, theWake) }

var theWake = &wake{}

// post adds an item that belongs to the activation itself.
func (a *Activation) post(item any) {
	if a.mail.pushInternal(item) {
		a.schedule()
	}
}

// load claims the object and lets the behaviour see what it holds.
func (a *Activation) load() {
	if a.prev != nil {
		<-a.prev
	}
	o, err := a.place.claim()
	if err != nil {
		a.log.Error("activation failed", "error", err)
		a.object = failedObject{}
		a.stop(err)
		a.flush()
		return
	}
	a.stored = o
	a.meta = o.Meta()
	a.durable = a.meta
	a.next = o.LastOffset() + 1
	a.object = a.place.kind.New(a.id)
	a.host.metrics.activated.Inc()
	a.log.Debug("activated", "epoch", o.Epoch(), "offset", o.LastOffset())
	if err := a.run(proto.Principal{}, Activate{}, nil); err != nil && a.stopping == nil {
		a.stop(fmt.Errorf("activate: %w", err))
	}
	a.flush()
}

// failedObject stands for the behaviour of an activation that could not be loaded.
type failedObject struct{}

func (failedObject) Handle(*Context, Event) error { return errors.New("not loaded") }

func (a *Activation) handle(item any) {
	switch m := item.(type) {
	case *request:
		a.touch()
		a.message(m)
	case *effect:
		a.heard(m)
	case commitDone:
		a.committed(m.err)
	case *firedAlarm:
		a.touch()
		a.alarm(m)
	case wakeUp:
		a.touch()
	case sweep:
		a.swept.Store(false)
		a.rest(a.force.Swap(false))
	case stopNow:
		a.stop(m.cause)
	}
	if a.stopping == nil {
		a.drain()
	}
	a.flush()
}

func (a *Activation) touch() { a.used.Store(a.host.o.Clock.Now().UnixNano()) }

func (a *Activation) message(m *request) {
	if err := a.run(m.principal, m.ev, m.reply); err != nil {
		var refusal *proto.Error
		if errors.As(err, &refusal) {
			a.gate(m.reply.refusing(refusal))
			return
		}
		a.stop(err) // first: what the client sends next is for the next activation
		a.gate(m.reply.refusing(coded(err)))
	}
}

// run calls the behaviour with one event and merges what it did if it returns nil.
func (a *Activation) run(p proto.Principal, ev Event, r *reply) error {
	c := &Context{a: a, principal: p, reply: r}
	c.writes.first = a.next
	err := a.call(c, ev)
	if err == nil && r != nil && !c.replied {
		err = fmt.Errorf("kind %q gave no reply to a message", a.place.kind.Name)
	}
	c.a = nil
	if err != nil {
		for _, e := range c.starts {
			e.cancel(ErrStopped)
		}
		return err
	}
	a.merge(c)
	return nil
}

// call contains panics.
func (a *Activation) call(c *Context, ev Event) (err error) {
	defer func() {
		if r := recover(); r != nil {
			a.host.metrics.panics.Inc()
			err = &panicError{value: r}
			a.log.Error("handler panicked", "event", fmt.Sprintf("%T", ev), "error", err, "stack", string(debug.Stack()))
		}
	}()
	return a.object.Handle(c, ev)
}

// heard notes what an effect has signaled. Its output waits for drain.
func (a *Activation) heard(e *effect) {
	if a.stopping != nil {
		return
	}
	st, output := e.heard()
	if st != nil {
		a.place.feed.setStatus(st)
	}
	if output && !e.ready {
		e.ready = true
		a.ready = append(a.ready, e)
	}
}

// drain handles the outputs of effects, but only while no commit is in flight: meanwhile they gather, so that one log
// record holds what came during the commit before.
func (a *Activation) drain() {
	if a.inflight != nil {
		return
	}
	for len(a.ready) > 0 && a.stopping == nil {
		e := a.ready[0]
		a.ready = a.ready[1:]
		e.ready = false
		out := e.take()
		a.touch()
		if out.Done {
			e.cancel(nil)
			if a.effects[e.key] == e {
				delete(a.effects, e.key)
			}
		}
		if err := a.run(proto.Principal{}, out, nil); err != nil {
			a.stop(fmt.Errorf("output of effect %q: %w", e.key, err))
			return
		}
		e.giveBack(out.Items)
	}
	if len(a.ready) == 0 {
		a.ready = nil
	}
}

// sweep asks the activation to end if it is idle.
func (a *Activation) sweep(force bool) {
	if force {
		a.force.Store(true)
	}
	if !a.swept.Swap(true) {
		a.post(sweep{})
	}
}

// idle reports whether dropping the activation would lose nothing but time.
func (a *Activation) idle() bool {
	return a.stopping == nil && a.pending == nil && a.inflight == nil && len(a.effects) == 0
}

// rest ends the activation if it is idle, and has been for long unless forced.
func (a *Activation) rest(force bool) {
	if !a.idle() {
		return
	}
	if !force && a.host.o.Clock.Now().UnixNano()-a.used.Load() < int64(a.host.o.IdleAfter) {
		return
	}
	if a.mail.sealIfEmpty() {
		a.stopping = errIdle
		a.end()
	}
}

// stop lets no handler run any more and ends the activation once what earlier handlers wrote is durable. What waits in
// the mailbox goes to the next activation. Effects are cancelled; their turns go on there too.
func (a *Activation) stop(cause error) {
	if a.stopping != nil {
		return
	}
	a.stopping = cause
	if !errors.Is(cause, errClosing) {
		a.log.Warn("activation ends", "cause", cause)
	}
	a.cancel(fmt.Errorf("%w: %w", ErrStopped, cause))
	for _, item := range a.mail.seal() {
		err := cause
		if a.stored != nil && !errors.Is(cause, errClosing) {
			m, client := item.(*request)
			err = a.place.deliver(item, !client || m.control)
		}
		if err != nil {
			refuse(item, err)
		}
	}
}

// refuse answers an item of a mailbox that no handler has seen.
func refuse(item any, cause error) {
	switch m := item.(type) {
	case *request:
		m.reply.refuse(cause)
	case *firedAlarm:
		m.done(cause)
	}
}

// end is the last thing that an activation does.
func (a *Activation) end() {
	a.ended = true
	a.cancel(ErrStopped)
	a.mail.close()
	a.place.feed.forget()
	if a.stored != nil {
		a.stored.Release()
	}
	close(a.done)
	a.place.left(a)
	a.host.left(a)
}

// check verifies the invariants of Activation.
func (a *Activation) check() {
	switch {
	case a.pending != nil && a.inflight == nil && !a.ended:
		panic("actors: writes wait although no commit is in flight")
	case a.pending != nil && a.pending.empty():
		panic("actors: an empty commit waits")
	case a.stopping != nil && a.inflight == nil && !a.ended:
		panic("actors: a stopping activation has nothing to wait for")
	}
	if g := a.pending; g != nil && len(g.frames) > 0 && g.first+uint64(len(g.frames)) != a.next {
		panic("actors: offsets of the next commit do not end where the next entry begins")
	}
}
