package actorstest

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/holdfast-ai/holdfast/inference"
)

// Model is an inference.Planner whose answer is a function of (seed, turn, step): whoever continues it must say the
// very same. Its hooks make it wait, fail or crash wherever a test wants.
type Model struct {
	// Length is how many tokens an answer has unless the request says less. Default 20.
	Length int
	// OnPlan is called before each plan, OnStep before each token with its index in the answer. An error ends the plan
	// or the run.
	OnPlan func(ctx context.Context, r *inference.Request) error
	OnStep func(ctx context.Context, r *inference.Request, step int) error

	mu struct {
		sync.Mutex
		plans []*inference.Request
		runs  []*inference.Request
		steps int
	}
}

// Remote returns the same model without the ability to plan, as one that runs elsewhere.
func (m *Model) Remote() inference.Runner { return remote{m} }

type remote struct{ m *Model }

func (r remote) Run(ctx context.Context, req *inference.Request, emit func(inference.Chunk) error) (inference.Usage, error) {
	return r.m.Run(ctx, req, emit)
}

// Token is the token of an answer at a step.
func Token(seed, turn uint64, step int) uint32 {
	x := seed*0x9e3779b97f4a7c15 ^ turn*0xbf58476d1ce4e5b9 ^ uint64(step)*0x94d049bb133111eb
	x ^= x >> 31
	x *= 0xd6e8feb86659fd93
	x ^= x >> 32
	return uint32(x % 50000)
}

// Text is the text of a token.
func Text(token uint32) string { return fmt.Sprintf(" w%d", token) }

// Answer is the text of the first n tokens.
func Answer(seed, turn uint64, n int) string {
	var b strings.Builder
	for step := range n {
		b.WriteString(Text(Token(seed, turn, step)))
	}
	return b.String()
}

// Plan implements inference.Planner.
func (m *Model) Plan(ctx context.Context, r *inference.Request) (*inference.Plan, error) {
	m.mu.Lock()
	m.mu.plans = append(m.mu.plans, r)
	m.mu.Unlock()
	if m.OnPlan != nil {
		if err := m.OnPlan(ctx, r); err != nil {
			return nil, err
		}
	}
	var prompt []uint32
	for _, msg := range r.Messages {
		prompt = append(prompt, uint32(len(msg.Content)))
	}
	s := r.Sampling
	if s.MaxTokens == 0 {
		s.MaxTokens = m.length()
	}
	return &inference.Plan{Model: "actorstest", Digest: "sha256:0", Template: "plain/1", Prompt: prompt, Sampling: s}, nil
}

func (m *Model) length() int {
	if m.Length == 0 {
		return 20
	}
	return m.Length
}

// Run implements inference.Runner.
func (m *Model) Run(ctx context.Context, r *inference.Request, emit func(inference.Chunk) error) (inference.Usage, error) {
	m.mu.Lock()
	m.mu.runs = append(m.mu.runs, r)
	m.mu.Unlock()
	s := r.Sampling
	if r.Plan != nil {
		s = r.Plan.Sampling
	}
	n := s.MaxTokens
	if n == 0 {
		n = m.length()
	}
	for step, t := range r.Resume {
		if t != Token(s.Seed, r.Turn, step) {
			return inference.Usage{}, fmt.Errorf("resumed with another token at step %d", step)
		}
	}
	u := inference.Usage{Model: "actorstest", PromptTokens: len(r.Messages)}
	if r.Plan != nil {
		u.PromptTokens = len(r.Plan.Prompt)
	}
	for step := len(r.Resume); step < n; step++ {
		if m.OnStep != nil {
			if err := m.OnStep(ctx, r, step); err != nil {
				return u, err
			}
		}
		if ctx.Err() != nil {
			return u, context.Cause(ctx)
		}
		t := Token(s.Seed, r.Turn, step)
		if err := emit(inference.Chunk{Text: Text(t), Tokens: []uint32{t}, Step: step}); err != nil {
			return u, err
		}
		u.CompletionTokens++
		m.mu.Lock()
		m.mu.steps++
		m.mu.Unlock()
	}
	u.Finish = inference.FinishLength
	return u, nil
}

// Runs returns the requests run so far.
func (m *Model) Runs() []*inference.Request {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]*inference.Request(nil), m.mu.runs...)
}

// Plans returns the requests planned so far.
func (m *Model) Plans() []*inference.Request {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]*inference.Request(nil), m.mu.plans...)
}

// Steps counts the tokens emitted so far, over all runs.
func (m *Model) Steps() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.steps
}
