package pebble

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	groups   prometheus.Histogram
	syncs    prometheus.Histogram
	failures prometheus.Counter
	slow     prometheus.Counter
	stalls   prometheus.Counter
	readOnly prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		groups: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "holdfast_storage_group_commits",
			Help:    "Commits that shared one batch and its sync.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 12),
		}),
		syncs: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "holdfast_storage_sync_seconds",
			Help:    "Time from the writing of a group to its being durable and completed.",
			Buckets: prometheus.ExponentialBuckets(100e-6, 2, 16),
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_storage_failed_groups_total",
			Help: "Groups of commits that could not be made durable.",
		}),
		slow: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_storage_disk_slow_total",
			Help: "Disk operations that took longer than two seconds.",
		}),
		stalls: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_storage_write_stalls_total",
			Help: "Times that commits waited for memtables or compactions.",
		}),
		readOnly: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_storage_read_only",
			Help: "1 if storage takes no commits because a write failed.",
		}),
	}
	for _, c := range []prometheus.Collector{m.groups, m.syncs, m.failures, m.slow, m.stalls, m.readOnly} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) observe(commits int, waited time.Duration, err error) {
	if err != nil {
		m.failures.Inc()
		return
	}
	m.groups.Observe(float64(commits))
	m.syncs.Observe(waited.Seconds())
}
