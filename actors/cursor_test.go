package actors_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/holdfast-ai/holdfast/actors"
	"github.com/holdfast-ai/holdfast/actors/actorstest"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/storage"
)

func TestAttach(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, nil)
	gen := h.Store.Node().Generation
	empty := h.Attach(alice, page, nil) // of an object that does not exist yet
	if a := empty.Attached; a.Watermark != 0 || a.From.Offset != 0 || a.FirstHeld != 1 || a.From.Generation != gen || a.From.Incarnation != 1 {
		t.Errorf("attached to nothing: %v", a)
	}
	for i := range 10 {
		tell(t, h, page, fmt.Sprint("append ", i))
	}
	untilOffset(empty, 10)
	at := func(gen uint64, inc uint32, offset uint64) *wirepb.Attach {
		return &wirepb.Attach{After: &wirepb.Cursor{Generation: gen, Incarnation: inc, Offset: offset}}
	}
	for _, c := range []struct {
		name string
		a    *wirepb.Attach
		from uint64
		gone bool
	}{
		{"nothing", nil, 0, false},
		{"empty", &wirepb.Attach{}, 0, false},
		{"offset alone", at(0, 0, 4), 4, false},
		{"cursor", at(gen, 1, 4), 4, false},
		{"cursor at the end", at(gen, 1, 10), 10, false},
		{"tail", &wirepb.Attach{Tail: 3}, 7, false},
		{"long tail", &wirepb.Attach{Tail: 1 << 63}, 0, false},
		{"another generation", at(gen+1, 1, 4), 0, true},
		{"another incarnation", at(gen, 2, 4), 0, true},
		{"half a cursor", at(0, 1, 4), 0, true},
		{"the future", at(gen, 1, 11), 0, true},
		{"the end of time", at(0, 0, 1<<64-1), 0, true},
	} {
		r, err := h.TryAttach(alice, page, c.a)
		var e *proto.Error
		switch {
		case c.gone:
			if !errors.As(err, &e) || e.Code != proto.CodeGone || e.FirstHeld != 1 || e.Present.Offset != 10 ||
				e.Present.Generation != gen || e.Present.Incarnation != 1 {
				t.Errorf("%s: %v", c.name, err)
			}
		case err != nil:
			t.Errorf("%s: %v", c.name, err)
		default:
			if r.Attached.From.Offset != c.from || r.Attached.Watermark != 10 {
				t.Errorf("%s: %v", c.name, r.Attached)
			}
			if c.from < 10 {
				untilOffset(r, 10)
			}
			if n := len(r.Entries); n != int(10-c.from) {
				t.Errorf("%s: %d entries", c.name, n)
			}
		}
	}
}

func TestRetention(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, nil)
	for i := range 10 {
		tell(t, h, page, fmt.Sprint("append ", i))
	}
	if err := h.Host.Close(); err != nil {
		t.Fatal(err)
	}
	// Retention is not of this package: what it leaves in storage is enough here.
	o, err := h.Store.Activate(storage.Address{Namespace: "default", Kind: "journal", Name: "page"})
	if err != nil {
		t.Fatal(err)
	}
	m := o.Meta()
	m.FirstOffset = 5
	b := o.NewBatch()
	b.PutMeta(m)
	done := make(chan error)
	o.Commit(b, func(err error) { done <- err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	o.Release()
	h.Restart()
	for name, c := range map[string]struct {
		a    *wirepb.Attach
		from uint64
	}{
		"nothing":   {nil, 4},
		"tail":      {&wirepb.Attach{Tail: 100}, 4},
		"held":      {actorstest.After(4), 4},
		"beginning": {actorstest.After(0), 4},
	} {
		r := h.Attach(alice, page, c.a)
		if r.Attached.From.Offset != c.from || r.Attached.FirstHeld != 5 {
			t.Errorf("%s: %v", name, r.Attached)
		}
		untilOffset(r, 10)
	}
	var e *proto.Error
	if _, err := h.TryAttach(alice, page, actorstest.After(3)); !errors.As(err, &e) || e.Code != proto.CodeGone || e.FirstHeld != 5 {
		t.Errorf("below retention: %v", err)
	}
	seen := &wirepb.Cursor{Generation: h.Store.Node().Generation, Incarnation: 1}
	if _, err := h.TryAttach(alice, page, &wirepb.Attach{After: seen}); !errors.As(err, &e) || e.Code != proto.CodeGone {
		t.Errorf("a reader that stood at the beginning: %v", err)
	}
}

// TestManyReaders lets readers come and go at random while entries are written, activations are dropped and the host
// crashes. The harness checks that each sees each offset once, in order, with the bytes that all others see.
func TestManyReaders(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		j := newJournal()
		h := actorstest.New(t, actorstest.Options{Kinds: j.kinds, Host: func(o *actors.Options) {
			o.RingBytes = rapid.SampledFrom([]int{1, 60, 1 << 20}).Draw(rt, "ring")
			o.IdleAfter = time.Minute
		}})
		var readers []*actorstest.Reader
		var last uint64
		var want []string
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				n := rapid.IntRange(1, 5).Draw(rt, "entries")
				var lines []string
				for range n {
					text := strings.Repeat("x", rapid.IntRange(0, 50).Draw(rt, "size"))
					lines = append(lines, "append "+text)
					want = append(want, text)
				}
				last = tell(t, h, page, lines...).Turn
			},
			"attach": func(rt *rapid.T) {
				from := rapid.Uint64Range(0, last).Draw(rt, "after")
				readers = append(readers, h.Attach(alice, page, actorstest.After(from)))
			},
			"tail": func(rt *rapid.T) {
				n := rapid.Uint64Range(1, last+1).Draw(rt, "tail")
				readers = append(readers, h.Attach(alice, page, &wirepb.Attach{Tail: n}))
			},
			"pull": func(rt *rapid.T) {
				if len(readers) > 0 {
					r := rapid.SampledFrom(readers).Draw(rt, "reader")
					if _, err := r.Pull(rapid.IntRange(1, 300).Draw(rt, "bytes")); err != nil {
						rt.Fatal(err)
					}
				}
			},
			"close": func(rt *rapid.T) {
				if len(readers) > 0 {
					i := rapid.IntRange(0, len(readers)-1).Draw(rt, "reader")
					readers[i].Close()
					readers = append(readers[:i], readers[i+1:]...)
				}
			},
			"idle": func(*rapid.T) { h.Clock.Advance(2 * time.Minute) },
			"crash": func(*rapid.T) {
				h.Crash()
				readers = nil
			},
			"": func(rt *rapid.T) {
				for _, r := range readers {
					if r.Offset() > last {
						rt.Fatalf("a reader is at %d, the log ends at %d", r.Offset(), last)
					}
				}
			},
		})
		readers = append(readers, h.Attach(alice, page, nil))
		for _, r := range readers {
			for r.Offset() < last {
				if n, err := r.Pull(1 << 20); n == 0 || err != nil {
					rt.Fatalf("a reader is stuck at %d of %d: %v", r.Offset(), last, err)
				}
			}
			for _, e := range r.Entries {
				if e.GetState().Key != want[e.Offset-1] {
					rt.Fatalf("entry %d is %q", e.Offset, e.GetState().Key)
				}
			}
		}
		if t.Failed() {
			rt.FailNow()
		}
		h.End()
	})
}

// TestReadersRaceWriters does the same with real concurrency: readers resume over and over while entries are written,
// and each run of offsets is without gap or repeat.
func TestReadersRaceWriters(t *testing.T) {
	const entries, readers = 400, 8
	j := newJournal()
	h := newHarness(t, j, func(o *actors.Options) { o.RingBytes = 200 })
	var wg sync.WaitGroup
	for i := range readers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			var at uint64
			for at < entries {
				r, err := h.TryAttach(alice, page, actorstest.After(at))
				if err != nil {
					t.Errorf("attach after %d: %v", at, err)
					return
				}
				for range rng.IntN(6) {
					if _, err := r.Pull(1 + rng.IntN(400)); err != nil {
						t.Errorf("pull after %d: %v", at, err)
						return
					}
					runtime.Gosched()
				}
				at = r.Offset()
				r.Close()
			}
		})
	}
	for i := range entries {
		tell(t, h, page, fmt.Sprint("append ", i))
	}
	wg.Wait()
	h.AwaitMetric("holdfast_actors_cursors", 0)
}

// TestBlockedSync is invariant 2 on a real engine: a commit whose fsync does not return is seen by nobody, however they
// come, and a power loss at that moment takes it away without anybody having seen it.
func TestBlockedSync(t *testing.T) {
	disk := &stuckFS{}
	j := newJournal()
	h := actorstest.New(t, actorstest.Options{Kinds: j.kinds, WrapFS: func(fs vfs.FS) vfs.FS { disk.FS = fs; return disk }})
	tell(t, h, page, "append one")
	early := h.Attach(alice, page, nil)
	untilOffset(early, 1)
	disk.stick()
	answer := h.Send(alice, say(page, "append two", "put k secret"))
	disk.awaitSync()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				r, err := h.TryAttach(alice, page, nil)
				if err != nil {
					t.Error(err)
					return
				}
				for {
					n, err := r.Pull(1 << 20)
					if err != nil {
						t.Error(err)
					}
					if n == 0 {
						break
					}
				}
				if r.Offset() != 1 || r.Attached.Watermark != 1 {
					t.Errorf("a reader sees offset %d, watermark %d", r.Offset(), r.Attached.Watermark)
				}
				r.Close()
			}
		})
	}
	wg.Wait()
	if n, _ := early.Pull(1 << 20); n != 0 || len(answer) != 0 {
		t.Errorf("%d items and %d answers depend on what is not durable", n, len(answer))
	}
	read := h.Send(alice, say(page, "get k"))
	h.Send(alice, say(page, "open handled"))
	<-j.door("handled")
	if len(read) != 0 {
		t.Error("a read answered before what it read was durable")
	}
	disk.release()
	if a := h.Await(read).GetAccepted(); a.GetMessageId() != "secret" {
		t.Errorf("read: %v", a)
	}
	untilOffset(early, 2)
}

// stuckFS is a file system whose syncs block while it is stuck.
type stuckFS struct {
	vfs.FS
	mu      sync.Mutex
	gate    chan struct{}
	waiting chan struct{}
}

func (s *stuckFS) stick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate, s.waiting = make(chan struct{}), make(chan struct{}, 100)
}

func (s *stuckFS) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.gate)
	s.gate = nil
}

func (s *stuckFS) awaitSync() { <-s.waiting }

func (s *stuckFS) pass() {
	s.mu.Lock()
	gate, waiting := s.gate, s.waiting
	s.mu.Unlock()
	if gate != nil {
		waiting <- struct{}{}
		<-gate
	}
}

func (s *stuckFS) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &stuckFile{File: f, fs: s}, nil
}

func (s *stuckFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return s.wrap(s.FS.Create(name, c))
}

func (s *stuckFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return s.wrap(s.FS.ReuseForWrite(from, to, c))
}

type stuckFile struct {
	vfs.File
	fs *stuckFS
}

func (f *stuckFile) Sync() error {
	f.fs.pass()
	return f.File.Sync()
}

func (f *stuckFile) SyncData() error {
	f.fs.pass()
	return f.File.SyncData()
}

func (f *stuckFile) SyncTo(length int64) (bool, error) {
	f.fs.pass()
	return f.File.SyncTo(length)
}

// TestSlowReaderCostsNothing writes far more than the ring holds while a reader does not read at all: the ring stays
// within its bound, nothing is kept for the reader, and it misses nothing.
func TestSlowReaderCostsNothing(t *testing.T) {
	const size, entries, ring = 10 << 10, 300, 64 << 10
	j := newJournal()
	h := newHarness(t, j, func(o *actors.Options) { o.RingBytes, o.IdleAfter = ring, time.Minute })
	slow := h.Attach(alice, page, nil)
	fast := h.Attach(alice, page, nil)
	for i := range entries {
		tell(t, h, page, "append "+strings.Repeat("x", size))
		untilOffset(fast, uint64(i+1))
		fast.Entries = nil
		if n, bytes, _ := h.Host.Held(page); bytes > ring || n > ring/size {
			t.Fatalf("the ring holds %d entries of %d bytes", n, bytes)
		}
	}
	if n, _ := fast.Pull(1); n != 0 {
		t.Fatalf("%d items after the last", n)
	}
	if _, _, waiting := h.Host.Held(page); waiting != 1 {
		t.Errorf("%d readers are to be woken: the one that is behind needs no waking", waiting)
	}
	h.Clock.Advance(2 * time.Minute)
	h.AwaitMetric("holdfast_actors_active", 0)
	if n, bytes, _ := h.Host.Held(page); n != 0 || bytes != 0 {
		t.Errorf("without an activation the ring holds %d entries of %d bytes", n, bytes)
	}
	for got := 0; slow.Offset() < entries; slow.Entries = nil {
		n, err := slow.Pull(64 << 10)
		if err != nil || n == 0 || n > 7 {
			t.Fatalf("%d items after %d: %v", n, slow.Offset(), err)
		}
		got += n
	}
	slow.Close()
	fast.Close()
	if n := h.Host.Places(); n != 0 {
		t.Errorf("%d places are left", n)
	}
}

func TestPullIsBounded(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, func(o *actors.Options) { o.RingBytes = 3000 })
	for range 50 {
		tell(t, h, page, "append "+strings.Repeat("x", 200))
	}
	r := h.Attach(alice, page, nil)
	for r.Offset() < 50 {
		n, err := r.Pull(1000)
		if err != nil || n < 1 || n > 5 {
			t.Fatalf("%d items of about 210 bytes after %d, with a limit of 1000: %v", n, r.Offset(), err)
		}
	}
}

// TestCloseWaitsForWake closes a cursor while its wake is being called: when Close returns, so has wake.
func TestCloseWaitsForWake(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, nil)
	in, out := make(chan struct{}), make(chan struct{})
	c, err := h.Host.Attach(context.Background(), alice, page, nil, func() {
		close(in)
		<-out
	})
	if err != nil {
		t.Fatal(err)
	}
	if items, err := c.Next(context.Background(), nil, 1<<20); len(items) != 0 || err != nil {
		t.Fatal(items, err)
	}
	answer := h.Send(alice, say(page, "append one"))
	<-in
	closed := make(chan struct{})
	go func() {
		c.Close()
		close(closed)
	}()
	for range 1000 {
		runtime.Gosched()
		select {
		case <-closed:
			t.Fatal("Close has returned while wake is still at work")
		default:
		}
	}
	close(out)
	<-closed
	c.Close() // twice is fine
	h.Await(answer)
	tell(t, h, page, "append two") // would close in twice
	if v := h.Metric("holdfast_actors_cursors"); v != 0 {
		t.Errorf("%v cursors are left", v)
	}
}
