package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/fetch"
	"github.com/holdfast-ai/holdfast/internal/node"
	"github.com/holdfast-ai/holdfast/proto"
)

func TestErrors(t *testing.T) {
	for _, tc := range []struct {
		name   string
		err    error
		status int
		want   string
	}{
		{"none", nil, 0, ""},
		{"plain", errors.New("odd"), 1, "holdfast: odd\n"},
		{"coded", &node.Error{Code: node.CodeDataLocked, Err: errors.New("in use"), Hint: "stop it"}, 4, "holdfast: data_locked: in use\n  hint: stop it\n"},
		{"wrapped", fmt.Errorf("serve: %w", &node.Error{Code: node.CodeAddressInUse, Message: "listen"}), 3, "holdfast: address_in_use: serve: listen\n"},
		{"of a server", &proto.Error{Code: proto.CodeConflict, Message: "reused", Hint: "a new id"}, 1, "holdfast: conflict: reused\n  hint: a new id\n"},
		{"without a hint of its own", &proto.Error{Code: proto.CodeDraining, Message: "stopping"}, 1, "holdfast: draining: stopping\n  hint: connect again; nothing durable is lost\n"},
		{"no server", proto.Errorf(proto.CodeUnavailable, "no answer"), 8, "holdfast: unavailable: no answer\n  hint: try again later\n"},
		{"bad argument", &proto.Error{Code: proto.CodeInvalidName, Message: "no", Hint: "h"}, 2, "holdfast: invalid_name: no\n  hint: h\n"},
		{"interrupted", errInterrupted, 130, ""},
	} {
		var b bytes.Buffer
		printError(&b, tc.err)
		if got := exitStatus(tc.err); got != tc.status || b.String() != tc.want {
			t.Errorf("%s: status %d and %q, want %d and %q", tc.name, got, b.String(), tc.status, tc.want)
		}
	}
}

// Every command tells what it does and shows how.
func TestHelp(t *testing.T) {
	for _, cmd := range allCommands(newRoot(Program{})) {
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: the short help is %q", cmd.CommandPath(), cmd.Short)
		}
		if cmd.HasSubCommands() && cmd.HasParent() {
			continue
		}
		if !strings.Contains(cmd.Example, cmd.CommandPath()) {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
	}
}

func TestVersion(t *testing.T) {
	for _, tc := range []struct {
		module   string
		settings map[string]string
		want     string
	}{
		{"v1.2.3", nil, "v1.2.3"},
		{"(devel)", nil, "devel"},
		{"", map[string]string{"vcs.revision": "0123456789abcdef"}, "devel+0123456789ab"},
		{"(devel)", map[string]string{"vcs.revision": "0123456789abcdef", "vcs.modified": "true"}, "devel+0123456789ab-dirty"},
	} {
		if got := versionOf(tc.module, tc.settings); got != tc.want {
			t.Errorf("version %q with %v is %q, want %q", tc.module, tc.settings, got, tc.want)
		}
	}
}

// What is no terminal gets a line each tenth, and nothing of what is over in a moment.
func TestMeter(t *testing.T) {
	var b bytes.Buffer
	m := newMeter(&b, &inference.Manifest{Name: "m"})
	m.progress(fetch.Progress{Stage: fetch.Verifying, Done: 1, Total: 2})
	m.progress(fetch.Progress{Stage: fetch.Waiting})
	for done := int64(0); done <= 1000; done++ {
		m.progress(fetch.Progress{Stage: fetch.Downloading, Done: done * 1000, Total: 1_000_000})
	}
	m.progress(fetch.Progress{Stage: fetch.Downloading, Done: 0, Total: 1_000_000}) // begins again
	m.done()
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 12 || lines[0] != "waiting for another pull of m" || lines[1] != "downloading m: 0 % of 1.0 MB" || lines[11] != "downloading m: 100 % of 1.0 MB" {
		t.Errorf("got %q", lines)
	}
}

func TestUnreachable(t *testing.T) {
	coded := proto.Errorf(proto.CodeForbidden, "no")
	if err := unreachable(coded, "s"); err != error(coded) {
		t.Errorf("a refusal became %v", err)
	}
	if err := unreachable(context.Canceled, "s"); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupt became %v", err)
	}
	var e *proto.Error
	if err := unreachable(errors.New("connection refused"), "s"); !errors.As(err, &e) || e.Code != proto.CodeUnavailable || e.Hint == "" {
		t.Errorf("no answer became %v", err)
	}
}
