package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

const (
	retryBase      = 250 * time.Millisecond
	retryCap       = 8 * time.Second
	stableAfter    = 5 * time.Second
	connectTimeout = 10 * time.Second
	defaultPing    = 25 * time.Second
)

// errUnreachable says that no connection was ever made.
var errUnreachable = errors.New("server not reachable")

// linkOptions say what a wireLink follows.
type linkOptions struct {
	server  *url.URL // http or https
	session string
	tail    uint64 // entries to begin with
	client  string // name and version, for the server's logs
}

// wireLink is a link over holdfast.v1. Each entry is given once whatever the connection does: it resumes from the
// cursor of the last one given, drops what it has seen and goes back when there is a gap. Submits and stops that
// are not answered are sent again, with the same message id, on the next connection. There is one connection at a
// time; retries wait with full jitter, or for as long as the server has asked.
type wireLink struct {
	o      linkOptions
	cancel context.CancelFunc
	done   chan struct{} // closed when run has returned
	events chan event

	// Owned by run.
	cursor  *wirepb.Cursor // nil: begin with the tail
	reached bool           // a connection was attached once
	attempt int

	mu struct {
		sync.Mutex
		wire     *wire // attached; nil between connections
		object   string
		request  uint64
		submits  map[string]*pendingSubmit
		stops    map[uint64]uint64 // turn to request
		timers   map[string]*time.Timer
		closing  time.Duration // the server's wish; -1 without one
		finished bool
	}
}

type pendingSubmit struct {
	submit  *wirepb.Submit
	request uint64
	result  chan accepted // buffered
}

// openLink begins to connect. Its first event tells whether that succeeded.
func openLink(ctx context.Context, o linkOptions) *wireLink {
	ctx, cancel := context.WithCancel(ctx)
	l := &wireLink{o: o, cancel: cancel, done: make(chan struct{}), events: make(chan event)}
	l.mu.submits = make(map[string]*pendingSubmit)
	l.mu.stops = make(map[uint64]uint64)
	l.mu.timers = make(map[string]*time.Timer)
	go func() {
		defer close(l.done)
		l.run(ctx)
	}()
	return l
}

func (l *wireLink) Events() <-chan event { return l.events }

// Close breaks the connection and waits for the link's goroutine.
func (l *wireLink) Close() {
	l.cancel()
	<-l.done
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.finished = true
	for _, t := range l.mu.timers {
		t.Stop()
	}
}

// run keeps one connection after the other until ctx ends or the server says that there is no point.
func (l *wireLink) run(ctx context.Context) {
	for ctx.Err() == nil {
		l.mu.Lock()
		l.mu.closing = -1
		l.mu.Unlock()
		started := time.Now()
		attached, err := l.connection(ctx)
		if attached && time.Since(started) > stableAfter {
			l.attempt = 0
		}
		var fatal *fatalError
		switch {
		case ctx.Err() != nil:
			return
		case errors.As(err, &fatal):
			l.give(ctx, event{err: fatal.err})
			return
		case !l.reached:
			l.give(ctx, event{err: fmt.Errorf("%w: %s: %w", errUnreachable, l.o.server, err)})
			return
		case attached:
			l.give(ctx, event{lost: true})
		}
		if !sleep(ctx, l.retryDelay()) {
			return
		}
	}
}

func (l *wireLink) retryDelay() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closing >= 0 {
		return l.mu.closing + jitter(retryBase)
	}
	most := min(retryCap, retryBase<<min(l.attempt, 10))
	l.attempt++
	return jitter(most)
}

// jitter is up to d, so that the clients of a restarted server do not come all at once.
func jitter(d time.Duration) time.Duration { return rand.N(max(d, 1)) }

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// fatalError ends the link.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }
func (e *fatalError) Unwrap() error { return e.err }

// give hands an event to the chat.
func (l *wireLink) give(ctx context.Context, ev event) {
	select {
	case l.events <- ev:
	case <-ctx.Done():
	}
}

// connection is one connection from its handshake to its end. It reports whether it was attached.
func (l *wireLink) connection(ctx context.Context) (attached bool, err error) {
	ws, err := l.dial(ctx)
	if err != nil {
		return false, err
	}
	defer ws.Close()
	defer context.AfterFunc(ctx, func() { ws.Close() })()
	defer l.detach()
	in := &wire{ws: ws, interval: defaultPing}
	ws.SetPingHandler(in.pinged)
	if err := in.send(&wirepb.Frame{Body: &wirepb.Frame_Hello{Hello: &wirepb.Hello{Version: 1, Client: l.o.client}}}); err != nil {
		return false, err
	}
	for {
		f, err := in.read()
		if err != nil {
			return attached, l.closed(err, in.refusal)
		}
		now, err := l.frame(ctx, in, f)
		attached = attached || now
		if err != nil {
			return attached, err
		}
	}
}

func (l *wireLink) dial(ctx context.Context) (*websocket.Conn, error) {
	u := *l.o.server
	u.Scheme = strings.Replace(u.Scheme, "http", "ws", 1)
	u = *u.JoinPath("v1/ws")
	d := websocket.Dialer{HandshakeTimeout: connectTimeout, Subprotocols: []string{"holdfast.v1"}, Proxy: http.ProxyFromEnvironment}
	ws, resp, err := d.DialContext(ctx, u.String(), nil)
	if err == nil {
		return ws, nil
	}
	if resp == nil {
		return nil, err
	}
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, &fatalError{proto.Errorf(proto.CodeForbidden, "%s answers HTTP %s", u.String(), resp.Status)}
	case http.StatusNotFound, http.StatusOK:
		return nil, &fatalError{fmt.Errorf("%w: %s answers HTTP %s: this is not a holdfast server", errUnreachable, u.String(), resp.Status)}
	}
	return nil, fmt.Errorf("HTTP %s: %w", resp.Status, err)
}

// closed turns the end of a connection into a reason to try again, or not.
func (l *wireLink) closed(err error, refusal *proto.Error) error {
	var c *websocket.CloseError
	if !errors.As(err, &c) || c.Code < 4000 || c.Code > 4999 {
		return err
	}
	if refusal == nil {
		refusal = proto.Errorf(proto.CodeForbidden, "the server ended the connection: %s (%d)", clean(c.Text), c.Code)
	}
	return &fatalError{refusal}
}

// wire is one connection. read is for run's goroutine; send is for it too until the attachment, afterwards for
// whoever holds the link's mu.
type wire struct {
	ws        *websocket.Conn
	interval  time.Duration // of the server's pings
	namespace string        // of the principal
	request   uint64        // of the attachment that is asked for
	attached  bool
	refusal   *proto.Error // about the connection; a close follows
}

func (w *wire) send(f *wirepb.Frame) error {
	b, err := protobuf.Marshal(f)
	if err != nil {
		return err
	}
	if err := w.ws.SetWriteDeadline(time.Now().Add(connectTimeout)); err != nil {
		return err
	}
	return w.ws.WriteMessage(websocket.BinaryMessage, b)
}

// alive grants the server two and a half of its own ping intervals until the next sign of life.
func (w *wire) alive() error { return w.ws.SetReadDeadline(time.Now().Add(w.interval * 5 / 2)) }

func (w *wire) pinged(payload string) error {
	err := w.ws.WriteControl(websocket.PongMessage, []byte(payload), time.Now().Add(connectTimeout))
	if err != nil && !errors.Is(err, websocket.ErrCloseSent) && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return w.alive()
}

func (w *wire) read() (*wirepb.Frame, error) {
	if err := w.alive(); err != nil {
		return nil, err
	}
	_, b, err := w.ws.ReadMessage()
	if err != nil {
		return nil, err
	}
	f := &wirepb.Frame{}
	if err := protobuf.Unmarshal(b, f); err != nil {
		return nil, fmt.Errorf("decode a frame of the server: %w", err)
	}
	return f, nil
}
