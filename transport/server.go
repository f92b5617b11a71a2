package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/transport/ws"
)

// Server serves holdfast.v1 and what surrounds it. Its methods are safe for concurrent use.
type Server struct {
	o       Options
	metrics *metrics
	mux     *http.ServeMux
	json    jsonCodec
	ids     atomic.Uint64
	scratch sync.Pool // *scratch
	buffers sync.Pool // *[]byte, of readers

	ctx    context.Context // of every call to the Dispatcher; ends with Close
	cancel context.CancelFunc

	mu struct {
		sync.Mutex
		conns    map[*Conn]struct{}
		reserved int           // connections between the limit check and their registration
		draining bool          // no new connections
		closed   bool          // Close was called
		empty    chan struct{} // closed when the last connection ends; nil while nobody waits
	}
	wg sync.WaitGroup // reader goroutines; added to under mu while not closed
}

// NewServer returns a Server that is ready to serve.
func NewServer(o Options) (*Server, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	s := &Server{o: o, metrics: m, json: jsonCodec{cache: &jsonCache{}}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.scratch.New = func() any { return new(scratch) }
	s.buffers.New = func() any { return new([]byte) }
	s.mu.conns = make(map[*Conn]struct{})
	s.mux = http.NewServeMux()
	s.mux.HandleFunc("/v1/ws", s.serveSocket)
	s.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeStatus(w, http.StatusOK, "ok") })
	s.mux.HandleFunc("GET /readyz", s.serveReady)
	if o.Echo {
		s.mux.HandleFunc("/echo", s.serveEcho)
	}
	if o.Web != nil {
		s.mux.Handle("/", o.Web)
	}
	return s, nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if p := recover(); p != nil {
			if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) { // the documented way to cut a response
				panic(p)
			}
			s.panicked(p, "http", slog.String("path", r.URL.Path))
			s.refuse(w, r, &proto.Error{Code: proto.CodeInternal, Message: "the server failed to serve this request"})
		}
	}()
	if e := s.checkHost(r); e != nil {
		s.refuse(w, r, e)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// panicked records a panic that was caught. Its value may hold a user's text, so only its type is logged.
func (s *Server) panicked(p any, where string, attrs ...any) {
	s.metrics.panics.Inc()
	what := fmt.Sprintf("%T", p)
	if err, ok := p.(error); ok {
		what = err.Error() // of the runtime, mostly: index out of range, nil pointer
	}
	s.o.Logger.Error("caught a panic", append(attrs, "where", where, "panic", what, "stack", string(debug.Stack()))...)
}

// refuse answers a request with a coded error. The URL's query and the headers may carry tokens and are not logged.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, e *proto.Error) {
	s.metrics.refused(e.Code)
	s.o.Logger.Info("refused a request", "code", e.Code, "reason", e.Error(), "remote", r.RemoteAddr, "path", r.URL.Path)
	c, wire := Lookup(e.Code), wireError(e)
	if wire.RetryAfterMs > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((wire.RetryAfterMs+999)/1000)))
	}
	if c.HTTP == http.StatusUpgradeRequired {
		w.Header().Set("Upgrade", "websocket")
	}
	body, err := protojson.Marshal(wire)
	if err != nil { // a message of ours that is not UTF-8
		body = []byte("{}")
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(c.HTTP)
	fmt.Fprintf(w, "{\"error\":%s}\n", body)
}

func writeStatus(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	fmt.Fprintln(w, text)
}

// serveReady answers 200 when every check passes and the server takes connections. It names what fails and no more:
// the listener may be public.
func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	status, text := http.StatusOK, "ready"
	fail := func(what string) {
		if status == http.StatusOK {
			status, text = http.StatusServiceUnavailable, "not ready:"
		}
		text += " " + what
	}
	s.mu.Lock()
	draining := s.mu.draining
	s.mu.Unlock()
	if draining {
		fail("draining")
	}
	for _, c := range s.o.Ready {
		if err := c.Probe(ctx); err != nil {
			s.o.Logger.Warn("not ready", "check", c.Name, "err", err)
			fail(c.Name)
		}
	}
	writeStatus(w, status, text)
}

// serveSocket upgrades a client of holdfast.v1.
func (s *Server) serveSocket(w http.ResponseWriter, r *http.Request) {
	if e := s.checkUpgrade(r, true); e != nil {
		s.refuse(w, r, e)
		return
	}
	// A browser is not told the status of a failed handshake and would try again for ever: who may not connect is
	// accepted, told so, and closed with a code that ends retries.
	principal, err := s.o.Authenticator.Authenticate(r)
	var denied *proto.Error
	if err != nil {
		denied = asError(err)
	}
	s.accept(w, r, subprotocols, func(c *Conn) {
		c.principal = principal
		c.codec = codec(binaryCodec{})
		if c.ws.Subprotocol() == ProtocolJSON {
			c.codec = s.json
		}
		c.denied = denied
	})
}

// checkUpgrade refuses what must not become a WebSocket.
func (s *Server) checkUpgrade(r *http.Request, ours bool) *proto.Error {
	if !headerHas(r.Header, "Connection", "upgrade") || !headerHas(r.Header, "Upgrade", "websocket") || r.Method != http.MethodGet {
		return &proto.Error{Code: proto.CodeUnsupportedVersion, Message: "this is a WebSocket endpoint", Hint: "connect with a WebSocket client over HTTP/1.1"}
	}
	if e := s.checkOrigin(r); e != nil {
		return e
	}
	if ours && !headerHas(r.Header, "Sec-WebSocket-Protocol", ProtocolBinary) && !headerHas(r.Header, "Sec-WebSocket-Protocol", ProtocolJSON) {
		return &proto.Error{
			Code:    proto.CodeUnsupportedVersion,
			Message: "no subprotocol of the request is spoken here",
			Hint:    "offer the subprotocol " + ProtocolBinary + " or " + ProtocolJSON,
		}
	}
	return nil
}

// accept reserves a place, upgrades, and starts the connection's reader; then the handler returns, so that net/http
// frees what it held for the request.
func (s *Server) accept(w http.ResponseWriter, r *http.Request, protocols []string, set func(*Conn)) {
	if e := s.reserve(); e != nil {
		s.refuse(w, r, e)
		return
	}
	registered := false
	defer func() {
		if !registered {
			s.mu.Lock()
			s.mu.reserved--
			s.mu.Unlock()
			s.wg.Done()
		}
	}()
	c := &Conn{s: s, id: s.ids.Add(1)}
	var err error
	c.ws, err = ws.Upgrade(w, r, ws.Options{Subprotocols: protocols, OnPing: c.pinged})
	if err != nil {
		s.o.Logger.Info("a handshake failed", "remote", r.RemoteAddr, "path", r.URL.Path, "err", err)
		return
	}
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	set(c)
	registered = s.register(c)
	if !registered {
		c.cancel()
		c.ws.Close()
		return
	}
	go c.run()
}

// reserve takes a place for one connection, and counts its reader as running.
func (s *Server) reserve() *proto.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.draining || s.mu.closed {
		return &proto.Error{Code: proto.CodeDraining, Message: "this server is stopping"}
	}
	if len(s.mu.conns)+s.mu.reserved >= s.o.MaxConnections {
		return &proto.Error{Code: proto.CodeOverloaded, Message: fmt.Sprintf("the server has its %d connections", s.o.MaxConnections), RetryAfter: s.spread(5 * time.Second)}
	}
	s.mu.reserved++
	s.wg.Add(1)
	return nil
}

// register makes a reserved connection known; false says that the server has begun to stop meanwhile.
func (s *Server) register(c *Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.draining || s.mu.closed {
		return false
	}
	s.mu.reserved--
	s.mu.conns[c] = struct{}{}
	s.metrics.connections.Inc()
	s.metrics.opened.WithLabelValues(c.encoding()).Inc()
	return true
}

func (s *Server) unregister(c *Conn) {
	s.mu.Lock()
	delete(s.mu.conns, c)
	if len(s.mu.conns) == 0 && s.mu.empty != nil {
		close(s.mu.empty)
		s.mu.empty = nil
	}
	s.mu.Unlock()
	s.metrics.connections.Dec()
}

// spread returns a random duration below 1.5 d and not below d/2, so that clients do not come back all at once.
func (s *Server) spread(d time.Duration) time.Duration {
	return d/2 + time.Duration(s.o.Random()*float64(d))
}

// Close ends every connection at once and waits for its goroutines. Clients resume elsewhere or later.
func (s *Server) Close() error {
	s.mu.Lock()
	s.mu.closed, s.mu.draining = true, true
	conns := s.connsLocked()
	s.mu.Unlock()
	for _, c := range conns {
		c.abort("server_closed")
	}
	s.cancel()
	s.wg.Wait()
	return nil
}

func (s *Server) connsLocked() []*Conn {
	conns := make([]*Conn, 0, len(s.mu.conns))
	for c := range s.mu.conns {
		conns = append(conns, c)
	}
	return conns
}
