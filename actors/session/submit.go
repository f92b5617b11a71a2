package session

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/holdfast-ai/holdfast/actors"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/statepb"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// submit begins a turn, or finds the one that the message id has begun.
func (s *object) submit(c *actors.Context, m *wirepb.Submit) error {
	if err := s.o.validate(m); err != nil {
		return err
	}
	user, hash := c.Principal().User, bodyHash(m)
	known, err := c.MessageID(user, m.MessageId)
	if err != nil {
		return fmt.Errorf("session: look up message id: %w", err)
	}
	if known != nil {
		return s.duplicate(c, m, known, hash)
	}
	if len(s.state.Open) > s.o.MaxQueue {
		return proto.Errorf(proto.CodeOverloaded, "%d turns of this session wait already", len(s.state.Open)-1)
	}

	turn := c.Append(&wirepb.Entry{Body: &wirepb.Entry_UserMessage{UserMessage: &wirepb.UserMessage{
		MessageId: m.MessageId, Text: m.Text, User: user, Parent: s.state.Head, Options: m.Options,
	}}})
	rec := &statepb.Turn{Turn: turn, Parent: s.state.Head, MessageId: m.MessageId, User: user}
	c.PutMessageID(user, m.MessageId, &statepb.MessageID{Turn: turn, BodySha256: hash, TimeUnixMs: c.Now().UnixMilli()})
	c.SetLive(turn)
	if len(s.state.Open) == 0 {
		c.SetSystemAlarm(alarmTurn, c.Now().Add(turnAlarm))
	}
	if err := s.armIDs(c); err != nil {
		return err
	}
	s.adopt(m.Options)
	s.state.Head = turn
	s.state.Open = append(s.state.Open, turn)
	if err := s.save(c); err != nil {
		return err
	}
	position := len(s.state.Open) - 1
	if position == 0 {
		s.begin(c, rec)
	} else {
		c.PutTurn(rec)
		c.Status(&wirepb.Status{
			Turn: turn, Phase: wirepb.Phase_PHASE_WAITING, Position: uint32(position), Waiting: uint32(position),
		})
	}
	c.Logger().Info("turn accepted", "turn", turn, "message_id", m.MessageId, "user", user, "position", position)
	c.Reply(&wirepb.Frame{Body: &wirepb.Frame_Accepted{Accepted: &wirepb.Accepted{
		MessageId: m.MessageId, Turn: turn, Position: uint32(position),
	}}})
	return nil
}

// adopt takes what the session does not have yet from a turn's options.
func (s *object) adopt(o *wirepb.Options) {
	if s.state.System == "" {
		s.state.System = o.GetSystem()
	}
	if s.state.Model == "" {
		s.state.Model = o.GetModel()
	}
}

// duplicate answers a Submit whose message id is known (invariant 5).
func (s *object) duplicate(c *actors.Context, m *wirepb.Submit, known *statepb.MessageID, hash []byte) error {
	if !bytes.Equal(known.BodySha256, hash) {
		return proto.Errorf(proto.CodeConflict, "message id %q was used for another message", m.MessageId)
	}
	rec, err := c.Turn(known.Turn)
	if err != nil {
		return fmt.Errorf("session: look up turn %d: %w", known.Turn, err)
	}
	s.m.duplicates.Inc()
	c.Reply(&wirepb.Frame{Body: &wirepb.Frame_Accepted{Accepted: &wirepb.Accepted{
		MessageId: m.MessageId, Turn: known.Turn, Duplicate: true, Outcome: wirepb.Outcome(rec.GetOutcome()),
		Position: uint32(max(slices.Index(s.state.Open, known.Turn), 0)),
	}}})
	return nil
}

// stop ends a turn wherever it is. The turn that runs ends when its effect has: until then it may still say something.
func (s *object) stop(c *actors.Context, m *wirepb.Stop) error {
	turn := m.GetTurn()
	if turn == 0 {
		turn = s.state.Head
		if s.run != nil {
			turn = s.run.turn
		}
	}
	answer := &wirepb.Stopping{Turn: turn}
	reply := &wirepb.Frame{Body: &wirepb.Frame_Stopping{Stopping: answer}}
	switch i := slices.Index(s.state.Open, turn); {
	case i == 0:
		s.run.stopping = true
		c.Cancel(effectPrepare, errStop)
		c.Cancel(effectGenerate, errStop)
	case i > 0:
		rec, err := c.Turn(turn)
		if err != nil {
			return fmt.Errorf("session: look up turn %d: %w", turn, err)
		}
		if rec == nil {
			return fmt.Errorf("session: turn %d waits but has no index record", turn)
		}
		s.end(c, rec, &wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_STOPPED})
		s.state.Open = slices.Delete(s.state.Open, i, i+1)
		if err := s.save(c); err != nil {
			return err
		}
	case turn == 0:
		answer.Ended = true // nothing was ever said here
	default:
		rec, err := c.Turn(turn)
		if err != nil {
			return fmt.Errorf("session: look up turn %d: %w", turn, err)
		}
		if rec == nil {
			return proto.Errorf(proto.CodeNotFound, "this session has no turn %d", turn)
		}
		answer.Ended = true
	}
	c.Logger().Info("stop", "turn", turn, "ended", answer.Ended, "user", c.Principal().User)
	c.Reply(reply)
	return nil
}
