package inference

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// ErrFileMissing says that a model's file is not there. Errors that wrap it wrap ErrModelUnavailable too.
var ErrFileMissing = errors.New("file is missing")

// Verify reads every file of m in dir and compares its size and digest (invariant 9). progress, if not nil, hears of
// bytes read. An error wraps ErrModelUnavailable and says what to do, unless ctx ended: then it wraps its cause.
func Verify(ctx context.Context, m *Manifest, dir string, progress func(done, total int64)) error {
	if progress == nil {
		progress = func(int64, int64) {}
	}
	var done int64
	total := m.Bytes()
	for _, f := range m.Files {
		err := verifyFile(ctx, f, filepath.Join(dir, filepath.FromSlash(f.Path)), func(n int64) {
			done += n
			progress(done, total)
		})
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return fmt.Errorf("verify model %q: %w", m.Name, context.Cause(ctx))
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%w: model %q: %w: %s; fetch it with `holdfast model pull %s`", ErrModelUnavailable, m.Name,
				ErrFileMissing, filepath.Join(dir, filepath.FromSlash(f.Path)), m.Name)
		default:
			return fmt.Errorf("%w: model %q: %w; fetch it again with `holdfast model pull %s`", ErrModelUnavailable, m.Name, err, m.Name)
		}
	}
	return nil
}

func verifyFile(ctx context.Context, f File, name string, read func(n int64)) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", name)
	}
	// A wrong size is found without reading; it also keeps a file that grows for ever from being hashed for ever.
	if st.Size() != f.Size {
		return fmt.Errorf("%s has %d bytes, the manifest says %d", name, st.Size(), f.Size)
	}
	h := sha256.New()
	buf := make([]byte, 1<<20)
	for left := f.Size; left > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := file.Read(buf[:min(int64(len(buf)), left)])
		h.Write(buf[:n])
		left -= int64(n)
		read(int64(n))
		if errors.Is(err, io.EOF) && left > 0 {
			return fmt.Errorf("%s became shorter while it was read", name)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	if sum := hex.EncodeToString(h.Sum(nil)); sum != f.SHA256 {
		return fmt.Errorf("%s is not the file of the manifest: its SHA-256 is %s, not %s", name, sum, f.SHA256)
	}
	return nil
}
