package wasm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/gguf"
	"github.com/holdfast-ai/holdfast/inference/scheduler"
	"github.com/holdfast-ai/holdfast/inference/template"
	"github.com/holdfast-ai/holdfast/inference/tokenizer"
)

// Name of the runtime in manifests.
const Name = "wasm"

// Runtime loads models from GGUF files. It is safe for concurrent use.
type Runtime struct{ options Options }

var _ inference.Runtime = (*Runtime)(nil)

// NewRuntime returns a runtime whose models have the given options.
func NewRuntime(o Options) *Runtime { return &Runtime{o} }

// Name implements inference.Runtime.
func (r *Runtime) Name() string { return Name }

// Load implements inference.Runtime. The model is an inference.Planner. Files that are missing, damaged or of an
// architecture that the guest cannot compute are errors that wrap inference.ErrModelUnavailable.
func (r *Runtime) Load(ctx context.Context, m *inference.Manifest, dir, cache string, progress func(done, total int64)) (inference.Model, error) {
	loaded, err := r.load(ctx, m, dir, cache, progress)
	if err != nil {
		return nil, fmt.Errorf("wasm: loading model %q: %w", m.Name, err)
	}
	return loaded, nil
}

func (r *Runtime) load(ctx context.Context, m *inference.Manifest, dir, cache string, progress func(done, total int64)) (*model, error) {
	path, digest, err := modelFile(m)
	if err != nil {
		return nil, err
	}
	templ, err := template.ForFamily(m.Family)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", inference.ErrModelUnavailable, err)
	}
	file, err := gguf.Open(filepath.Join(dir, filepath.FromSlash(path)))
	if err != nil {
		return nil, fmt.Errorf("%w: %w; `holdfast model pull` fetches it again", inference.ErrModelUnavailable, err)
	}
	defer file.Close()
	tok, err := tokenizer.FromGGUF(file)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", inference.ErrModelUnavailable, err)
	}
	stepper, err := OpenStepper(ctx, Source{File: file, SHA256: digest, Cache: cache, Progress: progress}, r.options)
	if err != nil {
		return nil, err
	}
	o := r.options.Scheduler
	o.Model, o.Digest = m.Name, m.Digest()
	if o.Logger == nil {
		o.Logger = r.options.Logger
	}
	s, err := scheduler.New(stepper, tok, templ, o)
	if err != nil {
		return nil, errors.Join(err, stepper.Close())
	}
	return &model{Scheduler: s, stepper: stepper}, nil
}

// modelFile returns the manifest's one GGUF file and its digest.
func modelFile(m *inference.Manifest) (path string, digest [sha256.Size]byte, err error) {
	for _, f := range m.Files {
		if !strings.HasSuffix(strings.ToLower(f.Path), ".gguf") {
			continue
		}
		if path != "" {
			return "", digest, fmt.Errorf("%w: its manifest names more than one GGUF file", inference.ErrModelUnavailable)
		}
		sum, err := hex.DecodeString(f.SHA256)
		if err != nil || len(sum) != len(digest) {
			return "", digest, fmt.Errorf("%w: the SHA-256 of %s in its manifest is not 64 hexadecimal digits", inference.ErrModelUnavailable, f.Path)
		}
		path, digest = f.Path, [sha256.Size]byte(sum)
	}
	if path == "" {
		return "", digest, fmt.Errorf("%w: its manifest names no GGUF file", inference.ErrModelUnavailable)
	}
	return path, digest, nil
}

// model is a loaded model: a scheduler, which owns the stepper.
type model struct {
	*scheduler.Scheduler
	stepper *Stepper
}

var (
	_ inference.Model   = (*model)(nil)
	_ inference.Planner = (*model)(nil)
)

// MemoryBytes implements inference.Model.
func (m *model) MemoryBytes() int64 { return m.stepper.MemoryBytes() }
