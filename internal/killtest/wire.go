package killtest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// conn is one WebSocket that speaks holdfast.v1 as protobuf. read is for one goroutine, write for many.
type conn struct {
	ws *websocket.Conn
	mu struct {
		sync.Mutex // serialises writes
	}
}

func dial(ctx context.Context, addr string) (*conn, error) {
	d := websocket.Dialer{HandshakeTimeout: 10 * time.Second, Subprotocols: []string{"holdfast.v1"}}
	ws, resp, err := d.DialContext(ctx, "ws://"+addr+"/v1/ws", http.Header{}) //nolint:bodyclose // gorilla has read it
	if err != nil {
		if resp != nil {
			return nil, fmt.Errorf("dial %s: HTTP %d: %w", addr, resp.StatusCode, err)
		}
		return nil, err
	}
	c := &conn{ws: ws}
	if err := c.write(&wirepb.Frame{Body: &wirepb.Frame_Hello{Hello: &wirepb.Hello{Version: 1, Client: "killtest"}}}); err != nil {
		ws.Close()
		return nil, err
	}
	f, _, err := c.read()
	if err != nil {
		ws.Close()
		return nil, err
	}
	if f.GetWelcome() == nil {
		ws.Close()
		return nil, fmt.Errorf("first frame of the server is %T, want Welcome", f.Body)
	}
	return c, nil
}

func (c *conn) write(f *wirepb.Frame) error {
	b, err := proto.Marshal(f)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ws.SetWriteDeadline(time.Now().Add(10 * time.Second))
	return c.ws.WriteMessage(websocket.BinaryMessage, b)
}

// read returns the next frame and, when it is an entry, the entry's bytes as they were on the wire.
func (c *conn) read() (*wirepb.Frame, []byte, error) {
	c.ws.SetReadDeadline(time.Now().Add(60 * time.Second))
	mt, b, err := c.ws.ReadMessage()
	if err != nil {
		return nil, nil, err
	}
	if mt != websocket.BinaryMessage {
		return nil, nil, errors.New("text message on the protobuf subprotocol")
	}
	f := &wirepb.Frame{}
	if err := proto.Unmarshal(b, f); err != nil {
		return nil, nil, fmt.Errorf("frame of the server: %w", err)
	}
	if f.GetEntry() == nil {
		return f, nil, nil
	}
	raw, err := entryBytes(b)
	return f, raw, err
}

// entryBytes finds the bytes of Frame.entry without decoding them, so that equal means equal on the wire.
func entryBytes(frame []byte) ([]byte, error) {
	const entryField = 30
	for len(frame) > 0 {
		num, typ, n := protowire.ConsumeTag(frame)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		if num == entryField && typ == protowire.BytesType {
			v, m := protowire.ConsumeBytes(frame[n:])
			if m < 0 {
				return nil, protowire.ParseError(m)
			}
			return append([]byte(nil), v...), nil
		}
		m := protowire.ConsumeFieldValue(num, typ, frame[n:])
		if m < 0 {
			return nil, protowire.ParseError(m)
		}
		frame = frame[n+m:]
	}
	return nil, errors.New("frame has no entry")
}

func (c *conn) close() { c.ws.Close() }
