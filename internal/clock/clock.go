// Package clock is time as an argument: Real for programs, Fake for tests.
package clock

import (
	"sort"
	"sync"
	"time"
)

// Clock tells the time and schedules. Implementations are safe for concurrent use.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f once, d from now, on a goroutine of its own.
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is a pending AfterFunc.
type Timer interface {
	// Stop prevents the call if it has not started, and reports whether it did.
	Stop() bool
}

// Real is the machine's clock.
type Real struct{}

// Now returns the current time.
func (Real) Now() time.Time { return time.Now() }

// AfterFunc is time.AfterFunc.
func (Real) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

// Fake is a clock that moves only when told to. The zero value starts at the zero time; use NewFake.
type Fake struct {
	mu struct {
		sync.Mutex
		now    time.Time
		timers []*fakeTimer
		seq    int
	}
}

type fakeTimer struct {
	c    *Fake
	at   time.Time
	seq  int
	f    func()
	done bool
}

// NewFake returns a Fake that shows t.
func NewFake(t time.Time) *Fake {
	c := &Fake{}
	c.mu.now = t
	return c
}

// Now returns the time last set.
func (c *Fake) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.now
}

// AfterFunc schedules f for the moment when Advance has moved the clock by d. A d of 0 or less is due at the
// next Advance, even of 0.
func (c *Fake) AfterFunc(d time.Duration, f func()) Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.seq++
	t := &fakeTimer{c: c, at: c.mu.now.Add(d), seq: c.mu.seq, f: f}
	c.mu.timers = append(c.mu.timers, t)
	return t
}

func (t *fakeTimer) Stop() bool {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	was := !t.done
	t.done = true
	return was
}

// Advance moves the clock by d and calls, in order of their time and on this goroutine, what became due,
// including what those calls schedule within d.
func (c *Fake) Advance(d time.Duration) {
	c.mu.Lock()
	end := c.mu.now.Add(d)
	for {
		live := c.mu.timers[:0]
		for _, t := range c.mu.timers {
			if !t.done {
				live = append(live, t)
			}
		}
		c.mu.timers = live
		sort.SliceStable(live, func(i, j int) bool {
			if live[i].at.Equal(live[j].at) {
				return live[i].seq < live[j].seq
			}
			return live[i].at.Before(live[j].at)
		})
		if len(live) == 0 || live[0].at.After(end) {
			break
		}
		t := live[0]
		t.done = true
		if t.at.After(c.mu.now) {
			c.mu.now = t.at
		}
		c.mu.Unlock()
		t.f()
		c.mu.Lock()
	}
	if end.After(c.mu.now) {
		c.mu.now = end
	}
	c.mu.Unlock()
}

// Step sets the clock forward or back without running timers, as an operator's clock step does.
func (c *Fake) Step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.now = c.mu.now.Add(d)
}
