package pebble

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/holdfast-ai/holdfast/storage"
)

// snapshot is a state between two batches, shared by all views that were made while it was the newest durable one.
type snapshot struct {
	s    *pebble.Snapshot
	refs int // guarded by views.mu
}

// views hands out the newest durable snapshot (invariant 2; E4 of storage.Engine).
type views struct {
	mu struct {
		sync.Mutex
		closed  sync.Cond // signaled when open falls to 0
		current *snapshot // nil once closed
		open    int       // views not yet closed
	}
}

func newViews(db *pebble.DB) *views {
	v := &views{}
	v.mu.closed.L = &v.mu.Mutex
	v.mu.current = &snapshot{s: db.NewSnapshot(), refs: 1}
	return v
}

func (v *views) acquire() (*view, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mu.current == nil {
		return nil, storage.ErrClosed
	}
	v.mu.current.refs++
	v.mu.open++
	return &view{views: v, snapshot: v.mu.current}, nil
}

// publish makes s what the next views see. The reference that s was made with passes to v.
func (v *views) publish(s *snapshot) error {
	v.mu.Lock()
	old := v.mu.current
	v.mu.current = s
	v.mu.Unlock()
	return v.unref(old)
}

func (v *views) unref(s *snapshot) error {
	v.mu.Lock()
	s.refs--
	last := s.refs == 0
	v.mu.Unlock()
	if last {
		return s.s.Close()
	}
	return nil
}

// close refuses new views, waits for those that are open and drops the snapshot.
func (v *views) close() error {
	v.mu.Lock()
	old := v.mu.current
	v.mu.current = nil
	for v.mu.open > 0 {
		v.mu.closed.Wait()
	}
	v.mu.Unlock()
	if old == nil {
		return nil
	}
	return v.unref(old)
}

// view implements storage.View.
type view struct {
	views    *views
	snapshot *snapshot
	once     sync.Once
}

func (v *view) Close() {
	v.once.Do(func() {
		_ = v.views.unref(v.snapshot) // closing a snapshot fails only after the database is closed
		v.views.mu.Lock()
		defer v.views.mu.Unlock()
		if v.views.mu.open--; v.views.mu.open == 0 {
			v.views.mu.closed.Broadcast()
		}
	})
}

func (v *view) Get(key []byte) ([]byte, error) {
	if storage.PrefixLen(key) == len(key) {
		return v.lookup(key)
	}
	value, closer, err := v.snapshot.s.Get(key)
	if err != nil {
		return nil, readError(err, key)
	}
	out := append([]byte{}, value...)
	if err := closer.Close(); err != nil {
		return nil, readError(err, key)
	}
	return out, nil
}

// lookup is Get for a key that is all prefix, such as an entry of the names index, and may well be missing. It asks
// the bloom filters of all levels. Get leaves out the last level, where nearly all of the data is, because filters for
// every key would be large; ours are small, since the records of an object share one entry.
func (v *view) lookup(key []byte) (_ []byte, err error) {
	it, err := v.snapshot.s.NewIter(&pebble.IterOptions{UseL6Filters: true})
	if err != nil {
		return nil, readError(err, key)
	}
	defer func() {
		if cerr := it.Close(); err == nil {
			err = readError(cerr, key)
		}
	}()
	if !it.SeekPrefixGE(key) {
		if err := it.Error(); err != nil {
			return nil, readError(err, key)
		}
		return nil, storage.ErrNotFound
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return nil, readError(err, key)
	}
	return append([]byte{}, value...), nil
}

func (v *view) Iter(lower, upper []byte) (storage.Iterator, error) {
	lower, upper = bytes.Clone(lower), bytes.Clone(upper)
	it, err := v.snapshot.s.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, readError(err, lower)
	}
	return &iterator{it: it, lower: lower}, nil
}

// iterator implements storage.Iterator.
type iterator struct {
	it    *pebble.Iterator
	lower []byte
}

func (i *iterator) First() bool            { return i.it.First() }
func (i *iterator) Last() bool             { return i.it.Last() }
func (i *iterator) SeekGE(key []byte) bool { return i.it.SeekGE(key) }
func (i *iterator) SeekLT(key []byte) bool { return i.it.SeekLT(key) }
func (i *iterator) Next() bool             { return i.it.Next() }
func (i *iterator) Key() []byte            { return i.it.Key() }
func (i *iterator) Err() error             { return readError(i.it.Error(), i.lower) }
func (i *iterator) Close() error           { return readError(i.it.Close(), i.lower) }

func (i *iterator) Value() ([]byte, error) {
	value, err := i.it.ValueAndErr()
	return value, readError(err, i.lower)
}

// readError translates what Pebble returns from reads at or after key.
func readError(err error, key []byte) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pebble.ErrNotFound):
		return storage.ErrNotFound
	case pebble.IsCorruptionError(err):
		return fmt.Errorf("a block that covers key %x is damaged: %w: %w", key, storage.ErrCorrupt, err)
	}
	return fmt.Errorf("read at key %x: %w", key, err)
}
