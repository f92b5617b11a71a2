package storage

import (
	"errors"
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
)

// Address names an object.
type Address struct {
	Namespace, Kind, Name string
}

// String returns "namespace/kind/name".
func (a Address) String() string { return a.Namespace + "/" + a.Kind + "/" + a.Name }

// Epoch fences activations of one object: a commit with an older epoch than the last claimed is refused.
type Epoch struct {
	Boot       uint64 // durable, once a start
	Activation uint64 // in memory, once an activation
}

// Less orders epochs.
func (e Epoch) Less(o Epoch) bool {
	return e.Boot < o.Boot || e.Boot == o.Boot && e.Activation < o.Activation
}
