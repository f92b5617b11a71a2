package session_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-ai/holdfast/actors"
	"github.com/holdfast-ai/holdfast/actors/actorstest"
	"github.com/holdfast-ai/holdfast/actors/session"
	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/storage"
)

func TestCrashInMidAnswerIsContinuedExactly(t *testing.T) {
	p := pauseAt(10)
	m := &actorstest.Model{Length: 25, OnStep: p.step}
	h := newHarness(t, m, session.Options{})
	turn := h.Accept(alice, chat, "m1", "hello")
	next := h.Accept(bob, chat, "m2", "and then?")
	r := h.Attach(alice, chat, nil)
	r.UntilTokens(turn, 10)
	<-p.reached
	seen := r.Offset()
	m.OnStep = nil
	h.Crash()
	after := h.Attach(alice, chat, actorstest.After(seen))
	end := after.UntilTerminal(turn)
	after.UntilTerminal(next)
	all := h.Attach(bob, chat, nil)
	all.UntilTerminal(next)
	expect(t, all, "1 user m1", "1 attempt 1 from 0", "1 chunk", "1 attempt 2 from 10", "1 chunk",
		"1 completed length", "2 user m2", "2 attempt 1 from 0", "2 chunk", "2 completed length")
	seed := all.Attempts(turn)[0].Seed
	if got, want := all.Text(turn), actorstest.Answer(seed, turn, 25); got != want {
		t.Errorf("the answer is\n%q, want\n%q", got, want)
	}
	if end.Usage.CompletionTokens != 25 {
		t.Errorf("usage %v", end.Usage)
	}
	if n := len(m.Plans()); n != 2 {
		t.Errorf("%d plans were made: a continued turn needs none", n)
	}
}

func TestCrashOfARemoteModelEndsItsTurn(t *testing.T) {
	p := pauseAt(10)
	m := &actorstest.Model{Length: 25, OnStep: p.step}
	h := newHarness(t, m.Remote(), session.Options{})
	turn := h.Accept(alice, chat, "m1", "hello")
	next := h.Accept(alice, chat, "m2", "and then?")
	r := h.Attach(alice, chat, nil)
	r.UntilTokens(turn, 10)
	<-p.reached
	m.OnStep = nil
	h.Crash()
	r = h.Attach(alice, chat, nil)
	r.UntilTerminal(next)
	expect(t, r, "1 user m1", "1 attempt 1 from 0", "1 chunk", "1 failed interrupted",
		"2 user m2", "2 attempt 1 from 0", "2 chunk", "2 completed length")
	if n := len(r.Tokens(turn)); n != 10 {
		t.Errorf("%d tokens were kept", n)
	}
	if runs := m.Runs(); len(runs) != 2 {
		t.Errorf("the model ran %d times", len(runs))
	}
}

func TestCrashLoopsAreCapped(t *testing.T) {
	for _, c := range []struct {
		name    string
		inPlan  bool
		planner bool
		log     []string
	}{
		{"in the plan", true, true, []string{"1 user m1", "1 failed attempts_exhausted"}},
		{"in the run", false, true, []string{"1 user m1", "1 attempt 1 from 0", "1 chunk",
			"1 attempt 2 from 2", "1 attempt 3 from 2", "1 failed attempts_exhausted"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var h *actorstest.Harness
			reached := make(chan struct{}, 8)
			fatal := func(ctx context.Context, r *inference.Request) error { // stands for what kills the process
				if r.Turn != 1 {
					return nil
				}
				reached <- struct{}{}
				<-ctx.Done()
				return context.Cause(ctx)
			}
			m := &actorstest.Model{Length: 4}
			if c.inPlan {
				m.OnPlan = fatal
			} else {
				m.OnStep = func(ctx context.Context, r *inference.Request, step int) error {
					if step == 2 {
						return fatal(ctx, r)
					}
					return nil
				}
			}
			h = newHarness(t, m, session.Options{})
			h.Accept(alice, chat, "m1", "poison")
			second := h.Accept(alice, chat, "m2", "harmless")
			if !c.inPlan {
				h.Attach(alice, chat, nil).UntilTokens(1, 2)
			}
			for range 3 {
				<-reached
				h.Crash()
			}
			r := h.Attach(alice, chat, nil)
			r.UntilTerminal(second)
			expect(t, r, append(c.log, "2 user m2", "2 attempt 1 from 0", "2 chunk", "2 completed length")...)
			if !parked(t, h, chat, 1) || parked(t, h, chat, second) {
				t.Error("the poisonous turn is to be parked, the other one not")
			}
			live, err := h.Store.LiveTurns(0)
			if err != nil || len(live) != 0 {
				t.Errorf("live turns are left: %v %v", live, err)
			}
			if due, ok, err := h.Store.NextAlarm(); !ok || err != nil || due.Sub(h.Clock.Now()) < 7*24*time.Hour {
				t.Errorf("the only alarm left is to be the one that forgets message ids, not %v %v %v", due, ok, err)
			}
		})
	}
}

func parked(t *testing.T, h *actorstest.Harness, object string, turn uint64) bool {
	t.Helper()
	id, err := actors.ParseID(object)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Host.Close(); err != nil { // so that the store may be asked
		t.Fatal(err)
	}
	o, err := h.Store.Activate(storage.Address(id))
	if err != nil {
		t.Fatal(err)
	}
	defer o.Release()
	rec, err := o.Turn(turn)
	if err != nil {
		t.Fatal(err)
	}
	return rec.Parked
}

// TestTornByPowerLoss crashes at random moments, with a random share of what was not synced, until the turns have
// ended. Whatever any reader has ever seen must stay, and every answer be the one that its seed determines.
func TestTornByPowerLoss(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 11))
	for round := range 6 {
		var budget atomic.Int64 // steps until the next crash
		m := &actorstest.Model{Length: 60}
		m.OnStep = func(ctx context.Context, _ *inference.Request, _ int) error {
			if budget.Add(-1) >= 0 {
				return nil
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}
		h := newHarness(t, m, session.Options{MaxAttempts: 1000})
		budget.Store(int64(rng.IntN(30)))
		turns := map[string][]uint64{}
		objects := []string{"default/session/a", "default/session/b", "default/session/c"}
		for i := range 2 {
			for _, o := range objects {
				turns[o] = append(turns[o], h.Accept(alice, o, fmt.Sprint("m", i), "hello"))
			}
		}
		for crash := range 8 {
			r := h.Attach(alice, objects[crash%3], nil)
			for range rng.IntN(40) {
				r.Pull(1 + rng.IntN(200))
				runtime.Gosched()
			}
			h.CrashWith(rng.IntN(101), rng)
			budget.Store(int64(rng.IntN(60)))
		}
		budget.Store(1 << 40)
		h.Crash()
		for _, o := range objects {
			r := h.Attach(alice, o, nil)
			for _, turn := range turns[o] {
				r.UntilTerminal(turn)
				seed := r.Attempts(turn)[0].Seed
				if got, want := r.Text(turn), actorstest.Answer(seed, turn, 60); got != want {
					t.Errorf("round %d, %s: turn %d says\n%q, want\n%q", round, o, turn, got, want)
				}
			}
			ends := 0
			for _, e := range r.Entries {
				if e.GetTerminal() != nil {
					ends++
				}
			}
			if ends != len(turns[o]) {
				t.Errorf("round %d, %s: %d terminal entries", round, o, ends)
			}
		}
	}
}

func TestCloseLeavesTurnsForTheNextStart(t *testing.T) {
	p := pauseAt(5)
	m := &actorstest.Model{Length: 9, OnStep: p.step}
	h := newHarness(t, m, session.Options{})
	turn := h.Accept(alice, chat, "m1", "hello")
	h.Attach(alice, chat, nil).UntilTokens(turn, 5)
	<-p.reached
	m.OnStep = nil
	h.Restart()
	r := h.Attach(alice, chat, nil)
	r.UntilTerminal(turn)
	expect(t, r, "1 user m1", "1 attempt 1 from 0", "1 chunk", "1 attempt 2 from 5", "1 chunk", "1 completed length")
}

func TestUnloadedModelIsTriedAgain(t *testing.T) {
	var failures atomic.Int32
	m := &actorstest.Model{Length: 6}
	m.OnStep = func(_ context.Context, _ *inference.Request, step int) error {
		if step == 4 && failures.Add(1) == 1 {
			return fmt.Errorf("evicted: %w", inference.ErrClosed)
		}
		return nil
	}
	h := newHarness(t, m, session.Options{})
	r := h.Attach(alice, chat, nil)
	turn := h.Accept(alice, chat, "m1", "hello")
	h.AwaitMetric("holdfast_actors_active", 0)
	h.Clock.Advance(time.Second)
	r.UntilTerminal(turn)
	if got := r.Text(turn); got != actorstest.Answer(r.Attempts(turn)[0].Seed, turn, 6) || len(r.Attempts(turn)) != 2 {
		t.Errorf("answer %q after %d attempts", got, len(r.Attempts(turn)))
	}
}

func TestFailedCommitLosesNothingThatWasSeen(t *testing.T) {
	p := pauseAt(5)
	m := &actorstest.Model{Length: 9, OnStep: p.step}
	h := newHarness(t, m, session.Options{})
	r := h.Attach(alice, chat, nil)
	turn := h.Accept(alice, chat, "m1", "hello")
	r.UntilTokens(turn, 5)
	<-p.reached
	h.Valve.Fail(fmt.Errorf("no space: %w", storage.ErrReadOnly))
	f := h.Do(alice, actorstest.SubmitFrame(chat, "m2", "more", nil))
	if actorstest.Code(f) != proto.CodeUnavailable {
		t.Errorf("a submit on a failed disk: %v", f)
	}
	h.AwaitMetric("holdfast_actors_active", 0)
	h.Valve.Fail(nil)
	m.OnStep = nil
	h.Clock.Advance(time.Second)
	r.UntilTerminal(turn)
	expect(t, r, "1 user m1", "1 attempt 1 from 0", "1 chunk", "1 attempt 2 from 5", "1 chunk", "1 completed length")
	if a := h.Do(alice, actorstest.SubmitFrame(chat, "m2", "more", nil)).GetAccepted(); a == nil || a.Duplicate {
		t.Errorf("the refused submit, again: %v", a)
	}
}

func TestMessageIDsAreForgottenInTime(t *testing.T) {
	m := &actorstest.Model{Length: 1}
	h := newHarness(t, m, session.Options{})
	r := h.Attach(alice, chat, nil)
	old := h.Accept(alice, chat, "m1", "hello")
	r.UntilTerminal(old)
	day := 24 * time.Hour
	h.Clock.Advance(7 * day)
	young := h.Accept(alice, chat, "m2", "hello")
	r.UntilTerminal(young)
	if a := h.Do(alice, actorstest.SubmitFrame(chat, "m1", "hello", nil)).GetAccepted(); a == nil || a.Turn != old {
		t.Errorf("after 7 days: %v", a)
	}
	alarms := h.Metric("holdfast_actors_alarms_total")
	h.Clock.Advance(day + time.Hour)
	h.AwaitMetric("holdfast_actors_alarms_total", alarms+1)
	if a := h.Do(alice, actorstest.SubmitFrame(chat, "m2", "hello", nil)).GetAccepted(); a == nil || a.Turn != young {
		t.Errorf("a younger id was forgotten: %v", a)
	}
	a := h.Do(alice, actorstest.SubmitFrame(chat, "m1", "hello", nil)).GetAccepted()
	if a == nil || a.Duplicate {
		t.Fatalf("after 8 days: %v", a)
	}
	r.UntilTerminal(a.Turn)
}

// TestEveryCrashPointOfATurn lets n commits of a turn through, holds the next, and cuts the power.
func TestEveryCrashPointOfATurn(t *testing.T) {
	for n := range 4 {
		t.Run(fmt.Sprint("after commit ", n), func(t *testing.T) {
			m := &actorstest.Model{Length: 3}
			h := newHarness(t, m, session.Options{MaxAttempts: 10})
			h.Valve.Hold()
			valve := h.Valve
			var crashed atomic.Bool
			m.OnStep = func(_ context.Context, _ *inference.Request, step int) error {
				if step == 1 && !crashed.Load() {
					valve.AwaitCommits(3) // so that the first token has a commit of its own
				}
				return nil
			}
			h.Send(alice, actorstest.SubmitFrame(chat, "m1", "hello", nil))
			for range n {
				h.Valve.AwaitHeld(1)
				h.Valve.Step()
			}
			h.Valve.AwaitHeld(1)
			crashed.Store(true)
			h.Crash()
			turn := h.Accept(alice, chat, "m1", "hello")
			r := h.Attach(alice, chat, nil)
			if end := r.UntilTerminal(turn); end.Outcome != wirepb.Outcome_OUTCOME_COMPLETED {
				t.Errorf("terminal %v", end)
			}
			if got := r.Text(turn); got != actorstest.Answer(r.Attempts(turn)[0].Seed, turn, 3) {
				t.Errorf("answer %q", got)
			}
			log := strings.Join(describe(t, r), "\n")
			if strings.Count(log, "completed") != 1 || strings.Count(log, "user") != 1 {
				t.Errorf("log is\n%s", log)
			}
		})
	}
}
