package session

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-ai/holdfast/actors"
	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/statepb"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// begin starts an attempt at the turn at the front, which has not got a plan: the conversation is read and planned.
// The attempt counts from the commit of this handler on, before anything of it runs.
func (s *object) begin(c *actors.Context, rec *statepb.Turn) {
	rec.Attempt = &statepb.Attempt{Number: rec.GetAttempt().GetNumber() + 1}
	c.PutTurn(rec)
	s.run = &run{turn: rec.Turn, rec: rec, began: c.Now()}
	s.m.attempts.Inc()
	p := &preparation{
		log: c.Log(), models: c.Models(), object: s.id, turn: rec.Turn, parent: rec.Parent, user: rec.User,
		system: s.state.System, model: s.state.Model, seed: c.Random(), budget: s.o.HistoryBytes, known: s.past,
	}
	c.Start(actors.Effect{Key: effectPrepare, Run: func(ctx context.Context, st *actors.Stream) (any, error) {
		return p.run(ctx, st)
	}})
}

// output goes on with the turn at the front.
func (s *object) output(c *actors.Context, out actors.Output) error {
	if s.run == nil {
		return fmt.Errorf("session: output of effect %q without a turn", out.Key)
	}
	if interrupted(out) {
		return fmt.Errorf("session: turn %d: %w", s.run.turn, out.Err)
	}
	if out.Key == effectPrepare {
		return s.prepared(c, out)
	}
	return s.generated(c, out)
}

// prepared pins the plan and starts the model.
func (s *object) prepared(c *actors.Context, out actors.Output) error {
	switch {
	case s.run.stopping:
		return s.terminate(c, &wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_STOPPED})
	case out.Err != nil:
		return s.fail(c, out.Err, nil)
	}
	p := out.Result.(*prepared)
	s.past = p.past
	pin(s.run.rec.Attempt, p.request)
	s.generate(c, p.request)
	return nil
}

// generate appends the Attempt and starts the model. The attempt is pinned in the turn's record.
func (s *object) generate(c *actors.Context, req *inference.Request) {
	r := s.run
	at := r.rec.Attempt
	c.Append(&wirepb.Entry{Turn: r.turn, Body: &wirepb.Entry_Attempt{Attempt: &wirepb.Attempt{
		Number: at.Number, Model: at.Model, ModelDigest: at.ModelDigest, PromptTokens: uint32(len(at.Prompt)),
		ResumedStep: uint32(len(req.Resume)), DroppedMessages: at.DroppedMessages, Temperature: at.Temperature, Seed: at.Seed,
	}}})
	c.PutTurn(r.rec)
	models, turn := c.Models(), r.turn
	c.Logger().Info("attempt", "turn", turn, "number", at.Number, "model", at.Model, "resumed", len(req.Resume))
	c.Start(actors.Effect{Key: effectGenerate, Run: func(ctx context.Context, st *actors.Stream) (any, error) {
		req.Progress = progress(st, turn)
		return models.Run(ctx, req, func(ch inference.Chunk) error {
			ch.Text = strings.ToValidUTF8(ch.Text, "\uFFFD")
			return st.Emit(ch, len(ch.Text)+4*len(ch.Tokens)+chunkOverhead)
		})
	}})
}

// generated appends what the model said, and ends the turn when the model has ended.
func (s *object) generated(c *actors.Context, out actors.Output) error {
	r := s.run
	if len(out.Items) > 0 && !r.spoke {
		r.spoke = true
		s.m.firstChunk.Observe(c.Now().Sub(r.began).Seconds())
	}
	s.say(c, out.Items)
	if !out.Done {
		return nil
	}
	usage, _ := out.Result.(inference.Usage)
	switch {
	case out.Err == nil:
		return s.terminate(c, &wirepb.Terminal{
			Outcome: wirepb.Outcome_OUTCOME_COMPLETED, FinishReason: string(usage.Finish), Usage: s.usage(usage),
		})
	case r.stopping:
		return s.terminate(c, &wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_STOPPED, Usage: s.usage(usage)})
	}
	return s.fail(c, out.Err, s.usage(usage))
}

const (
	chunkOverhead = 64
	chunkText     = 4 << 10 // bytes after which neighbouring chunks are not joined further
)

// say appends chunks to the log. Neighbours that came during one commit become one entry.
func (s *object) say(c *actors.Context, items []any) {
	var text strings.Builder
	var tokens []uint32
	step, pieces := 0, 0
	flush := func() {
		if pieces > 0 {
			s.appendContent(c, &wirepb.Entry{Turn: s.run.turn, Body: &wirepb.Entry_Chunk{Chunk: &wirepb.Chunk{
				Text: text.String(), Tokens: tokens, Step: uint32(step),
			}}})
		}
		text.Reset()
		tokens, pieces = nil, 0
	}
	for _, item := range items {
		ch := item.(inference.Chunk)
		if ch.Text != "" || len(ch.Tokens) > 0 {
			if pieces > 0 && text.Len()+len(ch.Text) > chunkText {
				flush()
			}
			if pieces == 0 {
				step = ch.Step
			}
			text.WriteString(ch.Text)
			tokens = append(tokens, ch.Tokens...)
			pieces++
		}
		if t := ch.ToolCall; t != nil {
			flush()
			s.appendContent(c, &wirepb.Entry{Turn: s.run.turn, Body: &wirepb.Entry_ToolCall{ToolCall: &wirepb.ToolCall{
				Id: valid(t.ID), Name: valid(t.Name), ArgumentsJson: valid(t.Arguments),
			}}})
		}
	}
	flush()
}

func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func (s *object) appendContent(c *actors.Context, e *wirepb.Entry) {
	extend(s.run.rec, c.Append(e))
}

// extend adds an offset to the content ranges of a turn.
func extend(rec *statepb.Turn, offset uint64) {
	if n := len(rec.Content); n > 0 && rec.Content[n-1].Last+1 == offset {
		rec.Content[n-1].Last = offset
		return
	}
	rec.Content = append(rec.Content, &statepb.ContentRange{First: offset, Last: offset})
}

// fail ends the turn at the front with a coded error.
func (s *object) fail(c *actors.Context, err error, usage *wirepb.Usage) error {
	e := turnError(err)
	c.Logger().Warn("turn failed", "turn", s.run.turn, "code", e.Code, "error", err)
	return s.terminate(c, &wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_FAILED, Error: e, Usage: usage})
}

// terminate ends the turn at the front and begins the next.
func (s *object) terminate(c *actors.Context, t *wirepb.Terminal) error {
	s.end(c, s.run.rec, t)
	s.state.Open = s.state.Open[1:]
	ended := s.run.turn
	s.run = nil
	if err := s.save(c); err != nil {
		return err
	}
	if len(s.state.Open) == 0 {
		c.ClearAlarm(alarmTurn)
		c.Status(&wirepb.Status{Turn: ended, Phase: wirepb.Phase_PHASE_IDLE})
		return nil
	}
	next, err := c.Turn(s.state.Open[0])
	if err != nil {
		return fmt.Errorf("session: look up turn %d: %w", s.state.Open[0], err)
	}
	if next == nil {
		return fmt.Errorf("session: turn %d waits but has no index record", s.state.Open[0])
	}
	s.begin(c, next)
	return nil
}

// end writes the one terminal entry of a turn and all that goes with it (invariant 4). The caller takes the turn out of
// state.Open in the same handler.
func (s *object) end(c *actors.Context, rec *statepb.Turn, t *wirepb.Terminal) {
	rec.Last = c.Append(&wirepb.Entry{Turn: rec.Turn, Body: &wirepb.Entry_Terminal{Terminal: t}})
	rec.Outcome = int32(t.Outcome)
	number := rec.GetAttempt().GetNumber()
	rec.Attempt = nil
	if number > 0 {
		rec.Attempt = &statepb.Attempt{Number: number}
	}
	c.PutTurn(rec)
	c.ClearLive(rec.Turn)
	log, turn, outcome := c.Logger(), rec.Turn, outcomeName(t.Outcome)
	c.After(func() {
		s.m.turns.WithLabelValues(outcome).Inc()
		s.m.tokens.Add(float64(t.GetUsage().GetCompletionTokens()))
		s.m.prompt.Add(float64(t.GetUsage().GetPromptTokens()))
		log.Info("turn ended", "turn", turn, "outcome", outcome, "attempts", number,
			"tokens", t.GetUsage().GetCompletionTokens(), "finish", t.FinishReason)
	})
}

func outcomeName(o wirepb.Outcome) string {
	return strings.ToLower(strings.TrimPrefix(o.String(), "OUTCOME_"))
}

// usage counts the whole answer, what earlier attempts said included.
func (s *object) usage(u inference.Usage) *wirepb.Usage {
	return &wirepb.Usage{
		PromptTokens:       uint32(u.PromptTokens),
		CachedPromptTokens: uint32(u.CachedPromptTokens),
		CompletionTokens:   uint32(u.CompletionTokens + s.run.resumed),
		PromptMs:           uint32(u.PromptTime / time.Millisecond),
		CompletionMs:       uint32(u.CompletionTime / time.Millisecond),
	}
}

// progress turns what a runner says while one waits into statuses.
func progress(st *actors.Stream, turn uint64) func(inference.Progress) {
	return func(p inference.Progress) {
		s := &wirepb.Status{
			Turn: turn, Position: uint32(p.Position), Waiting: uint32(p.Waiting), Done: uint32(p.Done), Total: uint32(p.Total),
		}
		switch p.Phase {
		case inference.Queued:
			s.Phase = wirepb.Phase_PHASE_QUEUED
		case inference.Loading:
			s.Phase = wirepb.Phase_PHASE_LOADING
		case inference.Prefill:
			s.Phase = wirepb.Phase_PHASE_PREFILL
		case inference.Running:
			s.Phase = wirepb.Phase_PHASE_RUNNING
		}
		st.Status(s)
	}
}

// errNoModels is what a host without a runner answers.
var errNoModels = proto.Errorf(proto.CodeModelUnavailable, "this server runs no models")
