package storage

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/proto/statepb"
)

// maxUser bounds the user part of a message id's key, whose length has two bytes.
const maxUser = 1<<16 - 1

// Batch gathers the changes of one commit of one object. Later changes of the same record win. What is wrong with it
// (a message that does not marshal) is reported by Commit. It is not safe for concurrent use.
type Batch struct {
	o      *Object
	w      Writes
	err    error
	used   bool
	meta   bool
	first  uint64 // of the frames appended; 0: none
	next   uint64 // offset after them
	alarms []alarmChange
}

type alarmChange struct {
	key string
	set *statepb.Alarm // nil: cleared
}

// NewBatch returns an empty batch for o.
func (o *Object) NewBatch() *Batch { return &Batch{o: o} }

// Empty reports whether nothing was put in.
func (b *Batch) Empty() bool { return b.w.Len() == 0 && b.err == nil }

// Size is the number of bytes that b will write, roughly.
func (b *Batch) Size() int { return b.w.Size() }

func (b *Batch) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

func (b *Batch) setMessage(key []byte, m proto.Message) error {
	payload, err := proto.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode %s: %w: %w", m.ProtoReflect().Descriptor().Name(), err, ErrInvalid)
	}
	b.w.Set(key, seal(key, payload))
	return nil
}

func (b *Batch) put(key []byte, m proto.Message) {
	if err := b.setMessage(key, m); err != nil {
		b.fail(err)
	}
}

// PutMeta writes the first record. Address and incarnation are filled in. The first PutMeta creates the object.
func (b *Batch) PutMeta(m *statepb.Meta) {
	m = proto.CloneOf(m)
	a := b.o.address
	m.Namespace, m.Kind, m.Name, m.Incarnation = a.Namespace, a.Kind, a.Name, b.o.ref.Incarnation
	b.meta = true
	b.put(recordKey(b.o.ref, recMeta), m)
}

// Append adds frames to the log as one record, the first of them at offset first. Offsets are dense: first is one more
// than the last offset of the object. A second Append goes on where the first ended.
func (b *Batch) Append(first uint64, frames [][]byte) {
	switch {
	case len(frames) == 0:
		return
	case first == 0 || b.first != 0 && first != b.next:
		b.fail(fmt.Errorf("append at offset %d after %d: %w", first, b.next, ErrInvalid))
		return
	}
	if b.first == 0 {
		b.first = first
	}
	b.next = first + uint64(len(frames))
	key := offsetKey(b.o.ref, recLog, first)
	b.w.Set(key, seal(key, appendLogRecord(nil, first, frames)))
}

// appendLogRecord encodes a statepb.LogRecord without building one: frames are most of what is ever written.
func appendLogRecord(dst []byte, first uint64, frames [][]byte) []byte {
	dst = protowire.AppendTag(dst, logRecordFirst, protowire.VarintType)
	dst = protowire.AppendVarint(dst, first)
	for _, f := range frames {
		dst = protowire.AppendTag(dst, logRecordFrames, protowire.BytesType)
		dst = protowire.AppendBytes(dst, f)
	}
	return dst
}

// PutTurn writes the index record of a turn.
func (b *Batch) PutTurn(t *statepb.Turn) { b.put(offsetKey(b.o.ref, recTurn, t.GetTurn()), t) }

// PutMessageID remembers what a user's message id started.
func (b *Batch) PutMessageID(user, id string, m *statepb.MessageID) {
	if len(user) > maxUser {
		b.fail(fmt.Errorf("a user id of %d bytes: %w", len(user), ErrInvalid))
		return
	}
	b.put(messageIDKey(b.o.ref, user, id), m)
}

// DeleteMessageID forgets a message id.
func (b *Batch) DeleteMessageID(user, id string) {
	if len(user) <= maxUser {
		b.w.Delete(messageIDKey(b.o.ref, user, id))
	}
}

// Put writes a value of the kind.
func (b *Batch) Put(key, value []byte) {
	k := append(recordKey(b.o.ref, recValue), key...)
	b.w.Set(k, seal(k, value))
}

// Delete removes a value of the kind.
func (b *Batch) Delete(key []byte) { b.w.Delete(append(recordKey(b.o.ref, recValue), key...)) }

// SetAlarm sets the alarm a.Key, in place of an earlier one with that key.
func (b *Batch) SetAlarm(a *statepb.Alarm) {
	b.put(append(recordKey(b.o.ref, recAlarm), a.GetKey()...), a)
	b.alarms = append(b.alarms, alarmChange{key: a.GetKey(), set: proto.CloneOf(a)})
}

// ClearAlarm removes an alarm, if it is set.
func (b *Batch) ClearAlarm(key string) {
	b.w.Delete(append(recordKey(b.o.ref, recAlarm), key...))
	b.alarms = append(b.alarms, alarmChange{key: key})
}

// SetLive enters a turn in the live-turn index.
func (b *Batch) SetLive(turn uint64) {
	a := b.o.address
	b.put(liveKey(b.o.ref, turn), &statepb.Live{Namespace: a.Namespace, Kind: a.Kind, Name: a.Name})
}

// ClearLive removes a turn from the live-turn index.
func (b *Batch) ClearLive(turn uint64) { b.w.Delete(liveKey(b.o.ref, turn)) }
