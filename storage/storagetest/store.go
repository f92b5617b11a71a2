package storagetest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/proto/statepb"
	"github.com/holdfast-ai/holdfast/storage"
)

// shop is a store on a fixture.
type shop struct {
	*storage.Store
	f *fixture
	t *testing.T
}

func openStore(t *testing.T, open Opener, d *Disk) *shop {
	t.Helper()
	f := start(t, open, d)
	s, err := storage.Open(f.Engine, storage.Options{})
	if err != nil {
		t.Fatalf("open store: %v", err)
	}
	return &shop{Store: s, f: f, t: t}
}

func address(name string) storage.Address {
	return storage.Address{Namespace: "default", Kind: "session", Name: name}
}

func (s *shop) activate(name string) *storage.Object {
	s.t.Helper()
	o, err := s.Activate(address(name))
	if err != nil {
		s.t.Fatal(err)
	}
	return o
}

// commit fills a batch and starts its commit.
func commit(o *storage.Object, fill func(*storage.Batch)) pending {
	b := o.NewBatch()
	fill(b)
	done := make(pending, 1)
	o.Commit(b, func(err error) { done <- err })
	return done
}

// create makes an object whose log holds n frames, in a record each.
func (s *shop) create(name string, frames int) *storage.Object {
	s.t.Helper()
	o := s.activate(name)
	commit(o, func(b *storage.Batch) { b.PutMeta(&statepb.Meta{State: []byte(name)}) }).wait(s.t)
	for i := range frames {
		commit(o, func(b *storage.Batch) { b.Append(uint64(i+1), [][]byte{fmt.Append(nil, i+1)}) }).wait(s.t)
	}
	return o
}

// log renders frames as "offset:data …".
func render(frames []storage.LogFrame, err error) string {
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, f := range frames {
		out = append(out, fmt.Sprintf("%d:%s", f.Offset, f.Data))
	}
	return strings.Join(out, " ")
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("%s is\n%v\nwant\n%v", what, got, want)
	}
}

func testNode(t *testing.T, open Opener) {
	disk := NewDisk()
	s := openStore(t, open, disk)
	first := s.Node()
	if first.Boot != 1 || first.Generation != 1 || first.StoreID == [16]byte{} {
		t.Fatalf("a new store says %+v", first)
	}
	o := s.activate("a")
	s.f.stop()
	for boot := uint64(2); boot < 5; boot++ {
		disk = disk.Crash(0, boot)
		s = openStore(t, open, disk)
		equal(t, "the node", s.Node(), storage.NodeInfo{Generation: 1, Boot: boot, StoreID: first.StoreID})
		if e := s.activate("a").Epoch(); !o.Epoch().Less(e) {
			t.Fatalf("start %d hands out epoch %v, not above %v", boot, e, o.Epoch())
		}
		s.f.stop()
	}

	// A second store on the same engine is a later start: it fences the first.
	s = openStore(t, open, disk)
	one := s.activate("a")
	later, err := storage.Open(s.f.Engine, storage.Options{})
	if err != nil {
		t.Fatal(err)
	}
	two, err := later.Activate(address("a"))
	if err != nil {
		t.Fatal(err)
	}
	commit(one, func(b *storage.Batch) { b.PutMeta(&statepb.Meta{}) }).fails(t, storage.ErrFenced)
	commit(two, func(b *storage.Batch) { b.PutMeta(&statepb.Meta{}) }).wait(t)
	if _, err := s.Activate(address("a")); !errors.Is(err, storage.ErrFenced) {
		t.Fatalf("the earlier store activates: %v", err)
	}
	s.f.stop()
}

func testObjectLife(t *testing.T, open Opener) {
	disk := NewDisk()
	s := openStore(t, open, disk)
	o := s.activate("a")
	if o.Exists() || o.Meta() != nil || o.LastOffset() != 0 || o.Incarnation() != 1 {
		t.Fatal("an object that was never written exists")
	}
	o.Release()
	if o = s.activate("a"); o.Exists() {
		t.Fatal("an activation has written something")
	}
	turn := &statepb.Turn{Turn: 1, MessageId: "m", User: "u", Attempt: &statepb.Attempt{Prompt: []uint32{1, 2}}}
	mid := &statepb.MessageID{Turn: 1, BodySha256: []byte("sum"), TimeUnixMs: 5}
	commit(o, func(b *storage.Batch) {
		if !b.Empty() || b.Size() != 0 {
			t.Error("a new batch is not empty")
		}
		b.PutMeta(&statepb.Meta{KindVersion: 3, State: []byte("state"), Name: "ignored"})
		b.Append(1, [][]byte{[]byte("a"), {}, []byte("c")})
		b.Append(4, [][]byte{[]byte("d")})
		b.PutTurn(turn)
		b.PutTurn(&statepb.Turn{Turn: 4})
		b.PutMessageID("u", "m", mid)
		b.Put([]byte("k"), []byte("v"))
		b.Put([]byte(""), []byte{})
		b.Put([]byte("gone"), []byte("v"))
		b.Delete([]byte("gone"))
		if b.Empty() || b.Size() == 0 {
			t.Error("a batch with writes is empty")
		}
	}).wait(t)
	o.Release()
	s.f.stop()

	s = openStore(t, open, disk.Crash(0, 1))
	o = s.activate("a")
	equal(t, "meta", o.Meta(), &statepb.Meta{Namespace: "default", Kind: "session", Name: "a", Incarnation: 1, KindVersion: 3, State: []byte("state")})
	equal(t, "last offset", o.LastOffset(), 4)
	equal(t, "the log", render(o.ReadLog(0, 9, 1<<20)), "1:a 2: 3:c 4:d")
	got, err := o.Turn(1)
	if err != nil || !proto.Equal(got, turn) {
		t.Fatalf("turn is %v, %v", got, err)
	}
	m, err := o.MessageID("u", "m")
	if err != nil || !proto.Equal(m, mid) {
		t.Fatalf("message id is %v, %v", m, err)
	}
	for k, want := range map[string]string{"k": "v", "": ""} {
		v, err := o.Value([]byte(k))
		if err != nil || string(v) != want {
			t.Fatalf("value %q is %q, %v", k, v, err)
		}
	}
	for what, err := range map[string]error{
		"turn":       second(o.Turn(2)),
		"message id": second(o.MessageID("um", "")), // not the same as user u, id m
		"value":      second(o.Value([]byte("gone"))),
	} {
		if !errors.Is(err, storage.ErrNotFound) {
			t.Fatalf("a missing %s is %v", what, err)
		}
	}
	for limit, want := range map[int]int{0: 2, 1: 1, 5: 2} {
		if ts, err := o.Turns(0, limit); err != nil || len(ts) != want || ts[0].Turn != 1 {
			t.Fatalf("%d turns at most: %v, %v", limit, ts, err)
		}
	}
	if ts, err := o.Turns(1, 0); err != nil || len(ts) != 1 || ts[0].Turn != 4 {
		t.Fatalf("turns after 1: %v, %v", ts, err)
	}
	commit(o, func(b *storage.Batch) { b.DeleteMessageID("u", "m") }).wait(t)
	if _, err := o.MessageID("u", "m"); !errors.Is(err, storage.ErrNotFound) {
		t.Fatalf("a deleted message id is %v", err)
	}
	s.f.stop()
}

func second[T any](_ T, err error) error { return err }

func testInvalidCommits(t *testing.T, open Opener) {
	s := openStore(t, open, NewDisk())
	o := s.activate("a")
	other := s.activate("b")
	invalid := func(what string, p pending) {
		t.Helper()
		if err := <-p; !errors.Is(err, storage.ErrInvalid) {
			t.Fatalf("%s: %v, want ErrInvalid", what, err)
		}
	}
	invalid("a first commit without meta", commit(o, func(b *storage.Batch) { b.Put([]byte("k"), nil) }))
	commit(o, func(b *storage.Batch) { b.PutMeta(&statepb.Meta{}); b.Append(1, [][]byte{{1}}) }).wait(t)
	invalid("a gap", commit(o, func(b *storage.Batch) { b.Append(3, [][]byte{{1}}) }))
	invalid("a repeated offset", commit(o, func(b *storage.Batch) { b.Append(1, [][]byte{{1}}) }))
	invalid("a gap in a batch", commit(o, func(b *storage.Batch) { b.Append(2, [][]byte{{1}}); b.Append(4, [][]byte{{1}}) }))
	invalid("offset 0", commit(o, func(b *storage.Batch) { b.Append(0, [][]byte{{1}}) }))
	invalid("text that is not UTF-8", commit(o, func(b *storage.Batch) { b.PutTurn(&statepb.Turn{Turn: 1, User: "\xff"}) }))
	invalid("a user id beyond the key", commit(o, func(b *storage.Batch) {
		b.PutMessageID(strings.Repeat("u", 1<<16), "m", &statepb.MessageID{})
	}))
	b := other.NewBatch()
	b.PutMeta(&statepb.Meta{})
	done := make(pending, 1)
	o.Commit(b, func(err error) { done <- err })
	invalid("another object's batch", done)
	b = o.NewBatch()
	b.Put([]byte("k"), nil)
	o.Commit(b, func(err error) { done <- err })
	done.wait(t)
	o.Commit(b, func(err error) { done <- err })
	invalid("a batch committed twice", done)
	commit(o, func(b *storage.Batch) { b.Append(2, nil) }).wait(t) // nothing to append is no mistake
	commit(o, func(b *storage.Batch) { b.Append(2, [][]byte{{1}}) }).wait(t)
	s.f.stop()
}

func testLog(t *testing.T, open Opener) {
	s := openStore(t, open, NewDisk())
	o := s.activate("a")
	next := uint64(1)
	sizes := []int{1, 5, 1, 30, 2}
	for i, n := range sizes {
		var frames [][]byte
		for j := range n {
			frames = append(frames, fmt.Appendf(nil, "%02d", next+uint64(j)))
		}
		commit(o, func(b *storage.Batch) {
			if i == 0 {
				b.PutMeta(&statepb.Meta{})
			}
			b.Append(next, frames)
		}).wait(t)
		next += uint64(n)
	}
	last := next - 1
	for after := uint64(0); after <= last+1; after++ {
		for _, upTo := range []uint64{0, after, after + 1, after + 3, last, last + 5} {
			for _, maxBytes := range []int{0, 1, 2, 3, 7, 1 << 20} {
				frames, err := s.ReadLog(o.Ref(), after, upTo, maxBytes)
				if err != nil {
					t.Fatal(err)
				}
				// Two bytes a frame: the frame that reaches maxBytes is the last, and there is at least one.
				want := min(max((maxBytes+1)/2, 1), int(max(min(upTo, last), after)-after))
				if after > last {
					want = 0
				}
				if len(frames) != want {
					t.Fatalf("after %d up to %d, %d bytes: %d frames, want %d", after, upTo, maxBytes, len(frames), want)
				}
				for i, f := range frames {
					if f.Offset != after+1+uint64(i) || string(f.Data) != fmt.Sprintf("%02d", f.Offset) {
						t.Fatalf("after %d, frame %d is %d:%s", after, i, f.Offset, f.Data)
					}
				}
			}
		}
	}
	if frames, err := s.ReadLog(storage.Ref{Hash: address("none").ID(), Incarnation: 1}, 0, 10, 10); err != nil || len(frames) > 0 {
		t.Fatalf("the log of nobody: %v, %v", frames, err)
	}
	s.f.stop()
}

// testLogGaps removes records under the store. A missing one is damage, unless retention has removed it.
func testLogGaps(t *testing.T, open Opener) {
	s := openStore(t, open, NewDisk())
	s.create("a", 5)
	s.create("b", 5)
	for _, r := range s.records("a", 'l')[2:3] { // offset 3
		s.overwrite("a", r.key, nil)
	}
	a := s.f.refOf("a")
	equal(t, "the log before the gap", render(s.ReadLog(a, 0, 2, 100)), "1:1 2:2")
	if _, err := s.ReadLog(a, 2, 5, 100); !errors.Is(err, storage.ErrCorrupt) {
		t.Fatalf("reading a gap returned %v, want ErrCorrupt", err)
	}
	equal(t, "the log after the gap", render(s.ReadLog(a, 3, 5, 100)), "4:4 5:5")

	o := s.activate("b")
	commit(o, func(b *storage.Batch) {
		m := o.Meta()
		m.FirstOffset = 4
		b.PutMeta(m)
	}).wait(t)
	for _, r := range s.records("b", 'l')[:3] {
		s.overwrite("b", r.key, nil)
	}
	o = s.activate("b")
	equal(t, "last offset", o.LastOffset(), 5)
	equal(t, "what is held", render(o.ReadLog(3, 5, 100)), "4:4 5:5")
	if _, err := o.ReadLog(1, 5, 100); !errors.Is(err, storage.ErrGone) {
		t.Fatalf("reading below retention returned %v, want ErrGone", err)
	}
	for _, r := range s.records("b", 'l') {
		s.overwrite("b", r.key, nil)
	}
	if n := s.Quarantined(); n != 1 {
		t.Fatalf("%d objects are quarantined, want a alone", n)
	}
	s.f.stop()
}

func testIndexes(t *testing.T, open Opener) {
	disk := NewDisk()
	s := openStore(t, open, disk)
	at := func(ms int64) time.Time { return time.UnixMilli(ms) }
	if _, ok, err := s.NextAlarm(); ok || err != nil {
		t.Fatalf("an empty store has a next alarm: %v", err)
	}
	for i, name := range []string{"b", "a", "c"} {
		o := s.activate(name)
		commit(o, func(b *storage.Batch) {
			b.PutMeta(&statepb.Meta{})
			b.SetAlarm(&statepb.Alarm{Key: "x", DueUnixMs: int64(100 * (i + 1))})
			b.SetAlarm(&statepb.Alarm{Key: "y", DueUnixMs: int64(100*(i+1)) + 50, System: true})
			b.SetLive(uint64(i + 1))
			b.SetLive(uint64(i + 7))
		}).wait(t)
		commit(o, func(b *storage.Batch) { b.ClearLive(uint64(i + 7)) }).wait(t)
		o.Release()
	}
	early := s.activate("b") // another activation moves what it did not set itself
	commit(early, func(b *storage.Batch) { b.SetAlarm(&statepb.Alarm{Key: "x", DueUnixMs: -5, Attempts: 2}) }).wait(t)
	commit(early, func(b *storage.Batch) {
		b.ClearAlarm("y")
		b.ClearAlarm("never set")
		b.SetAlarm(&statepb.Alarm{Key: "z", DueUnixMs: 1})
		b.ClearAlarm("z")
	}).wait(t)

	check := func(s *shop) {
		t.Helper()
		due, err := s.DueAlarms(at(1000), 0)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range due {
			got = append(got, fmt.Sprintf("%s.%s@%d:%v", a.Address.Name, a.Key, a.Due.UnixMilli(), a.System))
		}
		equal(t, "due alarms", got, "[b.x@-5:false a.x@200:false a.y@250:true c.x@300:false c.y@350:true]")
		for until, want := range map[int64]int{-6: 0, -5: 1, 199: 1, 200: 2, 349: 4} {
			if due, err := s.DueAlarms(at(until), 0); err != nil || len(due) != want {
				t.Fatalf("%d alarms are due at %d, want %d (%v)", len(due), until, want, err)
			}
		}
		if due, err := s.DueAlarms(at(1000), 2); err != nil || len(due) != 2 || due[1].Due != at(200) {
			t.Fatalf("two alarms at most: %v, %v", due, err)
		}
		if due, ok, err := s.NextAlarm(); !ok || err != nil || due != at(-5) {
			t.Fatalf("the next alarm is at %v, %v, %v", due, ok, err)
		}
		live, err := s.LiveTurns(0)
		if err != nil || len(live) != 3 {
			t.Fatalf("live turns are %v, %v", live, err)
		}
		for _, l := range live {
			if want := map[string]uint64{"b": 1, "a": 2, "c": 3}[l.Address.Name]; l.Turn != want || l.Incarnation != 1 {
				t.Fatalf("live turn %+v, want turn %d", l, want)
			}
		}
		if live, err := s.LiveTurns(2); err != nil || len(live) != 2 {
			t.Fatalf("two live turns at most: %v, %v", live, err)
		}
		names := func(kind, after string, limit int) string {
			n, err := s.Names("default", kind, after, limit)
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(n)
		}
		equal(t, "names", names("session", "", 0)+names("session", "a", 1)+names("session", "c", 0)+names("sess", "", 0), "[a b c][b][][]")
	}
	check(s)
	s.f.stop()
	s = openStore(t, open, disk.Crash(0, 1))
	check(s)
	s.f.stop()
}

func testAddresses(t *testing.T, open Opener) {
	s := openStore(t, open, NewDisk())
	for _, a := range [][3]string{
		{"", "k", "n"}, {"n", "", "n"}, {"n", "k", ""}, {"a/b", "k", "n"}, {"n", "k", "a/b"}, {"n", "k", "a\x00b"},
		{"n", "k", strings.Repeat("x", 1025)},
	} {
		_, err := s.Activate(storage.Address{Namespace: a[0], Kind: a[1], Name: a[2]})
		if !errors.Is(err, storage.ErrAddress) {
			t.Fatalf("address %q: %v, want ErrAddress", a, err)
		}
	}
	if _, err := s.Names("a\x00", "k", "", 0); !errors.Is(err, storage.ErrAddress) {
		t.Fatalf("names of an invalid namespace: %v", err)
	}
	// Namespaces and kinds that are prefixes of each other do not mix (invariant 7).
	for _, a := range [][3]string{{"n", "k", "1"}, {"n", "kk", "2"}, {"nn", "k", "3"}, {"n", "k", "ü ☃"}} {
		o, err := s.Activate(storage.Address{Namespace: a[0], Kind: a[1], Name: a[2]})
		if err != nil {
			t.Fatal(err)
		}
		commit(o, func(b *storage.Batch) { b.PutMeta(&statepb.Meta{}) }).wait(t)
	}
	names, err := s.Names("n", "k", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "names of n/k", names, "[1 ü ☃]")
	s.f.stop()
}

// testReactivation is invariant 2 across activations in one process.
func testReactivation(t *testing.T, open Opener) {
	disk := NewDisk()
	s := openStore(t, open, disk)
	o := s.create("a", 3)
	disk.Hold()
	p := commit(o, func(b *storage.Batch) {
		b.Append(4, [][]byte{[]byte("4")})
		b.PutMeta(&statepb.Meta{State: []byte("new")})
		b.SetLive(4)
		b.SetAlarm(&statepb.Alarm{Key: "k", DueUnixMs: 1})
		b.Put([]byte("k"), []byte("v"))
	})
	q := s.createHeld("b")
	<-disk.Held()
	type result struct {
		o   *storage.Object
		err error
	}
	again := make(chan result, 1)
	go func() {
		o, err := s.Activate(address("a"))
		if !p.isDone() {
			t.Error("an activation began before the commits of the one before it were decided")
		}
		again <- result{o, err}
	}()
	for range 200 {
		equal(t, "the log while the sync is held", render(s.ReadLog(o.Ref(), 0, 9, 1<<20)), "1:1 2:2 3:3")
		if _, err := o.Value([]byte("k")); !errors.Is(err, storage.ErrNotFound) {
			t.Fatalf("an unsynced value is shown: %v", err)
		}
		live, err := s.LiveTurns(0)
		if _, ok, aerr := s.NextAlarm(); ok || aerr != nil || err != nil || len(live) > 0 {
			t.Fatal("unsynced index entries are shown")
		}
		if names, err := s.Names("default", "session", "", 0); err != nil || len(names) != 1 {
			t.Fatalf("names are %v, %v", names, err)
		}
	}
	disk.Release()
	r := <-again
	if r.err != nil {
		t.Fatal(r.err)
	}
	equal(t, "last offset", r.o.LastOffset(), 4)
	equal(t, "state", string(r.o.Meta().State), "new")
	p.wait(t)
	q.wait(t)
	commit(o, func(b *storage.Batch) { b.Append(5, [][]byte{{1}}) }).fails(t, storage.ErrFenced)
	s.f.stop()
}

func (s *shop) createHeld(name string) pending {
	return commit(s.activate(name), func(b *storage.Batch) { b.PutMeta(&statepb.Meta{}) })
}
