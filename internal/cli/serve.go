package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/holdfast-ai/holdfast/actors"
	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/fetch"
	"github.com/holdfast-ai/holdfast/internal/node"
)

// newServe makes the command "serve".
func newServe(kinds []actors.Kind) *cobra.Command {
	var config string
	var print bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the server",
		Long: `Run the server: sessions, the model, the chat page and the WebSocket endpoint, in one process and one data folder.

The model is fetched first if it is not there. SIGTERM or Ctrl-C stops the server in peace: clients are told to come
back, answers may end within drain.timeout, and what is cut goes on after the next start. A second signal ends it at
once, which loses nothing either.

Settings come from flags, from the environment (HOLDFAST_LISTEN for listen, HOLDFAST_LOG_LEVEL for log.level, …) and
from a YAML file; earlier ones win. docs/OPERATIONS.md lists all.`,
		Example: `  holdfast serve
  holdfast serve --listen 127.0.0.1:9000 --data /srv/holdfast
  holdfast serve --config holdfast.yaml --print-config
  HOLDFAST_LOG_FORMAT=json holdfast serve`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, k, unknown, err := loadConfig(config, os.Environ(), cmd)
			if err != nil {
				return err
			}
			if print {
				b, err := printConfig(k)
				if err == nil {
					_, err = cmd.OutOrStdout().Write(b)
				}
				return err
			}
			logger := newLogger(cmd.ErrOrStderr(), c)
			warnOf(logger, c, unknown)
			return serve(cmd, c, kinds, logger)
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "YAML file with settings")
	cmd.Flags().BoolVar(&print, "print-config", false, "print the settings in force, as such a file, and exit")
	addFlags(cmd, node.Settings())
	return cmd
}

func newLogger(w io.Writer, c node.Config) *slog.Logger {
	level, _ := node.ParseLevel(c.Log.Level) // validated
	o := &slog.HandlerOptions{Level: level}
	if c.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// warnOf tells of what is allowed and most likely not meant.
func warnOf(logger *slog.Logger, c node.Config, unknown []string) {
	if len(unknown) > 0 {
		logger.Warn("the environment has names that are no settings", "names", strings.Join(unknown, " "))
	}
	if host, _, err := net.SplitHostPort(c.Listen); err == nil && !isLoopbackHost(host) {
		logger.Warn("the server listens beyond this machine, and refuses everybody who is not on it: there is no authentication yet", "listen", c.Listen)
	}
	if host, _, err := net.SplitHostPort(c.Admin); err == nil && !isLoopbackHost(host) {
		logger.Warn("profiles and metrics can be read from other machines", "admin", c.Admin)
	}
}

func isLoopbackHost(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// serve opens a node, sees to its model, and runs it until a signal comes.
func serve(cmd *cobra.Command, c node.Config, kinds []actors.Kind, logger *slog.Logger) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// Once the first signal has come the next one has its ordinary effect: the process ends at once.
	defer context.AfterFunc(ctx, stop)()

	var n *node.Node
	n, err := node.Open(ctx, c, node.Options{
		Kinds: kinds, Version: buildVersion(), Logger: logger,
		Serving: func() { greet(cmd.OutOrStdout(), c, n) },
	})
	if err != nil {
		return err
	}
	// Only now: a folder in use or a port in use should not be found after a long download.
	if err := ensureModel(ctx, cmd, c, logger); err != nil {
		err = errors.Join(err, n.Close())
		if ctx.Err() != nil {
			return errInterrupted
		}
		return err
	}
	return n.Run(ctx)
}

// ensureModel fetches the default model if it is not there, or damaged.
func ensureModel(ctx context.Context, cmd *cobra.Command, c node.Config, logger *slog.Logger) error {
	if c.NoModel {
		return nil
	}
	m, err := findManifest(c.Model)
	if err != nil {
		return err
	}
	if len(m.Files) == 0 {
		return nil
	}
	if c.NoPull {
		return node.ModelError(inference.Verify(ctx, m, filepath.Join(c.Models, m.Name), nil))
	}
	return pullModel(ctx, cmd, m, fetch.Options{Dir: c.Models, Mirror: c.Mirror, Logger: logger})
}

// greet says where to go.
func greet(w io.Writer, c node.Config, n *node.Node) {
	host, port, _ := net.SplitHostPort(n.Addr())
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	url := "http://" + net.JoinHostPort(host, port)
	chat := "holdfast chat"
	if url != defaultServer {
		chat += " --server " + url
	}
	_, _ = fmt.Fprintf(w, "Holdfast is up. Chat at %s/ or with `%s`.\n  data    %s\n", url, chat, c.Data)
	if a := n.AdminAddr(); a != "" {
		_, _ = fmt.Fprintf(w, "  admin   http://%s/metrics\n", a)
	}
	_, _ = fmt.Fprintln(w, "Ctrl-C stops it; sessions are kept.")
}
