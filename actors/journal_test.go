package actors_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/holdfast-ai/holdfast/actors"
	"github.com/holdfast-ai/holdfast/actors/actorstest"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var alice = actorstest.User("default", "alice")

const page = "default/journal/page"

// journal is a kind whose objects do what messages tell them, one command a line, so that a test can script a handler:
//
//	append TEXT      an entry of the log
//	put KEY VALUE    a value
//	get KEY          answered in Accepted.message_id
//	refuse           returns a coded error
//	fail             returns another one
//	panic
//	alarm KEY D      sets an alarm, D from now
//	clear KEY
//	effect KEY N     starts an effect that emits N items, each appended
//	wait NAME        blocks until the door of that name is open
//	open NAME        opens it
//
// An alarm's handler appends its key; the keys "bad" and "worse" fail and panic until the journal is healed.
type journal struct {
	mu     sync.Mutex
	doors  map[string]chan struct{}
	healed bool
	alarms []string // "KEY ATTEMPTS" as they came
	acts   int
	during func(key string, ctx context.Context, i int) error // of effects
}

func newJournal() *journal { return &journal{doors: make(map[string]chan struct{})} }

func (j *journal) kinds(prometheus.Registerer) []actors.Kind {
	return []actors.Kind{{Name: "journal", Version: 1, New: func(actors.ID) actors.Object { return &book{j: j} }}}
}

// door returns a channel that closes when open is called.
func (j *journal) door(name string) chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	d := j.doors[name]
	if d == nil {
		d = make(chan struct{})
		j.doors[name] = d
	}
	return d
}

func (j *journal) open(name string) { close(j.door(name)) }

func (j *journal) heal() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.healed = true
}

func (j *journal) fired() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.alarms, ", ")
}

type book struct{ j *journal }

func (b *book) Handle(c *actors.Context, e actors.Event) error {
	switch e := e.(type) {
	case actors.Activate:
		b.j.mu.Lock()
		b.j.acts++
		b.j.mu.Unlock()
	case actors.Alarm:
		return b.alarm(c, e)
	case actors.Output:
		for _, item := range e.Items {
			write(c, item.(string))
		}
		if e.Done {
			write(c, fmt.Sprintf("%s done %v", e.Key, e.Err))
		}
	case actors.Message:
		if e.Frame.GetStop() != nil {
			c.Reply(&wirepb.Frame{Body: &wirepb.Frame_Stopping{Stopping: &wirepb.Stopping{}}})
			return nil
		}
		answer := &wirepb.Accepted{}
		for _, line := range strings.Split(e.Frame.GetSubmit().GetText(), "\n") {
			if err := b.do(c, strings.Fields(line), answer); err != nil {
				return err
			}
		}
		answer.Turn = c.NextOffset() - 1
		c.Reply(&wirepb.Frame{Body: &wirepb.Frame_Accepted{Accepted: answer}})
	}
	return nil
}

func write(c *actors.Context, text string) {
	c.Append(&wirepb.Entry{Body: &wirepb.Entry_State{State: &wirepb.State{Key: text}}})
}

func (b *book) do(c *actors.Context, w []string, answer *wirepb.Accepted) error {
	switch w[0] {
	case "append":
		write(c, strings.Join(w[1:], " "))
	case "put":
		c.Put([]byte(w[1]), []byte(w[2]))
	case "get":
		v, err := c.Value([]byte(w[1]))
		if err != nil {
			return err
		}
		answer.MessageId = string(v)
	case "delete":
		c.Delete([]byte(w[1]))
	case "refuse":
		return proto.Errorf(proto.CodeConflict, "as told")
	case "fail":
		return errors.New("as told")
	case "panic":
		panic("as told")
	case "alarm":
		d, err := time.ParseDuration(w[2])
		if err != nil {
			return err
		}
		c.SetAlarm(w[1], c.Now().Add(d))
	case "clear":
		c.ClearAlarm(w[1])
	case "effect":
		var n int
		fmt.Sscan(w[2], &n)
		b.effect(c, w[1], n)
	case "cancel":
		c.Cancel(w[1], errors.New("cancelled"))
	case "wait":
		<-b.j.door(w[1])
	case "open":
		b.j.open(w[1])
	case "status":
		c.Status(&wirepb.Status{Phase: wirepb.Phase_PHASE_RUNNING, Done: 1})
	default:
		return proto.Errorf(proto.CodeInvalidArgument, "no command %q", w[0])
	}
	return nil
}

func (b *book) effect(c *actors.Context, key string, n int) {
	c.Start(actors.Effect{Key: key, Run: func(ctx context.Context, s *actors.Stream) (any, error) {
		for i := range n {
			if b.j.during != nil {
				if err := b.j.during(key, ctx, i); err != nil {
					return nil, err
				}
			}
			if err := s.Emit(fmt.Sprint(key, " ", i), 10); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}})
}

func (b *book) alarm(c *actors.Context, e actors.Alarm) error {
	b.j.mu.Lock()
	b.j.alarms = append(b.j.alarms, fmt.Sprint(e.Key, " ", e.Attempts))
	healed := b.j.healed
	b.j.mu.Unlock()
	write(c, "alarm "+e.Key)
	switch {
	case healed:
	case e.Key == "bad":
		return proto.Errorf(proto.CodeUnavailable, "as told")
	case e.Key == "worse":
		panic("as told")
	case e.Key == "again":
		c.SetAlarm("again", c.Now().Add(time.Minute))
	}
	return nil
}

func newHarness(t testing.TB, j *journal, change func(*actors.Options)) *actorstest.Harness {
	return actorstest.New(t, actorstest.Options{Kinds: j.kinds, Host: change})
}

// tell sends commands and requires that they are accepted.
func tell(t testing.TB, h *actorstest.Harness, object string, commands ...string) *wirepb.Accepted {
	t.Helper()
	f := h.Do(alice, say(object, commands...))
	if f.GetAccepted() == nil {
		t.Fatalf("%q: %v", commands, f)
	}
	return f.GetAccepted()
}

func say(object string, commands ...string) *wirepb.Frame {
	return actorstest.SubmitFrame(object, "m", strings.Join(commands, "\n"), nil)
}

// states is what the entries of a reader say.
func states(r *actorstest.Reader) string {
	var all []string
	for _, e := range r.Entries {
		all = append(all, e.GetState().GetKey())
	}
	return strings.Join(all, ", ")
}

func untilOffset(r *actorstest.Reader, offset uint64) {
	r.Until(fmt.Sprint("offset ", offset), func(e *wirepb.Entry) bool { return e.Offset >= offset })
}
