package transport

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	pb "google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/transport/ws"
)

func codecs() []codec { return []codec{binaryCodec{}, jsonCodec{cache: &jsonCache{}}} }

// payload takes the WebSocket header from one message.
func payload(t interface{ Fatalf(string, ...any) }, message []byte, op ws.Opcode) []byte {
	for size := 0; size <= len(message); size++ {
		if head := ws.AppendHeader(nil, op, len(message)-size); len(head) == size && bytes.HasPrefix(message, head) {
			return message[size:]
		}
	}
	t.Fatalf("not one message of opcode %d: %.40q", op, message)
	return nil
}

// TestSplice: a spliced entry is the frame that marshalling would have made, whatever is in it.
func TestSplice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := &wirepb.Entry{
			Offset: rapid.Uint64().Draw(t, "offset"), Turn: rapid.Uint64().Draw(t, "turn"), TimeUnixMs: rapid.Int64().Draw(t, "time"),
			Body: &wirepb.Entry_Chunk{Chunk: &wirepb.Chunk{
				Text:   rapid.String().Draw(t, "text") + strings.Repeat("x", rapid.SampledFrom([]int{0, 100, 5000, 70_000}).Draw(t, "long")),
				Tokens: rapid.SliceOf(rapid.Uint32()).Draw(t, "tokens"),
			}},
		}
		object := rapid.String().Draw(t, "object")
		raw, err := pb.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		want := &wirepb.Frame{Object: object, Body: &wirepb.Frame_Entry{Entry: e}}
		for _, c := range codecs() {
			for range 2 { // the second time from the cache
				b, err := c.appendEntry([]byte("before"), c.prefix(object), raw)
				if err != nil || !bytes.HasPrefix(b, []byte("before")) {
					t.Fatalf("%s: %v", c.name(), err)
				}
				got := &wirepb.Frame{}
				if c.name() == ProtocolBinary {
					p := payload(t, b[len("before"):], ws.Binary)
					err = pb.Unmarshal(p, got)
					if !bytes.Contains(p, raw) {
						t.Fatalf("the entry's bytes changed")
					}
				} else {
					err = protojson.Unmarshal(payload(t, b[len("before"):], ws.Text), got)
				}
				if err != nil || !pb.Equal(got, want) {
					t.Fatalf("%s: %v\n%v\nwant\n%v", c.name(), err, got, want)
				}
			}
		}
	})
}

// TestCacheTellsEntriesApart: entries whose heads are equal share a slot and not their JSON.
func TestCacheTellsEntriesApart(t *testing.T) {
	c := &jsonCache{}
	var entries [][]byte
	for i := range 50 {
		b, err := pb.Marshal(&wirepb.Entry{Offset: 7, TimeUnixMs: 1_700_000_000_000, Turn: 1, Body: &wirepb.Entry_Chunk{Chunk: &wirepb.Chunk{Text: fmt.Sprint("t", i)}}})
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, b)
	}
	for range 3 {
		for i, e := range entries {
			j, err := c.marshal(e)
			if err != nil || !bytes.Contains(j, fmt.Appendf(nil, `"t%d"`, i)) {
				t.Fatalf("entry %d is %s, %v", i, j, err)
			}
		}
	}
	a, _ := c.marshal(entries[0])
	b, _ := c.marshal(entries[0])
	if &a[0] != &b[0] {
		t.Error("the cache does not remember")
	}
	if _, err := c.marshal([]byte{0xff}); err == nil {
		t.Error("a damaged entry became JSON")
	}
}

func TestFramesBothWays(t *testing.T) {
	f := &wirepb.Frame{Object: "default/session/ä\"\\", Request: 1<<63 + 1, Body: &wirepb.Frame_Error{Error: &wirepb.Error{Code: "gone", FirstHeld: 1 << 60}}}
	for _, c := range codecs() {
		b, err := c.append(nil, f)
		if err != nil {
			t.Fatal(err)
		}
		kind := map[string]ws.Opcode{ProtocolBinary: ws.Binary, ProtocolJSON: ws.Text}[c.name()]
		got, err := c.decode(kind, payload(t, b, kind))
		if err != nil || !pb.Equal(got, f) {
			t.Errorf("%s: %v, %v", c.name(), got, err)
		}
	}
}

// FuzzDecode: no message makes the decoder panic, and what it takes, it can write and read again.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"hello":{"version":1}}`, `{"object":"a/b/c","attach":{"after":{"offset":"5"}}}`, `{"x":[{}]}`, `{"submit":{"text":"\ud800"}}`, "", "null", "\x0a\x03abc\x10\x01\x52\x02\x08\x01"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		for _, c := range codecs() {
			kind := map[string]ws.Opcode{ProtocolBinary: ws.Binary, ProtocolJSON: ws.Text}[c.name()]
			frame, err := c.decode(kind, message)
			if err != nil {
				continue
			}
			_ = kindOf(frame)
			b, err := c.append(nil, frame)
			if err != nil {
				t.Fatalf("%s: read and cannot write: %v", c.name(), err)
			}
			again, err := c.decode(kind, payload(t, b, kind))
			if err != nil || !equalFrames(again, frame) {
				t.Fatalf("%s: %v became %v, %v", c.name(), frame, again, err)
			}
		}
	})
}

// equalFrames compares encodings: a NaN does not equal itself.
func equalFrames(a, b *wirepb.Frame) bool {
	o := pb.MarshalOptions{Deterministic: true}
	x, _ := o.Marshal(a)
	y, _ := o.Marshal(b)
	return bytes.Equal(x, y)
}

// FuzzConn feeds a connection's handler what a greeted client may send; it must neither panic nor stop answering.
func FuzzConn(f *testing.F) {
	f.Add([]byte(`{"object":"default/session/s","submit":{"messageId":"m","text":"t"}}`))
	f.Add([]byte(`{"object":"default/session/s","attach":{"tail":"1"}}`))
	f.Add([]byte(`{"object":"//","stop":{}}`))
	f.Add([]byte(`{"entry":{}}`))
	r := newRig(f, Options{MaxMalformed: 1 << 30, Authenticator: anybody})
	p := r.greeted(ProtocolJSON)
	f.Fuzz(func(t *testing.T, message []byte) {
		p := &peer{t: t, ws: p.ws, json: true}
		if !json.Valid(message) || !utf8.Valid(message) {
			message, _ = json.Marshal(string(message))
		}
		if err := p.ws.WriteMessage(1, message); err != nil {
			t.Fatal(err)
		}
		p.send(&wirepb.Frame{Request: 424242, Body: &wirepb.Frame_Ping{Ping: &wirepb.Ping{Payload: []byte("fuzz")}}})
		for {
			frame, err := p.read()
			if err != nil {
				t.Fatal(err)
			}
			if frame.GetPong() != nil && frame.Request == 424242 {
				return
			}
		}
	})
}
