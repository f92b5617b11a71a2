package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	pb "google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// TestControlLane: with every submit of the connection's allowance stuck, and more refused, Ping, Stop and Attach's
// refusal are answered at once, and the stuck ones when they are ready (invariant 12).
func TestControlLane(t *testing.T) {
	r := newRig(t, Options{MaxInFlight: 4, MaxStops: 1})
	var mu sync.Mutex
	var stuck []func()
	stall := true
	r.objects.OnSubmit = func(f *wirepb.Frame, reply func(*wirepb.Frame)) {
		mu.Lock()
		defer mu.Unlock()
		stuck = append(stuck, func() { reply(r.objects.Accept(proto.Principal{User: "local"}, f)) })
	}
	stopReply := make(chan func(), 1)
	r.objects.OnStop = func(f *wirepb.Frame, reply func(*wirepb.Frame)) {
		done := func() {
			reply(&wirepb.Frame{Object: f.Object, Request: f.Request, Body: &wirepb.Frame_Stopping{Stopping: &wirepb.Stopping{Turn: 1}}})
		}
		if stall {
			stopReply <- done
			return
		}
		done()
	}
	p := r.greeted(ProtocolBinary)
	for i := range uint64(50) {
		p.send(submitFrame(fmt.Sprint("m", i), 100+i))
	}
	for i := range uint64(46) {
		f := p.wantError(proto.CodeOverloaded)
		e := f.GetError()
		if f.Request != 104+i || e.MessageId != fmt.Sprint("m", 4+i) || !e.Retryable || e.RetryAfterMs == 0 {
			t.Fatalf("refusal %v", f)
		}
	}
	stop := &wirepb.Frame{Object: object, Request: 5, Body: &wirepb.Frame_Stop{Stop: &wirepb.Stop{Turn: 1}}}
	p.send(stop)
	finish := <-stopReply
	p.send(stop) // the second stop is over its allowance
	p.wantError(proto.CodeOverloaded)
	p.send(pingFrame("alive"))
	if f := p.next(); f.GetPong() == nil {
		t.Fatalf("came %v", f)
	}
	p.send(&wirepb.Frame{Object: object, Request: 6, Body: &wirepb.Frame_Attach{Attach: &wirepb.Attach{}}})
	p.wantError(proto.CodeOverloaded)
	finish()
	if f := p.next(); f.GetStopping() == nil {
		t.Fatalf("came %v", f)
	}
	mu.Lock()
	answers := stuck
	mu.Unlock()
	if len(answers) != 4 {
		t.Fatalf("%d submits reached the object, want 4", len(answers))
	}
	for i, a := range answers {
		a()
		if f := p.next(); f.GetAccepted() == nil || f.Request != 100+uint64(i) {
			t.Fatalf("came %v", f)
		}
	}
	p.send(&wirepb.Frame{Object: object, Request: 6, Body: &wirepb.Frame_Attach{Attach: &wirepb.Attach{}}})
	if f := p.next(); f.GetAttached() == nil {
		t.Fatalf("the allowance did not come back: %v", f)
	}
}

// TestReaderWaitsForRoom: a client that asks and does not read is not read from any more.
func TestReaderWaitsForRoom(t *testing.T) {
	r := newRig(t, Options{MaxQueued: 4, Authenticator: anybody})
	p := r.greeted(ProtocolBinary)
	const pings = 5000
	sent := make(chan error, 1)
	go func() {
		b, err := pb.Marshal(pingFrame("x"))
		for i := 0; i < pings && err == nil; i++ {
			err = p.ws.WriteMessage(websocket.BinaryMessage, b)
		}
		sent <- err
	}()
	eventually(t, "the reader waits", func() bool {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		for c := range r.server.mu.conns {
			c.mu.Lock()
			waits, queued := c.mu.space != nil, len(c.mu.out)
			c.mu.Unlock()
			if queued > 4 {
				t.Fatalf("%d replies wait", queued)
			}
			return waits
		}
		return false
	})
	select {
	case err := <-sent:
		t.Fatalf("the server took all that was sent (%v)", err)
	default:
	}
	for range pings {
		if f := p.next(); f.GetPong() == nil {
			t.Fatalf("came %v", f)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

// TestSlowReader: a client that stops reading in the middle of a long log costs no more than a batch, is cut off when
// nothing goes out for WriteTimeout, and finds the rest where it left off.
func TestSlowReader(t *testing.T) {
	r := newRig(t, Options{PingInterval: time.Hour}) // or the missing pong would be the reason
	const entries, size = 4000, 8 << 10              // 32 MB
	body := strings.Repeat("x", size)
	for range entries {
		r.objects.Append(object, chunk(body))
	}
	p := r.greeted(ProtocolBinary)
	p.attach(&wirepb.Attach{})
	quiet := func() bool { // the sockets are full: no pull between two looks
		before := r.objects.Pulls()
		r.clock.Advance(0)
		time.Sleep(20 * time.Millisecond) // only slows the polling
		return before > 0 && r.objects.Pulls() == before
	}
	eventually(t, "the writer is stuck", quiet)
	if pulled := r.objects.Pulls() * (quantum + size); pulled > 16<<20 {
		t.Errorf("about %d bytes were pulled for a reader that took nothing", pulled)
	}
	r.advanceUntil(r.server.o.WriteTimeout, func() bool { return r.conns() == 0 })
	last := uint64(0)
	for {
		f, err := p.read()
		if err != nil {
			break
		}
		if e := f.GetEntry(); e != nil {
			if e.Offset != last+1 {
				t.Fatalf("offset %d after %d", e.Offset, last)
			}
			last = e.Offset
		}
	}
	if last == 0 || last >= entries {
		t.Fatalf("read %d of %d entries before the cut", last, entries)
	}
	q := r.greeted(ProtocolBinary)
	q.attach(&wirepb.Attach{After: &wirepb.Cursor{Generation: 1, Incarnation: 1, Offset: last}})
	for last < entries {
		if e := q.next().GetEntry(); e.GetOffset() != last+1 || e.GetChunk().GetText() != body {
			t.Fatalf("offset %d after %d", e.GetOffset(), last)
		}
		last++
	}
	if got := testutil.ToFloat64(r.server.metrics.closed.WithLabelValues("slow_consumer")); got != 1 {
		t.Errorf("slow_consumer counted %v times", got)
	}
}

// TestFairness: two long replays of one connection take turns of a quantum each.
func TestFairness(t *testing.T) {
	r := newRig(t, Options{Authenticator: anybody})
	const entries, other = 2000, "default/session/other"
	body := strings.Repeat("x", 1<<10)
	for range entries {
		r.objects.Append(object, chunk(body))
		r.objects.Append(other, chunk(body))
	}
	p := r.greeted(ProtocolBinary)
	p.attach(&wirepb.Attach{})
	p.next() // the first replay has begun
	p.send(&wirepb.Frame{Object: other, Request: 9, Body: &wirepb.Frame_Attach{Attach: &wirepb.Attach{}}})
	for p.next().GetAttached() == nil {
	}
	run, last, left := 0, "", map[string]bool{object: true, other: true}
	for len(left) == 2 {
		f := p.next()
		if f.GetCaughtUp() != nil {
			delete(left, f.Object)
		}
		if f.Object != last {
			run, last = 0, f.Object
		}
		if run++; run > 2*quantum/len(body)+2 {
			t.Fatalf("%d frames of %s in a row while the other waits", run, last)
		}
	}
}

// TestAttachmentsReplaced: a second Attach ends the first; no entry of the first follows the second's Attached.
func TestAttachmentsReplaced(t *testing.T) {
	r := newRig(t, Options{MaxAttachments: 1})
	for range 2000 {
		r.objects.Append(object, chunk(strings.Repeat("x", 1000)))
	}
	p := r.greeted(ProtocolBinary)
	for round := range uint64(20) {
		from := round * 50
		p.send(&wirepb.Frame{Object: object, Request: round + 1, Body: &wirepb.Frame_Attach{Attach: &wirepb.Attach{After: &wirepb.Cursor{Offset: from}}}})
		for f := p.next(); ; f = p.next() {
			if a := f.GetAttached(); a != nil && f.Request == round+1 {
				if a.From.Offset != from {
					t.Fatalf("attached at %d, want %d", a.From.Offset, from)
				}
				break
			}
		}
		for i := range uint64(3) {
			if e := p.next().GetEntry(); e.GetOffset() != from+1+i {
				t.Fatalf("entry %d after Attached at %d", e.GetOffset(), from)
			}
		}
	}
	p.send(&wirepb.Frame{Object: object + "2", Request: 99, Body: &wirepb.Frame_Attach{Attach: &wirepb.Attach{}}})
	for f := p.next(); ; f = p.next() {
		if f.GetError() != nil && f.Request == 99 && f.GetError().Code == "overloaded" {
			break
		}
	}
	eventually(t, "earlier cursors are closed", func() bool { return r.objects.Cursors() == 1 })
	p.send(&wirepb.Frame{Object: object, Request: 100, Body: &wirepb.Frame_Detach{Detach: &wirepb.Detach{}}})
	for f := p.next(); f.GetDetached() == nil; f = p.next() {
	}
	p.send(pingFrame("after"))
	if f := p.next(); f.GetPong() == nil {
		t.Fatalf("after Detached came %v", f)
	}
	eventually(t, "no cursor is left", func() bool { return r.objects.Cursors() == 0 })
}

// TestAttachSupersededWhileOpening: the Dispatcher is slow; both Attaches are answered, and only the second lives.
func TestAttachSupersededWhileOpening(t *testing.T) {
	r := newRig(t, Options{})
	entered, release := make(chan struct{}, 2), make(chan struct{})
	r.objects.OnAttach = func(ctx context.Context, _ string) error {
		entered <- struct{}{}
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil
	}
	p := r.greeted(ProtocolBinary)
	for i := range uint64(2) {
		p.send(&wirepb.Frame{Object: object, Request: i + 1, Body: &wirepb.Frame_Attach{Attach: &wirepb.Attach{}}})
		<-entered
	}
	p.send(pingFrame("meanwhile")) // the reader is not held up
	if f := p.next(); f.GetPong() == nil {
		t.Fatalf("came %v", f)
	}
	close(release)
	got := map[uint64]string{}
	for len(got) < 2 {
		if f := p.next(); f.Request != 0 {
			got[f.Request] = kindOf(f)
		}
	}
	if got[1] != "detached" || got[2] != "attached" {
		t.Fatalf("answers %v", got)
	}
	eventually(t, "one cursor is left", func() bool { return r.objects.Cursors() == 1 })
	// A third that never opens ends with its connection.
	release = make(chan struct{})
	p.send(&wirepb.Frame{Object: object, Request: 3, Body: &wirepb.Frame_Attach{Attach: &wirepb.Attach{}}})
	<-entered
	p.ws.Close()
	eventually(t, "the connection is gone", func() bool { return r.conns() == 0 })
}

func TestCursorEnds(t *testing.T) {
	r := newRig(t, Options{})
	r.objects.Append(object, chunk("a"))
	p := r.greeted(ProtocolJSON)
	p.attach(&wirepb.Attach{})
	p.next()
	p.next() // caught up
	r.objects.Erase(object)
	f := p.wantError(proto.CodeGone)
	if f.Object != object || f.Request != 0 || f.GetError().Present.GetIncarnation() != 2 {
		t.Fatalf("came %v", f)
	}
	eventually(t, "its cursor is closed", func() bool { return r.objects.Cursors() == 0 })
	if a := p.attach(&wirepb.Attach{}); a.From.Incarnation != 2 {
		t.Fatalf("attached %v", a)
	}
}

// TestPanics: the Dispatcher and its cursors panic wherever they are called; each is answered, and the connection and
// its neighbour go on.
func TestPanics(t *testing.T) {
	r := newRig(t, Options{Authenticator: authenticator(func(q *http.Request) (proto.Principal, error) {
		if q.Header.Get("X-Panic") != "" {
			panic("authenticator")
		}
		return Local{}.Authenticate(q)
	})})
	r.objects.OnSubmit = func(*wirepb.Frame, func(*wirepb.Frame)) { panic("the text of a user") }
	r.objects.OnStop = func(f *wirepb.Frame, reply func(*wirepb.Frame)) {
		reply(&wirepb.Frame{Object: f.Object, Request: f.Request, Body: &wirepb.Frame_Stopping{Stopping: &wirepb.Stopping{}}})
		panic("after the reply")
	}
	neighbour := r.greeted(ProtocolBinary)
	p := r.greeted(ProtocolBinary)
	p.send(submitFrame("m", 1))
	if f := p.wantError(proto.CodeInternal); f.GetError().MessageId != "m" || strings.Contains(f.String(), "user") {
		t.Errorf("came %v", f)
	}
	p.send(&wirepb.Frame{Object: object, Request: 2, Body: &wirepb.Frame_Stop{Stop: &wirepb.Stop{}}})
	if f := p.next(); f.GetStopping() == nil {
		t.Fatalf("came %v", f)
	}
	r.objects.OnAttach = func(context.Context, string) error { panic("attach") }
	attach := &wirepb.Frame{Object: object, Request: 3, Body: &wirepb.Frame_Attach{Attach: &wirepb.Attach{}}}
	p.send(attach)
	p.wantError(proto.CodeInternal)
	r.objects.OnAttach = nil
	r.objects.OnNext = func(string) error { panic("next") }
	p.send(attach)
	if f := p.next(); f.GetAttached() == nil {
		t.Fatalf("came %v", f)
	}
	p.wantError(proto.CodeInternal)
	if status, body := r.get("/v1/ws", http.Header{"X-Panic": {"1"}, "Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Protocol": {ProtocolBinary}}); status != 500 || !strings.Contains(body, "internal") {
		t.Errorf("a panic of the authenticator: %d %s", status, body)
	}
	for _, q := range []*peer{p, neighbour} {
		q.send(pingFrame("x"))
		if f := q.next(); f.GetPong() == nil {
			t.Fatalf("came %v", f)
		}
	}
	if got := testutil.ToFloat64(r.server.metrics.panics); got != 5 {
		t.Errorf("%v panics counted, want 5", got)
	}
}

// TestGhost: a peer that answers nothing is gone after two ping intervals; one that answers stays.
func TestGhost(t *testing.T) {
	r := newRig(t, Options{})
	alive, frozen := r.greeted(ProtocolBinary), r.greeted(ProtocolBinary)
	pings := make(chan struct{}, 100)
	alive.ws.SetPingHandler(func(p string) error {
		pings <- struct{}{}
		return alive.ws.WriteControl(websocket.PongMessage, []byte(p), time.Now().Add(patience))
	})
	stop := make(chan struct{})
	go func() { // answers pings
		defer close(stop)
		for {
			if _, _, err := alive.ws.ReadMessage(); err != nil {
				return
			}
		}
	}()
	r.server.mu.Lock()
	conns := r.server.connsLocked()
	r.server.mu.Unlock()
	received := func() (n uint64) {
		for _, c := range conns {
			n += c.ws.Received()
		}
		return n
	}
	before := received()
	r.clock.Advance(r.server.o.PingInterval)
	<-pings
	if r.conns() != 2 {
		t.Fatalf("%d connections after one interval", r.conns())
	}
	eventually(t, "the pong has come", func() bool { return received() > before })
	r.clock.Advance(r.server.o.PingInterval)
	eventually(t, "the frozen peer is gone", func() bool { return r.conns() == 1 })
	frozen.ws.SetPingHandler(func(string) error { return nil })
	if f := frozen.next(); f.GetClosing().GetCode() != "idle_timeout" {
		t.Fatalf("came %v", f)
	}
	frozen.wantClose(3008)
	alive.ws.Close()
	<-stop
}

func TestDrain(t *testing.T) {
	r := newRig(t, Options{Random: func() float64 { return 0.5 }})
	var peers []*peer
	for range 10 {
		peers = append(peers, r.greeted(ProtocolBinary))
	}
	peers[0].attach(&wirepb.Attach{})
	peers[0].next() // caught up
	r.server.mu.Lock()
	conns := r.server.connsLocked()
	r.server.mu.Unlock()
	done := make(chan error, 1)
	go func() { done <- r.server.Drain(context.Background()) }()
	for i, p := range peers {
		f := p.next()
		if c := f.GetClosing(); c.GetCode() != "draining" || c.ReconnectAfterMs == 0 {
			t.Fatalf("peer %d: %v", i, f)
		}
	}
	if status, body := r.get("/readyz", nil); status != 503 || !strings.Contains(body, "draining") {
		t.Errorf("readyz %d %q", status, body)
	}
	if status, _ := r.get("/healthz", nil); status != 200 {
		t.Errorf("healthz %d", status)
	}
	d := websocket.Dialer{Subprotocols: []string{ProtocolBinary}}
	if _, resp, err := d.Dial(r.wsURL()+"/v1/ws", nil); err == nil || resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("dial while draining: %v %v", err, resp)
	}
	r.objects.Append(object, chunk("still streaming"))
	if f := peers[0].next(); f.GetEntry() == nil {
		t.Fatalf("came %v", f)
	}
	peers[0].send(submitFrame("m", 1))
	peers[0].wantError(proto.CodeDraining)
	for step := range peers { // connection i is closed i paces after the beginning
		if step > 0 {
			r.clock.Advance(drainPace)
		} else {
			r.clock.Advance(0)
		}
		n := 0
		for _, c := range conns {
			if c.currentPhase() >= phaseClosing {
				n++
			}
		}
		if n != step+1 {
			t.Errorf("after %d paces %d connections are closed, want %d", step, n, step+1)
		}
	}
	for _, p := range peers {
		p.wantClose(1012)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestDrainGivesUp(t *testing.T) {
	r := newRig(t, Options{})
	r.greeted(ProtocolBinary)
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("enough")
	cancel(cause)
	if err := r.server.Drain(ctx); !errors.Is(err, cause) {
		t.Fatalf("drain: %v", err)
	}
	if r.conns() != 0 {
		t.Errorf("%d connections are left", r.conns())
	}
}

// TestLogs: what is logged tells the connection and its user, and neither tokens nor text.
func TestLogs(t *testing.T) {
	var mu sync.Mutex
	var out bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(writerFunc(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return out.Write(b)
	}), &slog.HandlerOptions{Level: slog.LevelDebug}))
	r := newRig(t, Options{Logger: logger})
	r.objects.OnSubmit = func(*wirepb.Frame, func(*wirepb.Frame)) { panic("private words") }
	d := websocket.Dialer{Subprotocols: []string{ProtocolBinary}}
	c, _, err := d.Dial(r.wsURL()+"/v1/ws?token=sesame", http.Header{"Authorization": {"Bearer sesame"}, "Cookie": {"s=sesame"}})
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{t: t, ws: c}
	p.hello()
	p.send(&wirepb.Frame{Object: object, Request: 3, Body: &wirepb.Frame_Submit{Submit: &wirepb.Submit{MessageId: "m", Text: "private words"}}})
	p.wantError(proto.CodeInternal)
	p.send(&wirepb.Frame{Object: "other/session/x", Request: 4, Body: &wirepb.Frame_Stop{Stop: &wirepb.Stop{}}})
	p.wantError(proto.CodeForbidden)
	r.get("/v1/ws?token=sesame", http.Header{"Authorization": {"Bearer sesame"}})
	c.Close()
	eventually(t, "the connection is gone", func() bool { return r.conns() == 0 })
	mu.Lock()
	defer mu.Unlock()
	for _, secret := range []string{"sesame", "private words"} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("the log has %q:\n%s", secret, out.String())
		}
	}
	for _, want := range []string{`"conn":1`, `"user":"local"`, `"request":4`, `"code":"forbidden"`, `"remote":"127.0.0.1:`, `"msg":"disconnected"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, out.String())
		}
	}
}

type writerFunc func([]byte) (int, error)

func (w writerFunc) Write(b []byte) (int, error) { return w(b) }

func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := newRig(t, Options{Registerer: registry})
	p := r.greeted(ProtocolBinary)
	r.objects.Append(object, chunk("a"))
	p.attach(&wirepb.Attach{})
	p.next()
	p.next()
	want := `
		# HELP holdfast_transport_attachments Objects that connections follow, counted once a connection.
		# TYPE holdfast_transport_attachments gauge
		holdfast_transport_attachments 1
		# HELP holdfast_transport_connections WebSocket connections that are open.
		# TYPE holdfast_transport_connections gauge
		holdfast_transport_connections 1
		# HELP holdfast_transport_frames_received_total Frames of clients, by kind.
		# TYPE holdfast_transport_frames_received_total counter
		holdfast_transport_frames_received_total{kind="attach"} 1
		holdfast_transport_frames_received_total{kind="hello"} 1
		# HELP holdfast_transport_frames_sent_total Frames to clients, by kind.
		# TYPE holdfast_transport_frames_sent_total counter
		holdfast_transport_frames_sent_total{kind="attached"} 1
		holdfast_transport_frames_sent_total{kind="caught_up"} 1
		holdfast_transport_frames_sent_total{kind="entry"} 1
		holdfast_transport_frames_sent_total{kind="status"} 0
		holdfast_transport_frames_sent_total{kind="welcome"} 1
	`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "holdfast_transport_attachments",
		"holdfast_transport_connections", "holdfast_transport_frames_received_total", "holdfast_transport_frames_sent_total"); err != nil {
		t.Error(err)
	}
	p.ws.Close()
	eventually(t, "the gauges return to zero", func() bool {
		return testutil.ToFloat64(r.server.metrics.connections) == 0 && testutil.ToFloat64(r.server.metrics.attachments) == 0
	})
	if _, err := NewServer(Options{Dispatcher: r.objects, Registerer: registry}); err == nil {
		t.Error("two servers share one registry")
	}
}
