package storagetest

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// ErrDisk is what a Disk fails with.
var ErrDisk = errors.New("injected disk failure")

// Disk is a disk in memory. Its methods are safe for concurrent use.
type Disk struct {
	mem *vfs.MemFS

	mu struct {
		sync.Mutex
		held     bool
		release  chan struct{} // closed by Release
		waiting  chan struct{} // closed when a sync of the log is held up
		failSync error
		failFrom int // number of the first write that fails; 0: none
		failUpTo int // and of the last
		writes   int
		logSyncs int
	}
}

// NewDisk returns an empty disk.
func NewDisk() *Disk { return &Disk{mem: vfs.NewCrashableMem()} }

// FS returns the disk as a file system.
func (d *Disk) FS() vfs.FS {
	return &diskFS{FS: errorfs.Wrap(d.mem, errorfs.InjectorFunc(d.inject)), disk: d}
}

// Crash returns the disk as it may be after a power failure now. percent of what was not synced survives, chosen by
// seed. The disk itself goes on as if nothing had happened.
func (d *Disk) Crash(percent int, seed uint64) *Disk {
	clone := d.mem.CrashClone(vfs.CrashCloneCfg{
		UnsyncedDataPercent: percent,
		RNG:                 rand.New(rand.NewPCG(seed, uint64(percent))),
	})
	return &Disk{mem: clone}
}

// Hold makes syncs of the log wait until Release.
func (d *Disk) Hold() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.mu.held {
		d.mu.held = true
		d.mu.release, d.mu.waiting = make(chan struct{}), make(chan struct{})
	}
}

// Held returns a channel that is closed when a sync waits because of Hold.
func (d *Disk) Held() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.waiting
}

// Release ends Hold.
func (d *Disk) Release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.held {
		d.mu.held = false
		close(d.mu.release)
	}
}

// FailSyncs makes syncs of the log fail with err; nil ends that.
func (d *Disk) FailSyncs(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.failSync = err
}

// FailWrites makes every write fail from the n-th to the last, counted from now and from 1; n 0 ends that. A write is
// whatever changes the disk, syncs included.
func (d *Disk) FailWrites(n, last int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.writes, d.mu.failFrom, d.mu.failUpTo = 0, n, last
}

// Writes returns the number of writes since FailWrites.
func (d *Disk) Writes() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.writes
}

// LogSyncs returns the number of syncs of the log that were tried.
func (d *Disk) LogSyncs() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.logSyncs
}

func (d *Disk) inject(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.writes++
	if d.mu.failFrom > 0 && d.mu.writes >= d.mu.failFrom && d.mu.writes <= d.mu.failUpTo {
		return ErrDisk
	}
	return nil
}

func isLog(name string) bool { return strings.HasSuffix(name, ".log") }

// beforeSync waits and fails as the test wants.
func (d *Disk) beforeSync(name string) error {
	if !isLog(name) {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.logSyncs++
	if d.mu.held {
		release := d.mu.release
		select {
		case <-d.mu.waiting:
		default:
			close(d.mu.waiting)
		}
		d.mu.Unlock()
		<-release
		d.mu.Lock()
	}
	return d.mu.failSync
}

type diskFS struct {
	vfs.FS
	disk *Disk
}

func (f *diskFS) wrap(name string, file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &diskFile{File: file, disk: f.disk, name: name}, nil
}

func (f *diskFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	return f.wrap(name, file, err)
}

func (f *diskFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(oldname, newname, c)
	return f.wrap(newname, file, err)
}

func (f *diskFS) Unwrap() vfs.FS { return f.FS }

type diskFile struct {
	vfs.File
	disk *Disk
	name string
}

func (f *diskFile) Sync() error {
	if err := f.disk.beforeSync(f.name); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *diskFile) SyncData() error {
	if err := f.disk.beforeSync(f.name); err != nil {
		return err
	}
	return f.File.SyncData()
}

func (f *diskFile) SyncTo(length int64) (bool, error) {
	if err := f.disk.beforeSync(f.name); err != nil {
		return false, err
	}
	return f.File.SyncTo(length)
}
