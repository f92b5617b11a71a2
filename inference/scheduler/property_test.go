package scheduler

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/inferencetest"
)

// expected computes an answer without slots, batches and caches: token after token from the whole history.
func expected(m *inferencetest.Stepper, p *inference.Plan, turn uint64) ([]inference.Chunk, inference.Finish) {
	tok, s := inferencetest.Tokenizer{}, newSampler(m.Vocabulary())
	history := append([]uint32(nil), p.Prompt...)
	text := NewTextStream(tok, p.Sampling.Stop, nil)
	var chunks []inference.Chunk
	for step := 0; ; step++ {
		finish := inference.Finish("")
		if step == p.Sampling.MaxTokens {
			finish = inference.FinishLength
		} else {
			token, err := s.sample(m.Logits(history), &p.Sampling, turn, uint64(step))
			if err != nil {
				panic(err)
			}
			if tok.IsEnd(token) {
				finish = inference.FinishStop
			} else {
				history = append(history, token)
				if c, ok := text.Push(token); ok {
					chunks = append(chunks, c)
				}
				if text.Stopped() {
					return chunks, inference.FinishStop
				}
			}
		}
		if finish != "" {
			if c, ok := text.Finish(); ok {
				chunks = append(chunks, c)
			}
			return chunks, finish
		}
	}
}

// client is one run of a scenario.
type client struct {
	request  inference.Request
	want     []inference.Chunk
	finish   inference.Finish
	resumed  int // chunks of want
	cancelAt int // after this many chunks; -1: never
	failAt   int // emit fails at this chunk; -1: never
	yields   int // of the processor, for every chunk

	got   []inference.Chunk
	usage inference.Usage
	err   error
}

var (
	errStop = errors.New("stopped by its user")
	errEmit = errors.New("emit failed")
)

func drawClient(t *rapid.T, i int) *client {
	words := []string{"once ", "upon ", "a ", "time ", "there was "}
	c := &client{
		cancelAt: rapid.SampledFrom([]int{-1, -1, -1, 0, 1, 5}).Draw(t, "cancel at"),
		failAt:   rapid.SampledFrom([]int{-1, -1, -1, -1, 0, 3}).Draw(t, "fail at"),
		yields:   rapid.SampledFrom([]int{0, 0, 1, 50}).Draw(t, "yields"),
	}
	message := strings.Repeat(words[0], rapid.IntRange(0, 9).Draw(t, "common")) + // prefixes worth sharing
		strings.Join(rapid.SliceOfN(rapid.SampledFrom(words), 1, 12).Draw(t, "words"), "")
	c.request = inference.Request{
		Messages: []inference.Message{{Role: inference.User, Content: message}},
		Sampling: inference.Sampling{
			Temperature: rapid.SampledFrom([]float32{0, 0.7, 1.5}).Draw(t, "temperature"),
			TopK:        rapid.SampledFrom([]int{0, 5}).Draw(t, "top-k"),
			TopP:        rapid.SampledFrom([]float32{0, 0.9}).Draw(t, "top-p"),
			Seed:        rapid.Uint64Range(0, 3).Draw(t, "seed"),
			MaxTokens:   rapid.IntRange(1, 60).Draw(t, "max tokens"),
			Stop:        rapid.SliceOfN(rapid.SampledFrom([]string{"ab", "stop", "é€", "cd the "}), 0, 2).Draw(t, "stop"),
		},
		Tenant:     rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant"),
		CacheScope: rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "scope"),
		Turn:       uint64(i),
	}
	if rapid.Bool().Draw(t, "watch") {
		c.request.Progress = func(inference.Progress) { runtime.Gosched() }
	}
	return c
}

func (c *client) run(s *Scheduler) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	c.usage, c.err = s.Run(ctx, &c.request, func(chunk inference.Chunk) error {
		for range c.yields {
			runtime.Gosched()
		}
		if len(c.got) == c.failAt {
			return errEmit
		}
		c.got = append(c.got, chunk)
		if len(c.got) == c.cancelAt {
			cancel(errStop)
		}
		return nil
	})
}

// check compares what came with the answer as computed alone.
func (c *client) check() error {
	want := c.want[c.resumed:]
	wantErr := error(nil)
	switch {
	case c.failAt >= 0 && c.failAt < len(want) && (c.cancelAt <= 0 || c.cancelAt > c.failAt):
		want, wantErr = want[:c.failAt], errEmit
	case c.cancelAt > 0 && c.cancelAt < len(want):
		want, wantErr = want[:c.cancelAt], errStop
	case c.cancelAt > 0 && c.cancelAt == len(want): // as it ends: either is right
		wantErr = c.err
		if c.err != nil && c.err != errStop {
			return c.err
		}
	}
	if c.err != wantErr {
		return fmt.Errorf("error %w, want %v", c.err, wantErr)
	}
	if len(c.got) != len(want) || len(want) > 0 && !reflect.DeepEqual(c.got, want) {
		return fmt.Errorf("chunks %v, want %v", c.got, want)
	}
	if c.err == nil && c.usage.Finish != c.finish {
		return fmt.Errorf("finish %q, want %q", c.usage.Finish, c.finish)
	}
	if c.usage.CachedPromptTokens > 0 && c.request.CacheScope == "" {
		return fmt.Errorf("%d tokens from a cache without a scope", c.usage.CachedPromptTokens)
	}
	return nil
}

// TestEveryAnswerIsItsOwn runs random clients together, on schedulers of random shapes: whatever the others do, and
// however slow they are, each gets the answer that it would get alone, or the beginning of it that it asked for.
func TestEveryAnswerIsItsOwn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stepper := inferencetest.NewStepper(inferencetest.StepperOptions{
			Slots:   rapid.IntRange(1, 5).Draw(t, "slots"),
			Rows:    rapid.IntRange(1, 24).Draw(t, "rows"),
			Logits:  rapid.IntRange(1, 5).Draw(t, "logits"),
			EndBias: rapid.SampledFrom([]float32{0, -1, -20}).Draw(t, "end bias"),
		})
		s, err := New(stepper, inferencetest.Tokenizer{}, inferencetest.Template{}, Options{
			Buffer:      rapid.IntRange(2, 8).Draw(t, "buffer"),
			PrefillRows: rapid.IntRange(1, 16).Draw(t, "prefill rows"),
		})
		if err != nil {
			t.Fatal(err)
		}
		clients := make([]*client, rapid.IntRange(1, 14).Draw(t, "clients"))
		for i := range clients {
			c := drawClient(t, i)
			p, err := s.Plan(context.Background(), &c.request)
			if err != nil {
				t.Fatal(err)
			}
			c.want, c.finish = expected(stepper, p, c.request.Turn)
			if rapid.Bool().Draw(t, "resumed") {
				c.resumed = rapid.IntRange(0, len(c.want)).Draw(t, "after chunks")
				for _, chunk := range c.want[:c.resumed] {
					c.request.Resume = append(c.request.Resume, chunk.Tokens...)
				}
				c.request.Plan, c.request.Messages = p, nil
			}
			clients[i] = c
		}
		var wg sync.WaitGroup
		for _, c := range clients {
			wg.Go(func() { c.run(s) })
		}
		wg.Wait()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for i, c := range clients {
			if err := c.check(); err != nil {
				t.Errorf("client %d: %v", i, err)
			}
		}
		for _, v := range stepper.Violations() {
			t.Error(v)
		}
	})
}

// TestAnswersEndWhenTheModelCloses closes at a random moment: every run ends, with its answer or with ErrClosed.
func TestAnswersEndWhenTheModelCloses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stepper := inferencetest.NewStepper(inferencetest.StepperOptions{Slots: 2})
		s, err := New(stepper, inferencetest.Tokenizer{}, inferencetest.Template{}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		n, closeAt := rapid.IntRange(1, 8).Draw(t, "clients"), rapid.IntRange(1, 40).Draw(t, "close at chunk")
		var wg sync.WaitGroup
		reached := make(chan struct{}, n*1000)
		for i := range n {
			c := drawClient(t, i)
			c.cancelAt, c.failAt = -1, -1
			wg.Go(func() {
				_, err := s.Run(context.Background(), &c.request, func(inference.Chunk) error {
					reached <- struct{}{}
					return nil
				})
				if err != nil && !errors.Is(err, inference.ErrClosed) {
					t.Errorf("run: %v", err)
				}
			})
		}
		ended := make(chan struct{})
		go func() { wg.Wait(); close(ended) }()
	wait:
		for range closeAt {
			select {
			case <-reached:
			case <-ended:
				break wait
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		<-ended
		for _, v := range stepper.Violations() {
			t.Error(v)
		}
	})
}
