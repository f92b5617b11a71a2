package pebble

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-ai/holdfast/internal/clock"
	"github.com/holdfast-ai/holdfast/storage"
)

// fuse is a file system that takes no writes any more once one to the log or the manifest has failed.
//
// After a failed fsync the kernel may have dropped the pages and marked them clean, so that a second fsync succeeds and
// means nothing. Not to retry it ourselves is not enough: Pebble flushes, rotates logs and rewrites manifests in the
// background. With the fuse blown none of that reaches the disk, which stays as the failure left it.
//
// What Pebble is told then depends on the file:
//
//   - Log, manifest, markers and directories: that all went well. Pebble panics where it cannot rotate its log or move
//     a marker, and calls Fatalf where it cannot write the manifest; either would take the readers along. The lie hurts
//     nobody, because blown is called before it is told: no commit is acknowledged or shown from then on, whatever
//     Pebble says of it.
//   - Tables: the truth. They would be read, and so a flush must keep what it could not write.
//
// A table that cannot be written does not blow the fuse: Pebble writes it again, as another file.
type fuse struct {
	vfs.FS
	clock   clock.Clock
	blown   func(error)   // called once
	serving atomic.Bool   // the database is open
	closing chan struct{} // closed by close

	mu struct {
		sync.Mutex
		err error
	}
}

func newFuse(fs vfs.FS, c clock.Clock, blown func(error)) *fuse {
	return &fuse{FS: fs, clock: c, blown: blown, closing: make(chan struct{})}
}

func (f *fuse) blow(err error) {
	f.mu.Lock()
	first := f.mu.err == nil
	if first {
		f.mu.err = fmt.Errorf("no write after one has failed: %w: %w", storage.ErrReadOnly, err)
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
func (f *fuse) close() { close(f.closing) }

// vital reports whether the failure of a write to the file makes it unknown what is on disk.
func (f *fuse) vital(name string) bool {
	base := f.PathBase(name)
	return strings.HasSuffix(base, ".log") || strings.HasPrefix(base, "MANIFEST-") || strings.HasPrefix(base, "marker.")
}

// create makes a file for writing.
func (f *fuse) create(name string, do func() (vfs.File, error)) (vfs.File, error) {
	vital := f.vital(name)
	if err := f.failure(); err != nil {
		if vital {
			return nowhere{}, nil
		}
		f.pause()
		return nil, err
	}
	file, err := do()
	switch {
	case err == nil:
		return &fuseFile{File: file, fuse: f, name: name, vital: vital}, nil
	case vital:
		f.blow(fmt.Errorf("create %s: %w", name, err))
		return nowhere{}, nil
	}
	return nil, err
}

// pause slows Pebble down, which tries a failed flush again at once and for ever.
func (f *fuse) pause() {
	if !f.serving.Load() {
		return
	}
	over := make(chan struct{})
	timer := f.clock.AfterFunc(time.Second, func() { close(over) })
	defer timer.Stop()
	select {
	case <-over:
	case <-f.closing:
	}
}

func (f *fuse) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.create(name, func() (vfs.File, error) { return f.FS.Create(name, category) })
}

func (f *fuse) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.create(newname, func() (vfs.File, error) { return f.FS.ReuseForWrite(oldname, newname, category) })
}

func (f *fuse) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return f.create(name, func() (vfs.File, error) { return f.FS.OpenReadWrite(name, category, opts...) })
}

// OpenDir wraps directories for their Sync, which makes a new log or manifest findable.
func (f *fuse) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &fuseFile{File: file, fuse: f, name: name, vital: true}, nil
}

func (f *fuse) Remove(name string) error {
	if f.failure() != nil {
		return nil
	}
	return f.FS.Remove(name)
}

func (f *fuse) RemoveAll(name string) error {
	if f.failure() != nil {
		return nil
	}
	return f.FS.RemoveAll(name)
}

func (f *fuse) Link(oldname, newname string) error {
	if err := f.failure(); err != nil {
		return err
	}
	return f.FS.Link(oldname, newname)
}

func (f *fuse) Rename(oldname, newname string) error {
	if err := f.failure(); err != nil {
		return err
	}
	return f.FS.Rename(oldname, newname)
}

func (f *fuse) MkdirAll(dir string, perm os.FileMode) error {
	if err := f.failure(); err != nil {
		return err
	}
	return f.FS.MkdirAll(dir, perm)
}

// Unwrap implements vfs.FS.
func (f *fuse) Unwrap() vfs.FS { return f.FS }

// fuseFile is a file that was opened for writing, or a directory.
type fuseFile struct {
	vfs.File
	fuse  *fuse
	name  string
	vital bool
}

// write does one write, or tells what a blown fuse tells.
func (f *fuseFile) write(do func() error) error {
	err := f.fuse.failure()
	if err == nil {
		err = do()
		if err != nil && f.vital {
			f.fuse.blow(fmt.Errorf("write %s: %w", f.name, err))
		}
	}
	if f.vital {
		return nil
	}
	return err
}

func (f *fuseFile) Write(p []byte) (n int, err error) {
	n = len(p)
	err = f.write(func() (err error) {
		n, err = f.File.Write(p)
		return err
	})
	if err == nil {
		n = len(p)
	}
	return n, err
}

func (f *fuseFile) WriteAt(p []byte, off int64) (n int, err error) {
	n = len(p)
	err = f.write(func() (err error) {
		n, err = f.File.WriteAt(p, off)
		return err
	})
	if err == nil {
		n = len(p)
	}
	return n, err
}

// Preallocate only makes later writes cheaper; whether there is room is for them to find out.
func (f *fuseFile) Preallocate(offset, length int64) error {
	if f.fuse.failure() == nil {
		_ = f.File.Preallocate(offset, length)
	}
	return nil
}

func (f *fuseFile) Sync() error { return f.write(f.File.Sync) }

func (f *fuseFile) SyncData() error { return f.write(f.File.SyncData) }

func (f *fuseFile) SyncTo(length int64) (full bool, err error) {
	err = f.write(func() (err error) {
		full, err = f.File.SyncTo(length)
		return err
	})
	return full, err
}

func (f *fuseFile) Close() error {
	err := f.File.Close()
	if err != nil && f.vital {
		f.fuse.blow(fmt.Errorf("close %s: %w", f.name, err))
		return nil
	}
	return err
}

// nowhere is the file that a blown fuse gives out for the log and the manifest.
type nowhere struct{}

func (nowhere) Close() error                           { return nil }
func (nowhere) Read([]byte) (int, error)               { return 0, os.ErrClosed }
func (nowhere) ReadAt([]byte, int64) (int, error)      { return 0, os.ErrClosed }
func (nowhere) Write(p []byte) (int, error)            { return len(p), nil }
func (nowhere) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (nowhere) Preallocate(int64, int64) error         { return nil }
func (nowhere) Stat() (vfs.FileInfo, error)            { return nowhereInfo{}, nil }
func (nowhere) Sync() error                            { return nil }
func (nowhere) SyncTo(int64) (bool, error)             { return false, nil }
func (nowhere) SyncData() error                        { return nil }
func (nowhere) Prefetch(int64, int64) error            { return nil }
func (nowhere) Fd() uintptr                            { return vfs.InvalidFd }

type nowhereInfo struct{}

func (nowhereInfo) Name() string           { return "nowhere" }
func (nowhereInfo) Size() int64            { return 0 }
func (nowhereInfo) Mode() os.FileMode      { return 0 }
func (nowhereInfo) ModTime() time.Time     { return time.Time{} }
func (nowhereInfo) IsDir() bool            { return false }
func (nowhereInfo) Sys() any               { return nil }
func (nowhereInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }
