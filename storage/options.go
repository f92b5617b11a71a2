package storage

import (
	"crypto/rand"
	"io"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
)

// Options configures a Store. The zero value is valid.
type Options struct {
	Logger     *slog.Logger          // default: discards
	Registerer prometheus.Registerer // default: metrics are kept but not exposed
	Rand       io.Reader             // makes the store's id; default: crypto/rand
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	return o
}
