package actors

import (
	"time"

	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// Kind is a class of objects.
type Kind struct {
	Name    string
	Version uint32 // of what its objects store; recorded in each object
	// New makes an object without state. Its first event is Activate.
	New func(ID) Object
	// Live finds, in the state that an object last set, the turn that runs or waits at the front; 0 if none. Nil:
	// objects of this kind have no turns. It lets readers learn of a live turn without an activation.
	Live func(state []byte) uint64
}

// Object is the behaviour of one activation. Handle is never called concurrently for one address, and never again
// after an error that is not a *proto.Error. What it may do is in Context, which it must not keep.
type Object interface {
	Handle(c *Context, e Event) error
}

// Event is what wakes an object: Activate, Message, Alarm or Output.
type Event interface{ event() }

// Activate is the first event of every activation.
type Activate struct{}

// Message is a client's frame. The handler must Reply or return an error. The frame must not be changed.
type Message struct {
	Frame *wirepb.Frame
}

// Alarm says that a time set by SetAlarm has come. The alarm is cleared if the handler returns nil, unless it sets it
// again; otherwise it comes again later, and Attempts counts.
type Alarm struct {
	Key      string
	Due      time.Time
	Attempts int
}

// Output is what an effect has emitted since the last Output, and with Done its end. Outputs of one effect come in
// order; none comes after Done or in a later activation.
type Output struct {
	Key    string
	Items  []any // valid during Handle
	Done   bool
	Result any   // with Done
	Err    error // with Done; the cause if the effect was cancelled before it started
}

func (Activate) event() {}
func (Message) event()  {}
func (Alarm) event()    {}
func (Output) event()   {}
