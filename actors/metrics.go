package actors

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	activations  prometheus.Gauge
	activated    prometheus.Counter
	effects      prometheus.Gauge
	cursors      prometheus.Gauge
	panics       prometheus.Counter
	commits      prometheus.Counter
	failed       prometheus.Counter
	commitTime   prometheus.Histogram
	refused      *prometheus.CounterVec
	alarms       prometheus.Counter
	alarmsFailed prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	const ns, sub = "holdfast", "actors"
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help})
	}
	m := &metrics{
		activations: gauge("active", "Objects in memory."),
		activated:   counter("activations_total", "Activations since the start."),
		effects:     gauge("effects_running", "Effects, such as generations, that run."),
		cursors:     gauge("cursors", "Readers attached to objects."),
		panics:      counter("panics_total", "Panics of handlers and effects that were contained."),
		commits:     counter("commits_total", "Commits that became durable."),
		failed:      counter("commits_failed_total", "Commits that failed; each ended an activation."),
		commitTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: ns, Subsystem: sub, Name: "commit_seconds",
			Help:    "From handing a commit to storage until it is durable.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2.5, 12),
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "refused_total", Help: "Client messages refused before their object saw them.",
		}, []string{"reason"}),
		alarms:       counter("alarms_total", "Alarms fired."),
		alarmsFailed: counter("alarms_failed_total", "Alarms whose handler failed; they come again."),
	}
	if r != nil {
		r.MustRegister(m.activations, m.activated, m.effects, m.cursors, m.panics, m.commits, m.failed, m.commitTime,
			m.refused, m.alarms, m.alarmsFailed)
	}
	return m
}
