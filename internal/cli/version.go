package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// newVersion makes the command "version".
func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program",
		Example: `  holdfast version`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "holdfast %s %s %s/%s\n", buildVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// version is set by the linker for builds of a release or of a commit; see the Makefile.
var version string

// buildVersion is what the build was told or has recorded of itself: a release's tag, or the commit.
func buildVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	settings := make(map[string]string, len(info.Settings))
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	return versionOf(info.Main.Version, settings)
}

func versionOf(module string, settings map[string]string) string {
	if module != "" && module != "(devel)" {
		return module
	}
	revision := settings["vcs.revision"]
	if len(revision) < 12 {
		return "devel"
	}
	if settings["vcs.modified"] == "true" {
		return "devel+" + revision[:12] + "-dirty"
	}
	return "devel+" + revision[:12]
}
