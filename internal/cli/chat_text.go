package cli

import (
	"fmt"
	"strings"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// clean makes text of a model or of another person safe to print on a terminal: what would move the cursor, change
// colours, set the title or reorder the line is shown as a symbol instead. Line feeds and tabs stay; carriage
// returns go, so that a line cannot be overwritten. It works rune by rune: the pieces of a stream may be cleaned
// one by one.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r == '\r':
			return -1
		case r < 0x20:
			return 0x2400 + r // the control pictures
		case r == 0x7f:
			return 0x2421
		case r >= 0x80 && r <= 0x9f, // C1: some terminals act on them as on ESC
			r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, // direction overrides and isolates
			r == 0x2028 || r == 0x2029:
			return '\ufffd'
		}
		return r
	}, s)
}

// talk is one turn as it was read so far.
type talk struct {
	id        uint64
	messageID string
	said      string
	begun     bool // its user message was read
	shown     bool // its user message is on the screen
	answer    strings.Builder
	attempt   *wirepb.Attempt
	end       *wirepb.Terminal
}

// transcript is the turns of a session, from entries in offset order.
type transcript struct {
	order []*talk
	byID  map[uint64]*talk
}

// add takes the next entry and returns the turn that it belongs to, nil for one outside turns.
func (t *transcript) add(e *wirepb.Entry) *talk {
	if e.Turn == 0 {
		return nil
	}
	k := t.byID[e.Turn]
	if k == nil {
		k = &talk{id: e.Turn, begun: e.Offset == e.Turn}
		if t.byID == nil {
			t.byID = make(map[uint64]*talk)
		}
		t.byID[e.Turn] = k
		t.order = append(t.order, k)
	}
	switch b := e.Body.(type) {
	case *wirepb.Entry_UserMessage:
		k.messageID, k.said = b.UserMessage.MessageId, b.UserMessage.Text
	case *wirepb.Entry_Attempt:
		k.attempt = b.Attempt
	case *wirepb.Entry_Chunk:
		k.answer.WriteString(b.Chunk.Text)
	case *wirepb.Entry_Terminal:
		k.end = b.Terminal
	}
	return k
}

// forget drops a turn that has ended and was shown, so that a long chat does not grow.
func (t *transcript) forget(k *talk) {
	delete(t.byID, k.id)
	for i, other := range t.order {
		if other == k {
			t.order = append(t.order[:i], t.order[i+1:]...)
			return
		}
	}
}

// last returns the newest n turns that are whole, or still open.
func (t *transcript) last(n int) []*talk {
	var whole []*talk
	for _, k := range t.order {
		if k.begun {
			whole = append(whole, k)
		}
	}
	return whole[max(0, len(whole)-n):]
}

// ending says in one line why a turn ended, or nothing if there is nothing to say.
func ending(end *wirepb.Terminal) string {
	switch end.Outcome {
	case wirepb.Outcome_OUTCOME_COMPLETED:
		if end.FinishReason == "length" {
			return "the answer reached its length limit"
		}
		return ""
	case wirepb.Outcome_OUTCOME_STOPPED:
		return "stopped"
	case wirepb.Outcome_OUTCOME_SUPERSEDED:
		return "a later message took its place"
	}
	e := end.Error
	if e == nil {
		return strings.ToLower(strings.TrimPrefix(end.Outcome.String(), "OUTCOME_"))
	}
	return refusal(coded(&proto.Error{Code: proto.Code(e.Code), Message: e.Message, Hint: e.Hint}))
}

// refusal is an error in one line.
func refusal(e *proto.Error) string {
	s := fmt.Sprintf("%s: %s", e.Code, e.Message)
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// coded makes what a server says in an error fit for a person at a terminal.
func coded(e *proto.Error) *proto.Error {
	c := &proto.Error{Code: proto.Code(clean(string(e.Code))), Message: clean(e.Message), Hint: clean(e.Hint), Err: e.Err}
	switch e.Code {
	case proto.CodeModelFailed, proto.CodeAttemptsExhausted, proto.CodeInterrupted:
		c.Hint = "ask again" // the protocol's hint speaks to programs
	}
	return c
}

// progress says what an open turn waits for, or nothing.
func progress(s *wirepb.Status) string {
	part := ""
	if s.Total > 0 {
		part = fmt.Sprintf(" %d %%", uint64(s.Done)*100/uint64(s.Total))
	}
	switch s.Phase {
	case wirepb.Phase_PHASE_WAITING:
		return "waiting for the answer before it"
	case wirepb.Phase_PHASE_QUEUED:
		if s.Position > 1 {
			return fmt.Sprintf("in line for the model: %d of %d", s.Position, max(s.Waiting, s.Position))
		}
		return "next in line for the model"
	case wirepb.Phase_PHASE_LOADING:
		return "loading the model" + part
	case wirepb.Phase_PHASE_PREFILL:
		return "reading" + part
	}
	return ""
}
