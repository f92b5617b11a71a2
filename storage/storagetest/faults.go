package storagetest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/holdfast-ai/holdfast/storage"
)

func (f *fixture) stopFailed() {
	f.t.Helper()
	f.disk.Release()
	f.closed = true
	if err := f.Engine.Close(); err == nil {
		f.t.Fatal("close after a failed write says that all is well")
	}
}

func (f *fixture) readOnly() {
	f.t.Helper()
	if err := f.Failed(); !errors.Is(err, storage.ErrReadOnly) {
		f.t.Fatalf("after a failed write Failed is %v, want ErrReadOnly", err)
	}
}

func testFailedSync(t *testing.T, open Opener) {
	disk := NewDisk()
	f := start(t, open, disk)
	f.claim(1, 1)
	f.claim(2, 1)
	f.put(1, 1, 0, "durable").wait(t)

	disk.FailSyncs(ErrDisk)
	f.put(1, 1, 0, "lost", 1, "lost").fails(t, storage.ErrReadOnly)
	f.readOnly()
	tried := disk.LogSyncs()
	disk.FailSyncs(nil) // the disk is well again, which must not matter
	f.put(1, 1, 0, "later").fails(t, storage.ErrReadOnly)
	f.put(2, 1, 0, "of another").fails(t, storage.ErrReadOnly)
	f.claim(1, 2) // reads go on, and so do activations
	f.expect(1, 0, "durable")
	f.expect(1, 1, "")
	f.expect(2, 0, "")
	f.stopFailed()
	if n := disk.LogSyncs() - tried; n != 0 {
		t.Fatalf("after a failed sync the log was synced %d times", n)
	}

	f = start(t, open, disk.Crash(0, 1))
	f.expect(1, 0, "durable")
	f.expect(2, 0, "")
	f.stop()
}

// testFailureTakesAll lets a sync fail while later commits are written and queued behind it.
func testFailureTakesAll(t *testing.T, open Opener) {
	disk := NewDisk()
	f := start(t, open, disk)
	for obj := range 4 {
		f.claim(obj, 1)
	}
	disk.Hold()
	disk.FailSyncs(ErrDisk)
	var all []pending
	for n := range 20 {
		all = append(all, f.put(n%4, 1, n, "x"))
		if n == 0 {
			<-disk.Held()
		}
	}
	disk.Release()
	for _, p := range all {
		p.fails(t, storage.ErrReadOnly)
	}
	for n := range all {
		f.expect(n%4, n, "")
	}
	f.stopFailed()
}

// workload commits to a few objects, each commit writing its number to two records, and returns the number of the last
// commit that each object was acknowledged and the last that it tried.
func (f *fixture) workload(epochOf, objects, commits int) (acked, tried []int) {
	acked, tried = make([]int, objects), make([]int, objects)
	var writers sync.WaitGroup
	for obj := range objects {
		writers.Go(func() {
			if f.Claim(id(obj), epoch(epochOf)) != nil {
				return
			}
			for n := 1; n <= commits; n++ {
				tried[obj] = n
				if <-f.put(obj, epochOf, 0, fmt.Sprint(n), n, fmt.Sprint(n)) != nil {
					return
				}
				acked[obj] = n
			}
		})
	}
	writers.Wait()
	return acked, tried
}

// check verifies that each object is in the state after some whole number of commits, from acked to tried.
func (f *fixture) check(acked, tried []int) {
	f.t.Helper()
	for obj := range acked {
		n := 0
		_, _ = fmt.Sscan(f.get(obj, 0), &n)
		if n < acked[obj] || n > tried[obj] {
			f.t.Fatalf("object %d has commit %d; %d were acknowledged and %d tried", obj, n, acked[obj], tried[obj])
		}
		for i := 1; i <= tried[obj]; i++ {
			want := ""
			if i <= n {
				want = fmt.Sprint(i)
			}
			f.expect(obj, i, want)
		}
	}
}

const (
	faultObjects = 3
	faultCommits = 4
	forGood      = 1 << 30
)

// testAnyFailedWrite lets each single write of a run fail in turn: that one alone, and with all that follow it.
func testAnyFailedWrite(t *testing.T, open Opener) {
	for _, lasts := range []int{0, forGood} {
		for n := 1; ; n++ {
			disk := NewDisk()
			f := start(t, open, disk)
			disk.FailWrites(n, n+lasts)
			acked, tried := f.workload(1, faultObjects, faultCommits)
			hit := disk.Writes() >= n
			f.survive(n, acked, tried)
			if !hit {
				if n == 1 || acked[0] != faultCommits {
					t.Fatalf("commits failed, or wrote nothing, without a failed write: %v", acked)
				}
				break
			}
		}
	}
}

// testAnyFailedWriteOfOpen lets each single write of the first open fail in turn.
func testAnyFailedWriteOfOpen(t *testing.T, open Opener) {
	for _, lasts := range []int{0, forGood} {
		for n := 1; ; n++ {
			disk := NewDisk()
			disk.FailWrites(n, n+lasts)
			e, err := open(disk.FS())
			hit := disk.Writes() >= n
			switch {
			case err == nil: // the write comes later, or did not matter
				f := &fixture{t: t, open: open, disk: disk, Engine: e}
				acked, tried := f.workload(1, faultObjects, faultCommits)
				f.survive(n, acked, tried)
			case hit:
				f := start(t, open, disk.Crash(0, uint64(n)))
				f.workload(1, faultObjects, 1)
				f.stop()
			default:
				t.Fatalf("open failed without a failed write: %v", err)
			}
			if !hit {
				break
			}
		}
	}
}

// survive ends a run in which write n failed, and checks what is left of it: in the process, and after a crash that
// loses all or nothing of what was not synced.
func (f *fixture) survive(n int, acked, tried []int) {
	f.t.Helper()
	if f.Failed() != nil {
		f.check(acked, acked) // nothing that was not acknowledged is shown
	}
	disks := []*Disk{f.disk.Crash(0, uint64(n)), f.disk.Crash(100, uint64(n))}
	failed := f.Failed()
	f.closed = true
	if err := f.Close(); err == nil && failed != nil {
		f.t.Fatalf("write %d failed: close says that all is well", n)
	}
	for _, d := range disks {
		after := start(f.t, f.open, d)
		after.check(acked, tried)
		after.workload(2, faultObjects, 1) // it takes writes again
		after.stop()
	}
}

// testCrash cuts the power in the middle of a run, for disks that lose all, half and none of what was not synced.
func testCrash(t *testing.T, open Opener) {
	const objects, commits = 8, 40
	for _, percent := range []int{0, 50, 100} {
		for seed := range uint64(8) {
			disk := NewDisk()
			f := start(t, open, disk)
			var mu sync.Mutex
			acked, tried, total := make([]int, objects), make([]int, objects), 0
			var writers sync.WaitGroup
			crash := make(chan struct{})
			for obj := range objects {
				f.claim(obj, 1)
				writers.Go(func() {
					for n := 1; n <= commits; n++ {
						mu.Lock()
						tried[obj] = n
						mu.Unlock()
						f.put(obj, 1, 0, fmt.Sprint(n), n, fmt.Sprint(n)).wait(t)
						mu.Lock()
						acked[obj] = n
						if total++; total == 20+int(seed)*30 {
							close(crash)
						}
						mu.Unlock()
					}
				})
			}
			<-crash
			mu.Lock()
			ackedThen := append([]int(nil), acked...)
			mu.Unlock()
			lost := disk.Crash(percent, seed)
			mu.Lock()
			triedThen := append([]int(nil), tried...)
			mu.Unlock()
			writers.Wait()
			f.stop()

			f = start(t, open, lost)
			f.check(ackedThen, triedThen)
			f.stop()
		}
	}
}
