package pebble

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/goleak"

	"github.com/holdfast-ai/holdfast/proto/statepb"
	"github.com/holdfast-ai/holdfast/storage"
)

// openFails opens dir and wants an error that is target and says what to do.
func openFails(t *testing.T, dir string, o Options, target error, hint string) {
	t.Helper()
	e, err := Open(dir, o)
	if err == nil {
		_ = e.Close()
		t.Fatal("it opens")
	}
	if target != nil && !errors.Is(err, target) {
		t.Errorf("error %q is not %q", err, target)
	}
	if !strings.Contains(err.Error(), hint) || !strings.Contains(err.Error(), filepath.Base(dir)) {
		t.Errorf("error %q does not name the folder and say %q", err, hint)
	}
}

func mustOpen(t *testing.T, dir string, o Options) (*Engine, *storage.Store) {
	t.Helper()
	e, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := storage.Open(e, storage.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return e, s
}

func mustClose(t *testing.T, c io.Closer) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

func address(n int) storage.Address {
	return storage.Address{Namespace: "default", Kind: "session", Name: fmt.Sprint(n)}
}

// write creates object n with one frame.
func write(t *testing.T, s *storage.Store, n int, frame []byte) {
	t.Helper()
	if err := tryWrite(s, n, frame); err != nil {
		t.Fatal(err)
	}
}

func tryWrite(s *storage.Store, n int, frame []byte) error {
	o, err := s.Activate(address(n))
	if err != nil {
		return err
	}
	defer o.Release()
	b := o.NewBatch()
	b.PutMeta(&statepb.Meta{})
	b.Append(o.LastOffset()+1, [][]byte{frame})
	done := make(chan error, 1)
	o.Commit(b, func(err error) { done <- err })
	return <-done
}

func TestFolderIsLocked(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dir := filepath.Join(t.TempDir(), "data")
	_, s := mustOpen(t, dir, Options{})
	openFails(t, dir, Options{}, storage.ErrLocked, "stop the other server")

	link := filepath.Join(t.TempDir(), "data") // another name of the same folder
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	openFails(t, link, Options{}, storage.ErrLocked, "stop the other server")
	mustClose(t, s)
	_, s = mustOpen(t, link, Options{})
	mustClose(t, s)
}

// TestFolderIsLockedByAnotherProcess runs this test's binary again as the other process.
func TestFolderIsLockedByAnotherProcess(t *testing.T) {
	const env = "HOLDFAST_TEST_HOLD_FOLDER"
	if dir := os.Getenv(env); dir != "" {
		_, s := mustOpen(t, dir, Options{})
		fmt.Println("open")
		_, _ = io.Copy(io.Discard, os.Stdin) // until the parent closes it
		mustClose(t, s)
		return
	}
	dir := filepath.Join(t.TempDir(), "data")
	cmd := exec.Command(os.Args[0], "-test.run=^TestFolderIsLockedByAnotherProcess$")
	cmd.Env = append(os.Environ(), env+"="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("open"))); err != nil {
		t.Fatal(err)
	}
	openFails(t, dir, Options{}, storage.ErrLocked, "stop the other server")
	_ = in.Close()
	_, _ = io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	_, s := mustOpen(t, dir, Options{})
	mustClose(t, s)
}

// refuse is a file system on which operations fail with err from the n-th write on, or always if match fits the path.
func refuse(base vfs.FS, err error, match func(errorfs.Op) bool) vfs.FS {
	return errorfs.Wrap(base, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if match(op) {
			return &fs.PathError{Op: "write", Path: op.Path, Err: err}
		}
		return nil
	}))
}

func TestFolderCannotBeWritten(t *testing.T) {
	isWrite := func(op errorfs.Op) bool {
		return op.Kind.ReadOrWrite() == errorfs.OpIsWrite || op.Kind == errorfs.OpLock
	}
	isLock := func(op errorfs.Op) bool { return op.Kind == errorfs.OpLock }
	for _, test := range []struct {
		err    error
		match  func(errorfs.Op) bool
		target error
		hint   string
	}{
		{syscall.EACCES, isWrite, fs.ErrPermission, "make it writable for this user"},
		{syscall.EROFS, isWrite, syscall.EROFS, "make it writable for this user"},
		{syscall.EPERM, isLock, fs.ErrPermission, "make it writable for this user"},
		{syscall.ENOSPC, isWrite, syscall.ENOSPC, "free some space"},
		{syscall.EIO, isWrite, syscall.EIO, "choose a folder that can be written"},
		{syscall.EAGAIN, isLock, storage.ErrLocked, "stop the other server"},
	} {
		openFails(t, "data", Options{FS: refuse(vfs.NewMem(), test.err, test.match)}, test.target, test.hint)
	}

	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("not a folder"), 0o600); err != nil {
		t.Fatal(err)
	}
	openFails(t, file, Options{}, syscall.ENOTDIR, "choose a folder that can be written")
}

func TestNewerFormats(t *testing.T) {
	t.Run("of Pebble that this release knows", func(t *testing.T) {
		mem := vfs.NewMem()
		e, s := mustOpen(t, "data", Options{FS: mem})
		if err := e.db.RatchetFormatMajorVersion(formatMajorVersion + 1); err != nil {
			t.Fatal(err)
		}
		mustClose(t, s)
		openFails(t, "data", Options{FS: mem}, storage.ErrNewerFormat, "start a newer release")
	})
	t.Run("of Pebble that it does not know", func(t *testing.T) {
		mem := vfs.NewMem()
		_, s := mustOpen(t, "data", Options{FS: mem})
		mustClose(t, s)
		f, err := mem.Create("data/marker.format-version.999999.999", vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		mustClose(t, f)
		openFails(t, "data", Options{FS: mem}, storage.ErrNewerFormat, "start a newer release")
	})
}

func TestFormatIsPinned(t *testing.T) {
	mem := vfs.NewMem()
	e, s := mustOpen(t, "data", Options{FS: mem})
	defer mustClose(t, s)
	// A change of these is a change of the format of every data folder there is.
	if got := fmt.Sprintf("%s %s %d", e.db.FormatMajorVersion(), comparerName, keySchemaBundle); got != "021 holdfast.object.v1 16" {
		t.Fatalf("the format is %s", got)
	}
}

// damage flips a byte of each file that matches: the one at offset, or the one in the middle if that is 0.
func damage(t *testing.T, pattern string, offset int) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no file matches %s (%v)", pattern, err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		at := offset
		if at == 0 {
			at = len(data) / 2
		}
		if at >= len(data) {
			continue
		}
		data[at] ^= 0x55
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDamagedManifestStopsTheStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	_, s := mustOpen(t, dir, Options{})
	write(t, s, 1, []byte("x"))
	mustClose(t, s)
	damage(t, filepath.Join(dir, "MANIFEST-*"), 0)
	openFails(t, dir, Options{}, storage.ErrCorrupt, "restore a backup")
}

// TestDamagedLogStopsTheStart damages the log before its end, where it cannot be the tail that a crash has torn.
func TestDamagedLogStopsTheStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	_, s := mustOpen(t, dir, Options{})
	for n := range 50 {
		write(t, s, n, random(4096))
	}
	mustClose(t, s)
	damage(t, filepath.Join(dir, "*.log"), 100_000)
	openFails(t, dir, Options{}, storage.ErrCorrupt, "restore a backup")
}

func random(n int) []byte {
	data := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = r.Read(data)
	return data
}

// TestDamagedBlockStopsItsObjects damages one block of a table (invariant 8).
func TestDamagedBlockStopsItsObjects(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	e, s := mustOpen(t, dir, Options{})
	const objects = 20
	for n := range objects {
		write(t, s, n, random(10_000)) // Pebble looks for the flipped bit, in quadratic time
	}
	if err := e.db.Flush(); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	damage(t, filepath.Join(dir, "*.sst"), 0)

	_, s = mustOpen(t, dir, Options{})
	bad := 0
	for n := range objects {
		o, err := s.Activate(address(n))
		if err == nil {
			_, err = o.ReadLog(0, 1, 1)
			o.Release()
		}
		if err != nil && !errors.Is(err, storage.ErrCorrupt) {
			t.Fatalf("object %d: %v", n, err)
		}
		if err != nil {
			bad++
		} else if err := tryWrite(s, n, nil); err != nil {
			t.Fatal(err)
		}
	}
	if bad == 0 || bad > 2 || s.Quarantined() != bad {
		t.Fatalf("a damaged block stops %d of %d objects, %d are quarantined", bad, objects, s.Quarantined())
	}
	mustClose(t, s)
}

// TestMissingObjectsReadNoBlock looks where most data is, on the last level.
func TestMissingObjectsReadNoBlock(t *testing.T) {
	mem := vfs.NewMem()
	e, s := mustOpen(t, "data", Options{FS: mem})
	for n := range 200 {
		write(t, s, n, nil)
	}
	if err := e.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false); err != nil {
		t.Fatal(err)
	}
	if m := e.db.Metrics(); m.Levels[6].TablesCount != m.Total().TablesCount {
		t.Fatal("not everything is on the last level")
	}
	if n := e.db.Metrics().Total().Additional.ValueBlocksSize; n != 0 {
		t.Fatalf("%d bytes of values are kept apart from their keys", n)
	}
	const missing = 200
	before := e.db.Metrics().Filter
	for n := range missing {
		o, err := s.Activate(address(1_000_000 + n))
		if err != nil || o.Exists() {
			t.Fatalf("a missing object exists: %v", err)
		}
		o.Release()
	}
	after := e.db.Metrics().Filter
	if hits := after.Hits - before.Hits; hits < missing*9/10 {
		t.Fatalf("the bloom filter decided %d of %d missing objects", hits, missing)
	}
	mustClose(t, s)
}

// TestFailuresInTheBackground lets the rotation of a log and the rewriting of a manifest fail. Pebble would panic or end
// the process; the engine turns read-only, and what was acknowledged is there when it is opened again.
func TestFailuresInTheBackground(t *testing.T) {
	in := func(part string) func(errorfs.Op) bool {
		return func(op errorfs.Op) bool { return strings.Contains(op.Path, part) }
	}
	for _, test := range []struct {
		name  string
		match func(errorfs.Op) bool
	}{
		{"log", in(".log")},
		{"rotation of the log", func(op errorfs.Op) bool {
			return in(".log")(op) && (op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpReuseForWrite)
		}},
		{"folder", func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileSync && op.Path == "data" }},
		{"manifest", in("MANIFEST")},
		{"tables", in(".sst")},
	} {
		t.Run(test.name, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			var armed atomic.Bool
			mem := vfs.NewMem()
			broken := refuse(mem, syscall.EIO, func(op errorfs.Op) bool {
				return armed.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && test.match(op)
			})
			e, s := mustOpen(t, "data", Options{FS: broken, MemTableBytes: 256 << 10})
			write(t, s, 0, nil)
			armed.Store(true)
			acked := 1
			for n := 1; n < 500 && e.Failed() == nil; n++ {
				if tryWrite(s, n, random(50_000)) == nil { // a memtable is full after five
					acked = n + 1
				}
			}
			check := func(s *storage.Store) {
				t.Helper()
				for n := range acked {
					if o, err := s.Inspect(address(n)); err != nil || o.LastOffset() != 1 {
						t.Fatalf("object %d of %d: %v", n, acked, err)
					}
				}
			}
			check(s)
			if !errors.Is(e.Failed(), storage.ErrReadOnly) {
				t.Fatalf("after %d commits the engine says %v", acked, e.Failed())
			}
			if err := s.Close(); err == nil {
				t.Fatal("close says that all is well")
			}
			_, s = mustOpen(t, "data", Options{FS: mem})
			check(s)
			write(t, s, 1000, nil)
			mustClose(t, s)
		})
	}
}

// TestFailedTableIsWrittenAgain: a flush that fails is no reason to stop.
func TestFailedTableIsWrittenAgain(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	failures := 3
	mem := vfs.NewMem()
	broken := refuse(mem, syscall.EIO, func(op errorfs.Op) bool {
		if op.Kind != errorfs.OpFileWrite || !strings.HasSuffix(op.Path, ".sst") || failures == 0 {
			return false
		}
		failures--
		return true
	})
	e, s := mustOpen(t, "data", Options{FS: broken})
	write(t, s, 1, random(1000))
	if err := e.db.Flush(); err != nil {
		t.Fatal(err)
	}
	if failures > 0 {
		t.Fatalf("%d failures were not used", failures)
	}
	write(t, s, 2, nil)
	mustClose(t, s)
}

func TestComparerSplitsObjects(t *testing.T) {
	c := newComparer()
	object := append([]byte{'o', 0, 0}, bytes.Repeat([]byte{0xff}, 20)...)
	for _, test := range []struct {
		key  []byte
		want int
	}{
		{append(object, "l12345678"...), 23},
		{object, 23},
		{object[:22], 22},
		{[]byte("n\x00\x00default\x00session\x00a name longer than that"), 42},
		{[]byte{}, 0},
	} {
		if got := c.Split(test.key); got != test.want {
			t.Errorf("key %q is split at %d, want %d", test.key, got, test.want)
		}
	}
}
