package pebble

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-ai/holdfast/storage"
)

// slowAfter is from when on a disk operation is reported. A healthy disk takes milliseconds.
const slowAfter = 2 * time.Second

// Engine implements storage.Engine on one Pebble in one folder.
type Engine struct {
	dir      string
	o        Options
	metrics  *metrics
	fuse     *fuse
	flushes  atomic.Int32 // that have failed since one succeeded
	health   io.Closer    // watches the fuse for slow operations
	cache    *pebble.Cache
	lock     *pebble.Lock
	db       *pebble.DB
	views    *views
	pipeline *pipeline

	closeOnce sync.Once
	closeErr  error
}

// Open opens the engine in dir, which is created if need be. It fails with ErrLocked if the folder is in use and with
// ErrNewerFormat if a newer release has written it.
func Open(dir string, o Options) (*Engine, error) {
	o = o.withDefaults()
	e := &Engine{dir: dir, o: o}
	var err error
	if e.metrics, err = newMetrics(o.Registerer); err != nil {
		return nil, fmt.Errorf("open data folder %s: %w", dir, err)
	}
	e.fuse = newFuse(o.FS, o.Clock, e.blown)
	e.pipeline = newPipeline(commitEnv{
		apply:       e.apply,
		observe:     e.metrics.observe,
		clock:       o.Clock,
		maxBytes:    o.MaxGroupBytes,
		maxCommits:  o.MaxGroupCommits,
		maxInFlight: o.MaxInFlight,
		linger:      o.Linger,
		lingerFrom:  o.LingerFrom,
	})
	if err := e.lockFolder(); err != nil {
		return nil, err
	}
	if err := e.openDB(); err != nil {
		e.fuse.close()
		return nil, errors.Join(err, e.closeFolder())
	}
	e.fuse.serving.Store(true)
	e.views = newViews(e.db)
	e.pipeline.start()
	return e, nil
}

// lockFolder makes dir and takes its lock.
func (e *Engine) lockFolder() error {
	if err := e.o.FS.MkdirAll(e.dir, 0o700); err != nil {
		return e.folderError("create", err)
	}
	if e.o.FS == vfs.Default {
		// Pebble's lock tells two opens in one process apart by the folder's name only, so there must be only one name.
		dir, err := filepath.EvalSymlinks(e.dir)
		if err == nil {
			dir, err = filepath.Abs(dir)
		}
		if err != nil {
			return e.folderError("find", err)
		}
		e.dir = dir
	}
	lock, err := pebble.LockDirectory(e.dir, e.o.FS)
	if err != nil {
		return e.folderError("lock", err)
	}
	e.lock = lock
	return nil
}

// folderError says what to do about a folder that cannot be used.
func (e *Engine) folderError(what string, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission) && !(what == "lock" && errors.Is(err, syscall.EACCES) && e.locked()),
		errors.Is(err, syscall.EROFS):
		return fmt.Errorf("open data folder %s: cannot %s it: make it writable for this user, or choose another folder: %w", e.dir, what, err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("open data folder %s: cannot %s it: free some space, or choose a folder on another disk: %w", e.dir, what, err)
	case what == "lock":
		return fmt.Errorf("open data folder %s: %w: stop the other server, or choose another folder: %w", e.dir, storage.ErrLocked, err)
	}
	return fmt.Errorf("open data folder %s: cannot %s it: choose a folder that can be written: %w", e.dir, what, err)
}

// locked tells a lock that fcntl refuses with EACCES, which POSIX allows, from a lock file that may not be written.
func (e *Engine) locked() bool {
	f, err := e.o.FS.OpenReadWrite(e.o.FS.PathJoin(e.dir, "LOCK"), vfs.WriteCategoryUnspecified)
	if err != nil {
		return false
	}
	_ = f.Close()
	return true
}

func (e *Engine) openDB() error {
	desc, err := pebble.Peek(e.dir, e.o.FS)
	switch {
	case err != nil && strings.Contains(err.Error(), "unknown format major version"),
		err == nil && desc.Exists && desc.FormatMajorVersion > formatMajorVersion:
		if err == nil {
			err = fmt.Errorf("format version %s, this release writes %s", desc.FormatMajorVersion, formatMajorVersion)
		}
		return fmt.Errorf("open data folder %s: %w: start a newer release on it, or restore a backup made by this one: %w", e.dir, storage.ErrNewerFormat, err)
	case err != nil:
		return fmt.Errorf("open data folder %s: %w", e.dir, err)
	}
	e.cache = pebble.NewCache(e.o.CacheBytes)
	defer e.cache.Unref() // the database holds its own reference
	if e.db, err = pebble.Open(e.dir, e.pebbleOptions()); err == nil && !desc.Exists {
		// A new database begins its log before it has its format, without the offsets of syncs by which damage in the
		// middle of a log is told from its torn end. Acknowledged commits behind the damage would be dropped silently.
		if err = e.db.Flush(); err != nil {
			_ = e.db.Close()
		}
	}
	if blown := e.fuse.failure(); err == nil && blown != nil {
		_ = e.db.Close() // what it has to say follows from the failure
		err = blown
	}
	switch {
	case err == nil:
		return nil
	case pebble.IsCorruptionError(err):
		return fmt.Errorf("open data folder %s: its log or manifest is damaged, and nothing was changed: copy the folder, check the disk, then restore a backup: %w: %w",
			e.dir, storage.ErrCorrupt, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return e.folderError("write to", err)
	}
	return fmt.Errorf("open data folder %s: check the disk and the folder's owner, or restore a backup: %w", e.dir, err)
}

func (e *Engine) pebbleOptions() *pebble.Options {
	comparer := newComparer()
	schema := newKeySchema(comparer)
	events := e.listener()
	health, closer := vfs.WithDiskHealthChecks(e.fuse, slowAfter, nil, events.DiskSlow)
	e.health = closer
	po := &pebble.Options{
		FS:                          health,
		Lock:                        e.lock,
		Cache:                       e.cache,
		Comparer:                    comparer,
		KeySchema:                   schema.Name,
		KeySchemas:                  map[string]*pebble.KeySchema{schema.Name: &schema},
		FormatMajorVersion:          formatMajorVersion,
		Logger:                      logger{e},
		EventListener:               events,
		MemTableSize:                e.o.MemTableBytes,
		MemTableStopWritesThreshold: 8,
		L0CompactionThreshold:       2,
		L0StopWritesThreshold:       1000,
		LBaseMaxBytes:               64 << 20,
	}
	for i := range po.Levels {
		po.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		po.Levels[i].FilterType = pebble.TableFilter
	}
	// Pebble takes keys that share a prefix for versions of one key, and moves the values of all but the first out of
	// the way. Ours are different records that are read together.
	po.Experimental.SpanPolicyFunc = func([]byte) (pebble.SpanPolicy, []byte, error) {
		return pebble.SpanPolicy{DisableValueSeparationBySuffix: true}, nil, nil
	}
	po.EnsureDefaults()
	return po
}

// apply implements commitEnv.apply.
func (e *Engine) apply(requests []*request) (applied, error) {
	size := 64
	for _, r := range requests {
		size += r.Writes.Size() + 16*r.Writes.Len()
	}
	b := e.db.NewBatchWithSize(size)
	for _, r := range requests {
		err := r.Writes.Each(func(key, value []byte, del bool) error {
			if del {
				return b.Delete(key, nil)
			}
			return b.Set(key, value, nil)
		})
		if err != nil {
			return nil, errors.Join(err, b.Close())
		}
	}
	if err := e.db.ApplyNoSyncWait(b, pebble.Sync); err != nil {
		return nil, err
	}
	if err := e.fuse.failure(); err != nil {
		// b may never be synced: where Pebble calls Fatalf it expects the process to end. b is left to the garbage
		// collector, because Pebble may still look at it.
		return nil, err
	}
	// The sequencer is the only writer, so the snapshot ends exactly with b.
	return &batch{e: e, b: b, snapshot: &snapshot{s: e.db.NewSnapshot(), refs: 1}}, nil
}

// batch implements applied.
type batch struct {
	e        *Engine
	b        *pebble.Batch
	snapshot *snapshot
}

func (b *batch) sync() error {
	if err := b.b.SyncWait(); err != nil {
		return err
	}
	return b.b.Close()
}

func (b *batch) publish() {
	if err := b.e.views.publish(b.snapshot); err != nil {
		b.e.o.Logger.Error("closing a snapshot failed", "error", err)
	}
}

func (b *batch) abandon() {
	if err := b.snapshot.s.Close(); err != nil {
		b.e.o.Logger.Error("closing a snapshot failed", "error", err)
	}
}

// blown is called when the fuse blows.
func (e *Engine) blown(err error) {
	e.metrics.readOnly.Set(1)
	e.o.Logger.Error("storage is read-only: a write failed", "folder", e.dir, "error", err)
	e.pipeline.fail(err)
}

// Claim implements storage.Engine.
func (e *Engine) Claim(id storage.ObjectID, epoch storage.Epoch) error {
	return e.pipeline.claim(id, epoch)
}

// Release implements storage.Engine.
func (e *Engine) Release(id storage.ObjectID, epoch storage.Epoch) { e.pipeline.release(id, epoch) }

// Commit implements storage.Engine.
func (e *Engine) Commit(c storage.Commit) { e.pipeline.commit(c) }

// View implements storage.Engine.
func (e *Engine) View() (storage.View, error) {
	v, err := e.views.acquire()
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Failed implements storage.Engine.
func (e *Engine) Failed() error { return e.pipeline.failure() }

// Close implements storage.Engine.
func (e *Engine) Close() error {
	e.closeOnce.Do(func() { e.closeErr = e.close() })
	return e.closeErr
}

func (e *Engine) close() error {
	e.pipeline.close()
	e.fuse.close()
	err := firstError(e.views.close(), e.db.Close(), e.closeFolder())
	if failed := e.pipeline.failure(); failed != nil {
		err = failed // whatever else went wrong follows from it
	}
	if err != nil {
		return fmt.Errorf("close data folder %s: %w", e.dir, err)
	}
	return nil
}

// closeFolder gives up what openDB and lockFolder have taken.
func (e *Engine) closeFolder() error {
	var err error
	if e.health != nil {
		err = e.health.Close()
	}
	return firstError(err, e.lock.Close())
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
