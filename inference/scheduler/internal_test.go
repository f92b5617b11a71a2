package scheduler

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/inferencetest"
)

func newTestScheduler(t *testing.T, so inferencetest.StepperOptions, o Options) *Scheduler {
	t.Helper()
	s, err := New(inferencetest.NewStepper(so), inferencetest.Tokenizer{}, inferencetest.Template{}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestStepIsCancelledWhenTheLastRunGoes holds a step of two runs, so that the goroutine's fields stand still.
func TestStepIsCancelledWhenTheLastRunGoes(t *testing.T) {
	entered, pass := make(chan context.Context), make(chan struct{})
	s := newTestScheduler(t, inferencetest.StepperOptions{Slots: 2, Before: func(ctx context.Context, _ []inference.Row) error {
		entered <- ctx
		<-pass
		return context.Cause(ctx)
	}}, Options{})
	ended := make(chan error, 2)
	run := func(progress func(inference.Progress)) {
		p := &inference.Plan{Prompt: make([]uint32, 100)}
		_, err := s.Run(context.Background(), &inference.Request{Plan: p, Progress: progress}, nil)
		ended <- err
	}
	go run(nil)
	<-entered
	queued := make(chan inference.Progress, 10)
	go run(func(p inference.Progress) { queued <- p })
	<-queued
	pass <- struct{}{}
	ctx := <-entered
	cause := errors.New("stop")
	s.abandon(s.runs[0], cause)
	if ctx.Err() != nil {
		t.Error("a step that another run wants was cancelled")
	}
	s.abandon(s.runs[1], cause)
	if context.Cause(ctx) != cause {
		t.Errorf("the step goes on, though nobody wants it: %v", context.Cause(ctx))
	}
	pass <- struct{}{}
	for range 2 {
		if err := <-ended; err != cause {
			t.Errorf("%v, want %v", err, cause)
		}
	}
}

// TestLastStepMayBringTwoChunks dictates an answer whose last token sets free one chunk, and whose end another, to
// a reader that is a chunk behind.
func TestLastStepMayBringTwoChunks(t *testing.T) {
	const ab = 259 // the fake tokenizer's "ab"
	dictated := []uint32{'z', 'z', ab, ab}
	const prompt = 3
	s := newTestScheduler(t, inferencetest.StepperOptions{Change: func(r inference.Row, logits []float32) {
		logits[dictated[r.Position-(prompt-1)]] = 1000
	}}, Options{Buffer: 2})
	p := &inference.Plan{Prompt: make([]uint32, prompt), Sampling: inference.Sampling{MaxTokens: len(dictated), Stop: []string{"abc"}}}
	release, stuck := make(chan struct{}), make(chan struct{})
	go func() {
		<-stuck
		// Give the reader's run every chance to run ahead: others come and go.
		for range 5 {
			q := &inference.Plan{Prompt: make([]uint32, prompt), Sampling: inference.Sampling{MaxTokens: 4}}
			if _, err := s.Run(context.Background(), &inference.Request{Plan: q}, func(inference.Chunk) error { return nil }); err != nil {
				t.Error(err)
			}
		}
		close(release)
	}()
	var got []string
	_, err := s.Run(context.Background(), &inference.Request{Plan: p}, func(c inference.Chunk) error {
		if len(got) == 0 {
			close(stuck)
			<-release
		}
		got = append(got, c.Text)
		return nil
	})
	if want := []string{"z", "z", "ab", "ab"}; err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%q, %v; want %q", got, err, want)
	}
}
