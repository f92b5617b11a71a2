package inference_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/internal/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// runtime loads models that answer with the request that they got.
type runtime struct {
	loads  atomic.Int32
	closes atomic.Int32
	load   func(ctx context.Context, progress func(done, total int64)) error // nil: succeeds at once
}

func (r *runtime) Name() string { return "fake" }

func (r *runtime) Load(ctx context.Context, m *inference.Manifest, _, _ string, progress func(done, total int64)) (inference.Model, error) {
	r.loads.Add(1)
	if r.load != nil {
		if err := r.load(ctx, progress); err != nil {
			return nil, err
		}
	}
	return &model{r: r}, nil
}

type model struct{ r *runtime }

func (m *model) Run(_ context.Context, r *inference.Request, emit func(inference.Chunk) error) (inference.Usage, error) {
	return inference.Usage{Model: r.Model, Finish: inference.FinishStop}, emit(inference.Chunk{Text: "hello"})
}

func (m *model) Plan(_ context.Context, r *inference.Request) (*inference.Plan, error) {
	return &inference.Plan{Model: r.Model, Sampling: r.Sampling}, nil
}

func (m *model) MemoryBytes() int64 { return 1 }
func (m *model) Close() error       { m.r.closes.Add(1); return nil }

func manifest(name string) *inference.Manifest {
	return &inference.Manifest{
		Name: name, Version: "1", Task: "generate", Runtime: "fake",
		Defaults: inference.Sampling{Temperature: 0.7, TopP: 0.9, TopK: 40, MaxTokens: 99, Stop: []string{"END"}},
	}
}

// withFile gives m one file of content and writes it, or something else, into dir.
func withFile(t *testing.T, m *inference.Manifest, dir, content, written string) *inference.Manifest {
	t.Helper()
	sum := sha256.Sum256([]byte(content))
	m.Files = []inference.File{{Path: "weights.bin", Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:])}}
	if err := os.MkdirAll(filepath.Join(dir, m.Name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, m.Name, "weights.bin"), []byte(written), 0o644); err != nil {
		t.Fatal(err)
	}
	return m
}

func newCatalog(t *testing.T, o inference.CatalogOptions) *inference.Catalog {
	t.Helper()
	c, err := inference.NewCatalog(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func run(c *inference.Catalog, r *inference.Request) (inference.Usage, error) {
	return c.Run(context.Background(), r, func(inference.Chunk) error { return nil })
}

func TestCatalogResolves(t *testing.T) {
	c := newCatalog(t, inference.CatalogOptions{
		Manifests: []*inference.Manifest{manifest("small"), manifest("large")},
		Runtimes:  []inference.Runtime{&runtime{}},
		Aliases:   map[string]string{"best": "large"}, Default: "small",
	})
	for _, tc := range []struct{ ask, want string }{{"small", "small"}, {"large", "large"}, {"best", "large"}, {"", "small"}} {
		u, err := run(c, &inference.Request{Model: tc.ask})
		if err != nil || u.Model != tc.want {
			t.Errorf("model %q ran as %q, %v; want %q", tc.ask, u.Model, err, tc.want)
		}
	}
	_, err := run(c, &inference.Request{Model: "smal"})
	if !errors.Is(err, inference.ErrModelNotFound) || !strings.Contains(err.Error(), `"smal"; known: large, small`) {
		t.Errorf("unknown model: %v", err)
	}
	if u, err := run(c, &inference.Request{Model: "nobody", Plan: &inference.Plan{Model: "large"}}); err != nil || u.Model != "large" {
		t.Errorf("a plan for large ran as %q, %v", u.Model, err)
	}
}

func TestCatalogWithoutDefault(t *testing.T) {
	c := newCatalog(t, inference.CatalogOptions{Manifests: []*inference.Manifest{manifest("m")}, Runtimes: []inference.Runtime{&runtime{}}})
	if _, err := run(c, &inference.Request{}); !errors.Is(err, inference.ErrModelNotFound) || !strings.Contains(err.Error(), "no default; known: m") {
		t.Errorf("no model named: %v", err)
	}
}

func TestCatalogOptions(t *testing.T) {
	m := []*inference.Manifest{manifest("m")}
	for _, tc := range []struct {
		name string
		o    inference.CatalogOptions
		want error
	}{
		{"unknown default", inference.CatalogOptions{Manifests: m, Default: "x"}, inference.ErrModelNotFound},
		{"alias of nothing", inference.CatalogOptions{Manifests: m, Aliases: map[string]string{"a": "x"}}, inference.ErrModelNotFound},
		{"alias hides a model", inference.CatalogOptions{Manifests: m, Aliases: map[string]string{"m": "m"}}, nil},
		{"two of a name", inference.CatalogOptions{Manifests: append(m, manifest("m"))}, inference.ErrInvalidManifest},
		{"bad manifest", inference.CatalogOptions{Manifests: []*inference.Manifest{{Name: "../m"}}}, inference.ErrInvalidManifest},
		{"negative duration", inference.CatalogOptions{RetryCap: -1}, nil},
	} {
		if _, err := inference.NewCatalog(tc.o); err == nil || tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
	}
}

// One load serves all that wait, each hears of its progress, and one that leaves does not end it (rules 1 and 2).
func TestCatalogLoadsOnce(t *testing.T) {
	started, finish := make(chan func(done, total int64)), make(chan struct{})
	rt := &runtime{load: func(_ context.Context, progress func(done, total int64)) error {
		started <- progress
		<-finish
		return nil
	}}
	registry := prometheus.NewRegistry()
	c := newCatalog(t, inference.CatalogOptions{
		Manifests: []*inference.Manifest{manifest("m")}, Runtimes: []inference.Runtime{rt}, Default: "m", Registerer: registry,
	})
	ctx, leave := context.WithCancelCause(context.Background())
	cause := errors.New("left")
	left := make(chan error)
	go func() { left <- c.Load(ctx, "m") }()
	progress := <-started
	var waiters sync.WaitGroup
	var halves sync.WaitGroup
	for range 8 {
		halves.Add(1)
		waiters.Go(func() {
			var heard sync.Once
			_, err := run(c, &inference.Request{Progress: func(p inference.Progress) {
				if p.Phase == inference.Loading && p.Done == 50 && p.Total == 100 {
					heard.Do(halves.Done)
				}
			}})
			if err != nil {
				t.Errorf("a waiter: %v", err)
			}
		})
	}
	leave(cause)
	if err := <-left; !errors.Is(err, cause) {
		t.Errorf("the waiter that left got %v, want its cause", err)
	}
	progress(50, 100)
	halves.Wait()
	if err := c.Ready("m"); err == nil || !strings.Contains(err.Error(), "50 %") {
		t.Errorf("ready while loading: %v", err)
	}
	close(finish)
	waiters.Wait()
	if n := rt.loads.Load(); n != 1 {
		t.Errorf("the model was loaded %d times", n)
	}
	if err := c.Ready("m"); err != nil {
		t.Errorf("ready when loaded: %v", err)
	}
	const want = `# HELP holdfast_catalog_models_loaded Models in memory.
# TYPE holdfast_catalog_models_loaded gauge
holdfast_catalog_models_loaded 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "holdfast_catalog_models_loaded"); err != nil {
		t.Error(err)
	}
}

// A failed load fails at once until its time has come, and that time doubles (rule 3).
func TestCatalogRetries(t *testing.T) {
	boom := errors.New("no memory")
	fail := true
	rt := &runtime{load: func(context.Context, func(done, total int64)) error {
		if fail {
			return boom
		}
		return nil
	}}
	clk := clock.NewFake(time.Unix(0, 0))
	c := newCatalog(t, inference.CatalogOptions{
		Manifests: []*inference.Manifest{manifest("m")}, Runtimes: []inference.Runtime{rt}, Default: "m",
		Clock: clk, RetryBase: time.Second, RetryCap: 3 * time.Second,
	})
	for i, wait := range []time.Duration{1 * time.Second, 2 * time.Second, 3 * time.Second, 3 * time.Second} {
		if _, err := run(c, &inference.Request{}); !errors.Is(err, boom) {
			t.Fatalf("attempt %d: %v", i, err)
		}
		clk.Advance(wait - time.Millisecond)
		if _, err := run(c, &inference.Request{}); !errors.Is(err, boom) || !strings.Contains(err.Error(), "tried again after 1ms") {
			t.Errorf("just before attempt %d is due: %v", i+1, err)
		}
		if n := int(rt.loads.Load()); n != i+1 {
			t.Fatalf("%d loads after %d attempts", n, i+1)
		}
		clk.Advance(time.Millisecond)
	}
	fail = false
	if _, err := run(c, &inference.Request{}); err != nil {
		t.Errorf("after the cause is gone: %v", err)
	}
}

func TestCatalogVerifies(t *testing.T) {
	for _, tc := range []struct{ name, written, want string }{
		{"whole", "weights", ""},
		{"one bit", "weighus", "its SHA-256 is"},
		{"short", "weight", "has 6 bytes, the manifest says 7"},
		{"long", "weightss", "has 8 bytes, the manifest says 7"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			rt := &runtime{}
			c := newCatalog(t, inference.CatalogOptions{
				Manifests: []*inference.Manifest{withFile(t, manifest("m"), dir, "weights", tc.written)},
				Runtimes:  []inference.Runtime{rt}, Default: "m", Dir: dir,
			})
			_, err := run(c, &inference.Request{})
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, inference.ErrModelUnavailable) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "holdfast model pull m") {
				t.Errorf("got %v", err)
			}
			if rt.loads.Load() != 0 {
				t.Error("the runtime was given an unverified file")
			}
		})
	}
}

func TestCatalogMissing(t *testing.T) {
	dir := t.TempDir()
	m := withFile(t, manifest("m"), dir, "weights", "weights")
	if err := os.Remove(filepath.Join(dir, "m", "weights.bin")); err != nil {
		t.Fatal(err)
	}
	c := newCatalog(t, inference.CatalogOptions{Manifests: []*inference.Manifest{m}, Runtimes: []inference.Runtime{&runtime{}}, Dir: dir})
	if err := c.Load(context.Background(), "m"); !errors.Is(err, inference.ErrModelUnavailable) || !errors.Is(err, inference.ErrFileMissing) {
		t.Errorf("missing file: %v", err)
	}
	other := manifest("other")
	other.Runtime = "gpu"
	c = newCatalog(t, inference.CatalogOptions{Manifests: []*inference.Manifest{other}})
	if err := c.Load(context.Background(), "other"); !errors.Is(err, inference.ErrModelUnavailable) || !strings.Contains(err.Error(), `"gpu"`) {
		t.Errorf("missing runtime: %v", err)
	}
}

func TestCatalogContainsPanics(t *testing.T) {
	rt := &runtime{load: func(context.Context, func(done, total int64)) error { panic("poisoned") }}
	c := newCatalog(t, inference.CatalogOptions{Manifests: []*inference.Manifest{manifest("m")}, Runtimes: []inference.Runtime{rt}})
	if err := c.Load(context.Background(), "m"); !errors.Is(err, inference.ErrModelUnavailable) || !strings.Contains(err.Error(), "poisoned") {
		t.Errorf("panic: %v", err)
	}
}

func TestCatalogClose(t *testing.T) {
	loading := make(chan struct{})
	slow := &runtime{load: func(ctx context.Context, _ func(done, total int64)) error {
		close(loading)
		<-ctx.Done()
		return ctx.Err()
	}}
	c, err := inference.NewCatalog(inference.CatalogOptions{Manifests: []*inference.Manifest{manifest("m")}, Runtimes: []inference.Runtime{slow}})
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error)
	go func() { waiting <- c.Load(context.Background(), "m") }()
	<-loading
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-waiting; !errors.Is(err, inference.ErrClosed) {
		t.Errorf("the waiter got %v", err)
	}
	if err := c.Load(context.Background(), "m"); !errors.Is(err, inference.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}

	fast := &runtime{}
	c, err = inference.NewCatalog(inference.CatalogOptions{Manifests: []*inference.Manifest{manifest("m")}, Runtimes: []inference.Runtime{fast}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Load(context.Background(), "m"); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil || fast.closes.Load() != 1 {
		t.Errorf("close: %v, models closed: %d", err, fast.closes.Load())
	}
}

// A request takes the model's sampling exactly where it says nothing.
func TestCatalogDefaults(t *testing.T) {
	c := newCatalog(t, inference.CatalogOptions{Manifests: []*inference.Manifest{manifest("m")}, Runtimes: []inference.Runtime{&runtime{}}, Default: "m"})
	silent := &inference.Request{Unset: inference.Temperature | inference.TopP | inference.TopK}
	p, err := c.Plan(context.Background(), silent)
	if err != nil {
		t.Fatal(err)
	}
	if s := p.Sampling; s.Temperature != 0.7 || s.TopP != 0.9 || s.TopK != 40 || s.MaxTokens != 99 || len(s.Stop) != 1 {
		t.Errorf("a silent request gets %+v", s)
	}
	if silent.Sampling.Temperature != 0 || silent.Unset == 0 {
		t.Error("the caller's request was changed")
	}
	p, err = c.Plan(context.Background(), &inference.Request{Sampling: inference.Sampling{MaxTokens: 3, Stop: []string{"."}}})
	if err != nil {
		t.Fatal(err)
	}
	if s := p.Sampling; s.Temperature != 0 || s.TopP != 0 || s.TopK != 0 || s.MaxTokens != 3 || s.Stop[0] != "." {
		t.Errorf("a greedy request gets %+v", s)
	}
}
