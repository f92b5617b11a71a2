package killtest

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// server is a holdfast process on a data folder, started again and again.
type server struct {
	tb     testing.TB
	binary string
	dir    string
	addr   string
	admin  string
	cmd    *exec.Cmd
	exited chan struct{}
	log    lockedBuffer
}

type lockedBuffer struct {
	mu struct {
		sync.Mutex
		b bytes.Buffer
	}
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.b.Write(p)
}

// tail returns the last n bytes.
func (l *lockedBuffer) tail(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.mu.b.Bytes()
	return string(b[max(0, len(b)-n):])
}

// config raises the cap on attempts, which a server that dies every second would reach: every turn must complete.
const config = "echo: true\nlimits:\n  max_attempts: 100\n"

// Build compiles the product's binary into a temporary folder and returns its path.
func Build(tb testing.TB) string {
	tb.Helper()
	out := filepath.Join(tb.TempDir(), "holdfast")
	cmd := exec.Command("go", "build", "-trimpath", "-o", out, "github.com/holdfast-ai/holdfast/cmd/holdfast")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("build of cmd/holdfast: %v\n%s", err, b)
	}
	return out
}

func newServer(tb testing.TB, binary string) *server {
	s := &server{tb: tb, binary: binary, dir: tb.TempDir(), addr: freeAddr(tb), admin: freeAddr(tb)}
	if err := os.WriteFile(s.configPath(), []byte(config), 0o600); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if s.cmd != nil {
			s.kill()
		}
		if tb.Failed() {
			tb.Logf("end of the server's log:\n%s", s.log.tail(8<<10))
		}
	})
	return s
}

func (s *server) configPath() string { return filepath.Join(s.dir, "config.yaml") }

func freeAddr(tb testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// start runs the server and returns when it answers.
func (s *server) start() {
	s.tb.Helper()
	s.cmd = exec.Command(s.binary, "serve", "--listen", s.addr, "--admin", s.admin,
		"--data", filepath.Join(s.dir, "data"), "--config", s.configPath())
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	if err := s.cmd.Start(); err != nil {
		s.tb.Fatal(err)
	}
	exited := make(chan struct{})
	s.exited = exited
	cmd := s.cmd
	go func() { cmd.Wait(); close(exited) }()
	deadline := time.Now().Add(60 * time.Second)
	for {
		r, err := http.Get("http://" + s.addr + "/healthz")
		if err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-s.exited:
			s.tb.Fatalf("the server ended at its start:\n%s", s.log.tail(4<<10))
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			s.tb.Fatalf("the server does not answer:\n%s", s.log.tail(4<<10))
		}
	}
}

// kill sends SIGKILL and waits for the process to be gone.
func (s *server) kill() {
	s.cmd.Process.Signal(syscall.SIGKILL)
	<-s.exited
	s.cmd = nil
}

func (s *server) String() string { return fmt.Sprintf("%s on %s", s.dir, s.addr) }
