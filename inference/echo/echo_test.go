package echo_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/echo"
	"github.com/holdfast-ai/holdfast/internal/clock"
)

func say(message string) *inference.Request {
	return &inference.Request{Messages: []inference.Message{{Role: inference.User, Content: message}}}
}

// run returns the texts of the chunks.
func run(t *testing.T, m *echo.Model, r *inference.Request) ([]string, inference.Usage, error) {
	t.Helper()
	texts := []string{}
	usage, err := m.Run(t.Context(), r, func(c inference.Chunk) error {
		texts = append(texts, c.Text)
		return nil
	})
	return texts, usage, err
}

func toks(n int) []string {
	texts := []string{}
	for i := range n {
		texts = append(texts, fmt.Sprintf("tok%d ", i))
	}
	return texts
}

func TestScripts(t *testing.T) {
	for _, c := range []struct {
		message string
		want    []string
		finish  inference.Finish
		err     error
	}{
		{"hi", toks(3), inference.FinishStop, nil},
		{"/echoes are no directive", toks(3), inference.FinishStop, nil},
		{"/echo", toks(3), inference.FinishStop, nil},
		{"  /echo n=5\n", toks(5), inference.FinishStop, nil},
		{"/echo n=0", toks(0), inference.FinishStop, nil},
		{"/echo n=2 bytes=8", []string{"tok0... ", "tok1... "}, inference.FinishStop, nil},
		{"/echo n=9 text=Grüße, 🙂 n=4", []string{"Grüße, ", "🙂 ", "n=4"}, inference.FinishStop, nil},
		{"/echo n=5 fail=2", toks(2), "", nil},
		{"/echo n=5 fail=0 error=overloaded", toks(0), "", inference.ErrOverloaded},
		{"/echo n=5 fail=1 error=unavailable", toks(1), "", inference.ErrModelUnavailable},
		{"/echo n=5 fail=1 error=overflow", toks(1), "", inference.ErrContextOverflow},
		{"/echo n=2 tool=weather", append(toks(2), ""), inference.FinishToolCalls, nil},
		{"/echo n=99999999999", toks(0), "", inference.ErrInvalidRequest},
		{"/echo gap=2h", toks(0), "", inference.ErrInvalidRequest},
		{"/echo text=", toks(0), "", inference.ErrInvalidRequest},
		{"", toks(0), "", inference.ErrInvalidRequest},
	} {
		t.Run(c.message, func(t *testing.T) {
			got, usage, err := run(t, echo.New(echo.Options{}), say(c.message))
			if !reflect.DeepEqual(got, c.want) || usage.Finish != c.finish {
				t.Errorf("%q (%s), want %q (%s)", got, usage.Finish, c.want, c.finish)
			}
			if c.finish == "" && err == nil || c.finish != "" && err != nil || c.err != nil && !errors.Is(err, c.err) {
				t.Errorf("error %v, want %v", err, c.err)
			}
			if usage.CompletionTokens != len(got) {
				t.Errorf("usage says %d tokens of %d", usage.CompletionTokens, len(got))
			}
		})
	}
}

func TestDefaultScript(t *testing.T) {
	m := echo.New(echo.Options{Name: "parrot", Default: echo.Script{Text: "polly wants"}})
	if got, usage, err := run(t, m, say("hi")); err != nil || strings.Join(got, "") != "polly wants" || usage.Model != "parrot" {
		t.Fatalf("%q by %q, %v", got, usage.Model, err)
	}
}

func TestSeedChoosesWords(t *testing.T) {
	m := echo.New(echo.Options{})
	a, _, _ := run(t, m, say("/echo n=50 seed=1"))
	again, _, _ := run(t, m, say("/echo n=50 seed=1"))
	b, _, _ := run(t, m, say("/echo n=50 seed=2"))
	if !reflect.DeepEqual(a, again) || reflect.DeepEqual(a, b) || len(a) != 50 {
		t.Fatalf("%q\n%q\n%q", a, again, b)
	}
}

func TestMaxTokensAndStop(t *testing.T) {
	m := echo.New(echo.Options{})
	r := say("/echo n=9")
	r.Sampling.MaxTokens = 4
	if got, usage, err := run(t, m, r); err != nil || len(got) != 4 || usage.Finish != inference.FinishLength {
		t.Errorf("%q (%s), %v", got, usage.Finish, err)
	}
	r.Sampling.MaxTokens = 9
	if _, usage, _ := run(t, m, r); usage.Finish != inference.FinishStop {
		t.Errorf("a script of the greatest length finished with %q", usage.Finish)
	}
	r.Sampling.Stop = []string{"2 tok3"}
	if got, usage, err := run(t, m, r); err != nil || strings.Join(got, "") != "tok0 tok1 tok" || usage.Finish != inference.FinishStop {
		t.Errorf("%q (%s), %v", got, usage.Finish, err)
	}
}

func TestToolCall(t *testing.T) {
	m := echo.New(echo.Options{})
	r := say(`/echo n=1 tool=weather args={"city":"Bern"}`)
	r.Turn = 5
	var calls []*inference.ToolCall
	if _, err := m.Run(t.Context(), r, func(c inference.Chunk) error {
		if c.ToolCall != nil {
			calls = append(calls, c.ToolCall)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want := []*inference.ToolCall{{ID: "call-5-1", Name: "weather", Arguments: `{"city":"Bern"}`}}
	if !reflect.DeepEqual(calls, want) {
		t.Fatalf("%+v, want %+v", calls, want)
	}
}

// paced is a run on a fake clock.
type paced struct {
	*clock.Fake
	sleeping chan struct{} // a token for each timer that was set
	emitted  chan string
	progress chan inference.Progress
	done     chan error
}

// AfterFunc announces the timer, so that the test advances only when somebody waits.
func (p *paced) AfterFunc(d time.Duration, f func()) clock.Timer {
	timer := p.Fake.AfterFunc(d, f)
	p.sleeping <- struct{}{}
	return timer
}

func startPaced(t *testing.T, ctx context.Context, message string) (*paced, *echo.Model) {
	p := &paced{
		Fake: clock.NewFake(time.Unix(0, 0)), sleeping: make(chan struct{}, 100),
		emitted: make(chan string, 100), progress: make(chan inference.Progress, 100), done: make(chan error, 1),
	}
	m := echo.New(echo.Options{Clock: p})
	r := say(message)
	r.Progress = func(x inference.Progress) { p.progress <- x }
	go func() {
		_, err := m.Run(ctx, r, func(c inference.Chunk) error {
			p.emitted <- c.Text
			return nil
		})
		p.done <- err
	}()
	return p, m
}

// tick waits until the model sleeps and advances the clock.
func (p *paced) tick(d time.Duration) {
	<-p.sleeping
	p.Advance(d)
}

func TestPace(t *testing.T) {
	p, _ := startPaced(t, t.Context(), "/echo n=4 first=1s gap=100ms")
	p.tick(time.Second)
	for i := range 3 {
		<-p.sleeping // before this, all that is due has been emitted
		if n := len(p.emitted); n != i+1 {
			t.Fatalf("%d tokens after %d gaps", n, i)
		}
		p.Advance(99 * time.Millisecond)
		if n := len(p.emitted); n != i+1 {
			t.Fatalf("%d tokens a moment before the gap is over", n)
		}
		p.Advance(time.Millisecond)
	}
	if err := <-p.done; err != nil || len(p.emitted) != 4 {
		t.Fatalf("%d tokens, %v", len(p.emitted), err)
	}
}

func TestSlow(t *testing.T) {
	p, _ := startPaced(t, t.Context(), "Slow, please")
	for range 11 {
		p.tick(100 * time.Millisecond)
	}
	if err := <-p.done; err != nil || len(p.emitted) != 12 {
		t.Fatalf("%d tokens, %v", len(p.emitted), err)
	}
}

func TestQueuePositions(t *testing.T) {
	p, _ := startPaced(t, t.Context(), "/echo n=1 queue=3 gap=1s")
	for want := 3; want > 0; want-- {
		if got := <-p.progress; got != (inference.Progress{Phase: inference.Queued, Position: want, Waiting: 3}) {
			t.Fatalf("%+v, want position %d of 3", got, want)
		}
		p.tick(time.Second)
	}
	if got := <-p.progress; got.Phase != inference.Running {
		t.Fatalf("%+v, want running", got)
	}
	if err := <-p.done; err != nil {
		t.Fatal(err)
	}
}

func TestStallEndsWithItsContextOrModel(t *testing.T) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	p, _ := startPaced(t, ctx, "/echo n=5 stall=2")
	<-p.emitted
	<-p.emitted
	cancel(cause)
	if err := <-p.done; err != cause || len(p.emitted) != 0 {
		t.Errorf("%d tokens more, %v; want %v", len(p.emitted), err, cause)
	}

	p, m := startPaced(t, t.Context(), "/echo n=5 stall=0")
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-p.done; !errors.Is(err, inference.ErrClosed) {
		t.Errorf("%v, want %v", err, inference.ErrClosed)
	}
}

func TestCrashComesAgain(t *testing.T) {
	crashes := 0
	m := echo.New(echo.Options{Crash: func() { crashes++ }})
	r := say("/echo n=9 crash=7")
	plan, err := m.Plan(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	for resumed := 0; resumed < 9; resumed += 2 {
		r := &inference.Request{Plan: plan}
		for i := range resumed {
			r.Resume = append(r.Resume, uint32(i))
		}
		before := crashes
		got, _, err := run(t, m, r)
		if resumed <= 7 {
			if len(got) != 7-resumed || crashes != before+1 || err == nil {
				t.Errorf("after %d: %q, %d crashes, %v", resumed, got, crashes-before, err)
			}
		} else if err != nil || crashes != before || !reflect.DeepEqual(got, toks(9)[resumed:]) {
			t.Errorf("after %d: %q, %d crashes, %v", resumed, got, crashes-before, err)
		}
	}
}

func TestCrashPanics(t *testing.T) {
	m := echo.New(echo.Options{Crash: func() { panic("crash") }})
	defer func() {
		if recover() != "crash" {
			t.Error("the hook's panic was swallowed")
		}
	}()
	_, _, _ = run(t, m, say("/echo crash=1"))
}

func TestForeignPlansAndTokens(t *testing.T) {
	m := echo.New(echo.Options{})
	plan, err := m.Plan(t.Context(), say("/echo n=3"))
	if err != nil {
		t.Fatal(err)
	}
	foreign := *plan
	foreign.Digest = "sha256:of another model"
	big := *plan
	big.Prompt = []uint32{70_000}
	for _, c := range []struct {
		r    inference.Request
		want error
	}{
		{inference.Request{Plan: &foreign}, inference.ErrModelUnavailable},
		{inference.Request{Plan: &big}, inference.ErrInvalidRequest},
		{inference.Request{Plan: plan, Resume: []uint32{0, 2}}, inference.ErrInvalidRequest},
		{inference.Request{Plan: plan, Resume: []uint32{0, 1, 2, 3}}, inference.ErrInvalidRequest},
	} {
		if _, _, err := run(t, m, &c.r); !errors.Is(err, c.want) {
			t.Errorf("%v, want %v", err, c.want)
		}
	}
	if _, _, err := run(t, echo.New(echo.Options{NoPlan: true}), &inference.Request{Plan: plan}); !errors.Is(err, inference.ErrInvalidRequest) {
		t.Errorf("%v, want %v", err, inference.ErrInvalidRequest)
	}
}

func TestRuntime(t *testing.T) {
	rt := echo.NewRuntime(echo.Options{})
	m, err := rt.Load(t.Context(), &inference.Manifest{Name: "parrot"}, "", "", func(done, total int64) {})
	if err != nil || rt.Name() != "echo" {
		t.Fatalf("runtime %q: %v", rt.Name(), err)
	}
	usage, err := m.Run(t.Context(), say("hi"), func(inference.Chunk) error { return nil })
	if err != nil || usage.Model != "parrot" {
		t.Fatalf("%+v, %v", usage, err)
	}
	if _, ok := m.(inference.Planner); !ok {
		t.Error("the model cannot plan")
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := rt.Load(ctx, &inference.Manifest{}, "", "", nil); err == nil {
		t.Error("loaded after the end of the context")
	}
}

func ExampleModel() {
	m := echo.New(echo.Options{})
	defer m.Close()
	usage, err := m.Run(context.Background(), say("/echo n=4"), func(c inference.Chunk) error {
		fmt.Print(c.Text)
		return nil
	})
	fmt.Println(usage.Finish, err)
	// Output: tok0 tok1 tok2 tok3 stop <nil>
}
