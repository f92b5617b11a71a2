package storage

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"google.golang.org/protobuf/proto"
)

// A record is
//
//	version(1) keyID(4) checksum(4) payload
//
// keyID 0 is a payload that is not encrypted. The checksum is CRC-32C over version, keyID, the record's key and the
// payload: a record that turns up at another key is as damaged as one with a flipped bit.
const (
	recordVersion = 1
	recordHeader  = 9
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(head, key, payload []byte) uint32 {
	c := crc32.Update(0, castagnoli, head)
	c = crc32.Update(c, castagnoli, key)
	return crc32.Update(c, castagnoli, payload)
}

// seal frames payload as the record at key.
func seal(key, payload []byte) []byte {
	rec := make([]byte, recordHeader, recordHeader+len(payload))
	rec[0] = recordVersion
	rec = append(rec, payload...)
	binary.BigEndian.PutUint32(rec[5:], checksum(rec[:5], key, payload))
	return rec
}

// open returns the payload, which aliases rec.
func open(key, rec []byte) ([]byte, error) {
	if len(rec) < recordHeader {
		return nil, corrupt(key, "it has %d bytes, fewer than its header", len(rec))
	}
	payload := rec[recordHeader:]
	if got, want := checksum(rec[:5], key, payload), binary.BigEndian.Uint32(rec[5:]); got != want {
		return nil, corrupt(key, "checksum %08x, want %08x", got, want)
	}
	if rec[0] > recordVersion {
		return nil, fmt.Errorf("record %x has version %d, newer than %d: start a newer release on this data folder: %w",
			key, rec[0], recordVersion, ErrNewerFormat)
	}
	if id := binary.BigEndian.Uint32(rec[1:]); id != 0 {
		return nil, fmt.Errorf("record %x is encrypted with key %d, which this release cannot use: %w", key, id, ErrNewerFormat)
	}
	return payload, nil
}

func openMessage(key, rec []byte, m proto.Message) error {
	payload, err := open(key, rec)
	if err != nil {
		return err
	}
	if err := proto.Unmarshal(payload, m); err != nil {
		return corrupt(key, "its checksum is right but it is no %s: %v", m.ProtoReflect().Descriptor().Name(), err)
	}
	return nil
}

// CorruptError is a damaged record. It matches ErrCorrupt.
type CorruptError struct {
	Object string // address or id; empty if the record belongs to none
	Key    []byte
	Reason string
}

func corrupt(key []byte, format string, args ...any) *CorruptError {
	e := &CorruptError{Key: append([]byte(nil), key...), Reason: fmt.Sprintf(format, args...)}
	if r, ok := refOf(key); ok {
		e.Object = r.String()
	}
	return e
}

func (e *CorruptError) Error() string {
	object := ""
	if e.Object != "" {
		object = " of object " + e.Object
	}
	return fmt.Sprintf("damaged record %x%s: %s: restore the object from a backup; all other objects are served", e.Key, object, e.Reason)
}

// Is makes errors.Is(err, ErrCorrupt) true.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }
