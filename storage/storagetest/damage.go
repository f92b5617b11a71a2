package storagetest

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/holdfast-ai/holdfast/proto/statepb"
	"github.com/holdfast-ai/holdfast/storage"
)

type record struct{ key, value []byte }

func (f *fixture) refOf(name string) storage.Ref {
	return storage.Ref{Hash: address(name).ID(), Incarnation: 1}
}

// dump returns every key that contains part.
func (f *fixture) dump(part []byte) []record {
	f.t.Helper()
	v, err := f.View()
	if err != nil {
		f.t.Fatal(err)
	}
	defer v.Close()
	it, err := v.Iter([]byte{0}, []byte{0xff})
	if err != nil {
		f.t.Fatal(err)
	}
	var out []record
	for ok := it.First(); ok; ok = it.Next() {
		value, err := it.Value()
		if err != nil {
			f.t.Fatal(err)
		}
		if bytes.Contains(it.Key(), part) {
			out = append(out, record{bytes.Clone(it.Key()), bytes.Clone(value)})
		}
	}
	if err := errors.Join(it.Err(), it.Close()); err != nil {
		f.t.Fatal(err)
	}
	return out
}

// records returns an object's own records of one space, in order.
func (s *shop) records(name string, space byte) (out []record) {
	ref := s.f.refOf(name)
	for _, r := range s.f.dump(ref.Hash[:]) {
		if r.key[0] == 'o' && r.key[23] == space {
			out = append(out, r)
		}
	}
	return out
}

// overwrite changes a record behind the store's back; a nil value deletes it.
func (s *shop) overwrite(name string, key, value []byte) {
	s.t.Helper()
	w := new(storage.Writes)
	if value == nil {
		w.Delete(key)
	} else {
		w.Set(key, value)
	}
	// A boot of its own, above that of the store and below that of the next.
	e := storage.Epoch{Boot: s.Node().Boot, Activation: math.MaxUint64 / 2}
	id := address(name).ID()
	if err := s.f.Claim(id, e); err != nil {
		s.t.Fatal(err)
	}
	done := make(pending, 1)
	s.f.Commit(storage.Commit{Object: id, Epoch: e, Writes: w, Done: func(err error) { done <- err }})
	done.wait(s.t)
	s.f.Release(id, e)
}

// furnish makes an object with a record of every kind.
func (s *shop) furnish(name string) *storage.Object {
	s.t.Helper()
	o := s.create(name, 3)
	commit(o, func(b *storage.Batch) {
		b.PutTurn(&statepb.Turn{Turn: 1})
		b.PutMessageID("u", "m", &statepb.MessageID{Turn: 1})
		b.Put([]byte("k"), []byte("value"))
		b.SetAlarm(&statepb.Alarm{Key: "k", DueUnixMs: 7})
		b.SetLive(1)
	}).wait(s.t)
	o.Release()
	return o
}

// readAll reads every record of an object and returns the first error.
func (s *shop) readAll(name string) error {
	o, err := s.Activate(address(name))
	if err != nil {
		return err
	}
	defer o.Release()
	_, logErr := o.ReadLog(0, 3, 1<<20)
	_, turnErr := o.Turn(1)
	_, turnsErr := o.Turns(0, 0)
	_, idErr := o.MessageID("u", "m")
	_, valueErr := o.Value([]byte("k"))
	_, alarmErr := o.Alarms()
	return errors.Join(logErr, turnErr, turnsErr, idErr, valueErr, alarmErr)
}

// testQuarantine damages each record of an object in turn, in its first, a middle and its last byte, and by cutting it
// short. Only that object may suffer, and the error names it and the key (invariant 8).
func testQuarantine(t *testing.T, open Opener) {
	disk := NewDisk()
	s := openStore(t, open, disk)
	s.furnish("victim")
	s.furnish("other")
	hash := address("victim").ID()
	records := 0
	var damages []record
	for _, r := range s.f.dump(hash[:]) {
		if r.key[0] != 'o' {
			continue
		}
		records++
		for _, i := range []int{0, len(r.value) / 2, len(r.value) - 1} {
			d := bytes.Clone(r.value)
			d[i] ^= 0x10
			damages = append(damages, record{r.key, d})
		}
		damages = append(damages, record{r.key, r.value[:len(r.value)-1]}, record{r.key, []byte{}})
	}
	if records != 8 { // meta, 3 of the log, turn, message id, value, alarm
		t.Fatalf("the object has %d records, want 8", records)
	}
	s.f.stop()

	for i, d := range damages {
		s := openStore(t, open, disk.Crash(0, uint64(i)))
		live := s.activate("victim")
		s.overwrite("victim", d.key, d.value)
		err := s.readAll("victim")
		var c *storage.CorruptError
		if !errors.As(err, &c) || !errors.Is(err, storage.ErrCorrupt) {
			t.Fatalf("damage to %x is %v, want ErrCorrupt", d.key, err)
		}
		if !bytes.Equal(c.Key, d.key) || c.Object != s.f.refOf("victim").String() {
			t.Fatalf("damage to %x of %s is reported as %v", d.key, s.f.refOf("victim"), c)
		}
		if _, err := s.Activate(address("victim")); !errors.Is(err, storage.ErrCorrupt) {
			t.Fatalf("a damaged object is activated: %v", err)
		}
		if err := <-commit(live, func(b *storage.Batch) { b.Put([]byte("k"), nil) }); err == nil {
			t.Fatal("a damaged object takes commits")
		}
		if err := s.readAll("other"); err != nil {
			t.Fatalf("damage to %x stops another object: %v", d.key, err)
		}
		if err := s.Failed(); err != nil || s.Quarantined() != 1 {
			t.Fatalf("damage to one object: store %v, %d quarantined", err, s.Quarantined())
		}
		s.f.stop()
	}
}

// testMovedRecord puts one object's record where another's belongs. Its bytes are as they were written.
func testMovedRecord(t *testing.T, open Opener) {
	disk := NewDisk()
	s := openStore(t, open, disk)
	s.furnish("a")
	s.furnish("b")
	for _, space := range []byte("mltiva") {
		s := openStore(t, open, s.f.disk.Crash(0, uint64(space)))
		from, to := s.records("a", space)[0], s.records("b", space)[0]
		s.overwrite("b", to.key, from.value)
		if err := s.readAll("b"); !errors.Is(err, storage.ErrCorrupt) {
			t.Fatalf("a moved record of space %q is read: %v", space, err)
		}
		if err := s.readAll("a"); err != nil {
			t.Fatal(err)
		}
		s.f.stop()
	}
	s.f.stop()
}

func testDamagedIndex(t *testing.T, open Opener) {
	disk := NewDisk()
	s := openStore(t, open, disk)
	for _, n := range []string{"a", "b", "c"} {
		s.furnish(n)
	}
	hash := address("b").ID()
	damaged := 0
	for _, r := range append(s.f.dump(hash[:]), s.f.dump([]byte("session\x00b"))...) {
		if r.key[0] == 'o' {
			continue
		}
		damaged++
		r.value[len(r.value)-1] ^= 1
		s.overwrite("b", r.key, r.value)
	}
	if damaged != 3 {
		t.Fatalf("%d index entries were found, want 3", damaged)
	}
	names, err := s.Names("default", "session", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "names", names, "[a c]")
	due, err := s.DueAlarms(time.UnixMilli(7), 0)
	if err != nil || len(due) != 2 {
		t.Fatalf("due alarms are %v, %v", due, err)
	}
	live, err := s.LiveTurns(0)
	if err != nil || len(live) != 2 {
		t.Fatalf("live turns are %v, %v", live, err)
	}
	for _, n := range []string{"a", "c"} {
		if err := s.readAll(n); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.readAll("b"); !errors.Is(err, storage.ErrCorrupt) {
		t.Fatalf("the object of damaged entries: %v", err)
	}
	s.f.stop()
	// Not remembered, but found again.
	s = openStore(t, open, disk.Crash(0, 1))
	if err := s.readAll("b"); !errors.Is(err, storage.ErrCorrupt) {
		t.Fatalf("after a restart: %v", fmt.Sprint(err))
	}
	s.f.stop()
}
