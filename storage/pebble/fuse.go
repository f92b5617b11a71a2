package pebble

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-ai/holdfast/internal/clock"
	"github.com/holdfast-ai/holdfast/storage"
)

// fuse is a file system that stops taking writes for good when one to the WAL or the MANIFEST has failed.
//
// After a failed fsync the kernel may have dropped the pages and marked them clean, so that a second fsync succeeds
// and means nothing. Not retrying it ourselves is not enough: Pebble flushes, rotates logs and rewrites manifests in
// the background. With the fuse blown none of it reaches the disk, and what is there stays as the failure left it.
type fuse struct {
	vfs.FS
	clock clock.Clock
	blown func(error) // called once

	mu struct {
		sync.Mutex
		err     error
		closing chan struct{}
	}
}

func newFuse(fs vfs.FS, c clock.Clock, blown func(error)) *fuse {
	f := &fuse{FS: fs, clock: c, blown: blown}
	f.mu.closing = make(chan struct{})
	return f
}

func (f *fuse) blow(err error) {
	f.mu.Lock()
	first := f.mu.err == nil
	if first {
		f.mu.err = fmt.Errorf("%w: no write after one failed: %w", storage.ErrReadOnly, err)
	}
	f.mu.Unlock()
	if first {
		f.blown(err)
	}
}

func (f *fuse) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.err
}

// close lets those who wait in create go.
func (f *fuse) close() { close(f.mu.closing) }

// create refuses to make a file once blown. It takes its time about it: Pebble tries a failed flush again at once.
func (f *fuse) create() error {
	err := f.failure()
	if err == nil {
		return nil
	}
	over := make(chan struct{})
	timer := f.clock.AfterFunc(time.Second, func() { close(over) })
	defer timer.Stop()
	select {
	case <-over:
	case <-f.mu.closing:
	}
	return err
}

// vital reports whether a failed write to the file must stop all writing. A table that cannot be written is written
// again, as another file.
func (f *fuse) vital(name string) bool {
	base := f.PathBase(name)
	return strings.HasSuffix(base, ".log") || strings.HasPrefix(base, "MANIFEST-") || strings.HasPrefix(base, "marker.")
}

func (f *fuse) wrap(name string, file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		if f.vital(name) {
			f.blow(err)
		}
		return nil, err
	}
	return &fuseFile{File: file, fuse: f, name: name, vital: f.vital(name)}, nil
}

func (f *fuse) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.create(); err != nil {
		return nil, err
	}
	file, err := f.FS.Create(name, category)
	return f.wrap(name, file, err)
}

func (f *fuse) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.create(); err != nil {
		return nil, err
	}
	file, err := f.FS.ReuseForWrite(oldname, newname, category)
	return f.wrap(newname, file, err)
}

func (f *fuse) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	if err := f.create(); err != nil {
		return nil, err
	}
	file, err := f.FS.OpenReadWrite(name, category, opts...)
	return f.wrap(name, file, err)
}

// OpenDir wraps directories for their Sync: it makes a new WAL or MANIFEST findable.
func (f *fuse) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &fuseFile{File: file, fuse: f, name: name, vital: true}, nil
}

func (f *fuse) Link(oldname, newname string) error {
	return f.change(func() error { return f.FS.Link(oldname, newname) })
}

func (f *fuse) Remove(name string) error {
	return f.change(func() error { return f.FS.Remove(name) })
}

func (f *fuse) RemoveAll(name string) error {
	return f.change(func() error { return f.FS.RemoveAll(name) })
}

func (f *fuse) Rename(oldname, newname string) error {
	return f.change(func() error { return f.FS.Rename(oldname, newname) })
}

func (f *fuse) MkdirAll(dir string, perm os.FileMode) error {
	return f.change(func() error { return f.FS.MkdirAll(dir, perm) })
}

func (f *fuse) change(do func() error) error {
	if err := f.failure(); err != nil {
		return err
	}
	return do()
}

// Lock is not refused: it decides nothing about what is on disk.
func (f *fuse) Lock(name string) (io.Closer, error) { return f.FS.Lock(name) }

// Unwrap implements vfs.FS.
func (f *fuse) Unwrap() vfs.FS { return f.FS }

type fuseFile struct {
	vfs.File
	fuse  *fuse
	name  string
	vital bool
}

func (f *fuseFile) done(err error) error {
	if err != nil && f.vital {
		f.fuse.blow(fmt.Errorf("write %s: %w", f.name, err))
	}
	return err
}

func (f *fuseFile) Write(p []byte) (int, error) {
	if err := f.fuse.failure(); err != nil {
		return 0, err
	}
	n, err := f.File.Write(p)
	return n, f.done(err)
}

func (f *fuseFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.fuse.failure(); err != nil {
		return 0, err
	}
	n, err := f.File.WriteAt(p, off)
	return n, f.done(err)
}

func (f *fuseFile) Preallocate(offset, length int64) error {
	if err := f.fuse.failure(); err != nil {
		return err
	}
	return f.done(f.File.Preallocate(offset, length))
}

func (f *fuseFile) Sync() error {
	return f.sync(f.File.Sync)
}

func (f *fuseFile) SyncData() error {
	return f.sync(f.File.SyncData)
}

func (f *fuseFile) SyncTo(length int64) (full bool, err error) {
	err = f.sync(func() (err error) {
		full, err = f.File.SyncTo(length)
		return err
	})
	return full, err
}

func (f *fuseFile) sync(do func() error) error {
	if err := f.fuse.failure(); err != nil {
		return err
	}
	return f.done(do())
}
