package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/holdfast-ai/holdfast/inference"
)

// errFinal marks what another try of the same download cannot mend.
var errFinal = errors.New("another try cannot help")

// fromMirror gets every file of the model from under one URL.
func (p *pull) fromMirror(ctx context.Context) error {
	for _, f := range p.m.Files {
		u, err := url.JoinPath(p.o.Mirror, f.Path)
		if err != nil {
			return err
		}
		if err := p.fromURL(ctx, f, u); err != nil {
			return err
		}
	}
	return nil
}

// fromURL downloads f, going on where an earlier try or an earlier pull has stopped.
func (p *pull) fromURL(ctx context.Context, f inference.File, from string) error {
	t, err := p.openPart(f)
	if err != nil {
		return err
	}
	defer t.file.Close()
	resumed := t.size > 0
	for failures := 0; ; {
		before := t.size
		err := p.download(ctx, t, f, from)
		if err == nil {
			err = p.install(t, f)
			if err == nil {
				return nil
			}
			if !errors.Is(err, ErrDigest) || !resumed {
				return errors.Join(err, p.discard(t, f))
			}
			// What an earlier try left may have been of another file: once from the start, then it is the source's fault.
			p.o.Logger.Info("a resumed download has the wrong digest and begins again", "model", p.m.Name, "url", from)
			resumed = false
			if err := errors.Join(t.reset(), p.forgetETag(f)); err != nil {
				return err
			}
			continue
		}
		if ctx.Err() != nil || errors.Is(err, errFinal) {
			return err
		}
		resumed = resumed || t.size > 0
		failures++
		if t.size > before {
			failures = 1
		}
		if failures > p.o.Retries {
			return err
		}
		delay := min(500*time.Millisecond<<(failures-1), 8*time.Second)
		p.o.Logger.Info("a download is tried again", "url", from, "have", t.size, "after", delay, "err", err)
		if err := sleep(ctx, p.o.Clock, delay); err != nil {
			return err
		}
	}
}

// discard forgets what was downloaded.
func (p *pull) discard(t *part, f inference.File) error {
	return errors.Join(t.reset(), p.forgetETag(f))
}

func (p *pull) forgetETag(f inference.File) error {
	if err := os.Remove(p.etagName(f)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// download makes one request for what t lacks.
func (p *pull) download(ctx context.Context, t *part, f inference.File, from string) error {
	if t.size == f.Size {
		return nil // whole already; install tells whether rightly
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A peer that sends nothing is left; each read puts that off.
	timer := p.o.Clock.AfterFunc(p.o.Stall, func() { cancel(fmt.Errorf("no byte came for %s", p.o.Stall)) })
	defer func() { timer.Stop() }()

	req, err := p.request(ctx, t, f, from)
	if err != nil {
		return err
	}
	resp, err := p.o.Client.Do(req)
	if err != nil {
		return causeOf(ctx, err)
	}
	defer resp.Body.Close()
	if err := p.accept(t, f, resp); err != nil {
		return err
	}
	body := &watchedReader{r: resp.Body, before: func() {
		timer.Stop()
		timer = p.o.Clock.AfterFunc(p.o.Stall, func() { cancel(fmt.Errorf("no byte came for %s", p.o.Stall)) })
	}}
	err = p.copy(ctx, t, io.LimitReader(body, f.Size-t.size+1), f.Size, Downloading, hostOf(from))
	switch {
	case err != nil:
		return causeOf(ctx, err)
	case t.size < f.Size:
		return fmt.Errorf("the connection ended after %d of %d bytes", t.size, f.Size)
	case t.size > f.Size:
		return errors.Join(fmt.Errorf("%w: %w: %s has more than %d bytes there", errFinal, ErrDigest, f.Path, f.Size), t.reset())
	}
	return nil
}

// request makes one for the rest of f, on the condition that it is the rest of the same file.
func (p *pull) request(ctx context.Context, t *part, f inference.File, from string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errFinal, err)
	}
	req.Header.Set("Accept-Encoding", "identity") // ranges count bytes of the file
	if t.size > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", t.size))
		if tag, err := os.ReadFile(p.etagName(f)); err == nil && len(tag) > 0 {
			req.Header.Set("If-Range", string(tag))
		}
	}
	return req, nil
}

// accept looks at the head of an answer and prepares t for its body.
func (p *pull) accept(t *part, f inference.File, resp *http.Response) error {
	switch {
	case resp.StatusCode == http.StatusOK:
		if resp.ContentLength >= 0 && resp.ContentLength != f.Size {
			return fmt.Errorf("%w: %w: %s has %d bytes there, want %d", errFinal, ErrDigest, f.Path, resp.ContentLength, f.Size)
		}
		if err := t.reset(); err != nil { // the whole file comes
			return err
		}
		return p.keepETag(f, resp.Header.Get("ETag"))
	case resp.StatusCode == http.StatusPartialContent:
		var first, last, size int64
		if n, _ := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-%d/%d", &first, &last, &size); n < 2 || first != t.size || n == 3 && size != f.Size {
			return errors.Join(fmt.Errorf("asked for the bytes from %d of %d, got %q", t.size, f.Size, resp.Header.Get("Content-Range")), p.discard(t, f))
		}
		return nil
	case resp.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return errors.Join(fmt.Errorf("HTTP %s: what was downloaded so far is not of this file", resp.Status), p.discard(t, f))
	case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusRequestTimeout || resp.StatusCode >= 500:
		return fmt.Errorf("HTTP %s", resp.Status)
	}
	return fmt.Errorf("%w: HTTP %s", errFinal, resp.Status)
}

// keepETag notes of which version the bytes are; a weak tag cannot tell ranges apart.
func (p *pull) keepETag(f inference.File, tag string) error {
	if tag == "" || strings.HasPrefix(tag, "W/") {
		return p.forgetETag(f)
	}
	return os.WriteFile(p.etagName(f), []byte(tag), 0o644)
}

// watchedReader calls before ahead of each read.
type watchedReader struct {
	r      io.Reader
	before func()
}

func (w *watchedReader) Read(b []byte) (int, error) {
	w.before()
	return w.r.Read(b)
}

// causeOf prefers the reason for which a context was ended to the bare fact.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func hostOf(from string) string {
	if u, err := url.Parse(from); err == nil {
		return u.Host
	}
	return from
}
