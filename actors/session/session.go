package session

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/actors"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/statepb"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// Name of the kind, the middle part of a session's address.
const Name = "session"

// Options of Kind. The zero value is a sound default.
type Options struct {
	Registerer prometheus.Registerer // default: none

	MaxQueue     int           // turns that wait behind the one that runs; default 16
	MaxText      int           // bytes of a message; default 1 MiB
	MaxAttempts  int           // of a turn over crashes; default 3
	HistoryBytes int           // of text of earlier turns given to a model; default 64 KiB
	KeepIDs      time.Duration // message ids are known at least so long; default and least 7 days
}

func (o Options) withDefaults() Options {
	for _, n := range []struct {
		field *int
		value int
	}{
		{&o.MaxQueue, 16}, {&o.MaxText, 1 << 20}, {&o.MaxAttempts, 3}, {&o.HistoryBytes, 64 << 10},
	} {
		if *n.field <= 0 {
			*n.field = n.value
		}
	}
	o.KeepIDs = max(o.KeepIDs, leastKeepIDs)
	return o
}

const leastKeepIDs = 7 * 24 * time.Hour // invariant 5

// Kind returns the kind "session".
func Kind(o Options) actors.Kind {
	o = o.withDefaults()
	m := newMetrics(o.Registerer)
	return actors.Kind{
		Name:    Name,
		Version: 1,
		New:     func(id actors.ID) actors.Object { return &object{o: &o, m: m, id: id} },
		Live: func(state []byte) uint64 {
			var s statepb.SessionState
			if pb.Unmarshal(state, &s) != nil || len(s.Open) == 0 {
				return 0
			}
			return s.Open[0]
		},
	}
}

// Keys of alarms, effects and values.
const (
	alarmTurn      = "turn"
	alarmIDs       = "ids"
	effectPrepare  = "prepare"
	effectGenerate = "generate"
)

// turnAlarm is how often a session with open turns is looked after, should everything else have forgotten it.
const turnAlarm = 10 * time.Minute

var errStop = errors.New("stopped on request")

// object is one activation of a session. Its invariants, between events:
//
//  1. run is nil exactly when state.Open is empty; run.turn is state.Open[0].
//  2. Exactly one effect exists while run is not nil: prepare or generate.
type object struct {
	o     *Options
	m     *metrics
	id    actors.ID
	state statepb.SessionState
	run   *run
	past  *past    // what the last turn was prepared with
	ids   *idSweep // nil until it is read
}

// run is the turn at the front.
type run struct {
	turn     uint64
	rec      *statepb.Turn // its index record, content ranges included
	began    time.Time     // of this attempt
	stopping bool
	spoke    bool // something was said in this attempt
	resumed  int  // tokens of earlier attempts
}

// Handle implements actors.Object.
func (s *object) Handle(c *actors.Context, e actors.Event) error {
	switch e := e.(type) {
	case actors.Activate:
		return s.activate(c)
	case actors.Message:
		switch b := e.Frame.GetBody().(type) {
		case *wirepb.Frame_Submit:
			return s.submit(c, b.Submit)
		case *wirepb.Frame_Stop:
			return s.stop(c, b.Stop)
		}
		return proto.Errorf(proto.CodeInvalidFrame, "a session takes Submit and Stop")
	case actors.Alarm:
		return s.alarm(c, e)
	case actors.Output:
		return s.output(c, e)
	}
	return fmt.Errorf("session: unknown event %T", e)
}

func (s *object) alarm(c *actors.Context, e actors.Alarm) error {
	switch e.Key {
	case alarmTurn:
		if len(s.state.Open) > 0 {
			c.SetSystemAlarm(alarmTurn, c.Now().Add(turnAlarm))
		}
		return nil
	case alarmIDs:
		return s.sweepIDs(c)
	}
	c.Logger().Warn("an alarm that this version does not know is dropped", "alarm", e.Key)
	return nil
}

// save writes the small state.
func (s *object) save(c *actors.Context) error {
	b, err := pb.Marshal(&s.state)
	if err != nil {
		return fmt.Errorf("session: marshal state: %w", err)
	}
	c.SetState(b)
	return nil
}
