//go:build browser

package web_test

import (
	"net/http"
	"testing"

	"github.com/holdfast-ai/holdfast/internal/wiretest"
	"github.com/holdfast-ai/holdfast/web"
)

// TestModules runs testdata/unit.js: the socket layer on a scripted socket and clock, the Markdown, the conversation.
func TestModules(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/", web.Handler())
	mux.Handle("/test/", http.StripPrefix("/test/", http.FileServer(http.Dir("testdata"))))
	s := wiretest.New(t, wiretest.Options{Web: mux})
	b := open(t, browser(t), desktop, s.URL+"/test/unit.html")
	b.await("window.results")
	results := eval[[]struct{ Name, Error string }](b, "window.results")
	if len(results) < 50 {
		t.Errorf("%d unit tests ran, want at least 50", len(results))
	}
	for _, r := range results {
		if r.Error != "" {
			t.Errorf("%s\n%s", r.Name, r.Error)
		}
	}
}
