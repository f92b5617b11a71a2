package actors

import (
	"errors"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// reply answers one client message. Exactly one of its methods is called to effect, once.
type reply struct {
	fn        func(*wirepb.Frame)
	object    string
	request   uint64
	messageID string
}

func newReply(f *wirepb.Frame, fn func(*wirepb.Frame)) *reply {
	return &reply{fn: fn, object: f.GetObject(), request: f.GetRequest(), messageID: f.GetSubmit().GetMessageId()}
}

// send answers with f, which it completes.
func (r *reply) send(f *wirepb.Frame) {
	f.Object, f.Request = r.object, r.request
	r.fn(f)
}

func (r *reply) refuse(err error) {
	r.send(&wirepb.Frame{Body: wireError(err, r.messageID)})
}

// sending is an answer that passes the gate.
func (r *reply) sending(f *wirepb.Frame) output {
	return output{run: func() { r.send(f) }, fail: r.refuse}
}

// refusing is a refusal that passes the gate, since it may tell of what earlier handlers did.
func (r *reply) refusing(e *proto.Error) output {
	return output{run: func() { r.refuse(e) }, fail: r.refuse}
}

func isRefusal(err error) bool {
	var e *proto.Error
	return errors.As(err, &e)
}
