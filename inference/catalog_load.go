package inference

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// load is one attempt to load a model, shared by all that wait for it.
type load struct {
	done  chan struct{} // closed when model and err are final
	model Model
	err   error

	mu struct {
		sync.Mutex
		progress Progress
		changed  chan struct{} // closed and replaced when progress has changed
	}
}

func newLoad() *load {
	l := &load{done: make(chan struct{})}
	l.mu.progress = Progress{Phase: Loading}
	l.mu.changed = make(chan struct{})
	return l
}

// advance notes progress, at most once a hundredth, so that waiters are not woken for every block of a file.
func (l *load) advance(done, total int64) {
	if total <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.mu.progress
	if old.Total == int(total) && 100*done/total == 100*int64(old.Done)/total {
		return
	}
	l.mu.progress.Done, l.mu.progress.Total = int(done), int(total)
	close(l.mu.changed)
	l.mu.changed = make(chan struct{})
}

func (l *load) progress() Progress {
	p, _ := l.watch()
	return p
}

// watch returns the progress and a channel that is closed when it has changed.
func (l *load) watch() (Progress, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.progress, l.mu.changed
}

// wait returns the model once it is loaded. report is called on the caller's goroutine only.
func (l *load) wait(ctx context.Context, report func(Progress)) (Model, error) {
	for {
		p, changed := l.watch()
		if report != nil {
			report(p)
		}
		select {
		case <-l.done:
			return l.model, l.err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-changed:
		}
	}
}

// acquire returns the loaded model of a request and its manifest, loading it if need be.
func (c *Catalog) acquire(ctx context.Context, r *Request) (Model, *Manifest, error) {
	name := r.Model
	if r.Plan != nil {
		name = r.Plan.Model
	}
	e, err := c.find(name)
	if err != nil {
		return nil, nil, err
	}
	model, l, err := c.begin(e)
	if err == nil && model == nil {
		model, err = l.wait(ctx, r.Progress)
	}
	if err != nil {
		return nil, nil, err
	}
	return model, e.manifest, nil
}

// begin returns e's model, or the load that will give it: the running one, or a new one.
func (c *Catalog) begin(e *catalogEntry) (Model, *load, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.mu.closed:
		return nil, nil, fmt.Errorf("catalog: model %q: %w", e.manifest.Name, ErrClosed)
	case e.model != nil:
		return e.model, nil, nil
	case e.load != nil:
		return nil, e.load, nil
	}
	if wait := e.retryAt.Sub(c.o.Clock.Now()); e.err != nil && wait > 0 {
		return nil, nil, fmt.Errorf("%w; it is tried again after %s", e.err, wait.Round(time.Millisecond))
	}
	l := newLoad()
	e.load = l
	c.loads.Go(func() { c.run(e, l) })
	return nil, l, nil
}

// run is the goroutine of one load.
func (c *Catalog) run(e *catalogEntry, l *load) {
	start := c.o.Clock.Now()
	model, err := c.open(e.manifest, l.advance)
	took := c.o.Clock.Now().Sub(start)
	name := e.manifest.Name
	if err == nil && c.ctx.Err() != nil { // closed in the last moment: nobody will use it
		model, err = nil, errors.Join(ErrClosed, model.Close())
	}
	if err != nil && c.ctx.Err() != nil && !errors.Is(err, ErrClosed) {
		err = fmt.Errorf("catalog: load model %q: %w", name, ErrClosed)
	}
	c.mu.Lock()
	e.load, e.err = nil, err
	if err == nil {
		e.model, e.failures = model, 0
	} else {
		e.failures++
		e.retryAt = c.o.Clock.Now().Add(backoff(c.o.RetryBase, c.o.RetryCap, e.failures))
	}
	failures := e.failures
	c.mu.Unlock()
	switch {
	case err == nil:
		c.metrics.loaded.Inc()
		c.metrics.loads.WithLabelValues(name, "ok").Inc()
		c.metrics.seconds.Observe(took.Seconds())
		c.o.Logger.Info("model loaded", "model", name, "digest", e.manifest.Digest(), "took", took, "bytes", model.MemoryBytes())
	case !errors.Is(err, ErrClosed):
		c.metrics.loads.WithLabelValues(name, "failed").Inc()
		c.o.Logger.Error("a model could not be loaded", "model", name, "failures", failures, "err", err)
	}
	l.model, l.err = model, err
	close(l.done)
}

func backoff(base, limit time.Duration, failures int) time.Duration {
	d := base
	for range failures - 1 {
		if d *= 2; d >= limit {
			return limit
		}
	}
	return min(d, limit)
}

// open verifies a model's files and has its runtime load them. A runtime that panics fails the load, not the server.
func (c *Catalog) open(m *Manifest, progress func(done, total int64)) (model Model, err error) {
	defer func() {
		if p := recover(); p != nil {
			c.o.Logger.Error("a runtime panicked", "model", m.Name, "runtime", m.Runtime, "panic", p, "stack", string(debug.Stack()))
			model, err = nil, fmt.Errorf("%w: model %q: runtime %q panicked: %v", ErrModelUnavailable, m.Name, m.Runtime, p)
		}
	}()
	rt, ok := c.runtimes[m.Runtime]
	if !ok {
		return nil, fmt.Errorf("%w: model %q needs the runtime %q, which this server does not have", ErrModelUnavailable, m.Name, m.Runtime)
	}
	dir := filepath.Join(c.o.Dir, m.Name)
	if err := Verify(c.ctx, m, dir, progress); err != nil {
		return nil, err
	}
	model, err = rt.Load(c.ctx, m, dir, filepath.Join(c.o.Cache, m.Name), progress)
	if err != nil {
		return nil, fmt.Errorf("load model %q with runtime %q: %w", m.Name, m.Runtime, err)
	}
	return model, nil
}

type catalogMetrics struct {
	loaded  prometheus.Gauge
	loads   *prometheus.CounterVec // model, outcome
	seconds prometheus.Histogram
}

func newCatalogMetrics(r prometheus.Registerer) (*catalogMetrics, error) {
	const ns, sub = "holdfast", "catalog"
	m := &catalogMetrics{
		loaded: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "models_loaded", Help: "Models in memory."}),
		loads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "loads_total", Help: "Loads of models that ended, by outcome: ok or failed.",
		}, []string{"model", "outcome"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: ns, Subsystem: sub, Name: "load_seconds",
			Help:    "Duration of loads that succeeded, verification included.",
			Buckets: prometheus.ExponentialBuckets(0.05, 2, 12),
		}),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.loaded, m.loads, m.seconds} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("catalog: register metrics: %w; use one registry a catalog", err)
		}
	}
	return m, nil
}
