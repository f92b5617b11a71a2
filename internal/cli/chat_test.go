package cli

import (
	"bytes"
	"errors"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-ai/holdfast/internal/wiretest"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// chatRun runs the command as a program whose input and output are pipes.
func chatRun(t *testing.T, in string, args ...string) (out, errOut string, err error) {
	t.Helper()
	cmd := newChat()
	var o, e bytes.Buffer
	cmd.SetIn(strings.NewReader(in))
	cmd.SetOut(&o)
	cmd.SetErr(&e)
	cmd.SetArgs(args)
	cmd.SilenceErrors = true
	err = cmd.ExecuteContext(t.Context())
	return o.String(), e.String(), err
}

func code(err error) proto.Code {
	var coded *proto.Error
	if errors.As(err, &coded) {
		return coded.Code
	}
	return ""
}

func parrot(t *wiretest.Turn) {
	t.Attempt("scripted")
	t.Say("You ", "said: ", t.Text)
	t.Complete()
}

func TestChatMessage(t *testing.T) {
	checkLeaks(t)
	s := wiretest.New(t, wiretest.Options{OnSubmit: parrot})
	for _, c := range []struct {
		name, in string
		args     []string
		out      string
		code     proto.Code
	}{
		{"flag", "", []string{"--message", "hi"}, "You said: hi\n", ""},
		{"input", "line one\nline two\n", []string{"--message", "-"}, "You said: line one\nline two\n", ""},
		{"spaces", "", []string{"--message", "  hi \n"}, "You said: hi\n", ""},
		{"invalid text", "a\xffb", []string{"--message", "-"}, "You said: a\ufffdb\n", ""},
		{"empty", "", []string{"--message", " "}, "", proto.CodeInvalidArgument},
		{"empty input", "", []string{"--message", "-"}, "", proto.CodeInvalidArgument},
		{"huge input", strings.Repeat("x", maxMessage+1), []string{"--message", "-"}, "", proto.CodeTooLarge},
		{"bad name", "", []string{"--message", "hi", "--session", "a/b"}, "", proto.CodeInvalidName},
		{"bad server", "", []string{"--message", "hi", "--server", "ftp://x"}, "", proto.CodeInvalidArgument},
		{"lines", "one\n\ntwo", nil, "You said: one\nYou said: two\n", ""},
		{"no lines", "", nil, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append([]string{"--server", strings.TrimPrefix(s.URL, "http://")}, c.args...)
			out, errOut, err := chatRun(t, c.in, args...)
			if out != c.out || code(err) != c.code || (err != nil) != (c.code != "") {
				t.Errorf("stdout %q, stderr %q, error %v; want %q and code %q", out, errOut, err, c.out, c.code)
			}
			if c.code == "" && errOut != "" {
				t.Errorf("stderr %q", errOut)
			}
		})
	}
}

func TestChatMessageInSession(t *testing.T) {
	checkLeaks(t)
	s := wiretest.New(t, wiretest.Options{OnSubmit: parrot})
	for _, message := range []string{"one", "two"} {
		out, _, err := chatRun(t, "", "--server", s.URL, "--session", "bay", "--message", message)
		if want := "You said: " + message + "\n"; out != want || err != nil {
			t.Errorf("stdout %q, %v; want %q", out, err, want)
		}
	}
	turns := 0
	for _, e := range s.Log("default/session/bay").Entries() {
		if e.GetUserMessage() != nil {
			turns++
		}
	}
	if turns != 2 {
		t.Errorf("%d turns in the session, want 2", turns)
	}
}

func TestChatMessageFails(t *testing.T) {
	checkLeaks(t)
	for _, c := range []struct {
		name string
		end  *wirepb.Terminal
		code proto.Code
		is   error
	}{
		{"failed", &wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_FAILED, Error: &wirepb.Error{Code: "context_overflow", Message: "too long", Hint: "begin anew"}}, proto.CodeContextOverflow, nil},
		{"blocked", &wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_BLOCKED}, proto.CodeModelFailed, nil},
		{"stopped elsewhere", &wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_STOPPED}, "", errInterrupted},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := wiretest.New(t, wiretest.Options{OnSubmit: func(turn *wiretest.Turn) {
				turn.Say("part")
				turn.End(c.end)
			}})
			out, _, err := chatRun(t, "", "--server", s.URL, "--message", "hi")
			if out != "part\n" || code(err) != c.code || (c.is != nil && !errors.Is(err, c.is)) || err == nil {
				t.Errorf("stdout %q, error %v; want the part, and %q", out, err, c.code)
			}
		})
	}
}

// TestChatCut cuts the connection between words: the output has each once.
func TestChatCut(t *testing.T) {
	checkLeaks(t)
	var s *wiretest.Server
	s = wiretest.New(t, wiretest.Options{OnSubmit: func(turn *wiretest.Turn) {
		turn.Say("one ", "two ")
		s.Cut()
		turn.Say("three ")
		s.Drain(0)
		turn.Say("four")
		turn.Complete()
	}})
	out, errOut, err := chatRun(t, "", "--server", s.URL, "--message", "count")
	if out != "one two three four\n" || err != nil {
		t.Errorf("stdout %q, stderr %q, %v", out, errOut, err)
	}
	if !strings.Contains(errOut, "connection lost, reconnecting") {
		t.Errorf("stderr %q says nothing of the lost connection", errOut)
	}
}

// TestChatInterrupt sends the process a SIGINT in mid-answer: the answer stops.
func TestChatInterrupt(t *testing.T) {
	checkLeaks(t)
	s := wiretest.New(t, wiretest.Options{OnSubmit: func(turn *wiretest.Turn) {
		turn.Say("part")
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			t.Error(err)
		}
		<-turn.Stopped
		turn.End(&wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_STOPPED})
	}})
	out, errOut, err := chatRun(t, "", "--server", s.URL, "--message", "hi")
	if out != "part\n" || !errors.Is(err, errInterrupted) || !strings.Contains(errOut, "stopped") {
		t.Errorf("stdout %q, stderr %q, error %v", out, errOut, err)
	}
}

func TestChatUnreachable(t *testing.T) {
	checkLeaks(t)
	gone := httptest.NewServer(nil)
	other := gone.URL
	gone.Close()
	web := httptest.NewServer(nil) // answers 404
	defer web.Close()
	for _, server := range []string{other, web.URL} {
		_, _, err := chatRun(t, "", "--server", server, "--message", "hi")
		var coded *proto.Error
		if !errors.As(err, &coded) || coded.Code != proto.CodeUnavailable || !strings.Contains(coded.Hint, "holdfast serve") || !strings.Contains(coded.Hint, "make run") {
			t.Errorf("%s: error %v, want unavailable with a hint", server, err)
		}
	}
}

func TestParseServer(t *testing.T) {
	for in, want := range map[string]string{
		"127.0.0.1:8420":         "http://127.0.0.1:8420",
		"localhost:8420":         "http://localhost:8420",
		"https://h.example/chat": "https://h.example/chat",
		"wss://h.example":        "https://h.example",
		"ws://h.example/?a=1#b":  "http://h.example/",
		"[::1]:8420":             "http://[::1]:8420",
		"":                       "",
		"http://":                "",
		"file:///etc/passwd":     "",
	} {
		got := ""
		u, err := parseServer(in)
		if err == nil {
			got = u.String()
		}
		if got != want {
			t.Errorf("parseServer(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}
