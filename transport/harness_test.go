package transport

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"
	pb "google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/internal/clock"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const object = "default/session/s"

// patience bounds what a test waits for; nothing passes or fails by being faster.
const patience = 20 * time.Second

// rig is a server on a loopback listener and what it dispatches to.
type rig struct {
	t       testing.TB
	objects *transporttest.Objects
	server  *Server
	http    *httptest.Server
	clock   *clock.Fake
	dialer  func(network, addr string) (net.Conn, error)
}

// anybody, as Options.Authenticator, makes a rig whose connections are pipes: nothing is buffered between the peers.
var anybody Authenticator = new(anyone)

type anyone struct{ _ int }

func (*anyone) Authenticate(*http.Request) (proto.Principal, error) {
	return proto.Principal{Namespace: "default", User: "local"}, nil
}

// pipes is a listener of net.Pipes.
type pipes struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *pipes) dial(string, string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func newRig(t testing.TB, o Options) *rig {
	t.Helper()
	r := &rig{t: t, objects: transporttest.New(), clock: clock.NewFake(time.Unix(1_700_000_000, 0))}
	if o.Dispatcher == nil {
		o.Dispatcher = r.objects
	}
	if o.Clock == nil {
		o.Clock = r.clock
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	var err error
	if r.server, err = NewServer(o); err != nil {
		t.Fatal(err)
	}
	r.http = httptest.NewUnstartedServer(r.server)
	r.dialer = net.Dial
	if o.Authenticator == anybody {
		l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		r.http.Listener.Close()
		r.http.Listener, r.dialer = l, l.dial
	}
	r.http.Start()
	t.Cleanup(func() {
		r.server.Close()
		r.http.Close()
		if n := r.objects.Cursors(); n != 0 {
			t.Errorf("%d cursors are open after Close", n)
		}
	})
	return r
}

func (r *rig) wsURL() string { return "ws" + strings.TrimPrefix(r.http.URL, "http") }

// peer is a plain client.
type peer struct {
	t    testing.TB
	ws   *websocket.Conn
	json bool
}

func (r *rig) dial(protocol string) *peer {
	r.t.Helper()
	d := websocket.Dialer{Subprotocols: []string{protocol}, NetDial: r.dialer}
	conn, resp, err := d.Dial(r.wsURL()+"/v1/ws", nil)
	if err != nil {
		r.t.Fatalf("dial: %v (%+v)", err, resp)
	}
	r.t.Cleanup(func() { conn.Close() })
	return &peer{t: r.t, ws: conn, json: protocol == ProtocolJSON}
}

// greeted is a connection after Hello and Welcome.
func (r *rig) greeted(protocol string) *peer {
	r.t.Helper()
	p := r.dial(protocol)
	p.hello()
	return p
}

func (p *peer) hello() {
	p.t.Helper()
	p.send(&wirepb.Frame{Request: 1, Body: &wirepb.Frame_Hello{Hello: &wirepb.Hello{Version: 1, Client: "test"}}})
	if f := p.next(); f.GetWelcome() == nil || f.Request != 1 {
		p.t.Fatalf("after Hello came %v", f)
	}
}

func (p *peer) send(f *wirepb.Frame) {
	p.t.Helper()
	var b []byte
	var err error
	kind := websocket.BinaryMessage
	if p.json {
		kind = websocket.TextMessage
		b, err = protojson.Marshal(f)
	} else {
		b, err = pb.Marshal(f)
	}
	if err == nil {
		err = p.ws.WriteMessage(kind, b)
	}
	if err != nil {
		p.t.Fatalf("send: %v", err)
	}
}

// read returns the next frame or why there is none.
func (p *peer) read() (*wirepb.Frame, error) {
	p.ws.SetReadDeadline(time.Now().Add(patience))
	kind, b, err := p.ws.ReadMessage()
	if err != nil {
		return nil, err
	}
	f := &wirepb.Frame{}
	if want := map[bool]int{true: websocket.TextMessage, false: websocket.BinaryMessage}[p.json]; kind != want {
		p.t.Fatalf("message of kind %d, want %d", kind, want)
	}
	if p.json {
		return f, protojson.Unmarshal(b, f)
	}
	return f, pb.Unmarshal(b, f)
}

func (p *peer) next() *wirepb.Frame {
	p.t.Helper()
	f, err := p.read()
	if err != nil {
		p.t.Fatalf("read: %v", err)
	}
	return f
}

// wantError reads an Error of this code.
func (p *peer) wantError(code proto.Code) *wirepb.Frame {
	p.t.Helper()
	f := p.next()
	if proto.Code(f.GetError().GetCode()) != code {
		p.t.Fatalf("frame %v, want error %s", f, code)
	}
	if f.GetError().Hint == "" {
		p.t.Errorf("error %s has no hint", code)
	}
	return f
}

// wantClose reads up to the close frame.
func (p *peer) wantClose(code int) {
	p.t.Helper()
	for {
		_, err := p.read()
		if err == nil {
			continue
		}
		if !websocket.IsCloseError(err, code) {
			p.t.Fatalf("ended with %v, want close code %d", err, code)
		}
		return
	}
}

func (p *peer) attach(a *wirepb.Attach) *wirepb.Attached {
	p.t.Helper()
	p.send(&wirepb.Frame{Object: object, Request: 7, Body: &wirepb.Frame_Attach{Attach: a}})
	f := p.next()
	if f.GetAttached() == nil || f.Request != 7 || f.Object != object {
		p.t.Fatalf("after Attach came %v", f)
	}
	return f.GetAttached()
}

func submitFrame(id string, request uint64) *wirepb.Frame {
	return &wirepb.Frame{Object: object, Request: request, Body: &wirepb.Frame_Submit{Submit: &wirepb.Submit{MessageId: id, Text: "hello"}}}
}

func pingFrame(payload string) *wirepb.Frame {
	return &wirepb.Frame{Request: 99, Body: &wirepb.Frame_Ping{Ping: &wirepb.Ping{Payload: []byte(payload)}}}
}

func chunk(text string) *wirepb.Entry {
	return &wirepb.Entry{Turn: 1, Body: &wirepb.Entry_Chunk{Chunk: &wirepb.Chunk{Text: text}}}
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

func (r *rig) conns() int {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	return len(r.server.mu.conns)
}

func (r *rig) get(path string, header http.Header) (int, string) {
	r.t.Helper()
	req, err := http.NewRequest(http.MethodGet, r.http.URL+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	if h := header.Get("Host"); h != "" {
		req.Host = h
	}
	resp, err := r.http.Client().Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	var b strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := resp.Body.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			return resp.StatusCode, b.String()
		}
	}
}

// advanceUntil moves the clock in steps until cond holds: timers may be armed by other goroutines in between.
func (r *rig) advanceUntil(step time.Duration, cond func() bool) {
	r.t.Helper()
	eventually(r.t, "what the clock should bring about", func() bool {
		if cond() {
			return true
		}
		r.clock.Advance(step)
		return cond()
	})
}
