package transport

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// raw is a client that puts frames on the wire by hand.
type raw struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
}

func (r *rig) raw(t *testing.T) *raw {
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.http.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(conn, "GET /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	c := &raw{t: t, conn: conn, r: bufio.NewReader(conn)}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil || resp.StatusCode != 101 || resp.Header.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		t.Fatalf("handshake: %v %v", resp, err)
	}
	return c
}

const (
	fin   = 0x80
	cont  = 0
	text  = 1
	bin   = 2
	closE = 8
	ping  = 9
	pong  = 10
)

// frame is a masked frame with the shortest length form.
func frame(b0 byte, payload string) []byte {
	f := []byte{b0}
	switch n := len(payload); {
	case n <= 125:
		f = append(f, 0x80|byte(n))
	case n <= 0xffff:
		f = binary.BigEndian.AppendUint16(append(f, 0x80|126), uint16(n))
	default:
		f = binary.BigEndian.AppendUint64(append(f, 0x80|127), uint64(n))
	}
	return append(f, masked(payload)...)
}

func masked(payload string) []byte {
	mask := []byte{1, 2, 3, 4}
	b := append([]byte(nil), mask...)
	for i := range len(payload) {
		b = append(b, payload[i]^mask[i%4])
	}
	return b
}

func closeFrame(code int, reason string) []byte {
	return frame(fin|closE, string([]byte{byte(code >> 8), byte(code)})+reason)
}

// read returns the next frame of the server as "opcode payload".
func (c *raw) read() (string, error) {
	var head [2]byte
	if _, err := io.ReadFull(c.r, head[:]); err != nil {
		return "", err
	}
	if head[0]&0x70 != 0 || head[0]&fin == 0 || head[1]&0x80 != 0 {
		return "", fmt.Errorf("bad header %x of the server", head)
	}
	n := uint64(head[1])
	switch n {
	case 126:
		var b [2]byte
		io.ReadFull(c.r, b[:])
		n = uint64(binary.BigEndian.Uint16(b[:]))
	case 127:
		var b [8]byte
		io.ReadFull(c.r, b[:])
		n = binary.BigEndian.Uint64(b[:])
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(c.r, payload); err != nil {
		return "", err
	}
	switch op := head[0] & 0xf; op {
	case closE:
		if n == 0 {
			return "close", nil
		}
		return fmt.Sprintf("close %d", binary.BigEndian.Uint16(payload)), nil
	default:
		return fmt.Sprintf("%d %s", op, payload), nil
	}
}

func join(frames ...[]byte) []byte { return bytes.Join(frames, nil) }

// TestRFC6455 sends bytes and lists the frames that must come back before the connection ends. Where the client does
// not close, the test does, with 1000.
func TestRFC6455(t *testing.T) {
	bye := closeFrame(1000, "")
	big := strings.Repeat("b", 70_000)
	tests := []struct {
		name string
		send []byte
		want []string
	}{
		{"text", join(frame(fin|text, "hello"), bye), []string{"1 hello", "close 1000"}},
		{"empty text", join(frame(fin|text, ""), bye), []string{"1 ", "close 1000"}},
		{"binary that is not text", join(frame(fin|bin, "\xff\xfe"), bye), []string{"2 \xff\xfe", "close 1000"}},
		{"length of 125", join(frame(fin|bin, big[:125]), bye), []string{"2 " + big[:125], "close 1000"}},
		{"length of 126", join(frame(fin|bin, big[:126]), bye), []string{"2 " + big[:126], "close 1000"}},
		{"length of 65535", join(frame(fin|bin, big[:65535]), bye), []string{"2 " + big[:65535], "close 1000"}},
		{"length of 65536", join(frame(fin|bin, big[:65536]), bye), []string{"2 " + big[:65536], "close 1000"}},
		{"length with its highest bit", []byte{fin | bin, 0x80 | 127, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4}, []string{"close 1002"}},
		{"fragments", join(frame(text, "he"), frame(cont, ""), frame(cont, "ll"), frame(fin|cont, "o"), bye), []string{"1 hello", "close 1000"}},
		{"control frames between fragments", join(frame(text, "a"), frame(fin|ping, "p1"), frame(cont, "b"), frame(fin|ping, "p2"), frame(fin|cont, "c"), bye), []string{"10 p2", "1 abc", "close 1000"}},
		{"continuation of nothing", frame(fin|cont, "x"), []string{"close 1002"}},
		{"continuation after the end", join(frame(text, "a"), frame(fin|cont, "b"), frame(fin|cont, "c")), []string{"1 ab", "close 1002"}},
		{"new message inside a message", join(frame(text, "a"), frame(fin|text, "b")), []string{"close 1002"}},
		{"ping", join(frame(fin|ping, "payload"), bye), []string{"10 payload", "close 1000"}},
		{"ping of 125 bytes", join(frame(fin|ping, big[:125]), bye), []string{"10 " + big[:125], "close 1000"}},
		{"ping of 126 bytes", frame(fin|ping, big[:126]), []string{"close 1002"}},
		{"unasked pong", join(frame(fin|pong, "x"), frame(fin|text, "y"), bye), []string{"1 y", "close 1000"}},
		{"fragmented ping", frame(ping, "x"), []string{"close 1002"}},
		{"rsv1", frame(fin|0x40|text, "x"), []string{"close 1002"}},
		{"rsv2", frame(fin|0x20|text, "x"), []string{"close 1002"}},
		{"rsv3 on a control frame", frame(fin|0x10|ping, "x"), []string{"close 1002"}},
		{"reserved opcode 3", frame(fin|3, "x"), []string{"close 1002"}},
		{"reserved opcode 11", frame(fin|11, "x"), []string{"close 1002"}},
		{"not masked", []byte{fin | text, 1, 'x'}, []string{"close 1002"}},
		{"utf-8", join(frame(fin|text, "Hellö-µ@ßöäüàá-UTF-8!! 😀\x00"), bye), []string{"1 Hellö-µ@ßöäüàá-UTF-8!! 😀\x00", "close 1000"}},
		{"utf-8 split inside characters", join(frame(text, "\xf0"), frame(cont, "\x9f\x98"), frame(fin|cont, "\x80"), bye), []string{"1 😀", "close 1000"}},
		{"invalid utf-8", frame(fin|text, "ok\xce\xba\xe1\xbd\xb9\xed\xa0\x80"), []string{"close 1007"}},
		{"overlong", frame(fin|text, "\xc0\xaf"), []string{"close 1007"}},
		{"beyond unicode", frame(fin|text, "\xf4\x90\x80\x80"), []string{"close 1007"}},
		{"character cut off at the end", frame(fin|text, "a\xe2\x82"), []string{"close 1007"}},
		{"invalid utf-8 known before the message ends", frame(text, "\xff"), []string{"close 1007"}},
		{"character that can no more be one, before the end", join(frame(text, "\xed"), frame(cont, "\xa0")), []string{"close 1007"}},
		{"close without payload", frame(fin|closE, ""), []string{"close"}},
		{"close with one byte", frame(fin|closE, "x"), []string{"close 1002"}},
		{"close with reason", closeFrame(1001, "going"), []string{"close 1001"}},
		{"close with the longest reason", closeFrame(1000, big[:123]), []string{"close 1000"}},
		{"close with too long a reason", closeFrame(1000, big[:124]), []string{"close 1002"}},
		{"close reason not utf-8", closeFrame(1000, "\xff"), []string{"close 1007"}},
		{"close code 999", closeFrame(999, ""), []string{"close 1002"}},
		{"close code 1004", closeFrame(1004, ""), []string{"close 1002"}},
		{"close code 1005", closeFrame(1005, ""), []string{"close 1002"}},
		{"close code 1006", closeFrame(1006, ""), []string{"close 1002"}},
		{"close code 1015", closeFrame(1015, ""), []string{"close 1002"}},
		{"close code 2999", closeFrame(2999, ""), []string{"close 1002"}},
		{"close code 3000", closeFrame(3000, ""), []string{"close 3000"}},
		{"close code 4999", closeFrame(4999, ""), []string{"close 4999"}},
		{"close code 5000", closeFrame(5000, ""), []string{"close 1002"}},
		{"data after close", join(bye, frame(fin|text, "late")), []string{"close 1000"}},
		{"close inside a message", join(frame(text, "a"), bye), []string{"close 1000"}},
	}
	r := newRig(t, Options{Echo: true})
	for _, tt := range tests {
		for _, chopped := range []bool{false, true} {
			name := tt.name
			if chopped {
				name += ", byte by byte"
				if len(tt.send) > 300 {
					continue
				}
			}
			t.Run(name, func(t *testing.T) {
				c := r.raw(t)
				go func() { // the server may end while we send
					if !chopped {
						c.conn.Write(tt.send)
						return
					}
					for i := range tt.send {
						c.conn.Write(tt.send[i : i+1])
					}
				}()
				for _, want := range tt.want {
					got, err := c.read()
					for err == nil && got != want && want != "" && strings.HasPrefix(got, "10 p1") {
						got, err = c.read() // the older of two pings may be answered as well
					}
					if err != nil || got != want {
						t.Fatalf("came %.60q, %v, want %.60q", got, err, want)
					}
				}
				if strings.HasPrefix(tt.want[len(tt.want)-1], "close") {
					c.conn.Write(frame(fin|closE, "")) // the other half of the closing handshake
				}
				if got, err := c.read(); !errors.Is(err, io.EOF) && !isReset(err) {
					t.Fatalf("after the close frame came %q, %v", got, err)
				}
			})
		}
	}
	eventually(t, "every connection is gone", func() bool { return r.conns() == 0 })
}

// isReset recognises the end of a connection on which we sent more than the server would read.
func isReset(err error) bool {
	var e *net.OpError
	return errors.As(err, &e) && !e.Timeout()
}

// TestEchoLarge sends what the connection cannot hold at once.
func TestEchoLarge(t *testing.T) {
	r := newRig(t, Options{Echo: true})
	c := r.raw(t)
	payload := strings.Repeat("0123456789abcdef", 1<<20)[:16<<20]
	go func() {
		for range 3 {
			c.conn.Write(frame(fin|bin, payload))
		}
	}()
	for range 3 {
		got, err := c.read()
		if err != nil || got != "2 "+payload {
			t.Fatalf("%d bytes came back, %v", len(got), err)
		}
	}
	go c.conn.Write(frame(fin|bin, payload+"x"))
	if got, err := c.read(); got != "close 1009" {
		t.Fatalf("%.40q %v, want close 1009", got, err)
	}
}

// TestHalfAFrame: a peer that stops in the middle of a frame is a ghost like any other.
func TestHalfAFrame(t *testing.T) {
	r := newRig(t, Options{Echo: true})
	c := r.raw(t)
	c.conn.Write(frame(fin|text, "hello")[:5])
	eventually(t, "the half is there", func() bool { return r.conns() == 1 })
	r.advanceUntil(r.server.o.PingInterval, func() bool { return r.conns() == 0 })
	for {
		got, err := c.read()
		if err != nil {
			t.Fatalf("ended with %v", err)
		}
		if got == "close 3008" {
			return
		}
	}
}
