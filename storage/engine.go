package storage

// ObjectID is what an engine fences by: the first 16 bytes of SHA-256 of an object's address. All incarnations of an
// address share it.
type ObjectID [16]byte

// Engine is ordered bytes with atomic commits and fencing. It knows no object, only ids. Package pebble implements it
// for one node; an engine that replicates implements the same promises, and package storagetest tests them.
//
// An engine promises:
//
//	E1  A commit is atomic: after any crash all of its writes are there or none.
//	E2  Commits of one object take effect in the order of the calls of Commit. If one is lost in a crash, so are all
//	    later ones of that object.
//	E3  Done(nil) means durable: no crash loses the commit.
//	E4  A View shows only what is durable, a whole number of commits, and at least every commit whose Done was called
//	    before the View was made.
//	E5  A commit is refused with ErrFenced unless its epoch is the one last claimed for its object. The comparison
//	    happens where commits are ordered, under one lock with Claim, so no clock is involved.
//	E6  After a failed write or sync nothing more is acknowledged, nothing more becomes visible, and no sync is tried
//	    again: every later commit fails with ErrReadOnly. Views go on working.
//
// All methods are safe for concurrent use.
type Engine interface {
	// Claim makes e the epoch of id and returns when every commit of id that was accepted before has been completed,
	// so that a View made afterwards holds all that earlier epochs ever wrote. It writes nothing. It fails with
	// ErrFenced if a newer epoch is held, or this one, and with ErrClosed.
	Claim(id ObjectID, e Epoch) error

	// Release gives up e, if it is still the epoch of id: later commits with it are refused. Commits accepted before
	// are completed as usual.
	Release(id ObjectID, e Epoch)

	// Commit applies c. It never blocks on I/O; c and what it holds belong to the engine.
	Commit(c Commit)

	// View returns a consistent view of what is durable. The caller closes it soon: a view holds back the reuse of
	// disk space, and Close of the engine waits for it.
	View() (View, error)

	// Failed returns nil, or why the engine takes no commits any more (an error that wraps ErrReadOnly or ErrClosed).
	Failed() error

	// Close refuses further commits, completes those accepted, waits for open views and releases the data folder.
	// Where the data may not be in order, its error says so.
	Close() error
}

// Commit is one atomic change of one object.
type Commit struct {
	Object ObjectID
	Epoch  Epoch
	Writes *Writes
	// Done is called once, on a goroutine of the engine, never on the caller's. Done of commits of one object are called
	// in order. It must not block, nor call Close: every other commit waits for it.
	Done func(error)
	// Refuse, if not nil, is passed to Done in place of committing. The order of the calls of Done is kept.
	Refuse error
}

// View is a read-only, unchanging view of the keys. It is safe for concurrent use until it is closed.
type View interface {
	// Get returns a copy of the value, or ErrNotFound.
	Get(key []byte) ([]byte, error)
	// Iter returns an iterator over keys in [lower, upper), not positioned. Both bounds are required and are copied.
	Iter(lower, upper []byte) (Iterator, error)
	Close()
}

// Iterator walks keys in order. It is used by one goroutine at a time and closed before its view.
// After a method has returned false, Err tells the end of the range (nil) from a failure.
type Iterator interface {
	First() bool
	Last() bool
	SeekGE(key []byte) bool // first key not before key
	SeekLT(key []byte) bool // last key before key
	Next() bool
	Key() []byte            // valid until the iterator moves
	Value() ([]byte, error) // valid until the iterator moves
	Err() error
	Close() error
}

// Writes is the ordered list of changes of a Commit. The zero value is empty.
type Writes struct {
	buf []byte
	ops []op
}

type op struct {
	start, key, end int // in buf: key is [start, key), value is [key, end)
	del             bool
}

// Set writes value at key. Both are copied.
func (w *Writes) Set(key, value []byte) {
	start := len(w.buf)
	w.buf = append(w.buf, key...)
	w.buf = append(w.buf, value...)
	w.ops = append(w.ops, op{start: start, key: start + len(key), end: len(w.buf)})
}

// Delete removes key, which is copied.
func (w *Writes) Delete(key []byte) {
	start := len(w.buf)
	w.buf = append(w.buf, key...)
	w.ops = append(w.ops, op{start: start, key: len(w.buf), end: len(w.buf), del: true})
}

// Len is the number of changes.
func (w *Writes) Len() int {
	if w == nil {
		return 0
	}
	return len(w.ops)
}

// Size is the number of bytes of keys and values.
func (w *Writes) Size() int {
	if w == nil {
		return 0
	}
	return len(w.buf)
}

// Each calls f for each change in order. The slices are valid during the call; value is nil for a deletion.
func (w *Writes) Each(f func(key, value []byte, del bool) error) error {
	if w == nil {
		return nil
	}
	for _, o := range w.ops {
		var value []byte
		if !o.del {
			value = w.buf[o.key:o.end:o.end]
		}
		if err := f(w.buf[o.start:o.key:o.key], value, o.del); err != nil {
			return err
		}
	}
	return nil
}
