package node

import (
	"fmt"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-ai/holdfast/internal/metrics"
)

// adminHandler serves figures and profiles. Profiles can slow a server down and show parts of its memory: the listener
// is a loopback one by default, and has no door for pages of other sites.
func adminHandler(r *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Handler(r))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index) // heap, goroutine, … by name
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = fmt.Fprintln(w, "/metrics       figures for Prometheus; docs/METRICS.md\n/debug/pprof/  profiles for `go tool pprof`")
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") == "cross-site" {
			http.Error(w, "forbidden: pages of other sites may not read this", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}
