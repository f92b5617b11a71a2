package session

import (
	"fmt"

	pb "google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/actors"
	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/proto/statepb"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// pin writes into an attempt what an exact continuation needs. Without a plan it only notes that a model ran, and how
// it was asked: Request is never empty then.
func pin(at *statepb.Attempt, req *inference.Request) {
	sampling := req.Sampling
	at.Model = req.Model
	if plan := req.Plan; plan != nil {
		sampling = plan.Sampling
		at.Model, at.ModelDigest, at.Template = plan.Model, plan.Digest, plan.Template
		at.Prompt, at.DroppedMessages = plan.Prompt, uint32(plan.DroppedMessages)
	} else {
		at.Request = []byte(fmt.Sprintf("unset=%d", req.Unset))
	}
	at.Temperature, at.TopP, at.TopK, at.Seed = sampling.Temperature, sampling.TopP, uint32(sampling.TopK), sampling.Seed
	at.MaxTokens, at.Stop = uint32(sampling.MaxTokens), sampling.Stop
}

// hasPlan reports whether an attempt can be continued; ran, whether a model may have run in it.
func hasPlan(at *statepb.Attempt) bool { return at.GetModelDigest() != "" || len(at.GetPrompt()) > 0 }
func ran(at *statepb.Attempt) bool     { return hasPlan(at) || len(at.GetRequest()) > 0 }

// unpin is the request that goes on with a pinned attempt.
func (s *object) unpin(rec *statepb.Turn, resume []uint32) *inference.Request {
	at := rec.Attempt
	sampling := inference.Sampling{
		Temperature: at.Temperature, TopP: at.TopP, TopK: int(at.TopK), Seed: at.Seed, MaxTokens: int(at.MaxTokens), Stop: at.Stop,
	}
	return &inference.Request{
		Model:      at.Model,
		Sampling:   sampling,
		Tenant:     s.id.Namespace + "/" + rec.User,
		CacheScope: s.id.String(),
		Turn:       rec.Turn,
		Resume:     resume,
		Plan: &inference.Plan{
			Model: at.Model, Digest: at.ModelDigest, Template: at.Template, Prompt: at.Prompt, Sampling: sampling,
			DroppedMessages: int(at.DroppedMessages),
		},
	}
}

// activate goes on with the turn that the last activation left open. The state is that on disk: nothing of this
// activation is on its way yet.
func (s *object) activate(c *actors.Context) error {
	if err := pb.Unmarshal(c.State(), &s.state); err != nil {
		return fmt.Errorf("session: read state: %w", err)
	}
	if len(s.state.Open) == 0 {
		return nil
	}
	rec, err := c.Turn(s.state.Open[0])
	if err != nil {
		return fmt.Errorf("session: look up turn %d: %w", s.state.Open[0], err)
	}
	if rec == nil {
		return fmt.Errorf("session: turn %d is open but has no index record", s.state.Open[0])
	}
	said, err := s.reread(c, rec)
	if err != nil {
		return err
	}
	at := rec.Attempt
	s.run = &run{turn: rec.Turn, rec: rec, began: c.Now(), resumed: len(said)}
	switch {
	case int(at.GetNumber()) >= s.o.MaxAttempts:
		rec.Parked = true
		s.m.parked.Inc()
		return s.fail(c, fmt.Errorf("%w: %d", errExhausted, at.Number), s.usage(inference.Usage{PromptTokens: len(at.Prompt)}))
	case !ran(at):
		s.begin(c, rec)
		return nil
	case !hasPlan(at) || c.Models() == nil:
		return s.fail(c, errInterrupted, s.usage(inference.Usage{}))
	}
	at.Number++
	s.m.attempts.Inc()
	s.m.resumed.Inc()
	s.generate(c, s.unpin(rec, said))
	return nil
}

// reread finds what an open turn has said: its content ranges, which its record holds only once it has ended, and the
// tokens.
func (s *object) reread(c *actors.Context, rec *statepb.Turn) (tokens []uint32, err error) {
	rec.Content = nil
	bad := false
	err = c.Log().Read(rec.Turn, c.NextOffset()-1, readChunk, func(e *wirepb.Entry) bool {
		if e.Turn != rec.Turn {
			return true
		}
		if ch := e.GetChunk(); ch != nil {
			bad = bad || len(ch.Tokens) > 0 && int(ch.Step) != len(tokens)
			tokens = append(tokens, ch.Tokens...)
			extend(rec, e.Offset)
		} else if e.GetToolCall() != nil {
			extend(rec, e.Offset)
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("session: read turn %d: %w", rec.Turn, err)
	}
	if bad {
		return nil, fmt.Errorf("session: the tokens of turn %d are not in sequence", rec.Turn)
	}
	return tokens, nil
}
