package scheduler

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/internal/invariants"
)

// Scheduler is a model that serves many generations at once; see the package comment. Its methods may be called
// concurrently. The goroutine that New starts is the only one to use the stepper, and Close waits for it.
type Scheduler struct {
	o             Options
	stepper       shape
	tokenizer     inference.Tokenizer
	template      inference.Template
	vocabulary    int // of the tokenizer; a model may have padding beyond
	maxTokenBytes int
	metrics       *metrics

	wake     chan struct{} // holds a token if something changed for the goroutine
	done     chan struct{} // closed when the goroutine has ended
	callers  sync.WaitGroup
	closing  sync.Once
	closeErr error

	mu struct {
		sync.Mutex
		closed bool
		broken error // not nil: the model is of no more use
		queue  *queue
		live   int                     // runs of the current step that still want it
		cancel context.CancelCauseFunc // of the current step
	}

	// of the goroutine
	model    inference.Stepper
	batch    *batcher
	runs     []*run // by slot; nil if idle
	sampler  *sampler
	wanting  []int           // slots of the current step that want logits
	ctx      context.Context // of the steps; replaced once cancelled
	failures int             // in a row
}

// shape is what the stepper said of itself in New.
type shape struct{ slots, rows, logits, context, vocabulary int }

var _ inference.Planner = (*Scheduler)(nil)

// New starts a scheduler that owns stepper. If New fails the stepper is still the caller's.
func New(stepper inference.Stepper, tok inference.Tokenizer, tmpl inference.Template, o Options) (*Scheduler, error) {
	sh := shape{stepper.Slots(), stepper.MaxRows(), stepper.MaxLogits(), stepper.Context(), stepper.Vocabulary()}
	vocabulary := tok.Vocabulary()
	if sh.slots < 1 || sh.rows < 1 || sh.logits < 1 || sh.context < 2 || vocabulary < 1 || sh.vocabulary < vocabulary {
		return nil, fmt.Errorf("scheduler: model %q has %d slots, %d rows and %d logits a step, %d positions and %d logits for %d tokens: %w",
			o.Model, sh.slots, sh.rows, sh.logits, sh.context, sh.vocabulary, vocabulary, inference.ErrModelUnavailable)
	}
	o, err := o.withDefaults(stepper)
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(o.Registerer, o.Model)
	if err != nil {
		return nil, err
	}
	s := &Scheduler{
		o: o, stepper: sh, tokenizer: tok, template: tmpl, vocabulary: vocabulary, metrics: m,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
		model: stepper, batch: newBatcher(sh.slots, sh.rows, sh.logits, o.PrefillRows),
		runs: make([]*run, sh.slots), sampler: newSampler(vocabulary), wanting: make([]int, 0, sh.slots),
	}
	for t := range vocabulary {
		s.maxTokenBytes = max(1, s.maxTokenBytes, len(tok.Bytes(uint32(t))))
	}
	s.mu.queue = newQueue(o.QueueLimit, o.TenantLimit)
	m.slots.Set(float64(sh.slots))
	go s.loop()
	return s, nil
}

// Run implements inference.Runner. It returns after the run has left its slot. Beyond the errors documented there it
// fails with ErrOverloaded if the queue, or the tenant's share of it, is full.
func (s *Scheduler) Run(ctx context.Context, req *inference.Request, emit func(inference.Chunk) error) (inference.Usage, error) {
	r, err := s.prepare(ctx, req)
	if err != nil {
		s.metrics.runs.WithLabelValues(outcome("", err)).Inc()
		return inference.Usage{Model: s.o.Model}, err
	}
	if r.usage.Finish != "" { // the resumed tokens are the whole answer
		return r.usage, nil
	}
	if err := s.enqueue(r); err != nil {
		s.metrics.runs.WithLabelValues(outcome("", err)).Inc()
		return r.usage, err
	}
	stop := context.AfterFunc(ctx, func() { s.abandon(r, context.Cause(ctx)) })
	defer stop()
	return s.deliver(ctx, r, req.Progress, emit)
}

// prepare does what needs the tokenizer, which a closed model may no longer have.
func (s *Scheduler) prepare(ctx context.Context, req *inference.Request) (*run, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.callers.Done()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	p := req.Plan
	if p == nil {
		var err error
		if p, err = s.plan(ctx, req); err != nil {
			return nil, err
		}
	}
	if err := s.validPlan(p, req.Resume); err != nil {
		return nil, err
	}
	return s.newRun(ctx, p, req), nil
}

// enter counts a caller that uses the tokenizer; it must call s.callers.Done.
func (s *Scheduler) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refusalLocked(); err != nil {
		return err
	}
	s.callers.Add(1)
	return nil
}

func (s *Scheduler) refusalLocked() error {
	if s.mu.closed {
		return fmt.Errorf("scheduler: model %q: %w", s.o.Model, inference.ErrClosed)
	}
	return s.mu.broken
}

func (s *Scheduler) enqueue(r *run) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refusalLocked(); err != nil {
		return err
	}
	r.queued = s.o.Clock.Now()
	if !s.mu.queue.push(r) {
		return fmt.Errorf("scheduler: %d generations wait for model %q, the most for all is %d and for one tenant %d: %w; try again later",
			s.mu.queue.size, s.o.Model, s.o.QueueLimit, s.o.TenantLimit, inference.ErrOverloaded)
	}
	s.queueChangedLocked()
	s.signal()
	return nil
}

// queueChangedLocked tells the waiting where they stand.
func (s *Scheduler) queueChangedLocked() {
	size := s.mu.queue.size
	s.metrics.waiting.Set(float64(size))
	s.mu.queue.order(func(r *run, position int) {
		r.progress.set(inference.Progress{Phase: inference.Queued, Position: position, Waiting: size})
	})
}

// abandon makes r end with cause, unless it has ended: at once if it waits, else within a step. The step itself
// is cancelled if nobody else wants it.
func (s *Scheduler) abandon(r *run, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.ended || r.cause != nil {
		return
	}
	r.cause = cause
	if s.mu.queue.remove(r) {
		s.endLocked(r, "", cause)
		s.queueChangedLocked()
		return
	}
	if r.inStep {
		r.inStep = false
		if s.mu.live--; s.mu.live == 0 {
			s.mu.cancel(cause)
		}
	}
	s.signal()
}

// endLocked gives r its result. Nobody touches r afterwards but the caller of Run.
func (s *Scheduler) endLocked(r *run, finish inference.Finish, err error) {
	now := s.o.Clock.Now()
	switch {
	case r.started.IsZero():
	case r.firstToken.IsZero():
		r.usage.PromptTime = now.Sub(r.started)
	default:
		r.usage.PromptTime = r.firstToken.Sub(r.started)
		r.usage.CompletionTime = now.Sub(r.firstToken)
	}
	r.usage.Finish, r.err, r.ended = finish, err, true
	s.metrics.runs.WithLabelValues(outcome(finish, err)).Inc()
	close(r.done)
}

// outcome is the label of a run's end in metrics.
func outcome(finish inference.Finish, err error) string {
	switch {
	case err == nil:
		return string(finish)
	case errors.Is(err, inference.ErrOverloaded):
		return "overloaded"
	case errors.Is(err, inference.ErrClosed):
		return "closed"
	case errors.Is(err, inference.ErrModelUnavailable):
		return "unavailable"
	case errors.Is(err, inference.ErrInvalidRequest), errors.Is(err, inference.ErrContextOverflow):
		return "refused"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, errAbandoned):
		return "cancelled"
	}
	return "failed"
}

// signal makes the goroutine look again. It never blocks.
func (s *Scheduler) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Close fails the waiting and the running with ErrClosed, waits for the current step, which it cancels, and closes
// the stepper. It may be called more than once.
func (s *Scheduler) Close() error {
	s.closing.Do(func() {
		s.mu.Lock()
		s.mu.closed = true
		if s.mu.cancel != nil {
			s.mu.cancel(inference.ErrClosed)
		}
		s.mu.Unlock()
		s.signal()
		<-s.done
		s.callers.Wait()
		if err := s.model.Close(); err != nil {
			s.closeErr = fmt.Errorf("scheduler: close model %q: %w", s.o.Model, err)
		}
	})
	<-s.done
	return s.closeErr
}

// loop is the goroutine: admit, plan, step, sample, again.
func (s *Scheduler) loop() {
	defer close(s.done)
	for s.admit() {
		for i, r := range s.runs {
			s.batch.slots[i].blocked = r != nil && len(r.out) > cap(r.out)-2 // a last step may bring two chunks
		}
		rows := s.batch.plan()
		s.check()
		if len(rows) == 0 {
			<-s.wake
			continue
		}
		s.step(rows)
	}
}

func (s *Scheduler) check() {
	if !invariants.Enabled {
		return
	}
	if err := s.batch.valid(); err != nil {
		panic("scheduler: " + err.Error())
	}
}

// admit lets cancelled runs go and waiting ones in. It reports false if the scheduler is closed, with every run ended.
func (s *Scheduler) admit() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range s.runs {
		if r != nil && r.cause == nil && r.ctx.Err() != nil {
			r.cause = context.Cause(r.ctx) // abandon is on its way, but a step would be too long a wait for it
		}
		switch {
		case r == nil:
		case r.cause != nil:
			s.leaveLocked(i, "", r.cause, true)
		case s.mu.closed:
			s.leaveLocked(i, "", s.refusalLocked(), true)
		}
	}
	changed := false
	for s.mu.queue.size > 0 {
		if refusal := s.refusalLocked(); refusal != nil {
			s.endLocked(s.mu.queue.pop(), "", refusal)
		} else if !s.placeLocked() {
			break
		}
		changed = true
	}
	if changed {
		s.queueChangedLocked()
	}
	if s.mu.closed {
		s.metrics.slots.Set(0)
		if s.mu.cancel != nil {
			s.mu.cancel(inference.ErrClosed)
		}
	}
	return !s.mu.closed
}

// placeLocked moves the next waiting run to a slot, or reports false if none is idle.
func (s *Scheduler) placeLocked() bool {
	if !s.batch.idle() {
		return false
	}
	r := s.mu.queue.pop()
	i, reused := s.batch.place(r.tokens, r.scope)
	s.runs[i] = r
	r.started = s.o.Clock.Now()
	r.usage.CachedPromptTokens = min(reused, r.prompt)
	s.metrics.active.Inc()
	s.metrics.queueSeconds.Observe(r.started.Sub(r.queued).Seconds())
	s.metrics.promptTokens.Add(float64(r.prompt))
	s.metrics.cachedTokens.Add(float64(r.usage.CachedPromptTokens))
	r.progress.set(inference.Progress{Phase: inference.Prefill, Done: reused, Total: len(r.tokens)})
	return true
}

// leaveLocked ends the run of slot i. keep says whether what the slot's cache holds can be trusted.
func (s *Scheduler) leaveLocked(i int, finish inference.Finish, err error, keep bool) {
	r := s.runs[i]
	s.runs[i] = nil
	s.batch.release(i, keep)
	s.metrics.active.Dec()
	s.endLocked(r, finish, err)
}

func (s *Scheduler) leave(i int, finish inference.Finish, err error, keep bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaveLocked(i, finish, err, keep)
}

// step computes one batch and lets its results go out.
func (s *Scheduler) step(rows []inference.Row) {
	if !s.beginStep() {
		s.batch.discard()
		return
	}
	begin := s.o.Clock.Now()
	logits, panicked, err := s.compute(rows)
	if wanted := s.endStep(); !wanted && err != nil && !panicked {
		s.batch.discard() // cancelled: everyone in it is leaving
		return
	}
	s.metrics.stepSeconds.Observe(s.o.Clock.Now().Sub(begin).Seconds())
	s.metrics.stepRows.Observe(float64(len(rows)))
	if err != nil {
		s.fail(len(rows), panicked, err)
		return
	}
	s.failures = 0
	s.metrics.stepTokens.Observe(float64(len(logits)))
	s.batch.commit()
	for n, i := range s.wanting {
		s.next(i, logits[n][:s.vocabulary])
	}
	for i, r := range s.runs {
		if r != nil && r.firstToken.IsZero() {
			r.progress.set(inference.Progress{Phase: inference.Prefill, Done: s.batch.slots[i].computed, Total: len(r.tokens)})
		}
	}
}

// beginStep notes who is in the step, so that it can be cancelled when the last of them goes. It reports false if
// nobody wants it any more.
func (s *Scheduler) beginStep() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanting = s.wanting[:0]
	s.mu.live = 0
	for i, r := range s.runs {
		if s.batch.slots[i].planned == 0 {
			continue
		}
		if s.batch.slots[i].wantsLogits {
			s.wanting = append(s.wanting, i)
		}
		if r.cause == nil {
			r.inStep = true
			s.mu.live++
		}
	}
	if s.ctx == nil || s.ctx.Err() != nil {
		s.ctx, s.mu.cancel = context.WithCancelCause(context.Background())
	}
	if s.mu.live == 0 || s.mu.closed {
		for _, r := range s.runs {
			if r != nil {
				r.inStep = false
			}
		}
		return false
	}
	return true
}

// endStep reports whether anybody still wants the step's result.
func (s *Scheduler) endStep() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.runs {
		if r != nil {
			r.inStep = false
		}
	}
	return s.mu.live > 0 && !s.mu.closed
}

// compute is Step with its promises checked and panics contained.
func (s *Scheduler) compute(rows []inference.Row) (logits [][]float32, panicked bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			panicked, err = true, fmt.Errorf("the model panicked: %v", p)
			s.o.Logger.Error("model panicked", "model", s.o.Model, "rows", len(rows), "panic", p, "stack", string(debug.Stack()))
		}
	}()
	logits, err = s.model.Step(s.ctx, rows)
	if err != nil {
		return nil, false, err
	}
	if len(logits) != len(s.wanting) {
		return nil, false, fmt.Errorf("the model returned %d logits for %d", len(logits), len(s.wanting))
	}
	for _, l := range logits {
		if len(l) != s.stepper.vocabulary {
			return nil, false, fmt.Errorf("the model returned %d logits for a vocabulary of %d", len(l), s.stepper.vocabulary)
		}
	}
	return logits, false, nil
}

// fail ends the runs of a failed step; after a panic those of all slots, for the model's memory may be anything.
func (s *Scheduler) fail(rows int, panicked bool, err error) {
	s.failures++
	s.metrics.stepFailures.Inc()
	s.o.Logger.Error("model step failed", "model", s.o.Model, "rows", rows, "in_a_row", s.failures, "err", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failures >= s.o.MaxFailures {
		s.mu.broken = fmt.Errorf("scheduler: model %q failed %d steps in a row: %w; load it again; the last failure: %w",
			s.o.Model, s.failures, inference.ErrModelUnavailable, err)
	}
	for i, r := range s.runs {
		if !panicked && s.mu.broken == nil && s.batch.slots[i].planned == 0 {
			continue
		}
		switch {
		case r == nil:
			s.batch.forget(i)
		case r.cause != nil:
			s.leaveLocked(i, "", r.cause, false)
		case s.batch.slots[i].planned > 0:
			s.leaveLocked(i, "", fmt.Errorf("scheduler: step of %d rows of model %q: %w", rows, s.o.Model, err), false)
		case s.mu.broken != nil:
			s.leaveLocked(i, "", s.mu.broken, false)
		default:
			s.leaveLocked(i, "", fmt.Errorf("scheduler: step of model %q beside this answer: %w", s.o.Model, err), false)
		}
	}
	s.batch.discard()
}

// next chooses the next token of slot i and hands on what can leave.
func (s *Scheduler) next(i int, logits []float32) {
	r := s.runs[i]
	if r.firstToken.IsZero() {
		r.firstToken = s.o.Clock.Now()
		s.metrics.firstTokenSeconds.Observe(r.firstToken.Sub(r.queued).Seconds())
		r.progress.set(inference.Progress{Phase: inference.Running})
	}
	token, err := s.sampler.sample(logits, &r.sampling, r.turn, uint64(r.step))
	if err != nil {
		s.leave(i, "", fmt.Errorf("scheduler: token %d of the answer by model %q: %w", r.step, s.o.Model, err), false)
		return
	}
	if s.tokenizer.IsEnd(token) {
		s.flush(r)
		s.leave(i, inference.FinishStop, nil, true)
		return
	}
	r.step++
	r.usage.CompletionTokens++
	s.metrics.completionTokens.Inc()
	if c, ok := r.text.Push(token); ok {
		s.send(r, c)
	}
	switch {
	case r.text.Stopped():
		s.leave(i, inference.FinishStop, nil, true)
	case r.step >= r.limit:
		s.flush(r)
		s.leave(i, inference.FinishLength, nil, true)
	default:
		s.batch.append(i, token)
	}
}

func (s *Scheduler) flush(r *run) {
	if c, ok := r.text.Finish(); ok {
		s.send(r, c)
	}
}

// send never blocks: a slot without room for what a step may bring is not in the step.
func (s *Scheduler) send(r *run, c inference.Chunk) {
	select {
	case r.out <- c:
	default:
		panic("scheduler: a slot without room in its buffer was in a step")
	}
}
