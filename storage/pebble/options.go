package pebble

import (
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-ai/holdfast/internal/clock"
)

// Options configures an Engine. The zero value is valid.
type Options struct {
	// FS is where the data folder is. Default: the machine's.
	FS         vfs.FS
	Logger     *slog.Logger          // default: discards
	Registerer prometheus.Registerer // default: metrics are kept but not exposed
	Clock      clock.Clock           // times the linger; default: clock.Real

	// CacheBytes bounds the block cache. Default: 64 MiB.
	CacheBytes int64
	// MemTableBytes is the size of a memtable. One or two exist as a rule, eight at most, and the log that a start
	// replays is about as large.
	// Default: 16 MiB.
	MemTableBytes uint64

	// MaxGroupBytes and MaxGroupCommits bound what is merged into one batch of Pebble. A single commit may be larger.
	// Defaults: 1 MiB, 4096.
	MaxGroupBytes   int
	MaxGroupCommits int
	// MaxInFlight is how many groups may be written and not yet synced. One is synced while the next is written; more
	// only make groups smaller. Default: 2.
	MaxInFlight int

	// Linger is how long a group may wait for more commits while many streams are committing. Default: 2 ms; negative:
	// never.
	Linger time.Duration
	// LingerFrom is how many commits must be expected within Linger, by the rate of the last moments, for a group to
	// wait. Default: 8, which is 4,000 commits a second.
	LingerFrom int
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	if o.CacheBytes <= 0 {
		o.CacheBytes = 64 << 20
	}
	if o.MemTableBytes == 0 {
		o.MemTableBytes = 16 << 20
	}
	if o.MaxGroupBytes <= 0 {
		o.MaxGroupBytes = 1 << 20
	}
	if o.MaxGroupCommits <= 0 {
		o.MaxGroupCommits = 4096
	}
	if o.MaxInFlight <= 0 {
		o.MaxInFlight = 2
	}
	if o.Linger == 0 {
		o.Linger = 2 * time.Millisecond
	}
	if o.LingerFrom <= 0 {
		o.LingerFrom = 8
	}
	return o
}
