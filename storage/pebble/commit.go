package pebble

import (
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-ai/holdfast/internal/clock"
	"github.com/holdfast-ai/holdfast/internal/invariants"
	"github.com/holdfast-ai/holdfast/storage"
)

// commitEnv is what a pipeline needs of a database. It is this small so that the protocol is tested without one.
type commitEnv struct {
	// apply writes the commits as one atomic batch and starts, but does not await, its sync. Calls are serial.
	apply func([]*request) (applied, error)
	// observe is told of every group that has completed. Calls are serial.
	observe func(commits int, waited time.Duration, err error)
	clock   clock.Clock

	maxBytes    int
	maxCommits  int
	maxInFlight int
	linger      time.Duration // not positive: never
	lingerFrom  int
}

// applied is a batch that is written and not yet known to be durable. Exactly one of publish and abandon ends it.
type applied interface {
	sync() error // waits until the batch is durable, or known not to be
	publish()    // lets views see it and all before it
	abandon()    // it must never be seen
}

// pipeline turns commits of many objects into few batches of the database.
//
// # Protocol
//
//	Commit     under mu: compare the epoch, append to the queue
//	sequencer  cut a group off the queue, apply it as one batch, hand it on
//	completer  await the group's sync, publish it, call each Done, under mu: release its objects
//
// The sequencer and the completer are one goroutine each. Up to maxInFlight groups are between them: while the WAL of
// one is being synced, the next is being written, so that the disk never waits for us.
//
// # Invariants
//
//	P1  Queue order is the order of batches, of publication and of Done. So commits of an object keep their order, and
//	    what is visible is always a prefix of what was accepted.
//	P2  An epoch is compared and changed under mu only, where queue order is decided. A commit that got in is ordered
//	    before the Claim that fences its epoch, and that Claim waits for it; none gets in after.
//	P3  Once failed is set, nothing is applied, published or acknowledged. The first group that fails takes with it
//	    all that are in flight, though a later one may claim to be synced: its predecessor is not.
//	P4  A group is published before Done, and Done returns before the commit stops counting as pending. So who learns of a
//	    commit, by Done or by a Claim that waited, finds it in the next view.
//
// # Why not the obvious ways
//
// A goroutine a commit, each in Batch.Commit(Sync): Pebble groups these into few syncs by itself. But it wakes every
// goroutine twice, allocates a batch for each, and leaves no place where an epoch can be compared in commit order; with
// 64 writers it costs more than half of the throughput (see the benchmark).
//
// One goroutine that commits what has gathered and then waits: simple, but the disk is idle while a batch is built, and
// the processor while it is synced.
//
// A fixed wait for more commits: halves the processor time of many streams, and doubles the latency of a single one.
// So a group lingers only while lingerFrom commits are under way, and only as long as more keep coming.
//
// A watermark per object, compared by every reader: has to be kept for the values, indexes and names too, and by every
// reader that will ever be written. Here views are snapshots taken between batches and swapped when a sync is done, so
// that what is not durable cannot be read at all.
type pipeline struct {
	env    commitEnv
	groups chan *group // sequencer to completer; capacity maxInFlight
	done   chan struct{}

	mu struct {
		sync.Mutex
		work     sync.Cond // signaled when the sequencer should look again
		queue    []*request
		inFlight int // groups
		pending  int // commits accepted and not completed
		arrived  uint64
		fences   map[storage.ObjectID]*fence
		failed   error // wraps ErrReadOnly; set once
		closing  bool
	}
}

// fence is the epoch of one object. It exists while the epoch is held or commits are pending.
type fence struct {
	epoch   storage.Epoch
	held    bool
	pending int
	drained chan struct{} // closed when pending falls to 0; nil while nobody waits
}

type request struct {
	storage.Commit
	fence *fence
	err   error // decided when it was accepted: it takes its place in the order, but is not applied
}

type group struct {
	requests []*request
	applied  applied // nil if there was nothing to write
	err      error
	began    time.Time
}

func newPipeline(env commitEnv) *pipeline {
	p := &pipeline{
		env:    env,
		groups: make(chan *group, env.maxInFlight),
		done:   make(chan struct{}),
	}
	p.mu.work.L = &p.mu.Mutex
	p.mu.fences = make(map[storage.ObjectID]*fence)
	return p
}

// start begins the work. close ends it and waits for both goroutines.
func (p *pipeline) start() {
	go p.sequence()
	go p.complete()
}

// claim implements Engine.Claim.
func (p *pipeline) claim(id storage.ObjectID, e storage.Epoch) error {
	p.mu.Lock()
	if p.mu.closing {
		p.mu.Unlock()
		return storage.ErrClosed
	}
	f := p.mu.fences[id]
	if f == nil {
		p.mu.fences[id] = &fence{epoch: e, held: true}
		p.mu.Unlock()
		return nil
	}
	if f.held && !f.epoch.Less(e) {
		err := fmt.Errorf("epoch %v is not newer than %v: %w", e, f.epoch, storage.ErrFenced)
		p.mu.Unlock()
		return err
	}
	f.epoch, f.held = e, true
	var drained chan struct{}
	if f.pending > 0 {
		if f.drained == nil {
			f.drained = make(chan struct{})
		}
		drained = f.drained
	}
	p.mu.Unlock()
	if drained != nil {
		<-drained
	}
	return nil
}

// release implements Engine.Release.
func (p *pipeline) release(id storage.ObjectID, e storage.Epoch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.mu.fences[id]; f != nil && f.epoch == e {
		f.held = false
		p.dropFenceLocked(id, f)
	}
}

// dropFenceLocked forgets a fence that nothing depends on. No stale commit can pass without it: a commit needs a fence
// that has its epoch, and claimed epochs only grow.
func (p *pipeline) dropFenceLocked(id storage.ObjectID, f *fence) {
	if !f.held && f.pending == 0 && p.mu.fences[id] == f {
		delete(p.mu.fences, id)
	}
}

// commit implements Engine.Commit.
func (p *pipeline) commit(c storage.Commit) {
	r := &request{Commit: c}
	p.mu.Lock()
	if p.mu.closing {
		// The completer may be gone, so that this is the one case with a goroutine of its own. It ends with Done.
		p.mu.Unlock()
		go c.Done(storage.ErrClosed)
		return
	}
	defer p.mu.Unlock()
	f := p.mu.fences[c.Object]
	switch {
	case f == nil || !f.held || f.epoch != c.Epoch:
		r.err = fmt.Errorf("commit with epoch %v: %w", c.Epoch, storage.ErrFenced)
	case c.Refuse != nil:
		r.err = c.Refuse
	case p.mu.failed != nil:
		r.err = p.mu.failed
	}
	if f != nil {
		r.fence = f
		f.pending++
	}
	p.mu.queue = append(p.mu.queue, r)
	p.mu.pending++
	p.mu.arrived++
	if len(p.mu.queue) == 1 {
		p.mu.work.Signal()
	}
}

// fail makes the pipeline refuse everything from now on. The first cause stays.
func (p *pipeline) fail(cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.failed == nil {
		p.mu.failed = fmt.Errorf("%w since a write failed; free space or replace the disk, then start again: %w", storage.ErrReadOnly, cause)
	}
}

func (p *pipeline) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.failed
}

// close refuses further commits and returns when those accepted have been completed.
func (p *pipeline) close() {
	p.mu.Lock()
	p.mu.closing = true
	p.mu.work.Signal()
	p.mu.Unlock()
	<-p.done
}

// sequence is the sequencer.
func (p *pipeline) sequence() {
	defer close(p.groups)
	for {
		g := p.next()
		if g == nil {
			return
		}
		p.write(g)
		p.groups <- g
	}
}

// next waits for work and cuts a group. It returns nil when the pipeline is closing and empty.
func (p *pipeline) next() *group {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.mu.queue) == 0 || p.mu.inFlight >= p.env.maxInFlight {
		if len(p.mu.queue) == 0 && p.mu.closing {
			return nil
		}
		p.mu.work.Wait()
	}
	p.lingerLocked()
	return p.cutLocked()
}

// lingerLocked waits for more commits while many are under way. It looks after each quarter of the linger, and ends
// with the first in which nothing came: then all who commit are waiting already.
func (p *pipeline) lingerLocked() {
	const slices = 4
	for range slices {
		if p.env.linger <= 0 || p.mu.closing || p.mu.failed != nil ||
			p.mu.pending < p.env.lingerFrom || len(p.mu.queue) >= p.env.maxCommits {
			return
		}
		arrived := p.mu.arrived
		p.mu.Unlock()
		tick := make(chan struct{})
		p.env.clock.AfterFunc(p.env.linger/slices, func() { close(tick) })
		<-tick
		p.mu.Lock()
		if p.mu.arrived == arrived {
			return
		}
	}
}

func (p *pipeline) cutLocked() *group {
	n, size := 0, 0
	for n < len(p.mu.queue) && n < p.env.maxCommits {
		size += p.mu.queue[n].Writes.Size()
		if n > 0 && size > p.env.maxBytes {
			break
		}
		n++
	}
	g := &group{requests: append([]*request(nil), p.mu.queue[:n]...)}
	rest := copy(p.mu.queue, p.mu.queue[n:])
	clear(p.mu.queue[rest:])
	p.mu.queue = p.mu.queue[:rest]
	p.mu.inFlight++
	g.err = p.mu.failed
	return g
}

// write applies what of g is to be applied.
func (p *pipeline) write(g *group) {
	g.began = p.env.clock.Now()
	if g.err != nil {
		return
	}
	todo := make([]*request, 0, len(g.requests))
	for _, r := range g.requests {
		if r.err == nil && r.Writes.Len() > 0 {
			todo = append(todo, r)
		}
	}
	if len(todo) == 0 {
		return
	}
	if g.applied, g.err = p.env.apply(todo); g.err != nil {
		p.fail(g.err)
		g.err = p.failure()
	}
}

// complete is the completer.
func (p *pipeline) complete() {
	defer close(p.done)
	for g := range p.groups {
		p.settle(g)
		n := 0
		for _, r := range g.requests {
			err := r.err
			if err == nil {
				err = g.err
				n++
			}
			r.Done(err)
		}
		p.env.observe(n, p.env.clock.Now().Sub(g.began), g.err)
		p.finished(g)
	}
}

// settle decides the fate of g and, if it is durable, publishes it.
func (p *pipeline) settle(g *group) {
	if g.applied != nil {
		if err := g.applied.sync(); err != nil {
			p.fail(err)
		}
	}
	if failed := p.failure(); failed != nil { // P3
		if g.applied != nil {
			g.applied.abandon()
		}
		g.err = failed
		return
	}
	if g.applied != nil {
		g.applied.publish()
	}
}

func (p *pipeline) finished(g *group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range g.requests {
		f := r.fence
		if f == nil {
			continue
		}
		f.pending--
		if invariants.Enabled && f.pending < 0 {
			panic("storage: a commit completed twice")
		}
		if f.pending > 0 {
			continue
		}
		if f.drained != nil {
			close(f.drained)
			f.drained = nil
		}
		p.dropFenceLocked(r.Object, f)
	}
	p.mu.pending -= len(g.requests)
	p.mu.inFlight--
	p.mu.work.Signal()
}
