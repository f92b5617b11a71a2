package actors

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/holdfast-ai/holdfast/internal/clock"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// Host owns the activations of this node. Its methods are safe for concurrent use. Close waits for every goroutine that
// it started: one for housekeeping, one for each running effect, those of activations.
type Host struct {
	o       Options
	log     *slog.Logger
	kinds   map[string]*Kind
	metrics *metrics
	system  *actor.ActorSystem
	alarms  *alarms

	ctx    context.Context
	cancel context.CancelCauseFunc

	serial   atomic.Uint64 // of activations
	draining atomic.Bool

	pokeAlarms chan struct{}
	pokeSweep  chan struct{}
	pokeLeft   chan struct{} // an activation has ended
	stop       chan struct{} // ends housekeeping
	stopped    sync.WaitGroup
	acts       sync.WaitGroup
	effects    sync.WaitGroup

	mu struct {
		sync.Mutex
		places  map[ID]*place
		active  map[*Activation]struct{}
		timers  map[*hostTimer]struct{}
		started bool
		closed  bool
		running sync.WaitGroup // timers' functions
	}
}

type hostTimer struct{ t clock.Timer }

// NewHost returns a host that serves at once but leaves alarms and interrupted turns alone until Start.
func NewHost(o Options) (*Host, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	h := &Host{
		o:          o,
		log:        o.Logger.With("component", "actors"),
		kinds:      make(map[string]*Kind),
		metrics:    newMetrics(o.Registerer),
		pokeAlarms: make(chan struct{}, 1),
		pokeSweep:  make(chan struct{}, 1),
		pokeLeft:   make(chan struct{}, 1),
		stop:       make(chan struct{}),
	}
	for i := range o.Kinds {
		k := &o.Kinds[i]
		if h.kinds[k.Name] != nil {
			return nil, fmt.Errorf("actors: new host: two kinds are named %q", k.Name)
		}
		h.kinds[k.Name] = k
	}
	h.alarms = newAlarms(h)
	h.ctx, h.cancel = context.WithCancelCause(context.Background())
	h.system = newSystem()
	h.mu.places = make(map[ID]*place)
	h.mu.active = make(map[*Activation]struct{})
	h.mu.timers = make(map[*hostTimer]struct{})
	h.stopped.Add(1)
	go h.housekeeping()
	h.sweepLater()
	return h, nil
}

// newSystem makes protoactor's machinery, silent: what it could say of activations, Activation says itself.
func newSystem() *actor.ActorSystem {
	return actor.NewActorSystem(func(c *actor.Config) {
		c.LoggerFactory = func(*actor.ActorSystem) *slog.Logger { return slog.New(slog.DiscardHandler) }
	})
}

// housekeeping is the one goroutine that reads alarms and sweeps.
func (h *Host) housekeeping() {
	defer h.stopped.Done()
	for {
		select {
		case <-h.stop:
			return
		case <-h.pokeAlarms:
			if h.isStarted() {
				h.alarms.scan()
			}
		case <-h.pokeSweep:
			h.sweep()
		}
	}
}

func (h *Host) poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (h *Host) isDraining() bool { return h.draining.Load() }

func (h *Host) isStarted() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.started && !h.mu.closed && !h.isDraining()
}

// Start wakes the turns that the end of the last process interrupted, a few at a time, and begins to fire alarms.
// It returns when it knows which; the waking goes on behind.
func (h *Host) Start(ctx context.Context) error {
	live, err := h.o.Store.LiveTurns(maxLiveTurns)
	if err != nil {
		return fmt.Errorf("actors: start: read live turns: %w", err)
	}
	var ids []ID
	seen := make(map[ID]bool)
	for _, l := range live {
		if id := ID(l.Address); !seen[id] {
			seen[id] = true
			ids = append(ids, id)
		}
	}
	for i := len(ids) - 1; i > 0; i-- {
		j := int(h.o.Random() % uint64(i+1))
		ids[i], ids[j] = ids[j], ids[i]
	}
	h.mu.Lock()
	h.mu.started = true
	h.mu.Unlock()
	if len(ids) > 0 {
		h.log.Info("waking interrupted turns", "objects", len(ids))
	}
	h.wakeSome(ids)
	h.poke(h.pokeAlarms)
	return ctx.Err()
}

// maxLiveTurns bounds what Start holds in memory. A turn beyond it is woken by its system alarm.
const maxLiveTurns = 1 << 18

// wakeSome wakes the first of ids and comes back for the others.
func (h *Host) wakeSome(ids []ID) {
	n := min(len(ids), h.o.WakeBatch)
	for _, id := range ids[:n] {
		if err := h.send(id, wakeUp{}); err != nil {
			h.log.Warn("waking an object failed", "object", id.String(), "error", err)
		}
	}
	if ids = ids[n:]; len(ids) > 0 {
		h.after(jitter(h.o.WakeInterval, h.o.Random()), func() { h.wakeSome(ids) })
	}
}

// jitter is d, give or take a half.
func jitter(d time.Duration, random uint64) time.Duration {
	return d/2 + time.Duration(random%uint64(d+1))
}

// after calls f, d from now, unless the host closes first. Close waits for f.
func (h *Host) after(d time.Duration, f func()) {
	t := &hostTimer{}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.closed {
		return
	}
	h.mu.timers[t] = struct{}{}
	t.t = h.o.Clock.AfterFunc(d, func() {
		h.mu.Lock()
		_, ok := h.mu.timers[t]
		delete(h.mu.timers, t)
		if ok {
			h.mu.running.Add(1)
		}
		h.mu.Unlock()
		if ok {
			defer h.mu.running.Done()
			f()
		}
	})
}

// acquire returns the place of an address; release gives it back.
func (h *Host) acquire(id ID) (*place, error) {
	kind := h.kinds[id.Kind]
	if kind == nil {
		return nil, proto.Errorf(proto.CodeUnknownKind, "this server has no kind %q", id.Kind)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.closed {
		return nil, coded(errClosing)
	}
	p := h.mu.places[id]
	if p == nil {
		p = &place{host: h, id: id, kind: kind}
		p.feed.maxBytes = h.o.RingBytes
		h.mu.places[id] = p
	}
	p.refs++
	return p, nil
}

func (h *Host) release(p *place) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p.refs--
	if p.refs == 0 {
		delete(h.mu.places, p.id)
	}
}

// send hands an internal item to an object, activating it if need be.
func (h *Host) send(id ID, item any) error {
	p, err := h.acquire(id)
	if err != nil {
		return err
	}
	defer h.release(p)
	return p.deliver(item, true)
}

// newActivation makes one for p that begins when prev, if any, has ended. It holds p.
func (h *Host) newActivation(p *place, prev *Activation) (*Activation, error) {
	a := &Activation{
		host: h, place: p, id: p.id,
		log:     h.log.With("object", p.id.String()),
		done:    make(chan struct{}),
		effects: make(map[string]*effect),
	}
	if prev != nil {
		a.prev = prev.done
	}
	a.mail.maxUser, a.mail.maxControl = h.o.MailboxMessages, h.o.MailboxControls
	a.touch()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.closed {
		return nil, coded(errClosing)
	}
	if n := len(h.mu.active); n >= h.o.MaxActivations {
		h.metrics.refused.WithLabelValues("activations").Inc()
		h.poke(h.pokeSweep)
		return nil, proto.Errorf(proto.CodeOverloaded, "too many objects are active")
	} else if n >= h.o.MaxIdle {
		h.poke(h.pokeSweep)
	}
	a.ctx, a.cancel = context.WithCancelCause(h.ctx)
	name := fmt.Sprintf("%s@%d", p.id, h.serial.Add(1))
	pid, err := h.system.Root.SpawnNamed(actor.PropsFromProducer(func() actor.Actor { return a }), name)
	if err != nil {
		a.cancel(ErrStopped)
		return nil, coded(fmt.Errorf("spawn %s: %w", name, err))
	}
	a.pid = pid
	p.refs++
	h.mu.active[a] = struct{}{}
	h.acts.Add(1)
	h.metrics.activations.Inc()
	return a, nil
}

// left is called by an activation that has ended.
func (h *Host) left(a *Activation) {
	failed := a.stopping != nil && !isQuiet(a.stopping)
	if failed && a.place.kind.Live != nil && a.place.kind.Live(a.durable.GetState()) != 0 {
		wait := backoff(h.o.Restart, maxRestart, a.place.failed()-1)
		id := a.id
		h.after(jitter(wait, h.o.Random()), func() {
			if err := h.send(id, wakeUp{}); err != nil {
				a.log.Warn("waking the object failed", "error", err)
			}
		})
	}
	h.mu.Lock()
	delete(h.mu.active, a)
	h.mu.Unlock()
	h.release(a.place)
	h.metrics.activations.Dec()
	h.acts.Done()
	h.poke(h.pokeLeft)
}

// activations returns the present ones.
func (h *Host) activations() []*Activation {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]*Activation, 0, len(h.mu.active))
	for a := range h.mu.active {
		all = append(all, a)
	}
	return all
}

func (h *Host) sweepLater() {
	h.after(max(h.o.IdleAfter/4, time.Millisecond), func() {
		h.poke(h.pokeSweep)
		h.sweepLater()
	})
}

// sweep asks activations that have been idle for long to end, and the longest idle ones while there are too many.
// Each decides by itself: only it knows whether it is idle.
func (h *Host) sweep() {
	all := h.activations()
	before := h.o.Clock.Now().Add(-h.o.IdleAfter).UnixNano()
	excess := 0
	if len(all) > h.o.MaxIdle {
		slices.SortFunc(all, func(a, b *Activation) int { return int(a.used.Load() - b.used.Load()) })
		excess = len(all) - h.o.MaxIdle + h.o.MaxIdle/10
	}
	for i, a := range all {
		switch {
		case i < excess:
			a.sweep(true)
		case a.used.Load() <= before:
			a.sweep(false)
		}
	}
}

// Dispatch hands a client's Submit or Stop to its object and returns at once. reply is called exactly once, from any
// goroutine, when the answer is durable; it must not block.
func (h *Host) Dispatch(_ context.Context, p proto.Principal, f *wirepb.Frame, fn func(*wirepb.Frame)) {
	r := newReply(f, fn)
	if err := h.dispatch(p, f, r); err != nil {
		r.refuse(err)
	}
}

func (h *Host) dispatch(p proto.Principal, f *wirepb.Frame, r *reply) error {
	id, err := h.admit(p, f.GetObject())
	if err != nil {
		return err
	}
	control := false
	switch f.GetBody().(type) {
	case *wirepb.Frame_Submit:
		if h.isDraining() {
			return coded(errClosing)
		}
	case *wirepb.Frame_Stop:
		control = true
	default:
		return proto.Errorf(proto.CodeInvalidFrame, "objects take Submit and Stop, not %T", f.GetBody())
	}
	pl, err := h.acquire(id)
	if err != nil {
		return err
	}
	defer h.release(pl)
	return pl.deliver(&request{principal: p, ev: Message{Frame: f}, reply: r, control: control}, control)
}

// admit checks an address and that the principal may know it (invariant 7).
func (h *Host) admit(p proto.Principal, object string) (ID, error) {
	id, err := ParseID(object)
	if err != nil {
		return ID{}, err
	}
	if p.Namespace == "" || id.Namespace != p.Namespace {
		return ID{}, proto.Errorf(proto.CodeForbidden, "the object is in another namespace than you")
	}
	return id, nil
}

// Attach opens a cursor on an object. wake is called, from any goroutine, whenever Next may have more after it has
// returned nothing; it must not block. The caller closes the cursor.
func (h *Host) Attach(_ context.Context, p proto.Principal, object string, at *wirepb.Attach, wake func()) (proto.Cursor, error) {
	id, err := h.admit(p, object)
	if err != nil {
		return nil, err
	}
	if h.isDraining() {
		return nil, coded(errClosing)
	}
	pl, err := h.acquire(id)
	if err != nil {
		return nil, err
	}
	if err := pl.look(); err != nil {
		h.release(pl)
		return nil, coded(err)
	}
	c, err := pl.attach(at, wake)
	if err != nil {
		h.release(pl)
		return nil, err
	}
	h.metrics.cursors.Inc()
	return c, nil
}

// Drain refuses new submits and alarms and waits until every object is idle and gone, or ctx is done.
func (h *Host) Drain(ctx context.Context) error {
	h.draining.Store(true)
	h.alarms.stop()
	for {
		all := h.activations()
		if len(all) == 0 {
			return nil
		}
		for _, a := range all {
			a.sweep(true)
		}
		select {
		case <-h.pokeLeft:
		case <-ctx.Done():
			return fmt.Errorf("actors: drain: %d objects are still at work: %w", len(all), context.Cause(ctx))
		}
	}
}

// Close ends every activation once what it has accepted is durable, cancels what runs, and waits. Turns that run go on
// at the next start. The store must be open still; cursors may be closed later.
func (h *Host) Close() error {
	h.draining.Store(true)
	h.mu.Lock()
	if h.mu.closed {
		h.mu.Unlock()
		return nil
	}
	h.mu.closed = true
	for t := range h.mu.timers {
		t.t.Stop()
	}
	clear(h.mu.timers)
	h.mu.Unlock()
	h.alarms.stop()
	close(h.stop)
	h.stopped.Wait()
	h.mu.running.Wait()
	for _, a := range h.activations() {
		a.post(stopNow{errClosing})
	}
	h.acts.Wait()
	h.cancel(errClosing)
	h.effects.Wait()
	h.system.Shutdown()
	return nil
}
