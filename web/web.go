package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
)

//go:embed static
var static embed.FS

// policy allows the page's own files and its own origin (the WebSocket included) and nothing else. Trusted Types
// without a policy make every string-to-markup sink throw.
const policy = "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'none'; " +
	"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
	".json": "application/manifest+json",
}

// file is one embedded file, ready to send.
type file struct {
	contentType string
	plain       []byte
	gzipped     []byte // nil where it would not be smaller
	etag        string // of plain; the gzipped form has a tag of its own
}

// Handler serves the page and its files. It is safe for concurrent use and holds both forms of every file in
// memory, about 100 KB.
func Handler() http.Handler {
	files := make(map[string]*file)
	err := fs.WalkDir(static, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := load(name)
		if err != nil {
			return err
		}
		files[strings.TrimPrefix(name, "static")] = f
		return nil
	})
	if err != nil {
		// The files are part of the binary: this is a fault of the build, not of a run.
		panic(fmt.Sprintf("web: read embedded files: %v", err))
	}
	files["/"] = files["/index.html"]
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { serve(files, w, r) })
}

func load(name string) (*file, error) {
	plain, err := static.ReadFile(name)
	if err != nil {
		return nil, err
	}
	contentType, ok := contentTypes[path.Ext(name)]
	if !ok {
		return nil, fmt.Errorf("%s: no content type for this extension", name)
	}
	sum := sha256.Sum256(plain)
	f := &file{contentType: contentType, plain: plain, etag: hex.EncodeToString(sum[:12])}
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(plain); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	if b.Len() < len(plain) {
		f.gzipped = b.Bytes()
	}
	return f, nil
}

func serve(files map[string]*file, w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed: the page is read with GET", http.StatusMethodNotAllowed)
		return
	}
	f, ok := files[r.URL.Path]
	if !ok {
		http.Error(w, "not found: the chat page is at /", http.StatusNotFound)
		return
	}
	body, etag := f.plain, `"`+f.etag+`"`
	if f.gzipped != nil {
		h.Set("Vary", "Accept-Encoding")
		if acceptsGzip(r.Header.Values("Accept-Encoding")) {
			h.Set("Content-Encoding", "gzip")
			body, etag = f.gzipped, `"`+f.etag+`-gz"`
		}
	}
	h.Set("ETag", etag)
	// The names stay the same from version to version, so a browser asks each time; the answer is mostly 304.
	h.Set("Cache-Control", "no-cache")
	if matches(r.Header.Values("If-None-Match"), etag) {
		h.Del("Content-Encoding")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", f.contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(body) // the client went away: there is nobody to tell
	}
}

// acceptsGzip reads Accept-Encoding as RFC 9110 has it: gzip, x-gzip or *, unless its weight is 0.
func acceptsGzip(values []string) bool {
	any, anySet := false, false
	for _, item := range strings.Split(strings.Join(values, ","), ",") {
		name, params, _ := strings.Cut(item, ";")
		weight := 1.0
		if k, v, ok := strings.Cut(strings.TrimSpace(params), "="); ok && strings.EqualFold(strings.TrimSpace(k), "q") {
			q, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			if err != nil {
				continue
			}
			weight = q
		}
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "gzip", "x-gzip":
			return weight > 0
		case "*":
			any, anySet = weight > 0, true
		}
	}
	return anySet && any
}

// matches compares weakly, as If-None-Match asks.
func matches(values []string, etag string) bool {
	for _, item := range strings.Split(strings.Join(values, ","), ",") {
		item = strings.TrimPrefix(strings.TrimSpace(item), "W/")
		if item == "*" || item == etag {
			return true
		}
	}
	return false
}
