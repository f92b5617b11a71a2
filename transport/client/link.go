package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

const (
	subprotocol = "holdfast.v1"
	version     = 1
	// maxFrame bounds what one frame of the server may cost.
	maxFrame = 64 << 20
)

// fatal is an error after which another connection cannot help.
type fatal struct{ err error }

func (f *fatal) Error() string { return f.err.Error() }
func (f *fatal) Unwrap() error { return f.err }

// delayed is an error with the server's own wish for when to come back.
type delayed struct {
	err   error
	after time.Duration
}

func (d *delayed) Error() string { return d.err.Error() }
func (d *delayed) Unwrap() error { return d.err }

// link is one connection. Its reader is the client's run, its writer a goroutine that run waits for.
type link struct {
	c       *Client
	ws      *websocket.Conn
	welcome *wirepb.Welcome
	since   time.Time
	heard   atomic.Bool

	out     []*wirepb.Frame // guarded by c.mu
	kick    chan struct{}   // buffered: out has something
	stopped chan struct{}   // closed when the reader has ended

	// The reader's.
	refused *wirepb.Error // about the connection: a close follows
	closing *wirepb.Closing
}

// connect makes a connection, as far as Welcome.
func (c *Client) connect(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	limit := c.o.Clock.AfterFunc(c.o.ConnectTimeout, cancel)
	defer limit.Stop()
	header := c.o.Header.Clone()
	if c.o.Token != nil {
		token, err := c.o.Token(ctx)
		if err != nil {
			return nil, fmt.Errorf("get a token: %w", err)
		}
		if header == nil {
			header = http.Header{}
		}
		header.Set("Authorization", "Bearer "+token)
	}
	d := websocket.Dialer{
		Proxy: http.ProxyFromEnvironment, NetDialContext: c.o.DialContext, Subprotocols: []string{subprotocol},
		ReadBufferSize: 4 << 10, WriteBufferSize: 1 << 10,
	}
	conn, resp, err := d.DialContext(ctx, c.url.String(), header) //nolint:bodyclose // gorilla has read it
	if err != nil {
		return nil, handshakeError(resp, err)
	}
	l := &link{c: c, ws: conn, since: c.o.Clock.Now(), kick: make(chan struct{}, 1), stopped: make(chan struct{})}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := l.greet(); err != nil {
		conn.Close()
		return nil, err
	}
	return l, nil
}

// handshakeError sorts the refusals of a handshake: those for which the request is to blame are fatal.
func handshakeError(resp *http.Response, err error) error {
	if resp == nil {
		return err
	}
	err = fmt.Errorf("the server answered %s: %w", resp.Status, err)
	retryAfter, convErr := strconv.Atoi(resp.Header.Get("Retry-After"))
	switch s := resp.StatusCode; {
	case s == http.StatusRequestTimeout || s == http.StatusTooEarly || s == http.StatusTooManyRequests || s >= 500:
		if convErr == nil && retryAfter >= 0 {
			return &delayed{err, time.Duration(retryAfter) * time.Second}
		}
		return err
	default:
		return &fatal{err}
	}
}

func (l *link) greet() error {
	l.ws.SetReadLimit(maxFrame)
	l.ws.SetPongHandler(nil)
	ping := l.ws.PingHandler()
	l.ws.SetPingHandler(func(payload string) error {
		l.heard.Store(true)
		return ping(payload)
	})
	hello := &wirepb.Frame{Body: &wirepb.Frame_Hello{Hello: &wirepb.Hello{Version: version, Client: l.c.o.Name}}}
	if err := l.write(hello); err != nil {
		return err
	}
	for {
		f, _, err := l.read()
		if err != nil {
			return l.explain(err)
		}
		switch b := f.Body.(type) {
		case *wirepb.Frame_Welcome:
			l.welcome = b.Welcome
			return nil
		case *wirepb.Frame_Error:
			l.refused = b.Error
		case *wirepb.Frame_Closing:
			l.closing = b.Closing
		}
	}
}

func (l *link) write(f *wirepb.Frame) error {
	b, err := pb.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode a frame: %w", err)
	}
	return l.ws.WriteMessage(websocket.BinaryMessage, b)
}

// read returns the next frame, and the bytes of the entry in it.
func (l *link) read() (*wirepb.Frame, []byte, error) {
	kind, b, err := l.ws.ReadMessage()
	if err != nil {
		return nil, nil, err
	}
	l.heard.Store(true)
	if kind != websocket.BinaryMessage {
		return nil, nil, errors.New("the server sent text on a binary subprotocol")
	}
	f := &wirepb.Frame{}
	if err := pb.Unmarshal(b, f); err != nil {
		return nil, nil, fmt.Errorf("decode a frame of the server: %w", err)
	}
	if f.GetEntry() == nil {
		return f, nil, nil
	}
	raw, err := entryBytes(b)
	return f, raw, err
}

// entryBytes finds Frame.entry in a marshaled frame that was decoded before.
func entryBytes(frame []byte) ([]byte, error) {
	const entryField = 30
	for len(frame) > 0 {
		num, typ, n := protowire.ConsumeTag(frame)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		size := protowire.ConsumeFieldValue(num, typ, frame[n:])
		if size < 0 {
			return nil, protowire.ParseError(size)
		}
		if num == entryField && typ == protowire.BytesType {
			v, _ := protowire.ConsumeBytes(frame[n:])
			return v, nil
		}
		frame = frame[n+size:]
	}
	return nil, errors.New("the frame has no entry")
}

// explain makes of a read's error what the server has said about it.
func (l *link) explain(err error) error {
	if l.refused != nil {
		err = fmt.Errorf("%w (%w)", refusal(l.refused), err)
	}
	var closed *websocket.CloseError
	if errors.As(err, &closed) && terminal(closed.Code) {
		return &fatal{err}
	}
	if l.closing != nil {
		return &delayed{err, time.Duration(l.closing.ReconnectAfterMs) * time.Millisecond}
	}
	if l.refused.GetRetryAfterMs() > 0 {
		return &delayed{err, time.Duration(l.refused.RetryAfterMs) * time.Millisecond}
	}
	return err
}

// terminal says that a close code speaks against trying again.
func terminal(code int) bool {
	switch code {
	case websocket.CloseProtocolError, websocket.CloseUnsupportedData, websocket.CloseInvalidFramePayloadData,
		websocket.ClosePolicyViolation, websocket.CloseMessageTooBig, websocket.CloseMandatoryExtension:
		return true
	}
	return code >= 4000 && code <= 4999
}

// sendLocked queues a frame. The queue is as long as what callers wait for.
func (l *link) sendLocked(f *wirepb.Frame) {
	l.out = append(l.out, f)
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// writeOut is the writer.
func (l *link) writeOut(done chan<- struct{}) {
	defer close(done)
	for {
		select {
		case <-l.kick:
		case <-l.stopped:
			return
		}
		l.c.mu.Lock()
		out := l.out
		l.out = nil
		l.c.mu.Unlock()
		for _, f := range out {
			late := l.c.o.Clock.AfterFunc(l.c.o.WriteTimeout, func() { l.ws.Close() })
			err := l.write(f)
			late.Stop()
			if err != nil {
				l.ws.Close() // the reader tells
				return
			}
		}
	}
}

// watch closes the connection when the server has been silent for two of its ping intervals.
func (l *link) watch() (stop func()) {
	every := time.Duration(l.welcome.PingIntervalMs) * time.Millisecond
	if every <= 0 {
		return func() {}
	}
	return repeat(l.c.o.Clock, 2*every, func() bool {
		if l.heard.Swap(false) {
			return true
		}
		l.ws.Close()
		return false
	})
}

// run keeps a connection, beginning with l, until the client ends.
func (c *Client) run(l *link) {
	defer close(c.done)
	for attempt := 0; ; {
		err := error(nil)
		if l == nil {
			l, err = c.connect(c.ctx)
		}
		if l != nil {
			err = c.serve(l)
			if c.o.Clock.Now().Sub(l.since) >= stableAfter {
				attempt = 0
			}
			l = nil
		}
		var gone *fatal
		if errors.As(err, &gone) {
			c.end(fmt.Errorf("client: the server does not take this client: %w", gone.err))
		}
		if c.Err() != nil {
			return
		}
		wait := c.backoff(attempt)
		var told *delayed
		if errors.As(err, &told) {
			wait = told.after + time.Duration(c.o.Random()*float64(c.o.RetryBase))
		}
		attempt++
		c.o.Logger.Debug("connecting again", "after", wait, "cause", err)
		if c.sleep(c.ctx, wait) != nil {
			c.end(ErrClosed)
			return
		}
	}
}

// serve reads a connection until it ends, and returns why.
func (c *Client) serve(l *link) error {
	defer context.AfterFunc(c.ctx, func() {
		bye := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
		l.ws.WriteControl(websocket.CloseMessage, bye, time.Now().Add(time.Second)) // best effort: the server would notice anyway
		l.ws.Close()
	})()
	stopWatch := l.watch()
	defer stopWatch()
	written := make(chan struct{})
	go l.writeOut(written)
	c.mu.Lock()
	if c.mu.err == nil {
		c.linkedLocked(l)
	}
	c.mu.Unlock()
	var cause error
	for cause == nil {
		f, raw, err := l.read()
		if err != nil {
			cause = l.explain(err)
			break
		}
		c.mu.Lock()
		c.receivedLocked(l, f, raw)
		c.mu.Unlock()
	}
	l.ws.Close()
	close(l.stopped)
	<-written
	c.mu.Lock()
	c.unlinkedLocked(cause)
	c.mu.Unlock()
	return cause
}

// receivedLocked sorts a frame of the server. What it does not know is of a later protocol, and is ignored.
func (c *Client) receivedLocked(l *link, f *wirepb.Frame, raw []byte) {
	switch b := f.Body.(type) {
	case *wirepb.Frame_Closing:
		l.closing = b.Closing
		return
	case *wirepb.Frame_Error:
		if f.Request == 0 && f.Object == "" {
			l.refused = b.Error
			return
		}
	}
	if k := c.mu.calls[f.Request]; f.Request != 0 && k != nil && k.sent {
		c.answeredLocked(k, f)
		return
	}
	if a := c.mu.attachments[f.Object]; a != nil {
		a.receivedLocked(f, raw)
	}
}

// backoff is a random part of a bound that doubles with each failure.
func (c *Client) backoff(attempt int) time.Duration {
	bound := c.o.RetryCap
	if attempt < 16 {
		bound = min(bound, c.o.RetryBase<<attempt)
	}
	return time.Duration(c.o.Random() * float64(bound))
}

// sleep waits, unless ctx or the client ends first.
func (c *Client) sleep(ctx context.Context, d time.Duration) error {
	passed := make(chan struct{})
	t := c.o.Clock.AfterFunc(d, func() { close(passed) })
	defer t.Stop()
	select {
	case <-passed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.ctx.Done():
		return ErrClosed
	}
}

// pop takes the first element of s.
func pop[T any](s *[]T) T {
	v := (*s)[0]
	var zero T
	(*s)[0] = zero
	*s = (*s)[1:]
	if len(*s) == 0 {
		*s = slices.Clip((*s)[:0])
	}
	return v
}
