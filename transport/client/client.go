package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"

	pb "google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/internal/clock"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

var (
	// ErrClosed says that Close was called.
	ErrClosed = errors.New("client: closed")
	// ErrUncertain says that the connection broke before a request that must not be sent twice was answered.
	ErrUncertain = errors.New("client: the connection broke before the answer; the request may have been served")
)

// Client is a connection to one server that comes back by itself. Its methods are safe for concurrent use.
//
// One goroutine (run) makes connections and reads them; each connection has a writer beside it. Neither waits for a
// caller.
type Client struct {
	o    Options
	url  *url.URL
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	done chan struct{} // closed when run has returned

	mu struct {
		sync.Mutex
		link        *link // nil between connections
		welcome     *wirepb.Welcome
		request     uint64           // last used number
		calls       map[uint64]*call // by the number that they were last sent with, or wait under
		attachments map[string]*Attachment
		err         error // why the client has ended
	}
}

// call is a Submit or Stop that waits for its answer.
type call struct {
	object string
	submit *wirepb.Submit
	stop   *wirepb.Stop
	seq    uint64 // number of the first sending: the order in which calls are sent again
	number uint64 // key in calls
	sent   bool   // on the present connection, or waiting to be sent again on it
	retry  clock.Timer
	answer chan answer // buffered
}

type answer struct {
	frame *wirepb.Frame
	err   error
}

// NewMessageID returns an id that nobody else chooses.
func NewMessageID() string { return rand.Text() }

// Dial connects to a server, given as http(s) or ws(s) URL; without a path that of the protocol is used. Unless
// Options.RetryFirst is set, a failure to make the first connection is returned; later ones are tried again.
func Dial(ctx context.Context, server string, o Options) (*Client, error) {
	u, err := socketURL(server)
	if err != nil {
		return nil, err
	}
	c := &Client{o: o.withDefaults(), url: u, done: make(chan struct{})}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.mu.calls = make(map[uint64]*call)
	c.mu.attachments = make(map[string]*Attachment)
	var l *link
	for attempt := 0; ; attempt++ {
		if l, err = c.connect(ctx); err == nil {
			break
		}
		var gone *fatal
		if !c.o.RetryFirst || errors.As(err, &gone) {
			break
		}
		if err2 := c.sleep(ctx, c.backoff(attempt)); err2 != nil {
			err = errors.Join(err, err2)
			break
		}
	}
	if err != nil {
		c.stop()
		return nil, fmt.Errorf("client: connect to %s: %w", u.Redacted(), err)
	}
	c.mu.welcome = l.welcome // run may begin later than the caller asks for an Address
	go c.run(l)
	return c, nil
}

func socketURL(server string) (*url.URL, error) {
	u, err := url.Parse(server)
	if err != nil {
		return nil, fmt.Errorf("client: server url: %w", err)
	}
	switch u.Scheme {
	case "http":
		u.Scheme = "ws"
	case "https":
		u.Scheme = "wss"
	case "ws", "wss":
	default:
		return nil, fmt.Errorf("client: server url %q: want http, https, ws or wss, as in http://127.0.0.1:8420", u.Redacted())
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/ws"
	}
	return u, nil
}

// Welcome is what the server said of itself and of who we are, at the last connection.
func (c *Client) Welcome() *wirepb.Welcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.welcome
}

// Address is that of an object in the principal's namespace.
func (c *Client) Address(kind, name string) string {
	return c.Welcome().GetNamespace() + "/" + kind + "/" + name
}

// Err is why the client has ended, nil while it has not.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.err
}

// Close ends the client and waits for its goroutines. Turns go on at the server.
func (c *Client) Close() error {
	c.end(ErrClosed)
	c.stop()
	<-c.done
	return nil
}

// end settles everything that waits. The first reason counts.
func (c *Client) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.err != nil {
		return
	}
	c.mu.err = err
	for _, k := range c.mu.calls {
		c.settleLocked(k, answer{err: err})
	}
	for _, a := range c.mu.attachments {
		a.endLocked(err)
	}
}

// Submit sends a message until it is accepted, refused for good (a *proto.Error), or ctx ends. When ctx ends the
// message may still have been accepted: submit it again, with the same id, to know.
func (c *Client) Submit(ctx context.Context, object string, m *wirepb.Submit) (*wirepb.Accepted, error) {
	k := &call{object: object, submit: m}
	if limit := c.Welcome().GetMaxFrameBytes(); limit > 0 {
		if n := pb.Size(k.frame()); n > int(limit)-maxNumberBytes {
			return nil, proto.Errorf(proto.CodeTooLarge, "the message takes %d bytes, and the server takes %d", n, limit)
		}
	}
	f, err := c.call(ctx, k)
	if err != nil {
		return nil, err
	}
	if a := f.GetAccepted(); a != nil {
		return a, nil
	}
	return nil, proto.Errorf(proto.CodeInvalidFrame, "the server answered a Submit with %T", f.Body)
}

// maxNumberBytes is what Frame.request adds to the size of a frame.
const maxNumberBytes = 11

// Stop ends a turn. Turn 0, the live one, may be another by the time that a connection is made again: it is sent once,
// and ErrUncertain tells of a lost answer.
func (c *Client) Stop(ctx context.Context, object string, turn uint64) (*wirepb.Stopping, error) {
	f, err := c.call(ctx, &call{object: object, stop: &wirepb.Stop{Turn: turn}})
	if err != nil {
		return nil, err
	}
	if s := f.GetStopping(); s != nil {
		return s, nil
	}
	return nil, proto.Errorf(proto.CodeInvalidFrame, "the server answered a Stop with %T", f.Body)
}

// call sends k and waits for its answer.
func (c *Client) call(ctx context.Context, k *call) (*wirepb.Frame, error) {
	k.answer = make(chan answer, 1)
	c.mu.Lock()
	if c.mu.err != nil {
		defer c.mu.Unlock()
		return nil, c.mu.err
	}
	c.mu.request++
	k.seq, k.number = c.mu.request, c.mu.request
	c.mu.calls[k.number] = k
	c.sendCallLocked(k)
	c.mu.Unlock()
	select {
	case a := <-k.answer:
		return a.frame, a.err
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settleLocked(k, answer{err: context.Cause(ctx)})
	a := <-k.answer // an answer that came first wins
	return a.frame, a.err
}

func (k *call) frame() *wirepb.Frame {
	f := &wirepb.Frame{Object: k.object, Request: k.number}
	if k.submit != nil {
		f.Body = &wirepb.Frame_Submit{Submit: k.submit}
	} else {
		f.Body = &wirepb.Frame_Stop{Stop: k.stop}
	}
	return f
}

// sendCallLocked sends k on the present connection, under a new number, so that a late answer to an earlier sending is
// nobody's.
func (c *Client) sendCallLocked(k *call) {
	if c.mu.link == nil || k.sent {
		return
	}
	delete(c.mu.calls, k.number)
	c.mu.request++
	k.number, k.sent = c.mu.request, true
	c.mu.calls[k.number] = k
	c.mu.link.sendLocked(k.frame())
}

// settleLocked answers k, once.
func (c *Client) settleLocked(k *call, a answer) {
	if c.mu.calls[k.number] != k {
		return
	}
	delete(c.mu.calls, k.number)
	if k.retry != nil {
		k.retry.Stop()
	}
	k.answer <- a
}

// answeredLocked handles a reply to a call.
func (c *Client) answeredLocked(k *call, f *wirepb.Frame) {
	e := f.GetError()
	switch {
	case e == nil:
		c.settleLocked(k, answer{frame: f})
	case !e.Retryable || k.uncertain():
		c.settleLocked(k, answer{err: refusal(e)})
	default:
		k.retry = c.o.Clock.AfterFunc(c.retryDelay(e), func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.mu.calls[k.number] == k {
				k.sent, k.retry = false, nil
				c.sendCallLocked(k)
			}
		})
	}
}

// uncertain says that a call must not be sent a second time.
func (k *call) uncertain() bool { return k.stop != nil && k.stop.Turn == 0 }

// retryDelay is what the server asks for, and up to half as much again.
func (c *Client) retryDelay(e *wirepb.Error) time.Duration {
	d := time.Duration(e.RetryAfterMs) * time.Millisecond
	if d <= 0 {
		d = time.Second
	}
	return d + time.Duration(c.o.Random()*float64(d)/2)
}

// linkedLocked makes l the connection: what waits for an answer is sent again in its first order, and each attachment
// goes on from its cursor.
func (c *Client) linkedLocked(l *link) {
	c.mu.link, c.mu.welcome = l, l.welcome
	calls := slices.SortedFunc(maps.Values(c.mu.calls), func(a, b *call) int { return int(int64(a.seq - b.seq)) })
	for _, k := range calls {
		c.sendCallLocked(k)
	}
	for _, a := range c.mu.attachments {
		a.attachLocked()
	}
}

// unlinkedLocked notes that the connection is gone.
func (c *Client) unlinkedLocked(cause error) {
	c.mu.link = nil
	for _, k := range c.mu.calls {
		if k.sent && k.uncertain() {
			c.settleLocked(k, answer{err: fmt.Errorf("%w: %w", ErrUncertain, cause)})
			continue
		}
		k.sent = false
		if k.retry != nil { // the next connection sends it
			k.retry.Stop()
			k.retry = nil
		}
	}
	for _, a := range c.mu.attachments {
		a.lostLocked(cause)
	}
}

// refusal is the error of a client for the server's.
func refusal(e *wirepb.Error) *proto.Error {
	return &proto.Error{
		Code: proto.Code(e.Code), Message: e.Message, Hint: e.Hint,
		RetryAfter: time.Duration(e.RetryAfterMs) * time.Millisecond, FirstHeld: e.FirstHeld, Present: e.Present,
	}
}
