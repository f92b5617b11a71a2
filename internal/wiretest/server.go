package wiretest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// Options of a Server. The zero value works: turns are accepted and never answered.
type Options struct {
	// OnSubmit plays one new turn, on its own goroutine.
	OnSubmit func(*Turn)
	// Web serves everything but the WebSocket endpoint.
	Web http.Handler
	// PingIntervalMS is what Welcome tells clients; 0 is 25,000.
	PingIntervalMS uint32
}

// Server is a scripted server. Its methods are safe for concurrent use.
type Server struct {
	URL string // http://127.0.0.1:port

	o      Options
	http   *httptest.Server
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // connections and scripts

	mu struct {
		sync.Mutex
		logs   map[string]*Log
		conns  map[*conn]struct{}
		refuse []*wirepb.Error
		down   bool
		fatal  int
		dials  int
	}
}

// New starts a Server that tb's cleanup ends.
func New(tb testing.TB, o Options) *Server {
	if o.PingIntervalMS == 0 {
		o.PingIntervalMS = 25000
	}
	s := &Server{o: o}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.mu.logs = make(map[string]*Log)
	s.mu.conns = make(map[*conn]struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/ws", s.upgrade)
	if o.Web != nil {
		mux.Handle("/", o.Web)
	}
	s.http = httptest.NewServer(mux)
	s.URL = s.http.URL
	tb.Cleanup(func() {
		s.cancel()
		s.Cut()
		s.wg.Wait()
		s.http.Close()
	})
	return s
}

// Log returns the log of an object, empty at first.
func (s *Server) Log(address string) *Log {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.mu.logs[address]
	if l == nil {
		l = newLog()
		s.mu.logs[address] = l
	}
	return l
}

// Dials counts the connections since the start, refused ones included.
func (s *Server) Dials() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.dials
}

// Cut breaks every connection without a close frame, as a killed server does.
func (s *Server) Cut() {
	for _, c := range s.connections() {
		c.ws.NetConn().Close()
	}
}

// Down makes the server answer every handshake with 503, until called with false.
func (s *Server) Down(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.down = down
}

// Fatal makes the server close every connection after its handshake with an Error frame and this close code;
// 0 ends that.
func (s *Server) Fatal(code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.fatal = code
}

// RefuseNext refuses the next submits, one for each error.
func (s *Server) RefuseNext(errs ...*wirepb.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.refuse = append(s.mu.refuse, errs...)
}

// Drain sends Closing to every connection and closes it with 1012.
func (s *Server) Drain(reconnectAfter time.Duration) {
	for _, c := range s.connections() {
		c.write(&wirepb.Frame{Body: &wirepb.Frame_Closing{Closing: &wirepb.Closing{
			Code: "draining", ReconnectAfterMs: uint32(reconnectAfter.Milliseconds()),
		}}})
		c.close(websocket.CloseServiceRestart, "draining")
	}
}

func (s *Server) connections() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	conns := make([]*conn, 0, len(s.mu.conns))
	for c := range s.mu.conns {
		conns = append(conns, c)
	}
	return conns
}

func (s *Server) upgrade(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.mu.dials++
	down, fatal := s.mu.down, s.mu.fatal
	s.mu.Unlock()
	if down {
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	up := websocket.Upgrader{Subprotocols: []string{"holdfast.v1", "holdfast.v1.json"}}
	ws, err := up.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	c := &conn{s: s, ws: ws, json: ws.Subprotocol() == "holdfast.v1.json"}
	if fatal != 0 {
		c.write(&wirepb.Frame{Body: &wirepb.Frame_Error{Error: &wirepb.Error{
			Code: "forbidden", Message: "this page may not speak to the server", Hint: "sign in again",
		}}})
		c.close(fatal, "forbidden")
		return
	}
	s.mu.Lock()
	s.mu.conns[c] = struct{}{}
	s.wg.Add(1)
	s.mu.Unlock()
	defer s.wg.Done()
	c.serve()
	s.mu.Lock()
	delete(s.mu.conns, c)
	s.mu.Unlock()
}

// submit appends the user's message, or finds the turn that the id started, and plays it.
func (s *Server) submit(object string, m *wirepb.Submit) (*wirepb.Accepted, *wirepb.Error) {
	s.mu.Lock()
	if len(s.mu.refuse) > 0 {
		err := s.mu.refuse[0]
		s.mu.refuse = s.mu.refuse[1:]
		s.mu.Unlock()
		err.MessageId = m.MessageId
		return nil, err
	}
	s.mu.Unlock()
	l := s.Log(object)
	id, fresh := l.begin(m)
	if fresh && s.o.OnSubmit != nil {
		ctx, cancel := context.WithCancel(s.ctx)
		l.setStop(id, cancel)
		t := &Turn{ID: id, Text: m.Text, Context: s.ctx, Stopped: ctx.Done(), log: l}
		s.wg.Add(1)
		go func() {
			defer s.wg.Done()
			defer cancel()
			s.o.OnSubmit(t)
		}()
	}
	return &wirepb.Accepted{MessageId: m.MessageId, Turn: id, Duplicate: !fresh}, nil
}
