package session

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/holdfast-ai/holdfast/actors"
)

// idSweep is how far old message ids have been forgotten. Turns hold their ids in the order of time, so the position is
// a turn; an alarm goes on from there.
type idSweep struct {
	armed bool
	swept uint64 // turns up to this one have no message id any more
}

const (
	sweepBatch = 256
	sweepEvery = 24 * time.Hour
)

var keyIDs = []byte("ids")

func (s *object) loadIDs(c *actors.Context) error {
	if s.ids != nil {
		return nil
	}
	v, err := c.Value(keyIDs)
	if err != nil {
		return fmt.Errorf("session: read the position of the id sweep: %w", err)
	}
	s.ids = &idSweep{}
	if len(v) == 9 {
		s.ids.armed, s.ids.swept = v[0] != 0, binary.BigEndian.Uint64(v[1:])
	}
	return nil
}

func (s *object) saveIDs(c *actors.Context) {
	v := make([]byte, 9)
	if s.ids.armed {
		v[0] = 1
	}
	binary.BigEndian.PutUint64(v[1:], s.ids.swept)
	c.Put(keyIDs, v)
}

// armIDs sees to it that a new message id is forgotten some day.
func (s *object) armIDs(c *actors.Context) error {
	if err := s.loadIDs(c); err != nil || s.ids.armed {
		return err
	}
	s.ids.armed = true
	s.saveIDs(c)
	c.SetAlarm(alarmIDs, c.Now().Add(s.o.KeepIDs+sweepEvery))
	return nil
}

// sweepIDs forgets message ids that are older than KeepIDs, a batch at a time.
func (s *object) sweepIDs(c *actors.Context) error {
	if err := s.loadIDs(c); err != nil {
		return err
	}
	turns, err := c.Log().Turns(s.ids.swept, sweepBatch)
	if err != nil {
		return fmt.Errorf("session: list turns: %w", err)
	}
	before := c.Now().Add(-s.o.KeepIDs).UnixMilli()
	next := c.Now()
	s.ids.armed = len(turns) == sweepBatch
	for _, t := range turns {
		m, err := c.MessageID(t.User, t.MessageId)
		if err != nil {
			return fmt.Errorf("session: look up message id of turn %d: %w", t.Turn, err)
		}
		if m != nil && m.Turn == t.Turn {
			if m.TimeUnixMs > before || t.Last == 0 {
				s.ids.armed, next = true, c.Now().Add(sweepEvery)
				break
			}
			c.ForgetMessageID(t.User, t.MessageId)
		}
		s.ids.swept = t.Turn
	}
	s.saveIDs(c)
	if s.ids.armed {
		c.SetAlarm(alarmIDs, next)
	}
	return nil
}
