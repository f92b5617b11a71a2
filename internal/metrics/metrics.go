// Package metrics makes the registry of a server, with the figures that are of the process and not of a layer, and the
// handler that shows it. Every layer registers its own; docs/METRICS.md lists all.
//
//	registry := metrics.NewRegistry("1.2.3")
//	mux.Handle("/metrics", metrics.Handler(registry))
package metrics

import (
	"net/http"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// NewRegistry returns a registry with the figures of the process, of the Go runtime and of the build.
func NewRegistry(version string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "holdfast", Name: "build_info", Help: "1; its labels tell which build runs.",
		ConstLabels: prometheus.Labels{"version": version, "go": runtime.Version()},
	})
	build.Set(1)
	// Their names cannot collide in a registry that was just made.
	r.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Handler shows what r gathers, in the format that the client asks for.
func Handler(r *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{Registry: r})
}
