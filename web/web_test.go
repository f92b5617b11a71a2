package web_test

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-ai/holdfast/web"
)

func get(method, target string, header ...string) *http.Response {
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	web.Handler().ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	var from io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		from = z
	}
	b, err := io.ReadAll(from)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestHandler(t *testing.T) {
	for _, c := range []struct {
		method, target string
		header         []string
		status         int
		want           map[string]string // "" for absent
		body           string            // a part of it
	}{
		{"GET", "/", nil, 200, map[string]string{"Content-Type": "text/html; charset=utf-8", "Content-Encoding": "", "Vary": "Accept-Encoding", "Cache-Control": "no-cache"}, "<!doctype html>"},
		{"GET", "/index.html", nil, 200, map[string]string{"Content-Type": "text/html; charset=utf-8"}, "<!doctype html>"},
		{"GET", "/?utm=1", nil, 200, nil, "<!doctype html>"},
		{"GET", "/style.css", []string{"Accept-Encoding", "br, gzip"}, 200, map[string]string{"Content-Type": "text/css; charset=utf-8", "Content-Encoding": "gzip"}, ":root"},
		{"GET", "/app.js", []string{"Accept-Encoding", "*"}, 200, map[string]string{"Content-Type": "text/javascript; charset=utf-8", "Content-Encoding": "gzip"}, "import"},
		{"GET", "/app.js", []string{"Accept-Encoding", "gzip;q=0, *"}, 200, map[string]string{"Content-Encoding": ""}, "import"},
		{"GET", "/app.js", []string{"Accept-Encoding", "gzip; q=0.5"}, 200, map[string]string{"Content-Encoding": "gzip"}, "import"},
		{"GET", "/app.js", []string{"Accept-Encoding", "br"}, 200, map[string]string{"Content-Encoding": ""}, "import"},
		{"GET", "/favicon.svg", nil, 200, map[string]string{"Content-Type": "image/svg+xml"}, "<svg"},
		{"GET", "/static/app.js", nil, 404, nil, "the chat page is at /"},
		{"GET", "/../web.go", nil, 404, nil, "the chat page is at /"},
		{"GET", "/nothing", nil, 404, nil, "the chat page is at /"},
		{"POST", "/", nil, 405, map[string]string{"Allow": "GET, HEAD"}, "read with GET"},
	} {
		t.Run(c.method+" "+c.target+" "+strings.Join(c.header, ":"), func(t *testing.T) {
			r := get(c.method, c.target, c.header...)
			if r.StatusCode != c.status {
				t.Errorf("status %d, want %d", r.StatusCode, c.status)
			}
			for name, want := range c.want {
				if got := r.Header.Get(name); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
			for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"} {
				if got := r.Header.Get(name); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
			if csp := r.Header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'self';") || strings.Contains(csp, "unsafe") {
				t.Errorf("Content-Security-Policy: %q", csp)
			}
			if got := body(t, r); !strings.Contains(got, c.body) {
				t.Errorf("body does not contain %q: %.200q", c.body, got)
			}
		})
	}
}

func TestHead(t *testing.T) {
	r := get("HEAD", "/app.js")
	whole := body(t, get("GET", "/app.js"))
	if r.StatusCode != 200 || r.ContentLength != int64(len(whole)) {
		t.Errorf("status %d, length %d, want 200 and %d", r.StatusCode, r.ContentLength, len(whole))
	}
	if got := body(t, r); got != "" {
		t.Errorf("HEAD has a body of %d bytes", len(got))
	}
}

func TestRevalidation(t *testing.T) {
	plain := get("GET", "/app.js").Header.Get("ETag")
	zipped := get("GET", "/app.js", "Accept-Encoding", "gzip").Header.Get("ETag")
	if plain == "" || zipped == "" || plain == zipped {
		t.Fatalf("tags %q and %q: want two different ones", plain, zipped)
	}
	if other := get("GET", "/style.css").Header.Get("ETag"); other == plain {
		t.Errorf("two files share the tag %q", other)
	}
	for _, c := range []struct {
		ifNoneMatch, accept string
		status              int
	}{
		{plain, "", 304},
		{"W/" + plain, "", 304},
		{`"other", ` + plain, "", 304},
		{"*", "", 304},
		{zipped, "", 200},
		{zipped, "gzip", 304},
		{`"other"`, "gzip", 200},
	} {
		r := get("GET", "/app.js", "If-None-Match", c.ifNoneMatch, "Accept-Encoding", c.accept)
		if r.StatusCode != c.status {
			t.Errorf("If-None-Match %s, Accept-Encoding %s: status %d, want %d", c.ifNoneMatch, c.accept, r.StatusCode, c.status)
		}
		if c.status == 304 && (body(t, r) != "" || r.Header.Get("ETag") == "") {
			t.Errorf("If-None-Match %s: a 304 has a tag and no body", c.ifNoneMatch)
		}
	}
}

// TestDocument holds the page to its policy: what the browser would refuse must not be in it.
func TestDocument(t *testing.T) {
	html := body(t, get("GET", "/"))
	for what, bad := range map[string]string{
		"inline script":  `<script(?:\s[^>]*)?>[^<]`,
		"inline style":   `<style|\sstyle=`,
		"inline handler": `\son[a-z]+=`,
		"other origin":   `(?:src|href|action)="(?:https?:)?//`,
		"absolute path":  `(?:src|href)="/`, // would leave a reverse proxy's path
	} {
		if m := regexp.MustCompile(bad).FindString(html); m != "" {
			t.Errorf("%s: %q", what, m)
		}
	}
	for _, m := range regexp.MustCompile(`(?:src|href)="([^"#]+)"`).FindAllStringSubmatch(html, -1) {
		if r := get("GET", "/"+m[1]); r.StatusCode != 200 {
			t.Errorf("the page names %s, which answers %d", m[1], r.StatusCode)
		}
	}
	for _, name := range []string{"app", "conversation", "holdfast", "markdown", "memory", "view"} {
		js := body(t, get("GET", "/"+name+".js"))
		if m := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function`).FindString(js); m != "" {
			t.Errorf("%s.js uses %s", name, m)
		}
	}
}
