package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// Version is gpumemtrack version.
func Version(a *App) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print which version this is, and how it was built",
		Example: "  gpumemtrack version",
		Args:    NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(a.Stdout, versionText())
			return err
		},
	}
}

// versionText returns the module's version, the commit if built from a checkout, Go's version and
// the platform.
func versionText() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	return describeBuild(info)
}

func describeBuild(info *debug.BuildInfo) string {
	settings := make(map[string]string)
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	words := []string{ProgramName, info.Main.Version}
	if info.Main.Version == "" {
		words[1] = "(unknown version)"
	}
	if revision := settings["vcs.revision"]; revision != "" {
		words = append(words, "commit "+revision[:min(12, len(revision))])
		if day, _, _ := strings.Cut(settings["vcs.time"], "T"); day != "" {
			words = append(words, "of "+day)
		}
		if settings["vcs.modified"] == "true" {
			words = append(words, "with changes")
		}
	}
	return strings.Join(words, " ") + ", " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
}
