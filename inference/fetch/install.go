package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"

	"github.com/holdfast-ai/holdfast/inference"
)

// part is a file on its way: bytes on disk and their hash so far.
type part struct {
	file *os.File
	hash hash.Hash
	size int64
}

// openPart opens the unfinished file of f, with what an earlier pull has left in it.
func (p *pull) openPart(f inference.File) (*part, error) {
	// Named by digest: the remains of another version of the model are never taken for this one's.
	file, err := os.OpenFile(p.partName(f), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	t := &part{file: file, hash: sha256.New()}
	n, err := io.Copy(t.hash, io.LimitReader(file, f.Size))
	if err == nil {
		var st os.FileInfo
		if st, err = file.Stat(); err == nil && st.Size() > n { // longer than the file can be
			err = t.reset()
			n = 0
		}
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	t.size = n
	return t, nil
}

func (p *pull) partName(f inference.File) string { return filepath.Join(p.work, f.SHA256+".part") }
func (p *pull) etagName(f inference.File) string { return filepath.Join(p.work, f.SHA256+".etag") }

// reset begins from nothing.
func (t *part) reset() error {
	if err := t.file.Truncate(0); err != nil {
		return err
	}
	if _, err := t.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	t.hash.Reset()
	t.size = 0
	return nil
}

// Write appends.
func (t *part) Write(b []byte) (int, error) {
	n, err := t.file.Write(b)
	t.hash.Write(b[:n])
	t.size += int64(n)
	return n, err
}

func (t *part) sum() string { return hex.EncodeToString(t.hash.Sum(nil)) }

// install verifies t and moves it to its place in the model's folder, durably.
func (p *pull) install(t *part, f inference.File) error {
	if t.size != f.Size {
		return fmt.Errorf("%w: %s has %d bytes, want %d", ErrDigest, f.Path, t.size, f.Size)
	}
	if sum := t.sum(); sum != f.SHA256 {
		return fmt.Errorf("%w: %s has the SHA-256 %s, want %s", ErrDigest, f.Path, sum, f.SHA256)
	}
	if err := t.file.Sync(); err != nil {
		return err
	}
	if err := t.file.Close(); err != nil { // some systems cannot rename an open file
		return err
	}
	name := filepath.Join(p.dir, filepath.FromSlash(f.Path))
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if err := os.Rename(p.partName(f), name); err != nil {
		return err
	}
	if err := os.Remove(p.etagName(f)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return syncDir(filepath.Dir(name))
}

// copyFile installs f from r, which holds the whole file.
func (p *pull) copyFile(ctx context.Context, f inference.File, r io.Reader, stage Stage, source string) error {
	t, err := p.openPart(f)
	if err != nil {
		return err
	}
	defer t.file.Close() // a second close after install is harmless
	if err := t.reset(); err != nil {
		return err
	}
	// One byte more than the file may have tells a longer one apart without reading all of it.
	err = p.copy(ctx, t, io.LimitReader(r, f.Size+1), f.Size, stage, source)
	if err == nil {
		err = p.install(t, f)
	}
	if err != nil {
		_ = t.file.Close()
		_ = os.Remove(p.partName(f)) // the next pull would overwrite it anyway
		return err
	}
	return nil
}

// copy appends r to t, telling of it, until r or ctx ends.
func (p *pull) copy(ctx context.Context, t *part, r io.Reader, total int64, stage Stage, source string) error {
	buf := make([]byte, 256<<10)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := t.Write(buf[:n]); err != nil {
				return err
			}
			p.o.Progress(Progress{Stage: stage, Source: source, Done: min(t.size, total), Total: total})
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// syncDir makes a rename in dir durable, where the system can.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return ignoreUnsupported(d.Sync())
}
