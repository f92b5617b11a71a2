package storage

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"time"
)

// The layout of keys is part of the format (formatVersion). Integers are big-endian, so that bytes.Compare orders them.
//
//	'm' shard "node"                                                   the Node record
//	'n' shard namespace 0 kind 0 name                                  names index: present incarnation
//	'd' shard due(8) id(16) incarnation(4) alarm key                   due-alarm index
//	'l' shard id(16) incarnation(4) turn(8)                            live-turn index
//	'o' shard id(16) incarnation(4) space suffix                       records of objects
//
// An object's records share the prefix up to the incarnation. Engines split keys there (PrefixLen), which gives one
// bloom filter entry an object. Every other key is its own prefix, so that the names index answers "no such object"
// from a filter, without reading a block.
const (
	spaceNode   = 'm'
	spaceNames  = 'n'
	spaceDue    = 'd'
	spaceLive   = 'l'
	spaceObject = 'o'
)

// Spaces of an object. 'e' (effects) and 'h' (history) are reserved.
const (
	recMeta      = 'm'
	recLog       = 'l' // suffix: first offset (8)
	recValue     = 'v' // suffix: the kind's key
	recAlarm     = 'a' // suffix: alarm key
	recTurn      = 't' // suffix: turn (8)
	recMessageID = 'i' // suffix: length of user (2) user id
)

const (
	shard        = 0 // the only one on one node
	headerLen    = 1 + 2
	refLen       = 16 + 4
	objectPrefix = headerLen + refLen
)

// PrefixLen returns the length of the part of key that a bloom filter should hold.
func PrefixLen(key []byte) int {
	if len(key) >= objectPrefix && key[0] == spaceObject {
		return objectPrefix
	}
	return len(key)
}

// Ref names one life of an object.
type Ref struct {
	Hash        ObjectID
	Incarnation uint32
}

func (r Ref) String() string { return fmt.Sprintf("%x.%d", r.Hash[:], r.Incarnation) }

// maxPart bounds each part of an address.
const maxPart = 1024

func (a Address) validate() error {
	for _, p := range [...]struct{ what, s string }{{"namespace", a.Namespace}, {"kind", a.Kind}, {"name", a.Name}} {
		switch {
		case p.s == "":
			return fmt.Errorf("address %q: the %s is empty: %w", a, p.what, ErrAddress)
		case len(p.s) > maxPart:
			return fmt.Errorf("address %.40q…: the %s has %d bytes, more than %d: %w", a, p.what, len(p.s), maxPart, ErrAddress)
		case strings.ContainsAny(p.s, "/\x00"):
			return fmt.Errorf("address %q: the %s contains a slash or a zero byte: %w", a, p.what, ErrAddress)
		}
	}
	return nil
}

// ID returns the id of the address. Neither part may contain a slash, so no two addresses are hashed alike by design.
func (a Address) ID() ObjectID {
	sum := sha256.Sum256([]byte(a.String()))
	return ObjectID(sum[:16])
}

func header(space byte) []byte {
	k := make([]byte, headerLen, 64)
	k[0] = space
	binary.BigEndian.PutUint16(k[1:], shard)
	return k
}

var nodeKey = append(header(spaceNode), "node"...)

func nameKey(a Address) []byte { return append(kindPrefix(a.Namespace, a.Kind), a.Name...) }

func kindPrefix(namespace, kind string) []byte {
	k := append(header(spaceNames), namespace...)
	k = append(append(k, 0), kind...)
	return append(k, 0)
}

func appendRef(k []byte, r Ref) []byte {
	k = append(k, r.Hash[:]...)
	return binary.BigEndian.AppendUint32(k, r.Incarnation)
}

// recordKey is the key of an object's record without its suffix.
func recordKey(r Ref, space byte) []byte {
	return append(appendRef(header(spaceObject), r), space)
}

func offsetKey(r Ref, space byte, offset uint64) []byte {
	return binary.BigEndian.AppendUint64(recordKey(r, space), offset)
}

func keySuffix(key []byte) []byte { return key[objectPrefix+1:] }

func messageIDKey(r Ref, user, id string) []byte {
	k := binary.BigEndian.AppendUint16(recordKey(r, recMessageID), uint16(len(user)))
	return append(append(k, user...), id...)
}

// orderedMillis keeps the order of signed times in unsigned big-endian bytes.
func orderedMillis(ms int64) uint64 { return uint64(ms) ^ 1<<63 }

func dueKey(r Ref, dueMillis int64, alarm string) []byte {
	k := binary.BigEndian.AppendUint64(header(spaceDue), orderedMillis(dueMillis))
	return append(appendRef(k, r), alarm...)
}

func dueTime(key []byte) time.Time {
	return time.UnixMilli(int64(binary.BigEndian.Uint64(key[headerLen:]) ^ 1<<63))
}

func liveKey(r Ref, turn uint64) []byte {
	return binary.BigEndian.AppendUint64(appendRef(header(spaceLive), r), turn)
}

// refOf reads the object that a key belongs to, for the spaces that have one.
func refOf(key []byte) (Ref, bool) {
	if len(key) < headerLen {
		return Ref{}, false
	}
	rest := key[headerLen:]
	switch key[0] {
	case spaceDue:
		if len(rest) < 8 {
			return Ref{}, false
		}
		rest = rest[8:]
	case spaceObject, spaceLive:
	default:
		return Ref{}, false
	}
	if len(rest) < refLen {
		return Ref{}, false
	}
	return Ref{Hash: ObjectID(rest[:16]), Incarnation: binary.BigEndian.Uint32(rest[16:])}, true
}

// next returns the first key after all keys with prefix k.
func next(k []byte) []byte {
	k = bytes.Clone(k)
	for i := len(k) - 1; i >= 0; i-- {
		if k[i]++; k[i] != 0 {
			return k[:i+1]
		}
	}
	return nil // not reached: every prefix begins with a space, which is not 255
}
