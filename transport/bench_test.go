package transport

import (
	"bytes"
	"context"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	pb "google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/internal/clock"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// BenchmarkEntry is the cost of one entry of a short chunk from cursor to socket, reader included.
//
//	go test -run XXX -bench Entry -benchmem ./transport
func BenchmarkEntry(b *testing.B) {
	for _, protocol := range subprotocols {
		b.Run(protocol, func(b *testing.B) {
			r := newRig(b, Options{Clock: clock.Real{}})
			entry, err := pb.Marshal(&wirepb.Entry{Offset: 1, TimeUnixMs: 1_700_000_000_000, Turn: 1, Body: &wirepb.Entry_Chunk{Chunk: &wirepb.Chunk{Text: " word", Tokens: []uint32{1234}, Step: 17}}})
			if err != nil {
				b.Fatal(err)
			}
			r.server.o.Dispatcher = endless{entry: entry, n: uint64(b.N)}
			p := r.greeted(protocol)
			b.ReportAllocs()
			b.ResetTimer()
			p.send(&wirepb.Frame{Object: object, Request: 1, Body: &wirepb.Frame_Attach{Attach: &wirepb.Attach{}}})
			p.ws.NetConn().SetReadDeadline(time.Time{})
			const word = " word"
			buf := make([]byte, 64<<10)
			kept := 0              // bytes of a word that a read may have cut
			for n := 0; n < b.N; { // count words rather than decode: the client's cost is not the server's
				k, err := p.ws.NetConn().Read(buf[kept:])
				if err != nil {
					b.Fatal(err)
				}
				got := buf[:kept+k]
				n += bytes.Count(got, []byte(word))
				kept = copy(buf, got[max(0, len(got)-len(word)+1):])
			}
		})
	}
}

// endless is a Dispatcher of one log of n equal entries.
type endless struct {
	Dispatcher
	entry []byte
	n     uint64
}

func (e endless) Attach(context.Context, proto.Principal, string, *wirepb.Attach, func()) (proto.Cursor, error) {
	return &endlessCursor{e: e}, nil
}

type endlessCursor struct {
	e    endless
	last uint64
}

func (c *endlessCursor) Attached() *wirepb.Attached {
	return &wirepb.Attached{From: &wirepb.Cursor{}, Watermark: c.e.n}
}

func (c *endlessCursor) Next(_ context.Context, dst []proto.Item, maxBytes int) ([]proto.Item, error) {
	for n := 0; n < maxBytes && c.last < c.e.n; n += len(c.e.entry) {
		c.last++
		dst = append(dst, proto.Item{Offset: c.last, Entry: c.e.entry})
	}
	return dst, nil
}

func (c *endlessCursor) Close() {}

// BenchmarkIdle is the memory of the server's end of connections that have greeted and say nothing: heap and stack,
// by difference over many, the client's ends being plain TCP connections whose memory is the kernel's.
//
//	go test -run XXX -bench Idle -benchtime 4000x ./transport
func BenchmarkIdle(b *testing.B) {
	r := newRig(b, Options{Clock: clock.Real{}, MaxConnections: 1 << 20})
	hello, err := pb.Marshal(&wirepb.Frame{Body: &wirepb.Frame_Hello{Hello: &wirepb.Hello{Version: 1}}})
	if err != nil {
		b.Fatal(err)
	}
	peers := make([]net.Conn, 0, b.N)
	defer func() {
		for _, c := range peers {
			c.Close()
		}
	}()
	connect := func() {
		d := websocket.Dialer{Subprotocols: subprotocols[:1], ReadBufferSize: 256, WriteBufferSize: 256}
		c, _, err := d.Dial(r.wsURL()+"/v1/ws", nil)
		if err != nil {
			b.Fatal(err)
		}
		c.WriteMessage(websocket.BinaryMessage, hello)
		c.ReadMessage()
		peers = append(peers, c.NetConn()) // and the client's buffers go
	}
	connect()
	before := memory()
	b.ResetTimer()
	for range b.N {
		connect()
	}
	b.StopTimer()
	after := memory()
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(b.N), "heap-B/conn")
	b.ReportMetric(float64(after.StackInuse-before.StackInuse)/float64(b.N), "stack-B/conn")
	b.ReportMetric(float64(runtime.NumGoroutine())/float64(b.N), "goroutines/conn")
}

func memory() (m runtime.MemStats) {
	for range 4 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m
}
