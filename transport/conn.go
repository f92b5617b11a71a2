package transport

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-ai/holdfast/internal/clock"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/transport/ws"
)

// Conn is one connection. Its reader goroutine is run; a writer goroutine (write) exists only while there is output;
// an attach goroutine exists while the Dispatcher opens a cursor. run outlives them all.
//
// Rules:
//
//  1. Only the writer writes to the network, and only the writer calls Next and Close of a cursor while it runs;
//     run closes those that are left when no writer can start any more.
//  2. The phase only grows. From phaseClosing on no request is taken up and no attachment is pulled; from phaseDead on
//     no goroutine is started.
//  3. Nothing is done under mu but bookkeeping: no I/O, no call into Dispatcher or cursor.
type Conn struct {
	// Set before run, then read only.
	s         *Server
	id        uint64
	ws        *ws.Conn
	codec     codec // nil: echo
	principal proto.Principal
	denied    *proto.Error // why the client may not connect
	echo      bool
	ctx       context.Context // of this connection: ends when it begins to close
	cancel    context.CancelFunc

	// The reader's.
	malformed int
	received  uint64 // bytes that metrics know of

	mu struct {
		sync.Mutex
		phase       phase
		reason      string // why the connection ended
		linger      bool   // the peer may still be sending what is not read any more
		closing     closing
		draining    bool
		writing     bool // a writer runs
		out         []outgoing
		pong        []byte // answer to the peer's last ping; nil: none
		ping        bool   // a ping is to be sent
		probed      bool   // a ping was sent at the last tick
		attachments map[string]*attachment
		ready       []*attachment // may have items, in turn
		dropped     []*attachment // cursors to close
		inFlight    int
		stops       int
		space       chan struct{} // the reader waits for room in out
		timer       clock.Timer   // Hello, then pings, then the closing handshake
		drainTimer  clock.Timer
		stall       clock.Timer
		flush       uint64 // number of the flush under way; 0: none
		flushes     uint64
	}
	wg sync.WaitGroup // writer and attach goroutines; added to under mu, before phaseDead
}

type phase uint8

const (
	phaseGreeting phase = iota // Hello is awaited
	phaseOpen
	phaseClosing // what is queued is written, then the close frame
	phaseDead    // the network connection is closed
)

// outgoing is one message of the control lane: a frame, or an echo's message.
type outgoing struct {
	frame   *wirepb.Frame
	message []byte
	kind    ws.Opcode
}

// closing is how a connection ends.
type closing struct {
	error  *wirepb.Error   // sent first, unless nil
	notice *wirepb.Closing // sent next, unless nil
	code   int
	text   string
	// final: the peer's close frame is not waited for, because it has come, or because the peer is gone.
	final   bool
	sent    bool // the writer has taken it up
	written bool
}

// encoding names the codec for metrics and logs.
func (c *Conn) encoding() string {
	if c.codec == nil {
		return "echo"
	}
	return c.codec.name()
}

// log returns a logger that knows the connection. It is made when it is needed: most connections log twice.
func (c *Conn) log() *slog.Logger {
	return c.s.o.Logger.With("conn", c.id, "remote", c.ws.RemoteAddr().String(),
		"namespace", c.principal.Namespace, "user", c.principal.User)
}

// run serves the connection until it ends.
func (c *Conn) run() {
	defer c.s.wg.Done()
	c.log().Debug("connected", "encoding", c.encoding())
	c.start()
	c.finish(c.read())
}

// start arms the first timer, or refuses the connection.
func (c *Conn) start() {
	if c.denied != nil {
		c.refuseConn(c.denied)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.phase != phaseGreeting {
		return
	}
	if c.echo {
		c.openLocked()
		return
	}
	c.mu.timer = c.s.o.Clock.AfterFunc(c.s.o.HelloTimeout, func() {
		c.mu.Lock()
		late := c.mu.phase == phaseGreeting
		c.mu.Unlock()
		if late {
			c.refuseConn(proto.Errorf(proto.CodeIdleTimeout, "no Hello within %s", c.s.o.HelloTimeout))
		}
	})
}

// openLocked begins the phase in which requests are served and pings are sent.
func (c *Conn) openLocked() {
	c.mu.phase = phaseOpen
	c.stopTimerLocked()
	c.mu.timer = c.s.o.Clock.AfterFunc(c.s.o.PingInterval, c.tick)
}

func (c *Conn) stopTimerLocked() {
	if c.mu.timer != nil {
		c.mu.timer.Stop()
		c.mu.timer = nil
	}
}

// tick sends a ping, and ends the connection if nothing has come since the one before.
func (c *Conn) tick() {
	heard := c.ws.Heard()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.phase != phaseOpen {
		return
	}
	paused := c.mu.space != nil // nothing is heard because nothing is read: WriteTimeout watches this one
	if c.mu.probed && !heard && !paused {
		c.beginCloseLocked(closing{
			notice: &wirepb.Closing{Code: string(proto.CodeIdleTimeout)},
			code:   Lookup(proto.CodeIdleTimeout).Close, text: string(proto.CodeIdleTimeout), final: true,
		}, string(proto.CodeIdleTimeout))
		return
	}
	c.mu.probed, c.mu.ping = true, true
	c.startWriterLocked()
	c.mu.timer = c.s.o.Clock.AfterFunc(c.s.o.PingInterval, c.tick)
}

// pinged answers a WebSocket ping. Only the newest is answered when they come faster than pongs go out.
func (c *Conn) pinged(payload []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.pong = append(make([]byte, 0, len(payload)), payload...)
	c.startWriterLocked()
}

// read handles messages until the connection can be read no more, and says why.
func (c *Conn) read() error {
	limit := c.s.o.MaxFrameBytes
	if c.echo {
		limit = max(limit, echoLimit)
	}
	for {
		kind, err := c.ws.Next()
		if err != nil {
			return err
		}
		buf := c.s.buffers.Get().(*[]byte)
		message, err := c.ws.Read((*buf)[:0], limit)
		c.countReceived()
		if err == nil && c.currentPhase() < phaseClosing {
			c.handle(kind, message)
		}
		if cap(message) <= keptBuffer {
			*buf = message
		}
		c.s.buffers.Put(buf)
		if err != nil {
			return err
		}
		c.waitForRoom()
	}
}

// keptBuffer is the largest buffer that goes back to a pool: one long message must not be paid for ever.
const keptBuffer = 256 << 10

func (c *Conn) countReceived() {
	n := c.ws.Received()
	c.s.metrics.bytesIn.Add(float64(n - c.received))
	c.received = n
}

func (c *Conn) currentPhase() phase {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.phase
}

// waitForRoom keeps the reader from taking more requests than replies go out: the peer then feels TCP's back pressure.
func (c *Conn) waitForRoom() {
	c.mu.Lock()
	if len(c.mu.out) < c.s.o.MaxQueued && c.queuedBytesLocked() < 2*echoLimit || c.mu.phase >= phaseClosing {
		c.mu.Unlock()
		return
	}
	space := make(chan struct{})
	c.mu.space = space
	c.mu.Unlock()
	<-space
}

// queuedBytesLocked counts what echo has queued: replies are small, its messages are not.
func (c *Conn) queuedBytesLocked() int {
	n := 0
	if c.echo {
		for _, o := range c.mu.out {
			n += len(o.message)
		}
	}
	return n
}

func (c *Conn) signalSpaceLocked() {
	if c.mu.space != nil {
		close(c.mu.space)
		c.mu.space = nil
	}
}

// queueLocked adds to the control lane.
func (c *Conn) queueLocked(o outgoing) {
	if c.mu.phase >= phaseClosing && (c.mu.closing.sent || c.mu.phase == phaseDead) {
		return
	}
	c.mu.out = append(c.mu.out, o)
	c.startWriterLocked()
}

// send queues a frame.
func (c *Conn) send(f *wirepb.Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queueLocked(outgoing{frame: f})
}

// refuseConn tells the client why and closes with the code's close code.
func (c *Conn) refuseConn(e *proto.Error) {
	c.s.metrics.refused(e.Code)
	c.log().Info("closing a connection", "code", e.Code, "reason", e.Error())
	cl := closing{error: wireError(e), code: Lookup(e.Code).Close, text: string(e.Code)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.beginCloseLocked(cl, string(e.Code))
}

// beginCloseLocked starts the orderly end: what is queued, what closing says, a close frame, the peer's close frame.
// CloseTimeout bounds it. The first call counts.
func (c *Conn) beginCloseLocked(cl closing, reason string) {
	if c.mu.phase >= phaseClosing {
		return
	}
	c.mu.phase = phaseClosing
	c.mu.reason = reason
	c.mu.closing = cl
	c.stopTimerLocked()
	c.mu.timer = c.s.o.Clock.AfterFunc(c.s.o.CloseTimeout, func() { c.abort(reason) })
	c.cancel()
	c.signalSpaceLocked()
	c.startWriterLocked()
}

// abort closes the network connection; reader and writer end.
func (c *Conn) abort(reason string) {
	c.mu.Lock()
	if c.mu.phase == phaseDead {
		c.mu.Unlock()
		return
	}
	c.mu.phase = phaseDead
	if c.mu.reason == "" {
		c.mu.reason = reason
	}
	c.stopTimerLocked()
	for _, t := range []clock.Timer{c.mu.drainTimer, c.mu.stall} {
		if t != nil {
			t.Stop()
		}
	}
	c.signalSpaceLocked()
	c.mu.Unlock()
	c.cancel()
	c.ws.Close()
}

// finish ends the connection after its last message, and everything that belongs to it.
func (c *Conn) finish(cause error) {
	reason := "lost"
	var closed *ws.CloseError
	switch {
	case errors.As(cause, &closed):
		cl := closing{code: closed.Code, text: closed.Reason, final: closed.Received}
		reason = "peer"
		if closed.Reason != "" {
			reason = "protocol_error"
		}
		c.mu.Lock()
		c.mu.linger = !closed.Received
		c.beginCloseLocked(cl, reason)
		c.mu.Unlock()
	case errors.Is(cause, ws.ErrTooLarge):
		c.mu.Lock()
		c.mu.linger = true
		c.mu.Unlock()
		c.refuseConn(proto.Errorf(proto.CodeTooLarge, "a frame has more than %d bytes", c.s.o.MaxFrameBytes))
	default:
		c.abort(reason)
	}
	c.lingerOn()
	c.wg.Wait() // the writer ends after the close frame, or when CloseTimeout aborts
	c.abort(reason)
	c.wg.Wait()
	c.closeCursors()
	c.countReceived()
	c.mu.Lock()
	reason = c.mu.reason
	c.mu.Unlock()
	c.s.metrics.closed.WithLabelValues(reason).Inc()
	c.log().Debug("disconnected", "reason", reason, "cause", cause)
	c.s.unregister(c)
}

// lingerOn takes and drops what a peer still sends after its violation, until it has seen the end of what we send.
func (c *Conn) lingerOn() {
	c.mu.Lock()
	linger, written := c.mu.linger, c.mu.closing.written
	c.mu.Unlock()
	if !linger {
		return
	}
	if written { // before the violation came
		c.ws.CloseWrite()
	}
	c.ws.Discard()
}

// drain tells the client to come back after reconnect, and closes the connection after delay.
func (c *Conn) drain(delay, reconnect time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.phase >= phaseClosing || c.mu.draining {
		return
	}
	c.mu.draining = true
	reason := string(proto.CodeDraining)
	if c.codec != nil {
		notice := &wirepb.Closing{Code: reason, ReconnectAfterMs: uint32(reconnect.Milliseconds())}
		c.queueLocked(outgoing{frame: &wirepb.Frame{Body: &wirepb.Frame_Closing{Closing: notice}}})
	}
	c.mu.drainTimer = c.s.o.Clock.AfterFunc(delay, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.beginCloseLocked(closing{code: Lookup(proto.CodeDraining).Close, text: reason}, reason)
	})
}

// headerHas reports whether a comma-separated header holds a token.
func headerHas(h http.Header, key, token string) bool {
	for _, line := range h.Values(key) {
		for part := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(part), token) {
				return true
			}
		}
	}
	return false
}
