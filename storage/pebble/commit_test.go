package pebble

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-ai/holdfast/internal/clock"
	"github.com/holdfast-ai/holdfast/storage"
)

// script is a database for a pipeline that applies and syncs only when the test says so, and writes down what happens.
type script struct {
	t        *testing.T
	p        *pipeline
	clock    *watchedClock
	applying chan []*request // a group that the sequencer wants to apply
	apply    chan error      // the answer
	syncs    chan chan error // a group that the completer waits for

	mu struct {
		sync.Mutex
		events []string
	}
}

// watchedClock tells the test when a timer is set.
type watchedClock struct {
	*clock.Fake
	set chan time.Duration
}

func (c *watchedClock) AfterFunc(d time.Duration, f func()) clock.Timer {
	t := c.Fake.AfterFunc(d, f)
	c.set <- d
	return t
}

func newScript(t *testing.T, change func(*commitEnv)) *script {
	s := &script{
		t:        t,
		clock:    &watchedClock{Fake: clock.NewFake(time.Unix(0, 0)), set: make(chan time.Duration)},
		applying: make(chan []*request),
		apply:    make(chan error),
		syncs:    make(chan chan error),
	}
	env := commitEnv{
		apply: func(rs []*request) (applied, error) {
			s.applying <- rs
			if err := <-s.apply; err != nil {
				return nil, err
			}
			return &scriptBatch{s: s, name: names(rs)}, nil
		},
		observe:     func(int, time.Duration, error) {},
		clock:       s.clock,
		maxBytes:    1 << 20,
		maxCommits:  100,
		maxInFlight: 2,
		linger:      0,
		lingerFrom:  4,
	}
	if change != nil {
		change(&env)
	}
	s.p = newPipeline(env)
	s.p.start()
	return s
}

func (s *script) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.events = append(s.mu.events, fmt.Sprintf(format, args...))
}

// expect compares what has happened since the last call.
func (s *script) expect(want ...string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := strings.Join(s.mu.events, "\n"); got != strings.Join(want, "\n") {
		s.t.Fatalf("events:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
	s.mu.events = nil
}

type scriptBatch struct {
	s    *script
	name string
}

func (b *scriptBatch) sync() error {
	answer := make(chan error)
	b.s.syncs <- answer
	return <-answer
}
func (b *scriptBatch) publish() { b.s.note("publish %s", b.name) }
func (b *scriptBatch) abandon() { b.s.note("abandon %s", b.name) }

func names(rs []*request) string {
	var out []string
	for _, r := range rs {
		_ = r.Writes.Each(func(key, _ []byte, _ bool) error {
			out = append(out, string(key))
			return nil
		})
	}
	return strings.Join(out, "+")
}

// commit returns a channel that is closed once Done has been called.
func (s *script) commit(obj byte, epoch uint64, name string) <-chan struct{} {
	w := new(storage.Writes)
	w.Set([]byte(name), nil)
	return s.commitWrites(obj, epoch, name, w)
}

func (s *script) commitWrites(obj byte, epoch uint64, name string, w *storage.Writes) <-chan struct{} {
	done := make(chan struct{})
	s.p.commit(storage.Commit{Object: storage.ObjectID{obj}, Epoch: storage.Epoch{Activation: epoch}, Writes: w, Done: func(err error) {
		switch {
		case err == nil:
			s.note("%s ok", name)
		case errors.Is(err, storage.ErrFenced):
			s.note("%s fenced", name)
		case errors.Is(err, storage.ErrReadOnly):
			s.note("%s read-only", name)
		case errors.Is(err, storage.ErrClosed):
			s.note("%s closed", name)
		default:
			s.note("%s %v", name, err)
		}
		close(done)
	}})
	return done
}

func (s *script) claim(obj byte, epoch uint64) error {
	return s.p.claim(storage.ObjectID{obj}, storage.Epoch{Activation: epoch})
}

// applies waits for the sequencer to apply a group of the given commits and lets it.
func (s *script) applies(want string) {
	s.t.Helper()
	if got := names(<-s.applying); got != want {
		s.t.Fatalf("applied %s, want %s", got, want)
	}
	s.apply <- nil
}

func (s *script) close() {
	s.p.close()
	goleak.VerifyNone(s.t, goleak.IgnoreCurrent())
}

var errBroken = errors.New("broken")

func TestPipelineOverlapsWritingAndSyncing(t *testing.T) {
	s := newScript(t, nil)
	for obj := byte(1); obj <= 4; obj++ {
		_ = s.claim(obj, 1)
	}
	a := s.commit(1, 1, "a")
	s.applies("a")
	first := <-s.syncs
	s.commit(2, 1, "b")
	s.applies("b") // written while a is synced
	s.commit(3, 1, "c")
	d := s.commit(4, 1, "d") // a third group waits: two are in flight
	s.expect()
	first <- nil
	<-a
	s.applies("c+d") // and has gathered both
	s.expect("publish a", "a ok")
	second := <-s.syncs
	second <- nil
	(<-s.syncs) <- nil
	<-d
	s.expect("publish b", "b ok", "publish c+d", "c ok", "d ok")
	s.close()
}

func TestPipelineFailedSyncTakesWhatIsBehindIt(t *testing.T) {
	s := newScript(t, nil)
	for obj := byte(1); obj <= 3; obj++ {
		_ = s.claim(obj, 1)
	}
	s.commit(1, 1, "a")
	s.applies("a")
	first := <-s.syncs
	s.commit(2, 1, "b")
	s.applies("b")
	c := s.commit(3, 1, "c")
	first <- errBroken
	(<-s.syncs) <- nil // b claims to be synced, but what came before it is not
	<-c
	<-s.commit(1, 1, "d")
	s.expect("abandon a", "a read-only", "abandon b", "b read-only", "c read-only", "d read-only")
	if err := s.p.failure(); !errors.Is(err, errBroken) || !errors.Is(err, storage.ErrReadOnly) {
		t.Fatalf("the failure is %v", err)
	}
	s.close()
}

func TestPipelineFailedApply(t *testing.T) {
	s := newScript(t, nil)
	_ = s.claim(1, 1)
	a := s.commit(1, 1, "a")
	<-s.applying
	b := s.commit(1, 1, "b")
	s.apply <- errBroken
	<-a
	<-b
	s.expect("a read-only", "b read-only")
	s.close()
}

// TestPipelineFailureFromOutside is how a fuse reports: nothing may be acknowledged after it, whatever the sync says.
func TestPipelineFailureFromOutside(t *testing.T) {
	s := newScript(t, nil)
	_ = s.claim(1, 1)
	a := s.commit(1, 1, "a")
	s.applies("a")
	sync := <-s.syncs
	s.p.fail(errBroken)
	sync <- nil
	<-a
	s.expect("abandon a", "a read-only")
	s.close()
}

func TestPipelineRefusalsKeepTheirPlace(t *testing.T) {
	s := newScript(t, nil)
	_ = s.claim(1, 1)
	_ = s.claim(2, 1)
	s.commit(1, 1, "a")
	s.applies("a")
	first := <-s.syncs
	s.commit(1, 7, "stale")
	s.commitWrites(1, 1, "empty", nil)
	s.commit(9, 1, "unclaimed")
	last := s.commit(2, 1, "b")
	s.applies("b")
	s.expect()
	first <- nil
	(<-s.syncs) <- nil
	<-last
	s.expect("publish a", "a ok", "publish b", "stale fenced", "empty ok", "unclaimed fenced", "b ok")
	s.close()
}

func TestPipelineClaimWaitsForEarlierEpochs(t *testing.T) {
	s := newScript(t, nil)
	_ = s.claim(1, 1)
	a := s.commit(1, 1, "a")
	s.applies("a")
	sync := <-s.syncs
	s.p.release(storage.ObjectID{1}, storage.Epoch{Activation: 1})
	claimed := make(chan error)
	go func() {
		err := s.claim(1, 2)
		s.note("claimed")
		claimed <- err
	}()
	for fenced := false; !fenced; { // until the claim has taken the epoch
		s.p.mu.Lock()
		fenced = s.p.mu.fences[storage.ObjectID{1}].epoch.Activation == 2
		s.p.mu.Unlock()
	}
	stale := s.commit(1, 1, "stale")
	s.expect()
	sync <- nil
	<-a
	if err := <-claimed; err != nil {
		t.Fatal(err)
	}
	<-stale
	s.mu.Lock()
	got := strings.Join(s.mu.events, ",")
	s.mu.events = nil
	s.mu.Unlock()
	if !strings.HasPrefix(got, "publish a,a ok,") || !strings.Contains(got, "claimed") || !strings.Contains(got, "stale fenced") {
		t.Fatalf("events: %s", got)
	}
	s.close()
}

func TestPipelineForgetsFences(t *testing.T) {
	s := newScript(t, nil)
	_ = s.claim(1, 1)
	a := s.commit(1, 1, "a")
	s.applies("a")
	sync := <-s.syncs
	s.p.release(storage.ObjectID{1}, storage.Epoch{Activation: 1})
	if n := len(s.p.mu.fences); n != 1 { // nothing else runs on the pipeline: the completer waits for the sync
		t.Fatalf("%d fences while a commit is pending, want 1", n)
	}
	sync <- nil
	<-a
	s.p.close()
	if n := len(s.p.mu.fences); n != 0 {
		t.Fatalf("%d fences after everything was released, want none", n)
	}
	<-s.commit(1, 1, "late")
	s.expect("publish a", "a ok", "late closed")
}

func TestPipelineGroupLimits(t *testing.T) {
	s := newScript(t, func(env *commitEnv) { env.maxBytes, env.maxCommits = 4, 3 })
	_ = s.claim(1, 1)
	s.commit(1, 1, "first")
	<-s.applying
	for _, name := range []string{"a", "b", "c", "dddd", "e", "ffffffff", "g"} {
		s.commit(1, 1, name)
	}
	s.apply <- nil
	for _, want := range []string{"a+b+c", "dddd", "e", "ffffffff", "g"} {
		(<-s.syncs) <- nil
		s.applies(want)
	}
	(<-s.syncs) <- nil
	s.close()
}

// TestPipelineLinger runs groups on a clock that only the test moves. A group that lingers sets a timer.
func TestPipelineLinger(t *testing.T) {
	const linger = 8 * time.Millisecond
	start := func(t *testing.T) *script {
		s := newScript(t, func(env *commitEnv) { env.linger, env.lingerFrom = linger, 4 })
		for obj := range byte(200) {
			_ = s.claim(obj, 1)
		}
		return s
	}
	// stream lets objects commit once each, a millisecond apart, as many streams do. Groups that linger wait until
	// four such have come. It returns the next object that has not committed.
	stream := func(s *script, from, n byte) byte {
		for obj := from; obj < from+n; obj++ {
			done := s.commit(obj, 1, "x")
			s.applies("x")
			(<-s.syncs) <- nil
			<-done
			s.clock.Fake.Advance(time.Millisecond)
		}
		return from + n
	}
	finish := func(s *script, want string) {
		s.applies(want)
		(<-s.syncs) <- nil
		s.close()
	}

	t.Run("a slow stream does not wait", func(t *testing.T) {
		s := start(t)
		for range 20 {
			stream(s, 1, 1)
			s.clock.Fake.Advance(30 * time.Millisecond)
		}
		s.close()
	})
	t.Run("a stream as fast as the disk does not wait", func(t *testing.T) {
		s := start(t)
		for range 100 {
			stream(s, 1, 1)
		}
		s.close()
	})
	t.Run("many streams wait", func(t *testing.T) {
		s := start(t)
		next := fill(t, s, stream)
		a := s.commit(next, 1, "a")
		if d := <-s.clock.set; d != linger {
			t.Fatalf("it waits for %v, want %v", d, linger)
		}
		s.commit(next+1, 1, "b")
		s.clock.Fake.Advance(linger - 1)
		s.commit(next+2, 1, "c")
		s.clock.Fake.Advance(1)
		finish(s, "a+b+c")
		<-a
	})
	t.Run("until all are back", func(t *testing.T) {
		s := start(t)
		next := fill(t, s, stream)
		s.commit(next, 1, "a")
		<-s.clock.set
		s.commit(next-1, 1, "b") // was alone in the last group
		finish(s, "a+b")
	})
	t.Run("until a failure", func(t *testing.T) {
		s := start(t)
		next := fill(t, s, stream)
		a := s.commit(next, 1, "a")
		<-s.clock.set
		s.p.fail(errBroken)
		<-a
		s.close()
	})
	t.Run("until close", func(t *testing.T) {
		s := start(t)
		next := fill(t, s, stream)
		s.commit(next, 1, "a")
		<-s.clock.set
		closed := make(chan struct{})
		go func() { s.p.close(); close(closed) }()
		s.applies("a")
		(<-s.syncs) <- nil
		<-closed
	})
	t.Run("the last of many does not wait", func(t *testing.T) {
		s := start(t)
		next := fill(t, s, stream)
		s.clock.Fake.Advance(3 * rateSpan)
		stream(s, next, 1)
		s.close()
	})
}

// fill streams until the rate is high enough for the next group to linger.
func fill(t *testing.T, s *script, stream func(s *script, from, n byte) byte) (next byte) {
	next = 1
	for next < 100 {
		s.p.mu.Lock()
		rate := s.p.mu.rate
		s.p.mu.Unlock()
		// What the next cut will find: one more commit, a millisecond later.
		weight := 1 - math.Exp(-float64(time.Millisecond)/float64(rateSpan))
		if rate+weight*(1000-rate) >= 500 {
			return next
		}
		next = stream(s, next, 1)
	}
	t.Fatal("the rate does not rise")
	return 0
}

func TestPipelineCloseCompletesTheQueue(t *testing.T) {
	s := newScript(t, nil)
	_ = s.claim(1, 1)
	s.commit(1, 1, "a")
	<-s.applying
	s.commit(1, 1, "b")
	closed := make(chan struct{})
	go func() {
		s.p.close()
		s.note("closed")
		close(closed)
	}()
	for closing := false; !closing; {
		s.p.mu.Lock()
		closing = s.p.mu.closing
		s.p.mu.Unlock()
	}
	<-s.commit(1, 1, "late")
	s.apply <- nil
	(<-s.syncs) <- nil
	s.applies("b")
	(<-s.syncs) <- nil
	<-closed
	s.expect("late closed", "publish a", "a ok", "publish b", "b ok", "closed")
	if err := s.claim(1, 2); !errors.Is(err, storage.ErrClosed) {
		t.Fatalf("claim returned %v", err)
	}
}
