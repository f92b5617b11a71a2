package cli

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"

	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

func TestClean(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"plain\ttext\nétoile 星 🙂", "plain\ttext\nétoile 星 🙂"},
		{"\x1b[2J\x1b]0;title\x07", "␛[2J␛]0;title␇"},
		{"shown\rhidden\r\n", "shownhidden\n"},
		{"a\bb\x7f\x00", "a␈b␡␀"},
		{"\u009b31m\u0085", "\ufffd31m\ufffd"},
		{"abc\u202etxt.exe", "abc\ufffdtxt.exe"},
		{"bad\xff", "bad\ufffd"},
	} {
		if got := clean(c.in); got != c.want {
			t.Errorf("clean(%q) = %q, want %q", c.in, got, c.want)
		}
	}
}

// TestCleanProperties: nothing that a terminal acts on gets through, and pieces may be cleaned one by one.
func TestCleanProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pieces := rapid.SliceOf(rapid.String()).Draw(t, "pieces")
		var joined strings.Builder
		for _, p := range pieces {
			joined.WriteString(clean(p))
		}
		whole := clean(strings.Join(pieces, ""))
		if joined.String() != whole {
			t.Fatalf("pieces give %q, the whole %q", joined.String(), whole)
		}
		for _, r := range whole {
			if unicode.IsControl(r) && r != '\n' && r != '\t' {
				t.Fatalf("%U got through", r)
			}
		}
		if clean(whole) != whole {
			t.Fatal("cleaning twice differs from once")
		}
	})
}

func TestProgressAndEnding(t *testing.T) {
	for _, c := range []struct {
		status *wirepb.Status
		want   string
	}{
		{&wirepb.Status{Phase: wirepb.Phase_PHASE_QUEUED, Position: 3, Waiting: 7}, "in line for the model: 3 of 7"},
		{&wirepb.Status{Phase: wirepb.Phase_PHASE_QUEUED, Position: 1, Waiting: 7}, "next in line for the model"},
		{&wirepb.Status{Phase: wirepb.Phase_PHASE_LOADING, Done: 4_000_000_000, Total: 4_100_000_000}, "loading the model 97 %"},
		{&wirepb.Status{Phase: wirepb.Phase_PHASE_PREFILL}, "reading"},
		{&wirepb.Status{Phase: wirepb.Phase_PHASE_RUNNING}, ""},
	} {
		if got := progress(c.status); got != c.want {
			t.Errorf("progress(%v) = %q, want %q", c.status, got, c.want)
		}
	}
	for _, c := range []struct {
		end  *wirepb.Terminal
		want string
	}{
		{completed(), ""},
		{&wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_COMPLETED, FinishReason: "length"}, "the answer reached its length limit"},
		{&wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_FAILED, Error: &wirepb.Error{Code: "model_failed", Message: "no", Hint: "verify"}}, "model_failed: no (ask again)"},
		{&wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_FAILED, Error: &wirepb.Error{Code: "model_unavailable", Message: "\x1bno", Hint: "verify"}}, "model_unavailable: ␛no (verify)"},
		{&wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_BLOCKED}, "blocked"},
	} {
		if got := ending(c.end); got != c.want {
			t.Errorf("ending(%v) = %q, want %q", c.end, got, c.want)
		}
	}
}

// TestConsole plays a chat on a terminal: o is what goes straight out, e what goes through the line editor.
func TestConsole(t *testing.T) {
	var got strings.Builder
	log := func(name string) io.Writer { return tagged{name, &got} }
	c := &console{out: log("o"), editor: log("e")}
	step := func(what string, f func(), want string) {
		t.Helper()
		got.Reset()
		f()
		if got.String() != want {
			t.Errorf("%s: %q, want %q", what, got.String(), want)
		}
	}
	step("history", func() { c.Said("a\nb") }, `o"> a\r\n"o"> b\r\n"`)
	step("status", func() { c.Status("loading"); c.Status("loading 1 %") }, `o"\r\x1b[2Kloading"o"\r\x1b[2Kloading 1 %"`)
	step("first text takes the status away", func() { c.Text("one\ntwo") }, `o"\r\x1b[2K"o"one\r\ntwo"`)
	step("no status in mid-line", func() { c.Status("reading") }, ``)
	step("a note ends the line", func() { c.Note("lost") }, `o"\r\n"o"[lost]\r\n"`)
	step("prompt", func() { c.Text("x"); c.Prompting(true) }, `o"x"o"\r\n"o"\r\n"`)
	step("a line that is not whole waits", func() { c.Text("from else") }, ``)
	step("until it is", func() { c.Text("where\nand") }, `e"from elsewhere\n"`)
	step("no status at the prompt", func() { c.Status("loading") }, ``)
	step("a note at the prompt", func() { c.Note("lost") }, `e"and\n"e"[lost]\n"`)
	step("no prompt", func() { c.Text("rest"); c.Prompting(false) }, `o"rest"`)
	c.color = true
	step("styles", func() { c.End(); c.Said("hi"); c.Note("n") }, `o"\r\n"o"\r\n"o"\x1b[1m> hi\x1b[0m\r\n"o"\x1b[2m[n]\x1b[0m\r\n"`)
}

type tagged struct {
	name string
	to   *strings.Builder
}

func (w tagged) Write(p []byte) (int, error) {
	w.to.WriteString(w.name + quote(p))
	return len(p), nil
}

func quote(p []byte) string {
	s := string(p)
	s = strings.ReplaceAll(s, "\r", `\r`)
	s = strings.ReplaceAll(s, "\n", `\n`)
	return `"` + strings.ReplaceAll(s, "\x1b", `\x1b`) + `"`
}

func TestKeys(t *testing.T) {
	interrupts := make(chan struct{}, 1)
	k := newKeys(interrupts)
	read := func() string {
		p := make([]byte, 100)
		n, err := k.Read(p)
		if err != nil {
			return err.Error()
		}
		return string(p[:n])
	}
	interrupted := func() bool {
		select {
		case <-interrupts:
			return true
		default:
			return false
		}
	}
	k.pump(bytes.NewReader([]byte("typed ahead")))
	if got := read(); got != "typed ahead" || interrupted() {
		t.Errorf("read %q", got)
	}
	k = newKeys(interrupts)
	k.Prompting(true)
	k.take([]byte("half a li\x03\x03"), nil)
	if got := read(); got != "half a li\x15\x15" || !interrupted() || interrupted() {
		t.Errorf("at the prompt Ctrl-C must take the line away and interrupt once: read %q", got)
	}
	k.Prompting(false)
	k.take([]byte("ahead\x03after"), nil)
	if got := read(); got != "after" || !interrupted() {
		t.Errorf("during an answer Ctrl-C must take away what was typed before it: read %q", got)
	}
	k.Close()
	if got := read(); got != "EOF" {
		t.Errorf("closed keys read %q", got)
	}
}

func TestNewSessionName(t *testing.T) {
	name, err := newSessionName(bytes.NewReader([]byte{20, 11, 0, 1, 2, 3}))
	if err != nil || name != "quiet-heron-2345" {
		t.Errorf("%q, %v", name, err)
	}
	if _, err := newSessionName(strings.NewReader("abc")); err == nil {
		t.Error("a short read makes a name")
	}
}
