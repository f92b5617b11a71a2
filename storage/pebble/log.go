package pebble

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// logger is Pebble's logger. Its Infof is dropped: the events that an operator needs come from the listener.
type logger struct{ e *Engine }

func (logger) Infof(string, ...any) {}

func (l logger) Errorf(format string, args ...any) {
	l.e.o.Logger.Error("pebble", "folder", l.e.dir, "message", fmt.Sprintf(format, args...))
}

// Fatalf is called where Pebble does not know what is on disk any more, and expects the process to end. Readers need
// not die for that: the fuse stops whatever Pebble does next from reaching the disk.
func (l logger) Fatalf(format string, args ...any) {
	l.e.fuse.blow(fmt.Errorf(format, args...))
}

// maxFlushes is how often in a row a flush may fail. Pebble would try for ever, without a pause, and let commits wait
// once the memtables are full; better they are refused before.
const maxFlushes = 8

func (e *Engine) listener() *pebble.EventListener {
	log := e.o.Logger
	return &pebble.EventListener{
		BackgroundError: func(err error) {
			if e.fuse.failure() == nil && !errors.Is(err, pebble.ErrCancelledCompaction) {
				log.Error("storage background work failed", "folder", e.dir, "error", err)
			}
		},
		FlushEnd: func(info pebble.FlushInfo) {
			if info.Err == nil {
				e.flushes.Store(0)
			} else if e.flushes.Add(1) == maxFlushes {
				e.fuse.blow(fmt.Errorf("flush: %w", info.Err))
			}
		},
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			log.Error("storage found a damaged block", "path", info.Path, "error", info.Details)
		},
		DiskSlow: func(info pebble.DiskSlowInfo) {
			e.metrics.slow.Inc()
			log.Warn("disk is slow", "path", info.Path, "operation", info.OpType.String(), "duration", info.Duration)
		},
		WriteStallBegin: func(info pebble.WriteStallBeginInfo) {
			e.metrics.stalls.Inc()
			log.Warn("storage stalls writes", "reason", info.Reason)
		},
		WriteStallEnd: func() { log.Info("storage takes writes again") },
	}
}
