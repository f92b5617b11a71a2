package pebble_test

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-ai/holdfast/proto/statepb"
	"github.com/holdfast-ai/holdfast/storage"
	"github.com/holdfast-ai/holdfast/storage/pebble"
)

// These benchmarks use the real disk of the folder for temporary files. Their figures are those of its fsync.
//
//	go test -run '^$' -bench . ./storage/pebble

func benchStore(b *testing.B, dir string) *storage.Store {
	b.Helper()
	e, err := pebble.Open(dir, pebble.Options{})
	if err != nil {
		b.Fatal(err)
	}
	s, err := storage.Open(e, storage.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

func benchObject(b *testing.B, s *storage.Store, n int) *storage.Object {
	b.Helper()
	o, err := s.Activate(storage.Address{Namespace: "default", Kind: "session", Name: fmt.Sprint(n)})
	if err != nil {
		b.Fatal(err)
	}
	return o
}

// stream commits a frame of 100 bytes as soon as the one before is durable, n times.
func stream(o *storage.Object, n int, finished chan<- error) {
	frames := [][]byte{make([]byte, 100)}
	offset := o.LastOffset()
	exists := o.Exists()
	var commit func(error)
	commit = func(err error) {
		if err != nil || n == 0 {
			finished <- err
			return
		}
		n--
		batch := o.NewBatch()
		if !exists {
			exists = true
			batch.PutMeta(&statepb.Meta{})
		}
		offset++
		batch.Append(offset, frames)
		o.Commit(batch, commit)
	}
	commit(nil)
}

// BenchmarkCommit is durable acknowledgements: each object has one commit in flight.
func BenchmarkCommit(b *testing.B) {
	for _, objects := range []int{1, 8, 64, 512} {
		b.Run(fmt.Sprintf("objects=%d", objects), func(b *testing.B) {
			s := benchStore(b, filepath.Join(b.TempDir(), "data"))
			open := make([]*storage.Object, objects)
			for n := range open {
				open[n] = benchObject(b, s, n)
			}
			finished := make(chan error, objects)
			b.ResetTimer()
			for n, o := range open {
				stream(o, b.N/objects+min(1, max(0, b.N%objects-n)), finished)
			}
			for range open {
				if err := <-finished; err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "acks/s")
		})
	}
}

// BenchmarkPacedCommit is 400 sessions that each produce 25 tokens a second, whether the last is durable or not. What
// matters is the processor time of one, with a linger and without; that of the benchmark's own clock is in it.
func BenchmarkPacedCommit(b *testing.B) {
	for _, linger := range []time.Duration{-1, 2 * time.Millisecond} {
		b.Run(fmt.Sprintf("linger=%v", max(linger, 0)), func(b *testing.B) {
			e, err := pebble.Open(filepath.Join(b.TempDir(), "data"), pebble.Options{Linger: linger})
			if err != nil {
				b.Fatal(err)
			}
			s, err := storage.Open(e, storage.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			paced(b, s)
		})
	}
}

func paced(b *testing.B, s *storage.Store) {
	const objects, pace = 400, 40 * time.Millisecond
	open, offsets := make([]*storage.Object, objects), make([]uint64, objects)
	for n := range open {
		open[n] = benchObject(b, s, n)
	}
	var pending, waited atomic.Int64
	pending.Store(int64(b.N))
	done := make(chan struct{})
	before := processorTime(b)
	b.ResetTimer()
	start := time.Now()
	for i := range b.N {
		if ahead := time.Until(start.Add(time.Duration(i) * pace / objects)); ahead > 0 {
			time.Sleep(ahead)
		}
		n := i % objects
		batch := open[n].NewBatch()
		if offsets[n]++; offsets[n] == 1 {
			batch.PutMeta(&statepb.Meta{})
		}
		batch.Append(offsets[n], [][]byte{make([]byte, 100)})
		began := time.Now()
		open[n].Commit(batch, func(err error) {
			if err != nil {
				b.Error(err)
			}
			waited.Add(int64(time.Since(began)))
			if pending.Add(-1) == 0 {
				close(done)
			}
		})
	}
	<-done
	b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/1000/float64(b.N), "cpu-µs/op")
	b.ReportMetric(float64(waited.Load())/float64(b.N)/1e6, "ms-delay")
}

// BenchmarkReadLog reads windows of 64 KiB from a log of 10,000 frames in 1,000 records.
func BenchmarkReadLog(b *testing.B) {
	s := benchStore(b, filepath.Join(b.TempDir(), "data"))
	o := benchObject(b, s, 1)
	const records, frames = 1000, 10
	done := make(chan error, records)
	for i := range uint64(records) {
		batch := o.NewBatch()
		if i == 0 {
			batch.PutMeta(&statepb.Meta{})
		}
		var fs [][]byte
		for range frames {
			fs = append(fs, make([]byte, 100))
		}
		batch.Append(i*frames+1, fs)
		o.Commit(batch, func(err error) { done <- err })
	}
	for range records {
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	var after uint64
	var bytes int64
	for b.Loop() {
		got, err := s.ReadLog(o.Ref(), after, records*frames, 64<<10)
		if err != nil {
			b.Fatal(err)
		}
		for _, f := range got {
			bytes += int64(len(f.Data))
		}
		if after += uint64(len(got)); after == records*frames {
			after = 0
		}
	}
	b.SetBytes(bytes / int64(b.N))
}

// BenchmarkActivate activates objects of a folder that has just been opened, of 2,000 that exist and as many that do not.
func BenchmarkActivate(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "data")
	const objects = 2000
	e, err := pebble.Open(dir, pebble.Options{})
	if err != nil {
		b.Fatal(err)
	}
	s, err := storage.Open(e, storage.Options{})
	if err != nil {
		b.Fatal(err)
	}
	finished := make(chan error, objects)
	for n := range objects {
		stream(benchObject(b, s, n), 10, finished)
	}
	for range objects {
		if err := <-finished; err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	for _, test := range []struct {
		name  string
		first int
		fresh bool
	}{
		{"cold", 0, true}, {"warm", 0, false}, {"missing", objects, false},
	} {
		b.Run(test.name, func(b *testing.B) {
			s := benchStore(b, dir)
			if !test.fresh {
				for n := range objects {
					benchObject(b, s, n).Release()
				}
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				if test.fresh && i > 0 && i%objects == 0 {
					b.StopTimer() // all are warm now
					if err := s.Close(); err != nil {
						b.Fatal(err)
					}
					s = benchStore(b, dir)
					b.StartTimer()
				}
				benchObject(b, s, test.first+i%objects).Release()
			}
		})
	}
}
