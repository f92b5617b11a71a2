package client

import (
	"sync"
	"time"

	"github.com/holdfast-ai/holdfast/internal/clock"
)

// repeat calls f every d until it returns false or stop is called.
func repeat(c clock.Clock, d time.Duration, f func() bool) (stop func()) {
	var r struct {
		mu struct {
			sync.Mutex
			timer   clock.Timer
			stopped bool
		}
	}
	var arm func()
	arm = func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.mu.stopped {
			return
		}
		r.mu.timer = c.AfterFunc(d, func() {
			if f() {
				arm()
			}
		})
	}
	arm()
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.mu.stopped = true
		r.mu.timer.Stop()
	}
}
