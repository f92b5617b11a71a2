package node

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-ai/holdfast/models"
)

// Config is all that can be configured of a server. Defaults returns what it is when nobody says anything.
type Config struct {
	Listen string `koanf:"listen"`
	Admin  string `koanf:"admin"`
	Data   string `koanf:"data"`

	Models  string `koanf:"models"`
	Model   string `koanf:"model"`
	NoModel bool   `koanf:"no_model"`
	NoPull  bool   `koanf:"no_pull"`
	Mirror  string `koanf:"mirror"`

	Log struct {
		Level  string `koanf:"level"`
		Format string `koanf:"format"`
	} `koanf:"log"`

	AllowedOrigins []string `koanf:"allowed_origins"`
	AllowedHosts   []string `koanf:"allowed_hosts"`

	Drain struct {
		Timeout time.Duration `koanf:"timeout"`
		Spread  time.Duration `koanf:"spread"`
	} `koanf:"drain"`

	Limits struct {
		MaxConnections int `koanf:"max_connections"`
		MaxFrameBytes  int `koanf:"max_frame_bytes"`
		MaxAttachments int `koanf:"max_attachments"`
		MaxQueue       int `koanf:"max_queue"`
		MaxAttempts    int `koanf:"max_attempts"`
	} `koanf:"limits"`

	Inference struct {
		Slots   int `koanf:"slots"`
		Context int `koanf:"context"`
	} `koanf:"inference"`

	Echo bool `koanf:"echo"`
}

// Setting is how one field of Config is called outside.
type Setting struct {
	Key     string // in the file; dots are levels
	Flag    string // of `holdfast serve`; "" if there is none
	Default any    // of the type of the field
	Help    string
}

// Env is the setting's name in the environment.
func (s Setting) Env() string {
	return "HOLDFAST_" + strings.ToUpper(strings.ReplaceAll(s.Key, ".", "_"))
}

// Settings lists everything that can be configured, in the order of documentation, with its default.
func Settings() []Setting {
	return []Setting{
		{"listen", "listen", "127.0.0.1:8420", "address of the page and of clients; port 0 takes a free one"},
		{"admin", "admin", "127.0.0.1:8421", "address of metrics and profiles; empty for none. Never make it public"},
		{"data", "data", defaultData(), "folder of conversations and their state"},
		{"models", "models", DefaultModels(), "folder of model files, which can be fetched again"},
		{"model", "model", models.Default, "model of sessions that name none"},
		{"no_model", "no-model", false, "do not fetch and load the model at the start; with echo, the echo model is the default"},
		{"no_pull", "no-pull", false, "fail instead of fetching a model that is not there"},
		{"mirror", "mirror", "", "URL under which a model's files lie, tried before their sources"},
		{"log.level", "log-level", "info", "debug, info, warn or error"},
		{"log.format", "log-format", "text", "text or json"},
		{"allowed_origins", "", []string{}, "origins of other sites' pages that may connect, such as https://chat.example.org"},
		{"allowed_hosts", "", []string{}, "host names, beside loopback ones, that a loopback listener answers to"},
		{"drain.timeout", "", 10 * time.Second, "how long a stopping server lets connections and answers end; what is cut goes on after the next start"},
		{"drain.spread", "", 5 * time.Second, "over how long the connections of a stopping server are closed"},
		{"limits.max_connections", "", 32768, "open connections"},
		{"limits.max_frame_bytes", "", 1 << 20, "size of a client's message"},
		{"limits.max_attachments", "", 64, "sessions that one connection follows"},
		{"limits.max_queue", "", 16, "turns of a session that wait behind the one that runs"},
		{"limits.max_attempts", "", 3, "attempts at one turn, over crashes"},
		{"inference.slots", "", 8, "answers that a model computes side by side"},
		{"inference.context", "", 2048, "tokens of a conversation that a model sees; at most what it was trained for"},
		{"echo", "", false, "for tests: the scripted model \"echo\", and /echo, which returns each message"},
	}
}

// Defaults returns the configuration of those who say nothing.
func Defaults() Config {
	var c Config
	c.Listen, c.Admin, c.Data = "127.0.0.1:8420", "127.0.0.1:8421", defaultData()
	c.Models, c.Model = DefaultModels(), models.Default
	c.Log.Level, c.Log.Format = "info", "text"
	c.Drain.Timeout, c.Drain.Spread = 10*time.Second, 5*time.Second
	c.Limits.MaxConnections, c.Limits.MaxFrameBytes, c.Limits.MaxAttachments = 32768, 1<<20, 64
	c.Limits.MaxQueue, c.Limits.MaxAttempts = 16, 3
	c.Inference.Slots, c.Inference.Context = 8, 2048
	return c
}

// defaultData is below the home folder, or in the present one for users without a home.
func defaultData() string {
	home, err := os.UserHomeDir()
	if err != nil {
		return ".holdfast"
	}
	return filepath.Join(home, ".holdfast")
}

// DefaultModels is the folder of models of those who name none.
func DefaultModels() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		return filepath.Join(".holdfast", "models")
	}
	return filepath.Join(cache, "holdfast", "models")
}

// Validate finds what cannot work. Its errors are *Error.
func (c *Config) Validate() error {
	invalid := func(key, format string, args ...any) error {
		return &Error{Code: CodeConfig, Message: key + ": " + fmt.Sprintf(format, args...), Hint: "see `holdfast serve --help`, and docs/OPERATIONS.md for all settings"}
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return invalid("listen", "%q is not HOST:PORT", c.Listen)
	}
	if _, _, err := net.SplitHostPort(c.Admin); err != nil && c.Admin != "" {
		return invalid("admin", "%q is not HOST:PORT", c.Admin)
	}
	if c.Data == "" {
		return invalid("data", "no folder")
	}
	if c.Models == "" {
		return invalid("models", "no folder")
	}
	if c.Model == "" && !c.NoModel {
		return invalid("model", "no name; use no_model for a server without one")
	}
	if _, err := ParseLevel(c.Log.Level); err != nil {
		return invalid("log.level", "%v", err)
	}
	if c.Log.Format != "text" && c.Log.Format != "json" {
		return invalid("log.format", "%q is neither text nor json", c.Log.Format)
	}
	for _, d := range []struct {
		key   string
		value time.Duration
	}{{"drain.timeout", c.Drain.Timeout}, {"drain.spread", c.Drain.Spread}} {
		if d.value <= 0 || d.value > time.Hour {
			return invalid(d.key, "%s is not above 0 and at most 1h", d.value)
		}
	}
	for _, n := range []struct {
		key              string
		value, low, high int
	}{
		{"limits.max_connections", c.Limits.MaxConnections, 1, 1 << 20}, {"limits.max_frame_bytes", c.Limits.MaxFrameBytes, 1 << 10, 64 << 20},
		{"limits.max_attachments", c.Limits.MaxAttachments, 1, 1 << 16}, {"limits.max_queue", c.Limits.MaxQueue, 1, 1 << 16},
		{"limits.max_attempts", c.Limits.MaxAttempts, 1, 100},
		{"inference.slots", c.Inference.Slots, 1, 256}, {"inference.context", c.Inference.Context, 64, 1 << 20},
	} {
		if n.value < n.low || n.value > n.high {
			return invalid(n.key, "%d is not from %d to %d", n.value, n.low, n.high)
		}
	}
	return nil
}

// ParseLevel reads a log level as people write it.
func ParseLevel(s string) (slog.Level, error) {
	var l slog.Level
	switch s {
	case "debug", "info", "warn", "error":
		return l, l.UnmarshalText([]byte(s))
	}
	return l, fmt.Errorf("%q is not debug, info, warn or error", s)
}
