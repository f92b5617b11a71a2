package pebble

import (
	"fmt"
	"math"
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
// A fixed wait for more commits: more than halves the processor time of many streams, and multiplies the latency of a
// single one. So a group lingers only if the rate at which commits have been arriving promises lingerFrom of them, and
// not at all, or no longer, once every object of the group last completed is back with its next commit: then nobody is
// left to wait for. The first rule keeps few streams from paying; the second those that commit as fast as the disk is.
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
		fences   map[storage.ObjectID]*fence

		arrived  int           // commits since lastCut
		lastCut  time.Time     // when the last group was cut
		rate     float64       // commits a second, averaged over rateSpan
		groups   uint64        // cut so far; the number of the latest
		last     uint64        // number of the group last completed
		absent   int           // its objects that have not committed again
		lingers  bool          // the sequencer waits for more
		complete chan struct{} // closed to end that: absent is 0, or the pipeline closes or fails
		failed   error         // wraps ErrReadOnly; set once
		closing  bool
	}
}

// fence is the epoch of one object. It exists while the epoch is held or commits are pending.
type fence struct {
	epoch   storage.Epoch
	held    bool
	pending int
	group   uint64        // the latest that held a commit of the object; 0 once it is back
	counted uint64        // the latest that it was counted absent from
	drained chan struct{} // closed when pending falls to 0; nil while nobody waits
}

type request struct {
	storage.Commit
	fence *fence
	err   error // decided when it was accepted: it takes its place in the order, but is not applied
}

type group struct {
	number   uint64
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
	p.mu.arrived++
	if f != nil && f.group != 0 && f.group == p.mu.last {
		f.group = 0 // counts as back once
		if p.mu.absent--; p.mu.absent == 0 {
			p.endLingerLocked()
		}
	}
	if len(p.mu.queue) == 1 {
		p.mu.work.Signal()
	}
	if len(p.mu.queue) >= p.env.maxCommits {
		p.endLingerLocked()
	}
}

// fail makes the pipeline refuse everything from now on. The first cause stays.
func (p *pipeline) fail(cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.failed == nil {
		p.mu.failed = fmt.Errorf("%w since a write failed; free space or replace the disk, then start again: %w", storage.ErrReadOnly, cause)
		p.endLingerLocked()
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
	p.endLingerLocked()
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

// rateSpan is over how long the rate of commits is averaged: shorter than between two tokens of one stream, so that
// the last of many streams does not pay for those that have ended.
const rateSpan = 20 * time.Millisecond

// lingerLocked waits for more commits where that is worth it.
func (p *pipeline) lingerLocked() {
	p.measureLocked()
	if p.env.linger <= 0 || p.mu.closing || p.mu.failed != nil || len(p.mu.queue) >= p.env.maxCommits ||
		p.mu.rate*p.env.linger.Seconds() < float64(p.env.lingerFrom) || p.mu.absent == 0 {
		return
	}
	complete, over := make(chan struct{}), make(chan struct{})
	p.mu.lingers, p.mu.complete = true, complete
	p.mu.Unlock()
	timer := p.env.clock.AfterFunc(p.env.linger, func() { close(over) })
	select {
	case <-over:
	case <-complete:
		timer.Stop()
	}
	p.mu.Lock()
	p.mu.lingers, p.mu.complete = false, nil
}

func (p *pipeline) endLingerLocked() {
	if p.mu.lingers {
		p.mu.lingers = false
		close(p.mu.complete)
	}
}

// measureLocked brings the rate up to date. It is exponentially smoothed, so that what lies further back than rateSpan
// hardly counts.
func (p *pipeline) measureLocked() {
	now := p.env.clock.Now()
	elapsed := now.Sub(p.mu.lastCut)
	if elapsed <= 0 {
		return // the clock stands, or was set back: more will be known next time
	}
	weight := 1 - math.Exp(-elapsed.Seconds()/rateSpan.Seconds())
	p.mu.rate += weight * (float64(p.mu.arrived)/elapsed.Seconds() - p.mu.rate)
	p.mu.lastCut, p.mu.arrived = now, 0
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
	p.mu.groups++
	g.number = p.mu.groups
	for _, r := range g.requests {
		if r.fence != nil {
			r.fence.group = g.number
		}
	}
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
		p.expectBack(g)
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

// expectBack counts the objects of g, which may commit again from now on.
func (p *pipeline) expectBack(g *group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.last, p.mu.absent = g.number, 0
	for _, r := range g.requests {
		// An object whose group is a later one has committed again without waiting.
		if f := r.fence; f != nil && f.group == g.number && f.counted != g.number {
			f.counted = g.number
			p.mu.absent++
		}
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
	p.mu.inFlight--
	p.mu.work.Signal()
}
