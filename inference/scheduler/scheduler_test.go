package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/inferencetest"
	"github.com/holdfast-ai/holdfast/inference/scheduler"
)

// never is an EndBias with which answers end by their length only.
const never = -20

func request(message string, tokens int) *inference.Request {
	return &inference.Request{
		Messages: []inference.Message{{Role: inference.User, Content: message}},
		Sampling: inference.Sampling{MaxTokens: tokens},
	}
}

// started is a Run on a goroutine of its own.
type started struct {
	t      testing.TB
	first  chan struct{} // closed with the first chunk
	done   chan struct{}
	cancel context.CancelCauseFunc

	tokens []uint32 // these belong to the goroutine until done
	usage  inference.Usage
	err    error
}

// start runs r; emit, if not nil, is called with each chunk.
func start(t testing.TB, s *scheduler.Scheduler, r *inference.Request, emit func(inference.Chunk) error) *started {
	ctx, cancel := context.WithCancelCause(context.Background())
	x := &started{t: t, first: make(chan struct{}), done: make(chan struct{}), cancel: cancel}
	go func() {
		defer close(x.done)
		x.usage, x.err = s.Run(ctx, r, func(c inference.Chunk) error {
			if len(x.tokens) == 0 {
				close(x.first)
			}
			x.tokens = append(x.tokens, c.Tokens...)
			if emit != nil {
				return emit(c)
			}
			return nil
		})
	}()
	t.Cleanup(func() { cancel(nil); <-x.done })
	return x
}

func (x *started) wait() error {
	<-x.done
	return x.err
}

// gate lets the test hold every step of a model.
type gate struct {
	entered chan []inference.Row // each step announces itself
	pass    chan error           // and waits for its fate
}

func newGate() *gate {
	return &gate{entered: make(chan []inference.Row), pass: make(chan error)}
}

func (g *gate) before(ctx context.Context, rows []inference.Row) error {
	select {
	case g.entered <- append([]inference.Row(nil), rows...):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-g.pass:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// open lets all further steps pass.
func (g *gate) open(t testing.TB) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-g.entered:
			case g.pass <- nil:
			case <-stop:
				return
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-stopped })
}

// waitFor returns a Progress function and a channel that is closed once a progress satisfies ok.
func waitFor(ok func(inference.Progress) bool) (func(inference.Progress), <-chan struct{}) {
	seen := make(chan struct{})
	var once sync.Once
	return func(p inference.Progress) {
		if ok(p) {
			once.Do(func() { close(seen) })
		}
	}, seen
}

// startQueued starts r while the model is held in a step, and returns once r waits for the next one.
func startQueued(t testing.TB, s *scheduler.Scheduler, r *inference.Request) *started {
	var seen <-chan struct{}
	r.Progress, seen = waitFor(func(p inference.Progress) bool { return p.Phase == inference.Queued })
	x := start(t, s, r, nil)
	<-seen
	return x
}

func queuedAt(position, waiting int) func(inference.Progress) bool {
	return func(p inference.Progress) bool {
		return p.Phase == inference.Queued && p.Position == position && p.Waiting == waiting
	}
}

func TestAnotherTenantNeedNotWaitForTheWholeQueue(t *testing.T) {
	g := newGate()
	s, _ := open(t, inferencetest.StepperOptions{Slots: 1, EndBias: never, Before: g.before}, scheduler.Options{})
	start(t, s, request("a", 1), nil)
	<-g.entered // it holds the only slot
	enqueue := func(tenant string, position, waiting int) *started {
		r := request(tenant, 1)
		r.Tenant = tenant
		var seen <-chan struct{}
		r.Progress, seen = waitFor(queuedAt(position, waiting))
		x := start(t, s, r, nil)
		<-seen
		return x
	}
	const many = 100
	for i := range many {
		enqueue("a", i+1, i+1)
	}
	b := enqueue("b", 2, many+1)
	g.pass <- nil
	for turn := 1; ; turn++ { // each a step, for answers have one token
		name := (<-g.entered)[2].Token // the first letter of the message
		if name == 'b' {
			break
		}
		if turn == 2 {
			t.Fatal("b was not served within two turns")
		}
		g.pass <- nil
	}
	g.open(t)
	if err := b.wait(); err != nil {
		t.Fatal(err)
	}
}

func TestPositionsFollowTheQueue(t *testing.T) {
	g := newGate()
	s, _ := open(t, inferencetest.StepperOptions{Slots: 1, EndBias: never, Before: g.before}, scheduler.Options{})
	start(t, s, request("first", 1), nil)
	<-g.entered
	progress, atTwo := waitFor(queuedAt(1, 1))
	second := request("second", 1)
	second.Progress = progress
	x := start(t, s, second, nil)
	<-atTwo
	third := request("third", 1)
	moved := make(chan inference.Progress, 100)
	third.Progress = func(p inference.Progress) { moved <- p }
	y := start(t, s, third, nil)
	if p := <-moved; p.Position != 2 || p.Waiting != 2 {
		t.Fatalf("%+v, want position 2 of 2", p)
	}
	x.cancel(nil)
	_ = x.wait()
	if p := <-moved; p.Position != 1 || p.Waiting != 1 {
		t.Fatalf("%+v, want position 1 of 1", p)
	}
	g.open(t)
	if err := y.wait(); err != nil {
		t.Fatal(err)
	}
	last := inference.Progress{}
	for len(moved) > 0 {
		p := <-moved
		if p.Phase < last.Phase {
			t.Errorf("%+v after %+v", p, last)
		}
		last = p
	}
}

func TestQueueIsBounded(t *testing.T) {
	g := newGate()
	s, _ := open(t, inferencetest.StepperOptions{Slots: 1, Before: g.before}, scheduler.Options{QueueLimit: 3, TenantLimit: 2})
	start(t, s, request("holds the slot", 1), nil)
	<-g.entered
	enter := func(tenant string, position, waiting int) *started {
		r := request("waits", 1)
		r.Tenant = tenant
		var seen <-chan struct{}
		r.Progress, seen = waitFor(queuedAt(position, waiting))
		x := start(t, s, r, nil)
		<-seen
		return x
	}
	refused := func(tenant string) {
		t.Helper()
		r := request("too many", 1)
		r.Tenant = tenant
		if _, err := s.Run(t.Context(), r, nil); !errors.Is(err, inference.ErrOverloaded) {
			t.Fatalf("tenant %s: %v, want %v", tenant, err, inference.ErrOverloaded)
		}
	}
	a := enter("a", 1, 1)
	enter("a", 2, 2)
	refused("a") // its share
	enter("b", 2, 3)
	refused("c") // the whole
	a.cancel(nil)
	_ = a.wait() // leaves at once, though the model is in a step
	enter("c", 3, 3)
	g.open(t)
}

func TestCancelWhileWaiting(t *testing.T) {
	g := newGate()
	s, stepper := open(t, inferencetest.StepperOptions{Slots: 1, Before: g.before}, scheduler.Options{})
	start(t, s, request("holds the slot", 1), nil)
	<-g.entered
	progress, seen := waitFor(queuedAt(1, 1))
	r := request("waits", 1)
	r.Progress = progress
	x := start(t, s, r, nil)
	<-seen
	cause := errors.New("changed my mind")
	x.cancel(cause)
	if err := x.wait(); err != cause {
		t.Fatalf("%v, want %v", err, cause)
	}
	if n := stepper.Steps(); n != 1 {
		t.Fatalf("%d steps were begun meanwhile", n)
	}
	g.open(t)
}

func TestCancelAbortsAStepThatNobodyElseWants(t *testing.T) {
	g := newGate()
	s, _ := open(t, inferencetest.StepperOptions{Before: g.before}, scheduler.Options{})
	cause := errors.New("changed my mind")
	x := start(t, s, request(strings.Repeat("long ", 20), 1), nil)
	<-g.entered
	y := startQueued(t, s, request(strings.Repeat("long ", 20), 1))
	g.pass <- nil
	if rows := <-g.entered; rows[0].Slot == rows[len(rows)-1].Slot {
		t.Fatalf("two prompts wait, but the step is for slot %d alone", rows[0].Slot)
	}
	x.cancel(cause)
	select {
	case <-x.done:
		t.Fatal("one of two left in the middle of a step, which was cancelled although another wanted it")
	case g.pass <- nil:
	}
	if err := x.wait(); err != cause {
		t.Fatalf("%v, want %v", err, cause)
	}
	<-g.entered // now y is alone, and nobody lets the step pass
	y.cancel(cause)
	if err := y.wait(); err != cause {
		t.Fatalf("%v, want %v", err, cause)
	}
	g.open(t)
	z := start(t, s, request("works on", 1), nil)
	if err := z.wait(); err != nil {
		t.Fatal(err)
	}
}

func TestSlowReaderSitsOut(t *testing.T) {
	const buffer = 4
	var rows sync.Map // how many by slot
	count := func(_ context.Context, batch []inference.Row) error {
		for _, r := range batch {
			n, _ := rows.LoadOrStore(r.Slot, 0)
			rows.Store(r.Slot, n.(int)+1)
		}
		return nil
	}
	s, _ := open(t, inferencetest.StepperOptions{Slots: 2, EndBias: never, Before: count}, scheduler.Options{Buffer: buffer})
	release := make(chan struct{})
	slow := start(t, s, request("slow", 100), func(inference.Chunk) error { <-release; return nil })
	<-slow.first
	prompt := 0
	for range 3 { // others get their whole answers meanwhile
		fast := start(t, s, request("fast", 100), nil)
		if err := fast.wait(); err != nil || len(fast.tokens) != 100 {
			t.Fatalf("beside a slow reader: %d tokens, %v", len(fast.tokens), err)
		}
		prompt = fast.usage.PromptTokens
	}
	n, _ := rows.Load(uint32(0))
	// Chunks of several tokens may be held back, one was taken, and one more token is computed for a chunk to come.
	if ahead := n.(int) - prompt; ahead > 4*(buffer+2) {
		t.Fatalf("the slow reader's slot is %d tokens ahead; its buffer holds %d chunks", ahead, buffer)
	}
	close(release)
	if err := slow.wait(); err != nil || len(slow.tokens) != 100 {
		t.Fatalf("the slow reader itself: %d tokens, %v", len(slow.tokens), err)
	}
}

func TestCancelReachesARunWhoseReaderIsStuck(t *testing.T) {
	s, _ := open(t, inferencetest.StepperOptions{Slots: 1, EndBias: never}, scheduler.Options{Buffer: 2})
	release := make(chan struct{})
	stuck := start(t, s, request("stuck", 100), func(inference.Chunk) error { <-release; return nil })
	<-stuck.first
	stuck.cancel(errors.New("stop"))
	next := start(t, s, request("next", 10), nil) // gets the only slot though the reader has not come back
	if err := next.wait(); err != nil {
		t.Fatal(err)
	}
	close(release)
	if err := stuck.wait(); err == nil {
		t.Fatal("no error")
	}
}

func TestStreamsDoNotStutterDuringAPrefill(t *testing.T) {
	g := newGate()
	var steps [][]inference.Row // the scheduler's until all runs have ended
	record := func(ctx context.Context, rows []inference.Row) error {
		steps = append(steps, append([]inference.Row(nil), rows...))
		return g.before(ctx, rows)
	}
	s, _ := open(t, inferencetest.StepperOptions{Slots: 3, Rows: 64, Context: 512, EndBias: never, Before: record}, scheduler.Options{PrefillRows: 6, Buffer: 500})
	running := start(t, s, request("running", 300), nil)
	<-g.entered
	others := []*started{
		startQueued(t, s, request(strings.Repeat("x", 200), 5)),
		startQueued(t, s, request(strings.Repeat("y", 150), 5)),
	}
	g.open(t)
	for _, x := range append(others, running) {
		if err := x.wait(); err != nil {
			t.Fatal(err)
		}
	}
	together := 0
	for _, rows := range steps {
		perSlot := map[uint32]int{}
		for _, r := range rows {
			perSlot[r.Slot]++
		}
		if len(perSlot) == 1 {
			continue
		}
		together++
		prefill := 0
		for _, r := range rows {
			if perSlot[r.Slot] > 1 || !r.Logits { // else it decodes
				prefill++
			}
		}
		if perSlot[0] > 1 || prefill > 6 {
			t.Fatalf("a step of %d rows for the stream and %d of prefill", perSlot[0], prefill)
		}
	}
	if together == 0 {
		t.Fatal("the prompts were never in a step with the stream")
	}
}

func TestPrefixReuse(t *testing.T) {
	s, stepper := open(t, inferencetest.StepperOptions{EndBias: never}, scheduler.Options{})
	ask := func(scope string, history ...string) (*started, int) {
		t.Helper()
		r := request("", 10)
		r.Messages = nil
		for i, m := range history {
			r.Messages = append(r.Messages, inference.Message{Role: []inference.Role{inference.User, inference.Assistant}[i%2], Content: m})
		}
		r.CacheScope = scope
		before := stepper.Computed()
		x := start(t, s, r, nil)
		if err := x.wait(); err != nil {
			t.Fatal(err)
		}
		return x, stepper.Computed() - before
	}
	const first = "tell me of the sea"
	alone, _ := ask("", first, "it is wide", "and the sky?")
	ask("alice", first)
	for _, scope := range []string{"bob", "", "alic", "alice2"} {
		x, _ := ask(scope, first, "it is wide", "and the sky?")
		if x.usage.CachedPromptTokens != 0 {
			t.Errorf("scope %q took %d tokens from alice", scope, x.usage.CachedPromptTokens)
		}
	}
	ask("alice", first)
	x, computed := ask("alice", first, "it is wide", "and the sky?")
	if want := len(first) + 5; x.usage.CachedPromptTokens != want || computed != x.usage.PromptTokens-want+9 {
		t.Errorf("%d tokens cached, %d computed; want %d cached of %d, and 9 of the answer computed",
			x.usage.CachedPromptTokens, computed, want, x.usage.PromptTokens)
	}
	if !reflect.DeepEqual(x.tokens, alone.tokens) {
		t.Errorf("with a cached prefix %v, without %v", x.tokens, alone.tokens)
	}
}

func TestFailedStepFailsItsRunsOnly(t *testing.T) {
	boom := errors.New("boom")
	g := newGate()
	s, _ := open(t, inferencetest.StepperOptions{EndBias: never, Before: g.before}, scheduler.Options{Buffer: 2})
	release := make(chan struct{})
	aside := start(t, s, request("sits out", 30), func(inference.Chunk) error { <-release; return nil })
	for begun := false; !begun; {
		select {
		case <-g.entered:
			g.pass <- nil
		case <-aside.first:
			begun = true
		}
	}
	victim := start(t, s, request("victim", 100), nil)
	for rows := <-g.entered; rows[0].Slot == 0; rows = <-g.entered { // until the buffer of slot 0 is full
		g.pass <- nil
	}
	g.pass <- boom
	if err := victim.wait(); !errors.Is(err, boom) {
		t.Fatalf("%v, want %v", err, boom)
	}
	g.open(t)
	close(release)
	if err := aside.wait(); err != nil || len(aside.tokens) != 30 {
		t.Fatalf("beside the failure: %d tokens, %v", len(aside.tokens), err)
	}
}

func TestBrokenModelIsGivenUp(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error": func() error { return errors.New("boom") },
		"panic": func() error { panic("boom") },
	} {
		t.Run(name, func(t *testing.T) {
			failing := true
			s, _ := open(t, inferencetest.StepperOptions{Before: func(context.Context, []inference.Row) error {
				if failing {
					return fail()
				}
				return nil
			}}, scheduler.Options{MaxFailures: 3})
			run := func() error {
				_, err := s.Run(t.Context(), request("hello", 3), func(inference.Chunk) error { return nil })
				return err
			}
			for range 2 {
				if err := run(); err == nil || errors.Is(err, inference.ErrModelUnavailable) || !strings.Contains(err.Error(), "boom") {
					t.Fatalf("failed step: %v", err)
				}
			}
			failing = false // a step that works begins the count again
			if err := run(); err != nil {
				t.Fatal(err)
			}
			failing = true
			for range 3 {
				if err := run(); err == nil || errors.Is(err, inference.ErrModelUnavailable) {
					t.Fatalf("failed step: %v", err)
				}
			}
			failing = false
			if err := run(); !errors.Is(err, inference.ErrModelUnavailable) {
				t.Fatalf("after three failures in a row: %v, want %v", err, inference.ErrModelUnavailable)
			}
			if _, err := s.Plan(t.Context(), request("hello", 3)); !errors.Is(err, inference.ErrModelUnavailable) {
				t.Fatalf("plan: %v, want %v", err, inference.ErrModelUnavailable)
			}
		})
	}
}

func TestNothingIsReusedAfterAPanic(t *testing.T) {
	panics := false
	s, _ := open(t, inferencetest.StepperOptions{Before: func(context.Context, []inference.Row) error {
		if panics {
			panic("boom")
		}
		return nil
	}}, scheduler.Options{})
	r := request("a prompt to remember", 3)
	r.CacheScope = "alice"
	run := func() (inference.Usage, error) {
		return s.Run(t.Context(), r, func(inference.Chunk) error { return nil })
	}
	if _, err := run(); err != nil {
		t.Fatal(err)
	}
	if u, err := run(); err != nil || u.CachedPromptTokens == 0 {
		t.Fatalf("%+v, %v; want a cached prefix", u, err)
	}
	panics = true
	if _, err := s.Run(t.Context(), request("another", 3), nil); err == nil {
		t.Fatal("no error")
	}
	panics = false
	if u, err := run(); err != nil || u.CachedPromptTokens != 0 {
		t.Fatalf("%+v, %v; want nothing cached", u, err)
	}
}

func TestBadLogitsFailOneRun(t *testing.T) {
	g := newGate()
	s, _ := open(t, inferencetest.StepperOptions{EndBias: never, Before: g.before, Change: func(r inference.Row, logits []float32) {
		if r.Slot == 0 {
			logits[77] = float32(math.NaN())
		}
	}}, scheduler.Options{})
	poisoned := start(t, s, request(strings.Repeat("a prompt of several steps ", 5), 50), nil)
	<-g.entered
	healthy := startQueued(t, s, request("healthy", 50))
	g.open(t)
	if err := poisoned.wait(); err == nil || !strings.Contains(err.Error(), "not finite") {
		t.Errorf("%v, want an error about logits", err)
	}
	if err := healthy.wait(); err != nil || len(healthy.tokens) != 50 {
		t.Errorf("beside it: %d tokens, %v", len(healthy.tokens), err)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	g := newGate()
	stepper := inferencetest.NewStepper(inferencetest.StepperOptions{Slots: 1, Before: g.before})
	s, err := scheduler.New(stepper, inferencetest.Tokenizer{}, inferencetest.Template{}, scheduler.Options{})
	if err != nil {
		t.Fatal(err)
	}
	running := start(t, s, request("running", 5), nil)
	<-g.entered // and it never ends by itself
	progress, seen := waitFor(queuedAt(1, 1))
	r := request("waiting", 5)
	r.Progress = progress
	waiting := start(t, s, r, nil)
	<-seen
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, x := range []*started{running, waiting} {
		if err := x.wait(); !errors.Is(err, inference.ErrClosed) {
			t.Errorf("%v, want %v", err, inference.ErrClosed)
		}
	}
	if err := stepper.Close(); err == nil {
		t.Error("the stepper was not closed")
	}
}

func TestEmitThatPanicsLeavesItsSlot(t *testing.T) {
	s, _ := open(t, inferencetest.StepperOptions{Slots: 1, EndBias: never}, scheduler.Options{Buffer: 2})
	func() {
		defer func() {
			if recover() != "boom" {
				t.Error("the panic did not reach its goroutine")
			}
		}()
		_, _ = s.Run(t.Context(), request("panics", 100), func(inference.Chunk) error { panic("boom") })
	}()
	x := start(t, s, request("next", 5), nil)
	if err := x.wait(); err != nil {
		t.Fatal(err)
	}
}

func TestNewRefusesNonsense(t *testing.T) {
	tok, tmpl := inferencetest.Tokenizer{}, inferencetest.Template{}
	if _, err := scheduler.New(inferencetest.NewStepper(inferencetest.StepperOptions{Context: 1}), tok, tmpl, scheduler.Options{}); !errors.Is(err, inference.ErrModelUnavailable) {
		t.Errorf("context of one: %v", err)
	}
	if _, err := scheduler.New(inferencetest.NewStepper(inferencetest.StepperOptions{}), tok, tmpl, scheduler.Options{Buffer: -1}); err == nil {
		t.Error("negative buffer: no error")
	}
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	for range 2 { // loaded, unloaded and loaded again: counters go on
		s, _ := open(t, inferencetest.StepperOptions{Slots: 2, EndBias: never}, scheduler.Options{Registerer: registry, Model: "m"})
		r := request("hello", 7)
		r.CacheScope = "x"
		for range 2 {
			if x := start(t, s, r, nil); x.wait() != nil {
				t.Fatal(x.err)
			}
		}
		bad := request("hello", -1)
		if _, err := s.Run(t.Context(), bad, nil); err == nil {
			t.Fatal("no error")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	const prompt = len("hello") + 3 + 2
	want := fmt.Sprintf(`
# HELP holdfast_scheduler_active_slots Slots that are generating.
# TYPE holdfast_scheduler_active_slots gauge
holdfast_scheduler_active_slots{model="m"} 0
# HELP holdfast_scheduler_cached_prompt_tokens_total Prompt tokens that were taken from a slot's cache.
# TYPE holdfast_scheduler_cached_prompt_tokens_total counter
holdfast_scheduler_cached_prompt_tokens_total{model="m"} %d
# HELP holdfast_scheduler_completion_tokens_total Tokens generated.
# TYPE holdfast_scheduler_completion_tokens_total counter
holdfast_scheduler_completion_tokens_total{model="m"} 28
# HELP holdfast_scheduler_prompt_tokens_total Prompt tokens of generations that got a slot.
# TYPE holdfast_scheduler_prompt_tokens_total counter
holdfast_scheduler_prompt_tokens_total{model="m"} %d
# HELP holdfast_scheduler_runs_total Generations ended, by outcome.
# TYPE holdfast_scheduler_runs_total counter
holdfast_scheduler_runs_total{model="m",outcome="length"} 4
holdfast_scheduler_runs_total{model="m",outcome="refused"} 2
# HELP holdfast_scheduler_slots Slots of the loaded model; 0 while it is not loaded.
# TYPE holdfast_scheduler_slots gauge
holdfast_scheduler_slots{model="m"} 0
# HELP holdfast_scheduler_waiting_runs Generations that wait for a slot.
# TYPE holdfast_scheduler_waiting_runs gauge
holdfast_scheduler_waiting_runs{model="m"} 0
`, 2*(prompt-1), 4*prompt)
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want),
		"holdfast_scheduler_active_slots", "holdfast_scheduler_cached_prompt_tokens_total", "holdfast_scheduler_completion_tokens_total",
		"holdfast_scheduler_prompt_tokens_total", "holdfast_scheduler_runs_total", "holdfast_scheduler_slots", "holdfast_scheduler_waiting_runs"); err != nil {
		t.Error(err)
	}
	if n := testutil.CollectAndCount(registry); n < 12 {
		t.Errorf("%d metrics", n)
	}
}
