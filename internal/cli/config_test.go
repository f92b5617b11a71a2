package cli

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-ai/holdfast/internal/node"
)

// load reads a configuration from a file's text, an environment and flags.
func load(t *testing.T, text string, environ []string, flags ...string) (node.Config, []string, error) {
	t.Helper()
	path := ""
	if text != "" {
		path = filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := &cobra.Command{}
	addFlags(cmd, node.Settings())
	if err := cmd.ParseFlags(flags); err != nil {
		t.Fatal(err)
	}
	c, _, unknown, err := loadConfig(path, environ, cmd)
	return c, unknown, err
}

// The table of settings and the defaults of the code are one.
func TestDefaults(t *testing.T) {
	c, _, err := load(t, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	want := node.Defaults()
	want.AllowedOrigins, want.AllowedHosts = []string{}, []string{}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("the settings' defaults give\n%+v, node.Defaults is\n%+v", c, want)
	}
}

// Every setting reaches its field, from the file and from the environment.
func TestEverySetting(t *testing.T) {
	other := map[string]string{
		"listen": "127.0.0.1:1", "admin": "127.0.0.1:2", "data": "d", "models": "m", "model": "x", "no_model": "true", "no_pull": "true",
		"mirror": "https://mirror.example", "log.level": "debug", "log.format": "json", "allowed_origins": "https://a, https://b",
		"allowed_hosts": "a,b", "drain.timeout": "7s", "drain.spread": "8s", "limits.max_connections": "9", "limits.max_frame_bytes": "2048",
		"limits.max_attachments": "11", "limits.max_queue": "12", "limits.max_attempts": "13", "inference.slots": "14",
		"inference.context": "150", "echo": "true",
	}
	for _, s := range node.Settings() {
		value, ok := other[s.Key]
		if !ok {
			t.Errorf("this test does not know the setting %q", s.Key)
			continue
		}
		before := node.Defaults()
		before.AllowedOrigins, before.AllowedHosts = []string{}, []string{}
		c, _, err := load(t, "", []string{s.Env() + "=" + value})
		if err != nil {
			t.Errorf("%s=%s: %v", s.Env(), value, err)
		}
		if reflect.DeepEqual(c, before) {
			t.Errorf("%s=%s changes nothing", s.Env(), value)
		}
		if s.Flag == "" {
			continue
		}
		byFlag, _, err := load(t, "", nil, "--"+s.Flag+"="+value)
		if err != nil || !reflect.DeepEqual(byFlag, c) {
			t.Errorf("--%s=%s and %s differ: %v", s.Flag, value, s.Env(), err)
		}
	}
}

func TestPrecedence(t *testing.T) {
	const text = "listen: 127.0.0.1:1\ndata: file\ndrain: {timeout: 3s}\nallowed_hosts: [a, b]\n"
	c, unknown, err := load(t, text, []string{"HOLDFAST_LISTEN=127.0.0.1:2", "HOLDFAST_DATA=env", "HOLDFAST_LISTN=x", "OTHER=y"}, "--listen=127.0.0.1:3")
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "127.0.0.1:3" || c.Data != "env" || c.Drain.Timeout != 3*time.Second || len(c.AllowedHosts) != 2 || c.Admin != "127.0.0.1:8421" {
		t.Errorf("got %+v", c)
	}
	if len(unknown) != 1 || unknown[0] != "HOLDFAST_LISTN" {
		t.Errorf("unknown names: %q", unknown)
	}
}

func TestBadSettings(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		environ    []string
		want       string
	}{
		{"unknown key", "lisen: x", nil, `closest is "listen"`},
		{"unknown nested key", "log: {levl: info}", nil, `closest is "log.level"`},
		{"value for a group", "log: info", nil, "settings below it"},
		{"list for a text", "listen: [a, b]", nil, "listen"},
		{"text for a number", "limits: {max_queue: many}", nil, "max_queue"},
		{"not YAML", "a: [", nil, "read "},
		{"no port", "listen: localhost", nil, "HOST:PORT"},
		{"number in the environment", "", []string{"HOLDFAST_LIMITS_MAX_QUEUE=x"}, "HOLDFAST_LIMITS_MAX_QUEUE"},
		{"zero drain", "drain: {timeout: 0s}", nil, "drain.timeout"},
		{"too many slots", "inference: {slots: 1000}", nil, "1000 is not from 1 to 256"},
		{"no data", "data: ''", nil, "data: no folder"},
		{"no model", "model: ''", nil, "no_model"},
	} {
		_, _, err := load(t, tc.text, tc.environ)
		var coded *node.Error
		if !errors.As(err, &coded) || coded.Code != node.CodeConfig || coded.Hint == "" || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}

func TestClosest(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"kitten", "sitting", 3}, {"listen", "lisen", 1}, {"abc", "abc", 0}} {
		if got := distance(tc.a, tc.b); got != tc.want {
			t.Errorf("distance(%q, %q) is %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
	if got := closest("admn", []string{"listen", "admin", "data"}); got != "admin" {
		t.Errorf("closest is %q", got)
	}
}
