package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// event is what a frame of a server means here.
type event struct {
	kind  kind
	id    string // of the message, as given to say
	count int    // tokens
}

type kind int

const (
	ignore kind = iota
	ack         // the message is durable
	token       // part of its answer
	end         // its answer is complete
	fail        // it was refused
)

// adapter is all that differs between servers, for one connection. Not safe for concurrent use.
type adapter interface {
	url(addr, object string) string
	subprotocols() []string
	// ready runs after the upgrade and says whatever must come before the first message.
	ready(c *websocket.Conn, object string, subscribe bool) error
	// say encodes a message that asks for n tokens, gapMS apart; 0 tokens asks for the acknowledgement alone.
	say(id string, n, gapMS int) (messageType int, frame []byte)
	decode(messageType int, frame []byte) event
	// answers says that even a message that asks for no token is a turn with an end of its own.
	answers() bool
}

var adapters = map[string]func() adapter{
	"holdfast":        func() adapter { return &holdfast{turns: map[uint64]string{}} },
	"workerd":         func() adapter { return plain{} },
	"workerd-durable": func() adapter { return plain{durable: true} },
}

// holdfast speaks holdfast.v1 to the echo model.
type holdfast struct {
	object string
	turns  map[uint64]string // turn to message id
}

func (h *holdfast) answers() bool { return true }

func (h *holdfast) url(addr, _ string) string { return "ws://" + addr + "/v1/ws" }
func (h *holdfast) subprotocols() []string    { return []string{"holdfast.v1"} }

func (h *holdfast) ready(c *websocket.Conn, object string, subscribe bool) error {
	h.object = "default/session/" + object
	first := []*wirepb.Frame{{Body: &wirepb.Frame_Hello{Hello: &wirepb.Hello{Version: 1, Client: "loadgen"}}}}
	if subscribe {
		first = append(first, &wirepb.Frame{Object: h.object, Request: 1, Body: &wirepb.Frame_Attach{Attach: &wirepb.Attach{}}})
	}
	for _, f := range first {
		b, err := proto.Marshal(f)
		if err != nil {
			return err
		}
		if err := c.WriteMessage(websocket.BinaryMessage, b); err != nil {
			return err
		}
	}
	for range first {
		_, b, err := c.ReadMessage()
		if err != nil {
			return err
		}
		var f wirepb.Frame
		if err := proto.Unmarshal(b, &f); err != nil {
			return err
		}
		if e := f.GetError(); e != nil {
			return fmt.Errorf("%s: %s", e.Code, e.Message)
		}
	}
	return nil
}

func (h *holdfast) say(id string, n, gapMS int) (int, []byte) {
	b, err := proto.Marshal(&wirepb.Frame{Object: h.object, Body: &wirepb.Frame_Submit{Submit: &wirepb.Submit{
		MessageId: id, Text: fmt.Sprintf("/echo n=%d gap=%dms", n, gapMS), Options: &wirepb.Options{Model: "echo", MaxTokens: proto.Uint32(uint32(max(n, 1)))}}}})
	if err != nil {
		panic(err) // a message that we made ourselves
	}
	return websocket.BinaryMessage, b
}

func (h *holdfast) decode(_ int, b []byte) event {
	var f wirepb.Frame
	if proto.Unmarshal(b, &f) != nil {
		return event{kind: fail}
	}
	switch x := f.Body.(type) {
	case *wirepb.Frame_Accepted:
		return event{kind: ack, id: x.Accepted.MessageId}
	case *wirepb.Frame_Error:
		return event{kind: fail, id: x.Error.MessageId}
	case *wirepb.Frame_Entry:
		switch e := x.Entry.Body.(type) {
		case *wirepb.Entry_UserMessage:
			h.turns[x.Entry.Turn] = e.UserMessage.MessageId
		case *wirepb.Entry_Chunk:
			return event{kind: token, id: h.turns[x.Entry.Turn], count: strings.Count(e.Chunk.Text, " ")}
		case *wirepb.Entry_Terminal:
			id := h.turns[x.Entry.Turn]
			delete(h.turns, x.Entry.Turn)
			return event{kind: end, id: id}
		}
	}
	return event{}
}

// plain is the JSON protocol of bench/peers/workerd/session.js.
type plain struct{ durable bool }

type plainMessage struct {
	T       string `json:"t"`
	ID      string `json:"id"`
	Text    string `json:"text,omitempty"`
	N       int    `json:"n,omitempty"`
	Gap     int    `json:"gap,omitempty"`
	Durable bool   `json:"durable,omitempty"`
}

func (plain) answers() bool { return false }

func (plain) url(addr, object string) string { return "ws://" + addr + "/h/" + url.PathEscape(object) }
func (plain) subprotocols() []string         { return nil }

func (plain) ready(*websocket.Conn, string, bool) error { return nil }

func (p plain) say(id string, n, gapMS int) (int, []byte) {
	b, err := json.Marshal(plainMessage{T: "say", ID: id, Text: fmt.Sprintf("/echo n=%d gap=%dms", n, gapMS), N: n, Gap: gapMS, Durable: p.durable})
	if err != nil {
		panic(err)
	}
	return websocket.TextMessage, b
}

func (plain) decode(_ int, b []byte) event {
	var m plainMessage
	if json.Unmarshal(b, &m) != nil {
		return event{kind: fail}
	}
	switch m.T {
	case "ack":
		return event{kind: ack, id: m.ID}
	case "tok":
		return event{kind: token, id: m.ID, count: 1}
	case "end":
		return event{kind: end, id: m.ID}
	}
	return event{}
}

func dial(c *config, i int, subscribe bool) (*websocket.Conn, adapter, error) {
	a := adapters[c.adapter]()
	d := websocket.Dialer{HandshakeTimeout: 20 * time.Second, ReadBufferSize: 2048, WriteBufferSize: 1024, Subprotocols: a.subprotocols()}
	object := c.object(i)
	ws, _, err := d.Dial(a.url(c.addr, object), nil)
	if err != nil {
		return nil, nil, fmt.Errorf("connection %d: %w", i, err)
	}
	ws.SetReadDeadline(time.Now().Add(20 * time.Second))
	if err := a.ready(ws, object, subscribe); err != nil {
		ws.Close()
		return nil, nil, fmt.Errorf("connection %d: %w", i, err)
	}
	return ws, a, nil
}
