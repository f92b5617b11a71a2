package scheduler

import (
	"context"
	"fmt"
	"math"
	"sort"
	"unicode/utf8"

	"github.com/holdfast-ai/holdfast/inference"
)

const (
	maxTemperature = 5
	maxStops       = 8
	maxStopBytes   = 256
	leastRoom      = 16 // positions that even a conversation of one long message must leave for its answer
)

// Plan renders and fixes r. The oldest messages that do not fit are left out, system messages and the last message of
// the user excepted; it fails with ErrContextOverflow if those alone are too long.
func (s *Scheduler) Plan(ctx context.Context, r *inference.Request) (*inference.Plan, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.callers.Done()
	return s.plan(ctx, r)
}

func (s *Scheduler) plan(ctx context.Context, r *inference.Request) (*inference.Plan, error) {
	sampling := r.Sampling
	if err := validSampling(&sampling); err != nil {
		return nil, err
	}
	if sampling.MaxTokens == 0 {
		sampling.MaxTokens = s.o.MaxTokens
	}
	sampling.Stop = append([]string(nil), sampling.Stop...)
	if err := validMessages(r.Messages); err != nil {
		return nil, err
	}
	prompt, dropped, err := s.fit(ctx, r.Messages, sampling.MaxTokens)
	if err != nil {
		return nil, err
	}
	sampling.MaxTokens = min(sampling.MaxTokens, s.stepper.context-len(prompt))
	return &inference.Plan{
		Model: s.o.Model, Digest: s.o.Digest, Template: s.template.Name(),
		Prompt: prompt, Sampling: sampling, DroppedMessages: dropped,
	}, nil
}

// fit renders as many of the newest messages as leave room for an answer.
func (s *Scheduler) fit(ctx context.Context, msgs []inference.Message, maxTokens int) ([]uint32, int, error) {
	room := min(maxTokens, s.o.AnswerRoom)
	starts := s.beginnings(msgs)
	bytes := 0
	for _, m := range window(msgs, starts[len(starts)-1]) {
		bytes += len(m.Content)
	}
	if bytes/s.maxTokenBytes > s.stepper.context { // not worth tokenizing
		return nil, 0, s.overflow(bytes/s.maxTokenBytes, min(maxTokens, leastRoom, room))
	}
	var (
		prompt []uint32
		failed error
	)
	render := func(k int) bool { // whether the conversation from starts[k] on fits
		if failed != nil {
			return true
		}
		if failed = context.Cause(ctx); failed != nil {
			return true
		}
		prompt, failed = s.template.Render(prompt[:0], s.tokenizer, window(msgs, starts[k]))
		if failed != nil {
			failed = fmt.Errorf("scheduler: render %d messages with template %s: %w", len(msgs), s.template.Name(), failed)
		}
		return failed != nil || len(prompt)+room <= s.stepper.context
	}
	// Most conversations fit whole. The others are searched by halves, since rendering costs time.
	k := 0
	if !render(0) {
		k = 1 + sort.Search(len(starts)-1, func(i int) bool { return render(i + 1) })
		k = min(k, len(starts)-1)
		render(k)
	}
	if failed != nil {
		return nil, 0, failed
	}
	if least := min(maxTokens, leastRoom, room); len(prompt)+least > s.stepper.context {
		return nil, 0, s.overflow(len(prompt), least)
	}
	return prompt, len(msgs) - len(window(msgs, starts[k])), nil
}

func (s *Scheduler) overflow(tokens, room int) error {
	return fmt.Errorf("scheduler: the system messages and the last message are at least %d tokens, with %d for an answer, and model %q takes %d: %w; shorten the message",
		tokens, room, s.o.Model, s.stepper.context, inference.ErrContextOverflow)
}

// beginnings lists the indexes at which a shortened conversation may begin, the longest first: at the beginning, or at
// a message of the user, up to the last one of the user. Beginnings that cannot fit, by the bytes of the messages and
// of the longest token, are left out unseen.
func (s *Scheduler) beginnings(msgs []inference.Message) []int {
	var starts []int
	bytes, limit := 0, s.stepper.context*s.maxTokenBytes
	for i := len(msgs) - 1; i >= 0; i-- {
		bytes += len(msgs[i].Content)
		if bytes > limit && len(starts) > 0 {
			break
		}
		if msgs[i].Role == inference.User || i == 0 && len(starts) == 0 {
			starts = append(starts, i)
		}
	}
	if bytes <= limit && starts[len(starts)-1] != 0 {
		starts = append(starts, 0)
	}
	for i, j := 0, len(starts)-1; i < j; i, j = i+1, j-1 {
		starts[i], starts[j] = starts[j], starts[i]
	}
	return starts
}

// window returns the system messages and everything from start on.
func window(msgs []inference.Message, start int) []inference.Message {
	if start == 0 {
		return msgs
	}
	kept := make([]inference.Message, 0, len(msgs)-start)
	for i, m := range msgs {
		if i >= start || m.Role == inference.System {
			kept = append(kept, m)
		}
	}
	return kept
}

func validMessages(msgs []inference.Message) error {
	if len(msgs) == 0 {
		return fmt.Errorf("scheduler: %w: no messages", inference.ErrInvalidRequest)
	}
	for i, m := range msgs {
		switch m.Role {
		case inference.System, inference.User, inference.Assistant:
		default:
			return fmt.Errorf("scheduler: %w: message %d has the role %q", inference.ErrInvalidRequest, i, m.Role)
		}
		if !utf8.ValidString(m.Content) {
			return fmt.Errorf("scheduler: %w: message %d is not valid UTF-8", inference.ErrInvalidRequest, i)
		}
	}
	return nil
}

// validSampling checks what inference.Sampling documents.
func validSampling(p *inference.Sampling) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("scheduler: %w: %s", inference.ErrInvalidRequest, fmt.Sprintf(format, args...))
	}
	switch {
	case !(p.Temperature >= 0 && p.Temperature <= maxTemperature): // also catches NaN
		return bad("temperature %v is not between 0 and %d", p.Temperature, maxTemperature)
	case !(p.TopP >= 0 && p.TopP <= 1):
		return bad("top-p %v is not between 0 and 1", p.TopP)
	case p.TopK < 0:
		return bad("top-k %d is negative", p.TopK)
	case p.MaxTokens < 0:
		return bad("max tokens %d is negative", p.MaxTokens)
	case len(p.Stop) > maxStops:
		return bad("%d stop strings; at most %d are allowed", len(p.Stop), maxStops)
	}
	for i, stop := range p.Stop {
		if len(stop) == 0 || len(stop) > maxStopBytes {
			return bad("stop string %d has %d bytes; 1 to %d are allowed", i, len(stop), maxStopBytes)
		}
		if !utf8.ValidString(stop) {
			return bad("stop string %d is not valid UTF-8", i)
		}
	}
	return nil
}

// validPlan checks a plan that comes from outside, perhaps from before a restart.
func (s *Scheduler) validPlan(p *inference.Plan, resume []uint32) error {
	if p.Digest != s.o.Digest && p.Digest != "" && s.o.Digest != "" {
		return fmt.Errorf("scheduler: the plan is for the model with digest %s, loaded is %q with %s: %w; install the former to continue",
			p.Digest, s.o.Model, s.o.Digest, inference.ErrModelUnavailable)
	}
	if err := validSampling(&p.Sampling); err != nil {
		return err
	}
	if len(p.Prompt) == 0 {
		return fmt.Errorf("scheduler: %w: the plan has no prompt", inference.ErrInvalidRequest)
	}
	if len(p.Prompt) >= s.stepper.context {
		return fmt.Errorf("scheduler: a prompt of %d tokens leaves no room in %d: %w", len(p.Prompt), s.stepper.context, inference.ErrContextOverflow)
	}
	if len(p.Prompt) > math.MaxInt32 || len(resume) > math.MaxInt32 {
		return fmt.Errorf("scheduler: %w: too many tokens", inference.ErrInvalidRequest)
	}
	for _, tokens := range [][]uint32{p.Prompt, resume} {
		for _, t := range tokens {
			if uint64(t) >= uint64(s.vocabulary) {
				return fmt.Errorf("scheduler: %w: token %d is not in the vocabulary of %d", inference.ErrInvalidRequest, t, s.vocabulary)
			}
		}
	}
	return nil
}
