package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/proto/statepb"
)

// formatVersion is the layout of keys and records that this release writes, and the newest that it reads.
const formatVersion = 1

// Store is the typed state of all objects of a node, over an Engine. It is safe for concurrent use.
type Store struct {
	engine  Engine
	log     *slog.Logger
	metrics *metrics
	node    NodeInfo

	activations atomic.Uint64 // low half of epochs

	mu struct {
		sync.Mutex
		quarantined map[ObjectID]error // why; objects in which damage was found since the start
	}
}

// Open takes over e, reads the Node record and counts this start durably. The store closes e, also when Open fails.
func Open(e Engine, o Options) (*Store, error) {
	o = o.withDefaults()
	s := &Store{engine: e, log: o.Logger}
	s.mu.quarantined = make(map[ObjectID]error)
	err := s.boot(o.Rand)
	if err == nil {
		s.metrics, err = newMetrics(o.Registerer)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open store: %w", err), e.Close())
	}
	return s, nil
}

// boot raises the boot counter and waits until that is durable: no epoch of an earlier start is ever handed out again.
func (s *Store) boot(random io.Reader) error {
	v, err := s.engine.View()
	if err != nil {
		return err
	}
	n, err := readNode(v)
	v.Close()
	switch {
	case errors.Is(err, ErrNotFound):
		n = &statepb.Node{Format: formatVersion, Generation: 1, StoreId: make([]byte, 16)}
		if _, err := io.ReadFull(random, n.StoreId); err != nil {
			return fmt.Errorf("make a store id: %w", err)
		}
	case err != nil:
		return fmt.Errorf("read the node record: %w", err)
	}
	if n.Format > formatVersion {
		return fmt.Errorf("the data folder has format %d, this release knows up to %d: start a newer release on it, or restore a backup made by this one: %w",
			n.Format, formatVersion, ErrNewerFormat)
	}
	if len(n.StoreId) != 16 || n.Generation == 0 {
		return corrupt(nodeKey, "it has a store id of %d bytes and generation %d", len(n.StoreId), n.Generation)
	}
	n.Boots++
	s.node = NodeInfo{Generation: n.Generation, Boot: n.Boots, StoreID: [16]byte(n.StoreId)}
	if err := s.writeNode(n); err != nil {
		return fmt.Errorf("count this start: %w", err)
	}
	return nil
}

func readNode(v View) (*statepb.Node, error) {
	rec, err := v.Get(nodeKey)
	if err != nil {
		return nil, err
	}
	var n statepb.Node
	if err := openMessage(nodeKey, rec, &n); err != nil {
		return nil, err
	}
	return &n, nil
}

// writeNode commits n under the id that no object has, so that of two stores on one engine only the later one lives.
func (s *Store) writeNode(n *statepb.Node) error {
	payload, err := proto.Marshal(n)
	if err != nil {
		return err
	}
	var id ObjectID
	epoch := Epoch{Boot: n.Boots}
	if err := s.engine.Claim(id, epoch); err != nil {
		return err
	}
	w := new(Writes)
	w.Set(nodeKey, seal(nodeKey, payload))
	done := make(chan error, 1)
	s.engine.Commit(Commit{Object: id, Epoch: epoch, Writes: w, Done: func(err error) { done <- err }})
	return <-done
}

// Node returns what the data folder says of itself.
func (s *Store) Node() NodeInfo { return s.node }

// Failed returns nil, or why the store takes no commits any more. Reads go on meanwhile.
func (s *Store) Failed() error { return s.engine.Failed() }

// Close completes pending commits and closes the engine. Objects must not be used after it.
func (s *Store) Close() error { return s.engine.Close() }

// view runs f on what is durable now.
func (s *Store) view(f func(View) error) error {
	v, err := s.engine.View()
	if err != nil {
		return err
	}
	defer v.Close()
	return f(v)
}

// getMessage reads one record of an object.
func (s *Store) getMessage(v View, key []byte, m proto.Message) error {
	rec, err := v.Get(key)
	if err == nil {
		err = openMessage(key, rec, m)
	}
	return s.damaged(key, err)
}

// damaged quarantines the object of key if err says that it is damaged, and returns err (invariant 8).
func (s *Store) damaged(key []byte, err error) error {
	if err == nil || !errors.Is(err, ErrCorrupt) {
		return err
	}
	var c *CorruptError
	if !errors.As(err, &c) { // from the engine: a damaged block
		c = corrupt(key, "%v", err)
		err = c
	}
	r, ok := refOf(key)
	if !ok {
		return err
	}
	s.quarantine(r.Hash, err)
	return err
}

func (s *Store) quarantine(id ObjectID, err error) {
	s.mu.Lock()
	_, known := s.mu.quarantined[id]
	if !known {
		s.mu.quarantined[id] = err
	}
	n := len(s.mu.quarantined)
	s.mu.Unlock()
	if !known {
		s.metrics.quarantined.Set(float64(n))
		s.log.Error("object quarantined", "error", err)
	}
}

func (s *Store) quarantineOf(id ObjectID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.quarantined[id]
}

// Quarantined returns the number of objects in which damage was found since the start.
func (s *Store) Quarantined() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.quarantined)
}

// scan calls f for each key with the prefix that is not before start, in order, until f returns false or an error.
func (s *Store) scan(v View, prefix, start []byte, f func(key, rec []byte) (bool, error)) error {
	it, err := v.Iter(prefix, next(prefix))
	if err != nil {
		return err
	}
	ok := it.First()
	if bytes.Compare(start, prefix) > 0 {
		ok = it.SeekGE(start)
	}
	for more := true; ok && more && err == nil; {
		var rec []byte
		if rec, err = it.Value(); err == nil {
			more, err = f(it.Key(), rec)
		}
		ok = err == nil && more && it.Next()
	}
	if err == nil {
		err = it.Err()
	}
	if cerr := it.Close(); err == nil {
		err = cerr
	}
	return s.damaged(prefix, err)
}
