package storage

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	commits     *prometheus.CounterVec // by result
	activations prometheus.Counter
	quarantined prometheus.Gauge
	bytes       prometheus.Counter
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		commits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_storage_commits_total",
			Help: "Commits of objects that completed, by result.",
		}, []string{"result"}),
		activations: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_storage_activations_total",
			Help: "Epochs claimed for objects.",
		}),
		quarantined: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_storage_quarantined_objects",
			Help: "Objects in which a damaged record was found since the start.",
		}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_storage_commit_bytes_total",
			Help: "Bytes of keys and values that objects committed.",
		}),
	}
	for _, c := range []prometheus.Collector{m.commits, m.activations, m.quarantined, m.bytes} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func commitResult(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, ErrFenced):
		return "fenced"
	case errors.Is(err, ErrReadOnly):
		return "read_only"
	case errors.Is(err, ErrClosed):
		return "closed"
	case errors.Is(err, ErrCorrupt):
		return "quarantined"
	case errors.Is(err, ErrInvalid):
		return "invalid"
	}
	return "failed"
}
