package storage

import (
	"errors"
	"time"
)

// Sentinel errors, to be wrapped with what was tried and what to do.
var (
	ErrNotFound    = errors.New("not found")
	ErrFenced      = errors.New("fenced: a newer activation owns the object") // invariant 1
	ErrCorrupt     = errors.New("damaged record")                             // the object is quarantined
	ErrNewerFormat = errors.New("data folder has a newer format")
	ErrLocked      = errors.New("data folder is in use by another process")
	ErrReadOnly    = errors.New("storage is read-only")
	ErrClosed      = errors.New("storage is closed")
	ErrGone        = errors.New("offset is below retention")
	ErrAddress     = errors.New("invalid address")
	ErrInvalid     = errors.New("invalid commit") // a mistake of the caller; nothing was written
)

// Address names an object.
type Address struct {
	Namespace, Kind, Name string
}

// String returns "namespace/kind/name".
func (a Address) String() string { return a.Namespace + "/" + a.Kind + "/" + a.Name }

// LogFrame is one entry of an object's log. Data is owned by whoever received it.
type LogFrame struct {
	Offset uint64
	Data   []byte
}

// DueAlarm is an entry of the due-alarm index.
type DueAlarm struct {
	Address Address
	Key     string
	Due     time.Time
	System  bool // set by the host, not by the kind
}

// LiveTurn is an entry of the live-turn index: a turn without a terminal record.
type LiveTurn struct {
	Address     Address
	Incarnation uint32
	Turn        uint64
}

// NodeInfo is what a data folder says of itself.
type NodeInfo struct {
	Generation uint64 // raised by a restore from backup; part of every cursor
	Boot       uint64 // number of this start
	StoreID    [16]byte
}

// Epoch fences activations of one object: a commit with an older epoch than the last claimed is refused.
type Epoch struct {
	Boot       uint64 // durable, once a start
	Activation uint64 // in memory, once an activation
}

// Less orders epochs.
func (e Epoch) Less(o Epoch) bool {
	return e.Boot < o.Boot || e.Boot == o.Boot && e.Activation < o.Activation
}
