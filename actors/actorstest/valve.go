package actorstest

import (
	"sync"
	"time"

	"github.com/holdfast-ai/holdfast/storage"
)

// Valve is an engine whose commits a test can hold back, as a disk does whose fsync does not return, or fail.
type Valve struct {
	storage.Engine

	mu struct {
		sync.Mutex
		changed sync.Cond
		held    bool
		fail    error
		queue   []storage.Commit
		seen    int
	}
}

// NewValve returns an open valve before e.
func NewValve(e storage.Engine) *Valve {
	v := &Valve{Engine: e}
	v.mu.changed.L = &v.mu.Mutex
	return v
}

// Commit implements storage.Engine.
func (v *Valve) Commit(c storage.Commit) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.seen++
	if v.mu.fail != nil && c.Refuse == nil {
		c.Refuse = v.mu.fail
	}
	v.mu.changed.Broadcast()
	if v.mu.held {
		v.mu.queue = append(v.mu.queue, c)
		return
	}
	v.Engine.Commit(c)
}

// Claim implements storage.Engine: it waits for held commits of the object as for others.
func (v *Valve) Claim(id storage.ObjectID, e storage.Epoch) error {
	v.mu.Lock()
	for v.holdsLocked(id) {
		v.mu.changed.Wait()
	}
	v.mu.Unlock()
	return v.Engine.Claim(id, e)
}

func (v *Valve) holdsLocked(id storage.ObjectID) bool {
	for _, c := range v.mu.queue {
		if c.Object == id {
			return true
		}
	}
	return false
}

// Hold keeps commits back from now on.
func (v *Valve) Hold() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.held = true
}

// Flow lets commits through, those held back first.
func (v *Valve) Flow() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.held = false
	for _, c := range v.mu.queue {
		if v.mu.fail != nil && c.Refuse == nil {
			c.Refuse = v.mu.fail
		}
		v.Engine.Commit(c)
	}
	v.mu.queue = nil
	v.mu.changed.Broadcast()
}

// Step lets the oldest commit that is held back through.
func (v *Valve) Step() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.mu.queue) == 0 {
		return
	}
	c := v.mu.queue[0]
	v.mu.queue = append([]storage.Commit(nil), v.mu.queue[1:]...)
	v.Engine.Commit(c)
	v.mu.changed.Broadcast()
}

// Fail refuses commits with err from now on, those held back too; nil ends that.
func (v *Valve) Fail(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.fail = err
}

// AwaitHeld waits until at least n commits are held back.
func (v *Valve) AwaitHeld(n int) {
	v.await("commits to be held back", func() bool { return len(v.mu.queue) >= n })
}

// AwaitCommits waits until there have been n commits since the store was opened, its own not counted.
func (v *Valve) AwaitCommits(n int) {
	v.await("commits", func() bool { return v.mu.seen >= n })
}

func (v *Valve) await(what string, f func() bool) {
	late := time.AfterFunc(Patience, func() { panic("waited too long for " + what) }) // shows all stacks
	defer late.Stop()
	v.mu.Lock()
	defer v.mu.Unlock()
	for !f() {
		v.mu.changed.Wait()
	}
}

// Commits counts the commits so far.
func (v *Valve) Commits() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.seen
}

// forget begins to count anew.
func (v *Valve) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.seen = 0
}
