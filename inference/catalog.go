package inference

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-ai/holdfast/internal/clock"
)

// CatalogOptions of NewCatalog. Manifests and Runtimes say what can run; the zero value of everything else is a sound
// default.
type CatalogOptions struct {
	Manifests []*Manifest
	Runtimes  []Runtime
	// Aliases are further names of models.
	Aliases map[string]string
	// Default is the model of requests that name none. Empty: such requests are refused.
	Default string

	// Dir holds a folder with the files of each model, by its name. Cache holds what runtimes derive from them;
	// default: the folder ".cache" in Dir.
	Dir, Cache string

	// RetryBase is how long after a failed load a request tries again; it doubles with each failure in a row up to
	// RetryCap. Default 1 s and 1 min.
	RetryBase, RetryCap time.Duration

	Clock      clock.Clock
	Logger     *slog.Logger          // default: none
	Registerer prometheus.Registerer // default: none
}

// withDefaults is the one place of defaults and validation.
func (o CatalogOptions) withDefaults() (CatalogOptions, error) {
	names := make(map[string]bool, len(o.Manifests))
	for _, m := range o.Manifests {
		if err := m.Validate(); err != nil {
			return o, fmt.Errorf("catalog: %w", err)
		}
		if names[m.Name] {
			return o, fmt.Errorf("catalog: %w %q: two models have this name", ErrInvalidManifest, m.Name)
		}
		names[m.Name] = true
	}
	for alias, name := range o.Aliases {
		if names[alias] {
			return o, fmt.Errorf("catalog: alias %q is the name of a model; choose another", alias)
		}
		if !names[name] {
			return o, fmt.Errorf("catalog: alias %q: %w: %q", alias, ErrModelNotFound, name)
		}
	}
	if o.Default != "" && !names[o.Default] && o.Aliases[o.Default] == "" {
		return o, fmt.Errorf("catalog: default model: %w: %q; known: %s", ErrModelNotFound, o.Default, known(o.Manifests))
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&o.RetryBase, time.Second}, {&o.RetryCap, time.Minute}} {
		if *d.field < 0 {
			return o, errors.New("catalog: a duration in CatalogOptions is negative; leave it 0 for its default")
		}
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if o.Cache == "" {
		o.Cache = filepath.Join(o.Dir, ".cache")
	}
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

// Catalog is the Runner of all models: it finds a request's model by name, loads it when it is first asked for, and
// keeps it. Its methods are safe for concurrent use.
//
// What holds:
//
//  1. A model is loaded once for all that wait for it, from files that were verified just before (invariant 9).
//  2. A load belongs to the catalog: those who wait may leave, it goes on. Close cancels it.
//  3. A failed load fails those who wait. The next request tries again, but not before a time that doubles with each
//     failure.
type Catalog struct {
	o        CatalogOptions
	runtimes map[string]Runtime
	entries  map[string]*catalogEntry // by name; the map itself never changes
	metrics  *catalogMetrics
	ctx      context.Context // of loads; ends with Close
	cancel   context.CancelFunc
	loads    sync.WaitGroup // added to under mu while not closed

	mu struct {
		sync.Mutex
		closed bool
	}
}

// catalogEntry is one model; its fields but the manifest are guarded by Catalog.mu.
type catalogEntry struct {
	manifest *Manifest
	model    Model // nil unless loaded
	load     *load // nil unless loading
	err      error // of the last load, if it failed
	failures int   // in a row
	retryAt  time.Time
}

// NewCatalog returns a catalog that has loaded nothing yet.
func NewCatalog(o CatalogOptions) (*Catalog, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	m, err := newCatalogMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	c := &Catalog{
		o: o, metrics: m,
		runtimes: make(map[string]Runtime, len(o.Runtimes)),
		entries:  make(map[string]*catalogEntry, len(o.Manifests)),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	for _, r := range o.Runtimes {
		c.runtimes[r.Name()] = r
	}
	for _, m := range o.Manifests {
		c.entries[m.Name] = &catalogEntry{manifest: m}
	}
	return c, nil
}

// Run implements Runner. While the model is being loaded, r.Progress hears of it.
func (c *Catalog) Run(ctx context.Context, r *Request, emit func(Chunk) error) (Usage, error) {
	model, m, err := c.acquire(ctx, r)
	if err != nil {
		return Usage{}, err
	}
	return model.Run(ctx, withModelDefaults(r, m), emit)
}

// Plan implements Planner.
func (c *Catalog) Plan(ctx context.Context, r *Request) (*Plan, error) {
	model, m, err := c.acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	p, ok := model.(Planner)
	if !ok {
		return nil, nil
	}
	return p.Plan(ctx, withModelDefaults(r, m))
}

// Load loads a model, or waits for it, without running anything. An empty name is the default's.
func (c *Catalog) Load(ctx context.Context, name string) error {
	_, _, err := c.acquire(ctx, &Request{Model: name})
	return err
}

// Ready tells why a model could not run at once: it is not loaded, still being loaded, or its load failed.
func (c *Catalog) Ready(name string) error {
	e, err := c.find(name)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.mu.closed:
		return ErrClosed
	case e.model != nil:
		return nil
	case e.load != nil:
		if p := e.load.progress(); p.Total > 0 {
			return fmt.Errorf("model %q is being loaded: %d %%", e.manifest.Name, 100*int64(p.Done)/int64(p.Total))
		}
		return fmt.Errorf("model %q is being loaded", e.manifest.Name)
	case e.err != nil:
		return e.err
	}
	return fmt.Errorf("model %q is not loaded", e.manifest.Name)
}

// Manifests returns those of all models, by name. They must not be changed.
func (c *Catalog) Manifests() []*Manifest {
	all := slices.Clone(c.o.Manifests)
	slices.SortFunc(all, func(a, b *Manifest) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Close cancels loads, closes every model and waits for both. Requests that wait fail with ErrClosed.
func (c *Catalog) Close() error {
	c.mu.Lock()
	c.mu.closed = true
	c.mu.Unlock()
	c.cancel()
	c.loads.Wait() // from here on no entry changes any more
	var errs []error
	for name, model := range c.takeModels() {
		if err := model.Close(); err != nil {
			errs = append(errs, fmt.Errorf("catalog: close model %q: %w", name, err))
		}
		c.metrics.loaded.Dec()
	}
	return errors.Join(errs...)
}

func (c *Catalog) takeModels() map[string]Model {
	c.mu.Lock()
	defer c.mu.Unlock()
	models := make(map[string]Model)
	for name, e := range c.entries {
		if e.model != nil {
			models[name], e.model = e.model, nil
		}
	}
	return models
}

// find resolves a name, an alias, or "" for the default.
func (c *Catalog) find(name string) (*catalogEntry, error) {
	asked := name
	if name == "" {
		name = c.o.Default
	}
	if target, ok := c.o.Aliases[name]; ok {
		name = target
	}
	if e, ok := c.entries[name]; ok {
		return e, nil
	}
	if asked == "" {
		return nil, fmt.Errorf("%w: the request names none and there is no default; known: %s", ErrModelNotFound, known(c.o.Manifests))
	}
	return nil, fmt.Errorf("%w: %q; known: %s", ErrModelNotFound, asked, known(c.o.Manifests))
}

func known(all []*Manifest) string {
	if len(all) == 0 {
		return "none"
	}
	names := make([]string, len(all))
	for i, m := range all {
		names[i] = m.Name
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// withModelDefaults returns r under the model's own name and with the model's sampling where r says nothing. A plan
// has everything filled in already.
func withModelDefaults(r *Request, m *Manifest) *Request {
	filled := *r
	filled.Model = m.Name
	if r.Plan != nil {
		return &filled
	}
	s, d := &filled.Sampling, m.Defaults
	if r.Unset&Temperature != 0 {
		s.Temperature = d.Temperature
	}
	if r.Unset&TopP != 0 {
		s.TopP = d.TopP
	}
	if r.Unset&TopK != 0 {
		s.TopK = d.TopK
	}
	if s.MaxTokens == 0 {
		s.MaxTokens = d.MaxTokens
	}
	if len(s.Stop) == 0 {
		s.Stop = d.Stop
	}
	filled.Unset = 0
	return &filled
}
