package transport

import (
	"errors"
	"fmt"
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/transport/ws"
)

// The subprotocols, in the order of the server's preference.
const (
	ProtocolBinary = "holdfast.v1"
	ProtocolJSON   = "holdfast.v1.json"
)

var subprotocols = []string{ProtocolBinary, ProtocolJSON}

// codec turns frames into messages and back. Implementations are stateless but for caches, and safe for concurrent use.
type codec interface {
	name() string
	// decode reads a client's message. Fields that it does not know are ignored.
	decode(kind ws.Opcode, message []byte) (*wirepb.Frame, error)
	// append appends f as a WebSocket message.
	append(dst []byte, f *wirepb.Frame) ([]byte, error)
	// prefix is what entries of object begin with; see appendEntry.
	prefix(object string) []byte
	// appendEntry appends a WebSocket message with the frame {object, entry}, the entry being marshaled.
	appendEntry(dst, prefix, entry []byte) ([]byte, error)
}

var errEncoding = errors.New("text and binary messages belong to different subprotocols")

// binaryCodec is the protobuf encoding.
type binaryCodec struct{}

func (binaryCodec) name() string { return ProtocolBinary }

func (binaryCodec) decode(kind ws.Opcode, message []byte) (*wirepb.Frame, error) {
	if kind != ws.Binary {
		return nil, errEncoding
	}
	f := &wirepb.Frame{}
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(message, f); err != nil {
		return nil, err
	}
	return f, nil
}

func (binaryCodec) append(dst []byte, f *wirepb.Frame) ([]byte, error) {
	o := proto.MarshalOptions{}
	n := o.Size(f)
	o.UseCachedSize = true
	return o.MarshalAppend(ws.AppendHeader(dst, ws.Binary, n), f)
}

// Field numbers of Frame that are spliced.
const (
	fieldObject = 1
	fieldEntry  = 30
)

func (binaryCodec) prefix(object string) []byte {
	p := protowire.AppendTag(nil, fieldObject, protowire.BytesType)
	p = protowire.AppendString(p, object)
	return protowire.AppendTag(p, fieldEntry, protowire.BytesType)
}

func (binaryCodec) appendEntry(dst, prefix, entry []byte) ([]byte, error) {
	dst = ws.AppendHeader(dst, ws.Binary, len(prefix)+protowire.SizeBytes(len(entry)))
	return protowire.AppendBytes(append(dst, prefix...), entry), nil
}

// jsonCodec is the JSON mapping of protobuf.
type jsonCodec struct{ cache *jsonCache }

func (jsonCodec) name() string { return ProtocolJSON }

func (jsonCodec) decode(kind ws.Opcode, message []byte) (*wirepb.Frame, error) {
	if kind != ws.Text {
		return nil, errEncoding
	}
	f := &wirepb.Frame{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(message, f); err != nil {
		return nil, err
	}
	return f, nil
}

func (jsonCodec) append(dst []byte, f *wirepb.Frame) ([]byte, error) {
	j, err := protojson.Marshal(f)
	if err != nil {
		return dst, err
	}
	return ws.AppendMessage(dst, ws.Text, j), nil
}

func (c jsonCodec) prefix(object string) []byte {
	p, err := protojson.Marshal(&wirepb.Frame{Object: object})
	if err != nil || object == "" { // not UTF-8: checked when the object was named
		return []byte(`{"entry":`)
	}
	return append(p[:len(p)-1], `,"entry":`...)
}

func (c jsonCodec) appendEntry(dst, prefix, entry []byte) ([]byte, error) {
	j, err := c.cache.marshal(entry)
	if err != nil {
		return dst, err
	}
	dst = ws.AppendHeader(dst, ws.Text, len(prefix)+len(j)+1)
	return append(append(append(dst, prefix...), j...), '}'), nil
}

// jsonCache remembers the JSON of entries that several connections are sent at nearly the same time. They come from
// one ring and share their bytes, so that the address of an entry's first byte identifies it: a slot holds on to the
// bytes, which keeps the address from being used again.
type jsonCache struct {
	slots [256]atomic.Pointer[jsonEntry]
}

type jsonEntry struct {
	entry []byte
	json  []byte
}

// cachedEntry is the largest entry that is remembered: chunks are far smaller, and the cache must stay small.
const cachedEntry = 4 << 10

func (c *jsonCache) marshal(entry []byte) ([]byte, error) {
	if len(entry) == 0 || len(entry) > cachedEntry {
		return entryJSON(entry)
	}
	slot := &c.slots[slotOf(entry)]
	if e := slot.Load(); e != nil && &e.entry[0] == &entry[0] && len(e.entry) == len(entry) {
		return e.json, nil
	}
	j, err := entryJSON(entry)
	if err == nil {
		slot.Store(&jsonEntry{entry: entry, json: j})
	}
	return j, err
}

// slotOf hashes the content of an entry's head, where its offset and time are.
func slotOf(entry []byte) uint8 {
	h := uint32(2166136261)
	for _, b := range entry[:min(len(entry), 16)] {
		h = (h ^ uint32(b)) * 16777619
	}
	return uint8(h ^ h>>8 ^ h>>16)
}

func entryJSON(entry []byte) ([]byte, error) {
	var e wirepb.Entry
	if err := proto.Unmarshal(entry, &e); err != nil {
		return nil, fmt.Errorf("decode an entry of %d bytes: %w", len(entry), err)
	}
	return protojson.Marshal(&e)
}
