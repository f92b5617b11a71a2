package wiretest

import (
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// conn is one client. serve reads; write is for any goroutine.
type conn struct {
	s    *Server
	ws   *websocket.Conn
	json bool
	mu   struct {
		sync.Mutex // serialises writes
	}
}

func (c *conn) write(f *wirepb.Frame) {
	marshal, kind := proto.Marshal, websocket.BinaryMessage
	if c.json {
		marshal, kind = protojson.Marshal, websocket.TextMessage
	}
	b, err := marshal(f)
	if err != nil {
		panic(err) // frames are made in this package
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.ws.WriteMessage(kind, b) // a cut connection is a thing that tests do
}

func (c *conn) close(code int, reason string) {
	deadline := time.Now().Add(time.Second)
	_ = c.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, reason), deadline)
	c.ws.Close()
}

func (c *conn) read() (*wirepb.Frame, error) {
	_, b, err := c.ws.ReadMessage()
	if err != nil {
		return nil, err
	}
	f := &wirepb.Frame{}
	if c.json {
		return f, protojson.Unmarshal(b, f)
	}
	return f, proto.Unmarshal(b, f)
}

// serve answers frames until the connection breaks.
func (c *conn) serve() {
	done := make(chan struct{})
	var following sync.WaitGroup
	defer following.Wait()
	defer close(done)
	defer c.ws.Close()
	for {
		f, err := c.read()
		if err != nil {
			return
		}
		reply := &wirepb.Frame{Object: f.Object, Request: f.Request}
		switch b := f.Body.(type) {
		case *wirepb.Frame_Hello:
			reply.Body = &wirepb.Frame_Welcome{Welcome: &wirepb.Welcome{
				Version: 1, Server: "wiretest", Namespace: "default", User: "local", PingIntervalMs: c.s.o.PingIntervalMS,
			}}
		case *wirepb.Frame_Ping:
			reply.Body = &wirepb.Frame_Pong{Pong: &wirepb.Pong{Payload: b.Ping.Payload}}
		case *wirepb.Frame_Attach:
			l := c.s.Log(f.Object)
			attached, refusal := l.attach(b.Attach)
			if refusal != nil {
				reply.Body = &wirepb.Frame_Error{Error: refusal}
				break
			}
			reply.Body = &wirepb.Frame_Attached{Attached: attached}
			c.write(reply)
			following.Add(1)
			go func() {
				defer following.Done()
				c.follow(l, f.Object, attached, done)
			}()
			continue
		case *wirepb.Frame_Submit:
			accepted, refusal := c.s.submit(f.Object, b.Submit)
			reply.Body = &wirepb.Frame_Accepted{Accepted: accepted}
			if refusal != nil {
				reply.Body = &wirepb.Frame_Error{Error: refusal}
			}
		case *wirepb.Frame_Stop:
			turn, ended := c.s.Log(f.Object).stop(b.Stop.Turn)
			reply.Body = &wirepb.Frame_Stopping{Stopping: &wirepb.Stopping{Turn: turn, Ended: ended}}
		default:
			reply.Body = &wirepb.Frame_Error{Error: &wirepb.Error{Code: "invalid_frame", Message: "not a client's frame"}}
		}
		c.write(reply)
	}
}

func (c *conn) follow(l *Log, object string, attached *wirepb.Attached, done <-chan struct{}) {
	offset, seq, caughtUp := attached.From.Offset, 0, false
	for {
		entries, status, next, changed := l.after(offset, seq)
		for _, e := range entries {
			c.write(&wirepb.Frame{Object: object, Body: &wirepb.Frame_Entry{Entry: e}})
			offset = e.Offset
		}
		if !caughtUp && offset >= attached.Watermark {
			caughtUp = true
			c.write(&wirepb.Frame{Object: object, Body: &wirepb.Frame_CaughtUp{CaughtUp: &wirepb.CaughtUp{Offset: attached.Watermark}}})
		}
		if status != nil {
			c.write(&wirepb.Frame{Object: object, Body: &wirepb.Frame_Status{Status: status}})
		}
		seq = next
		select {
		case <-changed:
		case <-done:
			return
		}
	}
}
