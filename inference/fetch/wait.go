package fetch

import (
	"context"
	"path/filepath"
	"time"

	"github.com/holdfast-ai/holdfast/internal/clock"
)

// lockPoll is how often a held lock is tried again.
const lockPoll = 200 * time.Millisecond

// lock takes the model's lock, waiting for another pull to end.
func (p *pull) lock(ctx context.Context) (unlock func(), err error) {
	name := filepath.Join(p.dir, ".lock")
	for told := false; ; {
		unlock, held, err := tryLock(name)
		if err != nil || !held {
			return unlock, err
		}
		if !told {
			told = true
			p.o.Logger.Info("another pull of the model is under way", "model", p.m.Name, "lock", name)
			p.o.Progress(Progress{Stage: Waiting, Source: name})
		}
		if err := sleep(ctx, p.o.Clock, lockPoll); err != nil {
			return nil, err
		}
	}
}

// sleep returns after d, or early with the cause when ctx ends.
func sleep(ctx context.Context, c clock.Clock, d time.Duration) error {
	woken := make(chan struct{})
	timer := c.AfterFunc(d, func() { close(woken) })
	select {
	case <-woken:
		return nil
	case <-ctx.Done():
		timer.Stop()
		return context.Cause(ctx)
	}
}
