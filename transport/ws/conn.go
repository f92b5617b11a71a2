package ws

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
)

// ErrTooLarge says that a message is longer than the limit given to Read. The connection cannot be read on.
var ErrTooLarge = errors.New("ws: message exceeds the read limit")

// CloseError says that the connection ends in an orderly way and which close frame to send: the peer's own code back,
// or what its violation calls for.
type CloseError struct {
	Code     int
	Reason   string
	Received bool // the peer has sent a close frame: it waits for ours, and sends nothing more
}

func (e *CloseError) Error() string {
	who := "violated by the peer"
	if e.Received {
		who = "closed by the peer"
	}
	return fmt.Sprintf("ws: %s: close %d %q", who, e.Code, e.Reason)
}

// readBuffer is small because most connections are idle and most messages short; longer reads bypass it.
const readBuffer = 1024

// writeChunk is the piece of a Write whose completion counts as progress.
const writeChunk = 16 << 10

// gorillaBadReason is gorilla's answer to a close reason that is not UTF-8, which it calls a protocol error (1002).
const gorillaBadReason = "invalid utf8 payload in close frame"

// Options of Upgrade.
type Options struct {
	// Subprotocols in order of preference. Empty: none is negotiated.
	Subprotocols []string
	// OnPing is called by Read with the payload of a ping, which it must copy. It should send a pong.
	OnPing func(payload []byte)
	// HandshakeTimeout bounds the writing of the response; 0 is 10 s.
	HandshakeTimeout time.Duration
}

// Conn is the server's end of a WebSocket. Read is for one goroutine, Write for one; the rest for any.
type Conn struct {
	stream *stream
	g      *websocket.Conn // reads; it never writes to the network

	kind    Opcode // of message; both are the reader's
	message io.Reader
}

// stream is the network connection as gorilla sees it.
type stream struct {
	net.Conn
	upgraded bool   // set before Read and Write may be called
	refusal  []byte // close frame that gorilla made; owned by the reader
	scanner  scanner

	heard    atomic.Bool
	received atomic.Uint64
	progress atomic.Uint64
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if n > 0 {
		s.heard.Store(true)
		s.received.Add(uint64(n))
		s.scanner.scan(p[:n])
	}
	return n, err
}

// Write passes the handshake's response. Later writes are close frames that gorilla answers a violation with: they are
// kept for Read to return, because only the caller's writer knows what must be sent before.
func (s *stream) Write(p []byte) (int, error) {
	if !s.upgraded {
		return s.Conn.Write(p)
	}
	s.refusal = append([]byte(nil), p...)
	return len(p), nil
}

// SetWriteDeadline of gorilla accompanies its writes, and must not cut those of the caller's writer.
func (s *stream) SetWriteDeadline(t time.Time) error {
	if s.upgraded {
		return nil
	}
	return s.Conn.SetWriteDeadline(t)
}

// hijacker hands gorilla a stream in place of the network connection.
type hijacker struct {
	http.ResponseWriter
	stream *stream
}

func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	h.stream = &stream{Conn: conn}
	return h.stream, rw, nil
}

// writeBuffers keeps gorilla from giving each connection a write buffer of its own; none is ever used.
var writeBuffers = &sync.Pool{}

// Upgrade answers an upgrade request. On an error the request has been answered or its connection closed. The caller
// has checked the origin.
func Upgrade(w http.ResponseWriter, r *http.Request, o Options) (*Conn, error) {
	if o.HandshakeTimeout == 0 {
		o.HandshakeTimeout = 10 * time.Second
	}
	up := websocket.Upgrader{
		HandshakeTimeout: o.HandshakeTimeout,
		ReadBufferSize:   readBuffer,
		WriteBufferSize:  readBuffer,
		WriteBufferPool:  writeBuffers,
		Subprotocols:     o.Subprotocols,
		CheckOrigin:      func(*http.Request) bool { return true },
	}
	h := &hijacker{ResponseWriter: w}
	g, err := up.Upgrade(h, r, nil)
	if err != nil {
		return nil, fmt.Errorf("ws: upgrade: %w", err)
	}
	s := h.stream
	s.upgraded = true
	g.SetPingHandler(func(payload string) error {
		if o.OnPing != nil {
			o.OnPing([]byte(payload))
		}
		return nil
	})
	g.SetPongHandler(nil)
	g.SetCloseHandler(func(int, string) error { return nil })
	return &Conn{stream: s, g: g}, nil
}

// Subprotocol returns the negotiated one, or "".
func (c *Conn) Subprotocol() string { return c.g.Subprotocol() }

// RemoteAddr is the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.stream.RemoteAddr() }

// Next waits for the next message, of which Read then gives the content. It answers nothing itself: an error of type
// *CloseError says what to send, any other that the network failed.
func (c *Conn) Next() (Opcode, error) {
	kind, r, err := c.g.NextReader()
	if err != nil {
		return 0, c.violation(err)
	}
	c.kind, c.message = Opcode(kind), r
	return c.kind, nil
}

// Read appends the message that Next announced to dst and returns it. Its errors are those of Next, and ErrTooLarge
// when the message has more than limit bytes.
func (c *Conn) Read(dst []byte, limit int) ([]byte, error) {
	r := c.message
	c.message = nil
	start := len(dst)
	var text textCheck
	for {
		if len(dst) == cap(dst) {
			dst = append(dst, 0)[:len(dst)]
		}
		room := min(cap(dst), start+limit+1)
		n, err := r.Read(dst[len(dst):room])
		dst = dst[:len(dst)+n]
		if len(dst)-start > limit {
			return dst, ErrTooLarge
		}
		if err != nil && err != io.EOF {
			return dst, c.violation(err)
		}
		if c.kind == Text && !text.feed(dst[start:], err == io.EOF) {
			return dst, &CloseError{Code: CloseInvalidText, Reason: "text is not utf-8"}
		}
		if err == io.EOF {
			return dst, nil
		}
	}
}

// violation tells an orderly end from a broken network.
func (c *Conn) violation(err error) error {
	var closed *websocket.CloseError
	if errors.As(err, &closed) && c.stream.refusal == nil {
		switch {
		case closed.Code == CloseNoStatus && c.stream.scanner.shortClose:
			return &CloseError{Code: CloseProtocolError, Reason: "close payload of one byte", Received: true}
		case closed.Code == websocket.CloseAbnormalClosure:
			return fmt.Errorf("ws: read: %w", io.ErrUnexpectedEOF)
		}
		return &CloseError{Code: closed.Code, Received: true}
	}
	if len(c.stream.refusal) >= 4 {
		payload := c.stream.refusal[2:]
		e := &CloseError{Code: int(binary.BigEndian.Uint16(payload)), Reason: string(payload[2:])}
		if e.Reason == gorillaBadReason {
			e.Code, e.Reason = CloseInvalidText, "close reason is not utf-8"
		}
		return e
	}
	if errors.Is(err, websocket.ErrReadLimit) { // a length with its highest bit set
		return &CloseError{Code: CloseProtocolError, Reason: "length out of range"}
	}
	return fmt.Errorf("ws: read: %w", err)
}

// Discard reads and drops what the peer still sends, until it ends or Close is called. Data that is unread when a
// connection is closed makes TCP reset it, and the peer then loses what was sent last.
func (c *Conn) Discard() { io.Copy(io.Discard, c.stream.Conn) }

// Write sends frames made with the Append functions. After an error the connection is of no use.
func (c *Conn) Write(p []byte) error {
	c.stream.progress.Add(1)
	for len(p) > 0 {
		n, err := c.stream.Conn.Write(p[:min(len(p), writeChunk)])
		c.stream.progress.Add(uint64(n))
		if err != nil {
			return fmt.Errorf("ws: write: %w", err)
		}
		p = p[n:]
	}
	return nil
}

// CloseWrite tells the peer that nothing more comes, where the network can tell that.
func (c *Conn) CloseWrite() {
	if half, ok := c.stream.Conn.(interface{ CloseWrite() error }); ok {
		half.CloseWrite()
	}
}

// Progress is a number that changes whenever Write begins, and whenever it gets something out.
func (c *Conn) Progress() uint64 { return c.stream.progress.Load() }

// Heard reports whether anything has come from the peer since the last call.
func (c *Conn) Heard() bool { return c.stream.heard.Swap(false) }

// Received is the number of bytes read so far.
func (c *Conn) Received() uint64 { return c.stream.received.Load() }

// Close closes the network connection; Read and Write return.
func (c *Conn) Close() error { return c.stream.Close() }
