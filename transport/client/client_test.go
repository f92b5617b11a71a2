package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/holdfast-ai/holdfast/internal/clock"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/transport"
	"github.com/holdfast-ai/holdfast/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	object   = "default/session/s"
	patience = 20 * time.Second
)

// site is a server whose connections can be cut and that can be restarted at the same address.
type site struct {
	tb      testing.TB
	objects *transporttest.Objects
	options transport.Options
	url     string

	mu struct {
		sync.Mutex
		server *transport.Server
		conns  map[net.Conn]struct{}
		dials  int
	}
}

func newSite(tb testing.TB, o transport.Options) (*site, func()) {
	s := &site{tb: tb, objects: transporttest.New(), options: o}
	s.options.Dispatcher = s.objects
	s.mu.conns = make(map[net.Conn]struct{})
	s.start()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		server := s.mu.server
		s.mu.dials++
		s.mu.Unlock()
		server.ServeHTTP(w, r)
	}))
	s.url = web.URL
	return s, func() {
		s.mu.Lock()
		server := s.mu.server
		s.mu.Unlock()
		server.Close()
		web.Close()
		if n := s.objects.Cursors(); n != 0 {
			tb.Errorf("%d cursors are left", n)
		}
	}
}

func (s *site) start() {
	server, err := transport.NewServer(s.options)
	if err != nil {
		s.tb.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.server = server
}

// restart ends every connection at once, as a killed process does, and serves anew.
func (s *site) restart() {
	s.mu.Lock()
	old := s.mu.server
	s.mu.Unlock()
	s.start()
	old.Close()
}

func (s *site) drain() {
	s.mu.Lock()
	old := s.mu.server
	s.mu.Unlock()
	s.start()
	old.Drain(context.Background())
	old.Close()
}

func (s *site) dials() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.dials
}

// cut breaks the network connections that options(s) counts.
func (s *site) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.mu.conns {
		c.Close()
	}
	clear(s.mu.conns)
}

// quick are options of a client that tries again at once and whose connections s can cut.
func (s *site) quick() Options {
	var d net.Dialer
	return Options{
		RetryBase: time.Microsecond, RetryCap: time.Microsecond, ConnectTimeout: patience,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := d.DialContext(ctx, network, addr)
			if err == nil {
				s.mu.Lock()
				s.mu.conns[c] = struct{}{}
				s.mu.Unlock()
			}
			return c, err
		},
	}
}

func dial(tb testing.TB, s *site, o Options) *Client {
	tb.Helper()
	c, err := Dial(ctxFor(tb), s.url, o)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func ctxFor(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	tb.Cleanup(cancel)
	return ctx
}

func chunk(i int) *wirepb.Entry {
	return &wirepb.Entry{Turn: 1, Body: &wirepb.Entry_Chunk{Chunk: &wirepb.Chunk{Text: fmt.Sprint("chunk ", i)}}}
}

// collect reads until n entries have come and checks that they are the log, from offset first.
func collect(tb interface{ Fatalf(string, ...any) }, ctx context.Context, s *site, a *Attachment, first, n int) {
	for i := 0; i < n; {
		ev, err := a.Next(ctx)
		if err != nil {
			tb.Fatalf("after %d of %d entries: %v", i, n, err)
		}
		if ev.Reset != nil {
			tb.Fatalf("reset after %d entries: %+v", i, ev.Reset)
		}
		if ev.Entry == nil {
			continue
		}
		if int(ev.Entry.Offset) != first+i {
			tb.Fatalf("offset %d, want %d", ev.Entry.Offset, first+i)
		}
		if want := s.objects.Entries(object)[ev.Entry.Offset-1]; string(want) != string(ev.Raw) {
			tb.Fatalf("offset %d has other bytes than in the log", ev.Entry.Offset)
		}
		i++
	}
}

// TestExactlyOnce appends, cuts, restarts and drains at random: each offset comes once, with its bytes.
func TestExactlyOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, closeSite := newSite(t, transport.Options{DrainSpread: time.Millisecond})
		defer closeSite()
		o := s.quick()
		o.MaxBuffered = rapid.SampledFrom([]int{1, 3, 50, 0}).Draw(rt, "buffer")
		c := dial(t, s, o)
		defer c.Close()
		written := rapid.IntRange(0, 40).Draw(rt, "before")
		for i := range written {
			s.objects.Append(object, chunk(i))
		}
		first := rapid.IntRange(0, written).Draw(rt, "after")
		a, err := c.Attach(object, AttachOptions{After: &wirepb.Cursor{Offset: uint64(first)}})
		if err != nil {
			rt.Fatal(err)
		}
		read := first
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"append", "append", "append", "read", "read", "cut", "restart", "drain", "status"}).Draw(rt, "step") {
			case "append":
				for range rapid.IntRange(1, 30).Draw(rt, "n") {
					s.objects.Append(object, chunk(written))
					written++
				}
			case "read":
				n := rapid.IntRange(0, written-read).Draw(rt, "n")
				collect(rt, ctx, s, a, read+1, n)
				read += n
			case "cut":
				s.cut()
			case "restart":
				s.restart()
			case "drain":
				s.drain()
			case "status":
				s.objects.SetStatus(object, &wirepb.Status{Phase: wirepb.Phase_PHASE_RUNNING})
			}
		}
		collect(rt, ctx, s, a, read+1, written-read)
		s.objects.Append(object, chunk(written))
		collect(rt, ctx, s, a, written+1, 1) // and nothing came in between
	})
}

// TestSubmitOnce: submits over connections that keep breaking start one turn each, in the order of their start.
func TestSubmitOnce(t *testing.T) {
	s, closeSite := newSite(t, transport.Options{})
	defer closeSite()
	var lose atomic.Int32
	s.objects.OnSubmit = func(f *wirepb.Frame, reply func(*wirepb.Frame)) {
		r := s.objects.Accept(proto.Principal{}, f)
		if lose.Add(1)%3 != 0 { // accepted, but the answer is lost with its connection
			s.cut()
			return
		}
		reply(r)
	}
	c := dial(t, s, s.quick())
	defer c.Close()
	for i := range 20 {
		a, err := c.Submit(ctxFor(t), object, &wirepb.Submit{MessageId: fmt.Sprint("m", i), Text: "x"})
		if err != nil {
			t.Fatal(err)
		}
		if want := uint64(2*i + 1); a.Turn != want || !a.Duplicate {
			t.Fatalf("submit %d: %v, want turn %d", i, a, want)
		}
	}
	if n := len(s.objects.Entries(object)); n != 40 {
		t.Errorf("the log has %d entries, want 40", n)
	}
}

// TestRetryableRefusal: the message is sent again after the time that the server asks for, and not before.
func TestRetryableRefusal(t *testing.T) {
	s, closeSite := newSite(t, transport.Options{})
	defer closeSite()
	refused := make(chan struct{}, 10)
	var refusals atomic.Int32
	s.objects.OnSubmit = func(f *wirepb.Frame, reply func(*wirepb.Frame)) {
		if refusals.Add(1) <= 2 {
			reply(&wirepb.Frame{Object: f.Object, Request: f.Request, Body: &wirepb.Frame_Error{Error: &wirepb.Error{Code: "overloaded", RetryAfterMs: 4000}}})
			refused <- struct{}{}
			return
		}
		reply(s.objects.Accept(proto.Principal{}, f))
	}
	fake := clock.NewFake(time.Unix(1_700_000_000, 0))
	o := s.quick()
	o.Clock, o.Random = fake, func() float64 { return 0 }
	c := dial(t, s, o)
	defer c.Close()
	done := make(chan error, 1)
	go func() {
		_, err := c.Submit(ctxFor(t), object, &wirepb.Submit{MessageId: "m", Text: "x"})
		done <- err
	}()
	number := func() (n uint64, armed bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, k := range c.mu.calls {
			return k.number, k.retry != nil
		}
		return 0, false
	}
	for range 2 {
		<-refused
		waitFor(t, "the retry is armed", func() bool { _, armed := number(); return armed })
		was, _ := number()
		fake.Advance(3999 * time.Millisecond)
		if now, _ := number(); now != was {
			t.Fatal("sent again before its time")
		}
		fake.Advance(time.Millisecond)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestRefusedForGood(t *testing.T) {
	s, closeSite := newSite(t, transport.Options{MaxFrameBytes: 2000})
	defer closeSite()
	s.objects.OnSubmit = func(f *wirepb.Frame, reply func(*wirepb.Frame)) {
		reply(&wirepb.Frame{Object: f.Object, Request: f.Request, Body: &wirepb.Frame_Error{Error: &wirepb.Error{Code: "conflict", Message: "other body"}}})
	}
	c := dial(t, s, s.quick())
	defer c.Close()
	var refused *proto.Error
	if _, err := c.Submit(ctxFor(t), object, &wirepb.Submit{MessageId: "m"}); !errors.As(err, &refused) || refused.Code != proto.CodeConflict || refused.Hint == "" {
		t.Errorf("submit: %v", err)
	}
	if _, err := c.Submit(ctxFor(t), object, &wirepb.Submit{MessageId: "m", Text: strings.Repeat("x", 2000)}); !errors.As(err, &refused) || refused.Code != proto.CodeTooLarge {
		t.Errorf("a large submit: %v", err)
	}
	a, err := c.Attach("other/session/x", AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ev, err := a.Next(ctxFor(t)); !errors.As(err, &refused) || refused.Code != proto.CodeForbidden {
		t.Errorf("attach: %+v %v", ev, err)
	}
	if err := c.Err(); err != nil {
		t.Errorf("the client ended: %v", err)
	}
}

func TestCallerGivesUp(t *testing.T) {
	s, closeSite := newSite(t, transport.Options{})
	defer closeSite()
	got := make(chan func(), 1)
	s.objects.OnSubmit = func(f *wirepb.Frame, reply func(*wirepb.Frame)) {
		got <- func() { reply(s.objects.Accept(proto.Principal{}, f)) }
	}
	c := dial(t, s, s.quick())
	defer c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := c.Submit(ctx, object, &wirepb.Submit{MessageId: "m"})
		done <- err
	}()
	late := <-got
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("submit: %v", err)
	}
	late() // its answer is nobody's
	if _, err := c.Stop(ctxFor(t), object, 1); err != nil {
		t.Fatal(err)
	}
}

// TestStop: a stop that names its turn is sent again; one of the live turn is not.
func TestStop(t *testing.T) {
	s, closeSite := newSite(t, transport.Options{})
	defer closeSite()
	var n atomic.Int32
	s.objects.OnStop = func(f *wirepb.Frame, reply func(*wirepb.Frame)) {
		if n.Add(1) == 1 || f.GetStop().Turn == 0 {
			s.cut()
			return
		}
		reply(&wirepb.Frame{Object: f.Object, Request: f.Request, Body: &wirepb.Frame_Stopping{Stopping: &wirepb.Stopping{Turn: f.GetStop().Turn}}})
	}
	c := dial(t, s, s.quick())
	defer c.Close()
	if r, err := c.Stop(ctxFor(t), object, 5); err != nil || r.Turn != 5 {
		t.Fatalf("stop: %v %v", r, err)
	}
	before := n.Load()
	if _, err := c.Stop(ctxFor(t), object, 0); !errors.Is(err, ErrUncertain) {
		t.Fatalf("stop of the live turn: %v", err)
	}
	if n.Load() != before+1 {
		t.Errorf("it was sent %d times", n.Load()-before)
	}
}

// TestHistoryReplaced: erased while connected, and below retention while away.
func TestHistoryReplaced(t *testing.T) {
	s, closeSite := newSite(t, transport.Options{})
	defer closeSite()
	for i := range 10 {
		s.objects.Append(object, chunk(i))
	}
	c := dial(t, s, s.quick())
	defer c.Close()
	a, err := c.Attach(object, AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	collect(t, ctxFor(t), s, a, 1, 10)
	s.objects.Erase(object)
	if r := nextReset(t, a); r.Present.GetIncarnation() != 2 {
		t.Fatalf("reset %+v", r)
	}
	s.objects.Append(object, chunk(100))
	collect(t, ctxFor(t), s, a, 1, 1)
	a.Close()
	if _, err := a.Next(ctxFor(t)); !errors.Is(err, ErrClosed) {
		t.Errorf("next after close: %v", err)
	}
	for i := range 10 {
		s.objects.Append(object, chunk(i))
	}
	s.objects.Retain(object, 8)
	b, err := c.Attach(object, AttachOptions{After: &wirepb.Cursor{Generation: 1, Incarnation: 2, Offset: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if r := nextReset(t, b); r.FirstHeld != 8 {
		t.Fatalf("reset %+v", r)
	}
	collect(t, ctxFor(t), s, b, 8, 4)
	if got := b.Cursor(); got.Offset != 11 || got.Incarnation != 2 {
		t.Errorf("cursor %v", got)
	}
}

func nextReset(t *testing.T, a *Attachment) *Reset {
	t.Helper()
	for {
		ev, err := a.Next(ctxFor(t))
		if err != nil {
			t.Fatal(err)
		}
		if ev.Reset != nil {
			return ev.Reset
		}
		if ev.Entry != nil {
			t.Fatalf("entry %d before the reset", ev.Entry.Offset)
		}
	}
}

// TestAbsentReader: a caller that does not read holds a bounded buffer, and does not keep Submit from its answer.
func TestAbsentReader(t *testing.T) {
	s, closeSite := newSite(t, transport.Options{})
	defer closeSite()
	const total = 500
	for i := range total {
		s.objects.Append(object, chunk(i))
	}
	o := s.quick()
	o.MaxBuffered = 10
	c := dial(t, s, o)
	defer c.Close()
	a, err := c.Attach(object, AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the buffer is full", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return a.state == stateFull
	})
	if _, err := c.Submit(ctxFor(t), "default/session/other", &wirepb.Submit{MessageId: "m"}); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	held := len(a.queue)
	c.mu.Unlock()
	if held > 10+3 {
		t.Errorf("%d events are held", held)
	}
	collect(t, ctxFor(t), s, a, 1, total)
}

// TestLostEventsDoNotPileUp: a connection that keeps breaking fills no queue.
func TestLostEventsDoNotPileUp(t *testing.T) {
	s, closeSite := newSite(t, transport.Options{})
	defer closeSite()
	c := dial(t, s, s.quick())
	defer c.Close()
	a, err := c.Attach(object, AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		before := s.dials()
		waitFor(t, "attached", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return a.state == stateAttached
		})
		s.cut()
		waitFor(t, "connected again", func() bool { return s.dials() > before })
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(a.queue) > 4 {
		t.Errorf("%d events are queued", len(a.queue))
	}
}

// TestEndings: what a server says decides whether the client comes back.
func TestEndings(t *testing.T) {
	for _, tt := range []struct {
		code  proto.Code
		final bool
	}{
		{proto.CodeUnauthenticated, true}, {proto.CodeForbidden, true}, {proto.CodeUnavailable, false}, {proto.CodeInternal, false},
	} {
		t.Run(string(tt.code), func(t *testing.T) {
			var deny atomic.Bool
			s, closeSite := newSite(t, transport.Options{Authenticator: authenticator(func(r *http.Request) (proto.Principal, error) {
				if deny.Load() {
					return proto.Principal{}, &proto.Error{Code: tt.code, Message: "denied", RetryAfter: time.Millisecond}
				}
				return proto.Principal{Namespace: "default", User: "u"}, nil
			})})
			defer closeSite()
			c := dial(t, s, s.quick())
			defer c.Close()
			a, err := c.Attach(object, AttachOptions{})
			if err != nil {
				t.Fatal(err)
			}
			deny.Store(true)
			before := s.dials()
			s.cut()
			if !tt.final {
				waitFor(t, "several tries", func() bool { return s.dials() > before+3 })
				deny.Store(false)
				if _, err := c.Submit(ctxFor(t), object, &wirepb.Submit{MessageId: "m"}); err != nil {
					t.Fatal(err)
				}
				return
			}
			for err == nil {
				_, err = a.Next(ctxFor(t))
			}
			var refused *proto.Error
			if !errors.As(err, &refused) || refused.Code != tt.code || c.Err() == nil {
				t.Errorf("ended with %v", err)
			}
			if _, err := c.Submit(ctxFor(t), object, &wirepb.Submit{MessageId: "m"}); !errors.As(err, &refused) {
				t.Errorf("submit after the end: %v", err)
			}
			if got := s.dials(); got != before+1 {
				t.Errorf("%d tries after the refusal, want 1", got-before)
			}
		})
	}
}

type authenticator func(*http.Request) (proto.Principal, error)

func (a authenticator) Authenticate(r *http.Request) (proto.Principal, error) { return a(r) }

func TestDialFails(t *testing.T) {
	s, closeSite := newSite(t, transport.Options{})
	url := s.url
	if _, err := Dial(ctxFor(t), "ftp://x", Options{}); err == nil || !strings.Contains(err.Error(), "http") {
		t.Errorf("scheme: %v", err)
	}
	if _, err := Dial(ctxFor(t), url+"/nowhere", Options{RetryFirst: true}); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("wrong path, which no retry mends: %v", err)
	}
	closeSite()
	if _, err := Dial(ctxFor(t), url, Options{}); err == nil {
		t.Error("a dead server took us")
	}
	ctx, cancel := context.WithCancel(context.Background())
	var tries atomic.Int32
	o := s.quick()
	o.RetryFirst = true
	o.DialContext = func(context.Context, string, string) (net.Conn, error) {
		if tries.Add(1) == 5 {
			cancel()
		}
		return nil, errors.New("no route")
	}
	if _, err := Dial(ctx, url, o); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "no route") {
		t.Errorf("retries until the end of ctx: %v", err)
	}
}

// TestToken: the token is asked for anew at each connection.
func TestToken(t *testing.T) {
	seen := make(chan string, 10)
	s, closeSite := newSite(t, transport.Options{Authenticator: authenticator(func(r *http.Request) (proto.Principal, error) {
		seen <- r.Header.Get("Authorization")
		return proto.Principal{Namespace: "default", User: "u"}, nil
	})})
	defer closeSite()
	o := s.quick()
	var n atomic.Int32
	o.Token = func(context.Context) (string, error) { return fmt.Sprint("t", n.Add(1)), nil }
	c := dial(t, s, o)
	defer c.Close()
	s.cut()
	for _, want := range []string{"Bearer t1", "Bearer t2"} {
		if got := <-seen; got != want {
			t.Errorf("token %q, want %q", got, want)
		}
	}
}

// recorder is a clock that tells what it is asked for.
type recorder struct {
	*clock.Fake
	asked chan time.Duration
}

func (r *recorder) AfterFunc(d time.Duration, f func()) clock.Timer {
	t := r.Fake.AfterFunc(d, f)
	r.asked <- d
	return t
}

// TestDrainIsHonoured: the client comes back when the server said.
func TestDrainIsHonoured(t *testing.T) {
	s, closeSite := newSite(t, transport.Options{Random: func() float64 { return 0.5 }})
	defer closeSite()
	r := &recorder{clock.NewFake(time.Unix(1_700_000_000, 0)), make(chan time.Duration, 1000)}
	o := s.quick()
	o.Clock, o.Random = r, func() float64 { return 0 }
	c := dial(t, s, o)
	defer c.Close()
	for len(r.asked) > 0 {
		<-r.asked
	}
	s.drain()
	// One connection takes 2 ms to drain; its share of DrainSpread is 1 s.
	want := time.Second + 2*time.Millisecond
	for d := range r.asked {
		if d == want {
			break
		}
		if d < want { // that of a write or of the watchdog is longer
			t.Fatalf("waits %s, want %s", d, want)
		}
	}
	r.Advance(want)
	waitFor(t, "the client is back", func() bool { return s.dials() == 2 })
}

// TestMisbehavingServer: entries of an earlier attachment, repeated ones and such after a gap are not taken, and the
// gap is asked for.
func TestMisbehavingServer(t *testing.T) {
	c := &Client{o: Options{}.withDefaults()}
	c.mu.attachments = map[string]*Attachment{}
	l := &link{c: c, kick: make(chan struct{}, 1)}
	c.mu.link = l
	a, err := c.Attach(object, AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	entry := func(offset uint64) {
		a.receivedLocked(&wirepb.Frame{Object: object, Body: &wirepb.Frame_Entry{Entry: &wirepb.Entry{Offset: offset}}}, []byte{1})
	}
	attached := func(offset uint64) {
		f := &wirepb.Frame{Object: object, Request: a.request, Body: &wirepb.Frame_Attached{Attached: &wirepb.Attached{From: &wirepb.Cursor{Generation: 1, Incarnation: 1, Offset: offset}}}}
		a.receivedLocked(f, nil)
	}
	entry(1) // before Attached
	attached(0)
	entry(1)
	entry(1)
	entry(2)
	if len(l.out) != 1 {
		t.Fatalf("sent %v", l.out)
	}
	entry(4)
	entry(3) // not of the new attachment
	if after := l.out[len(l.out)-1].GetAttach().GetAfter(); len(l.out) != 2 || after.Offset != 2 || after.Generation != 1 {
		t.Fatalf("sent %v", l.out)
	}
	stale := a.request - 1
	a.receivedLocked(&wirepb.Frame{Object: object, Request: stale, Body: &wirepb.Frame_Attached{Attached: &wirepb.Attached{From: &wirepb.Cursor{}}}}, nil)
	attached(2)
	entry(3)
	var got []uint64
	for len(a.queue) > 0 {
		ev, _, _ := a.take()
		if ev.Reset != nil {
			t.Error("reset")
		}
		if ev.Entry != nil {
			got = append(got, ev.Entry.Offset)
		}
	}
	if fmt.Sprint(got) != "[1 2 3]" {
		t.Errorf("took %v", got)
	}
}

// TestSilentServer: a server that says nothing for two ping intervals is left.
func TestSilentServer(t *testing.T) {
	s, closeSite := newSite(t, transport.Options{Clock: clock.NewFake(time.Unix(0, 0))}) // never pings
	defer closeSite()
	fake := clock.NewFake(time.Unix(1_700_000_000, 0))
	o := s.quick()
	o.Clock = fake
	c := dial(t, s, o)
	defer c.Close()
	waitFor(t, "the silence is noticed", func() bool {
		fake.Advance(25 * time.Second)
		return s.dials() > 1
	})
}

func waitFor(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			tb.Fatalf("not within %s: %s", patience, what)
		}
	}
}
