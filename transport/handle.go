package transport

import (
	"fmt"
	"strings"
	"sync/atomic"
	"unicode"
	"unicode/utf8"

	pb "google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/transport/ws"
)

// Version is the protocol's.
const Version = 1

// maxAddress bounds an object's address before anybody parses it.
const maxAddress = 1024

// handle serves one message. A panic in what it calls ends the request and not the connection.
func (c *Conn) handle(kind ws.Opcode, message []byte) {
	if c.echo {
		c.echoMessage(kind, message)
		return
	}
	f, err := c.codec.decode(kind, message)
	if err != nil {
		c.s.metrics.received.WithLabelValues("malformed").Inc()
		c.strike(&wirepb.Frame{}, &proto.Error{
			Code:    proto.CodeInvalidFrame,
			Message: "the message is not a Frame in the encoding of " + c.codec.name(), Err: err,
		})
		return
	}
	c.s.metrics.received.WithLabelValues(kindOf(f)).Inc()
	defer func() {
		if p := recover(); p != nil {
			c.s.panicked(p, "frame", "conn", c.id, "object", f.Object, "kind", kindOf(f))
			c.refuse(f, &proto.Error{Code: proto.CodeInternal, Message: "the server failed to serve this frame"})
		}
	}()
	if c.currentPhase() == phaseGreeting {
		c.greet(f)
		return
	}
	c.serve(f)
}

// greet takes the first frame, which must be Hello.
func (c *Conn) greet(f *wirepb.Frame) {
	h := f.GetHello()
	if h == nil {
		c.refuseConn(proto.Errorf(proto.CodeInvalidFrame, "the first frame is %s instead of hello", kindOf(f)))
		return
	}
	if h.Version != Version {
		c.refuseConn(proto.Errorf(proto.CodeUnsupportedVersion, "version %d is not spoken here, version %d is", h.Version, Version))
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.phase != phaseGreeting {
		return
	}
	c.openLocked()
	c.queueLocked(outgoing{frame: &wirepb.Frame{Request: f.Request, Body: &wirepb.Frame_Welcome{Welcome: &wirepb.Welcome{
		Version:        Version,
		Server:         c.s.o.Version,
		Namespace:      c.principal.Namespace,
		User:           c.principal.User,
		MaxFrameBytes:  uint32(c.s.o.MaxFrameBytes),
		PingIntervalMs: uint32(c.s.o.PingInterval.Milliseconds()),
	}}}})
}

// serve takes any later frame.
func (c *Conn) serve(f *wirepb.Frame) {
	switch b := f.Body.(type) {
	case *wirepb.Frame_Ping:
		if len(b.Ping.GetPayload()) > ws.MaxControl {
			c.refuse(f, proto.Errorf(proto.CodeInvalidArgument, "ping.payload has more than %d bytes", ws.MaxControl))
			return
		}
		c.send(&wirepb.Frame{Request: f.Request, Body: &wirepb.Frame_Pong{Pong: &wirepb.Pong{Payload: b.Ping.GetPayload()}}})
	case *wirepb.Frame_Attach, *wirepb.Frame_Detach, *wirepb.Frame_Submit, *wirepb.Frame_Stop:
		if e := c.checkObject(f.Object); e != nil {
			c.refuse(f, e)
			return
		}
		switch b := b.(type) {
		case *wirepb.Frame_Attach:
			c.attach(f, b.Attach)
		case *wirepb.Frame_Detach:
			c.detach(f)
		default:
			c.dispatch(f)
		}
	case nil: // of a later version of the protocol, or empty: no reason to end the connection
		c.refuse(f, proto.Errorf(proto.CodeInvalidFrame, "the frame has no body that this server knows"))
	default:
		c.strike(f, proto.Errorf(proto.CodeInvalidFrame, "a client does not send %s here", kindOf(f)))
	}
}

// checkObject refuses addresses that are malformed or of another namespace (invariant 7). What kinds and names exist
// is for the Dispatcher to say.
func (c *Conn) checkObject(address string) *proto.Error {
	parts := strings.Split(address, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" || len(address) > maxAddress {
		return proto.Errorf(proto.CodeInvalidName, "object is not an address namespace/kind/name of at most %d bytes", maxAddress)
	}
	if !utf8.ValidString(address) || strings.ContainsFunc(address, unicode.IsControl) {
		return proto.Errorf(proto.CodeInvalidName, "object has control characters or is not UTF-8")
	}
	if parts[0] != c.principal.Namespace {
		return proto.Errorf(proto.CodeForbidden, "object is not of your namespace %q", c.principal.Namespace)
	}
	return nil
}

// refuse answers a frame with an Error.
func (c *Conn) refuse(f *wirepb.Frame, e *proto.Error) {
	c.send(c.refusal(f, wireError(e)))
	c.s.o.Logger.Debug("refused a frame", "conn", c.id, "remote", c.ws.RemoteAddr().String(), "user", c.principal.User,
		"object", f.Object, "request", f.Request, "kind", kindOf(f), "code", e.Code, "reason", e.Error())
}

// refusal is the frame that answers f with w.
func (c *Conn) refusal(f *wirepb.Frame, w *wirepb.Error) *wirepb.Frame {
	c.s.metrics.refused(proto.Code(w.Code))
	if m := f.GetSubmit(); m != nil && w.MessageId == "" {
		w.MessageId = m.MessageId
	}
	return &wirepb.Frame{Object: f.Object, Request: f.Request, Body: &wirepb.Frame_Error{Error: w}}
}

// strike refuses a frame that no correct client sends; too many end the connection.
func (c *Conn) strike(f *wirepb.Frame, e *proto.Error) {
	c.malformed++
	if c.malformed < c.s.o.MaxMalformed {
		c.refuse(f, e)
		return
	}
	c.refuseConn(&proto.Error{Code: e.Code, Message: fmt.Sprintf("%s; it is the %dth bad frame", e.Message, c.malformed), Err: e.Err})
}

// dispatch hands a Submit or Stop to its object. Each has its own allowance, so that a flood of the former does not
// keep the latter out (invariant 12).
func (c *Conn) dispatch(f *wirepb.Frame) {
	submit := f.GetSubmit() != nil
	if e := c.admit(submit); e != nil {
		c.refuse(f, e)
		return
	}
	var answered atomic.Bool
	reply := func(r *wirepb.Frame) {
		if !answered.CompareAndSwap(false, true) {
			c.s.o.Logger.Error("a frame was answered twice", "conn", c.id, "object", f.Object, "kind", kindOf(f))
			return
		}
		c.reply(f, r, submit)
	}
	defer func() {
		if p := recover(); p != nil {
			c.s.panicked(p, "dispatch", "conn", c.id, "object", f.Object, "kind", kindOf(f))
			if answered.CompareAndSwap(false, true) {
				c.reply(f, nil, submit)
			}
		}
	}()
	// The server's context, not the connection's: a lost connection takes nothing back.
	c.s.o.Dispatcher.Dispatch(c.s.ctx, c.principal, f, reply)
}

// admit counts a request in, or refuses it.
func (c *Conn) admit(submit bool) *proto.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case submit && c.mu.draining:
		return proto.Errorf(proto.CodeDraining, "this server is stopping and takes no new message")
	case submit && c.mu.inFlight >= c.s.o.MaxInFlight:
		return proto.Errorf(proto.CodeOverloaded, "the connection has %d requests in flight", c.mu.inFlight)
	case !submit && c.mu.stops >= c.s.o.MaxStops:
		return proto.Errorf(proto.CodeOverloaded, "the connection has %d stops in flight", c.mu.stops)
	case submit:
		c.mu.inFlight++
	default:
		c.mu.stops++
	}
	return nil
}

// reply counts a request out and queues its answer.
func (c *Conn) reply(f, r *wirepb.Frame, submit bool) {
	switch {
	case r.GetBody() == nil:
		r = c.refusal(f, wireError(&proto.Error{Code: proto.CodeInternal, Message: "the server failed to serve this frame"}))
	case r.GetError() != nil:
		w := pb.CloneOf(r.GetError())
		completeError(w)
		r = c.refusal(f, w)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if submit {
		c.mu.inFlight--
	} else {
		c.mu.stops--
	}
	c.queueLocked(outgoing{frame: r})
}
