package transport

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// TestRequests walks through each request of both encodings.
func TestRequests(t *testing.T) {
	for _, protocol := range subprotocols {
		t.Run(protocol, func(t *testing.T) {
			r := newRig(t, Options{Version: "holdfast/test"})
			r.objects.Append(object, chunk("a"), chunk("b"), chunk("c"))
			p := r.dial(protocol)
			p.send(&wirepb.Frame{Request: 3, Body: &wirepb.Frame_Hello{Hello: &wirepb.Hello{Version: 1}}})
			w := p.next()
			if g := w.GetWelcome(); w.Request != 3 || g.GetNamespace() != "default" || g.GetUser() != "local" || g.GetMaxFrameBytes() != 1<<20 || g.GetPingIntervalMs() != 25000 || g.GetServer() != "holdfast/test" {
				t.Fatalf("welcome %v", w)
			}
			p.send(pingFrame("x"))
			if f := p.next(); string(f.GetPong().GetPayload()) != "x" || f.Request != 99 {
				t.Fatalf("pong %v", f)
			}
			a := p.attach(&wirepb.Attach{Tail: 2})
			if a.From.Offset != 1 || a.Watermark != 3 {
				t.Fatalf("attached %v", a)
			}
			for _, want := range []string{"b", "c"} {
				if f := p.next(); f.GetEntry().GetChunk().GetText() != want || f.Object != object {
					t.Fatalf("entry %v, want %s", f, want)
				}
			}
			if f := p.next(); f.GetCaughtUp().GetOffset() != 3 {
				t.Fatalf("caught up %v", f)
			}
			r.objects.SetStatus(object, &wirepb.Status{Turn: 1, Phase: wirepb.Phase_PHASE_RUNNING})
			if f := p.next(); f.GetStatus().GetPhase() != wirepb.Phase_PHASE_RUNNING {
				t.Fatalf("status %v", f)
			}
			p.send(&wirepb.Frame{Object: object, Request: 8, Body: &wirepb.Frame_Detach{Detach: &wirepb.Detach{}}})
			if f := p.next(); f.GetDetached() == nil || f.Request != 8 {
				t.Fatalf("detached %v", f)
			}
			p.send(submitFrame("m1", 9))
			if f := p.next(); f.GetAccepted().GetTurn() != 4 || f.Request != 9 {
				t.Fatalf("accepted %v", f)
			}
			p.send(&wirepb.Frame{Object: object, Request: 10, Body: &wirepb.Frame_Stop{Stop: &wirepb.Stop{Turn: 4}}})
			if f := p.next(); f.GetStopping().GetTurn() != 4 || f.Request != 10 {
				t.Fatalf("stopping %v", f)
			}
		})
	}
}

// TestRefusals sends what must be refused, and then a ping: the connection goes on.
func TestRefusals(t *testing.T) {
	entry := &wirepb.Frame{Request: 5, Body: &wirepb.Frame_Entry{Entry: chunk("x")}}
	attach := &wirepb.Frame_Attach{Attach: &wirepb.Attach{}}
	stop := &wirepb.Frame_Stop{Stop: &wirepb.Stop{}}
	long := strings.Repeat("n", maxAddress)
	tests := []struct {
		name  string
		frame *wirepb.Frame
		code  proto.Code
	}{
		{"no body", &wirepb.Frame{Request: 5}, proto.CodeInvalidFrame},
		{"a server's frame", entry, proto.CodeInvalidFrame},
		{"a second hello", &wirepb.Frame{Request: 5, Body: &wirepb.Frame_Hello{Hello: &wirepb.Hello{Version: 1}}}, proto.CodeInvalidFrame},
		{"no object", &wirepb.Frame{Request: 5, Body: attach}, proto.CodeInvalidName},
		{"two parts", &wirepb.Frame{Request: 5, Object: "default/session", Body: attach}, proto.CodeInvalidName},
		{"empty part", &wirepb.Frame{Request: 5, Object: "default//x", Body: stop}, proto.CodeInvalidName},
		{"control character", &wirepb.Frame{Request: 5, Object: "default/session/a\x00b", Body: attach}, proto.CodeInvalidName},
		{"long", &wirepb.Frame{Request: 5, Object: "default/session/" + long, Body: attach}, proto.CodeInvalidName},
		{"another namespace", &wirepb.Frame{Request: 5, Object: "other/session/a", Body: attach}, proto.CodeForbidden},
		{"ping too long", &wirepb.Frame{Request: 5, Body: &wirepb.Frame_Ping{Ping: &wirepb.Ping{Payload: make([]byte, 126)}}}, proto.CodeInvalidArgument},
		{"gone", &wirepb.Frame{Request: 5, Object: object, Body: &wirepb.Frame_Attach{Attach: &wirepb.Attach{After: &wirepb.Cursor{Generation: 9, Incarnation: 9}}}}, proto.CodeGone},
	}
	for _, protocol := range subprotocols {
		for _, tt := range tests {
			t.Run(protocol+"/"+tt.name, func(t *testing.T) {
				r := newRig(t, Options{})
				p := r.greeted(protocol)
				p.send(tt.frame)
				f := p.wantError(tt.code)
				if f.Request != 5 || f.Object != tt.frame.Object {
					t.Errorf("refusal %v does not name its frame", f)
				}
				if tt.code == proto.CodeGone && (f.GetError().Present == nil || f.GetError().FirstHeld != 1) {
					t.Errorf("gone without its details: %v", f)
				}
				p.send(pingFrame("still here"))
				if f := p.next(); f.GetPong() == nil {
					t.Fatalf("after the refusal came %v", f)
				}
			})
		}
	}
}

func TestUnknownFieldsAreIgnored(t *testing.T) {
	r := newRig(t, Options{})
	p := r.greeted(ProtocolJSON)
	if err := p.ws.WriteMessage(websocket.TextMessage, []byte(`{"request":"4","later":{"x":[1]},"ping":{"payload":"eA==","more":true}}`)); err != nil {
		t.Fatal(err)
	}
	if f := p.next(); string(f.GetPong().GetPayload()) != "x" {
		t.Fatalf("came %v", f)
	}
	q := r.greeted(ProtocolBinary)
	b := []byte{0x10, 4, 0xc2, 0x3e, 3, 1, 2, 3, 0x7a, 3, 0x0a, 1, 'x'} // request 4, field 1000, ping
	if err := q.ws.WriteMessage(websocket.BinaryMessage, b); err != nil {
		t.Fatal(err)
	}
	if f := q.next(); string(f.GetPong().GetPayload()) != "x" || f.Request != 4 {
		t.Fatalf("came %v", f)
	}
}

// TestGarbage: each bad message is answered, and the last one ends the connection for good.
func TestGarbage(t *testing.T) {
	for _, protocol := range subprotocols {
		t.Run(protocol, func(t *testing.T) {
			r := newRig(t, Options{MaxMalformed: 3})
			p := r.greeted(protocol)
			kind := map[string]int{ProtocolBinary: websocket.BinaryMessage, ProtocolJSON: websocket.TextMessage}[protocol]
			p.ws.WriteMessage(kind, []byte("{\"object\":"))
			p.wantError(proto.CodeInvalidFrame)
			p.ws.WriteMessage(3-kind, []byte("{}")) // the other subprotocol's kind
			p.wantError(proto.CodeInvalidFrame)
			p.ws.WriteMessage(kind, []byte("\x07"))
			p.wantError(proto.CodeInvalidFrame)
			p.wantClose(4400)
			eventually(t, "the connection is gone", func() bool { return r.conns() == 0 })
		})
	}
}

func TestGreeting(t *testing.T) {
	t.Run("wrong version", func(t *testing.T) {
		p := newRig(t, Options{}).dial(ProtocolBinary)
		p.send(&wirepb.Frame{Body: &wirepb.Frame_Hello{Hello: &wirepb.Hello{Version: 2}}})
		p.wantError(proto.CodeUnsupportedVersion)
		p.wantClose(4406)
	})
	t.Run("not hello", func(t *testing.T) {
		p := newRig(t, Options{}).dial(ProtocolJSON)
		p.send(pingFrame(""))
		p.wantError(proto.CodeInvalidFrame)
		p.wantClose(4400)
	})
	t.Run("silence", func(t *testing.T) {
		r := newRig(t, Options{})
		p := r.dial(ProtocolBinary)
		eventually(t, "the connection is known", func() bool { return r.conns() == 1 })
		r.advanceUntil(r.server.o.HelloTimeout, func() bool {
			r.server.mu.Lock()
			defer r.server.mu.Unlock()
			for c := range r.server.mu.conns {
				return c.currentPhase() >= phaseClosing
			}
			return true
		})
		p.wantError(proto.CodeIdleTimeout)
		p.wantClose(3008)
	})
}

func TestSizes(t *testing.T) {
	t.Run("10 MB", func(t *testing.T) {
		r := newRig(t, Options{})
		p := r.greeted(ProtocolBinary)
		// All of it can be written: a connection that is reset would take the refusal with it.
		if err := p.ws.WriteMessage(websocket.BinaryMessage, make([]byte, 10<<20)); err != nil {
			t.Error(err)
		}
		p.wantError(proto.CodeTooLarge)
		p.wantClose(1009)
	})
	t.Run("largest", func(t *testing.T) {
		r := newRig(t, Options{MaxFrameBytes: 1000})
		p := r.greeted(ProtocolBinary)
		text := strings.Repeat("a", 1000-len(object)-13)
		f := &wirepb.Frame{Object: object, Body: &wirepb.Frame_Submit{Submit: &wirepb.Submit{MessageId: "m", Text: text}}}
		p.send(f)
		if g := p.next(); g.GetAccepted() == nil {
			t.Fatalf("came %v", g)
		}
	})
	t.Run("empty", func(t *testing.T) {
		r := newRig(t, Options{})
		p := r.greeted(ProtocolBinary)
		p.ws.WriteMessage(websocket.BinaryMessage, nil)
		p.wantError(proto.CodeInvalidFrame)
		q := r.greeted(ProtocolJSON)
		q.ws.WriteMessage(websocket.TextMessage, nil)
		q.wantError(proto.CodeInvalidFrame)
	})
}

func TestHTTP(t *testing.T) {
	var well error
	r := newRig(t, Options{
		Web:          http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { w.Write([]byte("page")) }),
		Ready:        []Check{{"storage", func(context.Context) error { return well }}},
		AllowedHosts: []string{"chat.example.org"}, AllowedOrigins: []string{"https://app.example.org"},
	})
	upgrade := func(more ...string) http.Header {
		h := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
			"Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}, "Sec-Websocket-Protocol": {ProtocolBinary}}
		for i := 0; i < len(more); i += 2 {
			h.Set(more[i], more[i+1])
		}
		return h
	}
	host := strings.TrimPrefix(r.http.URL, "http://")
	tests := []struct {
		name, path string
		header     http.Header
		status     int
		body       string
	}{
		{"page", "/", nil, 200, "page"},
		{"health", "/healthz", nil, 200, "ok"},
		{"ready", "/readyz", nil, 200, "ready"},
		{"not an upgrade", "/v1/ws", nil, 426, `"code":"unsupported_version"`},
		{"no subprotocol of ours", "/v1/ws", upgrade("Sec-Websocket-Protocol", "chat"), 426, "holdfast.v1.json"},
		{"no echo", "/echo", nil, 200, "page"},
		{"foreign origin", "/v1/ws", upgrade("Origin", "https://evil.example"), 403, `"code":"forbidden"`},
		{"null origin", "/v1/ws", upgrade("Origin", "null"), 403, "forbidden"},
		{"same host, other port", "/v1/ws", upgrade("Origin", "http://127.0.0.1:1"), 403, "forbidden"},
		{"origin as suffix", "/v1/ws", upgrade("Origin", "http://"+host+".evil.example"), 403, "forbidden"},
		{"own origin", "/v1/ws", upgrade("Origin", "http://"+host), 101, ""},
		{"allowed origin", "/v1/ws", upgrade("Origin", "https://app.example.org"), 101, ""},
		{"no origin", "/v1/ws", upgrade(), 101, ""},
		{"rebound host", "/", http.Header{"Host": {"evil.example"}}, 403, `"code":"forbidden"`},
		{"rebound host with port", "/v1/ws", upgrade("Host", "evil.example:8420", "Origin", "http://evil.example:8420"), 403, "forbidden"},
		{"localhost", "/", http.Header{"Host": {"localhost:8420"}}, 200, "page"},
		{"ipv6", "/", http.Header{"Host": {"[::1]:8420"}}, 200, "page"},
		{"allowed host", "/", http.Header{"Host": {"chat.example.org"}}, 200, "page"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.status == http.StatusSwitchingProtocols {
				h := tt.header.Clone()
				for _, k := range []string{"Connection", "Upgrade", "Sec-Websocket-Version", "Sec-Websocket-Key", "Sec-Websocket-Protocol"} {
					h.Del(k)
				}
				d := websocket.Dialer{Subprotocols: []string{ProtocolBinary}}
				c, _, err := d.Dial(r.wsURL()+"/v1/ws", h)
				if err != nil {
					t.Fatal(err)
				}
				c.Close()
				return
			}
			status, body := r.get(tt.path, tt.header)
			if status != tt.status || !strings.Contains(body, tt.body) {
				t.Fatalf("%d %q, want %d with %q", status, body, tt.status, tt.body)
			}
		})
	}
	well = errors.New("disk full at /secret")
	if status, body := r.get("/readyz", nil); status != 503 || !strings.Contains(body, "storage") || strings.Contains(body, "secret") {
		t.Errorf("not ready: %d %q", status, body)
	}
}

type authenticator func(*http.Request) (proto.Principal, error)

func (a authenticator) Authenticate(r *http.Request) (proto.Principal, error) { return a(r) }

// TestDenied: a browser cannot see the status of a failed handshake, so the refusal comes as a frame and a close code.
func TestDenied(t *testing.T) {
	r := newRig(t, Options{Authenticator: authenticator(func(q *http.Request) (proto.Principal, error) {
		if q.Header.Get("Authorization") == "" {
			return proto.Principal{}, proto.Errorf(proto.CodeUnauthenticated, "no token")
		}
		return proto.Principal{}, errors.New("directory is down")
	})})
	p := r.dial(ProtocolJSON)
	p.wantError(proto.CodeUnauthenticated)
	p.wantClose(4401)
	d := websocket.Dialer{Subprotocols: []string{ProtocolBinary}}
	c, _, err := d.Dial(r.wsURL()+"/v1/ws", http.Header{"Authorization": {"Bearer x"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	q := &peer{t: t, ws: c}
	if f := q.wantError(proto.CodeInternal); strings.Contains(f.GetError().Message, "directory") {
		t.Errorf("the cause left the server: %v", f)
	}
	q.wantClose(1011)
}

func TestLocal(t *testing.T) {
	for addr, ok := range map[string]bool{"127.0.0.1:5": true, "[::1]:5": true, "[::ffff:127.0.0.1]:5": true, "10.0.0.1:5": false, "": false} {
		p, err := Local{}.Authenticate(&http.Request{RemoteAddr: addr})
		var refused *proto.Error
		if ok != (err == nil) || !ok && (!errors.As(err, &refused) || refused.Code != proto.CodeUnauthenticated) || ok && p.Namespace != "default" {
			t.Errorf("%q: %v %v", addr, p, err)
		}
	}
}

func TestConnectionLimit(t *testing.T) {
	r := newRig(t, Options{MaxConnections: 2})
	p := r.greeted(ProtocolBinary)
	r.greeted(ProtocolBinary)
	d := websocket.Dialer{Subprotocols: []string{ProtocolBinary}}
	_, resp, err := d.Dial(r.wsURL()+"/v1/ws", nil)
	if err == nil || resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
		t.Fatalf("third connection: %v %v", err, resp)
	}
	p.ws.Close()
	eventually(t, "there is room", func() bool { return r.conns() == 1 })
	r.greeted(ProtocolBinary)
}
