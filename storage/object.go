package storage

import (
	"errors"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/proto/statepb"
)

// Object is one activation's hold on an object. What it reads is durable; what was committed and is not yet durable it
// does not show (invariant 2). Its methods are safe for concurrent use, but commits of one object should come from one
// goroutine, since their order is the order of the calls.
type Object struct {
	store   *Store
	address Address
	ref     Ref
	epoch   Epoch

	// As found at activation.
	meta       *statepb.Meta
	lastOffset uint64

	// What the commits of this activation have asked for, whether durable or not.
	mu struct {
		sync.Mutex
		exists bool
		last   uint64           // last log offset
		alarms map[string]int64 // due time in ms by key; nil until first needed
	}
}

// Activate claims a new epoch for a, fences earlier activations and loads what an activation begins with. It waits for
// commits of earlier activations that are under way, so that Meta and LastOffset are durable and final. It writes
// nothing; an object that does not exist yet has Exists() == false. The caller releases the object.
func (s *Store) Activate(a Address) (*Object, error) {
	o, err := s.activate(a)
	if err != nil {
		return nil, fmt.Errorf("activate %s: %w", a, err)
	}
	return o, nil
}

func (s *Store) activate(a Address) (*Object, error) {
	if err := a.validate(); err != nil {
		return nil, err
	}
	id := a.ID()
	if err := s.quarantineOf(id); err != nil {
		return nil, err
	}
	o := &Object{store: s, address: a, epoch: Epoch{Boot: s.node.Boot, Activation: s.activations.Add(1)}}
	if err := s.engine.Claim(id, o.epoch); err != nil {
		return nil, err
	}
	s.metrics.activations.Inc()
	err := s.view(func(v View) error { return o.load(v, id) })
	if err != nil {
		s.engine.Release(id, o.epoch)
		return nil, err
	}
	return o, nil
}

// Inspect returns a as it is on disk now, for reading only: it claims nothing, waits for nothing and disturbs no
// activation. Commits with it are refused as fenced.
func (s *Store) Inspect(a Address) (*Object, error) {
	err := a.validate()
	if err == nil {
		err = s.quarantineOf(a.ID())
	}
	o := &Object{store: s, address: a} // no claim has the zero epoch
	if err == nil {
		err = s.view(func(v View) error { return o.load(v, a.ID()) })
	}
	if err != nil {
		return nil, fmt.Errorf("inspect %s: %w", a, err)
	}
	return o, nil
}

func (o *Object) load(v View, id ObjectID) error {
	key := nameKey(o.address)
	rec, err := v.Get(key)
	if errors.Is(err, ErrNotFound) {
		o.ref = Ref{Hash: id, Incarnation: 1}
		return nil
	}
	var name statepb.Name
	if err == nil {
		err = openMessage(key, rec, &name)
	}
	if errors.Is(err, ErrCorrupt) {
		err = fmt.Errorf("names index: %w", err)
		o.store.quarantine(id, err)
	}
	if err != nil {
		return err
	}
	o.ref = Ref{Hash: id, Incarnation: name.Incarnation}
	if o.meta, err = o.loadMeta(v); err != nil {
		return err
	}
	if o.lastOffset, err = o.store.lastOffset(v, o.ref); err != nil {
		return err
	}
	// An empty log goes on where retention has emptied it.
	o.lastOffset = max(o.lastOffset, max(o.meta.FirstOffset, 1)-1)
	o.mu.exists, o.mu.last = true, o.lastOffset
	return nil
}

func (o *Object) loadMeta(v View) (*statepb.Meta, error) {
	key := recordKey(o.ref, recMeta)
	meta := new(statepb.Meta)
	err := o.store.getMessage(v, key, meta)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil, o.store.damaged(key, corrupt(key, "the names index has it, but it is missing"))
	case err != nil:
		return nil, err
	}
	if got := (Address{meta.Namespace, meta.Kind, meta.Name}); got != o.address {
		// Not damage of this address: another one has the same hash, which is too unlikely to be planned for.
		return nil, fmt.Errorf("its records belong to %q: %w", got, ErrCorrupt)
	}
	if meta.Incarnation != o.ref.Incarnation {
		return nil, o.store.damaged(key, corrupt(key, "it is of incarnation %d", meta.Incarnation))
	}
	return meta, nil
}

// Address returns the object's address.
func (o *Object) Address() Address { return o.address }

// Ref names this life of the object.
func (o *Object) Ref() Ref { return o.ref }

// Incarnation counts the lives of the address. Of an object that does not exist it is the one to be created.
func (o *Object) Incarnation() uint32 { return o.ref.Incarnation }

// Epoch returns the epoch that this activation holds.
func (o *Object) Epoch() Epoch { return o.epoch }

// Exists reports whether the object existed at activation.
func (o *Object) Exists() bool { return o.meta != nil }

// Meta returns the first record as it was at activation, nil if the object did not exist. The caller owns it.
func (o *Object) Meta() *statepb.Meta {
	if o.meta == nil {
		return nil
	}
	return proto.CloneOf(o.meta)
}

// LastOffset returns the last offset of the log at activation, 0 if there was none. It is durable.
func (o *Object) LastOffset() uint64 { return o.lastOffset }

// Release ends the activation: later commits with it are refused as fenced, those under way are completed.
func (o *Object) Release() { o.store.engine.Release(o.ref.Hash, o.epoch) }

// Commit makes b durable. done is called once, from another goroutine, when that has happened or failed; it must not
// block. Commits of one object take effect in the order of the calls. b must not be used afterwards.
func (o *Object) Commit(b *Batch, done func(error)) {
	s := o.store
	err := o.accept(b)
	size := b.Size()
	s.engine.Commit(Commit{
		Object: o.ref.Hash,
		Epoch:  o.epoch,
		Writes: &b.w,
		Refuse: err,
		Done: func(err error) {
			s.metrics.commits.WithLabelValues(commitResult(err)).Inc()
			if err != nil {
				err = fmt.Errorf("commit %s: %w", o.address, err)
			} else {
				s.metrics.bytes.Add(float64(size))
			}
			done(err)
		},
	})
}

// accept checks b against what earlier commits of this activation have asked for and adds what follows from it.
func (o *Object) accept(b *Batch) error {
	if b.o != o {
		return fmt.Errorf("the batch was made by another object: %w", ErrInvalid)
	}
	if b.used {
		return fmt.Errorf("the batch has been committed already: %w", ErrInvalid)
	}
	b.used = true
	if b.err != nil {
		return b.err
	}
	if err := o.store.quarantineOf(o.ref.Hash); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.mu.exists && !b.meta && !b.Empty() {
		return fmt.Errorf("the object does not exist and the batch has no meta record to create it: %w", ErrInvalid)
	}
	if b.first != 0 && b.first != o.mu.last+1 {
		return fmt.Errorf("the batch appends at offset %d, but the log ends at %d: %w", b.first, o.mu.last, ErrInvalid)
	}
	if err := o.indexAlarmsLocked(b); err != nil {
		return err
	}
	if b.meta && !o.mu.exists {
		if err := b.setMessage(nameKey(o.address), &statepb.Name{Incarnation: o.ref.Incarnation}); err != nil {
			return err
		}
		o.mu.exists = true
	}
	if b.first != 0 {
		o.mu.last = b.next - 1
	}
	return nil
}

// indexAlarmsLocked moves the entries of the due-alarm index with the alarms of b. An entry's key holds the due time,
// so the one to remove depends on what was set before, here or in an earlier life.
func (o *Object) indexAlarmsLocked(b *Batch) error {
	if len(b.alarms) == 0 {
		return nil
	}
	if o.mu.alarms == nil {
		// No commit of this activation has touched an alarm yet, so what is durable is all there is.
		set, err := o.Alarms()
		if err != nil {
			return fmt.Errorf("find the alarms to replace: %w", err)
		}
		o.mu.alarms = make(map[string]int64, len(set))
		for _, a := range set {
			o.mu.alarms[a.Key] = a.DueUnixMs
		}
	}
	for _, a := range b.alarms {
		if due, ok := o.mu.alarms[a.key]; ok {
			b.w.Delete(dueKey(o.ref, due, a.key))
			delete(o.mu.alarms, a.key)
		}
		if a.set == nil {
			continue
		}
		entry := &statepb.Due{
			Namespace: o.address.Namespace, Kind: o.address.Kind, Name: o.address.Name,
			Key: a.key, System: a.set.System,
		}
		if err := b.setMessage(dueKey(o.ref, a.set.DueUnixMs, a.key), entry); err != nil {
			return err
		}
		o.mu.alarms[a.key] = a.set.DueUnixMs
	}
	return nil
}

// get reads one record that is durable now.
func (o *Object) get(key []byte, m proto.Message, what string, args ...any) error {
	err := o.store.view(func(v View) error { return o.store.getMessage(v, key, m) })
	if err != nil {
		return fmt.Errorf("read %s of %s: %w", fmt.Sprintf(what, args...), o.address, err)
	}
	return nil
}

// Turn returns the index record of a turn, or ErrNotFound.
func (o *Object) Turn(id uint64) (*statepb.Turn, error) {
	t := new(statepb.Turn)
	if err := o.get(offsetKey(o.ref, recTurn, id), t, "turn %d", id); err != nil {
		return nil, err
	}
	return t, nil
}

// Turns returns up to limit turns after the given one, in order; all if limit is 0.
func (o *Object) Turns(after uint64, limit int) ([]*statepb.Turn, error) {
	var out []*statepb.Turn
	if after+1 == 0 {
		return nil, nil
	}
	err := o.store.view(func(v View) error {
		return o.store.scan(v, recordKey(o.ref, recTurn), offsetKey(o.ref, recTurn, after+1), func(key, rec []byte) (bool, error) {
			t := new(statepb.Turn)
			if err := openMessage(key, rec, t); err != nil {
				return false, err
			}
			out = append(out, t)
			return len(out) != limit, nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read turns of %s after %d: %w", o.address, after, err)
	}
	return out, nil
}

// MessageID returns what a user's message id started, or ErrNotFound.
func (o *Object) MessageID(user, id string) (*statepb.MessageID, error) {
	m := new(statepb.MessageID)
	if len(user) > maxUser {
		return nil, fmt.Errorf("read message id of %s: a user id of %d bytes: %w", o.address, len(user), ErrNotFound)
	}
	if err := o.get(messageIDKey(o.ref, user, id), m, "message id %q", id); err != nil {
		return nil, err
	}
	return m, nil
}

// Value returns a value of the kind, or ErrNotFound. The caller owns it.
func (o *Object) Value(key []byte) ([]byte, error) {
	k := append(recordKey(o.ref, recValue), key...)
	var value []byte
	err := o.store.view(func(v View) error {
		rec, err := v.Get(k)
		if err == nil {
			value, err = open(k, rec)
		}
		return o.store.damaged(k, err)
	})
	if err != nil {
		return nil, fmt.Errorf("read value %q of %s: %w", key, o.address, err)
	}
	return value, nil
}

// Alarms returns all alarms of the object, by key.
func (o *Object) Alarms() ([]*statepb.Alarm, error) {
	var out []*statepb.Alarm
	err := o.store.view(func(v View) error {
		return o.store.scan(v, recordKey(o.ref, recAlarm), nil, func(key, rec []byte) (bool, error) {
			a := new(statepb.Alarm)
			if err := openMessage(key, rec, a); err != nil {
				return false, err
			}
			out = append(out, a)
			return true, nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read alarms of %s: %w", o.address, err)
	}
	return out, nil
}

// ReadLog is Store.ReadLog for this object.
func (o *Object) ReadLog(after, upTo uint64, maxBytes int) ([]LogFrame, error) {
	return o.store.ReadLog(o.ref, after, upTo, maxBytes)
}
