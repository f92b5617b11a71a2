package scheduler

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/holdfast-ai/holdfast/inference"
)

// errAbandoned is the cause of a run whose caller is gone without an error: its emit panicked.
var errAbandoned = errors.New("the consumer of the answer is gone")

// run is one generation on its way through the scheduler. Its fields belong, one group after the other, to the caller
// of Run (until it is queued), to the scheduler's mutex, and to the scheduler's goroutine; the result belongs
// to whoever has seen done closed.
type run struct {
	ctx           context.Context // of the call of Run
	tenant, scope string
	turn          uint64
	sampling      inference.Sampling
	tokens        []uint32 // prompt and resumed tokens; the batcher's once placed
	prompt        int      // of tokens
	limit         int      // of the answer, in tokens
	out           chan inference.Chunk
	progress      *latest // nil if nobody listens
	done          chan struct{}
	queued        time.Time

	// guarded by Scheduler.mu
	cause  error // not nil: the run is to leave with it
	inStep bool
	ended  bool

	// of the scheduler's goroutine
	text       *TextStream
	step       int // of the next token in the answer
	started    time.Time
	firstToken time.Time

	usage inference.Usage
	err   error
}

// newRun prepares r to run p.
func (s *Scheduler) newRun(ctx context.Context, p *inference.Plan, r *inference.Request) *run {
	limit := s.stepper.context - len(p.Prompt)
	if p.Sampling.MaxTokens > 0 {
		limit = min(limit, p.Sampling.MaxTokens)
	}
	tokens := make([]uint32, 0, len(p.Prompt)+max(limit, len(r.Resume)))
	tokens = append(append(tokens, p.Prompt...), r.Resume...)
	x := &run{
		ctx: ctx, tenant: r.Tenant, scope: r.CacheScope, turn: r.Turn, sampling: p.Sampling,
		tokens: tokens, prompt: len(p.Prompt), limit: limit,
		out: make(chan inference.Chunk, s.o.Buffer), done: make(chan struct{}),
		text: NewTextStream(s.tokenizer, p.Sampling.Stop, r.Resume), step: len(r.Resume),
		usage: inference.Usage{Model: s.o.Model, PromptTokens: len(p.Prompt)},
	}
	if r.Progress != nil {
		x.progress = &latest{ready: make(chan struct{}, 1)}
	}
	x.usage.Finish, _ = x.finished(s.tokenizer)
	return x
}

// finished reports whether the resumed tokens are the whole answer already, and why it ended.
func (r *run) finished(t inference.Tokenizer) (inference.Finish, bool) {
	for _, token := range r.tokens[r.prompt:] {
		if t.IsEnd(token) {
			return inference.FinishStop, true
		}
	}
	switch {
	case r.text.Stopped():
		return inference.FinishStop, true
	case r.step >= r.limit:
		return inference.FinishLength, true
	}
	return "", false
}

// deliver hands chunks and progress to the caller, on the caller's goroutine, until the run has ended.
func (s *Scheduler) deliver(ctx context.Context, r *run, progress func(inference.Progress), emit func(inference.Chunk) error) (inference.Usage, error) {
	defer s.abandon(r, errAbandoned) // of effect only if emit or progress panics
	var news <-chan struct{}
	if r.progress != nil {
		news = r.progress.ready
	}
	stopped := func(err error) (inference.Usage, error) {
		s.abandon(r, err)
		<-r.done
		r.usage.Finish = ""
		return r.usage, err
	}
	for running := true; running; {
		select {
		case <-news:
			if p := r.progress.take(); p != nil && ctx.Err() == nil {
				progress(*p)
			}
		case c := <-r.out:
			s.signal()
			if ctx.Err() != nil {
				return stopped(context.Cause(ctx))
			}
			if err := emit(c); err != nil {
				return stopped(err)
			}
		case <-r.done:
			running = false
		}
	}
	for len(r.out) > 0 {
		if ctx.Err() != nil {
			return stopped(context.Cause(ctx))
		}
		if err := emit(<-r.out); err != nil {
			return stopped(err)
		}
	}
	return r.usage, r.err
}

// latest is a mailbox for one Progress; a newer one replaces an older one.
type latest struct {
	value atomic.Pointer[inference.Progress]
	ready chan struct{}
}

// set never blocks. A nil latest drops everything.
func (l *latest) set(p inference.Progress) {
	if l == nil {
		return
	}
	l.value.Store(&p)
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

func (l *latest) take() *inference.Progress { return l.value.Swap(nil) }
