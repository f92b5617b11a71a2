package session_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-ai/holdfast/actors"
	"github.com/holdfast-ai/holdfast/actors/actorstest"
	"github.com/holdfast-ai/holdfast/actors/session"
	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// TestResumeDuringAStream resumes 200 times at random while an answer streams, two readers at a time: each offset comes
// exactly once to each.
func TestResumeDuringAStream(t *testing.T) {
	const resumes = 200
	turns := make(chan struct{})
	m := &actorstest.Model{Length: 2 * resumes}
	m.OnStep = func(ctx context.Context, _ *inference.Request, step int) error {
		if step%2 == 1 {
			return nil
		}
		select { // two tokens a resume
		case <-turns:
		case <-ctx.Done():
		}
		return context.Cause(ctx)
	}
	h := actorstest.New(t, actorstest.Options{
		Models: m, Kinds: kinds(session.Options{}), Host: func(o *actors.Options) { o.RingBytes = 1000 },
	})
	turn := h.Accept(alice, chat, "m1", "hello")
	var texts [2]string
	var wg sync.WaitGroup
	for i := range texts {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(3, uint64(i)))
			var at uint64
			for n := 0; ; n++ {
				r, err := h.TryAttach(alice, chat, actorstest.After(at))
				if err != nil {
					t.Errorf("attach after %d: %v", at, err)
					return
				}
				if i == 0 && n < resumes {
					turns <- struct{}{}
				}
				for range rng.IntN(4) {
					if _, err := r.Pull(1 + rng.IntN(300)); err != nil {
						t.Errorf("pull after %d: %v", at, err)
					}
					runtime.Gosched()
				}
				if n >= resumes {
					r.UntilTerminal(turn)
				}
				texts[i] += r.Text(turn)
				at = r.Offset()
				r.Close()
				if len(r.Entries) > 0 && r.Entries[len(r.Entries)-1].GetTerminal() != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	r := h.Attach(alice, chat, nil)
	r.UntilTerminal(turn)
	want := actorstest.Answer(r.Attempts(turn)[0].Seed, turn, 2*resumes)
	for i, got := range texts {
		if got != want {
			t.Errorf("reader %d put together %d bytes of %d", i, len(got), len(want))
		}
	}
}

// TestBootWakesInterruptedTurns crashes with many turns under way: the next start wakes them, a few at a time, though
// nobody connects.
func TestBootWakesInterruptedTurns(t *testing.T) {
	const sessions = 20
	m := &actorstest.Model{Length: 4}
	stuck := make(chan struct{})
	m.OnStep = func(ctx context.Context, r *inference.Request, step int) error {
		if step < 2 || len(r.Resume) > 0 {
			return nil
		}
		select {
		case <-stuck:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	h := actorstest.New(t, actorstest.Options{Models: m, Kinds: kinds(session.Options{}), Host: func(o *actors.Options) {
		o.WakeBatch, o.WakeInterval = 5, time.Second
	}})
	for i := range sessions {
		object := fmt.Sprint("default/session/", i)
		h.Attach(alice, object, nil).UntilTokens(h.Accept(alice, object, "m1", "hello"), 2)
	}
	h.Crash()
	h.AwaitMetric("holdfast_session_turns_total", 5)
	h.Clock.Advance(499 * time.Millisecond) // half an interval is the least
	if v := h.Metric("holdfast_actors_activations_total"); v != 5 {
		t.Errorf("%v objects are awake, not 5", v)
	}
	h.Clock.Advance(5 * time.Second)
	h.AwaitMetric("holdfast_session_turns_total", sessions)
	if live, err := h.Store.LiveTurns(0); err != nil || len(live) != 0 {
		t.Errorf("live turns are left: %v %v", live, err)
	}
	for i := range sessions {
		r := h.Attach(alice, fmt.Sprint("default/session/", i), nil)
		if end := r.UntilTerminal(1); end.Outcome != wirepb.Outcome_OUTCOME_COMPLETED || len(r.Tokens(1)) != 4 {
			t.Errorf("session %d: %v", i, end)
		}
	}
	close(stuck)
}

// TestForgottenTurnIsFoundByItsAlarm starts a host that knows nothing of live turns: the system alarm remains.
func TestForgottenTurnIsFoundByItsAlarm(t *testing.T) {
	m := &actorstest.Model{Length: 4}
	m.OnStep = func(ctx context.Context, r *inference.Request, step int) error {
		if step < 2 || len(r.Resume) > 0 {
			return nil
		}
		<-ctx.Done()
		return context.Cause(ctx)
	}
	h := actorstest.New(t, actorstest.Options{Models: m, Kinds: kinds(session.Options{}), Host: func(o *actors.Options) {
		o.WakeBatch = 1
	}})
	a := h.Accept(alice, "default/session/a", "m1", "hello")
	b := h.Accept(alice, "default/session/b", "m1", "hello")
	h.Attach(alice, "default/session/a", nil).UntilTokens(a, 2)
	h.Attach(alice, "default/session/b", nil).UntilTokens(b, 2)
	h.Clock.Step(time.Hour) // the alarms are overdue at the next start, whose second batch never comes
	h.Crash()
	h.AwaitMetric("holdfast_session_turns_total", 2)
}
