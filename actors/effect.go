package actors

import (
	"context"
	"runtime/debug"
	"sync"

	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// Effect is work that an object asks for and that starts after the commit of the handler that asked.
type Effect struct {
	// Key names the effect in its Outputs and in Cancel. Only one effect with a key may exist at a time.
	Key string
	// Run does the work on a goroutine of its own. Its context ends with the activation or by Cancel, whose cause
	// it has. It returns soon after that.
	Run func(ctx context.Context, s *Stream) (result any, err error)
}

// Stream is how a running effect speaks to its object. Its methods are safe for concurrent use.
type Stream struct{ e *effect }

// Emit hands item, of about size bytes, to the object; ownership passes. It waits while the buffer is full and
// returns the cause when the effect is cancelled.
func (s *Stream) Emit(item any, size int) error { return s.e.emit(item, size) }

// Status publishes what is true of the effect's turn right now. It never waits; latest wins.
func (s *Stream) Status(st *wirepb.Status) { s.e.publish(st) }

// effect is one Effect of one activation. Between its goroutine and the activation stands a bounded buffer.
type effect struct {
	a      *Activation
	key    string
	run    func(context.Context, *Stream) (any, error)
	ctx    context.Context
	cancel context.CancelCauseFunc

	// Owned by the activation.
	ready bool // in Activation.ready

	mu struct {
		sync.Mutex
		items    []any
		spare    []any // the slice last taken, for reuse
		bytes    int
		room     chan struct{} // closed when the buffer is emptied; nil while nobody waits
		status   *wirepb.Status
		signaled bool // the activation knows that there is something
		done     bool
		over     bool // the Output that says done was taken: the last one
		result   any
		err      error
	}
}

func (e *effect) emit(item any, size int) error {
	o := &e.a.host.o
	for {
		if e.ctx.Err() != nil {
			return context.Cause(e.ctx)
		}
		e.mu.Lock()
		if n := len(e.mu.items); n == 0 || n < o.StreamItems && e.mu.bytes+size <= o.StreamBytes {
			e.mu.items = append(e.mu.items, item)
			e.mu.bytes += size
			signal := e.signalLocked()
			e.mu.Unlock()
			if signal {
				e.a.post(e)
			}
			return nil
		}
		if e.mu.room == nil {
			e.mu.room = make(chan struct{})
		}
		room := e.mu.room
		e.mu.Unlock()
		select {
		case <-room:
		case <-e.ctx.Done():
		}
	}
}

func (e *effect) publish(st *wirepb.Status) {
	e.mu.Lock()
	if e.mu.done {
		e.mu.Unlock()
		return
	}
	e.mu.status = st
	signal := e.signalLocked()
	e.mu.Unlock()
	if signal {
		e.a.post(e)
	}
}

func (e *effect) signalLocked() bool {
	was := e.mu.signaled
	e.mu.signaled = true
	return !was
}

// start runs the effect on a goroutine that the host waits for. An effect that is cancelled already ends at once.
func (e *effect) start() {
	h := e.a.host
	h.metrics.effects.Inc()
	h.effects.Add(1)
	go func() {
		defer h.effects.Done()
		defer h.metrics.effects.Dec()
		e.finish(e.call())
	}()
}

func (e *effect) call() (result any, err error) {
	if e.ctx.Err() != nil {
		return nil, context.Cause(e.ctx)
	}
	defer func() {
		if r := recover(); r != nil {
			e.a.host.metrics.panics.Inc()
			err = &panicError{value: r}
			e.a.log.Error("effect panicked", "effect", e.key, "error", err, "stack", string(debug.Stack()))
		}
	}()
	return e.run(e.ctx, &Stream{e})
}

func (e *effect) finish(result any, err error) {
	e.mu.Lock()
	e.mu.done, e.mu.result, e.mu.err = true, result, err
	signal := e.signalLocked()
	e.mu.Unlock()
	if signal {
		e.a.post(e)
	}
}

// heard takes the status and lets the effect signal again. It reports whether there is an Output to take. The effect may
// end between heard and take, which then takes the end too; the signal that comes for it later finds nothing.
func (e *effect) heard() (st *wirepb.Status, output bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.signaled = false
	st, e.mu.status = e.mu.status, nil
	return st, len(e.mu.items) > 0 || e.mu.done && !e.mu.over
}

// take empties the buffer and lets a waiting Emit go on.
func (e *effect) take() Output {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := Output{Key: e.key, Items: e.mu.items, Done: e.mu.done, Result: e.mu.result, Err: e.mu.err}
	e.mu.items, e.mu.spare = e.mu.spare[:0], nil
	e.mu.bytes = 0
	e.mu.over = e.mu.done
	if e.mu.room != nil {
		close(e.mu.room)
		e.mu.room = nil
	}
	return out
}

// giveBack returns the slice of an Output for reuse.
func (e *effect) giveBack(items []any) {
	clear(items)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.spare = items
}
