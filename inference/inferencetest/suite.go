package inferencetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/holdfast-ai/holdfast/inference"
)

// Model is what the suite tests.
type Model interface {
	inference.Planner
	Close() error
}

// Config says how to test a model. Open and Ask are required.
type Config struct {
	// Open returns a fresh model. The suite closes it.
	Open func(t *testing.T) Model
	// Ask is a message whose answer has at least 8 tokens, greedy and with temperature 1 and seed 7, and takes
	// the model at least 4 chunks.
	Ask string
	// Tokens is the greatest length of answers that the suite asks for: 32.
	Tokens int
	// NoPlan says that the model cannot continue answers.
	NoPlan bool
	// Bad lists further messages that the model must refuse with inference.ErrInvalidRequest.
	Bad []string
}

type suite struct{ Config }

// Run runs the suite.
func Run(t *testing.T, c Config) {
	if c.Tokens == 0 {
		c.Tokens = 32
	}
	s := suite{c}
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"Stream", s.stream},
		{"SameRequestSameAnswer", s.repeat},
		{"MaxTokens", s.maxTokens},
		{"StopString", s.stopString},
		{"Cancel", s.cancel},
		{"CancelledBefore", s.cancelledBefore},
		{"EmitError", s.emitError},
		{"SlowEmitDelaysNobody", s.slowEmit},
		{"ConcurrentAnswersAreTheirOwn", s.concurrent},
		{"Resume", s.resume},
		{"BadRequest", s.badRequest},
		{"Progress", s.progress},
		{"Closed", s.closed},
		{"CloseWhileRunning", s.closeWhileRunning},
	} {
		t.Run(test.name, test.run)
	}
}

func (s suite) open(t *testing.T) Model {
	t.Helper()
	m := s.Open(t)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return m
}

func (s suite) request(temperature float32) *inference.Request {
	return &inference.Request{
		Messages: []inference.Message{
			{Role: inference.System, Content: "You are brief."},
			{Role: inference.User, Content: s.Ask},
		},
		Sampling: inference.Sampling{Temperature: temperature, Seed: 7, MaxTokens: s.Tokens},
		Tenant:   "suite", Turn: 5,
	}
}

// answer is a whole answer.
type answer struct {
	chunks []inference.Chunk
	usage  inference.Usage
}

func (a answer) text() string {
	var b strings.Builder
	for _, c := range a.chunks {
		b.WriteString(c.Text)
	}
	return b.String()
}

func (a answer) tokens() []uint32 {
	var all []uint32
	for _, c := range a.chunks {
		all = append(all, c.Tokens...)
	}
	return all
}

// ask runs r to its end and checks what holds for every answer.
func (s suite) ask(t *testing.T, m Model, r *inference.Request) answer {
	t.Helper()
	var a answer
	usage, err := m.Run(t.Context(), r, func(c inference.Chunk) error {
		a.chunks = append(a.chunks, c) // unguarded: the race detector sees an emit on another goroutine
		return nil
	})
	if err != nil {
		t.Fatalf("run: %v", err)
	}
	a.usage = usage
	if err := a.valid(len(r.Resume), s.NoPlan); err != nil {
		t.Fatal(err)
	}
	return a
}

// valid checks the invariants of inference.Chunk.
func (a answer) valid(step int, noTokens bool) error {
	resumed := step
	for i, c := range a.chunks {
		if c.Step != step {
			return fmt.Errorf("chunk %d begins at step %d, want %d", i, c.Step, step)
		}
		if !utf8.ValidString(c.Text) {
			return fmt.Errorf("chunk %d is not UTF-8: %q", i, c.Text)
		}
		switch {
		case noTokens && len(c.Tokens) > 0:
			return fmt.Errorf("chunk %d has tokens, though the model cannot continue", i)
		case !noTokens && len(c.Tokens) == 0:
			return fmt.Errorf("chunk %d has no tokens", i)
		}
		step += len(c.Tokens)
		if noTokens {
			step++
		}
	}
	u := a.usage
	if !noTokens && u.CompletionTokens != step-resumed {
		return fmt.Errorf("usage says %d tokens, the chunks have %d", u.CompletionTokens, step-resumed)
	}
	if u.PromptTokens <= 0 || u.CachedPromptTokens < 0 || u.CachedPromptTokens > u.PromptTokens || u.Finish == "" {
		return fmt.Errorf("usage is incomplete: %+v", u)
	}
	return nil
}

func (s suite) stream(t *testing.T) {
	for _, temperature := range []float32{0, 1} {
		a := s.ask(t, s.open(t), s.request(temperature))
		if len(a.chunks) < 4 || a.usage.CompletionTokens < 8 || strings.TrimSpace(a.text()) == "" {
			t.Fatalf("temperature %v: %d tokens in %d chunks, %q: the suite needs a longer answer",
				temperature, a.usage.CompletionTokens, len(a.chunks), a.text())
		}
	}
}

func (s suite) repeat(t *testing.T) {
	m := s.open(t)
	for _, temperature := range []float32{0, 1} {
		first, again := s.ask(t, m, s.request(temperature)), s.ask(t, m, s.request(temperature))
		if !reflect.DeepEqual(first.chunks, again.chunks) {
			t.Fatalf("temperature %v: %q, then %q", temperature, first.text(), again.text())
		}
	}
}

func (s suite) maxTokens(t *testing.T) {
	m := s.open(t)
	whole := s.ask(t, m, s.request(0))
	for n := 1; n < 8; n++ {
		r := s.request(0)
		r.Sampling.MaxTokens = n
		a := s.ask(t, m, r)
		if a.usage.CompletionTokens != n || a.usage.Finish != inference.FinishLength {
			t.Fatalf("%d tokens asked for: %+v", n, a.usage)
		}
		if !s.NoPlan && !reflect.DeepEqual(a.tokens(), whole.tokens()[:n]) {
			t.Fatalf("%d tokens: %v, want the first of %v", n, a.tokens(), whole.tokens())
		}
	}
}

func (s suite) stopString(t *testing.T) {
	m := s.open(t)
	whole := s.ask(t, m, s.request(0))
	text := whole.text()
	var tried int
	for i := range whole.chunks[:len(whole.chunks)-1] {
		a, b := whole.chunks[i].Text, whole.chunks[i+1].Text
		if a == "" || b == "" {
			continue
		}
		_, n := utf8.DecodeLastRuneInString(a)
		_, k := utf8.DecodeRuneInString(b)
		stop := a[len(a)-n:] + b[:k] // over the border of two chunks
		if strings.ContainsRune(stop, utf8.RuneError) {
			continue // may be bytes that are no character
		}
		tried++
		r := s.request(0)
		r.Sampling.Stop = []string{"\x01never", stop}
		got := s.ask(t, m, r)
		if want, _, _ := strings.Cut(text, stop); got.text() != want || got.usage.Finish != inference.FinishStop {
			t.Fatalf("stop %q: %q (%s), want %q", stop, got.text(), got.usage.Finish, want)
		}
		if s.NoPlan {
			continue
		}
		if n := len(got.tokens()); !reflect.DeepEqual(got.tokens(), whole.tokens()[:n]) {
			t.Fatalf("stop %q: tokens %v, want the first of %v", stop, got.tokens(), whole.tokens())
		}
	}
	if tried == 0 {
		t.Fatal("the answer has no two chunks with text")
	}
}

func (s suite) cancel(t *testing.T) {
	m := s.open(t)
	cause := errors.New("the user said stop")
	for n := 1; n <= 3; n++ {
		ctx, cancel := context.WithCancelCause(t.Context())
		got := 0
		usage, err := m.Run(ctx, s.request(0), func(inference.Chunk) error {
			if got++; got == n {
				cancel(cause)
			}
			return nil
		})
		cancel(nil)
		if !errors.Is(err, cause) || got != n || usage.Finish != "" {
			t.Fatalf("cancelled at chunk %d: %d chunks, finish %q, %v", n, got, usage.Finish, err)
		}
	}
	s.ask(t, m, s.request(0)) // it still works
}

func (s suite) cancelledBefore(t *testing.T) {
	m := s.open(t)
	cause := errors.New("too late")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	_, err := m.Run(ctx, s.request(0), func(inference.Chunk) error {
		t.Error("a chunk after the end of the context")
		return nil
	})
	if !errors.Is(err, cause) {
		t.Fatalf("run: %v, want %v", err, cause)
	}
}

func (s suite) emitError(t *testing.T) {
	m := s.open(t)
	full := errors.New("disk full")
	for n := 1; n <= 3; n++ {
		got := 0
		_, err := m.Run(t.Context(), s.request(0), func(inference.Chunk) error {
			if got++; got == n {
				return full
			}
			return nil
		})
		if !errors.Is(err, full) || got != n {
			t.Fatalf("emit failed at chunk %d: %d chunks, error %v", n, got, err)
		}
	}
}

func (s suite) slowEmit(t *testing.T) {
	m := s.open(t)
	want := s.ask(t, m, s.request(0))
	reached, release := make(chan struct{}), make(chan struct{})
	var slow answer
	var err error
	var wg sync.WaitGroup
	wg.Go(func() {
		slow.usage, err = m.Run(t.Context(), s.request(0), func(c inference.Chunk) error {
			if len(slow.chunks) == 0 {
				close(reached)
				<-release
			}
			slow.chunks = append(slow.chunks, c)
			return nil
		})
	})
	<-reached
	for range 3 {
		if got := s.ask(t, m, s.request(0)); !reflect.DeepEqual(got.chunks, want.chunks) {
			t.Errorf("beside a slow reader: %q, want %q", got.text(), want.text())
		}
	}
	close(release)
	wg.Wait()
	if err != nil || !reflect.DeepEqual(slow.chunks, want.chunks) {
		t.Fatalf("slow reader: %q, want %q; %v", slow.text(), want.text(), err)
	}
}

func (s suite) concurrent(t *testing.T) {
	m := s.open(t)
	request := func(i int) *inference.Request {
		r := s.request(float32(i % 2))
		r.Sampling.Seed = 7 + uint64(i)
		r.Turn = uint64(i)
		r.Tenant = fmt.Sprint("tenant", i%3)
		r.CacheScope = fmt.Sprint("scope", i%2)
		return r
	}
	const n = 12
	var want, got [n]answer
	for i := range n {
		want[i] = s.ask(t, m, request(i))
	}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			var err error
			got[i].usage, err = m.Run(t.Context(), request(i), func(c inference.Chunk) error {
				got[i].chunks = append(got[i].chunks, c)
				return nil
			})
			if err != nil {
				t.Errorf("run %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	for i := range n {
		if !reflect.DeepEqual(got[i].chunks, want[i].chunks) {
			t.Errorf("run %d: %q in company, %q alone", i, got[i].text(), want[i].text())
		}
	}
}

func (s suite) resume(t *testing.T) {
	m := s.open(t)
	if s.NoPlan {
		if p, err := m.Plan(t.Context(), s.request(0)); p != nil || err != nil {
			t.Fatalf("plan: %v, %v; want nil for a model that cannot continue", p, err)
		}
		return
	}
	for _, temperature := range []float32{0, 1} {
		r := s.request(temperature)
		p, err := m.Plan(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if p.Model == "" && p.Digest == "" || p.Template == "" || len(p.Prompt) == 0 || p.Sampling.MaxTokens == 0 {
			t.Fatalf("plan is incomplete: %+v", p)
		}
		whole := s.ask(t, m, r)
		planned := *r
		planned.Messages, planned.Sampling, planned.Plan = nil, inference.Sampling{}, p
		for cut := 0; cut <= len(whole.chunks); cut++ {
			planned.Resume = answer{chunks: whole.chunks[:cut]}.tokens()
			rest := s.ask(t, m, &planned)
			if len(rest.chunks) != len(whole.chunks)-cut || len(rest.chunks) > 0 && !reflect.DeepEqual(rest.chunks, whole.chunks[cut:]) {
				t.Fatalf("temperature %v, resumed after chunk %d: %q, want %q", temperature, cut, rest.text(), answer{chunks: whole.chunks[cut:]}.text())
			}
			if rest.usage.Finish != whole.usage.Finish {
				t.Fatalf("resumed after chunk %d: finished with %q, want %q", cut, rest.usage.Finish, whole.usage.Finish)
			}
		}
	}
}

func (s suite) badRequest(t *testing.T) {
	m := s.open(t)
	cases := map[string]func(*inference.Request){
		"no messages":          func(r *inference.Request) { r.Messages = nil },
		"unknown role":         func(r *inference.Request) { r.Messages[0].Role = "root" },
		"message not UTF-8":    func(r *inference.Request) { r.Messages[1].Content = "a\xffb" },
		"negative temperature": func(r *inference.Request) { r.Sampling.Temperature = -1 },
		"temperature 6":        func(r *inference.Request) { r.Sampling.Temperature = 6 },
		"top-p 1.5":            func(r *inference.Request) { r.Sampling.TopP = 1.5 },
		"negative top-k":       func(r *inference.Request) { r.Sampling.TopK = -1 },
		"negative length":      func(r *inference.Request) { r.Sampling.MaxTokens = -1 },
		"empty stop string":    func(r *inference.Request) { r.Sampling.Stop = []string{""} },
		"long stop string":     func(r *inference.Request) { r.Sampling.Stop = []string{strings.Repeat("x", 257)} },
		"nine stop strings":    func(r *inference.Request) { r.Sampling.Stop = strings.Split("abcdefghi", "") },
		"plan without prompt":  func(r *inference.Request) { r.Plan = &inference.Plan{} },
	}
	for _, message := range s.Bad {
		cases["message "+message] = func(r *inference.Request) { r.Messages[1].Content = message }
	}
	for name, spoil := range cases {
		t.Run(name, func(t *testing.T) {
			r := s.request(0)
			spoil(r)
			_, err := m.Run(t.Context(), r, func(inference.Chunk) error {
				t.Error("a chunk of a bad request")
				return nil
			})
			if !errors.Is(err, inference.ErrInvalidRequest) {
				t.Fatalf("run: %v, want %v", err, inference.ErrInvalidRequest)
			}
			if r.Plan != nil {
				return
			}
			if _, err := m.Plan(t.Context(), r); !errors.Is(err, inference.ErrInvalidRequest) {
				t.Fatalf("plan: %v, want %v", err, inference.ErrInvalidRequest)
			}
		})
	}
}

func (s suite) progress(t *testing.T) {
	m := s.open(t)
	r := s.request(0)
	var last inference.Phase // unguarded: on the caller's goroutine, as emit
	r.Progress = func(p inference.Progress) {
		if p.Phase < last || p.Phase > inference.Running {
			t.Errorf("phase %d after %d", p.Phase, last)
		}
		if p.Phase == inference.Queued && (p.Position < 1 || p.Position > p.Waiting) {
			t.Errorf("position %d of %d", p.Position, p.Waiting)
		}
		last = p.Phase
	}
	s.ask(t, m, r)
	last = inference.Running + 1 // any call after Run has returned is a race and an error
	s.ask(t, m, s.request(0))
}

func (s suite) closed(t *testing.T) {
	m := s.Open(t)
	for range 2 {
		if err := m.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	if _, err := m.Run(t.Context(), s.request(0), func(inference.Chunk) error { return nil }); !errors.Is(err, inference.ErrClosed) {
		t.Errorf("run after close: %v", err)
	}
	if _, err := m.Plan(t.Context(), s.request(0)); !errors.Is(err, inference.ErrClosed) {
		t.Errorf("plan after close: %v", err)
	}
}

// closeWhileRunning closes while a chunk is being emitted: what was computed may still come, then the run ends.
func (s suite) closeWhileRunning(t *testing.T) {
	m := s.open(t)
	whole := s.ask(t, m, s.request(0))
	var got answer
	_, err := m.Run(t.Context(), s.request(0), func(c inference.Chunk) error {
		if got.chunks = append(got.chunks, c); len(got.chunks) == 1 {
			if err := m.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, inference.ErrClosed) {
		t.Fatalf("run: %v, want the answer or %v", err, inference.ErrClosed)
	}
	if err == nil && len(got.chunks) < len(whole.chunks) {
		t.Fatalf("no error, but only %d of %d chunks", len(got.chunks), len(whole.chunks))
	}
	if len(got.chunks) > len(whole.chunks) || !reflect.DeepEqual(got.chunks, whole.chunks[:len(got.chunks)]) {
		t.Fatalf("%q is not the beginning of %q", got.text(), whole.text())
	}
}
