package actors_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-ai/holdfast/actors"
	"github.com/holdfast-ai/holdfast/actors/actorstest"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/storage"
)

func TestWriteSets(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, nil)
	if a := tell(t, h, page, "put k 1", "append one", "get k"); a.MessageId != "1" || a.Turn != 1 {
		t.Errorf("a handler does not see its own writes: %v", a)
	}
	if f := h.Do(alice, say(page, "put k 2", "append two", "refuse")); actorstest.Code(f) != proto.CodeConflict {
		t.Errorf("refused: %v", f)
	}
	if a := tell(t, h, page, "get k", "append three"); a.MessageId != "1" || a.Turn != 2 {
		t.Errorf("a refused handler left something: %v", a)
	}
	if f := h.Do(alice, say(page, "put k 4", "append four", "fail")); actorstest.Code(f) != proto.CodeInternal {
		t.Errorf("failed: %v", f)
	}
	if a := tell(t, h, page, "get k", "append five", "delete k", "get k"); a.MessageId != "" || a.Turn != 3 {
		t.Errorf("a failed handler left something: %v", a)
	}
	h.Crash()
	if a := tell(t, h, page, "get k", "append six"); a.MessageId != "" || a.Turn != 4 {
		t.Errorf("after a crash: %v", a)
	}
	r := h.Attach(alice, page, nil)
	untilOffset(r, 4)
	if got := states(r); got != "one, three, five, six" {
		t.Errorf("the log says %s", got)
	}
}

// TestGate holds a commit back: later handlers see what it wrote and join the next commit, but nothing gets out, not even
// the answer to a handler that only read.
func TestGate(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, nil)
	tell(t, h, page, "put k old")
	r := h.Attach(alice, page, nil)
	h.Valve.Hold()
	first := h.Send(alice, say(page, "put k new", "append one", "status"))
	h.Valve.AwaitHeld(1)
	second := h.Send(alice, say(page, "get k"))
	third := h.Send(alice, say(page, "append two"))
	fourth := h.Send(alice, say(page, "append three", "refuse"))
	stopped := h.Send(alice, actorstest.StopFrame(page, 0))
	h.Send(alice, say(page, "open handled"))
	<-j.door("handled")
	tell(t, h, "default/journal/other", "get k") // another object is not held up
	if len(stopped)+len(first)+len(second)+len(third)+len(fourth) > 0 {
		t.Fatal("an answer got out before what it depends on was durable")
	}
	if n, err := r.Pull(1 << 20); n != 0 || err != nil {
		t.Errorf("a reader sees %d items of an undurable commit (%v)", n, err)
	}
	late := h.Attach(alice, page, nil)
	if n, _ := late.Pull(1 << 20); n != 0 || late.Attached.Watermark != 0 {
		t.Errorf("a late reader sees %d items, watermark %d", n, late.Attached.Watermark)
	}
	before := h.Valve.Commits()
	h.Valve.Flow()
	if a := h.Await(second).GetAccepted(); a == nil || a.MessageId != "new" {
		t.Errorf("the second handler did not see what the first wrote: %v", a)
	}
	h.Await(first)
	h.Await(third)
	if f := h.Await(fourth); actorstest.Code(f) != proto.CodeConflict {
		t.Errorf("fourth: %v", f)
	}
	h.Await(stopped)
	if n := h.Valve.Commits() - before; n != 1 {
		t.Errorf("what gathered took %d commits", n)
	}
	untilOffset(r, 2)
	r.UntilStatus("running", func(s *wirepb.Status) bool { return s.Phase == wirepb.Phase_PHASE_RUNNING })
}

func TestFailedCommitFailsWhatDependsOnIt(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, nil)
	tell(t, h, page, "put k old", "append one")
	r := h.Attach(alice, page, nil)
	untilOffset(r, 1)
	h.Valve.Hold()
	answers := []<-chan *wirepb.Frame{
		h.Send(alice, say(page, "put k new", "append two", "effect e 3")),
		h.Send(alice, say(page, "get k")),
		h.Send(alice, say(page, "append three")),
	}
	h.Valve.AwaitHeld(1)
	h.Valve.Fail(fmt.Errorf("disk on fire: %w", storage.ErrReadOnly))
	h.Valve.Flow()
	for i, a := range answers {
		if f := h.Await(a); actorstest.Code(f) != proto.CodeUnavailable {
			t.Errorf("answer %d: %v", i, f)
		}
	}
	h.Valve.Fail(nil)
	if a := tell(t, h, page, "get k", "append four"); a.MessageId != "old" || a.Turn != 2 {
		t.Errorf("after the failure: %v", a)
	}
	untilOffset(r, 2)
	if got := states(r); got != "one, four" {
		t.Errorf("the log says %s", got)
	}
	if v := h.Metric("holdfast_actors_commits_failed_total"); v != 1 {
		t.Errorf("%v failed commits are counted", v)
	}
}

func TestPanicIsContained(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, nil)
	other := "default/journal/other"
	tell(t, h, other, "append x")
	h.Valve.Hold()
	before := h.Send(alice, say(page, "append one"))
	h.Valve.AwaitHeld(1)
	also := h.Send(alice, say(page, "append also"))
	bad := h.Send(alice, say(page, "append two", "open about", "wait go", "panic"))
	<-j.door("about")
	behind := h.Send(alice, say(page, "append three"))
	j.open("go")
	h.Valve.Flow()
	if a := h.Await(before).GetAccepted(); a == nil || a.Turn != 1 {
		t.Errorf("an earlier handler did not survive: %v", a)
	}
	if a := h.Await(also).GetAccepted(); a == nil || a.Turn != 2 {
		t.Errorf("an earlier handler whose commit was not under way did not survive: %v", a)
	}
	if f := h.Await(bad); actorstest.Code(f) != proto.CodeInternal || strings.Contains(f.GetError().Message, "as told") {
		t.Errorf("panic: %v", f)
	}
	if a := h.Await(behind).GetAccepted(); a == nil || a.Turn != 3 {
		t.Errorf("what waited behind it: %v", a)
	}
	tell(t, h, other, "append y")
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.acts != 3 {
		t.Errorf("there were %d activations", j.acts)
	}
}

// TestZombieIsFenced lets a newer activation of an object appear behind the host's back, as another node would be.
func TestZombieIsFenced(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, nil)
	tell(t, h, page, "put k old", "append one")
	o, err := h.Store.Activate(storage.Address{Namespace: "default", Kind: "journal", Name: "page"})
	if err != nil {
		t.Fatal(err)
	}
	f := h.Do(alice, say(page, "append zombie"))
	if actorstest.Code(f) != proto.CodeUnavailable {
		t.Errorf("the zombie's write: %v", f)
	}
	o.Release()
	if a := tell(t, h, page, "append two"); a.Turn != 2 {
		t.Errorf("the next activation: %v", a)
	}
	r := h.Attach(alice, page, nil)
	untilOffset(r, 2)
	if got := states(r); got != "one, two" {
		t.Errorf("the log says %s", got)
	}
}

func TestMailboxIsBoundedAndControlIsServed(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, func(o *actors.Options) { o.MailboxMessages, o.MailboxControls = 3, 2 })
	blocked := h.Send(alice, say(page, "open in", "wait door"))
	<-j.door("in")
	var accepted, refused int
	var answers []<-chan *wirepb.Frame
	for range 10 {
		answers = append(answers, h.Send(alice, say(page, "append x")))
	}
	for _, a := range answers {
		select {
		case f := <-a:
			if actorstest.Code(f) != proto.CodeOverloaded {
				t.Errorf("refusal: %v", f)
			}
			refused++
		default:
			accepted++
		}
	}
	if accepted != 3 {
		t.Errorf("%d messages were taken and %d refused", accepted, refused)
	}
	stops := []<-chan *wirepb.Frame{h.Send(alice, actorstest.StopFrame(page, 0)), h.Send(alice, actorstest.StopFrame(page, 0))}
	if f := h.Do(alice, actorstest.StopFrame(page, 0)); actorstest.Code(f) != proto.CodeOverloaded {
		t.Errorf("a full control lane: %v", f)
	}
	j.open("door")
	h.Await(blocked)
	for _, s := range stops {
		if f := h.Await(s); f.GetStopping() == nil {
			t.Errorf("stop: %v", f)
		}
	}
	if v := h.Metric("holdfast_actors_refused_total"); v != float64(refused+1) {
		t.Errorf("%v refusals are counted", v)
	}
}

// TestBackpressure lets messages wait in the bounded mailbox while too much waits to be written.
func TestBackpressure(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, func(o *actors.Options) { o.PendingBytes = 150 })
	tell(t, h, page, "append zero")
	h.Valve.Hold()
	var answers []<-chan *wirepb.Frame
	for i := range 5 {
		door := fmt.Sprint("handled", i)
		answers = append(answers, h.Send(alice, say(page, "append "+strings.Repeat("x", 90), "open "+door)))
		if i < 3 { // one is in flight, and two make a pending commit too large
			<-j.door(door)
		}
	}
	for range 1000 {
		runtime.Gosched()
		select {
		case <-j.door("handled3"):
			t.Fatal("a message was handled although too much waits to be written")
		default:
		}
	}
	h.Valve.Flow()
	for _, a := range answers {
		if f := h.Await(a); f.GetAccepted() == nil {
			t.Errorf("a message that was taken: %v", f)
		}
	}
}

func TestEffects(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, func(o *actors.Options) { o.StreamItems = 4 })
	r := h.Attach(alice, page, nil)
	tell(t, h, page, "append zero", "effect e 1000")
	r.Until("the end", func(e *wirepb.Entry) bool { return e.GetState().Key == "e done <nil>" })
	for i, e := range r.Entries[1:1001] {
		if want := fmt.Sprint("e ", i); e.GetState().Key != want {
			t.Fatalf("entry %d is %q, want %q", i, e.GetState().Key, want)
		}
	}
	h.AwaitMetric("holdfast_actors_effects_running", 0)
}

// TestEffectIsBoundedByTheDisk holds commits back: the effect gets no further ahead than its buffer.
func TestEffectIsBoundedByTheDisk(t *testing.T) {
	j := newJournal()
	reached := make(chan int, 1000)
	j.during = func(_ string, _ context.Context, i int) error { reached <- i; return nil }
	h := newHarness(t, j, func(o *actors.Options) { o.StreamItems = 8 })
	tell(t, h, page, "append zero")
	h.Valve.Hold()
	start := h.Send(alice, say(page, "append one", "effect e 100"))
	h.Valve.AwaitHeld(1)
	select {
	case <-reached:
		t.Error("the effect began before its commit was durable")
	default:
	}
	h.Valve.Step()
	h.Await(start)
	h.Valve.AwaitHeld(1) // at most 8 items in flight; then 8 in the buffer, and one in the hands of the effect
	for range 9 {
		<-reached
	}
	for i := range 20 { // whatever else the object does meanwhile takes nothing from the buffer
		door := fmt.Sprint("busy", i)
		h.Send(alice, say(page, "open "+door))
		<-j.door(door)
	}
	if n := 9 + len(reached); n > 17 {
		t.Errorf("the effect is %d items ahead", n)
	}
	h.Valve.Flow()
	r := h.Attach(alice, page, nil)
	r.Until("the end", func(e *wirepb.Entry) bool { return e.GetState().Key == "e done <nil>" })
}

func TestCancelBeforeTheEffectBegins(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, nil)
	tell(t, h, page, "append zero")
	h.Valve.Hold()
	h.Send(alice, say(page, "append one", "effect e 100"))
	h.Valve.AwaitHeld(1)
	h.Send(alice, say(page, "cancel e", "open cancelled"))
	<-j.door("cancelled")
	h.Valve.Flow()
	r := h.Attach(alice, page, nil)
	r.Until("the end", func(e *wirepb.Entry) bool { return e.GetState().Key == "e done cancelled" })
	if got := states(r); got != "zero, one, e done cancelled" {
		t.Errorf("the log says %s", got)
	}
}

func TestIdleActivationsAreDropped(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, func(o *actors.Options) { o.IdleAfter = time.Minute })
	r := h.Attach(alice, page, nil)
	tell(t, h, page, "put k v", "append one")
	untilOffset(r, 1)
	h.Clock.Advance(30 * time.Second)
	if v := h.Metric("holdfast_actors_active"); v != 1 {
		t.Errorf("%v activations after half the time", v)
	}
	h.Clock.Advance(time.Minute)
	h.AwaitMetric("holdfast_actors_active", 0)
	// The reader stays, costs nothing, and hears of what the next activation does.
	if n, err := r.Pull(1 << 20); n != 0 || err != nil {
		t.Errorf("pull: %d %v", n, err)
	}
	late := h.Attach(alice, page, nil)
	untilOffset(late, 1)
	if v := h.Metric("holdfast_actors_active"); v != 0 {
		t.Errorf("readers have activated the object")
	}
	if a := tell(t, h, page, "get k", "append two"); a.MessageId != "v" || a.Turn != 2 {
		t.Errorf("after the drop: %v", a)
	}
	untilOffset(r, 2)
	untilOffset(late, 2)
}

func TestEffectsKeepAnActivation(t *testing.T) {
	j := newJournal()
	j.during = func(_ string, ctx context.Context, i int) error {
		if i == 1 {
			select {
			case <-j.door("go"):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	}
	h := newHarness(t, j, nil)
	r := h.Attach(alice, page, nil)
	tell(t, h, page, "append zero", "effect e 2")
	untilOffset(r, 2)
	h.Clock.Advance(time.Hour)
	h.Clock.Advance(time.Hour)
	tell(t, h, "default/journal/other", "get x")
	if v := h.Metric("holdfast_actors_activations_total"); v != 2 {
		t.Errorf("%v activations", v)
	}
	j.open("go")
	r.Until("the end", func(e *wirepb.Entry) bool { return e.GetState().Key == "e done <nil>" })
}

func TestLeastRecentlyUsedGoFirst(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, func(o *actors.Options) { o.MaxIdle, o.MaxActivations = 10, 15 })
	for i := range 40 {
		h.Clock.Advance(time.Millisecond)
		f := h.Do(alice, say(fmt.Sprint("default/journal/", i), "append x"))
		for actorstest.Code(f) == proto.CodeOverloaded { // the sweep is behind
			f = h.Do(alice, say(fmt.Sprint("default/journal/", i), "append x"))
		}
		if v := h.Metric("holdfast_actors_active"); v > 15 {
			t.Fatalf("%v activations", v)
		}
	}
	h.Clock.Advance(time.Hour)
	h.AwaitMetric("holdfast_actors_active", 0)
}

func TestTooManyBusyObjects(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, func(o *actors.Options) { o.MaxIdle, o.MaxActivations = 1, 2 })
	a := h.Send(alice, say("default/journal/a", "wait door"))
	b := h.Send(alice, say("default/journal/b", "wait door"))
	if f := h.Do(alice, say("default/journal/c", "append x")); actorstest.Code(f) != proto.CodeOverloaded {
		t.Errorf("a third: %v", f)
	}
	j.open("door")
	h.Await(a)
	h.Await(b)
}

func TestDrain(t *testing.T) {
	j := newJournal()
	j.during = func(_ string, _ context.Context, i int) error { <-j.door("go"); return nil }
	h := newHarness(t, j, nil)
	r := h.Attach(alice, page, nil)
	tell(t, h, page, "append zero", "effect e 2")
	tell(t, h, "default/journal/other", "append x")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := h.Host.Drain(ctx); err == nil {
		t.Error("drained although an effect runs")
	}
	if f := h.Do(alice, say(page, "append x")); actorstest.Code(f) != proto.CodeDraining {
		t.Errorf("submit while draining: %v", f)
	}
	if _, err := h.TryAttach(alice, page, nil); err == nil {
		t.Error("attached while draining")
	}
	drained := make(chan error)
	go func() { drained <- h.Host.Drain(context.Background()) }()
	j.open("go")
	if err := <-drained; err != nil {
		t.Errorf("drain: %v", err)
	}
	r.Until("the end", func(e *wirepb.Entry) bool { return e.GetState().Key == "e done <nil>" })
	if v := h.Metric("holdfast_actors_active"); v != 0 {
		t.Errorf("%v activations are left", v)
	}
}

func TestCloseAnswersEverybody(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, nil)
	tell(t, h, page, "append zero")
	h.Valve.Hold()
	first := h.Send(alice, say(page, "append one"))
	h.Valve.AwaitHeld(1)
	second := h.Send(alice, say(page, "append two"))
	closed := make(chan error)
	go func() { closed <- h.Host.Close() }()
	third := h.Do(alice, say("default/journal/other", "get x"))
	for third.GetAccepted() != nil { // not closed yet
		third = h.Do(alice, say("default/journal/other", "get x"))
	}
	if actorstest.Code(third) != proto.CodeDraining {
		t.Errorf("after close: %v", third)
	}
	h.Valve.Flow()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if f := h.Await(first); f.GetAccepted() == nil {
		t.Errorf("first: %v", f)
	}
	if f := h.Await(second); f.GetAccepted() == nil && actorstest.Code(f) != proto.CodeDraining {
		t.Errorf("second: %v", f)
	}
	if _, err := h.TryAttach(alice, page, nil); err == nil {
		t.Error("attached to a closed host")
	}
}

func TestRepliesComeOnce(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, nil)
	var answers []<-chan *wirepb.Frame
	for i := range 200 {
		cmd := []string{"append x", "refuse", "get k", "panic", "fail"}[i%5]
		answers = append(answers, h.Send(alice, say(fmt.Sprint("default/journal/", i%7), cmd)))
	}
	for _, a := range answers {
		h.Await(a)
	}
	if err := h.Host.Close(); err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		if len(a) != 0 {
			t.Errorf("message %d was answered twice", i)
		}
	}
}

func TestOptionsAreValidated(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, nil)
	good := actors.Options{Store: h.Store, Kinds: j.kinds(nil)}
	for name, change := range map[string]func(*actors.Options){
		"no store":       func(o *actors.Options) { o.Store = nil },
		"no kinds":       func(o *actors.Options) { o.Kinds = nil },
		"bad kind name":  func(o *actors.Options) { o.Kinds = []actors.Kind{{Name: "a/b", New: o.Kinds[0].New}} },
		"kind twice":     func(o *actors.Options) { o.Kinds = append(o.Kinds, o.Kinds[0]) },
		"no constructor": func(o *actors.Options) { o.Kinds = []actors.Kind{{Name: "a"}} },
		"negative":       func(o *actors.Options) { o.IdleAfter = -1 },
	} {
		o := good
		change(&o)
		if _, err := actors.NewHost(o); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
