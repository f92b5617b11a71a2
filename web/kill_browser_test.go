//go:build browser

package web_test

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/holdfast-ai/holdfast/internal/killtest"
)

// process is the product's binary, on one data folder, with the echo model as the default.
type process struct {
	t            *testing.T
	binary, addr string
	dir          string
	cmd          *exec.Cmd
	exited       chan struct{}
}

func newProcess(t *testing.T) *process {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := &process{t: t, binary: killtest.Build(t), addr: l.Addr().String(), dir: t.TempDir()}
	config := "echo: true\nno_model: true\nlimits:\n  max_attempts: 10\ndrain:\n  spread: 1ms\n"
	if err := os.WriteFile(filepath.Join(p.dir, "config.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.cmd != nil {
			p.kill()
		}
	})
	return p
}

// start returns when the server answers.
func (p *process) start() {
	p.t.Helper()
	var log bytes.Buffer // read only after the process has ended
	p.cmd = exec.Command(p.binary, "serve", "--listen", p.addr, "--admin", "", "--data", filepath.Join(p.dir, "data"), "--config", filepath.Join(p.dir, "config.yaml"))
	p.cmd.Stdout, p.cmd.Stderr = &log, &log
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	cmd, exited := p.cmd, make(chan struct{})
	p.exited = exited
	go func() { _ = cmd.Wait(); close(exited) }()
	for deadline := time.Now().Add(patience); ; {
		if r, err := http.Get("http://" + p.addr + "/readyz"); err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-exited:
			p.t.Fatalf("the server ended at its start:\n%s", log.String())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			p.t.Fatal("the server does not answer")
		}
	}
}

func (p *process) end(how os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(how); err != nil {
		p.t.Error(err)
	}
	<-p.exited
	p.cmd = nil
}

func (p *process) kill() { p.end(os.Kill) }

func (p *process) url() string { return "http://" + p.addr + "/#/bay" }

// tale is long enough to be cut several times.
const tale = "Twice a day the bay empties and fills while boats lean on their keels, gulls walk between pools, " +
	"children dig for crabs, somebody mends nets beside an upturned hull, clouds cross over without hurry, then water " +
	"returns along every channel, lifts weed from rock, turns each mooring round and floats what lay aground before."

// TestKilledInMidSentence kills the real server with SIGKILL while an answer streams, and stops it with SIGTERM once:
// two pages that were open all the while, and one that is opened at the end, show the answer without a lost or doubled
// word.
func TestKilledInMidSentence(t *testing.T) {
	p := newProcess(t)
	p.start()
	br := browser(t)
	desk := open(t, br, desktop, p.url())
	pocket := open(t, br, phone, p.url())
	for _, b := range []*tab{desk, pocket} {
		b.expect("WebSocket connection to") // the browser logs that nobody listens, the page does not
		b.await(`!document.getElementById('welcome').hidden`)
	}
	desk.write("/echo gap=60ms text=" + tale)
	all := strings.Fields(tale)
	for i, how := range []os.Signal{os.Kill, os.Interrupt, os.Kill} {
		desk.await(answer(1) + `.includes(` + quoteJS(all[8+12*i]) + `)`)
		p.end(how)
		seen := strings.TrimSpace(eval[string](desk, answer(1)))
		if !strings.HasPrefix(tale, seen) {
			t.Fatalf("cut %d: the page shows %q", i+1, seen)
		}
		desk.await(`!document.getElementById('connection').hidden`)
		p.start()
	}
	for _, b := range []*tab{desk, pocket} {
		b.await(ended(1))
		b.await(`document.getElementById('connection').hidden`)
	}
	late := open(t, br, desktop, p.url())
	late.await(ended(1))
	for _, b := range []*tab{desk, pocket, late} {
		if got := strings.TrimSpace(eval[string](b, answer(1))); got != tale {
			t.Errorf("the page shows\n%q, want\n%q", got, tale)
		}
		if n := eval[int](b, `document.querySelectorAll('article').length`); n != 1 {
			t.Errorf("%d turns on the page, want 1", n)
		}
	}
	late.picture("desktop-survived")
}

// TestRealServer goes through a session as a person would, on the product's binary.
func TestRealServer(t *testing.T) {
	p := newProcess(t)
	p.start()
	br := browser(t)
	b := open(t, br, desktop, p.url())
	b.await(`!document.getElementById('welcome').hidden`)
	b.write("hi")
	b.await(says(1, "tok0 tok1 tok2"))
	b.await(ended(1))

	b.write("/echo n=1000 gap=50ms") // stopped by the key
	b.await(answer(2) + `.includes('tok3')`)
	b.do(chromedp.KeyEvent(kb.Escape))
	b.await(`document.querySelectorAll('article')[1].querySelector('.note .why')?.textContent === 'Stopped.'`)
	stopped := eval[string](b, answer(2))

	b.write("/echo n=5 fail=2") // fails with its partial
	b.await(`document.querySelectorAll('article')[2]?.querySelector('.note[data-kind=failed] .why')`)
	b.await(says(3, "tok0 tok1"))

	b.write("/echo n=1000 gap=50ms") // two at once: the second waits, and is taken back
	b.await(answer(4) + `.includes('tok2')`)
	b.write("after you")
	b.await(`document.querySelectorAll('article')[4]?.querySelector('.progress').textContent.startsWith('Waits for the answer before it.')`)
	b.js(`document.querySelectorAll('article')[4].querySelector('.progress button').click()`)
	b.await(`document.querySelectorAll('article')[4].querySelector('.note .why')?.textContent === 'Stopped before it began.'`)
	b.do(chromedp.Click(chromedp.CSS("#stop")))
	b.await(`document.getElementById('stop').hidden`)

	b.write(strings.Repeat("long ", 10)) // nothing of the above is in the way
	b.await(says(6, "tok0 tok1 tok2"))
	b.do(chromedp.Reload())
	b.await(ended(6))
	if got := eval[string](b, answer(2)); got != stopped {
		t.Errorf("after a reload the stopped answer is %q, it was %q", got, stopped)
	}
	b.js(`location.hash = '#/' + encodeURIComponent('no/name')`)
	b.await(`!document.getElementById('alert').hidden && document.getElementById('alert-why').textContent`)
	b.js(`location.hash = '#/bay'`)
	b.await(ended(6) + ` && document.getElementById('alert').hidden`)
}

func quoteJS(s string) string { return "'" + strings.ReplaceAll(s, "'", `\'`) + "'" }
