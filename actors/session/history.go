package session

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-ai/holdfast/actors"
	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/proto/statepb"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// preparation makes the request of a turn from the log: it runs as an effect, off the mailbox, when the turn is durable.
type preparation struct {
	log    actors.Log
	models inference.Runner
	object actors.ID
	turn   uint64
	parent uint64
	user   string
	system string
	model  string // of the session
	seed   uint64 // unless the turn has one
	budget int    // bytes of earlier text
	known  *past  // what the turn before was prepared with; nil if this is the activation's first
}

// past is the conversation up to a turn, as a prompt sees it. It is immutable. An activation keeps the last one, so that
// a turn reads from the log only what is new since the turn before.
type past struct {
	turn     uint64              // the newest turn in it
	messages []inference.Message // oldest first: the user's, the assistant's, …
}

// prepared is what a preparation comes to.
type prepared struct {
	request *inference.Request
	past    *past
}

const (
	readChunk = 32 << 10
	maxTurns  = 512 // of the past that are looked at, the empty ones included
)

// run makes the request, with its plan if the runner makes one.
func (p *preparation) run(ctx context.Context, st *actors.Stream) (*prepared, error) {
	if p.models == nil {
		return nil, errNoModels
	}
	msg, err := p.message()
	if err != nil {
		return nil, err
	}
	before, err := p.history(ctx)
	if err != nil {
		return nil, err
	}
	var all []inference.Message
	if p.system != "" {
		all = append(all, inference.Message{Role: inference.System, Content: p.system})
	}
	all = append(all, before.messages...)
	all = append(all, inference.Message{Role: inference.User, Content: msg.Text})
	req := &inference.Request{
		Messages:   all,
		Tenant:     p.object.Namespace + "/" + p.user,
		CacheScope: p.object.String(),
		Turn:       p.turn,
		Progress:   progress(st, p.turn),
	}
	p.apply(req, msg.Options)
	if planner, ok := p.models.(inference.Planner); ok {
		if req.Plan, err = planner.Plan(ctx, req); err != nil {
			return nil, err
		}
	}
	return &prepared{request: req, past: before}, nil
}

// apply fills in what the turn's options and the session say.
func (p *preparation) apply(req *inference.Request, o *wirepb.Options) {
	req.Model = p.model
	req.Sampling.Seed = p.seed
	req.Unset = inference.Temperature | inference.TopP | inference.TopK
	if o == nil {
		return
	}
	if o.Model != "" {
		req.Model = o.Model
	}
	if o.Seed != nil {
		req.Sampling.Seed = *o.Seed
	}
	if o.Temperature != nil {
		req.Sampling.Temperature = *o.Temperature
		req.Unset &^= inference.Temperature
	}
	if o.TopP != nil {
		req.Sampling.TopP = *o.TopP
		req.Unset &^= inference.TopP
	}
	if o.TopK != nil {
		req.Sampling.TopK = int(*o.TopK)
		req.Unset &^= inference.TopK
	}
	req.Sampling.MaxTokens = int(o.GetMaxTokens())
	req.Sampling.Stop = o.Stop
}

// message reads the turn's own message.
func (p *preparation) message() (*wirepb.UserMessage, error) { return userMessage(p.log, p.turn) }

func userMessage(log actors.Log, turn uint64) (*wirepb.UserMessage, error) {
	var m *wirepb.UserMessage
	err := log.Read(turn-1, turn, 1, func(e *wirepb.Entry) bool {
		m = e.GetUserMessage()
		return false
	})
	if err == nil && m == nil {
		m = &wirepb.UserMessage{} // erased
	}
	return m, err
}

// history walks from the turn's parent towards the beginning and returns the newest messages: at least the turn before,
// and as many more as fit the budget. Where it meets what is known it takes the rest from there.
func (p *preparation) history(ctx context.Context) (*past, error) {
	var back []inference.Message // newest first
	used := 0
	add := func(pair []inference.Message) bool {
		size := 0
		for _, m := range pair {
			size += len(m.Content)
		}
		if len(back) > 0 && used+size > p.budget {
			return false
		}
		back = append(back, pair...)
		used += size
		return used < p.budget
	}
	for turn, seen := p.parent, 0; turn != 0 && seen < maxTurns; seen++ {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if p.known != nil && turn == p.known.turn {
			for m := p.known.messages; len(m) > 0; m = m[:len(m)-2] {
				if !add([]inference.Message{m[len(m)-1], m[len(m)-2]}) {
					break
				}
			}
			break
		}
		rec, err := p.log.Turn(turn)
		if err != nil {
			return nil, fmt.Errorf("session: look up turn %d: %w", turn, err)
		}
		if rec == nil {
			break // below retention
		}
		pair, err := p.exchange(rec)
		if err != nil {
			return nil, err
		}
		if !add(pair) {
			break
		}
		turn = rec.Parent
	}
	slices.Reverse(back)
	return &past{turn: p.parent, messages: back}, nil
}

// exchange returns the answer and the message of an earlier turn, none if nothing was answered.
func (p *preparation) exchange(rec *statepb.Turn) (newestFirst []inference.Message, err error) {
	switch wirepb.Outcome(rec.Outcome) {
	case wirepb.Outcome_OUTCOME_BLOCKED, wirepb.Outcome_OUTCOME_SUPERSEDED:
		return nil, nil
	}
	answer, err := p.answer(rec)
	if err != nil || answer == "" {
		return nil, err
	}
	m, err := userMessage(p.log, rec.Turn)
	if err != nil || m.Text == "" {
		return nil, err
	}
	return []inference.Message{
		{Role: inference.Assistant, Content: answer},
		{Role: inference.User, Content: m.Text},
	}, nil
}

// answer reads what a turn said, up to a few budgets of it: no more than that could be of use.
func (p *preparation) answer(rec *statepb.Turn) (string, error) {
	var b strings.Builder
	for _, r := range rec.Content {
		err := p.log.Read(r.First-1, r.Last, readChunk, func(e *wirepb.Entry) bool {
			b.WriteString(e.GetChunk().GetText())
			return b.Len() <= 4*p.budget
		})
		if err != nil {
			return "", fmt.Errorf("session: read the answer of turn %d: %w", rec.Turn, err)
		}
		if b.Len() > 4*p.budget {
			break
		}
	}
	return b.String(), nil
}
