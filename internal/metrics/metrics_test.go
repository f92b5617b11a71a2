package metrics_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/holdfast-ai/holdfast/internal/metrics"
)

func TestHandler(t *testing.T) {
	w := httptest.NewRecorder()
	metrics.Handler(metrics.NewRegistry("7.8.9")).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{`version="7.8.9"`, "go_goroutines ", "process_start_time_seconds "} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("the answer lacks %q", want)
		}
	}
}
